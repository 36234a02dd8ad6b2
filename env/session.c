/* SPDX-License-Identifier: Apache-2.0 */

/*
 * ply_session_*: the engine (session.h) with options, for an environment or for none. With one, the
 * shell is a process of that environment's keeper, begins in its workdir and is wrapped as its kind
 * wants; else it has a keeper of its own.
 */

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "env/env_internal.h"
#include "env/env_sessions.h"
#include "env/session.h"
#include "env/status.h"
#include "store/base/util.h"

/* Long enough for a bashrc that starts programs, on a busy machine. (swe-rex has 1.0: rex.c.) */
#define STARTUP_TIMEOUT 20.0

/* As output_limit of environments. */
#define OUTPUT_LIMIT (UINT64_C(1) << 30)

struct ply_session {
	atomic_uint refs;
	struct ply_env *env; /* borrowed; not looked at once it has started */
	char *name;	     /* immutable */
	pthread_mutex_t lock;
	char *path, *cwd; /* these and down to env_vars: under lock */
	double timeout;
	struct ply_list sources, env_vars;
	struct keeper *keeper; /* its own; NULL with an environment */
	struct shell *shell;   /* set once, under lock; NULL before the start */
};

int ply_session_new(struct ply_env *env, const char *name, struct ply_session **ret)
{
	struct ply_session *s = calloc(1, sizeof(*s));

	if (!s)
		return fail_memory();
	s->name = strdup(name ?: "default");
	if (!s->name) {
		free(s);
		return fail_memory();
	}
	s->refs = 1;
	s->env = env;
	s->timeout = STARTUP_TIMEOUT;
	pthread_mutex_init(&s->lock, NULL);
	*ret = s;
	return 0;
}

const char *session_name(const struct ply_session *s)
{
	return s->name;
}

static int set_string(char **field, const char *value)
{
	char *copy = strdup(value);

	if (!copy)
		return fail_memory();
	free(*field);
	*field = copy;
	return 0;
}

int ply_session_set(struct ply_session *s, const char *option, const char *value)
{
	LOCK_GUARD(&s->lock);
	if (s->shell)
		return fail(PLY_STATE, "session '%s' has started: set '%s' before", s->name,
			    option);
	if (strcmp(option, "shell") == 0) {
		if (!*value)
			return fail(PLY_INVALID, "shell: the path of a bash is wanted");
		return set_string(&s->path, value);
	}
	if (strcmp(option, "cwd") == 0)
		return set_string(&s->cwd, value);
	if (strcmp(option, "startup_source") == 0)
		return list_append(&s->sources, value, strlen(value));
	if (strcmp(option, "startup_timeout") == 0) {
		double seconds;

		if (!text_is_number(value, &seconds) || !(seconds >= 0))
			return fail(PLY_INVALID, "startup_timeout: '%s' is no number of seconds",
				    value);
		s->timeout = seconds;
		return 0;
	}
	if (strcmp(option, "env") == 0) {
		if (*value == '=' || !strchr(value, '='))
			return fail(PLY_INVALID, "env: '%s' is not NAME=VALUE", value);
		return list_append(&s->env_vars, value, strlen(value));
	}
	return fail(PLY_INVALID,
		    "a session has no option '%s': shell, cwd, startup_source, startup_timeout, "
		    "env",
		    option);
}

/* ---- life ---- */

static int wrap(void *arg, const char *const *argv, const char *const *env, char ***ret)
{
	struct ply_env *e = arg;

	return e->ops->wrap(e, argv, env, true, ret);
}

/* Under s->lock, and within the environment. */
static int start(struct ply_session *s, struct ply_text *ret_output)
{
	struct shell_options o = {
		.path = s->path ?: "/bin/bash",
		.cwd = s->cwd,
		.env = (const char *const *)s->env_vars.items,
		.sources = (const char *const *)s->sources.items,
		.timeout = s->timeout,
		.output_limit = OUTPUT_LIMIT,
	};
	int r;

	if (!s->env) {
		if (!s->keeper) {
			r = keeper_start(&s->keeper);
			if (r < 0)
				return r;
		}
		o.keeper = s->keeper;
		return shell_start(&o, cancel_fd(), &s->shell, ret_output);
	}
	o.keeper = s->env->keeper;
	o.output_limit = env_count(s->env, "output_limit");
	if (!o.cwd)
		o.cwd = s->env->workdir;
	if (s->env->ops->wrap) {
		o.wrap = wrap;
		o.wrap_arg = s->env;
	}
	o.limits = (struct proc_limits){
		.memory = env_count(s->env, "memory"),
		.processes = env_count(s->env, "processes"),
		.cpu_time = env_count(s->env, "cpu_time"),
	};
	return o.keeper ? shell_start(&o, cancel_fd(), &s->shell, ret_output)
			: fail(PLY_UNSUPPORTED, "sessions are not for %s environments",
			       s->env->ops->kind);
}

int session_start(struct ply_session *s, struct ply_text *ret_output)
{
	LOCK_GUARD(&s->lock);
	if (s->shell)
		return fail(PLY_EXISTS, "session %s already exists", s->name);
	return start(s, ret_output);
}

int ply_session_start(struct ply_session *s, struct ply_text *ret_output)
{
	int r;

	if (ret_output)
		*ret_output = (struct ply_text){ 0 };
	r = s->env ? env_enter(s->env) : 0;
	if (r < 0)
		return r;
	r = session_start(s, ret_output);
	if (s->env)
		env_leave(s->env);
	return r;
}

/* NULL and PLY_STATE's sentence before the start. */
static struct shell *shell_of(struct ply_session *s)
{
	LOCK_GUARD(&s->lock);
	if (!s->shell)
		fail(PLY_STATE, "session '%s' has not started", s->name);
	return s->shell;
}

bool ply_session_alive(struct ply_session *s)
{
	struct shell *shell = shell_of(s);

	return shell && shell_is_alive(shell);
}

void session_hang_up(struct ply_session *s)
{
	struct shell *shell = shell_of(s);

	if (shell)
		shell_hang_up(shell);
}

int ply_session_end(struct ply_session *s)
{
	struct shell *shell = shell_of(s);

	return shell ? shell_end(shell) : 0;
}

struct ply_session *session_ref(struct ply_session *s)
{
	s->refs++;
	return s;
}

void session_unref(struct ply_session *s)
{
	if (!s || --s->refs > 0)
		return;
	shell_free(s->shell);
	keeper_end(s->keeper);
	ply_list_free(&s->sources);
	ply_list_free(&s->env_vars);
	free(s->path);
	free(s->cwd);
	free(s->name);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

void ply_session_free(struct ply_session *s)
{
	session_unref(s);
}

/* ---- commands ---- */

int session_run(struct ply_session *s, const struct ply_session_run *run, int cancel,
		struct ply_observation *ret)
{
	struct shell *shell = shell_of(s);

	*ret = (struct ply_observation){ .matched = -1, .exit_code = -1 };
	return shell ? shell_run(shell, run, cancel, ret) : PLY_STATE;
}

int ply_session_run(struct ply_session *s, const struct ply_session_run *run,
		    struct ply_observation *ret)
{
	return session_run(s, run, -1, ret);
}

int session_interrupt(struct ply_session *s, double timeout, int tries, struct ply_observation *ret)
{
	struct shell *shell = shell_of(s);
	const struct shell_interrupt how = {
		.window = timeout > 0 ? timeout : 0.2,
		.tries = MAX(tries, 0),
		.gentle = true,
	};

	*ret = (struct ply_observation){ .matched = -1, .exit_code = -1 };
	return shell ? shell_interrupt(shell, &how, ret) : PLY_STATE;
}

int ply_session_interrupt(struct ply_session *s, double timeout, int tries,
			  struct ply_text *ret_output)
{
	struct ply_observation o;
	int r = session_interrupt(s, timeout, tries, &o);

	if (ret_output) {
		*ret_output = o.output;
		o.output = (struct ply_text){ 0 };
	}
	ply_observation_free(&o);
	return r;
}
