/* SPDX-License-Identifier: Apache-2.0 */
#include "store/base/os.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <malloc.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/quota.h>
#include <sys/random.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "store/base/err.h"
#include "store/base/fault.h"
#include "store/base/util.h"

/*
 * Every function ticks the fault counter once, before it does anything, so an injected failure
 * never leaves half an effect behind; half effects come from the file layers below (a full tmpfs).
 */

#define TICK()                                                                                     \
	do {                                                                                       \
		int tick_ = fault_tick();                                                          \
		if (tick_ < 0)                                                                     \
			return tick_;                                                              \
	} while (0)

#define RETRY(call)                                                                                \
	({                                                                                         \
		__typeof__(call) v_;                                                               \
		do                                                                                 \
			v_ = (call);                                                               \
		while (v_ < 0 && errno == EINTR);                                                  \
		v_;                                                                                \
	})

/* Does len bytes at off stay within what the kernel takes as a file position? */
static bool range_ok(uint64_t off, uint64_t len)
{
	return len <= INT64_MAX && off <= INT64_MAX - len;
}

/* The file that this thread's last failure was about, and the failure. */
static _Thread_local char failed_path[PATH_MAX];
static _Thread_local int failed_error;

int os_failed_at(int dir_fd, const char *path, int r)
{
	char link[64];
	ssize_t n;

	/* What is not there is looked for all the time, and who has a lock is no failure. */
	if (r >= 0 || r == -ENOENT || r == -EWOULDBLOCK)
		return r;
	(void)snprintf(link, sizeof(link), "/proc/self/fd/%d", dir_fd);
	n = readlink(link, failed_path, sizeof(failed_path) - 1);
	failed_error = n > 0 ? r : 0;
	failed_path[MAX(n, 0)] = 0;
	if (n > 0 && path && strcmp(path, ".") != 0)
		(void)snprintf(failed_path + n, sizeof(failed_path) - (size_t)n, "/%s", path);
	return r;
}

const char *os_failed_file(const char *top, int r)
{
	size_t n = strlen(top);

	if (r >= 0 || r != failed_error || strncmp(failed_path, top, n) != 0)
		return NULL;
	return failed_path[n] == '/' ? failed_path + n + 1 : NULL;
}

void os_failed_forget(void)
{
	failed_error = 0;
}

static int failed(int fd)
{
	return os_failed_at(fd, NULL, -errno);
}

static int failed_at(int dir_fd, const char *path)
{
	return os_failed_at(dir_fd, path, -errno);
}

int os_openat(int dir_fd, const char *path, int flags, unsigned mode, int *ret_fd)
{
	int fd;

	TICK();
	fd = RETRY(openat(dir_fd, path, flags | O_CLOEXEC | O_NONBLOCK, (mode_t)mode));
	if (fd < 0)
		return failed_at(dir_fd, path);
	*ret_fd = fd;
	return 0;
}

int os_mkdirat(int dir_fd, const char *path, unsigned mode)
{
	TICK();
	return mkdirat(dir_fd, path, (mode_t)mode) < 0 ? failed_at(dir_fd, path) : 0;
}

int os_unlinkat(int dir_fd, const char *path, int flags)
{
	TICK();
	return unlinkat(dir_fd, path, flags) < 0 ? failed_at(dir_fd, path) : 0;
}

int os_renameat(int dir_fd, const char *from, const char *to)
{
	TICK();
	return renameat(dir_fd, from, dir_fd, to) < 0 ? failed_at(dir_fd, to) : 0;
}

int os_linkat(int dir_fd, const char *from, const char *to)
{
	TICK();
	return linkat(dir_fd, from, dir_fd, to, 0) < 0 ? failed_at(dir_fd, to) : 0;
}

int os_symlinkat(const char *target, int dir_fd, const char *path)
{
	TICK();
	return RETRY(symlinkat(target, dir_fd, path)) < 0 ? failed_at(dir_fd, path) : 0;
}

int os_fstat(int fd, struct stat *ret)
{
	TICK();
	return fstat(fd, ret) < 0 ? failed(fd) : 0;
}

int os_statat(int dir_fd, const char *path, struct stat *ret)
{
	TICK();
	return fstatat(dir_fd, path, ret, AT_SYMLINK_NOFOLLOW) < 0 ? failed_at(dir_fd, path) : 0;
}

static void closedirp(DIR **d)
{
	if (*d)
		(void)closedir(*d); /* it was only read */
}

int os_each_name(int dir_fd, const char *path, int (*fn)(void *arg, const char *name), void *arg)
{
	_cleanup_(closedirp) DIR *dir = NULL;
	_cleanup_close_ int fd = -1;
	struct dirent *entry;
	int r;

	r = os_openat(dir_fd, path, O_RDONLY | O_DIRECTORY, 0, &fd);
	if (r < 0)
		return r;

	dir = fdopendir(fd);
	if (!dir)
		return -errno;
	fd = -1; /* the stream closes it */

	for (;;) {
		errno = 0;
		entry = readdir(dir);
		if (!entry)
			return -errno;
		if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
			continue;
		r = fn(arg, entry->d_name);
		if (r != 0)
			return r;
	}
}

int os_pread_full(int fd, void *buf, size_t len, uint64_t off)
{
	uint8_t *p = buf;
	int r;

	TICK();
	if (!range_ok(off, len))
		return -EINVAL;
	r = fault_read(fd, off, len);
	if (r < 0)
		return r;
	while (len > 0) {
		ssize_t n = RETRY(pread(fd, p, len, (off_t)off));

		if (n < 0)
			return failed(fd);
		if (n == 0)
			return END;
		p += n;
		off += (uint64_t)n;
		len -= (size_t)n;
	}
	return 0;
}

int os_pread_cached(int fd, void *buf, size_t len, uint64_t off)
{
	const struct iovec iov = { .iov_base = buf, .iov_len = len };
	ssize_t n;

	TICK();
	if (!range_ok(off, len))
		return -EINVAL;
	/*
	 * Where a filesystem cannot (EOPNOTSUPP), the plain read that follows says what is wrong.
	 */
	n = RETRY(preadv2(fd, &iov, 1, (off_t)off, RWF_NOWAIT));
	return n == (ssize_t)len ? 0 : AGAIN;
}

int os_pwrite_full(int fd, const void *buf, size_t len, uint64_t off)
{
	const uint8_t *p = buf;

	TICK();
	if (!range_ok(off, len))
		return -EFBIG;
	while (len > 0) {
		ssize_t n = RETRY(pwrite(fd, p, len, (off_t)off));

		if (n < 0)
			return failed(fd);
		if (n == 0)
			return -EIO; /* a regular file never answers so; do not spin */
		p += n;
		off += (uint64_t)n;
		len -= (size_t)n;
	}
	return 0;
}

int os_ftruncate(int fd, uint64_t size)
{
	TICK();
	if (!range_ok(size, 0))
		return -EFBIG;
	return RETRY(ftruncate(fd, (off_t)size)) < 0 ? failed(fd) : 0;
}

int os_punch_hole(int fd, uint64_t off, uint64_t len)
{
	TICK();
	if (!range_ok(off, len))
		return -EINVAL;
	if (!fault_holes())
		return -EOPNOTSUPP;
	return RETRY(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)off,
			       (off_t)len)) < 0 ? -errno : 0;
}

int os_allocate(int fd, uint64_t size)
{
	int r;

	TICK();
	if (!range_ok(size, 0))
		return -EFBIG;
	do
		r = posix_fallocate(fd, 0, (off_t)size);
	while (r == EINTR);
	return os_failed_at(fd, NULL, -r);
}

int os_map(int fd, size_t len, void **ret)
{
	void *p;

	TICK();
	p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		return failed(fd);
	*ret = p;
	return 0;
}

void os_unmap(void *p, size_t len)
{
	if (p)
		(void)munmap(p, len); /* of a whole mapping: cannot fail */
}

int os_memory_file(const char *what, int *ret_fd)
{
	int fd;

	TICK();
	fd = memfd_create(what, MFD_CLOEXEC);
	if (fd < 0)
		return -errno;
	*ret_fd = fd;
	return 0;
}

enum os_overwrites os_overwrites(int fd)
{
	struct statfs st;

	if (RETRY(fstatfs(fd, &st)) < 0)
		return OS_ELSEWHERE;
	switch (st.f_type) {
	case EXT4_SUPER_MAGIC: /* ext2 and ext3 as well */
	case TMPFS_MAGIC:
		return OS_IN_PLACE;
	case XFS_SUPER_MAGIC:
		return OS_ELSEWHERE_IF_SHARED;
	default:
		return OS_ELSEWHERE;
	}
}

bool os_is_fuse(int fd)
{
	struct statfs st;

	return RETRY(fstatfs(fd, &st)) == 0 && st.f_type == FUSE_SUPER_MAGIC;
}

/* No tick: tests count calls, and whether this is one depends on the filesystem. */
static int populate(const void *p, size_t len, int advice)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)p & ~(page - 1);

	return (int)RETRY(madvise((void *)from, (uintptr_t)p + len - from, advice));
}

void os_map_here_and_there(void *p, size_t len)
{
	(void)madvise(p, len, MADV_RANDOM); /* else more is read */
}

int os_make_readable(const void *p, size_t len)
{
	(void)populate(p, len, MADV_WILLNEED); /* at once, which a fault does not: page by page */
	return populate(p, len, MADV_POPULATE_READ) < 0 ? -errno : 0;
}

int os_make_writable(void *p, size_t len)
{
	if (populate(p, len, MADV_POPULATE_WRITE) == 0)
		return 0;
	switch (errno) {
	case EFAULT:
		return -ENOSPC;
	case EINVAL: /* before Linux 5.14 */
		return 0;
	default:
		return -errno;
	}
}

int os_fdatasync(int fd)
{
	TICK();
	return RETRY(fdatasync(fd)) < 0 ? failed(fd) : 0;
}

int os_fsync(int fd)
{
	TICK();
	return RETRY(fsync(fd)) < 0 ? failed(fd) : 0;
}

int os_syncfs(int fd)
{
	TICK();
	return RETRY(syncfs(fd)) < 0 ? failed(fd) : 0;
}

int os_lock(int fd)
{
	TICK();
	return RETRY(flock(fd, LOCK_EX | LOCK_NB)) < 0 ? failed(fd) : 0;
}

int os_lock_shared(int fd)
{
	TICK();
	return RETRY(flock(fd, LOCK_SH | LOCK_NB)) < 0 ? failed(fd) : 0;
}

int os_touch(int fd)
{
	TICK();
	return RETRY(futimens(fd, NULL)) < 0 ? -errno : 0;
}

/*
 * What a quota leaves to a user or group: statfs knows only those of whole directories. Where there
 * is none, or the kernel is too old to be asked (5.14) or does not answer us: all there is. So for
 * root and its group, whom none holds: what xfs says of 0 is what all others have by default.
 */
static uint64_t quota_left(int fd, int type, unsigned id)
{
	struct dqblk q;
	uint64_t limit;

	if (id == 0 || syscall(SYS_quotactl_fd, fd, QCMD((unsigned)Q_GETQUOTA, type), id, &q) < 0)
		return UINT64_MAX;
	limit = q.dqb_bhardlimit;
	if (q.dqb_bsoftlimit && q.dqb_btime && (int64_t)q.dqb_btime <= (int64_t)time(NULL))
		limit = q.dqb_bsoftlimit; /* its grace is over */
	if (limit == 0 || __builtin_mul_overflow(limit, 1024, &limit)) /* whatever the blocks are */
		return UINT64_MAX;
	return limit - MIN(limit, q.dqb_curspace);
}

int os_free_bytes(int fd, uint64_t *ret_bytes)
{
	struct statvfs st;
	uint64_t left;

	TICK();
	if (RETRY(fstatvfs(fd, &st)) < 0)
		return -errno;
	left = MIN(quota_left(fd, USRQUOTA, geteuid()), quota_left(fd, GRPQUOTA, getegid()));
	if (__builtin_mul_overflow((uint64_t)st.f_bavail, (uint64_t)st.f_frsize, ret_bytes))
		*ret_bytes = UINT64_MAX;
	*ret_bytes = MIN(*ret_bytes, left);
	return 0;
}

int64_t os_now_ns(void)
{
	struct timespec ts;

	(void)clock_gettime(CLOCK_REALTIME, &ts); /* cannot fail for this clock */
	return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

int os_random(void *buf, size_t len)
{
	uint8_t *p = buf;

	TICK();
	while (len > 0) {
		ssize_t n = RETRY(getrandom(p, len, 0));

		if (n < 0)
			return -errno;
		p += n;
		len -= (size_t)n;
	}
	return 0;
}

void *os_malloc(size_t size)
{
	return fault_tick() < 0 ? NULL : malloc(size);
}

void *os_calloc(size_t n, size_t size)
{
	return fault_tick() < 0 ? NULL : calloc(n, size);
}

void *os_realloc(void *p, size_t size)
{
	return fault_tick() < 0 ? NULL : realloc(p, size);
}

int os_grow_to(void *array, size_t *cap, size_t want, size_t size)
{
	size_t n = *cap ? *cap : 16;
	void *p;

	while (n < want)
		n *= 2;
	p = os_realloc(*(void **)array, n * size);
	if (!p)
		return -ENOMEM;
	*(void **)array = p;
	*cap = n;
	return 0;
}

void os_trim(void)
{
	(void)malloc_trim(0); /* says only whether there was anything */
}
