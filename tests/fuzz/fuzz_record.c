/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Records of the index and the journal, headers and table records of packs, the format file and
 * access control lists from arbitrary bytes. The first byte chooses; what is accepted must be
 * written back as the same bytes, or obey.
 */

#include <string.h>

#include "fs/acl.h"
#include "store/base/util.h"
#include "store/format.h"
#include "store/hash.h"
#include "store/oplog.h"
#include "store/pack.h"
#include "store/store_internal.h"
#include "store/tableop.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	return 0;
}

static void snap(const uint8_t *data, size_t size)
{
	uint8_t again[SNAP_RECORD_MAX];
	struct snap_record rec;

	if (snap_record_decode(data, size, &rec) < 0)
		return;
	MUST(strlen(rec.branch) <= BRANCH_NAME_MAX && strlen(rec.label) <= LABEL_MAX);
	MUST(snap_record_encode(&rec, again) == size && memcmp(again, data, size) == 0);
}

static void branch(const uint8_t *data, size_t size)
{
	uint8_t again[BRANCH_RECORD_BYTES];
	struct branch_record rec;

	if (branch_record_decode(data, size, &rec) < 0 || size == BRANCH_RECORD_BYTES_1)
		return; /* an older version is not written any more */
	branch_record_encode(&rec, again);
	MUST(size == sizeof(again) && memcmp(again, data, size) == 0);
}

static void key(const uint8_t *data, size_t size)
{
	uint8_t again[SNAP_KEY_BYTES];
	uint64_t id;

	if (snap_key_decode(data, size, &id) < 0)
		return;
	snap_key_encode(id, again);
	MUST(size == sizeof(again) && memcmp(again, data, size) == 0);
}

static void format(const uint8_t *data, size_t size)
{
	char again[FORMAT_TEXT_MAX];
	uint8_t uuid[16];

	if (format_decode((const char *)data, size, uuid) != 0)
		return; /* EXISTS: likewise */
	MUST(format_encode(uuid, again) == size && memcmp(again, data, size) == 0);
}

static void header(const uint8_t *data, size_t size)
{
	uint8_t bytes[sizeof(struct record_header_bytes)] = { 0 };
	struct record rec;

	memcpy(bytes, data, size < sizeof(bytes) ? size : sizeof(bytes));
	for (int repaired = 0; repaired < 2; repaired++) {
		const size_t sum_at = offsetof(struct record_header_bytes, sum);

		if (record_header_get(bytes, &rec) == 0)
			MUST(record_span(rec.stored_len) >= sizeof(bytes) + rec.stored_len);
		/* Once more as if the bytes had been meant: no fuzzer guesses a checksum. */
		put_le32(bytes + sum_at, (uint32_t)hash64(bytes, sum_at, 0));
	}
}

static int op(void *arg, bool put, enum index_table which, const void *key_bytes, size_t key_len,
	      const void *value, size_t value_len)
{
	struct index_ops *again = arg;

	MUST(key_len > 0 && which <= INDEX_BRANCHES);
	MUST(index_ops_add(again, put, which, key_bytes, key_len, value, value_len) == 0);
	return 0;
}

/* A table record's head and operations. */
static void table(const uint8_t *data, size_t size)
{
	struct index_ops again = { 0 };
	struct table_part part;

	if (table_part_decode(data, size, &part) == 0) {
		MUST(part.part < part.parts && part.number > 0);
		MUST(part.ops + part.ops_len == data + size);
		data = part.ops;
		size = part.ops_len;
	}
	if (index_ops_each(data, size, op, &again) == 0)
		MUST(again.len == size &&
		     (size == 0 || memcmp(again.bytes, data, size) == 0));
	index_ops_release(&again);
}

static void operation(const uint8_t *data, size_t size)
{
	struct table_op op;
	uint8_t *again;

	if (table_op_decode(data, size, &op) < 0)
		return;
	again = malloc(TABLE_OP_MAX + op.items_len);
	MUST(again);
	MUST(table_op_encode(&op, again) == size && memcmp(again, data, size) == 0);
	free(again);
}

/* Without a stage or chunks: only what refers to no bytes can be applied. */
static void change(const uint8_t *data, size_t size)
{
	struct oplog_head head;

	if (oplog_decode(data, size, &head) < 0)
		return;
	MUST(head.branch_len + head.items_len + 17 == size);
	MUST((const uint8_t *)head.branch + head.branch_len == head.items);
}

/* What is made of a valid list is a valid list that says what was asked for. */
static void acl(const uint8_t *data, size_t size)
{
	uint8_t *list = malloc(size + 1);
	uint32_t perm, mode = 0100750;

	MUST(list);
	memcpy(list, data, size);
	if (acl_check(list, size) == 0) {
		acl_normalize(list, size);
		MUST(acl_check(list, size) == 0);
		(void)acl_inherit(list, size, &mode);
		MUST(acl_check(list, size) == 0 && (mode & ~0750u) == 0100000);
		(void)acl_mode(list, size, &perm);
		MUST(perm == (mode & 0777));
		acl_chmod(list, size, 0640);
		(void)acl_mode(list, size, &perm);
		MUST(acl_check(list, size) == 0 && perm == 0640);
	}
	free(list);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static void (*const kinds[])(const uint8_t *, size_t) = {
		snap, branch, key, format, header, table, operation, change, acl,
	};

	if (size > 0)
		kinds[data[0] % (sizeof(kinds) / sizeof(kinds[0]))](data + 1, size - 1);
	return 0;
}
