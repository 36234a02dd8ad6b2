/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What differs between an object of one state and an object of another: for diff.c. */

#include "fs/fs.h"

struct comparer {
	struct fs a, b;
	uint8_t *buf[2];	 /* owned */
	struct segments *seg[2]; /* owned */
};
int comparer_init(struct comparer *c, const struct fs *a, const struct fs *b);
void comparer_release(struct comparer *c);

/*
 * Two objects of one type, a's in a and b's in b: *ret_what gets WHAT_... bits. skip: WHAT_DATA,
 * WHAT_XATTR where the caller knows that contents (of one size) or attributes are the same.
 */
int comparer_compare(struct comparer *c, const struct inode *a, const struct inode *b,
		     unsigned skip, unsigned *ret_what);
