// SPDX-License-Identifier: Apache-2.0

/*
 * Git revisions in, git patches out. The only file that includes git2.h; libgit2's codes stop here.
 *
 * Invariants:
 *  1. A tree object comes from a stranger. Its names are checked as git checks them before it
 *     checks out: nothing that is or could be taken for "." or ".." or ".git" on any filesystem.
 *  2. The walk keeps its own stack, and looks at `cancel` between entries: trees may be deep, and a
 *     few small objects may describe a tree of billions of files.
 *  3. A printed patch applies: paths are quoted as git quotes them, a binary patch carries full
 *     object names, and what git cannot express is not printed at all.
 */

#include <errno.h>
#include <git2.h>
#include <pthread.h>
#include <sys/stat.h>

#include "env/dotgit.h"
#include "env/transfer/transfer_internal.h"
#include "fs/format.h"
#include "store/chunk.h"

/* Once in the process, and for good: taking libgit2 up and down costs more than most patches. */
static void init_library(void)
{
	(void)git_libgit2_init();
}

static void use_library(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, init_library);
}

static const char *git_why(void)
{
	const git_error *e = git_error_last();

	return e && e->message ? e->message : "libgit2 does not say why";
}

static bool git_name_ok(const char *name)
{
	return name_is_plain(name, strlen(name)) && !dotgit_in(name);
}

struct rev_level {
	git_tree *tree; /* owned */
	size_t next;
	uint64_t ino;
	size_t path_len;
};

struct rev_import {
	struct builder b;
	git_repository *repo;	  /* owned */
	struct rev_level *levels; /* owned */
	size_t depth, cap;
	char *path; /* owned */
	size_t path_cap;
	struct timens time; /* of the commit */
	uint8_t *buf;	    /* owned: CHUNK_MAX */
};

static void rev_import_release(struct rev_import *gi)
{
	while (gi->depth > 0)
		git_tree_free(gi->levels[--gi->depth].tree);
	free(gi->levels);
	free(gi->path);
	free(gi->buf);
	git_repository_free(gi->repo);
	builder_release(&gi->b);
}

static void git_blob_freep(git_blob **b)
{
	git_blob_free(*b);
}

static void git_object_freep(git_object **o)
{
	git_object_free(*o);
}

static int rev_push(struct rev_import *gi, const git_oid *id, uint64_t ino, size_t path_len)
{
	if (gi->depth == gi->cap) {
		size_t cap = gi->cap ? 2 * gi->cap : 32;
		struct rev_level *p = realloc(gi->levels, cap * sizeof(*p));

		if (!p)
			return -ENOMEM;
		gi->levels = p;
		gi->cap = cap;
	}
	gi->levels[gi->depth] = (struct rev_level){ .ino = ino, .path_len = path_len };
	if (git_tree_lookup(&gi->levels[gi->depth].tree, gi->repo, id) < 0)
		return talk_fail(&gi->b.talk, -ERR_SOURCE, "tree of '%s': %s", gi->path, git_why());
	gi->depth++;
	return 0;
}

static int rev_file(struct rev_import *gi, uint64_t dir, const char *name, const git_oid *id,
		    struct inode *i)
{
	_cleanup_(git_blob_freep) git_blob *blob = NULL;
	struct writer w = { .b = &gi->b, .buf = gi->buf };
	char target[TARGET_MAX + 1];
	const char *data;
	uint64_t len;
	int r;

	if (git_blob_lookup(&blob, gi->repo, id) < 0)
		return talk_fail(&gi->b.talk, -ERR_SOURCE, "'%s': %s", gi->path, git_why());
	data = git_blob_rawcontent(blob);
	len = (uint64_t)git_blob_rawsize(blob);
	i->size = len;

	if (S_ISLNK(i->mode)) {
		if (len == 0 || len > TARGET_MAX || memchr(data, '\0', len))
			return talk_fail(&gi->b.talk, -ERR_SOURCE,
					 "'%s': no good target of a symlink", gi->path);
		memcpy(target, data, len);
		target[len] = '\0';
	} else if (len > (uint64_t)FILE_SIZE_MAX) {
		return talk_fail(&gi->b.talk, -EFBIG, "'%s'", gi->path);
	}
	r = builder_add(&gi->b, dir, name, strlen(name), i, S_ISLNK(i->mode) ? target : NULL);
	if (r < 0)
		return talk_fail(&gi->b.talk, r, "'%s'", gi->path);
	if (!S_ISREG(i->mode) || len == 0)
		return 0;

	w.ino = i->ino;
	r = writer_put(&w, 0, data, len);
	if (r == 0)
		r = writer_flush(&w);
	if (r < 0)
		return talk_fail(&gi->b.talk, r, "'%s'", gi->path);
	return 0;
}

static int rev_entry(struct rev_import *gi)
{
	struct rev_level *l = &gi->levels[gi->depth - 1];
	const git_tree_entry *e = git_tree_entry_byindex(l->tree, l->next++);
	git_filemode_t mode;
	const char *name;
	struct inode i = {
		.uid = geteuid(),
		.gid = getegid(),
		.atime = gi->time,
		.mtime = gi->time,
		.ctime = gi->time,
		.btime = gi->time,
	};
	int r;

	if (!e)
		return talk_fail(&gi->b.talk, -ENOMEM, "a git tree");
	mode = git_tree_entry_filemode(e);
	name = git_tree_entry_name(e);
	r = path_put(&gi->path, &gi->path_cap, l->path_len, name);
	if (r < 0)
		return r;
	if (!git_name_ok(name)) /* invariant 1 */
		return talk_fail(&gi->b.talk,
				 strlen(name) > NAME_LEN_MAX ? -ENAMETOOLONG : -ERR_UNSAFE_PATH,
				 "entry '%s'", gi->path);

	switch (mode) {
	case GIT_FILEMODE_BLOB:
	case GIT_FILEMODE_BLOB_EXECUTABLE:
	case GIT_FILEMODE_LINK:
		i.mode = mode == GIT_FILEMODE_LINK   ? S_IFLNK | 0777
			 : mode == GIT_FILEMODE_BLOB ? S_IFREG | 0644
						     : S_IFREG | 0755;
		r = rev_file(gi, l->ino, name, git_tree_entry_id(e), &i);
		break;
	case GIT_FILEMODE_COMMIT:
		talk_skip(&gi->b.talk, "'%s' is a submodule: an empty directory stands for it",
			  gi->path);
		/* fall through */
	case GIT_FILEMODE_TREE:
		i.mode = S_IFDIR | 0755;
		i.size = BLOCK_BYTES;
		r = builder_add(&gi->b, l->ino, name, strlen(name), &i, NULL);
		if (r < 0)
			r = talk_fail(&gi->b.talk, r, "'%s'", gi->path);
		break;
	default:
		return talk_fail(&gi->b.talk, -ERR_SOURCE, "'%s': mode %o is none of git's",
				 gi->path, (unsigned)mode);
	}
	if (r < 0)
		return r;
	r = builder_done(&gi->b, &i, false);
	if (r < 0 || mode != GIT_FILEMODE_TREE)
		return r;
	return rev_push(gi, git_tree_entry_id(e), i.ino, strlen(gi->path));
}

static int rev_open(struct rev_import *gi, const char *path)
{
	int r = git_repository_open_ext(&gi->repo, path, GIT_REPOSITORY_OPEN_NO_SEARCH, NULL);

	/* 1.5 forgets the code when nothing is configured; the message names the option. */
	if (r == GIT_EOWNER || (r < 0 && strstr(git_why(), "safe.directory")))
		return talk_fail(&gi->b.talk, -EPERM,
				 "repository '%s' belongs to somebody else; if you trust it: "
				 "git config --global --add safe.directory '%s'",
				 path, path);
	if (r < 0)
		return talk_fail(&gi->b.talk, -ERR_SOURCE, "repository '%s': %s", path, git_why());
	return 0;
}

static int rev_find_tree(struct rev_import *gi, const char *rev, git_oid *ret_tree)
{
	_cleanup_(git_object_freep) git_object *object = NULL, *commit = NULL, *tree = NULL;

	if (git_revparse_single(&object, gi->repo, rev) < 0)
		return talk_fail(&gi->b.talk, -ERR_SOURCE, "revision '%s': %s", rev, git_why());
	if (git_object_peel(&commit, object, GIT_OBJECT_COMMIT) == 0)
		gi->time.sec = git_commit_committer((const git_commit *)commit)->when.time;
	if (git_object_peel(&tree, commit ? commit : object, GIT_OBJECT_TREE) < 0)
		return talk_fail(&gi->b.talk, -ERR_SOURCE, "revision '%s': %s", rev, git_why());
	git_oid_cpy(ret_tree, git_object_id(tree));
	return 0;
}

int import_git(struct store *s, const char *path, const char *rev, const struct import_ops *ops,
	       struct root **ret_root, struct transfer_stats *ret)
{
	_cleanup_(rev_import_release) struct rev_import gi = { 0 };
	struct inode top;
	git_oid tree;
	int r;

	use_library();
	r = builder_init(&gi.b, s, ops);
	if (r < 0)
		return r;
	gi.path_cap = 4096;
	gi.path = calloc(gi.path_cap, 1);
	gi.buf = malloc(CHUNK_MAX);
	if (!gi.path || !gi.buf)
		return -ENOMEM;

	r = rev_open(&gi, path);
	if (r < 0)
		return r;
	r = rev_find_tree(&gi, rev, &tree);
	if (r < 0)
		return r;

	top = (struct inode){
		.ino = ROOT_INO,
		.mode = S_IFDIR | 0755,
		.uid = geteuid(),
		.gid = getegid(),
		.atime = gi.time,
		.mtime = gi.time,
		.ctime = gi.time,
		.btime = gi.time,
	};
	r = builder_done(&gi.b, &top, true);
	if (r < 0)
		return r;
	r = rev_push(&gi, &tree, ROOT_INO, 0);
	while (r == 0 && gi.depth > 0) {
		struct rev_level *l = &gi.levels[gi.depth - 1];

		if (l->next < git_tree_entrycount(l->tree)) {
			r = rev_entry(&gi);
			continue;
		}
		git_tree_free(l->tree);
		gi.depth--;
	}
	if (r < 0)
		return r;
	return builder_finish(&gi.b, ret_root, ret);
}
