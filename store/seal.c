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
 * Bytes in the stage that cannot be read fail a round like anything else, but after some rounds
 * they are given up (blob_seal): they are lost, as a chunk is that a repair gives up, and all else
 * is saved.
 *
 * After a failure the next round comes RETRY_NS later, whoever waits is told of the failure, and
 * one note is written for a whole row of equal failures. A commit that failed counts as not done:
 * the index sees to that before the next one. When it cannot, because it is broken, nothing is
 * written any more (`failed`) and the store on disk stays what its last good commit made it.
 */

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <sys/resource.h>
#include <time.h>

#include "store/base/os.h"
#include "store/chunk.h"
#include "store/copy.h"
#include "store/journal.h"
#include "store/room.h"
#include "store/stage.h"
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
	bool write;                /* goes into the transaction */
	bool sealed;               /* ... as it was taken, not as O3 cuts it down */
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
	uint64_t lsn;       /* the journal's last record when it was taken */
	uint64_t table_lsn; /* L1, as it is to be committed */
};

static void batch_init(struct batch *batch)
{
	*batch = (struct batch){ 0 };
	link_init(&batch->doomed);
	link_init(&batch->doomed_branches);
}

static void take_branch(struct batch *batch, struct entry *e)
{
	struct batch_branch *bb = &batch->branches[batch->branch_count++];

	*bb = (struct batch_branch){
		.entry = e,
		.serial = e->serial,
		.root = e->root ? root_ref(e->root) : NULL,
		.rec = { .lineage = e->lineage,
			 .changes = e->changes,
			 .root = e->committed.root,
			 .lsn = e->lsn },
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
	batch->lsn = log_lsn(s);
	s->work_ns = 0;
	s->urgent = false;
	return 0;
}

/* Gives back what was not done (O4) and lets go of the rest. */
static void batch_release(struct store *s, struct batch *batch, bool committed)
{
	pthread_mutex_lock(&s->table);
	link_move_all(&batch->doomed, &s->doomed);
	link_move_all(&batch->doomed_branches, &s->doomed_branches);
	for (size_t i = 0; !committed && i < batch->rewrite_count; i++)
		if (!batch->rewrites[i]->dropped)
			snap_mark_rewrite(s, batch->rewrites[i]);
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

static bool is_doomed(const struct batch *batch, uint64_t id)
{
	for (const struct link *l = batch->doomed.next; id && l != &batch->doomed; l = l->next)
		if (container_of(l, struct snap, link)->id == id)
			return true;
	return false;
}

static bool batch_is_whole(const struct batch *batch)
{
	return batch->sealed == batch->snap_count && batch->branches_sealed;
}

/* S3: does the record of a branch that is dropped, but not in this batch, name it? */
static bool named_by_dropped(const struct store *s, uint64_t id)
{
	for (const struct link *l = s->doomed_branches.next; l != &s->doomed_branches;
	     l = l->next) {
		const struct entry *e = container_of(l, struct entry, link);

		if (e->in_index && (e->committed.head == id || e->committed.undo == id))
			return true;
	}
	return false;
}

/* L4: what records that are not covered will want to find stays for a later batch. */
static void hold_back(struct store *s, struct batch *batch)
{
	for (struct link *l = batch->doomed_branches.next, *next; l != &batch->doomed_branches;
	     l = next) {
		next = l->next;
		if (container_of(l, struct entry, link)->used_lsn <= s->table_lsn)
			continue;
		link_remove(l);
		link_add_last(&s->doomed_branches, l);
	}
	for (struct link *l = batch->doomed.next, *next; l != &batch->doomed; l = next) {
		const struct snap *sn = container_of(l, struct snap, link);

		next = l->next;
		if (sn->used_lsn <= s->table_lsn && !named_by_dropped(s, sn->id))
			continue;
		link_remove(l);
		link_add_last(&s->doomed, l);
	}
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
	LOCK_GUARD(&s->table);
	batch->table_lsn = batch_is_whole(batch) ? batch->lsn : s->table_lsn;
	if (!batch_is_whole(batch))
		hold_back(s, batch);
	/*
	 * Also what was dropped since it was taken: records of the journal between batch and drop
	 * may name it (L4). It goes with the next batch.
	 */
	for (size_t i = 0; i < batch->sealed; i++) {
		struct snap *sn = batch->snaps[i];

		if (root_name(sn->root, &sn->name) == 0)
			encode_snap(batch, sn, &sn->name);
	}
	/*
	 * One that was dropped since it was taken as well: its record goes with the next batch, and
	 * until then must not name a parent that goes with this one.
	 */
	for (size_t i = 0; i < batch->rewrite_count; i++)
		encode_snap(batch, batch->rewrites[i], &batch->rewrites[i]->name);

	for (size_t i = 0; i < batch->branch_count; i++) {
		struct batch_branch *bb = &batch->branches[i];

		if (batch->branches_sealed) {
			/* S3: durable, or in this batch; also what was dropped since (see above) */
			bb->rec.head = snap_id_or_0(bb->head);
			bb->rec.undo = snap_id_or_0(bb->undo);
			bb->write = bb->sealed = true;
		} else {
			bb->write = encode_unsealed_branch(batch, bb);
		}
	}

	batch->seq_limit = ahead(s->next_seq, s->seq_limit, SEQ_AHEAD, mode);
	batch->ino_limit = ahead(s->next_ino, s->ino_limit, INO_AHEAD, mode);
	batch->lineage_limit = ahead(s->next_lineage, s->lineage_limit, LINEAGE_AHEAD, mode);
}

/* ---- committing ---- */

static int write_meta(struct index_txn *txn, const char *key, uint64_t value)
{
	uint8_t bytes[META_BYTES];

	put_le64(bytes, value);
	return index_put(txn, INDEX_META, key, strlen(key), bytes, sizeof(bytes));
}

static int write_deletions(struct index_txn *txn, const struct batch *batch)
{
	for (const struct link *l = batch->doomed.next; l != &batch->doomed; l = l->next) {
		uint8_t key[SNAP_KEY_BYTES];
		int r;

		snap_key_encode(container_of(l, struct snap, link)->id, key);
		r = index_del(txn, INDEX_SNAPS, key, sizeof(key));
		if (r < 0)
			return r;
	}
	for (const struct link *l = batch->doomed_branches.next; l != &batch->doomed_branches;
	     l = l->next) {
		const char *name = container_of(l, struct entry, link)->name;
		int r = index_del(txn, INDEX_BRANCHES, name, strlen(name));

		if (r < 0)
			return r;
	}
	return 0;
}

static int write_records(struct index_txn *txn, const struct batch *batch)
{
	int r;

	for (size_t i = 0; i < batch->record_count; i++) {
		const struct encoded *e = &batch->records[i];
		uint8_t key[SNAP_KEY_BYTES];

		snap_key_encode(e->id, key);
		r = index_put(txn, INDEX_SNAPS, key, sizeof(key), e->bytes, e->len);
		if (r < 0)
			return r;
	}
	for (size_t i = 0; i < batch->branch_count; i++) {
		const struct batch_branch *bb = &batch->branches[i];
		uint8_t bytes[BRANCH_RECORD_BYTES];

		if (!bb->write)
			continue;
		branch_record_encode(&bb->rec, bytes);
		r = index_put(txn, INDEX_BRANCHES, bb->entry->name, strlen(bb->entry->name), bytes,
			      sizeof(bytes));
		if (r < 0)
			return r;
	}
	return 0;
}

/* The index takes no more transactions, or what it has is not what its commits made. */
static bool is_for_good(int r)
{
	return r == -ERR_INDEX_FAILED || r == -ERR_INDEX_BROKEN;
}

/* One try. *ret_broken: no other one is to follow. */
static int write_batch(struct store *s, const struct batch *batch, bool *ret_broken)
{
	_cleanup_(index_abortp) struct index_txn *txn = NULL;
	int r;

	r = index_begin(s->index, &txn);
	if (r < 0) {
		*ret_broken = is_for_good(r);
		return r;
	}

	r = chunks_commit_into(s->chunks, txn);
	if (r < 0)
		return r;
	r = write_deletions(txn, batch); /* before the records: a name may be there again */
	if (r < 0)
		return r;
	r = write_records(txn, batch);
	if (r < 0)
		return r;
	r = write_meta(txn, "seq", batch->seq_limit);
	if (r == 0)
		r = write_meta(txn, "ino", batch->ino_limit);
	if (r == 0)
		r = write_meta(txn, "lineage", batch->lineage_limit);
	if (r == 0)
		r = write_meta(txn, "lsn", batch->table_lsn);
	if (r == 0)
		r = table_record(s->tables, txn);
	if (r < 0)
		return r;

	r = index_commit(&txn);
	*ret_broken = is_for_good(r);
	return r;
}

static bool anything_to_write(struct store *s, const struct batch *batch)
{
	uint64_t count, bytes;

	if (batch->record_count > 0 || !link_alone(&batch->doomed) ||
	    !link_alone(&batch->doomed_branches))
		return true;
	for (size_t i = 0; i < batch->branch_count; i++)
		if (batch->branches[i].write)
			return true;
	if (batch->seq_limit != s->seq_limit || batch->ino_limit != s->ino_limit ||
	    batch->lineage_limit != s->lineage_limit)
		return true;
	/*
	 * What was made and dropped again: its records are to be covered. Marks alone, too: where
	 * their segment goes, the index has to have said so (J6).
	 */
	if (batch->table_lsn > s->table_lsn)
		return true;
	chunks_pending(s->chunks, &count, &bytes);
	return count > 0;
}

static int batch_commit(struct store *s, const struct batch *batch, bool *ret_broken)
{
	int r;

	r = chunks_flush(s->chunks); /* O1 */
	if (r < 0)
		return r;

	for (;;) {
		r = write_batch(s, batch, ret_broken);
		if (r != -ERR_INDEX_FULL)
			break;
		r = index_grow(s->index);
		if (r < 0)
			return r;
	}
	if (r < 0)
		return r;

	chunks_committed(s->chunks);
	table_committed(s->tables);
	return 0;
}

static void branch_settle(struct batch_branch *bb)
{
	struct entry *e = bb->entry;

	if (!bb->write)
		return;
	e->committed = bb->rec;
	e->in_index = true;
	if (!bb->sealed || e->serial != bb->serial)
		return;
	e->dirty = false;
	if (e->root)
		root_unref(TAKE_PTR(e->root)); /* not the last reference: the batch has one */
}

/* The batch is in the index. */
static void batch_settle(struct store *s, struct batch *batch)
{
	struct link *l;

	LOCK_GUARD(&s->table);
	s->collectable = true;
	for (size_t i = 0; i < batch->sealed; i++)
		snap_became_durable(s, batch->snaps[i]);
	for (size_t i = 0; i < batch->branch_count; i++)
		branch_settle(&batch->branches[i]);
	while ((l = link_take_first(&batch->doomed)))
		snap_unref_locked(s, container_of(l, struct snap, link));
	while ((l = link_take_first(&batch->doomed_branches)))
		entry_unref_locked(s, container_of(l, struct entry, link));
	s->seq_limit = batch->seq_limit;
	s->ino_limit = batch->ino_limit;
	s->lineage_limit = batch->lineage_limit;
	s->table_lsn = batch->table_lsn;
}

static void tell_given_up(struct store *s)
{
	uint64_t bytes;

	if (stage_gave_up(s->stage, &bytes))
		(void)note(&s->noter, 0,
			   "%" PRIu64 " byte%s of files that were not saved yet cannot be read "
			   "from the disk and %s given up; 'plyfs check' names the files",
			   bytes, plural(bytes), bytes == 1 ? "is" : "are");
}

/* The journal and the stage let go of what is covered now. */
static void let_go(struct store *s)
{
	const uint64_t records = journal_bytes(s->journal);
	uint64_t covered;

	{
		LOCK_GUARD(&s->table);
		covered = log_covered(s);
	}
	/* Where that fails they stay for another round. */
	if (journal_release(s->journal, covered) && commit_copies(s) == 0)
		(void)journal_release(s->journal, covered);
	if (journal_bytes(s->journal) < records)
		room_freed(chunks_room(s->chunks));
	stage_release(s->stage, covered);
}

/* ---- a round ---- */

static void round_ended(struct store *s, int r, bool broken, bool live, uint64_t ticket)
{
	bool tell = false;

	{
		LOCK_GUARD(&s->table);
		s->rounds++;
		if (r < 0) {
			tell = r != s->noted_error;
			s->noted_error = r;
			s->errors++;
			s->last_error = r;
			s->retry_ns = now_ns() + RETRY_NS;
			if (s->work_ns == 0)
				s->work_ns = now_ns();
			s->failed = s->failed || broken;
		} else {
			s->noted_error = 0;
			s->retry_ns = 0;
			if (live)
				s->sync_done = MAX(s->sync_done, ticket);
		}
		pthread_cond_broadcast(&s->done);
	}

	if (broken)
		(void)note(
			&s->noter, 0,
			"a commit failed (%s): nothing is written to the store any more; what was "
			"committed before is safe, see to the disk and restart",
			err_str(r));
	else if (tell)
		(void)note(&s->noter, 0, "saving failed: %s, trying again each second", err_str(r));
}

int seal_round(struct store *s, enum seal_mode mode)
{
	struct batch batch;
	bool broken = false;
	int r, incomplete = 0;
	uint64_t ticket;

	batch_init(&batch);
	{
		LOCK_GUARD(&s->table);
		if (s->failed)
			return -ERR_STORE_FAILED;
		ticket = s->sync_wanted;
		if (mode != SEAL_FROZEN)
			s->live_ns = now_ns();
	}

	r = store_is_there(s);
	if (r < 0) {
		round_ended(s, r, false, mode != SEAL_FROZEN, ticket);
		return r;
	}
	stage_turn(s->stage);
	stage_give_back(s->stage, false); /* a round that finds no room fails */
	if (mode != SEAL_FROZEN)
		incomplete = branch_freeze_live(s);
	r = batch_take(s, &batch);
	if (r == 0) {
		int sealed = batch_seal(s, &batch);

		if (sealed < 0)
			incomplete = sealed; /* commit what can be: O3 */
		tell_given_up(s);
		batch_encode(s, &batch, mode);
		if (anything_to_write(s, &batch)) {
			r = batch_commit(s, &batch, &broken);
			if (r == 0)
				batch_settle(s, &batch);
		}
		if (r == 0)
			let_go(s);
	}
	batch_release(s, &batch, r == 0);

	if (r == 0)
		r = incomplete;
	round_ended(s, r, broken, mode != SEAL_FROZEN, ticket);
	return r;
}

/* ---- the thread ---- */

void sealer_kick(struct store *s)
{
	if (s->work_ns != 0)
		return;
	s->work_ns = now_ns();
	pthread_cond_signal(&s->wake);
}

static uint64_t live_due(const struct store *s)
{
	return s->live_ns + SEAL_INTERVAL_MS * NS_PER_MS;
}

/* Under the table lock: when the next round is due, and which. asked: a whole one, now. */
static uint64_t round_due(const struct store *s, uint64_t now, bool asked, enum seal_mode *ret_mode)
{
	uint64_t due = live_due(s);

	*ret_mode = asked || due <= now ? SEAL_LIVE : SEAL_FROZEN;
	if (s->work_ns != 0)
		due = MIN(due, s->work_ns + GATHER_NS);
	if (s->urgent || asked)
		due = now;
	return MAX(due, s->retry_ns);
}

static bool sync_is_asked(const struct store *s)
{
	return s->sync_wanted > s->sync_done;
}

bool seal_if_due(struct store *s)
{
	enum seal_mode mode;
	bool due;

	{
		LOCK_GUARD(&s->table);
		uint64_t now = now_ns();

		due = !s->failed && round_due(s, now, sync_is_asked(s), &mode) <= now;
	}
	if (due)
		(void)seal_round(s, mode); /* who waits for it hears of a failure */
	return due;
}

/* Under the table lock: sleeps until a round is due. ABSENT: none, but it is time to clean up. */
static int wait_for_work(struct store *s, enum seal_mode *ret_mode)
{
	for (;;) {
		uint64_t now = now_ns(), due = live_due(s);
		struct timespec until;

		if (s->stop) {
			*ret_mode = SEAL_LAST;
			return 0;
		}
		if (s->failed && due <= now) {
			s->live_ns = now;
			return ABSENT;
		}
		if (!s->failed) {
			due = round_due(s, now, sync_is_asked(s) || gc_is_asked(s), ret_mode);
			if (due <= now)
				return 0;
		}

		until = (struct timespec){ .tv_sec = due / (1000 * NS_PER_MS),
					   .tv_nsec = due % (1000 * NS_PER_MS) };
		(void)pthread_cond_timedwait(&s->wake, &s->table, &until); /* looks again anyway */
	}
}

static void *sealer_main(void *arg)
{
	struct store *s = arg;
	bool last = false;

	/* Of this thread only: Linux takes thread ids here. Not being nicer is no failure. */
	(void)setpriority(PRIO_PROCESS, (id_t)gettid(), SEALER_NICE);

	while (!last) {
		enum seal_mode mode = SEAL_FROZEN;
		int r;

		pthread_mutex_lock(&s->table);
		r = wait_for_work(s, &mode);
		last = s->stop;
		while (s->gc)
			pthread_cond_wait(&s->done, &s->table);
		s->sealing = r == 0;
		pthread_mutex_unlock(&s->table);

		if (r == 0) {
			r = seal_round(s, mode);
			if (mode != SEAL_FROZEN) { /* else too often to have any use of them */
				if (r == 0) /* what is sealed is committed */
					store_limit_nodes(s);
				copies_trim(s);
			}
			pthread_mutex_lock(&s->table);
			s->sealing = false;
			if (last)
				s->close_error = r;
			pthread_cond_broadcast(&s->done);
			pthread_mutex_unlock(&s->table);
			if (mode == SEAL_LIVE)
				gc_if_due(s);
		}
		snap_reap(s);
		branch_reap(s);
		nodes_give_back(s->nodes);
		stage_give_back(s->stage, false);
	}
	return NULL;
}

int sealer_start(struct store *s)
{
	sigset_t all, old;
	int r;

	s->live_ns = now_ns();
	s->work_ns = s->live_ns; /* the counters are to be committed ahead */

	/* Signals are for the program's own threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = pthread_create(&s->sealer, NULL, sealer_main, s);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (r != 0)
		return -r;
	s->sealer_runs = true;
	return 0;
}

int sealer_stop(struct store *s)
{
	if (!s->sealer_runs)
		return 0;
	{
		LOCK_GUARD(&s->table);
		s->stop = true;
		pthread_cond_signal(&s->wake);
	}
	pthread_join(s->sealer, NULL);
	s->sealer_runs = false;
	return s->close_error;
}

/* ---- waiting for it ---- */

int snap_wait(struct store *s, uint64_t id)
{
	LOCK_GUARD(&s->table);
	const uint64_t errors = s->errors;

	for (;;) {
		struct snap *sn = snap_lookup(s, id);

		if (!sn)
			return -ERR_SNAP_UNKNOWN;
		if (sn->durable)
			return 0;
		if (s->failed)
			return -ERR_STORE_FAILED;
		if (s->errors != errors)
			return s->last_error;
		if (!sn->batched) {
			s->urgent = true;
			pthread_cond_signal(&s->wake);
		}
		pthread_cond_wait(&s->done, &s->table);
	}
}

int store_sync(struct store *s)
{
	LOCK_GUARD(&s->table);
	const uint64_t errors = s->errors, ticket = ++s->sync_wanted;

	pthread_cond_signal(&s->wake);
	for (;;) {
		if (s->sync_done >= ticket)
			return 0;
		if (s->failed)
			return -ERR_STORE_FAILED;
		if (s->errors != errors)
			return s->last_error;
		pthread_cond_wait(&s->done, &s->table);
	}
}
