/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The persistent B+tree: sorted items (key -> value), path copying, content-addressed nodes.
 *
 * A `struct tree` is a mutable handle; a `struct root` is an immutable state. tree_freeze() gives
 * the root of the present state in constant time: nodes carry the generation of the tree that may
 * change them in place, freezing takes a new generation, and a node of any other generation is
 * copied before it is changed. Generations are unique in the process, so trees that share nodes
 * (forks) never change each other's.
 *
 * A root is *sealed* once every node reachable from it is a chunk; the root's name is then the
 * chunk name of its top node and names the whole state. Sealed nodes are loaded on demand, and
 * shared through a table by name. Values may carry one reference to data: a sealed chunk by name
 * or a blob (blob.h) that is not sealed yet; sealing rewrites blob references to names in the
 * bytes on disk, never in memory.
 *
 * Locks: a tree wants one writer or many readers (the caller's rwlock). Roots may be read and
 * sealed from any thread without a lock. Everything "lent" is valid until the tree changes or,
 * for a root's own tree, until it is freed.
 */

#include <stdio.h>

#include "store/hash.h"

struct blob;
struct chunks;
struct node;
struct noter;
struct oplog;
struct nodes; /* what trees of one store share: chunk access, the table of loaded nodes */
struct root;
struct tree;

/* Order: a, then t, then b. */
struct key {
	uint64_t a;
	uint64_t b;
	uint8_t t;
};
int key_cmp(const struct key *x, const struct key *y);
/* The key just behind k, which is not KEY_MAX. */
struct key key_next(const struct key *k);
#define KEY_MIN ((struct key){ 0, 0, 0 })
#define KEY_MAX ((struct key){ UINT64_MAX, UINT64_MAX, UINT8_MAX })

enum ref_kind { REF_NONE = 0, REF_CHUNK = 1, REF_BLOB = 2 };

/*
 * Data that an item refers to: bytes of a chunk or blob from `off` on; the length is the item's
 * affair.
 */
struct ref {
	uint8_t kind; /* enum ref_kind */
	uint32_t off;
	union {
		struct name name;  /* REF_CHUNK */
		struct blob *blob; /* REF_BLOB */
	};
};
bool ref_eq(const struct ref *x, const struct ref *y);

struct val {
	const void *data;
	uint32_t len; /* at most VAL_MAX */
	struct ref ref;
};

/*
 * A node is at most NODE_MAX encoded bytes: ten edited files rewrite ten leaves and their parents
 * at each checkpoint, so a node is small; 4 KiB still gives interior nodes 100 children, four
 * levels for 10^7 items. A value is at most a quarter of it, so that a split always succeeds.
 */
#define NODE_MAX 4096
#define VAL_MAX 960

int nodes_new(struct chunks *chunks, const struct noter *noter, struct nodes **ret);
void nodes_free(struct nodes *ns); /* all roots and trees must be gone */
/* Nodes in memory and their heap bytes. */
void nodes_stats(struct nodes *ns, uint64_t *ret_nodes, uint64_t *ret_bytes);
/*
 * The keys of items whose bytes could not be read when they were to be sealed, since the store was
 * opened; how many there are. The first UNREADABLE_MAX: enough to name files, check names all.
 */
#define UNREADABLE_MAX 16
unsigned nodes_unreadable(struct nodes *ns, struct key ret[static UNREADABLE_MAX]);
/* Gives memory back to the system when much of it has been freed since the last time. */
void nodes_give_back(struct nodes *ns);

/* ---- roots ---- */
struct root *root_ref(struct root *r);
void root_unref(struct root *r);
static inline void root_unrefp(struct root **r)
{
	if (*r)
		root_unref(*r);
}
/* The empty state (sealed by convention under the all-zero name). */
int root_empty(struct nodes *ns, struct root **ret);
/* A sealed state by name; nothing is read yet. */
int root_by_name(struct nodes *ns, const struct name *name, struct root **ret);
/* 0 and the name once sealed, else ABSENT. */
int root_name(const struct root *r, struct name *ret_name);
/* The same state for sure (pointer or name equal)? false does not prove a difference. */
bool root_same(const struct root *x, const struct root *y);

/* ---- trees ---- */
int tree_new(struct nodes *ns, struct root *root /* borrowed */, struct tree **ret);
void tree_free(struct tree *t);
static inline void tree_freep(struct tree **t)
{
	if (*t)
		tree_free(*t);
}
/* The present state, immutable; constant time. Given: root_unref. Wants the write lock. */
int tree_freeze(struct tree *t, struct root **ret);
/* Makes the tree continue from another state; constant time (drops nodes only it had). */
int tree_reset(struct tree *t, struct root *root /* borrowed */);
/* Each change is told to the log (borrowed; NULL: none), which may refuse it. */
void tree_set_log(struct tree *t, struct oplog *log);

/* 0 and the value, lent; ABSENT. */
int tree_get(const struct tree *t, const struct key *k, struct val *ret);
/* 0 and the first item at or after k, its value lent; END. */
int tree_first_from(const struct tree *t, const struct key *k, struct key *ret_key,
		    struct val *ret_val);
/* Inserts or replaces; the bytes are copied, a blob gets a reference of its own. */
int tree_put(struct tree *t, const struct key *k, const struct val *v);
/* 0 or ABSENT. */
int tree_del(struct tree *t, const struct key *k);
/* All items from first to last, both included. A failure leaves those after some item. */
int tree_del_range(struct tree *t, const struct key *first, const struct key *last);
/*
 * Makes the leaf that holds k the tree's own (copied if a frozen state shares it), so that
 * blob_is_sole() on a blob referred to from it tells whether only this tree sees the blob.
 */
int tree_touch(struct tree *t, const struct key *k);

/* ---- letting go of memory ---- */

/* What was taken out of memory under a lock, to be freed without it: that may take long. */
struct shed {
	struct root **roots; /* owned, all of them */
	struct node **nodes;
	size_t n_roots, cap_roots, n_nodes, cap_nodes;
};
void shed_release(struct shed *s); /* for _cleanup_ */
/*
 * The same state as a root of which nothing is in memory. ABSENT: not sealed, or nothing is in
 * memory already. Given.
 */
int root_bare(const struct root *r, struct root **ret);
/* Puts it (taken) in the place of *root, which goes. */
void shed_root(struct shed *s, struct root **root, struct root *bare);
/*
 * The tree's nodes that are sealed go, unless a root that somebody has needs them, and are loaded
 * again where they are wanted. Wants the write lock, as if the tree changed; it stays as it is.
 */
void shed_tree(struct shed *s, struct tree *t);
/*
 * For who only reads, but all of a state: its nodes, which others may hold, are left to them, and
 * are read into memory of the tree's own, of which nothing stays when it is called with more than
 * `most` bytes there. Wants the write lock; nothing lent stays valid. ABSENT: the state is not
 * sealed yet.
 */
int tree_read_apart(struct tree *t, uint64_t most);
bool tree_is_apart(const struct tree *t);
/* The state of a tree that was not changed since it was made or reset. Lent, until either. */
struct root *tree_state(const struct tree *t);

/* ---- iteration ---- */
#define TREE_HEIGHT_MAX 16
struct cursor {
	const struct tree *tree; /* borrowed */
	struct { const void *node; uint32_t pos; } path[TREE_HEIGHT_MAX];
	uint8_t depth;
	struct key key; /* of the item the cursor is at */
	struct val val; /* lent until the tree changes */
};
/*
 * To the first item >= k. 0, END, or a failure. A change of the tree invalidates a cursor: seek
 * again.
 */
int cursor_seek(struct cursor *c, const struct tree *t, const struct key *k);
int cursor_next(struct cursor *c);
/* To the last item <= k. 0, END when there is none. */
int cursor_seek_last(struct cursor *c, const struct tree *t, const struct key *k);

/* ---- comparing ---- */
/*
 * Calls fn for each key from..to (inclusive), in order, whose value differs between two states:
 * old NULL = added, new NULL = removed. Equal subtrees are skipped by pointer or name, so the cost
 * follows the size of the difference. fn's non-zero return stops and is returned.
 * Two values are the same when bytes and refs are; a blob and its own sealed chunk are the same.
 */
int root_diff(struct root *a, struct root *b, const struct key *from, const struct key *to,
	      int (*fn)(void *arg, const struct key *k, const struct val *old_val,
			const struct val *new_val),
	      void *arg);

/* ---- sealing, marking, checking ---- */
/*
 * Writes every unsealed node and blob below root as chunks (chunk_put: pending). One caller at a
 * time, as blobs are sealed by one (blob_seal); besides, an import for its own tree, which has none
 * (store_import_limit): a node that both store gets the same name twice.
 */
int root_seal(struct root *r);

/*
 * Visits the chunks that a state needs: fn(arg, name, is_node) returns 0 to go on, 1 = seen before,
 * do not descend, < 0 stops. Unsealed nodes are walked without a call; blobs that are unsealed are
 * left out. Nodes are read straight from their chunks where they are not in memory, without
 * filling the table. A node that cannot be read: damaged(arg, name, r) is called (may be NULL:
 * then the failure is returned) and the walk goes on beside it.
 */
int root_mark(struct root *r, int (*fn)(void *arg, const struct name *name, bool is_node),
	      void (*damaged)(void *arg, const struct name *name, int r), void *arg);

/*
 * Walks a sealed state for check: structure (order, bounds, levels, sizes) of every node, reported
 * through node(): r = 0 or what is wrong with it; first/last: the key range it covers as its
 * parent says (last inclusive). node() returns 0 to descend, 1 to skip. item() gets every item of
 * readable leaves; may be NULL. Their < 0 stops and is returned. Nodes are read from their chunks,
 * whatever is in memory. AGAIN: not sealed.
 */
struct tree_check {
	int (*node)(void *arg, const struct name *name, unsigned level, const struct key *first,
		    const struct key *last, int r);
	int (*item)(void *arg, const struct key *k, const struct val *v);
	/*
	 * Asked before a node is read; true: leave out the node and all below it (states share
	 * most nodes: reading each again for every state would make check slow). May be NULL.
	 */
	bool (*skip)(void *arg, const struct name *name, const struct key *first,
		     const struct key *last);
	void *arg;
};
int root_check(struct root *r, const struct tree_check *ops);

/* Prints nodes and items (for people), depth-limited; item_to_text may be NULL. */
int root_dump(struct root *r, FILE *out, int max_depth,
	      void (*item_to_text)(FILE *out, const struct key *k, const struct val *v));
