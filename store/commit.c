/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Group commits: what is in the page cache becomes durable, in the background each second and at
 * once for whoever asks (fsync, syncfs). No sealing and no index: two syncs, or one.
 *
 *  C1 First nothing is overwritten in place any more, and every operation that was under way ends.
 *  C2 Then the journal's last number is taken, and a new generation of blobs begins: from now on
 *     bytes are overwritten again, but none that a record up to that number refers to (blob.c,
 *     rule 6). Then the stage is synced, or, where little is new there, a copy of that made.
 *  C3 Then a mark with that number, and with that copy, is appended, and the journal is synced. A
 *     mark on disk therefore means that what records up to its number refer to is there, unchanged
 *     (J5).
 *  C4 Copies keep their segments (J9). Where these are let go of, the stage is synced first.
 *
 * After a power cut the journal is replayed up to the last mark: a prefix of what was answered that
 * holds everything before the last commit.
 */

#include <errno.h>
#include <signal.h>
#include <time.h>

#include "store/journal.h"
#include "store/stage.h"
#include "store/store_internal.h"

static int sync_stage(struct store *s)
{
	int r = stage_sync(s->stage);

	if (r < 0)
		journal_sync_failed(s->journal); /* the next one may succeed, and prove nothing */
	return r;
}

static int commit_locked(struct store *s)
{
	_cleanup_free_ struct journal_mark_bytes *copy = NULL;
	uint64_t lsn;
	size_t len = 0;
	int r;

	r = store_is_there(s);
	if (r < 0)
		return r;
	stage_hold_still(s->stage, true);
	r = branch_barrier(s);
	lsn = journal_lsn(s->journal);
	stage_hold_still(s->stage, false);
	if (r < 0)
		return r;
	copy = stage_copy(s->stage, &len);
	if (copy) {
		r = journal_mark(s->journal, lsn, copy, len);
		if (r == 0)
			stage_is_durable(s->stage);
		if (r != -ENOSPC && r != -EDQUOT) /* a mark alone takes hardly any room */
			return r;
	}
	r = sync_stage(s);
	if (r == 0)
		r = journal_mark(s->journal, lsn, NULL, 0);
	if (r == 0)
		stage_is_durable(s->stage);
	return r;
}

/* Whoever waits for the lock finds its work done by the one before, as often as not. */
static int commit(struct store *s)
{
	uint64_t lsn = journal_lsn(s->journal);

	LOCK_GUARD(&s->commit_lock);
	return journal_synced(s->journal) >= lsn ? 0 : commit_locked(s);
}

int commit_copies(struct store *s)
{
	LOCK_GUARD(&s->commit_lock);
	int r = sync_stage(s);

	if (r == 0)
		journal_copies_in_place(s->journal);
	return r;
}

int store_flush(struct store *s)
{
	int r = s->logging ? commit(s) : -EOPNOTSUPP;

	/* What could not be synced where it is can still be read, sealed and committed. */
	return r < 0 ? store_sync(s) : 0;
}

static void *committer_main(void *arg)
{
	struct store *s = arg;
	int noted = 0;

	pthread_mutex_lock(&s->table);
	while (!s->stop_commits) {
		uint64_t due = now_ns() + s->commit_ns;
		const struct timespec until = { .tv_sec = (time_t)(due / 1000000000),
						.tv_nsec = (long)(due % 1000000000) };
		int r = 0;

		while (!s->stop_commits && r == 0)
			r = pthread_cond_timedwait(&s->commit_wake, &s->table, &until);
		if (s->stop_commits)
			break;
		pthread_mutex_unlock(&s->table);

		r = commit(s);
		if (r < 0 && r != noted)
			(void)note(&s->noter, 0,
				   "a group commit failed: %s, trying again each second",
				   err_str(r));
		noted = r;
		pthread_mutex_lock(&s->table);
	}
	pthread_mutex_unlock(&s->table);
	return NULL;
}

int committer_start(struct store *s)
{
	sigset_t all, old;
	int r;

	if (!s->logging || s->commit_ns == 0)
		return 0;
	sigfillset(&all); /* signals are for the program's own threads */
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = pthread_create(&s->committer, NULL, committer_main, s);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	s->committer_runs = r == 0;
	return -r;
}

void committer_stop(struct store *s)
{
	if (!s->committer_runs)
		return;
	{
		LOCK_GUARD(&s->table);
		s->stop_commits = true;
		pthread_cond_signal(&s->commit_wake);
	}
	pthread_join(s->committer, NULL);
	s->committer_runs = false;
}
