/* SPDX-License-Identifier: Apache-2.0 */

/* Readers of the output of go test and cargo test. */

#include <stdlib.h>
#include <string.h>

#include "env/report.h"

/* ---- go test ----
 *
 *     --- FAIL: TestSub (0.00s)
 *         --- FAIL: TestSub/two (0.00s)       (part of TestSub)
 *     FAIL
 *     FAIL    example.org/m/a 0.003s
 *     ok      example.org/m/b 0.002s
 *     FAIL    example.org/m/d [build failed]
 *
 * Top-level tests are counted, in all three forms. Without -v or -json those that passed are not
 * named: then a package that is "ok" counts as one that passed. A package that failed without a
 * failed test (it did not build, it panicked, its TestMain did) is an error.
 *
 * With -json every event is one object per line, its fields always in one order, Action and Test
 * before Output; quotes in strings are escaped, so a field's name can be searched for.
 */

struct go {
	struct tally t;
	struct counts package; /* of the tests named since the last package's line */
	bool verbose;	       /* in this package a test was announced */
	char running[256];     /* the test that was announced last */
	struct seen failed;    /* -json: packages with failed tests */
};

/* "--- PASS: TestX (0.00s)"; NULL when it is none. */
static const char *go_result(const char *p, enum slot *ret)
{
	const char *name;

	if (!eat(&p, "--- "))
		return NULL;
	if (eat(&p, "PASS: "))
		*ret = PASSED;
	else if (eat(&p, "FAIL: "))
		*ret = FAILED;
	else if (eat(&p, "SKIP: "))
		*ret = SKIPPED;
	else
		return NULL;
	name = p;
	p += strcspn(p, " ");
	return p > name && starts_with(p, " (") && ends_with(p, "s)") ? name : NULL;
}

static void go_test(struct go *s, const char *line)
{
	enum slot slot = OTHER;
	const char *p = line, *name;

	if (eat(&p, "=== RUN ") || eat(&p, "=== CONT ") || eat(&p, "=== NAME ")) {
		eat_spaces(&p);
		s->verbose = true;
		(void)memccpy(s->running, p, '\0', sizeof(s->running) - 1); /* cut is fine */
		return;
	}
	name = go_result(line, &slot);
	if (!name && *line != ' ' && *line != '\t') {
		/* What the test printed last had no newline: then it is the announced one's. */
		p = strstr(line, "--- ");
		name = p ? go_result(p, &slot) : NULL;
		if (name && strncmp(name, s->running, strcspn(name, " ")) != 0)
			name = NULL;
	}
	if (name)
		s->package.n[slot]++;
}

static bool go_no_tests(const char *p)
{
	return strstr(p, "[no tests to run]") || strstr(p, "[no test files]");
}

/* "ok  \tPACKAGE\t0.002s", "FAIL\tPACKAGE\t0.002s", "?   \tPACKAGE\t[no test files]" */
static void go_package(struct go *s, const char *p)
{
	bool ok = eat(&p, "ok  \t");

	if (!ok && !eat(&p, "FAIL\t")) {
		if (eat(&p, "?   \t") && go_no_tests(p))
			s->t.seen = true;
		return;
	}
	if (ok && !s->verbose)
		s->package.n[PASSED] = go_no_tests(p) ? 0 : 1;
	if (!ok && s->package.n[FAILED] == 0)
		s->package.n[ERRORS] = 1;
	tally_add(&s->t, &s->package);
	s->package = (struct counts){ 0 };
	s->verbose = false;
	s->running[0] = '\0';
}

/* The value of a field, up to its closing quote. */
static const char *go_field(const char *line, const char *name, size_t *ret_len)
{
	const char *p = strstr(line, name);

	if (!p)
		return NULL;
	p += strlen(name);
	*ret_len = strcspn(p, "\"");
	return p;
}

static void go_event(struct go *s, const char *line)
{
	size_t action_len = 0, package_len = 0, test_len = 0;
	const char *action = go_field(line, "\"Action\":\"", &action_len);
	const char *package = go_field(line, "\"Package\":\"", &package_len);
	const char *test = go_field(line, "\"Test\":\"", &test_len);
	struct counts counts = { 0 };

	if (!action || !package || action_len != 4 || (test && memchr(test, '/', test_len)))
		return;
	if (memcmp(action, "pass", 4) == 0)
		counts.n[PASSED] = test != NULL;
	else if (memcmp(action, "skip", 4) == 0)
		counts.n[SKIPPED] = test != NULL;
	else if (memcmp(action, "fail", 4) != 0)
		return;
	else if (test)
		counts.n[FAILED] = 1;
	if (memcmp(action, "fail", 4) == 0 &&
	    !seen_before(&s->failed, package, package_len) && !test)
		counts.n[ERRORS] = 1;
	tally_add(&s->t, &counts);
}

static void go_line(void *state, const char *line)
{
	struct go *s = state;

	switch (*line) {
	case '{':
		go_event(s, line);
		break;
	case 'o':
	case 'F':
	case '?':
		go_package(s, line);
		/* fall through */
	default:
		go_test(s, line);
	}
}

/* A test program that was run by itself has no package's line. */
static void go_end(void *state)
{
	struct go *s = state;

	if (counts_sum(&s->package))
		tally_add(&s->t, &s->package);
}

const struct reader read_go = { "go", LEAF, sizeof(struct go), go_line, go_end };

/* ---- cargo test ----
 *
 *     running 3 tests
 *     ...
 *     test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; ...
 *
 * once for each program: unit tests, integration tests, doc tests, of each crate. A result counts
 * when it is of as many tests as were announced, the last such one before the next program. On
 * stderr cargo says what never came to a result: it did not compile, it crashed.
 */

struct cargo {
	struct tally t;
	uint64_t announced;
	bool running, has_result;
	struct counts result;
};

static const struct word cargo_words[] = {
	{ "passed", PASSED },  { "failed", FAILED },	   { "ignored", SKIPPED },
	{ "measured", PASSED }, { "filtered out", OTHER }, { NULL, OTHER },
};

static void cargo_close(void *state)
{
	struct cargo *s = state;

	if (s->has_result)
		tally_add(&s->t, &s->result);
	s->has_result = s->running = false;
}

/* The list ends with a part of another form in newer versions. */
static bool cargo_result(const char *p, struct counts *ret)
{
	const char *end;

	*ret = (struct counts){ 0 };
	if (!eat(&p, "test result: ok. ") && !eat(&p, "test result: FAILED. "))
		return false;
	end = strstr(p, "; finished in ");
	return read_counts(p, end ? end : p + strlen(p), "; ", NULL, cargo_words, ret);
}

static void cargo_line(void *state, const char *line)
{
	struct cargo *s = state;
	struct counts counts = { .n[ERRORS] = 1 };
	const char *p = line;
	uint64_t n;

	if (eat(&p, "running ") && eat_number(&p, &n) &&
	    (strcmp(p, " tests") == 0 || strcmp(p, " test") == 0)) {
		cargo_close(s);
		s->announced = n;
		s->running = true;
	} else if (s->running && cargo_result(line, &counts) &&
		   counts_sum(&counts) == s->announced) {
		s->result = counts;
		s->has_result = true;
	} else if (starts_with(line, "  process didn't exit successfully: ") ||
		   (starts_with(line, "error: could not compile `") && strstr(line, " due to "))) {
		counts = (struct counts){ .n[ERRORS] = 1 };
		tally_add(&s->t, &counts);
	}
}

const struct reader read_cargo = { "cargo", LEAF, sizeof(struct cargo), cargo_line, cargo_close };
