/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The control ioctls of a view: fs/ioctl.h has the contract. Runs on a reader that has passed its
 * mount on, so it may wait; the view outlives the request that brought us here.
 */

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/err.h"
#include "store/base/util.h"
#include "tools/daemon.h"

static_assert(sizeof(struct plyfs_call) <= 16384 && sizeof(struct plyfs_read) <= 16384 &&
		      sizeof(struct plyfs_info) <= 16384,
	      "the kernel carries at most 16 KiB for an ioctl number's size field");

/* Text in a fixed field: NUL-terminated within it. */
static bool is_terminated(const char *field, size_t size)
{
	return memchr(field, 0, size) != NULL;
}

static void put_id(char out[static PLYFS_ID_SIZE], uint64_t id)
{
	memset(out, 0, PLYFS_ID_SIZE);
	if (id)
		snap_id_to_text(id, out);
}

static int do_checkpoint(struct view *v, struct plyfs_checkpoint *q)
{
	uint64_t id;
	int r;

	if (!is_terminated(q->label, sizeof(q->label)))
		return -EINVAL;
	if (view_read_only(v))
		return -EROFS;
	r = view_checkpoint(v, q->label, q->flags & PLYFS_CHECKPOINT_SYNC, &id);
	if (r < 0)
		return r;
	q->flags = r == EXISTS ? PLYFS_CHECKPOINT_SAME : 0;
	put_id(q->id, id);
	return 0;
}

static void put_restored(const struct view_entry *e, struct plyfs_restore *q, uint64_t id,
			 const struct restore_info *info)
{
	bool tell = e->how & MOUNT_INOTIFY && !restore_found_nothing(info);

	memset(q, 0, sizeof(*q));
	put_id(q->id, id);
	q->flags = (info->moved ? PLYFS_RESTORE_MOVED : 0) | (tell ? PLYFS_RESTORE_TELL : 0);
	q->mode = info->mode;
	q->changed = info->changed;
	put_id(q->left, info->left);
}

static int do_restore(const struct view_entry *e, struct view *v, struct plyfs_restore *q)
{
	struct restore_info info = {};
	uint64_t id;
	bool newer;
	int r;

	if (!is_terminated(q->id, sizeof(q->id)))
		return -EINVAL;
	if (view_read_only(v))
		return -EROFS;
	r = snap_find(view_store(v), q->id, &id);
	if (r < 0)
		return r;
	r = view_restore(v, id, &info);
	if (r < 0)
		return r;
	newer = branch_is_newer(view_store(v), q->id, id);
	put_restored(e, q, id, &info);
	q->flags |= newer ? PLYFS_RESTORE_NEWER : 0;
	return 0;
}

static int do_undo(const struct view_entry *e, struct view *v, struct plyfs_restore *q)
{
	struct restore_info info = {};
	uint64_t id;
	int r;

	if (view_read_only(v))
		return -EROFS;
	r = view_undo(v, &id, &info);
	if (r < 0)
		return r;
	put_restored(e, q, id, &info);
	return 0;
}

static int do_fork(struct view *v, struct plyfs_fork *q)
{
	if (!is_terminated(q->name, sizeof(q->name)))
		return -EINVAL;
	return view_fork(v, q->name);
}

bool path_of_fd(int fd, char ret[static PATH_MAX])
{
	char link[32];
	struct stat want, st;
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, ret, PATH_MAX);
	if (n <= 0 || n == PATH_MAX)
		return false;
	ret[n] = '\0';
	/* What was removed, or is not below our root, has a text as well. */
	return fstat(fd, &want) == 0 && stat(ret, &st) == 0 && want.st_dev == st.st_dev &&
	       want.st_ino == st.st_ino;
}

const char *daemon_store_path(int dir_fd, const char *then, char now[static PATH_MAX])
{
	return path_of_fd(dir_fd, now) ? now : then;
}

static int do_info(struct view_entry *e, struct view *v, struct plyfs_info *q)
{
	const uint8_t *u = store_uuid(view_store(v));
	struct branch *b = view_branch(v);
	char path[PATH_MAX];

	*q = (struct plyfs_info){ .version = PLYFS_IOC_VERSION, .read_only = view_read_only(v) };
	if (b) {
		READ_GUARD(&b->lock);

		snprintf(q->branch, sizeof(q->branch), "%s", b->name);
		put_id(q->head, b->head);
		q->changes = b->changes;
	} else {
		put_id(q->head, view_snapshot(v));
	}
	for (int i = 0, n = 0; i < 16; i++)
		n += snprintf(q->uuid + n, sizeof(q->uuid) - (size_t)n, "%s%02x",
			      i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", u[i]);
	snprintf(q->store, sizeof(q->store), "%s",
		 daemon_store_path(e->daemon->dir_fd, e->daemon->store_path, path));
	return 0;
}

static int do_moved(struct view *v, uint64_t node, struct plyfs_moved *q)
{
	size_t len;
	int r = view_moved(v, node, &q->next, q->paths, sizeof(q->paths), &len);

	q->len = (uint32_t)len;
	return r;
}

int control_ioctl(void *arg, struct mount *m, const struct cred *cred, uint64_t node, uint32_t cmd,
		  const void *in, size_t in_len, void *out, size_t out_cap, size_t *ret_out_len)
{
	struct view_entry *e = arg;
	struct view *v = mount_view(m);
	size_t size = _IOC_SIZE(cmd);
	_cleanup_free_ void *q = NULL;
	int r;

	if (!daemon_may(e->daemon, cred->uid))
		return -EPERM;
	if (out_cap < size || (_IOC_DIR(cmd) & _IOC_WRITE && in_len < size))
		return -EINVAL;

	/* A copy of the request becomes the answer. */
	q = calloc(1, size);
	if (!q)
		return -ENOMEM;
	if (size && _IOC_DIR(cmd) & _IOC_WRITE)
		memcpy(q, in, size);

	switch (cmd) {
	case PLYFS_IOC_CHECKPOINT:
		r = do_checkpoint(v, q);
		break;
	case PLYFS_IOC_RESTORE:
		r = do_restore(e, v, q);
		break;
	case PLYFS_IOC_UNDO:
		r = do_undo(e, v, q);
		break;
	case PLYFS_IOC_FORK:
		r = do_fork(v, q);
		break;
	case PLYFS_IOC_INFO:
		r = do_info(e, v, q);
		break;
	case PLYFS_IOC_CALL:
		r = call_start(e, cred, q);
		break;
	case PLYFS_IOC_READ:
		r = call_read(e, cred, q);
		break;
	case PLYFS_IOC_KEEP_MOUNTS:
		view_keep_mounts(v);
		r = 0;
		break;
	case PLYFS_IOC_MOVED:
		r = do_moved(v, node, q);
		break;
	default:
		return -ENOTTY;
	}
	if (r < 0)
		return r;

	memcpy(out, q, size);
	*ret_out_len = size;
	return 0;
}
