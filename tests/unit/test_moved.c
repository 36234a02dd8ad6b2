/* SPDX-License-Identifier: Apache-2.0 */

/* Which directories a restore moved (fs/moved.c), as its caller asks for them. */

#include <limits.h>

#include "store/base/fault.h"
#include "tests/unit/view_recorder.h"

static const char *const none[] = { NULL };

static void rename_to(uint64_t from, const char *name, uint64_t to, const char *as)
{
	ck_ok(view_rename(view, from, name, strlen(name), to, as, strlen(as), 0));
}

/* All of them, in as many answers as it takes, are these, in any order. */
static void assert_moved(uint64_t below, const char *const *want)
{
	uint64_t at = 0, before;
	unsigned n = 0, n_want = 0;

	while (want[n_want])
		n_want++;
	do {
		char buf[PATH_MAX];
		size_t len;

		before = at;
		ck_ok(view_moved(view, below, &at, buf, sizeof(buf), &len));
		ck_assert(at == 0 || at > before);
		for (const char *p = buf; p < buf + len; p += strlen(p) + 1, n++) {
			bool wanted = false;

			for (unsigned i = 0; i < n_want; i++)
				wanted |= !strcmp(want[i], p);
			ck_assert_msg(wanted, "%s is told", p);
		}
	} while (at != 0);
	ck_assert_uint_eq(n, n_want);
}

/* By names, by epoch, and by names where there is no epoch. */
static void set_mode(int mode)
{
	struct view_kernel k = mode == 2 ? old_recorder : recorder;

	k.names_max = mode == 1 ? 1 : 0;
	view_set_kernel(view, &k);
}

START_TEST(directories_with_another_parent_or_name_are_told)
{
	uint64_t a = make_dir(ROOT_NODE, "a"), b = make_dir(ROOT_NODE, "b");
	uint64_t bb = make_dir(ROOT_NODE, "bb"), id, now;

	make_dir(a, "in"); /* comes along */
	make_dir(bb, "stays");
	make_dir(b, "x");
	make_file(ROOT_NODE, "file", "");
	id = checkpoint();
	rename_to(ROOT_NODE, "a", b, "other");
	rename_to(b, "x", bb, "x");
	rename_to(ROOT_NODE, "file", bb, "file");
	view_forget(view, make_file(ROOT_NODE, "nobody knows", ""), 1);
	now = checkpoint();
	set_mode(_i);
	ck_assert(restore(id).moved);
	assert_moved(ROOT_NODE, (const char *[]){ "a", "b/x", NULL });
	assert_moved(b, (const char *[]){ "x", NULL });
	assert_moved(a, none);
	assert_moved(bb, none);
	ck_assert(restore(now).moved);
	assert_moved(ROOT_NODE, (const char *[]){ "b/other", "bb/x", NULL });
	assert_moved(b, (const char *[]){ "other", NULL });
	assert_moved(bb, (const char *[]){ "x", NULL });
	assert_moved(a, none);
}
END_TEST

START_TEST(what_did_not_move_is_not_told)
{
	uint64_t d = make_dir(ROOT_NODE, "d"), id = checkpoint(), other;

	make_dir(d, "new");
	make_file(d, "file", "");
	rename_to(d, "file", ROOT_NODE, "file");
	set_mode(_i);
	ck_assert(!restore(id).moved);
	assert_moved(ROOT_NODE, none);

	/* nor, of another import, what has the same number */
	other = make_other(id, 0, 1, (const char *const[][2]){ { "d", "e" } });
	rename_to(ROOT_NODE, "d", ROOT_NODE, "x");
	ck_assert(restore(id).moved);
	ck_assert(!restore(other).moved); /* and there is nobody to ask for it any more */
	assert_moved(ROOT_NODE, none);
	rename_to(ROOT_NODE, "e", ROOT_NODE, "f");
	ck_assert(!restore(other).moved);
	ck_assert(!restore(id).moved);
	assert_moved(ROOT_NODE, none);
}
END_TEST

START_TEST(what_is_elsewhere_again_is_told_as_it_is_now)
{
	uint64_t d = make_dir(ROOT_NODE, "d"), e = make_dir(ROOT_NODE, "e"), id = checkpoint();
	uint64_t at = 0;
	char buf[PATH_MAX];
	size_t len;

	rename_to(ROOT_NODE, "d", ROOT_NODE, "moved");
	rename_to(ROOT_NODE, "e", d, "moved");
	ck_assert(restore(id).moved);
	rename_to(ROOT_NODE, "e", d, "again");
	assert_moved(ROOT_NODE, (const char *[]){ "d", "d/again", NULL });
	ck_ok(view_rmdir(view, d, "again", 5));
	view_forget(view, e, 1);
	assert_moved(ROOT_NODE, (const char *[]){ "d", NULL });
	ck_assert(!restore(checkpoint()).moved); /* and forgotten with the next one */
	assert_moved(ROOT_NODE, none);
	ck_assert_int_eq(view_moved(view, 4711, &at, buf, sizeof(buf), &len), -ESTALE);
}
END_TEST

/* Directories "a" to `last`, of which a restore brings back the names of "a" to "c". */
static uint64_t three_are_moved(char last, int mode)
{
	char name[2] = "a";
	uint64_t id;

	for (; name[0] <= last; name[0]++)
		make_dir(ROOT_NODE, name);
	id = checkpoint();
	for (name[0] = 'a'; name[0] <= 'c'; name[0]++)
		rename_to(ROOT_NODE, name, ROOT_NODE, (char[]){ name[0], name[0], '\0' });
	set_mode(mode);
	ck_assert(restore(id).moved);
	return id;
}

START_TEST(who_asks_without_memory_is_told_so)
{
	unsigned refused = 0, told_all = 0;

	(void)three_are_moved('c', 0);
	for (int n = 0, ticks = 0; ticks >= n; n++) {
		uint64_t at = 0;
		char buf[PATH_MAX];
		size_t len;
		int r;

		fault_arm(n, 1, ENOMEM);
		r = view_moved(view, ROOT_NODE, &at, buf, sizeof(buf), &len);
		ticks = fault_ticks();
		fault_disarm();
		ck_assert(r == -ENOMEM || (r == 0 && len == sizeof("a\0b\0c")));
		refused += r < 0;
		told_all += r == 0;
	}
	ck_assert(refused > 0 && told_all > 0);
}
END_TEST

/* Of two restores at once the first one's caller may come to ask behind the second. */
START_TEST(what_nobody_asked_for_is_not_forgotten_with_the_next_restore)
{
	uint64_t id, at = 0;
	char buf[4];
	size_t len;

	(void)three_are_moved('c', _i);
	ck_assert(!restore(checkpoint()).moved);
	ck_ok(view_moved(view, ROOT_NODE, &at, buf, sizeof(buf), &len));
	ck_assert_uint_eq((uint32_t)at, 2); /* "a", "b" */

	make_dir(ROOT_NODE, "d");
	id = checkpoint();
	rename_to(ROOT_NODE, "d", ROOT_NODE, "dd");
	ck_assert(restore(id).moved);
	assert_moved(ROOT_NODE, (const char *[]){ "a", "b", "c", "d", NULL });
	ck_ok(view_moved(view, ROOT_NODE, &at, buf, sizeof(buf), &len));
	ck_assert_mem_eq(buf, "c\0d", 4);
	ck_assert_uint_eq(at, 0);

	ck_assert(!restore(checkpoint()).moved);
	assert_moved(ROOT_NODE, none);
}
END_TEST

/* Or behind the restore after, when somebody else was told all of the first list. */
START_TEST(who_was_told_a_part_of_another_list_is_told_all_of_the_next)
{
	uint64_t id, at = 0;
	char buf[4];
	size_t len;

	id = three_are_moved('d', _i);
	ck_ok(view_moved(view, ROOT_NODE, &at, buf, sizeof(buf), &len));
	ck_assert_uint_eq(len, 4); /* "a", "b" */
	assert_moved(ROOT_NODE, (const char *[]){ "a", "b", "c", NULL });

	rename_to(ROOT_NODE, "d", ROOT_NODE, "dd");
	ck_assert(restore(id).moved);
	ck_ok(view_moved(view, ROOT_NODE, &at, buf, sizeof(buf), &len));
	ck_assert_uint_eq(len, 2);
	ck_assert_mem_eq(buf, "d", 2);
	ck_assert_uint_eq(at, 0);
}
END_TEST

static void assert_moved_by_epoch_or_names(const char *const *epoch, const char *const *names,
					   int mode)
{
	assert_moved(ROOT_NODE, mode == 1 ? epoch : names);
}

START_TEST(what_comes_back_elsewhere_is_told)
{
	uint64_t p = make_dir(ROOT_NODE, "p"), first = checkpoint(), q, d, in_q;

	q = make_dir(ROOT_NODE, "q");
	d = make_dir(q, "d");
	make_dir(d, "deep");
	in_q = checkpoint();
	rename_to(q, "d", p, "d");
	set_mode(_i);
	ck_assert(!restore(first).moved);
	ck_assert(restore(in_q).moved);
	assert_moved_by_epoch_or_names((const char *[]){ "q", "q/d", NULL },
				       (const char *[]){ "q", "q/d", "q/d/deep", NULL }, _i);
}
END_TEST

/* By epoch the kernel throws out a name when it is asked for: a dead directory has none. */
START_TEST(what_comes_back_is_told_with_what_was_asked_for)
{
	uint64_t first = checkpoint(), q, in, late;
	struct inode i;

	q = make_dir(ROOT_NODE, "q");
	in = make_dir(q, "in");
	make_dir(in, "deep");
	late = checkpoint();
	set_mode(_i);
	ck_assert(!restore(first).moved);
	ck_assert(restore(late).moved);
	assert_moved_by_epoch_or_names((const char *[]){ "q", NULL },
				       (const char *[]){ "q", "q/in", "q/in/deep", NULL }, _i);

	ck_assert(!restore(first).moved);
	(void)view_getattr(view, q, &i);
	ck_assert(restore(late).moved);
	assert_moved_by_epoch_or_names((const char *[]){ "q", "q/in", NULL },
				       (const char *[]){ "q", "q/in", "q/in/deep", NULL }, _i);
}
END_TEST

static uint64_t looked_at; /* while the kernel is told */

static void look_at_it(const char *name)
{
	struct inode i;

	ck_ok(view_getattr(view, looked_at, &i));
}

/* Or when it is asked for as soon as it is back: that may be no lookup. */
START_TEST(what_is_asked_for_before_the_restore_is_over_is_told)
{
	uint64_t first = checkpoint(), q = make_dir(ROOT_NODE, "q"), late;

	looked_at = make_dir(q, "in");
	late = checkpoint();
	set_mode(1);
	ck_assert(!restore(first).moved);
	on_entry = look_at_it;
	ck_assert(restore(late).moved);
	on_entry = NULL;
	assert_moved(ROOT_NODE, (const char *[]){ "q", "q/in", NULL });
}
END_TEST

/* Or when it is asked for where its parent is still there. */
START_TEST(what_was_asked_for_before_its_parent_went_is_told)
{
	uint64_t first = checkpoint(), q = make_dir(ROOT_NODE, "q"), with_q = checkpoint(), late;
	struct entry e;

	make_dir(make_dir(q, "in"), "deep");
	late = checkpoint();
	set_mode(_i);
	ck_assert(!restore(with_q).moved);
	ck_assert_int_eq(view_lookup(view, q, "in", 2, &e), -ENOENT);
	ck_assert(!restore(first).moved);
	ck_assert(restore(late).moved);
	assert_moved_by_epoch_or_names((const char *[]){ "q", "q/in", NULL },
				       (const char *[]){ "q", "q/in", "q/in/deep", NULL }, _i);
}
END_TEST

START_TEST(what_was_told_and_nobody_looked_at_is_told_when_it_comes_back)
{
	uint64_t first = checkpoint(), q = make_dir(ROOT_NODE, "q"), late;

	make_dir(q, "d");
	late = checkpoint();
	rename_to(q, "d", q, "e");
	set_mode(0);
	ck_assert(restore(late).moved);
	assert_moved(ROOT_NODE, (const char *[]){ "q/d", NULL });
	set_mode(1);
	ck_assert(!restore(first).moved);
	ck_assert(restore(late).moved);
	assert_moved(ROOT_NODE, (const char *[]){ "q", "q/d", NULL });
}
END_TEST

/* By names the kernel throws out the name that both have. */
START_TEST(what_becomes_another_by_its_path_is_told)
{
	uint64_t one, two, empty = checkpoint();

	view_forget(view, make_dir(ROOT_NODE, "m"), 1);
	one = checkpoint();
	ck_ok(view_rmdir(view, ROOT_NODE, "m", 1));
	make_dir(ROOT_NODE, "m");
	two = checkpoint();
	set_mode(0);
	ck_assert(restore(one).moved);
	assert_moved(ROOT_NODE, (const char *[]){ "m", NULL });
	ck_assert(restore(two).moved);
	assert_moved(ROOT_NODE, (const char *[]){ "m", NULL });
	ck_assert(restore(one).moved);
	ck_assert(!restore(empty).moved);
	ck_assert(restore(two).moved);
	assert_moved(ROOT_NODE, (const char *[]){ "m", NULL });
}
END_TEST

/* What the kernel has of a dead one stays where it was: nowhere, then. */
START_TEST(what_was_in_a_directory_that_was_removed_meanwhile_is_told)
{
	uint64_t zero = checkpoint(), q = make_dir(ROOT_NODE, "q"), first = checkpoint(), late;
	struct entry e;

	make_dir(q, "in");
	late = checkpoint();
	set_mode(_i);
	ck_assert(!restore(first).moved);
	ck_ok(view_lookup(view, ROOT_NODE, "q", 1, &e)); /* as who removes it does */
	ck_assert_uint_eq(e.node, q);
	ck_ok(view_rmdir(view, ROOT_NODE, "q", 1));
	ck_assert(!restore(zero).moved);
	ck_assert(restore(late).moved);
	assert_moved_by_epoch_or_names((const char *[]){ "q", "q/in", NULL },
				       (const char *[]){ "q/in", NULL }, _i);
}
END_TEST

START_TEST(what_went_by_names_and_comes_back_by_epoch_is_told)
{
	uint64_t first = checkpoint(), q, late;

	q = make_dir(ROOT_NODE, "q");
	make_dir(make_dir(q, "in"), "deep");
	late = checkpoint();
	set_mode(0);
	ck_assert(!restore(first).moved);
	set_mode(1);
	ck_assert_int_eq(restore(late).mode, RESTORE_EPOCH);
	assert_moved(ROOT_NODE, (const char *[]){ "q", "q/in", "q/in/deep", NULL });
}
END_TEST

START_TEST(what_moved_within_another_import_is_told)
{
	uint64_t id, other;

	make_dir(ROOT_NODE, "d");
	id = checkpoint();
	other = make_other(id, 0, 0, NULL);
	set_mode(_i);
	ck_assert(!restore(other).moved);
	(void)node_of(ROOT_NODE, "d");
	rename_to(ROOT_NODE, "d", ROOT_NODE, "e");
	ck_assert(restore(other).moved);
	assert_moved(ROOT_NODE, (const char *[]){ "d", NULL });
}
END_TEST

/* Not once for each that the kernel has of it: it removed one. */
START_TEST(what_is_known_twice_is_told_once)
{
	uint64_t d = make_dir(ROOT_NODE, "d"), id = checkpoint();

	ck_ok(view_rmdir(view, ROOT_NODE, "d", 1)); /* somebody is in it */
	set_mode(_i);
	restore(id);
	assert_moved(ROOT_NODE, (const char *[]){ "d", NULL });
	ck_assert_uint_ne(node_of(ROOT_NODE, "d"), d);
	rename_to(ROOT_NODE, "d", ROOT_NODE, "e");
	ck_assert(restore(id).moved);
	assert_moved(ROOT_NODE, (const char *[]){ "d", NULL });
}
END_TEST

/* What was found before it turned out that too much differs is found again. */
START_TEST(what_moved_beside_too_much_is_told_once)
{
	struct view_kernel few = recorder;
	uint64_t id;

	make_dir(ROOT_NODE, "d");
	id = checkpoint();
	rename_to(ROOT_NODE, "d", ROOT_NODE, "e");
	many_files(ROOT_NODE, 20);
	few.names_max = 10;
	view_set_kernel(view, &few);
	ck_assert_int_eq(restore(id).mode, RESTORE_EPOCH);
	assert_moved(ROOT_NODE, (const char *[]){ "d", NULL });
}
END_TEST

/* Whoever does not ask, and restores all the time, fills no memory. */
START_TEST(what_nobody_ever_asks_for_is_forgotten_in_the_end)
{
	enum { ROUNDS = 3000 }; /* more than are kept */
	uint64_t id, there, at = 0;
	char buf[ROUNDS * 6];
	size_t len;

	make_dir(ROOT_NODE, "here");
	id = checkpoint();
	rename_to(ROOT_NODE, "here", ROOT_NODE, "there");
	there = checkpoint();
	for (int i = 0; i < ROUNDS; i++)
		ck_assert(restore(i % 2 ? there : id).moved);
	ck_ok(view_moved(view, ROOT_NODE, &at, buf, sizeof(buf), &len));
	ck_assert_str_eq(buf, "there");
	ck_assert_uint_le(len, ROUNDS / 2 * 6);
}
END_TEST

/* More than an answer takes, and one that no call takes. */
#define LONG 200
#define MANY 50

START_TEST(many_are_told_in_several_answers)
{
	static char names[MANY][LONG + 1];
	const char *want[MANY + 2] = { 0 };
	_cleanup_free_ char *short_name = NULL;
	uint64_t deep = ROOT_NODE, id;
	char name[LONG + 1];

	memset(name, 'x', LONG);
	name[LONG] = '\0';
	for (int i = 0; i < PATH_MAX / LONG; i++)
		deep = make_dir(deep, name);
	make_dir(deep, name); /* the path of this one is too long */
	name[PATH_MAX - PATH_MAX / LONG * (LONG + 1)] = '\0'; /* and this one's, with its NUL */
	short_name = strdup(name);
	make_dir(deep, short_name);
	make_dir(ROOT_NODE, "short");
	for (int i = 0; i < MANY; i++) {
		memset(names[i], 'y', LONG);
		names[i][0] = (char)('A' + i);
		make_dir(ROOT_NODE, names[i]);
		want[i] = names[i];
	}
	want[MANY] = "short";
	id = checkpoint();
	memset(name, 'x', LONG);
	rename_to(deep, name, ROOT_NODE, "deep");
	rename_to(deep, short_name, ROOT_NODE, "as deep");
	for (int i = 0; i < MANY; i++) {
		snprintf(name, sizeof(name), "%d", i);
		rename_to(ROOT_NODE, names[i], ROOT_NODE, name);
	}
	rename_to(ROOT_NODE, "short", ROOT_NODE, "other");
	set_mode(_i);
	ck_assert(restore(id).moved);
	assert_moved(ROOT_NODE, want);
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("moved");

	tcase_add_checked_fixture(t, setup, view_teardown);
	tcase_add_loop_test(t, directories_with_another_parent_or_name_are_told, 0, 3);
	tcase_add_loop_test(t, what_did_not_move_is_not_told, 0, 3);
	tcase_add_test(t, what_is_elsewhere_again_is_told_as_it_is_now);
	tcase_add_test(t, who_asks_without_memory_is_told_so);
	tcase_add_loop_test(t, what_nobody_asked_for_is_not_forgotten_with_the_next_restore, 0, 3);
	tcase_add_loop_test(t, who_was_told_a_part_of_another_list_is_told_all_of_the_next, 0, 3);
	tcase_add_loop_test(t, what_comes_back_elsewhere_is_told, 0, 3);
	tcase_add_loop_test(t, what_comes_back_is_told_with_what_was_asked_for, 0, 3);
	tcase_add_test(t, what_is_asked_for_before_the_restore_is_over_is_told);
	tcase_add_loop_test(t, what_was_asked_for_before_its_parent_went_is_told, 0, 3);
	tcase_add_test(t, what_was_told_and_nobody_looked_at_is_told_when_it_comes_back);
	tcase_add_test(t, what_becomes_another_by_its_path_is_told);
	tcase_add_loop_test(t, what_was_in_a_directory_that_was_removed_meanwhile_is_told, 0, 3);
	tcase_add_test(t, what_went_by_names_and_comes_back_by_epoch_is_told);
	tcase_add_loop_test(t, what_moved_within_another_import_is_told, 0, 3);
	tcase_add_loop_test(t, what_is_known_twice_is_told_once, 0, 3);
	tcase_add_test(t, what_moved_beside_too_much_is_told_once);
	tcase_add_test(t, what_nobody_ever_asks_for_is_forgotten_in_the_end);
	tcase_add_loop_test(t, many_are_told_in_several_answers, 0, 3);
	return run_case("moved", t);
}
