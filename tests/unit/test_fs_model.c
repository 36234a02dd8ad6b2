/* SPDX-License-Identifier: Apache-2.0 */

/*
 * timeout: 600
 *
 * The file tree model against the kernel: random operations on a tree of ours and on a real
 * directory must have the same outcome, and leave the same tree. In between our tree is frozen,
 * some of the frozen states are sealed, and each must still be what it was at the end.
 *
 * A failure prints its seed; PLYFS_TEST_SEED=n runs that one alone.
 */

#include <dirent.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/xattr.h>

#include "store/hash.h"
#include "tests/unit/fs_fixture.h"

enum {
	STEPS = 12000,
	COMPARE_EVERY = 400,
	FILE_MAX = 500 * 1024,
	FROZEN_MAX = 24,
	ORPHANS_MAX = 8,
};

static uint64_t seed;
static unsigned step;
static uint64_t rng;
static int real_fd = -1; /* the real directory */
static bool real_counts_subdirs, real_has_xattr, real_has_whiteout, am_root;
static uint8_t *bytes, *bytes2;

#define same(ours, theirs)                                                                     \
	do {                                                                                   \
		long long ours_ = (long long)(ours), theirs_ = (long long)(theirs);            \
		ck_assert_msg(ours_ == theirs_, "seed %llu step %u: %s is %lld, %s is %lld",   \
			      (unsigned long long)seed, step, #ours, ours_, #theirs, theirs_); \
	} while (0)

static uint32_t dice(uint32_t n)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return (uint32_t)(rng >> 20) % n;
}

/* ---- paths ---- */

struct where {
	char path[128];
	uint64_t dir; /* parent in our tree */
	const char *name;
	size_t len;
};

/*
 * A random path of few names, so that operations meet. 0: its parent was looked up in our tree;
 * -errno when that failed. ABSENT: it goes through a symlink, which only the kernel would follow.
 */
static int pick(struct where *w)
{
	static const char *const names[] = { "a", "b", "c", "long name with spaces", "e" };
	unsigned depth = 1 + dice(1 + dice(4));
	struct inode i;
	int r = 0;

	w->path[0] = 0;
	for (unsigned n = 0; n < depth; n++) {
		if (n)
			strcat(w->path, "/");
		w->name = w->path + strlen(w->path);
		strcat(w->path, names[dice(n == depth - 1 ? 5 : 3)]);
	}
	w->len = strlen(w->name);

	ck_assert_int_eq(fs_stat(&fs, ROOT_INO, &i), 0);
	for (char *p = w->path; p < w->name; p += strcspn(p, "/") + 1) {
		r = fs_lookup(&fs, i.ino, p, strcspn(p, "/"), &i);
		if (r < 0)
			return r;
		if (S_ISLNK(i.mode))
			return ABSENT;
		if (!inode_is_dir(&i))
			return -ENOTDIR;
	}
	w->dir = i.ino;
	return 0;
}

/* The inode at a random path that is of this type; 0 when a few tries met none. */
static uint64_t pick_type(struct where *w, uint32_t type)
{
	struct inode i;

	for (unsigned n = 0; n < 16; n++) {
		if (pick(w) != 0 || fs_lookup(&fs, w->dir, w->name, w->len, &i) != 0)
			continue;
		if ((i.mode & S_IFMT) == type)
			return i.ino;
	}
	return 0;
}

static int err(int ret)
{
	return ret < 0 ? -errno : 0;
}

/* Permission bits that never lock an ordinary user out of his own tree. */
static uint32_t some_mode(uint32_t must)
{
	return dice(01000) | must;
}

/* ---- one operation each ---- */

static uint64_t orphan[ORPHANS_MAX];

/* What is gone is purged at once or later. */
static void lost(const struct inode *i)
{
	unsigned n = dice(ORPHANS_MAX);

	if (i->ino == 0 || i->nlink > 0)
		return;
	if (orphan[n])
		same(fs_purge(&fs, orphan[n]), 0);
	orphan[n] = i->ino;
}

static void op_create(void)
{
	static const uint32_t types[] = { S_IFREG,  S_IFREG, S_IFREG, S_IFIFO,
					  S_IFSOCK, S_IFDIR, S_IFDIR, S_IFLNK };
	static const char *const targets[] = { "nowhere", "x/y/z", "none" };
	uint32_t type = types[dice(ARRAY_SIZE(types))];
	uint32_t mode = some_mode(type == S_IFDIR ? 0700 : 0600);
	char far[1500];
	struct where w;
	struct fs_new n = { .cred = { .uid = getuid(), .gid = getgid(), .umask = 022 } };
	struct inode i;
	int theirs, r = pick(&w);

	if (r == ABSENT)
		return;
	memset(far, 'f', sizeof(far));
	far[sizeof(far) - 1] = 0;
	n.target = dice(4) ? targets[dice(3)] : far;
	n.dir = w.dir;
	n.name = w.name;
	n.len = w.len;
	n.mode = type | mode;
	if (r == 0)
		r = fs_create(&fs, &n, &i);

	if (type == S_IFDIR)
		theirs = err(mkdirat(real_fd, w.path, mode));
	else if (type == S_IFLNK)
		theirs = err(symlinkat(n.target, real_fd, w.path));
	else
		theirs = err(mknodat(real_fd, w.path, type | mode, 0));
	same(r, theirs);
}

static void op_unlink(void)
{
	struct inode gone;
	struct where w;
	int r = pick(&w);

	if (r == ABSENT)
		return;
	if (r == 0)
		r = fs_unlink(&fs, w.dir, w.name, w.len, &gone);
	same(r, err(unlinkat(real_fd, w.path, 0)));
	if (r == 0)
		lost(&gone);
}

static void op_rmdir(void)
{
	struct inode gone;
	struct where w;
	int r = pick(&w);

	if (r == ABSENT)
		return;
	if (r == 0)
		r = fs_rmdir(&fs, w.dir, w.name, w.len, &gone);
	same(r, err(unlinkat(real_fd, w.path, AT_REMOVEDIR)));
	if (r == 0)
		lost(&gone);
}

static void op_link(void)
{
	struct inode i, ret;
	struct where from, to;
	int r = pick(&from), r2 = pick(&to);

	if (r == ABSENT || r2 == ABSENT)
		return;
	if (r == 0)
		r = fs_lookup(&fs, from.dir, from.name, from.len, &i);
	if (r == 0)
		r = r2;
	if (r == 0)
		r = fs_link(&fs, i.ino, to.dir, to.name, to.len, &ret);
	same(r, err(linkat(real_fd, from.path, real_fd, to.path, 0)));
}

static void op_rename(void)
{
	static const unsigned all[] = {
		0, 0, 0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_EXCHANGE, RENAME_WHITEOUT
	};
	unsigned flags = all[dice(ARRAY_SIZE(all))];
	struct where from, to;
	struct inode gone;
	int r = pick(&from), r2 = pick(&to);

	if (r == ABSENT || r2 == ABSENT)
		return;
	if (flags == RENAME_WHITEOUT && !real_has_whiteout)
		flags = 0;
	r = r ? r : r2;
	if (r == 0)
		r = fs_rename(&fs, from.dir, from.name, from.len, to.dir, to.name, to.len, flags,
			      &gone);
	same(r, err(renameat2(real_fd, from.path, real_fd, to.path, flags)));
	if (r == 0)
		lost(&gone);
}

static void span(uint64_t size, uint64_t *off, uint64_t *len)
{
	static const uint32_t spans[] = { 20, 600, 5000, 70000, 300000 };
	uint32_t n = spans[dice(ARRAY_SIZE(spans))];

	*len = 1 + dice(n);
	*off = dice(3) == 0 ? size : dice(2) ? dice(n) : dice(FILE_MAX);
	if (dice(4) == 0)
		*off = *off / 4096 * 4096;
	if (dice(4) == 0)
		*len = *len / 4096 * 4096 + 4096;
	if (*off + *len > FILE_MAX)
		*off = dice(1000);
}

static int open_real(const char *path)
{
	int fd = openat(real_fd, path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);

	ck_assert_msg(fd >= 0, "seed %llu step %u: '%s' cannot be opened: %s",
		      (unsigned long long)seed, step, path, strerror(errno));
	return fd;
}

static void op_write(void)
{
	struct where w;
	uint64_t off, len, ino = pick_type(&w, S_IFREG);
	int fd;

	if (!ino)
		return;
	span(fx_stat(ino).size, &off, &len);
	fx_fill(bytes, len, rng);
	same(fs_write(&fs, ino, off, bytes, len, false), 0);
	fd = open_real(w.path);
	same(pwrite(fd, bytes, len, (off_t)off), len);
	(void)close(fd);
}

static void op_truncate(void)
{
	struct where w;
	uint64_t off, len, ino = pick_type(&w, S_IFREG);
	struct fs_set set = { .mask = SET_SIZE };
	struct inode i;
	int fd;

	if (!ino)
		return;
	span(fx_stat(ino).size, &off, &len);
	set.size = off;
	same(fs_setattr(&fs, ino, &set, &i), 0);
	fd = open_real(w.path);
	same(ftruncate(fd, (off_t)off), 0);
	(void)close(fd);
}

/* The kernel's side is done with plain reads and writes: not every filesystem knows every mode. */
static void op_fallocate(void)
{
	static const int modes[] = { FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
				     FALLOC_FL_ZERO_RANGE, FALLOC_FL_COLLAPSE_RANGE,
				     FALLOC_FL_INSERT_RANGE, 0 };
	int mode = modes[dice(ARRAY_SIZE(modes))], r, fd;
	struct where w;
	uint64_t off, len, size, after, ino = pick_type(&w, S_IFREG);

	if (!ino)
		return;
	size = after = fx_stat(ino).size;
	span(size, &off, &len);
	if (mode == FALLOC_FL_COLLAPSE_RANGE || mode == FALLOC_FL_INSERT_RANGE) {
		off = off / 4096 * 4096;
		len = len / 4096 * 4096 + 4096;
	}
	if (mode == FALLOC_FL_INSERT_RANGE && size + len > FILE_MAX)
		return;
	r = fs_fallocate(&fs, ino, mode, off, len);

	fd = open_real(w.path);
	memset(bytes, 0, 2 * FILE_MAX);
	same(pread(fd, bytes, FILE_MAX, 0), size);
	if (mode == FALLOC_FL_COLLAPSE_RANGE) {
		same(r, off + len >= size ? -EINVAL : 0);
		if (r == 0) {
			memmove(bytes + off, bytes + off + len, size - off - len);
			after = size - len;
		}
	} else if (mode == FALLOC_FL_INSERT_RANGE) {
		same(r, off >= size ? -EINVAL : 0);
		if (r == 0) {
			memmove(bytes + off + len, bytes + off, size - off);
			memset(bytes + off, 0, len);
			after = size + len;
		}
	} else {
		same(r, 0);
		if (mode != 0 && off < size)
			memset(bytes + off, 0, MIN(len, size - off));
		if (!(mode & FALLOC_FL_KEEP_SIZE))
			after = MAX(size, off + len);
	}
	same(pwrite(fd, bytes, after, 0), after);
	same(ftruncate(fd, (off_t)after), 0);
	(void)close(fd);
}

static void op_copy(void)
{
	struct where from, to;
	uint64_t a = pick_type(&from, S_IFREG), b = pick_type(&to, S_IFREG);
	uint64_t src, dst, len, other, done = 0, want, size;
	int fd, r;

	if (!a || !b)
		return;
	size = fx_stat(a).size;
	span(size, &src, &len);
	span(fx_stat(b).size, &dst, &other);
	if (dst + len > FILE_MAX)
		return;
	r = fs_copy_range(&fs, a, src, &fs, b, dst, len, &done);
	want = src >= size ? 0 : MIN(len, size - src);
	if (a == b && want && src < dst + want && dst < src + want) {
		same(r, -EINVAL);
		return;
	}
	same(r, 0);
	same(done, want);
	fd = open_real(from.path);
	same(pread(fd, bytes, want, (off_t)src), want);
	(void)close(fd);
	fd = open_real(to.path);
	same(pwrite(fd, bytes, want, (off_t)dst), want);
	(void)close(fd);
}

static void op_setattr(void)
{
	struct where w;
	uint64_t ino = pick_type(&w, dice(2) ? S_IFREG : S_IFDIR);
	struct timespec t[2] = { { .tv_sec = dice(2000000000), .tv_nsec = dice(1000000000) },
				 { .tv_sec = dice(2000000000), .tv_nsec = dice(1000000000) } };
	struct fs_set set = {
		.mask = SET_ATIME | SET_MTIME,
		.atime = { t[0].tv_sec, (uint32_t)t[0].tv_nsec },
		.mtime = { t[1].tv_sec, (uint32_t)t[1].tv_nsec },
	};
	struct inode i;

	if (!ino)
		return;
	same(fs_setattr(&fs, ino, &set, &i), 0);
	same(utimensat(real_fd, w.path, t, 0), 0);
	i = fx_stat(ino);
	same(i.mtime.sec, t[1].tv_sec);
	same(i.mtime.nsec, t[1].tv_nsec);

	set = (struct fs_set){ .mask = SET_MODE,
			       .mode = some_mode(inode_is_dir(&i) ? 0700 : 0600) };
	if (am_root && dice(4) == 0) /* of others the kernel takes these bits at each write */
		set.mode |= dice(8) << 9;
	same(fs_setattr(&fs, ino, &set, &i), 0);
	same(fchmodat(real_fd, w.path, set.mode, 0), 0);
	if (am_root && dice(2)) {
		set = (struct fs_set){ .mask = SET_UID | SET_GID, .uid = dice(3), .gid = dice(3) };
		same(fs_setattr(&fs, ino, &set, &i), 0);
		same(fchownat(real_fd, w.path, set.uid, set.gid, AT_SYMLINK_NOFOLLOW), 0);
	}
}

static void op_xattr(void)
{
	static const char *const names[] = { "user.a", "user.b", "user.some longer name" };
	const char *name = names[dice(3)];
	struct where w;
	uint64_t ino = pick_type(&w, dice(2) ? S_IFREG : S_IFDIR);
	size_t len = dice(3) ? dice(100) : dice(1500);
	int flags = (int)dice(3), real;
	char path[8192];

	if (!ino || !real_has_xattr)
		return;
	snprintf(path, sizeof(path), "/proc/self/fd/%d/%s", real_fd, w.path);
	if (dice(3) == 0) {
		same(fs_removexattr(&fs, ino, name), err(lremovexattr(path, name)));
		return;
	}
	fx_fill(bytes, len, rng);
	real = err(lsetxattr(path, name, bytes, len, flags));
	if (real == -ENOSPC)
		return; /* ext4 gives all attributes of an inode one block; we have no such limit */
	same(fs_setxattr(&fs, ino, name, bytes, len, flags), real);
}

/* An unnamed file that gets a name; the kernel's side is a plain create. */
static void op_tmpfile(void)
{
	struct fs_new n = { .mode = S_IFREG | 0600, .cred = { .uid = getuid(), .gid = getgid() } };
	struct inode i;
	struct where w;
	int r = pick(&w), fd;

	if (r != 0)
		return;
	n.dir = w.dir;
	same(fs_tmpfile(&fs, &n, &i), 0);
	same(fs_write(&fs, i.ino, 0, "tmp", 3, false), 0);
	r = fs_link(&fs, i.ino, w.dir, w.name, w.len, &i);
	fd = openat(real_fd, w.path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
	same(r, err(fd));
	if (fd >= 0) {
		same(write(fd, "tmp", 3), 3);
		(void)close(fd);
	} else {
		lost(&i);
	}
}

/* ---- comparing ---- */

struct listed {
	unsigned n;
	char name[64][NAME_LEN_MAX + 1];
	uint64_t ino[64];
	unsigned type[64];
};

static int take(void *arg, const char *name, size_t len, uint64_t ino, unsigned type, uint64_t next)
{
	struct listed *l = arg;

	if (name[0] == '.')
		return 0;
	ck_assert_uint_lt(l->n, 64);
	memcpy(l->name[l->n], name, len);
	l->name[l->n][len] = 0;
	l->type[l->n] = type;
	l->ino[l->n++] = ino;
	return 0;
}

/* Which real inode is which of ours: hard links must agree. */
static struct {
	uint64_t ours, theirs;
} pair[4096];
static unsigned pairs;

static void compare_identity(uint64_t ours, uint64_t theirs)
{
	for (unsigned n = 0; n < pairs; n++)
		if (pair[n].ours == ours || pair[n].theirs == theirs) {
			same(pair[n].ours, ours);
			same(pair[n].theirs, theirs);
			return;
		}
	ck_assert_uint_lt(pairs, ARRAY_SIZE(pair));
	pair[pairs].ours = ours;
	pair[pairs++].theirs = theirs;
}

static void compare_xattrs(uint64_t ino, const char *path)
{
	char list[1024], proc[8192];
	ssize_t theirs;
	size_t ours, len;

	if (!real_has_xattr)
		return;
	snprintf(proc, sizeof(proc), "/proc/self/fd/%d/%s", real_fd, path);
	theirs = llistxattr(proc, list, sizeof(list));
	ck_assert_int_ge(theirs, 0);
	len = 0;
	for (char *p = list; p < list + theirs; p += strlen(p) + 1) {
		if (strncmp(p, "user.", 5) != 0)
			continue; /* what the system adds by itself */
		len += strlen(p) + 1;
		same(fs_getxattr(&fs, ino, p, bytes, FILE_MAX, &ours), 0);
		same(ours, lgetxattr(proc, p, bytes2, FILE_MAX));
		same(memcmp(bytes, bytes2, ours), 0);
	}
	same(fs_listxattr(&fs, ino, NULL, 0, &ours), 0);
	same(ours, len);
}

static void compare_file(const struct inode *i, const char *path)
{
	size_t n;
	int fd = open_real(path);

	same(fs_read(&fs, i->ino, 0, bytes, FILE_MAX * 2, &n), 0);
	same(n, i->size);
	same(pread(fd, bytes2, FILE_MAX * 2, 0), i->size);
	same(memcmp(bytes, bytes2, n), 0);
	(void)close(fd);
	fx_check_bytes(i->ino);
}

static void compare_dir(uint64_t dir, const char *path);

static void compare_one(uint64_t ino, const char *path)
{
	struct inode i = fx_stat(ino);
	struct stat st;
	size_t n;

	ck_assert_msg(fstatat(real_fd, path, &st, AT_SYMLINK_NOFOLLOW) == 0,
		      "seed %llu step %u: '%s' is not there", (unsigned long long)seed, step, path);
	same(i.mode, st.st_mode);
	if (!S_ISCHR(i.mode)) { /* a whiteout: ours belongs to the directory's owner */
		same(i.uid, st.st_uid);
		same(i.gid, st.st_gid);
	}
	if (!S_ISDIR(i.mode) || real_counts_subdirs)
		same(i.nlink, st.st_nlink);
	if (!S_ISDIR(i.mode))
		same(i.size, st.st_size);
	compare_identity(ino, st.st_ino);

	if (S_ISREG(i.mode)) {
		compare_file(&i, path);
		compare_xattrs(ino, path);
	} else if (S_ISLNK(i.mode)) {
		same(fs_readlink(&fs, ino, (char *)bytes, FILE_MAX, &n), 0);
		same(readlinkat(real_fd, path, (char *)bytes2, FILE_MAX), n);
		same(memcmp(bytes, bytes2, n), 0);
	} else if (S_ISDIR(i.mode)) {
		compare_xattrs(ino, path);
		compare_dir(ino, path);
	}
}

static void compare_dir(uint64_t dir, const char *path)
{
	_cleanup_free_ struct listed *l = calloc(1, sizeof(*l));
	struct dirent *d;
	unsigned theirs = 0;
	DIR *real;

	same(fs_readdir(&fs, dir, 0, take, l), 0);
	real = fdopendir(openat(real_fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	ck_assert_ptr_nonnull(real);
	while ((d = readdir(real)))
		theirs += d->d_name[0] != '.';
	(void)closedir(real);
	same(l->n, theirs);

	for (unsigned n = 0; n < l->n; n++) {
		char sub[4096];
		struct inode i;

		snprintf(sub, sizeof(sub), "%s/%s", path, l->name[n]);
		same(fs_lookup(&fs, dir, l->name[n], strlen(l->name[n]), &i), 0);
		same(i.ino, l->ino[n]);
		same(IFTODT(i.mode), l->type[n]);
		if (inode_is_dir(&i))
			same(i.parent, dir);
		compare_one(i.ino, sub);
	}
}

/* ---- invariants of model.h ---- */

static int count_name(void *arg, uint64_t parent, const char *name, size_t len)
{
	(*(unsigned *)arg)++;
	return 0;
}

static void check_invariants(void)
{
	struct key k = KEY_MIN;
	struct cursor c;
	int r;

	for (r = cursor_seek(&c, fs.tree, &k); r == 0; r = cursor_next(&c)) {
		unsigned names = 0;
		uint8_t flags;
		struct inode i;

		if (c.key.t != ITEM_INODE)
			continue;
		same(inode_decode(c.key.a, &c.val, &i), 0);
		same(fs_names(&fs, i.ino, count_name, &names), 0);
		if (!inode_is_dir(&i))
			same(names, i.nlink);
		else if (i.ino != ROOT_INO)
			same(names, i.nlink ? 1 : 0);
		same(orphan_get(&fs, i.ino, &flags), i.nlink ? ABSENT : 0);
		same(!!(i.flags & INODE_HAS_XATTR), fx_items(i.ino, ITEM_XATTR) > 0);
		if (S_ISREG(i.mode))
			fx_check_bytes(i.ino);
	}
	same(r, END);
}

/* ---- frozen states ---- */

static struct frozen {
	struct root *root;
	uint64_t digest;
} frozen[FROZEN_MAX];

/* Everything that a state says, whichever form its nodes and bytes have. */
static uint64_t digest(const struct fs *f)
{
	uint64_t h = 1;
	struct key k = KEY_MIN;
	struct cursor c;
	int r;

	for (r = cursor_seek(&c, f->tree, &k); r == 0; r = cursor_next(&c)) {
		struct inode i;
		size_t n;

		h = hash64(&c.key.a, 8, h);
		h = hash64(&c.key.b, 8, h + c.key.t);
		h = hash64(c.val.data, c.val.len, h);
		if (c.key.t != ITEM_INODE)
			continue;
		same(inode_decode(c.key.a, &c.val, &i), 0);
		if (!S_ISREG(i.mode))
			continue;
		same(fs_read(f, i.ino, 0, bytes, FILE_MAX * 2, &n), 0);
		h = hash64(bytes, n, h);
	}
	same(r, END);
	return h;
}

static void check_frozen(struct frozen *z)
{
	_cleanup_(root_unrefp) struct root *again = NULL;
	struct name name;
	struct fs f = fs;

	f.tree = fx_tree(z->root);
	same(digest(&f), z->digest);
	tree_free(f.tree);

	if (root_name(z->root, &name) == 0) { /* from its chunks */
		same(root_by_name(store_nodes(fx_store), &name, &again), 0);
		f.tree = fx_tree(again);
		same(digest(&f), z->digest);
		tree_free(f.tree);
	}
}

static void op_freeze(void)
{
	struct frozen *z = &frozen[dice(FROZEN_MAX)];

	if (dice(4))
		return;
	if (z->root) {
		check_frozen(z);
		root_unref(z->root);
	}
	z->digest = digest(&fs);
	z->root = fx_freeze();
	if (dice(2))
		same(root_seal(z->root), 0);
}

/* Goes on from a frozen state and back: what a restore does to the tree. */
static void op_reset(void)
{
	_cleanup_(root_unrefp) struct root *now = NULL;
	struct frozen *z = &frozen[dice(FROZEN_MAX)];

	if (!z->root || dice(8))
		return;
	now = fx_freeze();
	same(tree_reset(fs.tree, z->root), 0);
	same(digest(&fs), z->digest);
	(void)fx_try(ROOT_INO, "lost with the reset", S_IFREG | 0600, &(struct inode){ 0 });
	same(tree_reset(fs.tree, now), 0);
}

/* ---- the test ---- */

static void real_setup(void)
{
	char sub[] = "probe";
	struct stat st;
	int r;

	setup();
	(void)umask(022);
	am_root = geteuid() == 0;
	ck_assert_int_eq(mkdirat(fx.dir_fd, "real", 0755), 0);
	real_fd = openat(fx.dir_fd, "real", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	ck_assert_int_ge(real_fd, 0);

	/* What the filesystem below can do. */
	ck_assert_int_eq(mkdirat(real_fd, sub, 0755), 0);
	ck_assert_int_eq(fstat(real_fd, &st), 0);
	real_counts_subdirs = st.st_nlink == 3;
	ck_assert_int_eq(unlinkat(real_fd, sub, AT_REMOVEDIR), 0);
	real_has_xattr = fsetxattr(real_fd, "user.x", "1", 1, 0) == 0 &&
			 fremovexattr(real_fd, "user.x") == 0;
	r = openat(real_fd, sub, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	ck_assert_int_ge(r, 0);
	(void)close(r);
	r = renameat2(real_fd, sub, real_fd, "probe2", RENAME_WHITEOUT);
	real_has_whiteout = r == 0;
	(void)unlinkat(real_fd, sub, 0);
	(void)unlinkat(real_fd, "probe2", 0);

	bytes = calloc(1, 2 * FILE_MAX);
	bytes2 = calloc(1, 2 * FILE_MAX);
}

static void real_teardown(void)
{
	for (unsigned n = 0; n < FROZEN_MAX; n++)
		if (frozen[n].root) {
			check_frozen(&frozen[n]);
			root_unref(frozen[n].root);
		}
	(void)close(real_fd);
	teardown();
	free(bytes);
	free(bytes2);
}

static void match_owner(void)
{
	struct fs_set set = { .mask = SET_UID | SET_GID, .uid = getuid(), .gid = getgid() };
	struct stat st;
	struct inode i;

	ck_assert_int_eq(fstat(real_fd, &st), 0);
	set.gid = st.st_gid;
	ck_assert_int_eq(fs_setattr(&fs, ROOT_INO, &set, &i), 0);
}

START_TEST(behaves_as_the_kernel_does)
{
	static const struct {
		void (*fn)(void);
		unsigned weight;
	} ops[] = {
		{ op_create, 20 }, { op_unlink, 6 },  { op_rmdir, 3 },	  { op_link, 6 },
		{ op_rename, 12 }, { op_write, 20 },  { op_truncate, 6 }, { op_fallocate, 6 },
		{ op_copy, 6 },	   { op_setattr, 6 }, { op_xattr, 8 },	  { op_tmpfile, 2 },
		{ op_freeze, 6 },  { op_reset, 3 },
	};
	const char *only = getenv("PLYFS_TEST_SEED");
	unsigned total = 0;

	seed = (uint64_t)_i + 1;
	if (_i == 0) /* the first one is new each time, the others are always the same */
		ck_assert_int_eq(os_random(&seed, sizeof(seed)), 0);
	if (only) {
		if (_i > 0)
			return;
		seed = strtoull(only, NULL, 10);
	}
	rng = seed * 0x9e3779b97f4a7c15u | 1;
	for (size_t n = 0; n < ARRAY_SIZE(ops); n++)
		total += ops[n].weight;
	match_owner();

	for (step = 0; step < STEPS; step++) {
		unsigned d = dice(total), n = 0;

		while (d >= ops[n].weight)
			d -= ops[n++].weight;
		ops[n].fn();

		if (step % COMPARE_EVERY == COMPARE_EVERY - 1 || step == STEPS - 1) {
			pairs = 0;
			compare_one(ROOT_INO, ".");
			check_invariants();
		}
	}
}
END_TEST

int main(void)
{
	TCase *c = tcase_create("model");

	tcase_add_checked_fixture(c, real_setup, real_teardown);
	tcase_set_timeout(c, 500);
	tcase_add_loop_test(c, behaves_as_the_kernel_does, 0, 6);
	return run_case("fs_model", c);
}
