/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Write-behind: a write may be answered before its bytes are copied to the stage.
 *
 * Until then they are in a *slot*, which is mapped from the file stage/behind and says of itself
 * which of its bytes belong where. So a daemon may be killed between: the next open makes the
 * copies (behind_recover). After a power cut that file may have anything; the boot's id in it
 * tells. The kernel put them there if the request was read into the slot; else behind_leave does
 * where they are few, as they are quicker there than in the stage's file.
 *
 *   1. Bytes are pending from behind_leave() until somebody has copied them: the thread that serves
 *      the slot, after its answer, or whoever needs them earlier (behind_settle). Nobody waits for
 *      anybody but for a copy that is being made: a slot's lock is a leaf.
 *   2. Whoever reads, overwrites or syncs bytes of the stage settles first. As each does so after
 *      it found the place (in a blob), and a place is found only after behind_leave(), none is
 *      missed. Where that fails, reads take what is pending from the slots, so that it can be
 *      sealed, into a pack, all the same; what is pending is not overwritten, and no sync is true.
 *   3. Bytes of a blob that goes are no longer pending (behind_cancel) before its room is used
 *      again; nor those of a file, as a daemon that was killed may have left some of no blob.
 *   4. A slot whose bytes could not be copied (the disk is full) is not used for another request,
 *      and while there is one nothing more is left: who writes hears of the disk.
 *
 * Threads: every function is safe from any thread; a slot serves one thread at a time.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct behind;
struct noter;
struct stage_file;

#define BEHIND_NAME "behind" /* in the stage */

/* stage_fd is borrowed. */
int behind_new(int stage_fd, const struct noter *noter, struct behind **ret);
/*
 * First of all: what was pending when the last daemon died is copied into the files of the stage,
 * or, where that fails, pending again. find: the file of that number, which has all bytes up to
 * `end` once it is copied; NULL: nobody wants them any more.
 */
int behind_recover(struct behind *b,
		   struct stage_file *(*find)(void *arg, uint32_t number, uint64_t end), void *arg);
/*
 * One thread is left and what refers to the stage goes: what cannot be copied now, on a full disk,
 * stays for the next daemon, or for the next boot's.
 */
void behind_end(struct behind *b);
/* No slot is in use. */
void behind_free(struct behind *b);

/* True: they are in the calling thread's slot, and pending. False: copy them now. */
bool behind_leave(struct behind *b, struct stage_file *file, uint64_t to, const void *data,
		  size_t len);
/* Copies all that is pending. -errno when some could not be (which is told once). */
int behind_settle(struct behind *b);
/* The same for these bytes of a file; others may fail. */
int behind_settle_for(struct behind *b, const struct stage_file *file, uint64_t to, uint64_t len);
/* Reads bytes of a file, pending or not. As os_pread_full. */
int behind_read(struct behind *b, const struct stage_file *file, uint64_t to, void *buf,
		size_t len);
/* What is pending for to..to+len of the file goes nowhere. */
void behind_cancel(struct behind *b, const struct stage_file *file, uint64_t to, uint64_t len);

/* As stage_slot_take and so on (stage.h). */
uint8_t *behind_take(struct behind *b);
void behind_give(struct behind *b, uint8_t *mem);
void behind_give_up(struct behind *b, uint8_t *mem);
void behind_serve(struct behind *b, uint8_t *mem);
void behind_serve_beside(struct behind *b, uint8_t *mem);
int behind_served(struct behind *b);
