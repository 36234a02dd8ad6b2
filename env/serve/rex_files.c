/* SPDX-License-Identifier: Apache-2.0 */

/*
 * read_file and write_file of the SWE-ReX protocol: text as Python's open() reads it (a codec, what
 * to do with bytes that it cannot decode, every line end a newline) and writes it (UTF-8).
 */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "env/pytext.h"
#include "env/serve/model.h"
#include "env/serve/rex.h"
#include "env/status.h"
#include "store/base/util.h"

/* ---- bytes ---- */

static int read_whole(struct rex *rex, const char *path, struct ply_text *ret)
{
	_cleanup_close_ int fd = rex_open(rex, path, O_RDONLY, 0);
	struct stat st;
	size_t room;

	if (fd < 0)
		return fd;
	if (fstat(fd, &st) < 0)
		return -errno;
	if (S_ISDIR(st.st_mode))
		return -EISDIR;
	room = (size_t)st.st_size + 4096; /* what is in /proc says 0 */
	ret->data = malloc(room + 1);
	while (ret->data) {
		ssize_t n = read(fd, ret->data + ret->len, room - ret->len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		ret->len += (size_t)n;
		ret->data[ret->len] = '\0';
		if (n == 0)
			return 0;
		if (ret->len == room) {
			char *p = realloc(ret->data, room * 2 + 1);

			if (!p)
				return -ENOMEM;
			ret->data = p;
			room *= 2;
		}
	}
	return -ENOMEM;
}

/* ---- codecs ---- */

enum handler { STRICT, IGNORE, REPLACE, BACKSLASH, SURROGATE, UNKNOWN };

enum charset { UTF8, ASCII, LATIN1, CP1252, UTF16, UTF32 };

/* By hand and not by iconv, whose tables are files that a container may not have. */
struct codec {
	const char *key;    /* Python's name in lower case, without - _ and space */
	const char *python; /* as its messages call it */
	enum charset charset;
	bool big;    /* UTF16, UTF32: big-endian */
	bool marked; /* a byte order mark at the beginning is not content */
};
static const struct codec codecs[] = {
	{ "utf8", "utf-8", UTF8, false, false },
	{ "u8", "utf-8", UTF8, false, false },
	{ "utf8sig", "utf-8", UTF8, false, true },
	{ "ascii", "ascii", ASCII, false, false },
	{ "usascii", "ascii", ASCII, false, false },
	{ "646", "ascii", ASCII, false, false },
	{ "latin1", "latin-1", LATIN1, false, false },
	{ "iso88591", "latin-1", LATIN1, false, false },
	{ "l1", "latin-1", LATIN1, false, false },
	{ "cp1252", "charmap", CP1252, false, false },
	{ "windows1252", "charmap", CP1252, false, false },
	{ "utf16", "utf-16", UTF16, false, true },
	{ "utf16le", "utf-16-le", UTF16, false, false },
	{ "utf16be", "utf-16-be", UTF16, true, false },
	{ "utf32", "utf-32", UTF32, false, true },
	{ "utf32le", "utf-32-le", UTF32, false, false },
	{ "utf32be", "utf-32-be", UTF32, true, false },
};

/* 0x80 to 0x9f; 0: undefined. */
static const uint16_t cp1252[] = {
	0x20ac, 0,	0x201a, 0x0192, 0x201e, 0x2026, 0x2020, 0x2021, 0x02c6, 0x2030, 0x0160,
	0x2039, 0x0152, 0,	0x017d, 0,	0,	0x2018, 0x2019, 0x201c, 0x201d, 0x2022,
	0x2013, 0x2014, 0x02dc, 0x2122, 0x0161, 0x203a, 0x0153, 0,	0x017e, 0x0178,
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
	return UNKNOWN;
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

struct decoding {
	const struct codec *codec;
	enum handler handler;
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

/* Bytes that cannot be decoded. 1: raised. */
static int undecodable(struct decoding *d, const struct ply_text *in, size_t at, size_t bad,
		       const char *why, struct http_response *r)
{
	if (d->handler == STRICT) {
		if (bad == 1)
			rex_raisef(r, "builtins.UnicodeDecodeError",
				   "'%s' codec can't decode byte 0x%02x in position %zu: %s",
				   d->codec->python, (unsigned char)in->data[at], at, why);
		else
			rex_raisef(r, "builtins.UnicodeDecodeError",
				   "'%s' codec can't decode bytes in position %zu-%zu: %s",
				   d->codec->python, at, at + bad - 1, why);
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

static uint32_t unit_at(const unsigned char *s, unsigned bytes, bool big)
{
	uint32_t u = 0;

	for (unsigned i = 0; i < bytes; i++)
		u |= (uint32_t)s[i] << 8 * (big ? bytes - 1 - i : i);
	return u;
}

/* One character in one of the other charsets; as utf8_step, and the code point. */
static size_t other_step(enum charset charset, bool big, const unsigned char *s, size_t len,
			 uint32_t *ret_c, size_t *ret_bad, const char **ret_why)
{
	size_t unit = charset == UTF16 ? 2 : charset == UTF32 ? 4 : 1;
	uint32_t c = len >= unit ? unit_at(s, (unsigned)unit, big) : 0, low;

	*ret_bad = MIN(len, unit);
	*ret_why = "truncated data";
	if (len < unit)
		return 0;
	if (charset == ASCII && c >= 0x80) {
		*ret_why = "ordinal not in range(128)";
		return 0;
	}
	if (charset == CP1252 && c >= 0x80 && c < 0xa0) {
		c = cp1252[c - 0x80];
		*ret_why = "character maps to <undefined>";
		if (c == 0)
			return 0;
	}
	if (charset == UTF32 && (c > 0x10ffff || (c >= 0xd800 && c < 0xe000))) {
		*ret_why = c > 0x10ffff
				   ? "code point not in range(0x110000)"
				   : "code point in surrogate code point range(0xd800, 0xe000)";
		return 0;
	}
	if (charset == UTF16 && c >= 0xd800 && c < 0xe000) {
		*ret_why = "illegal encoding";
		if (c >= 0xdc00)
			return 0;
		if (len < 4) {
			*ret_bad = len;
			*ret_why = "unexpected end of data";
			return 0;
		}
		low = unit_at(s + 2, 2, big);
		*ret_why = "illegal UTF-16 surrogate";
		if (low < 0xdc00 || low >= 0xe000)
			return 0;
		c = 0x10000 + ((c - 0xd800) << 10 | (low - 0xdc00));
		unit = 4;
	}
	*ret_c = c;
	return unit;
}

static int emit_point(struct decoding *d, uint32_t c)
{
	char b[4];

	if (c < 0x80) {
		b[0] = (char)c;
		return emit(d, b, 1);
	}
	if (c < 0x800) {
		b[0] = (char)(0xc0 | c >> 6);
		b[1] = (char)(0x80 | (c & 0x3f));
		return emit(d, b, 2);
	}
	if (c < 0x10000) {
		b[0] = (char)(0xe0 | c >> 12);
		b[1] = (char)(0x80 | (c >> 6 & 0x3f));
		b[2] = (char)(0x80 | (c & 0x3f));
		return emit(d, b, 3);
	}
	b[0] = (char)(0xf0 | c >> 18);
	b[1] = (char)(0x80 | (c >> 12 & 0x3f));
	b[2] = (char)(0x80 | (c >> 6 & 0x3f));
	b[3] = (char)(0x80 | (c & 0x3f));
	return emit(d, b, 4);
}

static int decode_other(struct decoding *d, const struct ply_text *in, struct http_response *r)
{
	const unsigned char *s = (const unsigned char *)in->data;
	enum charset charset = d->codec->charset;
	unsigned unit = charset == UTF16 ? 2 : 4;
	bool big = d->codec->big;
	size_t at = 0;

	if (d->codec->marked && in->len >= unit) {
		/* U+FEFF, in one order or the other. */
		if (unit_at(s, unit, true) == 0xfeff) {
			big = true;
			at = unit;
		} else if (unit_at(s, unit, false) == 0xfeff) {
			at = unit;
		} else {
			rex_raisef(r, "builtins.UnicodeError",
				   "UTF-%u stream does not start with BOM", unit * 8);
			return 1;
		}
	}
	while (at < in->len) {
		size_t bad = 1, n;
		const char *why = "";
		uint32_t c = 0;
		int result;

		n = other_step(charset, big, s + at, in->len - at, &c, &bad, &why);
		result = n > 0 ? emit_point(d, c) : undecodable(d, in, at, bad, why, r);
		if (result != 0)
			return result;
		at += n > 0 ? n : bad;
	}
	return 0;
}

/* CRLF and CR become LF, in place. */
static void newlines(struct ply_text *text)
{
	size_t to = 0;

	for (size_t i = 0; i < text->len; i++) {
		if (text->data[i] == '\r') {
			text->data[to++] = '\n';
			if (i + 1 < text->len && text->data[i + 1] == '\n')
				i++;
		} else {
			text->data[to++] = text->data[i];
		}
	}
	text->len = to;
}

struct read_request {
	const char *path, *encoding, *errors;
	size_t path_len;
};

void rex_read_file(void *arg, const struct http_request *q, struct http_response *r)
{
	static const struct model_field fields[] = {
		{ "path", MODEL_STRING, offsetof(struct read_request, path),
		  offsetof(struct read_request, path_len), true, NULL },
		{ "encoding", MODEL_STRING_OR_NULL, offsetof(struct read_request, encoding), 0,
		  false, NULL },
		{ "errors", MODEL_STRING_OR_NULL, offsetof(struct read_request, errors), 0, false,
		  NULL },
	};
	struct read_request f = { 0 };
	struct decoding d = { 0 };
	struct ply_text bytes = { 0 };
	struct model m;
	int err;

	model_parse(&m, q->body, q->body_len);
	model_read(&m, fields, ARRAY_SIZE(fields), &f);
	if (!model_ok(&m)) {
		r->status = 422;
		r->body = model_complaint(&m, &r->len);
		goto out;
	}
	if (strlen(f.path) != f.path_len) {
		rex_raisef(r, "builtins.ValueError", "embedded null byte");
		goto out;
	}
	d.codec = codec_find(f.encoding ? f.encoding : "utf-8");
	d.handler = handler_find(f.errors ? f.errors : "strict");
	if (!d.codec) {
		rex_raisef(r, "builtins.LookupError", "unknown encoding: %s", f.encoding);
		goto out;
	}
	err = read_whole(arg, f.path, &bytes);
	if (err < 0) {
		rex_raise_errno(r, -err, f.path, f.path_len);
		goto out;
	}
	if (d.handler == UNKNOWN) {
		rex_raisef(r, "builtins.LookupError", "unknown error handler name '%s'", f.errors);
		goto out;
	}
	err = d.codec->charset == UTF8 ? decode_utf8(&d, &bytes, r) : decode_other(&d, &bytes, r);
	if (err < 0)
		rex_raisef(r, "builtins.MemoryError", "out of memory");
	if (err != 0)
		goto out;
	if (d.codec->charset == UTF8 && d.codec->marked && d.out.len >= 3 &&
	    memcmp(d.out.data, "\xef\xbb\xbf", 3) == 0) {
		d.out.len -= 3;
		memmove(d.out.data, d.out.data + 3, d.out.len);
	}
	newlines(&d.out);
	reply_json(r, 200,
		   json_pack("{s:o}", "content",
			     json_stringn(d.out.data ? d.out.data : "", d.out.len)));
out:
	ply_text_free(&bytes);
	ply_text_free(&d.out);
	model_release(&m);
}

/* ---- writing ---- */

struct write_request {
	const char *content, *path;
	size_t content_len, path_len;
};

void rex_write_file(void *arg, const struct http_request *q, struct http_response *r)
{
	static const struct model_field fields[] = {
		{ "content", MODEL_STRING, offsetof(struct write_request, content),
		  offsetof(struct write_request, content_len), true, NULL },
		{ "path", MODEL_STRING, offsetof(struct write_request, path),
		  offsetof(struct write_request, path_len), true, NULL },
	};
	struct write_request f = { 0 };
	_cleanup_close_ int fd = -1;
	struct model m;

	model_parse(&m, q->body, q->body_len);
	model_read(&m, fields, ARRAY_SIZE(fields), &f);
	if (!model_ok(&m)) {
		r->status = 422;
		r->body = model_complaint(&m, &r->len);
		goto out;
	}
	if (strlen(f.path) != f.path_len) {
		rex_raisef(r, "builtins.ValueError", "embedded null byte");
		goto out;
	}
	if (rex_make_parents(arg, f.path, r) < 0)
		goto out;
	fd = rex_open(arg, f.path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
	if (fd < 0) {
		rex_raise_errno(r, -fd, f.path, f.path_len);
		goto out;
	}
	for (size_t done = 0; done < f.content_len;) {
		ssize_t n = write(fd, f.content + done, f.content_len - done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			rex_raise_errno(r, errno, f.path, f.path_len);
			goto out;
		}
		done += (size_t)n;
	}
	if (close(TAKE_FD(fd)) < 0)
		rex_raise_errno(r, errno, f.path, f.path_len);
	else
		reply_json(r, 200, json_object());
out:
	model_release(&m);
}
