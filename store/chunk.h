/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The chunk store: immutable bytes by name, in pack files, found through the LMDB index.
 *
 * Writing: chunk_put() appends to the current pack (page cache, no disk wait) and remembers the
 * chunk as *pending*; pending chunks can be read at once. chunks_flush() syncs the packs, after
 * which the caller commits the pending entries inside an index transaction (chunks_commit_into)
 * and then forgets them (chunks_committed). The order "pack synced before the index names it" is
 * the store's first durability rule.
 *
 * Equality: a name never proves that two contents are equal. On a hit the stored bytes are
 * compared; if they differ, the new content is stored under the next salt.
 *
 * Threads: chunk_load and chunk_read may be called from any thread; chunk_put, flush, commit from
 * any thread too (an internal lock orders them).
 */

#include "store/hash.h"

struct index;
struct index_txn;
struct noter;
struct room;
struct chunks;

/*
 * The largest chunk. 128 KiB is FUSE's default read-ahead, so a sequential reader asks for one
 * chunk at a time, and a 4 KiB random read decodes at most 128 KiB.
 */
#define CHUNK_MAX (128 * 1024)

enum chunk_kind {
	CHUNK_DATA = 1, /* file bytes */
	CHUNK_NODE = 2, /* a tree node */
};

/* Decoded chunk bytes, shared by reference count with the cache. */
struct chunkbuf {
	struct name name;
	uint32_t len;
	uint32_t refs; /* atomic */
	uint8_t data[];
};
void chunkbuf_unref(struct chunkbuf *b);
static inline void chunkbuf_unrefp(struct chunkbuf **b)
{
	if (*b)
		chunkbuf_unref(*b);
}

/* dir_fd: the store's directory (borrowed until close); index: borrowed until close. */
int chunks_open(int dir_fd, struct index *index, const struct noter *noter, struct chunks **ret);
void chunks_close(struct chunks *c);

/*
 * Stores len (1 to CHUNK_MAX) bytes. 0: stored, EXISTS: the same bytes were there; either way
 * *ret_name is set. -ENOSPC and other write errors leave the store as it was.
 */
int chunk_put(struct chunks *c, enum chunk_kind kind, const void *data, size_t len,
	      struct name *ret_name);

/*
 * A chunk whose len bytes are gone: a name of its own, which is pending like any other; reading it
 * is -ERR_CHUNK_LOST.
 */
int chunk_put_lost(struct chunks *c, size_t len, struct name *ret_name);
bool chunk_is_lost(struct chunks *c, const struct name *name);

/* Cached chunks take at most so much memory, within what is sensible. Before there are threads. */
void chunks_limit_cache(struct chunks *c, uint64_t bytes);
uint64_t chunks_cached(struct chunks *c, uint64_t *ret_limit); /* bytes that they take */

/*
 * The bytes of a chunk, verified against the name. Small data chunks go through a cache bounded in
 * bytes; the hook of chunks_set_io_hook is called before a read waits for the disk.
 * -ERR_CHUNK_MISSING, -ERR_CHUNK_DAMAGED, ...: noted with the chunk's name. Given: chunkbuf_unref.
 */
int chunk_load(struct chunks *c, const struct name *name, struct chunkbuf **ret);

/*
 * Copies bytes off..off+len of a chunk; after a failure buf holds anything. They are verified
 * likewise or, of a large chunk that was read before, by hashes that were made of its blocks then.
 * A large one does not go through the cache, nor one that is read whole for the first time. END:
 * the chunk is shorter.
 */
int chunk_read(struct chunks *c, const struct name *name, uint64_t off, void *buf, size_t len);

/*
 * Called (in the reading thread) before a read that may wait for the disk, so that a server can
 * let another thread go on serving meanwhile. Set once, before the first read.
 */
void chunks_set_io_hook(struct chunks *c, void (*hook)(void));

/* Is it known (pending or in the index)? 0 or ABSENT or a failure. */
int chunk_find(struct chunks *c, const struct name *name);

/*
 * Makes the bytes of all pending chunks durable. After a failure (a pack could not be synced) it
 * may be called again: what is not durable is then written once more, to another pack.
 */
int chunks_flush(struct chunks *c);

/* How many chunks and stored bytes are pending. */
void chunks_pending(struct chunks *c, uint64_t *ret_count, uint64_t *ret_bytes);

/*
 * Writes the entries of all chunks that were pending at the last chunks_flush into txn; after the
 * transaction is committed call chunks_committed, which lets go of them. One caller at a time goes
 * through the three steps; on a failure the same entries come again with the next transaction.
 */
int chunks_commit_into(struct chunks *c, struct index_txn *txn);
void chunks_committed(struct chunks *c);

/* ---- gc and check: the caller keeps writers away ---- */

struct chunk_info {
	struct name name;
	uint32_t pack;
	uint64_t off;        /* of the record in the pack */
	uint32_t stored_len; /* payload bytes in the pack */
	uint32_t raw_len;    /* bytes of the chunk */
	uint32_t salt;
	enum chunk_kind kind;
	bool lost; /* given up: where it lay is history */
};

/*
 * Every committed chunk, in name order; fn returns 0 to go on, anything else stops and is returned.
 * A damaged entry of the index arrives with kind 0 and only its name set; chunk_verify says
 * -ERR_INDEX_DAMAGED for it.
 */
int chunks_each(struct chunks *c, int (*fn)(void *arg, const struct chunk_info *info), void *arg);

/*
 * Reads and verifies one chunk's record and bytes, uncached; the failure says what is wrong. With
 * read_data false only the record header is compared with the index. AGAIN: the header is damaged,
 * the bytes are whole (readers do without it). -ERR_CHUNK_LOST for one that a repair gave up.
 */
int chunk_verify(struct chunks *c, const struct chunk_info *info, bool read_data);

/* Calls fn for each pack whose header is damaged or cannot be read. */
int chunks_check_packs(struct chunks *c, int (*fn)(void *arg, uint32_t pack, int why), void *arg);

/*
 * A collection begins: nothing is pending (else -EBUSY, noted) and nobody is putting chunks. From
 * here on chunks may be put by any thread, and what is put is alive, stored or met. The sweep ends
 * it when what is dead has left the index; chunks_collect_end is for who may not come to that.
 */
int chunks_collect(struct chunks *c);
void chunks_collect_end(struct chunks *c);

struct sweep_stats {
	uint64_t chunks_kept, chunks_dropped;
	uint64_t bytes_before, bytes_after; /* of pack files on disk, but for ... */
	uint64_t bytes_meanwhile;           /* ... what others put while it was swept */
	uint64_t packs_removed, packs_rewritten;
};

/* Who sweeps. */
struct sweeper {
	bool (*live)(void *arg, const struct name *name);
	/* done and total in bytes; < 0 ends it there. NULL: nobody looks. */
	int (*progress)(void *arg, uint64_t done, uint64_t total);
	/*
	 * Between two steps: no transaction is open and no lock is held, so that the calling thread
	 * may put and commit chunks. NULL: nobody wants that.
	 */
	void (*between)(void *arg);
	void *arg;
};

/*
 * Ends a collection: removes every committed chunk that is not live. Index entries go first
 * (committed), then packs that hold nothing live, and packs more than a quarter dead are rewritten.
 * Packs that were begun since the collection did are left alone. Crash-safe at any point: at worst
 * unreferenced bytes or packs stay for the next sweep. Commits are the calling thread's meanwhile.
 */
int chunks_sweep(struct chunks *c, const struct sweeper *sweeper, struct sweep_stats *ret_stats);

/* Bytes that went to pack files since they were opened. No lock. */
uint64_t chunks_appended(struct chunks *c);
/* Of the disk they are on. Lent until they are closed. */
struct room *chunks_room(struct chunks *c);
/* Bytes of pack files on disk, number of packs, number of committed chunks. */
int chunks_stats(struct chunks *c, uint64_t *ret_pack_bytes, uint64_t *ret_packs,
		 uint64_t *ret_chunks);
