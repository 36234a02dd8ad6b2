/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Kind "git": what a snapshot holds and how it differs from another. A snapshot is read through a
 * read-only mount of its own, which is off the path again at once; the path is known to the
 * keeper, so that a killed caller leaves none.
 */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include "env/commits_internal.h"
#include "env/program.h"
#include "env/status.h"
#include "store/base/util.h"

/* ---- snapshots, looked at ---- */

int mount_snapshot(struct ply_env *e, const char *snap, char **ret_path, int *ret_fd)
{
	struct commits *k = commits_of(e);
	const char *args[] = { "--store",    workspace_store(e->ws),
			       "mount",	     "--private",
			       "--snapshot", snap,
			       "--at",	     k->at,
			       NULL };
	_cleanup_free_ char *path = NULL;
	int fd, r = workspace_held_verb(e->keeper, "/", args);

	if (r < 0)
		return fail_in(r, "mounting snapshot %s", snap);
	if (asprintf(&path, "%s/%s", k->at, k->sub) < 0) {
		path = NULL;
		return fail_memory();
	}
	path[strlen(path) - 1] = '\0'; /* the slash that sub, or the format, ends in */
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return fail_errno(errno, "'%s' of snapshot %s", k->sub, snap);
	*ret_path = TAKE_PTR(path);
	*ret_fd = fd;
	return 0;
}

void take_off(const char *path)
{
	const char *const args[] = { "unmount", "--lazy", "--", path, NULL };
	struct ply_text out = { 0 }, err = { 0 };
	int code;

	if (umount2(path, MNT_DETACH) == 0 || errno == EINVAL)
		return;
	if (program_run("/", args, -1, &out, &err, &code) == 0) { /* an ordinary user's way */
		ply_text_free(&out);
		ply_text_free(&err);
	}
}

void unmount_snapshot(struct ply_env *e)
{
	take_off(commits_of(e)->at);
}

int list_changes(struct ply_env *e, const char *from, const char *to, struct ply_text *ret)
{
	const char *const args[] = { "diff", "-z", "--no-renames", "--name-status", "--", from,
				     to,     NULL };

	return workspace_ask(e->ws, args, ret);
}

char *next_change(const struct commits *k, const struct ply_text *list, size_t *at,
			 char *ret_status)
{
	while (*at < list->len) {
		char *status = list->data + *at, *path = status + strlen(status) + 1;
		size_t len, sub = strlen(k->sub);

		if (path >= list->data + list->len)
			break;
		len = strlen(path);
		*at = (size_t)(path - list->data) + len + 1;
		if (len && path[len - 1] == '/')
			path[len - 1] = '\0';
		if (strncmp(path, k->sub, sub) != 0)
			continue;
		*ret_status = *status;
		return path + sub;
	}
	return NULL;
}

/* ---- the tree of a snapshot ---- */

/* Where nothing that git could hold has changed, len is 0. NULL data: everything may have. */
static int relevant_changes(struct ply_env *e, const char *snap, struct ply_text *ret)
{
	struct commits *k = commits_of(e);
	_cleanup_(ply_text_free) struct ply_text list = { 0 }, paths = { 0 };
	size_t at = 0;
	char status, *path;

	if (!k->tree || !*k->base)
		return 0;
	if (list_changes(e, k->base, snap, &list) < 0)
		return 0;		   /* the last snapshot was dropped */
	paths.data = malloc(list.len + 1); /* no longer than the list */
	if (!paths.data)
		return fail_memory();
	while ((path = next_change(k, &list, &at, &status))) {
		if (!gittree_concerns(k->tree, path))
			continue;
		memcpy(paths.data + paths.len, path, strlen(path) + 1);
		paths.len += strlen(path) + 1;
	}
	*ret = paths;
	paths.data = NULL;
	return 0;
}

static int look_at_snapshot(struct ply_env *e, const char *snap, const struct ply_text *changes,
			    struct repo_batch *batch)
{
	struct commits *k = commits_of(e);
	_cleanup_free_ char *path = NULL;
	_cleanup_close_ int fd = -1;
	int r = 0;

	if (!changes->data) {
		gittree_free(TAKE_PTR(k->tree));
		r = gittree_new(k->mode, &k->tree);
	}
	if (r == 0)
		r = mount_snapshot(e, snap, &path, &fd);
	if (r == 0)
		r = gittree_update(k->tree, path, fd, changes->data, changes->len, k->vault, batch,
				   &k->root);
	unmount_snapshot(e);
	if (r == 0 && batch->n > 0)
		batch->dir_fd = TAKE_FD(fd);
	return r;
}

int update_tree(struct ply_env *e, const char *snap, struct repo_batch *batch)
{
	struct commits *k = commits_of(e);
	_cleanup_(ply_text_free) struct ply_text changes = { 0 };
	int r = 0;

	if (k->tree && strcmp(k->base, snap) == 0)
		return 0;
	r = relevant_changes(e, snap, &changes);
	if (r == 0 && (!changes.data || changes.len > 0))
		r = look_at_snapshot(e, snap, &changes, batch);
	if (r < 0) {
		gittree_free(TAKE_PTR(k->tree));
		k->base[0] = '\0';
		return r;
	}
	memcpy(k->base, snap, SNAP_TEXT);
	return 0;
}
