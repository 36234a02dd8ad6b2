/* SPDX-License-Identifier: Apache-2.0 */

/* The bytes of table operations: one layout for all kinds, FORMAT.md has it. */

#include "store/tableop.h"

#include "store/base/err.h"
#include "store/base/util.h"

size_t table_op_encode(const struct table_op *op, uint8_t *buf)
{
	size_t branch = strlen(op->branch), from = strlen(op->from), label = strlen(op->label);
	uint8_t *p = buf + TABLE_OP_HEAD;

	buf[0] = (uint8_t)op->kind;
	buf[1] = (uint8_t)op->state;
	buf[2] = (uint8_t)branch;
	buf[3] = (uint8_t)from;
	buf[4] = (uint8_t)label;
	memset(buf + 5, 0, 3);
	put_le32(buf + 8, op->flags);
	put_le32(buf + 12, 0);
	put_le64(buf + 16, op->seq);
	put_le64(buf + 24, op->snap);
	put_le64(buf + 32, op->kept);
	put_le64(buf + 40, op->undo);
	put_le64(buf + 48, op->lineage);
	put_le64(buf + 56, op->changes);
	put_le64(buf + 64, (uint64_t)op->time_ns);
	memcpy(buf + 72, op->root.b, NAME_BYTES);
	memcpy(p, op->branch, branch);
	memcpy(p + branch, op->from, from);
	memcpy(p + branch + from, op->label, label);
	p += branch + from + label;
	if (op->items_len > 0)
		memcpy(p, op->items, op->items_len);
	return (size_t)(p - buf) + op->items_len;
}

int table_op_decode(const uint8_t *buf, size_t len, struct table_op *ret)
{
	size_t branch, from, label;
	const uint8_t *p = buf + TABLE_OP_HEAD;

	if (len < TABLE_OP_HEAD)
		return -ERR_JOURNAL_DAMAGED;
	branch = buf[2];
	from = buf[3];
	label = buf[4];
	if (buf[0] < TABLE_CHECKPOINT || buf[0] > TABLE_DROP_SNAP || buf[1] > STATE_ITEMS ||
	    branch > BRANCH_NAME_MAX || from > BRANCH_NAME_MAX ||
	    len - TABLE_OP_HEAD < branch + from + label)
		return -ERR_JOURNAL_DAMAGED;
	if (memchr(p, 0, branch + from + label) || buf[5] || buf[6] || buf[7] ||
	    get_le32(buf + 12) != 0)
		return -ERR_JOURNAL_DAMAGED;

	*ret = (struct table_op){
		.kind = buf[0],
		.state = buf[1],
		.flags = get_le32(buf + 8),
		.seq = get_le64(buf + 16),
		.snap = get_le64(buf + 24),
		.kept = get_le64(buf + 32),
		.undo = get_le64(buf + 40),
		.lineage = get_le64(buf + 48),
		.changes = get_le64(buf + 56),
		.time_ns = (int64_t)get_le64(buf + 64),
		.items = p + branch + from + label,
		.items_len = len - TABLE_OP_HEAD - branch - from - label,
	};
	memcpy(ret->root.b, buf + 72, NAME_BYTES);
	memcpy(ret->branch, p, branch);
	memcpy(ret->from, p + branch, from);
	memcpy(ret->label, p + branch + from, label);
	return 0;
}
