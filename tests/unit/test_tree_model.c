/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The tree against a model: random operations go to a tree and to a sorted array, states are
 * frozen, kept, sealed, forked from and gone back to, and each must go on saying what the array
 * said then. A failure prints its seed: PLYFS_TEST_SEED repeats it, PLYFS_TEST_ROUNDS makes it
 * longer or shorter.
 */

#include <inttypes.h>

#include "store/tree_internal.h"
#include "tests/unit/scratch.h"

#define KEYS 4096 /* distinct keys: large enough for three levels, small enough for hits */
#define BLOBS 8
#define STATES 12

/* ---- fixture ---- */

static struct scratch scratch;
static struct nodes *nodes;
static struct blob *blobs[BLOBS];
static uint64_t seed, random_state;

static uint64_t next_random(void)
{
	random_state += 0x9e3779b97f4a7c15; /* a counter through a hash: any seed will do */
	return hash64(&random_state, sizeof(random_state), 0);
}
static unsigned below(unsigned n)
{
	return next_random() % n;
}

static void setup(void)
{
	const char *text = getenv("PLYFS_TEST_SEED");

	scratch_make(&scratch);
	scratch_open(&scratch);
	ck_assert_int_eq(nodes_new(scratch.chunks, NULL, &nodes), 0);

	if (text)
		seed = strtoull(text, NULL, 0);
	else
		ck_assert_int_eq(os_random(&seed, sizeof(seed)), 0);
	random_state = seed;
	for (int i = 0; i < BLOBS; i++)
		ck_assert_int_eq(blob_new(scratch.stage, &i, sizeof(i), &blobs[i]), 0);
}

static void teardown(void)
{
	for (int i = 0; i < BLOBS; i++)
		blob_unref(blobs[i]);
	nodes_free(nodes);
	scratch_close(&scratch);
	scratch_remove(&scratch);
}

/* ck_assert with the seed beside it. */
#define must(cond)                                                                                 \
	ck_assert_msg(cond, #cond " failed at %s:%d; PLYFS_TEST_SEED=%" PRIu64, __func__,          \
		      __LINE__, seed)

/* ---- the model: what each of KEYS keys holds ---- */

struct cell {
	uint32_t version; /* 0: absent; else it says what the bytes are */
	uint16_t len;
	uint8_t blob; /* 0: no reference; else blobs[blob - 1] */
};
struct model {
	struct cell cells[KEYS];
};

/* Item i: in key order, with runs of one a as files have, and gaps between. */
static struct key key_of(unsigned i)
{
	return (struct key){ .a = 1 + i / 16 * 3, .t = i / 4 % 4, .b = (uint64_t)(i % 4) << 62 };
}
static unsigned index_of(const struct key *k)
{
	return (k->a - 1) / 3 * 16 + k->t * 4 + (k->b >> 62);
}

static void cell_val(unsigned i, const struct cell *c, uint8_t *data, struct val *ret)
{
	memset(data, (int)(i * 31 + c->version), c->len);
	*ret = (struct val){ .data = data, .len = c->len };
	if (c->blob > 0)
		ret->ref = (struct ref){ .kind = REF_BLOB, .off = i, .blob = blobs[c->blob - 1] };
}

static bool cell_matches(unsigned i, const struct cell *c, const struct val *v)
{
	uint8_t data[VAL_MAX];
	struct val want;

	cell_val(i, c, data, &want);
	return c->version > 0 && v->len == want.len && memcmp(v->data, data, v->len) == 0 &&
	       ref_eq(&v->ref, &want.ref);
}

/* The same bytes and reference? Versions may differ: only their low byte is in the bytes. */
static bool cell_eq(const struct cell *x, const struct cell *y)
{
	if (x->version == 0 || y->version == 0)
		return x->version == y->version;
	return x->len == y->len && x->blob == y->blob &&
	       (x->len == 0 || (uint8_t)x->version == (uint8_t)y->version);
}

/* ---- comparing ---- */

static void verify_tree(const struct tree *t, const struct model *m)
{
	struct cursor c;
	unsigned i = 0;
	int r;

	for (r = cursor_seek(&c, t, &KEY_MIN); r == 0; r = cursor_next(&c)) {
		while (i < KEYS && m->cells[i].version == 0)
			i++;
		must(i < KEYS);
		must(index_of(&c.key) == i);
		must(cell_matches(i, &m->cells[i], &c.val));
		i++;
	}
	must(r == END);
	while (i < KEYS && m->cells[i].version == 0)
		i++;
	must(i == KEYS);
}

/* A search for what a recent leaf begins with ends in it, and its bounds are the path's. */
static void verify_recent(const struct tree *t)
{
	for (unsigned i = 0; i < RECENT_LEAVES; i++) {
		const struct recent *r = &t->recent[i];
		struct key from = KEY_MIN, to = KEY_MAX;
		struct node *n = t->top;

		if (!r->leaf)
			continue;
		must(n && t->dirty);
		while (n->level > 0) {
			unsigned pos = inner_search(n, &r->from);

			must(n->gen == t->gen);
			from = node_inner(n)->keys[pos];
			if (pos + 1U < n->count)
				to = node_inner(n)->keys[pos + 1];
			must(node_child(n, pos, &n) == 0);
		}
		must(n == r->leaf && n->gen == t->gen);
		must(key_eq(&from, &r->from) && key_eq(&to, &r->to));
	}
}

static void verify_probes(const struct tree *t, const struct model *m)
{
	verify_recent(t);
	for (int n = 0; n < 20; n++) {
		int i = below(KEYS), j;
		struct key k = key_of(i);
		struct cursor c;
		struct val v;
		int r;

		r = tree_get(t, &k, &v);
		must(r == (m->cells[i].version ? 0 : ABSENT));
		if (r == 0)
			must(cell_matches(i, &m->cells[i], &v));
		for (j = i; j < KEYS && m->cells[j].version == 0;)
			j++;
		r = cursor_seek(&c, t, &k);
		must(r == (j < KEYS ? 0 : END));
		if (r == 0)
			must(index_of(&c.key) == (unsigned)j);
		must(tree_first_from(t, &k, &k, &v) == r);
		if (r == 0)
			must(index_of(&k) == (unsigned)j && cell_matches(j, &m->cells[j], &v));
		k = key_of(i);
		for (j = i; j >= 0 && m->cells[j].version == 0;)
			j--;
		r = cursor_seek_last(&c, t, &k);
		must(r == (j >= 0 ? 0 : END));
		if (r == 0)
			must(index_of(&c.key) == (unsigned)j);
	}
}

static void verify_root(struct nodes *ns, struct root *root, const struct model *m)
{
	_cleanup_(tree_freep) struct tree *t = NULL;

	must(tree_new(ns, root, &t) == 0);
	verify_tree(t, m);
}

struct diff {
	const struct model *a, *b;
	unsigned next, to;
};

static void diff_skip_equal(struct diff *d)
{
	while (d->next <= d->to && cell_eq(&d->a->cells[d->next], &d->b->cells[d->next]))
		d->next++;
}

static int diff_one(void *arg, const struct key *k, const struct val *old_val,
		    const struct val *new_val)
{
	struct diff *d = arg;
	unsigned i = index_of(k);

	diff_skip_equal(d);
	must(d->next <= d->to);
	must(i == d->next);
	must((old_val != NULL) == (d->a->cells[i].version > 0));
	must((new_val != NULL) == (d->b->cells[i].version > 0));
	must(!old_val || cell_matches(i, &d->a->cells[i], old_val));
	must(!new_val || cell_matches(i, &d->b->cells[i], new_val));
	d->next++;
	return 0;
}

static void verify_diff(struct root *ra, const struct model *a, struct root *rb,
			const struct model *b)
{
	bool whole = below(2) == 0;
	struct diff d = { .a = a, .b = b, .next = whole ? 0 : below(KEYS) };
	struct key from, to;

	d.to = whole ? KEYS - 1 : d.next + below(KEYS - d.next);
	from = whole ? KEY_MIN : key_of(d.next);
	to = whole ? KEY_MAX : key_of(d.to);
	must(root_diff(ra, rb, &from, &to, diff_one, &d) == 0);
	diff_skip_equal(&d);
	must(d.next == d.to + 1);
}

static int sound_node(void *arg, const struct name *name, unsigned level, const struct key *first,
		      const struct key *last, int r)
{
	must(r == 0);
	return 0;
}

static int sound_item(void *arg, const struct key *k, const struct val *v)
{
	const struct model *m = arg;
	unsigned i = index_of(k);

	must(m->cells[i].version > 0 && v->len == m->cells[i].len);
	must(v->ref.kind == (m->cells[i].blob ? REF_CHUNK : REF_NONE));
	return 0;
}

/* Sealed, and read back from nothing but the name. */
static void verify_reopened(struct root *root, struct model *m)
{
	_cleanup_(root_unrefp) struct root *again = NULL;
	struct nodes *fresh;
	struct name name;

	must(root_seal(root) == 0);
	must(root_name(root, &name) == 0);
	must(nodes_new(scratch.chunks, NULL, &fresh) == 0);
	must(root_by_name(fresh, &name, &again) == 0);
	must(root_same(root, again));
	verify_root(fresh, again, m);
	must(root_check(again, &(struct tree_check){
				       .node = sound_node, .item = sound_item, .arg = m }) == 0);
	verify_diff(root, m, again, m);
	root_unref(TAKE_PTR(again));
	nodes_free(fresh);
}

/* ---- the test ---- */

struct state {
	struct root *root;
	struct model model;
};

/* Nothing of a sealed state stays in memory for it, nor for a tree of what others have sealed. */
static void let_go(struct tree *t, struct root **state)
{
	_cleanup_(shed_release) struct shed shed = { 0 };
	struct root *bare;

	shed_tree(&shed, t);
	if (root_bare(*state, &bare) == 0) {
		must(root_same(*state, bare));
		shed_root(&shed, state, bare);
		must(root_bare(*state, &bare) == ABSENT);
	}
}

static uint32_t version; /* of the last put */

static void change_range(struct tree *t, struct model *m)
{
	unsigned first = below(KEYS), last = MIN(first + below(below(2) ? 4 : 200), KEYS - 1U);
	unsigned behind = below(4) == 0; /* it begins just behind its first key: maybe at its end */
	struct key from = key_of(first), to = key_of(last);

	from.b += behind;
	must(tree_del_range(t, &from, &to) == 0);
	for (unsigned i = first + behind; i <= last; i++)
		m->cells[i] = (struct cell){ 0 };
}

static void change(struct tree *t, struct model *m, unsigned style)
{
	static const uint16_t sizes[] = { 0, 8, 40, 200, VAL_MAX };
	unsigned start = below(KEYS), count = 1 + below(style < 2 ? 400 : 60);

	if (style == 5) {
		change_range(t, m);
		return;
	}
	for (unsigned n = 0; n < count; n++) {
		/* style 0 up, 1 down, 2 anywhere; 3 to 5 delete: a run, anywhere, a range */
		unsigned i = style == 0 || style == 3 ? (start + n) % KEYS :
			     style == 1		      ? (start + KEYS - n % KEYS) % KEYS :
							below(KEYS);
		struct key k = key_of(i);
		struct cell c = { 0 };

		if (style < 3) {
			uint8_t data[VAL_MAX];
			struct val v;

			c.version = ++version;
			c.len = below(sizes[below(ARRAY_SIZE(sizes))] + 1);
			c.blob = below(4) == 0 ? 1 + below(BLOBS) : 0;
			cell_val(i, &c, data, &v);
			must(tree_put(t, &k, &v) == 0);
		} else {
			must(tree_del(t, &k) == (m->cells[i].version ? 0 : ABSENT));
		}
		m->cells[i] = c;
	}
}

START_TEST(the_tree_agrees_with_a_sorted_array)
{
	static struct state states[STATES];
	static struct model model[2]; /* two trees that fork from each other's states */
	const char *text = getenv("PLYFS_TEST_ROUNDS");
	unsigned rounds = text ? strtoul(text, NULL, 0) : 400;
	struct tree *trees[2];

	for (int i = 0; i < STATES; i++)
		must(root_empty(nodes, &states[i].root) == 0);
	for (int i = 0; i < 2; i++)
		must(tree_new(nodes, states[0].root, &trees[i]) == 0);

	for (unsigned round = 0; round < rounds; round++) {
		unsigned w = below(2), s = below(STATES), o = below(STATES);

		/* in turn mostly growing and mostly shrinking, so that the height changes */
		change(trees[w], &model[w], round / 100 % 2 || below(4) == 0 ? below(6) : below(3));
		if (below(30) == 0)
			change(trees[w], &model[w], 3), change(trees[w], &model[w], 4);
		verify_probes(trees[w], &model[w]);
		if (below(3) == 0)
			let_go(trees[below(2)], &states[o].root);
		switch (below(8)) {
		case 0 ... 3:
			root_unref(states[s].root);
			must(tree_freeze(trees[w], &states[s].root) == 0);
			must(!trees[w]->dirty);
			states[s].model = model[w];
			break;
		case 4:
			must(tree_reset(trees[w], states[s].root) == 0);
			model[w] = states[s].model;
			break;
		case 5:
			must(root_seal(states[s].root) == 0);
			if (below(2) == 0) { /* and on with it by its name only */
				struct name name;

				must(root_name(states[s].root, &name) == 0);
				root_unref(states[s].root);
				must(root_by_name(nodes, &name, &states[s].root) == 0);
			}
			break;
		case 6:
			if (below(8) == 0)
				verify_reopened(states[s].root, &states[s].model);
			break;
		default:
			tree_free(trees[w]);
			must(tree_new(nodes, states[s].root, &trees[w]) == 0);
			model[w] = states[s].model;
		}
		if (round % 4 == 0)
			verify_root(nodes, states[o].root, &states[o].model);
		if (round % 16 == 0)
			verify_tree(trees[w], &model[w]);
		verify_diff(states[s].root, &states[s].model, states[o].root, &states[o].model);
	}

	for (int i = 0; i < 2; i++)
		tree_free(trees[i]);
	for (int i = 0; i < STATES; i++) {
		verify_reopened(states[i].root, &states[i].model);
		root_unref(states[i].root);
	}
	{
		uint64_t count, bytes;

		nodes_stats(nodes, &count, &bytes);
		must(count == 0 && bytes == 0);
	}
}
END_TEST

static uint64_t nodes_in_memory(void)
{
	uint64_t count, bytes;

	nodes_stats(nodes, &count, &bytes);
	return count;
}

START_TEST(a_tree_lets_go_of_what_is_sealed_and_loads_it_again)
{
	_cleanup_(root_unrefp) struct root *empty = NULL, *a = NULL, *b = NULL;
	_cleanup_(tree_freep) struct tree *t = NULL;
	struct shed shed = { 0 }, again = { 0 }, last = { 0 };
	uint64_t all, some;
	struct key k;
	struct val v;

	ck_assert_int_eq(root_empty(nodes, &empty), 0);
	ck_assert_int_eq(tree_new(nodes, empty, &t), 0);
	for (uint64_t i = 0; i < 60000; i++) {
		k = (struct key){ .a = i };
		ck_assert_int_eq(tree_put(t, &k, &(struct val){ .data = &i, .len = 8 }), 0);
	}
	all = nodes_in_memory();
	ck_assert_uint_gt(all, 400);

	/* Nothing is a chunk: nothing goes. */
	shed_tree(&shed, t);
	ck_assert_int_eq(tree_freeze(t, &a), 0);
	shed_tree(&shed, t);
	shed_release(&shed);
	ck_assert_uint_eq(nodes_in_memory(), all);

	/* Changed in one place since: all but the way there goes, once nobody has the old state. */
	ck_assert_int_eq(root_seal(a), 0);
	k = (struct key){ .a = 30000 };
	ck_assert_int_eq(tree_put(t, &k, &(struct val){ .data = "new", .len = 3 }), 0);
	shed_tree(&again, t);
	shed_release(&again);
	ck_assert_uint_ge(nodes_in_memory(), all);
	root_unref(TAKE_PTR(a));
	some = nodes_in_memory();
	ck_assert_uint_lt(some, 10);

	for (uint64_t i = 0; i < 60000; i += i < 100 ? 1 : 997) {
		k = (struct key){ .a = i };
		ck_assert_int_eq(tree_get(t, &k, &v), 0);
		ck_assert_mem_eq(v.data, &i, 8);
	}
	k = (struct key){ .a = 30000 };
	ck_assert_int_eq(tree_get(t, &k, &v), 0);
	ck_assert_mem_eq(v.data, "new", 3);
	ck_assert_uint_gt(nodes_in_memory(), some + 50);

	/* Unchanged: all of it goes. */
	ck_assert_int_eq(tree_freeze(t, &b), 0);
	ck_assert_int_eq(root_seal(b), 0);
	root_unref(TAKE_PTR(b));
	shed_tree(&last, t);
	shed_release(&last);
	ck_assert_uint_eq(nodes_in_memory(), 0);
	ck_assert_int_eq(tree_get(t, &k, &v), 0);
	ck_assert_mem_eq(v.data, "new", 3);
	ck_assert(!t->dirty);
}
END_TEST

static int count_only(void *arg, const struct key *k, const struct val *o, const struct val *n)
{
	++*(unsigned *)arg;
	return 0;
}

START_TEST(a_diff_of_an_equal_range_reads_only_the_way_to_it)
{
	_cleanup_(root_unrefp) struct root *empty = NULL, *a = NULL, *b = NULL;
	struct root *x, *y;
	_cleanup_(tree_freep) struct tree *t = NULL;
	struct nodes *fresh;
	struct name na, nb;
	struct key k, from = { .a = 40000 }, to = { .a = 40050 };
	uint64_t count, bytes;
	unsigned found = 0;

	ck_assert_int_eq(root_empty(nodes, &empty), 0);
	ck_assert_int_eq(tree_new(nodes, empty, &t), 0);
	for (uint64_t i = 0; i < 60000; i++) {
		k = (struct key){ .a = i };
		ck_assert_int_eq(tree_put(t, &k, &(struct val){ .data = &i, .len = 8 }), 0);
	}
	ck_assert_int_eq(tree_freeze(t, &a), 0);
	for (uint64_t i = 0; i < 30000; i += 2) { /* shifts every boundary before 30000 */
		k = (struct key){ .a = i };
		ck_assert_int_eq(tree_del(t, &k), 0);
	}
	ck_assert_int_eq(tree_freeze(t, &b), 0);
	ck_assert_int_eq(root_seal(a), 0);
	ck_assert_int_eq(root_seal(b), 0);
	ck_assert_int_eq(root_name(a, &na), 0);
	ck_assert_int_eq(root_name(b, &nb), 0);

	ck_assert_int_eq(nodes_new(scratch.chunks, NULL, &fresh), 0);
	ck_assert_int_eq(root_by_name(fresh, &na, &x), 0);
	ck_assert_int_eq(root_by_name(fresh, &nb, &y), 0);
	ck_assert_int_eq(root_diff(x, y, &from, &to, count_only, &found), 0);
	ck_assert_uint_eq(found, 0);
	nodes_stats(fresh, &count, &bytes);
	ck_assert_uint_le(count, 8);
	ck_assert_int_eq(root_diff(x, y, &KEY_MIN, &KEY_MAX, count_only, &found), 0);
	ck_assert_uint_eq(found, 15000);
	root_unref(x);
	root_unref(y);
	nodes_free(fresh);
}
END_TEST

int main(void)
{
	TCase *c = tcase_create("model");

	tcase_add_checked_fixture(c, setup, teardown);
	tcase_set_timeout(c, 600);
	tcase_add_test(c, the_tree_agrees_with_a_sorted_array);
	tcase_add_test(c, a_diff_of_an_equal_range_reads_only_the_way_to_it);
	tcase_add_test(c, a_tree_lets_go_of_what_is_sealed_and_loads_it_again);
	return run_case("tree model", c);
}
