/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Extents: which bytes of which chunk or blob are which bytes of a file.
 *
 * An extent never changes what it refers to: it is trimmed (its length, or its start together with
 * ref.off), split, moved or removed. Whatever is not covered is a hole. All searches start with the
 * last extent at or before a position, because extents are disjoint (invariant 4 of model.h): only
 * that one can cover it.
 */

#include <errno.h>
#include <inttypes.h>

#include "fs/model.h"
#include "store/base/err.h"
#include "store/blob.h"
#include "store/chunk.h"
#include "store/store.h"

/* A hole's length must fit segment.len; a power of two far below keeps the sums simple. */
#define HOLE_MAX (UINT32_C(1) << 30)

/* ---- bytes behind a ref ---- */

int ref_read(struct store *store, const struct ref *ref, uint32_t skip, void *buf, uint32_t len)
{
	uint64_t off = (uint64_t)ref->off + skip;
	int r;

	switch (ref->kind) {
	case REF_CHUNK:
		r = chunk_read(store_chunks(store), &ref->name, off, buf, len);
		return r == END ? -ERR_ITEM_DAMAGED : r;
	case REF_BLOB:
		if (off > blob_len(ref->blob) || len > blob_len(ref->blob) - off)
			return -ERR_ITEM_DAMAGED;
		return blob_read(ref->blob, (uint32_t)off, buf, len);
	default:
		return -ERR_ITEM_DAMAGED;
	}
}

/* Of an item that sealing could not read: is it this one still? */
static bool is_unreadable(struct store *store, const struct ref *ref)
{
	struct name name;

	if (ref->kind == REF_BLOB && !blob_name(ref->blob, &name))
		return true; /* it may pass */
	if (ref->kind == REF_CHUNK)
		name = ref->name;
	return ref->kind != REF_NONE && chunk_is_lost(store_chunks(store), &name);
}

int fs_find_unreadable(struct store *store, uint64_t snap, char **ret_path)
{
	_cleanup_(root_unrefp) struct root *root = NULL;
	_cleanup_(tree_freep) struct tree *tree = NULL;
	struct key keys[UNREADABLE_MAX];
	unsigned n = nodes_unreadable(store_nodes(store), keys);
	struct fs fs = { .store = store };
	size_t len;
	int r;

	if (n == 0)
		return ABSENT;
	r = snap_root(store, snap, &root);
	if (r == 0)
		r = tree_new(store_nodes(store), root, &tree);
	if (r < 0)
		return r;
	fs.tree = tree;
	for (unsigned i = 0; i < n; i++) {
		struct val v;

		if (tree_get(tree, &keys[i], &v) == 0 && is_unreadable(store, &v.ref) &&
		    fs_path(&fs, keys[i].a, ret_path, &len) == 0)
			return 0;
	}
	return ABSENT;
}

static void ref_hold(struct ref *ref)
{
	if (ref->kind == REF_BLOB)
		(void)blob_ref(ref->blob); /* returns its argument */
}

static void ref_release(struct ref *ref)
{
	if (ref->kind == REF_BLOB)
		blob_unref(ref->blob);
	ref->kind = REF_NONE;
}

/* ---- finding ---- */

static int decode_at(const struct fs *fs, const struct cursor *c, struct extent *ret)
{
	if (extent_decode(&c->key, &c->val, ret) < 0)
		return item_damaged(fs, &c->key, "not an extent");
	return 0;
}

static bool at_extent(const struct cursor *c, uint64_t ino)
{
	return c->key.a == ino && c->key.t == ITEM_EXTENT;
}

int extent_last(const struct fs *fs, uint64_t ino, uint64_t pos, struct extent *ret)
{
	struct key k = item_key(ino, ITEM_EXTENT, pos);
	struct cursor c;
	int r;

	r = cursor_seek_last(&c, fs->tree, &k);
	if (r < 0)
		return r;
	if (r == END || !at_extent(&c, ino))
		return ABSENT;
	return decode_at(fs, &c, ret);
}

/* Leaves the cursor at it, so that the caller can go on. */
static int seek_after(struct cursor *c, const struct fs *fs, uint64_t ino, uint64_t pos,
		      struct extent *ret)
{
	struct key k = item_key(ino, ITEM_EXTENT, pos);
	int r;

	r = cursor_seek_last(c, fs->tree, &k);
	if (r < 0)
		return r;
	if (r == 0 && at_extent(c, ino)) {
		r = decode_at(fs, c, ret);
		if (r < 0 || extent_end(ret) > pos)
			return r;
	}

	r = cursor_seek(c, fs->tree, &k);
	if (r < 0)
		return r;
	if (r == END || !at_extent(c, ino))
		return ABSENT;
	return decode_at(fs, c, ret);
}

int extent_after(const struct fs *fs, uint64_t ino, uint64_t pos, struct extent *ret)
{
	struct cursor c;

	return seek_after(&c, fs, ino, pos, ret);
}

/* ---- changing ---- */

int extent_put(const struct fs *fs, uint64_t ino, uint64_t off, uint32_t len, const struct ref *ref)
{
	struct key k = item_key(ino, ITEM_EXTENT, off);
	uint8_t buf[EXTENT_BYTES];

	put_le32(buf, len);
	return tree_put(fs->tree, &k,
			&(struct val){ .data = buf, .len = sizeof(buf), .ref = *ref });
}

int extent_put_inline(const struct fs *fs, uint64_t ino, const void *bytes, uint32_t len)
{
	struct key k = item_key(ino, ITEM_EXTENT, 0);

	return tree_put(fs->tree, &k, &(struct val){ .data = bytes, .len = len });
}

int extent_del(const struct fs *fs, uint64_t ino, uint64_t off)
{
	struct key k = item_key(ino, ITEM_EXTENT, off);

	return tree_del(fs->tree, &k);
}

/* Takes from..to out of an inline extent, which it overlaps. */
static int cut_inline(const struct fs *fs, uint64_t ino, const struct extent *e, uint64_t from,
		      uint64_t to, uint64_t *removed)
{
	uint8_t bytes[INLINE_MAX];
	int r;

	if (to >= e->len) {
		*removed += e->len - from;
		if (from == 0)
			return extent_del(fs, ino, 0);
		memcpy(bytes, e->bytes, from);
		return extent_put_inline(fs, ino, bytes, (uint32_t)from);
	}

	/* What is behind the hole cannot live inline anywhere but here: zeros stay data. */
	memcpy(bytes, e->bytes, e->len);
	memset(bytes + from, 0, to - from);
	r = extent_put_inline(fs, ino, bytes, e->len);
	return r;
}

int extent_cut(const struct fs *fs, uint64_t ino, const struct extent *lent, uint64_t from,
	       uint64_t to, uint64_t *removed)
{
	_cleanup_(ref_release) struct ref ref = { .kind = REF_NONE };
	struct extent e = *lent;
	uint64_t end = extent_end(&e);
	int r;

	from = MAX(from, e.off);
	to = MIN(to, end);
	if (e.bytes)
		return cut_inline(fs, ino, &e, from, to, removed);

	/* The item may be the only one that keeps the blob, and it goes first or last: hold it. */
	ref = e.ref;
	ref_hold(&ref);

	if (to < end) {
		struct ref right = ref;

		right.off += (uint32_t)(to - e.off);
		r = extent_put(fs, ino, to, (uint32_t)(end - to), &right);
		if (r < 0)
			return r;
	}
	if (from > e.off)
		r = extent_put(fs, ino, e.off, (uint32_t)(from - e.off), &ref);
	else
		r = extent_del(fs, ino, e.off);
	if (r < 0)
		return r;

	*removed += to - from;
	return 0;
}

int extents_punch(const struct fs *fs, uint64_t ino, uint64_t from, uint64_t to, uint64_t *removed)
{
	struct extent e;
	uint64_t end;
	int r;

	while (from < to) {
		r = extent_after(fs, ino, from, &e);
		if (r < 0)
			return r;
		if (r == ABSENT || e.off >= to)
			return 0;

		end = extent_end(&e);
		r = extent_cut(fs, ino, &e, from, to, removed);
		if (r < 0)
			return r;
		from = end;
	}
	return 0;
}

/* ---- mapping ---- */

static void add_hole(struct segments *s, uint64_t len)
{
	while (len > 0 && s->n < SEGMENTS_MAX) {
		uint32_t n = (uint32_t)MIN(len, HOLE_MAX);

		s->seg[s->n++] = (struct segment){ .len = n };
		s->len += n;
		len -= n;
	}
}

static void add_data(struct segments *s, const struct extent *e, uint32_t skip, uint32_t len)
{
	struct segment *seg = &s->seg[s->n++];

	*seg = (struct segment){ .len = len };
	if (e->bytes) {
		seg->is_inline = true;
		memcpy(s->inline_bytes, (const uint8_t *)e->bytes + skip, len);
	} else {
		seg->ref = e->ref;
		seg->ref.off += skip;
		ref_hold(&seg->ref);
	}
	s->len += len;
}

int extents_map(const struct fs *fs, uint64_t ino, uint64_t off, uint64_t end, struct segments *ret)
{
	struct extent e;
	struct cursor c;
	int r;

	ret->n = 0;
	ret->len = 0;
	ret->loan.n = 0;

	for (r = seek_after(&c, fs, ino, off, &e); r == 0;) {
		uint64_t pos = off + ret->len, stop;

		if (e.off >= end)
			break;
		if (pos > off && e.off < pos) {
			segments_release(ret);
			return item_damaged(fs, &c.key, "extents overlap");
		}

		if (e.off > pos) {
			add_hole(ret, e.off - pos);
			pos = off + ret->len;
		}
		if (pos < e.off || ret->n == SEGMENTS_MAX)
			return 0; /* full */

		stop = MIN(extent_end(&e), end);
		add_data(ret, &e, (uint32_t)(pos - e.off), (uint32_t)(stop - pos));
		if (stop == end)
			return 0;

		r = cursor_next(&c);
		if (r == 0 && !at_extent(&c, ino))
			break;
		if (r == 0)
			r = decode_at(fs, &c, &e);
	}
	if (r < 0) {
		segments_release(ret);
		return r;
	}

	add_hole(ret, end - off - ret->len);
	return 0;
}

int extents_read(const struct fs *fs, uint64_t ino, uint64_t off, void *buf, size_t len)
{
	uint8_t *to = buf;
	struct segments s;
	int r;

	while (len > 0) {
		r = extents_map(fs, ino, off, off + len, &s);
		if (r < 0)
			return r;

		r = segments_read(fs->store, &s, to);
		segments_release(&s);
		if (r < 0)
			return r;

		off += s.len;
		to += s.len;
		len -= s.len;
	}
	return 0;
}

/* ---- verbs ---- */

int fs_map(const struct fs *fs, uint64_t ino, uint64_t off, uint64_t len, struct segments *ret)
{
	struct inode i;
	int r;

	r = inode_load_file(fs, ino, &i);
	if (r < 0)
		return r;

	if (off >= i.size) {
		ret->n = 0;
		ret->len = 0;
		ret->loan.n = 0;
		return 0;
	}
	return extents_map(fs, ino, off, off + MIN(len, i.size - off), ret);
}

static int segment_read(struct store *store, const struct segments *s, const struct segment *seg,
			void *buf)
{
	if (seg->is_inline)
		memcpy(buf, s->inline_bytes, seg->len);
	else if (seg->ref.kind == REF_NONE)
		memset(buf, 0, seg->len);
	else
		return ref_read(store, &seg->ref, 0, buf, seg->len);
	return 0;
}

int segments_read(struct store *store, const struct segments *s, void *buf)
{
	uint8_t *to = buf;
	int r = 0;

	for (uint32_t n = 0; n < s->n && r == 0; n++) {
		r = segment_read(store, s, &s->seg[n], to);
		to += s->seg[n].len;
	}
	return r;
}

int segments_lend(struct store *store, struct segments *s, void *buf,
		  struct iovec iov[static SEGMENTS_MAX], int *ret_n)
{
	uint8_t *to = buf;
	int r, n = 0;

	for (uint32_t i = 0; i < s->n; i++) {
		const struct segment *seg = &s->seg[i];
		const void *at = NULL;

		if (seg->ref.kind == REF_BLOB)
			at = blob_lend(seg->ref.blob, seg->ref.off, seg->len, &s->loan);
		if (!at) {
			r = segment_read(store, s, seg, to);
			if (r < 0)
				return r;
			at = to;
			to += seg->len;
		}
		if (n > 0 && (uint8_t *)iov[n - 1].iov_base + iov[n - 1].iov_len == at)
			iov[n - 1].iov_len += seg->len;
		else
			iov[n++] = (struct iovec){ (void *)at, seg->len };
	}
	*ret_n = n;
	return 0;
}

void segments_release(struct segments *s)
{
	loan_end(&s->loan); /* while the references are there */
	for (uint32_t n = 0; n < s->n; n++)
		ref_release(&s->seg[n].ref);
	s->n = 0;
}

int fs_read(const struct fs *fs, uint64_t ino, uint64_t off, void *buf, size_t len, size_t *ret_len)
{
	struct inode i;
	int r;

	r = inode_load_file(fs, ino, &i);
	if (r < 0)
		return r;

	len = off >= i.size ? 0 : (size_t)MIN(len, i.size - off);
	r = extents_read(fs, ino, off, buf, len);
	if (r < 0)
		return r;

	*ret_len = len;
	return 0;
}

int fs_seek(const struct fs *fs, uint64_t ino, uint64_t off, int whence, uint64_t *ret_off)
{
	struct extent e;
	struct inode i;
	struct cursor c;
	int r;

	if (whence != SEEK_DATA && whence != SEEK_HOLE)
		return -EINVAL;
	r = inode_load_file(fs, ino, &i);
	if (r < 0)
		return r;
	if (off >= i.size)
		return -ENXIO;

	r = seek_after(&c, fs, ino, off, &e);
	if (r < 0)
		return r;

	if (whence == SEEK_DATA) {
		if (r == ABSENT || e.off >= i.size)
			return -ENXIO;
		*ret_off = MAX(off, e.off);
		return 0;
	}

	while (r == 0 && e.off <= off) {
		off = extent_end(&e);
		r = cursor_next(&c);
		if (r == 0 && !at_extent(&c, ino))
			break;
		if (r == 0)
			r = decode_at(fs, &c, &e);
	}
	if (r < 0)
		return r;

	*ret_off = MIN(off, i.size);
	return 0;
}
