/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The FUSE adapter: decodes a request, calls one verb of the view, sends exactly one reply. The
 * only file that knows libfuse.
 *
 * libfuse decodes. Replies are sent by ourselves, in the kernel's own structs (reply.c): that is
 * shorter than through struct stat, keeps 64-bit times, tells whether the kernel took them (F1),
 * and they may go into a ring. What libfuse 3.14 cannot decode is taken out of the buffer before it
 * (raw.c), and so is what no request of a program is, but a way to tell watchers of a restore
 * (announced.c).
 *
 * Invariants:
 *  F1  A reply that carries a node id counts one reference in the view for each; if the kernel did
 *      not take the reply, the reference is taken back, or the node would live for ever.
 *  F2  Entries, attributes and negative entries are valid for ever: the view tells the kernel what
 *      changes behind its back (view.h), the adapter what it does not date (mount_undated).
 *  F3  Nothing about open files is known here (no OPEN, no RELEASE): nodes live by references.
 *      Only with --passthrough opens are told, and those of large files counted (pass.c).
 *  F4  A short READ reply means the end of the file to the kernel, which then cuts its own idea of
 *      the size; so a reply is short at the end of the file only.
 */

#define FUSE_USE_VERSION 314

#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>

#include "fs/memo.h"
#include "fs/mount_internal.h"
#include "fs/uring.h"
#include "store/base/err.h"
#include "store/base/note.h"
#include "store/base/util.h"

/* The request that this thread handles. */
static _Thread_local struct {
	struct mount *mount;
	const struct fuse_in_header *header; /* the body follows */
	const struct reader_buffers *buffers;
	uint64_t undated[4]; /* what it changes (mount_undated) */
	unsigned n_undated;
	bool lost; /* the kernel did not take the reply */
} current;

/* ---- replies ---- */

/* The reply to the request that this thread handles; a failure matters to F1. */
static int send_reply(struct mount *m, const struct iovec *iov, int count)
{
	int r;
#ifdef PLYFS_TEST_HOOKS
	char name[PATH_MAX];

	if (m->test_die) {
		snprintf(name, sizeof(name), "%s/%u", m->test_die, current.header->opcode);
		if (unlink(name) == 0)
			(void)raise(SIGKILL);
	}
#endif
	for (unsigned i = 0; i < current.n_undated; i++)
		mount_undated(m, current.undated[i]);
	r = uring_reply(iov, count);
	if (r == ABSENT)
		r = mount_send(m, iov, count);
	current.lost = r < 0;
	return r;
}

int requests_reply(struct mount *m, const struct fuse_in_header *in, int r, const void *body,
		   size_t len)
{
	struct fuse_out_header out = {
		.len = (uint32_t)(sizeof(out) + (r < 0 ? 0 : len)),
		.error = r < 0 ? -err_errno(r) : 0,
		.unique = in->unique,
	};
	const struct iovec iov[] = { { &out, sizeof(out) }, { (void *)body, len } };

	return send_reply(m, iov, r < 0 || len == 0 ? 1 : 2);
}

/* The same in pieces; iov[0] is the header's. */
static void reply_pieces(fuse_req_t req, struct iovec *iov, int count)
{
	struct fuse_out_header out = { .len = sizeof(out), .unique = current.header->unique };

	iov[0] = (struct iovec){ &out, sizeof(out) };
	for (int i = 1; i < count; i++)
		out.len += (uint32_t)iov[i].iov_len;
	(void)send_reply(fuse_req_userdata(req), iov, count); /* current.lost */
	fuse_reply_none(req); /* libfuse has done its part */
}

static struct mount *mount_of(fuse_req_t req)
{
	return fuse_req_userdata(req);
}

static struct view *view_of(fuse_req_t req)
{
	return mount_of(req)->view;
}

static struct cred cred_of(fuse_req_t req)
{
	const struct fuse_ctx *c = fuse_req_ctx(req);

	return (struct cred){ .uid = c->uid, .gid = c->gid, .pid = c->pid, .umask = c->umask };
}

static void reply_result(fuse_req_t req, int r)
{
	(void)requests_reply(mount_of(req), current.header, r, NULL, 0); /* current.lost */
	fuse_reply_none(req);
}

static void reply_body(fuse_req_t req, const void *body, size_t len)
{
	(void)requests_reply(mount_of(req), current.header, 0, body, len); /* current.lost */
	fuse_reply_none(req);
}

static void forget_if_lost(struct mount *m, uint64_t node) /* F1 */
{
	if (current.lost)
		view_forget(m->view, node, 1);
}

static void reply_entry_for(fuse_req_t req, int r, const struct entry *e, uint64_t attr_valid_s)
{
	struct mount *m = mount_of(req);
	struct fuse_entry_out out;

	if (r < 0) {
		reply_result(req, r);
		return;
	}
	reply_fill_entry(m, e, &out);
	out.attr_valid = attr_valid_s;
	mount_tells_attr(m, e->node);
	reply_body(req, &out, sizeof(out));
	forget_if_lost(m, e->node);
}

static void reply_entry(fuse_req_t req, int r, const struct entry *e)
{
	reply_entry_for(req, r, e, mount_valid_s(mount_of(req)));
}

static void reply_attr(fuse_req_t req, int r, const struct inode *i)
{
	struct fuse_attr_out out = { 0 };

	if (r < 0) {
		reply_result(req, r);
		return;
	}
	out.attr_valid = mount_valid_s(mount_of(req));
	reply_fill_attr(i, &out.attr);
	reply_body(req, &out, sizeof(out));
}

/* ---- names ---- */

static void op_lookup(fuse_req_t req, fuse_ino_t dir, const char *name)
{
	struct mount *m = mount_of(req);
	struct entry e;
	int r = view_lookup(m->view, dir, name, strlen(name), &e);

	if (r == -ENOENT && mount_uses(m, LEVER_CACHE)) {
		/* Node id 0 with a lifetime: the kernel remembers that the name is not there. */
		struct fuse_entry_out out = { .entry_valid = mount_valid_s(m) };

		reply_body(req, &out, sizeof(out));
		return;
	}
	reply_entry(req, r, &e);
}

static void op_forget(fuse_req_t req, fuse_ino_t node, uint64_t n)
{
	view_forget(view_of(req), node, n);
	fuse_reply_none(req);
}

static void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
	for (size_t i = 0; i < count; i++)
		view_forget(view_of(req), forgets[i].ino, forgets[i].nlookup);
	fuse_reply_none(req);
}

static void make(fuse_req_t req, fuse_ino_t dir, const char *name, uint32_t mode, uint64_t rdev,
		 const char *target)
{
	struct fs_new n = {
		.dir = dir,
		.name = name,
		.len = strlen(name),
		.mode = mode,
		.rdev = rdev,
		.target = target,
		.cred = cred_of(req),
	};
	struct entry e;

	reply_entry(req, view_create(view_of(req), &n, &e), &e);
}

static void op_mknod(fuse_req_t req, fuse_ino_t dir, const char *name, mode_t mode, dev_t rdev)
{
	make(req, dir, name, mode, rdev, NULL);
}

static void op_mkdir(fuse_req_t req, fuse_ino_t dir, const char *name, mode_t mode)
{
	make(req, dir, name, S_IFDIR | (mode & 07777), 0, NULL);
}

static void op_symlink(fuse_req_t req, const char *target, fuse_ino_t dir, const char *name)
{
	make(req, dir, name, S_IFLNK | 0777, 0, target);
}

static void op_create(fuse_req_t req, fuse_ino_t dir, const char *name, mode_t mode,
		      struct fuse_file_info *fi)
{
	struct mount *m = mount_of(req);
	struct fs_new n = {
		.dir = dir,
		.name = name,
		.len = strlen(name),
		.mode = S_IFREG | (mode & 07777),
		.cred = cred_of(req),
	};
	struct created_out out;
	struct entry e;
	int r;

	r = view_create(m->view, &n, &e);
	/*
	 * A restore made it since the kernel looked. The answer to CREATE is not checked against
	 * who may open what; after this one the kernel looks again, and checks.
	 */
	if (r == -EEXIST && !(fi->flags & O_EXCL))
		r = -ESTALE;
	if (r < 0) {
		reply_result(req, r);
		return;
	}
	reply_fill_created(m, &e, (uint32_t)fi->flags, &out);
	reply_body(req, &out, sizeof(out));
	forget_if_lost(m, e.node);
}

static void op_link(fuse_req_t req, fuse_ino_t node, fuse_ino_t dir, const char *name)
{
	struct entry e;

	/*
	 * The kernel takes these attributes whatever newer ones it was told of. Of a file that it
	 * writes back meanwhile they may be older, so they do not hold.
	 */
	reply_entry_for(req, view_link(view_of(req), node, dir, name, strlen(name), &e), &e, 0);
}

static void op_unlink(fuse_req_t req, fuse_ino_t dir, const char *name)
{
	reply_result(req, view_unlink(view_of(req), dir, name, strlen(name)));
}

static void op_rmdir(fuse_req_t req, fuse_ino_t dir, const char *name)
{
	reply_result(req, view_rmdir(view_of(req), dir, name, strlen(name)));
}

static void op_rename(fuse_req_t req, fuse_ino_t odir, const char *oname, fuse_ino_t ndir,
		      const char *nname, unsigned flags)
{
	struct view *v = view_of(req);
	int r = view_rename(v, odir, oname, strlen(oname), ndir, nname, strlen(nname), flags);

	if (r == 0) { /* these have a new ctime */
		current.undated[current.n_undated++] = view_known(v, ndir, nname, strlen(nname));
		if (flags & RENAME_EXCHANGE)
			current.undated[current.n_undated++] =
				view_known(v, odir, oname, strlen(oname));
	}
	reply_result(req, r);
}

static void op_readlink(fuse_req_t req, fuse_ino_t node)
{
	char target[4096];
	size_t len;
	int r = view_readlink(view_of(req), node, target, sizeof(target), &len);

	if (r < 0)
		reply_result(req, r);
	else
		reply_body(req, target, len);
}

/* ---- directories ---- */

/* A reference of a READDIRPLUS reply that nobody got (F1). */
static void forget(struct mount *m, uint64_t node)
{
	view_forget(m->view, node, 1);
}

static void list(fuse_req_t req, fuse_ino_t dir, size_t size, off_t off, bool plus)
{
	struct listing l = {
		.mount = mount_of(req),
		.buf = current.buffers->reply,
		.cap = MIN(size, REPLY_BYTES),
		.plus = plus,
	};
	int r = view_readdir(l.mount->view, dir, (uint64_t)off, plus, listing_add, &l);

	if (r < 0 && l.used == 0) { /* else what was listed counts, and the next call fails */
		reply_result(req, r);
		return;
	}
	if (plus)
		listing_each(&l, mount_tells_attr);
	reply_body(req, l.buf, l.used);
	if (plus && current.lost)
		listing_each(&l, forget);
}

static void op_readdir(fuse_req_t req, fuse_ino_t dir, size_t size, off_t off,
		       struct fuse_file_info *fi)
{
	list(req, dir, size, off, false);
}

static void op_readdirplus(fuse_req_t req, fuse_ino_t dir, size_t size, off_t off,
			   struct fuse_file_info *fi)
{
	list(req, dir, size, off, true);
}

/* ---- attributes ---- */

static void op_getattr(fuse_req_t req, fuse_ino_t node, struct fuse_file_info *fi)
{
	struct mount *m = mount_of(req);
	struct inode i;
	int r = view_getattr(m->view, node, &i);

	mount_tells_attr(m, node);
	reply_attr(req, r, &i);
}

/* FATTR_KILL_SUIDGID: libfuse hands it on from 3.17 (FUSE_SET_ATTR_KILL_SUID and _SGID). */
static uint32_t setattr_valid(void)
{
	return ((const struct fuse_setattr_in *)(current.header + 1))->valid;
}

static void op_setattr(fuse_req_t req, fuse_ino_t node, struct stat *st, int to_set,
		       struct fuse_file_info *fi)
{
	struct fs_set set = {
		.mode = st->st_mode,
		.uid = st->st_uid,
		.gid = st->st_gid,
		.size = (uint64_t)st->st_size,
		.atime = { st->st_atim.tv_sec, (uint32_t)st->st_atim.tv_nsec },
		.mtime = { st->st_mtim.tv_sec, (uint32_t)st->st_mtim.tv_nsec },
		.ctime = { st->st_ctim.tv_sec, (uint32_t)st->st_ctim.tv_nsec },
	};
	uint32_t valid = setattr_valid();
	struct inode i;

	if (valid & FATTR_MODE)
		set.mask |= SET_MODE;
	if (valid & FATTR_UID)
		set.mask |= SET_UID;
	if (valid & FATTR_GID)
		set.mask |= SET_GID;
	if (valid & FATTR_SIZE)
		set.mask |= SET_SIZE;
	if (valid & FATTR_ATIME)
		set.mask |= valid & FATTR_ATIME_NOW ? SET_ATIME_NOW : SET_ATIME;
	if (valid & FATTR_MTIME)
		set.mask |= valid & FATTR_MTIME_NOW ? SET_MTIME_NOW : SET_MTIME;
	if (valid & FATTR_CTIME)
		set.mask |= SET_CTIME;
	/*
	 * A request that sets nothing is how the kernel says, under HANDLE_KILLPRIV_V2, that the
	 * bits must go: chown(2) to nobody new, fallocate(2). Who may take them, it leaves to us.
	 * (With a new owner it has checked, and the model clears them itself.)
	 */
	if (!set.mask) {
		set.mask = SET_KILL_PRIV | SET_KILL_AS;
		set.caller = cred_of(req).uid;
	}
	if (valid & FATTR_KILL_SUIDGID)
		set.mask |= SET_KILL_PRIV;

	reply_attr(req, view_setattr(view_of(req), node, &set, &i), &i);
}

static void op_statfs(fuse_req_t req, fuse_ino_t node)
{
	struct view_stats stats;
	struct fuse_statfs_out out = {
		.st = { .bsize = BLOCK_BYTES, .frsize = BLOCK_BYTES, .namelen = NAME_LEN_MAX },
	};
	int r = view_stat(view_of(req), &stats);

	if (r < 0) {
		reply_result(req, r);
		return;
	}
	out.st.bfree = out.st.bavail = stats.bytes_free / BLOCK_BYTES;
	out.st.blocks = out.st.bfree + (stats.bytes_used + BLOCK_BYTES - 1) / BLOCK_BYTES;
	/* Inodes stay 0: they are not counted, nor limited but by space (fs/README.md). */
	reply_body(req, &out, sizeof(out));
}

/* ---- extended attributes ---- */

static void reply_xattr(fuse_req_t req, int r, size_t asked, size_t len)
{
	const struct fuse_getxattr_out out = { .size = (uint32_t)len };

	if (r < 0)
		reply_result(req, r);
	else if (asked == 0)
		reply_body(req, &out, sizeof(out));
	else
		reply_body(req, current.buffers->reply, len);
}

static void op_getxattr(fuse_req_t req, fuse_ino_t node, const char *name, size_t size)
{
	size_t len = 0;
	int r = view_getxattr(view_of(req), node, name, current.buffers->reply,
			      MIN(size, REPLY_BYTES), &len);

	reply_xattr(req, r, size, len);
}

static void op_listxattr(fuse_req_t req, fuse_ino_t node, size_t size)
{
	size_t len = 0;
	char *names = (char *)current.buffers->reply;
	int r = view_listxattr(view_of(req), node, names, REPLY_BYTES, &len);

	if (r >= 0 && cred_of(req).uid != 0)
		len = reply_drop_trusted(names, len);
	if (r >= 0 && size > 0 && len > size)
		r = -ERANGE;
	reply_xattr(req, r, size, len);
}

static void op_removexattr(fuse_req_t req, fuse_ino_t node, const char *name)
{
	reply_result(req, view_removexattr(view_of(req), node, name));
}

/* ---- data ---- */

/*
 * Descriptors are not our affair (F3): the first ENOSYS spares all further OPENs and RELEASEs. The
 * kernel then keeps what is cached from one open to the next.
 */
static void op_open(fuse_req_t req, fuse_ino_t node, struct fuse_file_info *fi)
{
	const struct mount *m = mount_of(req);
	struct fuse_open_out out = { 0 };

	if (mount_uses(m, LEVER_NO_OPEN) && mount_uses(m, LEVER_CACHE)) {
		reply_result(req, -ENOSYS);
		return;
	}
	if (mount_uses(m, LEVER_CACHE)) /* the latter of a directory; else it means nothing */
		out.open_flags = FOPEN_KEEP_CACHE | FOPEN_CACHE_DIR;
	reply_body(req, &out, sizeof(out));
}

static void op_release(fuse_req_t req, fuse_ino_t node, struct fuse_file_info *fi)
{
	struct mount *m = mount_of(req);

	reply_result(req, 0);
	if (m->how & MOUNT_PASSTHROUGH)
		pass_release(m, node); /* K2 */
}

/* The body of a reply to OPEN, as proto 7.40 has it. */
struct wire_open_out {
	uint64_t fh;
	uint32_t flags;
	int32_t backing_id;
};
#define OPEN_PASSTHROUGH (1U << 7)

/* With --passthrough opens are told, or the kernel could not be told which files it may read. */
static void op_open_file(fuse_req_t req, fuse_ino_t node, struct fuse_file_info *fi)
{
	struct mount *m = mount_of(req);
	struct wire_open_out out = { 0 };
	int r;

	if (!(m->how & MOUNT_PASSTHROUGH)) {
		op_open(req, node, fi);
		return;
	}
	if ((fi->flags & O_ACCMODE) != O_RDONLY) { /* somebody remounted it (P1) */
		reply_result(req, -EROFS);
		return;
	}
	r = pass_open(m, node, current.buffers->reply, &out.backing_id);
	if (r < 0) {
		reply_result(req, r);
		return;
	}
	if (out.backing_id)
		out.flags = OPEN_PASSTHROUGH;
	else if (mount_uses(m, LEVER_CACHE))
		out.flags = FOPEN_KEEP_CACHE;
	reply_body(req, &out, sizeof(out));
	if (current.lost)
		pass_release(m, node);
}

/* Not for a ring, whose replies are put together by ourselves. False: nothing was answered. */
static bool read_lent(fuse_req_t req, uint64_t node, uint64_t off, size_t size)
{
	struct reply_data data;

	if (reply_lend(view_of(req), node, off, size, current.buffers->reply, &data) != 0)
		return false;
	reply_pieces(req, data.iov, data.n);
	segments_release(&data.segments);
	return true;
}

static void op_read(fuse_req_t req, fuse_ino_t node, size_t size, off_t off,
		    struct fuse_file_info *fi)
{
	struct mount *m = mount_of(req);
	size_t len;
	int r;

	size = MIN(size, REPLY_BYTES);
	if (size >= REPLY_LEND_MIN && !m->uring && read_lent(req, node, (uint64_t)off, size))
		return;
	r = reply_read(m->view, node, (uint64_t)off, size, current.buffers->reply, &len);
	if (r < 0)
		reply_result(req, r);
	else
		reply_body(req, current.buffers->reply, len);
}

/*
 * After the answer that what a mapping holds could not be written back. The kernel takes these
 * pages for clean ever after, so they would be seen until it has other use for the memory, in
 * whatever state: neither what the state has, nor what a restore brings back. With --io-uring we
 * are the thread that it may need for that, and they stay.
 */
static void forget_unwritten(struct mount *m, uint64_t node, uint64_t off, size_t size)
{
	if (uring_may_wait() && readers_step_aside())
		mount_write_back(m, node, off, size);
}

static void op_write(fuse_req_t req, fuse_ino_t node, const char *buf, size_t size, off_t off,
		     struct fuse_file_info *fi)
{
	/* libfuse hands FUSE_WRITE_KILL_SUIDGID on from no version yet. */
	const struct fuse_write_in *in = (const void *)(current.header + 1);
	bool around = fi->fh == REPLY_AROUND;
	bool direct = around || in->flags & O_DIRECT; /* by our wish, or by his who opened it */
	struct past_cache past = { .thread = (int32_t)current.header->pid,
				   .sync = around && in->flags & O_DSYNC };
	bool back = in->write_flags & FUSE_WRITE_CACHE;
	struct fuse_write_out out = { .size = (uint32_t)size };
	struct mount *m = mount_of(req);
	struct view *v = view_of(req);
	int r = view_write(v, node, (uint64_t)off, buf, size,
			   in->write_flags & FUSE_WRITE_KILL_SUIDGID, direct ? &past : NULL);

	/*
	 * Past its cache the kernel does not look at the mode it has, by which it would still run
	 * as its owner, with these rights, what was written just now. And what it writes back of a
	 * mapping it does not date, nor lets it wait for who sets attributes at the same time.
	 */
	if (r > 0 || back)
		mount_forget_attr(m, node);
	if (r >= 0 && past.sync) { /* RWF_DSYNC: no FSYNC follows this one */
		(void)readers_step_aside();
		r = view_sync(v);
	}
	if (r < 0)
		reply_result(req, r);
	else
		reply_body(req, &out, sizeof(out));
	if (r < 0 && back)
		forget_unwritten(m, node, (uint64_t)off, size);
}

static void sync_all(fuse_req_t req)
{
	(void)readers_step_aside();
	reply_result(req, view_sync(view_of(req)));
}

static void op_fsync(fuse_req_t req, fuse_ino_t node, int datasync, struct fuse_file_info *fi)
{
	sync_all(req);
}

static void op_fsyncdir(fuse_req_t req, fuse_ino_t node, int datasync, struct fuse_file_info *fi)
{
	sync_all(req);
}

static void op_fallocate(fuse_req_t req, fuse_ino_t node, int mode, off_t off, off_t len,
			 struct fuse_file_info *fi)
{
	reply_result(req, view_fallocate(view_of(req), node, mode, (uint64_t)off, (uint64_t)len));
}

/*
 * What is stored through a mapping and not written back yet lies in no hole (cp would leave it out,
 * tar and qemu-img as well), and the kernel asks us without writing it back. It does so when it is
 * to forget the pages of the hole that an answer is about, of which only zeros are lost. Where that
 * cannot be waited for all is data.
 */
static int seek(struct mount *m, uint64_t node, uint64_t off, int whence, uint64_t *ret_at)
{
	uint64_t from, to, asked = off;
	struct inode i;
	int r;

	if (whence == SEEK_DATA) { /* where data is, the next hole may be far away */
		r = view_seek(m->view, node, off, whence, ret_at);
		if (r == 0 && *ret_at == off)
			return 0;
	}
	while (!view_read_only(m->view) && view_hole(m->view, node, off, &from, &to) == 0) {
		if (from < asked || (whence != SEEK_HOLE && from > off))
			break; /* asked for already; nor is data looked for behind data */
		if (!uring_may_wait() || !readers_step_aside()) {
			r = view_getattr(m->view, node, &i);
			if (r == 0)
				*ret_at = whence == SEEK_HOLE ? i.size : off;
			return r;
		}
		mount_write_back(m, node, from, to - from);
		asked = to;
	}
	return view_seek(m->view, node, off, whence, ret_at);
}

static void op_lseek(fuse_req_t req, fuse_ino_t node, off_t off, int whence,
		     struct fuse_file_info *fi)
{
	struct fuse_lseek_out out = { 0 };
	int r = seek(mount_of(req), node, (uint64_t)off, whence, &out.offset);

	if (r < 0)
		reply_result(req, r);
	else
		reply_body(req, &out, sizeof(out));
}

static void op_copy_file_range(fuse_req_t req, fuse_ino_t src, off_t src_off,
			       struct fuse_file_info *src_fi, fuse_ino_t dst, off_t dst_off,
			       struct fuse_file_info *dst_fi, size_t len, int flags)
{
	struct fuse_write_out out;
	uint64_t done = 0;
	/* The reply has 32 bits; 0 would say that the source ends there. */
	int r = view_copy_range(view_of(req), src, (uint64_t)src_off, dst, (uint64_t)dst_off,
				MIN(len, UINT32_MAX & ~(BLOCK_BYTES - 1)), &done);

	out = (struct fuse_write_out){ .size = (uint32_t)done };
	if (r < 0)
		reply_result(req, r);
	else
		reply_body(req, &out, sizeof(out));
}

static void op_ioctl(fuse_req_t req, fuse_ino_t node, unsigned cmd, void *arg,
		     struct fuse_file_info *fi, unsigned flags, const void *in, size_t in_len,
		     size_t out_cap)
{
	struct mount *m = mount_of(req);
	uint8_t *out = current.buffers->reply;
	struct fuse_ioctl_out done = { .result = 0 };
	struct cred cred = cred_of(req);
	struct iovec iov[3];
	size_t out_len = 0;
	int r;

	/* Foreign ones come with each isatty(3), and no answer makes the kernel stop asking. */
	if (!request_is_control(cmd) || !m->hooks.ioctl) {
		reply_result(req, -ENOTTY);
		return;
	}
	if (!readers_step_aside() && request_needs_kernel(cmd)) {
		reply_result(req, -EAGAIN);
		return;
	}
	out_cap = MIN(out_cap, REPLY_BYTES);
	memset(out, 0, out_cap);
	r = m->hooks.ioctl(m->hooks.arg, m, &cred, node, cmd, in, in_len, out, out_cap, &out_len);
	iov[1] = (struct iovec){ &done, sizeof(done) };
	iov[2] = (struct iovec){ out, MIN(out_len, out_cap) };
	if (r < 0)
		reply_result(req, r);
	else
		reply_pieces(req, iov, ARRAY_SIZE(iov));
	if (cmd == PLYFS_IOC_RESTORE || cmd == PLYFS_IOC_UNDO)
		view_tidy(m->view);
}

static const struct fuse_lowlevel_ops ops = {
	.lookup = op_lookup,
	.forget = op_forget,
	.forget_multi = op_forget_multi,
	.getattr = op_getattr,
	.setattr = op_setattr,
	.readlink = op_readlink,
	.mknod = op_mknod,
	.mkdir = op_mkdir,
	.unlink = op_unlink,
	.rmdir = op_rmdir,
	.symlink = op_symlink,
	.rename = op_rename,
	.link = op_link,
	.open = op_open_file,
	.read = op_read,
	.write = op_write,
	.release = op_release,
	.fsync = op_fsync,
	.opendir = op_open,
	.readdir = op_readdir,
	.releasedir = op_release,
	.fsyncdir = op_fsyncdir,
	.statfs = op_statfs,
	.getxattr = op_getxattr,
	.listxattr = op_listxattr,
	.removexattr = op_removexattr,
	.create = op_create,
	.ioctl = op_ioctl,
	.fallocate = op_fallocate,
	.readdirplus = op_readdirplus,
	.copy_file_range = op_copy_file_range,
	.lseek = op_lseek,
	/*
	 * Not there on purpose, so that ENOSYS is answered and the kernel stops asking: flush
	 * (nothing is left to do at close), access (the kernel checks), bmap, poll; getlk, setlk
	 * and flock (see mount_negotiate). Until then it asks: the first close of a file in a mount
	 * waits for us, as all do of a FUSE that has flush. FOPEN_NOFLUSH would come with answers
	 * to OPEN, of which there are none.
	 */
};

/* The requests that come to these: libfuse itself would answer on the descriptor, also a ring's. */
static const bool decoded[OPS_MAX] = {
	[FUSE_LOOKUP] = true,	  [FUSE_FORGET] = true,	      [FUSE_BATCH_FORGET] = true,
	[FUSE_GETATTR] = true,	  [FUSE_SETATTR] = true,      [FUSE_READLINK] = true,
	[FUSE_MKNOD] = true,	  [FUSE_MKDIR] = true,	      [FUSE_UNLINK] = true,
	[FUSE_RMDIR] = true,	  [FUSE_SYMLINK] = true,      [FUSE_RENAME] = true,
	[FUSE_RENAME2] = true,	  [FUSE_LINK] = true,	      [FUSE_OPEN] = true,
	[FUSE_READ] = true,	  [FUSE_WRITE] = true,	      [FUSE_RELEASE] = true,
	[FUSE_FSYNC] = true,	  [FUSE_OPENDIR] = true,      [FUSE_READDIR] = true,
	[FUSE_RELEASEDIR] = true, [FUSE_FSYNCDIR] = true,     [FUSE_STATFS] = true,
	[FUSE_GETXATTR] = true,	  [FUSE_LISTXATTR] = true,    [FUSE_REMOVEXATTR] = true,
	[FUSE_CREATE] = true,	  [FUSE_IOCTL] = true,	      [FUSE_FALLOCATE] = true,
	[FUSE_LSEEK] = true,	  [FUSE_COPY_FILE_RANGE] = true, [FUSE_READDIRPLUS] = true,
};

/* ---- the session ---- */

/* What libfuse has to say, about a request of this thread or about opening a session. */
static void log_line(enum fuse_log_level level, const char *fmt, va_list ap)
{
	char line[256];
	size_t len;

	if (!current.mount || level > FUSE_LOG_WARNING)
		return;
	vsnprintf(line, sizeof(line), fmt, ap);
	len = strlen(line);
	if (len > 0 && line[len - 1] == '\n')
		line[len - 1] = '\0';
	(void)note(store_noter(view_store(current.mount->view)), 0, "%s", line);
}

/* libfuse takes a key of thread-specific data for each mount: a process has 1024 of them. */
static int why_no_session(void)
{
	pthread_key_t key;
	int r = pthread_key_create(&key, NULL);

	if (r == 0)
		(void)pthread_key_delete(key);
	return r == EAGAIN ? -ERR_VIEWS_MAX : -ENOMEM;
}

int requests_open(struct mount *m)
{
	char *argv[] = { "plyfs", NULL };
	struct fuse_args args = FUSE_ARGS_INIT(1, argv);
	char fd[32];

	fuse_set_log_func(log_line);
	current.mount = m;
	m->session = fuse_session_new(&args, &ops, sizeof(ops), m);
	current.mount = NULL;
	fuse_opt_free_args(&args);
	if (!m->session)
		return why_no_session();

	/* Which is mounted. (From 3.18.3 on fuse_session_custom_io() fails, as it is built.) */
	snprintf(fd, sizeof(fd), "/dev/fd/%d", m->fd);
	if (fuse_session_mount(m->session, fd) == 0)
		return 0;
	fuse_session_destroy(TAKE_PTR(m->session)); /* without the descriptor */
	return -ENOMEM;
}

/*
 * libfuse has to hear INIT, by which it knows what to decode. What it answers, of other flags and
 * perhaps for the second time, goes nowhere: its descriptor is another one meanwhile. (By dup3, as
 * ThreadSanitizer knows no F_DUPFD, and then no order of what passes through a test's socket.)
 */
int requests_begin(struct mount *m, const struct reader_buffers *buffers, size_t n)
{
	const struct fuse_buf buf = { .size = n, .mem = buffers->request };
	_cleanup_close_ int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
	_cleanup_close_ int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);

	if (nowhere < 0 || fd < 0 || dup3(m->fd, fd, O_CLOEXEC) < 0 ||
	    dup3(nowhere, m->fd, O_CLOEXEC) < 0)
		return -errno;
	current.mount = m;
	fuse_session_process_buf(m->session, &buf);
	current.mount = NULL;
	return dup3(fd, m->fd, O_CLOEXEC) < 0 ? -errno : 0;
}

void requests_close(struct mount *m)
{
	if (m->session)
		fuse_session_destroy(m->session); /* closes the descriptor */
	else if (m->fd >= 0)
		(void)close(m->fd); /* nothing was written */
}

void requests_handle(struct mount *m, const struct reader_buffers *buffers, size_t n)
{
	const struct fuse_in_header *in = (const void *)buffers->request;
	const struct fuse_buf buf = { .size = n, .mem = buffers->request };

	if (in->opcode < OPS_MAX)
		__atomic_fetch_add(&m->ops[in->opcode], 1, __ATOMIC_RELAXED);

	if (m->memo) {
		bool resent = in->unique & UNIQUE_RESENT;

		/* The INIT that we repeat tells nothing: the resent ones are still to come. */
		if (!resent && !m->resuming && request_is_queued(in->opcode))
			memo_request_is_new(m->memo);
		if (request_changes(in->opcode))
			memo_request_begin(m->memo, in->unique & ~UNIQUE_RESENT, resent);
	}
	current.mount = m;
	current.header = in;
	current.n_undated = request_undated(in, current.undated);
	if (in->opcode != FUSE_READ && in->opcode != FUSE_WRITE)
		view_hears(m->view, (int32_t)in->pid);
	current.buffers = buffers;
	current.lost = false;
	if (requests_announced(m, in, n) == ABSENT && requests_raw(m, in, n) == ABSENT) {
		if (in->opcode < OPS_MAX && decoded[in->opcode])
			fuse_session_process_buf(m->session, &buf);
		else
			(void)requests_reply(m, in, -ENOSYS, NULL, 0);
	}
	memo_request_end();
	current.mount = NULL;
}
