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

#include "fs/memo.h"
#include "store/base/err.h"
#include "store/base/util.h"
#include "tools/mounts.h"

struct view_entry *views_get_branch(struct daemon *d, const char *branch)
{
	LOCK_GUARD(&d->lock);

	for (struct view_entry *e = d->views; e; e = e->next)
		if (!e->ended && e->mount && *e->branch && strcmp(e->branch, branch) == 0 &&
		    !mount_is_over(e->mount)) {
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

int views_is_detached(const struct view_entry *e)
{
	int r = mounts_is_plyfs(e->mountpoint);

	return r == -ENOENT ? 0 : r < 0 ? r : !r; /* without /proc nobody knows */
}

void views_users(const struct view_entry *e, char ret[MOUNT_USERS_BYTES])
{
	mount_users_of_dev(mount_minor(e->mount), ret);
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
	supervisor_remove(d->supervisor, e->slot);
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

/* Another daemon could go on with it: from here on one will (supervisor.h). */
static void on_keep(void *arg, int fuse_fd, int memo_fd)
{
	struct view_entry *e = arg;

	e->kept = true;
	supervisor_keep(e->daemon->supervisor, e->slot, fuse_fd, memo_fd);
}

/* fd and memo are taken. slot: of a former daemon's view, whose the memo is; else -1. */
static int start(struct daemon *d, const struct supervised_view *what, int fuse_fd,
		 struct memo *memo, int slot)
{
	_cleanup_(view_closep) struct view *view = NULL;
	_cleanup_close_ int fd = fuse_fd;
	size_t len = strlen(what->mountpoint) + 1;
	struct mount_hooks hooks;
	struct view_entry *e;
	struct mount *m;
	int r;

	r = *what->branch ? view_open(d->store, what->branch, memo, &view)
			  : view_open_snapshot(d->store, what->snapshot, memo, &view);
	if (r < 0)
		return r;

	e = calloc(1, sizeof(*e) + len);
	if (!e)
		return -ENOMEM;
	e->daemon = d;
	e->users = 1;
	e->snapshot = what->snapshot;
	e->how = what->how;
	memcpy(e->branch, what->branch, sizeof(e->branch));
	memcpy(e->mountpoint, what->mountpoint, len);
	e->kept = slot >= 0;
	e->slot = slot >= 0 ? slot : supervisor_add(d->supervisor, what);

	pthread_mutex_lock(&d->lock);
	if (d->ending) {
		pthread_mutex_unlock(&d->lock);
		supervisor_remove(d->supervisor, e->slot);
		free(e);
		return -ESHUTDOWN;
	}
	e->next = d->views;
	d->views = e;
	pthread_mutex_unlock(&d->lock);

	hooks = (struct mount_hooks){
		.ioctl = control_ioctl, .ended = on_ended, .keep = on_keep, .arg = e
	};
	r = mount_start(d->readers, TAKE_FD(fd), view, what->how, &hooks, &m);

	pthread_mutex_lock(&d->lock);
	if (r < 0) {
		if (slot >= 0)
			e->slot = -1; /* a former daemon's: views_resume decides */
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
	return 0;
}

int views_start(struct daemon *d, const char *branch, uint64_t snapshot, const char *mountpoint,
		int fuse_fd, uint32_t how)
{
	struct supervised_view what = {
		.snapshot = snapshot, .how = how, .mountpoint = mountpoint
	};
	_cleanup_close_ int fd = fuse_fd;
	struct memo *memo = NULL;
	char id[SNAP_ID_SIZE];
	int r;

	snprintf(what.branch, sizeof(what.branch), "%s", branch);
	/* Without a journal what was answered would be gone, while the kernel's caches have it. */
	if (!getenv("PLYFSD_SUPERVISE_OFF") && !d->options.journal_off &&
	    !(how & MOUNT_IO_URING)) {
		r = memo_new(&memo);
		if (r < 0)
			return r;
	}
	r = start(d, &what, TAKE_FD(fd), memo, -1);
	if (r < 0)
		return r;
	daemon_log("mounted %s %s on '%s'", *branch ? "branch" : "snapshot",
		   *branch ? branch : snap_id_to_text(snapshot, id), mountpoint);
	return 0;
}

/* ---- going on after a former daemon ---- */

struct former {
	struct former *next;
	int slot;
	struct supervised_view what;
	struct memo *memo; /* owned; NULL: cannot be gone on with */
	int memo_failure;
};

int views_find_formers(struct daemon *d)
{
	struct supervised_view what;
	struct former **end = &d->formers;

	for (int i = -1; (i = supervisor_next(d->supervisor, i + 1, &what)) >= 0;) {
		struct former *f = calloc(1, sizeof(*f));

		if (!f)
			return -ENOMEM;
		f->slot = i;
		f->what = what;
		f->memo_failure = memo_open(what.memo_fd, &f->memo);
		*end = f;
		end = &f->next;
	}
	return 0;
}

void views_recovered(void *arg, struct store *s, uint64_t lsn)
{
	struct daemon *d = arg;

	for (struct former *f = d->formers; f; f = f->next)
		if (f->memo)
			memo_recovered(f->memo, lsn);
}

void views_leave_formers(struct daemon *d)
{
	struct former *f;

	while ((f = d->formers)) {
		d->formers = f->next;
		memo_close(f->memo);
		free(f);
	}
}

static int finish_restore(void *arg, struct view_entry *e)
{
	int r = view_finish_restore(mount_view(e->mount));

	if (r < 0)
		daemon_log("warning: '%s': telling the kernel what a restore changed: %s, ignoring",
			   e->mountpoint, err_str(r));
	return 0;
}

static void *finish_restores(void *arg)
{
	views_each(arg, finish_restore, NULL);
	return NULL;
}

/*
 * What one process cannot do for want of memory or threads, another one can: the second daemon in a
 * row that fails gives a view up, and the first one where the memo itself is damaged. All are tried
 * first, so that many cost one death.
 */
#define RESUME_TRIES 2

int views_resume(struct daemon *d)
{
	struct former *f;
	int again = 0, r;

	if (!d->formers)
		return 0;
	while ((f = d->formers)) {
		r = f->memo_failure;
		d->formers = f->next;
		if (r == 0)
			r = start(d, &f->what, f->what.fuse_fd, TAKE_PTR(f->memo), f->slot);
		else
			(void)close(f->what.fuse_fd); /* nothing was written */
		if (supervisor_note_resume(d->supervisor, f->slot, r == 0) >= RESUME_TRIES ||
		    r == -ERR_MEMO) {
			daemon_log("error: going on with the view on '%s': %s; unmount it",
				   f->what.mountpoint, err_str(r));
			supervisor_remove(d->supervisor, f->slot);
		} else if (r < 0) {
			again = r;
		}
		free(f);
	}
	if (again < 0)
		return again;
	/* In a thread of its own: it may wait for clients, and for more when it is killed (G7). */
	r = pthread_create(&d->finisher, NULL, finish_restores, d);
	d->finishing = r == 0;
	return -r;
}

static int is_not_kept(void *arg, struct view_entry *e)
{
	return !e->kept;
}

bool views_are_kept(struct daemon *d)
{
	return views_each(d, is_not_kept, NULL) == 0;
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
		struct timespec until = wait_until(200);

		if (!is_there_locked(d, mountpoint, branch, snapshot))
			return true;
		if (__atomic_load_n(cancel, __ATOMIC_RELAXED))
			return false;
		pthread_cond_timedwait(&d->changed, &d->lock, &until);
	}
	return !is_there_locked(d, mountpoint, branch, snapshot);
}

struct whereabouts {
	uint64_t dev;
	char *path; /* owned */
};

static int find_place(void *arg, const struct mount_entry *m)
{
	struct whereabouts *w = arg;

	if (m->major != 0 || m->minor != w->dev || mount_users_dev(m->path) != w->dev)
		return 0; /* another's, or hidden beneath one */
	w->path = strdup(m->path);
	return 1;
}

static int unmount_one(void *arg, struct view_entry *e)
{
	struct whereabouts w = { .dev = mount_minor(e->mount) };
	bool lazy = *(bool *)arg;
	const char *at = e->mountpoint;
	int r = mounts_is_plyfs(at) == 1 ? 0 : -ENOENT;

	/* A directory above it may have been moved, and something else be where it was. */
	if (w.dev && mount_users_dev(at) != w.dev)
		r = mounts_each(find_place, &w) == 1 && (at = w.path) ? 0 : -ENOENT;
	if (r == 0)
		r = mounts_unmount(at, lazy);
	if (r < 0 && lazy)
		daemon_log("warning: unmounting '%s': %s, leaving it to the supervisor",
			   e->mountpoint, err_str(r));
	free(w.path);
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
