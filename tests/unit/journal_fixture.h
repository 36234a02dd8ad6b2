/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A journal in a scratch directory, and what is read of it. */

#include "store/base/fault.h"
#include "store/format.h"
#include "store/journal.h"
#include "store/journal_internal.h"
#include "tests/unit/segments.h"

static struct journal *journal;
static uint64_t seen[20000];
static unsigned n_seen;
static struct journal_found found;
static char copies[100]; /* the bytes of marks that were handed out */

static int see(void *arg, uint64_t lsn, enum journal_kind kind, const uint8_t *payload, size_t len)
{
	const struct journal_mark_bytes *mark = (const void *)payload;
	unsigned wrong = 0;

	if (kind == JOURNAL_MARK) {
		ck_assert_uint_eq(n_seen, 0); /* before all others */
		ck_assert_uint_gt(len, sizeof(*mark));
		ck_assert_uint_eq(get_le32(mark->file), 7);
		ck_assert_uint_eq(get_le32(mark->place), 4096);
		strncat(copies, (const char *)mark->bytes, len - sizeof(*mark));
		return 0;
	}
	ck_assert_int_eq(kind, JOURNAL_CHANGE);
	ck_assert_uint_ge(len, 8);
	ck_assert_uint_lt(n_seen, ARRAY_SIZE(seen));
	ck_assert(n_seen == 0 || lsn > 0);
	seen[n_seen++] = get_le64(payload);
	for (size_t i = 8; i < len; i++)
		wrong += payload[i] != (uint8_t)(get_le64(payload) + i);
	ck_assert_uint_eq(wrong, 0);
	return 0;
}

_unused_ static void journal_up(void)
{
	const struct noter noter = { .fn = scratch_note, .arg = &scratch };

	n_seen = 0;
	copies[0] = '\0';
	ck_ok(journal_open(scratch.dir_fd, &noter, &journal));
	ck_ok(journal_read(journal, see, NULL, &found));
	journal_start(journal, 0);
}

_unused_ static void journal_down(void)
{
	journal_close(journal);
	journal = NULL;
}

_unused_ static void setup(void)
{
	scratch_make(&scratch);
	journal_up();
}

_unused_ static void teardown(void)
{
	fault_disarm();
	unsetenv("PLYFS_TEST_BOOT_ID");
	if (journal)
		journal_down();
	scratch_remove(&scratch);
}

_unused_ static uint64_t add(uint64_t n, size_t len)
{
	static uint8_t payload[100000];

	put_le64(payload, n);
	for (size_t i = 8; i < len; i++)
		payload[i] = (uint8_t)(n + i);
	ck_ok(journal_reserve(journal, len + RECORD_OVERHEAD, false));
	return journal_append(journal, JOURNAL_CHANGE, payload, len, len + RECORD_OVERHEAD, NULL,
			      NULL, NULL);
}

_unused_ static void expect_seen(uint64_t from, uint64_t to)
{
	ck_assert_uint_eq(n_seen, to - from);
	for (unsigned i = 0; i < n_seen; i++)
		ck_assert_uint_eq(seen[i], from + i);
}
