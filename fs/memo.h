/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What a view has to know again when its process died and another one goes on behind the same
 * mount: which object the kernel means by each node id, how far a restore had come, and what was
 * done for requests that were not answered yet. It lies in a shared memory file, of which somebody
 * who outlives us (the supervisor) keeps a descriptor.
 *
 * INVARIANTS
 *
 *  K1 Everything is written by plain stores in such an order that a kill between any two of them
 *     leaves something right: a record's node id last when it comes, its serial first when it goes;
 *     a directory's inode number while its state is one that is lost (it stays dead, if so).
 *  K2 A count of the kernel's references is raised before the reply and lowered after a FORGET: it
 *     may be too high after a kill (then a node lives until the view ends), never too low. So it is
 *     with opens, lowered after the reply to RELEASE, and a node's backing id, which is with them.
 *  K3 A request that changes something was done if and only if the record of the journal whose
 *     number its receipt has is there. What the answer needs is in the receipt before that record
 *     counts (journal.h), and stays until the answer was sent. So a request that comes again is
 *     either done, or answered as it would have been; never done twice. What no single record does
 *     has a receipt that says it was begun, and is not begun again.
 *  K4 The kernel sends what was read and not answered again before anything new (NOTIFY_RESEND), so
 *     at the first new request receipts that nobody asked for are of answered ones.
 *  K5 A restore: PREPARED, then its record, then the records of nodes, then SWITCHED, then the
 *     kernel is told, then NO_SWITCH. A kill behind its record is made good by the epoch way
 *     (switch.c), which is right whatever was told, and whatever part of the nodes' records was
 *     written.
 */

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "store/journal.h"

/* Another layout gets another number: a program takes over the views only of its own. */
#define MEMO_VERSION 4

/* The kernel takes some 1.5 KiB for each inode it knows, so nobody gets there. */
#define MEMO_NODES_MAX (1U << 24)

/* One for each thread that handles a changing request at this moment. */
#define MEMO_RECEIPTS 1024

/* As many threads as there are at most that wait in a view (readers.c), and some. */
#define MEMO_TELLERS 96

/* INIT as the kernel sent it; 104 bytes today. */
#define MEMO_INIT_MAX 512

enum memo_flags { /* of a node: see struct vnode */
	MEMO_HASHED = 1,
	MEMO_ORPHAN = 2,
	MEMO_ADOPTED = 4,
	MEMO_REMOVED = 8,
	MEMO_CHANGED = 32, /* in an older realm: its bytes are gone with the process */
	MEMO_DISPLACED = 64,
	MEMO_OPENED = 128, /* memo.opened has something of it */
	MEMO_DEAD = 256,
	MEMO_NEW_MODE = 512,
};

struct memo_node {
	_Atomic uint64_t node; /* 0: none */
	_Atomic uint64_t ino;
	_Atomic uint64_t nlookup;
	_Atomic uint64_t base; /* snapshot its realm began with (snap_need); 0: current */
	_Atomic uint32_t serial;
	_Atomic uint16_t type; /* S_IFMT bits */
	_Atomic uint16_t flags;
};

/* What a request did. */
enum memo_what {
	MEMO_NOTHING = 0,
	MEMO_ENTRY,  /* value: the inode number */
	MEMO_ATTR,   /* value: the node id */
	MEMO_DATA,   /* value: bytes */
	MEMO_REMOVE, /* a name or an attribute */
	MEMO_XATTR,
	MEMO_CHECKPOINT, /* journal.id */
	MEMO_FORK,
	MEMO_RESTORE, /* the values of memo_switch */
	MEMO_BEGUN,   /* memo_begins; no record tells whether it was done */
};

struct memo_switch {
	uint64_t target; /* snapshot */
	uint64_t left;   /* snapshot that undo brings back */
	uint64_t changed;
	uint32_t mode;   /* enum restore_mode */
};

enum memo_switch_state { MEMO_NO_SWITCH = 0, MEMO_PREPARED, MEMO_DONE, MEMO_SWITCHED };

struct memo_receipt {
	_Atomic uint64_t unique; /* of the request; 0: free */
	_Atomic uint32_t what;
	_Atomic bool stale; /* of a former process; nobody has asked for it yet */
	_Atomic uint64_t value;
	struct memo_switch restored;
	struct journal_receipt journal;
};

struct memo_head {
	char magic[8];
	uint32_t version;
	/* Set before `kept`, and constant after. */
	uint32_t init_len, has_epoch;
	uint8_t init[MEMO_INIT_MAX];
	/*
	 * The threads that tell the kernel what to forget, or 0. One that is killed there may have
	 * to wait for an answer of the next process before it is dead; it does nothing else then.
	 */
	_Atomic int32_t tellers[MEMO_TELLERS];
	_Atomic bool kept; /* INIT was answered: another process could go on */

	_Atomic bool keep_mounts; /* view_keep_mounts */
	_Atomic uint32_t n_slots; /* nodes at or beyond it were never used */
	_Atomic uint64_t target;  /* snapshot of the last restore, or 0 */

	/* The restore under way; under the view's switch_lock. */
	_Atomic uint32_t switch_state;
	_Atomic uint64_t switch_unique; /* the request; 0: no ioctl's */
	struct memo_switch switched;
	struct journal_receipt switch_journal; /* id: the state that is left */
};

struct memo {
	int fd; /* immutable, owned; -1 once it was closed */
	struct memo_head *head;         /* immutable, mapped, like the rest */
	struct memo_receipt *receipts;
	struct memo_node *nodes;
	/* By node as well: backing id and count of opens (pass.c) in high and low half. */
	_Atomic uint64_t *opened;
	_Atomic bool any_stale;
};

/* A new one, empty. */
int memo_new(struct memo **ret);
/* What is behind a descriptor (taken): -ERR_MEMO when it is none that we understand. */
int memo_open(int fd, struct memo **ret);
void memo_close(struct memo *m);
static inline void memo_closep(struct memo **m)
{
	if (*m)
		memo_close(*m);
}

/*
 * What comes of a former process, before anything else is done: lsn as store_options.recovered has
 * it. Done again with the same number, it changes nothing.
 */
void memo_recovered(struct memo *m, uint64_t lsn);

/*
 * The calling thread begins, or ends, to tell the kernel what may have to wait for other requests.
 * m may be NULL.
 */
void memo_tells(struct memo *m, bool begins);
/* Does that thread, as one who only has the descriptor sees it? */
bool memo_is_teller(int fd, int32_t tid);

/* A restore was done for r, a request that waits for its answer (NULL: nobody does). */
void memo_restored(struct memo_receipt *r, const struct memo_switch *restored, uint64_t lsn);

/*
 * The calling thread handles a request that may change something, until memo_request_end, which
 * comes after its answer. m may be NULL: then all this does nothing, and nothing was ever done.
 */
void memo_request_begin(struct memo *m, uint64_t unique, bool resent);
void memo_request_end(void);
/* A new request (not a resent one) was read: K4. */
void memo_request_is_new(struct memo *m);

/* For the verbs, in whatever request the calling thread is; outside of one they do nothing. */

/* Was it done before the last process ended? *ret_value (may be NULL): what memo_did had. */
bool memo_was_done(enum memo_what what, uint64_t *ret_value);
/* The journal's next record of this thread is the request's; only the first of its verbs counts. */
void memo_expect(void);
void memo_expect_end(void *unused);
/* What the answer will be made of; before the record. */
void memo_did(enum memo_what what, uint64_t value);
/*
 * For what no single record does: from here on it counts as begun, and is never begun again. False:
 * that was so already, and nobody knows how far it came.
 */
bool memo_begins(void);
struct memo_receipt *memo_receipt(void); /* lent; NULL outside of a request */
