/* SPDX-License-Identifier: Apache-2.0 */

/* What gc leaves as a replay of the journal wants it, and takes when none does any more. */

#include "tests/unit/store_fixture.h"

#include <sys/wait.h>

#include "store/base/fault.h"
#include "store/chunk_internal.h"
#include "store/store_internal.h"

/* The branch goes through a snapshot's state, and on. */
static void go_through(struct branch *b, uint64_t one, uint64_t two)
{
	restore(b, two);
	change(b, 7, "in what goes");
	restore(b, one);
	change(b, 8, "so that the undo is another");
	restore(b, one);
}

/* The file that the snapshot has, as long as the tree that is given. */
static struct val file_of(uint64_t snap, struct tree **ret)
{
	_cleanup_(root_unrefp) struct root *root = NULL;
	const struct key from = key_at(5000);
	struct val val;

	ck_ok(snap_root(store, snap, &root));
	ck_ok(tree_new(store_nodes(store), root, ret));
	ck_ok(tree_get(*ret, &from, &val));
	return val;
}

/* A file of the snapshot is copied, the power may come back to here, and it is deleted. */
static void copy_from(struct branch *b, uint64_t two)
{
	_cleanup_(tree_freep) struct tree *t = NULL;
	const struct key to = key_at(5001);
	const struct val val = file_of(two, &t);

	{
		BRANCH_CHANGE_GUARD(b);
		ck_ok(tree_put(b->tree, &to, &val));
		b->changes++;
	}
	ck_ok(store_flush(store));
	forget(b, 5001);
}

/* A branch is made of a state that no snapshot has (its record lists all of it), and goes on. */
static void make_of(uint64_t two, int n)
{
	_cleanup_(tree_freep) struct tree *t = NULL, *made = NULL;
	_cleanup_(root_unrefp) struct root *none = NULL, *root = NULL;
	const struct val val = file_of(two, &t);
	const struct key to = key_at(5001);
	struct branch *b;
	char name[16];

	(void)snprintf(name, sizeof(name), "made%d", n);
	ck_ok(root_empty(store_nodes(store), &none));
	ck_ok(tree_new(store_nodes(store), none, &made));
	ck_ok(tree_put(made, &to, &val));
	ck_ok(tree_freeze(made, &root));
	ck_ok(branch_create(store, name, root, 0, store_take_lineage(store), &b));
	ck_ok(store_flush(store)); /* the power may come back to here */
	forget(b, 5001);
	branch_close(b);
}

/* A branch is forked, nothing of it is in the fork any more, and it is dropped. */
static void fork_and_drop(int n)
{
	struct branch *b = branch_at("source");
	char name[16];

	(void)snprintf(name, sizeof(name), "made%d", n);
	ck_ok(branch_fork(b, name));
	branch_close(b);
	b = branch_at(name);
	for (uint64_t a = 100; a < 130; a++)
		forget(b, a);
	branch_close(b);
	ck_ok(branch_drop(store, "source"));
}

/*
 * A record names a snapshot by its id, as it is not durable yet. A commit of which the n-th call
 * fails may make it that and not cover the record; then it is dropped.
 */
static void go_through_new(struct branch *b, uint64_t one, int n)
{
	uint64_t id;

	ck_ok(claim_all(store)); /* no round meanwhile */
	fill(b, 700, 720, (unsigned)n);
	id = checkpoint(b, NULL);
	restore(b, one);
	restore(b, id);
	change(b, 7, "other than that");
	restore(b, one);
	fill(b, 6000, 6100, (unsigned)n);
	restore(b, one);
	fill(b, 6000, 6100, (unsigned)n + 1);
	fault_arm(n, 1, ENOSPC);
	claim_end(store);
	(void)store_sync(store);
	fault_disarm();
	ck_ok(snap_drop(store, id));
}

enum use { GO_THROUGH, GO_THROUGH_NEW, COPY, MAKE, FORK };

static bool last_n; /* its gc made no more calls than that */

/*
 * From the last commit to a kill; the snapshot goes. The n-th call of a gc meets a full disk, which
 * may stop the sealing half-way.
 */
static void use_and_die(uint64_t one, uint64_t two, int n, enum use use)
{
	pid_t child = fork();
	int status;

	ck_assert_int_ge(child, 0);
	if (child == 0) {
		struct gc_stats stats;
		struct branch *b;

		store_up();
		b = branch_at("main");
		if (use == COPY)
			copy_from(b, two);
		else if (use == MAKE)
			make_of(two, n);
		else if (use == FORK)
			fork_and_drop(n);
		else if (use == GO_THROUGH_NEW)
			go_through_new(b, one, n);
		else
			go_through(b, one, two);
		fill(b, 6000, 6100, (unsigned)n);
		ck_ok(snap_drop(store, two));
		fault_arm(n, 1, ENOSPC);
		(void)store_gc(store, NULL, &stats); /* it may fail */
		_exit(fault_ticks() <= n ? 1 : 0);
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert(WIFEXITED(status));
	last_n = WEXITSTATUS(status) == 1;
}

static bool is_whole(const char *text, int n)
{
	struct branch *b;
	char name[16];
	bool lost;

	(void)snprintf(name, sizeof(name), "%s%d", text, n);
	b = branch_at(name);
	lost = branch_lost_something(b);
	branch_close(b);
	return !lost;
}

static void what_the_journal_says_is_there(enum use use)
{
	uint8_t data[5000];
	struct branch *b;
	uint64_t one, two;
	char boot[16];

	b = branch_make("main");
	change(b, 1, "one");
	one = checkpoint(b, NULL);
	branch_close(b);
	for (int n = 0; !last_n; n += 1 + n / 16) {
		b = branch_at("main");
		restore(b, one);
		fill(b, 1, 500, (unsigned)n);
		scratch_fill(data, sizeof(data), (unsigned)n);
		change_blob(b, 5000, data, sizeof(data));
		two = checkpoint(b, NULL);
		restore(b, one);
		branch_close(b);
		if (use == FORK) {
			b = branch_make("source");
			fill(b, 100, 130, (unsigned)n);
			branch_close(b);
		}
		ck_ok(store_close(store));
		store = NULL;

		use_and_die(one, two, n, use);
		(void)snprintf(boot, sizeof(boot), "%d", n);
		if (use == COPY || use == MAKE)
			ck_assert_int_eq(setenv("PLYFS_TEST_BOOT_ID", boot, 1), 0);
		store_up();
		b = branch_at("main");
		ck_assert_msg(!branch_lost_something(b), "call %d", n);
		ck_assert_msg((use != MAKE && use != FORK) || is_whole("made", n), "call %d", n);
		expect_text(b, 1, "one");
		ck_ok(store_sync(store));
		expect_sound(NULL);
		branch_close(b);
		(void)collect();
	}
}

START_TEST(what_a_replay_goes_through_stays)
{
	what_the_journal_says_is_there(GO_THROUGH);
}
END_TEST

START_TEST(a_new_snapshot_that_a_replay_goes_through_stays)
{
	what_the_journal_says_is_there(GO_THROUGH_NEW);
}
END_TEST

START_TEST(a_branch_that_was_forked_and_dropped_stays)
{
	what_the_journal_says_is_there(FORK);
}
END_TEST

START_TEST(what_a_new_branch_is_made_of_stays)
{
	what_the_journal_says_is_there(MAKE);
}
END_TEST

START_TEST(what_a_power_cut_goes_back_to_stays)
{
	what_the_journal_says_is_there(COPY);
}
END_TEST

START_TEST(what_no_replay_wants_any_more_goes)
{
	struct branch *b = branch_make("main");
	struct check_stats check;
	uint8_t data[5000];
	uint64_t id;

	scratch_fill(data, sizeof(data), 1);
	change_blob(b, 5000, data, sizeof(data));
	id = checkpoint(b, NULL);
	ck_ok(store_sync(store));
	forget(b, 5000);
	copy_from(b, id); /* a record names the chunk, and is covered soon */
	ck_ok(snap_drop(store, id));
	ck_ok(store_sync(store));
	ck_assert_uint_gt(collect().chunks_dropped, 0);
	expect_sound(&check);
	ck_assert_uint_eq(check.unreferenced, 0);
	branch_close(b);
}
END_TEST

/*
 * On a full disk it may stay uncommitted. Then gc meets records of another branch again, which were
 * covered, and name a state that an earlier one removed.
 */
START_TEST(a_branch_that_is_behind_needs_nothing_of_another)
{
	struct branch *b = branch_make("main"), *other = branch_make("other");
	struct gc_stats stats;
	uint64_t one, two;
	int r = -ENOSPC;

	change(b, 1, "one");
	one = checkpoint(b, NULL);
	for (int n = 0; r != 0 || fault_ticks() > n; n += 1 + n / 16) {
		change(other, 1, n % 2 ? "odd" : "even");
		fill(b, 1, 50, (unsigned)n);
		two = checkpoint(b, NULL);
		ck_ok(store_sync(store));
		restore(b, one);
		restore(b, two); /* a record names its root */
		restore(b, one);
		restore(b, one); /* no undo to it any more */
		ck_ok(snap_drop(store, two));
		ck_ok(store_sync(store));
		ck_assert_uint_gt(collect().chunks_dropped, 0);

		change(other, 1, "behind"); /* since before all that */
		fault_arm(n, 1, ENOSPC);
		r = store_gc(store, NULL, &stats);
		fault_disarm();
		ck_assert_msg(r == 0 || r == -ENOSPC || r == -ENOMEM, "call %d: %s", n,
			      err_name(r));
	}
	branch_close(b);
	branch_close(other);
	expect_sound(NULL);
}
END_TEST

int main(void)
{
	static const TTest *tests[7];
	size_t n = 0;

	tests[n++] = what_a_replay_goes_through_stays;
	tests[n++] = a_new_snapshot_that_a_replay_goes_through_stays;
	tests[n++] = a_branch_that_was_forked_and_dropped_stays;
	tests[n++] = what_a_new_branch_is_made_of_stays;
	tests[n++] = what_a_power_cut_goes_back_to_stays;
	tests[n++] = what_no_replay_wants_any_more_goes;
	tests[n++] = a_branch_that_is_behind_needs_nothing_of_another;
	return scratch_run("gc_replay", tests, n, store_setup, store_teardown);
}
