/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The inside of kind "git", for its three files: commits.c (life, checkpoints; the invariants are
 * there), commits_look.c (snapshots, and what differs), commits_restore.c.
 */

#include <pthread.h>

#include "env/commit_queue.h"
#include "env/env_internal.h"
#include "env/gittree.h"
#include "env/repo.h"

#define COMMITTER "plyfs <plyfs@localhost>"
#define TRAILER "Plyfs-Snapshot: "

struct commits {
	char *ref; /* immutable, owned */
	char *at;  /* immutable, owned: an empty directory to mount snapshots on */
	char *sub; /* immutable, owned: the workdir below the view's root, "" or "a/b/" */
	enum gittree_mode mode;	    /* immutable */
	struct commit_queue *queue; /* immutable, owned */

	pthread_mutex_t busy; /* one verb at a time; taken before the queue's */
	struct vault *vault;  /* under busy */
	struct gittree *tree; /* under busy; NULL: nothing is known */
	char base[SNAP_TEXT]; /* under busy: the snapshot that tree is of */
	struct repo_id root;  /* under busy: of tree */
	char undo[SNAP_TEXT]; /* under busy: what undo brings, when that was a checkout; "" */
};

static inline struct commits *commits_of(struct ply_env *e)
{
	return e->kind;
}

/* ---- commits_look.c; under busy ---- */

/*
 * The workdir as a snapshot has it: a descriptor, and until unmount_snapshot (which is to be
 * called in any case) also a path, given. The snapshot is there until the descriptor is closed.
 */
int mount_snapshot(struct ply_env *e, const char *snap, char **ret_path, int *ret_fd);
void unmount_snapshot(struct ply_env *e);
/* Whatever is mounted there, detached. */
void take_off(const char *path);
/* What differs: NUL-ended statuses and paths, in turn. to NULL: the present state. */
int list_changes(struct ply_env *e, const char *from, const char *to, struct ply_text *ret);
/* The next path of list_changes: without its last slash, below the workdir; NULL: no more. */
char *next_change(const struct commits *k, const struct ply_text *list, size_t *at,
		  char *ret_status);
/* Brings tree, base and root to a snapshot: invariant 4, once the batch is on its way. */
int update_tree(struct ply_env *e, const char *snap, struct repo_batch *batch);

/* ---- commits.c ---- */

/* A snapshot that no lock of the writer's on a ref is in. */
int take_snapshot(struct ply_env *e, const char *label, char ret[SNAP_TEXT]);

/* ---- commits_restore.c: of the table ---- */

int commits_restore(struct ply_env *e, const char *id);
int commits_undo(struct ply_env *e);
int commits_diff(struct ply_env *e, const char *a, const char *b, const char *form,
		 struct ply_text *ret);
