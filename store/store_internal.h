/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What the files of the store proper share: store.c (life cycle), record.c (bytes of records),
 * snap.c, entry.c, branch.c, checkpoint.c, seal.c, gc.c, check.c, dump.c.
 *
 * INVARIANTS
 *
 *  S1 A snapshot is *queued* (in memory only), in a *batch* (being committed) or *durable* (its
 *     record is in the index, and with it every chunk it needs). It moves forward only.
 *  S2 Snapshots become durable in order of creation, so a record's parent is durable before it or
 *     with it.
 *  S3 A record never names a snapshot that is not in the index: when a snapshot goes, the records
 *     of its children and of branches at it are rewritten in the transaction that deletes it.
 *  S4 entry->root, when set, is the newest frozen state of the branch and wants to be committed;
 *     otherwise that state is `committed`. What the store freezes a tree to or resets it to passes
 *     through entry->root under the table lock, together with its head. Others may freeze the tree
 *     too (a fork, a diff); the store's next freeze finds that by comparing states.
 *  S5 entry->head and ->undo are the truth; the copies in struct branch follow under its own lock.
 *  S6 Chunks are written only inside a *claim* (sealing or import), and removed only inside gc's,
 *     which begins without either. Its own thread seals in between; imports are let in once what
 *     they may find is listed (G2).
 *
 * What the journal says (records are numbered: LSN; see also J1 to J8 in journal_internal.h):
 *
 *  L1 Every table operation appends its record in the critical section that makes it, under the
 *     table lock; a batch is taken under that lock. So one number, table_lsn, says which of them a
 *     committed batch holds. It advances only when the whole batch was committed (O3).
 *  L2 Every operation on a branch's tree appends its record before the branch's write lock is let
 *     go of. entry->lsn is read under that lock when the state is frozen, and committed with it:
 *     records of the branch up to it are in the state. A checkpoint, a switch or a new branch
 *     freezes the state with its own record, so entry->lsn is never below a table record of the
 *     branch that is in the same commit.
 *  L3 Covered is what every later replay skips: table records up to table_lsn, change records of a
 *     branch up to the committed lsn. Replaying goes through the records in order and does the same
 *     steps again, so each table record finds the branches' trees as they were then.
 *  L4 A record that names a state by a snapshot's id or a branch needs that until it is covered.
 *     Batches that are committed in part (O3) therefore do not delete a snapshot or branch whose
 *     used_lsn is beyond table_lsn.
 *  L5 What is given to the store from outside the journal (an import: snap_create, a branch made of
 *     a state that no record can name) is durable before it is answered: the caller waits for it.
 *
 * Locks: a branch's lock comes before the table lock, which is held for table work only: never
 * across IO, never while a state's nodes are freed. So whoever wants to make a snapshot waits for
 * nobody. Claims are counters under the table lock, not locks: they may end in another thread.
 */

#include <pthread.h>
#include <stdatomic.h>

#include "store/base/err.h"
#include "store/base/note.h"
#include "store/base/util.h"
#include "store/index.h"
#include "store/store.h"
#include "store/table.h"
#include "store/tree.h"

#define FORMAT_VERSION 3
#define FORMAT_VERSION_READ 1 /* the oldest that is understood; it is raised at open */

/*
 * How many snapshots keep their state in memory: a restore to a recent one then stays a matter of
 * microseconds, while a search that makes millions of them does not fill the memory.
 */
#define ROOTS_IN_MEMORY 512

/*
 * ---- intrusive lists: a head is its own first and last; a link in no list points to itself ----
 */

struct link {
	struct link *prev, *next;
};

static inline void link_init(struct link *l)
{
	l->prev = l->next = l;
}
static inline bool link_alone(const struct link *l)
{
	return l->next == l;
}
static inline void link_add_last(struct link *head, struct link *l)
{
	l->prev = head->prev;
	l->next = head;
	head->prev->next = l;
	head->prev = l;
}
static inline void link_remove(struct link *l)
{
	l->prev->next = l->next;
	l->next->prev = l->prev;
	link_init(l);
}
static inline struct link *link_take_first(struct link *head)
{
	struct link *l = head->next;

	if (l == head)
		return NULL;
	link_remove(l);
	return l;
}
static inline size_t link_count(const struct link *head)
{
	size_t n = 0;

	for (const struct link *l = head->next; l != head; l = l->next)
		n++;
	return n;
}
/* All of `from` to the end of `to`. */
static inline void link_move_all(struct link *from, struct link *to)
{
	if (link_alone(from))
		return;
	from->next->prev = to->prev;
	to->prev->next = from->next;
	from->prev->next = to;
	to->prev = from->prev;
	link_init(from);
}

/* ---- records (record.c; FORMAT.md says what the bytes mean) ---- */

struct snap_record {
	uint64_t seq, parent, lineage;
	int64_t time_ns;
	uint32_t flags;
	struct name root;
	char branch[BRANCH_NAME_MAX + 1];
	char label[LABEL_MAX + 1];
};
#define SNAP_RECORD_HEAD 56
#define SNAP_RECORD_MAX (SNAP_RECORD_HEAD + BRANCH_NAME_MAX + LABEL_MAX)

struct branch_record {
	uint64_t head, undo, lineage, changes;
	struct name root;
	uint64_t lsn; /* records of the journal up to it are in root */
};
#define BRANCH_RECORD_BYTES 64
#define BRANCH_RECORD_BYTES_1 56 /* version 1: no lsn */
#define META_BYTES 8
#define SNAP_KEY_BYTES 8

size_t snap_record_encode(const struct snap_record *rec, uint8_t buf[static SNAP_RECORD_MAX]);
int snap_record_decode(const void *buf, size_t len, struct snap_record *ret);
void branch_record_encode(const struct branch_record *rec, uint8_t buf[static BRANCH_RECORD_BYTES]);
int branch_record_decode(const void *buf, size_t len, struct branch_record *ret);
void snap_key_encode(uint64_t id, uint8_t buf[static SNAP_KEY_BYTES]);
int snap_key_decode(const void *buf, size_t len, uint64_t *ret_id);

/* The format file: text for buf (FORMAT_TEXT_MAX), its length; and back. */
#define FORMAT_TEXT_MAX 256
size_t format_encode(const uint8_t uuid[static 16], char buf[static FORMAT_TEXT_MAX]);
/* EXISTS: done, but of an older version, which a daemon writes anew. */
int format_decode(const char *text, size_t len, uint8_t ret_uuid[static 16]);

/*
 * The id of a snapshot number: a permutation of 48-bit numbers keyed by the store's uuid, 0 left
 * out. Ids look random, so short prefixes tell neighbours apart, and can never repeat.
 */
uint64_t snap_id_of(uint64_t key, uint64_t seq);
#define SNAP_SEQ_MAX ((UINT64_C(1) << 48) - 1)

/* ---- the table ---- */

struct snap {
	uint64_t id, seq, lineage; /* immutable */
	int64_t time_ns;           /* immutable */
	/* all else under the table lock */
	int refs;       /* the table's (or doomed list's) and passing ones */
	int pins;       /* snap_pin */
	int needs;      /* snap_need */
	int holds;      /* how often a branch has it as head or undo */
	uint64_t used_lsn; /* the last record that names its state by its id (L4) */
	uint32_t flags; /* enum snap_flags */
	bool durable, batched, dropped; /* S1 */
	bool damaged;             /* only the id is known */
	struct name name;         /* of the root; valid when durable, set when encoded */
	struct root *root;        /* owned; NULL: load by name */
	struct snap *up;          /* parent; NULL: none */
	struct link children;     /* by `sibling` */
	struct link sibling;
	struct link link;         /* in store: queue, doomed, bad or dead */
	struct link lru;          /* in store.lru when durable and root is set */
	struct link rewrite;      /* in store.rewrite when the record is out of date */
	struct snap *hash_next;
	size_t pos;               /* in store.snaps */
	const char *label;        /* in text */
	char text[];              /* branch, NUL, label, NUL */
};

struct entry {
	int refs;            /* the table's (or doomed list's), the handle's, passing ones */
	struct branch *live;            /* the handle, NULL when not open */
	struct root *root;              /* owned; S4 */
	struct branch_record committed; /* what the index has; valid when in_index */
	bool in_index;
	struct snap *head, *undo; /* counted in holds */
	uint64_t lineage;
	uint64_t changes; /* at the newest frozen state */
	uint64_t lsn;     /* records up to it are in the newest frozen state (L2) */
	_Atomic uint64_t last_lsn; /* its last change record */
	uint64_t used_lsn; /* the last table record that wants its state (L4) */
	uint64_t serial;  /* counts every change of the above */
	bool dirty;       /* differs from what is committed */
	bool stale;           /* the handle's copies of head and undo are behind (S5) */
	bool dropped;
	bool damaged;         /* only the name is known */
	bool recovered;       /* the journal had something of it */
	bool lost;            /* a record of it could not be replayed: later ones are left out */
	struct link link;     /* in store: doomed_branches, bad_branches or dead_branches */
	struct link orphan;   /* in store.orphans: dropped, but the handle is open */
	char name[BRANCH_NAME_MAX + 1];
};

struct pin {
	struct pin *next;
	struct root *root; /* owned */
	unsigned count;
};

struct store {
	int dir_fd;  /* immutable */
	int lock_fd; /* immutable; the flock lives as long as it is open */
	struct noter noter;
	uint8_t uuid[16];
	uint64_t id_key; /* immutable; for snap_id_of */
	struct index *index;
	struct chunks *chunks;
	struct table *tables; /* used inside claims only */
	struct nodes *nodes;
	struct stage *stage;
	struct journal *journal;
	bool logging;   /* changes go to the journal; constant once the store is open */
	bool replaying; /* while it is opened */
	uint64_t recovered_operations, recovered_branches; /* immutable once open */

	bool counted; /* immutable: counters were committed before */
	_Atomic uint64_t next_ino, next_lineage;

	pthread_mutex_t copies_lock; /* no other is taken inside it */
	pthread_cond_t copied;       /* a copy was made, or could not be */
	struct making *making;       /* under copies_lock: copy.c */

	pthread_mutex_t table; /* everything from here on, unless said otherwise */
	uint64_t next_seq;
	struct slabs *slabs; /* immutable, owned: what snapshots lie in */
	struct snap **snaps; /* by seq, with NULL where one was dropped */
	size_t snap_slots, snap_capacity, snap_count;
	struct snap **buckets; /* by id; bucket_count is a power of two */
	size_t bucket_count;
	struct link queue;  /* not durable, in order of creation */
	size_t queue_length;
	struct link rewrite; /* records to write again */
	struct link doomed;  /* records to delete */
	struct link bad;     /* records that could not be read */
	struct link dead;    /* to be freed, by the sealer: freeing a state may take long */
	struct link lru;     /* least recently used first */
	size_t lru_length;

	struct entry **entries; /* sorted by name */
	size_t entry_count, entry_capacity;
	struct link orphans, doomed_branches, bad_branches, dead_branches;
	struct pin *pins;

	/* memory */
	pthread_mutex_t keepers_lock; /* before all others; held while keepers are asked */
	struct store_keeper *keepers;
	uint64_t node_budget; /* constant once the store is open */

	/* claims (S6) */
	bool sealing, gc;
	bool gc_admits; /* imports may begin beside it */
	unsigned imports;

	/* gc by itself (collect.c) */
	uint64_t gc_kept;     /* bytes of packs after the last one or, before that, at open */
	uint64_t gc_appended; /* what had been appended to them then */
	uint64_t gc_ended_ns; /* 0: none ran yet */
	uint64_t gc_next_ns;  /* not before this */
	uint64_t gc_patience_ns; /* how long somebody waits for that */
	uint64_t gc_asks, gc_answered; /* tickets of those who were refused */
	bool collectable;     /* something was committed since the last one looked */
	atomic_bool no_gc;    /* the store is about to be closed */

	/* group commits (commit.c) */
	pthread_mutex_t commit_lock; /* one at a time; before all others */
	pthread_t committer;
	bool committer_runs, stop_commits;
	pthread_cond_t commit_wake;
	uint64_t commit_ns; /* constant; 0: only when asked */

	/* the sealer */
	pthread_t sealer;
	bool sealer_runs;
	pthread_cond_t wake; /* for the sealer */
	pthread_cond_t done; /* for everyone who waits for the sealer or for a claim */
	bool stop;
	bool failed;
	bool urgent; /* someone waits for a snapshot */
	int close_error;
	uint64_t sync_wanted, sync_done; /* tickets */
	uint64_t work_ns;     /* since when something waits to be committed; 0: nothing */
	uint64_t live_ns;     /* when the live states were last frozen */
	_Atomic uint64_t retry_ns; /* not before this; 0: no failure. Read without the lock, too */
	uint64_t errors;      /* rounds that failed */
	_Atomic uint64_t rounds; /* and all of them. Read without the lock, too */
	int last_error;
	int noted_error;      /* of the present row of failures */
	uint64_t seq_limit, ino_limit, lineage_limit; /* as committed; inside a round */
	uint64_t table_lsn; /* table records up to it are in the index (L1) */
};

/* store.c */
int store_load_root(struct store *s, const struct name *name, struct root **ret);
/* For the sealer, inside its claim: lets go of nodes when there are too many. */
void store_limit_nodes(struct store *s);
/* 0, or -ERR_STORE_REMOVED. What is open would go on taking what is written, and lose it. */
int store_is_there(const struct store *s);
int store_read_format(int dir_fd, uint8_t ret_uuid[static 16]); /* as format_decode */
/* As format.new, synced, renamed; the caller syncs the directory. */
int store_write_format(int dir_fd, const uint8_t uuid[static 16]);

/* snap.c; all want the table lock */
struct snap *snap_lookup(struct store *s, uint64_t id);
int snap_new(struct store *s, uint64_t lineage, const char *branch, const char *label,
	     uint32_t flags, struct snap **ret);
/* Room for one more, so that snap_insert cannot fail. */
int snap_reserve(struct store *s);
/* Taken. Gives it its number and queues it. */
void snap_insert(struct store *s, struct snap *sn, struct snap *up, struct root *root);
/* The same with a number that it had before. */
void snap_insert_at(struct store *s, struct snap *sn, uint64_t seq, struct snap *up,
		    struct root *root);
void snap_unref_locked(struct store *s, struct snap *sn);
void snap_set_hold(struct snap **slot, struct snap *sn);
/* Nobody asks for it; it may be needed all the same (snap_need). Not shown, then. */
bool snap_is_unwanted(const struct snap *sn);
uint64_t snap_count_shown(const struct store *s); /* under the table lock */
/* As it is shown; NULL: it has none. */
struct snap *snap_parent(const struct snap *sn);
bool snap_is_bad(struct store *s, uint64_t id); /* its record is damaged */
/* Drops an automatic snapshot that nothing needs any more, and then maybe its parent. */
void snap_drop_loose(struct store *s, struct snap *sn);
void snap_mark_rewrite(struct store *s, struct snap *sn);
/* Does a snapshot hold this very state? */
bool snap_has_state(const struct snap *sn, const struct root *root);
static inline uint64_t snap_id_or_0(const struct snap *sn)
{
	return sn ? sn->id : 0;
}
int snap_root_locked(struct store *s, struct snap *sn, struct root **ret);
/* Its record, with sn->name, is in the index. */
void snap_became_durable(struct store *s, struct snap *sn);
/* Frees what is dead and what is beyond ROOTS_IN_MEMORY; without the table lock. */
void snap_reap(struct store *s);
/* Of durable snapshots, no state stays in memory; without the table lock. */
void snap_let_go(struct store *s);
void snap_free(struct snap *sn);
static inline void snap_freep(struct snap **sn)
{
	if (*sn)
		snap_free(*sn);
}
/* Loading at open. */
int snap_load_all(struct store *s);

/* entry.c; all want the table lock */
struct entry *entry_find(struct store *s, const char *name);
/* One whose record is damaged. */
struct entry *entry_find_bad(struct store *s, const char *name);
int entry_new(const char *name, struct entry **ret);
void entry_unref_locked(struct store *s, struct entry *e);
/*
 * Of one that is dropped and not open: who drops a snapshot looks for those that hold it among the
 * branches and the orphans only.
 */
void entry_let_snaps_go(struct store *s, struct entry *e);
/* Room for one more, so that entries_insert cannot fail. */
int entries_reserve(struct store *s);
void entries_insert(struct store *s, struct entry *e);
void entries_remove(struct store *s, struct entry *e);
void entry_touched(struct store *s, struct entry *e);
/* Makes *root the newest frozen state; *root becomes the former one, to be freed unlocked. */
void entry_set_root(struct store *s, struct entry *e, struct root **root, uint64_t changes);
/*
 * Is this the state that the entry has already? A tree that is not dirty does not tell: whoever
 * holds the lock may freeze it (a fork, a diff, a view), and only the entry's own root is sealed.
 */
bool entry_has_state(const struct entry *e, const struct root *root);
/* Loading at open. */
int branch_load_all(struct store *s);
/* Frees dead entries; without the table lock. */
void branch_reap(struct store *s);

/* branch.c */
void entry_free(struct entry *e);
static inline void entry_freep(struct entry **e)
{
	if (*e)
		entry_free(*e);
}
/* Brings the copies of a handle up to date (S5); under its write lock and the table lock. */
void handle_sync(struct branch *b);
/* Once at open: for handles that a recovery had no memory to close (branch_close). */
int branch_begin_logs(struct store *s);
/* Freezes every changed live tree (S4). Takes branch locks. */
int branch_freeze_live(struct store *s);
/* Returns when every operation that was under way on a branch is over. Takes branch locks. */
int branch_barrier(struct store *s);
/* Brings stale handles up to date. Takes branch locks. */
void branch_publish(struct store *s);

/*
 * checkpoint.c: what checkpoint and restore do once everything is decided; both locks are held.
 * *root becomes a state to free after unlocking. lsn: of the record that says so.
 */
void branch_apply_checkpoint(struct branch *b, struct snap *head, struct root **root, uint64_t lsn);
void branch_apply_switch(struct branch *b, struct snap *head, struct snap *undo, uint64_t lineage,
			 struct root **root, uint64_t lsn);

/*
 * log.c: the table's records. Room is set aside before anything changes, so that writing cannot
 * fail. Table lock held while writing. Without a journal all this does nothing (L5).
 */
struct table_op;
struct table_log {
	struct store *store;
	size_t reserved;
};
#define LOG_ITEMS_MAX 4096
int log_begin(struct store *s, struct table_log *ret);
uint64_t log_write(struct table_log *log, const struct table_op *op);
void log_end(struct table_log *log); /* for _cleanup_ */
/* A snapshot went. Not being able to say so is no failure: it was one that nothing needs. */
void log_loose_drop(struct store *s, uint64_t id);
/* Says how a record can name a state; snap: a snapshot that may have it, or NULL. */
void log_state(struct store *s, struct snap *snap, const struct root *root, bool committed,
	       struct table_op *op);
/* Is the state in the index, whole? No locks. */
bool log_is_committed(struct store *s, const struct root *root);
/* The branch's operation is over. Wants its write lock. */
void log_branch(struct branch *b);
/* The last record; 0 without a journal. */
uint64_t log_lsn(struct store *s);
/* Records up to it are covered. Table lock held. */
uint64_t log_covered(struct store *s);

/* commit.c */
int committer_start(struct store *s);
/* What copies in marks have is synced where it belongs: their segments may go (C4). */
int commit_copies(struct store *s);
void committer_stop(struct store *s);

/* replay.c: what the journal has and the index has not comes back; before the sealer runs. */
int store_replay(struct store *s, const struct store_options *options);
/* Once the sealer runs: waits for a commit if a branch lost something. */
void store_commit_lost(struct store *s);

/* seal.c */
enum seal_mode {
	SEAL_FROZEN, /* what is queued and frozen already */
	SEAL_LIVE,   /* freeze the live states first */
	SEAL_LAST,   /* at close: that, and exact counters */
};
int sealer_start(struct store *s);
/* Seals and commits what is left, ends the thread; the failure of its last round. */
int sealer_stop(struct store *s);
/* Under the table lock: something waits to be committed. */
void sealer_kick(struct store *s);
/* One round; the caller has a claim (sealing or gc) and not the table lock. */
int seal_round(struct store *s, enum seal_mode mode);
/* gc's, which keeps the sealer waiting, between two steps: one, if it is due (true). */
bool seal_if_due(struct store *s);

/*
 * gc.c: claims. claim_all keeps the sealer and imports away (waits for a gc; -EBUSY with an
 * import); claim_records keeps sealing away, claim_share lets it go on and keeps only gc away, as
 * an import does (store_import_end ends that).
 */
int claim_all(struct store *s);
/* Under the table lock, without another gc: sealing has ended and does not begin. */
void claim_locked(struct store *s);
void claim_end(struct store *s);
void claim_records(struct store *s);
void claim_share(struct store *s);
/* With claim_all, which the caller ends. */
int gc_claimed(struct store *s, const struct progress *progress, struct gc_stats *ret);

struct sweep_stats;
/* collect.c. The sealer's, between its rounds: a gc, if it is time for one or somebody asked. */
void gc_if_due(struct store *s);
bool gc_is_asked(const struct store *s); /* under the table lock */
/* gc.c's, at the end of each one. */
void collect_ended(struct store *s, int r, uint64_t began_ns, const struct sweep_stats *stats);
