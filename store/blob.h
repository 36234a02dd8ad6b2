/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Blobs: file bytes that were written but are not a chunk yet.
 *
 * A blob is up to BLOB_MAX bytes in a *stage* file (plain files stage/NNN in the store, written
 * with pwrite, so the bytes are in the kernel's page cache, not in our heap). Tree items refer to
 * blobs by pointer; the sealer turns each blob that a frozen tree needs into a chunk, after which
 * the blob reads from the chunk and its stage space is given back. A blob whose last reference
 * goes before it was sealed never reaches a pack: overwritten data costs nothing.
 *
 * Life: OPEN (may grow and be written in place) -> SEALING (bytes fixed) -> SEALED (has a name).
 * A stage file's room is used again when no unsealed blob lies in it and no record of the journal
 * that still counts may refer to it.
 *
 * Threads: every function is safe from any thread.
 */

#include "store/hash.h"

struct blob;
struct stage;
struct chunks;
struct noter;

#define BLOB_MAX (128 * 1024) /* = CHUNK_MAX: one blob becomes one chunk */

/*
 * Files that an earlier daemon left are there for blob_adopt. They may be all there is of what was
 * answered: nothing is deleted until stage_hold has said what files are kept for.
 */
int stage_open(int dir_fd, struct chunks *chunks, const struct noter *noter, struct stage **ret);
/* All blobs must be gone. Deletes the files, but those that stage_hold still keeps. */
void stage_close(struct stage *s);

/*
 * From now on a file stays until the records that *lsn (borrowed; NULL: no journal) counted when
 * its last blob went are covered: stage_release says up to where they are.
 */
void stage_hold(struct stage *s, const _Atomic uint64_t *lsn);
void stage_release(struct stage *s, uint64_t covered);
/* Bytes of files that wait so, and others that are of no blob. No lock. */
uint64_t stage_held(struct stage *s);
/*
 * New blobs go to another file from now on: the sealer's rounds begin so. Else one file would take
 * all of them, never be empty, and want new pages for each byte until it is full.
 */
void stage_turn(struct stage *s);

/*
 * What was written so far becomes durable: between two calls of stage_hold_still nothing is
 * overwritten in place (and the caller notes the journal's last number), then stage_sync. Bytes
 * from before the second call are never overwritten.
 */
void stage_hold_still(struct stage *s, bool still);
int stage_sync(struct stage *s);

/*
 * The blob that began at a place of a file when its record was written, with at least len bytes by
 * then: the same object for the same place. ABSENT: there are no such bytes. Given. While a store
 * is opened, by one thread; stage_adopted ends that.
 */
int blob_adopt(struct stage *s, uint32_t file, uint32_t off, uint32_t len, struct blob **ret);
void stage_adopted(struct stage *s);

/* Bytes of blobs that are not sealed, and bytes of stage files on disk. */
void stage_stats(struct stage *s, uint64_t *ret_unsealed, uint64_t *ret_disk);
/* The former alone, without a lock: each write of a view looks. */
uint64_t stage_unsealed(struct stage *s);
/*
 * Room on disk that nothing lives in is kept for what comes next. This gives it back: at once, or
 * if nothing came for some time. Without it at most three files' worth stays.
 */
void stage_give_back(struct stage *s, bool at_once);

/*
 * A blob with a copy of len (1 to BLOB_MAX) bytes; one reference, given. -ENOSPC when the disk
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
 * Makes it a chunk (idempotent, one caller at a time: the sealer). Hash, compare, pack. ABSENT: its
 * bytes could not be read for several rounds and are given up, so that all else can be saved: the
 * name is that of a lost chunk. AGAIN: they cannot be read, but that may pass.
 */
int blob_seal(struct blob *b, struct name *ret_name);
/* What cannot be read in the next round is given up at once. */
void stage_give_up(struct stage *s);
/* True once after something was given up: how much since then. */
bool stage_gave_up(struct stage *s, uint64_t *ret_bytes);

/* True and the chunk's name once it is sealed; any thread, no disk. */
bool blob_name(const struct blob *b, struct name *ret_name);
