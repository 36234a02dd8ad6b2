/* SPDX-License-Identifier: Apache-2.0 */
#include "store/chunk_internal.h"

#include <assert.h>
#include <errno.h>

#include "store/base/err.h"
#include "store/base/os.h"
#include "store/base/util.h"

/*
 * Chunks by name: the table of pending ones, the index of committed ones, the packs that hold both,
 * a cache of decoded data (chunk_cache.c), and what proves parts of it (chunk_blocks.c).
 *
 *   1. A chunk is pending (in our table), committed (in the index), or both for the moment between
 *      the commit and chunks_committed(). Looking into the table first and the index second
 *      therefore never misses one.
 *   2. A name means one content: under put_lock a record is appended only for a name that neither
 *      knows. Who finds the name taken compares bytes, and goes on with the next salt when they
 *      differ or cannot be read. Damaged bytes are not replaced: nobody can tell whether they were
 *      the ones at hand or others with the same name.
 *   3. The index names only what packs_sync() made durable: n_flushed counts what was pending
 *      before a sync began that succeeded.
 *   4. Bytes leave chunk_load() and chunk_read() only if their hash under the record's salt is the
 *      name, or if their blocks' hashes are those of bytes of which this is true.
 *   5. While a collection goes on, a name is written down in the step that looks it up: what a
 *      sweep finds not written down, under put_lock, is nobody's until it has left the index.
 *
 * Locks: flush_lock > put_lock > lock; the packs' and the index's own locks come after all of them,
 * the cache's lock and that of the blocks' hashes are leaves. No lock is held while either reads
 * from the disk.
 *
 * Crash: pending chunks are gone (their bytes stay in the packs until a sweep). Committed ones are
 * whole.
 *
 * One caller at a time goes through chunks_commit_into, index_commit, chunks_committed.
 */

/* More unsynced packs than this (2 GiB) are synced by the putter: each holds a descriptor. */
#define UNSYNCED_MAX 8

/* ---- the table of pending chunks; all under c->lock ---- */

/* The slot of a name: where it is, or the free one where it would go. */
static uint32_t *pending_slot(struct chunks *c, const struct name *name)
{
	size_t at = (name_spread(name) >> 32) & (c->table_size - 1);

	while (c->table[at] != 0 && !name_eq(&c->pending[c->table[at] - 1].name, name))
		at = (at + 1) & (c->table_size - 1);
	return &c->table[at];
}

static struct pending *pending_find(struct chunks *c, const struct name *name)
{
	uint32_t position = c->table_size > 0 ? *pending_slot(c, name) : 0;

	return position > 0 ? &c->pending[position - 1] : NULL;
}

static void pending_rehash(struct chunks *c)
{
	memset(c->table, 0, c->table_size * sizeof(*c->table));
	for (size_t i = 0; i < c->n_pending; i++)
		*pending_slot(c, &c->pending[i].name) = (uint32_t)i + 1;
}

/* Room for one more, so that nothing can fail once its record is written. */
static int pending_reserve(struct chunks *c)
{
	size_t room = c->pending_room > 0 ? c->pending_room * 2 : 256;
	struct pending *pending;
	uint32_t *table;

	if (c->n_pending < c->pending_room)
		return 0;
	if (room > UINT32_MAX / 4)
		return -ENOMEM;

	pending = os_realloc(c->pending, room * sizeof(*pending));
	if (!pending)
		return -ENOMEM;
	c->pending = pending;

	table = os_malloc(room * 2 * sizeof(*table));
	if (!table)
		return -ENOMEM; /* pending_room is as before: the larger array does no harm */
	free(c->table);
	c->table = table;
	c->table_size = room * 2;
	c->pending_room = room;
	pending_rehash(c);
	return 0;
}

static void pending_add(struct chunks *c, const struct name *name, const struct chunk_loc *loc)
{
	assert(c->n_pending < c->pending_room);
	c->pending[c->n_pending++] = (struct pending){ .name = *name, .loc = *loc };
	*pending_slot(c, name) = (uint32_t)c->n_pending;
	c->pending_bytes += record_span(loc->stored_len);
}

int chunk_locate(struct chunks *c, const struct name *name, struct chunk_loc *ret)
{
	{
		struct pending *found;

		LOCK_GUARD(&c->lock);
		found = pending_find(c, name);
		if (found) {
			*ret = found->loc;
			return 0;
		}
	}
	return index_find_chunk(c->index, name, ret);
}

/* ---- open, close ---- */

static void chunks_freep(struct chunks **c)
{
	if (*c)
		chunks_close(*c);
}

int chunks_open(int dir_fd, struct index *index, const struct noter *noter, struct chunks **ret)
{
	_cleanup_(chunks_freep) struct chunks *c = NULL;
	int r;

#ifdef PLYFS_TEST_HOOKS
	const char *bits = getenv("PLYFS_TEST_HASH_BITS");

	if (bits)
		hash_truncate_for_tests((unsigned)strtoul(bits, NULL, 10));
#endif
	c = os_calloc(1, sizeof(*c));
	if (!c)
		return -ENOMEM;
	c->index = index;
	if (noter)
		c->noter = *noter;
	pthread_mutex_init(&c->flush_lock, NULL);
	pthread_mutex_init(&c->put_lock, NULL);
	pthread_mutex_init(&c->lock, NULL);
	pthread_mutex_init(&c->sums_lock, NULL);
	cache_init(&c->cache);

	r = packs_open(dir_fd, &c->packs);
	if (r < 0)
		return note(&c->noter, r, "opening the packs: %s", err_str(r));

	*ret = TAKE_PTR(c);
	return 0;
}

void chunks_limit_cache(struct chunks *c, uint64_t bytes)
{
	c->cache.limit = MIN(CACHE_BYTES, MAX(bytes, CACHE_BYTES_MIN));
}

uint64_t chunks_cached(struct chunks *c, uint64_t *ret_limit)
{
	LOCK_GUARD(&c->cache.lock);
	*ret_limit = c->cache.limit;
	return c->cache.bytes;
}

void chunks_close(struct chunks *c)
{
	if (!c)
		return;
	cache_release(&c->cache);
	packs_close(c->packs);
	nameset_release(&c->asked);
	free(c->pending);
	free(c->table);
	pthread_mutex_destroy(&c->sums_lock);
	pthread_mutex_destroy(&c->lock);
	pthread_mutex_destroy(&c->put_lock);
	pthread_mutex_destroy(&c->flush_lock);
	free(c);
}

void chunks_set_io_hook(struct chunks *c, void (*hook)(void))
{
	atomic_store_explicit(&c->io_hook, hook, memory_order_relaxed);
}

/* ---- reading ---- */

static int fail(struct chunks *c, int r, const struct name *name, const char *what)
{
	char text[NAME_HEX_SIZE];

	return note(&c->noter, r, "chunk %s: %s%s", name_to_text(name, text), what, err_str(r));
}

/* Reads and decodes loc->raw_len bytes; they are not compared with the name yet. */
static int read_raw(struct chunks *c, const struct chunk_loc *loc, void (*before_wait)(void),
		    uint8_t *ret_data)
{
	const uint64_t payload = loc->off + sizeof(struct record_header_bytes);
	_cleanup_free_ uint8_t *stored = NULL;
	int r;

	if (loc->codec == CODEC_LOST)
		return -ERR_CHUNK_LOST;
	if (loc->codec == CODEC_PLAIN)
		return pack_read(c->packs, loc->pack, payload, ret_data, loc->raw_len, before_wait);

	stored = os_malloc(loc->stored_len);
	if (!stored)
		return -ENOMEM;
	r = pack_read(c->packs, loc->pack, payload, stored, loc->stored_len, before_wait);
	if (r < 0)
		return r;
	return payload_decode(c->packs, loc->codec, stored, loc->stored_len, ret_data,
			      loc->raw_len);
}

static bool has_name(const void *data, size_t len, uint32_t salt, const struct name *name)
{
	struct name actual = name_of(data, len, salt);

	return name_eq(&actual, name);
}

static int read_verified(struct chunks *c, const struct name *name, const struct chunk_loc *loc,
			 void (*before_wait)(void), uint8_t *ret_data)
{
	int r;

	r = read_raw(c, loc, before_wait, ret_data);
	if (r < 0)
		return r;
	return has_name(ret_data, loc->raw_len, loc->salt, name) ? 0 : -ERR_CHUNK_DAMAGED;
}

static bool loc_eq(const struct chunk_loc *a, const struct chunk_loc *b)
{
	return a->pack == b->pack && a->off == b->off;
}

static int locate(struct chunks *c, const struct name *name, struct chunk_loc *ret)
{
	int r = chunk_locate(c, name, ret);

	if (r == ABSENT)
		return fail(c, -ERR_CHUNK_MISSING, name, "");
	return r; /* what else is wrong the index has noted */
}

/* The loc->raw_len bytes of a chunk, verified. */
static int read_located(struct chunks *c, const struct name *name, const struct chunk_loc *loc,
			uint8_t *ret_data)
{
	void (*hook)(void) = atomic_load_explicit(&c->io_hook, memory_order_relaxed);
	struct chunk_loc again;
	int r;

	r = read_verified(c, name, loc, hook, ret_data);
	/* a sweep may have moved the chunk and removed its pack since we asked where it lies */
	if (r < 0 && chunk_locate(c, name, &again) == 0 && !loc_eq(loc, &again) &&
	    again.raw_len == loc->raw_len)
		r = read_verified(c, name, &again, NULL, ret_data);
	return r < 0 ? fail(c, r, name, "") : 0;
}

static int load_located(struct chunks *c, const struct name *name, const struct chunk_loc *loc,
			struct chunkbuf **ret)
{
	_cleanup_(chunkbuf_unrefp) struct chunkbuf *b = NULL;
	int r;

	b = chunkbuf_new(name, loc->raw_len);
	if (!b)
		return -ENOMEM;
	r = read_located(c, name, loc, b->data);
	if (r < 0)
		return r;
	if (loc->kind == CHUNK_DATA) { /* nodes are kept by the tree, decoded */
		if (loc->codec == CODEC_PLAIN && loc->raw_len >= DIRECT_MIN)
			chunk_blocks_keep(c, name, loc, b->data);
		else
			cache_add(&c->cache, b);
	}
	*ret = TAKE_PTR(b);
	return 0;
}

int chunk_load(struct chunks *c, const struct name *name, struct chunkbuf **ret)
{
	struct chunkbuf *b = cache_get(&c->cache, name);
	struct chunk_loc loc;
	int r;

	if (b) {
		*ret = b;
		return 0;
	}
	r = locate(c, name, &loc);
	return r < 0 ? r : load_located(c, name, &loc, ret);
}

/* Was this asked for the last time that its place was? A wrong answer costs a little time only. */
static bool met_before(struct chunks *c, const struct name *name)
{
	uint64_t spread = name_spread(name);
	_Atomic uint32_t *place = &c->met[(spread >> 32) % MET];
	uint32_t tag = (uint32_t)spread;

	if (atomic_load_explicit(place, memory_order_relaxed) == tag)
		return true;
	atomic_store_explicit(place, tag, memory_order_relaxed);
	return false;
}

int chunk_read(struct chunks *c, const struct name *name, uint64_t off, void *buf, size_t len)
{
	_cleanup_(chunkbuf_unrefp) struct chunkbuf *b = cache_get(&c->cache, name);
	struct chunk_loc loc;
	int r;

	if (!b) {
		if (chunk_blocks_read(c, name, off, buf, len) == 0)
			return 0;
		r = locate(c, name, &loc);
		if (r < 0)
			return r;
		if (off == 0 && len == loc.raw_len && (len >= DIRECT_MIN || !met_before(c, name)))
			return read_located(c, name, &loc, buf);
		r = load_located(c, name, &loc, &b);
		if (r < 0)
			return r;
	}
	if (off > b->len || len > b->len - off)
		return END;
	memcpy(buf, b->data + off, len);
	return 0;
}

int chunk_find(struct chunks *c, const struct name *name)
{
	struct chunk_loc loc;

	return chunk_locate(c, name, &loc);
}

/* The record's header says what the index says of it. */
static int header_agrees(const void *header, const struct name *name, const struct chunk_loc *loc)
{
	struct record rec;
	int r = record_header_get(header, &rec);

	if (r < 0)
		return r;
	if (!name_eq(&rec.name, name) || rec.kind != loc->kind || rec.codec != loc->codec ||
	    rec.salt != loc->salt || rec.stored_len != loc->stored_len ||
	    rec.raw_len != loc->raw_len)
		return -ERR_RECORD_DAMAGED;
	return 0;
}

int chunk_read_record(struct chunks *c, const struct name *name, const struct chunk_loc *loc,
		      uint8_t **ret_record, size_t *ret_len)
{
	const size_t header = sizeof(struct record_header_bytes);
	_cleanup_free_ uint8_t *bytes = NULL, *raw = NULL;
	size_t span = record_span(loc->stored_len);
	int r;

	if (loc->codec == CODEC_LOST)
		return -ERR_CHUNK_LOST;
	bytes = os_calloc(1, span);
	raw = os_malloc(loc->raw_len);
	if (!bytes || !raw)
		return -ENOMEM;

	/* without the padding, which a torn tail may lack */
	r = pack_read(c->packs, loc->pack, loc->off, bytes, header + loc->stored_len,
		      NULL);
	if (r < 0)
		return r;
	r = header_agrees(bytes, name, loc);
	if (r < 0)
		return r;

	r = payload_decode(c->packs, loc->codec, bytes + header, loc->stored_len, raw,
			   loc->raw_len);
	if (r < 0)
		return r;
	if (!has_name(raw, loc->raw_len, loc->salt, name))
		return -ERR_CHUNK_DAMAGED;

	*ret_record = TAKE_PTR(bytes);
	*ret_len = span;
	return 0;
}

/* ---- writing ---- */

/* Does a failed read mean that the stored bytes are lost, not that we lack memory or such? */
static bool is_loss(int r)
{
	switch (-r) {
	case ERR_CHUNK_DAMAGED:
	case ERR_CHUNK_LOST:
	case ERR_INDEX_DAMAGED:
	case ERR_PACK_MISSING:
	case ERR_PACK_TRUNCATED:
	case ERR_RECORD_DAMAGED:
	case EIO:
		return true;
	default:
		return false;
	}
}

/*
 * Where a chunk lies that is to be put: 0, ABSENT or a failure. From here on a sweep that goes on
 * keeps what has the name (5).
 */
static int look_up(struct chunks *c, const struct name *name, struct chunk_loc *ret)
{
	uint32_t number;
	int r;

	if (!atomic_load_explicit(&c->collecting, memory_order_relaxed))
		return chunk_locate(c, name, ret);
	LOCK_GUARD(&c->put_lock);
	r = atomic_load(&c->collecting) ? nameset_add(&c->asked, name, &number) : 0;
	return r < 0 ? r : chunk_locate(c, name, ret);
}

/*
 * Are these the bytes stored under a name? 0: yes. AGAIN: others are, or nobody can tell. If what
 * is there is neither, a sweep may have moved it: the place then has no file any more, or a hole.
 */
static int compare(struct chunks *c, const struct name *name, const struct chunk_loc *loc,
		   const void *data, size_t len)
{
	_cleanup_(chunkbuf_unrefp) struct chunkbuf *b = NULL;
	struct chunk_loc again;
	int r;

	if (loc->codec == CODEC_LOST || loc->raw_len != len)
		return AGAIN;

	b = cache_get(&c->cache, name);
	if (b)
		return memcmp(b->data, data, len) == 0 ? 0 : AGAIN;
	b = chunkbuf_new(name, loc->raw_len);
	r = b ? read_raw(c, loc, NULL, b->data) : -ENOMEM;
	if (r == 0) {
		if (memcmp(b->data, data, len) == 0)
			return 0;
		if (has_name(b->data, b->len, loc->salt, name))
			return AGAIN;
		r = -ERR_CHUNK_DAMAGED;
	}
	if (!is_loss(r))
		return r;
	if (chunk_locate(c, name, &again) == 0 && !loc_eq(loc, &again))
		return compare(c, name, &again, data, len);
	(void)fail(c, r, name, "met again while storing, keeping a new copy: ");
	return AGAIN;
}

static struct chunk_loc loc_of(const struct record *rec, uint32_t pack, uint64_t off)
{
	return (struct chunk_loc){
		.pack = pack,
		.off = off,
		.stored_len = rec->stored_len,
		.raw_len = rec->raw_len,
		.salt = rec->salt,
		.kind = rec->kind,
		.codec = rec->codec,
	};
}

/* Appends a chunk under a name that was free a moment ago. EXISTS: taken now, see *ret_loc. */
static int append(struct chunks *c, enum chunk_kind kind, const void *data, size_t len,
		  uint32_t salt, const struct name *name, struct chunk_loc *ret_loc)
{
	_cleanup_free_ uint8_t *bytes = NULL;
	struct chunk_loc loc;
	struct record rec;
	uint32_t pack;
	size_t span;
	uint64_t off;
	int r;

	r = record_encode(c->packs, (uint8_t)kind, data, len, salt, name, &bytes, &span, &rec);
	if (r < 0)
		return r;

	LOCK_GUARD(&c->put_lock);
	r = chunk_locate(c, name, ret_loc);
	if (r == 0)
		return EXISTS;
	if (r < 0)
		return r;
	{
		LOCK_GUARD(&c->lock);
		r = pending_reserve(c);
	}
	if (r < 0)
		return r;

	r = pack_append(c->packs, bytes, span, &pack, &off);
	if (r < 0)
		return r;
	loc = loc_of(&rec, pack, off);

	LOCK_GUARD(&c->lock);
	pending_add(c, name, &loc);
	return 0;
}

int chunk_put(struct chunks *c, enum chunk_kind kind, const void *data, size_t len,
	      struct name *ret_name)
{
	static const struct name no_name = { { 0 } };
	struct chunk_loc loc;
	struct name name;
	int r;

	if (len < 1)
		return -EINVAL;
	if (len > CHUNK_MAX)
		return -ERR_CHUNK_TOO_LARGE;

	if (packs_unsynced(c->packs) > UNSYNCED_MAX) {
		r = chunks_flush(c);
		if (r < 0)
			return r;
	}

	for (uint32_t salt = 0;; salt++) {
		name = name_of(data, len, salt);
		if (name_eq(&name, &no_name))
			continue; /* "no chunk" to whoever refers to it: the empty state's name */

		r = look_up(c, &name, &loc);
		if (r == ABSENT) {
			r = append(c, kind, data, len, salt, &name, &loc);
			if (r == 0) {
				*ret_name = name;
				return 0;
			}
			if (r == EXISTS)
				r = 0;
		}
		if (r == -ERR_INDEX_DAMAGED)
			continue; /* something has this name, and nobody can tell what */
		if (r < 0)
			return r;

		r = compare(c, &name, &loc, data, len);
		if (r < 0)
			return r;
		if (r == 0) {
			*ret_name = name;
			return EXISTS;
		}
	}
}

int chunk_put_lost(struct chunks *c, size_t len, struct name *ret_name)
{
	const struct chunk_loc lost = {
		.kind = CHUNK_DATA,
		.codec = CODEC_LOST,
		.off = sizeof(struct pack_header_bytes), /* place and length: no content is there */
		.stored_len = 1,
		.raw_len = (uint32_t)len,
	};
	struct name name;
	uint32_t number;
	int r;

	r = os_random(&name, sizeof(name)); /* 128 bits: no other chunk has it */
	if (r < 0)
		return r;

	LOCK_GUARD(&c->put_lock);
	r = atomic_load(&c->collecting) ? nameset_add(&c->asked, &name, &number) : 0;
	if (r < 0)
		return r;
	LOCK_GUARD(&c->lock);
	r = pending_reserve(c);
	if (r < 0)
		return r;
	pending_add(c, &name, &lost);
	*ret_name = name;
	return 0;
}

bool chunk_is_lost(struct chunks *c, const struct name *name)
{
	struct chunk_loc loc;

	return chunk_locate(c, name, &loc) == 0 && loc.codec == CODEC_LOST;
}

/* ---- flushing and committing ---- */

/*
 * A pack that could not be synced is not trusted any more. What no earlier sync made durable in it
 * is written again to another pack, as long as its bytes can still be read and are right. The rest
 * stays: a commit may be about to name it (invariant 3).
 */
static int rescue(struct chunks *c)
{
	LOCK_GUARD(&c->put_lock); /* nothing is added or let go of meanwhile */

	for (size_t i = c->n_flushed; i < c->n_pending; i++) {
		_cleanup_free_ uint8_t *bytes = NULL;
		struct pending entry = c->pending[i];
		size_t span;
		int r;

		if (entry.loc.codec == CODEC_LOST || !pack_is_bad(c->packs, entry.loc.pack))
			continue;
		r = chunk_read_record(c, &entry.name, &entry.loc, &bytes, &span);
		if (r < 0)
			return fail(c, r, &entry.name, "lost after a failed sync: ");
		r = pack_append(c->packs, bytes, span, &entry.loc.pack, &entry.loc.off);
		if (r < 0)
			return r;

		LOCK_GUARD(&c->lock);
		c->pending[i].loc = entry.loc;
	}
	packs_forget_bad(c->packs);
	return 0;
}

int chunks_flush(struct chunks *c)
{
	size_t n;
	int r;

	LOCK_GUARD(&c->flush_lock);
	if (packs_any_bad(c->packs)) {
		r = rescue(c);
		if (r < 0)
			return r;
	}
	{
		LOCK_GUARD(&c->lock);
		n = c->n_pending; /* their records are all appended: invariant 3 */
	}

	r = packs_sync(c->packs);
	if (r < 0)
		return note(&c->noter, r, "syncing the packs: %s", err_str(r));

	LOCK_GUARD(&c->lock);
	c->n_flushed = n;
	return 0;
}

int chunks_settle(struct chunks *c)
{
	return packs_any_bad(c->packs) ? chunks_flush(c) : 0;
}

void chunks_pending(struct chunks *c, uint64_t *ret_count, uint64_t *ret_bytes)
{
	LOCK_GUARD(&c->lock);
	*ret_count = c->n_pending;
	*ret_bytes = c->pending_bytes;
}

static int pending_cmp(const void *a, const void *b)
{
	return name_cmp(&((const struct pending *)a)->name, &((const struct pending *)b)->name);
}

int chunks_commit_into(struct chunks *c, struct index_txn *txn)
{
	_cleanup_free_ struct pending *copy = NULL;
	size_t n;
	int r;

	{
		LOCK_GUARD(&c->lock);
		n = c->n_committing = c->n_flushed;
		if (n == 0)
			return 0;
		copy = os_malloc(n * sizeof(*copy));
		if (!copy)
			return -ENOMEM;
		memcpy(copy, c->pending, n * sizeof(*copy));
	}

	/* in key order, neighbouring entries change the same page of the index */
	qsort(copy, n, sizeof(*copy), pending_cmp);
	for (size_t i = 0; i < n; i++) {
		r = index_put_chunk(txn, &copy[i].name, &copy[i].loc);
		if (r < 0)
			return r;
	}
	return 0;
}

void chunks_committed(struct chunks *c)
{
	size_t n;

	LOCK_GUARD(&c->flush_lock); /* a flush and its rescue count entries from the front */
	LOCK_GUARD(&c->put_lock);
	LOCK_GUARD(&c->lock);
	n = c->n_committing;
	for (size_t i = 0; i < n; i++)
		c->pending_bytes -= record_span(c->pending[i].loc.stored_len);
	if (c->n_pending > n)
		memmove(c->pending, c->pending + n, (c->n_pending - n) * sizeof(*c->pending));
	c->n_pending -= n;
	c->n_flushed -= n;
	c->n_committing = 0;
	if (n > 0)
		pending_rehash(c);
}

/* ---- gc and check ---- */

struct each_info {
	int (*fn)(void *arg, const struct chunk_info *info);
	void *arg;
};

static int each_info(void *arg, const struct name *name, const struct chunk_loc *loc)
{
	struct each_info *e = arg;
	struct chunk_info info = { .name = *name };

	if (loc) {
		info.pack = loc->pack;
		info.off = loc->off;
		info.stored_len = loc->stored_len;
		info.raw_len = loc->raw_len;
		info.salt = loc->salt;
		info.kind = (enum chunk_kind)loc->kind;
		info.lost = loc->codec == CODEC_LOST;
	}
	return e->fn(e->arg, &info);
}

int chunks_each(struct chunks *c, int (*fn)(void *arg, const struct chunk_info *info), void *arg)
{
	struct each_info e = { .fn = fn, .arg = arg };

	return index_each_chunk(c->index, each_info, &e);
}

/* The header is as the index says, and the file is long enough for the payload. */
static int verify_header(struct chunks *c, const struct name *name, const struct chunk_loc *loc)
{
	uint8_t header[sizeof(struct record_header_bytes)];
	uint64_t size;
	int r;

	r = pack_read(c->packs, loc->pack, loc->off, header, sizeof(header), NULL);
	if (r < 0)
		return r;
	r = header_agrees(header, name, loc);
	if (r < 0)
		return r;

	r = pack_size(c->packs, loc->pack, &size);
	if (r < 0)
		return r;
	if (size < loc->off + sizeof(header) + loc->stored_len)
		return -ERR_PACK_TRUNCATED;
	return 0;
}

int chunk_verify(struct chunks *c, const struct chunk_info *info, bool read_data)
{
	_cleanup_free_ uint8_t *bytes = NULL, *data = NULL;
	struct chunk_loc loc;
	size_t len;
	int r;

	r = chunk_locate(c, &info->name, &loc);
	if (r == ABSENT)
		return -ERR_CHUNK_MISSING;
	if (r < 0)
		return r;
	if (loc.codec == CODEC_LOST)
		return -ERR_CHUNK_LOST;
	r = read_data ? chunk_read_record(c, &info->name, &loc, &bytes, &len) :
			verify_header(c, &info->name, &loc);
	if (r != -ERR_RECORD_DAMAGED)
		return r;

	/* who reads a chunk does not need its header */
	data = os_malloc(loc.raw_len);
	return data && read_verified(c, &info->name, &loc, NULL, data) == 0 ? AGAIN : r;
}

struct pack_headers {
	struct chunks *c;
	int (*fn)(void *arg, uint32_t pack, int why);
	void *arg;
};

static int check_header(void *arg, uint32_t pack, const struct pack_sizes *size)
{
	struct pack_headers *h = arg;
	int r = pack_check_header(h->c->packs, pack);

	if (err_is_machine(r))
		return r;
	return r < 0 && r != -ERR_PACK_MISSING ? h->fn(h->arg, pack, r) : 0;
}

int chunks_check_packs(struct chunks *c, int (*fn)(void *arg, uint32_t pack, int why), void *arg)
{
	struct pack_headers h = { .c = c, .fn = fn, .arg = arg };

	return packs_each(c->packs, check_header, &h);
}

struct pack_total {
	uint64_t bytes, packs;
};

static int add_pack(void *arg, uint32_t pack, const struct pack_sizes *size)
{
	struct pack_total *total = arg;

	total->bytes += size->on_disk;
	total->packs++;
	return 0;
}

struct room *chunks_room(struct chunks *c)
{
	return packs_room(c->packs);
}

uint64_t chunks_appended(struct chunks *c)
{
	return packs_appended(c->packs);
}

int chunks_stats(struct chunks *c, uint64_t *ret_pack_bytes, uint64_t *ret_packs,
		 uint64_t *ret_chunks)
{
	struct pack_total total = { 0 };
	uint64_t chunks;
	int r;

	r = packs_each(c->packs, add_pack, &total);
	if (r < 0)
		return r;
	r = index_count_chunks(c->index, &chunks);
	if (r < 0)
		return r;

	*ret_pack_bytes = total.bytes;
	*ret_packs = total.packs;
	*ret_chunks = chunks;
	return 0;
}
