/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Fault injection for tests: every call of os.h ticks one process-wide counter. Off by default,
 * at the cost of one relaxed load per call.
 */

/* Lets `countdown` calls pass, then fails the next `repeat` ones with -error (malloc: NULL). */
void fault_arm(int countdown, int repeat, int error);
void fault_disarm(void);

/* Calls seen since fault_arm. */
int fault_ticks(void);

/* For os.c: 0, or the negative errno that this call must fail with. */
int fault_tick(void);
