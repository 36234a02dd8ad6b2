/* SPDX-License-Identifier: Apache-2.0 */

/* Attributes: chmod, chown, truncate and utimens in one verb, and reading a symlink. */

#include <errno.h>

#include "fs/model.h"
#include "store/base/err.h"

#define NSEC_MAX 999999999

static bool times_ok(const struct fs_set *set)
{
	return !((set->mask & SET_ATIME) && set->atime.nsec > NSEC_MAX) &&
	       !((set->mask & SET_MTIME) && set->mtime.nsec > NSEC_MAX) &&
	       !((set->mask & SET_CTIME) && set->ctime.nsec > NSEC_MAX);
}

/*
 * The kernel asks in the same words for chown(2) to nobody new, where only the owner may take the
 * bits, and for fallocate(2) by anybody who has the file open for writing. So whoever could have
 * opened it so may: who is in the group is not known here, nor whom an ACL names, whose mask is the
 * group's bits.
 */
static bool may_kill_priv(const struct inode *i, uint32_t caller)
{
	return caller == 0 || caller == i->uid || (i->mode & (S_IWGRP | S_IWOTH));
}

/* Mode, owner and group. */
static int set_access(const struct fs *fs, struct inode *i, const struct fs_set *set)
{
	int r;

	if (set->mask & SET_UID)
		i->uid = set->uid;
	if (set->mask & SET_GID)
		i->gid = set->gid;

	if (set->mask & SET_MODE)
		i->mode = (i->mode & S_IFMT) | (set->mode & 07777);
	else if (set->mask & (SET_UID | SET_GID))
		i->mode = mode_without_priv(i->mode); /* a new owner did not ask for these rights */
	if (set->mask & SET_KILL_PRIV) {
		uint32_t mode = mode_without_priv(i->mode);

		if ((set->mask & SET_KILL_AS) && mode != i->mode && !may_kill_priv(i, set->caller))
			return -EPERM;
		i->mode = mode;
	}

	if (set->mask & SET_MODE) {
		r = acl_follow_mode(fs, i);
		if (r < 0)
			return r;
	}
	return 0;
}

static void set_times(struct inode *i, const struct fs_set *set, struct timens now)
{
	if (set->mask & SET_ATIME)
		i->atime = set->atime;
	else if (set->mask & SET_ATIME_NOW)
		i->atime = now;

	if (set->mask & SET_MTIME)
		i->mtime = set->mtime;
	else if (set->mask & (SET_MTIME_NOW | SET_SIZE))
		i->mtime = now;

	i->ctime = set->mask & SET_CTIME ? set->ctime : now;
}

int fs_setattr(const struct fs *fs, uint64_t ino, const struct fs_set *set, struct inode *ret)
{
	struct inode i;
	int r;

	r = set->mask & SET_SIZE ? inode_load_file(fs, ino, &i) : inode_load(fs, ino, &i);
	if (r < 0)
		return r;
	if (set->mask == 0) {
		*ret = i;
		return 0;
	}
	if (!times_ok(set))
		return -EINVAL;
	if ((set->mask & SET_SIZE) && set->size > FILE_SIZE_MAX)
		return -EFBIG;

	/* The ACL first: its value may want space, and nothing has changed yet. */
	r = set_access(fs, &i, set);
	if (r < 0)
		return r;
	if (set->mask & SET_SIZE) {
		r = data_truncate(fs, &i, set->size);
		if (r < 0)
			return r;
	}
	if ((set->mask & (SET_SIZE | SET_UID | SET_GID)) && !inode_is_dir(&i)) {
		r = xattr_drop_caps(fs, &i);
		if (r < 0)
			return r;
	}

	set_times(&i, set, now_time());
	r = inode_save_changed(fs, &i);
	if (r < 0)
		return r;
	*ret = i;
	return 0;
}

int fs_readlink(const struct fs *fs, uint64_t ino, char *buf, size_t cap, size_t *ret_len)
{
	struct key k = item_key(ino, ITEM_TARGET, 0);
	struct target_item t;
	struct inode i;
	struct val v;
	int r;

	r = inode_load(fs, ino, &i);
	if (r < 0)
		return r;
	if (!S_ISLNK(i.mode))
		return -EINVAL;

	r = tree_get(fs->tree, &k, &v);
	if (r < 0)
		return r;
	if (r == ABSENT || target_decode(&v, &t) < 0)
		return item_damaged(fs, &k, "no valid symlink target");

	cap = MIN(cap, t.len);
	if (t.bytes) {
		memcpy(buf, t.bytes, cap);
	} else {
		r = ref_read(fs->store, &t.ref, 0, buf, (uint32_t)cap);
		if (r < 0)
			return r;
	}
	*ret_len = cap;
	return 0;
}
