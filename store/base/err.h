/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * How failures and outcomes travel in plyfs.
 *
 *   0      done
 *   > 0    an ordinary outcome, named in the function's contract (ABSENT, END, AGAIN, EXISTS);
 *          the caller handles it
 *   < 0    a failure: -errno from the system, or -ERR_... of ours; passed on unchanged
 *
 * Our own codes start above every errno, so the two never meet. Each belongs to one errno, to
 * which err_errno() folds it where the kernel or a C caller wants a plain number.
 */

#include <stdbool.h>

enum outcome {
	ABSENT = 1, /* what was asked for is not there */
	END = 2,    /* an iteration is over */
	AGAIN = 3,  /* not possible this way; the contract names the other way */
	EXISTS = 4, /* it was there already */
};

/* X(name, errno it folds to, sentence for people: lower case, no full stop) */
#define ERR_LIST(X)                                                                                \
	X(ERR_CHUNK_MISSING, EIO, "a chunk that the tree refers to is not in the index")           \
	X(ERR_CHUNK_DAMAGED, EIO, "the bytes of a chunk do not match its name")                    \
	X(ERR_CHUNK_LOST, EIO, "a chunk was damaged or could not be read, and was given up")       \
	X(ERR_CHUNK_TOO_LARGE, EFBIG, "a chunk is larger than the format allows")                  \
	X(ERR_RECORD_DAMAGED, EIO, "a pack record header is damaged")                              \
	X(ERR_PACK_HEADER, EIO, "a pack header is damaged")                                        \
	X(ERR_PACK_MISSING, EIO, "a pack file that the index names is missing")                    \
	X(ERR_PACK_TRUNCATED, EIO, "a pack file ends before a record that the index names")        \
	X(ERR_INDEX_DAMAGED, EIO, "an entry of the index is damaged")                              \
	X(ERR_INDEX_BROKEN, EIO,                                                                   \
	  "the index is damaged; 'plyfs salvage' makes it anew from the packs")                    \
	X(ERR_INDEX_OPEN, EIO, "the index cannot be opened")                                       \
	X(ERR_INDEX_ASTRAY, EIO,                                                                   \
	  "index/data.mdb is a link to what is not there; bring that back")                        \
	X(ERR_INDEX_FULL, ENOSPC, "the index has reached its maximum size")                        \
	X(ERR_INDEX_FAILED, EIO, "the index refused an operation")                                 \
	X(ERR_NODE_DAMAGED, EIO, "a tree node is damaged")                                         \
	X(ERR_VALUE_TOO_LARGE, E2BIG, "a value is larger than a tree item may be")                 \
	X(ERR_FORMAT_DAMAGED, EIO,                                                                 \
	  "the format file is damaged or gone; 'plyfs salvage' writes it anew")                    \
	X(ERR_FORMAT_NEWER, EPROTO, "the store was written by a newer plyfs; use that version")    \
	X(ERR_FORMAT_OLDER, EPROTO, "the store has an old format that this plyfs cannot read")     \
	X(ERR_NOT_A_STORE, ENOTDIR, "not a plyfs store; make one with 'plyfs init'")               \
	X(ERR_STORE_BUSY, EBUSY, "another daemon has the store open")                              \
	X(ERR_SALVAGE_NOTHING, EIO, "the packs hold no list of snapshots to bring back")           \
	X(ERR_STORE_EXISTS, EEXIST, "there is a store already")                                    \
	X(ERR_STORE_REMOVED, EIO,                                                                  \
	  "the store's directory was removed: nothing is kept any more; copy what you need out "   \
	  "of the views")                                                                          \
	X(ERR_STORE_FAILED, EIO, "the store stopped writing after a failed commit; see its log")   \
	X(ERR_SNAP_UNKNOWN, ENOENT,                                                                \
	  "no snapshot or branch is called so; 'plyfs tree' lists all, a label is written @LABEL") \
	X(ERR_SNAP_AMBIGUOUS, EINVAL, "more than one snapshot id starts so; give more digits")     \
	X(ERR_SNAP_IN_USE, EBUSY, "the snapshot is mounted; unmount it first")                     \
	X(ERR_SNAP_DAMAGED, EIO, "a snapshot record is damaged")                                   \
	X(ERR_BRANCH_UNKNOWN, ENOENT, "no branch has this name; 'plyfs tree' lists them")          \
	X(ERR_BRANCH_EXISTS, EEXIST, "a branch of this name exists; take another, or drop it")     \
	X(ERR_BRANCH_IN_USE, EBUSY, "the branch is mounted; unmount it first")                     \
	X(ERR_BRANCH_CLAIMED, EBUSY,                                                               \
	  "another verb works on it, or its view is still ending; try again when that is done")   \
	X(ERR_BRANCH_NAME, EINVAL,                                                                 \
	  "a branch name is 1 to 63 of A-Z a-z 0-9 . _ - and no leading dot or dash")              \
	X(ERR_BRANCH_DAMAGED, EIO, "a branch record is damaged")                                   \
	X(ERR_NO_UNDO, ENOENT, "there is no restore to undo on this branch")                       \
	X(ERR_JOURNAL_DAMAGED, EIO, "a record of the journal is damaged")                          \
	X(ERR_ITEM_DAMAGED, EIO, "an item of the file tree is damaged")                            \
	X(ERR_MEMO, EIO, "what the daemon before knew of it is damaged, or of another version")    \
	X(ERR_VIEWS_MAX, EMFILE,                                                                   \
	  "a store's daemon mounts 1,024 views at most; unmount one first")                        \
	X(ERR_UNSAFE_PATH, EINVAL, "a path leads out of the tree")                                 \
	X(ERR_SOURCE, EIO, "the source cannot be read")                                            \
	X(ERR_TARGET, EIO, "the target cannot be written")                                         \
	X(ERR_OWN_LINK, ELOOP,                                                                     \
	  "it leads to one's own descriptors, and the daemon has others; give '-', redirect")      \
	X(ERR_CANCELLED, ECANCELED, "cancelled")

#define ERR_BASE 4096 /* above MAX_ERRNO (4095) of Linux */

enum err {
	ERR_FIRST_ = ERR_BASE,
#define ERR_ENUM(name, no, text) name,
	ERR_LIST(ERR_ENUM)
#undef ERR_ENUM
};

/* The errno (positive) that a failure folds to; 0 for r >= 0. */
int err_errno(int r);

/*
 * A failure of the machine we run on, or of what we may do there: it says nothing of what is on the
 * disk, and the next try, or another one's, may do better.
 */
bool err_is_machine(int r);

/* The sentence for people; static storage. For an errno it is strerror's. */
const char *err_str(int r);

/* The code's own name ("ERR_NODE_DAMAGED", "ENOSPC"); static storage. */
const char *err_name(int r);
