/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What the server reads from clients. The first byte chooses: a form, whole and in pieces of any
 * size, which must be the same; a JSON body for a model; text in an encoding, which must become
 * UTF-8; a pattern and the output that it is looked for in.
 */

#include <stdlib.h>
#include <string.h>

#include "env/expect.h"
#include "env/serve/model.h"
#include "env/serve/multipart.h"
#include "env/serve/rex.h"
#include "store/base/util.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	return 0;
}

/* ---- forms ---- */

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

static int decode(const char *data, size_t len, size_t step, struct sheet *s)
{
	static const struct multipart_sink sink = { .part = add_part, .data = add_data };
	struct multipart *m;
	int r = 0;

	*s = (struct sheet){ 0 };
	MUST(multipart_new("multipart/form-data; boundary=B", &sink, s, &m) == 0);
	for (size_t at = 0; at < len && r == 0; at += step)
		r = multipart_feed(m, data + at, MIN(step, len - at));
	if (r == 0)
		r = multipart_finish(m);
	multipart_free(m);
	return r;
}

static void fuzz_form(const char *data, size_t len)
{
	struct sheet whole, pieces;
	int r = decode(data, len, len ? len : 1, &whole);

	MUST(whole.bytes <= len);
	for (size_t step = 1; step < 9; step++) {
		MUST(decode(data, len, step, &pieces) == r);
		MUST(pieces.hash == whole.hash && pieces.parts == whole.parts);
	}
}

/* ---- bodies ---- */

struct body {
	const char *s;
	size_t s_len;
	double f;
	int i, word;
	bool b;
	json_t *list, *either, *map;
};

static const char *const words[] = { "a", "b", NULL };
static const struct model_field fields[] = {
	{ "s", MODEL_STRING, offsetof(struct body, s), offsetof(struct body, s_len), true, NULL },
	{ "f", MODEL_FLOAT_OR_NULL, offsetof(struct body, f), 0, false, NULL },
	{ "i", MODEL_INT, offsetof(struct body, i), 0, false, NULL },
	{ "w", MODEL_WORD, offsetof(struct body, word), 0, false, words },
	{ "b", MODEL_BOOL, offsetof(struct body, b), 0, false, NULL },
	{ "l", MODEL_STRINGS, offsetof(struct body, list), 0, false, NULL },
	{ "e", MODEL_STRING_OR_STRINGS, offsetof(struct body, either), 0, false, NULL },
	{ "m", MODEL_MAP_OR_NULL, offsetof(struct body, map), 0, false, NULL },
};

static void fuzz_model(const char *data, size_t len)
{
	struct body to = { 0 };
	struct model m;
	size_t n;
	char *text;

	model_parse(&m, data, len);
	(void)model_tag(&m, "w", words, true);
	model_read(&m, fields, ARRAY_SIZE(fields), &to);
	text = model_complaint(&m, &n);
	MUST(text && strlen(text) == n);
	MUST(!model_ok(&m) || to.s);
	free(text);
	model_release(&m);
}

/* ---- text ---- */

static void fuzz_text(const char *data, size_t len)
{
	static const char *const encodings[] = { "utf-8",     "utf-8-sig", "ascii",  "latin-1",
						 "cp1252",    "utf-16",	   "utf-32", "utf-16-be",
						 "utf-32-be" };
	static const char *const errors[] = { "strict", "ignore", "replace", "backslashreplace" };
	const struct ply_text in = { .data = (char *)data, .len = len };

	for (size_t i = 0; i < ARRAY_SIZE(encodings); i++) {
		for (size_t k = 0; k < ARRAY_SIZE(errors); k++) {
			struct http_response r = { .fd = -1 };
			struct ply_text out = { 0 };
			json_t *s;

			if (rex_decode(&in, encodings[i], errors[k], &out, &r) == 0) {
				s = json_stringn(out.data, out.len);
				MUST(s);
				json_decref(s);
			} else {
				MUST(r.status == 511 && r.body);
			}
			ply_text_free(&out);
			free(r.body);
		}
	}
	json_decref(rex_text(data, len));
}

/* ---- patterns ---- */

static void fuzz_expect(const char *data, size_t len)
{
	const char *end = memchr(data, '\n', len);
	struct expect_match match;
	struct expect *e;
	char *pattern;

	if (!end)
		return;
	pattern = strndup(data, (size_t)(end - data));
	len -= (size_t)(end + 1 - data);
	data = end + 1;
	if (expect_new((const char *const[]){ pattern }, 1, &e) == 0) {
		for (size_t n = 0; n <= len; n++) {
			int r = expect_scan(e, data, n, &match);

			if (r == 0)
				continue;
			MUST(r < 0 || (match.start <= match.end && match.end <= n));
			break;
		}
		expect_free(e);
	}
	free(pattern);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static void (*const targets[])(const char *data, size_t len) = { fuzz_form, fuzz_model,
									 fuzz_text, fuzz_expect };
	char *copy; /* of just this size, so that a step too far is seen */

	if (!size)
		return 0;
	copy = malloc(size);
	MUST(copy);
	memcpy(copy, data, size);
	targets[data[0] % ARRAY_SIZE(targets)](copy + 1, size - 1);
	free(copy);
	return 0;
}
