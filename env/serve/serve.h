/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The server: one port, several protocols on it, who may speak, requests that come twice, and what
 * is counted. What a protocol does with a request is its own file's affair. SWE-ReX (rex.h) is
 * always there, and GET /v1/metrics.
 */

#include <stdbool.h>
#include <stdint.h>

#include "env/serve/endpoint.h"
#include "env/serve/rex.h"

/* A protocol beside SWE-ReX's. */
struct serve_protocol {
	const char *name; /* for metrics */
	const struct endpoint *endpoints;
	size_t n;
	void *arg; /* what its endpoints are called with; borrowed */
	/* Of a path that SWE-ReX has, too: is this request ours? NULL: never. */
	bool (*claims)(const struct http_request *q);
	/* Appends numbers of its own (metrics.h), or NULL. */
	int (*gauges)(void *arg, struct ply_text *text);
};
#define SERVE_PROTOCOLS_MAX 4

struct serve_options {
	const char *host;	       /* an address */
	uint16_t port;		       /* 0: any free one */
	/* "": whoever can reach the port may do everything, but for web pages in a browser. */
	const char *token;
	const char *certificate, *key; /* PEM text; NULL: plain HTTP */
	unsigned max_connections;      /* 0: the default of http.h, like the next */
	uint64_t max_body;
	uint64_t max_output; /* of a command; 0: that of rex.h */
	struct rex_place place;
	struct serve_protocol protocols[SERVE_PROTOCOLS_MAX]; /* those with endpoints */
};

struct serve;

/*
 * As http_start, but *ret is untouched by a failure; PLY_INVALID: the token, too. Options are
 * borrowed for the call, what the place and the args point at longer.
 */
int serve_start(const struct serve_options *o, struct serve **ret);
uint16_t serve_port(const struct serve *s);
/* As http_quiesce. */
void serve_quiesce(struct serve *s);
/* Lets requests that run end for up to `grace` seconds; ends all sessions; frees. */
void serve_stop(struct serve *s, double grace);
