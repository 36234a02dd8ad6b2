/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A node of the persistent tree in memory, its encoded form, and the table of loaded nodes.
 * Private to node*.c and tree*.c. The bytes are described in FORMAT.md, "Nodes".
 *
 * A node is a leaf (level 0: items) or an interior node (children, each with the first key that
 * it may hold). Both are one allocation.
 *
 * INVARIANTS
 *
 *  N1 A node is changed only by the tree whose generation it carries. Such a node has exactly one
 *     reference (its parent's, or the tree's) and no root reaches it. Every other node is *frozen*.
 *  N2 Of a frozen node only these change: the reference count; a child pointer, once, from NULL
 *     to the loaded child; name and then `sealed` (release), once.
 *  N3 sealed means: the chunk `name` holds this node, and every node and blob below is a chunk.
 *     A child pointer that is NULL stands for a sealed child whose name is in names[]; where the
 *     pointer is set the child itself says its name, and names[] is meaningless. So the sealer
 *     never writes to a parent that another thread may be copying.
 *  N4 The encoded size is at most NODE_MAX, and is kept in `size` at all times.
 *  N5 Keys rise strictly. All keys below child i lie in [keys[i], keys[i + 1]), the last child's
 *     up to its parent's bound; an interior child's keys[0] equals the key its parent has for it;
 *     a top node's keys[0] is KEY_MIN. (So nodes cannot be shared between two places of one tree
 *     except empty leaves, and a walk over hostile nodes ends.)
 *  N6 A node in the table has no reference from it. Lookup takes a reference only while the count
 *     is not zero; whoever drops the last one takes the node out before freeing it, so for a
 *     moment the table may hold a dying node beside its replacement.
 *
 * An empty leaf below an interior node, or an interior node with one child, may occur (a merge
 * that failed for lack of memory); everything copes with them.
 */

#include <assert.h>
#include <stdatomic.h>

#include "store/tree.h"

#define NODE_HEADER 8
#define KEY_BYTES 17
#define ITEM_HEADER (KEY_BYTES + 2) /* key, then length and kind of reference in 16 bits */
#define REF_BYTES (NAME_BYTES + 4)
#define CHILD_BYTES (KEY_BYTES + NAME_BYTES)

#define CHILDREN_MAX ((NODE_MAX - NODE_HEADER) / CHILD_BYTES) /* 123 */
#define ITEMS_MAX ((NODE_MAX - NODE_HEADER) / ITEM_HEADER)    /* 215, of empty values */

static_assert(NODE_HEADER + 4 * (ITEM_HEADER + REF_BYTES + VAL_MAX) <= NODE_MAX,
	      "four of the largest items fit a leaf, so that one split makes room for any item");

/* Slots lie at the front of a leaf's data, sorted; value bytes at its back, in any order. */
struct slot {
	uint64_t a;
	uint64_t b;
	uint16_t back; /* where the value begins, counted from the end of data */
	uint16_t len;  /* of the value */
	uint8_t t;
	uint8_t kind; /* enum ref_kind; the reference stands in front of the value */
};
static_assert(sizeof(struct slot) == 24, "LEAF_ROOM counts on it");

/* Bytes of data[] in which every leaf that N4 allows fits, once compacted. */
#define LEAF_ROOM ((NODE_MAX + ITEMS_MAX * ((int)sizeof(struct slot) - ITEM_HEADER) + 7) / 8 * 8)

struct node {
	_Atomic uint32_t refs;
	uint8_t level; /* immutable */
	_Atomic bool sealed;
	bool in_table;     /* under the table's lock, and by whoever dropped the last reference */
	uint64_t gen;      /* immutable; 0 when it came from a chunk */
	struct nodes *ns;  /* immutable, borrowed */
	struct node *link; /* in the table: next of the chain; dying: next to free */
	struct name name;  /* valid when sealed */
	uint16_t count;    /* items or children */
	uint16_t size;     /* encoded bytes (N4) */
	uint16_t blobs;    /* leaf: items with REF_BLOB, each holds one reference of its blob */
	uint16_t room;     /* leaf: bytes of data */
	uint16_t heap;     /* leaf: bytes in use at the back of data, dropped values included */
	_Alignas(8) uint8_t data[];
};

struct inner {
	struct key keys[CHILDREN_MAX];
	_Atomic(struct node *) child[CHILDREN_MAX]; /* owned; NULL: not loaded (N3) */
	struct name names[CHILDREN_MAX];
};

static inline struct slot *node_slots(const struct node *n)
{
	return (struct slot *)n->data;
}
static inline struct inner *node_inner(const struct node *n)
{
	return (struct inner *)n->data;
}
static inline struct key slot_key(const struct slot *s)
{
	return (struct key){ .a = s->a, .b = s->b, .t = s->t };
}

/* Before k in the order of keys? */
static inline bool parts_less(uint64_t a, uint8_t t, uint64_t b, const struct key *k)
{
	if (a != k->a)
		return a < k->a;
	if (t != k->t)
		return t < k->t;
	return b < k->b;
}
static inline bool key_less(const struct key *x, const struct key *y)
{
	return parts_less(x->a, x->t, x->b, y);
}
static inline bool key_eq(const struct key *x, const struct key *y)
{
	return x->a == y->a && x->b == y->b && x->t == y->t;
}

/* Encoded bytes of one item. */
static inline unsigned item_size(unsigned kind, unsigned len)
{
	return ITEM_HEADER + (kind == REF_NONE ? 0 : REF_BYTES) + len;
}

/* ---- life ---- */

/* An empty node with one reference, given. Leaves have LEAF_ROOM bytes. NULL: out of memory. */
struct node *node_new(struct nodes *ns, unsigned level, uint64_t gen);
/* The same, but a leaf has `room` bytes of data; an interior node none. */
struct node *node_alloc(struct nodes *ns, unsigned level, unsigned room, uint64_t gen);
/* A copy for a tree of generation gen; its children and blobs get a reference each. */
struct node *node_copy(const struct node *n, uint64_t gen);
static inline struct node *node_ref(struct node *n)
{
	atomic_fetch_add_explicit(&n->refs, 1, memory_order_relaxed);
	return n;
}
/* NULL is fine. Frees whatever only this reference kept, without recursion. */
void node_unref(struct node *n);
static inline void node_unrefp(struct node **n)
{
	node_unref(*n);
}

uint64_t nodes_new_gen(struct nodes *ns);
struct chunks *nodes_chunks(struct nodes *ns);
const struct noter *nodes_noter(struct nodes *ns);
/* An item's bytes could not be read: someone asks which file that was (nodes_unreadable). */
void nodes_note_unreadable(struct nodes *ns, const struct key *k);

/* ---- loading ---- */

/* The node `name`, from the table or its chunk; in memory once. Given. */
int node_load(struct nodes *ns, const struct name *name, struct node **ret);
/* The same straight from the chunk, past the table. Given. */
int node_read(struct nodes *ns, const struct name *name, struct node **ret);

/*
 * 0 or -ERR_NODE_DAMAGED: does the node fit where it is referred to? level -1: any (a top node);
 * upper NULL: no bound, otherwise all keys must be below it.
 */
int node_fits(const struct node *n, int level, const struct key *lower, const struct key *upper);

int node_child_load(const struct node *n, unsigned i, struct node **ret);
/* Child i of an interior node, lent by it; loaded when needed. */
static inline int node_child(const struct node *n, unsigned i, struct node **ret)
{
	*ret = atomic_load_explicit(&node_inner(n)->child[i], memory_order_acquire);
	if (*ret)
		return 0;
	return node_child_load(n, i, ret);
}

/*
 * What is known of child i without loading it: *ret_node or NULL, and its name; false when it
 * has none yet (then *ret_node is set).
 */
bool node_child_name(const struct node *n, unsigned i, struct node **ret_node,
		     struct name *ret_name);
/* The node's own name, if sealed. */
bool node_name(const struct node *n, struct name *ret_name);
/* Publishes name, then sealed, and lists the node in the table (N2, N3). */
void node_set_sealed(struct node *n, const struct name *name);

/* ---- bytes: node_format.c ---- */

/*
 * Writes n to buf (NODE_MAX bytes) and its length to *ret_len. Its children must be sealed; its
 * blobs are sealed here, whose failures are passed on.
 */
int node_encode(const struct node *n, uint8_t *buf, uint32_t *ret_len);
/* A node from bytes that nobody vouches for; -ERR_NODE_DAMAGED, -ENOMEM. Given. */
int node_decode(struct nodes *ns, const uint8_t *buf, size_t len, struct node **ret);

/* ---- leaves ---- */

/* The first slot with a key >= k; count when there is none. */
static inline unsigned leaf_search(const struct node *n, const struct key *k)
{
	const struct slot *base = node_slots(n);
	unsigned left = n->count;

	while (left > 0) {
		unsigned half = left / 2;

		if (parts_less(base[half].a, base[half].t, base[half].b, k)) {
			base += half + 1;
			left -= half + 1;
		} else {
			left = half;
		}
	}
	return base - node_slots(n);
}
static inline bool leaf_has(const struct node *n, unsigned pos, const struct key *k)
{
	const struct slot *s = node_slots(n) + pos;

	return pos < n->count && s->a == k->a && s->b == k->b && s->t == k->t;
}
/* The value of a slot, lent by the leaf. */
void leaf_val(const struct node *n, unsigned pos, struct val *ret);

/*
 * Changing a leaf that the caller owns (N1); the encoded size must have been checked. A blob in
 * v: its reference is taken over; v's bytes must not lie in this leaf.
 */
void leaf_insert(struct node *n, unsigned pos, const struct key *k, const struct val *v);
void leaf_replace(struct node *n, unsigned pos, const struct val *v);
void leaf_remove(struct node *n, unsigned pos);
/* Moves the items from `from` on to the end of `to`, blob references with them. */
void leaf_move(struct node *n, unsigned from, struct node *to);
/* Adds a copy of all items of n (maybe frozen) to the end of `to`; blobs get references. */
void leaf_append_copy(const struct node *n, struct node *to);

/* ---- interior nodes ---- */

/* The child that k belongs to: the last whose first key is <= k, or 0. */
static inline unsigned inner_search(const struct node *n, const struct key *k)
{
	const struct key *base = node_inner(n)->keys + 1;
	unsigned left = n->count - 1;

	while (left > 0) {
		unsigned half = left / 2;

		if (!key_less(k, &base[half])) {
			base += half + 1;
			left -= half + 1;
		} else {
			left = half;
		}
	}
	return base - node_inner(n)->keys - 1;
}
/* Changing an interior node that the caller owns. The child's reference is taken over. */
void inner_insert(struct node *n, unsigned pos, const struct key *k, struct node *child);
/* Takes `count` children out of n at pos and puts them into `to` at to_pos; both owned. */
void inner_move(struct node *n, unsigned pos, unsigned count, struct node *to, unsigned to_pos);
/* Adds all children of n (maybe frozen) to the end of `to`, with references of their own. */
void inner_append_copy(const struct node *n, struct node *to);
/* Takes child pos out of n and drops its reference. */
void inner_remove(struct node *n, unsigned pos);
/* Puts another node in the place of child pos (reference taken over) and drops the old one. */
void inner_replace(struct node *n, unsigned pos, struct node *child);
