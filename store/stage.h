/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The stage: plain files stage/NNN in the store that hold what was written and is no chunk yet.
 * They are written with pwrite, so the bytes are in the kernel's page cache, not in our heap. A
 * file's room is used again when no unsealed blob (blob.h) lies in it and no record of the journal
 * that still counts may refer to it.
 *
 * Threads: every function is safe from any thread.
 */

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct chunks;
struct journal_mark_bytes;
struct noter;
struct stage;

/*
 * Files that an earlier daemon left are there for blob_adopt. They may be all there is of what was
 * answered: nothing is deleted until stage_hold has said what files are kept for.
 */
int stage_open(int dir_fd, struct chunks *chunks, const struct noter *noter, struct stage **ret);
/* One thread is left, and blobs are about to go with the state that has them. */
void stage_end(struct stage *s);
/* All blobs must be gone. Deletes the files, but those that stage_hold still keeps. */
void stage_close(struct stage *s);

/*
 * From now on a file stays until the records that *lsn (borrowed; NULL: no journal) counted when
 * its last blob went are covered: stage_release says up to where they are.
 */
void stage_hold(struct stage *s, const _Atomic uint64_t *lsn);
void stage_release(struct stage *s, uint64_t covered);
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
 * Instead of stage_sync, where little was written: what that would write, for a mark of the journal
 * (given: free; *ret_len bytes are behind its head). NULL: it is too much, or there is something
 * else to sync.
 */
struct journal_mark_bytes *stage_copy(struct stage *s, size_t *ret_len);
/* After either, once the mark is durable that says so. Without, a later copy has all that again. */
void stage_is_durable(struct stage *s);
/* While a store is opened: puts it back; stage_sync afterwards. -errno: there is no room. */
int stage_put_back(struct stage *s, const struct journal_mark_bytes *copy, size_t len);

/*
 * What new blobs may take of the disk's free bytes, not all at once: until one is sealed its bytes
 * are there twice.
 */
int stage_room(struct stage *s, uint64_t *ret_bytes);
/* Bytes of blobs that are not sealed, and bytes of stage files on disk. */
void stage_stats(struct stage *s, uint64_t *ret_unsealed, uint64_t *ret_disk);
/*
 * More waits here than should, to be sealed or, deleted since, for its records to be covered:
 * whoever writes waits for a round of the sealer. No lock: each write of a view looks.
 */
bool stage_is_behind(struct stage *s);
/* And a quarter more, or on a disk with little room: who brings little (fs/view.c) waits too. */
bool stage_is_far_behind(struct stage *s);
/*
 * Room on disk that nothing lives in is kept for what comes next. This gives it back: at once, or
 * if nothing came for some time, or on a disk that is nearly full. Without it at most three files'
 * worth stays, after stage_release. Neither has a lock while the disk takes back what goes.
 */
void stage_give_back(struct stage *s, bool at_once);

/* What cannot be read in the next round is given up at once. */
void stage_give_up(struct stage *s);
/* True once after something was given up: how much since then. */
bool stage_gave_up(struct stage *s, uint64_t *ret_bytes);

/*
 * Write-behind. Bytes for blobs that lie in a *slot*, memory from here, may stay there until the
 * request they came with was answered; killed or not, the daemon loses none of them. The first
 * STAGE_SLOT_HEAD bytes of a slot are the stage's, the rest is for a request as it was read, or, if
 * that is elsewhere, for its bytes.
 */
#define STAGE_SLOT_HEAD 1024
#define STAGE_SLOT_BYTES (4096 + 1024 * 1024)

/* Page aligned; NULL: there is none, which costs time only. */
uint8_t *stage_slot_take(struct stage *s);
void stage_slot_give(struct stage *s, uint8_t *slot);
/* The calling thread's requests are in it from now on; NULL: in none. */
void stage_slot_serve(struct stage *s, uint8_t *slot);
/* They are not, and nothing else is: some of their bytes are put into it, as that is quicker. */
void stage_slot_serve_beside(struct stage *s, uint8_t *slot);
/*
 * After each answer. -errno: some bytes could not be copied and are needed where they are; another
 * slot, or memory, for the next request, and stage_slot_give_up. fsync fails until they are copied.
 */
int stage_slot_served(struct stage *s);
void stage_slot_give_up(struct stage *s, uint8_t *slot);
