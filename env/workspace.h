/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A view, from outside: what an environment needs of plyfs. Checkpoint and restore are one ioctl on
 * the mount (fs/ioctl.h); mounting, forking, dropping and comparing are the plyfs program's verbs
 * (a millisecond each), so that how a store is served is known in one place.
 */

#include <stdbool.h>
#include <stdint.h>

#include "env/plyfs.h"

struct workspace;

struct workspace_options {
	const char *workdir; /* see plyfs.h: workdir, store, from, branch, at_cleanup */
	const char *store, *from, *branch, *at_cleanup;
};

/* Mounts what has to be mounted. PLY_NOT_HERE when this machine cannot mount. */
int workspace_open(const struct workspace_options *o, struct workspace **ret);
/* What at_cleanup says; frees in any case. */
int workspace_close(struct workspace *ws);
/* What a keeper is to run when we die: to free with workspace_free_commands. */
int workspace_commands(struct workspace *ws, char ****ret, size_t *ret_n);
void workspace_free_commands(char ***argvs, size_t n);

const char *workspace_path(const struct workspace *ws);	  /* of the directory, absolute */
const char *workspace_mount(const struct workspace *ws);  /* of the view's root */
const char *workspace_branch(const struct workspace *ws);
const char *workspace_store(const struct workspace *ws);

#define SNAP_TEXT 16 /* 12 hex digits and NUL, as PLYFS_ID_SIZE */

/*
 * With nothing changed and the same label (or none) as the last one, it is that one's id; a label of
 * its own always makes a snapshot of its own.
 */
int workspace_checkpoint(struct workspace *ws, const char *label, bool sync,
			 char ret_id[SNAP_TEXT]);
/* id: whatever `plyfs restore` takes. PLY_UNKNOWN_ID. ret_left may be NULL: what undo brings. */
int workspace_restore(struct workspace *ws, const char *id, char ret_left[SNAP_TEXT]);
int workspace_undo(struct workspace *ws);
/* A branch from the present state, mounted at `at` (an empty directory, or NULL: a new one). */
int workspace_fork(struct workspace *ws, const char *branch, const char *at,
		   struct workspace **ret);
/* The words of any verb of the program, its output collected: PLY_COMMAND_FAILED with its words. */
int workspace_verb(struct workspace *ws, const char *const *argv, struct ply_text *ret);
