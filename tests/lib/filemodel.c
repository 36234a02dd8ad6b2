/* SPDX-License-Identifier: Apache-2.0 */
/*
 * filemodel: two files and what they should hold, under every call that changes or reads bytes.
 *
 *     filemodel [--ops N] [--seed N] [--max BYTES] [--checkpoint-every N] [--restore-every N] DIR
 *
 * Each round does one random operation on a file in DIR and the same on an array in memory, then
 * compares what the operation reads (or the size). Every FULL_EVERY rounds all bytes are compared,
 * once as the page cache has them and once after they were dropped. The seed decides everything,
 * so a failure is repeated with the seed that it prints, beside the last operations.
 *
 * What a filesystem need not offer (cloning, collapse, holes) may fail with EOPNOTSUPP only.
 *
 * With --checkpoint-every DIR is (in) a plyfs view, and the bytes at that point are remembered.
 * With --restore-every such a point is visited: the files must be as they were then, a descriptor
 * from before must go on showing the bytes from before, and after the return (by undo, or by an id
 * when something was written at the visited point) the files must be as they were left.
 */

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <linux/fs.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "fs/ioctl.h"
#include "tests/lib/exerciser.h"

#define N_FILES 2
#define BLOCK 4096u
#define SECTOR 512u    /* what O_DIRECT may ask for at least */
#define FULL_EVERY 500 /* a full comparison costs about as much as 20 operations */
#define POINTS 16      /* checkpoints that are remembered: a new one takes a random one's place */
#define HISTORY 60     /* operations shown after a failure */

struct bytes {
	uint8_t *data; /* max bytes; zero from len on */
	size_t len;
};

static struct {
	char name[16];
	int writer; /* O_WRONLY; the first of all, so it made the file if there was none */
	int fd;	    /* O_RDWR */
	int append; /* O_RDWR | O_APPEND */
	int direct; /* O_RDWR | O_DIRECT; -1: not offered */
	struct bytes is;
} file[N_FILES];

static struct point {
	char id[PLYFS_ID_SIZE];
	struct bytes was[N_FILES];
} points[POINTS];

static uint64_t n_ops = 10000, seed, checkpoint_every, restore_every;
static size_t max = 512 * 1024;
static uint64_t op; /* the operation's number */
static unsigned n_points;
static uint64_t n_checkpoints, n_visits;
static int dir_fd = -1;
static uint8_t *buf; /* max bytes, aligned for O_DIRECT */
static char history[HISTORY][100];

/* ---- telling ---- */

__attribute__((format(printf, 1, 2), noreturn)) static void fail(const char *fmt, ...)
{
	va_list ap;

	for (uint64_t i = op >= HISTORY ? op - HISTORY + 1 : 0; i <= op; i++)
		printf("%10" PRIu64 "  %s\n", i, history[i % HISTORY]);
	printf("filemodel: seed %" PRIu64 ", operation %" PRIu64 ": ", seed, op);
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	putchar('\n');
	exit(1);
}

__attribute__((format(printf, 1, 2))) static void doing(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(history[op % HISTORY], sizeof(history[0]), fmt, ap);
	va_end(ap);
}

static void need(bool good, const char *call)
{
	if (!good)
		fail("%s: %s", call, strerror(errno));
}

/* ---- chance ---- */

/* Lengths of all magnitudes, as bugs sit at the small and at the large ones. */
static size_t some_length(size_t limit)
{
	size_t n = 1 + chance((size_t)1 << (1 + chance(18)));

	return n < limit ? n : limit;
}

/* Offsets: often at the edge of a block, else anywhere. */
static size_t some_offset(size_t limit)
{
	size_t n = chance(limit);

	if (chance(4) == 0)
		n = n / BLOCK * BLOCK;
	return n;
}

static void fill(uint8_t *p, size_t n)
{
	uint64_t z = chance(UINT64_MAX);

	for (size_t i = 0; i < n; i++) { /* never 0: a hole in its place shows */
		z = z * 6364136223846793005u + 1442695040888963407u;
		p[i] = (uint8_t)(z >> 56) | 1;
	}
}

/* ---- the model ---- */

static void model_resize(struct bytes *b, size_t len)
{
	if (len < b->len)
		memset(b->data + len, 0, b->len - len);
	b->len = len;
}

static void model_put(struct bytes *b, size_t off, const void *data, size_t len)
{
	memcpy(b->data + off, data, len);
	if (off + len > b->len)
		b->len = off + len;
}

static void bytes_copy(struct bytes *to, const struct bytes *from)
{
	memcpy(to->data, from->data, max);
	to->len = from->len;
}

static void compare(const uint8_t *got, const struct bytes *want, size_t off, size_t len,
		    const char *what)
{
	if (memcmp(got, want->data + off, len) == 0)
		return;
	for (size_t i = 0; i < len; i++)
		if (got[i] != want->data[off + i])
			fail("%s: byte %zu of %zu is %02x and should be %02x", what, off + i,
			     want->len, got[i], want->data[off + i]);
}

static void check_size(int fd, const struct bytes *want, const char *what)
{
	struct stat st;

	need(fstat(fd, &st) == 0, "fstat");
	if ((size_t)st.st_size != want->len)
		fail("%s: the size is %lld and should be %zu", what, (long long)st.st_size,
		     want->len);
}

static void check_all(int fd, const struct bytes *want, const char *what)
{
	ssize_t n;

	check_size(fd, want, what);
	n = pread(fd, buf, max, 0);
	need(n >= 0, "pread");
	if ((size_t)n != want->len)
		fail("%s: %zd bytes were read of %zu", what, n, want->len);
	compare(buf, want, 0, want->len, what);
}

/* ---- files ---- */

static void open_file(unsigned f)
{
	const char *name = file[f].name;

	file[f].writer = openat(dir_fd, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	need(file[f].writer >= 0, "open O_WRONLY");
	file[f].fd = openat(dir_fd, name, O_RDWR | O_CLOEXEC);
	need(file[f].fd >= 0, "open");
	file[f].append = openat(dir_fd, name, O_RDWR | O_APPEND | O_CLOEXEC);
	need(file[f].append >= 0, "open O_APPEND");
	file[f].direct = openat(dir_fd, name, O_RDWR | O_DIRECT | O_CLOEXEC);
	need(file[f].direct >= 0 || errno == EINVAL, "open O_DIRECT");
}

static void close_file(unsigned f)
{
	need(close(file[f].writer) == 0, "close");
	need(close(file[f].fd) == 0, "close");
	need(close(file[f].append) == 0, "close");
	need(file[f].direct < 0 || close(file[f].direct) == 0, "close");
}

/* ---- operations; each does one thing to a file and to its model ---- */

static void op_write(unsigned f)
{
	size_t off = some_offset(max), len = some_length(max - off);
	bool two = len > 1 && chance(4) == 0, only = chance(2);
	struct iovec iov[2] = { { buf, two ? len / 2 : len }, { buf + len / 2, len - len / 2 } };
	int fd = only ? file[f].writer : file[f].fd;
	ssize_t n;

	doing("write    %u %zu +%zu%s%s", f, off, len, two ? " in two" : "",
	      only ? " O_WRONLY" : "");
	fill(buf, len);
	n = two ? pwritev(fd, iov, 2, (off_t)off) : pwrite(fd, buf, len, (off_t)off);
	need(n == (ssize_t)len, "pwrite");
	model_put(&file[f].is, off, buf, len);
}

static void op_append(unsigned f)
{
	size_t len = some_length(max - file[f].is.len);

	doing("append   %u at %zu +%zu", f, file[f].is.len, len);
	if (len == 0)
		return;
	fill(buf, len);
	need(write(file[f].append, buf, len) == (ssize_t)len, "write O_APPEND");
	model_put(&file[f].is, file[f].is.len, buf, len);
}

static void op_read(unsigned f)
{
	size_t off = some_offset(max), len = some_length(max - off);
	size_t want = off >= file[f].is.len ? 0 : file[f].is.len - off;
	ssize_t n;

	doing("read     %u %zu +%zu", f, off, len);
	n = pread(file[f].fd, buf, len, (off_t)off);
	need(n >= 0, "pread");
	want = want < len ? want : len;
	if ((size_t)n != want)
		fail("pread gives %zd bytes and should give %zu", n, want);
	compare(buf, &file[f].is, off, want, "pread");
}

static void op_truncate(unsigned f)
{
	size_t len = chance(3) ? some_offset(file[f].is.len + 1) : some_offset(max);

	doing("truncate %u %zu -> %zu", f, file[f].is.len, len);
	need(ftruncate(file[f].fd, (off_t)len) == 0, "ftruncate");
	model_resize(&file[f].is, len);
}

static void op_map(unsigned f, bool store)
{
	size_t size = file[f].is.len, off = some_offset(size), len = some_length(size - off);
	size_t base = off / BLOCK * BLOCK;
	unsigned sync = (unsigned)chance(3);
	uint8_t *p;

	doing("%s %u %zu +%zu%s", store ? "mapwrite" : "mapread ", f, off, len,
	      !store || sync == 2 ? ""
	      : sync		  ? " msync"
				  : " msync async");
	if (len == 0)
		return;
	p = mmap(NULL, off - base + len, PROT_READ | (store ? PROT_WRITE : 0), MAP_SHARED,
		 file[f].fd, (off_t)base);
	need(p != MAP_FAILED, "mmap");
	if (store) {
		fill(buf, len);
		memcpy(p + (off - base), buf, len);
		model_put(&file[f].is, off, buf, len);
		if (sync < 2)
			need(msync(p, off - base + len, sync ? MS_SYNC : MS_ASYNC) == 0, "msync");
	}
	compare(p + (off - base), &file[f].is, off, len, "mapping");
	need(munmap(p, off - base + len) == 0, "munmap");
}

static void op_map_read(unsigned f)
{
	op_map(f, false);
}

static void op_map_write(unsigned f)
{
	op_map(f, true);
}

static void op_direct(unsigned f)
{
	size_t off = chance(max) / SECTOR * SECTOR, len = some_length(max - off);
	size_t want = off >= file[f].is.len ? 0 : file[f].is.len - off;
	bool store = chance(2);
	ssize_t n;

	len = (len + SECTOR - 1) / SECTOR * SECTOR;
	doing("direct %s %u %zu +%zu", store ? "w" : "r", f, off, len);
	if (file[f].direct < 0)
		return;
	if (store) {
		fill(buf, len);
		n = pwrite(file[f].direct, buf, len, (off_t)off);
		need(n == (ssize_t)len || (n < 0 && errno == EINVAL), "pwrite O_DIRECT");
		if (n > 0) /* EINVAL: its sectors are larger */
			model_put(&file[f].is, off, buf, len);
		return;
	}
	n = pread(file[f].direct, buf, len, (off_t)off);
	if (n < 0 && errno == EINVAL)
		return;
	need(n >= 0, "pread O_DIRECT");
	want = want < len ? want : len;
	if ((size_t)n != want)
		fail("pread O_DIRECT gives %zd bytes and should give %zu", n, want);
	compare(buf, &file[f].is, off, want, "pread O_DIRECT");
}

/* True: done. False: not offered. */
static bool allocate(unsigned f, int mode, size_t off, size_t len, const char *what)
{
	doing("%-8s %u %zu +%zu", what, f, off, len);
	if (fallocate(file[f].fd, mode, (off_t)off, (off_t)len) == 0)
		return true;
	need(errno == EOPNOTSUPP, what);
	return false;
}

static void op_punch(unsigned f)
{
	size_t off = some_offset(max), len = some_length(max - off), end = off + len;

	if (!allocate(f, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off, len, "punch"))
		return;
	if (off < file[f].is.len)
		memset(file[f].is.data + off, 0,
		       (end < file[f].is.len ? end : file[f].is.len) - off);
}

static void op_zero(unsigned f)
{
	size_t off = some_offset(max), len = some_length(max - off), end = off + len;
	bool keep = chance(2);

	if (!allocate(f, FALLOC_FL_ZERO_RANGE | (keep ? FALLOC_FL_KEEP_SIZE : 0), off, len,
		      keep ? "zerokeep" : "zero"))
		return;
	if (!keep && end > file[f].is.len)
		file[f].is.len = end;
	if (off < file[f].is.len)
		memset(file[f].is.data + off, 0,
		       (end < file[f].is.len ? end : file[f].is.len) - off);
}

static void op_reserve(unsigned f)
{
	size_t off = some_offset(max), len = some_length(max - off);
	bool keep = chance(2);

	if (allocate(f, keep ? FALLOC_FL_KEEP_SIZE : 0, off, len, keep ? "reserve" : "extend") &&
	    !keep && off + len > file[f].is.len)
		file[f].is.len = off + len;
}

static void op_collapse(unsigned f)
{
	struct bytes *b = &file[f].is;
	size_t off = chance(b->len) / BLOCK * BLOCK;
	size_t len = (some_length(max) + BLOCK - 1) / BLOCK * BLOCK;

	if (off + len >= b->len) {
		doing("collapse %u %zu +%zu, not inside", f, off, len);
		if (fallocate(file[f].fd, FALLOC_FL_COLLAPSE_RANGE, (off_t)off, (off_t)len) == 0)
			fail("collapse up to the end was allowed");
		need(errno == EINVAL || errno == EOPNOTSUPP, "collapse");
		return;
	}
	if (!allocate(f, FALLOC_FL_COLLAPSE_RANGE, off, len, "collapse"))
		return;
	memmove(b->data + off, b->data + off + len, b->len - off - len);
	model_resize(b, b->len - len);
}

static void op_insert(unsigned f)
{
	struct bytes *b = &file[f].is;
	size_t off = chance(b->len) / BLOCK * BLOCK;
	size_t len = (some_length(max) + BLOCK - 1) / BLOCK * BLOCK;

	if (off >= b->len || b->len + len > max)
		return op_truncate(f);
	if (!allocate(f, FALLOC_FL_INSERT_RANGE, off, len, "insert"))
		return;
	memmove(b->data + off + len, b->data + off, b->len - off);
	memset(b->data + off, 0, len);
	b->len += len;
}

static void op_copy(unsigned f)
{
	unsigned to = (unsigned)chance(N_FILES);
	size_t src = some_offset(file[f].is.len), dst = some_offset(max);
	size_t len = some_length(max - dst), done = 0;
	size_t rest = src < file[f].is.len ? file[f].is.len - src : 0;
	bool overlap = f == to && src < dst + len && dst < src + len;

	doing("copy     %u %zu +%zu to %u %zu", f, src, len, to, dst);
	if (len > rest)
		len = rest;
	overlap = len > 0 && f == to && src < dst + len && dst < src + len;
	if (overlap) {
		loff_t a = (loff_t)src, b = (loff_t)dst;

		if (copy_file_range(file[f].fd, &a, file[to].fd, &b, len, 0) >= 0)
			fail("copying onto itself was allowed");
		need(errno == EINVAL, "copy_file_range onto itself");
		return;
	}
	while (done < len) {
		loff_t a = (loff_t)(src + done), b = (loff_t)(dst + done);
		ssize_t n = copy_file_range(file[f].fd, &a, file[to].fd, &b, len - done, 0);

		need(n > 0, "copy_file_range");
		done += (size_t)n;
		if (a != (loff_t)(src + done) || b != (loff_t)(dst + done))
			fail("copy_file_range left the offsets %lld and %lld", (long long)a,
			     (long long)b);
	}
	memcpy(buf, file[f].is.data + src, len);
	if (len > 0)
		model_put(&file[to].is, dst, buf, len);
	check_size(file[to].fd, &file[to].is, "copy");
}

static void op_clone(unsigned f)
{
	unsigned to = (f + 1) % N_FILES;
	bool whole = chance(2);
	size_t off = chance(file[f].is.len) / BLOCK * BLOCK;
	struct file_clone_range range = {
		.src_fd = file[f].fd,
		.src_offset = off,
		.src_length = 0, /* to the end */
		.dest_offset = off,
	};
	int r;

	doing("clone    %u %s%zu", f, whole ? "whole" : "from ", whole ? 0 : off);
	if (!whole && off > file[to].is.len)
		return;
	r = whole ? ioctl(file[to].fd, FICLONE, file[f].fd)
		  : ioctl(file[to].fd, FICLONERANGE, &range);
	if (r < 0) {
		need(errno == EOPNOTSUPP, "clone");
		return;
	}
	if (whole) {
		bytes_copy(&file[to].is, &file[f].is);
	} else if (off < file[f].is.len) {
		memcpy(buf, file[f].is.data + off, file[f].is.len - off);
		model_put(&file[to].is, off, buf, file[f].is.len - off);
	}
	check_size(file[to].fd, &file[to].is, "clone");
}

static void check_zero(unsigned f, size_t from, size_t to, const char *what)
{
	for (size_t i = from; i < to; i++)
		if (file[f].is.data[i])
			fail("%s %zu..%zu, but byte %zu holds data", what, from, to, i);
}

/* Holes may be told anywhere where zeros are; data anywhere; both must agree. */
static void op_seek(unsigned f)
{
	size_t size = file[f].is.len, at = some_offset(size + 1);
	off_t r;

	doing("seek     %u from %zu of %zu", f, at, size);
	r = lseek(file[f].fd, (off_t)size, SEEK_DATA);
	if (r >= 0 || errno != ENXIO)
		fail("SEEK_DATA at the end does not say ENXIO");
	r = lseek(file[f].fd, (off_t)size, SEEK_HOLE);
	if (r >= 0 || errno != ENXIO)
		fail("SEEK_HOLE at the end does not say ENXIO");
	while (at < size) {
		off_t data = lseek(file[f].fd, (off_t)at, SEEK_DATA), hole;

		if (data < 0) {
			need(errno == ENXIO, "SEEK_DATA");
			check_zero(f, at, size, "no data in");
			return;
		}
		if ((size_t)data < at || (size_t)data >= size)
			fail("SEEK_DATA from %zu gives %lld", at, (long long)data);
		check_zero(f, at, (size_t)data, "a hole");
		hole = lseek(file[f].fd, data, SEEK_HOLE);
		need(hole >= 0, "SEEK_HOLE");
		if (hole <= data || (size_t)hole > size)
			fail("SEEK_HOLE from %lld gives %lld", (long long)data, (long long)hole);
		if ((size_t)hole < size && lseek(file[f].fd, hole, SEEK_HOLE) != hole)
			fail("a hole at %lld is none when asked there", (long long)hole);
		at = (size_t)hole;
	}
}

static void op_sync(unsigned f)
{
	doing("fsync    %u", f);
	need((chance(2) ? fsync : fdatasync)(file[f].fd) == 0, "fsync");
}

static void op_reopen(unsigned f)
{
	doing("reopen   %u", f);
	close_file(f);
	open_file(f);
}

/* The same bytes in a new file: written by who makes it, which a view may do around its cache. */
static void op_remake(unsigned f)
{
	const struct bytes *is = &file[f].is;
	size_t half = is->len / 2;
	int fd;

	doing("remake   %u %zu", f, is->len);
	close_file(f);
	need(unlinkat(dir_fd, file[f].name, 0) == 0, "unlink");
	open_file(f);
	fd = file[f].writer;
	need(write(fd, is->data, half) == (ssize_t)half, "write");
	need(write(fd, is->data + half, is->len - half) == (ssize_t)(is->len - half), "write");
}

static void drop_pages(unsigned f)
{
	need(sync_file_range(file[f].fd, 0, 0,
			     SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
				     SYNC_FILE_RANGE_WAIT_AFTER) == 0,
	     "sync_file_range");
	need(posix_fadvise(file[f].fd, 0, 0, POSIX_FADV_DONTNEED) == 0, "posix_fadvise");
}

static void op_drop(unsigned f)
{
	doing("drop     %u", f);
	drop_pages(f);
}

/* How often each is done, of the sum of all. */
static const struct {
	void (*fn)(unsigned f);
	unsigned weight;
} ops[] = {
	{ op_write, 30 },     { op_append, 8 },	  { op_read, 30 },    { op_truncate, 12 },
	{ op_map_write, 12 }, { op_map_read, 8 }, { op_direct, 10 },  { op_punch, 8 },
	{ op_zero, 8 },	      { op_reserve, 4 },  { op_collapse, 5 }, { op_insert, 5 },
	{ op_copy, 10 },      { op_clone, 2 },	  { op_seek, 10 },    { op_sync, 1 },
	{ op_reopen, 1 },     { op_remake, 3 },	  { op_drop, 2 },
};

static void do_one(void)
{
	unsigned sum = 0, pick, f = chance(5) == 0, i = 0;

	for (size_t n = 0; n < sizeof(ops) / sizeof(*ops); n++)
		sum += ops[n].weight;
	pick = (unsigned)chance(sum);
	while (pick >= ops[i].weight)
		pick -= ops[i++].weight;
	ops[i].fn(f);
	check_size(file[f].fd, &file[f].is, "fstat");
}

static void check_both(const char *what)
{
	for (unsigned f = 0; f < N_FILES; f++) {
		check_all(file[f].fd, &file[f].is, what);
		drop_pages(f);
		check_all(file[f].fd, &file[f].is, what);
	}
}

/* ---- checkpoints ---- */

static void checkpoint(char id[PLYFS_ID_SIZE])
{
	struct plyfs_checkpoint c = { .flags = 0 };

	/* What was stored through mappings is part of it after a flush: fs/ioctl.h. */
	need(syncfs(dir_fd) == 0, "syncfs");
	need(ioctl(dir_fd, PLYFS_IOC_CHECKPOINT, &c) == 0, "checkpoint");
	memcpy(id, c.id, PLYFS_ID_SIZE);
	n_checkpoints++;
}

static void remember(void)
{
	struct point *p = &points[n_points < POINTS ? n_points++ : chance(POINTS)];

	checkpoint(p->id);
	for (unsigned f = 0; f < N_FILES; f++) {
		if (!p->was[f].data)
			p->was[f].data = malloc(max);
		need(p->was[f].data, "malloc");
		bytes_copy(&p->was[f], &file[f].is);
	}
}

static void restore(const char *id)
{
	struct plyfs_restore r = { .mode = 0 };

	snprintf(r.id, sizeof(r.id), "%.*s", (int)sizeof(r.id) - 1, id);
	need(ioctl(dir_fd, PLYFS_IOC_RESTORE, &r) == 0, "restore");
}

static void visit(void)
{
	const struct point *p = &points[chance(n_points)];
	struct plyfs_restore undo = { .mode = 0 };
	char here[PLYFS_ID_SIZE];
	int before[N_FILES];
	bool scribble = chance(2);

	doing("visit    %s%s", p->id, scribble ? ", and write there" : "");
	checkpoint(here);
	for (unsigned f = 0; f < N_FILES; f++) {
		before[f] = dup(file[f].fd);
		need(before[f] >= 0, "dup");
		close_file(f);
	}

	restore(p->id);
	for (unsigned f = 0; f < N_FILES; f++) {
		open_file(f);
		check_all(file[f].fd, &p->was[f], "at the visited point");
		check_all(before[f], &file[f].is, "a descriptor from before");
	}
	if (scribble) {
		need(ftruncate(file[0].fd, (off_t)chance(max)) == 0, "ftruncate");
		need(pwrite(file[1].fd, "scribble", 8, (off_t)chance(max)) == 8, "pwrite");
	}
	for (unsigned f = 0; f < N_FILES; f++)
		close_file(f);

	if (scribble)
		restore(here);
	else
		need(ioctl(dir_fd, PLYFS_IOC_UNDO, &undo) == 0, "undo");
	for (unsigned f = 0; f < N_FILES; f++) {
		open_file(f);
		check_all(file[f].fd, &file[f].is, "after the return");
		if (!scribble) /* else it may be the scribbled file's: this very point */
			check_all(before[f], &file[f].is, "a descriptor from before");
		need(close(before[f]) == 0, "close");
	}
	n_visits++;
}

/* ---- */

static void arguments(int argc, char **argv)
{
	static const struct option options[] = {
		{ "ops", 1, NULL, 'o' },	   { "seed", 1, NULL, 's' },
		{ "max", 1, NULL, 'm' },	   { "checkpoint-every", 1, NULL, 'c' },
		{ "restore-every", 1, NULL, 'r' }, { NULL, 0, NULL, 0 },
	};
	int c;

	seed = (uint64_t)time(NULL);
	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (c) {
		case 'o':
			n_ops = number(optarg);
			break;
		case 's':
			seed = number(optarg);
			break;
		case 'm':
			max = number(optarg) / BLOCK * BLOCK;
			break;
		case 'c':
			checkpoint_every = number(optarg);
			break;
		case 'r':
			restore_every = number(optarg);
			break;
		default:
			exit(2);
		}
	}
	if (optind + 1 != argc || max < 2 * BLOCK || (restore_every && !checkpoint_every)) {
		fprintf(stderr, "usage: filemodel [--ops N] [--seed N] [--max BYTES] "
				"[--checkpoint-every N [--restore-every N]] DIR\n");
		exit(2);
	}
	dir_fd = open(argv[optind], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir_fd < 0) {
		perror(argv[optind]);
		exit(2);
	}
}

int main(int argc, char **argv)
{
	arguments(argc, argv);
	random_state = seed;
	need(posix_memalign((void **)&buf, BLOCK, max) == 0, "posix_memalign");
	for (unsigned f = 0; f < N_FILES; f++) {
		snprintf(file[f].name, sizeof(file[f].name), "file%u", f);
		file[f].is.data = calloc(1, max);
		need(file[f].is.data, "calloc");
		(void)unlinkat(dir_fd, file[f].name, 0); /* of an earlier run, or none */
		open_file(f);
	}

	for (op = 0; op < n_ops; op++) {
		if (checkpoint_every && op % checkpoint_every == 0)
			remember();
		if (restore_every && op % restore_every == restore_every - 1)
			visit();
		else
			do_one();
		if (op % FULL_EVERY == FULL_EVERY - 1)
			check_both("all bytes");
	}
	op--; /* of the history */
	check_both("all bytes at the end");
	printf("seed %" PRIu64 ": %" PRIu64 " operations, %" PRIu64 " checkpoints, %" PRIu64
	       " visits\n",
	       seed, n_ops, n_checkpoints, n_visits);
	return 0;
}
