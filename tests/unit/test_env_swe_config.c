/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What SWEEnv is made from: quoting and repr against what Python says, configurations and their
 * mistakes, URLs, names and the command of a reset.
 */

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "env/pytext.h"
#include "env/swe.h"
#include "env/swe_config.h"
#include "env/zip.h"
#include "tests/unit/swe.h"

/* The configuration is refused with this status and these words. */
static void refuses(const char *config, int status, const char *words)
{
	struct ply_swe *swe = NULL;
	int r = ply_swe_from_config(config, strlen(config), &swe);

	ck_assert_msg(r == status, "%s: %s, %s", config, ply_status_name(r),
		      r < 0 ? ply_error() : "taken");
	ck_assert_ptr_null(swe);
	ck_assert_msg(strstr(ply_error(), words), "%s: \"%s\" does not say \"%s\"", config,
		      ply_error(), words);
}

static json_t *parsed(const char *config)
{
	json_t *j = NULL;
	int r = swe_config_parse(config, strlen(config), &j);

	ck_assert_msg(r == 0, "%s: %s", config, ply_error());
	return j;
}

/* ---- text ---- */

START_TEST(quoting_is_shlex_quotes)
{
	/* Right: what Python 3.11's shlex.quote says. */
	static const char *const table[][2] = {
		{ "", "''" },
		{ "a", "a" },
		{ "A-Za_z0.9@%+=:,./-", "A-Za_z0.9@%+=:,./-" },
		{ "two words", "'two words'" },
		{ "it's", "'it'\"'\"'s'" },
		{ "'", "''\"'\"''" },
		{ "''", "''\"'\"''\"'\"''" },
		{ "$(pwd)", "'$(pwd)'" },
		{ "a\nb", "'a\nb'" },
		{ "~", "'~'" },
		{ "#x", "'#x'" },
		{ "\"", "'\"'" },
		{ "\\", "'\\'" },
		{ "caf\xc3\xa9", "'caf\xc3\xa9'" },
		{ "*", "'*'" },
		{ "a;b", "'a;b'" },
		{ "!x", "'!x'" },
	};

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		struct ply_text t = { 0 };

		ck_assert_int_eq(ply_quote(table[i][0], &t), 0);
		ck_assert_str_eq(t.data, table[i][1]);
		ply_text_free(&t);
	}
}
END_TEST

START_TEST(repr_is_pythons)
{
	static const char *const table[][2] = {
		{ "", "''" },
		{ "ls", "'ls'" },
		{ "it's", "\"it's\"" },
		{ "say \"hi\"", "'say \"hi\"'" },
		{ "'\"", "'\\'\"'" },
		{ "a\\b", "'a\\\\b'" },
		{ "\t\n\r", "'\\t\\n\\r'" },
		{ "\x01\x1b\x7f", "'\\x01\\x1b\\x7f'" },
		{ "caf\xc3\xa9", "'caf\xc3\xa9'" },
		{ "\xc2\xa0", "'\\xa0'" },		      /* no-break space */
		{ "\xe2\x80\x8b", "'\\u200b'" },	      /* zero width space */
		{ "\xef\xbb\xbf", "'\\ufeff'" },	      /* byte order mark */
		{ "\xf0\x9f\x98\x80", "'\xf0\x9f\x98\x80'" }, /* a face */
		{ "\xf3\xa0\x80\x81", "'\\U000e0001'" },
		{ "\xff", "'\\udcff'" },
		{ "\xc3", "'\\udcc3'" },
		{ "\xc0\x80", "'\\udcc0\\udc80'" },	       /* overlong */
		{ "\xed\xa0\x80", "'\\udced\\udca0\\udc80'" }, /* a surrogate */
	};

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		struct ply_text t = { 0 };

		ck_assert_int_eq(text_append_repr(&t, table[i][0], strlen(table[i][0])), 0);
		ck_assert_str_eq(t.data, table[i][1]);
		ply_text_free(&t);
	}
}
END_TEST

START_TEST(strip_is_pythons)
{
	static const char *const table[][2] = {
		{ "", "" },
		{ "  \t\n ", "" },
		{ " a b ", "a b" },
		{ "a", "a" },
		{ "\x1c\x0b\x0c"
		  "a\x1f",
		  "a" },
		{ "\xc2\xa0"
		  "a\xe3\x80\x80",
		  "a" },
		{ "\xc3\xa9 ", "\xc3\xa9" },
		{ "\xff ", "\xff" },
	};

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		const char *s = table[i][0];
		size_t len = strlen(s);

		text_strip(&s, &len);
		ck_assert_int_eq(len, strlen(table[i][1]));
		ck_assert(memcmp(s, table[i][1], len) == 0);
	}
}
END_TEST

START_TEST(control_sequences_go_as_in_swe_rex)
{
	static const char *const table[][2] = {
		{ "", "" },
		{ "plain\n", "plain\n" },
		{ "\033[31mred\033[0m\n", "red\n" },
		{ "\033[1;38;5;10mx", "x" },
		{ "\033]0;title\a", "itle\a" }, /* SWE-ReX mangles titles like this */
		{ "\033(Bx", "\033(Bx" },
		{ "a\033", "a\033" },
		{ "a\033[", "a\033[" },
		{ "a\033[31", "a\033[31" },
		{ "\r\n", "\r\n" },
	};

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		struct ply_text t = { 0 };

		text_append_str(&t, table[i][0]);
		text_remove_controls(&t);
		ck_assert_str_eq(t.data, table[i][1]);
		ply_text_free(&t);
	}
}
END_TEST

/* ---- configurations ---- */

START_TEST(defaults_are_upstreams_but_for_the_deployment)
{
	static const char *const empty[] = { "", "{}", "null", "# nothing\n", "  \n" };

	for (size_t i = 0; i < sizeof(empty) / sizeof(empty[0]); i++) {
		json_t *j = parsed(empty[i]);

		ck_assert_str_eq(config_string(j, "name"), "main");
		ck_assert(json_is_null(json_object_get(j, "repo")));
		ck_assert_int_eq(json_array_size(json_object_get(j, "post_startup_commands")), 0);
		ck_assert_double_eq(config_number(j, "post_startup_command_timeout"), 500);
		ck_assert_str_eq(config_string(json_object_get(j, "deployment"), "type"), "local");
		json_decref(j);
	}
}
END_TEST

START_TEST(yaml_and_json_say_the_same)
{
	static const char yaml[] = "name: x\n"
				   "deployment: {type: remote, auth_token: \"1234\", port: 8000}\n"
				   "repo:\n"
				   "  type: preexisting\n"
				   "  repo_name: 'testbed'\n"
				   "  reset: no\n"
				   "post_startup_commands:\n"
				   "  - |\n"
				   "    a\n"
				   "    b\n"
				   "  - \"c\\td\"\n"
				   "post_startup_command_timeout: 0x10\n";
	static const char json[] =
		"{\"name\": \"x\", \"deployment\": {\"type\": \"remote\", \"auth_token\": \"1234\","
		"\"port\": \"8000\"}, \"repo\": {\"type\": \"preexisting\", \"repo_name\": "
		"\"testbed\", \"reset\": \"off\"}, \"post_startup_commands\": [\"a\\nb\\n\", "
		"\"c\\td\"], \"post_startup_command_timeout\": 16.0}";
	json_t *a = parsed(yaml), *b = parsed(json);

	ck_assert(json_equal(a, b));
	ck_assert(json_is_false(json_object_get(json_object_get(a, "repo"), "reset")));
	json_decref(a);
	json_decref(b);
}
END_TEST

START_TEST(json_may_hold_what_yaml_may_not)
{
	json_t *j = parsed("{\n\t\"name\":\t\"\\ud83d\\ude00\\/\"}");

	ck_assert_str_eq(config_string(j, "name"), "\xf0\x9f\x98\x80/");
	json_decref(j);
	j = parsed("{name: flow}");
	ck_assert_str_eq(config_string(j, "name"), "flow");
	json_decref(j);
}
END_TEST

START_TEST(an_unknown_key_is_refused_by_its_path)
{
	refuses("nam: x", PLY_INVALID,
		"nam is not known; the fields of an environment are name, deployment, repo, "
		"post_startup_commands, post_startup_command_timeout, reset");
	refuses("deployment: {type: local, workdri: /x}", PLY_INVALID,
		"deployment.workdri is not known; the fields of a local are type, workdir");
	refuses("deployment: {type: remote, auth_token: x, image: y}", PLY_INVALID,
		"deployment.image is not known");
	refuses("repo: {type: github, github_url: a/b, repo_name: c}", PLY_INVALID,
		"repo.repo_name is not known; the fields of a github are type, base_commit, "
		"github_url, clone_timeout");
	refuses("deployment: {type: dummy, outputs: [{output: a, exit: 1}]}", PLY_INVALID,
		"deployment.outputs[0].exit is not known");
}
END_TEST

START_TEST(mistakes_get_a_sentence)
{
	refuses("[1]", PLY_INVALID, "must be a mapping");
	refuses("name: 5", PLY_INVALID, "name must be a string, it is a number");
	refuses("name: null", PLY_INVALID, "name must be a string, it is null");
	refuses("repo: {type: local, path: /x, base_commit: 1234567}", PLY_INVALID,
		"repo.base_commit must be a string, it is a number (in quotes");
	refuses("repo: {type: local}", PLY_INVALID, "repo.path is missing");
	refuses("repo: 5", PLY_INVALID, "repo must be a mapping, it is a number");
	refuses("repo: {type: svn}", PLY_INVALID,
		"repo.type is \"svn\"; it must be one of local, github, preexisting, "
		"swesmith_preexisting");
	refuses("deployment: {type: vm}", PLY_INVALID,
		"deployment.type is \"vm\"; it must be one of local, container, remote, dummy");
	refuses("deployment: {type: 5}", PLY_INVALID, "deployment.type must be one of");
	refuses("deployment: null", PLY_INVALID, "deployment must be a mapping, it is null");
	refuses("deployment: {type: remote}", PLY_INVALID, "deployment.auth_token is missing");
	refuses("deployment: {root: /a, workdir: /b}", PLY_INVALID, "two names of one thing");
	refuses("post_startup_commands: echo", PLY_INVALID, "must be a list of strings");
	refuses("post_startup_commands: [echo, 5]", PLY_INVALID, "must be a list of strings");
	refuses("post_startup_command_timeout: 1.5", PLY_INVALID, "must be a whole number");
	refuses("post_startup_command_timeout: soon", PLY_INVALID, "must be a number");
	refuses("post_startup_command_timeout: 0", PLY_INVALID, "must be more than 0");
	refuses("reset: git", PLY_INVALID, "must be \"snapshot\" or \"commands\"");
	refuses("{deployment: {type: dummy}, reset: snapshot}", PLY_INVALID,
		"reset: snapshot needs a local or container deployment");
	refuses("name: a\nname: b", PLY_INVALID, "line 2: this field was given before");
	refuses("name: a\n  b: c", PLY_INVALID, "line 2");
	refuses("{\"name\": \"a\" \"b\"}", PLY_INVALID, "line 1, column");
	refuses("a: &x [*x]", PLY_INVALID, "too deep");
	refuses("--- {}\n--- {}", PLY_INVALID, "more than one document");
	refuses("name: \"a\\0b\"", PLY_INVALID, "a NUL");
	refuses("name: \xff", PLY_INVALID, "byte");
}
END_TEST

START_TEST(aliases_of_aliases_do_not_explode)
{
	char config[2000] = "a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n";

	for (int i = 1; i < 9; i++) {
		char line[128];

		snprintf(line, sizeof(line),
			 "a%d: &a%d [*a%d,*a%d,*a%d,*a%d,*a%d,*a%d,*a%d,*a%d]\n", i, i, i - 1,
			 i - 1, i - 1, i - 1, i - 1, i - 1, i - 1, i - 1);
		strcat(config, line);
	}
	refuses(config, PLY_INVALID, "too many values");
}
END_TEST

START_TEST(other_deployments_are_told_what_to_use_instead)
{
	refuses("deployment: {type: docker, image: x, pull: never}", PLY_UNSUPPORTED,
		"use \"container\"");
	refuses("deployment: {image: x}", PLY_UNSUPPORTED, "docker");
	refuses("deployment: {type: modal}", PLY_UNSUPPORTED, "use \"remote\"");
	refuses("deployment: {type: fargate}", PLY_UNSUPPORTED, "use \"remote\"");
	refuses("deployment: {type: daytona}", PLY_UNSUPPORTED, "use \"remote\"");
	refuses("deployment: {api_key: x, image: y}", PLY_UNSUPPORTED, "daytona");
}
END_TEST

START_TEST(types_follow_from_their_fields)
{
	static const char *const table[][3] = {
		{ "repo: {path: /x/y}", "local", "y" },
		{ "repo: {github_url: a/b}", "github", "a__b" },
		{ "repo: {repo_name: testbed}", "preexisting", "testbed" },
		{ "repo: {repo_name: t, mirror_url: u}", "swesmith_preexisting", "t" },
		/* simplified input */
		{ "repo: 'https://github.com/a/b'", "github", "a__b" },
		{ "repo: testbed", "preexisting", "testbed" },
		{ "repo: ./some/where", "local", "where" },
	};
	struct ply_swe *swe;

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		swe = swe_of(table[i][0]);
		ck_assert_str_eq(swe->repo->type, table[i][1]);
		ck_assert_str_eq(swe->repo->name, table[i][2]);
		ck_assert_str_eq(swe->repo->base_commit, "HEAD");
		ply_swe_free(swe);
	}
	swe = swe_of("repo: ''");
	ck_assert_ptr_null(swe->repo);
	ply_swe_free(swe);
}
END_TEST

/* As whoever begins with setlocale(LC_ALL, "") has it in half of Europe; false: cannot be made. */
static bool have_commas(void)
{
	char dir[] = "/tmp/plyfs-locale-XXXXXX", command[512];
	bool have;

	ck_assert_ptr_nonnull(mkdtemp(dir));
	/* It warns of the rest that a locale has, which is the C locale's then. */
	snprintf(command, sizeof(command),
		 "cd %s && printf 'LC_NUMERIC\\ndecimal_point \",\"\\nthousands_sep \"\"\\n"
		 "grouping -1\\nEND LC_NUMERIC\\n' >commas "
		 "&& localedef -c -i commas ./xx_XX >log 2>&1",
		 dir);
	(void)!system(command);
	setenv("LOCPATH", dir, 1);
	have = setlocale(LC_NUMERIC, "xx_XX");
	snprintf(command, sizeof(command), "rm -r %s", dir);
	run_or_die(command);
	return have && strcmp(localeconv()->decimal_point, ",") == 0;
}

START_TEST(a_number_has_a_point_whatever_the_programs_locale)
{
	static const char *const configs[] = {
		"deployment: {type: remote, auth_token: x, timeout: 0.5}",
		"deployment: {type: remote, auth_token: x, timeout: '0.5'}",
		"{\"deployment\": {\"type\": \"remote\", \"auth_token\": \"x\", \"timeout\": 0.5}}",
	};
	struct ply_session *s;

	if (!have_commas()) {
		puts("skipped: localedef makes no locale here");
		return;
	}
	for (size_t i = 0; i < sizeof(configs) / sizeof(configs[0]); i++) {
		json_t *config = parsed(configs[i]);
		json_t *timeout = json_object_get(json_object_get(config, "deployment"), "timeout");

		ck_assert_double_eq(json_number_value(timeout), 0.5);
		json_decref(config);
	}
	ck_assert_int_eq(ply_session_new(NULL, "x", &s), 0);
	ck_assert_int_eq(ply_session_set(s, "startup_timeout", "0.5"), 0);
	ck_assert_int_eq(ply_session_set(s, "startup_timeout", "0,5"), PLY_INVALID);
	ply_session_free(s);
	(void)setlocale(LC_NUMERIC, "C");
}
END_TEST

/* ---- repositories ---- */

START_TEST(github_urls_are_read_as_upstream_does)
{
	static const char *const table[][3] = {
		{ "https://github.com/SWE-agent/test-repo", "SWE-agent", "test-repo" },
		{ "https://github.com/o/r.git", "o", "r" },
		{ "https://github.com/o/r/", "o", "r" },
		{ "https://github.com/o/r/issues/1", "o", "r" },
		{ "https://github.com/o/r?tab=readme", "o", "r" },
		{ "https://github.com/o/r.git?x#y", "o", "r" },
		{ "https://github.com/o/r#readme", "o", "r" },
		{ "git@github.com/o/r.git", "o", "r" },
		{ "https://token@github.com/o/r", "o", "r" },
		{ "file:///tmp/github.com/o/r.git", "o", "r" },
		{ "https://github.com/x/github.com/o/r", "o", "r" }, /* the last one counts */
	};
	static const char *const wrong[] = {
		"https://gitlab.com/o/r",
		"https://github.com/",
		"https://github.com/o",
		"https://github.com/o/",
		"https://github.com//r",
		"git@github.com:o/r",
		"",
		"https://github.com/o/?x",
	};
	struct ply_text owner = { 0 }, name = { 0 };

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		ck_assert_int_eq(swe_repo_parse_github_url(table[i][0], &owner, &name), 0);
		ck_assert_str_eq(owner.data, table[i][1]);
		ck_assert_str_eq(name.data, table[i][2]);
		ply_text_free(&owner);
		ply_text_free(&name);
	}
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		ck_assert_int_eq(swe_repo_parse_github_url(wrong[i], &owner, &name), PLY_INVALID);
		ck_assert_ptr_nonnull(strstr(ply_error(), "Invalid GitHub repository URL: "));
	}
	refuses("repo: {type: github, github_url: 'https://gitlab.com/o/r'}", PLY_INVALID,
		"Invalid GitHub repository URL: https://gitlab.com/o/r");
}
END_TEST

START_TEST(a_token_goes_before_the_host)
{
	static const char *const table[][3] = {
		{ "https://github.com/o/r", "T", "https://T@github.com/o/r" },
		{ "https://github.com/o/r", "", "https://github.com/o/r" },
		{ "https://github.com/o/r", NULL, "https://github.com/o/r" },
		{ "https://me@github.com/o/r", "T", "https://me@github.com/o/r" },
		{ "file:///x/github.com/o/r", "T", "file:///x/github.com/o/r" },
	};

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		struct ply_text url = { 0 };

		ck_assert_int_eq(swe_repo_url_with_token(table[i][0], table[i][1], &url), 0);
		ck_assert_str_eq(url.data, table[i][2]);
		ply_text_free(&url);
	}
}
END_TEST

START_TEST(a_token_is_in_no_sentence)
{
	static const char url[] = "https://T0KEN@x: T0KENT0KEN";
	struct ply_text t;

	setenv("GITHUB_TOKEN", "T0KEN", 1);
	ck_assert_int_eq(swe_repo_hide_token(swe_repo_parse_github_url(url, &t, &t)), PLY_INVALID);
	ck_assert_str_eq(ply_error(), "Invalid GitHub repository URL: https://***@x: ******");
	unsetenv("GITHUB_TOKEN");
	ck_assert_int_eq(swe_repo_hide_token(swe_repo_parse_github_url(url, &t, &t)), PLY_INVALID);
	ck_assert_ptr_nonnull(strstr(ply_error(), url));
}
END_TEST

START_TEST(names_that_lead_out_are_refused)
{
	refuses("repo: {repo_name: ''}", PLY_INVALID, "needs a name");
	refuses("repo: {repo_name: /}", PLY_INVALID, "needs a name");
	refuses("repo: {repo_name: ..}", PLY_INVALID, "leads out");
	refuses("repo: {repo_name: a/../..}", PLY_INVALID, "leads out");
	refuses("repo: {repo_name: .}", PLY_INVALID, "is no name");
	refuses("repo: {path: /}", PLY_INVALID, "needs a name");
	refuses("repo: {repo_name: a, base_commit: --force}", PLY_INVALID, "names no commit");
	refuses("repo: {repo_name: a, base_commit: ''}", PLY_INVALID, "names no commit");
}
END_TEST

START_TEST(a_local_name_has_no_spaces_or_quotes)
{
	struct ply_swe *swe = swe_of("repo: {path: \"/nowhere/it's my repo\"}");

	ck_assert_str_eq(swe->repo->name, "its-my-repo");
	ck_assert_str_eq(swe->repo->path, "/its-my-repo");
	ply_swe_free(swe);
}
END_TEST

/* The names in the zip file of a directory are these. */
static void zips_to(const char *names, const char *dir, const char *end)
{
	char path[128], command[256], line[128] = "";
	FILE *f;
	int fd;

	snprintf(path, sizeof(path), "%s%s", dir, end);
	ck_assert_msg(zip_directory(path, &fd) == 0, "%s: %s", path, ply_error());
	snprintf(command, sizeof(command),
		 "python3 -c 'import sys, zipfile; "
		 "print(*sorted(zipfile.ZipFile(sys.argv[1]).namelist()))' /proc/%d/fd/%d",
		 (int)getpid(), fd);
	f = popen(command, "r");
	ck_assert_ptr_nonnull(f);
	ck_assert_ptr_nonnull(fgets(line, sizeof(line), f));
	ck_assert_msg(strcmp(line, names) == 0, "%s: %s", path, line);
	ck_assert_int_eq(pclose(f), 0);
	close(fd);
}

START_TEST(a_zip_file_has_the_same_names_however_its_directory_is_called)
{
	char dir[] = "/tmp/plyfs-test-swe-XXXXXX", command[256];
	int fd;

	ck_assert_ptr_nonnull(mkdtemp(dir));
	snprintf(command, sizeof(command),
		 "cd %s && mkdir -p r/d && : >r/a && : >r/d/\303\274 && ln -s r s", dir);
	run_or_die(command);
	zips_to("a d/ d/\303\274\n", dir, "/r");
	zips_to("a d/ d/\303\274\n", dir, "/r/");
	zips_to("a d/ d/\303\274\n", dir, "/r//");
	zips_to("a d/ d/\303\274\n", dir, "/s");
	snprintf(command, sizeof(command), "rm -r %s/r/d && : >%s/r/\374", dir, dir);
	run_or_die(command);
	zips_to("a \342\201\277\n", dir, "/r"); /* CP437 has that for 0xfc */
	snprintf(command, sizeof(command), "%s/none", dir);
	ck_assert_int_eq(zip_directory(command, &fd), PLY_NOT_FOUND);
	snprintf(command, sizeof(command), "rm -r %s", dir);
	run_or_die(command);
}
END_TEST

static void reset_is(const char *config, const char *command)
{
	struct ply_swe *swe = swe_of(config);
	struct swe_deploy d = { 0 };
	struct ply_text t = { 0 };

	ck_assert_int_eq(swe_repo_reset_command(swe->repo, &d, true, &t), 0);
	ck_assert_str_eq(t.data, command);
	ply_text_free(&t);
	ply_swe_free(swe);
}

START_TEST(reset_commands_are_upstreams)
{
	unsetenv("GITHUB_TOKEN");
	reset_is("repo: {repo_name: r}",
		 "cd /r && export ROOT=$(pwd -P) && git fetch && git status && git restore . && "
		 "git reset --hard && git checkout HEAD && git clean -fdq");
	reset_is("repo: {repo_name: r, base_commit: 'a b'}",
		 "cd /r && export ROOT=$(pwd -P) && git fetch && git status && git restore . && "
		 "git reset --hard && git checkout 'a b' && git clean -fdq");
	reset_is("repo: {repo_name: r, reset: false}", "cd /r && export ROOT=$(pwd -P)");
	reset_is("repo: {type: swesmith_preexisting, repo_name: r}",
		 "cd /r && export ROOT=$(pwd -P) && git fetch && git status && git restore . && "
		 "git reset --hard && git checkout HEAD && git clean -fdq");
	reset_is("repo: {repo_name: r, mirror_url: 'https://x/y z', base_commit: b}",
		 "cd /r && export ROOT=$(pwd -P) && git restore . && git reset --hard && "
		 "git fetch 'https://x/y z' b && git checkout FETCH_HEAD && git clean -fdq");
	setenv("GITHUB_TOKEN", "T", 1);
	reset_is("repo: {repo_name: r, mirror_url: 'https://x/y', base_commit: b}",
		 "cd /r && export ROOT=$(pwd -P) && git restore . && git reset --hard && "
		 "git fetch https://T@x/y b && git checkout FETCH_HEAD && git clean -fdq");
}
END_TEST

int main(void)
{
	TCase *tc = tcase_create("all");

	tcase_add_test(tc, quoting_is_shlex_quotes);
	tcase_add_test(tc, repr_is_pythons);
	tcase_add_test(tc, strip_is_pythons);
	tcase_add_test(tc, control_sequences_go_as_in_swe_rex);
	tcase_add_test(tc, defaults_are_upstreams_but_for_the_deployment);
	tcase_add_test(tc, yaml_and_json_say_the_same);
	tcase_add_test(tc, json_may_hold_what_yaml_may_not);
	tcase_add_test(tc, an_unknown_key_is_refused_by_its_path);
	tcase_add_test(tc, mistakes_get_a_sentence);
	tcase_add_test(tc, aliases_of_aliases_do_not_explode);
	tcase_add_test(tc, other_deployments_are_told_what_to_use_instead);
	tcase_add_test(tc, types_follow_from_their_fields);
	tcase_add_test(tc, a_number_has_a_point_whatever_the_programs_locale);
	tcase_add_test(tc, github_urls_are_read_as_upstream_does);
	tcase_add_test(tc, a_token_goes_before_the_host);
	tcase_add_test(tc, a_token_is_in_no_sentence);
	tcase_add_test(tc, names_that_lead_out_are_refused);
	tcase_add_test(tc, a_local_name_has_no_spaces_or_quotes);
	tcase_add_test(tc, a_zip_file_has_the_same_names_however_its_directory_is_called);
	tcase_add_test(tc, reset_commands_are_upstreams);
	return run_case("env_swe_config", tc);
}
