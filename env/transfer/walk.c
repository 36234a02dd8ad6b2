/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Walking a state in order of path, for the exporters.
 *
 * The walk keeps its own stack: a tree may be deeper than a thread's stack allows. What comes from
 * disk is not believed: a name must be plain, and a directory must say that this is its name. Since
 * each says so of one, the second rule also rules out circles.
 */

#include "env/transfer/transfer_internal.h"
#include "store/base/os.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>

struct listing {
	char *names; /* owned: NUL-terminated, one behind the other */
	size_t len, cap;
	struct listed {
		size_t name; /* offset into names */
		uint64_t ino, pos;
		unsigned type; /* DT_*, as the entry says */
	} * entries;	       /* owned */
	size_t n, n_cap;
	size_t next;
	size_t path_len; /* of the directory itself */
	struct inode dir;
};

struct walk {
	struct talk *talk;
	const struct fs *fs;
	struct listing *stack; /* owned */
	size_t depth, cap;
	char *path; /* owned */
	size_t path_cap;
};

static void listing_release(struct listing *l)
{
	free(l->names);
	free(l->entries);
	*l = (struct listing){ 0 };
}

static void walk_release(struct walk *w)
{
	while (w->depth > 0)
		listing_release(&w->stack[--w->depth]);
	free(w->stack);
	free(w->path);
}

struct list_arg {
	struct walk *walk;
	struct listing *listing;
	int r;
};

static int list_one(void *arg, const char *name, size_t len, uint64_t ino, unsigned type,
		    uint64_t next_cookie)
{
	struct list_arg *a = arg;
	struct listing *l = a->listing;

	if (!name_is_plain(name, len)) {
		a->r = talk_fail(a->walk->talk, -ERR_ITEM_DAMAGED,
				 "directory '%s' (inode %" PRIu64 ") holds a name that is none",
				 path_shown(a->walk->path), l->dir.ino);
		return 1;
	}
	a->r = os_grow(&l->names, &l->cap, l->len + len + 1, 1);
	if (a->r == 0)
		a->r = os_grow(&l->entries, &l->n_cap, l->n + 1, sizeof(*l->entries));
	if (a->r < 0)
		return 1;
	l->entries[l->n++] = (struct listed){
		.name = l->len, .ino = ino, .pos = next_cookie, .type = type
	};
	memcpy(l->names + l->len, name, len);
	l->names[l->len + len] = '\0';
	l->len += len + 1;
	return 0;
}

static int listed_cmp(const void *x, const void *y, void *names)
{
	return strcmp((char *)names + ((const struct listed *)x)->name,
		      (char *)names + ((const struct listed *)y)->name);
}

static int push(struct walk *w, const struct inode *dir, size_t path_len)
{
	struct list_arg a = { .walk = w };
	struct listing *l;
	int r;

	r = os_grow(&w->stack, &w->cap, w->depth + 1, sizeof(*w->stack));
	if (r < 0)
		return r;
	l = &w->stack[w->depth++];
	*l = (struct listing){ .dir = *dir, .path_len = path_len };

	a.listing = l;
	r = fs_readdir(w->fs, dir->ino, 2 /* behind ".." */, list_one, &a);
	if (r >= 0 && a.r < 0)
		r = a.r;
	if (r < 0)
		return r;
	if (l->n > 1)
		qsort_r(l->entries, l->n, sizeof(*l->entries), listed_cmp, l->names);
	return 0;
}

static void entry_of(const struct walk *w, const struct inode *i, size_t path_len, size_t name,
		     size_t depth, struct walk_entry *ret)
{
	*ret = (struct walk_entry){
		.path = w->path,
		.path_len = path_len,
		.name = w->path + name,
		.depth = depth,
		.inode = *i,
	};
}

static int walk_next(struct walk *w, const struct walk_ops *ops, void *arg)
{
	struct listing *l = &w->stack[w->depth - 1];
	const struct listed *d = &l->entries[l->next];
	const char *name = l->names + d->name;
	size_t len = strlen(name), at = l->path_len ? l->path_len + 1 : 0;
	struct walk_entry e;
	struct inode i;
	int r;

	l->next++;
	if (!ops->object && d->type != DT_DIR)
		return 0;

	r = path_put(&w->path, &w->path_cap, l->path_len, name);
	if (r < 0)
		return r;

	r = fs_stat(w->fs, d->ino, &i);
	if (r == -ENOENT)
		r = -ERR_ITEM_DAMAGED;
	if (r < 0)
		return talk_fail(w->talk, r, "'%s' (inode %" PRIu64 ") cannot be read", w->path,
				 d->ino);
	if (inode_is_dir(&i) && !dir_is_at(&i, l->dir.ino, d->pos))
		return talk_fail(w->talk, -ERR_ITEM_DAMAGED,
				 "directory '%s' (inode %" PRIu64 ") lies in two places", w->path,
				 d->ino);

	entry_of(w, &i, at + len, at, w->depth, &e);
	if (!inode_is_dir(&i))
		return ops->object ? ops->object(arg, &e) : 0;

	r = ops->enter(arg, &e);
	if (r != 0)
		return r;
	return push(w, &i, at + len);
}

int walk_state(struct talk *t, const struct fs *fs, const struct walk_ops *ops, void *arg)
{
	_cleanup_(walk_release) struct walk w = { .talk = t, .fs = fs };
	struct walk_entry e;
	struct inode root;
	int r;

	r = os_grow(&w.path, &w.path_cap, 1, 1);
	if (r < 0)
		return r;
	w.path[0] = '\0';

	r = fs_stat(fs, ROOT_INO, &root);
	if (r == -ENOENT)
		r = talk_fail(t, -ERR_ITEM_DAMAGED, "the state has no root directory");
	if (r < 0)
		return r;

	entry_of(&w, &root, 0, 0, 0, &e);
	r = ops->enter(arg, &e);
	if (r == 0)
		r = push(&w, &root, 0);
	while (r == 0 && w.depth > 0) {
		struct listing *l = &w.stack[w.depth - 1];

		r = store_read_limit(fs->store, fs->tree);
		if (r < 0)
			return r;
		if (l->next < l->n) {
			r = walk_next(&w, ops, arg);
			continue;
		}
		if (ops->leave) {
			const char *slash;

			w.path[l->path_len] = '\0';
			slash = strrchr(w.path, '/');
			entry_of(&w, &l->dir, l->path_len, slash ? (size_t)(slash + 1 - w.path) : 0,
				 w.depth - 1, &e);
			r = ops->leave(arg, &e);
		}
		w.depth--;
		listing_release(&w.stack[w.depth]);
	}
	return r;
}

int walk_data(const struct fs *fs, const struct inode *i,
	      int (*fn)(void *arg, uint64_t off, uint64_t len), void *arg)
{
	uint64_t off = 0;
	int r;

	while (off < i->size) {
		uint64_t from, to;

		r = fs_seek(fs, i->ino, off, SEEK_DATA, &from);
		if (r == -ENXIO)
			return 0;
		if (r < 0)
			return r;

		r = fs_seek(fs, i->ino, from, SEEK_HOLE, &to);
		if (r < 0)
			return r;
		to = MIN(to, i->size);
		if (from < off || to <= from)
			return -ERR_ITEM_DAMAGED;

		r = fn(arg, from, to - from);
		if (r != 0)
			return r;
		off = to;
	}
	return 0;
}

int walk_xattrs(const struct fs *fs, const struct inode *i, char *buf,
		int (*fn)(void *arg, const char *name, const void *value, size_t len), void *arg)
{
	char *value = buf + XATTR_BYTES_MAX;
	size_t names_len;
	int r;

	if ((i->flags & (INODE_HAS_XATTR | INODE_HAS_ACL | INODE_HAS_DEFAULT_ACL)) == 0)
		return 0;

	r = fs_listxattr(fs, i->ino, buf, XATTR_BYTES_MAX, &names_len);
	if (r < 0)
		return r;
	for (size_t at = 0; at < names_len;) {
		const char *name = buf + at;
		size_t n = strnlen(name, names_len - at), len;

		if (at + n == names_len)
			return -ERR_ITEM_DAMAGED; /* no NUL */
		r = fs_getxattr(fs, i->ino, name, value, XATTR_BYTES_MAX, &len);
		if (r < 0)
			return r;
		r = fn(arg, name, value, len);
		if (r != 0)
			return r;
		at += n + 1;
	}
	return 0;
}
