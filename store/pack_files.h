/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Private to pack.c: the files of packs by their numbers, and the descriptors by which readers,
 * who are many, share them. Threads: every function from any thread.
 */

#include <stdbool.h>
#include <stdint.h>

#define PACK_NAME_SIZE sizeof("01234567.pack")

const char *pack_file_name(uint32_t pack, char buf[static PACK_NAME_SIZE]);
/* The number in a pack's file name, 0 for any other name. */
uint32_t pack_number(const char *file);
/*
 * Opens a pack. Its header is not looked at: one flipped bit there would cost the whole pack, and
 * every record's bytes are compared with their name anyway. -ERR_PACK_MISSING.
 */
int pack_open(int dir_fd, uint32_t pack, int flags, int *ret_fd);

struct pack_fds;

/* dir_fd: the directory of the packs, borrowed. */
int pack_fds_new(int dir_fd, struct pack_fds **ret);
void pack_fds_free(struct pack_fds *t);

/* A descriptor of a pack: a slot of the table, or one of our own when all slots are in use. */
struct pack_use {
	struct pack_fds *t;
	struct pack_fd *slot; /* NULL: own */
	int fd;
	bool waited; /* it was opened just now: before_wait was called */
};

/* before_wait (may be NULL) is called before anything that may wait for the disk. */
int pack_use(struct pack_fds *t, uint32_t pack, void (*before_wait)(void), struct pack_use *ret);
void pack_use_endp(struct pack_use *u);
/* Its file is unlinked: nobody is given it any more, and its room goes back with the last user. */
void pack_was_removed(struct pack_fds *t, uint32_t pack);
