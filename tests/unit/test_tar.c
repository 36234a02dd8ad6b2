/* SPDX-License-Identifier: Apache-2.0 */

/* Trees in and out of tar archives. What a failing plyfs-tar does is test_tar_write.c's. */

#include <archive.h>
#include <archive_entry.h>
#include <pthread.h>
#include <sys/mman.h>

#include "tests/unit/transfer_source.h"

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
	ck_assert_msg(r == 0, "%s: %s", err_name(r), fx.last_note);
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
	ck_assert_msg(r == 0, "%s: %s", err_name(r), fx.last_note);
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
	ck_assert_msg(warnings == 0, "%s", last_warning);
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

		*fx.last_note = '\0';
		ck_assert_int_eq(try_tar(fd, &root), -ERR_UNSAFE_PATH);
		ck_assert_ptr_null(root);
		ck_assert_msg(strstr(fx.last_note, hostile[n].in_note), "%s", fx.last_note);
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
	ck_assert_msg(try_tar(fd, &root) == 0, "%s", fx.last_note);
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
	ck_assert_msg(try_tar(fd, &root) == 0, "%s", fx.last_note);
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

		ck_assert_msg(try_tar(fd, &root) == 0, "%s: %s", formats[n], fx.last_note);
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
	ck_assert_str_eq(fx.last_note, "writing the archive");
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
	ck_assert_str_eq(fx.last_note, "writing the archive");
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

int main(void)
{
	TCase *t = tcase_create("tar");

	tcase_set_timeout(t, 240); /* other programs are run; sanitizers */
	tcase_add_checked_fixture(t, setup, open_and_teardown);
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
	return run_case("tar", t);
}
