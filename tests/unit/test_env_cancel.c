/* SPDX-License-Identifier: Apache-2.0 */

/* ply_cancel_on: commands of one thread end when a descriptor becomes readable. */

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "env/proc.h"
#include "store/base/util.h"
#include "tests/unit/run.h"

static struct keeper *keeper;

static void setup(void)
{
	ck_assert_int_eq(keeper_start(&keeper), 0);
}

static void teardown(void)
{
	keeper_end(keeper);
}

static int sh(const char *script, struct ply_result *ret)
{
	const char *argv[] = { "sh", "-c", script, NULL };
	const struct proc_options o = { .argv = argv };
	const struct proc_capture c = { 0 };

	return proc_run(keeper, &o, &c, ret);
}

START_TEST(a_readable_descriptor_ends_the_command)
{
	_cleanup_close_ int fd = eventfd(1, EFD_CLOEXEC);
	_cleanup_(ply_result_free) struct ply_result result = { 0 };

	ply_cancel_on(fd);
	ck_assert_int_eq(sh("sleep 1000 & sleep 1000", &result), PLY_CANCELLED);
	ck_assert_str_eq(ply_error(), "the command was cancelled");
	ck_assert_ptr_null(result.out.data);
	/* Nothing was read from it: the next one ends as well, until the thread says no more. */
	ck_assert_int_eq(sh("sleep 1000", &result), PLY_CANCELLED);
	ply_cancel_on(-1);
	ck_assert_int_eq(sh("echo on", &result), 0);
	ck_assert_str_eq(result.out.data, "on\n");
}
END_TEST

static void *cancel_when_it_prints(void *arg)
{
	const int *fds = arg; /* the command's word, ours */
	char c;

	ck_assert_int_eq(read(fds[0], &c, 1), 1);
	ck_assert_int_eq(eventfd_write(fds[1], 1), 0);
	return NULL;
}

static void *run_to_its_end(void *arg)
{
	_cleanup_(ply_result_free) struct ply_result result = { 0 };

	ck_assert_int_eq(sh("sleep 0.3; exit 7", &result), 0);
	ck_assert_int_eq(result.exit_code, 7);
	return NULL;
}

START_TEST(another_thread_cancels_this_one_only)
{
	_cleanup_close_ int fd = eventfd(0, EFD_CLOEXEC);
	_cleanup_(ply_result_free) struct ply_result result = { 0 };
	char script[64];
	int p[2], fds[2];
	pthread_t canceller, other;

	ck_assert_int_eq(pipe(p), 0);
	fds[0] = p[0];
	fds[1] = fd;
	ck_assert_int_eq(pthread_create(&other, NULL, run_to_its_end, NULL), 0);
	ck_assert_int_eq(pthread_create(&canceller, NULL, cancel_when_it_prints, fds), 0);
	ply_cancel_on(fd);
	snprintf(script, sizeof(script), "echo x >/proc/%d/fd/%d; sleep 1000", getpid(), p[1]);
	ck_assert_int_eq(sh(script, &result), PLY_CANCELLED);
	ply_cancel_on(-1);
	ck_assert_int_eq(pthread_join(canceller, NULL), 0);
	ck_assert_int_eq(pthread_join(other, NULL), 0);
	closep(&p[0]);
	closep(&p[1]);
}
END_TEST

int main(void)
{
	TCase *tcase = tcase_create("all");

	tcase_add_checked_fixture(tcase, setup, teardown);
	tcase_add_test(tcase, a_readable_descriptor_ends_the_command);
	tcase_add_test(tcase, another_thread_cancels_this_one_only);
	return run_case("env_cancel", tcase);
}
