/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The inside of a view, shared by view.c (verbs), vnode.c (node ids), resume.c (those of a former
 * process), around.c (who writes past the kernel's cache), switch.c (restore), notes.c (what the
 * kernel is to forget) and keep.c (what is let go of).
 *
 * Words:
 *  - *realm*: a tree that node ids are bound to. The current realm is the branch's tree. A restore
 *    leaves an old realm behind, a mutable fork of the state that was left, for the open files
 *    that go on with their old bytes; it goes with the last node id bound to it. Writes to it are
 *    seen by those descriptors only and are discarded with it.
 *  - *vnode*: one node id that the kernel knows: (realm, ino) and the kernel's reference count.
 *  - *hashed*: found by inode number; it is what a lookup of that number gives. A file's vnode that
 *    is not hashed is *retired*: it stays with its old realm until the kernel forgets it.
 *
 * Invariants:
 *  V1  At most one hashed vnode per inode number; its type never changes under its node id.
 *  V2  A node id is never given to another object: slots are reused with a new serial.
 *  V3  A hashed file vnode in the current realm has, in the current tree, the bytes that the kernel
 *      may have cached under its node id.
 *  V4  A hashed vnode in an older realm is *unsettled*: before it is used, vnode_settle compares
 *      its object in the realm's base with the current base, and adopts it (equal) or retires it.
 *  V5  Directory vnodes follow the tree (cwd survives a restore), by inode number within a lineage,
 *      else by path; where neither exists they are *dead*, as if removed, until a switch comes to a
 *      state that has one of the two: what the kernel knows of them has to be told anew before they
 *      may stand for another directory. They are never retired, but for those that the kernel
 *      removed by rmdir or rename: it holds them for dead ever after, also under a new name, so the
 *      next switch retires them and what comes back is another node id.
 *  V6  An inode with nlink 0 stays in the current tree only while a hashed vnode has it.
 *
 *  V7  What the memo (memo.h) has of each vnode is what is here; vnode_save says so after a change.
 *  V8  Two lineages (imports) may use one inode number. A directory whose number is that of another
 *      object now makes room (V1) and is *displaced*: as dead as one that the tree does not have.
 *      It gets its place back when a switch comes to its lineage, and others make room for it.
 *  V9  The kernel takes an answer with attributes later than we made it, and does not date all
 *      changes (request_undated): one that such a change has overtaken it would keep for good. So
 *      a vnode knows which thread was *told* its attributes, since the hold of view->lock in which
 *      they were read, until a change asks (view_was_told), after it was made and before it is
 *      answered: then the kernel takes no answer from before. Who makes the change has taken his.
 *      The first answer of all needs none of this: nobody else knows the node. CREATE and LINK
 *      neither: who changes it then waits for them in the kernel (not so for SETATTR of a
 *      directory, who renames that within its parent). What that writes back of a mapping waits
 *      for nobody, and says so each time, told or not; what LINK answers does not hold for that.
 *
 * Locks: view->lock (the branch's, so the store's sealer and the view agree) guards the trees: it
 * is held for reading to read, for writing to change or to switch. table_lock guards the vnode
 * table and the fields of vnodes; it is taken inside view->lock, never the other way, and nothing
 * sleeps under it except a node load in settle. switch_lock orders restores of one view. No lock
 * is held while the kernel is told anything but attributes.
 */

#include <pthread.h>

#include "fs/memo.h"
#include "fs/view.h"

struct realm {
	struct realm *next; /* under table_lock: of the view's */
	struct tree *tree; /* immutable pointer; the current realm's is the branch's (borrowed) */
	struct root *base; /* owned: the state when the realm was left; NULL in the current realm */
	uint64_t lineage;  /* of base */
	uint64_t snap;     /* that has base; 0 in the current realm */
	bool needs_snap;   /* the store keeps it for us */
	bool unnamed_lost; /* snap may have other files without a name than base, or other bytes */
	uint64_t refs;     /* under table_lock: vnodes bound to it, and 1 for being current */
	uint32_t left;	   /* view->switches when it was left; 0: before this process */
	bool owns_tree;
};

struct vnode {
	uint64_t node; /* immutable */
	uint32_t type; /* immutable: S_IFMT bits */
	bool hashed;   /* under table_lock */
	bool displaced; /* under table_lock: a directory that made room in the table (V8) */
	bool orphan;   /* under table_lock: purge when forgotten (V6) */
	bool adopted;  /* under table_lock: a file of an older realm, settled as equal (S3) */
	bool removed;  /* under table_lock: a directory that the kernel removed itself (V5) */
	bool changed;  /* under table_lock: in an older realm, since that is one */
	bool dead;     /* under table_lock: a directory that the state lacks (V5) */
	bool unnamed;  /* under table_lock: it was, or was listed; nobody looked since */
	bool new_mode; /* under table_lock: not by SETATTR, so the kernel has to take it from us */
	int32_t writer; /* under table_lock: who wrote to it last past the kernel's cache */
	uint32_t write;	/* under table_lock: the how many-th of such writes; 0: there was none */
	uint32_t taken_ms; /* under table_lock: when the kernel has its answer for sure */
	uint32_t dead_at;  /* under table_lock: where it is among the dead */
	uint32_t asked;	   /* under table_lock: a directory: view->switches when it last was */
	int32_t told;	   /* under table_lock: the thread that may not have its answer yet (V9) */
	uint64_t ino;        /* under table_lock; constant unless a directory is rebound by path */
	struct realm *realm; /* under table_lock, and view->lock held somehow */
	uint64_t nlookup;    /* under table_lock: the kernel's references */
	uint32_t opens;	     /* under table_lock: of view_opened */
	int32_t backing;     /* under table_lock: what those were answered with; 0 when none is */
	struct vnode *next;  /* under table_lock: hash chain */
};

#define TOLD_OTHERS (-1) /* vnode->told: more than one, or one that has no name here */

/* Threads that are remembered: others are taken for threads that have asked nothing. */
#define HEARD 64

/*
 * Requests that are told to look again (S6) at a time. They come again at once, and each is of
 * another thread: more than there are readers to answer so many before that (readers.c).
 */
#define REFUSED 256

/* Directories that are elsewhere in a restore's target, or in it alone: their numbers (moved.c). */
struct moved {
	uint64_t *ino;
	size_t n, cap;
	uint64_t lineage; /* of the target: whose numbers they are */
	bool asked;       /* somebody was told all of them */
};

struct view {
	struct store *store;   /* immutable */
	struct branch *branch; /* immutable; NULL for a snapshot view */
	uint64_t snap;         /* immutable: of a snapshot view */
	pthread_rwlock_t *lock;
	pthread_rwlock_t own_lock;  /* what lock points to in a snapshot view */
	pthread_mutex_t switch_lock;
	struct view_kernel kernel; /* as view_set_kernel left it; names_max: switch_lock */
	struct memo *memo; /* immutable, owned; NULL: nobody would go on after us */

	pthread_mutex_t table_lock;
	struct vnode **slots; /* under table_lock: by low half of the node id */
	uint32_t *serials;
	uint32_t *free_slots;
	struct vnode *spare; /* owned, NULL or for the next one: vnode_reserve */
	uint32_t n_slots, cap_slots, n_free;
	struct vnode **hash; /* under table_lock: by inode number */
	uint32_t hash_mask, n_hashed, n_displaced;
	uint32_t n_removed; /* under table_lock: of all of them */

	uint32_t switches; /* under lock: how many there were */
	bool untold; /* under switch_lock: a former process restored, and told nobody */
	struct notes *expired; /* under switch_lock, owned: names that the last restore expired */
	struct moved moved; /* under table_lock: by the last restores */
	uint32_t moved_lists; /* under table_lock: how many there were before that list */
	const struct notes *telling; /* under lock, borrowed: of a switch; NULL: all is told (S6) */
	uint64_t refused[REFUSED];   /* under lock: who was, at this switch, and is to ask again */
	size_t n_refused;
	struct vnode **dead; /* under table_lock, owned: those that are, in any order */
	size_t n_dead, cap_dead;

	/* What changes brought while the store was behind, in the round of that number (view.c). */
	_Atomic uint64_t brought, brought_in;

	uint32_t writes; /* past the kernel's cache: the last one; changed under table_lock */
	_Atomic uint64_t heard[HEARD]; /* by thread: it, and `writes` when it last asked anything */

	struct realm *realms; /* under table_lock: all of them */
	struct realm *cur; /* under lock */
	struct root *cur_base; /* under lock, owned: the last restore's target, for V4 */
	uint64_t cur_lineage; /* under lock */
	bool base_pinned; /* under table_lock: cur_base is, while others than cur are listed */
	uint64_t base_snap; /* under table_lock: so long it is kept for the next process; or 0 */
	struct store_keeper keeper;
};

/* Where a request's object lives, valid while view->lock is held. */
struct bound {
	struct fs fs;
	uint64_t ino;
	bool current; /* in the current realm */
	bool dead;    /* a directory that the current tree does not have */
};

/* ---- moved.c ---- */
void moved_release(struct moved *m);
/* Adds a directory if it moved, or was not there (before is NULL). -ENOMEM. */
int moved_compare(struct moved *m, const struct inode *before, const struct inode *after);
/*
 * Adds those that the kernel knows and that did so; m->lineage is set. No locks held. -ENOMEM: some
 * are missing.
 */
int moved_find(struct moved *m, struct view *v, const struct fs *before, const struct fs *after);
/* Takes them for view_moved, beside those that nobody asked for yet. */
void moved_keep(struct view *v, struct moved *m);

/* ---- view.c ---- */
/* Purges the orphans of the current tree that no node id has (V6). Lock held for writing. */
int view_purge_orphans(struct view *v);

/* ---- keep.c ---- */
void view_let_go(void *arg); /* a view; the keeper's let_go */

/* ---- vnode.c ---- */
int vnodes_init(struct view *v);
/*
 * What vnodes_init and vnodes_resume begin with: a table without vnodes, with room for n_slots.
 * -ENOMEM: vnodes_release takes away what was made.
 */
int vnodes_make_table(struct view *v, uint32_t n_slots);
void vnodes_forget_all(struct view *v); /* as if the kernel had sent every FORGET */
void vnodes_release(struct view *v);

/* table_lock held, or nobody else has the view yet: */
struct vnode *vnode_by_node(struct view *v, uint64_t node);
struct vnode *vnode_by_ino(struct view *v, uint64_t ino); /* hashed ones */
void vnode_hash(struct view *v, struct vnode *n); /* one that is not; nobody else has its number */
void vnode_unhash(struct view *v, struct vnode *n);
/* The current state is of another lineage than the one before: keeps V8. view->lock held. */
void vnodes_return(struct view *v);
void vnode_drop(struct view *v, struct vnode *n); /* takes one reference back */
/*
 * Binds n to a realm: takes a reference of its own to it, and gives the one to its former realm
 * back, which may free that. vnode_save is the caller's. view->lock held.
 */
void vnode_set_realm(struct view *v, struct vnode *n, struct realm *realm);
/* V5: it stays dead from now on (the flag). -ENOMEM: not, unless there is room for one more. */
int vnode_dies(struct view *v, struct vnode *n);
int vnodes_dead_room(struct view *v, size_t more);
/* It is so no more: the kernel is told anew what it knows of it. All of them: by epoch. */
void vnode_rises(struct view *v, struct vnode *n);
void vnodes_rise(struct view *v);
/*
 * V4: what is unsettled is compared with the current state. 0: n says how it went:
 *  - in the current realm: it may be used. A directory may have another inode number now (V5);
 *  - hashed no more: a file that differs (or whose former state is lost), or a directory that the
 *    kernel removed, was retired. It goes on in its realm;
 *  - hashed or displaced, in an older realm: a directory that the current state does not have;
 *  - it was settled, retired or dead before: nothing.
 * < 0: a node could not be read, or there is no memory: unsettled as before. view->lock held; may
 * load nodes. May free n's former realm. What changed is saved (V7).
 */
int vnode_settle(struct view *v, struct vnode *n);
void vnode_save(struct view *v, const struct vnode *n); /* V7 */
/* K1: from the new serial on the node id is not this slot's any more. */
void vnode_save_free(struct view *v, uint32_t slot);
/* vnode_bind, or (change) vnode_bind_to_change. view->lock held. */
int vnode_bind_locked(struct view *v, uint64_t node, bool change, struct bound *ret);
/* Another process finds its state by this snapshot (memo.h), whatever becomes of that. */
void realm_began_with(struct view *v, struct realm *realm, uint64_t snap);
/* Gives one reference back; with the last one the realm goes, and its tree and pin with it. */
void realm_unref(struct view *v, struct realm *realm);
/* V4: cur_base is another one (borrowed), pinned already or not; snap has it. */
void view_set_base(struct view *v, struct root *base, bool pinned, uint64_t snap);
void realm_list(struct view *v, struct realm *realm); /* a new one becomes one of the view's */
/*
 * A realm that goes on from a state (borrowed; a reference is taken, and it is pinned), in the
 * view's list. *ret: its one reference, given (realm_unref). -ENOMEM. No IO.
 */
int realm_new(struct view *v, struct root *base, uint64_t lineage, struct realm **ret);

/* table_lock not held, view->lock held: */

/* The object behind a node id. -ESTALE when the kernel sent an id that it should not know. */
int vnode_bind(struct view *v, uint64_t node, struct bound *ret);
/* vnode_bind, or (change) vnode_bind_to_change, for who tells its attributes (V9). */
int vnode_bind_to_tell(struct view *v, uint64_t node, bool change, struct bound *ret);
/* The same for verbs that need a directory of the current tree: -ENOTDIR, -ENOENT (dead). */
int vnode_bind_dir(struct view *v, uint64_t node, struct bound *ret);
/*
 * As vnode_bind, for a verb that changes the object: what is changed in an older realm is known to
 * be lost with the process.
 */
int vnode_bind_to_change(struct view *v, uint64_t node, struct bound *ret);
/* Counts one kernel reference on the vnode of an inode of the current tree; makes it if needed. */
int vnode_get(struct view *v, const struct inode *i, uint64_t *ret_node);
/*
 * The next vnode_get of a new inode cannot fail: for verbs that make one, before they change the
 * tree. The branch's lock is held for writing.
 */
int vnode_reserve(struct view *v);

/* ---- resume.c ---- */
/*
 * Instead of vnodes_init: the node ids that a former process had. The current realm is there.
 * -ERR_MEMO: the memo is damaged.
 */
int vnodes_resume(struct view *v);

/* ---- around.c ---- */
/* The thread whose request the calling one handles, as view_hears has it. */
int32_t view_asker(void);
/* table_lock not held, view->lock held: */
/* vnode_bind_to_change for a write; `past` as view_write has it. */
int vnode_bind_to_write(struct view *v, uint64_t node, const struct past_cache *past,
			struct bound *ret);
/*
 * By a former process, for all we know: its answer may not be taken yet, or the write comes again,
 * and before it a request that is told its size. Nobody else has the view yet.
 */
void vnode_was_written(struct view *v, struct vnode *n);
/*
 * Not by SETATTR, whose answer the kernel takes in any case: a write took set-id bits, or an access
 * ACL was set. From now on the kernel has to take the mode, with all the rest.
 */
void vnode_has_new_mode(struct view *v, uint64_t node);
