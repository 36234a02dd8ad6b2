/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Private to index_env.c, which has the LMDB environment (opened, opened anew, grown, kept whole),
 * and index.c, which reads and writes it.
 *
 * One LMDB environment with four tables. LMDB gives atomic, durable commits and readers that never
 * wait; what it lacks is added here:
 *
 *   1. a checksum behind each value, seeded with its key, so that neither a flipped bit nor a value
 *      that strayed to another key is believed;
 *   2. a look at every page before LMDB believes any of them (index_verify.c): a damaged one is a
 *      refusal to open, with one line, and not the end of the process or wrong writes later;
 *   3. no read through the map beyond the end of the file (that would be SIGBUS, the death of every
 *      mount): the file always covers the pages that the last commit counts. One that is shorter
 *      than it was has been cut by somebody, and takes no more commits: a commit would fill the
 *      gap with zeros, and the store would let go of the journal for it. At open, one that lacks
 *      pages is refused, unless those are listed as free: a crash behind the commit that gave them
 *      back. See index_cover(), index_verify.c;
 *   4. nobody looks at the map while index_grow() replaces it: readers hold map_lock for reading,
 *      the writer is excluded by write_lock;
 *   5. reading goes on after a commit that failed. LMDB refuses everything once it could not write
 *      its meta page, so the environment is opened anew, from what the map shows; who would read
 *      meanwhile waits. See index_reopen(), reader_begin();
 *   6. nothing is written after a commit that failed until it is certain that the old one stands,
 *      on the disk as well as in the map. See index_settle().
 *
 * Lock order: write_lock > map_lock > pool_lock. A callback of index_each*() may read the index but
 * not write it: index_begin would wait for a grow that waits for that very reader.
 *
 * Crash: between any two steps the old or the new commit stands, LMDB's own promise.
 */

#include <lmdb.h>
#include <pthread.h>

#include "store/base/note.h"
#include "store/index.h"

/* LMDB's default: readers are short, so more would mean that more threads read at one instant. */
#define READERS_MAX 126

#define TABLES 3

struct index {
	/* Under map_lock, with the map behind it; owned. NULL: it could not be opened anew. */
	MDB_env *env;
	MDB_dbi chunks;      /* likewise */
	MDB_dbi tables[TABLES]; /* likewise, by enum index_table */
	uint64_t page_bytes; /* immutable */
	int data_fd;         /* likewise, LMDB's own */
	int dir_fd;          /* immutable, owned: directory "index" */
	struct noter noter;  /* immutable */

	pthread_mutex_t write_lock; /* held by whoever has the write transaction */
	uint64_t span;              /* under write_lock: bytes that the last commit's pages span */
	uint64_t seen;              /* under write_lock: bytes of the file when we looked last */
	/* Changes under write_lock: LMDB's number of the last good commit. */
	_Atomic uint64_t last_txn;
	bool doubt;                 /* under write_lock: one failed since, invariant 6 */
	pthread_rwlock_t map_lock;

	pthread_mutex_t pool_lock;
	pthread_cond_t pool_returned;
	MDB_txn *pool[READERS_MAX]; /* under pool_lock: reset read transactions, owned */
	unsigned pooled, made;      /* under pool_lock */
	/* How often env was opened anew; changes under map_lock and pool_lock: either will do. */
	uint64_t reopened;
	pthread_cond_t was_reopened; /* with pool_lock */
};

/* ---- index_env.c ---- */

extern const char *const index_table_names[TABLES];

/* LMDB's code as ours, and a note that begins with `what`: its codes stop here. */
int index_fail(struct index *ix, int rc, const char *what);

/* Those below: write_lock held. */

/* After a commit: the bytes that its pages span. */
void index_measure(struct index *ix);
/* LMDB's number of the last commit; 0: unknown. */
uint64_t index_last_txn(struct index *ix);
/*
 * Keeps invariant 3: extends the file (never shrinks it: LMDB spills pages beyond the last commit's
 * end during a transaction). Called before and after a commit; what happens to fail here would only
 * matter together with a crash right after, and the commit itself must not fail for it. What it
 * refuses is a file that was cut: it is shorter than its pages, and than it was (at open: than when
 * index_verify() passed it); no look at the map, which would be SIGBUS.
 */
int index_cover(struct index *ix);
/*
 * Keeps invariant 5, after a commit that failed. A failure leaves no environment: reads fail until
 * the next transaction, which tries again.
 */
int index_reopen(struct index *ix);
/* Keeps invariant 6: nothing is in doubt any more, or -errno. */
int index_settle(struct index *ix);

/* ---- index.c ---- */

/* Read transactions keep their slot while they rest in the pool; this gives all of them back. */
void index_pool_empty(struct index *ix);
