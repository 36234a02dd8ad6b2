/* SPDX-License-Identifier: Apache-2.0 */
#include "store/table.h"

#include <errno.h>
#include <inttypes.h>

#include "store/base/err.h"
#include "store/base/os.h"
#include "store/base/util.h"
#include "store/chunk_internal.h"

/*
 *  T1 Records are numbered by commit, without gaps since the last one that is *whole* (holds
 *     everything); of two with one number the later one in the packs counts. A number is used again
 *     when its commit failed, or was cut off by a crash.
 *  T2 The index knows the newest record's number, place and name, committed with the changes that
 *     are in it. So an open can tell whether it is there, and after a crash that took it (it is
 *     not synced before the commit: salvage is no reason to wait for the disk) a whole one is
 *     written.
 *  T3 Each record names the one before it. A file in a workspace may hold bytes that look like a
 *     record, and salvage may meet them inside a damaged chunk; nobody can forge the name of a
 *     record that was not made yet.
 *  T4 Where a record cannot be written (no room), the commit goes on and `behind` is set: later
 *     commits try a whole one first. The index then has the last number and no place. Where it is
 *     only a whole one that cannot be written, those of changes go on. `behind` is also set when a
 *     pack could not be synced: nobody knows what the disk has of the records in it, and an open,
 *     which looks at the newest one only, would not see what it lacks.
 *
 * A whole record costs what all records together are long (some 100 bytes a snapshot), so one is
 * written only when changes since the last one take more than that, and before a gc removes packs.
 */

/* Operations in one record: a quarter of what a chunk may have, so that records stay small. */
#define PART_BYTES (32 * 1024)

/* Changes are cheaper to keep than to replace below this. */
#define WHOLE_MIN ((uint64_t)1 << 20)

struct place {
	uint64_t number; /* 0: there is none */
	uint32_t pack;
	uint64_t off;
	struct name name;
	uint64_t since; /* bytes of records since the last whole one */
	uint64_t whole; /* bytes of that */
};

struct table {
	struct chunks *chunks; /* borrowed */
	struct index *index;   /* borrowed */
	uint8_t uuid[16];

	struct place last, next; /* committed; in the transaction that is under way */
	bool behind;		 /* T4: the packs lack something */
	uint64_t became_bad;	 /* packs that were bad before the last whole record was begun */
};

/* ---- bytes ---- */

int table_part_decode(const uint8_t *bytes, size_t len, struct table_part *ret)
{
	struct table_record_bytes b;
	struct table_part part;

	if (len < sizeof(b))
		return -ERR_RECORD_DAMAGED;
	memcpy(&b, bytes, sizeof(b));
	part = (struct table_part){
		.whole = b.whole == 1,
		.part = get_le32(b.part),
		.parts = get_le32(b.parts),
		.number = get_le64(b.number),
		.before_pack = get_le32(b.before_pack),
		.before_off = get_le64(b.before_off),
		.ops = bytes + sizeof(b),
		.ops_len = len - sizeof(b),
	};
	if (b.version != TABLE_VERSION || b.whole > 1 || part.part >= part.parts ||
	    part.number == 0)
		return -ERR_RECORD_DAMAGED;
	memcpy(part.uuid, b.uuid, sizeof(part.uuid));
	memcpy(part.before.b, b.before, NAME_BYTES);
	*ret = part;
	return 0;
}

/* The bytes of the first operation; 0: there is none, or it does not end. */
static size_t op_len(const uint8_t *bytes, size_t len)
{
	struct index_op_bytes head;
	uint64_t all;

	if (len < sizeof(head))
		return 0;
	memcpy(&head, bytes, sizeof(head));
	all = sizeof(head) + (uint64_t)get_le16(head.key_len) + get_le32(head.value_len);
	return all <= len ? (size_t)all : 0;
}

int index_ops_each(const uint8_t *bytes, size_t len,
		   int (*fn)(void *arg, bool put, enum index_table table, const void *key,
			     size_t key_len, const void *value, size_t value_len),
		   void *arg)
{
	while (len > 0) {
		size_t n = op_len(bytes, len);
		struct index_op_bytes head;
		const uint8_t *key = bytes + sizeof(head);
		int r;

		if (n == 0)
			return -ERR_RECORD_DAMAGED;
		memcpy(&head, bytes, sizeof(head));
		if ((head.op != INDEX_OP_PUT && head.op != INDEX_OP_DEL) ||
		    head.table > INDEX_BRANCHES || get_le16(head.key_len) == 0)
			return -ERR_RECORD_DAMAGED;
		r = fn(arg, head.op == INDEX_OP_PUT, (enum index_table)head.table, key,
		       get_le16(head.key_len), key + get_le16(head.key_len),
		       get_le32(head.value_len));
		if (r != 0)
			return r;
		bytes += n;
		len -= n;
	}
	return 0;
}

static void place_put(const struct place *p, struct table_place_bytes *b)
{
	*b = (struct table_place_bytes){ { 0 } };
	put_le64(b->number, p->number);
	put_le32(b->pack, p->pack);
	put_le64(b->off, p->off);
	memcpy(b->name, p->name.b, NAME_BYTES);
	put_le64(b->since, p->since);
	put_le64(b->whole, p->whole);
}

static bool place_get(const void *bytes, size_t len, struct place *ret)
{
	struct table_place_bytes b;

	if (len != sizeof(b))
		return false;
	memcpy(&b, bytes, sizeof(b));
	*ret = (struct place){
		.number = get_le64(b.number),
		.pack = get_le32(b.pack),
		.off = get_le64(b.off),
		.since = get_le64(b.since),
		.whole = get_le64(b.whole),
	};
	memcpy(ret->name.b, b.name, NAME_BYTES);
	return true;
}

/* ---- writing ---- */

/* Whole operations, as many as fit. */
static size_t cut_part(const uint8_t *ops, size_t len)
{
	size_t cut = 0, n;

	while (cut < len && (n = op_len(ops + cut, len - cut)) > 0) {
		if (cut > 0 && cut + n > PART_BYTES)
			break;
		cut += n;
	}
	return cut;
}

static int write_part(struct table *t, const struct table_record_bytes *head, const uint8_t *ops,
		      size_t len, struct place *at)
{
	_cleanup_free_ uint8_t *payload = os_malloc(sizeof(*head) + len), *bytes = NULL;
	struct record rec;
	size_t span;
	int r;

	if (!payload)
		return -ENOMEM;
	memcpy(payload, head, sizeof(*head));
	if (len > 0)
		memcpy(payload + sizeof(*head), ops, len);
	at->name = name_of(payload, sizeof(*head) + len, 0);
	r = record_encode(t->chunks->packs, RECORD_TABLE, payload, sizeof(*head) + len, 0,
			  &at->name, &bytes, &span, &rec);
	if (r < 0)
		return r;
	r = pack_append(t->chunks->packs, bytes, span, &at->pack, &at->off);
	if (r == 0)
		at->since += span;
	return r;
}

/* All parts of a record; t->next is where the last one is. */
static int write_record(struct table *t, bool whole, uint64_t number, const uint8_t *ops,
			size_t len)
{
	struct table_record_bytes head = { .version = TABLE_VERSION, .whole = whole };
	struct place at = t->last;
	uint32_t parts = 0, part = 0;

	if (whole)
		at.since = 0;

	for (size_t done = 0; done < len; parts++)
		done += cut_part(ops + done, len - done);
	put_le32(head.parts, MAX(parts, 1));
	put_le64(head.number, number);
	memcpy(head.uuid, t->uuid, sizeof(head.uuid));
	do {
		size_t n = cut_part(ops, len);
		int r;

		put_le32(head.part, part++);
		memcpy(head.before, at.name.b, NAME_BYTES);
		put_le32(head.before_pack, at.pack);
		put_le64(head.before_off, at.off);
		r = write_part(t, &head, ops, n, &at);
		if (r < 0)
			return r;
		ops += n;
		len -= n;
	} while (len > 0);

	at.number = number;
	if (whole) {
		at.whole = at.since;
		at.since = 0;
	}
	t->next = at;
	return 0;
}

static int put_place(struct index_txn *txn, const struct place *place)
{
	struct table_place_bytes b;

	place_put(place, &b);
	return index_put(txn, INDEX_META, TABLE_KEY, strlen(TABLE_KEY), &b, sizeof(b));
}

int table_record(struct table *t, struct index_txn *txn)
{
	const struct index_ops *ops = index_txn_ops(txn);

	t->next = t->last;
	if (ops->len == 0)
		return 0;
	if (packs_became_bad(t->chunks->packs) != t->became_bad)
		t->behind = true;
	if (!t->behind && write_record(t, false, t->last.number + 1, ops->bytes, ops->len) < 0)
		t->behind = true; /* T4; what it was is told when it hinders a chunk */
	if (t->behind)
		t->next = (struct place){ .number = t->last.number };
	return put_place(txn, &t->next);
}

/* ---- everything ---- */

struct all {
	struct index_ops ops;
	enum index_table table;
};

static int add_all(void *arg, const void *key, size_t key_len, const void *value, size_t len)
{
	struct all *all = arg;

	if (!value)
		return -ERR_INDEX_DAMAGED; /* an older record may have it: not to be replaced */
	if (all->table == INDEX_META && key_len == strlen(TABLE_KEY) &&
	    memcmp(key, TABLE_KEY, key_len) == 0)
		return 0;
	return index_ops_add(&all->ops, true, all->table, key, key_len, value, len);
}

static int commit_place(struct table *t)
{
	for (;;) {
		_cleanup_(index_abortp) struct index_txn *txn = NULL;
		int r;

		r = index_begin(t->index, &txn);
		if (r == 0)
			r = put_place(txn, &t->next);
		if (r == 0)
			r = index_commit(&txn);
		if (r != -ERR_INDEX_FULL)
			return r;
		index_abortp(&txn);
		r = index_grow(t->index);
		if (r < 0)
			return r;
	}
}

static int write_everything(struct table *t)
{
	const uint64_t became_bad = packs_became_bad(t->chunks->packs);
	struct all all = { .table = INDEX_META };
	int r = 0;

	for (; r == 0 && all.table <= INDEX_BRANCHES; all.table++)
		r = index_each(t->index, all.table, add_all, &all);
	/* beyond any number in use, whatever was lost of the last place (as store.c's counters) */
	if (r == 0)
		r = write_record(t, true,
				 t->behind ? MAX((uint64_t)os_now_ns(), t->last.number + 1)
					   : t->last.number + 1,
				 all.ops.bytes, all.ops.len);
	if (r == 0)
		r = packs_sync(t->chunks->packs);
	if (r == 0)
		r = commit_place(t);
	if (r == 0) {
		t->last = t->next;
		t->behind = false;
		t->became_bad = became_bad;
	}
	index_ops_release(&all.ops);
	return r;
}

void table_committed(struct table *t)
{
	t->last = t->next;
	if (t->behind || t->last.since > MAX(WHOLE_MIN, 2 * t->last.whole))
		(void)write_everything(t); /* else the next commit tries again */
}

int table_write_all(struct table *t)
{
	int r;

	r = chunks_settle(t->chunks);
	if (r == 0)
		r = write_everything(t);
	if (r == -ENOSPC || r == -EDQUOT)
		t->behind = true; /* gc goes on, and what there is goes */
	return r;
}

/* ---- opening ---- */

static int read_place(struct table *t, struct place *ret)
{
	_cleanup_free_ void *value = NULL;
	size_t len;
	int r;

	r = index_get(t->index, INDEX_META, TABLE_KEY, strlen(TABLE_KEY), &value, &len);
	if (r < 0 || r == ABSENT)
		return r == -ERR_INDEX_DAMAGED ? ABSENT : r;
	return place_get(value, len, ret) && ret->number > 0 ? 0 : ABSENT;
}

/* Reads the record at a place, which becomes that of the record before. */
static int step_back(struct table *t, struct place *at, struct table_part *ret)
{
	_cleanup_free_ uint8_t *payload = NULL;
	struct record rec;
	int r;

	r = record_read(t->chunks->packs, at->pack, at->off, &rec, &payload);
	if (r < 0)
		return r;
	if (rec.kind != RECORD_TABLE || !name_eq(&rec.name, &at->name))
		return -ERR_RECORD_DAMAGED;
	r = table_part_decode(payload, rec.raw_len, ret);
	if (r < 0)
		return r;
	*at = (struct place){ .name = ret->before,
			      .pack = ret->before_pack,
			      .off = ret->before_off };
	ret->ops = NULL; /* went with the payload */
	return 0;
}

int table_check(struct table *t)
{
	struct place at = t->last;
	struct table_part part = { 0 };

	if (t->behind || at.number == 0)
		return ABSENT;
	do {
		int r = step_back(t, &at, &part);

		if (r < 0)
			return r;
	} while (!(part.whole && part.part == 0));
	return 0;
}

int table_open(struct chunks *c, struct index *ix, const uint8_t uuid[static 16],
	       struct table **ret)
{
	struct table *t = os_calloc(1, sizeof(*t));
	struct table_part part;
	struct place at;
	int r;

	if (!t)
		return -ENOMEM;
	t->chunks = c;
	t->index = ix;
	memcpy(t->uuid, uuid, sizeof(t->uuid));

	r = read_place(t, &t->last);
	at = t->last;
	if (r == 0)
		packs_pass(c->packs, at.pack); /* who lost the last ones is told what is missing */
	if (r == 0)
		r = step_back(t, &at, &part);
	if (r == 0 && part.number != t->last.number)
		r = -ERR_RECORD_DAMAGED;
	if (r == -ENOMEM) {
		free(t);
		return r;
	}
	t->behind = r != 0;
	*ret = t;
	return 0;
}

void table_close(struct table *t)
{
	free(t);
}
