/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Requests that libfuse 3.14 cannot decode, or hands on without a part that we need, and INIT,
 * whose answer is ours: taken out of the buffer before it sees them. Beside each stands the version
 * that could do without.
 *
 * As in fuse.c: one verb of the view, exactly one reply, and F1.
 */

#include <assert.h>
#include <errno.h>
#include <linux/xattr.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "fs/mount_internal.h"
#include "store/base/err.h"
#include "store/base/util.h"

#define STATX_GIVEN (STATX_BASIC_STATS | STATX_BTIME)

/* STATX (proto 7.39), which <linux/fuse.h> of Debian 12 does not have. */
struct wire_statx_in {
	uint32_t getattr_flags;
	uint32_t reserved;
	uint64_t fh;
	uint32_t sx_flags;
	uint32_t sx_mask;
};
struct wire_sx_time {
	int64_t sec;
	uint32_t nsec;
	int32_t reserved;
};
struct wire_statx_out {
	uint64_t attr_valid;
	uint32_t attr_valid_nsec;
	uint32_t flags;
	uint64_t spare[2];
	uint32_t mask;
	uint32_t blksize;
	uint64_t attributes;
	uint32_t nlink;
	uint32_t uid;
	uint32_t gid;
	uint16_t mode;
	uint16_t spare0;
	uint64_t ino;
	uint64_t size;
	uint64_t blocks;
	uint64_t attributes_mask;
	struct wire_sx_time atime, btime, ctime, mtime;
	uint32_t rdev_major, rdev_minor, dev_major, dev_minor;
	uint64_t spare2[14];
};
static_assert(sizeof(struct wire_statx_in) == 24, "as the kernel has it");
static_assert(sizeof(struct wire_statx_out) == 32 + 256, "as the kernel has it");

/* TMPFILE (proto 7.37): libfuse from 3.17. The name that follows is a placeholder. */
static void raw_tmpfile(struct mount *m, const struct fuse_in_header *in)
{
	const struct fuse_create_in *c = (const void *)(in + 1);
	struct fs_new n = {
		.dir = in->nodeid,
		.mode = S_IFREG | (c->mode & 07777),
		.cred = {
			.uid = in->uid,
			.gid = in->gid,
			.pid = (int32_t)in->pid,
			.umask = c->umask,
		},
	};
	struct created_out out;
	struct entry e;
	int r = view_tmpfile(m->view, &n, &e);

	if (r == 0)
		reply_fill_created(m, &e, c->flags, &out);
	if (requests_reply(m, in, r, &out, sizeof(out)) < 0 && r == 0)
		view_forget(m->view, e.node, 1); /* F1 */
}

static struct wire_sx_time sx_time(struct timens t)
{
	return (struct wire_sx_time){ .sec = t.sec, .nsec = t.nsec };
}

/* STATX (proto 7.39), which brings the birth time: libfuse from 3.18. */
static void raw_statx(struct mount *m, const struct fuse_in_header *in)
{
	struct wire_statx_out out = { 0 };
	struct inode i;
	int r = view_getattr(m->view, in->nodeid, &i);

	mount_tells_attr(m, in->nodeid);
	if (r == 0)
		out = (struct wire_statx_out){
			.attr_valid = mount_valid_s(m),
			.mask = STATX_GIVEN,
			.blksize = BLOCK_BYTES,
			.nlink = i.nlink,
			.uid = i.uid,
			.gid = i.gid,
			.mode = (uint16_t)i.mode,
			.ino = i.ino,
			.size = i.size,
			.blocks = (i.bytes + 511) / 512,
			.atime = sx_time(i.atime),
			.btime = sx_time(i.btime),
			.ctime = sx_time(i.ctime),
			.mtime = sx_time(i.mtime),
			.rdev_major = major(i.rdev),
			.rdev_minor = minor(i.rdev),
		};
	(void)requests_reply(m, in, r, &out, sizeof(out));
}

/* COPY_FILE_RANGE_64 (proto 7.45), whose reply has room for more than 4 GiB: libfuse after 3.18. */
static void raw_copy(struct mount *m, const struct fuse_in_header *in)
{
	const struct fuse_copy_file_range_in *c = (const void *)(in + 1);
	uint64_t done = 0;
	int r = view_copy_range(m->view, in->nodeid, c->off_in, c->nodeid_out, c->off_out, c->len,
				&done);

	(void)requests_reply(m, in, r, &done, sizeof(done));
}

/*
 * SETXATTR with its flags, which no libfuse hands on. ACL_KILL_SGID comes with an ACL from somebody
 * outside the file's group, to whom chmod would not leave the sgid bit either. It comes with a
 * default one as well, which makes no mode.
 */
static void raw_setxattr(struct mount *m, const struct fuse_in_header *in)
{
	const struct fuse_setxattr_in *x = (const void *)(in + 1);
	bool ext = m->offered & FUSE_SETXATTR_EXT;
	size_t head = ext ? sizeof(*x) : FUSE_COMPAT_SETXATTR_IN_SIZE;
	size_t rest = in->len - sizeof(*in);
	const char *name = (const char *)x + head;
	size_t len;
	struct inode i;
	int r;

	rest -= MIN(rest, head);
	len = strnlen(name, rest);
	if (len == rest || x->size > rest - len - 1) {
		(void)requests_reply(m, in, -EINVAL, NULL, 0);
		return;
	}
	r = view_setxattr(m->view, in->nodeid, name, name + len + 1, x->size, (int)x->flags);
	if (r == 0 && ext && (x->setxattr_flags & FUSE_SETXATTR_ACL_KILL_SGID) &&
	    strcmp(name, XATTR_NAME_POSIX_ACL_ACCESS) == 0) {
		r = view_getattr(m->view, in->nodeid, &i);
		if (r == 0 && (i.mode & S_ISGID)) {
			const struct fs_set set = { .mask = SET_MODE, .mode = i.mode & ~S_ISGID };

			r = view_setattr(m->view, in->nodeid, &set, &i);
		}
	}
	(void)requests_reply(m, in, r, NULL, 0);
}

/* SYNCFS (proto 7.34), from kernels that send it for mounts like ours: libfuse from 3.18. */
static void raw_syncfs(struct mount *m, const struct fuse_in_header *in)
{
	(void)readers_step_aside();
	(void)requests_reply(m, in, view_sync(m->view), NULL, 0);
}

/* INIT, which libfuse has heard before (requests_begin); a former process has answered for us. */
static void raw_init(struct mount *m, const struct fuse_in_header *in)
{
	struct fuse_init_out out = { 0 };

	m->negotiated = mount_negotiate(m, (const void *)(in + 1), &out) &&
			(m->resuming || requests_reply(m, in, 0, &out, sizeof(out)) == 0);
}

/* We never stop half-way; ENOSYS spares all further ones. Newer libfuse: conn->no_interrupt. */
static void raw_interrupt(struct mount *m, const struct fuse_in_header *in)
{
	(void)requests_reply(m, in, -ENOSYS, NULL, 0);
}

static const struct raw_op {
	void (*fn)(struct mount *m, const struct fuse_in_header *in);
	size_t body; /* bytes that its struct has at least */
} raw_ops[OPS_MAX] = {
	[FUSE_INIT] = { raw_init, offsetof(struct fuse_init_in, flags2) },
	[FUSE_TMPFILE] = { raw_tmpfile, sizeof(struct fuse_create_in) },
	[FUSE_SETXATTR] = { raw_setxattr, FUSE_COMPAT_SETXATTR_IN_SIZE },
	[FUSE_SYNCFS] = { raw_syncfs, 0 },
	[FUSE_INTERRUPT] = { raw_interrupt, 0 },
	[OP_STATX] = { raw_statx, sizeof(struct wire_statx_in) },
	[OP_COPY_FILE_RANGE_64] = { raw_copy, sizeof(struct fuse_copy_file_range_in) },
};

int requests_raw(struct mount *m, const struct fuse_in_header *in, size_t n)
{
	const struct raw_op *raw = in->opcode < OPS_MAX ? &raw_ops[in->opcode] : NULL;

	if (!raw || !raw->fn)
		return ABSENT;
	if (in->len != n || n < sizeof(*in) + raw->body)
		(void)requests_reply(m, in, -EIO, NULL, 0);
	else
		raw->fn(m, in);
	return 0;
}
