/* SPDX-License-Identifier: Apache-2.0 */

/*
 * When the sealer's rounds come, what who waits for one hears of it, and which numbers they keep
 * from being given out again.
 */

#include <limits.h>
#include <sys/wait.h>

#include "store/stage.h"
#include "tests/unit/seal_fixture.h"

/* ---- who waits ---- */

static void *sync_in_thread(void *arg)
{
	ck_ok(store_sync(store));
	expect_saved(arg);
	return NULL;
}

static bool is_asked_for(uint64_t before)
{
	LOCK_GUARD(&store->table);

	return store->sync_wanted > before;
}

START_TEST(a_sync_is_not_answered_by_a_round_of_what_was_frozen)
{
	struct branch *b = branch_make("main");
	uint64_t before = store->sync_wanted;
	pthread_t thread;

	for (unsigned round = 0; round < 5; round++) {
		ck_ok(store_sync(store));
		before = store->sync_wanted;
		ck_ok(claim_all(store));
		change(b, 1, round % 2 ? "1" : "2");
		(void)checkpoint(b, NULL);
		/* the sealer decides on a round of what is frozen, and waits for the claim's end */
		(void)usleep(50000);
		change(b, 1, "later");
		ck_assert_int_eq(pthread_create(&thread, NULL, sync_in_thread, b), 0);
		while (!is_asked_for(before))
			(void)sched_yield();
		claim_end(store);
		ck_assert_int_eq(pthread_join(thread, NULL), 0);
	}
	branch_close(b);
}
END_TEST

static pthread_t asker;

static void change_and_ask(void)
{
	const uint64_t before = store->sync_wanted;

	change(at_branch, 1, "later");
	ck_assert_int_eq(pthread_create(&asker, NULL, sync_in_thread, at_branch), 0);
	while (!is_asked_for(before))
		(void)sched_yield();
}

START_TEST(a_sync_is_not_answered_by_a_round_that_had_begun)
{
	struct branch *b = at_branch = branch_make("main");

	ck_ok(store_sync(store));
	change(b, 1, "before");
	atomic_store(&at_sync, change_and_ask);
	ck_ok(store_sync(store));
	ck_assert_int_eq(pthread_join(asker, NULL), 0);
	branch_close(b);
}
END_TEST

START_TEST(who_waits_for_a_snapshot_hears_of_the_failure)
{
	struct branch *b = branch_make("main");
	uint64_t id;

	ck_ok(store_sync(store));
	change_unreadable(b, 2);
	id = checkpoint(b, NULL);
	ck_err(snap_wait(store, id), -EIO); /* not when it is given up, some rounds later */
	fault_bad_sector(0, 0, 0);
	atomic_store(&store->retry_ns, 0); /* else a second later */
	ck_ok(snap_wait(store, id));
	branch_close(b);
}
END_TEST

/* ---- when they come ---- */

static struct timespec index_written(void)
{
	struct stat st;

	ck_ok(os_statat(scratch.dir_fd, "index/data.mdb", &st));
	return st.st_mtim;
}

START_TEST(a_round_without_anything_to_save_writes_nothing)
{
	struct branch *b = branch_make("main");
	struct timespec before, after;

	change(b, 1, "text");
	ck_ok(store_sync(store));
	ck_ok(store_sync(store));
	before = index_written();
	(void)store_take_ino(store, 1); /* of what was not made: there are more ahead */
	(void)usleep(20000); /* more than a tick of the clock of files */
	ck_ok(store_sync(store));
	after = index_written();
	ck_assert_int_eq(after.tv_sec, before.tv_sec);
	ck_assert_int_eq(after.tv_nsec, before.tv_nsec);
	branch_close(b);
}
END_TEST

static atomic_uint told;

static void tell(void *arg, const char *line)
{
	if (strstr(line, "saving failed"))
		atomic_fetch_add(&told, 1);
}

/* Rounds fail, at least so often. */
static void let_fail(unsigned n)
{
	fault_arm(0, INT_MAX, ENOMEM);
	while (n-- > 0) {
		atomic_store(&store->retry_ns, 0); /* else a second later */
		ck_assert_int_lt(store_sync(store), 0);
	}
	{
		LOCK_GUARD(&store->table);
		ck_assert_uint_ne(atomic_load(&store->retry_ns), 0);
		ck_assert_uint_ne(store->work_ns, 0);
	}
	fault_disarm();
	atomic_store(&store->retry_ns, 0);
}

START_TEST(a_row_of_failures_is_told_once_and_the_next_row_again)
{
	const struct noter noter = { .fn = tell };
	struct branch *b;

	ck_ok(store_close(store));
	ck_ok(store_open(scratch.dir_fd, &noter, &store));
	b = branch_make("main");
	ck_ok(store_sync(store));
	for (unsigned row = 1; row <= 2; row++) {
		change(b, 1, row == 1 ? "1" : "2");
		(void)checkpoint(b, NULL);
		let_fail(3);
		ck_assert_uint_eq(atomic_load(&told), row);
		ck_ok(store_sync(store));
		expect_nothing_to_do();
	}
	branch_close(b);
}
END_TEST

static uint64_t rounds_failed(void)
{
	LOCK_GUARD(&store->table);

	return store->errors;
}

START_TEST(a_round_that_failed_comes_again_each_second_and_not_more_often)
{
	struct branch *b = branch_make("main");
	uint64_t since_ns, before, more;

	change(b, 1, "text");
	fault_arm(0, INT_MAX, ENOMEM);
	ck_assert_int_lt(store_sync(store), 0);
	since_ns = now_ns();
	before = rounds_failed();
	(void)usleep(300000); /* a dozen rounds, if nothing held them back */
	more = rounds_failed() - before;
	ck_assert_uint_le(more, 1 + (now_ns() - since_ns) / UINT64_C(1000000000));
	fault_disarm();
	ck_ok(store_sync(store));
	expect_nothing_to_do();
	branch_close(b);
}
END_TEST

START_TEST(what_cannot_be_read_is_given_up_some_day_and_the_rest_saved)
{
	struct branch *b = branch_make("main");
	unsigned rounds = 0;

	change(b, 1, "text");
	change_unreadable(b, 2);
	while (store_sync(store) < 0) {
		atomic_store(&store->retry_ns, 0); /* else a second later */
		ck_assert_uint_lt(++rounds, 50);
	}
	expect_saved(b);
	ck_assert_uint_eq(scratch.notes, 2); /* that it failed, that it is given up */
	fault_bad_sector(0, 0, 0);
	branch_close(b);
	store_reopen();
	b = branch_at("main");
	expect_text(b, 1, "text");
	branch_close(b);
}
END_TEST

START_TEST(a_round_lets_go_of_stage_files_that_are_covered)
{
	struct branch *b = branch_make("main");
	uint64_t unsealed, disk;

	change_blob(b, 1, "text", 4);
	ck_ok(store_sync(store));
	ck_ok(store_sync(store)); /* whoever still had it as it was covered is done */
	stage_give_back(store->stage, true);
	stage_stats(store->stage, &unsealed, &disk);
	ck_assert_uint_eq(unsealed, 0);
	ck_assert_uint_eq(disk, 0);
	branch_close(b);
}
END_TEST

/* ---- numbers ---- */

START_TEST(the_id_of_what_was_dropped_is_not_given_again)
{
	uint64_t ids[4];

	for (size_t i = 0; i < ARRAY_SIZE(ids); i++) {
		struct branch *b = i == 0 ? branch_make("main") : branch_at("main");

		change(b, 1, i % 2 ? "odd" : "even");
		ids[i] = checkpoint(b, NULL);
		ck_ok(store_sync(store));
		branch_close(b);
		ck_ok(snap_drop(store, ids[i]));
		store_reopen();
		for (size_t k = 0; k < i; k++)
			ck_assert_uint_ne(ids[i], ids[k]);
	}
}
END_TEST

START_TEST(numbers_go_on_where_a_close_left_them)
{
	struct branch *b = branch_make("main");
	struct snap_info before, after;
	uint64_t ino, lineage;

	change(b, 1, "before");
	ck_ok(snap_get(store, checkpoint(b, NULL), &before));
	ino = store_take_ino(store, 1);
	lineage = store_take_lineage(store);
	branch_close(b);
	store_reopen();
	b = branch_at("main");
	change(b, 1, "after");
	ck_ok(snap_get(store, checkpoint(b, NULL), &after));
	ck_assert_uint_eq(after.seq, before.seq + 1);
	ck_assert_uint_eq(store_take_ino(store, 1), ino + 1);
	ck_assert_uint_eq(store_take_lineage(store), lineage + 1);
	branch_close(b);
}
END_TEST

struct given {
	uint64_t ino, lineage, snap;
};

static struct given give(struct branch *b)
{
	struct given g;

	g.ino = store_take_ino(store, 1);
	g.lineage = store_take_lineage(store);
	change(b, 1, "text");
	g.snap = checkpoint(b, NULL);
	return g;
}

/* The first commit after an open is there for that alone. */
START_TEST(what_was_given_out_before_a_power_cut_is_not_given_out_again)
{
	struct given *before = mmap(NULL, sizeof(*before), PROT_READ | PROT_WRITE,
				    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct given after;
	struct branch *b;
	int status;
	pid_t pid;

	branch_close(branch_make("main"));
	ck_ok(store_close(store));
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		store_up();
		ck_ok(store_sync(store));
		*before = give(branch_at("main"));
		_exit(0);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
	ck_assert_int_eq(setenv("PLYFS_TEST_BOOT_ID", "after the power cut", 1), 0);
	store_up();
	b = branch_at("main");
	after = give(b);
	branch_close(b);
	ck_assert_uint_gt(after.ino, before->ino);
	ck_assert_uint_gt(after.lineage, before->lineage);
	ck_assert_uint_ne(after.snap, before->snap);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		a_sync_is_not_answered_by_a_round_of_what_was_frozen,
		a_sync_is_not_answered_by_a_round_that_had_begun,
		who_waits_for_a_snapshot_hears_of_the_failure,
		a_round_without_anything_to_save_writes_nothing,
		a_row_of_failures_is_told_once_and_the_next_row_again,
		a_round_that_failed_comes_again_each_second_and_not_more_often,
		what_cannot_be_read_is_given_up_some_day_and_the_rest_saved,
		a_round_lets_go_of_stage_files_that_are_covered,
		the_id_of_what_was_dropped_is_not_given_again,
		numbers_go_on_where_a_close_left_them,
		what_was_given_out_before_a_power_cut_is_not_given_out_again,
	};

	return scratch_run("seal_rounds", tests, ARRAY_SIZE(tests), store_setup, store_teardown);
}
