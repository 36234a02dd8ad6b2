/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Paths as clients name them (rex.h, rex_place): those of the machine, relative ones from the
 * place's cwd; or, where the place has a `locate`, those of what commands see. Then nothing is
 * opened outside of the place's root, whatever symlinks the commands in it have made meanwhile.
 */

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "env/serve/rex.h"
#include "store/base/util.h"

char *rex_path(const char *path)
{
	char *clean = malloc(strlen(path) + 2), *to = clean;

	if (!clean)
		return NULL;
	if (*path == '/')
		*to++ = '/';
	if (path[0] == '/' && path[1] == '/' && path[2] != '/')
		*to++ = '/'; /* POSIX leaves what two of them mean to the system */
	while (*path) {
		size_t n;

		path += strspn(path, "/");
		n = strcspn(path, "/");
		if (n > 0 && !(n == 1 && *path == '.')) {
			if (to > clean && to[-1] != '/')
				*to++ = '/';
			memcpy(to, path, n);
			to += n;
		}
		path += n;
	}
	if (to == clean)
		*to++ = '.';
	*to = '\0';
	return clean;
}

/*
 * A pipe that commands have made waits in open() for its other end, which may never come: nobody's
 * timeout ends that, nor the server's own end. So it is opened without: one that nobody writes is
 * empty, one that nobody reads is ENXIO. Who reads or writes it gets EAGAIN, and waits himself.
 * Nor does a terminal become ours: its end would be our own (SIGHUP).
 */
static int open_flags(int flags)
{
	return flags | O_CLOEXEC | (flags & O_PATH ? 0 : O_NONBLOCK | O_NOCTTY);
}

int rex_open_below(int dir, const char *path, int flags, unsigned mode)
{
	const struct open_how how = { .flags = (uint64_t)open_flags(flags),
				      .mode = flags & O_CREAT ? mode : 0,
				      .resolve = RESOLVE_BENEATH };
	long fd = syscall(SYS_openat2, dir, path, &how, sizeof(how));

	return fd >= 0 ? (int)fd : errno == EXDEV ? -EACCES : -errno;
}

static int open_located(const struct rex_place *place, const char *path, int flags, unsigned mode)
{
	_cleanup_close_ int root = open(place->root, O_PATH | O_DIRECTORY | O_CLOEXEC);
	char at[PATH_MAX];
	int r;

	if (root < 0)
		return -errno;
	r = place->locate(place->arg, path, at);
	if (r < 0)
		return r == PLY_DENIED ? -EACCES : r == PLY_NO_MEMORY ? -ENOMEM : -ENAMETOOLONG;
	return rex_open_below(root, at, flags, mode);
}

int rex_open(struct rex *rex, const char *path, int flags, unsigned mode)
{
	const struct rex_place *place = rex_get_place(rex);
	_cleanup_free_ char *full = NULL;
	int fd;

	if (!*path)
		path = ".";
	if (place->locate)
		return open_located(place, path, flags, mode);
	if (*path != '/' && place->cwd) {
		if (asprintf(&full, "%s/%s", place->cwd, path) < 0) {
			full = NULL;
			return -ENOMEM;
		}
		path = full;
	}
	fd = open(path, open_flags(flags), mode);
	return fd < 0 ? -errno : fd;
}

int rex_open_parent(struct rex *rex, const char *path, const char **ret_leaf)
{
	const char *slash = strrchr(path, '/');
	_cleanup_free_ char *dir = NULL;
	int fd;

	dir = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
	if (!dir)
		return -ENOMEM;
	fd = rex_open(rex, dir, O_PATH | O_DIRECTORY, 0);
	if (fd >= 0)
		*ret_leaf = slash ? slash + 1 : path;
	return fd;
}

static bool is_directory(struct rex *rex, const char *path)
{
	_cleanup_close_ int fd = rex_open(rex, path, O_PATH | O_DIRECTORY, 0);

	return fd >= 0;
}

/* mkdir; that it is there already is fine. */
static int make_one(struct rex *rex, const char *dir)
{
	const char *leaf = NULL;
	_cleanup_close_ int parent = rex_open_parent(rex, dir, &leaf);

	if (parent < 0)
		return parent;
	return mkdirat(parent, leaf, 0777) < 0 && errno != EEXIST ? -errno : 0;
}

int rex_make_directory(struct rex *rex, const char *path, struct http_response *r)
{
	_cleanup_free_ char *dir = strdup(path);
	_cleanup_close_ int fd = -1;
	int s;

	if (!dir) {
		rex_raisef(r, "builtins.MemoryError", "out of memory");
		return -1;
	}
	if (is_directory(rex, dir))
		return 0;
	for (char *p = dir + 1; *dir; p++) {
		char at = *p;

		if (at != '/' && at != '\0')
			continue;
		*p = '\0';
		s = p[-1] == '/' || is_directory(rex, dir) ? 0 : make_one(rex, dir);
		if (s < 0) {
			rex_raise_errno(r, -s, dir, strlen(dir));
			return -1;
		}
		if (at == '\0')
			break;
		*p = at;
	}
	fd = rex_open(rex, dir, O_PATH | O_DIRECTORY, 0);
	if (fd == -ENOTDIR) {
		rex_raise_errno(r, EEXIST, dir, strlen(dir));
		return -1;
	}
	return 0; /* what else is wrong is told by whoever opens something in it */
}

int rex_make_parents(struct rex *rex, const char *path, struct http_response *r)
{
	const char *slash = strrchr(path, '/');
	_cleanup_free_ char *dir = NULL;

	if (!slash || slash == path)
		return 0;
	dir = strndup(path, (size_t)(slash - path));
	if (!dir) {
		rex_raisef(r, "builtins.MemoryError", "out of memory");
		return -1;
	}
	return rex_make_directory(rex, dir, r);
}
