/* SPDX-License-Identifier: Apache-2.0 */

/* What gc takes and what it leaves, and when it waits or runs. Replays: test_gc_replay.c. */

#include "tests/unit/store_fixture.h"

#include <stdatomic.h>

#include "store/base/fault.h"
#include "store/chunk_internal.h"
#include "store/nameset.h"
#include "store/store_internal.h"

START_TEST(an_empty_store_has_nothing_to_collect)
{
	struct gc_stats stats = collect();

	ck_assert_uint_eq(stats.chunks_dropped, 0);
}
END_TEST

START_TEST(what_a_dropped_snapshot_alone_had_goes)
{
	struct branch *b = branch_make("main");
	struct check_stats check;
	struct gc_stats stats;
	uint8_t big[100000];
	uint64_t one, two;

	scratch_fill(big, sizeof(big), 1);
	change(b, 1, "kept");
	change_blob(b, 2, big, sizeof(big));
	one = checkpoint(b, NULL);
	forget(b, 2);
	two = checkpoint(b, NULL);
	ck_ok(store_sync(store));
	stats = collect();
	ck_assert_uint_eq(stats.chunks_dropped, 0);

	ck_ok(snap_drop(store, one));
	stats = collect();
	ck_assert_uint_eq(stats.chunks_dropped, 2); /* its leaf and the data */
	ck_assert_uint_lt(stats.bytes_after, stats.bytes_before);
	expect_sound(&check);
	ck_assert_uint_eq(check.unreferenced, 0);
	expect_in_snap(two, 1, "kept");
	branch_close(b);
	store_reopen();
	expect_in_snap(two, 1, "kept");
	expect_sound(NULL);
}
END_TEST

START_TEST(live_states_and_all_snapshots_stay)
{
	struct branch *b = branch_make("main");
	uint64_t ids[10];
	uint8_t data[5000];

	for (unsigned i = 0; i < 10; i++) {
		fill(b, i * 100, i * 100 + 300, i);
		scratch_fill(data, sizeof(data), i);
		change_blob(b, 5000 + i, data, sizeof(data));
		ids[i] = checkpoint(b, NULL);
	}
	change(b, 1, "not checkpointed");
	(void)collect();
	expect_sound(NULL);
	expect_text(b, 1, "not checkpointed");
	for (unsigned i = 0; i < 10; i += 2)
		ck_ok(snap_drop(store, ids[i]));
	ck_assert_uint_gt(collect().chunks_dropped, 0);
	expect_sound(NULL);
	branch_close(b);
	store_reopen();
	expect_sound(NULL);
	for (unsigned i = 1; i < 10; i += 2)
		expect_in_snap(ids[i], 100000, NULL);
}
END_TEST

START_TEST(a_blob_that_was_written_but_not_saved_stays)
{
	struct branch *b = branch_make("main");
	const struct key k = key_at(9);
	uint8_t data[5000], got[5000];
	struct val v;

	scratch_fill(data, sizeof(data), 1);
	change_blob(b, 9, data, sizeof(data));
	(void)collect();
	ck_ok(tree_get(b->tree, &k, &v));
	ck_assert_int_eq(v.ref.kind, REF_BLOB);
	ck_ok(blob_read(v.ref.blob, 0, got, sizeof(got)));
	ck_assert_mem_eq(got, data, sizeof(data));
	branch_close(b);
	store_reopen();

	_cleanup_(chunkbuf_unrefp) struct chunkbuf *buf = NULL;
	b = branch_at("main");
	ck_ok(tree_get(b->tree, &k, &v));
	ck_assert_int_eq(v.ref.kind, REF_CHUNK);
	ck_ok(chunk_load(store_chunks(store), &v.ref.name, &buf));
	ck_assert_mem_eq(buf->data, data, sizeof(data));
	branch_close(b);
}
END_TEST

/* A blob's chunk, once it is one. */
static struct name saved_name(struct branch *b, uint64_t a)
{
	const struct key k = key_at(a);
	struct val v;
	struct name name;

	ck_ok(tree_get(b->tree, &k, &v));
	if (v.ref.kind == REF_CHUNK)
		return v.ref.name;
	ck_assert(blob_name(v.ref.blob, &name));
	return name;
}

START_TEST(what_is_pinned_or_open_though_dropped_stays)
{
	struct branch *b = branch_make("main"), *other = branch_make("other");
	_cleanup_(root_unrefp) struct root *root = NULL;
	struct name pinned, open;
	uint8_t data[5000];
	uint64_t id;

	scratch_fill(data, sizeof(data), 1);
	change_blob(b, 1, data, sizeof(data));
	id = checkpoint(b, NULL);
	ck_ok(store_sync(store));
	pinned = saved_name(b, 1);
	ck_ok(snap_root(store, id, &root));
	ck_ok(store_pin_root(store, root));
	forget(b, 1);
	ck_ok(snap_drop(store, id));

	scratch_fill(data, sizeof(data), 2);
	change_blob(other, 1, data, sizeof(data));
	ck_ok(store_sync(store));
	open = saved_name(other, 1);
	ck_ok(branch_drop(store, "other"));

	(void)collect();
	ck_ok(chunk_find(store_chunks(store), &pinned));
	ck_ok(chunk_find(store_chunks(store), &open));
	store_unpin_root(store, root);
	branch_close(other);
	(void)collect();
	ck_err(chunk_find(store_chunks(store), &pinned), ABSENT);
	ck_err(chunk_find(store_chunks(store), &open), ABSENT);
	branch_close(b);
}
END_TEST

START_TEST(dropped_branches_give_back_their_space)
{
	struct branch *b = branch_make("main"), *other = branch_make("other");
	struct check_stats check;

	fill(b, 1, 2000, 1);
	fill(other, 1, 2000, 2);
	branch_close(other);
	ck_ok(store_sync(store));
	ck_ok(branch_drop(store, "other"));
	ck_assert_uint_gt(collect().chunks_dropped, 100);
	expect_sound(&check);
	ck_assert_uint_eq(check.unreferenced, 0);
	branch_close(b);
	expect_sound(NULL);
}
END_TEST

START_TEST(an_import_keeps_gc_away)
{
	struct gc_stats stats;
	struct name name;
	char data[] = "imported, and not reachable yet";

	ck_ok(store_import_begin(store));
	ck_ok(chunk_put(store_chunks(store), CHUNK_DATA, data, sizeof(data), &name));
	ck_err(store_gc(store, NULL, &stats), -EBUSY);
	ck_ok(store_sync(store)); /* sealing goes on */
	store_import_end(store);
	stats = collect();
	ck_assert_uint_eq(stats.chunks_dropped, 1);
	ck_err(chunk_find(store_chunks(store), &name), ABSENT);
}
END_TEST

/* Somebody who imports beside gc. */
struct importer {
	uint8_t met[BLOB_MAX]; /* of a chunk that nothing has any more, in a pack of its own */
	struct name names[3];
	bool began, ended;
};

static int meet(struct importer *im)
{
	return chunk_put(store_chunks(store), CHUNK_DATA, im->met, sizeof(im->met), &im->names[0]);
}

static void import_meanwhile(void *arg, const char *what, uint64_t done, uint64_t total)
{
	struct importer *im = arg;
	struct chunks *c = store_chunks(store);

	if (!im->began) {
		im->began = true;
		ck_assert_str_eq(what, "marking");
		ck_ok(store_import_begin(store)); /* does not wait */
		ck_err(meet(im), EXISTS);
		ck_ok(chunk_put(c, CHUNK_DATA, "while marking", 13, &im->names[1]));
	} else if (!im->ended && strcmp(what, "sweeping") == 0) {
		im->ended = true;
		ck_err(meet(im), EXISTS);
		ck_ok(chunk_put(c, CHUNK_DATA, "while sweeping", 14, &im->names[2]));
	}
}

START_TEST(an_import_that_begins_while_gc_runs_goes_on_beside_it)
{
	struct importer im = { .began = false };
	const struct progress progress = { .fn = import_meanwhile, .arg = &im };
	struct branch *b = branch_make("main");
	uint8_t got[BLOB_MAX];
	struct gc_stats stats;
	uint64_t id;

	change(b, 1, "stays");
	(void)collect(); /* each gc lets a new pack begin */
	scratch_fill(im.met, sizeof(im.met), 1);
	change_blob(b, 2, im.met, sizeof(im.met));
	id = checkpoint(b, NULL);
	(void)collect();
	forget(b, 2);
	(void)checkpoint(b, NULL);
	ck_ok(store_sync(store));
	ck_ok(snap_drop(store, id));

	ck_ok(store_gc(store, &progress, &stats));
	ck_assert(im.ended);
	ck_assert_uint_eq(stats.chunks_dropped, 1); /* the leaf */
	ck_ok(store_sync(store));
	ck_ok(chunk_read(store_chunks(store), &im.names[0], 0, got, sizeof(got)));
	ck_assert_mem_eq(got, im.met, sizeof(got));
	for (unsigned i = 0; i < 3; i++)
		ck_ok(chunk_find(store_chunks(store), &im.names[i]));
	expect_sound(NULL);
	ck_err(store_gc(store, NULL, &stats), -EBUSY);
	store_import_end(store);
	ck_assert_uint_eq(collect().chunks_dropped, 3);
	branch_close(b);
}
END_TEST

static void *begin_import(void *arg)
{
	ck_ok(store_import_begin(store));
	atomic_store((atomic_bool *)arg, true);
	return NULL;
}

/* What it put before would be sealed, and not written down. */
START_TEST(an_import_waits_until_gc_has_listed_what_to_keep)
{
	atomic_bool began = false;
	pthread_t thread;

	(void)collect(); /* it let imports in; the next one lets none in at first */
	ck_ok(claim_all(store));
	ck_assert_int_eq(pthread_create(&thread, NULL, begin_import, &began), 0);
	(void)usleep(50000);
	ck_assert(!atomic_load(&began));
	claim_end(store);
	ck_assert_int_eq(pthread_join(thread, NULL), 0);
	store_import_end(store);
}
END_TEST

static void wait_for_import(void *arg, const char *what, uint64_t done, uint64_t total)
{
	while (!atomic_load((atomic_bool *)arg))
		(void)usleep(1000);
}

static void *sync_store(void *arg)
{
	ck_ok(store_sync(store));
	return NULL;
}

START_TEST(who_syncs_goes_on_when_a_check_only_keeps_gc_away)
{
	struct branch *b = branch_make("main");
	pthread_t thread;

	claim_records(store);
	change(b, 1, "waits");
	ck_assert_int_eq(pthread_create(&thread, NULL, sync_store, NULL), 0);
	(void)usleep(50000); /* now the sealer waits, mostly */
	claim_share(store);
	ck_assert_int_eq(pthread_join(thread, NULL), 0);
	store_import_end(store);
	branch_close(b);
}
END_TEST

START_TEST(an_import_that_waited_begins_before_the_end_of_gc)
{
	atomic_bool began = false;
	const struct progress progress = { .fn = wait_for_import, .arg = &began };
	struct gc_stats stats;
	pthread_t thread;

	branch_close(branch_make("main"));
	ck_ok(claim_all(store));
	ck_assert_int_eq(pthread_create(&thread, NULL, begin_import, &began), 0);
	(void)usleep(50000); /* now it waits, mostly */
	ck_ok(gc_claimed(store, &progress, &stats));
	ck_assert(atomic_load(&began));
	claim_end(store);
	ck_assert_int_eq(pthread_join(thread, NULL), 0);
	store_import_end(store);
}
END_TEST

static void stop_at_once(void *arg, const char *what, uint64_t done, uint64_t total)
{
	*(bool *)arg = true;
}

START_TEST(a_cancelled_gc_removes_nothing)
{
	struct branch *b = branch_make("main");
	bool cancel = true;
	const struct progress progress = { .fn = stop_at_once, .arg = &cancel, .cancel = &cancel };
	struct gc_stats stats;
	uint64_t id;

	fill(b, 1, 1000, 1);
	id = checkpoint(b, NULL);
	ck_err(store_gc(store, &progress, &stats), -ERR_CANCELLED);
	ck_assert(!atomic_load(&store->chunks->collecting)); /* else each put is written down */
	expect_in_snap(id, 5000, NULL);
	expect_sound(NULL);
	(void)collect();
	branch_close(b);
}
END_TEST

START_TEST(a_store_that_is_about_to_be_closed_begins_no_gc)
{
	struct branch *b = branch_make("main");
	struct gc_stats stats;
	uint64_t one;

	change(b, 1, "one");
	one = checkpoint(b, NULL);
	change(b, 1, "two");
	(void)checkpoint(b, NULL);
	ck_ok(store_sync(store));
	ck_ok(snap_drop(store, one));
	ck_ok(store_sync(store));
	store_stop_gc(store);
	ck_err(store_make_room(store, 1), ABSENT);
	ck_err(store_gc(store, NULL, &stats), -ERR_CANCELLED);
	branch_close(b);
	store_reopen();
	ck_assert_uint_gt(collect().chunks_dropped, 0);
}
END_TEST

START_TEST(room_is_made_once_for_what_is_garbage_now)
{
	struct branch *b = branch_make("main");
	uint8_t big[100000];
	uint64_t id;

	(void)collect();
	scratch_fill(big, sizeof(big), 1);
	change_blob(b, 1, big, sizeof(big));
	id = checkpoint(b, NULL);
	forget(b, 1);
	(void)checkpoint(b, NULL);
	ck_ok(snap_drop(store, id));
	ck_ok(store_make_room(store, 1)); /* what was dropped just now is committed first */
	change(b, 2, "more");
	ck_err(store_make_room(store, UINT64_MAX), ABSENT); /* more than there is */
	ck_ok(store_make_room(store, 1));
	ck_err(store_make_room(store, 1), ABSENT); /* nothing was committed since */
	ck_assert_uint_eq(collect().chunks_dropped, 0);
	branch_close(b);
}
END_TEST

/* Who finds no room while gc runs, and has removed something since it listed what to keep. */
struct refused {
	struct branch *b;
	uint64_t snap;
	pthread_t thread;
	int result;
	bool began;
	_Atomic bool answered;
};

static void *ask_for_room(void *arg)
{
	struct refused *q = arg;

	q->result = store_make_room(store, 1);
	atomic_store(&q->answered, true);
	return NULL;
}

static void refuse_meanwhile(void *arg, const char *what, uint64_t done, uint64_t total)
{
	const struct timespec moment = { .tv_nsec = 50000000 };
	struct refused *q = arg;

	if (q->began)
		return;
	q->began = true;
	forget(q->b, 2);
	ck_ok(snap_drop(store, q->snap));
	/* As after a failure to save: it does not wait for a round first. */
	atomic_store(&store->retry_ns, now_ns());
	{
		LOCK_GUARD(&store->table);
		store->collectable = true;
	}
	ck_ok(pthread_create(&q->thread, NULL, ask_for_room, q));
	nanosleep(&moment, NULL); /* so that it asks before this one ends */
}

START_TEST(who_is_refused_while_one_runs_is_helped_by_the_next)
{
	/* After a longer one, as on a busy machine, nobody waits for the next: PATIENCE_MAX_NS. */
	const uint64_t longest = 2000000000;
	struct refused q = { .b = branch_make("main") };
	const struct progress progress = { .fn = refuse_meanwhile, .arg = &q };
	uint8_t bytes[BLOB_MAX];
	struct gc_stats stats;
	struct name name;
	uint64_t began, took, seed = 0;

	do {
		scratch_fill(bytes, sizeof(bytes), ++seed);
		change_blob(q.b, 2, bytes, sizeof(bytes));
		q.snap = checkpoint(q.b, NULL);
		q.began = false;
		ck_ok(store_sync(store));
		ck_err(chunk_put(store_chunks(store), CHUNK_DATA, bytes, sizeof(bytes), &name),
		       EXISTS);
		began = now_ns();
		ck_ok(store_gc(store, &progress, &stats));
		took = now_ns() - began;
		ck_assert(q.began);
		pthread_join(q.thread, NULL);
		ck_ok(q.result);
	} while (took > longest);
	ck_err(chunk_find(store_chunks(store), &name), ABSENT);
	branch_close(q.b);
}
END_TEST

static void refuse_while_it_sweeps(void *arg, const char *what, uint64_t done, uint64_t total)
{
	const struct timespec moment = { .tv_nsec = 50000000 };
	struct refused *q = arg;

	if (q->began || strcmp(what, "sweeping") != 0)
		return;
	q->began = true;
	ck_assert(!store->collectable);
	atomic_store(&store->retry_ns, now_ns()); /* as above */
	ck_ok(pthread_create(&q->thread, NULL, ask_for_room, q));
	nanosleep(&moment, NULL);
	ck_assert(!atomic_load(&q->answered));
}

START_TEST(who_is_refused_while_one_runs_that_knows_all_waits_for_its_end)
{
	struct branch *b = branch_make("main");
	struct refused q = { .b = b };
	const struct progress progress = { .fn = refuse_while_it_sweeps, .arg = &q };
	struct gc_stats stats;

	change(b, 1, "one");
	ck_ok(store_gc(store, &progress, &stats));
	ck_assert(q.began);
	pthread_join(q.thread, NULL);
	ck_err(q.result, ABSENT); /* another one would find nothing */
	branch_close(b);
}
END_TEST

START_TEST(who_is_refused_waits_for_one_that_is_worth_it)
{
	const uint64_t took = 1500000000; /* ns: anybody waits ten times that, but not twenty */
	const struct sweep_stats freed = { .bytes_before = 100 << 20 };
	const struct sweep_stats nothing = { .bytes_before = 100 << 20,
					     .bytes_after = 100 << 20 };
	struct branch *b = branch_make("main");

	change(b, 1, "one");
	collect_ended(store, 0, now_ns() - took, &freed);
	ck_ok(store_make_room(store, 1));
	change(b, 1, "two");
	collect_ended(store, 0, now_ns() - 2 * took, &nothing); /* ten times as long is too long */
	ck_err(store_make_room(store, 1), ABSENT);
	collect_ended(store, -EIO, now_ns() - took, &freed);
	ck_err(store_make_room(store, 1), ABSENT);
	branch_close(b);
}
END_TEST

START_TEST(a_state_that_cannot_be_read_stops_gc)
{
	struct branch *b = branch_make("main");
	struct index_txn *txn;
	struct snap_info info;
	struct gc_stats stats;
	uint64_t one, two;

	change(b, 1, "1");
	one = checkpoint(b, NULL);
	fill(b, 1, 1000, 1);
	two = checkpoint(b, NULL);
	restore(b, one);
	branch_close(b);
	ck_ok(store_sync(store));
	ck_ok(snap_get(store, two, &info));
	ck_ok(index_begin(store->index, &txn));
	ck_ok(index_del_chunk(txn, &info.root));
	ck_ok(index_commit(&txn));
	store_reopen();

	ck_err(store_gc(store, NULL, &stats), -ERR_CHUNK_MISSING);
	ck_ok(snap_drop(store, two));
	ck_err(branch_drop(store, "none"), -ERR_BRANCH_UNKNOWN);
	ck_assert_uint_gt(collect().chunks_dropped, 0);
	expect_sound(NULL);
	expect_in_snap(one, 1, "1");
}
END_TEST

static int remember_root(void *arg, const struct branch_info *info)
{
	if (strcmp(info->name, "main") == 0)
		*(struct name *)arg = info->root;
	return 0;
}

/* Names come from the bytes alone, so the file's chunk and the node are one. */
START_TEST(a_file_with_the_bytes_of_a_node_hides_nothing_below_it)
{
	_cleanup_(chunkbuf_unrefp) struct chunkbuf *node = NULL;
	struct branch *b = branch_make("main"), *other = branch_make("other");
	struct name top;

	fill(b, 1, 2000, 1);
	branch_close(b);
	ck_ok(store_sync(store));
	ck_ok(branch_each(store, remember_root, &top));
	ck_ok(chunk_load(store_chunks(store), &top, &node));
	change_blob(other, 1, node->data, node->len);
	(void)checkpoint(other, NULL); /* snapshots are marked before branches */
	branch_close(other);
	(void)collect();
	store_reopen();
	expect_sound(NULL);
}
END_TEST

static int nth; /* call behind the last state that is walked: it meets a full disk */

static void fill_disk(void *arg, const char *what, uint64_t done, uint64_t total)
{
	if (strcmp(what, "marking") == 0 && done == total)
		fault_arm(nth, 1, ENOSPC);
}

/* What salvage would want of the packs cannot be written; the sweep makes room all the same. */
START_TEST(a_full_disk_stops_no_gc_at_the_tables)
{
	const struct progress progress = { .fn = fill_disk };
	struct branch *b = branch_make("main");
	struct gc_stats stats;
	unsigned behind = 0;
	int r = -1;

	for (nth = 0; r != 0 || fault_ticks() > nth; nth += 1 + nth / 16) {
		change(b, 1, nth % 2 ? "odd" : "even");
		scratch.last_note[0] = '\0';
		r = store_gc(store, &progress, &stats);
		fault_disarm();
		ck_assert_msg(r != -ENOSPC || !strstr(scratch.last_note, "the packs' copy"),
			      "call %d: %s", nth, scratch.last_note);
		behind += r == 0 && table_check(store->tables) == ABSENT;
	}
	ck_assert_uint_gt(behind, 0);
	branch_close(b);
	expect_sound(NULL);
}
END_TEST

START_TEST(a_name_set_finds_what_was_added)
{
	struct nameset set = { 0 };
	uint32_t number;

	for (uint32_t i = 0; i < 5000; i++) {
		struct name name = { { 0 } }; /* the zero name is a name like any other */

		put_le32(name.b + 8, i);
		ck_assert_uint_eq(nameset_find(&set, &name), NAMESET_NONE);
		ck_ok(nameset_add(&set, &name, &number));
		ck_assert_uint_eq(number, i);
		ck_err(nameset_add(&set, &name, &number), EXISTS);
		ck_assert_uint_eq(number, i);
	}
	nameset_release(&set);
}
END_TEST

int main(void)
{
	static const TTest *tests[21];
	size_t n = 0;

	tests[n++] = an_empty_store_has_nothing_to_collect;
	tests[n++] = what_a_dropped_snapshot_alone_had_goes;
	tests[n++] = live_states_and_all_snapshots_stay;
	tests[n++] = a_blob_that_was_written_but_not_saved_stays;
	tests[n++] = what_is_pinned_or_open_though_dropped_stays;
	tests[n++] = dropped_branches_give_back_their_space;
	tests[n++] = an_import_keeps_gc_away;
	tests[n++] = an_import_that_begins_while_gc_runs_goes_on_beside_it;
	tests[n++] = an_import_waits_until_gc_has_listed_what_to_keep;
	tests[n++] = who_syncs_goes_on_when_a_check_only_keeps_gc_away;
	tests[n++] = an_import_that_waited_begins_before_the_end_of_gc;
	tests[n++] = a_cancelled_gc_removes_nothing;
	tests[n++] = a_store_that_is_about_to_be_closed_begins_no_gc;
	tests[n++] = room_is_made_once_for_what_is_garbage_now;
	tests[n++] = who_is_refused_while_one_runs_is_helped_by_the_next;
	tests[n++] = who_is_refused_while_one_runs_that_knows_all_waits_for_its_end;
	tests[n++] = who_is_refused_waits_for_one_that_is_worth_it;
	tests[n++] = a_state_that_cannot_be_read_stops_gc;
	tests[n++] = a_file_with_the_bytes_of_a_node_hides_nothing_below_it;
	tests[n++] = a_full_disk_stops_no_gc_at_the_tables;
	tests[n++] = a_name_set_finds_what_was_added;
	return scratch_run("gc", tests, n, store_setup, store_teardown);
}
