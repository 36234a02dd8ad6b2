/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the clocks of the bench share: how they end in a failure, are told a count, print a lap. */

#include <errno.h>
#include <inttypes.h>

#include "store/base/util.h"

_Noreturn static inline void die(const char *what)
{
	fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, strerror(errno));
	exit(1);
}

static inline void print_lap(const char *name, uint64_t begin)
{
	printf("%s %" PRIu64 "\n", name, now_ns() - begin);
}

static inline uint64_t count_of(const char *text)
{
	char *end;
	uint64_t n = strtoull(text, &end, 10);

	if (*end || !n || n > 10000000) {
		fprintf(stderr, "%s: '%s' is no count\n", program_invocation_short_name, text);
		exit(2);
	}
	return n;
}
