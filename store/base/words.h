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

static inline bool is_control(char c)
{
	return (unsigned char)c < ' ' || c == 0x7f;
}

/* No second line, no escapes: '?' in the place of each control byte. */
static inline char *line_clean(char *line)
{
	for (char *p = line; *p; p++)
		if (is_control(*p))
			*p = '?';
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
	for (; *word; word++)
		fputc(is_control(*word) ? '?' : *word, out);
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
 * control bytes as $'...', which dash does not know. Given; NULL: no memory.
 */
static inline char *shell_word(const char *word)
{
	char *quoted = malloc(QUOTED_SIZE(strlen(word))), *to = quoted;
	bool odd = false;

	for (const char *p = word; *p; p++)
		odd |= is_control(*p);
	if (quoted && !odd)
		*shell_quote(to, word) = '\0';
	if (!quoted || !odd)
		return quoted;
	to = stpcpy(to, "$'");
	for (; *word; word++)
		if (is_control(*word))
			to += sprintf(to, "\\%03o", (unsigned char)*word);
		else if (*word == '\'' || *word == '\\')
			to += sprintf(to, "\\%c", *word);
		else
			*to++ = *word;
	strcpy(to, "'");
	return quoted;
}
