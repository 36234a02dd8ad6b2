/* SPDX-License-Identifier: Apache-2.0 */

/* Every byte of every item; see FORMAT.md for the drawings. */

#include "fs/format.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "fs/fs.h"
#include "store/base/err.h"
#include "store/base/util.h"
#include "store/chunk.h"

static_assert(DIRENT_BYTES_MAX <= VAL_MAX, "an entry is one item");
static_assert(INODE_RECORD_BYTES <= VAL_MAX && INLINE_MAX <= VAL_MAX, "one item each");
static_assert(TARGET_INLINE_MAX <= VAL_MAX, "a short target is one item");
static_assert(XATTR_HEADER_BYTES + XATTR_NAME_LEN_MAX <= VAL_MAX,
	      "every name fits without its value");

/* Seeds keep the three hash spaces apart; they are part of the format. */
enum { SEED_DIRENT = 0, SEED_LINK = 1, SEED_XATTR = 2 };

uint64_t dirent_base(const char *name, size_t len)
{
	uint64_t h = hash64(name, len, SEED_DIRENT) >> 10;

	/* Positions 0, 1 and 2 belong to the start of a listing, "." and "..". */
	return (h ? h : 1) << 8;
}

uint64_t link_base(uint64_t parent, uint64_t off)
{
	uint8_t b[LINK_BYTES];

	link_encode(&(struct link_item){ .parent = parent, .off = off }, b);
	return hash64(b, sizeof(b), SEED_LINK) & ~SLOT_MASK;
}

uint64_t xattr_base(const char *name, size_t len)
{
	return hash64(name, len, SEED_XATTR) & ~SLOT_MASK;
}

/* ---- inode ---- */

static uint8_t *put_time(uint8_t *p, struct timens t)
{
	put_le64(p, (uint64_t)t.sec);
	put_le32(p + 8, t.nsec);
	return p + 12;
}

static const uint8_t *get_time(const uint8_t *p, struct timens *t)
{
	t->sec = (int64_t)get_le64(p);
	t->nsec = get_le32(p + 8);
	return p + 12;
}

void inode_encode(const struct inode *i, uint8_t buf[static INODE_RECORD_BYTES])
{
	uint8_t *p;

	buf[0] = INODE_VERSION;
	buf[1] = (uint8_t)i->flags;
	put_le16(buf + 2, 0);
	put_le32(buf + 4, i->mode);
	put_le32(buf + 8, i->uid);
	put_le32(buf + 12, i->gid);
	put_le32(buf + 16, i->nlink);
	put_le64(buf + 20, i->rdev);
	put_le64(buf + 28, i->size);
	put_le64(buf + 36, i->bytes);
	p = put_time(buf + 44, i->atime);
	p = put_time(p, i->mtime);
	p = put_time(p, i->ctime);
	p = put_time(p, i->btime);
	put_le64(p, i->parent);
	put_le64(p + 8, i->parent_off);
	assert(p + 16 == buf + INODE_RECORD_BYTES);
}

static bool time_ok(struct timens t)
{
	return t.nsec <= 999999999;
}

bool inode_ok(const struct inode *i)
{
	switch (i->mode & S_IFMT) {
	case S_IFREG:
	case S_IFDIR:
	case S_IFLNK:
	case S_IFIFO:
	case S_IFSOCK:
	case S_IFCHR:
	case S_IFBLK:
		break;
	default:
		return false;
	}
	return !(i->mode & ~(uint32_t)(S_IFMT | 07777)) && i->size <= FILE_SIZE_MAX &&
	       time_ok(i->atime) && time_ok(i->mtime) && time_ok(i->ctime) && time_ok(i->btime);
}

int inode_decode(uint64_t ino, const struct val *v, struct inode *ret)
{
	const uint8_t *p = v->data;

	if (v->len != INODE_RECORD_BYTES || v->ref.kind != REF_NONE || p[0] != INODE_VERSION ||
	    get_le16(p + 2) != 0)
		return -ERR_ITEM_DAMAGED;

	ret->ino = ino;
	ret->flags = p[1];
	ret->mode = get_le32(p + 4);
	ret->uid = get_le32(p + 8);
	ret->gid = get_le32(p + 12);
	ret->nlink = get_le32(p + 16);
	ret->rdev = get_le64(p + 20);
	ret->size = get_le64(p + 28);
	ret->bytes = get_le64(p + 36);
	p = get_time(p + 44, &ret->atime);
	p = get_time(p, &ret->mtime);
	p = get_time(p, &ret->ctime);
	p = get_time(p, &ret->btime);
	ret->parent = get_le64(p);
	ret->parent_off = get_le64(p + 8);
	return inode_ok(ret) ? 0 : -ERR_ITEM_DAMAGED;
}

/* ---- directory entry ---- */

size_t dirent_encode(const struct dirent_item *d, uint8_t buf[static DIRENT_BYTES_MAX])
{
	assert(d->len > 0 && d->len <= NAME_LEN_MAX);

	put_le64(buf, d->ino);
	buf[8] = (uint8_t)d->type;
	memcpy(buf + DIRENT_HEADER_BYTES, d->name, d->len);
	return DIRENT_HEADER_BYTES + d->len;
}

int dirent_decode(const struct val *v, struct dirent_item *ret)
{
	const uint8_t *p = v->data;
	struct dirent_item d;

	if (v->len <= DIRENT_HEADER_BYTES || v->len > DIRENT_BYTES_MAX || v->ref.kind != REF_NONE)
		return -ERR_ITEM_DAMAGED;

	d.ino = get_le64(p);
	d.type = p[8];
	d.name = (const char *)p + DIRENT_HEADER_BYTES;
	d.len = v->len - DIRENT_HEADER_BYTES;

	if (d.ino == 0 || memchr(d.name, 0, d.len) || memchr(d.name, '/', d.len))
		return -ERR_ITEM_DAMAGED;
	if (d.name[0] == '.' && (d.len == 1 || (d.len == 2 && d.name[1] == '.')))
		return -ERR_ITEM_DAMAGED; /* would send a walker in circles */

	*ret = d;
	return 0;
}

/* ---- link ---- */

void link_encode(const struct link_item *l, uint8_t buf[static LINK_BYTES])
{
	put_le64(buf, l->parent);
	put_le64(buf + 8, l->off);
}

int link_decode(const struct val *v, struct link_item *ret)
{
	const uint8_t *p = v->data;

	if (v->len != LINK_BYTES || v->ref.kind != REF_NONE)
		return -ERR_ITEM_DAMAGED;

	*ret = (struct link_item){ .parent = get_le64(p), .off = get_le64(p + 8) };
	return 0;
}

/* ---- extended attribute ---- */

bool xattr_fits(size_t name_len, size_t len)
{
	return len <= VAL_MAX && XATTR_HEADER_BYTES + name_len + len <= VAL_MAX;
}

size_t xattr_encode(const struct xattr_item *x, uint8_t buf[static VAL_MAX])
{
	size_t n = XATTR_HEADER_BYTES + x->name_len;

	assert(x->name_len > 0 && x->name_len <= XATTR_NAME_LEN_MAX);
	assert(!x->value || xattr_fits(x->name_len, x->len));

	buf[0] = (uint8_t)x->name_len;
	put_le32(buf + 1, x->len);
	memcpy(buf + XATTR_HEADER_BYTES, x->name, x->name_len);
	if (!x->value)
		return n;

	memcpy(buf + n, x->value, x->len);
	return n + x->len;
}

int xattr_decode(const struct val *v, struct xattr_item *ret)
{
	const uint8_t *p = v->data;
	struct xattr_item x;
	size_t n;

	if (v->len < XATTR_HEADER_BYTES)
		return -ERR_ITEM_DAMAGED;

	x.name_len = p[0];
	x.len = get_le32(p + 1);
	x.name = (const char *)p + XATTR_HEADER_BYTES;
	n = XATTR_HEADER_BYTES + x.name_len;
	if (x.name_len == 0 || n > v->len || x.len > XATTR_VALUE_MAX ||
	    memchr(x.name, 0, x.name_len))
		return -ERR_ITEM_DAMAGED;

	x.ref = v->ref;
	x.value = v->ref.kind == REF_NONE ? p + n : NULL;
	if (v->len - n != (x.value ? x.len : 0))
		return -ERR_ITEM_DAMAGED;

	*ret = x;
	return 0;
}

/* ---- symlink target ---- */

int target_decode(const struct val *v, struct target_item *ret)
{
	struct target_item t = { .ref = v->ref };

	if (v->ref.kind == REF_NONE) {
		t.len = v->len;
		t.bytes = v->data;
	} else {
		if (v->len != 4)
			return -ERR_ITEM_DAMAGED;
		t.len = get_le32(v->data);
	}
	if (t.len == 0 || t.len > TARGET_MAX || (t.bytes && memchr(t.bytes, 0, t.len)))
		return -ERR_ITEM_DAMAGED;

	*ret = t;
	return 0;
}

/* ---- extent ---- */

int extent_decode(const struct key *k, const struct val *v, struct extent *ret)
{
	struct extent e = { .off = k->b, .ref = v->ref };

	if (v->ref.kind == REF_NONE) {
		e.len = v->len;
		e.bytes = v->data;
		if (e.off != 0 || e.len > INLINE_MAX)
			return -ERR_ITEM_DAMAGED;
	} else {
		if (v->len != EXTENT_BYTES)
			return -ERR_ITEM_DAMAGED;
		e.len = get_le32(v->data);
		if (e.len > CHUNK_MAX || v->ref.off > CHUNK_MAX - e.len)
			return -ERR_ITEM_DAMAGED;
	}
	if (e.len == 0 || e.off > (uint64_t)FILE_SIZE_MAX - e.len)
		return -ERR_ITEM_DAMAGED;

	*ret = e;
	return 0;
}

/* ---- orphan ---- */

int orphan_decode(const struct val *v, uint8_t *ret_flags)
{
	if (v->len != ORPHAN_BYTES || v->ref.kind != REF_NONE)
		return -ERR_ITEM_DAMAGED;

	*ret_flags = *(const uint8_t *)v->data;
	return 0;
}

/* ---- for people ---- */

/* Bytes as people can read them on a terminal: anything unprintable is \xHH. */
static void print_bytes(FILE *out, const void *data, size_t len)
{
	const uint8_t *p = data;

	for (size_t n = 0; n < len; n++) {
		if (p[n] >= ' ' && p[n] < 127 && p[n] != '\\')
			fputc(p[n], out);
		else
			fprintf(out, "\\x%02x", p[n]);
	}
}

static void print_ref(FILE *out, const struct ref *ref)
{
	char hex[NAME_HEX_SIZE];

	if (ref->kind == REF_CHUNK)
		fprintf(out, " chunk %s+%" PRIu32, name_to_text(&ref->name, hex), ref->off);
	else if (ref->kind == REF_BLOB)
		fprintf(out, " blob+%" PRIu32, ref->off);
}

static void print_time(FILE *out, const char *name, struct timens t)
{
	fprintf(out, " %s %" PRId64 ".%09" PRIu32, name, t.sec, t.nsec);
}

void fs_item_to_text(FILE *out, const struct key *k, const struct val *v)
{
	struct dirent_item d;
	struct target_item t;
	struct xattr_item x;
	struct link_item l;
	struct extent e;
	struct inode i;
	uint8_t flags;
	int r = -ERR_ITEM_DAMAGED;

	switch (k->t) {
	case ITEM_INODE:
		r = inode_decode(k->a, v, &i);
		if (r < 0)
			break;
		fprintf(out,
			"inode %" PRIu64 ": mode %06o uid %" PRIu32 " gid %" PRIu32
			" nlink %" PRIu32 " flags %" PRIu32 " rdev %" PRIu64 " size %" PRIu64
			" bytes %" PRIu64,
			k->a, i.mode, i.uid, i.gid, i.nlink, i.flags, i.rdev, i.size, i.bytes);
		print_time(out, "atime", i.atime);
		print_time(out, "mtime", i.mtime);
		print_time(out, "ctime", i.ctime);
		print_time(out, "btime", i.btime);
		fprintf(out, " parent %" PRIu64 "@%" PRIx64, i.parent, i.parent_off);
		break;
	case ITEM_LINK:
		r = link_decode(v, &l);
		if (r < 0)
			break;
		fprintf(out, "link %" PRIu64 ": parent %" PRIu64 "@%" PRIx64, k->a, l.parent,
			l.off);
		break;
	case ITEM_XATTR:
		r = xattr_decode(v, &x);
		if (r < 0)
			break;
		fprintf(out, "xattr %" PRIu64 ": ", k->a);
		print_bytes(out, x.name, x.name_len);
		fprintf(out, " %" PRIu32 " byte%s", x.len, plural(x.len));
		print_ref(out, &x.ref);
		break;
	case ITEM_DIRENT:
		r = dirent_decode(v, &d);
		if (r < 0)
			break;
		fprintf(out, "entry %" PRIu64 "@%" PRIx64 ": %" PRIu64 " type %u ", k->a, k->b,
			d.ino, d.type);
		print_bytes(out, d.name, d.len);
		break;
	case ITEM_TARGET:
		r = target_decode(v, &t);
		if (r < 0)
			break;
		fprintf(out, "target %" PRIu64 ": ", k->a);
		if (t.bytes)
			print_bytes(out, t.bytes, t.len);
		else
			fprintf(out, "%" PRIu32 " byte%s", t.len, plural(t.len));
		print_ref(out, &t.ref);
		break;
	case ITEM_EXTENT:
		r = extent_decode(k, v, &e);
		if (r < 0)
			break;
		fprintf(out, "extent %" PRIu64 "+%" PRIu64 ": %" PRIu32 " byte%s%s", k->a, e.off,
			e.len, plural(e.len), e.bytes ? " inline" : "");
		print_ref(out, &e.ref);
		break;
	case ITEM_ORPHAN:
		r = orphan_decode(v, &flags);
		if (r < 0)
			break;
		fprintf(out, "orphan %" PRIu64 ": flags %u", k->b, flags);
		break;
	default:
		break;
	}
	if (r < 0)
		fprintf(out, "item %" PRIu64 "/%u/%" PRIx64 ": damaged, %" PRIu32 " byte%s", k->a,
			k->t, k->b, v->len, plural(v->len));
}
