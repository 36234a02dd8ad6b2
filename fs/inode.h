/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What an inode is, in memory. The bytes in the tree are format.h's affair. */

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#define ROOT_INO 1
#define NAME_LEN_MAX 255
#define FILE_SIZE_MAX (INT64_C(1) << 44) /* 16 TiB, as ext4 with 4 KiB blocks */
#define INLINE_MAX 512   /* so small a file lives in its tree item: no chunk, no extra read */
#define BLOCK_BYTES 4096 /* st_blksize; what view_seek tells holes in */
#define LINK_COUNT_MAX 65000 /* as ext4; EMLINK beyond */

struct timens {
	int64_t sec;   /* since 1970, negative before */
	uint32_t nsec; /* 0 to 999,999,999 */
};

enum inode_flags {
	INODE_HAS_XATTR = 1,       /* at least one xattr item */
	INODE_HAS_ACL = 2,         /* posix access ACL beyond the mode */
	INODE_HAS_DEFAULT_ACL = 4, /* directories */
};

struct inode {
	uint64_t ino;
	uint32_t mode; /* type and permissions, as in stat */
	uint32_t uid, gid;
	uint32_t nlink; /* directories: 2 + subdirectories */
	uint32_t flags; /* enum inode_flags */
	uint64_t rdev;
	uint64_t size;  /* directories: 4096; symlinks: length of the target */
	uint64_t bytes; /* allocated data, without holes; st_blocks is this / 512 rounded up */
	struct timens atime, mtime, ctime, btime;
	/*
	 * One name of it (its only one unless nlink > 1 on a non-directory): the directory and the
	 * position (dirent key offset) there. parent 0: no name (root, orphan).
	 */
	uint64_t parent;
	uint64_t parent_off;
};

static inline bool inode_is_dir(const struct inode *i)
{
	return S_ISDIR(i->mode);
}

/*
 * Is the entry at `pos` of `dir` the one name that this directory has? Who walks down goes through
 * such alone: damage may have made more, or a ring of them, and there would be no end.
 */
static inline bool dir_is_at(const struct inode *i, uint64_t dir, uint64_t pos)
{
	return i->parent == dir && i->parent_off == pos && i->ino != ROOT_INO;
}
