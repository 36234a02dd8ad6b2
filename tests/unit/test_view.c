/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Views without a mount: node ids, unlinked files, and switching, against a recording kernel. What
 * it is told in which order is in test_view_told.c; a kernel that believes what it has cached in
 * test_view_model.c; little memory in test_view_memory.c.
 */

#include <inttypes.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fs/view_internal.h"
#include "store/base/fault.h"
#include "tests/unit/view_recorder.h"

static _Atomic uint64_t stopped_ms; /* the clock shows this; 0: it goes */

int clock_gettime(clockid_t clock, struct timespec *ts)
{
	uint64_t ms = stopped_ms;

	if (clock != CLOCK_MONOTONIC || ms == 0)
		return (int)syscall(SYS_clock_gettime, clock, ts);
	*ts = (struct timespec){ .tv_sec = (time_t)(ms / 1000),
				 .tv_nsec = (long)(ms % 1000) * 1000000 };
	return 0;
}

/* ---- facts ---- */

START_TEST(a_node_id_is_the_object_until_forgotten)
{
	uint64_t a = make_file(ROOT_NODE, "a", "one");

	ck_assert_uint_eq(node_of(ROOT_NODE, "a"), a);
	view_forget(view, a, 1);
	ck_assert_str_eq(text_of(a), "one");
	view_forget(view, a, 1);
	struct inode i;
	ck_assert_int_eq(view_getattr(view, a, &i), -ESTALE);
	ck_assert_uint_ne(node_of(ROOT_NODE, "a"), a); /* never the same id again */
	ck_assert_int_eq(view_getattr(view, a, &i), -ESTALE);
	view_forget(view, ROOT_NODE, 1);
	ck_ok(view_getattr(view, ROOT_NODE, &i)); /* it goes with the mount */
}
END_TEST

START_TEST(who_writes_past_the_cache_is_known_to_others)
{
	const struct past_cache one = { .thread = 1 }, unnamed = { .thread = 0 };
	struct inode i;
	uint64_t f = make_file(ROOT_NODE, "f", "text"), g = make_file(ROOT_NODE, "g", "text");

	ck_assert(!view_is_written(view, f));
	view_hears(view, 1);
	ck_assert_int_eq(view_write(view, f, 4, "+", 1, false, &one), 0);
	ck_assert(view_is_written(view, f) && !view_is_written(view, g));
	view_hears(view, 2);
	view_hears(view, 0);
	ck_assert(view_is_written(view, f));
	view_hears(view, 1);
	ck_assert(!view_is_written(view, f));

	/* others' writes say nothing, and a thread that is forgotten has not been heard of */
	ck_assert_int_eq(view_write(view, f, 5, "+", 1, false, &one), 0);
	ck_assert_int_eq(view_write(view, g, 4, "+", 1, false, &unnamed), 0);
	ck_assert(view_is_written(view, f) && view_is_written(view, g));
	view_hears(view, 1);
	view_hears(view, 1 + 64);
	view_hears(view, 0);
	ck_assert(view_is_written(view, f) && view_is_written(view, g));

	ck_assert_int_eq(view_write(view, f, 4, "", (size_t)1 << 62, false, &one), -EFBIG);
	/* no write has the number 0 */
	view->writes = UINT32_MAX;
	ck_assert_int_eq(view_write(view, f, 4, "+", 1, false, &one), 0);
	ck_assert(view_is_written(view, f));
	view_hears(view, 1);
	ck_assert(!view_is_written(view, f));

	ck_assert_int_eq(view_write(view, 4711, 0, "", 1, false, &one), -ESTALE);
	ck_assert(!view_is_written(view, 4711));

	/* the kernel has to be told the mode that is left */
	ck_ok(view_setattr(view, f, &(struct fs_set){ .mask = SET_MODE, .mode = 04755 }, &i));
	ck_assert_int_eq(view_write(view, f, 0, "T", 1, true, &one), 1);
	ck_assert_int_eq(view_write(view, f, 1, "E", 1, true, &one), 0);
	ck_assert(!view_is_written(view, f));
}
END_TEST

START_TEST(who_wrote_past_the_cache_and_is_not_heard_of_has_his_answer_after_a_while)
{
	const struct past_cache one = { .thread = 1, .sync = _i == 1 };
	const uint64_t begin = UINT64_C(0x100000000) * 7 - 500, held = one.sync ? 60000 : 1000;
	uint64_t f = make_file(ROOT_NODE, "f", "text");

	stopped_ms = begin; /* 32 bits of it are about to wrap */
	ck_assert_int_eq(view_write(view, f, 4, "+", 1, false, &one), 0);
	stopped_ms = begin + held - 1;
	ck_assert(view_is_written(view, f));
	for (uint64_t later = held; later < UINT32_MAX; later += 3600 * 1000) {
		stopped_ms = begin + later;
		ck_assert_msg(!view_is_written(view, f), "after %" PRIu64 " ms", later);
	}
	stopped_ms = 0;
}
END_TEST

START_TEST(an_unlinked_file_lives_until_forgotten)
{
	uint64_t a = make_file(ROOT_NODE, "a", "still here");
	struct inode i;

	ck_assert_int_eq(view_unlink(view, ROOT_NODE, "a", 1), 0);
	ck_assert_str_eq(text_of(a), "still here");
	ck_assert_int_eq(view_getattr(view, a, &i), 0);
	ck_assert_uint_eq(i.nlink, 0);
	view_forget(view, a, 1);

	struct branch *b = view_branch(view);
	READ_GUARD(&b->lock);
	struct fs fs = { .store = store, .tree = b->tree };
	ck_assert_int_eq(fs_stat(&fs, i.ino, &i), -ENOENT); /* purged */
}
END_TEST

START_TEST(a_file_that_never_had_a_name_lives_until_forgotten)
{
	struct fs_new n = { .dir = ROOT_NODE, .mode = S_IFREG | 0600 };
	struct branch *b = view_branch(view);
	struct fs fs = { .store = store, .tree = b->tree };
	struct entry e, named;

	ck_ok(view_tmpfile(view, &n, &e));
	ck_ok(view_tmpfile(view, &n, &named));
	ck_ok(view_link(view, named.node, ROOT_NODE, "named", 5, &named));
	view_forget(view, e.node, 1);
	view_forget(view, named.node, 2);

	READ_GUARD(&b->lock);
	ck_assert_int_eq(fs_stat(&fs, e.inode.ino, &e.inode), -ENOENT); /* purged */
	ck_ok(fs_stat(&fs, named.inode.ino, &named.inode));
}
END_TEST

static int32_t backing_closed;

static void close_backing(void *arg, int32_t id)
{
	backing_closed = id;
}

START_TEST(what_opens_were_answered_with_goes_with_the_last_one_or_the_node)
{
	struct view_kernel k = recorder;
	uint64_t f = make_file(ROOT_NODE, "f", "");
	int32_t id = 0;

	k.backing_close = close_backing;
	backing_closed = 0;
	view_set_kernel(view, &k);
	ck_assert_int_eq(view_opened(view, f, -1, &id), ABSENT);
	ck_assert_int_eq(view_opened(view, f, 7, &id), 0);
	ck_assert_int_eq(view_opened(view, f, 8, &id), EXISTS);
	ck_assert_int_eq(id, 7);
	ck_assert_int_eq(view_closed(view, f), 0);
	ck_assert_int_eq(view_closed(view, f), 7);
	ck_assert_int_eq(view_closed(view, f), 0);
	ck_assert_int_eq(view_opened(view, f, 9, &id), 0);
	ck_assert_int_eq(backing_closed, 0);
	view_forget(view, f, 1);
	ck_assert_int_eq(backing_closed, 9);
}
END_TEST

START_TEST(a_checkpoint_without_changes_is_the_last_one)
{
	uint64_t first, again;

	make_file(ROOT_NODE, "a", "x");
	ck_assert_int_eq(view_checkpoint(view, NULL, false, &first), 0);
	ck_assert_int_eq(view_checkpoint(view, NULL, false, &again), EXISTS);
	ck_assert_uint_eq(first, again);
}
END_TEST

static unsigned blocks;

static void count_block(void *arg)
{
	blocks++;
}

START_TEST(a_synced_checkpoint_is_durable_when_it_is_answered)
{
	struct view_kernel k = recorder;
	struct store_stats stats;
	uint64_t first, again;

	k.will_block = count_block; /* others have to be served meanwhile */
	view_set_kernel(view, &k);
	blocks = 0;
	make_file(ROOT_NODE, "a", "x");
	ck_assert_int_eq(view_checkpoint(view, NULL, false, &first), 0);
	ck_assert_uint_eq(blocks, 0);
	ck_assert_int_eq(view_checkpoint(view, NULL, true, &again), EXISTS);
	ck_assert_uint_eq(again, first);
	ck_assert_uint_eq(blocks, 1);
	ck_ok(store_stats(store, &stats));
	ck_assert_uint_eq(stats.unsealed_snapshots, 0);
}
END_TEST

START_TEST(a_synced_checkpoint_tells_what_the_disk_could_not_give_back)
{
	uint64_t id, a = make_file(ROOT_NODE, "a", "");
	char text[4000] = "", path[32];
	struct stat st;

	memset(text, 'x', sizeof(text) - 1);
	rewrite(a, text);
	snprintf(path, sizeof(path), "stage/%08x", 1);
	ck_assert_int_eq(fstatat(scratch.dir_fd, path, &st, 0), 0);
	fault_bad_sector(st.st_ino, 0, st.st_size);
	for (int i = 0; i < 8; i++) /* it is tried again once or twice, and then given up */
		ck_assert_int_eq(view_checkpoint(view, NULL, true, &id), -EIO);
	fault_bad_sector(0, 0, 0);
}
END_TEST

START_TEST(who_finds_no_room_asks_for_some_and_tries_again)
{
	static const int full[] = { ENOSPC, EDQUOT }; /* of the disk, or only for us */
	static char text[9000]; /* not small enough for the tree */
	const uint64_t a = make_file(ROOT_NODE, "a", ""), b = make_file(ROOT_NODE, "b", "small");
	struct view_kernel k = recorder;
	uint64_t len;

	memset(text, 'x', sizeof(text) - 1);
	k.will_block = count_block;
	view_set_kernel(view, &k);
	for (size_t i = 0; i < ARRAY_SIZE(full); i++) {
		blocks = 0;
		for (int n = 0, r; blocks == 0; n++) {
			ck_assert_int_lt(n, 1000);
			fault_arm(n % 20, 1, full[i]); /* or of memory, or in another thread */
			r = view_write(view, a, 0, text, sizeof(text) - 1, false, NULL);
			fault_disarm();
			ck_assert(r == 0 || r == -ENOMEM);
		}
		blocks = 0;
		for (int n = 0, r; blocks == 0; n++) {
			ck_assert_int_lt(n, 1000);
			fault_arm(n % 20, 1, full[i]);
			r = view_copy_range(view, b, 0, a, sizeof(text), 5, &len);
			fault_disarm();
			ck_assert(r == 0 || r == -ENOMEM);
		}
		ck_assert_uint_eq(len, 5);
	}
}
END_TEST

START_TEST(holes_are_told_in_whole_blocks_with_their_ends)
{
	const uint64_t size = 5 * 4096 - 1000; /* data in its blocks 1 and 3 */
	const uint64_t f = make_file(ROOT_NODE, "f", ""), dense = make_file(ROOT_NODE, "g", "text");
	static const uint64_t want[][3] = { { 0, 0, 4096 },	     { 100, 100, 4096 },
					    { 4096, 8192, 12288 },   { 5000, 8192, 12288 },
					    { 12287, 12287, 12288 }, { 12288, 16384, size } };
	struct fs_set set = { .mask = SET_SIZE, .size = size };
	uint64_t from, to;
	struct inode i;

	ck_assert_int_eq(view_setattr(view, f, &set, &i), 0);
	ck_assert_int_eq(view_write(view, f, 5000, "x", 1, false, NULL), 0);
	ck_assert_int_eq(view_write(view, f, 12288, "x", 1, false, NULL), 0);
	for (size_t n = 0; n < ARRAY_SIZE(want); n++) {
		ck_assert_int_eq(view_hole(view, f, want[n][0], &from, &to), 0);
		ck_assert_uint_eq(from, want[n][1]);
		ck_assert_uint_eq(to, want[n][2]);
	}
	ck_assert_int_eq(view_hole(view, f, size, &from, &to), ABSENT);
	ck_assert_int_eq(view_hole(view, dense, 0, &from, &to), ABSENT); /* its end is none */
	ck_assert_int_eq(view_hole(view, dense, 4, &from, &to), ABSENT);
}
END_TEST

START_TEST(a_changed_file_gets_a_new_id_and_the_old_one_keeps_its_bytes)
{
	uint64_t a = make_file(ROOT_NODE, "a", "old"), b = make_file(ROOT_NODE, "b", "same");
	uint64_t id = checkpoint();
	struct entry e;

	rewrite(a, "new");
	struct restore_info info = restore(id);
	ck_assert_int_eq(info.mode, RESTORE_NAMES);
	ck_assert(was_told(ROOT_NODE, "a"));
	ck_assert(!was_told(ROOT_NODE, "b"));

	ck_assert_int_eq(look(ROOT_NODE, "a", &e), 0);
	ck_assert_uint_ne(e.node, a);
	ck_assert_str_eq(text_of(e.node), "old");
	ck_assert_str_eq(text_of(a), "new"); /* an open descriptor goes on */
	rewrite(a, "discarded");
	ck_assert_str_eq(text_of(a), "discarded");
	ck_assert_str_eq(text_of(e.node), "old");

	ck_assert_uint_eq(node_of(ROOT_NODE, "b"), b);
	ck_assert_int_eq(view_write(view, b, 4, "+", 1, false, NULL), 0);
	ck_assert_str_eq(text_of(b), "same+"); /* an unchanged one goes on in the restored tree */
}
END_TEST

START_TEST(a_changed_file_nobody_looks_at_is_let_go_after_the_answer)
{
	uint64_t a = make_file(ROOT_NODE, "a", "old"), b = make_file(ROOT_NODE, "b", "x");
	uint64_t id = checkpoint();

	rewrite(a, "new");
	rewrite(b, "y");
	make_file(ROOT_NODE, "later", "z");
	restore(id);
	ck_assert(was_told(ROOT_NODE, "a") && was_told(ROOT_NODE, "later"));
	for (unsigned i = 0; i < told_names; i++)
		ck_assert(told[i].expire); /* cheap while somebody waits; the inode stays */
	view_forget(view, b, 1);

	told_nothing();
	view_tidy(view); /* now for good */
	ck_assert(was_told(ROOT_NODE, "a") && was_told(ROOT_NODE, "later"));
	ck_assert(!was_told(ROOT_NODE, "b"));
	for (unsigned i = 0; i < told_names; i++)
		ck_assert(!told[i].expire);

	told_nothing();
	view_tidy(view);
	ck_assert_uint_eq(told_names, 0);
}
END_TEST

START_TEST(undo_brings_the_left_state_back)
{
	uint64_t a = make_file(ROOT_NODE, "a", "1"), id = checkpoint(), undone;
	struct restore_info info;

	rewrite(a, "2");
	make_file(ROOT_NODE, "later", "x");
	restore(id);
	ck_assert_int_eq(view_undo(view, &undone, &info), 0);
	ck_assert_str_eq(text_of(node_of(ROOT_NODE, "a")), "2");
	ck_assert_str_eq(text_of(node_of(ROOT_NODE, "later")), "x");
	ck_assert_int_eq(view_undo(view, &undone, &info), 0);
	ck_assert_str_eq(text_of(node_of(ROOT_NODE, "a")), "1");
	ck_assert_uint_eq(undone, id);
}
END_TEST

START_TEST(a_directory_keeps_its_id_and_dies_and_comes_back)
{
	uint64_t id0 = checkpoint();
	uint64_t d = make_dir(ROOT_NODE, "d"), f = make_file(d, "f", "in d");
	uint64_t id1 = checkpoint();
	struct inode i;
	struct entry e;

	restore(id0);
	ck_assert_int_eq(look(ROOT_NODE, "d", &e), -ENOENT);
	ck_assert_int_eq(view_getattr(view, d, &i), 0);
	ck_assert_uint_eq(i.nlink, 0);
	ck_assert_int_eq(look(d, "f", &e), -ENOENT);
	struct fs_new n = { .dir = d, .name = "x", .len = 1, .mode = S_IFREG | 0644 };
	ck_assert_int_eq(view_create(view, &n, &e), -ENOENT);
	ck_assert_str_eq(text_of(f), "in d");

	told_nothing();
	restore(id1);
	ck_assert(was_told(ROOT_NODE, "d"));
	ck_assert(was_told(d, "f"));
	ck_assert(was_told_inode(d)); /* what is cached of it is what a removed one has */
	ck_assert_uint_eq(node_of(ROOT_NODE, "d"), d);
	ck_assert_int_eq(view_getattr(view, d, &i), 0);
	ck_assert_uint_eq(i.nlink, 2);
	ck_assert_str_eq(text_of(node_of(d, "f")), "in d");
}
END_TEST

START_TEST(a_directory_made_anew_at_its_path_is_followed)
{
	uint64_t d = make_dir(ROOT_NODE, "d");
	make_file(d, "f", "first");
	uint64_t id = checkpoint();

	ck_assert_int_eq(view_unlink(view, d, "f", 1), 0);
	ck_assert_int_eq(view_rmdir(view, ROOT_NODE, "d", 1), 0);
	view_forget(view, d, 1);
	uint64_t d2 = make_dir(ROOT_NODE, "d"); /* where a shell now sits */
	ck_assert_uint_ne(d, d2);

	restore(id);
	ck_assert_str_eq(text_of(node_of(d2, "f")), "first");
	ck_assert_uint_eq(node_of(ROOT_NODE, "d"), d2);
}
END_TEST

START_TEST(hard_links_are_told_under_every_name)
{
	uint64_t d = make_dir(ROOT_NODE, "d"), a = make_file(ROOT_NODE, "a", "x");
	struct entry e;

	ck_assert_int_eq(view_link(view, a, d, "b", 1, &e), 0);
	ck_assert_uint_eq(e.node, a);
	ck_assert_uint_eq(e.inode.nlink, 2);
	uint64_t id = checkpoint();
	rewrite(a, "y");
	restore(id);
	ck_assert(was_told(ROOT_NODE, "a"));
	ck_assert(was_told(d, "b"));
	ck_assert_uint_eq(node_of(ROOT_NODE, "a"), node_of(d, "b"));
	ck_assert_uint_ne(node_of(d, "b"), a);
}
END_TEST

START_TEST(what_a_restore_replaced_gets_no_further_name)
{
	uint64_t a = make_file(ROOT_NODE, "a", "old"), id = checkpoint();
	struct entry e;

	rewrite(a, "new");
	restore(id);
	view_hears(view, 1);
	ck_assert_int_eq(view_link(view, a, ROOT_NODE, "b", 1, &e), -ESTALE); /* look again */
	ck_assert_int_eq(view_link(view, a, ROOT_NODE, "b", 1, &e), -ENOENT); /* it is open */
	ck_assert_int_eq(view_lookup(view, ROOT_NODE, "b", 1, &e), -ENOENT);
	a = node_of(ROOT_NODE, "a");
	ck_ok(view_link(view, a, ROOT_NODE, "b", 1, &e));
	ck_assert_uint_eq(e.node, a);
	ck_assert_str_eq(text_of(a), "old");
}
END_TEST

START_TEST(an_open_unlinked_file_survives_a_restore)
{
	uint64_t a = make_file(ROOT_NODE, "a", "held"), id = checkpoint();

	ck_assert_int_eq(view_unlink(view, ROOT_NODE, "a", 1), 0);
	ck_assert_uint_eq(restore(id).changed, 2); /* and the root; that it is open is nothing */
	ck_assert_str_eq(text_of(a), "held");
	ck_assert_str_eq(text_of(node_of(ROOT_NODE, "a")), "held");
	view_forget(view, a, 1);
	ck_assert_str_eq(text_of(node_of(ROOT_NODE, "a")), "held"); /* its purge missed this one */
}
END_TEST

START_TEST(an_unlinked_file_that_a_state_has_and_nobody_else_is_purged)
{
	uint64_t a = make_file(ROOT_NODE, "a", "held"), id;
	struct branch *b = view_branch(view);
	struct fs fs = { .store = store, .tree = b->tree };
	struct inode i;

	ck_ok(view_unlink(view, ROOT_NODE, "a", 1));
	ck_ok(view_getattr(view, a, &i));
	id = checkpoint();
	view_forget(view, a, 1);
	make_file(ROOT_NODE, "b", "");
	restore(id);
	READ_GUARD(&b->lock);
	ck_assert_int_eq(fs_stat(&fs, i.ino, &i), -ENOENT);
}
END_TEST

/* As a program's file of O_TMPFILE does; it counts as no change. */
static uint64_t make_unnamed(void)
{
	struct fs_new n = { .dir = ROOT_NODE, .mode = S_IFREG | 0600 };
	struct entry e;

	ck_ok(view_tmpfile(view, &n, &e));
	rewrite(e.node, "unnamed");
	return e.node;
}

START_TEST(what_had_no_name_and_is_gone_is_nothing_to_change)
{
	uint64_t a = make_file(ROOT_NODE, "a", "1"), first = checkpoint(), undone, open, twin;
	struct restore_info info;

	rewrite(a, "work");
	ck_assert_uint_eq(restore(first).changed, 1);
	open = make_unnamed();
	ck_ok(view_checkpoint(view, "with it", false, &twin));
	view_forget(view, open, 1);
	view_forget(view, make_unnamed(), 1);
	info = restore(twin);
	ck_assert(restore_found_nothing(&info));
	open = make_unnamed();
	info = restore(first);
	ck_assert(restore_found_nothing(&info));
	ck_assert_str_eq(text_of(open), "unnamed"); /* still open */

	ck_ok(view_undo(view, &undone, &info));
	ck_assert_uint_eq(info.changed, 1);
	ck_assert_str_eq(text_of(node_of(ROOT_NODE, "a")), "work");
}
END_TEST

static void large_difference(const struct view_kernel *kernel, bool keep_mounts, bool epoch)
{
	uint64_t keep = make_file(ROOT_NODE, "keep", "k"), edit = make_file(ROOT_NODE, "edit", "1");
	uint64_t d = make_dir(ROOT_NODE, "d"), id = checkpoint();
	struct inode i;

	many_files(d, 3000);
	rewrite(edit, "2");
	uint64_t cwd = make_dir(d, "cwd");
	view_set_kernel(view, kernel);
	if (keep_mounts)
		view_keep_mounts(view);
	struct restore_info info = restore(id);

	ck_assert_int_eq(info.mode, epoch ? RESTORE_EPOCH : RESTORE_NAMES);
	ck_assert_uint_eq(epochs > 0, epoch);
	if (!epoch)
		ck_assert(was_told(d, "f2999") && was_told(ROOT_NODE, "edit"));
	ck_assert_uint_gt(told_inodes, 0);
	ck_assert_uint_eq(node_of(ROOT_NODE, "keep"), keep);
	ck_assert_int_eq(view_write(view, keep, 1, "+", 1, false, NULL), 0);
	ck_assert_str_eq(text_of(node_of(ROOT_NODE, "keep")), "k+");
	ck_assert_str_eq(text_of(edit), "2");
	ck_assert_uint_ne(node_of(ROOT_NODE, "edit"), edit);
	ck_assert_str_eq(text_of(node_of(ROOT_NODE, "edit")), "1");
	ck_assert_int_eq(view_getattr(view, cwd, &i), 0);
	ck_assert_uint_eq(i.nlink, 0);
	ck_assert_uint_eq(node_of(ROOT_NODE, "d"), d);
	ck_assert_int_eq(view_getattr(view, d, &i), 0);
	ck_assert_uint_eq(i.nlink, 2);
}

START_TEST(a_large_difference_is_told_by_epoch)
{
	large_difference(&recorder, false, true);
}
END_TEST

START_TEST(a_large_difference_is_told_by_names_where_mounts_lie_in_the_view)
{
	large_difference(&recorder, true, false);
}
END_TEST

START_TEST(a_large_difference_is_told_by_names_on_old_kernels)
{
	large_difference(&old_recorder, false, false);
}
END_TEST

START_TEST(the_name_of_a_file_that_an_epoch_made_old_is_not_merely_expired)
{
	uint64_t a = make_file(ROOT_NODE, "a", "1"), d = make_dir(ROOT_NODE, "d");
	uint64_t id = checkpoint();

	many_files(d, 3000);
	ck_assert_int_eq(restore(id).mode, RESTORE_EPOCH);
	ck_assert_uint_eq(node_of(ROOT_NODE, "a"), a); /* may be a revalidation in flight */
	rewrite(a, "2");
	ck_assert_int_eq(restore(id).mode, RESTORE_NAMES);
	ck_assert(was_told(ROOT_NODE, "a"));
	ck_assert_str_eq(told[0].name, "a");
	ck_assert(!told[0].expire);
}
END_TEST

/*
 * Each allocation of a restore fails in turn: either nothing has happened, to the branch or to the
 * kernel, or all has.
 */
static void restore_short_of_memory(const struct view_kernel *kernel, unsigned files)
{
	const struct fs_set set = { .mask = SET_MODE, .mode = 0600 };
	uint64_t a = make_file(ROOT_NODE, "a", "old"), d = make_dir(ROOT_NODE, "d");
	uint64_t mode = make_file(ROOT_NODE, "mode", ""), id = checkpoint();
	unsigned refused = 0, done = 0;

	view_set_kernel(view, kernel);
	for (int n = 0, ticks = 0; ticks >= n; n++) {
		struct restore_info info;
		struct inode i;
		uint64_t later;
		int r;

		rewrite(a, "new");
		ck_ok(view_setattr(view, mode, &set, &i));
		later = make_dir(d, "later");
		many_files(d, files);
		told_nothing();
		fault_arm(n, 1, ENOMEM);
		r = view_restore(view, id, &info);
		ticks = fault_ticks();
		fault_disarm();

		if (r < 0) {
			ck_assert_int_eq(r, -ENOMEM);
			ck_assert_uint_eq(told_names + told_inodes + epochs, 0);
			ck_assert_uint_eq(node_of(ROOT_NODE, "a"), a);
			ck_assert_str_eq(text_of(a), "new");
			ck_assert_uint_eq(node_of(d, "later"), later);
			restore(id);
			refused++;
		} else {
			ck_assert(epochs > 0 || was_told(ROOT_NODE, "a"));
			ck_assert_uint_gt(told_inodes, 0);
			done++;
		}
		ck_assert_str_eq(text_of(a), "new"); /* its descriptors */
		ck_ok(view_getattr(view, mode, &i));
		ck_assert_uint_eq(i.mode & 07777, 0600);
		ck_assert_uint_ne(node_of(ROOT_NODE, "mode"), mode);
		mode = node_of(ROOT_NODE, "mode");
		ck_assert_uint_ne(node_of(ROOT_NODE, "a"), a);
		a = node_of(ROOT_NODE, "a");
		ck_assert_str_eq(text_of(a), "old");
		ck_assert_uint_eq(node_of(ROOT_NODE, "d"), d);
		ck_assert_int_eq(look(d, "later", &(struct entry){ 0 }), -ENOENT);
		view_forget(view, later, 2); /* dead ones are looked at by each restore */
	}
	ck_assert_uint_gt(refused, 0);
	ck_assert_uint_gt(done, 0);
}

START_TEST(a_restore_by_names_without_memory_changes_nothing)
{
	restore_short_of_memory(&recorder, 3);
}
END_TEST

START_TEST(a_restore_by_epoch_without_memory_changes_nothing)
{
	struct view_kernel few = recorder;

	few.names_max = 8;
	restore_short_of_memory(&few, 20);
}
END_TEST

START_TEST(a_restore_without_memory_on_old_kernels_changes_nothing)
{
	restore_short_of_memory(&old_recorder, 20);
}
END_TEST

START_TEST(a_fork_sees_nothing_of_its_parent_and_the_other_way)
{
	uint64_t a = make_file(ROOT_NODE, "a", "1");
	struct view *parent = view, *fork;

	ck_assert_int_eq(view_fork(view, "side"), 0);
	ck_assert_int_eq(view_fork(view, "side"), -ERR_BRANCH_EXISTS);
	ck_assert_int_eq(view_open(store, "side", NULL, &fork), 0);
	rewrite(a, "parent");
	view = fork;
	ck_assert_str_eq(text_of(node_of(ROOT_NODE, "a")), "1");
	rewrite(node_of(ROOT_NODE, "a"), "fork");
	view = parent;
	ck_assert_str_eq(text_of(a), "parent");
	view_close(fork);
}
END_TEST

START_TEST(a_fork_takes_nothing_of_what_its_parent_still_has_to_seal)
{
	make_file(ROOT_NODE, "a", "1");
	ck_assert_int_eq(view_fork(view, "side"), 0); /* freezes the tree */
	view_close(view);
	ck_assert_int_eq(store_close(store), 0);

	ck_assert_int_eq(store_open(scratch.dir_fd, NULL, &store), 0);
	ck_assert_int_eq(view_open(store, "main", NULL, &view), 0);
	ck_assert_str_eq(text_of(node_of(ROOT_NODE, "a")), "1");
}
END_TEST

START_TEST(a_branch_has_one_view)
{
	struct view *other;

	ck_assert_int_eq(view_open(store, "main", NULL, &other), -ERR_BRANCH_IN_USE);
	ck_assert_int_eq(view_open(store, "none", NULL, &other), -ERR_BRANCH_UNKNOWN);
}
END_TEST

START_TEST(a_snapshot_view_reads_and_refuses_to_change)
{
	uint64_t a = make_file(ROOT_NODE, "a", "1"), id = checkpoint(), made;
	struct view *branch_view = view;
	struct restore_info info;

	rewrite(a, "2");
	ck_assert_int_eq(view_open_snapshot(store, id, NULL, &view), 0);
	ck_assert_str_eq(text_of(node_of(ROOT_NODE, "a")), "1");
	ck_assert_int_eq(view_write(view, node_of(ROOT_NODE, "a"), 0, "x", 1, false, NULL), -EROFS);
	ck_assert_int_eq(view_unlink(view, ROOT_NODE, "a", 1), -EROFS);
	ck_assert_int_eq(view_checkpoint(view, NULL, false, &made), -EROFS);
	ck_assert_int_eq(view_restore(view, id, &info), -EROFS);
	ck_assert_int_eq(view_undo(view, &made, &info), -EROFS);
	ck_assert_int_eq(snap_drop(store, id), -ERR_SNAP_IN_USE);
	ck_ok(view_fork(view, "fork"));
	view_close(view);
	ck_ok(view_open(store, "fork", NULL, &view));
	ck_assert_str_eq(text_of(node_of(ROOT_NODE, "a")), "1");
	view_close(view);
	view = branch_view;
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("view");

	tcase_add_checked_fixture(t, setup, view_teardown);
	tcase_set_timeout(t, 240);
	tcase_add_test(t, a_node_id_is_the_object_until_forgotten);
	tcase_add_test(t, who_writes_past_the_cache_is_known_to_others);
	tcase_add_loop_test(
		t, who_wrote_past_the_cache_and_is_not_heard_of_has_his_answer_after_a_while, 0, 2);
	tcase_add_test(t, an_unlinked_file_lives_until_forgotten);
	tcase_add_test(t, a_file_that_never_had_a_name_lives_until_forgotten);
	tcase_add_test(t, what_opens_were_answered_with_goes_with_the_last_one_or_the_node);
	tcase_add_test(t, a_checkpoint_without_changes_is_the_last_one);
	tcase_add_test(t, a_synced_checkpoint_is_durable_when_it_is_answered);
	tcase_add_test(t, a_synced_checkpoint_tells_what_the_disk_could_not_give_back);
	tcase_add_test(t, who_finds_no_room_asks_for_some_and_tries_again);
	tcase_add_test(t, holes_are_told_in_whole_blocks_with_their_ends);
	tcase_add_test(t, a_changed_file_gets_a_new_id_and_the_old_one_keeps_its_bytes);
	tcase_add_test(t, a_changed_file_nobody_looks_at_is_let_go_after_the_answer);
	tcase_add_test(t, undo_brings_the_left_state_back);
	tcase_add_test(t, a_directory_keeps_its_id_and_dies_and_comes_back);
	tcase_add_test(t, a_directory_made_anew_at_its_path_is_followed);
	tcase_add_test(t, hard_links_are_told_under_every_name);
	tcase_add_test(t, what_a_restore_replaced_gets_no_further_name);
	tcase_add_test(t, an_open_unlinked_file_survives_a_restore);
	tcase_add_test(t, an_unlinked_file_that_a_state_has_and_nobody_else_is_purged);
	tcase_add_test(t, what_had_no_name_and_is_gone_is_nothing_to_change);
	tcase_add_test(t, a_large_difference_is_told_by_epoch);
	tcase_add_test(t, a_large_difference_is_told_by_names_where_mounts_lie_in_the_view);
	tcase_add_test(t, a_large_difference_is_told_by_names_on_old_kernels);
	tcase_add_test(t, the_name_of_a_file_that_an_epoch_made_old_is_not_merely_expired);
	tcase_add_test(t, a_restore_by_names_without_memory_changes_nothing);
	tcase_add_test(t, a_restore_by_epoch_without_memory_changes_nothing);
	tcase_add_test(t, a_restore_without_memory_on_old_kernels_changes_nothing);
	tcase_add_test(t, a_fork_sees_nothing_of_its_parent_and_the_other_way);
	tcase_add_test(t, a_fork_takes_nothing_of_what_its_parent_still_has_to_seal);
	tcase_add_test(t, a_branch_has_one_view);
	tcase_add_test(t, a_snapshot_view_reads_and_refuses_to_change);
	return run_case("view", t);
}
