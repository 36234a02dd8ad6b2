/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Parts of chunks. A name proves all the bytes of a chunk or none, so who wants 4 KiB of one has to
 * read and hash up to 128 KiB. When that was done once, the hashes of the chunk's blocks are kept,
 * and its other parts are read without the rest.
 *
 * What is kept is as good as the name: it was made of bytes that had it. Where a chunk lies is not:
 * a sweep moves it. What is then read there, or cannot be, is not what the hashes say, and the
 * caller reads the whole.
 */

#include "store/base/err.h"
#include "store/base/os.h"
#include "store/chunk_internal.h"

static struct block_sums *sums_of(struct chunks *c, const struct name *name)
{
	return &c->sums[(name_spread(name) >> 32) % BLOCK_SUMS];
}

void chunk_blocks_keep(struct chunks *c, const struct name *name, const struct chunk_loc *loc,
		       const uint8_t *data)
{
	struct block_sums sums = { .name = *name, .loc = *loc };

	for (uint32_t at = 0; at < loc->raw_len; at += SUM_BYTES)
		sums.sum[at / SUM_BYTES] = hash64(data + at, MIN(SUM_BYTES, loc->raw_len - at), 0);

	LOCK_GUARD(&c->sums_lock);
	*sums_of(c, name) = sums; /* in place of another chunk's, where there is one */
}

void chunk_blocks_forget(struct chunks *c, const struct name *name)
{
	struct block_sums *sums = sums_of(c, name);

	LOCK_GUARD(&c->sums_lock);
	if (name_eq(&sums->name, name))
		sums->loc.raw_len = 0;
}

static bool sums_get(struct chunks *c, const struct name *name, struct block_sums *ret)
{
	const struct block_sums *sums = sums_of(c, name);

	LOCK_GUARD(&c->sums_lock);
	if (!name_eq(&sums->name, name))
		return false;
	*ret = *sums;
	return true;
}

int chunk_blocks_read(struct chunks *c, const struct name *name, uint64_t off, void *buf,
		      size_t len)
{
	void (*hook)(void) = atomic_load_explicit(&c->io_hook, memory_order_relaxed);
	const uint64_t from = off - off % SUM_BYTES;
	_cleanup_free_ uint8_t *around = NULL;
	struct block_sums sums;
	uint8_t *bytes = buf;
	uint64_t to;

	if (!sums_get(c, name, &sums) || off >= sums.loc.raw_len || len > sums.loc.raw_len - off ||
	    len == sums.loc.raw_len)
		return ABSENT;
	to = MIN((off + len + SUM_BYTES - 1) / SUM_BYTES * SUM_BYTES, sums.loc.raw_len);
	if (to - from != len) {
		bytes = around = os_malloc(to - from);
		if (!around)
			return ABSENT;
	}

	if (pack_read(c->packs, sums.loc.pack,
		      sums.loc.off + sizeof(struct record_header_bytes) + from, bytes, to - from,
		      hook) < 0)
		return ABSENT;
	for (uint64_t at = from; at < to; at += SUM_BYTES)
		if (hash64(bytes + (at - from), MIN(SUM_BYTES, to - at), 0) !=
		    sums.sum[at / SUM_BYTES])
			return ABSENT;
	if (around)
		memcpy(buf, around + (off - from), len);
	return 0;
}
