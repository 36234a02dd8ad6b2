/* SPDX-License-Identifier: Apache-2.0 */

/* plyfs test: the environment's test command, its output as it was, and what it means. */

#include "tools/env.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>

#include "store/base/util.h"

static void env_freep(struct ply_env **env)
{
	ply_env_free(*env);
}

/* usual: the command that was run for want of one on the line; else NULL. */
static void tell(const struct ply_tests *t, const char *usual)
{
	if (t->output.len) /* whether it could be written, cmd_flush tells */
		(void)fwrite(t->output.data, 1, t->output.len, stdout);
	(void)fflush(stdout);
	if (t->output.len && t->output.data[t->output.len - 1] != '\n')
		(void)fputc('\n', stderr);
	if (t->timed_out)
		(void)fprintf(stderr, "plyfs test: timed out\n");
	else if (!*t->runner)
		(void)fprintf(stderr,
			      "plyfs test: %s %d; no test runner's report was found%s%s%s\n",
			      t->exit_code < 0 ? "killed by signal" : "exit", abs(t->exit_code),
			      usual ? "; '" : "", usual ? usual : "",
			      usual ? "' was run: plyfs test -- COMMAND runs another" : "");
	else
		(void)fprintf(stderr,
			      "plyfs test: %s: %" PRIu64 " passed, %" PRIu64 " failed, %" PRIu64
			      " errors, %" PRIu64 " skipped\n",
			      t->runner, t->passed, t->failed, t->errors, t->skipped);
}

static int tell_json(const struct cmd *c, const struct ply_tests *t)
{
	uint64_t total = t->passed + t->failed + t->errors;
	json_t *o = json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:f, s:b, s:i, s:b}", "runner",
			      t->runner, "passed", (json_int_t)t->passed, "failed",
			      (json_int_t)t->failed, "errors", (json_int_t)t->errors, "skipped",
			      (json_int_t)t->skipped, "total", (json_int_t)total, "pass_rate",
			      ply_tests_pass_rate(t), "all_passed", ply_tests_all_passed(t),
			      "exit_code", t->exit_code, "timed_out", t->timed_out);
	json_t *output = json_stringn(t->output.len ? t->output.data : "", t->output.len);

	/* Bytes that are not UTF-8 are told by null: JSON has no way to hold them. */
	(void)json_object_set_new(o, "output", output ? output : json_null());
	return cmd_json(c, o);
}

int verb_test(struct cmd *c)
{
	_cleanup_(place_release) struct place place = { 0 };
	_cleanup_(env_freep) struct ply_env *env = NULL;
	_cleanup_(ply_tests_free) struct ply_tests tests = { 0 };
	_cleanup_free_ char *command = NULL;
	const char *in = NULL, *timeout = NULL;
	bool json = false;
	const struct option_def defs[] = {
		{ .name = "in", .text = &in },
		{ .name = "timeout", .text = &timeout },
		{ .name = "json", .flag = &json },
	};
	int code = cmd_parse(c, defs, ARRAY_SIZE(defs), OPTIONS_LEADING, 0, -1);

	if (code == DONE)
		code = place_find(c, in, &place);
	if (code == DONE && c->args.n == 1)
		command = strdup(c->args.v[0]); /* a line for the shell */
	else if (code == DONE && c->args.n)
		command = words_quote(c->args.v);
	if (code == DONE && c->args.n && !command)
		code = cmd_fail(c, "%s", strerror(ENOMEM));
	if (code == DONE)
		code = env_of_place(c, &place, command, timeout, &env);
	if (code)
		return code;
	if (ply_env_run_tests(env, &tests) < 0)
		return cmd_ply_failed(c);
	if (!json)
		tell(&tests, c->args.n ? NULL : ply_env_get(env, "test_command"));
	code = json ? tell_json(c, &tests) : cmd_flush(c);
	if (code)
		return code;
	if (tests.timed_out)
		return TIMED_OUT;
	if (tests.exit_code)
		return tests.exit_code < 0 ? 128 - tests.exit_code : tests.exit_code;
	return ply_tests_all_passed(&tests) ? DONE : FAILED;
}
