/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Commits on their way; see commit_queue.h.
 *
 * States of what is added: pending (the object store has none of it, ids can be looked up here),
 * written (a pack and the vault's ref have it), shown (the working repository's ref, too). A
 * failure leaves it pending and stops the writer until somebody drains. A crash loses what is
 * pending; the snapshots it belongs to are not affected.
 */

#include "env/commit_queue.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "env/status.h"
#include "store/base/util.h"

int commit_queue_new(const char *workdir, const char *ref, const char *vault,
		     struct commit_queue **ret)
{
	struct commit_queue *q = calloc(1, sizeof(*q));

	if (!q)
		return fail_memory();
	pthread_mutex_init(&q->sync, NULL);
	pthread_mutex_init(&q->lock, NULL);
	pthread_cond_init(&q->changed, NULL);
	q->workdir = strdup(workdir);
	q->ref = strdup(ref);
	q->vault = strdup(vault);
	if (!q->workdir || !q->ref || !q->vault) {
		commit_queue_free(q);
		return fail_memory();
	}
	*ret = q;
	return 0;
}

void commit_queue_free(struct commit_queue *q)
{
	if (!q)
		return;
	{
		LOCK_GUARD(&q->lock);
		q->stop = true;
		pthread_cond_broadcast(&q->changed);
	}
	if (q->has_thread)
		pthread_join(q->thread, NULL);
	for (size_t i = 0; i < q->n_pending; i++)
		repo_batch_free(q->pending[i].batch);
	pthread_mutex_destroy(&q->sync);
	pthread_mutex_destroy(&q->lock);
	pthread_cond_destroy(&q->changed);
	free(q->workdir);
	free(q->ref);
	free(q->vault);
	free(q);
}

void commit_queue_start(struct commit_queue *q, const struct repo_id *tip)
{
	LOCK_GUARD(&q->lock);
	q->tip = *tip;
	q->has_tip = true;
}

/* ---- the writer ---- */

/*
 * Invariant 2. A repository that is gone or damaged has no copy; the vault has it all. Under
 * q->sync, so that no restore comes between asking and writing.
 */
void commit_queue_sync(struct commit_queue *q, struct vault *v)
{
	_cleanup_(repo_closep) struct repo *repo = NULL;

	if (repo_open(q->workdir, v, &repo) == 0 && repo_attach(repo, v) == 0)
		(void)vault_show_ref(v, q->ref, repo);
}

static int write_pending(struct commit_queue *q, struct vault *v, struct pending *p, size_t n)
{
	struct repo_batch *batches[PENDING_MAX];
	const struct repo_id *newest = NULL;
	struct repo_id tip;
	int r;

	for (size_t i = 0; i < n; i++) {
		batches[i] = p[i].batch;
		if (p[i].has_commit)
			newest = &p[i].commit;
	}
	r = vault_write(v, batches, n);
	if (r < 0 || !newest)
		return r;
	tip = *newest;
	r = vault_set_ref(v, q->ref, &tip);
	if (r < 0)
		return r;
	{
		LOCK_GUARD(&q->lock);
		/* Joined with what another process did: what comes next has both for parents. */
		if (q->has_tip && repo_id_is(&q->tip, newest))
			q->tip = tip;
	}
	LOCK_GUARD(&q->sync);
	commit_queue_sync(q, v);
	return 0;
}

static void *writer(void *arg)
{
	struct commit_queue *q = arg;
	struct vault *v = NULL;

	pthread_mutex_lock(&q->lock);
	for (;;) {
		struct pending mine[PENDING_MAX];
		size_t n;
		int r = 0;

		while (!q->stop && (q->n_pending == 0 || q->failed))
			pthread_cond_wait(&q->changed, &q->lock);
		if (q->stop)
			break;
		n = q->n_pending;
		memcpy(mine, q->pending, n * sizeof(*mine));
		pthread_mutex_unlock(&q->lock);

		if (!v)
			r = vault_open(q->vault, &v);
		if (r == 0)
			r = write_pending(q, v, mine, n);

		pthread_mutex_lock(&q->lock);
		if (r < 0) {
			q->failed = true;
			snprintf(q->why, sizeof(q->why), "%s", ply_error());
		} else {
			for (size_t i = 0; i < n; i++)
				repo_batch_free(mine[i].batch);
			q->n_pending -= n;
			memmove(q->pending, q->pending + n, q->n_pending * sizeof(*mine));
		}
		pthread_cond_broadcast(&q->changed);
	}
	pthread_mutex_unlock(&q->lock);
	vault_close(v);
	return NULL;
}

/* The caller's signals are for the caller's threads. */
static int start_writer(struct commit_queue *q)
{
	sigset_t all, old;
	int r;

	if (q->has_thread)
		return 0;
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &old);
	r = pthread_create(&q->thread, NULL, writer, q);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (r)
		return fail_errno(r, "starting a thread");
	q->has_thread = true;
	return 0;
}

/* ---- what goes in ---- */

int commit_queue_drain(struct commit_queue *q)
{
	LOCK_GUARD(&q->lock);
	q->failed = false;
	pthread_cond_broadcast(&q->changed);
	while (q->n_pending > 0 && !q->failed)
		pthread_cond_wait(&q->changed, &q->lock);
	return q->failed
		       ? fail(PLY_FAILED, "writing the commits of earlier checkpoints: %s", q->why)
		       : 0;
}

int commit_queue_room(struct commit_queue *q)
{
	bool full;

	{
		LOCK_GUARD(&q->lock);
		full = q->n_pending == PENDING_MAX;
	}
	return full ? commit_queue_drain(q) : 0;
}

int commit_queue_add(struct commit_queue *q, struct repo_batch **batch,
		     const struct repo_id *commit, const char *snap)
{
	LOCK_GUARD(&q->lock);
	struct pending *p = &q->pending[q->n_pending];
	int r = start_writer(q);

	if (r < 0)
		return r;
	*p = (struct pending){ .batch = TAKE_PTR(*batch), .has_commit = commit != NULL };
	memcpy(p->snap, snap, SNAP_TEXT);
	if (commit) {
		p->commit = q->tip = *commit;
		q->has_tip = true;
	}
	q->n_pending++;
	pthread_cond_broadcast(&q->changed);
	return 0;
}

int commit_queue_tip(struct commit_queue *q, struct repo_id *ret)
{
	LOCK_GUARD(&q->lock);
	if (q->has_tip)
		*ret = q->tip;
	return !q->has_tip;
}

bool commit_queue_find(struct commit_queue *q, const char *hex, struct repo_id *ret,
		       char ret_snap[SNAP_TEXT])
{
	char own[REPO_HEX];

	LOCK_GUARD(&q->lock);
	for (size_t i = 0; i < q->n_pending; i++) {
		const struct pending *p = &q->pending[i];

		if (!p->has_commit || strcmp(repo_id_hex(&p->commit, own), hex) != 0)
			continue;
		*ret = p->commit;
		memcpy(ret_snap, p->snap, SNAP_TEXT);
		return true;
	}
	return false;
}
