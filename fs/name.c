/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The verbs that give, take and move names.
 *
 * Each one first finds out everything that can go wrong in an ordinary way (errors that POSIX
 * knows, no space for data, a full hash slot) and only then changes the tree. What can still fail
 * after that is memory or a damaged store. The invariants of model.h hold again when a verb
 * returns 0.
 */

#include <errno.h>
#include <linux/fs.h>

#include "fs/acl.h"
#include "fs/model.h"
#include "store/base/err.h"
#include "store/blob.h"
#include "store/store.h"

/* ---- what create, tmpfile and add share ---- */

/* A directory that takes new names: -ENOTDIR, -ENOENT once removed. */
static int load_parent(const struct fs *fs, uint64_t dir, const char *name, size_t len,
		       struct inode *ret)
{
	int r;

	r = name_check(name, len);
	if (r < 0)
		return r;
	r = inode_load_dir(fs, dir, ret);
	if (r < 0)
		return r;
	return ret->nlink == 0 ? -ENOENT : 0;
}

/* A place for a new name, and the directory it is in: -EEXIST, -ENOSPC. */
static int find_place(const struct fs *fs, uint64_t dir, const char *name, size_t len,
		      struct inode *ret_dir, uint64_t *ret_pos)
{
	uint64_t pos, ino;
	int r;

	r = load_parent(fs, dir, name, len, ret_dir);
	if (r < 0)
		return r;
	if (name_is_dots(name, len))
		return -EEXIST;

	r = dirent_find(fs, dir, name, len, &pos, &ino);
	if (r < 0)
		return r;
	if (r == 0)
		return -EEXIST;
	if (pos == 0)
		return -ENOSPC;

	*ret_pos = pos;
	return 0;
}

static uint64_t take_ino(const struct fs *fs)
{
	uint64_t ino;

	do
		ino = store_take_ino(fs->store, 1);
	while (ino <= ROOT_INO); /* the root's number is given by format, not by the store */
	return ino;
}

/* Everything a new inode brings along, ready to be put. */
struct fresh {
	struct inode i;
	const char *target;
	size_t target_len;
	struct blob *target_blob; /* owned; of a target that does not fit its item */
	struct xattr_new access, inherited;
};

static void fresh_release(struct fresh *f)
{
	blob_unrefp(&f->target_blob);
	xattr_new_release(&f->access);
	xattr_new_release(&f->inherited);
}

static int fresh_target(const struct fs *fs, const char *target, struct fresh *f)
{
	if (!target || target[0] == 0)
		return -ENOENT; /* as symlink(2) */

	f->target = target;
	f->target_len = strnlen(target, TARGET_MAX + 1);
	if (f->target_len > TARGET_MAX)
		return -ENAMETOOLONG;

	f->i.size = f->target_len;
	if (f->target_len <= TARGET_INLINE_MAX)
		return 0;
	return blob_new(store_stage(fs->store), target, f->target_len, &f->target_blob);
}

/* A directory's default ACL takes the place of the umask. */
static int fresh_acls(const struct fs *fs, const struct inode *dir, struct fresh *f)
{
	_cleanup_free_ uint8_t *acl = NULL;
	size_t len;
	int r;

	r = xattr_load(fs, dir->ino, XATTR_ACL_DEFAULT, &acl, &len);
	if (r < 0)
		return r;
	if (r == ABSENT || acl_check(acl, len) != 0)
		return item_damaged(fs, &(struct key){ .a = dir->ino, .t = ITEM_XATTR },
				    "no valid default ACL");

	if (inode_is_dir(&f->i)) {
		r = xattr_prepare(fs, XATTR_ACL_DEFAULT, acl, len, &f->inherited);
		if (r < 0)
			return r;
		f->i.flags |= INODE_HAS_XATTR | INODE_HAS_DEFAULT_ACL;
	}

	if (acl_inherit(acl, len, &f->i.mode)) {
		r = xattr_prepare(fs, XATTR_ACL_ACCESS, acl, len, &f->access);
		if (r < 0)
			return r;
		f->i.flags |= INODE_HAS_XATTR | INODE_HAS_ACL;
	}
	return 0;
}

/* dir may be NULL. Changes nothing in the tree. */
static int fresh_prepare(const struct fs *fs, const struct fs_new *n, const struct inode *dir,
			 struct fresh *f)
{
	struct timens now = now_time();
	int r;

	f->i = (struct inode){
		.mode = n->mode & (S_IFMT | 07777),
		.uid = n->cred.uid,
		.gid = n->cred.gid,
		.nlink = 1,
		.atime = now,
		.mtime = now,
		.ctime = now,
		.btime = now,
	};
	if (!(f->i.mode & S_IFMT))
		f->i.mode |= S_IFREG;

	switch (f->i.mode & S_IFMT) {
	case S_IFDIR:
		f->i.nlink = 2;
		f->i.size = BLOCK_BYTES;
		break;
	case S_IFCHR:
	case S_IFBLK:
		f->i.rdev = n->rdev;
		break;
	case S_IFLNK:
		f->i.mode = S_IFLNK | 0777;
		r = fresh_target(fs, n->target, f);
		if (r < 0)
			return r;
		break;
	case S_IFREG:
	case S_IFIFO:
	case S_IFSOCK:
		break;
	default:
		return -EINVAL;
	}

	if (dir && (dir->mode & S_ISGID)) {
		f->i.gid = dir->gid;
		if (inode_is_dir(&f->i))
			f->i.mode |= S_ISGID;
	}

	if (!S_ISLNK(f->i.mode)) {
		if (dir && (dir->flags & INODE_HAS_DEFAULT_ACL)) {
			r = fresh_acls(fs, dir, f);
			if (r < 0)
				return r;
		} else {
			f->i.mode &= ~(n->cred.umask & 0777);
		}
	}

	f->i.ino = take_ino(fs);
	return 0;
}

static int put_target(const struct fs *fs, const struct fresh *f)
{
	struct key k = item_key(f->i.ino, ITEM_TARGET, 0);
	struct val v = { .data = f->target, .len = (uint32_t)f->target_len };
	uint8_t len[4];

	if (f->target_blob) {
		put_le32(len, (uint32_t)f->target_len);
		v = (struct val){ .data = len, .len = sizeof(len) };
		v.ref.kind = REF_BLOB;
		v.ref.blob = f->target_blob;
	}
	return tree_put(fs->tree, &k, &v);
}

static int fresh_put(const struct fs *fs, struct fresh *f)
{
	int r;

	r = inode_save(fs, &f->i);
	if (r < 0)
		return r;

	if (f->target) {
		r = put_target(fs, f);
		if (r < 0)
			return r;
	}
	if (f->access.data_len) {
		r = xattr_put(fs, &f->i, &f->access);
		if (r < 0)
			return r;
	}
	if (f->inherited.data_len) {
		r = xattr_put(fs, &f->i, &f->inherited);
		if (r < 0)
			return r;
	}
	return 0;
}

/* ---- creating ---- */

int fs_create(const struct fs *fs, const struct fs_new *n, struct inode *ret)
{
	_cleanup_(fresh_release) struct fresh f = { .target = NULL };
	struct inode dir;
	uint64_t pos;
	int r;

	r = find_place(fs, n->dir, n->name, n->len, &dir, &pos);
	if (r < 0)
		return r;
	r = fresh_prepare(fs, n, &dir, &f);
	if (r < 0)
		return r;

	f.i.parent = n->dir;
	f.i.parent_off = pos;
	r = fresh_put(fs, &f);
	if (r < 0)
		return r;

	r = dirent_put(fs, n->dir, pos, &f.i, n->name, n->len);
	if (r < 0)
		return r;

	if (inode_is_dir(&f.i))
		dir.nlink++;
	r = inode_save_parent(fs, &dir, f.i.ctime);
	if (r < 0)
		return r;

	fs_changed(fs);
	*ret = f.i;
	return 0;
}

int fs_tmpfile(const struct fs *fs, const struct fs_new *n, struct inode *ret)
{
	_cleanup_(fresh_release) struct fresh f = { .target = NULL };
	struct inode dir;
	int r;

	if ((n->mode & S_IFMT) && !S_ISREG(n->mode))
		return -EINVAL;

	if (n->dir) {
		r = inode_load_dir(fs, n->dir, &dir);
		if (r < 0)
			return r;
		if (dir.nlink == 0)
			return -ENOENT;
	}
	r = fresh_prepare(fs, n, n->dir ? &dir : NULL, &f);
	if (r < 0)
		return r;

	f.i.nlink = 0;
	r = orphan_put(fs, f.i.ino, ORPHAN_LINKABLE);
	if (r < 0)
		return r;
	r = fresh_put(fs, &f);
	if (r < 0)
		return r;

	*ret = f.i; /* nobody can see it: no change counted */
	return 0;
}

int fs_add(const struct fs *fs, uint64_t dir, const char *name, size_t len, const struct inode *i,
	   const char *target)
{
	_cleanup_(fresh_release) struct fresh f = { .i = *i };
	struct inode parent, old;
	uint64_t pos;
	int r;

	r = find_place(fs, dir, name, len, &parent, &pos);
	if (r < 0)
		return r;
	if (i->ino <= ROOT_INO || !inode_ok(i))
		return -EINVAL;
	r = inode_load(fs, i->ino, &old);
	if (r != -ENOENT)
		return r < 0 ? r : -EEXIST;

	f.i.flags = 0;
	f.i.bytes = 0;
	f.i.nlink = inode_is_dir(i) ? 2 : 1;
	f.i.parent = dir;
	f.i.parent_off = pos;
	if (inode_is_dir(i))
		f.i.size = BLOCK_BYTES;
	else if (!S_ISREG(i->mode))
		f.i.size = 0;
	if (S_ISLNK(i->mode)) {
		r = fresh_target(fs, target, &f);
		if (r < 0)
			return r;
	}

	r = fresh_put(fs, &f);
	if (r < 0)
		return r;
	r = dirent_put(fs, dir, pos, &f.i, name, len);
	if (r < 0)
		return r;
	if (inode_is_dir(i)) {
		parent.nlink++;
		r = inode_save(fs, &parent);
		if (r < 0)
			return r;
	}

	fs_changed(fs);
	return 0;
}

/* ---- linking ---- */

/* Gives a further name; times are the caller's. */
static int add_name(const struct fs *fs, struct inode *i, uint64_t dir, uint64_t pos,
		    const char *name, size_t len)
{
	int r;

	r = link_add(fs, i, dir, pos);
	if (r < 0)
		return r;
	i->nlink++;
	r = inode_save(fs, i);
	if (r < 0)
		return r;
	return dirent_put(fs, dir, pos, i, name, len);
}

int fs_add_link(const struct fs *fs, uint64_t dir, const char *name, size_t len, uint64_t ino)
{
	struct inode i, parent;
	uint64_t pos;
	int r;

	r = find_place(fs, dir, name, len, &parent, &pos);
	if (r < 0)
		return r;
	r = inode_load(fs, ino, &i);
	if (r < 0)
		return r;
	if (inode_is_dir(&i))
		return -EPERM;
	if (i.nlink == 0)
		return -ENOENT;
	if (i.nlink == UINT32_MAX)
		return -EMLINK;

	r = add_name(fs, &i, dir, pos, name, len);
	if (r < 0)
		return r;

	fs_changed(fs);
	return 0;
}

int fs_link(const struct fs *fs, uint64_t ino, uint64_t dir, const char *name, size_t len,
	    struct inode *ret)
{
	struct inode i, parent;
	uint8_t flags = 0;
	bool orphan;
	uint64_t pos;
	int r;

	r = find_place(fs, dir, name, len, &parent, &pos);
	if (r < 0)
		return r;
	r = inode_load(fs, ino, &i);
	if (r < 0)
		return r;
	if (inode_is_dir(&i))
		return -EPERM;
	if (i.nlink >= LINK_COUNT_MAX)
		return -EMLINK;

	orphan = i.nlink == 0;
	if (orphan) {
		r = orphan_get(fs, ino, &flags);
		if (r < 0)
			return r;
		if (!(flags & ORPHAN_LINKABLE))
			return -ENOENT;
	}

	i.ctime = now_time();
	r = add_name(fs, &i, dir, pos, name, len);
	if (r < 0)
		return r;
	if (orphan) {
		r = orphan_del(fs, ino);
		if (r < 0)
			return r;
	}
	r = inode_save_parent(fs, &parent, i.ctime);
	if (r < 0)
		return r;

	fs_changed(fs);
	*ret = i;
	return 0;
}

/* ---- unlinking ---- */

/* One name less; the entry is the caller's. With the last one it becomes an orphan. Saves i. */
static int lose_name(const struct fs *fs, struct inode *i, uint64_t dir, uint64_t pos,
		     struct timens now)
{
	int r;

	r = link_drop(fs, i, dir, pos);
	if (r < 0)
		return r;

	i->nlink = inode_is_dir(i) || i->nlink == 0 ? 0 : i->nlink - 1;
	i->ctime = now;
	if (i->nlink == 0) {
		r = orphan_put(fs, i->ino, 0);
		if (r < 0)
			return r;
	}
	return inode_save(fs, i);
}

/*
 * The entry that is to go, and the directory it is in: -ENOENT; `dots` for "." and "..", which are
 * no entries.
 */
static int find_entry(const struct fs *fs, uint64_t dir, const char *name, size_t len, int dots,
		      struct inode *ret_dir, uint64_t *ret_pos, uint64_t *ret_ino)
{
	int r;

	r = name_check(name, len);
	if (r < 0)
		return r;
	r = inode_load_dir(fs, dir, ret_dir);
	if (r < 0)
		return r;
	if (name_is_dots(name, len))
		return dots;

	r = dirent_find(fs, dir, name, len, ret_pos, ret_ino);
	if (r < 0)
		return r;
	return r == ABSENT ? -ENOENT : 0;
}

int fs_unlink(const struct fs *fs, uint64_t dir, const char *name, size_t len, struct inode *ret)
{
	struct timens now = now_time();
	struct inode i, parent;
	uint64_t pos, ino;
	int r;

	r = find_entry(fs, dir, name, len, -EISDIR, &parent, &pos, &ino);
	if (r < 0)
		return r;
	r = inode_follow(fs, ino, &i);
	if (r < 0)
		return r;
	if (inode_is_dir(&i))
		return -EISDIR;

	r = lose_name(fs, &i, dir, pos, now);
	if (r < 0)
		return r;
	r = dirent_del(fs, dir, pos);
	if (r < 0)
		return r;
	r = inode_save_parent(fs, &parent, now);
	if (r < 0)
		return r;

	fs_changed(fs);
	*ret = i;
	return 0;
}

int fs_rmdir(const struct fs *fs, uint64_t dir, const char *name, size_t len, struct inode *ret)
{
	struct timens now = now_time();
	struct inode i, parent;
	uint64_t pos, ino;
	int r;

	r = find_entry(fs, dir, name, len, len == 1 ? -EINVAL : -ENOTEMPTY, &parent, &pos, &ino);
	if (r < 0)
		return r;
	if (ino == ROOT_INO)
		return -EBUSY;
	r = inode_follow(fs, ino, &i);
	if (r < 0)
		return r;
	if (!inode_is_dir(&i))
		return -ENOTDIR;

	r = dir_is_empty(fs, ino);
	if (r < 0)
		return r;
	if (r == 0)
		return -ENOTEMPTY;

	r = lose_name(fs, &i, dir, pos, now);
	if (r < 0)
		return r;
	r = dirent_del(fs, dir, pos);
	if (r < 0)
		return r;
	parent.nlink--;
	r = inode_save_parent(fs, &parent, now);
	if (r < 0)
		return r;

	fs_changed(fs);
	*ret = i;
	return 0;
}

/* ---- renaming ---- */

/* One side of a rename. The two may be in one directory: then both `dir` point to one inode. */
struct side {
	const char *name;
	size_t len;
	struct inode *dir;
	uint64_t pos;
	struct inode i; /* ino 0: no such entry */
};

static int load_side(const struct fs *fs, struct side *s)
{
	uint64_t ino;
	int r;

	r = dirent_find(fs, s->dir->ino, s->name, s->len, &s->pos, &ino);
	if (r < 0)
		return r;
	if (r == ABSENT) {
		s->i = (struct inode){ .ino = 0 };
		return 0;
	}
	return inode_follow(fs, ino, &s->i);
}

/* Every ordinary reason to refuse. 1: nothing to do (both are names of one inode). */
static int may_rename(const struct fs *fs, const struct side *old, const struct side *new,
		      unsigned flags)
{
	bool exchange = flags & RENAME_EXCHANGE;
	int r;

	if (!old->i.ino)
		return -ENOENT;
	if (new->i.ino && (flags & RENAME_NOREPLACE))
		return -EEXIST;
	if (!new->i.ino && exchange)
		return -ENOENT;
	if (!new->i.ino && (new->pos == 0 || new->dir->nlink == 0))
		return new->dir->nlink == 0 ? -ENOENT : -ENOSPC;

	if (old->dir != new->dir) {
		if (inode_is_dir(&old->i)) {
			r = dir_is_below(fs, new->dir->ino, old->i.ino);
			if (r != 0)
				return r < 0 ? r : -EINVAL;
		}
		if (new->i.ino && inode_is_dir(&new->i)) {
			r = dir_is_below(fs, old->dir->ino, new->i.ino);
			if (r != 0)
				return r < 0 ? r : exchange ? -EINVAL : -ENOTEMPTY;
		}
	}

	if (old->i.ino == new->i.ino)
		return 1;
	if (!new->i.ino || exchange)
		return 0;

	if (!inode_is_dir(&old->i))
		return inode_is_dir(&new->i) ? -EISDIR : 0;
	if (!inode_is_dir(&new->i))
		return -ENOTDIR;
	r = dir_is_empty(fs, new->i.ino);
	if (r < 0)
		return r;
	return r ? 0 : -ENOTEMPTY;
}

/* Gives the inode of `from` the entry of `to`. */
static int move_name(const struct fs *fs, struct side *from, const struct side *to,
		     struct timens now)
{
	int r;

	r = link_move(fs, &from->i, from->dir->ino, from->pos, to->dir->ino, to->pos);
	if (r < 0)
		return r;
	from->i.ctime = now;
	r = inode_save(fs, &from->i);
	if (r < 0)
		return r;

	if (inode_is_dir(&from->i)) {
		from->dir->nlink--;
		to->dir->nlink++;
	}
	return dirent_put(fs, to->dir->ino, to->pos, &from->i, to->name, to->len);
}

/* overlayfs marks a name that a lower layer must not show with a character device 0:0. */
static int put_whiteout(const struct fs *fs, const struct side *s, struct timens now)
{
	struct inode i = {
		.ino = take_ino(fs),
		.mode = S_IFCHR,
		.uid = s->dir->uid,
		.gid = s->dir->gid,
		.nlink = 1,
		.atime = now,
		.mtime = now,
		.ctime = now,
		.btime = now,
		.parent = s->dir->ino,
		.parent_off = s->pos,
	};
	int r;

	r = inode_save(fs, &i);
	if (r < 0)
		return r;
	return dirent_put(fs, s->dir->ino, s->pos, &i, s->name, s->len);
}

static int do_rename(const struct fs *fs, struct side *old, struct side *new, unsigned flags,
		     struct timens now)
{
	int r;

	if (flags & RENAME_EXCHANGE) {
		r = move_name(fs, new, old, now);
		if (r < 0)
			return r;
		return move_name(fs, old, new, now);
	}

	if (new->i.ino) {
		r = lose_name(fs, &new->i, new->dir->ino, new->pos, now);
		if (r < 0)
			return r;
		if (inode_is_dir(&new->i))
			new->dir->nlink--;
	}
	r = move_name(fs, old, new, now);
	if (r < 0)
		return r;

	if (flags & RENAME_WHITEOUT)
		return put_whiteout(fs, old, now);
	return dirent_del(fs, old->dir->ino, old->pos);
}

int fs_rename(const struct fs *fs, uint64_t odir, const char *oname, size_t olen, uint64_t ndir,
	      const char *nname, size_t nlen, unsigned flags, struct inode *ret_gone)
{
	struct inode parent_old, parent_new;
	struct side old = { .name = oname, .len = olen, .dir = &parent_old };
	struct side new = { .name = nname,
			    .len = nlen,
			    .dir = odir == ndir ? &parent_old : &parent_new };
	struct timens now = now_time();
	int r;

	if (flags & ~(unsigned)(RENAME_NOREPLACE | RENAME_EXCHANGE | RENAME_WHITEOUT))
		return -EINVAL;
	if ((flags & RENAME_EXCHANGE) && (flags & (RENAME_NOREPLACE | RENAME_WHITEOUT)))
		return -EINVAL;

	r = name_check(oname, olen);
	if (r < 0)
		return r;
	r = name_check(nname, nlen);
	if (r < 0)
		return r;
	r = inode_load_dir(fs, odir, old.dir);
	if (r < 0)
		return r;
	if (new.dir != old.dir) {
		r = inode_load_dir(fs, ndir, new.dir);
		if (r < 0)
			return r;
	}
	if (name_is_dots(oname, olen) || name_is_dots(nname, nlen))
		return (flags & RENAME_NOREPLACE) && name_is_dots(nname, nlen) ? -EEXIST : -EBUSY;

	r = load_side(fs, &old);
	if (r < 0)
		return r;
	r = load_side(fs, &new);
	if (r < 0)
		return r;

	r = may_rename(fs, &old, &new, flags);
	if (r < 0)
		return r;
	if (r > 0) {
		*ret_gone = (struct inode){ .ino = 0 };
		return 0;
	}

	r = do_rename(fs, &old, &new, flags, now);
	if (r < 0)
		return r;

	r = inode_save_parent(fs, old.dir, now);
	if (r < 0)
		return r;
	if (new.dir != old.dir) {
		r = inode_save_parent(fs, new.dir, now);
		if (r < 0)
			return r;
	}

	fs_changed(fs);
	*ret_gone = flags & RENAME_EXCHANGE ? (struct inode){ .ino = 0 } : new.i;
	return 0;
}
