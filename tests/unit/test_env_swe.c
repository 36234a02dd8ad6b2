/* SPDX-License-Identifier: Apache-2.0 */

/*
 * SWEEnv without a view: the order of calls and hooks on a dummy deployment. Its configurations
 * are test_env_swe_config.c's.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "env/pytext.h"
#include "env/swe.h"
#include "tests/unit/swe.h"

/* ---- helpers ---- */

/* Calls of the dummy, joined by newlines. */
static char *trace(struct ply_swe *swe)
{
	struct swe_deploy *d = swe_deployment(swe);
	struct ply_text text = { 0 };

	ck_assert_ptr_nonnull(d);
	for (size_t i = 0; i < dummy_calls(d)->n; i++)
		text_append_format(&text, "%s\n", dummy_calls(d)->items[i]);
	swe_deploy_unref(d);
	return text.data;
}

static char events[1024];

static int on_init(void *arg, struct ply_swe *swe)
{
	strcat(events, "init ");
	return 0;
}
static int on_start_deployment(void *arg)
{
	strcat(events, "start_deployment ");
	return 0;
}
static int on_copy_repo_started(void *arg, const char *repo_name)
{
	strcat(strcat(strcat(events, "copy_repo("), repo_name), ") ");
	return 0;
}
static int on_install_env_started(void *arg)
{
	strcat(events, "install_env ");
	return 0;
}
static int on_environment_startup(void *arg)
{
	strcat(events, "environment_startup ");
	return 0;
}
static int on_close(void *arg)
{
	strcat(events, "close ");
	return 0;
}

static const struct ply_swe_hooks all_hooks = {
	.on_init = on_init,
	.on_start_deployment = on_start_deployment,
	.on_copy_repo_started = on_copy_repo_started,
	.on_install_env_started = on_install_env_started,
	.on_environment_startup = on_environment_startup,
	.on_close = on_close,
};

/* ---- a life, on a dummy ---- */

#define DUMMY "deployment: {type: dummy}\n"
#define VARIABLES                                                                            \
	"run 25 export LANG=C.UTF-8 && export LC_ALL=C.UTF-8 && export PIP_PROGRESS_BAR=off" \
	" && export PAGER=cat\n"

START_TEST(start_sends_what_the_spec_traces)
{
	char dir[] = "/tmp/plyfs-test-swe-XXXXXX", command[256], config[512], wanted[1024];
	struct ply_swe *swe;
	char *seen;

	ck_assert_ptr_nonnull(mkdtemp(dir));
	snprintf(command, sizeof(command),
		 "mkdir %s/lrepo && cd %s/lrepo && git init -q . && echo x >x && git add x && "
		 "git -c user.name=t -c user.email=t@t commit -qm x",
		 dir, dir);
	run_or_die(command);
	snprintf(config, sizeof(config),
		 DUMMY "repo: {type: local, path: %s/lrepo}\npost_startup_commands: [echo ready]\n",
		 dir);
	swe = swe_of(config);
	events[0] = '\0';
	ck_assert_int_eq(ply_swe_add_hook(swe, &all_hooks), 0);
	ck_assert_msg(ply_swe_start(swe) == 0, "%s", ply_error());
	seen = trace(swe);
	snprintf(wanted, sizeof(wanted),
		 "start\ncreate_session\n" VARIABLES "run 25 cd /\nexists /lrepo\nupload /lrepo\n"
		 "execute chown -R root:root /lrepo\n"
		 "run 120 cd /lrepo && export ROOT=$(pwd -P) && git fetch && git status && "
		 "git restore . && git reset --hard && git checkout HEAD && git clean -fdq\n"
		 "run 500 echo ready\n");
	ck_assert_str_eq(seen, wanted);
	free(seen);
	ck_assert_str_eq(events, "init start_deployment copy_repo(lrepo) environment_startup ");
	ck_assert_int_eq(ply_swe_close(swe), 0);
	ck_assert_str_eq(events,
			 "init start_deployment copy_repo(lrepo) environment_startup close ");
	ply_swe_free(swe);

	snprintf(command, sizeof(command), "echo y >%s/lrepo/x", dir);
	run_or_die(command);
	swe = swe_of(config);
	ck_assert_int_eq(ply_swe_start(swe), PLY_INVALID);
	ck_assert_ptr_nonnull(
		strstr(ply_error(), "/lrepo is dirty. Please commit or stash changes."));
	ply_swe_free(swe);

	snprintf(config, sizeof(config), DUMMY "repo: {type: local, path: %s}\n", dir);
	swe = swe_of(config);
	ck_assert_int_eq(ply_swe_start(swe), PLY_INVALID);
	ck_assert_ptr_nonnull(strstr(ply_error(), "Could not find git repository at self.path="));
	ply_swe_free(swe);
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	run_or_die(command);
}
END_TEST

START_TEST(a_github_repository_is_cloned_by_one_command)
{
	struct ply_swe *swe = swe_of(DUMMY "repo: {github_url: o/r, base_commit: v 1}");
	char *seen;

	unsetenv("GITHUB_TOKEN");
	ck_assert_int_eq(ply_swe_start(swe), 0);
	seen = trace(swe);
	ck_assert_ptr_nonnull(
		strstr(seen, "execute mkdir /o__r && cd /o__r && git init && git remote add origin "
			     "https://github.com/o/r && git fetch --depth 1 origin 'v 1' && git "
			     "checkout FETCH_HEAD && cd ..\n"));
	free(seen);
	ply_swe_free(swe);
}
END_TEST

START_TEST(a_token_goes_to_github_alone)
{
	static const struct {
		const char *url;
		bool with_token;
	} table[] = {
		{ "o/r", true },
		{ "https://github.com/o/r", true },
		{ "https://www.github.com/o/r", true },
		{ "https://evilgithub.com/o/r", false },
		{ "https://example.org/github.com/o/r", false },
		{ "https://example.org?github.com/o/r", false },
		{ "https://github.com.example.org/github.com/o/r", false },
	};

	setenv("GITHUB_TOKEN", "T0KEN", 1);
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		struct ply_swe *swe;
		char config[256], *seen;

		snprintf(config, sizeof(config),
			 DUMMY "repo: {type: github, github_url: '%s'}", table[i].url);
		swe = swe_of(config);
		ck_assert_int_eq(ply_swe_start(swe), 0);
		seen = trace(swe);
		ck_assert_msg((strstr(seen, "https://T0KEN@") != NULL) == table[i].with_token,
			      "%s: %s", table[i].url, seen);
		free(seen);
		ply_swe_free(swe);
	}
	unsetenv("GITHUB_TOKEN");
}
END_TEST

START_TEST(reset_repeats_without_the_post_startup_commands)
{
	struct ply_swe *swe = swe_of(DUMMY "post_startup_commands: [a, b]");
	char *seen;

	events[0] = '\0';
	ply_swe_add_hook(swe, &all_hooks);
	ck_assert_int_eq(ply_swe_start(swe), 0);
	ck_assert_int_eq(ply_swe_reset(swe), 0);
	seen = trace(swe);
	ck_assert_str_eq(seen, "start\ncreate_session\n" VARIABLES
			       "run 25 cd /\nrun 500 a\nrun 500 b\nrun 25 cd /\n");
	free(seen);
	ck_assert_str_eq(events, "init start_deployment environment_startup environment_startup ");
	ply_swe_free(swe);
	ck_assert_str_eq(events,
			 "init start_deployment environment_startup environment_startup close ");
}
END_TEST

START_TEST(hard_reset_is_close_and_start)
{
	struct ply_swe *swe = swe_of(DUMMY);

	events[0] = '\0';
	ply_swe_add_hook(swe, &all_hooks);
	ck_assert_int_eq(ply_swe_start(swe), 0);
	ck_assert_int_eq(ply_swe_start(swe), PLY_STATE);
	ck_assert_int_eq(ply_swe_hard_reset(swe), 0);
	ck_assert_str_eq(events, "init start_deployment environment_startup close "
				 "start_deployment environment_startup ");
	ck_assert_int_eq(ply_swe_close(swe), 0);
	ck_assert_int_eq(ply_swe_close(swe), 0);
	ply_swe_free(swe);
}
END_TEST

START_TEST(nothing_goes_before_start_and_after_close)
{
	struct ply_swe *swe = swe_of(DUMMY);
	struct ply_text t = { 0 };

	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(ply_swe_communicate(swe, "ls", NULL, &t), PLY_STATE);
		ck_assert_int_eq(ply_swe_reset(swe), PLY_STATE);
		ck_assert_int_eq(ply_swe_interrupt(swe), PLY_STATE);
		memset(&t, 0x55, sizeof(t));
		ck_assert_int_eq(ply_swe_read_file(swe, "/x", &t), PLY_STATE);
		ck_assert_ptr_null(t.data);
		ck_assert_uint_eq(t.len, 0);
		ck_assert_int_eq(ply_swe_write_file(swe, "/x", "", 0), PLY_STATE);
		ck_assert_int_eq(ply_swe_execute(swe, "ls", false, NULL, 0, NULL, NULL), PLY_STATE);
		ck_assert_ptr_null(ply_swe_env(swe));
		ck_assert_int_eq(ply_swe_start(swe), 0);
		ck_assert_int_eq(ply_swe_close(swe), 0);
	}
	ply_swe_free(swe);
}
END_TEST

static int refuse(void *arg)
{
	return *(int *)arg;
}

START_TEST(a_hook_may_end_what_it_is_called_from)
{
	int status = PLY_DENIED;
	const struct ply_swe_hooks at_start = { .arg = &status, .on_start_deployment = refuse };
	const struct ply_swe_hooks at_end = { .arg = &status, .on_environment_startup = refuse };
	struct ply_swe *swe = swe_of(DUMMY);

	ply_swe_add_hook(swe, &at_start);
	ck_assert_int_eq(ply_swe_start(swe), PLY_DENIED);
	ck_assert_str_eq(ply_error(), "the hook on_start_deployment ended it (PLY_DENIED)");
	ck_assert_ptr_null(swe_deployment(swe));
	ply_swe_free(swe);

	swe = swe_of(DUMMY);
	ply_swe_add_hook(swe, &at_end);
	ck_assert_int_eq(ply_swe_start(swe), PLY_DENIED);
	status = 1; /* no failure */
	ck_assert_int_eq(ply_swe_reset(swe), 0);
	ply_swe_free(swe);
}
END_TEST

static int talk(void *arg)
{
	return ply_swe_communicate(arg, "from a hook", NULL, NULL);
}

START_TEST(hooks_may_use_the_environment)
{
	struct ply_swe *swe = swe_of(DUMMY);
	const struct ply_swe_hooks hooks = { .arg = swe, .on_environment_startup = talk };
	char *seen;

	ply_swe_add_hook(swe, &hooks);
	ck_assert_int_eq(ply_swe_start(swe), 0);
	seen = trace(swe);
	ck_assert_ptr_nonnull(strstr(seen, "run 25 from a hook\n"));
	free(seen);
	ply_swe_free(swe);
}
END_TEST

/* ---- communicate ---- */

/* The first two outputs are those of start: the variables, `cd /`. */
#define OUTPUTS(...) "deployment: {type: dummy, outputs: ['', '', " __VA_ARGS__ "]}"

START_TEST(failures_follow_the_check_mode)
{
	struct ply_swe *swe =
		swe_of(OUTPUTS("{output: a, exit_code: 3}, {output: b, exit_code: 3}, "
			       "{output: c, exit_code: 3}, {output: d}"));
	struct ply_swe_communicate o = { 0 };
	struct ply_text t;

	events[0] = '\0';
	ply_swe_add_hook(swe, &all_hooks);
	ck_assert_int_eq(ply_swe_start(swe), 0);
	ck_assert_int_eq(ply_swe_communicate(swe, "x", &o, &t), 0);
	ck_assert_str_eq(t.data, "a");
	ply_text_free(&t);

	o.check = PLY_SWE_WARN;
	ck_assert_int_eq(ply_swe_communicate(swe, "it's", &o, &t), 1);
	ck_assert_str_eq(t.data, "b");
	ck_assert_str_eq(ply_error(), "Command \"it's\" failed (r.exit_code=3): Command failed");
	ply_text_free(&t);

	o = (struct ply_swe_communicate){ .check = PLY_SWE_RAISE,
					  .error_msg = "no luck",
					  .keep_open = true };
	ck_assert_int_eq(ply_swe_communicate(swe, "x\n", &o, &t), PLY_COMMAND_FAILED);
	ck_assert_str_eq(t.data, "c");
	ck_assert_str_eq(ply_error(), "Command 'x\\n' failed (r.exit_code=3): no luck");
	ply_text_free(&t);
	ck_assert_ptr_null(strstr(events, "close"));

	/* An exit code that is not known is a failure. */
	o.keep_open = false;
	ck_assert_int_eq(ply_swe_communicate(swe, "y", &o, &t), PLY_COMMAND_FAILED);
	ck_assert_str_eq(ply_error(), "Command 'y' failed (r.exit_code=None): no luck");
	ply_text_free(&t);
	ck_assert_ptr_nonnull(strstr(events, "close"));
	ck_assert_int_eq(ply_swe_communicate(swe, "z", &o, &t), PLY_STATE);
	ply_swe_free(swe);
}
END_TEST

START_TEST(a_dummy_without_outputs_says_so)
{
	struct ply_swe *swe = swe_of(OUTPUTS("last"));
	struct ply_text t;

	ck_assert_int_eq(ply_swe_start(swe), 0);
	ck_assert_int_eq(ply_swe_communicate(swe, "x", NULL, &t), 0);
	ck_assert_str_eq(t.data, "last");
	ply_text_free(&t);
	ck_assert_int_eq(ply_swe_communicate(swe, "x", NULL, &t), PLY_FAILED);
	ck_assert_ptr_nonnull(strstr(ply_error(), "no more outputs"));
	/* No command's failure: it stays open. */
	ck_assert_int_eq(ply_swe_interrupt(swe), 0);
	ply_swe_free(swe);
}
END_TEST

START_TEST(last_action_is_a_second_command)
{
	struct ply_swe *swe = swe_of(DUMMY);
	const struct ply_swe_communicate o = { .timeout = 7, .set_last_action = true };
	char *seen;

	ck_assert_int_eq(ply_swe_start(swe), 0);
	ck_assert_int_eq(ply_swe_communicate(swe, " \techo 'a'\n", &o, NULL), 0);
	seen = trace(swe);
	ck_assert_ptr_nonnull(strstr(seen, "run 7  \techo 'a'\n\n"
					   "run 1 export LAST_ACTION='echo '\"'\"'a'\"'\"''\n"));
	free(seen);
	ply_swe_free(swe);
}
END_TEST

START_TEST(long_commands_are_cut_in_sentences_only)
{
	struct ply_swe *swe = swe_of(OUTPUTS("{output: a, exit_code: 1}"));
	const struct ply_swe_communicate o = { .check = PLY_SWE_RAISE };
	char *command = malloc(100001);

	memset(command, 'x', 100000);
	command[100000] = '\0';
	ck_assert_int_eq(ply_swe_start(swe), 0);
	ck_assert_int_eq(ply_swe_communicate(swe, command, &o, NULL), PLY_COMMAND_FAILED);
	ck_assert_ptr_nonnull(strstr(ply_error(), "xxx... failed (r.exit_code=1): Command failed"));
	free(command);
	ply_swe_free(swe);
}
END_TEST

/* ---- variables, files ---- */

START_TEST(variables_are_exported_by_one_command)
{
	static const char *const pairs[] = { "A", "1", "B", "two words", "_c3", "" };
	static const char *const wrong[] = { "A=1; rm", "x" };
	struct ply_swe *swe = swe_of(DUMMY);
	char *seen;

	ck_assert_int_eq(ply_swe_start(swe), 0);
	ck_assert_int_eq(ply_swe_set_env(swe, pairs, 3), 0);
	ck_assert_int_eq(ply_swe_set_env(swe, NULL, 0), 0);
	ck_assert_int_eq(ply_swe_set_env(swe, wrong, 1), PLY_INVALID);
	seen = trace(swe);
	ck_assert_ptr_nonnull(
		strstr(seen, "cd /\nrun 25 export A=1 && export B='two words' && export _c3=''\n"));
	free(seen);
	ply_swe_free(swe);
}
END_TEST

START_TEST(relative_paths_are_in_the_repository)
{
	struct ply_swe *swe = swe_of(DUMMY "repo: testbed");
	struct ply_text t;
	char *seen;

	ck_assert_int_eq(ply_swe_start(swe), 0);
	ck_assert_int_eq(ply_swe_read_file(swe, "a/b", &t), 0);
	ply_text_free(&t);
	ck_assert_int_eq(ply_swe_read_file(swe, "/root/c", &t), 0);
	ply_text_free(&t);
	seen = trace(swe);
	ck_assert_ptr_nonnull(strstr(seen, "read_file /testbed/a/b\nread_file /root/c\n"));
	free(seen);
	ply_swe_free(swe);

	swe = swe_of(DUMMY);
	ck_assert_int_eq(ply_swe_start(swe), 0);
	ck_assert_int_eq(ply_swe_read_file(swe, "a", &t), PLY_INVALID);
	ck_assert_str_eq(ply_error(), "Repository not set, cannot read file");
	ply_swe_free(swe);
}
END_TEST

START_TEST(paths_begin_at_the_root)
{
	static const char *const table[][3] = {
		{ "", "/x", "/x" },	  { "", "/", "/" },	    { "/r", "/x", "/r/x" },
		{ "/r", "/", "/r" },	  { "/r", "/r/x", "/r/x" }, { "/r", "/r", "/r" },
		{ "/r", "/rx", "/r/rx" },
	};

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		struct swe_deploy d = { .root = (char *)table[i][0] };
		struct ply_text t;

		ck_assert_int_eq(deploy_path(&d, table[i][1], &t), 0);
		ck_assert_str_eq(t.data, table[i][2]);
		ply_text_free(&t);
	}
}
END_TEST

int main(void)
{
	TCase *tc = tcase_create("all");

	tcase_add_test(tc, start_sends_what_the_spec_traces);
	tcase_add_test(tc, a_github_repository_is_cloned_by_one_command);
	tcase_add_test(tc, a_token_goes_to_github_alone);
	tcase_add_test(tc, reset_repeats_without_the_post_startup_commands);
	tcase_add_test(tc, hard_reset_is_close_and_start);
	tcase_add_test(tc, nothing_goes_before_start_and_after_close);
	tcase_add_test(tc, a_hook_may_end_what_it_is_called_from);
	tcase_add_test(tc, hooks_may_use_the_environment);
	tcase_add_test(tc, failures_follow_the_check_mode);
	tcase_add_test(tc, a_dummy_without_outputs_says_so);
	tcase_add_test(tc, last_action_is_a_second_command);
	tcase_add_test(tc, long_commands_are_cut_in_sentences_only);
	tcase_add_test(tc, variables_are_exported_by_one_command);
	tcase_add_test(tc, relative_paths_are_in_the_repository);
	tcase_add_test(tc, paths_begin_at_the_root);
	return run_case("env_swe", tc);
}
