/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Which states a view keeps from gc: those that somebody has something of, as long as he does, and
 * no others, however a restore ended.
 */

#include <limits.h>

#include "store/base/fault.h"
#include "tests/unit/view_recorder.h"

static uint64_t collected(void)
{
	struct gc_stats stats;

	ck_assert_int_eq(store_sync(store), 0);
	ck_assert_int_eq(store_sync(store), 0);
	ck_ok(store_gc(store, NULL, &stats));
	return stats.chunks_dropped;
}

START_TEST(what_was_equal_is_known_when_the_state_that_was_restored_is_gone)
{
	static const char *const first[] = { "f1", "f2", "f3" };
	struct view_kernel few = recorder;
	uint64_t d = make_dir(ROOT_NODE, "d"), a, id, known[ARRAY_SIZE(first)];
	struct inode i;

	many_files(d, 3000);
	id = checkpoint();
	ck_assert_int_eq(store_sync(store), 0);
	view_close(view);
	ck_assert_int_eq(store_close(store), 0);
	ck_ok(store_open(scratch.dir_fd, NULL, &store));
	ck_ok(view_open(store, "main", NULL, &view));
	few.names_max = 1;
	view_set_kernel(view, &few);

	/* Of what is to be restored nothing is in memory but what lies around the first files. */
	d = node_of(ROOT_NODE, "d");
	for (size_t n = 0; n < ARRAY_SIZE(first); n++)
		rewrite(known[n] = node_of(d, first[n]), "left");
	rewrite(node_of(d, "f1499"), "left");
	view_forget(view, node_of(d, "f1499"), 2);
	a = node_of(d, "f1500");
	ck_assert_int_eq(restore(id).mode, RESTORE_EPOCH);
	rewrite(node_of(d, "f2900"), "now");
	rewrite(node_of(d, "f1499"), "now");
	ck_ok(snap_drop(store, id));
	(void)collected();
	ck_assert_uint_eq(collected(), 0);
	ck_assert_str_eq(text_of(a), "f1500");
	ck_assert_uint_eq(node_of(d, "f1500"), a);

	/* Its room comes back when nobody can ask for it any more. */
	ck_ok(view_getattr(view, ROOT_NODE, &i));
	for (size_t n = 0; n < ARRAY_SIZE(first); n++)
		view_forget(view, known[n], 1);
	ck_assert_uint_gt(collected(), 0);
}
END_TEST

START_TEST(what_is_open_is_kept_from_gc_as_long_as_it_is)
{
	uint64_t a = make_file(ROOT_NODE, "a", "old"), id = checkpoint();
	char text[4000] = "";

	memset(text, 'x', sizeof(text) - 1); /* a chunk of its own */
	rewrite(a, text);
	for (int i = 0; i < 3; i++) { /* the state it is from is nobody's from the second on */
		restore(id);
		ck_assert_int_eq(store_sync(store), 0);
		make_file(ROOT_NODE, "later", "");
	}
	(void)collected();
	ck_assert_uint_eq(collected(), 0);
	ck_assert_str_eq(text_of(a), text);
	view_forget(view, a, 1);
	ck_assert_uint_gt(collected(), 0);
}
END_TEST

/* Calls of the sealer failed as well: its round may end only now, and a sync would tell of it. */
static void let_failures_pass(void)
{
	(void)store_sync(store);
}

/* Of a chunk of its own. */
static uint64_t make_large(const char *name, char fill)
{
	char text[4000] = "";

	memset(text, fill, sizeof(text) - 1);
	return make_file(ROOT_NODE, name, text);
}

START_TEST(a_state_that_a_restore_left_to_nobody_is_collected)
{
	uint64_t a = make_large("a", 'x'), id = checkpoint();

	(void)collected();
	rewrite(a, "left");
	view_forget(view, a, 1); /* nobody has it from before */
	restore(id);
	rewrite(node_of(ROOT_NODE, "a"), "now");
	(void)checkpoint();
	ck_ok(snap_drop(store, id));
	ck_assert_uint_gt(collected(), 0);
}
END_TEST

/* How much is kept of a branch that is back where it began. */
static uint64_t kept_when_back(uint64_t begin)
{
	struct gc_stats stats;

	for (int i = 0; i < 2; i++) { /* what the first one leaves goes with the second */
		restore(begin);
		view_forget(view, make_file(ROOT_NODE, "other", ""), 1);
	}
	restore(begin);
	(void)collected();
	ck_ok(store_gc(store, NULL, &stats));
	return stats.chunks_kept;
}

/* As many as the store has room for: one more wants memory, late in a restore. */
#define SNAPSHOTS 256

START_TEST(a_restore_that_fails_keeps_nothing_from_gc)
{
	uint64_t begin = checkpoint(), kept = kept_when_back(begin), a, ids[SNAPSHOTS];
	size_t n_ids = 0;
	int failed = 0;

	a = make_large("a", 'x');
	ids[n_ids++] = checkpoint();
	(void)collected();
	while (snap_count(store) < SNAPSHOTS) {
		rewrite(a, n_ids % 2 ? "left" : "left too");
		ids[n_ids++] = checkpoint();
	}
	view_forget(view, make_file(ROOT_NODE, "left", ""), 1);
	for (int r = -ENOMEM; r < 0; failed++) {
		struct restore_info info;

		fault_arm(failed, INT_MAX, ENOMEM);
		r = view_restore(view, ids[0], &info);
		fault_disarm();
	}
	let_failures_pass();
	ck_assert_int_gt(failed, 3);
	view_forget(view, a, 1);
	restore(begin);
	while (n_ids > 0)
		ck_ok(snap_drop(store, ids[--n_ids]));
	ck_assert_uint_eq(kept_when_back(begin), kept);
}
END_TEST

/* What the second restore leaves is what the first one came to: one root, for two reasons. */
START_TEST(what_is_open_of_a_state_that_nobody_changed_is_kept)
{
	uint64_t a = make_large("a", 'x'), with = checkpoint(), without;
	_cleanup_free_ char *text = strdup(text_of(a));
	struct restore_info info;

	rewrite(a, "short");
	without = checkpoint();
	view_forget(view, a, 1);
	restore(with);
	a = node_of(ROOT_NODE, "a");
	restore(without);
	for (int n = 0; n < 2; n++) {
		fault_arm(n, INT_MAX, ENOMEM);
		ck_assert_int_eq(view_restore(view, with, &info), -ENOMEM);
		fault_disarm();
	}
	let_failures_pass();
	for (int i = 0; i < 2; i++) {
		make_file(ROOT_NODE, "later", "");
		restore(without);
	}
	(void)collected();
	ck_ok(snap_drop(store, with));
	(void)collected();
	ck_assert_str_eq(text_of(a), text);
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("kept"), *tight = tcase_create("little memory");

	tcase_add_checked_fixture(t, setup, view_teardown);
	tcase_add_checked_fixture(tight, setup_tight, view_teardown);
	tcase_add_test(t, what_was_equal_is_known_when_the_state_that_was_restored_is_gone);
	tcase_add_test(t, what_is_open_is_kept_from_gc_as_long_as_it_is);
	tcase_add_test(t, a_state_that_a_restore_left_to_nobody_is_collected);
	tcase_add_test(t, a_restore_that_fails_keeps_nothing_from_gc);
	tcase_add_test(t, what_is_open_of_a_state_that_nobody_changed_is_kept);
	tcase_add_test(tight, what_is_open_is_kept_from_gc_as_long_as_it_is);
	return run_case("view_kept", t) | run_case("view_kept", tight);
}
