/* SPDX-License-Identifier: Apache-2.0 */

/* What the index has: values with their checksums, read and written in transactions. */

#include "store/index_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdatomic.h>

#include "store/base/err.h"
#include "store/base/os.h"
#include "store/base/util.h"
#include "store/chunk.h"
#include "store/format.h"

struct index_txn {
	struct index *ix; /* borrowed; its write_lock is ours */
	MDB_txn *txn;     /* owned */
	struct index_ops ops;
};

/* ---- values ---- */

static uint32_t value_sum(const MDB_val *key, const void *value, size_t len)
{
	return (uint32_t)hash64(value, len, hash64(key->mv_data, key->mv_size, 0));
}

/* The payload inside a stored value; false when the checksum denies it. */
static bool value_open(const MDB_val *key, const MDB_val *stored, MDB_val *ret)
{
	const uint8_t *bytes = stored->mv_data;
	size_t len;

	if (stored->mv_size < INDEX_SUM_BYTES)
		return false;
	len = stored->mv_size - INDEX_SUM_BYTES;
	if (get_le32(bytes + len) != value_sum(key, bytes, len))
		return false;

	*ret = (MDB_val){ .mv_size = len, .mv_data = stored->mv_data };
	return true;
}

static void loc_put(struct chunk_loc_bytes *b, const struct chunk_loc *loc)
{
	*b = (struct chunk_loc_bytes){ .kind = loc->kind, .codec = loc->codec };
	put_le32(b->pack, loc->pack);
	put_le64(b->off, loc->off);
	put_le32(b->stored_len, loc->stored_len);
	put_le32(b->raw_len, loc->raw_len);
	put_le32(b->salt, loc->salt);
}

/* False for what no healthy store holds; packs and codecs may rely on the bounds checked here. */
static bool loc_get(const MDB_val *value, struct chunk_loc *ret)
{
	struct chunk_loc_bytes b;
	struct chunk_loc loc;

	if (value->mv_size != sizeof(b))
		return false;
	memcpy(&b, value->mv_data, sizeof(b));

	loc = (struct chunk_loc){
		.kind = b.kind,
		.codec = b.codec,
		.pack = get_le32(b.pack),
		.off = get_le64(b.off),
		.stored_len = get_le32(b.stored_len),
		.raw_len = get_le32(b.raw_len),
		.salt = get_le32(b.salt),
	};
	if (loc.kind != CHUNK_DATA && loc.kind != CHUNK_NODE)
		return false;
	if (loc.codec > 2 || loc.raw_len < 1 || loc.raw_len > CHUNK_MAX)
		return false;
	if (loc.stored_len < 1 || loc.stored_len > loc.raw_len)
		return false;
	if (loc.codec == 0 && loc.stored_len != loc.raw_len)
		return false;
	if (loc.pack == 0 && loc.codec != 2) /* only what is lost may be in none */
		return false;
	if (loc.off < sizeof(struct pack_header_bytes) || loc.off > UINT32_MAX ||
	    loc.off % PACK_ALIGN != 0)
		return false;

	*ret = loc;
	return true;
}

/* ---- read transactions ---- */

struct reader {
	struct index *ix;
	MDB_txn *txn;
};

/* map_lock is held for reading. LMDB's code. */
static int reader_take(struct index *ix, MDB_txn **ret, bool *ret_fresh)
{
	MDB_txn *txn;
	int rc;

	LOCK_GUARD(&ix->pool_lock);
	while (ix->pooled == 0 && ix->made == READERS_MAX)
		pthread_cond_wait(&ix->pool_returned, &ix->pool_lock);

	if (ix->pooled > 0) {
		*ret = ix->pool[--ix->pooled];
		*ret_fresh = false;
		return 0;
	}

	rc = ix->env ? mdb_txn_begin(ix->env, NULL, MDB_RDONLY, &txn) : MDB_PANIC;
	if (rc != 0)
		return rc;
	ix->made++;
	*ret = txn;
	*ret_fresh = true;
	return 0;
}

static void reader_give(struct index *ix, MDB_txn *txn)
{
	LOCK_GUARD(&ix->pool_lock);
	if (txn)
		ix->pool[ix->pooled++] = txn;
	else
		ix->made--;
	pthread_cond_signal(&ix->pool_returned);
}

static void reader_endp(struct reader *rd)
{
	if (!rd->txn)
		return;
	mdb_txn_reset(rd->txn);
	reader_give(rd->ix, rd->txn);
	pthread_rwlock_unlock(&rd->ix->map_lock);
}

/*
 * LMDB first notes the number of the last commit and then copies that one's meta page. Who gets no
 * CPU in between for as long as the next commit takes finds on the page what the one after that
 * wrote; when it failed, that is its tree with the older one's number and size. So a copy counts
 * when no commit had ended since, as that page is not written before one has. LMDB's code.
 */
static int reader_certain(struct index *ix, MDB_txn *txn)
{
	for (;;) {
		const uint64_t number = mdb_txn_id(txn);
		int rc;

		atomic_thread_fence(memory_order_acquire); /* after the copy */
		if (atomic_load(&ix->last_txn) <= number)
			return 0;
		mdb_txn_reset(txn);
		rc = mdb_txn_renew(txn);
		/* The same again: the file lacks that commit, as index_settle() will say. */
		if (rc != 0 || mdb_txn_id(txn) == number)
			return rc;
	}
}

static int reader_try(struct index *ix, MDB_txn **ret)
{
	bool fresh;
	int rc = reader_take(ix, ret, &fresh);

	if (rc != 0)
		return rc;
	if (!fresh)
		rc = mdb_txn_renew(*ret);
	if (rc == 0)
		rc = reader_certain(ix, *ret);
	if (rc != 0) {
		mdb_txn_abort(*ret);
		reader_give(ix, NULL);
	}
	return rc;
}

/*
 * A view of the last commit; ended by scope. Between a commit that failed and index_reopen(), which
 * its thread is about to call, LMDB refuses to read: this waits. Not on write_lock, as a caller may
 * have what another writer wants.
 */
static int reader_begin(struct index *ix, struct reader *ret)
{
	MDB_txn *txn = NULL;
	uint64_t reopened;
	bool refused;
	int rc;

	for (;;) {
		pthread_rwlock_rdlock(&ix->map_lock);
		rc = reader_try(ix, &txn);
		if (rc == 0)
			break;
		refused = rc == MDB_PANIC && ix->env;
		reopened = ix->reopened;
		pthread_rwlock_unlock(&ix->map_lock);
		if (!refused)
			return index_fail(ix, rc, "reading");
		LOCK_GUARD(&ix->pool_lock);
		while (ix->reopened == reopened)
			pthread_cond_wait(&ix->was_reopened, &ix->pool_lock);
	}
	*ret = (struct reader){ .ix = ix, .txn = txn };
	return 0;
}

void index_pool_empty(struct index *ix)
{
	LOCK_GUARD(&ix->pool_lock);
	while (ix->pooled > 0) {
		mdb_txn_abort(ix->pool[--ix->pooled]);
		ix->made--;
	}
}

/* ---- reading ---- */

static int damaged_chunk_entry(struct index *ix, const struct name *name)
{
	char text[NAME_HEX_SIZE];

	return note(&ix->noter, -ERR_INDEX_DAMAGED, "index: the entry of chunk %s is damaged",
		    name_to_text(name, text));
}

int index_find_chunk(struct index *ix, const struct name *name, struct chunk_loc *ret)
{
	MDB_val key = { .mv_size = NAME_BYTES, .mv_data = (void *)name->b };
	_cleanup_(reader_endp) struct reader rd = { 0 };
	MDB_val stored, value;
	int r, rc;

	r = reader_begin(ix, &rd);
	if (r < 0)
		return r;

	rc = mdb_get(rd.txn, ix->chunks, &key, &stored);
	if (rc == MDB_NOTFOUND)
		return ABSENT;
	if (rc != 0)
		return index_fail(ix, rc, "looking up a chunk");
	if (!value_open(&key, &stored, &value) || !loc_get(&value, ret))
		return damaged_chunk_entry(ix, name);
	return 0;
}

int index_get(struct index *ix, enum index_table table, const void *key_bytes, size_t key_len,
	      void **ret_value, size_t *ret_len)
{
	MDB_val key = { .mv_size = key_len, .mv_data = (void *)key_bytes };
	_cleanup_(reader_endp) struct reader rd = { 0 };
	MDB_val stored, value;
	void *copy;
	int r, rc;

	r = reader_begin(ix, &rd);
	if (r < 0)
		return r;

	rc = mdb_get(rd.txn, ix->tables[table], &key, &stored);
	if (rc == MDB_NOTFOUND)
		return ABSENT;
	if (rc != 0)
		return index_fail(ix, rc, "reading a record");
	if (!value_open(&key, &stored, &value))
		return note(&ix->noter, -ERR_INDEX_DAMAGED,
			    "index: a record of table '%s' is damaged", index_table_names[table]);

	copy = os_malloc(value.mv_size > 0 ? value.mv_size : 1);
	if (!copy)
		return -ENOMEM;
	memcpy(copy, value.mv_data, value.mv_size);
	*ret_value = copy;
	*ret_len = value.mv_size;
	return 0;
}

static void cursor_closep(MDB_cursor **cursor)
{
	if (*cursor)
		mdb_cursor_close(*cursor);
}

/* fn gets each raw entry of a table, value NULL where its checksum fails. */
static int each_entry(struct index *ix, MDB_dbi dbi,
		      int (*fn)(void *arg, const MDB_val *key, const MDB_val *value), void *arg)
{
	_cleanup_(reader_endp) struct reader rd = { 0 };
	_cleanup_(cursor_closep) MDB_cursor *cursor = NULL; /* closed before the reader ends */
	MDB_val key, stored, value;
	int r, rc;

	r = reader_begin(ix, &rd);
	if (r < 0)
		return r;
	rc = mdb_cursor_open(rd.txn, dbi, &cursor);
	if (rc != 0)
		return index_fail(ix, rc, "walking a table");

	for (;;) {
		rc = mdb_cursor_get(cursor, &key, &stored, MDB_NEXT);
		if (rc == MDB_NOTFOUND)
			return 0;
		if (rc != 0)
			return index_fail(ix, rc, "walking a table");
		r = fn(arg, &key, value_open(&key, &stored, &value) ? &value : NULL);
		if (r != 0)
			return r;
	}
}

struct each_record {
	int (*fn)(void *arg, const void *key, size_t key_len, const void *value, size_t value_len);
	void *arg;
};

static int each_record(void *arg, const MDB_val *key, const MDB_val *value)
{
	struct each_record *e = arg;

	return e->fn(e->arg, key->mv_data, key->mv_size, value ? value->mv_data : NULL,
		     value ? value->mv_size : 0);
}

int index_each(struct index *ix, enum index_table table,
	       int (*fn)(void *arg, const void *key, size_t key_len, const void *value,
			 size_t value_len),
	       void *arg)
{
	struct each_record e = { .fn = fn, .arg = arg };

	return each_entry(ix, ix->tables[table], each_record, &e);
}

struct each_chunk {
	int (*fn)(void *arg, const struct name *name, const struct chunk_loc *loc);
	void *arg;
};

static int each_chunk(void *arg, const MDB_val *key, const MDB_val *value)
{
	struct each_chunk *e = arg;
	struct chunk_loc loc;
	struct name name = { 0 };

	/* a key of another length names nothing; show what there is of it as a damaged entry */
	memcpy(name.b, key->mv_data, MIN(key->mv_size, sizeof(name.b)));
	if (key->mv_size != NAME_BYTES || !value || !loc_get(value, &loc))
		return e->fn(e->arg, &name, NULL);
	return e->fn(e->arg, &name, &loc);
}

int index_each_chunk(struct index *ix,
		     int (*fn)(void *arg, const struct name *name, const struct chunk_loc *loc),
		     void *arg)
{
	struct each_chunk e = { .fn = fn, .arg = arg };

	return each_entry(ix, ix->chunks, each_chunk, &e);
}

int index_count_chunks(struct index *ix, uint64_t *ret)
{
	_cleanup_(reader_endp) struct reader rd = { 0 };
	MDB_stat stat;
	int r, rc;

	r = reader_begin(ix, &rd);
	if (r < 0)
		return r;
	rc = mdb_stat(rd.txn, ix->chunks, &stat);
	if (rc != 0)
		return index_fail(ix, rc, "counting chunks");
	*ret = stat.ms_entries;
	return 0;
}

/* ---- writing ---- */

int index_begin(struct index *ix, struct index_txn **ret)
{
	struct index_txn *t;
	int r, rc;

	t = os_calloc(1, sizeof(*t));
	if (!t)
		return -ENOMEM;
	t->ix = ix;

	pthread_mutex_lock(&ix->write_lock);
	r = ix->doubt ? index_settle(ix) : 0;
	if (r == 0)
		r = index_cover(ix);
	rc = r == 0 ? mdb_txn_begin(ix->env, NULL, 0, &t->txn) : 0;
	if (r < 0 || rc != 0) {
		pthread_mutex_unlock(&ix->write_lock);
		free(t);
		return r < 0 ? r : index_fail(ix, rc, "beginning a transaction");
	}
	*ret = t;
	return 0;
}

static int put_value(struct index_txn *t, MDB_dbi dbi, MDB_val *key, const void *value, size_t len)
{
	MDB_val stored = { .mv_size = len + INDEX_SUM_BYTES };
	int rc;

	/* LMDB's largest key is 511 bytes; its message for a longer one names no reason */
	if (key->mv_size < 1 || key->mv_size > 511 || len > INT32_MAX)
		return -EINVAL;

	rc = mdb_put(t->txn, dbi, key, &stored, MDB_RESERVE);
	if (rc != 0)
		return index_fail(t->ix, rc, "writing a record");
	if (len > 0)
		memcpy(stored.mv_data, value, len);
	put_le32((uint8_t *)stored.mv_data + len, value_sum(key, value, len));
	return 0;
}

static int del_value(struct index_txn *t, MDB_dbi dbi, MDB_val *key)
{
	int rc;

	rc = mdb_del(t->txn, dbi, key, NULL);
	if (rc == MDB_NOTFOUND)
		return ABSENT;
	if (rc != 0)
		return index_fail(t->ix, rc, "deleting a record");
	return 0;
}

int index_put_chunk(struct index_txn *t, const struct name *name, const struct chunk_loc *loc)
{
	MDB_val key = { .mv_size = NAME_BYTES, .mv_data = (void *)name->b };
	struct chunk_loc_bytes b;

	loc_put(&b, loc);
	return put_value(t, t->ix->chunks, &key, &b, sizeof(b));
}

int index_del_chunk(struct index_txn *t, const struct name *name)
{
	MDB_val key = { .mv_size = NAME_BYTES, .mv_data = (void *)name->b };

	return del_value(t, t->ix->chunks, &key);
}

void index_ops_release(struct index_ops *ops)
{
	free(ops->bytes);
	*ops = (struct index_ops){ 0 };
}

int index_ops_add(struct index_ops *ops, bool put, enum index_table table, const void *key,
		  size_t key_len, const void *value, size_t len)
{
	struct index_op_bytes head = { .op = put ? INDEX_OP_PUT : INDEX_OP_DEL,
				       .table = (uint8_t)table };
	int r;

	r = os_grow(&ops->bytes, &ops->capacity, ops->len + sizeof(head) + key_len + len, 1);
	if (r < 0)
		return r;
	put_le16(head.key_len, (uint16_t)key_len);
	put_le32(head.value_len, (uint32_t)len);
	memcpy(ops->bytes + ops->len, &head, sizeof(head));
	memcpy(ops->bytes + ops->len + sizeof(head), key, key_len);
	if (len > 0)
		memcpy(ops->bytes + ops->len + sizeof(head) + key_len, value, len);
	ops->len += sizeof(head) + key_len + len;
	return 0;
}

const struct index_ops *index_txn_ops(const struct index_txn *t)
{
	return &t->ops;
}

int index_put(struct index_txn *t, enum index_table table, const void *key_bytes, size_t key_len,
	      const void *value, size_t len)
{
	MDB_val key = { .mv_size = key_len, .mv_data = (void *)key_bytes };
	int r;

	r = put_value(t, t->ix->tables[table], &key, value, len);
	return r < 0 ? r : index_ops_add(&t->ops, true, table, key_bytes, key_len, value, len);
}

int index_del(struct index_txn *t, enum index_table table, const void *key_bytes, size_t key_len)
{
	MDB_val key = { .mv_size = key_len, .mv_data = (void *)key_bytes };
	int r;

	r = del_value(t, t->ix->tables[table], &key);
	if (r != 0)
		return r;
	return index_ops_add(&t->ops, false, table, key_bytes, key_len, NULL, 0);
}

int index_commit(struct index_txn **t)
{
	struct index_txn *txn = TAKE_PTR(*t);
	struct index *ix = txn->ix;
	int r, rc = 0;

	r = index_cover(ix);
	if (r < 0)
		mdb_txn_abort(txn->txn);
	else
		rc = mdb_txn_commit(txn->txn); /* frees its handle even when it fails */
	if (r == 0 && rc == 0) {
		ix->last_txn = index_last_txn(ix);
		index_measure(ix);
		(void)index_cover(ix); /* if it was cut just now, the next one says so */
	}
	if (rc != 0) {
		r = index_fail(ix, rc, "committing");
		ix->doubt = true;
		(void)index_reopen(ix); /* else index_settle() does */
	}
	pthread_mutex_unlock(&ix->write_lock);
	index_ops_release(&txn->ops);
	free(txn);
	return r;
}

void index_abortp(struct index_txn **t)
{
	struct index_txn *txn = TAKE_PTR(*t);

	if (!txn)
		return;
	mdb_txn_abort(txn->txn);
	pthread_mutex_unlock(&txn->ix->write_lock);
	index_ops_release(&txn->ops);
	free(txn);
}
