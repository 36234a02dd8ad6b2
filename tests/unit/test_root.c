/* SPDX-License-Identifier: Apache-2.0 */

/* States of a persistent tree: freezing, sharing, references, sealing, marking, damage, threads. */

#include <stdatomic.h>

#include "store/base/fault.h"
#include "store/node.h"
#include "store/tree_internal.h"
#include "tests/unit/tree_fixture.h"

/* Item a: one byte, and a reference to the blob from off on. */
static void put_blob(struct tree *t, uint64_t a, uint32_t off, struct blob *b)
{
	struct key k = key(a);
	struct val v = { .data = "x", .len = 1 };

	v.ref = (struct ref){ .kind = REF_BLOB, .off = off, .blob = b };
	ck_assert_int_eq(tree_put(t, &k, &v), 0);
}

/* Items 0 to n - 1 of len bytes; every `every`th has a blob instead. */
static void fill(struct tree *t, uint64_t n, unsigned len, unsigned every)
{
	for (uint64_t i = 0; i < n; i++) {
		struct blob *b;

		put(t, i, 0, len);
		if (i % every != 0)
			continue;
		ck_assert_int_eq(blob_new(scratch.stage, &i, sizeof(i), &b), 0);
		put_blob(t, i, 0, b);
		blob_unref(b);
	}
}

/* ---- freezing and sharing ---- */

START_TEST(freezing_an_unchanged_tree_gives_the_same_root)
{
	_cleanup_(tree_freep) struct tree *t = new_tree();
	_cleanup_(root_unrefp) struct root *a = NULL, *b = NULL, *c = NULL;

	put(t, 1, 0, 10);
	ck_assert(t->dirty);
	a = freeze(t);
	ck_assert(!t->dirty);
	b = freeze(t);
	ck_assert_ptr_eq(a, b);
	put(t, 1, 1, 10);
	c = freeze(t);
	ck_assert(!root_same(a, c));
	ck_assert_int_eq(differences(a, c), 1);
}
END_TEST

START_TEST(a_frozen_state_never_changes)
{
	_cleanup_(tree_freep) struct tree *t = new_tree(), *fork = NULL, *old = NULL;
	_cleanup_(root_unrefp) struct root *r = NULL;

	for (uint64_t i = 0; i < 5000; i++)
		put(t, i, 0, 30);
	r = freeze(t);
	ck_assert_int_eq(tree_new(nodes, r, &fork), 0);
	ck_assert_int_eq(tree_new(nodes, r, &old), 0);
	for (uint64_t i = 0; i < 5000; i += 7) {
		put(t, i, 1, 31);
		put(fork, i, 2, 29);
	}
	for (uint64_t i = 0; i < 5000; i++) {
		expect(old, i, 0, 30);
		expect(t, i, i % 7 ? 0 : 1, i % 7 ? 30 : 31);
		expect(fork, i, i % 7 ? 0 : 2, i % 7 ? 30 : 29);
	}
	ck_assert_int_eq(tree_reset(t, r), 0);
	put(t, 3, 9, 9);
	expect(old, 3, 0, 30);
	expect(t, 0, 0, 30);
}
END_TEST

START_TEST(the_same_operations_give_the_same_name)
{
	struct name names[3];

	for (int round = 0; round < 3; round++) {
		_cleanup_(tree_freep) struct tree *t = new_tree();
		_cleanup_(root_unrefp) struct root *r = NULL;

		for (uint64_t i = 0; i < 4000; i++) {
			put(t, i * 2654435761u % 3000, i, i * 37 % 200);
			if (i % 3 == 0) {
				struct key k = key(i * 40503u % 3000);

				(void)tree_del(t, &k); /* there or not */
			}
			if (round > 0 && i % 500 == 0)
				root_unref(freeze(t));
			/* and from nodes that were loaded, not made */
			if (round == 2 && i % 500 == 499) {
				_cleanup_(root_unrefp) struct root *now = freeze(t), *again = NULL;
				struct name n = seal(now);
				uint64_t count, bytes;

				tree_free(TAKE_PTR(t));
				root_unref(TAKE_PTR(now));
				nodes_stats(nodes, &count, &bytes);
				ck_assert_uint_eq(count, 0);
				ck_assert_int_eq(root_by_name(nodes, &n, &again), 0);
				ck_assert_int_eq(tree_new(nodes, again, &t), 0);
			}
		}
		r = freeze(t);
		names[round] = seal(r);
	}
	ck_assert(name_eq(&names[0], &names[1]));
	ck_assert(name_eq(&names[0], &names[2]));
}
END_TEST

START_TEST(a_loaded_node_is_in_memory_once)
{
	_cleanup_(tree_freep) struct tree *t = new_tree();
	struct root *r[3];
	uint64_t before, after, bytes;
	struct name n;

	for (uint64_t i = 0; i < 3000; i++)
		put(t, i, 0, 40);
	r[0] = freeze(t);
	n = seal(r[0]);
	nodes_stats(nodes, &before, &bytes);
	for (int i = 1; i < 3; i++) {
		_cleanup_(tree_freep) struct tree *again = NULL;

		ck_assert_int_eq(root_by_name(nodes, &n, &r[i]), 0);
		ck_assert_int_eq(tree_new(nodes, r[i], &again), 0);
		for (uint64_t a = 0; a < 3000; a++)
			expect(again, a, 0, 40);
		nodes_stats(nodes, &after, &bytes);
		ck_assert_uint_eq(before, after);
	}
	for (int i = 0; i < 3; i++)
		root_unref(r[i]);
}
END_TEST

/* ---- references ---- */

START_TEST(a_blob_becomes_a_chunk_on_disk_and_stays_a_blob_in_memory)
{
	_cleanup_(tree_freep) struct tree *t = new_tree(), *again = NULL;
	_cleanup_(root_unrefp) struct root *a = NULL, *b = NULL;
	_cleanup_(blob_unrefp) struct blob *blob = NULL;
	struct nodes *fresh;
	struct key k = key(7);
	struct name top, name, none;
	struct val v;
	int n = 0;

	ck_assert_int_eq(blob_new(scratch.stage, "hello, blob", 11, &blob), 0);
	put_blob(t, 7, 3, blob);
	ck_assert(!blob_is_sole(blob));
	ck_assert(!blob_name(blob, &none));
	a = freeze(t);
	top = seal(a);
	ck_assert(blob_name(blob, &name));
	ck_assert_int_eq(tree_get(t, &k, &v), 0);
	ck_assert_uint_eq(v.ref.kind, REF_BLOB);
	ck_assert_ptr_eq(v.ref.blob, blob);

	ck_assert_int_eq(nodes_new(scratch.chunks, NULL, &fresh), 0);
	ck_assert_int_eq(root_by_name(fresh, &top, &b), 0);
	ck_assert_int_eq(tree_new(fresh, b, &again), 0);
	ck_assert_int_eq(tree_get(again, &k, &v), 0);
	ck_assert_uint_eq(v.ref.kind, REF_CHUNK);
	ck_assert_uint_eq(v.ref.off, 3);
	ck_assert(name_eq(&v.ref.name, &name));

	/* the same item, once by pointer and once by name, is no difference */
	put(t, 8, 0, 1);
	root_unref(a);
	a = freeze(t);
	ck_assert_int_eq(root_diff(a, b, &KEY_MIN, &KEY_MAX, count_diff, &n), 0);
	ck_assert_int_eq(n, 1);
	tree_free(TAKE_PTR(again));
	root_unref(TAKE_PTR(b));
	nodes_free(fresh);
}
END_TEST

START_TEST(chunk_references_are_kept_through_every_change)
{
	_cleanup_(tree_freep) struct tree *t = new_tree(), *again = NULL;
	_cleanup_(root_unrefp) struct root *r = NULL, *lazy = NULL;
	struct nodes *fresh;
	struct name top;

	for (unsigned version = 0; version < 2; version++)
		for (uint64_t i = 0; i < 1000; i++) {
			struct key k = key(i);
			struct val v = { .data = "some bytes", .len = (i + version) % 10 };

			if ((i + version) % 3 > 0)
				v.ref = (struct ref){ .kind = REF_CHUNK,
						      .off = i << 16,
						      .name = name_of(&i, sizeof(i), 0) };
			ck_assert_int_eq(tree_put(t, &k, &v), 0);
		}
	r = freeze(t);
	top = seal(r);
	ck_assert_int_eq(nodes_new(scratch.chunks, NULL, &fresh), 0);
	ck_assert_int_eq(root_by_name(fresh, &top, &lazy), 0);
	ck_assert_int_eq(tree_new(fresh, lazy, &again), 0);
	for (uint64_t i = 0; i < 1000; i++) {
		struct key k = key(i);
		struct name name = name_of(&i, sizeof(i), 0);
		struct val v, w;

		ck_assert_int_eq(tree_get(t, &k, &v), 0);
		ck_assert_int_eq(tree_get(again, &k, &w), 0);
		ck_assert_uint_eq(v.len, (i + 1) % 10);
		ck_assert_uint_eq(v.ref.kind, (i + 1) % 3 > 0 ? REF_CHUNK : REF_NONE);
		ck_assert(ref_eq(&v.ref, &w.ref));
		if (v.ref.kind == REF_CHUNK) {
			ck_assert_uint_eq(v.ref.off, i << 16);
			ck_assert(name_eq(&v.ref.name, &name));
			w.ref.off++;
			ck_assert(!ref_eq(&v.ref, &w.ref));
		}
	}
	tree_free(TAKE_PTR(again));
	root_unref(TAKE_PTR(lazy));
	nodes_free(fresh);
}
END_TEST

START_TEST(touching_tells_whether_a_blob_is_shared)
{
	_cleanup_(tree_freep) struct tree *t = new_tree();
	_cleanup_(root_unrefp) struct root *r = NULL;
	struct blob *blob;
	struct key k = key(7);

	ck_assert_int_eq(blob_new(scratch.stage, "0123456789", 10, &blob), 0);
	put_blob(t, 7, 0, blob);
	blob_unref(blob);
	ck_assert_int_eq(tree_touch(t, &k), 0);
	ck_assert(blob_is_sole(blob));

	r = freeze(t);
	ck_assert(!t->dirty);
	ck_assert(blob_is_sole(blob)); /* one leaf, though frozen: hence touch first */
	ck_assert_int_eq(tree_touch(t, &k), 0);
	ck_assert(t->dirty);
	ck_assert(!blob_is_sole(blob));
	root_unref(TAKE_PTR(r));
	ck_assert(blob_is_sole(blob));
	ck_assert_int_eq(tree_del(t, &k), 0);
}
END_TEST

struct marks {
	int nodes, data, damaged;
};

static int mark_all(void *arg, const struct name *name, bool is_node)
{
	struct marks *m = arg;

	*(is_node ? &m->nodes : &m->data) += 1;
	return 0;
}

static int mark_top_only(void *arg, const struct name *name, bool is_node)
{
	mark_all(arg, name, is_node);
	return 1;
}

static void mark_damaged(void *arg, const struct name *name, int r)
{
	((struct marks *)arg)->damaged++;
}

START_TEST(marking_visits_every_chunk_without_loading_nodes)
{
	_cleanup_(tree_freep) struct tree *t = new_tree();
	_cleanup_(root_unrefp) struct root *r = freeze(t), *lazy = NULL;
	struct marks m = { 0 };
	struct shape s;
	struct nodes *fresh;
	struct name top;
	uint64_t count, bytes;

	ck_assert_int_eq(root_mark(r, mark_all, NULL, &m), 0);
	ck_assert_int_eq(m.nodes + m.data, 0);
	fill(t, 5000, 40, 50);
	root_unref(r);
	r = freeze(t);
	ck_assert_int_eq(root_mark(r, mark_all, NULL, &m), 0);
	ck_assert_int_eq(m.nodes + m.data, 0);
	top = seal(r);
	(void)leaf_fill(t, &s);
	ck_assert_int_eq(root_mark(r, mark_all, NULL, &m), 0);
	ck_assert_int_eq(m.nodes, s.leaves + s.inner);
	ck_assert_int_eq(m.data, 100);

	m = (struct marks){ 0 };
	ck_assert_int_eq(nodes_new(scratch.chunks, NULL, &fresh), 0);
	ck_assert_int_eq(root_by_name(fresh, &top, &lazy), 0);
	ck_assert_int_eq(root_mark(lazy, mark_all, mark_damaged, &m), 0);
	ck_assert_int_eq(m.nodes, s.leaves + s.inner);
	ck_assert_int_eq(m.data, 100);
	ck_assert_int_eq(m.damaged, 0);
	nodes_stats(fresh, &count, &bytes);
	ck_assert_uint_eq(count, 0);

	m = (struct marks){ 0 };
	ck_assert_int_eq(root_mark(lazy, mark_top_only, NULL, &m), 0);
	ck_assert_int_eq(m.nodes, 1);
	root_unref(TAKE_PTR(lazy));
	nodes_free(fresh);
}
END_TEST

/* ---- damage ---- */

static int note_damage(void *arg, const struct name *name, unsigned level, const struct key *first,
		       const struct key *last, int r)
{
	*(int *)arg += r < 0;
	return 0;
}

START_TEST(a_missing_or_misplaced_node_is_reported_and_passed)
{
	_cleanup_(tree_freep) struct tree *t = new_tree(), *bad = NULL;
	_cleanup_(root_unrefp) struct root *r = NULL, *lazy = NULL;
	uint8_t buf[NODE_MAX];
	struct chunkbuf *b;
	struct name top;
	struct marks m = { 0 };
	struct cursor c;
	uint32_t len;
	int damage = 0, e;
	struct key k = key(0);
	struct val v;

	for (uint64_t i = 0; i < 5000; i++)
		put(t, i, 0, 40);
	r = freeze(t);
	top = seal(r);
	ck_assert_int_eq(chunk_load(scratch.chunks, &top, &b), 0);
	ck_assert_uint_gt(b->data[3], 0);
	len = b->len;
	memcpy(buf, b->data, len);
	chunkbuf_unref(b);
	/* child 1 under the name of child 2; child 3 under a name that is not there */
	memcpy(buf + NODE_HEADER + CHILD_BYTES + KEY_BYTES,
	       buf + NODE_HEADER + 2 * CHILD_BYTES + KEY_BYTES, NAME_BYTES);
	memset(buf + NODE_HEADER + 3 * CHILD_BYTES + KEY_BYTES, 0xee, NAME_BYTES);
	ck_assert_int_ge(chunk_put(scratch.chunks, CHUNK_NODE, buf, len, &top), 0);

	ck_assert_int_eq(root_by_name(nodes, &top, &lazy), 0);
	ck_assert_int_eq(tree_new(nodes, lazy, &bad), 0);
	ck_assert_int_eq(tree_get(bad, &k, &v), 0);
	for (e = cursor_seek(&c, bad, &KEY_MIN); e == 0;)
		e = cursor_next(&c);
	ck_assert_int_eq(e, -ERR_NODE_DAMAGED);
	ck_assert_int_lt(root_mark(lazy, mark_all, NULL, &m), 0);
	ck_assert_int_eq(root_mark(lazy, mark_all, mark_damaged, &m), 0);
	ck_assert_int_eq(m.damaged, 2);
	ck_assert_int_eq(
		root_check(lazy, &(struct tree_check){ .node = note_damage, .arg = &damage }), 0);
	ck_assert_int_eq(damage, 2);

	/* a chunk that is no node at all, and one that is not there */
	for (int missing = 0; missing < 2; missing++) {
		tree_free(TAKE_PTR(bad));
		root_unref(TAKE_PTR(lazy));
		if (missing)
			top = name_of("nowhere", 7, 0);
		else
			ck_assert_int_ge(chunk_put(scratch.chunks, CHUNK_DATA, "not a node", 10,
						   &top),
					 0);
		ck_assert_int_eq(root_by_name(nodes, &top, &lazy), 0);
		ck_assert_int_eq(tree_new(nodes, lazy, &bad), 0);
		ck_assert_int_eq(tree_get(bad, &k, &v),
				 missing ? -ERR_CHUNK_MISSING : -ERR_NODE_DAMAGED);
		ck_assert_int_lt(tree_put(bad, &k, &(struct val){ 0 }), 0);
		ck_assert_int_lt(tree_del(bad, &k), 0);
		ck_assert_int_lt(tree_touch(bad, &k), 0);
		ck_assert_int_lt(cursor_seek(&c, bad, &k), 0);
		ck_assert_int_lt(cursor_seek_last(&c, bad, &k), 0);
		ck_assert_int_lt(root_diff(lazy, r, &KEY_MIN, &KEY_MAX, count_diff, &e), 0);
		ck_assert(!bad->dirty);
	}
}
END_TEST

/* ---- failing memory ---- */

START_TEST(sealing_that_failed_goes_on_where_it_stopped)
{
	_cleanup_(tree_freep) struct tree *t = new_tree();
	_cleanup_(root_unrefp) struct root *r = NULL;
	struct shape s;
	int e = -1;

	fill(t, 2000, 60, 100);
	r = freeze(t);
	for (int nth = 0; e != 0 && nth < 10000; nth += 1 + nth / 20) {
		struct name n;

		fault_arm(nth, 1, ENOSPC);
		e = root_seal(r);
		fault_disarm();
		ck_assert_int_le(e, 0);
		ck_assert_int_eq(root_name(r, &n), e == 0 ? 0 : ABSENT);
		for (uint64_t i = 1; i < 2000; i += 100)
			expect(t, i, 0, 60);
	}
	ck_assert_int_eq(e, 0);
	(void)leaf_fill(t, &s);
	ck_assert_uint_eq(s.items, 2000);
}
END_TEST

/* ---- threads ---- */

static _Atomic bool stop;

static void *seal_and_read(void *arg)
{
	struct root *r = arg;
	_cleanup_(tree_freep) struct tree *t = NULL;
	struct val v;

	ck_assert_int_eq(root_seal(r), 0);
	ck_assert_int_eq(tree_new(nodes, r, &t), 0);
	for (uint64_t i = 0; i < 3000 && !atomic_load(&stop); i++) {
		struct key k = key(i);

		ck_assert_int_eq(tree_get(t, &k, &v), 0);
	}
	tree_free(TAKE_PTR(t));
	root_unref(r);
	return NULL;
}

START_TEST(states_are_sealed_and_read_while_the_tree_changes)
{
	_cleanup_(tree_freep) struct tree *t = new_tree();

	for (uint64_t i = 0; i < 3000; i++)
		put(t, i, 0, 60);
	for (unsigned round = 1; round < 30; round++) {
		pthread_t sealer;

		ck_assert_int_eq(pthread_create(&sealer, NULL, seal_and_read, freeze(t)), 0);
		for (uint64_t i = 0; i < 3000; i += 11)
			put(t, i, round, 60);
		ck_assert_int_eq(pthread_join(sealer, NULL), 0);
	}
}
END_TEST

static void *load_all(void *arg)
{
	struct root *r = arg;
	_cleanup_(tree_freep) struct tree *t = NULL;
	struct cursor c;
	unsigned n = 0;
	int e;

	ck_assert_int_eq(tree_new(nodes, r, &t), 0);
	for (e = cursor_seek(&c, t, &KEY_MIN); e == 0; e = cursor_next(&c))
		n++;
	ck_assert_int_eq(e, END);
	ck_assert_uint_eq(n, 3000);
	return NULL;
}

static void *load_and_drop(void *arg)
{
	for (int i = 0; i < 20; i++) {
		_cleanup_(root_unrefp) struct root *r = NULL;

		ck_assert_int_eq(root_by_name(nodes, arg, &r), 0);
		load_all(r);
	}
	return NULL;
}

START_TEST(threads_load_the_same_nodes_and_drop_them)
{
	_cleanup_(root_unrefp) struct root *r = NULL;
	struct tree *t = new_tree();
	struct name top;
	pthread_t threads[4];

	for (uint64_t i = 0; i < 3000; i++)
		put(t, i, 0, 60);
	r = freeze(t);
	top = seal(r);
	tree_free(t);
	root_unref(TAKE_PTR(r));

	ck_assert_int_eq(root_by_name(nodes, &top, &r), 0);
	for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
		ck_assert_int_eq(pthread_create(&threads[i], NULL, load_all, r), 0);
	for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
		pthread_join(threads[i], NULL);
	root_unref(TAKE_PTR(r));

	for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
		ck_assert_int_eq(pthread_create(&threads[i], NULL, load_and_drop, &top), 0);
	for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
		pthread_join(threads[i], NULL);
}
END_TEST

/* ---- text ---- */

START_TEST(a_dump_shows_nodes_and_items)
{
	_cleanup_(tree_freep) struct tree *t = new_tree();
	_cleanup_(root_unrefp) struct root *r = NULL;
	_cleanup_free_ char *text = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);

	for (uint64_t i = 0; i < 300; i++)
		put(t, i, 0, 60);
	r = freeze(t);
	ck_assert_int_eq(root_dump(r, f, 8, NULL), 0);
	fclose(f);
	ck_assert_ptr_nonnull(strstr(text, "node -"));
	ck_assert_ptr_nonnull(strstr(text, "level 1"));
	ck_assert_ptr_nonnull(strstr(text, "60 bytes"));
}
END_TEST

int main(void)
{
	TCase *c = tcase_create("root");

	tcase_add_checked_fixture(c, setup, teardown);
	tcase_set_timeout(c, 240);
	tcase_add_test(c, freezing_an_unchanged_tree_gives_the_same_root);
	tcase_add_test(c, a_frozen_state_never_changes);
	tcase_add_test(c, the_same_operations_give_the_same_name);
	tcase_add_test(c, a_loaded_node_is_in_memory_once);
	tcase_add_test(c, a_blob_becomes_a_chunk_on_disk_and_stays_a_blob_in_memory);
	tcase_add_test(c, chunk_references_are_kept_through_every_change);
	tcase_add_test(c, touching_tells_whether_a_blob_is_shared);
	tcase_add_test(c, marking_visits_every_chunk_without_loading_nodes);
	tcase_add_test(c, a_missing_or_misplaced_node_is_reported_and_passed);
	tcase_add_test(c, sealing_that_failed_goes_on_where_it_stopped);
	tcase_add_test(c, states_are_sealed_and_read_while_the_tree_changes);
	tcase_add_test(c, threads_load_the_same_nodes_and_drop_them);
	tcase_add_test(c, a_dump_shows_nodes_and_items);
	return run_case("root", c);
}
