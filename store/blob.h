/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Blobs: file bytes that were written but are not a chunk yet.
 *
 * A blob is up to BLOB_MAX bytes in a file of the stage (stage.h). Tree items refer to blobs by
 * pointer; the sealer turns each blob that a frozen tree needs into a chunk, after which the blob
 * reads from the chunk and its room in the stage is given back. A blob whose last reference goes
 * before it was sealed never reaches a pack: overwritten data costs nothing.
 *
 * Life: OPEN (may grow and be written in place) -> SEALING (bytes fixed) -> SEALED (has a name).
 *
 * Threads: every function is safe from any thread.
 */

#include "store/hash.h"
#include "store/stage.h"

struct blob;

#define BLOB_MAX (128 * 1024) /* = CHUNK_MAX: one blob becomes one chunk */

/*
 * The blob that began at a place of a file when its record was written, with at least len bytes by
 * then: the same object for the same place. ABSENT: there are no such bytes. Given. While a store
 * is opened, by one thread; stage_adopted ends that.
 */
int blob_adopt(struct stage *s, uint32_t file, uint32_t off, uint32_t len, struct blob **ret);
void stage_adopted(struct stage *s);

/*
 * A blob with a copy of len (1 to BLOB_MAX) bytes; one reference, given. What a record of a branch
 * will refer to is made under that branch's lock (stage_internal.h, 9). -ENOSPC when the disk
 * has less room left than sealing what is staged would take (a reserve is kept so that commits,
 * drop and gc go on working).
 */
int blob_new(struct stage *s, const void *data, size_t len, struct blob **ret);
struct blob *blob_ref(struct blob *b);
void blob_unref(struct blob *b);
static inline void blob_unrefp(struct blob **b)
{
	if (*b)
		blob_unref(*b);
}

uint32_t blob_len(const struct blob *b);
/* Where its bytes are, or were before it was sealed. */
void blob_place(const struct blob *b, uint32_t *ret_file, uint32_t *ret_off);

/* True when the caller's reference is the only one, so that nobody else can see a change. */
bool blob_is_sole(const struct blob *b);

/*
 * Adds bytes at its end, which the caller takes to be `at`. AGAIN when it cannot grow (sealing or
 * sealed, full, or other data follows it in the stage), and when another owner appended meanwhile,
 * for a branch of its own: make a new blob. Earlier bytes never move, so references to a prefix
 * stay right and other owners may exist.
 */
int blob_append(struct blob *b, uint32_t at, const void *data, size_t len);

/*
 * False: another one was placed behind it, so blob_append would say AGAIN. The blob itself is not
 * looked at: it may be one of thousands, and in no cache.
 */
bool stage_may_append(struct stage *s, const struct blob *b);

/* Overwrites bytes inside; only for a sole owner. AGAIN when sealing, sealed, or made durable. */
int blob_write(struct blob *b, uint32_t off, const void *data, size_t len);

/* True: blob_write would say AGAIN, and will ever after. False may change at any time. */
bool blob_is_fixed(const struct blob *b);

/* Reads len bytes at off; off + len must lie within blob_len. */
int blob_read(struct blob *b, uint32_t off, void *buf, size_t len);

/*
 * Bytes of blobs where they are, in the page cache. While a loan lasts they stay there, also when
 * their blobs are sealed or go, and unchanged as long as the borrower has references to these. They
 * are for the kernel alone (writev), and at once: it finds their pages mapped. Without them it
 * fails a request whose reply they are when the disk cannot give them any more, and also when the
 * thread was killed; and who touches them himself then gets a SIGBUS. One thread's; all zero:
 * nothing is lent.
 */
#define LOAN_FILES 8 /* unsealed data lies in some four, and those that are about to be left */
struct loan {
	struct stage *stage; /* borrowed */
	struct stage_file *files[LOAN_FILES];
	uint64_t ends[LOAN_FILES]; /* where each ended when it came in, or its mapping does */
	unsigned n;
};
/* As blob_read. NULL: read them (sealed, pending as the disk is full, in a file too many). */
const void *blob_lend(struct blob *b, uint32_t off, size_t len, struct loan *loan);
void loan_end(struct loan *loan);

/*
 * Makes it a chunk (idempotent, one caller at a time: the sealer). Hash, compare, pack. ABSENT: its
 * bytes could not be read for several rounds and are given up, so that all else can be saved: the
 * name is that of a lost chunk. AGAIN: they cannot be read, but that may pass.
 */
int blob_seal(struct blob *b, struct name *ret_name);

/* True and the chunk's name once it is sealed; any thread, no disk. */
bool blob_name(const struct blob *b, struct name *ret_name);
