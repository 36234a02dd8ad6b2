/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Requests that a client sends again because it did not hear the answer (X-Request-ID): the second
 * one gets the first one's answer, also when that is still being made. Not of GET, which changes
 * nothing. Bounded: the last few hundred, and so many bytes.
 */

#include <stdbool.h>

#include "env/serve/http.h"

struct once;

int once_new(struct once **ret);
void once_free(struct once *o);

enum once_outcome {
	ONCE_FRESH = 1, /* serve it, then once_done with *ret_ticket */
	ONCE_AGAIN = 2, /* *r is the answer that was given before */
};
/* Waits while the same request is being served. Without an id: fresh, ticket 0. */
enum once_outcome once_begin(struct once *o, const char *id, const char *method, const char *path,
			     uint64_t *ret_ticket, struct http_response *r);
/* keep: the answer is worth keeping (exceptions are not: a second try may succeed). */
void once_done(struct once *o, uint64_t ticket, const struct http_response *r, bool keep);
