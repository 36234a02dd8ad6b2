/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Commands of the SWE-ReX protocol that belong to no session: what subprocess.run() of the
 * reference does, through proc.h, with its exceptions.
 */

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "env/pytext.h"
#include "env/serve/model.h"
#include "env/serve/rex.h"
#include "env/status.h"
#include "store/base/util.h"

struct execute_request {
	json_t *command;
	double timeout;
	bool shell, check, merge;
	const char *error_msg, *cwd;
	size_t error_msg_len;
	json_t *env;
};

/* repr of the command: a string's or a list's. */
static int append_command(struct ply_text *text, json_t *command)
{
	json_t *item;
	size_t i;
	int s;

	if (json_is_string(command))
		return text_append_repr(text, json_string_value(command),
					json_string_length(command));
	s = text_append_str(text, "[");
	json_array_foreach(command, i, item)
	{
		if (s == 0 && i > 0)
			s = text_append_str(text, ", ");
		if (s == 0)
			s = text_append_repr(text, json_string_value(item),
					     json_string_length(item));
	}
	return s < 0 ? s : text_append_str(text, "]");
}

static json_t *output_json(const struct ply_text *out)
{
	return rex_text(out->data ? out->data : "", out->len);
}

/* repr of what the client would have been sent. */
static int append_output(struct ply_text *text, const struct ply_text *out)
{
	json_t *sent = output_json(out);
	int s = !sent ? fail_memory()
		      : text_append_repr(text, json_string_value(sent), json_string_length(sent));

	json_decref(sent);
	return s;
}

static void raise_execute(struct http_response *r, const struct execute_request *e,
			  const struct ply_result *result)
{
	struct ply_text text = { 0 };
	int s = 0;

	if (e->error_msg_len) {
		s = text_append(&text, e->error_msg, e->error_msg_len);
		if (s == 0)
			s = text_append_str(&text, ": ");
	}
	if (s == 0)
		s = text_append_str(&text, "Command ");
	if (s == 0)
		s = append_command(&text, e->command);
	if (s == 0)
		s = text_append_format(&text, " failed with exit code %d. Stdout:\n",
				       result->exit_code);
	if (s == 0)
		s = append_output(&text, &result->out);
	if (s == 0)
		s = text_append_str(&text, "\nStderr:\n");
	if (s == 0)
		s = append_output(&text, &result->err);
	rex_raise_text(r, "swerex.exceptions.NonZeroExitCodeError", s, &text, NULL);
}

/* argv and environment as lists; what Python refuses is raised. */
static int execute_words(const struct execute_request *e, struct ply_list *argv,
			 struct ply_list *env, struct http_response *r)
{
	const char *key;
	json_t *item;
	size_t i;

	if (e->shell && (list_append(argv, "/bin/sh", 7) < 0 || list_append(argv, "-c", 2) < 0))
		goto memory;
	if (json_is_string(e->command)) {
		if (strlen(json_string_value(e->command)) != json_string_length(e->command))
			goto null_byte;
		if (list_append(argv, json_string_value(e->command),
				json_string_length(e->command)) < 0)
			goto memory;
	}
	json_array_foreach(e->command, i, item)
	{
		if (strlen(json_string_value(item)) != json_string_length(item))
			goto null_byte;
		if (list_append(argv, json_string_value(item), json_string_length(item)) < 0)
			goto memory;
	}
	if (!argv->n) {
		rex_raisef(r, "builtins.IndexError", "list index out of range");
		return -1;
	}
	json_object_foreach(e->env, key, item)
	{
		_cleanup_free_ char *pair = NULL;

		if (strchr(key, '=')) { /* an empty one is Python's to have */
			rex_raisef(r, "builtins.ValueError", "illegal environment variable name");
			return -1;
		}
		if (strlen(json_string_value(item)) != json_string_length(item))
			goto null_byte;
		if (asprintf(&pair, "%s=%s", key, json_string_value(item)) < 0 ||
		    list_append(env, pair, strlen(pair)) < 0)
			goto memory;
	}
	return 0;
null_byte:
	rex_raisef(r, "builtins.ValueError", "embedded null byte");
	return -1;
memory:
	rex_raisef(r, "builtins.MemoryError", "out of memory");
	return -1;
}

/* The directory as Python would enter it; what it would refuse is raised. *ret_whole is given. */
static int execute_cwd(struct rex *rex, struct execute_request *e, char **ret_whole,
		       struct http_response *r)
{
	const struct rex_place *place = rex_get_place(rex);
	int dir;

	if (!e->cwd)
		return 0;
	if (!*e->cwd) {
		rex_raise_errno(r, ENOENT, "", 0);
		return -1;
	}
	dir = rex_open(rex, e->cwd, O_PATH | O_DIRECTORY, 0);
	/* What a container has beside its view only the command can see. */
	if (dir < 0 && !(dir == -EACCES && place->locate)) {
		rex_raise_errno(r, -dir, e->cwd, strlen(e->cwd));
		return -1;
	}
	closep(&dir);
	if (e->cwd[0] == '/' || !place->cwd || place->wrap)
		return 0;
	if (asprintf(ret_whole, "%s/%s", place->cwd, e->cwd) < 0) {
		*ret_whole = NULL;
		rex_raisef(r, "builtins.MemoryError", "out of memory");
		return -1;
	}
	e->cwd = *ret_whole;
	return 0;
}

static void words_freep(char ***words)
{
	for (char **w = *words; w && *w; w++)
		free(*w);
	free(*words);
}

const char *const rex_enter[] = { "/bin/sh", "-c", "cd -- \"$1\" && shift && exec \"$@\"", "sh",
				  NULL };

/*
 * A command's words for a place: what runs argv with this cwd and, replacing all of it, this
 * environment, both of the place and not of the machine; NULL: as they are. *ret is malloced, as
 * are its words; NULL where the place wraps nothing: then argv, cwd and env are for proc.h.
 * PLY_NO_MEMORY, or what wrap says.
 */
static int rex_wrap(const struct rex_place *place, const char *const *argv, const char *cwd,
		    const char *const *env, char ***ret)
{
	/* The directory and the variables are those of the place: they are set in there. */
	const char **words;
	size_t n = 0, room = 16;
	int r;

	*ret = NULL;
	if (!place->wrap)
		return 0;
	for (size_t i = 0; argv[i]; i++)
		room++;
	for (size_t i = 0; env && env[i]; i++)
		room++;
	words = calloc(room, sizeof(*words));
	if (!words)
		return fail_memory();
	for (size_t i = 0; cwd && rex_enter[i]; i++)
		words[n++] = rex_enter[i];
	if (cwd)
		words[n++] = cwd;
	if (env) {
		words[n++] = "/usr/bin/env";
		words[n++] = "-i";
	}
	for (size_t i = 0; env && env[i]; i++)
		words[n++] = env[i];
	for (size_t i = 0; argv[i]; i++)
		words[n++] = argv[i];
	r = place->wrap(place->arg, words, NULL, false, ret);
	free(words);
	return r;
}

/* Runs the words in the place. *ret_exec_error: why there was nothing to run, if it is known. */
static int run(const struct rex_place *place, const struct execute_request *e,
	       const struct ply_list *argv, const struct ply_list *env, int *ret_exec_error,
	       struct ply_result *ret)
{
	static const char *const none[] = { NULL };
	const char *const *words = (const char *const *)argv->items, *const *variables = NULL;
	_cleanup_(words_freep) char **wrapped = NULL;
	int status;

	if (e->env)
		variables = env->items ? (const char *const *)env->items : none;
	status = rex_wrap(place, words, e->cwd, variables, &wrapped);
	if (status < 0)
		return status;
	return proc_run(place->keeper,
			&(struct proc_options){
				.argv = wrapped ? (const char *const *)wrapped : words,
				.limits = place->limits,
				.env = wrapped ? NULL : variables,
				.cwd = e->cwd && !wrapped ? e->cwd : place->cwd,
				.fds = { -1, -1, -1 },
				.ret_exec_error = wrapped ? NULL : ret_exec_error,
			},
			&(struct proc_capture){
				.merge = e->merge,
				.all_output = !wrapped, /* as local_run */
				.limit = place->output_limit,
				.timeout = isnan(e->timeout) ? 0 : fmax(e->timeout, 1e-6),
			},
			ret);
}

static void reply_result(struct http_response *r, const struct rex_place *place,
			 const struct execute_request *e, const struct ply_result *result)
{
	char number[32];

	if (result->timed_out)
		rex_raisef(r, "swerex.exceptions.CommandTimeoutError",
			   "Timeout (%ss) exceeded while running command",
			   rex_float(e->timeout, number));
	else if (result->truncated)
		rex_raise_limit(r, place);
	else if (e->check && result->exit_code != 0)
		raise_execute(r, e, result);
	else
		reply_json(r, 200,
			   json_pack("{s:o, s:o, s:i}", "stdout", output_json(&result->out),
				     "stderr", output_json(&result->err), "exit_code",
				     result->exit_code));
}

static void execute(struct rex *rex, const struct http_request *q, struct execute_request *e,
		    struct http_response *r)
{
	const struct rex_place *place = rex_get_place(rex);
	_cleanup_(ply_list_free) struct ply_list argv = { 0 }, env = { 0 };
	_cleanup_(ply_result_free) struct ply_result result = { 0 };
	_cleanup_free_ char *cwd = NULL;
	_cleanup_(client_unwatch) int watch = -1;
	int status, error = 0;

	if (execute_words(e, &argv, &env, r) < 0)
		return;
	if (!argv.items[0][0]) {
		rex_raise_errno(r, EACCES, "", 0);
		return;
	}
	if (execute_cwd(rex, e, &cwd, r) < 0)
		return;

	watch = client_watch(q);
	status = run(place, e, &argv, &env, &error, &result);
	if (status == PLY_NOT_FOUND && !error)
		error = ENOENT;
	if (status == PLY_DENIED && !error)
		error = EACCES;
	if (status >= 0)
		reply_result(r, place, e, &result);
	else if (error)
		rex_raise_errno(r, error, argv.items[0], strlen(argv.items[0]));
	else
		rex_raisef(r, status == PLY_NO_MEMORY ? "builtins.MemoryError" : "builtins.OSError",
			   "%s", ply_error());
}

void rex_execute(void *arg, const struct http_request *q, struct http_response *r)
{
	static const struct model_field fields[] = {
		{ "command", MODEL_STRING_OR_STRINGS, offsetof(struct execute_request, command), 0,
		  true, NULL },
		{ "timeout", MODEL_FLOAT_OR_NULL, offsetof(struct execute_request, timeout), 0,
		  false, NULL },
		{ "shell", MODEL_BOOL, offsetof(struct execute_request, shell), 0, false, NULL },
		{ "check", MODEL_BOOL, offsetof(struct execute_request, check), 0, false, NULL },
		{ "error_msg", MODEL_STRING, offsetof(struct execute_request, error_msg),
		  offsetof(struct execute_request, error_msg_len), false, NULL },
		{ "env", MODEL_MAP_OR_NULL, offsetof(struct execute_request, env), 0, false, NULL },
		{ "cwd", MODEL_STRING_OR_NULL, offsetof(struct execute_request, cwd), 0, false,
		  NULL },
		{ "merge_output_streams", MODEL_BOOL, offsetof(struct execute_request, merge), 0,
		  false, NULL },
	};
	struct execute_request e = { .timeout = NAN, .error_msg = "" };
	struct model m;

	model_parse(&m, q->body, q->body_len);
	model_read(&m, fields, ARRAY_SIZE(fields), &e);
	if (!reply_complaint(r, 422, &m))
		execute(arg, q, &e, r);
	model_release(&m);
}
