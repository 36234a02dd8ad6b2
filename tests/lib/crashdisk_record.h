/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The record that crashdisk_record.c writes and crashdisk.c plays: entries one behind the other, in
 * memory that parent and child share.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#define SECTOR 512u
#define NAME_BYTES_MAX 32 /* names in a store are short */
#define FILES_MAX 4096

enum kind { WRITE, DSYNC_WRITE, ZERO, SIZE, GROW, SYNC, LOST, LINK, UNLINK, RENAME, EVENT };

struct rec {
	uint32_t kind, file; /* the file; the directory for names */
	uint64_t off, len;   /* EVENT: kind and value; SIZE, GROW: len */
	uint32_t moved;      /* names: the file that is meant */
	bool is_dir;
	char name[NAME_BYTES_MAX], to[NAME_BYTES_MAX];
	/* then `len` bytes of a write, padded to 8 */
};

struct record {
	size_t used;
	uint32_t files; /* numbers given out */
	bool overflow;
	_Alignas(8) uint8_t bytes[];
};

/* An empty one, of what changes below a directory; and its end, with the numbers of files. */
struct record *record_new(const char *ignored);
void record_free(void);

/* The next number, for a file that was there before or is new. */
uint32_t record_file(const struct stat *st);
/* Is there no file of that name, whatever happens to it? */
bool record_ignores(const char *name);
