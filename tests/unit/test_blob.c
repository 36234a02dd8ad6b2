/* SPDX-License-Identifier: Apache-2.0 */

/* Blobs and the stage that they are in: growing, sealing, what a mark has of them. */

#include "tests/unit/blob_fixture.h"

#include <pthread.h>

#include "store/format.h"

START_TEST(bytes_read_back_before_and_after_sealing)
{
	static uint8_t data[BLOB_MAX];
	_cleanup_(blob_unrefp) struct blob *b = NULL;
	struct name name, again, direct;
	uint8_t part[10];

	scratch_fill(data, sizeof(data), 1);
	b = make(data, sizeof(data));
	ck_assert(!blob_name(b, &name));
	expect(b, data, sizeof(data));
	ck_ok(blob_seal(b, &name));
	expect(b, data, sizeof(data));
	ck_ok(blob_read(b, BLOB_MAX - 10, part, 10));
	ck_assert_mem_eq(part, data + BLOB_MAX - 10, 10);
	ck_err(blob_read(b, BLOB_MAX - 9, part, 10), -EINVAL);
	ck_err(blob_read(b, UINT32_MAX, part, 10), -EINVAL);
	ck_ok(blob_seal(b, &again));
	ck_assert(name_eq(&name, &again));
	ck_assert(blob_name(b, &again));
	ck_assert(name_eq(&name, &again));
	direct = name_of(data, sizeof(data), 0);
	ck_assert(name_eq(&name, &direct));
	expect_stage(0);
}
END_TEST

START_TEST(sizes_outside_are_refused)
{
	static uint8_t data[BLOB_MAX + 1];
	struct blob *b = NULL;

	ck_err(blob_new(s.stage, data, 0, &b), -EINVAL);
	ck_err(blob_new(s.stage, data, sizeof(data), &b), -EINVAL);
	ck_assert_ptr_null(b);
}
END_TEST

START_TEST(a_blob_grows_while_it_is_last)
{
	static uint8_t data[BLOB_MAX + 1];
	_cleanup_(blob_unrefp) struct blob *a = NULL, *b = NULL;

	scratch_fill(data, sizeof(data), 2);
	a = make(data, 100);
	ck_ok(blob_append(a, 100, data + 100, 900));
	ck_err(blob_append(a, 100, data, 900), AGAIN); /* another owner was first */
	expect(a, data, 1000);
	ck_assert(stage_may_append(s.stage, a));
	b = make(data, 50);
	ck_assert(!stage_may_append(s.stage, a));
	ck_err(blob_append(a, 1000, data, 1), AGAIN);
	expect(a, data, 1000);
	ck_assert(stage_may_append(s.stage, b));
	ck_ok(blob_append(b, 50, data + 50, BLOB_MAX - 50));
	ck_err(blob_append(b, BLOB_MAX, data, 1), AGAIN); /* full */
	expect(b, data, BLOB_MAX);
	expect_stage(1000 + BLOB_MAX);

	blob_unref(b);
	b = NULL;
	ck_ok(blob_append(a, 1000, data + 1000, 5)); /* last again */
	expect(a, data, 1005);
	expect_stage(1005);
}
END_TEST

START_TEST(a_sole_owner_writes_in_place)
{
	uint8_t data[300];
	_cleanup_(blob_unrefp) struct blob *b = NULL;
	struct blob *other;
	struct name name;

	scratch_fill(data, sizeof(data), 3);
	b = make(data, sizeof(data));
	ck_assert(blob_is_sole(b));
	other = blob_ref(b);
	ck_assert(!blob_is_sole(b));
	blob_unref(other);
	ck_assert(blob_is_sole(b));

	memset(data + 10, 0, 20);
	ck_assert(!blob_is_fixed(b));
	ck_ok(blob_write(b, 10, data + 10, 20));
	expect(b, data, sizeof(data));
	ck_err(blob_write(b, 290, data, 20), -EINVAL);
	ck_ok(blob_seal(b, &name));
	ck_assert(blob_is_fixed(b));
	ck_err(blob_write(b, 0, data, 1), AGAIN);
	ck_err(blob_append(b, blob_len(b), data, 1), AGAIN);
	expect(b, data, sizeof(data));
}
END_TEST

START_TEST(what_a_commit_makes_durable_is_fixed)
{
	uint8_t data[300];
	_cleanup_(blob_unrefp) struct blob *before = NULL, *meanwhile = NULL, *after = NULL;

	scratch_fill(data, sizeof(data), 9);
	before = make(data, sizeof(data));
	stage_hold_still(s.stage, true);
	meanwhile = make(data, sizeof(data));
	ck_assert(blob_is_fixed(before) && blob_is_fixed(meanwhile));
	ck_err(blob_write(before, 0, data, 1), AGAIN);
	ck_err(blob_write(meanwhile, 0, data, 1), AGAIN);
	stage_hold_still(s.stage, false);
	after = make(data, sizeof(data));
	ck_assert(blob_is_fixed(before) && blob_is_fixed(meanwhile) && !blob_is_fixed(after));
	ck_err(blob_write(before, 0, data, 1), AGAIN);
	ck_err(blob_write(meanwhile, 0, data, 1), AGAIN);
	ck_ok(blob_write(after, 0, data, 1));
}
END_TEST

/* ---- what a mark of the journal has of it ---- */

static void commit_begins(void)
{
	stage_hold_still(s.stage, true);
	stage_hold_still(s.stage, false);
}

static void expect_copy(const char *text)
{
	size_t len;
	_cleanup_free_ struct journal_mark_bytes *copy = stage_copy(s.stage, &len);

	ck_assert_ptr_nonnull(copy);
	ck_assert_uint_eq(len, strlen(text));
	ck_assert_mem_eq(copy->bytes, text, len);
}

static bool is_copied(void)
{
	size_t len;
	_cleanup_free_ struct journal_mark_bytes *copy = stage_copy(s.stage, &len);

	return copy;
}

START_TEST(a_mark_has_what_no_sync_and_no_mark_had_before)
{
	static uint8_t much[BLOB_MAX];
	_cleanup_(blob_unrefp) struct blob *a = make("aa", 2), *b = NULL, *c = NULL, *d = NULL;

	ck_assert_ptr_nonnull(a); /* it only has to live on; clang calls it unused else */
	commit_begins();
	ck_assert(!is_copied()); /* nor is the file's name durable */
	ck_ok(stage_sync(s.stage));
	stage_is_durable(s.stage);
	expect_copy("");

	b = make("bbb", 3);
	commit_begins();
	expect_copy("bbb");
	expect_copy("bbb"); /* the journal did not take it */
	ck_ok(blob_append(b, 3, "B", 1)); /* perhaps in the midst of the copy */
	expect_copy("bbbB");
	stage_is_durable(s.stage);
	expect_copy("B");
	c = make("c", 1);
	commit_begins();
	expect_copy("Bc");
	stage_is_durable(s.stage);
	expect_copy("");
	stage_hold_still(s.stage, true);
	ck_ok(blob_append(c, 1, "C", 1)); /* it may not be written yet when the copy is made */
	stage_hold_still(s.stage, false);
	expect_copy("C");
	stage_is_durable(s.stage);
	expect_copy("C");

	d = make(much, sizeof(much));
	commit_begins();
	ck_assert(!is_copied());
	ck_ok(stage_sync(s.stage));
	ck_assert(!is_copied()); /* no mark says so: the end of an earlier copy still counts */
	stage_is_durable(s.stage);
	expect_copy("");
}
END_TEST

START_TEST(a_mark_has_nothing_of_two_files)
{
	static uint8_t much[BLOB_MAX];
	_cleanup_(blob_unrefp) struct blob *late = NULL, *next = NULL;
	struct blob *many[33];

	for (size_t i = 0; i < ARRAY_SIZE(many); i++) /* enough for a turn */
		many[i] = make(much, sizeof(much));
	commit_begins();
	ck_ok(stage_sync(s.stage));
	stage_is_durable(s.stage);
	late = make("late", 4);
	stage_turn(s.stage);
	next = make("next", 4);
	commit_begins();
	ck_assert(!is_copied());
	ck_ok(stage_sync(s.stage));
	stage_is_durable(s.stage);
	expect_copy("");
	for (size_t i = 0; i < ARRAY_SIZE(many); i++)
		blob_unref(many[i]);
}
END_TEST

START_TEST(a_mark_has_nothing_that_cannot_be_read)
{
	_cleanup_(blob_unrefp) _unused_ struct blob *a = make("a", 1), *b = NULL;
	uint32_t number, off;
	char path[32];
	struct stat st;

	commit_begins();
	ck_ok(stage_sync(s.stage));
	stage_is_durable(s.stage);
	b = make("b", 1);
	commit_begins();
	blob_place(b, &number, &off);
	snprintf(path, sizeof(path), "stage/%08x", number);
	ck_assert_int_eq(fstatat(s.dir_fd, path, &st, 0), 0);
	fault_bad_sector(st.st_ino, 0, 512);
	ck_assert(!is_copied());
	fault_bad_sector(0, 0, 0);
	expect_copy("b");
}
END_TEST

START_TEST(a_file_that_was_synced_and_copied_goes_as_any_other)
{
	static const _Atomic uint64_t lsn = 1;
	struct blob *a = make("a", 1), *b;

	stage_hold(s.stage, &lsn);
	commit_begins();
	ck_ok(stage_sync(s.stage));
	stage_is_durable(s.stage);
	b = make("b", 1);
	commit_begins();
	expect_copy("b");
	blob_unref(a);
	blob_unref(b);
	stage_release(s.stage, 1);
	stage_give_back(s.stage, true);
	ck_assert_int_eq(stage_files(), 0);
}
END_TEST

START_TEST(what_was_written_since_a_sync_is_synced_by_the_next)
{
	_cleanup_(blob_unrefp) struct blob *b = make("b", 1);

	ck_ok(stage_sync(s.stage));
	ck_ok(blob_append(b, 1, "c", 1));
	fault_arm(0, 1, EIO);
	ck_err(stage_sync(s.stage), -EIO);
	ck_ok(stage_sync(s.stage));
	fault_arm(0, 1, EIO);
	ck_ok(stage_sync(s.stage)); /* there is nothing to do */
	fault_disarm();
}
END_TEST

START_TEST(a_file_that_is_used_again_has_nothing_durable)
{
	static const _Atomic uint64_t lsn = 1;
	_cleanup_(blob_unrefp) struct blob *again = NULL;
	struct blob *b = make("before", 6);

	stage_hold(s.stage, &lsn);
	commit_begins();
	ck_ok(stage_sync(s.stage));
	stage_is_durable(s.stage);
	blob_unref(b);
	stage_release(s.stage, 1);
	again = make("again", 5);
	commit_begins();
	ck_ok(stage_sync(s.stage)); /* the name, too */
	expect_copy("again"); /* the mark failed */
}
END_TEST

/* Deleted, but a replay would want them: who goes on so waits for a round that covers them. */
START_TEST(bytes_that_wait_to_be_covered_are_too_many_some_day)
{
	enum { N = 100, MOST = N / 2 * BLOB_MAX };
	static const _Atomic uint64_t lsn = 1;
	static uint8_t data[BLOB_MAX];

	stage_hold(s.stage, &lsn);
	for (int n = 0; n < N; n++)
		blob_unref(make(data, sizeof(data)));
	ck_assert(!stage_is_behind(s.stage));
	atomic_store(&s.stage->behind_bytes, MOST);
	ck_assert(stage_is_behind(s.stage));
	stage_release(s.stage, 1);
	ck_assert(!stage_is_behind(s.stage));
}
END_TEST

START_TEST(what_a_mark_has_is_put_back)
{
	static const _Atomic uint64_t lsn = 1; /* of a record that refers to it */
	const struct noter noter = { .fn = scratch_note, .arg = &s };
	_cleanup_free_ struct journal_mark_bytes *copy = NULL;
	struct blob *before = make("before", 6), *b;
	uint32_t number, off;
	char path[32];
	size_t len;

	stage_hold(s.stage, &lsn);
	commit_begins();
	ck_ok(stage_sync(s.stage));
	stage_is_durable(s.stage);
	b = make("this", 4);
	blob_place(b, &number, &off);
	commit_begins();
	copy = stage_copy(s.stage, &len);
	ck_assert_ptr_nonnull(copy);
	blob_unref(before);
	blob_unref(b);
	stage_close(s.stage);

	snprintf(path, sizeof(path), "stage/%08x", number);
	{
		_cleanup_close_ int fd = openat(s.dir_fd, path, O_RDWR | O_CLOEXEC);

		ck_assert_int_eq(ftruncate(fd, 6), 0); /* as a power cut may leave it */
	}
	ck_ok(stage_open(s.dir_fd, s.chunks, &noter, &s.stage));
	ck_err(blob_adopt(s.stage, number, off, 4, &b), ABSENT);
	ck_ok(stage_put_back(s.stage, copy, len));
	ck_ok(blob_adopt(s.stage, number, off, 4, &b));
	expect(b, "this", 4);
	blob_unref(b);
	put_le32(copy->file, number + 1); /* one that is gone: nobody waits for it */
	ck_ok(stage_put_back(s.stage, copy, len));
	put_le32(copy->file, number);
	put_le32(copy->place, UINT32_MAX);
	ck_err(stage_put_back(s.stage, copy, len), -ERR_JOURNAL_DAMAGED);
}
END_TEST

START_TEST(dropped_blobs_cost_nothing)
{
	static uint8_t data[BLOB_MAX];
	uint64_t unsealed, disk, bytes, packs, chunks;

	for (int i = 0; i < 2000; i++) {
		struct blob *b = make(data, sizeof(data));

		blob_unref(b);
	}
	stage_stats(s.stage, &unsealed, &disk);
	ck_assert_uint_eq(unsealed, 0);
	ck_assert_uint_le(disk, 1024 * 1024);
	ck_ok(chunks_stats(s.chunks, &bytes, &packs, &chunks));
	ck_assert_uint_eq(bytes, 0);
}
END_TEST

static uint64_t stage_disk(void)
{
	uint64_t unsealed, disk;

	stage_stats(s.stage, &unsealed, &disk);
	return disk;
}

START_TEST(small_blobs_find_pages_made_for_them)
{
	enum { N = 100, LEN = 3000, GROW = 64 * 1024 };
	static uint8_t data[BLOB_MAX];
	struct blob *blobs[N], *large;
	struct stat st;

	for (uint32_t i = 0; i < N; i++) {
		scratch_fill(data, LEN, i);
		blobs[i] = make(data, LEN);
		ck_assert_uint_eq(stage_disk(), ((i + 1) * LEN + GROW - 1) / GROW * GROW);
	}
	ck_assert_int_eq(fstatat(s.dir_fd, "stage/00000001", &st, 0), 0);
	ck_assert_uint_eq((uint64_t)st.st_size, stage_disk());
	large = make(data, BLOB_MAX); /* over what is left of them, and makes its own */
	ck_assert_uint_eq(stage_disk(), N * LEN + BLOB_MAX);
	expect(large, data, BLOB_MAX);
	blob_unref(large);
	for (uint32_t i = 0; i < N; i++) {
		scratch_fill(data, LEN, i);
		expect(blobs[i], data, LEN);
		blob_unref(blobs[i]);
	}
	stage_give_back(s.stage, true);
	ck_assert_uint_eq(stage_disk(), 0);
}
END_TEST

START_TEST(without_room_for_pages_in_advance_a_blob_is_made_all_the_same)
{
	uint8_t data[3000];
	int n = 0, short_ones = 0;

	scratch_fill(data, sizeof(data), 6);
	for (bool failed = true; failed; n++) {
		struct blob *b = NULL;

		stage_give_back(s.stage, true);
		fault_arm(n, 1, ENOSPC);
		(void)blob_new(s.stage, data, sizeof(data), &b);
		failed = fault_ticks() > n;
		fault_disarm();
		if (!b)
			continue;
		expect(b, data, sizeof(data));
		short_ones += stage_disk() == sizeof(data);
		blob_unref(b);
	}
	ck_assert_int_eq(short_ones, 1);
}
END_TEST

START_TEST(stage_files_go_when_nothing_lives_in_them)
{
	enum { N = 1100 }; /* of 128 KiB: more than two files of 64 MiB */
	static uint8_t data[BLOB_MAX];
	static struct blob *blobs[N];
	uint64_t unsealed, disk;
	struct name name;

	for (int i = 0; i < N; i++) {
		data[0] = (uint8_t)i;
		blobs[i] = make(data, sizeof(data));
	}
	ck_assert_int_eq(stage_files(), 3);
	for (int i = 0; i < N; i++) {
		if (i % 2)
			ck_ok(blob_seal(blobs[i], &name));
	}
	ck_assert_int_eq(stage_files(), 3);
	for (int i = 0; i < N; i++)
		blob_unref(blobs[i]);
	/* The current one and the spare ones stay, until room is wanted or time goes by. */
	ck_assert_int_eq(stage_files(), 3);
	stage_stats(s.stage, &unsealed, &disk);
	ck_assert_uint_eq(unsealed, 0);
	ck_assert_uint_le(disk, 3 * 64 << 20);
	stage_give_back(s.stage, false);
	ck_assert_int_eq(stage_files(), 3);
	stage_give_back(s.stage, true);
	ck_assert_int_eq(stage_files(), 1);
	stage_stats(s.stage, &unsealed, &disk);
	ck_assert_uint_eq(disk, 0);
}
END_TEST

START_TEST(no_more_than_two_files_are_kept_for_later)
{
	enum { FILES = 6, EACH = 33 }; /* of 128 KiB: enough for a turn */
	static uint8_t data[BLOB_MAX];
	static struct blob *blobs[FILES * EACH];
	uint64_t unsealed, disk;

	for (int i = 0; i < FILES * EACH; i++) {
		if (i % EACH == 0)
			stage_turn(s.stage);
		blobs[i] = make(data, sizeof(data));
	}
	ck_assert_int_eq(stage_files(), FILES);
	for (int i = 0; i < FILES * EACH; i++)
		blob_unref(blobs[i]);
	stage_release(s.stage, 0); /* as each round of the sealer does */
	ck_assert_int_eq(stage_files(), 2);
	stage_stats(s.stage, &unsealed, &disk);
	ck_assert_uint_eq(disk, 2 * EACH * sizeof(data));
}
END_TEST

START_TEST(room_in_which_nothing_lives_is_kept_for_a_while)
{
	static const _Atomic uint64_t lsn = 1;

	stage_hold(s.stage, &lsn);
	blob_unref(make("x", 1));
	stage_release(s.stage, 1);
	stage_give_back(s.stage, false);
	ck_assert_int_eq(stage_files(), 1);
	s.stage->staged_ns = 0; /* long ago */
	stage_give_back(s.stage, false);
	ck_assert_int_eq(stage_files(), 0);
}
END_TEST

START_TEST(a_file_has_an_end_beyond_which_no_blob_grows)
{
	enum { N = STAGE_FILE_MAX / BLOB_MAX, LITTLE = 100, LEFT = 10 };
	static uint8_t data[BLOB_MAX];
	static struct blob *many[N];
	_cleanup_(blob_unrefp) struct blob *last = NULL;

	for (int i = 0; i < N; i++)
		many[i] = make(data, i ? BLOB_MAX : BLOB_MAX - LITTLE - LEFT);
	last = make(data, LITTLE);
	ck_err(blob_append(last, LITTLE, data, LEFT + 1), AGAIN);
	ck_ok(blob_append(last, LITTLE, data, LEFT));
	ck_assert_int_eq(stage_files(), 1);
	for (int i = 0; i < N; i++)
		blob_unref(many[i]);
}
END_TEST

/* Nothing is put into a file that cannot be read in some place, nor is it kept for later. */
START_TEST(a_file_with_a_bad_sector_is_left_and_goes)
{
	static uint8_t data[BLOB_MAX];
	struct blob *lost = make(data, sizeof(data)), *good = make("good", 4), *next;
	uint32_t number, off, after;
	uint64_t bytes;
	struct name name;
	char path[32];
	struct stat st;

	blob_place(lost, &number, &off);
	snprintf(path, sizeof(path), "stage/%08x", number);
	ck_assert_int_eq(fstatat(s.dir_fd, path, &st, 0), 0);
	for (int n = 0; n < 2; n++) { /* the disk is away for a moment, and much later again */
		fault_bad_sector(st.st_ino, off, 512);
		ck_err(blob_seal(lost, &name), AGAIN);
		fault_bad_sector(0, 0, 0);
		for (int rounds = 0; rounds < 10; rounds++)
			stage_turn(s.stage);
	}
	fault_bad_sector(st.st_ino, off, 512);
	stage_give_up(s.stage);
	ck_err(blob_seal(lost, &name), ABSENT);
	ck_assert(stage_gave_up(s.stage, &bytes));
	ck_assert_uint_eq(bytes, sizeof(data));
	ck_assert(!stage_gave_up(s.stage, &bytes)); /* it is told once */
	ck_err(blob_append(good, 4, "x", 1), AGAIN);
	next = make("next", 4);
	blob_place(next, &after, &off);
	ck_assert_uint_ne(after, number);
	expect(good, "good", 4);
	ck_ok(blob_seal(good, &name));
	stage_release(s.stage, 0);
	ck_assert_int_ne(fstatat(s.dir_fd, path, &st, 0), 0);
	ck_assert_int_eq(stage_files(), 1);
	fault_bad_sector(0, 0, 0);
	blob_unref(lost);
	blob_unref(good);
	blob_unref(next);
}
END_TEST

START_TEST(room_of_dead_blobs_is_used_again)
{
	enum { N = 1100 };
	static uint8_t data[BLOB_MAX];
	static struct blob *blobs[N];
	uint64_t unsealed, disk, first = 0;

	for (int round = 0; round < 4; round++) {
		for (int i = 0; i < N; i++) {
			scratch_fill(data, sizeof(data), (uint32_t)(round * N + i));
			blobs[i] = make(data, sizeof(data));
		}
		stage_stats(s.stage, &unsealed, &disk);
		ck_assert_uint_eq(unsealed, N * (uint64_t)BLOB_MAX);
		if (round == 0)
			first = disk;
		/* A file's worth more: the one that was current began in its middle. */
		ck_assert_uint_le(disk, first + (64 << 20));
		for (int i = 0; i < N; i++) {
			scratch_fill(data, sizeof(data), (uint32_t)(round * N + i));
			expect(blobs[i], data, sizeof(data));
		}
		/* One stays alive and must not be written over. */
		for (int i = 1; i < N; i++)
			blob_unref(blobs[i]);
		if (round % 2)
			stage_give_back(s.stage, true);
		scratch_fill(data, sizeof(data), (uint32_t)(round * N));
		expect(blobs[0], data, sizeof(data));
		blob_unref(blobs[0]);
	}
}
END_TEST

START_TEST(leftovers_wait_until_somebody_says_that_they_are_covered)
{
	_cleanup_close_ int fd = -1;
	_cleanup_(blob_unrefp) struct blob *b = NULL;

	scratch_close(&s);
	ck_ok(os_openat(s.dir_fd, "stage/00000001", O_RDWR | O_CREAT, 0600, &fd));
	scratch_open(&s);
	ck_assert_int_eq(stage_files(), 1);
	stage_release(s.stage, 0);
	stage_give_back(s.stage, true);
	ck_assert_int_eq(stage_files(), 0);
	b = make("abc", 3);
	ck_assert_int_eq(stage_files(), 1);
	expect(b, "abc", 3);
}
END_TEST

/* Who wrote it may have been killed before a sync, which a mark is now to speak for. */
START_TEST(a_leftover_is_synced_and_its_number_not_used)
{
	static const _Atomic uint64_t lsn = 1; /* of a record that refers to it */
	const struct noter noter = { .fn = scratch_note, .arg = &s };
	uint32_t number, off, after;
	struct blob *b = make("abc", 3);

	stage_hold(s.stage, &lsn);
	blob_place(b, &number, &off);
	blob_unref(b);
	stage_close(s.stage);
	ck_ok(stage_open(s.dir_fd, s.chunks, &noter, &s.stage));
	stage_hold(s.stage, &lsn);
	fault_arm(0, 1, EIO);
	ck_err(stage_sync(s.stage), -EIO); /* the file's */
	fault_arm(1, 1, EIO);
	ck_err(stage_sync(s.stage), -EIO); /* and then the directory's */
	fault_arm(1, 1, EIO);
	ck_ok(stage_sync(s.stage));
	ck_assert_int_eq(fault_ticks(), 1); /* which alone is left */
	fault_disarm();
	b = make("next", 4);
	blob_place(b, &after, &off);
	ck_assert_uint_gt(after, number);
	blob_unref(b);
}
END_TEST

START_TEST(same_bytes_seal_to_one_chunk)
{
	uint8_t data[5000];
	_cleanup_(blob_unrefp) struct blob *a = NULL, *b = NULL;
	struct name x, y;
	uint64_t count, bytes;

	scratch_fill(data, sizeof(data), 4);
	a = make(data, sizeof(data));
	b = make(data, sizeof(data));
	ck_ok(blob_seal(a, &x));
	ck_ok(blob_seal(b, &y));
	ck_assert(name_eq(&x, &y));
	chunks_pending(s.chunks, &count, &bytes);
	ck_assert_uint_eq(count, 1);
}
END_TEST

START_TEST(a_failed_seal_leaves_it_readable_and_is_retried)
{
	uint8_t data[3000];
	_cleanup_(blob_unrefp) struct blob *b = NULL;
	struct name name;
	int n;

	scratch_fill(data, sizeof(data), 5);
	b = make(data, sizeof(data));
	for (n = 0;; n++) {
		int r;

		ck_assert_int_lt(n, 100);
		fault_arm(n, 1, ENOSPC);
		r = blob_seal(b, &name);
		fault_disarm();
		expect(b, data, sizeof(data));
		if (r == 0)
			break;
		ck_assert(!blob_name(b, &name));
		expect_stage(sizeof(data));
		ck_err(blob_write(b, 0, data, 1), AGAIN); /* its bytes are fixed */
		ck_err(blob_append(b, blob_len(b), data, 1), AGAIN);
	}
	ck_assert_int_gt(n, 2);
	expect_stage(0);
}
END_TEST

START_TEST(a_failed_write_takes_no_room)
{
	uint8_t data[3000];
	struct blob *b = NULL;
	int n, r;

	scratch_fill(data, sizeof(data), 6);
	blob_unref(make(data, 1)); /* pages in advance are another test's */
	for (n = 0;; n++) {
		fault_arm(n, 1, ENOSPC);
		r = blob_new(s.stage, data, 2000, &b);
		fault_disarm();
		if (r == 0)
			break;
		ck_assert_ptr_null(b);
		expect_stage(0);
	}
	ck_assert_int_gt(n, 1);
	for (n = 0;; n++) {
		fault_arm(n, 1, ENOSPC);
		r = blob_append(b, 2000, data + 2000, 1000);
		fault_disarm();
		if (r == 0)
			break;
		expect(b, data, 2000);
		expect_stage(2000);
	}
	ck_assert_int_gt(n, 0);
	expect(b, data, 3000);
	expect_stage(3000);
	blob_unref(b);
}
END_TEST

enum { READERS = 3, BLOBS = 300 };

struct reading {
	pthread_t thread;
	int stop;
	unsigned failures, rounds;
};

static struct blob *shared[BLOBS];

static void *read_on(void *arg)
{
	struct reading *rd = arg;
	uint8_t want[700], got[700];

	while (!__atomic_load_n(&rd->stop, __ATOMIC_RELAXED)) {
		for (uint32_t i = 0; i < BLOBS; i++) {
			scratch_fill(want, sizeof(want), i);
			if (blob_read(shared[i], 0, got, sizeof(got)) != 0 ||
			    memcmp(want, got, sizeof(got)) != 0)
				rd->failures++;
		}
		__atomic_add_fetch(&rd->rounds, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

START_TEST(readers_go_on_while_blobs_are_sealed_and_grow)
{
	struct reading readers[READERS] = { 0 };
	uint8_t data[800];
	struct name name;

	for (uint32_t i = 0; i < BLOBS; i++) {
		scratch_fill(data, sizeof(data), i);
		shared[i] = make(data, 700);
	}
	for (int i = 0; i < READERS; i++)
		ck_ok(pthread_create(&readers[i].thread, NULL, read_on, &readers[i]));
	scratch_fill(data, sizeof(data), BLOBS - 1);
	for (uint32_t i = 0; i < 100; i++)
		ck_ok(blob_append(shared[BLOBS - 1], 700 + i, data + 700 + i, 1));
	for (uint32_t i = 0; i < BLOBS; i++) {
		ck_ok(blob_seal(shared[i], &name));
		if (i % 100 == 0)
			scratch_commit(&s);
	}
	for (int i = 0; i < READERS; i++) {
		while (__atomic_load_n(&readers[i].rounds, __ATOMIC_RELAXED) == 0)
			usleep(1000);
		__atomic_store_n(&readers[i].stop, 1, __ATOMIC_RELAXED);
		pthread_join(readers[i].thread, NULL);
		ck_assert_uint_eq(readers[i].failures, 0);
	}
	expect(shared[BLOBS - 1], data, sizeof(data));
	for (uint32_t i = 0; i < BLOBS; i++)
		blob_unref(shared[i]);
	expect_stage(0);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		bytes_read_back_before_and_after_sealing,
		sizes_outside_are_refused,
		a_blob_grows_while_it_is_last,
		a_sole_owner_writes_in_place,
		what_a_commit_makes_durable_is_fixed,
		a_mark_has_what_no_sync_and_no_mark_had_before,
		a_mark_has_nothing_of_two_files,
		a_mark_has_nothing_that_cannot_be_read,
		a_file_that_was_synced_and_copied_goes_as_any_other,
		what_was_written_since_a_sync_is_synced_by_the_next,
		a_file_that_is_used_again_has_nothing_durable,
		bytes_that_wait_to_be_covered_are_too_many_some_day,
		what_a_mark_has_is_put_back,
		dropped_blobs_cost_nothing,
		small_blobs_find_pages_made_for_them,
		without_room_for_pages_in_advance_a_blob_is_made_all_the_same,
		stage_files_go_when_nothing_lives_in_them,
		leftovers_wait_until_somebody_says_that_they_are_covered,
		no_more_than_two_files_are_kept_for_later,
		room_in_which_nothing_lives_is_kept_for_a_while,
		a_file_has_an_end_beyond_which_no_blob_grows,
		a_file_with_a_bad_sector_is_left_and_goes,
		room_of_dead_blobs_is_used_again,
		a_leftover_is_synced_and_its_number_not_used,
		same_bytes_seal_to_one_chunk,
		a_failed_seal_leaves_it_readable_and_is_retried,
		a_failed_write_takes_no_room,
		readers_go_on_while_blobs_are_sealed_and_grow,
	};

	return scratch_run("blob", tests, ARRAY_SIZE(tests), setup, teardown);
}
