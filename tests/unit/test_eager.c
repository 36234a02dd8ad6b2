/* SPDX-License-Identifier: Apache-2.0 */

/* When a reader looks for its next request, and when it leaves that (fs/eager_judge.c). */

#include "fs/eager.h"
#include "store/base/util.h"
#include "tests/unit/run.h"

#define MS UINT64_C(1000000)

static bool idle, moves;
static unsigned asked, moved;
static struct eagerness e;
static uint64_t now;

static bool is_idle(void)
{
	asked++;
	return idle;
}

static bool move_over(void)
{
	moved++;
	return moves;
}

static const struct eager_cpus cpus = { is_idle, move_over };

static bool may_look(void)
{
	return eager_may_look(&e, &cpus, now);
}

static void found(unsigned laps, uint64_t longest_ns)
{
	eager_found(&e, &cpus, &(struct look){ laps, longest_ns, now });
}

static void slept(uint64_t longest_ns, bool came_at_once)
{
	eager_slept(&e, &cpus, &(struct look){ 40, longest_ns, now }, came_at_once);
}

static void four_doubts(void)
{
	for (int i = 0; i < 4; i++)
		found(2, 5000);
}

static void setup(void)
{
	e = (struct eagerness){ .wanted = true };
	idle = moves = true;
	asked = moved = 0;
	now = 1000 * MS;
	ck_assert(may_look());
}

/* For how many ms it does not look; `now` is when it does again. */
static unsigned left_for(void)
{
	unsigned ms;

	for (ms = 0; ms < 10000 && !may_look(); ms++)
		now += MS;
	return ms;
}

START_TEST(looks_begin_only_where_a_cpu_is_idle)
{
	e.looks = idle = false;
	ck_assert(!may_look());
	asked = 0;
	now += 7 * MS;
	ck_assert(!may_look());
	ck_assert_uint_eq(asked, 0); /* it is a file to read: not with each request */
	idle = true;
	ck_assert_uint_eq(left_for(), 1);
}
END_TEST

START_TEST(nobody_looks_where_requests_do_not_follow_each_other)
{
	e.wanted = false;
	ck_assert(!may_look());
}
END_TEST

START_TEST(single_doubts_change_nothing)
{
	for (int i = 0; i < 100; i++) {
		for (int k = 0; k < 3; k++)
			found(2, 5000);
		found(5, 500);
	}
	ck_assert_uint_eq(moved, 0);
	ck_assert(may_look());
}
END_TEST

START_TEST(four_doubts_move_and_four_more_back_off)
{
	four_doubts();
	ck_assert_uint_eq(moved, 1);
	ck_assert(may_look());
	four_doubts();
	ck_assert_uint_eq(moved, 1);
	ck_assert_uint_eq(left_for(), 8);
}
END_TEST

START_TEST(nobody_moves_where_no_cpu_is_idle)
{
	idle = false;
	four_doubts();
	ck_assert_uint_eq(moved, 0);
	ck_assert(!may_look());
}
END_TEST

START_TEST(a_request_as_soon_as_we_sleep_is_a_doubt_and_a_later_one_is_not)
{
	moves = false;
	for (int i = 0; i < 100; i++)
		slept(600, false);
	ck_assert(may_look());
	for (int i = 0; i < 4; i++)
		slept(600, true);
	ck_assert_uint_eq(left_for(), 8);
}
END_TEST

START_TEST(it_backs_off_twice_as_long_each_time_up_to_a_quarter_of_a_second)
{
	static const unsigned ms[] = { 8, 16, 32, 64, 128, 256, 256 };

	moves = false;
	for (size_t i = 0; i < ARRAY_SIZE(ms); i++) {
		four_doubts();
		ck_assert_uint_eq(left_for(), ms[i]);
	}
	found(5, 500); /* trust */
	four_doubts();
	ck_assert_uint_eq(left_for(), 8);
}
END_TEST

START_TEST(a_lost_time_slice_is_paid_back_sixteen_times)
{
	found(1, 4 * MS);
	ck_assert_uint_eq(left_for(), 64);
	found(5, 500);
	slept(2 * MS, false);
	ck_assert_uint_eq(left_for(), 32);
}
END_TEST

START_TEST(one_client_is_no_crowd)
{
	for (unsigned n = 0; n < 100000; n++)
		found(n % 2 ? 0 : 5, 500);
	ck_assert(may_look());
}
END_TEST

START_TEST(two_clients_are_served_without_looks)
{
	unsigned n;

	for (n = 0; n < 1000 && e.looks; n++)
		found(n % 4 ? 0 : 5, 500); /* 75 in 100 are there at once */
	ck_assert_uint_eq(n, 63); /* 48 came at once, 16 did not */
	ck_assert_uint_eq(left_for(), 8);
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("eager");

	tcase_add_checked_fixture(t, setup, NULL);
	tcase_add_test(t, looks_begin_only_where_a_cpu_is_idle);
	tcase_add_test(t, nobody_looks_where_requests_do_not_follow_each_other);
	tcase_add_test(t, single_doubts_change_nothing);
	tcase_add_test(t, four_doubts_move_and_four_more_back_off);
	tcase_add_test(t, nobody_moves_where_no_cpu_is_idle);
	tcase_add_test(t, a_request_as_soon_as_we_sleep_is_a_doubt_and_a_later_one_is_not);
	tcase_add_test(t, it_backs_off_twice_as_long_each_time_up_to_a_quarter_of_a_second);
	tcase_add_test(t, a_lost_time_slice_is_paid_back_sixteen_times);
	tcase_add_test(t, one_client_is_no_crowd);
	tcase_add_test(t, two_clients_are_served_without_looks);
	return run_case("eager", t);
}
