/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The daemon: the one process that has the store open, serves its views, and runs verbs for
 * clients. This header is for the daemon's own files; verbs mostly need cmd.h alone.
 */

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include "fs/mount.h"
#include "store/base/note.h"
#include "store/store.h"
#include "tools/cmd.h"
#include "tools/mount_users.h"
#include "tools/supervisor.h"

struct json_t;

struct daemon {
	char *store_path; /* immutable: absolute; where it was when we opened it */
	int dir_fd;	  /* immutable: the store's directory */
	uid_t owner;	  /* immutable: whose store it is; he and root may ask */
	struct store_options options;
	struct store *store;
	struct readers *readers;
	struct supervisor *supervisor; /* shared with our parent */
	struct former *formers; /* main thread: a dead daemon's views, until they are resumed */
	struct noter noter;  /* to the log */
	int wake_fd;	     /* eventfd: the main loop should look around */

	pthread_t finisher; /* main thread: of views_resume, if `finishing` */
	bool finishing;

	pthread_mutex_t lock;
	pthread_cond_t changed;	  /* a view ended, or nobody uses it any more */
	struct view_entry *views; /* under lock */
	bool ending;		  /* under lock: no new views */
	_Atomic bool end_soon;	  /* as soon as no client is at work (after a repair) */
	_Atomic bool replaced;	  /* likewise, and another program goes on with the views */
	struct call *calls;	  /* under lock: verbs asked for through ioctls (call.c) */
	uint64_t last_call;	  /* under lock: their handles */
	uint64_t first_call;	  /* immutable: above those of former daemons */
};

/* A mounted view. */
struct view_entry {
	struct daemon *daemon;	 /* immutable */
	struct view_entry *next; /* under the daemon's lock */
	struct mount *mount;	 /* under the daemon's lock; NULL while starting */
	unsigned users;		 /* under the daemon's lock: who was lent it; it outlives them */
	bool ended;		 /* under the daemon's lock: the kernel has let go */
	struct fsmonitor *fsmonitor; /* under the daemon's lock; owned, may be NULL */
	int slot;		  /* the supervisor's */
	uint32_t how;		  /* immutable: fs/how.h */
	bool kept;		  /* immutable once serving: it outlives us */
	uint64_t snapshot;		  /* immutable; 0 for a branch */
	char branch[BRANCH_NAME_MAX + 1]; /* immutable; "" for a snapshot */
	char mountpoint[];		  /* immutable */
};

/* One line in the log, with the time. */
void daemon_log(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Lets the main loop look whether there is something to do, or nothing at all any more. */
void daemon_wake(struct daemon *d);
bool daemon_may(const struct daemon *d, uid_t uid);

/* Makes the store's socket, and listens on it. -errno: nobody does. */
int daemon_listen(struct daemon *d, int *ret_fd);

/* ---- the main loop (loop.c) ---- */

struct loop {
	struct daemon *daemon; /* borrowed */
	int listen_fd;	       /* the store's socket; the caller's. -1: there is no room yet */
	int epoll_fd, signal_fd;
	struct conn *conns;
	int idle_ms; /* so long without views and clients, and it ends */
	bool met;    /* a client */
	bool told;   /* a signal came */
};

/* daemon, listen_fd and idle_ms are set; SIGTERM and SIGINT are blocked. -errno. */
int loop_open(struct loop *l);
/* Until a signal comes, the daemon is replaced or shall end soon, or nobody wants anything. */
void loop_run(struct loop *l);
/* After the socket is gone: verbs are cancelled and end. False: some will not. */
bool loop_end(struct loop *l);

/* ---- views (views.c) ---- */

/* The view of a branch, lent until views_put; NULL: none, or one the kernel has let go of. */
struct view_entry *views_get_branch(struct daemon *d, const char *branch);
void views_put(struct view_entry *e);
static inline void views_putp(struct view_entry **e)
{
	if (*e)
		views_put(*e);
}
/* Was it unmounted lazily, and lives on: 1 or 0, as far as our mount namespace tells; or -errno. */
int views_is_detached(const struct view_entry *e);
/* What keeps a detached view alive, as mount_users.h has it: "" when that cannot be told. */
void views_users(const struct view_entry *e, char ret[MOUNT_USERS_BYTES]);
/* Each view that has not ended, lent for the call; fn's non-zero return stops and is returned. */
int views_each(struct daemon *d, int (*fn)(void *arg, struct view_entry *e), void *arg);
/* Serves a branch (snapshot 0) or snapshot on fuse_fd (taken), which is mounted on mountpoint. */
int views_start(struct daemon *d, const char *branch, uint64_t snapshot, const char *mountpoint,
		int fuse_fd, uint32_t how);
/*
 * Views that a daemon before us left: first what they remember is opened, then, when the store is
 * (its options have views_recovered), they are served again. What cannot be is told in the log;
 * views_resume is < 0 when the next daemon should try again instead.
 */
int views_find_formers(struct daemon *d);
void views_recovered(void *arg, struct store *s, uint64_t lsn);
int views_resume(struct daemon *d);
void views_leave_formers(struct daemon *d); /* to the next daemon: we cannot start */
/* Could another daemon go on with all of them? */
bool views_are_kept(struct daemon *d);
/* Waits until no such view is left; false when it is still there after `seconds`, or cancelled. */
bool views_wait_gone(struct daemon *d, const char *mountpoint, const char *branch,
		     uint64_t snapshot, int seconds, const bool *cancel);
unsigned views_count(struct daemon *d);
/* Unmounts all, waits a moment; false when some live on (processes are in them). */
bool views_end_all(struct daemon *d);

/* Lets go of the states that git may ask about (cmd_fsmonitor.c); it looks itself, once. */
void fsmonitor_forget(struct view_entry *e);

/* ---- running a verb (verb.c) ---- */

/* Runs c->argv[0]; flushes and closes c->out and c->err. The exit code. */
int verb_run(struct cmd *c);
/*
 * Whether text, which snap_find took for snapshot id, is a branch that has changed since: a restore
 * says so. Of the branch that was just restored: it has not.
 */
bool branch_is_newer(struct store *s, const char *text, uint64_t id);
/* As an ioctl may ask: no verb that touches the client's files. */
bool verb_is_known(const char *name, bool through_view);

/* The path that leads to what is open (control.c). False: none does, or nobody can tell. */
bool path_of_fd(int fd, char ret[static PATH_MAX]);
/*
 * Where the store's directory is now, whose path was `then` (control.c): it may have been moved,
 * and another store be where it was. `then` again when nobody can tell. Valid as long as both.
 */
const char *daemon_store_path(int dir_fd, const char *then, char now[static PATH_MAX]);
/* The control ioctls (control.c): a mount_ioctl_fn whose arg is the view_entry. */
int control_ioctl(void *arg, struct mount *m, const struct cred *cred, uint64_t node, uint32_t cmd,
		  const void *in, size_t in_len, void *out, size_t out_cap, size_t *ret_out_len);

/* Verbs through ioctls (call.c). */
int call_start(struct view_entry *e, const struct cred *cred, struct plyfs_call *call);
int call_read(struct view_entry *e, const struct cred *cred, struct plyfs_read *q);
/* Forgets calls that nobody reads any more; how many are left. */
unsigned calls_expire(struct daemon *d, bool all);
