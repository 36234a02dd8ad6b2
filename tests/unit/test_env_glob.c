/* SPDX-License-Identifier: Apache-2.0 */

/* Patterns of list_files. */

#include "env/glob.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "store/base/util.h"
#include "tests/unit/run.h"

static char root[64];

/* So many calls on fstatat fails once, so; < 0: never. Ours comes before the library's. */
static int fstatat_passes = -1, fstatat_error;

int fstatat(int dir_fd, const char *path, struct stat *st, int flags)
{
	static int (*real)(int, const char *, struct stat *, int);

	if (!real)
		real = (int (*)(int, const char *, struct stat *, int))dlsym(RTLD_NEXT,
									     "fstatat64");
	if (fstatat_passes >= 0 && fstatat_passes-- == 0) {
		errno = fstatat_error;
		return -1;
	}
	return real(dir_fd, path, st, flags);
}

static void make_file(const char *name)
{
	char path[512];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", root, name);
	for (char *p = strchr(path + strlen(root) + 1, '/'); p; p = strchr(p + 1, '/')) {
		*p = '\0';
		(void)mkdir(path, 0755); /* may be there */
		*p = '/';
	}
	f = fopen(path, "w");
	ck_assert_ptr_nonnull(f);
	fclose(f);
}

static void make_link(const char *target, const char *name)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/%s", root, name);
	ck_assert_int_eq(symlink(target, path), 0);
}

static void make_fifo(const char *name)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/%s", root, name);
	ck_assert_int_eq(mkfifo(path, 0600), 0);
}

static void setup(void)
{
	strcpy(root, "/tmp/plyfs-glob-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(root));
}

static void teardown(void)
{
	char command[128];

	snprintf(command, sizeof(command), "rm -rf %s", root);
	ck_assert_int_eq(system(command), 0);
}

/* The names found, with a space behind each. */
static const char *list(const char *pattern)
{
	static const char *const hidden[] = { ".hidden", "deep/hidden", NULL };
	static char text[8192];
	struct ply_list names = { 0 };
	int r = glob_list(root, pattern, hidden, &names);

	ck_assert_msg(r == 0, "%s: %s", pattern, ply_error());
	text[0] = '\0';
	for (size_t i = 0; i < names.n; i++) {
		strcat(text, names.items[i]);
		strcat(text, " ");
	}
	ply_list_free(&names);
	return text;
}

#define ck_list(pattern, expected) ck_assert_str_eq(list(pattern), expected)

static const struct {
	const char *segment, *name;
	bool matches;
} segments[] = {
	{ "*", "", true },
	{ "*", ".hidden", true },
	{ "*.py", "a.py", true },
	{ "*.py", ".py", true },
	{ "*.py", "a.pyc", false },
	{ "a*b*c", "axxbxxbc", true },
	{ "a*b*c", "axxbxxb", false },
	{ "?", "a", true },
	{ "?", "", false },
	{ "?", "ab", false },
	{ "?", "\xc3\xa9", true }, /* e with an accent is one character */
	{ "?", "\xe9", true },	   /* not UTF-8: one byte */
	{ "??", "\xe9\xe9", true },
	{ "[abc]", "b", true },
	{ "[abc]", "d", false },
	{ "[!abc]", "d", true },
	{ "[!abc]", "a", false },
	{ "[!abc]", "", false },
	{ "[a-c]x", "bx", true },
	{ "[a-c]x", "dx", false },
	{ "[c-a]", "b", false }, /* an empty range */
	{ "[]a]", "]", true },
	{ "[]a]", "a", true },
	{ "[!]a]", "]", false },
	{ "[!]a]", "b", true },
	{ "[a-]", "-", true },
	{ "[^a]", "^", true }, /* not a negation */
	{ "[^a]", "a", true },
	{ "[^a]", "b", false },
	{ "[abc", "[abc", true }, /* not closed: itself */
	{ "[abc", "a", false },
	{ "a[", "a[", true },
	{ "[]", "[]", true },
	{ "[\\]x", "\\x", true }, /* a backslash is nothing special */
	{ "\\*", "*", false },
	{ "\\*", "\\x", true },
	{ "[\xc3\xa9]", "\xc3\xa9", true },
	{ "[\xc3\xa0-\xc3\xbf]", "\xc3\xa9", true },
	{ "A", "a", false },
	{ "a", "a", true },
	{ "a", "ab", false },
	{ "a/b", "a", true }, /* a segment ends at the slash */
	{ "*/b", "a", true },
	{ "", "", true },
	{ "", "a", false },
};

START_TEST(a_segment_matches)
{
	ck_assert_msg(glob_match(segments[_i].segment, segments[_i].name) == segments[_i].matches,
		      "%s against %s", segments[_i].segment, segments[_i].name);
}
END_TEST

START_TEST(stars_are_matched_without_trying_everything)
{
	char name[5001], pattern[201];

	/* A backtracking matcher would not end in our days. */
	memset(name, 'a', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	for (size_t i = 0; i + 1 < sizeof(pattern); i += 2)
		memcpy(pattern + i, "a*", 2);
	pattern[sizeof(pattern) - 2] = 'b';
	pattern[sizeof(pattern) - 1] = '\0';
	ck_assert(!glob_match(pattern, name));
}
END_TEST

START_TEST(two_stars_are_any_number_of_directories_also_none)
{
	make_file("x");
	make_file("a/x");
	make_file("a/b/x");
	make_file("a/b/y");
	ck_list("**/x", "a/b/x a/x x ");
	ck_list("**/*", "a/b/x a/b/y a/x x ");
	ck_list("a/**/x", "a/b/x a/x ");
	ck_list("**", "a/b/x a/b/y a/x x ");
	ck_list("a/**", "a/b/x a/b/y a/x ");
	ck_list("**/**/x", "a/b/x a/x x ");
	ck_list("**/b/*", "a/b/x a/b/y ");
	ck_list("**/a/**/y", "a/b/y ");
}
END_TEST

START_TEST(one_star_stops_at_a_slash)
{
	make_file("x.py");
	make_file("a/y.py");
	ck_list("*.py", "x.py ");
	ck_list("*", "x.py ");
	ck_list("*/*", "a/y.py ");
	ck_list("*/*/*", "");
}
END_TEST

START_TEST(names_with_a_dot_match_like_others)
{
	make_file(".env");
	make_file(".git/config");
	make_file("a");
	ck_list("*", ".env a ");
	ck_list("**/*", ".env .git/config a ");
	ck_list("*/config", ".git/config ");
}
END_TEST

START_TEST(names_come_in_the_order_of_their_bytes)
{
	make_file("b");
	make_file("a/z");
	make_file("a-");
	make_file("B");
	make_file("\xc3\xa9");
	ck_list("**/*", "B a- a/z b \xc3\xa9 ");
}
END_TEST

START_TEST(links_to_files_count_and_others_do_not)
{
	make_file("d/f");
	make_link("d/f", "to-file");
	make_link("d", "to-dir");
	make_link("nowhere", "broken");
	make_fifo("fifo");
	ck_list("*", "to-file ");
	ck_list("**/*", "d/f to-file ");  /* ** does not enter to-dir */
	ck_list("to-dir/*", "to-dir/f "); /* a name does */
	ck_list("*/f", "d/f to-dir/f ");
	ck_list("**/to-dir/*", "to-dir/f ");
}
END_TEST

START_TEST(links_that_lead_out_are_not_entered)
{
	char outside[] = "/tmp/plyfs-glob-out-XXXXXX", path[128];

	ck_assert_ptr_nonnull(mkdtemp(outside));
	snprintf(path, sizeof(path), "%s/secret", outside);
	fclose(fopen(path, "w"));
	make_link(outside, "out");
	make_link(root, "self"); /* absolute, and inside */
	make_file("a");
	ck_list("out/*", "");
	ck_list("*/*", "self/a ");
	ck_list("self/self/a", "self/self/a ");
	ck_assert_int_eq(unlink(path), 0);
	ck_assert_int_eq(rmdir(outside), 0);
}
END_TEST

START_TEST(a_ring_of_links_ends)
{
	make_file("d/f");
	make_link("..", "d/up");
	ck_list("**/f", "d/f ");
	ck_list("**/up/**/f", "d/up/d/f ");
}
END_TEST

START_TEST(hidden_directories_are_not_looked_into)
{
	make_file(".hidden/0/x");
	make_file("deep/hidden/x");
	make_file("deep/.hidden/x");
	make_file(".hidden-not/x");
	ck_list("**/*", ".hidden-not/x deep/.hidden/x ");
	ck_list(".hidden/0/x", "");
}
END_TEST

START_TEST(slashes_and_dots_in_a_pattern_mean_nothing)
{
	make_file("a/b");
	ck_list("a//b", "a/b ");
	ck_list("./a/./b", "a/b ");
	ck_list("a/b/", ""); /* only a directory could be called so */
	ck_list("a/", "");
	ck_list(".", "");
}
END_TEST

static const struct {
	const char *pattern;
	int status;
	const char *says;
} bad[] = {
	{ "", PLY_INVALID, "Unacceptable pattern" },
	{ "/etc/*", PLY_UNSUPPORTED, "Non-relative patterns are unsupported" },
	{ "../*", PLY_DENIED, "Path escapes workdir: ../*" },
	{ "a/../../*", PLY_DENIED, "Path escapes workdir" },
	{ "**.py", PLY_INVALID, "'**' can only be an entire path component" },
	{ "a**/b", PLY_INVALID, "'**' can only be an entire path component" },
	{ "***", PLY_INVALID, "'**' can only be an entire path component" },
};

START_TEST(a_bad_pattern_is_refused)
{
	struct ply_list names = { 0 };

	ck_assert_int_eq(glob_list(root, bad[_i].pattern, NULL, &names), bad[_i].status);
	ck_assert_msg(strstr(ply_error(), bad[_i].says) != NULL, "%s", ply_error());
	ck_assert_uint_eq(names.n, 0);
}
END_TEST

START_TEST(a_pattern_of_too_many_segments_is_refused)
{
	char pattern[300] = "";
	struct ply_list names = { 0 };

	for (int i = 0; i < 70; i++)
		strcat(pattern, "a/");
	strcat(pattern, "b");
	ck_assert_int_eq(glob_list(root, pattern, NULL, &names), PLY_INVALID);
}
END_TEST

START_TEST(many_stars_cost_no_more_than_the_tree)
{
	char name[512], pattern[300] = "";

	for (int i = 0; i < 40; i++) {
		memset(name, 0, sizeof(name));
		for (int j = 0; j < 40; j++)
			strcat(name, "d/");
		snprintf(name + strlen(name), 16, "%d", i);
		make_file(name);
	}
	/* Every way to cut 40 directories into 20 parts, if they were tried one by one. */
	for (int i = 0; i < 20; i++)
		strcat(pattern, "**/d/");
	strcat(pattern, "nothing");
	ck_list(pattern, "");
}
END_TEST

START_TEST(what_cannot_be_looked_at_is_not_left_out)
{
	struct ply_list names = { 0 };

	make_file("a");
	make_link("a", "link");
	for (fstatat_error = ENOENT;; fstatat_error = ENOMEM) {
		for (int n = 0; n < 2; n++) { /* the link, what it leads to */
			fstatat_passes = n;
			if (fstatat_error == ENOENT)
				ck_list("*", "a ");
			else
				ck_assert_int_eq(glob_list(root, "*", NULL, &names), PLY_NO_MEMORY);
			ck_assert_int_lt(fstatat_passes, 0);
		}
		if (fstatat_error == ENOMEM)
			break;
	}
	ck_list("*", "a link ");
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("glob");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_loop_test(t, a_segment_matches, 0, (int)ARRAY_SIZE(segments));
	tcase_add_test(t, stars_are_matched_without_trying_everything);
	tcase_add_test(t, two_stars_are_any_number_of_directories_also_none);
	tcase_add_test(t, one_star_stops_at_a_slash);
	tcase_add_test(t, names_with_a_dot_match_like_others);
	tcase_add_test(t, names_come_in_the_order_of_their_bytes);
	tcase_add_test(t, links_to_files_count_and_others_do_not);
	tcase_add_test(t, links_that_lead_out_are_not_entered);
	tcase_add_test(t, what_cannot_be_looked_at_is_not_left_out);
	tcase_add_test(t, a_ring_of_links_ends);
	tcase_add_test(t, hidden_directories_are_not_looked_into);
	tcase_add_test(t, slashes_and_dots_in_a_pattern_mean_nothing);
	tcase_add_loop_test(t, a_bad_pattern_is_refused, 0, (int)ARRAY_SIZE(bad));
	tcase_add_test(t, a_pattern_of_too_many_segments_is_refused);
	tcase_add_test(t, many_stars_cost_no_more_than_the_tree);
	return run_case("glob", t);
}
