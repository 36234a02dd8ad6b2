/* SPDX-License-Identifier: Apache-2.0 */

/* Readers of the output of jest, vitest, mocha and node's own test runner. */

#include <stdlib.h>
#include <string.h>

#include "env/report.h"

/* ---- jest ----
 *
 *     Test Suites: 2 failed, 1 passed, 3 total
 *     Tests:       1 failed, 1 skipped, 1 todo, 3 passed, 6 total
 *
 * A file that could not be loaded has no tests; it is a failed suite, and an error to us. So is
 * code that ends jest, when there is no summary behind this:
 *
 *       ●  process.exit called with "0"
 */

struct jest {
	struct tally t;
	bool after_suites;
	bool exited;	 /* and there was no summary since */
	uint64_t broken; /* files */
};

static const struct word jest_words[] = {
	{ "passed", PASSED },  { "failed", FAILED }, { "skipped", SKIPPED },
	{ "pending", SKIPPED }, { "todo", SKIPPED },  { "total", TOTAL },
	{ NULL, OTHER },
};

static bool jest_counts(const char *p, const char *label, struct counts *ret)
{
	if (!eat(&p, label))
		return false;
	eat_spaces(&p);
	*ret = (struct counts){ 0 };
	return read_counts(p, p + strlen(p), ", ", NULL, jest_words, ret) &&
	       counts_sum(ret) == ret->n[TOTAL];
}

static void jest_line(void *state, const char *line)
{
	struct jest *s = state;
	struct counts counts;

	if (s->after_suites && jest_counts(line, "Tests:", &counts)) {
		counts.n[ERRORS] = s->broken;
		tally_add(&s->t, &counts);
		s->broken = 0;
		s->exited = false;
	}
	s->after_suites = jest_counts(line, "Test Suites:", &counts);
	if (strcmp(line, "  \xe2\x97\x8f Test suite failed to run") == 0)
		s->broken++;
	else if (strcmp(line, "Summary of all failing tests") == 0)
		s->broken = 0; /* they are all said again */
	else if (starts_with(line, "No tests found, exiting with code "))
		s->t.seen = true;
	else if (starts_with(line, "  \xe2\x97\x8f  process.exit called with \""))
		s->exited = true;
}

static void jest_end(void *state)
{
	struct jest *s = state;

	if (s->exited)
		tally_add(&s->t, &(struct counts){ .n[ERRORS] = 1 });
}

const struct reader read_jest = { "jest", LEAF, sizeof(struct jest), jest_line, jest_end };

/* ---- vitest ----
 *
 *      Test Files  2 failed | 1 passed (3)
 *           Tests  1 failed | 4 passed | 1 skipped | 1 todo (7)
 *          Errors  1 error
 *
 * and, elsewhere, a banner "Failed Suites 1" for files that could not be loaded.
 */

struct vitest {
	struct tally t;
	bool after_files, after_tests;
};

static const struct word vitest_words[] = {
	{ "passed", PASSED }, { "failed", FAILED },	    { "skipped", SKIPPED },
	{ "todo", SKIPPED },  { "expected fail", SKIPPED }, { NULL, OTHER },
};

/* "1 failed | 4 passed (7)", "no tests" */
static bool vitest_counts(const char *p, const char *label, struct counts *ret)
{
	const char *end;
	uint64_t total;

	*ret = (struct counts){ 0 };
	eat_spaces(&p);
	if (!eat(&p, label) || !eat(&p, "  "))
		return false;
	if (strcmp(p, "no tests") == 0)
		return true;
	end = strstr(p, " (");
	if (!end || !read_counts(p, end, " | ", NULL, vitest_words, ret))
		return false;
	p = end + strlen(" (");
	return eat_number(&p, &total) && strcmp(p, ")") == 0 && counts_sum(ret) == total;
}

static void vitest_line(void *state, const char *line)
{
	struct vitest *s = state;
	struct counts counts;
	const char *p = line;
	uint64_t n;

	if (s->after_files && vitest_counts(line, "Tests", &counts)) {
		tally_add(&s->t, &counts);
		s->after_files = false;
		s->after_tests = true;
		return;
	}
	eat_spaces(&p);
	if (s->after_tests && eat(&p, "Errors  ") && eat_number(&p, &n)) {
		count(&s->t.sum.n[ERRORS], n);
	} else {
		/* A ruler on both sides. */
		p = strstr(line, "\xe2\x8e\xaf Failed Suites ");
		if (p && eat(&p, "\xe2\x8e\xaf Failed Suites ") && eat_number(&p, &n) &&
		    starts_with(p, " \xe2\x8e\xaf"))
			count(&s->t.sum.n[ERRORS], n);
	}
	s->after_tests = false;
	s->after_files = vitest_counts(line, "Test Files", &counts);
	if (starts_with(line, "No test files found, exiting with code "))
		s->t.seen = true;
}

const struct reader read_vitest = { "vitest", LEAF, sizeof(struct vitest), vitest_line, NULL };

/* ---- mocha ----
 *
 *                             (an empty line)
 *       2 passing (3ms)
 *       2 pending
 *       2 failing
 *                             (an empty line)
 */

struct mocha {
	struct tally t;
	bool after_blank, inside;
	struct counts counts;
};

/* "  2 WORD", and an argument in parentheses where there may be one */
static bool mocha_count(const char *p, const char *word, uint64_t *ret)
{
	if (!eat(&p, "  ") || !eat_number(&p, ret) || !eat(&p, " ") || !eat(&p, word))
		return false;
	return !*p || (starts_with(p, " (") && ends_with(p, ")"));
}

static void mocha_close(void *state)
{
	struct mocha *s = state;

	if (s->inside)
		tally_add(&s->t, &s->counts);
	s->inside = false;
}

static void mocha_line(void *state, const char *line)
{
	struct mocha *s = state;
	bool after_blank = s->after_blank;
	uint64_t n;

	s->after_blank = !*line;
	if (s->inside && mocha_count(line, "pending", &n))
		s->counts.n[SKIPPED] = n;
	else if (s->inside && mocha_count(line, "failing", &n))
		s->counts.n[FAILED] = n;
	else if (s->inside && !*line)
		mocha_close(s);
	else
		s->inside = false;
	if (after_blank && mocha_count(line, "passing", &n)) {
		s->counts = (struct counts){ .n[PASSED] = n };
		s->inside = true;
	}
}

const struct reader read_mocha = { "mocha", LEAF, sizeof(struct mocha), mocha_line, mocha_close };

/* ---- node --test ----
 *
 *     # tests 7              ("ℹ tests 7" in the other form)
 *     # suites 0             (from node 20 on)
 *     # pass 2
 *     # fail 3
 *     # cancelled 0
 *     # skipped 1
 *     # todo 1
 *     # duration_ms 79.2
 */

struct node {
	struct tally t;
	size_t next; /* index into node_labels of the line to come; 0: outside */
	bool info;   /* the form with ℹ */
	struct counts counts;
};

static const struct {
	const char *label;
	enum slot slot;
} node_labels[] = {
	{ "tests ", TOTAL },	  { "suites ", OTHER },	   { "pass ", PASSED },
	{ "fail ", FAILED },	  { "cancelled ", ERRORS }, { "skipped ", SKIPPED },
	{ "todo ", SKIPPED },	  { "duration_ms ", OTHER },
};
#define NODE_SUITES 1
#define NODE_LAST (sizeof(node_labels) / sizeof(node_labels[0]) - 1)

static void node_line(void *state, const char *line)
{
	struct node *s = state;
	const char *p = line;
	bool info = eat(&p, "\xe2\x84\xb9 ");
	size_t next = s->next;
	uint64_t n;

	s->next = 0;
	if (!info && !eat(&p, "# "))
		return;
	if (starts_with(p, node_labels[0].label)) {
		next = 0;
		s->counts = (struct counts){ 0 };
		s->info = info;
	} else if (next == NODE_SUITES && !starts_with(p, node_labels[next].label)) {
		next++;
	}
	if (info != s->info || (next == 0 && !starts_with(p, node_labels[0].label)) ||
	    !eat(&p, node_labels[next].label) || !eat_number(&p, &n))
		return;
	count(&s->counts.n[node_labels[next].slot], n);
	if (next == NODE_LAST)
		tally_add(&s->t, &s->counts);
	else
		s->next = *p ? 0 : next + 1;
}

const struct reader read_node = { "node", LEAF, sizeof(struct node), node_line, NULL };
