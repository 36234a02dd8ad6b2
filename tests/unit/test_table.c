/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The packs' records of the tables (T1 to T4 of table.c), as a store that is used writes them: what
 * salvage would find is at any time what the index has.
 */

#include "tests/unit/store_fixture.h"

#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "store/base/fault.h"
#include "store/chunk_internal.h"
#include "store/store_internal.h"
#include "store/table_log.h"

static struct seen {
	struct table_log *log;
	uint32_t largest; /* bytes of a record */
	uint32_t pack;    /* of the last one */
	uint64_t off;
} seen;

static int see(void *arg, const struct scanned *found)
{
	if (found->rec.kind == RECORD_TABLE && found->raw) {
		seen.largest = MAX(seen.largest, found->rec.raw_len);
		seen.pack = found->pack;
		seen.off = found->off;
	}
	return table_log_add(seen.log, found);
}

static void look(struct packs *packs)
{
	struct scan_stats scanned;

	seen = (struct seen){ 0 };
	ck_ok(table_log_new(&seen.log));
	ck_ok(packs_scan(packs, see, NULL, NULL, &scanned));
}

static int is_in_index(void *arg, enum index_table table, const void *key, size_t key_len,
		       const void *value, size_t value_len)
{
	_cleanup_free_ void *there = NULL;
	size_t len;

	ck_ok(index_get(store->index, table, key, key_len, &there, &len));
	ck_assert_uint_eq(len, value_len);
	ck_assert_mem_eq(there, value, len);
	++*(size_t *)arg;
	return 0;
}

static int count(void *arg, const void *key, size_t key_len, const void *value, size_t len)
{
	++*(size_t *)arg;
	return 0;
}

/* All that waits is committed: the records in the packs say so, and lead to each other. */
static struct table_log_stats expect_found(void)
{
	size_t found = 0, there = 0;
	struct table_log_stats stats;

	ck_ok(store_sync(store));
	look(store->chunks->packs);
	ck_ok(table_log_resolve(seen.log, store->uuid, &stats));
	ck_ok(table_log_each(seen.log, is_in_index, &found));
	table_log_free(seen.log);
	for (int t = INDEX_META; t <= INDEX_BRANCHES; t++)
		ck_ok(index_each(store->index, (enum index_table)t, count, &there));
	ck_assert_uint_eq(found, there - 1); /* not where the last record is */
	ck_assert_uint_eq(stats.gaps, 0);
	ck_assert(stats.whole);
	ck_ok(table_check(store->tables));
	return stats;
}

/* So many snapshots of one round. */
static void commit(struct branch *b, unsigned n)
{
	static unsigned changes;
	static uint64_t seed = 1;
	char label[200] = "";

	ck_ok(claim_all(store));
	for (unsigned i = 0; i < n; i++) {
		char text[20];

		snprintf(text, sizeof(text), "%u", changes++);
		/* as bad to compress as text can be */
		for (size_t k = 0; k < sizeof(label) - 1; k++)
			label[k] = (char)(' ' + 1 + scratch_random(&seed) % 94);
		change(b, 1, text);
		(void)checkpoint(b, label);
	}
	claim_end(store);
	ck_ok(store_sync(store));
}

START_TEST(each_commit_is_in_the_packs)
{
	struct branch *b = branch_make("main");
	struct table_log_stats before = expect_found(), now;
	uint64_t ids[10];

	for (unsigned i = 0; i < 10; i++) {
		change(b, 1, i % 2 ? "odd" : "even");
		ids[i] = checkpoint(b, "a label");
		now = expect_found();
		ck_assert_uint_gt(now.last, before.last);
		ck_assert_uint_gt(now.records, before.records);
		before = now;
	}
	for (unsigned i = 0; i < 10; i += 2)
		ck_ok(snap_drop(store, ids[i]));
	ck_ok(branch_fork(b, "fork"));
	(void)expect_found();
	ck_ok(branch_drop(store, "fork"));
	before = expect_found();
	branch_close(b);
	store_reopen();
	b = branch_at("main");
	change(b, 1, "later");
	now = expect_found();
	ck_assert_uint_gt(now.records, before.records); /* no new whole one */
	branch_close(b);
}
END_TEST

START_TEST(a_large_commit_has_records_of_a_moderate_size)
{
	const uint32_t most = 32 * 1024 + sizeof(struct table_record_bytes);
	struct branch *b = branch_make("main");

	commit(b, 500);
	(void)expect_found();
	ck_assert_uint_le(seen.largest, most);
	ck_assert_uint_gt(seen.largest, most - 1024);
	branch_close(b);
}
END_TEST

/* How many commits of nearly a quarter of a MiB until there is a whole record again. */
static unsigned commits_to_whole(void)
{
	struct table_log_stats before = expect_found(), now;

	for (unsigned n = 1;; n++) {
		struct branch *b = branch_at("main");

		commit(b, 1000);
		branch_close(b);
		now = expect_found();
		if (now.records < before.records)
			return n;
		before = now;
		ck_assert_uint_lt(n, 100);
		if (n % 2 == 0)
			store_reopen();
	}
}

START_TEST(everything_is_written_again_when_changes_took_as_much)
{
	unsigned n;

	branch_close(branch_make("main"));
	ck_ok(store_sync(store));
	n = commits_to_whole();
	ck_assert_uint_ge(n, 4); /* a MiB */
	ck_assert_uint_le(n, 6);
	n = commits_to_whole();
	ck_assert_uint_ge(n, 9); /* twice as much as that one took */
	ck_assert_uint_le(n, 13);
}
END_TEST

/* Some calls of a round fail. Then the process is killed. */
static void fail_and_die(int n, int error)
{
	struct branch *b;

	store_up();
	b = branch_at("main");
	commit(b, 1);
	change(b, 2, "changed");
	(void)checkpoint(b, NULL);
	fault_arm(n / 3, n % 3 ? 4 * (n % 3) : 1, error);
	(void)store_sync(store);
	fault_disarm();
	_exit(0);
}

START_TEST(a_record_that_could_not_be_written_is_made_up_for)
{
	static const int errors[] = { ENOMEM, ENOSPC };

	branch_close(branch_make("main"));
	ck_ok(store_close(store));
	for (int n = 0; n < 105; n++) {
		struct branch *b;
		int status;
		pid_t pid = fork();

		ck_assert_int_ge(pid, 0);
		if (pid == 0)
			fail_and_die(n, errors[n % 2]);
		ck_assert_int_eq(waitpid(pid, &status, 0), pid);
		ck_assert_int_eq(status, 0);
		store_up();
		b = branch_at("main");
		commit(b, 1);
		(void)expect_found();
		change(b, 3, n % 2 ? "odd" : "even");
		fault_arm(n / 3, n % 3 ? 4 * (n % 3) : 1, errors[n % 2]);
		(void)store_sync(store);
		fault_disarm();
		atomic_store(&store->retry_ns, 0); /* else a second later */
		commit(b, 1); /* it does what that one could not */
		(void)expect_found();
		branch_close(b);
		ck_ok(store_close(store));
	}
	store_up();
}
END_TEST

/* A bit of the last record, in a store that is closed. */
static void flip_in_last(uint64_t at)
{
	const struct noter noter = { .fn = scratch_note, .arg = &scratch };
	_cleanup_close_ int fd = -1;
	struct chunks *chunks;
	struct index *index;
	char path[64];
	uint8_t byte;

	ck_ok(index_open(scratch.dir_fd, &noter, &index));
	ck_ok(chunks_open(scratch.dir_fd, index, &noter, &chunks));
	look(chunks->packs);
	table_log_free(seen.log);
	chunks_close(chunks);
	index_close(index);

	(void)snprintf(path, sizeof(path), "packs/%08x.pack", seen.pack);
	ck_ok(os_openat(scratch.dir_fd, path, O_RDWR | O_CLOEXEC, 0, &fd));
	ck_ok(os_pread_full(fd, &byte, 1, seen.off + at));
	byte ^= 4;
	ck_ok(os_pwrite_full(fd, &byte, 1, seen.off + at));
}

START_TEST(after_a_damaged_record_there_is_a_whole_one)
{
	/* its head, its name, its bytes */
	const uint64_t places[] = { 4, 20, sizeof(struct record_header_bytes) + 7 };

	branch_close(branch_make("main"));
	for (size_t i = 0; i < ARRAY_SIZE(places); i++) {
		struct branch *b = branch_at("main");
		uint64_t before;

		for (unsigned n = 0; n < 4; n++)
			commit(b, 1);
		branch_close(b);
		before = expect_found().records;
		ck_ok(store_close(store));
		flip_in_last(places[i]);
		store_up();
		b = branch_at("main");
		commit(b, 1);
		branch_close(b);
		ck_assert_uint_lt(expect_found().records, before);
	}
}
END_TEST

static bool synced, removed; /* a pack, since the states were walked */
static atomic_bool next_fails; /* the next sync of a pack */

static bool is_pack(const char *path)
{
	const size_t len = strlen(path);

	return len > 5 && strcmp(path + len - 5, ".pack") == 0;
}

int fdatasync(int fd) /* stands for libc's */
{
	char link[40], target[4096] = "";

	(void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	if (readlink(link, target, sizeof(target) - 1) > 0 && is_pack(target))
		synced = true;
	if (is_pack(target) && atomic_exchange(&next_fails, false)) {
		errno = EIO;
		return -1;
	}
	return (int)syscall(SYS_fdatasync, fd);
}

static atomic_bool packs_full;
static atomic_uint refused;

ssize_t pwrite(int fd, const void *bytes, size_t len, off_t off) /* likewise */
{
	char link[40], target[4096] = "";

	(void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	if (atomic_load(&packs_full) && readlink(link, target, sizeof(target) - 1) > 0 &&
	    is_pack(target)) {
		atomic_fetch_add(&refused, 1);
		errno = ENOSPC;
		return -1;
	}
	return syscall(SYS_pwrite64, fd, bytes, len, off);
}

int unlinkat(int fd, const char *path, int flags) /* likewise */
{
	if (is_pack(path)) {
		removed = true;
		ck_assert(synced);
	}
	return (int)syscall(SYS_unlinkat, fd, path, flags);
}

static void forget_syncs(void *arg, const char *what, uint64_t done, uint64_t total)
{
	if (strcmp(what, "marking") == 0)
		synced = false;
}

/* What the kernel may make of a page that it could not write, and says so once. */
static void forget_last_record(void)
{
	static const uint8_t zeros[sizeof(struct record_header_bytes)];
	_cleanup_close_ int fd = -1;
	char path[64];

	look(store->chunks->packs);
	table_log_free(seen.log);
	(void)snprintf(path, sizeof(path), "packs/%08x.pack", seen.pack);
	ck_ok(os_openat(scratch.dir_fd, path, O_RDWR | O_CLOEXEC, 0, &fd));
	ck_ok(os_pwrite_full(fd, zeros, sizeof(zeros), seen.off));
}

START_TEST(a_record_in_a_pack_that_could_not_be_synced_is_made_up_for)
{
	struct branch *b = branch_make("main");
	uint64_t before;

	for (unsigned round = 0; round < 2; round++) {
		commit(b, 1);
		commit(b, 1);
		before = expect_found().records;
		atomic_store(&next_fails, true);
		change(b, 1, "later");
		ck_err(store_sync(store), -EIO);
		ck_assert(!atomic_load(&next_fails));
		forget_last_record();
		atomic_store(&store->retry_ns, 0); /* else a second later */
		commit(b, 1);
		ck_assert_uint_lt(expect_found().records, before); /* there is a new whole one */
		commit(b, 1);
		before = expect_found().records; /* once */
		commit(b, 1);
		ck_assert_uint_gt(expect_found().records, before);
	}
	branch_close(b);
}
END_TEST

/* In a store that is closed: where the last record is; a number without a place, or nothing. */
static void lose_place(uint64_t number)
{
	const struct noter noter = { .fn = scratch_note, .arg = &scratch };
	_cleanup_(index_abortp) struct index_txn *txn = NULL;
	struct table_place_bytes b = { { 0 } };
	struct index *index;

	put_le64(b.number, number);
	ck_ok(index_open(scratch.dir_fd, &noter, &index));
	ck_ok(index_begin(index, &txn));
	if (number > 0)
		ck_ok(index_put(txn, INDEX_META, TABLE_KEY, strlen(TABLE_KEY), &b, sizeof(b)));
	else
		ck_ok(index_del(txn, INDEX_META, TABLE_KEY, strlen(TABLE_KEY)));
	ck_ok(index_commit(&txn));
	index_close(index);
}

/* Or what the index says of the one would be looked for in the other. */
START_TEST(the_number_of_a_pack_that_was_lost_is_not_given_again)
{
	struct branch *b = branch_make("main");
	char path[64];
	uint32_t pack;

	commit(b, 1);
	branch_close(b);
	(void)expect_found();
	pack = seen.pack;
	ck_ok(store_close(store));
	(void)snprintf(path, sizeof(path), "packs/%08x.pack", pack);
	ck_assert_int_eq((int)syscall(SYS_unlinkat, scratch.dir_fd, path, 0), 0);
	store_up();
	b = branch_make("other");
	commit(b, 1);
	branch_close(b);
	(void)expect_found();
	ck_assert_uint_gt(seen.pack, pack);
}
END_TEST

/* It syncs nothing but that; no commit comes between. */
START_TEST(gc_makes_up_for_a_whole_record_that_could_not_be_synced)
{
	struct branch *b = branch_make("main");
	struct gc_stats stats;

	commit(b, 1);
	branch_close(b);
	ck_ok(store_close(store));
	lose_place(0);
	atomic_store(&next_fails, true);
	store_up();
	ck_ok(store_sync(store));
	ck_assert(!atomic_load(&next_fails));
	ck_ok(store_gc(store, NULL, &stats));
	(void)expect_found();
}
END_TEST

START_TEST(everything_is_durable_before_a_pack_goes)
{
	const struct progress progress = { .fn = forget_syncs };
	struct branch *b = branch_make("main");
	struct gc_stats stats;
	uint64_t id;

	change(b, 1, "stays");
	ck_ok(store_gc(store, NULL, &stats)); /* each lets a new pack begin */
	fill(b, 10, 2000, 1);
	id = checkpoint(b, NULL);
	ck_ok(store_gc(store, NULL, &stats));
	for (uint64_t a = 10; a < 2000; a++)
		forget(b, a);
	commit(b, 5);
	ck_ok(snap_drop(store, id));
	ck_ok(store_gc(store, &progress, &stats));
	ck_assert(removed);
	(void)expect_found();
	commit(b, 5);
	(void)expect_found();
	branch_close(b);
}
END_TEST

/* A commit without chunks finds no room for its record, nor for a whole one. */
static void drop_and_die(uint64_t id)
{
	store_up();
	ck_ok(store_sync(store));
	atomic_store(&packs_full, true);
	ck_ok(snap_drop(store, id));
	ck_ok(store_sync(store));
	ck_assert_uint_ge(atomic_load(&refused), 2);
	_exit(0);
}

START_TEST(what_a_full_disk_has_no_room_for_is_made_up_for_by_the_next_daemon)
{
	struct branch *b = branch_make("main");
	uint64_t before, id;
	int status;
	pid_t pid;

	change(b, 1, "dropped");
	id = checkpoint(b, NULL);
	for (unsigned n = 0; n < 4; n++)
		commit(b, 1);
	branch_close(b);
	before = expect_found().records;
	ck_ok(store_close(store));
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0)
		drop_and_die(id);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
	store_up();
	b = branch_at("main");
	commit(b, 1);
	branch_close(b);
	ck_assert_uint_lt(expect_found().records, before); /* a new whole one */
}
END_TEST

START_TEST(after_a_gc_without_room_for_a_whole_record_there_is_one)
{
	struct branch *b = branch_make("main");
	struct gc_stats stats;
	uint64_t id;

	ck_ok(store_gc(store, NULL, &stats)); /* lets a new pack begin */
	fill(b, 10, 2000, 1);
	id = checkpoint(b, NULL);
	commit(b, 5);
	ck_ok(store_gc(store, NULL, &stats));
	for (uint64_t a = 10; a < 2000; a++)
		forget(b, a);
	commit(b, 5);
	ck_ok(snap_drop(store, id));
	ck_ok(store_sync(store));
	removed = false;
	atomic_store(&packs_full, true);
	synced = true; /* there is nothing to sync */
	(void)store_gc(store, NULL, &stats);
	atomic_store(&packs_full, false);
	ck_assert(removed); /* and with it what was in it of the table */
	commit(b, 1);
	(void)expect_found();
	branch_close(b);
}
END_TEST

START_TEST(a_record_is_beyond_all_others_when_it_is_not_known_where_these_are)
{
	/* lost; and as a clock that was years ahead may have made it */
	const uint64_t numbers[] = { 0, UINT64_MAX / 2 };
	struct branch *b = branch_make("main");

	branch_close(b);
	for (size_t i = 0; i < ARRAY_SIZE(numbers); i++) {
		uint64_t last;

		for (unsigned n = 0; n < 4; n++) {
			b = branch_at("main");
			commit(b, 1);
			branch_close(b);
		}
		last = MAX(expect_found().last, numbers[i]);
		ck_ok(store_close(store));
		lose_place(numbers[i]);
		store_up();
		b = branch_at("main");
		commit(b, 1);
		branch_close(b);
		ck_assert_uint_gt(expect_found().last, last);
	}
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		each_commit_is_in_the_packs,
		a_large_commit_has_records_of_a_moderate_size,
		everything_is_written_again_when_changes_took_as_much,
		a_record_that_could_not_be_written_is_made_up_for,
		after_a_damaged_record_there_is_a_whole_one,
		a_record_in_a_pack_that_could_not_be_synced_is_made_up_for,
		the_number_of_a_pack_that_was_lost_is_not_given_again,
		gc_makes_up_for_a_whole_record_that_could_not_be_synced,
		everything_is_durable_before_a_pack_goes,
		what_a_full_disk_has_no_room_for_is_made_up_for_by_the_next_daemon,
		after_a_gc_without_room_for_a_whole_record_there_is_one,
		a_record_is_beyond_all_others_when_it_is_not_known_where_these_are,
	};

	return scratch_run("table", tests, ARRAY_SIZE(tests), store_setup, store_teardown);
}
