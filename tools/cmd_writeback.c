/* SPDX-License-Identifier: Apache-2.0 */

/*
 * writeback: brings what changed in a short-form view since its import (or the last write-back)
 * into the directory that it was imported from. `plyfs unmount` asks for it.
 *
 * INVARIANTS
 *
 *  W1 Nothing outside of the directory is touched: every path is walked beneath its descriptor and
 *     through no symlink (openat2), whatever the tree or the directory hold.
 *  W2 A file is written beside its place under a temporary name, complete with owner, mode and
 *     times, and renamed over it: a failure leaves the old file or the new one.
 *  W3 Deletions go first, children before parents; then additions and changes, parents before
 *     children; then the modes and times of directories, children before parents.
 *  W4 Only after all of it succeeded, and would outlive a power cut, a snapshot marks the state as
 *     the new base; after a failure the same differences are brought in again.
 *  W5 What is to be replaced or deleted is what the base has there, or already what the view has (a
 *     write-back that failed); else somebody changed the directory itself, and nothing is begun.
 */

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <linux/limits.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

#include "fs/diff.h"
#include "store/base/err.h"
#include "store/base/os.h"
#include "store/base/util.h"
#include "store/base/words.h"
#include "tools/cmd_util.h"
#include "tools/cmd_writeback.h"
#include "tools/daemon.h"
#include "tools/diffstat.h"

#define TEMPORARY ".plyfs-writeback"
#define COPY_BYTES (1024 * 1024)
#define NAMES_TOLD 5 /* on one line beside their number */

struct difference {
	char kind; /* 'A', 'M' or 'D' */
	bool is_dir;
	char *path;
	struct inode old, inode; /* of the base and of the view; ino 0: not there */
};

struct changes {
	struct difference *v;
	size_t n, cap;
};

static void changes_release(struct changes *l)
{
	for (size_t i = 0; i < l->n; i++)
		free(l->v[i].path);
	free(l->v);
}

static int add(struct changes *l, char kind, const char *path, const struct change *c)
{
	struct difference e = { .kind = kind };
	int r;

	if (c->old_inode)
		e.old = *c->old_inode;
	if (c->new_inode)
		e.inode = *c->new_inode;
	e.is_dir = inode_is_dir(kind == 'D' ? &e.old : &e.inode);
	r = os_grow(&l->v, &l->cap, l->n + 1, sizeof(*l->v));
	if (r < 0)
		return r;
	e.path = strdup(path);
	if (!e.path)
		return -ENOMEM;
	l->v[l->n++] = e;
	return 0;
}

static int on_change(void *arg, const struct change *c)
{
	struct changes *l = arg;
	int r;

	if (c->kind == CHANGE_DELETED)
		return add(l, 'D', c->old_path, c);
	if (c->kind == CHANGE_TYPE) {
		r = add(l, 'D', c->old_path, c);
		return r < 0 ? r : add(l, 'A', c->new_path, c);
	}
	return add(l, c->kind == CHANGE_ADDED ? 'A' : 'M', c->new_path, c);
}

/* ---- paths beneath a directory ---- */

static int open_beneath(int dir_fd, const char *path, uint64_t flags)
{
	struct open_how how = { .flags = flags | O_CLOEXEC,
				.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS |
					   RESOLVE_NO_MAGICLINKS };
	long fd = syscall(SYS_openat2, dir_fd, path, &how, sizeof(how));

	return fd < 0 ? -errno : (int)fd;
}

/* The directory that holds path's last name; *ret_name points into path. */
static int open_parent(int dir_fd, const char *path, const char **ret_name)
{
	const char *slash = strrchr(path, '/');
	_cleanup_free_ char *parent = slash ? strndup(path, (size_t)(slash - path)) : strdup(".");

	if (!parent)
		return -ENOMEM;
	*ret_name = slash ? slash + 1 : path;
	return open_beneath(dir_fd, parent, O_RDONLY | O_DIRECTORY);
}

struct work {
	struct cmd *c;
	struct fs base, fs;
	int dir_fd;
	bool root; /* we may give files away */
	char *buf;
	const char *path; /* borrowed; of what is being written, for warnings */
};

static void work_release(struct work *w)
{
	free(w->buf);
	closep(&w->dir_fd);
	tree_free(w->base.tree);
	tree_free(w->fs.tree);
}

/* ---- what the directory holds ---- */

static int has_bytes(struct work *w, const struct fs *fs, const struct inode *i, int fd)
{
	const size_t half = COPY_BYTES / 2;
	size_t n;

	for (uint64_t at = 0; at < i->size; at += n) {
		ssize_t here = pread(fd, w->buf + half, half, (off_t)at);
		int r;

		if (here <= 0)
			return here < 0 ? -errno : 0;
		r = fs_read(fs, i->ino, at, w->buf, (size_t)here, &n);
		if (r < 0)
			return r;
		if (n != (size_t)here || memcmp(w->buf, w->buf + half, n) != 0)
			return 0;
		if (__atomic_load_n(&w->c->cancel, __ATOMIC_RELAXED))
			return -ERR_CANCELLED;
	}
	return 1;
}

/* Times alone are not brought in, so where they differ it is asked what it holds. */
static int is_object(struct work *w, const struct fs *fs, const struct inode *i, int parent,
		     const char *name, const struct stat *st)
{
	_cleanup_close_ int fd = -1;
	const size_t half = COPY_BYTES / 2;
	ssize_t here;
	size_t n;
	int r;

	if (!i->ino || ((st->st_mode ^ i->mode) & S_IFMT))
		return 0;
	if (S_ISDIR(i->mode))
		return 1; /* what it holds is looked at by itself */
	if ((uint64_t)st->st_size != i->size)
		return 0;
	if (st->st_mtim.tv_sec == i->mtime.sec && st->st_mtim.tv_nsec == i->mtime.nsec)
		return 1;
	if (S_ISREG(i->mode)) {
		fd = openat(parent, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
		return fd < 0 ? -errno : has_bytes(w, fs, i, fd);
	}
	if (!S_ISLNK(i->mode))
		return st->st_rdev == (dev_t)i->rdev;
	here = readlinkat(parent, name, w->buf + half, half);
	if (here < 0)
		return -errno;
	r = fs_readlink(fs, i->ino, w->buf, half, &n);
	return r < 0 ? r : n == (size_t)here && memcmp(w->buf, w->buf + half, n) == 0;
}

/* 1: it would be lost. */
static int is_foreign(struct work *w, const struct difference *e)
{
	_cleanup_close_ int parent = -1;
	const char *name;
	struct stat st;
	int r;

	if (e->kind == 'A' && e->old.ino)
		return 0; /* its D is asked */
	parent = open_parent(w->dir_fd, e->path, &name);
	if (parent == -ENOTDIR || parent == -ELOOP)
		return e->kind == 'M'; /* a directory above is none any more */
	if (parent < 0)
		return parent == -ENOENT ? 0 : parent;
	if (fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : -errno;
	r = is_object(w, &w->base, &e->old, parent, name, &st);
	if (r == 0)
		r = is_object(w, &w->fs, &e->inode, parent, name, &st);
	return r < 0 ? r : !r;
}

/* W5 */
static int refuse_foreign(struct work *w, const struct changes *l)
{
	const char *dir = w->c->args.v[0], *first = NULL;
	_cleanup_free_ char *dir_word = NULL, *store_word = NULL;
	const struct daemon *d = w->c->daemon;
	char more[40] = "", path[PATH_MAX];
	size_t n = 0;

	for (size_t i = 0; i < l->n; i++) {
		int r = is_foreign(w, &l->v[i]);

		if (r < 0)
			return cmd_fail(w->c, r, "looking at '%s' in '%s'", l->v[i].path, dir);
		if (r && n++ == 0)
			first = l->v[i].path;
	}
	if (!n)
		return CMD_DONE;
	if (n > 1)
		snprintf(more, sizeof(more), " (and %zu more)", n - 1);
	dir_word = shell_word(dir);
	store_word = shell_word(daemon_store_path(d->dir_fd, d->store_path, path));
	if (!dir_word || !store_word)
		return cmd_fail(w->c, -ENOMEM, "'%s'", dir);
	return cmd_fail(w->c, 0,
			"'%s'%s changed in '%s' itself meanwhile, nothing was written back; to "
			"overwrite that: plyfs --store %s writeback --force %s",
			first, more, dir, store_word, dir_word);
}

/* ---- writing one object ---- */

/*
 * The directory in which a name is about to change. The view may have been made writable for that
 * and read-only again, as caches of modules are: then its owner does the same beneath.
 */
struct place {
	int fd;
	mode_t mode; /* to be given back; 0: it was not changed */
};

static int place_open(struct work *w, const char *path, struct place *ret, const char **ret_name)
{
	struct stat st;

	ret->fd = open_parent(w->dir_fd, path, ret_name);
	if (ret->fd < 0)
		return ret->fd;
	if (!w->root && fstat(ret->fd, &st) == 0 && (st.st_mode & 0300) != 0300 &&
	    st.st_uid == geteuid() && fchmod(ret->fd, (st.st_mode & 07777) | 0300) == 0)
		ret->mode = st.st_mode & 07777;
	return 0;
}

static void place_close(struct place *p)
{
	if (p->mode)
		(void)fchmod(p->fd, p->mode); /* was allowed a moment ago */
	closep(&p->fd);
}

#define _cleanup_place_ _cleanup_(place_close)

/*
 * What the directory had, or a new file inherited from its parent's ACL, and the view has not. What
 * else a system puts on files by itself (security labels) is not ours to take.
 */
static void remove_xattrs(struct work *w, uint64_t ino, int fd)
{
	char *const names = w->buf;
	ssize_t len = flistxattr(fd, names, COPY_BYTES);
	size_t n;

	if (len < 0 && errno != ENOTSUP)
		cmd_warn(w->c, "'%s': listing the attributes that are there: %s", w->path,
			 strerror(errno));
	for (char *name = names; name < names + len; name += strlen(name) + 1) {
		if (strncmp(name, "user.", 5) != 0 && strncmp(name, "system.posix_acl_", 17) != 0)
			continue;
		if (fs_getxattr(&w->fs, ino, name, NULL, 0, &n) == -ENODATA &&
		    fremovexattr(fd, name) < 0)
			cmd_warn(w->c, "'%s': removing attribute %s: %s", w->path, name,
				 strerror(errno));
	}
}

static int copy_xattrs(struct work *w, uint64_t ino, int fd)
{
	_cleanup_free_ char *names = NULL, *value = NULL;
	size_t len, n;
	int r;

	remove_xattrs(w, ino, fd);
	r = fs_listxattr(&w->fs, ino, NULL, 0, &len);
	if (r < 0 || len == 0)
		return r;
	names = malloc(len);
	value = malloc(XATTR_SIZE_MAX);
	if (!names || !value)
		return -ENOMEM;
	r = fs_listxattr(&w->fs, ino, names, len, &len);
	for (char *name = names; r == 0 && name < names + len; name += strlen(name) + 1) {
		r = fs_getxattr(&w->fs, ino, name, value, XATTR_SIZE_MAX, &n);
		if (r == 0 && fsetxattr(fd, name, value, n, 0) < 0)
			cmd_warn(w->c, "'%s': attribute %s: %s", w->path, name, strerror(errno));
	}
	return r;
}

static int copy_data(struct work *w, const struct inode *i, int fd)
{
	uint64_t at = 0;
	int r;

	if (ftruncate(fd, (off_t)i->size) < 0)
		return -errno;
	while (at < i->size) {
		size_t n;

		r = fs_seek(&w->fs, i->ino, at, SEEK_DATA, &at);
		if (r == -ENXIO)
			return 0; /* a hole to the end */
		if (r == 0)
			r = fs_read(&w->fs, i->ino, at, w->buf, COPY_BYTES, &n);
		if (r < 0 || n == 0)
			return r;
		r = os_pwrite_full(fd, w->buf, n, at);
		if (r < 0)
			return r;
		at += n;
		if (__atomic_load_n(&w->c->cancel, __ATOMIC_RELAXED))
			return -ERR_CANCELLED;
	}
	return 0;
}

/* Who is not root can give what is his to a group that he is in, and to nobody else. */
static int give(struct work *w, const struct inode *i, int fd)
{
	const uid_t uid = w->root ? i->uid : (uid_t)-1;

	if (fchownat(fd, "", uid, i->gid, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) < 0 &&
	    (w->root || errno != EPERM))
		return -errno;
	return 0;
}

/*
 * Owner, attributes, mode, times of fd's object, in the order in which none undoes another: nobody
 * but root gives attributes to what he may not write.
 */
static int finish(struct work *w, const struct inode *i, int fd)
{
	struct timespec times[2] = { { i->atime.sec, i->atime.nsec },
				     { i->mtime.sec, i->mtime.nsec } };
	struct stat st;
	int r = give(w, i, fd);

	if (r < 0)
		return r;
	if (!w->root && fstat(fd, &st) == 0 && !(st.st_mode & S_IWUSR) &&
	    fchmod(fd, (st.st_mode & 07777) | S_IWUSR) < 0)
		return -errno;
	r = copy_xattrs(w, i->ino, fd);
	if (r < 0)
		return r;
	if (fchmod(fd, i->mode & 07777) < 0)
		return -errno;
	return futimens(fd, times) < 0 ? -errno : 0;
}

static int make_regular(struct work *w, const struct inode *i, int parent)
{
	_cleanup_close_ int fd =
		openat(parent, TEMPORARY, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	int r;

	if (fd < 0)
		return -errno;
	r = copy_data(w, i, fd);
	if (r == 0)
		r = finish(w, i, fd);
	if (r == 0 && close(TAKE_FD(fd)) < 0)
		r = -errno;
	return r;
}

static int make_special(struct work *w, const struct inode *i, int parent)
{
	struct timespec times[2] = { { i->atime.sec, i->atime.nsec },
				     { i->mtime.sec, i->mtime.nsec } };
	char target[4096], at[32];
	_cleanup_close_ int fd = -1;
	struct stat st;
	size_t len;
	int r;

	if (S_ISLNK(i->mode)) {
		r = fs_readlink(&w->fs, i->ino, target, sizeof(target) - 1, &len);
		if (r < 0)
			return r;
		target[len] = 0;
		if (symlinkat(target, parent, TEMPORARY) < 0)
			return -errno;
	} else if (mknodat(parent, TEMPORARY, i->mode & S_IFMT, (dev_t)i->rdev) < 0) {
		return -errno;
	}
	/* Not by its name: whose directory it is may put a link in its place meanwhile (W1). */
	fd = openat(parent, TEMPORARY, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	r = (st.st_mode ^ i->mode) & S_IFMT ? -EEXIST : give(w, i, fd);
	if (r < 0)
		return r;
	snprintf(at, sizeof(at), "/proc/self/fd/%d", fd); /* fchmod(2) takes no O_PATH */
	if (!S_ISLNK(i->mode) && chmod(at, i->mode & 07777) < 0)
		return -errno;
	return utimensat(parent, TEMPORARY, times, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
}

static int finish_directory(struct work *w, const struct difference *e)
{
	_cleanup_close_ int fd =
		open_beneath(w->dir_fd, *e->path ? e->path : ".", O_RDONLY | O_DIRECTORY);
	struct stat st;

	w->path = *e->path ? e->path : ".";
	if (fd < 0)
		return fd;
	/* Another's, in which we may make and remove names: that changed no more than its times. */
	if (!w->root && fstat(fd, &st) == 0 && st.st_uid != geteuid())
		return 0;
	return finish(w, &e->inode, fd);
}

/* The directories above a path that somebody removed beneath, as the view has them. */
static int make_above(struct work *w, const char *path)
{
	for (const char *end = strchr(path, '/'); end; end = strchr(end + 1, '/')) {
		_cleanup_free_ char *above = strndup(path, (size_t)(end - path));
		_cleanup_place_ struct place p = { .fd = -1 };
		struct difference e = { .is_dir = true, .path = above };
		const char *name;
		int r;

		if (!above)
			return -ENOMEM;
		r = place_open(w, above, &p, &name);
		if (r < 0)
			return r;
		if (mkdirat(p.fd, name, 0700) < 0) {
			if (errno != EEXIST)
				return -errno;
			continue;
		}
		r = fs_resolve(&w->fs, above, (size_t)(end - path), &e.inode);
		if (r == 0)
			r = finish_directory(w, &e);
		if (r < 0)
			return r;
	}
	return 0;
}

/* Where something is to be made, not only removed. */
static int place_make(struct work *w, const char *path, struct place *ret, const char **ret_name)
{
	int r = place_open(w, path, ret, ret_name);

	if (r == -ENOENT)
		r = make_above(w, path);
	w->path = path;
	return r == 0 && ret->fd < 0 ? place_open(w, path, ret, ret_name) : r;
}

/* A file that is to be written, and has other names. */
struct linking {
	struct work *w;
	const struct changes *l;
	const struct difference *e;
	int parent; /* where TEMPORARY is made */
};

static bool link_to(const struct linking *k, const char *path)
{
	_cleanup_close_ int other = -1;
	const char *name;

	other = open_parent(k->w->dir_fd, path, &name);
	return other >= 0 && linkat(other, name, k->parent, TEMPORARY, 0) == 0;
}

/* 1: it was linked to this name, which the view has not changed, nor anybody beneath. */
static int link_to_unchanged(void *arg, uint64_t dir, const char *name, size_t len)
{
	const struct linking *k = arg;
	const struct inode *inode = &k->e->inode;
	_cleanup_free_ char *above = NULL, *path = NULL;
	_cleanup_close_ int parent = -1;
	const char *last;
	struct stat st;
	size_t n;
	int r;

	r = fs_path(&k->w->fs, dir, &above, &n);
	if (r < 0)
		return r;
	if (asprintf(&path, "%s%s%.*s", above, n ? "/" : "", (int)len, name) < 0)
		return -ENOMEM;
	for (size_t i = 0; i < k->l->n; i++)
		if (k->l->v[i].inode.ino == inode->ino && strcmp(k->l->v[i].path, path) == 0)
			return 0;
	parent = open_parent(k->w->dir_fd, path, &last);
	if (parent < 0 || fstatat(parent, last, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
	    is_object(k->w, &k->w->fs, inode, parent, last, &st) != 1)
		return 0;
	return link_to(k, path);
}

/* 0, or AGAIN: to be copied, as it has no other name that is there already. */
static int link_object(struct work *w, const struct changes *l, size_t at, int parent)
{
	const struct difference *e = &l->v[at];
	struct linking k = { .w = w, .l = l, .e = e, .parent = parent };
	int r;

	for (size_t i = 0; i < at; i++)
		if (l->v[i].kind != 'D' && l->v[i].inode.ino == e->inode.ino &&
		    link_to(&k, l->v[i].path))
			return 0;
	r = fs_names(&w->fs, e->inode.ino, link_to_unchanged, &k);
	return r < 0 ? r : r == 1 ? 0 : AGAIN;
}

/* W2 */
static int write_object(struct work *w, const struct changes *l, size_t at)
{
	const struct difference *e = &l->v[at];
	_cleanup_place_ struct place p = { .fd = -1 };
	const char *name;
	int r;

	r = place_make(w, e->path, &p, &name);
	if (r < 0)
		return r;
	if (unlinkat(p.fd, TEMPORARY, 0) < 0 && errno != ENOENT)
		return -errno;

	r = e->inode.nlink > 1 ? link_object(w, l, at, p.fd) : AGAIN;
	if (r == AGAIN)
		r = S_ISREG(e->inode.mode) ? make_regular(w, &e->inode, p.fd)
					   : make_special(w, &e->inode, p.fd);
	if (r == 0 && renameat(p.fd, TEMPORARY, p.fd, name) < 0)
		r = -errno;
	/* Also after a rename between two names of one file, which does nothing. */
	if (unlinkat(p.fd, TEMPORARY, 0) < 0 && errno != ENOENT && r == 0)
		r = -errno;
	return r;
}

static int make_directory(struct work *w, const struct difference *e)
{
	_cleanup_place_ struct place p = { .fd = -1 };
	const char *name;
	int r;

	if (!*e->path)
		return 0; /* the top itself */
	r = place_make(w, e->path, &p, &name);
	if (r < 0)
		return r;
	if (mkdirat(p.fd, name, 0700) < 0 && errno != EEXIST)
		return -errno;
	return 0;
}

static int delete_object(struct work *w, const struct difference *e)
{
	_cleanup_place_ struct place p = { .fd = -1 };
	const char *name;
	int r;

	r = place_open(w, e->path, &p, &name);
	if (r == -ENOENT || r == -ENOTDIR || r == -ELOOP)
		return 0;
	if (r < 0)
		return r;
	if (unlinkat(p.fd, name, e->is_dir ? AT_REMOVEDIR : 0) == 0 || errno == ENOENT)
		return 0;
	/* Of another type by now: what takes its place was written before. */
	if ((errno == EISDIR || errno == ENOTDIR) && e->inode.ino)
		return 0;
	if (errno == ENOTEMPTY) {
		cmd_warn(w->c, "'%s' is not empty beneath the view, leaving it", e->path);
		return 0;
	}
	return -errno;
}

static int apply(struct work *w, const struct changes *l)
{
	size_t i, done = 0;
	int r = 0;

	/* W3 */
	for (i = l->n; i-- > 0 && r == 0;)
		if (l->v[i].kind == 'D') {
			r = delete_object(w, &l->v[i]);
			if (r < 0)
				return cmd_fail(w->c, r, "deleting '%s'", l->v[i].path);
		}
	for (i = 0; i < l->n; i++) {
		const struct difference *e = &l->v[i];

		if (e->kind == 'D')
			continue;
		if (e->is_dir)
			r = make_directory(w, e); /* also one that was removed beneath */
		else
			r = write_object(w, l, i);
		if (r < 0)
			return cmd_fail(w->c, r, "writing '%s'", e->path);
		w->c->progress.fn(w->c, "writing back", ++done, l->n);
	}
	for (i = l->n; i-- > 0;)
		if (l->v[i].kind != 'D' && l->v[i].is_dir) {
			r = finish_directory(w, &l->v[i]);
			if (r < 0)
				return cmd_fail(w->c, r, "finishing '%s'", l->v[i].path);
		}
	if (l->n > 0 && syncfs(w->dir_fd) < 0)
		return cmd_fail(w->c, -errno, "syncing the directory");
	return CMD_DONE;
}

/* ---- the verb ---- */

struct base {
	uint64_t id, seq;
};

/* The newest snapshot that an import or a write-back marked. */
static int find_base(void *arg, const struct snap_info *info)
{
	struct base *b = arg;

	if ((info->flags & SNAP_IMPORT) && strcmp(info->branch, BRANCH_DEFAULT) == 0 &&
	    info->seq > b->seq)
		*b = (struct base){ info->id, info->seq };
	return 0;
}

int writeback_base(struct cmd *c, uint64_t *ret_id)
{
	struct base base = {};
	int r = snap_each(c->store, find_base, &base);

	*ret_id = base.id;
	return r;
}

/* The state that the directory had last, the view's own, and how they differ. */
static int compare(struct cmd *c, struct cmd_state *then, struct cmd_state *now, struct changes *l)
{
	char id[SNAP_ID_SIZE];
	uint64_t base;
	int r;

	r = writeback_base(c, &base);
	if (r < 0)
		return cmd_fail(c, r, "reading the snapshots");
	if (!base)
		return cmd_fail(c, 0, "this store has no import to compare with");
	r = cmd_state(c, snap_id_to_text(base, id), then);
	if (r == 0)
		r = cmd_state(c, BRANCH_DEFAULT, now);
	if (r)
		return r;
	r = fs_diff(c->store, then->root, now->root, then->lineage == now->lineage, DIFF_DIRS,
		    on_change, l);
	return r < 0 ? cmd_fail(c, r, "comparing") : CMD_DONE;
}

static int list(struct cmd *c, const struct changes *l, bool json)
{
	uint64_t n = 0;

	for (size_t i = 0; json && i < l->n; i++)
		if (cmd_json_next(c, &n,
				  json_pack("{s:s#, s:o}", "status", &l->v[i].kind, (size_t)1,
					    "path", json_text(l->v[i].path))) < 0)
			return cmd_fail(c, -ENOMEM, "JSON");
	if (json)
		cmd_json_end(c, n);
	for (size_t i = 0; !json && i < l->n; i++) {
		fprintf(c->out, "%c ", l->v[i].kind);
		print_quoted(c->out, l->v[i].path, "");
		fputc('\n', c->out);
	}
	return CMD_DONE;
}

static void tell(struct cmd *c, const struct changes *l, const char *dir, bool over)
{
	char path[PATH_MAX];
	const char *at = daemon_store_path(c->daemon->dir_fd, c->daemon->store_path, path);
	_cleanup_free_ char *word = shell_word(dir), *store = shell_word(at);

	cmd_progress_end(c);
	if (!l->n)
		return;
	fprintf(c->err, "plyfs unmount: %zu path%s differ%s from %s%s (", l->n,
		plural(l->n), l->n == 1 ? "s" : "", word ?: "the directory",
		over ? "" : " so far");
	for (size_t i = 0; i < l->n && i < NAMES_TOLD; i++) {
		fprintf(c->err, "%s%c ", i ? ", " : "", l->v[i].kind);
		print_quoted(c->err, l->v[i].path, "");
	}
	fprintf(c->err, "%s); to bring them in%s: plyfs --store %s writeback %s\n",
		l->n > NAMES_TOLD ? ", ..." : "", over ? "" : ", when its last process has left",
		store ?: "STORE", word ?: "DIR");
}

/*
 * The state is what the directory holds now: W4. After a restore it may be one that was written
 * back before, whose snapshot is older than the newest base: it gets another, by another label.
 */
static int mark_base(struct cmd *c, struct branch *b, const char *dir)
{
	char label[LABEL_MAX + 1];
	uint64_t id, newest;
	int r;

	snprintf(label, sizeof(label), "written back to %s", dir);
	r = branch_checkpoint(b, label, SNAP_IMPORT, &id);
	if (r == EXISTS) {
		r = writeback_base(c, &newest);
		if (r == 0 && newest != id) {
			snprintf(label, sizeof(label), "written back again to %s", dir);
			r = branch_checkpoint(b, label, SNAP_IMPORT, &id);
		}
	}
	return r < 0 ? cmd_fail(c, r, "marking what was written back") : CMD_DONE;
}

static int work_open(struct cmd *c, const struct cmd_state *then, const struct cmd_state *now,
		     struct work *w)
{
	int r = cmd_openat(c, c->args.v[0], O_RDONLY | O_DIRECTORY, 0, &w->dir_fd);

	if (r < 0)
		return cmd_fail(c, r, "'%s'", c->args.v[0]);
	w->c = c;
	w->root = geteuid() == 0;
	w->base.store = w->fs.store = c->store;
	w->buf = malloc(COPY_BYTES);
	r = w->buf ? tree_new(store_nodes(c->store), now->root, &w->fs.tree) : -ENOMEM;
	if (r == 0)
		r = tree_new(store_nodes(c->store), then->root, &w->base.tree);
	return r < 0 ? cmd_fail(c, r, "writing back") : CMD_DONE;
}

/* *ret_claimed: the same once more while nobody can mount it; NULL when only looking, and it is. */
static int claim(struct cmd *c, bool looks, struct branch **ret, struct branch **ret_claimed)
{
	_cleanup_(views_putp) struct view_entry *e = NULL;
	int r = looks ? 0 : cmd_await_branch(c, BRANCH_DEFAULT);

	if (r == 0)
		r = branch_open(c->store, BRANCH_DEFAULT, ret);
	if (r == 0) {
		r = branch_mount(*ret); /* the state stands still meanwhile */
		if (r == 0)
			*ret_claimed = *ret;
		else if (looks)
			r = 0; /* a view covers the directory: there is no looking at it */
		else if (r == -ERR_BRANCH_IN_USE)
			e = views_get_branch(c->daemon, BRANCH_DEFAULT);
	}
	if (e && views_is_detached(e) > 0)
		return cmd_fail(c, 0,
				"the view was detached from '%s', but something is still in it; "
				"try again when that has ended",
				e->mountpoint);
	return r < 0 ? cmd_fail(c, r, BRANCH_DEFAULT) : CMD_DONE;
}

static void unclaim(struct branch **b)
{
	if (*b)
		branch_unmount(*b);
}

/*
 * An environment of kind git has its commits in the store, where the repository now looks for them
 * (env/README.md). Only its own end with a write-back brings them along.
 */
static void warn_of_commits(struct cmd *c, int dir_fd)
{
	const char *store = c->daemon->store_path, *dir = c->args.v[0];
	static const char alternates[] = ".git/objects/info/alternates";
	_cleanup_free_ char *word = NULL, *line = NULL;
	_cleanup_fclose_ FILE *f = NULL;
	char vault[PATH_MAX];
	bool uses = false;
	size_t cap = 0;
	int r;

	if (snprintf(vault, sizeof(vault), "%s/commits.git/", store) >= (int)sizeof(vault) ||
	    (access(vault, F_OK) < 0 && errno == ENOENT))
		return;
	r = open_beneath(dir_fd, alternates, O_RDONLY);
	if (r >= 0 && !(f = fdopen(r, "r"))) {
		(void)close(r);
		r = -ENOMEM;
	}
	while (f && !uses && (errno = 0, getline(&line, &cap, f)) > 0)
		uses = strstr(line, vault);
	if (f && !uses)
		r = -errno;
	word = shell_word(dir);
	if (r < 0 && r != -ENOENT && r != -ENOTDIR)
		cmd_warn(c,
			 "'%s' could not be read (%s): if '%s' uses commits that are in '%s', that "
			 "has to stay",
			 alternates, strerror(-r), dir, store);
	if (uses)
		cmd_warn(c,
			 "the repository '%s' uses commits that are in the store '%s', which has "
			 "to stay; to bring them in: plyfs env create --kind git NAME %s, then "
			 "plyfs env destroy --write-back NAME",
			 dir, store, word ? word : dir);
}

int cmd_writeback(struct cmd *c)
{
	bool dry = false, force = false, only_tell = false, exit_code = false, json = false;
	const struct option_def defs[] = {
		{ .name = "dry-run", .flag = &dry },
		{ .name = "force", .flag = &force },
		{ .name = "json", .flag = &json },
		{ .name = "tell", .flag = &only_tell }, /* for unmount: one line */
		{ .name = "exit-code", .flag = &exit_code }, /* for mount --update: of --dry-run */
	};
	_cleanup_state_ struct cmd_state now = {}, then = {};
	_cleanup_(changes_release) struct changes l = {};
	_cleanup_(branch_closep) struct branch *b = NULL;
	_cleanup_(unclaim) struct branch *claimed = NULL;
	_cleanup_(work_release) struct work w = { .dir_fd = -1 };
	int r;

	r = cmd_parse(c, defs, ARRAY_SIZE(defs), 1, 1);
	if (r == 0 && json && !dry)
		return cmd_misuse(c, "--json goes with --dry-run");
	if (r == 0)
		r = claim(c, dry || only_tell, &b, &claimed);
	if (r == 0)
		r = compare(c, &then, &now, &l);
	if (r)
		return r;
	if (only_tell) {
		tell(c, &l, c->args.v[0], claimed);
		return CMD_DONE;
	}
	if (dry) {
		r = list(c, &l, json);
		if (r)
			return r;
		if (exit_code || force || !claimed)
			return exit_code && l.n ? CMD_FAILED : CMD_DONE;
	}

	r = work_open(c, &then, &now, &w);
	if (r == 0 && !force)
		r = refuse_foreign(&w, &l);
	if (r || dry)
		return r;
	r = apply(&w, &l);
	if (r)
		return r;
	warn_of_commits(c, w.dir_fd);
	return mark_base(c, b, c->args.v[0]);
}
