/* SPDX-License-Identifier: Apache-2.0 */

/* Trees from git: revisions, names that a tree must not have, repositories of others. */

#include "tests/unit/transfer_fixture.h"

static int make_repo(const char *script)
{
	return run("mkdir -p '%s/repo' && cd '%s/repo' && export HOME='%s' && git init -q . && "
		   "git config user.name n && git config user.email e && %s",
		   fx.path, fx.path, fx.path, script);
}

static int try_git(const char *rev, struct root **ret)
{
	_cleanup_free_ char *path = format("%s/repo", fx.path);

	return import_git(fx_store, path, rev, &ops, ret, NULL);
}

START_TEST(a_revision_is_brought_in)
{
	struct root *root = NULL;
	struct inode i;
	struct fs f;

	ck_assert_int_eq(
		make_repo(
			"mkdir d && echo one >d/f && echo '#!/bin/sh' >x && "
			"chmod +x x && ln -s d/f l && "
			"git add . && git update-index --add --cacheinfo "
			"160000,1234567890123456789012345678901234567890,sub && "
			"GIT_COMMITTER_DATE='1111111111 +0100' git commit -qm one && "
			"git tag first && echo two >d/f && git commit -qam two"),
		0);
	ck_assert_msg(try_git("first", &root) == 0, "%s", fx.last_note);
	f = open_root(root);
	content_is(&f, "d/f", "one\n");
	i = resolve(&f, "d/f");
	ck_assert_uint_eq(i.mode, S_IFREG | 0644);
	ck_assert_int_eq(i.mtime.sec, 1111111111);
	ck_assert_uint_eq(i.uid, geteuid());
	ck_assert_uint_eq(resolve(&f, "x").mode, S_IFREG | 0755);
	ck_assert(S_ISLNK(resolve(&f, "l").mode));
	ck_assert(S_ISDIR(resolve(&f, "sub").mode));
	ck_assert_uint_eq(warnings, 1);
	ck_assert_ptr_nonnull(strstr(last_warning, "'sub'"));
	tree_free(f.tree);
	root_unref(root);

	ck_assert_int_eq(try_git("HEAD", &root), 0);
	f = open_root(root);
	content_is(&f, "d/f", "two\n");
	tree_free(f.tree);
	root_unref(root);
	ck_assert_int_eq(try_git("HEAD~1:d", &root), 0);
	f = open_root(root);
	content_is(&f, "f", "one\n");
	tree_free(f.tree);
	root_unref(root);

	root = NULL;
	ck_assert_int_eq(try_git("no-such-revision", &root), -ERR_SOURCE);
	ck_assert_ptr_nonnull(strstr(fx.last_note, "no-such-revision"));
	ck_assert_ptr_null(root);
}
END_TEST

static const char *const unsafe_names[] = {
	"..",
	".",
	".git",
	".GIT",
	".Git",
	"git~1",
	"GIT~1",
	".git.",
	".git ",
	".git . .",
	".git::$INDEX",
	".g\xe2\x80\x8cit",
	"\xef\xbb\xbf.git",
	".gi\xe2\x81\xaat",
	"a/b",
	"a\\.git",
	".git\\x",
	"..\\.GIT ",
};

static const char *const safe_names[] = {
	".gitignore",
	".gitx",
	"git",
	"git~2",
	"git~1x",
	".git~",
	"x.git",
	"...",
	"..a",
	".g\xc3\xaft",
	"a\\b",
	(".gi\xe2\x80\x8b"
	 "t"),
	"trailing ",
};

static int try_name(const char *name, struct root **ret)
{
	/* A tree object written byte by byte: no tool would make it. */
	FILE *f;
	_cleanup_free_ char *path = format("%s/tree", fx.path), *tree = NULL;
	size_t cap = 0;
	int r;

	f = fopen(path, "we");
	fprintf(f, "100644 %s", name);
	fputc('\0', f);
	/* the empty blob */
	fwrite("\xe6\x9d\xe2\x9b\xb2\xd1\xd6\x43\x4b\x8b\x29\xae\x77\x5a\xd8\xc2\xe4\x8c\x53\x91",
	       1, 20, f);
	fclose(f);
	ck_assert_int_eq(
		run("cd '%s/repo' && git hash-object -w -t blob --stdin </dev/null >/dev/null && "
		    "git hash-object -w -t tree --literally --stdin <../tree >../id",
		    fx.path),
		0);
	free(path);
	path = format("%s/id", fx.path);
	f = fopen(path, "re");
	ck_assert_int_gt(getdelim(&tree, &cap, '\n', f), 0);
	tree[strcspn(tree, "\n")] = '\0';
	fclose(f);
	*fx.last_note = '\0';
	r = try_git(tree, ret);
	return r;
}

START_TEST(unsafe_names_are_refused)
{
	ck_assert_int_eq(make_repo("true"), 0);
	for (size_t n = 0; n < ARRAY_SIZE(unsafe_names); n++) {
		struct root *root = NULL;
		int r = try_name(unsafe_names[n], &root);

		ck_assert_msg(r == -ERR_UNSAFE_PATH, "'%s': %s %s", unsafe_names[n], err_name(r),
			      fx.last_note);
		ck_assert_ptr_null(root);
		ck_assert_ptr_nonnull(strstr(fx.last_note, unsafe_names[n]));
	}
}
END_TEST

START_TEST(names_that_only_look_like_it_are_kept)
{
	ck_assert_int_eq(make_repo("true"), 0);
	for (size_t n = 0; n < ARRAY_SIZE(safe_names); n++) {
		struct root *root = NULL;
		int r = try_name(safe_names[n], &root);

		ck_assert_msg(r == 0, "'%s': %s %s", safe_names[n], err_name(r), fx.last_note);
		root_unref(root);
	}
}
END_TEST

START_TEST(a_strangers_repository_is_told_about)
{
	struct root *root = NULL;

	if (geteuid() != 0)
		return;
	ck_assert_int_eq(
		make_repo("echo x >f && git add f && git commit -qm x && chown -R 12345 ."), 0);
	ck_assert_int_eq(setenv("HOME", fx.path, 1), 0);
	ck_assert_msg(try_git("HEAD", &root) == -ERR_SOURCE, "%s", fx.last_note);
	ck_assert_ptr_nonnull(strstr(fx.last_note, "safe.directory"));
	ck_assert_ptr_null(root);
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("import_git");

	tcase_set_timeout(t, 240); /* other programs are run; sanitizers */
	tcase_add_checked_fixture(t, setup, open_and_teardown);
	tcase_add_test(t, a_revision_is_brought_in);
	tcase_add_test(t, unsafe_names_are_refused);
	tcase_add_test(t, names_that_only_look_like_it_are_kept);
	tcase_add_test(t, a_strangers_repository_is_told_about);
	return run_case("import_git", t);
}
