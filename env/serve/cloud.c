/* SPDX-License-Identifier: Apache-2.0 */

/* See cloud.h. */

#include "env/serve/cloud.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "env/serve/chimera.h"
#include "env/serve/metrics.h"
#include "env/serve/model.h"
#include "env/status.h"
#include "store/base/util.h"

/* A fork costs little, but each has threads, a port and a mount. */
#define SANDBOXES_MAX 256
#define GRACE_SECONDS 2.0

struct sandbox {
	struct sandbox *next;
	char id[20];
	struct ply_env *env;
	struct serve *serve;
};

struct cloud {
	struct ply_env *env;
	struct serve_options o;
	pthread_mutex_t lock;
	struct sandbox *sandboxes; /* under lock */
	unsigned count;
};

int cloud_new(struct ply_env *env, const struct serve_options *o, struct cloud **ret)
{
	struct cloud *c = calloc(1, sizeof(*c));

	if (!c)
		return fail_memory();
	c->env = env;
	c->o = *o;
	c->o.port = 0;
	pthread_mutex_init(&c->lock, NULL);
	*ret = c;
	return 0;
}

/* As ply_env_cleanup; it is gone in any case. */
static int sandbox_end(struct sandbox *s, double grace)
{
	int r = 0;

	if (s->serve)
		serve_stop(s->serve, grace);
	if (s->env)
		r = ply_env_cleanup(s->env);
	ply_env_free(s->env);
	free(s);
	return r;
}

void cloud_free(struct cloud *c)
{
	double until = now_seconds() + GRACE_SECONDS;

	if (!c)
		return;
	/* What runs in one has its time while another is waited for: many took minutes. */
	for (struct sandbox *s = c->sandboxes; s; s = s->next)
		serve_quiesce(s->serve);
	while (c->sandboxes) {
		struct sandbox *s = c->sandboxes;
		double left = until - now_seconds();

		c->sandboxes = s->next;
		(void)sandbox_end(s, left > 0 ? left : 0); /* the keeper tries once more */
	}
	pthread_mutex_destroy(&c->lock);
	free(c);
}

static int gauges(void *arg, struct ply_text *text)
{
	struct cloud *c = arg;
	LOCK_GUARD(&c->lock);

	return metrics_number(text, "plyfs_sandboxes", "gauge", "Sandboxes.", c->count);
}

struct create_body {
	const char *image, *working_dir;
};

/* working_dir is where the client thinks that it is; its paths are below ours all the same. */
static bool read_create(const struct http_request *q, struct http_response *r, struct model *m,
			struct create_body *b)
{
	static const struct model_field fields[] = {
		{ "image", MODEL_STRING_OR_NULL, offsetof(struct create_body, image), 0, false,
		  NULL },
		{ "working_dir", MODEL_STRING_OR_NULL, offsetof(struct create_body, working_dir), 0,
		  false, NULL },
	};

	return body_read(q, r, fields, ARRAY_SIZE(fields), m, b);
}

static void create(void *arg, const struct http_request *q, struct http_response *r)
{
	struct cloud *c = arg;
	_cleanup_(model_release) struct model m = { 0 };
	struct serve_options o = c->o;
	struct create_body b = { 0 };
	struct sandbox *s;
	uint64_t number;
	bool full;
	int status;

	if (!read_create(q, r, &m, &b))
		return;
	s = calloc(1, sizeof(*s));
	{
		LOCK_GUARD(&c->lock);
		full = c->count == SANDBOXES_MAX;
		c->count += !full;
	}
	if (full || !s || getrandom(&number, sizeof(number), 0) != sizeof(number)) {
		reply_detail(r, 503, full ? "too many sandboxes; delete some" : "out of memory");
		free(s);
		LOCK_GUARD(&c->lock);
		c->count -= !full;
		return;
	}
	snprintf(s->id, sizeof(s->id), "sb-%012llx",
		 (unsigned long long)number & 0xffffffffffffULL);
	status = ply_env_clone(c->env, NULL, &s->env);
	if (status >= 0 && b.image && *b.image)
		status = ply_env_restore(s->env, b.image);
	if (status >= 0) {
		status = serve_environment(&o, s->env);
	}
	if (status >= 0) {
		status = serve_start(&o, &s->serve);
	}
	if (status < 0) {
		reply_failure(r, status);
		(void)sandbox_end(s, 0); /* the sentence that counts has been told */
		LOCK_GUARD(&c->lock);
		c->count--;
		return;
	}
	reply_json(r, 200,
		   json_pack("{s:s, s:s, s:s}", "sandbox_id", s->id, "status", "ready",
			     "working_dir", ply_env_workdir(s->env)));
	LOCK_GUARD(&c->lock);
	s->next = c->sandboxes;
	c->sandboxes = s;
}

static struct sandbox **find(struct cloud *c, const char *path)
{
	const char *id = path + strlen("/sandboxes/");
	struct sandbox **p = &c->sandboxes;

	while (*p && strcmp((*p)->id, id) != 0)
		p = &(*p)->next;
	return p;
}

/* The address that the client reached us at, without the port. */
static json_t *host_of(const struct http_request *q, const struct cloud *c)
{
	const char *host = http_header(q, "Host");
	const char *colon = host ? strrchr(host, ':') : NULL;

	if (!host)
		return json_string(c->o.host);
	return json_stringn(host,
			    colon && !strchr(colon, ']') ? (size_t)(colon - host) : strlen(host));
}

static void look(void *arg, const struct http_request *q, struct http_response *r)
{
	struct cloud *c = arg;
	LOCK_GUARD(&c->lock);
	struct sandbox *s = *find(c, q->path);

	if (!s)
		reply_detail(r, 404, "no such sandbox");
	else
		reply_json(r, 200,
			   json_pack("{s:s, s:s, s:o, s:i}", "sandbox_id", s->id, "status", "ready",
				     "host", host_of(q, c), "port", (int)serve_port(s->serve)));
}

static void destroy(void *arg, const struct http_request *q, struct http_response *r)
{
	struct cloud *c = arg;
	struct sandbox *s;
	int status;

	{
		LOCK_GUARD(&c->lock);
		struct sandbox **p = find(c, q->path);

		s = *p;
		if (s) {
			*p = s->next;
			c->count--;
		}
	}
	if (!s) {
		reply_detail(r, 404, "no such sandbox");
		return;
	}
	status = sandbox_end(s, GRACE_SECONDS);
	if (status < 0)
		reply_failure(r, status);
	else
		reply_json(r, 200, json_object());
}

static const struct endpoint endpoints[] = {
	{ "POST", "/sandboxes", false, create },
	{ "GET", "/sandboxes/", true, look },
	{ "DELETE", "/sandboxes/", true, destroy },
};

static void no_cloud(void *arg, const struct http_request *q, struct http_response *r)
{
	reply_detail(r, 404, "this server makes no sandboxes: start it with --cloud");
}

static const struct endpoint without[] = { { "POST", "/sandboxes", false, no_cloud } };

void serve_cloud(struct serve_options *o, struct cloud *c)
{
	o->protocols[2] = (struct serve_protocol){ .name = "cloud",
						   .endpoints = c ? endpoints : without,
						   .n = c ? ARRAY_SIZE(endpoints) :
							    ARRAY_SIZE(without),
						   .arg = c,
						   .gauges = c ? gauges : NULL };
}
