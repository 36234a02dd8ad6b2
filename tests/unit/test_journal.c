/* SPDX-License-Identifier: Apache-2.0 */

/* The journal: records and segments, damage, what another boot believes, failing syncs. */

#include "store/journal_lost.h"
#include "store/tableop.h"
#include "tests/unit/journal_fixture.h"

/* ---- segments and records ---- */

/* The sync that it needs. */
static void mark_fails(uint64_t lsn)
{
	fault_arm(0, 1, EIO);
	ck_err(journal_mark(journal, lsn, NULL, 0), -EIO);
	fault_disarm();
}

START_TEST(records_come_back_in_order)
{
	for (uint64_t i = 0; i < 5000; i++)
		add(i, 8 + i % 700);
	ck_assert_uint_eq(journal_lsn(journal), 5000);
	journal_down();
	journal_up();
	expect_seen(0, 5000);
	ck_assert_uint_eq(journal_lsn(journal), 5000);
	ck_assert(!found.damaged && found.lost == 0);
	add(5000, 100);
	journal_down();
	journal_up();
	expect_seen(0, 5001);
}
END_TEST

START_TEST(what_was_not_read_stays)
{
	for (uint64_t i = 0; i < 10; i++)
		add(i, 100);
	journal_down();
	ck_ok(journal_open(scratch.dir_fd, NULL, &journal));
	journal_close(journal); /* as an open that failed in between */
	journal_up();
	expect_seen(0, 10);
}
END_TEST

START_TEST(a_record_may_be_larger_than_a_segment)
{
	size_t len = 3 * SEGMENT_BYTES;
	_cleanup_free_ uint8_t *big = malloc(len);

	put_le64(big, 1);
	for (size_t i = 8; i < len; i++)
		big[i] = (uint8_t)(1 + i);
	add(0, 50);
	ck_ok(journal_reserve(journal, len + RECORD_OVERHEAD, false));
	journal_append(journal, JOURNAL_CHANGE, big, len, len + RECORD_OVERHEAD, NULL, NULL, NULL);
	add(2, 50);
	journal_down();
	journal_up();
	expect_seen(0, 3);
}
END_TEST

START_TEST(what_is_covered_goes_and_the_rest_stays)
{
	uint64_t half = 0, n;

	for (n = 0; journal_bytes(journal) < 3 * SEGMENT_BYTES; n++) {
		uint64_t lsn = add(n, 4000);

		if (journal_bytes(journal) < 2 * SEGMENT_BYTES)
			half = lsn;
	}
	journal_release(journal, half);
	ck_assert_uint_eq(journal_bytes(journal), 2 * SEGMENT_BYTES);
	journal_down();
	journal_up();
	expect_seen(half, n);
	journal_release(journal, journal_lsn(journal));
	journal_down();
	ck_assert_int_eq(files(), 0);
	journal_up();
	ck_assert_uint_eq(n_seen, 0);
}
END_TEST

START_TEST(a_recycled_segment_shows_nothing_of_its_past)
{
	for (unsigned round = 0; round < 5; round++) {
		uint64_t first = journal_bytes(journal);

		for (uint64_t n = 0; journal_bytes(journal) == first || n < 2; n++)
			add(n, 4000);
		journal_release(journal, journal_lsn(journal) - 1);
	}
	journal_release(journal, journal_lsn(journal));
	add(77, 4000);
	journal_down();
	journal_up();
	ck_assert(!found.damaged);
	ck_assert_uint_eq(seen[n_seen - 1], 77);
	ck_assert_uint_le(n_seen, 3);
}
END_TEST

/* Cut anywhere: every whole record before that place comes back, nothing else, no complaint. */
START_TEST(a_torn_tail_is_the_end)
{
	enum { LEN = 200, SPAN = 24 + LEN, N = 20 };
	uint8_t zeros[SPAN * 4] = { 0 };

	for (uint64_t i = 0; i < N; i++)
		add(i, LEN);
	journal_down();
	for (size_t cut = N * SPAN; cut > (N - 3) * SPAN; cut -= 31) {
		_cleanup_close_ int fd = open_segment();

		ck_ok(os_pwrite_full(fd, zeros, sizeof(zeros), 64 + cut));
		journal_up();
		expect_seen(0, cut / SPAN);
		ck_assert_msg(!found.damaged, "cut at %zu", cut);
		journal_down();
	}
	journal_up();
	add(n_seen, LEN);
	n_seen = 0;
	journal_down();
	journal_up();
	ck_assert(!found.damaged);
	expect_seen(0, N - 2);
}
END_TEST

static int count_lost(void *arg, uint64_t lsn, enum journal_kind kind, const uint8_t *payload,
		      size_t len)
{
	++*(unsigned *)arg;
	return 0;
}

/*
 * Somebody wrote what looks like beginnings of long records, one after the other, into a file that
 * was used again: with their sums unproven, each would be hashed up to the end. The quarter of an
 * hour that this takes is what the test's own limit is for.
 */
START_TEST(what_looks_like_many_records_takes_no_time)
{
	enum { SIZE = 8 * SEGMENT_BYTES, SPAN = 24 + 200, BEHIND = 64 + 3 * SPAN };
	_cleanup_free_ uint8_t *bytes = calloc(1, SIZE);
	_cleanup_close_ int fd = -1;
	unsigned lost = 0;

	ck_assert_ptr_nonnull(bytes);
	ck_ok(journal_reserve(journal, 7 * SEGMENT_BYTES, false)); /* makes one of SIZE */
	for (uint64_t i = 0; i < 3; i++)
		add(i, 200);
	journal_unreserve(journal, 7 * SEGMENT_BYTES);
	journal_down();
	fd = open_segment();
	for (int numbered = 0; numbered < 2; numbered++) {
		struct journal_record_bytes b = { .kind = JOURNAL_CHANGE };

		put_le32(b.len, SIZE / 2);
		for (size_t i = 0, at = 0; at + sizeof(b) <= SIZE; i++) {
			put_le64(b.lsn, 4 + i);
			memcpy(bytes + at, &b, sizeof(b));
			at += numbered ? sizeof(b) : 8; /* the next one's beginning is over it */
		}
		ck_ok(os_pwrite_full(fd, bytes, SIZE - BEHIND, BEHIND));
		n_seen = 0;
		ck_ok(journal_open(scratch.dir_fd, NULL, &journal));
		ck_ok(journal_read(journal, see, NULL, &found));
		expect_seen(0, 3);
		ck_assert(!found.damaged);
		journal_down();
	}

	/* nor does counting what was behind the second one, were it damaged */
	ck_ok(os_pwrite_full(fd, "x", 1, 64 + SPAN + 100));
	journal_up();
	ck_assert(found.damaged);
	ck_err(journal_each_lost(journal, count_lost, &lost), -ERR_JOURNAL_DAMAGED);
	ck_assert_uint_eq(lost, 1);
}
END_TEST

START_TEST(damage_in_the_middle_is_told_and_what_is_before_it_kept)
{
	enum { LEN = 200, SPAN = 24 + LEN, N = 20 };
	_cleanup_close_ int fd = -1;

	for (uint64_t i = 0; i < N; i++)
		add(i, LEN);
	journal_down();
	fd = open_segment();
	ck_ok(os_pwrite_full(fd, "x", 1, 64 + 7 * SPAN + 100));
	journal_up();
	expect_seen(0, 7);
	ck_assert(found.damaged);
	ck_assert_uint_eq(found.segment, 1);

	/* what is done now follows on what was kept, for good */
	add(7, LEN);
	journal_down();
	journal_up();
	expect_seen(0, 8);
	ck_assert(!found.damaged);
}
END_TEST

/* The files of three segments, the journal being closed; how many operations they hold. */
static uint64_t three_segments(void)
{
	uint64_t n = 0;

	while (journal_bytes(journal) < 3 * SEGMENT_BYTES)
		add(n++, 4000);
	journal_down();
	return n;
}

START_TEST(a_segment_that_was_cut_to_nothing_is_told)
{
	uint64_t n = three_segments(), kept;

	cut_segment("journal/00000003", 0);
	journal_up();
	ck_assert_ptr_nonnull(strstr(scratch.last_note, "journal segment 00000003"));
	ck_assert_ptr_nonnull(strstr(scratch.last_note, "0 bytes"));
	ck_assert_uint_lt(n_seen, n);
	expect_seen(0, kept = n_seen);
	ck_assert(!found.damaged); /* told already, and nothing follows it */
	journal_down();

	cut_segment("journal/00000002", 1);
	journal_up();
	ck_assert_ptr_nonnull(strstr(scratch.last_note, "has 1 byte and"));
	journal_down();

	cut_segment("journal/00000001", 40);
	journal_up();
	ck_assert_ptr_nonnull(strstr(scratch.last_note, "journal segment 00000001"));
	ck_assert_uint_lt(n_seen, kept);
}
END_TEST

START_TEST(a_segment_that_is_absurdly_long_is_read)
{
	uint64_t n = three_segments();

	cut_segment("journal/00000002", (off_t)1 << 43); /* a hole, more than any host's memory */
	journal_up();
	expect_seen(0, n);
	ck_assert(!found.damaged);
	journal_down();
	ck_ok(journal_give_up(scratch.dir_fd, NULL));
}
END_TEST

START_TEST(a_header_that_is_damaged_is_told)
{
	uint64_t n = three_segments();
	_cleanup_close_ int fd = openat(scratch.dir_fd, "journal/00000003", O_RDWR | O_CLOEXEC);

	ck_ok(os_pwrite_full(fd, "x", 1, 20));
	journal_up();
	ck_assert_ptr_nonnull(strstr(scratch.last_note, "journal segment 00000003"));
	ck_assert_uint_lt(n_seen, n);
}
END_TEST

START_TEST(a_segment_that_is_missing_is_named_and_what_it_cuts_off_counted)
{
	unsigned lost = 0;
	uint64_t n = three_segments();

	ck_assert_int_eq(unlinkat(scratch.dir_fd, "journal/00000002", 0), 0);
	journal_up();
	ck_assert(found.damaged && found.missing);
	ck_assert_uint_eq(found.segment, 2);
	ck_assert_uint_gt(n_seen, 0);
	ck_ok(journal_each_lost(journal, count_lost, &lost));
	ck_assert_uint_gt(lost, 0);
	ck_assert_uint_lt(n_seen + lost, n);
	journal_down();

	/* cut between two records: what comes after shows it */
	scratch_remove(&scratch);
	scratch_make(&scratch);
	journal_up();
	(void)three_segments();
	cut_segment("journal/00000002", 64 + 4024);
	journal_up();
	ck_assert(found.damaged && !found.missing);
	ck_assert_uint_eq(found.segment, 2);
}
END_TEST

static void read_behind(uint64_t less)
{
	n_seen = 0;
	ck_ok(journal_open(scratch.dir_fd, NULL, &journal));
	ck_assert_uint_gt(journal->oldest->after, less);
	journal_follows(journal, journal->oldest->after - less);
	ck_ok(journal_read(journal, see, NULL, &found));
}

/* J6: of a segment that is not there the index has all, or the journal is of another time. */
START_TEST(a_journal_that_goes_on_behind_what_is_covered_is_given_up)
{
	unsigned lost = 0, all;
	uint64_t covered;

	(void)three_segments();
	ck_assert_int_eq(unlinkat(scratch.dir_fd, "journal/00000001", 0), 0);
	read_behind(0);
	ck_assert(!found.damaged);
	all = n_seen;
	ck_assert_uint_gt(all, 0);
	journal_close(journal);

	read_behind(1);
	ck_assert(found.damaged && found.missing && found.behind);
	ck_assert_uint_eq(found.segment, 1);
	ck_assert_uint_eq(n_seen, 0);
	ck_ok(journal_each_lost(journal, count_lost, &lost));
	ck_assert_uint_eq(lost, all);

	/* What comes now counts, and what was given up never again. */
	covered = journal->oldest->after - 1;
	journal_start(journal, covered);
	add(77, 100);
	journal_close(journal);
	n_seen = 0;
	ck_ok(journal_open(scratch.dir_fd, NULL, &journal));
	journal_follows(journal, covered);
	ck_ok(journal_read(journal, see, NULL, &found));
	ck_assert(!found.damaged);
	ck_assert_uint_eq(n_seen, 1);
	ck_assert_uint_eq(seen[0], 77);
}
END_TEST

/* Each call that reads, writes, ... meets an error of the disk in turn. */
START_TEST(what_cannot_be_read_is_given_up_and_the_rest_counted)
{
	enum { LEN = 2000, N = 40 };
	const struct noter noter = { .fn = scratch_note, .arg = &scratch };
	unsigned given_up = 0;

	journal_down();
	for (int n = 0;; n++) {
		unsigned lost = 0;
		int r;

		scratch_remove(&scratch);
		scratch_make(&scratch);
		journal_up();
		for (uint64_t i = 0; i < N; i++)
			add(i, LEN);
		journal_down();
		fault_arm(n, 1, EIO);
		r = journal_give_up(scratch.dir_fd, &noter);
		if (fault_ticks() <= n || n > 40) /* the rest of the file is empty */
			break;
		fault_disarm();
		n_seen = 0;
		journal_up();
		ck_ok(journal_each_lost(journal, count_lost, &lost));
		if (r != EXISTS) { /* it could not be done, and did nothing */
			ck_assert_uint_eq(n_seen, N);
		} else if (n_seen > 0 && n_seen < N) {
			/* a block has parts of four; behind the last one nothing is missed */
			ck_assert(found.damaged || n_seen >= N - 4);
			ck_assert_uint_ge(n_seen + lost, N - 4);
			given_up++;
		}
		journal_down();
	}
	fault_disarm();
	ck_assert_uint_gt(given_up, 10);
}
END_TEST

START_TEST(every_flipped_byte_is_noticed)
{
	enum { LEN = 40, SPAN = 24 + LEN, N = 4 };
	uint8_t bytes[64 + N * SPAN];
	_cleanup_close_ int first = -1;

	for (uint64_t i = 0; i < N; i++)
		add(i, LEN);
	journal_down();
	first = open_segment();
	ck_ok(os_pread_full(first, bytes, sizeof(bytes), 0));
	for (size_t at = 64; at < sizeof(bytes); at += 3) {
		_cleanup_close_ int fd = -1;

		/* A file of its own each time: what holds nothing that counts goes at the end. */
		bytes[at] ^= 0x10;
		ck_ok(os_openat(scratch.dir_fd, "journal/00000001", O_RDWR | O_CREAT | O_TRUNC,
				0600, &fd));
		ck_ok(os_pwrite_full(fd, bytes, sizeof(bytes), 0));
		journal_up();
		expect_seen(0, (at - 64) / SPAN);
		ck_assert(found.damaged == ((at - 64) / SPAN < N - 1));
		journal_down();
		bytes[at] ^= 0x10;
	}
}
END_TEST

START_TEST(another_boot_believes_only_what_was_marked)
{
	uint64_t marked;

	for (uint64_t i = 0; i < 10; i++)
		add(i, 100);
	marked = journal_lsn(journal);
	ck_ok(journal_mark(journal, marked, NULL, 0));
	ck_assert_uint_ge(journal_synced(journal), marked);
	for (uint64_t i = 10; i < 15; i++)
		add(i, 100);
	journal_down();

	setenv("PLYFS_TEST_BOOT_ID", "after the power cut", 1);
	journal_up();
	expect_seen(0, 10);
	ck_assert_uint_eq(found.lost, 5);
	for (uint64_t i = 10; i < 13; i++)
		add(i, 100);
	journal_down();

	/* the same boot: everything since then as well, and never again what was given up */
	journal_up();
	expect_seen(0, 13);
	ck_assert_uint_eq(found.lost, 0);
	add(13, 100); /* in a third segment, which goes on after the second */
	journal_down();
	journal_up();
	expect_seen(0, 14);
	journal_down();

	setenv("PLYFS_TEST_BOOT_ID", "a second one", 1);
	journal_up();
	expect_seen(0, 10);
	ck_assert_uint_eq(found.lost, 4);
	ck_assert(!found.damaged);
}
END_TEST

/* One mark may be whole behind what was lost with it: that of the sync that was under way. */
START_TEST(a_power_cut_is_told_from_damage_by_the_marks_behind)
{
	enum { SPAN = 24 + 104, MARK = 24 + 8 };

	for (uint64_t lost = 3; lost-- > 1;) {
		_cleanup_close_ int fd = -1;

		for (uint64_t i = 0; i < 3; i++) {
			add(i, 104);
			ck_ok(journal_mark(journal, journal_lsn(journal), NULL, 0));
		}
		journal_down();
		fd = open_segment();
		ck_ok(os_pwrite_full(fd, "x", 1, 64 + lost * (SPAN + MARK) + 50));
		setenv("PLYFS_TEST_BOOT_ID", "after the power cut", 1);
		journal_up();
		expect_seen(0, lost);
		ck_assert(found.damaged == (lost == 1));
		unsetenv("PLYFS_TEST_BOOT_ID");
		journal_down();
		scratch_remove(&scratch);
		setup();
	}
}
END_TEST

static void mark_with(uint64_t lsn, const char *text)
{
	size_t len = strlen(text);
	_cleanup_free_ struct journal_mark_bytes *copy = calloc(1, sizeof(*copy) + len);

	put_le32(copy->file, 7);
	put_le32(copy->place, 4096);
	memcpy(copy->bytes, text, len);
	ck_ok(journal_mark(journal, lsn, copy, len));
}

START_TEST(another_boot_gets_what_marks_have_of_the_stage)
{
	uint64_t earlier;

	for (uint64_t i = 0; i < 4; i++) {
		add(i, 100);
		mark_with(journal_lsn(journal), (char[]){ (char)('a' + i), '\0' });
		if (i == 1) /* the stage was synced, and has what is before */
			ck_ok(journal_mark(journal, journal_lsn(journal), NULL, 0));
	}
	earlier = journal_lsn(journal);
	add(4, 100);
	mark_with(earlier, "e"); /* it says nothing of the record before it */
	journal_down();
	journal_up();
	ck_assert_str_eq(copies, ""); /* they are in the page cache */
	expect_seen(0, 5);
	journal_down();

	setenv("PLYFS_TEST_BOOT_ID", "after the power cut", 1);
	for (int again = 0; again < 2; again++) {
		journal_up();
		ck_assert_str_eq(copies, "cde");
		expect_seen(0, 4);
		ck_assert_uint_eq(found.lost, 1);
		if (again)
			add(4, 100);
		journal_down();
	}

	/* Who wrote that segment had put them in place. */
	setenv("PLYFS_TEST_BOOT_ID", "a second one", 1);
	journal_up();
	ck_assert_str_eq(copies, "");
	expect_seen(0, 4);
}
END_TEST

START_TEST(what_marks_have_of_the_stage_stays_until_a_whole_mark)
{
	for (int whole = 0; whole < 2; whole++) {
		uint64_t lsn;

		add(0, 4000);
		mark_with(journal_lsn(journal), "x");
		do
			lsn = add(1, 4000);
		while (journal_bytes(journal) < 2 * SEGMENT_BYTES);
		add(2, 4000);
		ck_assert(journal_release(journal, lsn));
		ck_assert_uint_eq(journal_bytes(journal), 2 * SEGMENT_BYTES);
		if (whole)
			ck_ok(journal_mark(journal, lsn, NULL, 0));
		else /* or until nothing can refer to it */
			lsn = journal_lsn(journal);
		ck_assert(!journal_release(journal, lsn));
		ck_assert_uint_eq(journal_bytes(journal), SEGMENT_BYTES);
	}
}
END_TEST

static int spare_is_there(void)
{
	return faccessat(scratch.dir_fd, "journal/spare", F_OK, 0) == 0;
}

static void fill_a_segment(void)
{
	uint64_t bytes = journal_bytes(journal);

	while (journal_bytes(journal) == bytes)
		add(0, 4000);
}

/* J7: a power cut must not bring a number back whose file is written over. */
START_TEST(a_file_is_used_again_when_it_is_durable_that_it_went)
{
	fill_a_segment();
	for (int round = 0; round < 2; round++) {
		fill_a_segment();
		journal_release(journal, journal_lsn(journal) - 1);
		ck_assert(spare_is_there());
		fill_a_segment();
		ck_assert(spare_is_there());
		ck_ok(journal_mark(journal, journal_lsn(journal), NULL, 0));
		fill_a_segment();
		ck_assert(!spare_is_there());
	}
	ck_ok(journal_mark(journal, journal_lsn(journal), NULL, 0));
	fault_arm(1000, 1, EIO);
	ck_ok(journal_mark(journal, journal_lsn(journal), NULL, 0));
	ck_assert_int_eq(fault_ticks(), 1); /* the segment's sync */
	journal_release(journal, journal_lsn(journal) - 1);
	fault_arm(1000, 1, EIO);
	ck_ok(journal_mark(journal, journal_lsn(journal), NULL, 0));
	ck_assert_int_eq(fault_ticks(), 2); /* and the directory's, which lost one */
}
END_TEST

START_TEST(and_the_next_daemon_keeps_it_as_well)
{
	uint64_t lsn = add(0, 4000);

	mark_with(lsn, "x");
	do
		lsn = add(1, 4000);
	while (journal_bytes(journal) < 2 * SEGMENT_BYTES);
	add(2, 4000);
	ck_assert(journal_release(journal, lsn));
	journal_down();
	journal_up();
	ck_assert(journal_release(journal, lsn));
	ck_assert_uint_gt(journal_bytes(journal), SEGMENT_BYTES);
	journal_copies_in_place(journal);
	ck_assert(!journal_release(journal, lsn));
	ck_assert_uint_lt(journal_bytes(journal), SEGMENT_BYTES);
}
END_TEST

/* A daemon may be killed when its mark is there and the sync of that is not over. */
START_TEST(a_mark_that_was_read_proves_no_sync)
{
	uint64_t lsn = add(0, 100);

	ck_ok(journal_mark(journal, lsn, NULL, 0));
	lsn = add(1, 100);
	mark_fails(lsn);
	journal_down();
	journal_up();
	expect_seen(0, 2);
	ck_assert_uint_lt(journal_synced(journal), lsn);
	ck_ok(journal_mark(journal, lsn, NULL, 0));
	ck_assert_uint_ge(journal_synced(journal), lsn);
}
END_TEST

/* The sync of the directory fails first, then that of a segment. */
START_TEST(after_a_failed_sync_nothing_is_durable_until_it_is_covered)
{
	for (int n = 0; n < 2; n++) {
		uint64_t before, lsn = add(1, 100);
		int was;

		mark_fails(lsn);
		/* it would succeed, and prove nothing */
		ck_err(journal_mark(journal, lsn, NULL, 0), -EIO);
		before = journal_lsn(journal);
		lsn = add(2, 100);
		ck_err(journal_mark(journal, lsn, NULL, 0), -EIO);
		was = files();
		journal_release(journal, before);
		ck_assert_int_le(files(), was); /* gone, or the spare one */
		/* the one that came meanwhile may refer to bytes from before */
		ck_err(journal_mark(journal, lsn, NULL, 0), -EIO);
		add(3, 100);
		journal_release(journal, lsn);
		lsn = journal_lsn(journal);
		ck_ok(journal_mark(journal, lsn, NULL, 0));
		ck_assert_uint_ge(journal_synced(journal), lsn);
		journal_release(journal, journal_lsn(journal));
	}
	add(3, 100);
	ck_ok(journal_mark(journal, journal_lsn(journal), NULL, 0));
	journal_down();
	setenv("PLYFS_TEST_BOOT_ID", "after the power cut", 1);
	journal_up();
	ck_assert_uint_eq(seen[n_seen - 1], 3);
	ck_assert(!found.damaged);
}
END_TEST

/* Records are written through a mapping, but room ahead of them is made by writes. */
START_TEST(a_write_that_fails_proves_as_little_as_a_sync)
{
	uint64_t lsn = add(0, 100);

	ck_ok(journal_mark(journal, lsn, NULL, 0));
	lsn = add(1, 100);
	fault_arm(0, 1, EIO);
	while (fault_ticks() == 0)
		add(2, 1000);
	fault_disarm();
	ck_err(journal_mark(journal, lsn, NULL, 0), -EIO);
	ck_assert_uint_lt(journal_synced(journal), lsn);
	journal_release(journal, journal_lsn(journal));
	journal_release(journal, journal_lsn(journal));
	lsn = add(3, 100);
	ck_ok(journal_mark(journal, lsn, NULL, 0));

	/* It is the mark itself that meets it, and its sync succeeds. */
	while (journal->warm - journal->newest->used >= RECORD_OVERHEAD)
		lsn = add(4, 8);
	fault_arm(0, 1, EIO);
	ck_err(journal_mark(journal, lsn, NULL, 0), -EIO);
	ck_assert_int_gt(fault_ticks(), 1);
	fault_disarm();
	ck_assert_uint_lt(journal_synced(journal), lsn);
}
END_TEST

/* A copy keeps a segment that may have lost its end: a reader would not come to what follows. */
START_TEST(after_a_failed_sync_no_mark_follows_what_may_be_torn)
{
	uint64_t lsn = add(0, 100), torn;

	mark_with(lsn, "x");
	torn = add(1, 100);
	mark_fails(torn);
	ck_err(journal_mark(journal, torn, NULL, 0), -EIO);
	torn = journal_lsn(journal);
	lsn = add(2, 100); /* in the next segment */
	(void)journal_release(journal, torn);
	add(3, 100);
	(void)journal_release(journal, lsn); /* a second round */
	ck_err(journal_mark(journal, lsn, NULL, 0), -EIO);
	journal_copies_in_place(journal);
	ck_assert(!journal_release(journal, lsn));
	ck_assert_int_ne(faccessat(scratch.dir_fd, "journal/00000001", F_OK, 0), 0);
	ck_ok(journal_mark(journal, journal_lsn(journal), NULL, 0));
}
END_TEST

START_TEST(a_full_disk_is_told_when_room_is_asked_for)
{
	uint64_t n = 0;
	int r;

	add(n++, 4000);
	fault_arm(1, 1000000, ENOSPC); /* memory there is */
	while ((r = journal_reserve(journal, 4032, false)) == 0) {
		journal_unreserve(journal, 4032);
		add(n++, 4000);
		fault_arm(1, 1000000, ENOSPC);
	}
	ck_err(r, -ENOSPC);
	/* the table's own records still find room */
	ck_ok(journal_reserve(journal, 50000, true));
	journal_unreserve(journal, 50000);
	fault_disarm();
	add(n++, 4000);
	journal_down();
	journal_up();
	expect_seen(0, n);
}
END_TEST

START_TEST(without_room_for_a_new_file_the_spare_one_is_taken)
{
	static const int full[] = { ENOSPC, EDQUOT };

	for (size_t i = 0; i < ARRAY_SIZE(full); i++) {
		uint64_t bytes;

		while (journal_bytes(journal) < 2 * SEGMENT_BYTES)
			add(0, 4000);
		journal_release(journal, journal_lsn(journal) - 1);
		bytes = journal_bytes(journal);
		while (journal_bytes(journal) == bytes) {
			fault_arm(1, 1, full[i]); /* memory there is */
			add(0, 4000);
			fault_disarm();
		}
	}
}
END_TEST

/* ---- decoding ---- */

START_TEST(table_operations_are_written_and_read)
{
	uint8_t buf[TABLE_OP_MAX + 10];
	struct table_op op = {
		.kind = TABLE_SWITCH,
		.state = STATE_BRANCH,
		.branch = "main",
		.from = "other",
		.label = "a label",
		.flags = 3,
		.seq = 7,
		.snap = 8,
		.kept = 9,
		.undo = 10,
		.lineage = 11,
		.changes = 12,
		.time_ns = -13,
		.root = { { 1, 2, 3 } },
		.items = (const uint8_t *)"0123456789",
		.items_len = 10,
	};
	struct table_op got;
	uint8_t again[sizeof(buf)];
	size_t len = table_op_encode(&op, buf);

	ck_ok(table_op_decode(buf, len, &got));
	ck_assert_str_eq(got.branch, "main");
	ck_assert_str_eq(got.from, "other");
	ck_assert_str_eq(got.label, "a label");
	ck_assert_int_eq(got.time_ns, -13);
	ck_assert_uint_eq(got.items_len, 10);
	ck_assert_uint_eq(table_op_encode(&got, again), len);
	ck_assert_mem_eq(again, buf, len);
	for (size_t i = 0; i < len - 10; i++)
		ck_err(table_op_decode(buf, i, &got), -ERR_JOURNAL_DAMAGED);
}
END_TEST

/* They come from the disk, and have what no encoder makes. */
START_TEST(table_operations_make_sense_or_are_refused)
{
	static const struct {
		uint16_t at; /* behind the head, names and label follow each other */
		uint8_t value;
	} bad[] = {
		{ 0, 0 }, { 0, TABLE_DROP_SNAP + 1 },  /* kind */
		{ 1, STATE_ITEMS + 1 },                /* state */
		{ 5, 1 }, { 6, 1 }, { 7, 1 },          /* reserved */
		{ 12, 1 }, { 15, 1 },
		{ 2, BRANCH_NAME_MAX + 1 }, { 3, BRANCH_NAME_MAX + 1 }, /* lengths */
		{ TABLE_OP_HEAD, 0 },                            /* a name's first byte */
		{ TABLE_OP_HEAD + 2 * BRANCH_NAME_MAX, 0 },      /* the label's */
		{ TABLE_OP_MAX - 1, 0 },                         /* and its last */
	};
	uint8_t buf[TABLE_OP_MAX + 100], good[sizeof(buf)];
	struct table_op op = { .kind = TABLE_DROP_SNAP, .state = STATE_ITEMS }, got;
	size_t len;

	memset(op.branch, 'b', BRANCH_NAME_MAX);
	memset(op.from, 'f', BRANCH_NAME_MAX);
	memset(op.label, 'l', LABEL_MAX);
	op.items = good; /* some bytes */
	memset(good, 'i', 100);
	op.items_len = 100;
	len = table_op_encode(&op, buf);
	ck_assert_uint_eq(len, sizeof(buf));
	memcpy(good, buf, len);
	ck_ok(table_op_decode(buf, len, &got));
	ck_assert_str_eq(got.label, op.label);
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		memcpy(buf, good, len);
		buf[bad[i].at] = bad[i].value;
		ck_err(table_op_decode(buf, len, &got), -ERR_JOURNAL_DAMAGED);
	}
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		records_come_back_in_order,
		what_was_not_read_stays,
		a_record_may_be_larger_than_a_segment,
		what_is_covered_goes_and_the_rest_stays,
		a_recycled_segment_shows_nothing_of_its_past,
		a_torn_tail_is_the_end,
		what_looks_like_many_records_takes_no_time,
		damage_in_the_middle_is_told_and_what_is_before_it_kept,
		a_segment_that_was_cut_to_nothing_is_told,
		a_segment_that_is_absurdly_long_is_read,
		a_header_that_is_damaged_is_told,
		a_segment_that_is_missing_is_named_and_what_it_cuts_off_counted,
		a_journal_that_goes_on_behind_what_is_covered_is_given_up,
		what_cannot_be_read_is_given_up_and_the_rest_counted,
		every_flipped_byte_is_noticed,
		another_boot_believes_only_what_was_marked,
		a_power_cut_is_told_from_damage_by_the_marks_behind,
		another_boot_gets_what_marks_have_of_the_stage,
		what_marks_have_of_the_stage_stays_until_a_whole_mark,
		and_the_next_daemon_keeps_it_as_well,
		a_file_is_used_again_when_it_is_durable_that_it_went,
		a_mark_that_was_read_proves_no_sync,
		after_a_failed_sync_nothing_is_durable_until_it_is_covered,
		a_write_that_fails_proves_as_little_as_a_sync,
		after_a_failed_sync_no_mark_follows_what_may_be_torn,
		a_full_disk_is_told_when_room_is_asked_for,
		without_room_for_a_new_file_the_spare_one_is_taken,
		table_operations_are_written_and_read,
		table_operations_make_sense_or_are_refused,
	};

	return scratch_run("journal", tests, ARRAY_SIZE(tests), setup, teardown);
}
