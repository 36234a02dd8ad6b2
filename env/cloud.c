/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Environments of kind "cloud": a service makes a sandbox for us, somewhere; once it is ready it is
 * a remote environment (remote.c).
 *
 *     POST   /sandboxes {working_dir, image}     {sandbox_id}
 *     GET    /sandboxes/ID                       {status, host, port}
 *     DELETE /sandboxes/ID
 *
 * A sandbox costs money while it is there: one that we asked for goes away again also when it
 * never gets ready, unless keep_alive says otherwise.
 */

#include <string.h>

#include "env/pytext.h"
#include "env/remote.h"
#include "env/status.h"
#include "store/base/util.h"

static int check(struct ply_env *e)
{
	if (!*env_option(e, "url"))
		return fail(PLY_INVALID, "a cloud environment needs the option 'url'");
	if (!*env_option(e, "api_key"))
		return fail(PLY_INVALID, "a cloud environment needs the option 'api_key'");
	return 0;
}

static int open_service(struct ply_env *e, struct http **ret)
{
	_cleanup_free_ char *url = strdup(env_option(e, "url"));

	if (!url)
		return fail_memory();
	for (size_t n = strlen(url); n && url[n - 1] == '/'; n--)
		url[n - 1] = '\0';
	return http_open(url, env_option(e, "api_key"), ret);
}

/* Known from then on, also to ply_env_get. */
static int keep_id(struct ply_env *e, const char *id)
{
	char *copy = strdup(id);

	if (!copy)
		return fail_memory();
	free(e->o.sandbox_id);
	e->o.sandbox_id = copy;
	return 0;
}

static int create(struct ply_env *e, struct http *service)
{
	const struct http_request q = { .method = "POST",
					.path = "/sandboxes",
					.timeout = env_number(e, "init_timeout") };
	const char *dir = env_option(e, "working_dir"), *image = env_option(e, "image");
	_cleanup_(json_freep) json_t *body = json_object(), *answer = NULL;
	_cleanup_(ply_text_free) struct ply_text id = { 0 };
	int r;

	r = remote_put(body, "working_dir", dir, strlen(dir), "working_dir");
	if (r == 0 && *image)
		r = remote_put(body, "image", image, strlen(image), "image");
	if (r == 0)
		r = remote_ask_with(service, q, TAKE_PTR(body), PLY_REMOTE, &answer);
	if (r == 0)
		r = remote_string(answer, "sandbox_id", &id);
	if (r < 0)
		return r;
	if (!*id.data)
		return fail(PLY_REMOTE, "the service gave a sandbox without an id");
	return keep_id(e, id.data);
}

static int sandbox_path(struct ply_env *e, struct ply_text *ret)
{
	int r;

	r = text_set(ret, "/sandboxes/", 11);
	return r < 0 ? r : text_append_url(ret, env_option(e, "sandbox_id"), "%20");
}

static int wait_ready(struct ply_env *e, struct http *service, json_t **ret)
{
	double timeout = env_number(e, "init_timeout"), deadline = now_seconds() + timeout;
	_cleanup_(ply_text_free) struct ply_text path = { 0 };
	const char *id = env_option(e, "sandbox_id");
	int r;

	r = sandbox_path(e, &path);
	while (r == 0) {
		const struct http_request q = { .method = "GET",
						.path = path.data,
						.timeout = timeout };
		_cleanup_(ply_text_free) struct ply_text status = { 0 };
		_cleanup_(json_freep) json_t *answer = NULL;

		r = remote_ask(service, &q, PLY_REMOTE, &answer);
		if (r == 0)
			r = remote_string(answer, "status", &status);
		if (r < 0)
			return r;
		if (strcmp(status.data, "ready") == 0) {
			*ret = TAKE_PTR(answer);
			return 0;
		}
		if (strcmp(status.data, "error") == 0)
			return fail(PLY_REMOTE, "Sandbox %s entered error state", id);
		if (now_seconds() >= deadline)
			return fail(PLY_TIMEOUT, "Sandbox %s not ready within %gs", id, timeout);
		(void)sleep(1); /* a signal shortens it: then we ask sooner */
	}
	return r;
}

/* "8080", from a number or a text. */
static int port_of(const json_t *answer, char ret[32])
{
	const json_t *port = json_object_get(answer, "port");
	long long n = 8080;
	char *end = NULL;

	if (json_is_integer(port))
		n = json_integer_value(port);
	else if (json_is_string(port))
		n = strtoll(json_string_value(port), &end, 10);
	else if (port)
		n = 0;
	if (n < 1 || n > 65535 || (end && *end))
		return fail(PLY_REMOTE, "the service names no port for its sandbox");
	(void)snprintf(ret, 32, "%lld", n);
	return 0;
}

static int connect_sandbox(struct ply_env *e, struct remote *r, const json_t *answer)
{
	const json_t *host = json_object_get(answer, "host");
	bool tls = strncmp(env_option(e, "url"), "https", 5) == 0;
	char port[32];
	int s;

	if (host && !json_is_string(host))
		return fail(PLY_REMOTE, "the service names no host for its sandbox");
	s = port_of(answer, port);
	if (s < 0)
		return s;
	return remote_connect(e, r, tls, host ? json_string_value(host) : "localhost", port);
}

static void destroy(struct ply_env *e, struct http *service)
{
	_cleanup_(ply_text_free) struct ply_text path = { 0 };
	struct http_request q = { .method = "DELETE", .timeout = env_number(e, "init_timeout") };
	_cleanup_(http_reply_release) struct http_reply reply = { 0 };

	if (sandbox_path(e, &path) < 0)
		return;
	q.path = path.data;
	(void)http_send(service, &q, &reply); /* the service ends what it does not hear of */
}

/* It is gone: a next setup asks for a new one. */
static void forget_id(struct ply_env *e)
{
	free(e->o.sandbox_id);
	e->o.sandbox_id = NULL;
}

static int setup(struct ply_env *e)
{
	_cleanup_(remote_freep) struct remote *r = calloc(1, sizeof(*r));
	_cleanup_(json_freep) json_t *answer = NULL;
	bool created = !e->o.sandbox_id;
	int s;

	if (!r)
		return fail_memory();
	s = open_service(e, &r->cloud);
	if (s == 0 && created)
		s = create(e, r->cloud);
	if (s < 0)
		return s;
	s = wait_ready(e, r->cloud, &answer);
	if (s == 0)
		s = connect_sandbox(e, r, answer);
	if (s == 0)
		e->workdir = strdup(env_option(e, "working_dir"));
	if (s == 0 && !e->workdir)
		s = fail_memory();
	if (s < 0) {
		KEEP_SENTENCE;
		if (created && !env_flag(e, "keep_alive")) {
			destroy(e, r->cloud);
			forget_id(e);
		}
		return s;
	}
	e->kind = TAKE_PTR(r);
	return 0;
}

static int cleanup(struct ply_env *e)
{
	struct remote *r = e->kind;

	if (!env_flag(e, "keep_alive")) {
		destroy(e, r->cloud);
		forget_id(e);
	}
	remote_free(r);
	e->kind = NULL;
	return 0;
}

const struct env_ops env_cloud = {
	.kind = "cloud",
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
