/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Command line options by table. The daemon runs verbs of several clients at once, and getopt_long
 * keeps its state in globals; so the program has this parser, used by client and daemon alike.
 *
 * Taken: --name, --name=VALUE, --name VALUE, -n, -nVALUE, -n VALUE, --; options may stand after
 * arguments, unless OPTIONS_LEADING.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct option_def {
	const char *name; /* without dashes */
	char letter;	  /* 0: none */
	/* Exactly one of these: where to put what was found. */
	bool *flag;
	const char **text; /* lent: points into argv */
	const char **word; /* the same, of what has a name: "" is no value */
	uint64_t *number;  /* decimal */
	uint64_t *size;	   /* bytes; K, M, G or T behind it are powers of 1024 */
	double *seconds;   /* decimal with fraction, not negative; s, m, h, d as in sleep(1) */
	uint32_t *bits;	   /* words with commas between; the nth of `words` sets the nth bit */
	const char *const *words; /* NULL-terminated */
};

enum options_flags {
	OPTIONS_LEADING = 1, /* the first argument ends the options (run COMMAND...) */
};

struct arguments {
	int n;
	char **v; /* points into the argv given, which was permuted; NULL-terminated */
};

/*
 * Parses argv[1..argc), which is permuted so that arguments come last; argv[argc] is NULL.
 * 0, or -1 with one line (no newline) that names the mistake in why.
 */
int options_parse(int argc, char **argv, const struct option_def *defs, size_t n_defs,
		  unsigned flags, struct arguments *ret, char *why, size_t why_size);

/*
 * Are there min to max (< 0: any number of) arguments? 0, or -1 and one line that names what is too
 * much, what the verb wants, and who says more.
 */
int arguments_count(const struct arguments *a, int min, int max, const char *verb,
		    const char *synopsis, char *why, size_t why_size);

/* For what knows no fractions of seconds. */
static inline uint64_t whole_seconds(double seconds)
{
	uint64_t whole = (uint64_t)seconds;

	return whole + ((double)whole < seconds);
}

/* Sets one that takes a value from elsewhere than argv; 0 or -1 as above. */
int option_set(const struct option_def *d, const char *value, char *why, size_t why_size);
