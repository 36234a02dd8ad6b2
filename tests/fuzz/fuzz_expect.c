/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Patterns from a client and output that grows: lines of patterns up to an empty line, then the
 * output, in pieces of so many bytes as the first byte says (but no more than PIECES). What is seen
 * lies within what came; what takes for ever or all memory is the fuzzer's to notice (-timeout,
 * -malloc_limit_mb, -rss_limit_mb).
 */

#include <stdlib.h>
#include <string.h>

#include "env/expect.h"
#include "store/base/util.h"
#include "tests/fuzz/fuzz.h"

#define PATTERNS_MAX 8
#define PIECES 16 /* each may cost a search that is given up */

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	return 0;
}

static void scan(struct expect *e, size_t n_patterns, const char *data, size_t len, size_t step)
{
	const size_t least = (len + PIECES - 1) / PIECES;
	struct expect_match match;
	int r = 0;

	step = step < least ? least : step;
	for (size_t n = MIN(step, len);; n = MIN(n + step, len)) {
		char *seen = malloc(n ? n : 1); /* of just this size, and elsewhere each time */

		MUST(seen);
		memcpy(seen, data, n);
		r = expect_scan(e, seen, n, &match);
		if (r > 0) {
			MUST(match.index >= 0 && (size_t)match.index < n_patterns);
			MUST(match.start <= match.end && match.end <= n);
		}
		free(seen);
		if (r != 0 || n == len)
			break;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *copy = size > 1 ? strndup((const char *)data + 1, size - 1) : NULL;
	const char *patterns[PATTERNS_MAX], *end;
	struct expect *e;
	size_t n = 0;
	char *line;

	if (!copy)
		return 0;
	end = (const char *)data + size;
	for (line = copy; *line && *line != '\n' && n < PATTERNS_MAX;) {
		char *newline = strchr(line, '\n');

		patterns[n++] = line;
		line = newline ? newline + 1 : strchr(line, '\0');
		if (newline)
			*newline = '\0';
	}
	if (n > 0 && expect_new(patterns, n, &e) == 0) {
		const char *output = (const char *)data + 1 + (line - copy);

		output += *line == '\n';
		scan(e, n, output, (size_t)(end - output), 1 + data[0]);
		expect_free(e);
	}
	free(copy);
	return 0;
}
