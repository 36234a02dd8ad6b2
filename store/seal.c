/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The sealer: turns frozen states into chunks and commits them with their records.
 *
 * A round: (1) freeze the live states, if it is time for that; (2) under the table lock take the
 * queue of snapshots, the changed branches, the records to rewrite and those to delete; (3) seal
 * the snapshots' states in order of creation, then the branches'; (4) sync the packs; (5) one index
 * transaction: chunk entries, deletions, snapshots, rewritten records, branches, counters;
 * (6) under the table lock note what is durable now, wake whoever waits.
 *
 * ORDER
 *
 *  O1 Bytes of a chunk are synced before the transaction that names it is begun (4 before 5).
 *  O2 A record is written only with everything it needs, in the same transaction or earlier ones:
 *     its state's chunks, its parent, a branch's head (S2, S3). The batch is taken in one critical
 *     section, so whatever a taken record refers to is durable or taken as well.
 *  O3 When sealing stops half-way, the snapshots before that point are committed all the same,
 *     and so are deletions (a full disk is mended by dropping); branches stay as they were, except
 *     that one loses its head if that is deleted.
 *  O4 What is not committed stays in memory exactly as it was, and is taken again by a later round.
 *
 * A crash between any two steps leaves the index as the last transaction made it; chunks that no
 * index entry names are garbage in a pack until gc rewrites it.
 *
 * After a failure the next round comes RETRY_NS later, whoever waits is told of the failure, and
 * one note is written for a whole row of equal failures. A failed commit is different when the
 * reason is not lack of room: nobody knows what reached the disk, so nothing is written any more
 * (`failed`) and the store on disk stays what its last good commit made it.
 */

#include <errno.h>
#include <sys/resource.h>
#include <time.h>

#include "store/base/os.h"
#include "store/chunk.h"
#include "store/store_internal.h"

#define NS_PER_MS UINT64_C(1000000)

/* Checkpoints come in bursts; waiting this long lets a burst share one commit (an fsync or two). */
#define GATHER_NS (20 * NS_PER_MS)

/* A full disk does not become empty faster than people act; a second is soon enough to notice. */
#define RETRY_NS (1000 * NS_PER_MS)

/* Below the user's programs, yet not starved by them: each step is about a quarter less time. */
#define SEALER_NICE 5

/*
 * Counters are committed ahead of what was handed out, so that a number handed out and lost in a
 * crash is not handed out again. A new limit is written when half the distance is used up. A
 * million inodes is more than a machine makes between two rounds; a crash then skips as many.
 */
#define SEQ_AHEAD (UINT64_C(1) << 16)
#define INO_AHEAD (UINT64_C(1) << 20)
#define LINEAGE_AHEAD (UINT64_C(1) << 8)

/* ---- a batch ---- */

struct batch_branch {
	struct entry *entry;       /* referenced */
	uint64_t serial;           /* of the entry when it was taken */
	struct root *root;         /* referenced; NULL: the state is committed already */
	struct branch_record rec;  /* head and undo are set when encoding */
	struct snap *head, *undo;  /* referenced, may be NULL */
};

struct encoded {
	uint64_t id;
	size_t len;
	uint8_t bytes[SNAP_RECORD_MAX];
};

struct batch {
	struct snap **snaps; /* referenced, in order of creation */
	size_t snap_count;
	size_t sealed; /* how many of them, from the front, are sealed */
	struct snap **rewrites; /* referenced */
	size_t rewrite_count;
	struct batch_branch *branches;
	size_t branch_count;
	bool branches_sealed;
	struct link doomed, doomed_branches; /* moved here from the store */
	struct encoded *records;             /* snaps, then rewrites */
	size_t record_count;
	uint64_t seq_limit, ino_limit, lineage_limit;
};

static void batch_init(struct batch *batch)
{
	*batch = (struct batch){ 0 };
	link_init(&batch->doomed);
	link_init(&batch->doomed_branches);
}

static size_t link_count(const struct link *head)
{
	size_t n = 0;

	for (const struct link *l = head->next; l != head; l = l->next)
		n++;
	return n;
}

static void take_branch(struct batch *batch, struct entry *e)
{
	struct batch_branch *bb = &batch->branches[batch->branch_count++];

	*bb = (struct batch_branch){
		.entry = e,
		.serial = e->serial,
		.root = e->root ? root_ref(e->root) : NULL,
		.rec = { .lineage = e->lineage, .changes = e->changes, .root = e->committed.root },
		.head = e->head,
		.undo = e->undo,
	};
	e->refs++;
	if (e->head)
		e->head->refs++;
	if (e->undo)
		e->undo->refs++;
}

/* Everything that waits, in one critical section (O2). -ENOMEM takes nothing. */
static int batch_take(struct store *s, struct batch *batch)
{
	LOCK_GUARD(&s->table);
	size_t rewrites = link_count(&s->rewrite), dirty = 0;

	for (size_t i = 0; i < s->entry_count; i++)
		dirty += s->entries[i]->dirty;

	batch->snaps = os_malloc((s->queue_length + 1) * sizeof(*batch->snaps));
	batch->rewrites = os_malloc((rewrites + 1) * sizeof(*batch->rewrites));
	batch->branches = os_malloc((dirty + 1) * sizeof(*batch->branches));
	batch->records = os_malloc((s->queue_length + rewrites + 1) * sizeof(*batch->records));
	if (!batch->snaps || !batch->rewrites || !batch->branches || !batch->records)
		return -ENOMEM;

	for (struct link *l = s->queue.next; l != &s->queue; l = l->next) {
		struct snap *sn = container_of(l, struct snap, link);

		sn->refs++;
		sn->batched = true;
		batch->snaps[batch->snap_count++] = sn;
	}

	/* Only of durable ones: a batch that failed may have left marks on others. */
	for (struct link *l = s->rewrite.next, *next; l != &s->rewrite; l = next) {
		struct snap *sn = container_of(l, struct snap, rewrite);

		next = l->next;
		link_remove(&sn->rewrite);
		if (!sn->durable)
			continue;
		sn->refs++;
		batch->rewrites[batch->rewrite_count++] = sn;
	}

	for (size_t i = 0; i < s->entry_count; i++)
		if (s->entries[i]->dirty)
			take_branch(batch, s->entries[i]);

	link_move_all(&s->doomed, &batch->doomed);
	link_move_all(&s->doomed_branches, &batch->doomed_branches);
	s->work_ns = 0;
	return 0;
}

/* Gives back what was not done and lets go of the rest. */
static void batch_release(struct store *s, struct batch *batch)
{
	pthread_mutex_lock(&s->table);
	link_move_all(&batch->doomed, &s->doomed);
	link_move_all(&batch->doomed_branches, &s->doomed_branches);
	for (size_t i = 0; i < batch->snap_count; i++) {
		batch->snaps[i]->batched = false;
		snap_unref_locked(s, batch->snaps[i]);
	}
	for (size_t i = 0; i < batch->rewrite_count; i++)
		snap_unref_locked(s, batch->rewrites[i]);
	for (size_t i = 0; i < batch->branch_count; i++) {
		struct batch_branch *bb = &batch->branches[i];

		if (bb->head)
			snap_unref_locked(s, bb->head);
		if (bb->undo)
			snap_unref_locked(s, bb->undo);
		entry_unref_locked(s, bb->entry);
	}
	pthread_mutex_unlock(&s->table);

	for (size_t i = 0; i < batch->branch_count; i++)
		if (batch->branches[i].root)
			root_unref(batch->branches[i].root);
	free(batch->snaps);
	free(batch->rewrites);
	free(batch->branches);
	free(batch->records);
}

/* ---- sealing ---- */

static int batch_seal(struct store *s, struct batch *batch)
{
	int r;

	for (; batch->sealed < batch->snap_count; batch->sealed++) {
		/* its root cannot go before it is durable, not even when it is dropped */
		r = root_seal(batch->snaps[batch->sealed]->root);
		if (r < 0)
			return r;
	}
	for (size_t i = 0; i < batch->branch_count; i++) {
		struct batch_branch *bb = &batch->branches[i];

		if (!bb->root)
			continue;
		r = root_seal(bb->root);
		if (r < 0)
			return r;
		r = root_name(bb->root, &bb->rec.root);
		if (r != 0)
			return r < 0 ? r : -ERR_STORE_FAILED; /* cannot be: it is sealed */
	}
	batch->branches_sealed = true;
	return 0;
}

/* ---- encoding ---- */

static void encode_snap(struct batch *batch, const struct snap *sn, const struct name *root)
{
	struct encoded *e = &batch->records[batch->record_count++];
	struct snap_record rec = {
		.seq = sn->seq,
		.parent = sn->up ? sn->up->id : 0,
		.lineage = sn->lineage,
		.time_ns = sn->time_ns,
		.flags = sn->flags,
		.root = *root,
	};

	strcpy(rec.branch, sn->text);
	strcpy(rec.label, sn->label);
	e->id = sn->id;
	e->len = snap_record_encode(&rec, e->bytes);
}

/* The id, if a record may name it: not of one that was dropped before it had a record (O2). */
static uint64_t nameable(const struct snap *sn)
{
	return sn && (!sn->dropped || sn->durable) ? sn->id : 0;
}

static bool is_doomed(const struct batch *batch, uint64_t id)
{
	for (const struct link *l = batch->doomed.next; id && l != &batch->doomed; l = l->next)
		if (container_of(l, struct snap, link)->id == id)
			return true;
	return false;
}

/* O3: the committed state stays, without what this batch deletes. Nothing to do: false. */
static bool encode_unsealed_branch(const struct batch *batch, struct batch_branch *bb)
{
	const struct entry *e = bb->entry;
	bool head = is_doomed(batch, e->committed.head), undo = is_doomed(batch, e->committed.undo);

	if (!e->in_index || (!head && !undo))
		return false;
	bb->rec = e->committed;
	if (head) {
		bb->rec.head = 0;
		bb->rec.changes++;
	}
	if (undo)
		bb->rec.undo = 0;
	return true;
}

static uint64_t ahead(uint64_t next, uint64_t limit, uint64_t distance, enum seal_mode mode)
{
	if (mode == SEAL_LAST)
		return next;
	return next + distance / 2 > limit ? next + distance : limit;
}

static void batch_encode(struct store *s, struct batch *batch, enum seal_mode mode)
{
	size_t kept = 0;

	LOCK_GUARD(&s->table);
	for (size_t i = 0; i < batch->sealed; i++) {
		struct snap *sn = batch->snaps[i];

		if (!sn->dropped && root_name(sn->root, &sn->name) == 0)
			encode_snap(batch, sn, &sn->name);
	}
	for (size_t i = 0; i < batch->rewrite_count; i++)
		if (!batch->rewrites[i]->dropped)
			encode_snap(batch, batch->rewrites[i], &batch->rewrites[i]->name);

	for (size_t i = 0; i < batch->branch_count; i++) {
		struct batch_branch *bb = &batch->branches[i];

		/* Those that stay are in front; the others still have references to give back. */
		if (bb->entry->dropped)
			continue;
		if (batch->branches_sealed) {
			bb->rec.head = nameable(bb->head);
			bb->rec.undo = nameable(bb->undo);
		} else if (!encode_unsealed_branch(batch, bb)) {
			continue;
		}
		if (i != kept) {
			struct batch_branch other = batch->branches[kept];

			batch->branches[kept] = *bb;
			*bb = other;
		}
		kept++;
	}
	batch->record_count = batch->record_count; /* snaps and rewrites */

	batch->seq_limit = ahead(s->next_seq, s->seq_limit, SEQ_AHEAD, mode);
	batch->ino_limit = ahead(s->next_ino, s->ino_limit, INO_AHEAD, mode);
	batch->lineage_limit = ahead(s->next_lineage, s->lineage_limit, LINEAGE_AHEAD, mode);
}
