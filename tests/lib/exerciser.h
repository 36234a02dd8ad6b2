/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the exercisers share: chance that a seed repeats, and the numbers of their command lines. */

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t random_state; /* the seed, at first */

/* splitmix64, for which any seed will do. 0 where nothing is below. */
static inline uint64_t chance(uint64_t below)
{
	uint64_t z = random_state += 0x9e3779b97f4a7c15u;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return below ? (z ^ (z >> 31)) % below : 0;
}

static inline uint64_t number(const char *text)
{
	char *end;
	uint64_t n = strtoull(text, &end, 0);

	if (!*text || *end) {
		fprintf(stderr, "%s: '%s' is not a number\n", program_invocation_short_name, text);
		exit(2);
	}
	return n;
}
