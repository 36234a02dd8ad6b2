/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Preloaded into a shell: it reads a line that is longer than its buffer in two pieces, and the
 * process PLYFS_SLOW, which listens to it, hears of the line before just between the two.
 */

#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Much longer than that one takes to do something about it. */
#define PAUSE_US 100000

static void tell(int signal)
{
	const char *pid = getenv("PLYFS_SLOW");

	if (pid)
		(void)kill((pid_t)atoi(pid), signal);
}

#define EXPORT __attribute__((visibility("default")))

EXPORT ssize_t read(int fd, void *buf, size_t count)
{
	int left;
	ssize_t n;

	if (isatty(fd) && ioctl(fd, FIONREAD, &left) == 0 && left == 0)
		tell(SIGCONT); /* what we are about to wait for is its to type */
	n = syscall(SYS_read, fd, buf, count);
	if (n <= 0 || !isatty(fd))
		return n;
	if ((size_t)n == count) {
		tell(SIGCONT);
		(void)usleep(PAUSE_US);
	} else if (ioctl(fd, FIONREAD, &left) == 0 && left > (int)count) {
		tell(SIGSTOP);
	}
	return n;
}
