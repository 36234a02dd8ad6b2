/* SPDX-License-Identifier: Apache-2.0 */

/*
 * timeout: 900
 *
 * Expected patterns that are made to cost much: a search ends, and takes no memory worth naming.
 * Each takes its second of a processor, of which a busy machine may give a fiftieth.
 */

#include "env/expect.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <time.h>

#include "store/base/util.h"
#include "tests/unit/run.h"

/* What a session looks through at once, at most; and the other end of each below. */
#define OUTPUT (4u << 20)

static const struct {
	const char *pattern, *fill;
} costly[] = {
	{ "a*b", "a" },	     /* every place, to the end: a square */
	{ "(a+)+b", "a" },   /* 2 to the length */
	{ "(a|b)*c", "ab" }, /* a frame of memory for each character */
	{ "(?:(a)|b)*c", "ab" },
	{ "([a-z]+ ?)+x", "abcdefg " },
	{ "(.*)(.*)(.*)(.*)(.*)x", "abc" },
	{ "(?=(a+))a*b\\1", "a" },
	{ "((a?){1,20}){1,20}b", "a" },
	{ "(?<=[^b])a+?b", "a" },
};

static struct expect *new (const char *const *patterns, size_t n)
{
	struct expect *e;

	ck_assert_int_eq(expect_new(patterns, n, &e), 0);
	return e;
}

static void make_output(char *data, size_t len, const char *fill)
{
	for (size_t i = 0; i < len; i++)
		data[i] = fill[i % strlen(fill)];
	data[len - 1] = '!';
}

START_TEST(a_costly_search_ends)
{
	/* All of the output, a heap of ours, the test: far below what it took without a limit. */
	const struct rlimit memory = { .rlim_cur = 600u << 20, .rlim_max = RLIM_INFINITY };
	_cleanup_free_ char *data = malloc(OUTPUT + 16);
	struct expect *e = new (&costly[_i].pattern, 1);
	struct expect_match match;

	ck_assert_ptr_nonnull(data);
	make_output(data, OUTPUT, costly[_i].fill);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	(void)memory; /* their shadow is terabytes of address space */
#else
	ck_assert_int_eq(setrlimit(RLIMIT_AS, &memory), 0);
#endif
	ck_assert_int_eq(expect_scan(e, data, OUTPUT, &match), 0);
	/* What comes later is seen all the same. */
	memcpy(data + OUTPUT, "\nabaabc x", 9);
	if (strchr(costly[_i].pattern, 'b') == NULL)
		ck_assert_int_eq(expect_scan(e, data, OUTPUT + 9, &match), 1);
	expect_free(e);
}
END_TEST

START_TEST(many_costly_patterns_cost_no_more_than_one)
{
	enum { N = 100 };
	const char *patterns[N];
	_cleanup_free_ char *data = malloc(OUTPUT);
	struct expect_match match;
	struct expect *e;

	ck_assert_ptr_nonnull(data);
	make_output(data, OUTPUT, "a");
	for (size_t i = 0; i < N; i++)
		patterns[i] = "a*b";
	e = new (patterns, N);
	ck_assert_int_eq(expect_scan(e, data, OUTPUT, &match), 0);
	expect_free(e);
}
END_TEST

START_TEST(an_ordinary_pattern_is_found_behind_much_output)
{
	static const char *const patterns[] = { "\\d{3}-x", "\\(gdb\\) $", "[^a]\\w+>>> " };
	_cleanup_free_ char *data = malloc(OUTPUT + 16);
	struct expect *e = new (patterns, ARRAY_SIZE(patterns));
	struct expect_match match;
	size_t len = OUTPUT - 1;

	ck_assert_ptr_nonnull(data);
	make_output(data, OUTPUT, "some words, 12-x and > (gd");
	for (size_t n = 4096; n < len; n += 65536) /* as it comes */
		ck_assert_int_eq(expect_scan(e, data, n, &match), 0);
	memcpy(data + len, "\n(gdb) ", 7);
	ck_assert_int_eq(expect_scan(e, data, len + 7, &match), 1);
	ck_assert_int_eq(match.index, 1);
	ck_assert_uint_eq(match.start, len + 1);
	ck_assert_uint_eq(match.end, len + 7);
	expect_free(e);
}
END_TEST

static volatile sig_atomic_t waits;

/* As a busy machine may. Longer than a search takes at most. */
static void wait_for_cpu(int sig)
{
	const struct timespec t = { .tv_sec = 1, .tv_nsec = 500000000 };

	waits = 1;
	(void)nanosleep(&t, NULL);
}

START_TEST(a_search_that_waits_for_a_processor_is_not_a_costly_one)
{
	/* In its first quarter: it takes 0.2 s of a processor, as each place is tried. */
	const struct itimerval soon = { .it_value.tv_usec = 10000 };
	const char *pattern = "[a-z]![^a]";
	_cleanup_free_ char *data = malloc(OUTPUT + 1);
	struct expect *e = new (&pattern, 1);
	struct expect_match match;

	ck_assert_ptr_nonnull(data);
	make_output(data, OUTPUT, "a");
	data[OUTPUT] = '\n';
	ck_assert(signal(SIGPROF, wait_for_cpu) != SIG_ERR);
	ck_assert_int_eq(setitimer(ITIMER_PROF, &soon, NULL), 0);
	ck_assert_int_eq(expect_scan(e, data, OUTPUT + 1, &match), 1);
	ck_assert_uint_eq(match.start, OUTPUT - 2);
	ck_assert(waits);
	expect_free(e);
}
END_TEST

static const struct {
	const char *pattern, *text;
	int length; /* of what is seen at its end; -1: nothing */
} pythons[] = {
	{ "\\u276f $", "~ \u276f ", 4 },
	{ "[\\u0061-c]{2}\\U0001f600", "xab\U0001f600", 6 },
	{ "\\\\u0061", "\\u0061", 6 }, /* a backslash, then five letters */
	{ "\\u00610", "xa0", 2 },
	{ "(?a)\\w+$", "\u00e9e", 1 },
	{ "(?u)\\w+$", "\u00e9e", 3 },
	{ "(?ai)E\\w$", "ee\u00e9", -1 },
	{ "(?ia)E\\w$", "ee", 2 },
};

/* What re takes and PCRE2 does not. */
START_TEST(patterns_are_pythons)
{
	const char *text = pythons[_i].text;
	struct expect *e = new (&pythons[_i].pattern, 1);
	int len = (int)strlen(text);
	struct expect_match match;

	if (pythons[_i].length < 0) {
		ck_assert_int_eq(expect_scan(e, text, (size_t)len, &match), 0);
	} else {
		ck_assert_int_eq(expect_scan(e, text, (size_t)len, &match), 1);
		ck_assert_int_eq((int)match.start, len - pythons[_i].length);
		ck_assert_int_eq((int)match.end, len);
	}
	expect_free(e);
}
END_TEST

START_TEST(what_python_refuses_is_refused)
{
	static const char *const patterns[] = { "\\u12", "\\U0001f60", "\\U00110000", "\\u",
						"(?au)x", "(?L)x", "(" };
	struct expect *e;

	for (size_t i = 0; i < ARRAY_SIZE(patterns); i++)
		ck_assert_msg(expect_new(&patterns[i], 1, &e) < 0, "%s", patterns[i]);
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("expect");

	tcase_add_loop_test(t, a_costly_search_ends, 0, (int)ARRAY_SIZE(costly));
	tcase_add_test(t, many_costly_patterns_cost_no_more_than_one);
	tcase_add_test(t, an_ordinary_pattern_is_found_behind_much_output);
	tcase_add_test(t, a_search_that_waits_for_a_processor_is_not_a_costly_one);
	tcase_add_loop_test(t, patterns_are_pythons, 0, (int)ARRAY_SIZE(pythons));
	tcase_add_test(t, what_python_refuses_is_refused);
	return run_case("expect", t);
}
