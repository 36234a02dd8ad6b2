/* SPDX-License-Identifier: Apache-2.0 */
#include "env/json_memory.h"

#include <jansson.h>
#include <stdlib.h>

static _Thread_local bool was_short;

static void *watched_malloc(size_t size)
{
	void *p = was_short ? NULL : malloc(size);

	if (!p)
		was_short = true;
	return p;
}

void json_memory_watch(void)
{
	json_set_alloc_funcs(watched_malloc, free);
}

bool json_memory_was_short(void)
{
	return was_short;
}

void json_memory_again(void)
{
	was_short = false;
}
