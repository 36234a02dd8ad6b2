/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Names of chunks: XXH3-128 of the content, canonical (big-endian) byte order. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NAME_BYTES 16
#define NAME_HEX_SIZE (2 * NAME_BYTES + 1)

struct name {
	uint8_t b[NAME_BYTES];
};

/*
 * The name of len bytes under a salt. Salt 0 is the ordinary name; when two different contents
 * collide the later one is stored under salt 1, 2, ... (the salt is XXH3's seed). xxHash is not
 * collision-proof against an adversary, so a name alone never proves equality: see chunk.h.
 */
struct name name_of(const void *data, size_t len, uint32_t salt);

/* A 64-bit hash for tables and directory positions; stable, part of the format. */
uint64_t hash64(const void *data, size_t len, uint64_t seed);

bool name_eq(const struct name *a, const struct name *b);
int name_cmp(const struct name *a, const struct name *b);

/* Writes 32 hex digits and a NUL; returns buf. */
char *name_to_text(const struct name *n, char buf[static NAME_HEX_SIZE]);

/*
 * Test hook: keep only the first `bits` bits of every name of salt 0 to 3 (others zero), so that
 * collisions happen all the time, yet chains of them end; 0 turns it off. Also set by the
 * environment variable PLYFS_TEST_HASH_BITS in chunks_open, but not in a release build: a store
 * made under it can be used under it only.
 */
void hash_truncate_for_tests(unsigned bits);
