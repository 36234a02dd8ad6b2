/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A form from a client: its Content-Type up to the first newline, then its body, which must mean
 * the same whole and in pieces of any size.
 */

#include <stdlib.h>
#include <string.h>

#include "env/serve/multipart.h"
#include "store/base/util.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	return 0;
}

struct sheet { /* a hash of all that came, in order: pieces of data are one */
	uint64_t hash;
	size_t parts, bytes;
};

static void mix(struct sheet *s, const char *data, size_t len)
{
	for (size_t i = 0; i < len; i++)
		s->hash = (s->hash ^ (unsigned char)data[i]) * UINT64_C(1099511628211);
}

static int add_part(void *arg, const char *name, const char *filename)
{
	struct sheet *s = arg;

	s->parts++;
	mix(s, "|", 1);
	mix(s, name, strlen(name));
	mix(s, filename ? "[" : "=", 1);
	mix(s, filename ? filename : "", filename ? strlen(filename) : 0);
	return 0;
}

static int add_data(void *arg, const char *data, size_t len)
{
	struct sheet *s = arg;

	MUST(s->parts > 0 && len > 0);
	s->bytes += len;
	mix(s, data, len);
	return 0;
}

/* 1: no form by its type. */
static int decode(const char *type, const char *data, size_t len, size_t step, struct sheet *s)
{
	static const struct multipart_sink sink = { .part = add_part, .data = add_data };
	struct multipart *m;
	int r = 0;

	*s = (struct sheet){ 0 };
	if (multipart_new(type, &sink, s, &m) < 0)
		return 1;
	for (size_t at = 0; at < len && r == 0; at += step) {
		size_t n = MIN(step, len - at);
		char *piece = malloc(n); /* of just this size, so that a step too far is seen */

		MUST(piece);
		memcpy(piece, data + at, n);
		r = multipart_feed(m, piece, n);
		free(piece);
	}
	if (r == 0)
		r = multipart_finish(m);
	multipart_free(m);
	return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *body = size ? memchr(data, '\n', size) : NULL;
	struct sheet whole, pieces;
	size_t len;
	char *type;
	int r;

	if (!body)
		return 0;
	type = strndup((const char *)data, (size_t)(body - (const char *)data));
	MUST(type);
	body++;
	len = size - (size_t)(body - (const char *)data);
	r = decode(type, body, len, len ? len : 1, &whole);
	MUST(whole.bytes <= len);
	for (size_t step = 1; step < 80 && r != 1; step = step < 5 ? step + 1 : step * 2 + 1) {
		MUST(decode(type, body, len, step, &pieces) == r);
		MUST(pieces.hash == whole.hash && pieces.parts == whole.parts);
	}
	free(type);
	return 0;
}
