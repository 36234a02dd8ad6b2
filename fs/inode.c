/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Inodes as objects: loading and saving the record, the root, orphans and their end.
 *
 * An orphan keeps all its items until fs_purge(). Purging removes the ORPHAN item last, so that a
 * state frozen half-way still knows what is left to purge.
 */

#include "fs/inode.h"

#include <errno.h>
#include <inttypes.h>

#include "fs/model.h"
#include "store/base/err.h"
#include "store/base/note.h"
#include "store/store.h"

int item_damaged(const struct fs *fs, const struct key *k, const char *what)
{
	return note(store_noter(fs->store), -ERR_ITEM_DAMAGED,
		    "inode %" PRIu64 ": item %u/%" PRIx64 " is damaged: %s", k->a, k->t, k->b,
		    what);
}

int inode_load(const struct fs *fs, uint64_t ino, struct inode *ret)
{
	struct key k = item_key(ino, ITEM_INODE, 0);
	struct val v;
	int r;

	if (ino == FS_KEYS)
		return -ENOENT;

	r = tree_get(fs->tree, &k, &v);
	if (r < 0)
		return r;
	if (r == ABSENT)
		return -ENOENT;

	r = inode_decode(ino, &v, ret);
	if (r < 0)
		return item_damaged(fs, &k, "not an inode record");
	return 0;
}

int inode_load_dir(const struct fs *fs, uint64_t ino, struct inode *ret)
{
	int r = inode_load(fs, ino, ret);

	if (r < 0)
		return r;
	return inode_is_dir(ret) ? 0 : -ENOTDIR;
}

int inode_load_file(const struct fs *fs, uint64_t ino, struct inode *ret)
{
	int r = inode_load(fs, ino, ret);

	if (r < 0)
		return r;
	if (inode_is_dir(ret))
		return -EISDIR;
	return S_ISREG(ret->mode) ? 0 : -EINVAL;
}

int inode_follow(const struct fs *fs, uint64_t ino, struct inode *ret)
{
	struct key k = item_key(ino, ITEM_INODE, 0);
	int r;

	r = inode_load(fs, ino, ret);
	if (r == -ENOENT)
		return item_damaged(fs, &k, "a name leads to it and it is not there");
	return r;
}

int inode_save(const struct fs *fs, const struct inode *i)
{
	struct key k = item_key(i->ino, ITEM_INODE, 0);
	uint8_t buf[INODE_RECORD_BYTES];

	inode_encode(i, buf);
	return tree_put(fs->tree, &k, &(struct val){ .data = buf, .len = sizeof(buf) });
}

int inode_save_changed(const struct fs *fs, const struct inode *i)
{
	int r = inode_save(fs, i);

	if (r >= 0 && i->nlink > 0)
		fs_changed(fs);
	return r;
}

int inode_save_parent(const struct fs *fs, struct inode *dir, struct timens now)
{
	dir->mtime = now;
	dir->ctime = now;
	return inode_save(fs, dir);
}

uint32_t mode_without_priv(uint32_t mode)
{
	if (S_ISDIR(mode))
		return mode;
	if (mode & S_IXGRP)
		mode &= ~(uint32_t)S_ISGID;
	return mode & ~(uint32_t)S_ISUID;
}

/* ---- orphans ---- */

int orphan_put(const struct fs *fs, uint64_t ino, uint8_t flags)
{
	struct key k = item_key(FS_KEYS, ITEM_ORPHAN, ino);

	return tree_put(fs->tree, &k, &(struct val){ .data = &flags, .len = ORPHAN_BYTES });
}

int orphan_get(const struct fs *fs, uint64_t ino, uint8_t *ret_flags)
{
	struct key k = item_key(FS_KEYS, ITEM_ORPHAN, ino);
	struct val v;
	int r;

	r = tree_get(fs->tree, &k, &v);
	if (r != 0)
		return r;

	r = orphan_decode(&v, ret_flags);
	if (r < 0)
		return item_damaged(fs, &k, "not an orphan record");
	return 0;
}

int orphan_del(const struct fs *fs, uint64_t ino)
{
	struct key k = item_key(FS_KEYS, ITEM_ORPHAN, ino);

	return tree_del(fs->tree, &k);
}

int fs_orphans(const struct fs *fs, int (*fn)(void *arg, uint64_t ino), void *arg)
{
	struct key k = item_key(FS_KEYS, ITEM_ORPHAN, 0);
	struct cursor c;
	int r;

	for (;;) {
		/* Sought anew each time: fn may purge what it is told. */
		r = cursor_seek(&c, fs->tree, &k);
		if (r < 0)
			return r;
		if (r == END || c.key.a != FS_KEYS || c.key.t != ITEM_ORPHAN)
			return 0;

		k = c.key;
		r = fn(arg, k.b);
		if (r != 0)
			return r;
		if (k.b == UINT64_MAX)
			return 0;
		k.b++;
	}
}

int fs_purge(const struct fs *fs, uint64_t ino)
{
	const struct key first = item_key(ino, 0, 0), last = item_key(ino, UINT8_MAX, UINT64_MAX);
	struct inode i;
	uint8_t flags;
	int r;

	r = orphan_get(fs, ino, &flags);
	if (r < 0)
		return r;
	if (r == ABSENT)
		return 0;

	r = inode_load(fs, ino, &i);
	if (r == 0 && i.nlink > 0) {
		/* Somebody's file, whatever the list says. */
		r = orphan_del(fs, ino);
		return r < 0 ? r : 0;
	}

	r = tree_del_range(fs->tree, &first, &last);
	if (r < 0)
		return r;

	r = orphan_del(fs, ino);
	return r < 0 ? r : 0;
}

/* ---- verbs on the record ---- */

int fs_make_root(const struct fs *fs, uint32_t mode, uint32_t uid, uint32_t gid, struct timens now)
{
	struct inode i = {
		.ino = ROOT_INO,
		.mode = S_IFDIR | (mode & 07777),
		.uid = uid,
		.gid = gid,
		.nlink = 2,
		.size = BLOCK_BYTES,
		.atime = now,
		.mtime = now,
		.ctime = now,
		.btime = now,
	};
	struct inode old;
	int r;

	r = inode_load(fs, ROOT_INO, &old);
	if (r == 0)
		return -EEXIST;
	if (r != -ENOENT)
		return r;

	r = inode_save(fs, &i);
	if (r < 0)
		return r;

	fs_changed(fs);
	return 0;
}

int fs_put_inode(const struct fs *fs, const struct inode *i)
{
	struct inode old, put;
	int r;

	r = inode_load(fs, i->ino, &old);
	if (r < 0)
		return r;
	if (((i->mode ^ old.mode) & S_IFMT) || !inode_ok(i))
		return -EINVAL;

	/* What ties the record to other items stays as it is: a caller's copy may be older. */
	put = *i;
	put.nlink = old.nlink;
	put.flags = old.flags;
	put.bytes = old.bytes;
	put.parent = old.parent;
	put.parent_off = old.parent_off;
	put.size = old.size;
	if (S_ISREG(put.mode)) {
		r = data_truncate(fs, &put, i->size);
		if (r < 0)
			return r;
	}
	if (put.mode != old.mode) {
		r = acl_follow_mode(fs, &put);
		if (r < 0)
			return r;
	}

	r = inode_save(fs, &put);
	if (r < 0)
		return r;

	fs_changed(fs);
	return 0;
}

int fs_stat(const struct fs *fs, uint64_t ino, struct inode *ret)
{
	return inode_load(fs, ino, ret);
}

/* ---- comparing ---- */

static int stop_at_first(void *arg, const struct key *k, const struct val *old_val,
			 const struct val *new_val)
{
	return 1;
}

int fs_same_object(struct root *a, struct root *b, uint64_t ino)
{
	struct key from = item_key(ino, 0, 0);
	struct key to = { .a = ino, .t = UINT8_MAX, .b = UINT64_MAX };
	int r;

	r = root_diff(a, b, &from, &to, stop_at_first, NULL);
	if (r < 0)
		return r;
	return r == 0;
}
