/* SPDX-License-Identifier: Apache-2.0 */

/*
 * From an inode back to its names. The record holds one (the primary name); a file with more has a
 * LINK item for each of the others. When the primary name goes, another one takes its place.
 */

#include <errno.h>

#include "fs/model.h"
#include "store/base/err.h"

struct link_match {
	const struct fs *fs;
	struct link_item link;
};

static int match_link(void *arg, const struct key *k, const struct val *v)
{
	struct link_match *m = arg;
	struct link_item l;
	int r;

	r = link_decode(v, &l);
	if (r < 0)
		return item_damaged(m->fs, k, "not a link");
	return l.parent == m->link.parent && l.off == m->link.off;
}

static int link_find(const struct fs *fs, uint64_t ino, uint64_t dir, uint64_t pos, struct key *ret)
{
	struct key base = item_key(ino, ITEM_LINK, link_base(dir, pos));
	struct link_match m = { .fs = fs, .link = { .parent = dir, .off = pos } };

	return slot_find(fs, &base, match_link, &m, ret);
}

static int link_put(const struct fs *fs, uint64_t ino, uint64_t dir, uint64_t pos)
{
	uint8_t buf[LINK_BYTES];
	struct key k;
	int r;

	r = link_find(fs, ino, dir, pos, &k);
	if (r <= 0)
		return r;
	if (k.t == 0)
		return -ENOSPC;

	link_encode(&(struct link_item){ .parent = dir, .off = pos }, buf);
	return tree_put(fs->tree, &k, &(struct val){ .data = buf, .len = sizeof(buf) });
}

static int link_del(const struct fs *fs, uint64_t ino, uint64_t dir, uint64_t pos)
{
	struct key k;
	int r;

	r = link_find(fs, ino, dir, pos, &k);
	if (r < 0)
		return r;
	if (r == ABSENT)
		return item_damaged(fs, &(struct key){ .a = ino, .t = ITEM_LINK },
				    "a link is missing");

	return tree_del(fs->tree, &k);
}

/* The first LINK of an inode becomes its primary name. */
static int link_promote(const struct fs *fs, struct inode *i)
{
	struct key k = item_key(i->ino, ITEM_LINK, 0);
	struct link_item l;
	struct cursor c;
	int r;

	r = cursor_seek(&c, fs->tree, &k);
	if (r < 0)
		return r;
	if (r == END || c.key.a != i->ino || c.key.t != ITEM_LINK || link_decode(&c.val, &l) < 0)
		return item_damaged(fs, &k, "it should have another name");

	k = c.key;
	r = tree_del(fs->tree, &k);
	if (r < 0)
		return r;

	i->parent = l.parent;
	i->parent_off = l.off;
	return 0;
}

int link_add(const struct fs *fs, struct inode *i, uint64_t dir, uint64_t pos)
{
	if (i->parent != 0)
		return link_put(fs, i->ino, dir, pos);

	i->parent = dir;
	i->parent_off = pos;
	return 0;
}

int link_drop(const struct fs *fs, struct inode *i, uint64_t dir, uint64_t pos)
{
	if (i->parent != dir || i->parent_off != pos)
		return link_del(fs, i->ino, dir, pos);

	if (!inode_is_dir(i) && i->nlink > 1)
		return link_promote(fs, i);

	i->parent = 0;
	i->parent_off = 0;
	return 0;
}

int link_move(const struct fs *fs, struct inode *i, uint64_t odir, uint64_t opos, uint64_t ndir,
	      uint64_t npos)
{
	int r;

	if (i->parent == odir && i->parent_off == opos) {
		i->parent = ndir;
		i->parent_off = npos;
		return 0;
	}

	r = link_del(fs, i->ino, odir, opos);
	if (r < 0)
		return r;
	return link_put(fs, i->ino, ndir, npos);
}

/* Tells fn one name, read from the directory. */
static int tell_name(const struct fs *fs, uint64_t ino, uint64_t dir, uint64_t pos,
		     int (*fn)(void *arg, uint64_t parent, const char *name, size_t len), void *arg)
{
	struct key k = item_key(dir, ITEM_DIRENT, pos);
	struct dirent_item d;
	struct val v;
	int r;

	r = tree_get(fs->tree, &k, &v);
	if (r < 0)
		return r;
	if (r == ABSENT || dirent_decode(&v, &d) < 0 || d.ino != ino)
		return item_damaged(fs, &k, "not the entry that its inode says");

	return fn(arg, dir, d.name, d.len);
}

int fs_names_of(const struct fs *fs, const struct inode *i,
		int (*fn)(void *arg, uint64_t parent, const char *name, size_t len), void *arg)
{
	struct key k = item_key(i->ino, ITEM_LINK, 0);
	struct link_item l;
	struct cursor c;
	int r;

	if (i->parent == 0)
		return 0;

	r = tell_name(fs, i->ino, i->parent, i->parent_off, fn, arg);
	if (r != 0 || inode_is_dir(i) || i->nlink < 2)
		return r;

	for (r = cursor_seek(&c, fs->tree, &k); r == 0; r = cursor_next(&c)) {
		if (c.key.a != i->ino || c.key.t != ITEM_LINK)
			return 0;
		if (link_decode(&c.val, &l) < 0)
			return item_damaged(fs, &c.key, "not a link");

		r = tell_name(fs, i->ino, l.parent, l.off, fn, arg);
		if (r != 0)
			return r;
	}
	return r < 0 ? r : 0;
}

int fs_names(const struct fs *fs, uint64_t ino,
	     int (*fn)(void *arg, uint64_t parent, const char *name, size_t len), void *arg)
{
	struct inode i;
	int r;

	r = inode_load(fs, ino, &i);
	return r < 0 ? r : fs_names_of(fs, &i, fn, arg);
}
