/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Open addressing over numbers, names beside it: 16 bytes a name and 8 to 16 of slots, which lets
 * gc mark ten million chunks in about 300 MB. Names are hashed again, because a test may cut them
 * to a few bits (hash_truncate_for_tests) and because salted names come from elsewhere.
 */

#include "store/nameset.h"

#include <errno.h>

#include "store/base/err.h"
#include "store/base/os.h"
#include "store/base/util.h"

#define FIRST_CAPACITY 1024

void nameset_release(struct nameset *set)
{
	free(set->names);
	free(set->slots);
	*set = (struct nameset){ 0 };
}

/* The slot that holds the name, or the free one where it would go. */
static size_t find_slot(const struct nameset *set, const struct name *name)
{
	size_t mask = set->slot_count - 1;
	size_t i = hash64(name->b, sizeof(name->b), 0) & mask;

	while (set->slots[i] != 0 && !name_eq(&set->names[set->slots[i] - 1], name))
		i = (i + 1) & mask;
	return i;
}

/* Twice the room; slots stay at most half full, so that probes stay short. */
static int grow(struct nameset *set)
{
	uint32_t capacity = set->capacity ? 2 * set->capacity : FIRST_CAPACITY;
	struct nameset bigger = { .count = set->count, .capacity = capacity };

	if (set->capacity > UINT32_MAX / 4)
		return -ENOMEM;

	bigger.slot_count = 2 * (size_t)capacity;
	bigger.slots = os_calloc(bigger.slot_count, sizeof(*bigger.slots));
	if (!bigger.slots)
		return -ENOMEM;

	bigger.names = os_realloc(set->names, capacity * sizeof(*bigger.names));
	if (!bigger.names) {
		free(bigger.slots);
		return -ENOMEM;
	}

	for (uint32_t i = 0; i < bigger.count; i++)
		bigger.slots[find_slot(&bigger, &bigger.names[i])] = i + 1;
	free(set->slots);
	*set = bigger;
	return 0;
}

int nameset_add(struct nameset *set, const struct name *name, uint32_t *ret_number)
{
	uint32_t found = nameset_find(set, name);
	int r;

	if (found != NAMESET_NONE) {
		*ret_number = found;
		return EXISTS;
	}

	if (set->count == set->capacity) {
		r = grow(set);
		if (r < 0)
			return r;
	}

	set->names[set->count] = *name;
	set->slots[find_slot(set, name)] = set->count + 1;
	*ret_number = set->count++;
	return 0;
}

uint32_t nameset_find(const struct nameset *set, const struct name *name)
{
	size_t slot;

	if (set->slot_count == 0)
		return NAMESET_NONE;
	slot = find_slot(set, name);
	return set->slots[slot] ? set->slots[slot] - 1 : NAMESET_NONE;
}
