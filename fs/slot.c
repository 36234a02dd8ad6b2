/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Hashed keys with room for collisions: names, links and attributes are found by a hash whose low
 * 8 bits are a counter. A search reads the items that share the other 56 bits, almost always one.
 */

#include "fs/model.h"
#include "store/base/err.h"

int slot_find(const struct fs *fs, const struct key *base,
	      int (*match)(void *arg, const struct key *k, const struct val *v), void *arg,
	      struct key *ret_key, struct val *ret_val)
{
	struct key free_key = *base;
	bool gap = false;
	struct cursor c;
	int r;

	for (r = cursor_seek(&c, fs->tree, base); r == 0; r = cursor_next(&c)) {
		int m;

		if (c.key.a != base->a || c.key.t != base->t || c.key.b > (base->b | SLOT_MASK))
			break;

		m = match(arg, &c.key, &c.val);
		if (m < 0)
			return m;
		if (m > 0) {
			*ret_key = c.key;
			if (ret_val)
				*ret_val = c.val;
			return 0;
		}

		if (!gap && c.key.b != free_key.b)
			gap = true;
		if (!gap && c.key.b == (base->b | SLOT_MASK)) {
			free_key.t = 0; /* 256 of 256: none is free, and this was the last */
			break;
		}
		if (!gap)
			free_key.b++;
	}
	if (r < 0)
		return r;

	*ret_key = free_key;
	return ABSENT;
}
