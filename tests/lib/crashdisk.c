/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The recording half stands in for the C library's functions: the linker prefers a program's own
 * over a shared library's, for calls of shared libraries as well (LMDB's). Their names with 64 at
 * the end are the same functions.
 *
 * Mapped pages may reach the disk at any moment, and nobody is told when they change. So they are
 * compared with what they were at each sync, name and event, and what differs is recorded as
 * written in between.
 *
 * The record lies in memory that parent and child share: entries one behind the other.
 */

#include "tests/lib/crashdisk.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define SECTOR 512u
#define NAME_BYTES_MAX 32 /* names in a store are short */
#define RECORD_BYTES ((size_t)1 << 30) /* address space; as much is used as is recorded */
#define FILES_MAX 4096
#define MAPS_MAX 16

enum kind { WRITE, DSYNC_WRITE, ZERO, SIZE, GROW, SYNC, LINK, UNLINK, RENAME, EVENT };

struct rec {
	uint32_t kind, file; /* the file; the directory for names */
	uint64_t off, len;   /* EVENT: kind and value; SIZE, GROW: len */
	uint32_t moved;      /* names: the file that is meant */
	bool is_dir;
	char name[NAME_BYTES_MAX], to[NAME_BYTES_MAX];
	/* then `len` bytes of a write, padded to 8 */
};

struct shared {
	size_t used;
	uint32_t files; /* numbers given out */
	bool overflow;
	_Alignas(8) uint8_t bytes[];
};

struct entry {
	char name[NAME_BYTES_MAX];
	uint32_t file;
};

struct file {
	bool is_dir;
	uint8_t *bytes; /* durable; zero from size to cap */
	size_t size, cap;
	struct entry *entries; /* of a directory, durable */
	size_t n_entries;
	size_t *pending; /* entries of the record */
	size_t n_pending, cap_pending;
};

static struct shared *sh;
static char root_path[PATH_MAX], ignored_name[NAME_BYTES_MAX];
static bool active, recording;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- recording ---- */

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

static uint32_t file_new(const struct stat *st)
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

static bool is_ignored(const char *name)
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
	if (dir != UINT32_MAX && !is_ignored(name) && fstat(fd, &now) == 0) {
		if (!was) {
			file = file_new(&now);
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
			put_name(LINK, dir, file_new(&st), true, name, "");
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
		if (dir != UINT32_MAX && !is_ignored(name))
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
			assert(parent_of(to_fd, to, &new_name) == dir);
			put_name(RENAME, dir, file_of(&st), false, name, new_name);
		}
	}
	pthread_mutex_unlock(&lock);
	return r;
}

/* Under the lock: bytes that were written. */
static void put_write(int fd, const void *data, ssize_t n, off_t off)
{
	struct rec rec = { .kind = WRITE, .off = (uint64_t)off, .len = (uint64_t)n };

	rec.file = n > 0 ? file_of_fd(fd) : UINT32_MAX;
	if (rec.file == UINT32_MAX)
		return;
	if (fcntl(fd, F_GETFL) & O_DSYNC) {
		rec.kind = DSYNC_WRITE;
		sample();
	}
	put(&rec, data);
}

STANDS_FOR(pwrite, ssize_t, int fd, const void *data, size_t len, off_t off)
{
	ssize_t n;

	if (!recording)
		return syscall(SYS_pwrite64, fd, data, len, off);
	pthread_mutex_lock(&lock);
	n = syscall(SYS_pwrite64, fd, data, len, off);
	put_write(fd, data, n, off);
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

		put_write(fd, iov[i].iov_base, piece, off);
		off += piece;
		left -= piece;
	}
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

	if (!active)
		return (int)syscall(SYS_fsync, fd);
	pthread_mutex_lock(&lock);
	file = recording ? file_of_fd(fd) : UINT32_MAX;
	if (file != UINT32_MAX) {
		sample();
		put(&(struct rec){ .kind = SYNC, .file = file }, NULL);
	}
	pthread_mutex_unlock(&lock);
	return 0;
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
		while (maps[i].at)
			assert(++i < MAPS_MAX);
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

/* ---- playing: the durable state, and what is pending behind it ---- */

static struct file files[FILES_MAX];
static size_t *offsets; /* of the record's entries */
static size_t n_offsets, position;

static const struct rec *rec_at(size_t i)
{
	return (const void *)(sh->bytes + offsets[i]);
}

static const uint8_t *bytes_at(size_t i)
{
	return sh->bytes + offsets[i] + sizeof(struct rec);
}

static void *must(void *p)
{
	if (!p)
		abort();
	return p;
}

static void file_room(struct file *f, size_t cap)
{
	if (cap <= f->cap)
		return;
	cap = (cap + 65535) / 65536 * 65536;
	f->bytes = must(realloc(f->bytes, cap));
	memset(f->bytes + f->cap, 0, cap - f->cap);
	f->cap = cap;
}

static void set_entry(struct file *dir, const char *name, uint32_t file)
{
	size_t i = 0;

	while (i < dir->n_entries && strcmp(dir->entries[i].name, name) != 0)
		i++;
	if (file == UINT32_MAX) {
		if (i < dir->n_entries)
			dir->entries[i] = dir->entries[--dir->n_entries];
		return;
	}
	if (i == dir->n_entries) {
		dir->entries = must(realloc(dir->entries, (i + 1) * sizeof(*dir->entries)));
		strcpy(dir->entries[i].name, name);
		dir->n_entries++;
	}
	dir->entries[i].file = file;
}

static void apply_name(struct file *dir, const struct rec *rec)
{
	set_entry(dir, rec->name, rec->kind == LINK ? rec->moved : UINT32_MAX);
	if (rec->kind == RENAME)
		set_entry(dir, rec->to, rec->moved);
}

/* The size after an entry. */
static size_t size_after(const struct rec *rec, size_t size)
{
	switch (rec->kind) {
	case WRITE:
	case DSYNC_WRITE:
		return rec->off + rec->len > size ? rec->off + rec->len : size;
	case GROW:
		return rec->len > size ? rec->len : size;
	case SIZE:
		return rec->len;
	default:
		return size;
	}
}

/* How many of a file's pending entries each sector has seen. */
struct choice {
	const struct file *file;
	uint32_t *seen; /* by sector */
	uint32_t size_seen;
	size_t sectors, size;
};

/*
 * Applies entry i, the n-th pending one, to the sectors that have seen it. A size that shrinks
 * zeroes what it cuts off, for whoever makes it grow again.
 */
static void apply(uint8_t *bytes, size_t i, uint32_t n, const struct choice *c)
{
	const struct rec *rec = rec_at(i);
	uint64_t at = rec->off, end = rec->off + rec->len;

	if (rec->kind == GROW)
		return;
	if (rec->kind == SIZE) {
		at = rec->len;
		end = (uint64_t)c->sectors * SECTOR;
	}
	while (at < end) {
		uint64_t next = (at / SECTOR + 1) * SECTOR;

		if (next > end)
			next = end;
		if (n < c->seen[at / SECTOR]) {
			if (rec->kind == WRITE || rec->kind == DSYNC_WRITE)
				memcpy(bytes + at, bytes_at(i) + (at - rec->off), next - at);
			else
				memset(bytes + at, 0, next - at);
		}
		at = next;
	}
}

/* Everything pending is durable. */
static void settle(struct file *f)
{
	for (size_t n = 0; n < f->n_pending; n++) {
		const struct rec *rec = rec_at(f->pending[n]);
		size_t size;

		if (f->is_dir) {
			apply_name(f, rec);
			continue;
		}
		size = size_after(rec, f->size);
		file_room(f, size);
		if (rec->kind == WRITE || rec->kind == DSYNC_WRITE) {
			memcpy(f->bytes + rec->off, bytes_at(f->pending[n]), rec->len);
		} else if (rec->kind == ZERO && rec->off < f->size) {
			uint64_t left = f->size - rec->off;

			memset(f->bytes + rec->off, 0, rec->len < left ? rec->len : left);
		} else if (size < f->size) {
			memset(f->bytes + size, 0, f->size - size);
		}
		f->size = size;
	}
	f->n_pending = 0;
}

static void pend(struct file *f, size_t i)
{
	if (f->n_pending == f->cap_pending) {
		f->cap_pending = f->cap_pending ? 2 * f->cap_pending : 64;
		f->pending = must(realloc(f->pending, f->cap_pending * sizeof(*f->pending)));
	}
	f->pending[f->n_pending++] = i;
}

static void take(size_t i, void (*event)(void *arg, uint32_t kind, uint32_t value), void *arg)
{
	const struct rec *rec = rec_at(i);

	switch ((enum kind)rec->kind) {
	case EVENT:
		if (event)
			event(arg, (uint32_t)rec->off, (uint32_t)rec->len);
		break;
	case SYNC:
		settle(&files[rec->file]);
		break;
	case LINK:
		files[rec->moved].is_dir = rec->is_dir;
		pend(&files[rec->file], i);
		break;
	default:
		pend(&files[rec->file], i);
	}
}

size_t disk_length(void)
{
	return n_offsets;
}

bool disk_is_turn(size_t i)
{
	const struct rec *rec = rec_at(i);

	return rec->kind != WRITE && rec->kind != EVENT;
}

void disk_advance(size_t to, void (*event)(void *arg, uint32_t kind, uint32_t value), void *arg)
{
	for (; position < to; position++)
		take(position, event, arg);
}

/* ---- cutting ---- */

/* How a cut treats what is pending. */
enum loss { KEEP, DROP, PREFIX, SECTORS, LOSSES };

struct cut {
	uint64_t seed;
	enum loss loss;  /* LOSSES: each file's own */
	bool one_log;    /* names are from one moment, not from each directory's own */
	size_t names_to; /* that moment: entries of the record before it */
	size_t flying;   /* this entry is under way; SIZE_MAX: none */
};

static uint64_t mix(uint64_t a, uint64_t b)
{
	uint64_t z = a + b * UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

/* Of n entries in a row, how many were seen: none, all, or any number. */
static uint32_t some(uint64_t dice, uint32_t n)
{
	switch (dice & 3) {
	case 0:
		return 0;
	case 1:
		return n;
	default:
		return (uint32_t)((dice >> 2) % (n + 1));
	}
}

static void choose(const struct cut *cut, uint32_t number, struct choice *c)
{
	const struct file *f = c->file;
	uint64_t dice = mix(cut->seed, number + 1);
	enum loss loss = cut->loss == LOSSES ? (enum loss)(dice % LOSSES) : cut->loss;
	uint32_t n = (uint32_t)f->n_pending, prefix = some(dice >> 8, n);
	size_t size = f->size, most = f->size;

	for (uint32_t i = 0; i < n; i++) {
		size = size_after(rec_at(f->pending[i]), size);
		most = size > most ? size : most;
	}
	c->sectors = (most + SECTOR - 1) / SECTOR;
	c->seen = must(calloc(c->sectors + 1, sizeof(*c->seen)));
	for (size_t s = 0; s < c->sectors; s++)
		c->seen[s] = loss == KEEP    ? n :
			     loss == DROP    ? 0 :
			     loss == PREFIX  ? prefix :
					       some(mix(dice, s), n);
	c->size_seen = loss == KEEP   ? n :
		       loss == DROP   ? 0 :
		       loss == PREFIX ? prefix :
					some(dice >> 20, n);

	/* The write at the end of the prefix is torn. */
	if (loss == PREFIX && prefix < n && dice >> 7 & 1) {
		const struct rec *rec = rec_at(f->pending[prefix]);
		uint64_t from = rec->off / SECTOR, to = (rec->off + rec->len) / SECTOR;

		if ((rec->kind == WRITE || rec->kind == DSYNC_WRITE) && to > from) {
			to = from + 1 + (dice >> 40) % (to - from);
			for (uint64_t s = from; s < to && s < c->sectors; s++)
				c->seen[s] = prefix + 1;
			c->size_seen = prefix + 1;
		}
	}

	/* What must have been seen: writes that waited for the disk, and what a size cut off. */
	for (uint32_t i = 0; i < n; i++) {
		const struct rec *rec = rec_at(f->pending[i]);
		uint64_t from = rec->off / SECTOR, to = c->sectors;

		if (rec->kind == DSYNC_WRITE && f->pending[i] != cut->flying) {
			to = (rec->off + rec->len + SECTOR - 1) / SECTOR;
			c->size_seen = c->size_seen > i + 1 ? c->size_seen : i + 1;
		} else if (rec->kind == SIZE && i < c->size_seen) {
			from = rec->len / SECTOR;
		} else {
			continue;
		}
		for (uint64_t s = from; s < to && s < c->sectors; s++)
			c->seen[s] = c->seen[s] > i + 1 ? c->seen[s] : i + 1;
	}
	c->size = f->size;
	for (uint32_t i = 0; i < c->size_seen; i++)
		c->size = size_after(rec_at(f->pending[i]), c->size);
}

static void write_all(int fd, const uint8_t *bytes, size_t len)
{
	static const uint8_t zeros[65536];

	if (syscall(SYS_ftruncate, fd, len) < 0)
		abort();
	for (size_t at = 0, n; at < len; at += n) {
		n = len - at < sizeof(zeros) ? len - at : sizeof(zeros);
		if (memcmp(bytes + at, zeros, n) != 0 &&
		    syscall(SYS_pwrite64, fd, bytes + at, n, at) != (long)n)
			abort();
	}
}

static void write_file(const struct cut *cut, uint32_t number, int dir_fd, const char *name)
{
	const struct file *f = &files[number];
	struct choice c = { .file = f };
	uint8_t *bytes;
	int fd;

	choose(cut, number, &c);
	bytes = must(calloc(c.sectors + 1, SECTOR));
	if (f->size > 0)
		memcpy(bytes, f->bytes, f->size);
	for (uint32_t n = 0; n < f->n_pending; n++)
		apply(bytes, f->pending[n], n, &c);
	fd = (int)syscall(SYS_openat, dir_fd, name, O_WRONLY | O_CREAT | O_EXCL, 0600);
	if (fd < 0)
		abort();
	write_all(fd, bytes, c.size);
	close(fd);
	free(bytes);
	free(c.seen);
}

static bool name_is_kept(const struct cut *cut, uint32_t dir, size_t n)
{
	const struct file *f = &files[dir];

	if (cut->one_log)
		return f->pending[n] < cut->names_to;
	return n < some(mix(cut->seed, dir + 100000), (uint32_t)f->n_pending);
}

static void write_dir(const struct cut *cut, uint32_t number, int dir_fd)
{
	struct file now = { .n_entries = files[number].n_entries };
	size_t bytes = now.n_entries * sizeof(*now.entries);

	now.entries = must(malloc(bytes + 1));
	if (bytes > 0)
		memcpy(now.entries, files[number].entries, bytes);
	for (size_t n = 0; n < files[number].n_pending; n++)
		if (name_is_kept(cut, number, n))
			apply_name(&now, rec_at(files[number].pending[n]));
	for (size_t i = 0; i < now.n_entries; i++) {
		const struct entry *e = &now.entries[i];
		int fd;

		if (!files[e->file].is_dir) {
			write_file(cut, e->file, dir_fd, e->name);
			continue;
		}
		if (syscall(SYS_mkdirat, dir_fd, e->name, 0700) < 0)
			abort();
		fd = (int)syscall(SYS_openat, dir_fd, e->name, O_RDONLY | O_DIRECTORY);
		if (fd < 0)
			abort();
		write_dir(cut, e->file, fd);
		close(fd);
	}
	free(now.entries);
}

static void write_root(const struct cut *cut, const char *path)
{
	int fd;

	if (syscall(SYS_mkdirat, AT_FDCWD, path, 0700) < 0)
		abort();
	fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_DIRECTORY);
	if (fd < 0)
		abort();
	write_dir(cut, 0, fd);
	close(fd);
}

void disk_cut(uint64_t seed, const char *path)
{
	struct cut cut = { .seed = mix(seed, 1), .flying = SIZE_MAX };
	uint64_t dice = mix(seed, 2);
	struct file *flying = NULL;
	size_t oldest = position;

	cut.loss = dice % 8 < LOSSES ? (enum loss)(dice % 8) : LOSSES;
	cut.one_log = dice >> 8 & 1;
	if (position < n_offsets && dice >> 16 & 1) {
		const struct rec *rec = rec_at(position);

		if (rec->kind != SYNC && rec->kind != EVENT) {
			if (rec->kind == LINK)
				files[rec->moved].is_dir = rec->is_dir;
			cut.flying = position;
			flying = &files[rec->file];
			pend(flying, position);
		}
	}
	for (uint32_t i = 0; i < sh->files; i++)
		if (files[i].is_dir && files[i].n_pending > 0 && files[i].pending[0] < oldest)
			oldest = files[i].pending[0];
	cut.names_to = oldest + some(dice >> 20, (uint32_t)(position - oldest)) + 1;
	write_root(&cut, path);
	if (flying)
		flying->n_pending--;
}

/* ---- the whole ---- */

static void scan(int dir_fd, uint32_t number)
{
	struct dirent *entry;
	struct stat st;
	DIR *d;

	d = must(fdopendir(dir_fd));
	while ((entry = readdir(d))) {
		int fd;
		uint32_t file;

		if (entry->d_name[0] == '.' || is_ignored(entry->d_name))
			continue;
		fd = (int)syscall(SYS_openat, dirfd(d), entry->d_name, O_RDONLY);
		if (fd < 0 || fstat(fd, &st) < 0)
			abort();
		file = file_new(&st);
		set_entry(&files[number], entry->d_name, file);
		files[file].is_dir = S_ISDIR(st.st_mode);
		if (files[file].is_dir) {
			scan(fd, file);
			continue;
		}
		file_room(&files[file], (size_t)st.st_size);
		files[file].size = (size_t)st.st_size;
		if (st.st_size > 0 && pread(fd, files[file].bytes, (size_t)st.st_size, 0) !=
					      (ssize_t)st.st_size)
			abort();
		close(fd);
	}
	closedir(d);
}

void disk_open(const char *path, const char *ignored)
{
	struct stat st;
	int fd;

	snprintf(root_path, sizeof(root_path), "%s", path);
	snprintf(ignored_name, sizeof(ignored_name), "%s", ignored);
	sh = (void *)syscall(SYS_mmap, NULL, RECORD_BYTES, PROT_READ | PROT_WRITE,
			     MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (sh == MAP_FAILED)
		abort();
	fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_DIRECTORY);
	if (fd < 0 || fstat(fd, &st) < 0)
		abort();
	files[file_new(&st)].is_dir = true;
	scan(fd, 0);
	active = true;
}

void disk_close(void)
{
	for (size_t i = 0; i < FILES_MAX; i++) {
		free(files[i].bytes);
		free(files[i].entries);
		free(files[i].pending);
	}
	memset(files, 0, sizeof(files));
	free(offsets);
	offsets = NULL;
	n_offsets = position = n_known = 0;
	syscall(SYS_munmap, sh, RECORD_BYTES);
	sh = NULL;
	active = false;
}

/* Compares a directory with what the record makes of it; everything pending is durable. */
static bool same(int dir_fd, uint32_t number, const char *where)
{
	struct file *f = &files[number];
	struct stat st;
	bool ok = true;

	settle(f);
	for (size_t i = 0; i < f->n_entries; i++) {
		struct file *child = &files[f->entries[i].file];
		const char *name = f->entries[i].name;
		int fd = (int)syscall(SYS_openat, dir_fd, name, O_RDONLY);
		uint8_t *bytes;

		if (fd < 0 || fstat(fd, &st) < 0) {
			fprintf(stderr, "crashdisk: %s/%s is not there\n", where, name);
			return false;
		}
		if (child->is_dir) {
			ok = ok && same(fd, f->entries[i].file, name);
			close(fd);
			continue;
		}
		settle(child);
		bytes = must(malloc((size_t)st.st_size + 1));
		if ((size_t)st.st_size != child->size ||
		    pread(fd, bytes, child->size, 0) != (ssize_t)child->size ||
		    (child->size > 0 && memcmp(bytes, child->bytes, child->size) != 0)) {
			fprintf(stderr, "crashdisk: %s/%s changed in a way that was not seen\n",
				where, name);
			ok = false;
		}
		free(bytes);
		close(fd);
	}
	return ok;
}

static void forget(void)
{
	for (size_t i = 0; i < FILES_MAX; i++) {
		free(files[i].bytes);
		free(files[i].entries);
		free(files[i].pending);
	}
	memset(files, 0, sizeof(files));
}

bool disk_played(void)
{
	struct file *kept = must(malloc(sizeof(files)));
	bool ok;
	int fd;

	offsets = must(malloc((sh->used / sizeof(struct rec) + 1) * sizeof(*offsets)));
	for (size_t at = 0; at < sh->used;) {
		const struct rec *rec = (const void *)(sh->bytes + at);

		offsets[n_offsets++] = at;
		at += sizeof(*rec);
		if (rec->kind == WRITE || rec->kind == DSYNC_WRITE)
			at += (rec->len + 7) & ~(uint64_t)7;
	}
	if (sh->overflow) {
		fprintf(stderr, "crashdisk: the record is full\n");
		free(kept);
		return false;
	}

	/* On a copy of what was there at the beginning. */
	memcpy(kept, files, sizeof(files));
	for (size_t i = 0; i < FILES_MAX; i++) {
		struct file *f = &files[i];
		size_t bytes = f->n_entries * sizeof(*f->entries);

		if (f->bytes)
			f->bytes = memcpy(must(malloc(f->cap)), f->bytes, f->cap);
		if (f->entries)
			f->entries = memcpy(must(malloc(bytes)), f->entries, bytes);
	}
	disk_advance(n_offsets, NULL, NULL);
	fd = (int)syscall(SYS_openat, AT_FDCWD, root_path, O_RDONLY | O_DIRECTORY);
	ok = fd >= 0 && same(fd, 0, "");
	close(fd);
	forget();
	memcpy(files, kept, sizeof(files));
	free(kept);
	position = 0;
	return ok;
}
