/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Roots and trees. The invariants N1 to N6 are in node.h.
 *
 * A change goes in three steps. First the path to the leaf is found without touching anything;
 * then it is made the tree's own from the top down (a node of another generation is copied and
 * the copy put into its parent, which is our own already); then the leaf changes. Whatever can
 * fail (loading, memory) happens before the change: a failure leaves the same items, at most in
 * fresh copies of the same nodes. Only the merging after a delete may fail afterwards, and does so
 * silently: the tree is right without it, and a later delete makes up for it.
 *
 * Fill: a leaf splits in the middle, except when the new item goes to its end or its beginning:
 * then the item starts a leaf of its own, so that sorted input in either direction leaves full
 * nodes behind. A leaf under a quarter merges with a neighbour when both fit one node. Interior
 * nodes have at least two children; under a quarter they merge, or share evenly with a neighbour.
 * Only encoded sizes decide, never the state of memory, so the same operations give the same
 * bytes.
 */

#include "store/tree_internal.h"

#include <errno.h>

#include "store/base/err.h"
#include "store/base/note.h"
#include "store/base/os.h"
#include "store/base/util.h"
#include "store/blob.h"
#include "store/oplog.h"

#define QUARTER (NODE_MAX / 4)

int key_cmp(const struct key *x, const struct key *y)
{
	return key_less(x, y) ? -1 : key_less(y, x);
}

struct key key_prev(const struct key *k)
{
	struct key p = *k;

	if (p.b-- > 0)
		return p;
	if (p.t-- > 0)
		return p;
	p.a--;
	return p;
}

struct key key_next(const struct key *k)
{
	struct key n = *k;

	if (++n.b > 0)
		return n;
	if (++n.t > 0)
		return n;
	n.a++;
	return n;
}

static bool ref_name(const struct ref *r, struct name *ret)
{
	if (r->kind == REF_BLOB)
		return blob_name(r->blob, ret);
	*ret = r->name;
	return true;
}

bool ref_eq(const struct ref *x, const struct ref *y)
{
	struct name a, b;

	if (x->kind == REF_NONE || y->kind == REF_NONE)
		return x->kind == y->kind;
	if (x->off != y->off)
		return false;
	if (x->kind == REF_BLOB && y->kind == REF_BLOB && x->blob == y->blob)
		return true;
	return ref_name(x, &a) && ref_name(y, &b) && name_eq(&a, &b);
}

bool val_eq(const struct val *x, const struct val *y)
{
	return x->len == y->len && (x->len == 0 || memcmp(x->data, y->data, x->len) == 0) &&
	       ref_eq(&x->ref, &y->ref);
}

/* ---- roots ---- */

static int root_new(struct nodes *ns, struct root **ret)
{
	struct root *r = os_calloc(1, sizeof(*r));

	if (!r)
		return -ENOMEM;
	r->refs = 1;
	r->ns = ns;
	*ret = r;
	return 0;
}

struct root *root_ref(struct root *r)
{
	atomic_fetch_add_explicit(&r->refs, 1, memory_order_relaxed);
	return r;
}

void root_unref(struct root *r)
{
	if (!r || atomic_fetch_sub_explicit(&r->refs, 1, memory_order_acq_rel) != 1)
		return;
	node_unref(atomic_load_explicit(&r->top, memory_order_relaxed));
	free(r);
}

int root_empty(struct nodes *ns, struct root **ret)
{
	return root_new(ns, ret);
}

int root_by_name(struct nodes *ns, const struct name *name, struct root **ret)
{
	struct root *root;
	int r;

	r = root_new(ns, &root);
	if (r < 0)
		return r;
	root->name = *name;
	root->lazy = !name_eq(name, &(struct name){ 0 });
	*ret = root;
	return 0;
}

int root_name(const struct root *r, struct name *ret_name)
{
	struct node *top = atomic_load_explicit(&r->top, memory_order_acquire);

	if (top && !r->lazy)
		return node_name(top, ret_name) ? 0 : ABSENT;
	*ret_name = r->name; /* all zero when empty */
	return 0;
}

bool root_same(const struct root *x, const struct root *y)
{
	struct node *x_top = atomic_load_explicit(&x->top, memory_order_acquire);
	struct node *y_top = atomic_load_explicit(&y->top, memory_order_acquire);
	struct name a, b;

	if (x == y || (x_top && x_top == y_top))
		return true;
	return root_name(x, &a) == 0 && root_name(y, &b) == 0 && name_eq(&a, &b);
}

int root_top(struct root *r, struct node **ret)
{
	_cleanup_(node_unrefp) struct node *top = NULL;
	struct node *expected = NULL;
	char text[NAME_HEX_SIZE];
	int e;

	*ret = atomic_load_explicit(&r->top, memory_order_acquire);
	if (*ret || !r->lazy)
		return 0;

	e = node_load(r->ns, &r->name, &top);
	if (e < 0)
		return e;
	e = node_fits(top, -1, &KEY_MIN, NULL);
	if (e < 0)
		return note(nodes_noter(r->ns), e, "node %s: is not the top of a tree",
			    name_to_text(&r->name, text));

	if (atomic_compare_exchange_strong(&r->top, &expected, top))
		*ret = TAKE_PTR(top);
	else
		*ret = expected;
	return 0;
}

/* ---- trees ---- */

int tree_new(struct nodes *ns, struct root *root, struct tree **ret)
{
	struct tree *t = os_malloc(sizeof(*t));

	if (!t)
		return -ENOMEM;
	*t = (struct tree){ .ns = ns, .base = root_ref(root), .gen = nodes_new_gen(ns) };
	*ret = t;
	return 0;
}

void tree_free(struct tree *t)
{
	if (!t)
		return;
	node_unref(t->top);
	root_unref(t->base);
	if (t->apart) {
		nodes_free(t->apart);
		os_trim(); /* memory is short: malloc would keep what they took */
	}
	free(t);
}

static void forget_recent(struct tree *t)
{
	memset(t->recent, 0, sizeof(t->recent));
}

static void begin_generation(struct tree *t)
{
	t->gen = nodes_new_gen(t->ns);
	t->dirty = false;
	forget_recent(t);
}

int tree_freeze(struct tree *t, struct root **ret)
{
	struct root *root;
	int r;

	if (!t->dirty) {
		*ret = root_ref(t->base);
		return 0;
	}

	r = root_new(t->ns, &root);
	if (r < 0)
		return r;

	if (t->top->level == 0 && t->top->count == 0)
		node_unref(t->top); /* the empty state has no node */
	else
		atomic_store_explicit(&root->top, t->top, memory_order_release);
	t->top = NULL;
	t->base = root_ref(root);
	begin_generation(t);
	*ret = root;
	return 0;
}

int tree_reset(struct tree *t, struct root *root)
{
	struct root *old = t->base;

	t->base = root_ref(root);
	root_unref(old);
	node_unref(TAKE_PTR(t->top));
	begin_generation(t);
	return 0;
}

void tree_set_log(struct tree *t, struct oplog *log)
{
	t->log = log;
}

int tree_get(const struct tree *t, const struct key *k, struct val *ret)
{
	struct node *n = recent_leaf(t, k);
	unsigned pos;
	int r;

	if (!n) {
		r = tree_top(t, &n);
		if (r < 0)
			return r;
		if (!n)
			return ABSENT;
	}
	while (n->level > 0) {
		r = node_child(n, inner_search(n, k), &n);
		if (r < 0)
			return r;
	}
	pos = leaf_search(n, k);
	if (!leaf_has(n, pos, k))
		return ABSENT;
	leaf_val(n, pos, ret);
	return 0;
}

/* ---- the way to a leaf ---- */

/* at[0] is the top, at[depth - 1] the leaf; pos is the child taken, or the slot. */
struct path {
	struct {
		struct node *node;
		unsigned pos;
	} at[TREE_HEIGHT_MAX];
	unsigned depth; /* 0: no node at all */
	bool found;
	bool short_cut; /* at[0] is a leaf that is the tree's own, and nobody knows what is above */
};

static int path_find(const struct tree *t, const struct key *k, struct path *p)
{
	struct node *n;
	int r;

	p->depth = 0;
	p->found = false;
	p->short_cut = false;
	r = tree_top(t, &n);
	if (r < 0)
		return r;
	if (!n)
		return 0;

	for (;; p->depth++) {
		p->at[p->depth].node = n;
		if (n->level == 0)
			break;
		p->at[p->depth].pos = inner_search(n, k);
		r = node_child(n, p->at[p->depth].pos, &n);
		if (r < 0)
			return r;
	}
	p->at[p->depth].pos = leaf_search(n, k);
	p->found = leaf_has(n, p->at[p->depth].pos, k);
	p->depth++;
	return 0;
}

/* The same by way of a recent leaf, if there is a right one. */
static int path_find_recent(const struct tree *t, const struct key *k, struct path *p)
{
	struct node *n = recent_leaf(t, k);

	if (!n)
		return path_find(t, k, p);
	p->at[0].node = n;
	p->at[0].pos = leaf_search(n, k);
	p->depth = 1;
	p->found = leaf_has(n, p->at[0].pos, k);
	p->short_cut = true;
	return 0;
}

/* The leaf of an owned path becomes a recent one. (Twice in the list it does no harm.) */
static void recent_add(struct tree *t, const struct path *p)
{
	struct recent *r = &t->recent[t->recent_next];

	t->recent_next = (t->recent_next + 1) % RECENT_LEAVES;
	*r = (struct recent){ .leaf = p->at[p->depth - 1].node, .from = KEY_MIN, .to = KEY_MAX };
	if (p->depth > 1)
		r->from = node_inner(p->at[p->depth - 2].node)->keys[p->at[p->depth - 2].pos];
	for (unsigned d = p->depth - 1; d-- > 0;) {
		const struct node *n = p->at[d].node;

		if (p->at[d].pos + 1U < n->count) {
			r->to = node_inner(n)->keys[p->at[d].pos + 1];
			return;
		}
	}
}

/* Makes every node of the path the tree's own. */
static int path_own(struct tree *t, struct path *p)
{
	for (unsigned d = 0; d < p->depth; d++) {
		struct node *copy;

		if (p->at[d].node->gen == t->gen)
			continue;
		copy = node_copy(p->at[d].node, t->gen);
		if (!copy)
			return -ENOMEM;
		if (d > 0) {
			inner_replace(p->at[d - 1].node, p->at[d - 1].pos, copy);
		} else {
			node_unref(t->top);
			t->top = copy;
		}
		p->at[d].node = copy;
	}
	return 0;
}

/* To be called once a change is certain, with the path owned. */
static void tree_changed(struct tree *t)
{
	t->dirty = true;
	root_unref(TAKE_PTR(t->base)); /* what it alone kept is of no use to us any more */
}

/* ---- put ---- */

/* The children of a split interior node (count + 1 with the new one at pos) that stay left. */
static unsigned inner_cut(const struct node *n, unsigned pos)
{
	if (pos == n->count)
		return n->count - 1; /* the new right node gets two: never less */
	if (pos == 1)
		return 2;
	return (n->count + 1) / 2;
}

/*
 * Hangs `right`, whose keys begin at sep, beside the node at path level d. fresh: nodes enough
 * for every interior node that overflows, and for a new top.
 */
static void path_add_right(struct tree *t, struct path *p, unsigned d, struct key sep,
			   struct node *right, struct node **fresh)
{
	while (d-- > 0) {
		struct node *n = p->at[d].node, *new_right;
		unsigned pos = p->at[d].pos + 1, cut;

		if (n->count < CHILDREN_MAX) {
			inner_insert(n, pos, &sep, right);
			return;
		}
		new_right = *fresh++;
		cut = inner_cut(n, pos);
		if (pos < cut) {
			inner_move(n, cut - 1, n->count - (cut - 1), new_right, 0);
			inner_insert(n, pos, &sep, right);
		} else {
			inner_move(n, cut, n->count - cut, new_right, 0);
			inner_insert(new_right, pos - cut, &sep, right);
		}
		sep = node_inner(new_right)->keys[0];
		right = new_right;
	}
	inner_insert(*fresh, 0, &KEY_MIN, t->top);
	inner_insert(*fresh, 1, &sep, right);
	t->top = *fresh;
}

/* How many of a full leaf's items and the new one at pos go to the left leaf. */
static unsigned leaf_cut(const struct node *n, unsigned pos, unsigned new_size)
{
	unsigned half = (n->size - NODE_HEADER + new_size) / 2, left = 0, v = 0;

	if (pos == n->count)
		return n->count;
	if (pos == 0)
		return 1;

	/* no item is larger than a quarter of a node, so neither side can overflow */
	for (;; v++) {
		unsigned i = v < pos ? v : v - 1;
		unsigned size = v == pos ? new_size :
					   item_size(node_slots(n)[i].kind, node_slots(n)[i].len);

		if (left + size > half)
			return v;
		left += size;
	}
}

/* Inserts where the leaf has no room, found or not. v's blob reference is taken on success. */
static int path_split_put(struct tree *t, struct path *p, const struct key *k,
			  const struct val *v)
{
	struct node *fresh[TREE_HEIGHT_MAX + 1] = { NULL };
	struct node *leaf = p->at[p->depth - 1].node, *right;
	unsigned pos = p->at[p->depth - 1].pos, d = p->depth - 1, count = 0, cut;
	struct key sep;

	forget_recent(t);
	/* a leaf, each full ancestor up to the first with room, and a top if there is none */
	fresh[count++] = node_new(t->ns, 0, t->gen);
	while (fresh[count - 1] && d > 0 && p->at[d - 1].node->count == CHILDREN_MAX)
		fresh[count++] = node_new(t->ns, p->at[--d].node->level, t->gen);
	if (fresh[count - 1] && d == 0)
		fresh[count++] = p->depth < TREE_HEIGHT_MAX ?
					 node_new(t->ns, t->top->level + 1, t->gen) :
					 NULL;
	if (!fresh[count - 1]) {
		while (count-- > 0)
			node_unref(fresh[count]);
		return -ENOMEM;
	}

	if (p->found)
		leaf_remove(leaf, pos);
	right = fresh[0];
	cut = leaf_cut(leaf, pos, item_size(v->ref.kind, v->len));
	if (pos < cut) {
		leaf_move(leaf, cut - 1, right);
		leaf_insert(leaf, pos, k, v);
	} else {
		leaf_move(leaf, cut, right);
		leaf_insert(right, pos - cut, k, v);
	}
	sep = slot_key(node_slots(right));
	path_add_right(t, p, p->depth - 1, sep, right, fresh + 1);
	return 0;
}

/* Do the value's bytes lie in that node? */
static bool lends(const struct node *n, const struct val *v)
{
	return (uintptr_t)v->data - (uintptr_t)n->data < n->room;
}

/* Bytes of the leaf at the end of the path when v is there. */
static unsigned size_with(const struct path *p, const struct val *v)
{
	const struct node *leaf = p->at[p->depth - 1].node;
	unsigned size = leaf->size + item_size(v->ref.kind, v->len);

	if (p->found) {
		const struct slot *s = node_slots(leaf) + p->at[p->depth - 1].pos;

		size -= item_size(s->kind, s->len);
	}
	return size;
}

static int path_find_to_put(const struct tree *t, const struct key *k, const struct val *v,
			    struct path *p)
{
	int r = path_find_recent(t, k, p);

	if (r == 0 && p->short_cut && size_with(p, v) > NODE_MAX) /* a split is told above */
		r = path_find(t, k, p);
	return r;
}

int tree_put(struct tree *t, const struct key *k, const struct val *v)
{
	uint8_t data[VAL_MAX];
	struct val val = *v, old;
	struct key key = *k;
	struct path p;
	struct node *leaf;
	unsigned pos, size;
	int r;

	if (v->len > VAL_MAX)
		return -ERR_VALUE_TOO_LARGE;

	r = path_find_to_put(t, &key, v, &p);
	if (r < 0)
		return r;
	if (p.depth > 0 && lends(p.at[p.depth - 1].node, v)) { /* it moves below, or goes */
		memcpy(data, v->data, v->len);
		val.data = data;
	}
	if (p.depth == 0) {
		t->top = node_new(t->ns, 0, t->gen);
		if (!t->top)
			return -ENOMEM;
		p.at[0].node = t->top;
		p.at[0].pos = 0;
		p.depth = 1;
	}
	r = path_own(t, &p);
	if (r < 0)
		return r;
	leaf = p.at[p.depth - 1].node;
	pos = p.at[p.depth - 1].pos;
	size = size_with(&p, &val);
	if (p.found)
		leaf_val(leaf, pos, &old);
	r = t->log ? oplog_put(t->log, &key, &val, p.found ? &old : NULL) : 0;
	if (r < 0)
		return r;

	if (val.ref.kind == REF_BLOB)
		(void)blob_ref(val.ref.blob); /* before the old value's reference goes */
	if (size > NODE_MAX) {
		r = path_split_put(t, &p, &key, &val);
		if (r < 0) {
			if (t->log)
				oplog_undo(t->log);
			if (val.ref.kind == REF_BLOB)
				blob_unref(val.ref.blob);
			return r;
		}
	} else if (p.found) {
		leaf_replace(leaf, pos, &val);
	} else {
		leaf_insert(leaf, pos, &key, &val);
	}
	if (!p.short_cut && size <= NODE_MAX)
		recent_add(t, &p);
	tree_changed(t);
	return 0;
}

int tree_touch(struct tree *t, const struct key *k)
{
	struct path p;
	int r;

	r = path_find(t, k, &p);
	if (r < 0 || p.depth == 0)
		return r;
	r = path_own(t, &p);
	if (r < 0)
		return r;

	/* bytes of a blob may change next without a put, so this counts as a change */
	tree_changed(t);
	return 0;
}

/* ---- delete ---- */

/* Child i of an owned node, made the tree's own. */
static int own_child(struct tree *t, struct node *parent, unsigned i, struct node **ret)
{
	struct node *child, *copy;
	int r;

	r = node_child(parent, i, &child);
	if (r < 0)
		return r;
	if (child->gen != t->gen) {
		copy = node_copy(child, t->gen);
		if (!copy)
			return -ENOMEM;
		inner_replace(parent, i, copy);
		child = copy;
	}
	*ret = child;
	return 0;
}

/*
 * Merges children i and i + 1 of an owned node into one. 0; END: shared evenly instead (interior);
 * AGAIN: they do not fit one node.
 */
static int join(struct tree *t, struct node *parent, unsigned i)
{
	struct node *left, *right;
	unsigned half;
	int r;

	forget_recent(t);
	r = node_child(parent, i, &left);
	if (r < 0)
		return r;
	r = node_child(parent, i + 1, &right);
	if (r < 0)
		return r;

	if (left->size + right->size - NODE_HEADER <= NODE_MAX) {
		r = own_child(t, parent, i, &left);
		if (r < 0)
			return r;
		if (left->level > 0)
			inner_append_copy(right, left);
		else
			leaf_append_copy(right, left);
		inner_remove(parent, i + 1);
		return 0;
	}
	if (left->level == 0)
		return AGAIN;

	r = own_child(t, parent, i, &left);
	if (r < 0)
		return r;
	r = own_child(t, parent, i + 1, &right);
	if (r < 0)
		return r;
	half = (left->count + right->count) / 2;
	if (left->count < half)
		inner_move(right, 0, half - left->count, left, left->count);
	else
		inner_move(left, half, left->count - half, right, 0);
	node_inner(parent)->keys[i + 1] = node_inner(right)->keys[0];
	return END;
}

static void path_rebalance(struct tree *t, struct path *p)
{
	for (unsigned d = p->depth - 1; d > 0 && p->at[d].node->size < QUARTER; d--) {
		struct node *parent = p->at[d - 1].node;
		unsigned pos = p->at[d - 1].pos;
		int r = AGAIN;

		if (parent->count < 2)
			continue;
		if (pos > 0)
			r = join(t, parent, pos - 1);
		if ((r == AGAIN || r < 0) && pos + 1 < parent->count)
			r = join(t, parent, pos);
		if (r != 0)
			break;
	}

	while (t->top->level > 0 && t->top->count == 1) {
		struct node *child;

		if (node_child(t->top, 0, &child) < 0)
			return;
		node_ref(child);
		node_unref(t->top);
		t->top = child;
	}
}

/* Is there an item at the end of the path, or after it in the same leaf? */
static bool at_item(const struct path *p)
{
	return p->depth > 0 && p->at[p->depth - 1].pos < p->at[p->depth - 1].node->count;
}

/* Will the leaf at the end of the path be small enough to merge without the item there? */
static bool will_be_small(const struct path *p)
{
	const struct node *leaf = p->at[p->depth - 1].node;
	const struct slot *s = node_slots(leaf) + p->at[p->depth - 1].pos;

	return at_item(p) && leaf->size - item_size(s->kind, s->len) < QUARTER;
}

static int path_find_to_del(const struct tree *t, const struct key *k, struct path *p)
{
	int r = path_find_recent(t, k, p);

	if (r == 0 && p->short_cut && will_be_small(p)) /* a merge is told above */
		r = path_find(t, k, p);
	return r;
}

/* Deletes the item at the end of the path, whose key is k. */
static int path_del(struct tree *t, struct path *p, const struct key *k)
{
	struct node *leaf;
	unsigned pos;
	struct val old;
	int r;

	r = path_own(t, p);
	if (r < 0)
		return r;
	leaf = p->at[p->depth - 1].node;
	pos = p->at[p->depth - 1].pos;
	leaf_val(leaf, pos, &old);
	r = t->log ? oplog_del(t->log, k, &old) : 0;
	if (r < 0)
		return r;

	leaf_remove(leaf, pos);
	tree_changed(t);
	if (!p->short_cut) {
		recent_add(t, p);
		path_rebalance(t, p);
	}
	return 0;
}

int tree_del(struct tree *t, const struct key *k)
{
	struct path p;
	int r;

	r = path_find_to_del(t, k, &p);
	if (r < 0)
		return r;
	return p.found ? path_del(t, &p, k) : ABSENT;
}

int tree_del_range(struct tree *t, const struct key *first, const struct key *last)
{
	struct key k = *first;
	struct path p;
	struct val v;
	int r;

	for (;;) {
		r = path_find_to_del(t, &k, &p);
		if (r < 0)
			return r;
		if (at_item(&p)) {
			k = slot_key(node_slots(p.at[p.depth - 1].node) + p.at[p.depth - 1].pos);
			if (key_less(last, &k))
				return 0;
			r = path_del(t, &p, &k);
		} else { /* what comes next is in another leaf */
			r = tree_first_from(t, &k, &k, &v);
			if (r == END)
				return 0;
		}
		if (r < 0)
			return r;
	}
}
