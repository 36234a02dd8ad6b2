/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What damage took from the journal: telling how much, and giving up what the disk cannot read, so
 * that the rest can be.
 */

#include "store/journal.h"

/*
 * After a journal_read that found damage: hands out the whole records behind that place, as far as
 * they can be read. They are given up. -ERR_JOURNAL_DAMAGED: there is too much that only looks like
 * records for all to be found.
 */
int journal_each_lost(struct journal *j,
		      int (*fn)(void *arg, uint64_t lsn, enum journal_kind kind,
				const uint8_t *payload, size_t len),
		      void *arg);

/*
 * Of a store that nobody has open: what cannot be read of the segments (-EIO) is given up, with a
 * note each. Such a segment is written anew, with zeros there. EXISTS: there was one.
 */
int journal_give_up(int dir_fd, const struct noter *noter);
