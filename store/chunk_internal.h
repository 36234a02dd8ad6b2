/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Private to chunk*.c and sweep.c, and to repair.c and table.c, which use its packs: what the chunk
 * store is made of.
 */

#include <pthread.h>
#include <stdatomic.h>

#include "store/base/note.h"
#include "store/base/util.h"
#include "store/chunk.h"
#include "store/index.h"
#include "store/nameset.h"
#include "store/pack.h"

struct cached;

/*
 * A data chunk from this size on is read to where it is wanted, and not cached: a buffer for the
 * cache costs copying and, its memory being new more often than not, page faults, while the next
 * reader finds the bytes in the kernel's cache. Of one that is read in parts the hashes of blocks
 * are kept instead. Smaller ones cost more to find than to copy, so they are cached, those that are
 * read whole from the second time on; the kernel asks for most of them once.
 */
#define DIRECT_MIN (16 * 1024)

/* Data chunks that are kept: 4096 and more of them. */
#define CACHE_BYTES ((uint64_t)64 << 20)
/* Where memory is short: 512 and more. */
#define CACHE_BYTES_MIN ((uint64_t)8 << 20)

/* A chunk counts as at least this, so that 64 MiB of tiny chunks are not a million of entries. */
#define CACHE_CHARGE_MIN 1024

/* At most CACHE_BYTES / CACHE_CHARGE_MIN = 65536 entries: chains of four when full of tiny ones. */
#define CACHE_BUCKETS 16384

struct cache {
	pthread_mutex_t lock;
	struct cached *buckets[CACHE_BUCKETS]; /* under lock, like all below; one reference each */
	struct cached *newest, *oldest;
	uint64_t bytes;
	uint64_t limit; /* of bytes; constant once the store is open */
};

/* What is read of a chunk apart: a page, the least that the kernel asks for. */
#define SUM_BYTES 4096

/*
 * Chunks whose blocks have their hashes kept: 2 GiB of the largest. Each has one place to be; all
 * take 4.8 MiB when they are used.
 */
#define BLOCK_SUMS 16384

struct block_sums {
	struct name name;
	struct chunk_loc loc; /* raw_len 0: none */
	uint64_t sum[CHUNK_MAX / SUM_BYTES];
};

/* Small chunks that were read whole of late: as many as the cache has of 4 KiB. */
#define MET 16384

struct pending {
	struct name name;
	struct chunk_loc loc;
};

struct chunks {
	struct packs *packs;  /* immutable, owned */
	struct index *index;  /* immutable, borrowed */
	struct noter noter;   /* immutable */
	_Atomic(void (*)(void)) io_hook;

	pthread_mutex_t flush_lock; /* one flush at a time */
	pthread_mutex_t put_lock;   /* looking up a name and appending its record are one step */
	struct nameset asked;       /* under put_lock: names put since collecting */
	atomic_bool collecting;     /* chunks_collect; changes under put_lock */
	uint32_t collect_before;    /* under the caller's claim: packs below it are swept */

	pthread_mutex_t lock;     /* for the table of pending chunks, below */
	struct pending *pending;  /* in order of arrival, owned */
	size_t n_pending, pending_room;
	uint32_t *table;          /* open addressing, position in `pending` + 1; 0: free. Owned */
	size_t table_size;        /* power of two, at least twice n_pending */
	size_t n_flushed;         /* the first so many are durable in their packs */
	size_t n_committing;      /* the first so many were written into a transaction */
	uint64_t pending_bytes;   /* of their records */

	struct cache cache;
	_Atomic uint32_t met[MET]; /* a part of the name that was there last; see met_before */

	pthread_mutex_t sums_lock; /* a leaf */
	struct block_sums sums[BLOCK_SUMS]; /* under sums_lock; chunk_blocks.c */
};

/* Names are hashes already; the multiplication spreads names that a test cut short. */
static inline uint64_t name_spread(const struct name *name)
{
	return (get_le64(name->b) ^ get_le64(name->b + 8)) * UINT64_C(0x9e3779b97f4a7c15);
}

/* Where a chunk lies, pending or committed: 0, ABSENT or a failure. */
int chunk_locate(struct chunks *c, const struct name *name, struct chunk_loc *ret);

/*
 * The whole record of a chunk, header and payload checked against the location and the name.
 * *ret_record is malloced and given.
 */
int chunk_read_record(struct chunks *c, const struct name *name, const struct chunk_loc *loc,
		      uint8_t **ret_record, size_t *ret_len);

/* After a sync that failed: flushes, so that the packs may be synced again. */
int chunks_settle(struct chunks *c);

/* ---- chunk_cache.c ---- */

/* A buffer for len bytes with one reference, given. NULL: out of memory. */
struct chunkbuf *chunkbuf_new(const struct name *name, uint32_t len);

/* The memory is all zeros. */
void cache_init(struct cache *cache);
/* Lets go of what it keeps; buffers that are in use stay. */
void cache_release(struct cache *cache);
/* What it keeps under a name, given; NULL: nothing. It is then the last to go. */
struct chunkbuf *cache_get(struct cache *cache, const struct name *name);
/* Keeps a buffer that the caller goes on using. A second one of the same name is not kept. */
void cache_add(struct cache *cache, struct chunkbuf *b);

/* ---- chunk_blocks.c ---- */

/* Keeps what tells later whether a part of a chunk is as it was. `data`: all of it, verified. */
void chunk_blocks_keep(struct chunks *c, const struct name *name, const struct chunk_loc *loc,
		       const uint8_t *data);
void chunk_blocks_forget(struct chunks *c, const struct name *name);
/*
 * A part, verified. ABSENT: nothing is kept of the chunk, or the part is not as it was, or it is
 * the whole, which needs no blocks; buf may have been written to.
 */
int chunk_blocks_read(struct chunks *c, const struct name *name, uint64_t off, void *buf,
		      size_t len);

/* Forgets a chunk whose name may be given to other bytes from now on. */
void chunk_uncache(struct chunks *c, const struct name *name);
