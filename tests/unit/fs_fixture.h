/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What the tests of the file tree model share: a store in a temporary directory with one tree that
 * has a root directory, and short forms of the verbs that must succeed. Use setup/teardown as a
 * checked fixture: a store never crosses fork().
 */

#include "fs/fs.h"
#include "fs/model.h"
#include "store/store.h"
#include "tests/unit/scratch.h"

static struct scratch fx;
static struct store *fx_store;
static uint64_t fx_changes;
static struct fs fs;

static _unused_ struct tree *fx_tree(struct root *root)
{
	_cleanup_(root_unrefp) struct root *empty = NULL;
	struct tree *t;

	if (!root) {
		ck_assert_int_eq(root_empty(store_nodes(fx_store), &empty), 0);
		root = empty;
	}
	ck_assert_int_eq(tree_new(store_nodes(fx_store), root, &t), 0);
	return t;
}

static _unused_ void setup(void)
{
	struct timens now = { .sec = 1000000000, .nsec = 5 };

	scratch_make(&fx);
	ck_assert_int_eq(store_init(fx.dir_fd), 0);
	ck_assert_int_eq(store_open(fx.dir_fd, NULL, &fx_store), 0);

	fs = (struct fs){ .store = fx_store, .tree = fx_tree(NULL), .changes = &fx_changes };
	ck_assert_int_eq(fs_make_root(&fs, 0755, 0, 0, now), 0);
}

static _unused_ void teardown(void)
{
	tree_free(fs.tree);
	ck_assert_int_eq(store_close(fx_store), 0);
	scratch_remove(&fx);
}

static _unused_ int fx_try(uint64_t dir, const char *name, uint32_t mode, struct inode *ret)
{
	struct fs_new n = { .dir = dir, .name = name, .len = strlen(name), .mode = mode };

	return fs_create(&fs, &n, ret);
}

static _unused_ uint64_t fx_make(uint64_t dir, const char *name, uint32_t mode)
{
	struct inode i;

	ck_assert_int_eq(fx_try(dir, name, mode, &i), 0);
	return i.ino;
}

static _unused_ uint64_t fx_file(const char *name)
{
	return fx_make(ROOT_INO, name, S_IFREG | 0644);
}

static _unused_ uint64_t fx_dir(uint64_t dir, const char *name)
{
	return fx_make(dir, name, S_IFDIR | 0755);
}

static _unused_ struct inode fx_stat(uint64_t ino)
{
	struct inode i;

	ck_assert_int_eq(fs_stat(&fs, ino, &i), 0);
	return i;
}

/* The inode behind a name; ino 0 when there is none. */
static _unused_ struct inode fx_look(uint64_t dir, const char *name)
{
	struct inode i = { .ino = 0 };
	int r = fs_lookup(&fs, dir, name, strlen(name), &i);

	ck_assert(r == 0 || r == -ENOENT);
	return r == 0 ? i : (struct inode){ .ino = 0 };
}

static _unused_ void fx_write(uint64_t ino, uint64_t off, const void *buf, size_t len)
{
	ck_assert_int_eq(fs_write(&fs, ino, off, buf, len, false), 0);
}

/* Bytes whose value depends on the position, so that a shift shows. */
static _unused_ void fx_fill(uint8_t *buf, size_t len, uint64_t seed)
{
	for (size_t n = 0; n < len; n++)
		buf[n] = (uint8_t)((n * 2654435761u + seed * 40503u) >> 7 | 1); /* never a zero */
}

static _unused_ void fx_expect(uint64_t ino, uint64_t off, const void *want, size_t len)
{
	_cleanup_free_ uint8_t *got = malloc(len + 1);
	size_t n = 0;

	ck_assert_int_eq(fs_read(&fs, ino, off, got, len, &n), 0);
	ck_assert_uint_eq(n, len);
	ck_assert_int_eq(memcmp(got, want, len), 0);
}

/* How many items of a type an inode has. */
static _unused_ unsigned fx_items(uint64_t ino, enum item_type type)
{
	struct key k = item_key(ino, type, 0);
	struct cursor c;
	unsigned n = 0;
	int r;

	for (r = cursor_seek(&c, fs.tree, &k); r == 0 && c.key.a == ino && c.key.t == type;
	     r = cursor_next(&c))
		n++;
	ck_assert(r == 0 || r == END);
	return n;
}

/* inode.bytes is what the extents say, and no extent reaches over the end. */
static _unused_ void fx_check_bytes(uint64_t ino)
{
	struct key k = item_key(ino, ITEM_EXTENT, 0);
	struct inode i = fx_stat(ino);
	uint64_t end = 0, sum = 0;
	struct extent e;
	struct cursor c;
	int r;

	for (r = cursor_seek(&c, fs.tree, &k); r == 0 && c.key.a == ino && c.key.t == ITEM_EXTENT;
	     r = cursor_next(&c)) {
		ck_assert_int_eq(extent_decode(&c.key, &c.val, &e), 0);
		ck_assert_uint_ge(e.off, end);
		end = extent_end(&e);
		sum += e.len;
		if (e.ref.kind == REF_BLOB)
			ck_assert_uint_le(e.ref.off + e.len, blob_len(e.ref.blob));
	}
	ck_assert(r == 0 || r == END);
	ck_assert_uint_le(end, i.size);
	ck_assert_uint_eq(i.bytes, sum);
}

static _unused_ struct root *fx_freeze(void)
{
	struct root *root;

	ck_assert_int_eq(tree_freeze(fs.tree, &root), 0);
	return root;
}
