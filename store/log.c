/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What the table of snapshots and branches tells the journal (L1 to L5 in store_internal.h).
 */

#include <errno.h>

#include "store/index.h"
#include "store/journal.h"
#include "store/oplog.h"
#include "store/store_internal.h"
#include "store/tableop.h"

#define LOG_BYTES (TABLE_OP_MAX + LOG_ITEMS_MAX + RECORD_OVERHEAD)

int log_begin(struct store *s, struct table_log *ret)
{
	int r;

	*ret = (struct table_log){ .store = s };
	if (!s->logging)
		return 0;
	r = journal_reserve(s->journal, LOG_BYTES, true);
	if (r < 0)
		return r;
	ret->reserved = LOG_BYTES;
	return 0;
}

uint64_t log_write(struct table_log *log, const struct table_op *op)
{
	uint8_t buf[TABLE_OP_MAX + LOG_ITEMS_MAX];
	uint64_t lsn;
	size_t len;

	if (log->reserved == 0)
		return 0;
	len = table_op_encode(op, buf);
	lsn = journal_append(log->store->journal, JOURNAL_TABLE, buf, len, log->reserved, NULL,
			     NULL, NULL);
	log->reserved = 0;
	return lsn;
}

void log_end(struct table_log *log)
{
	if (log->reserved > 0)
		journal_unreserve(log->store->journal, log->reserved);
}

void log_loose_drop(struct store *s, uint64_t id)
{
	_cleanup_(log_end) struct table_log log = { 0 };
	const struct table_op op = { .kind = TABLE_DROP_SNAP, .snap = id };

	if (log_begin(s, &log) == 0)
		(void)log_write(&log, &op);
}

bool log_is_committed(struct store *s, const struct root *root)
{
	static const struct name zero;
	struct chunk_loc loc;
	struct name name;

	/* A commit names all that was sealed before it, so the top node stands for the whole. */
	return root_name(root, &name) == 0 &&
	       (name_eq(&name, &zero) || index_find_chunk(s->index, &name, &loc) == 0);
}

void log_state(struct store *s, struct snap *snap, const struct root *root, bool committed,
	       struct table_op *op)
{
	struct name name;

	if (committed && root_name(root, &op->root) == 0) {
		op->state = STATE_NAME;
	} else if (snap && snap->durable) {
		if ((snap->root && root_same(snap->root, root)) ||
		    (root_name(root, &name) == 0 && name_eq(&name, &snap->name))) {
			op->state = STATE_NAME;
			op->root = snap->name;
		}
	} else if (snap && snap->root && root_same(snap->root, root)) {
		op->state = STATE_SNAP;
		op->snap = snap->id;
		snap->used_lsn = UINT64_MAX; /* the caller knows it soon */
	}
}

void log_branch(struct branch *b)
{
	if (b->log)
		oplog_end(b->log, b->changes,
			  atomic_load_explicit(&b->store->next_ino, memory_order_relaxed));
}

uint64_t log_lsn(struct store *s)
{
	return s->journal ? journal_lsn(s->journal) : 0;
}

/* One that is not in the index has no record before the one that made it. */
static uint64_t covered_of(const struct entry *e, uint64_t covered)
{
	uint64_t committed = e->dirty || e->dropped ? e->committed.lsn : e->lsn;

	return e->in_index && e->last_lsn > committed ? MIN(covered, committed) : covered;
}

uint64_t log_covered(struct store *s)
{
	uint64_t covered = s->table_lsn;

	for (size_t i = 0; i < s->entry_count; i++)
		covered = covered_of(s->entries[i], covered);
	/* Until the drop is committed, too: what was done before it comes back first. */
	for (struct link *l = s->doomed_branches.next; l != &s->doomed_branches; l = l->next)
		covered = covered_of(container_of(l, struct entry, link), covered);
	return covered;
}
