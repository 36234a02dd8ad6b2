/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/crashdisk.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/lib/crashdisk_record.h"

/*
 * Plays the record (crashdisk_record.h): what is durable, and what is pending behind it. By direct
 * calls of the system, since the C library's functions are the recorder's.
 */

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

static struct record *sh;
static char root_path[PATH_MAX];

/* ---- playing: the durable state, and what is pending behind it ---- */

static struct file files[FILES_MAX];
static size_t *offsets; /* of the record's entries */
static size_t n_offsets, position;
static bool reading_back; /* what was lost on the disk is read nevertheless */

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

static uint64_t mix(uint64_t a, uint64_t b)
{
	uint64_t z = a + b * UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

/*
 * A write or sync failed, as entry i tells: about half of the writes before it that were not synced
 * are lost. The kernel says that once, and takes their pages for written.
 */
static void lose(struct file *f, size_t i)
{
	size_t kept = 0;

	for (size_t n = 0; n < f->n_pending; n++)
		if (rec_at(f->pending[n])->kind != WRITE || mix(i, n) & 1)
			f->pending[kept++] = f->pending[n];
	f->n_pending = kept;
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
	case LOST:
		if (!reading_back)
			lose(&files[rec->file], i);
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

bool disk_follows_failure(size_t i)
{
	const struct rec *rec = rec_at(i), *before;

	if (rec->kind != SYNC)
		return false;
	do {
		if (i == 0)
			return false;
		before = rec_at(--i);
	} while (before->file != rec->file || (before->kind != SYNC && before->kind != LOST));
	return before->kind == LOST;
}

bool disk_is_name(size_t i)
{
	const struct rec *rec = rec_at(i);

	return rec->kind == LINK || rec->kind == UNLINK || rec->kind == RENAME;
}

bool disk_is_event(size_t i, uint32_t kind)
{
	const struct rec *rec = rec_at(i);

	return rec->kind == EVENT && rec->off == kind;
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

		if (rec->kind != SYNC && rec->kind != LOST && rec->kind != EVENT) {
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

		if (entry->d_name[0] == '.' || record_ignores(entry->d_name))
			continue;
		fd = (int)syscall(SYS_openat, dirfd(d), entry->d_name, O_RDONLY);
		if (fd < 0 || fstat(fd, &st) < 0)
			abort();
		file = record_file(&st);
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
	sh = record_new(ignored);
	fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_DIRECTORY);
	if (fd < 0 || fstat(fd, &st) < 0)
		abort();
	files[record_file(&st)].is_dir = true;
	scan(fd, 0);
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

void disk_close(void)
{
	forget();
	free(offsets);
	offsets = NULL;
	n_offsets = position = 0;
	record_free();
	sh = NULL;
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
	reading_back = true;
	disk_advance(n_offsets, NULL, NULL);
	fd = (int)syscall(SYS_openat, AT_FDCWD, root_path, O_RDONLY | O_DIRECTORY);
	ok = fd >= 0 && same(fd, 0, "");
	reading_back = false;
	close(fd);
	forget();
	memcpy(files, kept, sizeof(files));
	free(kept);
	position = 0;
	return ok;
}
