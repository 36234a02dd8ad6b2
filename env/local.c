/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Environments of kind "local", and what the kinds on a view have in common: a view (workspace.h),
 * a keeper above its processes (proc.h), numbers for its checkpoints (numbers.h).
 */

#include <errno.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "env/env_internal.h"
#include "env/exclude.h"
#include "env/files.h"
#include "env/glob.h"
#include "env/numbers.h"
#include "env/status.h"
#include "fs/ioctl.h"
#include "store/base/util.h"

/* What an environment of the other world keeps in its directory; see plyfs.h, list_files. */
#define LEGACY_CHECKPOINTS ".chimera_checkpoints"

/* ---- life ---- */

static int cleanup(struct ply_env *e)
{
	int r = 0;

	numbers_close(e->numbers);
	e->numbers = NULL;
	/*
	 * Nothing of ours may be in the view when it is unmounted. The keeper goes last: if we are
	 * killed before the view is taken down, it takes it down.
	 */
	if (e->keeper)
		(void)keeper_kill(e->keeper); /* who is left is told as the view's user */
	if (e->ws && !e->is_set_up)
		workspace_undo_at_close(e->ws);
	if (e->ws)
		r = workspace_close(e->ws);
	e->ws = NULL;
	keeper_end(e->keeper);
	e->keeper = NULL;
	return r;
}

/* What setup does when there is a view. */
static int move_in(struct ply_env *e)
{
	int r;

	r = numbers_open(e->ws, &e->numbers);
	if (r < 0)
		return r;
	e->workdir = strdup(workspace_path(e->ws));
	return e->workdir ? 0 : fail_memory();
}

static int setup(struct ply_env *e)
{
	const struct workspace_options o = {
		.workdir = e->o.workdir,
		.store = e->o.store,
		.from = e->o.from,
		.branch = e->o.branch,
		.at_cleanup = e->o.at_cleanup,
	};
	int r = 0;

	/* A clone has both already. */
	if (!e->keeper)
		r = keeper_start(&e->keeper);
	if (r == 0 && !e->ws)
		r = workspace_open(&o, e->keeper, &e->ws);
	if (r == 0)
		r = move_in(e);
	if (r < 0) {
		KEEP_SENTENCE;
		(void)cleanup(e);
	}
	return r;
}

/* ---- files ---- */

int local_read_file(struct ply_env *e, const char *path, struct ply_text *ret)
{
	return files_read(e->workdir, path, ret);
}

int local_write_file(struct ply_env *e, const char *path, const void *data, size_t len)
{
	return files_write(e->workdir, path, data, len);
}

int local_list_files(struct ply_env *e, const char *pattern, struct ply_list *ret)
{
	static const char *const hidden[] = { LEGACY_CHECKPOINTS, ".chimera/checkpoints", NULL };

	return glob_list(e->workdir, pattern, hidden, ret);
}

int local_upload(struct ply_env *e, const char *local, const char *path)
{
	return files_upload(e->workdir, local, path);
}

int local_download(struct ply_env *e, const char *path, const char *local)
{
	return files_download(e->workdir, path, local);
}

/* ---- commands ---- */

/* On a line of its own, behind what the command said until then. */
static int say_timeout(struct ply_result *result)
{
	static const char words[] = "Command timed out";
	struct ply_text *err = &result->err;
	int r = 0;

	if (err->len && err->data[err->len - 1] != '\n')
		r = text_append(err, "\n", 1);
	if (r == 0)
		r = text_append(err, words, sizeof(words) - 1);
	if (r < 0)
		ply_result_free(result);
	return r;
}

int local_run(struct ply_env *e, const char *command, double timeout, const char *shell,
	      struct ply_result *ret)
{
	const char *const argv[] = { "/bin/sh", "-c", command, NULL };
	struct proc_options o = { .argv = argv, .cwd = e->workdir, .fds = { -1, -1, -1 } };
	struct proc_capture c = {
		.merge = env_flag(e, "merge"),
		.all_output = true,
		.limit = env_count(e, "output_limit"),
		.timeout = timeout,
	};
	char **wrapped = NULL;
	int r;

	if (ply_env_has_session(e))
		return ply_env_run_in_session(e, command, shell, timeout, ret);
	if (e->ops->wrap) {
		r = e->ops->wrap(e, argv, NULL, false, &wrapped);
		if (r < 0)
			return r;
		o.argv = wrapped ? (const char *const *)wrapped : argv;
		c.all_output = !wrapped; /* a container's first process has it open, too */
	}
	o.limits = (struct proc_limits){
		.memory = env_count(e, "memory"),
		.processes = env_count(e, "processes"),
		.cpu_time = env_count(e, "cpu_time"),
	};
	r = proc_run(e->keeper, &o, &c, ret);
	argv_free(wrapped);
	return r == 0 && ret->timed_out ? say_timeout(ret) : r;
}

/* ---- states ---- */

int local_checkpoint(struct ply_env *e, const char *label, struct ply_text *ret_id)
{
	return numbers_checkpoint(e->numbers, label, ret_id);
}

/* As Python's Path.home(): of the user's record where the environment tells none. */
static bool find_home(char ret[static PATH_MAX])
{
	const char *home = getenv("HOME");
	struct passwd user, *found = NULL;
	char text[16384]; /* glibc's own suggestion is 1024; a long list of fields is allowed */

	if (!home && getpwuid_r(getuid(), &user, text, sizeof(text), &found) == 0 && found)
		home = user.pw_dir;
	return home && *home == '/' && snprintf(ret, PATH_MAX, "%s", home) < PATH_MAX;
}

static int check_place(const char *dir, const char *workdir)
{
	char home[PATH_MAX];
	struct stat a, b;
	bool denied = strcmp(dir, "/") == 0;

	if (!denied && find_home(home)) {
		if (stat(dir, &b) < 0)
			return fail_errno(errno, "'%s'", dir);
		if (stat(home, &a) == 0)
			denied = a.st_dev == b.st_dev && a.st_ino == b.st_ino;
		else if (errno != ENOENT && errno != ENOTDIR && errno != EACCES)
			return fail_errno(errno, "'%s', which no restore may touch", home);
	}
	return denied ? fail(PLY_DENIED, "Refusing to restore: workdir %s is root or HOME",
			     workdir) :
			0;
}

/* Directories that a restore leaves alone, ':'-separated. Given. */
static int excluded(struct ply_env *e, bool legacy, char **ret)
{
	const char *names = env_option(e, "exclude");
	int n;

	n = legacy ? asprintf(ret, "%s%s" LEGACY_CHECKPOINTS, names, *names ? ":" : "")
		   : asprintf(ret, "%s", names);
	return n < 0 ? fail_memory() : 0;
}

static bool has_legacy(struct ply_env *e)
{
	_cleanup_free_ char *path = NULL;

	if (asprintf(&path, "%s/" LEGACY_CHECKPOINTS, e->workdir) < 0) {
		path = NULL;
		return true; /* then nothing is spared but time */
	}
	return access(path, F_OK) == 0 || errno != ENOENT;
}

int local_check_restore(struct ply_env *e)
{
	int r = check_place(e->workdir, e->workdir);

	return r < 0 ? r : check_place(workspace_mount(e->ws), e->workdir);
}

int local_switch(struct ply_env *e, const char *id, char ret_left[SNAP_TEXT])
{
	_cleanup_free_ char *names = NULL;
	bool legacy = has_legacy(e);
	char left[SNAP_TEXT];
	int r;

	LOCK_GUARD(&e->restoring);
	r = local_check_restore(e);
	if (r == 0)
		r = id ? workspace_restore(e->ws, id, left) : workspace_undo(e->ws, left);
	if (r < 0)
		return r;
	if (ret_left)
		memcpy(ret_left, left, SNAP_TEXT);
	if (!*left)
		return 0; /* all is as it was, and so is what is excluded */
	r = excluded(e, legacy || has_legacy(e), &names);
	if (r < 0 || !*names)
		return r;
	return exclude_bring_back(e->ws, e->keeper, names, left);
}

static int restore(struct ply_env *e, const char *id)
{
	_cleanup_free_ char *snap = NULL;
	int r;

	r = numbers_find(e->numbers, id, &snap);
	if (r < 0)
		return r;
	r = local_switch(e, snap, NULL);
	/* A snapshot that was dropped: the number is what the caller knows. */
	return r == PLY_UNKNOWN_ID ? fail(r, "Checkpoint %s not found", id) : r;
}

static int undo(struct ply_env *e)
{
	return local_switch(e, NULL, NULL);
}

int local_clone(struct ply_env *e, const char *workdir, struct ply_env **ret)
{
	struct ply_env *copy;
	int r;

	r = env_copy(e, &copy);
	if (r < 0)
		return r;
	r = keeper_start(&copy->keeper);
	if (r == 0)
		r = workspace_fork(e->ws, NULL, workdir, e->o.at_cleanup, copy->keeper, &copy->ws);
	if (r == 0)
		r = env_setup(copy);
	if (r < 0) {
		KEEP_SENTENCE;
		(void)cleanup(copy);
		ply_env_free(copy);
		return r;
	}
	*ret = copy;
	return 0;
}

/* A state compared with itself: that is only looked up. Keeps the sentence that is there. */
static bool is_unknown(struct ply_env *e, const char *state)
{
	const char *const args[] = { "diff", "--", state, state, NULL };
	_cleanup_(ply_text_free) struct ply_text out = { 0 };
	KEEP_SENTENCE;

	return state && workspace_ask(e->ws, args, &out) == PLY_COMMAND_FAILED;
}

int local_diff(struct ply_env *e, const char *a, const char *b, const char *form,
	       struct ply_text *ret)
{
	static const char *const forms[][2] = { { "name-status", "--name-status" },
						{ "stat", "--stat" },
						{ "patch", "--patch" },
						{ "json", "--json" } };
	_cleanup_free_ char *from = NULL, *to = NULL;
	const char *args[] = { "diff", NULL, "--", NULL, NULL, NULL };
	const char *branch = workspace_branch(e->ws);
	char head[SNAP_TEXT], last[PLYFS_NAME_SIZE + sizeof("~0")];
	int r;

	for (size_t i = 0; i < ARRAY_SIZE(forms); i++)
		if (strcmp(form ? form : "name-status", forms[i][0]) == 0)
			args[1] = forms[i][1];
	if (!args[1])
		return fail(PLY_INVALID,
			    "a form of diff is one of: name-status stat patch json; not '%s'",
			    form);
	r = workspace_sync(e->ws);
	if (r == 0 && a)
		r = numbers_find(e->numbers, a, &from);
	if (r == 0 && b)
		r = numbers_find(e->numbers, b, &to);
	if (r == 0 && !a)
		r = workspace_head(e->ws, head);
	if (r < 0)
		return r;
	if (!a && !*head)
		return fail(PLY_STATE, "there is no checkpoint yet to compare with");
	/* By name: a restore may end the snapshot that we have just seen, and there is another. */
	(void)snprintf(last, sizeof(last), "%s~0", branch);
	args[3] = a ? from : *branch ? last : head;
	args[4] = to;
	r = workspace_verb(e->ws, args, ret);
	if (r == PLY_COMMAND_FAILED && (is_unknown(e, from) || is_unknown(e, to)))
		return PLY_UNKNOWN_ID; /* the program has said which */
	return r;
}

const struct env_ops env_local = {
	.kind = "local",
	.setup = setup,
	.cleanup = cleanup,
	.read_file = local_read_file,
	.write_file = local_write_file,
	.list_files = local_list_files,
	.run = local_run,
	.run_tests = env_run_tests,
	.checkpoint = local_checkpoint,
	.restore = restore,
	.undo = undo,
	.clone = local_clone,
	.diff = local_diff,
	.upload = local_upload,
	.download = local_download,
};
