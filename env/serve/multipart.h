/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Decoder of multipart/form-data that is fed as the bytes come (RFC 7578, RFC 2046): quoted
 * boundaries, text before the first and behind the last part, headers in any case and order.
 */

#include <stddef.h>

struct multipart;

/* What a form is given to; a result below 0 ends the feeding with it. */
struct multipart_sink {
	/* filename NULL: a plain field. The strings are lent for the call. */
	int (*part)(void *arg, const char *name, const char *filename);
	int (*data)(void *arg, const char *data, size_t len); /* of the last part */
};

/* PLY_INVALID: this content type names no boundary. The sink is borrowed until the free. */
int multipart_new(const char *content_type, const struct multipart_sink *sink, void *arg,
		  struct multipart **ret);
void multipart_free(struct multipart *m);
/* PLY_INVALID: not a form, with a sentence. After a failure it is fed no more. */
int multipart_feed(struct multipart *m, const char *data, size_t len);
/* At the end of the bytes. PLY_INVALID: the form breaks off. */
int multipart_finish(const struct multipart *m);
