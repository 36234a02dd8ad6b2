/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The bytes of nodes, which FORMAT.md describes: writing them, and reading what nobody vouches for.
 * What one node alone shows of N4 and N5 (node.h) is checked here, the rest by node_fits.
 */

#include "store/node.h"

#include <errno.h>

#include "store/base/err.h"
#include "store/base/util.h"
#include "store/blob.h"

/*
 * header: magic "pn", version, level, count (16 bits), bytes of the node (16 bits)
 * item:   key, length | kind << 12 (16 bits), [name, offset (32 bits)], value
 * child:  key, name
 * key:    a (64 bits), t (8 bits), b (64 bits)
 */
#define MAGIC_0 'p'
#define MAGIC_1 'n'
#define NODE_VERSION 1
#define KIND_SHIFT 12 /* VAL_MAX fits ten bits; two stay free and are zero */
static_assert(VAL_MAX < 1 << 10, "");

static uint8_t *key_encode(uint8_t *p, const struct key *k)
{
	put_le64(p, k->a);
	p[8] = k->t;
	put_le64(p + 9, k->b);
	return p + KEY_BYTES;
}

static struct key key_decode(const uint8_t *p)
{
	return (struct key){ .a = get_le64(p), .t = p[8], .b = get_le64(p + 9) };
}

int node_encode(const struct node *n, uint8_t *buf, uint32_t *ret_len)
{
	uint8_t *p = buf + NODE_HEADER;
	int r;

	buf[0] = MAGIC_0;
	buf[1] = MAGIC_1;
	buf[2] = NODE_VERSION;
	buf[3] = n->level;
	put_le16(buf + 4, n->count);
	put_le16(buf + 6, n->size);

	for (unsigned i = 0; n->level > 0 && i < n->count; i++) {
		struct node *child;
		struct name name = { 0 };
		bool named = node_child_name(n, i, &child, &name);

		assert(named);
		(void)named; /* with NDEBUG */
		p = key_encode(p, &node_inner(n)->keys[i]);
		memcpy(p, name.b, NAME_BYTES);
		p += NAME_BYTES;
	}
	for (unsigned i = 0; n->level == 0 && i < n->count; i++) {
		struct key k = slot_key(node_slots(n) + i);
		struct val v;

		leaf_val(n, i, &v);
		if (v.ref.kind == REF_BLOB) {
			struct name name;

			r = blob_seal(v.ref.blob, &name);
			if (r > 0)
				nodes_note_unreadable(n->ns, &k);
			if (r != 0 && r != ABSENT)
				return r < 0 ? r : -EIO;
			v.ref.kind = REF_CHUNK;
			v.ref.name = name;
		}
		p = key_encode(p, &k);
		put_le16(p, v.len | v.ref.kind << KIND_SHIFT);
		p += 2;
		if (v.ref.kind == REF_CHUNK) {
			memcpy(p, v.ref.name.b, NAME_BYTES);
			put_le32(p + NAME_BYTES, v.ref.off);
			p += REF_BYTES;
		}
		if (v.len > 0)
			memcpy(p, v.data, v.len);
		p += v.len;
	}
	assert(p == buf + n->size);
	*ret_len = n->size;
	return 0;
}

static int inner_decode(const uint8_t *buf, size_t len, struct node *n)
{
	struct inner *in = node_inner(n);
	unsigned count = get_le16(buf + 4);
	const uint8_t *p = buf + NODE_HEADER;

	if (count == 0 || count > CHILDREN_MAX || len != NODE_HEADER + count * CHILD_BYTES)
		return -ERR_NODE_DAMAGED;

	for (unsigned i = 0; i < count; i++) {
		in->keys[i] = key_decode(p);
		memcpy(in->names[i].b, p + KEY_BYTES, NAME_BYTES);
		atomic_store_explicit(&in->child[i], NULL, memory_order_relaxed);
		p += CHILD_BYTES;
		if (i > 0 && !key_less(&in->keys[i - 1], &in->keys[i]))
			return -ERR_NODE_DAMAGED;
		n->count = i + 1;
	}
	n->size = len;
	return 0;
}

/*
 * The first pass over a leaf's bytes: everything is checked, nothing is built. Gives the bytes
 * that its values and references take in memory.
 */
static int leaf_measure(const uint8_t *buf, size_t len, unsigned *ret_heap)
{
	unsigned count = get_le16(buf + 4), heap = 0;
	const uint8_t *p = buf + NODE_HEADER, *end = buf + len;
	struct key last;

	for (unsigned i = 0; i < count; i++) {
		unsigned word, kind, value;
		struct key k;

		if (end - p < ITEM_HEADER)
			return -ERR_NODE_DAMAGED;
		k = key_decode(p);
		word = get_le16(p + KEY_BYTES);
		kind = word >> KIND_SHIFT;
		value = word & ((1 << KIND_SHIFT) - 1);
		if ((kind != REF_NONE && kind != REF_CHUNK) || value > VAL_MAX)
			return -ERR_NODE_DAMAGED;
		if ((size_t)(end - p) < item_size(kind, value))
			return -ERR_NODE_DAMAGED;
		if (i > 0 && !key_less(&last, &k))
			return -ERR_NODE_DAMAGED;
		last = k;
		p += item_size(kind, value);
		heap += item_size(kind, value) - ITEM_HEADER;
	}
	if (p != end)
		return -ERR_NODE_DAMAGED;
	*ret_heap = heap;
	return 0;
}

int node_decode(struct nodes *ns, const uint8_t *buf, size_t len, struct node **ret)
{
	_cleanup_(node_unrefp) struct node *n = NULL;
	unsigned level, count, heap = 0;
	const uint8_t *p = buf + NODE_HEADER;
	int r;

	if (len < NODE_HEADER || len > NODE_MAX)
		return -ERR_NODE_DAMAGED;
	level = buf[3];
	count = get_le16(buf + 4);
	if (buf[0] != MAGIC_0 || buf[1] != MAGIC_1 || buf[2] != NODE_VERSION ||
	    level >= TREE_HEIGHT_MAX || get_le16(buf + 6) != len)
		return -ERR_NODE_DAMAGED;

	if (level > 0) {
		n = node_alloc(ns, level, 0, 0);
		if (!n)
			return -ENOMEM;
		r = inner_decode(buf, len, n);
		if (r < 0)
			return r;
		*ret = TAKE_PTR(n);
		return 0;
	}

	r = leaf_measure(buf, len, &heap);
	if (r < 0)
		return r;

	/* exactly as large as needed: a node from a chunk is copied before it is changed */
	n = node_alloc(ns, 0, count * sizeof(struct slot) + heap, 0);
	if (!n)
		return -ENOMEM;
	for (unsigned i = 0; i < count; i++) {
		struct key k = key_decode(p);
		unsigned word = get_le16(p + KEY_BYTES);
		unsigned kind = word >> KIND_SHIFT, value = word & ((1 << KIND_SHIFT) - 1);
		unsigned bytes = item_size(kind, value) - ITEM_HEADER;
		unsigned ref = bytes - value;

		n->heap += bytes;
		/* in memory as on disk: see leaf_val */
		memcpy(n->data + n->room - n->heap, p + ITEM_HEADER, bytes);
		node_slots(n)[i] = (struct slot){
			.a = k.a,
			.b = k.b,
			.t = k.t,
			.kind = kind,
			.len = value,
			.back = n->heap - ref,
		};
		p += ITEM_HEADER + bytes;
	}
	n->count = count;
	n->size = len;
	*ret = TAKE_PTR(n);
	return 0;
}
