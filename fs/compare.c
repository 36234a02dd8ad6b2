/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Comparing two objects. Data is compared by what extents refer to before any byte is read: two
 * files that share their chunks cost no IO, and of a large file with a small edit only the edit is
 * read.
 */

#include "fs/compare.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fs/diff.h"
#include "store/base/err.h"
#include "store/base/os.h"
#include "store/base/util.h"

#define COMPARE_BYTES (128 * 1024)	 /* one extent at most: CHUNK_MAX */
#define XATTR_LIST_MAX_BYTES (64 * 1024) /* the system's limit */

int comparer_init(struct comparer *c, const struct fs *a, const struct fs *b)
{
	*c = (struct comparer){ .a = *a, .b = *b };
	for (size_t i = 0; i < 2; i++) {
		c->buf[i] = malloc(COMPARE_BYTES);
		c->seg[i] = malloc(sizeof(*c->seg[i]));
		if (!c->buf[i] || !c->seg[i]) {
			comparer_release(c);
			return -ENOMEM;
		}
	}
	return 0;
}

void comparer_release(struct comparer *c)
{
	for (size_t i = 0; i < 2; i++) {
		free(c->buf[i]);
		free(c->seg[i]);
		c->buf[i] = NULL;
		c->seg[i] = NULL;
	}
}

/* 1: the bytes off..off+len are the same. */
static int same_bytes(struct comparer *c, uint64_t ino_a, uint64_t ino_b, uint64_t off,
		      uint64_t len)
{
	while (len > 0) {
		size_t n = MIN(len, (uint64_t)COMPARE_BYTES), got_a, got_b;
		int r;

		r = fs_read(&c->a, ino_a, off, c->buf[0], n, &got_a);
		if (r < 0)
			return r;
		r = fs_read(&c->b, ino_b, off, c->buf[1], n, &got_b);
		if (r < 0)
			return r;
		if (got_a != n || got_b != n)
			return -ERR_ITEM_DAMAGED;
		if (memcmp(c->buf[0], c->buf[1], n) != 0)
			return 0;
		off += n;
		len -= n;
	}
	return 1;
}

/* Do these parts of two segments refer to the same bytes? false proves nothing. */
static bool same_ref(const struct segment *x, uint64_t skip_x, const struct segment *y,
		     uint64_t skip_y)
{
	struct ref p = x->ref, q = y->ref;

	if (x->is_inline || y->is_inline)
		return false;
	if (p.kind == REF_NONE || q.kind == REF_NONE)
		return p.kind == q.kind; /* holes */
	p.off += (uint32_t)skip_x;
	q.off += (uint32_t)skip_y;
	return ref_eq(&p, &q);
}

/* 1: the mapped parts, which begin at off, are the same; *ret_len: how much both cover. */
static int same_mapped(struct comparer *c, uint64_t ino_a, uint64_t ino_b, uint64_t off,
		       uint64_t *ret_len)
{
	const struct segments *sa = c->seg[0], *sb = c->seg[1];
	uint64_t len = MIN(sa->len, sb->len), at = 0, in_a = 0, in_b = 0, differ = 0;
	uint32_t i = 0, j = 0;
	int r;

	*ret_len = len;
	while (at < len && i < sa->n && j < sb->n) {
		const struct segment *x = &sa->seg[i], *y = &sb->seg[j];
		uint64_t n = MIN(MIN((uint64_t)x->len - in_a, (uint64_t)y->len - in_b), len - at);

		/* Bytes that must be read are gathered, so that small pieces cost no read each. */
		if (!same_ref(x, in_a, y, in_b)) {
			differ += n;
		} else if (differ > 0) {
			r = same_bytes(c, ino_a, ino_b, off + at - differ, differ);
			if (r <= 0)
				return r;
			differ = 0;
		}
		at += n;
		in_a += n;
		in_b += n;
		if (in_a == x->len) {
			i++;
			in_a = 0;
		}
		if (in_b == y->len) {
			j++;
			in_b = 0;
		}
	}
	if (at < len)
		return -ERR_ITEM_DAMAGED;
	return differ > 0 ? same_bytes(c, ino_a, ino_b, off + at - differ, differ) : 1;
}

/* 1: two regular files of one size hold the same bytes. */
static int same_data(struct comparer *c, uint64_t ino_a, uint64_t ino_b, uint64_t size)
{
	uint64_t off = 0, len = 0;
	int r = 1;

	while (r == 1 && off < size) {
		r = fs_map(&c->a, ino_a, off, size - off, c->seg[0]);
		if (r < 0)
			return r;
		r = fs_map(&c->b, ino_b, off, size - off, c->seg[1]);
		if (r < 0) {
			segments_release(c->seg[0]);
			return r;
		}
		r = same_mapped(c, ino_a, ino_b, off, &len);
		segments_release(c->seg[0]);
		segments_release(c->seg[1]);
		if (r == 1 && len == 0)
			r = -ERR_ITEM_DAMAGED; /* a map that ends before the file does */
		off += len;
	}
	return r;
}

static int same_target(struct comparer *c, uint64_t ino_a, uint64_t ino_b)
{
	size_t len_a, len_b;
	int r;

	r = fs_readlink(&c->a, ino_a, (char *)c->buf[0], COMPARE_BYTES, &len_a);
	if (r < 0)
		return r;
	r = fs_readlink(&c->b, ino_b, (char *)c->buf[1], COMPARE_BYTES, &len_b);
	if (r < 0)
		return r;
	return len_a == len_b && memcmp(c->buf[0], c->buf[1], len_a) == 0;
}

static int name_ptr_cmp(const void *x, const void *y)
{
	return strcmp(*(char *const *)x, *(char *const *)y);
}

/* Names of an object's attributes, sorted; both arrays owned by the caller. */
static int list_xattrs(const struct fs *fs, uint64_t ino, char **ret_list, char ***ret_names,
		       size_t *ret_n)
{
	_cleanup_free_ char *buf = malloc(XATTR_LIST_MAX_BYTES);
	_cleanup_free_ char **names = NULL;
	size_t len, n = 0, cap = 0;
	int r;

	if (!buf)
		return -ENOMEM;
	r = fs_listxattr(fs, ino, buf, XATTR_LIST_MAX_BYTES, &len);
	if (r < 0)
		return r;
	for (size_t at = 0; at < len; at += strlen(buf + at) + 1) {
		if (!memchr(buf + at, '\0', len - at))
			return -ERR_ITEM_DAMAGED;
		r = os_grow(&names, &cap, n + 1, sizeof(*names));
		if (r < 0)
			return r;
		names[n++] = buf + at;
	}
	if (n > 1)
		qsort(names, n, sizeof(*names), name_ptr_cmp);
	*ret_list = TAKE_PTR(buf);
	*ret_names = TAKE_PTR(names);
	*ret_n = n;
	return 0;
}

static int same_xattrs(struct comparer *c, uint64_t ino_a, uint64_t ino_b)
{
	_cleanup_free_ char *list_a = NULL, *list_b = NULL;
	_cleanup_free_ char **names_a = NULL, **names_b = NULL;
	size_t n_a, n_b;
	int r;

	r = list_xattrs(&c->a, ino_a, &list_a, &names_a, &n_a);
	if (r < 0)
		return r;
	r = list_xattrs(&c->b, ino_b, &list_b, &names_b, &n_b);
	if (r < 0)
		return r;
	if (n_a != n_b)
		return 0;
	for (size_t i = 0; i < n_a; i++) {
		size_t len_a, len_b;

		if (strcmp(names_a[i], names_b[i]) != 0)
			return 0;
		r = fs_getxattr(&c->a, ino_a, names_a[i], c->buf[0], COMPARE_BYTES, &len_a);
		if (r < 0)
			return r;
		r = fs_getxattr(&c->b, ino_b, names_b[i], c->buf[1], COMPARE_BYTES, &len_b);
		if (r < 0)
			return r;
		if (len_a != len_b || memcmp(c->buf[0], c->buf[1], len_a) != 0)
			return 0;
	}
	return 1;
}

static bool time_eq(struct timens x, struct timens y)
{
	return x.sec == y.sec && x.nsec == y.nsec;
}

int comparer_compare(struct comparer *c, const struct inode *a, const struct inode *b,
		     unsigned skip, unsigned *ret_what)
{
	const unsigned any_xattr = INODE_HAS_XATTR | INODE_HAS_ACL | INODE_HAS_DEFAULT_ACL;
	unsigned what = 0;
	int r = 1;

	if ((a->mode & 07777) != (b->mode & 07777))
		what |= WHAT_MODE;
	if (a->uid != b->uid || a->gid != b->gid)
		what |= WHAT_OWNER;
	if (!time_eq(a->mtime, b->mtime) || !time_eq(a->atime, b->atime))
		what |= WHAT_TIME;
	if (!(skip & WHAT_XATTR) && ((a->flags | b->flags) & any_xattr)) {
		r = same_xattrs(c, a->ino, b->ino);
		if (r < 0)
			return r;
		if (r == 0)
			what |= WHAT_XATTR;
	}

	r = 1;
	if (S_ISREG(a->mode) && a->size != b->size)
		r = 0;
	else if (S_ISREG(a->mode) && !(skip & WHAT_DATA))
		r = same_data(c, a->ino, b->ino, a->size);
	else if (S_ISLNK(a->mode) && !(skip & WHAT_DATA))
		r = same_target(c, a->ino, b->ino);
	else if (S_ISCHR(a->mode) || S_ISBLK(a->mode))
		r = a->rdev == b->rdev;
	if (r < 0)
		return r;
	if (r == 0)
		what |= WHAT_DATA;
	*ret_what = what;
	return 0;
}
