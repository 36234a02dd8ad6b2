/* SPDX-License-Identifier: Apache-2.0 */

/* The journal's files: which count, which stay, and what there is room for. */

#include <sys/syscall.h>

#include "store/journal_lost.h"
#include "tests/unit/journal_fixture.h"
#include "tests/unit/meanwhile.h"

static bool is_there(const char *path)
{
	return faccessat(scratch.dir_fd, path, F_OK, 0) == 0;
}

static void fill_a_segment(void)
{
	uint64_t bytes = journal_bytes(journal);

	while (journal_bytes(journal) == bytes)
		add(0, 4000);
}

/* Of another version, say: its checksum is right. */
START_TEST(a_header_that_makes_no_sense_is_told)
{
	struct journal_header_bytes good, bad[4];
	_cleanup_close_ int first = -1;

	add(0, 100);
	first = open_segment();
	ck_ok(os_pread_full(first, &good, sizeof(good), 0));
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		bad[i] = good;
	bad[0].magic[0]++;
	bad[1].version[0]++;
	bad[2].number[0]++;
	bad[3].after[0] = bad[3].base[0] + 1;
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		_cleanup_close_ int fd = -1;

		journal_down();
		scratch_remove(&scratch);
		scratch_make(&scratch);
		journal_up();
		add(0, 100);
		journal_down();
		put_le64(bad[i].sum,
			 hash64(&bad[i], offsetof(struct journal_header_bytes, sum), 0));
		fd = open_segment();
		ck_ok(os_pwrite_full(fd, &bad[i], sizeof(bad[i]), 0));
		journal_up();
		ck_assert_uint_eq(scratch.notes, 1);
		ck_assert_ptr_nonnull(strstr(scratch.last_note, "no valid header"));
		ck_assert_uint_eq(n_seen, 0);
		ck_assert(!is_there("journal/00000001"));
	}
}
END_TEST

/* Or there would be a gap, which is damage. */
START_TEST(behind_a_segment_that_cannot_be_removed_all_stay)
{
	for (int i = 0; i < 3; i++)
		fill_a_segment();
	fault_arm(0, 2, EIO); /* it cannot be kept for later either */
	(void)journal_release(journal, journal_lsn(journal));
	fault_disarm();
	ck_assert(is_there("journal/00000001") && is_there("journal/00000002"));
	journal_down();
	journal_up();
	ck_assert(!found.damaged);
	ck_assert_uint_eq(scratch.notes, 0);
}
END_TEST

static unsigned unlinked; /* while nobody could have had to wait for it */
static bool watching;

static void *look(void *arg)
{
	(void)journal_lsn(journal); /* wants the lock, as every change does */
	return NULL;
}

/* Stands for libc's. */
int unlinkat(int dir_fd, const char *path, int flags)
{
	if (watching) {
		ck_meanwhile(look);
		unlinked++;
	}
	return (int)syscall(SYS_unlinkat, dir_fd, path, flags);
}

START_TEST(nobody_waits_for_segments_to_go)
{
	for (int i = 0; i < 4; i++)
		fill_a_segment();
	watching = true;
	(void)journal_release(journal, journal_lsn(journal));
	watching = false;
	ck_assert_uint_eq(unlinked, 2); /* one is kept for later, and one is open */
	ck_assert_int_eq(files(), 2);
}
END_TEST

START_TEST(of_what_is_covered_nothing_is_left_behind)
{
	for (int i = 0; i < 2; i++)
		fill_a_segment();
	(void)journal_release(journal, journal_lsn(journal));
	journal_down();
	ck_assert_int_eq(files(), 0);
	journal_up();
}
END_TEST

START_TEST(only_the_segment_that_is_written_is_mapped)
{
	FILE *maps;
	char line[5000];
	unsigned n = 0;

	for (int i = 0; i < 3; i++)
		fill_a_segment();
	maps = fopen("/proc/self/maps", "r");
	ck_assert_ptr_nonnull(maps);
	while (fgets(line, sizeof(line), maps))
		n += strstr(line, "/journal/") != NULL;
	(void)fclose(maps);
	ck_assert_uint_eq(n, 1);
}
END_TEST

START_TEST(a_file_that_there_is_no_room_for_is_not_left)
{
	for (int n = 0; n < 3; n++) { /* memory, the file, its blocks */
		fault_arm(n, 100, ENOSPC);
		ck_err(journal_reserve(journal, 1000, false), n == 0 ? -ENOMEM : -ENOSPC);
		fault_disarm();
		journal_down();
		journal_up();
		ck_assert(!is_there("journal/new"));
	}
}
END_TEST

/* A new daemon has no segment with a rest for drops, by which a full disk can be emptied. */
START_TEST(what_makes_room_on_a_full_disk_wants_no_whole_segment)
{
	static const int full[] = { ENOSPC, EDQUOT };
	uint8_t payload[100] = { 0 };
	uint64_t n = 0;

	for (unsigned i = 8; i < sizeof(payload); i++)
		payload[i] = (uint8_t)i; /* as add */
	for (size_t i = 0; i < ARRAY_SIZE(full); i++) {
		uint64_t bytes = journal_bytes(journal);

		fault_arm(2, 4, full[i]); /* its blocks, see above, and a piece of it */
		ck_err(journal_reserve(journal, 1000, false), -full[i]);
		fault_arm(2, 4, full[i]);
		ck_ok(journal_reserve(journal, 1000, true));
		fault_disarm();
		ck_assert_uint_lt(journal_bytes(journal) - bytes, 128 << 10);
		ck_assert(!is_there("journal/new"));
		n = journal_append(journal, JOURNAL_CHANGE, payload, sizeof(payload), 1000, NULL,
				   NULL, NULL);
		ck_ok(journal_mark(journal, n, NULL, 0));
		ck_assert_uint_lt(journal_bytes(journal) - bytes, 128 << 10);
		ck_assert_uint_gt(add(0, 4000), n); /* with room there is a whole one again */
		ck_assert_uint_gt(journal_bytes(journal) - bytes, SEGMENT_BYTES);
		journal_down();
		journal_up();
		ck_assert_uint_eq(n_seen, 2);
		journal_release(journal, journal_lsn(journal));
		journal_down(); /* the spare one goes */
		journal_up();
	}
}
END_TEST

START_TEST(where_a_whole_segment_does_not_fit_a_piece_of_one_is_taken)
{
	fault_arm(2, 1, ENOSPC);
	add(0, 1000);
	fault_disarm();
	ck_assert_uint_eq(journal_bytes(journal), SEGMENT_BYTES / 8);
	ck_assert(!is_there("journal/new"));
	fill_a_segment();
	ck_assert_uint_eq(journal_bytes(journal), SEGMENT_BYTES / 8 + SEGMENT_BYTES);
	journal_down();
	journal_up();
	ck_assert_uint_gt(n_seen, 100);
	ck_assert_uint_eq(found.lost, 0);
}
END_TEST

/* On a full disk it is the only room for one of its own. */
START_TEST(the_next_daemon_takes_what_the_last_segment_has_not_used)
{
	add(0, 1000);
	fill_a_segment();
	add(1, 1000);
	journal_down();
	for (int i = 0; i < 2; i++) {
		journal_up();
		ck_assert_uint_gt(journal_bytes(journal), SEGMENT_BYTES);
		ck_assert_uint_lt(journal_bytes(journal), SEGMENT_BYTES + 16000);
		ck_assert_uint_eq(seen[n_seen - 1], 1);
		ck_assert_uint_eq(found.lost, 0);
		ck_assert(!found.damaged);
		journal_down();
	}
	journal_up();
	add(2, 1000);
	journal_down();
	journal_up();
	ck_assert_uint_eq(seen[n_seen - 1], 2);
}
END_TEST

START_TEST(the_journal_does_not_grow_without_end)
{
	ck_err(journal_reserve(journal, JOURNAL_LIMIT, false), -ENOSPC);
	add(0, 100);
}
END_TEST

/* Else each fsync on a full disk would wait for a commit of the index, which has no room. */
START_TEST(for_lack_of_room_nothing_is_torn)
{
	static const int full[] = { ENOSPC, EDQUOT };

	for (size_t i = 0; i < ARRAY_SIZE(full); i++) {
		add(0, 100);
		fault_arm(0, 1, full[i]);
		while (fault_ticks() == 0) /* zeros for records to come */
			add(1, 1000);
		fault_disarm();
		ck_ok(journal_mark(journal, journal_lsn(journal), NULL, 0));
	}
}
END_TEST

START_TEST(a_mark_syncs_what_was_finished_before_it)
{
	add(0, 100);
	ck_ok(journal_mark(journal, journal_lsn(journal), NULL, 0));
	fill_a_segment();
	fault_arm(1000, 1, EIO);
	ck_ok(journal_mark(journal, journal_lsn(journal), NULL, 0));
	ck_assert_int_ge(fault_ticks(), 3); /* the one before, the directory, its own */
}
END_TEST

/* The index may have numbers that the journal, which lost its end, has not. */
START_TEST(numbers_go_on_beyond_those_that_are_covered)
{
	for (uint64_t n = 0; n < 3; n++)
		add(n, 100);
	journal_down();
	journal_up();
	journal_start(journal, 1000);
	ck_assert_uint_gt(add(3, 100), 1000);
	journal_down();
	journal_up();
	expect_seen(0, 4);
	ck_assert(!found.damaged);
	ck_assert_uint_gt(add(4, 100), 1001);
}
END_TEST

/* ---- what damage took ---- */

START_TEST(only_what_the_disk_cannot_read_is_given_up)
{
	const struct noter noter = { .fn = scratch_note, .arg = &scratch };

	for (uint64_t n = 0; n < 10; n++)
		add(n, 100);
	journal_down();
	ck_ok(journal_give_up(scratch.dir_fd, &noter));
	for (int n = 0; n < 10; n++) { /* it is memory that is missing */
		fault_arm(n, 1, ENOMEM);
		ck_assert_int_le(journal_give_up(scratch.dir_fd, &noter), 0);
		fault_disarm();
	}
	ck_assert_uint_eq(scratch.notes, 0);
	journal_up();
	expect_seen(0, 10);
}
END_TEST

static int count_change(void *arg, uint64_t lsn, enum journal_kind kind, const uint8_t *payload,
			size_t len)
{
	ck_assert_int_eq(kind, JOURNAL_CHANGE);
	++*(unsigned *)arg;
	return 0;
}

START_TEST(a_mark_is_no_operation_that_was_lost)
{
	_cleanup_close_ int fd = -1;
	unsigned lost = 0;

	for (uint64_t n = 0; n < 10; n++) {
		add(n, 100);
		ck_ok(journal_mark(journal, journal_lsn(journal), NULL, 0));
	}
	journal_down();
	fd = open_segment();
	ck_ok(os_pwrite_full(fd, "x", 1, sizeof(struct journal_header_bytes) + RECORD_HEADER + 50));
	journal_up();
	ck_assert(found.damaged);
	ck_assert_uint_eq(n_seen, 0);
	ck_ok(journal_each_lost(journal, count_change, &lost));
	ck_assert_uint_eq(lost, 9);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		a_header_that_makes_no_sense_is_told,
		behind_a_segment_that_cannot_be_removed_all_stay,
		nobody_waits_for_segments_to_go,
		of_what_is_covered_nothing_is_left_behind,
		only_the_segment_that_is_written_is_mapped,
		a_file_that_there_is_no_room_for_is_not_left,
		what_makes_room_on_a_full_disk_wants_no_whole_segment,
		where_a_whole_segment_does_not_fit_a_piece_of_one_is_taken,
		the_next_daemon_takes_what_the_last_segment_has_not_used,
		the_journal_does_not_grow_without_end,
		for_lack_of_room_nothing_is_torn,
		a_mark_syncs_what_was_finished_before_it,
		numbers_go_on_beyond_those_that_are_covered,
		only_what_the_disk_cannot_read_is_given_up,
		a_mark_is_no_operation_that_was_lost,
	};

	return scratch_run("journal_files", tests, ARRAY_SIZE(tests), setup, teardown);
}
