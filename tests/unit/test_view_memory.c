/* SPDX-License-Identifier: Apache-2.0 */

/* Views whose tree nodes have no room: they go when they are stored, and nobody notices. */

#include <pthread.h>

#include "fs/view_internal.h"
#include "tests/unit/view_recorder.h"

#define MANY 5000
#define PER_DIR 100

static uint64_t node_bytes(void)
{
	struct store_stats stats;

	/* The round after the one that let go has ended. */
	ck_assert_int_eq(store_sync(store), 0);
	ck_assert_int_eq(store_sync(store), 0);
	ck_assert_int_eq(store_stats(store, &stats), 0);
	return stats.node_bytes;
}

static void make_many(void)
{
	char name[16];
	uint64_t dir = 0;

	for (unsigned i = 0; i < MANY; i++) {
		snprintf(name, sizeof(name), "%u", i);
		if (i % PER_DIR == 0)
			dir = make_dir(ROOT_NODE, name);
		(void)make_file(dir, name, name);
	}
}

/* 0, or 1 + the first file that is not what it was made. No checks: other threads call this. */
static unsigned walk_many(unsigned step)
{
	for (unsigned i = 0; i < MANY; i += step) {
		char name[16], dir[16], got[16] = { 0 };
		struct segments s;
		struct entry d, e;

		snprintf(name, sizeof(name), "%u", i);
		snprintf(dir, sizeof(dir), "%u", i / PER_DIR * PER_DIR);
		if (look(ROOT_NODE, dir, &d) < 0 || look(d.node, name, &e) < 0 ||
		    view_map(view, e.node, 0, sizeof(got), &s) < 0)
			return i + 1;
		if (s.len >= sizeof(got) || segments_read(store, &s, got) < 0 || strcmp(got, name))
			return i + 1;
		segments_release(&s);
		view_forget(view, e.node, 1);
		view_forget(view, d.node, 1);
	}
	return 0;
}

START_TEST(nodes_beyond_the_budget_go_and_come_back)
{
	uint64_t open_before, first, least;
	struct restore_info info;

	make_many();
	open_before = make_file(ROOT_NODE, "open", "as it was");
	first = checkpoint();
	rewrite(open_before, "changed");
	for (unsigned n = 0; n < 10; n++) {
		/* Each restore leaves a state behind, which the open file may keep. */
		ck_assert_int_eq(walk_many(1), 0);
		info = restore(n % 2 ? info.left : first);
		ck_assert_str_eq(text_of(open_before), "changed");
	}
	ck_assert_int_eq(walk_many(1), 0);
	least = node_bytes();
	ck_assert_uint_lt(least, 100000); /* a tenth of the tree */
	ck_assert_int_eq(walk_many(1), 0);
	ck_assert_str_eq(text_of(open_before), "changed");
	ck_assert_uint_lt(node_bytes(), 100000);
	ck_assert_str_eq(text_of(node_of(ROOT_NODE, "open")), "changed");
	restore(first);
	ck_assert_str_eq(text_of(node_of(ROOT_NODE, "open")), "as it was");
}
END_TEST

START_TEST(a_snapshot_view_lets_go_as_well)
{
	uint64_t id;

	make_many();
	id = checkpoint();
	view_close(view);
	ck_assert_int_eq(view_open_snapshot(store, id, NULL, &view), 0);
	ck_assert_int_eq(walk_many(1), 0);
	ck_assert_int_eq(branch_drop(store, "main"), 0);
	ck_assert_uint_lt(node_bytes(), 100000);
	ck_assert_int_eq(walk_many(1), 0);
}
END_TEST

static _Atomic bool readers_stop;

static void *reader(void *arg)
{
	uintptr_t failed = 0;

	while (!readers_stop && !failed)
		failed = walk_many(7);
	return (void *)failed;
}

START_TEST(readers_notice_nothing)
{
	pthread_t threads[2];
	uint64_t node, first;
	void *failed;

	make_many();
	node = make_file(ROOT_NODE, "hot", "0");
	first = checkpoint();
	readers_stop = false;
	for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
		ck_assert_int_eq(pthread_create(&threads[i], NULL, reader, NULL), 0);
	for (unsigned n = 0; n < 40; n++) {
		char text[8];

		snprintf(text, sizeof(text), "%u", n);
		rewrite(node, text);
		ck_assert_int_eq(store_sync(store), 0);
		ck_assert_str_eq(text_of(node), text);
		if (n % 10 == 9) {
			restore(first);
			ck_assert_str_eq(text_of(node), text);
			node = node_of(ROOT_NODE, "hot");
			ck_assert_str_eq(text_of(node), "0");
		}
	}
	readers_stop = true;
	for (size_t i = 0; i < ARRAY_SIZE(threads); i++) {
		ck_assert_int_eq(pthread_join(threads[i], &failed), 0);
		ck_assert_ptr_null(failed);
	}
}
END_TEST

static void *forker(void *arg)
{
	char name[16];

	for (unsigned n = 0; !readers_stop; n++) {
		(void)snprintf(name, sizeof(name), "fork-%u", n);
		if (view_fork(view, name) < 0 || branch_drop(store, name) < 0)
			return arg;
	}
	return NULL;
}

START_TEST(nor_does_who_forks_a_snapshots_view)
{
	pthread_t thread;
	uint64_t id;
	void *failed;

	make_many();
	id = checkpoint();
	view_close(view);
	ck_assert_int_eq(view_open_snapshot(store, id, NULL, &view), 0);
	readers_stop = false;
	ck_assert_int_eq(pthread_create(&thread, NULL, forker, view), 0);
	for (unsigned n = 0; n < 40; n++) {
		ck_assert_int_eq(walk_many(7), 0);
		ck_assert_int_eq(store_sync(store), 0);
	}
	readers_stop = true;
	ck_assert_int_eq(pthread_join(thread, &failed), 0);
	ck_assert_ptr_null(failed);
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("view_memory");

	tcase_add_checked_fixture(t, setup_tight, view_teardown);
	tcase_set_timeout(t, 240);
	tcase_add_test(t, nodes_beyond_the_budget_go_and_come_back);
	tcase_add_test(t, a_snapshot_view_lets_go_as_well);
	tcase_add_test(t, readers_notice_nothing);
	tcase_add_test(t, nor_does_who_forks_a_snapshots_view);
	return run_case("view_memory", t);
}
