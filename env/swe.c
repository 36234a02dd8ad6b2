/* SPDX-License-Identifier: Apache-2.0 */

/*
 * SWEEnv: one deployment, at most one repository, one session. The order of calls, of hooks and of
 * commands is upstream's, since hooks and servers see it.
 *
 * A reset comes in two kinds. By commands it is upstream's: `cd /`, copy the repository when it is
 * missing, then a row of git commands. By snapshot it is one restore of the state that start left,
 * which undoes everything that was done to the files since, and a `cd`. Both end with the session
 * in the repository, ROOT exported, HEAD at base_commit and a clean tree. What start left is not
 * clean when post-startup commands came after its reset; then the first reset runs the git commands
 * on it once, and what they make of it is the snapshot from then on.
 *
 * A call holds a reference to the deployment, not a lock, so that interrupting, reading files and
 * closing go on while a command runs in another thread.
 */

#include <errno.h>
#include <stdlib.h>

#include "env/pytext.h"
#include "env/status.h"
#include "env/swe.h"
#include "env/swe_config.h"
#include "store/base/util.h"

#define COMMUNICATE_TIMEOUT 25 /* seconds; these three are upstream's */
#define LAST_ACTION_TIMEOUT 1
#define RESET_TIMEOUT 120 /* git may rebuild the index of a large repository */

/* A sentence shows so much of a command: the rest of it must find room, too. */
#define SHOWN_MAX 3000

/* ---- making ---- */

int ply_swe_from_config(const char *config, size_t len, struct ply_swe **ret)
{
	struct ply_swe *swe = calloc(1, sizeof(*swe));
	pthread_mutexattr_t recursive;
	const char *type, *reset;
	int r;

	if (!swe)
		return fail_memory();
	pthread_mutexattr_init(&recursive);
	pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
	pthread_mutex_init(&swe->serial, &recursive);
	pthread_mutexattr_destroy(&recursive);
	pthread_mutex_init(&swe->lock, NULL);

	r = swe_config_parse(config, len, &swe->config);
	if (r == 0)
		r = swe_repo_new(json_object_get(swe->config, "repo"), &swe->repo);
	if (r == 0) {
		type = config_string(json_object_get(swe->config, "deployment"), "type");
		reset = config_string(swe->config, "reset");
		if (reset && strcmp(reset, "snapshot") == 0 && strcmp(type, "local") != 0 &&
		    strcmp(type, "container") != 0)
			r = fail(PLY_INVALID,
				 "reset: snapshot needs a local or container deployment; a %s one "
				 "keeps none: use reset: commands",
				 type);
	}
	if (r < 0) {
		ply_swe_free(swe);
		return r;
	}
	*ret = swe;
	return 0;
}

int ply_swe_from_file(const char *path, struct ply_swe **ret)
{
	_cleanup_fclose_ FILE *f = fopen(path, "re");
	_cleanup_(ply_text_free) struct ply_text text = { 0 };
	char buf[4096];
	size_t n;
	int r;

	if (!f)
		return fail_errno(errno, "reading the configuration %s", path);
	while ((n = fread(buf, 1, sizeof(buf), f)) > 0) {
		r = text_append(&text, buf, n);
		if (r < 0)
			return r;
	}
	if (ferror(f))
		return fail_errno(errno, "reading the configuration %s", path);
	r = ply_swe_from_config(text.data ? text.data : "", text.len, ret);
	return r < 0 ? fail_in(r, "%s", path) : r;
}

void ply_swe_free(struct ply_swe *swe)
{
	if (!swe)
		return;
	(void)ply_swe_close(swe); /* whoever wants to know calls it */
	swe_repo_free(swe->repo);
	json_decref(swe->config);
	ply_text_free(&swe->snapshot);
	free(swe->hooks);
	pthread_mutex_destroy(&swe->serial);
	pthread_mutex_destroy(&swe->lock);
	free(swe);
}

/* ---- hooks ---- */

static int hook_failed(int r, const char *name)
{
	return fail(r, "the hook %s ended it (%s)", name, ply_status_name(r));
}

int ply_swe_add_hook(struct ply_swe *swe, const struct ply_swe_hooks *hooks)
{
	LOCK_GUARD(&swe->serial);
	struct ply_swe_hooks *more;
	int r = hooks->on_init ? hooks->on_init(hooks->arg, swe) : 0;

	if (r < 0)
		return hook_failed(r, "on_init");
	more = realloc(swe->hooks, (swe->n_hooks + 1) * sizeof(*more));
	if (!more)
		return fail_memory();
	more[swe->n_hooks++] = *hooks;
	swe->hooks = more;
	return 0;
}

/* One point of all hooks, in the order in which they were added. They may add others. */
#define CALL_HOOKS(swe, point, ...)                                          \
	({                                                                   \
		int r_ = 0;                                                  \
		for (size_t i_ = 0; r_ >= 0 && i_ < (swe)->n_hooks; i_++) {  \
			struct ply_swe_hooks h_ = (swe)->hooks[i_];          \
			r_ = h_.point ? h_.point(h_.arg, ##__VA_ARGS__) : 0; \
		}                                                            \
		r_ < 0 ? hook_failed(r_, #point) : 0;                        \
	})

/* ---- the deployment ---- */

struct swe_deploy *swe_deployment(struct ply_swe *swe)
{
	LOCK_GUARD(&swe->lock);
	return swe->deploy ? swe_deploy_ref(swe->deploy) : NULL;
}

/* As swe_deployment, or PLY_STATE. */
static int deployment(struct ply_swe *swe, struct swe_deploy **ret)
{
	*ret = swe_deployment(swe);
	if (!*ret)
		return fail(PLY_STATE, "the environment is not started (or was closed): start it");
	return 0;
}

/* Ends what is there; 1 when nothing was. */
static int stop(struct ply_swe *swe, bool afresh)
{
	_cleanup_(swe_deploy_unrefp) struct swe_deploy *d = NULL;

	pthread_mutex_lock(&swe->lock);
	d = TAKE_PTR(swe->deploy);
	pthread_mutex_unlock(&swe->lock);
	ply_text_free(&swe->snapshot);
	if (!d)
		return 1;
	return d->ops->stop(d, afresh);
}

static int close_it(struct ply_swe *swe, bool afresh)
{
	int r = stop(swe, afresh);

	if (r != 0)
		return r > 0 ? 0 : r;
	return CALL_HOOKS(swe, on_close);
}

int ply_swe_close(struct ply_swe *swe)
{
	LOCK_GUARD(&swe->serial);
	return close_it(swe, false);
}

/* ---- commands ---- */

/* Command 'x' failed (r.exit_code=1): Command failed */
static int command_failed(const char *input, const struct swe_answer *a, const char *error_msg)
{
	_cleanup_(ply_text_free) struct ply_text shown = { 0 };
	char code[16] = "None";
	int r = text_append_repr(&shown, input, strlen(input));

	if (r < 0)
		return r;
	if (a->exit_code_known)
		(void)snprintf(code, sizeof(code), "%d", a->exit_code); /* fits */
	return fail(PLY_COMMAND_FAILED, "Command %.*s%s failed (r.exit_code=%s): %s", SHOWN_MAX,
		    shown.data, shown.len > SHOWN_MAX ? "..." : "", code, error_msg);
}

static int export_last_action(struct swe_deploy *d, const char *input)
{
	_cleanup_(ply_text_free) struct ply_text command = { 0 };
	_cleanup_(swe_answer_free) struct swe_answer a = { 0 };
	size_t len = strlen(input);
	_cleanup_free_ char *action = NULL;
	int r;

	text_strip(&input, &len);
	action = strndup(input, len);
	if (!action)
		return fail_memory();
	r = text_append_str(&command, "export LAST_ACTION=");
	if (r == 0)
		r = text_append_quoted(&command, action);
	return r < 0 ? r : d->ops->run(d, command.data, LAST_ACTION_TIMEOUT, &a);
}

int ply_swe_communicate(struct ply_swe *swe, const char *input,
			const struct ply_swe_communicate *options, struct ply_text *ret)
{
	static const struct ply_swe_communicate defaults = { 0 };
	_cleanup_(swe_deploy_unrefp) struct swe_deploy *d = NULL;
	_cleanup_(swe_answer_free) struct swe_answer a = { 0 };
	const struct ply_swe_communicate *o = options ? options : &defaults;
	int r, outcome = 0;

	if (ret)
		*ret = (struct ply_text){ 0 };
	r = deployment(swe, &d);
	if (r < 0)
		return r;
	r = d->ops->run(d, input, o->timeout > 0 ? o->timeout : COMMUNICATE_TIMEOUT, &a);
	if (r == 0 && o->check != PLY_SWE_IGNORE && (!a.exit_code_known || a.exit_code != 0)) {
		r = command_failed(input, &a, o->error_msg ? o->error_msg : "Command failed");
		if (r == PLY_COMMAND_FAILED && o->check == PLY_SWE_WARN) {
			outcome = 1;
			r = 0;
		} else if (r == PLY_COMMAND_FAILED && !o->keep_open) {
			KEEP_SENTENCE;
			(void)ply_swe_close(swe); /* the command's failure is the news */
		}
	}
	if (r == 0 && o->set_last_action)
		r = export_last_action(d, input);
	/* What was printed is told after a failure, too: it says most about it. */
	if (ret && (r == 0 || r == PLY_COMMAND_FAILED || r == PLY_TIMEOUT)) {
		*ret = a.output;
		a.output = (struct ply_text){ 0 };
	}
	return r < 0 ? r : outcome;
}

/* A step of start or reset. */
static int must(struct ply_swe *swe, const char *command, double timeout, const char *error_msg)
{
	const struct ply_swe_communicate o = { .timeout = timeout,
					       .check = PLY_SWE_RAISE,
					       .error_msg = error_msg };

	return ply_swe_communicate(swe, command, &o, NULL);
}

static bool is_variable_name(const char *s)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_";
	static const char more[] =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";

	return *s && strchr(letters, *s) && s[strspn(s, more)] == '\0';
}

int ply_swe_set_env(struct ply_swe *swe, const char *const *pairs, size_t n)
{
	_cleanup_(ply_text_free) struct ply_text command = { 0 };
	int r = 0;

	for (size_t i = 0; r == 0 && i < n; i++) {
		if (!is_variable_name(pairs[2 * i]))
			return fail(PLY_INVALID, "\"%s\" is no name of a variable", pairs[2 * i]);
		r = text_append_format(&command, "%sexport %s=", i ? " && " : "", pairs[2 * i]);
		if (r == 0)
			r = text_append_quoted(&command, pairs[2 * i + 1]);
	}
	if (r < 0 || n == 0)
		return r;
	return must(swe, command.data, 0, NULL);
}

int ply_swe_interrupt(struct ply_swe *swe)
{
	_cleanup_(swe_deploy_unrefp) struct swe_deploy *d = NULL;
	int r = deployment(swe, &d);

	return r < 0 ? r : d->ops->interrupt(d);
}

int ply_swe_execute(struct ply_swe *swe, const char *command, bool check, const char *const *env,
		    size_t n_env, const char *cwd, struct ply_result *ret)
{
	const struct swe_execute x = {
		.command = command,
		.check = check,
		.env = env,
		.n_env = n_env,
		.cwd = cwd,
	};
	_cleanup_(swe_deploy_unrefp) struct swe_deploy *d = NULL;
	_cleanup_(ply_result_free) struct ply_result result = { 0 };
	int r;

	if (ret)
		*ret = (struct ply_result){ 0 };
	r = deployment(swe, &d);
	if (r == 0)
		r = d->ops->execute(d, &x, &result);
	if (ret && (r == 0 || r == PLY_COMMAND_FAILED)) {
		*ret = result;
		result = (struct ply_result){ 0 };
	}
	return r;
}

/* ---- start, reset ---- */

static int change_dir(struct ply_swe *swe, struct swe_deploy *d)
{
	_cleanup_(ply_text_free) struct ply_text root = { 0 }, command = { 0 };
	int r = deploy_path(d, "/", &root);

	if (r == 0)
		r = text_append_str(&command, "cd ");
	if (r == 0)
		r = text_append_quoted(&command, root.data);
	return r < 0 ? r : must(swe, command.data, 0, NULL);
}

static int reset_repository(struct ply_swe *swe, struct swe_deploy *d, bool all, double timeout)
{
	_cleanup_(ply_text_free) struct ply_text command = { 0 };
	int r;

	if (!swe->repo)
		return 0;
	r = swe_repo_reset_command(swe->repo, d, all, &command);
	if (r == 0)
		r = must(swe, command.data, timeout, "Failed to clean repository");
	return swe_repo_hide_token(r);
}

static int reset_by_commands(struct ply_swe *swe, struct swe_deploy *d)
{
	int r = change_dir(swe, d);

	if (r == 0 && swe->repo) {
		r = d->ops->exists(d, swe->repo->path);
		if (r == 0) {
			r = CALL_HOOKS(swe, on_copy_repo_started, swe->repo->name);
			if (r == 0)
				r = swe_repo_copy(swe->repo, d);
		}
	}
	if (r >= 0)
		r = reset_repository(swe, d, true, RESET_TIMEOUT);
	return r < 0 ? r : CALL_HOOKS(swe, on_environment_startup);
}

static int take_snapshot(struct ply_swe *swe, struct swe_deploy *d, bool is_clean)
{
	struct ply_text id = { 0 };
	int r = d->ops->checkpoint(d, &id);

	if (r < 0)
		return r;
	ply_text_free(&swe->snapshot);
	swe->snapshot = id;
	swe->snapshot_is_clean = is_clean;
	return 0;
}

static int reset_by_snapshot(struct ply_swe *swe, struct swe_deploy *d)
{
	bool clean = swe->snapshot_is_clean;
	int r = d->ops->restore(d, swe->snapshot.data);

	if (r == 0)
		r = swe->repo ? reset_repository(swe, d, !clean, clean ? 0 : RESET_TIMEOUT)
			      : change_dir(swe, d);
	if (r == 0 && !clean)
		r = take_snapshot(swe, d, true);
	return r < 0 ? r : CALL_HOOKS(swe, on_environment_startup);
}

int ply_swe_reset(struct ply_swe *swe)
{
	LOCK_GUARD(&swe->serial);
	_cleanup_(swe_deploy_unrefp) struct swe_deploy *d = NULL;
	int r = deployment(swe, &d);

	if (r < 0)
		return r;
	return swe->snapshot.data ? reset_by_snapshot(swe, d) : reset_by_commands(swe, d);
}

/* Until there is a session. What fails here leaves nothing behind. */
static int init_deployment(struct ply_swe *swe)
{
	struct swe_deploy *d = NULL;
	int r = CALL_HOOKS(swe, on_start_deployment);

	if (r == 0)
		r = swe_deploy_new(json_object_get(swe->config, "deployment"), &d);
	if (r < 0)
		return r;
	r = d->ops->start(d);
	if (r == 0)
		r = d->ops->create_session(d);
	if (r < 0) {
		KEEP_SENTENCE;
		(void)d->ops->stop(d, true); /* why it failed is the news */
		swe_deploy_unref(d);
		return r;
	}
	pthread_mutex_lock(&swe->lock);
	swe->deploy = d;
	pthread_mutex_unlock(&swe->lock);
	return 0;
}

static int set_up(struct ply_swe *swe, struct swe_deploy *d)
{
	static const char *const variables[] = {
		"LANG", "C.UTF-8", "LC_ALL", "C.UTF-8", "PIP_PROGRESS_BAR", "off", "PAGER", "cat"
	};
	const json_t *commands = json_object_get(swe->config, "post_startup_commands");
	const char *reset = config_string(swe->config, "reset");
	int r;

	r = ply_swe_set_env(swe, variables, ARRAY_SIZE(variables) / 2);
	if (r == 0)
		r = reset_by_commands(swe, d);
	for (size_t i = 0; r == 0 && i < json_array_size(commands); i++)
		r = must(swe, json_string_value(json_array_get(commands, i)),
			 config_number(swe->config, "post_startup_command_timeout"), NULL);
	if (r < 0 || !d->ops->restore || (reset && strcmp(reset, "commands") == 0) ||
	    (swe->repo && !swe_repo_is_reset(swe->repo)))
		return r;
	return take_snapshot(swe, d, !swe->repo || json_array_size(commands) == 0);
}

int ply_swe_start(struct ply_swe *swe)
{
	LOCK_GUARD(&swe->serial);
	_cleanup_(swe_deploy_unrefp) struct swe_deploy *d = swe_deployment(swe);
	int r;

	if (d)
		return fail(PLY_STATE, "the environment is started already: reset or close it");
	r = init_deployment(swe);
	if (r == 0)
		r = deployment(swe, &d);
	return r < 0 ? r : set_up(swe, d);
}

int ply_swe_hard_reset(struct ply_swe *swe)
{
	LOCK_GUARD(&swe->serial);
	int r = close_it(swe, true);

	return r < 0 ? r : ply_swe_start(swe);
}

/* ---- files ---- */

/* Relative paths are in the repository. */
static int absolute(struct ply_swe *swe, const char *path, struct ply_text *ret)
{
	if (*path == '/')
		return text_set(ret, path, strlen(path));
	if (!swe->repo)
		return fail(PLY_INVALID, "Repository not set, cannot read file");
	*ret = (struct ply_text){ 0 };
	return text_append_format(ret, "%s/%s", swe->repo->path, path);
}

int ply_swe_read_file(struct ply_swe *swe, const char *path, struct ply_text *ret)
{
	_cleanup_(swe_deploy_unrefp) struct swe_deploy *d = NULL;
	_cleanup_(ply_text_free) struct ply_text full = { 0 };
	int r = absolute(swe, path, &full);

	*ret = (struct ply_text){ 0 };
	if (r == 0)
		r = deployment(swe, &d);
	return r < 0 ? r : d->ops->read_file(d, full.data, ret);
}

int ply_swe_write_file(struct ply_swe *swe, const char *path, const void *data, size_t len)
{
	_cleanup_(swe_deploy_unrefp) struct swe_deploy *d = NULL;
	_cleanup_(ply_text_free) struct ply_text full = { 0 };
	int r = absolute(swe, path, &full);

	if (r == 0)
		r = deployment(swe, &d);
	return r < 0 ? r : d->ops->write_file(d, full.data, data, len);
}

struct ply_env *ply_swe_env(struct ply_swe *swe)
{
	LOCK_GUARD(&swe->lock);
	return swe->deploy ? swe->deploy->env : NULL;
}

int ply_quote(const char *word, struct ply_text *ret)
{
	int r;

	*ret = (struct ply_text){ 0 };
	r = text_append_quoted(ret, word);
	if (r < 0)
		ply_text_free(ret);
	return r;
}
