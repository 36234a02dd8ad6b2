/* SPDX-License-Identifier: Apache-2.0 */

/* Paths that commands in a container see; see container_path.h. */

#include "env/container_path.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "env/isolate.h"
#include "env/status.h"
#include "store/base/util.h"

#define LINKS_MAX 40 /* symlinks on the way to a file, as the kernel has it */

/* Appends a component; "..": takes one away. */
static int step(char *path, size_t cap, const char *name, size_t n)
{
	size_t len = strlen(path);

	if (n == 0 || (n == 1 && name[0] == '.'))
		return 0;
	if (n == 2 && name[0] == '.' && name[1] == '.') {
		char *slash = strrchr(path, '/');

		*(slash ? slash : path) = '\0';
		return 0;
	}
	if (len + n + 2 > cap)
		return fail(PLY_INVALID, "the path is too long");
	if (len)
		path[len++] = '/';
	memcpy(path + len, name, n);
	path[len + n] = '\0';
	return 0;
}

static const char *below(const char *path, const char *dir)
{
	size_t len = strlen(dir);

	if (strncmp(path, dir, len) != 0 || (path[len] && path[len] != '/'))
		return NULL;
	path += len;
	while (*path == '/')
		path++;
	return *path ? path : ".";
}

/*
 * Where a path leads that a command in the container names, as a path below e->workdir; "." for the
 * root. Symlinks begin at the container's root. 1: out of the work folder.
 */
static int resolve(struct ply_env *e, const char *path, char *ret, size_t cap)
{
	_cleanup_close_ int root = open(e->workdir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	const struct isolation *i = e->kind;
	_cleanup_free_ char *rest = NULL;
	char target[PATH_MAX], at[PATH_MAX] = "";
	unsigned links = 0;
	int r = 0;

	if (root < 0)
		return fail_errno(errno, "%s", e->workdir);
	if (asprintf(&rest, "%s/%s", path[0] == '/' ? "" : i->cwd, path) < 0) {
		rest = NULL;
		return fail_memory();
	}
	for (char *p = rest; r == 0 && *p;) {
		size_t n = strcspn(p, "/");
		char before[PATH_MAX];
		ssize_t len = -1;

		if (i->at && !*at && n == 2 && memcmp(p, "..", 2) == 0)
			return 1;
		strcpy(before, at);
		r = step(at, sizeof(at), p, n);
		p += n + (p[n] == '/');
		if (r == 0 && *at)
			len = readlinkat(root, at, target, sizeof(target) - 1);
		if (len > 0) {
			const char *to = target;
			char *longer;

			target[len] = '\0';
			if (++links > LINKS_MAX)
				return fail(PLY_INVALID, "%s: too many symlinks", path);
			if (i->at && target[0] == '/' && !(to = below(target, i->at)))
				return 1;
			if (asprintf(&longer, "%s/%s", to, p) < 0)
				return fail_memory();
			free(rest);
			p = rest = longer;
			strcpy(at, target[0] == '/' ? "" : before);
		}
	}
	if (r < 0)
		return r;
	if (strlen(at) >= cap)
		return fail(PLY_INVALID, "the path is too long");
	strcpy(ret, *at ? at : ".");
	return 0;
}

int container_map(struct ply_env *e, const char *path, char ret[static PATH_MAX])
{
	const struct isolation *i = e->kind;
	const char *inside = path[0] == '/' ? below(path, e->workdir) : NULL;

	if (!inside && i->at && path[0] == '/')
		inside = below(path, i->at);
	if (strlen(path) >= PATH_MAX)
		return fail(PLY_INVALID, "the path is too long");
	strcpy(ret, inside ? inside : path);
	if (i->at && !inside && path[0] == '/')
		return 0; /* of the machine */
	if (inside || i->at) {
		_cleanup_free_ char *absolute = NULL;

		if (asprintf(&absolute, "/%s", inside ? inside : path) < 0) {
			absolute = NULL;
			return fail_memory();
		}
		/* What leads out of the folder is refused by who opens it. */
		return MIN(resolve(e, absolute, ret, PATH_MAX), 0);
	}
	return resolve(e, path, ret, PATH_MAX);
}
