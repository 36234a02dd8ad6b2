/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Text as Python decodes it: which bytes are one error, what each error handler makes of them, and
 * the words of the exceptions. By hand, since a statically linked program has no iconv that could
 * be relied on, and since iconv tells less than Python says.
 */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "env/serve/rex.h"
#include "store/base/util.h"

enum handler { STRICT, IGNORE, REPLACE, BACKSLASH, SURROGATE, UNKNOWN };

enum scheme { UTF8, UTF8_SIG, ASCII, LATIN1, CP1252, UTF16, UTF32 };
enum order { BY_BOM, LITTLE, BIG };

struct codec {
	const char *key; /* Python's name in lower case, without - _ and space */
	enum scheme scheme;
	enum order order;
	const char *python; /* as its messages call it */
};
static const struct codec codecs[] = {
	{ "utf8", UTF8, 0, "utf-8" },
	{ "u8", UTF8, 0, "utf-8" },
	{ "utf8sig", UTF8_SIG, 0, "utf-8" },
	{ "ascii", ASCII, 0, "ascii" },
	{ "usascii", ASCII, 0, "ascii" },
	{ "646", ASCII, 0, "ascii" },
	{ "latin1", LATIN1, 0, "latin-1" },
	{ "iso88591", LATIN1, 0, "latin-1" },
	{ "l1", LATIN1, 0, "latin-1" },
	{ "cp1252", CP1252, 0, "charmap" },
	{ "windows1252", CP1252, 0, "charmap" },
	{ "utf16", UTF16, BY_BOM, "utf-16" },
	{ "utf16le", UTF16, LITTLE, "utf-16-le" },
	{ "utf16be", UTF16, BIG, "utf-16-be" },
	{ "utf32", UTF32, BY_BOM, "utf-32" },
	{ "utf32le", UTF32, LITTLE, "utf-32-le" },
	{ "utf32be", UTF32, BIG, "utf-32-be" },
};

static const struct codec *codec_find(const char *name)
{
	char key[32];
	size_t n = 0;

	for (const char *p = name; *p && n + 1 < sizeof(key); p++)
		if (!strchr("-_ ", *p))
			key[n++] = *p >= 'A' && *p <= 'Z' ? (char)(*p + 32) : *p;
	key[n] = '\0';
	for (size_t i = 0; i < ARRAY_SIZE(codecs); i++)
		if (strcmp(codecs[i].key, key) == 0)
			return &codecs[i];
	return NULL;
}

static enum handler handler_find(const char *name)
{
	static const char *const names[] = { "strict", "ignore", "replace", "backslashreplace",
					     "surrogateescape" };

	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		if (strcmp(names[i], name) == 0)
			return (enum handler)i;
	return UNKNOWN; /* which Python says only when it is needed */
}

/*
 * One UTF-8 sequence at s: its length; or 0, and how many bytes are to be taken for one error, and
 * why, as Python sees it.
 */
static size_t utf8_step(const unsigned char *s, size_t len, size_t *ret_bad, const char **ret_why)
{
	unsigned char low = 0x80, high = 0xbf;
	size_t n = s[0] < 0x80			 ? 1
		   : s[0] >= 0xc2 && s[0] < 0xe0 ? 2
		   : s[0] >> 4 == 14		 ? 3
		   : s[0] >= 0xf0 && s[0] < 0xf5 ? 4
						 : 0;

	*ret_bad = 1;
	*ret_why = "invalid start byte";
	if (n <= 1)
		return n;
	low = s[0] == 0xe0 ? 0xa0 : s[0] == 0xf0 ? 0x90 : low;	 /* overlong */
	high = s[0] == 0xed ? 0x9f : s[0] == 0xf4 ? 0x8f : high; /* surrogates, beyond the end */
	for (size_t i = 1; i < n; i++) {
		if (i == len) {
			*ret_bad = i;
			*ret_why = "unexpected end of data";
			return 0;
		}
		if (s[i] < (i == 1 ? low : 0x80) || s[i] > (i == 1 ? high : 0xbf)) {
			*ret_bad = i;
			*ret_why = "invalid continuation byte";
			return 0;
		}
	}
	return n;
}

/* CP1252 from 0x80 to 0x9f; 0: nothing is there. */
static const uint16_t cp1252[] = {
	0x20ac, 0,	0x201a, 0x0192, 0x201e, 0x2026, 0x2020, 0x2021, 0x02c6, 0x2030, 0x0160,
	0x2039, 0x0152, 0,	0x017d, 0,	0,	0x2018, 0x2019, 0x201c, 0x201d, 0x2022,
	0x2013, 0x2014, 0x02dc, 0x2122, 0x0161, 0x203a, 0x0153, 0,	0x017e, 0x0178,
};

static uint32_t unit16(const unsigned char *s, enum order order)
{
	return order == BIG ? (uint32_t)s[0] << 8 | s[1] : (uint32_t)s[1] << 8 | s[0];
}

static size_t utf16_step(const unsigned char *s, size_t len, enum order order, uint32_t *ret_code,
			 size_t *ret_bad, const char **ret_why)
{
	uint32_t unit, low;

	*ret_bad = len;
	*ret_why = "truncated data";
	if (len < 2)
		return 0;
	unit = unit16(s, order);
	*ret_code = unit;
	if (unit < 0xd800 || unit >= 0xe000)
		return 2;
	*ret_bad = 2;
	*ret_why = "illegal encoding";
	if (unit >= 0xdc00)
		return 0;
	*ret_bad = len;
	*ret_why = "unexpected end of data";
	if (len < 4)
		return 0;
	low = unit16(s + 2, order);
	*ret_bad = 2;
	*ret_why = "illegal UTF-16 surrogate";
	if (low < 0xdc00 || low >= 0xe000)
		return 0;
	*ret_code = 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00);
	return 4;
}

static size_t utf32_step(const unsigned char *s, size_t len, enum order order, uint32_t *ret_code,
			 size_t *ret_bad, const char **ret_why)
{
	*ret_bad = len;
	*ret_why = "truncated data";
	if (len < 4)
		return 0;
	*ret_code = order == BIG ? unit16(s, order) << 16 | unit16(s + 2, order)
				 : unit16(s + 2, order) << 16 | unit16(s, order);
	*ret_bad = 4;
	*ret_why = "code point in surrogate code point range(0xd800, 0xe000)";
	if (*ret_code >= 0xd800 && *ret_code < 0xe000)
		return 0;
	*ret_why = "code point not in range(0x110000)";
	return *ret_code < 0x110000 ? 4 : 0;
}

/* One character of a scheme but UTF-8: as utf8_step, and its code. */
static size_t step(const struct codec *c, enum order order, const unsigned char *s, size_t len,
		   uint32_t *ret_code, size_t *ret_bad, const char **ret_why)
{
	*ret_bad = 1;
	*ret_code = s[0];
	switch (c->scheme) {
	case ASCII:
		*ret_why = "ordinal not in range(128)";
		return s[0] < 0x80;
	case CP1252:
		*ret_why = "character maps to <undefined>";
		if (s[0] >= 0x80 && s[0] < 0xa0)
			*ret_code = cp1252[s[0] - 0x80];
		return s[0] == 0 || *ret_code;
	case UTF16:
		return utf16_step(s, len, order, ret_code, ret_bad, ret_why);
	case UTF32:
		return utf32_step(s, len, order, ret_code, ret_bad, ret_why);
	default:
		return 1;
	}
}

struct decoding {
	const struct codec *codec;
	const char *name; /* of the codec, in messages */
	const char *errors;
	enum handler handler;
	enum order order;
	struct ply_text out; /* UTF-8; room is doubled by hand */
	size_t room;
};

static int emit(struct decoding *d, const char *data, size_t len)
{
	if (d->out.len + len + 1 > d->room) {
		size_t room = (d->room + len + 64) * 2;
		char *p = realloc(d->out.data, room);

		if (!p)
			return -ENOMEM;
		d->out.data = p;
		d->room = room;
	}
	memcpy(d->out.data + d->out.len, data, len);
	d->out.len += len;
	d->out.data[d->out.len] = '\0';
	return 0;
}

static int emit_code(struct decoding *d, uint32_t c)
{
	char s[4];

	if (c < 0x80) {
		s[0] = (char)c;
		return emit(d, s, 1);
	}
	if (c < 0x800) {
		s[0] = (char)(0xc0 | c >> 6);
		s[1] = (char)(0x80 | (c & 0x3f));
		return emit(d, s, 2);
	}
	if (c < 0x10000) {
		s[0] = (char)(0xe0 | c >> 12);
		s[1] = (char)(0x80 | (c >> 6 & 0x3f));
		s[2] = (char)(0x80 | (c & 0x3f));
		return emit(d, s, 3);
	}
	s[0] = (char)(0xf0 | c >> 18);
	s[1] = (char)(0x80 | (c >> 12 & 0x3f));
	s[2] = (char)(0x80 | (c >> 6 & 0x3f));
	s[3] = (char)(0x80 | (c & 0x3f));
	return emit(d, s, 4);
}

/* Bytes that cannot be decoded. 1: raised. */
static int undecodable(struct decoding *d, const struct ply_text *in, size_t at, size_t bad,
		       const char *why, struct http_response *r)
{
	if (d->handler == UNKNOWN) {
		rex_raisef(r, "builtins.LookupError", "unknown error handler name '%s'", d->errors);
		return 1;
	}
	if (d->handler == STRICT) {
		if (bad == 1)
			rex_raisef(r, "builtins.UnicodeDecodeError",
				   "'%s' codec can't decode byte 0x%02x in position %zu: %s",
				   d->name, (unsigned char)in->data[at], at, why);
		else
			rex_raisef(r, "builtins.UnicodeDecodeError",
				   "'%s' codec can't decode bytes in position %zu-%zu: %s",
				   d->name, at, at + bad - 1, why);
		return 1;
	}
	if (d->handler == SURROGATE) {
		rex_raisef(r, "builtins.UnicodeEncodeError",
			   "'utf-8' codec can't encode character '\\udc%02x' in position %zu: "
			   "surrogates not allowed",
			   (unsigned char)in->data[at], at);
		return 1;
	}
	if (d->handler == REPLACE)
		return emit(d, "\xef\xbf\xbd", 3);
	for (size_t i = 0; d->handler == BACKSLASH && i < bad; i++) {
		char text[5];

		snprintf(text, sizeof(text), "\\x%02x", (unsigned char)in->data[at + i]);
		if (emit(d, text, 4) < 0)
			return -ENOMEM;
	}
	return 0;
}

static int decode_utf8(struct decoding *d, const struct ply_text *in, struct http_response *r)
{
	for (size_t at = 0; at < in->len;) {
		size_t begin = at, bad = 1, n = 1;
		const char *why = "";
		int s;

		while (at < in->len && (n = utf8_step((unsigned char *)in->data + at, in->len - at,
						      &bad, &why)) > 0)
			at += n;
		if (emit(d, in->data + begin, at - begin) < 0)
			return -ENOMEM;
		if (at == in->len)
			break;
		s = undecodable(d, in, at, bad, why, r);
		if (s != 0)
			return s;
		at += bad;
	}
	return 0;
}

static int decode_other(struct decoding *d, const struct ply_text *in, struct http_response *r)
{
	size_t at = 0, bom = d->codec->scheme == UTF32 ? 4 : 2;
	bool marked = true;

	if (d->order == BY_BOM && d->codec->scheme >= UTF16) {
		bool big = in->len >= bom && memcmp(in->data, &"\0\0\xfe\xff"[4 - bom], bom) == 0;

		marked = big || (in->len >= bom && memcmp(in->data, "\xff\xfe\0", bom) == 0);
		d->order = big ? BIG : LITTLE;
		at = marked ? bom : 0;
		d->name = bom == 2 ? (big ? "utf-16-be" : "utf-16-le")
				   : (big ? "utf-32-be" : "utf-32-le");
	}
	while (at < in->len) {
		const char *why = "";
		size_t bad = 1, n;
		uint32_t code;
		int s;

		n = step(d->codec, d->order, (const unsigned char *)in->data + at, in->len - at,
			 &code, &bad, &why);
		s = n > 0 ? emit_code(d, code) : undecodable(d, in, at, bad, why, r);
		if (s != 0)
			return s;
		at += n > 0 ? n : bad;
	}
	if (!marked && in->len >= bom) {
		rex_raisef(r, "builtins.UnicodeError", "UTF-%zu stream does not start with BOM",
			   bom * 8);
		return 1;
	}
	return 0;
}

int rex_check_encoding(const char *encoding, struct http_response *r)
{
	if (codec_find(encoding))
		return 0;
	rex_raisef(r, "builtins.LookupError", "unknown encoding: %s", encoding);
	return 1;
}

int rex_decode(const struct ply_text *in, const char *encoding, const char *errors,
	       struct ply_text *ret, struct http_response *r)
{
	struct decoding d = { .codec = codec_find(encoding), .errors = errors };
	struct ply_text rest = *in;
	int s;

	d.name = d.codec->python;
	d.order = d.codec->order;
	d.handler = handler_find(errors);
	if (d.codec->scheme == UTF8_SIG && rest.len >= 3 &&
	    memcmp(rest.data, "\xef\xbb\xbf", 3) == 0) {
		rest.data += 3;
		rest.len -= 3;
	}
	s = emit(&d, "", 0); /* a string also of nothing */
	if (s == 0)
		s = d.codec->scheme <= UTF8_SIG ? decode_utf8(&d, &rest, r)
						: decode_other(&d, &rest, r);
	if (s != 0)
		ply_text_free(&d.out);
	else
		*ret = d.out;
	return s;
}
