/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/damage.h"

#include <sys/resource.h>

#include "store/base/fault.h"
#include "store/chunk_internal.h"

/* Repair and salvage. With whole programs: tests/e2e/flipped_bits.py, salvage.py. */

static struct check_stats repair(void)
{
	struct check_stats stats;
	int r;

	report = (struct report){ 0 };
	r = store_repair(store, &ops, NULL, &stats);
	ck_assert_msg(r == 0, "repair: %d\n%s", r, report.text);
	store_reopen();
	return stats;
}

static void expect_states(void)
{
	struct snap_info info;

	ck_assert_uint_eq(snap_count(store), 3);
	expect_in_snap(ids[0], 1, "small");
	expect_in_snap(ids[2], 1, "changed");
	expect_in_snap(ids[1], 5000, "b");
	for (int i = 0; i < 3; i++) {
		ck_ok(snap_get(store, ids[i], &info));
		ck_assert_uint_eq(info.parent, i ? ids[i - 1] : 0);
		ck_assert_str_eq(info.label, i == 0 ? "first" : i == 2 ? "last" : "");
		ck_assert_str_eq(info.branch, "main");
	}
}

static void gc(void)
{
	struct gc_stats stats;

	ck_ok(store_gc(store, NULL, &stats));
}

/* ---- repair ---- */

START_TEST(a_sound_store_is_left_alone)
{
	populate();
	repair();
	ck_assert_str_eq(report.text, "");
	expect_states();
}
END_TEST

START_TEST(lost_data_is_given_up_and_named_each_time)
{
	struct chunkbuf *b = NULL;
	struct check_stats stats;
	struct name name, again;

	populate();
	name = data_name(ids[1]);
	flip_chunk(&name, IN_PAYLOAD);
	stats = repair();
	ck_assert_int_eq(report.damaged, 1);
	ck_assert_int_eq(report.mended, 1);
	ck_assert_int_eq(report.touched, 3); /* told once */
	ck_assert_uint_eq(stats.lost, 1);
	ck_err(chunk_load(store_chunks(store), &name, &b), -ERR_CHUNK_LOST);
	expect_states();

	stats = check(CHECK_READ_DATA, 0);
	ck_assert_uint_eq(stats.lost, 1);
	ck_assert_int_eq(report.lost, 1);
	ck_assert_int_eq(report.touched, 3);
	gc();
	check(CHECK_READ_DATA, 0);
	ck_assert_int_eq(report.lost, 1);

	/* the same bytes met again are kept beside, as with any damaged chunk */
	ck_ok(chunk_put(store_chunks(store), CHUNK_DATA, content, sizeof(content), &again));
	ck_assert(!name_eq(&again, &name));
	ck_ok(store_sync(store));

	/* and when no state needs it any more, nothing is left of it */
	ck_ok(snap_drop(store, ids[1]));
	ck_ok(snap_drop(store, ids[2]));
	ck_ok(branch_drop(store, "main"));
	gc();
	stats = check(CHECK_READ_DATA, 0);
	ck_assert_uint_eq(stats.lost, 0);
	ck_assert_uint_eq(stats.unreferenced, 0);
	expect_in_snap(ids[0], 1, "small");
}
END_TEST

START_TEST(a_lost_node_hides_its_items_only)
{
	_cleanup_(root_unrefp) struct root *root = NULL;
	_cleanup_(tree_freep) struct tree *t = NULL;
	unsigned right = 0, lost = 0;
	struct check_stats stats;
	struct name leaf;

	populate();
	leaf = leaf_name(ids[2], 1000);
	flip_chunk(&leaf, IN_PAYLOAD);
	stats = repair();
	ck_assert_uint_eq(stats.lost, 1);
	expect_states();
	ck_ok(snap_root(store, ids[2], &root));
	ck_ok(tree_new(store_nodes(store), root, &t));
	for (uint64_t a = 1; a < 2000; a++) {
		const struct key k = key_at(a);
		struct val v;
		int r = tree_get(t, &k, &v);

		if (r == 0)
			right++;
		else
			lost += r == -ERR_CHUNK_LOST;
	}
	ck_assert_uint_eq(right + lost, 1999);
	ck_assert_uint_gt(lost, 0);
	ck_assert_uint_lt(lost, 100);
	gc();
	check(CHECK_READ_DATA, 0);
	ck_assert_int_eq(report.lost, 1);
}
END_TEST

START_TEST(damaged_headers_are_written_again)
{
	struct name name, leaf;

	populate();
	name = data_name(ids[1]);
	leaf = leaf_name(ids[1], 1000);
	flip_chunk(&name, IN_HEADER);
	flip_chunk(&leaf, 1);
	flip_at("packs/00000001.pack", 9);
	check(CHECK_READ_DATA, EXISTS);
	ck_assert_int_eq(report.damaged, 3);
	ck_assert_int_eq(report.touched, 0); /* nothing is lost by it */
	repair();
	ck_assert_int_eq(report.mended, 3);
	check(CHECK_READ_DATA, 0);
	expect_states();
}
END_TEST

START_TEST(what_the_index_lost_is_found_in_the_packs)
{
	struct name top, leaf, name;
	struct index_txn *txn;
	struct check_stats stats;

	populate();
	top = top_name(ids[2]);
	leaf = leaf_name(ids[2], 1000);
	name = data_name(ids[2]);
	ck_ok(index_begin(store->index, &txn));
	ck_ok(index_del_chunk(txn, &top)); /* hides the others: it takes a second look */
	ck_ok(index_del_chunk(txn, &leaf));
	ck_ok(index_del_chunk(txn, &name));
	ck_ok(index_commit(&txn));
	stats = repair();
	ck_assert_uint_eq(stats.lost, 0);
	ck_assert_int_eq(report.mended, 3);
	check(CHECK_READ_DATA, 0);
	expect_states();
}
END_TEST

/* A flipped bit in a value of the index, as LMDB's file has it; the map shows it at once. */
static void flip_in_use(const void *needle, size_t len)
{
	const size_t room = 1 << 20;
	_cleanup_free_ uint8_t *bytes = calloc(1, room);
	_cleanup_close_ int fd = -1;
	int hits = 0;

	ck_ok(os_openat(scratch.dir_fd, "index/data.mdb", O_RDWR, 0, &fd));
	ck_assert_int_gt(pread(fd, bytes, room, 0), 0);
	for (size_t i = 0; i + len <= room; i++) {
		if (memcmp(bytes + i, needle, len) != 0)
			continue;
		bytes[i + len - 1] ^= 1;
		ck_ok(os_pwrite_full(fd, bytes + i, len, i));
		hits++;
	}
	ck_assert_int_gt(hits, 0);
}

static void flip_in_index(const void *needle, size_t len)
{
	ck_ok(store_close(store));
	store = NULL;
	flip_in_use(needle, len);
	store_up();
}

START_TEST(damaged_records_come_back_from_the_packs)
{
	struct branch *b;

	populate();
	flip_in_index("mainlast", 8); /* branch and label of a snapshot record */
	ck_assert_uint_eq(snap_count(store), 2);
	repair();
	check(CHECK_READ_DATA, 0);
	expect_states();

	flip_in_index("main", 4); /* the key of the branch, and the text in all three records */
	repair();
	check(CHECK_READ_DATA, 0);
	expect_states();
	b = branch_at("main");
	expect_text(b, 1, "changed");
	ck_assert_uint_eq(b->head, ids[2]);
	branch_close(b);
}
END_TEST

START_TEST(a_record_that_is_damaged_in_use_is_not_lost_by_a_gc)
{
	uint8_t garbage[100000];
	struct gc_stats stats;
	struct name name;

	for (unsigned i = 0; i < 20; i++) { /* so that the pack is worth rewriting */
		scratch_fill(garbage, sizeof(garbage), i);
		ck_ok(chunk_put(store_chunks(store), CHUNK_DATA, garbage, sizeof(garbage), &name));
	}
	populate();
	flip_in_use("mainlast", 8);
	ck_err(store_gc(store, NULL, &stats), -ERR_INDEX_DAMAGED);
	ck_assert_ptr_nonnull(strstr(scratch.last_note, "nothing was removed"));
	store_reopen();
	ck_assert_uint_eq(snap_count(store), 2);
	repair();
	expect_states();
	gc();
	expect_states();
}
END_TEST

START_TEST(a_counter_whose_key_is_damaged_does_not_start_again)
{
	uint64_t before;

	populate();
	before = store_take_ino(store, 1);
	flip_in_index("ino", 3);
	ck_assert_uint_gt(store_take_ino(store, 1), before);
	repair();
	check(CHECK_READ_DATA, 0);
	ck_assert_uint_gt(store_take_ino(store, 1), before);
}
END_TEST

START_TEST(dangling_records_name_nothing_any_more)
{
	const struct branch_record rec = { .head = 4711, .undo = 4712, .lineage = 1 };
	struct branch *b;

	populate();
	put_branch("wrong", &rec);
	check(CHECK_READ_DATA, EXISTS);
	repair();
	check(CHECK_READ_DATA, 0);
	b = branch_at("wrong");
	ck_assert_uint_eq(b->head, 0);
	branch_close(b);
	expect_states();
}
END_TEST

START_TEST(the_format_file_is_written_again)
{
	populate();
	flip_at("format", 30);
	check(CHECK_READ_DATA, EXISTS);
	repair();
	check(CHECK_READ_DATA, 0);
	expect_states();
}
END_TEST

/* ---- salvage ---- */

static struct salvage_stats salvage(void)
{
	const struct noter noter = { .fn = scratch_note, .arg = &scratch };
	struct salvage_stats stats;

	ck_ok(store_salvage(scratch.dir_fd, &noter, NULL, &stats));
	store_up();
	return stats;
}

static void lose_index(void)
{
	ck_ok(store_close(store));
	store = NULL;
	ck_ok(os_unlinkat(scratch.dir_fd, "index/data.mdb", 0));
	ck_ok(os_unlinkat(scratch.dir_fd, "index", AT_REMOVEDIR));
}

START_TEST(a_store_without_its_index_is_refused_not_emptied)
{
	populate();
	lose_index();
	ck_err(store_open(scratch.dir_fd, NULL, &store), -ERR_INDEX_BROKEN);
	ck_assert_int_eq(store_is_broken(scratch.dir_fd, NULL), EXISTS);
	store = NULL;
}
END_TEST

START_TEST(everything_comes_back_from_the_packs)
{
	struct salvage_stats stats;
	struct snap_info before[3], after;
	struct branch *b;
	uint64_t ino, id;

	populate();
	for (int i = 0; i < 3; i++)
		ck_ok(snap_get(store, ids[i], &before[i]));
	ino = store_take_ino(store, 1);
	lose_index();
	stats = salvage();
	ck_assert_uint_eq(stats.snapshots, 3);
	ck_assert_uint_eq(stats.branches, 1);
	ck_assert_uint_eq(stats.gaps, 0);
	ck_assert_uint_eq(stats.damaged, 0);
	ck_assert_str_eq(stats.old, "");
	expect_states();
	for (int i = 0; i < 3; i++) {
		ck_ok(snap_get(store, ids[i], &after));
		ck_assert_int_eq(memcmp(&before[i], &after, sizeof(after)), 0);
	}
	check(CHECK_READ_DATA, 0);

	/* numbers go on */
	ck_assert_uint_gt(store_take_ino(store, 1), ino);
	b = branch_at("main");
	change(b, 2, "later");
	id = checkpoint(b, NULL);
	for (int i = 0; i < 3; i++)
		ck_assert_uint_ne(id, ids[i]);
	branch_close(b);
	ck_ok(store_sync(store));

	/* and again, with what came since */
	store_reopen();
	lose_index();
	salvage();
	ck_assert_uint_eq(snap_count(store), 4);
	expect_in_snap(id, 2, "later");
	check(CHECK_READ_DATA, 0);
}
END_TEST

START_TEST(what_was_dropped_stays_dropped)
{
	struct check_stats stats;

	populate();
	ck_ok(snap_drop(store, ids[1]));
	ck_ok(store_sync(store));
	gc();
	gc(); /* what the first one wrote is in a pack of its own */
	lose_index();
	salvage();
	ck_assert_uint_eq(snap_count(store), 2);
	expect_in_snap(ids[2], 1, "changed");
	stats = check(CHECK_READ_DATA, 0);
	ck_assert_uint_eq(stats.branches, 1);
	gc();
	stats = check(CHECK_READ_DATA, 0);
	ck_assert_uint_eq(stats.unreferenced, 0);
}
END_TEST

START_TEST(a_damaged_index_is_kept_beside_the_new_one)
{
	struct salvage_stats stats;
	struct stat st;

	for (int i = 0; i < 2; i++) {
		if (i == 0)
			populate();
		ck_ok(store_close(store));
		flip_at("index/data.mdb", 16); /* LMDB's own mark */
		ck_err(store_open(scratch.dir_fd, NULL, &store), -ERR_INDEX_BROKEN);
		stats = salvage();
		ck_assert_str_eq(stats.old, i ? "index.damaged.1" : "index.damaged");
		ck_ok(os_statat(scratch.dir_fd, stats.old, &st));
		expect_states();
	}
	ck_assert_int_lt(os_statat(scratch.dir_fd, "salvage", &st), 0);
}
END_TEST

START_TEST(a_lost_format_file_comes_back_with_its_uuid)
{
	struct salvage_stats stats;
	uint8_t uuid[16];

	populate();
	memcpy(uuid, store_uuid(store), sizeof(uuid));
	ck_ok(store_close(store));
	ck_ok(os_unlinkat(scratch.dir_fd, "format", 0));
	ck_assert_int_eq(store_is_broken(scratch.dir_fd, NULL), EXISTS);
	stats = salvage();
	ck_assert(stats.format);
	ck_assert_mem_eq(uuid, store_uuid(store), sizeof(uuid));
	expect_states();
	check(CHECK_READ_DATA, 0);
}
END_TEST

START_TEST(packs_without_a_list_of_snapshots_are_not_enough)
{
	const struct noter noter = { .fn = scratch_note, .arg = &scratch };
	struct salvage_stats stats;
	struct stat st;

	lose_index();
	(void)os_unlinkat(scratch.dir_fd, "packs/00000001.pack", 0); /* an empty store has none */
	ck_err(store_salvage(scratch.dir_fd, &noter, NULL, &stats), -ERR_SALVAGE_NOTHING);
	ck_assert_int_lt(os_statat(scratch.dir_fd, "salvage", &st), 0);
	ck_assert_int_lt(os_statat(scratch.dir_fd, "index", &st), 0);
}
END_TEST

struct last_record {
	uint32_t pack;
	uint64_t off, number, since;
};

static struct last_record last_table_record(void)
{
	_cleanup_free_ void *value = NULL;
	struct table_place_bytes b;
	size_t len;

	ck_ok(index_get(store->index, INDEX_META, TABLE_KEY, strlen(TABLE_KEY), &value, &len));
	ck_assert_uint_eq(len, sizeof(b));
	memcpy(&b, value, sizeof(b));
	return (struct last_record){ get_le32(b.pack), get_le64(b.off), get_le64(b.number),
				     get_le64(b.since) };
}

/* A snapshot that is committed, with nothing else. */
static uint64_t commit_snapshot(uint64_t a, const char *label)
{
	struct branch *b = branch_at("main");
	uint64_t id;

	change(b, a, label);
	id = checkpoint(b, label);
	branch_close(b);
	ck_ok(store_sync(store));
	return id;
}

/* The record "last" is damaged, so that no record with everything can be written. */
static void expect_changes_recorded(void)
{
	uint64_t id = commit_snapshot(3, "since");

	lose_index();
	salvage();
	ck_assert_uint_eq(snap_count(store), 4);
	expect_in_snap(id, 3, "since");
}

START_TEST(changes_are_recorded_where_a_gc_could_not_record_everything)
{
	struct gc_stats stats;

	populate();
	flip_in_use("mainlast", 8);
	ck_err(store_gc(store, NULL, &stats), -ERR_INDEX_DAMAGED);
	expect_changes_recorded();
}
END_TEST

enum { MANY = 6000 }; /* with these labels more than WHOLE_MIN in table.c, compressed */
static uint64_t many[MANY];

static void checkpoint_many(void)
{
	struct branch *b = branch_at("main");
	char label[LABEL_MAX + 1];

	label[LABEL_MAX] = 0;
	for (unsigned i = 0; i < MANY; i++) {
		scratch_fill(label, LABEL_MAX, i);
		for (unsigned k = 0; k < LABEL_MAX; k++)
			label[k] = (char)('0' + (label[k] & 63));
		change(b, 4, i % 2 ? "odd" : "even");
		many[i] = checkpoint(b, label);
	}
	branch_close(b);
	ck_ok(store_sync(store));
}

START_TEST(changes_are_recorded_where_a_commit_could_not_record_everything)
{
	populate();
	flip_in_use("mainlast", 8);
	checkpoint_many();
	for (unsigned i = 0; i < MANY; i++)
		ck_ok(snap_drop(store, many[i]));
	expect_changes_recorded();
}
END_TEST

START_TEST(what_is_too_long_for_one_record_comes_in_parts)
{
	populate();
	checkpoint_many();
	ck_assert_uint_lt(last_table_record().since, 1 << 20); /* everything was due, too */
	ck_ok(table_check(store->tables));
	lose_index();
	salvage();
	ck_assert_uint_eq(snap_count(store), 3 + MANY);
	check(CHECK_READ_DATA, 0);
}
END_TEST

/* What the index says of the newest record: of one with that number, which is nowhere. */
static void number_records_from(uint64_t number)
{
	struct table_place_bytes place = { .zero = { 0 } };
	struct index_txn *txn;
	struct index *ix;

	ck_ok(store_close(store));
	put_le64(place.number, number);
	ck_ok(index_open(scratch.dir_fd, NULL, &ix));
	ck_ok(index_begin(ix, &txn));
	ck_ok(index_put(txn, INDEX_META, TABLE_KEY, strlen(TABLE_KEY), &place, sizeof(place)));
	ck_ok(index_commit(&txn));
	index_close(ix);
	store_up();
}

/* Numbers begin at the present time, which may have been wrong once. */
START_TEST(records_are_numbered_on_whatever_the_clock_says)
{
	uint64_t number;

	populate();
	number_records_from(UINT64_MAX / 2);
	for (int n = 0; n < 40; n++) { /* one of the calls is that which writes the record */
		struct branch *b = branch_at("main");

		change(b, 3, n % 2 ? "odd" : "even");
		(void)checkpoint(b, "one of 40");
		number = last_table_record().number;
		ck_assert_uint_ge(number, UINT64_MAX / 2);
		fault_arm(n, 1, ENOSPC);
		(void)store_sync(store);
		fault_disarm();
		atomic_store(&store->retry_ns, 0); /* else a second later */
		ck_ok(store_sync(store));
		ck_assert_uint_ge(last_table_record().number, number);
		branch_close(b);
	}
	lose_index();
	salvage();
	ck_assert_uint_eq(snap_count(store), 3 + 40); /* nothing is missing either */
}
END_TEST

START_TEST(the_copy_of_the_tables_is_checked_and_written_again)
{
	struct last_record at;
	struct branch *b;

	populate();
	at = last_table_record();
	b = branch_at("main");
	change(b, 3, "three");
	checkpoint(b, NULL);
	branch_close(b);
	ck_ok(store_sync(store));
	check(CHECK_READ_DATA, 0);
	flip_at("packs/00000001.pack", at.off + IN_PAYLOAD); /* not the last one any more */
	check(CHECK_READ_DATA, EXISTS);
	ck_assert_int_eq(report.damaged, 1);
	repair();
	check(CHECK_READ_DATA, 0);
	lose_index();
	salvage();
	ck_assert_uint_eq(snap_count(store), 4);
	check(CHECK_READ_DATA, 0);
}
END_TEST

START_TEST(a_lost_record_costs_only_what_was_in_it)
{
	const uint64_t now = (uint64_t)os_now_ns();
	struct last_record at;
	struct salvage_stats stats;
	struct branch *b;
	uint64_t id;

	populate();
	b = branch_at("main");
	change(b, 3, "three");
	checkpoint(b, "lost");
	ck_ok(store_sync(store));
	at = last_table_record();
	change(b, 4, "four");
	id = checkpoint(b, "kept");
	ck_ok(store_sync(store));
	branch_close(b);
	ck_ok(store_close(store));
	store = NULL;
	flip_at("packs/00000001.pack", at.off + IN_PAYLOAD);
	stats = salvage();
	ck_assert_uint_eq(stats.gaps, 1);
	ck_assert_uint_eq(snap_count(store), 4);
	expect_in_snap(id, 4, "four");
	expect_in_snap(id, 3, "three");
	/* what was lost may have counted further */
	ck_assert_uint_gt(store->next_seq, 1 << 16);
	ck_assert_uint_ge(store->next_ino, now);
	ck_assert_uint_ge(store->next_lineage, now);
	b = branch_at("main");
	ck_assert_uint_eq(b->head, id);
	branch_close(b);
	check(CHECK_READ_DATA, EXISTS); /* the parent of "kept" is not there */
	repair();
	check(CHECK_READ_DATA, 0);
}
END_TEST

/* The newest snapshots are gone, and the clock was wrong once, or is wrong now. */
START_TEST(no_number_is_given_out_again_where_a_record_is_lost)
{
	const uint64_t ino = UINT64_MAX / 2, lineage = ino + 1, seq = 1 << 20;
	struct last_record at;
	struct branch *b;

	populate();
	store->next_ino = ino;
	store->next_lineage = lineage;
	store->next_seq = seq;
	ck_ok(snap_drop(store, commit_snapshot(3, "dropped")));
	ck_ok(store_sync(store));
	for (int i = 0; i < 2; i++) {
		if (i == 1)
			at = last_table_record();
		b = branch_at("main");
		change(b, 4, i ? "kept" : "lost");
		branch_close(b);
		ck_ok(store_sync(store));
	}
	ck_ok(store_close(store));
	store = NULL;
	flip_at("packs/00000001.pack", at.off + IN_PAYLOAD);
	ck_assert_uint_eq(salvage().gaps, 1);
	ck_assert_uint_gt(store->next_seq, seq);
	ck_assert_uint_ge(store->next_ino, ino);
	ck_assert_uint_ge(store->next_lineage, lineage);
}
END_TEST

START_TEST(what_the_disk_refuses_is_asked_for_a_few_times)
{
	enum { CHUNKS = 40, BYTES = 8192, BLOCK = 4096 };
	const struct noter noter = { .fn = scratch_note, .arg = &scratch };
	uint8_t bytes[BYTES];
	struct salvage_stats stats;
	struct chunk_loc loc;
	struct name name;
	int calls[2];
	struct stat st;

	for (unsigned i = 0; i < CHUNKS; i++) {
		scratch_fill(bytes, sizeof(bytes), i);
		ck_ok(chunk_put(store_chunks(store), CHUNK_DATA, bytes, sizeof(bytes), &name));
	}
	populate();
	ck_ok(index_find_chunk(store->index, &name, &loc));
	ck_ok(store_close(store));
	store = NULL;
	ck_ok(os_statat(scratch.dir_fd, "packs/00000001.pack", &st));
	for (int bad = 0; bad < 2; bad++) {
		if (bad)
			fault_bad_sector(st.st_ino, (loc.off / BLOCK + 1) * BLOCK, BLOCK);
		fault_arm(INT32_MAX, 0, EIO); /* counts */
		ck_ok(store_salvage(scratch.dir_fd, &noter, NULL, &stats));
		calls[bad] = fault_ticks();
		fault_disarm();
		ck_assert_uint_eq(stats.damaged, bad);
	}
	fault_bad_sector(0, 0, 0);
	store_up();
	expect_states();
	/* a disk that fails may take seconds each time */
	ck_assert_int_lt(calls[1], calls[0] + 200);
}
END_TEST

/* It says so, or finds all there is. */
START_TEST(salvage_takes_no_lack_of_descriptors_for_damage)
{
	enum { PACKS = 5 };
	const struct noter noter = { .fn = scratch_note, .arg = &scratch };
	struct salvage_stats stats = { .packs = 0 };
	struct rlimit files, fewer;
	int r = -EMFILE;

	populate();
	for (int i = 1; i < PACKS; i++) {
		(void)packs_begin_new(store->chunks->packs);
		commit_snapshot(3, i % 2 ? "odd" : "even");
	}
	lose_index();
	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &files), 0);
	fewer = files;
	for (fewer.rlim_cur = 3; r < 0; fewer.rlim_cur++) {
		ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &fewer), 0);
		r = store_salvage(scratch.dir_fd, &noter, NULL, &stats);
		ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &files), 0);
		ck_assert_msg(r == 0 || r == -EMFILE, "%s", err_name(r));
	}
	ck_assert_uint_eq(stats.packs, PACKS);
	store_up();
	ck_assert_uint_eq(snap_count(store), 3 + PACKS - 1);
	check(CHECK_READ_DATA, 0);
}
END_TEST

/* A record of the tables as anyone may write it into a file: "all there is, is nothing". */
static void forge_record(uint8_t *to, size_t room)
{
	struct table_record_bytes head = { .version = TABLE_VERSION, .whole = 1 };
	_cleanup_free_ uint8_t *bytes = NULL;
	struct packs *packs;
	struct record rec;
	struct name name;
	size_t len;

	put_le32(head.parts, 1);
	put_le64(head.number, UINT64_MAX / 2);
	memcpy(head.uuid, store_uuid(store), sizeof(head.uuid));
	name = name_of(&head, sizeof(head), 0);
	ck_ok(packs_open(scratch.dir_fd, &packs));
	ck_ok(record_encode(packs, RECORD_TABLE, &head, sizeof(head), 0, &name, &bytes, &len,
			    &rec));
	packs_close(packs);
	ck_assert_uint_le(len, room);
	memcpy(to, bytes, len);
}

START_TEST(records_inside_damaged_data_are_not_believed)
{
	_cleanup_free_ uint8_t *bytes = calloc(1, sizeof(content));
	struct salvage_stats stats;
	struct name name;

	forge_record(bytes + 8000, 1000);
	ck_ok(chunk_put(store_chunks(store), CHUNK_DATA, bytes, sizeof(content), &name));
	populate();
	flip_chunk(&name, sizeof(struct record_header_bytes) + 100);
	lose_index();
	stats = salvage();
	ck_assert_uint_eq(stats.damaged, 1);
	expect_states();
}
END_TEST

/* A file has the copy of a record in it. The record is damaged, and the file behind that copy. */
START_TEST(a_chunk_inside_damaged_data_is_taken_where_its_own_is_damaged)
{
	const size_t head = sizeof(struct record_header_bytes);
	uint8_t inner[1000], outer[8192];
	_cleanup_close_ int fd = -1;
	struct name names[2];
	struct chunk_loc loc;
	struct branch *b;
	char path[64];

	scratch_fill(inner, sizeof(inner), 2);
	scratch_fill(outer, sizeof(outer), 3);
	ck_ok(chunk_put(store_chunks(store), CHUNK_DATA, inner, sizeof(inner), &names[0]));
	populate();
	ck_ok(index_find_chunk(store->index, &names[0], &loc));
	(void)snprintf(path, sizeof(path), "packs/%08x.pack", loc.pack);
	ck_ok(os_openat(scratch.dir_fd, path, O_RDONLY, 0, &fd));
	ck_ok(os_pread_full(fd, outer, head + loc.stored_len, loc.off));
	ck_ok(chunk_put(store_chunks(store), CHUNK_DATA, outer, sizeof(outer), &names[1]));
	b = branch_at("main");
	change(b, 1, "main"); /* for there to be a commit */
	branch_close(b);
	ck_ok(store_sync(store));
	flip_chunk(&names[0], IN_PAYLOAD);
	flip_chunk(&names[1], sizeof(outer));
	lose_index();
	ck_assert_uint_eq(salvage().damaged, 2);
	ck_ok(chunk_find(store_chunks(store), &names[0]));
	ck_err(chunk_find(store_chunks(store), &names[1]), ABSENT);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		a_sound_store_is_left_alone,
		lost_data_is_given_up_and_named_each_time,
		a_lost_node_hides_its_items_only,
		damaged_headers_are_written_again,
		what_the_index_lost_is_found_in_the_packs,
		damaged_records_come_back_from_the_packs,
		a_record_that_is_damaged_in_use_is_not_lost_by_a_gc,
		a_counter_whose_key_is_damaged_does_not_start_again,
		dangling_records_name_nothing_any_more,
		the_format_file_is_written_again,
		a_store_without_its_index_is_refused_not_emptied,
		everything_comes_back_from_the_packs,
		what_was_dropped_stays_dropped,
		a_damaged_index_is_kept_beside_the_new_one,
		a_lost_format_file_comes_back_with_its_uuid,
		packs_without_a_list_of_snapshots_are_not_enough,
		changes_are_recorded_where_a_gc_could_not_record_everything,
		changes_are_recorded_where_a_commit_could_not_record_everything,
		what_is_too_long_for_one_record_comes_in_parts,
		records_are_numbered_on_whatever_the_clock_says,
		the_copy_of_the_tables_is_checked_and_written_again,
		a_lost_record_costs_only_what_was_in_it,
		no_number_is_given_out_again_where_a_record_is_lost,
		what_the_disk_refuses_is_asked_for_a_few_times,
		salvage_takes_no_lack_of_descriptors_for_damage,
		records_inside_damaged_data_are_not_believed,
		a_chunk_inside_damaged_data_is_taken_where_its_own_is_damaged,
	};

	return scratch_run("repair", tests, ARRAY_SIZE(tests), store_setup, store_teardown);
}
