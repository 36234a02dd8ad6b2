/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Bytes that come piece by piece, and then are there as a whole: in memory while they are few, else
 * in an unlinked file that is mapped, so that hundreds of megabytes cost page cache only.
 */

#include <stddef.h>

struct spool {	       /* { .fd = -1 } is an empty one */
	char *data;    /* in memory, with room for a NUL; or the mapping */
	size_t len, room;
	int fd;	       /* -1: in memory */
	size_t mapped; /* bytes of the mapping; 0: none */
};

/* dir: for the file. -errno. */
int spool_add(struct spool *s, const char *dir, const char *data, size_t len);
/* From now on the whole is at s->data, with a NUL behind; nothing is added any more. -errno. */
int spool_finish(struct spool *s);
void spool_release(struct spool *s);
