/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Fault injection for tests: every call of os.h ticks one process-wide counter. Off by default,
 * at the cost of one relaxed load per call.
 */

#include <stdbool.h>
#include <stdint.h>

/* Lets `countdown` calls pass, then fails the next `repeat` ones with -error (malloc: NULL). */
void fault_arm(int countdown, int repeat, int error);
void fault_disarm(void);

/*
 * A bad sector: from now on reading any of these bytes of a file fails with -EIO. len 0: none.
 * Before or after threads read that file.
 */
void fault_bad_sector(uint64_t inode, uint64_t off, uint64_t len);

/* A filesystem whose files have no holes: from now on, or no more. */
void fault_no_holes(bool on);

/* Calls seen since fault_arm. */
int fault_ticks(void);

/* For os.c: 0, or the negative errno that this call must fail with. */
int fault_tick(void);
/* For os.c: can holes be made? */
bool fault_holes(void);
/* For os.c: 0, or -EIO when these bytes lie on the bad sector. */
int fault_read(int fd, uint64_t off, uint64_t len);
