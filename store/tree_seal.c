/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Sealing a state, and marking the chunks it needs.
 *
 * Sealing goes from the leaves up, so that a node is stored after all that it names, and becomes
 * `sealed` only then (N3): whenever it stops, a sealed node is complete, and the next call goes on
 * with what is left. Sealed subtrees are not entered: the cost follows what changed.
 */

#include "store/tree_internal.h"

#include <errno.h>

#include "store/base/err.h"
#include "store/base/util.h"
#include "store/blob.h"
#include "store/chunk.h"

/* All below is sealed. Apart from node_seal so that the buffer is not part of its recursion. */
static __attribute__((noinline)) int node_store(struct node *n)
{
	uint8_t buf[NODE_MAX];
	struct name name;
	uint32_t len;
	int r;

	r = node_encode(n, buf, &len);
	if (r < 0)
		return r;
	r = chunk_put(nodes_chunks(n->ns), CHUNK_NODE, buf, len, &name);
	if (r < 0)
		return r;
	node_set_sealed(n, &name);
	return 0;
}

/* Goes as deep as the tree is high. */
static int node_seal(struct node *n)
{
	struct name name;
	int r;

	for (unsigned i = 0; n->level > 0 && i < n->count; i++) {
		struct node *child;

		if (node_child_name(n, i, &child, &name))
			continue;
		r = node_seal(child);
		if (r < 0)
			return r;
	}

	return node_store(n);
}

int root_seal(struct root *r)
{
	struct node *top = atomic_load_explicit(&r->top, memory_order_acquire);
	struct name name;

	if (r->lazy || !top || node_name(top, &name))
		return 0;
	return node_seal(top);
}

int node_peek(struct nodes *ns, struct node *node, const struct name *name, int level,
	      const struct key *lower, const struct key *upper, struct node **ret)
{
	_cleanup_(node_unrefp) struct node *n = node ? node_ref(node) : NULL;
	int r;

	if (!n) {
		r = node_read(ns, name, &n);
		if (r < 0)
			return r;
	}
	r = node_fits(n, level, lower, upper);
	if (r < 0)
		return r;
	*ret = TAKE_PTR(n);
	return 0;
}

struct mark {
	struct nodes *ns;
	int (*fn)(void *arg, const struct name *name, bool is_node);
	void (*damaged)(void *arg, const struct name *name, int r);
	void *arg;
};

static int mark_items(const struct mark *m, const struct node *n)
{
	for (unsigned i = 0; i < n->count; i++) {
		struct val v;
		int r;

		if (node_slots(n)[i].kind == REF_NONE)
			continue;
		leaf_val(n, i, &v);
		if (v.ref.kind == REF_BLOB) {
			struct name name;

			if (!blob_name(v.ref.blob, &name))
				continue;
			r = m->fn(m->arg, &name, false);
		} else {
			r = m->fn(m->arg, &v.ref.name, false);
		}
		if (r < 0)
			return r;
	}
	return 0;
}

/* node NULL: not in memory, and then it has a name. name NULL: not sealed. */
static int mark_node(const struct mark *m, struct node *node, const struct name *name, int level,
		     const struct key *lower, const struct key *upper)
{
	_cleanup_(node_unrefp) struct node *n = NULL;
	int r;

	if (name) {
		r = m->fn(m->arg, name, true);
		if (r != 0)
			return r < 0 ? r : 0;
	}
	r = node_peek(m->ns, node, name, level, lower, upper, &n);
	if (r == -ENOMEM || (r < 0 && (!m->damaged || !name)))
		return r;
	if (r < 0) {
		m->damaged(m->arg, name, r);
		return 0;
	}

	if (n->level == 0)
		return mark_items(m, n);
	for (unsigned i = 0; i < n->count; i++) {
		const struct inner *in = node_inner(n);
		struct node *child;
		struct name child_name;
		bool named = node_child_name(n, i, &child, &child_name);

		r = mark_node(m, child, named ? &child_name : NULL, n->level - 1, &in->keys[i],
			      i + 1 < n->count ? &in->keys[i + 1] : NULL);
		if (r < 0)
			return r;
	}
	return 0;
}

int root_mark(struct root *r, int (*fn)(void *arg, const struct name *name, bool is_node),
	      void (*damaged)(void *arg, const struct name *name, int r), void *arg)
{
	const struct mark m = { .ns = r->ns, .fn = fn, .damaged = damaged, .arg = arg };
	struct node *top = atomic_load_explicit(&r->top, memory_order_acquire);
	struct name name;
	bool named = root_name(r, &name) == 0;

	if (!top && !r->lazy)
		return 0;
	return mark_node(&m, top, named ? &name : NULL, -1, &KEY_MIN, NULL);
}
