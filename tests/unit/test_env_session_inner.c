/* SPDX-License-Identifier: Apache-2.0 */

/* A shell within the session's: used as the session's own, as with the reference. */

#include "env/session.h"

#include "store/base/util.h"
#include "tests/unit/session_fixture.h"

/* How it is started, and what it says when it is left. */
static const struct {
	const char *command, *farewell;
} shells[] = {
	{ "sh", NULL },
	{ "bash --norc", "exit\n" },
	{ "bash --norc --noediting", "exit\n" },
	{ "sh -c 'bash --norc; exit 0'", "exit\n" },
};

static const char *const places[] = { "exec sh", "exec bash --norc" };

/* One that is no shell's would have all of the time. */
#define SOON 20.0

static void runs(const char *command, const char *output, int code)
{
	struct ply_observation o;

	ck_assert_msg(try(command, SOON, &o) == 0, "%s: %s, after '%s'", command, ply_error(),
		      o.output.data);
	ck_assert_msg(!output || strcmp(o.output.data, output) == 0, "%s: '%s'", command,
		      o.output.data);
	ck_assert(o.exit_code_known);
	ck_assert_msg(o.exit_code == code, "%s: %d", command, o.exit_code);
	ply_observation_free(&o);
}

START_TEST(a_shell_within_is_used_as_the_sessions_own)
{
	struct ply_observation o;

	runs("export V=1; W=2", "", 0);
	runs(shells[_i].command, "", 0);
	runs("echo hi $V $W", "hi 1\n", 0);
	runs("(exit 7)", "", 7);
	runs("echo a\nfor i in 1 2; do\n  echo $i\ndone\n\necho \"it's\"", "a\n1\n2\nit's\n", 0);
	runs("cat <<EOF\nhere\nEOF", "here\n", 0);
	runs("sleep 0.3; printf x", "x", 0);
	ok(try("echo 'unfinished", SOON, &o));
	ck_assert(o.exit_code_known && o.exit_code != 0);
	ply_observation_free(&o);
	runs("", "", 0);
	runs("exit 0", shells[_i].farewell ?: "", 0);
	runs("echo back $V $W", "back 1 2\n", 0);
}
END_TEST

START_TEST(shells_may_be_within_each_other)
{
	runs("sh", "", 0);
	runs("sh", "", 0);
	runs("A=inner; echo $PPID >pid", "", 0);
	runs("exit 3", "", 3);
	runs("echo \"[$A]\"", "[]\n", 0);
	runs("exit 4", "", 4);
	gives("echo back", "back\n");
}
END_TEST

START_TEST(an_interrupt_comes_back_to_the_shell_within)
{
	struct ply_observation o;

	runs("sh", "", 0);
	runs("W=within", "", 0);
	goes_on("echo begun; sleep 1000", "begun\n");
	ok(ply_session_interrupt(session, 2, 3, NULL));
	runs("echo $W", "within\n", 0);
	ok(ply_session_interrupt(session, 2, 3, NULL)); /* of nothing but the shell */
	runs("echo $W", "within\n", 0);
	/* What ends by itself is waited for. */
	ck_assert_int_eq(try("sleep 0.5; echo late", 0.1, &o), PLY_TIMEOUT);
	ply_observation_free(&o);
	runs("echo next", "late\nnext\n", 0);
	runs("exit 0", "", 0);
	gives("echo back$W", "back\n");
}
END_TEST

/* Silence behind the prompt's text, another program in front. */
START_TEST(the_text_of_the_prompt_is_not_a_prompt)
{
	gives("printf \"$PS1\"; sleep 1; echo end", "SHELLPS1PREFIXend\n");
	gives("sh -c 'printf \"$PS1\"; exec sleep 0.7'", "SHELLPS1PREFIX");
	goes_on("printf \"$PS1\"; sleep 1000", "SHELLPS1PREFIX");
	interrupt();
	gives("echo fine", "fine\n");
}
END_TEST

/* Twice, as a shell's answer would make it: it did not come after the question. */
START_TEST(the_text_of_two_prompts_is_no_answer)
{
	gives("printf \"$PS1$PS1\"; sleep 1; echo end", "SHELLPS1PREFIXSHELLPS1PREFIXend\n");
	gives("sh -c 'printf \"$PS1$PS1\"; exec sleep 0.7'", "SHELLPS1PREFIXSHELLPS1PREFIX");
	gives("echo fine", "fine\n");
}
END_TEST

START_TEST(the_question_whether_it_is_a_shell_is_nobodys_input)
{
	char path[128];

	goes_on("printf \"$PS1\"; sh -c 'sleep 0.06'; echo more;"
		" while [[ ! -e stop ]]; do :; done; echo reads; read x; echo \"<$x>\"",
		"SHELLPS1PREFIXmore\n");
	snprintf(path, sizeof(path), "%s/stop", dir);
	fclose(fopen(path, "w"));
	goes_on("echo not run", "SHELLPS1PREFIXmore\nreads\n");
	goes_on("echo not run", "SHELLPS1PREFIXmore\nreads\n");
	interrupt();
	gives("echo fine", "fine\n");
}
END_TEST

/* Its end is that of the session. */
START_TEST(a_shell_that_takes_the_shells_place_is_used_as_that)
{
	struct ply_observation o;

	runs("export V=1", "", 0);
	if (_i)
		ck_assert(strncmp(out("(sleep 1000; :) &", 0), "[1] ", 4) == 0); /* has the pipe */
	runs(places[_i], "", 0);
	runs("echo hi $V; (exit 7)", "hi 1\n", 7);
	goes_on("echo begun; sleep 1000", "begun\n");
	ok(ply_session_interrupt(session, 2, 3, NULL));
	runs("W=2", "", 0);
	ok(ply_session_interrupt(session, 2, 3, NULL));
	runs("echo $W", "2\n", 0);
	runs("sh", "", 0);
	runs("echo within; exit", "within\n", 0);
	ck_assert_int_eq(try("exit 3", SOON, &o), PLY_SESSION_GONE);
	ply_observation_free(&o);
}
END_TEST

START_TEST(an_interactive_command_ends_at_the_prompt_too)
{
	const char *expect[] = { "never" };
	struct ply_session_run run = { .command = "sh",
				       .timeout = SOON,
				       .interactive = true,
				       .expect = expect,
				       .n_expect = 1 };
	struct ply_observation o;

	ok(ply_session_run(session, &run, &o));
	ck_assert_int_eq(o.matched, -1);
	ck_assert_str_eq(o.output.data, "");
	ply_observation_free(&o);
	run.command = "echo hi; false";
	ok(ply_session_run(session, &run, &o));
	ck_assert_str_eq(o.output.data, "hi\n");
	ck_assert_int_eq(o.exit_code, 0);
	ply_observation_free(&o);
	run.command = "exit";
	run.interactive = false;
	run.interactive_quit = true;
	ok(ply_session_run(session, &run, &o));
	ply_observation_free(&o);
	gives("echo back", "back\n");
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("session_inner");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_loop_test(t, a_shell_within_is_used_as_the_sessions_own, 0,
			    (int)ARRAY_SIZE(shells));
	tcase_add_test(t, shells_may_be_within_each_other);
	tcase_add_test(t, an_interrupt_comes_back_to_the_shell_within);
	tcase_add_test(t, the_text_of_the_prompt_is_not_a_prompt);
	tcase_add_test(t, the_text_of_two_prompts_is_no_answer);
	tcase_add_test(t, the_question_whether_it_is_a_shell_is_nobodys_input);
	tcase_add_loop_test(t, a_shell_that_takes_the_shells_place_is_used_as_that, 0,
			    (int)ARRAY_SIZE(places));
	tcase_add_test(t, an_interactive_command_ends_at_the_prompt_too);
	return run_case("env_session_inner", t);
}
