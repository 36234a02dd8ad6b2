/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The operation log of a branch's tree: what one operation puts and deletes, collected while it
 * runs, and written as one record of the journal when it is over. So an operation is replayed whole
 * or not at all. It remembers what was there before, too, so that an operation which cannot go
 * on is not done at all.
 *
 * Bytes in blobs are not copied: the record says where they lie in the stage, and which chunk they
 * became, if they did.
 *
 * Wants the tree's write lock.
 */

#include <stdatomic.h>

#include "store/tree.h"

struct journal;
struct oplog;
struct stage;

/*
 * j NULL: there will be no record, only the way back. branch: its name, copied. *last is set to the
 * number of each record; borrowed until free.
 */
int oplog_new(struct journal *j, const char *branch, _Atomic uint64_t *last, struct oplog **ret);
/* Nothing may be collected (oplog_end). */
void oplog_free(struct oplog *l);

/*
 * Called by the tree before it changes, with what is there now (NULL: nothing): -ENOSPC and -ENOMEM
 * refuse the change. What was collected is sure to reach the journal.
 */
int oplog_put(struct oplog *l, const struct key *k, const struct val *v, const struct val *old);
int oplog_del(struct oplog *l, const struct key *k, const struct val *old);
/* Takes the last call back: the change was not made after all. */
void oplog_undo(struct oplog *l);

/*
 * The operation failed half-way: the tree gets back what it had, and there will be no record.
 * Cannot fail: it reads nothing, and where it wants memory (nodes that merged meanwhile split
 * again) it waits for it. t's log is l.
 */
void oplog_take_back(struct oplog *l, struct tree *t);

/*
 * The operation is over: its record is appended, if it changed anything. changes: the branch's
 * count of visible changes; next_ino: no inode number from here on was given out.
 */
void oplog_end(struct oplog *l, uint64_t changes, uint64_t next_ino);

/* ---- the same items in other records, and reading them ---- */

/* Each chunk that items name. -ERR_JOURNAL_DAMAGED; fn's < 0 stops and is returned. */
int oplog_each_chunk(const uint8_t *items, size_t len,
		     int (*fn)(void *arg, const struct name *name), void *arg);

/*
 * Appends the items of a whole tree to *buf (malloced, grown); -E2BIG beyond max bytes. Blobs are
 * not allowed for: -EINVAL.
 */
int oplog_dump(struct tree *t, size_t max, uint8_t **buf, size_t *len);

struct oplog_head {
	const char *branch; /* lent, not terminated */
	size_t branch_len;
	uint64_t changes, next_ino;
	const uint8_t *items;
	size_t items_len;
};
/* -ERR_JOURNAL_DAMAGED */
int oplog_decode(const uint8_t *payload, size_t len, struct oplog_head *ret);

/*
 * Applies items to a tree without a log. l has no journal: the way back, empty again afterwards.
 * Blobs are found again in the stage, or are chunks by now. -ERR_JOURNAL_DAMAGED, or what the tree
 * says: it is as it was.
 */
int oplog_apply(struct oplog *l, struct tree *t, struct stage *stage, struct chunks *chunks,
		const uint8_t *items, size_t len);
