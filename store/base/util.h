/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What every file uses: cleanup by scope, small macros, little-endian access, a whole write, the
 * clock.
 */

#include <endian.h>
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define _cleanup_(f) __attribute__((cleanup(f)))
#define _printf_(a, b) __attribute__((format(printf, a, b)))
#define _unused_ __attribute__((unused))

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

/* Each argument once: what is left until some time is another number at each look. */
#define MIN(a, b) BETTER_(<, a, b, __COUNTER__)
#define MAX(a, b) BETTER_(>, a, b, __COUNTER__)
#define BETTER_(than, a, b, n) BETTER_NAMED_(than, a, b, n)
#define BETTER_NAMED_(than, a, b, n)                                                               \
	({                                                                                         \
		if (0)                                                                             \
			(void)((a) than (b)); /* the compiler looks at their signs */              \
		__typeof__((a) than (b) ? (a) : (b)) a_##n = (a), b_##n = (b);                     \
		a_##n than b_##n ? a_##n : b_##n;                                                  \
	})

#define container_of(p, type, member) ((type *)((char *)(p)-offsetof(type, member)))

/* Ends the name of what is counted: "1 chunk", "2 chunks". */
static inline const char *plural(uint64_t n)
{
	return n == 1 ? "" : "s";
}

/*
 * For a buffer on the stack through which bytes are copied: `ulimit -s`, which is that of threads,
 * too, may leave 64 KiB for all of it.
 */
#define STACK_BUFFER 16384

/* Hand over what a cleanup variable owns. */
#define TAKE_PTR(p)                                                                                \
	({                                                                                         \
		__typeof__(p) *pp_ = &(p);                                                         \
		__typeof__(p) v_ = *pp_;                                                           \
		*pp_ = NULL;                                                                       \
		v_;                                                                                \
	})
#define TAKE_FD(fd)                                                                                \
	({                                                                                         \
		int *pf_ = &(fd);                                                                  \
		int v_ = *pf_;                                                                     \
		*pf_ = -1;                                                                         \
		v_;                                                                                \
	})

static inline void freep(void *p)
{
	free(*(void **)p);
}
#define _cleanup_free_ _cleanup_(freep)

/* Closes a descriptor whose content does not depend on close succeeding. */
static inline void closep(int *fd)
{
	if (*fd >= 0)
		(void)close(*fd); /* nothing is lost: writers check through fsync */
}
#define _cleanup_close_ _cleanup_(closep)

static inline void fclosep(FILE **f)
{
	if (*f)
		(void)fclose(*f); /* readers only; writers close by hand and check */
}
#define _cleanup_fclose_ _cleanup_(fclosep)

static inline void mutex_unlockp(pthread_mutex_t **m)
{
	if (*m)
		pthread_mutex_unlock(*m);
}
static inline void rwlock_unlockp(pthread_rwlock_t **l)
{
	if (*l)
		pthread_rwlock_unlock(*l);
}
#define CONCAT_(a, b) a##b
#define CONCAT(a, b) CONCAT_(a, b)

/* Scope guards: the lock is held until the end of the enclosing block. */
#define LOCK_GUARD(m)                                                                              \
	_cleanup_(mutex_unlockp) _unused_ pthread_mutex_t *CONCAT(guard_, __LINE__) =              \
		(pthread_mutex_lock(m), (m))
#define READ_GUARD(l)                                                                              \
	_cleanup_(rwlock_unlockp) _unused_ pthread_rwlock_t *CONCAT(guard_, __LINE__) =            \
		(pthread_rwlock_rdlock(l), (l))
#define WRITE_GUARD(l)                                                                             \
	_cleanup_(rwlock_unlockp) _unused_ pthread_rwlock_t *CONCAT(guard_, __LINE__) =            \
		(pthread_rwlock_wrlock(l), (l))

static inline uint16_t get_le16(const void *p)
{
	uint16_t v;

	memcpy(&v, p, sizeof(v));
	return le16toh(v);
}
static inline uint32_t get_le32(const void *p)
{
	uint32_t v;

	memcpy(&v, p, sizeof(v));
	return le32toh(v);
}
static inline uint64_t get_le64(const void *p)
{
	uint64_t v;

	memcpy(&v, p, sizeof(v));
	return le64toh(v);
}
static inline void put_le16(void *p, uint16_t v)
{
	v = htole16(v);
	memcpy(p, &v, sizeof(v));
}
static inline void put_le32(void *p, uint32_t v)
{
	v = htole32(v);
	memcpy(p, &v, sizeof(v));
}
static inline void put_le64(void *p, uint64_t v)
{
	v = htole64(v);
	memcpy(p, &v, sizeof(v));
}

/* All of len bytes, where the file stands; or -errno, after some of them. */
static inline int write_all(int fd, const void *data, size_t len)
{
	for (size_t done = 0; done < len;) {
		ssize_t n = write(fd, (const char *)data + done, len - done);

		if (n < 0 && errno != EINTR)
			return -errno;
		done += n > 0 ? (size_t)n : 0;
	}
	return 0;
}

/* The monotonic clock, which nobody sets; what it shows by itself means nothing. */
static inline uint64_t now_ns(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t); /* cannot fail for this clock */
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}
static inline double now_seconds(void)
{
	return (double)now_ns() / 1e9;
}

/* In ms, by the clock that pthread_cond_timedwait() and its like look at. */
static inline struct timespec wait_until(uint64_t ms)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	t.tv_sec += (time_t)(ms / 1000);
	t.tv_nsec += (long)(ms % 1000) * 1000000;
	if (t.tv_nsec >= 1000000000) {
		t.tv_nsec -= 1000000000;
		t.tv_sec++;
	}
	return t;
}
