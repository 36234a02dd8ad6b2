/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A whole store in a temporary directory, and short words for what tests do with it. */

#include <sched.h>

#include "store/store.h"
#include "store/tree.h"
#include "tests/unit/scratch.h"

static struct scratch scratch;
static struct store *store;

_unused_ static void store_up(void)
{
	const struct noter noter = { .fn = scratch_note, .arg = &scratch };

	ck_ok(store_open(scratch.dir_fd, &noter, &store));
}

_unused_ static void store_setup(void)
{
	scratch_make(&scratch);
	ck_ok(store_init(scratch.dir_fd));
	store_up();
}

_unused_ static void store_teardown(void)
{
	if (store)
		ck_ok(store_close(store));
	scratch_remove(&scratch);
}

_unused_ static void store_reopen(void)
{
	ck_ok(store_close(store));
	store_up();
}

_unused_ static struct key key_at(uint64_t a)
{
	return (struct key){ .a = a };
}

_unused_ static void put_text(struct tree *t, uint64_t a, const char *text)
{
	const struct key k = key_at(a);
	const struct val v = { .data = text, .len = strlen(text) };

	ck_ok(tree_put(t, &k, &v));
}

/* A visible change, as fs/ makes it. */
_unused_ static void change(struct branch *b, uint64_t a, const char *text)
{
	BRANCH_CHANGE_GUARD(b);
	put_text(b->tree, a, text);
	b->changes++;
}

_unused_ static void change_blob(struct branch *b, uint64_t a, const void *data, size_t len)
{
	_cleanup_(blob_unrefp) struct blob *blob = NULL;
	const struct key k = key_at(a);

	BRANCH_CHANGE_GUARD(b);
	ck_ok(blob_new(store_stage(store), data, len, &blob));
	const struct val v = { .data = "b", .len = 1, .ref = { .kind = REF_BLOB, .blob = blob } };
	ck_ok(tree_put(b->tree, &k, &v));
	b->changes++;
}

_unused_ static void forget(struct branch *b, uint64_t a)
{
	const struct key k = key_at(a);

	BRANCH_CHANGE_GUARD(b);
	ck_ok(tree_del(b->tree, &k));
	b->changes++;
}

/* NULL: the key must be absent. */
_unused_ static void expect_in_tree(const struct tree *t, uint64_t a, const char *text)
{
	const struct key k = key_at(a);
	struct val v;

	if (!text) {
		ck_err(tree_get(t, &k, &v), ABSENT);
		return;
	}
	ck_ok(tree_get(t, &k, &v));
	ck_assert_uint_eq(v.len, strlen(text));
	ck_assert_mem_eq(v.data, text, v.len);
}

_unused_ static void expect_text(struct branch *b, uint64_t a, const char *text)
{
	READ_GUARD(&b->lock);
	expect_in_tree(b->tree, a, text);
}

_unused_ static void expect_in_snap(uint64_t id, uint64_t a, const char *text)
{
	_cleanup_(root_unrefp) struct root *root = NULL;
	_cleanup_(tree_freep) struct tree *t = NULL;

	ck_ok(snap_root(store, id, &root));
	ck_ok(tree_new(store_nodes(store), root, &t));
	expect_in_tree(t, a, text);
}

_unused_ static struct branch *branch_make(const char *name)
{
	_cleanup_(root_unrefp) struct root *root = NULL;
	struct branch *b;

	ck_ok(root_empty(store_nodes(store), &root));
	ck_ok(branch_create(store, name, root, 0, store_take_lineage(store), &b));
	return b;
}

_unused_ static struct branch *branch_at(const char *name)
{
	struct branch *b;

	ck_ok(branch_open(store, name, &b));
	return b;
}

_unused_ static uint64_t checkpoint(struct branch *b, const char *label)
{
	uint64_t id;

	ck_ok(branch_checkpoint(b, label, 0, &id));
	return id;
}

_unused_ static void restore(struct branch *b, uint64_t id)
{
	_cleanup_(root_unrefp) struct root *left = NULL;

	WRITE_GUARD(&b->lock);
	ck_ok(branch_restore_locked(b, id, &left));
}

/* A tree of some levels: keys from..to-1, each with 200 bytes that tell key and seed. */
_unused_ static void fill(struct branch *b, uint64_t from, uint64_t to, unsigned seed)
{
	for (uint64_t a = from; a < to; a++) {
		char text[201];

		(void)snprintf(text, sizeof(text), "%0100llu%0100u", (unsigned long long)a, seed);
		change(b, a, text);
	}
}

static void ignore_damage(void *arg, const char *line)
{
	int *lines = arg;

	(*lines)++;
	fprintf(stderr, "damage: %s\n", line);
}

/* The store is sound, every byte of it. */
_unused_ static void expect_sound(struct check_stats *ret)
{
	int lines = 0;
	const struct check_ops ops = { .damage = ignore_damage, .arg = &lines };
	struct check_stats stats;

	ck_ok(store_check(store, CHECK_READ_DATA, &ops, NULL, &stats));
	ck_assert_int_eq(lines, 0);
	if (ret)
		*ret = stats;
}

_unused_ static struct gc_stats collect(void)
{
	struct gc_stats stats;

	ck_ok(store_gc(store, NULL, &stats));
	return stats;
}
