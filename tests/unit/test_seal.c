/* SPDX-License-Identifier: Apache-2.0 */

/* What a round of the sealer that fails leaves for the next one. */

#include "tests/unit/store_fixture.h"

#include <limits.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/wait.h>

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

/* A blob whose bytes the disk cannot read. */
static void put_unreadable(struct tree *t, uint64_t a)
{
	_cleanup_(blob_unrefp) struct blob *blob = NULL;
	const struct key key = key_at(a);
	uint8_t bytes[8000]; /* some sectors */
	uint32_t number, off;
	char path[40];
	struct stat st;

	scratch_fill(bytes, sizeof(bytes), a);
	ck_ok(blob_new(store_stage(store), bytes, sizeof(bytes), &blob));
	const struct val v = { .data = "b", .len = 1, .ref = { .kind = REF_BLOB, .blob = blob } };
	ck_ok(tree_put(t, &key, &v));
	blob_place(blob, &number, &off);
	(void)snprintf(path, sizeof(path), "stage/%08x", number);
	ck_ok(os_statat(scratch.dir_fd, path, &st));
	fault_bad_sector(st.st_ino, off + 100, 512);
}

static void change_unreadable(struct branch *b, uint64_t a)
{
	BRANCH_CHANGE_GUARD(b);
	put_unreadable(b->tree, a);
	b->changes++;
}

static int snap_record_at(uint64_t id, struct snap_record *ret)
{
	_cleanup_free_ void *value = NULL;
	uint8_t key[SNAP_KEY_BYTES];
	size_t len;
	int r;

	snap_key_encode(id, key);
	r = index_get(store->index, INDEX_SNAPS, key, sizeof(key), &value, &len);
	return r == 0 ? snap_record_decode(value, len, ret) : r;
}

static struct branch_record branch_record_of(const char *name)
{
	_cleanup_free_ void *value = NULL;
	struct branch_record rec;
	size_t len;

	ck_ok(index_get(store->index, INDEX_BRANCHES, name, strlen(name), &value, &len));
	ck_ok(branch_record_decode(value, len, &rec));
	return rec;
}

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

/*
 * Called once, by a round that has taken what it seals: when it writes to a pack (it seals) and
 * when it syncs one (it is about to commit).
 */
static void (*_Atomic at_write)(void);
static void (*_Atomic at_sync)(void);
static struct branch *at_branch;
static uint64_t at_snap;

static void call_once(int fd, void (*_Atomic *at)(void))
{
	char link[40], target[4096] = "";
	void (*fn)(void);

	(void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	if (!atomic_load(at) || readlink(link, target, sizeof(target) - 1) < 0 ||
	    !strstr(target, ".pack"))
		return;
	fn = atomic_exchange(at, NULL);
	if (fn)
		fn();
}

int fdatasync(int fd) /* stands for libc's */
{
	call_once(fd, &at_sync);
	return (int)syscall(SYS_fdatasync, fd);
}

ssize_t pwrite(int fd, const void *bytes, size_t len, off_t off) /* likewise */
{
	call_once(fd, &at_write);
	return syscall(SYS_pwrite64, fd, bytes, len, off);
}

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

START_TEST(a_store_that_cannot_put_a_commit_back_writes_nothing_more)
{
	struct branch *b = branch_make("main");
	struct store_stats stats;
	unsigned rounds = 0;
	uint64_t id;

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
	ck_err(snap_wait(store, checkpoint(b, "after")), -ERR_STORE_FAILED);
	change(b, 2, "after");
	expect_text(b, 1, "before"); /* it goes on in memory, and in the journal */
	branch_close(b);
	ck_err(store_close(store), -ERR_STORE_FAILED);
	store_up();
	b = branch_at("main");
	expect_text(b, 2, "after");
	expect_in_snap(id, 1, "before");
	ck_assert_uint_eq(snap_count(store), 2);
	ck_ok(store_sync(store));
	expect_saved(b);
	branch_close(b);
	expect_sound(NULL);
}
END_TEST

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
	branch_close(b);
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
	uint64_t parent, import;

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
	fault_bad_sector(0, 0, 0);
	atomic_store(&store->retry_ns, 0); /* else a second later */
	ck_ok(store_sync(store));
	expect_nothing_to_do();
	ck_assert_uint_ge(covered_on_disk(), store->last_table);
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
		a_child_names_no_parent_whose_drop_failed_first,
		a_round_leaves_nothing_to_do,
		a_sync_that_could_not_save_everything_says_so,
		a_round_that_stops_half_way_commits_what_it_can,
		a_snapshot_that_the_journal_names_stays_until_that_is_covered,
		a_snapshot_that_is_not_sealed_has_no_record,
		a_head_that_is_dropped_meanwhile_goes_with_the_next_round,
		what_a_branch_became_while_its_round_was_under_way_is_still_to_be_saved,
		a_sync_is_not_answered_by_a_round_of_what_was_frozen,
		a_store_that_cannot_put_a_commit_back_writes_nothing_more,
		the_id_of_what_was_dropped_is_not_given_again,
		a_commit_that_finds_the_index_full_makes_it_larger,
		a_row_of_failures_is_told_once_and_the_next_row_again,
		who_waits_for_a_snapshot_hears_of_the_failure,
		a_round_that_failed_comes_again_each_second_and_not_more_often,
		what_a_round_did_that_stopped_half_way_is_covered_in_the_end,
		what_was_given_out_before_a_power_cut_is_not_given_out_again,
	};

	return scratch_run("seal", tests, ARRAY_SIZE(tests), store_setup, store_teardown);
}
