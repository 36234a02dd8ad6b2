/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Operations on the table of snapshots and branches, as records of the journal (JOURNAL_TABLE). A
 * record says what was decided (numbers, parents, what was kept for undo), not what was asked for:
 * replaying it decides nothing anew.
 */

#include "store/hash.h"
#include "store/store.h"

enum table_kind {
	TABLE_CHECKPOINT = 1, /* snapshot `seq` of the branch's present state became its head */
	TABLE_KEEP = 2,       /* snapshot `snap` is no longer automatic */
	TABLE_SWITCH = 3,     /* the branch continues from `state`; undo has what it left */
	TABLE_CREATE = 4,     /* a branch with `state` */
	TABLE_DROP_BRANCH = 5,
	TABLE_DROP_SNAP = 6,
};

/* How a record names a state. */
enum state_kind {
	STATE_NONE = 0,   /* it cannot: whoever asked waits for the sealer instead */
	STATE_NAME = 1,   /* `root`, which is in the index */
	STATE_SNAP = 2,   /* that of snapshot `snap` */
	STATE_BRANCH = 3, /* that of branch `from` at this moment */
	STATE_ITEMS = 4,  /* `items` (oplog.h), all of them */
};

struct table_op {
	enum table_kind kind;
	enum state_kind state;
	char branch[BRANCH_NAME_MAX + 1];
	char from[BRANCH_NAME_MAX + 1];
	char label[LABEL_MAX + 1];
	uint32_t flags;    /* of the snapshot that is made */
	uint64_t seq;      /* number of the snapshot that is made; 0: none */
	uint64_t snap;     /* id: see kind; SWITCH and CREATE: the head, or 0 */
	uint64_t kept;     /* SWITCH: id of an older snapshot that has the state left, or 0 */
	uint64_t undo;     /* SWITCH: id afterwards, or 0 */
	uint64_t lineage;
	uint64_t changes;
	int64_t time_ns;
	struct name root;
	const uint8_t *items; /* lent */
	size_t items_len;
};

#define TABLE_OP_HEAD 88
/* Without items. */
#define TABLE_OP_MAX (TABLE_OP_HEAD + 2 * BRANCH_NAME_MAX + LABEL_MAX)

/* buf has TABLE_OP_MAX + items_len bytes; the length. */
size_t table_op_encode(const struct table_op *op, uint8_t *buf);
/* -ERR_JOURNAL_DAMAGED. items are lent by buf. */
int table_op_decode(const uint8_t *buf, size_t len, struct table_op *ret);
