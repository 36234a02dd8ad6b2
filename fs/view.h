/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A view: a branch (or a snapshot, read-only) as the kernel sees it. It speaks node ids where
 * fs.h speaks inode numbers, counts the kernel's lookups, keeps unlinked files alive until they are
 * forgotten, and switches to another state under the kernel's warm caches (switch.c).
 *
 * The FUSE adapter (fuse.c) decodes a request, calls one verb here, sends one reply. Nothing here
 * includes FUSE headers; a unit test drives a view with a recording `struct view_kernel`.
 *
 * All verbs return 0 or a failure that err_errno() folds to the errno for the reply. They are safe
 * from any thread. None is called with a lock held; none holds a lock while it calls the kernel.
 */

#include "fs/fs.h"
#include "store/store.h"

struct memo;
struct view;

#define ROOT_NODE 1 /* FUSE_ROOT_ID */

/* How a view tells the kernel that cached things changed. Called without locks held. */
struct view_kernel {
	/*
	 * Forget one name (positive or negative). expire: only its timeout, keep what hangs below.
	 */
	int (*inval_entry)(void *arg, uint64_t parent, const char *name, size_t len, bool expire);
	/*
	 * Forget the name of a file that no path leads to any more, and tell who watches it; NULL
	 * where nobody is to be told.
	 */
	int (*inval_gone)(void *arg, uint64_t parent, uint64_t node, const char *name, size_t len);
	/*
	 * off < 0: attributes only, which waits for nobody and may be called with locks held; else
	 * also cached pages from off on (len 0: to the end). ABSENT: the kernel has no such inode.
	 */
	int (*inval_inode)(void *arg, uint64_t node, int64_t off, int64_t len);
	/* Every cached name must be looked up again; NULL where the kernel cannot. */
	int (*inc_epoch)(void *arg);
	/*
	 * What view_opened counted as `id` is open no more. Does not wait; called with a lock held.
	 */
	void (*backing_close)(void *arg, int32_t id);
	/* Called first: the calling thread may wait now, another one must serve meanwhile. */
	void (*will_block)(void *arg);
	void *arg;
	/* A difference of more names and objects than this is told by epoch; 0: the default. */
	unsigned names_max;
};

/*
 * Opens a view of a branch (claims it: branch_mount) or of a snapshot (read-only). memo: what it
 * has to remember beyond this process, taken (also on failure); when it comes from a former one,
 * the view goes on from there. NULL: nothing is remembered.
 */
int view_open(struct store *store, const char *branch, struct memo *memo, struct view **ret);
int view_open_snapshot(struct store *store, uint64_t snap, struct memo *memo, struct view **ret);
/* The kernel has let go (unmounted): purges orphans, releases the branch. */
void view_close(struct view *v);
static inline void view_closep(struct view **v)
{
	if (*v)
		view_close(*v);
}
/* Set once, before the first request. */
void view_set_kernel(struct view *v, const struct view_kernel *k);

bool view_read_only(const struct view *v);
struct store *view_store(struct view *v);
struct branch *view_branch(struct view *v); /* lent; NULL for a snapshot view */
uint64_t view_snapshot(const struct view *v); /* 0 for a branch view */
struct memo *view_memo(struct view *v); /* lent; may be NULL */

/* What a successful lookup-like verb gives; it counts one kernel reference (forget undoes it). */
struct entry {
	uint64_t node;
	struct inode inode;
};

/* Takes back n references of a node; at 0 it is gone, and purged if it was unlinked. */
void view_forget(struct view *v, uint64_t node, uint64_t n);

int view_lookup(struct view *v, uint64_t dir, const char *name, size_t len, struct entry *ret);
int view_getattr(struct view *v, uint64_t node, struct inode *ret);
int view_setattr(struct view *v, uint64_t node, const struct fs_set *set, struct inode *ret);
int view_readlink(struct view *v, uint64_t node, char *buf, size_t cap, size_t *ret_len);
/* n->dir is a node id here. */
int view_create(struct view *v, const struct fs_new *n, struct entry *ret);
int view_tmpfile(struct view *v, const struct fs_new *n, struct entry *ret);
int view_link(struct view *v, uint64_t node, uint64_t dir, const char *name, size_t len,
	      struct entry *ret);
int view_unlink(struct view *v, uint64_t dir, const char *name, size_t len);
int view_rmdir(struct view *v, uint64_t dir, const char *name, size_t len);
int view_rename(struct view *v, uint64_t odir, const char *oname, size_t olen, uint64_t ndir,
		const char *nname, size_t nlen, unsigned flags);

/* The node at a name, if the kernel knows it already, or 0. Counts no reference. */
uint64_t view_known(struct view *v, uint64_t dir, const char *name, size_t len);
/*
 * Was another thread than the one that asks now (view_hears) told attributes of the node since this
 * was asked last? It may take them only now. For a change that the kernel does not date, between
 * it and its answer; not for a READ or WRITE, of which it is not known who asks. False if the node
 * is unknown.
 */
bool view_was_told(struct view *v, uint64_t node);

/*
 * Opens of a file, where they are counted (pass.c), with what they were answered with, an `id`.
 * Counts one: 0: it is the first, answered with `mine`; EXISTS: there are others, *ret_id is
 * theirs. With mine < 0 the first one is not counted: ABSENT. A count may be too high after a kill.
 */
int view_opened(struct view *v, uint64_t node, int32_t mine, int32_t *ret_id);
/* Counts one less: their id when it was the last, or 0. */
int32_t view_closed(struct view *v, uint64_t node);

/* Of a snapshot's view: 1 when another snapshot has the same object under the inode number. */
int view_same_in(struct view *v, uint64_t ino, uint64_t snap);

/* Under the read lock: where the bytes are; then segments_read without it. */
int view_map(struct view *v, uint64_t node, uint64_t off, uint64_t len, struct segments *ret);

/* Who writes past the kernel's cache. */
struct past_cache {
	int32_t thread; /* as his request names him; 0: one that has no name here */
	bool sync;	/* he is answered when it is durable, which may take long */
};
/* 1: kill_priv took something (fs_write). past: NULL for a write through the kernel's cache. */
int view_write(struct view *v, uint64_t node, uint64_t off, const void *buf, size_t len,
	       bool kill_priv, const struct past_cache *past);
/*
 * Does somebody write to it past the kernel's cache, or did so just now? Then the kernel must not
 * take its size from what is told now (README.md, "Levers").
 */
bool view_is_written(struct view *v, uint64_t node);
/*
 * A thread asks for something else than data (0: one without a name), so the kernel has taken what
 * its last write was answered. READ does not say so: a write's memory may be a mapped file.
 */
void view_hears(struct view *v, int32_t thread);
int view_fallocate(struct view *v, uint64_t node, int mode, uint64_t off, uint64_t len);
/* As fs_seek, but what is not a hole as a whole block (st_blksize) is data. */
int view_seek(struct view *v, uint64_t node, uint64_t off, int whence, uint64_t *ret_off);
/* The first hole at or behind off, as view_seek tells them: [*ret_from, *ret_to). ABSENT: none. */
int view_hole(struct view *v, uint64_t node, uint64_t off, uint64_t *ret_from, uint64_t *ret_to);
int view_copy_range(struct view *v, uint64_t src, uint64_t src_off, uint64_t dst, uint64_t dst_off,
		    uint64_t len, uint64_t *ret_len);
/* Everything that this view's branch acknowledged so far is durable on return. */
int view_sync(struct view *v);

int view_getxattr(struct view *v, uint64_t node, const char *name, void *buf, size_t cap,
		  size_t *ret_len);
int view_setxattr(struct view *v, uint64_t node, const char *name, const void *value, size_t len,
		  int flags);
int view_listxattr(struct view *v, uint64_t node, char *buf, size_t cap, size_t *ret_len);
int view_removexattr(struct view *v, uint64_t node, const char *name);

/*
 * Entries after `cookie`. plus: `e` is filled and counts one kernel reference for each entry that
 * fn took (returned 0), except "." and ".." (e->node 0 there). fn returns 1 when its buffer is
 * full: that entry is not counted.
 */
int view_readdir(struct view *v, uint64_t dir, uint64_t cookie, bool plus,
		 int (*fn)(void *arg, const char *name, size_t len, const struct entry *e,
			   unsigned type, uint64_t next_cookie),
		 void *arg);

struct view_stats {
	uint64_t bytes_used, bytes_free; /* for statfs */
	uint64_t nodes;                  /* node ids that the kernel knows */
};
int view_stat(struct view *v, struct view_stats *ret);

/* ---- switching (switch.c, notes.c) ---- */

/*
 * 0: made; EXISTS: nothing had changed, the id is the last one's. sync: wait until durable; -EIO:
 * it was made, but cannot be saved, or not all of it (fs_find_unreadable).
 */
int view_checkpoint(struct view *v, const char *label, bool sync, uint64_t *ret_id);

enum restore_mode {
	RESTORE_NAMES, /* told the kernel name by name: everything else stays cached */
	RESTORE_EPOCH, /* told it to look up every name again */
};
struct restore_info {
	enum restore_mode mode;
	uint64_t changed; /* objects that differ, as far as counted */
	uint64_t left;    /* snapshot that undo brings back */
	bool moved;       /* some directory that the kernel knows: view_moved */
};
/* Then `left` is what a restore before left. By epoch what differs is not always counted. */
static inline bool restore_found_nothing(const struct restore_info *i)
{
	return i->changed == 0 && i->mode == RESTORE_NAMES;
}
/* Returns when the kernel's caches show the target. -EROFS for a snapshot view. */
int view_restore(struct view *v, uint64_t snap, struct restore_info *ret);
int view_undo(struct view *v, uint64_t *ret_id, struct restore_info *ret);
/*
 * Lets go of what the last restore replaced and nobody has open: for after the answer to a restore,
 * since it takes up to 10 us for each file.
 */
void view_tidy(struct view *v);
/*
 * After a former process died in a restore: tells the kernel what it may not have told. For when
 * requests are served. Does nothing otherwise.
 */
int view_finish_restore(struct view *v);
/*
 * Paths of directories that the last restores moved or brought back (moved.c), below the directory
 * of node and each with its NUL, as far as cap bytes (PATH_MAX or more) take them. *at is 0 at
 * first, and then says what to go on with; 0: those were all. -ENOENT, -ENOTDIR: node is not of
 * this state.
 */
int view_moved(struct view *v, uint64_t node, uint64_t *at, char *buf, size_t cap, size_t *ret_len);
/* From now on by names whatever differs, so that mounts inside the view survive. */
void view_keep_mounts(struct view *v);
/* A new branch that continues this view's present state. Does not mount it. */
int view_fork(struct view *v, const char *name);
