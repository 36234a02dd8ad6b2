/* SPDX-License-Identifier: Apache-2.0 */

/* Copies of files (store/copy.c). What a view does with them is e2e/passthrough.py's. */

#include <sys/statvfs.h>

#include "store/copy.h"
#include "tests/unit/store_fixture.h"

#define SNAP 0x123456789abc
#define SIZE 100000

struct source {
	const char *text;
	int failure;
	unsigned calls; /* atomic */
	bool slow;      /* until somebody waits, as far as one can tell */
};

static int write_text(void *arg, int fd)
{
	struct source *s = arg;

	__atomic_add_fetch(&s->calls, 1, __ATOMIC_RELAXED);
	if (s->slow)
		(void)usleep(50000);
	ck_ok(os_pwrite_full(fd, s->text, strlen(s->text), 10));
	return s->failure;
}

static void expect_copy(int fd, const char *text)
{
	char buf[SIZE] = "", want[SIZE] = "";
	struct stat st;

	strcpy(want + 10, text);
	ck_ok(os_fstat(fd, &st));
	ck_assert_int_eq(st.st_size, SIZE);
	ck_assert_uint_eq(st.st_mode, S_IFREG | 0600);
	ck_ok(os_pread_full(fd, buf, SIZE, 0));
	ck_assert_mem_eq(buf, want, SIZE);
	ck_assert_int_eq(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY); /* W3 */
}

static void expect_copies(uint64_t n)
{
	uint64_t count, bytes;

	ck_ok(copies_stats(store, &count, &bytes));
	ck_assert_uint_eq(count, n);
}

static void make(uint64_t ino, struct source *s)
{
	_cleanup_close_ int fd = -1;

	ck_ok(copy_make(store, SNAP, ino, SIZE, 100, write_text, s, &fd));
	expect_copy(fd, s->text);
}

START_TEST(a_copy_is_made_once)
{
	struct source one = { .text = "one" }, two = { .text = "two" };
	_cleanup_close_ int fd = -1;

	umask(0);
	expect_copies(0);
	ck_err(copy_find(store, SNAP, 7, &fd), ABSENT);
	make(7, &one);
	ck_ok(copy_find(store, SNAP, 7, &fd));
	expect_copy(fd, "one");
	make(7, &one);
	ck_assert_uint_eq(one.calls, 1);
	make(8, &two);
	expect_copies(2);
	ck_err(copy_find(store, SNAP + 1, 7, &fd), ABSENT);
}
END_TEST

START_TEST(half_a_copy_is_none)
{
	struct source broken = { .text = "half", .failure = -EIO }, good = { .text = "good" };
	_cleanup_close_ int fd = -1, crashed = -1;

	ck_err(copy_make(store, SNAP, 7, SIZE, 100, write_text, &broken, &fd), -EIO);
	ck_err(copy_find(store, SNAP, 7, &fd), ABSENT);
	expect_copies(0);
	/* As a daemon leaves it that was killed. */
	ck_ok(os_openat(scratch.dir_fd, "copies/123456789abc-7.new", O_WRONLY | O_CREAT, 0600,
			&crashed));
	ck_ok(os_pwrite_full(crashed, "longer than what is right", 25, 0));
	ck_err(copy_find(store, SNAP, 7, &fd), ABSENT);
	make(7, &good);
	expect_copies(1);
}
END_TEST

START_TEST(a_file_larger_than_half_the_room_is_not_begun)
{
	struct source s = { .text = "" };
	uint64_t room;
	int fd;

	ck_ok(os_free_bytes(scratch.dir_fd, &room));
	ck_err(copy_make(store, SNAP, 7, SIZE, room, write_text, &s, &fd), -ENOSPC);
	ck_err(copy_make(store, SNAP, 7, SIZE, UINT64_MAX, write_text, &s, &fd), -ENOSPC);
	ck_assert_uint_eq(s.calls, 0);
}
END_TEST

static void *maker(void *arg)
{
	_cleanup_close_ int fd = -1;
	int r = copy_make(store, SNAP, 7, SIZE, 100, write_text, arg, &fd);

	return (void *)(intptr_t)r;
}

START_TEST(who_wants_the_same_copy_waits)
{
	for (int failure = 0; failure >= -EIO; failure -= EIO) {
		struct source s = { .text = "slow", .failure = failure, .slow = true };
		unsigned made = 0;
		pthread_t threads[4];
		void *r;

		copies_remove(store, true);
		for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
			ck_assert_int_eq(pthread_create(&threads[i], NULL, maker, &s), 0);
		for (size_t i = 0; i < ARRAY_SIZE(threads); i++) {
			ck_assert_int_eq(pthread_join(threads[i], &r), 0);
			ck_assert((intptr_t)r == failure || (intptr_t)r == -EAGAIN);
			made += r == NULL;
		}
		if (failure == 0)
			ck_assert_uint_eq(s.calls, 1);
		ck_assert_uint_eq(made, failure ? 0 : ARRAY_SIZE(threads));
	}
}
END_TEST

START_TEST(what_is_used_is_removed_only_if_one_wants)
{
	struct source s = { .text = "text" };
	_cleanup_close_ int used = -1, fd = -1, found = -1;

	make(7, &s);
	make(8, &s);
	ck_ok(copy_find(store, SNAP, 7, &found));
	used = dup(found); /* the kernel's, when the file is passed through */
	closep(&found);
	found = -1;

	copies_remove(store, false);
	ck_err(copy_find(store, SNAP, 8, &fd), ABSENT);
	ck_ok(copy_find(store, SNAP, 7, &fd));
	copies_remove(store, true);
	expect_copies(0);
	expect_copy(used, "text"); /* W4 */
}
END_TEST

static int write_while_all_are_removed(void *arg, int fd)
{
	copies_remove(store, false);
	copies_remove(store, true);
	return write_text(arg, fd);
}

START_TEST(what_is_being_written_stays)
{
	struct source s = { .text = "text" };
	_cleanup_close_ int fd = -1;

	make(8, &s);
	ck_ok(copy_make(store, SNAP, 7, SIZE, 100, write_while_all_are_removed, &s, &fd));
	expect_copy(fd, "text");
	expect_copies(1);
}
END_TEST

#define PLENTY (UINT64_C(1) << 50)

static _Atomic uint64_t disk_room = PLENTY; /* what the disk has left; the sealer asks, too */

/* Stands for libc's. */
int fstatvfs(int fd, struct statvfs *ret)
{
	*ret = (struct statvfs){ .f_frsize = 1, .f_bavail = disk_room };
	return 0;
}

START_TEST(those_make_room_that_were_used_longest_ago)
{
	_cleanup_close_ int one = -1, three = -1, fd = -1;
	struct source s = { .text = "text" };
	uint64_t count, bytes;

	for (uint64_t ino = 1; ino <= 3; ino++) {
		make(ino, &s);
		(void)usleep(20000); /* the disk's clock ticks each 10 ms at the least */
	}
	ck_ok(copy_find(store, SNAP, 1, &one));
	closep(&one);
	one = -1;
	ck_ok(copies_stats(store, &count, &bytes));
	disk_room = bytes / 3; /* with what one takes there is as much as the others take */
	copies_trim(store);
	expect_copies(2);
	ck_err(copy_find(store, SNAP, 2, &fd), ABSENT);

	ck_ok(copy_find(store, SNAP, 1, &one));
	ck_ok(copy_find(store, SNAP, 3, &three));
	disk_room = 0; /* and all that are left are used */
	ck_err(copy_make(store, SNAP, 4, SIZE, 0, write_text, &s, &fd), -ENOSPC);
	expect_copies(2);
	disk_room = PLENTY;
}
END_TEST

static unsigned asked;

static int is_snap(void *arg, uint64_t snap)
{
	asked++;
	ck_assert_uint_eq(snap, SNAP);
	return *(int *)arg;
}

START_TEST(what_two_snapshots_have_alike_is_one_copy)
{
	uint64_t count, bytes, more;
	struct source s = { .text = "text" };
	int alike = 0;

	make(7, &s);
	make(8, &s);
	ck_ok(copies_stats(store, &count, &bytes));
	copy_share(store, SNAP, 7, is_snap, &alike); /* it has one */
	ck_assert_uint_eq(asked, 0);
	copy_share(store, SNAP + 1, 7, is_snap, &alike);
	ck_assert_uint_eq(asked, 1);
	expect_copies(2);
	alike = 1;
	copy_share(store, SNAP + 1, 7, is_snap, &alike);
	ck_ok(copies_stats(store, &count, &more));
	ck_assert_uint_eq(count, 3);
	ck_assert_uint_eq(more, bytes);
}
END_TEST

static void *count_on(void *arg)
{
	uint64_t count, bytes;

	while (!__atomic_load_n((bool *)arg, __ATOMIC_RELAXED))
		ck_ok(copies_stats(store, &count, &bytes));
	return NULL;
}

/* A name that goes just then is one without a link. */
START_TEST(they_are_counted_while_they_come_and_go)
{
	struct source s = { .text = "text" };
	bool stop = false;
	pthread_t thread;

	make(1, &s);
	ck_assert_int_eq(pthread_create(&thread, NULL, count_on, &stop), 0);
	for (unsigned round = 0; round < 10000; round++) {
		_cleanup_close_ int fd = -1;

		ck_ok(os_openat(scratch.dir_fd, "copies/2", O_WRONLY | O_CREAT, 0600, &fd));
		ck_ok(os_unlinkat(scratch.dir_fd, "copies/2", 0));
	}
	__atomic_store_n(&stop, true, __ATOMIC_RELAXED);
	ck_assert_int_eq(pthread_join(thread, NULL), 0);
	expect_copies(1);
}
END_TEST

START_TEST(gc_and_a_check_of_all_bytes_remove_them)
{
	struct source s = { .text = "text" };
	struct branch *b = branch_make("main");
	struct gc_stats stats;

	make(7, &s);
	ck_ok(store_gc(store, NULL, &stats));
	expect_copies(0);
	make(7, &s);
	change(b, 1, "one");
	ck_ok(store_make_room(store, 1)); /* by the one that runs for who was refused */
	expect_copies(0);
	branch_close(b);
	make(7, &s);
	expect_sound(NULL);
	expect_copies(0);
}
END_TEST

START_TEST(one_that_is_just_being_removed_is_none)
{
	struct source s = { .text = "text" };
	_cleanup_close_ int fd = -1, removed = -1;

	make(7, &s);
	ck_ok(os_openat(scratch.dir_fd, "copies/123456789abc-7", O_RDONLY, 0, &removed));
	ck_ok(os_lock(removed));
	ck_err(copy_find(store, SNAP, 7, &fd), ABSENT);
}
END_TEST

START_TEST(what_others_put_beside_them_stays_and_is_none)
{
	static const size_t lens[] = { 40, 255 }; /* one more than any of ours has; the most */
	struct source s = { .text = "text" };

	make(7, &s);
	for (size_t i = 0; i < ARRAY_SIZE(lens); i++) {
		_cleanup_close_ int fd = -1;
		char path[300];
		struct stat st;

		(void)snprintf(path, sizeof(path), "copies/%0*d", (int)lens[i], 0);
		ck_ok(os_openat(scratch.dir_fd, path, O_WRONLY | O_CREAT, 0600, &fd));
		expect_copies(i == 0);
		copies_remove(store, true);
		expect_copies(0);
		ck_ok(os_statat(scratch.dir_fd, path, &st));
	}
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		a_copy_is_made_once,
		half_a_copy_is_none,
		a_file_larger_than_half_the_room_is_not_begun,
		who_wants_the_same_copy_waits,
		what_is_used_is_removed_only_if_one_wants,
		what_is_being_written_stays,
		those_make_room_that_were_used_longest_ago,
		what_two_snapshots_have_alike_is_one_copy,
		they_are_counted_while_they_come_and_go,
		gc_and_a_check_of_all_bytes_remove_them,
		one_that_is_just_being_removed_is_none,
		what_others_put_beside_them_stays_and_is_none,
	};

	return scratch_run("copy", tests, ARRAY_SIZE(tests), store_setup, store_teardown);
}
