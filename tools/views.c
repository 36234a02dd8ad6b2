/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The daemon's mounted views.
 *
 * An entry lives from views_start until the kernel let go. Whoever works with one is counted in
 * `users` (under the daemon's lock); the end waits for them:
 *
 *   STARTING (mount NULL) -> SERVING (mount set) -> ended -> users 0 -> freed
 *
 * The kernel may let go before views_start returned (unmounted at once): the end then waits for
 * views_start, which counts as a user.
 */

#include "tools/daemon.h"

#include <errno.h>
#include <time.h>

#include "store/base/err.h"
#include "store/base/util.h"
#include "tools/mounts.h"

struct view_entry *views_get_branch(struct daemon *d, const char *branch)
{
	LOCK_GUARD(&d->lock);

	for (struct view_entry *e = d->views; e; e = e->next)
		if (!e->ended && e->mount && *e->branch && strcmp(e->branch, branch) == 0) {
			e->users++;
			return e;
		}
	return NULL;
}

void views_put(struct view_entry *e)
{
	struct daemon *d = e->daemon;
	LOCK_GUARD(&d->lock);

	e->users--;
	pthread_cond_broadcast(&d->changed);
}

int views_each(struct daemon *d, int (*fn)(void *arg, struct view_entry *e), void *arg)
{
	struct view_entry *e, *next;
	int r = 0;

	/* An entry in use stays in the list, and entries are added in front: next stays right. */
	pthread_mutex_lock(&d->lock);
	for (e = d->views; e && !r; e = next) {
		if (!e->ended && e->mount) {
			e->users++;
			pthread_mutex_unlock(&d->lock);
			r = fn(arg, e);
			pthread_mutex_lock(&d->lock);
			e->users--;
			pthread_cond_broadcast(&d->changed);
		}
		next = e->next;
	}
	pthread_mutex_unlock(&d->lock);
	return r;
}

unsigned views_count(struct daemon *d)
{
	LOCK_GUARD(&d->lock);
	unsigned n = 0;

	for (struct view_entry *e = d->views; e; e = e->next)
		n++;
	return n;
}

static void take_out_locked(struct view_entry *e)
{
	struct daemon *d = e->daemon;
	struct view_entry **p = &d->views;

	while (*p != e)
		p = &(*p)->next;
	*p = e->next;
	guard_remove(d->guard, e->guard_slot);
	pthread_cond_broadcast(&d->changed);
}

/* The kernel has let go. */
static void on_ended(void *arg, struct mount *m)
{
	struct view_entry *e = arg;
	struct daemon *d = e->daemon;

	pthread_mutex_lock(&d->lock);
	e->ended = true;
	while (e->users)
		pthread_cond_wait(&d->changed, &d->lock);
	pthread_mutex_unlock(&d->lock);

	/* In the list until the view is closed: whoever waits for its end waits for all of it. */
	fsmonitor_forget(e);
	mount_free(m);
	daemon_log("unmounted '%s'", e->mountpoint);

	pthread_mutex_lock(&d->lock);
	take_out_locked(e);
	pthread_mutex_unlock(&d->lock);
	daemon_wake(d);
	free(e);
}

int views_start(struct daemon *d, const char *branch, uint64_t snapshot, const char *mountpoint,
		int fuse_fd, bool allow_other)
{
	struct mount_options options = { .allow_other = allow_other };
	_cleanup_(view_closep) struct view *view = NULL;
	_cleanup_close_ int fd = fuse_fd;
	size_t len = strlen(mountpoint) + 1;
	char id[SNAP_ID_SIZE];
	struct mount_hooks hooks;
	struct view_entry *e;
	struct mount *m;
	int r;

	options.cache_off = getenv("PLYFSD_CACHE_OFF");
	options.no_open_off = getenv("PLYFSD_NO_OPEN_OFF");
	options.readdirplus_off = getenv("PLYFSD_READDIRPLUS_OFF");
	options.epoch_off = getenv("PLYFSD_EPOCH_OFF");

	r = *branch ? view_open(d->store, branch, NULL, &view)
		    : view_open_snapshot(d->store, snapshot, NULL, &view);
	if (r < 0)
		return r;

	e = calloc(1, sizeof(*e) + len);
	if (!e)
		return -ENOMEM;
	e->daemon = d;
	e->users = 1;
	e->snapshot = snapshot;
	snprintf(e->branch, sizeof(e->branch), "%s", branch);
	memcpy(e->mountpoint, mountpoint, len);
	e->guard_slot = guard_add(d->guard, mountpoint);

	pthread_mutex_lock(&d->lock);
	if (d->ending) {
		pthread_mutex_unlock(&d->lock);
		guard_remove(d->guard, e->guard_slot);
		free(e);
		return -ESHUTDOWN;
	}
	e->next = d->views;
	d->views = e;
	pthread_mutex_unlock(&d->lock);

	hooks = (struct mount_hooks){ .ioctl = control_ioctl, .ended = on_ended, .arg = e };
	r = mount_start(d->readers, TAKE_FD(fd), view, &options, &hooks, &m);

	pthread_mutex_lock(&d->lock);
	if (r < 0) {
		take_out_locked(e);
		pthread_mutex_unlock(&d->lock);
		free(e);
		return r;
	}
	view = NULL; /* the mount's now */
	e->mount = m;
	e->users--;
	pthread_cond_broadcast(&d->changed);
	pthread_mutex_unlock(&d->lock);

	daemon_log("mounted %s %s on '%s'", *branch ? "branch" : "snapshot",
		   *branch ? branch : snap_id_to_text(snapshot, id), mountpoint);
	return 0;
}

static bool is_there_locked(struct daemon *d, const char *mountpoint, const char *branch,
			    uint64_t snapshot)
{
	for (struct view_entry *e = d->views; e; e = e->next)
		if (strcmp(e->mountpoint, mountpoint) == 0 && strcmp(e->branch, branch) == 0 &&
		    e->snapshot == snapshot)
			return true;
	return false;
}

bool views_wait_gone(struct daemon *d, const char *mountpoint, const char *branch,
		     uint64_t snapshot, int seconds, const bool *cancel)
{
	LOCK_GUARD(&d->lock);

	/* In steps of 0.2 s, for nobody wakes us when the client goes away. */
	for (int i = 0; i < 5 * seconds; i++) {
		struct timespec until;

		if (!is_there_locked(d, mountpoint, branch, snapshot))
			return true;
		if (__atomic_load_n(cancel, __ATOMIC_RELAXED))
			return false;
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_nsec += 200000000;
		if (until.tv_nsec >= 1000000000) {
			until.tv_nsec -= 1000000000;
			until.tv_sec++;
		}
		pthread_cond_timedwait(&d->changed, &d->lock, &until);
	}
	return !is_there_locked(d, mountpoint, branch, snapshot);
}

static int unmount_one(void *arg, struct view_entry *e)
{
	bool lazy = *(bool *)arg;
	int r = mounts_unmount(e->mountpoint, lazy);

	if (r < 0 && lazy)
		daemon_log("warning: unmounting '%s': %s, leaving it to the guard", e->mountpoint,
			   err_str(r));
	return 0;
}

bool views_end_all(struct daemon *d)
{
	bool lazy = false;

	pthread_mutex_lock(&d->lock);
	d->ending = true;
	pthread_mutex_unlock(&d->lock);

	/* Kindly, then for good: a moment (3 s) for those whose processes leave on their own. */
	views_each(d, unmount_one, &lazy);
	for (int i = 0; i < 300 && views_count(d); i++) {
		if (i == 100) {
			lazy = true;
			views_each(d, unmount_one, &lazy);
		}
		(void)nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
	}
	return views_count(d) == 0;
}
