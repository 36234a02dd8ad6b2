/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What the files of the model share beneath fs.h. Functions here do one step of a verb; they touch
 * neither times nor the change counter unless they say so, and an inode they change is changed in
 * the caller's memory: the caller saves it.
 *
 * Invariants of a tree between two verbs:
 *  1. nlink of a non-directory is the number of its names; of a directory it is 2 + subdirectories,
 *     0 once removed. nlink 0: there is an ORPHAN item, and parent is 0.
 *  2. inode.parent/parent_off names one entry that leads here; every further name has a LINK item.
 *  3. an entry's type is its inode's type, for ever.
 *  4. extents of a file are disjoint and end at or before its size; bytes is the sum of their
 *     lengths. An inline extent begins at 0; others may follow it.
 *  5. INODE_HAS_XATTR iff there is an XATTR item, INODE_HAS_ACL and INODE_HAS_DEFAULT_ACL iff that
 *     one is there.
 */

#include "fs/format.h"
#include "fs/fs.h"
#include "store/base/os.h"
#include "store/base/util.h"

struct blob;

static inline struct timens now_time(void)
{
	int64_t ns = os_now_ns();
	int64_t sec = ns / 1000000000;
	int64_t rest = ns % 1000000000;

	if (rest < 0) {
		sec--;
		rest += 1000000000;
	}
	return (struct timens){ .sec = sec, .nsec = (uint32_t)rest };
}

static inline void fs_changed(const struct fs *fs)
{
	if (fs->changes)
		(*fs->changes)++;
}

/* Notes which item is damaged and returns -ERR_ITEM_DAMAGED. */
int item_damaged(const struct fs *fs, const struct key *k, const char *what);

/* ---- slot.c ---- */

/*
 * Looks through the items that share base (their keys differ in the low 8 bits) for the one that
 * match() says 1 to (0: another one, < 0: stop with that failure).
 * 0: found; *ret_key is its own. ABSENT: *ret_key is the first free key, or has t == 0 when all 256
 * are taken.
 */
int slot_find(const struct fs *fs, const struct key *base,
	      int (*match)(void *arg, const struct key *k, const struct val *v), void *arg,
	      struct key *ret_key);

/* ---- inode.c ---- */

/* -ENOENT when there is none. */
int inode_load(const struct fs *fs, uint64_t ino, struct inode *ret);
/* -ENOTDIR too. */
int inode_load_dir(const struct fs *fs, uint64_t ino, struct inode *ret);
/* A regular file: -EISDIR, -EINVAL. */
int inode_load_file(const struct fs *fs, uint64_t ino, struct inode *ret);
/* An inode that an entry leads to: its absence is damage. */
int inode_follow(const struct fs *fs, uint64_t ino, struct inode *ret);
int inode_save(const struct fs *fs, const struct inode *i);
/* The branch has changed as well, if a name leads to it: the next checkpoint is another one. */
int inode_save_changed(const struct fs *fs, const struct inode *i);
/* Sets mtime and ctime of a directory whose entries changed, and saves it. */
int inode_save_parent(const struct fs *fs, struct inode *dir, struct timens now);
/* What a write or chown takes from a mode: suid, and sgid where the group may execute. */
uint32_t mode_without_priv(uint32_t mode);

int orphan_put(const struct fs *fs, uint64_t ino, uint8_t flags);
int orphan_get(const struct fs *fs, uint64_t ino, uint8_t *ret_flags); /* 0 or ABSENT */
int orphan_del(const struct fs *fs, uint64_t ino);

/* ---- dir.c ---- */

/* -EINVAL: empty, with a slash or NUL; -ENAMETOOLONG. */
int name_check(const char *name, size_t len);
static inline bool name_is_dots(const char *name, size_t len)
{
	return name[0] == '.' && (len == 1 || (len == 2 && name[1] == '.'));
}

/*
 * 0: found, *ret_pos and *ret_ino are set. ABSENT: *ret_pos is where it would go, 0 when the hash
 * of the name is full.
 */
int dirent_find(const struct fs *fs, uint64_t dir, const char *name, size_t len, uint64_t *ret_pos,
		uint64_t *ret_ino);
int dirent_put(const struct fs *fs, uint64_t dir, uint64_t pos, const struct inode *i,
	       const char *name, size_t len);
int dirent_del(const struct fs *fs, uint64_t dir, uint64_t pos);
int dir_is_empty(const struct fs *fs, uint64_t dir); /* 1, 0 or a failure */
/* 1: dir is `above` or lies somewhere below it; 0, or a failure. */
int dir_is_below(const struct fs *fs, uint64_t dir, uint64_t above);

/* ---- link.c: the names of an inode. Entries and nlink are the caller's. ---- */

int link_add(const struct fs *fs, struct inode *i, uint64_t dir, uint64_t pos);
int link_drop(const struct fs *fs, struct inode *i, uint64_t dir, uint64_t pos);
int link_move(const struct fs *fs, struct inode *i, uint64_t odir, uint64_t opos, uint64_t ndir,
	      uint64_t npos);

/* ---- xattr.c ---- */

#define XATTR_ACL_ACCESS "system.posix_acl_access"
#define XATTR_ACL_DEFAULT "system.posix_acl_default"

/* An attribute ready to be put: what may fail for want of space has been done. */
struct xattr_new {
	char name[XATTR_NAME_LEN_MAX + 1];
	uint8_t data[VAL_MAX];
	uint32_t data_len; /* 0: nothing to put */
	struct blob *blob; /* owned; of a value that does not fit the item */
};
void xattr_new_release(struct xattr_new *x);
int xattr_prepare(const struct fs *fs, const char *name, const void *value, size_t len,
		  struct xattr_new *ret);
/* Replaces or adds; sets INODE_HAS_XATTR. -ENOSPC when the hash of the name is full. */
int xattr_put(const struct fs *fs, struct inode *i, const struct xattr_new *x);
/* The value, malloced, given; ABSENT. */
int xattr_load(const struct fs *fs, uint64_t ino, const char *name, uint8_t **ret, size_t *ret_len);
/* Drops security.capability, which a change of data or owner ends (as Linux does). */
int xattr_drop_caps(const struct fs *fs, struct inode *i);
/* chmod: i->mode is the new mode; brings a stored access ACL in step. */
int acl_follow_mode(const struct fs *fs, struct inode *i);

/* ---- extent.c ---- */

/* Reads len bytes that a ref leads to, `skip` bytes behind ref->off; checks every bound. */
int ref_read(struct store *store, const struct ref *ref, uint32_t skip, void *buf, uint32_t len);

/* The last extent that begins at or before pos: 0 or ABSENT. */
int extent_last(const struct fs *fs, uint64_t ino, uint64_t pos, struct extent *ret);
/* The first extent that ends after pos: 0 or ABSENT. */
int extent_after(const struct fs *fs, uint64_t ino, uint64_t pos, struct extent *ret);
/* Replaces or adds one item; makes no room. */
int extent_put(const struct fs *fs, uint64_t ino, uint64_t off, uint32_t len,
	       const struct ref *ref);
int extent_put_inline(const struct fs *fs, uint64_t ino, const void *bytes, uint32_t len);
int extent_del(const struct fs *fs, uint64_t ino, uint64_t off);
/*
 * Takes from..to out of one extent (lent by the tree as it is), which they overlap. As
 * extents_punch.
 */
int extent_cut(const struct fs *fs, uint64_t ino, const struct extent *lent, uint64_t from,
	       uint64_t to, uint64_t *removed);
/*
 * Makes from..to a hole: trims, splits and removes. Inside an inline extent bytes become zero. Adds
 * the number of bytes that are no longer data to *removed.
 */
int extents_punch(const struct fs *fs, uint64_t ino, uint64_t from, uint64_t to, uint64_t *removed);
/* fs_map without the inode: off..end must lie inside the file. */
int extents_map(const struct fs *fs, uint64_t ino, uint64_t off, uint64_t end,
		struct segments *ret);
/* Reads off..off+len, which must lie inside the file. */
int extents_read(const struct fs *fs, uint64_t ino, uint64_t off, void *buf, size_t len);

/* ---- data.c ---- */

/* Sets i->size; what was beyond it is gone. */
int data_truncate(const struct fs *fs, struct inode *i, uint64_t size);
