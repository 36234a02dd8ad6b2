/* SPDX-License-Identifier: Apache-2.0 */

/* The rounds that gc makes between its steps, for whoever syncs meanwhile. */

#include "tests/unit/store_fixture.h"

#include <stdatomic.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>

#include "store/base/fault.h"
#include "store/stage.h"
#include "store/store_internal.h"

/* Somebody who changes a branch, and waits until that is durable. */
struct writer {
	struct branch *branch;
	uint8_t bytes[BLOB_MAX];
	pthread_t thread;
	bool began;
	atomic_bool synced;
	uint64_t gc_ns; /* when gc began, with a round */
};

static void *write_and_sync(void *arg)
{
	struct writer *w = arg;
	uint64_t dropped;

	change_blob(w->branch, 100001, "short-lived", 11);
	dropped = checkpoint(w->branch, NULL);
	forget(w->branch, 100001);
	change_blob(w->branch, 100000, w->bytes, sizeof(w->bytes));
	ck_ok(snap_drop(store, dropped));
	ck_ok(store_sync(store));
	atomic_store(&w->synced, true);
	return NULL;
}

/* Returns when he waits, and after as long as gc's first round took: another may be made then. */
static void writer_begin(struct writer *w)
{
	const uint64_t us = (now_ns() - w->gc_ns) / 1000;
	bool waits = false;

	w->began = true;
	ck_assert_int_eq(pthread_create(&w->thread, NULL, write_and_sync, w), 0);
	while (!waits) {
		LOCK_GUARD(&store->table);
		waits = store->sync_wanted > store->sync_done;
	}
	(void)usleep((useconds_t)us + 1000);
}

/* He should have been served: all that is left is to wake up, for which a minute is enough. */
static void writer_expect(struct writer *w)
{
	for (unsigned ms = 0; ms < 60000 && !atomic_load(&w->synced); ms++)
		(void)usleep(1000);
	ck_assert_msg(atomic_load(&w->synced), "a sync waits for all of gc");
}

static void writer_end(struct writer *w)
{
	const struct key k = key_at(100000);
	uint8_t got[BLOB_MAX];
	struct val v;

	ck_assert(w->began);
	ck_assert_int_eq(pthread_join(w->thread, NULL), 0);
	branch_close(w->branch);
	expect_sound(NULL);
	store_reopen();
	w->branch = branch_at("main");
	ck_ok(tree_get(w->branch->tree, &k, &v));
	ck_assert_int_eq(v.ref.kind, REF_CHUNK);
	ck_ok(chunk_read(store_chunks(store), &v.ref.name, 0, got, sizeof(got)));
	ck_assert_mem_eq(got, w->bytes, sizeof(got));
	branch_close(w->branch);
}

static void while_sweeping(void *arg, const char *what, uint64_t done, uint64_t total)
{
	struct writer *w = arg;

	if (strcmp(what, "sweeping") != 0)
		return;
	if (!w->began)
		writer_begin(w);
	if (done > total / 10 * 9)
		writer_expect(w);
}

START_TEST(who_syncs_while_packs_are_rewritten_waits_for_a_step)
{
	enum { BLOBS = 400 }; /* 50 MiB, of which a third is dead: three steps of at most 16 MiB */
	struct writer w = { .branch = branch_make("main") };
	const struct progress progress = { .fn = while_sweeping, .arg = &w };
	uint8_t bytes[BLOB_MAX];
	struct gc_stats stats;
	uint64_t one;

	for (unsigned i = 0; i < BLOBS; i++) {
		scratch_fill(bytes, sizeof(bytes), i);
		change_blob(w.branch, i + 1, bytes, sizeof(bytes));
	}
	one = checkpoint(w.branch, NULL);
	for (unsigned i = 0; i < BLOBS; i += 3)
		forget(w.branch, i + 1);
	(void)checkpoint(w.branch, NULL);
	ck_ok(store_sync(store));
	ck_ok(snap_drop(store, one));

	scratch_fill(w.bytes, sizeof(w.bytes), 0); /* what goes is written again */
	w.gc_ns = now_ns();
	ck_ok(store_gc(store, &progress, &stats));
	ck_assert_uint_ge(stats.chunks_dropped, BLOBS / 3);
	ck_assert_uint_eq(stats.packs_rewritten, 1);
	/* what he wrote meanwhile is not what gc has left */
	ck_assert_uint_ge(stats.bytes_before - stats.bytes_after, BLOBS / 3 * sizeof(bytes));
	writer_end(&w);
}
END_TEST

/* Two states of more blobs than are marked in one step. */
static void make_two_states(struct branch *b)
{
	enum { BLOBS = 1100 };

	for (unsigned state = 0; state < 2; state++) {
		for (unsigned i = 0; i < BLOBS; i++) {
			const unsigned bytes[2] = { state, i };

			change_blob(b, i + 1, bytes, sizeof(bytes));
		}
		(void)checkpoint(b, NULL);
	}
	ck_ok(store_sync(store));
}

static void while_marking(void *arg, const char *what, uint64_t done, uint64_t total)
{
	struct writer *w = arg;
	uint64_t unsealed, disk;

	if (strcmp(what, "marking") != 0)
		return;
	if (!w->began) {
		writer_begin(w);
	} else if (done == 2) {
		writer_expect(w);
		stage_stats(store->stage, &unsealed, &disk);
		ck_assert_uint_eq(unsealed, 0); /* what he dropped is let go of, too */
	}
	LOCK_GUARD(&store->table);
	ck_assert(store->gc_admits); /* imports need not wait, either */
}

START_TEST(who_syncs_while_states_are_walked_does_not_wait_for_all)
{
	struct writer w = { .branch = branch_make("main") };
	const struct progress progress = { .fn = while_marking, .arg = &w };
	struct gc_stats stats;

	scratch_fill(w.bytes, sizeof(w.bytes), 0);
	make_two_states(w.branch);
	w.gc_ns = now_ns();
	ck_ok(store_gc(store, &progress, &stats));
	ck_assert_uint_eq(stats.chunks_dropped, 0);
	writer_end(&w);
}
END_TEST

/* Whoever syncs while states are walked, and is to wait. */
struct waiter {
	bool full, began; /* the disk: he begins only then */
	pthread_t thread;
};

static void *sync_now(void *arg)
{
	(void)store_sync(store); /* after all that failed it may, too */
	return NULL;
}

static void sync_while_marking(void *arg, const char *what, uint64_t done, uint64_t total)
{
	struct waiter *w = arg;
	bool waits = false;

	if (strcmp(what, "marking") != 0)
		return;
	fault_disarm();
	if (done == 1 && (!w->full || store->noted_error == -ENOSPC)) {
		w->began = true;
		atomic_store(&store->retry_ns, 0); /* as if the second after a failure was over */
		ck_assert_int_eq(pthread_create(&w->thread, NULL, sync_now, NULL), 0);
		while (!waits) {
			LOCK_GUARD(&store->table);
			waits = store->sync_wanted > store->sync_done;
		}
	} else if (done == 2 && w->began) {
		LOCK_GUARD(&store->table);
		ck_assert_uint_gt(store->sync_wanted, store->sync_done);
		ck_assert(store->gc_admits == !w->full);
	}
}

/* How long the next sync of a file seems to take, and how far clocks are ahead since. */
static _Atomic int64_t next_sync_s, ahead_s;

/* What the disk has left, or as much as it has. */
static _Atomic uint64_t disk_room = UINT64_MAX;

/* These stand for libc's. */
int fdatasync(int fd)
{
	atomic_fetch_add(&ahead_s, atomic_exchange(&next_sync_s, 0));
	return (int)syscall(SYS_fdatasync, fd);
}

int clock_gettime(clockid_t clock, struct timespec *ts)
{
	int r = (int)syscall(SYS_clock_gettime, clock, ts);

	ts->tv_sec += (time_t)atomic_load(&ahead_s);
	return r;
}

int fstatvfs(int fd, struct statvfs *ret)
{
	struct statfs st;
	int r = (int)syscall(SYS_fstatfs, fd, &st);

	*ret = (struct statvfs){ .f_frsize = 1, .f_bavail = st.f_bavail * (uint64_t)st.f_frsize };
	if (atomic_load(&disk_room) != UINT64_MAX)
		ret->f_bavail = atomic_load(&disk_room);
	return r;
}

START_TEST(a_long_round_is_not_followed_by_the_next_at_once)
{
	enum { LONG_S = 3600 }; /* longer than all else takes on any machine */
	struct waiter w = { .full = false };
	const struct progress progress = { .fn = sync_while_marking, .arg = &w };
	struct branch *b = branch_make("main");
	struct gc_stats stats;

	make_two_states(b);
	change(b, 5000, "for the round");
	atomic_store(&next_sync_s, LONG_S);
	ck_ok(store_gc(store, &progress, &stats));
	ck_assert_int_eq(atomic_exchange(&ahead_s, 0), LONG_S);
	ck_assert(w.began);
	ck_assert_int_eq(pthread_join(w.thread, NULL), 0);
	/* nor does its time count for the next gc, which waits ten times as long as one took */
	ck_assert_uint_lt(store->gc_next_ns - store->gc_ended_ns, LONG_S * UINT64_C(1000000000));
	branch_close(b);
}
END_TEST

START_TEST(on_a_full_disk_no_round_is_made_before_the_sweep)
{
	struct waiter w = { .full = true };
	const struct progress progress = { .fn = sync_while_marking, .arg = &w };
	struct branch *b = branch_make("main");
	uint8_t bytes[5000];
	struct gc_stats stats;

	make_two_states(b);
	for (int n = 0; !w.began; n++) { /* one of the calls stores what is to be saved */
		ck_assert_int_lt(n, 1000);
		scratch_fill(bytes, sizeof(bytes), (unsigned)n);
		change_blob(b, 5000, bytes, sizeof(bytes));
		fault_arm(n, 1, ENOSPC);
		(void)store_gc(store, &progress, &stats); /* it may fail */
		fault_disarm();
	}
	ck_assert_int_eq(pthread_join(w.thread, NULL), 0);
	ck_ok(store_sync(store));
	expect_sound(NULL);
	branch_close(b);
}
END_TEST

/* ---- when one runs by itself ---- */

/* As if `grown` bytes had come since a gc that left `kept`. Does one run now? */
static bool runs_by_itself(uint64_t grown, uint64_t kept)
{
	uint64_t before;

	{
		LOCK_GUARD(&store->table);
		before = store->gc_ended_ns;
		store->gc_appended = chunks_appended(store->chunks) - grown;
		store->gc_kept = kept;
		store->gc_next_ns = 0;
	}
	gc_if_due(store);
	LOCK_GUARD(&store->table);
	return store->gc_ended_ns != before;
}

/* From now on the disk has so many bytes for whoever writes. */
static void leave_room(uint64_t bytes)
{
	const uint64_t plenty = UINT64_C(1) << 50;
	uint64_t room;

	atomic_store(&disk_room, plenty);
	ck_ok(stage_room(store->stage, &room));
	atomic_store(&disk_room, plenty - room + bytes);
}

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

START_TEST(a_gc_runs_earlier_when_the_disk_is_short)
{
	struct gc_stats stats;

	ck_ok(store_sync(store));
	ck_ok(store_gc(store, NULL, &stats));
	leave_room(500 * MIB);
	ck_assert(!runs_by_itself(500 * MIB, 10 * GIB)); /* half would not be used up */
	ck_assert(runs_by_itself(501 * MIB, 10 * GIB));
	leave_room(GIB);
	ck_assert(!runs_by_itself(5 * GIB, 10 * GIB)); /* it is not short */
	leave_room(GIB - 1);
	ck_assert(runs_by_itself(5 * GIB, 10 * GIB));
	leave_room(0);
	ck_assert(!runs_by_itself(16 * MIB - 1, 10 * GIB)); /* nobody would be helped */
	ck_assert(runs_by_itself(16 * MIB, 10 * GIB));
	ck_assert_ptr_null(strstr(scratch.last_note, "gc:")); /* that freed nothing */
	atomic_store(&disk_room, UINT64_MAX);
}
END_TEST

START_TEST(after_an_open_all_that_there_is_may_be_garbage)
{
	enum { BLOBS = 17 * MIB / BLOB_MAX };
	struct branch *b = branch_make("main");
	uint8_t bytes[BLOB_MAX];
	uint64_t id;

	for (unsigned i = 0; i < BLOBS; i++) {
		scratch_fill(bytes, sizeof(bytes), i);
		change_blob(b, i + 1, bytes, sizeof(bytes));
	}
	id = checkpoint(b, NULL);
	for (unsigned i = 0; i < BLOBS; i++)
		forget(b, i + 1);
	ck_ok(store_sync(store));
	ck_ok(snap_drop(store, id));
	branch_close(b);
	store_reopen();

	leave_room(10 * MIB);
	gc_if_due(store);
	{
		LOCK_GUARD(&store->table);
		while (store->gc) /* the sealer was faster */
			pthread_cond_wait(&store->done, &store->table);
		ck_assert_uint_ne(store->gc_ended_ns, 0);
	}
	ck_assert_ptr_nonnull(strstr(scratch.last_note, "gc: freed 1"));
	atomic_store(&disk_room, UINT64_MAX);
}
END_TEST

START_TEST(none_runs_by_itself_before_its_time_or_when_nothing_can_be_committed)
{
	struct gc_stats stats;
	uint64_t ended;

	ck_ok(store_sync(store));
	ck_ok(store_gc(store, NULL, &stats));
	for (int failed = 0; failed < 2; failed++) {
		{
			LOCK_GUARD(&store->table);
			ended = store->gc_ended_ns;
			store->gc_kept = 0;
			store->gc_appended = chunks_appended(store->chunks) - GIB;
			store->gc_next_ns = failed ? 0 : now_ns() + 3600 * UINT64_C(1000000000);
			store->failed = failed;
		}
		gc_if_due(store);
		LOCK_GUARD(&store->table);
		ck_assert_uint_eq(store->gc_ended_ns, ended);
		store->failed = false;
	}
	ck_assert(runs_by_itself(GIB, 0));
}
END_TEST

/* ---- who is refused ---- */

struct refused {
	pthread_t thread;
	bool began;
	int result;
	useconds_t moment; /* so that he asks before this one ends */
};

static void *ask_for_room(void *arg)
{
	struct refused *q = arg;

	q->result = store_make_room(store, 1);
	return NULL;
}

static void refuse_and_take_long(void *arg, const char *what, uint64_t done, uint64_t total)
{
	struct refused *q = arg;

	if (q->began)
		return;
	q->began = true;
	atomic_store(&store->retry_ns, now_ns()); /* he does not wait for a round */
	{
		LOCK_GUARD(&store->table);
		store->collectable = true;
	}
	ck_ok(pthread_create(&q->thread, NULL, ask_for_room, q));
	(void)usleep(q->moment);
	atomic_fetch_add(&ahead_s, 3600);
}

START_TEST(who_was_refused_tries_again_after_one_that_ended_meanwhile)
{
	struct refused q = { .moment = 50000 };
	const struct progress progress = { .fn = refuse_and_take_long, .arg = &q };
	struct gc_stats stats;

	branch_close(branch_make("main"));
	for (;;) {
		struct branch *b = branch_at("main");

		change(b, 1, "one");
		q.began = false;
		ck_ok(store_gc(store, &progress, &stats));
		ck_assert(q.began);
		ck_assert_int_eq(pthread_join(q.thread, NULL), 0);
		atomic_store(&ahead_s, 0);
		branch_close(b);
		if (q.result == 0 || q.moment > 10000000)
			break;
		q.moment *= 2; /* on a busy machine he came too late */
		store_reopen();
	}
	ck_ok(q.result); /* though the next one is in ten hours */
}
END_TEST

START_TEST(a_gc_gives_back_what_was_dropped_before_it_was_sealed)
{
	struct branch *b = branch_make("main"), *other = branch_make("other");
	uint64_t id, unsealed, disk;
	uint8_t bytes[BLOB_MAX];
	struct gc_stats stats;

	for (unsigned i = 0; i < 2; i++) {
		scratch_fill(bytes, sizeof(bytes), i);
		change_blob(i ? b : other, 1, bytes, sizeof(bytes));
	}
	id = checkpoint(b, NULL);
	forget(b, 1);
	(void)checkpoint(b, NULL);
	ck_ok(snap_drop(store, id));
	branch_close(other);
	ck_ok(branch_drop(store, "other"));
	ck_ok(store_gc(store, NULL, &stats));
	stage_stats(store->stage, &unsealed, &disk);
	ck_assert_uint_eq(unsealed, 0);
	ck_assert_uint_lt(disk, 2 * BLOB_MAX);
	branch_close(b);
}
END_TEST

START_TEST(a_gc_runs_when_as_much_came_as_the_last_one_left)
{
	struct branch *b = branch_make("main");
	struct gc_stats stats;
	uint64_t room;

	make_two_states(b);
	branch_close(b);
	ck_ok(store_gc(store, NULL, &stats));
	ck_ok(stage_room(store->stage, &room));
	ck_assert(!runs_by_itself(0, 0));
	ck_assert(room < GIB || !runs_by_itself(2 * GIB, 3 * GIB)); /* else the disk is short */
	ck_assert(runs_by_itself(GIB, 0));
	ck_assert(runs_by_itself(3 * GIB, 3 * GIB));
	ck_ok(store_import_begin(store)); /* whose chunks no state has yet */
	ck_assert(!runs_by_itself(3 * GIB, 3 * GIB));
	store_import_end(store);
	ck_assert(runs_by_itself(3 * GIB, 3 * GIB));
}
END_TEST

static void ended(int r, uint64_t after, uint64_t meanwhile, uint64_t ret[static 2])
{
	const struct sweep_stats stats = { .bytes_before = 9000, .bytes_after = after,
					   .bytes_meanwhile = meanwhile };

	collect_ended(store, r, now_ns(), &stats);
	LOCK_GUARD(&store->table);
	ret[0] = store->gc_kept;
	ret[1] = chunks_appended(store->chunks) - store->gc_appended;
}

START_TEST(what_a_gc_left_is_what_the_next_one_is_measured_by)
{
	uint64_t got[2];

	ck_ok(store_sync(store)); /* nothing more comes by itself */
	ended(0, 5000, 300, got);
	ck_assert_uint_eq(got[0], 5000);
	ck_assert_uint_eq(got[1], 300); /* which may be garbage by now */
	ended(-EIO, 0, 0, got);
	ck_assert_uint_eq(got[0], 5000);
}
END_TEST

int main(void)
{
	static const TTest *tests[11];
	size_t n = 0;

	tests[n++] = who_syncs_while_packs_are_rewritten_waits_for_a_step;
	tests[n++] = who_syncs_while_states_are_walked_does_not_wait_for_all;
	tests[n++] = a_long_round_is_not_followed_by_the_next_at_once;
	tests[n++] = on_a_full_disk_no_round_is_made_before_the_sweep;
	tests[n++] = a_gc_runs_when_as_much_came_as_the_last_one_left;
	tests[n++] = a_gc_runs_earlier_when_the_disk_is_short;
	tests[n++] = after_an_open_all_that_there_is_may_be_garbage;
	tests[n++] = none_runs_by_itself_before_its_time_or_when_nothing_can_be_committed;
	tests[n++] = who_was_refused_tries_again_after_one_that_ended_meanwhile;
	tests[n++] = a_gc_gives_back_what_was_dropped_before_it_was_sealed;
	tests[n++] = what_a_gc_left_is_what_the_next_one_is_measured_by;
	return scratch_run("gc_rounds", tests, n, store_setup, store_teardown);
}
