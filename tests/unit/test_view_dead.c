/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Directories that a state lacks (V5, V8): dead ones, those that come back, and those that stand
 * for another one from then on: what the kernel is told of them, and what they are.
 */

#include <limits.h>

#include "store/base/fault.h"
#include "tests/unit/view_recorder.h"

START_TEST(a_dead_directory_that_comes_back_by_its_path_brings_nothing_along)
{
	uint64_t without = checkpoint(), d, third, with_old, with_new;
	struct entry e;

	make_file(make_dir(ROOT_NODE, "d"), "old", "");
	with_old = checkpoint();
	restore(without);
	d = make_dir(ROOT_NODE, "d");
	make_file(d, "new", "");
	with_new = checkpoint();
	view_forget(view, d, 1);
	restore(with_old);
	d = node_of(ROOT_NODE, "d"); /* and is somebody's working directory from now on */
	restore(without);
	ck_assert_int_eq(look(d, "new", &e), -ENOENT); /* which the kernel remembers */

	/* Nobody who has not restored anything makes another directory of it. */
	third = make_dir(ROOT_NODE, "d");
	make_file(third, "third", "");
	ck_assert_int_eq(look(d, "third", &e), -ENOENT);
	view_forget(view, third, 1);
	ck_assert_int_eq(look(d, "third", &e), -ENOENT);

	restore(with_new);
	ck_assert(was_told(d, "new") && !was_expired(d, "new"));
	ck_assert(were_rights_told_first(d)); /* it is not the one that was cached */
	(void)node_of(d, "new");
}
END_TEST

/* Somebody is in it, and asked while it was dead; in a state that lacks it others make one. */
static void assert_stays_dead(uint64_t d)
{
	uint64_t other = make_dir(ROOT_NODE, "d");
	struct entry e;

	view_forget(view, make_file(other, "f", ""), 1);
	view_forget(view, other, 1);
	told_nothing();
	ck_assert_int_eq(look(d, "f", &e), -ENOENT); /* as the kernel remembers */
}

START_TEST(a_dead_directory_that_another_state_lacks_as_well_is_still_dead)
{
	uint64_t without = checkpoint(), without_too, d;
	struct entry e;

	make_file(ROOT_NODE, "x", "");
	without_too = checkpoint();
	d = make_dir(ROOT_NODE, "d");
	restore(without);
	ck_assert_int_eq(look(d, "f", &e), -ENOENT);
	restore(without_too);
	assert_stays_dead(d);
}
END_TEST

/* There nothing would tell of the names that it had not, had it only to be asked to live again. */
START_TEST(without_epochs_a_directory_that_another_import_lacks_is_dead_at_once)
{
	uint64_t without = checkpoint(), d = make_dir(ROOT_NODE, "d"), other;
	struct entry e;

	ck_assert_int_eq(look(d, "f", &e), -ENOENT); /* which the kernel remembers */
	other = make_other(without, 0, 0, NULL);
	view_set_kernel(view, &old_recorder);
	ck_assert_int_eq(restore(other).mode, RESTORE_EPOCH);
	assert_stays_dead(d);
}
END_TEST

/* Each has the number that the one before it will have: the last one has to go first. */
START_TEST(without_epochs_a_directory_whose_place_another_one_leaves_is_alive)
{
	static const char *const names[] = { "p", "q", "r", "s" };
	static const char *const in[] = { "in p", "in q", "in r", "in s" };
	uint64_t node[ARRAY_SIZE(names)], other;

	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		node[i] = make_dir(ROOT_NODE, names[i]);
		view_forget(view, make_file(node[i], in[i], ""), 1);
	}
	view_forget(view, node[3], 1);
	other = make_other(checkpoint(), 0, 3,
			   (const char *const[][2]){ { "p", "q" }, { "q", "r" }, { "r", "s" } });
	view_set_kernel(view, &old_recorder);
	ck_assert_int_eq(restore(other).mode, RESTORE_EPOCH);
	for (size_t i = 0; i < 3; i++) {
		(void)node_of(node[i], in[i + 1]);
		ck_assert_uint_eq(node_of(ROOT_NODE, names[i]), node[i]);
	}
}
END_TEST

START_TEST(a_directory_that_made_room_is_dead_until_its_lineage_is_back)
{
	uint64_t d = make_dir(ROOT_NODE, "d"), id, other, with;
	struct entry e;

	make_file(d, "g", "");
	id = checkpoint();
	other = make_other(id, 0, 1, (const char *const[][2]){ { "d", "e" } });
	ck_assert_int_eq(restore(other).mode, RESTORE_EPOCH);
	ck_assert_uint_ne(node_of(ROOT_NODE, "e"), d); /* which has its number */
	ck_assert_int_eq(look(d, "f", &e), -ENOENT);
	assert_stays_dead(d);
	with = checkpoint();
	ck_assert_int_eq(restore(other).mode, RESTORE_NAMES);
	ck_assert_int_eq(restore(with).mode, RESTORE_NAMES);
	ck_assert(was_told(d, "f") || look(d, "f", &e) == -ENOENT);
	restore(id);
	ck_assert_uint_eq(node_of(ROOT_NODE, "d"), d);
	(void)node_of(d, "g");
}
END_TEST

/* By names and by epoch. */
static void set_mode(int epoch)
{
	struct view_kernel k = recorder;

	k.names_max = epoch ? 1 : 0;
	view_set_kernel(view, &k);
}

START_TEST(a_directory_that_is_dead_stays_so_until_the_next_restore)
{
	uint64_t without = checkpoint(), d, with;
	struct inode i;
	struct entry e;

	d = make_dir(ROOT_NODE, "d");
	make_file(d, "f", "");
	with = checkpoint();
	set_mode(_i);
	ck_assert_int_eq(restore(without).mode, _i ? RESTORE_EPOCH : RESTORE_NAMES);
	ck_ok(view_getattr(view, d, &i));
	ck_assert_uint_eq(i.nlink, 0);
	view_forget(view, make_dir(ROOT_NODE, "d"), 1);
	ck_assert_int_eq(look(d, "f", &e), -ENOENT);
	ck_ok(view_getattr(view, d, &i));
	ck_assert_uint_eq(i.nlink, 0);
	restore(with);
	ck_assert_uint_eq(node_of(ROOT_NODE, "d"), d);
}
END_TEST

START_TEST(a_directory_that_the_kernel_removed_is_another_one_when_it_is_back)
{
	uint64_t d = make_dir(ROOT_NODE, "d"), with = checkpoint(), back;
	struct entry e;

	ck_ok(view_rmdir(view, ROOT_NODE, "d", 1)); /* and is somebody's working directory */
	make_file(ROOT_NODE, "x", "");
	make_file(ROOT_NODE, "y", "");
	set_mode(_i);
	ck_assert_int_eq(restore(with).mode, _i ? RESTORE_EPOCH : RESTORE_NAMES);
	back = node_of(ROOT_NODE, "d");
	ck_assert_uint_ne(back, d);
	make_file(back, "f", "");
	ck_assert_int_eq(look(d, "f", &e), -ENOENT);
}
END_TEST

/* Whoever asks so has not looked since the restore: what is known by that number is unsettled. */
START_TEST(what_is_removed_unseen_is_nobody_elses)
{
	struct view_kernel few = recorder;
	uint64_t id, other, f, d;
	struct inode i;

	f = make_file(ROOT_NODE, "f", "old");
	d = make_dir(ROOT_NODE, "d");
	ck_ok(view_getattr(view, f, &i));
	id = checkpoint();
	/* in which the number of directory d is that of e */
	other = make_other(id, 0, 1, (const char *const[][2]){ { "d", "e" } });
	rewrite(f, "new");
	few.names_max = 1;
	view_set_kernel(view, &few);
	make_file(ROOT_NODE, "x", "");

	ck_assert_int_eq(restore(id).mode, RESTORE_EPOCH);
	ck_ok(view_unlink(view, ROOT_NODE, "f", 1));
	{
		struct branch *b = view_branch(view);
		READ_GUARD(&b->lock);
		const struct fs fs = { .store = store, .tree = b->tree };

		ck_assert_int_eq(fs_stat(&fs, i.ino, &i), -ENOENT);
	}
	ck_assert_str_eq(text_of(f), "new"); /* he has it open */

	ck_assert_int_eq(restore(other).mode, RESTORE_EPOCH);
	ck_ok(view_rmdir(view, ROOT_NODE, "e", 1));
	restore(id);
	ck_assert_uint_eq(node_of(ROOT_NODE, "d"), d);
}
END_TEST

/* Which settles what was known by that number: elsewhere. */
START_TEST(what_is_removed_unseen_is_not_what_is_settled_elsewhere)
{
	uint64_t id, other, d = make_dir(ROOT_NODE, "d");
	struct inode i;

	view_forget(view, make_dir(ROOT_NODE, "x"), 1);
	id = checkpoint();
	other = make_other(id, 0, 1, (const char *const[][2]){ { "d", "x" } });
	ck_assert_int_eq(restore(other).mode, RESTORE_EPOCH);
	ck_ok(view_rmdir(view, ROOT_NODE, "x", 1)); /* of d's number */
	ck_assert_uint_eq(node_of(ROOT_NODE, "d"), d);
	restore(id);
	ck_ok(view_getattr(view, d, &i)); /* somebody is in it */
	ck_assert_uint_eq(i.nlink, 2);
	ck_assert_uint_eq(node_of(ROOT_NODE, "d"), d);
}
END_TEST

/* Another file stands in the way that leads to it. */
START_TEST(a_directory_below_what_is_a_file_now_is_dead)
{
	uint64_t with, d, sub;
	struct inode i;
	struct entry e;

	make_file(ROOT_NODE, "d", "");
	with = checkpoint();
	ck_ok(view_unlink(view, ROOT_NODE, "d", 1));
	d = make_dir(ROOT_NODE, "d");
	sub = make_dir(d, "sub");
	set_mode(_i);
	ck_assert_int_eq(restore(with).mode, _i ? RESTORE_EPOCH : RESTORE_NAMES);
	ck_assert_int_eq(look(sub, "x", &e), -ENOENT);
	ck_ok(view_getattr(view, sub, &i));
	ck_assert_uint_eq(i.nlink, 0);
}
END_TEST

START_TEST(of_a_directory_that_takes_the_place_of_another_one_all_names_are_told)
{
	uint64_t x, id;
	struct entry e;

	make_file(make_dir(ROOT_NODE, "x"), "foo", "");
	id = checkpoint();
	rename_in_root("x", "y");
	view_forget(view, node_of(ROOT_NODE, "y"), 3); /* made, by its name, and here */
	x = make_dir(ROOT_NODE, "x");
	ck_assert_int_eq(look(x, "foo", &e), -ENOENT);
	restore(id);
	ck_assert(was_told(x, "foo"));
	(void)node_of(x, "foo");
}
END_TEST

START_TEST(of_a_new_directory_in_the_place_of_another_one_all_names_are_told)
{
	uint64_t x = make_dir(ROOT_NODE, "x"), foo = make_file(x, "foo", ""), id = checkpoint();
	struct entry e;

	ck_ok(view_unlink(view, x, "foo", 3));
	ck_ok(view_rmdir(view, ROOT_NODE, "x", 1));
	view_forget(view, foo, 1);
	view_forget(view, x, 1);
	x = make_dir(ROOT_NODE, "x");
	ck_assert_int_eq(look(x, "foo", &e), -ENOENT); /* which the kernel remembers */
	restore(id);
	ck_assert_uint_eq(times_told(x, "foo"), 1); /* it differs, too */
	ck_assert_uint_eq(node_of(ROOT_NODE, "x"), x);
}
END_TEST

START_TEST(dead_directories_that_a_state_has_as_removed_are_what_has_their_paths)
{
	static const char *const names[] = { "a", "b" }, *const others[] = { "c", "d" };
	uint64_t without, with, removed, other[2], node[2];
	struct entry none;

	for (int i = 0; i < 2; i++) {
		other[i] = make_dir(ROOT_NODE, others[i]);
		view_forget(view, make_file(other[i], "foo", ""), 1);
	}
	without = checkpoint();
	for (int i = 0; i < 2; i++)
		node[i] = make_dir(ROOT_NODE, names[i]);
	with = checkpoint();
	for (int i = 0; i < 2; i++) {
		ck_ok(view_rmdir(view, ROOT_NODE, names[i], 1)); /* and is open */
		ck_ok(rename_in_root(others[i], names[i]));
		view_forget(view, other[i], 1);
	}
	removed = checkpoint();
	restore(with);
	for (int i = 0; i < 2; i++) {
		view_forget(view, node[i], 1);
		node[i] = node_of(ROOT_NODE, names[i]);
	}
	restore(without);
	for (int i = 0; i < 2; i++) /* which the kernel remembers */
		ck_assert_int_eq(look(node[i], "foo", &none), -ENOENT);
	ck_assert_int_eq(restore(removed).mode, RESTORE_NAMES);
	for (int i = 0; i < 2; i++) {
		ck_assert(was_told(node[i], "foo"));
		ck_assert_uint_eq(node_of(ROOT_NODE, names[i]), node[i]);
		(void)node_of(node[i], "foo");
	}
}
END_TEST

/*
 * Two that will stand for others by their paths, whose names do not differ: "dead" is so already,
 * "lost" is what the state has that is left. Many will stand for nothing, and "here" goes where it
 * was.
 */
#define MANY_GONE 20 /* more than there is room for at first */
struct stand_ins {
	uint64_t target, between; /* states */
	uint64_t dead, lost, here, gone[MANY_GONE]; /* node ids */
};

static struct stand_ins stand_ins_states(unsigned names)
{
	uint64_t dead = make_dir(ROOT_NODE, "dead"), lost = make_dir(ROOT_NODE, "lost");
	struct stand_ins s;

	many_files(dead, names);
	many_files(lost, names);
	make_dir(ROOT_NODE, "here");
	s.target = checkpoint();
	ck_ok(rename_in_root("dead", "one"));
	ck_ok(rename_in_root("lost", "other"));
	s.between = checkpoint();
	view_close(view); /* the kernel knows none of them */
	ck_ok(view_open(store, "main", NULL, &view));
	view_set_kernel(view, &recorder);
	return s;
}

static void make_gone(uint64_t *nodes, unsigned n)
{
	char name[8];

	for (unsigned i = 0; i < n; i++) {
		snprintf(name, sizeof(name), "gone%u", i);
		nodes[i] = make_dir(ROOT_NODE, name);
	}
}

/* Nobody who makes another one there makes one live again. */
static void assert_gone(const uint64_t *nodes, unsigned n)
{
	char name[8];
	struct entry e;

	for (unsigned i = 0; i < n; i++) {
		uint64_t other;

		snprintf(name, sizeof(name), "gone%u", i);
		other = make_dir(ROOT_NODE, name);
		view_forget(view, make_file(other, "f", ""), 1);
		view_forget(view, other, 1);
		ck_assert_int_eq(look(nodes[i], "f", &e), -ENOENT);
	}
}

static size_t ask_for_moved(void)
{
	char buf[PATH_MAX];
	uint64_t at = 0;
	size_t len;

	ck_ok(view_moved(view, ROOT_NODE, &at, buf, sizeof(buf), &len));
	ck_assert_uint_eq(at, 0); /* that was all */
	return len;
}

static void make_stand_ins(struct stand_ins *s)
{
	struct entry e;

	restore(s->between);
	s->dead = make_dir(ROOT_NODE, "dead");
	restore(s->between);
	ck_assert_int_eq(look(s->dead, "f0", &e), -ENOENT);
	s->lost = make_dir(ROOT_NODE, "lost");
	ck_assert_int_eq(look(s->lost, "f0", &e), -ENOENT);
	s->here = node_of(ROOT_NODE, "here");
	ck_ok(rename_in_root("here", "there"));
	make_gone(s->gone, MANY_GONE);
	(void)ask_for_moved();
}

/* Nobody is in them any more. */
static void forget_stand_ins(const struct stand_ins *s)
{
	view_forget(view, s->dead, 1);
	view_forget(view, s->lost, 1);
	view_forget(view, s->here, 1);
	for (unsigned i = 0; i < MANY_GONE; i++)
		view_forget(view, s->gone[i], 1);
}

static void assert_told_by_names(const struct stand_ins *s)
{
	char name[8];

	ck_assert(was_told(s->dead, "f0") && was_told_inode(s->dead) && was_told(s->lost, "f0"));
	ck_assert(was_told(ROOT_NODE, "here") && was_told(ROOT_NODE, "there"));
	for (unsigned i = 0; i < MANY_GONE; i++) {
		snprintf(name, sizeof(name), "gone%u", i);
		ck_assert(was_told(ROOT_NODE, name) && was_told_inode(s->gone[i]));
	}

	ck_assert_uint_eq(ask_for_moved(), sizeof("dead") + sizeof("lost") + sizeof("here"));

	assert_gone(s->gone, MANY_GONE);
}

/*
 * Once, or twice in a row: then there is none either for what would do without, unless it is the
 * sealer that had none.
 */
START_TEST(who_has_no_memory_for_what_is_to_be_told_tells_all)
{
	struct stand_ins s = stand_ins_states(1);
	unsigned by_names = 0, by_epoch = 0;
	struct restore_info info;

	for (int n = 0, ticks = 0; ticks >= n; n++) {
		int r;

		make_stand_ins(&s);
		told_nothing();
		fault_arm(n, 1 + _i, ENOMEM);
		r = view_restore(view, s.target, &info);
		ticks = fault_ticks();
		fault_disarm();
		if (r < 0) {
			ck_assert_int_eq(r, -ENOMEM);
			forget_stand_ins(&s);
			continue;
		}
		if (info.mode == RESTORE_NAMES) {
			assert_told_by_names(&s);
			by_names++;
		} else {
			ck_assert_uint_eq(epochs, 2);
			by_epoch++;
		}
		view_forget(view, node_of(s.dead, "f0"), 1);
		view_forget(view, node_of(s.lost, "f0"), 1);
		forget_stand_ins(&s);
	}
	ck_assert_uint_gt(by_names, 0);
	ck_assert(by_epoch > 0 || _i == 1);
}
END_TEST

/* Where a state of another import is told by names: all that there are, and were. */
START_TEST(without_epochs_who_has_no_memory_does_nothing)
{
	static char from[20][8], to[20][8]; /* more than there is room for at first */
	const char *renames[ARRAY_SIZE(from)][2];
	uint64_t a, d = make_dir(ROOT_NODE, "d"), id, other;
	unsigned refused = 0, done = 0;

	view_forget(view, make_file(d, "in d", ""), 1);
	a = make_file(ROOT_NODE, "a", "text");
	many_files(ROOT_NODE, ARRAY_SIZE(from));
	for (unsigned i = 0; i < ARRAY_SIZE(from); i++) {
		snprintf(from[i], sizeof(from[i]), "f%u", i);
		snprintf(to[i], sizeof(to[i]), "g%u", i);
		renames[i][0] = from[i];
		renames[i][1] = to[i];
	}
	id = checkpoint();
	other = make_other(id, 0, ARRAY_SIZE(from), renames);
	view_set_kernel(view, &old_recorder);
	for (int n = 0, ticks = 0; ticks >= n; n++) {
		struct restore_info info;
		int r;

		restore(id);
		view_forget(view, a, 1);
		a = node_of(ROOT_NODE, "a");
		for (unsigned i = 0; i < ARRAY_SIZE(from); i++)
			(void)node_of(ROOT_NODE, from[i]);
		told_nothing();
		fault_arm(n, 1, ENOMEM);
		r = view_restore(view, other, &info);
		ticks = fault_ticks();
		fault_disarm();
		if (r < 0) {
			ck_assert_int_eq(r, -ENOMEM);
			ck_assert_uint_eq(told_names + told_inodes, 0);
			ck_assert_uint_eq(node_of(ROOT_NODE, "a"), a);
			view_forget(view, a, 1);
			refused++;
		} else {
			ck_assert(was_told(ROOT_NODE, "d") && was_told(d, "in d"));
			for (unsigned i = 0; i < ARRAY_SIZE(from); i++)
				ck_assert(was_told(ROOT_NODE, from[i]) &&
					  was_told(ROOT_NODE, to[i]));
			done++;
		}
	}
	ck_assert(refused > 0 && done > 0);
}
END_TEST

/* What is counted are objects and names, those of a dead directory as well. */
START_TEST(as_many_as_may_be_are_told_by_names_and_one_more_is_too_many)
{
	struct view_kernel k = recorder;
	struct stand_ins s = stand_ins_states(20);
	uint64_t all = 0;

	for (int less = 0; less < 3; less++) {
		struct restore_info info;

		make_stand_ins(&s);
		if (_i == 0) { /* without them */
			forget_stand_ins(&s);
			many_files(ROOT_NODE, 20);
		}
		k.names_max = less ? (unsigned)all + 1 - (unsigned)less : UINT_MAX;
		view_set_kernel(view, &k);
		info = restore(s.target);
		if (less == 0)
			all = info.changed + told_names;
		ck_assert_int_eq(info.mode, less == 2 ? RESTORE_EPOCH : RESTORE_NAMES);
		if (_i > 0)
			forget_stand_ins(&s);
	}
}
END_TEST

START_TEST(many_dead_directories_come_back)
{
	uint64_t without = checkpoint(), d[40], with;
	char name[8];

	for (int i = 0; i < 40; i++) {
		snprintf(name, sizeof(name), "%d", i);
		d[i] = make_dir(ROOT_NODE, name);
	}
	with = checkpoint();
	restore(without);
	for (int i = 0; i < 40; i += 3)
		view_forget(view, d[i], 1);
	ck_assert_int_eq(restore(with).mode, RESTORE_NAMES);
	for (int i = 0; i < 40; i++) {
		snprintf(name, sizeof(name), "%d", i);
		ck_assert_int_eq(node_of(ROOT_NODE, name) == d[i], i % 3 != 0);
	}
	ck_assert_int_eq(restore(without).mode, RESTORE_NAMES);
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("dead");

	tcase_add_checked_fixture(t, setup, view_teardown);
	tcase_add_test(t, a_dead_directory_that_comes_back_by_its_path_brings_nothing_along);
	tcase_add_test(t, a_dead_directory_that_another_state_lacks_as_well_is_still_dead);
	tcase_add_test(t, without_epochs_a_directory_that_another_import_lacks_is_dead_at_once);
	tcase_add_test(t, without_epochs_a_directory_whose_place_another_one_leaves_is_alive);
	tcase_add_test(t, a_directory_that_made_room_is_dead_until_its_lineage_is_back);
	tcase_add_loop_test(t, a_directory_that_is_dead_stays_so_until_the_next_restore, 0, 2);
	tcase_add_loop_test(t, a_directory_that_the_kernel_removed_is_another_one_when_it_is_back,
			    0, 2);
	tcase_add_test(t, what_is_removed_unseen_is_nobody_elses);
	tcase_add_test(t, what_is_removed_unseen_is_not_what_is_settled_elsewhere);
	tcase_add_loop_test(t, a_directory_below_what_is_a_file_now_is_dead, 0, 2);
	tcase_add_test(t, of_a_directory_that_takes_the_place_of_another_one_all_names_are_told);
	tcase_add_test(t, of_a_new_directory_in_the_place_of_another_one_all_names_are_told);
	tcase_add_test(t, dead_directories_that_a_state_has_as_removed_are_what_has_their_paths);
	tcase_add_loop_test(t, who_has_no_memory_for_what_is_to_be_told_tells_all, 0, 2);
	tcase_add_test(t, without_epochs_who_has_no_memory_does_nothing);
	tcase_add_loop_test(t, as_many_as_may_be_are_told_by_names_and_one_more_is_too_many, 0, 2);
	tcase_add_test(t, many_dead_directories_come_back);
	return run_case("view_dead", t);
}
