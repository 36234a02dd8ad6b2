/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The LMDB index: where chunks lie, and the store's records (snapshots, branches, counters). The
 * only file that includes lmdb.h is index_internal.h; LMDB's codes stop in what includes that.
 *
 * Every value carries its own checksum (LMDB 0.9 has none), checked on each read. Commits are
 * real (no MDB_NOSYNC). One environment per process; never carried across fork().
 *
 * Readers are short: each index_get_* opens, copies and closes its own read transaction (renewed
 * from a small pool), so that LMDB can reuse pages.
 */

#include "store/hash.h"

struct index;
struct index_txn;
struct noter;

/* Tables of records. Keys are bytes, ordered by memcmp (integers: big-endian). */
enum index_table {
	INDEX_META,     /* name -> value */
	INDEX_SNAPS,    /* snapshot id, 8 bytes big-endian -> snapshot record */
	INDEX_BRANCHES, /* branch name -> branch record */
};

/* Where a chunk lies. */
struct chunk_loc {
	uint32_t pack;
	uint64_t off; /* of the record header */
	uint32_t stored_len;
	uint32_t raw_len;
	uint32_t salt;
	uint8_t kind;  /* enum chunk_kind */
	uint8_t codec; /* enum codec */
};

/*
 * Opens or creates the environment in directory "index" below dir_fd. Mode 0600. -ERR_INDEX_BROKEN
 * for a file that is not LMDB's, was cut, or has a damaged page (noted). The noter is copied. For
 * tests the environment variable PLYFS_TEST_MAP_BYTES makes the map start small, so that
 * -ERR_INDEX_FULL is met.
 */
int index_open(int dir_fd, const struct noter *noter, struct index **ret);
void index_close(struct index *ix);

/* 0, ABSENT, or -ERR_INDEX_DAMAGED, ... */
int index_find_chunk(struct index *ix, const struct name *name, struct chunk_loc *ret);

/* Copies the record; *ret_value is malloced and given (free). 0, ABSENT or a failure. */
int index_get(struct index *ix, enum index_table table, const void *key, size_t key_len,
	      void **ret_value, size_t *ret_len);

/*
 * Each record of a table in key order, from one snapshot of the index. A damaged value arrives
 * with value NULL. fn's non-zero return stops and is returned. fn may read the index, not write.
 */
int index_each(struct index *ix, enum index_table table,
	       int (*fn)(void *arg, const void *key, size_t key_len, const void *value,
			 size_t value_len),
	       void *arg);
/* loc is NULL for a damaged entry. */
int index_each_chunk(struct index *ix,
		     int (*fn)(void *arg, const struct name *name, const struct chunk_loc *loc),
		     void *arg);

/*
 * Writing: one transaction at a time in the process; begin waits for the other. The thread that
 * began it ends it.
 */
int index_begin(struct index *ix, struct index_txn **ret);
int index_put_chunk(struct index_txn *t, const struct name *name, const struct chunk_loc *loc);
int index_del_chunk(struct index_txn *t, const struct name *name); /* 0 or ABSENT */
int index_put(struct index_txn *t, enum index_table table, const void *key, size_t key_len,
	      const void *value, size_t len);
int index_del(struct index_txn *t, enum index_table table, const void *key, size_t key_len);

/*
 * What was put into and deleted from the tables of records, in order, as FORMAT.md has it (struct
 * index_op_bytes, key, value): a transaction keeps a list of its own, which is what table.h writes
 * into the packs.
 */
struct index_ops {
	uint8_t *bytes; /* owned */
	size_t len, capacity;
};
int index_ops_add(struct index_ops *ops, bool put, enum index_table table, const void *key,
		  size_t key_len, const void *value, size_t len);
void index_ops_release(struct index_ops *ops);
const struct index_ops *index_txn_ops(const struct index_txn *t); /* lent until the next change */

/*
 * Ends the transaction either way; *t is NULL afterwards. MDB_MAP_FULL is -ERR_INDEX_FULL from
 * whichever call met it: abort, call index_grow, and do the transaction again.
 */
int index_commit(struct index_txn **t);
void index_abortp(struct index_txn **t);

/* Doubles the map. Waits for readers to leave. */
int index_grow(struct index *ix);

int index_count_chunks(struct index *ix, uint64_t *ret);

/* Looks through the pages on disk again, as at open: 0, -ERR_INDEX_BROKEN (noted), ... */
int index_check(struct index *ix);
