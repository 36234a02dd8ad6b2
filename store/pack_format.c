/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The bytes of pack and record headers, which FORMAT.md describes: writing them, and reading what
 * nobody vouches for. Payloads are pack.c's and codec.c's.
 */

#include "store/pack.h"

#include "store/base/err.h"
#include "store/base/util.h"
#include "store/chunk.h"

uint64_t record_span(uint32_t stored_len)
{
	uint64_t n = sizeof(struct record_header_bytes) + (uint64_t)stored_len;

	return (n + PACK_ALIGN - 1) & ~(uint64_t)(PACK_ALIGN - 1);
}

void pack_header_put(struct pack_header_bytes *b, uint32_t pack)
{
	*b = (struct pack_header_bytes){ 0 };
	memcpy(b->magic, PACK_MAGIC, sizeof(b->magic));
	put_le16(b->version, PACK_VERSION);
	put_le32(b->number, pack);
	put_le64(b->sum, hash64(b, offsetof(struct pack_header_bytes, sum), 0));
}

int pack_header_get(const struct pack_header_bytes *b, uint32_t pack)
{
	if (memcmp(b->magic, PACK_MAGIC, sizeof(b->magic)) != 0 ||
	    get_le64(b->sum) != hash64(b, offsetof(struct pack_header_bytes, sum), 0) ||
	    get_le16(b->version) != PACK_VERSION || get_le32(b->number) != pack)
		return -ERR_PACK_HEADER;
	return 0;
}

void record_header_put(struct record_header_bytes *b, const struct record *rec)
{
	*b = (struct record_header_bytes){ .kind = rec->kind, .codec = rec->codec };
	memcpy(b->magic, RECORD_MAGIC, sizeof(b->magic));
	put_le32(b->salt, rec->salt);
	put_le32(b->stored_len, rec->stored_len);
	put_le32(b->raw_len, rec->raw_len);
	memcpy(b->name, rec->name.b, NAME_BYTES);
	put_le32(b->sum, (uint32_t)hash64(b, offsetof(struct record_header_bytes, sum), 0));
}

int record_header_get(const uint8_t bytes[static sizeof(struct record_header_bytes)],
		      struct record *ret)
{
	struct record_header_bytes b;
	struct record rec;

	memcpy(&b, bytes, sizeof(b));
	if (memcmp(b.magic, RECORD_MAGIC, sizeof(b.magic)) != 0 ||
	    get_le32(b.sum) != (uint32_t)hash64(&b, offsetof(struct record_header_bytes, sum), 0))
		return -ERR_RECORD_DAMAGED;

	rec = (struct record){
		.kind = b.kind,
		.codec = b.codec,
		.salt = get_le32(b.salt),
		.stored_len = get_le32(b.stored_len),
		.raw_len = get_le32(b.raw_len),
	};
	memcpy(rec.name.b, b.name, NAME_BYTES);
	if (rec.kind < CHUNK_DATA || rec.kind > RECORD_TABLE || rec.codec > CODEC_ZSTD ||
	    rec.raw_len < 1 || rec.raw_len > CHUNK_MAX || rec.stored_len < 1 ||
	    rec.stored_len > rec.raw_len)
		return -ERR_RECORD_DAMAGED;

	*ret = rec;
	return 0;
}
