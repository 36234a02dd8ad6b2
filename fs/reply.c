/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What the bodies of replies are made of, in the kernel's own structs: attributes, entries,
 * listings, data. Who sends them, and in which frame, is the affair of fuse.c and raw.c.
 */

#include <fcntl.h>
#include <string.h>

#include "fs/mount_internal.h"
#include "store/base/err.h"
#include "store/base/util.h"

/* ---- entries ---- */

void reply_fill_attr(const struct inode *i, struct fuse_attr *ret)
{
	*ret = (struct fuse_attr){
		.ino = i->ino,
		.size = i->size,
		.blocks = (i->bytes + 511) / 512,
		.atime = (uint64_t)i->atime.sec,
		.mtime = (uint64_t)i->mtime.sec,
		.ctime = (uint64_t)i->ctime.sec,
		.atimensec = i->atime.nsec,
		.mtimensec = i->mtime.nsec,
		.ctimensec = i->ctime.nsec,
		.mode = i->mode,
		.nlink = i->nlink,
		.uid = i->uid,
		.gid = i->gid,
		.rdev = (uint32_t)i->rdev, /* the kernel's 32-bit layout is glibc's low half */
		.blksize = BLOCK_BYTES,
	};
}

void reply_fill_entry(const struct mount *m, const struct entry *e, struct fuse_entry_out *ret)
{
	*ret = (struct fuse_entry_out){
		.nodeid = e->node,
		.generation = 0, /* node ids are never reused */
		.entry_valid = mount_valid_s(m),
		.attr_valid = mount_valid_s(m),
	};
	reply_fill_attr(&e->inode, &ret->attr);
}

/*
 * Who can only write has no use for the pages, nor can he map any. O_DIRECT and O_SYNC stay the
 * kernel's affair, as of any file.
 */
static bool may_write_around(const struct mount *m, uint32_t flags)
{
	return m->writes_around && (flags & (O_ACCMODE | O_DIRECT | O_DSYNC)) == O_WRONLY;
}

void reply_fill_created(const struct mount *m, const struct entry *e, uint32_t flags,
			struct created_out *ret)
{
	*ret = (struct created_out){ 0 };
	reply_fill_entry(m, e, &ret->entry);
	ret->open.open_flags = mount_uses(m, LEVER_CACHE) ? FOPEN_KEEP_CACHE : 0;
	if (may_write_around(m, flags)) {
		ret->open.open_flags |= FOPEN_DIRECT_IO;
		ret->open.fh = REPLY_AROUND;
	}
}

/* ---- listings ---- */

int listing_add(void *arg, const char *name, size_t len, const struct entry *e, unsigned type,
		uint64_t next_cookie)
{
	struct listing *l = arg;
	size_t head = l->plus ? FUSE_NAME_OFFSET_DIRENTPLUS : FUSE_NAME_OFFSET;
	size_t size = FUSE_DIRENT_ALIGN(head + len);
	struct fuse_dirent d = {
		.ino = e->inode.ino,
		.off = next_cookie,
		.namelen = (uint32_t)len,
		.type = type,
	};
	uint8_t *p = l->buf + l->used;

	if (size > l->cap - l->used)
		return 1;

	if (l->plus) {
		struct fuse_entry_out out = { 0 }; /* node id 0: nothing but the name is told */

		if (e->node)
			reply_fill_entry(l->mount, e, &out);
		memcpy(p, &out, sizeof(out));
		p += sizeof(out);
	}
	memcpy(p, &d, FUSE_NAME_OFFSET);
	memcpy(p + FUSE_NAME_OFFSET, name, len);
	memset(l->buf + l->used + head + len, 0, size - head - len);
	l->used += size;
	return 0;
}

void listing_each(const struct listing *l, void (*fn)(struct mount *m, uint64_t node))
{
	struct fuse_direntplus d;

	for (size_t at = 0; at < l->used; at += FUSE_DIRENTPLUS_SIZE(&d)) {
		memcpy(&d, l->buf + at, FUSE_NAME_OFFSET_DIRENTPLUS);
		if (d.entry_out.nodeid)
			fn(l->mount, d.entry_out.nodeid);
	}
}

/* ---- names and data ---- */

size_t reply_drop_trusted(char *names, size_t len)
{
	size_t kept = 0;

	for (size_t at = 0, n; at < len; at += n) {
		n = strlen(names + at) + 1;
		if (strncmp(names + at, "trusted.", 8) == 0)
			continue;
		memmove(names + kept, names + at, n);
		kept += n;
	}
	return kept;
}

int reply_read(struct view *v, uint64_t node, uint64_t off, size_t size, uint8_t *buf,
	       size_t *ret_len)
{
	struct segments s;
	size_t len = 0;
	bool more = true;
	int r;

	while (more && len < size) { /* more than once when a file is in very many pieces (F4) */
		r = view_map(v, node, off + len, size - len, &s);
		if (r < 0)
			return r;
		r = segments_read(view_store(v), &s, buf + len);
		len += s.len;
		more = s.n == SEGMENTS_MAX;
		segments_release(&s);
		if (r < 0)
			return r;
	}
	*ret_len = len;
	return 0;
}

int reply_lend(struct view *v, uint64_t node, uint64_t off, size_t size, uint8_t *buf,
	       struct reply_data *ret)
{
	int r = view_map(v, node, off, size, &ret->segments);

	if (r < 0)
		return r;
	if (ret->segments.len < REPLY_LEND_MIN || ret->segments.n == SEGMENTS_MAX)
		r = AGAIN;
	else
		r = segments_lend(view_store(v), &ret->segments, buf, ret->iov + 1, &ret->n);
	if (r == 0)
		ret->n++;
	else
		segments_release(&ret->segments);
	return r;
}
