/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Which of several regular expressions (PCRE2; "." matches a newline, too) is seen first in output
 * that grows. Each byte is looked at about once, however often output comes, unless a pattern may
 * begin anywhere (".*x").
 */

#include <stddef.h>

struct expect;

/* Copies the patterns. PLY_INVALID: one of them is no regular expression. n 0: *ret is NULL. */
int expect_new(const char *const *patterns, size_t n, struct expect **ret);
void expect_free(struct expect *e);
void expect_freep(struct expect **e);

struct expect_match {
	int index; /* of the pattern */
	size_t start, end;
};
/*
 * 1: seen in data, which is what the last call had and more; the leftmost match, of several at one
 * place the first in order. 0: not yet (also for NULL). PLY_FAILED, PLY_NO_MEMORY.
 */
int expect_scan(struct expect *e, const char *data, size_t len, struct expect_match *ret);
/* The data changed from there on: the next scan begins there at the latest. NULL is fine. */
void expect_rewind(struct expect *e, size_t at);
