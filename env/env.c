/* SPDX-License-Identifier: Apache-2.0 */

/*
 * ply_env_*: what is the same for all kinds. An environment is set up or not (`life` says so and
 * lets nobody set it up or clean it up while a verb is under way); the verbs of plyfs.h go to the
 * kind's table. Sessions are in env_sessions.c.
 */

#include "env/env_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "env/env_sessions.h"
#include "env/status.h"
#include "store/base/util.h"

static const struct env_ops *const kinds[] = { &env_local, &env_git, &env_container, &env_remote,
					       &env_cloud };

static void env_freep(struct ply_env **e)
{
	ply_env_free(*e);
}

static int env_new(const struct env_ops *ops, struct ply_env **ret)
{
	struct ply_env *e = calloc(1, sizeof(*e));

	if (!e)
		return fail_memory();
	e->ops = ops;
	pthread_rwlock_init(&e->life, NULL);
	pthread_mutex_init(&e->restoring, NULL);
	pthread_mutex_init(&e->lock, NULL);
	*ret = e;
	return 0;
}

int ply_env_new(const char *kind, struct ply_env **ret)
{
	for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
		if (strcmp(kinds[i]->kind, kind) == 0)
			return env_new(kinds[i], ret);
	return fail(PLY_INVALID,
		    "no kind of environment is called '%s': cloud, container, git, local, remote",
		    kind);
}

static void forget(char **option)
{
	free(*option);
	*option = NULL;
}

int env_copy(const struct ply_env *e, struct ply_env **ret)
{
	_cleanup_(env_freep) struct ply_env *copy = NULL;
	int r;

	r = env_new(e->ops, &copy);
	if (r < 0)
		return r;
#define X(name)                                              \
	copy->o.name = e->o.name ? strdup(e->o.name) : NULL; \
	if (e->o.name && !copy->o.name)                      \
		return fail_memory();
	ENV_OPTIONS(X)
#undef X
	/* What says where the first one is, or is its alone. */
	forget(&copy->o.workdir);
	forget(&copy->o.store);
	forget(&copy->o.from);
	forget(&copy->o.branch);
	forget(&copy->o.ref);
	forget(&copy->o.session);
	*ret = TAKE_PTR(copy);
	return 0;
}

/* ---- life ---- */

int env_enter(struct ply_env *e)
{
	int r = 0;

	pthread_rwlock_rdlock(&e->life);
	if (!e->is_set_up)
		r = fail(PLY_STATE, "the environment is not set up: call setup first");
	else if (__atomic_load_n(&e->is_ending, __ATOMIC_RELAXED))
		r = fail(PLY_STATE, "the environment is being cleaned up");
	else if (e->ws)
		r = workspace_check(e->ws);
	if (r < 0)
		pthread_rwlock_unlock(&e->life);
	return r;
}

void env_leave(struct ply_env *e)
{
	pthread_rwlock_unlock(&e->life);
}

static int set_up(struct ply_env *e)
{
	int r;

	if (e->ops->check) {
		r = e->ops->check(e);
		if (r < 0)
			return r;
	}
	e->timeout = env_number(e, "timeout");
	r = e->ops->setup(e);
	if (r < 0) {
		free(e->workdir);
		e->workdir = NULL;
		return r;
	}
	e->is_set_up = true;
	return 0;
}

int env_setup(struct ply_env *e)
{
	WRITE_GUARD(&e->life);
	if (e->is_set_up)
		return fail(PLY_STATE, "the environment is set up already");
	return set_up(e);
}

static void kill_all(struct ply_env *e)
{
	READ_GUARD(&e->life);

	if (e->keeper)
		(void)keeper_kill(e->keeper); /* the kind's cleanup tells */
}

/*
 * `life` for writing. Commands of other threads end now, not at their timeout; none begins any
 * more, but one may have been about to, so they are killed until all are out.
 */
static void lock_to_end(struct ply_env *e)
{
	struct timespec until;

	do {
		kill_all(e);
		until = wait_until(1000);
	} while (pthread_rwlock_timedwrlock(&e->life, &until) == ETIMEDOUT);
	__atomic_store_n(&e->is_ending, false, __ATOMIC_RELAXED);
}

/* in_vain: what setup did is undone, whatever at_cleanup says. */
static int end(struct ply_env *e, bool in_vain)
{
	_cleanup_(rwlock_unlockp) _unused_ pthread_rwlock_t *locked = &e->life;
	int r, s;

	__atomic_store_n(&e->is_ending, true, __ATOMIC_RELAXED);
	s = env_end_sessions(e, kill_all);
	lock_to_end(e);
	(void)ply_env_end_session(e); /* whose start was under way: it is dead */
	if (!e->is_set_up)
		return 0;
	e->is_set_up = !in_vain;
	r = e->ops->cleanup(e);
	e->is_set_up = false;
	free(e->workdir);
	e->workdir = NULL;
	return r < 0 ? r : s;
}

int ply_env_cleanup(struct ply_env *e)
{
	return end(e, false);
}

int ply_env_setup(struct ply_env *e)
{
	int r;

	r = env_setup(e);
	if (r < 0)
		return r;
	if (!env_flag(e, "session"))
		return 0;
	r = ply_env_start_session(e, NULL);
	if (r < 0) {
		KEEP_SENTENCE;
		(void)end(e, true);
	}
	return r;
}

void ply_env_free(struct ply_env *e)
{
	if (!e)
		return;
	(void)ply_env_cleanup(e); /* who wants to know calls it */
	env_options_release(&e->o);
	pthread_mutex_destroy(&e->lock);
	pthread_mutex_destroy(&e->restoring);
	pthread_rwlock_destroy(&e->life);
	free(e->workdir);
	free(e);
}

const char *ply_env_workdir(struct ply_env *e)
{
	READ_GUARD(&e->life);
	return e->workdir ? e->workdir : env_option(e, "workdir");
}

/* ---- verbs: what they return is empty before anything can fail ---- */

static void leavep(struct ply_env **e)
{
	if (*e)
		env_leave(*e);
}

static int enter(struct ply_env *e, bool can, const char *verb, struct ply_env **ret)
{
	int r;

	r = env_enter(e);
	if (r < 0)
		return r;
	if (!can) {
		env_leave(e);
		return fail(PLY_UNSUPPORTED, "%s environments do not support %s", e->ops->kind,
			    verb);
	}
	*ret = e;
	return 0;
}

/* For the rest of the function. PLY_STATE before setup, PLY_UNSUPPORTED for a gap in the table. */
#define ENTER(e, verb)                                           \
	_cleanup_(leavep) struct ply_env *entered = NULL;        \
	int enter_r = enter(e, (e)->ops->verb, #verb, &entered); \
	if (enter_r < 0)                                         \
	return enter_r

int ply_env_read_file(struct ply_env *e, const char *path, struct ply_text *ret)
{
	*ret = (struct ply_text){ 0 };
	ENTER(e, read_file);
	return e->ops->read_file(e, path, ret);
}

int ply_env_write_file(struct ply_env *e, const char *path, const void *data, size_t len)
{
	ENTER(e, write_file);
	return e->ops->write_file(e, path, data, len);
}

int ply_env_list_files(struct ply_env *e, const char *pattern, struct ply_list *ret)
{
	int r;

	*ret = (struct ply_list){ 0 };
	ENTER(e, list_files);
	r = e->ops->list_files(e, pattern, ret);
	return r < 0 ? r : list_end(ret);
}

int ply_env_run(struct ply_env *e, const char *command, double timeout, const char *shell,
		struct ply_result *ret)
{
	*ret = (struct ply_result){ 0 };
	ENTER(e, run);
	return e->ops->run(e, command, timeout > 0 ? timeout : e->timeout, shell, ret);
}

int ply_env_run_tests(struct ply_env *e, struct ply_tests *ret)
{
	*ret = (struct ply_tests){ 0 };
	ENTER(e, run_tests);
	return e->ops->run_tests(e, ret);
}

int ply_env_checkpoint(struct ply_env *e, const char *label, struct ply_text *ret_id)
{
	*ret_id = (struct ply_text){ 0 };
	ENTER(e, checkpoint);
	return e->ops->checkpoint(e, label, ret_id);
}

int ply_env_restore(struct ply_env *e, const char *id)
{
	ENTER(e, restore);
	return e->ops->restore(e, id);
}

int ply_env_undo(struct ply_env *e)
{
	ENTER(e, undo);
	return e->ops->undo(e);
}

int ply_env_clone(struct ply_env *e, const char *workdir, struct ply_env **ret)
{
	ENTER(e, clone);
	return e->ops->clone(e, workdir, ret);
}

int ply_env_diff(struct ply_env *e, const char *a, const char *b, const char *form,
		 struct ply_text *ret)
{
	int r;

	*ret = (struct ply_text){ 0 };
	ENTER(e, diff);
	r = e->ops->diff(e, a, b, form, ret);
	return r == 0 && !ret->data ? text_set(ret, "", 0) : r; /* nothing differs */
}

int ply_env_upload(struct ply_env *e, const char *local, const char *path)
{
	ENTER(e, upload);
	return e->ops->upload(e, local, path);
}

int ply_env_download(struct ply_env *e, const char *path, const char *local)
{
	ENTER(e, download);
	return e->ops->download(e, path, local);
}

void argv_free(char **argv)
{
	for (char **p = argv; p && *p; p++)
		free(*p);
	free(argv);
}
