/* SPDX-License-Identifier: Apache-2.0 */

/* How a session starts: its options, and the files that its shell reads. */

#include "env/plyfs.h"

#include <stdio.h>
#include <sys/resource.h>

#include "store/base/util.h"
#include "tests/unit/session_fixture.h"

static void write_file(const char *name, const char *content)
{
	char path[128];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	f = fopen(path, "we");
	ck_assert_ptr_nonnull(f);
	ck_assert_int_ge(fputs(content, f), 0);
	ck_assert_int_eq(fclose(f), 0);
}

START_TEST(startup_files_are_read)
{
	struct ply_text text;
	char path[128];

	write_file(".bashrc", "echo from bashrc\nPS1='\\u@\\h# '\nRC=1\n");
	write_file("it's.sh", "echo sourced $RC; SOURCED=1; set -x; set +x\n");
	ply_session_free(session);
	session = make();
	snprintf(path, sizeof(path), "%s/it's.sh", dir);
	ok(ply_session_set(session, "startup_source", path));
	ok(ply_session_set(session, "startup_source", "/nosuch"));
	ok(ply_session_start(session, &text));
	ck_assert_ptr_nonnull(strstr(text.data, "from bashrc\nsourced 1\n"));
	ck_assert_ptr_nonnull(strstr(text.data, "/nosuch: No such file"));
	ck_assert_ptr_null(strstr(text.data, "# ")); /* its prompt */
	ply_text_free(&text);
	gives("echo $RC $SOURCED $PS1", "1 1 SHELLPS1PREFIX\n");
	ck_assert_int_eq(ply_session_start(session, NULL), PLY_EXISTS);
	ck_assert_int_eq(ply_session_set(session, "cwd", "/"), PLY_STATE);

	write_file(".bashrc", "sleep 1000\n");
	ply_session_free(session);
	session = make();
	ok(ply_session_set(session, "startup_timeout", "0.2"));
	ck_assert_int_eq(ply_session_start(session, NULL), PLY_TIMEOUT);
	ck_assert_ptr_nonnull(strstr(ply_error(), "~/.bashrc"));
	ck_assert(!ply_session_alive(session));
	write_file(".bashrc", "exit 3\n");
	ok(ply_session_set(session, "startup_timeout", PATIENCE));
	ck_assert_int_eq(ply_session_start(session, NULL), PLY_SESSION_GONE);
	write_file(".bashrc", "");
	ok(ply_session_start(session, NULL));
	gives("echo fine", "fine\n");
}
END_TEST

START_TEST(a_limit_of_descriptors_that_is_too_low_is_told_at_once)
{
	struct rlimit files;

	ply_session_free(session);
	session = make();
	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &files), 0);
	files.rlim_cur = 64;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &files), 0);
	ck_assert_int_eq(ply_session_start(session, NULL), PLY_FAILED);
	ck_assert_ptr_nonnull(strstr(ply_error(), "ulimit -n"));
	ply_session_free(session); /* its keeper has that limit */
	session = make();
	files.rlim_cur = 128;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &files), 0);
	ok(ply_session_start(session, NULL));
}
END_TEST

/* As words that somebody has typed behind `source`; but a file of just that name comes first. */
START_TEST(names_of_startup_files_are_expanded)
{
	static const char *const names[] = { "~/tilde.sh", "$HOME/varia*.sh", "two words.sh",
					     "'$HOME'/quoted.sh", "$HOME/\"quo\"ted.sh",
					     "~/unfinished'", "$HOME/none.sh" };
	struct ply_text text;

	write_file("tilde.sh", "echo tilde\n");
	write_file("variable.sh", "echo variable\n");
	write_file("two words.sh", "echo two words\n");
	write_file("quoted.sh", "echo quoted\n");
	ply_session_free(session);
	session = make();
	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		ok(ply_session_set(session, "startup_source", names[i]));
	ok(ply_session_start(session, &text));
	ck_assert_msg(strncmp(text.data, "tilde\nvariable\ntwo words\n", 25) == 0, "%s",
		      text.data);
	ck_assert_ptr_nonnull(strstr(text.data, "$HOME/quoted.sh: No such file"));
	ck_assert_ptr_nonnull(strstr(text.data, "\nquoted\n"));
	ck_assert_ptr_nonnull(strstr(text.data, "/none.sh: No such file"));
	ply_text_free(&text);
	gives("echo fine", "fine\n");
}
END_TEST

START_TEST(bad_options_are_refused)
{
	struct ply_session *s;
	struct ply_observation o;

	ok(ply_session_new(NULL, "x", &s));
	ck_assert_int_eq(ply_session_set(s, "colour", "red"), PLY_INVALID);
	ck_assert_int_eq(ply_session_set(s, "env", "novalue"), PLY_INVALID);
	ck_assert_int_eq(ply_session_set(s, "startup_timeout", "soon"), PLY_INVALID);
	ck_assert_int_eq(ply_session_run(s, &(struct ply_session_run){ .command = "x" }, &o),
			 PLY_STATE);
	ok(ply_session_set(s, "shell", "/bin/nosuch"));
	ck_assert_int_eq(ply_session_start(s, NULL), PLY_NOT_FOUND);
	ok(ply_session_set(s, "shell", "/bin/dash"));
	ck_assert_int_eq(ply_session_start(s, NULL), PLY_UNSUPPORTED);
	ck_assert_ptr_nonnull(strstr(ply_error(), "not bash"));
	ok(ply_session_set(s, "shell", "/bin/bash"));
	ok(ply_session_set(s, "cwd", "/nosuch"));
	ck_assert_int_eq(ply_session_start(s, NULL), PLY_NOT_FOUND);
	ck_assert(!ply_session_alive(s));
	ply_session_free(s);
	ply_session_free(NULL);
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("session_start");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, startup_files_are_read);
	tcase_add_test(t, a_limit_of_descriptors_that_is_too_low_is_told_at_once);
	tcase_add_test(t, names_of_startup_files_are_expanded);
	tcase_add_test(t, bad_options_are_refused);
	return run_case("env_session_start", t);
}
