/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A state becomes a commit.
 *
 * Invariants:
 *  1. What would make git refuse the tree, or lead out of it, ends the program: a bad name, a name
 *     twice, an order that no walk has.
 *  2. The ref is set last, to a commit whose objects are all there, and only from what it was when
 *     it was looked at. Whatever ends us before leaves objects that nothing names; in the moment
 *     itself the ref's lock file may stay, as git's own would.
 *  3. Content goes through in pieces. Of trees only those on the way to the member are in memory.
 */

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "env/formats/git.h"
#include "store/base/err.h"
#include "store/base/os.h"

#define HEADS "refs/heads/"

struct level {
	git_treebuilder *tree; /* owned */
	size_t path_len;       /* of its directory */
};

struct writer {
	struct chan *c;
	git_repository *repo;
	git_odb *odb;
	struct level *levels; /* owned: the root, and down to where the member is */
	size_t depth, cap;
	char *path; /* owned: of the member; directories of the levels are beginnings of it */
	size_t path_cap;
	git_filemode_t mode; /* of the member; 0: there is none */
	git_odb_stream *blob; /* owned: where its content goes */
	uint64_t size, written;
};

/* The file that it is written to, which may be large and the disk full, goes with it. */
static void drop_blob(void *arg)
{
	struct writer *w = arg;

	if (w->blob)
		git_odb_stream_free(w->blob);
}

static void check(struct writer *w, int r, const char *what)
{
	if (r < 0)
		program_fail(w->c, -ERR_TARGET, "'%s': %s", what, git_why());
}

/* ---- trees ---- */

/* Where the name begins of what lies in the last level. */
static const char *name_in_level(const struct writer *w)
{
	size_t at = w->levels[w->depth - 1].path_len;

	return w->path + (at ? at + 1 : 0);
}

static void open_level(struct writer *w, size_t path_len)
{
	struct level *l;

	if (os_grow(&w->levels, &w->cap, w->depth + 1, sizeof(*w->levels)) < 0)
		program_fail(w->c, -ENOMEM, "'%s'", w->path);
	l = &w->levels[w->depth++];
	*l = (struct level){ .path_len = path_len };
	check(w, git_treebuilder_new(&l->tree, w->repo, NULL), w->path);
}

/* w->path ends behind the name. */
static void insert(struct writer *w, const git_oid *id, git_filemode_t mode)
{
	git_treebuilder *tree = w->levels[w->depth - 1].tree;
	const char *name = name_in_level(w);

	if (git_treebuilder_get(tree, name))
		program_confused(w->c); /* invariant 1 */
	check(w, git_treebuilder_insert(NULL, tree, name, id, mode), w->path);
}

/* Writes the last level's tree. */
static void close_level(struct writer *w, git_oid *ret)
{
	struct level *l = &w->levels[--w->depth];

	w->path[l->path_len] = '\0';
	check(w, git_treebuilder_write(ret, l->tree), w->path);
	git_treebuilder_free(l->tree);
}

/* Closes levels that do not lead to path, then opens those that do. */
static void go_to(struct writer *w, const char *path)
{
	size_t len = strlen(path), n;
	git_oid id;

	while ((n = w->levels[w->depth - 1].path_len) > 0 &&
	       (strncmp(w->path, path, n) != 0 || path[n] != '/')) {
		close_level(w, &id);
		insert(w, &id, GIT_FILEMODE_TREE);
	}
	if (os_grow(&w->path, &w->path_cap, len + 1, 1) < 0)
		program_fail(w->c, -ENOMEM, "'%s'", path);
	memcpy(w->path, path, len + 1);

	for (;;) {
		char *name = (char *)name_in_level(w), *slash = strchr(name, '/');

		if (slash)
			*slash = '\0';
		if (git_name_is_bad(name) || strlen(name) > NAME_LEN_MAX)
			program_fail(w->c, -ERR_UNSAFE_PATH, "'%s'", path);
		if (!slash)
			return;
		open_level(w, (size_t)(slash - w->path));
		*slash = '/';
	}
}

/* ---- members ---- */

static void put_bytes(struct writer *w, const char *data, size_t len)
{
	git_error_clear(); /* of a full disk it says nothing, and a former error would be told */
	errno = 0;
	check(w, git_odb_stream_write(w->blob, data, len), w->path);
	w->written += len;
}

static void put_zeros(struct writer *w, uint64_t until)
{
	static const char zeros[RECORD_DATA_MAX];

	while (w->written < until)
		put_bytes(w, zeros, MIN(until - w->written, (uint64_t)sizeof(zeros)));
}

static void put_data(struct writer *w, const struct record *rec)
{
	const void *data;
	uint64_t off;
	size_t len;

	if (!w->blob || !record_data(rec, &off, &data, &len) || off < w->written || off > w->size ||
	    len > w->size - off)
		program_confused(w->c);
	put_zeros(w, off);
	put_bytes(w, data, len);
}

static void end_member(struct writer *w)
{
	git_oid id;

	if (!w->blob)
		return;
	put_zeros(w, w->size);
	git_error_clear();
	errno = 0;
	check(w, git_odb_stream_finalize_write(&id, w->blob), w->path);
	git_odb_stream_free(w->blob);
	w->blob = NULL;
	insert(w, &id, w->mode);
}

static void begin_member(struct writer *w, const struct record *rec)
{
	struct member m;
	bool link;

	if (!record_member(rec, &m) || m.link || m.inode.size > INT64_MAX)
		program_confused(w->c);
	link = S_ISLNK(m.inode.mode);
	if ((!link && !S_ISREG(m.inode.mode)) || link != (m.target && *m.target))
		program_confused(w->c);
	go_to(w, m.path);

	w->mode = link ? GIT_FILEMODE_LINK
		  : m.inode.mode & S_IXUSR ? GIT_FILEMODE_BLOB_EXECUTABLE
					   : GIT_FILEMODE_BLOB;
	w->size = link ? strlen(m.target) : m.inode.size;
	w->written = 0;
	check(w, git_odb_open_wstream(&w->blob, w->odb, w->size, GIT_OBJECT_BLOB), w->path);
	if (link)
		put_bytes(w, m.target, w->size);
}

/* ---- the commit ---- */

/* As the user's git has it; a name that git would not take counts as none. */
static git_signature *sign(struct writer *w, git_time_t time)
{
	const char *name = NULL, *email = NULL;
	git_signature *who = NULL;
	git_config *config;

	check(w, git_repository_config_snapshot(&config, w->repo), "config");
	(void)git_config_get_string(&name, config, "user.name"); /* NULL: not set */
	(void)git_config_get_string(&email, config, "user.email");
	if ((!name || !email || git_signature_new(&who, name, email, time, 0) < 0) &&
	    git_signature_new(&who, "plyfs", "plyfs@localhost", time, 0) < 0)
		program_fail(w->c, -ENOMEM, "a signature");
	git_config_free(config);
	return who;
}

static bool is_branch(const char *ref)
{
	return strncmp(ref, HEADS, strlen(HEADS)) == 0;
}

/* Whoever works there would find his files changed, compared with the branch. */
static void check_out_of_use(struct writer *w, const char *ref)
{
	git_reference *head = NULL, *branch = NULL;
	bool used = false;

	/* one that has no commit yet is no reference */
	if (!git_repository_is_bare(w->repo) &&
	    git_reference_lookup(&head, w->repo, "HEAD") == 0 &&
	    git_reference_type(head) == GIT_REFERENCE_SYMBOLIC)
		used = strcmp(git_reference_symbolic_target(head), ref) == 0;
	if (!used && git_reference_lookup(&branch, w->repo, ref) == 0)
		used = git_branch_is_checked_out(branch) > 0; /* in another working tree, too */
	git_reference_free(head);
	git_reference_free(branch);
	if (used)
		program_fail(w->c, -ERR_TARGET,
			     "branch '%s' is checked out in a working tree; name another one",
			     ref + strlen(HEADS));
}

static bool name_is_taken(const char *ref, bool branch)
{
	int valid = 0;

	if (branch) /* git has no branch HEAD, and none that begins with a dash */
		(void)git_branch_name_is_valid(&valid, ref + strlen(HEADS));
	else
		valid = git_reference_is_valid_name(ref);
	return valid;
}

/* The commit that ref is at; NULL: it is not there, or is to be replaced. */
static git_commit *find_parent(struct writer *w, const char *ref, bool branch)
{
	git_commit *parent = NULL;
	git_oid id;
	int r;

	if (!name_is_taken(ref, branch))
		program_fail(w->c, -ERR_TARGET, "git takes no ref of the name '%s'", ref);
	if (!branch)
		return NULL;
	check_out_of_use(w, ref);
	r = git_reference_name_to_id(&id, w->repo, ref);
	if (r == GIT_ENOTFOUND)
		return NULL;
	check(w, r, ref);
	check(w, git_commit_lookup(&parent, w->repo, &id), ref);
	return parent;
}

static void set_ref(struct writer *w, const char *ref, const git_oid *id, const git_commit *parent)
{
	bool branch = is_branch(ref);
	git_reference *made;

	if (branch)
		check_out_of_use(w, ref); /* that took a while */
	check(w,
	      git_reference_create_matching(&made, w->repo, ref, id, parent || !branch,
					    parent ? git_commit_id(parent) : NULL, "plyfs export"),
	      ref);
}

_Noreturn static void commit(struct writer *w, const char *ref, git_time_t time,
			     const char *text, git_commit *parent)
{
	const git_commit *parents[] = { parent };
	char hex[GIT_OID_HEXSZ + 1];
	git_signature *who = sign(w, time);
	git_tree *tree;
	char *message;
	git_oid id;

	while (w->depth > 1) {
		close_level(w, &id);
		insert(w, &id, GIT_FILEMODE_TREE);
	}
	close_level(w, &id);
	check(w, git_tree_lookup(&tree, w->repo, &id), "tree");
	if (asprintf(&message, "%s\n", text) < 0)
		program_fail(w->c, -ENOMEM, "a message");
	check(w,
	      git_commit_create(&id, w->repo, NULL, who, who, NULL, message, tree, !!parent,
				parents),
	      "commit");
	set_ref(w, ref, &id, parent);
	program_end(w->c, git_oid_tostr(hex, sizeof(hex), &id));
}

void git_write(struct chan *c, char *const words[])
{
	struct writer w = { .c = c };
	const char *ref = words[1];
	git_commit *parent;
	struct record rec;

	c->drop = drop_blob;
	c->drop_arg = &w;
	(void)umask((mode_t)strtoul(words[2], NULL, 8));
	(void)signal(SIGXFSZ, SIG_IGN); /* as a failure of a write */
	/* each id comes from what was just written */
	(void)git_libgit2_opts(GIT_OPT_ENABLE_STRICT_OBJECT_CREATION, 0);
	w.repo = git_open(c, words[0], -ERR_TARGET);
	check(&w, git_repository_odb(&w.odb, w.repo), words[0]);
	parent = find_parent(&w, ref, is_branch(ref));
	if (os_grow(&w.path, &w.path_cap, 1, 1) < 0)
		program_fail(c, -ENOMEM, "a tree");
	*w.path = '\0';
	open_level(&w, 0);

	for (;;) {
		program_get(c, &rec);
		switch (rec.kind) {
		case REC_MEMBER:
			end_member(&w);
			begin_member(&w, &rec);
			break;
		case REC_DATA:
			put_data(&w, &rec);
			break;
		case REC_END:
			end_member(&w);
			commit(&w, ref, strtoll(words[3], NULL, 10), words[4], parent);
		default:
			program_confused(c);
		}
	}
}
