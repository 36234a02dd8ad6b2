/* SPDX-License-Identifier: Apache-2.0 */

/* What can be done with a view, from outside; see workspace.h. */

#include "env/workspace.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "env/program.h"
#include "env/status.h"
#include "env/workspace_internal.h"

_Static_assert(SNAP_TEXT == PLYFS_ID_SIZE, "an id fits");

const char *workspace_path(const struct workspace *ws)
{
	return ws->path;
}

const char *workspace_mount(const struct workspace *ws)
{
	return ws->mount;
}

const char *workspace_branch(const struct workspace *ws)
{
	return ws->branch;
}

const char *workspace_store(const struct workspace *ws)
{
	return ws->store;
}

int workspace_check(const struct workspace *ws)
{
	struct stat st;

	if (stat(ws->mount, &st) == 0 && st.st_dev == ws->device)
		return 0;
	return fail(PLY_FAILED,
		    "the view on '%s' has gone: it was unmounted, or its daemon ended (see "
		    "'%s/daemon.log'); clean up and set the environment up again",
		    ws->mount, ws->store);
}

void workspace_undo_at_close(struct workspace *ws)
{
	ws->ending = ws->undoing;
}

bool workspace_is_new(const struct workspace *ws)
{
	return ws->is_new;
}

bool workspace_is_dropped(const struct workspace *ws)
{
	return ws->ending == DROP;
}

bool workspace_is_written_back(const struct workspace *ws)
{
	return ws->ending == WRITE_BACK;
}

/* ---- ioctls ---- */

/* The view's root, or -errno. A child of the caller's fork() has lost it, and opens it anew. */
static int view(struct workspace *ws)
{
	int r = own_fd_open(&ws->fd, ws->path, O_RDONLY | O_DIRECTORY);

	return r < 0 ? r : own_fd_get(&ws->fd);
}

/* errno as a positive number, or 0. */
static int control(struct workspace *ws, unsigned long request, void *data)
{
	int fd = view(ws);

	if (fd < 0)
		return -fd;
	return plyfs_control(fd, request, data) < 0 ? errno : 0;
}

static int control_failed(struct workspace *ws, int err, const char *what)
{
	switch (err) {
	case ENOTCONN:
	case ECONNABORTED:
	case ENODEV:
		return fail(PLY_FAILED,
			    "%s: the view on '%s' has lost its daemon; see '%s/daemon.log', then "
			    "set the environment up again",
			    what, ws->mount, ws->store);
	case EPERM:
	case EACCES:
		return fail(PLY_DENIED, "%s: only root and the owner of the store '%s' may", what,
			    ws->store);
	case ECONNRESET:
		return fail(PLY_FAILED,
			    "%s: the daemon died meanwhile; look whether it was done before "
			    "you ask again",
			    what);
	default:
		return fail_errno(err, "%s: the view on '%s'", what, ws->mount);
	}
}

int workspace_sync(struct workspace *ws)
{
	int fd = view(ws);

	if (fd < 0 || syncfs(fd) < 0)
		return control_failed(ws, fd < 0 ? -fd : errno, "sync");
	return 0;
}

int workspace_checkpoint(struct workspace *ws, const char *label, bool sync, char ret_id[SNAP_TEXT])
{
	struct plyfs_checkpoint q = { .flags = sync ? PLYFS_CHECKPOINT_SYNC : 0 };
	int r;

	label = label ? label : "";
	if (strlen(label) >= sizeof(q.label))
		return fail(PLY_INVALID, "a label has at most %zu bytes", sizeof(q.label) - 1);
	strcpy(q.label, label);
	r = workspace_sync(ws);
	if (r < 0)
		return r;
	r = control(ws, PLYFS_IOC_CHECKPOINT, &q);
	if (r)
		return control_failed(ws, r, "checkpoint");
	memcpy(ret_id, q.id, SNAP_TEXT);
	return 0;
}

static void put_left(const struct plyfs_restore *q, char ret_left[SNAP_TEXT])
{
	if (!ret_left)
		return;
	if (plyfs_restored_nothing(q))
		ret_left[0] = '\0';
	else
		memcpy(ret_left, q->left, SNAP_TEXT);
}

int workspace_restore(struct workspace *ws, const char *id, char ret_left[SNAP_TEXT])
{
	struct plyfs_restore q = { .mode = 0 };
	int r;

	if (!*id || strlen(id) >= sizeof(q.id))
		return fail(PLY_UNKNOWN_ID, "Checkpoint %.40s not found", id);
	strcpy(q.id, id);
	r = workspace_sync(ws);
	if (r < 0)
		return r;
	r = control(ws, PLYFS_IOC_RESTORE, &q);
	if (r == ENOENT)
		return fail(PLY_UNKNOWN_ID, "Checkpoint %s not found", id);
	if (r == EINVAL)
		return fail(PLY_UNKNOWN_ID,
			    "more than one snapshot id starts with '%s'; give more digits", id);
	if (r)
		return control_failed(ws, r, "restore");
	put_left(&q, ret_left);
	return 0;
}

int workspace_undo(struct workspace *ws, char ret_left[SNAP_TEXT])
{
	struct plyfs_restore q = { .mode = 0 };
	int r;

	r = workspace_sync(ws);
	if (r < 0)
		return r;
	r = control(ws, PLYFS_IOC_UNDO, &q);
	if (r == ENOENT)
		return fail(PLY_STATE, "there is no restore to undo");
	if (r)
		return control_failed(ws, r, "undo");
	put_left(&q, ret_left);
	return 0;
}

int workspace_keep_mounts(struct workspace *ws)
{
	int r = control(ws, PLYFS_IOC_KEEP_MOUNTS, NULL);

	return r ? control_failed(ws, r, "announcing a container") : 0;
}

int workspace_head(struct workspace *ws, char ret_id[SNAP_TEXT])
{
	struct plyfs_info info;
	int r = control(ws, PLYFS_IOC_INFO, &info);

	if (r)
		return control_failed(ws, r, "asking for the last snapshot");
	memcpy(ret_id, info.head, SNAP_TEXT);
	return 0;
}

int workspace_verb(struct workspace *ws, const char *const *argv, struct ply_text *ret)
{
	struct ply_text out = { 0 }, err = { 0 };
	int code = 0, r;

	r = program_run(ws->mount, argv, -1, &out, &err, &code);
	if (r == 0 && code)
		r = fail(PLY_COMMAND_FAILED, "%s",
			 err.len ? err.data : "the plyfs program was ended by a signal");
	ply_text_free(&err);
	if (r < 0) {
		ply_text_free(&out);
		return r;
	}
	*ret = out;
	return 0;
}

/* What PLYFS_IOC_READ gives until the call is over: 0 or an errno. */
static int read_answer(struct workspace *ws, uint64_t handle, struct ply_text *out,
		       struct ply_text *err, int *ret_code)
{
	struct plyfs_read q = { .more = 1 };
	int r = 0;

	while (r == 0 && q.more) {
		q = (struct plyfs_read){ .handle = handle };
		r = control(ws, PLYFS_IOC_READ, &q);
		if (r)
			return r;
		if (q.out_len > sizeof(q.data) || q.err_len > sizeof(q.data) - q.out_len)
			return EPROTO;
		if (text_append(out, q.data, q.out_len) < 0 ||
		    text_append(err, q.data + q.out_len, q.err_len) < 0)
			return ENOMEM;
	}
	*ret_code = q.status;
	return 0;
}

int workspace_ask(struct workspace *ws, const char *const *argv, struct ply_text *ret)
{
	struct ply_text out = { 0 }, err = { 0 };
	struct plyfs_call q = { .args_len = 0 };
	int code = 0, r;

	for (; *argv; argv++) {
		size_t len = strlen(*argv) + 1;

		if (len > sizeof(q.args) - q.args_len)
			return fail(PLY_INVALID, "'%.40s...': too long", *argv);
		memcpy(q.args + q.args_len, *argv, len);
		q.args_len += (uint32_t)len;
	}
	r = text_set(&out, "", 0);
	if (r == 0)
		r = text_set(&err, "", 0);
	if (r == 0) {
		r = control(ws, PLYFS_IOC_CALL, &q);
		if (r == 0)
			r = read_answer(ws, q.handle, &out, &err, &code);
		if (r)
			r = control_failed(ws, r, "asking");
	}
	if (r == 0 && code)
		r = fail(PLY_COMMAND_FAILED, "%s", err.len ? err.data : "no answer");
	ply_text_free(&err);
	if (r < 0) {
		ply_text_free(&out);
		return r;
	}
	*ret = out;
	return 0;
}
