/* SPDX-License-Identifier: Apache-2.0 */

/*
 * mount and unmount, the daemon's part: the client has done mount(2) and sends the descriptor; it
 * does umount(2) and asks us to wait for what the kernel tells us then.
 */

#include "tools/cmd_mount.h"

#include <errno.h>
#include <time.h>

#include "fs/fs.h"
#include "store/base/err.h"
#include "store/base/util.h"
#include "tools/daemon.h"
#include "tools/verbs.h"

/* An unmount is over in milliseconds, but closing a view may wait for its last request. */
#define UNMOUNT_SECONDS 30

/* In a new store branch main is an empty directory of the owner's, so that it can be mounted. */
static int make_first_branch(struct cmd *c)
{
	_cleanup_(root_unrefp) struct root *empty = NULL, *root = NULL;
	_cleanup_(tree_freep) struct tree *tree = NULL;
	_cleanup_(branch_closep) struct branch *b = NULL;
	struct timespec now;
	struct fs fs;
	int r;

	if (!cmd_store_is_empty(c))
		return -ERR_BRANCH_UNKNOWN;

	r = root_empty(store_nodes(c->store), &empty);
	if (r < 0)
		return r;
	r = tree_new(store_nodes(c->store), empty, &tree);
	if (r < 0)
		return r;
	fs = (struct fs){ .store = c->store, .tree = tree };
	clock_gettime(CLOCK_REALTIME, &now);
	r = fs_make_root(&fs, 0755, c->daemon->owner, getegid(),
			 (struct timens){ now.tv_sec, (uint32_t)now.tv_nsec });
	if (r < 0)
		return r;
	r = tree_freeze(tree, &root);
	if (r < 0)
		return r;
	return branch_create(c->store, BRANCH_DEFAULT, root, 0, store_take_lineage(c->store), &b);
}

/* What mount_start said, for people; "": that has nothing to do with it. */
static const char *why_no_uring(int r)
{
	switch (r) {
	case -EOPNOTSUPP:
		return "--io-uring: the kernel does not offer it; from Linux 6.14 on, as root: "
		       "echo Y > /sys/module/fuse/parameters/enable_uring";
	case -ENOSYS:
		return "--io-uring: this plyfsd was built without liburing";
	case -EPERM:
		return "--io-uring: io_uring is forbidden here (sysctl kernel.io_uring_disabled, "
		       "or a container's seccomp profile)";
	default:
		return "";
	}
}

/* The same of --passthrough. */
static const char *why_no_passthrough(int r)
{
	switch (r) {
	case -EOPNOTSUPP:
		return "--passthrough: the kernel does not offer it; Linux 6.9 with "
		       "CONFIG_FUSE_PASSTHROUGH does";
	case -EPERM:
		return "--passthrough: this wants a daemon that is root on the machine itself, not "
		       "in a container or of another owner's store";
	case -ELOOP:
		return "--passthrough: the store lies on an overlay or on FUSE, of which the "
		       "kernel reads nothing by itself; move it to a disk";
	default:
		return "";
	}
}

static int start(struct cmd *c, const char *branch, uint64_t snapshot, const char *at,
		 uint32_t how)
{
	char users[MOUNT_USERS_BYTES];
	int r;

	if (c->fuse_fd < 0)
		return cmd_fail(c, 0, "mounting is the client's work: it has to send a descriptor");
	r = *branch ? cmd_await_branch(c, branch) : 0;
	if (r == 0)
		r = views_start(c->daemon, branch, snapshot, at, TAKE_FD(c->fuse_fd), how);
	if (r == -ERR_BRANCH_IN_USE) {
		_cleanup_(views_putp) struct view_entry *e = views_get_branch(c->daemon, branch);

		/* The client finds no view at `at` before it mounts there. */
		if (e && (strcmp(e->mountpoint, at) == 0 || views_is_detached(e) > 0)) {
			views_users(e, users);
			return cmd_fail(c, 0,
					"branch %s is in use by %s in its view, which was detached "
					"from '%s' (or is in another mount namespace); it is free "
					"when that ends; another view of its state: plyfs fork "
					"--from %s NAME --at DIR",
					branch, *users ? users : "what is", e->mountpoint, branch);
		}
		return cmd_fail(c, 0,
				"branch %s is mounted already, on '%s'; another view of its state: "
				"plyfs fork --from %s NAME --at DIR",
				branch, e ? e->mountpoint : "?", branch);
	}
	if (r < 0 && how & MOUNT_IO_URING && *why_no_uring(r))
		return cmd_fail(c, 0, "%s", why_no_uring(r));
	if (r < 0 && how & MOUNT_PASSTHROUGH && *why_no_passthrough(r))
		return cmd_fail(c, 0, "%s", why_no_passthrough(r));
	if (r < 0)
		return cmd_fail(c, r, "%s", *branch ? branch : at);
	if (how & MOUNT_IO_URING)
		fprintf(c->err,
			"plyfs %s: with --io-uring the view ends when its daemon is killed\n",
			c->called);
	return CMD_DONE;
}

int cmd_mount_branch(struct cmd *c, const char *branch, const char *at, uint32_t how)
{
	return start(c, branch, 0, at, how);
}

int cmd_mount(struct cmd *c)
{
	const char *branch = NULL, *snapshot = NULL, *at = NULL;
	struct mount_options options = {};
	bool passthrough = false;
	uint32_t how;
	const struct option_def defs[] = {
		{ .name = "branch", .word = &branch },
		{ .name = "snapshot", .word = &snapshot },
		{ .name = "at", .word = &at },
		{ .name = "passthrough", .flag = &passthrough },
		OPTIONS_MOUNT(&options),
	};
	_cleanup_(branch_closep) struct branch *b = NULL;
	uint64_t id = 0;
	int r;

	r = cmd_parse(c, defs, ARRAY_SIZE(defs), 0, 0);
	if (r)
		return r;
	if (!at)
		return cmd_misuse(c, "where? --at MOUNTPOINT");
	if (passthrough && (!snapshot || options.io_uring))
		return cmd_misuse(c, "--passthrough is for --snapshot, without --io-uring");
	how = mount_how(&options) | (passthrough ? MOUNT_PASSTHROUGH : 0);
	if (snapshot) {
		r = snap_find(c->store, snapshot, &id);
		if (r < 0)
			return cmd_fail(c, r, "%s", snapshot);
		branch = "";
	} else if (!branch) {
		branch = BRANCH_DEFAULT;
		r = branch_open(c->store, branch, &b);
		if (r == -ERR_BRANCH_UNKNOWN)
			r = make_first_branch(c);
		if (r == -ERR_BRANCH_EXISTS)
			r = 0; /* another client was faster */
		if (r < 0)
			return cmd_fail(c, r, "%s", branch);
	}
	r = start(c, branch, id, at, how);
	if (r == CMD_DONE)
		fprintf(c->out, "%s\n", at);
	return r;
}

struct unmounted {
	const char *at, *branch;
	uint64_t snapshot;
	char users[MOUNT_USERS_BYTES];
};

static int find_users(void *arg, struct view_entry *e)
{
	struct unmounted *u = arg;

	if (strcmp(e->mountpoint, u->at) != 0 || strcmp(e->branch, u->branch) != 0 ||
	    e->snapshot != u->snapshot)
		return 0;
	views_users(e, u->users);
	return 1;
}

/* As with any filesystem: what was in it outlives the loss of power, though nobody asked for it. */
static int make_durable(struct cmd *c, const struct unmounted *u)
{
	int r = u->snapshot ? 0 : store_flush(c->store);

	if (r < 0)
		return cmd_fail(c, r, "'%s' is unmounted, but what was in it is not durable yet",
				u->at);
	return CMD_DONE;
}

int cmd_unmount(struct cmd *c)
{
	struct unmounted u = { .branch = "" };
	bool no_sync = false;
	const struct option_def defs[] = {
		{ .name = "no-sync", .flag = &no_sync },
	};
	int r;

	/* MOUNTPOINT BRANCH SNAPSHOT, from the client: the view that it has just unmounted. */
	r = cmd_parse(c, defs, ARRAY_SIZE(defs), 1, 3);
	if (r)
		return r;
	u.at = c->args.v[0];
	if (c->args.n > 1)
		u.branch = c->args.v[1];
	if (c->args.n > 2)
		u.snapshot = strtoull(c->args.v[2], NULL, 16);
	if (views_wait_gone(c->daemon, u.at, u.branch, u.snapshot, UNMOUNT_SECONDS, &c->cancel))
		return no_sync ? CMD_DONE : make_durable(c, &u);
	(void)views_each(c->daemon, find_users, &u);
	return cmd_fail(c, 0, "'%s' is unmounted, but its view is still held by %s", u.at,
			*u.users ? u.users : "something");
}
