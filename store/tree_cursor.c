/* SPDX-License-Identifier: Apache-2.0 */

/* Cursors: from item to item of a tree, in either direction. They change nothing. */

#include "store/tree_internal.h"

#include "store/base/err.h"

static struct node *cursor_node(const struct cursor *c, unsigned d)
{
	return (struct node *)c->path[d].node;
}

/* Goes down from `n` by key, or to one end. */
enum way { WAY_KEY, WAY_FIRST, WAY_LAST };

static int cursor_down(struct cursor *c, struct node *n, enum way way, const struct key *k)
{
	for (;;) {
		uint32_t pos = 0;
		int r;

		if (way == WAY_LAST)
			pos = n->count - 1; /* of an empty leaf: wraps, and is seen as before it */
		else if (way == WAY_KEY)
			pos = n->level > 0 ? inner_search(n, k) : leaf_search(n, k);
		c->path[c->depth].node = n;
		c->path[c->depth].pos = pos;
		c->depth++;
		if (n->level == 0)
			return 0;
		r = node_child(n, pos, &n);
		if (r < 0) {
			c->depth = 0;
			return r;
		}
	}
}

/* From a position in or beyond a leaf to the item there or, step by step, the next one. */
static int cursor_settle(struct cursor *c, int step)
{
	for (;;) {
		struct node *n;
		int r;

		if (c->depth == 0)
			return END;
		n = cursor_node(c, c->depth - 1);
		if (c->path[c->depth - 1].pos < n->count) {
			uint32_t pos = c->path[c->depth - 1].pos;

			if (n->level == 0) {
				c->key = slot_key(node_slots(n) + pos);
				leaf_val(n, pos, &c->val);
				return 0;
			}
			r = node_child(n, pos, &n);
			if (r < 0) {
				c->depth = 0;
				return r;
			}
			r = cursor_down(c, n, step > 0 ? WAY_FIRST : WAY_LAST, NULL);
			if (r < 0)
				return r;
			continue;
		}
		/* past either end (before the first is a wrapped UINT32_MAX): on with the parent */
		if (--c->depth > 0)
			c->path[c->depth - 1].pos += step;
	}
}

/* To the first item >= k in its leaf, or past that leaf's end. END in an empty tree. */
static int cursor_start(struct cursor *c, const struct tree *t, const struct key *k)
{
	struct node *top;
	int r;

	c->tree = t;
	c->depth = 0;
	r = tree_top(t, &top);
	if (r < 0)
		return r;
	return top ? cursor_down(c, top, WAY_KEY, k) : END;
}

int cursor_seek(struct cursor *c, const struct tree *t, const struct key *k)
{
	int r = cursor_start(c, t, k);

	return r < 0 || r == END ? r : cursor_settle(c, 1);
}

int cursor_next(struct cursor *c)
{
	if (c->depth == 0)
		return END;
	c->path[c->depth - 1].pos++;
	return cursor_settle(c, 1);
}

int cursor_seek_last(struct cursor *c, const struct tree *t, const struct key *k)
{
	int r = cursor_start(c, t, k);

	if (r < 0 || r == END)
		return r;
	if (!leaf_has(cursor_node(c, c->depth - 1), c->path[c->depth - 1].pos, k))
		c->path[c->depth - 1].pos--;
	return cursor_settle(c, -1);
}

int tree_first_from(const struct tree *t, const struct key *k, struct key *ret_key,
		    struct val *ret_val)
{
	struct node *n = recent_leaf(t, k);
	unsigned pos = n ? leaf_search(n, k) : 0;
	struct cursor c;
	int r;

	if (n && pos < n->count) {
		*ret_key = slot_key(node_slots(n) + pos);
		leaf_val(n, pos, ret_val);
		return 0;
	}
	r = cursor_seek(&c, t, k);
	if (r == 0) {
		*ret_key = c.key;
		*ret_val = c.val;
	}
	return r;
}
