/* SPDX-License-Identifier: Apache-2.0 */

/* Comparing two states: fs/diff.h. What is printed of it is test_patch.c's. */

#include <inttypes.h>

#include "tests/unit/diff_fixture.h"

struct lines { /* "M path", "R old > new", one a line */
	char *text;
	size_t len;
	FILE *f;
	bool what;
};

static int print_change(void *arg, const struct change *c)
{
	struct lines *l = arg;

	fprintf(l->f, "%c %s%s%s", c->kind,
		c->old_path && c->kind != CHANGE_ADDED ? c->old_path : "",
		c->kind == CHANGE_RENAMED ? " > " : "",
		c->kind == CHANGE_ADDED || c->kind == CHANGE_RENAMED ? c->new_path : "");
	if (l->what && c->what)
		fprintf(l->f, " %u", c->what);
	fputc('\n', l->f);
	ck_assert((c->old_path != NULL) == (c->old_inode != NULL));
	ck_assert((c->new_path != NULL) == (c->new_inode != NULL));
	return 0;
}

static char *diff_text(struct root *a, struct root *b, bool same_lineage, unsigned flags, bool what)
{
	struct lines l = { .what = what };

	l.f = open_memstream(&l.text, &l.len);
	ck_assert_int_eq(fs_diff(fx_store, a, b, same_lineage, flags, print_change, &l), 0);
	fclose(l.f);
	return l.text;
}

static void expect(struct root *a, struct root *b, unsigned flags, const char *want)
{
	_cleanup_free_ char *got = diff_text(a, b, true, flags, true);

	ck_assert_str_eq(got, want);
}

/* ---- facts ---- */

START_TEST(equal_states_do_not_differ)
{
	_cleanup_root_ struct root *a = NULL, *b = NULL;

	put(ROOT_INO, "f", "one");
	a = fx_freeze();
	b = fx_freeze();
	expect(a, a, DIFF_TIMES | DIFF_DIRS, "");
	expect(a, b, DIFF_TIMES | DIFF_DIRS, "");
}
END_TEST

START_TEST(added_deleted_modified_in_order_of_path)
{
	_cleanup_root_ struct root *a = NULL, *b = NULL;
	uint64_t d = fx_dir(ROOT_INO, "d"), f;

	put(ROOT_INO, "gone", "x");
	put(d, "same", "x");
	f = put(d, "content", "x");
	a = fx_freeze();
	drop(ROOT_INO, "gone");
	put(d, "a-new", "y");
	fx_write(f, 0, "z", 1);
	b = fx_freeze();
	expect(a, b, 0, "A d/a-new\nM d/content 17\nD gone\n");
	expect(b, a, 0, "D d/a-new\nM d/content 17\nA gone\n");
}
END_TEST

START_TEST(what_changed_is_told)
{
	_cleanup_root_ struct root *a = NULL, *b = NULL;
	uint64_t mode = put(ROOT_INO, "mode", ""), owner = put(ROOT_INO, "owner", "");
	uint64_t xattr = put(ROOT_INO, "xattr", ""), times = put(ROOT_INO, "times", "");
	struct fs_set set = { .mask = SET_MODE, .mode = 0755 };
	struct inode i;

	a = fx_freeze();
	ck_assert_int_eq(fs_setattr(&fs, mode, &set, &i), 0);
	set = (struct fs_set){ .mask = SET_UID, .uid = 77 };
	ck_assert_int_eq(fs_setattr(&fs, owner, &set, &i), 0);
	ck_assert_int_eq(fs_setxattr(&fs, xattr, "user.a", "b", 1, 0), 0);
	set = (struct fs_set){ .mask = SET_MTIME, .mtime = { .sec = 5 } };
	ck_assert_int_eq(fs_setattr(&fs, times, &set, &i), 0);
	b = fx_freeze();
	expect(a, b, 0, "M mode 2\nM owner 4\nM xattr 8\n");
	expect(a, b, DIFF_TIMES, "M mode 2\nM owner 4\nM times 16\nM xattr 8\n");
}
END_TEST

START_TEST(what_was_undone_is_no_change)
{
	_cleanup_root_ struct root *a = NULL, *b = NULL;
	uint64_t f = put(ROOT_INO, "f", "same bytes"), big = put(ROOT_INO, "big", "");
	_cleanup_free_ uint8_t *buf = malloc(300000);

	fx_fill(buf, 300000, 1);
	fx_write(big, 0, buf, 300000);
	a = fx_freeze();
	fx_write(f, 0, "same bytes", 10);
	fx_write(big, 100000, buf + 100000, 4096);
	ck_assert_int_eq(fs_setxattr(&fs, f, "user.a", "b", 1, 0), 0);
	ck_assert_int_eq(fs_removexattr(&fs, f, "user.a"), 0);
	put(ROOT_INO, "short-lived", "x");
	drop(ROOT_INO, "short-lived");
	b = fx_freeze();
	expect(a, b, 0, "");
}
END_TEST

START_TEST(a_hole_and_written_zeros_are_the_same_bytes)
{
	_cleanup_root_ struct root *a = NULL, *b = NULL, *c = NULL;
	uint64_t f = fx_file("f");
	_cleanup_free_ uint8_t *zeros = calloc(1, 200000);
	struct fs_set set = { .mask = SET_SIZE, .size = 1000000 };
	struct inode i;

	ck_assert_int_eq(fs_setattr(&fs, f, &set, &i), 0);
	a = fx_freeze();
	fx_write(f, 400000, zeros, 200000);
	b = fx_freeze();
	fx_write(f, 500000, "x", 1);
	c = fx_freeze();
	expect(a, b, 0, "");
	expect(b, c, 0, "M f 17\n");
	expect(a, c, 0, "M f 17\n");
}
END_TEST

START_TEST(a_file_that_replaced_another_is_modified)
{
	_cleanup_root_ struct root *a = NULL, *b = NULL, *c = NULL;

	put(ROOT_INO, "f", "old");
	a = fx_freeze();
	put(ROOT_INO, "f.tmp", "new");
	move(ROOT_INO, "f.tmp", ROOT_INO, "f", 0);
	b = fx_freeze();
	put(ROOT_INO, "f.tmp", "new");
	move(ROOT_INO, "f.tmp", ROOT_INO, "f", 0);
	c = fx_freeze();
	expect(a, b, DIFF_RENAMES, "M f 17\n");
	expect(b, c, DIFF_RENAMES, "");
}
END_TEST

START_TEST(a_change_of_type_is_told)
{
	_cleanup_root_ struct root *a = NULL, *b = NULL;
	struct fs_new n = {
		.dir = ROOT_INO, .name = "l", .len = 1, .mode = S_IFLNK | 0777, .target = "f"
	};
	struct inode i;
	uint64_t d;

	put(ROOT_INO, "l", "x");
	put(ROOT_INO, "d", "x");
	a = fx_freeze();
	drop(ROOT_INO, "l");
	ck_assert_int_eq(fs_create(&fs, &n, &i), 0);
	drop(ROOT_INO, "d");
	d = fx_dir(ROOT_INO, "d");
	put(d, "x", "y");
	b = fx_freeze();
	expect(a, b, 0, "D d\nA d/x\nT l 1\n");
	expect(a, b, DIFF_DIRS, "T d 1\nA d/x\nT l 1\n");
	expect(b, a, 0, "A d\nD d/x\nT l 1\n");
}
END_TEST

START_TEST(a_rename_is_one_change)
{
	_cleanup_root_ struct root *a = NULL, *b = NULL;
	uint64_t f = put(ROOT_INO, "a", "1"), d = fx_dir(ROOT_INO, "d");

	a = fx_freeze();
	move(ROOT_INO, "a", d, "b", 0);
	b = fx_freeze();
	expect(a, b, DIFF_RENAMES, "R a > d/b\n");
	expect(a, b, 0, "D a\nA d/b\n");
	fx_write(f, 0, "2", 1);
	root_unref(b);
	b = fx_freeze();
	expect(a, b, DIFF_RENAMES, "R a > d/b 17\n");
}
END_TEST

START_TEST(a_moved_directory_takes_its_content_along)
{
	_cleanup_root_ struct root *a = NULL, *b = NULL;
	uint64_t d = fx_dir(ROOT_INO, "d"), e = fx_dir(d, "e"), f;

	put(d, "1", "x");
	f = put(e, "2", "x");
	put(e, "3", "x");
	a = fx_freeze();
	move(ROOT_INO, "d", ROOT_INO, "moved", 0);
	move(e, "3", ROOT_INO, "3", 0);
	fx_write(f, 0, "y", 1);
	b = fx_freeze();
	expect(a, b, DIFF_RENAMES, "R d/e/3 > 3\nR d/1 > moved/1\nR d/e/2 > moved/e/2 17\n");
	expect(a, b, DIFF_RENAMES | DIFF_DIRS,
	       "R d/e/3 > 3\nR d > moved\nR d/1 > moved/1\nR d/e > moved/e 16\n"
	       "R d/e/2 > moved/e/2 17\n");
	expect(a, b, 0, "A 3\nD d/1\nD d/e/2\nD d/e/3\nA moved/1\nA moved/e/2\n");
}
END_TEST

START_TEST(exchanged_directories_are_compared_by_path)
{
	_cleanup_root_ struct root *a = NULL, *b = NULL;
	uint64_t d = fx_dir(ROOT_INO, "d"), e = fx_dir(ROOT_INO, "e");

	put(d, "both", "d");
	put(e, "both", "e");
	put(d, "equal", "x");
	put(e, "equal", "x");
	put(d, "one", "1");
	a = fx_freeze();
	move(ROOT_INO, "d", ROOT_INO, "e", RENAME_EXCHANGE);
	b = fx_freeze();
	expect(a, b, DIFF_RENAMES, "M d/both 17\nM e/both 17\nR d/one > e/one\n");
}
END_TEST

START_TEST(a_directory_inside_another_that_moved_too)
{
	_cleanup_root_ struct root *a = NULL, *b = NULL;
	uint64_t d = fx_dir(ROOT_INO, "d"), e = fx_dir(d, "e");

	put(e, "f", "x");
	a = fx_freeze();
	move(d, "e", ROOT_INO, "top", 0);
	move(ROOT_INO, "d", e, "inside", 0);
	put(d, "g", "y");
	b = fx_freeze();
	expect(a, b, DIFF_RENAMES, "R d/e/f > top/f\nA top/inside/g\n");
	expect(b, a, DIFF_RENAMES, "R top/f > d/e/f\nD top/inside/g\n");
}
END_TEST

START_TEST(every_name_of_a_changed_file_is_told)
{
	_cleanup_root_ struct root *a = NULL, *b = NULL, *c = NULL;
	uint64_t d = fx_dir(ROOT_INO, "d"), f = put(ROOT_INO, "f", "1");
	struct inode i;

	ck_assert_int_eq(fs_link(&fs, f, d, "g", 1, &i), 0);
	a = fx_freeze();
	fx_write(f, 0, "2", 1);
	b = fx_freeze();
	expect(a, b, DIFF_RENAMES, "M d/g 17\nM f 17\n");
	ck_assert_int_eq(fs_link(&fs, f, d, "h", 1, &i), 0);
	drop(ROOT_INO, "f");
	c = fx_freeze();
	expect(b, c, DIFF_RENAMES, "R f > d/h\n");
	expect(a, c, DIFF_RENAMES, "M d/g 17\nR f > d/h 17\n");
}
END_TEST

START_TEST(orphans_are_nobodys_change)
{
	_cleanup_root_ struct root *a = NULL, *b = NULL;
	struct inode gone;

	a = fx_freeze();
	put(ROOT_INO, "f", "x");
	ck_assert_int_eq(fs_unlink(&fs, ROOT_INO, "f", 1, &gone), 0);
	ck_assert_uint_eq(gone.nlink, 0);
	b = fx_freeze();
	expect(a, b, DIFF_TIMES, "");
	ck_assert_int_eq(fs_purge(&fs, gone.ino), 0);
}
END_TEST

static int stop_at_once(void *arg, const struct change *c)
{
	++*(unsigned *)arg;
	return 7;
}

START_TEST(the_callback_can_stop)
{
	_cleanup_root_ struct root *a = fx_freeze(), *b = NULL;
	unsigned calls = 0;

	put(ROOT_INO, "f", "x");
	put(ROOT_INO, "g", "x");
	b = fx_freeze();
	ck_assert_int_eq(fs_diff(fx_store, a, b, true, 0, stop_at_once, &calls), 7);
	ck_assert_uint_eq(calls, 1);
}
END_TEST

/* ---- random states: both ways of comparing must agree ---- */

START_TEST(by_items_and_by_name_agree)
{
	_cleanup_root_ struct root *before = NULL;

	model_seed = (uint64_t)_i * 7919 + 1;
	for (unsigned n = 0; n < 60; n++)
		model_step();
	before = fx_freeze();
	for (unsigned round = 0; round < 15; round++) {
		_cleanup_root_ struct root *after = NULL;

		for (unsigned n = rnd(25); n > 0; n--)
			model_step();
		after = fx_freeze();
		for (unsigned flags = 0; flags < 4; flags++) {
			_cleanup_free_ char *items = diff_text(before, after, true, flags, false);
			_cleanup_free_ char *names = diff_text(before, after, false, flags, false);

			ck_assert_msg(strcmp(items, names) == 0,
				      "seed %d round %u flags %u\n%s---\n%s", _i, round, flags,
				      items, names);
		}
		if (rnd(2)) {
			root_unref(before);
			before = root_ref(after);
		}
	}
}
END_TEST

static uint64_t nodes_in_memory(void)
{
	struct store_stats stats;

	ck_assert_int_eq(store_stats(fx_store, &stats), 0);
	return stats.nodes;
}

/* Makes both states durable and opens the store anew, with nothing of them in memory. */
static void forget_all(struct root **a, struct root **b, const struct store_options *options)
{
	struct root **states[] = { a, b };
	uint64_t ids[2];

	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(snap_create(fx_store, *states[i], 0, 1, "", "", 0, &ids[i]), 0);
		root_unref(TAKE_PTR(*states[i]));
	}
	ck_assert_int_eq(store_sync(fx_store), 0);
	tree_free(TAKE_PTR(fs.tree));
	ck_assert_int_eq(store_close(fx_store), 0);
	ck_assert_int_eq(store_open_with(fx.dir_fd, options, NULL, &fx_store), 0);
	for (int i = 0; i < 2; i++)
		ck_assert_int_eq(snap_root(fx_store, ids[i], states[i]), 0);
}

/* No node may stay in memory, so that what is sealed is read apart from the second step on. */
static const struct store_options short_of_memory = { .node_budget = 1 };

static void continue_short_of_memory(struct root **state)
{
	_cleanup_root_ struct root *same = root_ref(*state);

	forget_all(state, &same, &short_of_memory);
	fs.store = fx_store;
	fs.tree = fx_tree(*state);
}

START_TEST(sealed_or_not_they_differ_in_the_same)
{
	_cleanup_root_ struct root *before = NULL, *after = NULL;
	uint64_t id;

	model_seed = (uint64_t)_i * 7919 + 1;
	for (unsigned n = 0; n < 300; n++)
		model_step();
	before = fx_freeze();
	continue_short_of_memory(&before);
	for (unsigned n = 0; n < 100; n++)
		model_step();
	after = fx_freeze();
	for (unsigned flags = 0; flags < 4; flags++) {
		_cleanup_free_ char *one = diff_text(before, after, true, flags, false);
		_cleanup_free_ char *by_name = diff_text(before, after, false, flags, false);
		_cleanup_free_ char *none = NULL;

		ck_assert_str_eq(one, by_name);
		ck_assert_int_gt(strlen(one), 0);
		ck_assert_int_eq(snap_create(fx_store, after, 0, 1, "", "", 0, &id), 0);
		ck_assert_int_eq(store_sync(fx_store), 0);
		none = diff_text(before, after, true, flags, false);
		ck_assert_str_eq(one, none);
	}
}
END_TEST

START_TEST(who_compares_keeps_no_more_nodes_than_he_needs)
{
	_cleanup_root_ struct root *a = NULL, *b = NULL;
	_cleanup_free_ char *roomy = NULL, *tight = NULL;
	uint64_t files[5000], dir = 0;
	const unsigned added = 400;
	unsigned lines = 0;

	for (unsigned i = 0; i < ARRAY_SIZE(files); i++) {
		char name[16];

		snprintf(name, sizeof(name), "%u", i);
		if (i % 100 == 0)
			dir = fx_dir(ROOT_INO, name);
		files[i] = put(dir, name, "content");
	}
	a = fx_freeze();
	for (unsigned i = 0; i < ARRAY_SIZE(files); i++)
		fx_write(files[i], 0, "changed", 7);
	move(ROOT_INO, "100", ROOT_INO, "moved", 0);
	for (unsigned i = 0; i < added; i++) {
		char name[16];

		snprintf(name, sizeof(name), "added%u", i);
		put(dir, name, "x");
	}
	b = fx_freeze();

	forget_all(&a, &b, NULL);
	roomy = diff_text(a, b, true, DIFF_RENAMES, false);
	for (const char *p = roomy; *p; p++)
		lines += *p == '\n';
	ck_assert_uint_eq(lines, ARRAY_SIZE(files) + added);
	ck_assert_uint_ge(nodes_in_memory(), 300);
	forget_all(&a, &b, &short_of_memory);
	tight = diff_text(a, b, true, DIFF_RENAMES, false);
	ck_assert_str_eq(roomy, tight);
	ck_assert_uint_le(nodes_in_memory(), 60); /* of the first step */
}
END_TEST

START_TEST(ten_changes_in_a_large_tree_cost_ten)
{
	_cleanup_root_ struct root *a = NULL, *b = NULL;
	_cleanup_free_ char *text = NULL;
	uint64_t files[10] = { 0 }, all, read;
	unsigned lines = 0;

	for (unsigned d = 0; d < 200; d++) {
		char name[16];
		uint64_t dir;

		snprintf(name, sizeof(name), "dir%u", d);
		dir = fx_dir(ROOT_INO, name);
		for (unsigned f = 0; f < 100; f++) {
			uint64_t ino;

			snprintf(name, sizeof(name), "file%u", f);
			ino = put(dir, name, "content");
			if (d % 20 == 0 && f == 50)
				files[d / 20] = ino;
		}
	}
	a = fx_freeze();
	all = nodes_in_memory();
	for (unsigned i = 0; i < 10; i++)
		fx_write(files[i], 0, "changed", 7);
	b = fx_freeze();

	forget_all(&a, &b, NULL);
	text = diff_text(a, b, true, DIFF_RENAMES, false);
	for (const char *p = text; *p; p++)
		lines += *p == '\n';
	ck_assert_uint_eq(lines, 10);
	/* Per file the leaves of its inode and of its path's names, twice, and what is above. */
	read = nodes_in_memory();
	ck_assert_msg(read <= 100 && all >= 500, "%" PRIu64 " of %" PRIu64 " nodes read", read,
		      all);
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("diff");

	tcase_set_timeout(t, 240); /* sanitizers */
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, equal_states_do_not_differ);
	tcase_add_test(t, added_deleted_modified_in_order_of_path);
	tcase_add_test(t, what_changed_is_told);
	tcase_add_test(t, what_was_undone_is_no_change);
	tcase_add_test(t, a_hole_and_written_zeros_are_the_same_bytes);
	tcase_add_test(t, a_file_that_replaced_another_is_modified);
	tcase_add_test(t, a_change_of_type_is_told);
	tcase_add_test(t, a_rename_is_one_change);
	tcase_add_test(t, a_moved_directory_takes_its_content_along);
	tcase_add_test(t, exchanged_directories_are_compared_by_path);
	tcase_add_test(t, a_directory_inside_another_that_moved_too);
	tcase_add_test(t, every_name_of_a_changed_file_is_told);
	tcase_add_test(t, orphans_are_nobodys_change);
	tcase_add_test(t, the_callback_can_stop);
	tcase_add_loop_test(t, by_items_and_by_name_agree, 0, 30);
	tcase_add_loop_test(t, sealed_or_not_they_differ_in_the_same, 0, 10);
	tcase_add_test(t, who_compares_keeps_no_more_nodes_than_he_needs);
	tcase_add_test(t, ten_changes_in_a_large_tree_cost_ten);
	return run_case("diff", t);
}
