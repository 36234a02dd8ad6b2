/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Every byte of the format file and of the records that the store proper keeps in the index.
 * FORMAT.md describes them; a decoder takes bytes that nobody vouches for and gives everything or
 * an error.
 */

#include <assert.h>
#include <errno.h>
#include <inttypes.h>

#include "store/store_internal.h"

/* ---- format file ---- */

#define FORMAT_MAGIC "plyfs store\n"
#define FORMAT_CHECKSUM "checksum "

static size_t encode_version(unsigned version, const uint8_t uuid[static 16],
			     char buf[static FORMAT_TEXT_MAX])
{
	char hex[33];
	int len;

	for (int i = 0; i < 16; i++)
		snprintf(hex + 2 * i, 3, "%02x", uuid[i]);
	len = snprintf(buf, FORMAT_TEXT_MAX, FORMAT_MAGIC "version %u\nuuid %s\n", version,
		       hex);
	len += snprintf(buf + len, FORMAT_TEXT_MAX - len, FORMAT_CHECKSUM "%016" PRIx64 "\n",
			hash64(buf, len, 0));
	assert(len < FORMAT_TEXT_MAX);
	return len;
}

size_t format_encode(const uint8_t uuid[static 16], char buf[static FORMAT_TEXT_MAX])
{
	return encode_version(FORMAT_VERSION, uuid, buf);
}

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return -1;
}

static int decode_uuid(const char *text, size_t len, uint8_t ret[static 16])
{
	if (len < 5 + 32 || memcmp(text, "uuid ", 5) != 0)
		return -ERR_FORMAT_DAMAGED;
	for (int i = 0; i < 16; i++) {
		int high = hex_digit(text[5 + 2 * i]), low = hex_digit(text[6 + 2 * i]);

		if (high < 0 || low < 0)
			return -ERR_FORMAT_DAMAGED;
		ret[i] = high << 4 | low;
	}
	return 0;
}

/*
 * The version is looked at before the checksum: a newer plyfs may have changed everything after
 * its line, and must still get the answer "newer".
 */
int format_decode(const char *text, size_t len, uint8_t ret_uuid[static 16])
{
	const size_t magic_len = strlen(FORMAT_MAGIC);
	char expected[FORMAT_TEXT_MAX];
	uint64_t version = 0;
	uint8_t uuid[16];
	size_t pos, digits = 0;
	int r;

	if (len < magic_len || memcmp(text, FORMAT_MAGIC, magic_len) != 0)
		return -ERR_NOT_A_STORE;

	pos = magic_len;
	if (len - pos < 8 || memcmp(text + pos, "version ", 8) != 0)
		return -ERR_FORMAT_DAMAGED;
	for (pos += 8; pos < len && text[pos] >= '0' && text[pos] <= '9' && digits < 9; pos++) {
		version = 10 * version + (text[pos] - '0');
		digits++;
	}
	if (digits == 0 || pos >= len || text[pos] != '\n')
		return -ERR_FORMAT_DAMAGED;
	pos++;

	r = decode_uuid(text + pos, len - pos, uuid);

	/* one flipped bit: the checksum is that of our version */
	if (version != FORMAT_VERSION && r == 0 && format_encode(uuid, expected) == len) {
		expected[magic_len + 8] = text[magic_len + 8];
		if (memcmp(expected, text, len) == 0)
			return -ERR_FORMAT_DAMAGED;
	}
	if (version > FORMAT_VERSION)
		return -ERR_FORMAT_NEWER;
	if (version < FORMAT_VERSION_READ)
		return -ERR_FORMAT_OLDER;

	/* There is one way only to write this version down, so the whole must be that. */
	if (r < 0 || encode_version((unsigned)version, uuid, expected) != len ||
	    memcmp(expected, text, len) != 0)
		return -ERR_FORMAT_DAMAGED;

	memcpy(ret_uuid, uuid, sizeof(uuid));
	return version < FORMAT_VERSION ? EXISTS : 0;
}

/* ---- snapshot ids ---- */

#define HALF_MASK 0xffffff /* 24 bits */

/*
 * Four Feistel rounds are a permutation whatever the round function is. 0 means "no snapshot", so
 * the one number that lands there takes the place of the image of 0: cycle walking, still a
 * permutation of the numbers from 1 on.
 */
static uint64_t permute(uint64_t key, uint64_t x)
{
	uint32_t left = x >> 24 & HALF_MASK, right = x & HALF_MASK;

	for (uint8_t round = 0; round < 4; round++) {
		uint8_t bytes[5] = { round };
		uint32_t mixed;

		put_le32(bytes + 1, right);
		mixed = (left ^ hash64(bytes, sizeof(bytes), key)) & HALF_MASK;
		left = right;
		right = mixed;
	}
	return (uint64_t)left << 24 | right;
}

uint64_t snap_id_of(uint64_t key, uint64_t seq)
{
	uint64_t id = permute(key, seq);

	return id ? id : permute(key, 0);
}

void snap_key_encode(uint64_t id, uint8_t buf[static SNAP_KEY_BYTES])
{
	for (int i = 0; i < SNAP_KEY_BYTES; i++)
		buf[i] = id >> (56 - 8 * i);
}

int snap_key_decode(const void *buf, size_t len, uint64_t *ret_id)
{
	const uint8_t *p = buf;
	uint64_t id = 0;

	if (len != SNAP_KEY_BYTES)
		return -ERR_SNAP_DAMAGED;
	for (int i = 0; i < SNAP_KEY_BYTES; i++)
		id = id << 8 | p[i];
	if (id == 0 || id > SNAP_SEQ_MAX)
		return -ERR_SNAP_DAMAGED;

	*ret_id = id;
	return 0;
}

/* ---- snapshot records ---- */

size_t snap_record_encode(const struct snap_record *rec, uint8_t buf[static SNAP_RECORD_MAX])
{
	size_t branch_len = strlen(rec->branch), label_len = strlen(rec->label);

	buf[0] = 1;
	buf[1] = branch_len;
	buf[2] = label_len;
	buf[3] = 0;
	put_le32(buf + 4, rec->flags);
	put_le64(buf + 8, rec->seq);
	put_le64(buf + 16, rec->parent);
	put_le64(buf + 24, rec->lineage);
	put_le64(buf + 32, rec->time_ns);
	memcpy(buf + 40, rec->root.b, NAME_BYTES);
	memcpy(buf + SNAP_RECORD_HEAD, rec->branch, branch_len);
	memcpy(buf + SNAP_RECORD_HEAD + branch_len, rec->label, label_len);
	return SNAP_RECORD_HEAD + branch_len + label_len;
}

int snap_record_decode(const void *buf, size_t len, struct snap_record *ret)
{
	const uint8_t *p = buf;
	struct snap_record rec = { 0 };
	size_t branch_len, label_len;

	if (!p || len < SNAP_RECORD_HEAD || p[0] != 1 || p[3] != 0)
		return -ERR_SNAP_DAMAGED;
	branch_len = p[1];
	label_len = p[2];
	if (branch_len > BRANCH_NAME_MAX || len != SNAP_RECORD_HEAD + branch_len + label_len)
		return -ERR_SNAP_DAMAGED;
	if (memchr(p + SNAP_RECORD_HEAD, 0, branch_len + label_len))
		return -ERR_SNAP_DAMAGED;

	rec.flags = get_le32(p + 4);
	rec.seq = get_le64(p + 8);
	rec.parent = get_le64(p + 16);
	rec.lineage = get_le64(p + 24);
	rec.time_ns = get_le64(p + 32);
	memcpy(rec.root.b, p + 40, NAME_BYTES);
	memcpy(rec.branch, p + SNAP_RECORD_HEAD, branch_len);
	memcpy(rec.label, p + SNAP_RECORD_HEAD + branch_len, label_len);
	if (rec.seq == 0 || rec.seq > SNAP_SEQ_MAX)
		return -ERR_SNAP_DAMAGED;

	*ret = rec;
	return 0;
}

/* ---- branch records ---- */

void branch_record_encode(const struct branch_record *rec, uint8_t buf[static BRANCH_RECORD_BYTES])
{
	memset(buf, 0, 8);
	buf[0] = 2;
	put_le64(buf + 8, rec->head);
	put_le64(buf + 16, rec->undo);
	put_le64(buf + 24, rec->lineage);
	put_le64(buf + 32, rec->changes);
	memcpy(buf + 40, rec->root.b, NAME_BYTES);
	put_le64(buf + 56, rec->lsn);
}

int branch_record_decode(const void *buf, size_t len, struct branch_record *ret)
{
	static const uint8_t zero[7];
	const uint8_t *p = buf;

	if (!p || len < BRANCH_RECORD_BYTES_1 || memcmp(p + 1, zero, sizeof(zero)) != 0)
		return -ERR_BRANCH_DAMAGED;
	if (!(p[0] == 1 && len == BRANCH_RECORD_BYTES_1) &&
	    !(p[0] == 2 && len == BRANCH_RECORD_BYTES))
		return -ERR_BRANCH_DAMAGED;

	*ret = (struct branch_record){
		.head = get_le64(p + 8),
		.undo = get_le64(p + 16),
		.lineage = get_le64(p + 24),
		.changes = get_le64(p + 32),
		.lsn = p[0] == 2 ? get_le64(p + 56) : 0,
	};
	memcpy(ret->root.b, p + 40, NAME_BYTES);
	return 0;
}
