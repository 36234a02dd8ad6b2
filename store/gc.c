/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Mark and sweep, and the claims that keep it apart from whoever writes chunks.
 *
 * Why nothing that is needed is swept. What to keep is listed at one instant L, under the table
 * lock: the states of all snapshots, of all branches (the newest frozen one and the committed one)
 * and the pinned ones. What is put since a moment before L is written down by whoever puts it, be
 * it stored or found in the index (chunks_collect), and kept, too.
 *
 *  G1 At L a live tree holds, besides blobs that are no chunks yet, only chunks of its branch's
 *     newest frozen state: our own round froze it before L, nothing was sealed since, and restore
 *     looks a target up, resets the tree and sets entry->root in one critical section (S4).
 *  G2 After L a tree gets chunks only from states that were listed, or that were frozen since
 *     from trees of which this holds as well, or that were put. Imports, whose trees no list has,
 *     begin after L: what they find in a snapshot was listed, the rest they put.
 *  G3 Whoever holds a state by other means has it pinned.
 *  G4 The records on disk name nothing else: they were committed before L, and what was dropped
 *     and not deleted yet is listed too.
 *  G5 A replay goes through states that no list has any more: a full disk lets a batch delete a
 *     snapshot and not commit the branch that was at it since, and a power cut may end the replay
 *     at a record whose file was deleted later. So what the records name that are not covered
 *     after L is kept as well. Those that came after L name chunks of trees (G2).
 *
 * Sealing goes on in gc's own thread, between two steps of it, so that who syncs, or waits for the
 * stage to empty, does not wait for all of a gc. Imports go on in theirs.
 *
 * An unreadable node or record stops gc before anything is removed: what lies behind it could not
 * be told from garbage. Check names the snapshots to drop, and its repair gives lost nodes up: what
 * only such a node led to can never be reached again, and goes.
 *
 * On a full disk the round may be unable to seal. Marking does not need that, only that nothing
 * is pending: unsealed states are walked in memory, so gc goes on and makes room.
 */

#include <errno.h>

#include "store/base/os.h"
#include "store/chunk.h"
#include "store/copy.h"
#include "store/journal.h"
#include "store/nameset.h"
#include "store/oplog.h"
#include "store/stage.h"
#include "store/store_internal.h"
#include "store/tableop.h"

/* ---- claims ---- */

void claim_locked(struct store *s)
{
	s->gc = true;
	while (s->sealing)
		pthread_cond_wait(&s->done, &s->table);
}

int claim_all(struct store *s)
{
	LOCK_GUARD(&s->table);

	while (s->gc)
		pthread_cond_wait(&s->done, &s->table);
	if (s->imports > 0)
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

	s->gc = s->gc_admits = false;
	pthread_cond_broadcast(&s->done);
}

/* gc has listed what to keep: imports need not wait for its end. */
static void claim_admit(struct store *s)
{
	LOCK_GUARD(&s->table);

	s->gc_admits = true;
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

	while (s->gc && !s->gc_admits)
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

/*
 * What the sealer, who sleeps, does after a round: what was dropped is let go of, or its unsealed
 * bytes would stay in the stage for seconds.
 */
static void reap(struct store *s, bool all)
{
	snap_reap(s);
	branch_reap(s);
	stage_give_back(s->stage, all);
}

struct gc {
	struct store *store;
	const struct progress *progress;
	struct nameset data, nodes; /* apart: a file may have the bytes, and the name, of a node */
	int unreadable; /* why a node could not be read, 0: none */
	bool full;      /* the disk: what little room there is, is for the sweep */
	bool seals;     /* rounds may be made */
	unsigned marked;
	uint64_t sealing_ns; /* how long all rounds took, which is the sealer's time and not gc's */
	uint64_t next_ns;    /* no round before: they take half of the time at most */
};

/* Marking so many takes between a tenth of a millisecond and, from the disk, some ten. */
#define MARK_STEP 1024

static bool cancelled(const struct gc *gc)
{
	const struct progress *p = gc->progress;

	return atomic_load_explicit(&gc->store->no_gc, memory_order_relaxed) ||
	       (p && p->cancel && __atomic_load_n(p->cancel, __ATOMIC_RELAXED));
}

static void round_made(struct gc *gc, uint64_t began_ns)
{
	uint64_t took_ns = now_ns() - began_ns;

	gc->sealing_ns += took_ns;
	gc->next_ns = began_ns + 2 * took_ns;
}

static void let_seal(void *arg)
{
	struct gc *gc = arg;
	const uint64_t began_ns = now_ns();

	if (!gc->seals || began_ns < gc->next_ns || !seal_if_due(gc->store))
		return;
	reap(gc->store, false);
	round_made(gc, began_ns);
}

static int mark_chunk(void *arg, const struct name *name, bool is_node)
{
	struct gc *gc = arg;
	uint32_t number;
	int r;

	if (cancelled(gc))
		return -ERR_CANCELLED;
	if (++gc->marked % MARK_STEP == 0)
		let_seal(gc);
	r = nameset_add(is_node ? &gc->nodes : &gc->data, name, &number);
	return r == EXISTS ? 1 : r;
}

static void mark_unreadable(void *arg, const struct name *name, int r)
{
	struct gc *gc = arg;

	if (r != -ERR_CHUNK_LOST)
		gc->unreadable = r;
}

/* A state to keep: in memory, by name, or both. */
struct source {
	struct root *root; /* referenced, may be NULL */
	struct name name;
	bool named;
	uint64_t snap; /* whose it is, for a note: a snapshot, a branch or neither */
	char branch[BRANCH_NAME_MAX + 1];
};

struct sources {
	struct source *list;
	size_t count;
};

static void sources_release(struct sources *sources)
{
	for (size_t i = 0; i < sources->count; i++)
		if (sources->list[i].root)
			root_unref(sources->list[i].root);
	free(sources->list);
}

static void add_snap(struct sources *sources, const struct snap *sn)
{
	sources->list[sources->count++] = (struct source){
		.root = sn->root ? root_ref(sn->root) : NULL,
		.name = sn->name,
		.named = sn->durable,
		.snap = sn->id,
	};
}

static void add_entry(struct sources *sources, const struct entry *e)
{
	struct source *source = &sources->list[sources->count++];

	*source = (struct source){
		.root = e->root ? root_ref(e->root) : NULL,
		.name = e->committed.root,
		.named = e->in_index,
	};
	strcpy(source->branch, e->name);
}

/* Everything to keep, at one instant. */
static int sources_take(struct store *s, struct sources *ret)
{
	LOCK_GUARD(&s->table);
	s->collectable = false; /* what comes from now on is for the next one */
	size_t room = s->snap_count + link_count(&s->doomed) + s->entry_count +
		      link_count(&s->orphans) + link_count(&s->doomed_branches);

	for (struct pin *pin = s->pins; pin; pin = pin->next)
		room++;
	ret->list = os_malloc((room + 1) * sizeof(*ret->list));
	if (!ret->list)
		return -ENOMEM;

	for (size_t i = 0; i < s->snap_slots; i++)
		if (s->snaps[i])
			add_snap(ret, s->snaps[i]);
	for (struct link *l = s->doomed.next; l != &s->doomed; l = l->next) {
		struct snap *sn = container_of(l, struct snap, link);

		if (!sn->damaged)
			add_snap(ret, sn);
	}
	for (size_t i = 0; i < s->entry_count; i++)
		add_entry(ret, s->entries[i]);
	for (struct link *l = s->orphans.next; l != &s->orphans; l = l->next)
		add_entry(ret, container_of(l, struct entry, orphan));
	for (struct link *l = s->doomed_branches.next; l != &s->doomed_branches; l = l->next) {
		struct entry *e = container_of(l, struct entry, link);

		if (!e->damaged)
			add_entry(ret, e);
	}
	for (struct pin *pin = s->pins; pin; pin = pin->next)
		ret->list[ret->count++] = (struct source){ .root = root_ref(pin->root) };
	return 0;
}

static int mark_source(struct gc *gc, const struct source *source)
{
	_cleanup_(root_unrefp) struct root *root = NULL;
	int r;

	if (source->root) {
		r = root_mark(source->root, mark_chunk, mark_unreadable, gc);
		if (r < 0 || gc->unreadable < 0)
			return r < 0 ? r : gc->unreadable;
	}
	if (!source->named || nameset_find(&gc->nodes, &source->name) != NAMESET_NONE)
		return 0;
	r = store_load_root(gc->store, &source->name, &root);
	if (r < 0)
		return r;
	r = root_mark(root, mark_chunk, mark_unreadable, gc);
	return r < 0 ? r : gc->unreadable;
}

static int note_unreadable(struct gc *gc, const struct source *source, int r)
{
	char id[SNAP_ID_SIZE];

	return note(&gc->store->noter, r,
		    "gc: the state of %s %s cannot be read (%s), nothing was removed; run 'plyfs "
		    "check' and drop what it names",
		    source->snap ? "snapshot" : source->branch[0] ? "branch" : "an open view",
		    source->snap ? snap_id_to_text(source->snap, id) : source->branch, err_str(r));
}

static int mark_sources(struct gc *gc, const struct sources *sources)
{
	const struct progress *p = gc->progress;
	int r;

	for (size_t i = 0; i < sources->count; i++) {
		r = mark_source(gc, &sources->list[i]);
		if (r == -ERR_CANCELLED || r == -ENOMEM)
			return r;
		if (r < 0)
			return note_unreadable(gc, &sources->list[i], r);
		if (p && p->fn)
			p->fn(p->arg, "marking", i + 1, sources->count);
	}
	return 0;
}

/* ---- what a replay would want (G5) ---- */

static int mark_data(void *arg, const struct name *name)
{
	struct gc *gc = arg;
	uint32_t number;
	int r = nameset_add(&gc->data, name, &number);

	return r < 0 ? r : 0;
}

/* One that is not there is of a record that no replay wants: another branch is behind. */
static int mark_named(struct gc *gc, const struct name *name)
{
	const struct source source = { .name = *name, .named = true };
	int r = chunk_find(gc->store->chunks, name);

	return r == 0 ? mark_source(gc, &source) : r < 0 ? r : 0;
}

static int mark_record(void *arg, uint64_t lsn, enum journal_kind kind, const uint8_t *payload,
		       size_t len)
{
	struct gc *gc = arg;
	struct oplog_head head;
	struct table_op op;
	int r;

	if (kind == JOURNAL_CHANGE) {
		r = oplog_decode(payload, len, &head);
		return r < 0 ? r : oplog_each_chunk(head.items, head.items_len, mark_data, gc);
	}
	r = table_op_decode(payload, len, &op);
	if (r == 0 && op.state == STATE_ITEMS)
		r = oplog_each_chunk(op.items, op.items_len, mark_data, gc);
	if (r == 0 && op.state == STATE_NAME)
		r = mark_named(gc, &op.root);
	return r;
}

/* No round meanwhile: it would let go of segments. */
static int mark_journal(struct gc *gc)
{
	struct store *s = gc->store;
	uint64_t covered;
	int r;

	{
		LOCK_GUARD(&s->table);
		covered = log_covered(s);
	}
	r = journal_each(s->journal, covered, mark_record, gc);
	if (r == 0 || r == -ERR_CANCELLED || r == -ENOMEM)
		return r;
	return note(&s->noter, r,
		    "gc: what the journal needs cannot be read (%s), nothing was removed; run "
		    "'plyfs check'",
		    err_str(r));
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
		return note(
			&s->noter, -ERR_BRANCH_DAMAGED,
			"gc: a branch record is damaged, nothing was removed; run 'plyfs check' "
			"and drop the branches it names");
	return 0;
}

static bool is_marked(void *arg, const struct name *name)
{
	struct gc *gc = arg;

	return nameset_find(&gc->data, name) != NAMESET_NONE ||
	       nameset_find(&gc->nodes, name) != NAMESET_NONE;
}

static int sweep_progress(void *arg, uint64_t done, uint64_t total)
{
	struct gc *gc = arg;

	if (gc->progress && gc->progress->fn)
		gc->progress->fn(gc->progress->arg, "sweeping", done, total);
	return cancelled(gc) ? -ERR_CANCELLED : 0;
}

/*
 * All that waits is sealed, or on a full disk what can be; what was dropped is deleted. From here
 * on what is put is kept.
 */
static int begin(struct gc *gc)
{
	const uint64_t began_ns = now_ns();
	uint64_t pending, bytes;
	int r = seal_round(gc->store, SEAL_LIVE);

	reap(gc->store, true);
	round_made(gc, began_ns);
	chunks_pending(gc->store->chunks, &pending, &bytes);
	if (pending > 0)
		return r < 0 ? r : -EBUSY; /* of a writer without a claim */
	gc->full = r == -ENOSPC || r == -EDQUOT;
	if (r < 0 && !gc->full)
		return r;
	return chunks_collect(gc->store->chunks);
}

static int mark_all(struct gc *gc)
{
	_cleanup_(sources_release) struct sources sources = { 0 };
	int r;

	r = sources_take(gc->store, &sources);
	if (r < 0)
		return r;
	if (!gc->full)
		claim_admit(gc->store);
	gc->seals = !gc->full;
	r = mark_sources(gc, &sources);
	gc->seals = false;
	return r < 0 ? r : mark_journal(gc);
}

/*
 * What salvage would want of the packs that go, durable in a newer one (8 of the README's order of
 * writes). On a full disk it goes with them, and the next commit writes it again. Otherwise it is
 * needed: of a record that was damaged since the store was opened it is the only copy on disk.
 */
static int keep_tables(struct store *s)
{
	int r = table_write_all(s->tables);

	if (r == 0 || r == -ENOSPC || r == -EDQUOT)
		return 0;
	return note(&s->noter, r,
		    "gc: the packs' copy of the tables cannot be written (%s), nothing was "
		    "removed; run 'plyfs check'",
		    err_str(r));
}

int gc_claimed(struct store *s, const struct progress *progress, struct gc_stats *ret)
{
	struct gc gc = { .store = s, .progress = progress };
	const struct sweeper sweeper = { is_marked, sweep_progress, let_seal, &gc };
	const uint64_t began_ns = now_ns();
	struct sweep_stats stats = { 0 };
	int r;

	r = refuse_damaged_records(s);
	if (r == 0)
		r = begin(&gc);
	if (r == 0)
		r = mark_all(&gc);
	if (r == 0)
		r = keep_tables(s);
	gc.seals = true; /* from here on on a full disk, too: the sweep makes room */
	if (r == 0)
		r = chunks_sweep(s->chunks, &sweeper, &stats);
	chunks_collect_end(s->chunks);
	nameset_release(&gc.data);
	nameset_release(&gc.nodes);
	collect_ended(s, r, began_ns + gc.sealing_ns, &stats);
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
		return note(&s->noter, r, "gc: an import or a check is running");
	copies_remove(s, false); /* first: a full disk has then room for the rest */
	r = gc_claimed(s, progress, ret);
	claim_end(s);
	return r;
}
