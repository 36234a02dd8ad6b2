/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Environments of kind "git": local ones whose checkpoints are git commits as well.
 *
 * A checkpoint is a snapshot of the view, and what differs from the last one is hashed from that
 * snapshot, mounted read-only beside the view: whatever goes on in the working tree, the commit's
 * tree is the snapshot's (gittree.c). Then its id is known and the call is over; packing the
 * objects and moving the ref is another thread's (commit_queue.c).
 *
 * Where the objects are. A restore brings back all of the view, .git and all; commits that were
 * made later would go with it. So objects of checkpoints are in a bare repository of their own in
 * the store, STORE/commits.git (the vault), which no restore touches and which needs no object of
 * any other repository. The working repository finds them as its alternate
 * (objects/info/alternates), and has the ref, refs/plyfs/BRANCH, so `git log`, `git fsck` and
 * `git gc` see a history like any other. HEAD, index, hooks and configuration are not touched.
 *
 * Invariants:
 *  1. The vault's ref leads to every commit that was ever on it: each commit's parent is the one
 *     before it in time, whatever was restored between; two lines are joined, never left.
 *  2. The working repository's ref and alternate are a copy, set right after each pack and each
 *     restore, of the vault's as it is then. When there is no such repository (somebody removed
 *     .git), checkpoints go on without.
 *  3. After a restore or an undo, files of objects that the working repository had and has no
 *     more are in the vault: a commit made by others is found whatever was restored since.
 *  4. The tree is that of the snapshot `base`, or there is none; all objects that it has ids of
 *     are in the vault or wait for the writer.
 *
 * A crash before a pack is written loses these commits, not their snapshots.
 *
 * Which commits are ours, so that a restore can take the snapshot: those whose committer is
 * COMMITTER and whose message ends in "Plyfs-Snapshot: ID". A cherry-picked or amended copy has
 * another committer. Of others, and where the snapshot was dropped, the tree is checked out.
 *
 * With at_cleanup write-back the .git directory leaves the store, so the vault's objects are
 * copied to it first, and it lets go of the alternate.
 */

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "env/commits_internal.h"
#include "env/status.h"
#include "store/base/util.h"

#define AUTHOR_NAME "Chimera"
#define AUTHOR_EMAIL "chimera@local"

/* ---- checkpoint ---- */

int take_snapshot(struct ply_env *e, const char *label, char ret[SNAP_TEXT])
{
	LOCK_GUARD(&commits_of(e)->queue->sync);
	return workspace_checkpoint(e->ws, label, false, ret);
}

static int add_commit(struct ply_env *e, const char *label, const char *snap,
		      struct repo_batch *batch, struct repo_id *ret)
{
	struct commits *k = commits_of(e);
	_cleanup_(repo_closep) struct repo *repo = NULL;
	_cleanup_(ply_text_free) struct ply_text name = { 0 }, email = { 0 };
	char tree[REPO_HEX], parent[REPO_HEX];
	_cleanup_free_ char *text = NULL;
	long long now = MAX((long long)time(NULL), 0); /* git reads no time before 1970 */
	struct repo_id tip;
	bool has_tip = commit_queue_tip(k->queue, &tip) == 0;
	int r;

	r = repo_open(e->workdir, k->vault, &repo);
	if (r == 0)
		r = repo_identity(repo, AUTHOR_NAME, AUTHOR_EMAIL, &name, &email);
	if (r < 0)
		return r;
	r = asprintf(&text,
		     "tree %s\n%s%s%sauthor %s <%s> %lld +0000\ncommitter " COMMITTER
		     " %lld +0000\n\n%s\n\n" TRAILER "%s\n",
		     repo_id_hex(&k->root, tree), has_tip ? "parent " : "",
		     has_tip ? repo_id_hex(&tip, parent) : "", has_tip ? "\n" : "",
		     name.data ? name.data : AUTHOR_NAME, email.data ? email.data : AUTHOR_EMAIL,
		     now, now, label && *label ? label : "checkpoint", snap);
	if (r < 0) {
		text = NULL;
		return fail_memory();
	}
	return repo_batch_add(batch, REPO_COMMIT, text, (size_t)r, ret);
}

static int checkpoint(struct ply_env *e, const char *label, struct ply_text *ret_id)
{
	struct commits *k = commits_of(e);
	_cleanup_(repo_batch_freep) struct repo_batch *batch = repo_batch_new();
	char snap[SNAP_TEXT], hex[REPO_HEX];
	struct repo_id commit;
	int r;

	LOCK_GUARD(&k->busy);
	if (!batch)
		return fail_memory();
	r = commit_queue_room(k->queue);
	if (r == 0)
		r = take_snapshot(e, label, snap);
	if (r == 0)
		r = update_tree(e, snap, batch);
	if (r < 0)
		return r;
	r = add_commit(e, label, snap, batch, &commit);
	if (r == 0)
		r = commit_queue_add(k->queue, &batch, &commit, snap);
	if (r < 0) {
		k->base[0] = '\0'; /* the tree has ids of objects that are lost */
		return r;
	}
	return text_set(ret_id, repo_id_hex(&commit, hex), REPO_HEX - 1);
}

/* ---- life ---- */

static int mode_of(const char *text, enum gittree_mode *ret)
{
	static const char *const names[] = { "all", "untracked", "tracked" };

	for (int i = 0; i < (int)ARRAY_SIZE(names); i++)
		if (strcmp(*text ? text : "all", names[i]) == 0) {
			*ret = (enum gittree_mode)i;
			return 0;
		}
	return fail(PLY_INVALID, "option 'commit' is one of: all untracked tracked; not '%s'",
		    text);
}

static int check(struct ply_env *e)
{
	const char *ref = env_option(e, "ref");
	enum gittree_mode mode;
	int r = mode_of(env_option(e, "commit"), &mode);

	if (r == 0 && *ref && !repo_ref_ok(ref))
		r = fail(PLY_INVALID,
			 "option 'ref' is the full name of a ref that is no branch, such as "
			 "refs/plyfs/work; not '%s'",
			 ref);
	return r;
}

static void commits_free(struct commits *k)
{
	commit_queue_free(k->queue);
	gittree_free(k->tree);
	vault_close(k->vault);
	if (k->at)
		(void)rmdir(k->at); /* ours, and empty */
	pthread_mutex_destroy(&k->busy);
	free(k->ref);
	free(k->at);
	free(k->sub);
	free(k);
}

/* The mount that we may have when we die, before what local environments do. */
static int tell_keeper(struct ply_env *e)
{
	struct commits *k = commits_of(e);
	const char *const words[] = { "umount", "--lazy", "--", k->at, NULL };
	const char *const user[] = { "fusermount3", "-u", "-z", "-q", "--", k->at, NULL };
	const char *const away[] = { "rmdir", "--", k->at, NULL };

	return workspace_on_death(
		e->ws, (const char *const *const[]){ geteuid() == 0 ? words : user, away }, 2);
}

static int choose_names(struct ply_env *e)
{
	struct commits *k = commits_of(e);
	const char *ref = env_option(e, "ref"), *path = workspace_path(e->ws);
	const char *mount = workspace_mount(e->ws);
	size_t len = strcmp(mount, "/") == 0 ? 0 : strlen(mount);

	if ((*ref ? asprintf(&k->ref, "%s", ref)
		  : asprintf(&k->ref, "refs/plyfs/%s", workspace_branch(e->ws))) < 0) {
		k->ref = NULL;
		return fail_memory();
	}
	if (!repo_ref_ok(k->ref))
		return fail(
			PLY_INVALID,
			"git does not allow a ref with the name of branch '%s': set option 'ref'",
			workspace_branch(e->ws));
	path += MIN(len, strlen(path));
	path += *path == '/';
	if (asprintf(&k->sub, "%s%s", path, *path ? "/" : "") < 0) {
		k->sub = NULL;
		return fail_memory();
	}
	return 0;
}

/* What others left that were killed with their keeper, or while something mounted for them. */
static void sweep(const char *vault)
{
	DIR *d = opendir(vault);
	struct dirent *entry;
	char path[PATH_MAX];
	long pid;

	while (d && (entry = readdir(d))) {
		if (sscanf(entry->d_name, "at-%ld-", &pid) != 1 || pid <= 0 ||
		    kill((pid_t)pid, 0) == 0 || errno != ESRCH ||
		    snprintf(path, sizeof(path), "%s/%s", vault, entry->d_name) >=
			    (int)sizeof(path))
			continue;
		take_off(path);
		(void)rmdir(path); /* the next one may */
	}
	if (d)
		closedir(d);
}

static int open_vault(struct ply_env *e)
{
	struct commits *k = commits_of(e);
	_cleanup_free_ char *path = NULL;
	int r;

	if (asprintf(&path, "%s/commits.git", workspace_store(e->ws)) < 0) {
		path = NULL;
		return fail_memory();
	}
	r = vault_open(path, &k->vault);
	if (r < 0)
		return r;
	sweep(path);
	if (asprintf(&k->at, "%s/at-%ld-XXXXXX", path, (long)getpid()) < 0) {
		k->at = NULL;
		return fail_memory();
	}
	if (!mkdtemp(k->at)) {
		r = fail_errno(errno, "making '%s'", k->at);
		free(k->at);
		k->at = NULL;
		return r;
	}
	return tell_keeper(e);
}

/* The working repository, and the end of the line of checkpoints as it or the vault has it. */
static int join_history(struct ply_env *e)
{
	struct commits *k = commits_of(e);
	_cleanup_(repo_closep) struct repo *repo = NULL;
	_cleanup_free_ char *dot_git = NULL;
	struct repo_id theirs, tip;
	struct stat st;
	int r;

	if (asprintf(&dot_git, "%s/.git", e->workdir) < 0) {
		dot_git = NULL;
		return fail_memory();
	}
	if (lstat(dot_git, &st) < 0 && errno == ENOENT) {
		r = repo_create(e->workdir, k->vault);
		if (r < 0)
			return r;
	}
	r = vault_ref(k->vault, k->ref, &tip);
	if (r < 0)
		return r;
	if (r == 0)
		commit_queue_start(k->queue, &tip);
	r = repo_open(e->workdir, k->vault, &repo);
	if (r != 0)
		return MIN(r, 0);
	r = repo_attach(repo, k->vault);
	if (r == 0)
		r = repo_ref(repo, k->ref, &theirs);
	if (r == 0) {
		r = repo_copy_history(repo, &theirs, k->vault);
		if (r == 0)
			r = vault_set_ref(k->vault, k->ref, &theirs);
		if (r == 0)
			commit_queue_start(k->queue, &theirs);
	}
	if (r >= 0)
		commit_queue_sync(k->queue, k->vault);
	return MIN(r, 0);
}

static int open_commits(struct ply_env *e)
{
	struct commits *k = calloc(1, sizeof(*k));
	int r;

	if (!k)
		return fail_memory();
	e->kind = k;
	pthread_mutex_init(&k->busy, NULL);
	r = mode_of(env_option(e, "commit"), &k->mode);
	if (r == 0)
		r = choose_names(e);
	if (r == 0)
		r = open_vault(e);
	if (r == 0)
		r = commit_queue_new(e->workdir, k->ref, vault_path(k->vault), &k->queue);
	return r == 0 ? join_history(e) : r;
}

/* .git leaves the store: it gets what it has here by reference. */
static int hand_over(struct ply_env *e)
{
	struct commits *k = commits_of(e);
	_cleanup_(repo_closep) struct repo *repo = NULL;
	_cleanup_free_ char *to = NULL;
	int r = repo_open(e->workdir, k->vault, &repo);

	if (r > 0) {
		r = repo_is_attached(e->workdir, k->vault);
		return r > 0 ? fail(PLY_FAILED,
				    "the repository '%s' is damaged, and uses commits that are in "
				    "'%s', which has to stay: repair it, then make an environment "
				    "of kind git there, and end it with a write-back",
				    e->workdir, vault_path(k->vault)) :
			       r;
	}
	if (r < 0)
		return r;
	if (asprintf(&to, "%sobjects", repo_common_dir(repo)) < 0) {
		to = NULL;
		return fail_memory();
	}
	r = vault_copy_objects(k->vault, to);
	/* Set before, if nothing was in the way; and without it git's gc would remove them. */
	if (r == 0)
		r = vault_show_ref(k->vault, k->ref, repo);
	return r == 0 ? repo_detach(repo, k->vault) : r;
}

static int cleanup(struct ply_env *e)
{
	struct commits *k = commits_of(e);
	struct sentence why;
	int r = 0, s;

	if (k && k->queue) {
		r = commit_queue_drain(k->queue);
		if (workspace_is_written_back(e->ws)) {
			s = hand_over(e);
			r = r < 0 ? r : s;
		}
		if (workspace_is_dropped(e->ws))
			(void)vault_drop_ref(k->vault, k->ref); /* stays for nobody, at worst */
	}
	sentence_get(&why);
	if (k)
		commits_free(k);
	e->kind = NULL;
	s = env_local.cleanup(e);
	if (r < 0)
		sentence_put(&why);
	return r < 0 ? r : s;
}

static int setup(struct ply_env *e)
{
	int r = env_local.setup(e);

	if (r < 0)
		return r;
	r = open_commits(e);
	if (r < 0) {
		KEEP_SENTENCE;
		(void)cleanup(e);
	}
	return r;
}

/* The fork continues the line of checkpoints, and knows the tree that we know. */
static int inherit(struct commits *k, struct commits *fork)
{
	struct repo_id tip;
	int r;

	if (k->tree) {
		r = gittree_copy(k->tree, &fork->tree);
		if (r < 0)
			return r;
		memcpy(fork->base, k->base, SNAP_TEXT);
		fork->root = k->root;
	}
	if (commit_queue_tip(k->queue, &tip) != 0)
		return 0;
	r = vault_set_ref(fork->vault, fork->ref, &tip);
	if (r < 0)
		return r;
	commit_queue_start(fork->queue, &tip);
	commit_queue_sync(fork->queue, fork->vault);
	return 0;
}

static int fork_off(struct ply_env *e, const char *workdir, struct ply_env **ret)
{
	struct commits *k = commits_of(e);
	struct ply_env *fork;
	int r;

	LOCK_GUARD(&k->busy);
	r = commit_queue_drain(k->queue);
	if (r == 0)
		r = local_clone(e, workdir, &fork);
	if (r < 0)
		return r;
	r = inherit(k, commits_of(fork));
	if (r < 0) {
		KEEP_SENTENCE;
		ply_env_free(fork);
		return r;
	}
	*ret = fork;
	return 0;
}

const struct env_ops env_git = {
	.kind = "git",
	.check = check,
	.setup = setup,
	.cleanup = cleanup,
	.read_file = local_read_file,
	.write_file = local_write_file,
	.list_files = local_list_files,
	.run = local_run,
	.run_tests = env_run_tests,
	.checkpoint = checkpoint,
	.restore = commits_restore,
	.undo = commits_undo,
	.clone = fork_off,
	.diff = commits_diff,
	.upload = local_upload,
	.download = local_download,
};
