/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Mark and sweep, and the claims that keep it apart from whoever writes chunks.
 *
 * Why nothing that is needed is swept. Chunks become referenced in two ways. By *sealing*: that
 * waits (S6). Or by a tree taking over items of a state it can see: then the chunk is
 * reachable from that state. Take a tree that is live while we mark, and the moment F of its
 * freeze in our own round:
 *
 *  G1 What it held at F is marked, through entry->root or what is committed (S4).
 *  G2 What it is reset to later is a snapshot's state, looked up in the table under the branch's
 *     lock. Either that snapshot is still in the table when we list it after F, or it was dropped
 *     after F, or before; in the first case it is in the second list; otherwise the look-up came
 *     before F while the lock was held, so F waited for the reset and G1 holds, or the snapshot is
 *     in the first list, which was taken before F.
 *  G3 Snapshots and branches made after F have states that were marked by G1 or G2.
 *  G4 Whoever holds a state by other means has it pinned.
 *
 * The records on disk are safe too: the second list holds whatever the last transaction named,
 * except what it deleted, and branches are marked by their committed state beside the newest.
 *
 * An unreadable node or record stops gc before anything is removed: what lies behind it could not
 * be told from garbage. Check names the snapshots to drop.
 *
 * On a full disk the round may be unable to seal. Marking does not need that, only that nothing
 * is pending: frozen states are walked in memory, so gc goes on and makes room.
 */

#include <errno.h>

#include "store/base/os.h"
#include "store/chunk.h"
#include "store/nameset.h"
#include "store/store_internal.h"

/* ---- claims ---- */

/* Under the table lock: no other claim but imports; sealing has ended and does not begin. */
static void claim_locked(struct store *s)
{
	s->gc = true;
	while (s->sealing)
		pthread_cond_wait(&s->done, &s->table);
}

int claim_all(struct store *s)
{
	LOCK_GUARD(&s->table);

	if (s->gc || s->imports > 0)
		return -EBUSY;
	claim_locked(s);
	return 0;
}

void claim_records(struct store *s)
{
	LOCK_GUARD(&s->table);

	while (s->gc)
		pthread_cond_wait(&s->done, &s->table);
	claim_locked(s);
}

void claim_end(struct store *s)
{
	LOCK_GUARD(&s->table);

	s->gc = false;
	pthread_cond_broadcast(&s->done);
}

void claim_share(struct store *s)
{
	LOCK_GUARD(&s->table);

	s->gc = false;
	s->imports++;
	pthread_cond_broadcast(&s->done);
}

int store_import_begin(struct store *s)
{
	LOCK_GUARD(&s->table);

	while (s->gc)
		pthread_cond_wait(&s->done, &s->table);
	s->imports++;
	return 0;
}

void store_import_end(struct store *s)
{
	LOCK_GUARD(&s->table);

	s->imports--;
}

/* ---- marking ---- */

struct gc {
	struct store *store;
	const struct progress *progress;
	struct nameset marked;
};

static bool cancelled(const struct progress *p)
{
	return p && p->cancel && __atomic_load_n(p->cancel, __ATOMIC_RELAXED);
}

static int mark_chunk(void *arg, const struct name *name, bool is_node)
{
	struct gc *gc = arg;
	uint32_t number;
	int r;

	if (cancelled(gc->progress))
		return -ERR_CANCELLED;
	r = nameset_add(&gc->marked, name, &number);
	return r == EXISTS ? 1 : r;
}

static int mark_root(struct gc *gc, struct root *root)
{
	return root_mark(root, mark_chunk, NULL, gc);
}

static int mark_name(struct gc *gc, const struct name *name)
{
	_cleanup_(root_unrefp) struct root *root = NULL;
	int r;

	if (nameset_find(&gc->marked, name) != NAMESET_NONE)
		return 0;
	r = store_load_root(gc->store, name, &root);
	if (r < 0)
		return r;
	return mark_root(gc, root);
}

static int mark_snap(struct gc *gc, struct snap *sn)
{
	_cleanup_(root_unrefp) struct root *root = NULL;
	struct name name;

	{
		LOCK_GUARD(&gc->store->table);
		name = sn->name;
		if (!sn->durable)
			root = root_ref(sn->root);
	}
	return root ? mark_root(gc, root) : mark_name(gc, &name);
}

static int mark_snaps(struct gc *gc, const struct snap_list *list, bool tell)
{
	const struct progress *p = gc->progress;
	char text[SNAP_ID_SIZE];
	int r;

	for (size_t i = 0; i < list->count; i++) {
		r = mark_snap(gc, list->snaps[i]);
		if (r == -ERR_CANCELLED)
			return r;
		if (r < 0)
			return note(&gc->store->noter, r,
				    "gc: snapshot %s cannot be read (%s), nothing was removed; run "
				    "'plyfs check' and drop what it names",
				    snap_id_to_text(list->snaps[i]->id, text), err_str(r));
		if (tell && p && p->fn)
			p->fn(p->arg, "marking", i + 1, list->count);
	}
	return 0;
}

static int mark_entry(struct gc *gc, struct entry *e)
{
	_cleanup_(root_unrefp) struct root *root = NULL;
	struct name name;
	bool in_index;
	int r = 0;

	{
		LOCK_GUARD(&gc->store->table);
		name = e->committed.root;
		in_index = e->in_index;
		if (e->root)
			root = root_ref(e->root);
	}
	if (root)
		r = mark_root(gc, root);
	if (r == 0 && in_index)
		r = mark_name(gc, &name);
	return r;
}

static int mark_entries(struct gc *gc)
{
	_cleanup_(entry_list_release) struct entry_list list = { 0 };
	int r;

	r = entry_list_take(gc->store, &list);
	if (r < 0)
		return r;
	for (size_t i = 0; i < list.count; i++) {
		r = mark_entry(gc, list.entries[i]);
		if (r == -ERR_CANCELLED)
			return r;
		if (r < 0)
			return note(&gc->store->noter, r,
				    "gc: branch '%s' cannot be read (%s), nothing was removed; run "
				    "'plyfs check'",
				    list.entries[i]->name, err_str(r));
	}
	return 0;
}

static void roots_release(struct root ***roots)
{
	for (struct root **at = *roots; at && *at; at++)
		root_unref(*at);
	free(*roots);
}

static int mark_pins(struct gc *gc)
{
	_cleanup_(roots_release) struct root **roots = NULL;
	int r;

	{
		LOCK_GUARD(&gc->store->table);
		size_t count = 1;

		for (struct pin *pin = gc->store->pins; pin; pin = pin->next)
			count++;
		roots = os_calloc(count, sizeof(*roots));
		if (!roots)
			return -ENOMEM;
		count = 0;
		for (struct pin *pin = gc->store->pins; pin; pin = pin->next)
			roots[count++] = root_ref(pin->root);
	}
	for (struct root **at = roots; *at; at++) {
		r = mark_root(gc, *at);
		if (r < 0)
			return r;
	}
	return 0;
}

/* ---- the whole ---- */

static int refuse_damaged_records(struct store *s)
{
	bool snaps, branches;

	{
		LOCK_GUARD(&s->table);
		snaps = !link_alone(&s->bad);
		branches = !link_alone(&s->bad_branches);
	}
	if (snaps)
		return note(&s->noter, -ERR_SNAP_DAMAGED,
			    "gc: a snapshot record is damaged, nothing was removed; run 'plyfs "
			    "check' and drop the snapshots it names");
	if (branches)
		return note(&s->noter, -ERR_BRANCH_DAMAGED,
			    "gc: a branch record is damaged, nothing was removed; run 'plyfs check' "
			    "and drop the branches it names");
	return 0;
}

static bool is_marked(void *arg, const struct name *name)
{
	struct gc *gc = arg;

	return nameset_find(&gc->marked, name) != NAMESET_NONE;
}

static void sweep_progress(void *arg, uint64_t done, uint64_t total)
{
	struct gc *gc = arg;

	if (gc->progress && gc->progress->fn)
		gc->progress->fn(gc->progress->arg, "sweeping", done, total);
}

static int mark_all(struct gc *gc)
{
	_cleanup_(snap_list_release) struct snap_list before = { 0 }, after = { 0 };
	uint64_t pending, bytes;
	int r, sealed;

	r = snap_list_take(gc->store, &before);
	if (r < 0)
		return r;
	sealed = seal_round(gc->store, SEAL_LIVE);
	if (sealed < 0 && sealed != -ENOSPC && sealed != -EDQUOT)
		return sealed;
	chunks_pending(gc->store->chunks, &pending, &bytes);
	if (pending > 0)
		return sealed < 0 ? sealed : -EBUSY;

	r = snap_list_take(gc->store, &after);
	if (r < 0)
		return r;
	r = mark_snaps(gc, &after, true);
	if (r < 0)
		return r;
	r = mark_snaps(gc, &before, false); /* mostly the same: seen at their first node */
	if (r < 0)
		return r;
	r = mark_entries(gc);
	if (r < 0)
		return r;
	return mark_pins(gc);
}

static int gc_claimed(struct store *s, const struct progress *progress, struct gc_stats *ret)
{
	struct gc gc = { .store = s, .progress = progress };
	struct sweep_stats stats = { 0 };
	int r;

	r = refuse_damaged_records(s);
	if (r == 0)
		r = mark_all(&gc);
	if (r == 0)
		r = chunks_sweep(s->chunks, is_marked, &gc, sweep_progress, &stats);
	nameset_release(&gc.marked);
	if (r < 0)
		return r;

	*ret = (struct gc_stats){
		.chunks_kept = stats.chunks_kept,
		.chunks_dropped = stats.chunks_dropped,
		.bytes_before = stats.bytes_before,
		.bytes_after = stats.bytes_after,
		.packs_removed = stats.packs_removed,
		.packs_rewritten = stats.packs_rewritten,
	};
	return 0;
}

int store_gc(struct store *s, const struct progress *progress, struct gc_stats *ret)
{
	int r;

	r = claim_all(s);
	if (r < 0)
		return note(&s->noter, r, "gc: an import, a check or another gc is running");
	r = gc_claimed(s, progress, ret);
	claim_end(s);
	return r;
}
