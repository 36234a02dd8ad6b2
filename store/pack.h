/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Private to the store: pack files and the records in them. A pack is an append-only file of
 * self-describing records; this module knows where bytes lie and which of them are synced, not
 * which chunks are alive.
 *
 * Threads: every function from any thread. Nothing here sends notes; callers know the chunk's name.
 */

#include <stdbool.h>

#include "store/format.h"
#include "store/index.h"

struct packs;
struct room;

/*
 * A pack is finished at this size: large enough that a store of 100 GB has 400 files, small enough
 * that rewriting one in a sweep takes a second and little room.
 */
#define PACK_MAX ((uint64_t)256 << 20)

enum codec {
	CODEC_PLAIN = 0,
	CODEC_ZSTD = 1,
	CODEC_LOST = 2, /* in the index only: the chunk was given up */
};

/* A record's kind that no chunk has: changes of the store's tables, see table.h. */
#define RECORD_TABLE 3

/* A decoded record header. */
struct record {
	uint8_t kind;  /* enum chunk_kind, or RECORD_TABLE */
	uint8_t codec; /* enum codec */
	uint32_t salt;
	uint32_t stored_len, raw_len;
	struct name name;
};

/* ---- bytes (pack_format.c) ---- */

/* Bytes that a record with this payload takes in its pack. */
uint64_t record_span(uint32_t stored_len);

/* The header of the pack with a number. */
void pack_header_put(struct pack_header_bytes *b, uint32_t pack);
/* Is it that? -ERR_PACK_HEADER. */
int pack_header_get(const struct pack_header_bytes *b, uint32_t pack);
void record_header_put(struct record_header_bytes *b, const struct record *rec);
/* Checks and decodes a header: -ERR_RECORD_DAMAGED. */
int record_header_get(const uint8_t bytes[static sizeof(struct record_header_bytes)],
		      struct record *ret);

/* ---- pack files ---- */

/* dir_fd: the store's directory; makes "packs" in it when needed. */
int packs_open(int dir_fd, struct packs **ret);
void packs_close(struct packs *p);
/* There were packs up to this number, be they there or not: the next ones are behind it. */
void packs_pass(struct packs *p, uint32_t pack);

/*
 * Makes a whole record (header, payload, padding) of a chunk: nodes are compressed when that saves
 * anything. *ret_bytes is malloced and given; *ret describes it.
 */
int record_encode(struct packs *p, uint8_t kind, const void *data, size_t len, uint32_t salt,
		  const struct name *name, uint8_t **ret_bytes, size_t *ret_len,
		  struct record *ret);

/*
 * Reads the record at a place and decodes its payload, which must have its name; *ret_raw is
 * malloced and given: rec.raw_len bytes. -ERR_RECORD_DAMAGED, -ERR_CHUNK_DAMAGED, ...
 */
int record_read(struct packs *p, uint32_t pack, uint64_t off, struct record *ret,
		uint8_t **ret_raw);

/* Decodes a payload to exactly raw_len bytes at `raw`: -ERR_CHUNK_DAMAGED. */
int payload_decode(struct packs *p, uint8_t codec, const void *stored, uint32_t stored_len,
		   void *raw, uint32_t raw_len);

/*
 * Packs leave 8 MiB of the disk alone: half of what the stage leaves, so that sealing what is
 * staged never meets it; enough for the pages of an index transaction (some 2 MiB, see BATCH in
 * sweep.c) in a commit that drops things and in the next that frees their pages. Without it an
 * import could fill the disk so that not even gc can commit.
 */
#define PACK_RESERVE ((uint64_t)8 << 20)

/*
 * Appends a record to the current pack, or to a new one when that is full. No disk wait. On failure
 * (-ENOSPC, ...) the pack ends where it ended before.
 */
int pack_append(struct packs *p, const uint8_t *bytes, size_t len, uint32_t *ret_pack,
		uint64_t *ret_off);

/*
 * Reads len bytes at off: -ERR_PACK_MISSING, -ERR_PACK_TRUNCATED, or what the system said.
 * before_wait (may be NULL) is called when the bytes are not in the page cache.
 */
int pack_read(struct packs *p, uint32_t pack, uint64_t off, void *buf, size_t len,
	      void (*before_wait)(void));
/* Bytes of one pack file; -ERR_PACK_MISSING, ... */
int pack_size(struct packs *p, uint32_t pack, uint64_t *ret);

/*
 * Makes everything appended before the call durable, new files' names included. When a pack cannot
 * be synced it becomes *bad*: the kernel may have dropped its dirty pages and will not say so
 * twice, so nothing in it that the index does not name yet may be trusted to last. Appending goes
 * on in a new pack, and each call fails, whoever makes it, until the bad one is forgotten.
 */
int packs_sync(struct packs *p);
/* Packs written since they were last synced: each holds a descriptor. */
unsigned packs_unsynced(struct packs *p);
bool packs_any_bad(struct packs *p);
/* How many packs have become bad since they were opened. */
uint64_t packs_became_bad(struct packs *p);
bool pack_is_bad(struct packs *p, uint32_t pack);
/* Lets go of bad packs, once nothing pending lies in them. The files stay. */
void packs_forget_bad(struct packs *p);

/* Bytes appended since the packs were opened. No lock. */
uint64_t packs_appended(struct packs *p);
/* Of the disk they are on. Lent until they are closed. */
struct room *packs_room(struct packs *p);

struct pack_sizes {
	uint64_t bytes;
	uint64_t on_disk; /* without the holes of pack_punch */
};

/* Each pack file, in no order; fn's non-zero return stops and is returned. */
int packs_each(struct packs *p,
	       int (*fn)(void *arg, uint32_t pack, const struct pack_sizes *size), void *arg);

/* ---- for check and repair ---- */

/* 0, -ERR_PACK_HEADER, -ERR_PACK_MISSING, ... Readers do without the header. */
int pack_check_header(struct packs *p, uint32_t pack);
/* Write a header as it must have been, and sync it; what they say is known from elsewhere. */
int pack_mend_header(struct packs *p, uint32_t pack);
int pack_mend_record(struct packs *p, uint32_t pack, uint64_t off, const struct record *rec);

/* ---- for the sweep ---- */

/* What is appended next goes into a new pack: the number that is returned, or a later one. */
uint32_t packs_begin_new(struct packs *p);
/* Closes one from before that, or it would go on taking its room until somebody syncs. */
void pack_retire(struct packs *p, uint32_t pack);
/* Makes a hole where no live record is; whole blocks of it go back to the filesystem. */
int pack_punch(struct packs *p, uint32_t pack, uint64_t off, uint64_t len);
/* Cuts off what is behind the last live record. */
int pack_cut(struct packs *p, uint32_t pack, uint64_t end);
/* Unlinks it. Readers that have it open go on; others get -ERR_PACK_MISSING. */
int pack_remove(struct packs *p, uint32_t pack);

/*
 * Where the next record would go (pack 0: in a pack that is not made yet), and back to there. The
 * caller keeps other appenders away in between.
 */
void packs_mark(struct packs *p, uint32_t *ret_pack, uint64_t *ret_end);
void packs_rewind(struct packs *p, uint32_t pack, uint64_t end);
