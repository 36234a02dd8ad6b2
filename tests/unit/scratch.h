/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A temporary directory and the lower half of a store in it, for the unit tests of store/. Used
 * from checked fixtures: LMDB must not be carried across Check's fork.
 */

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <sys/mman.h>

#include "store/base/err.h"
#include "store/base/note.h"
#include "store/base/os.h"
#include "store/base/util.h"
#include "store/blob.h"
#include "store/chunk.h"
#include "store/index.h"
#include "tests/unit/run.h"

struct scratch {
	char path[4096];
	int dir_fd;
	struct index *index;
	struct chunks *chunks;
	struct stage *stage;
	unsigned notes;      /* lines noted so far */
	char last_note[512]; /* shown when a test wonders */
};

#define ck_ok(expression) \
	do { \
		int ok_r_ = (expression); \
		ck_assert_msg(ok_r_ == 0, "%s: %s (%d)", #expression, err_name(ok_r_), ok_r_); \
	} while (0)

#define ck_err(expression, expected) \
	do { \
		int err_r_ = (expression); \
		ck_assert_msg(err_r_ == (expected), "%s: %s, not %s", #expression, \
			      err_name(err_r_), err_name(expected)); \
	} while (0)

_unused_ static void scratch_note(void *arg, const char *line)
{
	struct scratch *s = arg;

	__atomic_add_fetch(&s->notes, 1, __ATOMIC_RELAXED);
	(void)snprintf(s->last_note, sizeof(s->last_note), "%s", line);
}

_unused_ static void scratch_make(struct scratch *s)
{
	const char *tmp = getenv("TMPDIR");

	*s = (struct scratch){ .dir_fd = -1 };
	(void)snprintf(s->path, sizeof(s->path), "%s/plyfs-test-XXXXXX", tmp ? tmp : "/tmp");
	ck_assert_ptr_nonnull(mkdtemp(s->path));
	s->dir_fd = open(s->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	ck_assert_int_ge(s->dir_fd, 0);
}

_unused_ static int scratch_unlink(const char *path, const struct stat *st, int flag,
				   struct FTW *ftw)
{
	return remove(path);
}

_unused_ static void scratch_remove(struct scratch *s)
{
	closep(&s->dir_fd);
	(void)nftw(s->path, scratch_unlink, 16, FTW_DEPTH | FTW_PHYS); /* litter at worst */
}

_unused_ static void scratch_open(struct scratch *s)
{
	struct noter noter = { .fn = scratch_note, .arg = s };

	ck_ok(index_open(s->dir_fd, &noter, &s->index));
	ck_ok(chunks_open(s->dir_fd, s->index, &noter, &s->chunks));
	ck_ok(stage_open(s->dir_fd, s->chunks, &noter, &s->stage));
	stage_hold(s->stage, NULL);
}

_unused_ static void scratch_close(struct scratch *s)
{
	stage_close(s->stage);
	chunks_close(s->chunks);
	index_close(s->index);
	s->stage = NULL;
	s->chunks = NULL;
	s->index = NULL;
}

/* True when the (synced) file's pages are out of the page cache; a tmpfs keeps them. */
_unused_ static bool scratch_drop_pages(int dir_fd, const char *path)
{
	_cleanup_close_ int fd = openat(dir_fd, path, O_RDONLY | O_CLOEXEC);
	unsigned char resident;
	void *p;

	ck_assert_int_ge(fd, 0);
	(void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED); /* advice: mincore tells */
	p = mmap(NULL, 1, PROT_READ, MAP_SHARED, fd, 0);
	ck_assert_ptr_ne(p, MAP_FAILED);
	ck_assert_int_eq(mincore(p, 1, &resident), 0);
	munmap(p, 1);
	return !(resident & 1);
}

/* Makes all pending chunks durable and committed. */
_unused_ static void scratch_commit(struct scratch *s)
{
	struct index_txn *txn;

	ck_ok(chunks_flush(s->chunks));
	ck_ok(index_begin(s->index, &txn));
	ck_ok(chunks_commit_into(s->chunks, txn));
	ck_ok(index_commit(&txn));
	chunks_committed(s->chunks);
}

/* A repeatable stream of bytes: splitmix64. */
_unused_ static uint64_t scratch_random(uint64_t *seed)
{
	uint64_t z = (*seed += UINT64_C(0x9e3779b97f4a7c15));

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

_unused_ static void scratch_fill(void *buf, size_t len, uint64_t seed)
{
	uint8_t *p = buf;

	for (size_t i = 0; i < len; i += 8) {
		uint64_t v = scratch_random(&seed);

		memcpy(p + i, &v, MIN(len - i, sizeof(v)));
	}
}

_unused_ static int scratch_run(const char *suite_name, const TTest *const *tests, size_t n,
				void (*setup)(void), void (*teardown)(void))
{
	TCase *tcase = tcase_create(suite_name);

	/* sanitizers and a busy machine: no test here takes a tenth of it alone */
	tcase_set_timeout(tcase, 240);
	if (setup)
		tcase_add_checked_fixture(tcase, setup, teardown);
	for (size_t i = 0; i < n; i++)
		tcase_add_test(tcase, tests[i]);
	return run_case(suite_name, tcase);
}
