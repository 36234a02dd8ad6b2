/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The store: one directory with packs, an index, stage files, snapshots and branches. One process
 * (the daemon) has it open at a time.
 *
 * The store knows trees of items; what an item means is fs/'s affair. It owns the *sealer*, a
 * background thread that turns frozen states into chunks and commits them: every snapshot soon
 * after it was made, every changed branch each SEAL_INTERVAL_MS. Making a snapshot therefore
 * costs no IO at all ("usable now, durable soon"); snap_wait() waits for durability.
 *
 * Lock order: gc lock (store) > branch lock > store's table lock > chunk, node and blob locks.
 */

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "store/hash.h"

struct chunks;
struct entry;
struct key;
struct nodes;
struct noter;
struct oplog;
struct root;
struct stage;
struct store;
struct tree;
struct val;

/* How often a changed branch is sealed and committed without being asked. */
#define SEAL_INTERVAL_MS 5000

#define LABEL_MAX 255       /* bytes of a label */
#define BRANCH_NAME_MAX 63  /* bytes of a branch name */
#define SNAP_ID_SIZE 13     /* 12 hex digits and NUL */
#define BRANCH_DEFAULT "main"

/* ---- life cycle ---- */

/*
 * Makes an empty store in a new or empty directory (mode 0700): format file, index, packs/,
 * stage/; no branch yet (import or fork makes the first one). What an interrupted init left behind
 * is taken over. -ERR_STORE_EXISTS, -ENOTEMPTY, -ERR_STORE_BUSY (another one is at it), ...
 */
int store_init(int dir_fd);

struct store_options {
	bool journal_off;   /* a killed daemon loses what was not sealed: for comparisons */
	unsigned commit_ms; /* between group commits; 0: only when asked */
	int lock_fd;        /* from store_lock, for somebody who outlives us; borrowed; 0: none */
	/*
	 * Called when all that is known of the past has come back, and before any record is
	 * appended: an operation was done if and only if the number of its record (journal.h) is
	 * not above lsn. May be NULL; who gives it calls snap_drop_loose_ones when all that went on
	 * from states of then has found them again (snap_pin, snap_need).
	 */
	void (*recovered)(void *arg, struct store *s, uint64_t lsn);
	void *arg;
	uint64_t node_budget; /* bytes; see store_keeper */
};
#define COMMIT_INTERVAL_MS 1000 /* without options: what a power cut may cost */
/* Without options. A tree of a million files that were all visited takes 200 MiB of nodes. */
#define NODE_BUDGET ((uint64_t)256 << 20)

/*
 * The lock alone, held until the last copy of the descriptor (in children as well) is closed:
 * -ERR_STORE_BUSY, and what a wrong format is (below).
 */
int store_lock(int dir_fd, int *ret_fd);
/*
 * Opens a store for this process: takes its lock (-ERR_STORE_BUSY), checks the format version
 * (-ERR_FORMAT_NEWER, -ERR_FORMAT_OLDER, -ERR_NOT_A_STORE, -ERR_FORMAT_DAMAGED), opens the
 * index, replays the journal, starts the sealer. dir_fd is borrowed for the call. noter is
 * copied. options may be NULL.
 */
int store_open_with(int dir_fd, const struct store_options *options, const struct noter *noter,
		    struct store **ret);
static inline int store_open(int dir_fd, const struct noter *noter, struct store **ret)
{
	return store_open_with(dir_fd, NULL, noter, ret);
}
/* Seals what is left, commits, closes. The failure of the last commit is returned; all is freed. */
int store_close(struct store *s);

int store_dir_fd(struct store *s); /* lent */
const uint8_t *store_uuid(struct store *s); /* 16 bytes, lent */
struct chunks *store_chunks(struct store *s);
struct nodes *store_nodes(struct store *s);
struct stage *store_stage(struct store *s);
const struct noter *store_noter(struct store *s);

/*
 * n inode numbers that were never given out for live changes: returns the first. Never reused
 * (restores included), so one number in two states of one lineage is one object. Atomic, no IO.
 */
uint64_t store_take_ino(struct store *s, uint64_t n);
/* Makes sure that store_take_ino returns at least `floor` from now on (after an import). */
void store_raise_ino(struct store *s, uint64_t floor);
/* A new lineage number (a tree that shares no objects with others: an import). Never 0. */
uint64_t store_take_lineage(struct store *s);

/*
 * Wakes the sealer and waits until everything frozen or changed before the call is durable; the
 * sealer's failure is returned. The caller holds no branch lock.
 */
int store_sync(struct store *s);
/*
 * Everything answered before the call survives the loss of power: a group commit of the journal,
 * which is less than sealing. The caller holds no branch lock.
 */
int store_flush(struct store *s);
/*
 * Is so much not in packs yet that whoever brings much should store_sync first? FAR_BEHIND: that
 * everybody should, as changes are about to be refused. No lock.
 */
enum store_behind { NOT_BEHIND, IS_BEHIND, FAR_BEHIND };
enum store_behind store_behind(struct store *s);
/* How many rounds of the sealer there were. No lock. */
uint64_t store_rounds(struct store *s);

/* ---- snapshots ---- */

enum snap_flags {
	SNAP_AUTO = 1,   /* kept by a restore for undo; only the newest per branch is shown */
	SNAP_IMPORT = 2, /* made by an import */
};

struct snap_info {
	uint64_t id;      /* 48 bits, scattered: shown as 12 hex digits, abbreviated like git's */
	uint64_t seq;     /* 1, 2, ...: order of creation */
	uint64_t parent;  /* 0: none */
	uint64_t lineage;
	int64_t time_ns;  /* since 1970 */
	uint32_t flags;   /* enum snap_flags */
	bool durable;
	bool has_root;    /* root is set (sealed) */
	struct name root;
	char branch[BRANCH_NAME_MAX + 1]; /* where it was made */
	char label[LABEL_MAX + 1];
};

char *snap_id_to_text(uint64_t id, char buf[static SNAP_ID_SIZE]);

/*
 * Registers a frozen state (borrowed; a reference is taken). No IO, and not in the journal: wait
 * for it (snap_wait) before it is answered. A parent that is gone by now counts as none.
 * -ENAMETOOLONG when the label or branch name is too long.
 */
int snap_create(struct store *s, struct root *root, uint64_t parent, uint64_t lineage,
		const char *branch, const char *label, uint32_t flags, uint64_t *ret_id);
int snap_get(struct store *s, uint64_t id, struct snap_info *ret); /* -ERR_SNAP_UNKNOWN */
/* Its state; given. In memory for the newest snapshots, else loaded on demand. */
int snap_root(struct store *s, uint64_t id, struct root **ret);
/*
 * By id text or unique prefix of it (at least 1 hex digit), "@label" for the newest snapshot with
 * that label, or a branch name for that branch's head snapshot; also "NAME~N" and "ID~N": N
 * parents up. -ERR_SNAP_UNKNOWN, -ERR_SNAP_AMBIGUOUS.
 */
int snap_find(struct store *s, const char *text, uint64_t *ret_id);
/* All snapshots in order of creation from one consistent list; non-zero stops and is returned. */
int snap_each(struct store *s, int (*fn)(void *arg, const struct snap_info *info), void *arg);
uint64_t snap_count(struct store *s); /* also of those that are not shown (snap_need) */
/* Waits until durable; the sealer's failure is returned. */
int snap_wait(struct store *s, uint64_t id);
/*
 * Forgets a snapshot: its children get its parent, branches headed by it get its parent as head.
 * The space comes back with gc. -ERR_SNAP_IN_USE while pinned by snap_pin. The caller holds no
 * branch lock. Takes also the id of a snapshot whose record is damaged.
 */
int snap_drop(struct store *s, uint64_t id);
/* What it would say now. */
int snap_drop_allowed(struct store *s, uint64_t id);
int snap_pin(struct store *s, uint64_t id);   /* mounted read-only */
void snap_unpin(struct store *s, uint64_t id);
/*
 * Something goes on from its state, and in another process would have to find it again by its id:
 * until snap_unneed that stays so, also when it is dropped, or was an automatic one that no undo
 * wants any more. Then snap_each and snap_find leave it out. -ERR_SNAP_UNKNOWN.
 */
int snap_need(struct store *s, uint64_t id);
void snap_unneed(struct store *s, uint64_t id); /* for each snap_need, whatever became of it */
/* Automatic ones that nothing wants: see store_options.recovered. */
void snap_drop_loose_ones(struct store *s);

/* Keeps a state's chunks from gc while something outside snapshots and branches still uses it. */
int store_pin_root(struct store *s, struct root *root);
void store_unpin_root(struct store *s, struct root *root);

/* ---- branches ---- */

/*
 * A mutable state with a name. One object per branch in the process, shared by reference.
 * Whoever reads the tree holds `lock` for reading, whoever changes it holds it for writing.
 */
struct branch {
	struct store *store;            /* immutable */
	char name[BRANCH_NAME_MAX + 1]; /* immutable */
	pthread_rwlock_t lock;
	struct tree *tree;     /* immutable pointer; its content under lock */
	uint64_t head;         /* under lock: snapshot the state continues, or 0 */
	uint64_t undo;         /* under lock: snapshot that undo would bring back, or 0 */
	uint64_t lineage;      /* under lock */
	uint64_t changes;      /* under lock: counts visible changes since head; fs/ adds to it */
	uint64_t restores;     /* under lock: how often the state was replaced, in this process */
	int mounted;           /* under the store's table lock: branch_mount() */
	/* private to store/ */
	struct oplog *log;   /* under lock; NULL: changes are not journalled */
	int refs;            /* under the store's table lock */
	struct entry *entry; /* immutable: what the store knows of the branch */
};

/*
 * Ends an operation on the tree and lets go of the write lock: what was put and deleted since it
 * was taken becomes one record of the journal, whole or not at all after a crash. Whoever changes
 * a branch's tree unlocks so, before the change is answered.
 */
void branch_unlock_changed(struct branch *b);
static inline void branch_unlock_changedp(struct branch **b)
{
	if (*b)
		branch_unlock_changed(*b);
}
/*
 * The operation failed: what it put and deleted, as far as it came, is taken back. Before the
 * unlock. (A branch without a journal stays as it is: it was dropped, or this is a comparison.)
 */
void branch_take_back(struct branch *b);
/* Scope guard: the write lock for an operation on the tree. */
#define BRANCH_CHANGE_GUARD(b)                                                                     \
	_cleanup_(branch_unlock_changedp) _unused_ struct branch *CONCAT(guard_, __LINE__) =       \
		(pthread_rwlock_wrlock(&(b)->lock), (b))

bool branch_name_ok(const char *name);
/* -ERR_BRANCH_UNKNOWN; -ERR_BRANCH_DAMAGED when its record is damaged (it can be dropped). */
int branch_open(struct store *s, const char *name, struct branch **ret);
void branch_close(struct branch *b);
/* Its recovery ended early (with a note): something that was answered is not there. */
bool branch_lost_something(struct branch *b);
static inline void branch_closep(struct branch **b)
{
	if (*b)
		branch_close(*b);
}
/*
 * A new branch with a state (borrowed); head may be 0. No IO before the reply. Opened: given.
 * A state that is neither a snapshot's, nor in the index, nor small is durable after the next
 * store_sync only: the same for branch_set (L5 in store_internal.h).
 * -ERR_BRANCH_NAME, -ERR_BRANCH_EXISTS; -ERR_SNAP_UNKNOWN when head is not (or no longer) there.
 */
int branch_create(struct store *s, const char *name, struct root *root, uint64_t head,
		  uint64_t lineage, struct branch **ret);
/* A new branch that continues another one's present state. The caller does not hold its lock. */
int branch_create_from(struct branch *source, const char *name, struct branch **ret);
/* The same, and closes it again. */
int branch_fork(struct branch *source, const char *name);
/* -ERR_BRANCH_IN_USE while mounted. The last branch may be dropped too. No branch lock is held. */
int branch_drop(struct store *s, const char *name);
/* Claims the branch for one mounted view: -ERR_BRANCH_IN_USE when it has one. */
int branch_mount(struct branch *b);
/* By a view, or a verb that works on it as one. */
bool branch_is_mounted(struct branch *b);
void branch_unmount(struct branch *b);

struct branch_info {
	char name[BRANCH_NAME_MAX + 1];
	uint64_t head, undo, lineage, changes;
	bool mounted;
	struct name root; /* of the last sealed state */
};
/* All branches in order of name from one list. The caller holds no branch lock. */
int branch_each(struct store *s, int (*fn)(void *arg, const struct branch_info *info), void *arg);

/*
 * Replaces a branch's whole state (import into it); takes the write lock. As in a restore, the
 * state that was left is kept for undo. -ERR_SNAP_UNKNOWN when head is neither 0 nor there.
 */
int branch_set(struct branch *b, struct root *root, uint64_t head, uint64_t lineage);

/*
 * 0: a snapshot of the present state was made. EXISTS: nothing changed since head, whose id is
 * returned; another branch may have that one as well, and who drops it drops it for both. Constant
 * time, no IO. Takes the write lock. label NULL or "" for none; a label given with nothing changed
 * makes a new snapshot all the same when it differs from head's.
 */
int branch_checkpoint(struct branch *b, const char *label, uint32_t flags, uint64_t *ret_id);

/*
 * The two states of a restore before it is made, for a caller that prepares everything that can
 * fail: the present one, and the target with its lineage. Both are given. The caller holds the
 * write lock.
 */
int branch_states_locked(struct branch *b, uint64_t target, struct root **ret_left,
			 struct root **ret_root, uint64_t *ret_lineage);
/*
 * The core of a restore; the caller holds the write lock and switches its own caches under it.
 * The state that is left is kept for undo (an automatic snapshot, unless it is a snapshot
 * already); then the tree continues from the target. The former automatic snapshot is dropped
 * unless it is the target, the parent of a snapshot that is not automatic, pinned, or another
 * branch's head or undo.
 * Restoring the head with nothing changed leaves undo as it is. ret_left: the state that was
 * left, given (store_pin_root it before unlocking, if it is used for longer).
 */
int branch_restore_locked(struct branch *b, uint64_t target, struct root **ret_left);
/* The same for who has seen that nothing with a name differs: that leaves undo as it is, too. */
int branch_restore_same_locked(struct branch *b, uint64_t target, struct root **ret_left);

/*
 * A whole restore, of a branch that nobody has mounted: a view has the kernel's caches to switch as
 * well (fs/view.h). Takes the write lock. -ERR_SNAP_UNKNOWN.
 */
int branch_restore(struct branch *b, uint64_t target);
/* The snapshot that undo brings back: -ERR_NO_UNDO. Takes the read lock. */
int branch_undo_id(struct branch *b, uint64_t *ret_id);
/*
 * Restores that; likewise for a branch that nobody has mounted. -ERR_NO_UNDO; *ret_id is set in all
 * other cases, failures as of branch_restore.
 */
int branch_undo(struct branch *b, uint64_t *ret_id);

/* ---- gc, check, dump, stats ---- */

struct progress {
	void (*fn)(void *arg, const char *what, uint64_t done, uint64_t total); /* may be NULL */
	void *arg;
	const bool *cancel; /* may be NULL; set by another thread: stop with -ERR_CANCELLED */
};

struct gc_stats {
	uint64_t chunks_kept, chunks_dropped, bytes_before, bytes_after;
	uint64_t packs_removed, packs_rewritten;
};
/*
 * Mark and sweep: seals what is frozen, marks from every snapshot, branch and pinned root, sweeps.
 * Views go on working, and so do imports that begin meanwhile; it does not begin while one of them
 * or a check runs (-EBUSY, noted). A state or record that cannot be read stops it before anything
 * is removed (noted): what lies behind the damage could not be told from garbage.
 */
int store_gc(struct store *s, const struct progress *progress, struct gc_stats *ret);
/*
 * So many bytes were refused for want of room: seals, and collects what may have become garbage
 * since the last gc. ABSENT: nothing was collected, as nothing can have, it would not be enough, an
 * import runs, or the last gc took too long for another one so soon. Worth another try in any case:
 * the round, or a gc that ran already, may have been enough. No lock is held.
 */
int store_make_room(struct store *s, uint64_t bytes);
/* The store is about to be closed: a gc that runs ends early, and none begins any more. */
void store_stop_gc(struct store *s);

/* An importer holds this while its chunks are not reachable from a branch yet. */
int store_import_begin(struct store *s); /* may wait, for a gc, until that knows what to keep */
void store_import_end(struct store *s);
/*
 * Meanwhile, now and then: when there is more than the budget in memory, all of the tree becomes
 * chunks (pending) and goes, to be loaded where it is wanted. *limit, at first 0: from how many
 * bytes of nodes on that is worth it again.
 */
int store_import_limit(struct store *s, struct tree *t, uint64_t *limit);

enum check_flags { CHECK_READ_DATA = 1 };
struct check_ops {
	/* One line for each damaged object: what it is and what is wrong. */
	void (*damage)(void *arg, const char *line);
	/* One line for each chunk that a repair gave up and a state still needs. May be NULL. */
	void (*lost)(void *arg, const char *line);
	/* store_repair: one line for each thing it did. */
	void (*mended)(void *arg, const char *line);
	/*
	 * A snapshot (id, branch NULL) or branch (id 0) is touched: items from..to (inclusive) of
	 * its state are unreadable, or the data of the item `from` (data true).
	 */
	void (*touched)(void *arg, uint64_t id, const char *branch, struct root *root,
			const struct name *damaged, const struct key *from_key,
			const struct key *to_key, bool data);
	void *arg;
};
struct check_stats {
	uint64_t snapshots, branches, nodes, chunks, bytes, unreferenced;
	uint64_t damaged;
	uint64_t lost; /* given up, no damage any more */
	uint64_t unsealed_snapshots; /* not durable when the check began: not looked at */
};
/*
 * Walks everything: format, the index's pages and entries, record headers, trees, references; with
 * CHECK_READ_DATA each chunk's bytes are read and hashed. May run while views are mounted.
 * 0: clean; EXISTS: damage was found and reported; < 0: the check itself could not be done.
 */
int store_check(struct store *s, unsigned flags, const struct check_ops *ops,
		const struct progress *progress, struct check_stats *ret);

/*
 * Checks all bytes, and mends what the store itself can prove: see repair.c. What is lost beyond
 * that is given up: the states stay as they are, and reading what is missing stays an error, known
 * as `lost`. Nothing may be mounted; close the store afterwards and open it again, it does not know
 * of records that came back. 0: clean now, with `lost` in the stats; EXISTS: damage is left;
 * -EBUSY: an import, a check or a gc is running; < 0: it could not be done.
 */
int store_repair(struct store *s, const struct check_ops *ops, const struct progress *progress,
		 struct check_stats *ret);

/* ---- salvage ---- */

struct salvage_stats {
	uint64_t packs, bytes, chunks, damaged; /* damaged: records whose bytes are not theirs */
	uint64_t snapshots, branches;
	uint64_t gaps;   /* in the list of changes to snapshots and branches */
	bool format;     /* the format file was written anew */
	char old[32];    /* where the old index is now, "" when there was none */
};
/*
 * Makes the index anew from the packs alone, for a store that does not open. The old one is kept
 * beside it. -ERR_STORE_BUSY; -ERR_NOT_A_STORE; -ERR_SALVAGE_NOTHING: the packs do not tell what
 * snapshots there were, nothing was changed.
 */
int store_salvage(int dir_fd, const struct noter *noter, const struct progress *progress,
		  struct salvage_stats *ret);
/*
 * Gives up what cannot be read of the journal of a store that nobody has open; one note for each
 * segment. The next open says what is lost by that. 0, or -ERR_STORE_BUSY, ...
 */
int store_give_up_journal(int dir_fd, const struct noter *noter);
/* Would store_open refuse for what salvage mends? 0: no, EXISTS: yes. Opens nothing. */
int store_is_broken(int dir_fd, const struct noter *noter);

/* For people: format, branches, snapshots, packs; with a snapshot id its tree. */
int store_dump(struct store *s, FILE *out, uint64_t snap_id,
	       void (*item_to_text)(FILE *out, const struct key *k, const struct val *v));

/*
 * Nodes of trees that were looked at stay in memory, until all take more than the budget. Then the
 * sealer lets go of the states of snapshots, and asks whoever keeps others (a view) to let go of
 * what is sealed (tree.h). let_go is called without locks, and while no gc is under way.
 */
struct store_keeper {
	struct store_keeper *next;
	void (*let_go)(void *arg);
	void *arg;
};
void store_keeper_add(struct store *s, struct store_keeper *k); /* borrowed until it is removed */
/* let_go is not running when this returns. Takes no locks that the caller may hold meanwhile. */
void store_keeper_remove(struct store *s, struct store_keeper *k);

/*
 * For who reads all of a state by a tree of his own, now and then: once there is more than the
 * budget in memory, he reads it apart (tree_read_apart), and keeps to a share of the budget. gc
 * must know of the state.
 */
int store_read_limit(struct store *s, struct tree *t);

struct store_stats {
	uint64_t snapshots; /* as snap_each shows them */
	uint64_t branches, chunks, packs, pack_bytes, unsealed_bytes, stage_bytes;
	uint64_t nodes, node_bytes, node_budget, unsealed_snapshots;
	uint64_t cache_bytes, cache_limit; /* of decoded chunks */
	uint64_t journal_bytes;
	uint64_t copies, copy_bytes; /* copy.h */
	uint64_t recovered_operations, recovered_branches; /* when the store was opened */
	bool failed;  /* stopped writing */
	bool removed; /* its directory was */
};
int store_stats(struct store *s, struct store_stats *ret);
