/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Private to journal.c, which writes segments, journal_read.c, which reads them back, and
 * journal_lost.c: what damage took.
 *
 * INVARIANTS
 *
 *  J1 Records have consecutive numbers (LSN) in the order of their effects on any one thing.
 *  J2 A record counts only whole: its checksum covers number, kind and payload, under a seed that
 *     is its segment's own. A copy that was cut short by SIGKILL, and what a recycled file held
 *     before, are therefore the end of a segment.
 *  J3 A segment's header says after which record it goes on (`after`). What an earlier segment
 *     holds beyond that was given up by the daemon that made the later one, for good. A new daemon
 *     never writes into an old one's segment; it cuts off what has no record.
 *  J4 Space is set aside before an operation changes anything, so appending cannot fail: the
 *     present segment has room for all that is set aside. Blocks are allocated when it is made, and
 *     where that is no promise (btrfs) its pages are made writable when room is set aside.
 *  J5 A mark with value n is appended only after the bytes that records up to n refer to were
 *     synced: whoever finds the mark on disk knows that they are. But a mark may have some of them
 *     in itself (a *copy*): then they are where it says once it, and the copies of all marks before
 *     it up to one without (a *whole* mark), were put there, in this order. A copy's end may be of
 *     bytes that were just being written; no record up to n refers to those, and the next copy has
 *     them again.
 *  J6 A segment is deleted (or recycled) only when each of its records is covered: its effect is in
 *     the index. The caller says so with journal_release. No number that goes so is beyond the one
 *     that the index has by then (`lsn` in meta): by that a journal without its beginning is known.
 *  J7 Before a mark is appended, every segment before its own is durable, and so are all names, the
 *     absence of those that went included. So what a power cut leaves in pieces, or brings back, is
 *     followed by no mark, but by one that was under way in the same segment. For the same reason
 *     a file is written over under a new number only when it is durable that it lost the old one.
 *  J8 After a sync, or a write, that failed nobody knows what the disk has, and a later one that
 *     succeeds does not say (the pages count as clean). So a new segment is begun, and no mark is
 *     made until the older ones are gone (a reader may end in one) and all that they had is
 *     covered; and then what came meanwhile as well, as that may refer to the same bytes of the
 *     stage. What comes later finds chunks instead.
 *  J9 A segment with a copy goes when the stage was synced after that, or nothing is left that is
 *     not covered: a record behind it may refer to bytes of the same blob, which grew.
 *  J10 Who finds another boot's journal puts the copies that count in place, and syncs them, before
 *     he makes a segment. So where the boot id changes between two segments copies before that do
 *     not count: by the second's `after` the last of them may be cut off.
 *
 * A segment is OPEN (the last one, mapped), then FULL, then gone; one of the normal size is kept,
 * as file "spare", so that a full disk does not stop the journal that could help to empty it.
 */

#include <pthread.h>
#include <stdatomic.h>

#include "store/boot.h"
#include "store/base/note.h"
#include "store/base/util.h"
#include "store/format.h"
#include "store/journal.h"

#define RECORD_HEADER sizeof(struct journal_record_bytes)
#define PAD8(n) (((n) + 7) & ~(size_t)7)
_Static_assert(RECORD_OVERHEAD >= sizeof(struct journal_record_bytes) + 7, "header and padding");

/* Files that are no segment: one to be used again, and one that is being made. */
#define SPARE "spare"
#define ANEW "new"

struct segment {
	struct segment *next; /* newer */
	uint32_t number;
	size_t size;         /* of the file */
	size_t used;         /* the next record goes here */
	uint64_t after, base, synced; /* as in the header */
	uint64_t last;       /* number of its last record; base when it has none */
	uint64_t limit;      /* while reading: later ones are given up (J3) */
	uint64_t seed;       /* J2 */
	uint64_t copied;     /* number of its last mark with a copy; 0: it has none */
	uint8_t boot[BOOT_BYTES]; /* as in the header */
};

struct journal {
	int dir_fd; /* immutable, owned: "journal" */
	struct noter noter;
	uint8_t boot[BOOT_BYTES]; /* immutable */
	size_t segment_bytes;     /* immutable: SEGMENT_BYTES, but in tests */
	bool in_place;            /* immutable: OS_IN_PLACE */

	pthread_mutex_t lock; /* everything below */
	struct segment *oldest, *newest;
	uint32_t last_number;
	int fd;       /* of the open segment, which is `newest` when map is set */
	uint8_t *map; /* NULL: the next record needs a new segment */
	size_t warm;  /* zeros were written up to here, but for the records; >= used */
	size_t reserved;
	uint64_t lsn;          /* of the last record */
	_Atomic uint64_t last; /* of those that are no marks; written under the lock */
	uint64_t read_last; /* the last record that was read and kept */
	uint64_t begins;    /* the first segment goes on after this record, or an earlier one */
	struct segment *damaged; /* where reading ended for damage, in the list; and the place */
	size_t damaged_at;
	bool fresh;         /* no segment was made since: its base may be ahead of `after` */
	uint64_t covered;
	uint64_t whole_mark; /* copies before this record do not count (J5, J9, J10) */
	_Atomic uint64_t synced; /* records up to it, or what they did, are durable */
	_Atomic uint64_t bytes;
	uint64_t asked_bytes; /* when a round was last asked for */
	atomic_bool wants_round;
	bool spare;           /* there is a spare file, of segment_bytes */
	bool spare_ready;     /* and it is durable that it is (J7) */

	pthread_mutex_t mark_lock; /* one commit at a time; before `lock` */
	/* under lock; changed under both: */
	uint32_t whole; /* segments below this number are synced */
	bool settled;   /* all before the newest are, and the directory (J7) */
	bool torn;      /* a sync or a write failed: what was appended may never reach the disk */
	uint64_t doubt; /* records up to it may not be there: no mark until they are covered (J8) */
	bool doubt_grows; /* once, when they are */
	uint32_t sound; /* segments below this number may be torn */
};

void segment_name(uint32_t number, char buf[static 16]);

/* Of a file of so many bytes. No segment is longer than the journal: what is behind is not ours. */
static inline size_t segment_size(off_t file)
{
	return (size_t)MIN((uint64_t)file, JOURNAL_LIMIT);
}

/* The record at `at`, if it is whole: its length in the segment, else 0. */
size_t record_at(const struct segment *s, const uint8_t *bytes, size_t at, uint64_t *ret_lsn,
		 enum journal_kind *ret_kind, size_t *ret_len);

/*
 * Behind the end of a segment may be anything that was ever written to a view, as files are used
 * again: also what looks like the beginnings of long records, as close as they can be. All real
 * ones together are hashed once, and a few by accident; no more than so many times the segment (5
 * ms for one of the normal size), or opening would take half a minute. Who makes so many of them
 * hides what damage did behind them.
 */
#define HASHED_MAX 16

/* All bytes of a segment's file; what cannot be read is a note and a failure. Given: free. */
int segment_load(struct journal *j, const struct segment *s, uint8_t **ret);
