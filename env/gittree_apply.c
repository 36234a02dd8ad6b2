/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A commit's tree, made of the files that are there: compares the objects with the nodes of what is
 * there (gittree.c) and touches only what differs, so an unchanged file keeps even its times.
 *
 * Names in git objects come from strangers and are checked; every step goes by one name below a
 * descriptor and through no symlink, whatever else is running in the directory.
 */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "env/gittree_internal.h"
#include "env/status.h"
#include "store/base/util.h"

struct apply {
	enum gittree_mode mode;
	struct repo_reader *rd;
	const char *exclude;
	unsigned made; /* temporary files so far */
};

static bool is_excluded(const struct apply *a, const char *name)
{
	size_t len = strlen(name);

	for (const char *p = a->exclude; p && *p;) {
		size_t n = strcspn(p, ":");

		if (n == len && memcmp(p, name, n) == 0)
			return true;
		p += n + (p[n] == ':');
	}
	return false;
}

static int open_dir(int dir_fd, const char *name)
{
	return openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* ---- away with it ---- */

/* Whatever it is and holds. */
static int clear_place(int dir_fd, const char *name)
{
	struct dirent *e;
	DIR *d;
	int fd, r = 0;

	if (unlinkat(dir_fd, name, 0) == 0 || errno == ENOENT)
		return 0;
	if (errno != EISDIR)
		return fail_errno(errno, "removing '%s'", name);
	fd = open_dir(dir_fd, name);
	d = fd < 0 ? NULL : fdopendir(fd);
	if (!d) {
		r = fail_errno(errno, "removing '%s'", name);
		closep(&fd);
		return r;
	}
	while (r == 0 && (e = readdir(d)))
		if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
			r = clear_place(dirfd(d), e->d_name);
	closedir(d);
	if (r == 0 && unlinkat(dir_fd, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
		r = fail_errno(errno, "removing '%s'", name);
	return r;
}

/* What the mode covers of a node. A directory stays that holds something else. */
static int remove_node(struct apply *a, const struct node *n, int dir_fd)
{
	_cleanup_close_ int fd = -1;
	int r = 0;

	if (n->kind == NODE_SUBMODULE || is_excluded(a, n->name))
		return 0;
	if (n->kind != NODE_DIRECTORY) {
		if (a->mode != GITTREE_ALL && (n->kind == NODE_OTHER || !n->covered))
			return 0;
		if (unlinkat(dir_fd, n->name, 0) < 0 && errno != ENOENT)
			return fail_errno(errno, "removing '%s'", n->name);
		return 0;
	}
	if (a->mode == GITTREE_TRACKED && n->empty)
		return 0;
	fd = open_dir(dir_fd, n->name);
	if (fd < 0)
		return errno == ENOENT ? 0 : fail_errno(errno, "removing '%s'", n->name);
	for (size_t i = 0; i < n->n && r == 0; i++)
		r = remove_node(a, n->kids[i], fd);
	if (r == 0 && unlinkat(dir_fd, n->name, AT_REMOVEDIR) < 0 && errno != ENOENT &&
	    errno != ENOTEMPTY && errno != EEXIST)
		r = fail_errno(errno, "removing '%s'", n->name);
	return r;
}

/* ---- and there it is ---- */

/* Under a name that nobody has; then, whole, under its own. */
static int put_blob(struct apply *a, int dir_fd, const struct repo_entry *e)
{
	_cleanup_(ply_text_free) struct ply_text data = { 0 };
	char temporary[64];
	int r = repo_read(a->rd, &e->id, REPO_BLOB, &data);

	if (r < 0)
		return r;
	snprintf(temporary, sizeof(temporary), ".plyfs-%ld-%u", (long)getpid(), a->made++);
	if (e->mode == REPO_MODE_LINK) {
		if (data.len == 0 || memchr(data.data, '\0', data.len))
			return fail(PLY_FAILED, "'%s': no good target of a symlink", e->name);
		r = symlinkat(data.data, dir_fd, temporary);
	} else {
		_cleanup_close_ int fd =
			openat(dir_fd, temporary,
			       O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
			       e->mode == REPO_MODE_EXECUTABLE ? 0777 : 0666);

		r = fd < 0 ? -1 : write_all(fd, data.data, data.len);
		if (fd >= 0 && close(TAKE_FD(fd)) < 0)
			r = -1;
	}
	if (r < 0) {
		r = fail_errno(errno, "writing '%s'", e->name);
	} else if (renameat(dir_fd, temporary, dir_fd, e->name) < 0) {
		r = errno == EISDIR || errno == ENOTEMPTY || errno == EEXIST
			    ? clear_place(dir_fd, e->name)
			    : fail_errno(errno, "writing '%s'", e->name);
		if (r == 0 && renameat(dir_fd, temporary, dir_fd, e->name) < 0)
			r = fail_errno(errno, "writing '%s'", e->name);
	}
	if (r < 0)
		(void)unlinkat(dir_fd, temporary, 0); /* the first failure is told */
	return r;
}

static int put_file(struct apply *a, int dir_fd, const struct repo_entry *e, const struct node *n)
{
	enum node_kind kind = e->mode == REPO_MODE_LINK ? NODE_LINK : NODE_FILE;
	bool executable = e->mode == REPO_MODE_EXECUTABLE;
	_cleanup_close_ int fd = -1;
	struct stat st;

	if (!n || n->kind != kind || !n->hashed || !repo_id_is(&n->id, &e->id))
		return put_blob(a, dir_fd, e);
	if (kind == NODE_LINK || n->executable == executable)
		return 0;
	fd = openat(dir_fd, e->name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0 ||
	    fchmod(fd, executable ? st.st_mode | ((st.st_mode & 0444) >> 2)
				  : st.st_mode & ~0111u) < 0)
		return fail_errno(errno, "writing '%s'", e->name);
	return 0;
}

/* A directory to go on in: made unless it is one. */
static int put_dir(int dir_fd, const char *name, int *ret_fd)
{
	int r, fd = open_dir(dir_fd, name);

	if (fd < 0) {
		r = clear_place(dir_fd, name);
		if (r < 0)
			return r;
		if (mkdirat(dir_fd, name, 0777) < 0)
			return fail_errno(errno, "making '%s'", name);
		fd = open_dir(dir_fd, name);
	}
	if (fd < 0)
		return fail_errno(errno, "opening '%s'", name);
	*ret_fd = fd;
	return 0;
}

static int apply_dir(struct apply *a, const struct node *dir, const struct repo_id *id, int dir_fd);

static int put_tree(struct apply *a, int dir_fd, const struct repo_entry *e, const struct node *n)
{
	const struct node *dir = n && n->kind == NODE_DIRECTORY ? n : NULL;
	_cleanup_close_ int fd = -1;
	int r;

	if (dir && !dir->empty && !dir->extra && repo_id_is(&dir->id, &e->id))
		return 0;
	r = put_dir(dir_fd, e->name, &fd);
	return r < 0 ? r : apply_dir(a, dir, &e->id, fd);
}

static int put_entry(struct apply *a, int dir_fd, const struct repo_entry *e, const struct node *n)
{
	_cleanup_close_ int fd = -1;

	if (!repo_name_ok(e->name))
		return fail(PLY_DENIED, "the commit has an entry '%s', which no tree may have",
			    e->name);
	if (is_excluded(a, e->name) &&
	    (e->mode == REPO_MODE_TREE || (n && n->kind == NODE_DIRECTORY)))
		return 0;
	switch (e->mode & S_IFMT) {
	case S_IFDIR:
		return put_tree(a, dir_fd, e, n);
	case S_IFREG: { /* 100664 was once used */
		struct repo_entry file = *e;

		file.mode = e->mode & S_IXUSR ? REPO_MODE_EXECUTABLE : REPO_MODE_FILE;
		return put_file(a, dir_fd, &file, n);
	}
	case S_IFLNK:
		return put_file(a, dir_fd, e, n);
	case REPO_MODE_COMMIT: /* a submodule: its directory, and what is in it, are not ours */
		return put_dir(dir_fd, e->name, &fd);
	default:
		return fail(PLY_FAILED, "entry '%s': mode %o is none of git's", e->name, e->mode);
	}
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* dir NULL: nothing that we know of is in it. */
static int apply_dir(struct apply *a, const struct node *dir, const struct repo_id *id, int dir_fd)
{
	_cleanup_(ply_text_free) struct ply_text tree = { 0 };
	_cleanup_free_ const char **names = NULL;
	struct repo_entry e;
	size_t at = 0, n = 0;
	int r = repo_read(a->rd, id, REPO_TREE, &tree);

	if (r < 0)
		return r;
	names = calloc(tree.len / 23 + 1, sizeof(*names)); /* " n", NUL, id: an entry at least */
	if (!names)
		return fail_memory();
	while ((r = repo_entry_next(&tree, &at, &e)) == 0)
		names[n++] = e.name;
	if (r < 0)
		return r;
	qsort(names, n, sizeof(*names), compare_names);

	r = 0;
	for (size_t i = 0; dir && i < dir->n && r == 0; i++) {
		const char *name = dir->kids[i]->name;

		if (!bsearch(&name, names, n, sizeof(*names), compare_names))
			r = remove_node(a, dir->kids[i], dir_fd);
	}
	for (at = 0; r == 0 && repo_entry_next(&tree, &at, &e) == 0;)
		r = put_entry(a, dir_fd, &e, dir ? node_find(dir, e.name) : NULL);
	return r < 0 ? r : 0;
}

int gittree_apply(struct gittree *t, int dir_fd, struct repo_reader *rd, const struct repo_id *id,
		  const char *exclude)
{
	struct apply a = { .mode = t->mode, .rd = rd, .exclude = exclude };

	return apply_dir(&a, t->root, id, dir_fd);
}
