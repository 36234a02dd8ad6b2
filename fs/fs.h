/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The file tree model: POSIX verbs on one tree of items, by inode number. No mount, no kernel, no
 * node ids: those are view.h's. Everything here works in a unit test on a store in a temporary
 * directory.
 *
 * Verbs return 0 or plain -errno as the system call would (-ENOENT, -EEXIST, -ENOTEMPTY, ...), or a
 * store failure (-ERR_..., folds to EIO/ENOSPC). Permission checks (who may do this) are the
 * kernel's (default_permissions); rules about what the result looks like (setgid directories, ACL
 * inheritance, suid clearing, nlink, times) are here. A verb that fails leaves the tree unchanged.
 *
 * Locks: the caller holds the tree's lock: for reading around verbs marked R, for writing around W.
 */

#include <stdbool.h>
#include <stddef.h>
#include <sys/uio.h>

#include "fs/inode.h"
#include "store/blob.h"
#include "store/tree.h"

struct store;

/* A tree one can operate on. A plain value: copy it, keep it on the stack. */
struct fs {
	struct store *store; /* borrowed: data, inode numbers */
	struct tree *tree;   /* borrowed */
	uint64_t *changes;   /* borrowed: W verbs that changed something visible add 1; or NULL */
};

struct cred {
	uint32_t uid, gid;
	int32_t pid;
	uint32_t umask;
};

/* ---- building ---- */

/* W: an empty tree gets its root directory. */
int fs_make_root(const struct fs *fs, uint32_t mode, uint32_t uid, uint32_t gid, struct timens now);

/*
 * W: adds a name for an object whose inode is given whole (ino included; times, nlink and size are
 * kept as they are; bytes of data come by fs_import_data). For importers: parents' times are not
 * touched, a directory's nlink counts its subdirectories as they are added, flags start at 0.
 * target: of symlinks. Parents must exist. -EEXIST.
 */
int fs_add(const struct fs *fs, uint64_t dir, const char *name, size_t len, const struct inode *i,
	   const char *target);
/* W: one more name for an inode added before (nlink is counted up), times untouched. */
int fs_add_link(const struct fs *fs, uint64_t dir, const char *name, size_t len, uint64_t ino);
/*
 * W: data of an added file, ascending offsets, pieces of CHUNK_MAX except the last of a run; goes
 * straight to chunks (or inline when the whole file is small: off 0, len = size <= INLINE_MAX).
 * inode.size is not changed, inode.bytes is.
 */
int fs_import_data(const struct fs *fs, uint64_t ino, uint64_t off, const void *data, size_t len);
/* W: overwrite the inode record (times of a directory after its children were added). */
int fs_put_inode(const struct fs *fs, const struct inode *i);

/* ---- names ---- */

/* R: -ENOENT */
int fs_stat(const struct fs *fs, uint64_t ino, struct inode *ret);
/* R: also "." and "..": -ENOENT, -ENOTDIR, -ENAMETOOLONG */
int fs_lookup(const struct fs *fs, uint64_t dir, const char *name, size_t len, struct inode *ret);

struct fs_new {
	uint64_t dir; /* 0 for fs_tmpfile without a directory to inherit from */
	const char *name;
	size_t len;
	uint32_t mode; /* type and permission bits, before umask */
	uint64_t rdev;
	const char *target; /* symlinks: 1 to 4095 bytes */
	struct cred cred;   /* umask is applied here (or the directory's default ACL instead) */
};
/* W: mknod, mkdir, symlink, create (which is mknod of a regular file). Inherits setgid and ACLs. */
int fs_create(const struct fs *fs, const struct fs_new *n, struct inode *ret);
/* W: an inode without a name (nlink 0, recorded as orphan), for O_TMPFILE; fs_link names it. */
int fs_tmpfile(const struct fs *fs, const struct fs_new *n, struct inode *ret);
/*
 * W: -EPERM for directories, -EMLINK, -EEXIST; -ENOENT for an orphan unless it came from fs_tmpfile
 */
int fs_link(const struct fs *fs, uint64_t ino, uint64_t dir, const char *name, size_t len,
	    struct inode *ret);
/*
 * W: removes a name. *ret is the inode afterwards; nlink 0: it is an orphan now (its items stay,
 * recorded under ORPHANS) until fs_purge. -EISDIR / -ENOTDIR, -ENOTEMPTY, -EBUSY (root).
 */
int fs_unlink(const struct fs *fs, uint64_t dir, const char *name, size_t len, struct inode *ret);
int fs_rmdir(const struct fs *fs, uint64_t dir, const char *name, size_t len, struct inode *ret);
/*
 * W: flags 0, RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_WHITEOUT. *ret_gone: the replaced inode
 * afterwards (nlink 0: orphan), ino 0 when none. Renaming onto another name of the same inode does
 * nothing. -EINVAL when a directory would move below itself, and the usual ones.
 */
int fs_rename(const struct fs *fs, uint64_t odir, const char *oname, size_t olen, uint64_t ndir,
	      const char *nname, size_t nlen, unsigned flags, struct inode *ret_gone);
/* W: deletes an orphan with everything it has. Not a visible change. 0 too when it is not there. */
int fs_purge(const struct fs *fs, uint64_t ino);
/* R: each orphan. */
int fs_orphans(const struct fs *fs, int (*fn)(void *arg, uint64_t ino), void *arg);

/*
 * R: entries after a cookie, "." and ".." first (cookies 1 and 2; a removed directory has none).
 * Order is by a hash of the name; cookies are positions, so a listing stays stable while names
 * come and go. fn returns 0 to go on, 1 to stop (entry not taken). type: DT_*.
 */
int fs_readdir(const struct fs *fs, uint64_t dir, uint64_t cookie,
	       int (*fn)(void *arg, const char *name, size_t len, uint64_t ino, unsigned type,
			 uint64_t next_cookie),
	       void *arg);
/* R: each (parent, name) of an inode: its primary name first. Non-zero from fn stops. */
int fs_names(const struct fs *fs, uint64_t ino,
	     int (*fn)(void *arg, uint64_t parent, const char *name, size_t len), void *arg);
/* The same when its record is at hand already. */
int fs_names_of(const struct fs *fs, const struct inode *i,
		int (*fn)(void *arg, uint64_t parent, const char *name, size_t len), void *arg);
/*
 * R: the primary path from the root, without leading slash ("" for the root), NUL-terminated,
 * malloced, given. -ENOENT for an orphan. Paths have no length limit here.
 */
int fs_path(const struct fs *fs, uint64_t ino, char **ret, size_t *ret_len);
/* R: a path (slashes separate; no symlink is followed; "" is the root). */
int fs_resolve(const struct fs *fs, const char *path, size_t len, struct inode *ret);

/*
 * A file of a snapshot that lacks bytes which could not be read when they were to be saved, since
 * the store was opened: its path as from fs_path. ABSENT: none is known of.
 */
int fs_find_unreadable(struct store *store, uint64_t snap, char **ret_path);

/* ---- attributes ---- */

enum set_mask {
	SET_MODE = 1, SET_UID = 2, SET_GID = 4, SET_SIZE = 8,
	SET_ATIME = 16, SET_MTIME = 32, SET_CTIME = 64,
	SET_ATIME_NOW = 128, SET_MTIME_NOW = 256,
	SET_KILL_PRIV = 512, /* clear suid, and sgid where the group may execute */
	SET_KILL_AS = 1024,  /* -EPERM if that takes bits which .caller may not take (attr.c) */
};
struct fs_set {
	uint32_t mask; /* enum set_mask */
	uint32_t mode, uid, gid;
	uint32_t caller; /* of SET_KILL_AS */
	uint64_t size;
	struct timens atime, mtime, ctime;
};
/* W: chmod, chown, truncate, utimens in one; chmod keeps an access ACL's mask in step. */
int fs_setattr(const struct fs *fs, uint64_t ino, const struct fs_set *set, struct inode *ret);
/* R: target into buf (not NUL-terminated); -EINVAL when it is no symlink. */
int fs_readlink(const struct fs *fs, uint64_t ino, char *buf, size_t cap, size_t *ret_len);

/*
 * Extended attributes: user., security., trusted., system.posix_acl_access/_default (others:
 * -EOPNOTSUPP). Values up to 64 KiB, names up to 255 bytes. Setting an access ACL sets the mode;
 * an ACL equal to a mode is not stored. cap 0 asks for the length.
 */
int fs_getxattr(const struct fs *fs, uint64_t ino, const char *name, void *buf, size_t cap,
		size_t *ret_len); /* R: -ENODATA, -ERANGE */
int fs_setxattr(const struct fs *fs, uint64_t ino, const char *name, const void *value, size_t len,
		int flags); /* W: XATTR_CREATE, XATTR_REPLACE; -EEXIST, -ENODATA, -E2BIG, -ENOSPC */
int fs_listxattr(const struct fs *fs, uint64_t ino, char *buf, size_t cap, size_t *ret_len); /* R */
int fs_removexattr(const struct fs *fs, uint64_t ino, const char *name); /* W */

/* ---- data ---- */

/* A piece of a file's bytes; keeps what it needs alive, so that it can be read without the lock. */
struct segment {
	uint32_t len;
	struct ref ref; /* REF_NONE: zeros, or inline bytes */
	bool is_inline;
};
#define SEGMENTS_MAX 512
struct segments {
	uint32_t n;
	uint64_t len; /* bytes in all */
	struct loan loan; /* set by fs_map to none */
	uint8_t inline_bytes[INLINE_MAX];
	struct segment seg[SEGMENTS_MAX];
};
/*
 * R: where the bytes off..off+len of a regular file are (up to its end; fewer when there are more
 * than SEGMENTS_MAX pieces). Give back with segments_release. Does not touch the disk for data.
 */
int fs_map(const struct fs *fs, uint64_t ino, uint64_t off, uint64_t len, struct segments *ret);
/* No lock: copies the bytes of mapped segments to buf (s->len bytes). */
int segments_read(struct store *store, const struct segments *s, void *buf);
/*
 * The same, but what can be lent (store/blob.h) is not copied: iov says where the bytes are, in buf
 * (room for s->len bytes) or lent until segments_release.
 */
int segments_lend(struct store *store, struct segments *s, void *buf,
		  struct iovec iov[static SEGMENTS_MAX], int *ret_n);
void segments_release(struct segments *s);

/*
 * R: fs_map + segments_read for callers that hold the lock anyway; *ret_len < len only at the end.
 */
int fs_read(const struct fs *fs, uint64_t ino, uint64_t off, void *buf, size_t len,
	    size_t *ret_len);
/*
 * W: all or nothing. kill_priv as SET_KILL_PRIV; 1 when that took something, else 0. -EFBIG,
 * -ENOSPC. Updates mtime and ctime.
 */
int fs_write(const struct fs *fs, uint64_t ino, uint64_t off, const void *buf, size_t len,
	     bool kill_priv);
/*
 * W: mode as fallocate(2): 0 and KEEP_SIZE (what the disk has no room for now is -ENOSPC, but none
 * is set aside; mode 0 extends the size), PUNCH_HOLE|KEEP_SIZE, ZERO_RANGE (+KEEP_SIZE),
 * COLLAPSE_RANGE, INSERT_RANGE (block-aligned); others -EOPNOTSUPP.
 */
int fs_fallocate(const struct fs *fs, uint64_t ino, int mode, uint64_t off, uint64_t len);
/* R: SEEK_DATA, SEEK_HOLE; -ENXIO */
int fs_seek(const struct fs *fs, uint64_t ino, uint64_t off, int whence, uint64_t *ret_off);
/*
 * W on dst (and R on src, which may be the same tree or another one of the store): shares extents,
 * copies no bytes. Same file: ranges must not overlap (-EINVAL). *ret_len: bytes done.
 */
int fs_copy_range(const struct fs *src, uint64_t src_ino, uint64_t src_off, const struct fs *dst,
		  uint64_t dst_ino, uint64_t dst_off, uint64_t len, uint64_t *ret_len);

/*
 * R: true (1) when both trees have the same object under ino: inode record, data, xattrs, target.
 * 0 when they differ. Costs O(height) when equal subtrees are shared. Directories: entries too.
 */
int fs_same_object(struct root *a, struct root *b, uint64_t ino);

/* For dumps and messages: prints one item. */
void fs_item_to_text(FILE *out, const struct key *k, const struct val *v);
