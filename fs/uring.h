/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Requests of a mount through io_uring, for mount.c: instead of one reader on the descriptor, which
 * stays for what the kernel only tells there (FORGET, INTERRUPT), threads on every CPU.
 */

#include <errno.h>
#include <stdbool.h>
#include <sys/uio.h>

#include "store/base/err.h"

struct mount;

/*
 * Before INIT is answered, as it promises them to the kernel: starts the threads of m and waits
 * until each has its ring; they serve nothing yet. Sets m->uring. -ENOSYS: built without.
 * -EPERM: kernel.io_uring_disabled or a seccomp profile.
 */
#ifdef PLYFS_URING
int uring_open(struct mount *m);
/* After INIT was answered: requests may come from here on. Until then the kernel keeps them. */
void uring_serve(struct mount *m);
/* Waits until no thread works on a request of m. The kernel has let go, or will see it as death. */
void uring_close(struct mount *m);

/* The answer to what this thread handles. ABSENT: that is no request from a ring. */
int uring_reply(const struct iovec *iov, int count);
/* May this thread wait for other requests? Not the ring's own. */
bool uring_may_wait(void);

#else /* built without liburing */
static inline int uring_open(struct mount *m)
{
	return -ENOSYS;
}
static inline void uring_serve(struct mount *m)
{
}
static inline void uring_close(struct mount *m)
{
}
static inline int uring_reply(const struct iovec *iov, int count)
{
	return ABSENT;
}
static inline bool uring_may_wait(void)
{
	return true;
}
#endif
