/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Letting go of nodes that are chunks, so that memory follows what is used now and not what was
 * ever looked at. They are loaded again on demand.
 *
 * A loaded child pointer in a frozen node never goes away (N2): readers of roots take no lock and
 * follow such pointers without references. So nothing is taken out of frozen nodes. Instead a
 * whole state is exchanged for an equal root of which nothing is loaded; the former one goes with
 * its last user. A tree that was changed since it was frozen keeps the nodes that are its own,
 * which nobody else can see (N1), and from these drops the children that are sealed. Who reads all
 * of a state cannot wait until its other users let go: he gets nodes that are his alone.
 *
 * The hot nodes go, too, and come back one by one, some 10 us each: cheaper than to tell them apart
 * on each use, as it happens every few seconds at most (store_limit_nodes).
 */

#include "store/tree_internal.h"

#include <errno.h>

#include "store/base/err.h"
#include "store/base/os.h"
#include "store/base/util.h"

static void keep_root(struct shed *s, struct root *taken)
{
	if (os_grow(&s->roots, &s->cap_roots, s->n_roots + 1, sizeof(struct root *)) < 0)
		root_unref(taken); /* now, then: it only takes the caller's time */
	else
		s->roots[s->n_roots++] = taken;
}

static void keep_node(struct shed *s, struct node *taken)
{
	if (os_grow(&s->nodes, &s->cap_nodes, s->n_nodes + 1, sizeof(struct node *)) < 0)
		node_unref(taken);
	else
		s->nodes[s->n_nodes++] = taken;
}

void shed_release(struct shed *s)
{
	for (size_t i = 0; i < s->n_roots; i++)
		root_unref(s->roots[i]);
	for (size_t i = 0; i < s->n_nodes; i++)
		node_unref(s->nodes[i]);
	free(s->roots);
	free(s->nodes);
}

int root_bare(const struct root *r, struct root **ret)
{
	struct name name;

	if (!atomic_load_explicit(&r->top, memory_order_acquire))
		return ABSENT;
	if (root_name(r, &name) != 0)
		return ABSENT;
	return root_by_name(r->ns, &name, ret);
}

void shed_root(struct shed *s, struct root **root, struct root *bare)
{
	keep_root(s, *root);
	*root = bare;
}

/* Goes as deep as the tree is high. */
static void shed_children(struct shed *s, const struct tree *t, struct node *n)
{
	struct inner *in = node_inner(n);

	for (unsigned i = 0; n->level > 0 && i < n->count; i++) {
		struct node *child = atomic_load_explicit(&in->child[i], memory_order_relaxed);
		struct name name;

		if (!child)
			continue;
		if (child->gen == t->gen) {
			shed_children(s, t, child);
		} else if (node_name(child, &name)) {
			in->names[i] = name;
			atomic_store_explicit(&in->child[i], NULL, memory_order_relaxed);
			keep_node(s, child);
		}
	}
}

void shed_tree(struct shed *s, struct tree *t)
{
	struct root *bare;

	if (t->top && t->top->gen == t->gen)
		shed_children(s, t, t->top);
	if (t->base && root_bare(t->base, &bare) == 0)
		shed_root(s, &t->base, bare);
}

int tree_read_apart(struct tree *t, uint64_t most)
{
	_cleanup_(root_unrefp) struct root *bare = NULL;
	uint64_t nodes, bytes;
	struct name name;
	int r;

	if (t->apart) {
		nodes_stats(t->apart, &nodes, &bytes);
		if (bytes <= most)
			return 0;
	}
	if (t->top || root_name(t->base, &name) != 0)
		return ABSENT;

	if (!t->apart) {
		r = nodes_new(nodes_chunks(t->ns), nodes_noter(t->ns), &t->apart);
		if (r < 0)
			return r;
	}
	r = root_by_name(t->apart, &name, &bare);
	return r < 0 ? r : tree_reset(t, bare);
}

bool tree_is_apart(const struct tree *t)
{
	return t->apart;
}

struct root *tree_state(const struct tree *t)
{
	return t->base;
}
