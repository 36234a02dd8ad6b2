/* SPDX-License-Identifier: Apache-2.0 */

/* What a round of the sealer that fails leaves for the next one. */

#include "tests/unit/store_fixture.h"

#include <limits.h>
#include <stdatomic.h>

#include "store/base/fault.h"
#include "store/store_internal.h"

/* One of the calls of a round fails, and then none: *ret_failed as long as there is such a call. */
static void sync_after_failure(int n, int error, bool *ret_failed)
{
	fault_arm(n, 1, error);
	*ret_failed = store_sync(store) < 0;
	fault_disarm();
	atomic_store(&store->retry_ns, 0); /* else a second later */
	ck_ok(store_sync(store));
}

START_TEST(a_child_names_no_parent_whose_drop_failed_first)
{
	unsigned failures = 0;

	for (int n = 0; n < 20; n++) {
		struct branch *b = branch_make("main");
		uint64_t parent, child;
		struct snap_info info;
		bool failed;

		change(b, 1, "parent");
		parent = checkpoint(b, NULL);
		change(b, 1, "child");
		child = checkpoint(b, NULL);
		ck_ok(store_sync(store));
		ck_ok(snap_drop(store, parent)); /* the child's record is to be written again */
		sync_after_failure(n, ENOMEM, &failed);
		failures += failed;
		expect_sound(NULL);
		branch_close(b);
		store_reopen();
		ck_ok(snap_get(store, child, &info));
		ck_assert_uint_eq(info.parent, 0);
		ck_ok(branch_drop(store, "main"));
		ck_ok(snap_drop(store, child));
	}
	ck_assert_uint_gt(failures, 0);
}
END_TEST

/* Nothing waits, so no round follows. */
static void expect_nothing_to_do(void)
{
	LOCK_GUARD(&store->table);

	ck_assert_uint_eq(store->work_ns, 0);
	ck_assert_uint_eq(atomic_load(&store->retry_ns), 0);
	ck_assert(!store->urgent);
	ck_assert(link_alone(&store->queue) && link_alone(&store->rewrite));
	ck_assert(link_alone(&store->doomed) && link_alone(&store->doomed_branches));
	for (size_t i = 0; i < store->entry_count; i++)
		ck_assert(!store->entries[i]->dirty);
}

START_TEST(a_round_leaves_nothing_to_do)
{
	struct branch *b = branch_make("main");
	uint64_t parent, child;

	branch_close(branch_make("other"));
	change(b, 1, "parent");
	parent = checkpoint(b, NULL);
	change(b, 1, "child");
	child = checkpoint(b, NULL);
	ck_ok(snap_wait(store, child));
	ck_ok(store_sync(store));
	expect_nothing_to_do();
	ck_ok(snap_drop(store, parent));
	ck_ok(branch_drop(store, "other"));
	ck_ok(store_sync(store));
	expect_nothing_to_do();
	branch_close(b);
}
END_TEST

/* What the branch is now is in the index. */
static void expect_saved(const struct branch *b)
{
	LOCK_GUARD(&store->table);

	ck_assert(!b->entry->dirty);
	ck_assert_uint_eq(b->entry->committed.changes, b->changes);
	ck_assert(link_alone(&store->queue));
}

START_TEST(a_sync_that_could_not_save_everything_says_so)
{
	static const int errors[] = { ENOMEM, ENOSPC, EIO };
	struct branch *b = branch_make("main");
	unsigned failures = 0;

	for (int n = 0; n < 90; n++) { /* a round makes some 30 calls */
		char text[12];

		(void)snprintf(text, sizeof(text), "%d", n);
		change(b, 1, text);
		change_blob(b, 2, text, strlen(text));
		fault_arm(n / 3, 1, errors[n % 3]);
		if (store_sync(store) == 0)
			expect_saved(b);
		else
			failures++;
		fault_disarm();
		atomic_store(&store->retry_ns, 0); /* else a second later */
		ck_ok(store_sync(store));
		expect_saved(b);
	}
	ck_assert_uint_gt(failures, 0);
	branch_close(b);
}
END_TEST

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

int main(void)
{
	const TTest *const tests[] = {
		a_child_names_no_parent_whose_drop_failed_first,
		a_round_leaves_nothing_to_do,
		a_sync_that_could_not_save_everything_says_so,
		a_sync_is_not_answered_by_a_round_of_what_was_frozen,
		a_row_of_failures_is_told_once_and_the_next_row_again,
	};

	return scratch_run("seal", tests, ARRAY_SIZE(tests), store_setup, store_teardown);
}
