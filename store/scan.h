/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Packs read from end to end, without the index: for repair and salvage. Private to store/.
 */

#include "store/pack.h"
#include "store/store.h"

struct scanned {
	struct record rec;
	uint32_t pack;
	uint64_t off;
	/*
	 * It begins inside the span that a damaged record claims. It may have been appended behind
	 * one that a crash tore, or be part of that one's bytes, which anyone may have written.
	 */
	bool doubtful;
	const uint8_t *raw; /* lent: rec.raw_len bytes that have the name; NULL: damaged */
};

struct scan_stats {
	uint64_t packs, bytes, records, damaged; /* damaged: headers without their bytes */
	uint64_t unreadable;			 /* places that the disk would not give */
};

/*
 * Each record whose header is whole, in order of pack and place. fn's non-zero return stops and is
 * returned. What cannot be read is passed over and counted, but where the machine fails
 * (err_is_machine): that is returned, too.
 */
int packs_scan(struct packs *p, int (*fn)(void *arg, const struct scanned *rec), void *arg,
	       const struct progress *progress, struct scan_stats *ret);
