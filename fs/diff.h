/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What differs between two states, by path. */

#include "fs/fs.h"

struct store;

enum change_kind {
	CHANGE_ADDED = 'A',
	CHANGE_DELETED = 'D',
	CHANGE_MODIFIED = 'M', /* content, mode, owner, xattrs or target; see what */
	CHANGE_TYPE = 'T',     /* regular file became symlink, directory, ... */
	CHANGE_RENAMED = 'R',  /* the same object under another path (and maybe modified: what) */
};
enum change_what {
	WHAT_DATA = 1, WHAT_MODE = 2, WHAT_OWNER = 4, WHAT_XATTR = 8, WHAT_TIME = 16,
};
struct change {
	enum change_kind kind;
	unsigned what;
	const char *old_path, *new_path; /* lent; NULL where there is none */
	const struct inode *old_inode, *new_inode;
};

enum diff_flags {
	DIFF_TIMES = 1,   /* objects whose times alone differ are changes, too */
	DIFF_DIRS = 2,    /* directories themselves are listed (git lists none) */
	DIFF_RENAMES = 4, /* pair a deleted and an added path of one object; else D and A */
	DIFF_ALL = 8, /* every object that was touched, its times too; contents are not compared */
};
/*
 * Changes from a to b in order of path (the new one; the old one for deletions), each path once.
 * same_lineage false: the trees share no objects, inode numbers mean nothing across them: compare
 * by path and content. Costs the size of the difference. Roots are borrowed. fn's non-zero return
 * stops and is returned.
 */
int fs_diff(struct store *store, struct root *a, struct root *b, bool same_lineage, unsigned flags,
	    int (*fn)(void *arg, const struct change *c), void *arg);
