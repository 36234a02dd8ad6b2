/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Directories: entries by position, listings, and the way up.
 *
 * A position is 54 bits of the name's hash and an 8-bit counter; it is the entry's key and its
 * readdir cookie. An entry never moves, so a listing that goes on from a cookie shows every name
 * that was there all the time exactly once, whatever comes and goes beside it.
 */

#include <dirent.h>
#include <errno.h>

#include "fs/model.h"
#include "store/base/err.h"

/*
 * A way up. In a ring of parents, which damage alone makes, it comes again to where it was after
 * the last 1, 2, 4, ... steps (Brent); a chain of them without one ends.
 */
struct climb {
	uint64_t mark, steps;
};

static bool climb_is_ring(struct climb *c, uint64_t ino)
{
	if (c->steps > 0 && ino == c->mark)
		return true;
	c->steps++;
	if ((c->steps & (c->steps - 1)) == 0)
		c->mark = ino;
	return false;
}

int name_check(const char *name, size_t len)
{
	if (len == 0)
		return -EINVAL;
	if (len > NAME_LEN_MAX)
		return -ENAMETOOLONG;
	if (memchr(name, '/', len) || memchr(name, 0, len))
		return -EINVAL;
	return 0;
}

struct name_match {
	const struct fs *fs;
	const char *name;
	size_t len;
	uint64_t ino; /* of the match */
};

static int match_name(void *arg, const struct key *k, const struct val *v)
{
	struct name_match *m = arg;
	struct dirent_item d;
	int r;

	r = dirent_decode(v, &d);
	if (r < 0)
		return item_damaged(m->fs, k, "not a directory entry");
	if (d.len != m->len || memcmp(d.name, m->name, d.len) != 0)
		return 0;

	m->ino = d.ino;
	return 1;
}

int dirent_find(const struct fs *fs, uint64_t dir, const char *name, size_t len, uint64_t *ret_pos,
		uint64_t *ret_ino)
{
	struct key k, base = item_key(dir, ITEM_DIRENT, dirent_base(name, len));
	struct name_match m = { .fs = fs, .name = name, .len = len };
	int r;

	r = slot_find(fs, &base, match_name, &m, &k);
	if (r < 0)
		return r;

	*ret_pos = k.t ? k.b : 0;
	if (r == 0)
		*ret_ino = m.ino;
	return r;
}

int dirent_put(const struct fs *fs, uint64_t dir, uint64_t pos, const struct inode *i,
	       const char *name, size_t len)
{
	struct dirent_item d = { .ino = i->ino, .type = IFTODT(i->mode), .name = name, .len = len };
	struct key k = item_key(dir, ITEM_DIRENT, pos);
	uint8_t buf[DIRENT_BYTES_MAX];
	size_t n;

	n = dirent_encode(&d, buf);
	return tree_put(fs->tree, &k, &(struct val){ .data = buf, .len = (uint32_t)n });
}

int dirent_del(const struct fs *fs, uint64_t dir, uint64_t pos)
{
	struct key k = item_key(dir, ITEM_DIRENT, pos);

	return tree_del(fs->tree, &k);
}

int dir_is_empty(const struct fs *fs, uint64_t dir)
{
	struct key k = item_key(dir, ITEM_DIRENT, 0);
	struct cursor c;
	int r;

	r = cursor_seek(&c, fs->tree, &k);
	if (r < 0)
		return r;
	return r == END || c.key.a != dir || c.key.t != ITEM_DIRENT;
}

int dir_is_below(const struct fs *fs, uint64_t dir, uint64_t above)
{
	struct key k = item_key(dir, ITEM_INODE, 0);
	struct climb climb = { 0 };
	struct inode i;
	int r;

	while (!climb_is_ring(&climb, dir)) {
		if (dir == above)
			return 1;
		if (dir == ROOT_INO || dir == 0)
			return 0;

		r = inode_follow(fs, dir, &i);
		if (r < 0)
			return r;
		dir = i.parent;
	}
	return item_damaged(fs, &k, "its parents never end");
}

/* ---- verbs ---- */

int fs_lookup(const struct fs *fs, uint64_t dir, const char *name, size_t len, struct inode *ret)
{
	uint64_t pos, ino = 0;
	struct inode d;
	int r;

	r = name_check(name, len);
	if (r < 0)
		return r;

	r = inode_load_dir(fs, dir, &d);
	if (r < 0)
		return r;

	if (name_is_dots(name, len)) {
		if (len == 1 || dir == ROOT_INO) {
			*ret = d;
			return 0;
		}
		return d.parent ? inode_follow(fs, d.parent, ret) : -ENOENT;
	}

	r = dirent_find(fs, dir, name, len, &pos, &ino);
	if (r < 0)
		return r;
	if (r == ABSENT)
		return -ENOENT;

	return inode_follow(fs, ino, ret);
}

int fs_readdir(const struct fs *fs, uint64_t dir, uint64_t cookie,
	       int (*fn)(void *arg, const char *name, size_t len, uint64_t ino, unsigned type,
			 uint64_t next_cookie),
	       void *arg)
{
	struct key k = item_key(dir, ITEM_DIRENT, cookie < 2 ? 0 : cookie + 1);
	struct dirent_item d;
	struct cursor c;
	struct inode i;
	int r;

	r = inode_load_dir(fs, dir, &i);
	if (r < 0)
		return r;
	if (i.nlink == 0 || cookie == UINT64_MAX)
		return 0;

	if (cookie < 1) {
		r = fn(arg, ".", 1, dir, DT_DIR, 1);
		if (r != 0)
			return r < 0 ? r : 0;
	}
	if (cookie < 2) {
		r = fn(arg, "..", 2, i.parent ? i.parent : dir, DT_DIR, 2);
		if (r != 0)
			return r < 0 ? r : 0;
	}

	for (r = cursor_seek(&c, fs->tree, &k); r == 0; r = cursor_next(&c)) {
		if (c.key.a != dir || c.key.t != ITEM_DIRENT)
			return 0;

		r = dirent_decode(&c.val, &d);
		if (r < 0 || !dirent_place_ok(c.key.b))
			return item_damaged(fs, &c.key, "not a directory entry");

		r = fn(arg, d.name, d.len, d.ino, d.type, c.key.b);
		if (r != 0)
			return r < 0 ? r : 0;
	}
	return r < 0 ? r : 0;
}

int fs_path(const struct fs *fs, uint64_t ino, char **ret, size_t *ret_len)
{
	struct key at = item_key(ino, ITEM_INODE, 0);
	_cleanup_free_ char *buf = NULL;
	size_t cap = 256, used = 1; /* filled from its end, the NUL first */
	struct climb climb = { 0 };
	struct inode i;
	int r;

	buf = os_malloc(cap);
	if (!buf)
		return -ENOMEM;
	buf[cap - 1] = 0;

	r = inode_load(fs, ino, &i);
	if (r < 0)
		return r;

	while (i.ino != ROOT_INO) {
		struct key k = item_key(i.parent, ITEM_DIRENT, i.parent_off);
		struct dirent_item d;
		struct val v;

		if (i.parent == 0)
			return -ENOENT;
		if (climb_is_ring(&climb, i.ino))
			return item_damaged(fs, &at, "its parents never end");

		r = tree_get(fs->tree, &k, &v);
		if (r < 0)
			return r;
		if (r == ABSENT || dirent_decode(&v, &d) < 0 || d.ino != i.ino)
			return item_damaged(fs, &k, "not the entry that its inode says");

		if (cap - used < d.len + 1) {
			char *more = os_malloc(cap * 2 + d.len);

			if (!more)
				return -ENOMEM;
			memcpy(more + cap * 2 + d.len - used, buf + cap - used, used);
			free(buf);
			buf = more;
			cap = cap * 2 + d.len;
		}
		if (used > 1)
			buf[cap - ++used] = '/';
		used += d.len;
		memcpy(buf + cap - used, d.name, d.len);

		r = inode_follow(fs, i.parent, &i);
		if (r < 0)
			return r;
	}

	memmove(buf, buf + cap - used, used);
	*ret_len = used - 1;
	*ret = TAKE_PTR(buf);
	return 0;
}

int fs_resolve(const struct fs *fs, const char *path, size_t len, struct inode *ret)
{
	const char *end = path + len;
	struct inode i;
	int r;

	r = inode_load(fs, ROOT_INO, &i);
	if (r < 0)
		return r;

	while (path < end) {
		const char *slash = memchr(path, '/', (size_t)(end - path));
		size_t n = (size_t)((slash ? slash : end) - path);

		if (n > 0) {
			r = fs_lookup(fs, i.ino, path, n, &i);
			if (r < 0)
				return r;
		} else if (!inode_is_dir(&i)) {
			return -ENOTDIR;
		}
		path += n + (slash != NULL);
		if (slash && !inode_is_dir(&i))
			return -ENOTDIR;
	}

	*ret = i;
	return 0;
}
