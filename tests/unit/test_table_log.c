/* SPDX-License-Identifier: Apache-2.0 */

/* What the packs' records of the tables say when they are read back, whatever they lack. */

#include "store/base/fault.h"
#include "store/pack.h"
#include "store/table.h"
#include "store/table_log.h"
#include "tests/unit/scratch.h"

static struct table_log *log_of;
static struct index_ops ops; /* of the record that is being made */

static void setup(void)
{
	ck_ok(table_log_new(&log_of));
}

static void teardown(void)
{
	table_log_free(log_of);
	index_ops_release(&ops);
}

static void put_in(enum index_table table, const char *key, const char *value)
{
	ck_ok(index_ops_add(&ops, true, table, key, strlen(key), value, strlen(value)));
}

static void put(const char *key, const char *value)
{
	put_in(INDEX_SNAPS, key, value);
}

static void del(const char *key)
{
	ck_ok(index_ops_add(&ops, false, INDEX_SNAPS, key, strlen(key), NULL, 0));
}

static const struct name nothing; /* before the first record */

struct made {
	uint64_t number;
	bool whole, doubtful;
	uint32_t part, parts; /* 0: the only one */
	char store;           /* another one than 'a' */
	enum chunk_kind kind; /* of what else has these bytes; 0: a record of the tables */
	const struct name *before;
};

/* A record with the operations since the last one; its name. */
static struct name record(const struct made *m)
{
	struct table_record_bytes head = { .version = TABLE_VERSION, .whole = m->whole };
	uint8_t payload[1000];
	struct scanned found = { .doubtful = m->doubtful, .raw = payload };

	put_le32(head.part, m->part);
	put_le32(head.parts, MAX(m->parts, 1));
	put_le64(head.number, m->number);
	memset(head.uuid, m->store ? m->store : 'a', sizeof(head.uuid));
	memcpy(head.before, (m->before ? m->before : &nothing)->b, NAME_BYTES);
	memcpy(payload, &head, sizeof(head));
	ck_assert_uint_le(sizeof(head) + ops.len, sizeof(payload));
	memcpy(payload + sizeof(head), ops.bytes, ops.len);
	found.rec.kind = m->kind ? m->kind : RECORD_TABLE;
	found.rec.raw_len = (uint32_t)(sizeof(head) + ops.len);
	found.rec.name = name_of(payload, found.rec.raw_len, 0);
	ck_ok(table_log_add(log_of, &found));
	index_ops_release(&ops);
	return found.rec.name;
}

static void change(uint64_t number)
{
	(void)record(&(struct made){ .number = number });
}

static void whole(uint64_t number)
{
	(void)record(&(struct made){ .number = number, .whole = true });
}

static int append(void *arg, enum index_table table, const void *key, size_t key_len,
		  const void *value, size_t value_len)
{
	char *text = arg;
	size_t len = strlen(text);

	(void)snprintf(text + len, 500 - len, "%d%.*s=%.*s ", table, (int)key_len,
		       (const char *)key, (int)value_len, (const char *)value);
	return 0;
}

/* All that there is, by table and key: "1key=value " each. */
static struct table_log_stats expect(const char *all)
{
	struct table_log_stats stats;
	char text[500] = "";

	ck_ok(table_log_resolve(log_of, NULL, &stats));
	ck_ok(table_log_each(log_of, append, text));
	ck_assert_str_eq(text, all);
	return stats;
}

static void expect_stats(struct table_log_stats stats, uint64_t records, uint64_t gaps, bool whole,
			 uint64_t last)
{
	ck_assert_uint_eq(stats.records, records);
	ck_assert_uint_eq(stats.gaps, gaps);
	ck_assert_uint_eq(stats.whole, whole);
	ck_assert_uint_eq(stats.last, last);
}

/* ---- one record ---- */

START_TEST(a_payload_makes_sense_or_is_refused)
{
	struct table_record_bytes good = { .version = TABLE_VERSION, .parts = { 2 },
					   .part = { 1 }, .number = { 7 } };
	struct table_record_bytes bad[4];
	struct table_part part;

	ck_ok(table_part_decode((const uint8_t *)&good, sizeof(good), &part));
	ck_assert_uint_eq(part.number, 7);
	ck_assert_uint_eq(part.part, 1);
	ck_assert_uint_eq(part.parts, 2);
	ck_assert(!part.whole);
	ck_assert_uint_eq(part.ops_len, 0);
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		bad[i] = good;
	bad[0].version = TABLE_VERSION + 1;
	bad[1].whole = 2;
	bad[2].part[0] = 2; /* of 0 and 1 */
	bad[3].number[0] = 0;
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		ck_err(table_part_decode((const uint8_t *)&bad[i], sizeof(bad[i]), &part),
		       -ERR_RECORD_DAMAGED);
	ck_err(table_part_decode((const uint8_t *)&good, sizeof(good) - 1, &part),
	       -ERR_RECORD_DAMAGED);
}
END_TEST

static int count_ops(void *arg, bool is_put, enum index_table table, const void *key,
		     size_t key_len, const void *value, size_t value_len)
{
	++*(int *)arg;
	return 0;
}

/* In the first len bytes there are n, and nothing else. */
static void expect_ops(size_t len, int n)
{
	int seen = 0;

	ck_ok(index_ops_each(ops.bytes, len, count_ops, &seen));
	ck_assert_int_eq(seen, n);
}

/* Behind n that make sense there is something else. */
static void expect_damage(size_t len, int n)
{
	int seen = 0;

	ck_err(index_ops_each(ops.bytes, len, count_ops, &seen), -ERR_RECORD_DAMAGED);
	ck_assert_int_eq(seen, n);
}

START_TEST(operations_make_sense_or_are_refused)
{
	uint8_t *op, *table, *key_len, *value_len;
	size_t first;

	put("key", "value");
	first = ops.len;
	del("another");
	for (size_t len = 1; len < ops.len; len++)
		if (len != first)
			expect_damage(len, len > first);
	expect_ops(first, 1);
	expect_ops(ops.len, 2);
	op = ops.bytes + offsetof(struct index_op_bytes, op);
	table = ops.bytes + offsetof(struct index_op_bytes, table);
	key_len = ops.bytes + offsetof(struct index_op_bytes, key_len);
	value_len = ops.bytes + offsetof(struct index_op_bytes, value_len);
	*op = 3;
	expect_damage(ops.len, 0);
	*op = INDEX_OP_PUT;
	*table = INDEX_BRANCHES + 1;
	expect_damage(ops.len, 0);
	*table = INDEX_BRANCHES;
	expect_ops(ops.len, 2);
	put_le16(key_len, 0);
	put_le32(value_len, (uint32_t)(first - sizeof(struct index_op_bytes)));
	expect_damage(ops.len, 0);
}
END_TEST

/* ---- in order ---- */

/* Anybody may write a file that says what the tables say. */
START_TEST(what_is_in_a_file_is_no_record)
{
	put("a", "1");
	whole(1);
	put("a", "of a file");
	(void)record(&(struct made){ .number = 2, .whole = true, .kind = CHUNK_DATA });
	expect_stats(expect("1a=1 "), 1, 0, true, 1);
}
END_TEST

START_TEST(changes_follow_the_last_whole_record)
{
	for (char c = 'p'; c < 'z'; c++)
		put((const char[]){ c, 0 }, "0");
	change(1);
	put("a", "1");
	put("b", "1");
	put("c", "1");
	whole(2);
	put("b", "2");
	change(3);
	del("c");
	put("d", "2");
	change(4);
	expect_stats(expect("1a=1 1b=2 1d=2 "), 3, 0, true, 4);
}
END_TEST

START_TEST(the_same_key_in_two_tables_is_two)
{
	put("a", "1");
	put_in(INDEX_BRANCHES, "a", "2");
	whole(1);
	(void)expect("1a=1 2a=2 ");
}
END_TEST

START_TEST(without_a_whole_record_there_are_the_changes)
{
	put("b", "1");
	change(1);
	put("aa", "1");
	put_in(INDEX_BRANCHES, "a", "branch");
	put_in(INDEX_META, "b", "counter");
	change(2);
	put("a", "1");
	put("b", "2");
	change(3);
	expect_stats(expect("0b=counter 1a=1 1aa=1 1b=2 2a=branch "), 3, 0, false, 3);
}
END_TEST

START_TEST(what_is_missing_is_a_gap_and_what_follows_is_taken)
{
	put("a", "1");
	whole(5);
	put("b", "1");
	change(6);
	put("c", "1");
	change(8);
	put("a", "2");
	change(9);
	expect_stats(expect("1a=2 1b=1 1c=1 "), 4, 1, true, 9);
}
END_TEST

START_TEST(a_gap_before_a_whole_record_is_none)
{
	put("a", "1");
	change(2);
	put("b", "1");
	whole(9);
	expect_stats(expect("1b=1 "), 1, 0, true, 9);
}
END_TEST

START_TEST(of_two_with_one_number_the_later_counts)
{
	put("a", "1");
	whole(1);
	put("b", "of a commit that failed");
	change(2);
	put("c", "1");
	change(2);
	expect_stats(expect("1a=1 1c=1 "), 2, 0, true, 2);
}
END_TEST

START_TEST(numbers_make_the_order_wherever_records_lie)
{
	put("a", "3");
	change(3);
	put("a", "1");
	whole(1);
	put("a", "2");
	change(2);
	expect_stats(expect("1a=3 "), 3, 0, true, 3);
}
END_TEST

START_TEST(one_whose_operations_make_no_sense_is_a_gap)
{
	put("a", "1");
	whole(1);
	put("b", "1");
	ops.bytes[offsetof(struct index_op_bytes, op)] = 3;
	change(2);
	put("c", "1");
	change(3);
	expect_stats(expect("1a=1 1c=1 "), 3, 1, true, 3);
}
END_TEST

START_TEST(what_there_is_no_memory_for_is_no_gap)
{
	struct table_log_stats stats;

	put("a", "1");
	whole(1);
	fault_arm(0, 1, ENOMEM);
	ck_err(table_log_resolve(log_of, NULL, &stats), -ENOMEM);
	fault_disarm();
}
END_TEST

/* ---- long ones ---- */

/* Parts from..to of a whole record in three parts, one key each. */
static void parts(const char *value, unsigned from, unsigned to)
{
	struct name before = nothing, name;

	for (unsigned i = 0; i < 3; i++) {
		put(i == 0 ? "a" : i == 1 ? "b" : "c", value);
		if (i < from || i > to) { /* its name is known, it is not there */
			struct table_log *real = log_of;

			ck_ok(table_log_new(&log_of));
			name = record(&(struct made){ .number = 2, .whole = true, .part = i,
						      .parts = 3, .before = &before });
			table_log_free(log_of);
			log_of = real;
		} else {
			name = record(&(struct made){ .number = 2, .whole = true, .part = i,
						      .parts = 3, .before = &before });
		}
		before = name;
	}
}

START_TEST(a_long_record_has_all_its_parts)
{
	put("x", "0");
	change(1);
	parts("1", 0, 2);
	expect_stats(expect("1a=1 1b=1 1c=1 "), 1, 0, true, 2);
}
END_TEST

START_TEST(parts_of_another_try_are_not_mixed_in)
{
	parts("of a commit that failed", 0, 1);
	parts("1", 0, 2);
	expect_stats(expect("1a=1 1b=1 1c=1 "), 1, 0, true, 2);
}
END_TEST

START_TEST(a_long_record_that_lacks_a_part_voids_nothing)
{
	put("x", "0");
	change(1);
	parts("1", 0, 1);
	expect_stats(expect("1a=1 1b=1 1x=0 "), 2, 1, false, 2);
}
END_TEST

START_TEST(one_that_lacks_its_first_part_says_nothing)
{
	put("x", "0");
	change(1);
	parts("1", 1, 2);
	expect_stats(expect("1x=0 "), 2, 1, false, 2);
}
END_TEST

/* ---- whose they are ---- */

START_TEST(records_of_another_store_are_left_out)
{
	struct table_log_stats stats;
	uint8_t uuid[16];
	const void *value;
	size_t len;

	put("a", "another's");
	(void)record(&(struct made){ .number = 1, .store = 'b' });
	put("a", "1");
	put("bc", "1");
	change(1);
	put("b", "another's");
	(void)record(&(struct made){ .number = 2, .store = 'b' });
	memset(uuid, 'a', sizeof(uuid));
	ck_ok(table_log_resolve(log_of, uuid, &stats));
	expect_stats(stats, 1, 0, false, 1);
	ck_assert_mem_eq(table_log_uuid(log_of), uuid, sizeof(uuid));
	ck_ok(table_log_get(log_of, INDEX_SNAPS, "a", 1, &value, &len));
	ck_assert_uint_eq(len, 1);
	ck_assert_mem_eq(value, "1", 1);
	ck_err(table_log_get(log_of, INDEX_BRANCHES, "a", 1, &value, &len), ABSENT);
	ck_err(table_log_get(log_of, INDEX_SNAPS, "b", 1, &value, &len), ABSENT);
	memset(uuid, 'c', sizeof(uuid));
	ck_err(table_log_resolve(log_of, uuid, &stats), ABSENT);
}
END_TEST

START_TEST(the_store_is_that_of_the_last_record)
{
	put("a", "another's");
	(void)record(&(struct made){ .number = 9, .store = 'b' });
	put("a", "1");
	change(1);
	expect_stats(expect("1a=1 "), 1, 0, false, 1);
}
END_TEST

START_TEST(one_inside_damaged_bytes_is_believed_where_it_names_the_one_before)
{
	struct name first, forged;

	put("z", "forged");
	forged = record(&(struct made){ .number = 4, .doubtful = true });
	put("a", "1");
	first = record(&(struct made){ .number = 1, .whole = true });
	put("z", "forged");
	(void)record(&(struct made){ .number = 9, .whole = true, .doubtful = true,
				     .before = &forged });
	put("c", "1");
	(void)record(&(struct made){ .number = 2, .doubtful = true, .before = &first });
	put("d", "1");
	change(3);
	expect_stats(expect("1a=1 1c=1 1d=1 "), 3, 0, true, 3);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		a_payload_makes_sense_or_is_refused,
		operations_make_sense_or_are_refused,
		what_is_in_a_file_is_no_record,
		changes_follow_the_last_whole_record,
		the_same_key_in_two_tables_is_two,
		without_a_whole_record_there_are_the_changes,
		what_is_missing_is_a_gap_and_what_follows_is_taken,
		a_gap_before_a_whole_record_is_none,
		of_two_with_one_number_the_later_counts,
		numbers_make_the_order_wherever_records_lie,
		one_whose_operations_make_no_sense_is_a_gap,
		what_there_is_no_memory_for_is_no_gap,
		a_long_record_has_all_its_parts,
		parts_of_another_try_are_not_mixed_in,
		a_long_record_that_lacks_a_part_voids_nothing,
		one_that_lacks_its_first_part_says_nothing,
		records_of_another_store_are_left_out,
		the_store_is_that_of_the_last_record,
		one_inside_damaged_bytes_is_believed_where_it_names_the_one_before,
	};

	return scratch_run("table_log", tests, ARRAY_SIZE(tests), setup, teardown);
}
