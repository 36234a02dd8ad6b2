/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calltable's calls: each takes a path p (or two, p and q), asks the kernel one thing, and gives
 * what it said. Descriptors are closed again, errno is the call's.
 */

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "tests/lib/calltable.h"

static struct stat st;
static struct statfs sfs;
static char buf[PATH_MAX];

static int done(int fd) /* of an open */
{
	if (fd >= 0)
		close(fd);
	return fd < 0 ? -1 : 0;
}

static int open_as(const char *p, int flags)
{
	return open(p, flags | O_NONBLOCK | O_CLOEXEC, 06777);
}

static int bind_to(const char *p)
{
	struct sockaddr_un where = { .sun_family = AF_UNIX };
	int s, r, e;

	if (strlen(p) >= sizeof(where.sun_path) || !*p)
		return 0; /* not a question to the filesystem */
	s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	need(s >= 0, "socket");
	strcpy(where.sun_path, p);
	r = bind(s, (struct sockaddr *)&where, sizeof(where));
	e = errno;
	close(s);
	errno = e;
	return r;
}

static int utimes_to(const char *p, time_t a, long a_ns, time_t m, long m_ns, int flags)
{
	return utimensat(AT_FDCWD, p, (struct timespec[]){ { a, a_ns }, { m, m_ns } }, flags);
}

static int watch(const char *p)
{
	int fd = inotify_init1(IN_CLOEXEC), r, e;

	need(fd >= 0, "inotify_init1");
	r = inotify_add_watch(fd, p, IN_ALL_EVENTS);
	e = errno;
	close(fd);
	errno = e;
	return r < 0 ? -1 : 0;
}

/* clang-format off */
/* X(name, the call on p); F(name, flags of an open of p, the call on its descriptor fd). */
#define CALLS \
	X(stat, stat(p, &st)) \
	X(lstat, lstat(p, &st)) \
	X(access_r, faccessat(AT_FDCWD, p, R_OK, AT_EACCESS)) \
	X(access_w, faccessat(AT_FDCWD, p, W_OK, AT_EACCESS)) \
	X(access_x, faccessat(AT_FDCWD, p, X_OK, AT_EACCESS)) \
	X(statfs, statfs(p, &sfs)) \
	X(readlink, readlink(p, buf, sizeof(buf))) \
	X(chdir, chdir(p)) /* the caller goes back */ \
	X(inotify, watch(p)) \
	X(open_r, done(open_as(p, O_RDONLY))) \
	X(open_w, done(open_as(p, O_WRONLY))) \
	X(open_rw, done(open_as(p, O_RDWR))) \
	X(open_append, done(open_as(p, O_WRONLY | O_APPEND))) \
	X(open_trunc, done(open_as(p, O_WRONLY | O_TRUNC))) \
	X(open_r_trunc, done(open_as(p, O_RDONLY | O_TRUNC))) \
	X(open_creat, done(open_as(p, O_RDWR | O_CREAT))) \
	X(open_creat_excl, done(open_as(p, O_RDWR | O_CREAT | O_EXCL))) \
	X(open_creat_trunc, done(open_as(p, O_RDWR | O_CREAT | O_TRUNC))) \
	X(open_creat_nofollow, done(open_as(p, O_RDWR | O_CREAT | O_NOFOLLOW))) \
	X(open_dir, done(open_as(p, O_RDONLY | O_DIRECTORY))) \
	X(open_nofollow, done(open_as(p, O_RDONLY | O_NOFOLLOW))) \
	X(open_path, done(open_as(p, O_PATH))) \
	X(open_path_nofollow, done(open_as(p, O_PATH | O_NOFOLLOW))) \
	X(open_noatime, done(open_as(p, O_RDONLY | O_NOATIME))) \
	X(open_direct, done(open_as(p, O_RDONLY | O_DIRECT))) \
	X(open_tmpfile, done(open_as(p, O_TMPFILE | O_RDWR))) \
	X(mkdir, mkdir(p, 0777)) \
	X(mkdir_7777, mkdir(p, 07777)) \
	X(mknod_fifo, mknod(p, S_IFIFO | 0644, 0)) \
	X(mknod_reg, mknod(p, S_IFREG | 06777, 0)) \
	X(mknod_chr, mknod(p, S_IFCHR | 0644, makedev(1, 7))) \
	X(mknod_dir, mknod(p, S_IFDIR | 0755, 0)) \
	X(bind, bind_to(p)) \
	X(symlink, symlink("target", p)) \
	X(symlink_4095, symlink(path_4095, p)) \
	X(symlink_4096, symlink(path_4096, p)) \
	X(symlink_empty, symlink("", p)) \
	X(rmdir, rmdir(p)) \
	X(unlink, unlink(p)) \
	X(truncate_0, truncate(p, 0)) \
	X(truncate_same, truncate(p, 10)) \
	X(truncate_up, truncate(p, 5000)) \
	X(truncate_negative, truncate(p, -1)) \
	X(chmod_0, chmod(p, 0)) \
	X(chmod_600, chmod(p, 0600)) \
	X(chmod_4755, chmod(p, 04755)) \
	X(chmod_2755, chmod(p, 02755)) \
	X(chmod_1777, chmod(p, 01777)) \
	X(chmod_7777, chmod(p, 07777)) \
	X(chown_user, chown(p, 1001, (gid_t)-1)) \
	X(lchown_user, lchown(p, 1001, (gid_t)-1)) \
	X(chown_group, chown(p, (uid_t)-1, GROUP)) \
	X(lchown_group, lchown(p, (uid_t)-1, GROUP)) \
	X(chown_owner, chown(p, 1000, 1000)) \
	X(lchown_owner, lchown(p, 1000, 1000)) \
	X(chown_nobody, chown(p, (uid_t)-1, (gid_t)-1)) \
	X(lchown_nobody, lchown(p, (uid_t)-1, (gid_t)-1)) \
	X(utimes_null, utimensat(AT_FDCWD, p, NULL, 0)) \
	X(utimes_set, utimes_to(p, 123456789, 999999999, 987654321, 1, 0)) \
	X(utimes_early, utimes_to(p, -1, 1, 0, 0, 0)) \
	X(utimes_now_omit, utimes_to(p, 0, UTIME_NOW, 0, UTIME_OMIT, 0)) \
	X(utimes_omit_set, utimes_to(p, 0, UTIME_OMIT, 5, 6, 0)) \
	X(utimes_omit, utimes_to(p, 0, UTIME_OMIT, 0, UTIME_OMIT, 0)) \
	X(utimes_bad, utimes_to(p, 0, 1000000000, 0, 0, 0)) \
	X(utimes_link, utimes_to(p, 5, 6, 7, 8, AT_SYMLINK_NOFOLLOW)) \
	X(xattr_set, setxattr(p, "user.x", "1", 1, 0)) \
	X(xattr_lset, lsetxattr(p, "user.x", "1", 1, XATTR_CREATE)) \
	X(xattr_trusted, lsetxattr(p, "trusted.x", "1", 1, 0)) \
	X(xattr_replace, setxattr(p, "user.none", "1", 1, XATTR_REPLACE)) \
	X(xattr_nameless, setxattr(p, "user.", "1", 1, 0)) \
	X(xattr_foreign, setxattr(p, "nonsense.x", "1", 1, 0)) \
	X(xattr_get, getxattr(p, "user.x", buf, sizeof(buf))) \
	X(xattr_remove, lremovexattr(p, "user.x")) \
	F(write, O_WRONLY, write(fd, "W", 1)) \
	F(write_append, O_WRONLY | O_APPEND, write(fd, "A", 1)) \
	F(write_nothing, O_WRONLY, write(fd, "", 0)) \
	F(write_r, O_RDONLY, write(fd, "W", 1)) \
	F(write_beyond, O_WRONLY, pwrite(fd, "W", 1, INT64_MAX)) \
	F(read, O_RDONLY, read(fd, buf, 9)) \
	F(read_w, O_WRONLY, read(fd, buf, 9)) \
	F(seek_negative, O_RDONLY, lseek(fd, -1, SEEK_SET)) \
	F(seek_data, O_RDWR, lseek(fd, 10, SEEK_DATA)) \
	F(ftruncate, O_RDWR, ftruncate(fd, 3)) \
	F(ftruncate_r, O_RDONLY, ftruncate(fd, 3)) \
	F(fchmod, O_RDONLY, fchmod(fd, 0640)) \
	F(fchmod_path, O_PATH, fchmod(fd, 0640)) \
	F(fchown, O_RDONLY, fchown(fd, (uid_t)-1, GROUP)) \
	F(fallocate, O_RDWR, fallocate(fd, 0, 0, 5000)) \
	F(fallocate_keep, O_RDWR, fallocate(fd, FALLOC_FL_KEEP_SIZE, 20, 5000)) \
	F(fallocate_0, O_RDWR, fallocate(fd, 0, 0, 0)) \
	F(fallocate_r, O_RDONLY, fallocate(fd, 0, 0, 5000)) \
	F(punch, O_RDWR, fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 2, 3)) \
	F(punch_no_keep, O_RDWR, fallocate(fd, FALLOC_FL_PUNCH_HOLE, 2, 3)) \
	F(fsync, O_RDONLY, fsync(fd)) \
	F(futimens, O_RDONLY, futimens(fd, NULL)) \
	F(fsetxattr, O_RDONLY, fsetxattr(fd, "user.f", "1", 1, 0)) \
	F(openat_in, O_RDONLY | O_DIRECTORY, done(openat(fd, "in", O_CREAT | O_WRONLY, 0666))) \
	F(mkdirat_in, O_PATH, mkdirat(fd, "made", 02755)) \
	F(link_descriptor, O_PATH | O_NOFOLLOW, \
	  linkat(fd, "", AT_FDCWD, "open/linked", AT_EMPTY_PATH))

#define PAIR_CALLS \
	X(link, link(p, q)) \
	X(link_follow, linkat(AT_FDCWD, p, AT_FDCWD, q, AT_SYMLINK_FOLLOW)) \
	X(rename, rename(p, q)) \
	X(rename_noreplace, renameat2(AT_FDCWD, p, AT_FDCWD, q, RENAME_NOREPLACE)) \
	X(rename_exchange, renameat2(AT_FDCWD, p, AT_FDCWD, q, RENAME_EXCHANGE)) \
	X(rename_whiteout, renameat2(AT_FDCWD, p, AT_FDCWD, q, RENAME_WHITEOUT))
/* clang-format on */

#define X(name, call)                         \
	static int call_##name(const char *p) \
	{                                     \
		return (int)(call);           \
	}
#define F(name, flags, call)                      \
	static int call_##name(const char *p)     \
	{                                         \
		int fd = open_as(p, flags), r, e; \
		if (fd < 0)                       \
			return -1;                \
		r = (int)(call);                  \
		e = errno;                        \
		close(fd);                        \
		errno = e;                        \
		return r;                         \
	}
CALLS
#undef X
#define X(name, call)                                        \
	static int pair_##name(const char *p, const char *q) \
	{                                                    \
		return (int)(call);                          \
	}
PAIR_CALLS
#undef X
#undef F

#define X(name, call) { #name, call_##name },
#define F(name, flags, call) X(name, call)
const struct call calls[] = { CALLS };
#undef X
#define X(name, call) { #name, pair_##name },
const struct pair_call pair_calls[] = { PAIR_CALLS };

const size_t n_calls = sizeof(calls) / sizeof(*calls);
const size_t n_pair_calls = sizeof(pair_calls) / sizeof(*pair_calls);
