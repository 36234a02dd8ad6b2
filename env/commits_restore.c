/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Kind "git": back to any commit. To one of ours by its snapshot, exactly; to any other by its
 * tree, file by file. The invariants are in commits.c.
 */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "env/commits_internal.h"
#include "env/status.h"
#include "store/base/util.h"

/* ---- what an id means ---- */

struct target {
	bool is_commit;
	struct repo_id commit;
	char snap[SNAP_TEXT]; /* "": not one of ours */
};

/* The last line that is our trailer, in a commit that we committed. */
static void find_snapshot(const char *commit, char ret[SNAP_TEXT])
{
	const char *body = strstr(commit, "\n\n"), *committer = strstr(commit, "\ncommitter ");

	ret[0] = '\0';
	if (!body || !committer || committer > body ||
	    strncmp(committer + 11, COMMITTER " ", strlen(COMMITTER " ")) != 0)
		return;
	for (const char *p = body; (p = strstr(p, "\n" TRAILER)); p++) {
		const char *id = p + 1 + strlen(TRAILER);

		if (strspn(id, "0123456789abcdef") == SNAP_TEXT - 4)
			snprintf(ret, SNAP_TEXT, "%.*s", SNAP_TEXT - 4, id);
	}
}

static int look_up(struct ply_env *e, const char *id, struct target *ret)
{
	struct commits *k = commits_of(e);
	_cleanup_(repo_closep) struct repo *repo = NULL;
	_cleanup_(repo_reader_closep) struct repo_reader *rd = NULL;
	_cleanup_(ply_text_free) struct ply_text text = { 0 };
	struct target t = { .is_commit = true };
	int r;

	*ret = (struct target){ 0 };
	ret->is_commit = commit_queue_find(k->queue, id, &ret->commit, ret->snap);
	if (ret->is_commit)
		return 0;
	r = repo_open(e->workdir, k->vault, &repo);
	if (r < 0)
		return r;
	if (!*id || repo_resolve(repo, k->vault, id, &t.commit) != 0)
		return 0;
	r = repo_reader_open(repo, k->vault, &rd);
	if (r == 0)
		r = repo_read(rd, &t.commit, REPO_COMMIT, &text);
	if (r < 0)
		return r;
	find_snapshot(text.data, t.snap);
	*ret = t;
	return 0;
}

/*
 * Not a commit: then it may be what `plyfs restore` takes. Only a name that means another commit
 * each time, or one that nobody knows, has to wait for the writer.
 */
static int find_target(struct ply_env *e, const char *id, struct target *ret)
{
	struct commits *k = commits_of(e);
	int r;

	if (strspn(id, "0123456789abcdef") == REPO_HEX - 1 && !id[REPO_HEX - 1]) {
		r = look_up(e, id, ret);
		if (r < 0 || ret->is_commit)
			return r;
	}
	(void)commit_queue_drain(
		k->queue); /* what cannot be written is found among the pending, and stays there */
	return look_up(e, id, ret);
}

/* ---- restore ---- */

/* Invariant 3: the objects that the left state's repository had and the present one has not. */
static int carry(struct ply_env *e, const char *left)
{
	struct commits *k = commits_of(e);
	_cleanup_(ply_text_free) struct ply_text list = { 0 };
	_cleanup_(ply_list_free) struct ply_list names = { 0 };
	_cleanup_free_ char *path = NULL, *from = NULL, *to = NULL;
	_cleanup_close_ int fd = -1;
	static const char objects[] = ".git/objects/";
	size_t at = 0;
	char status, *p;
	int r;

	r = list_changes(e, workspace_branch(e->ws), left, &list);
	while (r == 0 && (p = next_change(k, &list, &at, &status)))
		if (status != 'D' && strncmp(p, objects, strlen(objects)) == 0)
			r = list_append(&names, p + strlen(objects), strlen(p) - strlen(objects));
	if (r < 0 || names.n == 0)
		return r;
	r = mount_snapshot(e, left, &path, &fd);
	if (r == 0 && (asprintf(&from, "%s/%.12s", path, objects) < 0 ||
		       asprintf(&to, "%s/objects", vault_path(k->vault)) < 0))
		r = fail_memory();
	if (r == 0)
		r = repo_copy_objects(from, to, names.items, names.n);
	unmount_snapshot(e);
	return r;
}

/* snap NULL: what undo brings. Afterwards nothing is gone that must not go with the old state. */
static int switch_to(struct ply_env *e, const char *snap)
{
	struct commits *k = commits_of(e);
	char left[SNAP_TEXT] = "";
	struct sentence why;
	int r, s;

	LOCK_GUARD(&k->queue->sync);
	r = local_switch(e, snap, left);
	if (!*left)
		return r; /* it failed, or nothing had to change */
	sentence_get(&why); /* r < 0: the switch is done, what `exclude` names is not back */
	k->undo[0] = '\0';
	commit_queue_sync(k->queue, k->vault);
	s = carry(e, left);
	if (s < 0)
		return fail_in(s, "the restore is done, but keeping commits made before it");
	if (r < 0)
		sentence_put(&why);
	return MIN(r, 0);
}

/* Line "tree ID" of a commit: its tree. */
static int commit_tree(struct repo_reader *rd, const struct repo_id *commit, struct repo_id *ret)
{
	_cleanup_(ply_text_free) struct ply_text text = { 0 };
	int r = repo_read(rd, commit, REPO_COMMIT, &text);

	if (r < 0)
		return r;
	if (strncmp(text.data, "tree ", 5) != 0 || !repo_id_parse(text.data + 5, ret))
		return fail(PLY_FAILED, "a damaged commit object");
	return 0;
}

/* The commit's tree into the working tree; all or nothing, and undo takes it back. */
static int check_out(struct ply_env *e, const struct repo_id *commit)
{
	struct commits *k = commits_of(e);
	_cleanup_(repo_batch_freep) struct repo_batch *batch = repo_batch_new();
	_cleanup_(repo_closep) struct repo *repo = NULL;
	_cleanup_(repo_reader_closep) struct repo_reader *rd = NULL;
	_cleanup_close_ int fd = open(e->workdir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	char before[SNAP_TEXT];
	struct repo_id tree;
	int r;

	if (!batch)
		return fail_memory();
	if (fd < 0)
		return fail_errno(errno, "'%s'", e->workdir);
	r = local_check_restore(e);
	if (r == 0)
		r = repo_open(e->workdir, k->vault, &repo);
	if (r >= 0)
		r = repo_reader_open(repo, k->vault, &rd);
	if (r == 0)
		r = commit_tree(rd, commit, &tree);
	if (r == 0)
		r = commit_queue_room(k->queue);
	if (r == 0)
		r = take_snapshot(e, NULL, before);
	if (r == 0)
		r = update_tree(e, before, batch);
	if (r < 0)
		return r;
	if (batch->n > 0) {
		r = commit_queue_add(k->queue, &batch, NULL, before);
		if (r < 0) {
			k->base[0] = '\0';
			return r;
		}
	}
	r = gittree_apply(k->tree, fd, rd, &tree, env_option(e, "exclude"));
	if (r < 0) {
		LOCK_GUARD(&k->queue->sync);
		KEEP_SENTENCE;
		(void)workspace_restore(e->ws, before, NULL);
		commit_queue_sync(k->queue, k->vault);
		return r;
	}
	memcpy(k->undo, before, SNAP_TEXT);
	return 0;
}

int commits_restore(struct ply_env *e, const char *id)
{
	struct commits *k = commits_of(e);
	struct target t;
	int r;

	LOCK_GUARD(&k->busy);
	r = find_target(e, id, &t);
	if (r < 0)
		return r;
	if (!t.is_commit)
		return switch_to(e, id);
	if (*t.snap) {
		r = switch_to(e, t.snap);
		if (r != PLY_UNKNOWN_ID)
			return r;
		r = commit_queue_drain(k->queue); /* it may be that its objects are on their way */
		if (r < 0)
			return r;
	}
	return check_out(e, &t.commit);
}

int commits_undo(struct ply_env *e)
{
	struct commits *k = commits_of(e);
	char snap[SNAP_TEXT];
	int r;

	LOCK_GUARD(&k->busy);
	memcpy(snap, k->undo, SNAP_TEXT);
	r = switch_to(e, *snap ? snap : NULL);
	if (r == 0)
		k->undo[0] = '\0';
	return r;
}

/* Checkpoints by their commits; anything else is env_local's to understand. */
int commits_diff(struct ply_env *e, const char *a, const char *b, const char *form,
		struct ply_text *ret)
{
	struct commits *k = commits_of(e);
	struct target from = { 0 }, to = { 0 };
	int r = 0;

	{
		LOCK_GUARD(&k->busy);
		if (a)
			r = find_target(e, a, &from);
		if (r == 0 && b)
			r = find_target(e, b, &to);
	}
	if (r < 0)
		return r;
	if ((from.is_commit && !*from.snap) || (to.is_commit && !*to.snap))
		return fail(PLY_UNSUPPORTED, "commit %s is no checkpoint: compare it with git diff",
			    from.is_commit && !*from.snap ? a : b);
	return local_diff(e, *from.snap ? from.snap : a, *to.snap ? to.snap : b, form, ret);
}
