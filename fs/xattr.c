/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Extended attributes. Short values live in the item; longer ones in a blob of their own. ACLs are
 * attributes with a meaning: the access list and the mode are two views of one thing and change
 * together, and a list that says no more than a mode is not stored at all.
 *
 * Most inodes have no attribute and the kernel asks for ACLs and security.capability all the time,
 * so the flags of the inode answer ENODATA without a search.
 */

#include <assert.h>
#include <errno.h>
#include <sys/xattr.h>

#include "fs/acl.h"
#include "fs/model.h"
#include "store/base/err.h"
#include "store/blob.h"
#include "store/store.h"

#define XATTR_CAPABILITY "security.capability"

enum xattr_class { CLASS_PLAIN, CLASS_ACCESS, CLASS_DEFAULT };

/* 0 and the class; -EOPNOTSUPP, -EINVAL, -ERANGE. */
static int classify(const char *name, enum xattr_class *ret)
{
	static const char *const prefix[] = { "user.", "security.", "trusted." };

	if (name[0] == 0 || strlen(name) > XATTR_NAME_LEN_MAX)
		return -ERANGE;

	if (strcmp(name, XATTR_ACL_ACCESS) == 0) {
		*ret = CLASS_ACCESS;
		return 0;
	}
	if (strcmp(name, XATTR_ACL_DEFAULT) == 0) {
		*ret = CLASS_DEFAULT;
		return 0;
	}
	for (size_t n = 0; n < ARRAY_SIZE(prefix); n++) {
		size_t len = strlen(prefix[n]);

		if (strncmp(name, prefix[n], len) != 0)
			continue;
		if (name[len] == 0)
			return -EINVAL;
		*ret = CLASS_PLAIN;
		return 0;
	}
	return -EOPNOTSUPP;
}

struct xattr_match {
	const struct fs *fs;
	const char *name;
	size_t len;
	struct xattr_item item; /* the match */
};

static int match_xattr(void *arg, const struct key *k, const struct val *v)
{
	struct xattr_match *m = arg;
	struct xattr_item x;
	int r;

	r = xattr_decode(v, &x);
	if (r < 0)
		return item_damaged(m->fs, k, "not an attribute");
	if (x.name_len != m->len || memcmp(x.name, m->name, x.name_len) != 0)
		return 0;

	m->item = x;
	return 1;
}

/* As slot_find; *ret_item (lent) when found. */
static int xattr_find(const struct fs *fs, uint64_t ino, const char *name, struct key *ret_key,
		      struct xattr_item *ret_item)
{
	size_t len = strlen(name);
	struct key base = item_key(ino, ITEM_XATTR, xattr_base(name, len));
	struct xattr_match m = { .fs = fs, .name = name, .len = len };
	int r;

	r = slot_find(fs, &base, match_xattr, &m, ret_key);
	if (r == 0)
		*ret_item = m.item;
	return r;
}

static int xattr_copy(const struct fs *fs, const struct xattr_item *x, void *buf)
{
	if (!x->value)
		return ref_read(fs->store, &x->ref, 0, buf, x->len);

	memcpy(buf, x->value, x->len);
	return 0;
}

int xattr_load(const struct fs *fs, uint64_t ino, const char *name, uint8_t **ret, size_t *ret_len)
{
	_cleanup_free_ uint8_t *buf = NULL;
	struct xattr_item x;
	struct key k;
	int r;

	r = xattr_find(fs, ino, name, &k, &x);
	if (r != 0)
		return r;

	buf = os_malloc(x.len + 1); /* never nothing */
	if (!buf)
		return -ENOMEM;
	r = xattr_copy(fs, &x, buf);
	if (r < 0)
		return r;

	*ret_len = x.len;
	*ret = TAKE_PTR(buf);
	return 0;
}

/* ---- changing ---- */

void xattr_new_release(struct xattr_new *x)
{
	blob_unrefp(&x->blob);
	x->blob = NULL;
	x->data_len = 0;
}

int xattr_prepare(const struct fs *fs, const char *name, const void *value, size_t len,
		  struct xattr_new *ret)
{
	size_t name_len = strlen(name);
	struct xattr_item x = { .name = ret->name, .name_len = name_len, .len = (uint32_t)len };
	int r;

	assert(name_len <= XATTR_NAME_LEN_MAX && len <= XATTR_VALUE_MAX);
	static_assert(XATTR_VALUE_MAX <= BLOB_MAX, "a value is one blob");

	memcpy(ret->name, name, name_len + 1);
	ret->blob = NULL;
	if (xattr_fits(name_len, len)) {
		x.value = len ? value : "";
	} else {
		r = blob_new(store_stage(fs->store), value, len, &ret->blob);
		if (r < 0)
			return r;
	}
	ret->data_len = (uint32_t)xattr_encode(&x, ret->data);
	return 0;
}

int xattr_put(const struct fs *fs, struct inode *i, const struct xattr_new *x)
{
	struct val v = { .data = x->data, .len = x->data_len };
	struct xattr_item old;
	struct key k;
	int r;

	r = xattr_find(fs, i->ino, x->name, &k, &old);
	if (r < 0)
		return r;
	if (k.t == 0)
		return -ENOSPC;

	if (x->blob) {
		v.ref.kind = REF_BLOB;
		v.ref.blob = x->blob;
	}
	r = tree_put(fs->tree, &k, &v);
	if (r < 0)
		return r;

	i->flags |= INODE_HAS_XATTR;
	return 0;
}

/* 0 or ABSENT; clears INODE_HAS_XATTR with the last one. */
static int xattr_del(const struct fs *fs, struct inode *i, const char *name)
{
	struct key first = item_key(i->ino, ITEM_XATTR, 0);
	struct xattr_item old;
	struct cursor c;
	struct key k;
	int r;

	if (!(i->flags & INODE_HAS_XATTR))
		return ABSENT;

	r = xattr_find(fs, i->ino, name, &k, &old);
	if (r != 0)
		return r;

	r = tree_del(fs->tree, &k);
	if (r < 0)
		return r;

	r = cursor_seek(&c, fs->tree, &first);
	if (r < 0)
		return r;
	if (r == END || c.key.a != i->ino || c.key.t != ITEM_XATTR)
		i->flags &= ~(uint32_t)INODE_HAS_XATTR;
	return 0;
}

int xattr_drop_caps(const struct fs *fs, struct inode *i)
{
	int r;

	r = xattr_del(fs, i, XATTR_CAPABILITY);
	return r < 0 ? r : 0;
}

int acl_follow_mode(const struct fs *fs, struct inode *i)
{
	_cleanup_(xattr_new_release) struct xattr_new x = { .data_len = 0 };
	_cleanup_free_ uint8_t *acl = NULL;
	size_t len = 0;
	int r;

	if (!(i->flags & INODE_HAS_ACL))
		return 0;

	r = xattr_load(fs, i->ino, XATTR_ACL_ACCESS, &acl, &len);
	if (r < 0)
		return r;
	if (r == ABSENT || acl_check(acl, len) != 0)
		return item_damaged(fs, &(struct key){ .a = i->ino, .t = ITEM_XATTR },
				    "no valid ACL");

	acl_chmod(acl, len, i->mode);
	r = xattr_prepare(fs, XATTR_ACL_ACCESS, acl, len, &x);
	if (r < 0)
		return r;
	return xattr_put(fs, i, &x);
}

/* Saves an inode whose attributes changed. */
static int finish(const struct fs *fs, struct inode *i)
{
	i->ctime = now_time();
	return inode_save_changed(fs, i);
}

static uint32_t class_flag(enum xattr_class class)
{
	return class == CLASS_ACCESS ? INODE_HAS_ACL : INODE_HAS_DEFAULT_ACL;
}

/* Taking away an ACL that is not there is done already; the mode stays as it is. */
static int remove_acl(const struct fs *fs, struct inode *i, enum xattr_class class,
		      const char *name)
{
	int r;

	if (!(i->flags & class_flag(class)))
		return 0;

	r = xattr_del(fs, i, name);
	if (r < 0)
		return r;
	i->flags &= ~class_flag(class);
	return finish(fs, i);
}

static int set_acl(const struct fs *fs, struct inode *i, enum xattr_class class, const char *name,
		   const void *value, size_t len)
{
	_cleanup_(xattr_new_release) struct xattr_new x = { .data_len = 0 };
	_cleanup_free_ uint8_t *acl = NULL;
	uint32_t perm;
	int r;

	if (S_ISLNK(i->mode))
		return -EOPNOTSUPP;

	r = acl_check(value, len);
	if (r < 0)
		return r;
	if (class == CLASS_DEFAULT && !inode_is_dir(i))
		return r == ABSENT ? 0 : -EACCES;
	if (r == ABSENT)
		return remove_acl(fs, i, class, name);

	if (class == CLASS_ACCESS) {
		r = acl_mode(value, len, &perm);
		i->mode = (i->mode & ~(uint32_t)0777) | perm;
		if (r == 0) { /* the mode says it all */
			r = xattr_del(fs, i, name);
			if (r < 0)
				return r;
			i->flags &= ~(uint32_t)INODE_HAS_ACL;
			return finish(fs, i);
		}
	}

	acl = os_malloc(len);
	if (!acl)
		return -ENOMEM;
	memcpy(acl, value, len);
	acl_normalize(acl, len);

	r = xattr_prepare(fs, name, acl, len, &x);
	if (r < 0)
		return r;
	r = xattr_put(fs, i, &x);
	if (r < 0)
		return r;
	i->flags |= class_flag(class);
	return finish(fs, i);
}

/* ---- verbs ---- */

int fs_getxattr(const struct fs *fs, uint64_t ino, const char *name, void *buf, size_t cap,
		size_t *ret_len)
{
	enum xattr_class class;
	struct xattr_item x;
	struct inode i;
	struct key k;
	int r;

	r = classify(name, &class);
	if (r < 0)
		return r;

	r = inode_load(fs, ino, &i);
	if (r < 0)
		return r;
	if (!(i.flags & (class == CLASS_PLAIN ? (uint32_t)INODE_HAS_XATTR : class_flag(class))))
		return -ENODATA;

	r = xattr_find(fs, ino, name, &k, &x);
	if (r < 0)
		return r;
	if (r == ABSENT)
		return -ENODATA;

	if (cap > 0) {
		if (x.len > cap)
			return -ERANGE;
		r = xattr_copy(fs, &x, buf);
		if (r < 0)
			return r;
	}
	*ret_len = x.len;
	return 0;
}

int fs_setxattr(const struct fs *fs, uint64_t ino, const char *name, const void *value, size_t len,
		int flags)
{
	_cleanup_(xattr_new_release) struct xattr_new x = { .data_len = 0 };
	enum xattr_class class;
	struct xattr_item old;
	struct inode i;
	struct key k;
	int r;

	if (flags & ~(XATTR_CREATE | XATTR_REPLACE))
		return -EINVAL;
	r = classify(name, &class);
	if (r < 0)
		return r;
	if (len > XATTR_VALUE_MAX)
		return -E2BIG;

	r = inode_load(fs, ino, &i);
	if (r < 0)
		return r;

	r = xattr_find(fs, ino, name, &k, &old);
	if (r < 0)
		return r;
	if (r == 0 && (flags & XATTR_CREATE))
		return -EEXIST;
	if (r == ABSENT && (flags & XATTR_REPLACE))
		return -ENODATA;

	if (class != CLASS_PLAIN)
		return set_acl(fs, &i, class, name, value, len);

	r = xattr_prepare(fs, name, value, len, &x);
	if (r < 0)
		return r;
	r = xattr_put(fs, &i, &x);
	if (r < 0)
		return r;
	return finish(fs, &i);
}

int fs_listxattr(const struct fs *fs, uint64_t ino, char *buf, size_t cap, size_t *ret_len)
{
	struct key k = item_key(ino, ITEM_XATTR, 0);
	struct xattr_item x;
	struct cursor c;
	struct inode i;
	size_t used = 0;
	int r;

	r = inode_load(fs, ino, &i);
	if (r < 0)
		return r;
	if (!(i.flags & INODE_HAS_XATTR)) {
		*ret_len = 0;
		return 0;
	}

	for (r = cursor_seek(&c, fs->tree, &k); r == 0; r = cursor_next(&c)) {
		if (c.key.a != ino || c.key.t != ITEM_XATTR)
			break;
		if (xattr_decode(&c.val, &x) < 0)
			return item_damaged(fs, &c.key, "not an attribute");

		if (cap > 0) {
			if (cap - used < x.name_len + 1)
				return -ERANGE;
			memcpy(buf + used, x.name, x.name_len);
			buf[used + x.name_len] = 0;
		}
		used += x.name_len + 1;
	}
	if (r < 0)
		return r;

	*ret_len = used;
	return 0;
}

int fs_removexattr(const struct fs *fs, uint64_t ino, const char *name)
{
	enum xattr_class class;
	struct inode i;
	int r;

	r = classify(name, &class);
	if (r < 0)
		return r;

	r = inode_load(fs, ino, &i);
	if (r < 0)
		return r;
	if (class != CLASS_PLAIN)
		return S_ISLNK(i.mode) ? -EOPNOTSUPP : remove_acl(fs, &i, class, name);

	r = xattr_del(fs, &i, name);
	if (r < 0)
		return r;
	if (r == ABSENT)
		return -ENODATA;
	return finish(fs, &i);
}
