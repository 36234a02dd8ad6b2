/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What the tests of sweeping share: N committed chunks, those that are to stay, and what is there
 * afterwards.
 */

#include <dirent.h>

#include "store/base/fault.h"
#include "store/chunk_internal.h"
#include "tests/unit/scratch.h"

enum { N = 400, LEN = 2000 };

static struct scratch s;
static struct name names[N];
static bool alive[N];
static struct name extra; /* alive too */

static inline void data_of(uint32_t i, uint8_t data[static LEN])
{
	scratch_fill(data, LEN, 77 + i);
}

static inline void setup(void)
{
	uint8_t data[LEN];

	scratch_make(&s);
	scratch_open(&s);
	for (uint32_t i = 0; i < N; i++) {
		data_of(i, data);
		ck_ok(chunk_put(s.chunks, i % 3 ? CHUNK_DATA : CHUNK_NODE, data, LEN, &names[i]));
	}
	scratch_commit(&s);
}

static inline void teardown(void)
{
	fault_disarm();
	scratch_close(&s);
	scratch_remove(&s);
}

static inline bool is_live(void *arg, const struct name *name)
{
	for (uint32_t i = 0; i < N; i++) {
		if (name_eq(&names[i], name))
			return alive[i];
	}
	return name_eq(&extra, name);
}

static inline int sweep(int (*progress)(void *arg, uint64_t done, uint64_t total),
			struct sweep_stats *ret_stats)
{
	const struct sweeper sweeper = { .live = is_live, .progress = progress };
	int r;

	r = chunks_collect(s.chunks);
	if (r < 0)
		return r;
	r = chunks_sweep(s.chunks, &sweeper, ret_stats);
	chunks_collect_end(s.chunks);
	return r;
}

static inline void keep(uint32_t from, uint32_t to, uint32_t step)
{
	memset(alive, 0, sizeof(alive));
	for (uint32_t i = from; i < to; i += step)
		alive[i] = true;
}

static inline void expect_state(void)
{
	uint8_t data[LEN];

	for (uint32_t i = 0; i < N; i++) {
		_cleanup_(chunkbuf_unrefp) struct chunkbuf *b = NULL;

		if (!alive[i]) {
			ck_err(chunk_find(s.chunks, &names[i]), ABSENT);
			continue;
		}
		data_of(i, data);
		ck_ok(chunk_load(s.chunks, &names[i], &b));
		ck_assert_uint_eq(b->len, LEN);
		ck_assert_mem_eq(b->data, data, LEN);
	}
}

static inline uint64_t count_packs(uint64_t *ret_bytes)
{
	uint64_t packs, chunks;

	ck_ok(chunks_stats(s.chunks, ret_bytes, &packs, &chunks));
	return packs;
}

/* Files that are deleted, and open in this process. */
static inline unsigned count_deleted_open(void)
{
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *entry;
	char target[4096];
	unsigned n = 0;

	ck_assert_ptr_nonnull(dir);
	while ((entry = readdir(dir))) {
		ssize_t len = readlinkat(dirfd(dir), entry->d_name, target, sizeof(target) - 1);

		target[MAX(len, 0)] = 0;
		n += strstr(target, s.path) && strstr(target, " (deleted)");
	}
	closedir(dir);
	return n;
}

/* Its place is not known any more: it may be in any pack. */
static inline void damage_entry(const struct name *name)
{
	const struct chunk_loc nowhere = { .codec = 9 };
	struct index_txn *txn;

	ck_ok(index_begin(s.index, &txn));
	ck_ok(index_put_chunk(txn, name, &nowhere));
	ck_ok(index_commit(&txn));
}

/* A small one, other than the N. */
static inline int chunk_of(uint32_t i, struct name *ret)
{
	return chunk_put(s.chunks, CHUNK_DATA, &i, sizeof(i), ret);
}

static unsigned swept_once; /* so often */

static inline void sweep_once(void)
{
	struct sweep_stats stats;

	swept_once++;
	chunks_set_io_hook(s.chunks, NULL);
	ck_ok(sweep(NULL, &stats));
	ck_assert_uint_eq(stats.packs_rewritten, 1);
}
