/* SPDX-License-Identifier: Apache-2.0 */

/* Answers and exceptions of the SWE-ReX protocol (rex.h). */

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "env/pytext.h"
#include "env/serve/rex.h"
#include "store/base/util.h"

/* Length of the UTF-8 sequence at s, or 0: surrogates and overlong forms are none. */
static size_t utf8_at(const unsigned char *s, size_t len)
{
	static const unsigned long least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	size_t n = s[0] < 0x80	     ? 1
		   : s[0] >> 5 == 6  ? 2
		   : s[0] >> 4 == 14 ? 3
		   : s[0] >> 3 == 30 ? 4
				     : 0;
	unsigned long c = n == 1 ? s[0] : s[0] & (0x7f >> n);

	if (n == 0 || n > len)
		return 0;
	for (size_t i = 1; i < n; i++) {
		if (s[i] >> 6 != 2)
			return 0;
		c = c << 6 | (s[i] & 0x3f);
	}
	if (c < least[n] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
		return n == 1 ? 1 : 0;
	return n;
}

json_t *rex_text(const char *data, size_t len)
{
	json_t *s = json_stringn(data, len);
	char *text, *to;

	if (s)
		return s;
	/* Not UTF-8 (or no memory: then this fails, too). Four times as long at the worst. */
	text = to = malloc(len * 4 + 1);
	if (!text)
		return NULL;
	for (size_t i = 0; i < len;) {
		size_t n = utf8_at((const unsigned char *)data + i, len - i);

		if (n > 0) {
			memcpy(to, data + i, n);
			to += n;
			i += n;
		} else {
			to += sprintf(to, "\\x%02x", (unsigned char)data[i++]);
		}
	}
	s = json_stringn(text, (size_t)(to - text));
	free(text);
	return s;
}

static void raise_as(struct http_response *r, const char *class, const char *message, size_t len,
		     json_t *extra)
{
	reply_json(r, 511,
		   json_pack("{s:{s:o, s:s, s:s, s:o}}", "swerexception", "message",
			     rex_text(message, len), "class_path", class, "traceback", "",
			     "extra_info", extra ? extra : json_object()));
}

void rex_raisef(struct http_response *r, const char *class, const char *fmt, ...)
{
	_cleanup_free_ char *text = NULL;
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vasprintf(&text, fmt, ap);
	va_end(ap);
	if (n < 0)
		text = NULL;
	raise_as(r, class, text ? text : "", text ? (size_t)n : 0, NULL);
}

void rex_raise_text(struct http_response *r, const char *class, int s, struct ply_text *text,
		    json_t *extra)
{
	if (s == 0) {
		raise_as(r, class, text->data, text->len, extra);
	} else {
		json_decref(extra);
		rex_raisef(r, "builtins.MemoryError", "out of memory");
	}
	ply_text_free(text);
}

void rex_raise_errno(struct http_response *r, int err, const char *path, size_t len)
{
	static const struct {
		int err;
		const char *class;
	} classes[] = {
		{ ENOENT, "builtins.FileNotFoundError" },
		{ EISDIR, "builtins.IsADirectoryError" },
		{ EACCES, "builtins.PermissionError" },
		{ EPERM, "builtins.PermissionError" },
		{ EEXIST, "builtins.FileExistsError" },
		{ ENOTDIR, "builtins.NotADirectoryError" },
	};
	struct ply_text text = { 0 };
	const char *class = "builtins.OSError";

	for (size_t i = 0; i < ARRAY_SIZE(classes); i++)
		if (classes[i].err == err)
			class = classes[i].class;
	if (text_append_format(&text, "[Errno %d] %s: ", err, strerror(err)) < 0 ||
	    text_append_repr(&text, path, len) < 0)
		rex_raisef(r, class, "[Errno %d] %s", err, strerror(err));
	else
		raise_as(r, class, text.data, text.len, NULL);
	ply_text_free(&text);
}

const char *rex_float(double d, char buf[static 32])
{
	int digits = 0, exponent;

	if (!isfinite(d)) {
		snprintf(buf, 32, "%s", isnan(d) ? "nan" : d < 0 ? "-inf" : "inf");
		return buf;
	}
	/* The shortest that reads back as the same; with an exponent only where there is need. */
	do
		snprintf(buf, 32, "%.*e", digits, d);
	while (strtod(buf, NULL) != d && digits++ < 16);
	exponent = atoi(strchr(buf, 'e') + 1);
	if (exponent >= -4 && exponent < 16)
		snprintf(buf, 32, "%.*f", digits > exponent ? digits - exponent : 1, d);
	return buf;
}
