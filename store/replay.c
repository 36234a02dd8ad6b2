/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What the journal has and the index has not comes back: each record that is not covered (L3 in
 * store_internal.h) is done again, in order, to the table and to the branches' trees, by the same
 * steps that made it. Nothing is written: the result is a store in memory as the ended daemon had
 * it, and the sealer commits it as always. So a replay that is interrupted is simply done again.
 *
 * A record that cannot be done (a tree node that is damaged, a state that no record could name)
 * ends the recovery of its branch there, with a note; the other branches go on. That is committed
 * before the store is used (store_commit_lost).
 */

#include <errno.h>
#include <inttypes.h>

#include "store/base/os.h"
#include "store/blob.h"
#include "store/format.h"
#include "store/journal.h"
#include "store/journal_lost.h"
#include "store/oplog.h"
#include "store/store_internal.h"
#include "store/tableop.h"

struct replay {
	struct store *store;
	struct branch **open; /* owned; handles, so that each branch is opened once */
	size_t n_open, cap_open;
	struct oplog *way_back; /* owned; for all records, as they are many and small */
	uint64_t last_lsn;
	bool again; /* this record is tried a second time */
	bool put_back; /* bytes of the stage, which are not synced yet */
};

static void replay_release(struct replay *rp)
{
	for (size_t i = 0; i < rp->n_open; i++)
		branch_close(rp->open[i]);
	free(rp->open);
	oplog_free(rp->way_back);
}

/* Lent; open until replay_release or forget_branch. */
static int open_branch(struct replay *rp, struct entry *e, struct branch **ret)
{
	int r;

	if (e->live) { /* nobody else has opened anything yet */
		*ret = e->live;
		return 0;
	}
	r = os_grow(&rp->open, &rp->cap_open, rp->n_open + 1, sizeof(struct branch *));
	if (r < 0)
		return r;
	r = branch_open(rp->store, e->name, ret);
	if (r < 0)
		return r;
	rp->open[rp->n_open++] = *ret;
	return 0;
}

static void forget_branch(struct replay *rp, const struct entry *e)
{
	for (size_t i = 0; i < rp->n_open; i++) {
		struct branch *b = rp->open[i];

		if (b->entry != e)
			continue;
		rp->open[i] = rp->open[--rp->n_open];
		branch_close(b);
		return;
	}
}

/*
 * What is given up here was acknowledged, and is gone for good. So what is the machine's failure
 * ends the whole, and the next start may do better; and a disk is asked twice.
 */
static bool is_final(const struct replay *rp, int r)
{
	return !err_is_machine(r) && (r != -EIO || rp->again);
}

/* Else this branch's recovery ends here. */
static int give_up(struct replay *rp, struct entry *e, uint64_t lsn, int r)
{
	if (!is_final(rp, r))
		return r;
	e->lost = true;
	return note(&rp->store->noter, 0,
		    "branch '%s': what was done from record %" PRIu64
		    " of the journal on cannot be recovered: %s",
		    e->name, lsn, err_str(r));
}

/* It cannot even be told whose record this is: it may be that of any branch. */
static int give_up_all(struct replay *rp, uint64_t lsn, int r)
{
	struct store *s = rp->store;

	(void)note(&s->noter, 0, "record %" PRIu64 " of the journal cannot be understood", lsn);
	for (size_t i = 0; i < s->entry_count; i++) {
		struct entry *e = s->entries[i];

		if (lsn > e->lsn && !e->lost)
			(void)give_up(rp, e, lsn, r);
	}
	return 0;
}

static void recovered(struct replay *rp, struct entry *e)
{
	rp->store->recovered_operations++;
	if (e && !e->recovered) {
		e->recovered = true;
		rp->store->recovered_branches++;
	}
}

/* ---- changes of a tree ---- */

static int replay_change(struct replay *rp, uint64_t lsn, const uint8_t *payload, size_t len)
{
	struct store *s = rp->store;
	char name[BRANCH_NAME_MAX + 1] = "";
	struct oplog_head head;
	struct branch *b;
	struct entry *e;
	int r;

	r = oplog_decode(payload, len, &head);
	if (r < 0)
		return r;
	store_raise_ino(s, head.next_ino);

	if (head.branch_len > BRANCH_NAME_MAX)
		return -ERR_JOURNAL_DAMAGED;
	memcpy(name, head.branch, head.branch_len);
	e = entry_find(s, name);
	if (!e || lsn <= e->lsn || e->lost)
		return 0; /* dropped, covered, or of an earlier branch of this name */
	r = open_branch(rp, e, &b);
	if (r < 0)
		return give_up(rp, e, lsn, r);
	r = oplog_apply(rp->way_back, b->tree, s->stage, s->chunks, head.items, head.items_len);
	if (r < 0)
		return give_up(rp, e, lsn, r);
	b->changes = head.changes;
	e->last_lsn = lsn;
	recovered(rp, e);
	return 0;
}

/* ---- the table ---- */

/* The state that a record names; given. -ERR_SNAP_UNKNOWN: it names none. */
static int find_state(struct replay *rp, const struct table_op *op, struct root **ret)
{
	struct store *s = rp->store;
	_cleanup_(root_unrefp) struct root *empty = NULL;
	_cleanup_(tree_freep) struct tree *t = NULL;
	struct branch *b;
	struct entry *e;
	struct snap *sn;
	int r;

	switch (op->state) {
	case STATE_NAME:
		return store_load_root(s, &op->root, ret);
	case STATE_SNAP:
		sn = snap_lookup(s, op->snap);
		return sn ? snap_root_locked(s, sn, ret) : -ERR_SNAP_UNKNOWN;
	case STATE_BRANCH:
		e = entry_find(s, op->from);
		if (!e || e->lost)
			return -ERR_SNAP_UNKNOWN;
		r = open_branch(rp, e, &b);
		return r < 0 ? r : tree_freeze(b->tree, ret);
	case STATE_ITEMS:
		r = root_empty(s->nodes, &empty);
		if (r < 0)
			return r;
		r = tree_new(s->nodes, empty, &t);
		if (r < 0)
			return r;
		r = oplog_apply(rp->way_back, t, s->stage, s->chunks, op->items, op->items_len);
		return r < 0 ? r : tree_freeze(t, ret);
	default:
		return -ERR_SNAP_UNKNOWN;
	}
}

/* The snapshot with a number, made of a state if the index does not have it. */
static int find_or_make(struct replay *rp, const struct table_op *op, struct branch *b,
			uint32_t flags, struct root *root, struct snap **ret)
{
	struct store *s = rp->store;
	struct snap *sn = snap_lookup(s, snap_id_of(s->id_key, op->seq));
	int r;

	if (op->seq < 1 || op->seq > SNAP_SEQ_MAX)
		return -ERR_JOURNAL_DAMAGED;
	if (sn) { /* it was committed, by a batch that was not whole */
		*ret = sn;
		return 0;
	}
	r = snap_reserve(s);
	if (r < 0)
		return r;
	r = snap_new(s, op->kind == TABLE_CHECKPOINT ? op->lineage : b->lineage, op->branch,
		     op->label, flags, &sn);
	if (r < 0)
		return r;
	sn->time_ns = op->time_ns;
	snap_insert_at(s, sn, op->seq, b->entry->head, root);
	*ret = sn;
	return 0;
}

static int replay_checkpoint(struct replay *rp, uint64_t lsn, const struct table_op *op,
			     struct branch *b)
{
	_cleanup_(root_unrefp) struct root *root = NULL;
	struct snap *sn;
	int r;

	r = tree_freeze(b->tree, &root);
	if (r < 0)
		return r;
	r = find_or_make(rp, op, b, op->flags, root, &sn);
	if (r < 0)
		return r;
	branch_apply_checkpoint(b, sn, &root, lsn);
	return 0;
}

static int replay_switch(struct replay *rp, uint64_t lsn, const struct table_op *op,
			 struct branch *b)
{
	_cleanup_(root_unrefp) struct root *left = NULL, *root = NULL;
	struct store *s = rp->store;
	struct snap *made = NULL;
	int r;

	r = find_state(rp, op, &root);
	if (r < 0)
		return r;
	r = tree_freeze(b->tree, &left);
	if (r < 0)
		return r;
	if (op->seq) {
		r = find_or_make(rp, op, b, SNAP_AUTO, left, &made);
		if (r < 0)
			return r;
	}
	r = tree_reset(b->tree, root);
	if (r < 0)
		return r;
	branch_apply_switch(b, snap_lookup(s, op->snap), snap_lookup(s, op->undo), op->lineage,
			    &root, lsn);
	return 0;
}

static int replay_create(struct replay *rp, uint64_t lsn, const struct table_op *op)
{
	_cleanup_(root_unrefp) struct root *root = NULL;
	struct store *s = rp->store;
	struct branch *b;
	int r;

	r = find_state(rp, op, &root);
	if (r == 0)
		r = os_grow(&rp->open, &rp->cap_open, rp->n_open + 1, sizeof(struct branch *));
	if (r == 0)
		r = branch_create(s, op->branch, root, snap_lookup(s, op->snap) ? op->snap : 0,
				  op->lineage, &b);
	if (r < 0 && !is_final(rp, r))
		return r;
	if (r < 0)
		return note(&s->noter, 0, "branch '%s' cannot be recovered: %s", op->branch,
			    err_str(r));
	rp->open[rp->n_open++] = b;
	b->changes = b->entry->changes = op->changes;
	b->entry->lsn = b->entry->used_lsn = lsn;
	s->next_lineage = MAX(s->next_lineage, op->lineage + 1);
	recovered(rp, b->entry);
	return 0;
}

static int replay_drop_branch(struct replay *rp, const struct table_op *op)
{
	struct entry *e = entry_find(rp->store, op->branch);

	if (e)
		forget_branch(rp, e);
	if (branch_drop(rp->store, op->branch) == 0)
		recovered(rp, NULL);
	return 0;
}

static int replay_keep(struct replay *rp, const struct table_op *op)
{
	struct snap *sn = snap_lookup(rp->store, op->snap);

	if (sn && (sn->flags & SNAP_AUTO)) {
		sn->flags &= ~SNAP_AUTO;
		snap_mark_rewrite(rp->store, sn);
		recovered(rp, NULL);
	}
	return 0;
}

/* L4 holds for this daemon's batches as it did for those of the one that ended. */
static void remember_use(struct store *s, const struct table_op *op, uint64_t lsn)
{
	struct entry *e = entry_find(s, op->branch);
	struct snap *sn = op->state == STATE_SNAP ? snap_lookup(s, op->snap) : NULL;

	if (e)
		e->used_lsn = lsn;
	if (sn)
		sn->used_lsn = lsn;
	e = op->state == STATE_BRANCH ? entry_find(s, op->from) : NULL;
	if (e)
		e->used_lsn = lsn;
}

static int replay_table(struct replay *rp, uint64_t lsn, const uint8_t *payload, size_t len)
{
	struct store *s = rp->store;
	struct table_op op;
	struct branch *b;
	struct entry *e;
	int r;

	if (lsn <= s->table_lsn)
		return 0;
	r = table_op_decode(payload, len, &op);
	if (r < 0)
		return r;
	remember_use(s, &op, lsn);
	switch (op.kind) {
	case TABLE_CREATE:
		return replay_create(rp, lsn, &op);
	case TABLE_DROP_BRANCH:
		return replay_drop_branch(rp, &op);
	case TABLE_DROP_SNAP:
		if (snap_drop(s, op.snap) == 0)
			recovered(rp, NULL);
		return 0;
	case TABLE_KEEP:
		return replay_keep(rp, &op);
	default:
		break;
	}

	e = entry_find(s, op.branch);
	if (!e || e->lost)
		return 0;
	r = open_branch(rp, e, &b);
	if (r == 0)
		r = op.kind == TABLE_CHECKPOINT ? replay_checkpoint(rp, lsn, &op, b) :
						  replay_switch(rp, lsn, &op, b);
	if (r < 0)
		return give_up(rp, e, lsn, r);
	recovered(rp, e);
	return 0;
}

/* What a mark has of the stage is only there (J5). The first of all. */
static int put_back(struct replay *rp, const uint8_t *payload, size_t len)
{
	const struct journal_mark_bytes *mark = (const void *)payload;
	int r = stage_put_back(rp->store->stage, mark, len - sizeof(*mark));

	rp->put_back = true;
	if (r < 0)
		return note(&rp->store->noter, r,
			    "what was synced before the power went is in the journal and cannot "
			    "be put back into the stage: %s",
			    err_str(r));
	return 0;
}

static int replay_one(void *arg, uint64_t lsn, enum journal_kind kind, const uint8_t *payload,
		      size_t len)
{
	int (*fn)(struct replay *, uint64_t, const uint8_t *, size_t) =
		kind == JOURNAL_CHANGE ? replay_change : replay_table;
	struct replay *rp = arg;
	int r;

	if (kind == JOURNAL_MARK)
		return put_back(rp, payload, len);
	rp->last_lsn = lsn;
	rp->again = false;
	r = fn(rp, lsn, payload, len);
	if (r == -EIO) {
		rp->again = true;
		r = fn(rp, lsn, payload, len);
	}
	return r == -ERR_JOURNAL_DAMAGED ? give_up_all(rp, lsn, r) : r;
}

/* ---- the whole ---- */

static uint64_t highest_lsn(const struct store *s)
{
	uint64_t lsn = s->table_lsn;

	for (size_t i = 0; i < s->entry_count; i++)
		lsn = MAX(lsn, s->entries[i]->lsn);
	return lsn;
}

/* ---- what damage costs ---- */

struct loss {
	char branch[BRANCH_NAME_MAX + 1]; /* "": a snapshot was dropped (or kept) */
	uint64_t records;
};

struct losses {
	struct loss *list; /* owned */
	size_t count, cap;
};

static int count_lost(void *arg, uint64_t lsn, enum journal_kind kind, const uint8_t *payload,
		      size_t len)
{
	struct losses *l = arg;
	char branch[BRANCH_NAME_MAX + 1] = "";
	struct oplog_head head;
	struct table_op op;
	size_t i = 0;

	if (kind == JOURNAL_TABLE && table_op_decode(payload, len, &op) == 0)
		strcpy(branch, op.branch);
	else if (kind == JOURNAL_CHANGE && oplog_decode(payload, len, &head) == 0)
		memcpy(branch, head.branch, MIN(head.branch_len, (size_t)BRANCH_NAME_MAX));
	while (i < l->count && strcmp(l->list[i].branch, branch) != 0)
		i++;
	if (i == l->count) {
		if (os_grow(&l->list, &l->cap, l->count + 1, sizeof(*l->list)) < 0)
			return -ENOMEM;
		l->list[l->count++] = (struct loss){ 0 };
		strcpy(l->list[i].branch, branch);
	}
	l->list[i].records++;
	return 0;
}

static void report_lost(struct store *s)
{
	struct losses l = { 0 };
	int r = journal_each_lost(s->journal, count_lost, &l);

	for (size_t i = 0; i < l.count; i++) {
		const struct loss *loss = &l.list[i];
		const char *s_are = loss->records == 1 ? " is" : "s are";

		if (loss->branch[0])
			(void)note(&s->noter, 0, "branch '%s': %" PRIu64 " operation%s lost",
				   loss->branch, loss->records, s_are);
		else
			(void)note(&s->noter, 0, "snapshots: %" PRIu64 " drop%s lost",
				   loss->records, s_are);
	}
	if (r < 0)
		(void)note(&s->noter, 0, "what else is lost cannot be told: %s", err_str(r));
	free(l.list);
}

/*
 * A branch that lost something goes on from what it has: a later replay must neither do its old
 * records after all nor leave out the new ones behind them.
 */
static bool close_lost(struct store *s)
{
	LOCK_GUARD(&s->table);
	bool any = false;

	for (size_t i = 0; i < s->entry_count; i++) {
		struct entry *e = s->entries[i];

		if (!e->lost)
			continue;
		any = true;
		if (!e->live) /* else when its tree is frozen */
			e->lsn = log_lsn(s);
		entry_touched(s, e);
	}
	return any;
}

void store_commit_lost(struct store *s)
{
	int r = close_lost(s) ? store_sync(s) : 0;

	if (r == 0)
		return;
	/* The store is of use all the same: for reading, and to make room. */
	journal_sync_failed(s->journal);
	(void)note(&s->noter, 0,
		   "what cannot be recovered cannot be committed as lost either: %s; until it is, "
		   "a crash also loses what is done on those branches and was not synced",
		   err_str(r));
}

static void report(struct store *s, const struct journal_found *found)
{
	if (found->behind)
		(void)note(&s->noter, 0,
			   "the journal goes on behind what the index has, as in a store that was "
			   "copied while it was in use, or when its oldest segments are gone: what "
			   "it holds is given up");
	else if (found->damaged)
		(void)note(&s->noter, 0,
			   "the journal is damaged in segment %08" PRIx32 "%s: %" PRIu64
			   " operation%s before that place %s kept, those behind it are lost",
			   found->segment, found->missing ? ", which is missing" : "",
			   found->records, plural(found->records),
			   found->records == 1 ? "was" : "were");
	if (found->damaged)
		report_lost(s);
	if (found->lost)
		(void)note(&s->noter, 0,
			   "%" PRIu64 " operation%s not synced %s lost with the power",
			   found->lost, found->lost == 1 ? " that was" : "s that were",
			   found->lost == 1 ? "is" : "are");
	if (s->recovered_operations)
		(void)note(&s->noter, 0,
			   "recovered %" PRIu64 " operation%s of %" PRIu64
			   " branch%s after the daemon's end",
			   s->recovered_operations, plural(s->recovered_operations),
			   s->recovered_branches, s->recovered_branches == 1 ? "" : "es");
}

int store_replay(struct store *s, const struct store_options *options)
{
	struct journal_found found;
	uint64_t floor = highest_lsn(s);
	int r;

	s->replaying = true;
	{
		_cleanup_(replay_release) struct replay rp = { .store = s };

		r = oplog_new(NULL, "", NULL, &rp.way_back);
		if (r == 0)
			r = journal_read(s->journal, replay_one, &rp, &found);
		if (r == 0 && rp.put_back)
			r = stage_sync(s->stage); /* J10 */
		if (r == 0 && options && options->recovered)
			options->recovered(options->arg, s, MAX(floor, journal_lsn(s->journal)));
		if (r == 0)
			journal_start(s->journal, floor);
	}
	stage_adopted(s->stage);
	s->replaying = false;
	if (r < 0)
		return r;
	if (!options || !options->recovered)
		snap_drop_loose_ones(s);
	stage_hold(s->stage, journal_last_peek(s->journal));
	report(s, &found);
	return 0;
}
