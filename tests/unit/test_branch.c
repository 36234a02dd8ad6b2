/* SPDX-License-Identifier: Apache-2.0 */

/* Branches: their life, checkpoint, restore, undo, forks. */

#include "tests/unit/store_fixture.h"

#include <inttypes.h>
#include <sys/wait.h>

#include "store/base/fault.h"
#include "store/store_internal.h"

/* ---- names and life ---- */

START_TEST(names_are_checked)
{
	static const char *const good[] = { "a", "main", "A.b_c-9", "x.", "x-" };
	static const char *const bad[] = { "", ".a", "-a", "a/b", "a b", "a~1", "@a", "\xc3\xa4" };
	char longest[BRANCH_NAME_MAX + 2];

	for (size_t i = 0; i < ARRAY_SIZE(good); i++)
		ck_assert(branch_name_ok(good[i]));
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		ck_assert(!branch_name_ok(bad[i]));
	memset(longest, 'x', sizeof(longest));
	longest[BRANCH_NAME_MAX + 1] = '\0';
	ck_assert(!branch_name_ok(longest));
	longest[BRANCH_NAME_MAX] = '\0';
	ck_assert(branch_name_ok(longest));
	branch_close(branch_make(longest));
	store_reopen();
	branch_close(branch_at(longest));
}
END_TEST

START_TEST(a_branch_has_one_object)
{
	struct branch *a = branch_make("main"), *b = branch_at("main"), *c;
	_cleanup_(root_unrefp) struct root *root = NULL;

	ck_assert_ptr_eq(a, b);
	ck_err(branch_open(store, "other", &c), -ERR_BRANCH_UNKNOWN);
	ck_err(branch_open(store, "no/name", &c), -ERR_BRANCH_UNKNOWN);
	ck_ok(root_empty(store_nodes(store), &root));
	ck_err(branch_create(store, "main", root, 0, 1, &c), -ERR_BRANCH_EXISTS);
	ck_err(branch_create(store, ".x", root, 0, 1, &c), -ERR_BRANCH_NAME);
	ck_err(branch_create(store, "x", root, 77, 1, &c), -ERR_SNAP_UNKNOWN);
	branch_close(a);
	branch_close(b);
}
END_TEST

START_TEST(what_was_not_checkpointed_survives_a_close)
{
	struct branch *b = branch_make("main");
	uint64_t head;

	change(b, 1, "one");
	head = checkpoint(b, NULL);
	change(b, 2, "two");
	branch_close(b);
	b = branch_at("main"); /* the handle left memory, the frozen state did not */
	expect_text(b, 2, "two");
	ck_assert_uint_eq(b->changes, 1);
	change(b, 3, "three");
	branch_close(b);

	store_reopen();
	b = branch_at("main");
	expect_text(b, 1, "one");
	expect_text(b, 2, "two");
	expect_text(b, 3, "three");
	ck_assert_uint_eq(b->head, head);
	ck_assert_uint_eq(b->changes, 2);
	ck_assert_uint_gt(checkpoint(b, NULL), 0);
	branch_close(b);
	expect_sound(NULL);
}
END_TEST

START_TEST(a_changed_branch_is_there_after_its_process)
{
	int status;
	pid_t child;

	ck_ok(store_close(store));
	store = NULL;
	child = fork();
	if (child == 0) {
		struct branch *b;

		store_up();
		b = branch_make("main");
		change(b, 1, "synced");
		if (store_sync(store) < 0)
			_exit(1);
		change(b, 1, "journalled");
		_exit(0);
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert_int_eq(status, 0);
	store_up();
	struct branch *b = branch_at("main");
	expect_text(b, 1, "journalled");
	ck_assert_uint_eq(b->changes, 2);
	branch_close(b);
}
END_TEST

/* As a fork or a diff does it: the tree is not dirty afterwards, and still not saved. */
static void freeze_elsewhere(struct branch *b)
{
	struct root *root;

	WRITE_GUARD(&b->lock);
	ck_ok(tree_freeze(b->tree, &root));
	root_unref(root);
}

START_TEST(what_others_froze_is_saved_all_the_same)
{
	struct branch *b = branch_make("main");
	struct check_stats stats;
	struct gc_stats gc;
	uint8_t data[5000];

	scratch_fill(data, sizeof(data), 1);
	change_blob(b, 1, data, sizeof(data));
	freeze_elsewhere(b);
	ck_ok(store_gc(store, NULL, &gc));
	expect_sound(&stats);
	ck_assert_uint_eq(stats.chunks, 2); /* the leaf and its data */
	change(b, 2, "two");
	freeze_elsewhere(b);
	branch_close(b);
	store_reopen();
	b = branch_at("main");
	expect_text(b, 1, "b");
	expect_text(b, 2, "two");
	branch_close(b);
}
END_TEST

START_TEST(a_mounted_branch_is_not_dropped_or_mounted_again)
{
	struct branch *b = branch_make("main");

	ck_ok(branch_mount(b));
	ck_err(branch_mount(b), -ERR_BRANCH_IN_USE);
	ck_err(branch_drop(store, "main"), -ERR_BRANCH_IN_USE);
	branch_unmount(b);
	ck_ok(branch_mount(b));
	branch_unmount(b);
	branch_close(b);
	ck_ok(branch_drop(store, "main"));
	ck_err(branch_drop(store, "main"), -ERR_BRANCH_UNKNOWN);
	store_reopen();
	ck_err(branch_open(store, "main", &b), -ERR_BRANCH_UNKNOWN);
}
END_TEST

START_TEST(a_dropped_branch_works_until_its_handle_is_closed)
{
	struct branch *b = branch_make("main"), *again;
	struct gc_stats gc;
	uint64_t id, first;

	fill(b, 1, 500, 1);
	first = checkpoint(b, NULL);
	ck_ok(store_sync(store));
	ck_ok(branch_drop(store, "main"));
	ck_ok(snap_drop(store, first));
	again = branch_make("main");
	ck_assert_ptr_ne(b, again);
	ck_ok(store_gc(store, NULL, &gc));
	change(b, 1, "orphan");
	id = checkpoint(b, NULL);
	ck_ok(snap_wait(store, id));
	branch_close(b);
	change(again, 1, "new");
	branch_close(again);
	store_reopen();
	expect_sound(NULL);
	again = branch_at("main");
	expect_text(again, 1, "new");
	branch_close(again);
	expect_in_snap(id, 1, "orphan");
}
END_TEST

/* Its entry stays until the drop is committed; no snapshot may go meanwhile that it still has. */
START_TEST(a_dropped_branch_has_no_snapshots_once_its_handle_is_closed)
{
	struct branch *b = branch_make("main");
	struct snap_info info;
	uint64_t first, undo, head;

	change(b, 1, "one");
	first = checkpoint(b, NULL);
	change(b, 1, "what undo brings back");
	restore(b, first);
	undo = b->undo;
	ck_ok(store_sync(store));
	change(b, 1, "two");
	claim_records(store); /* no round from here on */
	head = checkpoint(b, NULL);
	ck_ok(branch_drop(store, "main"));
	ck_ok(snap_get(store, undo, &info));
	branch_close(b);
	ck_err(snap_get(store, undo, &info), -ERR_SNAP_UNKNOWN);
	ck_ok(snap_drop(store, head));
	snap_reap(store); /* as the sealer does: it was in no index, and is gone */
	claim_end(store);
	ck_ok(store_sync(store));
	expect_sound(NULL);
}
END_TEST

static int count_branch(void *arg, const struct branch_info *info)
{
	char *names = arg;

	strcat(names, info->name);
	strcat(names, info->mounted ? "* " : " ");
	return 0;
}

START_TEST(branches_are_listed_by_name)
{
	struct branch *z = branch_make("z"), *a = branch_make("a"), *m = branch_make("m");
	char names[64] = "";

	ck_ok(branch_mount(m));
	branch_close(a);
	ck_ok(branch_each(store, count_branch, names));
	ck_assert_str_eq(names, "a m* z ");
	branch_unmount(m);
	branch_close(z);
	branch_close(m);
}
END_TEST

/* ---- checkpoints ---- */

START_TEST(nothing_changed_gives_the_head)
{
	struct branch *b = branch_make("main");
	uint64_t one, two, three, id;

	change(b, 1, "1");
	one = checkpoint(b, NULL);
	ck_err(branch_checkpoint(b, NULL, 0, &id), EXISTS);
	ck_assert_uint_eq(id, one);
	ck_err(branch_checkpoint(b, "", 0, &id), EXISTS);
	two = checkpoint(b, "named");
	ck_assert_uint_ne(two, one);
	ck_err(branch_checkpoint(b, "named", 0, &id), EXISTS);
	ck_assert_uint_eq(id, two);
	change(b, 1, "2");
	three = checkpoint(b, "named");
	ck_assert_uint_ne(three, two);
	branch_close(b);

	store_reopen();
	b = branch_at("main");
	ck_err(branch_checkpoint(b, NULL, 0, &id), EXISTS);
	ck_assert_uint_eq(id, three);
	branch_close(b);
}
END_TEST

/* Its snapshot is then one that others may have, too, and goes for all. A label makes another. */
START_TEST(a_checkpoint_may_be_what_another_branch_has)
{
	struct branch *b = branch_make("main"), *fork;
	uint64_t first, one, id, own;

	change(b, 1, "1");
	first = checkpoint(b, NULL);
	one = checkpoint(b, "a label");
	ck_ok(branch_create_from(b, "fork", &fork));
	ck_err(branch_checkpoint(fork, NULL, 0, &id), EXISTS);
	ck_assert_uint_eq(id, one);
	own = checkpoint(fork, "mine");
	restore(fork, one);
	ck_ok(snap_drop(store, one));
	ck_err(branch_restore(fork, one), -ERR_SNAP_UNKNOWN);
	/* Who had it has its parent then, which may be the same state: that of the other, too. */
	ck_err(branch_checkpoint(fork, NULL, 0, &id), EXISTS);
	ck_assert_uint_eq(id, first);
	ck_ok(snap_drop(store, first));
	ck_ok(branch_restore(fork, own));
	ck_err(branch_checkpoint(fork, NULL, 0, &id), EXISTS);
	ck_assert_uint_eq(id, own);
	branch_close(fork);
	branch_close(b);
}
END_TEST

START_TEST(an_empty_branch_can_be_checkpointed)
{
	struct branch *b = branch_make("main");
	uint64_t id = checkpoint(b, NULL), again;

	ck_err(branch_checkpoint(b, NULL, 0, &again), EXISTS);
	ck_assert_uint_eq(again, id);
	ck_ok(snap_wait(store, id));
	branch_close(b);
	store_reopen();
	expect_in_snap(id, 1, NULL);
	expect_sound(NULL);
}
END_TEST

/* ---- restores ---- */

START_TEST(a_restore_brings_back_and_can_be_undone)
{
	struct branch *b = branch_make("main");
	struct snap_info info;
	uint64_t one, undo;

	change(b, 1, "1");
	one = checkpoint(b, NULL);
	change(b, 1, "2");
	restore(b, one);
	expect_text(b, 1, "1");
	ck_assert_uint_eq(b->head, one);
	ck_assert_uint_eq(b->changes, 0);
	undo = b->undo;
	ck_assert_uint_ne(undo, 0);
	ck_ok(snap_get(store, undo, &info));
	ck_assert_uint_eq(info.flags, SNAP_AUTO);
	ck_assert_uint_eq(info.parent, one);

	restore(b, undo);
	expect_text(b, 1, "2");
	ck_assert_uint_eq(b->head, undo);
	ck_assert_uint_eq(b->undo, one);
	restore(b, b->undo);
	expect_text(b, 1, "1");
	ck_assert_uint_eq(b->undo, undo);
	branch_close(b);

	store_reopen();
	b = branch_at("main");
	expect_text(b, 1, "1");
	restore(b, b->undo);
	expect_text(b, 1, "2");
	branch_close(b);
	expect_sound(NULL);
}
END_TEST

START_TEST(a_restore_to_what_is_not_there_changes_nothing)
{
	struct branch *b = branch_make("main");
	struct root *left;

	change(b, 1, "1");
	checkpoint(b, NULL);
	change(b, 1, "2");
	{
		WRITE_GUARD(&b->lock);
		ck_err(branch_restore_locked(b, 4711, &left), -ERR_SNAP_UNKNOWN);
	}
	expect_text(b, 1, "2");
	ck_assert_uint_eq(b->undo, 0);
	ck_assert_uint_eq(b->changes, 1);
	branch_close(b);
}
END_TEST

START_TEST(what_was_left_can_be_read_on)
{
	_cleanup_(root_unrefp) struct root *left = NULL;
	_cleanup_(tree_freep) struct tree *t = NULL;
	struct branch *b = branch_make("main");
	struct gc_stats gc;
	uint64_t one;

	change(b, 1, "1");
	one = checkpoint(b, NULL);
	fill(b, 1, 1000, 7);
	ck_ok(store_sync(store));
	{
		WRITE_GUARD(&b->lock);
		ck_ok(branch_restore_locked(b, one, &left));
		ck_ok(store_pin_root(store, left));
		ck_ok(store_pin_root(store, left));
	}
	ck_ok(snap_drop(store, b->undo));
	ck_ok(store_gc(store, NULL, &gc));
	ck_ok(tree_new(store_nodes(store), left, &t));
	for (uint64_t a = 1; a < 1000; a++) {
		const struct key k = key_at(a);
		struct val v;

		ck_ok(tree_get(t, &k, &v));
	}
	store_unpin_root(store, left);
	store_unpin_root(store, left);
	store_unpin_root(store, left); /* once too often does no harm */
	ck_ok(store_gc(store, NULL, &gc));
	ck_assert_uint_gt(gc.chunks_dropped, 0);
	branch_close(b);
}
END_TEST

START_TEST(setting_a_branch_can_be_undone)
{
	_cleanup_(root_unrefp) struct root *root = NULL;
	struct branch *b = branch_make("main"), *other = branch_make("other");
	uint64_t imported, lineage = store_take_lineage(store);

	change(b, 1, "mine");
	change(other, 1, "theirs");
	imported = checkpoint(other, NULL);
	ck_ok(snap_root(store, imported, &root));
	ck_ok(branch_set(b, root, imported, lineage));
	expect_text(b, 1, "theirs");
	ck_assert_uint_eq(b->head, imported);
	ck_assert_uint_eq(b->lineage, lineage);
	ck_err(branch_set(b, root, 4711, lineage), -ERR_SNAP_UNKNOWN);
	restore(b, b->undo);
	expect_text(b, 1, "mine");
	ck_assert_uint_ne(b->lineage, lineage);
	branch_close(b);
	branch_close(other);
}
END_TEST

START_TEST(a_fork_shares_and_then_goes_its_way)
{
	struct branch *b = branch_make("main"), *fork;
	uint64_t id, again;
	struct root *root;

	fill(b, 1, 300, 1);
	id = checkpoint(b, NULL);
	ck_ok(snap_root(store, id, &root));
	ck_ok(branch_create(store, "fork", root, id, b->lineage, &fork));
	root_unref(root);
	ck_err(branch_checkpoint(fork, NULL, 0, &again), EXISTS);
	ck_assert_uint_eq(again, id);
	change(fork, 1, "fork");
	change(b, 1, "main");
	expect_text(fork, 1, "fork");
	expect_text(b, 1, "main");
	branch_close(fork);
	branch_close(b);
	store_reopen();
	fork = branch_at("fork");
	expect_text(fork, 1, "fork");
	ck_assert_uint_eq(fork->head, id);
	branch_close(fork);
	expect_sound(NULL);
}
END_TEST

/* As many as its parent's: a diff of the two is empty. What nobody counted is one. */
START_TEST(a_fork_has_the_changes_of_its_parent)
{
	struct branch *b = branch_make("main"), *fork;
	uint64_t id, changes;
	struct root *root;

	fill(b, 1, 3, 1);
	id = checkpoint(b, NULL);
	change(b, 1, "main");
	change(b, 2, "main");
	changes = b->changes;
	ck_assert_uint_eq(changes, 2);
	ck_ok(branch_create_from(b, "fork", &fork));
	ck_assert_uint_eq(fork->changes, changes);
	branch_close(fork);

	ck_ok(tree_freeze(b->tree, &root));
	ck_ok(branch_create(store, "other", root, id, b->lineage, &fork));
	root_unref(root);
	ck_assert_uint_eq(fork->changes, 1);
	branch_close(fork);
	branch_close(b);
	store_reopen();
	fork = branch_at("fork");
	ck_assert_uint_eq(fork->changes, changes);
	branch_close(fork);
}
END_TEST

/* ---- speed and threads ---- */

/* Calls of read and write that this thread has made, as the kernel counts them. */
static uint64_t thread_io_calls(void)
{
	uint64_t sum = 0, n;
	char line[64];
	FILE *f = fopen("/proc/thread-self/io", "re");

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "sysc%*c: %" SCNu64, &n) == 1)
			sum += n;
	if (f)
		fclose(f);
	return sum;
}

static int change_and_return(struct branch *b, uint64_t a, uint64_t target)
{
	_cleanup_(root_unrefp) struct root *left = NULL;
	const struct key k = key_at(a);
	const struct val v = { .data = "changed", .len = 7 };
	uint64_t id;
	int r;

	{
		BRANCH_CHANGE_GUARD(b);
		r = tree_put(b->tree, &k, &v);
		b->changes++;
	}
	if (r == 0)
		r = branch_checkpoint(b, NULL, 0, &id);
	if (r != 0)
		return r;
	WRITE_GUARD(&b->lock);
	return branch_restore_locked(b, target, &left);
}

START_TEST(checkpoint_and_restore_cost_no_io)
{
	struct branch *b = branch_make("main");
	uint64_t one, before, look;
	unsigned bad = 0;

	fill(b, 1, 20000, 1);
	one = checkpoint(b, NULL);
	before = thread_io_calls();
	look = thread_io_calls() - before; /* what looking costs */
	if (look == 0)
		fprintf(stderr, "skip: this kernel counts no calls of a thread\n");
	before = thread_io_calls();
	for (uint64_t i = 0; i < 1000; i++) /* no assertions here: Check writes at each */
		bad += change_and_return(b, i + 1, one) != 0;
	/* The journal writes zeros ahead of its records, to the page cache, once in 300. */
	ck_assert_uint_le(thread_io_calls() - before, look + 20);
	ck_assert_uint_eq(bad, 0);
	branch_close(b);
}
END_TEST

/*
 * Steps of one worker: some 300 snapshots. Not "until told to stop": the more snapshots there are
 * the longer gc and check take, and the more would be made meanwhile.
 */
#define STEPS 1500

struct worker {
	pthread_t thread;
	struct branch *branch;
	unsigned seed;
	unsigned *running;
};

static void *work(void *arg)
{
	struct worker *w = arg;
	uint64_t seed = w->seed, ids[8] = { 0 };
	int n = 0;

	for (int step = 0; step < STEPS; step++) {
		uint64_t random = scratch_random(&seed);
		char text[32];

		(void)snprintf(text, sizeof(text), "%llu", (unsigned long long)random);
		change(w->branch, random % 500, text);
		if (random % 7 == 0) {
			uint8_t data[3000];

			scratch_fill(data, sizeof(data), random);
			change_blob(w->branch, random % 100, data, sizeof(data));
		}
		if (random % 5 == 0) {
			int r = branch_checkpoint(w->branch, NULL, 0, &ids[n++ % 8]);

			ck_assert_int_ge(r, 0);
		}
		if (random % 11 == 0 && n > 0)
			(void)snap_drop(store, ids[random % MIN(n, 8)]);
		if (random % 13 == 0 && n > 0) {
			_cleanup_(root_unrefp) struct root *left = NULL;
			WRITE_GUARD(&w->branch->lock);
			int r = branch_restore_locked(w->branch, ids[random % MIN(n, 8)], &left);

			ck_assert(r == 0 || r == -ERR_SNAP_UNKNOWN);
		}
		if (random % 101 == 0)
			ck_ok(store_sync(store));
	}
	__atomic_sub_fetch(w->running, 1, __ATOMIC_RELAXED);
	return NULL;
}

static int count_snap(void *arg, const struct snap_info *info)
{
	(*(uint64_t *)arg)++;
	return 0;
}

START_TEST(branches_work_beside_sealing_gc_and_check)
{
	enum { WORKERS = 3 };
	struct worker workers[WORKERS];
	const struct check_ops ops = { .damage = NULL };
	struct check_stats check;
	struct gc_stats gc;
	unsigned running = WORKERS;
	char names[256];

	for (unsigned i = 0; i < WORKERS; i++) {
		(void)snprintf(names, sizeof(names), "branch%u", i);
		workers[i] = (struct worker){
			.branch = branch_make(names), .seed = i, .running = &running
		};
		fill(workers[i].branch, 0, 500, i);
		ck_assert_int_eq(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
	}
	while (__atomic_load_n(&running, __ATOMIC_RELAXED) > 0) {
		uint64_t n = 0;
		int r = store_gc(store, NULL, &gc);

		ck_assert_msg(r == 0, "gc: %s", err_name(r));
		ck_ok(store_check(store, CHECK_READ_DATA, &ops, NULL, &check));
		ck_ok(snap_each(store, count_snap, &n));
		names[0] = '\0';
		ck_ok(branch_each(store, count_branch, names));
	}
	for (unsigned i = 0; i < WORKERS; i++) {
		pthread_join(workers[i].thread, NULL);
		branch_close(workers[i].branch);
	}
	ck_ok(store_gc(store, NULL, &gc));
	expect_sound(&check);
	ck_assert_uint_eq(check.unreferenced, 0);
	store_reopen();
	expect_sound(NULL);
}
END_TEST

static void *drop_in_thread(void *arg)
{
	return (void *)(intptr_t)snap_drop(store, *(uint64_t *)arg);
}

/* Whoever drops a snapshot tells one branch after the other, and waits for each. */
START_TEST(a_branch_whose_head_is_being_dropped_can_be_forked)
{
	struct branch *first = branch_make("a"), *b, *fork;
	struct snap_info info;
	pthread_t thread;
	uint64_t one, two;
	void *dropped;

	change(first, 1, "1");
	one = checkpoint(first, NULL);
	change(first, 1, "2");
	two = checkpoint(first, NULL);
	ck_ok(branch_create_from(first, "b", &b));
	{
		WRITE_GUARD(&first->lock);

		ck_assert_int_eq(pthread_create(&thread, NULL, drop_in_thread, &two), 0);
		while (snap_get(store, two, &info) == 0)
			(void)sched_yield();
		ck_ok(branch_create_from(b, "fork", &fork));
	}
	pthread_join(thread, &dropped);
	ck_ok((int)(intptr_t)dropped);
	expect_text(fork, 1, "2");
	ck_assert_uint_eq(fork->head, one);
	ck_assert_uint_eq(fork->changes, 1);
	ck_assert_uint_eq(b->changes, 1);
	ck_assert_uint_ne(checkpoint(fork, NULL), one);
	branch_close(fork);
	branch_close(b);
	branch_close(first);
	expect_sound(NULL);
}
END_TEST

/* ---- drops, on a full disk ---- */

/* Runs fn in a process that ends without closing the store. What fn says. */
static bool in_process_that_dies(bool (*fn)(void))
{
	pid_t child = fork();
	int status;

	ck_assert_int_ge(child, 0);
	if (child == 0) {
		store_up();
		_exit(fn() ? 3 : 2);
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert(WIFEXITED(status) && (WEXITSTATUS(status) == 2 || WEXITSTATUS(status) == 3));
	return WEXITSTATUS(status) == 3;
}

static int fault_at;

/* true: the round had no such call. */
static bool save_half(void)
{
	bool late;

	fault_arm(fault_at, 1, ENOSPC);
	(void)store_sync(store); /* it may fail */
	late = fault_ticks() <= fault_at;
	fault_disarm();
	return late;
}

static bool fork_only(void)
{
	struct branch *b = branch_at("old"), *fork;

	fill(b, 1, 20, 2);
	change(b, 1, "not saved");
	ck_ok(branch_create_from(b, "fork", &fork));
	branch_close(b);
	change(fork, 2, "nor is this");
	return true;
}

static bool fork_and_drop(void)
{
	(void)fork_only();
	ck_ok(branch_drop(store, "old"));
	return true;
}

static bool drop_and_save_half(void)
{
	claim_records(store); /* the sealer, who else may save what has come back before that */
	ck_ok(branch_drop(store, "old"));
	claim_end(store);
	return save_half();
}

/* The drop may not be committed before the fork: its record says "as that branch is now". */
static void expect_fork_survives(bool (*first)(void), bool (*second)(void))
{
	bool late = false;

	for (fault_at = 0; !late; fault_at += 1 + fault_at / 8) {
		struct branch *b = branch_make("old");

		fill(b, 1, 20, 1);
		branch_close(b);
		ck_ok(store_close(store));
		store = NULL;
		ck_assert(in_process_that_dies(first));
		late = in_process_that_dies(second);
		store_up();
		b = branch_at("fork");
		expect_text(b, 1, "not saved");
		expect_text(b, 2, "nor is this");
		branch_close(b);
		ck_err(branch_open(store, "old", &b), -ERR_BRANCH_UNKNOWN);
		expect_sound(NULL);
		ck_ok(branch_drop(store, "fork"));
	}
}

START_TEST(a_fork_of_a_dropped_branch_survives_two_kills)
{
	expect_fork_survives(fork_and_drop, save_half);
}
END_TEST

START_TEST(so_it_does_where_the_drop_comes_after_the_first)
{
	expect_fork_survives(fork_only, drop_and_save_half);
}
END_TEST

/* S3: while the record of a dropped branch is held back, so is what it names. */
START_TEST(a_dropped_branch_takes_its_undo_along)
{
	bool late = false;

	for (fault_at = 0; !late; fault_at += 1 + fault_at / 8) {
		struct branch *b = branch_make("b"), *main = branch_make("main");
		uint64_t one;

		change(b, 1, "one");
		one = checkpoint(b, NULL);
		change(b, 1, "what undo brings back");
		restore(b, one);
		ck_ok(store_sync(store));
		change(b, 1, "two");
		(void)checkpoint(b, NULL);
		branch_close(b);
		fill(main, 1, 20, 1);
		branch_close(main);
		ck_ok(branch_drop(store, "b"));
		late = save_half();
		expect_sound(NULL);
		store_reopen(); /* else the next round comes a second later */
		ck_ok(branch_drop(store, "main"));
	}
}
END_TEST

int main(void)
{
	static const TTest *tests[32];
	size_t n = 0;

	tests[n++] = names_are_checked;
	tests[n++] = a_branch_has_one_object;
	tests[n++] = what_was_not_checkpointed_survives_a_close;
	tests[n++] = a_changed_branch_is_there_after_its_process;
	tests[n++] = what_others_froze_is_saved_all_the_same;
	tests[n++] = a_mounted_branch_is_not_dropped_or_mounted_again;
	tests[n++] = a_dropped_branch_works_until_its_handle_is_closed;
	tests[n++] = a_dropped_branch_has_no_snapshots_once_its_handle_is_closed;
	tests[n++] = branches_are_listed_by_name;
	tests[n++] = nothing_changed_gives_the_head;
	tests[n++] = a_checkpoint_may_be_what_another_branch_has;
	tests[n++] = an_empty_branch_can_be_checkpointed;
	tests[n++] = a_restore_brings_back_and_can_be_undone;
	tests[n++] = a_restore_to_what_is_not_there_changes_nothing;
	tests[n++] = a_fork_has_the_changes_of_its_parent;
	tests[n++] = what_was_left_can_be_read_on;
	tests[n++] = setting_a_branch_can_be_undone;
	tests[n++] = a_fork_shares_and_then_goes_its_way;
	tests[n++] = a_fork_of_a_dropped_branch_survives_two_kills;
	tests[n++] = so_it_does_where_the_drop_comes_after_the_first;
	tests[n++] = a_dropped_branch_takes_its_undo_along;
	tests[n++] = checkpoint_and_restore_cost_no_io;
	tests[n++] = branches_work_beside_sealing_gc_and_check;
	tests[n++] = a_branch_whose_head_is_being_dropped_can_be_forked;
	return scratch_run("branch", tests, n, store_setup, store_teardown);
}
