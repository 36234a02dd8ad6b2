/* SPDX-License-Identifier: Apache-2.0 */

/*
 * POST /v1/exec: a command, its output as one answer or, as server-sent events, while it comes.
 *
 * When the client goes away, or the server ends, the command and all that it started are killed
 * (but for one with an X-Request-ID that is no stream: it may be asked for again). A stream's
 * events: `stdout` and `stderr` with {"data": TEXT}, at last `exit` with {"exit_code",
 * "timed_out"}, or `error` with {"detail"}.
 */

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

#include "env/env_internal.h"
#include "env/serve/chimera.h"
#include "env/serve/model.h"
#include "env/serve/native.h"
#include "env/serve/rex.h"
#include "env/status.h"
#include "store/base/util.h"

#define EXIT_TIMEOUT 124 /* as timeout(1) */
#define CHUNK 16384	 /* of an event, at most */
/* A proxy in between takes a silent connection for a dead one; most wait for a minute. */
#define COMMENT_SECONDS 15

struct exec_body {
	json_t *command, *env;
	const char *cwd, *input;
	size_t input_len;
	double timeout;
	bool merge, stream;
};

struct channel { /* a stream of output */
	const char *event;
	int fd;	      /* -1: at its end */
	char held[4]; /* the begin of a character whose end has not come yet */
	size_t n_held;
};

/* What runs, and where; all owned. */
struct exec {
	struct ply_env *e; /* borrowed */
	struct ply_list argv, env;
	char **wrapped, *cwd;
	struct proc_options o;
	struct proc_capture c;
	/* Of a stream: */
	struct proc p;
	struct channel channels[2];
	int watch; /* of http_watch */
	double end; /* when its timeout has passed; 0: never */
	bool late;  /* it was ended then, while the client did not read */
};

static void exec_free(void *arg)
{
	struct exec *x = arg;

	if (!x)
		return;
	if (x->p.pid && !x->p.ended)
		(void)proc_kill(&x->p); /* what it cannot kill the environment's end tries again */
	for (int i = 0; i < 2; i++)
		proc_discard(&x->p, TAKE_FD(x->channels[i].fd));
	proc_release(&x->p);
	closep(&x->watch);
	argv_free(x->wrapped);
	ply_list_free(&x->argv);
	ply_list_free(&x->env);
	free(x->cwd);
	free(x);
}

static void exec_freep(struct exec **x)
{
	exec_free(*x);
}

static int append(struct ply_list *list, json_t *s)
{
	if (strlen(json_string_value(s)) != json_string_length(s))
		return fail(PLY_INVALID, "there is a NUL byte in the command or its environment");
	return list_append(list, json_string_value(s), json_string_length(s));
}

/* A string is a line for the shell, a list is the words of a program. */
static int make_words(const struct exec_body *b, struct exec *x)
{
	extern char **environ;
	const char *name;
	json_t *item;
	size_t i;
	int r = 0;

	if (json_is_string(b->command)) {
		r = list_append(&x->argv, "/bin/sh", 7);
		if (r == 0)
			r = list_append(&x->argv, "-c", 2);
		if (r == 0)
			r = append(&x->argv, b->command);
	}
	json_array_foreach(b->command, i, item) {
		if (r == 0)
			r = append(&x->argv, item);
	}
	if (r == 0 && !x->argv.n)
		r = fail(PLY_INVALID, "the command is empty");
	if (r < 0 || !json_object_size(b->env))
		return r;

	/* The server's own, with these instead of what has the same name. */
	for (char **v = environ; *v && r == 0 && !x->e->ops->wrap; v++) {
		_cleanup_free_ char *key = strndup(*v, strcspn(*v, "="));

		if (!key)
			r = fail_memory();
		else if (!json_object_get(b->env, key))
			r = list_append(&x->env, *v, strlen(*v));
	}
	json_object_foreach(b->env, name, item) {
		_cleanup_free_ char *pair = NULL;

		if (r == 0 && (!*name || strchr(name, '=') ||
			       strlen(json_string_value(item)) != json_string_length(item)))
			r = fail(PLY_INVALID, "'%s' cannot be a variable's name and value", name);
		if (r == 0 && asprintf(&pair, "%s=%s", name, json_string_value(item)) < 0) {
			pair = NULL;
			r = fail_memory();
		}
		if (r == 0)
			r = list_append(&x->env, pair, strlen(pair));
	}
	return r;
}

/* How the kind of environment runs it. */
static int make_options(const struct exec_body *b, struct exec *x)
{
	const struct ply_env *e = x->e;
	struct ply_list words = { 0 };
	int r = 0;

	/* A copy: the environment may be cleaned up before a stream has ended. */
	if (b->cwd && !e->ops->wrap && *b->cwd != '/')
		r = asprintf(&x->cwd, "%s/%s", e->workdir, b->cwd);
	else
		r = asprintf(&x->cwd, "%s", b->cwd && !e->ops->wrap ? b->cwd : e->workdir);
	if (r < 0) {
		x->cwd = NULL;
		return fail_memory();
	}
	r = 0;
	x->o = (struct proc_options){
		.argv = (const char *const *)x->argv.items,
		.env = x->env.n ? (const char *const *)x->env.items : NULL,
		.cwd = x->cwd,
		.fds = { -1, -1, -1 },
		.limits = { .memory = env_count(e, "memory"),
			    .processes = env_count(e, "processes"),
			    .cpu_time = env_count(e, "cpu_time") },
	};
	x->c = (struct proc_capture){
		.merge = b->merge,
		.limit = env_count(e, "output_limit"),
		.timeout = isnan(b->timeout) ? e->timeout : b->timeout,
		.input = b->input,
		.input_len = b->input_len,
	};
	if (!e->ops->wrap)
		return 0;
	/* In a container the directory is the container's: it is entered in there. */
	for (size_t i = 0; b->cwd && rex_enter[i] && r == 0; i++)
		r = list_append(&words, rex_enter[i], strlen(rex_enter[i]));
	if (b->cwd && r == 0)
		r = list_append(&words, b->cwd, strlen(b->cwd));
	for (size_t i = 0; i < x->argv.n && r == 0; i++)
		r = list_append(&words, x->argv.items[i], strlen(x->argv.items[i]));
	if (r == 0)
		r = e->ops->wrap(x->e, (const char *const *)words.items, x->o.env, false,
				 &x->wrapped);
	ply_list_free(&words);
	if (r == 0 && x->wrapped) {
		x->o.argv = (const char *const *)x->wrapped;
		x->o.env = NULL;
	}
	return r;
}

/* ---- as one answer ---- */

static int run(struct exec *x, const struct http_request *q, struct http_response *r)
{
	_cleanup_(client_unwatch) _unused_ int watch = client_watch(q);
	struct ply_result result = { 0 };
	int status = proc_run(x->e->keeper, &x->o, &x->c, &result);

	if (status < 0)
		return status;
	reply_json(r, 200,
		   json_pack("{s:o, s:o, s:i, s:b, s:b}", "stdout",
			     rex_text(result.out.data ? result.out.data : "", result.out.len),
			     "stderr",
			     rex_text(result.err.data ? result.err.data : "", result.err.len),
			     "exit_code", result.exit_code, "timed_out", result.timed_out,
			     "truncated", result.truncated));
	ply_result_free(&result);
	return 0;
}

/* ---- as events ---- */

struct events {
	bool (*emit)(void *to, const char *data, size_t len);
	void *to;
};

static bool send_event(const struct events *s, const char *event, json_t *data)
{
	size_t len;
	_cleanup_free_ char *json = data ? model_dump(data, &len) : NULL;
	_cleanup_free_ char *text = NULL;
	int n = json ? asprintf(&text, "event: %s\ndata: %s\n\n", event, json) : -1;

	json_decref(data);
	if (n < 0) {
		text = NULL;
		return false;
	}
	return s->emit(s->to, text, (size_t)n);
}

/* How many bytes at the end are the begin of one UTF-8 character: 0 to 3. */
static size_t unfinished(const char *data, size_t len)
{
	for (size_t back = 1; back <= 3 && back <= len; back++) {
		unsigned char c = (unsigned char)data[len - back];

		if (c >> 6 == 2)
			continue;
		return (c >= 0xf0 && back < 4) || (c >= 0xe0 && c < 0xf0 && back < 3) ||
				       (c >= 0xc0 && c < 0xe0 && back < 2)
			       ? back
			       : 0;
	}
	return 0;
}

/* Reads once, at most `most` bytes. False: the client is gone. */
static bool forward(const struct events *s, struct channel *c, size_t most)
{
	char buf[CHUNK + sizeof(c->held)];
	size_t len = c->n_held, keep;
	ssize_t n;

	memcpy(buf, c->held, len);
	do
		n = read(c->fd, buf + len, MIN(most, CHUNK));
	while (n < 0 && errno == EINTR);
	if (n < 0 && errno == EAGAIN)
		return true;
	if (n <= 0) {
		closep(&c->fd);
		c->fd = -1;
		n = 0;
	}
	len += (size_t)n;
	keep = n > 0 ? unfinished(buf, len) : 0;
	c->n_held = keep;
	memcpy(c->held, buf + len - keep, keep);
	len -= keep;
	return !len || send_event(s, c->event, json_pack("{s:o}", "data", rex_text(buf, len)));
}

enum { ENDED, TIMED_OUT, GONE };

static int follow(struct exec *x, const struct events *s)
{
	double end = x->end, comment = now_seconds() + COMMENT_SECONDS;

	while (!x->p.ended) {
		struct pollfd polls[] = { { .fd = x->p.fd, .events = POLLIN },
					  { .fd = x->channels[0].fd, .events = POLLIN },
					  { .fd = x->channels[1].fd, .events = POLLIN },
					  { .fd = x->watch, .events = POLLIN } };
		double left = (end > 0 && end < comment ? end : comment) - now_seconds();
		int n = poll(polls, 4, left > 0 ? (int)(MIN(left, 1e6) * 1000) + 1 : 0);

		if (end > 0 && now_seconds() >= end)
			return TIMED_OUT;
		if (now_seconds() >= comment) {
			if (!s->emit(s->to, ": still running\n\n", 17))
				return GONE;
			comment = now_seconds() + COMMENT_SECONDS;
		}
		if (n <= 0)
			continue;
		if (polls[3].revents)
			return GONE;
		for (int i = 0; i < 2; i++)
			if (polls[i + 1].revents && !forward(s, &x->channels[i], CHUNK))
				return GONE;
		if (polls[0].revents)
			(void)proc_wait(&x->p, 0); /* sets ended */
	}
	return x->late ? TIMED_OUT : ENDED;
}

static void end_late(void *arg)
{
	struct exec *x = arg;

	(void)proc_wait(&x->p, 0); /* sets ended: it may have made it */
	x->late = !x->p.ended;
	if (x->late)
		(void)proc_kill(&x->p); /* stream() tries again, and tells */
}

/* What is in the pipe now: somebody in the background may write for ever. */
static bool drain(const struct events *s, struct channel *c)
{
	int left = 0;

	if (c->fd < 0 || ioctl(c->fd, FIONREAD, &left) < 0)
		left = 0;
	while (left > 0 && c->fd >= 0) {
		size_t n = MIN((size_t)left, CHUNK);

		if (!forward(s, c, n))
			return false;
		left -= (int)n;
	}
	if (!c->n_held)
		return true;
	return send_event(s, c->event, json_pack("{s:o}", "data", rex_text(c->held, c->n_held)));
}

static void stream(void *arg, bool (*emit)(void *to, const char *data, size_t len), void *to)
{
	const struct events s = { .emit = emit, .to = to };
	struct exec *x = arg;
	int how = follow(x, &s), code;

	if (how != ENDED && proc_kill(&x->p) < 0 && how == TIMED_OUT) {
		(void)send_event(&s, "error", json_pack("{s:s}", "detail", ply_error()));
		return;
	}
	if (how == GONE || !drain(&s, &x->channels[0]) || !drain(&s, &x->channels[1]))
		return;
	code = how == TIMED_OUT		  ? EXIT_TIMEOUT
	       : WIFSIGNALED(x->p.status) ? -WTERMSIG(x->p.status)
					  : WEXITSTATUS(x->p.status);
	(void)send_event(&s, "exit",
			 json_pack("{s:i, s:b}", "exit_code", code, "timed_out", how == TIMED_OUT));
}

static int open_channel(struct channel *c, int *ret)
{
	int p[2];

	if (pipe2(p, O_CLOEXEC) < 0)
		return fail_errno(errno, "a pipe");
	c->fd = p[0];
	(void)fcntl(c->fd, F_SETFL, O_NONBLOCK); /* a fresh pipe: cannot fail */
	*ret = p[1];
	return 0;
}

static int begin_stream(struct exec **x, const struct http_request *q, struct http_response *r)
{
	_cleanup_close_ int in = -1, out = -1, err = -1;
	int s;

	s = open_channel(&(*x)->channels[0], &out);
	if (s == 0 && !(*x)->c.merge)
		s = open_channel(&(*x)->channels[1], &err);
	if (s == 0 && (*x)->c.input)
		s = proc_input((*x)->c.input, (*x)->c.input_len, &in);
	if (s < 0)
		return s;
	(*x)->o.fds[0] = in;
	(*x)->o.fds[1] = out;
	(*x)->o.fds[2] = (*x)->c.merge ? out : err;
	s = proc_spawn((*x)->e->keeper, &(*x)->o, &(*x)->p);
	if (s < 0)
		return s;
	(*x)->watch = http_watch(q);
	(*x)->end = (*x)->c.timeout > 0 ? now_seconds() + (*x)->c.timeout : 0;
	r->type = "text/event-stream";
	r->header_name = "Cache-Control";
	r->header_value = strdup("no-cache");
	r->stream = stream;
	r->stream_free = exec_free;
	r->stream_late = (*x)->end > 0 ? end_late : NULL;
	r->stream_until = (*x)->end;
	r->stream_arg = TAKE_PTR(*x);
	return 0;
}

static bool wants_events(const struct http_request *q)
{
	const char *accept = http_header(q, "Accept");

	return accept && strcasestr(accept, "text/event-stream");
}

static int new_exec(struct ply_env *e, const struct exec_body *b, struct exec **ret)
{
	_cleanup_(exec_freep) struct exec *x = NULL;
	int r;

	if (!e->keeper)
		return fail(PLY_UNSUPPORTED, "%s environments run nothing here", e->ops->kind);
	x = calloc(1, sizeof(*x));
	if (!x)
		return fail_memory();
	x->e = e;
	x->p.fd = x->watch = -1;
	x->channels[0] = (struct channel){ .event = "stdout", .fd = -1 };
	x->channels[1] = (struct channel){ .event = "stderr", .fd = -1 };
	r = make_words(b, x);
	if (r == 0)
		r = make_options(b, x);
	if (r == 0)
		*ret = TAKE_PTR(x);
	return r;
}

static int exec_entered(struct ply_env *e, const struct exec_body *b, const struct http_request *q,
			struct http_response *r)
{
	_cleanup_(exec_freep) struct exec *x = NULL;
	int s = new_exec(e, b, &x);

	if (s < 0)
		return s;
	return b->stream || wants_events(q) ? begin_stream(&x, q, r) : run(x, q, r);
}

void native_exec(void *arg, const struct http_request *q, struct http_response *r)
{
	static const struct model_field fields[] = {
		{ "command", MODEL_STRING_OR_STRINGS, offsetof(struct exec_body, command), 0, true,
		  NULL },
		{ "env", MODEL_MAP_OR_NULL, offsetof(struct exec_body, env), 0, false, NULL },
		{ "cwd", MODEL_STRING_OR_NULL, offsetof(struct exec_body, cwd), 0, false, NULL },
		{ "stdin", MODEL_STRING_OR_NULL, offsetof(struct exec_body, input),
		  offsetof(struct exec_body, input_len), false, NULL },
		{ "timeout", MODEL_FLOAT_OR_NULL, offsetof(struct exec_body, timeout), 0, false,
		  NULL },
		{ "merge", MODEL_BOOL, offsetof(struct exec_body, merge), 0, false, NULL },
		{ "stream", MODEL_BOOL, offsetof(struct exec_body, stream), 0, false, NULL },
	};
	_cleanup_(model_release) struct model m = { 0 };
	struct exec_body b = { .timeout = NAN };
	struct ply_env *e = arg;
	int s;

	if (!body_read(q, r, fields, ARRAY_SIZE(fields), &m, &b))
		return;
	s = env_enter(e);
	if (s == 0) {
		s = exec_entered(e, &b, q, r);
		env_leave(e);
	}
	/* A program or a directory that is not there is no missing page. */
	if (s == PLY_NOT_FOUND || s == PLY_DENIED)
		reply_detail(r, 400, ply_error());
	else if (s < 0)
		reply_failure(r, s);
}
