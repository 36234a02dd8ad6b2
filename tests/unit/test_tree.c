/* SPDX-License-Identifier: Apache-2.0 */

/* The persistent tree by hand-made cases: order, fill, cursors, damaged nodes, failing memory. */

#include "store/base/fault.h"
#include "store/node.h"
#include "store/tree_internal.h"
#include "tests/unit/tree_fixture.h"

static void expect_absent(const struct tree *t, uint64_t a)
{
	struct key k = key(a);
	struct val v;

	ck_assert_int_eq(tree_get(t, &k, &v), ABSENT);
}

/* ---- order, sizes, fill ---- */

START_TEST(keys_are_ordered_by_a_then_t_then_b)
{
	const struct key k[] = {
		KEY_MIN, { 1, 9, 0 }, { 1, 0, 1 }, { 1, 5, 1 }, { 2, 0, 0 }, KEY_MAX,
	};

	for (size_t i = 0; i < ARRAY_SIZE(k); i++)
		for (size_t j = 0; j < ARRAY_SIZE(k); j++)
			ck_assert_int_eq(key_cmp(&k[i], &k[j]), (i > j) - (i < j));
}
END_TEST

START_TEST(there_is_nothing_between_a_key_and_the_next)
{
	const struct key k[][2] = {
		{ KEY_MIN, { 0, 1, 0 } },
		{ { 5, 6, 7 }, { 5, 7, 7 } },
		{ { 5, UINT64_MAX, 7 }, { 5, 0, 8 } },
		{ { 5, UINT64_MAX, UINT8_MAX }, { 6, 0, 0 } },
	};

	for (size_t i = 0; i < ARRAY_SIZE(k); i++) {
		struct key next = key_next(&k[i][0]), prev = key_prev(&k[i][1]);

		ck_assert_int_eq(key_cmp(&next, &k[i][1]), 0);
		ck_assert_int_eq(key_cmp(&prev, &k[i][0]), 0);
	}
}
END_TEST

START_TEST(sorted_input_leaves_full_nodes_behind)
{
	enum { N = 30000 };

	for (int descending = 0; descending < 2; descending++) {
		_cleanup_(tree_freep) struct tree *t = new_tree();
		struct shape s;

		for (uint64_t i = 0; i < N; i++)
			put(t, descending ? N - i : i + 1, 0, 40);
		ck_assert_uint_ge(leaf_fill(t, &s), 97);
		ck_assert_uint_eq(s.items, N);
	}
}
END_TEST

START_TEST(random_input_fills_leaves_to_three_fifths)
{
	_cleanup_(tree_freep) struct tree *t = new_tree();
	struct shape s;

	for (uint64_t i = 0; i < 30000; i++)
		put(t, hash64(&i, sizeof(i), 1), 0, i % 100);
	ck_assert_uint_ge(leaf_fill(t, &s), 60);
	ck_assert_uint_eq(s.items, 30000);
}
END_TEST

START_TEST(deleting_shrinks_the_tree_and_ends_in_the_empty_state)
{
	enum { N = 20000 };
	_cleanup_(tree_freep) struct tree *t = new_tree();
	_cleanup_(root_unrefp) struct root *r = NULL;
	struct shape s;
	struct name n;

	for (uint64_t i = 0; i < N; i++)
		put(t, i, 0, 40);
	for (uint64_t i = 0; i < N; i++) {
		struct key k = key(i);

		if (i % 16 != 0)
			ck_assert_int_eq(tree_del(t, &k), 0);
	}
	ck_assert_uint_ge(leaf_fill(t, &s), 25);
	ck_assert_uint_eq(s.items, N / 16);
	for (uint64_t i = 0; i < N; i++) {
		struct key k = key(i);

		ck_assert_int_eq(tree_del(t, &k), i % 16 ? ABSENT : 0);
	}
	r = freeze(t);
	ck_assert_int_eq(root_name(r, &n), 0);
	ck_assert(name_eq(&n, &(struct name){ 0 }));
	ck_assert_int_eq(root_seal(r), 0);
}
END_TEST

static int mark_nothing(void *arg, const struct name *name, bool is_node)
{
	return 0;
}

START_TEST(a_high_tree_survives_deletion_in_any_order)
{
	enum { N = 40000 }; /* four to a leaf, 123 leaves to a node: two levels above */

	for (int order = 0; order < 4; order++) {
		_cleanup_(tree_freep) struct tree *t = new_tree();
		_cleanup_(root_unrefp) struct root *full = NULL;
		struct shape s;
		uint64_t left = N;

		for (uint64_t i = 0; i < N; i++)
			put(t, order == 3 ? i * 7919 % N : i, 0, 950);
		full = freeze(t);
		for (uint64_t n = 0; n < N; n++) {
			/* up, down, from the middle outwards, scattered */
			uint64_t i = order == 0 ? n :
				     order == 1 ? N - 1 - n :
				     order == 2 ? (n % 2 ? N / 2 + n / 2 : N / 2 - 1 - n / 2) :
						  n * 6007 % N;
			struct key k = key(i);

			ck_assert_int_eq(tree_del(t, &k), 0);
			if (--left % 8000 == 4000) {
				(void)leaf_fill(t, &s);
				ck_assert_uint_eq(s.items, left);
				ck_assert_uint_le(s.leaves, 2 * left / 4 + 8);
			}
		}
		ck_assert_int_eq(differences(full, full), 0);
		ck_assert_int_eq(root_mark(full, mark_nothing, NULL, NULL), 0);
	}
}
END_TEST

START_TEST(values_of_every_size_fit)
{
	_cleanup_(tree_freep) struct tree *t = new_tree();
	_cleanup_(root_unrefp) struct root *r = NULL;
	struct key k = key(1);
	uint8_t data[VAL_MAX + 1] = { 0 };

	for (unsigned len = 0; len <= VAL_MAX; len++)
		put(t, len * 37 % (VAL_MAX + 1), 0, len * 37 % (VAL_MAX + 1)); /* a permutation */
	for (unsigned len = 0; len <= VAL_MAX; len++)
		expect(t, len, 0, len);
	/* each grows or shrinks to another size */
	for (unsigned len = 0; len <= VAL_MAX; len++)
		put(t, len, 1, VAL_MAX - len);
	for (unsigned len = 0; len <= VAL_MAX; len++)
		expect(t, len, 1, VAL_MAX - len);
	r = freeze(t);
	seal(r);
	ck_assert_int_eq(tree_put(t, &k, &(struct val){ .data = data, .len = sizeof(data) }),
			 -ERR_VALUE_TOO_LARGE);
	expect(t, 1, 1, VAL_MAX - 1);
}
END_TEST

START_TEST(a_lent_value_may_be_put_under_another_key)
{
	_cleanup_(tree_freep) struct tree *t = new_tree();

	put(t, 0, 0, 300);
	for (uint64_t i = 1; i < 200; i++) {
		struct key from = key(i - 1), to = key(i);
		struct val v;

		ck_assert_int_eq(tree_get(t, &from, &v), 0);
		ck_assert_int_eq(tree_put(t, &to, &v), 0);
	}
	for (uint64_t i = 0; i < 200; i++) {
		struct key k = key(i);
		struct val v;

		ck_assert_int_eq(tree_get(t, &k, &v), 0);
		ck_assert_uint_eq(v.len, 300);
		ck_assert_uint_eq(((const uint8_t *)v.data)[299], 0);
	}
}
END_TEST

START_TEST(cursors_go_to_both_sides)
{
	_cleanup_(tree_freep) struct tree *t = new_tree();
	struct cursor c;
	struct key k = key(5);

	ck_assert_int_eq(cursor_seek(&c, t, &KEY_MIN), END);
	ck_assert_int_eq(cursor_seek_last(&c, t, &KEY_MAX), END);
	ck_assert_int_eq(cursor_next(&c), END);
	for (uint64_t i = 1; i <= 5000; i++)
		put(t, 10 * i, 0, 50);
	for (uint64_t i = 1; i <= 5000; i++) {
		k = key(10 * i - 3);
		ck_assert_int_eq(cursor_seek(&c, t, &k), 0);
		ck_assert_uint_eq(c.key.a, 10 * i);
		k = key(10 * i + 3);
		ck_assert_int_eq(cursor_seek_last(&c, t, &k), 0);
		ck_assert_uint_eq(c.key.a, 10 * i);
		k = key(10 * i);
		ck_assert_int_eq(cursor_seek_last(&c, t, &k), 0);
		ck_assert_uint_eq(c.key.a, 10 * i);
		ck_assert_int_eq(cursor_next(&c), i < 5000 ? 0 : END);
	}
	k = key(9);
	ck_assert_int_eq(cursor_seek_last(&c, t, &k), END);
	ck_assert_int_eq(cursor_seek(&c, t, &KEY_MAX), END);
}
END_TEST

/* ---- damage ---- */

START_TEST(random_bytes_never_crash_the_decoder)
{
	_cleanup_(tree_freep) struct tree *t = new_tree();
	_cleanup_(root_unrefp) struct root *r = NULL;
	struct name name[2];
	struct chunkbuf *b;
	unsigned accepted = 0;

	for (uint64_t i = 0; i < 2000; i++)
		put(t, i, 0, i % 90);
	r = freeze(t);
	name[0] = seal(r);
	ck_assert_int_eq(chunk_load(scratch.chunks, &name[0], &b), 0);
	memcpy(name[1].b, b->data + NODE_HEADER + KEY_BYTES, NAME_BYTES); /* its first leaf */
	chunkbuf_unref(b);

	srandom(1);
	for (int i = 0; i < 100000; i++) {
		uint8_t *buf;
		struct node *n;
		size_t len;
		int e;

		ck_assert_int_eq(chunk_load(scratch.chunks, &name[i % 2], &b), 0);
		len = i % 5 == 4 ? random() % (b->len + 1) : b->len;
		buf = malloc(len + 1); /* its own allocation, so that a sanitizer sees the end */
		memcpy(buf, b->data, len);
		chunkbuf_unref(b);
		for (long flips = random() % 4; flips >= 0 && len > 0; flips--)
			buf[i % 3 ? random() % len : random() % MIN(len, 40u)] = random();
		if (len >= NODE_HEADER && i % 5 == 4)
			put_le16(buf + 6, len);
		e = node_decode(nodes, buf, len, &n);
		if (e == 0) {
			uint8_t again[NODE_MAX];
			uint32_t again_len;

			/* what is accepted is canonical: it encodes to the same bytes */
			ck_assert_int_eq(node_encode(n, again, &again_len), 0);
			ck_assert_uint_eq(again_len, len);
			ck_assert_int_eq(memcmp(again, buf, len), 0);
			node_unref(n);
			accepted++;
		} else {
			ck_assert_int_eq(e, -ERR_NODE_DAMAGED);
		}
		free(buf);
	}
	ck_assert_uint_gt(accepted, 100);
}
END_TEST

/* ---- failing memory ---- */

START_TEST(a_change_that_runs_out_of_memory_changes_nothing)
{
	_cleanup_(tree_freep) struct tree *t = new_tree();
	_cleanup_(root_unrefp) struct root *r = NULL;
	int failures = 0;

	for (uint64_t i = 0; i < 3000; i++)
		put(t, 2 * i, 0, 60);
	for (uint64_t i = 0; i < 1500; i++) {
		struct key k = key(2 * i + 1), gone = key(2 * i);
		uint8_t data[VAL_MAX] = { 0 };
		struct val v = { .data = data, .len = 900 };
		int e;

		root_unref(r);
		r = freeze(t);
		for (int nth = 0;; nth++) {
			fault_arm(nth, 1, ENOMEM);
			e = tree_put(t, &k, &v);
			fault_disarm();
			if (e == 0)
				break;
			failures++;
			ck_assert_int_eq(e, -ENOMEM);
			expect_absent(t, 2 * i + 1);
			ck_assert(!t->dirty);
		}
		fault_arm(i % 4, 1, ENOMEM);
		e = tree_del(t, &gone);
		fault_disarm();
		if (e == -ENOMEM)
			expect(t, 2 * i, 0, 60);
		else
			expect_absent(t, 2 * i);
	}
	ck_assert_int_gt(failures, 1500);
	root_unref(r);
	r = freeze(t);
	seal(r);
}
END_TEST

/* ---- memory that is given back ---- */

static uint64_t resident(void)
{
	unsigned long size, pages;
	FILE *f = fopen("/proc/self/statm", "r");

	ck_assert_ptr_nonnull(f);
	ck_assert_int_eq(fscanf(f, "%lu %lu", &size, &pages), 2);
	fclose(f);
	return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

START_TEST(what_much_freed_memory_held_goes_back_to_the_system)
{
	enum { ITEMS = 120000, EACH = 64 };
	struct tree *t = new_tree();
	void *between[ITEMS / EACH];
	uint64_t before, with, count, bytes;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	tree_free(t);
	return; /* their allocators keep what is free */
#endif
	before = resident();
	for (unsigned i = 0; i < ITEMS; i++) {
		put(t, i, 0, VAL_MAX);
		/* Something small that lives on: then malloc alone cannot give anything back. */
		if (i % EACH == 0)
			between[i / EACH] = memset(malloc(100), 1, 100);
	}
	nodes_stats(nodes, &count, &bytes);
	ck_assert_uint_gt(bytes, 128u << 20);
	with = resident();
	ck_assert_uint_gt(with, before + bytes / 2);

	tree_free(t);
	nodes_give_back(nodes);
	ck_assert_uint_lt(resident(), before + (with - before) / 4);
	for (unsigned i = 0; i < ITEMS / EACH; i++)
		free(between[i]);
}
END_TEST

int main(void)
{
	TCase *c = tcase_create("tree");

	tcase_add_checked_fixture(c, setup, teardown);
	tcase_set_timeout(c, 240);
	tcase_add_test(c, keys_are_ordered_by_a_then_t_then_b);
	tcase_add_test(c, there_is_nothing_between_a_key_and_the_next);
	tcase_add_test(c, sorted_input_leaves_full_nodes_behind);
	tcase_add_test(c, random_input_fills_leaves_to_three_fifths);
	tcase_add_test(c, deleting_shrinks_the_tree_and_ends_in_the_empty_state);
	tcase_add_test(c, a_high_tree_survives_deletion_in_any_order);
	tcase_add_test(c, values_of_every_size_fit);
	tcase_add_test(c, a_lent_value_may_be_put_under_another_key);
	tcase_add_test(c, cursors_go_to_both_sides);
	tcase_add_test(c, random_bytes_never_crash_the_decoder);
	tcase_add_test(c, a_change_that_runs_out_of_memory_changes_nothing);
	tcase_add_test(c, what_much_freed_memory_held_goes_back_to_the_system);
	return run_case("tree", c);
}
