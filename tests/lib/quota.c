/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Preloaded: a small disk is a large one on which the group has a quota, for kernels without them.
 * A full disk is EDQUOT, statfs tells of a TiB more than there is, quotactl_fd of what is left. And
 * of root it says what an xfs does: the limits that others have by default, here a KiB.
 */

#undef _FILE_OFFSET_BITS /* open and open64 are two names here */

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/quota.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define MORE (UINT64_C(1) << 40)
#define GROUP 4711 /* not root's, whom no quota holds */

#pragma GCC visibility push(default)

#define REAL(name)                                                                                 \
	static __typeof__(&name) real;                                                             \
	if (!real)                                                                                 \
		real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

#define LIMITED(type, name, params, args)                                                          \
	type name params                                                                           \
	{                                                                                          \
		REAL(name);                                                                        \
		type r = real args;                                                                \
		if (r < 0 && errno == ENOSPC)                                                      \
			errno = EDQUOT;                                                            \
		return r;                                                                          \
	}

LIMITED(ssize_t, write, (int fd, const void *buf, size_t len), (fd, buf, len))
LIMITED(ssize_t, writev, (int fd, const struct iovec *v, int n), (fd, v, n))
LIMITED(ssize_t, pwrite, (int fd, const void *buf, size_t len, off_t off), (fd, buf, len, off))
LIMITED(ssize_t, pwrite64, (int fd, const void *buf, size_t len, off64_t off), (fd, buf, len, off))
LIMITED(ssize_t, pwritev, (int fd, const struct iovec *v, int n, off_t off), (fd, v, n, off))
LIMITED(ssize_t, pwritev64, (int fd, const struct iovec *v, int n, off64_t off), (fd, v, n, off))
LIMITED(int, ftruncate64, (int fd, off64_t size), (fd, size))
LIMITED(int, fallocate64, (int fd, int mode, off64_t off, off64_t len), (fd, mode, off, len))
LIMITED(int, fsync, (int fd), (fd))
LIMITED(int, fdatasync, (int fd), (fd))
LIMITED(int, mkdirat, (int dir, const char *path, mode_t mode), (dir, path, mode))
LIMITED(int, renameat, (int a, const char *from, int b, const char *to), (a, from, b, to))
LIMITED(int, linkat, (int a, const char *from, int b, const char *to, int flags),
	(a, from, b, to, flags))

int posix_fallocate64(int fd, off64_t off, off64_t len)
{
	REAL(posix_fallocate64);
	int r = real(fd, off, len);

	return r == ENOSPC ? EDQUOT : r;
}

int openat64(int dir, const char *path, int flags, ...)
{
	REAL(openat64);
	va_list ap;
	mode_t mode;
	int fd;

	va_start(ap, flags);
	mode = va_arg(ap, mode_t); /* not used where there is none */
	va_end(ap);
	fd = real(dir, path, flags, mode);
	if (fd < 0 && errno == ENOSPC)
		errno = EDQUOT;
	return fd;
}

static int true_room(int fd, struct statvfs64 *ret)
{
	REAL(fstatvfs64);
	return real(fd, ret);
}

int fstatvfs64(int fd, struct statvfs64 *ret)
{
	int r = true_room(fd, ret);

	if (r == 0) {
		ret->f_blocks += MORE / ret->f_frsize;
		ret->f_bfree += MORE / ret->f_frsize;
		ret->f_bavail += MORE / ret->f_frsize;
	}
	return r;
}

gid_t getegid(void)
{
	return GROUP;
}

static long answer(int fd, int cmd, unsigned id, struct dqblk *ret)
{
	struct statvfs64 st;
	bool of_root = cmd == (int)QCMD((unsigned)Q_GETQUOTA, USRQUOTA) && id == 0;

	if (!of_root && (cmd != (int)QCMD((unsigned)Q_GETQUOTA, GRPQUOTA) || id != GROUP)) {
		errno = EPERM;
		return -1;
	}
	if (true_room(fd, &st) < 0)
		return -1;
	memset(ret, 0, sizeof(*ret));
	ret->dqb_bhardlimit = of_root ? 1 : st.f_blocks * st.f_frsize / 1024;
	ret->dqb_curspace = (st.f_blocks - st.f_bavail) * st.f_frsize;
	ret->dqb_valid = QIF_LIMITS | QIF_USAGE;
	return 0;
}

long syscall(long number, ...)
{
	REAL(syscall);
	va_list ap;
	long a[6];

	va_start(ap, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(ap, long);
	va_end(ap);
	if (number == SYS_quotactl_fd)
		return answer((int)a[0], (int)a[1], (unsigned)a[2], (struct dqblk *)a[3]);
	return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
