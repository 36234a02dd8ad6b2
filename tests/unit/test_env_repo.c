/* SPDX-License-Identifier: Apache-2.0 */

/* A work tree's repository: how it is known, its alternates and refs, its objects. */

#include <sys/stat.h>
#include <unistd.h>

#include "env/commit_queue.h"
#include "tests/unit/repo_fixture.h"

/* So many calls from here on stat fails once, libgit2's too; < 0: never. */
static int stat_passes = -1;

int stat(const char *path, struct stat *ret)
{
	static int (*real)(const char *, struct stat *);

	if (!real)
		real = (int (*)(const char *, struct stat *))dlsym(RTLD_NEXT, "stat64");
	if (stat_passes >= 0 && stat_passes-- == 0) {
		errno = EIO;
		return -1;
	}
	return real(path, ret);
}

START_TEST(a_new_repository_has_one_commit_and_an_identity)
{
	_cleanup_(repo_closep) struct repo *r = NULL;
	struct ply_text name = { 0 }, email = { 0 };
	struct repo_id head;

	ck_assert_int_eq(mkdir(at("w"), 0777), 0);
	put(at("w/a"), "1");
	ok(repo_create(at("w"), vault));
	ok(repo_open(at("w"), vault, &r));
	ok(repo_ref(r, "HEAD", &head));
	ok(repo_identity(r, "N", "E", &name, &email));
	ck_assert_str_eq(name.data, "Chimera");
	ck_assert_str_eq(email.data, "chimera@local");
	ck_assert_int_eq(access(at("w/.gitkeep"), F_OK), 0);
	ply_text_free(&name);
	ply_text_free(&email);
	ck_assert_str_eq(said("git -C w log --format=%%s"), "initial");
	ck_assert_str_eq(said("git -C w status --porcelain"), "");
	ck_assert_int_eq(sh("git -C w fsck --strict"), 0);
}
END_TEST

START_TEST(what_cannot_be_understood_is_no_repository)
{
	struct repo *r = NULL;

	ck_assert_int_eq(mkdir(at("none"), 0777), 0);
	ck_assert_int_eq(repo_open(at("none"), vault, &r), 1);
	ck_assert_int_eq(mkdir(at("none/.git"), 0777), 0);
	ck_assert_int_eq(repo_open(at("none"), vault, &r), 1);

	ck_assert_int_eq(mkdir(at("w"), 0777), 0);
	ok(repo_create(at("w"), vault));
	ck_assert_int_eq(sh("printf '[extensions]\\n\\tobjectFormat = sha256\\n' >>w/.git/config"),
			 0);
	ck_assert_int_eq(repo_open(at("w"), vault, &r), 1);
	ck_assert_int_eq(sh("echo '[broken' >w/.git/config"), 0);
	ck_assert_int_eq(repo_open(at("w"), vault, &r), 1);

	ck_assert_int_eq(mkdir(at("file"), 0777), 0);
	put(at("file/.git"), "gitdir: nowhere\n");
	ck_assert_int_eq(repo_open(at("file"), vault, &r), 1);
	put(at("file/.git"), "nonsense");
	ck_assert_int_eq(repo_open(at("file"), vault, &r), 1);
}
END_TEST

START_TEST(what_cannot_be_looked_at_may_be_a_repository)
{
	struct repo *none = NULL;

	ck_assert_int_eq(mkdir(at("w"), 0777), 0);
	ok(repo_create(at("w"), vault));
	stat_passes = 0; /* of .git */
	ck_assert_int_eq(repo_open(at("w"), vault, &none), PLY_FAILED);
	ck_assert_int_lt(stat_passes, 0);
	ck_assert_int_eq(sh("mv w/.git w/there && echo 'gitdir: there' >w/.git"), 0);
	{
		_cleanup_(repo_closep) struct repo *r = NULL;

		ok(repo_open(at("w"), vault, &r));
	}
}
END_TEST

START_TEST(a_git_file_leads_to_the_repository)
{
	_cleanup_(repo_closep) struct repo *r = NULL;

	ck_assert_int_eq(mkdir(at("w"), 0777) | mkdir(at("other"), 0777), 0);
	ok(repo_create(at("w"), vault));
	put(at("other/.git"), "gitdir: ../w/.git\n");
	ok(repo_open(at("other"), vault, &r));
	ck_assert_ptr_nonnull(strstr(repo_git_dir(r), "/w/.git/"));
}
END_TEST

START_TEST(other_alternates_are_left_alone)
{
	_cleanup_(repo_closep) struct repo *r = NULL;

	ck_assert_int_eq(mkdir(at("w"), 0777), 0);
	ok(repo_create(at("w"), vault));
	ok(repo_open(at("w"), vault, &r));
	ok(repo_detach(r, vault));
	ck_assert_int_lt(access(at("w/.git/objects/info/alternates"), F_OK), 0);
	ok(repo_attach(r, vault));
	ok(repo_attach(r, vault));
	ck_assert_str_eq(said("wc -l <w/.git/objects/info/alternates"), "1");
	ok(repo_detach(r, vault));
	ck_assert_int_lt(access(at("w/.git/objects/info/alternates"), F_OK), 0);
	put(at("w/.git/objects/info/alternates"), "/elsewhere/objects"); /* no newline */
	ok(repo_attach(r, vault));
	ck_assert_str_eq(said("head -1 w/.git/objects/info/alternates"), "/elsewhere/objects");
	ck_assert_str_eq(said("wc -l <w/.git/objects/info/alternates"), "2");
	ok(repo_detach(r, vault));
	ck_assert_str_eq(said("cat w/.git/objects/info/alternates"), "/elsewhere/objects");
}
END_TEST

START_TEST(through_the_alternate_a_ref_can_be_set)
{
	struct repo_id c = write_commit("c", NULL), got;
	_cleanup_(repo_closep) struct repo *r = NULL;
	char hex[REPO_HEX];

	ck_assert_int_eq(mkdir(at("w"), 0777), 0);
	ok(repo_create(at("w"), vault));
	ok(repo_open(at("w"), vault, &r));
	ok(repo_attach(r, vault));
	ok(repo_set_ref(r, "refs/plyfs/main", &c));
	ok(repo_ref(r, "refs/plyfs/main", &got));
	ck_assert(repo_id_is(&c, &got));
	ok(repo_resolve(r, vault, "refs/plyfs/main", &got));
	ck_assert(repo_id_is(&c, &got));
	ok(repo_resolve(NULL, vault, repo_id_hex(&c, hex), &got));
	ck_assert(repo_id_is(&c, &got));
	ck_assert_int_eq(repo_resolve(r, vault, "nobody", &got), 1);
	ck_assert_int_eq(repo_resolve(r, vault, "HEAD^{tree}", &got), 1);
}
END_TEST

/* Another one's writer was faster: its commits are on the ref, and shown. */
START_TEST(who_comes_late_shows_what_is_there_by_then)
{
	struct repo_id a = write_commit("a", NULL), b = write_commit("b", &a), got;
	_cleanup_(repo_closep) struct repo *r = NULL;
	struct commit_queue *late;

	ck_assert_int_eq(mkdir(at("w"), 0777), 0);
	ok(repo_create(at("w"), vault));
	ok(repo_open(at("w"), vault, &r));
	ok(vault_set_ref(vault, "refs/plyfs/x", &a));
	ok(commit_queue_new(at("w"), "refs/plyfs/x", at("vault"), &late));
	commit_queue_start(late, &a);
	ok(vault_set_ref(vault, "refs/plyfs/x", &b));
	ok(repo_attach(r, vault));
	ok(repo_set_ref(r, "refs/plyfs/x", &b));

	commit_queue_sync(late, vault);
	ok(repo_ref(r, "refs/plyfs/x", &got));
	ck_assert(repo_id_is(&got, &b));
	commit_queue_free(late);
}
END_TEST

START_TEST(object_files_are_copied_whole_and_nothing_else_is)
{
	struct ply_list names = { 0 };

	ck_assert_int_eq(mkdir(at("w"), 0777) | mkdir(at("to"), 0777), 0);
	put(at("w/a"), "1");
	ok(repo_create(at("w"), vault));
	put(at("w/.git/objects/pack/tmp_pack_x"), "half");
	put(at("w/.git/objects/pack/pack-x.keep"), "");
	ok(repo_list_objects(at("w/.git/objects"), &names));
	ck_assert_uint_eq(names.n, 4); /* a, .gitkeep, the tree, the commit */
	for (int n = 0;; n++) { /* a part of them would be copied for all */
		_cleanup_(ply_list_free) struct ply_list again = { 0 };
		int r;

		readdir_passes = n;
		r = repo_list_objects(at("w/.git/objects"), &again);
		if (readdir_passes >= 0)
			break;
		ck_assert_int_lt(r, 0);
	}
	readdir_passes = -1;
	ck_assert_int_eq(repo_list_objects(at("w/none"), &names), PLY_NOT_FOUND);
	names.items[0][0] = 'z';       /* vanished meanwhile, or never of that form */
	ok(repo_copy_objects(at("w/.git/objects"), at("to"), names.items, names.n));
	ck_assert_str_eq(said("find to -type f | wc -l"), "3");
	names.items[0][0] = 'f'; /* vanished: what lacks it must not pass for whole */
	names.items[0][1] = 'f';
	ck_assert_int_eq(repo_copy_objects(at("w/.git/objects"), at("to"), names.items, names.n),
			 PLY_NOT_FOUND);
	names.items[0][0] = 'z';
	ok(repo_copy_objects(at("w/.git/objects"), at("to"), names.items, names.n));
	ply_list_free(&names);
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("repo");

	tcase_set_timeout(t, 240);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, a_new_repository_has_one_commit_and_an_identity);
	tcase_add_test(t, what_cannot_be_understood_is_no_repository);
	tcase_add_test(t, what_cannot_be_looked_at_may_be_a_repository);
	tcase_add_test(t, a_git_file_leads_to_the_repository);
	tcase_add_test(t, other_alternates_are_left_alone);
	tcase_add_test(t, through_the_alternate_a_ref_can_be_set);
	tcase_add_test(t, who_comes_late_shows_what_is_there_by_then);
	tcase_add_test(t, object_files_are_copied_whole_and_nothing_else_is);
	return run_case("env_repo", t);
}
