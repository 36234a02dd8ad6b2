/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The files of a scratch store's journal. */

#include "tests/unit/store_fixture.h"

static int count_one(void *arg, const char *name)
{
	++*(int *)arg;
	return 0;
}

static int files(void)
{
	int n = 0;

	ck_ok(os_each_name(scratch.dir_fd, "journal", count_one, &n));
	return n;
}

/* The bytes of the only segment. */
_unused_ static int open_segment(void)
{
	int fd = openat(scratch.dir_fd, "journal/00000001", O_RDWR | O_CLOEXEC);

	ck_assert_int_ge(fd, 0);
	return fd;
}

_unused_ static void cut_segment(const char *path, off_t size)
{
	_cleanup_close_ int fd = openat(scratch.dir_fd, path, O_RDWR | O_CLOEXEC);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(ftruncate(fd, size), 0);
}
