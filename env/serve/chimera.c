/* SPDX-License-Identifier: Apache-2.0 */

/* See chimera.h. Clients look at the status and, when it is 200, at the fields; at nothing else. */

#include "env/serve/chimera.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "env/env_internal.h"
#include "env/files.h"
#include "env/serve/model.h"
#include "env/serve/rex.h"
#include "env/status.h"
#include "store/base/util.h"

void reply_failure(struct http_response *r, int status)
{
	static const struct {
		int status;
		unsigned http;
	} map[] = {
		{ PLY_NOT_FOUND, 404 },	   { PLY_UNKNOWN_ID, 404 }, { PLY_DENIED, 403 },
		{ PLY_IS_DIRECTORY, 400 }, { PLY_INVALID, 400 },    { PLY_ENCODING, 400 },
		{ PLY_SYNTAX, 400 },	   { PLY_STATE, 409 },	    { PLY_EXISTS, 409 },
		{ PLY_UNSUPPORTED, 501 },  { PLY_TIMEOUT, 504 },    { PLY_CANCELLED, 499 },
	};
	unsigned http = 500;

	for (size_t i = 0; i < ARRAY_SIZE(map); i++)
		if (map[i].status == status)
			http = map[i].http;
	reply_detail(r, http, ply_error());
}

/* Reads a body; false: answered. */
static bool body(const struct http_request *q, struct http_response *r,
		 const struct model_field *fields, size_t n, struct model *m, void *to)
{
	model_parse(m, q->body, q->body_len);
	model_read(m, fields, n, to);
	return !reply_complaint(r, 400, m);
}

static void health(void *arg, const struct http_request *q, struct http_response *r)
{
	reply_json(r, 200, json_pack("{s:s}", "status", "ok"));
}

/* A descriptor, given, and the size. What is read here lies in a view, in a container as well. */
static int open_file(struct ply_env *e, const char *path, uint64_t *ret_size)
{
	char inside[PATH_MAX];
	struct stat st;
	int fd = env_enter(e);

	if (fd < 0)
		return fd;
	if (e->ops->locate)
		fd = e->ops->locate(e, path, inside);
	if (fd == 0)
		fd = files_open_to_read(e->workdir, e->ops->locate ? inside : path);
	env_leave(e);
	if (fd < 0)
		return fd;
	if (fstat(fd, &st) < 0) {
		(void)close(fd);
		return fail_errno(errno, "'%s'", path);
	}
	*ret_size = (uint64_t)st.st_size;
	return fd;
}

/* False: the path is missing or no good, and r says so. */
static bool path_read(const struct http_request *q, struct http_response *r, const char **ret)
{
	if (!argument_read(q, r, "path", ret))
		return false;
	if (!*ret)
		reply_detail(r, 400, "the argument 'path' is missing");
	return *ret;
}

/* Text as Python's open() reads it; the protocol has no way to say anything else. */
static void read_file(void *arg, const struct http_request *q, struct http_response *r)
{
	const char *path;
	_cleanup_close_ int fd = -1;
	struct ply_text text;
	json_t *content;
	uint64_t size;
	size_t to = 0;
	int status;

	if (!path_read(q, r, &path))
		return;
	fd = open_file(arg, path, &size);
	if (fd >= 0 && size > HTTP_JSON_MAX) {
		reply_detail(r, 400, "the file is too large for JSON; /files/download gives it");
		return;
	}
	status = fd < 0 ? fd : ply_env_read_file(arg, path, &text);
	if (status < 0) {
		reply_failure(r, status);
		return;
	}
	for (size_t i = 0; i < text.len; i++) {
		bool cr = text.data[i] == '\r';

		if (cr && i + 1 < text.len && text.data[i + 1] == '\n')
			continue;
		text.data[to++] = cr ? '\n' : text.data[i];
	}
	content = json_stringn(text.data, to);
	if (content)
		reply_json(r, 200, json_pack("{s:o}", "content", content));
	else
		reply_detail(r, 400, "the file is not UTF-8; /files/download gives its bytes");
	ply_text_free(&text);
}

struct write_body {
	const char *path, *content;
	size_t content_len;
};

static void write_file(void *arg, const struct http_request *q, struct http_response *r)
{
	static const struct model_field fields[] = {
		{ "path", MODEL_STRING, offsetof(struct write_body, path), 0, true, NULL },
		{ "content", MODEL_STRING, offsetof(struct write_body, content),
		  offsetof(struct write_body, content_len), true, NULL },
	};
	struct write_body b = { 0 };
	struct model m;
	int status;

	if (body(q, r, fields, ARRAY_SIZE(fields), &m, &b)) {
		status = ply_env_write_file(arg, b.path, b.content, b.content_len);
		if (status < 0)
			reply_failure(r, status);
		else
			reply_json(r, 200, json_object());
	}
	model_release(&m);
}

static void list_files(void *arg, const struct http_request *q, struct http_response *r)
{
	const char *pattern;
	struct ply_list list;
	json_t *names;
	int status;

	if (!argument_read(q, r, "pattern", &pattern))
		return;
	status = ply_env_list_files(arg, pattern ? pattern : "**/*", &list);
	if (status < 0) {
		reply_failure(r, status);
		return;
	}
	names = json_array();
	for (size_t i = 0; i < list.n; i++)
		(void)json_array_append_new(names, rex_text(list.items[i], strlen(list.items[i])));
	reply_json(r, 200, json_pack("{s:o}", "files", names));
	ply_list_free(&list);
}

struct execute_body {
	const char *cmd, *shell;
	double timeout;
};

static json_t *text_json(const struct ply_text *t)
{
	return rex_text(t->data ? t->data : "", t->len);
}

static void execute(void *arg, const struct http_request *q, struct http_response *r)
{
	static const struct model_field fields[] = {
		{ "cmd", MODEL_STRING, offsetof(struct execute_body, cmd), 0, true, NULL },
		{ "shell_name", MODEL_STRING_OR_NULL, offsetof(struct execute_body, shell), 0,
		  false, NULL },
		{ "timeout", MODEL_FLOAT_OR_NULL, offsetof(struct execute_body, timeout), 0, false,
		  NULL },
	};
	_cleanup_(ply_result_free) struct ply_result result = { 0 };
	struct execute_body b = { .timeout = NAN };
	struct model m;
	int status;

	if (body(q, r, fields, ARRAY_SIZE(fields), &m, &b)) {
		_cleanup_(client_unwatch) _unused_ int watch = client_watch(q);

		/* null and 0 are the environment's own; a negative one is over before it began. */
		status = ply_env_run(arg, b.cmd,
				     isnan(b.timeout) ? 0
				     : b.timeout < 0  ? 1e-6
						      : b.timeout,
				     b.shell, &result);
		if (status < 0) {
			reply_failure(r, status);
		} else {
			reply_json(r, 200,
				   json_pack("{s:o, s:o, s:i, s:b, s:b}", "stdout",
					     text_json(&result.out), "stderr",
					     text_json(&result.err), "exit_code", result.exit_code,
					     "timed_out", result.timed_out, "truncated",
					     result.truncated));
		}
	}
	model_release(&m);
}

static void tests_run(void *arg, const struct http_request *q, struct http_response *r)
{
	_cleanup_(client_unwatch) _unused_ int watch = client_watch(q);
	struct ply_tests t;
	int status = ply_env_run_tests(arg, &t);

	if (status < 0) {
		reply_failure(r, status);
		return;
	}
	reply_json(r, 200,
		   json_pack("{s:I, s:I, s:I, s:o, s:I, s:s, s:i, s:b}", "passed",
			     (json_int_t)t.passed, "failed", (json_int_t)t.failed, "errors",
			     (json_int_t)t.errors, "output", text_json(&t.output), "skipped",
			     (json_int_t)t.skipped, "runner", t.runner, "exit_code", t.exit_code,
			     "timed_out", t.timed_out));
	ply_tests_free(&t);
}

struct checkpoint_body {
	const char *label;
};

/* Chimera's clients send no body; ours one with a label, when there is one. */
static void checkpoint(void *arg, const struct http_request *q, struct http_response *r)
{
	static const struct model_field fields[] = {
		{ "label", MODEL_STRING_OR_NULL, offsetof(struct checkpoint_body, label), 0, false,
		  NULL },
	};
	_cleanup_(model_release) struct model m = { 0 };
	struct checkpoint_body b = { 0 };
	struct ply_text id;
	int status;

	if (!body_read(q, r, fields, ARRAY_SIZE(fields), &m, &b))
		return;
	status = ply_env_checkpoint(arg, b.label, &id);
	if (status < 0) {
		reply_failure(r, status);
		return;
	}
	reply_json(r, 200, json_pack("{s:s}", "checkpoint_id", id.data));
	ply_text_free(&id);
}

struct restore_body {
	const char *id;
};

static void restore(void *arg, const struct http_request *q, struct http_response *r)
{
	static const struct model_field fields[] = {
		{ "checkpoint_id", MODEL_STRING, offsetof(struct restore_body, id), 0, true, NULL },
	};
	struct restore_body b = { 0 };
	struct model m;
	int status;

	if (body(q, r, fields, ARRAY_SIZE(fields), &m, &b)) {
		status = ply_env_restore(arg, b.id);
		if (status < 0)
			reply_failure(r, status);
		else
			reply_json(r, 200, json_object());
	}
	model_release(&m);
}

static void upload(void *arg, const struct http_request *q, struct http_response *r)
{
	const struct http_part *file = http_part(q, "file"), *path = http_part(q, "path");
	int status;

	if (!file || (!path && !file->filename)) {
		reply_detail(r, 400, "a form with 'path' and a file 'file' is wanted");
		return;
	}
	if (path && reply_nul(r, "body", "path", path->data, path->len))
		return;
	status = ply_env_write_file(arg, path ? path->data : file->filename, file->data, file->len);
	if (status < 0)
		reply_failure(r, status);
	else
		reply_json(r, 200, json_object());
}

static void download(void *arg, const struct http_request *q, struct http_response *r)
{
	const char *path;
	uint64_t size;
	int fd;

	if (!path_read(q, r, &path))
		return;
	fd = open_file(arg, path, &size);
	if (fd < 0) {
		reply_failure(r, fd);
		return;
	}
	r->type = "application/octet-stream";
	r->fd = fd;
}

bool chimera_is_execute(const struct http_request *q)
{
	json_t *object = NULL;
	json_error_t why;
	bool is;

	if (strcmp(q->method, "POST") != 0 || strcmp(q->path, "/execute") != 0)
		return false;
	(void)model_load(q->body, q->body_len, &object, &why); /* then it is none, and NULL */
	is = json_object_get(object, "cmd") && !json_object_get(object, "command");
	json_decref(object);
	return is;
}

const struct endpoint chimera_endpoints[] = {
	{ "GET", "/health", false, health },
	{ "GET", "/files/read", false, read_file },
	{ "POST", "/files/write", false, write_file },
	{ "GET", "/files/list", false, list_files },
	{ "POST", "/files/upload", false, upload },
	{ "GET", "/files/download", false, download },
	{ "POST", "/execute", false, execute, true },
	{ "POST", "/tests/run", false, tests_run, true },
	{ "POST", "/checkpoint", false, checkpoint },
	{ "POST", "/restore", false, restore },
};
const size_t n_chimera_endpoints = ARRAY_SIZE(chimera_endpoints);
