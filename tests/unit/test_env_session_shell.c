/* SPDX-License-Identifier: Apache-2.0 */

/* Whatever a command does to the shell, the next one is run by it, or its end is told. */

#include "env/plyfs.h"

#include <stdio.h>

#include "store/base/util.h"
#include "tests/unit/session_fixture.h"

/* Of two lines, and shown again before each of ours; they come when bash has had its turn. */
START_TEST(a_prompt_that_cannot_be_hidden_is_not_in_the_output)
{
	(void)out("PROMPT_COMMAND='PS1=\"\\n\\w\\n$ \"'", 0);
	for (int i = 0; i < 300; i++)
		gives("echo x", "x\n");
}
END_TEST

/* bash waits for none of them; here they are busy for a while before they print. */
START_TEST(what_process_substitutions_print_is_the_commands)
{
	gives("late() { read x; for i in {1..1000}; do :; done; echo late $x; }", "");
	gives("echo a > >(late)", "late a\n");
	gives("/bin/echo b > >(late)", "late b\n");
	gives("(echo c) | cat > >(late | cat)", "late c\n");
	ck_assert_str_eq(out("ls nothing 2> >(late >/dev/null; echo end)", 2), "end\n");
	gives("exec > >(while read y; do late <<<$y; done)", "");
	gives("echo d", "late d\n");
	gives("exec >/dev/tty; echo e", "e\n");
}
END_TEST

START_TEST(nothing_that_a_command_does_stops_the_engine)
{
	static const char *const commands[] = {
		"exec 3>&-; exec 4</dev/null; exec {fd}>/dev/null",
		"for i in {3..9}; do eval \"exec $i>&-\"; done",
		"printf() { echo bad; }; mapfile() { echo bad; }; eval() { echo bad; }",
		"unset() { echo bad; }; set() { echo bad; }; export() { echo bad; }",
		"unset -f eval printf mapfile",
		"alias echo='echo ' printf=false eval=false '[['=false",
		"builtin unalias -a; builtin unset -f unset set export eval printf mapfile",
		"IFS=-; set -f; set -C; set -u; shopt -s nullglob",
		"IFS=$' \\t\\n'; set +f +C +u",
		"set -u; unset PS1", "PS1=SHELLPS1PREFIX; set +u",
		"trap 'echo bye' EXIT; trap : DEBUG ERR RETURN",
		"trap - EXIT DEBUG ERR RETURN",
		"PROMPT_COMMAND='PS1=\"\\w \\$ \"'; PS4='> '",
		"unset PROMPT_COMMAND; PS1=SHELLPS1PREFIX",
		"PS1='$(echo $((1+1)))\\w '", "kill -INT $$",
		"PS1=SHELLPS1PREFIX; readonly PS1",
		"eval \"a='\"",
		"exec >/dev/null 2>&1; echo hidden; exec >/dev/tty 2>&1",
		"set -e; true; set +e",
		"set -o posix", "set +o posix",
		"cd /; mkdir -p /tmp/plyfs-gone-$$; cd /tmp/plyfs-gone-$$; rmdir $PWD",
		"cd /", "stty raw; true", "stty sane; true", "set -m; set +m",
		"shopt -u expand_aliases",
		"echo $((1/0))", "echo ${undefined?}", "ulimit -n 64", "kill -INT $$",
		"sh -c 'kill -INT $$'", "LC_ALL=C; LANG=de_DE.UTF-8",
		"unset HOME PATH; PATH=/usr/bin:/bin",
		"kill -WINCH $$", "POSIXLY_CORRECT=1; unset POSIXLY_CORRECT", "set -v", "set +v",
	};
	struct ply_observation o;

	for (size_t i = 0; i < ARRAY_SIZE(commands); i++) {
		const char *got;

		ck_assert_msg(try(commands[i], LONG, &o) == 0, "%s: %s", commands[i], ply_error());
		ply_observation_free(&o);
		ck_assert_msg(try("command echo fine; (exit 3)", LONG, &o) == 0, "%s: %s",
			      commands[i], ply_error());
		got = o.output.data;
		ck_assert_msg(strcmp(got, "fine\n") == 0 || strstr(commands[i], "set -v") ||
				      strstr(commands[i], "PROMPT_COMMAND='"),
			      "%s: '%s'", commands[i], got);
		ck_assert_msg(o.exit_code == 3, "%s: %d", commands[i], o.exit_code);
		ply_observation_free(&o);
	}
}
END_TEST

/* Of which people make fork bombs. */
START_TEST(a_function_called_colon_is_not_called_by_us)
{
	gives(":() { echo called >>calls; }", "");
	ck_assert_str_eq(out("(exit 3)", 3), "");
	gives("mkdir d; cd d; rmdir ../d; mkdir ../d", "");
	gives("cd ..; ls", "d\n");
	gives(":; cat calls", "called\n");
}
END_TEST

/* Also where bash itself keeps what it hides, from 10 on. */
START_TEST(descriptors_are_what_a_command_makes_of_them)
{
	static const int numbers[] = { 3, 9, 10, 11, 12, 20, 43, 44, 45, 63, 200 };
	char command[128];

	for (size_t i = 0; i < ARRAY_SIZE(numbers); i++) {
		int n = numbers[i];

		snprintf(command, sizeof(command), "exec %d>log; echo first >&%d; cat log", n, n);
		gives(command, "first\n");
		snprintf(command, sizeof(command), "echo second >&%d; cat log", n);
		gives(command, "first\nsecond\n");
		snprintf(command, sizeof(command), "exec %d<log; read x <&%d; echo $x", n, n);
		gives(command, "first\n");
		snprintf(command, sizeof(command), "read x <&%d; echo $x; exec %d<&-", n, n);
		gives(command, "second\n");
		snprintf(command, sizeof(command), "exec %d>&-", n);
		gives(command, "");
	}
	gives("exec {n}>log; echo $n; exec {n}>&-", "10\n");
	gives("for n in {3..43}; do eval \"exec $n>&-\"; done", "");
	gives("ulimit -n 40; echo x", "x\n");
	gives("echo y | cat; for i in 1; do (echo $i); done", "y\n1\n");
	interrupt();
	gives("echo fine", "fine\n");
}
END_TEST

START_TEST(a_shell_that_can_tell_nothing_any_more_is_told_at_once)
{
	static const char *const commands[] = { "exec 115>&-", "exec 114<&-; true",
						"ulimit -n 30; true", "ulimit -n 4",
						"ulimit -Sn 12; true", "readonly __ply",
						"declare -Ar __ply=([5]=x); false" };

	for (size_t i = 0; i < ARRAY_SIZE(commands); i++) {
		struct ply_session *s = make();
		const struct ply_session_run run = { .command = commands[i], .timeout = LONG },
					     next = { .command = "echo x", .timeout = LONG };
		struct ply_observation o;
		int r;

		ok(ply_session_start(s, NULL));
		r = ply_session_run(s, &run, &o);
		ply_observation_free(&o);
		if (r == 0) {
			r = ply_session_run(s, &next, &o);
			ply_observation_free(&o);
		}
		ck_assert_int_eq(r, PLY_SESSION_GONE);
		ck_assert_ptr_nonnull(strstr(ply_error(), "end the session"));
		ck_assert_int_eq(ply_session_run(s, &next, &o), PLY_SESSION_GONE);
		ck_assert_ptr_nonnull(strstr(ply_error(), "end the session"));
		ok(ply_session_end(s));
		ply_session_free(s);
	}
}
END_TEST

/* 115 is the pipe that our lines report through: what begins with B, C, S or E. */
static const char *const forgers[] = {
	"tr '\\0' B </dev/zero >&115",
	"yes >&115",
	"yes E | tr '\\n' '\\0' >&115",
	"printf 'S0\\0%064d\\0\\0\\0\\0' 0 | tr 0 x >&115; sleep 9999",
	"while :; do printf 'S0\\0\\0\\0\\0\\0'; done >&115",
	"while :; do printf 'B0\\0\\0%d\\0\\0' {0..99}; done >&115",
	"while :; do printf 'C%d\\0%d\\0' {0..99}; done >&115",
};

START_TEST(what_a_program_reports_in_the_shells_name_stops_nobody)
{
	const char *command = forgers[_i];
	struct ply_observation o;
	int r = try(command, 0.3, &o);

	/* A word of it may have been believed: that the command is over. */
	ck_assert_msg(r == 0 || r == PLY_TIMEOUT, "%s: %s", command, ply_error());
	ply_observation_free(&o);
	ck_assert_msg(ply_session_interrupt(session, 0.2, 3, NULL) == 0, "%s: %s", command,
		      ply_error());
	(void)out("set +x", 0); /* so much was believed */
	gives("echo fine", "fine\n");
}
END_TEST

START_TEST(a_variable_of_our_name_does_no_harm)
{
	static const char *const commands[] = { "declare -A __ply", "declare -A __ply=([5]=x)",
						"declare -i __ply", "declare -u __ply" };

	for (size_t i = 0; i < ARRAY_SIZE(commands); i++) {
		gives(commands[i], "");
		gives("echo fine; (exit $?)", "fine\n");
		(void)out("exit_code() { return 3; }; exit_code", 3);
		gives("echo $?", "3\n");
	}
}
END_TEST

START_TEST(a_function_of_our_name_is_not_called_by_us)
{
	struct ply_observation o;

	gives("__ply() { echo called >>calls; }; readonly -f __ply", "");
	(void)out("(exit 3)", 3);
	gives("echo $?", "3\n");
	gives("if true; then echo yes; fi", "yes\n");
	ck_assert_int_eq(try("if true; then", LONG, &o), PLY_SYNTAX);
	ply_observation_free(&o);
	gives("ls", "");
	gives("set -e; trap 'echo trapped' ERR; ! false", "");
	gives("set +e; ls", "");
}
END_TEST

START_TEST(a_builtin_that_is_hidden_costs_an_interrupt)
{
	struct ply_observation o;

	static const char *const commands[] = {
		"builtin() { :; }",
		"alias builtin=true",
		"alias builtin=false unalias=true",
		"enable -n printf",
		"enable -n eval mapfile",
		"enable -n builtin unset set",
	};

	for (size_t i = 0; i < ARRAY_SIZE(commands); i++) {
		/* It ends, but not that it is at its prompt can be told; or not of the next. */
		if (try(commands[i], 0.3, &o) == 0) {
			ply_observation_free(&o);
			ck_assert_int_eq(try("true", 0.3, &o), PLY_TIMEOUT);
		}
		ply_observation_free(&o);
		ck_assert_msg(ply_session_interrupt(session, 0.05, 2, NULL) == 0, "%s: %s",
			      commands[i], ply_error());
		gives("builtin echo fine", "fine\n");
	}
}
END_TEST

START_TEST(a_program_that_dies_of_sigint_aborts_the_command)
{
	ck_assert_str_eq(out("sh -c 'echo a; kill -INT $$'; echo not reached\necho nor this", 130),
			 "a\n\n");
	gives("echo $?", "130\n");
	ck_assert_str_eq(out("PS1='> '; sh -c 'echo a; kill -INT $$'", 130), "a\n\n");
	(void)out("PS1='$RANDOM '", 0); /* never what we have seen */
	(void)out("sh -c 'kill -INT $$'", 130);
	gives("PS1=", "");
	ck_assert_str_eq(out("sh -c 'echo a; kill -INT $$'", 130), "a\n\n");
	gives("exec >/dev/null 2>&1", "");
	(void)out("sh -c 'kill -INT $$'", 130);
	gives("exec >/dev/tty 2>&1; read -t 0.2; echo $?", "142\n");
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("session_shell");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, a_prompt_that_cannot_be_hidden_is_not_in_the_output);
	tcase_add_test(t, what_process_substitutions_print_is_the_commands);
	tcase_add_test(t, nothing_that_a_command_does_stops_the_engine);
	tcase_add_test(t, a_function_called_colon_is_not_called_by_us);
	tcase_add_test(t, descriptors_are_what_a_command_makes_of_them);
	tcase_add_test(t, a_shell_that_can_tell_nothing_any_more_is_told_at_once);
	tcase_add_loop_test(t, what_a_program_reports_in_the_shells_name_stops_nobody, 0,
			    ARRAY_SIZE(forgers));
	tcase_add_test(t, a_variable_of_our_name_does_no_harm);
	tcase_add_test(t, a_function_of_our_name_is_not_called_by_us);
	tcase_add_test(t, a_builtin_that_is_hidden_costs_an_interrupt);
	tcase_add_test(t, a_program_that_dies_of_sigint_aborts_the_command);
	return run_case("env_session_shell", t);
}
