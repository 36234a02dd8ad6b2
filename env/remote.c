/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Environments of kind "remote": every verb is one request to another machine's server.
 *
 *     GET  /health                                     GET  /files/read?path=P      {content}
 *     GET  /files/list?pattern=G   {files}             POST /files/write            {path, content}
 *     POST /execute {cmd, timeout, shell_name}         POST /files/upload           a form
 *     POST /tests/run                                  GET  /files/download?path=P  bytes
 *     POST /checkpoint             {checkpoint_id}     POST /restore                {checkpoint_id}
 *
 * The protocol has no word for undo, diff, clone and shells, so this kind has none of them either.
 */

#include "env/remote.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "env/status.h"
#include "store/base/util.h"

/* What a command's answer may take longer than the command: its output has to come here. */
#define SLACK 30.0
/* How long a server's own test command may take when nothing was said: a local one's timeout. */
#define TESTS_TIMEOUT 300.0
/* Of a server's words in our sentence. */
#define WORDS_MAX 400
/* Of an error's body that is read as JSON, which takes many times as much. */
#define ERROR_BYTES (64 * 1024)

/* ---- answers ---- */

/* Of an error's body: what JSON says in a member that servers use for that, else its text. */
static void server_words(const struct ply_text *body, char ret[WORDS_MAX + 1])
{
	static const char *const members[] = { "detail", "error", "message" };
	_cleanup_(json_freep) json_t *j =
		body->len <= ERROR_BYTES ?
			json_loadb(body->data ? body->data : "", body->len, 0, NULL) : NULL;
	const char *words = NULL;
	size_t n = 0;

	for (size_t i = 0; !words && i < ARRAY_SIZE(members); i++)
		words = json_string_value(json_object_get(j, members[i]));
	if (!words)
		words = body->data ? body->data : "";
	/* One line, and nothing that a terminal would obey. */
	words += strspn(words, " \t\r\n");
	for (; *words && n < WORDS_MAX; words++)
		ret[n++] = (unsigned char)*words < ' ' || *words == 0x7f ? ' ' : *words;
	while (n && ret[n - 1] == ' ')
		n--;
	ret[n] = '\0';
}

static int refused(struct http *h, const struct http_request *q, const struct http_reply *reply,
		   int not_found)
{
	char words[WORDS_MAX + 1];
	int status = PLY_REMOTE;

	server_words(&reply->body, words);
	if (reply->status == 404)
		status = not_found;
	else if (reply->status == 401 || reply->status == 403)
		status = PLY_DENIED;
	if (status == PLY_NOT_FOUND && q->value)
		return fail(status, "File not found: %s", q->value);
	if (reply->status == 401)
		return fail(status, "%s does not accept the api_key%s%s", http_base(h),
			    *words ? ": " : "", words);
	return fail(status, "%s %s%s: status %ld%s%s", q->method, http_base(h), q->path,
		    reply->status, *words ? ": " : "", words);
}

int remote_ask(struct http *h, const struct http_request *q, int not_found, json_t **ret)
{
	_cleanup_(http_reply_release) struct http_reply reply = { 0 };
	_cleanup_(json_freep) json_t *answer = NULL;
	json_error_t error;
	int r;

	r = http_send(h, q, &reply);
	if (r < 0)
		return r;
	if (reply.status < 200 || reply.status > 299)
		return refused(h, q, &reply, not_found);
	if (!ret)
		return 0;
	answer = json_loadb(reply.body.data ? reply.body.data : "", reply.body.len, JSON_ALLOW_NUL,
			    &error);
	if (!answer || !json_is_object(answer))
		return fail(PLY_REMOTE, "%s%s: the answer is no JSON object%s%s", http_base(h),
			    q->path, answer ? "" : ": ", answer ? "" : error.text);
	*ret = TAKE_PTR(answer);
	return 0;
}

int remote_ask_with(struct http *h, struct http_request q, json_t *body, int not_found,
		    json_t **ret)
{
	_cleanup_(json_freep) json_t *owned = body;
	_cleanup_free_ char *text = json_dumps(owned, JSON_COMPACT);

	if (!text)
		return fail_memory();
	q.json = text;
	return remote_ask(h, &q, not_found, ret);
}

int remote_string(const json_t *answer, const char *key, struct ply_text *ret)
{
	const json_t *j = json_object_get(answer, key);

	if (!json_is_string(j))
		return fail(PLY_REMOTE, "the server's answer has no text '%s'", key);
	return text_set(ret, json_string_value(j), json_string_length(j));
}

static int remote_number(const json_t *answer, const char *key, json_int_t *ret)
{
	const json_t *j = json_object_get(answer, key);

	if (!json_is_integer(j))
		return fail(PLY_REMOTE, "the server's answer has no whole number '%s'", key);
	*ret = json_integer_value(j);
	return 0;
}

int remote_put(json_t *body, const char *key, const void *data, size_t len, const char *what)
{
	json_t *text = json_stringn(data ? data : "", len);

	if (!text)
		return fail(PLY_ENCODING, "%s is not UTF-8, and the protocol carries text only",
			    what);
	return json_object_set_new(body, key, text) < 0 ? fail_memory() : 0;
}

/* ---- life ---- */

void remote_free(struct remote *r)
{
	if (!r)
		return;
	http_close(r->http);
	http_close(r->cloud);
	free(r);
}

int remote_connect(struct ply_env *e, struct remote *r, bool tls, const char *host,
		   const char *port)
{
	const struct http_request health = { .method = "GET",
					     .path = "/health",
					     .timeout = e->timeout };
	const char *key = env_option(e, "api_key");
	bool v6 = strchr(host, ':') && *host != '[';
	_cleanup_free_ char *base = NULL;
	struct http *http = NULL;
	int s;

	if (strpbrk(host, "/?#%"))
		return fail(PLY_INVALID, "'%s' is no host: a name or an address, no URL", host);
	if (asprintf(&base, "http%s://%s%s%s:%s", tls ? "s" : "", v6 ? "[" : "", host,
		     v6 ? "]" : "", port) < 0) {
		base = NULL;
		return fail_memory();
	}
	s = http_open(base, *key ? key : NULL, &http);
	if (s < 0)
		return s;
	s = remote_ask(http, &health, PLY_REMOTE, NULL);
	if (s < 0) {
		http_close(http);
		return s;
	}
	r->http = http;
	return 0;
}

static int check(struct ply_env *e)
{
	if (!*env_option(e, "host"))
		return fail(PLY_INVALID, "a remote environment needs the option 'host'");
	return 0;
}

static int setup(struct ply_env *e)
{
	_cleanup_(remote_freep) struct remote *r = calloc(1, sizeof(*r));
	int s;

	if (!r)
		return fail_memory();
	s = remote_connect(e, r, env_flag(e, "tls"), env_option(e, "host"), env_option(e, "port"));
	if (s < 0)
		return s;
	e->workdir = strdup(env_option(e, "working_dir"));
	if (!e->workdir)
		return fail_memory();
	e->kind = TAKE_PTR(r);
	return 0;
}

static int cleanup(struct ply_env *e)
{
	remote_free(e->kind);
	e->kind = NULL;
	return 0;
}

/* ---- files ---- */

static struct http *http_of(struct ply_env *e)
{
	return ((struct remote *)e->kind)->http;
}

int remote_read_file(struct ply_env *e, const char *path, struct ply_text *ret)
{
	const struct http_request q = { .method = "GET",
					.path = "/files/read",
					.name = "path",
					.value = path,
					.timeout = e->timeout };
	_cleanup_(json_freep) json_t *answer = NULL;
	int r;

	r = remote_ask(http_of(e), &q, PLY_NOT_FOUND, &answer);
	return r < 0 ? r : remote_string(answer, "content", ret);
}

int remote_write_file(struct ply_env *e, const char *path, const void *data, size_t len)
{
	const struct http_request q = { .method = "POST",
					.path = "/files/write",
					.timeout = e->timeout };
	_cleanup_(json_freep) json_t *body = json_object();
	int r;

	r = remote_put(body, "path", path, strlen(path), "the path");
	if (r == 0)
		r = remote_put(body, "content", data, len, "the content");
	if (r == PLY_ENCODING)
		return fail(r, "%s; upload carries bytes", ply_error());
	if (r < 0)
		return r;
	return remote_ask_with(http_of(e), q, TAKE_PTR(body), PLY_NOT_FOUND, NULL);
}

int remote_list_files(struct ply_env *e, const char *pattern, struct ply_list *ret)
{
	const struct http_request q = { .method = "GET",
					.path = "/files/list",
					.name = "pattern",
					.value = pattern,
					.timeout = e->timeout };
	_cleanup_(ply_list_free) struct ply_list list = { 0 };
	_cleanup_(json_freep) json_t *answer = NULL;
	const json_t *files, *file;
	size_t i;
	int r;

	r = remote_ask(http_of(e), &q, PLY_REMOTE, &answer);
	if (r < 0)
		return r;
	files = json_object_get(answer, "files");
	if (!json_is_array(files))
		return fail(PLY_REMOTE, "the server's answer has no list 'files'");
	json_array_foreach(files, i, file) {
		if (!json_is_string(file))
			return fail(PLY_REMOTE, "the server's list of files has no text at %zu", i);
		r = list_append(&list, json_string_value(file), json_string_length(file));
		if (r < 0)
			return r;
	}
	*ret = list;
	list = (struct ply_list){ 0 };
	return 0;
}

int remote_upload(struct ply_env *e, const char *local, const char *path)
{
	const struct http_request q = { .method = "POST",
					.path = "/files/upload",
					.upload = local,
					.upload_path = path,
					.timeout = e->timeout };
	_cleanup_close_ int fd = open(local, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat st;

	/* Before anything is sent; libcurl opens it again. */
	if (fd < 0 || fstat(fd, &st) < 0)
		return fail_errno(errno, "%s", local);
	if (S_ISDIR(st.st_mode))
		return fail(PLY_IS_DIRECTORY, "%s is a directory: files go one by one", local);
	if (!S_ISREG(st.st_mode))
		return fail(PLY_INVALID, "%s is not a regular file", local);
	return remote_ask(http_of(e), &q, PLY_NOT_FOUND, NULL);
}

/* Into a file beside it, which takes its place when all is there. */
int remote_download(struct ply_env *e, const char *path, const char *local)
{
	_cleanup_free_ char *part = NULL;
	_cleanup_close_ int fd = -1;
	const struct http_request q = { .method = "GET",
					.path = "/files/download",
					.name = "path",
					.value = path,
					.download = &fd,
					.timeout = e->timeout };
	struct timespec now;
	int r;

	(void)clock_gettime(CLOCK_REALTIME, &now); /* cannot fail */
	if (asprintf(&part, "%s.%lx%lx.part", local, (long)getpid(), now.tv_nsec) < 0) {
		part = NULL;
		return fail_memory();
	}
	fd = open(part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (fd < 0)
		return fail_errno(errno, "%s", local);
	r = remote_ask(http_of(e), &q, PLY_NOT_FOUND, NULL);
	if (r == 0 && (close(TAKE_FD(fd)) < 0 || rename(part, local) < 0))
		r = fail_errno(errno, "%s", local);
	if (r < 0)
		(void)unlink(part); /* the failure that counts is the first */
	return r;
}

/* ---- commands ---- */

/* The protocol has no other sign of it: these words, on the last line. */
static bool has_timed_out(const struct ply_result *result)
{
	static const char words[] = "Command timed out";
	const struct ply_text *err = &result->err;
	size_t n = sizeof(words) - 1;

	return result->exit_code == 124 && err->len >= n &&
	       memcmp(err->data + err->len - n, words, n) == 0 &&
	       (err->len == n || err->data[err->len - n - 1] == '\n');
}

int remote_run(struct ply_env *e, const char *command, double timeout, const char *shell,
	       struct ply_result *ret)
{
	/* A day and more is as good as for ever; the protocol has whole seconds. */
	double seconds = ceil(timeout < 1e6 ? timeout : 1e6);
	const struct http_request q = { .method = "POST",
					.path = "/execute",
					.timeout = MAX(seconds, e->timeout) + SLACK,
					.cancellable = true };
	_cleanup_(ply_result_free) struct ply_result result = { 0 };
	_cleanup_(json_freep) json_t *body = json_object(), *answer = NULL;
	json_int_t exit_code = 0;
	int r;

	if (!shell)
		shell = "main";
	r = remote_put(body, "cmd", command, strlen(command), "the command");
	if (r == 0 && json_object_set_new(body, "timeout", json_integer((json_int_t)seconds)) < 0)
		r = fail_memory();
	if (r == 0)
		r = remote_put(body, "shell_name", shell, strlen(shell), "the shell's name");
	if (r == 0)
		r = remote_ask_with(http_of(e), q, TAKE_PTR(body), PLY_REMOTE, &answer);
	if (r == 0)
		r = remote_string(answer, "stdout", &result.out);
	if (r == 0)
		r = remote_string(answer, "stderr", &result.err);
	if (r == 0)
		r = remote_number(answer, "exit_code", &exit_code);
	if (r == 0 && exit_code != (int)exit_code)
		r = fail(PLY_REMOTE, "the server's answer has %lld as an exit code",
			 (long long)exit_code);
	if (r < 0)
		return r;
	result.exit_code = (int)exit_code;
	result.timed_out = has_timed_out(&result);
	*ret = result;
	result = (struct ply_result){ 0 };
	return 0;
}

static int count_of(const json_t *answer, const char *key, uint64_t *ret)
{
	json_int_t n = 0;
	int r;

	r = remote_number(answer, key, &n);
	if (r < 0)
		return r;
	if (n < 0 || (uint64_t)n > PLY_TESTS_MAX)
		return fail(PLY_REMOTE, "the server's answer has %lld '%s'", (long long)n, key);
	*ret = (uint64_t)n;
	return 0;
}

/* Skipped tests, the runner and the exit code are not in the protocol; a server may add them. */
static void read_extras(const json_t *answer, struct ply_tests *ret)
{
	const char *runner = json_string_value(json_object_get(answer, "runner"));
	json_int_t skipped = json_integer_value(json_object_get(answer, "skipped"));

	ret->skipped = skipped > 0 ? MIN((uint64_t)skipped, PLY_TESTS_MAX) : 0;
	ret->exit_code = (int)json_integer_value(json_object_get(answer, "exit_code"));
	ret->timed_out = json_is_true(json_object_get(answer, "timed_out"));
	if (runner)
		(void)snprintf(ret->runner, sizeof(ret->runner), "%s", runner); /* cut is fine */
}

int remote_run_tests(struct ply_env *e, struct ply_tests *ret)
{
	const struct http_request q = { .method = "POST",
					.path = "/tests/run",
					.timeout = MAX(TESTS_TIMEOUT, e->timeout) + SLACK,
					.cancellable = true };
	_cleanup_(json_freep) json_t *answer = NULL;
	struct ply_tests tests = { 0 };
	int r;

	r = remote_ask(http_of(e), &q, PLY_REMOTE, &answer);
	if (r == 0)
		r = count_of(answer, "passed", &tests.passed);
	if (r == 0)
		r = count_of(answer, "failed", &tests.failed);
	if (r == 0)
		r = count_of(answer, "errors", &tests.errors);
	if (r == 0)
		r = remote_string(answer, "output", &tests.output);
	if (r < 0)
		return r;
	read_extras(answer, &tests);
	*ret = tests;
	return 0;
}

/* ---- states ---- */

/* A label is not in the protocol: without one there is no body, as it says. */
int remote_checkpoint(struct ply_env *e, const char *label, struct ply_text *ret_id)
{
	const struct http_request q = { .method = "POST",
					.path = "/checkpoint",
					.timeout = e->timeout };
	_cleanup_(json_freep) json_t *body = label ? json_object() : NULL, *answer = NULL;
	int r = 0;

	if (label)
		r = remote_put(body, "label", label, strlen(label), "the label");
	if (r < 0)
		return r;
	if (label)
		r = remote_ask_with(http_of(e), q, TAKE_PTR(body), PLY_REMOTE, &answer);
	else
		r = remote_ask(http_of(e), &q, PLY_REMOTE, &answer);
	return r < 0 ? r : remote_string(answer, "checkpoint_id", ret_id);
}

int remote_restore(struct ply_env *e, const char *id)
{
	const struct http_request q = { .method = "POST",
					.path = "/restore",
					.timeout = e->timeout };
	_cleanup_(json_freep) json_t *body = json_object();
	int r;

	r = remote_put(body, "checkpoint_id", id, strlen(id), "the id");
	if (r < 0)
		return r;
	r = remote_ask_with(http_of(e), q, TAKE_PTR(body), PLY_UNKNOWN_ID, NULL);
	return r == PLY_UNKNOWN_ID ? fail(r, "Checkpoint %s not found", id) : r;
}

const struct env_ops env_remote = {
	.kind = "remote",
	.check = check,
	.setup = setup,
	.cleanup = cleanup,
	.read_file = remote_read_file,
	.write_file = remote_write_file,
	.list_files = remote_list_files,
	.run = remote_run,
	.run_tests = remote_run_tests,
	.checkpoint = remote_checkpoint,
	.restore = remote_restore,
	.upload = remote_upload,
	.download = remote_download,
};
