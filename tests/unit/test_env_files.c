/* SPDX-License-Identifier: Apache-2.0 */

/* Files of a workspace: nothing leads out of it. */

#include "env/files.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/util.h"
#include "tests/unit/run.h"

static char top[64], root[80], outside[80]; /* root and outside lie in top */

#define ok(expression) ck_assert_msg((expression) == 0, "%s: %s", #expression, ply_error())

static const char *at(const char *name)
{
	static char path[8][512];
	static int i;

	i = (i + 1) % 8;
	snprintf(path[i], sizeof(path[i]), "%s/%s", root, name);
	return path[i];
}

static void make_file(const char *path, const char *text)
{
	FILE *f = fopen(path, "w");

	ck_assert_ptr_nonnull(f);
	fputs(text, f);
	fclose(f);
}

static void setup(void)
{
	char secret[128];

	strcpy(top, "/tmp/plyfs-files-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(top));
	snprintf(root, sizeof(root), "%s/in", top);
	snprintf(outside, sizeof(outside), "%s/outside", top);
	ck_assert_int_eq(mkdir(root, 0755) | mkdir(outside, 0755), 0);
	snprintf(secret, sizeof(secret), "%s/secret", outside);
	make_file(secret, "secret");
}

static void teardown(void)
{
	char command[128];

	snprintf(command, sizeof(command), "rm -rf %s", top);
	ck_assert_int_eq(system(command), 0);
}

static const char *text_of(const char *path)
{
	static char text[4096];
	struct ply_text t = { 0 };

	ok(files_read(root, path, &t));
	snprintf(text, sizeof(text), "%s", t.data);
	ck_assert_uint_eq(strlen(text), t.len);
	ply_text_free(&t);
	return text;
}

static void denied(const char *path)
{
	struct ply_text t = { 0 };
	char says[1024];

	snprintf(says, sizeof(says), "Path escapes workdir: %s", path);
	ck_assert_int_eq(files_read(root, path, &t), PLY_DENIED);
	ck_assert_str_eq(ply_error(), says);
	ck_assert_ptr_null(t.data);
	ck_assert_int_eq(files_write(root, path, "x", 1), PLY_DENIED);
	ck_assert_str_eq(ply_error(), says);
}

START_TEST(what_is_written_is_read)
{
	struct ply_text t = { 0 };
	char big[200001];

	ok(files_write(root, "a", "one\r\ntwo\0three", 14));
	ok(files_read(root, "a", &t));
	ck_assert_uint_eq(t.len, 14);
	ck_assert_mem_eq(t.data, "one\r\ntwo\0three", 15);
	ply_text_free(&t);
	memset(big, 'x', sizeof(big));
	ok(files_write(root, "a", big, sizeof(big)));
	ok(files_read(root, "a", &t));
	ck_assert_uint_eq(t.len, sizeof(big));
	ply_text_free(&t);
	ok(files_write(root, "a", "", 0)); /* truncates */
	ck_assert_str_eq(text_of("a"), "");
}
END_TEST

START_TEST(parents_are_made)
{
	ok(files_write(root, "a/b/c/d", "x", 1));
	ck_assert_str_eq(text_of("a/b/c/d"), "x");
	ok(files_write(root, "a/b/e", "y", 1));
	ok(files_write(root, "new/../also/f", "z", 1)); /* "new" is not there, nor is it made */
	ck_assert_str_eq(text_of("also/f"), "z");
	ck_assert_int_eq(access(at("new"), F_OK), -1);
}
END_TEST

START_TEST(a_missing_file_is_not_found)
{
	struct ply_text t = { 0 };

	ck_assert_int_eq(files_read(root, "no", &t), PLY_NOT_FOUND);
	ck_assert_str_eq(ply_error(), "File not found: no");
	ok(files_write(root, "file", "x", 1));
	ck_assert_int_eq(files_read(root, "file/below", &t), PLY_NOT_FOUND);
	ck_assert_int_eq(files_write(root, "file/below", "x", 1), PLY_EXISTS);
	ck_assert_int_eq(symlink("nowhere", at("broken")), 0);
	ck_assert_int_eq(files_read(root, "broken", &t), PLY_NOT_FOUND);
}
END_TEST

START_TEST(a_directory_is_no_file)
{
	struct ply_text t = { 0 };

	ck_assert_int_eq(mkdir(at("d"), 0755), 0);
	ck_assert_int_eq(files_read(root, "d", &t), PLY_IS_DIRECTORY);
	ck_assert_int_eq(files_write(root, "d", "x", 1), PLY_IS_DIRECTORY);
	ck_assert_int_eq(files_read(root, "", &t), PLY_IS_DIRECTORY);
	ck_assert_int_eq(files_read(root, ".", &t), PLY_IS_DIRECTORY);
	ck_assert_int_eq(files_write(root, root, "x", 1), PLY_IS_DIRECTORY);
}
END_TEST

START_TEST(a_fifo_does_not_make_us_wait)
{
	struct ply_text t = { 0 };

	ck_assert_int_eq(mkfifo(at("fifo"), 0600), 0);
	ck_assert_int_eq(files_read(root, "fifo", &t), PLY_INVALID);
	ck_assert_int_eq(files_write(root, "fifo", "x", 1), PLY_INVALID);
	ck_assert_str_eq(ply_error(), "'fifo' is not a regular file");
}
END_TEST

START_TEST(an_absolute_path_inside_is_allowed)
{
	ok(files_write(root, at("a"), "x", 1));
	ck_assert_str_eq(text_of(at("a")), "x");
	ck_assert_str_eq(text_of(at("./b/../a")), "x");
}
END_TEST

START_TEST(no_path_leads_out)
{
	char path[256];

	denied("../outside/secret");
	denied("/etc/passwd");
	denied("a/../../outside/secret");
	denied("..");
	denied("/");
	snprintf(path, sizeof(path), "%s/secret", outside);
	denied(path);
	snprintf(path, sizeof(path), "%s-more/x", root); /* begins like it */
	denied(path);
}
END_TEST

START_TEST(a_way_out_and_in_again_is_allowed)
{
	ok(files_write(root, "a", "x", 1));
	ck_assert_str_eq(text_of("../in/a"), "x");
}
END_TEST

START_TEST(no_symlink_leads_out)
{
	ck_assert_int_eq(symlink(outside, at("abs")), 0);
	ck_assert_int_eq(symlink("../outside", at("rel")), 0);
	ck_assert_int_eq(symlink("../outside/secret", at("file")), 0);
	ck_assert_int_eq(symlink("../outside/new", at("new")), 0);
	ck_assert_int_eq(symlink("rel", at("twice")), 0);
	denied("abs/secret");
	denied("rel/secret");
	denied("file");
	denied("new");
	denied("twice/secret");
	denied("rel/../in/../secret");
	ck_assert_int_eq(access(at("../outside/new"), F_OK), -1);
}
END_TEST

START_TEST(symlinks_inside_are_followed)
{
	ok(files_write(root, "d/file", "x", 1));
	ck_assert_int_eq(symlink("d", at("rel")), 0);
	ck_assert_int_eq(symlink(at("d"), at("abs")), 0);
	ck_assert_int_eq(symlink("../d/file", at("d/f")), 0);
	ck_assert_int_eq(symlink("d/later", at("dangling")), 0);
	ck_assert_str_eq(text_of("rel/file"), "x");
	ck_assert_str_eq(text_of("abs/file"), "x");
	ck_assert_str_eq(text_of("abs/f"), "x");
	ok(files_write(root, "abs/f", "y", 1));
	ck_assert_str_eq(text_of("d/file"), "y");
	ok(files_write(root, "dangling", "z", 1));
	ck_assert_str_eq(text_of("d/later"), "z");
}
END_TEST

START_TEST(an_absolute_symlink_that_goes_through_another_one_may_lead_in)
{
	char alias[128], way[160];

	snprintf(alias, sizeof(alias), "%s/alias", top);
	snprintf(way, sizeof(way), "%s/a", alias);
	ck_assert_int_eq(symlink("in", alias), 0);
	ok(files_write(root, "a", "x", 1));
	ck_assert_int_eq(symlink(way, at("link")), 0);
	ck_assert_str_eq(text_of("link"), "x");
	ck_assert_str_eq(text_of(way), "x");
}
END_TEST

START_TEST(a_ring_of_symlinks_is_refused)
{
	struct ply_text t = { 0 };

	ck_assert_int_eq(symlink("b", at("a")) | symlink("a", at("b")), 0);
	ck_assert_int_eq(files_read(root, "a", &t), PLY_INVALID);
	ck_assert_int_eq(files_write(root, "a/x", "x", 1), PLY_INVALID);
}
END_TEST

START_TEST(a_path_that_is_too_long_is_refused)
{
	struct ply_text t = { 0 };
	char path[5000];

	memset(path, 'a', 300);
	path[300] = '\0';
	ck_assert_int_eq(files_read(root, path, &t), PLY_INVALID);
	for (size_t i = 0; i < sizeof(path) - 1; i++)
		path[i] = i % 2 ? '/' : 'a';
	path[sizeof(path) - 1] = '\0';
	ck_assert_int_eq(files_write(root, path, "x", 1), PLY_INVALID);
}
END_TEST

START_TEST(upload_and_download_copy_bytes_and_permissions)
{
	char local[128], back[128];
	struct stat st;

	snprintf(local, sizeof(local), "%s/script", outside);
	snprintf(back, sizeof(back), "%s/back", outside);
	make_file(local, "#!/bin/sh\n");
	ck_assert_int_eq(chmod(local, 0750), 0);
	ok(files_upload(root, local, "bin/script"));
	ck_assert_str_eq(text_of("bin/script"), "#!/bin/sh\n");
	ck_assert_int_eq(stat(at("bin/script"), &st), 0);
	ck_assert_uint_eq(st.st_mode & 0700, 0700);
	ok(files_download(root, "bin/script", back));
	ck_assert_int_eq(stat(back, &st), 0);
	ck_assert_uint_eq(st.st_mode & 0700, 0700);
	ck_assert_int_eq(st.st_size, 10);
	ck_assert_int_eq(files_upload(root, local, "../x"), PLY_DENIED);
	ck_assert_int_eq(files_upload(root, "/nonexistent", "x"), PLY_NOT_FOUND);
	ck_assert_int_eq(files_upload(root, outside, "x"), PLY_IS_DIRECTORY);
	ck_assert_int_eq(files_download(root, "none", back), PLY_NOT_FOUND);
	ck_assert_int_eq(files_download(root, "../outside/secret", back), PLY_DENIED);
}
END_TEST

START_TEST(a_copy_that_finds_no_room_takes_none)
{
	const struct rlimit small = { .rlim_cur = 4096, .rlim_max = RLIM_INFINITY };
	char local[128], back[128];
	struct stat st;

	snprintf(local, sizeof(local), "%s/large", outside);
	snprintf(back, sizeof(back), "%s/back", outside);
	make_file(local, "");
	ck_assert_int_eq(truncate(local, 10000), 0);
	ok(files_upload(root, local, "whole"));
	ck_assert_ptr_ne(signal(SIGXFSZ, SIG_IGN), SIG_ERR);
	ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
	ck_assert_int_lt(files_upload(root, local, "half"), 0);
	ck_assert_int_eq(stat(at("half"), &st), 0);
	ck_assert_int_eq(st.st_size, 0);
	ck_assert_int_lt(files_download(root, "whole", back), 0);
	ck_assert_int_eq(stat(back, &st), 0);
	ck_assert_int_eq(st.st_size, 0);
}
END_TEST

static bool stop; /* atomic */

static void *swap_directory_and_link(void *arg)
{
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		(void)rename(at("d"), at("kept"));
		(void)!symlink(outside, at("d"));
		(void)unlink(at("d"));
		(void)rename(at("kept"), at("d"));
	}
	return NULL;
}

START_TEST(a_symlink_that_appears_meanwhile_leads_nowhere)
{
	struct ply_text t = { 0 };
	pthread_t thread;
	int found = 0;

	ck_assert_int_eq(mkdir(at("d"), 0755), 0);
	make_file(at("d/secret"), "inside");
	ck_assert_int_eq(pthread_create(&thread, NULL, swap_directory_and_link, NULL), 0);
	/* On a busy machine the directory may be away for all of the first 20,000 looks. */
	for (int i = 0; i < 20000 || found == 0; i++) {
		if (files_read(root, "d/secret", &t) == 0) {
			ck_assert_str_eq(t.data, "inside");
			found++;
		}
		ply_text_free(&t);
	}
	__atomic_store_n(&stop, true, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
}
END_TEST

START_TEST(a_place_is_absolute_and_resolved_whether_it_is_there_or_not)
{
	_cleanup_free_ char *a = NULL, *b = NULL, *c = NULL;

	ck_assert_int_eq(symlink("in", at("../l")), 0);
	ck_assert_int_eq(chdir(top), 0);
	ok(files_absolute("l/new/../x", &a));
	ck_assert_str_eq(a, at("x"));
	ok(files_absolute("/", &b));
	ck_assert_str_eq(b, "/");
	ok(files_absolute("..", &c));
	ck_assert_str_eq(c, "/tmp");
	ck_assert_int_eq(chdir("/"), 0);
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("files");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, what_is_written_is_read);
	tcase_add_test(t, parents_are_made);
	tcase_add_test(t, a_missing_file_is_not_found);
	tcase_add_test(t, a_directory_is_no_file);
	tcase_add_test(t, a_fifo_does_not_make_us_wait);
	tcase_add_test(t, an_absolute_path_inside_is_allowed);
	tcase_add_test(t, no_path_leads_out);
	tcase_add_test(t, a_way_out_and_in_again_is_allowed);
	tcase_add_test(t, no_symlink_leads_out);
	tcase_add_test(t, symlinks_inside_are_followed);
	tcase_add_test(t, an_absolute_symlink_that_goes_through_another_one_may_lead_in);
	tcase_add_test(t, a_ring_of_symlinks_is_refused);
	tcase_add_test(t, a_path_that_is_too_long_is_refused);
	tcase_add_test(t, upload_and_download_copy_bytes_and_permissions);
	tcase_add_test(t, a_copy_that_finds_no_room_takes_none);
	tcase_add_test(t, a_symlink_that_appears_meanwhile_leads_nowhere);
	tcase_add_test(t, a_place_is_absolute_and_resolved_whether_it_is_there_or_not);
	return run_case("files", t);
}
