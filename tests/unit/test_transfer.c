/* SPDX-License-Identifier: Apache-2.0 */

/* Directories in and out. Archives are test_tar.c's, git's revisions test_import_git.c's. */

#include <pthread.h>

#include "tests/unit/transfer_source.h"

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
	ck_assert_ptr_nonnull(strstr(fx.last_note, "'d'"));
	ck_assert_int_eq(faccessat(victim, "f", F_OK, 0), -1);
	(void)close(fd);
	(void)close(out);
	(void)close(victim);
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("transfer");

	tcase_set_timeout(t, 240); /* other programs are run; sanitizers */
	tcase_add_checked_fixture(t, setup, open_and_teardown);
	tcase_add_test(t, a_directory_comes_back_as_it_was);
	tcase_add_test(t, one_source_gives_one_state);
	tcase_add_test(t, numbers_dealt_out_later_are_new);
	tcase_add_test(t, deeper_than_any_path);
	tcase_add_test(t, a_symlink_swapped_in_is_not_followed);
	tcase_add_test(t, a_file_that_changes_size_is_taken_consistently);
	tcase_add_test(t, cancelling_stops_it);
	tcase_add_test(t, an_export_replaces_nothing);
	return run_case("transfer", t);
}
