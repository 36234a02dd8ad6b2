/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Trees in and out: directories, tar archives, git revisions. What is the same is decided by
 * treedigest (tests/lib), a program that shares no code with what is tested.
 */

#include <archive.h>
#include <archive_entry.h>
#include <pthread.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>

#include "env/transfer/transfer.h"
#include "store/base/note.h"
#include "tests/unit/fs_fixture.h"

/* ---- helpers ---- */

static char last_note[1024], last_warning[1024];
static unsigned warnings;
static bool cancel;

static void keep_note(void *arg, const char *line)
{
	snprintf(last_note, sizeof(last_note), "%s", line);
}

static void keep_warning(void *arg, const char *line)
{
	warnings++;
	snprintf(last_warning, sizeof(last_warning), "%s", line);
}

static const struct noter noter = { .fn = keep_note };
static const struct progress progress = { .cancel = &cancel };
static const struct import_ops ops = {
	.warn = keep_warning,
	.noter = &noter,
	.progress = &progress,
};

static char *format(const char *fmt, ...) _printf_(1, 2);
static char *format(const char *fmt, ...)
{
	char *s;
	va_list ap;

	va_start(ap, fmt);
	ck_assert_int_ge(vasprintf(&s, fmt, ap), 0);
	va_end(ap);
	return s;
}

static int run(const char *fmt, ...) _printf_(1, 2);
static int run(const char *fmt, ...)
{
	_cleanup_free_ char *line = NULL;
	va_list ap;
	int r;

	va_start(ap, fmt);
	ck_assert_int_ge(vasprintf(&line, fmt, ap), 0);
	va_end(ap);
	r = system(line);
	ck_assert(WIFEXITED(r));
	return WEXITSTATUS(r);
}

/* A directory below the store's own temporary one. */
static int make_dir(const char *name)
{
	int fd;

	ck_assert_int_eq(mkdirat(fx.dir_fd, name, 0700), 0);
	fd = openat(fx.dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	return fd;
}

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

static struct root *import_from(const char *name)
{
	int fd = openat(fx.dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct root *root = NULL;
	int r;

	ck_assert_int_ge(fd, 0);
	r = import_directory(fx_store, fd, &ops, &root, NULL);
	ck_assert_msg(r == 0, "%s: %s", err_name(r), last_note);
	(void)close(fd);
	return root;
}

static void export_to(struct root *root, const char *name)
{
	int fd = make_dir(name), r;

	r = export_directory(fx_store, root, fd, &ops, NULL);
	ck_assert_msg(r == 0, "%s: %s", err_name(r), last_note);
	(void)close(fd);
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

static struct fs open_root(struct root *root)
{
	return (struct fs){ .store = fx_store, .tree = fx_tree(root) };
}

static struct inode resolve(const struct fs *f, const char *path)
{
	struct inode i;
	int r = fs_resolve(f, path, strlen(path), &i);

	ck_assert_msg(r == 0, "%s: %s", path, err_name(r));
	return i;
}

static void content_is(const struct fs *f, const char *path, const char *want)
{
	struct inode i = resolve(f, path);
	char buf[1000];
	size_t n;

	ck_assert_int_eq(fs_read(f, i.ino, 0, buf, sizeof(buf), &n), 0);
	ck_assert_uint_eq(n, strlen(want));
	ck_assert_int_eq(memcmp(buf, want, n), 0);
}

static void write_at(int dir_fd, const char *name, uint64_t off, const void *data, size_t len)
{
	int fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(pwrite(fd, data, len, (off_t)off), len);
	ck_assert_int_eq(close(fd), 0);
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
				   sizeof(acl_default)));

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

/* ---- directories ---- */

START_TEST(a_directory_comes_back_as_it_was)
{
	_cleanup_(root_unrefp) struct root *root = NULL;

	make_source("source", WITH_SOCKET);
	root = import_from("source");
	export_to(root, "copy");
	same("source", "copy", "");
	ck_assert_uint_eq(warnings, 0);
}
END_TEST

START_TEST(one_source_gives_one_state)
{
	_cleanup_(root_unrefp) struct root *one = NULL, *two = NULL;
	struct name x, y;

	make_source("source", WITH_SOCKET);
	one = import_from("source");
	two = import_from("source");
	x = name_of_root(one);
	y = name_of_root(two);
	ck_assert(name_eq(&x, &y));
}
END_TEST

START_TEST(numbers_dealt_out_later_are_new)
{
	_cleanup_(root_unrefp) struct root *root = NULL;
	struct fs f;

	make_source("source", 0);
	root = import_from("source");
	f = open_root(root);
	ck_assert_uint_gt(store_take_ino(fx_store, 1), resolve(&f, "tiny").ino);
	ck_assert_uint_gt(store_take_ino(fx_store, 1), resolve(&f, "dir/up").ino);
	ck_assert_uint_gt(store_take_ino(fx_store, 1), resolve(&f, "not \xff utf-8 \xc3").ino);
	tree_free(f.tree);
}
END_TEST

#define DEPTH 400 /* times 33 bytes: three times PATH_MAX, and more levels than FDS_KEPT */

START_TEST(deeper_than_any_path)
{
	_cleanup_(root_unrefp) struct root *root = NULL, *again = NULL;
	int fd = make_dir("source");

	for (unsigned n = 0; n < DEPTH; n++) {
		int below;

		ck_assert_int_eq(mkdirat(fd, "thirty-two bytes of a long name.", 0755), 0);
		below = openat(fd, "thirty-two bytes of a long name.",
			       O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		ck_assert_int_ge(below, 0);
		write_at(fd, "~after", 0, "x", 1);
		if (n == 0)
			write_at(fd, "first name", 0, "linked", 6);
		(void)close(fd);
		fd = below;
	}
	write_at(fd, "bottom", 0, "bottom\n", 7);
	(void)close(fd);
	ck_assert_int_eq(run("cd '%s/source' && python3 -c '\n"
			     "import os\n"
			     "top = os.open(\".\", os.O_RDONLY)\n"
			     "while True:\n"
			     "    try: os.chdir(\"thirty-two bytes of a long name.\")\n"
			     "    except FileNotFoundError: break\n"
			     "os.link(\"first name\", \"linked\", src_dir_fd=top)'",
			     fx.path),
			 0);

	root = import_from("source");
	export_to(root, "copy");
	same("source", "copy", "");
	again = import_from("copy");
	ck_assert_int_eq(run("rm -rf '%s/source' '%s/copy'", fx.path, fx.path), 0);
}
END_TEST

struct swapper {
	int fd;
	bool stop;
};

static void *swap(void *arg)
{
	struct swapper *s = arg;

	while (!__atomic_load_n(&s->stop, __ATOMIC_RELAXED))
		(void)renameat2(s->fd, "dir", s->fd, "link",
				RENAME_EXCHANGE); /* that is the attack */
	return NULL;
}

START_TEST(a_symlink_swapped_in_is_not_followed)
{
	struct swapper s = { .fd = make_dir("source") };
	pthread_t thread;
	int outside = make_dir("outside");

	write_at(outside, "secret", 0, "secret", 6);
	ck_assert_int_eq(mkdirat(s.fd, "dir", 0755), 0);
	write_at(s.fd, "dir/harmless", 0, "x", 1);
	ck_assert_int_eq(symlinkat("../outside", s.fd, "link"), 0);
	ck_assert_int_eq(pthread_create(&thread, NULL, swap, &s), 0);
	for (unsigned n = 0; n < 300; n++) {
		struct root *root = NULL;
		struct inode i;
		struct fs f;
		int r = import_directory(fx_store, s.fd, &ops, &root, NULL);

		if (r < 0) /* given up on a name that would not keep still */
			continue;
		f = open_root(root);
		ck_assert_int_ne(fs_resolve(&f, "dir/secret", 10, &i), 0);
		ck_assert_int_ne(fs_resolve(&f, "link/secret", 11, &i), 0);
		tree_free(f.tree);
		root_unref(root);
	}
	__atomic_store_n(&s.stop, true, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
	(void)close(outside);
	(void)close(s.fd);
}
END_TEST

static void *resize(void *arg)
{
	struct swapper *s = arg;

	while (!__atomic_load_n(&s->stop, __ATOMIC_RELAXED)) {
		ck_assert_int_eq(ftruncate(s->fd, 10), 0);
		ck_assert_int_eq(ftruncate(s->fd, 3000000), 0);
		ck_assert_int_eq(pwrite(s->fd, "end", 3, 3000000), 3);
	}
	return NULL;
}

START_TEST(a_file_that_changes_size_is_taken_consistently)
{
	int dir = make_dir("source");
	struct swapper s = { 0 };
	pthread_t thread;

	write_at(dir, "f", 0, "x", 1);
	s.fd = openat(dir, "f", O_RDWR | O_CLOEXEC);
	ck_assert_int_eq(pthread_create(&thread, NULL, resize, &s), 0);
	for (unsigned n = 0; n < 200; n++) {
		_cleanup_(root_unrefp) struct root *root = NULL;
		struct inode i;
		char buf[4];
		size_t got;
		struct fs f;

		ck_assert_int_eq(import_directory(fx_store, dir, &ops, &root, NULL), 0);
		f = open_root(root);
		i = resolve(&f, "f");
		ck_assert_uint_le(i.bytes, i.size);
		ck_assert_int_eq(fs_read(&f, i.ino, i.size - 1, buf, 4, &got), 0);
		ck_assert_uint_eq(got, 1);
		tree_free(f.tree);
	}
	__atomic_store_n(&s.stop, true, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
	(void)close(s.fd);
	(void)close(dir);
}
END_TEST

START_TEST(cancelling_stops_it)
{
	_cleanup_(root_unrefp) struct root *root = NULL;
	struct root *none = NULL;
	int fd, out;

	make_source("source", 0);
	root = import_from("source");
	fd = openat(fx.dir_fd, "source", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	out = make_dir("copy");
	cancel = true;
	ck_assert_int_eq(import_directory(fx_store, fd, &ops, &none, NULL), -ERR_CANCELLED);
	ck_assert_int_eq(export_directory(fx_store, root, out, &ops, NULL), -ERR_CANCELLED);
	cancel = false;
	ck_assert_ptr_null(none);
	(void)close(fd);
	(void)close(out);
}
END_TEST

START_TEST(an_export_replaces_nothing)
{
	_cleanup_(root_unrefp) struct root *root = NULL;
	int fd = make_dir("source"), out = make_dir("copy"), victim = make_dir("victim");

	ck_assert_int_eq(mkdirat(fd, "d", 0755), 0);
	write_at(fd, "d/f", 0, "x", 1);
	root = import_from("source");
	ck_assert_int_eq(symlinkat("../victim", out, "d"), 0);
	ck_assert_int_eq(export_directory(fx_store, root, out, &ops, NULL), -EEXIST);
	ck_assert_ptr_nonnull(strstr(last_note, "'d'"));
	ck_assert_int_eq(faccessat(victim, "f", F_OK, 0), -1);
	(void)close(fd);
	(void)close(out);
	(void)close(victim);
}
END_TEST

/* ---- tar ---- */

static int new_file(const char *name)
{
	int fd = openat(fx.dir_fd, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

	ck_assert_int_ge(fd, 0);
	return fd;
}

static void export_tar_to(struct root *root, const char *name)
{
	int fd = new_file(name), r;

	r = export_tar(fx_store, root, fd, &ops, NULL);
	ck_assert_msg(r == 0, "%s: %s", err_name(r), last_note);
	(void)close(fd);
}

static int try_tar(int fd, struct root **ret)
{
	ck_assert_int_eq(lseek(fd, 0, SEEK_SET), 0);
	return import_tar(fx_store, fd, &ops, ret, NULL);
}

static struct root *import_tar_from(const char *name)
{
	int fd = openat(fx.dir_fd, name, O_RDONLY | O_CLOEXEC), r;
	struct root *root = NULL;

	ck_assert_int_ge(fd, 0);
	r = try_tar(fd, &root);
	ck_assert_msg(r == 0, "%s: %s", err_name(r), last_note);
	(void)close(fd);
	return root;
}

START_TEST(through_tar_and_back)
{
	_cleanup_(root_unrefp) struct root *root = NULL, *again = NULL;

	make_source("source", 0);
	root = import_from("source");
	export_tar_to(root, "t.tar");
	again = import_tar_from("t.tar");
	export_to(again, "copy");
	same("source", "copy", "");
	export_tar_to(again, "again.tar");
	ck_assert_int_eq(run("cmp '%s/t.tar' '%s/again.tar'", fx.path, fx.path), 0);
	ck_assert_uint_eq(warnings, 0);
}
END_TEST

START_TEST(gnu_tar_reads_ours)
{
	_cleanup_(root_unrefp) struct root *root = NULL;

	if (geteuid() != 0 || run("tar --version 2>/dev/null | grep -q GNU") != 0)
		return; /* owners and devices want root */
	make_source("source", 0);
	/* It does not undo libarchive's escapes; its notion of times before 1970 is right. */
	ck_assert_int_eq(
		run("setfattr -x 'user.a=b c' '%s/source/tiny' 2>/dev/null; true", fx.path), 0);
	ck_assert_int_eq(run("touch -d @-2147483648.000000001 '%s/source/tiny'; "
			     "touch -d @5.000000005 '%s/source'",
			     fx.path, fx.path),
			 0);
	root = import_from("source");
	export_tar_to(root, "t.tar");
	ck_assert_int_eq(
		run("mkdir '%s/copy' && tar -C '%s/copy' -xpf '%s/t.tar' --numeric-owner --acls "
		    "--xattrs --xattrs-include='*' 2>'%s/log' || { cat '%s/log'; false; }",
		    fx.path, fx.path, fx.path, fx.path, fx.path),
		0);
	same("source", "copy", "");
}
END_TEST

START_TEST(we_read_gnu_tar)
{
	_cleanup_(root_unrefp) struct root *root = NULL, *same_root = NULL;
	struct name x, y;

	if (geteuid() != 0 || run("tar --version 2>/dev/null | grep -q GNU") != 0)
		return; /* owners and devices want root */
	make_source("source", 0);
	/* It takes nothing below 512 bytes for sparse. */
	ck_assert_int_eq(run("rm '%s/source/dir/small hole'", fx.path), 0);
	ck_assert_int_eq(
		run("cd '%s' && tar -C source --format=pax --sort=name --numeric-owner --acls "
		    "--xattrs --xattrs-include='*' --sparse -cf t.tar . 2>/dev/null && "
		    "gzip -k t.tar",
		    fx.path),
		0);
	root = import_tar_from("t.tar");
	export_to(root, "copy");
	same("source", "copy", "");
	same_root = import_tar_from("t.tar.gz");
	x = name_of_root(root);
	y = name_of_root(same_root);
	ck_assert(name_eq(&x, &y));
}
END_TEST

struct member {
	const char *name;
	unsigned mode;	  /* 0: the end */
	const char *link; /* of a symlink, or a hard link when mode is a file's */
	const char *content;
	int64_t mtime;
	long nsec;
	dev_t rdev;
};

static int make_tar(const struct member *members, const char *format_name)
{
	struct archive *a = archive_write_new();
	int fd = memfd_create("tar", MFD_CLOEXEC);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(archive_write_set_format_by_name(a, format_name), ARCHIVE_OK);
	ck_assert_int_eq(archive_write_open_fd(a, fd), ARCHIVE_OK);
	for (const struct member *m = members; m->mode; m++) {
		struct archive_entry *e = archive_entry_new();
		size_t len = m->content ? strlen(m->content) : 0;

		archive_entry_set_pathname(e, m->name);
		archive_entry_set_mode(e, m->mode);
		archive_entry_set_size(e, (la_int64_t)len);
		archive_entry_set_mtime(e, m->mtime, m->nsec);
		archive_entry_set_uid(e, 7);
		archive_entry_set_rdev(e, m->rdev);
		if (m->link && S_ISLNK(m->mode))
			archive_entry_set_symlink(e, m->link);
		else if (m->link)
			archive_entry_set_hardlink(e, m->link);
		ck_assert_int_ge(archive_write_header(a, e), ARCHIVE_WARN);
		if (len)
			ck_assert_int_eq(archive_write_data(a, m->content, len), len);
		archive_entry_free(e);
	}
	ck_assert_int_eq(archive_write_close(a), ARCHIVE_OK);
	archive_write_free(a);
	return fd;
}

#define FILE_MODE (S_IFREG | 0644)
#define DIR_MODE (S_IFDIR | 0755)
#define LINK_MODE (S_IFLNK | 0777)

static const struct {
	struct member members[4];
	const char *in_note;
} hostile[] = {
	{ { { "/etc/passwd", FILE_MODE, NULL, "x" } }, "/etc/passwd" },
	{ { { "../up", FILE_MODE, NULL, "x" } }, "../up" },
	{ { { "a/../../up", FILE_MODE, NULL, "x" } }, "a/../../up" },
	{ { { "a/..", DIR_MODE } }, "a/.." },
	{ { { "..", DIR_MODE } }, ".." },
	{ { { "./../x", FILE_MODE, NULL, "x" } }, "./../x" },
	{ { { "l", LINK_MODE, "/etc" }, { "l/passwd", FILE_MODE, NULL, "x" } }, "l/passwd" },
	{ { { "l", LINK_MODE, "." }, { "l/x/y", FILE_MODE, NULL, "x" } }, "l/x/y" },
	{ { { "h", FILE_MODE, "/etc/passwd" } }, "'h'" },
	{ { { "h", FILE_MODE, "../../etc/passwd" } }, "'h'" },
	{ { { "l", LINK_MODE, "/etc" }, { "h", FILE_MODE, "l/passwd" } }, "'h'" },
	{ { { "d", DIR_MODE }, { "d", LINK_MODE, "/tmp" }, { "d/f", FILE_MODE, NULL, "x" } },
	  "d/f" },
};

START_TEST(hostile_members_are_refused)
{
	for (size_t n = 0; n < ARRAY_SIZE(hostile); n++) {
		int fd = make_tar(hostile[n].members, "pax");
		struct root *root = NULL;

		*last_note = '\0';
		ck_assert_int_eq(try_tar(fd, &root), -ERR_UNSAFE_PATH);
		ck_assert_ptr_null(root);
		ck_assert_msg(strstr(last_note, hostile[n].in_note), "%s", last_note);
		(void)close(fd);
	}
}
END_TEST

static const struct {
	struct member members[4];
	int r;
} impossible[] = {
	{ { { "h", FILE_MODE, "not there" } }, -ERR_SOURCE },
	{ { { "d", DIR_MODE }, { "h", FILE_MODE, "d" } }, -EPERM },
	{ { { "f", FILE_MODE, NULL, "x" }, { "f/g", FILE_MODE, NULL, "x" } }, -ENOTDIR },
	{ { { "d/f", FILE_MODE, NULL, "x" }, { "d", FILE_MODE, NULL, "x" } }, -ENOTEMPTY },
	{ { { "./", FILE_MODE, NULL, "x" } }, -ERR_SOURCE },
};

START_TEST(impossible_members_are_refused)
{
	for (size_t n = 0; n < ARRAY_SIZE(impossible); n++) {
		int fd = make_tar(impossible[n].members, "pax"), r;
		struct root *root = NULL;

		r = try_tar(fd, &root);
		ck_assert_msg(r == impossible[n].r, "%zu: %s", n, err_name(r));
		ck_assert_ptr_null(root);
		(void)close(fd);
	}
}
END_TEST

START_TEST(the_last_member_of_a_name_wins)
{
	static const struct member members[] = {
		{ "d/", S_IFDIR | 0700, NULL, NULL, 100 },
		{ "d/f", FILE_MODE, NULL, "first", 1 },
		{ "d/keep", FILE_MODE, NULL, "kept", 1 },
		{ "d/g", FILE_MODE, "d/f" },
		{ "d/f", FILE_MODE, NULL, "second", 2 },
		{ "d/was-link", LINK_MODE, "f" },
		{ "d/was-link", FILE_MODE, NULL, "file", 3 },
		{ "d/was-dir", DIR_MODE },
		{ "d/was-dir", LINK_MODE, "f" },
		{ "d/was-file", FILE_MODE, NULL, "x" },
		{ "d/was-file/now", FILE_MODE + 0, NULL, NULL },
		{ 0 },
	};
	struct member usable[ARRAY_SIZE(members) + 1];
	struct root *root = NULL;
	struct inode i;
	struct fs f;
	int fd;

	memcpy(usable, members, sizeof(members));
	usable[10] = (struct member){ "d/was-file", DIR_MODE };
	usable[11] = (struct member){ "./d", S_IFDIR | 0750, NULL, NULL, 200, 5 };
	usable[12] = (struct member){ 0 };
	fd = make_tar(usable, "pax");
	ck_assert_msg(try_tar(fd, &root) == 0, "%s", last_note);
	f = open_root(root);
	content_is(&f, "d/f", "second");
	content_is(&f, "d/g", "first");
	content_is(&f, "d/keep", "kept");
	content_is(&f, "d/was-link", "file");
	ck_assert(S_ISLNK(resolve(&f, "d/was-dir").mode));
	ck_assert(S_ISDIR(resolve(&f, "d/was-file").mode));
	ck_assert_uint_eq(resolve(&f, "d/g").nlink, 1);
	i = resolve(&f, "d");
	ck_assert_uint_eq(i.mode, S_IFDIR | 0750);
	ck_assert_int_eq(i.mtime.sec, 200);
	ck_assert_uint_eq(i.mtime.nsec, 5);
	ck_assert_uint_eq(i.nlink, 3);
	tree_free(f.tree);
	root_unref(root);
	(void)close(fd);
}
END_TEST

START_TEST(missing_directories_come_into_being)
{
	static const struct member members[] = {
		{ "./a//b/./c", FILE_MODE, NULL, "x", -5, 250000000 },
		{ "dev/null", S_IFCHR | 0666, NULL, NULL, 1, 0, 0x103 },
		{ "pipe", S_IFIFO | 0600 },
		{ "\xff/e\xcc\x81", FILE_MODE, NULL, "bytes" },
		{ 0 },
	};
	struct root *root = NULL;
	struct inode i;
	struct fs f;
	int fd;

	fd = make_tar(members, "pax");
	ck_assert_msg(try_tar(fd, &root) == 0, "%s", last_note);
	f = open_root(root);
	content_is(&f, "a/b/c", "x");
	i = resolve(&f, "a/b");
	ck_assert_uint_eq(i.mode, S_IFDIR | 0755);
	ck_assert_uint_eq(i.uid, 7);
	i = resolve(&f, "a/b/c");
	ck_assert_int_eq(i.mtime.sec, -6); /* "-5.25" is -6 + 0.75 */
	ck_assert_uint_eq(i.mtime.nsec, 750000000);
	i = resolve(&f, "dev/null");
	ck_assert(S_ISCHR(i.mode) && i.rdev == 0x103);
	ck_assert(S_ISFIFO(resolve(&f, "pipe").mode));
	content_is(&f, "\xff/e\xcc\x81", "bytes");
	tree_free(f.tree);
	root_unref(root);
	(void)close(fd);
}
END_TEST

START_TEST(old_tar_formats_are_read)
{
	static const char *const formats[] = { "ustar", "gnutar", "v7tar" };
	static const struct member members[] = {
		{ "d/\xe4", FILE_MODE, NULL, "latin", 5 },
		{ "l", LINK_MODE, "d/\xe4" },
		{ "h", FILE_MODE, "d/\xe4" },
		{ 0 },
	};

	for (size_t n = 0; n < ARRAY_SIZE(formats); n++) {
		int fd = make_tar(members, formats[n]);
		struct root *root = NULL;
		struct fs f;

		ck_assert_msg(try_tar(fd, &root) == 0, "%s: %s", formats[n], last_note);
		f = open_root(root);
		content_is(&f, "d/\xe4", "latin");
		content_is(&f, "h", "latin");
		ck_assert(S_ISLNK(resolve(&f, "l").mode));
		tree_free(f.tree);
		root_unref(root);
		(void)close(fd);
	}
}
END_TEST

START_TEST(damaged_archives_are_refused)
{
	_cleanup_(root_unrefp) struct root *root = NULL;
	struct root *none = NULL;
	int whole, garbage = memfd_create("garbage", MFD_CLOEXEC);
	char buf[65536];
	off_t size;

	ck_assert_int_eq(write(garbage, "this is no archive at all\n", 26), 26);
	ck_assert_int_eq(try_tar(garbage, &none), -ERR_SOURCE);
	ck_assert_ptr_null(none);
	(void)close(garbage);

	make_source("source", 0);
	root = import_from("source");
	export_tar_to(root, "t.tar");
	whole = openat(fx.dir_fd, "t.tar", O_RDONLY | O_CLOEXEC);
	size = lseek(whole, 0, SEEK_END);

	/* Cut anywhere, or with bytes changed anywhere: an answer, and never a broken state. */
	srand(1);
	for (unsigned n = 0; n < 150; n++) {
		int fd = memfd_create("cut", MFD_CLOEXEC), r;
		off_t at = 0, end = n % 2 ? size : rand() % size;
		ssize_t got;

		while (at < end &&
		       (got = pread(whole, buf, MIN((size_t)(end - at), sizeof(buf)), at)) > 0) {
			ck_assert_int_eq(write(fd, buf, (size_t)got), got);
			at += got;
		}
		for (unsigned k = 0; n % 2 && k < 5; k++) {
			buf[0] = (char)rand();
			ck_assert_int_eq(pwrite(fd, buf, 1, rand() % size), 1);
		}
		none = NULL;
		r = try_tar(fd, &none);
		ck_assert(r <= 0 && (r == 0) == (none != NULL));
		if (none)
			root_unref(none);
		(void)close(fd);
	}
	(void)close(whole);
}
END_TEST

START_TEST(a_full_disk_fails_once_and_clearly)
{
	_cleanup_(root_unrefp) struct root *root = NULL;
	int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);

	if (fd < 0)
		return;
	make_source("source", WITH_SOCKET);
	root = import_from("source");
	ck_assert_int_eq(export_tar(fx_store, root, fd, &ops, NULL), -ENOSPC);
	ck_assert_str_eq(last_note, "writing the archive");
	(void)close(fd);
}
END_TEST

START_TEST(a_pipe_that_nobody_reads_fails_clearly)
{
	_cleanup_(root_unrefp) struct root *root = NULL;
	int p[2];

	make_source("source", WITH_SOCKET);
	root = import_from("source");
	ck_assert_int_eq(pipe2(p, O_CLOEXEC), 0);
	(void)close(p[0]);
	ck_assert_int_eq(export_tar(fx_store, root, p[1], &ops, NULL), -EPIPE);
	ck_assert_str_eq(last_note, "writing the archive");
	(void)close(p[1]);
}
END_TEST

static void *cancel_soon(void *arg)
{
	(void)usleep(300000); /* the pipe is full by then; if not, it has been cancelled sooner */
	__atomic_store_n(&cancel, true, __ATOMIC_RELAXED);
	return NULL;
}

/* With what fits into the sockets, and with more. */
START_TEST(a_pipe_whose_reader_sleeps_can_be_cancelled)
{
	for (unsigned more = 0; more < 2; more++) {
		_cleanup_(root_unrefp) struct root *root = NULL;
		_cleanup_free_ char *name = format("source%u", more);
		_cleanup_free_ uint8_t *buf = malloc(4 << 20);
		int p[2], dir = make_dir(name);
		pthread_t thread;

		fx_fill(buf, 4 << 20, 1);
		write_at(dir, "f", 0, buf, more ? 4 << 20 : 100000);
		root = import_from(name);
		ck_assert_int_eq(pipe2(p, O_CLOEXEC), 0);
		if (more)
			ck_assert_int_eq(fcntl(p[1], F_SETFL, O_NONBLOCK), 0);
		ck_assert_int_eq(pthread_create(&thread, NULL, cancel_soon, NULL), 0);
		ck_assert_int_eq(export_tar(fx_store, root, p[1], &ops, NULL), -ERR_CANCELLED);
		pthread_join(thread, NULL);
		cancel = false;
		(void)close(dir);
		(void)close(p[0]);
		(void)close(p[1]);
	}
}
END_TEST

/* A reader that is slower than we are, of a pipe that does not wait. */
START_TEST(a_slow_pipe_gets_all_of_it)
{
	_cleanup_(root_unrefp) struct root *root = NULL;
	pid_t pid;
	int p[2], status;

	make_source("source", 0);
	root = import_from("source");
	export_tar_to(root, "t.tar");
	ck_assert_int_eq(pipe2(p, O_CLOEXEC), 0);
	ck_assert_int_eq(fcntl(p[1], F_SETFL, O_NONBLOCK), 0);
	pid = fork();
	if (pid == 0) {
		_cleanup_free_ char *line = format("sleep 0.2; cmp - '%s/t.tar'", fx.path);

		(void)dup2(p[0], STDIN_FILENO);
		(void)execl("/bin/sh", "sh", "-c", line, NULL);
		_exit(127);
	}
	(void)close(p[0]);
	ck_assert_int_eq(export_tar(fx_store, root, p[1], &ops, NULL), 0);
	(void)close(p[1]);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
}
END_TEST

START_TEST(a_socket_is_left_out_of_a_tar)
{
	_cleanup_(root_unrefp) struct root *root = NULL;
	struct transfer_stats stats;
	int fd;

	make_source("source", WITH_SOCKET);
	root = import_from("source");
	fd = new_file("t.tar");
	ck_assert_int_eq(export_tar(fx_store, root, fd, &ops, &stats), 0);
	ck_assert_uint_eq(stats.skipped, 1);
	ck_assert_uint_eq(warnings, 1);
	ck_assert_ptr_nonnull(strstr(last_warning, "'socket'"));
	(void)close(fd);
}
END_TEST

/* ---- git ---- */

static int make_repo(const char *script)
{
	return run("mkdir -p '%s/repo' && cd '%s/repo' && export HOME='%s' && git init -q . && "
		   "git config user.name n && git config user.email e && %s",
		   fx.path, fx.path, fx.path, script);
}

static int try_git(const char *rev, struct root **ret)
{
	_cleanup_free_ char *path = format("%s/repo", fx.path);

	return import_git(fx_store, path, rev, &ops, ret, NULL);
}

START_TEST(a_revision_is_brought_in)
{
	struct root *root = NULL;
	struct inode i;
	struct fs f;

	ck_assert_int_eq(
		make_repo(
			"mkdir d && echo one >d/f && echo '#!/bin/sh' >x && "
			"chmod +x x && ln -s d/f l && "
			"git add . && git update-index --add --cacheinfo "
			"160000,1234567890123456789012345678901234567890,sub && "
			"GIT_COMMITTER_DATE='1111111111 +0100' git commit -qm one && "
			"git tag first && echo two >d/f && git commit -qam two"),
		0);
	ck_assert_msg(try_git("first", &root) == 0, "%s", last_note);
	f = open_root(root);
	content_is(&f, "d/f", "one\n");
	i = resolve(&f, "d/f");
	ck_assert_uint_eq(i.mode, S_IFREG | 0644);
	ck_assert_int_eq(i.mtime.sec, 1111111111);
	ck_assert_uint_eq(i.uid, geteuid());
	ck_assert_uint_eq(resolve(&f, "x").mode, S_IFREG | 0755);
	ck_assert(S_ISLNK(resolve(&f, "l").mode));
	ck_assert(S_ISDIR(resolve(&f, "sub").mode));
	ck_assert_uint_eq(warnings, 1);
	ck_assert_ptr_nonnull(strstr(last_warning, "'sub'"));
	tree_free(f.tree);
	root_unref(root);

	ck_assert_int_eq(try_git("HEAD", &root), 0);
	f = open_root(root);
	content_is(&f, "d/f", "two\n");
	tree_free(f.tree);
	root_unref(root);
	ck_assert_int_eq(try_git("HEAD~1:d", &root), 0);
	f = open_root(root);
	content_is(&f, "f", "one\n");
	tree_free(f.tree);
	root_unref(root);

	root = NULL;
	ck_assert_int_eq(try_git("no-such-revision", &root), -ERR_SOURCE);
	ck_assert_ptr_nonnull(strstr(last_note, "no-such-revision"));
	ck_assert_ptr_null(root);
}
END_TEST

static const char *const unsafe_names[] = {
	"..",
	".",
	".git",
	".GIT",
	".Git",
	"git~1",
	"GIT~1",
	".git.",
	".git ",
	".git . .",
	".git::$INDEX",
	".g\xe2\x80\x8cit",
	"\xef\xbb\xbf.git",
	".gi\xe2\x81\xaat",
	"a/b",
	"a\\.git",
	".git\\x",
	"..\\.GIT ",
};

static const char *const safe_names[] = {
	".gitignore",
	".gitx",
	"git",
	"git~2",
	"git~1x",
	".git~",
	"x.git",
	"...",
	"..a",
	".g\xc3\xaft",
	"a\\b",
	".gi\xe2\x80\x8b"
	"t",
	"trailing ",
};

static int try_name(const char *name, struct root **ret)
{
	/* A tree object written byte by byte: no tool would make it. */
	FILE *f;
	_cleanup_free_ char *path = format("%s/tree", fx.path), *tree = NULL;
	size_t cap = 0;
	int r;

	f = fopen(path, "we");
	fprintf(f, "100644 %s", name);
	fputc('\0', f);
	/* the empty blob */
	fwrite("\xe6\x9d\xe2\x9b\xb2\xd1\xd6\x43\x4b\x8b\x29\xae\x77\x5a\xd8\xc2\xe4\x8c\x53\x91",
	       1, 20, f);
	fclose(f);
	ck_assert_int_eq(
		run("cd '%s/repo' && git hash-object -w -t blob --stdin </dev/null >/dev/null && "
		    "git hash-object -w -t tree --literally --stdin <../tree >../id",
		    fx.path),
		0);
	free(path);
	path = format("%s/id", fx.path);
	f = fopen(path, "re");
	ck_assert_int_gt(getdelim(&tree, &cap, '\n', f), 0);
	tree[strcspn(tree, "\n")] = '\0';
	fclose(f);
	*last_note = '\0';
	r = try_git(tree, ret);
	return r;
}

START_TEST(unsafe_names_are_refused)
{
	ck_assert_int_eq(make_repo("true"), 0);
	for (size_t n = 0; n < ARRAY_SIZE(unsafe_names); n++) {
		struct root *root = NULL;
		int r = try_name(unsafe_names[n], &root);

		ck_assert_msg(r == -ERR_UNSAFE_PATH, "'%s': %s %s", unsafe_names[n], err_name(r),
			      last_note);
		ck_assert_ptr_null(root);
		ck_assert_ptr_nonnull(strstr(last_note, unsafe_names[n]));
	}
}
END_TEST

START_TEST(names_that_only_look_like_it_are_kept)
{
	ck_assert_int_eq(make_repo("true"), 0);
	for (size_t n = 0; n < ARRAY_SIZE(safe_names); n++) {
		struct root *root = NULL;
		int r = try_name(safe_names[n], &root);

		ck_assert_msg(r == 0, "'%s': %s %s", safe_names[n], err_name(r), last_note);
		root_unref(root);
	}
}
END_TEST

START_TEST(a_strangers_repository_is_told_about)
{
	struct root *root = NULL;

	if (geteuid() != 0)
		return;
	ck_assert_int_eq(
		make_repo("echo x >f && git add f && git commit -qm x && chown -R 12345 ."), 0);
	ck_assert_int_eq(setenv("HOME", fx.path, 1), 0);
	ck_assert_msg(try_git("HEAD", &root) == -EPERM, "%s", last_note);
	ck_assert_ptr_nonnull(strstr(last_note, "safe.directory"));
	ck_assert_ptr_null(root);
}
END_TEST

/* A directory without write permission would stay behind. */
static void open_and_teardown(void)
{
	if (geteuid() != 0)
		(void)run("chmod -R u+rwX '%s'", fx.path); /* litter at worst */
	teardown();
}

int main(void)
{
	TCase *t = tcase_create("transfer");

	tcase_set_timeout(t, 180); /* other programs are run; sanitizers */
	tcase_add_checked_fixture(t, setup, open_and_teardown);
	tcase_add_test(t, a_directory_comes_back_as_it_was);
	tcase_add_test(t, one_source_gives_one_state);
	tcase_add_test(t, numbers_dealt_out_later_are_new);
	tcase_add_test(t, deeper_than_any_path);
	tcase_add_test(t, a_symlink_swapped_in_is_not_followed);
	tcase_add_test(t, a_file_that_changes_size_is_taken_consistently);
	tcase_add_test(t, cancelling_stops_it);
	tcase_add_test(t, an_export_replaces_nothing);
	tcase_add_test(t, through_tar_and_back);
	tcase_add_test(t, gnu_tar_reads_ours);
	tcase_add_test(t, we_read_gnu_tar);
	tcase_add_test(t, hostile_members_are_refused);
	tcase_add_test(t, impossible_members_are_refused);
	tcase_add_test(t, the_last_member_of_a_name_wins);
	tcase_add_test(t, missing_directories_come_into_being);
	tcase_add_test(t, old_tar_formats_are_read);
	tcase_add_test(t, damaged_archives_are_refused);
	tcase_add_test(t, a_full_disk_fails_once_and_clearly);
	tcase_add_test(t, a_pipe_that_nobody_reads_fails_clearly);
	tcase_add_test(t, a_pipe_whose_reader_sleeps_can_be_cancelled);
	tcase_add_test(t, a_slow_pipe_gets_all_of_it);
	tcase_add_test(t, a_socket_is_left_out_of_a_tar);
	tcase_add_test(t, a_revision_is_brought_in);
	tcase_add_test(t, unsafe_names_are_refused);
	tcase_add_test(t, names_that_only_look_like_it_are_kept);
	tcase_add_test(t, a_strangers_repository_is_told_about);
	return run_case("transfer", t);
}
