/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Bytes on disk, field by field, as FORMAT.md describes them. Byte arrays only: nothing is written
 * or read by casting another struct. Integers are little-endian; names are as in hash.h.
 */

#include <assert.h>
#include <stdint.h>

#include "store/hash.h"

/* ---- packs: put and get in pack.c ---- */

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
