/* SPDX-License-Identifier: Apache-2.0 */

/* What a round of the sealer that fails leaves for the next one. */

#include <sys/wait.h>

#include "tests/unit/seal_fixture.h"

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

/* O3: main is at `head`, can undo to `undo`, and cannot be sealed when both are dropped. */
START_TEST(a_round_that_stops_half_way_commits_what_it_can)
{
	struct branch *b = branch_make("main"), *other = branch_make("other");
	struct branch_record before, after;
	uint64_t head, undo, whole, child, late;
	struct snap_record rec;

	change(b, 1, "head");
	head = checkpoint(b, NULL);
	change(b, 1, "undo");
	undo = checkpoint(b, NULL);
	change(b, 1, "child");
	child = checkpoint(b, NULL);
	restore(b, undo);
	restore(b, head);
	ck_ok(store_sync(store));
	before = branch_record_of("main");
	ck_assert_uint_eq(before.head, head);
	ck_assert_uint_eq(before.undo, undo);

	ck_ok(claim_all(store)); /* all in one round */
	change(other, 1, "whole");
	whole = checkpoint(other, NULL);
	change_unreadable(b, 2);
	late = checkpoint(b, NULL);
	ck_ok(snap_drop(store, undo));
	ck_ok(snap_drop(store, head));
	claim_end(store);
	ck_err(store_sync(store), -EIO);
	{
		LOCK_GUARD(&store->table);
		ck_assert(b->entry->dirty); /* its record was written, its state was not */
	}

	ck_ok(snap_record_at(whole, &rec));
	ck_err(snap_record_at(late, &rec), ABSENT);
	ck_err(snap_record_at(head, &rec), ABSENT);
	ck_err(snap_record_at(undo, &rec), ABSENT);
	ck_ok(snap_record_at(child, &rec));
	ck_assert_uint_eq(rec.parent, 0);
	after = branch_record_of("main");
	ck_assert_uint_eq(after.head, 0);
	ck_assert_uint_eq(after.undo, 0);
	ck_assert(name_eq(&after.root, &before.root));
	ck_assert_uint_eq(after.lsn, before.lsn);
	ck_assert_uint_gt(after.changes, before.changes); /* it differs from no snapshot now */

	fault_bad_sector(0, 0, 0);
	atomic_store(&store->retry_ns, 0); /* else a second later */
	ck_ok(snap_wait(store, late)); /* the branch waits as well, without being frozen again */
	ck_ok(snap_record_at(late, &rec));
	ck_assert_uint_eq(branch_record_of("main").head, late);
	expect_sound(NULL);
	branch_close(b);
	branch_close(other);
}
END_TEST

static uint64_t at_snap;

static void restore_and_change(void)
{
	restore(at_branch, at_snap);
	change(at_branch, 3, "after");
	change_unreadable(at_branch, 2);
	(void)checkpoint(at_branch, NULL);
}

/*
 * A restore whose record names a snapshot that has none yet; that is committed, the restore is not,
 * and the snapshot is dropped. Then a kill.
 */
static void drop_and_die(void)
{
	struct snap_record rec;
	struct branch *b;

	store_up();
	at_branch = b = branch_at("main");
	ck_ok(store_sync(store));
	ck_ok(claim_all(store));
	change(b, 1, "to");
	at_snap = checkpoint(b, NULL);
	change(b, 1, "newer");
	(void)checkpoint(b, NULL);
	atomic_store(&at_sync, restore_and_change);
	claim_end(store);
	ck_ok(snap_wait(store, at_snap));
	ck_ok(snap_drop(store, at_snap));
	atomic_store(&store->retry_ns, 0); /* it failed already, maybe */
	ck_err(store_sync(store), -EIO);
	ck_ok(snap_record_at(at_snap, &rec));
	_exit(0);
}

/* L4 */
START_TEST(a_snapshot_that_the_journal_names_stays_until_that_is_covered)
{
	struct branch *b;
	int status;
	pid_t pid;

	branch_close(branch_make("main"));
	ck_ok(store_close(store));
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0)
		drop_and_die();
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
	store_up();
	b = branch_at("main");
	expect_text(b, 1, "to");
	expect_text(b, 3, "after");
	branch_close(b);
	ck_ok(store_sync(store));
	ck_assert_uint_eq(snap_count(store), 2); /* that one is dropped */
	expect_sound(NULL);
}
END_TEST

static void drop(void)
{
	ck_ok(snap_drop(store, at_snap));
}

START_TEST(a_snapshot_that_is_not_sealed_has_no_record)
{
	struct branch *b = branch_make("main");
	struct snap_record rec;
	uint64_t child;

	ck_ok(store_sync(store));
	ck_ok(claim_all(store)); /* both in one round */
	change(b, 1, "parent");
	at_snap = checkpoint(b, NULL);
	change_unreadable(b, 2);
	child = checkpoint(b, NULL);
	atomic_store(&at_sync, drop); /* the child, which is not sealed, gets another parent */
	claim_end(store);
	for (unsigned round = 0; round < 2; round++) {
		ck_err(store_sync(store), -EIO);
		ck_err(snap_record_at(child, &rec), ABSENT);
		atomic_store(&store->retry_ns, 0); /* else a second later */
	}
	fault_bad_sector(0, 0, 0);
	atomic_store(&store->retry_ns, 0); /* it failed again, maybe */
	ck_ok(store_sync(store));
	ck_ok(snap_record_at(child, &rec));
	ck_assert_uint_eq(rec.parent, 0);
	expect_sound(NULL);
	branch_close(b);
}
END_TEST

static atomic_uint seen_heads;

static void see_head(void)
{
	struct snap_record rec;

	ck_ok(snap_record_at(at_snap, &rec));
	ck_assert_uint_eq(branch_record_of("main").head, at_snap);
	atomic_fetch_add(&seen_heads, 1);
}

static void see_head_next(void)
{
	atomic_store(&at_sync, see_head);
}

static void drop_and_see_head(void)
{
	drop();
	atomic_store(&at_sync, see_head_next); /* not before this round is committed */
}

START_TEST(a_head_that_is_dropped_meanwhile_goes_with_the_next_round)
{
	struct branch *b = branch_make("main");
	struct snap_record rec;

	ck_ok(store_sync(store));
	ck_ok(claim_all(store));
	change(b, 1, "head");
	at_snap = checkpoint(b, NULL);
	atomic_store(&at_write, drop_and_see_head);
	claim_end(store);
	ck_ok(store_sync(store));
	ck_ok(store_sync(store));
	ck_assert_uint_eq(atomic_load(&seen_heads), 1);
	ck_err(snap_record_at(at_snap, &rec), ABSENT);
	ck_assert_uint_eq(branch_record_of("main").head, 0);
	expect_sound(NULL);
	branch_close(b);
}
END_TEST

static void drop_and_fail(void)
{
	drop();
	fault_arm(0, 1, ENOMEM); /* the commit */
}

START_TEST(what_is_dropped_while_its_record_could_not_be_rewritten_is_not_written)
{
	struct branch *b = branch_make("main");
	struct snap_record rec;
	uint64_t parent;

	change(b, 1, "parent");
	parent = checkpoint(b, NULL);
	change(b, 1, "child");
	at_snap = checkpoint(b, NULL);
	ck_ok(store_sync(store));
	ck_ok(claim_all(store));
	ck_ok(snap_drop(store, parent)); /* the child is to be written without it */
	change(b, 1, "later");
	(void)checkpoint(b, NULL);
	atomic_store(&at_sync, drop_and_fail);
	claim_end(store);
	ck_err(store_sync(store), -ENOMEM);
	fault_disarm();
	atomic_store(&store->retry_ns, 0); /* else a second later */
	ck_ok(store_sync(store));
	ck_err(snap_record_at(at_snap, &rec), ABSENT);
	ck_err(snap_record_at(parent, &rec), ABSENT);
	expect_sound(NULL);
	branch_close(b);
}
END_TEST

static void change_and_checkpoint(void)
{
	change(at_branch, 1, "later");
	at_snap = checkpoint(at_branch, NULL);
}

START_TEST(what_a_branch_became_while_its_round_was_under_way_is_still_to_be_saved)
{
	struct branch *b = at_branch = branch_make("main");

	ck_ok(store_sync(store));
	ck_ok(claim_all(store));
	change(b, 1, "taken");
	at_snap = checkpoint(b, NULL);
	atomic_store(&at_sync, change_and_checkpoint);
	claim_end(store);
	ck_ok(snap_wait(store, at_snap));
	ck_assert(!atomic_load(&at_sync));
	ck_ok(snap_wait(store, at_snap)); /* which is another one now */
	ck_assert_uint_eq(branch_record_of("main").head, at_snap);
	expect_saved(b);
	branch_close(b);
}
END_TEST

/* LMDB's: of a meta page (less than a page) the next is made and fails, one more is not made. */
static atomic_int metas_to_fail;
ssize_t own_pwrite(int fd, const void *bytes, size_t len, off_t off) __asm__("pwrite")
	__attribute__((visibility("default")));

ssize_t own_pwrite(int fd, const void *bytes, size_t len, off_t off)
{
	int left = len < 200 ? atomic_load(&metas_to_fail) : 0;

	if (left != 1)
		len = (size_t)syscall(SYS_pwrite64, fd, bytes, len, off);
	if (left == 0)
		return (ssize_t)len;
	atomic_store(&metas_to_fail, left - 1);
	errno = EIO;
	return -1;
}

static bool all_is_freed(void)
{
	LOCK_GUARD(&store->table);

	return link_alone(&store->dead);
}

/* The sealer, which saves nothing now, comes by each five seconds. */
static void let_come_by(void)
{
	LOCK_GUARD(&store->table);

	store->live_ns = 0;
	pthread_cond_signal(&store->wake);
}

START_TEST(a_store_that_cannot_put_a_commit_back_writes_nothing_more)
{
	struct branch *b = branch_make("main");
	struct store_stats stats;
	unsigned rounds = 0;
	uint64_t id, after;

	ck_ok(store_sync(store));
	ck_ok(claim_all(store));
	change(b, 1, "before");
	id = checkpoint(b, NULL);
	atomic_store(&metas_to_fail, 2);
	claim_end(store);
	do {
		ck_assert_int_lt(store_sync(store), 0);
		atomic_store(&store->retry_ns, 0); /* else a second later */
		ck_ok(store_stats(store, &stats));
		ck_assert_uint_lt(++rounds, 20);
	} while (!stats.failed);
	ck_err(store_sync(store), -ERR_STORE_FAILED);
	after = checkpoint(b, "after");
	ck_err(snap_wait(store, after), -ERR_STORE_FAILED);
	change(b, 2, "after");
	ck_ok(snap_drop(store, after));
	let_come_by();
	while (!all_is_freed())
		(void)sched_yield();
	expect_text(b, 1, "before"); /* it goes on in memory, and in the journal */
	branch_close(b);
	ck_err(store_close(store), -ERR_STORE_FAILED);
	store_up();
	b = branch_at("main");
	expect_text(b, 2, "after");
	expect_in_snap(id, 1, "before");
	ck_assert_uint_eq(snap_count(store), 1);
	ck_ok(store_sync(store));
	expect_saved(b);
	branch_close(b);
	expect_sound(NULL);
}
END_TEST

START_TEST(a_commit_that_finds_the_index_full_makes_it_larger)
{
	struct branch *b;

	ck_ok(store_close(store));
	ck_assert_int_eq(setenv("PLYFS_TEST_MAP_BYTES", "131072", 1), 0); /* 32 pages */
	store_up();
	b = branch_make("main");
	for (unsigned round = 0; round < 4; round++) {
		for (unsigned n = 0; n < 500; n++) { /* records of 100 bytes at least */
			change(b, 1, n % 2 ? "odd" : "even");
			(void)checkpoint(b, "a label");
		}
		ck_ok(store_sync(store));
		expect_saved(b);
	}
	branch_close(b);
	store_reopen();
	ck_assert_uint_eq(snap_count(store), 2000);
	expect_sound(NULL);
}
END_TEST

static uint64_t covered_on_disk(void)
{
	_cleanup_free_ void *value = NULL;
	size_t len;

	ck_ok(index_get(store->index, INDEX_META, "lsn", 3, &value, &len));
	ck_assert_uint_eq(len, META_BYTES);
	return get_le64(value);
}

/* As an import that fails: of no branch. */
static uint64_t snap_unreadable(void)
{
	_cleanup_(root_unrefp) struct root *empty = NULL, *root = NULL;
	_cleanup_(tree_freep) struct tree *t = NULL;
	uint64_t id;

	ck_ok(root_empty(store_nodes(store), &empty));
	ck_ok(tree_new(store_nodes(store), empty, &t));
	put_unreadable(t, 2);
	ck_ok(tree_freeze(t, &root));
	ck_ok(snap_create(store, root, 0, store_take_lineage(store), "", "", SNAP_IMPORT, &id));
	return id;
}

/* L1: when what held it up is dropped, nothing is left to be saved but that. */
START_TEST(what_a_round_did_that_stopped_half_way_is_covered_in_the_end)
{
	struct branch *b = branch_make("main");
	uint64_t parent, import, dropped;

	change(b, 1, "parent");
	parent = checkpoint(b, NULL);
	change(b, 1, "child");
	(void)checkpoint(b, NULL);
	branch_close(b);
	ck_ok(store_sync(store));
	ck_ok(claim_all(store)); /* both in one round */
	import = snap_unreadable();
	ck_ok(snap_drop(store, parent));
	claim_end(store);
	ck_err(store_sync(store), -EIO);
	ck_ok(snap_drop(store, import));
	dropped = log_lsn(store);
	fault_bad_sector(0, 0, 0);
	atomic_store(&store->retry_ns, 0); /* else a second later */
	ck_ok(store_sync(store));
	expect_nothing_to_do();
	ck_assert_uint_ge(covered_on_disk(), dropped);
}
END_TEST

static uint64_t covered(void)
{
	LOCK_GUARD(&store->table);
	return log_covered(store);
}

/* L4: a fork of it, which a replay makes anew, has them too. */
START_TEST(changes_of_a_dropped_branch_stay_until_the_drop_is_committed)
{
	struct branch *b = branch_make("main"), *other = branch_make("other");
	uint64_t lsn;

	ck_ok(store_sync(store));
	lsn = branch_record_of("other").lsn;
	ck_ok(claim_all(store)); /* no rounds but these */
	change(other, 1, "in no round");
	change(b, 1, "one");
	(void)checkpoint(b, NULL);
	ck_ok(seal_round(store, SEAL_FROZEN));
	ck_assert_uint_gt(covered_on_disk(), lsn);
	ck_ok(branch_fork(other, "fork"));
	branch_close(other);
	ck_ok(branch_drop(store, "other"));
	change_unreadable(b, 2);
	(void)checkpoint(b, NULL);
	ck_err(seal_round(store, SEAL_FROZEN), -EIO);
	ck_assert_uint_eq(branch_record_of("other").lsn, lsn);
	ck_assert_uint_eq(covered(), lsn);

	fault_bad_sector(0, 0, 0);
	ck_ok(seal_round(store, SEAL_FROZEN));
	ck_assert_uint_gt(covered(), lsn);
	claim_end(store);
	expect_sound(NULL);
	branch_close(b);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		a_child_names_no_parent_whose_drop_failed_first,
		a_round_leaves_nothing_to_do,
		a_sync_that_could_not_save_everything_says_so,
		a_round_that_stops_half_way_commits_what_it_can,
		a_snapshot_that_the_journal_names_stays_until_that_is_covered,
		a_snapshot_that_is_not_sealed_has_no_record,
		a_head_that_is_dropped_meanwhile_goes_with_the_next_round,
		what_is_dropped_while_its_record_could_not_be_rewritten_is_not_written,
		what_a_branch_became_while_its_round_was_under_way_is_still_to_be_saved,
		a_store_that_cannot_put_a_commit_back_writes_nothing_more,
		a_commit_that_finds_the_index_full_makes_it_larger,
		what_a_round_did_that_stopped_half_way_is_covered_in_the_end,
		changes_of_a_dropped_branch_stay_until_the_drop_is_committed,
	};

	return scratch_run("seal", tests, ARRAY_SIZE(tests), store_setup, store_teardown);
}
