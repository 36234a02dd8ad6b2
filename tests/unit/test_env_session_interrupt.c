/* SPDX-License-Identifier: Apache-2.0 */

/* Whose output is whose when an interrupt fails, kills, or meets a terminal of another mind. */

#include "env/session.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "store/base/util.h"
#include "tests/unit/session_fixture.h"

/* The shell itself is busy, and deaf, until there is a file `stop`. */
#define DEAF                                                                                       \
	"trap '' INT; echo begun; : >begun;"                                                       \
	" while [[ ! -e stop ]]; do :; done; echo finished; trap - INT"

static void stop_it(void)
{
	char path[128];
	int fd;

	snprintf(path, sizeof(path), "%s/stop", dir);
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	ck_assert_int_ge(fd, 0);
	close(fd);
}

START_TEST(after_an_interrupt_that_fails_every_output_is_its_own_commands)
{
	goes_on(DEAF, "begun\n");
	for (int i = 0; i < 6; i++) /* more than the terminal has room for what each might type */
		ck_assert_int_eq(ply_session_interrupt(session, 0.05, 2, NULL), PLY_TIMEOUT);
	stop_it();
	gives("echo one", "begun\nfinished\none\n");
	gives("echo two", "two\n");
}
END_TEST

static void start_with_bad_moments(const char *env)
{
	char preload[4096];

	ply_session_free(session);
	session = make();
	ck_assert_ptr_nonnull(getenv("PLYFS_BUILD"));
	snprintf(preload, sizeof(preload), "LD_PRELOAD=%s/tests/bad_moments.so",
		 getenv("PLYFS_BUILD"));
	ok(ply_session_set(session, "env", preload));
	if (env)
		ok(ply_session_set(session, "env", env));
	ok(ply_session_start(session, NULL));
}

START_TEST(a_shell_that_reads_what_an_interrupt_left_gets_it_whole)
{
	char slow[32];

	snprintf(slow, sizeof(slow), "PLYFS_SLOW=%d", (int)getpid());
	start_with_bad_moments(slow);
	goes_on(DEAF, "begun\n");
	ck_assert_int_eq(ply_session_interrupt(session, 0.05, 2, NULL), PLY_TIMEOUT);
	stop_it();
	gives("echo one", "begun\nfinished\none\n");
	gives("echo two", "two\n");
}
END_TEST

/* The line that the shell is told to read, as our own program has it: into a file. */
static void write_line(void)
{
	static const char behind_brace[] = " builtin eval \"builtin unset -v __ply";
	static char program[64 << 20], path[128]; /* far more than it has */
	const char *line = program, *end;
	FILE *f = fopen("/proc/self/exe", "re");

	ck_assert_ptr_nonnull(f);
	end = program + fread(program, 1, sizeof(program), f);
	fclose(f);
	do { /* the one above is not it */
		line = memmem(line + 1, (size_t)(end - line - 1), behind_brace,
			      strlen(behind_brace));
		ck_assert_ptr_nonnull(line);
	} while (line[-1] != '{');
	snprintf(path, sizeof(path), "%s/line", dir);
	f = fopen(path, "we");
	ck_assert_ptr_nonnull(f);
	ck_assert_int_gt(fprintf(f, "%.*s", (int)strcspn(line, "\n") + 2, line - 1), 500);
	ck_assert_int_eq(fclose(f), 0);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FLOOD "4M" /* each memmem() looks first whether all that is left may be read */
#else
#define FLOOD "200M"
#endif

/*
 * Of a command that is aborted they are taken out. Once each was for itself, and all behind it
 * moved, which for 200 MB, what a second or two print, takes hours.
 */
START_TEST(a_flood_of_our_own_lines_is_taken_out_in_one_go)
{
	struct ply_text left = { 0 };

	write_line();
	hangs("bash -c 'trap \"yes \\\"\\$(<line)\\\" | head -c " FLOOD "; trap - INT;"
	      " kill -INT \\$\\$\" INT; echo begun; while :; do sleep 0.1; done'",
	      "begun\n");
	ok(ply_session_interrupt(session, LONG, 1, &left));
	ck_assert_uint_lt(left.len, 4096);
	ply_text_free(&left);
	gives("echo one", "one\n");
}
END_TEST

/* To bash the next command's status is then that of the program it had started. */
START_TEST(a_pipeline_that_is_interrupted_while_it_starts_ends_no_session)
{
	start_with_bad_moments(NULL);
	for (int i = 0; i < 3; i++) {
		(void)out(": >interrupt-fork; false | true; echo no", 130);
		gives("[[ -e interrupt-fork ]] || echo done", "done\n");
		gives("echo fine", "fine\n");
	}
}
END_TEST

static void *fail_to_interrupt(void *arg)
{
	intptr_t r;

	wait_for_file("begun");
	r = ply_session_interrupt(session, 0.05, 2, NULL);
	stop_it();
	return (void *)r;
}

START_TEST(a_command_that_no_interrupt_ends_has_its_own_end)
{
	struct ply_observation o;
	pthread_t thread;
	void *r;

	ck_assert_int_eq(pthread_create(&thread, NULL, fail_to_interrupt, NULL), 0);
	ok(try(DEAF "; (exit 3)", LONG, &o));
	ck_assert(o.exit_code_known);
	ck_assert_int_eq(o.exit_code, 3);
	ck_assert_str_eq(o.output.data, "begun\nfinished\n");
	ply_observation_free(&o);
	pthread_join(thread, &r);
	ck_assert_int_eq((int)(intptr_t)r, PLY_TIMEOUT);
	gives("echo $?", "3\n");
}
END_TEST

static void *kill_it(void *arg)
{
	sleep(1); /* nothing tells that the next one waits */
	return (void *)(intptr_t)ply_session_interrupt(session, 0.1, 1, NULL);
}

/* One that timed out is killed while the next waits for it: that one has all of the output. */
START_TEST(what_comes_after_a_kill_is_the_waiting_commands)
{
	const char *told;
	pthread_t thread;
	void *r;

	goes_on("sh -c 'trap \"\" INT TERM; echo begun; while :; do sleep 1; done'", "begun\n");
	ck_assert_int_eq(pthread_create(&thread, NULL, kill_it, NULL), 0);
	told = out("echo one", 0);
	ck_assert_msg(strncmp(told, "begun\nKilled", 12) == 0, "%s", told);
	told += strcspn(told + 6, "\n") + 6; /* from bash 5.3 on with the command behind it */
	ck_assert_str_eq(told, "\n\none\n");
	pthread_join(thread, &r);
	ck_assert_int_eq((int)(intptr_t)r, 0);
	gives("echo two", "two\n");
}
END_TEST

/* Programs that survive Ctrl-C, and that the shell waits for while it is itself in front. */
START_TEST(what_runs_in_the_shells_own_group_is_ended_as_well)
{
	hangs("x=$(sh -c 'trap \"\" INT; echo ready >/dev/tty; sleep 1000; :')", "ready\n");
	interrupt();
	(void)out("true", 0); /* it may begin with bash's "Killed" */
	gives("jobs; echo \"<$x>\"", "<>\n");
	(void)out("set +m; sleep 1000 &", 0);
	hangs("sh -c 'trap \"\" INT TERM; echo ready; sleep 1000; :' | cat", "ready\n");
	interrupt();
	(void)out("true", 0);
	gives("kill -0 $! && jobs -r | wc -l", "1\n"); /* what was there before lives */
}
END_TEST

/* Where a Ctrl-C is no signal it is a key, which nobody may have read when the shell is back. */
START_TEST(a_key_that_nobody_read_is_no_beginning_of_a_line)
{
	static const char *const commands[] = {
		"stty -isig; echo ready; sleep 1000",
		"stty raw; echo ready; sleep 1000",
		"stty intr undef; echo ready; sleep 1000",
		/* It ends by itself, with the key pressed. */
		"stty -isig; echo ready; while [[ ! -e stop ]]; do :; done; sleep 1.2",
	};

	for (size_t i = 0; i < ARRAY_SIZE(commands); i++) {
		bool by_itself = strstr(commands[i], "stop") != NULL;
		struct ply_text text;

		hangs(commands[i], "ready\n");
		if (by_itself)
			stop_it();
		ck_assert_msg(ply_session_interrupt(session, by_itself ? 5 : 0.1, 2, &text) == 0,
			      "%s: %s", commands[i], ply_error());
		ck_assert_msg(!strstr(text.data, "bash:"), "%s: %s", commands[i], text.data);
		ply_text_free(&text);
		ck_assert_msg(strcmp(out("echo one", 0), "one\n") == 0, "%s: %s", commands[i],
			      out("echo two", 0));
		gives("rm -f stop; echo three", "three\n");
	}
}
END_TEST

/* What was typed for a program is none of the shell's. */
START_TEST(a_line_that_a_program_did_not_read_is_no_command)
{
	static const char line[] = "touch wrong # and this is as long as a line of our own, "
				   "so that nobody takes it for a key or two that were pressed";
	const char *expect[] = { "no such text" };
	const struct ply_session_run input = { .command = line,
					       .timeout = 0.2,
					       .interactive = true,
					       .expect = expect,
					       .n_expect = 1 };
	struct ply_observation o;

	hangs("stty -isig; echo ready; sleep 1000", "ready\n");
	ck_assert_int_eq(ply_session_run(session, &input, &o), PLY_TIMEOUT);
	ply_observation_free(&o);
	interrupt();
	gives("ls", "");
}
END_TEST

/* So many that the terminal has no room for them; a shell that reads one is found out. */
#define MUCH 200000
static const char wrong[] = "touch wrong\n";

static char *much(size_t lines)
{
	char *text = malloc(lines * (sizeof(wrong) - 1) + 1), *to = text;

	ck_assert_ptr_nonnull(text);
	for (size_t i = 0; i < lines; i++)
		to = stpcpy(to, wrong);
	return text;
}

/* As before, but the key would come behind them. */
START_TEST(lines_that_a_program_did_not_read_hold_up_no_interrupt)
{
	static const size_t lines[] = { 100, 1000, MUCH };

	for (size_t i = 0; i < ARRAY_SIZE(lines); i++) {
		char *text = much(lines[i]);
		const struct ply_session_run input = { .command = text,
						       .timeout = 0.2,
						       .interactive_quit = true };
		struct ply_observation o;

		hangs("echo ready; sleep 1000", "ready\n");
		ck_assert_int_eq(ply_session_run(session, &input, &o), PLY_TIMEOUT);
		ply_observation_free(&o);
		interrupt();
		gives("ls", "");
		free(text);
	}
}
END_TEST

struct typist {
	pthread_t thread;
	char *text;
	int status;
};

static void *type_for_ever(void *arg)
{
	struct typist *t = arg;
	const struct ply_session_run input = { .command = t->text, .interactive_quit = true };
	struct ply_observation o;

	do { /* the other one may be looking just now */
		t->status = ply_session_run(session, &input, &o);
		ply_observation_free(&o);
	} while (t->status == PLY_STATE);
	return NULL;
}

/* A program that reads nothing of it, in a shell whose number is *ret_shell. */
static void start_typing(struct typist *t, pid_t *ret_shell)
{
	struct ply_observation o;

	*ret_shell = atoi(out("echo $$", 0));
	hangs("echo ready; sleep 1000", "ready\n");
	t->text = much(MUCH);
	ck_assert_int_eq(pthread_create(&t->thread, NULL, type_for_ever, t), 0);
	do
		usleep(1000);
	while (try("echo not run", 0.01, &o) != PLY_STATE && (ply_observation_free(&o), true));
}

static int stop_typing(struct typist *t)
{
	ck_assert_int_eq(pthread_join(t->thread, NULL), 0);
	free(t->text);
	return t->status;
}

/* It has no timeout, so only they do. */
START_TEST(input_that_nobody_reads_ends_with_the_interrupt_the_session_the_shell)
{
	struct typist t;
	pid_t shell;

	start_typing(&t, &shell);
	interrupt();
	ck_assert_int_eq(stop_typing(&t), 0);
	gives("ls", "");

	start_typing(&t, &shell);
	ck_assert_int_eq(kill(shell, SIGKILL), 0);
	ck_assert_int_eq(stop_typing(&t), PLY_SESSION_GONE);

	ply_session_free(session);
	session = make();
	ok(ply_session_start(session, NULL));
	start_typing(&t, &shell);
	ok(ply_session_end(session));
	ck_assert_int_eq(stop_typing(&t), PLY_SESSION_GONE);
}
END_TEST

/* What tells us of its end is run with -x or -v still on. */
START_TEST(a_command_that_was_aborted_is_followed_by_no_trace_of_ours)
{
	static const struct {
		const char *flags, *seen, *after;
	} table[] = {
		{ "x", "++ echo begun\nbegun\n++ sleep 1000\n", "++ echo x\nx\n" },
		{ "v", "begun\n", "x\n" },
		{ "xv", "++ echo begun\nbegun\n++ sleep 1000\n", "++ echo x\nx\n" },
	};

	for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
		char command[64], expected[64];
		struct ply_text text;

		snprintf(command, sizeof(command), "set -%s", table[i].flags);
		gives(command, "");
		goes_on("echo begun; sleep 1000", table[i].seen);
		ok(ply_session_interrupt(session, 2, 3, &text));
		snprintf(expected, sizeof(expected), "%s\n", table[i].seen);
		ck_assert_str_eq(text.data, expected);
		ply_text_free(&text);
		gives("echo x", table[i].after);
		ck_assert_ptr_null(strstr(out("echo $-; kill -INT $$", 130), "__ply"));
		(void)out("set +xv", 0);
		/* By itself, in the middle. */
		snprintf(command, sizeof(command), "set -%s; kill -INT $$", table[i].flags);
		ck_assert_ptr_null(strstr(out(command, 130), "__ply"));
		gives("echo x", table[i].after);
		(void)out("set +xv", 0);
		gives("echo x", "x\n");
	}
}
END_TEST

/* The interrupt may fail: each of its steps comes before the prompt is there. */
START_TEST(a_shell_with_a_slow_prompt_comes_back)
{
	gives("PS1='$(sleep 0.3)$ '", "");
	for (int i = 0; i < 5; i++) {
		const char *told;

		goes_on("echo begun; sleep 1000", "begun\n");
		(void)ply_session_interrupt(session, 0.2, 3, NULL);
		told = out("echo one", 0);
		ck_assert_msg(strlen(told) >= 4 && strcmp(told + strlen(told) - 4, "one\n") == 0,
			      "%s", told);
		gives("echo two", "two\n");
	}
}
END_TEST

START_TEST(a_shell_that_stopped_itself_goes_on)
{
	goes_on("echo before; kill -STOP $$; echo behind", "before\n");
	ck_assert_msg(ply_session_interrupt(session, 2, 2, NULL) == 0, "%s", ply_error());
	gives("echo one", "one\n");
	gives("echo two", "two\n");
}
END_TEST

START_TEST(a_shell_that_is_stopped_again_and_again_goes_on)
{
	goes_on("echo before; sh -c 'trap \"\" INT TERM; while :; do kill -STOP $PPID; done'",
		"before\n");
	ck_assert_msg(ply_session_interrupt(session, 0.05, 2, NULL) == 0, "%s", ply_error());
	(void)out("true", 0); /* has the "Killed" */
	gives("echo one", "one\n");
}
END_TEST

/* Leads a session and a group of its own, with this number. -1: we may not choose one. */
static pid_t start_stranger(pid_t pid)
{
	struct clone_args args = { .exit_signal = SIGCHLD,
				   .set_tid = (uintptr_t)&pid,
				   .set_tid_size = 1 };
	pid_t child = (pid_t)syscall(SYS_clone3, &args, sizeof(args));

	if (child == 0) {
		(void)signal(SIGINT, SIG_DFL); /* Check's handlers would kill the test */
		(void)signal(SIGTERM, SIG_DFL);
		(void)setsid();
		for (;;)
			pause();
	}
	return child;
}

/* A program puts a group in front that ends, and goes on behind it. */
START_TEST(a_strangers_group_of_the_number_that_was_in_front_is_not_killed)
{
	static const char command[] =
		"python3 -c 'import os, signal\n"
		"signal.signal(signal.SIGTTOU, signal.SIG_IGN)\n"
		"pid = os.fork()\n"
		"if pid == 0:\n"
		"  os.setpgid(0, 0)\n"
		"  os.tcsetpgrp(0, os.getpid())\n"
		"  os._exit(0)\n"
		"os.waitpid(pid, 0)\n"
		"open(\"new\", \"w\").write(str(pid))\n"
		"os.rename(\"new\", \"number\")\n"
		"signal.pause()'";
	const struct ply_session_run run = { .command = command, .timeout = 0.1 };
	struct ply_observation o;
	char path[128];
	int number, status;
	pid_t stranger;
	FILE *f;

	ck_assert_int_eq(ply_session_run(session, &run, &o), PLY_TIMEOUT);
	ply_observation_free(&o);
	wait_for_file("number");
	snprintf(path, sizeof(path), "%s/number", dir);
	f = fopen(path, "r");
	ck_assert_ptr_nonnull(f);
	ck_assert_int_eq(fscanf(f, "%d", &number), 1);
	fclose(f);
	stranger = start_stranger(number);
	if (stranger < 0) /* an ordinary user, or somebody else has it already */
		return;
	/* The shell waits for a program that nobody can find. */
	ck_assert_int_eq(ply_session_interrupt(session, 0.05, 2, NULL), PLY_TIMEOUT);
	ck_assert_int_eq(waitpid(stranger, &status, WNOHANG), 0);
	ck_assert_int_eq(kill(stranger, SIGKILL), 0);
	ck_assert_int_eq(waitpid(stranger, &status, 0), stranger);
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("session_interrupt");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, after_an_interrupt_that_fails_every_output_is_its_own_commands);
	tcase_add_test(t, a_shell_that_reads_what_an_interrupt_left_gets_it_whole);
	tcase_add_test(t, a_flood_of_our_own_lines_is_taken_out_in_one_go);
	tcase_add_test(t, a_pipeline_that_is_interrupted_while_it_starts_ends_no_session);
	tcase_add_test(t, a_command_that_no_interrupt_ends_has_its_own_end);
	tcase_add_test(t, what_comes_after_a_kill_is_the_waiting_commands);
	tcase_add_test(t, what_runs_in_the_shells_own_group_is_ended_as_well);
	tcase_add_test(t, a_key_that_nobody_read_is_no_beginning_of_a_line);
	tcase_add_test(t, a_line_that_a_program_did_not_read_is_no_command);
	tcase_add_test(t, lines_that_a_program_did_not_read_hold_up_no_interrupt);
	tcase_add_test(t, input_that_nobody_reads_ends_with_the_interrupt_the_session_the_shell);
	tcase_add_test(t, a_command_that_was_aborted_is_followed_by_no_trace_of_ours);
	tcase_add_test(t, a_shell_with_a_slow_prompt_comes_back);
	tcase_add_test(t, a_shell_that_stopped_itself_goes_on);
	tcase_add_test(t, a_shell_that_is_stopped_again_and_again_goes_on);
	tcase_add_test(t, a_strangers_group_of_the_number_that_was_in_front_is_not_killed);
	return run_case("env_session_interrupt", t);
}
