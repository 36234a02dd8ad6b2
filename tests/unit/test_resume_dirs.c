/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Directories that a state lacks, in a view that goes on after its process (test_resume.c has the
 * rest): each is dead until a restore has it again, whoever died in between.
 */

#include "store/base/fault.h"
#include "tests/unit/memo_fixture.h"

/* As somebody's working directory. */
static void dead_directory(void)
{
	uint64_t without, d;
	struct inode i;

	ck_assert_int_eq(view_checkpoint(view, "", false, &without), 0);
	d = make_node(ROOT_NODE, "d", S_IFDIR | 0755);
	make_node(d, "f", S_IFREG | 0644);
	ck_assert_int_eq(view_checkpoint(view, "", false, &shared_id[0]), 0);
	tell_by_epoch(true);
	restore_to(without);
	ck_assert_int_eq(view_getattr(view, d, &i), 0);
	ck_assert_uint_eq(i.nlink, 0);
	shared_id[1] = d;
	shared_id[2] = without;
}

static void dead_directory_that_came_back(void)
{
	dead_directory();
	shared_id[2] = first->nodes[(uint32_t)shared_id[1]].base;
	restore_to(shared_id[0]);
}

static void removed_directory(void)
{
	uint64_t id;

	shared_id[0] = make_node(ROOT_NODE, "d", S_IFDIR | 0755);
	ck_assert_int_eq(view_checkpoint(view, "", false, &id), 0);
	ck_assert_int_eq(view_rmdir(view, ROOT_NODE, "d", 1), 0);
	tell_by_epoch(true);
	restore_to(id);
}

START_TEST(a_directory_that_the_kernel_removed_stays_another_one)
{
	shared_id = (uint64_t *)&first->receipts[MEMO_RECEIPTS - 1].restored;
	killed_after(removed_directory);
	killed_after(nothing);
	begin();
	ck_assert_uint_ne(node_of(ROOT_NODE, "d"), shared_id[0]);
	end();
}
END_TEST

START_TEST(a_dead_directory_stays_dead)
{
	struct inode i;
	struct entry e;
	uint64_t d;

	shared_id = (uint64_t *)&first->receipts[MEMO_RECEIPTS - 1].restored;
	killed_after(dead_directory);
	killed_after(nothing);
	d = shared_id[1];
	begin();
	view_forget(view, make_node(ROOT_NODE, "d", S_IFDIR | 0755), 1);
	ck_assert_int_eq(view_getattr(view, d, &i), 0);
	ck_assert_uint_eq(i.nlink, 0);
	restore_to(shared_id[0]);
	ck_assert_uint_eq(node_of(ROOT_NODE, "d"), d);
	ck_assert_int_eq(view_lookup(view, d, "f", 1, &e), 0);
	end();
}
END_TEST

/* The newest of two states that have it was dropped, and is none that an undo wants. */
static void dead_directory_of_a_dropped_state(void)
{
	struct inode i;
	uint64_t newest;

	dead_directory();
	restore_to(shared_id[0]);
	make_node(shared_id[1], "g", S_IFREG | 0644);
	ck_assert_int_eq(view_checkpoint(view, "", false, &newest), 0);
	restore_to(shared_id[2]);
	ck_ok(snap_drop(store, newest));
	make_node(ROOT_NODE, "x", S_IFREG | 0644);
	restore_to(shared_id[2]);
	ck_assert_int_eq(view_getattr(view, shared_id[1], &i), 0);
	ck_assert_uint_eq(i.nlink, 0);
	ck_assert_uint_eq(first->nodes[(uint32_t)shared_id[1]].base, newest);
}

START_TEST(a_dead_directory_of_a_dropped_state_lives_again)
{
	struct entry e;

	shared_id = (uint64_t *)&first->receipts[MEMO_RECEIPTS - 1].restored;
	killed_after(dead_directory_of_a_dropped_state);
	killed_after(nothing);
	begin();
	restore_to(shared_id[0]);
	ck_assert_uint_eq(node_of(ROOT_NODE, "d"), shared_id[1]);
	ck_assert_int_eq(view_lookup(view, shared_id[1], "f", 1, &e), 0);
	end();
}
END_TEST

/* As when the snapshot's record is damaged. */
START_TEST(a_dead_directory_of_a_state_that_is_gone_stays_dead)
{
	struct inode i;
	struct entry e;

	shared_id = (uint64_t *)&first->receipts[MEMO_RECEIPTS - 1].restored;
	killed_after(dead_directory_of_a_dropped_state);
	first->nodes[(uint32_t)shared_id[1]].base = 1; /* nobody's id */
	begin();
	tell_by_epoch(false);
	restore_to(shared_id[0]);
	ck_assert_int_eq(view_getattr(view, shared_id[1], &i), -ENOENT);
	ck_assert_int_eq(view_lookup(view, shared_id[1], "f", 1, &e), -ENOENT);
	ck_assert_uint_ne(node_of(ROOT_NODE, "d"), shared_id[1]);
	end();
}
END_TEST

START_TEST(a_directory_that_was_dead_is_alive)
{
	struct entry e;

	shared_id = (uint64_t *)&first->receipts[MEMO_RECEIPTS - 1].restored;
	killed_after(dead_directory_that_came_back);
	killed_after(nothing);
	begin();
	ck_assert_int_eq(view_lookup(view, shared_id[1], "f", 1, &e), 0);
	end();
}
END_TEST

/* In a restore that was cut off, before it had come to that. */
START_TEST(a_directory_that_was_to_come_back_is_alive)
{
	struct memo_node *d;
	struct entry e;

	shared_id = (uint64_t *)&first->receipts[MEMO_RECEIPTS - 1].restored;
	killed_after(dead_directory_that_came_back);
	d = &first->nodes[(uint32_t)shared_id[1]];
	d->flags |= MEMO_DEAD;
	d->base = shared_id[2];
	first->head->switch_state = MEMO_PREPARED;
	begin();
	ck_assert_int_eq(view_finish_restore(view), 0);
	ck_assert_int_eq(view_lookup(view, shared_id[1], "f", 1, &e), 0);
	end();
}
END_TEST

/* Of each kind one, so that each is half made when memory is short. */
START_TEST(who_cannot_go_on_for_lack_of_memory_leaves_all_to_the_next)
{
	struct inode i;
	int r = -ENOMEM;

	shared_id = (uint64_t *)&first->receipts[MEMO_RECEIPTS - 1].restored;
	killed_after(dead_directory);
	for (int n = 0; r < 0; n++) {
		struct memo *m = same_memo();
		const struct store_options options = { .recovered = recovered, .arg = m };

		ck_ok(store_open_with(scratch.dir_fd, &options, NULL, &store));
		fault_arm(n, 1, ENOMEM);
		r = view_open(store, "main", m, &view);
		fault_disarm();
		ck_assert(r == 0 || r == -ENOMEM);
		if (r < 0)
			ck_assert_int_eq(store_close(store), 0);
		else
			ck_assert_int_gt(n, 2);
	}
	view_set_kernel(view, &kernel);
	ck_assert_int_eq(view_getattr(view, shared_id[1], &i), 0);
	ck_assert_uint_eq(i.nlink, 0);
	restore_to(shared_id[0]);
	ck_assert_uint_eq(node_of(ROOT_NODE, "d"), shared_id[1]);
	end();
}
END_TEST

int main(void)
{
	TCase *c = tcase_create("resume_dirs");

	tcase_add_checked_fixture(c, memo_setup, memo_teardown);
	tcase_set_timeout(c, 240);
	tcase_add_test(c, a_directory_that_the_kernel_removed_stays_another_one);
	tcase_add_test(c, a_dead_directory_stays_dead);
	tcase_add_test(c, a_dead_directory_of_a_dropped_state_lives_again);
	tcase_add_test(c, a_dead_directory_of_a_state_that_is_gone_stays_dead);
	tcase_add_test(c, a_directory_that_was_dead_is_alive);
	tcase_add_test(c, a_directory_that_was_to_come_back_is_alive);
	tcase_add_test(c, who_cannot_go_on_for_lack_of_memory_leaves_all_to_the_next);
	return run_case("resume_dirs", c);
}
