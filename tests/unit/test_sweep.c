/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/scratch.h"

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "store/base/fault.h"
#include "store/chunk_internal.h"

enum { N = 400, LEN = 2000 };

static struct scratch s;
static struct name names[N];
static bool alive[N];
static struct name extra; /* alive too */

static void data_of(uint32_t i, uint8_t data[static LEN])
{
	scratch_fill(data, LEN, 77 + i);
}

static void setup(void)
{
	uint8_t data[LEN];

	scratch_make(&s);
	scratch_open(&s);
	for (uint32_t i = 0; i < N; i++) {
		data_of(i, data);
		ck_ok(chunk_put(s.chunks, i % 3 ? CHUNK_DATA : CHUNK_NODE, data, LEN, &names[i]));
	}
	scratch_commit(&s);
}

static void teardown(void)
{
	fault_disarm();
	scratch_close(&s);
	scratch_remove(&s);
}

static bool is_live(void *arg, const struct name *name)
{
	for (uint32_t i = 0; i < N; i++) {
		if (name_eq(&names[i], name))
			return alive[i];
	}
	return name_eq(&extra, name);
}

static int sweep(int (*progress)(void *arg, uint64_t done, uint64_t total),
		 struct sweep_stats *ret_stats)
{
	const struct sweeper sweeper = { .live = is_live, .progress = progress };

	int r;

	r = chunks_collect(s.chunks);
	if (r < 0)
		return r;
	r = chunks_sweep(s.chunks, &sweeper, ret_stats);
	chunks_collect_end(s.chunks);
	return r;
}

static void keep(uint32_t from, uint32_t to, uint32_t step)
{
	memset(alive, 0, sizeof(alive));
	for (uint32_t i = from; i < to; i += step)
		alive[i] = true;
}

static void expect_state(void)
{
	uint8_t data[LEN];

	for (uint32_t i = 0; i < N; i++) {
		_cleanup_(chunkbuf_unrefp) struct chunkbuf *b = NULL;

		if (!alive[i]) {
			ck_err(chunk_find(s.chunks, &names[i]), ABSENT);
			continue;
		}
		data_of(i, data);
		ck_ok(chunk_load(s.chunks, &names[i], &b));
		ck_assert_uint_eq(b->len, LEN);
		ck_assert_mem_eq(b->data, data, LEN);
	}
}

static uint64_t count_packs(uint64_t *ret_bytes)
{
	uint64_t packs, chunks;

	ck_ok(chunks_stats(s.chunks, ret_bytes, &packs, &chunks));
	return packs;
}

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
	expect_state();
}
END_TEST

static int count_progress(void *arg, uint64_t done, uint64_t total)
{
	ck_assert_uint_le(done, total);
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
	ck_assert_uint_eq(stats.chunks_kept, N / 4);
	ck_assert_uint_eq(stats.packs_rewritten, 1);
	ck_assert_uint_lt(stats.bytes_after, stats.bytes_before / 3);
	ck_assert_uint_eq(count_packs(&bytes), 1);
	ck_assert_uint_eq(bytes, stats.bytes_after);
	expect_state();
	scratch_close(&s);
	scratch_open(&s);
	expect_state();
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

/* Each call meets the full disk in turn; the first write of the copy is one of them. */
static void sweep_on_a_full_disk(void)
{
	static const int full[] = { ENOSPC, EDQUOT };

	for (size_t i = 0; i < ARRAY_SIZE(full); i++) {
		struct sweep_stats stats = { 0 };
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

	keep(0, N, 1);
	{
		_cleanup_close_ int fd = -1;

		ck_ok(os_openat(s.dir_fd, "packs/00000001.pack", O_RDWR, 0, &fd));
		ck_ok(os_ftruncate(fd, UINT64_C(256) << 20)); /* full, and then mostly dead */
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
	limit.rlim_cur = N * LEN / 2;
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

static void sweep_once(void)
{
	struct sweep_stats stats;

	chunks_set_io_hook(s.chunks, NULL);
	ck_ok(sweep(NULL, &stats));
	ck_assert_uint_eq(stats.packs_rewritten, 1);
}

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

/* ---- chunks that are put meanwhile ---- */

static int chunk_of(uint32_t i, struct name *ret)
{
	return chunk_put(s.chunks, CHUNK_DATA, &i, sizeof(i), ret);
}

static bool none_is_live(void *arg, const struct name *name)
{
	return false;
}

enum { MANY = 50000 }; /* more than two steps of the index */

struct late {
	struct name names[2 * MANY];
	unsigned steps, gone, met;
};

/* After a step: each seventh is put again, whether it went or not; and some new ones. */
static void put_more(void *arg)
{
	struct late *late = arg;
	struct name name;

	if (late->steps++ > 0)
		return;
	for (uint32_t i = 0; i < MANY + 700; i += 7) {
		int r = chunk_of(i, &name);

		ck_assert_int_ge(r, 0);
		if (i < MANY)
			*(r == 0 ? &late->gone : &late->met) += 1;
		late->names[i] = name;
	}
	scratch_commit(&s);
}

START_TEST(what_is_put_between_two_steps_stays)
{
	static struct late late;
	const struct sweeper sweeper = { .live = none_is_live, .between = put_more, .arg = &late };
	struct sweep_stats stats;

	for (uint32_t i = 0; i < MANY; i++)
		ck_ok(chunk_of(i, &late.names[i]));
	scratch_commit(&s);
	ck_ok(chunks_collect(s.chunks));
	ck_ok(chunks_sweep(s.chunks, &sweeper, &stats));
	chunks_collect_end(s.chunks);
	ck_assert_uint_ge(late.steps, 3);
	ck_assert_uint_gt(late.gone, 0);
	ck_assert_uint_gt(late.met, 0);
	ck_assert_uint_eq(stats.chunks_dropped, N + MANY - late.met);
	ck_assert_uint_gt(stats.bytes_meanwhile, 0);
	for (uint32_t i = 0; i < MANY; i++) {
		struct chunk_info info = { .name = late.names[i] };

		ck_err(chunk_find(s.chunks, &late.names[i]), i % 7 ? ABSENT : 0);
		if (i % 70 == 0)
			ck_ok(chunk_verify(s.chunks, &info, true));
	}
}
END_TEST

START_TEST(what_is_lost_while_states_are_walked_stays_known_to_be)
{
	const struct sweeper sweeper = { .live = none_is_live };
	struct sweep_stats stats;
	struct name lost;

	ck_ok(chunks_collect(s.chunks));
	ck_ok(chunk_put_lost(s.chunks, LEN, &lost));
	scratch_commit(&s);
	ck_ok(chunks_sweep(s.chunks, &sweeper, &stats));
	chunks_collect_end(s.chunks);
	ck_assert(chunk_is_lost(s.chunks, &lost));
}
END_TEST

/* What happens before a pack is opened next. NULL: nothing. */
static void (*_Atomic before_open)(void);

/* Stand for libc's. */
__attribute__((visibility("default"))) int own_openat(int dir_fd, const char *path, int flags,
						      ...) __asm__("openat64");
int own_openat(int dir_fd, const char *path, int flags, ...)
{
	void (*before)(void) = strstr(path, ".pack") ? atomic_exchange(&before_open, NULL) : NULL;
	mode_t mode = 0;
	va_list ap;

	if (flags & (O_CREAT | __O_TMPFILE)) {
		va_start(ap, flags);
		mode = va_arg(ap, mode_t);
		va_end(ap);
	}
	if (before)
		before();
	return (int)syscall(SYS_openat, dir_fd, path, flags, mode);
}

START_TEST(who_stores_what_a_sweep_moves_meanwhile_looks_again)
{
	uint8_t data[LEN];
	struct name name;

	keep(0, N, 4);
	scratch_close(&s);
	scratch_open(&s); /* no pack is open */
	atomic_store(&before_open, sweep_once);
	data_of(4, data);
	ck_err(chunk_put(s.chunks, CHUNK_DATA, data, LEN, &name), EXISTS);
	ck_assert_ptr_null(atomic_load(&before_open));
	ck_assert(name_eq(&name, &names[4]));
	ck_assert_msg(s.notes == 0, "%s", s.last_note);
}
END_TEST

enum { PASSES = 20 };

struct putting {
	pthread_t thread;
	atomic_bool stop;
	uint32_t round;
	unsigned first, passes;
	bool put[PASSES][N];
};

/* Some that are alive or about to go, the same in each pass; and new ones. */
static void data_to_put(const struct putting *p, unsigned pass, uint32_t i,
			uint8_t data[static LEN])
{
	data_of(i % 2 ? i : N * (1 + p->round * PASSES + pass) + i, data);
}

static void *put_on(void *arg)
{
	struct putting *p = arg;
	uint8_t data[LEN];
	struct name name;

	do {
		for (uint32_t i = p->first; i < N; i += 3) {
			data_to_put(p, p->passes, i, data);
			p->put[p->passes][i] =
				chunk_put(s.chunks, CHUNK_DATA, data, LEN, &name) >= 0;
		}
	} while (++p->passes < PASSES && !atomic_load(&p->stop));
	return NULL;
}

static void expect_put(const struct putting *p)
{
	uint8_t data[LEN], got[LEN];

	for (unsigned pass = 0; pass < p->passes; pass++) {
		for (uint32_t i = p->first; i < N; i += 3) {
			struct name name;

			if (!p->put[pass][i])
				continue; /* it met the full disk */
			data_to_put(p, pass, i, data);
			name = name_of(data, LEN, 0);
			ck_ok(chunk_read(s.chunks, &name, 0, got, LEN));
			ck_assert_mem_eq(got, data, LEN);
		}
	}
}

struct disk {
	uint64_t seed;
	bool fills_up;
};

/* What is dead has left the index, and copying begins: one of the next calls meets a full disk. */
static void fill_disk(void *arg)
{
	struct disk *disk = arg;

	if (disk->fills_up)
		fault_arm((int)(scratch_random(&disk->seed) % 512), 1, ENOSPC);
	disk->fills_up = false;
}

START_TEST(what_others_put_during_a_sweep_stays)
{
	struct disk disk = { .seed = 1 };
	const struct sweeper sweeper = { .live = is_live, .between = fill_disk, .arg = &disk };
	struct sweep_stats stats;

	for (uint32_t round = 0; round < 30; round++) {
		const unsigned notes = s.notes;
		static struct putting p[2];
		int r;

		keep(0, N, 4 + round % 3);
		disk.fills_up = round % 2; /* then a copy may be given up */
		ck_ok(chunks_collect(s.chunks));
		for (unsigned i = 0; i < 2; i++) {
			p[i] = (struct putting){ .round = round, .first = i };
			ck_ok(pthread_create(&p[i].thread, NULL, put_on, &p[i]));
		}
		r = chunks_sweep(s.chunks, &sweeper, &stats);
		for (unsigned i = 0; i < 2; i++) {
			atomic_store(&p[i].stop, true);
			pthread_join(p[i].thread, NULL);
		}
		fault_disarm();
		ck_assert_msg(r == 0 || round % 2, "%s", err_name(r));
		chunks_collect_end(s.chunks);
		scratch_commit(&s);
		expect_put(&p[0]);
		expect_put(&p[1]);
		ck_assert_msg(s.notes == notes || round % 2, "%s", s.last_note);
	}
}
END_TEST

/* ---- a disk that fails ---- */

/* What the next sync of a pack does, in whatever thread: 0, or -1 and EIO. NULL: it syncs. */
static int (*_Atomic next_sync)(void);

int fdatasync(int fd) /* stands for libc's */
{
	int (*sync)(void) = atomic_exchange(&next_sync, NULL);

	if (!sync)
		return (int)syscall(SYS_fdatasync, fd);
	errno = EIO;
	return sync();
}

static struct flushing {
	pthread_t thread;
	unsigned steps;
	struct name put; /* pending when the sweep begins to copy the larger pack */
	uint64_t copied; /* chunks_appended, when it is copied */
	atomic_bool syncs;
	int r;
} flushing;

static void *flush(void *arg)
{
	flushing.r = chunks_flush(s.chunks);
	return NULL;
}

/* Is it between the packs? Then something is put. The first step is that of the index. */
static bool is_between_packs(void)
{
	if (++flushing.steps != 2)
		return false;
	ck_ok(chunk_of(N, &flushing.put));
	flushing.copied = chunks_appended(s.chunks) + (N / 4) * LEN;
	return true;
}

/* Half a second, where nothing is copied meanwhile. */
static int fail_when_all_is_copied(void)
{
	atomic_store(&flushing.syncs, true);
	for (unsigned i = 0; i < 50 && chunks_appended(s.chunks) < flushing.copied; i++)
		usleep(10000);
	return -1;
}

static void begin_to_flush(void *arg)
{
	if (!is_between_packs())
		return;
	atomic_store(&next_sync, fail_when_all_is_copied);
	ck_assert_int_eq(pthread_create(&flushing.thread, NULL, flush, NULL), 0);
	while (!atomic_load(&flushing.syncs))
		usleep(1000);
}

static int fail_while_another_flushes(void)
{
	ck_assert_int_eq(pthread_create(&flushing.thread, NULL, flush, NULL), 0);
	usleep(100000); /* now it waits for this sync */
	return -1;
}

static void let_copying_fail(void *arg)
{
	if (is_between_packs())
		atomic_store(&next_sync, fail_while_another_flushes);
}

/* Of two packs, and the one with little to copy comes first. */
static int sweep_and_flush(void (*between)(void *arg))
{
	const struct sweeper sweeper = { .live = is_live, .between = between };
	struct sweep_stats stats;
	struct name dead;
	int r;

	flushing = (struct flushing){ 0 };
	(void)packs_begin_new(s.chunks->packs);
	for (uint32_t i = 1; i < 9; i++)
		ck_ok(chunk_of(N + i, i < 2 ? &extra : &dead));
	scratch_commit(&s);
	keep(0, N, 4);
	ck_ok(chunks_collect(s.chunks));
	r = chunks_sweep(s.chunks, &sweeper, &stats);
	pthread_join(flushing.thread, NULL);
	chunks_collect_end(s.chunks);
	return r;
}

static bool is_in_doubt(const struct name *name)
{
	struct chunk_loc loc;

	ck_ok(chunk_locate(s.chunks, name, &loc));
	return pack_is_bad(s.chunks->packs, loc.pack);
}

/* After a sync that failed, a commit and a sweep write again what it was for. */
static void expect_next_to_succeed(void)
{
	struct sweep_stats stats;

	scratch_commit(&s);
	ck_assert(!is_in_doubt(&flushing.put));
	ck_ok(sweep(NULL, &stats));
	ck_assert_uint_ge(stats.packs_rewritten, 1);
	expect_state();
}

START_TEST(a_copy_is_not_named_in_a_pack_whose_sync_failed_for_another)
{
	(void)sweep_and_flush(begin_to_flush);
	ck_err(flushing.r, -EIO);
	for (uint32_t i = 0; i < N; i += 4)
		ck_assert(!is_in_doubt(&names[i]));
	expect_next_to_succeed();
}
END_TEST

START_TEST(a_flush_does_not_trust_a_pack_whose_sync_failed_for_a_copy)
{
	ck_err(sweep_and_flush(let_copying_fail), -EIO);
	ck_assert(flushing.r < 0 || !is_in_doubt(&flushing.put));
	expect_next_to_succeed();
}
END_TEST

static int fail_at_once(void)
{
	return -1;
}

static void fail_next_sync(void *arg)
{
	atomic_store(&next_sync, fail_at_once);
}

static void *put_another(void *arg)
{
	flushing.r = chunk_of(N, &flushing.put);
	return NULL;
}

/* All is copied. Somebody puts a chunk, and what follows (the folder's sync) fails. */
static int let_another_put(void)
{
	ck_assert_int_eq(pthread_create(&flushing.thread, NULL, put_another, NULL), 0);
	usleep(100000);
	fault_arm(0, 1, EIO);
	return 0;
}

static void put_before_the_sync(void *arg)
{
	atomic_store(&next_sync, let_another_put);
}

START_TEST(a_copy_that_is_given_up_cuts_off_no_other_record)
{
	const struct sweeper sweeper = { .live = is_live, .between = put_before_the_sync };
	struct sweep_stats stats;
	uint32_t got;

	keep(0, N, 4);
	ck_ok(chunks_collect(s.chunks));
	ck_err(chunks_sweep(s.chunks, &sweeper, &stats), -EIO);
	fault_disarm();
	ck_assert_int_eq(pthread_join(flushing.thread, NULL), 0);
	chunks_collect_end(s.chunks);
	ck_ok(flushing.r);
	scratch_commit(&s);
	ck_ok(chunk_read(s.chunks, &flushing.put, 0, &got, sizeof(got)));
	ck_assert_uint_eq(got, N);
	expect_state();
}
END_TEST

START_TEST(after_a_sync_that_failed_the_next_sweep_copies)
{
	const struct sweeper sweeper = { .live = is_live, .between = fail_next_sync };
	struct sweep_stats stats;

	keep(0, N, 4);
	ck_ok(chunks_collect(s.chunks));
	ck_err(chunks_sweep(s.chunks, &sweeper, &stats), -EIO);
	chunks_collect_end(s.chunks);
	atomic_store(&next_sync, NULL);
	ck_ok(sweep(NULL, &stats)); /* and nothing was committed in between */
	ck_assert_uint_ge(stats.packs_rewritten, 1);
	expect_state();
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		nothing_dead_changes_nothing,
		all_dead_leaves_no_pack,
		a_pack_mostly_dead_is_rewritten,
		one_that_was_stopped_is_done_by_the_next,
		a_pack_a_little_dead_stays,
		pending_chunks_stop_a_sweep,
		storing_goes_on_after_a_sweep,
		a_name_given_again_reads_the_new_bytes,
		a_failing_sweep_loses_nothing,
		without_room_for_a_copy_holes_are_made,
		without_holes_a_pack_is_emptied_from_its_end_on,
		a_sweep_cut_short_leaves_the_last_pack_whole,
		a_damaged_record_keeps_its_pack,
		a_reader_overtaken_by_a_sweep_looks_again,
		readers_go_on_during_sweeps,
		what_is_put_between_two_steps_stays,
		what_is_lost_while_states_are_walked_stays_known_to_be,
		who_stores_what_a_sweep_moves_meanwhile_looks_again,
		what_others_put_during_a_sweep_stays,
		a_copy_is_not_named_in_a_pack_whose_sync_failed_for_another,
		a_flush_does_not_trust_a_pack_whose_sync_failed_for_a_copy,
		a_copy_that_is_given_up_cuts_off_no_other_record,
		after_a_sync_that_failed_the_next_sweep_copies,
	};

	return scratch_run("sweep", tests, ARRAY_SIZE(tests), setup, teardown);
}
