/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Descriptors that no child of the caller's fork() has. O_CLOEXEC keeps them from programs only; a
 * child that runs none (Python's multiprocessing) would have them as long as it lives: the end of a
 * pipe that is a command's, so that its output has no end, or a view's directory, which could not
 * be unmounted. In such a child they are closed. Children of vfork() and clone() are not met.
 */

struct own_fd {
	int fd;		/* -1: none */
	unsigned forks; /* in which process it was opened */
};
#define OWN_FD_NONE ((struct own_fd){ .fd = -1 })

/* -1: none, or it was opened before the fork() that made this process. */
int own_fd_get(const struct own_fd *o);
/* Usable as cleanup. */
void own_fd_close(struct own_fd *o);
#define _cleanup_own_fd_ _cleanup_(own_fd_close)

/*
 * All with O_CLOEXEC; 0 or -errno. A pipe's end to write to is own, the other is not; so is one end
 * of a pair of sockets (SOCK_SEQPACKET).
 */
int own_fd_pipe(int *ret_read, struct own_fd *ret_write);
int own_fd_pair(int *ret_ours, struct own_fd *ret_theirs);
/*
 * Nothing when it is open already, by another thread, say. A fork() between the open() in this and
 * its being noted is not met: who held it up until a filesystem answers could do so for ever.
 */
int own_fd_open(struct own_fd *o, const char *path, int flags);
