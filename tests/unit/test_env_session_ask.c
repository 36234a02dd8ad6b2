/* SPDX-License-Identifier: Apache-2.0 */

/* Programs that ask, prompts and what looks like them, patterns that end a wait. */

#include "env/expect.h"

#include "store/base/util.h"
#include "tests/unit/session_fixture.h"

START_TEST(an_interactive_program_is_talked_to)
{
	const char *expect[] = { "never", "\\(age\\)\\? $", "name\\? $" };
	struct ply_session_run run = { .command = "read -p 'name? ' n; read -p '(age)? ' a; echo "
						  "\"$n is $a\"; (exit 4)",
				       .timeout = LONG,
				       .interactive = true,
				       .expect = expect,
				       .n_expect = 3 };
	struct ply_observation o;

	ok(ply_session_run(session, &run, &o));
	ck_assert_int_eq(o.matched, 2);
	ck_assert_str_eq(o.output.data, "");
	ply_observation_free(&o);
	run.command = "Ada";
	ok(ply_session_run(session, &run, &o));
	ck_assert_int_eq(o.matched, 1);
	ply_observation_free(&o);
	run.command = "36";
	run.interactive = false;
	run.interactive_quit = true;
	run.n_expect = 0;
	ok(ply_session_run(session, &run, &o));
	ck_assert_int_eq(o.matched, -1);
	ck_assert_int_eq(o.exit_code, 4);
	ck_assert_str_eq(o.output.data, "Ada is 36\n");
	ply_observation_free(&o);
	gives("echo $n", "Ada\n");
}
END_TEST

/* Half a second of silence behind what looks like the prompt: nothing is typed into it. */
START_TEST(a_question_that_looks_like_the_prompt_waits_for_its_answer)
{
	gives("PS1='> '", "");
	gives("read -t 0.5 -p '> ' x; echo \"[$x]\"", "> []\n");
	gives("echo still", "still\n");
}
END_TEST

/* After set +m the fork that parses it takes no terminal: the shell waits for it in front. */
START_TEST(a_command_that_takes_long_to_parse_reads_none_of_our_lines)
{
	static const char asks[] = "read -t 0.5 -p '> ' x; echo \"[$x]\"";
	const size_t len = (size_t)1 << 20; /* takes bash some tenths of a second */
	char *text = malloc(len + 1);

	ck_assert_ptr_nonnull(text);
	memset(text, 'x', len);
	memcpy(text, asks, sizeof(asks) - 1);
	memcpy(text + sizeof(asks) - 1, "; : '", 5);
	memcpy(text + len - 1, "'", 2);
	gives("set +m", "");
	ck_assert_int_eq(strcmp(out(text, 0), "> []\n"), 0); /* too long to be shown */
	gives("echo still", "still\n");
	free(text);
}
END_TEST

START_TEST(what_is_printed_stays_though_it_looks_like_the_prompt)
{
	struct ply_text text;

	gives("PS1='> '", "");
	hangs("sh -c 'trap \"trap - INT; echo a \\> b \\> c; kill -INT \\$\\$\" INT;"
	      " echo ready; while :; do sleep 0.05; done'", "ready\n");
	ok(ply_session_interrupt(session, 1, 3, &text));
	ck_assert_str_eq(text.data, "a > b > c\n\n");
	ply_text_free(&text);
	gives("echo 'a > b'", "a > b\n");
	gives("PS1='$ '; readonly PS1", "");
	for (int i = 0; i < 20; i++)
		gives("echo '$ 4, price $ 5'", "$ 4, price $ 5\n");
}
END_TEST

START_TEST(patterns_end_a_wait_wherever_they_are)
{
	const char *expect[] = { "b+c", "(?<=x)y" };
	struct ply_session_run run = { .command = "printf 'ab'; sleep 0.1; printf 'bcd';"
						  "sleep 0.1; echo xy; sleep 0.2; echo z",
				       .timeout = LONG,
				       .expect = expect,
				       .n_expect = 2 };
	struct ply_observation o;

	ok(ply_session_run(session, &run, &o));
	ck_assert_int_eq(o.matched, 0);
	ck_assert_str_eq(o.output.data, "a");
	ply_observation_free(&o);
	gives("echo next", "dxy\nz\nnext\n");

	expect[0] = "(";
	ck_assert_int_eq(ply_session_run(session, &run, &o), PLY_INVALID);
	gives("echo fine", "fine\n");
}
END_TEST

START_TEST(patterns_are_found_across_any_cut)
{
	static const char text[] = "p\xc3\xa9>> x\xff>>> abc\xe2\x82\xac end";
	static const char *const patterns[] = { ">>> ", "\xe2\x82\xac", "c.* end", "[^a-z> ]>>>" };

	for (size_t i = 0; i < ARRAY_SIZE(patterns); i++) {
		struct expect *e;
		struct expect_match whole = { 0 }, cut = { 0 };
		int r = 0, once;

		ok(expect_new(&patterns[i], 1, &e));
		once = expect_scan(e, text, sizeof(text) - 1, &whole);
		expect_free(e);
		ok(expect_new(&patterns[i], 1, &e));
		for (size_t n = 0; n < sizeof(text) && r == 0; n++)
			r = expect_scan(e, text, n, &cut);
		ck_assert_int_eq(r, once);
		ck_assert_uint_eq(cut.start, whole.start);
		ck_assert_uint_eq(cut.end, whole.end);
		expect_free(e);
	}
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("session_ask");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, an_interactive_program_is_talked_to);
	tcase_add_test(t, a_question_that_looks_like_the_prompt_waits_for_its_answer);
	tcase_add_test(t, a_command_that_takes_long_to_parse_reads_none_of_our_lines);
	tcase_add_test(t, what_is_printed_stays_though_it_looks_like_the_prompt);
	tcase_add_test(t, patterns_end_a_wait_wherever_they_are);
	tcase_add_test(t, patterns_are_found_across_any_cut);
	return run_case("env_session_ask", t);
}
