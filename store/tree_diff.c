/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The difference of two states: both trees are walked at once, each like a tape of parts in key
 * order, where a part is an item or a whole subtree not entered yet. While nothing of either tape
 * lies before the two present parts, equal subtrees can be skipped whatever stands around them.
 * Otherwise the subtree that begins first is entered (at the same key the higher one), so the
 * tapes meet again at the next key at which both trees have a boundary, however differently they
 * were split and however high they are.
 */

#include "store/tree_internal.h"

#include "store/base/err.h"

enum part { PART_END, PART_NODE, PART_ITEM };

struct tape {
	struct root *root;      /* borrowed */
	const struct key *from; /* inclusive, both */
	const struct key *to;
	struct {
		struct node *node; /* lent by its parent */
		unsigned pos;
	} at[TREE_HEIGHT_MAX];
	unsigned depth; /* 0: before the top node (part is PART_NODE), or at the end */

	enum part part;
	struct key key;    /* of the item; the subtree's keys are not below it */
	struct node *node; /* PART_NODE: if it is in memory */
};

static void tape_start(struct tape *t)
{
	t->node = atomic_load_explicit(&t->root->top, memory_order_acquire);
	t->key = KEY_MIN;
	t->part = t->node || t->root->lazy ? PART_NODE : PART_END;
}

/* Looks at the present part, climbing out of nodes that are done. */
static void tape_settle(struct tape *t)
{
	struct node *n = NULL;
	unsigned pos = 0;

	while (t->depth > 0) {
		n = t->at[t->depth - 1].node;
		pos = t->at[t->depth - 1].pos;
		if (pos < n->count)
			break;
		if (--t->depth > 0)
			t->at[t->depth - 1].pos++;
	}
	if (t->depth == 0) {
		t->part = PART_END;
		return;
	}
	if (n->level == 0) {
		t->part = PART_ITEM;
		t->key = slot_key(node_slots(n) + pos);
	} else {
		t->part = PART_NODE;
		t->key = node_inner(n)->keys[pos];
		t->node = atomic_load_explicit(&node_inner(n)->child[pos], memory_order_acquire);
	}
	if (key_less(t->to, &t->key))
		t->part = PART_END;
}

static void tape_skip(struct tape *t)
{
	if (t->depth > 0)
		t->at[t->depth - 1].pos++;
	tape_settle(t);
}

/*
 * Both stand before the same subtree: past it, and past the run of equal ones behind it. Most of a
 * walk is such runs, hence a loop over nothing but the two arrays of children.
 */
static void tapes_skip(struct tape *x, struct tape *y)
{
	if (x->depth > 0 && y->depth > 0) {
		struct node *n = x->at[x->depth - 1].node, *m = y->at[y->depth - 1].node;
		unsigned *i = &x->at[x->depth - 1].pos, *j = &y->at[y->depth - 1].pos;

		while (*i + 1 < n->count && *j + 1 < m->count) {
			struct node *a = atomic_load_explicit(&node_inner(n)->child[*i + 1],
							  memory_order_relaxed);

			if (!a || a != atomic_load_explicit(&node_inner(m)->child[*j + 1],
							    memory_order_relaxed))
				break;
			++*i;
			++*j;
		}
	}
	tape_skip(x);
	tape_skip(y);
}

static int tape_enter(struct tape *t)
{
	struct node *n;
	int r;

	if (t->depth == 0)
		r = root_top(t->root, &n);
	else
		r = node_child(t->at[t->depth - 1].node, t->at[t->depth - 1].pos, &n);
	if (r < 0)
		return r;

	/* away from the edge where `from` lies, both searches give 0 */
	t->at[t->depth].node = n;
	t->at[t->depth].pos = n->level > 0 ? inner_search(n, t->from) : leaf_search(n, t->from);
	t->depth++;
	tape_settle(t);
	return 0;
}

/* The level of a subtree that was not entered; a top that is not in memory counts as highest. */
static unsigned tape_level(const struct tape *t)
{
	if (t->node)
		return t->node->level;
	return t->depth > 0 ? t->at[t->depth - 1].node->level - 1u : TREE_HEIGHT_MAX;
}

/* The name of the subtree, if it has one already. */
static bool tape_name(const struct tape *t, struct name *ret)
{
	struct node *n;

	if (t->depth == 0)
		return root_name(t->root, ret) == 0;
	return node_child_name(t->at[t->depth - 1].node, t->at[t->depth - 1].pos, &n, ret);
}

/*
 * Nearly all are one node in memory. Names are asked for only where they are not: each costs a
 * cache miss, and a node has a hundred children.
 */
static bool tape_same_node(const struct tape *a, const struct tape *b)
{
	struct name a_name, b_name;

	if (a->node && a->node == b->node)
		return true;
	return tape_name(a, &a_name) && tape_name(b, &b_name) && name_eq(&a_name, &b_name);
}

static void tape_val(const struct tape *t, struct val *ret)
{
	leaf_val(t->at[t->depth - 1].node, t->at[t->depth - 1].pos, ret);
}

int root_diff(struct root *a, struct root *b, const struct key *from, const struct key *to,
	      int (*fn)(void *arg, const struct key *k, const struct val *old_val,
			const struct val *new_val),
	      void *arg)
{
	struct tape x = { .root = a, .from = from, .to = to };
	struct tape y = { .root = b, .from = from, .to = to };

	tape_start(&x);
	tape_start(&y);
	while (x.part != PART_END || y.part != PART_END) {
		bool enter_x = x.part == PART_NODE, enter_y = y.part == PART_NODE;
		struct val old_val, new_val;
		struct key k;
		int order, r;

		/* an ended tape is behind everything */
		order = x.part == PART_END ? 1 : y.part == PART_END ? -1 : key_cmp(&x.key, &y.key);

		if (enter_x && enter_y) {
			if (tape_same_node(&x, &y)) {
				tapes_skip(&x, &y);
				continue;
			}
			if (order == 0)
				order = tape_level(&x) > tape_level(&y)	  ? -1 :
					tape_level(&x) < tape_level(&y) ? 1 :
									  0;
			enter_x = order <= 0;
			enter_y = order >= 0;
		} else {
			/* an item is dealt with first only when it comes before the subtree */
			enter_x = enter_x && order <= 0;
			enter_y = enter_y && order >= 0;
		}
		if (enter_x) {
			r = tape_enter(&x);
			if (r < 0)
				return r;
		}
		if (enter_y) {
			r = tape_enter(&y);
			if (r < 0)
				return r;
		}
		if (enter_x || enter_y)
			continue;

		r = 0;
		if (order < 0) {
			k = x.key;
			tape_val(&x, &old_val);
			r = fn(arg, &k, &old_val, NULL);
		} else if (order > 0) {
			k = y.key;
			tape_val(&y, &new_val);
			r = fn(arg, &k, NULL, &new_val);
		} else {
			k = x.key;
			tape_val(&x, &old_val);
			tape_val(&y, &new_val);
			if (!val_eq(&old_val, &new_val))
				r = fn(arg, &k, &old_val, &new_val);
		}
		if (r != 0)
			return r;
		if (order <= 0)
			tape_skip(&x);
		if (order >= 0)
			tape_skip(&y);
	}
	return 0;
}
