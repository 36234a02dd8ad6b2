/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A stage of a scratch store, and blobs in it. */

#include "tests/unit/scratch.h"

#include "store/base/fault.h"
#include "store/stage_internal.h"

static struct scratch s;

static inline void setup(void)
{
	scratch_make(&s);
	scratch_open(&s);
}

static inline void teardown(void)
{
	fault_disarm();
	scratch_close(&s);
	scratch_remove(&s);
}

static inline struct blob *make(const void *data, size_t len)
{
	struct blob *b = NULL;

	ck_ok(blob_new(s.stage, data, len, &b));
	return b;
}

static inline void expect(struct blob *b, const void *data, size_t len)
{
	_cleanup_free_ uint8_t *buf = malloc(len);

	ck_assert_uint_eq(blob_len(b), len);
	ck_ok(blob_read(b, 0, buf, len));
	ck_assert_mem_eq(buf, data, len);
}

static inline void expect_stage(uint64_t unsealed)
{
	uint64_t got, disk;

	stage_stats(s.stage, &got, &disk);
	ck_assert_uint_eq(got, unsealed);
}

static inline int count_file(void *arg, const char *name)
{
	++*(int *)arg;
	return 0;
}

static inline int stage_files(void)
{
	int n = 0;

	ck_ok(os_each_name(s.dir_fd, "stage", count_file, &n));
	return n;
}
