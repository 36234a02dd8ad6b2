/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Bytes on disk, field by field, as FORMAT.md describes them. Byte arrays only: nothing is written
 * or read by casting another struct. Integers are little-endian; names are as in hash.h.
 */

#include <assert.h>
#include <stdint.h>

#include "store/hash.h"

/* ---- packs: put and get in pack_format.c ---- */

#define PACK_MAGIC "PLYPACK1"
#define PACK_VERSION 1

struct pack_header_bytes {
	uint8_t magic[8];   /* PACK_MAGIC */
	uint8_t version[2]; /* PACK_VERSION */
	uint8_t zero[2];
	uint8_t number[4]; /* the one in the file's name */
	uint8_t sum[8];    /* hash64 of the 16 bytes before, seed 0 */
};
static_assert(sizeof(struct pack_header_bytes) == 24, "pack header");

#define RECORD_MAGIC "PLYc"

struct record_header_bytes {
	uint8_t magic[4]; /* RECORD_MAGIC */
	uint8_t kind;     /* enum chunk_kind */
	uint8_t codec;    /* enum codec */
	uint8_t zero[2];
	uint8_t salt[4];
	uint8_t stored_len[4]; /* payload bytes that follow */
	uint8_t raw_len[4];    /* bytes of the chunk */
	uint8_t name[NAME_BYTES];
	uint8_t sum[4]; /* low half of hash64 of the 36 bytes before, seed 0 */
};
static_assert(sizeof(struct record_header_bytes) == 40, "record header");

/* ---- table records: put and get in table.c ---- */

#define TABLE_VERSION 1

struct table_record_bytes {
	uint8_t version; /* TABLE_VERSION */
	uint8_t whole;   /* 1: not changes, but all there is */
	uint8_t zero[2];
	uint8_t part[4], parts[4]; /* part 0 to parts - 1 */
	uint8_t number[8];         /* of the commit */
	uint8_t uuid[16];          /* of the store */
	uint8_t before[NAME_BYTES]; /* name of the record before; zero: this is the first */
	uint8_t before_pack[4], before_off[8]; /* where that lay then */
};
static_assert(sizeof(struct table_record_bytes) == 64, "table record");

#define INDEX_OP_PUT 1
#define INDEX_OP_DEL 2

struct index_op_bytes {
	uint8_t op;
	uint8_t table; /* enum index_table */
	uint8_t key_len[2];
	uint8_t value_len[4];
};
static_assert(sizeof(struct index_op_bytes) == 8, "index operation");

/* The newest table record, in the index's meta table under TABLE_KEY. */
#define TABLE_KEY "table"

struct table_place_bytes {
	uint8_t number[8];
	uint8_t pack[4];
	uint8_t zero[4];
	uint8_t off[8];
	uint8_t name[NAME_BYTES];
	uint8_t since[8]; /* bytes of records since the last whole one */
	uint8_t whole[8]; /* bytes of that */
};
static_assert(sizeof(struct table_place_bytes) == 56, "table place");

#define PACK_ALIGN 8 /* records start at multiples of it, so that a scan can find the next one */

/* ---- index: put and get in index.c ---- */

struct chunk_loc_bytes {
	uint8_t kind;
	uint8_t codec;
	uint8_t zero[2];
	uint8_t pack[4];
	uint8_t off[8]; /* of the record header */
	uint8_t stored_len[4];
	uint8_t raw_len[4];
	uint8_t salt[4];
};
static_assert(sizeof(struct chunk_loc_bytes) == 28, "chunk location");

/* Behind every value of the index: low half of hash64(value, seed hash64(key, seed 0)). */
#define INDEX_SUM_BYTES 4

/* ---- journal: put and get in journal.c ---- */

#define JOURNAL_MAGIC "PLYJRNL1"
#define JOURNAL_VERSION 1

struct journal_header_bytes {
	uint8_t magic[8];
	uint8_t version[2];
	uint8_t zero[2];
	uint8_t number[4]; /* the one in the file's name */
	uint8_t after[8];  /* the record that it goes on after */
	uint8_t base[8];   /* its first record has this number plus one */
	uint8_t synced[8]; /* durable when the segment was made */
	uint8_t boot[16];  /* of the kernel that it was written under */
	uint8_t sum[8];    /* hash64 of the 56 bytes before, seed 0 */
};
static_assert(sizeof(struct journal_header_bytes) == 64, "journal header");

struct journal_record_bytes {
	uint8_t len[4]; /* of the payload that follows */
	uint8_t kind;   /* enum journal_kind */
	uint8_t zero[3];
	uint8_t lsn[8];
	uint8_t sum[8]; /* hash64 of the payload; seed: the segment's sum XOR that of these 16 */
};
static_assert(sizeof(struct journal_record_bytes) == 24, "journal record");

/* A mark's payload: the number alone, or with bytes of a stage file that the mark relies on. */
struct journal_mark_bytes {
	uint8_t lsn[8];   /* what records up to it refer to is durable */
	uint8_t file[4];  /* the stage file's number; 0 where no bytes follow */
	uint8_t place[4]; /* in it */
	uint8_t bytes[];
};
static_assert(sizeof(struct journal_mark_bytes) == 16, "journal mark");
