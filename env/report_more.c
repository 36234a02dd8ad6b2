/* SPDX-License-Identifier: Apache-2.0 */

/* Readers of the output of Maven (surefire, failsafe), Gradle, RSpec and PHPUnit. */

#include <string.h>

#include "env/report.h"

/* ---- Maven ----
 *
 *     [ERROR] Tests run: 5, Failures: 1, Errors: 1, Skipped: 1, Time elapsed: 0.1 s <<< FAILURE! ..
 *     [INFO] Results:
 *     [INFO]
 *     [ERROR] Tests run: 6, Failures: 1, Errors: 1, Skipped: 1
 *
 * The first kind, one per class, is not counted; the second kind is a module's. Surefire before
 * 2.13 writes neither with a level in front; then the total follows "Results :".
 */

struct maven {
	struct tally t;
	bool after_results; /* the old form */
};

static const struct word maven_words[] = {
	{ "Tests run", TOTAL }, { "Failures", FAILED }, { "Errors", ERRORS },
	{ "Skipped", SKIPPED }, { "Flakes", OTHER },	 { NULL, OTHER },
};

static void maven_line(void *state, const char *line)
{
	struct maven *s = state;
	struct counts counts = { 0 };
	bool level = eat(&line, "[INFO] ") || eat(&line, "[ERROR] ") || eat(&line, "[WARNING] ");

	if (starts_with(line, "Tests run: ") && (level || s->after_results) &&
	    read_counts(line, line + strlen(line), ", ", ": ", maven_words, &counts) >= 3) {
		counts_rest(&counts, counts.n[TOTAL]);
		tally_add(&s->t, &counts);
		s->after_results = false;
	} else if (!level && strcmp(line, "Results :") == 0) {
		s->after_results = true;
	}
}

const struct reader read_maven = { "maven", LEAF, sizeof(struct maven), maven_line, NULL };

/* ---- Gradle ----
 *
 *                          (an empty line)
 *     4 tests completed, 2 failed, 1 skipped
 *
 * is all it says, one line for each project, and only when something failed: for the rest there
 * is its XML (test_report).
 */

struct gradle {
	struct tally t;
	bool after_blank;
};

static const struct word gradle_words[] = {
	{ "tests completed", TOTAL }, { "test completed", TOTAL }, { "failed", FAILED },
	{ "skipped", SKIPPED },	      { NULL, OTHER },
};

static void gradle_line(void *state, const char *line)
{
	struct gradle *s = state;
	struct counts counts = { 0 };

	if (s->after_blank && strstr(line, " completed, ") &&
	    read_counts(line, line + strlen(line), ", ", NULL, gradle_words, &counts)) {
		counts_rest(&counts, counts.n[TOTAL]);
		tally_add(&s->t, &counts);
	}
	s->after_blank = !*line;
}

const struct reader read_gradle = { "gradle", LEAF, sizeof(struct gradle), gradle_line, NULL };

/* ---- RSpec ----
 *
 *     Finished in 0.0058 seconds (files took 0.04569 seconds to load)
 *     6 examples, 1 failure, 3 pending, 1 error occurred outside of examples
 */

struct rspec {
	struct tally t;
	bool after_finished;
};

static const struct word rspec_words[] = {
	{ "examples", TOTAL },
	{ "example", TOTAL },
	{ "failures", FAILED },
	{ "failure", FAILED },
	{ "pending", SKIPPED },
	{ "error occurred outside of examples", ERRORS },
	{ "errors occurred outside of examples", ERRORS },
	{ NULL, OTHER },
};

static void rspec_line(void *state, const char *line)
{
	struct rspec *s = state;
	struct counts counts = { 0 };

	if (s->after_finished &&
	    read_counts(line, line + strlen(line), ", ", NULL, rspec_words, &counts)) {
		uint64_t errors = counts.n[ERRORS]; /* not among the examples */

		counts.n[ERRORS] = 0;
		counts_rest(&counts, counts.n[TOTAL]);
		counts.n[ERRORS] = errors;
		tally_add(&s->t, &counts);
	}
	s->after_finished = starts_with(line, "Finished in ");
}

const struct reader read_rspec = { "rspec", LEAF, sizeof(struct rspec), rspec_line, NULL };

/* ---- PHPUnit ----
 *
 *     PHPUnit 9.6.7 by Sebastian Bergmann and contributors.
 *     ...
 *     Time: 00:00.002, Memory: 4.00 MB
 *     ...
 *     OK (2 tests, 2 assertions)
 *
 * or
 *
 *     ERRORS!
 *     Tests: 8, Assertions: 4, Errors: 1, Failures: 1, Warnings: 1, Skipped: 1, Risky: 1.
 *
 * Incomplete and risky tests (they asserted nothing) say nothing about the code: skipped. A
 * warning is an outcome of that sort up to version 9, later something that a test has besides.
 */

struct phpunit {
	struct tally t;
	bool after_time, after_verdict;
	uint64_t version; /* the major one */
};

static const struct word phpunit_words[] = {
	{ "Tests", TOTAL },	   { "Assertions", OTHER }, { "Errors", ERRORS },
	{ "Failures", FAILED },	   { "Skipped", SKIPPED },  { "Incomplete", SKIPPED },
	{ "Risky", SKIPPED },	   { "*", OTHER }, /* deprecations and notices of many kinds */
	{ NULL, OTHER },
};
static const struct word phpunit_words_9[] = { { "Warnings", SKIPPED }, { "*", OTHER },
					       { NULL, OTHER } };

/* "OK (2 tests, 2 assertions)" */
static bool phpunit_ok(const char *p, uint64_t *ret)
{
	uint64_t n;

	return eat(&p, "OK (") && eat_number(&p, ret) &&
	       (eat(&p, " tests, ") || eat(&p, " test, ")) && eat_number(&p, &n) &&
	       (eat(&p, " assertions)") || eat(&p, " assertion)")) && !*p;
}

static void phpunit_line(void *state, const char *line)
{
	struct phpunit *s = state;
	struct counts counts = { 0 };
	const char *p = line, *end = line + strlen(line);

	if (eat(&p, "PHPUnit ") && eat_number(&p, &s->version) &&
	    strstr(p, " by Sebastian Bergmann")) {
		s->after_time = false;
	} else if (starts_with(line, "Time: ") && strstr(line, ", Memory: ")) {
		s->after_time = true;
	} else if (strcmp(line, "No tests executed!") == 0 && s->version) {
		s->t.seen = true;
	} else if (s->after_time && phpunit_ok(line, &counts.n[PASSED])) {
		tally_add(&s->t, &counts);
		s->after_time = false;
	} else if (s->after_verdict && starts_with(line, "Tests: ") && end[-1] == '.' &&
		   read_counts(line, end - 1, ", ", ": ", phpunit_words, &counts)) {
		if (s->version < 10)
			(void)read_counts(line, end - 1, ", ", ": ", phpunit_words_9, &counts);
		counts_rest(&counts, counts.n[TOTAL]);
		tally_add(&s->t, &counts);
		s->after_time = false;
	}
	s->after_verdict = s->after_time && (ends_with(line, "!") || ends_with(line, "!)"));
}

const struct reader read_phpunit = { "phpunit", LEAF, sizeof(struct phpunit), phpunit_line, NULL };
