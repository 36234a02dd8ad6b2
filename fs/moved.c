/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Directories that a restore moved or brought back.
 *
 * A directory keeps its node id, so who has it as working directory stays in it (V5). Its dentry
 * keeps the old name, though, which getcwd(2) tells, until somebody looks the new one up: then the
 * kernel finds the node id again and moves the dentry, with all below. No notification does that,
 * and the daemon must not walk its own mount. So a restore remembers which directories are
 * elsewhere, and its caller, who has been told that there are some, asks for their paths and looks
 * at each (control.c). Of two restores at once the first one's caller may ask behind the second, so
 * they are forgotten only with the next restore after somebody was told all of them.
 *
 * Listed is who has another parent or name itself: what lies below comes along. So it is with one
 * that was not there before, if the kernel, which was told of no name, has it where it belongs now,
 * and can have thrown out that of the highest such directory at most. That is not so where it or
 * its parent was dead (V5): told of by names, or asked for what it no longer had; where its parent
 * was asked for a name meanwhile; where nobody looked at it when it was listed the last time; or
 * where somebody still has a directory that was removed. (By names each one that was not there is
 * listed, and its name thrown out.) Of another lineage directories are told by their paths, which
 * stay as they are.
 */

#include <errno.h>
#include <limits.h>
#include <string.h>

#include "fs/format.h"
#include "fs/view_internal.h"
#include "store/base/os.h"
#include "store/base/util.h"

/*
 * So many, or as many as names are known, are kept beside newer ones when nobody asks: more than
 * restores that are under way have, in 8 KiB.
 */
#define UNASKED_MAX 1024

void moved_release(struct moved *m)
{
	free(m->ino);
	*m = (struct moved){ 0 };
}

int moved_compare(struct moved *m, const struct inode *before, const struct inode *after)
{
	if (before && before->parent == after->parent && before->parent_off == after->parent_off)
		return 0;
	if (os_grow(&m->ino, &m->cap, m->n + 1, sizeof(*m->ino)) < 0)
		return -ENOMEM;
	m->ino[m->n++] = after->ino;
	return 0;
}

/*
 * Does the kernel have a directory that was not there before, and where? Not for sure, if it may
 * have thrown its name out.
 */
static bool kernel_has_it(struct view *v, uint64_t ino, struct inode *ret)
{
	READ_GUARD(v->lock);
	struct fs fs = { .store = v->store };
	const struct vnode *parent;
	struct realm *realm;
	uint32_t left;
	int r;

	{
		LOCK_GUARD(&v->table_lock);
		const struct vnode *n = vnode_by_ino(v, ino);

		/*
		 * What is settled (its realm has no base) was asked about since the switch: that
		 * may be no lookup. It may be below a directory that the kernel removed, whose
		 * number another node id has.
		 */
		if (!n || n->unnamed || !n->realm->base || v->n_removed)
			return false;
		realm = n->realm;
		realm->refs++; /* while the disk may be read */
		left = realm->left;
	}
	fs.tree = realm->tree;
	r = fs_stat(&fs, ino, ret);
	LOCK_GUARD(&v->table_lock);
	realm_unref(v, realm);
	parent = r < 0 ? NULL : vnode_by_ino(v, ret->parent);
	return parent && !parent->unnamed && parent->asked < left;
}

int moved_find(struct moved *m, struct view *v, const struct fs *before, const struct fs *after)
{
	uint64_t back = 0; /* was not there before either: it is the parent of many */

	for (uint32_t i = 1;; i++) {
		struct inode was, is;
		bool has_it;
		uint64_t ino = 0;
		int r;

		{
			LOCK_GUARD(&v->table_lock);
			const struct vnode *n;

			if (i >= v->n_slots)
				return 0;
			n = v->slots[i]; /* of another import it is another one's number */
			if (n && S_ISDIR(n->type) && n->hashed && n->realm->lineage == m->lineage)
				ino = n->ino;
		}
		if (!ino || fs_stat(after, ino, &is) < 0)
			continue; /* it is nowhere */
		has_it = fs_stat(before, ino, &was) >= 0;
		if (!has_it && (is.parent == back || fs_stat(before, is.parent, &was) < 0)) {
			back = is.parent; /* it is not the highest */
			has_it = kernel_has_it(v, ino, &was);
		}
		r = moved_compare(m, has_it ? &was : NULL, &is);
		if (r < 0)
			return r;
	}
}

void moved_keep(struct view *v, struct moved *m)
{
	LOCK_GUARD(&v->table_lock);
	struct moved *all = &v->moved;
	size_t n = all->n + m->n;

	for (size_t i = 0; i < m->n; i++) { /* maybe nobody looks, and it goes and comes back */
		struct vnode *d = vnode_by_ino(v, m->ino[i]);

		if (d)
			d->unnamed = true;
	}
	if (all->asked || all->lineage != m->lineage || n > MAX(UNASKED_MAX, v->n_hashed) ||
	    os_grow(&all->ino, &all->cap, n, sizeof(*all->ino)) < 0) {
		moved_release(all);
		*all = *m;
		*m = (struct moved){ 0 };
		v->moved_lists++;
		return;
	}
	for (size_t i = 0; i < m->n; i++) /* behind: somebody may be asking */
		all->ino[all->n++] = m->ino[i];
}

/* The path below base's, without a slash before it; NULL: it is not below. */
static const char *below(const char *path, size_t len, const char *base, size_t base_len)
{
	if (base_len == 0)
		return path;
	return len > base_len && path[base_len] == '/' && memcmp(path, base, base_len) == 0 ?
		       path + base_len + 1 :
		       NULL;
}

int view_moved(struct view *v, uint64_t node, uint64_t *at, char *buf, size_t cap, size_t *ret_len)
{
	_cleanup_free_ char *base = NULL;
	size_t base_len;
	struct bound b;
	int r;

	*ret_len = 0;
	READ_GUARD(v->lock);
	r = vnode_bind_dir(v, node, &b);
	if (r >= 0)
		r = fs_path(&b.fs, b.ino, &base, &base_len);
	if (r < 0)
		return r;

	for (;; ++*at) {
		_cleanup_free_ char *path = NULL;
		const char *text;
		uint64_t ino;
		size_t len;

		{
			LOCK_GUARD(&v->table_lock);

			/* Who was told a part of another list begins anew. */
			if (*at >> 32 != v->moved_lists)
				*at = (uint64_t)v->moved_lists << 32;
			if ((uint32_t)*at >= v->moved.n) {
				v->moved.asked = true;
				*at = 0;
				return 0;
			}
			ino = v->moved.ino[(uint32_t)*at];
		}
		r = fs_path(&b.fs, ino, &path, &len);
		if (r == -ENOMEM)
			return r;
		text = r < 0 ? NULL : below(path, len, base, base_len); /* r < 0: gone since */
		if (!text || strlen(text) >= PATH_MAX)
			continue; /* out of sight, or no call takes it */
		len = strlen(text) + 1;
		if (cap - *ret_len < len)
			return 0;
		memcpy(buf + *ret_len, text, len);
		*ret_len += len;
	}
}
