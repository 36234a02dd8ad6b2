/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A view (view_fixture.h) with a kernel that writes down what it is told. */

#include "tests/unit/view_fixture.h"

/* ---- the recording kernel ---- */

static unsigned told_names, told_inodes, epochs;
static struct { uint64_t parent; char name[256]; bool expire; } told[8192];

static void (*on_entry)(const char *name); /* what goes on meanwhile; NULL: nothing */

_unused_ static int rec_entry(void *arg, uint64_t parent, const char *name, size_t len, bool expire)
{
	if (told_names < ARRAY_SIZE(told)) {
		told[told_names].parent = parent;
		snprintf(told[told_names].name, sizeof(told[0].name), "%.*s", (int)len, name);
		told[told_names].expire = expire;
	}
	told_names++;
	if (on_entry)
		on_entry(name);
	return -ENOENT; /* as for a name that is not cached: no failure */
}

static struct { uint64_t node; bool rights; unsigned names_before; } told_node[8192];
static uint64_t not_cached; /* until a name was told: a node id */

_unused_ static int rec_inode(void *arg, uint64_t node, int64_t off, int64_t len)
{
	unsigned at = told_inodes++ % ARRAY_SIZE(told_node);

	told_node[at].node = node;
	told_node[at].rights = off < 0;
	told_node[at].names_before = told_names;
	return node == not_cached && told_names == 0 ? ABSENT : 0;
}

_unused_ static int rec_epoch(void *arg)
{
	epochs++;
	return 0;
}

_unused_ static bool was_told(uint64_t parent, const char *name)
{
	for (unsigned i = 0; i < MIN(told_names, (unsigned)ARRAY_SIZE(told)); i++)
		if (told[i].parent == parent && !strcmp(told[i].name, name))
			return true;
	return false;
}

_unused_ static unsigned times_told(uint64_t parent, const char *name)
{
	unsigned n = 0;

	for (unsigned i = 0; i < MIN(told_names, (unsigned)ARRAY_SIZE(told)); i++)
		n += told[i].parent == parent && !strcmp(told[i].name, name);
	return n;
}

_unused_ static bool was_told_inode(uint64_t node)
{
	for (unsigned i = 0; i < MIN(told_inodes, (unsigned)ARRAY_SIZE(told_node)); i++)
		if (told_node[i].node == node && !told_node[i].rights)
			return true;
	return false;
}

_unused_ static bool were_rights_told_first(uint64_t node)
{
	return told_inodes > 1 && told_node[0].node == node && told_node[0].rights &&
	       told_node[0].names_before == 0 && was_told_inode(node);
}

/* How it was last told; it was. */
_unused_ static bool was_expired(uint64_t parent, const char *name)
{
	for (unsigned i = told_names; i-- > 0;)
		if (told[i].parent == parent && !strcmp(told[i].name, name))
			return told[i].expire;
	ck_abort_msg("%s was not told", name);
}

_unused_ static void told_nothing(void)
{
	told_names = told_inodes = epochs = 0;
}

_unused_ static const struct view_kernel recorder = {
	.inval_entry = rec_entry, .inval_inode = rec_inode, .inc_epoch = rec_epoch
};
_unused_ static const struct view_kernel old_recorder = {
	.inval_entry = rec_entry, .inval_inode = rec_inode
};

/* ---- fixture ---- */

_unused_ static void setup(void)
{
	view_setup();
	view_set_kernel(view, &recorder);
	told_nothing();
	on_entry = NULL;
	not_cached = 0;
}

/* The same with no room for tree nodes. */
_unused_ static void setup_tight(void)
{
	view_setup_tight();
	view_set_kernel(view, &recorder);
	told_nothing();
	on_entry = NULL;
	not_cached = 0;
}

/* ---- helpers: ids as the kernel would keep them ---- */

_unused_ static uint64_t make(uint64_t dir, const char *name, uint32_t mode)
{
	struct fs_new n = { .dir = dir, .name = name, .len = strlen(name), .mode = mode,
			    .cred = { .umask = 022 } };
	struct entry e;

	ck_assert_int_eq(view_create(view, &n, &e), 0);
	return e.node;
}

_unused_ static uint64_t make_dir(uint64_t dir, const char *name)
{
	return make(dir, name, S_IFDIR | 0755);
}

_unused_ static uint64_t make_file(uint64_t dir, const char *name, const char *text)
{
	uint64_t node = make(dir, name, S_IFREG | 0644);

	ck_assert_int_eq(view_write(view, node, 0, text, strlen(text), false, NULL), 0);
	return node;
}

_unused_ static struct restore_info restore(uint64_t id)
{
	struct restore_info info;

	told_nothing();
	ck_assert_int_eq(view_restore(view, id, &info), 0);
	return info;
}

_unused_ static int rename_in_root(const char *from, const char *to)
{
	return view_rename(view, ROOT_NODE, from, strlen(from), ROOT_NODE, to, strlen(to), 0);
}

_unused_ static void many_files(uint64_t dir, unsigned n)
{
	char name[32];

	for (unsigned i = 0; i < n; i++) {
		snprintf(name, sizeof(name), "f%u", i);
		make_file(dir, name, name);
	}
}
