/* SPDX-License-Identifier: Apache-2.0 */

/* Verbs of a view that change nothing: each in one hold of its lock for reading. */

#include <errno.h>
#include <unistd.h>

#include "fs/view_internal.h"
#include "store/base/err.h"
#include "store/base/util.h"
#include "store/stage.h"

int view_lookup(struct view *v, uint64_t dir, const char *name, size_t len, struct entry *ret)
{
	READ_GUARD(v->lock);
	struct bound b;
	int r;

	r = vnode_bind_dir(v, dir, &b);
	if (r < 0)
		return r;
	r = fs_lookup(&b.fs, b.ino, name, len, &ret->inode);
	if (r < 0)
		return r;
	return vnode_get(v, &ret->inode, &ret->node);
}

uint64_t view_known(struct view *v, uint64_t dir, const char *name, size_t len)
{
	READ_GUARD(v->lock);
	struct inode i;
	struct bound b;

	if (vnode_bind_dir(v, dir, &b) < 0 || fs_lookup(&b.fs, b.ino, name, len, &i) < 0)
		return 0;
	LOCK_GUARD(&v->table_lock);
	const struct vnode *n = vnode_by_ino(v, i.ino);

	return n && n->realm == v->cur ? n->node : 0;
}

int view_getattr(struct view *v, uint64_t node, struct inode *ret)
{
	READ_GUARD(v->lock);
	struct bound b;
	int r;

	r = vnode_bind_to_tell(v, node, false, &b);
	if (r < 0)
		return r;
	r = fs_stat(&b.fs, b.ino, ret);
	if (r < 0)
		return r;
	if (b.dead)
		ret->nlink = 0; /* as rmdir leaves it */
	return r;
}

int view_readlink(struct view *v, uint64_t node, char *buf, size_t cap, size_t *ret_len)
{
	READ_GUARD(v->lock);
	struct bound b;
	int r;

	r = vnode_bind(v, node, &b);
	return r < 0 ? r : fs_readlink(&b.fs, b.ino, buf, cap, ret_len);
}

int view_map(struct view *v, uint64_t node, uint64_t off, uint64_t len, struct segments *ret)
{
	READ_GUARD(v->lock);
	struct bound b;
	int r;

	r = vnode_bind(v, node, &b);
	return r < 0 ? r : fs_map(&b.fs, b.ino, off, len, ret);
}

/*
 * fs_seek tells holes to the byte. Programs are told those of whole blocks, as by a disk: bmaptool
 * counts in blocks, and left out of its copies the one in which data ends.
 */
static int seek_block(const struct fs *fs, uint64_t ino, uint64_t off, int whence,
		      uint64_t *ret_off)
{
	uint64_t at = off - off % BLOCK_BYTES, data;
	struct inode i;
	int r;

	r = fs_stat(fs, ino, &i);
	if (r < 0)
		return r;
	if (off >= i.size)
		return -ENXIO;

	if (whence != SEEK_HOLE) {
		r = fs_seek(fs, ino, at, whence, &data);
		if (r < 0)
			return r;

		*ret_off = MAX(off, data - data % BLOCK_BYTES);
		return 0;
	}

	while (at < i.size) {
		r = fs_seek(fs, ino, at, SEEK_DATA, &data);
		if (r == -ENXIO || (r == 0 && data - at >= BLOCK_BYTES))
			break;
		if (r == 0)
			r = fs_seek(fs, ino, data, SEEK_HOLE, &at);
		if (r < 0)
			return r;
		at = (at + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
	}

	*ret_off = MIN(MAX(off, at), i.size);
	return 0;
}

int view_seek(struct view *v, uint64_t node, uint64_t off, int whence, uint64_t *ret_off)
{
	READ_GUARD(v->lock);
	struct bound b;
	int r;

	r = vnode_bind(v, node, &b);
	return r < 0 ? r : seek_block(&b.fs, b.ino, off, whence, ret_off);
}

int view_hole(struct view *v, uint64_t node, uint64_t off, uint64_t *ret_from, uint64_t *ret_to)
{
	READ_GUARD(v->lock);
	uint64_t from, to;
	struct inode i;
	struct bound b;
	int r;

	r = vnode_bind(v, node, &b);
	if (r < 0)
		return r;
	r = fs_stat(&b.fs, b.ino, &i);
	if (r < 0)
		return r;
	r = seek_block(&b.fs, b.ino, off, SEEK_HOLE, &from);
	if (r == -ENXIO || (r == 0 && from == i.size))
		return ABSENT;
	if (r < 0)
		return r;
	r = seek_block(&b.fs, b.ino, from, SEEK_DATA, &to);
	if (r == -ENXIO)
		to = i.size;
	else if (r < 0)
		return r;

	*ret_from = from;
	*ret_to = to;
	return 0;
}

int view_same_in(struct view *v, uint64_t ino, uint64_t snap)
{
	_cleanup_(root_unrefp) struct root *root = NULL;
	int r;

	r = snap_pin(v->store, snap);
	if (r < 0)
		return r;
	r = snap_root(v->store, snap, &root);
	if (r == 0) {
		READ_GUARD(v->lock);

		r = fs_same_object(root, v->cur_base, ino);
	}
	snap_unpin(v->store, snap);
	return r;
}

int view_getxattr(struct view *v, uint64_t node, const char *name, void *buf, size_t cap,
		  size_t *ret_len)
{
	READ_GUARD(v->lock);
	struct bound b;
	int r;

	r = vnode_bind(v, node, &b);
	return r < 0 ? r : fs_getxattr(&b.fs, b.ino, name, buf, cap, ret_len);
}

int view_listxattr(struct view *v, uint64_t node, char *buf, size_t cap, size_t *ret_len)
{
	READ_GUARD(v->lock);
	struct bound b;
	int r;

	r = vnode_bind(v, node, &b);
	return r < 0 ? r : fs_listxattr(&b.fs, b.ino, buf, cap, ret_len);
}

struct listing {
	struct view *view;
	const struct fs *fs;
	bool plus;
	int (*fn)(void *arg, const char *name, size_t len, const struct entry *e, unsigned type,
		  uint64_t next_cookie);
	void *arg;
};

static bool is_dot(const char *name, size_t len)
{
	return (len == 1 && name[0] == '.') || (len == 2 && name[0] == '.' && name[1] == '.');
}

static int list_one(void *arg, const char *name, size_t len, uint64_t ino, unsigned type,
		    uint64_t next_cookie)
{
	struct listing *l = arg;
	struct entry e = { .node = 0, .inode = { .ino = ino, .mode = type << 12 } };
	int r;

	if (l->plus && !is_dot(name, len)) {
		r = fs_stat(l->fs, ino, &e.inode);
		if (r < 0)
			return r;
		r = vnode_get(l->view, &e.inode, &e.node);
		if (r < 0)
			return r;
	}
	r = l->fn(l->arg, name, len, &e, type, next_cookie);
	if (r && e.node) {
		struct vnode *n;
		LOCK_GUARD(&l->view->table_lock);

		/* Not taken, so not counted. Listed inodes have a name: no orphan to purge. */
		n = vnode_by_node(l->view, e.node);
		vnode_drop(l->view, n);
	}
	return r;
}

int view_readdir(struct view *v, uint64_t dir, uint64_t cookie, bool plus,
		 int (*fn)(void *arg, const char *name, size_t len, const struct entry *e,
			   unsigned type, uint64_t next_cookie),
		 void *arg)
{
	READ_GUARD(v->lock);
	struct bound b;
	struct listing l = { .view = v, .fs = &b.fs, .plus = plus, .fn = fn, .arg = arg };
	int r;

	r = vnode_bind(v, dir, &b);
	if (r < 0)
		return r;
	/*
	 * As a removed directory answers. An empty listing would be kept by the kernel, and with no
	 * page to drop and the same mtime it would be the listing when the directory is back.
	 */
	if (b.dead)
		return -ENOENT;
	r = fs_readdir(&b.fs, b.ino, cookie, list_one, &l);
	return r < 0 ? r : 0;
}

int view_stat(struct view *v, struct view_stats *ret)
{
	struct store_stats stats;
	uint64_t free_bytes;
	int r;

	r = store_stats(v->store, &stats);
	if (r < 0)
		return r;
	r = stage_room(store_stage(v->store), &free_bytes);
	if (r < 0)
		return r;

	LOCK_GUARD(&v->table_lock);
	ret->bytes_used = stats.pack_bytes + stats.unsealed_bytes;
	ret->bytes_free = free_bytes;
	ret->nodes = v->n_slots - 1 - v->n_free;
	return 0;
}
