/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A directory of the system becomes a state.
 *
 * Invariants:
 *  1. The walk never leaves the tree it was given: every step is an openat() of one component with
 *     O_NOFOLLOW below a descriptor, so a symlink swapped in for a directory is an error of that
 *     entry, not a way out. Climbing back opens ".." and compares device and inode with what was
 *     there on the way down.
 *  2. Everything about an object is read from one descriptor on it. When the name means something
 *     else by the time it is opened, the entry is looked at anew.
 *  3. The same source gives the same state: names are walked in byte order, inode numbers follow
 *     the walk, and reading leaves the source's times alone (O_NOATIME). A symlink cannot be read
 *     without touching its atime, so that of symlinks is recorded as their mtime.
 *  4. Depth costs memory only: of the directories on the way down, the last FDS_KEPT are open, and
 *     no path longer than one component is ever handed to the kernel.
 */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

#include "env/transfer/transfer_internal.h"
#include "fs/format.h"
#include "store/base/os.h"
#include "store/chunk.h"

/*
 * Descriptors that the way down may keep: enough that ordinary trees never reopen a directory, few
 * beside the 1024 a process gets by default.
 */
#define FDS_KEPT 64

#define LIST_BYTES (64 * 1024) /* getdents(2): some 2,000 short names a call */
#define RETRIES 8 /* of an entry that changes its type under us: then it is a failure */

struct level {
	int fd; /* owned; -1 while it is too far up */
	uint64_t dev, src_ino;
	uint64_t ino; /* ours */
	struct inode inode;
	char *names;   /* owned: a type byte and a NUL-terminated name each */
	char **sorted; /* owned: to the type bytes */
	size_t n, next;
	size_t path_len;
};

struct importer {
	struct builder b;
	struct link_table links;
	struct level *levels; /* owned */
	size_t depth, cap;
	char *path; /* owned: of what is looked at, for messages */
	size_t path_cap;
	uint64_t mount; /* id of the mount the walk stays in */
	bool has_mount; /* the kernel tells mount ids (5.8 and newer) */
	uint64_t dev;
	uint64_t store_dev, store_ino; /* of the directory that the store is */
	char *buf;   /* owned: CHUNK_MAX for the writer */
	char *read;  /* owned: CHUNK_MAX */
	char *xattr; /* owned: 2 * XATTR_BYTES_MAX */
	char *list;  /* owned: LIST_BYTES */
};

static void level_release(struct level *l)
{
	if (l->fd >= 0)
		(void)close(l->fd); /* read only */
	free(l->names);
	free(l->sorted);
}

static void importer_release(struct importer *im)
{
	while (im->depth > 0)
		level_release(&im->levels[--im->depth]);
	free(im->levels);
	link_table_release(&im->links);
	free(im->path);
	free(im->buf);
	free(im->read);
	free(im->xattr);
	free(im->list);
	builder_release(&im->b);
}

static struct timens time_of(const struct statx_timestamp *t)
{
	return (struct timens){ .sec = t->tv_sec, .nsec = t->tv_nsec };
}

static void inode_of(const struct statx *sx, struct inode *ret)
{
	*ret = (struct inode){
		.mode = sx->stx_mode,
		.uid = sx->stx_uid,
		.gid = sx->stx_gid,
		.atime = time_of(&sx->stx_atime),
		.mtime = time_of(&sx->stx_mtime),
		.ctime = time_of(&sx->stx_ctime),
		.btime = time_of(sx->stx_mask & STATX_BTIME ? &sx->stx_btime : &sx->stx_mtime),
	};
	if (S_ISCHR(ret->mode) || S_ISBLK(ret->mode))
		ret->rdev = makedev(sx->stx_rdev_major, sx->stx_rdev_minor);
	if (S_ISREG(ret->mode))
		ret->size = sx->stx_size;
	if (S_ISDIR(ret->mode))
		ret->size = BLOCK_BYTES;
	if (S_ISLNK(ret->mode))
		ret->atime = ret->mtime; /* invariant 3 */
}

static int look(int fd, struct statx *ret)
{
	/* A mount id is answered by kernels that know it, ignored by others. */
	const unsigned mask = STATX_BASIC_STATS | STATX_BTIME | STATX_MNT_ID;

	return statx(fd, "", AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, mask, ret) < 0
		       ? -errno
		       : 0;
}

static bool is_other_mount(const struct importer *im, const struct statx *sx)
{
	if (im->has_mount && (sx->stx_mask & STATX_MNT_ID))
		return sx->stx_mnt_id != im->mount;
	return S_ISDIR(sx->stx_mode) && makedev(sx->stx_dev_major, sx->stx_dev_minor) != im->dev;
}

/* What it reads would grow while it is read, and double with each import. */
static bool is_own_store(const struct importer *im, const struct statx *sx)
{
	return S_ISDIR(sx->stx_mode) && sx->stx_ino == im->store_ino &&
	       makedev(sx->stx_dev_major, sx->stx_dev_minor) == im->store_dev;
}

/* Opens one component without following, without side effects, and without touching its times. */
static int open_entry(int dir_fd, const char *name, unsigned type, int *ret_fd)
{
	int flags = O_NOFOLLOW | O_CLOEXEC, fd;

	if (type == DT_REG)
		flags |= O_RDONLY | O_NONBLOCK | O_NOCTTY | O_NOATIME;
	else if (type == DT_DIR)
		flags |= O_RDONLY | O_DIRECTORY | O_NOATIME;
	else
		flags |= O_PATH;

	do
		fd = openat(dir_fd, name, flags);
	while (fd < 0 && errno == EINTR);
	if (fd < 0 && errno == EPERM && (flags & O_NOATIME)) /* not ours: it has to be touched */
		fd = openat(dir_fd, name, flags & ~O_NOATIME);
	if (fd < 0)
		return -errno;
	*ret_fd = fd;
	return 0;
}

/*
 * XFS shows root each ACL once more, as it has it on disk. Kept, that would be the ACL again
 * wherever it is set on an XFS, whatever has become of the ACL itself. (attr(1)'s xattr.conf has
 * it skipped as well.)
 */
static bool is_xfs_acl(const char *name)
{
	return strcmp(name, "trusted.SGI_ACL_FILE") == 0 ||
	       strcmp(name, "trusted.SGI_ACL_DEFAULT") == 0;
}

/* fd reads attributes unless it was opened with O_PATH; then it is reached through /proc. */
static int copy_xattrs(struct importer *im, int fd, bool is_path_fd, uint64_t ino)
{
	char at[sizeof("/proc/self/fd/") + 11], *names = im->xattr;
	char *value = im->xattr + XATTR_BYTES_MAX;
	ssize_t len;
	int r;

	snprintf(at, sizeof(at), "/proc/self/fd/%d", fd);
	len = is_path_fd ? listxattr(at, names, XATTR_BYTES_MAX)
			 : flistxattr(fd, names, XATTR_BYTES_MAX);
	if (len < 0 && (errno == EOPNOTSUPP || errno == ENOSYS))
		return 0;
	if (len < 0)
		return talk_fail(&im->b.talk, -errno, "listing the attributes of '%s'",
				 path_shown(im->path));

	for (ssize_t i = 0; i < len; i += (ssize_t)strlen(names + i) + 1) {
		const char *name = names + i;
		ssize_t n;

		if (is_xfs_acl(name))
			continue;
		n = is_path_fd ? getxattr(at, name, value, XATTR_BYTES_MAX)
			       : fgetxattr(fd, name, value, XATTR_BYTES_MAX);
		if (n < 0 && (errno == ENODATA || errno == EOPNOTSUPP))
			continue; /* removed meanwhile; listed, but not to be had */
		if (n < 0)
			return talk_fail(&im->b.talk, -errno, "reading attribute '%s' of '%s'",
					 name, path_shown(im->path));
		r = fs_setxattr(&im->b.fs, ino, name, value, (size_t)n, 0);
		if (r == -EOPNOTSUPP || r == -EINVAL) {
			talk_skip(&im->b.talk, "attribute '%s' of '%s' cannot be kept", name,
				  path_shown(im->path));
			continue;
		}
		if (r < 0)
			return talk_fail(&im->b.talk, r, "attribute '%s' of '%s'", name,
					 path_shown(im->path));
	}
	return 0;
}

/*
 * Data up to the size that was recorded: what was added since is not looked at, what went is a
 * hole.
 */
static int copy_data(struct importer *im, int fd, const struct inode *i)
{
	struct writer w = { .b = &im->b, .ino = i->ino, .buf = (uint8_t *)im->buf };
	uint64_t off = 0;
	int r;

	while (off < i->size) {
		off_t from, to;

		from = lseek(fd, (off_t)off, SEEK_DATA);
		if (from < 0 && errno == ENXIO)
			break; /* nothing but a hole to the end, or it has become shorter */
		if (from < 0 && errno != EINVAL)
			return -errno;
		to = from < 0 ? -1 : lseek(fd, from, SEEK_HOLE);
		if (from < 0) /* a filesystem without such seeks */
			from = (off_t)off;
		if (to < 0 || (uint64_t)to > i->size)
			to = (off_t)i->size;
		if (to <= from)
			break;

		for (off = (uint64_t)from; off < (uint64_t)to;) {
			ssize_t n =
				pread(fd, im->read, MIN((uint64_t)to - off, CHUNK_MAX), (off_t)off);

			if (n < 0 && errno == EINTR)
				continue;
			if (n < 0)
				return -errno;
			if (n == 0)
				return writer_flush(&w); /* it has become shorter */
			r = writer_put(&w, off, im->read, (size_t)n);
			if (r < 0)
				return r;
			off += (size_t)n;
			r = talk_cancelled(&im->b.talk);
			if (r < 0)
				return r;
		}
	}
	return writer_flush(&w);
}

static int import_file(struct importer *im, int fd, const struct statx *sx, const struct inode *i)
{
	struct stat after;
	int r;

	if (i->size == 0)
		return 0;
	r = copy_data(im, fd, i);
	if (r < 0)
		return r == -ERR_CANCELLED ? r
					   : talk_fail(&im->b.talk, r, "reading '%s'", im->path);

	if (fstat(fd, &after) < 0)
		return talk_fail(&im->b.talk, -errno, "looking at '%s'", im->path);
	if ((uint64_t)after.st_size != sx->stx_size ||
	    after.st_mtim.tv_sec != sx->stx_mtime.tv_sec ||
	    (uint32_t)after.st_mtim.tv_nsec != sx->stx_mtime.tv_nsec)
		talk_warn(&im->b.talk, "'%s' changed while it was read", im->path);
	return 0;
}

/* ---- the way down and up ---- */

static int list_dir(struct importer *im, struct level *l)
{
	size_t len = 0, cap = 0, n = 0;

	for (;;) {
		ssize_t got = getdents64(l->fd, im->list, LIST_BYTES);

		if (got < 0)
			return talk_fail(&im->b.talk, -errno, "reading directory '%s'",
					 path_shown(im->path));
		if (got == 0)
			break;
		for (ssize_t at = 0; at < got;) {
			const struct dirent64 *d = (const struct dirent64 *)(im->list + at);
			size_t name_len = strlen(d->d_name);

			at += d->d_reclen;
			if (!name_is_plain(d->d_name, name_len))
				continue; /* "." and ".." */
			if (len + name_len + 2 > cap) {
				size_t bigger = MAX(2 * cap, (size_t)4096);
				char *p = realloc(l->names, bigger);

				if (!p)
					return -ENOMEM;
				l->names = p;
				cap = bigger;
			}
			l->names[len] = (char)d->d_type;
			memcpy(l->names + len + 1, d->d_name, name_len + 1);
			len += name_len + 2;
			n++;
		}
	}

	l->sorted = malloc(MAX(n, (size_t)1) * sizeof(*l->sorted));
	if (!l->sorted)
		return -ENOMEM;
	for (size_t at = 0; at < len; at += strlen(l->names + at + 1) + 2)
		l->sorted[l->n++] = l->names + at;
	return 0;
}

static int entry_cmp(const void *x, const void *y)
{
	return strcmp(*(char *const *)x + 1, *(char *const *)y + 1);
}

/* Takes fd. */
static int go_down(struct importer *im, int *fd, const struct statx *sx, const struct inode *i,
		   bool stays_out)
{
	struct level *l;
	int r;

	r = os_grow(&im->levels, &im->cap, im->depth + 1, sizeof(*im->levels));
	if (r < 0)
		return r;
	l = &im->levels[im->depth++];
	*l = (struct level){
		.fd = TAKE_FD(*fd),
		.dev = makedev(sx->stx_dev_major, sx->stx_dev_minor),
		.src_ino = sx->stx_ino,
		.ino = i->ino,
		.inode = *i,
		.path_len = strlen(im->path),
	};
	if (!stays_out) {
		r = list_dir(im, l);
		if (r < 0)
			return r;
		qsort(l->sorted, l->n, sizeof(*l->sorted), entry_cmp);
	}

	/* Invariant 4. */
	if (im->depth > FDS_KEPT) {
		struct level *far = &im->levels[im->depth - 1 - FDS_KEPT];

		if (far->fd >= 0)
			(void)close(far->fd); /* read only */
		far->fd = -1;
	}
	return 0;
}

static int go_up(struct importer *im)
{
	struct level *l = &im->levels[im->depth - 1];
	struct level *up = im->depth > 1 ? l - 1 : NULL;
	struct statx sx;
	int r;

	if (up && up->fd < 0) { /* invariant 1 */
		r = open_entry(l->fd, "..", DT_DIR, &up->fd);
		if (r == 0)
			r = look(up->fd, &sx);
		if (r == 0 && (makedev(sx.stx_dev_major, sx.stx_dev_minor) != up->dev ||
			       sx.stx_ino != up->src_ino))
			r = -ERR_SOURCE;
		im->path[l->path_len] = '\0';
		if (r < 0)
			return talk_fail(&im->b.talk, r,
					 "directory '%s' was moved while it was read", im->path);
	}
	level_release(l);
	im->depth--;
	return 0;
}

/* AGAIN: it was something else by the time it was opened. ABSENT: it is gone. */
static int open_as(struct importer *im, const struct level *l, const char *name, unsigned *type,
		   int *ret_fd, struct statx *ret)
{
	int r;

	if (*type == DT_UNKNOWN) {
		struct stat st;

		if (fstatat(l->fd, name, &st, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT) < 0)
			return errno == ENOENT ? ABSENT : -errno;
		*type = (unsigned)IFTODT(st.st_mode);
	}
	r = open_entry(l->fd, name, *type, ret_fd);
	if (r == -ENOENT)
		return ABSENT;
	if (r == -ELOOP || r == -ENOTDIR || r == -ENXIO)
		return AGAIN; /* a symlink, no directory, a socket now */
	if (r < 0)
		return r;
	r = look(*ret_fd, ret);
	if (r < 0)
		return r;
	if ((unsigned)IFTODT(ret->stx_mode) == *type)
		return 0;
	(void)close(TAKE_FD(*ret_fd)); /* read only */
	return AGAIN;
}

static int import_entry(struct importer *im)
{
	struct level *l = &im->levels[im->depth - 1];
	const char *entry = l->sorted[l->next++], *name = entry + 1;
	unsigned type = (unsigned char)entry[0];
	_cleanup_close_ int fd = -1;
	char target[TARGET_MAX + 1];
	struct statx sx;
	uint64_t known;
	struct inode i;
	bool foreign, own;
	int r;

	r = path_put(&im->path, &im->path_cap, l->path_len, name);
	if (r < 0)
		return r;

	r = open_as(im, l, name, &type, &fd, &sx);
	for (int n = 0; r == AGAIN && n < RETRIES; n++) {
		type = DT_UNKNOWN;
		r = open_as(im, l, name, &type, &fd, &sx);
	}
	if (r == ABSENT) {
		talk_skip(&im->b.talk, "'%s' vanished while the tree was read", im->path);
		return 0;
	}
	if (r == AGAIN)
		return talk_fail(&im->b.talk, -ERR_SOURCE,
				 "'%s' is replaced again and again while the tree is read",
				 im->path);
	if (r < 0)
		return talk_fail(&im->b.talk, r, "opening '%s'", im->path);

	foreign = is_other_mount(im, &sx);
	if (foreign && !S_ISDIR(sx.stx_mode)) {
		talk_skip(&im->b.talk, "'%s' is another mount", im->path);
		return 0;
	}
	if (foreign)
		talk_skip(&im->b.talk, "'%s' is another mount: its content stays out", im->path);
	own = !foreign && is_own_store(im, &sx);
	if (own)
		talk_skip(&im->b.talk, "'%s' is the store itself: its content stays out", im->path);

	inode_of(&sx, &i);
	if (S_ISREG(i.mode) && i.size > (uint64_t)FILE_SIZE_MAX)
		return talk_fail(&im->b.talk, -EFBIG, "'%s'", im->path);

	known = !S_ISDIR(i.mode) && sx.stx_nlink > 1
			? link_table_get(&im->links, makedev(sx.stx_dev_major, sx.stx_dev_minor),
					 sx.stx_ino)
			: 0;
	if (known) {
		r = fs_add_link(&im->b.fs, l->ino, name, strlen(name), known);
		return r < 0 ? talk_fail(&im->b.talk, r, "'%s'", im->path) : 0;
	}

	if (S_ISLNK(i.mode)) {
		ssize_t n = readlinkat(fd, "", target, sizeof(target));

		if (n < 0 || n > TARGET_MAX)
			return talk_fail(&im->b.talk, n < 0 ? -errno : -ENAMETOOLONG,
					 "reading the link '%s'", im->path);
		target[n] = '\0';
		i.size = (uint64_t)n;
	}
	r = builder_add(&im->b, l->ino, name, strlen(name), &i, S_ISLNK(i.mode) ? target : NULL);
	if (r < 0)
		return talk_fail(&im->b.talk, r, "'%s'", im->path);
	if (!S_ISDIR(i.mode) && sx.stx_nlink > 1) {
		r = link_table_put(&im->links, makedev(sx.stx_dev_major, sx.stx_dev_minor),
				   sx.stx_ino, i.ino);
		if (r < 0)
			return r;
	}
	if (S_ISREG(i.mode)) {
		r = import_file(im, fd, &sx, &i);
		if (r < 0)
			return r;
	}
	r = copy_xattrs(im, fd, !S_ISREG(i.mode) && !S_ISDIR(i.mode), i.ino);
	if (r < 0)
		return r;
	r = builder_done(&im->b, &i, false);
	if (r < 0)
		return r;
	return S_ISDIR(i.mode) ? go_down(im, &fd, &sx, &i, foreign || own) : 0;
}

static int import_top(struct importer *im, int dir_fd)
{
	_cleanup_close_ int fd = -1;
	struct statx sx;
	struct inode i;
	int r;

	/* A description of its own: getdents moves the caller's position otherwise. */
	r = open_entry(dir_fd, ".", DT_DIR, &fd);
	if (r == 0)
		r = look(fd, &sx);
	if (r < 0)
		return talk_fail(&im->b.talk, r, "opening the directory to import");
	im->dev = makedev(sx.stx_dev_major, sx.stx_dev_minor);
	im->has_mount = sx.stx_mask & STATX_MNT_ID;
	im->mount = sx.stx_mnt_id;

	inode_of(&sx, &i);
	i.ino = ROOT_INO;
	r = copy_xattrs(im, fd, false, ROOT_INO);
	if (r < 0)
		return r;
	r = builder_done(&im->b, &i, true);
	if (r < 0)
		return r;
	return go_down(im, &fd, &sx, &i, false);
}

int import_directory(struct store *s, int dir_fd, const struct import_ops *ops,
		     struct root **ret_root, struct transfer_stats *ret)
{
	_cleanup_(importer_release) struct importer im = { 0 };
	struct statx sx;
	int r;

	r = builder_init(&im.b, s, ops);
	if (r < 0)
		return r;
	r = look(store_dir_fd(s), &sx);
	if (r < 0)
		return r;
	im.store_dev = makedev(sx.stx_dev_major, sx.stx_dev_minor);
	im.store_ino = sx.stx_ino;
	im.path_cap = 4096;
	im.path = calloc(im.path_cap, 1);
	im.buf = malloc(CHUNK_MAX);
	im.read = malloc(CHUNK_MAX);
	im.xattr = malloc(2 * XATTR_BYTES_MAX);
	im.list = malloc(LIST_BYTES);
	if (!im.path || !im.buf || !im.read || !im.xattr || !im.list)
		return -ENOMEM;

	r = import_top(&im, dir_fd);
	while (r == 0 && im.depth > 0) {
		struct level *l = &im.levels[im.depth - 1];

		r = l->next < l->n ? import_entry(&im) : go_up(&im);
	}
	if (r < 0)
		return r;
	return builder_finish(&im.b, ret_root, ret);
}
