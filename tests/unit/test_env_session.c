/* SPDX-License-Identifier: Apache-2.0 */

/* Sessions without an environment: exact bytes and codes, whatever is done to the shell. */

#include "env/session_internal.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>

#include "env/expect.h"
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

/* ---- what is done to the shell ---- */

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
						"ulimit -n 30; true" };

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
}
END_TEST

/* ---- ends ---- */

START_TEST(a_timeout_leaves_the_shell_usable)
{
	struct ply_observation o;
	struct ply_text text;

	ck_assert_int_eq(try("echo part; sleep 1000; echo no\necho nor", 0.2, &o), PLY_TIMEOUT);
	ck_assert_str_eq(o.output.data, "part\n");
	ply_observation_free(&o);
	ck_assert_int_eq(try("echo not run", 0.1, &o), PLY_TIMEOUT);
	ply_observation_free(&o);
	ok(ply_session_interrupt(session, 0.2, 3, &text));
	ck_assert_str_eq(text.data, "part\n\n");
	ply_text_free(&text);
	gives("echo $?", "130\n");

	/* What ends by itself is waited for. */
	ck_assert_int_eq(try("sleep 0.4; echo late", 0.1, &o), PLY_TIMEOUT);
	ply_observation_free(&o);
	gives("echo next", "late\nnext\n");
}
END_TEST

START_TEST(an_interrupt_ends_whatever_runs)
{
	static const char *const commands[] = {
		"echo ready; while :; do :; done; echo no",
		"echo ready; read x; echo no",
		"echo ready; cat; echo no",
		"for i in 1 2 3; do echo ready; sleep 1000; done",
		"(trap '' INT; echo ready; sleep 1000); echo no",
		"(trap '' INT TERM QUIT HUP; echo ready; while :; do sleep 1; done); echo no",
		"sh -c 'trap \"echo caught\" INT; echo ready; while :; do sleep 1; done'",
		"stty raw; echo ready; sleep 1000; echo no",
		"bash --norc -i -c 'trap \"\" INT; echo ready; read x'",
		"yes ready",
		"echo ready; sleep 1000 | sleep 1000 | cat",
	};

	for (size_t i = 0; i < ARRAY_SIZE(commands); i++) {
		hangs(commands[i], "ready\r?\n");
		ck_assert_msg(ply_session_interrupt(session, 0.1, 2, NULL) == 0, "%s: %s",
			      commands[i], ply_error());
		ck_assert_msg(strstr(out("echo fine", 0), "no\n") == NULL, "%s", commands[i]);
		gives("echo fine", "fine\n");
	}
	interrupt(); /* idle: nothing to do */
	gives("echo fine", "fine\n");
}
END_TEST

/* bash by itself exits, or waits for ever, about once in twenty times. */
START_TEST(an_interrupt_while_programs_are_being_started_ends_no_shell)
{
	static const char *const commands[] = {
		"echo ready; sleep 1000 | sleep 1000 | cat",
		"while :; do echo ready; /bin/true; done",
		"while :; do echo ready; /bin/true | /bin/true; done",
	};

	for (size_t i = 0; i < 90; i++) {
		hangs(commands[i % ARRAY_SIZE(commands)], "ready\n");
		ok(ply_session_interrupt(session, 0.1, 2, NULL));
		ck_assert_ptr_nonnull(strstr(out("echo fine", 0), "fine\n"));
	}
}
END_TEST

struct soon {
	long ns;
	atomic_bool over;
};

static void *interrupt_soon(void *arg)
{
	struct soon *soon = arg;
	int r;

	do { /* one that comes before the command is for nobody */
		(void)nanosleep(&(struct timespec){ .tv_nsec = soon->ns }, NULL);
		r = ply_session_interrupt(session, 0.5, 3, NULL);
	} while (r == 0 && !soon->over);
	return (void *)(intptr_t)r;
}

/* Half a line bash cannot parse, or ends. */
START_TEST(an_interrupt_may_come_while_the_shell_still_reads)
{
	unsigned seed = 1;

	for (int i = 0; i < 60; i++) {
		struct soon soon = { .ns = rand_r(&seed) % 1000000 };
		struct ply_observation o;
		pthread_t thread;
		void *r;

		ck_assert_int_eq(pthread_create(&thread, NULL, interrupt_soon, &soon), 0);
		ok(try("while :; do :; done", LONG, &o));
		soon.over = true;
		ck_assert_int_eq(pthread_join(thread, &r), 0);
		ck_assert_int_eq((intptr_t)r, 0);
		ck_assert_msg(o.exit_code == 130, "after %ld ns: %d, output '%s'", soon.ns,
			      o.exit_code, o.output.data);
		ply_observation_free(&o);
	}
	gives("echo on", "on\n");
}
END_TEST

/*
 * A shell that listens late reads a probe's trigger while the next probe's text is being written:
 * it finds none. The first that it says has the command's exit code all the same.
 */
START_TEST(a_probe_without_its_text_still_tells_the_code)
{
	static const char words[] = "B130\0\0\0\0" "S0\0himBs\0\0x\0\0" "B0\0\0" "3\0\0";
	struct shell s = { .command = 1, .begun = 1, .typed = 3, .master = -1 };
	int fds[2];

	ck_assert_int_eq(pipe2(fds, O_CLOEXEC | O_NONBLOCK), 0);
	s.group = getpid();
	ck_assert_int_eq(dup2(fds[0], 114), 114);
	ck_assert_int_eq(write(fds[1], words, sizeof(words) - 1), sizeof(words) - 1);
	s.reports = fds[0];
	ok(shell_take_reports(&s));
	ck_assert(s.over);
	ck_assert_int_eq(s.code, 130);
	ck_assert_int_eq(s.status, 130);
	ck_assert_uint_eq(s.begun, 3);
	ply_text_free(&s.prompt);
	free(s.reported.data);
	(void)close(114);
	(void)close(fds[0]);
	(void)close(fds[1]);
}
END_TEST

static void *interrupter(void *arg)
{
	nanosleep(&(struct timespec){ .tv_nsec = 300000000 }, NULL);
	return (void *)(intptr_t)ply_session_interrupt(session, 0.2, 3, NULL);
}

static void *second(void *arg)
{
	struct ply_observation o;

	nanosleep(&(struct timespec){ .tv_nsec = 100000000 }, NULL);
	return (void *)(intptr_t)try("echo x", LONG, &o);
}

START_TEST(another_thread_may_interrupt)
{
	struct ply_observation o;
	pthread_t a, b;
	void *r;

	ck_assert_int_eq(pthread_create(&a, NULL, interrupter, NULL), 0);
	ck_assert_int_eq(pthread_create(&b, NULL, second, NULL), 0);
	ok(try("echo begun; sleep 1000; echo no", LONG * 10, &o));
	ck_assert_int_eq(o.exit_code, 130);
	ck_assert_str_eq(o.output.data, "begun\n\n");
	ply_observation_free(&o);
	pthread_join(a, &r);
	ck_assert_int_eq((int)(intptr_t)r, 0);
	pthread_join(b, &r);
	ck_assert_int_eq((int)(intptr_t)r, PLY_STATE);
	gives("echo fine", "fine\n");
}
END_TEST

static void *sharer(void *arg)
{
	return (void *)(intptr_t)ply_session_interrupt(session, 0.2, 3, NULL);
}

/* Of a command that somebody waits for, of one that nobody does any more, and of none. */
START_TEST(many_threads_may_interrupt_at_once)
{
	struct ply_observation o;
	pthread_t threads[8];
	void *r;

	for (int round = 0; round < 9; round++) {
		bool waited = round % 3 == 0, runs = round % 3 < 2;

		if (runs && !waited) {
			ck_assert_int_eq(try("sleep 1000", 0.1, &o), PLY_TIMEOUT);
			ply_observation_free(&o);
		}
		for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
			ck_assert_int_eq(pthread_create(&threads[i], NULL,
							waited ? interrupter : sharer, NULL), 0);
		if (waited) {
			ok(try("sleep 1000", LONG * 10, &o));
			ck_assert_int_eq(o.exit_code, 130);
			ply_observation_free(&o);
		}
		for (size_t i = 0; i < ARRAY_SIZE(threads); i++) {
			pthread_join(threads[i], &r);
			ck_assert_int_eq((int)(intptr_t)r, 0);
		}
		gives("echo fine", "fine\n");
	}
}
END_TEST

static void *ender(void *arg)
{
	nanosleep(&(struct timespec){ .tv_nsec = 200000000 }, NULL);
	return (void *)(intptr_t)ply_session_end(session);
}

START_TEST(another_thread_may_end_it)
{
	struct ply_observation o;
	pthread_t a;
	void *r;

	ck_assert_int_eq(pthread_create(&a, NULL, ender, NULL), 0);
	ck_assert_int_eq(try("sleep 1000", LONG * 10, &o), PLY_SESSION_GONE);
	ply_observation_free(&o);
	pthread_join(a, &r);
	ck_assert_int_eq((int)(intptr_t)r, 0);
	ck_assert(!ply_session_alive(session));
	ck_assert_int_eq(try("echo x", LONG, &o), PLY_SESSION_GONE);
	ck_assert_int_eq(ply_session_interrupt(session, 0.1, 1, NULL), PLY_SESSION_GONE);
}
END_TEST

START_TEST(the_death_of_the_shell_is_noticed)
{
	static const struct {
		const char *command, *output, *words;
	} table[] = {
		{ "echo last; exit 7", "last\nexit\n", "(exit code 7)" },
		{ "kill -9 $$", "", "(signal 9, Killed)" },
		{ "set -e; echo a; false; echo b", "a\n", "(exit code 1)" },
		{ "exec sh -c 'echo other; exit 5'", "other\n", "(exit code 5)" },
	};

	for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
		struct ply_observation o;

		if (i) {
			ply_session_free(session);
			session = make();
			ok(ply_session_start(session, NULL));
		}
		ck_assert(ply_session_alive(session));
		ck_assert_int_eq(try(table[i].command, LONG, &o), PLY_SESSION_GONE);
		ck_assert_str_eq(o.output.data, table[i].output);
		ck_assert_msg(strstr(ply_error(), table[i].words) != NULL, "%s", ply_error());
		ply_observation_free(&o);
		ck_assert_int_eq(try("echo", LONG, &o), PLY_SESSION_GONE);
		ck_assert(!ply_session_alive(session));
	}
}
END_TEST

/* ---- programs that ask ---- */

START_TEST(an_interactive_program_is_talked_to)
{
	const char *expect[] = { "never", "\\(age\\)\\? $", "name\\? $" };
	struct ply_session_run run = { .command = "read -p 'name? ' n; read -p '(age)? ' a; echo "
						  "\"$n is $a\"; (exit 4)",
				       .timeout = LONG,
				       .interactive = true,
				       .expect = expect,
				       .n_expect = 3 };
	struct ply_observation o;

	ok(ply_session_run(session, &run, &o));
	ck_assert_int_eq(o.matched, 2);
	ck_assert_str_eq(o.output.data, "");
	ply_observation_free(&o);
	run.command = "Ada";
	ok(ply_session_run(session, &run, &o));
	ck_assert_int_eq(o.matched, 1);
	ply_observation_free(&o);
	run.command = "36";
	run.interactive = false;
	run.interactive_quit = true;
	run.n_expect = 0;
	ok(ply_session_run(session, &run, &o));
	ck_assert_int_eq(o.matched, -1);
	ck_assert_int_eq(o.exit_code, 4);
	ck_assert_str_eq(o.output.data, "Ada is 36\n");
	ply_observation_free(&o);
	gives("echo $n", "Ada\n");
}
END_TEST

/* Half a second of silence behind what looks like the prompt: nothing is typed into it. */
START_TEST(a_question_that_looks_like_the_prompt_waits_for_its_answer)
{
	gives("PS1='> '", "");
	gives("read -t 0.5 -p '> ' x; echo \"[$x]\"", "> []\n");
	gives("echo still", "still\n");
}
END_TEST

START_TEST(what_is_printed_stays_though_it_looks_like_the_prompt)
{
	struct ply_text text;

	gives("PS1='> '", "");
	hangs("sh -c 'trap \"trap - INT; echo a \\> b \\> c; kill -INT \\$\\$\" INT;"
	      " echo ready; while :; do sleep 0.05; done'", "ready\n");
	ok(ply_session_interrupt(session, 1, 3, &text));
	ck_assert_str_eq(text.data, "a > b > c\n\n");
	ply_text_free(&text);
	gives("echo 'a > b'", "a > b\n");
	gives("PS1='$ '; readonly PS1", "");
	for (int i = 0; i < 20; i++)
		gives("echo '$ 4, price $ 5'", "$ 4, price $ 5\n");
}
END_TEST

START_TEST(patterns_end_a_wait_wherever_they_are)
{
	const char *expect[] = { "b+c", "(?<=x)y" };
	struct ply_session_run run = { .command = "printf 'ab'; sleep 0.1; printf 'bcd';"
						  "sleep 0.1; echo xy; sleep 0.2; echo z",
				       .timeout = LONG,
				       .expect = expect,
				       .n_expect = 2 };
	struct ply_observation o;

	ok(ply_session_run(session, &run, &o));
	ck_assert_int_eq(o.matched, 0);
	ck_assert_str_eq(o.output.data, "a");
	ply_observation_free(&o);
	gives("echo next", "dxy\nz\nnext\n");

	expect[0] = "(";
	ck_assert_int_eq(ply_session_run(session, &run, &o), PLY_INVALID);
	gives("echo fine", "fine\n");
}
END_TEST

START_TEST(patterns_are_found_across_any_cut)
{
	static const char text[] = "p\xc3\xa9>> x\xff>>> abc\xe2\x82\xac end";
	static const char *const patterns[] = { ">>> ", "\xe2\x82\xac", "c.* end", "[^a-z> ]>>>" };

	for (size_t i = 0; i < ARRAY_SIZE(patterns); i++) {
		struct expect *e;
		struct expect_match whole = { 0 }, cut = { 0 };
		int r = 0, once;

		ok(expect_new(&patterns[i], 1, &e));
		once = expect_scan(e, text, sizeof(text) - 1, &whole);
		expect_free(e);
		ok(expect_new(&patterns[i], 1, &e));
		for (size_t n = 0; n < sizeof(text) && r == 0; n++)
			r = expect_scan(e, text, n, &cut);
		ck_assert_int_eq(r, once);
		ck_assert_uint_eq(cut.start, whole.start);
		ck_assert_uint_eq(cut.end, whole.end);
		expect_free(e);
	}
}
END_TEST

/* ---- start ---- */

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
	ck_assert(!ply_session_alive(session));
	write_file(".bashrc", "exit 3\n");
	ok(ply_session_set(session, "startup_timeout", PATIENCE));
	ck_assert_int_eq(ply_session_start(session, NULL), PLY_SESSION_GONE);
	write_file(".bashrc", "");
	ok(ply_session_start(session, NULL));
	gives("echo fine", "fine\n");
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
	tcase_add_test(t, a_prompt_that_cannot_be_hidden_is_not_in_the_output);
	tcase_add_test(t, what_process_substitutions_print_is_the_commands);
	tcase_add_test(t, nothing_that_a_command_does_stops_the_engine);
	tcase_add_test(t, descriptors_are_what_a_command_makes_of_them);
	tcase_add_test(t, a_shell_that_can_tell_nothing_any_more_is_told_at_once);
	tcase_add_test(t, a_builtin_that_is_hidden_costs_an_interrupt);
	tcase_add_test(t, a_program_that_dies_of_sigint_aborts_the_command);
	tcase_add_test(t, a_timeout_leaves_the_shell_usable);
	tcase_add_test(t, an_interrupt_ends_whatever_runs);
	tcase_add_test(t, an_interrupt_while_programs_are_being_started_ends_no_shell);
	tcase_add_test(t, an_interrupt_may_come_while_the_shell_still_reads);
	tcase_add_test(t, a_probe_without_its_text_still_tells_the_code);
	tcase_add_test(t, another_thread_may_interrupt);
	tcase_add_test(t, many_threads_may_interrupt_at_once);
	tcase_add_test(t, another_thread_may_end_it);
	tcase_add_test(t, the_death_of_the_shell_is_noticed);
	tcase_add_test(t, an_interactive_program_is_talked_to);
	tcase_add_test(t, a_question_that_looks_like_the_prompt_waits_for_its_answer);
	tcase_add_test(t, what_is_printed_stays_though_it_looks_like_the_prompt);
	tcase_add_test(t, patterns_end_a_wait_wherever_they_are);
	tcase_add_test(t, patterns_are_found_across_any_cut);
	tcase_add_test(t, startup_files_are_read);
	tcase_add_test(t, names_of_startup_files_are_expanded);
	tcase_add_test(t, bad_options_are_refused);
	tcase_add_test(t, megabytes_come_in_linear_time);
	tcase_add_test(t, many_sessions_do_not_meet);
	tcase_add_test(t, nothing_leaks);
	return run_case("env_session", t);
}
