/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A change record: the branch, its counters, then items. FORMAT.md has the bytes.
 *
 * Room in the journal is set aside in steps, at the latest before the tree changes. The first step
 * is more than all but a few operations need. An operation that runs out of room, or of memory, or
 * meets what it cannot read after its first change is taken back; or, where that does no harm (the
 * items of a file that nobody can find any more), recorded as far as it came. So tree and journal
 * never differ.
 */

#include "store/oplog.h"

#include <assert.h>
#include <errno.h>
#include <time.h>

#include "store/base/err.h"
#include "store/base/os.h"
#include "store/base/util.h"
#include "store/blob.h"
#include "store/chunk.h"
#include "store/journal.h"

#define STEP_BYTES ((size_t)8 << 10)

/* A buffer beyond this is given back after its operation. */
#define KEEP_BYTES ((size_t)64 << 10)

#define WAIT_FOR_MEMORY_NS 10000000

/* Kind of an item, in the upper four bits of its word; the lower twelve are the value's length. */
enum item_kind { ITEM_PLAIN = 0, ITEM_CHUNK = 1, ITEM_BLOB = 2, ITEM_GONE = 15 };

#define ITEM_HEAD 19  /* key and word */
#define CHUNK_REF 20  /* name, offset */
#define BLOB_REF 32   /* file, place, length, offset, name or zeros */
#define BLOB_REF_NAME 16
#define ITEM_MAX (ITEM_HEAD + BLOB_REF + VAL_MAX)

#define HEAD_FIXED 17 /* changes, next inode number, length of the branch's name */

struct held_blob {
	struct blob *blob; /* referenced: its bytes stay where they are until the record is there */
	size_t at;         /* of its name in buf */
};

/* What a key had before a change. */
struct former {
	struct key key;
	bool there;
	uint32_t len;
	size_t at;      /* of the value's bytes in former_bytes */
	struct ref ref; /* a blob is referenced */
};

struct oplog {
	struct journal *journal; /* borrowed */
	_Atomic uint64_t *last;  /* borrowed */
	uint8_t *buf;            /* owned: the payload */
	size_t len, cap;
	size_t head;             /* bytes before the items */
	size_t before;           /* len before the last call */
	size_t reserved;
	struct held_blob *blobs; /* owned */
	size_t n_blobs, cap_blobs;
	struct former *formers; /* owned: one for each item in buf */
	size_t n_formers, cap_formers;
	uint8_t *former_bytes;  /* owned */
	size_t former_len, cap_former_bytes;
};

static void oplog_freep(struct oplog **l)
{
	if (*l)
		oplog_free(*l);
}

int oplog_new(struct journal *j, const char *branch, _Atomic uint64_t *last, struct oplog **ret)
{
	_cleanup_(oplog_freep) struct oplog *l = os_calloc(1, sizeof(*l));
	size_t n = strlen(branch);

	if (!l)
		return -ENOMEM;
	l->journal = j;
	l->last = last;
	l->len = l->head = HEAD_FIXED + n;
	if (os_grow(&l->buf, &l->cap, l->len, 1) < 0)
		return -ENOMEM;
	l->buf[16] = (uint8_t)n;
	memcpy(l->buf + HEAD_FIXED, branch, n);
	*ret = TAKE_PTR(l);
	return 0;
}

void oplog_free(struct oplog *l)
{
	if (!l)
		return;
	assert(l->n_blobs == 0 && l->n_formers == 0 && l->reserved == 0);
	free(l->blobs);
	free(l->formers);
	free(l->former_bytes);
	free(l->buf);
	free(l);
}

/* ---- collecting ---- */

static int make_room(struct oplog *l, size_t bytes)
{
	size_t want = l->len + bytes + RECORD_OVERHEAD, step;
	int r;

	if (l->journal && want > l->reserved) {
		step = MAX(want - l->reserved, MAX(STEP_BYTES, l->reserved));
		r = journal_reserve(l->journal, step, false);
		if (r < 0)
			return r;
		l->reserved += step;
	}
	return os_grow(&l->buf, &l->cap, l->len + bytes, 1);
}

static uint8_t *put_head(uint8_t *p, const struct key *k, enum item_kind kind, uint32_t len)
{
	put_le64(p, k->a);
	p[8] = k->t;
	put_le64(p + 9, k->b);
	put_le16(p + 17, (uint16_t)(kind << 12 | len));
	return p + ITEM_HEAD;
}

static uint8_t *put_plain(uint8_t *p, const struct key *k, const struct val *v)
{
	p = put_head(p, k, v->ref.kind == REF_CHUNK ? ITEM_CHUNK : ITEM_PLAIN, v->len);
	if (v->ref.kind == REF_CHUNK) {
		memcpy(p, v->ref.name.b, NAME_BYTES);
		put_le32(p + NAME_BYTES, v->ref.off);
		p += CHUNK_REF;
	}
	if (v->len > 0)
		memcpy(p, v->data, v->len);
	return p + v->len;
}

static uint8_t *put_blob(uint8_t *p, const struct key *k, const struct val *v, uint8_t **ret_name)
{
	uint32_t file, off;

	blob_place(v->ref.blob, &file, &off);
	p = put_head(p, k, ITEM_BLOB, v->len);
	put_le32(p, file);
	put_le32(p + 4, off);
	put_le32(p + 8, blob_len(v->ref.blob));
	put_le32(p + 12, v->ref.off);
	*ret_name = p + BLOB_REF_NAME;
	memset(*ret_name, 0, NAME_BYTES);
	p += BLOB_REF;
	if (v->len > 0)
		memcpy(p, v->data, v->len);
	return p + v->len;
}

/* Room for what add_former will add. */
static int make_room_for_former(struct oplog *l, const struct val *old)
{
	size_t len = l->former_len + (old ? old->len : 0);
	int r;

	r = os_grow(&l->formers, &l->cap_formers, l->n_formers + 1, sizeof(*l->formers));
	return r < 0 ? r : os_grow(&l->former_bytes, &l->cap_former_bytes, len, 1);
}

static void add_former(struct oplog *l, const struct key *k, const struct val *old)
{
	struct former *f = &l->formers[l->n_formers++];

	*f = (struct former){ .key = *k, .at = l->former_len };
	if (!old)
		return;
	f->there = true;
	f->len = old->len;
	f->ref = old->ref;
	if (f->ref.kind == REF_BLOB)
		(void)blob_ref(f->ref.blob);
	if (f->len > 0)
		memcpy(l->former_bytes + f->at, old->data, f->len);
	l->former_len += f->len;
}

static void drop_former(struct oplog *l)
{
	struct former *f = &l->formers[--l->n_formers];

	if (f->ref.kind == REF_BLOB)
		blob_unref(f->ref.blob);
	l->former_len = f->at;
}

int oplog_put(struct oplog *l, const struct key *k, const struct val *v, const struct val *old)
{
	uint8_t *end, *name;
	int r;

	r = make_room(l, ITEM_HEAD + BLOB_REF + v->len);
	if (r >= 0)
		r = make_room_for_former(l, old);
	if (r >= 0 && v->ref.kind == REF_BLOB)
		r = os_grow(&l->blobs, &l->cap_blobs, l->n_blobs + 1, sizeof(*l->blobs));
	if (r < 0)
		return r;
	l->before = l->len;
	add_former(l, k, old);
	if (v->ref.kind != REF_BLOB) {
		l->len = (size_t)(put_plain(l->buf + l->len, k, v) - l->buf);
		return 0;
	}

	end = put_blob(l->buf + l->len, k, v, &name);
	l->blobs[l->n_blobs++] = (struct held_blob){ .blob = blob_ref(v->ref.blob),
						     .at = (size_t)(name - l->buf) };
	l->len = (size_t)(end - l->buf);
	return 0;
}

int oplog_del(struct oplog *l, const struct key *k, const struct val *old)
{
	int r = make_room(l, ITEM_HEAD);

	if (r >= 0)
		r = make_room_for_former(l, old);
	if (r < 0)
		return r;
	l->before = l->len;
	add_former(l, k, old);
	(void)put_head(l->buf + l->len, k, ITEM_GONE, 0);
	l->len += ITEM_HEAD;
	return 0;
}

void oplog_undo(struct oplog *l)
{
	l->len = l->before;
	while (l->n_blobs > 0 && l->blobs[l->n_blobs - 1].at >= l->len)
		blob_unref(l->blobs[--l->n_blobs].blob);
	drop_former(l);
}

void oplog_take_back(struct oplog *l, struct tree *t)
{
	const struct timespec moment = { .tv_nsec = WAIT_FOR_MEMORY_NS };

	tree_set_log(t, NULL);
	while (l->n_formers > 0) {
		const struct former *f = &l->formers[l->n_formers - 1];
		const struct val v = {
			.data = f->len > 0 ? l->former_bytes + f->at : NULL,
			.len = f->len,
			.ref = f->ref,
		};
		int r;

		/* The path is the tree's own since the change: nothing is loaded or copied. */
		while ((r = f->there ? tree_put(t, &f->key, &v) : tree_del(t, &f->key)) == -ENOMEM)
			(void)nanosleep(&moment, NULL);
		assert(r == 0);
		drop_former(l);
	}
	tree_set_log(t, l);
	l->len = l->head;
	while (l->n_blobs > 0)
		blob_unref(l->blobs[--l->n_blobs].blob);
}

/* With the record's number taken: what became a chunk by now may leave the stage before it. */
static void fill_names(void *arg)
{
	struct oplog *l = arg;
	struct name name;

	for (size_t i = 0; i < l->n_blobs; i++)
		if (blob_name(l->blobs[i].blob, &name))
			memcpy(l->buf + l->blobs[i].at, name.b, NAME_BYTES);
}

void oplog_end(struct oplog *l, uint64_t changes, uint64_t next_ino)
{
	if (l->journal && l->len > l->head) {
		put_le64(l->buf, changes);
		put_le64(l->buf + 8, next_ino);
		(void)journal_append(l->journal, JOURNAL_CHANGE, l->buf, l->len, l->reserved,
				     l->n_blobs > 0 ? fill_names : NULL, l, l->last);
	} else if (l->reserved > 0) {
		journal_unreserve(l->journal, l->reserved);
	}
	l->reserved = 0;
	l->len = l->head;
	while (l->n_blobs > 0)
		blob_unref(l->blobs[--l->n_blobs].blob);
	while (l->n_formers > 0)
		drop_former(l);
	if (l->cap > KEEP_BYTES) {
		uint8_t *less = realloc(l->buf, l->head);

		if (less) {
			l->buf = less;
			l->cap = l->head;
		}
	}
	if (l->cap_formers * sizeof(*l->formers) + l->cap_former_bytes > KEEP_BYTES) {
		free(TAKE_PTR(l->formers));
		free(TAKE_PTR(l->former_bytes));
		l->cap_formers = l->cap_former_bytes = 0;
	}
}

int oplog_dump(struct tree *t, size_t max, uint8_t **buf, size_t *len)
{
	size_t cap = *len;
	struct cursor c;
	int r;

	for (r = cursor_seek(&c, t, &KEY_MIN); r == 0; r = cursor_next(&c)) {
		if (c.val.ref.kind == REF_BLOB)
			return -EINVAL;
		if (*len + ITEM_MAX > max)
			return -E2BIG;
		if (os_grow(buf, &cap, *len + ITEM_MAX, 1) < 0)
			return -ENOMEM;
		*len = (size_t)(put_plain(*buf + *len, &c.key, &c.val) - *buf);
	}
	return r == END ? 0 : r;
}

/* ---- reading ---- */

int oplog_decode(const uint8_t *p, size_t len, struct oplog_head *ret)
{
	if (len < HEAD_FIXED || p[16] > len - HEAD_FIXED)
		return -ERR_JOURNAL_DAMAGED;
	*ret = (struct oplog_head){
		.changes = get_le64(p),
		.next_ino = get_le64(p + 8),
		.branch = (const char *)p + HEAD_FIXED,
		.branch_len = p[16],
		.items = p + HEAD_FIXED + p[16],
		.items_len = len - HEAD_FIXED - p[16],
	};
	return 0;
}

/* A chunk that is committed is that; else the bytes are still in the stage. */
static int find_blob(struct stage *stage, struct chunks *chunks, const uint8_t *p, struct ref *ret,
		     struct blob **ret_blob)
{
	static const struct name none;
	struct name name;
	int r;

	memcpy(name.b, p + BLOB_REF_NAME, NAME_BYTES);
	ret->off = get_le32(p + 12);
	ret->kind = REF_CHUNK;
	ret->name = name;
	if (!name_eq(&name, &none) && chunk_find(chunks, &name) == 0)
		return 0;
	r = blob_adopt(stage, get_le32(p), get_le32(p + 4), get_le32(p + 8), ret_blob);
	if (r == ABSENT && !name_eq(&name, &none))
		return 0; /* a later record replaces the item, or check will name it */
	if (r != 0)
		return r < 0 ? r : -ERR_JOURNAL_DAMAGED;
	ret->kind = REF_BLOB;
	ret->blob = *ret_blob;
	return 0;
}

struct item {
	struct key key;
	enum item_kind kind;
	const uint8_t *ref, *data; /* lent */
	uint32_t data_len;
};

/* *ret_len: what it takes. */
static int item_decode(const uint8_t *p, size_t len, struct item *ret, size_t *ret_len)
{
	size_t at = ITEM_HEAD;
	uint16_t word;

	if (len < ITEM_HEAD)
		return -ERR_JOURNAL_DAMAGED;
	word = get_le16(p + 17);
	*ret = (struct item){
		.key = { .a = get_le64(p), .t = p[8], .b = get_le64(p + 9) },
		.kind = word >> 12,
		.ref = p + ITEM_HEAD,
		.data_len = word & 0xfff,
	};
	switch (ret->kind) {
	case ITEM_GONE:
		if (ret->data_len != 0)
			return -ERR_JOURNAL_DAMAGED;
		break;
	case ITEM_PLAIN:
		break;
	case ITEM_CHUNK:
		at += CHUNK_REF;
		break;
	case ITEM_BLOB:
		at += BLOB_REF;
		break;
	default:
		return -ERR_JOURNAL_DAMAGED;
	}
	if (at > len || ret->data_len > VAL_MAX || ret->data_len > len - at)
		return -ERR_JOURNAL_DAMAGED;
	ret->data = p + at;
	*ret_len = at + ret->data_len;
	return 0;
}

static int apply_one(struct tree *t, struct stage *stage, struct chunks *chunks,
		     const struct item *item)
{
	_cleanup_(blob_unrefp) struct blob *blob = NULL;
	struct val v = { .data = item->data, .len = item->data_len };
	int r = 0;

	switch (item->kind) {
	case ITEM_GONE:
		r = tree_del(t, &item->key);
		return r == ABSENT ? 0 : r;
	case ITEM_PLAIN:
		break;
	case ITEM_CHUNK:
		v.ref.kind = REF_CHUNK;
		memcpy(v.ref.name.b, item->ref, NAME_BYTES);
		v.ref.off = get_le32(item->ref + NAME_BYTES);
		break;
	case ITEM_BLOB:
		r = find_blob(stage, chunks, item->ref, &v.ref, &blob);
		break;
	}
	return r < 0 ? r : tree_put(t, &item->key, &v);
}

static int apply_all(struct tree *t, struct stage *stage, struct chunks *chunks,
		     const uint8_t *items, size_t len)
{
	struct item item;

	for (size_t n; len > 0; items += n, len -= n) {
		int r = item_decode(items, len, &item, &n);

		if (r == 0)
			r = apply_one(t, stage, chunks, &item);
		if (r < 0)
			return r;
	}
	return 0;
}

int oplog_apply(struct oplog *l, struct tree *t, struct stage *stage, struct chunks *chunks,
		const uint8_t *items, size_t len)
{
	int r;

	tree_set_log(t, l);
	r = apply_all(t, stage, chunks, items, len);
	if (r < 0)
		oplog_take_back(l, t);
	tree_set_log(t, NULL);
	oplog_end(l, 0, 0);
	return r;
}

int oplog_each_chunk(const uint8_t *items, size_t len,
		     int (*fn)(void *arg, const struct name *name), void *arg)
{
	static const struct name none;
	struct name name;
	struct item item;

	for (size_t n; len > 0; items += n, len -= n) {
		int r = item_decode(items, len, &item, &n);

		if (r < 0)
			return r;
		if (item.kind != ITEM_CHUNK && item.kind != ITEM_BLOB)
			continue;
		memcpy(name.b, item.ref + (item.kind == ITEM_BLOB ? BLOB_REF_NAME : 0), NAME_BYTES);
		r = name_eq(&name, &none) ? 0 : fn(arg, &name);
		if (r < 0)
			return r;
	}
	return 0;
}
