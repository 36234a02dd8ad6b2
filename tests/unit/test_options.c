/* SPDX-License-Identifier: Apache-2.0 */

/* Command line options by table. */

#include "tools/options.c" /* the program's files are in no library */

#include "tests/unit/run.h"

struct got {
	bool flag;
	const char *text;
	uint64_t number, size;
	double seconds;
	uint32_t bits;
	struct arguments args;
	char why[200];
};

static int parse(struct got *g, unsigned flags, int argc, char **argv)
{
	static const char *const words[] = { "salt", "salt-free", "oil", NULL };
	const struct option_def defs[] = {
		{ .name = "flag", .letter = 'f', .flag = &g->flag },
		{ .name = "text", .letter = 't', .text = &g->text },
		{ .name = "count", .letter = 'n', .number = &g->number },
		{ .name = "timeout", .seconds = &g->seconds },
		{ .name = "memory", .size = &g->size },
		{ .name = "without", .bits = &g->bits, .words = words },
	};

	return options_parse(argc, argv, defs, ARRAY_SIZE(defs), flags, &g->args, g->why,
			     sizeof(g->why));
}

#define PARSE(g, flags, ...)                                                         \
	({                                                                           \
		char *words[] = { (char *)"verb", ##__VA_ARGS__, NULL };             \
		parse(g, flags, (int)(sizeof(words) / sizeof(words[0])) - 1, words); \
	})

START_TEST(options_may_stand_anywhere)
{
	struct got g = {};
	char *words[] = { (char *)"verb",   (char *)"one", (char *)"-f",    (char *)"two",
			  (char *)"--text", (char *)"x",   (char *)"three", NULL };

	ck_assert_int_eq(parse(&g, 0, 7, words), 0);
	ck_assert(g.flag);
	ck_assert_str_eq(g.text, "x");
	ck_assert_int_eq(g.args.n, 3);
	ck_assert_str_eq(g.args.v[0], "one");
	ck_assert_str_eq(g.args.v[1], "two");
	ck_assert_str_eq(g.args.v[2], "three");
	ck_assert_ptr_null(g.args.v[3]);
}
END_TEST

START_TEST(values_come_in_all_usual_forms)
{
	struct got g = {};

	ck_assert_int_eq(PARSE(&g, 0, (char *)"--text=a=b", (char *)"-n12", (char *)"--timeout",
			       (char *)"0.5"),
			 0);
	ck_assert_str_eq(g.text, "a=b");
	ck_assert_uint_eq(g.number, 12);
	ck_assert(g.seconds == 0.5);
	ck_assert_int_eq(PARSE(&g, 0, (char *)"--timeout=1.5m"), 0);
	ck_assert(g.seconds == 90);
	ck_assert_int_eq(PARSE(&g, 0, (char *)"--timeout=2h"), 0);
	ck_assert(g.seconds == 7200);
	ck_assert_int_eq(PARSE(&g, 0, (char *)"--timeout=7d"), 0);
	ck_assert(g.seconds == 604800);
	ck_assert_int_eq(PARSE(&g, 0, (char *)"--timeout=3s"), 0);
	ck_assert(g.seconds == 3);
	ck_assert_int_eq(PARSE(&g, 0, (char *)"-ftvalue"), 0);
	ck_assert_str_eq(g.text, "value");
	ck_assert_int_eq(PARSE(&g, 0, (char *)"-ft", (char *)"--"), 0);
	ck_assert_str_eq(g.text, "--");
}
END_TEST

START_TEST(words_add_up)
{
	struct got g = {};

	ck_assert_int_eq(PARSE(&g, 0, (char *)"--without=oil,salt", (char *)"--without",
			       (char *)"oil"),
			 0);
	ck_assert_uint_eq(g.bits, 1 | 4);
	ck_assert_int_eq(PARSE(&g, 0, (char *)"--without=salt-free"), 0);
	ck_assert_uint_eq(g.bits, 1 | 2 | 4);
}
END_TEST

START_TEST(two_dashes_end_the_options)
{
	struct got g = {};
	char *words[] = { (char *)"verb", (char *)"a",	(char *)"--",
			  (char *)"-f",	  (char *)"--", NULL };

	ck_assert_int_eq(parse(&g, 0, 5, words), 0);
	ck_assert(!g.flag);
	ck_assert_int_eq(g.args.n, 3);
	ck_assert_str_eq(g.args.v[0], "a");
	ck_assert_str_eq(g.args.v[1], "-f");
	ck_assert_str_eq(g.args.v[2], "--");
}
END_TEST

START_TEST(a_leading_argument_ends_them_when_asked)
{
	struct got g = {};
	char *words[] = { (char *)"run", (char *)"-f",	   (char *)"make",
			  (char *)"-n",	 (char *)"--text", NULL };

	ck_assert_int_eq(parse(&g, OPTIONS_LEADING, 5, words), 0);
	ck_assert(g.flag);
	ck_assert_int_eq(g.args.n, 3);
	ck_assert_str_eq(g.args.v[1], "-n");
}
END_TEST

START_TEST(a_single_dash_is_an_argument)
{
	struct got g = {};
	char *words[] = { (char *)"import", (char *)"-", (char *)"-f", NULL };

	ck_assert_int_eq(parse(&g, 0, 3, words), 0);
	ck_assert_int_eq(g.args.n, 1);
	ck_assert_str_eq(g.args.v[0], "-");
}
END_TEST

START_TEST(sizes_have_units)
{
	static const struct {
		const char *word;
		uint64_t size;
	} sizes[] = {
		{ "--memory=7", 7 },
		{ "--memory=3k", 3 << 10 },
		{ "--memory=512M", 512 << 20 },
		{ "--memory=2G", UINT64_C(2) << 30 },
		{ "--memory=16777215T", UINT64_C(16777215) << 40 },
	};

	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		struct got g = {};

		ck_assert_int_eq(PARSE(&g, 0, (char *)sizes[i].word), 0);
		ck_assert_uint_eq(g.size, sizes[i].size);
	}
}
END_TEST

START_TEST(each_mistake_is_named)
{
	static const struct {
		const char *word, *why;
	} mistakes[] = {
		{ "--nope", "there is no option --nope" },
		{ "--flag=1", "--flag takes no value" },
		{ "--text", "--text wants a value" },
		{ "-t", "-t wants a value" },
		{ "-x", "there is no option -x" },
		{ "--count=x", "--count wants a number, not 'x'" },
		{ "--count=-1", "--count wants a number, not '-1'" },
		{ "--count=99999999999999999999",
		  "--count wants a number, not '99999999999999999999'" },
		{ "--timeout=nan", "--timeout wants seconds, or 5m, 2h, 7d, not 'nan'" },
		{ "--timeout=-1", "--timeout wants seconds, or 5m, 2h, 7d, not '-1'" },
		{ "--timeout=m", "--timeout wants seconds, or 5m, 2h, 7d, not 'm'" },
		{ "--timeout=5mm", "--timeout wants seconds, or 5m, 2h, 7d, not '5mm'" },
		{ "--timeout=20000d",
		  "--timeout wants seconds, or 5m, 2h, 7d, not '20000d'" },
		{ "--timeout=", "--timeout wants seconds, or 5m, 2h, 7d, not ''" },
		{ "--memory=M", "--memory wants a size as 512M or 2G, not 'M'" },
		{ "--memory=1MB", "--memory wants a size as 512M or 2G, not '1MB'" },
		{ "--memory=-1", "--memory wants a size as 512M or 2G, not '-1'" },
		{ "--memory=16777216T", "--memory wants a size as 512M or 2G, not '16777216T'" },
		{ "--fla", "there is no option --fla" },
		{ "--without=oil,sal",
		  "--without wants no 'sal', but some of salt, salt-free, oil" },
		{ "--without=oil,", "--without wants no '', but some of salt, salt-free, oil" },
	};

	for (size_t i = 0; i < sizeof(mistakes) / sizeof(mistakes[0]); i++) {
		struct got g = {};

		ck_assert_int_eq(PARSE(&g, 0, (char *)mistakes[i].word), -1);
		ck_assert_str_eq(g.why, mistakes[i].why);
	}
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("options");

	tcase_add_test(t, options_may_stand_anywhere);
	tcase_add_test(t, values_come_in_all_usual_forms);
	tcase_add_test(t, words_add_up);
	tcase_add_test(t, two_dashes_end_the_options);
	tcase_add_test(t, a_leading_argument_ends_them_when_asked);
	tcase_add_test(t, a_single_dash_is_an_argument);
	tcase_add_test(t, sizes_have_units);
	tcase_add_test(t, each_mistake_is_named);
	return run_case("options", t);
}
