/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the protocols of the server are made of: a path, a method, and a function that answers. */

#include <jansson.h>

#include "env/serve/http.h"
#include "env/serve/model.h"

struct endpoint {
	const char *method, *path;
	bool below; /* path ends in '/' and stands for everything below it */
	void (*serve)(void *arg, const struct http_request *q, struct http_response *r);
	bool is_command; /* counted as such */
};

/* X-Request-ID; NULL: none, or an empty one, which is none. */
const char *request_id(const struct http_request *q);

/*
 * What this thread runs ends from now on when the client goes away (ply_cancel_on): nobody would
 * hear of it. Not so when the request has an X-Request-ID: it may be asked for again (once.h).
 * `int watch = client_watch(q)`, with client_unwatch for its cleanup.
 */
int client_watch(const struct http_request *q);
void client_unwatch(int *watch);

/* The answer is this JSON, compact; takes the reference. */
void reply_json(struct http_response *r, unsigned status, json_t *body);
/* {"detail": TEXT}: how errors look in all protocols. */
void reply_detail(struct http_response *r, unsigned status, const char *detail);
/* Whether something is wrong with a body; then it is answered with this status. */
bool reply_complaint(struct http_response *r, unsigned status, const struct model *m);
/*
 * Whether a value, from "query" or "body", has a NUL, behind which C would not look; then it is
 * answered with 400.
 */
bool reply_nul(struct http_response *r, const char *from, const char *name, const char *value,
	       size_t len);
/* An argument of the query, NULL: there is none. False: answered. */
bool argument_read(const struct http_request *q, struct http_response *r, const char *name,
		   const char **ret);
/* The fields of a body in *to; nothing at all sets nothing. False: answered with 400. */
bool body_read(const struct http_request *q, struct http_response *r,
	       const struct model_field *fields, size_t n, struct model *m, void *to);
