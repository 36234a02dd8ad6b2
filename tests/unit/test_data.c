/* SPDX-License-Identifier: Apache-2.0 */

/* Verbs on data: truncating, fallocate, copies, imports; what is refused, what fails half-way. */

#include <linux/falloc.h>
#include <signal.h>
#include <sys/resource.h>

#include "store/base/fault.h"
#include "tests/unit/fs_fixture.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * 1024)

#define ALIGN_BLOCK(x) ((x) / BLOCK_BYTES * BLOCK_BYTES)

static const uint8_t zeros[64 * 1024];

START_TEST(truncate_down_and_up_reads_zeros)
{
	static const size_t sizes[] = { 300, 5000, 300000 };
	_cleanup_free_ uint8_t *buf = malloc(300000);

	fx_fill(buf, 300000, 11);
	for (size_t n = 0; n < ARRAY_SIZE(sizes); n++) {
		char name[2] = { (char)('a' + n), 0 };
		uint64_t ino = fx_file(name);
		struct fs_set set = { .mask = SET_SIZE };
		struct inode i;

		fx_write(ino, 0, buf, sizes[n]);
		set.size = sizes[n] / 3;
		ck_assert_int_eq(fs_setattr(&fs, ino, &set, &i), 0);
		ck_assert_uint_eq(i.bytes, sizes[n] / 3);
		set.size = sizes[n];
		ck_assert_int_eq(fs_setattr(&fs, ino, &set, &i), 0);
		ck_assert_uint_eq(i.size, sizes[n]);
		ck_assert_uint_eq(i.bytes, sizes[n] / 3);
		fx_expect(ino, 0, buf, sizes[n] / 3);
		fx_expect(ino, sizes[n] / 3, zeros, MIN(sizes[n] / 3, sizeof(zeros)));
		fx_check_bytes(ino);

		fx_write(ino, sizes[n] - 1, "x", 1);
		fx_expect(ino, sizes[n] / 3, zeros, MIN(sizes[n] / 3, sizeof(zeros)));
		fx_check_bytes(ino);
	}
}
END_TEST

START_TEST(truncate_to_the_same_size_updates_times)
{
	uint64_t ino = fx_file("f");
	struct fs_set set = { .mask = SET_MTIME | SET_CTIME };
	struct inode i;

	ck_assert_int_eq(fs_setattr(&fs, ino, &set, &i), 0);
	ck_assert_int_eq(i.mtime.sec, 0);
	set.mask = SET_SIZE;
	ck_assert_int_eq(fs_setattr(&fs, ino, &set, &i), 0);
	ck_assert_int_ne(i.mtime.sec, 0);
	ck_assert_int_ne(i.ctime.sec, 0);
}
END_TEST

START_TEST(fallocate_does_what_its_modes_say)
{
	_cleanup_free_ uint8_t *buf = malloc(MIB);
	uint64_t ino = fx_file("f"), dir = fx_dir(ROOT_INO, "d");
	uint64_t fifo = fx_make(ROOT_INO, "p", S_IFIFO | 0600);
	const struct fs_set to_a_block = { .mask = SET_SIZE, .size = 200 * KIB };
	struct inode i;

	fx_fill(buf, MIB, 14);
	ck_assert_int_eq(fs_fallocate(&fs, ino, 0, 0, 10000), 0);
	ck_assert_uint_eq(fx_stat(ino).size, 10000);
	ck_assert_int_eq(fs_fallocate(&fs, ino, FALLOC_FL_KEEP_SIZE, 0, 20000), 0);
	ck_assert_uint_eq(fx_stat(ino).size, 10000);
	ck_assert_uint_eq(fx_stat(ino).bytes, 0);

	fx_write(ino, 0, buf, 400 * KIB);
	ck_assert_int_eq(fs_fallocate(&fs, ino, FALLOC_FL_ZERO_RANGE, 399 * KIB, 2 * KIB), 0);
	ck_assert_uint_eq(fx_stat(ino).size, 401 * KIB);
	fx_expect(ino, 399 * KIB, zeros, 2 * KIB);

	ck_assert_int_eq(fs_fallocate(&fs, ino, FALLOC_FL_COLLAPSE_RANGE, 100 * KIB, 200 * KIB), 0);
	ck_assert_uint_eq(fx_stat(ino).size, 201 * KIB);
	fx_expect(ino, 0, buf, 100 * KIB);
	fx_expect(ino, 100 * KIB, buf + 300 * KIB, 99 * KIB);
	fx_check_bytes(ino);

	ck_assert_int_eq(fs_fallocate(&fs, ino, FALLOC_FL_INSERT_RANGE, 40 * KIB, 4 * KIB), 0);
	ck_assert_uint_eq(fx_stat(ino).size, 205 * KIB);
	fx_expect(ino, 0, buf, 40 * KIB);
	fx_expect(ino, 40 * KIB, zeros, 4 * KIB);
	fx_expect(ino, 44 * KIB, buf + 40 * KIB, 60 * KIB);
	fx_expect(ino, 104 * KIB, buf + 300 * KIB, 99 * KIB);
	fx_check_bytes(ino);

	ck_assert_int_eq(fs_fallocate(&fs, ino, FALLOC_FL_COLLAPSE_RANGE, 1, 4096), -EINVAL);
	ck_assert_int_eq(fs_fallocate(&fs, ino, FALLOC_FL_COLLAPSE_RANGE, 0, MIB), -EINVAL);
	ck_assert_int_eq(fs_setattr(&fs, ino, &to_a_block, &i), 0);
	ck_assert_int_eq(fs_fallocate(&fs, ino, FALLOC_FL_COLLAPSE_RANGE, 4096, 200 * KIB - 4096),
			 -EINVAL);
	ck_assert_int_eq(fs_fallocate(&fs, ino, FALLOC_FL_INSERT_RANGE, 4 * MIB, 4096), -EINVAL);
	ck_assert_int_eq(fs_fallocate(&fs, ino, FALLOC_FL_INSERT_RANGE, 0, FILE_SIZE_MAX), -EFBIG);
	ck_assert_int_eq(fs_fallocate(&fs, ino, FALLOC_FL_PUNCH_HOLE, 0, 1), -EOPNOTSUPP);
	ck_assert_int_eq(fs_fallocate(&fs, ino, 0, 0, 0), -EINVAL);
	ck_assert_int_eq(fs_fallocate(&fs, ino, 0, FILE_SIZE_MAX, 1), -EFBIG);
	ck_assert_int_eq(fs_fallocate(&fs, dir, 0, 0, 1), -EISDIR);
	ck_assert_int_eq(fs_fallocate(&fs, fifo, 0, 0, 1), -ENODEV);
}
END_TEST

START_TEST(inserting_before_inline_bytes_moves_them)
{
	uint64_t ino = fx_file("f");

	fx_write(ino, 0, "hello", 5);
	ck_assert_int_eq(fs_fallocate(&fs, ino, FALLOC_FL_INSERT_RANGE, 0, 4096), 0);
	fx_expect(ino, 0, zeros, 4096);
	fx_expect(ino, 4096, "hello", 5);
	fx_check_bytes(ino);
	ck_assert_int_eq(fs_fallocate(&fs, ino, FALLOC_FL_COLLAPSE_RANGE, 0, 4096), 0);
	fx_expect(ino, 0, "hello", 5);
	fx_check_bytes(ino);
}
END_TEST

START_TEST(holes_in_inline_bytes_read_zeros)
{
	uint64_t ino = fx_file("f");

	fx_write(ino, 0, "abcdefgh", 8);
	ck_assert_int_eq(fs_fallocate(&fs, ino, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 2, 3),
			 0);
	fx_expect(ino, 0, "ab\0\0\0fgh", 8);
	ck_assert_int_eq(fs_fallocate(&fs, ino, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 6, 100),
			 0);
	fx_expect(ino, 0, "ab\0\0\0f\0\0", 8);
	ck_assert_int_eq(fs_fallocate(&fs, ino, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 1),
			 0);
	fx_expect(ino, 0, "\0b\0\0\0f\0\0", 8);
	fx_check_bytes(ino);
	ck_assert_int_eq(fs_fallocate(&fs, ino, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 8),
			 0);
	ck_assert_uint_eq(fx_items(ino, ITEM_EXTENT), 0);
	fx_check_bytes(ino);
}
END_TEST

START_TEST(copy_shares_extents_and_copies_no_bytes)
{
	_cleanup_free_ uint8_t *buf = malloc(MIB);
	uint64_t before, after, disk, len, a = fx_file("a"), b = fx_file("b");

	fx_fill(buf, MIB, 15);
	fx_write(a, 0, buf, MIB);
	stage_stats(store_stage(fx_store), &before, &disk);
	ck_assert_int_eq(fs_copy_range(&fs, a, 0, &fs, b, 0, 2 * MIB, &len), 0);
	ck_assert_uint_eq(len, MIB);
	stage_stats(store_stage(fx_store), &after, &disk);
	ck_assert_uint_eq(before, after);
	fx_expect(b, 0, buf, MIB);
	fx_check_bytes(b);

	/* Neither sees what the other writes then. */
	fx_write(a, 5000, zeros, 5000);
	fx_write(b, 200000, zeros, 5000);
	fx_write(a, MIB, "tail", 4);
	fx_expect(b, 0, buf, 200000);
	fx_expect(a, 10000, buf + 10000, MIB - 10000);
	ck_assert_uint_eq(fx_stat(b).size, MIB);
	fx_check_bytes(a);
	fx_check_bytes(b);
}
END_TEST

START_TEST(copy_within_one_file_and_over_holes)
{
	uint8_t buf[10000];
	uint64_t len, ino = fx_file("f");

	fx_fill(buf, sizeof(buf), 16);
	fx_write(ino, 0, buf, sizeof(buf));
	ck_assert_int_eq(fs_copy_range(&fs, ino, 0, &fs, ino, 5000, 5001, &len), -EINVAL);
	ck_assert_int_eq(fs_copy_range(&fs, ino, 5000, &fs, ino, 0, 5000, &len), 0);
	fx_expect(ino, 0, buf + 5000, 5000);
	fx_write(ino, 0, buf, 5000);
	ck_assert_int_eq(fs_copy_range(&fs, ino, 0, &fs, ino, 20000, 10000, &len), 0);
	ck_assert_uint_eq(len, 10000);
	fx_expect(ino, 20000, buf, 10000);
	fx_expect(ino, 10000, zeros, 10000);
	fx_check_bytes(ino);

	/* The hole is copied as a hole over data. */
	ck_assert_int_eq(fs_copy_range(&fs, ino, 12000, &fs, ino, 1000, 5000, &len), 0);
	fx_expect(ino, 1000, zeros, 5000);
	fx_expect(ino, 0, buf, 1000);
	fx_expect(ino, 6000, buf + 6000, 4000);
	ck_assert_uint_eq(fx_stat(ino).bytes, 15000);
	fx_check_bytes(ino);

	ck_assert_int_eq(fs_copy_range(&fs, ino, 30000, &fs, ino, 0, 5, &len), 0);
	ck_assert_uint_eq(len, 0);
	ck_assert_int_eq(fs_copy_range(&fs, ino, 0, &fs, ino, FILE_SIZE_MAX - 5, 10, &len), -EFBIG);
}
END_TEST

START_TEST(copy_with_inline_bytes_on_either_side)
{
	uint64_t len, a = fx_file("a"), b = fx_file("b");
	uint8_t buf[5000];

	fx_fill(buf, sizeof(buf), 17);
	fx_write(a, 0, "small", 5);
	fx_write(b, 0, buf, sizeof(buf));
	ck_assert_int_eq(fs_copy_range(&fs, a, 1, &fs, b, 3, 4, &len), 0);
	fx_expect(b, 0, buf, 3);
	fx_expect(b, 3, "mall", 4);
	fx_expect(b, 7, buf + 7, 4000);
	fx_check_bytes(b);

	ck_assert_int_eq(fs_copy_range(&fs, b, 4000, &fs, a, 2, 2, &len), 0);
	fx_expect(a, 0, "sm", 2);
	fx_expect(a, 2, buf + 4000, 2);
	fx_expect(a, 4, "l", 1);
	fx_check_bytes(a);
}
END_TEST

START_TEST(copy_from_another_tree)
{
	uint64_t len, a = fx_file("a"), b;
	struct root *root;
	struct fs other = fs;
	uint8_t buf[3000];

	fx_fill(buf, sizeof(buf), 18);
	fx_write(a, 0, buf, sizeof(buf));
	root = fx_freeze();
	other.tree = fx_tree(root);
	fx_write(a, 0, zeros, 3000);
	b = fx_file("b");
	ck_assert_int_eq(fs_copy_range(&other, a, 0, &fs, b, 0, 3000, &len), 0);
	fx_expect(b, 0, buf, 3000);
	/* The same number in two trees is two objects. */
	ck_assert_int_eq(fs_copy_range(&other, a, 0, &fs, a, 0, 3000, &len), 0);
	fx_expect(a, 0, buf, 3000);
	tree_free(other.tree);
	root_unref(root);
}
END_TEST

static int count_data(void *arg, const struct chunk_info *info)
{
	*(unsigned *)arg += info->kind == CHUNK_DATA;
	return 0;
}

/* Chunks of data in the store. */
static unsigned data_chunks(void)
{
	unsigned n = 0;

	ck_assert_int_eq(store_sync(fx_store), 0);
	ck_assert_int_eq(chunks_each(store_chunks(fx_store), count_data, &n), 0);
	return n;
}

START_TEST(import_goes_to_chunks_and_is_stored_once)
{
	_cleanup_free_ uint8_t *buf = malloc(300000);
	struct inode i = { .mode = S_IFREG | 0644, .size = 300000, .nlink = 1 };
	uint64_t unsealed, disk;

	fx_fill(buf, 300000, 19);
	for (unsigned n = 0; n < 2; n++) {
		char name[2] = { (char)('a' + n), 0 };

		i.ino = store_take_ino(fx_store, 1);
		ck_assert_int_eq(fs_add(&fs, ROOT_INO, name, 1, &i, NULL), 0);
		for (size_t off = 0; off < 300000; off += CHUNK_MAX)
			ck_assert_int_eq(fs_import_data(&fs, i.ino, off, buf + off,
							MIN((size_t)CHUNK_MAX, 300000 - off)),
					 0);
		fx_expect(i.ino, 0, buf, 300000);
		fx_check_bytes(i.ino);
		ck_assert_uint_eq(data_chunks(), 2); /* of three, two are alike */
	}
	stage_stats(store_stage(fx_store), &unsealed, &disk);
	ck_assert_uint_eq(unsealed, 0);

	i.ino = store_take_ino(fx_store, 1);
	i.size = 20;
	ck_assert_int_eq(fs_add(&fs, ROOT_INO, "small", 5, &i, NULL), 0);
	ck_assert_int_eq(fs_import_data(&fs, i.ino, 0, buf, 21), -EINVAL);
	ck_assert_int_eq(fs_import_data(&fs, i.ino, 0, buf, 20), 0);
	fx_expect(i.ino, 0, buf, 20);
	ck_assert_uint_eq(data_chunks(), 2);
	fx_check_bytes(i.ino);

	/* Imported bytes can be changed like any. */
	i.ino = fx_look(ROOT_INO, "a").ino;
	fx_write(i.ino, 150000, zeros, 1000);
	fx_expect(i.ino, 150000, zeros, 1000);
	fx_expect(fx_look(ROOT_INO, "b").ino, 0, buf, 300000);
	fx_check_bytes(i.ino);
}
END_TEST

START_TEST(write_kills_privileges_when_asked)
{
	uint64_t ino = fx_make(ROOT_INO, "f", S_IFREG | 06755);

	ck_assert_int_eq(fs_write(&fs, ino, 0, "x", 1, false), 0);
	ck_assert_uint_eq(fx_stat(ino).mode & 07777, 06755);
	ck_assert_int_eq(fs_write(&fs, ino, 0, "x", 1, true), 1);
	ck_assert_uint_eq(fx_stat(ino).mode & 07777, 0755);
	ino = fx_make(ROOT_INO, "g", S_IFREG | 06745);
	ck_assert_int_eq(fs_write(&fs, ino, 0, "x", 1, true), 1);
	ck_assert_uint_eq(fx_stat(ino).mode & 07777, 02745);
	ck_assert_int_eq(fs_write(&fs, ino, 0, "x", 1, true), 0);
}
END_TEST

START_TEST(data_verbs_want_a_regular_file)
{
	uint64_t ret, dir = fx_dir(ROOT_INO, "d"), fifo = fx_make(ROOT_INO, "p", S_IFIFO | 0600);
	struct segments s;
	char c;
	size_t n;

	ck_assert_int_eq(fs_write(&fs, dir, 0, "x", 1, false), -EISDIR);
	ck_assert_int_eq(fs_write(&fs, fifo, 0, "x", 1, false), -EINVAL);
	ck_assert_int_eq(fs_write(&fs, 999, 0, "x", 1, false), -ENOENT);
	ck_assert_int_eq(fs_read(&fs, dir, 0, &c, 1, &n), -EISDIR);
	ck_assert_int_eq(fs_map(&fs, fifo, 0, 1, &s), -EINVAL);
	ck_assert_int_eq(fs_copy_range(&fs, dir, 0, &fs, fifo, 0, 1, &ret), -EISDIR);
}
END_TEST

/* The stage may not grow beyond a limit: a write fails half-way through its blobs. */
START_TEST(write_without_space_changes_nothing)
{
	_cleanup_free_ uint8_t *buf = malloc(2 * MIB), *other = malloc(2 * MIB);
	static const uint64_t offs[] = { 0, 1000, 100000, 300000, 400000 };
	uint64_t ino = fx_file("f"), changes;
	struct rlimit limit, old;

	fx_fill(buf, 2 * MIB, 21);
	fx_fill(other, 2 * MIB, 22);
	fx_write(ino, 0, buf, 300000);
	changes = fx_changes;
	ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
	limit = old;
	limit.rlim_cur = 1400000;
	(void)signal(SIGXFSZ, SIG_IGN);
	ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
	for (size_t n = 0; n < ARRAY_SIZE(offs); n++) {
		ck_assert_int_lt(fs_write(&fs, ino, offs[n], other, 2 * MIB, true), 0);
		ck_assert_uint_eq(fx_stat(ino).size, 300000);
		fx_expect(ino, 0, buf, 300000);
		fx_check_bytes(ino);
	}
	ck_assert_uint_eq(fx_changes, changes);
	ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &old), 0);
	fx_write(ino, 300000, other, 2 * MIB);
	fx_expect(ino, 300000, other, 2 * MIB);
	fx_expect(ino, 0, buf, 300000);
	fx_check_bytes(ino);
}
END_TEST

/* Whichever call below fails once, the verb says so, leaks nothing and can be done again. */
START_TEST(any_failing_call_is_survived)
{
	_cleanup_free_ uint8_t *buf = malloc(MIB);
	uint64_t len, a = fx_file("a"), b = fx_file("b");
	struct inode gone;
	struct root *root;
	int r;

	fx_fill(buf, MIB, 23);
	fx_write(a, 0, buf, 300000);
	root = fx_freeze();
	ck_assert_int_eq(root_seal(root), 0);
	for (unsigned verb = 0; verb < 5; verb++) {
		unsigned n = 0;

		do {
			fault_arm((int)n++, 1, ENOMEM);
			if (verb == 0)
				r = fs_write(&fs, a, 1001, buf, MIB, true);
			else if (verb == 1)
				r = fs_copy_range(&fs, a, 0, &fs, b, 0, MIB, &len);
			else if (verb == 2)
				r = fs_setxattr(&fs, a, "user.big", buf, 5000, 0);
			else if (verb == 3)
				r = fs_rename(&fs, ROOT_INO, "b", 1, ROOT_INO, "c", 1, 0, &gone);
			else
				r = fs_fallocate(&fs, a, FALLOC_FL_INSERT_RANGE, 4096, 4096);
			fault_disarm();
			ck_assert_uint_lt(n, 2000);
		} while (r < 0);
	}
	fx_expect(a, 4096 + 5000, buf + 3999, 100000);
	root_unref(root);
}
END_TEST

START_TEST(a_copy_that_fails_half_way_says_how_far_it_came)
{
	enum { EXTENTS = 1000, STRIDE = 8192 }; /* so many that nodes of the tree are made */
	const struct fs_set empty = { .mask = SET_SIZE };
	uint64_t len = 0, a = fx_file("a"), b = fx_file("b");
	unsigned shorter = 0;
	struct inode i;

	for (unsigned n = 0; n < EXTENTS; n++)
		fx_write(a, n * STRIDE, "x", 1);
	for (int n = 0; len < fx_stat(a).size; n++) {
		int r;

		ck_assert_int_eq(fs_setattr(&fs, b, &empty, &i), 0);
		fault_arm(n, 1, ENOMEM);
		r = fs_copy_range(&fs, a, 0, &fs, b, 0, UINT32_MAX, &len);
		fault_disarm();
		if (r < 0)
			continue;
		shorter += len < fx_stat(a).size;
		ck_assert_uint_eq(fx_stat(b).size, len);
		ck_assert_uint_ge(fx_stat(b).bytes, len / STRIDE);
		fx_check_bytes(b);
	}
	ck_assert_uint_gt(shorter, 0);
}
END_TEST

START_TEST(what_has_no_name_changes_nothing_visible)
{
	uint64_t ino = fx_file("f"), changes;
	struct inode i;

	ck_assert_int_eq(fs_unlink(&fs, ROOT_INO, "f", 1, &i), 0);
	changes = fx_changes;
	fx_write(ino, 0, "x", 1);
	ck_assert_uint_eq(fx_changes, changes);
	fx_write(fx_file("g"), 0, "x", 1);
	ck_assert_uint_gt(fx_changes, changes);
}
END_TEST

/* Random writes, holes, truncates, copies and freezes of one file against a plain buffer. */
START_TEST(one_file_behaves_as_a_buffer)
{
	enum { MAX = 600 * 1024 };
	_cleanup_free_ uint8_t *want = calloc(1, MAX), *bytes = malloc(MAX);
	uint64_t ino = fx_file("f"), size = 0;
	struct root *held = NULL;
	unsigned seed = (unsigned)_i + 1;

	for (unsigned step = 0; step < 1500; step++) {
		static const uint32_t spans[] = { 100, 600, 5000, 40000, 300000 };
		uint32_t span = spans[rand_r(&seed) % ARRAY_SIZE(spans)];
		uint64_t off = (unsigned)rand_r(&seed) % (step % 3 ? span : MAX / 2);
		uint64_t len = 1 + (unsigned)rand_r(&seed) % span, done;
		struct fs_set set = { .mask = SET_SIZE };
		struct inode i;

		switch (rand_r(&seed) % 10) {
		case 0:
		case 1:
			off = size; /* append */
				    /* fallthrough */
		case 2:
		case 3:
		case 4:
			if (off + len > MAX)
				break;
			fx_fill(bytes, len, step);
			fx_write(ino, off, bytes, len);
			memcpy(want + off, bytes, len);
			size = MAX(size, off + len);
			break;
		case 5:
			set.size = off;
			ck_assert_int_eq(fs_setattr(&fs, ino, &set, &i), 0);
			if (off < size)
				memset(want + off, 0, size - off);
			size = off;
			break;
		case 6:
			ck_assert_int_eq(fs_fallocate(&fs, ino,
						      FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
						      off, len),
					 0);
			if (off < size)
				memset(want + off, 0, MIN(len, size - off));
			break;
		case 7: {
			uint64_t to = (unsigned)rand_r(&seed) % (MAX / 2);

			if (off >= size || to + len > MAX || (to < off + len && off < to + len))
				break;
			ck_assert_int_eq(fs_copy_range(&fs, ino, off, &fs, ino, to, len, &done), 0);
			ck_assert_uint_eq(done, MIN(len, size - off));
			memmove(want + to, want + off, done);
			size = MAX(size, to + done);
			break;
		}
		case 8:
			off = ALIGN_BLOCK(off);
			len = ALIGN_BLOCK(len) + BLOCK_BYTES;
			if (off + len < size && rand_r(&seed) % 2) {
				ck_assert_int_eq(fs_fallocate(&fs, ino, FALLOC_FL_COLLAPSE_RANGE,
							      off, len),
						 0);
				memmove(want + off, want + off + len, size - off - len);
				memset(want + size - len, 0, len);
				size -= len;
			} else if (off < size && size + len <= MAX) {
				ck_assert_int_eq(fs_fallocate(&fs, ino, FALLOC_FL_INSERT_RANGE, off,
							      len),
						 0);
				memmove(want + off + len, want + off, size - off);
				memset(want + off, 0, len);
				size += len;
			}
			break;
		default:
			if (held)
				root_unref(held);
			held = fx_freeze();
			if (rand_r(&seed) % 2)
				ck_assert_int_eq(root_seal(held), 0);
		}
		ck_assert_uint_eq(fx_stat(ino).size, size);
		fx_check_bytes(ino);
		if (step % 10 == 0)
			fx_expect(ino, 0, want, size);
	}
	fx_expect(ino, 0, want, size);
	if (held)
		root_unref(held);
}
END_TEST

int main(void)
{
	TCase *c = tcase_create("data");

	tcase_add_checked_fixture(c, setup, teardown);
	tcase_set_timeout(c, 240);
	tcase_add_test(c, truncate_down_and_up_reads_zeros);
	tcase_add_test(c, truncate_to_the_same_size_updates_times);
	tcase_add_test(c, fallocate_does_what_its_modes_say);
	tcase_add_test(c, inserting_before_inline_bytes_moves_them);
	tcase_add_test(c, holes_in_inline_bytes_read_zeros);
	tcase_add_test(c, copy_shares_extents_and_copies_no_bytes);
	tcase_add_test(c, copy_within_one_file_and_over_holes);
	tcase_add_test(c, copy_with_inline_bytes_on_either_side);
	tcase_add_test(c, copy_from_another_tree);
	tcase_add_test(c, import_goes_to_chunks_and_is_stored_once);
	tcase_add_test(c, write_kills_privileges_when_asked);
	tcase_add_test(c, data_verbs_want_a_regular_file);
	tcase_add_test(c, write_without_space_changes_nothing);
	tcase_add_test(c, any_failing_call_is_survived);
	tcase_add_test(c, a_copy_that_fails_half_way_says_how_far_it_came);
	tcase_add_test(c, what_has_no_name_changes_nothing_visible);
	tcase_add_loop_test(c, one_file_behaves_as_a_buffer, 0, 4);
	return run_case("data", c);
}
