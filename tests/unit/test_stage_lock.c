/* SPDX-License-Identifier: Apache-2.0 */

/* Who writes does not wait while the disk takes back what the stage needs no more. */

#include <sys/syscall.h>

#include "tests/unit/blob_fixture.h"
#include "tests/unit/meanwhile.h"

static bool watching;
static bool giving_back_again;
static unsigned unlinked, cut, closed, cut_again;

static void *look(void *arg)
{
	uint64_t unsealed, disk;

	stage_stats(s.stage, &unsealed, &disk); /* wants the lock, as who writes does */
	return NULL;
}

/* As long as the disk takes for it. */
static void nobody_waits(unsigned *count)
{
	if (!watching)
		return;
	watching = false;
	ck_meanwhile(look);
	++*count;
	watching = true;
}

/* These stand for libc's. */
int unlinkat(int dir_fd, const char *path, int flags)
{
	nobody_waits(&unlinked);
	return (int)syscall(SYS_unlinkat, dir_fd, path, flags);
}

int ftruncate(int fd, off_t size)
{
	nobody_waits(&cut);
	if (giving_back_again && cut_again++ == 0)
		stage_give_back(s.stage, true); /* as a gc would while the sealer does */
	return (int)syscall(SYS_ftruncate, fd, size);
}

int close(int fd)
{
	nobody_waits(&closed);
	return (int)syscall(SYS_close, fd);
}

/* So many files, and nothing lives in them any more. */
static void fill_and_empty(unsigned files)
{
	static uint8_t data[BLOB_MAX];
	enum { BLOBS = (8 << 20) / BLOB_MAX };
	struct blob *many[BLOBS];

	for (unsigned i = 0; i < files; i++) {
		for (unsigned k = 0; k < BLOBS; k++)
			many[k] = make(data, BLOB_MAX);
		stage_turn(s.stage);
		for (unsigned k = 0; k < BLOBS; k++)
			blob_unref(many[k]);
	}
	ck_assert_int_eq(stage_files(), (int)files);
}

START_TEST(nobody_waits_for_files_to_go)
{
	static const _Atomic uint64_t lsn = 1;

	stage_hold(s.stage, &lsn);
	fill_and_empty(5);
	watching = true;
	stage_release(s.stage, 1);
	watching = false;
	ck_assert_int_eq(stage_files(), 2); /* for later */
	ck_assert_uint_eq(unlinked, 3);
	ck_assert_uint_eq(closed, 3);
}
END_TEST

START_TEST(nobody_waits_for_room_to_be_given_back)
{
	static const _Atomic uint64_t lsn = 1;
	_cleanup_(blob_unrefp) struct blob *b = NULL;
	uint64_t unsealed, disk;

	stage_hold(s.stage, &lsn);
	fill_and_empty(3);
	stage_release(s.stage, 1);
	b = make("x", 1);
	watching = true;
	stage_give_back(s.stage, true);
	watching = false;
	ck_assert_int_eq(stage_files(), 1);
	ck_assert_uint_gt(unlinked, 0);
	ck_assert_uint_gt(cut, 0);
	stage_stats(s.stage, &unsealed, &disk);
	ck_assert_uint_eq(unsealed, 1);
	ck_assert_uint_eq(disk, 1);
	expect(b, "x", 1);
}
END_TEST

START_TEST(files_are_cut_by_one_at_a_time)
{
	_cleanup_(blob_unrefp) _unused_ struct blob *b = make("x", 1);
	uint64_t unsealed, disk;

	giving_back_again = true;
	stage_give_back(s.stage, true);
	giving_back_again = false;
	ck_assert_uint_eq(cut_again, 1);
	stage_stats(s.stage, &unsealed, &disk);
	ck_assert_uint_eq(disk, 1);
	cut_again = 0;

	giving_back_again = true;
	stage_give_back(s.stage, true); /* and the next one may */
	giving_back_again = false;
	ck_assert_uint_eq(cut_again, 1);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		nobody_waits_for_files_to_go,
		nobody_waits_for_room_to_be_given_back,
		files_are_cut_by_one_at_a_time,
	};

	return scratch_run("stage_lock", tests, ARRAY_SIZE(tests), setup, teardown);
}
