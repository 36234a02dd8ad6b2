/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A growing set of chunk names, numbered in the order they came in, so that a caller keeps what it
 * knows of each name in an array of its own. gc marks with it, check remembers with it.
 */

#include "store/hash.h"

#define NAMESET_NONE UINT32_MAX

struct nameset {
	struct name *names; /* owned; by number */
	uint32_t *slots;    /* owned; number + 1, 0 = free; a power of two of them */
	uint32_t count;
	uint32_t capacity; /* of names */
	size_t slot_count;
};

void nameset_release(struct nameset *set);

/* 0: added, EXISTS: was there; either way its number. -ENOMEM leaves the set as it was. */
int nameset_add(struct nameset *set, const struct name *name, uint32_t *ret_number);

/* The number, or NAMESET_NONE. */
uint32_t nameset_find(const struct nameset *set, const struct name *name);
