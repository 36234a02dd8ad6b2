/* SPDX-License-Identifier: Apache-2.0 */

/* The index where the disk, or the memory, fails LMDB: below os.h, hence in libc's place. */

#include "tests/unit/scratch.h"

#include <pthread.h>
#include <stdatomic.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static struct scratch s;
static void (*on_failure)(void); /* between a commit that fails and what is done about it */

static void take_note(void *arg, const char *line)
{
	scratch_note(arg, line);
	if (on_failure && strstr(line, "committing"))
		on_failure();
}

static const struct noter noter = { .fn = take_note, .arg = &s };

/* ---- what fails ---- */

#define META_MAX 200 /* LMDB writes less than that of a meta page, and whole pages of all else */

static atomic_int metas_to_fail;  /* so many of the next are not written */
static atomic_bool metas_written; /* ... but the first is, and says that it failed */
static atomic_int syncs_to_fail, syncs; /* by us or by LMDB */
static atomic_bool no_maps;
static atomic_bool no_larger_file, dies_at_a_larger_file;

/* Those that LMDB calls; our own pwrite and mmap are those with 64 in their names. */
#define IN_LIBCS_PLACE(name) __asm__(name) __attribute__((visibility("default")))
ssize_t own_pwrite(int fd, const void *buf, size_t len, off_t off) IN_LIBCS_PLACE("pwrite");
ssize_t our_pwrite(int fd, const void *buf, size_t len, off_t off) IN_LIBCS_PLACE("pwrite64");
int own_fdatasync(int fd) IN_LIBCS_PLACE("fdatasync");
void *own_mmap(void *addr, size_t len, int prot, int flags, int fd,
	       off_t off) IN_LIBCS_PLACE("mmap");
int our_ftruncate(int fd, off_t size) IN_LIBCS_PLACE("ftruncate64");

ssize_t own_pwrite(int fd, const void *buf, size_t len, off_t off)
{
	if (len < META_MAX && atomic_load(&metas_to_fail) > 0) {
		atomic_fetch_sub(&metas_to_fail, 1);
		if (atomic_exchange(&metas_written, false))
			(void)syscall(SYS_pwrite64, fd, buf, len, off);
		errno = EIO;
		return -1;
	}
	return syscall(SYS_pwrite64, fd, buf, len, off);
}

static atomic_uint places; /* of the file's first pages that we wrote ourselves, a bit each */

ssize_t our_pwrite(int fd, const void *buf, size_t len, off_t off)
{
	atomic_fetch_or(&places, off == 0 ? 1 : off == 4096 ? 2 : 4);
	return syscall(SYS_pwrite64, fd, buf, len, off);
}

int own_fdatasync(int fd)
{
	atomic_fetch_add(&syncs, 1);
	if (atomic_load(&syncs_to_fail) > 0) {
		atomic_fetch_sub(&syncs_to_fail, 1);
		errno = EIO;
		return -1;
	}
	return (int)syscall(SYS_fdatasync, fd);
}

void *own_mmap(void *addr, size_t len, int prot, int flags, int fd, off_t off)
{
	if (fd >= 0 && atomic_load(&no_maps)) {
		errno = ENOMEM;
		return MAP_FAILED;
	}
	return (void *)syscall(SYS_mmap, addr, len, prot, flags, fd, off);
}

int our_ftruncate(int fd, off_t size)
{
	if (atomic_load(&dies_at_a_larger_file))
		raise(SIGKILL);
	if (atomic_load(&no_larger_file)) {
		errno = EFBIG;
		return -1;
	}
	return (int)syscall(SYS_ftruncate, fd, size);
}

/* ---- a small index ---- */

static int put(const char *value)
{
	struct index_txn *txn;
	int r;

	r = index_begin(s.index, &txn);
	if (r < 0)
		return r;
	ck_ok(index_put(txn, INDEX_META, "key", 3, value, strlen(value)));
	return index_commit(&txn);
}

static void expect(const char *value)
{
	_cleanup_free_ void *got = NULL;
	size_t len;

	ck_ok(index_get(s.index, INDEX_META, "key", 3, &got, &len));
	ck_assert_uint_eq(len, strlen(value));
	ck_assert_mem_eq(got, value, len);
}

static void reopen(void)
{
	index_close(s.index);
	s.index = NULL;
	ck_ok(index_open(s.dir_fd, &noter, &s.index));
}

static void setup(void)
{
	scratch_make(&s);
	ck_ok(index_open(s.dir_fd, &noter, &s.index));
	ck_ok(put("old"));
}

static void teardown(void)
{
	index_close(s.index);
	scratch_remove(&s);
}

/* ---- commits that fail ---- */

static void expect_failure_and_success(void)
{
	atomic_store(&metas_to_fail, 1);
	ck_err(put("lost"), -EIO);
	expect("old");
	ck_ok(put("new"));
	expect("new");
	reopen();
	expect("new");
}

START_TEST(a_commit_whose_meta_page_cannot_be_written_is_done_again)
{
	expect_failure_and_success();
}
END_TEST

START_TEST(the_first_one_after_an_open_is_done_again_as_well)
{
	reopen();
	expect_failure_and_success();
}
END_TEST

START_TEST(one_that_was_written_and_put_back_is_done_again)
{
	atomic_store(&metas_written, true);
	expect_failure_and_success();
}
END_TEST

START_TEST(what_cannot_be_made_certain_is_not_written_over)
{
	int before;

	atomic_store(&metas_to_fail, 1);
	ck_err(put("lost"), -EIO);
	for (int i = 0; i < 3; i++) {
		atomic_store(&syncs_to_fail, 1);
		ck_err(put("new"), -EIO);
		ck_assert_int_eq(atomic_load(&syncs_to_fail), 0);
		expect("old");
	}
	before = atomic_load(&syncs);
	atomic_store(&places, 0);
	ck_ok(put("new"));
	ck_assert_uint_eq(atomic_load(&places), 3); /* both meta pages, as the map has them */
	ck_assert_int_gt(atomic_load(&syncs), before + 1); /* its own, and one before it */
	before = atomic_load(&syncs);
	ck_ok(put("newer"));
	ck_assert_int_eq(atomic_load(&syncs), before + 1);
	expect("newer");
}
END_TEST

START_TEST(a_commit_that_failed_and_stands_is_the_last)
{
	atomic_store(&metas_to_fail, 2); /* it cannot be put back */
	atomic_store(&metas_written, true);
	ck_err(put("unknown"), -EIO);
	ck_err(put("new"), -ERR_INDEX_FAILED);
	ck_assert_ptr_nonnull(strstr(s.last_note, "what a commit wrote that failed is there"));
	ck_err(put("new"), -ERR_INDEX_FAILED);
	reopen();
	ck_ok(put("new"));
}
END_TEST

START_TEST(what_was_damaged_meanwhile_is_not_opened_anew)
{
	enum { TXN = 144, BYTES = 4096 }; /* of a meta page: LMDB's number, and where the next is */
	const uint64_t none = 0;
	_cleanup_close_ int fd = -1;
	uint64_t a, b;

	ck_ok(os_openat(s.dir_fd, "index/data.mdb", O_RDWR, 0, &fd));
	ck_ok(os_pread_full(fd, &a, sizeof(a), TXN));
	ck_ok(os_pread_full(fd, &b, sizeof(b), BYTES + TXN));
	/* the older one: LMDB itself would not mind */
	ck_ok(os_pwrite_full(fd, &none, sizeof(none), a < b ? TXN : BYTES + TXN));
	atomic_store(&metas_to_fail, 1);
	ck_err(put("lost"), -EIO);
	ck_assert_ptr_nonnull(strstr(s.last_note, "transaction numbers"));
	ck_err(put("new"), -ERR_INDEX_BROKEN);
}
END_TEST

/* ---- killed between a commit and what follows it ---- */

enum { LARGE = 1 << 20, MANY = 80 }; /* together more than the file is kept ahead */

static void give_back(const char *value)
{
	static uint8_t large[LARGE];
	struct index_txn *txn;

	ck_ok(index_begin(s.index, &txn));
	ck_ok(index_put(txn, INDEX_META, "key", 3, value, strlen(value)));
	for (int n = 0; n < MANY; n++)
		ck_ok(index_put(txn, INDEX_META, &n, sizeof(n), large, sizeof(large)));
	for (int n = 0; n < MANY; n++)
		ck_ok(index_del(txn, INDEX_META, &n, sizeof(n)));
	ck_ok(index_commit(&txn));
}

/* Leaves a file that counts more pages than it has. */
static void give_back_and_die(const char *value)
{
	int status;
	pid_t child;

	for (int n = 0; n < 3; n++)
		ck_ok(put("other")); /* where none is free LMDB writes those it is given back */
	index_close(s.index); /* it does not outlive a fork */
	s.index = NULL;
	child = fork();
	ck_assert_int_ge(child, 0);
	if (child == 0) {
		ck_ok(index_open(s.dir_fd, &noter, &s.index));
		atomic_store(&dies_at_a_larger_file, true);
		give_back(value);
		_exit(1);
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "status %d", status);
}

static void expect_whole(void)
{
	ck_ok(index_open(s.dir_fd, &noter, &s.index));
	expect("new");
	ck_ok(index_check(s.index));
	for (int n = 0; n < 5; n++)
		ck_ok(put("goes on"));
	ck_ok(index_check(s.index));
	reopen();
	expect("goes on");
	ck_assert_uint_eq(s.notes, 0);
}

START_TEST(a_file_that_ends_before_pages_it_gave_back_is_whole)
{
	give_back_and_die("new");
	expect_whole();
}
END_TEST

START_TEST(it_is_whole_even_if_it_cannot_be_extended)
{
	give_back_and_die("new");
	atomic_store(&no_larger_file, true);
	expect_whole();
}
END_TEST

/* ---- beside readers ---- */

enum { ALL = 126 }; /* READERS_MAX: each has a place in LMDB's table, and keeps it */

static pthread_barrier_t all_read;

static int wait_for_all(void *arg, const void *key, size_t key_len, const void *value,
			size_t value_len)
{
	pthread_barrier_wait(&all_read);
	return 1;
}

static void *read_with_all(void *arg)
{
	ck_assert_int_eq(index_each(s.index, INDEX_META, wait_for_all, NULL), 1);
	return NULL;
}

START_TEST(a_commit_that_fails_finds_every_place_of_a_reader_taken)
{
	pthread_t threads[ALL];

	ck_ok(pthread_barrier_init(&all_read, NULL, ALL));
	for (int i = 0; i < ALL; i++)
		ck_ok(pthread_create(&threads[i], NULL, read_with_all, NULL));
	for (int i = 0; i < ALL; i++)
		pthread_join(threads[i], NULL);
	expect_failure_and_success();
}
END_TEST

/* ---- more of them than LMDB has places ---- */

enum { MORE = 20 };

static pthread_barrier_t all_may_end;
static atomic_int read_late;

static int wait_for_the_end(void *arg, const void *key, size_t key_len, const void *value,
			    size_t value_len)
{
	pthread_barrier_wait(&all_read);
	pthread_barrier_wait(&all_may_end);
	return 1;
}

static void *read_until_the_end(void *arg)
{
	ck_assert_int_eq(index_each(s.index, INDEX_META, wait_for_the_end, NULL), 1);
	return NULL;
}

static void *read_one(void *arg)
{
	expect("old");
	atomic_fetch_add(&read_late, 1);
	return NULL;
}

START_TEST(readers_beyond_the_places_of_all_wait_for_one)
{
	pthread_t threads[ALL], more[MORE];

	ck_ok(pthread_barrier_init(&all_read, NULL, ALL + 1));
	ck_ok(pthread_barrier_init(&all_may_end, NULL, ALL + 1));
	for (int i = 0; i < ALL; i++)
		ck_ok(pthread_create(&threads[i], NULL, read_until_the_end, NULL));
	pthread_barrier_wait(&all_read);
	for (int i = 0; i < MORE; i++)
		ck_ok(pthread_create(&more[i], NULL, read_one, NULL));
	usleep(20000); /* so that some of them wait; those that come later need not */
	ck_assert_int_eq(atomic_load(&read_late), 0);
	pthread_barrier_wait(&all_may_end);
	for (int i = 0; i < ALL; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < MORE; i++)
		pthread_join(more[i], NULL);
	ck_assert_int_eq(atomic_load(&read_late), MORE);
}
END_TEST

static pthread_t refused;

static void read_meanwhile(void)
{
	ck_ok(pthread_create(&refused, NULL, read_one, NULL));
	usleep(2000); /* LMDB refuses it, as it does everything now */
}

START_TEST(readers_that_are_refused_give_their_places_back)
{
	on_failure = read_meanwhile;
	for (int i = 0; i < ALL + 2; i++) {
		struct index_txn *txn;

		ck_ok(index_begin(s.index, &txn));
		ck_ok(index_put(txn, INDEX_META, "key", 3, "lost", 4));
		expect("old"); /* one rests, with a place */
		atomic_store(&metas_to_fail, 1);
		ck_err(index_commit(&txn), -EIO);
		pthread_join(refused, NULL);
	}
	on_failure = NULL;
	ck_assert_int_eq(atomic_load(&read_late), ALL + 2);
	ck_ok(put("new"));
	expect("new");
}
END_TEST

static atomic_bool stop;
static atomic_uint reads;
static atomic_int failed_read; /* what the last one that failed answered */

static void *read_on(void *arg)
{
	while (!atomic_load(&stop)) {
		_cleanup_free_ void *value = NULL;
		size_t len;
		int r = index_get(s.index, INDEX_META, "key", 3, &value, &len);

		if (r != 0)
			atomic_store(&failed_read, r);
		atomic_fetch_add(&reads, 1);
	}
	return NULL;
}

START_TEST(readers_go_on_while_commits_fail)
{
	pthread_t threads[3];

	for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
		ck_ok(pthread_create(&threads[i], NULL, read_on, NULL));
	for (int i = 0; i < 50; i++) {
		atomic_store(&metas_to_fail, 1);
		ck_err(put("lost"), -EIO);
		ck_ok(put("new"));
	}
	atomic_store(&stop, true);
	for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
		pthread_join(threads[i], NULL);
	ck_ok(atomic_load(&failed_read));
	ck_assert_uint_gt(atomic_load(&reads), 0);
}
END_TEST

/* ---- what is done after a commit, where it fails ---- */

static struct name in_use, garbage[3];

static bool is_in_use(void *arg, const struct name *name)
{
	return name_eq(name, &in_use);
}

static void fail_next_commit(void *arg)
{
	atomic_store(&metas_to_fail, 1);
}

static int sweep_chunks(void (*between)(void *arg))
{
	const struct sweeper sweeper = { .live = is_in_use, .between = between };
	struct sweep_stats stats;
	int r;

	ck_ok(chunks_collect(s.chunks));
	r = chunks_sweep(s.chunks, &sweeper, &stats);
	chunks_collect_end(s.chunks);
	return r;
}

static void expect_bytes(const struct name *name)
{
	const struct chunk_info info = { .name = *name };

	ck_ok(chunk_verify(s.chunks, &info, true));
}

START_TEST(a_sweep_whose_commit_fails_takes_no_bytes)
{
	uint8_t data[100000];

	ck_ok(chunks_open(s.dir_fd, s.index, &noter, &s.chunks));
	for (int i = 0; i < 4; i++) {
		scratch_fill(data, sizeof(data), (unsigned)i);
		ck_ok(chunk_put(s.chunks, CHUNK_DATA, data, sizeof(data),
				i < 3 ? &garbage[i] : &in_use));
	}
	scratch_commit(&s);
	atomic_store(&metas_to_fail, 1); /* what is dead does not leave the index */
	ck_err(sweep_chunks(NULL), -EIO);
	for (int i = 0; i < 3; i++)
		expect_bytes(&garbage[i]);
	expect_bytes(&in_use);
	ck_err(sweep_chunks(fail_next_commit), -EIO); /* what moved is not named anew */
	expect_bytes(&in_use);
	ck_err(chunk_find(s.chunks, &garbage[0]), ABSENT);
	ck_ok(sweep_chunks(NULL));
	expect_bytes(&in_use);
	chunks_close(s.chunks);
}
END_TEST

/* ---- a map that cannot grow ---- */

START_TEST(without_room_for_a_larger_map_the_index_goes_on)
{
	atomic_store(&no_maps, true);
	ck_err(index_grow(s.index), -ENOMEM);
	ck_err(put("lost"), -ENOMEM);
	atomic_store(&no_maps, false);
	ck_ok(put("new"));
	expect("new");
	ck_ok(index_grow(s.index));
	expect("new");
	ck_ok(put("newer"));
	reopen();
	expect("newer");
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		a_commit_whose_meta_page_cannot_be_written_is_done_again,
		the_first_one_after_an_open_is_done_again_as_well,
		one_that_was_written_and_put_back_is_done_again,
		what_cannot_be_made_certain_is_not_written_over,
		a_commit_that_failed_and_stands_is_the_last,
		what_was_damaged_meanwhile_is_not_opened_anew,
		a_file_that_ends_before_pages_it_gave_back_is_whole,
		it_is_whole_even_if_it_cannot_be_extended,
		a_commit_that_fails_finds_every_place_of_a_reader_taken,
		readers_beyond_the_places_of_all_wait_for_one,
		readers_that_are_refused_give_their_places_back,
		readers_go_on_while_commits_fail,
		a_sweep_whose_commit_fails_takes_no_bytes,
		without_room_for_a_larger_map_the_index_goes_on,
	};

	return scratch_run("index_faults", tests, ARRAY_SIZE(tests), setup, teardown);
}
