/* SPDX-License-Identifier: Apache-2.0 */

/* The index: records, damage of its pages and values, a map that grows. */

#include "tests/unit/scratch.h"

#include <pthread.h>

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

static void reopen(void)
{
	index_close(s.index);
	s.index = NULL;
	ck_ok(index_open(s.dir_fd, &noter, &s.index));
}

static void put(enum index_table table, const char *key, const char *value)
{
	struct index_txn *txn;

	ck_ok(index_begin(s.index, &txn));
	ck_ok(index_put(txn, table, key, strlen(key), value, strlen(value)));
	ck_ok(index_commit(&txn));
	ck_assert_ptr_null(txn);
}

static void expect(enum index_table table, const char *key, const char *value)
{
	_cleanup_free_ void *got = NULL;
	size_t len = 0;
	int r;

	r = index_get(s.index, table, key, strlen(key), &got, &len);
	if (!value) {
		ck_err(r, ABSENT);
		return;
	}
	ck_ok(r);
	ck_assert_uint_eq(len, strlen(value));
	ck_assert_mem_eq(got, value, len);
}

static const struct chunk_loc some_loc = {
	.pack = 3, .off = 4096, .stored_len = 100, .raw_len = 200, .salt = 1, .kind = CHUNK_NODE,
	.codec = 1,
};

START_TEST(records_survive_reopening)
{
	put(INDEX_META, "counter", "42");
	put(INDEX_BRANCHES, "main", "a branch");
	put(INDEX_META, "empty", "");
	reopen();
	expect(INDEX_META, "counter", "42");
	expect(INDEX_META, "empty", "");
	expect(INDEX_BRANCHES, "main", "a branch");
	expect(INDEX_BRANCHES, "counter", NULL);
	expect(INDEX_SNAPS, "main", NULL);
}
END_TEST

START_TEST(an_aborted_transaction_leaves_nothing)
{
	struct index_txn *txn;

	put(INDEX_META, "k", "old");
	ck_ok(index_begin(s.index, &txn));
	ck_ok(index_put(txn, INDEX_META, "k", 1, "new", 3));
	ck_err(index_del(txn, INDEX_META, "none", 4), ABSENT);
	expect(INDEX_META, "k", "old"); /* readers see the last commit */
	index_abortp(&txn);
	index_abortp(&txn); /* and again does nothing */
	expect(INDEX_META, "k", "old");
}
END_TEST

START_TEST(chunk_locations_come_back_whole)
{
	struct name name = name_of("x", 1, 0), other = name_of("y", 1, 0);
	struct index_txn *txn;
	struct chunk_loc loc;
	uint64_t count = 99;

	ck_ok(index_begin(s.index, &txn));
	ck_ok(index_put_chunk(txn, &name, &some_loc));
	ck_err(index_del_chunk(txn, &other), ABSENT);
	ck_ok(index_commit(&txn));

	ck_ok(index_find_chunk(s.index, &name, &loc));
	ck_assert_uint_eq(loc.pack, some_loc.pack);
	ck_assert_uint_eq(loc.off, some_loc.off);
	ck_assert_uint_eq(loc.stored_len, some_loc.stored_len);
	ck_assert_uint_eq(loc.raw_len, some_loc.raw_len);
	ck_assert_uint_eq(loc.salt, some_loc.salt);
	ck_assert_uint_eq(loc.kind, some_loc.kind);
	ck_assert_uint_eq(loc.codec, some_loc.codec);
	ck_err(index_find_chunk(s.index, &other, &loc), ABSENT);
	ck_ok(index_count_chunks(s.index, &count));
	ck_assert_uint_eq(count, 1);
}
END_TEST

static int expect_order(void *arg, const void *key, size_t key_len, const void *value,
			size_t value_len)
{
	static const char *const keys[] = { "a", "aa", "b" };
	int *n = arg;

	ck_assert_int_lt(*n, 3);
	ck_assert_uint_eq(key_len, strlen(keys[*n]));
	ck_assert_mem_eq(key, keys[*n], key_len);
	ck_assert_uint_eq(value_len, 1);
	expect(INDEX_META, "b", "3"); /* reading inside is allowed */
	return ++*n == 2 && key_len == 1 ? 55 : 0;
}

START_TEST(records_are_listed_in_key_order)
{
	int n = 0;

	put(INDEX_META, "b", "3");
	put(INDEX_META, "aa", "2");
	put(INDEX_META, "a", "1");
	ck_ok(index_each(s.index, INDEX_META, expect_order, &n));
	ck_assert_int_eq(n, 3);
}
END_TEST

/* Flips a byte of the file wherever `what` stands. */
static void garble(const char *what, size_t len)
{
	_cleanup_free_ char *bytes = malloc(1 << 20);
	_cleanup_close_ int fd = -1;
	ssize_t n;
	int hits = 0;

	ck_ok(os_openat(s.dir_fd, "index/data.mdb", O_RDWR, 0, &fd));
	n = pread(fd, bytes, 1 << 20, 0);
	ck_assert(n > 0);
	for (ssize_t i = 0; i + (ssize_t)len <= n; i++) {
		if (memcmp(bytes + i, what, len) != 0)
			continue;
		bytes[i] ^= 0x20;
		ck_assert_int_eq(pwrite(fd, bytes + i, 1, i), 1);
		hits++;
	}
	ck_assert_int_gt(hits, 0);
}

static int expect_damage(void *arg, const void *key, size_t key_len, const void *value,
			 size_t value_len)
{
	*(int *)arg += value == NULL;
	return 0;
}

static int expect_damaged_chunk(void *arg, const struct name *name, const struct chunk_loc *loc)
{
	*(int *)arg += loc == NULL;
	return 0;
}

START_TEST(a_flipped_bit_is_found)
{
	struct name name = name_of("x", 1, 0);
	struct chunk_loc loc = some_loc;
	struct index_txn *txn;
	void *value;
	size_t len;
	int n = 0;

	put(INDEX_META, "key", "unmistakable value");
	loc.off = UINT64_C(0x5a5a5a58);
	ck_ok(index_begin(s.index, &txn));
	ck_ok(index_put_chunk(txn, &name, &loc));
	ck_ok(index_commit(&txn));
	index_close(s.index);
	s.index = NULL;
	garble("unmistakable", 12);
	garble("\x58\x5a\x5a\x5a", 4);
	ck_ok(index_open(s.dir_fd, &noter, &s.index));

	ck_err(index_get(s.index, INDEX_META, "key", 3, &value, &len), -ERR_INDEX_DAMAGED);
	ck_assert_uint_gt(s.notes, 0);
	ck_ok(index_each(s.index, INDEX_META, expect_damage, &n));
	ck_assert_int_eq(n, 1);
	ck_err(index_find_chunk(s.index, &name, &loc), -ERR_INDEX_DAMAGED);
	ck_ok(index_each_chunk(s.index, expect_damaged_chunk, &n));
	ck_assert_int_eq(n, 2);
}
END_TEST

/* The value's length is damaged while the file is in use: nobody looks at its pages again. */
START_TEST(a_value_too_short_for_its_checksum_is_damage)
{
	_cleanup_free_ uint8_t *bytes = malloc(1 << 20);
	_cleanup_close_ int fd = -1;
	void *value;
	ssize_t n;
	size_t len;

	put(INDEX_META, "unmistakable", "value");
	ck_ok(os_openat(s.dir_fd, "index/data.mdb", O_RDWR, 0, &fd));
	n = pread(fd, bytes, 1 << 20, 0);
	for (uint8_t *at = bytes; (at = memmem(at, (size_t)(bytes + n - at), "unmist", 6)); at++)
		ck_assert_int_eq(pwrite(fd, "\3", 1, at - bytes - 8), 1); /* of LMDB's node */
	ck_err(index_get(s.index, INDEX_META, "unmistakable", 12, &value, &len),
	       -ERR_INDEX_DAMAGED);
}
END_TEST

START_TEST(a_location_out_of_bounds_is_damage)
{
	struct chunk_loc bad[11];
	struct chunk_loc loc;

	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		bad[i] = some_loc;
	bad[0].kind = 0;
	bad[1].kind = 9;
	bad[2].codec = 3;
	bad[3].raw_len = CHUNK_MAX + 1;
	bad[4].stored_len = 0;
	bad[5].stored_len = 201;
	bad[6].off = 4097;
	bad[7].off = UINT64_C(1) << 60;
	bad[8].pack = 0;
	bad[9].codec = 0; /* plain, and of two lengths */
	bad[10].off = 16; /* in the pack's header */
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		struct name name = name_of(&i, sizeof(i), 0);
		struct index_txn *txn;

		ck_ok(index_begin(s.index, &txn));
		ck_ok(index_put_chunk(txn, &name, &bad[i]));
		ck_ok(index_commit(&txn));
		ck_err(index_find_chunk(s.index, &name, &loc), -ERR_INDEX_DAMAGED);
	}
}
END_TEST

static void fill(int from, int to)
{
	struct index_txn *txn;

	ck_ok(index_begin(s.index, &txn));
	for (int i = from; i < to; i++) {
		struct name name = name_of(&i, sizeof(i), 0);

		ck_ok(index_put_chunk(txn, &name, &some_loc));
	}
	ck_ok(index_commit(&txn));
}

START_TEST(a_cut_file_is_refused_not_a_bus_error)
{
	static const off_t cuts[] = { 0, 1, 200, 4096, 5000, 8192, 3 * 4096 };

	fill(0, 20000);
	for (size_t i = ARRAY_SIZE(cuts); i-- > 0;) {
		_cleanup_close_ int fd = -1;

		index_close(s.index);
		s.index = NULL;
		ck_ok(os_openat(s.dir_fd, "index/data.mdb", O_RDWR, 0, &fd));
		ck_ok(os_ftruncate(fd, (uint64_t)cuts[i]));
		ck_err(index_open(s.dir_fd, &noter, &s.index), -ERR_INDEX_BROKEN);
		ck_assert_uint_gt(s.notes, 0);
	}
}
END_TEST

START_TEST(a_file_that_is_cut_in_use_takes_no_commits)
{
	static const off_t cuts[] = { 5 * 4096, 8192, 4096, 0 };
	struct index_txn *txn, *begun;
	struct stat st;

	fill(0, 20000);
	for (size_t i = 0; i < ARRAY_SIZE(cuts); i++) {
		_cleanup_close_ int fd = -1;

		ck_ok(os_openat(s.dir_fd, "index/data.mdb", O_RDWR, 0, &fd));
		if (i == 0) {
			ck_ok(index_begin(s.index, &begun));
			ck_ok(index_put(begun, INDEX_META, "key", 3, "v", 1));
		}
		ck_ok(os_ftruncate(fd, (uint64_t)cuts[i]));
		if (i == 0)
			ck_err(index_commit(&begun), -ERR_INDEX_BROKEN);
		ck_err(index_begin(s.index, &txn), -ERR_INDEX_BROKEN);
		ck_assert_ptr_nonnull(strstr(s.last_note, "was cut"));
		ck_ok(os_fstat(fd, &st));
		ck_assert_int_eq(st.st_size, cuts[i]); /* no zeros for what is gone */
	}
}
END_TEST

/* At open it would be taken for what a crash left, which costs nothing. In use nothing left it. */
START_TEST(in_use_a_file_that_lost_free_pages_was_cut_as_well)
{
	enum { LAST = 136, META = 4096 }; /* of a meta page: its last page's number, and its size */
	static uint8_t large[1 << 20];
	_cleanup_close_ int fd = -1;
	uint64_t last[2], end;
	struct index_txn *txn;

	for (int n = 0; n < 10; n++) /* single pages to be taken below are free ones, then */
		fill(0, 100);
	ck_ok(index_begin(s.index, &txn));
	ck_ok(index_put(txn, INDEX_META, "large", 5, large, sizeof(large)));
	ck_ok(index_commit(&txn));
	ck_ok(index_begin(s.index, &txn));
	ck_ok(index_del(txn, INDEX_META, "large", 5));
	ck_ok(index_commit(&txn));
	ck_ok(os_openat(s.dir_fd, "index/data.mdb", O_RDWR, 0, &fd));
	for (unsigned i = 0; i < 2; i++)
		ck_ok(os_pread_full(fd, &last[i], sizeof(last[i]), i * META + LAST));
	end = MAX(last[0], last[1]) - 10;
	ck_ok(os_ftruncate(fd, end * 4096));
	ck_err(index_begin(s.index, &txn), -ERR_INDEX_BROKEN);
	ck_assert_ptr_nonnull(strstr(s.last_note, "was cut"));
	ck_err(index_check(s.index), -ERR_INDEX_BROKEN);
	ck_assert_ptr_nonnull(strstr(s.last_note, "was cut"));
	reopen();
	ck_ok(index_check(s.index));
	fill(0, 100);
}
END_TEST

START_TEST(garbage_is_refused)
{
	_cleanup_close_ int fd = -1;
	char junk[8192];

	index_close(s.index);
	s.index = NULL;
	scratch_fill(junk, sizeof(junk), 1);
	ck_ok(os_openat(s.dir_fd, "index/data.mdb", O_RDWR | O_TRUNC, 0, &fd));
	ck_ok(os_pwrite_full(fd, junk, sizeof(junk), 0));
	ck_err(index_open(s.dir_fd, &noter, &s.index), -ERR_INDEX_BROKEN);
}
END_TEST

START_TEST(a_file_always_covers_its_pages)
{
	static uint8_t large[300000];

	/* pages taken and given back inside one commit are counted by LMDB but never written */
	for (int round = 0; round < 20; round++) {
		struct index_txn *txn;

		fill(round * 100, round * 100 + 100); /* leaves free pages for the next one */
		ck_ok(index_begin(s.index, &txn));
		ck_ok(index_put(txn, INDEX_META, "small", 5, &round, sizeof(round)));
		ck_ok(index_put(txn, INDEX_META, "large", 5, large, sizeof(large)));
		ck_ok(index_del(txn, INDEX_META, "large", 5));
		ck_ok(index_commit(&txn));
		reopen();
	}
}
END_TEST

/* The same, and more than the file is kept ahead. */
START_TEST(a_commit_may_give_back_any_number_of_pages)
{
	static uint8_t large[1 << 20];
	struct index_txn *txn;

	for (int n = 0; n < 20; n++)
		fill(n * 100, n * 100 + 100);
	for (int round = 0; round < 2; round++) {
		int count = 80 * (1 + round);

		ck_ok(index_begin(s.index, &txn));
		ck_ok(index_put(txn, INDEX_META, "small", 5, &round, sizeof(round)));
		for (int n = 0; n < count; n++)
			ck_ok(index_put(txn, INDEX_META, &n, sizeof(n), large, sizeof(large)));
		for (int n = 0; n < count; n++)
			ck_ok(index_del(txn, INDEX_META, &n, sizeof(n)));
		ck_ok(index_commit(&txn));
		if (round == 0)
			reopen();
		else
			put(INDEX_META, "small", "goes on");
	}
	expect(INDEX_META, "small", "goes on");
	ck_assert_uint_eq(s.notes, 0);
}
END_TEST

/* A page of it that is to be written could meet a full disk, which would be a bus error. */
START_TEST(the_lock_file_is_on_no_disk)
{
	_cleanup_close_ int old = -1;
	struct stat st;

	ck_err(os_statat(s.dir_fd, "index/lock.mdb", &st), -ENOENT);
	index_close(s.index);
	ck_ok(os_openat(s.dir_fd, "index/lock.mdb", O_RDWR | O_CREAT, 0600, &old));
	ck_ok(os_ftruncate(old, 8192)); /* an older plyfs left it */
	ck_ok(index_open(s.dir_fd, &noter, &s.index));
	ck_err(os_statat(s.dir_fd, "index/lock.mdb", &st), -ENOENT);
	index_close(s.index);
	/* one that was killed at its open left that */
	ck_ok(os_symlinkat("/proc/self/fd/999", s.dir_fd, "index/lock.mdb"));
	ck_ok(index_open(s.dir_fd, &noter, &s.index));
	ck_err(os_statat(s.dir_fd, "index/lock.mdb", &st), -ENOENT);
}
END_TEST

START_TEST(files_are_private)
{
	struct stat st;

	ck_ok(os_statat(s.dir_fd, "index", &st));
	ck_assert_uint_eq(st.st_mode & 07777, 0700);
	ck_ok(os_statat(s.dir_fd, "index/data.mdb", &st));
	ck_assert_uint_eq(st.st_mode & 07777, 0600);
}
END_TEST

struct reading {
	pthread_t thread;
	int stop;
	unsigned found;
};

static void *read_on(void *arg)
{
	struct reading *rd = arg;

	while (!__atomic_load_n(&rd->stop, __ATOMIC_RELAXED)) {
		int i = (int)(rd->found % 100);
		struct name name = name_of(&i, sizeof(i), 0);
		struct chunk_loc loc;

		if (index_find_chunk(s.index, &name, &loc) == 0)
			rd->found++;
	}
	return NULL;
}

START_TEST(a_full_map_grows_under_readers)
{
	struct reading readers[3] = { 0 };
	int done = 0, grown = 0;
	uint64_t count;

	index_close(s.index);
	s.index = NULL;
	ck_ok(setenv("PLYFS_TEST_MAP_BYTES", "262144", 1));
	ck_ok(index_open(s.dir_fd, &noter, &s.index));
	fill(0, 100);
	for (size_t i = 0; i < ARRAY_SIZE(readers); i++)
		ck_ok(pthread_create(&readers[i].thread, NULL, read_on, &readers[i]));

	while (done < 20000) {
		struct index_txn *txn;
		int r = 0;

		ck_ok(index_begin(s.index, &txn));
		for (int i = done; r == 0 && i < done + 1000; i++) {
			struct name name = name_of(&i, sizeof(i), 0);

			r = index_put_chunk(txn, &name, &some_loc);
		}
		if (r == 0)
			r = index_commit(&txn);
		if (r == -ERR_INDEX_FULL) {
			index_abortp(&txn);
			ck_ok(index_grow(s.index));
			grown++;
			continue;
		}
		ck_ok(r);
		done += 1000;
	}
	for (size_t i = 0; i < ARRAY_SIZE(readers); i++) {
		__atomic_store_n(&readers[i].stop, 1, __ATOMIC_RELAXED);
		pthread_join(readers[i].thread, NULL);
		ck_assert_uint_gt(readers[i].found, 0);
	}
	ck_assert_int_gt(grown, 2);
	ck_ok(index_count_chunks(s.index, &count));
	ck_assert_uint_eq(count, 20000);
	reopen();
	ck_ok(index_count_chunks(s.index, &count));
	ck_assert_uint_eq(count, 20000);
}
END_TEST

START_TEST(odd_keys_are_refused)
{
	struct index_txn *txn;
	char key[600] = { 0 };

	ck_ok(index_begin(s.index, &txn));
	ck_err(index_put(txn, INDEX_META, key, 0, "v", 1), -EINVAL);
	ck_err(index_put(txn, INDEX_META, key, 600, "v", 1), -EINVAL);
	ck_ok(index_put(txn, INDEX_META, key, 511, "v", 1));
	ck_ok(index_commit(&txn));
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		records_survive_reopening,
		an_aborted_transaction_leaves_nothing,
		chunk_locations_come_back_whole,
		records_are_listed_in_key_order,
		a_flipped_bit_is_found,
		a_value_too_short_for_its_checksum_is_damage,
		a_location_out_of_bounds_is_damage,
		a_cut_file_is_refused_not_a_bus_error,
		a_file_that_is_cut_in_use_takes_no_commits,
		in_use_a_file_that_lost_free_pages_was_cut_as_well,
		garbage_is_refused,
		a_file_always_covers_its_pages,
		a_commit_may_give_back_any_number_of_pages,
		the_lock_file_is_on_no_disk,
		files_are_private,
		a_full_map_grows_under_readers,
		odd_keys_are_refused,
	};

	return scratch_run("index", tests, ARRAY_SIZE(tests), setup, teardown);
}
