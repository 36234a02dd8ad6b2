/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * jansson leaves out what it has no memory for, deep inside of what is made or read (a text may
 * lack letters), and few callers could tell. So its memory is watched; each verb has a thread of
 * its own.
 */

#include <stdbool.h>

/* Once, before there are threads. */
void json_memory_watch(void);
/* Whether memory was short in this thread: what was made or read is not whole. */
bool json_memory_was_short(void);
