/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The items of a file tree: their keys and every byte of their values. FORMAT.md draws them.
 * Nothing else in fs/ packs or unpacks a value.
 *
 * A decoder takes what the tree gave and answers with everything or -ERR_ITEM_DAMAGED: values come
 * from disk and are hostile until they passed here. Decoded names, bytes and refs point into the
 * value: lent until the tree changes.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fs/inode.h"
#include "store/tree.h"

enum item_type {
	ITEM_INODE = 1,
	ITEM_LINK = 2,
	ITEM_XATTR = 3,
	ITEM_DIRENT = 4,
	ITEM_TARGET = 5,
	ITEM_EXTENT = 6,
	ITEM_ORPHAN = 7,
};

#define FS_KEYS 0 /* key.a of the filesystem's own items: no inode has this number */

static inline struct key item_key(uint64_t ino, enum item_type type, uint64_t b)
{
	return (struct key){ .a = ino, .t = (uint8_t)type, .b = b };
}

/* ---- slots: items whose key is a hash; the low 8 bits tell equal hashes apart ---- */

#define SLOT_MASK UINT64_C(0xff)

/* The first position of a name: 54 bits of hash above the slot, over 2 (".."), below 2^62. */
uint64_t dirent_base(const char *name, size_t len);
/* Can a name be there? A listing that goes on behind another place would begin again, or end. */
static inline bool dirent_place_ok(uint64_t pos)
{
	return pos > 2 && pos < UINT64_C(1) << 62;
}
uint64_t link_base(uint64_t parent, uint64_t off);
uint64_t xattr_base(const char *name, size_t len);

/* ---- inode ---- */

#define INODE_VERSION 1
#define INODE_RECORD_BYTES 108

/* Known type, no stray mode bits, size within FILE_SIZE_MAX, nanoseconds below a second. */
bool inode_ok(const struct inode *i);
void inode_encode(const struct inode *i, uint8_t buf[static INODE_RECORD_BYTES]);
/* A failure leaves anything in *ret: each request has a few of these, so no copy is made. */
int inode_decode(uint64_t ino, const struct val *v, struct inode *ret);

/* ---- directory entry ---- */

#define DIRENT_HEADER_BYTES 9
#define DIRENT_BYTES_MAX (DIRENT_HEADER_BYTES + NAME_LEN_MAX)

struct dirent_item {
	uint64_t ino;
	unsigned type;	  /* DT_* */
	const char *name; /* lent, not terminated */
	size_t len;
};

/* Returns the bytes used. */
size_t dirent_encode(const struct dirent_item *d, uint8_t buf[static DIRENT_BYTES_MAX]);
int dirent_decode(const struct val *v, struct dirent_item *ret);

/* ---- further name of an inode ---- */

#define LINK_BYTES 16

struct link_item {
	uint64_t parent, off;
};

void link_encode(const struct link_item *l, uint8_t buf[static LINK_BYTES]);
int link_decode(const struct val *v, struct link_item *ret);

/* ---- extended attribute ---- */

#define XATTR_HEADER_BYTES 5
#define XATTR_NAME_LEN_MAX 255
#define XATTR_VALUE_MAX 65536 /* the system calls' own limit */

struct xattr_item {
	const char *name; /* lent, not terminated */
	size_t name_len;
	uint32_t len;	   /* of the value */
	const void *value; /* lent; NULL: the bytes are at ref */
	struct ref ref;
};

/* Packs name and, when x->value is not NULL, the value (it must fit). Returns the bytes used. */
size_t xattr_encode(const struct xattr_item *x, uint8_t buf[static VAL_MAX]);
bool xattr_fits(size_t name_len, size_t len);
int xattr_decode(const struct val *v, struct xattr_item *ret);

/* ---- symlink target ---- */

#define TARGET_MAX 4095	      /* PATH_MAX without its NUL */
#define TARGET_INLINE_MAX 900 /* within VAL_MAX */

struct target_item {
	uint32_t len;
	const void *bytes; /* lent; NULL: at ref */
	struct ref ref;
};
int target_decode(const struct val *v, struct target_item *ret);

/* ---- extent ---- */

#define EXTENT_BYTES 4 /* its length; the data is the value's ref */

struct extent {
	uint64_t off; /* in the file */
	uint32_t len;
	const void *bytes; /* lent: inline; NULL: at ref */
	struct ref ref;	   /* lent */
};
int extent_decode(const struct key *k, const struct val *v, struct extent *ret);

static inline uint64_t extent_end(const struct extent *e)
{
	return e->off + e->len;
}

/* ---- orphan ---- */

#define ORPHAN_BYTES 1

enum orphan_flags { ORPHAN_LINKABLE = 1 }; /* made without a name (O_TMPFILE): may still get one */

int orphan_decode(const struct val *v, uint8_t *ret_flags);
