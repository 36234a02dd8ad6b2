/* SPDX-License-Identifier: Apache-2.0 */

/* Where verbs on environments work: the view that a directory is in, and our own directories. */

#include "tools/env.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "env/place.h"
#include "fs/ioctl.h"
#include "store/base/util.h"
#include "tools/mounts.h"

void place_release(struct place *p)
{
	free(p->dir);
	free(p->mount);
	free(p->store);
	*p = (struct place){ 0 };
}

/* The root of the mount that a directory lies in; given. NULL: it is not known, errno says why. */
static char *mount_of(const char *dir)
{
	_cleanup_free_ char *at = strdup(dir);
	struct stat here, above;
	int r;

	if (!at || stat(at, &here) < 0)
		return NULL;
	for (char *slash; (slash = strrchr(at, '/')) && at[1];) {
		char kept = slash == at ? at[1] : *slash;

		slash[slash == at] = '\0';
		r = stat(at, &above);
		if (r < 0) /* a directory of the view would pass for its root */
			return NULL;
		if (above.st_dev != here.st_dev) {
			slash[slash == at] = kept;
			break;
		}
	}
	return TAKE_PTR(at);
}

int place_is_view(const char *dir)
{
	_cleanup_close_ int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct plyfs_info info;

	if (fd >= 0 && ioctl(fd, PLYFS_IOC_INFO, &info) == 0)
		return 1;
	if (fd < 0 ? errno == ENOENT || errno == ENOTDIR : plyfs_is_no_view(errno))
		return 0;
	return plyfs_is_dead_view(errno) || errno == EPERM || errno == EACCES ? 0 : -errno;
}

int place_find(const struct cmd *c, const char *dir, struct place *ret)
{
	_cleanup_(place_release) struct place p = { 0 };
	_cleanup_close_ int fd = -1;
	struct plyfs_info info;

	dir = dir ? dir : ".";
	fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 && (errno == ENOTCONN || errno == ECONNABORTED))
		return cmd_fail(c, "the view at '%s' is dead: its daemon ended; 'plyfs unmount' it",
				dir);
	if (fd < 0 && errno == ENOENT)
		return cmd_fail(c, "there is no directory '%s'; 'plyfs env list' tells those of "
				"environments", dir);
	if (fd < 0 && errno == EACCES && mounts_is_closed(dir))
		return cmd_fail(c, "'%s' " MOUNTS_CLOSED, dir);
	if (fd < 0)
		return cmd_fail(c, "'%s': %s", dir, strerror(errno));
	if (ioctl(fd, PLYFS_IOC_INFO, &info) < 0) {
		if (errno == EPERM || errno == EACCES)
			return cmd_fail(c, "'%s': only root and the owner of the view's store may",
					dir);
		if (!plyfs_is_no_view(errno))
			return cmd_fail(c, "the view at '%s': %s", dir, strerror(errno));
		return cmd_fail(c,
				"'%s' is not in a plyfs view; cd into one, %s, or make one: plyfs "
				"env create NAME DIR",
				dir,
				strcmp(c->verb, "env create") == 0 ? "name what to fork by --store"
								   : "give --in DIR");
	}
	if (info.version != PLYFS_IOC_VERSION)
		return cmd_fail(c, "the view at '%s' is of another version of plyfs", dir);
	p.dir = realpath(dir, NULL);
	if (!p.dir && errno == ENOENT) /* or it could not have been opened */
		return cmd_fail(c, "'%s' was removed; cd into a directory that is there", dir);
	p.mount = p.dir ? mount_of(p.dir) : NULL;
	p.store = strndup(info.store, sizeof(info.store));
	if (!p.mount || !p.store)
		return cmd_fail(c, "'%s': %s", dir, strerror(errno));
	(void)snprintf(p.branch, sizeof(p.branch), "%.*s", (int)sizeof(p.branch) - 1, info.branch);
	(void)snprintf(p.head, sizeof(p.head), "%.*s", (int)sizeof(p.head) - 1, info.head);
	*ret = p;
	p = (struct place){ 0 };
	return DONE;
}

/* In /tmp somebody else may have been there before us. */
static int is_ours(const struct cmd *c, const char *path, const struct stat *st,
		   const char *variable)
{
	if (!S_ISDIR(st->st_mode) || st->st_uid != geteuid() || (st->st_mode & 022))
		return cmd_fail(c, "'%s' is not a directory of ours alone; set %s to name another "
				   "place", path, variable);
	return DONE;
}

int place_make_dir(const struct cmd *c, char *path, const char *variable)
{
	struct stat st;

	for (char *p = strchr(path + 1, '/');; p = strchr(p + 1, '/')) {
		if (p)
			*p = 0;
		if (mkdir(path, 0700) < 0 && errno != EEXIST)
			return cmd_fail(c, "making '%s': %s; set %s to name another place", path,
					strerror(errno), variable);
		if (!p)
			break;
		*p = '/';
	}
	if (lstat(path, &st) < 0)
		return cmd_fail(c, "'%s': %s", path, strerror(errno));
	return is_ours(c, path, &st, variable);
}

int place_runtime(const struct cmd *c, const char *name, char **ret)
{
	const char *run = place_runtime_dir();
	char *top, *path;
	int r;

	if (run ? asprintf(&top, "%s/plyfs", run) < 0
			       : asprintf(&top, "/tmp/plyfs-%u", (unsigned)geteuid()) < 0)
		return cmd_fail(c, "%s", strerror(ENOMEM));
	r = place_make_dir(c, top, "XDG_RUNTIME_DIR");
	if (r == DONE && asprintf(&path, "%s/%s", top, name) < 0)
		r = cmd_fail(c, "%s", strerror(ENOMEM));
	free(top);
	if (r)
		return r;
	r = place_make_dir(c, path, "XDG_RUNTIME_DIR");
	if (r)
		free(path);
	else
		*ret = path;
	return r;
}

int place_state(const struct cmd *c, const char *name, char **ret)
{
	const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
	struct stat st;
	char *path;
	int n, r = DONE;

	if (state && *state == '/')
		n = asprintf(&path, "%s/plyfs/%s", state, name);
	else if (home && *home == '/')
		n = asprintf(&path, "%s/.local/state/plyfs/%s", home, name);
	else
		return cmd_fail(c, "neither XDG_STATE_HOME nor HOME says where environments are "
				   "remembered; set one");
	if (n < 0)
		return cmd_fail(c, "%s", strerror(ENOMEM));
	if (lstat(path, &st) == 0)
		r = is_ours(c, path, &st, "XDG_STATE_HOME");
	if (r)
		free(path);
	else
		*ret = path;
	return r;
}
