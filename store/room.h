/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What the disk has free, for those that refuse before it does: packs and stage, which share one.
 * Private to store/. Any thread may call, with any lock held.
 *
 * Some filesystems count what was written only once it is written back (btrfs, with its next
 * transaction), and what was removed as late. Where that may matter everything is written back
 * before they are asked once more: on a disk with much room never, on one that is nearly full each
 * time that half of what is left was written.
 */

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct room {
	int dir_fd;                  /* immutable, borrowed */
	bool counts_late;            /* immutable: the filesystem may */
	_Atomic uint64_t wrote;      /* bytes */
	_Atomic uint64_t settled;    /* so many of them when all was written back; never less */
	_Atomic uint64_t settled_ns; /* when it was; 0: so long ago that it does not count */
};

void room_init(struct room *m, int dir_fd);
/* For who needs so much of it. -errno. Waits for the disk when it is late. */
int room_ask(struct room *m, uint64_t need, uint64_t *ret_bytes);
/* So many bytes were written, or soon are. */
void room_wrote(struct room *m, uint64_t bytes);
/* Something was removed, or cut: nobody is refused before that is counted. */
void room_freed(struct room *m);
