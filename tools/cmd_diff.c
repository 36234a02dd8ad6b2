/* SPDX-License-Identifier: Apache-2.0 */

/*
 * plyfs diff: what changed between two states, in git's formats.
 *
 * Directories are listed where nothing below them tells the same: empty ones that came, went or
 * moved, and those whose own mode, owner or attributes changed. Their names end in a slash.
 */

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <strings.h>

#include "env/transfer/transfer.h"
#include "fs/diff.h"
#include "fs/fs.h"
#include "store/base/err.h"
#include "store/base/util.h"
#include "store/tree.h"
#include "tools/cmd.h"
#include "tools/cmd_util.h"
#include "tools/diffstat.h"
#include "tools/transfer_talk.h"

struct diff_verb {
	struct cmd *cmd;
	struct tree *trees[2]; /* owned */
	struct fs old_fs, new_fs;
	struct patcher *patcher; /* owned; for --stat and --patch */
	bool nul;		 /* -z */
	bool directories;	 /* are told whatever they hold */
	uint64_t n;	 /* changes told, */
	uint64_t n_json; /* as JSON */
	struct diffstat stat;
	uint64_t of_git; /* of a patch: paths left out */
};

static void diff_verb_release(struct diff_verb *d)
{
	patcher_freep(&d->patcher);
	tree_freep(&d->trees[0]);
	tree_freep(&d->trees[1]);
	diffstat_release(&d->stat);
}

static int stop(void *arg, const char *name, size_t len, uint64_t ino, unsigned type,
		uint64_t cookie)
{
	*(bool *)arg = true;
	return 1;
}

/* 1: a directory that is only told of by what it holds. */
static int is_told_by_content(struct diff_verb *d, const struct change *c)
{
	const struct fs *fs = c->new_path ? &d->new_fs : &d->old_fs;
	const struct inode *i = c->new_path ? c->new_inode : c->old_inode;
	bool holds = false;
	int r;

	if (d->directories || !inode_is_dir(i) || c->kind == CHANGE_MODIFIED ||
	    c->kind == CHANGE_TYPE)
		return 0;
	r = fs_readdir(fs, i->ino, 2 /* behind ".." */, stop, &holds);
	return r < 0 ? r : holds;
}

/* 1: leave this change out; < 0: stop. */
static int filter(struct diff_verb *d, const struct change *c)
{
	int r;

	if (__atomic_load_n(&d->cmd->cancel, __ATOMIC_RELAXED))
		return -ERR_CANCELLED;
	for (size_t i = 0; i < ARRAY_SIZE(d->trees); i++) {
		r = store_read_limit(d->cmd->store, d->trees[i]);
		if (r < 0)
			return r;
	}
	r = is_told_by_content(d, c);
	if (r == 0)
		d->n++;
	return r;
}

static void print_name(struct diff_verb *d, const char *path, const struct inode *i)
{
	FILE *out = d->cmd->out;
	const char *slash = inode_is_dir(i) ? "/" : "";

	fputc(d->nul ? '\0' : '\t', out);
	if (d->nul)
		fprintf(out, "%s%s", *path ? path : ".", slash);
	else
		print_quoted(out, *path ? path : ".", slash);
}

static int name_status(void *arg, const struct change *c)
{
	struct diff_verb *d = arg;
	int r = filter(d, c);

	if (r != 0)
		return r < 0 ? r : 0;
	fputc(c->kind, d->cmd->out);
	if (c->old_path && (c->kind == CHANGE_RENAMED || !c->new_path))
		print_name(d, c->old_path, c->old_inode);
	if (c->new_path)
		print_name(d, c->new_path, c->new_inode);
	fputc(d->nul ? '\0' : '\n', d->cmd->out);
	return 0;
}

static const char *type_name(const struct inode *i)
{
	switch (i->mode & S_IFMT) {
	case S_IFREG:
		return "file";
	case S_IFDIR:
		return "directory";
	case S_IFLNK:
		return "symlink";
	case S_IFIFO:
		return "fifo";
	case S_IFSOCK:
		return "socket";
	case S_IFCHR:
		return "character device";
	case S_IFBLK:
		return "block device";
	default:
		return "unknown";
	}
}

static json_t *json_side(const char *path, const struct inode *i)
{
	char mode[8];

	if (!path)
		return json_null();
	snprintf(mode, sizeof(mode), "%06o", i->mode & 0177777);
	return json_pack("{s:o, s:s, s:s, s:I, s:I, s:I}", "path", json_text(path), "type",
			 type_name(i), "mode", mode, "size", (json_int_t)i->size, "uid",
			 (json_int_t)i->uid, "gid", (json_int_t)i->gid);
}

static json_t *json_what(unsigned what)
{
	static const struct {
		unsigned bit;
		const char *name;
	} names[] = {
		{ WHAT_DATA, "data" },	 { WHAT_MODE, "mode" }, { WHAT_OWNER, "owner" },
		{ WHAT_XATTR, "xattr" }, { WHAT_TIME, "time" },
	};
	json_t *array = json_array();

	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		if (what & names[i].bit)
			json_array_append_new(array, json_string(names[i].name));
	return array;
}

static int as_json(void *arg, const struct change *c)
{
	struct diff_verb *d = arg;
	const char kind[2] = { (char)c->kind };
	json_t *object;
	int r = filter(d, c);

	if (r != 0)
		return r < 0 ? r : 0;
	object = json_pack("{s:s, s:o, s:o, s:o, s:o}", "status", kind, "path",
			   json_text(c->new_path ? c->new_path : c->old_path), "what",
			   json_what(c->what), "old", json_side(c->old_path, c->old_inode), "new",
			   json_side(c->new_path, c->new_inode));
	return cmd_json_next(d->cmd, &d->n_json, object);
}

static int add_stat(void *arg, const struct change *c)
{
	struct diff_verb *d = arg;
	uint64_t added, removed;
	bool binary;
	int r = filter(d, c);

	if (r < 0)
		return r;
	r = patch_count(d->patcher, &d->old_fs, &d->new_fs, c, &added, &removed, &binary);
	if (r < 0)
		return r;
	return diffstat_add(&d->stat, c->kind == CHANGE_ADDED ? c->new_path : c->old_path,
			    c->new_path ? c->new_path : c->old_path, added, removed, binary);
}

/* Whether git takes it for a repository's own (in any case of letters): it refuses such a patch. */
static bool is_of_git(const char *path)
{
	for (const char *next; path; path = next) {
		size_t n = strcspn(path, "/");

		if (n == strlen(".git") && strncasecmp(path, ".git", n) == 0)
			return true;
		next = path[n] ? path + n + 1 : NULL;
	}
	return false;
}

static int as_patch(void *arg, const struct change *c)
{
	struct diff_verb *d = arg;
	const char *path = c->new_path ? c->new_path : c->old_path;
	int r = filter(d, c);

	if (r < 0)
		return r;
	if (is_of_git(c->old_path) || is_of_git(c->new_path)) {
		d->of_git++;
		return 0;
	}
	r = patch_print(d->patcher, d->cmd->out, &d->old_fs, &d->new_fs, c);
	if (r == AGAIN) {
		cmd_warn(d->cmd,
			 "'%s' is neither file nor symlink, and git knows no other, ignoring",
			 path);
		return 0;
	}
	if (r == -EFBIG) {
		cmd_warn(d->cmd, "'%s' is too large for a patch, ignoring", path);
		return 0;
	}
	return r;
}

/* The state that the view's branch continues: its last snapshot. */
static int last_snapshot(struct cmd *c, struct cmd_state *ret)
{
	const char *name = cmd_branch_name(c, NULL);
	_cleanup_(branch_closep) struct branch *b = NULL;
	char text[BRANCH_NAME_MAX + sizeof("~0")];
	bool none;
	int r;

	if (c->snapshot)
		return cmd_state(c, NULL, ret);
	r = branch_open(c->store, name, &b);
	if (r < 0)
		return cmd_fail(c, r, "branch '%s'", name);
	{
		READ_GUARD(&b->lock);
		none = !b->head;
	}
	if (none)
		return cmd_fail(c, 0, "branch '%s' has no snapshot yet to compare with", name);
	/* By name: a restore may end the snapshot that we have just seen, and there is another. */
	(void)snprintf(text, sizeof(text), "%s~0", name);
	return cmd_state(c, text, ret);
}

static int open_states(struct diff_verb *d, const struct cmd_state *a, const struct cmd_state *b)
{
	struct store *s = d->cmd->store;
	int r;

	r = tree_new(store_nodes(s), a->root, &d->trees[0]);
	if (r < 0)
		return r;
	r = tree_new(store_nodes(s), b->root, &d->trees[1]);
	if (r < 0)
		return r;
	d->old_fs = (struct fs){ .store = s, .tree = d->trees[0] };
	d->new_fs = (struct fs){ .store = s, .tree = d->trees[1] };
	return 0;
}

int cmd_diff(struct cmd *c)
{
	bool names = false, stat = false, patch = false, json = false;
	bool no_renames = false, directories = false, exit_code = false, nul = false;
	const struct option_def options[] = {
		{ .name = "name-status", .flag = &names },
		{ .name = "stat", .flag = &stat },
		{ .name = "patch", .letter = 'p', .flag = &patch },
		{ .name = "json", .flag = &json },
		{ .name = "no-renames", .flag = &no_renames },
		{ .name = "directories", .flag = &directories },
		{ .name = "exit-code", .flag = &exit_code },
		{ .name = "null", .letter = 'z', .flag = &nul },
	};
	_cleanup_state_ struct cmd_state a = { 0 };
	_cleanup_state_ struct cmd_state b = { 0 };
	_cleanup_(transfer_talk_release) struct transfer_talk talk = { 0 };
	_cleanup_(diff_verb_release) struct diff_verb d = { .cmd = c };
	int (*fn)(void *arg, const struct change *c) = name_status;
	unsigned flags;
	int r;

	r = cmd_parse(c, options, ARRAY_SIZE(options), 0, 2);
	if (r)
		return r;
	if (names + stat + patch + json > 1)
		return cmd_misuse(c,
				  "--name-status, --stat, --patch and --json exclude each other");
	if (nul && (stat || patch || json))
		return cmd_misuse(c, "-z goes with --name-status");
	if (directories && (stat || patch))
		return cmd_misuse(c, "--directories goes with --name-status and --json");
	d.nul = nul;
	d.directories = directories;

	r = c->args.n > 0 ? cmd_state(c, c->args.v[0], &a) : last_snapshot(c, &a);
	if (r)
		return r;
	r = cmd_state(c, c->args.n > 1 ? c->args.v[1] : NULL, &b);
	if (r)
		return r;

	flags = (no_renames ? 0 : DIFF_RENAMES) | (stat || patch ? 0 : DIFF_DIRS);
	if (stat)
		fn = add_stat;
	if (patch)
		fn = as_patch;
	if (json)
		fn = as_json;
	transfer_talk_init(&talk, c);
	r = open_states(&d, &a, &b);
	if (r == 0 && (stat || patch))
		r = patcher_new(c->store, &talk.ops, &d.patcher);
	if (r == 0)
		r = fs_diff(c->store, a.root, b.root, a.lineage == b.lineage, flags, fn, &d);
	if (r == -EPIPE || r == -ERR_CANCELLED)
		return CMD_FAILED; /* the reader has seen enough */
	if (r < 0 && talk.note)
		return cmd_fail(c, r, "comparing %s and %s: %s", a.name, b.name, talk.note);
	if (r < 0)
		return cmd_fail(c, r, "comparing %s and %s", a.name, b.name);

	if (d.of_git)
		cmd_warn(c, "%" PRIu64 " change%s of .git, which git apply takes from no patch, "
			    "ignoring", d.of_git, plural(d.of_git));
	if (stat)
		diffstat_print(&d.stat, c->out, c->columns);
	if (json)
		cmd_json_end(c, d.n_json);
	return exit_code && d.n > 0 ? CMD_FAILED : CMD_DONE;
}
