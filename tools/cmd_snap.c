/* SPDX-License-Identifier: Apache-2.0 */

/*
 * checkpoint, restore, undo, fork through the socket: on a branch by name. A mounted branch
 * is changed through its view, which tells the kernel; one that is not is claimed meanwhile,
 * so that nobody mounts it between our look and our change.
 */

#include <errno.h>

#include "store/base/err.h"
#include "store/base/util.h"
#include "tools/cmd_mount.h"
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

/* What its caller has to look at, as far as the path is short enough. */
static void put_restored(struct cmd *c, const struct view_entry *e, uint64_t id,
			 const struct restore_info *info)
{
	char left[SNAP_ID_SIZE], now[SNAP_ID_SIZE];
	size_t n = 0;

	if (e->how & MOUNT_INOTIFY && !restore_found_nothing(info))
		n = (size_t)snprintf(c->restored, sizeof(c->restored), "%s %s ",
				     snap_id_to_text(info->left, left), snap_id_to_text(id, now));
	if ((n || info->moved) && strlen(e->mountpoint) < sizeof(c->restored) - n)
		strcpy(c->restored + n, e->mountpoint);
	else
		c->restored[0] = '\0';
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
		put_restored(c, t.entry, id, &info);
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
