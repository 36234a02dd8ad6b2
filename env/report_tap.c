/* SPDX-License-Identifier: Apache-2.0 */

/* Readers of TAP (the Test Anything Protocol) and of prove, which reads it for others. */

#include <string.h>

#include "env/report.h"

/* ---- TAP ----
 *
 *     1..6                 (before the tests or behind them; "1..0 # SKIP why": all are skipped)
 *     ok 1 - one
 *     not ok 2 - two
 *     not ok 4 - todo # TODO why
 *     ok 5 # skip why
 *     Bail out!
 *
 * Several streams may follow each other: a new one begins with a plan, a version, or number 1.
 * Tests of the plan that never came are errors, and so is a bail-out. What is indented belongs to
 * the test behind it. Without any plan nothing is TAP.
 */

struct tap {
	struct tally t;
	bool has_plan;
	uint64_t plan, came;
	struct counts counts;
};

static void tap_close(void *state)
{
	struct tap *s = state;

	if (s->has_plan) {
		if (s->plan > s->came)
			count(&s->counts.n[ERRORS], s->plan - s->came);
		tally_add(&s->t, &s->counts);
	}
	s->has_plan = false;
	s->came = 0;
	s->counts = (struct counts){ 0 };
}

static bool tap_directive(const char *p, const char *word)
{
	while ((p = strchr(p, '#'))) {
		p++;
		eat_spaces(&p);
		if (strncasecmp(p, word, strlen(word)) == 0)
			return true;
	}
	return false;
}

static void tap_test(struct tap *s, const char *p, bool ok)
{
	uint64_t number;

	if (*p && *p != ' ')
		return;
	eat_spaces(&p);
	if (eat_number(&p, &number) && number == 1 && s->came)
		tap_close(s);
	s->came++;
	if (tap_directive(p, "skip") || (!ok && tap_directive(p, "todo")))
		s->counts.n[SKIPPED]++;
	else
		s->counts.n[ok ? PASSED : FAILED]++;
}

static void tap_plan(struct tap *s, const char *p, uint64_t plan)
{
	if (s->has_plan)
		tap_close(s);
	s->has_plan = true;
	s->plan = plan;
	if (plan == 0 && tap_directive(p, "skip"))
		s->counts.n[SKIPPED] = 1;
	if (s->came || plan == 0) /* the plan ends what it is a plan of */
		tap_close(s);
}

static void tap_line(void *state, const char *line)
{
	struct tap *s = state;
	const char *p = line;
	uint64_t plan;

	if (eat(&p, "ok")) {
		tap_test(s, p, true);
	} else if (eat(&p, "not ok")) {
		tap_test(s, p, false);
	} else if (eat(&p, "1..") && eat_number(&p, &plan) && (!*p || *p == ' ')) {
		tap_plan(s, p, plan);
	} else if (starts_with(line, "TAP version ")) {
		tap_close(s);
	} else if (starts_with(line, "Bail out!") && (s->has_plan || s->came)) {
		s->has_plan = true;
		s->plan = s->came + 1;
		tap_close(s);
	}
}

const struct reader read_tap = { "tap", WEAK, sizeof(struct tap), tap_line, tap_close };

/* ---- prove ----
 *
 *     t/a.t ..
 *     Failed 1/6 subtests
 *             (less 1 skipped subtest: 4 okay)
 *     t/b.t .. skipped: not here
 *     Test Summary Report
 *     -------------------
 *     t/a.t (Wstat: 256 (exited 1) Tests: 6 Failed: 1)
 *     t/d.t (Wstat: 768 (exited 3) Tests: 1 Failed: 0)
 *       Parse errors: Bad plan.  You planned 3 tests but ran 1.
 *     Files=4, Tests=10,  1 wallclock secs ( 0.02 usr  0.01 sys + ...)
 *
 * A file that broke although none of its tests failed is an error.
 */

struct prove {
	struct tally t;
	struct counts counts; /* of the run that is open */
	bool in_report;
	bool blamed; /* the file that the report is about has a failed test, or an error by now */
};

static void prove_blame(struct prove *s)
{
	if (!s->blamed)
		s->counts.n[ERRORS]++;
	s->blamed = true;
}

/* "t/a.t (Wstat: 256 (exited 1) Tests: 6 Failed: 1)" */
static bool prove_file(struct prove *s, const char *line)
{
	const char *p = strstr(line, " (Wstat: "), *failed = strstr(line, " Failed: ");
	uint64_t status, n;

	if (!p || !failed || failed < p)
		return false;
	p += strlen(" (Wstat: ");
	failed += strlen(" Failed: ");
	if (!eat_number(&p, &status) || !eat_number(&failed, &n) || strcmp(failed, ")") != 0)
		return false;
	count(&s->counts.n[FAILED], n);
	s->blamed = n > 0;
	if (status)
		prove_blame(s);
	return true;
}

/* "t/a.t ..", "t/a.t .. ok", "t/b.t .. skipped: not here" */
static bool prove_begins(const char *line, bool *ret_skipped)
{
	const char *p = line + strcspn(line, " ");

	if (p == line || !eat(&p, " ") || !eat_run(&p, '.', 2))
		return false;
	*ret_skipped = starts_with(p, " skipped");
	return !*p || starts_with(p, " ok") || *ret_skipped;
}

static void prove_line(void *state, const char *line)
{
	struct prove *s = state;
	const char *p = line;
	bool skipped;
	uint64_t n;

	if (prove_begins(line, &skipped)) {
		if (!s->t.open) {
			s->counts = (struct counts){ 0 };
			s->in_report = false;
		}
		s->t.open = true;
		s->counts.n[SKIPPED] += skipped;
	} else if (!s->t.open) {
		return;
	} else if (eat(&p, "\t(less ") && eat_number(&p, &n) &&
		   starts_with(p, " skipped subtest")) {
		count(&s->counts.n[SKIPPED], n);
		count(&s->counts.n[OTHER], n); /* these are in the total */
	} else if (strcmp(line, "Test Summary Report") == 0) {
		s->in_report = true;
	} else if (s->in_report && prove_file(s, line)) {
	} else if (s->in_report && starts_with(line, "  Parse errors: ")) {
		prove_blame(s);
	} else if (p = line, eat(&p, "Files=") && eat_number(&p, &n) && eat(&p, ", Tests=") &&
				     eat_number(&p, &n) && starts_with(p, ", ")) {
		uint64_t others = s->counts.n[FAILED];

		count(&others, s->counts.n[OTHER]);
		s->counts.n[PASSED] = n > others ? n - others : 0;
		tally_add(&s->t, &s->counts);
		s->t.open = false;
	}
}

const struct reader read_prove = { "prove", OUTER, sizeof(struct prove), prove_line, NULL };
