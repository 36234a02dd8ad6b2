/* SPDX-License-Identifier: Apache-2.0 */

/* Who waits while the sealer is behind: whoever brings much, and nobody else. */

#include <pthread.h>
#include <stdatomic.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <time.h>

#include "store/room.h"
#include "tests/unit/view_fixture.h"

static struct view *other; /* of another branch of the same store */
static pthread_mutex_t stuck = PTHREAD_MUTEX_INITIALIZER;

/*
 * Stands for libc's: a disk with so much room that one is behind with 256 MiB, and far behind with
 * 320, which who brings much does not come to: each view may bring 4 more.
 */
int fstatvfs(int fd, struct statvfs *ret)
{
	*ret = (struct statvfs){ .f_frsize = 1, .f_bavail = (uint64_t)64 << 30 };
	return 0;
}

/* Stands for libc's: a disk that takes as long as the test has the lock. */
int fdatasync(int fd)
{
	pthread_mutex_lock(&stuck);
	pthread_mutex_unlock(&stuck);
	return (int)syscall(SYS_fdatasync, fd);
}

static uint64_t make(struct view *v, const char *name)
{
	const struct fs_new n = {
		.dir = ROOT_NODE, .name = name, .len = strlen(name), .mode = S_IFREG | 0644
	};
	struct entry e;

	ck_assert_int_eq(view_create(v, &n, &e), 0);
	return e.node;
}

static void put(struct view *v, uint64_t node, uint64_t at, size_t len)
{
	static uint8_t data[1 << 20];

	ck_assert_int_eq(view_write(v, node, at, data, len, false, NULL), 0);
}

/* Ends when the sealer has caught up. */
static void *bring_much(void *arg)
{
	uint64_t node = make(view, "much");

	for (uint64_t i = 0; i < 300; i++)
		put(view, node, i << 20, 1 << 20);
	return NULL;
}

static void *bring_little(void *arg)
{
	uint64_t node = make(other, "little");

	for (uint64_t i = 0; i < 20; i++)
		put(other, node, i * 4096, 4096);
	ck_assert_int_eq(view_rename(other, ROOT_NODE, "little", 6, ROOT_NODE, "small", 5, 0), 0);
	ck_assert_int_eq(view_unlink(other, ROOT_NODE, "small", 5), 0);
	return NULL;
}

static bool ends_within(pthread_t thread, int seconds)
{
	struct timespec until;

	(void)clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += seconds;
	return pthread_timedjoin_np(thread, NULL, &until) == 0;
}

static pthread_t start(void *(*fn)(void *arg))
{
	pthread_t thread;

	ck_assert_int_eq(pthread_create(&thread, NULL, fn, NULL), 0);
	return thread;
}

START_TEST(who_brings_little_does_not_wait_for_what_another_view_brought)
{
	pthread_t much;

	ck_ok(view_fork(view, "other"));
	ck_ok(view_open(store, "other", NULL, &other));
	pthread_mutex_lock(&stuck);
	much = start(bring_much);
	while (store_behind(store) == NOT_BEHIND)
		usleep(1000);
	ck_assert(ends_within(start(bring_little), 20));
	ck_assert(!ends_within(much, 1)); /* but who brings much does */
	pthread_mutex_unlock(&stuck);
	ck_assert(ends_within(much, 60));
	view_close(other);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		who_brings_little_does_not_wait_for_what_another_view_brought,
	};

	return scratch_run("view_behind", tests, ARRAY_SIZE(tests), view_setup, view_teardown);
}
