/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the protocols of the server are made of: a path, a method, and a function that answers. */

#include <jansson.h>

#include "env/serve/http.h"

struct endpoint {
	const char *method, *path;
	bool below; /* path ends in '/' and stands for everything below it */
	void (*serve)(void *arg, const struct http_request *q, struct http_response *r);
	bool is_command; /* counted as such */
};

/* The answer is this JSON, compact; takes the reference. */
void reply_json(struct http_response *r, unsigned status, json_t *body);
/* {"detail": TEXT}: how errors look in all protocols. */
void reply_detail(struct http_response *r, unsigned status, const char *detail);
