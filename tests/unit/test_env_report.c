/* SPDX-License-Identifier: Apache-2.0 */

/* Reports of test runs: recordings of real ones, made-up ones, and hostile ones. */

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "env/plyfs.h"
#include "env/report.h"
#include "store/base/util.h"
#include "tests/unit/run.h"

/* ---- helpers ---- */

static struct ply_tests parse_rule(const char *output, size_t len, const char *rule)
{
	struct ply_tests t;
	int r = ply_tests_parse(output, len, NULL, 0, rule, &t);

	ck_assert_msg(r == 0, "%s", ply_error());
	return t;
}

static struct ply_tests parse(const char *output)
{
	return parse_rule(output, strlen(output), NULL);
}

static struct ply_tests parse_xml(const char *output, const char *xml, size_t len)
{
	struct ply_tests t;
	int r = ply_tests_parse(output, strlen(output), xml, len, NULL, &t);

	ck_assert_msg(r == 0, "%s", ply_error());
	return t;
}

static void check_counts(const char *what, const struct ply_tests *t, const char *runner,
			 unsigned passed, unsigned failed, unsigned errors, unsigned skipped)
{
	ck_assert_msg(strcmp(t->runner, runner) == 0 && t->passed == passed &&
			      t->failed == failed && t->errors == errors && t->skipped == skipped,
		      "%.60s: '%s' %lu %lu %lu %lu, not '%s' %u %u %u %u", what, t->runner,
		      t->passed, t->failed, t->errors, t->skipped, runner, passed, failed, errors,
		      skipped);
	ck_assert(!t->output.data && t->exit_code == 0 && !t->timed_out);
}

#define ck_text(text, ...) \
	do { \
		struct ply_tests t_ = parse(text); \
		check_counts(text, &t_, __VA_ARGS__); \
	} while (0)

#define NONE "", 0, 0, 0, 0

struct recording {
	char name[64], runner[32];
	unsigned passed, failed, errors, skipped;
	char *data; /* owned by the test's process */
	size_t len;
};

static char reports[4096];
static struct recording recordings[256];
static size_t n_recordings;

static char *slurp(const char *name, size_t *ret_len)
{
	char path[4200], *data = NULL;
	size_t size = 0;
	FILE *f;

	(void)snprintf(path, sizeof(path), "%s/%s", reports, name);
	f = fopen(path, "r");
	ck_assert_msg(f != NULL, "%s is not there", path);
	*ret_len = 0;
	do {
		data = realloc(data, size += 1 << 20);
		ck_assert_ptr_nonnull(data);
		*ret_len += fread(data + *ret_len, 1, size - *ret_len, f);
	} while (*ret_len == size);
	ck_assert_int_eq(fclose(f), 0);
	data[*ret_len] = '\0';
	return data;
}

static void setup(void)
{
	const char *source = getenv("PLYFS_SOURCE");
	char *table, *line, *next;
	size_t len;

	(void)snprintf(reports, sizeof(reports), "%s/tests/golden/reports", source ? source : ".");
	table = slurp("expected", &len);
	n_recordings = 0;
	for (line = table; *line; line = next) {
		struct recording *r = &recordings[n_recordings];

		next = line + strcspn(line, "\n");
		if (*next)
			*next++ = '\0';
		if (*line == '#')
			continue;
		ck_assert_int_eq(sscanf(line, "%63s %31s %u %u %u %u", r->name, r->runner,
					&r->passed, &r->failed, &r->errors, &r->skipped), 6);
		if (strcmp(r->runner, "-") == 0)
			r->runner[0] = '\0';
		r->data = slurp(r->name, &r->len);
		ck_assert(++n_recordings < ARRAY_SIZE(recordings));
	}
	free(table);
}

static void teardown(void)
{
	for (size_t i = 0; i < n_recordings; i++)
		free(recordings[i].data);
}

static bool is_xml(const struct recording *r)
{
	return strstr(r->name, ".xml") != NULL;
}

/* ---- recordings ---- */

START_TEST(every_recording_has_the_right_answer)
{
	for (size_t i = 0; i < n_recordings; i++) {
		const struct recording *r = &recordings[i];
		struct ply_tests t;

		t = is_xml(r) ? parse_xml("", r->data, r->len)
			      : parse_rule(r->data, r->len, NULL);
		check_counts(r->name, &t, r->runner, r->passed, r->failed, r->errors, r->skipped);
	}
}
END_TEST

START_TEST(every_recording_is_in_the_table)
{
	DIR *d = opendir(reports);
	struct dirent *de;
	size_t n = 0;

	ck_assert_ptr_nonnull(d);
	while ((de = readdir(d)))
		n += *de->d_name != '.' && strcmp(de->d_name, "expected") != 0;
	closedir(d);
	ck_assert_uint_eq(n, n_recordings);
	ck_assert_uint_gt(n, 100);
}
END_TEST

/* Windows line ends, and an output that ends without one. */
START_TEST(line_ends_do_not_matter)
{
	for (size_t i = 0; i < n_recordings; i++) {
		const struct recording *r = &recordings[i];
		char *crlf = malloc(2 * r->len + 1);
		struct ply_tests t;
		size_t n = 0;

		ck_assert_ptr_nonnull(crlf);
		for (size_t k = 0; k < r->len; k++) {
			if (r->data[k] == '\n')
				crlf[n++] = '\r';
			crlf[n++] = r->data[k];
		}
		if (!is_xml(r)) {
			while (n && (crlf[n - 1] == '\n' || crlf[n - 1] == '\r'))
				n--;
			t = parse_rule(crlf, n, NULL);
			check_counts(r->name, &t, r->runner, r->passed, r->failed, r->errors,
				     r->skipped);
		}
		free(crlf);
	}
}
END_TEST

/* A run that is cut off anywhere never has passed more than it had, and never crashes us. */
START_TEST(a_cut_recording_claims_nothing_new)
{
	unsigned seed = 1;

	for (size_t i = 0; i < n_recordings; i++) {
		const struct recording *r = &recordings[i];

		for (int k = 0; k < 60; k++) {
			size_t len = (size_t)rand_r(&seed) % (r->len + 1);
			char *exact = malloc(len ? len : 1); /* the sanitizer sees its end */
			struct ply_tests t;

			ck_assert_ptr_nonnull(exact);
			memcpy(exact, r->data, len);
			if (is_xml(r))
				ck_assert_int_eq(ply_tests_parse("", 0, exact, len, NULL, &t), 0);
			else
				t = parse_rule(exact, len, NULL);
			/*
			 * But what pytest shows as captured may be the last that is left, and "ok
			 * PACKAGE" lose its "[no tests to run]".
			 */
			if (!strstr(r->name, "pytest") && !strstr(r->name, "both"))
				ck_assert_msg(t.passed <= r->passed + r->failed + r->errors +
								  r->skipped + 1,
					      "%s cut after %zu: %lu passed", r->name, len,
					      t.passed);
			if (is_xml(r) && len < r->len - 32)
				ck_assert_uint_ge(t.errors, 1);
			free(exact);
		}
	}
}
END_TEST

/* Pieces of recordings in any order: no answer is right, but there is one, and no crash. */
START_TEST(shuffled_recordings_are_survived)
{
	unsigned seed = 2;

	for (int round = 0; round < 300; round++) {
		char *mix = malloc(64 << 10);
		size_t n = 0;

		ck_assert_ptr_nonnull(mix);
		for (int k = 0; k < 8; k++) {
			const struct recording *r =
				&recordings[(size_t)rand_r(&seed) % n_recordings];
			size_t at = (size_t)rand_r(&seed) % (r->len + 1);
			size_t len = MIN(r->len - at, (size_t)rand_r(&seed) % 8000);

			memcpy(mix + n, r->data + at, len);
			n += len;
			if (n)
				mix[(size_t)rand_r(&seed) % n] = (char)rand_r(&seed);
		}
		(void)parse_rule(mix, n, NULL);
		(void)parse_xml("", mix, n);
		free(mix);
	}
}
END_TEST

/* ---- what is no report ---- */

START_TEST(nothing_recognised_is_all_zero)
{
	ck_text("", NONE);
	ck_text("\n\n\n", NONE);
	ck_text("make: *** No rule to make target 'test'.  Stop.\n", NONE);
	ck_text("sh: 1: pytest: not found\n", NONE);
	ck_assert(ply_tests_all_passed(&(struct ply_tests){ 0 }));
}
END_TEST

START_TEST(log_lines_are_no_reports)
{
	static const char *const lines[] = {
		"5 passed",
		"INFO 5 passed in 0.1s",
		"warm-up: 5 passed, 1 failed in 0.1s",
		"====5 passed in 0.1s====",
		"3 files in 2.0s",
		"5 passed in 0.1s and then some",
		"Ran 5 tests in 0.001s",
		"OK",
		"FAILED (failures=1)",
		"Tests: 3 passed, 3 total",
		"      Tests  3 passed (3)",
		"  3 passing (3ms)",
		"# pass 3",
		"test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out",
		"Tests run: 3, Failures: 0, Errors: 0, Skipped: 0",
		"3 examples, 0 failures",
		"OK (3 tests, 3 assertions)",
		"Tests: 3, Assertions: 3, Errors: 1.",
		"[  PASSED  ] 3 tests.",
		"100% tests passed, 0 tests failed out of 3",
		"Ok:                 3",
		"ok 1\nok 2\nnot ok 3",
		"Files=1, Tests=3,  0 wallclock secs",
		"100%: Checks: 3 of 3",
		"3 tests completed, 1 failed",
		"{\"Action\":\"pass\"}",
		"ok",
	};

	for (size_t i = 0; i < ARRAY_SIZE(lines); i++) {
		char text[256];

		(void)snprintf(text, sizeof(text), "before\n%s\nbehind\n", lines[i]);
		ck_text(text, NONE);
		ck_text(lines[i], NONE);
	}
}
END_TEST

/* Each of these has a report, and a line that looks like another. */
START_TEST(only_the_runners_own_place_counts)
{
	ck_text("============ test session starts ============\n"
		"5 passed in 0.10s\n"
		"=========== 7 passed in 0.20s ===========\n"
		"a.py .  [100%]\n"
		"=========== 1 passed in 0.30s ===========\n", "pytest", 1, 0, 0, 0);
	ck_text("running 1 test\n"
		"test result: ok. 9 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n"
		"test x ... ok\n\n"
		"test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n",
		"cargo", 1, 0, 0, 0);
	ck_text("TAP version 13\nok 1 - a\n1..1\n# tests 1\n# pass 1\n# fail 0\n"
		"# cancelled 0\n# skipped 0\n# todo 0\n# duration_ms 4.5\n", "node", 1, 0, 0, 0);
	/* What runs the programs of others counts, not the programs; what ran before it does. */
	ck_text("............ [100%]\n12 passed in 0.10s\n"
		"Test project /build\n100%: Checks: 3, Failures: 0, Errors: 0\n"
		"1/1 Test #1: c .....   Passed    0.00 sec\n\n"
		"100% tests passed, 0 tests failed out of 1\n\n"
		"Total Test time (real) =   0.01 sec\n", "ctest+pytest", 13, 0, 0, 0);
	/* An outer runner that never says how it ended hides nobody. */
	ck_text("Test project /build\n100%: Checks: 3, Failures: 0, Errors: 0\n", "check", 3, 0, 0,
		0);
}
END_TEST

START_TEST(forms_that_other_versions_have)
{
	ck_text("===== 3 passed in 61.20s (0:01:01) =====\n", "pytest", 3, 0, 0, 0);
	ck_text("===== 3 passed, 1 error in 0.12 seconds =====\n", "pytest", 3, 0, 1, 0);
	ck_text("==== 3 passed, 2 rerun, 1 warnings in 1.00s ====\n", "pytest", 3, 0, 0, 0);
	ck_text("Results :\n\nTests run: 4, Failures: 1, Errors: 0, Skipped: 1\n", "maven", 2, 1,
		0, 1);
	ck_text("[WARNING] Tests run: 3, Failures: 0, Errors: 0, Skipped: 1, Flakes: 1\n", "maven",
		2, 0, 0, 1);
	ck_text("test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n",
		NONE);
	ck_text("running 1 test\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured\n",
		"cargo", 1, 0, 0, 0);
	ck_text("[==========] Running 1 test from 1 test case.\n"
		"[==========] 1 test from 1 test case ran. (0 ms total)\n[  PASSED  ] 1 test.\n",
		"gtest", 1, 0, 0, 0);
	ck_text("Ok:                9\nFail:              1\n", "meson", 9, 1, 0, 0);
	ck_text("PHPUnit 11.5.3 by Sebastian Bergmann and contributors.\n\n"
		"Time: 00:00.002, Memory: 4.00 MB\n\nOK, but there were issues!\n"
		"Tests: 3, Assertions: 3, Warnings: 2, PHPUnit Deprecations: 1, Skipped: 1.\n",
		"phpunit", 2, 0, 0, 1);
	ck_text("# tests 2\n# pass 1\n# fail 0\n# cancelled 1\n# skipped 0\n# todo 0\n"
		"# duration_ms 4.5\n", "node", 1, 0, 1, 0);
	ck_text("1..2\nok 1\n1..0 # SKIP no\n", "tap", 1, 0, 1, 1);
	ck_text("ok 1 # TODO passes by now\nnot ok 2 # todo\n1..2\n", "tap", 1, 0, 0, 1);
}
END_TEST

START_TEST(terminal_sequences_are_not_seen)
{
	/* Colour, a character set, a link; and what a carriage return took back. */
	ck_text("\033[1m\033[32m===\033(B\033[m 2 passed in 0.10s \033]8;;http://x\a===\033[0m\n",
		"pytest", 2, 0, 0, 0);
	ck_text("working 50%\r=== 2 passed in 0.10s ===   \r\r\n", "pytest", 2, 0, 0, 0);
	ck_text("=== 2 passed in 0.10s ===\033", "pytest", 2, 0, 0, 0);
	ck_text("=== 2 passed in 0.10s ===\033[12", "pytest", 2, 0, 0, 0);
}
END_TEST

START_TEST(numbers_that_are_too_large_do_not_wrap)
{
	struct ply_tests t = parse("99999999999999999999999999%: Checks: 99999999999999999999, "
				   "Failures: 99999999999999999999, Errors: 1\n"
				   "100%: Checks: 5, Failures: 5, Errors: 0\n");

	ck_assert_uint_eq(t.failed, PLY_TESTS_MAX);
	ck_assert_uint_eq(t.passed, 0);
	t = parse("Ok: 1\nFail: 18446744073709551615\nUnexpected Pass: 1\n");
	ck_assert_uint_eq(t.failed, PLY_TESTS_MAX);
	t = parse_rule("99999999999999999999 passed", 27, "chimera");
	ck_assert_uint_eq(t.passed, PLY_TESTS_MAX);
	t = parse("=== 99999999999999999999 passed, 2 failed in 0.12s ===\n");
	ck_assert_uint_eq(t.failed, 2);
	ck_assert(ply_tests_pass_rate(&t) <= 1);
}
END_TEST

/* ---- upstream's rule ---- */

#define ck_chimera(text, ...) \
	do { \
		struct ply_tests t_ = parse_rule(text, strlen(text), "chimera"); \
		check_counts(text, &t_, "chimera", __VA_ARGS__, 0); \
	} while (0)

START_TEST(chimera_rule)
{
	ck_chimera("=== 3 passed, 2 failed, 1 error in 0.1s ===", 3, 2, 1);
	ck_chimera("2 errors", 0, 0, 2);
	ck_chimera("1 error", 0, 0, 1);
	ck_chimera("3 xfailed, 1 xpassed", 0, 0, 0);
	ck_chimera("log: 5 passed\n=== 3 passed in 0.1s ===", 5, 0, 0);
	ck_chimera("sh: pytest: not found", 0, 0, 0);
	ck_chimera("no tests ran in 0.01s", 0, 0, 0);
	ck_chimera(" passed 12 passed", 12, 0, 0);
	ck_chimera("x passed, 4 passed, 5 passed", 4, 0, 0);
	ck_chimera("1 failed 007 passed", 7, 1, 0);
	ck_chimera("", 0, 0, 0);
}
END_TEST

START_TEST(an_unknown_rule_is_refused)
{
	struct ply_tests t;

	ck_assert_int_eq(ply_tests_parse("", 0, NULL, 0, "pytest", &t), PLY_INVALID);
	ck_assert_str_eq(ply_error(), "no rule for test reports is called 'pytest': chimera");
}
END_TEST

/* ---- XML ---- */

#define ck_xml(output, xml, ...) \
	do { \
		struct ply_tests t_ = parse_xml(output, xml, strlen(xml)); \
		check_counts(xml, &t_, __VA_ARGS__); \
	} while (0)

#define PYTEST "==== 4 passed in 0.10s ====\n"

START_TEST(xml_is_preferred_to_words)
{
	ck_xml(PYTEST, "<testsuite><testcase/><testcase><failure/></testcase></testsuite>",
	       "junit-xml", 1, 1, 0, 0);
	ck_xml(PYTEST, "<testsuites/>", "junit-xml", 0, 0, 0, 0);
	/* The first of failure, error, skipped; only right below the case. */
	ck_xml("", "<testsuites><testsuite><testsuite><testcase><skipped/><error/><failure/>"
		   "</testcase><testcase><p><failure/></p></testcase></testsuite></testsuite>"
		   "<testcase status='notrun'/><error/></testsuites>", "junit-xml", 1, 1, 0, 1);
}
END_TEST

START_TEST(xml_that_cannot_be_read_gives_way_to_words)
{
	ck_xml(PYTEST, "<testsuite><testcase/>", "pytest", 4, 0, 0, 0);
	ck_xml(PYTEST, "", "pytest", 4, 0, 0, 0);
	ck_xml(PYTEST, "{}", "pytest", 4, 0, 0, 0);
}
END_TEST

START_TEST(xml_that_cannot_be_read_is_never_a_success)
{
	ck_xml("", "<testsuite><testcase/><testcase", "junit-xml", 1, 0, 1, 0);
	ck_xml("", "", "junit-xml", 0, 0, 1, 0);
	ck_xml("", "<html/>", "junit-xml", 0, 0, 1, 0);
	ck_xml("", "<testsuite/><testsuite/>", "junit-xml", 0, 0, 1, 0);
}
END_TEST

START_TEST(xml_bombs_do_not_go_off)
{
	static const char laughs[] =
		"<!DOCTYPE t [<!ENTITY a 'ha'><!ENTITY b '&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;'>"
		"<!ENTITY c '&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;'><!ENTITY d '&c;&c;&c;&c;&c;&c;'>]>"
		"<testsuite><testcase name='&d;'/></testsuite>";
	size_t n = 8 << 20;
	char *deep = malloc(n + 1);
	struct counts counts = { 0 };

	ck_xml("", laughs, "junit-xml", 0, 0, 1, 0);
	ck_assert_int_eq(junit_read(laughs, strlen(laughs), &counts), PLY_INVALID);
	ck_assert_str_eq(ply_error(),
			 "the JUnit XML report cannot be read: it has a DOCTYPE in line 1");
	ck_xml("", "<!DOCTYPE t SYSTEM 'file:///etc/passwd'><testsuite/>", "junit-xml", 0, 0, 1, 0);

	ck_assert_ptr_nonnull(deep);
	memcpy(deep, "<testsuite>", 11);
	for (size_t i = 11; i < n; i++)
		deep[i] = "<a>"[(i - 11) % 3];
	ck_assert_int_eq(junit_read(deep, n, &counts), PLY_INVALID);
	ck_assert_str_eq(ply_error(),
			 "the JUnit XML report cannot be read: it is nested too deeply in line 1");

	/* One attribute of megabytes, then megabytes of text. */
	memset(deep, 'x', n);
	memcpy(deep, "<testsuite name='", 17);
	memcpy(deep + n / 2, "'><testcase>", 12);
	memcpy(deep + n - 23, "</testcase></testsuite>", 23);
	counts = (struct counts){ 0 };
	ck_assert_int_eq(junit_read(deep, n, &counts), 0);
	ck_assert_uint_eq(counts.n[PASSED], 1);
	free(deep);
}
END_TEST

/* ---- size ---- */

/*
 * 1 MiB each of what is bad for somebody who looks back or looks again: quadratic work would take
 * an hour, and the test's limit ends it.
 */
START_TEST(large_outputs_take_linear_time)
{
	static const char *const pieces[] = {
		"x", "\r", "\033", "\033[", "\033]", "\n", " in ", "1 passed, ", "# ", "--- ",
		"(", "=", "[ 1%]\n", "1..1\nok\n", "running 1 test\n",
		"1/1 x OK \nOk: 1\nFail: 0\n",
		"{\"Action\":\"fail\",\"Package\":\"", "t.t .. \nFiles=1, Tests=1, \n", " passed",
		"Test project /\nTotal Test time (real) =\n", "\xff\xfe", "\t(less ", "1 error",
		"==== test session starts ====\n=== 1 passed in 0.1s ===\n", "FAIL: a)\n",
	};
	size_t n = 1 << 20;
	char *text = malloc(n);

	ck_assert_ptr_nonnull(text);
	for (size_t i = 0; i < ARRAY_SIZE(pieces); i++) {
		size_t len = strlen(pieces[i]);
		struct ply_tests t;

		for (size_t at = 0; at < n; at += len)
			memcpy(text + at, pieces[i], MIN(len, n - at));
		t = parse_rule(text, n, NULL);
		ck_assert_uint_eq(t.failed, 0);
		t = parse_rule(text, n, "chimera");
		ck_assert_uint_eq(t.failed, 0);
	}
	/* A report behind all of it is found. */
	memset(text, 'x', n);
	memcpy(text + n - 30, "\n=== 6 passed in 0.10s ===\n\n\n\n", 30);
	ck_assert_uint_eq(parse_rule(text, n, NULL).passed, 6);
	free(text);
}
END_TEST

int main(void)
{
	TCase *tc = tcase_create("report");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, every_recording_has_the_right_answer);
	tcase_add_test(tc, every_recording_is_in_the_table);
	tcase_add_test(tc, line_ends_do_not_matter);
	tcase_add_test(tc, a_cut_recording_claims_nothing_new);
	tcase_add_test(tc, shuffled_recordings_are_survived);
	tcase_add_test(tc, nothing_recognised_is_all_zero);
	tcase_add_test(tc, log_lines_are_no_reports);
	tcase_add_test(tc, only_the_runners_own_place_counts);
	tcase_add_test(tc, forms_that_other_versions_have);
	tcase_add_test(tc, terminal_sequences_are_not_seen);
	tcase_add_test(tc, numbers_that_are_too_large_do_not_wrap);
	tcase_add_test(tc, chimera_rule);
	tcase_add_test(tc, an_unknown_rule_is_refused);
	tcase_add_test(tc, xml_is_preferred_to_words);
	tcase_add_test(tc, xml_that_cannot_be_read_gives_way_to_words);
	tcase_add_test(tc, xml_that_cannot_be_read_is_never_a_success);
	tcase_add_test(tc, xml_bombs_do_not_go_off);
	tcase_add_test(tc, large_outputs_take_linear_time);
	return run_case("report", tc);
}
