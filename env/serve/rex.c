/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Sessions and commands of the SWE-ReX protocol.
 *
 * A session is used by one request at a time, in the order of their coming; interrupts and closes
 * go past that queue. It is registered before it starts, so that two requests cannot make the same
 * one, and it is gone from the table the moment it is closed: its name is free again, and whoever
 * still runs something in it hears that the shell has died.
 */

#include "env/serve/rex.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "env/pytext.h"
#include "env/serve/model.h"
#include "env/session.h"
#include "env/status.h"
#include "store/base/util.h"

#define SESSIONS_MAX 512	     /* each is a bash, a terminal and a thread's worth of memory */
#define OUTPUT_MAX (UINT64_C(1) << 30) /* of a command: it is held in memory, as JSON once more */

/* The prompt that the reference sets; users' commands see it in PS1. */
#define PROMPT "SHELLPS1PREFIX"

struct session {
	struct session *next;
	char *name;		/* a NUL in it is refused */
	struct shell *shell;	/* NULL while it starts */
	unsigned refs;		/* under rex.lock; one is the table's */
	bool closed;		/* under rex.lock: it is not in the table any more */
	uint64_t taken, served; /* under rex.lock: numbers of the queue */
	pthread_cond_t turn;
};

struct rex {
	struct rex_place place; /* immutable */
	pthread_mutex_t lock;
	struct session *sessions; /* under lock */
	unsigned count;
};

int rex_new(const struct rex_place *place, struct rex **ret)
{
	struct rex *rex = calloc(1, sizeof(*rex));

	if (!rex)
		return fail_memory();
	rex->place = *place;
	if (!rex->place.max_sessions)
		rex->place.max_sessions = SESSIONS_MAX;
	if (!rex->place.output_limit)
		rex->place.output_limit = OUTPUT_MAX;
	pthread_mutex_init(&rex->lock, NULL);
	*ret = rex;
	return 0;
}

/* ---- the table ---- */

static struct session *find_locked(struct rex *rex, const char *name)
{
	struct session *s = rex->sessions;

	while (s && strcmp(s->name, name) != 0)
		s = s->next;
	return s;
}

static void session_unref(struct rex *rex, struct session *s)
{
	bool last;

	pthread_mutex_lock(&rex->lock);
	last = --s->refs == 0;
	pthread_mutex_unlock(&rex->lock);
	if (!last)
		return;
	shell_free(s->shell);
	pthread_cond_destroy(&s->turn);
	free(s->name);
	free(s);
}

static struct session *session_get(struct rex *rex, const char *name)
{
	LOCK_GUARD(&rex->lock);
	struct session *s = find_locked(rex, name);

	if (s && s->shell)
		s->refs++;
	else
		s = NULL;
	return s;
}

/* Out of the table, whose reference the caller gets; NULL when it is not there (any more). */
static struct session *session_take(struct rex *rex, const char *name)
{
	LOCK_GUARD(&rex->lock);

	for (struct session **p = &rex->sessions; *p; p = &(*p)->next) {
		struct session *s = *p;

		if ((name && strcmp(s->name, name) != 0) || !s->shell)
			continue;
		*p = s->next;
		s->closed = true;
		rex->count--;
		return s;
	}
	return NULL;
}

static void session_close(struct rex *rex, struct session *s)
{
	(void)shell_end(s->shell); /* it is gone either way */
	session_unref(rex, s);
}

static void session_wait_turn(struct rex *rex, struct session *s)
{
	uint64_t mine;
	LOCK_GUARD(&rex->lock);

	mine = s->taken++;
	while (s->served != mine)
		pthread_cond_wait(&s->turn, &rex->lock);
}

static void session_pass_turn(struct rex *rex, struct session *s)
{
	LOCK_GUARD(&rex->lock);

	s->served++;
	pthread_cond_broadcast(&s->turn);
}

unsigned rex_sessions(struct rex *rex)
{
	LOCK_GUARD(&rex->lock);

	return rex->count;
}

static void close_all(struct rex *rex)
{
	struct session *s;

	while ((s = session_take(rex, NULL)))
		session_close(rex, s);
}

const struct rex_place *rex_get_place(const struct rex *rex)
{
	return &rex->place;
}

void rex_abandon(struct rex *rex)
{
	close_all(rex);
	(void)keeper_kill(rex->place.keeper); /* whoever is left is told at its end */
}

void rex_free(struct rex *rex)
{
	if (!rex)
		return;
	close_all(rex);
	pthread_mutex_destroy(&rex->lock);
	free(rex);
}

/* ---- models ---- */

static const char *const session_types[] = { "bash", NULL };
static const char *const action_types[] = { "bash", "bash_interrupt", NULL };
static const char *const checks[] = { "silent", "raise", "ignore", NULL };
enum { SILENT, RAISE, IGNORE };

static void refuse(struct http_response *r, const struct model *m)
{
	r->status = 422;
	r->body = model_complaint(m, &r->len);
}

static void unknown_session(struct http_response *r, const char *name)
{
	struct ply_text text = { 0 };

	if (text_append_str(&text, "session ") == 0 &&
	    text_append_repr(&text, name, strlen(name)) == 0 &&
	    text_append_str(&text, " does not exist") == 0)
		rex_raise(r, "swerex.exceptions.SessionDoesNotExistError", text.data, text.len,
			  NULL);
	else
		rex_raisef(r, "builtins.MemoryError", "out of memory");
	ply_text_free(&text);
}

/*
 * What the terminal showed, for a client. The reference has a CR before each LF from its terminal
 * and takes it away; ours puts none there.
 */
static json_t *output_json(const struct ply_text *out)
{
	struct ply_text copy = { 0 };
	json_t *s = NULL;

	if (text_set(&copy, out->data ? out->data : "", out->len) == 0) {
		text_remove_controls(&copy);
		s = rex_text(copy.data, copy.len);
	}
	ply_text_free(&copy);
	return s;
}

/* Raises what a failed call of the engine means. */
static void raise_status(struct http_response *r, int status)
{
	const char *class = status == PLY_SESSION_GONE ? "pexpect.exceptions.EOF"
			    : status == PLY_TIMEOUT    ? "pexpect.exceptions.TIMEOUT"
			    : status == PLY_NO_MEMORY  ? "builtins.MemoryError"
			    : status == PLY_NOT_FOUND  ? "builtins.FileNotFoundError"
			    : status == PLY_DENIED     ? "builtins.PermissionError"
			    : status == PLY_INVALID    ? "builtins.ValueError"
						       : "builtins.RuntimeError";

	rex_raisef(r, class, "%s%s",
		   status == PLY_SESSION_GONE ? "End Of File (EOF). Exception style platform.\n"
		   : status == PLY_TIMEOUT    ? "Timeout exceeded.\n"
					      : "",
		   ply_error());
}

/* ---- sessions ---- */

static int wrap_terminal(void *arg, const char *const *argv, const char *const *env, char ***ret)
{
	struct rex *rex = arg;

	return rex->place.wrap(rex->place.arg, argv, env, true, ret);
}

struct create_request {
	json_t *sources;
	const char *session;
	double timeout;
};

static void create_session(void *arg, const struct http_request *q, struct http_response *r)
{
	struct rex *rex = arg;
	static const struct model_field fields[] = {
		{ "startup_source", MODEL_STRINGS, offsetof(struct create_request, sources), 0,
		  false, NULL },
		{ "session", MODEL_STRING, offsetof(struct create_request, session), 0, false,
		  NULL },
		{ "startup_timeout", MODEL_FLOAT, offsetof(struct create_request, timeout), 0,
		  false, NULL },
	};
	struct create_request c = { .session = "default", .timeout = 1 };
	struct ply_list sources = { 0 };
	struct ply_text output = { 0 };
	struct session *s = NULL;
	struct shell *shell = NULL;
	struct model m;
	int status = 0;

	model_parse(&m, q->body, q->body_len);
	(void)model_tag(&m, "session_type", session_types, true);
	model_read(&m, fields, ARRAY_SIZE(fields), &c);
	if (!model_ok(&m)) {
		refuse(r, &m);
		goto out;
	}

	pthread_mutex_lock(&rex->lock);
	if (find_locked(rex, c.session)) {
		status = PLY_EXISTS;
	} else if (rex->count == rex->place.max_sessions) {
		status = fail(PLY_STATE, "there are %u sessions already; close some", rex->count);
	} else {
		s = calloc(1, sizeof(*s));
		if (s)
			s->name = strdup(c.session);
		if (s && s->name) {
			s->refs = 2; /* the table's and ours */
			pthread_cond_init(&s->turn, NULL);
			s->next = rex->sessions;
			rex->sessions = s;
			rex->count++;
		} else {
			free(s);
			s = NULL;
			status = fail_memory();
		}
	}
	pthread_mutex_unlock(&rex->lock);
	if (status == PLY_EXISTS)
		rex_raisef(r, "swerex.exceptions.SessionExistsError", "session %s already exists",
			   c.session);
	else if (status < 0)
		raise_status(r, status);
	if (!s)
		goto out;

	for (size_t i = 0; status == 0 && i < json_array_size(c.sources); i++) {
		json_t *path = json_array_get(c.sources, i);

		status = list_append(&sources, json_string_value(path), json_string_length(path));
	}
	if (status == 0) {
		const struct shell_options o = {
			.keeper = rex->place.keeper,
			.path = "bash",
			.cwd = rex->place.cwd,
			.limits = rex->place.limits,
			.wrap = rex->place.wrap ? wrap_terminal : NULL,
			.wrap_arg = rex,
			.env = (const char *const[]){ "TERM=dumb", "PS1=" PROMPT,
						      "PS2=", "PS0=", NULL },
			.sources = (const char *const *)sources.items,
			.timeout = c.timeout,
		};

		status = shell_start(&o, &shell, &output);
	}

	pthread_mutex_lock(&rex->lock);
	s->shell = shell;
	if (status < 0) {
		struct session **p = &rex->sessions;

		while (*p != s)
			p = &(*p)->next;
		*p = s->next;
		rex->count--;
		s->refs--;
	}
	pthread_mutex_unlock(&rex->lock);
	if (status < 0)
		raise_status(r, status);
	else
		reply_json(r, 200,
			   json_pack("{s:o, s:s}", "output", output_json(&output), "session_type",
				     "bash"));
	session_unref(rex, s);
out:
	ply_list_free(&sources);
	ply_text_free(&output);
	model_release(&m);
}

struct close_request {
	const char *session;
};

static void close_session(void *arg, const struct http_request *q, struct http_response *r)
{
	struct rex *rex = arg;
	static const struct model_field fields[] = {
		{ "session", MODEL_STRING, offsetof(struct close_request, session), 0, false,
		  NULL },
	};
	struct close_request c = { .session = "default" };
	struct session *s;
	struct model m;

	model_parse(&m, q->body, q->body_len);
	(void)model_tag(&m, "session_type", session_types, true);
	model_read(&m, fields, ARRAY_SIZE(fields), &c);
	if (!model_ok(&m)) {
		refuse(r, &m);
	} else if ((s = session_take(rex, c.session))) {
		session_close(rex, s);
		reply_json(r, 200, json_pack("{s:s}", "session_type", "bash"));
	} else {
		unknown_session(r, c.session);
	}
	model_release(&m);
}

static void close_runtime(void *arg, const struct http_request *q, struct http_response *r)
{
	struct rex *rex = arg;
	close_all(rex);
	reply_json(r, 200, json_object());
}

/* ---- actions ---- */

struct action {
	const char *command, *session, *error_msg;
	size_t command_len, error_msg_len;
	double timeout;
	bool interactive, interactive_quit;
	int check, n_retry;
	json_t *expect;
};

static json_t *observation(json_t *output, json_t *exit_code, const char *expect)
{
	return json_pack("{s:o, s:o, s:s, s:s, s:s}", "output", output, "exit_code", exit_code,
			 "failure_reason", "", "expect_string", expect, "session_type", "bash");
}

/* The patterns as an array of C strings, borrowed from the model. */
static const char **patterns(json_t *expect)
{
	size_t n = json_array_size(expect);
	const char **list = calloc(n + 1, sizeof(*list));

	for (size_t i = 0; list && i < n; i++)
		list[i] = json_string_value(json_array_get(expect, i));
	return list;
}

static void raise_nonzero(struct http_response *r, const struct action *a,
			  const struct ply_observation *o, json_t *output)
{
	struct ply_text text = { 0 };
	int s = 0;

	if (a->error_msg_len) {
		s = text_append(&text, a->error_msg, a->error_msg_len);
		if (s == 0)
			s = text_append_str(&text, ": ");
	}
	if (s == 0)
		s = text_append_str(&text, "Command ");
	if (s == 0)
		s = text_append_repr(&text, a->command, a->command_len);
	if (s == 0)
		s = text_append_format(&text, " failed with exit code %d. Here is the output:\n",
				       o->exit_code);
	if (s == 0)
		s = text_append_repr(&text, json_string_value(output), json_string_length(output));
	if (s == 0)
		rex_raise(r, "swerex.exceptions.NonZeroExitCodeError", text.data, text.len, NULL);
	else
		rex_raisef(r, "builtins.MemoryError", "out of memory");
	ply_text_free(&text);
	json_decref(output);
}

static void raise_timeout(struct http_response *r, const struct action *a, json_t *partial)
{
	struct ply_text text = { 0 };
	char number[32];

	if (text_append_format(&text, "timeout after %s seconds while running command ",
			       rex_float(a->timeout, number)) == 0 &&
	    text_append_repr(&text, a->command, a->command_len) == 0)
		rex_raise(r, "swerex.exceptions.CommandTimeoutError", text.data, text.len,
			  json_pack("{s:o}", "partial_output", partial));
	else
		rex_raisef(r, "swerex.exceptions.CommandTimeoutError", "timeout");
	ply_text_free(&text);
}

static void raise_syntax(struct http_response *r, const struct action *a,
			 const struct ply_text *complaint)
{
	struct ply_text text = { 0 };

	if (text_append_str(&text, "Error (exit code 2) while checking bash command \n") == 0 &&
	    text_append_repr(&text, a->command, a->command_len) == 0 &&
	    text_append_str(&text, "\n---- Stderr ----\n") == 0 &&
	    text_append(&text, complaint->data, complaint->len) == 0 &&
	    text_append_str(&text, "\n---- Stdout ----\n") == 0)
		rex_raise(r, "swerex.exceptions.BashIncorrectSyntaxError", text.data, text.len,
			  json_pack("{s:s, s:o}", "bash_stdout", "", "bash_stderr",
				    rex_text(complaint->data, complaint->len)));
	else
		rex_raisef(r, "swerex.exceptions.BashIncorrectSyntaxError", "%s", ply_error());
	ply_text_free(&text);
}

/* Without white space around it. */
static json_t *trimmed_json(const struct ply_text *out)
{
	json_t *whole = output_json(out), *cut;
	const char *s = json_string_value(whole);
	size_t len = json_string_length(whole);

	if (!whole)
		return NULL;
	text_strip(&s, &len);
	cut = json_stringn(s, len);
	json_decref(whole);
	return cut;
}

/* An interactive program's output: without the echo of what was typed and without its edges. */
static json_t *interactive_json(const struct action *a, const struct ply_text *out)
{
	json_t *whole = output_json(out), *cut;
	const char *s = json_string_value(whole);
	size_t len = json_string_length(whole);

	if (!whole)
		return NULL;
	text_strip(&s, &len);
	if (a->command_len && len >= a->command_len && memcmp(s, a->command, a->command_len) == 0) {
		s += a->command_len;
		len -= a->command_len;
	}
	text_strip(&s, &len);
	cut = json_stringn(s, len);
	json_decref(whole);
	return cut;
}

static void run_command(struct http_response *r, struct session *s, const struct action *a)
{
	_cleanup_free_ const char **expect = patterns(a->expect);
	struct ply_session_run run = {
		.command = a->command,
		.len = a->command_len,
		/* None is for ever; 0 is over before it began; -1 was pexpect's own default. */
		.timeout = isnan(a->timeout)  ? 0
			   : a->timeout == -1 ? 30
			   : a->timeout <= 0  ? 1e-6
					      : a->timeout,
		.check = a->check == IGNORE ? PLY_CHECK_IGNORE : PLY_CHECK_SILENT,
		.interactive = a->interactive,
		.interactive_quit = a->interactive_quit,
		.expect = expect,
		.n_expect = json_array_size(a->expect),
	};
	struct ply_observation o = { 0 };
	const char *matched;
	int status;

	if (!expect) {
		rex_raisef(r, "builtins.MemoryError", "out of memory");
		return;
	}
	status = shell_run(s->shell, &run, -1, &o);
	matched = status == 0 && o.matched >= 0 ? expect[o.matched] : PROMPT;
	if (status == PLY_TIMEOUT) {
		raise_timeout(r, a, output_json(&o.output));
	} else if (status == PLY_SYNTAX) {
		raise_syntax(r, a, &o.output);
	} else if (status == PLY_INVALID) {
		rex_raisef(r, "re.error", "%s", ply_error());
	} else if (status < 0) {
		raise_status(r, status);
	} else if (a->interactive) {
		reply_json(r, 200,
			   observation(interactive_json(a, &o.output), json_integer(0), matched));
	} else if (a->interactive_quit) {
		reply_json(r, 200, observation(output_json(&o.output), json_integer(0), matched));
	} else if (a->check == RAISE && !o.exit_code_known && o.matched < 0) {
		rex_raisef(r, "swerex.exceptions.NoExitCodeError", "failed to get the exit code");
	} else if (a->check == RAISE && o.exit_code_known && o.exit_code != 0) {
		raise_nonzero(r, a, &o, output_json(&o.output));
	} else {
		reply_json(r, 200,
			   observation(output_json(&o.output),
				       o.exit_code_known && a->check != IGNORE
					       ? json_integer(o.exit_code)
					       : json_null(),
				       matched));
	}
	ply_observation_free(&o);
}

static void run_interrupt(struct http_response *r, struct session *s, const struct action *a)
{
	_cleanup_free_ const char **expect = patterns(a->expect);
	const struct shell_interrupt how = {
		.window = a->timeout > 0 ? a->timeout : 0.001,
		.tries = a->n_retry,
		.expect = expect,
		.n_expect = json_array_size(a->expect),
	};
	struct ply_text output = { 0 };
	int matched = -1, status;

	if (!expect) {
		rex_raisef(r, "builtins.MemoryError", "out of memory");
		return;
	}
	status = shell_interrupt(s->shell, &how, &output, &matched);
	if (status == PLY_TIMEOUT)
		rex_raisef(r, "pexpect.exceptions.TIMEOUT", "Failed to interrupt session");
	else if (status == PLY_INVALID)
		rex_raisef(r, "re.error", "%s", ply_error());
	else if (status < 0)
		raise_status(r, status);
	else
		reply_json(r, 200,
			   observation(trimmed_json(&output), json_integer(0),
				       matched >= 0 ? expect[matched] : PROMPT));
	ply_text_free(&output);
}

static void run_in_session(void *arg, const struct http_request *q, struct http_response *r)
{
	struct rex *rex = arg;
	static const struct model_field bash[] = {
		{ "command", MODEL_STRING, offsetof(struct action, command),
		  offsetof(struct action, command_len), true, NULL },
		{ "session", MODEL_STRING, offsetof(struct action, session), 0, false, NULL },
		{ "timeout", MODEL_FLOAT_OR_NULL, offsetof(struct action, timeout), 0, false,
		  NULL },
		{ "is_interactive_command", MODEL_BOOL, offsetof(struct action, interactive), 0,
		  false, NULL },
		{ "is_interactive_quit", MODEL_BOOL, offsetof(struct action, interactive_quit), 0,
		  false, NULL },
		{ "check", MODEL_WORD, offsetof(struct action, check), 0, false, checks },
		{ "error_msg", MODEL_STRING, offsetof(struct action, error_msg),
		  offsetof(struct action, error_msg_len), false, NULL },
		{ "expect", MODEL_STRINGS, offsetof(struct action, expect), 0, false, NULL },
	};
	static const struct model_field interrupt[] = {
		{ "session", MODEL_STRING, offsetof(struct action, session), 0, false, NULL },
		{ "timeout", MODEL_FLOAT, offsetof(struct action, timeout), 0, false, NULL },
		{ "n_retry", MODEL_INT, offsetof(struct action, n_retry), 0, false, NULL },
		{ "expect", MODEL_STRINGS, offsetof(struct action, expect), 0, false, NULL },
	};
	struct action a = {
		.session = "default", .error_msg = "", .timeout = NAN, .check = RAISE, .n_retry = 3
	};
	struct session *s = NULL;
	struct model m;
	int tag;

	model_parse(&m, q->body, q->body_len);
	tag = model_tag(&m, "action_type", action_types, true);
	if (tag == 1) {
		a.timeout = 0.2;
		model_read(&m, interrupt, ARRAY_SIZE(interrupt), &a);
	} else {
		model_read(&m, bash, ARRAY_SIZE(bash), &a);
	}

	if (!model_ok(&m))
		refuse(r, &m);
	else if (a.interactive && a.interactive_quit)
		rex_raisef(r, "builtins.AssertionError",
			   "is_interactive_command and is_interactive_quit exclude each other");
	else if (!(s = session_get(rex, a.session)))
		unknown_session(r, a.session);
	else if (tag == 1)
		run_interrupt(r, s, &a);
	else {
		session_wait_turn(rex, s);
		run_command(r, s, &a);
		session_pass_turn(rex, s);
	}
	if (s)
		session_unref(rex, s);
	model_release(&m);
}

/* ---- execute ---- */

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
		s = text_append_repr(&text, result->out.data, result->out.len);
	if (s == 0)
		s = text_append_str(&text, "\nStderr:\n");
	if (s == 0)
		s = text_append_repr(&text, result->err.data, result->err.len);
	if (s == 0)
		rex_raise(r, "swerex.exceptions.NonZeroExitCodeError", text.data, text.len, NULL);
	else
		rex_raisef(r, "builtins.MemoryError", "out of memory");
	ply_text_free(&text);
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

static void words_free(char **words)
{
	for (char **w = words; w && *w; w++)
		free(*w);
	free(words);
}

const char *const rex_enter[] = { "/bin/sh", "-c", "cd -- \"$1\" && shift && exec \"$@\"", "sh",
				  NULL };

int rex_wrap(const struct rex_place *place, const char *const *argv, const char *cwd,
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

static void execute(void *arg, const struct http_request *q, struct http_response *r)
{
	struct rex *rex = arg;
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
	struct ply_list argv = { 0 }, env = { 0 };
	struct ply_result result = { 0 };
	_cleanup_free_ char *cwd = NULL;
	const char *none[] = { NULL };
	const char *const *variables = NULL;
	char **wrapped = NULL;
	struct model m;
	int status;

	model_parse(&m, q->body, q->body_len);
	model_read(&m, fields, ARRAY_SIZE(fields), &e);
	if (!model_ok(&m)) {
		refuse(r, &m);
		goto out;
	}
	if (execute_words(&e, &argv, &env, r) < 0)
		goto out;
	if (!argv.items[0][0]) {
		rex_raise_errno(r, EACCES, "", 0);
		goto out;
	}
	if (e.cwd) {
		int dir = rex_open(rex, e.cwd, O_PATH | O_DIRECTORY, 0);

		/* What a container has beside its view only the command can see. */
		if (dir < 0 && !(dir == -EACCES && rex->place.locate)) {
			rex_raise_errno(r, -dir, e.cwd, strlen(e.cwd));
			goto out;
		}
		closep(&dir);
		if (e.cwd[0] != '/' && rex->place.cwd && !rex->place.wrap) {
			if (asprintf(&cwd, "%s/%s", rex->place.cwd, e.cwd) < 0) {
				cwd = NULL;
				rex_raisef(r, "builtins.MemoryError", "out of memory");
				goto out;
			}
			e.cwd = cwd;
		}
	}
	if (e.env)
		variables = env.items ? (const char *const *)env.items : none;

	status = rex_wrap(&rex->place, (const char *const *)argv.items, e.cwd, variables, &wrapped);
	if (status >= 0)
		status = proc_run(
			rex->place.keeper,
			&(struct proc_options){
				.argv = (const char *const *)(wrapped ? wrapped : argv.items),
				.limits = rex->place.limits,
				.env = wrapped ? NULL : variables,
				.cwd = e.cwd && !wrapped ? e.cwd : rex->place.cwd,
				.fds = { -1, -1, -1 },
			},
			&(struct proc_capture){
				.merge = e.merge,
				.limit = rex->place.output_limit,
				.timeout = isnan(e.timeout) ? 0 : fmax(e.timeout, 1e-6),
			},
			&result);
	if (status == PLY_NOT_FOUND) {
		rex_raise_errno(r, ENOENT, argv.items[0], strlen(argv.items[0]));
	} else if (status == PLY_DENIED) {
		rex_raise_errno(r, EACCES, argv.items[0], strlen(argv.items[0]));
	} else if (status < 0) {
		rex_raisef(r, status == PLY_NO_MEMORY ? "builtins.MemoryError" : "builtins.OSError",
			   "%s", ply_error());
	} else if (result.timed_out) {
		char number[32];

		rex_raisef(r, "swerex.exceptions.CommandTimeoutError",
			   "Timeout (%ss) exceeded while running command",
			   rex_float(e.timeout, number));
	} else if (result.truncated) {
		rex_raisef(r, "builtins.MemoryError",
			   "the command printed more than %llu bytes; send its output to a file",
			   (unsigned long long)rex->place.output_limit);
	} else if (e.check && result.exit_code != 0) {
		raise_execute(r, &e, &result);
	} else {
		reply_json(
			r, 200,
			json_pack("{s:o, s:o, s:i}", "stdout",
				  rex_text(result.out.data ? result.out.data : "", result.out.len),
				  "stderr",
				  rex_text(result.err.data ? result.err.data : "", result.err.len),
				  "exit_code", result.exit_code));
	}
out:
	words_free(wrapped);
	ply_result_free(&result);
	ply_list_free(&argv);
	ply_list_free(&env);
	model_release(&m);
}

static void hello(void *arg, const struct http_request *q, struct http_response *r)
{
	reply_json(r, 200, json_pack("{s:s}", "message", "hello world"));
}

static void is_alive(void *arg, const struct http_request *q, struct http_response *r)
{
	reply_json(r, 200, json_pack("{s:b, s:s}", "is_alive", 1, "message", ""));
}

const struct endpoint rex_endpoints[] = {
	{ "GET", "/", false, hello },
	{ "GET", "/is_alive", false, is_alive },
	{ "POST", "/create_session", false, create_session },
	{ "POST", "/run_in_session", false, run_in_session, true },
	{ "POST", "/close_session", false, close_session },
	{ "POST", "/execute", false, execute, true },
	{ "POST", "/read_file", false, rex_read_file },
	{ "POST", "/write_file", false, rex_write_file },
	{ "POST", "/upload", false, rex_upload },
	{ "POST", "/close", false, close_runtime },
};
const size_t n_rex_endpoints = ARRAY_SIZE(rex_endpoints);
