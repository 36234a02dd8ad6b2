/* SPDX-License-Identifier: Apache-2.0 */

/*
 * States of a store that somebody else has made: nodes whose names are right, and items in them
 * that mean anything. Two are built; the first is looked at, changed by verbs, looked at again and
 * compared with what it was and with the second; then it may be written to a directory and be
 * hidden by a layer of an image. Refused or not, each verb ends, and nothing leads out.
 *
 * An input is a byte of flags and steps, each a byte that says which and some arguments; these are
 * small, so that what belongs together meets. Items first, which go into a tree or (a flag) into
 * leaves as they stand there, then verbs.
 */

#include <dirent.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <unistd.h>

#include "env/transfer/layer.h"
#include "env/transfer/transfer_internal.h"
#include "fs/diff.h"
#include "fs/format.h"
#include "store/base/os.h"
#include "store/base/util.h"
#include "store/chunk.h"
#include "store/tree_internal.h"
#include "tests/fuzz/fuzz_tree.h"

#define ITEMS 128 /* of a state; more finds the same */
#define STATES 2
#define INOS 32 /* as many directories with two names each, in a chain: nobody sees the end */

struct item {
	struct key k;
	struct ref ref;
	uint32_t len;
	uint8_t data[VAL_MAX];
	bool ends_leaf;
};

static struct items {
	struct item list[ITEMS];
	size_t n;
} states[STATES];

static int dir_fd, out_fd;
static struct name chunks[3]; /* those that there are; other names lead nowhere */
static const uint32_t chunk_len[ARRAY_SIZE(chunks)] = { 10, 4096, CHUNK_MAX };

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	static uint8_t bytes[CHUNK_MAX];

	dir_fd = fuzz_store_open();
	MUST(mkdirat(dir_fd, "beside", 0700) == 0 && mkdirat(dir_fd, "beside/out", 0700) == 0);
	out_fd = openat(dir_fd, "beside/out", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	MUST(out_fd >= 0);
	for (size_t i = 0; i < ARRAY_SIZE(chunks); i++) {
		memset(bytes, 'a' + (int)i, sizeof(bytes));
		MUST(chunk_put(store_chunks(fuzz_store), CHUNK_DATA, bytes, chunk_len[i],
			       &chunks[i]) >= 0);
	}
	return 0;
}

/* ---- arguments ---- */

static uint64_t ino(struct input *in)
{
	return byte(in) % INOS;
}

/* A place or a length: some of a unit. */
static uint64_t place(struct input *in)
{
	static const uint64_t unit[] = { 1, 100, 4096, 65536, 131072, 1 << 20,
					 UINT64_C(1) << 40, UINT64_C(1) << 59 };
	uint8_t b = byte(in);

	return unit[b >> 5] * (b & 31);
}

static const char *name(struct input *in)
{
	static const char *const names[] = { "a", "b", "c", "dd", "e f", "\xff\n", ".", ".." };

	return names[byte(in) % ARRAY_SIZE(names)];
}

static const char *xattr_name(struct input *in)
{
	static const char *const names[] = { "user.a", "security.capability",
					     "system.posix_acl_access", "system.posix_acl_default",
					     "trusted.b", "other" };

	return names[byte(in) % ARRAY_SIZE(names)];
}

/* ---- items ---- */

static void take_bytes(struct input *in, struct item *i, size_t len)
{
	len = MIN(MIN(len, in->left), sizeof(i->data) - i->len);
	memcpy(i->data + i->len, in->p, len);
	i->len += (uint32_t)len;
	in->p += len;
	in->left -= len;
}

/* One that is there, or not. */
static void refer(struct input *in, struct item *i)
{
	uint8_t b = byte(in);

	i->ref.kind = REF_CHUNK;
	i->ref.off = b & 0x80 ? (uint32_t)place(in) : 0;
	if (b % 4 < ARRAY_SIZE(chunks))
		i->ref.name = chunks[b % 4];
}

static void inode_item(struct input *in, struct item *i)
{
	static const uint32_t type[] = { S_IFREG, S_IFDIR, S_IFLNK, S_IFDIR,
					 S_IFREG, S_IFIFO, S_IFCHR, S_IFSOCK };
	struct inode n = { .ino = ino(in) };
	uint8_t b = byte(in);
	const char *at;

	n.mode = type[b & 7] | (b & 8 ? 06755 : 0644);
	n.flags = b >> 4 & 7;
	n.nlink = byte(in) % 4;
	n.size = place(in);
	n.bytes = place(in);
	n.uid = b;
	n.parent = ino(in);
	at = name(in);
	n.parent_off = dirent_base(at, strlen(at)) + (b >> 7);
	if (n.size > FILE_SIZE_MAX)
		n.size = FILE_SIZE_MAX;
	inode_encode(&n, i->data);
	i->len = INODE_RECORD_BYTES;
	i->k = item_key(n.ino, ITEM_INODE, 0);
}

static void dirent_item(struct input *in, struct item *i)
{
	uint64_t dir = ino(in);
	struct dirent_item d = { .ino = ino(in) };
	uint8_t b = byte(in);

	d.type = b & 1 ? DT_DIR : b & 2 ? DT_REG : b >> 4;
	d.name = name(in);
	d.len = strlen(d.name);
	i->len = (uint32_t)dirent_encode(&d, i->data);
	i->k = item_key(dir, ITEM_DIRENT,
			b & 4 ? place(in) : dirent_base(d.name, d.len) + (b >> 7));
}

static void extent_item(struct input *in, struct item *i)
{
	uint64_t file = ino(in), off = place(in), len = place(in);

	i->k = item_key(file, ITEM_EXTENT, off);
	if (len % 2 == 0) {
		refer(in, i);
		put_le32(i->data, (uint32_t)len);
		i->len = EXTENT_BYTES;
	} else {
		take_bytes(in, i, len);
	}
}

static void xattr_item(struct input *in, struct item *i)
{
	uint64_t of = ino(in);
	const char *n = xattr_name(in);
	struct xattr_item x = { .name = n, .name_len = strlen(n), .len = byte(in) };

	if (x.len & 1) {
		x.len = (uint32_t)place(in);
		refer(in, i);
		i->len = (uint32_t)xattr_encode(&x, i->data);
	} else {
		x.len = MIN(x.len, in->left);
		x.value = in->p;
		i->len = (uint32_t)xattr_encode(&x, i->data);
		in->p += x.len;
		in->left -= x.len;
	}
	i->k = item_key(of, ITEM_XATTR, xattr_base(n, strlen(n)));
}

static void link_item(struct input *in, struct item *i)
{
	uint64_t of = ino(in);
	struct link_item l = { .parent = ino(in) };
	const char *n = name(in);

	l.off = dirent_base(n, strlen(n));
	link_encode(&l, i->data);
	i->len = LINK_BYTES;
	i->k = item_key(of, ITEM_LINK, link_base(l.parent, l.off));
}

static void target_item(struct input *in, struct item *i)
{
	i->k = item_key(ino(in), ITEM_TARGET, 0);
	if (byte(in) & 1) {
		refer(in, i);
		put_le32(i->data, (uint32_t)place(in));
		i->len = 4;
	} else {
		take_bytes(in, i, byte(in) % 16);
	}
}

static void orphan_item(struct input *in, struct item *i)
{
	i->k = item_key(FS_KEYS, ITEM_ORPHAN, ino(in));
	i->data[0] = byte(in);
	i->len = ORPHAN_BYTES;
}

static void any_item(struct input *in, struct item *i)
{
	i->k = item_key(place(in), byte(in) % 9, place(in));
	if (byte(in) & 1)
		refer(in, i);
	take_bytes(in, i, byte(in));
}

/* ---- states ---- */

static struct root *of_tree(const struct items *s)
{
	struct tree *t;
	struct root *root;

	MUST(root_empty(store_nodes(fuzz_store), &root) == 0);
	MUST(tree_new(store_nodes(fuzz_store), root, &t) == 0);
	root_unref(root);
	for (size_t i = 0; i < s->n; i++) {
		const struct item *x = &s->list[i];

		MUST(tree_put(t, &x->k, &(struct val){ x->data, x->len, x->ref }) == 0);
	}
	MUST(tree_freeze(t, &root) == 0);
	tree_free(t);
	return root;
}

/* Nodes that are not in a chunk: who asks for them by name finds them in memory. */
static struct made {
	struct node *node;
	struct key first;
} made[ITEMS + 1];

static uint8_t *put_key(uint8_t *p, const struct key *k)
{
	put_le64(p, k->a);
	p[8] = k->t;
	put_le64(p + 9, k->b);
	return p + KEY_BYTES;
}

/* False: it is none. */
static bool make_node(uint8_t *buf, uint8_t level, size_t count, const uint8_t *end,
		      struct made *ret)
{
	size_t len = (size_t)(end - buf);
	struct name n;

	buf[0] = 'p';
	buf[1] = 'n';
	buf[2] = 1;
	buf[3] = level;
	put_le16(buf + 4, (uint16_t)count);
	put_le16(buf + 6, (uint16_t)len);
	n = name_of(buf, len, 0);
	if (node_decode(store_nodes(fuzz_store), buf, len, &ret->node) < 0)
		return false;
	node_set_sealed(ret->node, &n);
	return true;
}

static int by_key(const void *x, const void *y)
{
	return key_cmp(&((const struct item *)x)->k, &((const struct item *)y)->k);
}

/* The items up to `to`; `from` is there, and what the leaf begins with also when it is empty. */
static bool make_leaf(const struct items *s, size_t from, size_t to, struct made *ret)
{
	uint8_t buf[NODE_MAX], *p = buf + NODE_HEADER;
	size_t i = from;

	for (; i < to; i++) {
		const struct item *x = &s->list[i];

		if ((size_t)(buf + sizeof(buf) - p) < item_size(x->ref.kind, x->len))
			break;
		p = put_key(p, &x->k);
		put_le16(p, (uint16_t)(x->len | x->ref.kind << 12));
		p += 2;
		if (x->ref.kind == REF_CHUNK) {
			memcpy(p, x->ref.name.b, NAME_BYTES);
			put_le32(p + NAME_BYTES, x->ref.off);
			p += REF_BYTES;
		}
		memcpy(p, x->data, x->len);
		p += x->len;
	}
	ret->first = s->list[from].k;
	return make_node(buf, 0, i - from, p, ret);
}

/* Each `fan` of the nodes at list become one; how many there are then. 0: a node is none. */
static size_t make_level(struct made *list, size_t n, uint8_t level, size_t fan)
{
	size_t made_n = 0;

	for (size_t i = 0; i < n;) {
		uint8_t buf[NODE_MAX], *p = buf + NODE_HEADER;
		struct made up = { .first = list[i].first };
		size_t count = 0;
		bool ok;

		for (; count < fan && i + count < n; count++) {
			struct name child;

			MUST(node_name(list[i + count].node, &child));
			p = put_key(p, &list[i + count].first);
			memcpy(p, child.b, NAME_BYTES);
			p += NAME_BYTES;
		}
		ok = make_node(buf, level, count, p, &up);
		for (size_t k = 0; ok && k < count; k++) { /* else nobody would find them */
			struct node *child;

			ok = node_child(up.node, (unsigned)k, &child) == 0;
		}
		for (size_t k = 0; k < count; k++)
			node_unref(list[i + k].node);
		i += count;
		if (ok)
			list[made_n++] = up;
		else
			node_unref(up.node);
	}
	return made_n;
}

/* NULL: a node is none. */
static struct root *of_nodes(struct items *s, size_t fan)
{
	struct root *root = NULL;
	struct name top;
	size_t n = 0;
	uint8_t level = 1;

	for (size_t from = 0, to; from < s->n; from = to) {
		for (to = from; to < s->n && !s->list[to].ends_leaf; to++)
			;
		qsort(&s->list[from], to - from, sizeof(s->list[0]), by_key);
		n += make_leaf(s, from, to, &made[n]);
		to += to < s->n;
	}
	if (n > 0)
		made[0].first = KEY_MIN;
	while (n > 1 && level < TREE_HEIGHT_MAX)
		n = make_level(made, n, level++, fan);
	if (n == 1) {
		struct node *top_node;

		MUST(node_name(made[0].node, &top) &&
		     root_by_name(store_nodes(fuzz_store), &top, &root) == 0);
		if (root_top(root, &top_node) < 0) {
			root_unref(root);
			root = NULL;
		}
	}
	while (n > 0)
		node_unref(made[--n].node);
	return root;
}

/* ---- what is done with them ---- */

static int see(void *arg, const char *n, size_t len, uint64_t i, unsigned type, uint64_t cookie)
{
	MUST(len > 0 && !memchr(n, '/', len) && !memchr(n, '\0', len));
	return 0;
}

/* Who goes on behind an entry is not at the beginning again, nor at what no offset can be. */
static int see_entry(void *arg, const char *n, size_t len, uint64_t i, unsigned type,
		     uint64_t cookie)
{
	bool dots = n[0] == '.' && (len == 1 || (len == 2 && n[1] == '.'));

	MUST(cookie <= INT64_MAX && (dots ? cookie == len : cookie > 2));
	return see(arg, n, len, i, type, cookie);
}

static int see_name(void *arg, uint64_t parent, const char *n, size_t len)
{
	return see(arg, n, len, parent, 0, 0);
}

static int see_orphan(void *arg, uint64_t i)
{
	return 0;
}

static void look(const struct fs *fs)
{
	static char buf[CHUNK_MAX], list[65536];
	size_t len;

	for (uint64_t i = 0; i < INOS; i++) {
		struct inode n;
		char *path;

		(void)fs_readdir(fs, i, 0, see_entry, NULL);
		(void)fs_names(fs, i, see_name, NULL);
		if (fs_path(fs, i, &path, &len) == 0) {
			MUST(strlen(path) == len);
			(void)fs_resolve(fs, path, len, &n);
			free(path);
		}
		if (fs_readlink(fs, i, buf, sizeof(buf), &len) == 0)
			MUST(len <= TARGET_MAX);
		if (fs_listxattr(fs, i, list, sizeof(list), &len) == 0)
			for (size_t at = 0; at < len; at += strlen(list + at) + 1) {
				size_t n_value;

				(void)fs_getxattr(fs, i, list + at, buf, sizeof(buf), &n_value);
			}
		(void)fs_read(fs, i, 0, buf, sizeof(buf), &len);
		if (fs_stat(fs, i, &n) == 0 && n.size > sizeof(buf))
			(void)fs_read(fs, i, n.size - sizeof(buf), buf, sizeof(buf), &len);
	}
	(void)fs_orphans(fs, see_orphan, NULL);
}

static void create(struct fs *fs, struct input *in, uint8_t how)
{
	static const uint32_t type[] = { S_IFREG, S_IFDIR, S_IFLNK, S_IFIFO };
	const char *n;
	struct inode i;
	struct fs_new q = { .dir = ino(in), .mode = type[how % 4] | 0644, .target = "to" };

	n = name(in);
	q.name = n;
	q.len = strlen(n);
	(void)(how & 4 ? fs_tmpfile(fs, &q, &i) : fs_create(fs, &q, &i));
}

static void rename_one(struct fs *fs, struct input *in, unsigned flags)
{
	uint64_t from = ino(in), to = ino(in);
	const char *old = name(in), *new = name(in);
	struct inode i;

	(void)fs_rename(fs, from, old, strlen(old), to, new, strlen(new), flags, &i);
}

static void set(struct fs *fs, struct input *in)
{
	struct fs_set s = { .mask = byte(in), .mode = 0640, .size = place(in) };
	struct inode i;

	(void)fs_setattr(fs, ino(in), &s, &i);
}

static void set_xattr(struct fs *fs, struct input *in, bool remove)
{
	uint64_t of = ino(in);
	const char *n = xattr_name(in);
	size_t len = MIN(byte(in), in->left);

	if (remove)
		(void)fs_removexattr(fs, of, n);
	else
		(void)fs_setxattr(fs, of, n, in->p, len, 0);
	in->p += len;
	in->left -= len;
}

static void change_data(struct fs *fs, struct input *in, uint8_t how)
{
	static const int modes[] = { 0, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
				     FALLOC_FL_COLLAPSE_RANGE, FALLOC_FL_INSERT_RANGE };
	static const uint8_t bytes[CHUNK_MAX + 4096];
	uint64_t file = ino(in), off = place(in), len = place(in), done;

	if (how & 1)
		(void)fs_write(fs, file, off, bytes, MIN(len, sizeof(bytes)), how & 2);
	else if (how & 2)
		(void)fs_fallocate(fs, file, modes[how >> 2 & 3], off, len);
	else
		(void)fs_copy_range(fs, file, off, fs, ino(in), place(in), len, &done);
}

static void name_verb(struct fs *fs, struct input *in, uint8_t how)
{
	uint64_t dir = ino(in);
	const char *n = name(in);
	struct inode i;

	switch (how % 4) {
	case 0:
		(void)fs_unlink(fs, dir, n, strlen(n), &i);
		break;
	case 1:
		(void)fs_rmdir(fs, dir, n, strlen(n), &i);
		break;
	case 2:
		(void)fs_link(fs, ino(in), dir, n, strlen(n), &i);
		break;
	default:
		(void)fs_purge(fs, dir);
	}
}

static int see_change(void *arg, const struct change *c)
{
	const char *const paths[] = { c->old_path, c->new_path };

	MUST(paths[0] || paths[1]);
	for (int i = 0; i < 2; i++)
		if (paths[i] && strstr(paths[i], ".."))
			MUST(!strstr(paths[i], "/../") && strncmp(paths[i], "../", 3) != 0);
	return 0;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
	return at->level ? remove(path) : 0;
}

static int count_one(void *arg, const char *n)
{
	*(unsigned *)arg += 1;
	return 0;
}

static void write_out(struct root *root)
{
	const struct import_ops ops = { 0 };
	struct transfer_stats stats;
	unsigned beside = 0;
	char path[64];

	(void)export_directory(fuzz_store, root, out_fd, &ops, &stats);
	snprintf(path, sizeof(path), "/proc/self/fd/%d/.", out_fd);
	MUST(nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0);
	MUST(fchmod(out_fd, 0700) == 0);
	MUST(os_each_name(dir_fd, "beside", count_one, &beside) == 0 && beside == 1);
}

/* As a layer of an image does that says that all below it is gone. */
static void hide_all(struct root *root)
{
	const struct import_ops ops = { 0 };
	struct builder b;
	struct layer layer = { .b = &b };

	MUST(store_import_begin(fuzz_store) == 0);
	if (builder_continue(&b, fuzz_store, &ops, root, INOS) == 0)
		(void)layer_hide_below(&layer, ROOT_INO);
	layer_release(&layer);
	builder_release(&b);
	store_import_end(fuzz_store);
}

/* ---- an input ---- */

#define NODES 1 /* in the first byte */
#define WRITES 2
#define HIDES 4

static void add_item(struct input *in, uint8_t step, struct items *s)
{
	static void (*const kinds[])(struct input *in, struct item *i) = {
		inode_item, dirent_item, extent_item, xattr_item,
		link_item,  target_item, orphan_item, any_item,
	};
	struct item *i = &s->list[s->n];

	if (s->n == ITEMS)
		return;
	*i = (struct item){ .ends_leaf = step & 0x40 };
	kinds[step % ARRAY_SIZE(kinds)](in, i);
	s->n++;
}

static void verb(struct input *in, uint8_t step, struct fs *fs)
{
	uint8_t how = byte(in);

	switch (step % 8) {
	case 0:
		create(fs, in, how);
		break;
	case 1:
	case 2:
		change_data(fs, in, how);
		break;
	case 3:
		name_verb(fs, in, how);
		break;
	case 4:
		set(fs, in);
		break;
	case 5:
		set_xattr(fs, in, how & 1);
		break;
	default:
		rename_one(fs, in, how % 8);
	}
}

static void compare(struct root *a, struct root *b, bool same_lineage)
{
	(void)fs_diff(fuzz_store, a, b, same_lineage, DIFF_DIRS | DIFF_RENAMES, see_change, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };
	uint8_t flags = byte(&in), step;
	struct root *roots[STATES + 1] = { NULL }; /* the last: what verbs made of the first */
	struct fs fs = { .store = fuzz_store };

	states[0].n = states[1].n = 0;
	for (int s = 0; s < STATES; s++) {
		while ((step = byte(&in)) & 0x80)
			add_item(&in, step, &states[s]);
		roots[s] = flags & NODES ? of_nodes(&states[s], 2 + (flags >> 6)) :
					   of_tree(&states[s]);
	}
	if (roots[0] && roots[1]) {
		MUST(tree_new(store_nodes(fuzz_store), roots[0], &fs.tree) == 0);
		look(&fs);
		while (in.left > 0)
			verb(&in, byte(&in), &fs);
		look(&fs);
		MUST(tree_freeze(fs.tree, &roots[STATES]) == 0);
		tree_free(fs.tree);
		compare(roots[0], roots[STATES], true);
		compare(roots[0], roots[1], true);
		compare(roots[0], roots[1], false);
		if (flags & WRITES)
			write_out(roots[STATES]);
		if (flags & HIDES)
			hide_all(roots[STATES]);
	}
	for (size_t i = 0; i < ARRAY_SIZE(roots); i++)
		root_unref(roots[i]);
	return 0;
}
