/* SPDX-License-Identifier: Apache-2.0 */

/*
 * PCRE2 tells of a match that the end of the data cut off (PCRE2_PARTIAL_SOFT) where it begins: the
 * next scan starts there, or at the end when nothing has begun. Bytes that are not UTF-8 match
 * nothing but end no scan (PCRE2_MATCH_INVALID_UTF).
 *
 * Patterns are strangers', and a short one can be made to take any time and memory. Memory and the
 * steps from one place are PCRE2's to limit; it does not limit the places, of which "a*b" tries
 * each in a megabyte of "a", a megabyte long. So PCRE2 asks us at every item of a pattern (a
 * callout) whether to go on, and a search ends after SEARCH_SECONDS of a processor: how long it
 * waits for one says nothing of the pattern. What it has not looked at by then is skipped, as it is
 * after the other limits: it does not match.
 */

#include "env/expect.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "env/status.h"
#include "store/base/util.h"

/*
 * Of a processor, for all patterns together: then a session looks at its timeout and at interrupts
 * again.
 */
#define SEARCH_SECONDS 1.0
/*
 * "(a|b)*" takes a step and a frame of 128 bytes for a character: it may reach over half a million.
 * A million steps take 10 ms.
 */
#define STEPS 1000000
#define HEAP_KIB (64 * 1024)
/* Between two looks at the clock; one item may run over all of the output once. */
#define CALLOUTS 16

struct expect {
	pcre2_match_context *context;
	unsigned callouts;
	double end;   /* of the search under way, by worked() */
	double again; /* not looked at before, by now_seconds(): no system call, and never slower */
	size_t n;
	struct pattern {
		pcre2_code *code;
		pcre2_match_data *match;
		size_t from; /* nothing begins before */
	} patterns[];
};

void expect_free(struct expect *e)
{
	for (size_t i = 0; e && i < e->n; i++) {
		pcre2_match_data_free(e->patterns[i].match);
		pcre2_code_free(e->patterns[i].code);
	}
	if (e)
		pcre2_match_context_free(e->context);
	free(e);
}

void expect_freep(struct expect **e)
{
	expect_free(*e);
}

/* Seconds that this thread has had a processor for. */
static double worked(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); /* cannot fail for this clock */
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* PCRE2 asks: 0 goes on, a negative number is what pcre2_match returns. */
static int go_on(pcre2_callout_block *block, void *arg)
{
	struct expect *e = arg;
	double left;

	if (++e->callouts % CALLOUTS || now_seconds() < e->again)
		return 0;
	left = e->end - worked();
	e->again = now_seconds() + left;
	return left > 0 ? 0 : PCRE2_ERROR_MATCHLIMIT;
}

/*
 * (?a) and (?u) at the beginning, perhaps among other flags: the one without Unicode's classes, the
 * other as we have it anyway. Appends the flags that are left and moves *pattern behind them. What
 * is none, or not Python's to combine, is PCRE2's to judge.
 */
static char *take_flags(char *to, const char **pattern, uint32_t *options)
{
	const char *flags = *pattern + 2, *rest;
	size_t n = strncmp(*pattern, "(?", 2) == 0 ? strspn(flags, "aimsux") : 0;
	bool ascii = n && memchr(flags, 'a', n), unicode = n && memchr(flags, 'u', n);

	if (n == 0 || flags[n] != ')' || ascii == unicode)
		return to;
	if (ascii)
		*options &= ~(uint32_t)PCRE2_UCP;
	to = stpcpy(to, "(?");
	for (rest = flags; rest < flags + n; rest++)
		if (*rest != 'a' && *rest != 'u')
			*to++ = *rest;
	*pattern = flags + n + 1;
	return stpcpy(to, ")");
}

/* \uXXXX and \UXXXXXXXX as PCRE2 has it: \x{XXXX}; 0: it is neither. */
static size_t code_point(const char *s)
{
	size_t n = s[1] == 'u' ? 4 : s[1] == 'U' ? 8 : 0;

	return n && strspn(s + 2, "0123456789abcdefABCDEF") >= n ? n : 0;
}

/* A pattern of Python's as one of PCRE2's. Given; NULL: no memory. */
static char *translate(const char *pattern, uint32_t *options)
{
	char *text = malloc(strlen(pattern) * 2 + 1), *to = text; /* 6 characters become 8 */
	size_t n;

	if (!text)
		return NULL;
	to = take_flags(to, &pattern, options);
	while (*pattern) {
		bool escape = pattern[0] == '\\' && pattern[1];

		n = escape ? code_point(pattern) : 0;
		if (n) {
			to += sprintf(to, "\\x{%.*s}", (int)n, pattern + 2);
			pattern += 2 + n;
			continue;
		}
		if (escape)
			*to++ = *pattern++;
		*to++ = *pattern++;
	}
	*to = '\0';
	return text;
}

static int compile(struct pattern *p, const char *pattern)
{
	uint32_t options = PCRE2_DOTALL | PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF |
			   PCRE2_AUTO_CALLOUT;
	_cleanup_free_ char *text = translate(pattern, &options);
	PCRE2_UCHAR why[256];
	PCRE2_SIZE at;
	int error;

	if (!text)
		return fail_memory();
	p->code = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, options, &error, &at,
				NULL);
	if (!p->code) {
		(void)pcre2_get_error_message(error, why, sizeof(why)); /* cut is fine */
		return fail(PLY_INVALID, "'%s' is no regular expression: %s at offset %zu", pattern,
			    (const char *)why, (size_t)at);
	}
	p->match = pcre2_match_data_create_from_pattern(p->code, NULL);
	return p->match ? 0 : fail_memory();
}

int expect_new(const char *const *patterns, size_t n, struct expect **ret)
{
	_cleanup_(expect_freep) struct expect *e = NULL;

	if (n == 0) {
		*ret = NULL;
		return 0;
	}
	e = calloc(1, sizeof(*e) + n * sizeof(e->patterns[0]));
	if (!e)
		return fail_memory();
	e->n = n;
	e->context = pcre2_match_context_create(NULL);
	if (!e->context)
		return fail_memory();
	(void)pcre2_set_match_limit(e->context, STEPS);
	(void)pcre2_set_heap_limit(e->context, HEAP_KIB);
	(void)pcre2_set_callout(e->context, go_on, e);
	for (size_t i = 0; i < n; i++) {
		int r = compile(&e->patterns[i], patterns[i]);

		if (r < 0)
			return r;
	}
	*ret = TAKE_PTR(e);
	return 0;
}

/* len without a UTF-8 sequence that has only begun: it would count as invalid, not as cut off. */
static size_t whole(const char *data, size_t len)
{
	for (size_t back = 1; back <= 3 && back <= len; back++) {
		unsigned char c = (unsigned char)data[len - back];

		if ((c & 0xc0) == 0x80)
			continue;
		return c >= 0xf0 || (c >= 0xe0 && back < 3) || (c >= 0xc0 && back < 2) ? len - back
										       : len;
	}
	return len;
}

/* A limit was met, ours of time as well. */
static bool is_limit(int r)
{
	return r == PCRE2_ERROR_MATCHLIMIT || r == PCRE2_ERROR_DEPTHLIMIT ||
	       r == PCRE2_ERROR_HEAPLIMIT;
}

int expect_scan(struct expect *e, const char *data, size_t len, struct expect_match *ret)
{
	struct expect_match best = { .index = -1 };

	if (!e)
		return 0;
	len = whole(data, len);
	for (size_t i = 0; i < e->n; i++) {
		struct pattern *p = &e->patterns[i];
		PCRE2_SIZE *at = pcre2_get_ovector_pointer(p->match);
		int r;

		if (p->from > len)
			continue;
		e->end = worked() + SEARCH_SECONDS / (double)e->n;
		e->again = now_seconds() + SEARCH_SECONDS / (double)e->n;
		r = pcre2_match(p->code, (PCRE2_SPTR)data, len, p->from, PCRE2_PARTIAL_SOFT,
				p->match, e->context);
		if (r == PCRE2_ERROR_PARTIAL) {
			p->from = at[0];
		} else if (r == PCRE2_ERROR_NOMATCH || is_limit(r)) {
			p->from = len;
		} else if (r == PCRE2_ERROR_NOMEMORY) {
			return fail_memory();
		} else if (r < 0) {
			return fail(PLY_FAILED, "a regular expression failed (PCRE2 error %d)", r);
		} else {
			p->from = at[0];
			if (best.index < 0 || at[0] < best.start)
				best = (struct expect_match){ .index = (int)i,
							      .start = at[0],
							      .end = at[1] };
		}
	}
	if (best.index < 0)
		return 0;
	*ret = best;
	return 1;
}

void expect_rewind(struct expect *e, size_t at)
{
	for (size_t i = 0; e && i < e->n; i++)
		e->patterns[i].from = MIN(e->patterns[i].from, at);
}
