/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the tree*.c files share: roots and trees from inside. */

#include "store/node.h"

/* A state. Empty: neither lazy nor with a top. Several may exist for one state. */
struct root {
	_Atomic uint32_t refs;
	bool lazy;        /* immutable: made from a name; top is loaded on demand */
	struct nodes *ns; /* immutable, borrowed */
	struct name name; /* immutable; valid when lazy */
	_Atomic(struct node *) top; /* owned; lazy: NULL until loaded */
};

/*
 * A leaf that was changed lately: an operation touches few leaves, several times each, and often
 * those of the one before. It is the tree's own (of its generation) and has all keys that there are
 * from `from` up to, but not including, `to`. Forgotten when leaves split or merge.
 */
struct recent {
	struct node *leaf; /* lent; NULL: none */
	struct key from, to;
};

/* An unlink changes three leaves; two clients make six of it. */
#define RECENT_LEAVES 6

/*
 * A tree is at its base state until the first change, which gives it a top of its own and lets
 * go of the base; freezing makes that top the new base. A top may exist beside the base without
 * being dirty: a change failed after its path was copied.
 */
struct tree {
	struct nodes *ns;  /* borrowed */
	struct root *base; /* owned; NULL when dirty */
	struct node *top;  /* owned; NULL: the base's */
	uint64_t gen;      /* nodes of this generation are ours to change (N1) */
	bool dirty;        /* something was changed since the last freeze or reset */
	struct nodes *apart; /* owned; NULL: the base's nodes are in ns (tree_read_apart) */
	struct oplog *log; /* borrowed, may be NULL: learns of each change before it is made */
	struct recent recent[RECENT_LEAVES];
	unsigned recent_next; /* the one to be replaced */
};

/* The top node, lent by the root; NULL for the empty state. */
int root_top(struct root *r, struct node **ret);

/* Lent; NULL when there is not even a leaf. */
static inline int tree_top(const struct tree *t, struct node **ret)
{
	if (t->top) {
		*ret = t->top;
		return 0;
	}
	return root_top(t->base, ret);
}

/* The recent leaf that has, or would have, k; NULL: it must be searched for from the top. */
static inline struct node *recent_leaf(const struct tree *t, const struct key *k)
{
	for (unsigned i = 0; i < RECENT_LEAVES; i++) {
		const struct recent *r = &t->recent[i];

		if (r->leaf && !key_less(k, &r->from) && key_less(k, &r->to))
			return r->leaf;
	}
	return NULL;
}

/* The key just before k, which is not KEY_MIN. */
struct key key_prev(const struct key *k);

/* Equal bytes and references? */
bool val_eq(const struct val *x, const struct val *y);

/*
 * 0 and a reference to a node by what node_child_name() says of it (node NULL: read from its
 * chunk, past the table), checked with node_fits. Given.
 */
int node_peek(struct nodes *ns, struct node *node, const struct name *name, int level,
	      const struct key *lower, const struct key *upper, struct node **ret);
