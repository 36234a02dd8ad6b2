/* SPDX-License-Identifier: Apache-2.0 */
#include "store/table_log.h"

#include <errno.h>

#include "store/base/err.h"
#include "store/base/os.h"
#include "store/base/util.h"
#include "store/table.h"

/*
 * Parts come in the order in which they lie in the packs. Of several records with one number (T1
 * in table.c) the one whose first part lies last counts; its other parts are those that name one
 * another (T3). The last record that is whole and has all its parts is the beginning, and records
 * of changes with higher numbers follow. Where numbers are missing the changes behind the gap are
 * applied all the same: each sets or deletes a whole record, so nothing depends on what is missing.
 */

struct part {
	struct table_part p; /* ops: into bytes */
	struct name name;
	uint8_t *bytes; /* owned */
	size_t order;	/* of arrival */
};

/* One operation, in its place among all that count. */
struct op {
	bool put;
	enum index_table table;
	const uint8_t *key, *value; /* borrowed of a part */
	size_t key_len, value_len, order;
};

struct table_log {
	struct part *parts; /* owned */
	size_t part_count, part_capacity;
	struct op *ops; /* owned; once resolved: one per key, sorted */
	size_t op_count, op_capacity;
	uint8_t uuid[16];
};

int table_log_new(struct table_log **ret)
{
	*ret = os_calloc(1, sizeof(**ret));
	return *ret ? 0 : -ENOMEM;
}

void table_log_free(struct table_log *log)
{
	for (size_t i = 0; i < log->part_count; i++)
		free(log->parts[i].bytes);
	free(log->parts);
	free(log->ops);
	free(log);
}

int table_log_add(struct table_log *log, const struct scanned *found)
{
	_cleanup_free_ uint8_t *bytes = NULL;
	struct part part = { .name = found->rec.name, .order = log->part_count };
	int r;

	if (found->rec.kind != RECORD_TABLE || !found->raw)
		return 0;
	bytes = os_malloc(found->rec.raw_len);
	if (!bytes)
		return -ENOMEM;
	memcpy(bytes, found->raw, found->rec.raw_len);
	if (table_part_decode(bytes, found->rec.raw_len, &part.p) < 0)
		return 0; /* of a later version, maybe: a gap */
	if (found->doubtful && (log->part_count == 0 ||
				!name_eq(&part.p.before, &log->parts[log->part_count - 1].name)))
		return 0; /* T3 */

	r = os_grow(&log->parts, &log->part_capacity, log->part_count + 1, sizeof(*log->parts));
	if (r < 0)
		return r;
	part.bytes = TAKE_PTR(bytes);
	log->parts[log->part_count++] = part;
	return 0;
}

/* ---- putting in order ---- */

static int by_number(const void *a, const void *b)
{
	const struct part *x = a, *y = b;

	if (x->p.number != y->p.number)
		return x->p.number < y->p.number ? -1 : 1;
	if (x->p.part != y->p.part)
		return x->p.part < y->p.part ? -1 : 1;
	return x->order < y->order ? -1 : x->order > y->order;
}

static int by_key(const void *a, const void *b)
{
	const struct op *x = a, *y = b;
	int order;

	if (x->table != y->table)
		return x->table < y->table ? -1 : 1;
	order = memcmp(x->key, y->key, MIN(x->key_len, y->key_len));
	if (order != 0)
		return order;
	if (x->key_len != y->key_len)
		return x->key_len < y->key_len ? -1 : 1;
	return x->order < y->order ? -1 : x->order > y->order;
}

static int add_op(void *arg, bool put, enum index_table table, const void *key, size_t key_len,
		  const void *value, size_t value_len)
{
	struct table_log *log = arg;
	int r = os_grow(&log->ops, &log->op_capacity, log->op_count + 1, sizeof(*log->ops));

	if (r < 0)
		return r;
	log->ops[log->op_count] = (struct op){ .put = put,
					       .table = table,
					       .key = key,
					       .key_len = key_len,
					       .value = value,
					       .value_len = value_len,
					       .order = log->op_count };
	log->op_count++;
	return 0;
}

/*
 * Parts from..to have one number. Applies those that belong to its last record; *ret_all: it has
 * all of them. A whole one that has voids what came before.
 */
static int apply_number(struct table_log *log, size_t from, size_t to, bool *ret_all,
			bool *ret_whole)
{
	const struct part *last = NULL;
	size_t begin = log->op_count;
	uint32_t next = 0, parts = 0;
	int r;

	for (size_t i = from; i < to; i++) {
		const struct part *part = &log->parts[i];

		if (part->p.part == next &&
		    (i + 1 == to || log->parts[i + 1].p.part != next || part->p.part > 0)) {
			if (last && !name_eq(&part->p.before, &last->name))
				continue;
			r = index_ops_each(part->p.ops, part->p.ops_len, add_op, log);
			if (r < 0)
				return r == -ENOMEM ? r : 0; /* made by a bug: a gap */
			last = part;
			parts = part->p.parts;
			next++;
		}
	}
	*ret_all = last && next == parts;
	*ret_whole = *ret_all && last->p.whole;
	if (*ret_whole) {
		memmove(log->ops, log->ops + begin, (log->op_count - begin) * sizeof(*log->ops));
		log->op_count -= begin;
		for (size_t i = 0; i < log->op_count; i++)
			log->ops[i].order = i;
	}
	return 0;
}

/* One operation per key remains: the last one, if it is no deletion. */
static void keep_last_ops(struct table_log *log)
{
	size_t kept = 0;

	if (log->op_count > 0)
		qsort(log->ops, log->op_count, sizeof(*log->ops), by_key);
	for (size_t i = 0; i < log->op_count; i++) {
		const struct op *op = &log->ops[i], *next = op + 1;

		if (i + 1 < log->op_count && op->table == next->table &&
		    op->key_len == next->key_len && memcmp(op->key, next->key, op->key_len) == 0)
			continue;
		if (op->put)
			log->ops[kept++] = *op;
	}
	log->op_count = kept;
}

static void drop_other_stores(struct table_log *log)
{
	size_t kept = 0;

	for (size_t i = 0; i < log->part_count; i++) {
		if (memcmp(log->parts[i].p.uuid, log->uuid, sizeof(log->uuid)) == 0)
			log->parts[kept++] = log->parts[i];
		else
			free(log->parts[i].bytes);
	}
	log->part_count = kept;
}

int table_log_resolve(struct table_log *log, const uint8_t *uuid, struct table_log_stats *ret)
{
	struct table_log_stats stats = { 0 };
	int r;

	if (log->part_count == 0)
		return ABSENT;
	if (!uuid)
		uuid = log->parts[log->part_count - 1].p.uuid;
	memcpy(log->uuid, uuid, sizeof(log->uuid));
	drop_other_stores(log);
	if (log->part_count == 0)
		return ABSENT;
	qsort(log->parts, log->part_count, sizeof(*log->parts), by_number);

	for (size_t from = 0, to; from < log->part_count; from = to) {
		uint64_t number = log->parts[from].p.number;
		bool all = false, whole = false;

		for (to = from; to < log->part_count && log->parts[to].p.number == number;)
			to++;
		r = apply_number(log, from, to, &all, &whole);
		if (r < 0)
			return r;
		if (whole) {
			stats.whole = true;
			stats.gaps = stats.records = 0;
		} else if (!all || number != stats.last + 1) {
			stats.gaps++;
		}
		stats.records++;
		stats.last = number;
	}
	keep_last_ops(log);
	*ret = stats;
	return 0;
}

/* ---- asking ---- */

const uint8_t *table_log_uuid(const struct table_log *log)
{
	return log->uuid;
}

int table_log_get(const struct table_log *log, enum index_table table, const void *key,
		  size_t key_len, const void **ret_value, size_t *ret_len)
{
	for (size_t i = 0; i < log->op_count; i++) {
		const struct op *op = &log->ops[i];

		if (op->table == table && op->key_len == key_len &&
		    memcmp(op->key, key, key_len) == 0) {
			*ret_value = op->value;
			*ret_len = op->value_len;
			return 0;
		}
	}
	return ABSENT;
}

int table_log_each(const struct table_log *log,
		   int (*fn)(void *arg, enum index_table table, const void *key, size_t key_len,
			     const void *value, size_t value_len),
		   void *arg)
{
	for (size_t i = 0; i < log->op_count; i++) {
		const struct op *op = &log->ops[i];
		int r = fn(arg, op->table, op->key, op->key_len, op->value, op->value_len);

		if (r != 0)
			return r;
	}
	return 0;
}
