/* SPDX-License-Identifier: Apache-2.0 */

/*
 * timeout: 300
 *
 * A process that has a store open is killed at a random instant of a random history
 * (store_history.h). The store opened afterwards holds everything that was answered, with or
 * without the step that was under way. Often the process that recovers is killed as well, before
 * it has committed anything.
 *
 * A loss of power is played by another boot id: nothing counts then but what was synced. (What a
 * disk does to bytes that were not synced is test_power_cut.c's: here they are there, unused.)
 *
 * A failure prints its seed; PLYFS_TEST_SEED=n runs that one alone.
 */

#include "tests/unit/store_history.h"

#include <signal.h>
#include <sys/wait.h>

enum {
	HISTORIES = 8,
	KILLS = 6,
};

static struct told *told; /* shared with the process that is killed */
static bool cut;          /* the power is cut */
static bool spoilt;       /* the counter that says what the index has of the journal */

static void note_event(uint32_t kind, uint32_t value)
{
	hear(told, kind, value);
}

/* ---- comparing ---- */

/* The step that was under way counts as done, with what came of it. */
static void end_broken_step(const struct moment found[static BRANCHES])
{
	if (sh->begun == sh->steps)
		return;
	sh->now[sh->under_way] = found[sh->under_way];
	for (int i = 0; i < SNAPS; i++)
		if (present[i] && sh->snaps[i].dropped == sh->begun)
			sh->snaps[i].dropped = 0;
	end();
}

static void expect_what_was_answered(struct moment found[static BRANCHES])
{
	const struct told all = { .steps = sh->steps, .synced = sh->steps };

	compare(cut ? told : &all, found);
}

/* ---- killing ---- */

/*
 * Check notes every assertion in a file that all forks share. A note that is cut short by the kill
 * would spoil it, so the process that is killed gets a file of its own.
 */
static void leave_checks_file(void)
{
	const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;
	_cleanup_close_ int own = openat(scratch.dir_fd, "checks", flags, 0600);
	bool found = false;
	char path[32], target[256];

	ck_assert_int_ge(own, 0);
	for (int fd = 3; fd < 64; fd++) {
		ssize_t n;

		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		n = readlink(path, target, sizeof(target) - 1);
		if (n < 0)
			continue;
		target[n] = '\0';
		if (strstr(target, "/check_") && dup2(own, fd) == fd)
			found = true;
	}
	ck_assert_msg(found, "Check keeps its notes elsewhere");
}

static void run_until_killed(bool verify)
{
	struct moment found[BRANCHES];

	leave_checks_file();
	store_up();
	if (verify) {
		expect_what_was_answered(found);
		end_broken_step(found);
	}
	take_handles();
	while (sh->steps < STEPS)
		step();
	for (;;)
		pause();
}

/* The text at the end of that file: what an assertion there complained of. */
static const char *last_check(void)
{
	static char tail[300];
	_cleanup_close_ int own = openat(scratch.dir_fd, "checks", O_RDONLY);
	off_t end = own < 0 ? -1 : lseek(own, 0, SEEK_END);
	ssize_t n = end < 0 ? -1 : pread(own, tail, sizeof(tail) - 1, MAX(0, end - 299));

	for (ssize_t i = 0; i < n; i++)
		if (tail[i] < ' ' || tail[i] > '~')
			tail[i] = ' ';
	tail[MAX(n, 0)] = '\0';
	return tail;
}

static void kill_after(uint64_t ns, bool verify)
{
	const struct timespec t = { .tv_sec = (time_t)(ns / 1000000000),
				    .tv_nsec = (long)(ns % 1000000000) };
	pid_t child = fork();
	int status;

	ck_assert_int_ge(child, 0);
	if (child == 0)
		run_until_killed(verify);
	nanosleep(&t, NULL);
	ck_assert_int_eq(kill(child, SIGKILL), 0);
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL,
		      "seed %llu: the process ended by itself (%x): %s", (unsigned long long)seed,
		      (unsigned)status, last_check());
}

static void spoil_counter(void)
{
	_cleanup_free_ void *value = NULL;
	const struct noter noter = { 0 };
	struct index_txn *txn;
	struct index *index;
	size_t len;

	ck_ok(index_open(scratch.dir_fd, &noter, &index));
	if (index_get(index, INDEX_META, "lsn", 3, &value, &len) == 0) {
		ck_ok(index_begin(index, &txn));
		ck_ok(index_put(txn, INDEX_META, "lsn", 3, "?", 1));
		ck_ok(index_commit(&txn));
	}
	index_close(index);
}

/* The parent opens the store, and what it finds is the beginning of what comes next. */
static void open_and_compare(void)
{
	struct moment found[BRANCHES];

	if (spoilt)
		spoil_counter();
	store_up();
	expect_what_was_answered(found);
	go_on(found);
	*told = (struct told){ 0 };
}

static void history(void)
{
	uint64_t rng = seed;
	bool verify = false;

	for (int n = 0; n < KILLS; n++) {
		uint64_t r = scratch_random(&rng);

		kill_after(r % (n % 2 ? 30000000 : 150000000), verify);
		if (cut)
			reboot();
		verify = !cut && (r >> 60 & 1);
		if (verify)
			continue; /* the next process recovers, goes on, and is killed too */
		open_and_compare();
		if (r >> 61 & 1)
			ck_ok(store_sync(store));
		expect_sound(NULL);
		ck_ok(store_close(store));
		store = NULL;
	}
	open_and_compare();
	expect_sound(NULL);
}

static void recovery_setup(void)
{
	told = shared(sizeof(*told));
	on_event = note_event;
	store_setup();
	ck_ok(store_close(store));
	store = NULL;
}

START_TEST(what_was_answered_is_there_after_a_kill)
{
	history_setup(_i);
	history();
}
END_TEST

START_TEST(a_power_cut_leaves_what_was_synced_and_a_prefix_of_the_rest)
{
	history_setup(_i);
	cut = true;
	history();
}
END_TEST

START_TEST(a_damaged_counter_loses_nothing)
{
	history_setup(_i);
	spoilt = true;
	history();
}
END_TEST

int main(void)
{
	TCase *tcase = tcase_create("recovery");

	tcase_set_timeout(tcase, 240);
	tcase_add_checked_fixture(tcase, recovery_setup, store_teardown);
	tcase_add_loop_test(tcase, what_was_answered_is_there_after_a_kill, 0,
			    getenv("PLYFS_TEST_LONG") ? 20 * HISTORIES : HISTORIES);
	tcase_add_loop_test(tcase, a_power_cut_leaves_what_was_synced_and_a_prefix_of_the_rest, 0,
			    getenv("PLYFS_TEST_LONG") ? 20 * HISTORIES : HISTORIES);
	tcase_add_loop_test(tcase, a_damaged_counter_loses_nothing, 0,
			    getenv("PLYFS_TEST_LONG") ? 20 * HISTORIES : HISTORIES);
	return run_case("recovery", tcase);
}
