/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * An HTTP/1.1 server, as the protocols above it want one: each request is one call of a function
 * that may take as long as it likes (a thread per connection), with the whole body at hand; each
 * answer is one struct. libmicrohttpd does the rest; http.c alone knows it.
 *
 * Bodies are not kept in memory beyond HTTP_BODY_IN_MEMORY: they go to an unlinked file and are
 * mapped, so hundreds of megabytes cost page cache only. The parts of a form are such bodies, too.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HTTP_BODY_IN_MEMORY (256u * 1024)
#define HTTP_PARTS_MAX 16 /* of a form; no protocol here has more than three */
/*
 * A body that is no form is JSON, which is parsed in memory: for a moment it is there twice more.
 * Larger ones are answered with 413.
 */
#define HTTP_JSON_MAX (UINT64_C(512) << 20)

struct ply_text;

struct http_part {
	char *name, *filename; /* owned; filename NULL: a plain field */
	const char *data;      /* len bytes and a NUL; owned by the request */
	size_t len;
	int fd; /* an unlinked file with the same bytes and a NUL, or -1 for a small one */
};

struct http_request {
	const char *method;
	const char *path; /* decoded, without the query */
	const char *body; /* len bytes and a NUL; empty for a form */
	size_t body_len;
	bool is_form; /* multipart/form-data: parts */
	struct http_part *parts;
	size_t n_parts;
	void *connection; /* private; NULL: it came by none (a test's), without headers */
};

/* The first header of that name, case aside; the first argument of the query. NULL: none. */
const char *http_header(const struct http_request *q, const char *name);
const char *http_argument(const struct http_request *q, const char *name, size_t *ret_len);
/* The query with its '?', quoted anew, appended; nothing when there is none. 0 or PLY_NO_MEMORY. */
int http_query(const struct http_request *q, struct ply_text *text);
const struct http_part *http_part(const struct http_request *q, const char *name);
/*
 * A descriptor, given, that polls POLLIN when the client has gone (or will send nothing more: a
 * client that wants an answer does not close its half), or the server ends; nothing else is to be
 * done with it. -1: none to be had.
 */
int http_watch(const struct http_request *q);

struct http_response {
	unsigned status;
	const char *type; /* a constant; NULL: application/json */
	char *body;	  /* malloced, given; NULL: empty */
	size_t len;
	int fd;			 /* >= 0: the body is this file, given (body is NULL then) */
	const char *header_name; /* one further header, or NULL; the name is a constant */
	char *header_value;	 /* malloced, given */
	/*
	 * Not NULL: the body is what this writes, piece by piece, for as long as it likes; false
	 * from emit means the client is gone. Runs in the connection's thread.
	 */
	void (*stream)(void *arg, bool (*emit)(void *to, const char *data, size_t len), void *to);
	void *stream_arg;
	void (*stream_free)(void *arg); /* called behind the stream, or instead of it */
	/*
	 * Not NULL: called once, by emit, when the client still does not read at this time (of
	 * now_seconds): whoever is in emit sees no timeout pass.
	 */
	void (*stream_late)(void *arg);
	double stream_until;
};

struct http_options {
	const char *host;	       /* an address, not a name */
	uint16_t port;		       /* 0: any free one */
	unsigned max_connections;      /* 0: 1024; more are answered with 503 */
	unsigned idle_seconds;	       /* of silence; 0: 75. A request has twice that to arrive */
	uint64_t max_body;	       /* 0: 4 GiB; more is answered with 413 */
	const char *certificate, *key; /* PEM text, or NULL: plain HTTP */
	const char *temporary;	       /* directory for large bodies; NULL: $TMPDIR or /tmp */
	/*
	 * Called with the headers before any of the body is kept; false: *r is the answer, and the
	 * body is thrown away as it comes. May be NULL.
	 */
	bool (*admit)(void *arg, const struct http_request *q, struct http_response *r);
	/* *r is zeroed, status 200, fd -1. */
	void (*handle)(void *arg, const struct http_request *q, struct http_response *r);
	/* A request was answered without handle. May be NULL. */
	void (*refused)(void *arg, unsigned status);
	/* At the end: makes handlers that still run return soon; until they have. May be NULL. */
	void (*abandon)(void *arg);
	void *arg;
};

/* Whether an address is this machine's alone: 127.0.0.0/8, ::1. A name is not. */
bool http_is_loopback(const char *host);

struct http_server;

/*
 * PLY_FAILED, PLY_EXISTS (the port is taken), PLY_INVALID (host), PLY_NO_MEMORY. *ret is set before
 * the first request comes, and means nothing after a failure.
 */
int http_start(const struct http_options *o, struct http_server **ret);
uint16_t http_port(const struct http_server *s);
unsigned http_connections(const struct http_server *s);
/* Takes no more requests, and does not wait: of several servers that end at once. */
void http_quiesce(struct http_server *s);
/*
 * Takes no more requests; those that have begun to come have up to `grace` seconds to be answered,
 * and their clients to read it; then they are abandoned. Frees.
 */
void http_stop(struct http_server *s, double grace);
