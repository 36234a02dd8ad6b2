/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The shells of an environment (chimera's SessionMixin), and the engine as a server uses it. The
 * environment here has a directory and a keeper, but no view: sessions do not look at that.
 */

#include "env/env_internal.h"
#include "env/session.h"
#include "env/status.h" /* before check.h, which has a macro of the name fail */

#include <pthread.h>
#include <stdio.h>
#include <sys/eventfd.h>

#include "store/base/util.h"
#include "tests/unit/run.h"

static char dir[64];
static struct ply_env *env;

#define ok(expression) ck_assert_msg((expression) == 0, "%s: %s", #expression, ply_error())
#define fails(status, sentence, expression)                                                        \
	do {                                                                                       \
		ck_assert_int_eq((expression), (status));                                          \
		ck_assert_str_eq(ply_error(), (sentence));                                         \
	} while (0)

static void setup(void)
{
	strcpy(dir, "/tmp/plyfs-sessions-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
	ck_assert_int_eq(setenv("HOME", dir, 1), 0); /* no bashrc */
	ok(ply_env_new("local", &env));
	ok(keeper_start(&env->keeper));
	env->workdir = dir;
	env->is_set_up = true;
}

static void teardown(void)
{
	char command[128];

	ok(ply_env_end_session(env));
	keeper_end(TAKE_PTR(env->keeper));
	env->is_set_up = false;
	env->workdir = NULL;
	ply_env_free(env);
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	ck_assert_int_eq(system(command), 0);
}

static struct ply_result run(const char *command, const char *shell, double timeout)
{
	struct ply_result result;

	ck_assert_msg(ply_env_run_in_session(env, command, shell, timeout, &result) == 0, "%s: %s",
		      command, ply_error());
	ck_assert_str_eq(result.err.data, result.timed_out ? "Command timed out" : "");
	return result;
}

static void gives(const char *command, const char *shell, const char *output, int code)
{
	struct ply_result result = run(command, shell, 60);

	ck_assert_str_eq(result.out.data, output);
	ck_assert_int_eq(result.exit_code, code);
	ply_result_free(&result);
}

static void shells_are(const char *expected)
{
	struct ply_list list;
	char text[256] = "";

	ok(ply_env_list_shells(env, &list));
	ck_assert_ptr_nonnull(list.items);
	ck_assert_ptr_null(list.items[list.n]);
	for (size_t i = 0; i < list.n; i++)
		snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s ", list.items[i]);
	ck_assert_str_eq(text, expected);
	ply_list_free(&list);
}

START_TEST(a_session_is_started_and_ended_once)
{
	ck_assert(!ply_env_has_session(env));
	shells_are("");
	ok(ply_env_end_session(env));
	ok(ply_env_start_session(env, NULL));
	ck_assert(ply_env_has_session(env));
	shells_are("main ");
	fails(PLY_STATE, "Session already active", ply_env_start_session(env, NULL));
	ok(ply_env_end_session(env));
	ck_assert(!ply_env_has_session(env));
	ok(ply_env_end_session(env));
	ok(ply_env_start_session(env, "/usr/bin/bash"));
	gives("echo $((6 * 7))", NULL, "42", 0);
}
END_TEST

START_TEST(without_a_session_errors_are_upstreams)
{
	struct ply_result result;

	fails(PLY_STATE, "No active session", ply_env_create_shell(env, "x"));
	fails(PLY_STATE, "No active session",
	      ply_env_run_in_session(env, "true", "main", 1, &result));
	ck_assert_ptr_null(result.out.data);
	ck_assert_int_lt(ply_env_start_session(env, "/bin/nosuch"), 0);
	ck_assert(!ply_env_has_session(env));
	shells_are("");
}
END_TEST

START_TEST(a_result_is_empty_after_a_failure)
{
	struct ply_result result;
	struct ply_tests tests;
	struct ply_text text;
	struct ply_list list;

	/* A caller frees what it has, whatever was answered. */
#define leaves_empty(object, free_it, expression)                    \
	do {                                                         \
		memset(&(object), 0x55, sizeof(object));             \
		ck_assert_int_lt((expression), 0);                   \
		for (size_t i = 0; i < sizeof(object); i++)          \
			ck_assert_int_eq(((char *)&(object))[i], 0); \
		free_it(&(object));                                  \
	} while (0)

	env->is_set_up = false;
	leaves_empty(text, ply_text_free, ply_env_read_file(env, "x", &text));
	leaves_empty(text, ply_text_free, ply_env_checkpoint(env, NULL, &text));
	leaves_empty(text, ply_text_free, ply_env_diff(env, NULL, NULL, NULL, &text));
	leaves_empty(list, ply_list_free, ply_env_list_files(env, "*", &list));
	leaves_empty(result, ply_result_free, ply_env_run(env, "true", 1, NULL, &result));
	leaves_empty(tests, ply_tests_free, ply_env_run_tests(env, &tests));
	leaves_empty(tests, ply_tests_free, ply_tests_parse("", 0, NULL, 0, "none", &tests));
#undef leaves_empty
}
END_TEST

START_TEST(shells_are_named_and_independent)
{
	struct ply_result result;

	ok(ply_env_start_session(env, NULL));
	ok(ply_env_create_shell(env, "b"));
	ok(ply_env_create_shell(env, "a"));
	ok(ply_env_create_shell(env, "c"));
	shells_are("main b a c ");
	fails(PLY_EXISTS, "Shell 'b' already exists", ply_env_create_shell(env, "b"));
	fails(PLY_EXISTS, "Shell 'main' already exists", ply_env_create_shell(env, "main"));
	ck_assert_int_eq(ply_env_run_in_session(env, "true", "d", 1, &result), PLY_NOT_FOUND);
	gives("export V=1; cd /usr", "b", "", 0);
	gives("echo $V; pwd", "b", "1\n/usr", 0);
	gives("echo [$V]", "a", "[]", 0);
}
END_TEST

START_TEST(output_is_merged_and_without_its_last_newline)
{
	ok(ply_env_start_session(env, NULL));
	gives("pwd | sed 's/.*plyfs-sessions.*/here/'", NULL, "here", 0);
	gives("echo a; echo b >&2; printf 'c\\n\\n'", NULL, "a\nb\nc\n", 0);
	gives("printf 'no newline'", NULL, "no newline", 0);
	gives("echo a # comment", NULL, "a", 0);
	gives("false", NULL, "", 1);
	gives("printf '%0200d' 0 | wc -c", NULL, "200", 0);
}
END_TEST

START_TEST(a_syntax_error_is_a_result)
{
	struct ply_result result;

	ok(ply_env_start_session(env, NULL));
	result = run("touch x; (", NULL, 60);
	ck_assert_int_eq(result.exit_code, 2);
	ck_assert_ptr_nonnull(strstr(result.out.data, "syntax error"));
	ply_result_free(&result);
	gives("ls", NULL, "", 0);
}
END_TEST

START_TEST(a_timeout_gives_124_and_a_usable_shell)
{
	struct ply_result result;

	ok(ply_env_start_session(env, NULL));
	gives("V=kept", NULL, "", 0);
	result = run("echo part; sleep 1000; echo no", NULL, 2);
	ck_assert_int_eq(result.exit_code, 124);
	ck_assert(result.timed_out);
	ck_assert_str_eq(result.err.data, "Command timed out");
	ck_assert_str_eq(result.out.data, "part");
	ply_result_free(&result);
	gives("echo $V", NULL, "kept", 0);
	/* What is printed until the interrupt is over belongs to it, and not to the next. */
	result = run("bash -c 'trap \"echo; echo late; exit\" INT; echo part; sleep 1000 & wait'",
		     NULL, 2);
	ck_assert(result.timed_out);
	ck_assert_str_eq(result.out.data, "part\n\nlate");
	ply_result_free(&result);
	gives("echo $V", NULL, "kept", 0);
	result = run("trap '' INT TERM; sh -c 'while :; do sleep 1; done'; trap - INT TERM", NULL,
		     0.2);
	ck_assert_int_eq(result.exit_code, 124);
	ply_result_free(&result);
	result = run("echo $V", NULL, 60); /* after what bash says about what was killed */
	ck_assert_ptr_nonnull(strstr(result.out.data, "kept"));
	ply_result_free(&result);
}
END_TEST

START_TEST(the_output_limit_holds)
{
	struct ply_result result;

	env->o.output_limit = strdup("1000");
	ok(ply_env_start_session(env, NULL));
	result = run("head -c 5000 /dev/zero | tr '\\0' x", NULL, 60);
	ck_assert_uint_eq(result.out.len, 1000);
	ck_assert(result.truncated);
	ply_result_free(&result);
}
END_TEST

START_TEST(nobodys_history_is_touched)
{
	ok(ply_env_start_session(env, NULL));
	ok(ply_env_create_shell(env, "b"));
	gives("echo secret; echo $HISTFILE; history", NULL, "secret\n/dev/null", 0);
	gives("echo $HISTFILE", "b", "/dev/null", 0);
	ok(ply_env_end_session(env));
	ok(ply_env_start_session(env, NULL));
	gives("ls -A", NULL, "", 0); /* HOME is here */
}
END_TEST

START_TEST(a_dead_shell_is_said)
{
	struct ply_result result;

	ok(ply_env_start_session(env, NULL));
	ck_assert_int_eq(ply_env_run_in_session(env, "set -e; echo last words; false", NULL, 60,
						&result),
			 PLY_SESSION_GONE);
	ck_assert_str_eq(result.out.data, "last words");
	ply_result_free(&result);
	ck_assert_int_eq(ply_env_run_in_session(env, "true", NULL, 60, &result), PLY_SESSION_GONE);
	ply_result_free(&result);
	ok(ply_env_end_session(env));
	ok(ply_env_start_session(env, NULL));
	gives("echo again", NULL, "again", 0);
	/* Also one that the interrupt of a command whose time is up ends. */
	ck_assert_int_eq(ply_env_run_in_session(env, "echo last words; exec sleep 1000", NULL, 0.1,
						&result),
			 PLY_SESSION_GONE);
	ck_assert_str_eq(result.out.data, "last words");
	ply_result_free(&result);
}
END_TEST

/* The first waits, for as long as it is let, for the second's last words. */
static bool ends_see_each_other(void)
{
	bool seen;

	ok(ply_env_start_session(env, NULL));
	ok(ply_env_create_shell(env, "b"));
	gives("trap 'until [[ -e bye ]]; do :; done; >seen' EXIT", NULL, "", 0);
	gives("trap '>bye' EXIT", "b", "", 0);
	ok(ply_env_end_session(env));
	ck_assert_int_eq(chdir(dir), 0);
	seen = access("seen", F_OK) == 0;
	ck_assert_int_eq(unlink("bye"), 0);
	(void)unlink("seen");
	return seen;
}

START_TEST(shells_end_at_the_same_time)
{
	/* On a busy machine the tenth of a second that they have may be over first. */
	int left = 100;

	while (!ends_see_each_other())
		ck_assert_int_gt(--left, 0);
}
END_TEST

static void *end_it(void *arg)
{
	char path[80];

	snprintf(path, sizeof(path), "%s/begun", dir);
	while (access(path, F_OK) < 0)
		usleep(10000);
	return (void *)(intptr_t)ply_env_end_session(env);
}

START_TEST(ending_a_session_ends_its_command)
{
	struct ply_result result;
	pthread_t thread;
	void *r;

	ok(ply_env_start_session(env, NULL));
	ck_assert_int_eq(pthread_create(&thread, NULL, end_it, NULL), 0);
	ck_assert_int_eq(ply_env_run_in_session(env, ": >begun; sleep 1000", NULL, 600, &result),
			 PLY_SESSION_GONE);
	ply_result_free(&result);
	pthread_join(thread, &r);
	ck_assert_int_eq((int)(intptr_t)r, 0);
	ck_assert(!ply_env_has_session(env));
}
END_TEST

static void *clean_up(void *arg)
{
	return (void *)(intptr_t)ply_env_cleanup(env);
}

/* Cleanup ends the first, which takes a moment, and then all that the environment has. */
START_TEST(a_session_that_is_started_during_cleanup_ends_with_it)
{
	for (int i = 0; i < 10; i++) { /* it is not always in time */
		pthread_t thread;
		int r;

		ok(ply_env_start_session(env, NULL));
		gives("trap 'sleep 1000' EXIT", NULL, "", 0);
		env->workdir = strdup(dir); /* which is freed */
		ck_assert_int_eq(pthread_create(&thread, NULL, clean_up, NULL), 0);
		do
			r = ply_env_start_session(env, NULL);
		while (r == PLY_STATE && ply_env_has_session(env)); /* the first is there yet */
		pthread_join(thread, NULL);
		ck_assert_msg(!ply_env_has_session(env), "started: %d", r);
		shells_are("");
		ok(keeper_start(&env->keeper));
		env->workdir = dir;
		env->is_set_up = true;
	}
}
END_TEST

static void *run_for_a_while(void *arg)
{
	struct ply_result result;

	while (!__atomic_load_n((bool *)arg, __ATOMIC_RELAXED)) {
		(void)ply_env_run_in_session(env, "true", NULL, 0, &result); /* there may be none */
		ply_result_free(&result);
	}
	return NULL;
}

/* It is freed when another is set. */
START_TEST(the_environments_timeout_is_not_looked_at_once_it_is_cleaned_up)
{
	pthread_t thread;
	bool over = false;

	ck_assert_int_eq(pthread_create(&thread, NULL, run_for_a_while, &over), 0);
	for (int i = 0; i < 5; i++) { /* it is not always in time */
		ok(ply_env_start_session(env, NULL));
		env->workdir = strdup(dir); /* which is freed */
		ok(ply_env_cleanup(env));
		ok(ply_env_set(env, "timeout", i % 2 ? "500" : "600"));
		ok(keeper_start(&env->keeper));
		env->workdir = dir;
		env->is_set_up = true;
	}
	__atomic_store_n(&over, true, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
}
END_TEST

static void *start_it(void *arg)
{
	return (void *)(intptr_t)ply_env_start_session(env, NULL);
}

START_TEST(a_session_that_never_gets_ready_holds_up_no_cleanup)
{
	pthread_t thread;
	char path[80];
	FILE *f;
	void *r;

	snprintf(path, sizeof(path), "%s/.bashrc", dir);
	f = fopen(path, "w");
	ck_assert_ptr_nonnull(f);
	fprintf(f, ": >%s/begun; sleep 1000\n", dir);
	ck_assert_int_eq(fclose(f), 0);
	env->workdir = strdup(dir); /* which is freed */
	ck_assert_int_eq(pthread_create(&thread, NULL, start_it, NULL), 0);
	snprintf(path, sizeof(path), "%s/begun", dir);
	while (access(path, F_OK) < 0)
		usleep(1000);
	ok(ply_env_cleanup(env));
	pthread_join(thread, &r);
	ck_assert_int_eq((int)(intptr_t)r, PLY_SESSION_GONE); /* not PLY_TIMEOUT */
}
END_TEST

START_TEST(a_cancelled_command_leaves_the_shell_usable)
{
	struct ply_result result;
	int fd = eventfd(1, EFD_CLOEXEC);

	ck_assert_int_ge(fd, 0);
	ok(ply_env_start_session(env, NULL));
	ply_cancel_on(fd);
	ck_assert_int_eq(ply_env_run_in_session(env, "sleep 1000", NULL, 600, &result),
			 PLY_CANCELLED);
	ply_cancel_on(-1);
	gives("echo fine", NULL, "fine", 0);
	close(fd);
}
END_TEST

static int wrap(struct ply_env *e, const char *const *argv, const char *const *vars, bool terminal,
		char ***ret)
{
	struct ply_list list = { 0 };

	ck_assert(terminal);
	ok(list_append(&list, "env", 3));
	ok(list_append(&list, "WRAPPED=yes", 11));
	for (; *argv; argv++)
		ok(list_append(&list, *argv, strlen(*argv)));
	*ret = list.items;
	return 0;
}

START_TEST(shells_are_wrapped_as_the_kind_wants)
{
	const struct env_ops *plain = env->ops;
	struct env_ops ops = *plain;

	ops.wrap = wrap;
	env->ops = &ops;
	ok(ply_env_start_session(env, NULL));
	gives("echo $WRAPPED; tty >/dev/null && echo tty", NULL, "yes\ntty", 0);
	ok(ply_env_end_session(env));
	env->ops = plain;
}
END_TEST

/* ---- the engine as a server uses it ---- */

START_TEST(a_forced_interrupt_is_told_with_the_next_command)
{
	const struct shell_options o = { .keeper = env->keeper, .path = "bash", .timeout = 60 };
	const struct shell_interrupt how = { .window = 0.1, .tries = 2 };
	const char *expect[] = { "ready" };
	struct ply_session_run start = { .command = "sh -c 'trap \"\" INT TERM; echo ready;"
						    "while :; do sleep 1; done'; echo no",
					 .interactive = true,
					 .expect = expect,
					 .n_expect = 1 };
	const struct ply_session_run next = { .command = "echo next", .timeout = 60 };
	struct ply_observation seen;
	struct shell *shell;

	ok(shell_start(&o, -1, &shell, NULL));
	ok(shell_run(shell, &start, -1, &seen));
	ply_observation_free(&seen);
	ok(shell_interrupt(shell, &how, &seen));
	ck_assert_ptr_null(strstr(seen.output.data, "Killed"));
	ck_assert_int_eq(seen.matched, -1);
	ply_observation_free(&seen);
	ok(shell_run(shell, &next, -1, &seen));
	ck_assert_ptr_nonnull(strstr(seen.output.data, "Killed"));
	ck_assert_ptr_nonnull(strstr(seen.output.data, "next\n"));
	ck_assert_ptr_null(strstr(seen.output.data, "no\n"));
	ply_observation_free(&seen);
	shell_free(shell);
}
END_TEST

/* KiB of memory that is ours alone. */
static long memory(void)
{
	FILE *f = fopen("/proc/self/status", "r");
	char line[256];
	long kib = -1;

	ck_assert_ptr_nonnull(f);
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "RssAnon: %ld", &kib) == 1)
			break;
	(void)fclose(f);
	return kib;
}

START_TEST(output_without_end_is_cut_and_the_shell_goes_on)
{
	const struct shell_options o = {
		.keeper = env->keeper, .path = "bash", .timeout = 60, .output_limit = 100000
	};
	const struct shell_interrupt how = { .window = 5, .tries = 3 };
	const char *expect[] = { "x\nF[O]UND" };
	const struct ply_session_run endless = { .command = "echo first; yes", .timeout = 1 };
	const struct ply_session_run much = {
		.command = "head -c 300000000 /dev/zero | tr '\\0' x; exec 3>&1; (exit 3)",
		.timeout = 200
	};
	const struct ply_session_run late = {
		.command = "head -c 3000000 /dev/zero | tr '\\0' x; echo; echo FOUND; cat",
		.timeout = 60, .interactive = true, .expect = expect, .n_expect = 1
	};
	const struct ply_session_run next = { .command = "echo next", .timeout = 60 };
	struct ply_observation seen;
	struct shell *shell;
	long before;

	ok(shell_start(&o, -1, &shell, NULL));
	before = memory();
	ck_assert_int_eq(shell_run(shell, &endless, -1, &seen), PLY_TIMEOUT);
	ck_assert(seen.truncated);
	ck_assert_uint_eq(seen.output.len, 100000);
	ck_assert_int_eq(strncmp(seen.output.data, "first\ny\ny\n", 10), 0);
	ply_observation_free(&seen);
	ok(shell_interrupt(shell, &how, &seen));
	ck_assert(seen.truncated);
	ck_assert_uint_eq(seen.output.len, 100000);
	ply_observation_free(&seen);

	ok(shell_run(shell, &much, -1, &seen));
	ck_assert(seen.truncated && seen.exit_code_known);
	ck_assert_int_eq(seen.exit_code, 3);
	ck_assert_uint_eq(seen.output.len, 100000);
	ply_observation_free(&seen);
	ck_assert_int_lt(memory() - before, 30000);

	/* What comes behind the limit still ends a wait. */
	ok(shell_run(shell, &late, -1, &seen));
	ck_assert_int_eq(seen.matched, 0);
	ck_assert(seen.truncated);
	ply_observation_free(&seen);
	ok(shell_interrupt(shell, &how, &seen));
	ck_assert(!seen.truncated);
	ply_observation_free(&seen);
	ok(shell_run(shell, &next, -1, &seen));
	ck_assert_str_eq(seen.output.data, "next\n");
	ck_assert(!seen.truncated);
	ply_observation_free(&seen);
	shell_free(shell);
}
END_TEST

/* No character is cut, and none is left of some that are shorter than one. */
START_TEST(the_ends_of_an_output_are_told_whatever_the_limit)
{
	for (uint64_t limit = 1; limit < 20; limit++) {
		const struct shell_options o = { .keeper = env->keeper,
						 .path = "bash",
						 .timeout = 60,
						 .output_limit = limit,
						 .partial = 65536 };
		const struct ply_session_run run = {
			.command = "printf '%0.s\\x80' {1..100}; cat", .timeout = 0.3
		};
		struct ply_observation seen;
		struct shell *shell;
		char *between;

		ok(shell_start(&o, -1, &shell, NULL));
		do {
			ck_assert_int_eq(shell_run(shell, &run, -1, &seen), PLY_TIMEOUT);
			between = strstr(seen.output.data, "left out ...]\n");
			ck_assert_uint_lt(seen.output.len, 100);
			ply_observation_free(&seen);
		} while (!between);
		shell_free(shell);
	}
}
END_TEST

START_TEST(an_interrupt_may_be_content_with_a_pattern)
{
	const struct shell_options o = { .keeper = env->keeper, .path = "bash", .timeout = 60 };
	const char *caught[] = { "never", "caught" }, *ready[] = { "ready" };
	const struct shell_interrupt how = { .window = 5, .tries = 1, .expect = caught,
					     .n_expect = 2 };
	const struct ply_session_run start = {
		.command = "sh -c 'trap \"echo caught; read x\" INT; echo ready; read x; read x'",
		.interactive = true, .expect = ready, .n_expect = 1
	};
	const struct shell_interrupt hard = { .window = 0.1, .tries = 1, .gentle = true };
	const struct ply_session_run next = { .command = "echo next", .timeout = 0.2 },
				     again = { .command = "echo again", .timeout = 60 };
	struct ply_observation seen;
	struct shell *shell;

	ok(shell_start(&o, -1, &shell, NULL));
	ok(shell_run(shell, &start, -1, &seen));
	ply_observation_free(&seen);
	ok(shell_interrupt(shell, &how, &seen));
	ck_assert_int_eq(seen.matched, 1);
	ply_observation_free(&seen);
	ck_assert_int_eq(shell_run(shell, &next, -1, &seen), PLY_TIMEOUT); /* it goes on */
	ply_observation_free(&seen);
	ok(shell_interrupt(shell, &hard, &seen));
	ply_observation_free(&seen);
	ok(shell_run(shell, &again, -1, &seen));
	ck_assert_str_eq(seen.output.data, "again\n");
	ply_observation_free(&seen);
	shell_free(shell);
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("sessions");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, a_session_is_started_and_ended_once);
	tcase_add_test(t, without_a_session_errors_are_upstreams);
	tcase_add_test(t, a_result_is_empty_after_a_failure);
	tcase_add_test(t, shells_are_named_and_independent);
	tcase_add_test(t, output_is_merged_and_without_its_last_newline);
	tcase_add_test(t, a_syntax_error_is_a_result);
	tcase_add_test(t, a_timeout_gives_124_and_a_usable_shell);
	tcase_add_test(t, the_output_limit_holds);
	tcase_add_test(t, nobodys_history_is_touched);
	tcase_add_test(t, a_dead_shell_is_said);
	tcase_add_test(t, shells_end_at_the_same_time);
	tcase_add_test(t, ending_a_session_ends_its_command);
	tcase_add_test(t, a_session_that_is_started_during_cleanup_ends_with_it);
	tcase_add_test(t, the_environments_timeout_is_not_looked_at_once_it_is_cleaned_up);
	tcase_add_test(t, a_session_that_never_gets_ready_holds_up_no_cleanup);
	tcase_add_test(t, a_cancelled_command_leaves_the_shell_usable);
	tcase_add_test(t, shells_are_wrapped_as_the_kind_wants);
	tcase_add_test(t, a_forced_interrupt_is_told_with_the_next_command);
	tcase_add_test(t, output_without_end_is_cut_and_the_shell_goes_on);
	tcase_add_test(t, the_ends_of_an_output_are_told_whatever_the_limit);
	tcase_add_test(t, an_interrupt_may_be_content_with_a_pattern);
	return run_case("env_sessions", t);
}
