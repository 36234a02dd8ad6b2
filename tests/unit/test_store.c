/* SPDX-License-Identifier: Apache-2.0 */

/* A store's life, its numbers, full disks and damaged records. */

#include "tests/unit/store_fixture.h"

#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "store/base/fault.h"
#include "store/store_internal.h"

static void write_file(const char *name, const char *text)
{
	_cleanup_close_ int fd = -1;

	ck_ok(os_openat(scratch.dir_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600, &fd));
	ck_ok(os_pwrite_full(fd, text, strlen(text), 0));
}

static void read_format_text(char *text, size_t size)
{
	_cleanup_close_ int fd = -1;
	struct stat st;

	ck_ok(os_openat(scratch.dir_fd, "format", O_RDONLY | O_CLOEXEC, 0, &fd));
	ck_ok(os_fstat(fd, &st));
	ck_assert_uint_lt(st.st_size, size);
	ck_ok(os_pread_full(fd, text, st.st_size, 0));
	text[st.st_size] = '\0';
}

/* ---- life cycle ---- */

START_TEST(a_second_init_is_refused)
{
	ck_err(store_init(scratch.dir_fd), -ERR_STORE_EXISTS);
}
END_TEST

START_TEST(init_wants_an_empty_directory)
{
	/* the last is an LMDB of somebody else's */
	static const char *const others[][3] = {
		{ "things" },
		{ "packs", "index", "index/things" },
		{ "journal", "journal/things" },
		{ "stage", "stage/things" },
		{ "index", "index/data.mdb" },
	};
	struct scratch other;

	for (size_t i = 0; i < ARRAY_SIZE(others); i++) {
		scratch_make(&other);
		for (size_t k = 0; k < ARRAY_SIZE(others[i]) && others[i][k]; k++)
			ck_ok(os_mkdirat(other.dir_fd, others[i][k], 0700));
		ck_err(store_init(other.dir_fd), -ENOTEMPTY);
		scratch_remove(&other);
	}
}
END_TEST

START_TEST(an_interrupted_init_is_taken_over)
{
	struct scratch other;

	scratch_make(&other);
	ck_ok(os_mkdirat(other.dir_fd, "packs", 0700));
	ck_ok(os_mkdirat(other.dir_fd, "index", 0700));
	ck_ok(store_init(other.dir_fd));
	ck_err(store_init(other.dir_fd), -ERR_STORE_EXISTS);
	scratch_remove(&other);
}
END_TEST

START_TEST(init_never_takes_over_packs)
{
	struct scratch other;

	scratch_make(&other);
	ck_ok(os_mkdirat(other.dir_fd, "packs", 0700));
	ck_ok(os_mkdirat(other.dir_fd, "packs/00000001.pack", 0700));
	ck_err(store_init(other.dir_fd), -ERR_FORMAT_DAMAGED);
	scratch_remove(&other);
}
END_TEST

START_TEST(only_one_has_a_store_open)
{
	struct store *second;

	ck_err(store_open(scratch.dir_fd, NULL, &second), -ERR_STORE_BUSY);
	store_reopen();
}
END_TEST

START_TEST(a_directory_without_format_is_no_store)
{
	struct scratch other;
	struct store *s;

	scratch_make(&other);
	ck_err(store_open(other.dir_fd, NULL, &s), -ERR_NOT_A_STORE);
	scratch_remove(&other);
}
END_TEST

START_TEST(the_format_file_is_text_and_checked)
{
	char text[FORMAT_TEXT_MAX + 1];
	struct store *s;
	char *uuid;

	ck_ok(store_close(store));
	store = NULL;
	read_format_text(text, sizeof(text));
	ck_assert(strncmp(text, "plyfs store\nversion 3\nuuid ", 27) == 0);
	/* on a slow machine a first commit was made, and a store with packs can be salvaged */
	(void)os_unlinkat(scratch.dir_fd, "packs/00000001.pack", 0);

	write_file("format", "plyfs store\nversion 4\nand whatever they think of\n");
	ck_err(store_open(scratch.dir_fd, NULL, &s), -ERR_FORMAT_NEWER);
	write_file("format", "plyfs store\nversion 0\n");
	ck_err(store_open(scratch.dir_fd, NULL, &s), -ERR_FORMAT_OLDER);
	write_file("format", "something else\n");
	ck_err(store_open(scratch.dir_fd, NULL, &s), -ERR_NOT_A_STORE);
	write_file("format", "plyfs store\nversion \n");
	ck_err(store_open(scratch.dir_fd, NULL, &s), -ERR_FORMAT_DAMAGED);
	write_file("format", "plyfs store\nversion 3\nuuid 12");
	ck_err(store_open(scratch.dir_fd, NULL, &s), -ERR_FORMAT_DAMAGED);

	uuid = strstr(text, "uuid ") + 5;
	*uuid = *uuid == '0' ? '1' : '0';
	write_file("format", text);
	ck_err(store_open(scratch.dir_fd, NULL, &s), -ERR_FORMAT_DAMAGED);

	*uuid = 'x';
	write_file("format", text);
	ck_err(store_open(scratch.dir_fd, NULL, &s), -ERR_FORMAT_DAMAGED);
}
END_TEST

START_TEST(every_prefix_of_the_format_file_is_refused)
{
	const uint8_t uuid[16] = { 1, 2, 3 };
	char text[FORMAT_TEXT_MAX];
	size_t len = format_encode(uuid, text);
	uint8_t got[16];

	ck_ok(format_decode(text, len, got));
	ck_assert_mem_eq(got, uuid, sizeof(uuid));
	for (size_t i = 0; i < len; i++)
		ck_assert_int_lt(format_decode(text, i, got), 0);
}
END_TEST

/* ---- counters and ids ---- */

START_TEST(inode_numbers_are_never_given_twice)
{
	uint64_t first = store_take_ino(store, 10), next;

	ck_assert_uint_ge(first, 2);
	ck_assert_uint_eq(store_take_ino(store, 1), first + 10);
	store_raise_ino(store, 1000000);
	store_raise_ino(store, 5);
	next = store_take_ino(store, 1);
	ck_assert_uint_eq(next, 1000000);
	store_reopen();
	ck_assert_uint_eq(store_take_ino(store, 1), 1000001);
}
END_TEST

START_TEST(a_killed_process_gives_no_number_twice)
{
	uint64_t ino = 0, lineage = 0;
	int fds[2], status;
	pid_t child;

	ck_ok(store_close(store));
	store = NULL;
	ck_assert_int_eq(pipe(fds), 0);
	child = fork();
	if (child == 0) {
		store_up();
		if (store_sync(store) < 0)
			_exit(1);
		ino = store_take_ino(store, 1000);
		lineage = store_take_lineage(store);
		if (write(fds[1], &ino, sizeof(ino)) != sizeof(ino) ||
		    write(fds[1], &lineage, sizeof(lineage)) != sizeof(lineage))
			_exit(1);
		_exit(0); /* without closing the store */
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert_int_eq(status, 0);
	ck_assert_int_eq(read(fds[0], &ino, sizeof(ino)), sizeof(ino));
	ck_assert_int_eq(read(fds[0], &lineage, sizeof(lineage)), sizeof(lineage));
	store_up();
	ck_assert_uint_ge(store_take_ino(store, 1), ino + 1000);
	ck_assert_uint_gt(store_take_lineage(store), lineage);
}
END_TEST

static int compare_ids(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

START_TEST(ids_never_repeat)
{
	enum { COUNT = 100000 };
	uint64_t *ids = malloc(COUNT * sizeof(*ids));

	for (uint64_t i = 0; i < COUNT; i++)
		ids[i] = snap_id_of(12345, i + 1);
	qsort(ids, COUNT, sizeof(*ids), compare_ids);
	for (uint64_t i = 0; i < COUNT; i++) {
		ck_assert_uint_ne(ids[i], 0);
		ck_assert_uint_le(ids[i], SNAP_SEQ_MAX);
		ck_assert(i == 0 || ids[i] != ids[i - 1]);
	}
	free(ids);
}
END_TEST

/* ---- records ---- */

START_TEST(records_read_back_and_cut_ones_are_refused)
{
	struct snap_record rec = { .seq = 7, .parent = 9, .lineage = 3, .time_ns = -1, .flags = 1,
				   .branch = "main", .label = "a label" }, got;
	struct branch_record branch = { .head = 1, .undo = 2, .lineage = 3, .changes = 4 }, back;
	uint8_t buf[SNAP_RECORD_MAX];
	size_t len;

	len = snap_record_encode(&rec, buf);
	ck_ok(snap_record_decode(buf, len, &got));
	ck_assert_uint_eq(got.seq, 7);
	ck_assert_int_eq(got.time_ns, -1);
	ck_assert_str_eq(got.branch, "main");
	ck_assert_str_eq(got.label, "a label");
	for (size_t i = 0; i < len; i++)
		ck_err(snap_record_decode(buf, i, &got), -ERR_SNAP_DAMAGED);
	ck_err(snap_record_decode(NULL, len, &got), -ERR_SNAP_DAMAGED);

	memset(rec.label, 'x', LABEL_MAX);
	memset(rec.branch, 'y', BRANCH_NAME_MAX);
	len = snap_record_encode(&rec, buf);
	ck_assert_uint_eq(len, SNAP_RECORD_MAX);
	ck_ok(snap_record_decode(buf, len, &got));
	buf[1] = 255;
	ck_err(snap_record_decode(buf, len, &got), -ERR_SNAP_DAMAGED);

	branch_record_encode(&branch, buf);
	ck_ok(branch_record_decode(buf, BRANCH_RECORD_BYTES, &back));
	ck_assert_uint_eq(back.changes, 4);
	ck_err(branch_record_decode(buf, BRANCH_RECORD_BYTES - 1, &back), -ERR_BRANCH_DAMAGED);
	buf[0] = 9;
	ck_err(branch_record_decode(buf, BRANCH_RECORD_BYTES, &back), -ERR_BRANCH_DAMAGED);
}
END_TEST

/* ---- damage at open ---- */

static void put_raw(enum index_table table, const void *key, size_t key_len, const void *value,
		    size_t len)
{
	struct index_txn *txn;

	ck_ok(index_begin(store->index, &txn));
	ck_ok(index_put(txn, table, key, key_len, value, len));
	ck_ok(index_commit(&txn));
}

START_TEST(damaged_records_do_not_stop_the_rest)
{
	struct branch *b = branch_make("main"), *other = branch_make("other"), *fork;
	struct check_stats stats;
	struct gc_stats gc;
	uint8_t key[SNAP_KEY_BYTES];
	uint64_t one, two, found;
	char text[SNAP_ID_SIZE];

	change(b, 1, "1");
	one = checkpoint(b, NULL);
	change(b, 1, "2");
	two = checkpoint(b, NULL);
	branch_close(b);
	branch_close(other);
	ck_ok(store_sync(store));
	snap_key_encode(one, key);
	put_raw(INDEX_SNAPS, key, sizeof(key), "nonsense", 8);
	put_raw(INDEX_SNAPS, "k", 1, "nonsense", 8);
	put_raw(INDEX_BRANCHES, "other", 5, "", 0);
	put_raw(INDEX_BRANCHES, ".bad", 4, "", 0);
	store_reopen();

	ck_assert_uint_ge(scratch.notes, 4);
	ck_assert_uint_eq(snap_count(store), 1);
	b = branch_at("main");
	ck_assert_uint_eq(b->head, two);
	expect_text(b, 1, "2");
	branch_close(b);
	ck_err(branch_open(store, "other", &b), -ERR_BRANCH_DAMAGED);
	b = branch_at("main");
	ck_err(branch_create_from(b, "other", &fork), -ERR_BRANCH_EXISTS);
	branch_close(b);
	ck_err(store_gc(store, NULL, &gc), -ERR_SNAP_DAMAGED);

	int lines = 0;
	const struct check_ops ops = { .damage = ignore_damage, .arg = &lines };
	ck_err(store_check(store, 0, &ops, NULL, &stats), EXISTS);
	ck_assert_int_eq(lines, 5); /* the two branches, the two snapshots, and two's parent */

	ck_ok(snap_find(store, snap_id_to_text(one, text), &found));
	ck_ok(snap_drop(store, found));
	ck_err(store_gc(store, NULL, &gc), -ERR_BRANCH_DAMAGED);
	ck_ok(branch_drop(store, "other"));
	ck_ok(store_gc(store, NULL, &gc));
	store_reopen();
	ck_assert_uint_eq(snap_count(store), 1);
	ck_err(branch_open(store, "other", &b), -ERR_BRANCH_UNKNOWN);
}
END_TEST

START_TEST(a_record_under_anothers_id_is_damaged)
{
	struct branch *b = branch_make("main");
	struct snap_record rec = { .seq = 1 };
	uint8_t key[SNAP_KEY_BYTES], buf[SNAP_RECORD_MAX];
	size_t len;

	change(b, 1, "1");
	checkpoint(b, NULL);
	branch_close(b);
	ck_ok(store_sync(store));
	len = snap_record_encode(&rec, buf);
	snap_key_encode(4711, key);
	put_raw(INDEX_SNAPS, key, sizeof(key), buf, len);
	store_reopen();
	ck_assert_uint_eq(snap_count(store), 1);
}
END_TEST

START_TEST(damaged_counters_go_on_beyond_what_was_given)
{
	uint64_t ino = store_take_ino(store, 100);

	ck_ok(store_close(store));
	store_up();
	ck_ok(store_sync(store));
	put_raw(INDEX_META, "ino", 3, "abc", 3);

	/* not closed in order: that would write the counter */
	_cleanup_free_ void *value = NULL;
	size_t len;
	ck_ok(index_get(store->index, INDEX_META, "ino", 3, &value, &len));
	ck_assert_uint_eq(len, 3);
	pthread_mutex_lock(&store->table);
	store->failed = true;
	pthread_mutex_unlock(&store->table);
	ck_err(store_close(store), -ERR_STORE_FAILED);
	store_up();
	ck_assert_uint_gt(store_take_ino(store, 1), ino + 100);
}
END_TEST

/* ---- failures ---- */

static void limit_files(rlim_t bytes)
{
	struct rlimit limit;

	(void)signal(SIGXFSZ, SIG_IGN);
	ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
	limit.rlim_cur = bytes;
	ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

START_TEST(a_full_disk_loses_nothing_and_is_tried_again)
{
	struct branch *b = branch_make("main");
	unsigned notes;
	uint64_t id;

	fill(b, 1, 1000, 1);
	ck_ok(store_sync(store));
	claim_records(store); /* the sealer, who else may be done with it before that */
	fill(b, 1, 1000, 2);
	id = checkpoint(b, NULL);
	limit_files(4096);
	claim_end(store);
	ck_err(snap_wait(store, id), -EFBIG);
	notes = __atomic_load_n(&scratch.notes, __ATOMIC_RELAXED);
	ck_err(store_sync(store), -EFBIG);
	ck_err(snap_wait(store, id), -EFBIG);
	ck_assert_uint_le(__atomic_load_n(&scratch.notes, __ATOMIC_RELAXED) - notes, 4);
	expect_in_snap(id, 5000, NULL);
	limit_files(RLIM_INFINITY);
	ck_ok(snap_wait(store, id));
	branch_close(b);
	store_reopen();
	expect_sound(NULL);
	ck_assert_uint_eq(snap_count(store), 1);
}
END_TEST

START_TEST(out_of_memory_in_a_round_is_tried_again)
{
	struct branch *b = branch_make("main");
	uint64_t id;

	ck_ok(store_sync(store));
	claim_records(store); /* as above */
	change(b, 1, "1");
	id = checkpoint(b, NULL);
	fault_arm(0, 1000, ENOMEM);
	claim_end(store);
	ck_assert_int_lt(snap_wait(store, id), 0);
	fault_disarm();
	ck_ok(snap_wait(store, id));
	branch_close(b);
	expect_sound(NULL);
}
END_TEST

static bool has_more_errors(uint64_t than)
{
	LOCK_GUARD(&store->table);

	return store->errors > than;
}

/* True: of itself, before live states were due. */
static bool is_made_again(struct branch *b, unsigned seed)
{
	struct snap_info info = { .durable = false };
	uint64_t id, live_ns, errors;

	ck_ok(store_sync(store));
	claim_records(store); /* as above */
	live_ns = store->live_ns;
	errors = store->errors;
	fill(b, 1, 1000, seed);
	id = checkpoint(b, NULL);
	limit_files(4096);
	claim_end(store);
	while (!has_more_errors(errors))
		(void)usleep(1000);
	limit_files(RLIM_INFINITY);
	while (!info.durable) {
		(void)usleep(1000);
		ck_ok(snap_get(store, id, &info));
	}
	LOCK_GUARD(&store->table);

	return store->live_ns == live_ns;
}

/* With nobody who waits for it. */
START_TEST(a_round_that_failed_comes_again_by_itself)
{
	struct branch *b = branch_make("main");
	unsigned tries = 1;

	while (!is_made_again(b, tries))
		ck_assert_uint_lt(tries++, 5); /* a busy machine may be late once */
	branch_close(b);
}
END_TEST

/*
 * LMDB writes beneath the OS seam: its descriptors with these flags get one in their stead that
 * cannot be written (EBADF), and mend_index gives them back.
 */
#define FDS 64 /* a store has less; copies are above */
static int good_fds[FDS];

static void break_index(int flags)
{
	for (int fd = 0; fd < FDS; fd++) {
		char link[40], target[4096];
		ssize_t len;
		int bad;

		snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
		len = readlink(link, target, sizeof(target) - 1);
		target[MAX(len, 0)] = '\0';
		good_fds[fd] = -1;
		if (len < 9 || strcmp(target + len - 9, "/data.mdb") != 0 ||
		    (fcntl(fd, F_GETFL) & flags) != flags)
			continue;
		good_fds[fd] = fcntl(fd, F_DUPFD_CLOEXEC, FDS);
		bad = open(target, O_RDONLY | O_CLOEXEC);
		ck_assert_int_ge(dup2(bad, fd), 0);
		close(bad);
	}
}

static void mend_index(void)
{
	for (int fd = 0; fd < FDS; fd++)
		if (good_fds[fd] >= 0) {
			ck_assert_int_ge(dup2(good_fds[fd], fd), 0);
			close(good_fds[fd]);
		}
}

START_TEST(a_commit_that_failed_is_done_again)
{
	struct branch *b = branch_make("main");
	struct store_stats stats;
	uint64_t id;

	/* Its pages, and again; then what it syncs its meta page by: LMDB is to be opened anew. */
	for (unsigned i = 0; i < 3; i++) {
		ck_ok(store_sync(store));
		break_index(i < 2 ? 0 : O_DSYNC);
		fill(b, 1, 1000, i);
		id = checkpoint(b, NULL);
		ck_err(snap_wait(store, id), -EBADF);
		ck_ok(store_stats(store, &stats));
		ck_assert(!stats.failed);
		fill(b, 500, 600, i + 10);
		if (i < 2)
			mend_index();
		ck_ok(snap_wait(store, id));
		ck_ok(store_sync(store));
	}
	branch_close(b);
	store_reopen();
	expect_sound(NULL);
	ck_assert_uint_eq(snap_count(store), 3);
}
END_TEST

START_TEST(what_cannot_be_committed_is_in_the_journal)
{
	struct branch *b = branch_make("main");
	uint64_t good, lost, later;

	change(b, 1, "good");
	good = checkpoint(b, NULL);
	ck_ok(snap_wait(store, good));
	ck_ok(store_sync(store));
	break_index(0);
	change(b, 1, "lost");
	lost = checkpoint(b, NULL);
	ck_assert_int_lt(snap_wait(store, lost), 0);

	/* what is in memory goes on working */
	change(b, 1, "later");
	later = checkpoint(b, NULL);
	restore(b, lost);
	expect_text(b, 1, "lost");
	ck_err(snap_wait(store, later), -EBADF);
	ck_err(store_sync(store), -EBADF);
	branch_close(b);
	ck_err(store_close(store), -EBADF);

	store_up();
	ck_assert_uint_eq(snap_count(store), 3);
	expect_in_snap(good, 1, "good");
	expect_in_snap(lost, 1, "lost");
	expect_in_snap(later, 1, "later");
	b = branch_at("main");
	expect_text(b, 1, "lost");
	branch_close(b);
	expect_sound(NULL);
}
END_TEST

/* ---- dump ---- */

START_TEST(a_dump_names_branches_snapshots_and_items)
{
	_cleanup_free_ char *text = NULL;
	struct branch *b = branch_make("main");
	char id_text[SNAP_ID_SIZE];
	size_t len = 0;
	uint64_t id;
	FILE *out;

	change(b, 1, "one");
	id = checkpoint(b, "odd\n'label'");
	ck_ok(store_sync(store));
	out = open_memstream(&text, &len);
	ck_ok(store_dump(store, out, 0, NULL));
	ck_ok(store_dump(store, out, id, NULL));
	ck_err(store_dump(store, out, id ^ 1, NULL), -ERR_SNAP_UNKNOWN);
	(void)fclose(out);
	ck_assert_ptr_nonnull(strstr(text, snap_id_to_text(id, id_text)));
	ck_assert_ptr_nonnull(strstr(text, "main head"));
	ck_assert_ptr_nonnull(strstr(text, "'odd\\x0a\\x27label\\x27'"));
	ck_assert_ptr_nonnull(strstr(text, "level 0, 1 item, "));
	branch_close(b);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		a_second_init_is_refused,
		init_wants_an_empty_directory,
		an_interrupted_init_is_taken_over,
		init_never_takes_over_packs,
		only_one_has_a_store_open,
		a_directory_without_format_is_no_store,
		the_format_file_is_text_and_checked,
		every_prefix_of_the_format_file_is_refused,
		inode_numbers_are_never_given_twice,
		a_killed_process_gives_no_number_twice,
		ids_never_repeat,
		records_read_back_and_cut_ones_are_refused,
		damaged_records_do_not_stop_the_rest,
		a_record_under_anothers_id_is_damaged,
		damaged_counters_go_on_beyond_what_was_given,
		a_full_disk_loses_nothing_and_is_tried_again,
		out_of_memory_in_a_round_is_tried_again,
		a_round_that_failed_comes_again_by_itself,
		a_commit_that_failed_is_done_again,
		what_cannot_be_committed_is_in_the_journal,
		a_dump_names_branches_snapshots_and_items,
	};

	return scratch_run("store", tests, ARRAY_SIZE(tests), store_setup, store_teardown);
}
