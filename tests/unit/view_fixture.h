/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A view of a branch with nothing but a root directory, in a store of its own; without a mount. Use
 * view_setup and view_teardown as a checked fixture: a store never crosses fork().
 */

#include <linux/fs.h>

#include "fs/view.h"
#include "tests/unit/scratch.h"

static struct scratch scratch;
static struct store *store;
static struct view *view;

/* In a new store that is open. */
static void view_make_branch(void)
{
	_cleanup_(root_unrefp) struct root *empty = NULL, *root = NULL;
	_cleanup_(tree_freep) struct tree *tree = NULL;
	struct branch *b;

	ck_ok(root_empty(store_nodes(store), &empty));
	ck_ok(tree_new(store_nodes(store), empty, &tree));
	struct fs fs = { .store = store, .tree = tree };
	ck_ok(fs_make_root(&fs, 0755, 0, 0, (struct timens){ 1, 0 }));
	ck_ok(tree_freeze(tree, &root));
	store_raise_ino(store, 2);
	ck_ok(branch_create(store, "main", root, 0, store_take_lineage(store), &b));
	branch_close(b);
}

_unused_ static void view_setup(void)
{
	scratch_make(&scratch);
	ck_ok(store_init(scratch.dir_fd));
	ck_ok(store_open(scratch.dir_fd, NULL, &store));
	view_make_branch();
	ck_ok(view_open(store, "main", NULL, &view));
}

/* What is sealed goes from memory in each round of the sealer that freezes live states. */
_unused_ static void view_setup_tight(void)
{
	const struct store_options none = { .node_budget = 0 };

	view_setup();
	view_close(view);
	ck_assert_int_eq(store_close(store), 0);
	ck_assert_int_eq(store_open_with(scratch.dir_fd, &none, NULL, &store), 0);
	ck_assert_int_eq(view_open(store, "main", NULL, &view), 0);
}

_unused_ static void view_teardown(void)
{
	view_close(view);
	ck_assert_int_eq(store_close(store), 0);
	scratch_remove(&scratch);
}

/* ---- requests that go well; ids as the kernel would keep them ---- */

_unused_ static int look(uint64_t dir, const char *name, struct entry *ret)
{
	return view_lookup(view, dir, name, strlen(name), ret);
}

_unused_ static uint64_t node_of(uint64_t dir, const char *name)
{
	struct entry e;

	ck_assert_int_eq(look(dir, name, &e), 0);
	return e.node;
}

_unused_ static const char *text_of(uint64_t node)
{
	static char buf[4096];
	struct segments s;

	ck_assert_int_eq(view_map(view, node, 0, sizeof(buf) - 1, &s), 0);
	ck_assert_int_eq(segments_read(store, &s, buf), 0);
	buf[s.len] = '\0';
	segments_release(&s);
	return buf;
}

_unused_ static void rewrite(uint64_t node, const char *text)
{
	struct fs_set set = { .mask = SET_SIZE, .size = 0 };
	struct inode i;

	ck_assert_int_eq(view_setattr(view, node, &set, &i), 0);
	ck_assert_int_eq(view_write(view, node, 0, text, strlen(text), false, NULL), 0);
}

_unused_ static uint64_t checkpoint(void)
{
	uint64_t id;

	ck_assert_int_ge(view_checkpoint(view, NULL, false, &id), 0);
	return id;
}

/*
 * The state of another import, `number` of the test's: as `like`, but that some names of the root,
 * n pairs of them, change places, or one goes where there is no other. So a name may have there
 * what is another object's number here.
 */
_unused_ static uint64_t make_other(uint64_t like, unsigned number, size_t n,
				    const char *const names[][2])
{
	_cleanup_(root_unrefp) struct root *root = NULL, *changed = NULL;
	_cleanup_(tree_freep) struct tree *tree = NULL;
	struct inode gone;
	struct branch *b;
	char name[16];
	uint64_t id;

	ck_ok(snap_root(store, like, &root));
	ck_ok(tree_new(store_nodes(store), root, &tree));
	struct fs fs = { .store = store, .tree = tree };
	for (size_t i = 0; i < n; i++)
		for (int swap = 1; swap >= 0; swap--) {
			const char *from = names[i][0], *to = names[i][1];

			if (fs_rename(&fs, ROOT_INO, from, strlen(from), ROOT_INO, to, strlen(to),
				      swap ? RENAME_EXCHANGE : RENAME_NOREPLACE, &gone) == 0)
				break;
		}
	ck_ok(tree_freeze(tree, &changed));
	snprintf(name, sizeof(name), "other%u", number);
	ck_ok(branch_create(store, name, changed, 0, store_take_lineage(store), &b));
	ck_ok(branch_checkpoint(b, "", 0, &id));
	branch_close(b);
	return id;
}
