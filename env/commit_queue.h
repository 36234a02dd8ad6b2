/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Commits of checkpoints on their way to the vault. A commit is added with the objects it needs,
 * its id known already; a thread (the writer) makes one pack of all that waits, moves the vault's
 * ref and then the working repository's, which is a copy of it.
 *
 * The line: each commit's parent is the queue's tip, the commit added before it; the writer joins
 * it with what other processes put on the same ref.
 */

#include <pthread.h>

#include "env/repo.h"
#include "env/workspace.h"

/* What may wait before the next one waits, too: each may hold a mount. */
#define PENDING_MAX 32

struct pending {
	struct repo_batch *batch; /* owned */
	bool has_commit;
	struct repo_id commit;
	char snap[SNAP_TEXT];
};

struct commit_queue {
	char *workdir, *ref, *vault; /* immutable, owned; vault: its path */
	/*
	 * Held while the working repository's ref is set, and by whoever switches the view beneath
	 * it. Taken before lock.
	 */
	pthread_mutex_t sync;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct repo_id tip;		     /* under lock: the last commit */
	bool has_tip;			     /* under lock */
	struct pending pending[PENDING_MAX]; /* under lock; the first ones are the writer's */
	size_t n_pending;		     /* under lock */
	bool failed, stop, has_thread;	     /* under lock */
	char why[512];			     /* under lock: of failed */
	pthread_t thread;
};

/* Takes copies. Without a tip until commit_queue_start. */
int commit_queue_new(const char *workdir, const char *ref, const char *vault,
		     struct commit_queue **ret);
/* What was not written is lost: drain before. NULL is fine. */
void commit_queue_free(struct commit_queue *q);
/* The line continues at a commit that the vault has. Before the first add. */
void commit_queue_start(struct commit_queue *q, const struct repo_id *tip);

/* Waits until there is room for one more. Fails when the writer does. */
int commit_queue_room(struct commit_queue *q);
/* Takes *batch. commit NULL: only objects. There must be room. */
int commit_queue_add(struct commit_queue *q, struct repo_batch **batch,
		     const struct repo_id *commit, const char *snap);
/* Until all is written. What could not be is tried once more, and stays. */
int commit_queue_drain(struct commit_queue *q);
/* 1: there is none yet. */
int commit_queue_tip(struct commit_queue *q, struct repo_id *ret);
/* A commit that waits, by its 40 hex digits. */
bool commit_queue_find(struct commit_queue *q, const char *hex, struct repo_id *ret,
		       char ret_snap[SNAP_TEXT]);
/*
 * Sets the working repository's alternate and ref right, the ref to where the vault's is. Where the
 * repository is gone or damaged, or refuses, nothing happens: the vault has it all, and an end with
 * a write-back, which is when it matters, says so. Call under q->sync.
 */
void commit_queue_sync(struct commit_queue *q, struct vault *v);
