/* SPDX-License-Identifier: Apache-2.0 */

/* Readers of pytest's and unittest's output. */

#include <string.h>

#include "env/report.h"

/* ---- pytest ----
 *
 *     ============================= test session starts ==============================
 *     test_m.py .F                                                             [100%]
 *     =================================== FAILURES ===================================
 *     = 2 failed, 4 passed, 1 skipped, 1 xfailed, 1 xpassed, 1 warning, 1 error in 0.02s =
 *
 * With -q there is neither the first line nor the '=' around the last. The last such line before
 * the next session is the one that counts; with -q a session is seen by its percentages, which
 * begin anew. (With -qq there are no counts at all.) An expected failure is no test that passed;
 * pytest's own XML has it among the skipped, and an unexpected pass among the passed.
 *
 * What it was asked for and did not find, it tells before or behind "no tests ran" (on stderr); of
 * arguments it does not know, or a conftest.py that fails, there is no other line:
 *
 *     ERROR: file or directory not found: nosuch
 *     ERROR: not found: /w/test_m.py::nosuch
 *     ERROR: usage: pytest [options] [file_or_dir] [file_or_dir] [...]
 *     ImportError while loading conftest '/w/conftest.py'.
 *
 * Tests may never come: one has ended the session (pytest.exit), or the program, without a closing
 * line. Behind the first two of these there is one, which knows of no error:
 *
 *     !!!!!!!!!!!!!!!!!!!!!!! _pytest.outcomes.Exit: bye !!!!!!!!!!!!!!!!!!!!!!!
 *     INTERNALERROR> RuntimeError: hook
 *     ============================= test session starts ==============================
 */

struct pytest {
	struct tally t;
	struct counts last; /* the closing line that was seen last in this session */
	bool has_last;
	bool in_session; /* its first line was seen */
	bool reporting;	 /* it shows its failures: captured output, too, perhaps of a pytest */
	bool not_found;	 /* something it was asked for */
	bool gave_up;	 /* it has said that it does not go on */
	uint64_t begun;	 /* sessions whose first line was seen, and not yet a closing one */
	bool has_percent;
	bool quiet; /* its percentages are -q's: no file's name in front */
	uint64_t percent;
};

static const struct word pytest_words[] = {
	{ "passed", PASSED },	  { "failed", FAILED },	 { "error", ERRORS },
	{ "errors", ERRORS },	  { "skipped", SKIPPED }, { "xfailed", SKIPPED },
	{ "xpassed", PASSED },	  { "warning", OTHER },	 { "warnings", OTHER },
	{ "deselected", OTHER },  { "*", OTHER }, /* plugins have words, too */
	{ NULL, OTHER },
};

static void pytest_close(void *state)
{
	struct pytest *s = state;

	if (s->has_last) {
		if ((s->not_found && counts_sum(&s->last) == 0) ||
		    (s->gave_up && s->last.n[FAILED] == 0 && s->last.n[ERRORS] == 0))
			s->last.n[ERRORS] = 1;
		s->not_found = false;
		tally_add(&s->t, &s->last);
	}
	s->gave_up = false;
	s->has_last = s->in_session = s->reporting = s->has_percent = s->quiet = false;
}

/* "LIST in 0.02s", "LIST in 61.20s (0:01:01)", "no tests ran in 0.00s"; older: "in 0.02 seconds" */
static bool pytest_closing(const char *line, bool *ret_banner, struct counts *ret)
{
	const char *p = line, *in = NULL, *q;
	uint64_t n;

	*ret_banner = eat_run(&p, '=', 1) && eat(&p, " ");
	if (p != line && !*ret_banner)
		return false;
	for (q = p; (q = strstr(q, " in ")); q++)
		in = q;
	if (!in)
		return false;
	*ret = (struct counts){ 0 };
	q = p;
	if ((!eat(&q, "no tests ran") || q != in) &&
	    !read_counts(p, in, ", ", NULL, pytest_words, ret))
		return false;
	in += strlen(" in ");
	if (!eat_number(&in, &n) || !eat(&in, ".") || !eat_number(&in, &n) ||
	    (!eat(&in, "s") && !eat(&in, " seconds")))
		return false;
	if (eat(&in, " (")) {
		in += strcspn(in, ")");
		if (!eat(&in, ")"))
			return false;
	}
	return *ret_banner ? eat(&in, " ") && eat_run(&in, '=', 1) && !*in : !*in;
}

/* "....  [ 42%]", "test_m.py ....  [ 42%]" */
static bool pytest_percent(const char *line, uint64_t *ret)
{
	const char *p = strrchr(line, '[');

	if (!p)
		return false;
	p++;
	eat_spaces(&p);
	return eat_number(&p, ret) && strcmp(p, "%]") == 0;
}

static bool pytest_could_not_begin(const char *line)
{
	return (starts_with(line, "ERROR: usage: ") && strstr(line, " [file_or_dir] ")) ||
	       (starts_with(line, "ImportError while loading conftest '") && ends_with(line, "'."));
}

/* "Interrupted: stopping after 1 failures" is one of these, too: it has an error, or a failure. */
static bool pytest_gives_up(const char *p)
{
	return starts_with(p, "INTERNALERROR> ") ||
	       (eat_run(&p, '!', 1) &&
		(starts_with(p, " _pytest.outcomes.Exit: ") || starts_with(p, " Interrupted: ") ||
		 starts_with(p, " KeyboardInterrupt !")));
}

/* "=== 3 tests collected in 0.01s ===": it was not asked to run them. */
static bool pytest_collected(const char *p)
{
	return eat_run(&p, '=', 1) && strstr(p, " collected") && strstr(p, " in ") &&
	       ends_with(p, "=");
}

static void pytest_line(void *state, const char *line)
{
	struct pytest *s = state;
	struct counts counts;
	uint64_t percent;
	bool banner;

	if (starts_with(line, "ERROR: file or directory not found: ") ||
	    starts_with(line, "ERROR: not found: ")) {
		s->not_found = true;
	} else if (!s->reporting && pytest_gives_up(line)) {
		s->gave_up = true;
	} else if (pytest_collected(line)) {
		s->begun = 0;
	} else if (!s->reporting && pytest_could_not_begin(line)) {
		pytest_close(s);
		tally_add(&s->t, &(struct counts){ .n[ERRORS] = 1 });
	} else if (is_banner(line, '=', "test session starts")) {
		if (s->reporting && !s->has_last)
			return; /* captured: this session has not closed yet */
		pytest_close(s);
		s->in_session = true;
		s->begun++;
	} else if (is_banner(line, '=', "FAILURES") || is_banner(line, '=', "ERRORS")) {
		if (s->in_session)
			s->has_last = false; /* the closing line comes behind these */
		else if (s->has_last)
			pytest_close(s);
		s->reporting = true;
	} else if (pytest_percent(line, &percent)) {
		bool ran = s->has_percent && (s->percent == 100 || percent <= s->percent);

		if (s->has_last && (ran || (!s->in_session && !s->has_percent)))
			pytest_close(s);
		s->has_last = false;
		s->has_percent = true;
		s->quiet = !s->in_session && line[strspn(line, ".FEsxXRp")] == ' ';
		s->percent = percent;
	} else if (pytest_closing(line, &banner, &counts) &&
		   (banner ? !s->quiet : !s->in_session)) {
		if (s->has_last && starts_with(line, "no tests ran"))
			pytest_close(s); /* -q of nothing has no percentages */
		s->last = counts;
		s->has_last = true;
		s->begun -= banner && s->begun;
	}
}

static void pytest_end(void *state)
{
	struct pytest *s = state;

	pytest_close(s);
	if (s->begun)
		tally_add(&s->t, &(struct counts){ .n[ERRORS] = s->begun });
}

const struct reader read_pytest = { "pytest", LEAF, sizeof(struct pytest), pytest_line,
				    pytest_end };

/* ---- unittest ----
 *
 *     ----------------------------------------------------------------------
 *     Ran 8 tests in 0.001s
 *
 *     FAILED (failures=4, errors=1, skipped=1, expected failures=1, unexpected successes=1)
 *
 * Failures are counted by subtest, tests are not: headers of failures that name the same test
 * again tell the difference, as do those of what runs around tests (setUpClass).
 *
 *     ======================================================================
 *     FAIL: test_sub (test_m.T.test_sub) (i=2)
 */

#define RULE 70 /* unittest's rulers are that long */

struct unittest {
	struct tally t;
	enum { NOWHERE, RULED, RAN, RAN_BLANK } at;
	uint64_t ran;
	bool double_ruled; /* the line before was ===== */
	uint64_t extra;	   /* failures and errors that are not one more test */
	struct seen tests; /* that headers named */
};

static const struct word unittest_words[] = {
	{ "failures", FAILED },
	{ "errors", ERRORS },
	{ "skipped", SKIPPED },
	{ "expected failures", SKIPPED },
	{ "unexpected successes", FAILED },
	{ NULL, OTHER },
};

static bool is_ruler(const char *line, char c)
{
	return eat_run(&line, c, RULE) && !*line;
}

static void unittest_header(struct unittest *s, const char *line)
{
	static const char *const around[] = { "setUpClass (", "tearDownClass (", "setUpModule (",
					      "tearDownModule (" };

	if (!eat(&line, "FAIL: ") && !eat(&line, "ERROR: "))
		return;
	for (size_t i = 0; i < sizeof(around) / sizeof(around[0]); i++)
		if (starts_with(line, around[i])) {
			s->extra++;
			return;
		}
	s->extra += seen_before(&s->tests, line, strcspn(line, ")"));
}

/* "OK", "OK (skipped=1)", "FAILED (...)", "NO TESTS RAN" */
static bool unittest_verdict(const char *line, struct counts *ret)
{
	size_t len;

	if (!eat(&line, "OK") && !eat(&line, "FAILED") && !eat(&line, "NO TESTS RAN"))
		return false;
	if (!*line)
		return true;
	len = strlen(line);
	return starts_with(line, " (") && line[len - 1] == ')' &&
	       read_counts(line + 2, line + len - 1, ", ", "=", unittest_words, ret);
}

static void unittest_line(void *state, const char *line)
{
	struct unittest *s = state;
	struct counts counts = { 0 };
	const char *p = line;
	bool double_ruled = s->double_ruled;

	s->double_ruled = is_ruler(line, '=');
	if (double_ruled)
		unittest_header(s, line);
	if (is_ruler(line, '-')) {
		s->at = RULED;
	} else if (s->at == RULED && eat(&p, "Ran ") && eat_number(&p, &s->ran) &&
		   (eat(&p, " tests in ") || eat(&p, " test in "))) {
		s->at = RAN;
	} else if (s->at == RAN && !*line) {
		s->at = RAN_BLANK;
	} else if (s->at == RAN_BLANK && unittest_verdict(line, &counts)) {
		counts_rest(&counts, s->ran + s->extra);
		tally_add(&s->t, &counts);
		s->at = NOWHERE;
		s->extra = 0;
		s->tests = (struct seen){ 0 };
	} else {
		s->at = NOWHERE;
	}
}

const struct reader read_unittest = { "unittest", LEAF, sizeof(struct unittest), unittest_line,
				      NULL };
