/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Deployments: what all share, and those that are an environment of this library (local,
 * container).
 *
 * Of an environment's two sides, files are reached from outside (a view is a directory of this
 * machine, also when a container shows it as "/"), commands run inside.
 */

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "env/env_internal.h"
#include "env/pytext.h"
#include "env/repo.h"
#include "env/status.h"
#include "env/swe_config.h"
#include "env/swe_deploy.h"
#include "env/swe_scratch.h"
#include "store/base/util.h"

/* ---- all ---- */

int swe_deploy_new(const json_t *config, struct swe_deploy **ret)
{
	static const struct swe_deploy_ops *const types[] = { &deploy_local, &deploy_container,
							      &deploy_remote, &deploy_dummy };
	const char *type = config_string(config, "type");
	struct swe_deploy *d;

	for (size_t i = 0; i < ARRAY_SIZE(types); i++) {
		if (strcmp(types[i]->type, type) != 0)
			continue;
		d = calloc(1, sizeof(*d));
		if (!d)
			return fail_memory();
		d->ops = types[i];
		d->config = config;
		d->refs = 1;
		d->unprivileged = types[i] == &deploy_local && geteuid() != 0;
		*ret = d;
		return 0;
	}
	return fail(PLY_INVALID, "there is no deployment of type \"%s\"", type);
}

struct swe_deploy *swe_deploy_ref(struct swe_deploy *d)
{
	__atomic_add_fetch(&d->refs, 1, __ATOMIC_RELAXED);
	return d;
}

void swe_deploy_unref(struct swe_deploy *d)
{
	if (!d || __atomic_sub_fetch(&d->refs, 1, __ATOMIC_ACQ_REL) > 0)
		return;
	ply_session_free(d->session);
	ply_env_free(d->env);
	if (d->free_kind)
		d->free_kind(d->kind);
	ply_text_free(&d->pristine);
	ply_text_free(&d->scratch);
	free(d->root);
	free(d->top);
	free(d);
}

void swe_deploy_unrefp(struct swe_deploy **d)
{
	swe_deploy_unref(*d);
}

void swe_answer_free(struct swe_answer *a)
{
	ply_text_free(&a->output);
	*a = (struct swe_answer){ 0 };
}

int deploy_path(const struct swe_deploy *d, const char *path, struct ply_text *ret)
{
	const char *root = d->root ? d->root : "";
	size_t n = strlen(root);
	struct ply_text made = { 0 };
	int r;

	if (n && strncmp(path, root, n) == 0 && (path[n] == '/' || path[n] == '\0'))
		return text_set(ret, path, strlen(path));
	/* The root itself has no slash behind it. */
	r = text_append_format(&made, "%s%s", root, n && strcmp(path, "/") == 0 ? "" : path);
	if (r < 0)
		return r;
	*ret = made;
	return 0;
}

int execute_failed(const char *command, const struct ply_result *result)
{
	_cleanup_(ply_text_free) struct ply_text c = { 0 }, out = { 0 }, err = { 0 };
	int r = text_append_repr(&c, command, strlen(command));

	if (r == 0)
		r = text_append_repr(&out, result->out.data ? result->out.data : "",
				     result->out.len);
	if (r == 0)
		r = text_append_repr(&err, result->err.data ? result->err.data : "",
				     result->err.len);
	if (r < 0)
		return r;
	return fail(PLY_COMMAND_FAILED,
		    "Command %s failed with exit code %d. Stdout:\n%s\nStderr:\n%s", c.data,
		    result->exit_code, out.data, err.data);
}

/* ---- environments of ours ---- */

static bool is_container(const struct swe_deploy *d)
{
	return d->ops == &deploy_container;
}

static bool has_flag(const struct swe_deploy *d, const char *option)
{
	return d->env && strcmp(ply_env_get(d->env, option), "1") == 0;
}

static int set_options(struct swe_deploy *d)
{
	const char *name;
	json_t *v;
	int r;

	json_object_foreach((json_t *)d->config, name, v) {
		if (!json_is_string(v) || strcmp(name, "type") == 0)
			continue;
		if (strcmp(name, "root") == 0 && !is_container(d))
			continue; /* the configuration made it workdir */
		r = ply_env_set(d->env, name, json_string_value(v));
		if (r < 0)
			return fail_in(r, "deployment.%s", name);
	}
	if (config_string(d->config, "workdir") || config_string(d->config, "from") ||
	    config_string(d->config, "store"))
		return 0;
	r = scratch_store(&d->scratch);
	if (r == 0)
		r = ply_env_set(d->env, "store", d->scratch.data);
	return r < 0 ? r : ply_env_set(d->env, "from", SCRATCH_BRANCH);
}

/* What "/" is for this machine, and for processes inside. */
static int find_root(struct swe_deploy *d)
{
	d->top = strdup(ply_env_workdir(d->env));
	if (!d->top)
		return fail_memory();
	if (!is_container(d))
		d->root = strdup(d->top);
	else if (has_flag(d, "root"))
		d->root = strdup("");
	else
		d->root = strdup(ply_env_get(d->env, "at"));
	return d->root ? 0 : fail_memory();
}

static int env_start(struct swe_deploy *d)
{
	int r = ply_env_new(d->ops->type, &d->env);

	if (r == 0)
		r = set_options(d);
	if (r == 0)
		r = ply_env_setup(d->env);
	d->offline = is_container(d) && !has_flag(d, "network");
	if (r == 0)
		r = find_root(d);
	if (r == 0)
		r = ply_env_checkpoint(d->env, NULL, &d->pristine);
	return r;
}

static int env_stop(struct swe_deploy *d, bool afresh)
{
	int r = 0, r2;

	if (d->session)
		(void)ply_session_end(d->session); /* a dead shell is what we want */
	if (d->env && afresh && d->pristine.data)
		r = ply_env_restore(d->env, d->pristine.data);
	r2 = d->env ? ply_env_cleanup(d->env) : 0;
	if (d->scratch.data)
		scratch_sweep(d->scratch.data);
	return r < 0 ? r : r2;
}

static int env_create_session(struct swe_deploy *d)
{
	int r = ply_session_new(d->env, "default", &d->session);

	if (r == 0)
		r = ply_session_set(d->session, "startup_source", "/root/.bashrc");
	if (r == 0)
		r = ply_session_set(d->session, "startup_timeout", "10");
	if (r == 0)
		r = ply_session_start(d->session, NULL);
	return r;
}

static int env_run(struct swe_deploy *d, const char *command, double timeout,
		   struct swe_answer *ret)
{
	const struct ply_session_run run = { .command = command,
					     .timeout = timeout,
					     .check = PLY_CHECK_SILENT };
	struct ply_observation o = { 0 };
	int r;

	if (!d->session)
		return fail(PLY_STATE, "there is no session: the environment was not started");
	r = ply_session_run(d->session, &run, &o);
	ret->output = o.output; /* after a timeout: what there was so far */
	text_remove_controls(&ret->output);
	ret->exit_code = o.exit_code;
	ret->exit_code_known = o.exit_code_known;
	return r;
}

static int env_interrupt(struct swe_deploy *d)
{
	if (!d->session)
		return fail(PLY_STATE, "there is no session: the environment was not started");
	return ply_session_interrupt(d->session, 0.2, 3, NULL);
}

/*
 * The words of a command: in a container the runtime's go before them, and directory and
 * environment must be changed behind those.
 */
static int execute_words(const struct swe_deploy *d, const struct swe_execute *x, const char *cwd,
			 char ***ret)
{
	_cleanup_free_ const char **words = calloc(x->n_env + 12, sizeof(*words));
	size_t n = 0;

	if (!words)
		return fail_memory();
	if (cwd && d->env->ops->wrap) {
		words[n++] = "/bin/sh";
		words[n++] = "-c";
		words[n++] = "cd -- \"$0\" && exec \"$@\"";
		words[n++] = cwd;
	}
	if (x->env && d->env->ops->wrap) {
		words[n++] = "env";
		words[n++] = "-i";
		for (size_t i = 0; i < x->n_env; i++)
			words[n++] = x->env[i];
	}
	words[n++] = "/bin/sh";
	words[n++] = "-c";
	words[n++] = x->command;
	if (d->env->ops->wrap)
		return d->env->ops->wrap(d->env, words, NULL, false, ret);

	*ret = calloc(n + 1, sizeof(**ret));
	for (size_t i = 0; *ret && i < n; i++) {
		(*ret)[i] = strdup(words[i]);
		if (!(*ret)[i]) {
			argv_free(*ret);
			*ret = NULL;
		}
	}
	return *ret ? 0 : fail_memory();
}

static void argv_freep(char ***argv)
{
	if (*argv)
		argv_free(*argv);
}

/* "K=V" words, ended by NULL; NULL for the environment's own. */
static int execute_env(const struct swe_execute *x, const char ***ret)
{
	if (!x->env)
		return 0;
	*ret = calloc(x->n_env + 1, sizeof(**ret));
	if (!*ret)
		return fail_memory();
	memcpy(*ret, x->env, x->n_env * sizeof(**ret));
	return 0;
}

/* proc_run in the environment's keeper, which is there while the environment is set up. */
static int run_in_keeper(struct swe_deploy *d, const struct proc_options *o, double timeout,
			 struct ply_result *ret)
{
	const struct proc_capture capture = { .all_output = true, .timeout = timeout };
	int r = env_enter(d->env);

	if (r < 0)
		return r;
	r = proc_run(d->env->keeper, o, &capture, ret);
	env_leave(d->env);
	return r;
}

static int env_execute(struct swe_deploy *d, const struct swe_execute *x, struct ply_result *ret)
{
	struct proc_options o = { .fds = { -1, -1, -1 } };
	_cleanup_(argv_freep) char **argv = NULL;
	_cleanup_(ply_text_free) struct ply_text cwd = { 0 };
	_cleanup_free_ const char **env = NULL;
	int r;

	r = deploy_path(d, x->cwd ? x->cwd : "/", &cwd);
	if (r == 0)
		r = execute_words(d, x, cwd.data, &argv);
	if (r == 0 && !d->env->ops->wrap)
		r = execute_env(x, &env);
	if (r < 0)
		return r;
	if (!d->env->ops->wrap && access(cwd.data, X_OK) < 0)
		return fail_errno(errno, "the directory %s", cwd.data);
	o.argv = (const char *const *)argv;
	o.env = env;
	if (!d->env->ops->wrap)
		o.cwd = cwd.data;
	o.limits = (struct proc_limits){
		.memory = env_count(d->env, "memory"),
		.processes = env_count(d->env, "processes"),
		.cpu_time = env_count(d->env, "cpu_time"),
	};
	r = run_in_keeper(d, &o, x->timeout, ret);
	if (r == 0 && ret->timed_out)
		return fail(PLY_TIMEOUT, "Timeout (%gs) exceeded while running command",
			    x->timeout);
	if (r == 0 && x->check && ret->exit_code != 0)
		return execute_failed(x->command, ret);
	return r;
}

static int env_read_file(struct swe_deploy *d, const char *path, struct ply_text *ret)
{
	_cleanup_(ply_text_free) struct ply_text p = { 0 };
	int r = deploy_path(d, path, &p);

	return r < 0 ? r : ply_env_read_file(d->env, p.data, ret);
}

static int env_write_file(struct swe_deploy *d, const char *path, const void *data, size_t len)
{
	_cleanup_(ply_text_free) struct ply_text p = { 0 };
	int r = deploy_path(d, path, &p);

	return r < 0 ? r : ply_env_write_file(d->env, p.data, data, len);
}

/* A path of the environment as this machine sees it. */
static int outer_path(const struct swe_deploy *d, const char *path, struct ply_text *ret)
{
	_cleanup_(ply_text_free) struct ply_text p = { 0 };
	struct ply_text made = { 0 };
	int r;

	r = deploy_path(d, path, &p);
	if (r == 0)
		r = text_append_format(&made, "%s%s", d->top, p.data + strlen(d->root));
	if (r < 0)
		return r;
	*ret = made;
	return 0;
}

static int env_exists(struct swe_deploy *d, const char *path)
{
	_cleanup_(ply_text_free) struct ply_text outer = { 0 };
	struct stat st;
	int r;

	r = outer_path(d, path, &outer);
	if (r < 0)
		return r;
	if (lstat(outer.data, &st) == 0)
		return 1;
	return errno == ENOENT || errno == ENOTDIR ? 0 : fail_errno(errno, "%s", outer.data);
}

static int env_copy_tree(struct swe_deploy *d, const char *from, const char *path)
{
	_cleanup_(ply_text_free) struct ply_text outer = { 0 }, source = { 0 };
	_cleanup_(ply_result_free) struct ply_result result = { 0 };
	struct proc_options o = { .fds = { -1, -1, -1 } };
	int r;

	r = outer_path(d, path, &outer);
	if (r == 0)
		r = text_append_format(&source, "%s/.", from);
	if (r < 0)
		return r;
	/* Everything, as it is: modes, links, times, what git ignores. */
	o.argv = (const char *const[]){ "cp", "-a", "--", source.data, outer.data, NULL };
	r = run_in_keeper(d, &o, 0, &result);
	if (r < 0)
		return r;
	if (result.exit_code != 0)
		return fail(PLY_FAILED, "copying %s to %s: %s", from, outer.data, result.err.data);
	return 0;
}

static int env_clone(struct swe_deploy *d, const char *url, const char *commit, double timeout,
		     const char *path)
{
	_cleanup_(ply_text_free) struct ply_text outer = { 0 };
	int r = outer_path(d, path, &outer);

	/* From outside: a container may have no network. */
	return r < 0 ? r : repo_clone_at(url, commit, outer.data, 1, timeout, NULL, NULL);
}

static int env_checkpoint(struct swe_deploy *d, struct ply_text *ret_id)
{
	return ply_env_checkpoint(d->env, NULL, ret_id);
}

static int env_restore(struct swe_deploy *d, const char *id)
{
	return ply_env_restore(d->env, id);
}

/* ---- the table ---- */

#define ENV_OPS                                                                         \
	.start = env_start, .stop = env_stop, .create_session = env_create_session,     \
	.run = env_run, .interrupt = env_interrupt, .execute = env_execute,             \
	.read_file = env_read_file, .write_file = env_write_file, .exists = env_exists, \
	.copy_tree = env_copy_tree, .clone = env_clone, .checkpoint = env_checkpoint,   \
	.restore = env_restore

const struct swe_deploy_ops deploy_local = { .type = "local", ENV_OPS };
const struct swe_deploy_ops deploy_container = { .type = "container", ENV_OPS };
