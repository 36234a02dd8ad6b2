/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Passthrough (mount --passthrough): an open of a large file is answered with a file of the disk
 * that holds the same bytes (store/copy.h), and from then on the kernel reads and maps that one in
 * our stead. Only in a view of a snapshot: there nothing is ever written or replaced, so that the
 * copy stays what the file is, whatever the kernel has cached of either.
 *
 * Invariants:
 *  P1  No open for writing is answered with anything but EROFS (fuse.c): the kernel opens the file
 *      of the disk anew, with the flags of whoever asked and our rights.
 *  P2  Opens of a node at one time are all answered alike, with one backing id or with none: the
 *      kernel refuses a mixture (EIO). So the first one decides, the others follow until the last
 *      is closed (view_opened), and a successor of ours knows what was decided (memo.h).
 *  P3  Such an open never fails for want of a copy: it is then one like all others.
 *  P4  A backing id lives as long as its opens. The kernel's descriptor has our lock on the copy
 *      (W4), so it is not removed to make room meanwhile.
 */

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/ioctl.h>

#include "fs/mount_internal.h"
#include "store/base/err.h"
#include "store/base/note.h"
#include "store/base/os.h"
#include "store/base/util.h"
#include "store/copy.h"

/*
 * Smaller files are read as ever: one READ brings as much. Opening, reading and closing a file of
 * which all is cached took so many times as long when it was passed through (best of 20 to 400 in
 * turn), as another file is opened, locked and given back for it: 5.2 for 16 KiB, 2.6 for 256 KiB,
 * 1.4 for 1 MiB, 0.54 for 4 MiB.
 */
#define PASS_MIN DATA_BYTES

/* proto 7.40, which <linux/fuse.h> of Debian 12 does not have. */
struct wire_backing_map {
	int32_t fd;
	uint32_t flags;
	uint64_t padding;
};
#define IOC_BACKING_OPEN _IOW(229, 1, struct wire_backing_map)
#define IOC_BACKING_CLOSE _IOW(229, 2, uint32_t)

static int backing_open(struct mount *m, int fd)
{
	struct wire_backing_map map = { .fd = fd };
	int id = ioctl(m->fd, IOC_BACKING_OPEN, &map);

	return id < 0 ? -errno : id;
}

void pass_close(struct mount *m, int32_t id)
{
	if (id > 0)
		(void)ioctl(m->fd, IOC_BACKING_CLOSE, &id); /* unmounted: all are closed */
}

int pass_begin(struct mount *m)
{
	_cleanup_close_ int fd = -1;
	int r;

	if (!(m->offered & INIT_PASSTHROUGH))
		return -EOPNOTSUPP;
	/* Any file of the store's disk tells whether it can be done. */
	r = os_openat(store_dir_fd(view_store(m->view)), "format", O_RDONLY | O_CLOEXEC, 0, &fd);
	if (r < 0)
		return r;
	/*
	 * There O_TRUNC without writing, of which we hear only after the kernel has opened the copy
	 * with it (P1; a mount that was remounted), empties the copy.
	 */
	if (os_is_fuse(fd))
		return -ELOOP;
	r = backing_open(m, fd);
	if (r < 0)
		return r;
	pass_close(m, r);
	return 0;
}

struct filling {
	struct mount *m;
	uint64_t node, ino;
	uint8_t *buf; /* DATA_BYTES */
};

static int fill_range(struct filling *f, int fd, uint64_t off, uint64_t end)
{
	size_t len;
	int r;

	for (; off < end; off += len) {
		r = reply_read(f->m->view, f->node, off, MIN(end - off, DATA_BYTES), f->buf, &len);
		if (r == 0 && len == 0)
			r = -EIO; /* the extents go beyond the size: never */
		if (r == 0)
			r = os_pwrite_full(fd, f->buf, len, off);
		if (r < 0)
			return r;
		__atomic_fetch_add(&f->m->pass.copied, len, __ATOMIC_RELAXED);
	}
	return 0;
}

/* What lies between the holes. */
static int fill(void *arg, int fd)
{
	struct filling *f = arg;
	struct view *v = f->m->view;
	uint64_t off = 0, end;
	int r;

	for (;;) {
		r = view_seek(v, f->node, off, SEEK_DATA, &off);
		if (r == -ENXIO)
			return 0;
		if (r == 0)
			r = view_seek(v, f->node, off, SEEK_HOLE, &end);
		if (r == 0)
			r = fill_range(f, fd, off, end);
		if (r < 0)
			return r;
		off = end;
	}
}

static int same_in(void *arg, uint64_t snap)
{
	struct filling *f = arg;

	return view_same_in(f->m->view, f->ino, snap);
}

/* A backing id for a node that has none, or 0 (P3). */
static int32_t first_id(struct mount *m, uint64_t node, const struct inode *i, uint8_t *buf)
{
	struct filling f = { .m = m, .node = node, .ino = i->ino, .buf = buf };
	struct store *s = view_store(m->view);
	uint64_t snap = view_snapshot(m->view);
	_cleanup_close_ int fd = -1;
	int r;

	r = copy_find(s, snap, i->ino, &fd);
	if (r == ABSENT) {
		(void)readers_step_aside(); /* only who opens this file waits */
		copy_share(s, snap, i->ino, same_in, &f);
		r = copy_make(s, snap, i->ino, i->size, i->bytes, fill, &f, &fd);
	}
	if (r >= 0)
		r = backing_open(m, fd);
	if (r < 0 && !__atomic_exchange_n(&m->pass.told, true, __ATOMIC_RELAXED))
		(void)note(store_noter(s), 0,
			   "passthrough: a copy of a file of %" PRIu64 " bytes: %s; it is read "
			   "as without, and so may others be",
			   i->size, err_str(r));
	return MAX(r, 0);
}

int pass_open(struct mount *m, uint64_t node, uint8_t *buf, int32_t *ret_id)
{
	struct inode i;
	int32_t id = 0, first;
	int r;

	r = view_getattr(m->view, node, &i);
	if (r < 0)
		return r;
	if (i.size >= PASS_MIN && view_opened(m->view, node, -1, &id) == ABSENT) {
		first = first_id(m, node, &i, buf);
		if (view_opened(m->view, node, first, &id) == EXISTS)
			pass_close(m, first); /* somebody was faster */
	}
	if (i.size >= PASS_MIN)
		__atomic_fetch_add(id ? &m->pass.passed : &m->pass.others, 1, __ATOMIC_RELAXED);
	*ret_id = id;
	return 0;
}

void pass_release(struct mount *m, uint64_t node)
{
	pass_close(m, view_closed(m->view, node));
}
