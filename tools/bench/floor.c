/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The floor of the bench: a FUSE filesystem that does nothing but keep files in memory, as plainly
 * as possible. What a program costs on it is what no FUSE filesystem with these flags can avoid.
 *
 *   floor FD      serves the mount behind the descriptor FD; a line on stdin is answered by the
 *                 counters of requests, as one line of JSON; at its end the floor ends
 *
 * Flags, negotiation and the loop are the very same as of plyfs: its adapter (fs/fuse.c, raw.c,
 * mount.c, readers.c and what these need) is linked here, and this file stands where the view, the
 * model and the store are there. So the difference between the two is what those cost: trees that
 * can be frozen, data that is shared, hashed and made durable. The adapter's own cost is in both,
 * and shows beside the underlying filesystem.
 *
 * No locks: the reader passes its mount to another thread only in fsync, which does nothing here.
 * Left out as nothing in the bench wants it: extended attributes, set-id bits that writes clear,
 * directories that hand down their group.
 */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/falloc.h>
#include <stdio.h>
#include <time.h>

#include "fs/memo.h"
#include "fs/mount_internal.h"
#include "store/base/err.h"
#include "store/base/note.h"
#include "store/base/util.h"

#define BUCKETS (1U << 20) /* of names: enough for short chains in trees of a million files */

struct node;

struct dentry {
	struct dentry *chain;
	struct node *dir, *node;
	uint32_t at; /* in dir's list */
	uint32_t len;
	char text[];
};

struct node { /* its address is its node id; the root's is 1 */
	struct inode inode;
	uint64_t lookups;
	uint8_t *data; /* of a file, a symlink's target */
	size_t cap;
	struct node *parent; /* of a directory, like the rest */
	struct dentry **list;  /* a removed name leaves a gap, so that positions are cookies */
	uint32_t n_list, cap_list, n_names;
};

struct view {
	struct node *root;
	struct dentry **names; /* BUCKETS */
	uint64_t last_ino;
};

static struct node *node_at(struct view *v, uint64_t node)
{
	return node == ROOT_NODE ? v->root : (struct node *)(uintptr_t)node;
}

static uint64_t node_id(struct view *v, struct node *n)
{
	return n == v->root ? ROOT_NODE : (uint64_t)(uintptr_t)n;
}

static struct timens now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME_COARSE, &t);
	return (struct timens){ t.tv_sec, (uint32_t)t.tv_nsec };
}

/* ---- names ---- */

static struct dentry **bucket(struct view *v, const struct node *dir, const char *name, size_t len)
{
	uint64_t h = (uint64_t)(uintptr_t)dir;

	for (size_t i = 0; i < len; i++)
		h = (h ^ (uint8_t)name[i]) * UINT64_C(0x100000001b3); /* FNV-1a */
	return &v->names[(h >> 20) % BUCKETS];
}

static struct dentry *find(struct view *v, struct node *dir, const char *name, size_t len)
{
	struct dentry *n = *bucket(v, dir, name, len);

	while (n && (n->dir != dir || n->len != len || memcmp(n->text, name, len) != 0))
		n = n->chain;
	return n;
}

static int add_name(struct view *v, struct node *dir, const char *text, size_t len,
		    struct node *node)
{
	struct dentry **b = bucket(v, dir, text, len);
	struct dentry *n = malloc(sizeof(*n) + len);

	if (!n)
		return -ENOMEM;
	if (dir->n_list == dir->cap_list) {
		uint32_t cap = dir->cap_list ? dir->cap_list * 2 : 8;
		struct dentry **list = realloc(dir->list, cap * sizeof(*list));

		if (!list) {
			free(n);
			return -ENOMEM;
		}
		dir->list = list;
		dir->cap_list = cap;
	}
	*n = (struct dentry){ .chain = *b, .dir = dir, .node = node, .at = dir->n_list,
			    .len = (uint32_t)len };
	memcpy(n->text, text, len);
	*b = n;
	dir->list[dir->n_list++] = n;
	dir->n_names++;
	if (S_ISDIR(node->inode.mode)) {
		node->parent = dir;
		dir->inode.nlink++;
	}
	dir->inode.mtime = dir->inode.ctime = node->inode.ctime = now();
	return 0;
}

static void del_name(struct view *v, struct dentry *n)
{
	struct dentry **at = bucket(v, n->dir, n->text, n->len);
	struct node *dir = n->dir;

	while (*at != n)
		at = &(*at)->chain;
	*at = n->chain;
	dir->list[n->at] = NULL;
	if (--dir->n_names == 0)
		dir->n_list = 0;
	if (S_ISDIR(n->node->inode.mode))
		dir->inode.nlink--;
	dir->inode.mtime = dir->inode.ctime = n->node->inode.ctime = now();
	free(n);
}

static void free_if_gone(struct node *n)
{
	if (n->lookups || n->inode.nlink)
		return;
	free(n->data);
	free(n->list);
	free(n);
}

static int found(struct view *v, struct node *n, struct entry *ret)
{
	n->lookups++;
	*ret = (struct entry){ .node = node_id(v, n), .inode = n->inode };
	return 0;
}

static struct node *node_new(struct view *v, uint32_t mode, const struct cred *cred)
{
	struct node *n = calloc(1, sizeof(*n));
	struct timens t = now();

	if (n)
		n->inode = (struct inode){
			.ino = ++v->last_ino, .mode = mode & ~cred->umask, .uid = cred->uid,
			.gid = cred->gid, .nlink = S_ISDIR(mode) ? 2 : 1,
			.size = S_ISDIR(mode) ? 4096 : 0, .atime = t, .mtime = t, .ctime = t,
			.btime = t,
		};
	return n;
}

int view_lookup(struct view *v, uint64_t dir, const char *name, size_t len, struct entry *ret)
{
	struct dentry *n = find(v, node_at(v, dir), name, len);

	return n ? found(v, n->node, ret) : -ENOENT;
}

void view_forget(struct view *v, uint64_t node, uint64_t count)
{
	struct node *n = node_at(v, node);

	n->lookups -= MIN(count, n->lookups);
	free_if_gone(n);
}

int view_create(struct view *v, const struct fs_new *new, struct entry *ret)
{
	struct node *dir = node_at(v, new->dir);
	struct node *n;

	if (find(v, dir, new->name, new->len))
		return -EEXIST;
	n = node_new(v, new->mode, &new->cred);
	if (!n)
		return -ENOMEM;
	n->inode.rdev = new->rdev;
	if (new->target) {
		n->data = (uint8_t *)strdup(new->target);
		n->inode.size = strlen(new->target);
	}
	if ((new->target && !n->data) || add_name(v, dir, new->name, new->len, n) < 0) {
		n->inode.nlink = 0;
		free_if_gone(n);
		return -ENOMEM;
	}
	return found(v, n, ret);
}

int view_tmpfile(struct view *v, const struct fs_new *new, struct entry *ret)
{
	struct node *n = node_new(v, new->mode, &new->cred);

	if (!n)
		return -ENOMEM;
	n->inode.nlink = 0;
	return found(v, n, ret);
}

int view_link(struct view *v, uint64_t node, uint64_t dir, const char *name, size_t len,
	      struct entry *ret)
{
	struct node *n = node_at(v, node);
	int r;

	if (find(v, node_at(v, dir), name, len))
		return -EEXIST;
	r = add_name(v, node_at(v, dir), name, len, n);
	if (r < 0)
		return r;
	n->inode.nlink++;
	return found(v, n, ret);
}

static void drop(struct view *v, struct dentry *n)
{
	struct node *node = n->node;

	del_name(v, n);
	node->inode.nlink -= S_ISDIR(node->inode.mode) ? 2 : 1;
	free_if_gone(node);
}

int view_unlink(struct view *v, uint64_t dir, const char *name, size_t len)
{
	struct dentry *n = find(v, node_at(v, dir), name, len);

	if (!n)
		return -ENOENT;
	drop(v, n);
	return 0;
}

int view_rmdir(struct view *v, uint64_t dir, const char *name, size_t len)
{
	struct dentry *n = find(v, node_at(v, dir), name, len);

	if (!n)
		return -ENOENT;
	if (n->node->n_names)
		return -ENOTEMPTY;
	drop(v, n);
	return 0;
}

uint64_t view_known(struct view *v, uint64_t dir, const char *name, size_t len)
{
	return 0;
}

bool view_was_told(struct view *v, uint64_t node)
{
	return false;
}

int view_rename(struct view *v, uint64_t odir, const char *oname, size_t olen, uint64_t ndir,
		const char *nname, size_t nlen, unsigned flags)
{
	struct dentry *from = find(v, node_at(v, odir), oname, olen);
	struct dentry *to = find(v, node_at(v, ndir), nname, nlen);
	int r;

	if (flags & ~(unsigned)RENAME_NOREPLACE)
		return -EINVAL;
	if (!from)
		return -ENOENT;
	if (to && (flags & RENAME_NOREPLACE))
		return -EEXIST;
	if (to && to->node->n_names)
		return -ENOTEMPTY;
	if (to && to->node == from->node)
		return 0;
	if (to)
		drop(v, to);
	r = add_name(v, node_at(v, ndir), nname, nlen, from->node);
	if (r == 0)
		del_name(v, from);
	return r;
}

int view_readdir(struct view *v, uint64_t dir, uint64_t cookie, bool plus,
		 int (*fn)(void *arg, const char *name, size_t len, const struct entry *e,
			   unsigned type, uint64_t next_cookie),
		 void *arg)
{
	struct node *d = node_at(v, dir);
	struct entry self = { .inode = d->inode };
	int r = 0;

	if (cookie == 0)
		r = fn(arg, ".", 1, &self, DT_DIR, 1);
	if (!r && cookie <= 1)
		r = fn(arg, "..", 2, &self, DT_DIR, 2);
	for (uint64_t at = cookie > 2 ? cookie - 2 : 0; !r && at < d->n_list; at++) {
		struct dentry *n = d->list[at];
		struct entry e;

		if (!n)
			continue;
		e = (struct entry){ .node = plus ? node_id(v, n->node) : 0,
				    .inode = n->node->inode };
		r = fn(arg, n->text, n->len, &e, IFTODT(e.inode.mode), at + 3);
		if (r == 0 && plus)
			n->node->lookups++;
	}
	return 0;
}

/* ---- attributes ---- */

int view_getattr(struct view *v, uint64_t node, struct inode *ret)
{
	*ret = node_at(v, node)->inode;
	return 0;
}

static int resize(struct node *n, uint64_t size)
{
	if (size > n->cap) {
		size_t cap = MAX((size_t)size, n->cap * 2);
		uint8_t *data = realloc(n->data, cap);

		if (!data)
			return -ENOSPC;
		n->data = data;
		n->cap = cap;
	}
	if (size > n->inode.size)
		memset(n->data + n->inode.size, 0, size - n->inode.size);
	n->inode.size = n->inode.bytes = size;
	return 0;
}

int view_setattr(struct view *v, uint64_t node, const struct fs_set *set, struct inode *ret)
{
	struct node *n = node_at(v, node);
	struct inode *i = &n->inode;
	struct timens t = now();

	if ((set->mask & SET_SIZE) && resize(n, set->size) < 0)
		return -ENOSPC;
	if (set->mask & SET_MODE)
		i->mode = (i->mode & S_IFMT) | (set->mode & 07777);
	if (set->mask & SET_UID)
		i->uid = set->uid;
	if (set->mask & SET_GID)
		i->gid = set->gid;
	if (set->mask & (SET_ATIME | SET_ATIME_NOW))
		i->atime = set->mask & SET_ATIME ? set->atime : t;
	if (set->mask & (SET_MTIME | SET_MTIME_NOW | SET_SIZE))
		i->mtime = set->mask & SET_MTIME ? set->mtime : t;
	i->ctime = t;
	*ret = *i;
	return 0;
}

int view_readlink(struct view *v, uint64_t node, char *buf, size_t cap, size_t *ret_len)
{
	struct node *n = node_at(v, node);

	*ret_len = MIN(cap, (size_t)n->inode.size);
	memcpy(buf, n->data, *ret_len);
	return 0;
}

int view_getxattr(struct view *v, uint64_t node, const char *name, void *buf, size_t cap,
		  size_t *ret_len)
{
	return -ENODATA;
}

int view_setxattr(struct view *v, uint64_t node, const char *name, const void *value, size_t len,
		  int flags)
{
	return -EOPNOTSUPP;
}

int view_listxattr(struct view *v, uint64_t node, char *buf, size_t cap, size_t *ret_len)
{
	*ret_len = 0;
	return 0;
}

int view_removexattr(struct view *v, uint64_t node, const char *name)
{
	return -ENODATA;
}

int view_stat(struct view *v, struct view_stats *ret)
{
	*ret = (struct view_stats){ .bytes_free = UINT64_C(1) << 40 };
	return 0;
}

/* ---- data ---- */

int view_map(struct view *v, uint64_t node, uint64_t off, uint64_t len, struct segments *ret)
{
	struct node *n = node_at(v, node);

	ret->n = 0;
	ret->len = off < n->inode.size ? MIN(len, n->inode.size - off) : 0;
	/* The bytes' address, in the place of what is somebody's blob elsewhere. */
	ret->seg[0].ref.blob = ret->len ? (struct blob *)(n->data + off) : NULL;
	return 0;
}

int segments_read(struct store *store, const struct segments *s, void *buf)
{
	if (s->len)
		memcpy(buf, s->seg[0].ref.blob, s->len);
	return 0;
}

int segments_lend(struct store *store, struct segments *s, void *buf,
		  struct iovec iov[static SEGMENTS_MAX], int *ret_n)
{
	iov[0] = (struct iovec){ s->seg[0].ref.blob, s->len };
	*ret_n = s->len > 0;
	return 0;
}

void segments_release(struct segments *s)
{
}

int view_write(struct view *v, uint64_t node, uint64_t off, const void *buf, size_t len,
	       bool kill_priv, const struct past_cache *past)
{
	struct node *n = node_at(v, node);

	if (off + len > n->inode.size && resize(n, off + len) < 0)
		return -ENOSPC;
	memcpy(n->data + off, buf, len);
	n->inode.mtime = n->inode.ctime = now();
	return 0;
}

bool view_is_written(struct view *v, uint64_t node)
{
	return false;
}

void view_hears(struct view *v, int32_t thread)
{
}

int view_fallocate(struct view *v, uint64_t node, int mode, uint64_t off, uint64_t len)
{
	struct node *n = node_at(v, node);
	uint64_t end = MIN(off + len, n->inode.size);

	if (mode & ~(FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE))
		return -EOPNOTSUPP;
	if ((mode & FALLOC_FL_PUNCH_HOLE) && off < end)
		memset(n->data + off, 0, end - off);
	if (!(mode & FALLOC_FL_KEEP_SIZE) && off + len > n->inode.size)
		return resize(n, off + len);
	return 0;
}

int view_seek(struct view *v, uint64_t node, uint64_t off, int whence, uint64_t *ret_off)
{
	struct node *n = node_at(v, node);

	if (off >= n->inode.size)
		return -ENXIO;
	*ret_off = whence == SEEK_HOLE ? n->inode.size : off;
	return 0;
}

int view_hole(struct view *v, uint64_t node, uint64_t off, uint64_t *ret_from, uint64_t *ret_to)
{
	return ABSENT; /* as view_seek says */
}

bool view_read_only(const struct view *v)
{
	return false;
}

int view_copy_range(struct view *v, uint64_t src, uint64_t src_off, uint64_t dst, uint64_t dst_off,
		    uint64_t len, uint64_t *ret_len)
{
	struct node *from = node_at(v, src), *to = node_at(v, dst);
	int r = 0;

	len = src_off < from->inode.size ? MIN(len, from->inode.size - src_off) : 0;
	if (len && dst_off + len > to->inode.size)
		r = resize(to, dst_off + len); /* it may be the same file: then its bytes move */
	if (r == 0 && len)
		memmove(to->data + dst_off, from->data + src_off, len);
	*ret_len = len;
	return r;
}

int view_sync(struct view *v)
{
	return 0;
}

/* ---- what the adapter wants of a view besides ---- */

void view_tidy(struct view *v)
{
}

void view_set_kernel(struct view *v, const struct view_kernel *k)
{
}

/* Nothing is remembered beyond this process. */
struct memo *view_memo(struct view *v)
{
	return NULL;
}

void memo_request_begin(struct memo *m, uint64_t unique, bool resent)
{
}

void memo_request_end(void)
{
}

void memo_request_is_new(struct memo *m)
{
}

void memo_tells(struct memo *m, bool begins)
{
}

struct store *view_store(struct view *v)
{
	return NULL;
}

static void print_note(void *arg, const char *text)
{
	fprintf(stderr, "floor: %s\n", text);
}

const struct noter *store_noter(struct store *s)
{
	static const struct noter noter = { .fn = print_note };

	return &noter;
}

void view_close(struct view *v)
{
}

/* Nothing is passed through (fs/pass.c): it is never mounted so. */
int pass_begin(struct mount *m)
{
	return -EOPNOTSUPP;
}

int pass_open(struct mount *m, uint64_t node, uint8_t *buf, int32_t *ret_id)
{
	return -ENOSYS;
}

void pass_release(struct mount *m, uint64_t node)
{
}

void pass_close(struct mount *m, int32_t id)
{
}

/* ---- the program ---- */

static void print_op(void *arg, const char *op, uint64_t count)
{
	bool *first = arg;

	printf("%s\"%s\": %" PRIu64, *first ? "" : ", ", op, count);
	*first = false;
}

int main(int argc, char **argv)
{
	/* They end with the process: at its end a sanitizer looks who still knows of them. */
	static struct view v;
	static struct readers *rs;
	static struct mount *m;
	const struct mount_hooks hooks = { .arg = NULL };
	const struct cred cred = { .uid = getuid(), .gid = getgid() };
	char *end = argc == 2 ? argv[1] : (char *)"";
	long fd = argc == 2 ? strtol(argv[1], &end, 10) : -1;
	int r;

	if (fd < 0 || *end) {
		fprintf(stderr, "usage: floor FD (a descriptor of a FUSE mount)\n");
		return 2;
	}
	v.names = calloc(BUCKETS, sizeof(*v.names));
	v.root = node_new(&v, S_IFDIR | 0755, &cred);
	if (!v.names || !v.root || readers_new(1, NULL, &rs) < 0) {
		fprintf(stderr, "floor: out of memory\n");
		return 1;
	}
	v.root->lookups = 1;
	v.root->parent = v.root;
	r = mount_start(rs, (int)fd, &v, 0, &hooks, &m);
	if (r < 0) {
		fprintf(stderr, "floor: serving: %s\n", err_str(r));
		return 1;
	}
	for (int c = getchar(); c != EOF; c = getchar()) {
		bool first = true;

		if (c != '\n')
			continue;
		putchar('{');
		mount_ops(m, print_op, &first);
		puts("}");
		fflush(stdout);
	}
	return 0; /* the descriptor goes, and the mount with it */
}
