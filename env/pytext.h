/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Text as Python programs write it. The worlds that our environments are compared with are written
 * in Python, and their messages hold str.__repr__ and shlex.quote of what people typed.
 */

#include <stddef.h>

#include "env/plyfs.h"

/*
 * str.__repr__ of len bytes, appended. Bytes that are not UTF-8 appear as what Python makes of
 * them in a path (surrogateescape): \udcNN. Code points that no Unicode version of today assigns
 * count as printable.
 */
int text_append_repr(struct ply_text *text, const char *s, size_t len);
/* shlex.quote, appended. */
int text_append_quoted(struct ply_text *text, const char *word);
/*
 * urllib.parse.quote with '/' encoded, appended. blank: what stands for one, "%20" in a path, "+"
 * in a query.
 */
int text_append_url(struct ply_text *text, const char *s, const char *blank);
/* str.strip() without a copy: moves *s and lessens *len. */
void text_strip(const char **s, size_t *len);
/*
 * Removes terminal control sequences as SWE-ReX does, in place: ESC, one of @-_, then 0-?, then
 * space to /, then one of @-~.
 */
void text_remove_controls(struct ply_text *text);
int text_append_str(struct ply_text *text, const char *s);
int text_append_format(struct ply_text *text, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
