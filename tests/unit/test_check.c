/* SPDX-License-Identifier: Apache-2.0 */

/* What a check finds in a damaged store, and that it calls a sound one clean. */

#include "store/base/fault.h"
#include "tests/unit/damage.h"

static bool touches(uint64_t id, const char *branch, uint64_t a, bool data)
{
	const struct key k = key_at(a);

	for (int i = 0; i < MIN(report.touched, (int)ARRAY_SIZE(report.touch)); i++)
		if (report.touch[i].id == id && strcmp(report.touch[i].branch, branch) == 0 &&
		    report.touch[i].data == data && key_cmp(&report.touch[i].from, &k) <= 0 &&
		    key_cmp(&report.touch[i].to, &k) >= 0)
			return true;
	return false;
}

static void open_pack(int *ret_fd)
{
	ck_ok(os_openat(scratch.dir_fd, "packs/00000001.pack", O_RDWR | O_CLOEXEC, 0, ret_fd));
}

static void remove_entry(const struct name *name)
{
	struct index_txn *txn;

	ck_ok(index_begin(store->index, &txn));
	ck_ok(index_del_chunk(txn, name));
	ck_ok(index_commit(&txn));
}

START_TEST(a_sound_store_is_clean)
{
	struct check_stats stats;

	stats = check(CHECK_READ_DATA, 0);
	ck_assert_uint_eq(stats.snapshots, 0);
	populate();
	stats = check(CHECK_READ_DATA, 0);
	ck_assert_uint_eq(stats.snapshots, 3);
	ck_assert_uint_eq(stats.branches, 1);
	ck_assert_uint_eq(stats.unreferenced, 0);
	ck_assert_uint_eq(stats.chunks, stats.nodes + 1);
	check(0, 0);
}
END_TEST

START_TEST(unreferenced_chunks_are_counted_not_reported)
{
	struct check_stats stats;
	struct name name;

	populate();
	ck_ok(chunk_put(store_chunks(store), CHUNK_DATA, "garbage", 7, &name));
	ck_ok(store_sync(store));
	stats = check(CHECK_READ_DATA, 0);
	ck_assert_uint_eq(stats.unreferenced, 1);
}
END_TEST

START_TEST(a_damaged_leaf_touches_every_state_that_has_it)
{
	struct name leaf;
	char text[NAME_HEX_SIZE];

	populate();
	leaf = leaf_name(ids[1], 1000);
	flip_chunk(&leaf, IN_PAYLOAD);
	for (unsigned flags = 0; flags <= CHECK_READ_DATA; flags++) {
		check(flags, EXISTS);
		ck_assert_int_eq(report.damaged, 1);
		ck_assert_ptr_nonnull(strstr(report.text, name_to_text(&leaf, text)));
		ck_assert_ptr_nonnull(strstr(report.text, "node, pack 1 offset"));
		ck_assert_int_eq(report.touched, 3);
		ck_assert(touches(ids[1], "", 1000, false));
		ck_assert(touches(ids[2], "", 1000, false));
		ck_assert(touches(0, "main", 1000, false));
		ck_assert(!touches(ids[1], "", 1900, false));
	}
	expect_in_snap(ids[1], 5000, "b");
	expect_in_snap(ids[0], 1, "small");
}
END_TEST

START_TEST(a_damaged_top_touches_everything_of_its_state)
{
	struct name top;

	populate();
	top = top_name(ids[1]);
	flip_chunk(&top, IN_PAYLOAD);
	check(0, EXISTS);
	ck_assert_int_eq(report.touched, 1);
	ck_assert(touches(ids[1], "", 0, false));
	ck_assert(touches(ids[1], "", UINT64_MAX, false));
}
END_TEST

START_TEST(damaged_data_names_the_item)
{
	struct name data;

	populate();
	data = data_name(ids[1]);
	flip_chunk(&data, IN_PAYLOAD);
	check(0, 0); /* bytes are not read without the flag */
	check(CHECK_READ_DATA, EXISTS);
	ck_assert_int_eq(report.damaged, 1);
	ck_assert_int_eq(report.touched, 3);
	ck_assert(touches(ids[2], "", 5000, true));
	ck_assert(!touches(ids[0], "", 5000, true));
}
END_TEST

START_TEST(a_damaged_record_header_is_found_without_reading_data)
{
	struct name data;

	populate();
	data = data_name(ids[1]);
	flip_chunk(&data, IN_HEADER);
	check(0, EXISTS);
	ck_assert_int_eq(report.damaged, 1);
	ck_assert_ptr_nonnull(strstr(report.text, err_str(-ERR_RECORD_DAMAGED)));
}
END_TEST

START_TEST(missing_chunks_are_reported_once)
{
	struct name data, leaf;

	populate();
	data = data_name(ids[1]);
	leaf = leaf_name(ids[1], 500);
	remove_entry(&data);
	remove_entry(&leaf);
	check(0, EXISTS);
	ck_assert_int_eq(report.damaged, 2);
	ck_assert_int_eq(report.touched, 6);
	ck_assert(touches(ids[1], "", 500, false));
	ck_assert(touches(ids[1], "", 5000, true));
}
END_TEST

START_TEST(a_missing_pack_is_survived)
{
	struct check_stats stats;

	populate();
	ck_ok(os_unlinkat(scratch.dir_fd, "packs/00000001.pack", 0));
	ck_ok(store_close(store));
	store_up();
	stats = check(CHECK_READ_DATA, EXISTS);
	/* The sealer may have put that there while it was open, and not have made it anew yet. */
	if (strstr(report.text, "the packs' copy of the tables: "))
		stats.damaged--;
	ck_assert_uint_eq(stats.damaged, stats.chunks);
	ck_assert_ptr_nonnull(strstr(report.text, err_str(-ERR_PACK_MISSING)));
	ck_assert_int_eq(report.touched, 4);
}
END_TEST

START_TEST(a_missing_pack_is_not_made_again)
{
	struct branch *b;

	populate();
	ck_ok(store_close(store));
	ck_ok(os_unlinkat(scratch.dir_fd, "packs/00000001.pack", 0));
	store_up();
	b = branch_make("other");
	change(b, 1, "new");
	branch_close(b);
	ck_ok(store_sync(store));
	ck_assert_int_eq(faccessat(scratch.dir_fd, "packs/00000001.pack", F_OK, 0), -1);
	ck_assert_int_eq(faccessat(scratch.dir_fd, "packs/00000002.pack", F_OK, 0), 0);
	check(CHECK_READ_DATA, EXISTS);
	ck_assert_ptr_nonnull(strstr(report.text, err_str(-ERR_PACK_MISSING)));
	ck_assert_ptr_null(strstr(report.text, err_str(-ERR_CHUNK_DAMAGED)));
}
END_TEST

START_TEST(a_pack_whose_maker_died_before_its_header_is_none)
{
	static const char *const begun[] = { "", "ply" };

	populate();
	for (unsigned i = 0; i < ARRAY_SIZE(begun); i++) {
		_cleanup_close_ int fd = -1;
		struct branch *b = NULL;
		char path[32];

		(void)snprintf(path, sizeof(path), "packs/%08x.pack", i + 2);
		ck_ok(os_openat(scratch.dir_fd, path, O_WRONLY | O_CREAT | O_EXCL, 0600, &fd));
		ck_ok(os_pwrite_full(fd, begun[i], strlen(begun[i]), 0));
		store_reopen();
		check(CHECK_READ_DATA, 0);

		/* It is gone on with. */
		ck_ok(branch_open(store, "main", &b));
		change(b, 7, i ? "seven" : "eight");
		branch_close(b);
		ck_ok(store_sync(store));
		store_reopen();
		check(CHECK_READ_DATA, 0);
		ck_assert_int_ge(lseek(fd, 0, SEEK_END), 100);
	}
}
END_TEST

START_TEST(a_cut_pack_is_survived)
{
	_cleanup_close_ int fd = -1;
	struct stat st;

	populate();
	open_pack(&fd);
	ck_ok(os_fstat(fd, &st));
	ck_ok(os_ftruncate(fd, st.st_size / 2));
	check(CHECK_READ_DATA, EXISTS);
	ck_assert_ptr_nonnull(strstr(report.text, err_str(-ERR_PACK_TRUNCATED)));
	ck_assert_int_gt(report.touched, 0);
}
END_TEST

START_TEST(random_bit_flips_never_crash)
{
	uint64_t seed = 42;
	_cleanup_close_ int fd = -1;
	struct check_stats stats;
	struct stat st;

	populate();
	open_pack(&fd);
	ck_ok(os_fstat(fd, &st));
	for (int i = 0; i < 60; i++) {
		uint64_t at = scratch_random(&seed) % st.st_size;
		uint8_t byte;

		ck_ok(os_pread_full(fd, &byte, 1, at));
		byte ^= 1 << (i % 8);
		ck_ok(os_pwrite_full(fd, &byte, 1, at));
		report = (struct report){ .damaged = 0 };
		ck_assert_int_ge(store_check(store, i % 2, &ops, NULL, &stats), 0);
	}
}
END_TEST

/* ---- nodes that hash right and are wrong: only a bug makes them ---- */

/* An interior node (FORMAT.md, "Nodes") cannot be made here without its encoder: swap states. */
START_TEST(data_in_the_place_of_a_node_is_damage)
{
	struct branch_record rec = { .lineage = 1 };

	populate();
	rec.root = data_name(ids[1]);
	put_branch("wrong", &rec);
	check(0, EXISTS);
	ck_assert_int_eq(report.damaged, 1);
	ck_assert(touches(0, "wrong", 0, false));
	ck_assert_ptr_nonnull(strstr(report.text, err_str(-ERR_NODE_DAMAGED)));
}
END_TEST

START_TEST(dangling_heads_are_reported)
{
	const struct branch_record rec = { .head = 4711, .undo = 4712, .lineage = 1 };
	struct branch *b;

	populate();
	put_branch("wrong", &rec);
	check(0, EXISTS);
	ck_assert_int_eq(report.damaged, 2);

	/* it opens all the same, and is right after its next save */
	store_reopen();
	b = branch_at("wrong");
	ck_assert_uint_eq(b->head, 0);
	change(b, 1, "1");
	branch_close(b);
	ck_ok(store_sync(store));
	check(0, 0);
}
END_TEST

START_TEST(a_replaced_format_file_is_reported)
{
	uint8_t uuid[16] = { 9 };
	char text[FORMAT_TEXT_MAX];
	_cleanup_close_ int fd = -1;
	size_t len = format_encode(uuid, text);

	ck_ok(os_openat(scratch.dir_fd, "format", O_WRONLY | O_CLOEXEC, 0, &fd));
	ck_ok(os_pwrite_full(fd, text, len, 0));
	check(0, EXISTS);
	ck_ok(os_pwrite_full(fd, "x", 1, 0));
	check(0, EXISTS);
	ck_assert_int_eq(report.damaged, 1);
}
END_TEST

START_TEST(shared_states_are_not_walked_again)
{
	struct branch *b = branch_make("main");
	struct check_stats stats;
	uint64_t begin;

	fill(b, 1, 20000, 1);
	for (int i = 0; i < 2000; i++) {
		change(b, (uint64_t)i * 7 % 20000, "changed");
		checkpoint(b, NULL);
	}
	branch_close(b);
	ck_ok(store_sync(store));
	begin = now_ns();
	stats = check(0, 0);
	fprintf(stderr, "checked %llu states, %llu nodes in %llu ms\n",
		(unsigned long long)stats.snapshots, (unsigned long long)stats.nodes,
		(unsigned long long)(now_ns() - begin) / 1000000);
	ck_assert_uint_eq(stats.unreferenced, 0);
}
END_TEST

START_TEST(a_check_can_be_cancelled)
{
	const bool cancel = true;
	const struct progress progress = { .cancel = &cancel };
	struct check_stats stats;
	struct gc_stats gc;

	populate();
	ck_err(store_check(store, 0, &ops, &progress, &stats), -ERR_CANCELLED);
	ck_ok(store_gc(store, NULL, &gc)); /* it let go of its claim */
}
END_TEST

START_TEST(what_the_machine_refuses_is_not_told_as_damage)
{
	bool late = false;

	populate();
	for (int n = 0; !late; n++) {
		struct check_stats stats;
		int r;

		fault_arm(n, 1, EMFILE); /* or no memory */
		r = store_check(store, 0, &ops, NULL, &stats);
		late = fault_ticks() <= n;
		fault_disarm();
		ck_assert_msg(r == 0 || r == -EMFILE || r == -ENOMEM, "%d: %s\n%s", n, err_name(r),
			      report.text);
	}
	ck_assert_str_eq(report.text, "");
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		a_sound_store_is_clean,
		unreferenced_chunks_are_counted_not_reported,
		a_damaged_leaf_touches_every_state_that_has_it,
		a_damaged_top_touches_everything_of_its_state,
		damaged_data_names_the_item,
		a_damaged_record_header_is_found_without_reading_data,
		missing_chunks_are_reported_once,
		a_missing_pack_is_survived,
		a_missing_pack_is_not_made_again,
		a_pack_whose_maker_died_before_its_header_is_none,
		a_cut_pack_is_survived,
		random_bit_flips_never_crash,
		data_in_the_place_of_a_node_is_damage,
		dangling_heads_are_reported,
		a_replaced_format_file_is_reported,
		shared_states_are_not_walked_again,
		a_check_can_be_cancelled,
		what_the_machine_refuses_is_not_told_as_damage,
	};

	return scratch_run("check", tests, ARRAY_SIZE(tests), store_setup, store_teardown);
}
