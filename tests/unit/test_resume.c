/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Node ids in a view that goes on after its process: as test_memo.c, which has what requests leave.
 */

#include "tests/unit/memo_fixture.h"

/* ---- node ids ---- */

static void some_nodes(void)
{
	struct entry d, a, b;

	ck_assert_int_eq(make(ROOT_NODE, "d", S_IFDIR | 0755, &d), 0);
	ck_assert_int_eq(make(d.node, "a", S_IFREG | 0644, &a), 0);
	ck_assert_int_eq(make(d.node, "b", S_IFREG | 0644, &b), 0);
	ck_assert_int_eq(view_lookup(view, d.node, "a", 1, &a), 0); /* twice */
	ck_assert_int_eq(view_lookup(view, d.node, "a", 1, &a), 0);
	view_forget(view, a.node, 1);
	put(a.node, 0, "of a");
	put(b.node, 0, "of b");
	ck_assert_int_eq(view_unlink(view, d.node, "b", 1), 0); /* open */
	view_forget(view, d.node, 1); /* and made again, in the same place of the table */
	ck_assert_int_eq(view_lookup(view, ROOT_NODE, "d", 1, &d), 0);
	shared_id[0] = d.node;
	shared_id[1] = a.node;
	shared_id[2] = b.node;
}

static void two_files(void)
{
	struct entry a, b;

	ck_assert_int_eq(make(ROOT_NODE, "a", S_IFREG | 0644, &a), 0);
	ck_assert_int_eq(make(ROOT_NODE, "b", S_IFREG | 0644, &b), 0);
	view_forget(view, a.node, 1);
	shared_id[0] = a.node;
	shared_id[1] = b.node;
}

/* K1: one was about to go, the other to come. */
START_TEST(a_node_id_that_was_half_written_is_nobodys)
{
	struct memo_node *a, *b;
	struct inode i;
	struct entry e;

	shared_id = (uint64_t *)&first->receipts[MEMO_RECEIPTS - 1].restored;
	killed_after(two_files);
	a = &first->nodes[(uint32_t)shared_id[0]];
	b = &first->nodes[(uint32_t)shared_id[1]];
	a->node = shared_id[0]; /* whose serial was raised */
	a->nlookup = 1;
	b->nlookup = 0;
	killed_after(nothing);
	begin();
	ck_assert_uint_eq(nodes_known(), 1);
	for (int n = 0; n < 2; n++) {
		ck_assert_int_eq(view_getattr(view, shared_id[n], &i), -ESTALE);
		ck_assert_int_eq(view_lookup(view, ROOT_NODE, n ? "b" : "a", 1, &e), 0);
		ck_assert_uint_ne(e.node, shared_id[0]);
		ck_assert_uint_ne(e.node, shared_id[1]);
		ck_assert_uint_lt((uint32_t)e.node, first->head->n_slots);
	}
	ck_assert_uint_eq(first->head->n_slots, 4); /* both places serve again */
	end();
}
END_TEST

START_TEST(node_ids_mean_what_they_meant)
{
	uint64_t d, a, b, known;
	struct inode i;
	struct entry e;

	shared_id = (uint64_t *)&first->receipts[MEMO_RECEIPTS - 1].restored;
	killed_after(some_nodes);
	d = shared_id[0];
	a = shared_id[1];
	b = shared_id[2];
	ck_assert_uint_ne(d >> 32, 0);

	killed_after(nothing); /* a second one goes on, and changes nothing */
	begin();
	known = nodes_known();
	ck_assert_uint_eq(known, 4);
	ck_assert_int_eq(view_lookup(view, d, "a", 1, &e), 0);
	ck_assert_uint_eq(e.node, a);
	assert_holds(a, "of a");
	assert_holds(b, "of b");
	ck_assert_int_eq(view_getattr(view, b, &i), 0);
	ck_assert_uint_eq(i.nlink, 0);
	view_forget(view, a, 3);
	view_forget(view, b, 1); /* now it is gone for good */
	ck_assert_uint_eq(nodes_known(), 2);
	ck_assert_int_eq(view_getattr(view, b, &i), -ESTALE);
	ck_assert_int_eq(view_lookup(view, d, "a", 1, &e), 0);
	ck_assert_uint_ne(e.node, a);
	end();
}
END_TEST

/* Of b a write past the cache took the set-id bits. */
static void write_past_the_cache(void)
{
	const struct past_cache past = { .thread = 1 };
	struct entry a, b;

	ck_assert_int_eq(make(ROOT_NODE, "a", S_IFREG | 0644, &a), 0);
	ck_assert_int_eq(make(ROOT_NODE, "b", S_IFREG | 04755, &b), 0);
	ck_assert_int_eq(view_write(view, a.node, 0, "1", 1, true, &past), 0);
	ck_assert_int_eq(view_write(view, b.node, 0, "1", 1, true, &past), 1);
	shared_id[0] = a.node;
	shared_id[1] = b.node;
}

START_TEST(who_goes_on_writing_past_the_cache_is_known_to_others)
{
	const struct past_cache past = { .thread = 1 };

	shared_id = (uint64_t *)&first->receipts[MEMO_RECEIPTS - 1].restored;
	killed_after(write_past_the_cache);
	killed_after(nothing);
	begin();
	/* it may come again, and before it a request that is told its size */
	ck_assert(view_is_written(view, shared_id[0]));
	ck_assert(!view_is_written(view, shared_id[1]) && !view_is_written(view, ROOT_NODE));
	view_hears(view, 1);
	ck_assert(view_is_written(view, shared_id[0])); /* nobody knows who wrote */
	for (int i = 0; i < 2; i++)
		ck_assert_int_eq(view_write(view, shared_id[i], 1, "2", 1, true, &past), 0);
	ck_assert(view_is_written(view, shared_id[0]));
	ck_assert(!view_is_written(view, shared_id[1])); /* the kernel has to take its mode */
	end();
}
END_TEST

/* ---- restores ---- */

static void restore_one(void)
{
	struct restore_info info;
	struct entry a, d;
	uint64_t id;

	ck_assert_int_eq(make(ROOT_NODE, "d", S_IFDIR | 0755, &d), 0);
	ck_assert_int_eq(make(ROOT_NODE, "a", S_IFREG | 0644, &a), 0);
	ck_assert_int_eq(make(ROOT_NODE, "same", S_IFREG | 0644, &d), 0);
	put(a.node, 0, "old");
	ck_assert_int_eq(view_checkpoint(view, "", false, &id), 0);
	put(a.node, 0, "new");
	ck_assert_int_eq(make(ROOT_NODE, "late", S_IFREG | 0644, &d), 0);
	ask(4, false);
	ck_assert_int_eq(view_restore(view, id, &info), 0);
	shared_id[0] = id;
	shared_id[1] = a.node;
	shared_id[2] = info.left;
}

static void assert_restored(void)
{
	const uint64_t id = shared_id[0], a = shared_id[1], left = shared_id[2];
	struct restore_info info;

	ck_assert_int_eq(view_finish_restore(view), 0);
	ask(4, true);
	ck_assert_int_eq(view_restore(view, id, &info), 0);
	memo_request_end();
	ck_assert_uint_eq(info.left, left);
	ck_assert(!is_there("late"));
	assert_holds(node_of(ROOT_NODE, "a"), "old");
	ck_assert_uint_ne(node_of(ROOT_NODE, "a"), a);
	assert_holds(a, "new"); /* whoever has it open */
	ck_assert_uint_eq(snap_count(store), 2);
}

START_TEST(a_restore_that_was_over_is_not_done_again)
{
	struct entry e;

	shared_id = (uint64_t *)&first->receipts[MEMO_RECEIPTS - 1].restored;
	killed_after(restore_one);
	ck_assert_uint_eq(first->head->switch_state, MEMO_NO_SWITCH);
	begin();
	ck_assert_int_eq(make(ROOT_NODE, "after", S_IFREG | 0644, &e), 0);
	assert_restored();
	ck_assert(is_there("after"));
	ck_assert_uint_eq(epochs, 0);
	end();
}
END_TEST

/* Who is served while the kernel is told. */
static int look_and_die(void *arg, uint64_t parent, const char *name, size_t len, bool expire)
{
	shared_id[0] = node_of(ROOT_NODE, "a");
	_exit(0);
}

static void restore_and_die(void)
{
	struct view_kernel k = kernel;
	struct restore_info info;
	struct entry a;
	uint64_t id;

	ck_assert_int_eq(make(ROOT_NODE, "a", S_IFREG | 0644, &a), 0);
	put(a.node, 0, "old");
	ck_assert_int_eq(view_checkpoint(view, "", false, &id), 0);
	put(a.node, 0, "new");
	k.inval_entry = look_and_die;
	view_set_kernel(view, &k);
	ask(4, false);
	(void)view_restore(view, id, &info);
	ck_abort();
}

START_TEST(what_is_looked_up_while_the_kernel_is_told_stays_what_it_is)
{
	shared_id = (uint64_t *)&first->receipts[MEMO_RECEIPTS - 1].restored;
	killed_after(restore_and_die);
	begin();
	ck_assert_int_eq(view_finish_restore(view), 0);
	assert_holds(shared_id[0], "old");
	ck_assert_uint_eq(node_of(ROOT_NODE, "a"), shared_id[0]);
	end();
}
END_TEST

START_TEST(a_restore_that_nobody_was_told_of_is_told)
{
	shared_id = (uint64_t *)&first->receipts[MEMO_RECEIPTS - 1].restored;
	killed_after(restore_one);
	for (unsigned i = 0; i < MEMO_RECEIPTS - 1; i++) /* as before memo_told */
		first->receipts[i].journal.lsn = 0;
	first->head->switch_state = MEMO_SWITCHED;
	begin();
	/* nor does the kernel know what it asks for (S6) */
	ck_assert_int_eq(view_unlink(view, ROOT_NODE, "same", 4), -ESTALE);
	assert_restored();
	ck_assert_int_eq(view_unlink(view, ROOT_NODE, "a", 1), 0);
	ck_assert_uint_eq(epochs, 2); /* once (S4) */
	ck_assert_uint_ge(inodes, 2);
	ck_assert_uint_eq(unsaid, 0);
	assert_nobody_tells();
	ck_assert_uint_eq(first->head->switch_state, MEMO_NO_SWITCH);
	end();
}
END_TEST

/* Whoever restores next may come before that. */
START_TEST(a_restore_that_nobody_was_told_of_is_told_before_another_one)
{
	struct restore_info info;

	shared_id = (uint64_t *)&first->receipts[MEMO_RECEIPTS - 1].restored;
	killed_after(restore_one);
	first->head->switch_state = MEMO_SWITCHED;
	begin();
	ck_assert_int_eq(view_restore(view, shared_id[0], &info), 0);
	ck_assert_uint_eq(epochs, 2);
	ck_assert_uint_eq(unsaid, 0);
	assert_nobody_tells();
	end();
}
END_TEST

static int deaf(void *arg)
{
	return -EIO;
}

START_TEST(what_the_kernel_could_not_be_told_of_a_former_restore_is_said)
{
	struct view_kernel k = kernel;

	shared_id = (uint64_t *)&first->receipts[MEMO_RECEIPTS - 1].restored;
	killed_after(restore_one);
	first->head->switch_state = MEMO_SWITCHED;
	begin();
	k.inc_epoch = deaf;
	view_set_kernel(view, &k);
	ck_assert_int_eq(view_finish_restore(view), -EIO);
	end();
}
END_TEST

static void restore_and_undo(void)
{
	struct restore_info info;
	uint64_t id;

	restore_one();
	memo_request_end();
	ask(6, false);
	ck_assert_int_eq(view_undo(view, &id, &info), 0);
	shared_id[0] = id;
	shared_id[2] = info.left;
}

START_TEST(an_undo_that_was_over_is_not_done_again)
{
	struct restore_info info;
	uint64_t id;

	shared_id = (uint64_t *)&first->receipts[MEMO_RECEIPTS - 1].restored;
	killed_after(restore_and_undo);
	begin();
	ask(6, true);
	ck_assert_int_eq(view_undo(view, &id, &info), 0);
	memo_request_end();
	ck_assert_uint_eq(id, shared_id[0]);
	ck_assert_uint_eq(info.left, shared_id[2]);
	ck_assert(is_there("late"));
	end();
}
END_TEST

/* Whatever part of the nodes' records was written: here all, half of them, or none. */
START_TEST(a_restore_that_was_cut_off_behind_its_record_is_finished)
{
	uint32_t n;

	shared_id = (uint64_t *)&first->receipts[MEMO_RECEIPTS - 1].restored;
	killed_after(restore_one);
	for (unsigned i = 0; i < MEMO_RECEIPTS - 1; i++)
		first->receipts[i].journal.lsn = 0;
	n = first->head->n_slots;
	for (uint32_t i = 1; i < n * (uint32_t)_i / 2; i++) {
		first->nodes[i].base = 0;
		first->nodes[i].flags |= MEMO_HASHED;
	}
	first->head->target = 0;
	first->head->switched.left = 0; /* of before: memo_switched was not there yet */
	first->head->switch_state = MEMO_PREPARED;
	begin();
	ck_assert_uint_eq(first->head->target, shared_id[0]);
	barriers = 0;
	assert_restored();
	ck_assert_uint_ge(epochs, 1);
	ck_assert_uint_ge(barriers, 2); /* root and d (S4) */
	end();
}
END_TEST

static void restore_other_and_back(void)
{
	struct restore_info info;
	struct entry d, in;
	uint64_t id, id_other;

	ck_assert_int_eq(make(ROOT_NODE, "d", S_IFDIR | 0755, &d), 0);
	ck_assert_int_eq(make(d.node, "in", S_IFREG | 0644, &in), 0);
	ck_assert_int_eq(view_checkpoint(view, "", false, &id), 0);
	/* in which the number of directory d is that of e */
	id_other = make_other(id, 0, 1, (const char *const[][2]){ { "d", "e" } });
	ck_assert_int_eq(view_restore(view, id_other, &info), 0);
	shared_id[0] = d.node;
	shared_id[1] = node_of(ROOT_NODE, "e");
	shared_id[2] = first->nodes[(uint32_t)d.node].base;
	ck_assert_uint_eq(first->nodes[(uint32_t)d.node].flags, MEMO_DISPLACED);
	ck_assert_int_eq(view_restore(view, id, &info), 0);
	ck_assert_int_eq(view_lookup(view, d.node, "in", 2, &in), 0);
}

START_TEST(a_directory_that_had_made_room_has_its_place_after_a_restore_that_was_cut_off)
{
	struct memo_node *d, *e;
	struct entry in;

	shared_id = (uint64_t *)&first->receipts[MEMO_RECEIPTS - 1].restored;
	killed_after(restore_other_and_back);
	d = &first->nodes[(uint32_t)shared_id[0]];
	e = &first->nodes[(uint32_t)shared_id[1]];
	d->base = shared_id[2]; /* as before the restore back */
	d->flags = MEMO_DISPLACED;
	e->base = 0;
	e->flags = MEMO_HASHED;
	first->head->target = 0;
	first->head->switch_state = MEMO_PREPARED;
	begin();
	ck_assert_int_eq(view_finish_restore(view), 0);
	ck_assert_int_eq(view_lookup(view, shared_id[0], "in", 2, &in), 0);
	end();
}
END_TEST

static void begin_to_restore(void)
{
	uint64_t id;

	ck_assert_int_eq(view_checkpoint(view, "", false, &id), 0);
	put(make_node(ROOT_NODE, "a", S_IFREG | 0644), 0, "first");
	ask(4, false); /* and no further */
	shared_id[0] = id;
}

START_TEST(a_restore_without_a_record_is_done_when_it_comes_again)
{
	struct restore_info info;

	shared_id = (uint64_t *)&first->receipts[MEMO_RECEIPTS - 1].restored;
	killed_after(begin_to_restore);
	first->head->switch_state = MEMO_PREPARED;
	first->head->switch_unique = 4;
	first->head->switch_journal.lsn = 1000;
	begin();
	ck_assert_uint_eq(first->head->switch_state, MEMO_NO_SWITCH);
	ask(4, true);
	ck_assert_int_eq(view_restore(view, shared_id[0], &info), 0);
	memo_request_end();
	ck_assert(!is_there("a"));
	end();
}
END_TEST

/* Of 300 files one is known; its neighbours differ. */
static void restore_by_epoch(void)
{
	struct view_kernel few = kernel;
	struct restore_info info;
	struct entry d, e, a = { 0 };
	char name[8];
	uint64_t id;

	few.names_max = 1;
	view_set_kernel(view, &few);
	ck_assert_int_eq(make(ROOT_NODE, "d", S_IFDIR | 0755, &d), 0);
	for (int i = 0; i < 300; i++) {
		snprintf(name, sizeof(name), "f%d", i);
		ck_assert_int_eq(make(d.node, name, S_IFREG | 0644, &e), 0);
		put(e.node, 0, name);
		if (i == 150)
			a = e;
		else
			view_forget(view, e.node, 1);
	}
	ck_assert_int_eq(view_checkpoint(view, "", true, &id), 0);
	for (int i = 149; i > 0; i -= 100) {
		snprintf(name, sizeof(name), "f%d", i);
		ck_assert_int_eq(view_lookup(view, d.node, name, strlen(name), &e), 0);
		put(e.node, 0, "left");
		view_forget(view, e.node, 1);
	}
	ck_assert_int_eq(view_restore(view, id, &info), 0);
	ck_assert_int_eq(info.mode, RESTORE_EPOCH);
	shared_id[0] = id;
	shared_id[1] = a.node;
}

START_TEST(what_was_equal_is_known_when_the_state_that_was_restored_is_gone)
{
	struct gc_stats stats;
	struct entry d, e;

	shared_id = (uint64_t *)&first->receipts[MEMO_RECEIPTS - 1].restored;
	killed_after(restore_by_epoch);
	begin();
	ck_assert_int_eq(view_lookup(view, ROOT_NODE, "d", 1, &d), 0);
	ck_assert_int_eq(view_lookup(view, d.node, "f149", 4, &e), 0);
	put(e.node, 0, "now");
	ck_ok(snap_drop(store, shared_id[0]));
	ck_assert_int_eq(store_sync(store), 0);
	ck_ok(store_gc(store, NULL, &stats));
	assert_holds(shared_id[1], "f150");
	ck_assert_uint_eq(node_of(d.node, "f150"), shared_id[1]);
	end();
}
END_TEST

static void restore_and_drop_that(void)
{
	restore_by_epoch();
	ck_ok(snap_drop(store, shared_id[0]));
}

static void only_sync(void)
{
	ck_ok(store_sync(store));
}

START_TEST(and_when_somebody_dies_after_that)
{
	struct entry d;

	shared_id = (uint64_t *)&first->receipts[MEMO_RECEIPTS - 1].restored;
	killed_after(restore_and_drop_that);
	killed_after(only_sync); /* from here on the index would say that it was dropped */
	begin();
	ck_assert_int_eq(view_lookup(view, ROOT_NODE, "d", 1, &d), 0);
	ck_assert_uint_eq(node_of(d.node, "f150"), shared_id[1]);
	end();
}
END_TEST

static void restore_and_drop_what_was_left(void)
{
	struct view_kernel few = kernel;
	struct restore_info info;
	struct entry e;
	uint64_t id;

	few.names_max = 1;
	view_set_kernel(view, &few);
	ck_assert_int_eq(make(ROOT_NODE, "d", S_IFDIR | 0755, &e), 0);
	ck_assert_int_eq(view_checkpoint(view, "", false, &id), 0);
	ck_assert_int_eq(make(ROOT_NODE, "late", S_IFREG | 0644, &e), 0);
	ck_assert_int_eq(view_restore(view, id, &info), 0);
	ck_assert_int_eq(info.mode, RESTORE_EPOCH);
	ck_ok(snap_drop(store, info.left));
	ck_assert_int_eq(store_sync(store), 0);
}

/*
 * It is there in each state, so nothing has to be known of the one that it was last seen in: as
 * when that one's record is damaged.
 */
START_TEST(the_root_goes_on_though_the_state_that_was_left_is_gone)
{
	killed_after(restore_and_drop_what_was_left);
	first->nodes[ROOT_NODE].base = 1; /* nobody's id */
	begin();
	ck_assert(is_there("d"));
	ck_assert(!is_there("late"));
	end();
}
END_TEST

/* One of each, settled or left after a restore by epoch. */
static void nodes_of_all_kinds(void)
{
	uint64_t id, f, dir, adopted, retired;
	struct inode i;

	dir = make_node(make_node(ROOT_NODE, "up", S_IFDIR | 0755), "dir", S_IFDIR | 0755);
	f = make_node(dir, "f", S_IFREG | 0644);
	put(f, 0, "of f");
	adopted = make_node(ROOT_NODE, "adopted", S_IFREG | 0644);
	retired = make_node(ROOT_NODE, "retired", S_IFREG | 0644);
	put(retired, 0, "old");
	ck_assert_int_eq(view_checkpoint(view, "", false, &id), 0);
	put(retired, 0, "new");
	make_node(ROOT_NODE, "late", S_IFREG | 0644);
	tell_by_epoch(true);
	restore_to(id);
	ck_assert_int_eq(view_getattr(view, dir, &i), 0);
	ck_assert_int_eq(view_getattr(view, f, &i), 0);
	ck_assert_uint_eq(node_of(ROOT_NODE, "adopted"), adopted);
	shared_id[3] = node_of(ROOT_NODE, "retired");
	ck_assert_uint_ne(shared_id[3], retired);

	/* What they were settled from is gone with the next one. */
	tell_by_epoch(false);
	make_node(ROOT_NODE, "later", S_IFREG | 0644);
	restore_to(id);
	shared_id[0] = id;
	shared_id[1] = adopted;
	shared_id[2] = f;
	first->receipts[MEMO_RECEIPTS - 2].restored.target = dir;
}

START_TEST(nodes_that_restores_settled_stay_so)
{
	uint64_t id, adopted, now;
	struct entry e;

	shared_id = (uint64_t *)&first->receipts[MEMO_RECEIPTS - 1].restored;
	killed_after(nodes_of_all_kinds);
	killed_after(nothing);
	id = shared_id[0];
	adopted = shared_id[1];
	now = shared_id[3];
	begin();
	ck_assert_uint_eq(node_of(ROOT_NODE, "retired"), now);
	ck_assert_uint_eq(node_of(ROOT_NODE, "adopted"), adopted);
	assert_holds(shared_id[2], "of f");
	ck_assert_int_eq(
		view_lookup(view, first->receipts[MEMO_RECEIPTS - 2].restored.target, "f", 1, &e),
		0);

	/* The name of one that an epoch made old is never merely expired (S3). */
	tell_by_epoch(false);
	put(adopted, 0, "changed");
	expired = 0;
	restore_to(id);
	ck_assert_uint_eq(expired, 0);
	end();
}
END_TEST

/* K1 and V1: whatever a kill leaves, one of them is what a lookup gives. */
START_TEST(of_two_records_with_one_number_one_counts)
{
	uint64_t twice, node;

	shared_id = (uint64_t *)&first->receipts[MEMO_RECEIPTS - 1].restored;
	killed_after(two_files);
	twice = first->head->n_slots++;
	memcpy(&first->nodes[twice], &first->nodes[shared_id[1]], sizeof(struct memo_node));
	first->nodes[twice].node = twice;
	begin();
	node = node_of(ROOT_NODE, "b");
	ck_assert(node == shared_id[1] || node == twice);
	view_forget(view, node, 2);
	node = node_of(ROOT_NODE, "b");
	ck_assert(node != shared_id[1] && node != twice);
	end();
}
END_TEST

static void forget_one(void)
{
	view_forget(view, shared_id[1], 1);
}

/* Of a slot whose serials are used up, too. */
START_TEST(no_node_id_comes_again)
{
	struct entry e;

	shared_id = (uint64_t *)&first->receipts[MEMO_RECEIPTS - 1].restored;
	killed_after(two_files);
	shared_id[1] |= (uint64_t)UINT32_MAX << 32;
	first->nodes[(uint32_t)shared_id[1]].serial = UINT32_MAX;
	first->nodes[(uint32_t)shared_id[1]].node = shared_id[1];
	killed_after(forget_one);
	begin();
	for (int i = 0; i < 3; i++) {
		ck_assert_int_eq(view_lookup(view, ROOT_NODE, i % 2 ? "a" : "b", 1, &e), 0);
		ck_assert_uint_ne((uint32_t)e.node, (uint32_t)shared_id[1]);
	}
	end();
}
END_TEST

START_TEST(what_was_written_to_a_replaced_file_is_an_error_and_not_a_mixture)
{
	struct segments s;

	shared_id = (uint64_t *)&first->receipts[MEMO_RECEIPTS - 1].restored;
	killed_after(restore_one);
	for (uint32_t i = 1; i < first->head->n_slots; i++)
		if (first->nodes[i].node == shared_id[1])
			first->nodes[i].flags |= MEMO_CHANGED;
	begin();
	put(node_of(ROOT_NODE, "same"), 0, "x");
	ck_assert_int_eq(store_sync(store), 0); /* which lets go of memory */
	ck_assert_int_eq(view_map(view, shared_id[1], 0, 10, &s), -EIO);
	assert_holds(node_of(ROOT_NODE, "a"), "old");
	end();
}
END_TEST

/* One whose opens are over, and one that was opened twice and closed once. */
static void opens(void)
{
	uint64_t over = make_node(ROOT_NODE, "over", S_IFREG | 0644);
	uint64_t open = make_node(ROOT_NODE, "open", S_IFREG | 0644);
	int32_t id;

	ck_assert_int_eq(view_opened(view, over, 7, &id), 0);
	ck_assert_int_eq(view_closed(view, over), 7);
	ck_assert_int_eq(view_opened(view, open, 8, &id), 0);
	ck_assert_int_eq(view_opened(view, open, 9, &id), EXISTS);
	ck_assert_int_eq(view_closed(view, open), 0);
	shared_id[0] = over;
	shared_id[1] = open;
}

START_TEST(what_is_open_stays_so_and_nothing_else)
{
	int32_t id;

	shared_id = (uint64_t *)&first->receipts[MEMO_RECEIPTS - 1].restored;
	killed_after(opens);
	killed_after(nothing);
	begin();
	ck_assert_int_eq(view_opened(view, shared_id[0], -1, &id), ABSENT);
	ck_assert_int_eq(view_opened(view, shared_id[1], -1, &id), EXISTS);
	ck_assert_int_eq(id, 8);
	ck_assert_int_eq(view_closed(view, shared_id[1]), 0);
	ck_assert_int_eq(view_closed(view, shared_id[1]), 8);
	end();
}
END_TEST

int main(void)
{
	TCase *c = tcase_create("resume");

	tcase_add_checked_fixture(c, memo_setup, memo_teardown);
	tcase_set_timeout(c, 240);
	tcase_add_test(c, a_node_id_that_was_half_written_is_nobodys);
	tcase_add_test(c, node_ids_mean_what_they_meant);
	tcase_add_test(c, who_goes_on_writing_past_the_cache_is_known_to_others);
	tcase_add_test(c, a_restore_that_was_over_is_not_done_again);
	tcase_add_test(c, what_is_looked_up_while_the_kernel_is_told_stays_what_it_is);
	tcase_add_test(c, a_restore_that_nobody_was_told_of_is_told);
	tcase_add_test(c, a_restore_that_nobody_was_told_of_is_told_before_another_one);
	tcase_add_test(c, what_the_kernel_could_not_be_told_of_a_former_restore_is_said);
	tcase_add_test(c, an_undo_that_was_over_is_not_done_again);
	tcase_add_loop_test(c, a_restore_that_was_cut_off_behind_its_record_is_finished, 0, 3);
	tcase_add_test(
		c, a_directory_that_had_made_room_has_its_place_after_a_restore_that_was_cut_off);
	tcase_add_test(c, a_restore_without_a_record_is_done_when_it_comes_again);
	tcase_add_test(c, what_was_equal_is_known_when_the_state_that_was_restored_is_gone);
	tcase_add_test(c, and_when_somebody_dies_after_that);
	tcase_add_test(c, the_root_goes_on_though_the_state_that_was_left_is_gone);
	tcase_add_test(c, nodes_that_restores_settled_stay_so);
	tcase_add_test(c, of_two_records_with_one_number_one_counts);
	tcase_add_test(c, no_node_id_comes_again);
	tcase_add_test(c, what_was_written_to_a_replaced_file_is_an_error_and_not_a_mixture);
	tcase_add_test(c, what_is_open_stays_so_and_nothing_else);
	return run_case("resume", c);
}
