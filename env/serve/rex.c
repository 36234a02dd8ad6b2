/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Sessions of the SWE-ReX protocol.
 *
 * A session is used by one request at a time, in the order of their coming; interrupts and closes
 * go past that queue. It is registered before it starts, so that two requests cannot make the same
 * one, and it is gone from the table the moment it is closed: its name is free again, and whoever
 * still runs something in it, or starts it, hears that the shell has died.
 */

#include "env/serve/rex.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>

#include "env/pytext.h"
#include "env/serve/model.h"
#include "env/session.h"
#include "env/status.h"
#include "store/base/util.h"

#define SESSIONS_MAX 512	     /* each is a bash, a terminal and a thread's worth of memory */

/* How long the reference waits for the exit code of a command one of whose patterns was seen. */
#define SETTLE_SECONDS 1.0

/*
 * What is told of each end of the output of a command that goes on: more than people and models
 * read, and no answer that takes as long as the output limit's.
 */
#define PARTIAL ((size_t)64 << 10)

/* The prompt that the reference sets; users' commands see it in PS1. */
#define PROMPT "SHELLPS1PREFIX"

struct session {
	struct session *next;
	char *name;		/* a NUL in it is refused */
	struct shell *shell;	/* NULL while it starts, and for ever if it is closed meanwhile */
	int start_end;		/* under rex.lock, borrowed: an eventfd that ends its start; -1 */
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
	int end; /* eventfd, immutable: not 0 when it is abandoned */
};

int rex_new(const struct rex_place *place, struct rex **ret)
{
	struct rex *rex = calloc(1, sizeof(*rex));

	if (!rex)
		return fail_memory();
	rex->end = eventfd(0, EFD_CLOEXEC);
	if (rex->end < 0) {
		int r = fail_errno(errno, "an eventfd");

		free(rex);
		return r;
	}
	rex->place = *place;
	if (!rex->place.max_sessions)
		rex->place.max_sessions = SESSIONS_MAX;
	if (!rex->place.output_limit)
		rex->place.output_limit = REX_OUTPUT_LIMIT;
	pthread_mutex_init(&rex->lock, NULL);
	*ret = rex;
	return 0;
}

/* ---- the table ---- */

/* Where it is linked, and NULL if there is none; without a name any one. */
static struct session **find_locked(struct rex *rex, const char *name)
{
	struct session **p = &rex->sessions;

	while (*p && name && strcmp((*p)->name, name) != 0)
		p = &(*p)->next;
	return p;
}

/*
 * With a reference for the caller beside the table's; PLY_EXISTS, or what was said of a failure.
 * start_end: kept until session_started.
 */
static int session_add(struct rex *rex, const char *name, int start_end, struct session **ret)
{
	LOCK_GUARD(&rex->lock);
	struct session *s;

	if (*find_locked(rex, name))
		return PLY_EXISTS;
	if (rex->count == rex->place.max_sessions)
		return fail(PLY_STATE, "there %s %u session%s already; close %s",
			    rex->count == 1 ? "is" : "are", rex->count, plural(rex->count),
			    rex->count == 1 ? "it" : "some");
	s = calloc(1, sizeof(*s));
	if (s)
		s->name = strdup(name);
	if (!s || !s->name) {
		free(s);
		return fail_memory();
	}
	s->refs = 2;
	s->start_end = start_end;
	pthread_cond_init(&s->turn, NULL);
	s->next = rex->sessions;
	rex->sessions = s;
	rex->count++;
	*ret = s;
	return 0;
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
	struct session *s = *find_locked(rex, name);

	if (s && s->shell)
		s->refs++;
	else
		s = NULL;
	return s;
}

/* Out of the table, whose reference the caller gets; NULL when it is not there (any more). */
static struct session *take_locked(struct rex *rex, const char *name)
{
	struct session **p = find_locked(rex, name), *s = *p;

	if (s) {
		*p = s->next;
		s->closed = true;
		if (s->start_end >= 0)
			(void)eventfd_write(s->start_end, 1); /* 1 fits: cannot fail */
		rex->count--;
	}
	return s;
}

static struct session *session_take(struct rex *rex, const char *name)
{
	LOCK_GUARD(&rex->lock);

	return take_locked(rex, name);
}

/*
 * What its start came to: it has its shell, or it leaves the table, or it was closed meanwhile and
 * the shell is of no use any more. shell is taken. The status that the start has for its client.
 */
static int session_started(struct rex *rex, struct session *s, int status, struct shell *shell)
{
	bool closed;

	pthread_mutex_lock(&rex->lock);
	closed = s->closed;
	s->start_end = -1;
	if (!closed)
		s->shell = shell;
	if (!closed && status < 0)
		take_locked(rex, s->name)->refs--;
	pthread_mutex_unlock(&rex->lock);
	if (!closed)
		return status;
	shell_free(shell);
	return fail(PLY_SESSION_GONE, "the session was ended");
}

static void session_close(struct rex *rex, struct session *s)
{
	if (s->shell) /* else session_started ends it */
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
	struct session *s, *taken = NULL;

	while ((s = session_take(rex, NULL))) {
		s->next = taken;
		taken = s;
		if (s->shell)
			shell_hang_up(s->shell);
	}
	while ((s = taken)) {
		taken = s->next;
		session_close(rex, s);
	}
}

const struct rex_place *rex_get_place(const struct rex *rex)
{
	return &rex->place;
}

int rex_end_watch(const struct rex *rex)
{
	return rex->end;
}

bool rex_ends(const struct rex *rex)
{
	struct pollfd end = { .fd = rex->end, .events = POLLIN };

	return poll(&end, 1, 0) > 0;
}

void rex_abandon(struct rex *rex)
{
	(void)eventfd_write(rex->end, 1); /* cannot fail: the few times never fill it */
	close_all(rex);
	(void)keeper_kill(rex->place.keeper); /* whoever is left is told at its end */
}

void rex_free(struct rex *rex)
{
	if (!rex)
		return;
	close_all(rex);
	closep(&rex->end);
	pthread_mutex_destroy(&rex->lock);
	free(rex);
}

/* ---- models ---- */

static const char *const session_types[] = { "bash", NULL };
static const char *const action_types[] = { "bash", "bash_interrupt", NULL };
static const char *const checks[] = { "silent", "raise", "ignore", NULL };
enum { SILENT, RAISE, IGNORE };

static void unknown_session(struct http_response *r, const char *name)
{
	struct ply_text text = { 0 };
	int s = text_append_str(&text, "session ");

	if (s == 0)
		s = text_append_repr(&text, name, strlen(name));
	if (s == 0)
		s = text_append_str(&text, " does not exist");
	rex_raise_text(r, "swerex.exceptions.SessionDoesNotExistError", s, &text, NULL);
}

/*
 * What the terminal showed, for a client. The reference has a CR before each LF from its terminal
 * and takes it away; ours puts none there. Controls are removed from *out itself, so that of much
 * output there is one copy less.
 */
static json_t *output_json(struct ply_text *out)
{
	if (!out->data)
		return json_string("");
	text_remove_controls(out);
	return rex_text(out->data, out->len);
}

/* Raises what a failed call of the engine means. out: what was printed before; NULL: nothing. */
static void raise_status(struct http_response *r, int status, struct ply_text *out)
{
	const char *class = status == PLY_SESSION_GONE ? "pexpect.exceptions.EOF"
			    : status == PLY_TIMEOUT    ? "pexpect.exceptions.TIMEOUT"
			    : status == PLY_NO_MEMORY  ? "builtins.MemoryError"
			    : status == PLY_NOT_FOUND  ? "builtins.FileNotFoundError"
			    : status == PLY_DENIED     ? "builtins.PermissionError"
			    : status == PLY_INVALID    ? "builtins.ValueError"
						       : "builtins.RuntimeError";
	struct ply_text text = { 0 };
	int s = text_append_format(
		&text, "%s%s",
		status == PLY_SESSION_GONE ? "End Of File (EOF). Exception style platform.\n"
		: status == PLY_TIMEOUT	   ? "Timeout exceeded.\n"
					   : "",
		ply_error());

	rex_raise_text(r, class, s, &text,
		       out ? json_pack("{s:o}", "partial_output", output_json(out)) : NULL);
}

/* ---- sessions ---- */

/*
 * A timeout as pexpect has it, for the engine, whose 0 is none: none is for ever (here NAN); 0 is
 * over before it began; -1 is its own default.
 */
static double as_pexpect(double timeout)
{
	return isnan(timeout) ? 0 : timeout == -1 ? 30 : timeout <= 0 ? 1e-6 : timeout;
}

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

static int start_shell(struct rex *rex, const struct create_request *c, int cancel,
		       struct shell **ret, struct ply_text *output)
{
	_cleanup_(ply_list_free) struct ply_list sources = { 0 };
	int status = 0;

	for (size_t i = 0; status == 0 && i < json_array_size(c->sources); i++) {
		json_t *path = json_array_get(c->sources, i);

		status = list_append(&sources, json_string_value(path), json_string_length(path));
	}
	if (status < 0)
		return status;
	return shell_start(
		&(struct shell_options){
			.keeper = rex->place.keeper,
			.path = "bash",
			.cwd = rex->place.cwd,
			.limits = rex->place.limits,
			.wrap = rex->place.wrap ? wrap_terminal : NULL,
			.wrap_arg = rex,
			.env = (const char *const[]){ "TERM=dumb", "PS1=" PROMPT,
						      "PS2=", "PS0=", NULL },
			.sources = (const char *const *)sources.items,
			.timeout = as_pexpect(c->timeout),
			.output_limit = rex->place.output_limit,
			.partial = PARTIAL,
		},
		cancel, ret, output);
}

static void make_session(struct rex *rex, const struct create_request *c, struct http_response *r)
{
	_cleanup_close_ int end = eventfd(0, EFD_CLOEXEC);
	struct ply_text output = { 0 };
	struct shell *shell = NULL;
	struct session *s = NULL;
	int status = end < 0 ? fail_errno(errno, "an eventfd")
			     : session_add(rex, c->session, end, &s);

	if (status == PLY_EXISTS) {
		rex_raisef(r, "swerex.exceptions.SessionExistsError", "session %s already exists",
			   c->session);
		return;
	}
	if (status < 0) {
		raise_status(r, status, NULL);
		return;
	}
	status = start_shell(rex, c, end, &shell, &output);
	status = session_started(rex, s, status, shell);
	if (status < 0)
		raise_status(r, status, &output);
	else
		reply_json(r, 200,
			   json_pack("{s:o, s:s}", "output", output_json(&output), "session_type",
				     "bash"));
	session_unref(rex, s);
	ply_text_free(&output);
}

static void create_session(void *arg, const struct http_request *q, struct http_response *r)
{
	static const struct model_field fields[] = {
		{ "startup_source", MODEL_STRINGS, offsetof(struct create_request, sources), 0,
		  false, NULL },
		{ "session", MODEL_STRING, offsetof(struct create_request, session), 0, false,
		  NULL },
		{ "startup_timeout", MODEL_FLOAT, offsetof(struct create_request, timeout), 0,
		  false, NULL },
	};
	struct create_request c = { .session = "default", .timeout = 1 };
	struct model m;

	model_parse(&m, q->body, q->body_len);
	(void)model_tag(&m, "session_type", session_types);
	model_read(&m, fields, ARRAY_SIZE(fields), &c);
	if (!reply_complaint(r, 422, &m))
		make_session(arg, &c, r);
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
	(void)model_tag(&m, "session_type", session_types);
	model_read(&m, fields, ARRAY_SIZE(fields), &c);
	if (reply_complaint(r, 422, &m)) {
		/* answered */
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

void rex_raise_limit(struct http_response *r, const struct rex_place *place)
{
	rex_raisef(r, "builtins.MemoryError",
		   "the command printed more than %" PRIu64 " byte%s; send its output to a file",
		   place->output_limit, plural(place->output_limit));
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
		s = !output ? fail_memory()
			    : text_append_repr(&text, json_string_value(output),
					       json_string_length(output));
	rex_raise_text(r, "swerex.exceptions.NonZeroExitCodeError", s, &text, NULL);
	json_decref(output);
}

/* reason: whether it goes on, or was not begun because something else does. */
static void raise_timeout(struct http_response *r, const struct action *a, json_t *partial,
			  const char *reason)
{
	struct ply_text text = { 0 };
	char number[32];
	int s = text_append_format(&text, "timeout after %s seconds while running command ",
				   rex_float(a->timeout, number));

	if (s == 0)
		s = text_append_repr(&text, a->command, a->command_len);
	rex_raise_text(r, "swerex.exceptions.CommandTimeoutError", s, &text,
		       json_pack("{s:o, s:s}", "partial_output", partial, "reason", reason));
}

static void raise_syntax(struct http_response *r, const struct action *a,
			 const struct ply_text *complaint)
{
	struct ply_text text = { 0 };
	int s = text_append_str(&text, "Error (exit code 2) while checking bash command \n");

	if (s == 0)
		s = text_append_repr(&text, a->command, a->command_len);
	if (s == 0)
		s = text_append_str(&text, "\n---- Stderr ----\n");
	if (s == 0)
		s = text_append(&text, complaint->data, complaint->len);
	if (s == 0)
		s = text_append_str(&text, "\n---- Stdout ----\n");
	rex_raise_text(r, "swerex.exceptions.BashIncorrectSyntaxError", s, &text,
		       json_pack("{s:s, s:o}", "bash_stdout", "", "bash_stderr",
				 rex_text(complaint->data, complaint->len)));
}

/* Without white space around it. */
static json_t *trimmed_json(struct ply_text *out)
{
	const char *s = out->data;
	size_t len;

	if (!s)
		return json_string("");
	text_remove_controls(out);
	len = out->len;
	text_strip(&s, &len);
	return rex_text(s, len);
}

/* An interrupt succeeds, however much it found; but it says that something is missing. */
static json_t *interrupted(struct ply_observation *o, const char *expect)
{
	json_t *body = observation(trimmed_json(&o->output), json_integer(0), expect);

	if (o->truncated && body)
		(void)json_object_set_new(body, "failure_reason",
					  json_string("the end of the output is missing: it was "
						      "more than the server's limit"));
	return body;
}

/* An interactive program's output: without the echo of what was typed and without its edges. */
static json_t *interactive_json(const struct action *a, struct ply_text *out)
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

static void run_command(struct rex *rex, struct http_response *r, struct session *s,
			const struct action *a)
{
	_cleanup_free_ const char **expect = patterns(a->expect);
	struct ply_session_run run = {
		.command = a->command,
		.len = a->command_len,
		.timeout = as_pexpect(a->timeout),
		.check = a->check == IGNORE ? PLY_CHECK_IGNORE : PLY_CHECK_SILENT,
		.interactive = a->interactive,
		.interactive_quit = a->interactive_quit,
		.expect = expect,
		.n_expect = json_array_size(a->expect),
	};
	struct ply_observation o = { 0 };
	const char *matched;
	int status, settled;

	if (!expect) {
		rex_raisef(r, "builtins.MemoryError", "out of memory");
		return;
	}
	if (!a->interactive && !a->interactive_quit && memchr(a->command, '\0', a->command_len)) {
		rex_raisef(r, "builtins.ValueError", "embedded null byte");
		return;
	}
	status = shell_run(s->shell, &run, -1, &o);
	matched = status == 0 && o.matched >= 0 ? expect[o.matched] : PROMPT;
	if (status == 0 && o.matched >= 0 && !a->interactive && !a->interactive_quit &&
	    a->check != IGNORE) {
		settled = shell_settle(s->shell, SETTLE_SECONDS, &o);
		if (settled < 0 && settled != PLY_TIMEOUT && a->check == RAISE)
			status = settled;
	}
	if (status == PLY_TIMEOUT) {
		raise_timeout(r, a, output_json(&o.output), ply_error());
	} else if (status == PLY_SYNTAX) {
		raise_syntax(r, a, &o.output);
	} else if (status == PLY_INVALID) {
		rex_raisef(r, "re.error", "%s", ply_error());
	} else if (status < 0) {
		raise_status(r, status, &o.output);
	} else if (o.truncated) {
		rex_raise_limit(r, &rex->place);
	} else if (a->interactive) {
		reply_json(r, 200,
			   observation(interactive_json(a, &o.output), json_integer(0), matched));
	} else if (a->interactive_quit) {
		reply_json(r, 200, observation(output_json(&o.output), json_integer(0), matched));
	} else if (a->check == RAISE && !o.exit_code_known) {
		rex_raisef(r, "swerex.exceptions.NoExitCodeError",
			   o.matched >= 0 ? "timeout while getting exit code"
					  : "failed to get the exit code");
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
	struct ply_observation o;
	int status;

	if (!expect) {
		rex_raisef(r, "builtins.MemoryError", "out of memory");
		return;
	}
	status = shell_interrupt(s->shell, &how, &o);
	if (status == PLY_TIMEOUT)
		rex_raisef(r, "pexpect.exceptions.TIMEOUT", "Failed to interrupt session");
	else if (status == PLY_INVALID)
		rex_raisef(r, "re.error", "%s", ply_error());
	else if (status < 0)
		raise_status(r, status, NULL);
	else
		reply_json(r, 200, interrupted(&o, o.matched >= 0 ? expect[o.matched] : PROMPT));
	ply_observation_free(&o);
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
	tag = model_tag(&m, "action_type", action_types);
	if (tag == 1) {
		a.timeout = 0.2;
		model_read(&m, interrupt, ARRAY_SIZE(interrupt), &a);
	} else {
		model_read(&m, bash, ARRAY_SIZE(bash), &a);
	}

	if (reply_complaint(r, 422, &m))
		; /* answered */
	else if (a.interactive && a.interactive_quit)
		rex_raisef(r, "builtins.AssertionError",
			   "is_interactive_command and is_interactive_quit exclude each other");
	else if (!(s = session_get(rex, a.session)))
		unknown_session(r, a.session);
	else if (tag == 1)
		run_interrupt(r, s, &a);
	else {
		session_wait_turn(rex, s);
		run_command(rex, r, s, &a);
		session_pass_turn(rex, s);
	}
	if (s)
		session_unref(rex, s);
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
	{ "POST", "/execute", false, rex_execute, true },
	{ "POST", "/read_file", false, rex_read_file },
	{ "POST", "/write_file", false, rex_write_file },
	{ "POST", "/upload", false, rex_upload },
	{ "POST", "/close", false, close_runtime },
};
const size_t n_rex_endpoints = ARRAY_SIZE(rex_endpoints);
