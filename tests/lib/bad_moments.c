/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Preloaded, for what else happens once in thousands of times.
 *
 * Into a shell: with PLYFS_SLOW it reads its terminal as a bash of before 5.1 does, a line in
 * pieces, and the process of that number, which listens to it, hears of the line before just
 * between two of them.
 * A file `interrupt-fork` in its directory: a Ctrl-C comes right behind its next fork, when the new
 * process has taken the terminal (before, it would take it from the prompt, which ends a bash).
 *
 * Into who tells watchers of a restore: with PLYFS_SWAP and PLYFS_SWAP_FOR two names change places
 * once, when he has announced that a name is made, and when he has seen that another is gone.
 *
 * Into who unmounts: with PLYFS_UNMOUNTED that shell command is run as soon as it is done.
 *
 * Into a daemon: while there is a file that PLYFS_RING_REFUSED names, an io_uring completes every
 * third command with ENOMEM, as if it had no memory to begin it.
 */

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#ifdef PLYFS_URING
#include <liburing.h>
#endif
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#define PIECE 128 /* getc_with_restart's buffer until 5.0 */

/* Much longer than that one takes to do something about it. */
#define PAUSE_US 100000

#define EXPORT __attribute__((visibility("default")))

EXPORT ssize_t read(int fd, void *buf, size_t count)
{
	const char *slow = getenv("PLYFS_SLOW");
	int left;
	ssize_t n;

	if (!slow || !isatty(fd))
		return syscall(SYS_read, fd, buf, count);
	if (count > PIECE)
		count = PIECE;
	if (ioctl(fd, FIONREAD, &left) == 0 && left == 0)
		(void)kill(atoi(slow), SIGCONT); /* what we are about to wait for is its to type */
	n = syscall(SYS_read, fd, buf, count);
	if (n <= 0)
		return n;
	if ((size_t)n == count) {
		(void)kill(atoi(slow), SIGCONT);
		(void)usleep(PAUSE_US);
	} else if (ioctl(fd, FIONREAD, &left) == 0 && left > (int)count) {
		(void)kill(atoi(slow), SIGSTOP);
	}
	return n;
}

EXPORT pid_t fork(void)
{
	pid_t (*next)(void) = (pid_t(*)(void))dlsym(RTLD_NEXT, "fork");
	pid_t pid = next();

	if (pid > 0 && unlink("interrupt-fork") == 0) {
		while (tcgetpgrp(STDIN_FILENO) != pid)
			(void)usleep(1000);
		(void)kill(getpid(), SIGINT);
	}
	return pid;
}

static void swap_once(void)
{
	const char *one = getenv("PLYFS_SWAP"), *other = getenv("PLYFS_SWAP_FOR");
	static bool done;

	if (!done && one && other)
		done = renameat2(AT_FDCWD, one, AT_FDCWD, other, RENAME_EXCHANGE) == 0;
}

EXPORT ssize_t getxattr(const char *path, const char *name, void *value, size_t size)
{
	ssize_t n = syscall(SYS_getxattr, path, name, value, size);

	if (n >= 0 && strcmp(name, "system.plyfs.made") == 0)
		swap_once();
	return n;
}

EXPORT int fstatat(int dir, const char *path, struct stat *st, int flags)
{
	int (*next)(int, const char *, struct stat *, int) =
		(int (*)(int, const char *, struct stat *, int))dlsym(RTLD_NEXT, "fstatat64");
	int r = next(dir, path, st, flags);

	if (r == 0 && st->st_ino == UINT64_MAX - 1)
		swap_once();
	return r;
}

EXPORT int lstat(const char *path, struct stat *st)
{
	return fstatat(AT_FDCWD, path, st, AT_SYMLINK_NOFOLLOW);
}

EXPORT int umount2(const char *path, int flags)
{
	char *command = getenv("PLYFS_UNMOUNTED");
	int r = (int)syscall(SYS_umount2, path, flags);

	if (r == 0 && command) {
		(void)unsetenv("LD_PRELOAD");
		(void)!system(command);
		(void)unsetenv("PLYFS_UNMOUNTED");
	}
	return r;
}

#ifdef PLYFS_URING

#define NOP_INJECT_RESULT 1 /* in rw_flags; Linux 6.10 */

/* Instead it does nothing, with that result. */
static void refuse(struct io_uring_sqe *sqe)
{
	uint64_t data = sqe->user_data;

	memset(sqe, 0, sizeof(*sqe));
	sqe->opcode = IORING_OP_NOP;
	sqe->len = (uint32_t)-ENOMEM;
	sqe->rw_flags = NOP_INJECT_RESULT;
	sqe->user_data = data;
}

static void refuse_some(struct io_uring *ring)
{
	static unsigned n;
	const char *file = getenv("PLYFS_RING_REFUSED");
	const struct io_uring_sq *sq = &ring->sq;
	unsigned shift = ring->flags & IORING_SETUP_SQE128 ? 1 : 0;

	if (!file || access(file, F_OK) < 0)
		return;
	for (unsigned i = sq->sqe_head; i != sq->sqe_tail; i++) {
		struct io_uring_sqe *sqe = &sq->sqes[(i & sq->ring_mask) << shift];

		if (sqe->opcode == IORING_OP_URING_CMD &&
		    __atomic_add_fetch(&n, 1, __ATOMIC_RELAXED) % 3 == 0)
			refuse(sqe);
	}
}

EXPORT int io_uring_submit_and_wait(struct io_uring *ring, unsigned wait_nr)
{
	int (*next)(struct io_uring *, unsigned) = (int (*)(struct io_uring *, unsigned))dlsym(
		RTLD_NEXT, "io_uring_submit_and_wait");

	refuse_some(ring);
	return next(ring, wait_nr);
}

#endif
