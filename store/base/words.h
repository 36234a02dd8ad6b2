/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Words that strangers chose (paths, names of processes), in lines for people: shown without what a
 * terminal obeys, and so that a shell takes them for what they are. Header only: programs that link
 * nothing but libc use it.
 */

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * How many of the bytes at p are a control character: U+0080 to U+009F are some as well (U+009B
 * begins an escape sequence), and UTF-8 has two bytes for them.
 */
static inline int control_bytes(const char *p)
{
	if ((unsigned char)*p < ' ' || *p == 0x7f)
		return 1;
	return (unsigned char)p[0] == 0xc2 && ((unsigned char)p[1] & 0xe0) == 0x80 ? 2 : 0;
}

/* No second line, no escapes: '?' in the place of each control character. */
static inline char *line_clean(char *line)
{
	char *to = line;

	for (const char *p = line; *p;) {
		int n = control_bytes(p);

		*to++ = n ? '?' : *p;
		p += n ?: 1;
	}
	*to = 0;
	return line;
}

/* Undoes the kernel's \ooo for space, tab, newline and backslash, in place: in /proc's lists. */
static inline void word_unescape(char *s)
{
	char *to = s;

	for (; *s; s++) {
		if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] >= '0' && s[2] <= '7' &&
		    s[3] >= '0' && s[3] <= '7') {
			*to++ = (char)((s[1] - '0') * 64 + (s[2] - '0') * 8 + (s[3] - '0'));
			s += 3;
		} else {
			*to++ = *s;
		}
	}
	*to = 0;
}

static inline void print_clean(FILE *out, const char *word)
{
	while (*word) {
		int n = control_bytes(word);

		fputc(n ? '?' : *word, out);
		word += n ?: 1;
	}
}

/* Room for a word in quotes. */
#define QUOTED_SIZE(len) (4 * (len) + sizeof("$''"))

/* The word in quotes that any shell takes as it is; unterminated; the end of it. */
static inline char *shell_quote(char *to, const char *word)
{
	*to++ = '\'';
	for (; *word; word++)
		if (*word == '\'')
			to = stpcpy(to, "'\\''");
		else
			*to++ = *word;
	*to++ = '\'';
	return to;
}

/*
 * The word as it may be pasted into a shell, with nothing that line_clean would change: what holds
 * control characters as $'...', which dash does not know. Given; NULL: no memory.
 */
static inline char *shell_word(const char *word)
{
	char *quoted = malloc(QUOTED_SIZE(strlen(word))), *to = quoted;
	bool odd = false;
	int n;

	for (const char *p = word; *p; p++)
		odd |= control_bytes(p) > 0;
	if (quoted && !odd)
		*shell_quote(to, word) = '\0';
	if (!quoted || !odd)
		return quoted;
	to = stpcpy(to, "$'");
	while (*word) {
		n = control_bytes(word);
		if (!n && (*word == '\'' || *word == '\\'))
			*to++ = '\\';
		if (!n)
			*to++ = *word++;
		for (; n > 0; n--)
			to += sprintf(to, "\\%03o", (unsigned char)*word++);
	}
	strcpy(to, "'");
	return quoted;
}
