/* SPDX-License-Identifier: Apache-2.0 */

/* What the stage takes of a disk that is nearly full: all that it takes can be sealed. */

#include <pthread.h>
#include <sys/statvfs.h>

#include "store/format.h"
#include "store/room.h"
#include "tests/unit/blob_fixture.h"

static uint8_t data[BLOB_MAX];
static uint64_t disk_room;	 /* what others leave of it, beside the stage's files */
static bool counts_late;	 /* with the next sync only what the stage has given back */
static _Atomic uint64_t counted; /* by the last one, of the stage's files */

static uint64_t left(void)
{
	uint64_t disk = s.stage ? s.stage->disk : 0; /* as it is opened there is none */

	if (counts_late)
		disk = counted;
	else
		counted = disk;
	return disk_room - MIN(disk, disk_room);
}

/* Stands for libc's. */
int fstatvfs(int fd, struct statvfs *ret)
{
	*ret = (struct statvfs){ .f_frsize = 1, .f_bavail = left() };
	return 0;
}

static pthread_barrier_t syncing; /* whom the next sync waits for */
static unsigned syncs, syncs_met; /* how many there were; the first so many wait */

/* Stands for libc's. */
int syncfs(int fd)
{
	counted = s.stage->disk;
	if (__atomic_add_fetch(&syncs, 1, __ATOMIC_SEQ_CST) <= syncs_met)
		pthread_barrier_wait(&syncing);
	return 0;
}

/* What it knows of the disk is old. */
static void let_ask(void)
{
	s.stage->checked_ns = 0;
}

static bool fits(uint64_t room, size_t len)
{
	struct blob *b = NULL;
	int r;

	disk_room = room;
	let_ask();
	r = blob_new(s.stage, data, len, &b);
	blob_unref(b);
	stage_give_back(s.stage, true);
	if (r < 0)
		ck_err(r, -ENOSPC);
	return r == 0;
}

/* The least room in which a blob of so many bytes finds some. */
static uint64_t least_room(size_t len)
{
	uint64_t low = 0, high = UINT64_C(1) << 30;

	ck_assert(fits(high, len));
	while (high - low > 1) {
		uint64_t middle = low + (high - low) / 2;

		if (fits(middle, len))
			high = middle;
		else
			low = middle;
	}
	return high;
}

START_TEST(a_blob_finds_room_where_it_can_be_sealed_as_well)
{
	enum { N = 1000 };
	uint64_t none = least_room(1) - 2, before;
	struct blob *many[N];

	ck_assert_uint_eq(least_room(BLOB_MAX) - none, 2 * BLOB_MAX);
	disk_room = UINT64_MAX;
	let_ask();
	for (int i = 0; i < N; i++)
		many[i] = make("x", 1);
	stage_give_back(s.stage, true);
	before = s.stage->disk;
	/* each becomes a record of its own */
	ck_assert_uint_ge(least_room(BLOB_MAX) - before - none,
			  2 * BLOB_MAX + N * (1 + sizeof(struct record_header_bytes)));
	for (int i = 0; i < N; i++)
		blob_unref(many[i]);
	ck_assert_uint_eq(least_room(1) - 2, none);
}
END_TEST

START_TEST(a_blob_grows_where_it_can_be_sealed_as_well)
{
	_cleanup_(blob_unrefp) struct blob *b = NULL;

	disk_room = UINT64_MAX;
	let_ask();
	b = make("x", 1);
	disk_room = 0;
	let_ask();
	ck_err(blob_append(b, 1, "y", 1), -ENOSPC);
	disk_room = UINT64_MAX;
	ck_ok(blob_append(b, 1, "y", 1)); /* nobody is refused on an old number */
}
END_TEST

START_TEST(the_room_is_what_it_would_take)
{
	uint64_t room;

	disk_room = least_room(BLOB_MAX);
	ck_ok(stage_room(s.stage, &room));
	ck_assert_uint_eq(room, 2 * BLOB_MAX); /* to the stage, and to a pack */
	disk_room -= 2 * BLOB_MAX + 1;
	ck_ok(stage_room(s.stage, &room));
	ck_assert_uint_eq(room, 0);
}
END_TEST

/* How far it went until it was refused. */
static unsigned stage_all(struct blob **many, unsigned most, unsigned *ret_behind)
{
	unsigned n;
	int r = 0;

	*ret_behind = most;
	let_ask();
	for (n = 0; n < most && r == 0; n++) {
		r = blob_new(s.stage, data, BLOB_MAX, &many[n]);
		if (*ret_behind == most && stage_is_behind(s.stage))
			*ret_behind = n;
	}
	ck_err(r, -ENOSPC);
	return n - 1;
}

START_TEST(writers_wait_before_they_are_refused_and_then_it_can_be_sealed)
{
	enum { MOST = 400 };
	const uint64_t reserve = least_room(1) - 2;
	struct blob *many[MOST] = { NULL };
	uint64_t unsealed, disk;
	unsigned n, behind;

	disk_room = reserve + ((uint64_t)MOST / 2) * BLOB_MAX;
	n = stage_all(many, MOST, &behind);
	stage_stats(s.stage, &unsealed, &disk);
	ck_assert_uint_eq(unsealed, (uint64_t)n * BLOB_MAX);
	ck_assert_uint_ge(left(), unsealed + reserve);
	ck_assert_uint_gt(n, MOST / 8); /* a half, a quarter, and half of that for bad luck */
	ck_assert_uint_lt(behind, n);
	for (unsigned i = 0; i < n; i++)
		blob_unref(many[i]);
}
END_TEST

START_TEST(nobody_waits_for_a_round_that_is_not_worth_it)
{
	_cleanup_(blob_unrefp) _unused_ struct blob *b = NULL;

	disk_room = least_room(BLOB_MAX);
	let_ask();
	b = make(data, BLOB_MAX);
	ck_assert(!stage_is_behind(s.stage));
}
END_TEST

/* Others fill the disk, or the clock was set. */
START_TEST(what_was_known_of_the_disk_is_not_believed_for_long)
{
	struct blob *b = NULL;

	disk_room = UINT64_MAX;
	let_ask();
	blob_unref(make("x", 1));
	disk_room = 0;
	(void)usleep(200000);
	ck_err(blob_new(s.stage, "x", 1, &b), -ENOSPC);
	disk_room = UINT64_MAX;
	blob_unref(make("x", 1));
	disk_room = 0;
	s.stage->checked_ns = INT64_MAX;
	ck_err(blob_new(s.stage, "x", 1, &b), -ENOSPC);
}
END_TEST

START_TEST(room_in_which_nothing_lives_is_given_back_first)
{
	static const _Atomic uint64_t lsn = 1;
	const uint64_t room = least_room(BLOB_MAX);
	struct blob *many[40];

	stage_hold(s.stage, &lsn);
	disk_room = UINT64_MAX;
	let_ask();
	for (size_t i = 0; i < ARRAY_SIZE(many); i++)
		many[i] = make(data, BLOB_MAX);
	for (size_t i = 0; i < ARRAY_SIZE(many); i++)
		blob_unref(many[i]);
	stage_release(s.stage, 1);
	ck_assert_int_eq(stage_files(), 1); /* for later */
	disk_room = room;
	let_ask();
	blob_unref(make(data, BLOB_MAX));
}
END_TEST

/* Who seals asks nobody, and when others have filled the disk no write may come that does. */
START_TEST(and_so_it_is_before_what_is_sealed_finds_none)
{
	static const _Atomic uint64_t lsn = 1;
	const uint64_t reserve = least_room(1) - 2;

	stage_hold(s.stage, &lsn);
	disk_room = UINT64_MAX;
	let_ask();
	blob_unref(make(data, BLOB_MAX));
	stage_release(s.stage, 1);
	disk_room = s.stage->disk + 2 * reserve;
	stage_give_back(s.stage, false);
	ck_assert_int_eq(stage_files(), 1); /* for later */
	disk_room = s.stage->disk + reserve / 2;
	stage_give_back(s.stage, false);
	ck_assert_int_eq(stage_files(), 0);
}
END_TEST

START_TEST(what_it_gives_back_is_counted_before_anybody_is_refused)
{
	static const _Atomic uint64_t lsn = 1;
	struct room *m = chunks_room(s.chunks);
	const uint64_t room = least_room(BLOB_MAX);
	uint64_t bytes;

	stage_hold(s.stage, &lsn);
	m->counts_late = counts_late = true;
	disk_room = UINT64_MAX;
	let_ask();
	blob_unref(make(data, BLOB_MAX));
	stage_release(s.stage, 1);
	disk_room = room;
	ck_err(room_ask(m, room, &bytes), 0); /* it has settled just now */
	ck_assert_uint_ge(counted, BLOB_MAX);
	let_ask();
	blob_unref(make(data, BLOB_MAX));
}
END_TEST

static void *ask_room(void *room)
{
	uint64_t bytes;

	ck_err(room_ask(room, 1, &bytes), 0);
	return NULL;
}

/* A writer (the stage's lock) and the sealer (that of the packs). */
START_TEST(two_may_ask_a_disk_that_counts_late)
{
	struct room m;
	uint64_t bytes;
	pthread_t other;

	room_init(&m, s.dir_fd);
	m.counts_late = true;
	room_wrote(&m, 100);
	disk_room = 0;
	syncs = 0;
	syncs_met = 2;
	ck_assert_int_eq(pthread_barrier_init(&syncing, NULL, 2), 0);
	ck_assert_int_eq(pthread_create(&other, NULL, ask_room, &m), 0);
	(void)ask_room(&m);
	ck_assert_int_eq(pthread_join(other, NULL), 0);
	ck_assert_uint_eq(syncs, 2);

	disk_room = UINT32_MAX; /* much, and nothing is left to be counted */
	ck_err(room_ask(&m, 50, &bytes), 0);
	ck_assert_uint_eq(syncs, 2);
	room_wrote(&m, UINT32_MAX);
	ck_err(room_ask(&m, 50, &bytes), 0);
	ck_assert_uint_eq(syncs, 3);
	ck_assert_uint_eq(bytes, left());
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		a_blob_finds_room_where_it_can_be_sealed_as_well,
		a_blob_grows_where_it_can_be_sealed_as_well,
		the_room_is_what_it_would_take,
		writers_wait_before_they_are_refused_and_then_it_can_be_sealed,
		nobody_waits_for_a_round_that_is_not_worth_it,
		what_was_known_of_the_disk_is_not_believed_for_long,
		room_in_which_nothing_lives_is_given_back_first,
		and_so_it_is_before_what_is_sealed_finds_none,
		what_it_gives_back_is_counted_before_anybody_is_refused,
		two_may_ask_a_disk_that_counts_late,
	};

	return scratch_run("stage_room", tests, ARRAY_SIZE(tests), setup, teardown);
}
