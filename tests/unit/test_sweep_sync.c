/* SPDX-License-Identifier: Apache-2.0 */

/* A sweep on a disk that fails to sync. */

#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>

#include "tests/unit/sweep_fixture.h"

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

/* So many of the largest chunks are copied in two steps. */
enum { DEAD = 80, LARGE = 240 };

static struct name large[LARGE];

static bool is_live_and_large(void *arg, const struct name *name)
{
	for (uint32_t i = DEAD; i < LARGE; i++)
		if (name_eq(&large[i], name))
			return true;
	return false;
}

static int fail_for_want_of_room(void)
{
	errno = ENOSPC;
	return -1;
}

static int fill_disk(void *arg, uint64_t done, uint64_t total)
{
	if (done < total)
		atomic_store(&next_sync, fail_for_want_of_room);
	return 0;
}

START_TEST(what_could_not_be_read_is_not_punched_out_when_the_disk_is_full)
{
	const struct sweeper sweeper = { .live = is_live_and_large, .progress = fill_disk };
	static uint8_t data[CHUNK_MAX];
	_cleanup_close_ int fd = -1;
	struct sweep_stats stats;
	struct chunk_loc loc;
	uint8_t got[7];

	for (uint32_t i = 0; i < LARGE; i++) {
		scratch_fill(data, sizeof(data), i);
		ck_ok(chunk_put(s.chunks, CHUNK_DATA, data, sizeof(data), &large[i]));
	}
	scratch_commit(&s);
	ck_ok(chunk_locate(s.chunks, &large[DEAD], &loc));
	ck_ok(os_openat(s.dir_fd, "packs/00000001.pack", O_RDWR, 0, &fd));
	ck_ok(os_pwrite_full(fd, "garbage", sizeof(got), loc.off + 60));
	ck_ok(chunks_collect(s.chunks));
	ck_ok(chunks_sweep(s.chunks, &sweeper, &stats));
	chunks_collect_end(s.chunks);
	ck_assert_ptr_null(atomic_load(&next_sync)); /* there was a second step */
	ck_assert_uint_eq(stats.packs_rewritten + stats.packs_removed, 0);
	ck_ok(os_pread_full(fd, got, sizeof(got), loc.off + 60));
	ck_assert_mem_eq(got, "garbage", sizeof(got));
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		a_copy_is_not_named_in_a_pack_whose_sync_failed_for_another,
		a_flush_does_not_trust_a_pack_whose_sync_failed_for_a_copy,
		a_copy_that_is_given_up_cuts_off_no_other_record,
		after_a_sync_that_failed_the_next_sweep_copies,
		what_could_not_be_read_is_not_punched_out_when_the_disk_is_full,
	};

	return scratch_run("sweep_sync", tests, ARRAY_SIZE(tests), setup, teardown);
}
