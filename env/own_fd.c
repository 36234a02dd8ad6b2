/* SPDX-License-Identifier: Apache-2.0 */

/* What is open is a bit of its number: what an object lies in may be gone in the child. */

#include "env/own_fd.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/socket.h>

#include "store/base/util.h"

#define BITS 64 /* of one word */

/* Held while the caller forks, and by us for a few calls that wait for nothing. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t *open_ones; /* under lock, as are the next two */
static size_t words;
static unsigned forks; /* above this process, since the library was loaded */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void before_fork(void)
{
	pthread_mutex_lock(&lock);
}

static void in_parent(void)
{
	pthread_mutex_unlock(&lock);
}

static void in_child(void)
{
	for (size_t i = 0; i < words; i++)
		for (; open_ones[i]; open_ones[i] &= open_ones[i] - 1)
			(void)close((int)(i * BITS) + __builtin_ctzll(open_ones[i]));
	forks++;
	pthread_mutex_unlock(&lock);
}

static void watch_forks(void)
{
	(void)pthread_atfork(before_fork, in_parent, in_child); /* no memory: children keep them */
}

/* Under lock. Takes fd; 0 or -ENOMEM. */
static int keep(struct own_fd *o, int fd)
{
	size_t word = (size_t)fd / BITS;

	if (word >= words) {
		uint64_t *grown = realloc(open_ones, (word + 1) * sizeof(*grown));

		if (!grown) {
			(void)close(fd); /* nothing was written */
			return -ENOMEM;
		}
		memset(grown + words, 0, (word + 1 - words) * sizeof(*grown));
		open_ones = grown;
		words = word + 1;
	}
	open_ones[word] |= UINT64_C(1) << fd % BITS;
	*o = (struct own_fd){ .fd = fd, .forks = forks };
	return 0;
}

int own_fd_get(const struct own_fd *o)
{
	LOCK_GUARD(&lock);
	return o->forks == forks ? o->fd : -1;
}

void own_fd_close(struct own_fd *o)
{
	LOCK_GUARD(&lock);
	if (o->fd >= 0 && o->forks == forks) {
		open_ones[o->fd / BITS] &= ~(UINT64_C(1) << o->fd % BITS);
		(void)close(o->fd); /* nothing was written to a file */
	}
	*o = OWN_FD_NONE;
}

/* Takes both. */
static int keep_one(int other, int fd, int *ret_other, struct own_fd *ret)
{
	int r = keep(ret, fd);

	if (r < 0)
		(void)close(other); /* nothing was written */
	else
		*ret_other = other;
	return r;
}

int own_fd_pipe(int *ret_read, struct own_fd *ret_write)
{
	int p[2];

	pthread_once(&once, watch_forks);
	LOCK_GUARD(&lock);
	return pipe2(p, O_CLOEXEC) < 0 ? -errno : keep_one(p[0], p[1], ret_read, ret_write);
}

int own_fd_pair(int *ret_ours, struct own_fd *ret_theirs)
{
	int pair[2];

	pthread_once(&once, watch_forks);
	LOCK_GUARD(&lock);
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return -errno;
	return keep_one(pair[0], pair[1], ret_ours, ret_theirs);
}

int own_fd_open(struct own_fd *o, const char *path, int flags)
{
	int fd = own_fd_get(o);

	if (fd >= 0)
		return 0;
	pthread_once(&once, watch_forks);
	fd = open(path, flags | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	LOCK_GUARD(&lock);
	if (o->fd < 0 || o->forks != forks)
		return keep(o, fd);
	(void)close(fd); /* another thread's is there */
	return 0;
}
