/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Hashed keys with room for collisions: names, links and attributes are found by a hash whose low
 * 8 bits are a counter. A search reads the items that share the other 56 bits, almost always one.
 */

#include "fs/model.h"
#include "store/base/err.h"

int slot_find(const struct fs *fs, const struct key *base,
	      int (*match)(void *arg, const struct key *k, const struct val *v), void *arg,
	      struct key *ret_key)
{
	const uint64_t last = base->b | SLOT_MASK;
	struct key at = *base, free_key = *base, k;
	bool gap = false;
	struct val v;
	int r, m;

	while ((r = tree_first_from(fs->tree, &at, &k, &v)) == 0) {
		if (k.a != base->a || k.t != base->t || k.b > last)
			break;

		m = match(arg, &k, &v);
		if (m < 0)
			return m;
		if (m > 0) {
			*ret_key = k;
			return 0;
		}

		if (k.b != free_key.b)
			gap = true;
		if (k.b == last) {
			if (!gap)
				free_key.t = 0; /* 256 of 256: none is free */
			break;
		}
		if (!gap)
			free_key.b++;
		at.b = k.b + 1;
	}
	if (r < 0)
		return r;

	*ret_key = free_key;
	return ABSENT;
}
