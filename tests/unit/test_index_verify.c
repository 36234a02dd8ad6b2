/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/scratch.h"

/*
 * What index_verify.c says of LMDB's pages: nothing of a healthy file, whatever was done to it,
 * and enough of a damaged one that LMDB never crashes on it, and never answers wrongly.
 */

static struct scratch s;
static const struct noter noter = { .fn = scratch_note, .arg = &s };

static void setup(void)
{
	scratch_make(&s);
	ck_ok(index_open(s.dir_fd, &noter, &s.index));
}

static void teardown(void)
{
	index_close(s.index);
	scratch_remove(&s);
}

static struct chunk_loc loc_at(uint32_t i)
{
	return (struct chunk_loc){ .pack = i + 1, .off = 4096 + 8 * (uint64_t)i, .stored_len = 100,
				   .raw_len = 200, .kind = CHUNK_NODE, .codec = 1 };
}

static struct name name_at(uint32_t i)
{
	return name_of(&i, sizeof(i), 0);
}

/* Some random changes in one commit: chunks come and go, records of all lengths, long ones too. */
static void change(uint64_t *seed, unsigned range)
{
	static uint8_t bytes[20000];
	struct index_txn *txn;

	ck_ok(index_begin(s.index, &txn));
	for (unsigned n = scratch_random(seed) % 300; n > 0; n--) {
		uint32_t i = scratch_random(seed) % range;
		struct name name = name_at(i);
		struct chunk_loc loc = loc_at(i);

		if (scratch_random(seed) % 3 > 0)
			ck_ok(index_put_chunk(txn, &name, &loc));
		else
			ck_assert_int_ge(index_del_chunk(txn, &name), 0);
	}
	for (unsigned n = scratch_random(seed) % 20; n > 0; n--) {
		char key[40];
		int len = snprintf(key, sizeof(key), "%llu",
				   (unsigned long long)(scratch_random(seed) % 200));
		size_t size = scratch_random(seed) % (n == 1 ? sizeof(bytes) : 400);

		if (scratch_random(seed) % 2)
			ck_ok(index_put(txn, INDEX_SNAPS, key, (size_t)len, bytes, size));
		else
			ck_assert_int_ge(index_del(txn, INDEX_SNAPS, key, (size_t)len), 0);
	}
	if (scratch_random(seed) % 10 == 0)
		index_abortp(&txn);
	else
		ck_ok(index_commit(&txn));
}

START_TEST(a_healthy_file_passes_after_every_commit)
{
	uint64_t seed = 7;

	for (int i = 0; i < 300; i++) {
		change(&seed, i < 150 ? 20000 : 600); /* grows, then shrinks */
		ck_ok(index_check(s.index));
		if (i % 100 == 0) {
			index_close(s.index);
			s.index = NULL;
			ck_ok(index_open(s.dir_fd, &noter, &s.index));
		}
	}
	ck_assert_uint_eq(s.notes, 0);
}
END_TEST

/* What a walk of a file gave. */
struct walked {
	unsigned right, damaged;
};

static int walk_chunk(void *arg, const struct name *name, const struct chunk_loc *loc)
{
	struct walked *w = arg;
	struct name expected;

	if (!loc) {
		w->damaged++;
		return 0;
	}
	expected = name_at(loc->pack - 1);
	ck_assert(name_eq(&expected, name)); /* never wrong */
	w->right++;
	return 0;
}

static int walk_record(void *arg, const void *key, size_t key_len, const void *value,
		       size_t value_len)
{
	struct walked *w = arg;

	if (!value)
		w->damaged++;
	else
		w->right++;
	return 0;
}

static struct walked walk(void)
{
	struct walked w = { 0 };

	ck_assert_int_eq(index_each_chunk(s.index, walk_chunk, &w), 0);
	for (int t = INDEX_META; t <= INDEX_BRANCHES; t++)
		ck_assert_int_eq(index_each(s.index, t, walk_record, &w), 0);
	return w;
}

static uint64_t used_bytes(uint8_t *file, size_t size)
{
	for (; size > 0 && file[size - 1] == 0; size--)
		;
	return (size + 4095) & ~(uint64_t)4095;
}

START_TEST(any_flipped_bit_is_refused_found_or_meaningless)
{
	const size_t room = 4 << 20;
	_cleanup_free_ uint8_t *good = calloc(1, room);
	_cleanup_close_ int fd = -1;
	unsigned refused = 0, found = 0, meaningless = 0;
	struct walked all;
	uint64_t seed = 11, size;

	for (int i = 0; i < 60; i++)
		change(&seed, 2000);
	all = walk();
	ck_assert_uint_eq(all.damaged, 0);
	index_close(s.index);
	s.index = NULL;
	ck_ok(os_openat(s.dir_fd, "index/data.mdb", O_RDWR, 0, &fd));
	ck_assert_int_gt(pread(fd, good, room, 0), 0);
	size = used_bytes(good, room);
	ck_assert_uint_lt(size, room);

	for (int i = 0; i < 1500; i++) {
		uint64_t page = scratch_random(&seed) % (size / 4096), at, bit;
		struct walked w;
		int r;

		/* heads of pages, where structure is, as often as all the rest */
		at = page * 4096 + scratch_random(&seed) % (i % 2 ? 4096 : page < 2 ? 160 : 16);
		bit = scratch_random(&seed) % 8;
		good[at] ^= (uint8_t)(1 << bit);
		ck_ok(os_pwrite_full(fd, good, size, 0));
		r = index_open(s.dir_fd, &noter, &s.index);
		if (r < 0) {
			ck_assert_msg(r == -ERR_INDEX_BROKEN || r == -ENOMEM, "byte %llu: %s",
				      (unsigned long long)at, err_name(r));
			refused++;
		} else {
			w = walk();
			ck_assert_uint_eq(w.right + w.damaged, all.right);
			found += w.damaged;
			meaningless += w.damaged == 0;
			if (i % 20 == 0) { /* nor does writing crash; a commit waits for the disk */
				change(&seed, 2000);
				ck_ok(index_check(s.index));
			}
			index_close(s.index);
		}
		s.index = NULL;
		good[at] ^= (uint8_t)(1 << bit);
	}
	fprintf(stderr, "refused %u, found %u, meaningless %u\n", refused, found, meaningless);
	ck_assert_uint_gt(refused, 0);
	ck_assert_uint_gt(found, 0);
}
END_TEST

/* Of the newest meta page: where its two dbs begin. */
static uint8_t *newest_dbs(uint8_t *file)
{
	uint8_t *a = file + 40, *b = a + 4096;

	return get_le64(a + 104) > get_le64(b + 104) ? a : b;
}

/* The list of free pages becomes a single value of 4 bytes, the last ones of its page. */
START_TEST(a_list_of_free_pages_without_its_count_is_refused)
{
	enum { BYTES = 4096, NODE = BYTES - 20, KEY = NODE + 8 };
	const size_t room = 4 << 20;
	_cleanup_free_ uint8_t *file = calloc(1, room);
	_cleanup_close_ int fd = -1;
	uint64_t seed = 5;
	uint8_t *db, *page;

	for (int i = 0; i < 4; i++)
		change(&seed, 2000);
	index_close(s.index);
	s.index = NULL;
	ck_ok(os_openat(s.dir_fd, "index/data.mdb", O_RDWR, 0, &fd));
	ck_assert_int_gt(pread(fd, file, room, 0), 0);
	db = newest_dbs(file);
	ck_assert_uint_eq(get_le16(db + 6), 1); /* its depth: one leaf */
	page = file + get_le64(db + 40) * BYTES;
	memcpy(page + KEY, page + get_le16(page + 16) + 8, 8);
	put_le16(page + 12, 18);
	put_le16(page + 14, NODE);
	put_le16(page + 16, NODE);
	put_le64(page + NODE, 4 | UINT64_C(8) << 48); /* lengths of the value and the key */
	put_le64(db + 24, 0);                         /* long values */
	put_le64(db + 32, 1);                         /* entries */
	ck_ok(os_pwrite_full(fd, file, used_bytes(file, room), 0));
	ck_err(index_open(s.dir_fd, &noter, &s.index), -ERR_INDEX_BROKEN);
	ck_assert_ptr_nonnull(strstr(s.last_note, "a list of free pages ends too early"));
}
END_TEST

/* Flips each bit of bytes from..to of the file in turn, and looks at what that makes of it. */
static void flip_each(int fd, uint64_t from, uint64_t to, unsigned records)
{
	for (uint64_t at = from; at < to; at++) {
		for (unsigned bit = 0; bit < 8; bit++) {
			struct index_txn *txn;
			struct walked w;
			uint8_t byte;
			int r;

			ck_ok(os_pread_full(fd, &byte, 1, at));
			byte ^= (uint8_t)(1 << bit);
			ck_ok(os_pwrite_full(fd, &byte, 1, at));
			r = index_open(s.dir_fd, &noter, &s.index);
			if (r == 0) {
				w = walk();
				ck_assert_msg(w.right + w.damaged == records, "byte %llu bit %u",
					      (unsigned long long)at, bit);
				/* nor is it in the way of what is written next */
				ck_ok(index_begin(s.index, &txn));
				ck_ok(index_put(txn, INDEX_META, "key", 3, "value", 5));
				index_abortp(&txn);
				index_close(s.index);
			} else {
				ck_err(r, -ERR_INDEX_BROKEN);
			}
			s.index = NULL;
			byte ^= (uint8_t)(1 << bit);
			ck_ok(os_pwrite_full(fd, &byte, 1, at));
		}
	}
}

/* The only page of a tree, and where its first node begins. */
static uint64_t only_page(uint8_t *file, const uint8_t *db, unsigned *ret_upper)
{
	uint64_t at = get_le64(db + 40) * 4096;

	ck_assert_uint_eq(get_le16(db + 6), 1);
	*ret_upper = get_le16(file + at + 14);
	return at;
}

START_TEST(no_bit_hides_a_table_or_is_in_the_way_of_a_commit)
{
	const size_t room = 4 << 20;
	_cleanup_free_ uint8_t *file = calloc(1, room);
	const uint8_t *name_of_meta, *meta = NULL;
	_cleanup_close_ int fd = -1;
	struct index_txn *txn;
	uint64_t tables, page;
	unsigned upper;

	ck_ok(index_begin(s.index, &txn));
	ck_ok(index_put(txn, INDEX_META, "key", 3, "value", 5));
	ck_ok(index_put(txn, INDEX_SNAPS, "id", 2, "a snapshot", 10));
	ck_ok(index_put(txn, INDEX_BRANCHES, "main", 4, "a branch", 8));
	ck_ok(index_commit(&txn));
	index_close(s.index);
	s.index = NULL;
	ck_ok(os_openat(s.dir_fd, "index/data.mdb", O_RDWR, 0, &fd));
	ck_assert_int_gt(pread(fd, file, room, 0), 0);

	tables = only_page(file, newest_dbs(file) + 48, &upper);
	flip_each(fd, tables, tables + 24, 3);
	flip_each(fd, tables + upper, tables + 4096, 3);

	name_of_meta = memmem(file + tables + upper, 4096 - upper, "meta", 4);
	ck_assert_ptr_nonnull(name_of_meta);
	meta = name_of_meta + 4;
	page = only_page(file, meta, &upper);
	flip_each(fd, page, page + 18, 3);
	flip_each(fd, page + upper, page + 4096, 3);
}
END_TEST

/* ---- one field put wrong ---- */

enum { PAGE = 4096, FILE_ROOM = 4 << 20, META_TXN = 144, META_DBS = 40 };

static uint8_t *file_bytes; /* FILE_ROOM, as it is when it is sound */
static int file_fd = -1;

/* Eight bytes at a place become others, and that is refused with these words. */
static void expect_refusal(uint64_t at, uint64_t value, const char *words)
{
	uint8_t bytes[8];
	int r;

	put_le64(bytes, value);
	ck_ok(os_pwrite_full(file_fd, bytes, sizeof(bytes), at));
	r = index_open(s.dir_fd, &noter, &s.index);
	ck_assert_msg(r == -ERR_INDEX_BROKEN && strstr(s.last_note, words), "%s: %s, %s", words,
		      err_name(r), s.last_note);
	ck_ok(os_pwrite_full(file_fd, file_bytes + at, sizeof(bytes), at));
}

static uint64_t at_place(uint64_t at)
{
	return get_le64(file_bytes + at);
}

/* Where the main tree's only page has the db of a table. */
static uint64_t db_of(uint64_t newest, const char *table)
{
	const uint64_t page = at_place(newest + META_DBS + 48 + 40) * PAGE;
	const uint8_t *name = memmem(file_bytes + page, PAGE, table, strlen(table));

	ck_assert_ptr_nonnull(name);
	return (uint64_t)(name - file_bytes) + strlen(table);
}

/* The last entry of the last page of free ones, which is the lowest page number of that list. */
static uint64_t last_free_page(uint64_t newest)
{
	const uint64_t page = at_place(newest + META_DBS + 40) * PAGE;
	const uint64_t node = page + get_le16(file_bytes + page + 16);
	const uint64_t value = node + 8 + 8;

	ck_assert_uint_eq(get_le16(file_bytes + newest + META_DBS + 6), 1); /* its depth */
	return value + 8 * at_place(value);
}

START_TEST(each_field_that_cannot_be_so_is_refused)
{
	static uint8_t long_value[20000];
	uint64_t newest, txn, snaps, branches, leaf, node, overflow;
	struct index_txn *txn_of;

	for (int i = 0; i < 5; i++) { /* so that there are free pages */
		ck_ok(index_begin(s.index, &txn_of));
		ck_ok(index_put(txn_of, INDEX_SNAPS, "k", 1, "v", 1));
		ck_ok(index_put(txn_of, INDEX_SNAPS, "l", 1, "v", 1));
		ck_ok(index_put(txn_of, INDEX_BRANCHES, "k", 1, "v", 1));
		ck_ok(index_put(txn_of, INDEX_BRANCHES, "l", 1, "v", 1));
		ck_ok(index_put(txn_of, INDEX_META, "long", 4, long_value, sizeof(long_value)));
		ck_ok(index_commit(&txn_of));
	}
	index_close(s.index);
	s.index = NULL;
	file_bytes = calloc(1, FILE_ROOM);
	ck_ok(os_openat(s.dir_fd, "index/data.mdb", O_RDWR, 0, &file_fd));
	ck_assert_int_gt(pread(file_fd, file_bytes, FILE_ROOM, 0), 0);
	newest = at_place(META_TXN) > at_place(PAGE + META_TXN) ? 0 : PAGE;
	txn = at_place(newest + META_TXN);

	expect_refusal(newest + META_TXN, txn + 2, "transaction numbers");
	expect_refusal(PAGE + META_DBS, 2 * PAGE | (at_place(PAGE + META_DBS) >> 32) << 32,
		       "another page size");
	expect_refusal(newest + META_DBS, at_place(newest + META_DBS) ^ UINT64_C(1) << 32,
		       "unknown flags");
	expect_refusal(newest + META_DBS + 48,
		       at_place(newest + META_DBS + 48) ^ UINT64_C(1) << 32, "unknown flags");
	expect_refusal(last_free_page(newest), 1, "out of order");

	snaps = db_of(newest, "snaps");
	branches = db_of(newest, "branches");
	expect_refusal(branches + 40, at_place(snaps + 40), "two uses");
	expect_refusal(branches, at_place(branches) ^ UINT64_C(4) << 32, "a table with unknown");
	expect_refusal(branches + 32, at_place(branches + 32) + 1, "what is written of it");

	leaf = at_place(snaps + 40) * PAGE;
	node = leaf + get_le16(file_bytes + leaf + 18); /* of "l": a key of 1, a value of 5 bytes */
	ck_assert_uint_eq(at_place(node), UINT64_C(1) << 48 | 5);
	expect_refusal(node, 6, "a key of length 0");
	expect_refusal(node, UINT64_C(1) << 48 | 3, "do not fill it");
	expect_refusal(node, UINT64_C(1) << 48 | UINT64_C(4) << 32 | 5, "does not lie in it");
	expect_refusal(node + 8, at_place(node + 8) - 2, "out of order"); /* "j" */
	expect_refusal(leaf + 8, at_place(leaf + 8) + (UINT64_C(1) << 32), "impossible bounds");

	leaf = at_place(db_of(newest, "meta") + 40) * PAGE;
	overflow = at_place(leaf + get_le16(file_bytes + leaf + 16) + 8 + 4) * PAGE;
	expect_refusal(overflow, overflow / PAGE + 1, "not the long value");
	expect_refusal(overflow + 8, at_place(overflow + 8) + (UINT64_C(1) << 32),
		       "not the long value");

	ck_ok(index_open(s.dir_fd, &noter, &s.index)); /* as it was */
	closep(&file_fd);
	free(file_bytes);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		a_healthy_file_passes_after_every_commit,
		any_flipped_bit_is_refused_found_or_meaningless,
		a_list_of_free_pages_without_its_count_is_refused,
		each_field_that_cannot_be_so_is_refused,
		no_bit_hides_a_table_or_is_in_the_way_of_a_commit,
	};

	return scratch_run("index_verify", tests, ARRAY_SIZE(tests), setup, teardown);
}
