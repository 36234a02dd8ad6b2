/* SPDX-License-Identifier: Apache-2.0 */

/*
 * checkpoint, restore, undo, fork, drop through the socket: on a branch by name. A mounted branch
 * is changed through its view, which tells the kernel; one that is not is claimed meanwhile,
 * so that nobody mounts it between our look and our change.
 */

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <unistd.h>

#include "store/base/err.h"
#include "store/base/util.h"
#include "tools/cmd_mount.h"
#include "tools/cmd_writeback.h"
#include "tools/daemon.h"
#include "tools/verbs.h"

/* A branch at hand: view or claimed branch, one of them. */
struct target {
	struct view_entry *entry;
	struct branch *branch;
};

static void target_release(struct target *t)
{
	if (t->entry)
		views_put(t->entry);
	if (t->branch) {
		branch_unmount(t->branch);
		branch_close(t->branch);
	}
}

/* name NULL: the branch of the client's view; a snapshot's has none, and main is another view. */
static int target_open(struct cmd *c, const char *name, struct target *ret)
{
	_cleanup_(branch_closep) struct branch *b = NULL;
	int r;

	if (!name && c->snapshot)
		return cmd_fail(c, 0, "this view shows a snapshot; it cannot change; --branch NAME "
				      "means another one");
	name = cmd_branch_name(c, name);
	ret->entry = views_get_branch(c->daemon, name);
	if (ret->entry)
		return CMD_DONE;
	r = cmd_await_branch(c, name);
	if (r == 0)
		r = branch_open(c->store, name, &b);
	if (r == 0)
		r = branch_mount(b);
	if (r == -ERR_BRANCH_IN_USE) {
		/* Mounted between our two looks. */
		ret->entry = views_get_branch(c->daemon, name);
		if (ret->entry)
			return CMD_DONE;
	}
	if (r < 0)
		return cmd_fail(c, r, "%s", name);
	ret->branch = TAKE_PTR(b);
	return CMD_DONE;
}

int cmd_checkpoint(struct cmd *c)
{
	const char *label = NULL, *name = NULL;
	bool sync_too = false;
	const struct option_def defs[] = {
		{ .name = "label", .letter = 'm', .text = &label },
		{ .name = "branch", .word = &name },
		{ .name = "sync", .flag = &sync_too },
	};
	_cleanup_(target_release) struct target t = {};
	_cleanup_free_ char *path = NULL;
	char text[SNAP_ID_SIZE];
	uint64_t id = 0;
	int r;

	r = cmd_parse(c, defs, ARRAY_SIZE(defs), 0, 0);
	if (r)
		return r;
	if (label && strlen(label) > LABEL_MAX)
		return cmd_misuse(c, "a label has at most %d bytes", LABEL_MAX);
	r = target_open(c, name, &t);
	if (r)
		return r;

	if (t.entry) {
		r = view_checkpoint(mount_view(t.entry->mount), label, sync_too, &id);
	} else {
		r = branch_checkpoint(t.branch, label, 0, &id);
		if (r >= 0 && sync_too)
			r = snap_wait(c->store, id);
	}
	if (sync_too && id && fs_find_unreadable(c->store, id, &path) == 0)
		return cmd_fail(c, 0,
				"checkpoint %s lacks what was written to '%s': it cannot be read "
				"back from the disk",
				snap_id_to_text(id, text), path);
	if (r < 0)
		return cmd_fail(c, r, "%s", cmd_branch_name(c, name));
	fprintf(c->out, "%s\n", snap_id_to_text(id, text));
	return CMD_DONE;
}

bool branch_is_newer(struct store *s, const char *text, uint64_t id)
{
	_cleanup_(branch_closep) struct branch *b = NULL;
	char whole[SNAP_ID_SIZE];
	bool newer;

	if (strcmp(text, snap_id_to_text(id, whole)) == 0 || branch_open(s, text, &b) < 0)
		return false;
	pthread_rwlock_rdlock(&b->lock);
	newer = b->changes > 0;
	pthread_rwlock_unlock(&b->lock);
	return newer;
}

/* Restore of args[0], or undo. */
static int go_back(struct cmd *c, bool undo)
{
	const char *name = NULL;
	const struct option_def defs[] = {
		{ .name = "branch", .word = &name },
	};
	_cleanup_(target_release) struct target t = {};
	struct restore_info info = {};
	uint64_t id;
	int r;

	r = cmd_parse(c, defs, ARRAY_SIZE(defs), !undo, !undo);
	if (r)
		return r;
	if (!undo) {
		r = snap_find(c->store, c->args.v[0], &id);
		if (r < 0)
			return cmd_fail(c, r, "%s", c->args.v[0]);
	}
	r = target_open(c, name, &t);
	if (r)
		return r;

	if (t.entry)
		r = undo ? view_undo(mount_view(t.entry->mount), &id, &info)
			 : view_restore(mount_view(t.entry->mount), id, &info);
	else
		r = undo ? branch_undo(t.branch, &id) : branch_restore(t.branch, id);
	if (r < 0)
		return cmd_fail(c, r, "%s", cmd_branch_name(c, name));
	if (t.entry) {
		view_tidy(mount_view(t.entry->mount));
		if (info.moved && strlen(t.entry->mountpoint) < sizeof(c->moved_at))
			strcpy(c->moved_at, t.entry->mountpoint);
	}
	if (!undo && branch_is_newer(c->store, c->args.v[0], id))
		fprintf(c->err, "plyfs restore: " BRANCH_IS_NEWER "\n", c->args.v[0],
			c->args.v[0]);
	return CMD_DONE;
}

int cmd_restore(struct cmd *c)
{
	return go_back(c, false);
}

int cmd_undo(struct cmd *c)
{
	return go_back(c, true);
}

/* ---- fork ---- */

/* From a branch's present state. -ERR_BRANCH_UNKNOWN: there is none called so. */
static int fork_branch(struct cmd *c, const char *from, const char *name)
{
	_cleanup_(views_putp) struct view_entry *e = views_get_branch(c->daemon, from);
	_cleanup_(branch_closep) struct branch *b = NULL;
	int r;

	if (e)
		return view_fork(mount_view(e->mount), name);
	r = branch_open(c->store, from, &b);
	if (r < 0)
		return r;
	return branch_fork(b, name);
}

static void root_release(struct root **r)
{
	if (*r)
		root_unref(*r);
}

static int fork_snapshot(struct cmd *c, uint64_t id, const char *name)
{
	_cleanup_(root_release) struct root *root = NULL;
	_cleanup_(branch_closep) struct branch *b = NULL;
	struct snap_info info;
	int r;

	r = snap_get(c->store, id, &info);
	if (r < 0)
		return r;
	r = snap_root(c->store, id, &root);
	if (r < 0)
		return r;
	return branch_create(c->store, name, root, id, info.lineage, &b);
}

static int fork_from(struct cmd *c, const char *from, const char *name)
{
	uint64_t id;
	int r;

	if (!from && c->snapshot)
		return fork_snapshot(c, c->snapshot, name);
	r = from && cmd_is_whole_id(c, from) ? -ERR_BRANCH_NAME
					     : fork_branch(c, cmd_branch_name(c, from), name);
	if (r != -ERR_BRANCH_UNKNOWN && r != -ERR_BRANCH_NAME)
		return r;
	if (!from)
		return r;
	r = snap_find(c->store, from, &id);
	return r < 0 ? r : fork_snapshot(c, id, name);
}

int cmd_fork(struct cmd *c)
{
	const char *from = NULL, *at = NULL, *name;
	struct mount_options options = {};
	const struct option_def defs[] = {
		{ .name = "from", .word = &from },
		{ .name = "at", .word = &at },
		OPTIONS_MOUNT(&options),
	};
	int r;

	r = cmd_parse(c, defs, ARRAY_SIZE(defs), 1, 1);
	if (r)
		return r;
	name = c->args.v[0];
	if (!branch_name_ok(name))
		return cmd_misuse(c, "'%s': %s", name, err_str(-ERR_BRANCH_NAME));

	r = fork_from(c, from, name);
	if (r == -ERR_BRANCH_EXISTS)
		return cmd_fail(c, r, "%s", name);
	if (r < 0)
		return cmd_fail(c, r, "%s", cmd_branch_name(c, from));
	if (!at)
		return CMD_DONE;

	/* The client undoes a mount that is not told; the branch can go while nobody serves it. */
	fprintf(c->out, "%s\n", at);
	r = fflush(c->out) ? cmd_fail(c, 0, "the output could not be written")
			   : cmd_mount_branch(c, name, at, mount_how(&options));
	if (r)
		(void)branch_drop(c->store, name); /* it was to be a mounted fork or none */
	return r;
}

/* ---- drop ---- */

/* One that cannot be opened is there: what is asked for it must not happen to a snapshot. */
static bool branch_is_there(struct cmd *c, const char *name)
{
	_cleanup_(branch_closep) struct branch *b = NULL;

	return branch_open(c->store, name, &b) != -ERR_BRANCH_UNKNOWN;
}

struct drop {
	struct cmd *c;
	bool dry, with_snapshots;
	json_t *json; /* owned: what was dropped; NULL: as text */
};

static void drop_release(struct drop *d)
{
	json_decref(d->json);
}

/* changes: of a branch, those that no snapshot has. */
static void tell_dropped(struct drop *d, const char *what, const char *name, uint64_t changes)
{
	if (d->json) { /* cmd_json says when memory was short */
		(void)json_array_append_new(
			d->json, strcmp(what, "branch") == 0 ?
					 json_pack("{s:s, s:I}", what, name, "changes",
						   (json_int_t)changes) :
					 json_pack("{s:s}", what, name));
		return;
	}
	fprintf(d->c->out, "%s %s %s", d->dry ? "would drop" : "dropped", what, name);
	if (changes)
		fprintf(d->c->out, " (with %" PRIu64 " change%s since its last snapshot)", changes,
			plural(changes));
	fputc('\n', d->c->out);
}

/* The snapshots that were made on a branch. */
struct made_on {
	const char *branch;
	uint64_t *ids; /* owned */
	size_t n;
};

static int add_made_on(void *arg, const struct snap_info *info)
{
	struct made_on *m = arg;
	uint64_t *grown;

	if (strcmp(info->branch, m->branch) != 0)
		return 0;
	if ((m->n & (m->n - 1)) == 0) { /* room is doubled at powers of two */
		grown = reallocarray(m->ids, m->n ? 2 * m->n : 1, sizeof(*grown));
		if (!grown)
			return -ENOMEM;
		m->ids = grown;
	}
	m->ids[m->n++] = info->id;
	return 0;
}

/* After the branch itself. Children on other branches get their parents (snap_drop). */
static int drop_made_on(struct drop *d, const char *branch)
{
	struct cmd *c = d->c;
	struct made_on m = { .branch = branch };
	char text[SNAP_ID_SIZE];
	int r;

	r = snap_each(c->store, add_made_on, &m);
	if (r < 0)
		r = cmd_fail(c, r, "reading the snapshots");
	for (size_t i = 0; i < m.n && r == 0; i++) {
		r = d->dry ? snap_drop_allowed(c->store, m.ids[i]) : snap_drop(c->store, m.ids[i]);
		/* Mounted, or gone meanwhile (the newest left state goes with its branch). */
		if (r == -ERR_SNAP_IN_USE || r == -ERR_SNAP_UNKNOWN) {
			r = 0;
			continue;
		}
		snap_id_to_text(m.ids[i], text);
		if (r < 0)
			r = cmd_fail(c, r, "%s", text);
		else
			tell_dropped(d, "snapshot", text, 0);
	}
	free(m.ids);
	return r;
}

/* The memo that environments keep of a branch: what number comes next (env/numbers.h). */
static void drop_number(struct cmd *c, const char *branch)
{
	char path[BRANCH_NAME_MAX + 16];

	snprintf(path, sizeof(path), "numbers/%s", branch);
	(void)unlinkat(c->daemon->dir_fd, path, 0); /* most branches have none */
}

/* What a word may stand for. People may mean either; programs say which. */
enum meant { EITHER, BRANCH, SNAPSHOT };

/* A name or the beginning of an id could be something else tomorrow. */
static bool is_whole_id(const char *text)
{
	return *text == '@' ||
	       (strlen(text) == SNAP_ID_SIZE - 1 && !text[strspn(text, "0123456789abcdef")]);
}

/* What goes with a branch. */
static uint64_t lost_changes(struct cmd *c, const char *branch)
{
	_cleanup_(branch_closep) struct branch *b = NULL;

	if (branch_open(c->store, branch, &b) < 0)
		return 0;
	READ_GUARD(&b->lock);
	return b->changes;
}

static int drop_branch(struct drop *d, const char *name)
{
	struct cmd *c = d->c;
	_cleanup_(views_putp) struct view_entry *e = views_get_branch(c->daemon, name);
	const uint64_t lost = lost_changes(c, name);
	char users[MOUNT_USERS_BYTES];
	int r;

	r = e ? -ERR_BRANCH_IN_USE : cmd_await_branch(c, name);
	if (r == 0 && !d->dry)
		r = branch_drop(c->store, name);
	if (r == -ERR_BRANCH_IN_USE && e && views_is_detached(e) > 0) {
		views_users(e, users);
		return cmd_fail(c, 0,
				"branch %s is in use by %s in its view, which was detached from "
				"'%s' (or is in another mount namespace); drop it when that ends",
				name, *users ? users : "what is", e->mountpoint);
	}
	if (r == -ERR_BRANCH_IN_USE)
		return cmd_fail(c, 0, "branch %s is mounted on '%s'; unmount it first", name,
				e ? e->mountpoint : "?");
	if (r < 0)
		return cmd_fail(c, r, "branch %s", name);
	if (!d->dry)
		drop_number(c, name);
	tell_dropped(d, "branch", name, lost);
	return CMD_DONE;
}

/*
 * Of a view over a directory: with an older one, or none, its changes would not be known. 1 or 0,
 * or -errno: who cannot tell drops nothing.
 */
static int is_wanted_for_write_back(struct cmd *c, uint64_t id)
{
	uint64_t base;
	int r;

	if (faccessat(c->daemon->dir_fd, "origin", F_OK, 0) < 0)
		return errno == ENOENT ? 0 : -errno;
	if (!branch_is_there(c, BRANCH_DEFAULT))
		return 0;
	r = writeback_base(c, &base);
	return r < 0 ? r : base == id;
}

static int drop_one(struct drop *d, const char *text, enum meant meant)
{
	struct cmd *c = d->c;
	char name[SNAP_ID_SIZE];
	uint64_t id;
	int r;

	if (meant == SNAPSHOT && !is_whole_id(text))
		return cmd_fail(c, 0, "'%s' is neither a whole id of a snapshot nor @LABEL", text);
	if (meant == BRANCH && !branch_is_there(c, text))
		return cmd_fail(c, 0, "there is no branch '%s'", text);
	if (meant == EITHER && cmd_is_whole_id(c, text))
		meant = SNAPSHOT;
	if (meant != SNAPSHOT && branch_is_there(c, text)) {
		r = drop_branch(d, text);
		return r == CMD_DONE && d->with_snapshots ? drop_made_on(d, text) : r;
	}

	r = snap_find(c->store, text, &id);
	if (r == 0)
		r = is_wanted_for_write_back(c, id);
	if (r == 1)
		return cmd_fail(c, 0,
				"%s: a write-back compares with this snapshot; it can go when the "
				"next one has made another",
				text);
	if (r == 0)
		r = d->dry ? snap_drop_allowed(c->store, id) : snap_drop(c->store, id);
	if (r < 0)
		return cmd_fail(c, r, "%s", text);
	tell_dropped(d, "snapshot", snap_id_to_text(id, name), 0);
	return CMD_DONE;
}

int cmd_drop(struct cmd *c)
{
	_cleanup_(drop_release) struct drop d = { .c = c };
	bool branch = false, snapshot = false, json = false;
	const struct option_def defs[] = {
		{ .name = "dry-run", .flag = &d.dry },
		{ .name = "with-snapshots", .flag = &d.with_snapshots },
		{ .name = "json", .flag = &json },
		{ .name = "branch", .flag = &branch },
		{ .name = "snapshot", .flag = &snapshot },
	};
	int r;

	r = cmd_parse(c, defs, ARRAY_SIZE(defs), 1, -1);
	if (r)
		return r;
	if (snapshot && (branch || d.with_snapshots))
		return cmd_misuse(c, "--snapshot goes without --%s",
				  branch ? "branch" : "with-snapshots");
	d.json = json ? json_array() : NULL;
	if (json && !d.json)
		return cmd_fail(c, -ENOMEM, "JSON");
	for (int i = 0; i < c->args.n && !r; i++)
		r = drop_one(&d, c->args.v[i], branch ? BRANCH : snapshot ? SNAPSHOT : EITHER);
	if (json && cmd_json(c, TAKE_PTR(d.json)) != CMD_DONE)
		r = CMD_FAILED; /* what went before a failure is told all the same */
	return r;
}
