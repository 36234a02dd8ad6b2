/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Table records (table.h) read back: what the tables held after the last commit whose record is
 * there. For repair and salvage, private to store/.
 */

#include "store/index.h"
#include "store/scan.h"

struct table_log;

int table_log_new(struct table_log **ret);
void table_log_free(struct table_log *log);
static inline void table_log_freep(struct table_log **log)
{
	if (*log)
		table_log_free(*log);
}

/* Takes in what a scan meets, in its order; other kinds of records are left alone. */
int table_log_add(struct table_log *log, const struct scanned *found);

struct table_log_stats {
	uint64_t records; /* that were used, changes and whole ones */
	uint64_t gaps;	  /* how often some are missing between two that are there */
	bool whole;	  /* one with everything was the beginning */
	uint64_t last;	  /* number of the last one, 0: there is none */
};
/*
 * Puts everything in order, once nothing more is added. uuid: records of other stores are left out;
 * NULL: the store is that of the last record. ABSENT: there is no record at all.
 */
int table_log_resolve(struct table_log *log, const uint8_t *uuid, struct table_log_stats *ret);

/* After table_log_resolve: whose records these are, 16 bytes, lent. */
const uint8_t *table_log_uuid(const struct table_log *log);

/* The value of a key, lent until table_log_free: 0 or ABSENT. */
int table_log_get(const struct table_log *log, enum index_table table, const void *key,
		  size_t key_len, const void **ret_value, size_t *ret_len);
/* Each of them, by table and key; fn's non-zero return stops and is returned. */
int table_log_each(const struct table_log *log,
		   int (*fn)(void *arg, enum index_table table, const void *key, size_t key_len,
			     const void *value, size_t value_len),
		   void *arg);
