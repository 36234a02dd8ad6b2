/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Checkpoint and restore.
 *
 * Both hold the branch's lock and then the table lock, for a handful of pointer moves: freezing and
 * resetting a tree are constant time, old states are freed after unlocking or by the sealer. Inside
 * one such critical section a target is looked up, the tree reset to it and the entry's root set to
 * it, so gc finds the state either in the table or at the branch.
 *
 * Automatic snapshots (what a restore left behind) live as long as a branch has them as undo or
 * head, a child that is not automatic refers to them, they are pinned, or a view goes on from them
 * (snap_need); whoever ends such a use calls snap_drop_loose. One that a checkpoint hands out as
 * its answer becomes an ordinary snapshot, and one that is dropped while a view goes on from it an
 * automatic one.
 */

#include <errno.h>

#include "store/journal.h"
#include "store/store_internal.h"
#include "store/tableop.h"

/*
 * Before the table's lock: a snapshot that may be wanted, room for the record that tells of it, and
 * the branch's own changes into the journal ahead of that.
 */
static int begin(struct branch *b, const char *label, uint32_t flags, struct snap **ret,
		 struct table_log *log)
{
	int r;

	r = snap_new(b->store, b->lineage, b->name, label, flags, ret);
	if (r < 0)
		return r;
	r = log_begin(b->store, log);
	if (r < 0)
		return r;
	log_branch(b);
	return 0;
}

/* What a checkpoint hands out is no longer dropped by itself. */
static void keep_for_good(struct store *s, struct snap *sn, uint32_t flags, struct table_log *log)
{
	const struct table_op op = { .kind = TABLE_KEEP, .snap = sn->id };

	if (!(sn->flags & SNAP_AUTO) || (flags & SNAP_AUTO))
		return;
	sn->flags &= ~SNAP_AUTO;
	snap_mark_rewrite(s, sn);
	journal_receipt_id(sn->id);
	(void)log_write(log, &op);
}

void branch_apply_checkpoint(struct branch *b, struct snap *head, struct root **root, uint64_t lsn)
{
	snap_set_hold(&b->entry->head, head);
	b->head = head->id;
	b->changes = 0;
	entry_set_root(b->store, b->entry, root, 0);
	if (lsn)
		b->entry->lsn = lsn;
}

static uint64_t log_checkpoint(struct branch *b, const struct snap *sn, struct table_log *log)
{
	struct table_op op = {
		.kind = TABLE_CHECKPOINT,
		.seq = sn->seq,
		.flags = sn->flags,
		.lineage = sn->lineage,
		.time_ns = sn->time_ns,
	};

	if (b->entry->dropped)
		return 0; /* the branch is not there to be replayed */
	strcpy(op.branch, b->name);
	strcpy(op.label, sn->label);
	journal_receipt_id(sn->id);
	return b->entry->used_lsn = log_write(log, &op);
}

int branch_checkpoint(struct branch *b, const char *label, uint32_t flags, uint64_t *ret_id)
{
	_cleanup_(root_unrefp) struct root *root = NULL;
	_cleanup_(snap_freep) struct snap *sn = NULL;
	_cleanup_(log_end) struct table_log log = { 0 };
	struct store *s = b->store;
	struct entry *e = b->entry;
	struct snap *head;
	uint64_t lsn = 0;
	bool wanted, same = false;
	int r;

	WRITE_GUARD(&b->lock);
	r = begin(b, label, flags, &sn, &log);
	if (r < 0)
		return r;

	LOCK_GUARD(&s->table);
	handle_sync(b);
	head = e->head;
	wanted = !head || (sn->label[0] != '\0' && strcmp(sn->label, head->label) != 0);
	if (!wanted && b->changes == 0) {
		keep_for_good(s, head, flags, &log);
		*ret_id = head->id;
		return EXISTS;
	}

	r = snap_reserve(s);
	if (r < 0)
		return r;
	r = tree_freeze(b->tree, &root);
	if (r < 0)
		return r;

	if (!wanted && snap_has_state(head, root)) { /* changed, and changed back */
		keep_for_good(s, head, flags, &log);
		same = true;
	} else {
		head = TAKE_PTR(sn);
		snap_insert(s, head, e->head, root);
		lsn = log_checkpoint(b, head, &log);
	}
	branch_apply_checkpoint(b, head, &root, lsn);
	*ret_id = head->id;
	return same ? EXISTS : 0;
}

static bool root_is_empty(const struct root *root)
{
	static const struct name zero;
	struct name name;

	return root_name(root, &name) == 0 && name_eq(&name, &zero);
}

void branch_apply_switch(struct branch *b, struct snap *head, struct snap *undo, uint64_t lineage,
			 struct root **root, uint64_t lsn)
{
	struct entry *e = b->entry;

	snap_set_hold(&e->head, head);
	snap_set_hold(&e->undo, undo);
	e->lineage = lineage;
	entry_set_root(b->store, e, root, 0);
	if (lsn)
		e->lsn = lsn;
	b->head = snap_id_or_0(e->head);
	b->undo = snap_id_or_0(e->undo);
	b->lineage = lineage;
	b->changes = 0;
	b->restores++;
}

/* made: the automatic snapshot of the state that is left, or NULL: kept (if not NULL) has it. */
static uint64_t log_switch(struct branch *b, struct snap *target, const struct root *root,
			   bool committed, const struct snap *made, const struct snap *kept,
			   const struct snap *undo, uint64_t lineage, struct table_log *log)
{
	struct table_op op = {
		.kind = TABLE_SWITCH,
		.snap = snap_id_or_0(target),
		.seq = made ? made->seq : 0,
		.time_ns = made ? made->time_ns : 0,
		.kept = made ? 0 : snap_id_or_0(kept),
		.undo = snap_id_or_0(undo),
		.lineage = lineage,
	};
	uint64_t lsn;

	if (b->entry->dropped)
		return 0;
	strcpy(op.branch, b->name);
	log_state(b->store, target, root, committed, &op);
	journal_receipt_id(snap_id_or_0(made ? made : kept)); /* the state that is left */
	lsn = log_write(log, &op);
	b->entry->used_lsn = lsn;
	if (op.state == STATE_SNAP)
		target->used_lsn = lsn;
	return lsn;
}

/*
 * Makes the branch continue from `root`, the state of `target` (NULL: of no snapshot). Both locks
 * are held. *root becomes a state to free after unlocking; *fresh, an automatic snapshot that may
 * be used for the state that is left, is NULL if it was. committed: root is in the index. same: it
 * is the state that is left, but for what has no name.
 */
static int switch_state(struct branch *b, struct snap *target, struct root **root, bool committed,
			bool same, uint64_t lineage, struct snap **fresh, struct table_log *log,
			struct root **ret_left)
{
	struct store *s = b->store;
	struct entry *e = b->entry;
	struct root *left;
	struct snap *head = e->head, *undo = e->undo, *kept = NULL, *made = NULL, *new_undo;
	uint64_t lsn;
	int r;

	r = snap_reserve(s);
	if (r < 0)
		return r;
	r = tree_freeze(b->tree, &left);
	if (r < 0)
		return r;
	r = tree_reset(b->tree, *root);
	if (r < 0) {
		root_unref(left); /* frozen, still the branch's: the next round commits it (S4) */
		return r;
	}

	if (head && (b->changes == 0 || snap_has_state(head, left)))
		kept = head;
	if (!kept && !same && (head || !root_is_empty(left))) {
		kept = made = TAKE_PTR(*fresh);
		snap_insert(s, made, head, left);
	}
	/* Who is in that state already, by whichever snapshot, can undo what he could before. */
	same |= target && (kept == target || snap_has_state(target, left));
	new_undo = same ? undo : kept;

	lsn = log_switch(b, target, *root, committed, made, kept, new_undo, lineage, log);
	branch_apply_switch(b, target, new_undo, lineage, root, lsn);
	snap_drop_loose(s, head);
	snap_drop_loose(s, undo);

	*ret_left = left;
	return 0;
}

int branch_states_locked(struct branch *b, uint64_t target, struct root **ret_left,
			 struct root **ret_root, uint64_t *ret_lineage)
{
	_cleanup_(root_unrefp) struct root *left = NULL;
	struct snap *sn;
	int r;

	r = tree_freeze(b->tree, &left);
	if (r < 0)
		return r;

	LOCK_GUARD(&b->store->table);
	sn = snap_lookup(b->store, target);
	if (!sn)
		return -ERR_SNAP_UNKNOWN;
	r = snap_root_locked(b->store, sn, ret_root);
	if (r < 0)
		return r;
	*ret_lineage = sn->lineage;
	*ret_left = TAKE_PTR(left);
	return 0;
}

static int restore_locked(struct branch *b, uint64_t target, bool same, struct root **ret_left)
{
	_cleanup_(root_unrefp) struct root *root = NULL;
	_cleanup_(snap_freep) struct snap *fresh = NULL;
	_cleanup_(log_end) struct table_log log = { 0 };
	struct store *s = b->store;
	struct snap *sn;
	int r;

	r = begin(b, NULL, SNAP_AUTO, &fresh, &log);
	if (r < 0)
		return r;

	LOCK_GUARD(&s->table);
	handle_sync(b);
	sn = snap_lookup(s, target);
	if (!sn)
		return -ERR_SNAP_UNKNOWN;
	r = snap_root_locked(s, sn, &root);
	if (r < 0)
		return r;
	return switch_state(b, sn, &root, false, same, sn->lineage, &fresh, &log, ret_left);
}

int branch_restore_locked(struct branch *b, uint64_t target, struct root **ret_left)
{
	return restore_locked(b, target, false, ret_left);
}

int branch_restore_same_locked(struct branch *b, uint64_t target, struct root **ret_left)
{
	return restore_locked(b, target, true, ret_left);
}

int branch_restore(struct branch *b, uint64_t target)
{
	_cleanup_(root_unrefp) struct root *left = NULL;
	WRITE_GUARD(&b->lock);

	return branch_restore_locked(b, target, &left);
}

int branch_undo_id(struct branch *b, uint64_t *ret_id)
{
	READ_GUARD(&b->lock);

	if (!b->undo)
		return -ERR_NO_UNDO;
	*ret_id = b->undo;
	return 0;
}

int branch_undo(struct branch *b, uint64_t *ret_id)
{
	int r = branch_undo_id(b, ret_id);

	return r < 0 ? r : branch_restore(b, *ret_id);
}

int branch_set(struct branch *b, struct root *root, uint64_t head, uint64_t lineage)
{
	_cleanup_(root_unrefp) struct root *to = root_ref(root), *left = NULL;
	_cleanup_(snap_freep) struct snap *fresh = NULL;
	_cleanup_(log_end) struct table_log log = { 0 };
	struct store *s = b->store;
	bool committed = log_is_committed(s, root);
	struct snap *sn;
	int r;

	WRITE_GUARD(&b->lock);
	r = begin(b, NULL, SNAP_AUTO, &fresh, &log);
	if (r < 0)
		return r;

	LOCK_GUARD(&s->table);
	handle_sync(b);
	sn = snap_lookup(s, head);
	if (head != 0 && !sn)
		return -ERR_SNAP_UNKNOWN;
	return switch_state(b, sn, &to, committed, false, lineage, &fresh, &log, &left);
}
