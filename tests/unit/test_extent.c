/* SPDX-License-Identifier: Apache-2.0 */

/* What a file is made of: inline bytes, extents, holes; and what each write costs in extents. */

#include <linux/falloc.h>
#include <pthread.h>

#include "tests/unit/fs_fixture.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * 1024)

static const uint8_t zeros[64 * 1024];

#define LINE_BYTES 100 /* of a log, whose line n is the same in every file */

static void write_line(uint64_t log, unsigned n)
{
	uint8_t line[LINE_BYTES];

	fx_fill(line, sizeof(line), n);
	fx_write(log, n * sizeof(line), line, sizeof(line));
}

static void expect_line(uint64_t log, unsigned n)
{
	uint8_t line[LINE_BYTES];

	fx_fill(line, sizeof(line), n);
	fx_expect(log, n * sizeof(line), line, sizeof(line));
}

START_TEST(small_file_lives_in_its_item)
{
	uint64_t ino = fx_file("f");
	struct segments s;
	uint8_t buf[INLINE_MAX];

	fx_fill(buf, sizeof(buf), 1);
	fx_write(ino, 0, buf, 100);
	fx_write(ino, 100, buf + 100, sizeof(buf) - 100);
	fx_expect(ino, 0, buf, sizeof(buf));

	ck_assert_int_eq(fs_map(&fs, ino, 10, 1000, &s), 0);
	ck_assert_uint_eq(s.n, 1);
	ck_assert_uint_eq(s.len, sizeof(buf) - 10);
	ck_assert(s.seg[0].is_inline);
	ck_assert_int_eq(memcmp(s.inline_bytes, buf + 10, s.len), 0);
	segments_release(&s);
	fx_check_bytes(ino);
	ck_assert_uint_eq(fx_stat(ino).bytes, INLINE_MAX);
}
END_TEST

START_TEST(file_that_outgrows_its_item_keeps_its_bytes)
{
	static const size_t at[] = { 1, 100, 511, 512 };
	uint8_t buf[2000];

	fx_fill(buf, sizeof(buf), 2);
	for (size_t n = 0; n < ARRAY_SIZE(at); n++) {
		char name[2] = { (char)('a' + n), 0 };
		uint64_t ino = fx_file(name);

		fx_write(ino, 0, buf, at[n]);
		fx_write(ino, at[n], buf + at[n], sizeof(buf) - at[n]);
		fx_expect(ino, 0, buf, sizeof(buf));
		ck_assert_uint_eq(fx_items(ino, ITEM_EXTENT), 1);
		fx_check_bytes(ino);
	}
}
END_TEST

START_TEST(gap_behind_inline_bytes_is_a_hole)
{
	uint64_t off, ino = fx_file("f");
	uint8_t buf[3000];

	fx_fill(buf, sizeof(buf), 3);
	fx_write(ino, 0, buf, 100);
	fx_write(ino, 300, buf, 3000);
	fx_expect(ino, 0, buf, 100);
	fx_expect(ino, 100, zeros, 200);
	fx_expect(ino, 300, buf, 3000);
	ck_assert_int_eq(fs_seek(&fs, ino, 0, SEEK_HOLE, &off), 0);
	ck_assert_uint_eq(off, 100);
	ck_assert_int_eq(fs_seek(&fs, ino, 100, SEEK_DATA, &off), 0);
	ck_assert_uint_eq(off, 300);
	fx_check_bytes(ino);
	ck_assert_uint_eq(fx_stat(ino).bytes, 3100);

	/* Over the end of the inline bytes and the hole. */
	fx_write(ino, 50, buf, 200);
	fx_expect(ino, 50, buf, 200);
	fx_expect(ino, 0, buf, 50);
	fx_expect(ino, 250, zeros, 50);
	fx_check_bytes(ino);
}
END_TEST

START_TEST(sequential_writer_gets_full_extents)
{
	uint64_t ino = fx_file("f");
	uint8_t buf[4096];

	for (uint64_t off = 0; off < MIB; off += sizeof(buf)) {
		fx_fill(buf, sizeof(buf), off);
		fx_write(ino, off, buf, sizeof(buf));
	}
	ck_assert_uint_eq(fx_items(ino, ITEM_EXTENT), MIB / BLOB_MAX);
	for (uint64_t off = 0; off < MIB; off += sizeof(buf)) {
		fx_fill(buf, sizeof(buf), off);
		fx_expect(ino, off, buf, sizeof(buf));
	}
	fx_check_bytes(ino);
}
END_TEST

START_TEST(one_large_write_is_cut_at_multiples_of_blob_max)
{
	_cleanup_free_ uint8_t *buf = malloc(MIB);
	uint64_t ino = fx_file("f");
	struct extent e;

	fx_fill(buf, MIB, 4);
	fx_write(ino, 5000, buf, MIB);
	fx_expect(ino, 5000, buf, MIB);
	fx_expect(ino, 0, zeros, 5000);
	ck_assert_int_eq(extent_last(&fs, ino, 300 * KIB, &e), 0);
	ck_assert_uint_eq(e.off, 256 * KIB);
	ck_assert_uint_eq(e.len, BLOB_MAX);
	fx_check_bytes(ino);
}
END_TEST

START_TEST(tiny_appends_make_no_extent_each)
{
	uint64_t ino = fx_file("log");

	for (unsigned n = 0; n < 3000; n++)
		write_line(ino, n);
	ck_assert_uint_eq(fx_items(ino, ITEM_EXTENT), 3); /* 300,000 bytes */
	for (unsigned n = 0; n < 3000; n++)
		expect_line(ino, n);
	fx_check_bytes(ino);
}
END_TEST

START_TEST(appends_between_checkpoints_stay_few_extents)
{
	uint64_t ino = fx_file("log");

	for (unsigned n = 0; n < 1000; n++) {
		struct root *root;

		write_line(ino, n);
		root = fx_freeze();
		ck_assert_int_eq(root_seal(root), 0);
		root_unref(root);
	}
	ck_assert_uint_le(fx_items(ino, ITEM_EXTENT), 24);
	for (unsigned n = 0; n < 1000; n++)
		expect_line(ino, n);
	fx_check_bytes(ino);
}
END_TEST

/* _i: in files that had their size before. */
START_TEST(two_logs_in_turn_stay_few_extents)
{
	uint64_t a = fx_file("a"), b = fx_file("b");

	if (_i) {
		const struct fs_set set = { .mask = SET_SIZE, .size = MIB };
		struct inode i;

		ck_ok(fs_setattr(&fs, a, &set, &i));
		ck_ok(fs_setattr(&fs, b, &set, &i));
	}
	for (unsigned n = 0; n < 1000; n++) {
		write_line(a, n);
		write_line(b, n);
	}
	ck_assert_uint_le(fx_items(a, ITEM_EXTENT), 24);
	ck_assert_uint_le(fx_items(b, ITEM_EXTENT), 24);
	expect_line(b, 999);
	fx_check_bytes(a);
	fx_check_bytes(b);
}
END_TEST

START_TEST(overwriting_own_bytes_costs_nothing)
{
	uint64_t before, after, disk, ino = fx_file("f");
	uint8_t buf[100 * 1024];

	fx_fill(buf, sizeof(buf), 5);
	fx_write(ino, 0, buf, sizeof(buf));
	stage_stats(store_stage(fx_store), &before, &disk);
	for (unsigned n = 0; n < 50; n++) {
		fx_fill(buf + n * 1000, 3000, n);
		fx_write(ino, n * 1000, buf + n * 1000, 3000);
	}
	stage_stats(store_stage(fx_store), &after, &disk);
	ck_assert_uint_eq(before, after);
	ck_assert_uint_eq(fx_items(ino, ITEM_EXTENT), 1);
	fx_expect(ino, 0, buf, sizeof(buf));
	fx_check_bytes(ino);
}
END_TEST

START_TEST(overwrite_after_a_freeze_leaves_the_frozen_bytes)
{
	struct root *root;
	struct fs old = fs;
	uint64_t ino = fx_file("f");
	uint8_t buf[10000], other[5000], got[10000];
	size_t n;

	fx_fill(buf, sizeof(buf), 6);
	fx_fill(other, sizeof(other), 7);
	fx_write(ino, 0, buf, sizeof(buf));
	root = fx_freeze();
	fx_write(ino, 2000, other, sizeof(other));
	fx_write(ino, 10000, other, sizeof(other)); /* grows the shared blob, or makes a new one */

	old.tree = fx_tree(root);
	ck_assert_int_eq(fs_read(&old, ino, 0, got, sizeof(got), &n), 0);
	ck_assert_uint_eq(n, sizeof(got));
	ck_assert_int_eq(memcmp(got, buf, sizeof(buf)), 0);
	fx_expect(ino, 2000, other, sizeof(other));
	fx_expect(ino, 10000, other, sizeof(other));
	fx_check_bytes(ino);
	tree_free(old.tree);
	root_unref(root);
}
END_TEST

START_TEST(mapped_bytes_survive_an_overwrite)
{
	uint64_t ino = fx_file("f");
	uint8_t buf[8192], got[8192];
	struct segments s;

	fx_fill(buf, sizeof(buf), 8);
	fx_write(ino, 0, buf, sizeof(buf));
	ck_assert_int_eq(fs_map(&fs, ino, 0, sizeof(buf), &s), 0);
	fx_write(ino, 0, zeros, sizeof(buf));
	ck_assert_int_eq(segments_read(fx_store, &s, got), 0);
	ck_assert_int_eq(memcmp(got, buf, sizeof(buf)), 0);
	segments_release(&s);
	fx_expect(ino, 0, zeros, sizeof(buf));
}
END_TEST

START_TEST(write_in_the_middle_of_a_large_file_costs_a_few_items)
{
	_cleanup_free_ uint8_t *buf = malloc(MIB);
	uint64_t unsealed, before, disk, ino = fx_file("f");
	struct root *root;
	unsigned extents;

	fx_fill(buf, MIB, 9);
	for (unsigned n = 0; n < 64; n++)
		fx_write(ino, n * MIB, buf, MIB);
	root = fx_freeze();
	ck_assert_int_eq(root_seal(root), 0);
	extents = fx_items(ino, ITEM_EXTENT);
	stage_stats(store_stage(fx_store), &before, &disk);

	fx_write(ino, 32 * MIB + 8192, zeros, 4096);
	stage_stats(store_stage(fx_store), &unsealed, &disk);
	ck_assert_uint_eq(unsealed - before, 4096);
	ck_assert_uint_eq(fx_items(ino, ITEM_EXTENT), extents + 2);
	fx_expect(ino, 32 * MIB + 8192, zeros, 4096);
	fx_expect(ino, 32 * MIB, buf, 8192);
	fx_expect(ino, 32 * MIB + 12288, buf + 12288, 200000);
	fx_check_bytes(ino);

	/* The next block, which cannot go on in the same blob any more, costs no more. */
	fx_write(fx_file("other"), 0, buf, 4096);
	fx_write(ino, 32 * MIB + 12288, zeros, 4096);
	stage_stats(store_stage(fx_store), &unsealed, &disk);
	ck_assert_uint_eq(unsealed - before, 3 * 4096);
	fx_expect(ino, 32 * MIB + 8192, zeros, 8192);
	fx_check_bytes(ino);
	root_unref(root);
}
END_TEST

START_TEST(writes_over_whole_extents_replace_them)
{
	uint64_t ino = fx_file("f");
	_cleanup_(root_unrefp) struct root *root = NULL;
	struct fs old = fs;
	uint8_t buf[4096];

	/* Blocks in an order in which none can go on in the blob before it. */
	for (unsigned n = 0; n < 32; n++) {
		fx_fill(buf, sizeof(buf), n * 7 % 32);
		fx_write(ino, n * 7 % 32 * sizeof(buf), buf, sizeof(buf));
	}
	ck_assert_uint_eq(fx_items(ino, ITEM_EXTENT), 32);
	root = fx_freeze();
	old.tree = fx_tree(root);
	for (unsigned n = 0; n < 31; n++) { /* all but the last: at its end a file is appended to */
		fx_fill(buf, sizeof(buf), 100 + n * 5 % 31);
		fx_write(ino, n * 5 % 31 * sizeof(buf), buf, sizeof(buf));
		fx_check_bytes(ino);
	}
	ck_assert_uint_eq(fx_items(ino, ITEM_EXTENT), 32);
	for (unsigned n = 0; n < 31; n++) {
		uint8_t got[sizeof(buf)];
		size_t len;

		fx_fill(buf, sizeof(buf), 100 + n);
		fx_expect(ino, n * sizeof(buf), buf, sizeof(buf));
		fx_fill(buf, sizeof(buf), n);
		ck_assert_int_eq(fs_read(&old, ino, n * sizeof(buf), got, sizeof(got), &len), 0);
		ck_assert_mem_eq(got, buf, sizeof(buf));
	}
	tree_free(old.tree);

	/* In order, after another freeze, they become one again. */
	root_unref(root);
	root = fx_freeze();
	for (unsigned n = 0; n < 32; n++) {
		fx_fill(buf, sizeof(buf), 200 + n);
		fx_write(ino, n * sizeof(buf), buf, sizeof(buf));
	}
	ck_assert_uint_eq(fx_items(ino, ITEM_EXTENT), 1);
	for (unsigned n = 0; n < 32; n++) {
		fx_fill(buf, sizeof(buf), 200 + n);
		fx_expect(ino, n * sizeof(buf), buf, sizeof(buf));
	}
	fx_check_bytes(ino);
}
END_TEST

START_TEST(small_overwrite_takes_the_block_around_it)
{
	uint64_t ino = fx_file("f");
	struct root *root;
	uint8_t buf[20000];

	fx_fill(buf, sizeof(buf), 10);
	fx_write(ino, 0, buf, sizeof(buf));
	root = fx_freeze();
	for (unsigned n = 0; n < 40; n++) {
		fx_fill(buf + 8200 + n * 10, 10, n);
		fx_write(ino, 8200 + n * 10, buf + 8200 + n * 10, 10);
	}
	ck_assert_uint_eq(fx_items(ino, ITEM_EXTENT), 3);
	fx_expect(ino, 0, buf, sizeof(buf));
	fx_check_bytes(ino);
	root_unref(root);
}
END_TEST

START_TEST(sparse_file_of_16_tib)
{
	struct fs_set set = { .mask = SET_SIZE, .size = FILE_SIZE_MAX };
	uint64_t off, ino = fx_file("f");
	uint8_t buf[100];
	struct inode i;

	ck_assert_int_eq(fs_setattr(&fs, ino, &set, &i), 0);
	fx_fill(buf, sizeof(buf), 12);
	fx_write(ino, FILE_SIZE_MAX - 100, buf, 100);
	fx_write(ino, FILE_SIZE_MAX / 2 + 1, buf, 100);
	ck_assert_int_eq(fs_write(&fs, ino, FILE_SIZE_MAX - 99, buf, 100, false), -EFBIG);
	ck_assert_int_eq(fs_write(&fs, ino, FILE_SIZE_MAX, buf, 1, false), -EFBIG);
	ck_assert_int_eq(fs_write(&fs, ino, UINT64_MAX, buf, 1, false), -EFBIG);
	set.size = FILE_SIZE_MAX + 1;
	ck_assert_int_eq(fs_setattr(&fs, ino, &set, &i), -EFBIG);

	fx_expect(ino, FILE_SIZE_MAX - 100, buf, 100);
	fx_expect(ino, FILE_SIZE_MAX / 4, zeros, sizeof(zeros));
	ck_assert_int_eq(fs_seek(&fs, ino, 0, SEEK_DATA, &off), 0);
	ck_assert_uint_eq(off, FILE_SIZE_MAX / 2 + 1);
	ck_assert_int_eq(fs_seek(&fs, ino, off, SEEK_HOLE, &off), 0);
	ck_assert_uint_eq(off, FILE_SIZE_MAX / 2 + 101);
	ck_assert_int_eq(fs_seek(&fs, ino, off, SEEK_DATA, &off), 0);
	ck_assert_uint_eq(off, FILE_SIZE_MAX - 100);
	ck_assert_int_eq(fs_seek(&fs, ino, off, SEEK_HOLE, &off), 0);
	ck_assert_uint_eq(off, FILE_SIZE_MAX);
	ck_assert_int_eq(fs_seek(&fs, ino, off, SEEK_HOLE, &off), -ENXIO);
	ck_assert_uint_eq(fx_stat(ino).bytes, 200);
	fx_check_bytes(ino);
}
END_TEST

START_TEST(mapping_a_huge_hole_goes_on_in_steps)
{
	struct fs_set set = { .mask = SET_SIZE, .size = FILE_SIZE_MAX };
	uint64_t done = 0, ino = fx_file("f");
	struct inode i;
	struct segments s;

	ck_assert_int_eq(fs_setattr(&fs, ino, &set, &i), 0);
	while (done < FILE_SIZE_MAX) {
		ck_assert_int_eq(fs_map(&fs, ino, done, UINT64_MAX, &s), 0);
		ck_assert_uint_gt(s.len, 0);
		done += s.len;
		segments_release(&s);
	}
	ck_assert_uint_eq(done, FILE_SIZE_MAX);
	ck_assert_int_eq(fs_map(&fs, ino, done, 10, &s), 0);
	ck_assert_uint_eq(s.len, 0);
}
END_TEST

START_TEST(seek_is_exact_to_the_byte)
{
	uint64_t off, ino = fx_file("f");
	uint8_t buf[5000];

	fx_fill(buf, sizeof(buf), 13);
	ck_assert_int_eq(fs_seek(&fs, ino, 0, SEEK_DATA, &off), -ENXIO);
	fx_write(ino, 0, buf, sizeof(buf));
	ck_assert_int_eq(
		fs_fallocate(&fs, ino, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 1001, 77), 0);
	ck_assert_int_eq(fs_seek(&fs, ino, 0, SEEK_HOLE, &off), 0);
	ck_assert_uint_eq(off, 1001);
	ck_assert_int_eq(fs_seek(&fs, ino, 1001, SEEK_HOLE, &off), 0);
	ck_assert_uint_eq(off, 1001);
	ck_assert_int_eq(fs_seek(&fs, ino, 1001, SEEK_DATA, &off), 0);
	ck_assert_uint_eq(off, 1078);
	ck_assert_int_eq(fs_seek(&fs, ino, 1078, SEEK_HOLE, &off), 0);
	ck_assert_uint_eq(off, 5000);
	ck_assert_int_eq(fs_seek(&fs, ino, 5000, SEEK_DATA, &off), -ENXIO);
	ck_assert_int_eq(fs_seek(&fs, ino, 0, SEEK_END, &off), -EINVAL);
	ck_assert_uint_eq(fx_stat(ino).bytes, 5000 - 77);
	fx_check_bytes(ino);
}
END_TEST

/* ---- where pieces begin ---- */

static void seal(void)
{
	_cleanup_(root_unrefp) struct root *root = fx_freeze();

	ck_assert_int_eq(root_seal(root), 0);
}

static void write_bytes(uint64_t ino, const uint8_t *bytes, uint64_t off, uint64_t end)
{
	fx_write(ino, off, bytes + off, end - off);
}

/* Extents begin there and nowhere else, and the file ends with these bytes. */
static void expect_pieces(uint64_t ino, const uint8_t *bytes, uint64_t end, const uint64_t *begins,
			  size_t n)
{
	struct extent e;

	ck_assert_uint_eq(fx_items(ino, ITEM_EXTENT), n);
	for (size_t i = 0; i < n; i++) {
		ck_assert_int_eq(extent_last(&fs, ino, begins[i], &e), 0);
		ck_assert_uint_eq(e.off, begins[i]);
	}
	fx_expect(ino, begins[n - 1], bytes + begins[n - 1], end - begins[n - 1]);
	fx_check_bytes(ino);
}

#define BEGINS(...) (const uint64_t[]){ __VA_ARGS__ }
#define PIECES(...) BEGINS(__VA_ARGS__), ARRAY_SIZE((BEGINS(__VA_ARGS__)))

static void insert_hole(uint64_t ino, uint64_t len)
{
	ck_assert_int_eq(fs_fallocate(&fs, ino, FALLOC_FL_INSERT_RANGE, 0, len), 0);
}

START_TEST(a_piece_ends_at_a_multiple_of_blob_max)
{
	_cleanup_free_ uint8_t *b = malloc(MIB);
	uint64_t hole = fx_file("begins with a hole"), moved = fx_file("moved");
	uint64_t ended = fx_file("ends with a short one");

	fx_fill(b, MIB, 30);
	write_bytes(hole, b, 100000, BLOB_MAX);
	write_bytes(hole, b, BLOB_MAX, BLOB_MAX + 100);
	expect_pieces(hole, b, BLOB_MAX + 100, PIECES(100000, BLOB_MAX));

	write_bytes(moved, b, 0, BLOB_MAX);
	insert_hole(moved, 4096);
	seal();
	write_bytes(moved, b, 131000, 131200); /* over a multiple, inside what lies over it */
	expect_pieces(moved, b, 131200, PIECES(4096, 126976, BLOB_MAX));

	write_bytes(ended, b, 0, BLOB_MAX - 300);
	seal();
	write_bytes(ended, b, BLOB_MAX - 300, BLOB_MAX);
	seal();
	write_bytes(ended, b, BLOB_MAX, BLOB_MAX + 100);
	expect_pieces(ended, b, BLOB_MAX + 100, PIECES(0, BLOB_MAX - 300, BLOB_MAX));
}
END_TEST

START_TEST(a_full_blob_that_was_moved_is_not_appended_to)
{
	_cleanup_free_ uint8_t *b = malloc(MIB);
	uint64_t full = fx_file("full"), nearly = fx_file("nearly full");

	fx_fill(b, MIB, 31);
	fx_write(full, 0, b, BLOB_MAX);
	insert_hole(full, 4096);
	write_bytes(full, b, 4096 + BLOB_MAX, 4097 + BLOB_MAX);
	expect_pieces(full, b, 4097 + BLOB_MAX, PIECES(4096, 4096 + BLOB_MAX));

	/* The most pieces a write can have: what fills the blob, up to a multiple, the rest. */
	fx_write(nearly, 0, b, BLOB_MAX - 1);
	insert_hole(nearly, BLOB_MAX - 4096);
	write_bytes(nearly, b, 2 * BLOB_MAX - 4097, 2 * BLOB_MAX + 1);
	expect_pieces(nearly, b, 2 * BLOB_MAX + 1,
		      PIECES(BLOB_MAX - 4096, 2 * BLOB_MAX - 4096, 2 * BLOB_MAX));
}
END_TEST

START_TEST(an_append_takes_in_what_is_short_and_no_more)
{
	_cleanup_free_ uint8_t *b = malloc(MIB);
	uint64_t blocks = fx_file("blocks"), large = fx_file("large"), moved = fx_file("moved");

	fx_fill(b, MIB, 32);
	write_bytes(blocks, b, 0, 4096);
	write_bytes(large, b, 0, 100000);
	fx_write(moved, 0, b, 5000);
	insert_hole(moved, BLOB_MAX - 4096);
	seal();
	write_bytes(blocks, b, 4096, 8192);
	expect_pieces(blocks, b, 8192, PIECES(0));
	write_bytes(large, b, 100000, 100100);
	expect_pieces(large, b, 100100, PIECES(0, 100000));
	write_bytes(moved, b, BLOB_MAX + 904, 2 * BLOB_MAX); /* both are too long for a blob */
	expect_pieces(moved, b, 2 * BLOB_MAX, PIECES(BLOB_MAX - 4096, BLOB_MAX + 904));
}
END_TEST

START_TEST(a_write_takes_in_the_blocks_it_begins_and_ends_in)
{
	const struct fs_set set = { .mask = SET_SIZE, .size = 300000 };
	_cleanup_free_ uint8_t *b = malloc(MIB);
	uint64_t begins = fx_file("begins"), ends = fx_file("ends");
	struct inode i;

	fx_fill(b, MIB, 33);
	write_bytes(begins, b, 0, 10000);
	fx_write(ends, 100, b, 5000);
	insert_hole(ends, BLOB_MAX - 4096);
	ck_assert_int_eq(fs_setattr(&fs, ends, &set, &i), 0);
	write_bytes(ends, b, 2 * BLOB_MAX - 4096, 2 * BLOB_MAX);
	seal();
	write_bytes(begins, b, 9000, 12000);
	expect_pieces(begins, b, 12000, PIECES(0, 8192));
	/* What lies before it would fit in a blob, were it not for the end of the last block. */
	write_bytes(ends, b, BLOB_MAX + 1004, 2 * BLOB_MAX - 4044);
	expect_pieces(ends, b, 2 * BLOB_MAX, PIECES(BLOB_MAX - 3996, BLOB_MAX + 1004));
}
END_TEST

struct appender {
	struct fs fs;
	uint64_t ino, changes;
	char letter;
	pthread_barrier_t *together;
	pthread_t thread;
};

static void *append_line(void *arg)
{
	struct appender *a = arg;
	char line[100];

	memset(line, a->letter, sizeof(line));
	(void)pthread_barrier_wait(a->together);
	return fs_write(&a->fs, a->ino, 2000, line, sizeof(line), false) < 0 ? a : NULL;
}

/* Both forks have the same last extent, and append to its blob if they can. */
START_TEST(forks_that_append_at_once_keep_their_own_bytes)
{
	pthread_barrier_t together;
	uint8_t before[2000];
	char line[100];

	fx_fill(before, sizeof(before), 19);
	pthread_barrier_init(&together, NULL, 2);
	for (int round = 0; round < 2000; round++) {
		struct appender fork[2];
		struct root *root;
		char name[16];
		uint64_t ino;

		(void)snprintf(name, sizeof(name), "log%d", round);
		ino = fx_file(name);
		fx_write(ino, 0, before, sizeof(before));
		root = fx_freeze();
		for (int n = 0; n < 2; n++) {
			fork[n] = (struct appender){ .ino = ino, .letter = (char)('a' + n),
						     .together = &together };
			fork[n].fs = (struct fs){ .store = fx_store, .tree = fx_tree(root),
						  .changes = &fork[n].changes };
			ck_assert_int_eq(pthread_create(&fork[n].thread, NULL, append_line,
							&fork[n]), 0);
		}
		for (int n = 0; n < 2; n++) {
			struct fs base = fs;
			void *failed;

			ck_assert_int_eq(pthread_join(fork[n].thread, &failed), 0);
			ck_assert_ptr_null(failed);
			fs = fork[n].fs;
			memset(line, fork[n].letter, sizeof(line));
			fx_expect(ino, 0, before, sizeof(before));
			fx_expect(ino, 2000, line, sizeof(line));
			fx_check_bytes(ino);
			tree_free(fs.tree);
			fs = base;
		}
		root_unref(root);
	}
	pthread_barrier_destroy(&together);
}
END_TEST

START_TEST(damaged_extents_are_errors)
{
	uint64_t ino = fx_file("f");
	struct key k = item_key(ino, ITEM_EXTENT, 4096);
	struct fs_set set = { .mask = SET_SIZE, .size = 100000 };
	struct ref ref = { .kind = REF_CHUNK };
	uint8_t buf[10000];
	struct inode i;
	size_t n;

	fx_fill(buf, sizeof(buf), 20);
	ck_assert_int_eq(fs_setattr(&fs, ino, &set, &i), 0);
	/* inline bytes not at the start */
	ck_assert_int_eq(tree_put(fs.tree, &k, &(struct val){ .data = buf, .len = 10 }), 0);
	ck_assert_int_eq(fs_read(&fs, ino, 0, buf, 10000, &n), -ERR_ITEM_DAMAGED);
	/* longer than a chunk, longer than this chunk, empty */
	ck_assert_int_ge(chunk_put(store_chunks(fx_store), CHUNK_DATA, buf, 5000, &ref.name), 0);
	ck_assert_int_eq(extent_put(&fs, ino, 4096, CHUNK_MAX + 1, &ref), 0);
	ck_assert_int_eq(fs_read(&fs, ino, 0, buf, 10000, &n), -ERR_ITEM_DAMAGED);
	ck_assert_int_eq(extent_put(&fs, ino, 4096, 5001, &ref), 0);
	ck_assert_int_eq(fs_read(&fs, ino, 0, buf, 10000, &n), -ERR_ITEM_DAMAGED);
	ck_assert_int_eq(extent_put(&fs, ino, 4096, 0, &ref), 0);
	ck_assert_int_eq(fs_read(&fs, ino, 0, buf, 10000, &n), -ERR_ITEM_DAMAGED);
	/* overlapping ones */
	ck_assert_int_eq(extent_put(&fs, ino, 4096, 3000, &ref), 0);
	ck_assert_int_eq(extent_put(&fs, ino, 5000, 3000, &ref), 0);
	ck_assert_int_eq(fs_read(&fs, ino, 0, buf, 10000, &n), -ERR_ITEM_DAMAGED);
	/* beyond the end of a file that is small enough to live in its item */
	set.size = 100;
	ck_assert_int_eq(fs_setattr(&fs, fx_file("small"), &set, &i), 0);
	ck_assert_int_eq(extent_put(&fs, i.ino, 0, 5000, &ref), 0);
	ck_assert_int_eq(fs_write(&fs, i.ino, 10, "x", 1, false), -ERR_ITEM_DAMAGED);
	/* and the file can be got rid of */
	ck_assert_int_eq(fs_unlink(&fs, ROOT_INO, "f", 1, &i), 0);
	ck_assert_int_eq(fs_purge(&fs, ino), 0);
	ck_assert_uint_eq(fx_items(ino, ITEM_EXTENT), 0);
}
END_TEST

int main(void)
{
	TCase *c = tcase_create("extent");

	tcase_add_checked_fixture(c, setup, teardown);
	tcase_set_timeout(c, 240);
	tcase_add_test(c, small_file_lives_in_its_item);
	tcase_add_test(c, file_that_outgrows_its_item_keeps_its_bytes);
	tcase_add_test(c, gap_behind_inline_bytes_is_a_hole);
	tcase_add_test(c, sequential_writer_gets_full_extents);
	tcase_add_test(c, one_large_write_is_cut_at_multiples_of_blob_max);
	tcase_add_test(c, tiny_appends_make_no_extent_each);
	tcase_add_test(c, appends_between_checkpoints_stay_few_extents);
	tcase_add_loop_test(c, two_logs_in_turn_stay_few_extents, 0, 2);
	tcase_add_test(c, overwriting_own_bytes_costs_nothing);
	tcase_add_test(c, overwrite_after_a_freeze_leaves_the_frozen_bytes);
	tcase_add_test(c, mapped_bytes_survive_an_overwrite);
	tcase_add_test(c, write_in_the_middle_of_a_large_file_costs_a_few_items);
	tcase_add_test(c, writes_over_whole_extents_replace_them);
	tcase_add_test(c, small_overwrite_takes_the_block_around_it);
	tcase_add_test(c, sparse_file_of_16_tib);
	tcase_add_test(c, mapping_a_huge_hole_goes_on_in_steps);
	tcase_add_test(c, seek_is_exact_to_the_byte);
	tcase_add_test(c, a_piece_ends_at_a_multiple_of_blob_max);
	tcase_add_test(c, a_full_blob_that_was_moved_is_not_appended_to);
	tcase_add_test(c, an_append_takes_in_what_is_short_and_no_more);
	tcase_add_test(c, a_write_takes_in_the_blocks_it_begins_and_ends_in);
	tcase_add_test(c, forks_that_append_at_once_keep_their_own_bytes);
	tcase_add_test(c, damaged_extents_are_errors);
	return run_case("extent", c);
}
