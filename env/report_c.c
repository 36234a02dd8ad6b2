/* SPDX-License-Identifier: Apache-2.0 */

/* Readers of the output of Check, googletest, ctest and meson test. */

#include <string.h>

#include "env/report.h"

/* ---- Check ----
 *
 *     50%: Checks: 4, Failures: 1, Errors: 1
 *
 * once for each program.
 */

struct check {
	struct tally t;
};

static const struct word check_words[] = {
	{ "Checks", TOTAL }, { "Failures", FAILED }, { "Errors", ERRORS }, { NULL, OTHER },
};

static void check_line(void *state, const char *line)
{
	struct check *s = state;
	struct counts counts = { 0 };
	uint64_t percent;

	if (!eat_number(&line, &percent) || !eat(&line, "%: ") || !starts_with(line, "Checks: ") ||
	    read_counts(line, line + strlen(line), ", ", ": ", check_words, &counts) != 3)
		return;
	counts_rest(&counts, counts.n[TOTAL]);
	tally_add(&s->t, &counts);
}

const struct reader read_check = { "check", LEAF, sizeof(struct check), check_line, NULL };

/* ---- googletest ----
 *
 *     [==========] Running 4 tests from 2 test suites.
 *     [       OK ] A.ok (0 ms)
 *     [  FAILED  ] A.bad (0 ms)
 *     [==========] 4 tests from 2 test suites ran. (0 ms total)
 *     [  PASSED  ] 2 tests.
 *     [  SKIPPED ] 1 test, listed below:
 *     [  FAILED  ] 1 test, listed below:
 *       YOU HAVE 1 DISABLED TEST
 *
 * A program that never says how many ran has crashed in one of them: the tests that had ended
 * count, and one error.
 */

struct gtest {
	struct tally t;
	bool running, closing;
	struct counts ended; /* of the tests, while they run */
};

static void gtest_end(void *state)
{
	struct gtest *s = state;

	if (s->running) {
		s->ended.n[ERRORS] = 1;
		tally_add(&s->t, &s->ended);
	}
	s->running = s->closing = false;
}

/* "4 tests from 2 test suites", "1 test from 1 test case" */
static bool gtest_total(const char **p)
{
	uint64_t n;

	return eat_number(p, &n) && (eat(p, " tests from ") || eat(p, " test from ")) &&
	       eat_number(p, &n) && (eat(p, " test suite") || eat(p, " test case"));
}

static bool gtest_tests(const char *p, uint64_t *ret)
{
	return eat_number(&p, ret) && (eat(&p, " tests") || eat(&p, " test")) &&
	       (strcmp(p, ".") == 0 || strcmp(p, ", listed below:") == 0);
}

static void gtest_line(void *state, const char *line)
{
	struct gtest *s = state;
	const char *p = line;
	uint64_t n;

	if (eat(&p, "[==========] Running ") && gtest_total(&p)) {
		gtest_end(s);
		s->ended = (struct counts){ 0 };
		s->running = true;
	} else if (p = line, eat(&p, "[==========] ") && gtest_total(&p) && strstr(p, " ran.")) {
		s->running = false;
		s->closing = s->t.seen = true;
	} else if (s->running && ends_with(line, " ms)")) {
		s->ended.n[PASSED] += starts_with(line, "[       OK ] ");
		s->ended.n[FAILED] += starts_with(line, "[  FAILED  ] ");
		s->ended.n[SKIPPED] += starts_with(line, "[  SKIPPED ] ");
	} else if (s->closing) {
		p = line;
		if (eat(&p, "[  PASSED  ] ") && gtest_tests(p, &n))
			count(&s->t.sum.n[PASSED], n);
		else if (p = line, eat(&p, "[  SKIPPED ] ") && gtest_tests(p, &n))
			count(&s->t.sum.n[SKIPPED], n);
		else if (p = line, eat(&p, "[  FAILED  ] ") && gtest_tests(p, &n))
			count(&s->t.sum.n[FAILED], n);
		else if (p = line, eat(&p, "  YOU HAVE ") && eat_number(&p, &n) &&
					   eat(&p, " DISABLED TEST"))
			count(&s->t.sum.n[SKIPPED], n);
	}
}

const struct reader read_gtest = { "gtest", LEAF, sizeof(struct gtest), gtest_line, gtest_end };

/* ---- ctest ----
 *
 *     Test project /src/build
 *     50% tests passed, 3 tests failed out of 6
 *
 *     Total Test time (real) =   1.01 sec
 *
 *     The following tests did not run:
 *             4 - skip (Skipped)
 *             5 - off (Disabled)
 *
 *     The following tests FAILED:
 *             3 - bad (Failed)
 *             6 - gone (Not Run)
 *
 * Skipped tests are in the first line's total (among the passed), disabled ones are not. A test
 * that failed otherwise than by its exit code (not there, timeout, crash) is an error.
 */

struct ctest {
	struct tally t;
	bool has_total;
	uint64_t failed, total;
	enum { ELSEWHERE, TIMED, NOT_RUN, FAILURES } at;
};

static bool ctest_total(const char *p, uint64_t *ret_failed, uint64_t *ret_total)
{
	uint64_t percent;

	return eat_number(&p, &percent) && eat(&p, "% tests passed, ") &&
	       eat_number(&p, ret_failed) &&
	       (eat(&p, " tests failed out of ") || eat(&p, " test failed out of ")) &&
	       eat_number(&p, ret_total) && !*p;
}

static void move(struct counts *c, enum slot from, enum slot to)
{
	if (c->n[from]) {
		c->n[from]--;
		c->n[to]++;
	}
}

static void ctest_line(void *state, const char *line)
{
	struct ctest *s = state;
	struct counts counts = { 0 };

	if (s->at >= NOT_RUN && *line == '\t') {
		if (s->at == FAILURES && !ends_with(line, "(Failed)"))
			move(&s->t.sum, FAILED, ERRORS);
		else if (s->at == NOT_RUN && ends_with(line, "(Skipped)"))
			move(&s->t.sum, PASSED, SKIPPED);
		else if (s->at == NOT_RUN)
			s->t.sum.n[SKIPPED]++;
		return;
	}
	if (s->at >= NOT_RUN)
		s->at = TIMED;
	if (starts_with(line, "Test project /")) {
		s->t.open = true;
		s->has_total = false;
		s->at = ELSEWHERE;
	} else if (s->at == TIMED && strcmp(line, "The following tests did not run:") == 0) {
		s->at = NOT_RUN;
	} else if (s->at == TIMED && strcmp(line, "The following tests FAILED:") == 0) {
		s->at = FAILURES;
	} else if (strcmp(line, "No tests were found!!!") == 0) {
		s->t.open = false;
		s->t.seen = true;
	} else if (ctest_total(line, &s->failed, &s->total)) {
		s->has_total = true;
	} else if (s->has_total && starts_with(line, "Total Test time (real) =")) {
		counts.n[FAILED] = s->failed;
		counts_rest(&counts, s->total);
		tally_add(&s->t, &counts);
		s->t.open = s->has_total = false;
		s->at = TIMED;
	}
}

const struct reader read_ctest = { "ctest", OUTER, sizeof(struct ctest), ctest_line, NULL };

/* ---- meson test ----
 *
 *      1/10 ok    OK              0.01s
 *     ...
 *     Ok:                 3
 *     Expected Fail:      1
 *     Fail:               3
 *     Unexpected Pass:    1
 *     Skipped:            1
 *     Timeout:            1
 *
 * Newer versions leave out zeros. A test that is meant to fail and does has passed.
 */

struct meson {
	struct tally t;
	bool inside, has_fail;
	struct counts counts;
};

static const struct {
	const char *label;
	enum slot slot;
} meson_labels[] = {
	{ "Ok:", PASSED },	      { "Expected Fail:", PASSED }, { "Fail:", FAILED },
	{ "Unexpected Pass:", FAILED }, { "Skipped:", SKIPPED },	    { "Timeout:", ERRORS },
	{ "Ignored:", SKIPPED },
};

static void meson_close(void *state)
{
	struct meson *s = state;

	if (s->inside && s->has_fail) {
		tally_add(&s->t, &s->counts);
		s->t.open = false;
	}
	s->inside = false;
}

static bool meson_count(struct meson *s, const char *line)
{
	for (size_t i = 0; i < sizeof(meson_labels) / sizeof(meson_labels[0]); i++) {
		const char *p = line;
		uint64_t n;

		if (!eat(&p, meson_labels[i].label))
			continue;
		eat_spaces(&p);
		if (!eat_number(&p, &n) || *p)
			return false;
		if (i == 0) {
			s->inside = true;
			s->has_fail = false;
			s->counts = (struct counts){ 0 };
		}
		if (!s->inside)
			return false;
		s->has_fail |= meson_labels[i].slot == FAILED;
		count(&s->counts.n[meson_labels[i].slot], n);
		return true;
	}
	return false;
}

/* " 3/10 m / bad       FAIL            0.01s" */
static bool meson_test(const char *line)
{
	static const char *const results[] = { " OK ", " FAIL ", " SKIP ", " ERROR ",
					       " TIMEOUT ", " RUNNING", " EXPECTEDFAIL ",
					       " UNEXPECTEDPASS ", " INTERRUPT " };
	uint64_t n;

	eat_spaces(&line);
	if (!eat_number(&line, &n) || !eat(&line, "/") || !eat_number(&line, &n) || *line != ' ')
		return false;
	for (size_t i = 0; i < sizeof(results) / sizeof(results[0]); i++)
		if (strstr(line, results[i]))
			return true;
	return false;
}

static void meson_line(void *state, const char *line)
{
	struct meson *s = state;

	if (meson_count(s, line))
		return;
	meson_close(s);
	if (!s->t.open && meson_test(line))
		s->t.open = true;
	else if (strcmp(line, "No suitable tests defined.") == 0 ||
		 strcmp(line, "No tests defined.") == 0)
		s->t.seen = true;
}

const struct reader read_meson = { "meson", OUTER, sizeof(struct meson), meson_line,
				   meson_close };
