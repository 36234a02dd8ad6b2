/* SPDX-License-Identifier: Apache-2.0 */

/* The chunk store: bytes by name, collisions, damage, failing writes and syncs, the cache. */

#include "tests/unit/scratch.h"

#include <pthread.h>
#include <sys/uio.h>

#include "store/base/fault.h"
#include "store/chunk_internal.h"
#include "store/format.h"

static struct scratch s;

static void setup(void)
{
	scratch_make(&s);
	scratch_open(&s);
}

static void teardown(void)
{
	fault_disarm();
	scratch_close(&s);
	scratch_remove(&s);
}

static void reopen(void)
{
	scratch_close(&s);
	scratch_open(&s);
}

static void expect(const struct name *name, const void *data, size_t len)
{
	_cleanup_(chunkbuf_unrefp) struct chunkbuf *b = NULL;

	ck_ok(chunk_load(s.chunks, name, &b));
	ck_assert_uint_eq(b->len, len);
	ck_assert(name_eq(&b->name, name));
	ck_assert_mem_eq(b->data, data, len);
}

static uint64_t pack_bytes(void)
{
	uint64_t bytes, packs, chunks;

	ck_ok(chunks_stats(s.chunks, &bytes, &packs, &chunks));
	return bytes;
}

static void put_file_byte(const char *path, uint64_t off, uint8_t flip)
{
	_cleanup_close_ int fd = -1;
	uint8_t byte;

	ck_ok(os_openat(s.dir_fd, path, O_RDWR, 0, &fd));
	ck_ok(os_pread_full(fd, &byte, 1, off));
	byte ^= flip;
	ck_ok(os_pwrite_full(fd, &byte, 1, off));
}

static struct chunk_loc where(const struct name *name)
{
	struct chunk_loc loc;

	ck_ok(index_find_chunk(s.index, name, &loc));
	return loc;
}

START_TEST(chunks_read_back_pending_committed_and_reopened)
{
	static uint8_t data[CHUNK_MAX];
	struct name names[3];
	const size_t lens[] = { 1, 5000, CHUNK_MAX };
	uint64_t count, bytes;

	scratch_fill(data, sizeof(data), 1);
	for (int i = 0; i < 3; i++)
		ck_ok(chunk_put(s.chunks, CHUNK_DATA, data, lens[i], &names[i]));
	chunks_pending(s.chunks, &count, &bytes);
	ck_assert_uint_eq(count, 3);
	ck_assert_uint_gt(bytes, CHUNK_MAX + 5001);
	for (int i = 0; i < 3; i++)
		expect(&names[i], data, lens[i]);
	scratch_commit(&s);
	chunks_pending(s.chunks, &count, &bytes);
	ck_assert_uint_eq(count, 0);
	ck_assert_uint_eq(bytes, 0);
	for (int i = 0; i < 3; i++)
		expect(&names[i], data, lens[i]);
	reopen();
	for (int i = 0; i < 3; i++)
		expect(&names[i], data, lens[i]);
}
END_TEST

START_TEST(same_bytes_are_stored_once)
{
	static uint8_t data[40000];
	struct name a, b;
	uint64_t size;

	scratch_fill(data, sizeof(data), 2);
	ck_ok(chunk_put(s.chunks, CHUNK_DATA, data, sizeof(data), &a));
	size = pack_bytes();
	ck_err(chunk_put(s.chunks, CHUNK_DATA, data, sizeof(data), &b), EXISTS);
	ck_assert(name_eq(&a, &b));
	scratch_commit(&s);
	ck_err(chunk_put(s.chunks, CHUNK_NODE, data, sizeof(data), &b), EXISTS);
	reopen();
	ck_err(chunk_put(s.chunks, CHUNK_DATA, data, sizeof(data), &b), EXISTS);
	ck_assert(name_eq(&a, &b));
	ck_assert_uint_eq(pack_bytes(), size);
}
END_TEST

START_TEST(sizes_outside_the_format_are_refused)
{
	static uint8_t data[CHUNK_MAX + 1];
	struct name name;

	ck_err(chunk_put(s.chunks, CHUNK_DATA, data, 0, &name), -EINVAL);
	ck_err(chunk_put(s.chunks, CHUNK_DATA, data, sizeof(data), &name), -ERR_CHUNK_TOO_LARGE);
}
END_TEST

START_TEST(nodes_are_compressed_and_data_is_not)
{
	uint8_t data[4096] = { 1, 2, 3 }, noise[4096];
	struct name name;

	scratch_fill(noise, sizeof(noise), 3);
	ck_ok(chunk_put(s.chunks, CHUNK_NODE, data, sizeof(data), &name));
	scratch_commit(&s);
	ck_assert_uint_eq(where(&name).codec, 1);
	ck_assert_uint_lt(where(&name).stored_len, 200);
	expect(&name, data, sizeof(data));

	data[0]++;
	ck_ok(chunk_put(s.chunks, CHUNK_DATA, data, sizeof(data), &name));
	scratch_commit(&s);
	ck_assert_uint_eq(where(&name).codec, 0);

	ck_ok(chunk_put(s.chunks, CHUNK_NODE, noise, sizeof(noise), &name));
	scratch_commit(&s);
	ck_assert_uint_eq(where(&name).codec, 0); /* it would have grown */
	expect(&name, noise, sizeof(noise));
}
END_TEST

/* Of content i: some share a length, so that comparing bytes is what tells them apart. */
static size_t content(uint32_t i, uint8_t *buf)
{
	size_t len = 8 + (i % 7) * 100;

	scratch_fill(buf, len, 1000 + i);
	return len;
}

START_TEST(colliding_names_keep_every_content)
{
	enum { N = 3000 };
	static struct name names[N];
	uint8_t buf[1024];
	struct name again;
	unsigned cut = 0;
	uint64_t size, count, bytes;

	hash_truncate_for_tests(8);
	for (uint32_t i = 0; i < N; i++) {
		size_t len = content(i, buf);

		ck_ok(chunk_put(s.chunks, i % 2 ? CHUNK_DATA : CHUNK_NODE, buf, len, &names[i]));
		cut += get_le64(names[i].b + 8) == 0;
		if (i % 500 == 250)
			scratch_commit(&s);
	}
	ck_assert_uint_gt(cut, 200); /* the hook did its work ... */
	ck_assert_uint_lt(cut, 1025); /* ... and the others met four collisions */
	size = pack_bytes();
	for (uint32_t i = 0; i < N; i++) {
		size_t len = content(i, buf);

		expect(&names[i], buf, len);
		ck_err(chunk_put(s.chunks, CHUNK_DATA, buf, len, &again), EXISTS);
		ck_assert(name_eq(&names[i], &again));
	}
	ck_assert_uint_eq(pack_bytes(), size);
	scratch_commit(&s);
	chunks_pending(s.chunks, &count, &bytes);
	ck_assert_uint_eq(count, 0);
	reopen();
	for (uint32_t i = 0; i < N; i++)
		expect(&names[i], buf, content(i, buf));
	hash_truncate_for_tests(0);
}
END_TEST

/*
 * Real collisions of XXH3-128, seed 0, for any input above 240 bytes. Each 8 bytes `v` go into the
 * state as v itself, added, and as a product of the halves of (v ^ secret). Where the low halves
 * meet the secret's the product is 0, so what is added to the high half of one place and taken from
 * that of another (the same lane of the next 64 bytes) changes nothing. The secret is public.
 */
#define SECRET_LOW_0 0x396cfeb8 /* bytes 0 to 3 of XXH3's default secret */
#define SECRET_LOW_8 0x2c81017c /* bytes 8 to 11 */

static void forge(uint8_t *bytes, uint32_t shift)
{
	put_le32(bytes, SECRET_LOW_0);
	put_le32(bytes + 4, 1000 + shift);
	put_le32(bytes + 64, SECRET_LOW_8);
	put_le32(bytes + 68, 5000 - shift);
}

START_TEST(forged_collisions_all_live)
{
	enum { N = 10 };
	static uint8_t bytes[N][5000];
	struct name names[N], first, again;

	for (uint32_t i = 0; i < N; i++) {
		scratch_fill(bytes[i], sizeof(bytes[i]), 1);
		forge(bytes[i], i);
		names[i] = name_of(bytes[i], sizeof(bytes[i]), 0);
		ck_assert(name_eq(&names[i], &names[0])); /* a true collision */
		ck_assert(i == 0 || memcmp(bytes[i], bytes[0], sizeof(bytes[i])) != 0);
	}
	first = names[0];
	for (uint32_t i = 0; i < N; i++)
		ck_ok(chunk_put(s.chunks, CHUNK_DATA, bytes[i], sizeof(bytes[i]), &names[i]));
	ck_assert(name_eq(&first, &names[0]));
	for (int round = 0; round < 2; round++) {
		for (uint32_t i = 0; i < N; i++) {
			expect(&names[i], bytes[i], sizeof(bytes[i]));
			ck_err(chunk_put(s.chunks, CHUNK_DATA, bytes[i], sizeof(bytes[i]), &again),
			       EXISTS);
			ck_assert(name_eq(&names[i], &again));
		}
		scratch_commit(&s);
		reopen();
	}
}
END_TEST

START_TEST(unknown_names_are_missing)
{
	struct chunkbuf *b = NULL;
	struct name name = name_of("never stored", 12, 0);

	ck_err(chunk_find(s.chunks, &name), ABSENT);
	ck_err(chunk_load(s.chunks, &name, &b), -ERR_CHUNK_MISSING);
	ck_assert_ptr_null(b);
	ck_assert_uint_eq(s.notes, 1);
}
END_TEST

static int count_hooks;
static void hook(void)
{
	__atomic_add_fetch(&count_hooks, 1, __ATOMIC_RELAXED);
}

/* Does the filesystem know reads that do not wait? FUSE and NFS do not. */
static bool can_read_cached(int dir_fd)
{
	_cleanup_close_ int fd = openat(dir_fd, "probe", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	char byte = 'x';

	ck_assert_int_eq(write(fd, &byte, 1), 1);
	return preadv2(fd, &(struct iovec){ &byte, 1 }, 1, 0, RWF_NOWAIT) == 1;
}

START_TEST(the_hook_is_called_for_disk_reads_only)
{
	uint8_t data[100];
	struct name name;

	chunks_set_io_hook(s.chunks, hook);
	scratch_fill(data, sizeof(data), 4);
	ck_ok(chunk_put(s.chunks, CHUNK_DATA, data, sizeof(data), &name));
	ck_err(chunk_put(s.chunks, CHUNK_DATA, data, sizeof(data), &name), EXISTS);
	expect(&name, data, sizeof(data)); /* in the page cache: nothing to wait for */
	ck_assert_int_eq(count_hooks, can_read_cached(s.dir_fd) ? 0 : 1);
	count_hooks = 0;

	/*
	 * A read that is not to wait has the kernel fetch the page all the same, and finds it there
	 * when the disk is done before the reader is on the CPU again. On a busy machine that is
	 * most of them (seen: 12 of 20), but not 64 in a row.
	 */
	for (unsigned i = 0; i < 64 && !count_hooks; i++) {
		scratch_fill(data, sizeof(data), 5 + i);
		ck_ok(chunk_put(s.chunks, CHUNK_DATA, data, sizeof(data), &name));
		ck_ok(chunks_flush(s.chunks));
		if (!scratch_drop_pages(s.dir_fd, "packs/00000001.pack"))
			return; /* a filesystem that keeps its pages (tmpfs) */
		expect(&name, data, sizeof(data));
	}
	ck_assert_int_eq(count_hooks, 1);
	expect(&name, data, sizeof(data)); /* cached by us */
	ck_assert_int_eq(count_hooks, 1);
}
END_TEST

START_TEST(damage_is_found_and_never_served)
{
	uint8_t data[100];
	struct chunkbuf *b = NULL;
	struct chunk_info info = { 0 };
	struct chunk_loc loc;
	struct name name, other;

	scratch_fill(data, sizeof(data), 5);
	ck_ok(chunk_put(s.chunks, CHUNK_DATA, data, sizeof(data), &name));
	scratch_commit(&s);
	loc = where(&name);
	info.name = name;
	ck_ok(chunk_verify(s.chunks, &info, true));

	put_file_byte("packs/00000001.pack", loc.off + sizeof(struct record_header_bytes) + 50, 1);
	ck_err(chunk_load(s.chunks, &name, &b), -ERR_CHUNK_DAMAGED);
	ck_err(chunk_verify(s.chunks, &info, true), -ERR_CHUNK_DAMAGED);
	ck_ok(chunk_verify(s.chunks, &info, false));

	/* the good bytes met again are kept beside the damaged ones */
	ck_ok(chunk_put(s.chunks, CHUNK_DATA, data, sizeof(data), &other));
	ck_assert(!name_eq(&name, &other));
	expect(&other, data, sizeof(data));

	put_file_byte("packs/00000001.pack", loc.off + 9, 1);
	ck_err(chunk_verify(s.chunks, &info, false), -ERR_RECORD_DAMAGED);
	put_file_byte("packs/00000001.pack", 3, 1);
	reopen();
	ck_err(chunk_load(s.chunks, &name, &b), -ERR_CHUNK_DAMAGED); /* not for the header */
	ck_assert_int_eq(unlinkat(s.dir_fd, "packs/00000001.pack", 0), 0);
	reopen();
	ck_err(chunk_load(s.chunks, &name, &b), -ERR_PACK_MISSING);
}
END_TEST

START_TEST(a_cut_pack_is_an_error_not_a_crash)
{
	_cleanup_close_ int fd = -1;
	uint8_t data[5000];
	struct chunkbuf *b = NULL;
	struct chunk_info info = { 0 };
	struct name name, next;

	scratch_fill(data, sizeof(data), 6);
	ck_ok(chunk_put(s.chunks, CHUNK_DATA, data, sizeof(data), &name));
	scratch_commit(&s);
	reopen();
	ck_ok(os_openat(s.dir_fd, "packs/00000001.pack", O_RDWR, 0, &fd));
	ck_ok(os_ftruncate(fd, 1000));
	info.name = name;
	ck_err(chunk_load(s.chunks, &name, &b), -ERR_PACK_TRUNCATED);
	ck_err(chunk_verify(s.chunks, &info, false), -ERR_PACK_TRUNCATED);

	/* appending goes on behind it */
	ck_ok(chunk_put(s.chunks, CHUNK_DATA, data, 4000, &next));
	expect(&next, data, 4000);
}
END_TEST

START_TEST(a_torn_tail_is_left_alone)
{
	_cleanup_close_ int fd = -1;
	uint8_t data[100], torn[13] = "torn torn tor", back[13];
	struct name a, b;
	uint64_t size;

	scratch_fill(data, sizeof(data), 7);
	ck_ok(chunk_put(s.chunks, CHUNK_DATA, data, 90, &a));
	scratch_commit(&s);
	size = pack_bytes();
	scratch_close(&s);
	ck_ok(os_openat(s.dir_fd, "packs/00000001.pack", O_RDWR, 0, &fd));
	ck_ok(os_pwrite_full(fd, torn, sizeof(torn), size));
	scratch_open(&s);

	ck_ok(chunk_put(s.chunks, CHUNK_DATA, data, 100, &b));
	scratch_commit(&s);
	ck_assert_uint_eq(where(&b).pack, 1);
	ck_assert_uint_eq(where(&b).off, size + 16);
	ck_ok(os_pread_full(fd, back, sizeof(back), size));
	ck_assert_mem_eq(back, torn, sizeof(torn));
	reopen();
	expect(&a, data, 90);
	expect(&b, data, 100);
}
END_TEST

START_TEST(behind_a_header_that_cannot_be_read_nothing_is_appended)
{
	struct stat st;
	struct name a, b;

	ck_ok(chunk_put(s.chunks, CHUNK_DATA, "first", 5, &a));
	scratch_commit(&s);
	scratch_close(&s);
	ck_assert_int_eq(fstatat(s.dir_fd, "packs/00000001.pack", &st, 0), 0);
	fault_bad_sector(st.st_ino, 0, sizeof(struct pack_header_bytes));
	scratch_open(&s);

	ck_ok(chunk_put(s.chunks, CHUNK_DATA, "second", 6, &b));
	scratch_commit(&s);
	ck_assert_uint_eq(where(&b).pack, 2);
	expect(&a, "first", 5);
	expect(&b, "second", 6);
	fault_bad_sector(0, 0, 0);
}
END_TEST

START_TEST(pending_chunks_need_a_flush_to_be_committed)
{
	uint8_t data[64];
	struct index_txn *txn;
	struct chunk_loc loc;
	struct name a, b;
	uint64_t count, bytes;

	scratch_fill(data, sizeof(data), 8);
	ck_ok(chunk_put(s.chunks, CHUNK_DATA, data, 32, &a));
	ck_ok(chunks_flush(s.chunks));
	ck_ok(chunk_put(s.chunks, CHUNK_DATA, data, 64, &b));

	ck_ok(index_begin(s.index, &txn));
	ck_ok(chunks_commit_into(s.chunks, txn));
	index_abortp(&txn); /* nothing is lost by that */
	ck_ok(index_begin(s.index, &txn));
	ck_ok(chunks_commit_into(s.chunks, txn));
	ck_ok(index_commit(&txn));
	chunks_committed(s.chunks);

	chunks_pending(s.chunks, &count, &bytes);
	ck_assert_uint_eq(count, 1);
	ck_ok(index_find_chunk(s.index, &a, &loc));
	ck_err(index_find_chunk(s.index, &b, &loc), ABSENT);
	expect(&a, data, 32);
	expect(&b, data, 64);
	scratch_commit(&s);
	ck_ok(index_find_chunk(s.index, &b, &loc));
}
END_TEST

START_TEST(a_failed_write_changes_nothing)
{
	uint8_t data[9000];
	struct name name;
	uint64_t count, bytes, size;

	scratch_fill(data, sizeof(data), 9);
	ck_ok(chunk_put(s.chunks, CHUNK_DATA, data, 10, &name));
	size = pack_bytes();
	for (int n = 0;; n++) {
		int r;

		ck_assert_int_lt(n, 100);
		fault_arm(n, 1, ENOSPC);
		r = chunk_put(s.chunks, CHUNK_DATA, data, sizeof(data), &name);
		fault_disarm();
		if (r == 0)
			break;
		ck_assert(r == -ENOSPC || r == -ENOMEM);
		ck_assert_uint_eq(pack_bytes(), size);
		chunks_pending(s.chunks, &count, &bytes);
		ck_assert_uint_eq(count, 1);
	}
	expect(&name, data, sizeof(data));
	scratch_commit(&s);
	reopen();
	expect(&name, data, sizeof(data));
}
END_TEST

START_TEST(a_failed_sync_loses_nothing)
{
	static uint8_t data[50000];
	struct name names[20];
	struct chunk_loc loc;

	scratch_fill(data, sizeof(data), 10);
	ck_ok(chunk_put(s.chunks, CHUNK_DATA, data, 1000, &names[0]));
	scratch_commit(&s);
	for (int i = 1; i < 20; i++)
		ck_ok(chunk_put(s.chunks, CHUNK_DATA, data, 2000 + i, &names[i]));
	for (int n = 0;; n++) {
		int r;

		ck_assert_int_lt(n, 1000);
		fault_arm(n, 1, EIO);
		r = chunks_flush(s.chunks);
		fault_disarm();
		if (r == 0)
			break;
		/* nothing that was not synced may be committed */
		struct index_txn *txn;
		ck_ok(index_begin(s.index, &txn));
		ck_ok(chunks_commit_into(s.chunks, txn));
		ck_ok(index_commit(&txn));
		chunks_committed(s.chunks);
		ck_err(index_find_chunk(s.index, &names[5], &loc), ABSENT);
		for (int i = 1; i < 20; i++)
			expect(&names[i], data, 2000 + i);
	}
	scratch_commit(&s);
	for (int i = 1; i < 20; i++)
		ck_assert_uint_gt(where(&names[i]).pack, 1); /* not in the pack whose sync failed */
	reopen();
	expect(&names[0], data, 1000);
	for (int i = 1; i < 20; i++)
		expect(&names[i], data, 2000 + i);
}
END_TEST

/*
 * The flush of somebody who puts chunks may fail while the committer is between its own and the
 * transaction: that is to name no place that is not synced.
 */
START_TEST(what_was_synced_stays_where_it_is_when_a_later_sync_fails)
{
	struct name before, after;
	struct index_txn *txn;
	uint8_t data[1000];

	scratch_fill(data, sizeof(data), 12);
	ck_ok(chunk_put(s.chunks, CHUNK_DATA, data, 1000, &before));
	ck_ok(chunks_flush(s.chunks));
	ck_ok(chunk_put(s.chunks, CHUNK_DATA, data, 900, &after));
	fault_arm(0, 1, EIO); /* the pack's sync */
	ck_err(chunks_flush(s.chunks), -EIO);
	/* the next flush writes again what that sync had to make durable, and fails at any step */
	for (int n = 0;; n++) {
		int r;

		ck_assert_int_lt(n, 1000);
		fault_arm(n, 1, EIO);
		r = chunks_flush(s.chunks);
		fault_disarm();
		if (r == 0)
			break;
		ck_ok(index_begin(s.index, &txn));
		ck_ok(chunks_commit_into(s.chunks, txn));
		ck_ok(index_commit(&txn));
		ck_assert_uint_eq(where(&before).pack, 1);
	}
	scratch_commit(&s);
	ck_assert_uint_eq(where(&before).pack, 1);
	ck_assert_uint_gt(where(&after).pack, 1);
	expect(&before, data, 1000);
	expect(&after, data, 900);
}
END_TEST

static int check_info(void *arg, const struct chunk_info *info)
{
	ck_ok(chunk_verify(s.chunks, info, true));
	ck_assert_uint_eq(info->raw_len, 700);
	return ++*(int *)arg == 5 ? 66 : 0;
}

START_TEST(committed_chunks_are_listed)
{
	uint8_t data[700];
	struct name name;
	int n = 0;

	for (uint64_t i = 0; i < 10; i++) {
		scratch_fill(data, sizeof(data), i);
		ck_ok(chunk_put(s.chunks, CHUNK_NODE, data, sizeof(data), &name));
	}
	ck_ok(chunks_each(s.chunks, check_info, &n));
	ck_assert_int_eq(n, 0);
	scratch_commit(&s);
	ck_err(chunks_each(s.chunks, check_info, &n), 66);
}
END_TEST

/* ---- the cache by itself ---- */

static struct name numbered(uint32_t n)
{
	return name_of(&n, sizeof(n), 0);
}

static void cache_one(struct cache *cache, uint32_t n, uint32_t len)
{
	const struct name name = numbered(n);
	struct chunkbuf *b = chunkbuf_new(&name, len);

	ck_assert_ptr_nonnull(b);
	cache_add(cache, b);
	chunkbuf_unref(b);
}

static bool is_cached(struct cache *cache, uint32_t n)
{
	const struct name name = numbered(n);
	struct chunkbuf *b = cache_get(cache, &name);

	ck_assert(!b || name_eq(&b->name, &name));
	chunkbuf_unref(b);
	return b;
}

/* From 64 MiB on each new one takes the place of that which was used longest ago. */
START_TEST(the_cache_keeps_what_was_used_last)
{
	enum { LARGE = 1 << 20, FIT = CACHE_BYTES / LARGE - 1, N = 3 * FIT };
	enum { TINY = 10, MANY = CACHE_BYTES / CACHE_CHARGE_MIN + 1000 };
	struct cache *cache = calloc(1, sizeof(*cache));
	struct name name = numbered(0);
	struct chunkbuf *kept, *second;
	unsigned there = 0;

	cache_init(cache);
	for (uint32_t n = 0; n < N; n++) {
		cache_one(cache, n, LARGE);
		ck_assert(is_cached(cache, n));
		ck_assert(is_cached(cache, 0));
		ck_assert(n < FIT || !is_cached(cache, n - FIT + 1));
		ck_assert_uint_le(cache->bytes, CACHE_BYTES);
	}
	for (uint32_t n = N - FIT + 1; n < N; n++)
		ck_assert(is_cached(cache, n));

	kept = cache_get(cache, &name);
	second = chunkbuf_new(&name, LARGE);
	cache_add(cache, second);
	chunkbuf_unref(second);
	second = cache_get(cache, &name);
	ck_assert_ptr_eq(second, kept);
	chunkbuf_unref(second);

	for (uint32_t n = N; n < N + MANY; n++)
		cache_one(cache, n, TINY);
	for (uint32_t n = 0; n < N + MANY; n++)
		there += is_cached(cache, n);
	ck_assert_uint_le(there, CACHE_BYTES / CACHE_CHARGE_MIN);
	ck_assert_uint_ge(there, CACHE_BYTES / CACHE_CHARGE_MIN - 1);
	ck_assert(!is_cached(cache, 0));
	cache_release(cache);
	ck_assert_uint_eq(kept->len, LARGE); /* who has it may go on */
	chunkbuf_unref(kept);
	free(cache);
}
END_TEST

START_TEST(the_cache_is_bounded_and_right)
{
	/* 80 MiB through a cache of 64, twice */
	enum { N = 5120 };
	static uint8_t data[DIRECT_MIN - 1];
	static struct name names[N];
	uint64_t limit;

	for (uint32_t i = 0; i < N; i++) {
		scratch_fill(data, sizeof(data), i);
		ck_ok(chunk_put(s.chunks, CHUNK_DATA, data, sizeof(data), &names[i]));
	}
	for (uint32_t round = 0; round < 2; round++) {
		for (uint32_t i = 0; i < N; i++) {
			scratch_fill(data, sizeof(data), i);
			expect(&names[i], data, sizeof(data));
		}
		ck_assert_uint_gt(chunks_cached(s.chunks, &limit), limit - DIRECT_MIN);
		ck_assert_uint_le(chunks_cached(s.chunks, &limit), limit);
	}
}
END_TEST

START_TEST(parts_and_wholes_are_read_alike)
{
	/* Whole ones before and after the cache has them, and a part. */
	static const uint32_t lens[] = { 1, 5000, 16 * 1024, 100000, CHUNK_MAX };
	static uint8_t data[CHUNK_MAX], got[CHUNK_MAX];

	for (size_t i = 0; i < ARRAY_SIZE(lens); i++) {
		uint32_t len = lens[i], half = len / 2;
		struct name name;

		scratch_fill(data, len, (uint32_t)i + 7);
		ck_ok(chunk_put(s.chunks, CHUNK_DATA, data, len, &name));
		for (int round = 0; round < 2; round++) {
			memset(got, 0, sizeof(got));
			ck_ok(chunk_read(s.chunks, &name, 0, got, len));
			ck_assert_mem_eq(got, data, len);
			ck_ok(chunk_read(s.chunks, &name, half, got, len - half));
			ck_assert_mem_eq(got, data + half, len - half);
		}
		ck_assert_int_eq(chunk_read(s.chunks, &name, 0, got, len + 1), END);
		ck_assert_int_eq(chunk_read(s.chunks, &name, len, got, 1), END);
		ck_assert_int_eq(chunk_read(s.chunks, &name, UINT64_MAX, got, 1), END);

		scratch_commit(&s);
		reopen(); /* nothing is cached */
		put_file_byte("packs/00000001.pack",
			      where(&name).off + sizeof(struct record_header_bytes), 1);
		ck_err(chunk_read(s.chunks, &name, 0, got, len), -ERR_CHUNK_DAMAGED);
	}
	ck_assert_int_eq(chunk_read(s.chunks, &(struct name){ 0 }, 0, got, 1), -ERR_CHUNK_MISSING);
}
END_TEST

static int read_part(const struct name *name, const uint8_t *data, uint64_t off, size_t len)
{
	static uint8_t got[CHUNK_MAX];
	int r = chunk_read(s.chunks, name, off, got, len);

	if (r == 0)
		ck_assert_mem_eq(got, data + off, len);
	return r;
}

START_TEST(a_part_is_read_and_verified_without_the_rest)
{
	static const uint32_t lens[] = { 100000, CHUNK_MAX };
	static uint8_t data[CHUNK_MAX];

	for (size_t i = 0; i < ARRAY_SIZE(lens); i++) {
		const uint32_t len = lens[i];
		struct chunk_loc loc;
		struct name name;
		uint64_t at;

		scratch_fill(data, len, (uint32_t)i + 7);
		ck_ok(chunk_put(s.chunks, CHUNK_DATA, data, len, &name));
		scratch_commit(&s);
		loc = where(&name);
		at = loc.off + sizeof(struct record_header_bytes) + 3 * SUM_BYTES;
		ck_ok(read_part(&name, data, 0, 1));
		ck_ok(read_part(&name, data, SUM_BYTES - 1, 2));
		ck_ok(read_part(&name, data, len - 1, 1));
		ck_ok(read_part(&name, data, 5000, 80000));

		put_file_byte("packs/00000001.pack", at, 1);
		ck_ok(read_part(&name, data, 2 * SUM_BYTES, SUM_BYTES));
		ck_ok(read_part(&name, data, 4 * SUM_BYTES, len - 4 * SUM_BYTES));
		ck_err(read_part(&name, data, 3 * SUM_BYTES, 1), -ERR_CHUNK_DAMAGED);
		ck_err(read_part(&name, data, 2 * SUM_BYTES, SUM_BYTES + 1), -ERR_CHUNK_DAMAGED);
		ck_err(read_part(&name, data, 0, len), -ERR_CHUNK_DAMAGED);

		/* a sweep has moved it */
		put_file_byte("packs/00000001.pack", at, 1);
		loc.off += 8;
		chunk_blocks_keep(s.chunks, &name, &loc, data);
		ck_ok(read_part(&name, data, 3 * SUM_BYTES, 1));
		put_file_byte("packs/00000001.pack", at, 1);
		ck_ok(read_part(&name, data, 0, SUM_BYTES));
		chunk_uncache(s.chunks, &name);
		ck_err(read_part(&name, data, 0, SUM_BYTES), -ERR_CHUNK_DAMAGED);
	}
}
END_TEST

enum { THREADS = 4, EACH = 400 };

struct worker {
	pthread_t thread;
	unsigned number, failures;
};

static void *work(void *arg)
{
	struct worker *w = arg;
	uint8_t buf[1024];

	for (uint32_t i = 0; i < EACH; i++) {
		/* half of the contents are the same in every thread */
		uint32_t which = i % 2 ? i : i + EACH * (w->number + 1);
		size_t len = content(which, buf);
		struct chunkbuf *b = NULL;
		struct name name;

		if (chunk_put(s.chunks, CHUNK_DATA, buf, len, &name) < 0 ||
		    chunk_load(s.chunks, &name, &b) < 0) {
			w->failures++;
			continue;
		}
		w->failures += b->len != len || memcmp(b->data, buf, len) != 0;
		chunkbuf_unref(b);
		if (w->number == 0 && i % 50 == 0)
			scratch_commit(&s);
	}
	return NULL;
}

START_TEST(threads_store_and_read_at_once)
{
	struct worker workers[THREADS] = { 0 };
	uint64_t bytes, packs, chunks;

	hash_truncate_for_tests(8); /* so that they collide, too */
	for (unsigned i = 0; i < THREADS; i++) {
		workers[i].number = i;
		ck_ok(pthread_create(&workers[i].thread, NULL, work, &workers[i]));
	}
	for (unsigned i = 0; i < THREADS; i++) {
		pthread_join(workers[i].thread, NULL);
		ck_assert_uint_eq(workers[i].failures, 0);
	}
	scratch_commit(&s);
	ck_ok(chunks_stats(s.chunks, &bytes, &packs, &chunks));
	ck_assert_uint_eq(chunks, EACH / 2 + THREADS * EACH / 2);
	hash_truncate_for_tests(0);
}
END_TEST

START_TEST(more_packs_than_descriptors)
{
	/* a pack each time: the last one always looks full */
	enum { N = 80 };
	uint8_t data[16];
	struct name names[N];
	char file[64];

	for (uint32_t i = 0; i < N; i++) {
		_cleanup_close_ int fd = -1;

		scratch_fill(data, sizeof(data), i);
		ck_ok(chunk_put(s.chunks, CHUNK_DATA, data, sizeof(data), &names[i]));
		scratch_commit(&s);
		(void)snprintf(file, sizeof(file), "packs/%08x.pack", i + 1);
		ck_ok(os_openat(s.dir_fd, file, O_RDWR, 0, &fd));
		ck_ok(os_ftruncate(fd, UINT64_C(256) << 20)); /* sparse */
		reopen();
	}
	for (int round = 0; round < 2; round++) {
		for (uint32_t i = 0; i < N; i++) {
			struct chunk_info info = { .name = names[i] };

			ck_assert_uint_eq(where(&names[i]).pack, i + 1);
			ck_ok(chunk_verify(s.chunks, &info, true));
		}
	}
}
END_TEST

START_TEST(foreign_files_among_packs_are_ignored)
{
	static const char *const names[] = { "packs/00000009.pack~", "packs/9.pack", "packs/x",
					     "packs/ffffffffff.pack", "packs/0000000A.pack" };
	uint8_t data[16] = { 1 };
	struct name name;
	uint64_t bytes, packs, chunks;

	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		_cleanup_close_ int fd = -1;

		ck_ok(os_openat(s.dir_fd, names[i], O_RDWR | O_CREAT, 0600, &fd));
	}
	reopen();
	ck_ok(chunk_put(s.chunks, CHUNK_DATA, data, sizeof(data), &name));
	scratch_commit(&s);
	ck_assert_uint_eq(where(&name).pack, 1);
	ck_ok(chunks_stats(s.chunks, &bytes, &packs, &chunks));
	ck_assert_uint_eq(packs, 1);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		chunks_read_back_pending_committed_and_reopened,
		same_bytes_are_stored_once,
		sizes_outside_the_format_are_refused,
		nodes_are_compressed_and_data_is_not,
		colliding_names_keep_every_content,
		forged_collisions_all_live,
		unknown_names_are_missing,
		the_hook_is_called_for_disk_reads_only,
		damage_is_found_and_never_served,
		a_cut_pack_is_an_error_not_a_crash,
		a_torn_tail_is_left_alone,
		behind_a_header_that_cannot_be_read_nothing_is_appended,
		pending_chunks_need_a_flush_to_be_committed,
		a_failed_write_changes_nothing,
		a_failed_sync_loses_nothing,
		what_was_synced_stays_where_it_is_when_a_later_sync_fails,
		committed_chunks_are_listed,
		the_cache_keeps_what_was_used_last,
		the_cache_is_bounded_and_right,
		parts_and_wholes_are_read_alike,
		a_part_is_read_and_verified_without_the_rest,
		threads_store_and_read_at_once,
		more_packs_than_descriptors,
		foreign_files_among_packs_are_ignored,
	};

	return scratch_run("chunk", tests, ARRAY_SIZE(tests), setup, teardown);
}
