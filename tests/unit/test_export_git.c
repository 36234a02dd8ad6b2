/* SPDX-License-Identifier: Apache-2.0 */

/*
 * States out to git, by a program of its own: what plyfs-git does not believe, and what an export
 * does about one that lies. What git sees of a commit is tests/e2e/export_git.py's.
 */

#include <inttypes.h>

#include "env/transfer/helper.h"
#include "tests/unit/transfer_fixture.h"

/* ---- what plyfs-git is told ---- */

static void make_repository(void)
{
	ck_assert_int_eq(run("git init -q --bare -b main '%s/repo'", fx.path), 0);
}

static bool has_ref(void)
{
	return run("git -C '%s/repo' rev-parse -q --verify refs/x/y >/dev/null", fx.path) == 0;
}

static const struct told {
	int r;
	struct {
		const char *path;   /* a member; NULL: content */
		const char *target; /* of a symlink */
		const char *link;
		uint32_t mode; /* 0: a regular file's or a symlink's */
		uint64_t size, off, len;
	} records[6]; /* until one that is all 0 */
} told[] = {
	/* fine */
	{ 0, { { 0 } } },
	{ 0, { { "a" }, { "b/c/d" }, { "b/e" }, { "b.c/f" } } },
	{ 0, { { "a", .size = 9 }, { .off = 2, .len = 3 }, { .off = 7, .len = 1 } } },
	{ 0, { { "...", .target = "../../etc/passwd" }, { "a\\b" }, { ".gitx" } } },
	/* names */
	{ -ERR_UNSAFE_PATH, { { "" } } },
	{ -ERR_UNSAFE_PATH, { { "/a" } } },
	{ -ERR_UNSAFE_PATH, { { "a//b" } } },
	{ -ERR_UNSAFE_PATH, { { "a/" } } },
	{ -ERR_UNSAFE_PATH, { { "." } } },
	{ -ERR_UNSAFE_PATH, { { "a/../b" } } },
	{ -ERR_UNSAFE_PATH, { { ".git" } } },
	{ -ERR_UNSAFE_PATH, { { "a/.GIT/config" } } },
	{ -ERR_UNSAFE_PATH, { { "GIT~1/hooks/x" } } },
	{ -ERR_UNSAFE_PATH, { { "a/.g\u200cit" } } },
	{ -ERR_UNSAFE_PATH, { { "x\\.git\\config" } } },
	/* twice, or in no order */
	{ -EPROTO, { { "a" }, { "a" } } },
	{ -EPROTO, { { "a" }, { "a/b" }, { "c" } } },
	{ -EPROTO, { { "a/b" }, { "a" } } },
	{ -EPROTO, { { "a/b" }, { "c" }, { "a/d" } } },
	/* no files */
	{ -EPROTO, { { "a", .mode = S_IFDIR | 0755 } } },
	{ -EPROTO, { { "a", .mode = S_IFIFO | 0644 } } },
	{ -EPROTO, { { "a", .mode = S_IFLNK | 0777 } } },
	{ -EPROTO, { { "a", .target = "" } } },
	{ -EPROTO, { { "a" }, { "b", .link = "a" } } },
	/* content */
	{ -EPROTO, { { .len = 1 } } },
	{ -EPROTO, { { "a", .size = 2 }, { .len = 3 } } },
	{ -EPROTO, { { "a", .size = 9 }, { .len = 5 }, { .off = 4, .len = 1 } } },
	{ -EPROTO, { { "a", .size = 9 }, { .off = UINT64_MAX, .len = 2 } } },
	{ -EPROTO, { { "a", .size = UINT64_C(1) << 63 } } },
};

static int tell(struct chan *c, const struct told *t)
{
	static const char bytes[16];
	int r = 0;

	for (size_t k = 0; k < ARRAY_SIZE(t->records) && r == 0; k++) {
		struct member m = { .path = t->records[k].path,
				    .target = t->records[k].target,
				    .link = t->records[k].link,
				    .inode = { .size = t->records[k].size } };

		m.inode.mode = t->records[k].mode ?: m.target ? S_IFLNK | 0777 : S_IFREG | 0644;
		if (m.path)
			r = chan_put_member(c, &m);
		else if (t->records[k].len)
			r = chan_put_data(c, t->records[k].off, bytes, (size_t)t->records[k].len);
		else
			break;
	}
	r = r ?: chan_put(c, REC_END, NULL, 0, NULL, 0);
	return r ?: chan_flush(c);
}

START_TEST(what_makes_no_sense_is_refused_and_no_ref_is_made)
{
	_cleanup_free_ char *path = format("%s/repo", fx.path);
	char *const program[] = { "plyfs-git", "write", path, "refs/x/y", "22", "1", "m", NULL };

	make_repository();
	for (size_t n = 0; n < ARRAY_SIZE(told); n++) {
		struct talk talk = { .store = fx_store, .ops = &ops };
		struct helper h;
		struct record rec;
		int r;

		*fx.last_note = '\0';
		ck_ok(helper_start(&h, &talk, program, -1));
		r = tell(&h.chan, &told[n]);
		r = r < 0 ? helper_refused(&h, r) : helper_get(&h, &rec);
		ck_assert_msg(r == told[n].r, "%zu: %s, %s", n, err_name(r), fx.last_note);
		if (r == 0)
			ck_assert_uint_eq(rec.len, COMMIT_ID_SIZE - 1);
		helper_release(&h);
		ck_assert_msg(has_ref() == (r == 0), "%zu", n);
		if (r == 0)
			ck_assert_int_eq(run("git -C '%s' fsck --strict 2>&1 | grep -q error && "
					     "exit 1; git -C '%s' update-ref -d refs/x/y",
					     path, path),
					 0);
	}
	no_children();
}
END_TEST

/* ---- what an export does ---- */

static const struct {
	const char *text; /* behind "#!" */
	int r;
	const char *note;
} programs[] = {
	{ SHELL "exit 3", -EIO, "plyfs-git ended with exit code 3" },
	{ HELLO "kill -SEGV $$", -EIO, "signal 11" },
	{ HELLO SAYS("001", "005", PLYFS_VERSION) "cat <&3 >/dev/null", -EPROTO, "makes no sense" },
	/* REC_END */
	{ HELLO SAYS("013", "000", "") "cat <&3 >/dev/null", -EPROTO, "makes no sense" },
	{ HELLO SAYS("013", "050", "../../../../../../../../../../../../xyz0") "cat <&3 >/dev/null",
	  -EPROTO, "makes no sense" },
	{ HELLO SAYS("013", "050", "0123456789012345678901234567890123456789") "cat <&3 >/dev/null",
	  0, "" },
};

START_TEST(what_tells_of_no_commit_fails_the_export)
{
	static const struct export_commit commit = { "nowhere", "refs/x/y", "m", 1, 022 };
	_cleanup_(root_unrefp) struct root *root = NULL;

	ck_ok(tree_freeze(fs.tree, &root));
	for (size_t n = 0; n < ARRAY_SIZE(programs); n++) {
		char id[COMMIT_ID_SIZE];
		int r;

		*fx.last_note = '\0';
		use_program("plyfs-git", programs[n].text);
		r = export_git(fx_store, root, &commit, &ops, id, NULL);
		ck_assert_msg(r == programs[n].r, "%zu: %s, %s", n, err_name(r), fx.last_note);
		ck_assert_msg(strstr(fx.last_note, programs[n].note), "%zu: %s", n, fx.last_note);
		no_children();
	}
}
END_TEST

/* git has no times before 1970, libgit2 none after 2106. */
START_TEST(a_time_that_git_cannot_have_is_the_nearest_and_is_told)
{
	static const struct {
		int64_t time, made;
		const char *note;
	} times[] = {
		{ 0, 0, "" },
		{ 1, 1, "" },
		{ UINT32_MAX, UINT32_MAX, "" },
		{ -1, 0, " it is 0;" },
		{ INT64_MIN, 0, " it is 0;" },
		{ INT64_C(1) << 32, UINT32_MAX, " it is 4294967295;" },
		{ INT64_MAX, UINT32_MAX, " it is 4294967295;" },
	};
	_cleanup_free_ char *path = format("%s/repo", fx.path);
	_cleanup_(root_unrefp) struct root *root = NULL;

	make_repository();
	ck_ok(tree_freeze(fs.tree, &root));
	for (size_t n = 0; n < ARRAY_SIZE(times); n++) {
		const struct export_commit commit = { path, "refs/x/y", "m", times[n].time, 022 };
		char id[COMMIT_ID_SIZE];

		*last_warning = '\0';
		ck_ok(export_git(fx_store, root, &commit, &ops, id, NULL));
		ck_assert_msg(strstr(last_warning, times[n].note), "%zu: '%s'", n,
			      last_warning);
		ck_assert_int_eq(run("git -C '%s' cat-file commit %s | grep -c ' %" PRId64
				     " +0000$' | grep -qx 2",
				     path, id, times[n].made),
				 0);
		ck_assert_int_eq(run("git -C '%s' fsck --strict 2>&1 | grep -q error && exit 1 ||"
				     " :",
				     path),
				 0);
	}
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("export_git");

	tcase_set_timeout(t, 240); /* dozens of programs are started; sanitizers */
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, what_makes_no_sense_is_refused_and_no_ref_is_made);
	tcase_add_test(t, what_tells_of_no_commit_fails_the_export);
	tcase_add_test(t, a_time_that_git_cannot_have_is_the_nearest_and_is_told);
	return run_case("export_git", t);
}
