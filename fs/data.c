/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Changing the bytes of files.
 *
 * A write is all or nothing where space is short: first every byte of it is put into blobs (that
 * may fail with ENOSPC and the tree knows nothing of it), then the extents change. How the bytes
 * get there, in this order:
 *
 *   inline     the whole file is at most INLINE_MAX bytes: they live in its item
 *   in place   one extent covers the write and nobody else sees its blob: a file that is rewritten
 *              between two checkpoints costs its size once
 *   inside     one extent begins before the write and covers it: a new blob between what stays of
 *              it. As a new blob below, in fewer steps: random writes are mostly this
 *   append     the write begins where an extent ends that is the end of its blob: the blob grows. A
 *              log written in lines of 100 bytes has one extent per BLOB_MAX all the same
 *   new blob   anything else, widened to the blocks around (or to a short extent just before) when
 *              these hold data, so that small writes cannot shatter a file into tiny extents
 *
 * Pieces end at multiples of BLOB_MAX in the file: a sequential writer of any rhythm makes the same
 * chunks as an import of the same file, and they are stored once.
 */

#include <errno.h>
#include <linux/falloc.h>

#include "fs/model.h"
#include "store/base/err.h"
#include "store/blob.h"
#include "store/chunk.h"
#include "store/store.h"

/*
 * When an append cannot grow the extent before it (a checkpoint sealed it, or another file's bytes
 * follow it in the stage), it takes in the extents just before that are not longer than itself, and
 * so on with the sum, like carrying in a binary counter: a log with one line per checkpoint gets
 * extents of up to 16 KiB while each byte is copied log2(16 KiB / line) times at most. Longer
 * extents than this stay as they are: copying more buys nothing that a reader would notice. Inside
 * a file a write that begins with a block stands alone: what lies before it is as often as not a
 * short part of a chunk of 128 KiB, which would be read as a whole.
 */
#define MERGE_MAX (8 * 1024)

#define ALIGN_DOWN(x, n) ((x) / (n) * (n))
#define ALIGN_UP(x, n) ALIGN_DOWN((x) + (n)-1, n)

/* ---- writing ---- */

/* An extent that is to be: bytes that are in a blob already. */
struct piece {
	uint64_t off;
	uint32_t len;
	uint64_t fresh; /* from here to its end, what the tree has gives way */
	struct blob *blob;
	uint32_t blob_off;
};

struct plan {
	size_t n;
	struct piece *piece;
};

static void plan_release(struct plan *p)
{
	for (size_t n = 0; n < p->n; n++)
		blob_unref(p->piece[n].blob);
	free(p->piece);
}

static void add_bytes(struct inode *i, uint64_t added, uint64_t removed)
{
	uint64_t sum = i->bytes + added;

	i->bytes = sum > removed ? sum - removed : 0; /* a damaged count does not wrap */
}

/* 0: the write was made in the blob of an extent that covers it. AGAIN: not possible. */
static int write_in_place(const struct fs *fs, uint64_t ino, const struct extent *e, uint64_t off,
			  const void *buf, size_t len)
{
	struct key k = item_key(ino, ITEM_EXTENT, e->off);
	int r;

	if (e->ref.kind != REF_BLOB || blob_is_fixed(e->ref.blob)) /* the touch would be in vain */
		return AGAIN;
	r = tree_touch(fs->tree, &k);
	if (r != 0)
		return r < 0 ? r : AGAIN;
	if (!blob_is_sole(e->ref.blob))
		return AGAIN;

	return blob_write(e->ref.blob, e->ref.off + (uint32_t)(off - e->off), buf, len);
}

/* 0: *len bytes (perhaps fewer than asked: the blob is full) were appended. AGAIN: not possible. */
static int plan_append(const struct fs *fs, const struct extent *before, uint64_t off,
		       const void *buf, size_t *len, struct piece *ret)
{
	struct blob *blob = before->ref.blob;
	uint32_t at = before->ref.off + before->len;
	int r;

	/* A multiple of BLOB_MAX begins a new piece. */
	if (before->ref.kind != REF_BLOB || extent_end(before) != off || off % BLOB_MAX == 0)
		return AGAIN;
	if (at >= BLOB_MAX || !stage_may_append(store_stage(fs->store), blob))
		return AGAIN;

	*len = MIN(*len, BLOB_MAX - at);
	r = blob_append(blob, at, buf, *len); /* AGAIN: more than ours is behind `at` */
	if (r != 0)
		return r;

	*ret = (struct piece){
		.off = before->off,
		.len = before->len + (uint32_t)*len,
		.fresh = off,
		.blob = blob_ref(blob),
		.blob_off = before->ref.off,
	};
	return 0;
}

/* A new blob with lo..off from the file, then buf, then off+len..hi from the file. */
static int make_blob(const struct fs *fs, uint64_t ino, uint64_t lo, uint64_t off, const void *buf,
		     size_t len, uint64_t hi, struct blob **ret)
{
	_cleanup_free_ uint8_t *wide = NULL;
	size_t total = (size_t)(hi - lo);
	int r;

	if (total > len) {
		wide = os_malloc(total);
		if (!wide)
			return -ENOMEM;
		r = extents_read(fs, ino, lo, wide, (size_t)(off - lo));
		if (r < 0)
			return r;
		memcpy(wide + (off - lo), buf, len);
		r = extents_read(fs, ino, off + len, wide + (off - lo) + len,
				 (size_t)(hi - off - len));
		if (r < 0)
			return r;
		buf = wide;
	}
	return blob_new(store_stage(fs->store), buf, total, ret);
}

/* 0: the write was made between what stays of an extent that covers it. AGAIN: not possible. */
static int write_inside(const struct fs *fs, struct inode *i, const struct extent *e, uint64_t off,
			const void *buf, size_t len)
{
	uint64_t lo = MAX(e->off, ALIGN_DOWN(off, BLOCK_BYTES)), end = off + len, removed = 0;
	uint64_t hi = MIN(extent_end(e), ALIGN_UP(end, BLOCK_BYTES));
	_cleanup_(blob_unrefp) struct blob *blob = NULL;
	int r;

	/* At its beginning the extent before it may grow. */
	if (off == e->off || e->bytes || off / BLOB_MAX != (end - 1) / BLOB_MAX)
		return AGAIN;
	r = make_blob(fs, i->ino, lo, off, buf, len, hi, &blob);
	if (r == 0)
		r = extent_cut(fs, i->ino, e, lo, hi, &removed);
	if (r == 0)
		r = extent_put(fs, i->ino, lo, (uint32_t)(hi - lo),
			       &(struct ref){ .kind = REF_BLOB, .blob = blob });
	return r; /* as many bytes as before */
}

/* Moves *lo down over the short extents that end there; see MERGE_MAX. */
static int merge_before(const struct fs *fs, uint64_t ino, uint64_t hi, uint64_t *lo)
{
	struct extent e;
	int r;

	while (*lo % BLOB_MAX != 0) {
		r = extent_last(fs, ino, *lo - 1, &e);
		if (r < 0)
			return r;
		if (r == ABSENT || extent_end(&e) != *lo)
			return 0;
		if (e.len > MIN(MAX(hi - *lo, INLINE_MAX), MERGE_MAX) || hi - e.off > BLOB_MAX)
			return 0;
		*lo = e.off;
	}
	return 0;
}

/*
 * Plans off..off+*len, the first piece of a write when `first` (then it may take in what lies just
 * before it) and the last one when it ends at `end`. *len: what the piece took.
 */
static int plan_piece(const struct fs *fs, const struct inode *i, uint64_t off, const void *buf,
		      size_t *len, bool first, uint64_t end, struct piece *ret)
{
	uint64_t ino = i->ino, lo = off, hi = off + *len;
	struct extent e;
	int r;

	if (first && off > 0) {
		size_t fits = *len;

		r = extent_last(fs, ino, off - 1, &e);
		if (r < 0)
			return r;
		if (r == 0 && extent_end(&e) == off) {
			r = plan_append(fs, &e, off, buf, &fits, ret);
			if (r < 0)
				return r;
			if (r == 0) {
				*len = fits;
				return 0;
			}
			if (off % BLOCK_BYTES != 0 || hi >= i->size)
				r = merge_before(fs, ino, hi, &lo);
			if (r < 0)
				return r;
		} else if (r == 0 && extent_end(&e) > off) {
			lo = MAX(e.off, ALIGN_DOWN(off, BLOCK_BYTES));
		}
	}
	if (hi == end && hi < i->size && hi % BLOCK_BYTES != 0) { /* else nothing to take in */
		r = extent_last(fs, ino, hi - 1, &e);
		if (r < 0)
			return r;
		if (r == 0 && extent_end(&e) > hi) {
			hi = MIN(extent_end(&e), ALIGN_UP(hi, BLOCK_BYTES));
			if (hi - lo > BLOB_MAX) /* only after a merge: that was a luxury */
				lo = off;
		}
	}
	*ret = (struct piece){ .off = lo, .len = (uint32_t)(hi - lo), .fresh = lo };
	return make_blob(fs, ino, lo, off, buf, *len, hi, &ret->blob);
}

/* Makes room for a piece's item; one that covers the same bytes is left to be replaced. */
static int clear_for(const struct fs *fs, uint64_t ino, const struct piece *p, uint64_t *removed)
{
	struct extent e;
	int r;

	r = extent_last(fs, ino, p->off, &e);
	if (r < 0)
		return r;
	if (r == 0 && e.off == p->off && e.len == p->len && p->fresh == p->off) {
		*removed += e.len;
		return 0;
	}
	return extents_punch(fs, ino, p->fresh, p->off + p->len, removed);
}

static int write_pieces(const struct fs *fs, struct inode *i, uint64_t off, const uint8_t *buf,
			size_t len)
{
	_cleanup_(plan_release) struct plan plan = { .n = 0 };
	uint64_t pos = off, end = off + len;
	uint64_t added = 0, removed = 0;
	int r;

	/* One for each boundary crossed, one before them, one when an append fills its blob. */
	plan.piece = os_calloc(len / BLOB_MAX + 3, sizeof(*plan.piece));
	if (!plan.piece)
		return -ENOMEM;

	while (pos < end) {
		size_t n = (size_t)(MIN(end, ALIGN_DOWN(pos, BLOB_MAX) + BLOB_MAX) - pos);

		r = plan_piece(fs, i, pos, buf + (pos - off), &n, pos == off, end,
			       &plan.piece[plan.n]);
		if (r < 0)
			return r;
		plan.n++;
		pos += n;
	}

	for (size_t n = 0; n < plan.n; n++) {
		const struct piece *p = &plan.piece[n];
		struct ref ref = { .kind = REF_BLOB, .off = p->blob_off, .blob = p->blob };

		if (p->fresh < i->size) { /* nothing lies beyond the size */
			r = clear_for(fs, i->ino, p, &removed);
			if (r < 0)
				return r;
		}
		r = extent_put(fs, i->ino, p->off, p->len, &ref);
		if (r < 0)
			return r;
		added += p->off + p->len - p->fresh;
	}

	add_bytes(i, added, removed);
	i->size = MAX(i->size, end);
	return 0;
}

/* The file fits its item before and after. */
static int write_inline(const struct fs *fs, struct inode *i, uint64_t off, const void *buf,
			size_t len)
{
	uint8_t bytes[INLINE_MAX] = { 0 };
	uint64_t used = off + len, removed = 0;
	struct extent e;
	int r;

	r = i->size == 0 ? ABSENT : extent_last(fs, i->ino, INLINE_MAX, &e);
	if (r < 0)
		return r;
	if (r == 0) {
		bool is_inline = e.bytes;

		if (extent_end(&e) > i->size)
			return item_damaged(
				fs, &(struct key){ .a = i->ino, .t = ITEM_EXTENT, .b = e.off },
				"an extent goes beyond the end of its file");
		used = MAX(used, extent_end(&e));
		r = extents_read(fs, i->ino, 0, bytes, (size_t)extent_end(&e));
		if (r < 0)
			return r;
		if (!is_inline) {
			r = extents_punch(fs, i->ino, 0, INLINE_MAX, &removed);
			if (r < 0)
				return r;
		}
	}

	memcpy(bytes + off, buf, len);
	r = extent_put_inline(fs, i->ino, bytes, (uint32_t)used);
	if (r < 0)
		return r;

	i->bytes = used;
	i->size = MAX(i->size, off + len);
	return 0;
}

/* fs_write without times: changes i->size and i->bytes. On failure nothing has changed. */
static int data_write(const struct fs *fs, struct inode *i, uint64_t off, const void *buf,
		      size_t len)
{
	uint64_t end = off + len;
	struct extent e;
	int r;

	if (MAX(i->size, end) <= INLINE_MAX)
		return write_inline(fs, i, off, buf, len);

	if (end <= i->size && len <= BLOB_MAX) {
		r = extent_last(fs, i->ino, off, &e);
		if (r < 0)
			return r;
		if (r == 0 && extent_end(&e) >= end) {
			r = write_in_place(fs, i->ino, &e, off, buf, len);
			if (r == AGAIN)
				r = write_inside(fs, i, &e, off, buf, len);
			if (r <= 0)
				return r;
		}
	}
	return write_pieces(fs, i, off, buf, len);
}

int data_truncate(const struct fs *fs, struct inode *i, uint64_t size)
{
	uint64_t removed = 0;
	int r;

	if (size < i->size) {
		r = extents_punch(fs, i->ino, size, UINT64_MAX, &removed);
		if (r < 0)
			return r;
		add_bytes(i, 0, removed);
	}
	i->size = size;
	return 0;
}

/* Saves a file whose data changed. */
static int finish(const struct fs *fs, struct inode *i)
{
	int r;

	r = xattr_drop_caps(fs, i);
	if (r < 0)
		return r;

	i->mtime = now_time();
	i->ctime = i->mtime;
	return inode_save_changed(fs, i);
}

int fs_write(const struct fs *fs, uint64_t ino, uint64_t off, const void *buf, size_t len,
	     bool kill_priv)
{
	struct inode i;
	uint32_t mode;
	int r;

	r = inode_load_file(fs, ino, &i);
	if (r < 0)
		return r;
	if (len == 0)
		return 0;
	if (off > FILE_SIZE_MAX || len > FILE_SIZE_MAX - off)
		return -EFBIG;

	r = data_write(fs, &i, off, buf, len);
	if (r < 0)
		return r;

	mode = i.mode;
	if (kill_priv)
		i.mode = mode_without_priv(mode);
	r = finish(fs, &i);
	return r < 0 ? r : i.mode != mode;
}

/* ---- importing ---- */

int fs_import_data(const struct fs *fs, uint64_t ino, uint64_t off, const void *data, size_t len)
{
	const uint8_t *from = data;
	uint64_t added = 0, removed = 0;
	struct inode i;
	int r;

	r = inode_load_file(fs, ino, &i);
	if (r < 0)
		return r;
	if (off > i.size || len > i.size - off)
		return -EINVAL;
	if (len == 0)
		return 0;

	r = extents_punch(fs, ino, off, off + len, &removed);
	if (r < 0)
		return r;

	if (off == 0 && len == i.size && len <= INLINE_MAX) {
		r = extent_put_inline(fs, ino, data, (uint32_t)len);
		if (r < 0)
			return r;
		added = len;
	}
	while (added < len) {
		struct ref ref = { .kind = REF_CHUNK };
		uint32_t n = (uint32_t)MIN(len - added, CHUNK_MAX);

		r = chunk_put(store_chunks(fs->store), CHUNK_DATA, from + added, n, &ref.name);
		if (r < 0)
			return r;
		r = extent_put(fs, ino, off + added, n, &ref);
		if (r < 0)
			return r;
		added += n;
	}

	add_bytes(&i, added, removed);
	r = inode_save(fs, &i);
	if (r < 0)
		return r;
	fs_changed(fs);
	return 0;
}

/* ---- holes ---- */

/* An inline extent that has to move or share its file with others becomes an ordinary one. */
static int spill_inline(const struct fs *fs, uint64_t ino)
{
	_cleanup_(blob_unrefp) struct blob *blob = NULL;
	uint8_t bytes[INLINE_MAX];
	struct ref ref = { .kind = REF_BLOB };
	struct extent e;
	int r;

	r = extent_last(fs, ino, 0, &e);
	if (r != 0 || !e.bytes)
		return r < 0 ? r : 0;

	memcpy(bytes, e.bytes, e.len);
	r = blob_new(store_stage(fs->store), bytes, e.len, &blob);
	if (r < 0)
		return r;
	ref.blob = blob;
	return extent_put(fs, ino, 0, e.len, &ref);
}

/* Moves the extent at `from` to another offset where there is none. */
static int move_extent(const struct fs *fs, uint64_t ino, const struct extent *e, uint64_t to)
{
	int r;

	r = extent_put(fs, ino, to, e->len, &e->ref);
	if (r < 0)
		return r;
	return extent_del(fs, ino, e->off);
}

static int collapse(const struct fs *fs, struct inode *i, uint64_t off, uint64_t len)
{
	uint64_t pos = off + len, removed = 0;
	struct extent e;
	int r;

	if (off % BLOCK_BYTES || len % BLOCK_BYTES || off + len >= i->size)
		return -EINVAL;

	r = extents_punch(fs, i->ino, off, off + len, &removed);
	if (r < 0)
		return r;
	/* An extent over the end of the range was split there: everything behind begins behind. */
	for (;;) {
		r = extent_after(fs, i->ino, pos, &e);
		if (r < 0)
			return r;
		if (r == ABSENT)
			break;

		pos = extent_end(&e);
		r = move_extent(fs, i->ino, &e, e.off - len);
		if (r < 0)
			return r;
	}

	add_bytes(i, 0, removed);
	i->size -= len;
	return 0;
}

/* Splits the extent over off, so that one begins there. */
static int split_at(const struct fs *fs, uint64_t ino, uint64_t off)
{
	struct extent e;
	struct ref right;
	uint32_t left;
	int r;

	r = extent_last(fs, ino, off, &e);
	if (r != 0 || e.off == off || extent_end(&e) <= off)
		return r < 0 ? r : 0;

	left = (uint32_t)(off - e.off);
	right = e.ref;
	right.off += left;
	r = extent_put(fs, ino, off, e.len - left, &right);
	if (r < 0)
		return r;

	return extent_put(fs, ino, e.off, left, &e.ref); /* its blob is kept by both items now */
}

static int insert(const struct fs *fs, struct inode *i, uint64_t off, uint64_t len)
{
	struct extent e;
	int r;

	if (off % BLOCK_BYTES || len % BLOCK_BYTES || off >= i->size)
		return -EINVAL;
	if (len > FILE_SIZE_MAX - i->size)
		return -EFBIG;

	if (off == 0) {
		r = spill_inline(fs, i->ino);
		if (r < 0)
			return r;
	}
	r = split_at(fs, i->ino, off);
	if (r < 0)
		return r;

	/* From the last one down: each moves into space that is free already. */
	for (uint64_t pos = i->size;;) {
		r = extent_last(fs, i->ino, pos, &e);
		if (r < 0)
			return r;
		if (r == ABSENT || e.off < off)
			break;

		pos = e.off;
		r = move_extent(fs, i->ino, &e, pos + len);
		if (r < 0)
			return r;
		if (pos-- == 0)
			break;
	}

	i->size += len;
	return 0;
}

/* -ENOSPC where more of off..end is a hole than the disk has room for: see fs.h. */
static int expect_room(const struct fs *fs, uint64_t ino, uint64_t off, uint64_t end)
{
	uint64_t hole = end - off, room;
	struct extent e;
	int r;

	for (uint64_t pos = off; pos < end; pos = extent_end(&e)) {
		r = extent_after(fs, ino, pos, &e);
		if (r < 0)
			return r;
		if (r == ABSENT || e.off >= end)
			break;
		hole -= MIN(extent_end(&e), end) - MAX(e.off, pos);
	}
	if (hole == 0)
		return 0;
	r = stage_room(store_stage(fs->store), &room);
	if (r < 0)
		return r;
	return hole > room ? -ENOSPC : 0;
}

int fs_fallocate(const struct fs *fs, uint64_t ino, int mode, uint64_t off, uint64_t len)
{
	uint64_t removed = 0;
	struct inode i;
	int r;

	r = inode_load(fs, ino, &i);
	if (r < 0)
		return r;
	if (inode_is_dir(&i))
		return -EISDIR;
	if (!S_ISREG(i.mode))
		return -ENODEV;
	if (len == 0)
		return -EINVAL;
	if (off > FILE_SIZE_MAX || len > FILE_SIZE_MAX - off)
		return -EFBIG;

	switch (mode) {
	case 0:
	case FALLOC_FL_KEEP_SIZE:
		r = expect_room(fs, ino, off, off + len);
		if (r < 0)
			return r;
		if (mode == 0)
			i.size = MAX(i.size, off + len);
		break;
	case FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE:
	case FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE:
	case FALLOC_FL_ZERO_RANGE:
		r = extents_punch(fs, ino, off, off + len, &removed);
		if (r < 0)
			return r;
		add_bytes(&i, 0, removed);
		if (mode == FALLOC_FL_ZERO_RANGE)
			i.size = MAX(i.size, off + len);
		break;
	case FALLOC_FL_COLLAPSE_RANGE:
		r = collapse(fs, &i, off, len);
		if (r < 0)
			return r;
		break;
	case FALLOC_FL_INSERT_RANGE:
		r = insert(fs, &i, off, len);
		if (r < 0)
			return r;
		break;
	default:
		return -EOPNOTSUPP;
	}
	return finish(fs, &i);
}

/* ---- sharing ---- */

/* Makes off..off+seg->len of a file refer to what a segment refers to. */
static int share_segment(const struct fs *fs, struct inode *i, uint64_t off,
			 const struct segments *s, const struct segment *seg)
{
	uint64_t end = off + seg->len, removed = 0;
	bool data = seg->ref.kind != REF_NONE;
	int r;

	if (seg->is_inline)
		return data_write(fs, i, off, s->inline_bytes, seg->len);

	if (data && off < INLINE_MAX) {
		r = spill_inline(fs, i->ino);
		if (r < 0)
			return r;
	}
	r = extents_punch(fs, i->ino, off, end, &removed);
	if (r < 0)
		return r;
	if (data) {
		r = extent_put(fs, i->ino, off, seg->len, &seg->ref);
		if (r < 0)
			return r;
	}

	add_bytes(i, data ? seg->len : 0, removed);
	i->size = MAX(i->size, end);
	return 0;
}

/* Copies until done or failed; *done says how far it came. */
static int share_range(const struct fs *src, uint64_t src_ino, uint64_t src_off,
		       const struct fs *dst, struct inode *i, uint64_t dst_off, uint64_t len,
		       uint64_t *done)
{
	int r;

	while (*done < len) {
		struct segments s;

		r = extents_map(src, src_ino, src_off + *done, src_off + len, &s);
		if (r < 0)
			return r;

		for (uint32_t n = 0; n < s.n; n++) {
			r = share_segment(dst, i, dst_off + *done, &s, &s.seg[n]);
			if (r < 0) {
				segments_release(&s);
				return r;
			}
			*done += s.seg[n].len;
		}
		segments_release(&s);
	}
	return 0;
}

int fs_copy_range(const struct fs *src, uint64_t src_ino, uint64_t src_off, const struct fs *dst,
		  uint64_t dst_ino, uint64_t dst_off, uint64_t len, uint64_t *ret_len)
{
	struct inode from, to;
	uint64_t done = 0;
	int failed, r;

	r = inode_load_file(src, src_ino, &from);
	if (r < 0)
		return r;
	r = inode_load_file(dst, dst_ino, &to);
	if (r < 0)
		return r;

	len = src_off >= from.size ? 0 : MIN(len, from.size - src_off);
	if (len == 0) {
		*ret_len = 0;
		return 0;
	}
	if (dst_off > FILE_SIZE_MAX || len > FILE_SIZE_MAX - dst_off)
		return -EFBIG;
	if (src->tree == dst->tree && src_ino == dst_ino && src_off < dst_off + len &&
	    dst_off < src_off + len)
		return -EINVAL;

	failed = share_range(src, src_ino, src_off, dst, &to, dst_off, len, &done);
	if (failed < 0 && done == 0)
		return failed;

	r = finish(dst, &to);
	if (r < 0)
		return r;
	*ret_len = done; /* a shorter copy, as the system call does it */
	return 0;
}
