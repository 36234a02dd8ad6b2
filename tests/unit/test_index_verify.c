/* SPDX-License-Identifier: Apache-2.0 */
#include "store/base/fault.h"
#include "store/index_verify.h"
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

enum { PAGE = 4096, FILE_ROOM = 4 << 20 };
/* In a meta page: how large the map is, the two dbs, the last page and the transaction's number. */
enum { META_MAP = 32, META_DBS = 40, META_LAST = 136, META_TXN = 144 };
/* Of eight bytes, what is one more in the second, third or fourth two of them. */
#define SECOND (UINT64_C(1) << 16)
#define THIRD (UINT64_C(1) << 32)
#define FOURTH (UINT64_C(1) << 48)

static uint8_t *file_bytes; /* FILE_ROOM, as it is when it is sound */
static int file_fd = -1;

static uint64_t at_place(uint64_t at)
{
	return get_le64(file_bytes + at);
}

/* The index is closed, and becomes the bytes of its file; the place of its newest meta page. */
static uint64_t take_file(void)
{
	index_close(s.index);
	s.index = NULL;
	file_bytes = calloc(1, FILE_ROOM);
	ck_assert_ptr_nonnull(file_bytes);
	ck_ok(os_openat(s.dir_fd, "index/data.mdb", O_RDWR, 0, &file_fd));
	ck_assert_int_gt(pread(file_fd, file_bytes, FILE_ROOM, 0), 0);
	return at_place(META_TXN) > at_place(PAGE + META_TXN) ? 0 : PAGE;
}

/* What was put wrong is put right again. */
static void expect_as_it_was(void)
{
	ck_ok(index_open(s.dir_fd, &noter, &s.index));
	closep(&file_fd);
	free(file_bytes);
}

static void put_at(uint64_t at, uint64_t value)
{
	uint8_t bytes[8];

	put_le64(bytes, value);
	ck_ok(os_pwrite_full(file_fd, bytes, sizeof(bytes), at));
}

static void mend_at(uint64_t at)
{
	put_at(at, at_place(at));
}

/* Eight bytes at a place become others, and that is refused with these words. */
static void expect_refusal(uint64_t at, uint64_t value, const char *words)
{
	int r;

	put_at(at, value);
	r = index_open(s.dir_fd, &noter, &s.index);
	ck_assert_msg(r == -ERR_INDEX_BROKEN && strstr(s.last_note, words), "%s: %s, %s", words,
		      err_name(r), s.last_note);
	mend_at(at);
}

/* ... become so much more. */
static void expect_too_much(uint64_t at, uint64_t more, const char *words)
{
	expect_refusal(at, at_place(at) + more, words);
}

/* Where the main tree's only page has the db of a table. */
static uint64_t db_of(uint64_t newest, const char *table)
{
	const uint64_t page = at_place(newest + META_DBS + 48 + 40) * PAGE;
	const uint8_t *name = memmem(file_bytes + page, PAGE, table, strlen(table));

	ck_assert_ptr_nonnull(name);
	return (uint64_t)(name - file_bytes) + strlen(table);
}

static uint64_t root_of(uint64_t db)
{
	return at_place(db + 40) * PAGE;
}

static uint64_t node_of(uint64_t page, unsigned i)
{
	return page + get_le16(file_bytes + page + 16 + 2 * i);
}

static uint64_t child_of(uint64_t page, unsigned i)
{
	return (at_place(node_of(page, i)) & (FOURTH - 1)) * PAGE;
}

static void expect_meta_refused(uint64_t newest)
{
	const uint64_t other = PAGE - newest, txn = at_place(newest + META_TXN);
	static const uint32_t sizes[] = { 0, 256, 3072, 2 * 65536 };

	expect_too_much(16, 1, "not of LMDB 0.9");     /* the magic number */
	expect_too_much(16, THIRD, "not of LMDB 0.9"); /* the version */
	expect_refusal(PAGE, 0, "not a meta page");    /* its number */
	expect_refusal(PAGE + 8, at_place(PAGE + 8) ^ 8 * SECOND, "not a meta page");
	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++)
		expect_refusal(META_DBS, sizes[i] | at_place(META_DBS) >> 32 << 32,
			       "a page size of");
	expect_refusal(PAGE + META_DBS, 2 * PAGE | at_place(PAGE + META_DBS) >> 32 << 32,
		       "another page size");
	expect_too_much(newest + META_TXN, 2, "transaction numbers");
	put_at(newest + META_TXN, txn + 1); /* one after the other, in each other's pages */
	expect_refusal(other + META_TXN, txn, "transaction numbers");
	mend_at(newest + META_TXN);
	expect_refusal(newest + META_MAP, at_place(newest + META_LAST) * PAGE, "pages in a map");
	expect_refusal(newest + META_DBS, at_place(newest + META_DBS) ^ THIRD, "unknown flags");
	expect_too_much(newest + META_DBS + 48, THIRD, "unknown flags");
}

static void expect_free_list_refused(uint64_t newest, uint64_t in_use)
{
	const uint64_t page = root_of(newest + META_DBS), node = node_of(page, 0);
	const uint64_t list = node + 8 + 8, n = at_place(list);
	const uint64_t next = node_of(page, 1) + 8 + 8;
	const uint64_t low = list + 8 * n, next_low = next + 8 * at_place(next);

	ck_assert_uint_eq(get_le16(file_bytes + newest + META_DBS + 6), 1); /* its depth */
	ck_assert_uint_ge(n, 2);
	expect_refusal(list, (at_place(node) & (THIRD - 1)) / 8, "ends too early");
	expect_refusal(low, 1, "out of order");
	expect_refusal(list + 16, at_place(list + 8), "out of order");
	expect_refusal(list + 8, at_place(newest + META_LAST) + 1, "out of order");
	ck_assert_uint_lt(in_use, at_place(low - 8));
	expect_refusal(low, in_use, "free and in use");
	ck_assert_uint_ge(at_place(next), 2);
	if (at_place(low) < at_place(next_low))
		expect_refusal(next_low, at_place(low), "free twice");
	else
		expect_refusal(low, at_place(next_low), "free twice");
	expect_too_much(node, 2 * FOURTH - 2, "a key of length 10");
}

/* A table with "k", "l" and "m", each of 1 byte; their values have 5, 5 and 604. */
static void expect_leaf_refused(uint64_t leaf)
{
	const uint64_t k = node_of(leaf, 0), l = node_of(leaf, 1), m = node_of(leaf, 2);
	const uint64_t lower = get_le16(file_bytes + leaf + 12);
	const uint64_t upper = get_le16(file_bytes + leaf + 14);
	const uint64_t bounds = at_place(leaf + 8) & (THIRD - 1);
	const uint64_t places = at_place(leaf + 16) & ~(SECOND - 1);

	ck_assert_uint_eq(at_place(l), FOURTH | 5);
	expect_refusal(l, 6, "a key of length 0");
	expect_refusal(m, 512 * FOURTH | (604 + 1 - 512), "a key of length 512");
	expect_refusal(l, FOURTH | 3, "do not fill it");
	expect_refusal(l, FOURTH | 4 * THIRD | 5, "does not lie in it");
	expect_refusal(l, FOURTH | 2 * THIRD | 5, "a table inside a table");
	expect_too_much(k, 2 * FOURTH, "does not lie in it"); /* the last of the page */
	expect_refusal(l + 8, at_place(l + 8) - 1, "out of order");
	expect_refusal(l + 8, at_place(l + 8) - 2, "out of order");

	expect_refusal(leaf + 16, places | (k - leaf + 1), "does not lie in it");
	expect_refusal(leaf + 16, places | (PAGE - 4), "does not lie in it");
	expect_refusal(leaf + 16, places | (upper - 8), "does not lie in it"); /* all zero */
	expect_refusal(leaf + 16, places | 0xfffe, "does not lie in it");

	expect_too_much(leaf, 1, "not the page that it should be");
	expect_too_much(leaf + 8, SECOND, "not the page that it should be");
	expect_too_much(leaf + 8, THIRD, "impossible bounds");
	expect_too_much(leaf + 8, FOURTH, "impossible bounds");
	expect_refusal(leaf + 8, bounds | lower * THIRD | (PAGE + 2) * FOURTH,
		       "impossible bounds");
	expect_refusal(leaf + 8, bounds | (upper + 2) * THIRD | upper * FOURTH,
		       "impossible bounds");
	expect_refusal(leaf + 8, bounds | 16 * THIRD | PAGE * FOURTH, "impossible bounds");
}

static void expect_table_refused(uint64_t newest)
{
	const uint64_t snaps = db_of(newest, "snaps"), branches = db_of(newest, "branches");
	const uint64_t node = snaps - strlen("snaps") - 8, empty = db_of(newest, "chunks");

	expect_refusal(snaps + 40, at_place(branches + 40), "two uses");
	expect_refusal(branches + 40, 1, "there is no such page");
	expect_refusal(branches + 40, at_place(newest + META_LAST) + 1, "there is no such page");
	expect_too_much(branches, 4 * THIRD, "a table with unknown");
	expect_too_much(branches, FOURTH, "what is written of it"); /* its depth */
	for (unsigned at = 8; at <= 32; at += 8)
		expect_too_much(branches + at, 1, "what is written of it");
	expect_too_much(empty, FOURTH, "entries and no page");
	expect_too_much(empty + 32, 1, "entries and no page");
	expect_refusal(node, at_place(node) ^ 2 * THIRD, "not a table");
	expect_too_much(node, 1, "not a table"); /* as long, for its length is odd */
}

static void expect_long_value_refused(uint64_t newest)
{
	const uint64_t node = node_of(root_of(db_of(newest, "meta")), 0);
	const uint64_t pointer = node + 8 + 4, first = at_place(pointer) * PAGE;

	expect_refusal(pointer, at_place(db_of(newest, "branches") + 40), "two uses");
	expect_too_much(first, 1, "not the long value");
	expect_too_much(first + 8, SECOND, "not the long value");
	expect_too_much(first + 8, THIRD, "not the long value");
}

START_TEST(each_field_that_cannot_be_so_is_refused)
{
	static uint8_t value[5 * PAGE];
	char longest_key[511];
	uint64_t newest, snaps;
	struct index_txn *txn;

	memset(longest_key, 'x', sizeof(longest_key));
	for (int i = 0; i < 5; i++) { /* so that there are free pages */
		ck_ok(index_begin(s.index, &txn));
		ck_ok(index_put(txn, INDEX_SNAPS, "k", 1, "v", 1));
		ck_ok(index_put(txn, INDEX_SNAPS, "l", 1, "v", 1));
		ck_ok(index_put(txn, INDEX_SNAPS, "m", 1, value, 600));
		ck_ok(index_put(txn, INDEX_BRANCHES, "k", 1, "v", 1));
		ck_ok(index_put(txn, INDEX_BRANCHES, longest_key, sizeof(longest_key), "v", 1));
		/* with header and checksum just 5 pages, and a byte more */
		ck_ok(index_put(txn, INDEX_META, "long", 4, value, sizeof(value) - 20));
		ck_ok(index_put(txn, INDEX_META, "longer", 6, value, sizeof(value) - 19));
		ck_ok(index_commit(&txn));
	}
	newest = take_file();
	snaps = root_of(db_of(newest, "snaps"));

	expect_meta_refused(newest);
	expect_free_list_refused(newest, snaps / PAGE);
	expect_table_refused(newest);
	expect_leaf_refused(snaps);
	expect_long_value_refused(newest);
	expect_as_it_was();
}
END_TEST

START_TEST(a_long_list_of_free_pages_is_read_where_it_is)
{
	static const uint8_t value[500];
	uint64_t newest, page, node, i = 0, list;
	struct index_txn *txn;

	for (int step = 0; step < 3; step++) { /* comes, goes, and what it had is listed */
		ck_ok(index_begin(s.index, &txn));
		for (int n = 0; n < 3000; n++) {
			char key[8];

			snprintf(key, sizeof(key), "%d", n);
			if (step == 0)
				ck_ok(index_put(txn, INDEX_SNAPS, key, strlen(key), value,
						sizeof(value)));
			else if (step == 1)
				ck_ok(index_del(txn, INDEX_SNAPS, key, strlen(key)));
		}
		ck_ok(index_put(txn, INDEX_META, "step", 4, &step, sizeof(step)));
		ck_ok(index_commit(&txn));
	}
	newest = take_file();
	page = root_of(newest + META_DBS);
	for (; get_le16(file_bytes + node_of(page, (unsigned)i) + 4) != 1; i++) /* a long value */
		ck_assert_uint_lt(i, 10);
	node = node_of(page, (unsigned)i);
	list = at_place(node + 8 + 8) * PAGE + 16;
	ck_assert_uint_gt(at_place(list), 250);
	expect_refusal(list, (at_place(node) & (THIRD - 1)) / 8, "ends too early");
	expect_refusal(list + 8 * at_place(list), 1, "out of order");
	expect_as_it_was();
}
END_TEST

/* ---- trees of two levels ---- */

/* Of 300 snapshots with even numbers; each key of the branches has 511 bytes and begins with z. */
static void make_two_levels(void)
{
	uint8_t value[100] = { 0 };
	char key[511];
	struct index_txn *txn;

	ck_ok(index_begin(s.index, &txn));
	for (int i = 0; i < 300; i++) {
		snprintf(key, sizeof(key), "k%04d", 2 * i);
		ck_ok(index_put(txn, INDEX_SNAPS, key, 5, value, sizeof(value)));
	}
	memset(key, 'z', sizeof(key));
	for (int i = 0; i < 20; i++) {
		key[9] = (char)('a' + i);
		ck_ok(index_put(txn, INDEX_BRANCHES, key, sizeof(key), value, 1));
	}
	ck_ok(index_commit(&txn));
}

/* The key "kNNNN" of a node, and with another number what is there instead of it. */
static int key_number(uint64_t node)
{
	return atoi((const char *)file_bytes + node + 9);
}

static void expect_number_refused(uint64_t node, int number)
{
	uint8_t bytes[8];
	char key[13]; /* for any int, as the compiler knows no better: here it is "kNNNN" */

	memcpy(bytes, file_bytes + node + 8, sizeof(bytes));
	snprintf(key, sizeof(key), "k%04d", number);
	memcpy(bytes, key, 5);
	expect_refusal(node + 8, get_le64(bytes), "out of order");
}

static unsigned entries_of(uint64_t page)
{
	return (get_le16(file_bytes + page + 12) - 16u) / 2;
}

/* More pages than LMDB goes down, each the first child of the one before. */
static void expect_too_deep(uint64_t newest, uint64_t root)
{
	enum { LEVELS = 40, NODE = PAGE - 18 };
	const uint64_t first = at_place(newest + META_LAST) + 1;

	for (uint64_t number = first; number < first + LEVELS; number++) {
		uint8_t page[PAGE] = { 0 };

		put_le64(page, number);
		put_le16(page + 10, 1);  /* a branch */
		put_le16(page + 12, 20); /* two entries */
		put_le16(page + 14, NODE);
		put_le16(page + 16, PAGE - 8);
		put_le16(page + 18, NODE);
		put_le64(page + NODE, FOURTH | number);
		page[NODE + 8] = 'z';
		put_le64(page + PAGE - 8, number + 1);
		ck_ok(os_pwrite_full(file_fd, page, sizeof(page), number * PAGE));
	}
	put_at(newest + META_LAST, first + LEVELS);
	expect_refusal(root, first, "too deep");
	mend_at(newest + META_LAST);
}

/* An entry more on a page with the header of a branch. */
static void add_child(uint8_t *page, const uint8_t *key, size_t key_len, uint64_t child)
{
	const unsigned lower = get_le16(page + 12);
	const unsigned upper = get_le16(page + 14) - (unsigned)(8 + key_len + 1) / 2 * 2;

	put_le64(page + upper, child | key_len * FOURTH);
	memcpy(page + upper + 8, key, key_len);
	put_le16(page + lower, (uint16_t)upper);
	put_le16(page + 12, (uint16_t)(lower + 2));
	put_le16(page + 14, (uint16_t)upper);
}

static void add_entry(uint8_t *page, uint64_t root, unsigned i, bool is_first)
{
	const uint64_t node = node_of(root, i);

	add_child(page, file_bytes + node + 8, is_first ? 0 : get_le16(file_bytes + node + 6),
		  child_of(root, i) / PAGE);
}

/* The last two children of a tree's top are a level deeper, which its db says as well. */
static void expect_uneven_refused(uint64_t newest, uint64_t db)
{
	const uint64_t last = at_place(newest + META_LAST), root = root_of(db);
	const unsigned n = entries_of(root);
	uint8_t top[PAGE] = { 0 }, below[PAGE] = { 0 };
	const uint64_t split = node_of(root, n - 2);

	ck_assert_uint_ge(n, 3);
	put_le64(top, root / PAGE);
	put_le64(below, last + 1);
	for (unsigned i = 0; i < 2; i++) {
		uint8_t *page = i ? below : top;

		put_le16(page + 10, 1); /* a branch */
		put_le16(page + 12, 16);
		put_le16(page + 14, PAGE);
	}
	for (unsigned i = 0; i < n - 2; i++)
		add_entry(top, root, i, i == 0);
	add_child(top, file_bytes + split + 8, get_le16(file_bytes + split + 6), last + 1);
	add_entry(below, root, n - 2, true);
	add_entry(below, root, n - 1, false);

	ck_ok(os_pwrite_full(file_fd, top, PAGE, root));
	ck_ok(os_pwrite_full(file_fd, below, PAGE, (last + 1) * PAGE));
	put_at(newest + META_LAST, last + 1);
	put_at(db + 8, at_place(db + 8) + 1); /* its branches */
	expect_too_much(db, FOURTH, "a branch where a leaf should be");
	ck_ok(os_pwrite_full(file_fd, file_bytes + root, PAGE, root));
	mend_at(newest + META_LAST);
	mend_at(db + 8);
}

START_TEST(each_field_of_a_branch_that_cannot_be_so_is_refused)
{
	uint64_t newest, snaps, branches, left, right;
	struct index_txn *txn;
	char key[6];
	int bound;

	make_two_levels();
	newest = take_file();
	snaps = root_of(db_of(newest, "snaps"));
	bound = key_number(node_of(snaps, 1));
	closep(&file_fd);
	free(file_bytes);
	/* Then the bound is no key of either side. */
	ck_ok(index_open(s.dir_fd, &noter, &s.index));
	snprintf(key, sizeof(key), "k%04d", bound);
	ck_ok(index_begin(s.index, &txn));
	ck_ok(index_del(txn, INDEX_SNAPS, key, 5));
	ck_ok(index_commit(&txn));
	newest = take_file();
	snaps = root_of(db_of(newest, "snaps"));
	branches = root_of(db_of(newest, "branches"));
	ck_assert_int_eq(key_number(node_of(snaps, 1)), bound);
	left = child_of(snaps, 0);
	left = node_of(left, entries_of(left) - 1);
	right = node_of(child_of(snaps, 1), 0);
	ck_assert_int_eq(key_number(left), bound - 2);
	ck_assert_int_eq(key_number(right), bound + 2);

	expect_number_refused(left, bound);
	expect_number_refused(left, bound + 1);
	expect_number_refused(right, bound - 1);
	expect_too_much(node_of(snaps, 0), THIRD, "there is no such page"); /* a large number */
	expect_refusal(snaps + 8, (at_place(snaps + 8) & ~(0xffff * THIRD)) | 18 * THIRD,
		       "impossible bounds");
	/* one key becomes shorter and the other one longer */
	put_at(node_of(snaps, 2), at_place(node_of(snaps, 2)) + 6 * FOURTH);
	expect_refusal(node_of(snaps, 1), at_place(node_of(snaps, 1)) & (FOURTH - 1),
		       "a key of length 0");
	mend_at(node_of(snaps, 2));
	expect_too_much(node_of(branches, 1), FOURTH, "a key of length 512");
	/* a child with children, before one that has none */
	expect_refusal(node_of(branches, 0), snaps / PAGE, "a leaf where a branch should be");
	expect_uneven_refused(newest, db_of(newest, "branches"));
	expect_too_deep(newest, db_of(newest, "branches") + 40);
	expect_as_it_was();
}
END_TEST

/* ---- a file that is short, new or cannot be read ---- */

static void expect_cut(uint64_t size, const char *words)
{
	ck_assert_int_eq(ftruncate(file_fd, (off_t)size), 0);
	ck_err(index_verify(file_fd, &noter), -ERR_INDEX_BROKEN);
	ck_assert_ptr_nonnull(strstr(s.last_note, words));
}

START_TEST(a_file_that_was_cut_is_refused)
{
	uint64_t newest, last;

	make_two_levels();
	newest = take_file();
	last = at_place(newest + META_LAST);
	ck_ok(index_verify(file_fd, &noter));
	expect_cut(last * PAGE, "index/data.mdb was cut");
	expect_cut(PAGE, "page 1: the file was cut");
	expect_cut(0, "page 0: the file was cut");
	ck_ok(os_pwrite_full(file_fd, file_bytes, (last + 1) * PAGE, 0));
	expect_as_it_was();
}
END_TEST

/* As a crash leaves it behind a commit that gave back more pages than the file is kept ahead. */
START_TEST(a_file_may_lack_free_pages_and_no_others)
{
	static uint8_t value[5 * PAGE];
	uint64_t newest, last, end;
	struct index_txn *txn;

	make_two_levels();
	for (int n = 0; n < 10; n++) { /* single pages to be taken below are free ones, then */
		ck_ok(index_begin(s.index, &txn));
		ck_ok(index_put(txn, INDEX_META, "number", 6, &n, sizeof(n)));
		ck_ok(index_commit(&txn));
	}
	memset(value, 'v', sizeof(value));
	ck_ok(index_begin(s.index, &txn));
	ck_ok(index_put(txn, INDEX_META, "kept", 4, value, sizeof(value)));
	ck_ok(index_put(txn, INDEX_META, "freed", 5, value, sizeof(value)));
	ck_ok(index_commit(&txn));
	ck_ok(index_begin(s.index, &txn));
	ck_ok(index_del(txn, INDEX_META, "freed", 5));
	ck_ok(index_commit(&txn));
	newest = take_file();
	last = at_place(newest + META_LAST);
	for (end = last + 1; ftruncate(file_fd, (off_t)(end * PAGE)) == 0; end--) {
		if (index_verify(file_fd, &noter) != 0)
			break;
	}
	/* what it broke off at is the end of the long value, not only the header of one */
	ck_assert_uint_eq(file_bytes[end * PAGE], 'v');
	ck_assert_uint_ge(last - end, 5);
	ck_assert_uint_eq(s.notes, 1);
	while (end > 2)
		expect_cut(--end * PAGE, "index/data.mdb was cut");
	ck_ok(os_pwrite_full(file_fd, file_bytes, (last + 1) * PAGE, 0));
	ck_ok(ftruncate(file_fd, (off_t)((last + 1) * PAGE)));
	/* nor may it count more than those that are listed */
	expect_refusal(newest + META_LAST, last + 1, "index/data.mdb was cut");
	expect_refusal(newest + META_LAST, last + 500000, "index/data.mdb was cut");
	put_at(newest + META_MAP, UINT64_MAX); /* more than there is memory for */
	expect_refusal(newest + META_LAST, UINT64_C(1) << 50, "index/data.mdb was cut");
	mend_at(newest + META_MAP);
	expect_as_it_was();
}
END_TEST

START_TEST(a_file_without_a_commit_is_healthy)
{
	(void)take_file();
	for (uint64_t meta = 0; meta <= PAGE; meta += PAGE) {
		put_at(meta + META_LAST, 1);
		put_at(meta + META_TXN, 0);
		for (uint64_t db = meta + META_DBS; db <= meta + META_DBS + 48; db += 48) {
			put_at(db, at_place(db) & (FOURTH - 1)); /* no depth */
			put_at(db + 32, 0);
			put_at(db + 40, UINT64_MAX);
		}
	}
	ck_ok(index_verify(file_fd, &noter));
	closep(&file_fd);
	free(file_bytes);
}
END_TEST

START_TEST(what_cannot_be_read_is_no_damage_and_not_healthy)
{
	static uint8_t value[5 * PAGE];
	struct index_txn *txn;
	int n = 0, r;

	make_two_levels();
	ck_ok(index_begin(s.index, &txn));
	ck_ok(index_put(txn, INDEX_META, "long", 4, value, sizeof(value)));
	ck_ok(index_commit(&txn));
	(void)take_file();
	for (;; n++) {
		fault_arm(n, 1, EIO);
		r = index_verify(file_fd, &noter);
		if (fault_ticks() <= n)
			break;
		ck_assert_msg(r == -EIO || r == -ENOMEM, "call %d: %s", n, err_name(r));
	}
	fault_disarm();
	ck_ok(r);
	ck_assert_int_gt(n, 10);
	ck_assert_uint_eq(s.notes, 0);
	expect_as_it_was();
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		a_healthy_file_passes_after_every_commit,
		any_flipped_bit_is_refused_found_or_meaningless,
		a_list_of_free_pages_without_its_count_is_refused,
		each_field_that_cannot_be_so_is_refused,
		a_long_list_of_free_pages_is_read_where_it_is,
		each_field_of_a_branch_that_cannot_be_so_is_refused,
		a_file_that_was_cut_is_refused,
		a_file_may_lack_free_pages_and_no_others,
		a_file_without_a_commit_is_healthy,
		what_cannot_be_read_is_no_damage_and_not_healthy,
		no_bit_hides_a_table_or_is_in_the_way_of_a_commit,
	};

	return scratch_run("index_verify", tests, ARRAY_SIZE(tests), setup, teardown);
}
