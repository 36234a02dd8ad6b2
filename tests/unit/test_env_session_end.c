/* SPDX-License-Identifier: Apache-2.0 */

/* How commands and shells end: timeouts, interrupts at any time and by anybody, death. */

#include "env/session_internal.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "store/base/util.h"
#include "tests/unit/session_fixture.h"

START_TEST(a_timeout_leaves_the_shell_usable)
{
	struct ply_observation o;
	struct ply_text text;

	goes_on("echo part; sleep 1000; echo no\necho nor", "part\n");
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
	free(s.out.data);
	(void)close(114);
	(void)close(fds[0]);
	(void)close(fds[1]);
}
END_TEST

/* The program that is to be interrupted says that it is there; it dies of a SIGINT at any time. */
#define WAITED "sh -c 'echo begun; : >begun; exec sleep 1000'"

static void *interrupter(void *arg)
{
	wait_for_file("begun");
	return (void *)(intptr_t)ply_session_interrupt(session, 0.2, 3, NULL);
}

static void *second_and_interrupter(void *arg)
{
	struct ply_observation o;

	wait_for_file("begun");
	if (try("echo x", LONG, &o) != PLY_STATE)
		return (void *)1;
	return interrupter(NULL);
}

START_TEST(another_thread_may_interrupt)
{
	struct ply_observation o;
	pthread_t a;
	void *r;

	ck_assert_int_eq(pthread_create(&a, NULL, second_and_interrupter, NULL), 0);
	ok(try(WAITED "; echo no", LONG * 10, &o));
	ck_assert_int_eq(o.exit_code, 130);
	ck_assert_str_eq(o.output.data, "begun\n\n");
	ply_observation_free(&o);
	pthread_join(a, &r);
	ck_assert_int_eq((int)(intptr_t)r, 0);
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
			ok(try(WAITED, LONG * 10, &o));
			ck_assert_int_eq(o.exit_code, 130);
			ply_observation_free(&o);
		}
		for (size_t i = 0; i < ARRAY_SIZE(threads); i++) {
			pthread_join(threads[i], &r);
			ck_assert_int_eq((int)(intptr_t)r, 0);
		}
		gives("rm -f begun; echo fine", "fine\n");
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

int main(void)
{
	TCase *t = tcase_create("session_end");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, a_timeout_leaves_the_shell_usable);
	tcase_add_test(t, an_interrupt_ends_whatever_runs);
	tcase_add_test(t, an_interrupt_while_programs_are_being_started_ends_no_shell);
	tcase_add_test(t, an_interrupt_may_come_while_the_shell_still_reads);
	tcase_add_test(t, a_probe_without_its_text_still_tells_the_code);
	tcase_add_test(t, another_thread_may_interrupt);
	tcase_add_test(t, many_threads_may_interrupt_at_once);
	tcase_add_test(t, another_thread_may_end_it);
	tcase_add_test(t, the_death_of_the_shell_is_noticed);
	return run_case("env_session_end", t);
}
