/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Copies of files, in the folder copies/; see copy.h for what they are for.
 *
 * Invariants:
 *  W1  A copy is named by its snapshot and inode number, so what it has to hold never changes. It
 *      has that name only when it is whole: it is written as NAME.new, from chunks that were
 *      compared with their hashes, and renamed. A file that several snapshots have alike is one
 *      copy with several names.
 *  W2  Copies live as long as one daemon and those that go on with its views, under one lock of
 *      the store: a daemon that follows nobody removes them all before it makes one. So the
 *      machine did not stop since they were written (nothing of them is ever synced), no salvage
 *      or repair came between, and no snapshot's id was lost and given out again.
 *  W3  They are opened for reading only, once they have their name.
 *  W4  A shared flock on the descriptor says that a copy is used, or being written. It goes with
 *      the last descriptor of that open(2), and the kernel has one for each file that it reads by
 *      itself: so who lets go, dies or is unmounted needs to tell nobody. It is heeded to make
 *      room, for the space of a file that is open does not come back; nothing else rests on it.
 *  W5  All copies take no more of the disk than stays free: each new one makes room for itself, or
 *      is not made, and the sealer looks again each five seconds while the store grows.
 *
 * A crash leaves copies and a NAME.new: the first are good for whoever goes on (W2), the other is
 * written anew.
 */

#include "store/copy.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>

#include "store/base/os.h"
#include "store/chunk.h"
#include "store/room.h"
#include "store/store_internal.h"

#define FOLDER "copies"
#define NEW ".new"
#define NAME_SIZE 40 /* 12 and 16 hex digits, the suffix */
#define PATH_SIZE (sizeof(FOLDER "/") + NAME_SIZE)

/* Under copies_lock: a copy that a thread writes. */
struct making {
	struct making *next;
	const char *path;
};

static void path_of(uint64_t snap, uint64_t ino, char path[static PATH_SIZE])
{
	snprintf(path, PATH_SIZE, FOLDER "/%012" PRIx64 "-%" PRIx64, snap, ino);
}

static int find(struct store *s, const char *path, int *ret_fd)
{
	_cleanup_close_ int fd = -1;
	int r;

	r = os_openat(s->dir_fd, path, O_RDONLY | O_CLOEXEC, 0, &fd);
	if (r == 0)
		r = os_lock_shared(fd);
	if (r == -ENOENT || r == -EWOULDBLOCK) /* it is being removed */
		return ABSENT;
	if (r < 0)
		return r;
	(void)os_touch(fd); /* else it is taken for older than it is */
	*ret_fd = TAKE_FD(fd);
	return 0;
}

int copy_find(struct store *s, uint64_t snap, uint64_t ino, int *ret_fd)
{
	char path[PATH_SIZE];

	path_of(snap, ino, path);
	return find(s, path, ret_fd);
}

/* ---- room ---- */

struct copy {
	char name[NAME_SIZE];
	uint64_t bytes;
	int64_t used_ns;
};

struct folder {
	struct store *store;
	struct copy *list; /* owned */
	size_t n, cap;
	uint64_t bytes; /* of all */
};

static void folder_release(struct folder *f)
{
	free(f->list);
}

static int folder_add(void *arg, const char *name)
{
	struct folder *f = arg;
	char path[PATH_SIZE];
	struct copy *c;
	struct stat st;
	int r;

	if (strlen(name) >= NAME_SIZE)
		return 0; /* none of ours */
	snprintf(path, sizeof(path), FOLDER "/%s", name);
	r = os_statat(f->store->dir_fd, path, &st);
	if (r < 0)
		return r == -ENOENT ? 0 : r; /* renamed just now: at most one is not counted */
	if (st.st_nlink == 0) /* it went between the kernel's two looks */
		return 0;
	r = os_grow(&f->list, &f->cap, f->n + 1, sizeof(*f->list));
	if (r < 0)
		return r;
	c = &f->list[f->n++];
	strcpy(c->name, name);
	c->bytes = (uint64_t)st.st_blocks * 512 / st.st_nlink; /* of its other names, the rest */
	c->used_ns = st.st_mtim.tv_sec * INT64_C(1000000000) + st.st_mtim.tv_nsec;
	f->bytes += c->bytes;
	return 0;
}

static int folder_read(struct store *s, struct folder *ret)
{
	int r;

	*ret = (struct folder){ .store = s };
	r = os_each_name(s->dir_fd, FOLDER, folder_add, ret);
	return r == -ENOENT ? 0 : r;
}

/* 0: it is gone; EXISTS: it is used (W4). */
static int remove_one(struct store *s, const char *name, bool used_too)
{
	_cleanup_close_ int fd = -1;
	char path[PATH_SIZE];
	size_t len = strlen(name);
	int r;

	if (len >= NAME_SIZE)
		return EXISTS;
	snprintf(path, sizeof(path), FOLDER "/%s", name);
	r = os_openat(s->dir_fd, path, O_RDONLY | O_CLOEXEC, 0, &fd);
	if (r < 0)
		return r;
	/* What is being written is good, whatever the others are. */
	if (len > strlen(NEW) && strcmp(name + len - strlen(NEW), NEW) == 0)
		used_too = false;
	r = os_lock(fd);
	if (r == -EWOULDBLOCK && !used_too)
		return EXISTS;
	if (r < 0 && r != -EWOULDBLOCK)
		return r;
	return os_unlinkat(s->dir_fd, path, 0);
}

static int by_use(const void *a, const void *b)
{
	const struct copy *x = a, *y = b;

	return (x->used_ns > y->used_ns) - (x->used_ns < y->used_ns);
}

/* W5. Under copies_lock: two that make room at once would make too much. */
static int make_room(struct store *s, uint64_t bytes)
{
	_cleanup_(folder_release) struct folder f = { 0 };
	uint64_t free_bytes;
	int r;

	r = folder_read(s, &f);
	if (r == 0)
		r = os_free_bytes(s->dir_fd, &free_bytes);
	if (r < 0)
		return r;
	if (bytes > (free_bytes + f.bytes) / 2)
		return -ENOSPC; /* whatever went */
	if (f.n > 0) /* qsort wants no NULL */
		qsort(f.list, f.n, sizeof(*f.list), by_use);
	for (size_t i = 0; i < f.n && f.bytes + 2 * bytes > free_bytes; i++) {
		if (remove_one(s, f.list[i].name, false) != 0)
			continue;
		f.bytes -= f.list[i].bytes;
		free_bytes += f.list[i].bytes;
	}
	return f.bytes + 2 * bytes > free_bytes ? -ENOSPC : 0;
}

void copies_trim(struct store *s)
{
	LOCK_GUARD(&s->copies_lock);

	(void)make_room(s, 0); /* those that are used stay for now */
}

/* ---- making ---- */

static bool is_being_made(struct store *s, const char *path)
{
	struct making *m = s->making;

	while (m && strcmp(m->path, path) != 0)
		m = m->next;
	return m;
}

static int write_copy(struct store *s, const char *path, uint64_t size,
		      int (*fill)(void *arg, int fd), void *arg, int *ret_fd)
{
	_cleanup_close_ int fd = -1;
	char new[PATH_SIZE + sizeof(NEW)];
	int r;

	r = os_mkdirat(s->dir_fd, FOLDER, 0700);
	if (r < 0 && r != -EEXIST)
		return r;
	snprintf(new, sizeof(new), "%s" NEW, path);
	r = os_openat(s->dir_fd, new, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600, &fd);
	if (r < 0)
		return r;
	r = os_lock_shared(fd);
	if (r == 0)
		r = os_ftruncate(fd, size);
	if (r == 0)
		r = fill(arg, fd);
	if (r == 0)
		r = os_renameat(s->dir_fd, new, path);
	if (r < 0) {
		(void)os_unlinkat(s->dir_fd, new, 0); /* else the next daemon does it */
		return r;
	}
	return find(s, path, ret_fd); /* for reading (W3) */
}

int copy_make(struct store *s, uint64_t snap, uint64_t ino, uint64_t size, uint64_t bytes,
	      int (*fill)(void *arg, int fd), void *arg, int *ret_fd)
{
	char path[PATH_SIZE];
	struct making me = { .path = path }, **at;
	bool waited = false;
	int r;

	path_of(snap, ino, path);
	pthread_mutex_lock(&s->copies_lock);
	while (is_being_made(s, path)) {
		pthread_cond_wait(&s->copied, &s->copies_lock);
		waited = true;
	}
	r = find(s, path, ret_fd);
	if (r == ABSENT && waited)
		r = -EAGAIN;
	if (r == ABSENT) {
		r = make_room(s, bytes);
		r = r < 0 ? r : ABSENT;
	}
	if (r == ABSENT) {
		me.next = s->making;
		s->making = &me;
	}
	pthread_mutex_unlock(&s->copies_lock);
	if (r != ABSENT)
		return r;

	r = write_copy(s, path, size, fill, arg, ret_fd);

	pthread_mutex_lock(&s->copies_lock);
	for (at = &s->making; *at != &me; at = &(*at)->next)
		;
	*at = me.next;
	pthread_cond_broadcast(&s->copied);
	pthread_mutex_unlock(&s->copies_lock);
	return r == ABSENT ? -EAGAIN : r;
}

/* ---- sharing ---- */

struct share {
	struct store *store;
	uint64_t snap, ino;
	int (*same)(void *arg, uint64_t snap);
	void *arg;
};

static int share_one(void *arg, const char *name)
{
	struct share *share = arg;
	char from[PATH_SIZE], to[PATH_SIZE];
	char *end;
	uint64_t snap = strtoull(name, &end, 16);

	path_of(snap, share->ino, from);
	if (snap == share->snap || strcmp(from + sizeof(FOLDER), name) != 0 ||
	    share->same(share->arg, snap) != 1)
		return 0;
	path_of(share->snap, share->ino, to);
	(void)os_linkat(share->store->dir_fd, from, to); /* else it is made */
	return 1;
}

void copy_share(struct store *s, uint64_t snap, uint64_t ino, int (*same)(void *arg, uint64_t snap),
		void *arg)
{
	struct share share = { .store = s, .snap = snap, .ino = ino, .same = same, .arg = arg };

	(void)os_each_name(s->dir_fd, FOLDER, share_one, &share);
}

/* ---- for others ---- */

static int remove_unused(void *arg, const char *name)
{
	(void)remove_one(arg, name, false); /* it stays a while longer */
	return 0;
}

static int remove_any(void *arg, const char *name)
{
	(void)remove_one(arg, name, true); /* as above */
	return 0;
}

void copies_remove(struct store *s, bool used_too)
{
	(void)os_each_name(s->dir_fd, FOLDER, used_too ? remove_any : remove_unused, s);
	room_freed(chunks_room(s->chunks));
}

int copies_stats(struct store *s, uint64_t *ret_count, uint64_t *ret_bytes)
{
	_cleanup_(folder_release) struct folder f = { 0 };
	int r = folder_read(s, &f);

	if (r < 0)
		return r;
	*ret_count = f.n;
	*ret_bytes = f.bytes;
	return 0;
}
