/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What the kernel is told in which order (S1 to S7), and what goes on meanwhile: against a
 * recording kernel. tests/e2e/restore_races.py has the real one, test_view_dead.c dead directories.
 */

#include "tests/unit/view_recorder.h"

START_TEST(by_epoch_each_directory_gets_a_barrier_and_a_second_epoch_follows)
{
	struct view_kernel few = recorder;
	uint64_t d = make_dir(ROOT_NODE, "d"), id = checkpoint(), f;

	few.names_max = 1;
	view_set_kernel(view, &few);
	f = make_file(d, "f", "");
	many_files(d, 8);
	view_forget(view, make_dir(d, "nobody knows"), 1);
	ck_assert_int_eq(restore(id).mode, RESTORE_EPOCH);
	ck_assert(was_told(ROOT_NODE, "/") && was_told(d, "/") && !was_told(f, "/"));
	ck_assert(!was_expired(ROOT_NODE, "/") && !was_told(0, "/"));
	ck_assert_uint_eq(epochs, 2);
}
END_TEST

START_TEST(a_directory_that_lives_on_elsewhere_keeps_its_path_until_it_is_walked)
{
	uint64_t id = checkpoint(), id2;

	make_dir(ROOT_NODE, "gone");
	make_dir(ROOT_NODE, "moved");
	id2 = checkpoint();
	ck_ok(view_rename(view, ROOT_NODE, "moved", 5, ROOT_NODE, "there", 5, 0));
	told_nothing();
	restore(id2);
	ck_assert(was_expired(ROOT_NODE, "there"));
	told_nothing();
	restore(id);
	ck_assert(!was_expired(ROOT_NODE, "gone") && !was_expired(ROOT_NODE, "moved"));
}
END_TEST

START_TEST(what_one_restore_expired_the_next_one_drops)
{
	uint64_t id;

	make_file(ROOT_NODE, "a", "old");
	id = checkpoint();
	rewrite(node_of(ROOT_NODE, "a"), "new");
	restore(id);
	make_file(ROOT_NODE, "b", "x");
	told_nothing();
	restore(id);
	ck_assert(was_told(ROOT_NODE, "a") && !was_expired(ROOT_NODE, "a"));
}
END_TEST

/* ---- what goes on while the kernel is told ---- */

/* As who asks for the second time, behind a LOOKUP. */
static void again(int r)
{
	ck_assert_int_eq(r, -ESTALE);
}

static const char *ask_at; /* when this is told */
static void (*ask)(void);
static unsigned asked;

static void ask_once(const char *name)
{
	if (strcmp(name, ask_at))
		return;
	on_entry = NULL;
	ask();
	asked++;
}

static struct restore_info restore_and_ask(uint64_t id, const char *at, void (*what)(void))
{
	struct restore_info info;

	asked = 0;
	ask_at = at;
	ask = what;
	on_entry = ask_once;
	info = restore(id);
	ck_assert_uint_eq(asked, 1);
	return info;
}

/* "a" is being told; the kernel asks by what it had there. */
static void rename_a(void)
{
	again(rename_in_root("a", "b"));
	ck_ok(rename_in_root("a", "b"));
}

static void replace_a(void)
{
	again(rename_in_root("same", "a"));
	ck_ok(rename_in_root("same", "a"));
}

static void unlink_a(void)
{
	again(view_unlink(view, ROOT_NODE, "a", 1));
	ck_ok(view_unlink(view, ROOT_NODE, "a", 1));
}

/* Who has looked at one name has not at another. */
static void unlink_a_after_z(void)
{
	again(view_unlink(view, ROOT_NODE, "z", 1));
	again(view_unlink(view, ROOT_NODE, "a", 1));
	ck_ok(view_unlink(view, ROOT_NODE, "a", 1));
}

/* One who has looked again is no other one's affair. */
static void unlink_a_as_two(void)
{
	view_hears(view, 1);
	again(view_unlink(view, ROOT_NODE, "a", 1));
	view_hears(view, 2);
	again(view_unlink(view, ROOT_NODE, "a", 1));
	view_hears(view, 1);
	ck_ok(view_unlink(view, ROOT_NODE, "a", 1));
	view_hears(view, 2);
	ck_assert_int_eq(view_unlink(view, ROOT_NODE, "a", 1), -ENOENT);
	view_hears(view, 0);
}

static void change_what_is_the_same(void)
{
	uint64_t dir = node_of(ROOT_NODE, "dir");

	ck_ok(rename_in_root("same", "other"));
	ck_ok(view_unlink(view, dir, "a", 1)); /* another one's name is told */
	ck_ok(view_rmdir(view, ROOT_NODE, "dir", 3));
}

/* "z" is told, and "a" was before it. */
static void unlink_a_that_was_told(void)
{
	ck_ok(view_unlink(view, ROOT_NODE, "a", 1));
	again(view_unlink(view, ROOT_NODE, "z", 1));
}

static uint64_t two_states_of_a(void)
{
	uint64_t id;

	make_file(ROOT_NODE, "a", "old");
	make_file(ROOT_NODE, "z", "old");
	make_file(ROOT_NODE, "same", "same");
	make_file(make_dir(ROOT_NODE, "dir"), "a", "same");
	id = checkpoint();
	rewrite(node_of(ROOT_NODE, "a"), "new");
	rewrite(node_of(ROOT_NODE, "z"), "new");
	return id;
}

START_TEST(who_asks_by_what_was_there_before_looks_again)
{
	static void (*const asks[])(void) = {
		rename_a,        replace_a,       unlink_a,
		unlink_a_after_z, unlink_a_as_two, change_what_is_the_same
	};
	uint64_t id = two_states_of_a();

	restore_and_ask(id, "a", asks[_i]);
	ck_assert_uint_eq(epochs, 0);
	ck_assert_uint_eq(told_names, 2); /* each once */
	ck_ok(view_unlink(view, ROOT_NODE, "z", 1)); /* afterwards nobody has to */
}
END_TEST

static uint64_t made_anew; /* a directory, in which "a" was not */

static void unlink_a_of_it(void)
{
	again(view_unlink(view, made_anew, "a", 1));
}

/* Of a directory that another one stands for now. */
START_TEST(who_asks_by_what_was_not_there_before_looks_again)
{
	uint64_t x = make_dir(ROOT_NODE, "x"), a = make_file(x, "a", ""), id = checkpoint();

	ck_ok(view_unlink(view, x, "a", 1));
	ck_ok(view_rmdir(view, ROOT_NODE, "x", 1));
	view_forget(view, a, 1);
	view_forget(view, x, 1);
	made_anew = make_dir(ROOT_NODE, "x");
	restore_and_ask(id, "x", unlink_a_of_it);
	ck_assert(was_told(made_anew, "a") && !was_told(0, "a"));
}
END_TEST

START_TEST(what_was_told_is_what_the_kernel_has)
{
	restore_and_ask(two_states_of_a(), "z", unlink_a_that_was_told);
}
END_TEST

static void try_to_unlink_a(void)
{
	again(view_unlink(view, ROOT_NODE, "a", 1));
}

/* Who was told so at one restore (and gave up) is told again at the next. */
START_TEST(what_was_looked_at_before_is_looked_at_again)
{
	uint64_t id = two_states_of_a();

	for (int i = 0; i < 2; i++) {
		restore_and_ask(id, "a", try_to_unlink_a);
		rewrite(node_of(ROOT_NODE, "a"), "new");
	}
}
END_TEST

/* A directory's name that the kernel has for another one. */
static void remove_d(void)
{
	again(view_rmdir(view, ROOT_NODE, "d", 1));
	ck_ok(view_rmdir(view, ROOT_NODE, "d", 1));
}

START_TEST(by_epoch_all_look_again)
{
	struct view_kernel few = recorder;
	uint64_t id;

	make_dir(ROOT_NODE, "d");
	make_dir(ROOT_NODE, "dir");
	id = checkpoint();
	many_files(ROOT_NODE, 3);
	few.names_max = 1;
	view_set_kernel(view, &few);
	/* at a barrier: the epoch was told, and who asked before it is still there */
	ck_assert_int_eq(restore_and_ask(id, "/", remove_d).mode, RESTORE_EPOCH);
	ck_ok(view_rmdir(view, ROOT_NODE, "dir", 3));
}
END_TEST

START_TEST(old_kernels_are_told_to_look_again_in_another_import)
{
	uint64_t id;

	make_file(ROOT_NODE, "a", "old");
	make_file(ROOT_NODE, "b", "other");
	id = make_other(checkpoint(), 0, 1, (const char *const[][2]){ { "a", "b" } });
	view_set_kernel(view, &old_recorder);
	restore_and_ask(id, "a", unlink_a);
	ck_assert(!was_told(ROOT_NODE, "/")); /* they need no barrier but the names themselves */
}
END_TEST

/* What decides who may do something in it, one way each time. */
static void change_rights(uint64_t node, int what, unsigned value)
{
	static const unsigned masks[] = { SET_MODE, SET_UID, SET_GID };
	struct fs_set set = { .mode = 0700 + value, .uid = value, .gid = value };
	const char *acl = value == 1 ? "1" : "2"; /* or what else attributes may say */
	struct inode i;

	if (what < (int)ARRAY_SIZE(masks)) {
		set.mask = masks[what];
		ck_ok(view_setattr(view, node, &set, &i));
	} else {
		ck_ok(view_setxattr(view, node, "user.rights", acl, 1, 0));
	}
}

START_TEST(rights_are_told_before_names)
{
	uint64_t d = make_dir(ROOT_NODE, "d"), id;

	change_rights(d, _i, 1);
	id = checkpoint();
	make_file(ROOT_NODE, "x", "");
	change_rights(d, _i, 2);
	make_file(d, "y", ""); /* what is noted after the rights takes nothing from them */
	restore(id);
	ck_assert(were_rights_told_first(d));
}
END_TEST

START_TEST(an_inode_on_its_way_to_the_kernel_is_told_when_it_is_there)
{
	struct fs_set set = { .mask = SET_MODE, .mode = 0711 };
	uint64_t d = make_dir(ROOT_NODE, "d"), e = make_dir(d, "e"), id = checkpoint();
	struct inode i;

	ck_ok(view_setattr(view, e, &set, &i));
	not_cached = e;
	restore(id);
	ck_assert(!was_expired(d, "/"));
	ck_assert_uint_eq(told_node[told_inodes - 1].node, e);
	ck_assert_uint_eq(told_node[told_inodes - 1].names_before, 1);

	ck_ok(view_setattr(view, ROOT_NODE, &set, &i)); /* which is in no directory */
	not_cached = ROOT_NODE;
	restore(id);
	ck_assert(was_told_inode(ROOT_NODE) && !was_told(0, "/"));
}
END_TEST

static uint64_t deaf; /* a node id: its names cannot be told */

static int entry_of_deaf(void *arg, uint64_t parent, const char *name, size_t len, bool expire)
{
	(void)rec_entry(arg, parent, name, len, expire);
	return parent == deaf ? -ENOMEM : 0;
}

static int inode_of_deaf(void *arg, uint64_t node, int64_t off, int64_t len)
{
	(void)rec_inode(arg, node, off, len);
	return -EIO; /* later than the name */
}

START_TEST(what_the_kernel_could_not_be_told_is_said_after_the_rest)
{
	struct view_kernel k = recorder;
	uint64_t old = make_dir(ROOT_NODE, "d"), new, id;
	struct restore_info info;

	make_file(old, "f", "");
	id = checkpoint();
	ck_ok(view_unlink(view, old, "f", 1));
	ck_ok(view_rmdir(view, ROOT_NODE, "d", 1)); /* somebody is in it */
	new = make_dir(ROOT_NODE, "d"); /* which goes on as the restored one */
	k.inval_entry = entry_of_deaf;
	k.inval_inode = inode_of_deaf;
	view_set_kernel(view, &k);
	deaf = old;
	told_nothing();
	ck_assert_int_eq(view_restore(view, id, &info), -ENOMEM);
	ck_assert(was_told(old, "f") && was_told(new, "f") && was_told_inode(ROOT_NODE));
	(void)node_of(new, "f");
}
END_TEST

static int failing_epoch; /* which one cannot be told; 0: each can */

static int some_epochs(void *arg)
{
	(void)rec_epoch(arg);
	return (int)epochs == failing_epoch ? -ENOMEM : 0;
}

/* Directories, the first or the second epoch. */
START_TEST(what_the_kernel_could_not_be_told_by_epoch_is_said_after_the_rest)
{
	struct view_kernel few = recorder;
	uint64_t d = make_dir(ROOT_NODE, "d"), id = checkpoint();
	struct restore_info info;

	many_files(d, 8);
	few.names_max = 1;
	few.inc_epoch = some_epochs;
	if (_i == 0)
		few.inval_inode = inode_of_deaf;
	failing_epoch = _i;
	view_set_kernel(view, &few);
	told_nothing();
	ck_assert_int_eq(view_restore(view, id, &info), _i == 0 ? -EIO : -ENOMEM);
	ck_assert(was_told(ROOT_NODE, "/") && was_told(d, "/"));
}
END_TEST

static unsigned blocks;

static void let_others_read(void *arg)
{
	ck_assert_uint_eq(told_names + epochs, 0);
	blocks++;
}

static void are_others_reading(const char *name)
{
	ck_assert_uint_gt(blocks, 0);
}

/* S5: the kernel may have to ask something before it takes a notification. */
START_TEST(others_read_requests_before_the_kernel_is_told)
{
	struct view_kernel k = recorder;
	uint64_t id = checkpoint();

	make_file(ROOT_NODE, "a", "");
	k.will_block = let_others_read;
	view_set_kernel(view, &k);
	blocks = 0;
	on_entry = are_others_reading;
	restore(id);
	ck_assert(was_told(ROOT_NODE, "a"));
}
END_TEST

START_TEST(names_that_were_looked_up_anew_are_left_alone_afterwards)
{
	uint64_t id;

	make_file(ROOT_NODE, "a", "old");
	make_file(ROOT_NODE, "b", "old");
	id = checkpoint();
	rewrite(node_of(ROOT_NODE, "a"), "new"); /* and somebody has them open from now on */
	rewrite(node_of(ROOT_NODE, "b"), "new");
	restore(id);
	(void)node_of(ROOT_NODE, "a"); /* something may be mounted on them now */
	(void)node_of(ROOT_NODE, "b");
	told_nothing();
	view_tidy(view);
	ck_assert_uint_eq(told_names, 0);
}
END_TEST

START_TEST(what_a_restore_expired_is_dropped_if_the_kernel_still_has_it)
{
	uint64_t id = checkpoint(), a = make_file(ROOT_NODE, "a", "");

	make_file(ROOT_NODE, "b", "");
	restore(id);
	ck_assert(was_expired(ROOT_NODE, "a") && was_expired(ROOT_NODE, "b"));
	view_forget(view, a, 1);
	told_nothing();
	view_tidy(view);
	ck_assert_uint_eq(told_names, 1);
	ck_assert(!was_expired(ROOT_NODE, "b"));
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("told");

	tcase_add_checked_fixture(t, setup, view_teardown);
	tcase_add_test(t, by_epoch_each_directory_gets_a_barrier_and_a_second_epoch_follows);
	tcase_add_test(t, a_directory_that_lives_on_elsewhere_keeps_its_path_until_it_is_walked);
	tcase_add_test(t, what_one_restore_expired_the_next_one_drops);
	tcase_add_loop_test(t, who_asks_by_what_was_there_before_looks_again, 0, 6);
	tcase_add_test(t, who_asks_by_what_was_not_there_before_looks_again);
	tcase_add_test(t, what_was_told_is_what_the_kernel_has);
	tcase_add_test(t, what_was_looked_at_before_is_looked_at_again);
	tcase_add_test(t, by_epoch_all_look_again);
	tcase_add_test(t, old_kernels_are_told_to_look_again_in_another_import);
	tcase_add_loop_test(t, rights_are_told_before_names, 0, 4);
	tcase_add_test(t, an_inode_on_its_way_to_the_kernel_is_told_when_it_is_there);
	tcase_add_test(t, what_the_kernel_could_not_be_told_is_said_after_the_rest);
	tcase_add_loop_test(t, what_the_kernel_could_not_be_told_by_epoch_is_said_after_the_rest, 0,
			    3);
	tcase_add_test(t, others_read_requests_before_the_kernel_is_told);
	tcase_add_test(t, names_that_were_looked_up_anew_are_left_alone_afterwards);
	tcase_add_test(t, what_a_restore_expired_is_dropped_if_the_kernel_still_has_it);
	return run_case("view_told", t);
}
