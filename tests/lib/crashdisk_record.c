/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Stands in for the C library's functions that change files: the linker prefers a program's own
 * over a shared library's, for calls of shared libraries as well (LMDB's). Their names with 64 at
 * the end are the same functions.
 *
 * Mapped pages may reach the disk at any moment, and nobody is told when they change. So they are
 * compared with what they were at each sync, name and event, and what differs is recorded as
 * written in between.
 */

#include "tests/lib/crashdisk_record.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "tests/lib/crashdisk.h"

#define RECORD_BYTES ((size_t)1 << 30) /* address space; as much is used as is recorded */
#define MAPS_MAX 16

static struct record *sh;
static char ignored_name[NAME_BYTES_MAX];
static bool active, recording; /* there is a record; this process writes it */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t fail_file; /* these under lock: disk_fail */
static unsigned fail_one_in;
static uint64_t fail_seed;

static struct known {
	dev_t dev;
	ino_t ino;
	uint32_t file;
} known[FILES_MAX];
static size_t n_known;

static struct map {
	uint8_t *at, *was;
	size_t len;
	uint32_t file;
} maps[MAPS_MAX];

static uint32_t file_of(const struct stat *st)
{
	for (size_t i = n_known; i-- > 0;)
		if (known[i].ino == st->st_ino && known[i].dev == st->st_dev)
			return known[i].file;
	return UINT32_MAX;
}

/* UINT32_MAX: not below the directory that is watched. */
static uint32_t file_of_fd(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 ? file_of(&st) : UINT32_MAX;
}

uint32_t record_file(const struct stat *st)
{
	assert(n_known < FILES_MAX && sh->files < FILES_MAX);
	known[n_known++] =
		(struct known){ .dev = st->st_dev, .ino = st->st_ino, .file = sh->files };
	return sh->files++;
}

static void put(const struct rec *rec, const void *data)
{
	size_t len = data ? (rec->len + 7) & ~(size_t)7 : 0;

	if (sizeof(*rec) + len > RECORD_BYTES - sizeof(*sh) - sh->used) {
		sh->overflow = true;
		return;
	}
	memcpy(sh->bytes + sh->used, rec, sizeof(*rec));
	if (data)
		memcpy(sh->bytes + sh->used + sizeof(*rec), data, rec->len);
	sh->used += sizeof(*rec) + len;
}

static void sample_map(struct map *m)
{
	for (size_t at = 0, end; at < m->len; at = end) {
		end = at + 64 * SECTOR < m->len ? at + 64 * SECTOR : m->len;
		if (memcmp(m->at + at, m->was + at, end - at) == 0)
			continue;
		for (size_t s = at; s < end; s += SECTOR) {
			struct rec rec = { .kind = WRITE, .file = m->file };

			rec.off = s;
			rec.len = SECTOR;
			if (memcmp(m->at + s, m->was + s, SECTOR) == 0)
				continue;
			memcpy(m->was + s, m->at + s, SECTOR);
			put(&rec, m->was + s);
		}
	}
}

static void sample(void)
{
	for (size_t i = 0; i < MAPS_MAX; i++)
		if (maps[i].at)
			sample_map(&maps[i]);
}

/* The directory that a path's last part is in, and that part. */
static uint32_t parent_of(int dir_fd, const char *path, const char **ret_name)
{
	const char *slash = strrchr(path, '/');
	char dir[PATH_MAX] = ".";
	struct stat st;

	*ret_name = slash ? slash + 1 : path;
	if (slash)
		snprintf(dir, sizeof(dir), "%.*s", (int)(slash - path), path);
	if (fstatat(dir_fd, dir, &st, 0) < 0)
		return UINT32_MAX;
	return file_of(&st);
}

bool record_ignores(const char *name)
{
	return strcmp(name, ignored_name) == 0;
}

static void put_name(enum kind kind, uint32_t dir, uint32_t file, bool is_dir, const char *name,
		     const char *to)
{
	struct rec rec = { .kind = kind, .file = dir, .moved = file, .is_dir = is_dir };

	assert(strlen(name) < NAME_BYTES_MAX && strlen(to) < NAME_BYTES_MAX);
	strcpy(rec.name, name);
	strcpy(rec.to, to);
	sample();
	put(&rec, NULL);
}

/* ---- what stands in for the C library ---- */

#define SEEN_BY_ALL __attribute__((visibility("default")))
#define STANDS_FOR(name, type, ...)                                                                \
	SEEN_BY_ALL type own_##name(__VA_ARGS__) __asm__(#name);                                   \
	type own_##name(__VA_ARGS__)
#define ALSO(name, as, type, ...)                                                                  \
	SEEN_BY_ALL type own_##as(__VA_ARGS__) __asm__(#as) __attribute__((alias(#name)))

STANDS_FOR(openat, int, int dir_fd, const char *path, int flags, ...)
{
	struct stat st, now;
	uint32_t dir, file;
	const char *name;
	mode_t mode = 0;
	bool was;
	va_list ap;
	int fd;

	if (flags & (O_CREAT | __O_TMPFILE)) {
		va_start(ap, flags);
		mode = va_arg(ap, mode_t);
		va_end(ap);
	}
	if (!recording || !(flags & (O_CREAT | O_TRUNC)))
		return (int)syscall(SYS_openat, dir_fd, path, flags, mode);

	pthread_mutex_lock(&lock);
	was = fstatat(dir_fd, path, &st, AT_SYMLINK_NOFOLLOW) == 0;
	fd = (int)syscall(SYS_openat, dir_fd, path, flags, mode);
	dir = fd < 0 ? UINT32_MAX : parent_of(dir_fd, path, &name);
	if (dir != UINT32_MAX && !record_ignores(name) && fstat(fd, &now) == 0) {
		if (!was) {
			file = record_file(&now);
			put_name(LINK, dir, file, false, name, "");
		} else if (flags & O_TRUNC && st.st_size > 0) {
			put(&(struct rec){ .kind = SIZE, .file = file_of(&st) }, NULL);
		}
	}
	pthread_mutex_unlock(&lock);
	return fd;
}
ALSO(openat, openat64, int, int dir_fd, const char *path, int flags, ...);

STANDS_FOR(open, int, const char *path, int flags, ...)
{
	mode_t mode = 0;
	va_list ap;

	if (flags & (O_CREAT | __O_TMPFILE)) {
		va_start(ap, flags);
		mode = va_arg(ap, mode_t);
		va_end(ap);
	}
	return own_openat(AT_FDCWD, path, flags, mode);
}
ALSO(open, open64, int, const char *path, int flags, ...);

STANDS_FOR(mkdirat, int, int dir_fd, const char *path, mode_t mode)
{
	const char *name;
	struct stat st;
	uint32_t dir;
	int r;

	pthread_mutex_lock(&lock);
	r = (int)syscall(SYS_mkdirat, dir_fd, path, mode);
	if (r == 0 && recording) {
		dir = parent_of(dir_fd, path, &name);
		if (dir != UINT32_MAX && fstatat(dir_fd, path, &st, 0) == 0)
			put_name(LINK, dir, record_file(&st), true, name, "");
	}
	pthread_mutex_unlock(&lock);
	return r;
}

STANDS_FOR(unlinkat, int, int dir_fd, const char *path, int flags)
{
	const char *name;
	struct stat st;
	uint32_t dir;
	int r;

	pthread_mutex_lock(&lock);
	if (recording && fstatat(dir_fd, path, &st, AT_SYMLINK_NOFOLLOW) < 0)
		memset(&st, 0, sizeof(st));
	r = (int)syscall(SYS_unlinkat, dir_fd, path, flags);
	if (r == 0 && recording) {
		dir = parent_of(dir_fd, path, &name);
		if (dir != UINT32_MAX && !record_ignores(name))
			put_name(UNLINK, dir, file_of(&st), false, name, "");
	}
	pthread_mutex_unlock(&lock);
	return r;
}

STANDS_FOR(renameat, int, int from_fd, const char *from, int to_fd, const char *to)
{
	const char *name, *new_name;
	struct stat st;
	uint32_t dir;
	int r;

	pthread_mutex_lock(&lock);
	r = (int)syscall(SYS_renameat, from_fd, from, to_fd, to);
	if (r == 0 && recording) {
		dir = parent_of(from_fd, from, &name);
		if (dir != UINT32_MAX && fstatat(to_fd, to, &st, AT_SYMLINK_NOFOLLOW) == 0) {
			if (parent_of(to_fd, to, &new_name) != dir)
				abort(); /* a record has one directory */
			put_name(RENAME, dir, file_of(&st), false, name, new_name);
		}
	}
	pthread_mutex_unlock(&lock);
	return r;
}

/* Under the lock: is this one to fail? */
static bool fails(int fd)
{
	if (!fail_one_in || file_of_fd(fd) != fail_file)
		return false;
	fail_seed = fail_seed * UINT64_C(6364136223846793005) + 1442695040888963407;
	return (fail_seed >> 33) % fail_one_in == 0;
}

/* Under the lock: it does. */
static int put_failure(void)
{
	sample();
	put(&(struct rec){ .kind = LOST, .file = fail_file }, NULL);
	errno = EIO;
	return -1;
}

/* Under the lock: bytes that were written. */
static void put_write(int fd, const void *data, ssize_t n, off_t off, bool fail)
{
	struct rec rec = { .kind = WRITE, .off = (uint64_t)off, .len = (uint64_t)n };

	rec.file = n > 0 ? file_of_fd(fd) : UINT32_MAX;
	if (rec.file == UINT32_MAX)
		return;
	if (!fail && fcntl(fd, F_GETFL) & O_DSYNC) {
		rec.kind = DSYNC_WRITE;
		sample();
	}
	put(&rec, data);
}

STANDS_FOR(pwrite, ssize_t, int fd, const void *data, size_t len, off_t off)
{
	ssize_t n;
	bool fail;

	if (!recording)
		return syscall(SYS_pwrite64, fd, data, len, off);
	pthread_mutex_lock(&lock);
	fail = fails(fd);
	n = syscall(SYS_pwrite64, fd, data, len, off);
	put_write(fd, data, n, off, fail);
	if (fail)
		n = put_failure();
	pthread_mutex_unlock(&lock);
	return n;
}
ALSO(pwrite, pwrite64, ssize_t, int fd, const void *data, size_t len, off_t off);

/* As LMDB uses it, after an lseek: each piece for itself, so that each is torn for itself. */
STANDS_FOR(writev, ssize_t, int fd, const struct iovec *iov, int count)
{
	ssize_t n, left;
	off_t off;

	if (!recording)
		return syscall(SYS_writev, fd, iov, count);
	pthread_mutex_lock(&lock);
	off = lseek(fd, 0, SEEK_CUR);
	n = left = syscall(SYS_writev, fd, iov, count);
	for (int i = 0; i < count && left > 0 && off >= 0; i++) {
		ssize_t piece = (ssize_t)iov[i].iov_len < left ? (ssize_t)iov[i].iov_len : left;

		put_write(fd, iov[i].iov_base, piece, off, false);
		off += piece;
		left -= piece;
	}
	if (fails(fd))
		n = put_failure();
	pthread_mutex_unlock(&lock);
	return n;
}

/* A change without bytes. */
static long change(enum kind kind, int fd, uint64_t off, uint64_t len, long r)
{
	uint32_t file = r == 0 ? file_of_fd(fd) : UINT32_MAX;

	if (file != UINT32_MAX)
		put(&(struct rec){ .kind = kind, .file = file, .off = off, .len = len }, NULL);
	return r;
}

STANDS_FOR(ftruncate, int, int fd, off_t size)
{
	long r;

	pthread_mutex_lock(&lock);
	r = syscall(SYS_ftruncate, fd, size);
	if (recording)
		change(SIZE, fd, 0, (uint64_t)size, r);
	pthread_mutex_unlock(&lock);
	return (int)r;
}
ALSO(ftruncate, ftruncate64, int, int fd, off_t size);

STANDS_FOR(fallocate, int, int fd, int mode, off_t off, off_t len)
{
	long r;

	pthread_mutex_lock(&lock);
	r = syscall(SYS_fallocate, fd, mode, off, len);
	if (recording && mode != 0) {
		assert(mode == (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE));
		change(ZERO, fd, (uint64_t)off, (uint64_t)len, r);
	} else if (recording) {
		change(GROW, fd, 0, (uint64_t)(off + len), r);
	}
	pthread_mutex_unlock(&lock);
	return (int)r;
}
ALSO(fallocate, fallocate64, int, int fd, int mode, off_t off, off_t len);

STANDS_FOR(posix_fallocate, int, int fd, off_t off, off_t len)
{
	return own_fallocate(fd, 0, off, len) < 0 ? errno : 0;
}
ALSO(posix_fallocate, posix_fallocate64, int, int fd, off_t off, off_t len);

STANDS_FOR(fsync, int, int fd)
{
	uint32_t file;
	int r = 0;

	if (!active)
		return (int)syscall(SYS_fsync, fd);
	pthread_mutex_lock(&lock);
	file = recording ? file_of_fd(fd) : UINT32_MAX;
	if (file != UINT32_MAX && fails(fd)) {
		r = put_failure();
	} else if (file != UINT32_MAX) {
		sample();
		put(&(struct rec){ .kind = SYNC, .file = file }, NULL);
	}
	pthread_mutex_unlock(&lock);
	return r;
}

STANDS_FOR(fdatasync, int, int fd)
{
	return own_fsync(fd);
}

STANDS_FOR(mmap, void *, void *addr, size_t len, int prot, int flags, int fd, off_t off)
{
	void *p = (void *)syscall(SYS_mmap, addr, len, prot, flags, fd, off);
	uint32_t file;
	size_t i = 0;

	if (!recording || p == MAP_FAILED || !(flags & MAP_SHARED) || !(prot & PROT_WRITE) ||
	    fd < 0)
		return p;
	pthread_mutex_lock(&lock);
	file = file_of_fd(fd);
	if (file != UINT32_MAX) {
		for (; maps[i].at; i++)
			assert(i + 1 < MAPS_MAX);
		assert(off == 0);
		len = (len + SECTOR - 1) / SECTOR * SECTOR;
		maps[i] = (struct map){ .at = p, .len = len, .file = file, .was = malloc(len) };
		assert(maps[i].was);
		memcpy(maps[i].was, p, len);
	}
	pthread_mutex_unlock(&lock);
	return p;
}
ALSO(mmap, mmap64, void *, void *addr, size_t len, int prot, int flags, int fd, off_t off);

STANDS_FOR(munmap, int, void *addr, size_t len)
{
	if (recording) {
		pthread_mutex_lock(&lock);
		for (size_t i = 0; i < MAPS_MAX; i++)
			if (maps[i].at == addr) {
				sample_map(&maps[i]);
				free(maps[i].was);
				maps[i] = (struct map){ 0 };
			}
		pthread_mutex_unlock(&lock);
	}
	return (int)syscall(SYS_munmap, addr, len);
}

void disk_record(void)
{
	recording = true;
}

void disk_fail(const char *path, unsigned one_in, uint64_t seed)
{
	struct stat st;

	pthread_mutex_lock(&lock);
	if (fstatat(AT_FDCWD, path, &st, 0) < 0)
		abort();
	fail_file = file_of(&st);
	fail_one_in = one_in;
	fail_seed = seed;
	pthread_mutex_unlock(&lock);
}

void disk_end(void)
{
	pthread_mutex_lock(&lock); /* for good: no other thread changes anything any more */
	sample();
	recording = false;
}

void disk_event(uint32_t kind, uint32_t value)
{
	pthread_mutex_lock(&lock);
	if (value % 4 == 0)
		sample();
	put(&(struct rec){ .kind = EVENT, .off = kind, .len = value }, NULL);
	pthread_mutex_unlock(&lock);
}

bool disk_is_full(void)
{
	return sh->used > RECORD_BYTES / 4;
}

struct record *record_new(const char *ignored)
{
	snprintf(ignored_name, sizeof(ignored_name), "%s", ignored);
	sh = (void *)syscall(SYS_mmap, NULL, RECORD_BYTES, PROT_READ | PROT_WRITE,
			     MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0L);
	if (sh == MAP_FAILED)
		abort();
	active = true;
	return sh;
}

void record_free(void)
{
	syscall(SYS_munmap, sh, RECORD_BYTES);
	sh = NULL;
	n_known = 0;
	active = false;
}
