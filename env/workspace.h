/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A view, from outside: what an environment needs of plyfs. The view may reach further than the
 * environment's directory, which may be any directory in it: checkpoints, restores and forks are
 * of the whole view. Checkpoint and restore are one ioctl on the mount (fs/ioctl.h); mounting,
 * forking, dropping and comparing are the plyfs program's verbs (a millisecond each), so that how
 * a store is served is known in one place.
 */

#include <stdbool.h>
#include <stdint.h>

#include "env/plyfs.h"

struct keeper;
struct workspace;

struct workspace_options {
	const char *workdir; /* see plyfs.h: workdir, store, from, branch, at_cleanup */
	const char *store, *from, *branch, *at_cleanup;
};

/*
 * Finds the view that workdir lies in, or mounts what has to be mounted. Before anything is mounted
 * the keeper (NULL: none) is told what to do when we die. PLY_NOT_HERE when this machine cannot
 * mount; PLY_INVALID when the options do not go together.
 */
int workspace_open(const struct workspace_options *o, struct keeper *k, struct workspace **ret);
/* What at_cleanup says, when none of our processes is in it any more; frees in any case. */
int workspace_close(struct workspace *ws);
/*
 * What it was opened for came to nothing: closing it takes back what opening it did, whatever
 * at_cleanup says.
 */
void workspace_undo_at_close(struct workspace *ws);
/* What the keeper is to run when we die, before all that the view needs; replaces what it was. */
int workspace_on_death(struct workspace *ws, const char *const *const *argvs, size_t n);

const char *workspace_path(const struct workspace *ws);	 /* of the directory, absolute */
const char *workspace_mount(const struct workspace *ws); /* of the view's root */
const char *workspace_branch(const struct workspace *ws);
const char *workspace_store(const struct workspace *ws);
/* Is it still there? Else what is below it would be taken for it: PLY_FAILED. */
int workspace_check(const struct workspace *ws);
bool workspace_is_new(const struct workspace *ws);     /* a branch that nothing was ever made on */
bool workspace_is_dropped(const struct workspace *ws); /* by workspace_close */
bool workspace_is_written_back(const struct workspace *ws); /* the same */

#define SNAP_TEXT 16 /* 12 hex digits and NUL, as PLYFS_ID_SIZE */

/*
 * With nothing changed and the same label (or none) as the last one, it is that one's id; a label
 * of its own always makes a snapshot of its own.
 */
int workspace_checkpoint(struct workspace *ws, const char *label, bool sync,
			 char ret_id[SNAP_TEXT]);
/* Every write through a shared mapping that came before is in the view, for what comes next. */
int workspace_sync(struct workspace *ws);
/*
 * id: whatever `plyfs restore` takes. PLY_UNKNOWN_ID. ret_left may be NULL: the state that was
 * left, which undo brings; "" when nothing had to change.
 */
int workspace_restore(struct workspace *ws, const char *id, char ret_left[SNAP_TEXT]);
/* PLY_STATE when no restore was done. */
int workspace_undo(struct workspace *ws, char ret_left[SNAP_TEXT]);
/* The snapshot that the present state continues. */
int workspace_head(struct workspace *ws, char ret_id[SNAP_TEXT]);
/* Mounts lie in the view: restores have to leave them (fs/ioctl.h, PLYFS_IOC_KEEP_MOUNTS). */
int workspace_keep_mounts(struct workspace *ws);
/*
 * A branch from the present state, mounted at `at` (an empty directory, or NULL: a new one), that
 * goes when it is closed, unless at_cleanup says "keep" or "unmount". branch: NULL: a made-up name.
 */
int workspace_fork(struct workspace *ws, const char *branch, const char *at, const char *at_cleanup,
		   struct keeper *k, struct workspace **ret);
/*
 * A snapshot of the view's store, mounted read-only beside it; one at a time. *ret_at is lent until
 * workspace_end_aside.
 */
int workspace_show_aside(struct workspace *ws, struct keeper *k, const char *snapshot,
			 const char **ret_at);
int workspace_end_aside(struct workspace *ws, struct keeper *k);
/*
 * Any verb of the program, run in the view: its words (verb first, NULL-terminated), its output
 * collected. PLY_COMMAND_FAILED with what it said.
 */
int workspace_verb(struct workspace *ws, const char *const *argv, struct ply_text *ret);
/*
 * One that mounts or unmounts, run in cwd, its output dropped: if we die meanwhile, the keeper
 * (NULL: none) waits for its end before it undoes things.
 */
int workspace_held_verb(struct keeper *k, const char *cwd, const char *const *args);
/*
 * As workspace_verb, for verbs that only ask (diff, log): by the view itself, without a process.
 * args_len of fs/ioctl.h bounds the words.
 */
int workspace_ask(struct workspace *ws, const char *const *argv, struct ply_text *ret);
