/* SPDX-License-Identifier: Apache-2.0 */

/* See serve.h. Who speaks is settled before anything else, unknown paths included. */

#include "env/serve/serve.h"

#include <arpa/inet.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "env/json_memory.h"
#include "env/pytext.h"
#include "env/serve/metrics.h"
#include "env/serve/once.h"
#include "env/serve/rex.h"
#include "env/status.h"
#include "store/base/util.h"

/* The given ones, and ours; requests that none got are counted after them. */
enum { OWN = SERVE_PROTOCOLS_MAX, REX, PROTOCOLS, NONE = PROTOCOLS };
_Static_assert(NONE < METRICS_PROTOCOLS, "each is counted");

/* As many as threads that allocate at one moment, on a machine of the usual size. */
#define ARENAS 4
/* glibc's threshold when nothing was freed yet; setting it keeps it from growing to 32 MiB. */
#define LARGE_BLOCK (128 * 1024)

struct serve {
	char *token; /* owned */
	struct http_server *http;
	struct rex *rex;
	struct once *once;
	bool tls;
	bool is_local; /* listens at an address of this machine alone */
	struct serve_protocol protocols[PROTOCOLS]; /* immutable */
	struct metrics metrics;
};

/* A header's value has neither blanks at its ends nor control characters in it. */
static bool can_be_sent(const char *token)
{
	for (const char *p = token; *p; p++)
		if (((unsigned char)*p < ' ' && *p != '\t') || *p == 0x7f)
			return false;
	return !*token || !(strchr(" \t", *token) || strchr(" \t", token[strlen(token) - 1]));
}

/* In time that depends on the length of what was given only; blanks at its end are HTTP's. */
static bool same_token(const char *ours, const char *given)
{
	size_t n = strlen(ours), len = strlen(given);
	unsigned char differ;

	while (len > 0 && strchr(" \t", given[len - 1]))
		len--;
	differ = n != len;
	for (size_t i = 0; i < len; i++)
		differ |= (unsigned char)(given[i] ^ ours[n ? i % n : 0]);
	return !differ;
}

/* "HOST" or "HOST:PORT" names an address or localhost: nobody's name server decides what it is. */
static bool is_our_name(const char *header)
{
	unsigned char address[sizeof(struct in6_addr)];
	bool bracketed = *header == '[';
	const char *port;
	char host[INET6_ADDRSTRLEN];
	size_t len;

	header += bracketed;
	len = strcspn(header, bracketed ? "]" : ":");
	port = header + len;
	if ((bracketed && *port++ != ']') || len >= sizeof(host))
		return false;
	if (*port && (*port != ':' || port[1 + strspn(port + 1, "0123456789")]))
		return false;
	memcpy(host, header, len);
	host[len] = '\0';
	return strcasecmp(host, "localhost") == 0 || inet_pton(AF_INET, host, address) == 1 ||
	       inet_pton(AF_INET6, host, address) == 1;
}

/*
 * Without a token whoever reaches us is served, but a web page in a browser that reaches us is
 * somebody else. What a browser sends for a page has an Origin (all but plain GETs) or says where
 * the page is from (Sec-Fetch-Site; "none": a person typed the address). A page whose name was made
 * to stand for this machine meanwhile (DNS rebinding) counts as ours for the browser: but then the
 * Host is that name, where only we ourselves can be reached at all. NULL: fine.
 */
static const char *why_not_without_token(const struct serve *s, const struct http_request *q)
{
	const char *site = http_header(q, "Sec-Fetch-Site"), *host = http_header(q, "Host");

	if (http_header(q, "Origin") || (site && strcmp(site, "none") != 0))
		return "a server without a token serves no web pages";
	if (s->is_local && host && !is_our_name(host))
		return "a server without a token is called localhost or by its address, not by "
		       "another name; use a token";
	return NULL;
}

static bool admit(void *arg, const struct http_request *q, struct http_response *r)
{
	const struct serve *s = arg;
	const char *given = http_header(q, "X-API-Key");
	const char *bearer = http_header(q, "Authorization");

	json_memory_again(); /* the first that is done for a request */
	if (!*s->token) {
		const char *why = why_not_without_token(s, q);

		if (why)
			reply_detail(r, 403, why);
		return !why;
	}
	if (!given && bearer && strncasecmp(bearer, "Bearer ", 7) == 0)
		given = bearer + 7;
	if (!given || !*given) {
		reply_detail(r, 403, "Not authenticated");
		return false;
	}
	if (!same_token(s->token, given)) {
		reply_detail(r, 401, "Invalid API Key");
		return false;
	}
	return true;
}

/* A path that is right but for a slash at its end. */
static bool redirect(const struct serve *s, const struct http_request *q, const char *path,
		     struct http_response *r)
{
	size_t len = strlen(path);
	const char *host = http_header(q, "Host");
	_cleanup_(ply_text_free) struct ply_text to = { 0 };

	if (len < 2 || strncmp(q->path, path, len) != 0 || strcmp(q->path + len, "/") != 0)
		return false;
	if (text_append_format(&to, "%s://%s%s", s->tls ? "https" : "http", host ? host : "",
			       path) == 0 &&
	    http_query(q, &to) == 0)
		r->header_value = TAKE_PTR(to.data);
	r->header_name = "Location";
	reply_detail(r, 307, "Temporary Redirect");
	return true;
}

/* The endpoint of a table that a request is for; NULL: none, *ret_allowed if but for the method. */
static const struct endpoint *find(const struct endpoint *table, size_t n,
				   const struct http_request *q, const char **ret_allowed)
{
	for (const struct endpoint *e = table; e < table + n; e++) {
		if (e->below ? strncmp(e->path, q->path, strlen(e->path)) != 0
			     : strcmp(e->path, q->path) != 0)
			continue;
		if (strcmp(e->method, q->method) == 0)
			return e;
		*ret_allowed = e->method;
	}
	return NULL;
}

/* The index of the protocol that has answered. */
static size_t route(struct serve *s, const struct http_request *q, struct http_response *r)
{
	const char *allowed = NULL;

	for (size_t i = 0; i < ARRAY_SIZE(s->protocols); i++) {
		const struct serve_protocol *p = &s->protocols[i];
		const struct endpoint *e = find(p->endpoints, p->n, q, &allowed), *other = NULL;

		if (e && p->claims)
			other = find(rex_endpoints, n_rex_endpoints, q, &allowed);
		if (e && (!other || p->claims(q))) {
			if (e->is_command)
				atomic_fetch_add(&s->metrics.commands, 1);
			e->serve(p->arg, q, r);
			return i;
		}
	}
	if (allowed) {
		r->header_name = "Allow";
		r->header_value = strdup(allowed);
		reply_detail(r, 405, "Method Not Allowed");
		return NONE;
	}
	for (const struct serve_protocol *p = s->protocols;
	     p < s->protocols + ARRAY_SIZE(s->protocols); p++)
		for (size_t i = 0; i < p->n; i++)
			if (!p->endpoints[i].below && redirect(s, q, p->endpoints[i].path, r))
				return NONE;
	reply_detail(r, 404, "Not Found");
	return NONE;
}

static void handle(void *arg, const struct http_request *q, struct http_response *r)
{
	struct serve *s = arg;
	size_t protocol = NONE;
	uint64_t ticket;

	atomic_fetch_add(&s->metrics.running, 1);
	if (once_begin(s->once, request_id(q), q->method, q->path, &ticket, r) == ONCE_FRESH) {
		protocol = route(s, q, r);
		once_done(s->once, ticket, r, r->status < 500);
	}
	metrics_answered(&s->metrics, protocol, r->status);
	atomic_fetch_sub(&s->metrics.running, 1);
}

static void refused(void *arg, unsigned status)
{
	struct serve *s = arg;

	metrics_answered(&s->metrics, NONE, status);
}

static void abandon(void *arg)
{
	struct serve *s = arg;

	rex_abandon(s->rex);
}

/* ---- its own endpoint ---- */

static void metrics(void *arg, const struct http_request *q, struct http_response *r)
{
	const char *names[NONE + 1];
	struct ply_text text = { 0 };
	struct serve *s = arg;
	int status;

	for (size_t i = 0; i < PROTOCOLS; i++)
		names[i] = s->protocols[i].name;
	names[NONE] = "none";
	status = metrics_text(&s->metrics, names, ARRAY_SIZE(names), &text);
	if (status == 0)
		status = metrics_number(&text, "plyfs_sessions", "gauge", "Sessions of SWE-ReX.",
					rex_sessions(s->rex));
	if (status == 0)
		status = metrics_number(&text, "plyfs_connections", "gauge",
					"Connections, this one too.", http_connections(s->http));
	for (size_t i = 0; i < PROTOCOLS && status == 0; i++)
		if (s->protocols[i].gauges)
			status = s->protocols[i].gauges(s->protocols[i].arg, &text);
	if (status < 0) {
		ply_text_free(&text);
		reply_detail(r, 500, "out of memory");
		return;
	}
	r->type = "text/plain; version=0.0.4; charset=utf-8";
	r->body = text.data;
	r->len = text.len;
}

static const struct endpoint own_endpoints[] = { { "GET", "/v1/metrics", false, metrics } };

/* ---- life ---- */

static void serve_free(struct serve *s)
{
	rex_free(s->rex);
	once_free(s->once);
	free(s->token);
	free(s);
}

int serve_start(const struct serve_options *o, struct serve **ret)
{
	struct serve *s = calloc(1, sizeof(*s));
	int r;

	if (!s)
		return fail_memory();
	if (!can_be_sent(o->token)) {
		free(s);
		return fail(PLY_INVALID, "nobody can send the token in a header: it begins or ends "
					 "with a blank, or has a control character in it");
	}
	/*
	 * Each connection has a thread of its own. What one freed is to serve the next: glibc would
	 * make up to eight arenas a core, and keep larger and larger blocks that were freed.
	 */
	(void)mallopt(M_ARENA_MAX, ARENAS);
	(void)mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK);
	s->token = strdup(o->token);
	r = s->token ? rex_new(&o->place, &s->rex) : fail_memory();
	memcpy(s->protocols, o->protocols, sizeof(o->protocols));
	s->protocols[OWN] = (struct serve_protocol){ .name = "server",
						     .endpoints = own_endpoints,
						     .n = ARRAY_SIZE(own_endpoints),
						     .arg = s };
	s->protocols[REX] = (struct serve_protocol){ .name = "swe-rex",
						     .endpoints = rex_endpoints,
						     .n = n_rex_endpoints,
						     .arg = s->rex };
	s->tls = o->certificate;
	s->is_local = http_is_loopback(o->host);
	if (r >= 0)
		r = once_new(&s->once);
	if (r >= 0)
		r = http_start(&(struct http_options){ .host = o->host,
						       .port = o->port,
						       .max_connections = o->max_connections,
						       .max_body = o->max_body,
						       .certificate = o->certificate,
						       .key = o->key,
						       .admit = admit,
						       .handle = handle,
						       .refused = refused,
						       .abandon = abandon,
						       .arg = s },
			       &s->http);
	if (r < 0) {
		serve_free(s);
		return r;
	}
	*ret = s;
	return 0;
}

uint16_t serve_port(const struct serve *s)
{
	return http_port(s->http);
}

void serve_quiesce(struct serve *s)
{
	http_quiesce(s->http);
}

void serve_stop(struct serve *s, double grace)
{
	http_stop(s->http, grace);
	serve_free(s);
}
