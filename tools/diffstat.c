/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The table of `diff --stat`:
 *
 *   name | changed lines +++---
 *
 * Widths: the count takes what it needs; name and graph get what they want if the line fits, else
 * the graph is cut to 3/8 of the line (but 6 at least) and the name gets the rest, losing its
 * start.
 */

#include "tools/diffstat.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/os.h"
#include "store/base/util.h"

#define GAPS 6	    /* blanks, bar, and the last column that stays free */
#define GRAPH_MIN 6 /* 3/8 of the 16 columns that name and graph get at least */
#define NAME_GRAPH_MIN 16

void diffstat_release(struct diffstat *d)
{
	for (size_t i = 0; i < d->n; i++)
		free(d->lines[i].name);
	free(d->lines);
}

static bool wants_quotes(const char *s)
{
	for (const unsigned char *p = (const unsigned char *)s; *p; p++)
		if (*p < ' ' || *p >= 0x7f || *p == '"' || *p == '\\')
			return true;
	return false;
}

static void print_escaped(FILE *out, const char *s)
{
	static const char escaped[] = "\a\b\t\n\v\f\r\"\\", letters[] = "abtnvfr\"\\";

	for (const unsigned char *p = (const unsigned char *)s; *p; p++) {
		const char *e = strchr(escaped, *p);

		if (e)
			fprintf(out, "\\%c", letters[e - escaped]);
		else if (*p < ' ' || *p >= 0x7f)
			fprintf(out, "\\%03o", *p);
		else
			fputc(*p, out);
	}
}

void print_quoted(FILE *out, const char *path, const char *tail)
{
	if (!wants_quotes(path)) {
		fprintf(out, "%s%s", path, tail);
		return;
	}
	fputc('"', out);
	print_escaped(out, path);
	fprintf(out, "%s\"", tail);
}

/* "a/{b => c}/d": what both share at slashes is written once. */
static void print_rename(FILE *out, const char *from, const char *to)
{
	size_t n_from = strlen(from), n_to = strlen(to), prefix = 0, suffix = 0, shortest;

	if (wants_quotes(from) || wants_quotes(to)) {
		print_quoted(out, from, "");
		fputs(" => ", out);
		print_quoted(out, to, "");
		return;
	}
	for (size_t i = 0; from[i] && from[i] == to[i]; i++)
		if (from[i] == '/')
			prefix = i + 1;

	/* The slash that ends the prefix may begin the suffix, too: "a/{ => x}/b". */
	shortest = MIN(n_from, n_to) - (prefix ? prefix - 1 : 0);
	for (size_t i = 1; i <= shortest && from[n_from - i] == to[n_to - i]; i++)
		if (from[n_from - i] == '/')
			suffix = i;

	if (prefix + suffix > 0)
		fprintf(out, "%.*s{", (int)prefix, from);
	fprintf(out, "%.*s => %.*s", n_from > prefix + suffix ? (int)(n_from - prefix - suffix) : 0,
		from + prefix, n_to > prefix + suffix ? (int)(n_to - prefix - suffix) : 0,
		to + prefix);
	if (prefix + suffix > 0)
		fprintf(out, "}%s", from + n_from - suffix);
}

int diffstat_add(struct diffstat *d, const char *old_path, const char *new_path, uint64_t added,
		 uint64_t removed, bool binary)
{
	_cleanup_free_ char *name = NULL;
	size_t len;
	FILE *f;
	int r;

	r = os_grow(&d->lines, &d->cap, d->n + 1, sizeof(*d->lines));
	if (r < 0)
		return r;
	f = open_memstream(&name, &len);
	if (!f)
		return -ENOMEM;
	if (strcmp(old_path, new_path) == 0)
		print_quoted(f, new_path, "");
	else
		print_rename(f, old_path, new_path);
	if (fclose(f) != 0 || !name)
		return -ENOMEM;
	d->lines[d->n++] = (struct diffstat_line){
		.name = TAKE_PTR(name),
		.added = added,
		.removed = removed,
		.binary = binary,
	};
	return 0;
}

static unsigned digits(uint64_t n)
{
	unsigned d = 1;

	for (; n >= 10; n /= 10)
		d++;
	return d;
}

/* n of max on a scale of width: 0 stays 0, anything else shows. */
static uint64_t scale(uint64_t n, uint64_t width, uint64_t max)
{
	return n == 0 ? 0 : 1 + (uint64_t)((unsigned __int128)n * (width - 1) / max);
}

static void print_graph(FILE *out, const struct diffstat_line *l, uint64_t width, uint64_t max)
{
	uint64_t plus = l->added, minus = l->removed;

	if (width <= max) {
		uint64_t total = scale(plus + minus, width, max);

		if (total < 2 && plus && minus)
			total = 2; /* both show */
		if (plus < minus) {
			plus = scale(plus, width, max);
			minus = total - plus;
		} else {
			minus = scale(minus, width, max);
			plus = total - minus;
		}
	}
	for (; plus > 0; plus--)
		fputc('+', out);
	for (; minus > 0; minus--)
		fputc('-', out);
}

void diffstat_print(const struct diffstat *d, FILE *out, unsigned columns)
{
	uint64_t width = columns, name_width = 0, graph_width, max = 0, plus = 0, minus = 0;
	unsigned count_width = 1, binary_width = 0;

	if (d->n == 0)
		return;
	for (size_t i = 0; i < d->n; i++) {
		const struct diffstat_line *l = &d->lines[i];

		name_width = MAX(name_width, strlen(l->name));
		if (l->binary) {
			count_width = MAX(count_width, 3u); /* "Bin" */
			binary_width =
				MAX(binary_width, (unsigned)strlen("Bin  ->  bytes") +
							  digits(l->added) + digits(l->removed));
			continue;
		}
		max = MAX(max, l->added + l->removed);
		plus += l->added;
		minus += l->removed;
	}
	count_width = MAX(count_width, digits(max));
	width = MAX(width, (uint64_t)NAME_GRAPH_MIN + GAPS + count_width);
	graph_width = max + 4 > binary_width ? max : binary_width - 4;
	if (name_width + count_width + GAPS + graph_width > width) {
		uint64_t most = width * 3 / 8;

		most = most > count_width + GAPS + GRAPH_MIN ? most - count_width - GAPS
							     : GRAPH_MIN;
		graph_width = MIN(graph_width, most);
		if (name_width > width - count_width - GAPS - graph_width)
			name_width = width - count_width - GAPS - graph_width;
		else
			graph_width = width - count_width - GAPS - name_width;
	}

	for (size_t i = 0; i < d->n; i++) {
		const struct diffstat_line *l = &d->lines[i];
		const char *name = l->name, *dots = "";
		size_t len = strlen(name);

		if (len > name_width) { /* its end tells more; from a slash on, if there is one */
			const char *slash;

			dots = "...";
			name += len - (name_width - 3);
			slash = strchr(name, '/');
			name = slash ? slash : name;
		}
		len = strlen(dots) + strlen(name);
		fprintf(out, " %s%s%*s |", dots, name, (int)(name_width - len), "");
		if (l->binary) {
			fprintf(out, " %*s", (int)count_width, "Bin");
			if (l->added || l->removed)
				fprintf(out, " %" PRIu64 " -> %" PRIu64 " bytes", l->removed,
					l->added);
		} else {
			fprintf(out, " %*" PRIu64 "%s", (int)count_width, l->added + l->removed,
				l->added + l->removed ? " " : "");
			print_graph(out, l, graph_width, max);
		}
		fputc('\n', out);
	}
	fprintf(out, " %zu file%s changed", d->n, plural(d->n));
	if (plus || !minus)
		fprintf(out, ", %" PRIu64 " insertion%s(+)", plus, plural(plus));
	if (minus || !plus)
		fprintf(out, ", %" PRIu64 " deletion%s(-)", minus, plural(minus));
	fputc('\n', out);
}
