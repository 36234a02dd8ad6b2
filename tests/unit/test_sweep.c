/* SPDX-License-Identifier: Apache-2.0 */

/* What a sweep takes and what it leaves: by itself, on a full disk, with readers beside it. */

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

#include "tests/unit/sweep_fixture.h"

START_TEST(nothing_dead_changes_nothing)
{
	struct sweep_stats stats;

	keep(0, N, 1);
	ck_ok(sweep(NULL, &stats));
	ck_assert_uint_eq(stats.chunks_kept, N);
	ck_assert_uint_eq(stats.chunks_dropped, 0);
	ck_assert_uint_eq(stats.packs_removed + stats.packs_rewritten, 0);
	ck_assert_uint_eq(stats.bytes_before, stats.bytes_after);
	expect_state();
}
END_TEST

START_TEST(all_dead_leaves_no_pack)
{
	struct sweep_stats stats;
	uint64_t bytes;

	keep(0, 0, 1);
	ck_ok(sweep(NULL, &stats));
	ck_assert_uint_eq(stats.chunks_dropped, N);
	ck_assert_uint_eq(stats.packs_removed, 1);
	ck_assert_uint_eq(stats.bytes_after, 0);
	ck_assert_uint_eq(count_packs(&bytes), 0);
	ck_assert_uint_eq(count_deleted_open(), 0); /* else it still takes its room */
	expect_state();
}
END_TEST

START_TEST(a_pack_without_records_goes)
{
	struct pack_header_bytes header;
	_cleanup_close_ int fd = -1;
	struct sweep_stats stats;
	uint64_t bytes;

	pack_header_put(&header, 2); /* as a crash may leave it */
	ck_ok(os_openat(s.dir_fd, "packs/00000002.pack", O_RDWR | O_CREAT, 0600, &fd));
	ck_ok(os_pwrite_full(fd, &header, sizeof(header), 0));
	scratch_close(&s);
	scratch_open(&s);
	keep(0, N, 1);
	ck_ok(sweep(NULL, &stats));
	ck_assert_uint_eq(stats.packs_removed, 1);
	ck_assert_uint_eq(count_packs(&bytes), 1);
	expect_state();
}
END_TEST

static bool all_done;

static int count_progress(void *arg, uint64_t done, uint64_t total)
{
	ck_assert_uint_le(done, total);
	all_done = done == total;
	ck_assert(!atomic_load(&s.chunks->collecting)); /* nor written down what is put */
	return 0;
}

static int stop_half_way(void *arg, uint64_t done, uint64_t total)
{
	return done > total / 2 ? -ERR_CANCELLED : 0;
}

START_TEST(a_pack_mostly_dead_is_rewritten)
{
	struct sweep_stats stats;
	uint64_t bytes;

	keep(0, N, 4);
	ck_ok(sweep(count_progress, &stats));
	ck_assert(all_done);
	ck_assert_uint_eq(stats.chunks_kept, N / 4);
	ck_assert_uint_eq(stats.packs_rewritten, 1);
	ck_assert_uint_eq(stats.packs_removed, 0); /* counted once */
	ck_assert_uint_lt(stats.bytes_after, stats.bytes_before / 3);
	ck_assert_uint_eq(count_packs(&bytes), 1);
	ck_assert_uint_eq(bytes, stats.bytes_after);
	expect_state();
	scratch_close(&s);
	scratch_open(&s);
	expect_state();
}
END_TEST

static int expect_total(void *arg, uint64_t done, uint64_t total)
{
	ck_assert_uint_eq(total, (N / 4) * record_span(LEN));
	return 0;
}

START_TEST(what_is_not_copied_is_no_progress)
{
	struct sweep_stats stats;

	(void)packs_begin_new(s.chunks->packs);
	ck_ok(chunk_put(s.chunks, CHUNK_DATA, "extra", 5, &extra));
	scratch_commit(&s); /* a pack that stays */
	keep(0, N, 4);
	ck_ok(sweep(expect_total, &stats));
	ck_assert_uint_eq(stats.packs_rewritten, 1);
}
END_TEST

START_TEST(one_that_was_stopped_is_done_by_the_next)
{
	struct sweep_stats stats;
	uint64_t bytes;

	keep(0, N, 4);
	ck_err(sweep(stop_half_way, &stats), -ERR_CANCELLED);
	expect_state();
	ck_ok(sweep(NULL, &stats));
	ck_assert_uint_eq(stats.chunks_kept, N / 4);
	ck_assert_uint_lt(stats.bytes_after, stats.bytes_before / 3);
	ck_assert_uint_eq(count_packs(&bytes), 1);
	expect_state();
}
END_TEST

START_TEST(a_pack_a_little_dead_stays)
{
	struct sweep_stats stats;

	keep(40, N, 1);
	ck_ok(sweep(NULL, &stats));
	ck_assert_uint_eq(stats.chunks_dropped, 40);
	ck_assert_uint_eq(stats.packs_rewritten, 0);
	ck_assert_uint_eq(stats.bytes_before, stats.bytes_after);
	expect_state();
}
END_TEST

START_TEST(pending_chunks_stop_a_sweep)
{
	struct sweep_stats stats;
	struct name name;

	ck_ok(chunk_put(s.chunks, CHUNK_DATA, "pending", 7, &name));
	ck_err(sweep(NULL, &stats), -EBUSY);
}
END_TEST

START_TEST(storing_goes_on_after_a_sweep)
{
	struct sweep_stats stats;
	uint8_t data[LEN];
	struct name name;

	keep(0, N, 4);
	ck_ok(sweep(NULL, &stats));
	for (uint32_t i = 0; i < N; i++) {
		data_of(i, data);
		ck_err(chunk_put(s.chunks, CHUNK_DATA, data, LEN, &name), alive[i] ? EXISTS : 0);
		ck_assert(name_eq(&name, &names[i]));
	}
	scratch_commit(&s);
	keep(0, N, 1);
	expect_state();
	keep(0, N, 7);
	ck_ok(sweep(NULL, &stats));
	expect_state();
}
END_TEST

START_TEST(a_name_given_again_reads_the_new_bytes)
{
	/* with 8 bits, another content of the same name is soon found */
	struct sweep_stats stats;
	struct name old, name;
	uint32_t i;

	hash_truncate_for_tests(8);
	ck_ok(chunk_put(s.chunks, CHUNK_DATA, "old", 3, &old));
	scratch_commit(&s);
	{
		_cleanup_(chunkbuf_unrefp) struct chunkbuf *b = NULL;

		ck_ok(chunk_load(s.chunks, &old, &b)); /* now it is in the cache */
	}
	keep(0, 0, 1);
	ck_ok(sweep(NULL, &stats));
	for (i = 0;; i++) {
		name = name_of(&i, sizeof(i), 0);
		if (name_eq(&name, &old))
			break;
	}
	ck_ok(chunk_put(s.chunks, CHUNK_DATA, &i, sizeof(i), &name));
	ck_assert(name_eq(&name, &old));
	{
		_cleanup_(chunkbuf_unrefp) struct chunkbuf *b = NULL;

		ck_ok(chunk_load(s.chunks, &name, &b));
		ck_assert_uint_eq(b->len, sizeof(i));
		ck_assert_mem_eq(b->data, &i, sizeof(i));
	}
	hash_truncate_for_tests(0);
}
END_TEST

START_TEST(a_failing_sweep_loses_nothing)
{
	struct sweep_stats stats;
	uint64_t before, after;

	keep(0, N, 4);
	(void)count_packs(&before);
	for (int n = 0;; n++) {
		int r;

		ck_assert_int_lt(n, 10000);
		fault_arm(n, 1, n % 2 ? ENOSPC : EIO);
		r = sweep(NULL, &stats);
		fault_disarm();
		for (uint32_t i = 0; i < N; i += 40) {
			struct chunk_info info = { .name = names[i] };

			ck_ok(chunk_verify(s.chunks, &info, true));
		}
		if (r == 0)
			break;
	}
	/* a record that could not be read once kept its pack: one more sweep takes it */
	ck_ok(sweep(NULL, &stats));
	(void)count_packs(&after);
	ck_assert_uint_lt(after, before / 2);
	expect_state();
	scratch_close(&s);
	scratch_open(&s);
	expect_state();
}
END_TEST

static void sweep_without(int error)
{
	struct sweep_stats stats;
	int r;

	keep(0, N, 4);
	for (int n = 0;; n++) {
		fault_arm(n, 1, error);
		r = sweep(NULL, &stats);
		fault_disarm();
		ck_assert_msg(s.notes == 0, "call %d: %s", n, s.last_note);
		if (r < 0)
			continue;
		if (fault_ticks() <= n)
			break; /* all is done */
		ck_assert_uint_eq(stats.packs_rewritten, 1);
		teardown(); /* this one call may fail */
		setup();
	}
	expect_state();
}

START_TEST(a_sweep_without_memory_says_so)
{
	sweep_without(ENOMEM);
}
END_TEST

START_TEST(a_sweep_without_descriptors_says_so)
{
	sweep_without(EMFILE);
}
END_TEST

/* What a repair gave up is in the index, with the place where it lay. */
static void give_up(uint32_t i)
{
	struct index_txn *txn;
	struct chunk_loc loc;

	ck_ok(index_find_chunk(s.index, &names[i], &loc));
	loc.codec = CODEC_LOST;
	ck_ok(index_begin(s.index, &txn));
	ck_ok(index_put_chunk(txn, &names[i], &loc));
	ck_ok(index_commit(&txn));
}

START_TEST(what_is_lost_keeps_no_pack)
{
	struct sweep_stats stats;
	uint64_t bytes;

	keep(8, 9, 1);
	give_up(8);
	ck_ok(sweep(NULL, &stats));
	ck_assert_uint_eq(stats.packs_removed, 1);
	ck_assert_uint_eq(count_packs(&bytes), 0);
	ck_assert(chunk_is_lost(s.chunks, &names[8]));
	ck_assert_msg(s.notes == 0, "%s", s.last_note);
}
END_TEST

START_TEST(what_is_lost_is_not_copied)
{
	struct sweep_stats stats;

	keep(0, N, 4);
	give_up(8);
	ck_ok(sweep(NULL, &stats));
	ck_assert_uint_eq(stats.packs_rewritten, 1);
	ck_assert(chunk_is_lost(s.chunks, &names[8]));
	ck_assert_msg(s.notes == 0, "%s", s.last_note);
}
END_TEST

START_TEST(a_pack_without_its_last_padding_is_not_rewritten_for_it)
{
	struct sweep_stats stats;
	uint64_t bytes;

	keep(0, N, 1);
	ck_ok(chunk_put(s.chunks, CHUNK_DATA, "extra", 5, &extra));
	scratch_commit(&s);
	scratch_close(&s);
	{
		_cleanup_close_ int fd = -1;
		struct stat st;

		ck_ok(os_openat(s.dir_fd, "packs/00000001.pack", O_RDWR, 0, &fd));
		ck_ok(os_fstat(fd, &st));
		ck_ok(os_ftruncate(fd, (uint64_t)st.st_size - 3)); /* 40 and 5 of 48 bytes */
	}
	scratch_open(&s);
	ck_ok(sweep(NULL, &stats));
	ck_assert_uint_eq(stats.packs_rewritten + stats.packs_removed, 0);
	ck_assert_uint_eq(count_packs(&bytes), 1);
	expect_state();
}
END_TEST

START_TEST(a_sweep_grows_the_map_when_it_is_full)
{
	struct sweep_stats stats;

	scratch_close(&s);
	ck_assert_int_eq(setenv("PLYFS_TEST_MAP_BYTES", "65536", 1), 0);
	scratch_open(&s); /* as large as what is in it */
	keep(0, N, 4);
	ck_ok(sweep(NULL, &stats));
	ck_assert_uint_eq(stats.packs_rewritten, 1);
	expect_state();
}
END_TEST

/* Each call meets the full disk in turn; the first write of the copy is one of them. */
static void sweep_on_a_full_disk(void)
{
	static const int full[] = { ENOSPC, EDQUOT };

	for (size_t i = 0; i < ARRAY_SIZE(full); i++) {
		struct sweep_stats stats = { 0 }, again;
		int r;

		for (int n = 0; stats.bytes_after >= stats.bytes_before; n++) {
			teardown();
			setup();
			keep(0, N, 4);
			fault_arm(n, 1, full[i]);
			r = sweep(NULL, &stats);
			ck_assert_int_gt(fault_ticks(), n);
			fault_disarm();
			if (r < 0 || stats.packs_rewritten > 0)
				stats.bytes_after = stats.bytes_before;
		}
		expect_state();
		/* What was given back is not there to be given back again. */
		ck_ok(sweep(NULL, &again));
		ck_assert_uint_eq(again.bytes_before, stats.bytes_after);
		expect_state();
	}
}

START_TEST(without_room_for_a_copy_holes_are_made)
{
	sweep_on_a_full_disk();
}
END_TEST

START_TEST(without_holes_a_pack_is_emptied_from_its_end_on)
{
	fault_no_holes(true);
	sweep_on_a_full_disk();
}
END_TEST

START_TEST(a_sweep_cut_short_leaves_the_last_pack_whole)
{
	/* the copy goes on in a pack of an earlier process; giving it up must not cut that one */
	struct sweep_stats stats;
	uint8_t data[LEN];
	struct chunk_info info;
	struct rlimit limit;
	struct stat st;

	keep(0, N, 4);
	{
		_cleanup_close_ int fd = -1;

		ck_ok(os_openat(s.dir_fd, "packs/00000001.pack", O_RDWR, 0, &fd));
		ck_ok(os_ftruncate(fd, UINT64_C(256) << 20)); /* full */
	}
	scratch_close(&s);
	scratch_open(&s);
	data_of(N, data);
	ck_ok(chunk_put(s.chunks, CHUNK_DATA, data, LEN, &extra));
	scratch_commit(&s); /* pack 2 */
	info = (struct chunk_info){ .name = extra };
	scratch_close(&s);
	scratch_open(&s);

	/* room for about half of what is to be copied */
	signal(SIGXFSZ, SIG_IGN);
	ck_ok(getrlimit(RLIMIT_FSIZE, &limit));
	limit.rlim_cur = N / 4 * LEN / 2;
	ck_ok(setrlimit(RLIMIT_FSIZE, &limit));
	ck_err(sweep(NULL, &stats), -EFBIG);
	ck_ok(os_statat(s.dir_fd, "packs/00000003.pack", &st));
	ck_assert_int_lt(st.st_size, LEN); /* the half copy was given back ... */
	expect_state(); /* ... and nothing else */
	ck_ok(chunk_verify(s.chunks, &info, true));

	limit.rlim_cur = limit.rlim_max;
	ck_ok(setrlimit(RLIMIT_FSIZE, &limit));
	ck_ok(sweep(NULL, &stats));
	ck_assert_uint_eq(stats.packs_rewritten, 1);
	expect_state();
	ck_ok(chunk_verify(s.chunks, &info, true));
}
END_TEST

START_TEST(a_damaged_record_keeps_its_pack)
{
	struct sweep_stats stats;
	struct chunk_loc loc;
	uint64_t bytes;

	keep(0, N, 4);
	ck_ok(index_find_chunk(s.index, &names[8], &loc));
	{
		_cleanup_close_ int fd = -1;

		ck_ok(os_openat(s.dir_fd, "packs/00000001.pack", O_RDWR, 0, &fd));
		ck_ok(os_pwrite_full(fd, "garbage", 7, loc.off + 60));
	}
	ck_ok(sweep(NULL, &stats));
	ck_assert_uint_gt(s.notes, 0);
	ck_assert_uint_eq(stats.packs_rewritten, 0);
	ck_assert_uint_eq(count_packs(&bytes), 2);
	alive[8] = false; /* not readable, before or after */
	ck_ok(sweep(NULL, &stats));
	ck_assert_uint_eq(count_packs(&bytes), 1);
	expect_state();
}
END_TEST

static void expect_all_packs(const struct sweep_stats *stats)
{
	uint64_t bytes;

	ck_assert_uint_eq(stats->packs_removed + stats->packs_rewritten, 0);
	ck_assert_uint_eq(count_packs(&bytes), 1);
	ck_assert_ptr_nonnull(strstr(s.last_note, "keeping all packs"));
}

START_TEST(a_damaged_entry_in_use_keeps_all_packs)
{
	struct sweep_stats stats;

	keep(0, N, 4);
	damage_entry(&names[8]);
	ck_ok(sweep(NULL, &stats));
	ck_assert_uint_eq(stats.chunks_kept, N / 4);
	expect_all_packs(&stats);
}
END_TEST

/* Flips a bit of the key of names[8], wherever it stands; the keys stay in order. */
static void damage_key(void)
{
	_cleanup_free_ uint8_t *bytes = malloc(1 << 20);
	_cleanup_close_ int fd = -1;
	unsigned hits = 0;
	ssize_t n;

	ck_ok(os_openat(s.dir_fd, "index/data.mdb", O_RDWR, 0, &fd));
	n = pread(fd, bytes, 1 << 20, 0);
	for (ssize_t i = 0; i + NAME_BYTES <= n; i++) {
		if (memcmp(bytes + i, names[8].b, NAME_BYTES) != 0)
			continue;
		bytes[i + NAME_BYTES - 1] ^= 1;
		ck_assert_int_eq(pwrite(fd, bytes + i, NAME_BYTES, i), NAME_BYTES);
		hits++;
	}
	ck_assert_uint_gt(hits, 0);
}

START_TEST(a_damaged_key_may_be_of_what_is_in_use)
{
	struct sweep_stats stats;
	struct chunk_loc loc;

	keep(0, N, 4);
	damage_key();
	ck_err(index_find_chunk(s.index, &names[8], &loc), ABSENT);
	ck_ok(sweep(NULL, &stats));
	expect_all_packs(&stats);
	ck_ok(sweep(NULL, &stats)); /* nor does the next one take it */
	expect_all_packs(&stats);
}
END_TEST

static void damage_meanwhile(void *arg)
{
	damage_entry(&names[8]);
}

START_TEST(an_entry_that_is_damaged_during_a_sweep_keeps_its_pack)
{
	const struct sweeper sweeper = { .live = is_live, .between = damage_meanwhile };
	struct sweep_stats stats;
	uint64_t bytes;

	keep(0, N, 4);
	ck_ok(chunks_collect(s.chunks));
	ck_err(chunks_sweep(s.chunks, &sweeper, &stats), -ERR_INDEX_DAMAGED);
	ck_assert_ptr_nonnull(strstr(s.last_note, "damaged meanwhile"));
	chunks_collect_end(s.chunks);
	ck_assert_uint_eq(count_packs(&bytes), 1);
}
END_TEST

START_TEST(so_does_one_that_was_put_before_it_was_damaged)
{
	const struct sweeper sweeper = { .live = is_live };
	struct sweep_stats stats;
	uint8_t data[LEN];
	struct name name;

	keep(0, 0, 1);
	ck_ok(chunks_collect(s.chunks));
	data_of(9, data);
	ck_err(chunk_put(s.chunks, CHUNK_DATA, data, LEN, &name), EXISTS);
	damage_entry(&name);
	ck_ok(chunks_sweep(s.chunks, &sweeper, &stats));
	chunks_collect_end(s.chunks);
	ck_assert_uint_eq(stats.chunks_dropped, N - 1);
	expect_all_packs(&stats);
}
END_TEST

START_TEST(a_reader_overtaken_by_a_sweep_looks_again)
{
	scratch_close(&s);
	scratch_open(&s);
	keep(0, N, 4);
	/* the hook is where a reader waits: between asking for the place and reading there */
	if (!scratch_drop_pages(s.dir_fd, "packs/00000001.pack"))
		return;
	chunks_set_io_hook(s.chunks, sweep_once);
	expect_state();
	ck_assert_uint_eq(swept_once, 1);
	ck_assert_uint_eq(s.notes, 0);
}
END_TEST

struct reading {
	pthread_t thread;
	int stop;
	unsigned rounds, failures;
};

static void *read_on(void *arg)
{
	struct reading *rd = arg;
	uint8_t data[LEN];

	while (!__atomic_load_n(&rd->stop, __ATOMIC_RELAXED)) {
		/* nodes are never cached, so that each load looks into a pack */
		for (uint32_t i = 0; i < N; i += 12) {
			struct chunkbuf *b = NULL;

			data_of(i, data);
			if (chunk_load(s.chunks, &names[i], &b) < 0) {
				rd->failures++;
				continue;
			}
			rd->failures += b->len != LEN || memcmp(b->data, data, LEN) != 0;
			chunkbuf_unref(b);
		}
		__atomic_add_fetch(&rd->rounds, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

START_TEST(readers_go_on_during_sweeps)
{
	struct reading rd = { 0 };
	struct sweep_stats stats;
	uint8_t data[LEN];
	struct name name;

	keep(0, N, 12);
	ck_ok(pthread_create(&rd.thread, NULL, read_on, &rd));
	for (uint32_t round = 0; round < 30; round++) {
		/* dead chunks beside the live ones, so that their pack is rewritten */
		for (uint32_t i = 0; i < N; i++) {
			data_of(100000 + round * N + i, data);
			ck_ok(chunk_put(s.chunks, CHUNK_DATA, data, LEN, &name));
		}
		scratch_commit(&s);
		ck_ok(sweep(NULL, &stats));
		ck_assert_uint_ge(stats.packs_rewritten, 1);
	}
	__atomic_store_n(&rd.stop, 1, __ATOMIC_RELAXED);
	pthread_join(rd.thread, NULL);
	ck_assert_uint_eq(rd.failures, 0);
	ck_assert_uint_gt(rd.rounds, 0);
	expect_state();
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		nothing_dead_changes_nothing,
		all_dead_leaves_no_pack,
		a_pack_without_records_goes,
		a_pack_mostly_dead_is_rewritten,
		what_is_not_copied_is_no_progress,
		one_that_was_stopped_is_done_by_the_next,
		a_pack_a_little_dead_stays,
		pending_chunks_stop_a_sweep,
		storing_goes_on_after_a_sweep,
		a_name_given_again_reads_the_new_bytes,
		a_failing_sweep_loses_nothing,
		a_sweep_without_memory_says_so,
		a_sweep_without_descriptors_says_so,
		without_room_for_a_copy_holes_are_made,
		without_holes_a_pack_is_emptied_from_its_end_on,
		a_sweep_cut_short_leaves_the_last_pack_whole,
		a_damaged_record_keeps_its_pack,
		what_is_lost_keeps_no_pack,
		what_is_lost_is_not_copied,
		a_pack_without_its_last_padding_is_not_rewritten_for_it,
		a_sweep_grows_the_map_when_it_is_full,
		a_damaged_entry_in_use_keeps_all_packs,
		a_damaged_key_may_be_of_what_is_in_use,
		an_entry_that_is_damaged_during_a_sweep_keeps_its_pack,
		so_does_one_that_was_put_before_it_was_damaged,
		a_reader_overtaken_by_a_sweep_looks_again,
		readers_go_on_during_sweeps,
	};

	return scratch_run("sweep", tests, ARRAY_SIZE(tests), setup, teardown);
}
