/* SPDX-License-Identifier: Apache-2.0 */

/* Chunks that are put while a sweep goes on. */

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/syscall.h>

#include "tests/unit/sweep_fixture.h"

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
	uint64_t bytes;

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
	(void)count_packs(&bytes);
	ck_assert_uint_eq(stats.bytes_after + stats.bytes_meanwhile, bytes);
	for (uint32_t i = 0; i < MANY; i++) {
		struct chunk_info info = { .name = late.names[i] };

		ck_err(chunk_find(s.chunks, &late.names[i]), i % 7 ? ABSENT : 0);
		if (i % 70 == 0)
			ck_ok(chunk_verify(s.chunks, &info, true));
	}

	/* but not for good */
	ck_ok(chunks_collect(s.chunks));
	ck_ok(chunks_sweep(s.chunks, &(struct sweeper){ .live = none_is_live }, &stats));
	chunks_collect_end(s.chunks);
	ck_assert_uint_eq(stats.chunks_kept, 0);
}
END_TEST

/* One of the last step is put after the first, and then its entry is damaged. */
static void put_and_damage(void *arg)
{
	struct late *late = arg;
	uint32_t last = 0;
	struct name name;

	if (late->steps++ > 0)
		return;
	for (uint32_t i = 1; i < MANY; i++)
		if (name_cmp(&late->names[i], &late->names[last]) > 0)
			last = i;
	ck_err(chunk_of(last, &name), EXISTS);
	damage_entry(&name);
}

START_TEST(what_is_put_and_damaged_between_two_steps_keeps_all_packs)
{
	static struct late late;
	const struct sweeper sweeper = { .live = none_is_live, .between = put_and_damage,
					 .arg = &late };
	struct sweep_stats stats;

	for (uint32_t i = 0; i < MANY; i++)
		ck_ok(chunk_of(i, &late.names[i]));
	scratch_commit(&s);
	ck_ok(chunks_collect(s.chunks));
	ck_ok(chunks_sweep(s.chunks, &sweeper, &stats));
	chunks_collect_end(s.chunks);
	ck_assert_uint_eq(stats.chunks_kept, 1);
	ck_assert_uint_eq(stats.packs_removed + stats.packs_rewritten, 0);
	ck_assert_ptr_nonnull(strstr(s.last_note, "keeping all packs"));
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

/* What happens before and after a pack is opened next. NULL: nothing. */
static void (*_Atomic before_open)(void), (*_Atomic after_open)(void);

/* Stand for libc's. */
__attribute__((visibility("default"))) int own_openat(int dir_fd, const char *path, int flags,
						      ...) __asm__("openat64");
int own_openat(int dir_fd, const char *path, int flags, ...)
{
	const bool pack = strstr(path, ".pack");
	void (*before)(void) = pack ? atomic_exchange(&before_open, NULL) : NULL;
	void (*after)(void) = pack ? atomic_exchange(&after_open, NULL) : NULL;
	mode_t mode = 0;
	va_list ap;
	int fd;

	if (flags & (O_CREAT | __O_TMPFILE)) {
		va_start(ap, flags);
		mode = va_arg(ap, mode_t);
		va_end(ap);
	}
	if (before)
		before();
	fd = (int)syscall(SYS_openat, dir_fd, path, flags, mode);
	if (after)
		after();
	return fd;
}

static atomic_bool disk_is_full;
static _Atomic uint64_t disk_bytes; /* what packs may take of it; 0: anything */
static _Atomic uint64_t goes_bad;   /* once it is full: this place in the first pack */

static uint64_t bytes_of_packs(void)
{
	struct stat st;
	uint64_t bytes = 0;
	char path[32];

	for (unsigned i = 1; i < 9; i++) {
		(void)snprintf(path, sizeof(path), "packs/%08x.pack", i);
		if (fstatat(s.dir_fd, path, &st, 0) == 0)
			bytes += (uint64_t)st.st_size;
	}
	return bytes;
}

static void break_sector(uint64_t at)
{
	struct stat st;

	if (fstatat(s.dir_fd, "packs/00000001.pack", &st, 0) == 0)
		fault_bad_sector(st.st_ino, at, 1);
}

/* Likewise, for what is larger than any header. */
__attribute__((visibility("default"))) ssize_t own_pwrite(int fd, const void *buf, size_t len,
							  off_t off) __asm__("pwrite64");
ssize_t own_pwrite(int fd, const void *buf, size_t len, off_t off)
{
	const uint64_t most = atomic_load(&disk_bytes);

	if (len > LEN && (atomic_load(&disk_is_full) || (most && bytes_of_packs() + len > most))) {
		const uint64_t at = atomic_exchange(&goes_bad, 0);

		if (at)
			break_sector(at);
		errno = ENOSPC;
		return -1;
	}
	return syscall(SYS_pwrite64, fd, buf, len, off);
}

/* A chunk is stored again; between the look for it and the reading of it that is called. */
static void put_across(void (*meanwhile)(void), const uint8_t *data, size_t len,
		       const struct name *want)
{
	struct name name;

	scratch_close(&s);
	scratch_open(&s); /* no pack is open */
	atomic_store(&before_open, meanwhile);
	ck_err(chunk_put(s.chunks, CHUNK_DATA, data, len, &name), EXISTS);
	ck_assert_ptr_null(atomic_load(&before_open));
	ck_assert(name_eq(&name, want));
	ck_assert_msg(s.notes == 0, "%s", s.last_note);
}

START_TEST(who_stores_what_a_sweep_moves_meanwhile_looks_again)
{
	uint8_t data[LEN];

	keep(0, N, 4);
	data_of(4, data);
	put_across(sweep_once, data, LEN, &names[4]);
}
END_TEST

START_TEST(a_pack_that_goes_while_it_is_opened_does_not_stay_open)
{
	keep(0, N, 4);
	scratch_close(&s);
	scratch_open(&s);
	atomic_store(&after_open, sweep_once);
	expect_state();
	ck_assert_ptr_null(atomic_load(&after_open));
	ck_assert_uint_eq(count_deleted_open(), 0); /* else it takes its room on */
	ck_assert_uint_eq(s.notes, 0);
}
END_TEST

enum { LARGE = 300 }; /* 37 MiB; what lives of it is more than is copied at a time */

static struct name large[LARGE];

static void data_of_large(uint32_t i, uint8_t data[static CHUNK_MAX])
{
	scratch_fill(data, CHUNK_MAX, 1000 + i);
}

static bool each_other_large(void *arg, const struct name *name)
{
	for (uint32_t i = 0; i < LARGE; i += 2)
		if (name_eq(&large[i], name))
			return true;
	return false;
}

static int fill_after_first(void *arg, uint64_t done, uint64_t total)
{
	atomic_store(&disk_is_full, true);
	return 0;
}

/* The first part finds room elsewhere; the rest does not, so that holes are made. */
static void sweep_until_full(void)
{
	const struct sweeper sweeper = { .live = each_other_large, .progress = fill_after_first };
	struct sweep_stats stats;

	ck_ok(chunks_collect(s.chunks));
	ck_ok(chunks_sweep(s.chunks, &sweeper, &stats));
	chunks_collect_end(s.chunks);
	atomic_store(&disk_is_full, false);
	ck_assert_uint_eq(stats.packs_rewritten + stats.packs_removed, 0);
	ck_assert_uint_lt(stats.bytes_after, stats.bytes_before);
}

static void put_large(void)
{
	static uint8_t data[CHUNK_MAX];

	for (uint32_t i = 0; i < LARGE; i++) {
		data_of_large(i, data);
		ck_ok(chunk_put(s.chunks, CHUNK_DATA, data, CHUNK_MAX, &large[i]));
	}
	scratch_commit(&s);
}

/* The first bytes at a place in the first pack. */
static uint64_t bytes_at(uint64_t off)
{
	_cleanup_close_ int fd = -1;
	uint64_t got;

	ck_ok(os_openat(s.dir_fd, "packs/00000001.pack", O_RDONLY, 0, &fd));
	ck_ok(os_pread_full(fd, &got, sizeof(got), off));
	return got;
}

START_TEST(who_stores_what_became_a_hole_looks_again)
{
	static uint8_t data[CHUNK_MAX];
	struct chunk_loc loc;

	put_large();
	ck_ok(chunk_locate(s.chunks, &large[0], &loc));
	data_of_large(0, data);
	put_across(sweep_until_full, data, CHUNK_MAX, &large[0]);
	ck_assert_uint_eq(bytes_at(loc.off), 0);
	ck_assert_uint_eq(bytes_at(0), get_le64((const uint8_t *)PACK_MAGIC));
}
END_TEST

/* The disk has room for a step of the copy, and for no more; files have no holes. */
static void sweep_a_little_at_a_time(struct sweep_stats *ret_stats)
{
	const struct sweeper sweeper = { .live = each_other_large };

	fault_no_holes(true);
	atomic_store(&disk_bytes, bytes_of_packs() + (UINT64_C(3) << 19));
	ck_ok(chunks_collect(s.chunks));
	ck_ok(chunks_sweep(s.chunks, &sweeper, ret_stats));
	chunks_collect_end(s.chunks);
	atomic_store(&disk_bytes, 0);
	fault_no_holes(false);
}

static void expect_large(uint32_t but)
{
	static uint8_t data[CHUNK_MAX], got[CHUNK_MAX];

	for (uint32_t i = 0; i < LARGE; i += 2) {
		if (i == but)
			continue;
		data_of_large(i, data);
		ck_ok(chunk_read(s.chunks, &large[i], 0, got, CHUNK_MAX));
		ck_assert_mem_eq(got, data, CHUNK_MAX);
	}
}

START_TEST(with_little_room_and_no_holes_a_pack_is_emptied_step_by_step)
{
	struct sweep_stats stats;
	struct stat st;

	put_large();
	sweep_a_little_at_a_time(&stats);
	ck_assert_msg(s.notes == 0, "%s", s.last_note);
	ck_assert_uint_eq(stats.packs_removed, 1);
	ck_err(os_statat(s.dir_fd, "packs/00000001.pack", &st), -ENOENT);
	expect_large(LARGE);
}
END_TEST

START_TEST(what_cannot_be_read_is_not_cut_off_then)
{
	_cleanup_close_ int fd = -1;
	struct sweep_stats stats;
	struct chunk_loc loc;

	put_large();
	ck_ok(chunk_locate(s.chunks, &large[100], &loc));
	ck_ok(os_openat(s.dir_fd, "packs/00000001.pack", O_RDWR, 0, &fd));
	ck_ok(os_pwrite_full(fd, "garbage!", 8, loc.off + 64));
	sweep_a_little_at_a_time(&stats);
	ck_assert_ptr_nonnull(strstr(s.last_note, "stays in pack 00000001"));
	ck_assert_uint_eq(stats.packs_removed, 0);
	ck_assert_uint_lt(stats.bytes_after, stats.bytes_before);
	ck_assert_uint_eq(bytes_at(loc.off + 64), get_le64((const uint8_t *)"garbage!"));
	expect_large(100);
}
END_TEST

/* One of those that were copied before there was no room for the rest. */
START_TEST(what_was_copied_and_given_up_and_cannot_be_read_again_stays)
{
	struct sweep_stats stats;
	struct chunk_loc loc;

	put_large();
	ck_ok(chunk_locate(s.chunks, &large[4], &loc));
	atomic_store(&goes_bad, loc.off + 64);
	sweep_a_little_at_a_time(&stats);
	ck_assert_uint_eq(atomic_load(&goes_bad), 0);
	ck_assert_ptr_nonnull(strstr(s.last_note, "stays in pack 00000001"));
	ck_assert_uint_eq(stats.packs_removed, 0);
	fault_bad_sector(0, 0, 0);
	expect_large(LARGE);
}
END_TEST

static int stop_at_once(void *arg, uint64_t done, uint64_t total)
{
	return -ERR_CANCELLED;
}

START_TEST(a_pack_that_is_emptied_step_by_step_may_be_left_half_way)
{
	const struct sweeper sweeper = { .live = each_other_large, .progress = stop_at_once };
	struct sweep_stats stats;

	put_large();
	fault_no_holes(true);
	atomic_store(&disk_bytes, bytes_of_packs() + (UINT64_C(3) << 19));
	ck_ok(chunks_collect(s.chunks));
	ck_err(chunks_sweep(s.chunks, &sweeper, &stats), -ERR_CANCELLED);
	chunks_collect_end(s.chunks);
	expect_large(LARGE);
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

int main(void)
{
	const TTest *const tests[] = {
		what_is_put_between_two_steps_stays,
		what_is_put_and_damaged_between_two_steps_keeps_all_packs,
		what_is_lost_while_states_are_walked_stays_known_to_be,
		who_stores_what_a_sweep_moves_meanwhile_looks_again,
		a_pack_that_goes_while_it_is_opened_does_not_stay_open,
		who_stores_what_became_a_hole_looks_again,
		with_little_room_and_no_holes_a_pack_is_emptied_step_by_step,
		what_cannot_be_read_is_not_cut_off_then,
		what_was_copied_and_given_up_and_cannot_be_read_again_stays,
		a_pack_that_is_emptied_step_by_step_may_be_left_half_way,
		what_others_put_during_a_sweep_stays,
	};

	return scratch_run("sweep_meanwhile", tests, ARRAY_SIZE(tests), setup, teardown);
}
