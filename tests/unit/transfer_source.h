/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A directory with one of everything, to be brought in and out again. What is the same is decided
 * by treedigest (tests/lib), a program that shares no code with what is tested.
 */

#include <sys/sysmacros.h>
#include <sys/xattr.h>

#include "tests/unit/transfer_fixture.h"

static char *digest(const char *name, const char *options)
{
	const char *build = getenv("PLYFS_BUILD"), *program = getenv("TREEDIGEST");
	_cleanup_free_ char *line = NULL, *path = NULL;
	char *text = NULL;
	size_t len = 0;
	FILE *f;

	path = program ? strdup(program) : format("%s/tests/treedigest", build ? build : ".");
	line = format("'%s' --list %s '%s/%s'", path, options, fx.path, name);
	f = popen(line, "re");
	ck_assert_ptr_nonnull(f);
	ck_assert_int_gt(getdelim(&text, &len, '\0', f), 0);
	ck_assert_msg(pclose(f) == 0, "%s", line);
	return text;
}

static void same(const char *x, const char *y, const char *options)
{
	_cleanup_free_ char *dx = digest(x, options), *dy = digest(y, options);

	if (strcmp(dx, dy) == 0)
		return;
	for (char *p = dx, *q = dy; *p && *q;) { /* the first line that differs */
		size_t n = strcspn(p, "\n"), m = strcspn(q, "\n");

		if (n != m || memcmp(p, q, n) != 0)
			ck_abort_msg("%s and %s differ:\n%.*s\n%.*s", x, y, (int)n, p, (int)m, q);
		p += n + 1;
		q += m + 1;
	}
	ck_abort_msg("%s and %s differ", x, y);
}

/* The name of a state: what it is sealed as. */
static struct name name_of_root(struct root *root)
{
	struct snap_info info;
	uint64_t id;

	ck_assert_int_eq(snap_create(fx_store, root, 0, 1, "main", NULL, SNAP_IMPORT, &id), 0);
	ck_assert_int_eq(snap_wait(fx_store, id), 0);
	ck_assert_int_eq(snap_get(fx_store, id, &info), 0);
	ck_assert(info.has_root);
	return info.root;
}

static void set_time(int dir_fd, const char *name, int64_t sec, long nsec)
{
	const struct timespec t[2] = { { .tv_sec = sec, .tv_nsec = nsec },
				       { .tv_sec = sec, .tv_nsec = nsec } };

	ck_assert_int_eq(utimensat(dir_fd, name, t, AT_SYMLINK_NOFOLLOW), 0);
}

/* Set where the filesystem of the tests can: false otherwise. */
static bool set_attr(const char *dir, const char *name, const char *attr, const void *value,
		     size_t len)
{
	_cleanup_free_ char *path = format("%s/%s/%s", fx.path, dir, name);

	return lsetxattr(path, attr, value, len, 0) == 0;
}

static const uint8_t acl_access[] = {
	2, 0,	0,   0,	  0x01, 0,    6,    0, 255, 255, 255, 255, 0x02, 0,    4,
	0, 232, 3,   0,	  0,	0x04, 0,    4, 0,   255, 255, 255, 255,	 0x10, 0,
	6, 0,	255, 255, 255,	255,  0x20, 0, 0,   0,	 255, 255, 255,	 255,
};
static const uint8_t acl_default[] = {
	2, 0,	0,   0,	  0x01, 0,    7,    0, 255, 255, 255, 255, 0x04, 0,    5,
	0, 255, 255, 255, 255,	0x08, 0,    7, 0,   100, 0,   0,   0,	 0x10, 0,
	7, 0,	255, 255, 255,	255,  0x20, 0, 1,   0,	 255, 255, 255,	 255,
};

enum { WITH_SOCKET = 1 };

/* One of everything, below fx.path/NAME. */
static void make_source(const char *name, unsigned with)
{
	int fd = make_dir(name), sub, f;
	_cleanup_free_ uint8_t *buf = malloc(700000);
	char long_name[256];

	fx_fill(buf, 700000, 3);
	ck_assert_int_eq(mkdirat(fd, "dir", 0755), 0);
	sub = openat(fd, "dir", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	ck_assert_int_eq(mkdirat(sub, "empty", 0700), 0);
	ck_assert_int_eq(mkdirat(sub, "closed", 0700), 0);

	write_at(fd, "empty file", 0, "", 0);
	write_at(fd, "tiny", 0, "tiny\n", 5);
	write_at(fd, "at the inline limit", 0, buf, 512);
	write_at(fd, "beyond it", 0, buf, 513);
	write_at(sub, "one chunk", 0, buf, 128 * 1024);
	write_at(sub, "large", 0, buf, 700000);
	write_at(sub, "closed/inside", 0, "x", 1);
	ck_assert_int_eq(fchmodat(sub, "closed", geteuid() == 0 ? 0 : 0500, 0), 0);

	/* Holes: first, middle, last, everywhere; small and huge. */
	write_at(sub, "hole first", 300 * 4096, buf, 5000);
	write_at(sub, "hole middle", 0, buf, 4096);
	write_at(sub, "hole middle", 100 * 4096, buf, 10);
	f = openat(sub, "hole last", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	ck_assert_int_eq(pwrite(f, buf, 10000, 0), 10000);
	ck_assert_int_eq(ftruncate(f, 50000000), 0);
	(void)close(f);
	f = openat(sub, "all hole", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	ck_assert_int_eq(ftruncate(f, INT64_C(1) << 40), 0);
	(void)close(f);
	f = openat(sub, "small hole", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	ck_assert_int_eq(ftruncate(f, 100), 0);
	(void)close(f);

	/* Names. */
	memset(long_name, 'n', 255);
	long_name[255] = '\0';
	write_at(fd, long_name, 0, "255", 3);
	write_at(fd, "not \xff utf-8 \xc3", 0, "x", 1);
	write_at(fd, "new\nline\t\\ \"quotes\"", 0, "x", 1);
	write_at(fd, "decomposed e\xcc\x81", 0, "x", 1);
	write_at(fd, "-dash", 0, "x", 1);
	write_at(fd, ".hidden", 0, "x", 1);

	/* Other types; names of one object. */
	ck_assert_int_eq(symlinkat("tiny", fd, "link"), 0);
	ck_assert_int_eq(symlinkat("/nowhere/\xff", sub, "dangling"), 0);
	ck_assert_int_eq(symlinkat("..", sub, "up"), 0);
	ck_assert_int_eq(linkat(fd, "tiny", sub, "tiny too", 0), 0);
	ck_assert_int_eq(linkat(fd, "tiny", fd, "a third tiny", 0), 0);
	ck_assert_int_eq(linkat(fd, "link", fd, "hard link to a link", 0), 0);
	ck_assert_int_eq(mkfifoat(fd, "fifo", 0640), 0);
	if (with & WITH_SOCKET)
		ck_assert_int_eq(mknodat(fd, "socket", S_IFSOCK | 0755, 0), 0);

	/* Modes, owners, attributes. */
	ck_assert_int_eq(fchmodat(fd, "-dash", geteuid() == 0 ? 0 : 0400, 0), 0);
	ck_assert_int_eq(fchmodat(sub, "large", 0444, 0), 0);
	if (geteuid() == 0) {
		ck_assert_int_eq(mknodat(fd, "device", S_IFCHR | 0600, makedev(1, 3)), 0);
		ck_assert_int_eq(fchownat(fd, "fifo", 1234, 4321, 0), 0);
		ck_assert_int_eq(fchownat(fd, "link", 55, 66, AT_SYMLINK_NOFOLLOW), 0);
		ck_assert_int_eq(fchownat(sub, "large", 4000000000u, 3, 0), 0);
		(void)set_attr(name, "link", "trusted.on-a-link", "v", 1);
		(void)set_attr(name, "fifo", "trusted.on-a-fifo", "v", 1);
		(void)set_attr(
			name, "beyond it", "security.capability",
			"\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00"
			"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
			20);
	}
	ck_assert_int_eq(fchmodat(fd, "beyond it", 06751, 0), 0);
	ck_assert_int_eq(fchmodat(fd, "dir", 01777, 0), 0);
	if (set_attr(name, "tiny", "user.a", "value", 5)) {
		ck_assert(set_attr(name, "tiny", "user.empty", "", 0));
		ck_assert(set_attr(name, "tiny", "user.a=b c", "\0\xff\n", 3));
		ck_assert(set_attr(name, "dir", "user.large", buf, 3000));
	}
	if (set_attr(name, "at the inline limit", "system.posix_acl_access", acl_access,
		     sizeof(acl_access)))
		ck_assert(set_attr(name, "dir/empty", "system.posix_acl_default", acl_default,
				   sizeof(acl_default)) &&
			  fchmodat(fd, "dir/empty", 03700, 0) == 0 &&
			  fchmodat(fd, "at the inline limit", 06660, 0) == 0);

	/* Times: 1901, around 1970, 2446, all with nanoseconds; directories last. */
	set_time(fd, "tiny", -2147483648, 1);
	set_time(fd, "link", -2, 999999999);
	set_time(fd, "fifo", 0, 0);
	set_time(sub, "large", INT64_C(15032385535), 0);
	set_time(sub, "one chunk", 1, 123456789);
	set_time(sub, "empty", 1000000000, 1);
	set_time(fd, "dir", 1234567890, 987654321);
	set_time(fd, ".", 5, 5);
	(void)close(sub);
	(void)close(fd);
}
