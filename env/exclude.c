/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Directories that no restore touches; see exclude.h.
 *
 * The state that was left is mounted aside, read-only, and each directory that differs is removed
 * from the view and copied from there. Commands may run in the view meanwhile, and nothing that
 * they put there may lead us out of it: every step is one name below a descriptor, no symlink is
 * followed, nothing is opened that we did not just make.
 */

#include "env/exclude.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include "env/status.h"
#include "store/base/util.h"

#define COPY_BYTES (64 * 1024)
#define XATTR_NAMES_MAX 65536 /* the kernel's own limits */
#define XATTR_VALUE_MAX 65536

struct linked { /* a file with several names: the first one made */
	ino_t ino;
	char *path; /* owned; relative to the view's root */
};

struct job {
	int from, to; /* roots: the left state, the view */
	char *buf;    /* COPY_BYTES */
	struct linked *links;
	size_t n_links;
	char path[PATH_MAX]; /* what is worked on, relative to both roots */
};

static void closedirp(DIR **d)
{
	if (*d)
		(void)closedir(*d); /* read only */
}

/* ---- removing ---- */

/* Calls fn for each entry of a directory; takes fd. */
static int each_entry(int fd, int (*fn)(void *arg, int dir_fd, const char *name), void *arg)
{
	_cleanup_(closedirp) DIR *d = fdopendir(fd);
	struct dirent *e;
	int r;

	if (!d) {
		r = -errno;
		(void)close(fd); /* read only */
		return r;
	}
	while (errno = 0, (e = readdir(d))) {
		if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
			continue;
		r = fn(arg, fd, e->d_name);
		if (r < 0)
			return r;
	}
	return -errno;
}

static int remove_entry(void *arg, int dir_fd, const char *name)
{
	int fd, r;

	if (unlinkat(dir_fd, name, 0) == 0 || errno == ENOENT)
		return 0;
	if (errno != EISDIR && errno != EPERM)
		return -errno;
	fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	r = each_entry(fd, remove_entry, NULL);
	if (r < 0)
		return r;
	return unlinkat(dir_fd, name, AT_REMOVEDIR) < 0 && errno != ENOENT ? -errno : 0;
}

/* ---- copying ---- */

static int copy_xattrs(int from, int to)
{
	_cleanup_free_ char *names = malloc(XATTR_NAMES_MAX), *value = malloc(XATTR_VALUE_MAX);
	ssize_t n;

	if (!names || !value)
		return -ENOMEM;
	n = flistxattr(from, names, XATTR_NAMES_MAX);
	if (n < 0)
		return errno == ENOTSUP ? 0 : -errno;
	for (const char *p = names; p < names + n; p += strlen(p) + 1) {
		ssize_t len = fgetxattr(from, p, value, XATTR_VALUE_MAX);

		if (len < 0 && errno != ENODATA && errno != ENOTSUP)
			return -errno;
		if (len >= 0 && fsetxattr(to, p, value, (size_t)len, 0) < 0)
			return -errno;
	}
	return 0;
}

/* Owner first: it takes away setuid bits. Times last. */
static int copy_attributes(int from, int to, const struct stat *st)
{
	const struct timespec times[] = { st->st_atim, st->st_mtim };
	int r;

	if (fchown(to, st->st_uid, st->st_gid) < 0 && errno != EPERM)
		return -errno;
	r = copy_xattrs(from, to);
	if (r < 0)
		return r;
	if (fchmod(to, st->st_mode & 07777) < 0 || futimens(to, times) < 0)
		return -errno;
	return 0;
}

static int copy_data(struct job *j, int from, int to, uint64_t size)
{
	uint64_t at = 0;

	/* Holes stay holes: only what is data is written, then the size is set. */
	while (at < size) {
		off_t data = lseek(from, (off_t)at, SEEK_DATA);
		ssize_t n;

		if (data < 0 && errno != ENXIO)
			return -errno;
		if (data < 0)
			break; /* a hole up to the end */
		n = pread(from, j->buf, COPY_BYTES, data);
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		for (ssize_t done = 0; done < n;) {
			ssize_t w = pwrite(to, j->buf + done, (size_t)(n - done), data + done);

			if (w < 0)
				return -errno;
			done += w;
		}
		at = (uint64_t)data + (uint64_t)n;
	}
	return ftruncate(to, (off_t)size) < 0 ? -errno : 0;
}

/* 1: the file is there already, as another name of one that we made. */
static int link_again(struct job *j, ino_t ino, int dir_fd, const char *name)
{
	for (size_t i = 0; i < j->n_links; i++)
		if (j->links[i].ino == ino)
			return linkat(j->to, j->links[i].path, dir_fd, name, 0) < 0 ? -errno : 1;
	return 0;
}

static int remember_link(struct job *j, ino_t ino)
{
	if ((j->n_links & (j->n_links - 1)) == 0) { /* room is doubled at powers of two */
		struct linked *grown =
			reallocarray(j->links, j->n_links ? 2 * j->n_links : 1, sizeof(*grown));

		if (!grown)
			return -ENOMEM;
		j->links = grown;
	}
	j->links[j->n_links].ino = ino;
	j->links[j->n_links].path = strdup(j->path);
	if (!j->links[j->n_links].path)
		return -ENOMEM;
	j->n_links++;
	return 0;
}

static int copy_file(struct job *j, int from_dir, int to_dir, const char *name,
		     const struct stat *st)
{
	_cleanup_close_ int from = -1, to = -1;
	int r = 0;

	if (st->st_nlink > 1)
		r = link_again(j, st->st_ino, to_dir, name);
	if (r)
		return r < 0 ? r : 0;
	from = openat(from_dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (from < 0)
		return -errno;
	to = openat(to_dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (to < 0)
		return -errno;
	r = copy_data(j, from, to, (uint64_t)st->st_size);
	if (r == 0)
		r = copy_attributes(from, to, st);
	return r == 0 && st->st_nlink > 1 ? remember_link(j, st->st_ino) : r;
}

static int copy_other(int from_dir, int to_dir, const char *name, const struct stat *st)
{
	const struct timespec times[] = { st->st_atim, st->st_mtim };
	char target[PATH_MAX];
	ssize_t n;

	if (S_ISLNK(st->st_mode)) {
		n = readlinkat(from_dir, name, target, sizeof(target) - 1);
		if (n < 0)
			return -errno;
		target[n] = '\0';
		if (symlinkat(target, to_dir, name) < 0)
			return -errno;
	} else if (mknodat(to_dir, name, st->st_mode, st->st_rdev) < 0) {
		return -errno;
	}
	if (fchownat(to_dir, name, st->st_uid, st->st_gid, AT_SYMLINK_NOFOLLOW) < 0 &&
	    errno != EPERM)
		return -errno;
	return utimensat(to_dir, name, times, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
}

struct pair {
	struct job *job;
	int to_dir;
};

static int copy_entry(void *arg, int from_dir, const char *name);

static int copy_directory(struct job *j, int from_dir, int to_dir, const char *name,
			  const struct stat *st)
{
	_cleanup_close_ int from = -1, to = -1;
	struct pair pair = { .job = j };
	int r;

	from = openat(from_dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (from < 0 || mkdirat(to_dir, name, 0700) < 0)
		return -errno;
	to = openat(to_dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (to < 0)
		return -errno;
	pair.to_dir = to;
	r = dup(from);
	r = r < 0 ? -errno : each_entry(r, copy_entry, &pair);
	return r < 0 ? r : copy_attributes(from, to, st);
}

static int copy_one(struct job *j, int from_dir, int to_dir, const char *name)
{
	struct stat st;

	if (fstatat(from_dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	if (S_ISDIR(st.st_mode))
		return copy_directory(j, from_dir, to_dir, name, &st);
	if (S_ISREG(st.st_mode))
		return copy_file(j, from_dir, to_dir, name, &st);
	return copy_other(from_dir, to_dir, name, &st);
}

static int copy_entry(void *arg, int from_dir, const char *name)
{
	const struct pair *pair = arg;
	struct job *j = pair->job;
	size_t len = strlen(j->path);
	int r;

	if (len + 1 + strlen(name) >= sizeof(j->path))
		return -ENAMETOOLONG;
	j->path[len] = '/';
	strcpy(j->path + len + 1, name);
	r = copy_one(j, from_dir, pair->to_dir, name);
	if (r == 0)
		j->path[len] = '\0';
	return r;
}

/* ---- one directory ---- */

/* A directory that is to be below dir_fd; -1 when there is none. -ENOTDIR: something else is. */
static int open_below(int dir_fd, const char *name, int *ret_fd)
{
	*ret_fd = -1;
	if (dir_fd < 0)
		return 0;
	*ret_fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (*ret_fd < 0 && errno != ENOENT)
		return errno == ELOOP ? -ENOTDIR : -errno;
	return 0;
}

/* In the view, as it was in the left state (from). -errno. */
static int make_below(int dir_fd, const char *name, int from, int *ret_fd)
{
	_cleanup_close_ int fd = -1;
	struct stat st;
	int r;

	if (mkdirat(dir_fd, name, 0700) < 0 || fstat(from, &st) < 0)
		return -errno;
	fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	r = copy_attributes(from, fd, &st);
	if (r == 0)
		*ret_fd = TAKE_FD(fd);
	return r;
}

/*
 * The directories that the last name of j->path lies in, on both sides; -1: not there. make: those
 * of the view are made where the left state has them. -ENOTDIR: something else is in the view.
 * Another failure must not pass for "not there": the view's own would be removed for it.
 */
static int open_parents(struct job *j, bool make, int *ret_from, int *ret_to)
{
	_cleanup_close_ int from = dup(j->from), to = dup(j->to);
	const char *p = j->path, *slash;
	char name[NAME_MAX + 1];
	int r;

	if (from < 0 || to < 0)
		return -errno;
	for (; (slash = strchr(p, '/')); p = slash + 1) {
		int next;

		memcpy(name, p, (size_t)(slash - p));
		name[slash - p] = '\0';
		r = open_below(from, name, &next);
		closep(&from);
		from = next;
		if (r < 0 && r != -ENOTDIR) /* no directory there: nothing excluded in it */
			return r;
		r = open_below(to, name, &next);
		if (r == 0 && next < 0 && make && to >= 0 && from >= 0)
			r = make_below(to, name, from, &next);
		closep(&to);
		to = next;
		if (r < 0)
			return r;
	}
	*ret_from = TAKE_FD(from);
	*ret_to = TAKE_FD(to);
	return 0;
}

/* 1 or 0, or -errno. */
static int is_directory(int dir_fd, const char *name)
{
	struct stat st;

	if (dir_fd < 0)
		return 0;
	if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : -errno;
	return S_ISDIR(st.st_mode);
}

/* j->path, which is called so as an excluded directory, becomes what it was. -errno. */
static int bring_back(struct job *j)
{
	_cleanup_close_ int from = -1, to = -1;
	const char *slash = strrchr(j->path, '/'), *name = slash ? slash + 1 : j->path;
	struct stat st;
	int r, was;

	r = open_parents(j, false, &from, &to);
	if (r < 0)
		return r;
	was = is_directory(from, name);
	r = was ? was : is_directory(to, name);
	if (r <= 0)
		return r; /* a file that is called so */
	if (to < 0) {
		closep(&from);
		from = -1;
		r = open_parents(j, true, &from, &to);
		if (r < 0 || to < 0)
			return r;
	}
	if (fstat(to, &st) < 0)
		return -errno;
	r = remove_entry(NULL, to, name);
	if (r == 0 && was)
		r = copy_one(j, from, to, name);
	if (r == 0) {
		const struct timespec times[] = { st.st_atim, st.st_mtim };

		r = futimens(to, times) < 0 ? -errno : 0; /* its content is what it was */
	}
	return r;
}

/* ---- which ones ---- */

static bool is_excluded(const char *names, const char *name, size_t len)
{
	for (const char *p = names; *p; p += *p == ':') {
		size_t n = strcspn(p, ":");

		if (n == len && memcmp(p, name, n) == 0)
			return true;
		p += n;
	}
	return false;
}

/* Bytes of path up to and with its first name that is excluded; 0: none. */
static size_t excluded_part(const char *names, const char *path)
{
	for (const char *p = path; *p; p += strspn(p, "/")) {
		size_t n = strcspn(p, "/");

		if (is_excluded(names, p, n))
			return (size_t)(p + n - path);
		p += n;
	}
	return 0;
}

static bool has(const struct ply_list *list, const char *item, size_t len)
{
	for (size_t i = 0; i < list->n; i++)
		if (strlen(list->items[i]) == len && memcmp(list->items[i], item, len) == 0)
			return true;
	return false;
}

/* The excluded directories below which something differs between `left` and now. */
static int find_changed(struct workspace *ws, const char *names, const char *left,
			struct ply_list *ret)
{
	const char *const args[] = {
		"diff", "-z", "--name-status", "--no-renames", "--", left, NULL
	};
	struct ply_text out = { 0 };
	bool is_path = false;
	int r;

	r = workspace_verb(ws, args, &out);
	if (r < 0)
		return r;
	/* A letter, a path, a letter, a path. */
	for (const char *p = out.data; r == 0 && p < out.data + out.len; p += strlen(p) + 1) {
		size_t n = is_path ? excluded_part(names, p) : 0;

		if (n && !has(ret, p, n))
			r = list_append(ret, p, n);
		is_path = !is_path;
	}
	ply_text_free(&out);
	return r;
}

/* An excluded directory stays in `left`; j->path: what could not be made. */
static int not_brought_back(const struct job *j, int r, const char *excluded, const char *left)
{
	if (r == -ENOTDIR)
		return fail(PLY_EXISTS,
			    "restored, but '%s' could not be left as it was: something that is no "
			    "directory is in its way; it is in the snapshot %s",
			    excluded, left);
	return fail_errno(-r,
			  "restored, but '%s' could not be left as it was (it is in the snapshot "
			  "%s): '%s'",
			  excluded, left, j->path);
}

/* All that can be; the first that cannot is told. */
static int bring_back_all(struct workspace *ws, const char *aside, const struct ply_list *changed,
			  const char *left)
{
	_cleanup_free_ struct job *j = calloc(1, sizeof(*j));
	_cleanup_free_ char *buf = malloc(COPY_BYTES);
	int r = 0;

	if (!j || !buf)
		return fail_memory();
	j->buf = buf;
	j->from = open(aside, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	j->to = open(workspace_mount(ws), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (j->from < 0 || j->to < 0)
		r = fail_errno(errno, "'%s'", j->from < 0 ? aside : workspace_mount(ws));
	for (size_t i = 0; i < changed->n && j->from >= 0 && j->to >= 0; i++) {
		int s;

		(void)snprintf(j->path, sizeof(j->path), "%s", changed->items[i]);
		s = bring_back(j);
		if (s < 0 && r == 0)
			r = not_brought_back(j, s, changed->items[i], left);
	}
	closep(&j->from);
	closep(&j->to);
	for (size_t i = 0; i < j->n_links; i++)
		free(j->links[i].path);
	free(j->links);
	return r;
}

int exclude_bring_back(struct workspace *ws, struct keeper *k, const char *names, const char *left)
{
	_cleanup_(ply_list_free) struct ply_list changed = { 0 };
	const char *aside;
	int r, s;

	r = find_changed(ws, names, left, &changed);
	if (r < 0 || !changed.n)
		return r;
	r = workspace_show_aside(ws, k, left, &aside);
	if (r < 0)
		return r;
	r = bring_back_all(ws, aside, &changed, left);
	s = workspace_end_aside(ws, k);
	return r < 0 ? r : s;
}
