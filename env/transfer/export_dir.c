/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A state becomes a directory of the system.
 *
 * Invariants:
 *  1. Nothing is written outside the target: every object is made by one component below a
 *     descriptor of its directory, with O_EXCL or a call that never replaces, and opened with
 *     O_NOFOLLOW. A symlink out of the state is made, never walked.
 *  2. Directories are 0700 while they are filled, so nobody else can put anything in our way; their
 *     owner, mode and times are set in a second walk, from the leaves up, when nothing will be
 *     added to them any more.
 *  3. The order for a file is: data, owner, attributes, mode, ACLs, times. A change of owner clears
 *     suid and capabilities; ordinary attributes want a writable file; an ACL is part of the mode;
 *     everything touches the times.
 *  4. Depth costs memory only: see import_dir.c.
 */

#include <errno.h>
#include <fcntl.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>

#include "env/transfer/transfer_internal.h"
#include "fs/format.h"
#include "store/base/os.h"

#define FDS_KEPT 64		 /* as import_dir.c */
#define COPY_BYTES (1024 * 1024) /* a write large enough that the call itself does not show */
#define PLENTY_BLOCKS 1024 /* of free space: an attribute that finds "no space" then hit a limit */

struct open_dir {
	int fd; /* owned; -1 while it is too far up */
	dev_t dev;
	ino_t ino;
};

struct exporter {
	struct talk talk;
	struct fs fs;
	struct tree *tree;     /* owned */
	int top_fd;	       /* borrowed */
	struct open_dir *dirs; /* owned: from the top to where the walk is */
	size_t depth, cap;
	struct link_table links; /* ino -> first path + 1 */
	char **paths;		 /* owned, each too: of the first names of hard links */
	size_t n_paths, paths_cap;
	bool root;   /* owners and devices may be made */
	char *buf;   /* owned: COPY_BYTES */
	char *xattr; /* owned: 2 * XATTR_BYTES_MAX */
	int file_fd; /* borrowed: the file that is being copied */
	uint64_t file_ino;
};

static void exporter_release(struct exporter *ex)
{
	while (ex->depth > 0)
		closep(&ex->dirs[--ex->depth].fd);
	free(ex->dirs);
	for (size_t i = 0; i < ex->n_paths; i++)
		free(ex->paths[i]);
	free(ex->paths);
	link_table_release(&ex->links);
	free(ex->buf);
	free(ex->xattr);
	tree_freep(&ex->tree);
}

static int here(const struct exporter *ex)
{
	return ex->dirs[ex->depth - 1].fd;
}

static int open_dir(int dir_fd, const char *name, int *ret_fd)
{
	int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	*ret_fd = fd;
	return 0;
}

/* Takes fd. */
static int push_dir(struct exporter *ex, int *fd)
{
	struct stat st;
	int r;

	if (fstat(*fd, &st) < 0)
		return -errno;
	r = os_grow(&ex->dirs, &ex->cap, ex->depth + 1, sizeof(*ex->dirs));
	if (r < 0)
		return r;
	if (ex->depth >= FDS_KEPT) {
		struct open_dir *far = &ex->dirs[ex->depth - FDS_KEPT];

		closep(&far->fd);
		far->fd = -1;
	}
	ex->dirs[ex->depth++] =
		(struct open_dir){ .fd = TAKE_FD(*fd), .dev = st.st_dev, .ino = st.st_ino };
	return 0;
}

/* Opens the directory above again, if need be; wants the one below still searchable. */
static int reopen_above(struct exporter *ex)
{
	struct open_dir *d = &ex->dirs[ex->depth - 1], *up = d - 1;
	struct stat st;
	int r;

	if (ex->depth < 2 || up->fd >= 0)
		return 0;
	r = open_dir(d->fd, "..", &up->fd);
	if (r < 0)
		return r;
	if (fstat(up->fd, &st) < 0)
		return -errno;
	return st.st_dev == up->dev && st.st_ino == up->ino ? 0 : -ESTALE;
}

static void pop_dir(struct exporter *ex)
{
	closep(&ex->dirs[--ex->depth].fd);
}

/* ---- attributes ---- */

struct xattr_arg {
	struct exporter *ex;
	const struct walk_entry *e;
	const char *at; /* the object's path below /proc/self/fd */
	bool acls;	/* this time ACLs, or everything else */
};

static int put_xattr(void *arg, const char *name, const void *value, size_t len)
{
	struct xattr_arg *a = arg;
	struct statvfs vfs;
	int r;

	if (xattr_is_acl(name) != a->acls || setxattr(a->at, name, value, len, 0) == 0)
		return 0;
	r = -errno;

	/* A filesystem's limit on attributes looks like a full disk. */
	if (r == -ENOSPC && statvfs(a->at, &vfs) == 0 && vfs.f_bavail > PLENTY_BLOCKS)
		r = -E2BIG;
	if (r == -EOPNOTSUPP || r == -EPERM || r == -E2BIG || r == -ERANGE || r == -EINVAL) {
		talk_skip(&a->ex->talk, "attribute '%s' of '%s' cannot be set here: %s", name,
			  path_shown(a->e->path), err_str(r));
		return 0;
	}
	return talk_fail(&a->ex->talk, r, "setting attribute '%s' of '%s'", name,
			 path_shown(a->e->path));
}

static int put_attributes(struct exporter *ex, const struct walk_entry *e, int fd)
{
	const struct inode *i = &e->inode;
	const struct timespec times[2] = {
		{ .tv_sec = i->atime.sec, .tv_nsec = i->atime.nsec },
		{ .tv_sec = i->mtime.sec, .tv_nsec = i->mtime.nsec },
	};
	char at[sizeof("/proc/self/fd/") + 11];
	struct xattr_arg a = { .ex = ex, .e = e, .at = at };
	int r;

	/*
	 * fd may be O_PATH, for which the f-calls fail; the link in /proc leads to the same object.
	 */
	snprintf(at, sizeof(at), "/proc/self/fd/%d", fd);
	if (ex->root && fchownat(fd, "", i->uid, i->gid, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) < 0)
		return talk_fail(&ex->talk, -errno, "setting the owner of '%s'",
				 path_shown(e->path));
	r = walk_xattrs(&ex->fs, i, ex->xattr, put_xattr, &a);
	if (r < 0)
		return r;
	if (!S_ISLNK(i->mode) && chmod(at, i->mode & 07777) < 0)
		return talk_fail(&ex->talk, -errno, "setting the mode of '%s'",
				 path_shown(e->path));
	a.acls = true;
	r = walk_xattrs(&ex->fs, i, ex->xattr, put_xattr, &a);
	if (r < 0)
		return r;
	if (utimensat(AT_FDCWD, at, times, 0) < 0)
		return talk_fail(&ex->talk, -errno, "setting the times of '%s'",
				 path_shown(e->path));
	return 0;
}

/* ---- hard links ---- */

static int remember(struct exporter *ex, const struct walk_entry *e)
{
	int r;

	if (e->inode.nlink < 2)
		return 0;
	r = os_grow(&ex->paths, &ex->paths_cap, ex->n_paths + 1, sizeof(*ex->paths));
	if (r < 0)
		return r;
	ex->paths[ex->n_paths] = strndup(e->path, e->path_len);
	if (!ex->paths[ex->n_paths])
		return -ENOMEM;
	ex->n_paths++;
	return link_table_put(&ex->links, 0, e->inode.ino, ex->n_paths);
}

/* Walks to the directory of the first name, component by component (invariant 1). */
static int make_link(struct exporter *ex, const struct walk_entry *e, const char *first)
{
	_cleanup_close_ int owned = -1;
	_cleanup_free_ char *copy = strdup(first);
	char *name = copy, *slash;
	int at = ex->top_fd;

	if (!copy)
		return -ENOMEM;
	for (; (slash = strchr(name, '/')); name = slash + 1) {
		int fd;

		*slash = '\0';
		fd = openat(at, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (fd < 0)
			return talk_fail(&ex->talk, -errno, "opening the directory of '%s'", first);
		closep(&owned);
		at = owned = fd;
	}
	if (linkat(at, name, here(ex), e->name, 0) < 0)
		return talk_fail(&ex->talk, -errno, "linking '%s' to '%s'", e->path, first);
	return 0;
}

/* ---- objects ---- */

static int copy_run(void *arg, uint64_t off, uint64_t len)
{
	struct exporter *ex = arg;
	int r;

	while (len > 0) {
		size_t n = MIN(len, (uint64_t)COPY_BYTES), got, done = 0;

		r = fs_read(&ex->fs, ex->file_ino, off, ex->buf, n, &got);
		if (r < 0)
			return r;
		if (got != n)
			return -ERR_ITEM_DAMAGED;
		while (done < n) {
			ssize_t w =
				pwrite(ex->file_fd, ex->buf + done, n - done, (off_t)(off + done));

			if (w < 0 && errno == EINTR)
				continue;
			if (w < 0)
				return -errno;
			done += (size_t)w;
		}
		off += n;
		len -= n;
		r = talk_cancelled(&ex->talk);
		if (r < 0)
			return r;
	}
	return 0;
}

static int export_file(struct exporter *ex, const struct walk_entry *e, int *ret_fd)
{
	const struct inode *i = &e->inode;
	_cleanup_close_ int fd = -1;
	int r;

	fd = openat(here(ex), e->name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return talk_fail(&ex->talk, -errno, "making '%s'", e->path);
	ex->file_fd = fd;
	ex->file_ino = i->ino;
	r = walk_data(&ex->fs, i, copy_run, ex);
	if (r == 0 && i->size > 0 && ftruncate(fd, (off_t)i->size) < 0)
		r = -errno;
	if (r < 0)
		return r == -ERR_CANCELLED ? r : talk_fail(&ex->talk, r, "writing '%s'", e->path);
	*ret_fd = TAKE_FD(fd);
	return 0;
}

static int export_symlink(struct exporter *ex, const struct walk_entry *e)
{
	char target[TARGET_MAX + 1];
	size_t len;
	int r;

	r = fs_readlink(&ex->fs, e->inode.ino, target, TARGET_MAX, &len);
	if (r < 0)
		return talk_fail(&ex->talk, r, "reading the link '%s'", e->path);
	target[len] = '\0';
	if (symlinkat(target, here(ex), e->name) < 0)
		return talk_fail(&ex->talk, -errno, "making '%s'", e->path);
	return 0;
}

/* AGAIN: it cannot be made here; said so. */
static int export_special(struct exporter *ex, const struct walk_entry *e)
{
	const struct inode *i = &e->inode;

	if (mknodat(here(ex), e->name, (i->mode & S_IFMT) | 0600, i->rdev) == 0)
		return 0;
	if (errno == EPERM || errno == EINVAL || errno == EOPNOTSUPP) {
		talk_skip(&ex->talk, "'%s' cannot be made here: %s", e->path, strerror(errno));
		return AGAIN;
	}
	return talk_fail(&ex->talk, -errno, "making '%s'", e->path);
}

static int export_object(void *arg, const struct walk_entry *e)
{
	struct exporter *ex = arg;
	const struct inode *i = &e->inode;
	_cleanup_close_ int fd = -1;
	uint64_t first;
	struct stat st;
	int r;

	first = link_table_get(&ex->links, 0, i->ino);
	if (first)
		return make_link(ex, e, ex->paths[first - 1]);

	if (S_ISREG(i->mode))
		r = export_file(ex, e, &fd);
	else if (S_ISLNK(i->mode))
		r = export_symlink(ex, e);
	else
		r = export_special(ex, e);
	if (r == AGAIN)
		return 0;
	if (r < 0)
		return r;

	if (fd < 0) {
		fd = openat(here(ex), e->name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
		if (fd < 0 || fstat(fd, &st) < 0)
			return talk_fail(&ex->talk, -errno, "opening '%s'", e->path);
		if ((st.st_mode & S_IFMT) != (i->mode & S_IFMT))
			return talk_fail(&ex->talk, -ESTALE, "'%s' was replaced meanwhile",
					 e->path);
	}
	r = put_attributes(ex, e, fd);
	if (r < 0)
		return r;
	r = remember(ex, e);
	if (r < 0)
		return r;
	return talk_object(&ex->talk, i->mode, S_ISREG(i->mode) ? i->size : 0);
}

/* ---- the two walks over directories ---- */

static int enter(struct exporter *ex, const struct walk_entry *e)
{
	_cleanup_close_ int fd = -1;
	int r;

	r = e->depth == 0 ? open_dir(ex->top_fd, ".", &fd) : open_dir(here(ex), e->name, &fd);
	if (r == 0)
		r = push_dir(ex, &fd);
	return r < 0 ? talk_fail(&ex->talk, r, "opening directory '%s'", path_shown(e->path)) : 0;
}

static int make_dir(void *arg, const struct walk_entry *e)
{
	struct exporter *ex = arg;
	int r;

	if (e->depth > 0 && mkdirat(here(ex), e->name, 0700) < 0)
		return talk_fail(&ex->talk, -errno, "making directory '%s'", e->path);
	r = enter(ex, e);
	if (r < 0)
		return r;
	return talk_object(&ex->talk, S_IFDIR, 0);
}

static int filled_dir(void *arg, const struct walk_entry *e)
{
	struct exporter *ex = arg;
	int r;

	r = reopen_above(ex);
	if (r < 0)
		return talk_fail(&ex->talk, r, "going back from '%s'", e->path);
	pop_dir(ex);
	return 0;
}

static int enter_dir(void *arg, const struct walk_entry *e)
{
	return enter(arg, e);
}

static int finish_dir(void *arg, const struct walk_entry *e)
{
	struct exporter *ex = arg;
	int r;

	r = reopen_above(ex); /* before the mode may forbid it */
	if (r < 0)
		return talk_fail(&ex->talk, r, "going back from '%s'", e->path);
	r = put_attributes(ex, e, here(ex));
	pop_dir(ex);
	return r;
}

int export_directory(struct store *s, struct root *root, int dir_fd, const struct import_ops *ops,
		     struct transfer_stats *ret)
{
	static const struct walk_ops fill = {
		.enter = make_dir,
		.object = export_object,
		.leave = filled_dir,
	};
	static const struct walk_ops finish = { .enter = enter_dir, .leave = finish_dir };
	_cleanup_(exporter_release) struct exporter ex = {
		.talk = { .store = s, .ops = ops, .what = "exporting" },
		.top_fd = dir_fd,
		.root = geteuid() == 0,
	};
	int r;

	r = tree_new(store_nodes(s), root, &ex.tree);
	if (r < 0)
		return r;
	ex.fs = (struct fs){ .store = s, .tree = ex.tree };
	ex.buf = malloc(COPY_BYTES);
	ex.xattr = malloc(2 * XATTR_BYTES_MAX);
	if (!ex.buf || !ex.xattr)
		return -ENOMEM;

	/* What is made below would inherit it; the state brings its own. */
	(void)fremovexattr(dir_fd, "system.posix_acl_default");

	r = walk_state(&ex.talk, &ex.fs, &fill, &ex);
	if (r < 0)
		return r;
	r = walk_state(&ex.talk, &ex.fs, &finish, &ex);
	if (r < 0)
		return r;
	if (ret)
		*ret = ex.talk.stats;
	return 0;
}
