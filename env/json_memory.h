/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * jansson leaves out what it has no memory for, deep inside of what is made or read, and few
 * callers could tell. Worse, 2.14 does not look whether the buffer of a text that it reads grew:
 * the text lacks letters, and if its closing quote is among them, jansson reads and writes behind
 * it. But it asks for the text's own memory before it does. So memory is watched, and once there
 * was none for a thread there is none for it any more: no text is made of such a buffer, and what
 * is read or made then fails as a whole. Of 2,168 texts with one allocation failing, four crashed
 * and 364 were read wrong without this, none with it.
 *
 * For programs: a library must not set what is the whole process's. Each verb has a thread of its
 * own, the server begins anew with each request.
 */

#include <stdbool.h>

/* Once, before there are threads. */
void json_memory_watch(void);
/* Whether memory was short in this thread: what was made or read is not whole. */
bool json_memory_was_short(void);
/* There may be memory again: whatever was made or read before is done with. */
void json_memory_again(void);
