/* SPDX-License-Identifier: Apache-2.0 */

/*
 * program_run: what it hands back is whole, or it fails; and nothing stays of a caller that was
 * killed. The program is a shell script each time.
 */

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "env/program.h"
#include "store/base/pidstate.h"
#include "store/base/util.h"
#include "tests/unit/run.h"

static char dir[] = "/tmp/plyfs-test-XXXXXX", path[64];

static void program_is(const char *script)
{
	FILE *f = fopen(path, "w");

	ck_assert_ptr_nonnull(f);
	ck_assert_int_gt(fprintf(f, "#!/bin/sh\n%s\n", script), 0);
	ck_assert_int_eq(fclose(f), 0);
	ck_assert_int_eq(chmod(path, 0700), 0);
	ck_assert_int_eq(setenv("PLYFS_PROGRAM", path, 1), 0);
}

static void setup(void)
{
	strcpy(dir + sizeof(dir) - 7, "XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
	(void)snprintf(path, sizeof(path), "%s/program", dir);
}

static void teardown(void)
{
	(void)unlink(path);
	ck_assert_int_eq(rmdir(dir), 0);
}

struct said {
	struct ply_text out, err;
	int code;
};

static void said_release(struct said *s)
{
	ply_text_free(&s->out);
	ply_text_free(&s->err);
}

static int run(const char *const *args, struct said *ret)
{
	return program_run("/", args, -1, &ret->out, &ret->err, &ret->code);
}

START_TEST(both_outputs_and_the_exit_code)
{
	static const char *const args[] = { "verb", "a b", NULL };
	_cleanup_(said_release) struct said s = { 0 };

	program_is("pwd; printf '%s|' \"$@\"; echo first >&2; echo 'plyfs verb: why' >&2; exit 7");
	ck_assert_int_eq(run(args, &s), 0);
	ck_assert_str_eq(s.out.data, "/\nverb|a b|");
	ck_assert_str_eq(s.err.data, "why");
	ck_assert_int_eq(s.code, 7);
}
END_TEST

START_TEST(a_signal_that_ended_it_is_told)
{
	static const char *const args[] = { "verb", NULL };
	_cleanup_(said_release) struct said s = { 0 };

	program_is("echo before; kill -9 $$");
	ck_assert_int_eq(run(args, &s), 0);
	ck_assert_str_eq(s.out.data, "before\n");
	ck_assert_int_eq(s.code, -SIGKILL);
}
END_TEST

/* As some programs do so that nobody has to wait for their children. */
START_TEST(exit_codes_come_though_the_caller_ignores_sigchld)
{
	static const char *const args[] = { "verb", NULL };
	_cleanup_(said_release) struct said s = { 0 };

	program_is("exit 3");
	(void)signal(SIGCHLD, SIG_IGN);
	ck_assert_int_eq(run(args, &s), 0);
	(void)signal(SIGCHLD, SIG_DFL);
	ck_assert_int_eq(s.code, 3);
}
END_TEST

/* The process in between, which the program's parent is. */
START_TEST(a_helper_that_was_killed_is_no_success)
{
	static const char *const args[] = { "verb", NULL };
	_cleanup_(said_release) struct said s = { 0 };

	program_is("echo part; kill -9 $PPID; sleep 0.1; echo of it");
	ck_assert_int_eq(run(args, &s), PLY_FAILED);
	ck_assert_ptr_null(s.out.data);
}
END_TEST

#define THREADS 16
#define LINES 60000 /* of ten bytes: more than any pipe holds */
static char lines[LINES * 10 + 1];

static void *run_large(void *arg)
{
	static const char *const args[] = { "verb", NULL };

	for (int i = 0; i < 4; i++) {
		_cleanup_(said_release) struct said s = { 0 };

		ck_assert_int_eq(run(args, &s), 0);
		ck_assert_int_eq(s.code, 0);
		ck_assert_uint_eq(s.out.len, LINES * 10);
		ck_assert_mem_eq(s.out.data, lines, LINES * 10);
		ck_assert_uint_eq(s.err.len, 5);
	}
	return NULL;
}

START_TEST(large_outputs_of_many_threads_are_whole)
{
	pthread_t threads[THREADS];
	char script[160];

	(void)snprintf(script, sizeof(script), "seq -f %%09.0f 0 %d; echo a >&2; echo ended >&2",
		       LINES - 1);
	program_is(script);
	for (int n = 0; n < LINES; n++)
		(void)snprintf(lines + n * 10, 11, "%09d\n", n);
	for (int i = 0; i < THREADS; i++)
		ck_assert_int_eq(pthread_create(&threads[i], NULL, run_large, NULL), 0);
	for (int i = 0; i < THREADS; i++)
		ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
}
END_TEST

/* The process in between and the program tell their numbers; the program goes on as it likes. */
static void kill_a_caller(int held, pid_t *ret_between, pid_t *ret_program)
{
	static const char *const args[] = { "verb", NULL };
	char fifo[64 + 8], script[160], line[64] = "";
	struct said s = { 0 };
	int between, program;
	pid_t pid;
	FILE *f;

	(void)snprintf(fifo, sizeof(fifo), "%s.fifo", path);
	ck_assert_int_eq(mkfifo(fifo, 0600), 0);
	(void)snprintf(script, sizeof(script), "echo $PPID $$ >%s; echo said; exec sleep 1000",
		       fifo);
	program_is(script);
	pid = fork();
	if (pid == 0) {
		(void)program_run("/", args, held, &s.out, &s.err, &s.code);
		_exit(1);
	}
	f = fopen(fifo, "r");
	ck_assert_ptr_nonnull(f);
	ck_assert_ptr_nonnull(fgets(line, sizeof(line), f));
	(void)fclose(f);
	(void)unlink(fifo);
	ck_assert_int_eq(sscanf(line, "%d %d", &between, &program), 2);
	ck_assert_int_eq(kill(pid, SIGKILL), 0);
	ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
	*ret_between = between;
	*ret_program = program;
}

static bool ends(pid_t pid)
{
	for (int i = 0; i < 2000 && pid_is_alive(pid); i++)
		(void)nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
	return !pid_is_alive(pid);
}

START_TEST(nothing_shares_the_memory_of_a_caller_that_was_killed)
{
	pid_t between, program;
	bool ended;

	kill_a_caller(-1, &between, &program);
	ended = ends(between);
	ck_assert(pid_is_alive(program)); /* it goes on to its end */
	(void)kill(program, SIGKILL);
	ck_assert(ended);
}
END_TEST

START_TEST(what_is_held_is_held_until_the_program_ends)
{
	pid_t between, program;
	int p[2], flags;
	char c;

	ck_assert_int_eq(pipe2(p, O_CLOEXEC), 0);
	kill_a_caller(p[1], &between, &program);
	(void)close(p[1]);
	flags = fcntl(p[0], F_SETFL, O_NONBLOCK);
	ck_assert_int_eq(flags, 0);
	ck_assert_int_eq(read(p[0], &c, 1), -1);
	ck_assert_int_eq(kill(program, SIGKILL), 0);
	ck_assert_int_eq(fcntl(p[0], F_SETFL, 0), 0);
	ck_assert_int_eq(read(p[0], &c, 1), 0); /* waits */
	ck_assert(ends(between));
	(void)close(p[0]);
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("run");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, both_outputs_and_the_exit_code);
	tcase_add_test(t, a_signal_that_ended_it_is_told);
	tcase_add_test(t, exit_codes_come_though_the_caller_ignores_sigchld);
	tcase_add_test(t, a_helper_that_was_killed_is_no_success);
	tcase_add_test(t, large_outputs_of_many_threads_are_whole);
	tcase_add_test(t, nothing_shares_the_memory_of_a_caller_that_was_killed);
	tcase_add_test(t, what_is_held_is_held_until_the_program_ends);
	return run_case("program", t);
}
