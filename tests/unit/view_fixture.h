/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A view of a branch with nothing but a root directory, in a store of its own; without a mount. */

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
