/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The daemon's side of telling watchers which names a restore made and removed (mount --inotify);
 * watchers.c is its caller's.
 *
 * Who watches a directory is told IN_CREATE and IN_DELETE by system calls alone that make or remove
 * a name in it. So the caller does once more what the restore did: mknod(2), mkdir(2) or symlink(2)
 * of a name that is there, unlink(2) or rmdir(2) of one that is not. For that his LOOKUP of the one
 * is answered with nothing, of the other with a ghost, and then his call with what the name is, or
 * that it was removed. He announces it by getxattr(2) of the directory, which is no event.
 *
 *  A1 A call that was announced changes nothing, whatever there is by then.
 *  A2 It shows to nobody else: only his thread's LOOKUPs in this directory are answered so, and no
 *     answer but one about what is there is valid for longer than the call.
 *  A3 An announcement can be lost (this process dies; more callers than there is room for). Then
 *     mknod of what is there is EEXIST, and unlink of what is not ENOENT, as ever. So the caller
 *     announces what he has seen to be so, a moment before he calls, and unlinks a ghost only.
 *  A4 For mkdir the kernel looks a name up that it has, and lets go of it if nothing is said to be
 *     there, with all below and what is mounted there. So of a directory that the kernel knows the
 *     truth is told, which is EEXIST, and no event.
 *  A5 Who is killed between his announcement and his call leaves it behind, and his number goes to
 *     another thread some day. That one began after the announcement, so it is none of his.
 */

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "fs/ioctl.h"
#include "fs/mount_internal.h"
#include "store/base/err.h"
#include "store/base/util.h"

/* No node of a view: its slot would be the last of 2^32 (vnode.c). */
#define GHOST_NODE (UINT64_MAX - 1)

static bool may_announce(const struct fuse_in_header *in)
{
	return in->uid == 0 || in->uid == geteuid();
}

static uint64_t boottime_ns(void)
{
	struct timespec ts = { 0 };

	(void)clock_gettime(CLOCK_BOOTTIME, &ts); /* cannot fail for this clock */
	return (uint64_t)ts.tv_sec * UINT64_C(1000000000) + (uint64_t)ts.tv_nsec;
}

/* By the same clock, or 0: it is not to be seen in our /proc. */
static uint64_t thread_began_ns(uint32_t thread)
{
	char path[32], text[1024]; /* the first 22 fields are 500 bytes at most */
	const char *at;

	(void)snprintf(path, sizeof(path), "/proc/%" PRIu32 "/stat", thread);
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

	text[MAX(n, 0)] = '\0';
	at = strrchr(text, ')'); /* the second field ends, which may be anything */
	for (int field = 2; at && field < 22; field++)
		at = strchr(at + 1, ' ');
	return at ? strtoull(at, NULL, 10) *
			    (UINT64_C(1000000000) / (uint64_t)sysconf(_SC_CLK_TCK))
		  : 0;
}

/*
 * A5. /proc tells it to 10 ms, within which nobody gets another's number; and as a call comes 0.1
 * ms after its announcement, /proc is hardly ever asked.
 */
#define SURE_NS UINT64_C(10000000)
static bool is_still_his(const struct announced *a)
{
	return boottime_ns() - a->when_ns < SURE_NS || thread_began_ns(a->thread) <= a->when_ns;
}

/* What this thread announced in this directory; `last`: and does now. */
static enum announced_kind announced(struct mount *m, const struct fuse_in_header *in, bool last)
{
	LOCK_GUARD(&m->announced_lock);

	for (unsigned i = 0; i < ARRAY_SIZE(m->announced); i++) {
		struct announced *a = &m->announced[i];
		enum announced_kind kind = a->kind;

		if (kind == NOT_ANNOUNCED || a->thread != in->pid || a->dir != in->nodeid)
			continue;
		if (!is_still_his(a))
			kind = NOT_ANNOUNCED;
		if (last || kind == NOT_ANNOUNCED)
			*a = (struct announced){ 0 };
		return kind;
	}
	return NOT_ANNOUNCED;
}

/* In place of what it announced before, where there is room, or of the oldest (A3). */
static void announce(struct mount *m, const struct fuse_in_header *in, enum announced_kind kind)
{
	LOCK_GUARD(&m->announced_lock);
	struct announced *own = NULL, *at = NULL;

	for (unsigned i = 0; i < ARRAY_SIZE(m->announced); i++) {
		struct announced *a = &m->announced[i];

		if (a->kind != NOT_ANNOUNCED && a->thread == in->pid)
			own = a;
		if (!at || a->serial < at->serial)
			at = a;
	}
	if (own)
		*own = (struct announced){ 0 };
	if (kind != NOT_ANNOUNCED)
		*(own ? own : at) = (struct announced){ .kind = kind, .thread = in->pid,
							.dir = in->nodeid,
							.serial = ++m->n_announced,
							.when_ns = boottime_ns() };
}

static int on_getxattr(struct mount *m, const struct fuse_in_header *in, const char *name)
{
	static const struct {
		const char *name;
		enum announced_kind kind;
	} table[] = {
		{ PLYFS_XATTR_MADE, ANNOUNCED_MADE },
		{ PLYFS_XATTR_GONE, ANNOUNCED_GONE },
		{ PLYFS_XATTR_GONE_DIR, ANNOUNCED_GONE_DIR },
		{ PLYFS_XATTR_NOTHING, NOT_ANNOUNCED },
	};
	const struct fuse_getxattr_in *x = (const void *)(in + 1);
	static const struct fuse_getxattr_out empty = { 0 };

	if (!may_announce(in) || in->pid == 0) /* of a PID namespace that is not below ours */
		return ABSENT;
	for (unsigned i = 0; i < ARRAY_SIZE(table); i++) {
		if (strcmp(name, table[i].name) != 0)
			continue;
		announce(m, in, table[i].kind);
		(void)requests_reply(m, in, 0, &empty, x->size == 0 ? sizeof(empty) : 0);
		return 0;
	}
	return ABSENT;
}

static int on_setxattr(struct mount *m, const struct fuse_in_header *in, const char *name)
{
	if (!may_announce(in) || strcmp(name, PLYFS_XATTR_RESTORED) != 0)
		return ABSENT;
	(void)requests_reply(m, in, 0, NULL, 0); /* the kernel makes the event */
	return 0;
}

/* 0, or -errno as of a lookup. */
static int is_there(struct mount *m, uint64_t dir, const char *name)
{
	struct entry e;
	int r = view_lookup(m->view, dir, name, strlen(name), &e);

	if (r == 0)
		view_forget(m->view, e.node, 1);
	return r;
}

/* A4 */
static bool is_known_dir(struct mount *m, uint64_t dir, const char *name)
{
	uint64_t node = view_known(m->view, dir, name, strlen(name));
	struct inode i;

	return node && view_getattr(m->view, node, &i) == 0 && S_ISDIR(i.mode);
}

static int on_lookup(struct mount *m, const struct fuse_in_header *in, const char *name)
{
	enum announced_kind kind = announced(m, in, false);
	struct fuse_entry_out out = { 0 };

	if (kind == NOT_ANNOUNCED || (kind == ANNOUNCED_MADE && is_known_dir(m, in->nodeid, name)))
		return ABSENT;
	if (kind != ANNOUNCED_MADE) {
		bool dir = kind == ANNOUNCED_GONE_DIR;

		if (is_there(m, in->nodeid, name) != -ENOENT)
			return ABSENT;
		out = (struct fuse_entry_out){
			.nodeid = GHOST_NODE,
			.attr_valid = UINT32_MAX, /* nobody has to ask for them */
			.attr = {
				.ino = PLYFS_GHOST_INO,
				.mode = dir ? S_IFDIR | 0700 : S_IFREG | 0600,
				.nlink = dir ? 2 : 1,
				.uid = in->uid,
				.gid = in->gid,
			},
		};
	}
	(void)requests_reply(m, in, 0, &out, sizeof(out));
	return 0;
}

static int on_remove(struct mount *m, const struct fuse_in_header *in, const char *name)
{
	enum announced_kind kind = announced(m, in, true);
	int r;

	if (kind != (in->opcode == FUSE_RMDIR ? ANNOUNCED_GONE_DIR : ANNOUNCED_GONE))
		return ABSENT; /* not by who has announced something: he was killed since */
	r = is_there(m, in->nodeid, name);
	(void)requests_reply(m, in, r == 0 ? -EEXIST : r == -ENOENT ? 0 : r, NULL, 0);
	return 0;
}

static int make(struct mount *m, const struct fuse_in_header *in, const char *name, uint32_t type)
{
	struct fuse_entry_out out;
	struct entry e;
	int r;

	if (announced(m, in, true) != ANNOUNCED_MADE)
		return ABSENT;
	r = view_lookup(m->view, in->nodeid, name, strlen(name), &e);
	if (r == 0 && (e.inode.mode & S_IFMT) != type) {
		view_forget(m->view, e.node, 1);
		r = S_ISLNK(e.inode.mode) ? -ELOOP : -EEXIST;
	}
	if (r == 0) {
		reply_fill_entry(m, &e, &out);
		mount_tells_attr(m, e.node);
	}
	if (requests_reply(m, in, r, &out, sizeof(out)) < 0 && r == 0)
		view_forget(m->view, e.node, 1); /* F1 */
	return 0;
}

static int on_mknod(struct mount *m, const struct fuse_in_header *in, const char *name)
{
	return make(m, in, name, S_IFREG);
}

static int on_mkdir(struct mount *m, const struct fuse_in_header *in, const char *name)
{
	return make(m, in, name, S_IFDIR);
}

static int on_symlink(struct mount *m, const struct fuse_in_header *in, const char *name)
{
	return make(m, in, name, S_IFLNK);
}

static const struct announced_op {
	int (*fn)(struct mount *m, const struct fuse_in_header *in, const char *name);
	size_t head; /* bytes before the name */
} announced_ops[OPS_MAX] = {
	[FUSE_GETXATTR] = { on_getxattr, sizeof(struct fuse_getxattr_in) },
	[FUSE_LOOKUP] = { on_lookup, 0 },
	[FUSE_UNLINK] = { on_remove, 0 },
	[FUSE_RMDIR] = { on_remove, 0 },
	[FUSE_MKNOD] = { on_mknod, sizeof(struct fuse_mknod_in) },
	[FUSE_MKDIR] = { on_mkdir, sizeof(struct fuse_mkdir_in) },
	[FUSE_SYMLINK] = { on_symlink, 0 },
};

int requests_announced(struct mount *m, const struct fuse_in_header *in, size_t n)
{
	struct announced_op op = { 0 };
	const char *name = (const char *)(in + 1);

	if (!(m->how & MOUNT_INOTIFY) || in->opcode >= OPS_MAX)
		return ABSENT;
	op = announced_ops[in->opcode];
	if (in->opcode == FUSE_SETXATTR)
		op = (struct announced_op){
			.fn = on_setxattr,
			.head = m->offered & FUSE_SETXATTR_EXT ? sizeof(struct fuse_setxattr_in)
							       : FUSE_COMPAT_SETXATTR_IN_SIZE,
		};
	if (!op.fn || in->len != n || n <= sizeof(*in) + op.head ||
	    !memchr(name + op.head, '\0', n - sizeof(*in) - op.head))
		return ABSENT;
	return op.fn(m, in, name + op.head);
}
