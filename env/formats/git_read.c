/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A git revision as members.
 *
 * Invariants:
 *  1. A tree object comes from a stranger. Its names are checked as git checks them before it
 *     checks out: nothing that is or could be taken for "." or ".." or ".git" on any filesystem.
 *  2. The walk keeps its own stack: trees may be deep. A few small objects may describe a tree of
 *     billions of files: whoever has enough of it ends the process.
 */

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "env/formats/git.h"
#include "store/base/err.h"
#include "store/base/os.h"

struct level {
	git_tree *tree; /* owned */
	size_t next;
	size_t path_len;
};

struct reader {
	struct chan *c;
	git_repository *repo;
	struct level *levels; /* owned */
	size_t depth, cap;
	char *path; /* owned */
	size_t path_cap;
	struct inode like; /* whose owner and times all have */
};

static void put_path(struct reader *gr, size_t parent_len, const char *name)
{
	size_t at = parent_len ? parent_len + 1 : 0, len = strlen(name);

	if (os_grow(&gr->path, &gr->path_cap, at + len + 1, 1) < 0)
		program_fail(gr->c, -ENOMEM, "'%s'", name);
	if (at > 0)
		gr->path[at - 1] = '/';
	memcpy(gr->path + at, name, len + 1);
}

static void push(struct reader *gr, const git_oid *id, size_t path_len)
{
	if (os_grow(&gr->levels, &gr->cap, gr->depth + 1, sizeof(*gr->levels)) < 0)
		program_fail(gr->c, -ENOMEM, "tree of '%s'", gr->path);
	gr->levels[gr->depth] = (struct level){ .path_len = path_len };
	if (git_tree_lookup(&gr->levels[gr->depth].tree, gr->repo, id) < 0)
		program_fail(gr->c, -ERR_SOURCE, "tree of '%s': %s", gr->path, git_why());
	gr->depth++;
}

static void put_member(struct reader *gr, mode_t mode, uint64_t size, const char *target)
{
	struct member m = { .inode = gr->like, .path = gr->path, .target = target };
	int r;

	m.inode.mode = mode;
	m.inode.size = size;
	r = chan_put_member(gr->c, &m);
	if (r == -ENAMETOOLONG)
		program_fail(gr->c, r, "'%s'", gr->path);
	program_must(gr->c, r);
}

static void put_blob(struct reader *gr, git_filemode_t mode, const git_oid *id)
{
	git_blob *blob = NULL;
	const char *data;
	uint64_t len;

	if (git_blob_lookup(&blob, gr->repo, id) < 0)
		program_fail(gr->c, -ERR_SOURCE, "'%s': %s", gr->path, git_why());
	data = git_blob_rawcontent(blob);
	len = (uint64_t)git_blob_rawsize(blob);
	if (mode == GIT_FILEMODE_LINK) {
		char *target = strndup(data, len);

		if (!target)
			program_fail(gr->c, -ENOMEM, "'%s'", gr->path);
		if (len == 0 || strlen(target) != len)
			program_fail(gr->c, -ERR_SOURCE, "'%s': no good target of a symlink",
				     gr->path);
		put_member(gr, S_IFLNK | 0777, len, target);
		free(target);
	} else {
		put_member(gr, S_IFREG | (mode == GIT_FILEMODE_BLOB ? 0644 : 0755), len, NULL);
		program_must(gr->c, chan_put_data(gr->c, 0, data, len));
	}
	git_blob_free(blob);
}

static void put_entry(struct reader *gr)
{
	struct level *l = &gr->levels[gr->depth - 1];
	const git_tree_entry *e = git_tree_entry_byindex(l->tree, l->next++);
	git_filemode_t mode;
	const char *name;

	if (!e)
		program_fail(gr->c, -ENOMEM, "a git tree");
	mode = git_tree_entry_filemode(e);
	name = git_tree_entry_name(e);
	put_path(gr, l->path_len, name);
	if (strlen(name) > NAME_LEN_MAX)
		program_fail(gr->c, -ENAMETOOLONG, "entry '%s'", gr->path);
	if (git_name_is_bad(name)) /* invariant 1 */
		program_fail(gr->c, -ERR_UNSAFE_PATH, "entry '%s'", gr->path);

	switch (mode) {
	case GIT_FILEMODE_BLOB:
	case GIT_FILEMODE_BLOB_EXECUTABLE:
	case GIT_FILEMODE_LINK:
		put_blob(gr, mode, git_tree_entry_id(e));
		return;
	case GIT_FILEMODE_COMMIT:
		program_skip(gr->c, "'%s' is a submodule: an empty directory stands for it",
			     gr->path);
		put_member(gr, S_IFDIR | 0755, 0, NULL);
		return;
	case GIT_FILEMODE_TREE:
		put_member(gr, S_IFDIR | 0755, 0, NULL);
		push(gr, git_tree_entry_id(e), strlen(gr->path));
		return;
	default:
		program_fail(gr->c, -ERR_SOURCE, "'%s': mode %o is none of git's", gr->path,
			     (unsigned)mode);
	}
}

static void find_tree(struct reader *gr, const char *rev, git_oid *ret_tree)
{
	git_object *object = NULL, *commit = NULL, *tree = NULL;
	struct timens time = { 0 };

	if (git_revparse_single(&object, gr->repo, rev) < 0)
		program_fail(gr->c, -ERR_SOURCE, "revision '%s': %s", rev, git_why());
	if (git_object_peel(&commit, object, GIT_OBJECT_COMMIT) == 0)
		time.sec = git_commit_committer((const git_commit *)commit)->when.time;
	if (git_object_peel(&tree, commit ? commit : object, GIT_OBJECT_TREE) < 0)
		program_fail(gr->c, -ERR_SOURCE, "revision '%s': %s", rev, git_why());
	git_oid_cpy(ret_tree, git_object_id(tree));
	gr->like = (struct inode){
		.uid = geteuid(),
		.gid = getegid(),
		.atime = time,
		.mtime = time,
		.ctime = time,
		.btime = time,
	};
	git_object_free(tree);
	git_object_free(commit);
	git_object_free(object);
}

void git_read(struct chan *c, const char *path, const char *rev)
{
	struct reader gr = { .c = c };
	git_oid tree;

	put_path(&gr, 0, "");
	gr.repo = git_open(c, path, -ERR_SOURCE);
	find_tree(&gr, rev, &tree);
	put_member(&gr, S_IFDIR | 0755, 0, NULL);
	push(&gr, &tree, 0);
	while (gr.depth > 0) {
		struct level *l = &gr.levels[gr.depth - 1];

		if (l->next < git_tree_entrycount(l->tree)) {
			put_entry(&gr);
			continue;
		}
		git_tree_free(l->tree);
		gr.depth--;
	}
	free(gr.levels);
	free(gr.path);
	git_repository_free(gr.repo);
	program_end(c, "");
}
