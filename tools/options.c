/* SPDX-License-Identifier: Apache-2.0 */

/* Options by table; see options.h for what is taken. No globals: threads may parse at once. */

#include "tools/options.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/util.h"

#define MISTAKE(...) (snprintf(why, why_size, __VA_ARGS__), -1)

static bool takes_value(const struct option_def *d)
{
	return !d->flag;
}

/* "a,b": a bit for each word. */
static int set_bits(const struct option_def *d, const char *value, char *why, size_t why_size)
{
	for (const char *p = value;; p++) {
		size_t len = strcspn(p, ","), n = 0;

		while (d->words[n] &&
		       (strlen(d->words[n]) != len || memcmp(d->words[n], p, len) != 0))
			n++;
		if (!d->words[n]) {
			int at = snprintf(why, why_size, "--%s wants no '%.*s', but some of",
					  d->name, (int)MIN(len, 40U), p);

			for (n = 0; d->words[n] && at > 0 && (size_t)at < why_size; n++)
				at += snprintf(why + at, why_size - (size_t)at, "%s %s",
					       n ? "," : "", d->words[n]);
			return -1;
		}
		*d->bits |= 1U << n;
		p += len;
		if (!*p)
			return 0;
	}
}

int option_set(const struct option_def *d, const char *value, char *why, size_t why_size)
{
	char *end;

	if (d->text) {
		*d->text = value;
		return 0;
	}
	if (d->word) {
		if (!*value) /* as a variable that was not set leaves it */
			return MISTAKE("--%s wants a value", d->name);
		*d->word = value;
		return 0;
	}
	if (d->bits)
		return set_bits(d, value, why, why_size);

	errno = 0;
	if (d->number) {
		unsigned long long v = strtoull(value, &end, 10);

		if (errno || end == value || *end || value[0] == '-')
			return MISTAKE("--%s wants a number, not '%s'", d->name, value);
		*d->number = v;
	} else if (d->size) {
		static const char units[] = "KMGT";
		unsigned long long v = strtoull(value, &end, 10);
		const char *unit = end > value && *end ? strchr(units, toupper(*end)) : NULL;
		unsigned shift = unit ? 10 * (unsigned)(unit - units + 1) : 0;

		if (errno || end == value || end[unit ? 1 : 0] || value[0] == '-' ||
		    v > UINT64_MAX >> shift)
			return MISTAKE("--%s wants a size as 512M or 2G, not '%s'", d->name, value);
		*d->size = v << shift;
	} else {
		static const struct {
			char unit;
			double seconds;
		} units[] = { { 's', 1 }, { 'm', 60 }, { 'h', 3600 }, { 'd', 86400 } };
		double v = strtod(value, &end);

		for (size_t i = 0; i < ARRAY_SIZE(units) && end > value; i++)
			if (*end == units[i].unit && !end[1]) {
				v *= units[i].seconds;
				end++;
			}
		/* 1e9 seconds are 31 years; !(v >= 0) refuses NaN too */
		if (errno || end == value || *end || !(v >= 0) || v > 1e9)
			return MISTAKE("--%s wants seconds, or 5m, 2h, 7d, not '%s'", d->name,
				       value);
		*d->seconds = v;
	}

	return 0;
}

static const struct option_def *find_long(const struct option_def *defs, size_t n, const char *name,
					  size_t len)
{
	for (size_t i = 0; i < n; i++)
		if (strlen(defs[i].name) == len && memcmp(defs[i].name, name, len) == 0)
			return &defs[i];
	return NULL;
}

static const struct option_def *find_short(const struct option_def *defs, size_t n, char letter)
{
	for (size_t i = 0; i < n; i++)
		if (defs[i].letter && defs[i].letter == letter)
			return &defs[i];
	return NULL;
}

/* One "--name[=value]" at argv[i]; *used: how many words it took. */
static int parse_long(char **argv, int i, int argc, const struct option_def *defs, size_t n_defs,
		      int *used, char *why, size_t why_size)
{
	const char *name = argv[i] + 2, *equals = strchr(name, '=');
	size_t len = equals ? (size_t)(equals - name) : strlen(name);
	const struct option_def *d = find_long(defs, n_defs, name, len);

	*used = 1;
	if (!d)
		return MISTAKE("there is no option --%.*s", (int)len, name);

	if (!takes_value(d)) {
		if (equals)
			return MISTAKE("--%s takes no value", d->name);
		*d->flag = true;
		return 0;
	}

	if (equals)
		return option_set(d, equals + 1, why, why_size);
	if (i + 1 >= argc)
		return MISTAKE("--%s wants a value", d->name);
	*used = 2;
	return option_set(d, argv[i + 1], why, why_size);
}

/* One "-abcVALUE" at argv[i]. */
static int parse_short(char **argv, int i, int argc, const struct option_def *defs, size_t n_defs,
		       int *used, char *why, size_t why_size)
{
	*used = 1;
	for (const char *p = argv[i] + 1; *p; p++) {
		const struct option_def *d = find_short(defs, n_defs, *p);

		if (!d)
			return MISTAKE("there is no option -%c", *p);
		if (!takes_value(d)) {
			*d->flag = true;
			continue;
		}
		if (p[1])
			return option_set(d, p + 1, why, why_size);
		if (i + 1 >= argc)
			return MISTAKE("-%c wants a value", *p);
		*used = 2;
		return option_set(d, argv[i + 1], why, why_size);
	}

	return 0;
}

/* Moves the n words at argv[from] in front of those at argv[to] (to < from). */
static void move_down(char **argv, int from, int to, int n)
{
	for (int k = 0; k < n; k++) {
		char *word = argv[from + k];

		memmove(&argv[to + k + 1], &argv[to + k], sizeof(*argv) * (size_t)(from - to));
		argv[to + k] = word;
	}
}

int options_parse(int argc, char **argv, const struct option_def *defs, size_t n_defs,
		  unsigned flags, struct arguments *ret, char *why, size_t why_size)
{
	int first = 1; /* argv[first..i) are arguments met so far */
	int i = 1;

	while (i < argc) {
		char *word = argv[i];
		int used = 1, r = 0;

		if (word[0] != '-' || word[1] == 0) {
			if (flags & OPTIONS_LEADING)
				break;
			i++;
			continue;
		}
		if (strcmp(word, "--") == 0) {
			move_down(argv, i, first, 1);
			first++;
			break;
		}

		if (word[1] == '-')
			r = parse_long(argv, i, argc, defs, n_defs, &used, why, why_size);
		else
			r = parse_short(argv, i, argc, defs, n_defs, &used, why, why_size);
		if (r < 0)
			return r;

		move_down(argv, i, first, used);
		first += used;
		i += used;
	}

	ret->n = argc - first;
	ret->v = argv + first;
	return 0;
}

int arguments_count(const struct arguments *a, int min, int max, const char *verb,
		    const char *synopsis, char *why, size_t why_size)
{
	const bool many = max >= 0 && a->n > max;

	if (a->n >= min && !many)
		return 0;
	/* Of the word as much as leaves the rest its place. */
	(void)snprintf(why, why_size, "%s%.60s%swants: plyfs %s%s%s (try 'plyfs %.*s --help')",
		       many ? "'" : "", many ? a->v[max] : "", many ? "' is too much; " : "", verb,
		       *synopsis ? " " : "", synopsis, (int)strcspn(verb, " "), verb);
	return -1;
}
