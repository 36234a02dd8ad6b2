/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The remote deployment: a SWE-ReX server over HTTP. One request per call, JSON both ways, but for
 * a directory, which goes as a zip file. What went wrong over there comes as status 511 with the
 * name of a Python class, and is one of our statuses here.
 *
 * Starting contacts nothing. Stopping closes the session by name before it closes the runtime:
 * some servers keep the names of sessions, and the next start needs this one.
 */

#include <stdlib.h>

#include "env/http_client.h"
#include "env/pytext.h"
#include "env/status.h"
#include "env/swe_config.h"
#include "env/swe_deploy.h"
#include "env/zip.h"
#include "store/base/util.h"

#define SESSION "default"

/*
 * Seconds for an answer beyond what the command may take: a server that serves one request at a
 * time may be busy with another's.
 */
#define PATIENCE 60

/* ---- requests ---- */

static const struct {
	const char *class; /* the last part of class_path */
	int status;
} classes[] = {
	{ "FileNotFoundError", PLY_NOT_FOUND },
	{ "NotADirectoryError", PLY_NOT_FOUND },
	{ "IsADirectoryError", PLY_IS_DIRECTORY },
	{ "PermissionError", PLY_DENIED },
	{ "FileExistsError", PLY_EXISTS },
	{ "SessionExistsError", PLY_EXISTS },
	{ "SessionDoesNotExistError", PLY_STATE },
	{ "SessionNotInitializedError", PLY_STATE },
	{ "BashIncorrectSyntaxError", PLY_SYNTAX },
	{ "CommandTimeoutError", PLY_TIMEOUT },
	{ "TIMEOUT", PLY_TIMEOUT }, /* pexpect's */
	{ "EOF", PLY_SESSION_GONE },
	{ "NonZeroExitCodeError", PLY_COMMAND_FAILED },
	{ "NoExitCodeError", PLY_NO_EXIT_CODE },
	{ "UnicodeDecodeError", PLY_ENCODING },
	{ "UnicodeEncodeError", PLY_ENCODING },
	{ "LookupError", PLY_INVALID },
	{ "ValueError", PLY_INVALID },
};

/* {"swerexception": {message, class_path, traceback, extra_info}} */
static int raised(const json_t *reply)
{
	const json_t *e = json_object_get(reply, "swerexception");
	const char *message = config_string(e, "message"), *path = config_string(e, "class_path");
	const char *class = path ? strrchr(path, '.') : NULL;

	if (!message || !class)
		return fail(PLY_REMOTE, "the server failed and did not say how");
	for (size_t i = 0; i < ARRAY_SIZE(classes); i++)
		if (strcmp(class + 1, classes[i].class) == 0)
			return fail(classes[i].status, "%s", message);
	return fail(PLY_REMOTE, "%s: %s", class + 1, message);
}

static int understand(const struct http_reply *reply, json_t **ret)
{
	json_auto_t *j = json_loadb(reply->body.data ? reply->body.data : "", reply->body.len,
				    JSON_ALLOW_NUL, NULL);
	const json_t *detail = json_object_get(j, "detail");

	if (reply->status == 511) {
		int r = raised(j);

		*ret = TAKE_PTR(j);
		return r;
	}
	if (reply->status >= 300)
		return fail(reply->status == 401 || reply->status == 403 ? PLY_DENIED : PLY_REMOTE,
			    "the server answers %ld: %s", reply->status,
			    json_is_string(detail) ? json_string_value(detail) : "no more is said");
	if (!json_is_object(j))
		return fail(PLY_REMOTE, "what answers is no SWE-ReX server: its answer is no JSON");
	*ret = TAKE_PTR(j);
	return 0;
}

/*
 * seconds: that the call itself may take; <= 0: as long as it likes. *ret: the answer, also one
 * that says what was raised; NULL when there is none.
 */
static int ask(struct swe_deploy *d, struct http_request *q, double seconds, json_t **ret)
{
	_cleanup_(http_reply_release) struct http_reply reply = { 0 };
	json_auto_t *answer = NULL;
	int r;

	q->method = "POST";
	q->timeout = seconds > 0 ? seconds + PATIENCE : 1e9;
	r = http_send(d->kind, q, &reply);
	if (r == PLY_TIMEOUT)
		return fail(PLY_REMOTE, "the server does not answer");
	if (r == 0)
		r = understand(&reply, &answer);
	if (ret)
		*ret = TAKE_PTR(answer);
	return r;
}

/* body is taken; NULL: it could not be made. */
static int post(struct swe_deploy *d, const char *endpoint, json_t *body, double seconds,
		json_t **ret)
{
	_cleanup_free_ char *text = body ? json_dumps(body, JSON_ENSURE_ASCII) : NULL;
	struct http_request q = { .path = endpoint, .json = text };

	json_decref(body);
	return text ? ask(d, &q, seconds, ret) : fail_memory();
}

static int take_string(const json_t *reply, const char *field, struct ply_text *ret)
{
	const json_t *s = json_object_get(reply, field);

	return text_set(ret, json_is_string(s) ? json_string_value(s) : "", json_string_length(s));
}

/* Whether the server knows it. */
static bool take_exit_code(const json_t *reply, int *ret)
{
	const json_t *code = json_object_get(reply, "exit_code");

	*ret = (int)json_integer_value(code);
	return json_is_integer(code) && *ret == json_integer_value(code);
}

/* JSON holds text only. */
static int text_of(const char *what, const void *data, size_t len, json_t **ret)
{
	*ret = json_stringn(data, len);
	return *ret ? 0
		    : fail(PLY_ENCODING, "%s is not UTF-8: a remote deployment takes text only",
			   what);
}

/* ---- life ---- */

static void free_http(void *kind)
{
	http_close(kind);
}

static int remote_start(struct swe_deploy *d)
{
	const char *host = config_string(d->config, "host");
	const char *token = config_string(d->config, "auth_token");
	const json_t *port = json_object_get(d->config, "port");
	_cleanup_(ply_text_free) struct ply_text base = { 0 };
	struct http *http = NULL;
	int r;

	r = text_append_format(&base, "%s%s", strncmp(host, "http", 4) == 0 ? "" : "http://", host);
	while (r == 0 && base.len && base.data[base.len - 1] == '/')
		base.data[--base.len] = '\0';
	if (r == 0 && json_is_integer(port))
		r = text_append_format(&base, ":%" JSON_INTEGER_FORMAT, json_integer_value(port));
	if (r == 0)
		r = http_open_header(base.data, "X-API-Key", *token ? token : NULL, &http);
	d->kind = http;
	d->free_kind = free_http;
	return r;
}

static int remote_stop(struct swe_deploy *d, bool afresh)
{
	if (!d->kind)
		return 0;
	/* There may be none; what matters is said by the next one. */
	(void)post(d, "/close_session",
		   json_pack("{s:s,s:s}", "session", SESSION, "session_type", "bash"), 10, NULL);
	return post(d, "/close", json_object(), 10, NULL);
}

static int remote_create_session(struct swe_deploy *d)
{
	return post(d, "/create_session",
		    json_pack("{s:[s],s:s,s:s,s:f}", "startup_source", "/root/.bashrc", "session",
			      SESSION, "session_type", "bash", "startup_timeout", 10.0),
		    10, NULL);
}

/* ---- commands ---- */

static int remote_run(struct swe_deploy *d, const char *command, double timeout,
		      struct swe_answer *ret)
{
	json_auto_t *reply = NULL;
	json_t *text;
	int r;

	r = text_of("the command", command, strlen(command), &text);
	if (r == 0)
		r = post(d, "/run_in_session",
			 json_pack("{s:o,s:s,s:f,s:b,s:b,s:s,s:s,s:[],s:s}", "command", text,
				   "session", SESSION, "timeout", timeout, "is_interactive_command",
				   0, "is_interactive_quit", 0, "check", "silent", "error_msg", "",
				   "expect", "action_type", "bash"),
			 timeout, &reply);
	if (r == PLY_TIMEOUT) {
		const json_t *e = json_object_get(reply, "swerexception");
		/* Servers that are not ours tell nothing here. */
		int t = take_string(json_object_get(e, "extra_info"), "partial_output",
				    &ret->output);

		return t < 0 ? t : r;
	}
	if (r < 0)
		return r;
	ret->exit_code_known = take_exit_code(reply, &ret->exit_code);
	return take_string(reply, "output", &ret->output);
}

static int remote_interrupt(struct swe_deploy *d)
{
	return post(d, "/run_in_session",
		    json_pack("{s:s,s:f,s:i,s:[],s:s}", "session", SESSION, "timeout", 0.2,
			      "n_retry", 3, "expect", "action_type", "bash_interrupt"),
		    10, NULL);
}

/* {"K": "V"} of "K=V". */
static int env_object(const struct swe_execute *x, json_t **ret)
{
	json_auto_t *env = json_object();

	for (size_t i = 0; i < x->n_env; i++) {
		_cleanup_free_ char *name = strndup(x->env[i], strcspn(x->env[i], "="));
		const char *value = strchr(x->env[i], '=');

		if (!name)
			return fail_memory();
		if (json_object_set_new(env, name, json_string(value ? value + 1 : "")) < 0)
			return fail(PLY_ENCODING,
				    "a variable is not UTF-8: a remote deployment takes text only");
	}
	*ret = TAKE_PTR(env);
	return 0;
}

static int remote_execute(struct swe_deploy *d, const struct swe_execute *x, struct ply_result *ret)
{
	json_auto_t *text = NULL, *env = NULL, *cwd = NULL, *reply = NULL;
	int r;

	r = text_of("the command", x->command, strlen(x->command), &text);
	if (r == 0 && x->env)
		r = env_object(x, &env);
	if (r == 0 && x->cwd)
		r = text_of("the directory", x->cwd, strlen(x->cwd), &cwd);
	/* check is done here, where the result is at hand. */
	if (r == 0)
		r = post(d, "/execute",
			 json_pack("{s:O,s:o,s:b,s:b,s:s,s:O?,s:O?,s:b}", "command", text,
				   "timeout",
				   x->timeout > 0 ? json_real(x->timeout) : json_null(), "shell", 1,
				   "check", 0, "error_msg", "", "env", env, "cwd", cwd,
				   "merge_output_streams", 0),
			 x->timeout, &reply);
	if (r == 0)
		r = take_string(reply, "stdout", &ret->out);
	if (r == 0)
		r = take_string(reply, "stderr", &ret->err);
	if (r < 0)
		return r;
	if (!take_exit_code(reply, &ret->exit_code))
		return fail(PLY_NO_EXIT_CODE, "the server does not say the command's exit code");
	return x->check && ret->exit_code != 0 ? execute_failed(x->command, ret) : 0;
}

/* ---- files ---- */

static int remote_read_file(struct swe_deploy *d, const char *path, struct ply_text *ret)
{
	json_auto_t *reply = NULL;
	json_t *text;
	int r;

	r = text_of("the path", path, strlen(path), &text);
	if (r == 0)
		r = post(d, "/read_file",
			 json_pack("{s:o,s:n,s:n}", "path", text, "encoding", "errors"), PATIENCE,
			 &reply);
	return r < 0 ? r : take_string(reply, "content", ret);
}

static int remote_write_file(struct swe_deploy *d, const char *path, const void *data, size_t len)
{
	json_t *text, *content;
	int r;

	r = text_of("the path", path, strlen(path), &text);
	if (r < 0)
		return r;
	r = text_of("the content", data, len, &content);
	if (r < 0) {
		json_decref(text);
		return r;
	}
	return post(d, "/write_file", json_pack("{s:o,s:o}", "content", content, "path", text),
		    PATIENCE, NULL);
}

static int remote_exists(struct swe_deploy *d, const char *path)
{
	_cleanup_(ply_result_free) struct ply_result result = { 0 };
	_cleanup_(ply_text_free) struct ply_text command = { 0 };
	struct swe_execute x = { 0 };
	int r;

	r = text_append_str(&command, "test -e ");
	if (r == 0)
		r = text_append_quoted(&command, path);
	if (r < 0)
		return r;
	x.command = command.data;
	r = remote_execute(d, &x, &result);
	return r < 0 ? r : result.exit_code == 0;
}

static int remote_copy_tree(struct swe_deploy *d, const char *from, const char *path)
{
	const char *const fields[] = { "target_path", path, "unzip", "true", NULL };
	struct http_request q = { .path = "/upload", .upload_path = "tree.zip", .fields = fields };
	_cleanup_close_ int fd = -1;
	char file[40];
	int r;

	r = zip_directory(from, &fd);
	if (r < 0)
		return r;
	(void)snprintf(file, sizeof(file), "/proc/self/fd/%d", fd); /* fits */
	q.upload = file;
	return ask(d, &q, PATIENCE, NULL);
}

const struct swe_deploy_ops deploy_remote = {
	.type = "remote",
	.start = remote_start,
	.stop = remote_stop,
	.create_session = remote_create_session,
	.run = remote_run,
	.interrupt = remote_interrupt,
	.execute = remote_execute,
	.read_file = remote_read_file,
	.write_file = remote_write_file,
	.exists = remote_exists,
	.copy_tree = remote_copy_tree,
};
