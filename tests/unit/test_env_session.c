/* SPDX-License-Identifier: Apache-2.0 */

/* Sessions without an environment: exact bytes and codes, much of it, and many at once. */

#include "env/plyfs.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "store/base/util.h"
#include "tests/unit/session_fixture.h"

/* ---- what a command gives ---- */

START_TEST(output_and_codes_are_exact)
{
	static const struct {
		const char *command, *output;
		int code;
	} table[] = {
		{ "true", "", 0 },
		{ "false", "", 1 },
		{ "", "", 1 }, /* $? of before */
		{ "echo hi", "hi\n", 0 },
		{ "printf '\\nx'", "\nx", 0 },
		{ "printf '  a \\t b\\r\\n\\n\\n'", "  a \t b\r\n\n\n", 0 },
		{ "echo ''", "\n", 0 },
		{ "echo a; echo b >&2; echo c", "a\nb\nc\n", 0 },
		{ "\n\n echo a \n\n# comment\necho b\n\n", "a\nb\n", 0 },
		{ "# only a comment", "", 0 },
		{ "(exit 42)", "", 42 },
		{ "nosuchcommand", "bash: nosuchcommand: command not found\n", 127 },
		{ "cat <<EOF\na\nEOF\ncat <<EOF\nb\nEOF", "a\nb\n", 0 },
		{ "cat <<'EOF' | tr a-z A-Z\n$x\\\nEOF\necho after", "$X\\\nafter\n", 0 },
		{ "cat <<<'here string'", "here string\n", 0 },
		{ "cat <<EOF && echo no end\nbody", NULL, 0 },
		{ "for i in 1 2; do\n  echo $i\ndone", "1\n2\n", 0 },
		{ "x=(a b); [[ ${x[1]} == b ]] && echo $((2 ** 10));\necho end", "1024\nend\n", 0 },
		{ "echo a \\\n  b", "a b\n", 0 },
		{ "echo 'a\tb !x'", "a\tb !x\n", 0 },
		{ "f() { local v=1; return 7; }; f", "", 7 },
		{ "kill -TERM $BASHPID & wait $!", NULL, 143 },
		{ "false | true; echo ${PIPESTATUS[@]}", "1 0\n", 0 },
		{ "sh -c 'kill -9 $$'", NULL, 137 },
		{ "[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && tput cols 2>&1 || stty size", NULL, 0 },
		{ "stty size", "24 80\n", 0 },
		{ "echo $TERM $PS1 \"[$PS2]\" $0 $-", "dumb SHELLPS1PREFIX [] bash hims\n", 0 },
		{ "return 3", NULL, 2 },
		{ "break", NULL, 0 },
	};

	for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
		const char *got = out(table[i].command, table[i].code);

		if (i == 26) /* which of its letters it has is bash's matter */
			ck_assert(strncmp(got, "dumb SHELLPS1PREFIX [] bash ", 28) == 0);
		else if (table[i].output)
			ck_assert_msg(strcmp(got, table[i].output) == 0, "%s: '%s'",
				      table[i].command, got);
	}
}
END_TEST

START_TEST(all_bytes_come_through)
{
	struct ply_observation o;
	const char *command = "for i in {0..255}; do printf \"\\\\x$(printf %x $i)\"; done";

	ok(try(command, LONG, &o));
	ck_assert_uint_eq(o.output.len, 256);
	for (int i = 0; i < 256; i++)
		ck_assert_int_eq((unsigned char)o.output.data[i], i);
	ply_observation_free(&o);
}
END_TEST

START_TEST(a_command_may_be_of_any_length_and_any_bytes)
{
	size_t len = 3000000;
	char *command = malloc(len + 32);
	struct ply_observation o;

	ck_assert_ptr_nonnull(command);
	memcpy(command, "echo -n '", 9);
	for (size_t i = 9; i < len; i++)
		command[i] = "\001\003\004\021\032\177\377x\n\r"[i % 10];
	strcpy(command + len, "'");
	ok(try(command, LONG, &o));
	ck_assert_uint_eq(o.output.len, len - 9);
	ck_assert_int_eq(memcmp(o.output.data, command + 9, len - 9), 0);
	ply_observation_free(&o);
	free(command);

	ck_assert_int_eq(ply_session_run(session,
					 &(struct ply_session_run){ .command = "a\0b", .len = 3 },
					 &o),
			 PLY_INVALID);
	gives("echo fine", "fine\n");
}
END_TEST

START_TEST(state_stays)
{
	out("cd /usr; export V=1; W=2; f() { echo \"f $1\"; }", 0);
	out("alias g='echo g'; shopt -s extglob", 0);
	gives("pwd; sh -c 'echo $V'; echo $W; f x; g", "/usr\n1\n2\nf x\ng\n");
	gives("case ab in @(a|ab)) echo yes;; esac", "yes\n");
	out("false", 1);
	gives("echo $?", "1\n");
	out("set -x", 0);
	ck_assert_ptr_nonnull(strstr(out("echo traced", 0), "+ echo traced\ntraced\n"));
	out("set +x", 0);
	gives("echo quiet", "quiet\n");
	out("stty echo opost; true", 0); /* each command finds the terminal as it was */
	gives("echo plain", "plain\n");
	out("python3 -c 'import termios; termios.tcflow(1, termios.TCOOFF)'", 0);
	gives("echo not held up", "not held up\n");
	out("PS1='(venv) '$PS1", 0);
	gives("echo \"$PS1\"", "(venv) SHELLPS1PREFIX\n");
}
END_TEST

START_TEST(an_err_trap_hears_of_no_line_of_ours_a_debug_trap_of_one)
{
	gives("trap 'echo d' DEBUG", "");
	gives("echo x", "d\nd\nx\n");
	gives("for i in 1; do (echo $i); done", "d\nd\n1\n");
	(void)out("trap - DEBUG", 0);
	gives("trap 'echo e' ERR", "");
	ck_assert_str_eq(out("false; false; false", 1), "e\ne\ne\n");
	ck_assert_str_eq(out("false\n(exit 3)", 3), "e\ne\n");
	ck_assert_str_eq(out("false && true", 1), "");
	gives("false; true", "e\n");
}
END_TEST

START_TEST(set_e_ends_the_shell_only_where_it_would_at_a_prompt)
{
	struct ply_observation o;

	gives("set -e", "");
	ck_assert_str_eq(out("false && true", 1), "");
	ck_assert_str_eq(out("cd .\n[ -e nothing ] && echo no", 1), "");
	ck_assert_str_eq(out("! true", 1), "");
	ck_assert_str_eq(out("f() { false; echo goes on; false; }; f && echo no", 1), "goes on\n");
	ck_assert_str_eq(out("set -x; false && true", 1), "++ false\n");
	(void)out("set +x", 0);
	gives("trap 'echo err' ERR; echo $-; f || true", "ehimBs\ngoes on\n");
	ck_assert_int_eq(try("false; echo not reached", LONG, &o), PLY_SESSION_GONE);
	ck_assert_str_eq(o.output.data, "err\n");
	ply_observation_free(&o);
}
END_TEST

START_TEST(nothing_of_ours_is_left_in_the_shell)
{
	gives("set | grep -a __ply; declare -F | grep __ply; env | grep -i ply_;"
	      "ls /proc/self/fd | wc -l; history | wc -l; echo $HISTFILE",
	      "4\n0\n/dev/null\n");
	/* A program that was started has 0 to 2, and what ls itself opened. */
}
END_TEST

START_TEST(syntax_errors_are_told_before_anything_runs)
{
	static const char *const bad[] = {
		"(a", "a='", "for", "echo ran; (a", "touch ran\nif true; then", "}; echo ran; {",
		"); echo ran; (", "done; echo ran; while :; do :", "echo $(", "touch ran; do\\\nne",
		"case x in", "f() {", "echo }; echo )", "done } )", "echo a;; b", "&& x", "| x",
		"touch ran; cat <<EOF; )\nEOF", "`", "\"",
		"[[ a", "while :; do", "{", "((", "${", "coproc {", "if", "echo |", "$((", "<<",
	};
	static const char *const good[] = {
		"(true)", "a=''", "cat <<EOF\nno end", "shopt -s extglob\necho +([a-z])zz",
		"for x in a; do echo ${x} $(echo x); done", "echo done \\} \\)", "# }", "#\\\n",
		"{ echo \"done )}\"; }",
	};

	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		struct ply_observation o;

		ck_assert_msg(try(bad[i], LONG, &o) == PLY_SYNTAX, "%s", bad[i]);
		ck_assert_ptr_nonnull(strstr(o.output.data, "bash: line "));
		ck_assert_ptr_nonnull(strstr(ply_error(), "nothing of it was run"));
		ply_observation_free(&o);
		gives("echo fine", "fine\n");
	}
	gives("ls", "");
	for (size_t i = 0; i < ARRAY_SIZE(good); i++)
		(void)out(good[i], 0);
	/* What only a `bash -n` can tell, which is to read no file of the user's. */
	gives("readonly BASH_ENV=/dev/tty; export BASH_ENV", "");
	gives("echo a\\\nb", "ab\n");
}
END_TEST

START_TEST(checks_say_what_becomes_of_the_code)
{
	struct ply_session_run run = { .command = "echo x; false", .check = PLY_CHECK_RAISE };
	struct ply_observation o;

	ck_assert_int_eq(ply_session_run(session, &run, &o), PLY_COMMAND_FAILED);
	ck_assert_str_eq(o.output.data, "x\n");
	ck_assert_int_eq(o.exit_code, 1);
	ply_observation_free(&o);
	run.check = PLY_CHECK_IGNORE;
	ok(ply_session_run(session, &run, &o));
	ck_assert_int_eq(o.exit_code, -1);
	ck_assert(!o.exit_code_known);
	ply_observation_free(&o);
	run = (struct ply_session_run){ .command = "x", .interactive = true,
					.interactive_quit = true };
	ck_assert_int_eq(ply_session_run(session, &run, &o), PLY_INVALID);
}
END_TEST

START_TEST(background_jobs_are_told_about)
{
	ck_assert(strncmp(out("sleep 0.05 &", 0), "[1] ", 4) == 0);
	ck_assert_ptr_nonnull(strstr(out("sleep 0.3", 0), "Done"));
	ck_assert_ptr_nonnull(strstr(out("(sleep 0.2; echo late) & disown; echo now", 0), "now\n"));
	ck_assert_ptr_nonnull(strstr(out("sleep 0.5", 0), "late\n"));
}
END_TEST

/* ---- much of it ---- */

START_TEST(megabytes_come_in_linear_time)
{
	struct ply_observation o;

	ok(try("head -c 20000000 /dev/zero; printf end", LONG, &o));
	ck_assert_uint_eq(o.output.len, 20000003);
	ck_assert_str_eq(o.output.data + 20000000, "end");
	ply_observation_free(&o);
}
END_TEST

#define MANY 40

START_TEST(many_sessions_do_not_meet)
{
	struct ply_session *s[MANY], *first = session;

	for (int i = 0; i < MANY; i++) {
		s[i] = make();
		ok(ply_session_start(s[i], NULL));
	}
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < MANY; i++) {
			char command[64], expected[64];

			session = s[i];
			snprintf(command, sizeof(command), "N=$((${N-%d} + 1)); echo $N", i);
			snprintf(expected, sizeof(expected), "%d\n", i + round + 1);
			gives(command, expected);
		}
	}
	for (int i = 0; i < MANY; i++)
		ply_session_free(s[i]);
	session = first;
}
END_TEST

static int open_descriptors(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	ck_assert_ptr_nonnull(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

START_TEST(nothing_leaks)
{
	int before = open_descriptors();

	for (int i = 0; i < 5; i++) {
		struct ply_session *s = make();

		ok(ply_session_start(s, NULL));
		ply_session_free(s);
	}
	ck_assert_int_eq(open_descriptors(), before);
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("session");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, output_and_codes_are_exact);
	tcase_add_test(t, all_bytes_come_through);
	tcase_add_test(t, a_command_may_be_of_any_length_and_any_bytes);
	tcase_add_test(t, state_stays);
	tcase_add_test(t, an_err_trap_hears_of_no_line_of_ours_a_debug_trap_of_one);
	tcase_add_test(t, set_e_ends_the_shell_only_where_it_would_at_a_prompt);
	tcase_add_test(t, nothing_of_ours_is_left_in_the_shell);
	tcase_add_test(t, syntax_errors_are_told_before_anything_runs);
	tcase_add_test(t, checks_say_what_becomes_of_the_code);
	tcase_add_test(t, background_jobs_are_told_about);
	tcase_add_test(t, megabytes_come_in_linear_time);
	tcase_add_test(t, many_sessions_do_not_meet);
	tcase_add_test(t, nothing_leaks);
	return run_case("env_session", t);
}
