/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What the tests of the persistent tree share: a scratch store with an empty table of nodes, and
 * short words for items, states and what they look like. Use setup/teardown as a checked fixture.
 */

#include "store/tree.h"
#include "tests/unit/scratch.h"

static struct scratch scratch;
static struct nodes *nodes;

static void setup(void)
{
	scratch_make(&scratch);
	scratch_open(&scratch);
	ck_assert_int_eq(nodes_new(scratch.chunks, NULL, &nodes), 0);
}

static void teardown(void)
{
	uint64_t count, bytes;

	nodes_stats(nodes, &count, &bytes);
	ck_assert_uint_eq(count, 0);
	ck_assert_uint_eq(bytes, 0);
	nodes_free(nodes);
	scratch_close(&scratch); /* insists that no blob is left */
	scratch_remove(&scratch);
}

static struct key key(uint64_t a)
{
	return (struct key){ .a = a, .b = ~a, .t = a % 3 };
}

static struct tree *new_tree(void)
{
	_cleanup_(root_unrefp) struct root *empty = NULL;
	struct tree *t;

	ck_assert_int_eq(root_empty(nodes, &empty), 0);
	ck_assert_int_eq(tree_new(nodes, empty, &t), 0);
	return t;
}

/* The value of item a: len bytes that depend on a and on version. */
static void put(struct tree *t, uint64_t a, unsigned version, unsigned len)
{
	uint8_t data[VAL_MAX];
	struct key k = key(a);

	memset(data, (int)(a * 7 + version), sizeof(data));
	ck_assert_int_eq(tree_put(t, &k, &(struct val){ .data = data, .len = len }), 0);
}

static void expect(const struct tree *t, uint64_t a, unsigned version, unsigned len)
{
	uint8_t data[VAL_MAX];
	struct key k = key(a);
	struct val v;

	memset(data, (int)(a * 7 + version), sizeof(data));
	ck_assert_int_eq(tree_get(t, &k, &v), 0);
	ck_assert_uint_eq(v.len, len);
	ck_assert_int_eq(memcmp(v.data, data, len), 0);
	ck_assert_uint_eq(v.ref.kind, REF_NONE);
}

static struct root *freeze(struct tree *t)
{
	struct root *r;

	ck_assert_int_eq(tree_freeze(t, &r), 0);
	return r;
}

static struct name seal(struct root *r)
{
	struct name n;

	ck_assert_int_eq(root_seal(r), 0);
	ck_assert_int_eq(root_name(r, &n), 0);
	return n;
}

struct shape {
	uint64_t leaves, inner, bytes, items;
};

static int shape_node(void *arg, const struct name *name, unsigned level, const struct key *first,
		      const struct key *last, int r)
{
	struct shape *s = arg;
	struct chunkbuf *b;

	ck_assert_int_eq(r, 0);
	ck_assert_int_le(key_cmp(first, last), 0);
	ck_assert_int_eq(chunk_load(scratch.chunks, name, &b), 0);
	ck_assert_uint_le(b->len, NODE_MAX);
	if (level == 0) {
		s->leaves++;
		s->bytes += b->len;
	} else {
		s->inner++;
	}
	chunkbuf_unref(b);
	return 0;
}

static int shape_item(void *arg, const struct key *k, const struct val *v)
{
	((struct shape *)arg)->items++;
	return 0;
}

/* Seals, checks, and says how full the leaves are, in percent. */
static unsigned leaf_fill(struct tree *t, struct shape *ret)
{
	_cleanup_(root_unrefp) struct root *r = freeze(t);

	seal(r);
	*ret = (struct shape){ 0 };
	ck_assert_int_eq(root_check(r, &(struct tree_check){ .node = shape_node,
							     .item = shape_item,
							     .arg = ret }),
			 0);
	return ret->bytes * 100 / (ret->leaves * NODE_MAX);
}

static int count_diff(void *arg, const struct key *k, const struct val *o, const struct val *n)
{
	++*(int *)arg;
	return 0;
}

static int differences(struct root *a, struct root *b)
{
	int n = 0;

	ck_assert_int_eq(root_diff(a, b, &KEY_MIN, &KEY_MAX, count_diff, &n), 0);
	return n;
}
