/* SPDX-License-Identifier: Apache-2.0 */

/*
 * repr, strip and quote. Text is bytes here: a sequence that is no UTF-8 is shown, never refused.
 * Appending reallocates to the exact size each time (status.h), so pieces are gathered in a stack
 * buffer first.
 */

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "env/pytext.h"
#include "env/status.h"
#include "store/base/util.h"

/*
 * Code points above ASCII that str.isprintable() refuses: Unicode's categories Cc, Cf, Cs, Co, Zl,
 * Zp and Zs. Unassigned ones (Cn) are left out: which those are changes every year.
 */
static const uint32_t unprintable[][2] = {
	{ 0x80, 0xa0 },	      { 0xad, 0xad },	    { 0x600, 0x605 },	    { 0x61c, 0x61c },
	{ 0x6dd, 0x6dd },     { 0x70f, 0x70f },	    { 0x890, 0x891 },	    { 0x8e2, 0x8e2 },
	{ 0x1680, 0x1680 },   { 0x180e, 0x180e },   { 0x2000, 0x200f },	    { 0x2028, 0x202f },
	{ 0x205f, 0x2064 },   { 0x2066, 0x206f },   { 0x3000, 0x3000 },	    { 0xd800, 0xf8ff },
	{ 0xfeff, 0xfeff },   { 0xfff9, 0xfffb },   { 0x110bd, 0x110bd },   { 0x110cd, 0x110cd },
	{ 0x13430, 0x13438 }, { 0x1bca0, 0x1bca3 }, { 0x1d173, 0x1d17a },   { 0xe0001, 0xe0001 },
	{ 0xe0020, 0xe007f }, { 0xf0000, 0xffffd }, { 0x100000, 0x10fffd },
};

static bool is_printable(uint32_t c)
{
	if (c < 0x80)
		return c >= 0x20 && c != 0x7f;
	for (size_t i = 0; i < ARRAY_SIZE(unprintable); i++)
		if (c >= unprintable[i][0] && c <= unprintable[i][1])
			return false;
	return true;
}

/* The code point at s and how many bytes it takes; 0 when these bytes are no UTF-8. */
static size_t decode(const unsigned char *s, size_t len, uint32_t *ret)
{
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	size_t n = s[0] < 0x80	 ? 1
		   : s[0] < 0xc2 ? 0
		   : s[0] < 0xe0 ? 2
		   : s[0] < 0xf0 ? 3
		   : s[0] < 0xf5 ? 4
				 : 0;
	uint32_t c;

	if (n == 0 || n > len)
		return 0;
	c = n == 1 ? s[0] : s[0] & (0x7fU >> n);
	for (size_t i = 1; i < n; i++) {
		if ((s[i] & 0xc0) != 0x80)
			return 0;
		c = c << 6 | (s[i] & 0x3f);
	}
	if (c < least[n] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
		return 0;
	*ret = c;
	return n;
}

/* Pieces on their way to a text. */
struct gather {
	struct ply_text *text;
	size_t n;
	char buf[4096]; /* a page: few reallocations, and little stack */
};

static int flush(struct gather *g)
{
	size_t n = g->n;

	g->n = 0;
	return n ? text_append(g->text, g->buf, n) : 0;
}

static int put(struct gather *g, const void *data, size_t len)
{
	if (len > sizeof(g->buf) - g->n) {
		int r = flush(g);

		if (r < 0)
			return r;
	}
	memcpy(g->buf + g->n, data, len); /* callers' pieces are a few bytes long */
	g->n += len;
	return 0;
}

int text_append_repr(struct ply_text *text, const char *s, size_t len)
{
	const unsigned char *p = (const unsigned char *)s;
	char quote = memchr(s, '\'', len) && !memchr(s, '"', len) ? '"' : '\'';
	struct gather g = { .text = text };
	int r = put(&g, &quote, 1);

	for (size_t i = 0; r == 0 && i < len;) {
		uint32_t c = 0;
		size_t n = decode(p + i, len - i, &c);
		char escaped[16];
		int e = 0;

		if (n == 0) {
			e = snprintf(escaped, sizeof(escaped), "\\udc%02x", p[i]);
			n = 1;
		} else if (c == (uint32_t)quote || c == '\\') {
			e = snprintf(escaped, sizeof(escaped), "\\%c", (char)c);
		} else if (c == '\n' || c == '\r' || c == '\t') {
			e = snprintf(escaped, sizeof(escaped), "\\%c",
				     c == '\n'	 ? 'n'
				     : c == '\r' ? 'r'
						 : 't');
		} else if (!is_printable(c)) {
			e = snprintf(escaped, sizeof(escaped),
				     c < 0x100	   ? "\\x%02x"
				     : c < 0x10000 ? "\\u%04x"
						   : "\\U%08x",
				     c);
		}
		r = e ? put(&g, escaped, (size_t)e) : put(&g, p + i, n);
		i += n;
	}
	if (r == 0)
		r = put(&g, &quote, 1);
	return r == 0 ? flush(&g) : r;
}

int text_append_quoted(struct ply_text *text, const char *word)
{
	static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
				    "@%+=:,./-_";
	struct gather g = { .text = text };
	int r;

	if (*word && word[strspn(word, plain)] == '\0')
		return text_append_str(text, word);
	r = put(&g, "'", 1);
	for (; r == 0 && *word; word++)
		r = *word == '\'' ? put(&g, "'\"'\"'", 5) : put(&g, word, 1);
	if (r == 0)
		r = put(&g, "'", 1);
	return r == 0 ? flush(&g) : r;
}

/* Length of the white space at s, as str.isspace() sees it; 0 for anything else. */
static size_t space_at(const char *s, size_t len)
{
	uint32_t c;
	size_t n = decode((const unsigned char *)s, len, &c);

	if (n == 0)
		return 0;
	if ((c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
	    c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
	    c == 0x202f || c == 0x205f || c == 0x3000)
		return n;
	return 0;
}

void text_strip(const char **s, size_t *len)
{
	bool more = true;
	size_t n;

	while (*len && (n = space_at(*s, *len))) {
		*s += n;
		*len -= n;
	}
	while (more) {
		more = false;
		for (n = 1; n <= 3 && n <= *len; n++) /* no white space takes four bytes */
			if (space_at(*s + *len - n, n) == n) {
				*len -= n;
				more = true;
				break;
			}
	}
}

/* Length of the control sequence at p; 0 when there is none. */
static size_t control_at(const char *p, const char *end)
{
	const char *start = p;

	if (end - p < 3 || *p++ != '\033' || *p < '@' || *p > '_')
		return 0;
	for (p++; p < end && *p >= '0' && *p <= '?'; p++)
		;
	for (; p < end && *p >= ' ' && *p <= '/'; p++)
		;
	return p < end && *p >= '@' && *p <= '~' ? (size_t)(p + 1 - start) : 0;
}

void text_remove_controls(struct ply_text *text)
{
	const char *p = text->data, *end = p + text->len;
	char *to = text->data;

	if (!text->data || !memchr(text->data, '\033', text->len))
		return;
	while (p < end) {
		size_t n = control_at(p, end);

		if (n)
			p += n;
		else
			*to++ = *p++;
	}
	*to = '\0';
	text->len = (size_t)(to - text->data);
}

int text_append_str(struct ply_text *text, const char *s)
{
	return text_append(text, s, strlen(s));
}

int text_append_format(struct ply_text *text, const char *fmt, ...)
{
	_cleanup_free_ char *s = NULL;
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vasprintf(&s, fmt, ap);
	va_end(ap);
	if (n < 0) {
		s = NULL; /* undefined after a failure */
		return fail_memory();
	}
	return text_append(text, s, (size_t)n);
}

int text_append_url(struct ply_text *text, const char *s, const char *blank)
{
	static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
				    "0123456789_.-~";
	_cleanup_free_ char *out = malloc(3 * strlen(s) + 1);
	char *p = out;

	if (!out)
		return fail_memory();
	for (; *s; s++) {
		if (strchr(plain, *s))
			*p++ = *s;
		else if (*s == ' ')
			p = stpcpy(p, blank);
		else
			p += sprintf(p, "%%%02X", (unsigned char)*s);
	}
	return text_append(text, out, (size_t)(p - out));
}
