/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What the kernel is told in which order (S1 to S7, V5), and what goes on meanwhile: against a
 * recording kernel. tests/e2e/restore_races.py has the real one.
 */

#include <limits.h>

#include "store/base/fault.h"
#include "tests/unit/view_recorder.h"

START_TEST(by_epoch_each_directory_gets_a_barrier_and_a_second_epoch_follows)
{
	struct view_kernel few = recorder;
	uint64_t d = make_dir(ROOT_NODE, "d"), id = checkpoint(), f;

	few.names_max = 1;
	view_set_kernel(view, &few);
	f = make_file(d, "f", "");
	many_files(d, 8);
	ck_assert_int_eq(restore(id).mode, RESTORE_EPOCH);
	ck_assert(was_told(ROOT_NODE, "/") && was_told(d, "/") && !was_told(f, "/"));
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

static int rename_in_root(const char *from, const char *to)
{
	return view_rename(view, ROOT_NODE, from, strlen(from), ROOT_NODE, to, strlen(to), 0);
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
		rename_a, replace_a, unlink_a, unlink_a_as_two, change_what_is_the_same
	};
	uint64_t id = two_states_of_a();

	restore_and_ask(id, "a", asks[_i]);
	ck_assert_uint_eq(epochs, 0);
	ck_assert_uint_eq(told_names, 2); /* each once */
	ck_ok(view_unlink(view, ROOT_NODE, "z", 1)); /* afterwards nobody has to */
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
	ck_assert(was_told(d, "/"));
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

/* ---- dead directories (V5) ---- */

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
	ck_assert(was_told_inode(d));
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

/* Another file stands in the way that leads to it. */
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

START_TEST(a_dead_directory_that_a_state_has_as_removed_is_what_has_its_path)
{
	uint64_t e = make_dir(ROOT_NODE, "e"), without, with, removed, d;
	struct entry none;

	view_forget(view, make_file(e, "foo", ""), 1);
	without = checkpoint();
	d = make_dir(ROOT_NODE, "d");
	with = checkpoint();
	ck_ok(view_rmdir(view, ROOT_NODE, "d", 1)); /* and is open */
	ck_ok(rename_in_root("e", "d"));
	view_forget(view, e, 1);
	removed = checkpoint();
	restore(with);
	view_forget(view, d, 1);
	d = node_of(ROOT_NODE, "d");
	restore(without);
	ck_assert_int_eq(look(d, "foo", &none), -ENOENT); /* which the kernel remembers */
	ck_assert_int_eq(restore(removed).mode, RESTORE_NAMES);
	ck_assert(was_told(d, "foo"));
	ck_assert_uint_eq(node_of(ROOT_NODE, "d"), d);
	(void)node_of(d, "foo");
}
END_TEST

/*
 * Two that will stand for others by their paths, whose names do not differ: "dead" is so already,
 * "lost" is what the state has that is left. "gone" will stand for nothing.
 */
struct stand_ins {
	uint64_t target, between; /* states */
	uint64_t dead, lost, gone; /* node ids */
};

static struct stand_ins stand_ins_states(unsigned names)
{
	uint64_t dead = make_dir(ROOT_NODE, "dead"), lost = make_dir(ROOT_NODE, "lost");
	struct stand_ins s;

	many_files(dead, names);
	many_files(lost, names);
	s.target = checkpoint();
	ck_ok(rename_in_root("dead", "one"));
	ck_ok(rename_in_root("lost", "other"));
	s.between = checkpoint();
	view_close(view); /* the kernel knows none of them */
	ck_ok(view_open(store, "main", NULL, &view));
	view_set_kernel(view, &recorder);
	return s;
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
	s->gone = make_dir(ROOT_NODE, "gone");
}

/* Nobody is in them any more. */
static void forget_stand_ins(const struct stand_ins *s)
{
	view_forget(view, s->dead, 1);
	view_forget(view, s->lost, 1);
	view_forget(view, s->gone, 1);
}

START_TEST(who_has_no_memory_for_what_is_to_be_told_tells_all)
{
	struct stand_ins s = stand_ins_states(1);
	unsigned by_names = 0, by_epoch = 0;
	struct restore_info info;
	struct entry e;

	for (int n = 0, ticks = 0; ticks >= n; n++) {
		int r;

		make_stand_ins(&s);
		told_nothing();
		fault_arm(n, 1, ENOMEM);
		r = view_restore(view, s.target, &info);
		ticks = fault_ticks();
		fault_disarm();
		if (r < 0) {
			ck_assert_int_eq(r, -ENOMEM);
			forget_stand_ins(&s);
			continue;
		}
		if (info.mode == RESTORE_NAMES) {
			uint64_t others = make_dir(ROOT_NODE, "gone");

			ck_assert(was_told(s.dead, "f0") && was_told_inode(s.dead));
			ck_assert(was_told(s.lost, "f0"));
			view_forget(view, make_file(others, "f", ""), 1);
			view_forget(view, others, 1);
			ck_assert_int_eq(look(s.gone, "f", &e), -ENOENT);
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
	ck_assert_uint_gt(by_epoch, 0);
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

START_TEST(a_name_that_was_looked_up_anew_is_left_alone_afterwards)
{
	uint64_t id;

	make_file(ROOT_NODE, "a", "old");
	id = checkpoint();
	rewrite(node_of(ROOT_NODE, "a"), "new"); /* and somebody has it open from now on */
	restore(id);
	(void)node_of(ROOT_NODE, "a"); /* something may be mounted on it now */
	told_nothing();
	view_tidy(view);
	ck_assert(!was_told(ROOT_NODE, "a"));
}
END_TEST

START_TEST(what_a_restore_expired_is_dropped_if_the_kernel_still_has_it)
{
	uint64_t id = checkpoint(), b;

	make_file(ROOT_NODE, "a", "");
	b = make_file(ROOT_NODE, "b", "");
	restore(id);
	ck_assert(was_expired(ROOT_NODE, "a") && was_expired(ROOT_NODE, "b"));
	view_forget(view, b, 1);
	told_nothing();
	view_tidy(view);
	ck_assert_uint_eq(told_names, 1);
	ck_assert(!was_expired(ROOT_NODE, "a"));
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("told");

	tcase_add_checked_fixture(t, setup, view_teardown);
	tcase_add_test(t, by_epoch_each_directory_gets_a_barrier_and_a_second_epoch_follows);
	tcase_add_test(t, a_directory_that_lives_on_elsewhere_keeps_its_path_until_it_is_walked);
	tcase_add_test(t, what_one_restore_expired_the_next_one_drops);
	tcase_add_loop_test(t, who_asks_by_what_was_there_before_looks_again, 0, 5);
	tcase_add_test(t, what_was_told_is_what_the_kernel_has);
	tcase_add_test(t, what_was_looked_at_before_is_looked_at_again);
	tcase_add_test(t, by_epoch_all_look_again);
	tcase_add_test(t, old_kernels_are_told_to_look_again_in_another_import);
	tcase_add_loop_test(t, rights_are_told_before_names, 0, 4);
	tcase_add_test(t, an_inode_on_its_way_to_the_kernel_is_told_when_it_is_there);
	tcase_add_test(t, what_the_kernel_could_not_be_told_is_said_after_the_rest);
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
	tcase_add_test(t, a_dead_directory_that_a_state_has_as_removed_is_what_has_its_path);
	tcase_add_test(t, who_has_no_memory_for_what_is_to_be_told_tells_all);
	tcase_add_loop_test(t, as_many_as_may_be_are_told_by_names_and_one_more_is_too_many, 0, 2);
	tcase_add_test(t, many_dead_directories_come_back);
	tcase_add_test(t, a_name_that_was_looked_up_anew_is_left_alone_afterwards);
	tcase_add_test(t, what_a_restore_expired_is_dropped_if_the_kernel_still_has_it);
	return run_case("view_told", t);
}
