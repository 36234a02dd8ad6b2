/* SPDX-License-Identifier: Apache-2.0 */

/* Repositories of others: found, dirty or not, and cloned. */

#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/repo_fixture.h"

/* libgit2's git_regexp_match keeps PCRE2's data when nothing matches (a remote's configuration). */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
	return "leak:libpcre2\n";
}

static void make_source(void)
{
	ck_assert_int_eq(sh("git init -q -b trunk source && cd source && echo 1 >a && git add a &&"
			    "git commit -q -m one && git tag v1 && git tag -a -m x annotated &&"
			    "echo 2 >a && git commit -q -a -m two && git checkout -q -b side &&"
			    "echo 3 >a && git commit -q -a -m three && git checkout -q trunk"),
			 0);
}

START_TEST(found_from_below)
{
	struct ply_text found = { 0 };

	make_source();
	ck_assert_int_eq(mkdir(at("source/below"), 0777), 0);
	ok(repo_find(at("source/below"), &found));
	ck_assert_str_eq(found.data, said("cd source && pwd -P"));
	ply_text_free(&found);
	ck_assert_int_eq(repo_find("/", &found), PLY_NOT_FOUND);
	ck_assert_int_eq(repo_find(at("nowhere"), &found), PLY_NOT_FOUND);
}
END_TEST

START_TEST(dirty_is_what_is_tracked_and_changed)
{
	bool dirty = true;

	make_source();
	ok(repo_is_dirty(at("source"), &dirty));
	ck_assert(!dirty);
	put(at("source/untracked"), "1");
	ok(repo_is_dirty(at("source"), &dirty));
	ck_assert(!dirty);
	put(at("source/a"), "changed");
	ok(repo_is_dirty(at("source"), &dirty));
	ck_assert(dirty);
	ck_assert_int_eq(sh("cd source && git add a"), 0);
	ok(repo_is_dirty(at("source"), &dirty));
	ck_assert(dirty);
	ck_assert_int_eq(sh("cd source && git reset -q --hard && git rm -q --cached a"), 0);
	ok(repo_is_dirty(at("source"), &dirty));
	ck_assert(dirty);
	ck_assert_int_eq(repo_is_dirty(at("vault/objects"), &dirty), PLY_NOT_FOUND);
}
END_TEST

START_TEST(a_clone_is_at_the_revision_and_has_nothing_later)
{
	static const struct {
		const char *rev, *is, *commits;
	} wanted[] = {
		{ "HEAD", "trunk", "2" },
		{ "side", "side", "3" },
		{ "v1", "v1", "1" },
		{ "annotated", "v1", "1" },
		{ "refs/heads/trunk", "trunk", "2" },
	};
	const char *one;
	char url[128];

	make_source();
	snprintf(url, sizeof(url), "file://%s/source", top);
	for (size_t i = 0; i < ARRAY_SIZE(wanted); i++) {
		ok(repo_clone_at(url, wanted[i].rev, at("c%zu", i), 1, 60, NULL, NULL));
		ck_assert_str_eq(said("git -C c%zu rev-parse HEAD", i),
				 said("git -C source rev-parse '%s^{commit}'", wanted[i].is));
		ck_assert_str_eq(said("git -C c%zu status --porcelain", i), "");
		ck_assert_str_eq(said("git -C c%zu remote get-url origin", i), url);
		ck_assert_str_eq(said("git -C c%zu symbolic-ref -q HEAD", i), "");
		ck_assert_str_eq(said("cd c%zu && git cat-file --batch-all-objects --batch-check |"
				      "grep -c commit",
				      i),
				 wanted[i].commits);
	}
	/* A commit by its name, whole or not, and an expression. */
	one = said("git -C source rev-parse v1");
	ok(repo_clone_at(url, one, at("by-id"), 0, 0, NULL, NULL));
	ck_assert_str_eq(said("git -C by-id rev-parse HEAD"), one);
	ok(repo_clone_at(url, "trunk~1", at("by-expression"), 0, 0, NULL, NULL));
	ck_assert_str_eq(said("git -C by-expression rev-parse HEAD"), one);
	/* Into a directory that is there and empty. */
	ck_assert_int_eq(mkdir(at("empty"), 0700), 0);
	ok(repo_clone_at(url, "HEAD", at("empty"), 0, 0, NULL, NULL));
}
END_TEST

START_TEST(a_clone_that_fails_leaves_nothing)
{
	char url[128], bad[128];

	make_source();
	snprintf(url, sizeof(url), "file://%s/source", top);
	snprintf(bad, sizeof(bad), "file://%s/nothing-here", top);
	ck_assert_int_eq(repo_clone_at(url, "nobody", at("c"), 0, 0, NULL, NULL), PLY_NOT_FOUND);
	ck_assert_int_lt(access(at("c"), F_OK), 0);
	ck_assert_int_eq(repo_clone_at(url, "0123456789012345678901234567890123456789", at("c"), 0,
				       0, NULL, NULL),
			 PLY_NOT_FOUND);
	ck_assert_int_eq(repo_clone_at(bad, "HEAD", at("c"), 0, 0, NULL, NULL), PLY_REMOTE);
	ck_assert_int_lt(access(at("c"), F_OK), 0);
	ck_assert_int_eq(mkdir(at("c"), 0777), 0);
	ck_assert_int_eq(repo_clone_at(bad, "HEAD", at("c"), 0, 0, NULL, NULL), PLY_REMOTE);
	ck_assert_str_eq(said("find c"), "c");
	put(at("c/mine"), "1");
	ck_assert_int_eq(repo_clone_at(url, "HEAD", at("c"), 0, 0, NULL, NULL), PLY_EXISTS);
	ck_assert_int_eq(access(at("c/mine"), F_OK), 0);
	/* What cannot be listed may hold something, and a clone that fails would remove it. */
	readdir_passes = 0;
	ck_assert_int_eq(repo_clone_at(bad, "HEAD", at("c"), 0, 0, NULL, NULL), PLY_EXISTS);
	ck_assert_int_lt(readdir_passes, 0);
	ck_assert_int_eq(access(at("c/mine"), F_OK), 0);
	/* Out of time before it began. */
	ck_assert_int_eq(repo_clone_at(url, "HEAD", at("late"), 0, 1e-9, NULL, NULL), PLY_TIMEOUT);
	ck_assert_int_lt(access(at("late"), F_OK), 0);
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("clone");

	tcase_set_timeout(t, 240);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, found_from_below);
	tcase_add_test(t, dirty_is_what_is_tracked_and_changed);
	tcase_add_test(t, a_clone_is_at_the_revision_and_has_nothing_later);
	tcase_add_test(t, a_clone_that_fails_leaves_nothing);
	return run_case("env_clone", t);
}
