/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The client program: finds the store, the daemon (which it starts when there is none) and the
 * view; asks; exits with the answer. It links nothing but libc, so that it starts in about a
 * millisecond, and never touches a store itself.
 *
 * Functions that return an exit code have said why, in one line on stderr, when it is not 0.
 */

#include <limits.h>
#include <stdbool.h>

#include "fs/ioctl.h"
#include "tools/options.h"
#include "tools/verbs.h"

enum {
	DONE = 0,
	FAILED = 1,
	MISUSE = 2,
	UNREAD = 141, /* only of a daemon: cmd.h's CMD_UNREAD */
	NO_DAEMON = -1, /* client_connect, client_send without start: nobody listens */
};

struct client {
	const char *verb;
	const char *store_option; /* --store, or NULL */
	int argc;		  /* argv[0] is the verb */
	char **argv;
	struct arguments args; /* set by client_parse */

	int store_fd; /* the store's directory, or -1: not opened yet */
	char *store;  /* its absolute path */

	int daemon_pid; /* that said hello last */
	bool unread;	/* nobody reads stdout: what the daemon answered went nowhere */

	bool looked_here; /* `here` is what a look at "." gave that found no view */
	int here;
	bool in_view; /* view_fd and info are set */
	int view_fd;  /* the directory that was asked about */
	struct plyfs_info info;
};

int client_fail(const struct client *cl, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
int client_misuse(const struct client *cl, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* Of a verb that printed to stdout: DONE, or says that it did not arrive. */
int client_printed(const struct client *cl);
/* At the end, when `unread`: dies of SIGPIPE, as if we had written; who ignores that is told. */
int client_unread(const struct client *cl);
/* A string, quoted, on stdout; other bytes than UTF-8 become U+0080..U+00FF. */
void client_print_json(const char *text);
void client_talk(const struct client *cl, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* cl->args, or MISUSE; --help prints the verb's help and exits. max < 0: any number. */
int client_parse(struct client *cl, const struct option_def *defs, size_t n_defs, unsigned flags,
		 int min, int max);

/*
 * Asks whether dir lies in a view: sets in_view. 0, or -errno: -ENOTCONN when its daemon is dead,
 * -EPERM when it is not for us, -EACCES when dir may not be looked at.
 * Waits for a daemon that does not answer, as whatever is done in the view would.
 */
int client_look(struct client *cl, const char *dir);
/* The same, slower by a fork(); -ETIMEDOUT when no answer comes. */
int client_look_with_patience(struct client *cl, const char *dir);
/* Whether that failure says nothing about dir: neither a view, nor none, nor a dead one. */
bool client_look_is_unclear(int r);
/* Says what a failure of client_look means. */
int client_look_failed(const struct client *cl, int r, const char *dir);
/* What --store names, or outside of a view PLYFS_STORE; NULL: neither. Looks at "." for that. */
const char *client_store_name(struct client *cl);
/* Finds and opens the store: --store, the view that client_look found or we are in, PLYFS_STORE. */
int client_store(struct client *cl);
/* Makes this store the one to talk to (path: absolute). */
int client_use_store(struct client *cl, const char *path);
/* A new store at a path; quiet when `may_exist` and there is one. */
int client_init_store(struct client *cl, const char *path, bool may_exist);

/*
 * The path of a program that belongs to this one: beside it (a build directory), in the
 * installation that it is in, else where that was to be.
 */
void client_program(const char *name, char path[static PATH_MAX]);
/* Runs `plyfsd --salvage` on the store (client_store was called) with our descriptors. */
int client_salvage_store(struct client *cl, const char *option /* may be NULL */);

/*
 * A connection whose hello was received, or NO_DAEMON (start false), or an exit code. Waits while a
 * daemon that died is followed by another one.
 */
int client_connect(struct client *cl, bool start, int *ret_sock);
/*
 * Runs words in the daemon with our descriptors and gives its exit code. When that died before it
 * had read them, the next one is asked (start: as for client_connect). fuse_fd -1: none.
 */
int client_ask(struct client *cl, int sock, bool start, int argc, char **argv, int fuse_fd);
/*
 * Both. Where the store's socket cannot be reached but we are in one of its views, through the
 * view's ioctl.
 */
int client_send(struct client *cl, bool start, int argc, char **argv);

/* Says what a failed control ioctl's errno means; what: what it was about, or NULL. */
int client_ioctl_failed(const struct client *cl, int error, const char *what);

/* ---- mounting (client_mount.c) ---- */

struct fuse_mount {
	const char *mountpoint; /* absolute */
	bool read_only;
	bool private;	/* root's: for root only */
	bool allow_other; /* an ordinary user's: for all; root's are, unless private */
	bool over; /* the directory need not be empty */
	bool suid, dev; /* setuid programs and devices in it count; root's */
	struct mount_options options;
};
/* Checks the mount point; what it makes absolute is given in *ret_path. */
int mount_point_check(struct client *cl, const char *dir, bool over, char **ret_path);
/* Opens /dev/fuse. */
int fuse_open(struct client *cl, int *ret_fd);
/* Does the mount; *ret_fd must get to the daemon. */
int fuse_mount(struct client *cl, const struct fuse_mount *m, int *ret_fd);
/* Lets the kernel read further ahead in a view that is served, where we may. */
void fuse_read_ahead(const char *mountpoint);
/* Takes it down again when the daemon refused. */
void fuse_unmount(const char *mountpoint);
/*
 * `mount -o remount,ro MOUNTPOINT` comes here: mount(8) leaves filesystems of type fuse.X to
 * mount.fuse(8), and that to a program X: `plyfs plyfs MOUNTPOINT -o OPTIONS`. Takes ro, rw and
 * noexec; options is cut up.
 */
int fuse_remount(struct client *cl, const char *mountpoint, char *options);
/*
 * Adds to the words for the daemon how it shall serve the mount: up to three, one of them in
 * `text`. Returns how many words there are then.
 */
int add_options(char **argv, int argc, const struct mount_options *o,
		char text[static LEVERS_TEXT_SIZE]);
/*
 * Mounts, sends the words to the daemon, and takes the mount down when it refuses. SIGINT, SIGTERM
 * and SIGHUP wait meanwhile: a mount whose descriptor nobody has is dead.
 */
int mount_and_send(struct client *cl, const struct fuse_mount *m, int argc, char **argv);
enum {
	UNMOUNT_LAZY = 1,
	UNMOUNT_BUSY_LAZY = 2, /* when it is in use */
	UNMOUNT_NO_SYNC = 4,   /* what was in it need not be durable */
};
/* Ends a view and waits until the daemon has closed it, and what was in it is durable. */
int unmount_view(struct client *cl, const char *mountpoint, unsigned how);

/* Makes a git repository ask us (client_git.c). but: what a failure is told after, or "". */
int fsmonitor_install(struct client *cl, const char *top, const char *but);
/* The name by which git calls us (client_git.c). */
#define FSMONITOR_PROGRAM "plyfs-fsmonitor"

/* ---- verbs (VERB_LIST) ---- */
int client_init(struct client *cl);
int client_mount(struct client *cl);
int client_unmount(struct client *cl);
int client_writeback(struct client *cl);
int client_checkpoint(struct client *cl);
int client_restore(struct client *cl);
int client_undo(struct client *cl);
int client_fork(struct client *cl);
int client_check(struct client *cl);
int client_salvage(struct client *cl);
int client_run(struct client *cl);
int client_status(struct client *cl);
int client_daemon(struct client *cl);
int client_doctor(struct client *cl);
int client_fsmonitor(struct client *cl);
int client_bench(struct client *cl);
int client_completion(struct client *cl);
int client_version(struct client *cl);
