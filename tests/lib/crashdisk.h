/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A disk that forgets: what a directory may look like after the power was cut.
 *
 * A program that is linked with crashdisk.c and crashdisk_record.c has its calls that change files
 * (its own, and those of the libraries that it uses) recorded while disk_record() is on, with their
 * bytes: writes, writes through shared mappings, sizes, holes, names, and syncs. Nothing is really
 * synced, which also makes such a test quick. Afterwards disk_cut() makes the directory as it might
 * be found if the power had gone at any place of the record:
 *
 *  - what was synced before is there (a file's bytes and size by fsync, fdatasync or O_DSYNC; a
 *    name by fsync of its directory, and by nothing else);
 *  - of what came later, each sector of 512 bytes is as it was at some moment since, whatever the
 *    others are: kept, dropped, reordered, torn;
 *  - names are as at some moment since as well, all of them or each directory for itself (changes
 *    of one directory reach a disk in order, with all filesystems that keep a log); so are sizes.
 *
 * A use: disk_open; fork: the child calls disk_record, works, and disk_end; the parent then calls
 * disk_played, disk_advance and disk_cut as often as it likes, and disk_close.
 *
 * Not seen: write(), pwritev(), link(), symlink(), rename across directories. disk_played
 * compares the record with the real directory, so that nothing is overlooked in silence.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The directory as it is now counts as synced. Files of a name in `ignored` do not exist. */
void disk_open(const char *path, const char *ignored);
void disk_close(void);

/* From now on this process's changes are recorded; up to disk_end, after which none happens. */
void disk_record(void);
void disk_end(void);
/*
 * Of that file, which is there, each write and sync fails (EIO) once in `one_in` times; 0: no more.
 * What a failed one wrote is read back, but part of it never reaches the disk, whatever is synced.
 */
void disk_fail(const char *path, unsigned one_in, uint64_t seed);
/* A note in the record: what was asked before it has been answered. */
void disk_event(uint32_t kind, uint32_t value);
/* Is there hardly any room for more? */
bool disk_is_full(void);

/* Reads the record; false (and a line on stderr) when it does not explain the directory. */
bool disk_played(void);
/* Entries of the record; is entry i a sync, a size or a name; a name; an event of that kind? */
size_t disk_length(void);
bool disk_is_turn(size_t i);
bool disk_is_name(size_t i);
bool disk_is_event(size_t i, uint32_t kind);
/* Is it the first sync of a file after a failure? */
bool disk_follows_failure(size_t i);
/* Goes on to just before entry `to`, telling the events on the way. */
void disk_advance(size_t to, void (*event)(void *arg, uint32_t kind, uint32_t value), void *arg);
/* The directory after a power cut here, made at a path that does not exist yet. */
void disk_cut(uint64_t seed, const char *path);
