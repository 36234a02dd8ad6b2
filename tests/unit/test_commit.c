/* SPDX-License-Identifier: Apache-2.0 */

/* Group commits: what an fsync does where its mark finds no room, and what stays for its copy. */

#include "tests/unit/store_fixture.h"

#include <stdatomic.h>

#include "store/journal_internal.h"
#include "store/store_internal.h"

static void setup(void)
{
	const struct store_options by_hand = { .commit_ms = 0 };
	const struct noter noter = { .fn = scratch_note, .arg = &scratch };

	scratch_make(&scratch);
	ck_ok(store_init(scratch.dir_fd));
	ck_ok(store_open_with(scratch.dir_fd, &by_hand, &noter, &store));
}

static void expect_unsealed(bool any)
{
	struct store_stats stats;

	ck_ok(store_stats(store, &stats));
	ck_assert_int_eq(stats.unsealed_bytes > 0, any);
}

/* Sealing everything instead, as after other failures, would take room that there may not be. */
START_TEST(where_a_copy_finds_no_room_the_stage_is_synced)
{
	const size_t more_than_half = JOURNAL_LIMIT / 2 + 1;
	static uint8_t data[60000];
	_cleanup_(branch_closep) struct branch *b = branch_make("main");
	size_t rest;

	change_blob(b, 1, "x", 1);
	ck_ok(store_flush(store)); /* files' names are new, so there is no copy */
	ck_ok(journal_reserve(store->journal, more_than_half, false)); /* a segment so large */
	journal_unreserve(store->journal, more_than_half);
	ck_assert(journal_wants_round(store->journal)); /* not now */
	change_blob(b, 2, data, sizeof(data));
	/* Too little is left for the copy, and for a second segment that large there is no room. */
	rest = store->journal->newest->size - store->journal->newest->used;
	ck_ok(journal_reserve(store->journal, rest - sizeof(data), true));

	ck_ok(store_flush(store));
	ck_assert_uint_ge(journal_synced(store->journal), journal_lsn(store->journal));
	expect_unsealed(true);
	journal_unreserve(store->journal, rest - sizeof(data));
	ck_ok(store_sync(store));
	expect_unsealed(false);
}
END_TEST

struct writer {
	struct branch *branch;
	atomic_bool ends;
};

static void *go_on_changing(void *arg)
{
	struct writer *w = arg;

	for (unsigned n = 0; !w->ends; n++) {
		change(w->branch, 1, n % 2 ? "odd" : "even");
		usleep(200);
	}
	return NULL;
}

static uint64_t journal_size(void)
{
	struct store_stats stats;

	ck_ok(store_stats(store, &stats));
	return stats.journal_bytes;
}

/* While somebody changes something all the time only a sync of the stage says that it may. */
START_TEST(a_round_lets_go_of_segments_with_copies)
{
	static char text[500];
	struct writer w = { .branch = branch_make("main") };
	pthread_t thread;

	memset(text, 'a', sizeof(text) - 1);
	change_blob(w.branch, 2, "x", 1);
	ck_ok(store_flush(store));
	change_blob(w.branch, 3, "copied", 6);
	ck_ok(store_flush(store));
	while (journal_size() < 3 * SEGMENT_BYTES)
		change(w.branch, 4, text);
	ck_assert_int_eq(pthread_create(&thread, NULL, go_on_changing, &w), 0);
	ck_ok(store_sync(store));
	ck_assert_uint_lt(journal_size(), 3 * SEGMENT_BYTES);
	w.ends = true;
	ck_assert_int_eq(pthread_join(thread, NULL), 0);
	branch_close(w.branch);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		where_a_copy_finds_no_room_the_stage_is_synced,
		a_round_lets_go_of_segments_with_copies,
	};

	return scratch_run("commit", tests, ARRAY_SIZE(tests), setup, store_teardown);
}
