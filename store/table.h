/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The tables of snapshots, branches and counters, written into the packs as well as into the
 * index: each commit leaves a *table record* with its changes there, and now and then one with
 * everything. When the index is lost, salvage has the packs alone, and finds in them what states
 * there were. Nothing else ever reads these records.
 */

#include <stdbool.h>
#include <stdint.h>

#include "store/index.h"

struct chunks;
struct table;

/*
 * chunks, index: borrowed until close. Reads where the newest record lies; where that cannot be
 * told (an older store, a damaged record) the next commit is followed by one with everything.
 */
int table_open(struct chunks *c, struct index *ix, const uint8_t uuid[static 16],
	       struct table **ret);
void table_close(struct table *t);

/*
 * The last step before index_commit: writes what txn did to the tables, and where that is. No disk
 * wait: the record becomes durable with the next flush of the packs. A pack that takes no more is
 * no failure (table_committed tries again). Callers are one at a time.
 */
int table_record(struct table *t, struct index_txn *txn);
/* txn was committed. Writes a record with everything if that is due. */
void table_committed(struct table *t);

/*
 * Writes everything, durable: the records before may go, with the packs they are in. Nobody commits
 * meanwhile. Failures leave the store as it was.
 */
int table_write_all(struct table *t);

/*
 * Are the newest record and those before it, back to one with everything, where they should be and
 * whole? Else salvage would lack something. 0; ABSENT: they are to be written anew, which the next
 * commit does; or what is wrong.
 */
int table_check(struct table *t);

/* ---- for salvage ---- */

struct table_part {
	bool whole;
	uint32_t part, parts;
	uint64_t number;
	uint8_t uuid[16];
	struct name before;
	uint32_t before_pack;
	uint64_t before_off;
	const uint8_t *ops; /* lent: inside the bytes */
	size_t ops_len;
};
/* A record's payload; -ERR_RECORD_DAMAGED. Operations are looked at by index_ops_each. */
int table_part_decode(const uint8_t *bytes, size_t len, struct table_part *ret);

/* Each operation; fn's non-zero return stops and is returned. -ERR_RECORD_DAMAGED. */
int index_ops_each(const uint8_t *bytes, size_t len,
		   int (*fn)(void *arg, bool put, enum index_table table, const void *key,
			     size_t key_len, const void *value, size_t value_len),
		   void *arg);
