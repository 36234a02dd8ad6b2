/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The file work of `bench view` that is too quick for an interpreter to time: does one thing to a
 * directory or a file and prints "NAME NS" for each lap, NS being what the work alone took.
 *
 *   filework stat DIR N           N walks over everything below DIR, with a stat of each
 *   filework open DIR N           N times each regular file below DIR: open, read whole, close
 *   filework storm DIR N          in DIR/storm: N small files made, then all stat'ed, stat'ed
 *                                 again (11 laps), renamed, unlinked: a lap each
 *   filework write FILE MIB       a file of MIB MiB, in writes of 128 KiB
 *   filework overwrite FILE MIB N LAPS
 *                                 N times 4 KiB of it at random places, others in each lap
 *   filework read FILE MIB N      N times the whole file, in reads of 128 KiB
 *   filework reread FILE MIB      the same once, with the file's pages dropped first
 *   filework pick FILE MIB N      pages dropped first, then N times 4 KiB at random places
 *
 * Every page says which page it is and which write it comes from (page_word), and every page that
 * is read is checked for that: a filesystem that is fast and wrong fails here. Only a word per
 * KiB, as comparing all of it would take longer than reading does.
 */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/bench/lap.h"

#define PAGE 4096
#define BLOCK (128 * 1024) /* what cp, tar and the kernel's read-ahead use */
#define PER_DIR 100	   /* files of the storm: as a source tree has at most */
#define SMALL 200	   /* bytes of each of them */

/* ---- trees ---- */

/* Calls fn(directory's descriptor, name) for each that is no directory; stats each and all. */
static void walk(int at, const char *name, void (*fn)(int dir, const char *name))
{
	int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *e;
	struct stat st;

	if (!d)
		die(name);
	while ((e = readdir(d))) {
		if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
			continue;
		if (fstatat(fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
			die(e->d_name);
		if (S_ISDIR(st.st_mode))
			walk(fd, e->d_name, fn);
		else if (S_ISREG(st.st_mode) && fn)
			fn(fd, e->d_name);
	}
	closedir(d);
}

static void do_stat(char **args)
{
	for (uint64_t n = count_of(args[1]); n > 0; n--) {
		uint64_t begin = now_ns();

		walk(AT_FDCWD, args[0], NULL);
		print_lap("stat", begin);
	}
}

static uint64_t open_ns; /* of the laps of read_whole */

static void read_whole(int dir, const char *name)
{
	static char buf[BLOCK];
	uint64_t begin = now_ns();
	int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		die(name);
	while ((n = read(fd, buf, sizeof(buf))) > 0)
		;
	if (n < 0 || close(fd) < 0)
		die(name);
	open_ns += now_ns() - begin;
}

static void do_open(char **args)
{
	for (uint64_t n = count_of(args[1]); n > 0; n--) {
		open_ns = 0;
		walk(AT_FDCWD, args[0], read_whole);
		printf("open %" PRIu64 "\n", open_ns);
	}
}

static const char *storm_name(const char *prefix, uint64_t i)
{
	static char name[64];

	snprintf(name, sizeof(name), "%" PRIu64 "/%s%" PRIu64, i / PER_DIR, prefix, i);
	return name;
}

/* A lap without a request takes as long as an interrupt: many, of which the median counts. */
#define AGAIN 11

static void do_storm(char **args)
{
	uint64_t count = count_of(args[1]), begin;
	char content[SMALL], to[64];
	struct stat st;
	int top, fd;

	memset(content, 's', sizeof(content));
	if (chdir(args[0]) < 0 || mkdir("storm", 0777) < 0)
		die(args[0]);
	top = open("storm", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (top < 0)
		die("storm");

	begin = now_ns();
	for (uint64_t i = 0; i < count; i++) {
		if (i % PER_DIR == 0) {
			snprintf(to, sizeof(to), "%" PRIu64, i / PER_DIR);
			if (mkdirat(top, to, 0777) < 0)
				die(to);
		}
		fd = openat(top, storm_name("f", i), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
		if (fd < 0 || write(fd, content, SMALL) != SMALL || close(fd) < 0)
			die(storm_name("f", i));
	}
	print_lap("create", begin);

	for (int again = 0; again <= AGAIN; again++) {
		begin = now_ns();
		for (uint64_t i = 0; i < count; i++)
			if (fstatat(top, storm_name("f", i), &st, 0) < 0 || st.st_size != SMALL)
				die(storm_name("f", i));
		print_lap(again ? "again" : "stat", begin);
	}

	begin = now_ns();
	for (uint64_t i = 0; i < count; i++) {
		strcpy(to, storm_name("g", i));
		if (renameat(top, storm_name("f", i), top, to) < 0)
			die(to);
	}
	print_lap("rename", begin);

	begin = now_ns();
	for (uint64_t i = 0; i < count; i++)
		if (unlinkat(top, storm_name("g", i), 0) < 0)
			die(storm_name("g", i));
	print_lap("unlink", begin);

	for (uint64_t i = 0; i < count; i += PER_DIR) {
		snprintf(to, sizeof(to), "%" PRIu64, i / PER_DIR);
		if (unlinkat(top, to, AT_REMOVEDIR) < 0)
			die(to);
	}
	if (rmdir("storm") < 0)
		die("storm");
}

/* ---- data ---- */

static uint64_t random_state;

static uint64_t random_page(uint64_t pages) /* xorshift: the same places every time */
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state % pages;
}

/* What stands at each KiB of a page: written once in order (write 0), or over it later. */
static uint64_t page_word(uint64_t page, uint64_t kib, bool over)
{
	return (page * 4 + kib) * UINT64_C(0x9E3779B97F4A7C15) ^ (over ? 0x5555 : 0);
}

static void fill_pages(uint8_t *buf, uint64_t page, size_t count, bool over)
{
	for (size_t k = 0; k < count * 4; k++) {
		uint64_t word = page_word(page + k / 4, k % 4, over);

		memcpy(buf + k * 1024, &word, sizeof(word));
	}
}

static void check_pages(const uint8_t *buf, uint64_t page, size_t count)
{
	for (size_t k = 0; k < count * 4; k++) {
		uint64_t word;

		memcpy(&word, buf + k * 1024, sizeof(word));
		if (word != page_word(page + k / 4, k % 4, false) &&
		    word != page_word(page + k / 4, k % 4, true)) {
			fprintf(stderr, "filework: page %" PRIu64 " is not what was written\n",
				page + k / 4);
			exit(1);
		}
	}
}

static uint8_t block[BLOCK];

/* Incompressible enough not to flatter anybody, a block at a time differing by page_word alone. */
static void fill_block(void)
{
	random_state = 88172645463325252;
	for (size_t i = 0; i < BLOCK; i++)
		block[i] = (uint8_t)random_page(256);
}

static int open_file(char **args, int flags, uint64_t *ret_bytes)
{
	int fd = open(args[0], flags | O_CLOEXEC, 0666);

	if (fd < 0)
		die(args[0]);
	*ret_bytes = count_of(args[1]) << 20;
	return fd;
}

static void do_write(char **args)
{
	uint64_t bytes, begin;
	int fd = open_file(args, O_WRONLY | O_CREAT | O_TRUNC, &bytes);

	fill_block();
	begin = now_ns();
	for (uint64_t at = 0; at < bytes; at += BLOCK) {
		fill_pages(block, at / PAGE, BLOCK / PAGE, false);
		if (write(fd, block, BLOCK) != BLOCK)
			die(args[0]);
	}
	if (close(fd) < 0)
		die(args[0]);
	print_lap("write", begin);
}

static void do_overwrite(char **args)
{
	uint64_t bytes;
	int fd = open_file(args, O_WRONLY, &bytes);

	fill_block();
	for (uint64_t laps = count_of(args[3]); laps > 0; laps--) {
		uint64_t begin = now_ns();

		for (uint64_t n = count_of(args[2]); n > 0; n--) {
			uint64_t page = random_page(bytes / PAGE);

			fill_pages(block, page, 1, true);
			if (pwrite(fd, block, PAGE, (off_t)(page * PAGE)) != PAGE)
				die(args[0]);
		}
		print_lap("overwrite", begin);
	}
	if (close(fd) < 0)
		die(args[0]);
}

static void read_all(int fd, uint64_t bytes)
{
	for (uint64_t at = 0; at < bytes; at += BLOCK) {
		if (pread(fd, block, BLOCK, (off_t)at) != BLOCK)
			die("read");
		check_pages(block, at / PAGE, BLOCK / PAGE);
	}
}

static void do_read(char **args)
{
	uint64_t bytes;
	int fd = open_file(args, O_RDONLY, &bytes);

	for (uint64_t n = count_of(args[2]); n > 0; n--) {
		uint64_t begin = now_ns();

		read_all(fd, bytes);
		print_lap("read", begin);
	}
	close(fd);
}

static int open_dropped(char **args, int advice, uint64_t *ret_bytes)
{
	int fd = open_file(args, O_RDWR, ret_bytes);

	/* Only clean pages can go. */
	if (fsync(fd) < 0 || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) ||
	    posix_fadvise(fd, 0, 0, advice))
		die(args[0]);
	return fd;
}

static void do_reread(char **args)
{
	uint64_t bytes, begin;
	int fd = open_dropped(args, POSIX_FADV_SEQUENTIAL, &bytes);

	begin = now_ns();
	read_all(fd, bytes);
	print_lap("reread", begin);
	close(fd);
}

static void do_pick(char **args)
{
	uint64_t bytes, begin, n = count_of(args[2]);
	int fd = open_dropped(args, POSIX_FADV_RANDOM, &bytes);

	random_state = 1234567;
	begin = now_ns();
	while (n--) {
		uint64_t page = random_page(bytes / PAGE);

		if (pread(fd, block, PAGE, (off_t)(page * PAGE)) != PAGE)
			die("read");
		check_pages(block, page, 1);
	}
	print_lap("pick", begin);
	close(fd);
}

static const struct {
	const char *name;
	void (*fn)(char **args);
	int args;
} modes[] = {
	{ "stat", do_stat, 2 },	  { "open", do_open, 2 },
	{ "storm", do_storm, 2 }, { "write", do_write, 2 },
	{ "read", do_read, 3 },	  { "overwrite", do_overwrite, 4 },
	{ "pick", do_pick, 3 },	  { "reread", do_reread, 2 },
};

int main(int argc, char **argv)
{
	for (size_t i = 0; argc > 1 && i < sizeof(modes) / sizeof(modes[0]); i++) {
		if (strcmp(argv[1], modes[i].name))
			continue;
		if (argc - 2 != modes[i].args)
			break;
		modes[i].fn(argv + 2);
		return fflush(stdout) ? 1 : 0;
	}
	fprintf(stderr, "usage: filework MODE ARGS...\n");
	return 2;
}
