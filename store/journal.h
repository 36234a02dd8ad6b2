/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The journal: what was acknowledged and is not in the index yet, as records in one order.
 *
 * A record is copied into a mapped file, so it is in the kernel's page cache when the copy is done:
 * it survives the death of the daemon at any instruction, without a disk wait. journal_mark()
 * makes everything appended so far survive the loss of power too.
 *
 * What records mean is not known here (oplog.h, tableop.h).
 *
 * Threads: every function from any thread, unless said otherwise.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct journal;
struct journal_mark_bytes;
struct noter;

/*
 * A segment is one file of the journal. 4 MiB are some ten thousand operations: making one costs
 * 0.1 ms, and a small disk does not lose much to it.
 */
#define SEGMENT_BYTES ((size_t)4 << 20)

/*
 * Beyond WANTS_ROUND the sealer is asked to catch up, beyond BEHIND writers wait for it, and at
 * LIMIT (the sealer cannot commit) changes fail with -ENOSPC. Replay takes about 2 us a record of
 * some 300 bytes: half a second for BEHIND bytes, 2 s at the very worst.
 */
#define JOURNAL_WANTS_ROUND ((uint64_t)24 << 20)
#define JOURNAL_BEHIND ((uint64_t)64 << 20)
#define JOURNAL_FAR_BEHIND ((uint64_t)128 << 20) /* ... also those who bring little (view.c) */
#define JOURNAL_LIMIT ((uint64_t)256 << 20)

enum journal_kind {
	JOURNAL_CHANGE = 1, /* one operation on a branch's tree: oplog.h */
	JOURNAL_TABLE = 2,  /* snapshots and branches: tableop.h */
	JOURNAL_MARK = 3,   /* what was appended before is durable; see journal_mark() */
};

/* What a record takes beside its payload, padding included. */
#define RECORD_OVERHEAD 32

/*
 * Opens (makes) directory "journal" below dir_fd, which is borrowed until close. Reads nothing but
 * the headers.
 */
int journal_open(int dir_fd, const struct noter *noter, struct journal **ret);
/* Segments whose records are all covered are deleted, others stay for the next replay. */
void journal_close(struct journal *j);
static inline void journal_closep(struct journal **j)
{
	if (*j)
		journal_close(*j);
}

/* What journal_read met. */
struct journal_found {
	uint64_t records; /* that were handed out */
	uint64_t lost;    /* whole records that were given up: not synced before the power went */
	bool damaged;     /* there are records behind a place that cannot be read */
	uint32_t segment; /* of that place */
	bool missing;     /* the file of that segment is not there */
	bool behind;      /* it was the first: see journal_follows */
};

/*
 * Before journal_read: no record beyond `covered` was let go of (J6). A journal that begins behind
 * that is damaged: its oldest segments are gone, or the index is older than it, as in a store that
 * was copied while it was in use.
 */
void journal_follows(struct journal *j, uint64_t covered);

/*
 * Hands out each record but marks, in order; fn's < 0 stops and is returned. Once, before
 * journal_start. Same boot as when they were written: up to the last whole record. Another boot:
 * up to the last mark. A record that is not whole is the end, like one that was never begun.
 *
 * Another boot: before all that come the marks (JOURNAL_MARK; payload: struct journal_mark_bytes)
 * whose bytes are the only ones sure to be there. They are to be put in place, in order, and synced
 * before journal_start.
 */
int journal_read(struct journal *j,
		 int (*fn)(void *arg, uint64_t lsn, enum journal_kind kind, const uint8_t *payload,
			   size_t len),
		 void *arg, struct journal_found *ret);

/*
 * The same for records after number `from` that are there by now, in an open store: what a replay
 * would get. journal_release must not be called meanwhile.
 */
int journal_each(struct journal *j, uint64_t from,
		 int (*fn)(void *arg, uint64_t lsn, enum journal_kind kind, const uint8_t *payload,
			   size_t len),
		 void *arg);

/* Records may be appended from now on, with numbers above `floor` and above all that were read. */
void journal_start(struct journal *j, uint64_t floor);

/*
 * Room for records: sets `bytes` aside (payload and RECORD_OVERHEAD each), so that appending cannot
 * fail. -ENOSPC, ... small: for a record of the table; it may use the last piece of a segment,
 * so that a drop, which makes room, still works where nothing else does.
 */
int journal_reserve(struct journal *j, size_t bytes, bool small);
void journal_unreserve(struct journal *j, size_t bytes);

/*
 * Appends a record into `reserved` bytes set aside, which are given back. fill (may be NULL) is
 * called when the number is taken and before the payload is copied, to change it still. The
 * number is stored to *last (may be NULL) before anyone can learn it from journal_lsn.
 */
uint64_t journal_append(struct journal *j, enum journal_kind kind, const void *payload, size_t len,
			size_t reserved, void (*fill)(void *arg), void *arg,
			_Atomic uint64_t *last);

/*
 * For whoever has to know after a crash whether an operation was done: this lies in memory that
 * outlives the process.
 */
struct journal_receipt {
	_Atomic uint64_t lsn; /* the number of its first record, set before that record counts */
	_Atomic uint64_t id;  /* of the snapshot that it made, kept or left; set before lsn */
};
/*
 * The next record of the calling thread (marks aside) leaves its number in *r, which is borrowed
 * until then or until the next call; NULL: no more.
 */
void journal_receipt_wanted(struct journal_receipt *r);
/* The snapshot that the next record is about, if a receipt is wanted. */
void journal_receipt_id(uint64_t id);

/* The number of the last record. */
uint64_t journal_lsn(struct journal *j);
/*
 * The number of the last record that is no mark, to look at without the lock: when it has n, record
 * n is whole, or its fill is to come, or it has none.
 */
const _Atomic uint64_t *journal_last_peek(struct journal *j); /* lent */

/*
 * Everything up to `covered` is in the index: segments that hold nothing beyond are let go of, with
 * no lock while their files go. One caller at a time.
 * True: one would go, but for bytes in its marks (J9): journal_copies_in_place.
 */
bool journal_release(struct journal *j, uint64_t covered);
/* Whatever marks have of the stage was synced there. */
void journal_copies_in_place(struct journal *j);

/* Bytes of segments that are not let go of yet. No lock. */
uint64_t journal_bytes(struct journal *j);
/* True once after it grew beyond another JOURNAL_WANTS_ROUND. No lock. */
bool journal_wants_round(struct journal *j);

/*
 * A group commit in three steps: `lsn` = journal_lsn(), then the caller syncs the bytes that
 * records up to it refer to, then journal_mark() writes a mark that says so and syncs the journal.
 *
 * Or the bytes that are not synced yet go into the mark: `copy` (borrowed; NULL: there is none; its
 * lsn is set here), with len bytes behind its head. It counts on those of earlier marks.
 */
int journal_mark(struct journal *j, uint64_t lsn, struct journal_mark_bytes *copy, size_t len);
/*
 * A sync of what records refer to failed, here or at the caller's: until everything appended so far
 * is covered, and what came until then as well, journal_mark fails with -EIO (J8).
 */
void journal_sync_failed(struct journal *j);
/* The last number that is durable. */
uint64_t journal_synced(struct journal *j);
