/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Looking at a whole state: root_check reads every node from its chunk, whatever is in memory,
 * because the disk is what it checks; root_dump prints what is there, sealed or not.
 */

#include "store/tree_internal.h"

#include <errno.h>
#include <inttypes.h>

#include "store/base/err.h"
#include "store/base/util.h"

/* level -1: the top. last is inclusive. */
static int check_node(struct nodes *ns, const struct tree_check *ops, const struct name *name,
		      int level, const struct key *first, const struct key *last)
{
	_cleanup_(node_unrefp) struct node *n = NULL;
	struct key end;
	int r, found;

	if (ops->skip && ops->skip(ops->arg, name, first, last))
		return 0;
	found = node_read(ns, name, &n);
	if (found == -ENOMEM)
		return found;
	if (found == 0)
		found = node_fits(n, level, first, NULL);
	if (found == 0 && n->count > 0) {
		end = n->level > 0 ? node_inner(n)->keys[n->count - 1] :
				     slot_key(node_slots(n) + n->count - 1);
		if (key_less(last, &end))
			found = -ERR_NODE_DAMAGED;
	}

	r = ops->node(ops->arg, name, level >= 0 ? level : n ? n->level : 0, first, last, found);
	if (r != 0)
		return r < 0 ? r : 0;
	if (found < 0)
		return 0;

	for (unsigned i = 0; i < n->count; i++) {
		const struct inner *in = node_inner(n);

		if (n->level == 0) {
			struct key k = slot_key(node_slots(n) + i);
			struct val v;

			if (!ops->item)
				break;
			leaf_val(n, i, &v);
			r = ops->item(ops->arg, &k, &v);
		} else {
			end = i + 1 < n->count ? key_prev(&in->keys[i + 1]) : *last;
			r = check_node(ns, ops, &in->names[i], n->level - 1, &in->keys[i], &end);
		}
		if (r < 0)
			return r;
	}
	return 0;
}

int root_check(struct root *r, const struct tree_check *ops)
{
	struct name name;

	if (root_name(r, &name) != 0)
		return AGAIN;
	if (!r->lazy && !atomic_load_explicit(&r->top, memory_order_acquire))
		return 0; /* the empty state */
	return check_node(r->ns, ops, &name, -1, &KEY_MIN, &KEY_MAX);
}

static void dump_key(FILE *out, const struct key *k)
{
	fprintf(out, "%" PRIu64 ".%u.%" PRIx64, k->a, k->t, k->b);
}

static void dump_item(FILE *out, const struct key *k, const struct val *v)
{
	char text[NAME_HEX_SIZE];

	dump_key(out, k);
	fprintf(out, " %" PRIu32 " byte%s", v->len, plural(v->len));
	if (v->ref.kind == REF_CHUNK)
		fprintf(out, " chunk %s+%" PRIu32, name_to_text(&v->ref.name, text), v->ref.off);
	else if (v->ref.kind == REF_BLOB)
		fprintf(out, " blob+%" PRIu32, v->ref.off);
}

struct dump {
	struct nodes *ns;
	FILE *out;
	int max_depth;
	void (*item_to_text)(FILE *out, const struct key *k, const struct val *v);
};

static int dump_node(const struct dump *d, struct node *node, const struct name *name, int level,
		     const struct key *lower, const struct key *upper, int depth)
{
	_cleanup_(node_unrefp) struct node *n = NULL;
	char text[NAME_HEX_SIZE];
	int r;

	fprintf(d->out, "%*snode %s from ", 2 * depth, "", name ? name_to_text(name, text) : "-");
	dump_key(d->out, lower);
	r = node_peek(d->ns, node, name, level, lower, upper, &n);
	if (r == -ENOMEM)
		return r;
	if (r < 0) {
		fprintf(d->out, ": %s\n", err_str(r));
		return 0;
	}
	fprintf(d->out, ": level %u, %u %s%s, %u bytes\n", n->level, n->count,
		n->level == 0 ? "item" : n->count == 1 ? "child" : "children",
		n->level == 0 ? plural(n->count) : "", n->size);
	if (depth >= d->max_depth)
		return 0;

	for (unsigned i = 0; i < n->count; i++) {
		const struct inner *in = node_inner(n);
		struct node *child;
		struct name child_name;
		bool named;

		if (n->level == 0) {
			struct key k = slot_key(node_slots(n) + i);
			struct val v;

			leaf_val(n, i, &v);
			fprintf(d->out, "%*s", 2 * depth + 2, "");
			(d->item_to_text ? d->item_to_text : dump_item)(d->out, &k, &v);
			fputc('\n', d->out);
			continue;
		}
		named = node_child_name(n, i, &child, &child_name);
		r = dump_node(d, child, named ? &child_name : NULL, n->level - 1, &in->keys[i],
			      i + 1 < n->count ? &in->keys[i + 1] : NULL, depth + 1);
		if (r < 0)
			return r;
	}
	return 0;
}

int root_dump(struct root *r, FILE *out, int max_depth,
	      void (*item_to_text)(FILE *out, const struct key *k, const struct val *v))
{
	const struct dump d = {
		.ns = r->ns, .out = out, .max_depth = max_depth, .item_to_text = item_to_text
	};
	struct node *top = atomic_load_explicit(&r->top, memory_order_acquire);
	struct name name;
	bool named = root_name(r, &name) == 0;
	int e;

	if (!top && !r->lazy) {
		fprintf(out, "empty\n");
		return 0;
	}
	e = dump_node(&d, top, named ? &name : NULL, -1, &KEY_MIN, NULL, 0);
	if (e < 0)
		return e;
	return ferror(out) ? -EIO : 0;
}
