/* SPDX-License-Identifier: Apache-2.0 */
#include "store/scan.h"

#include <errno.h>

#include "store/base/err.h"
#include "store/base/os.h"
#include "store/base/util.h"
#include "store/chunk.h"

/*
 * Each multiple of 8 is tried until a header's magic and sum are right. Behind a whole record comes
 * the next; behind a header whose bytes are damaged the very next place is tried, because a record
 * that a crash tore has good ones behind where the file then ended (FORMAT.md, "Packs").
 */

/* Read at a time: a few of the largest records. */
#define WINDOW ((size_t)1 << 20)
#define HEADER sizeof(struct record_header_bytes)

/* The least that a disk refuses. Each time that it is asked for may take seconds. */
#define SECTOR 512

struct window {
	struct packs *packs;
	uint32_t pack;
	uint64_t size; /* of the pack */
	uint64_t off;  /* of the first byte held */
	size_t len;
	uint64_t careful; /* before it is what cannot be read: no sector more is asked for */
	uint8_t *bytes; /* owned; WINDOW + one record */
};

/* How much to read at `at`, where `want` is needed. */
static size_t window_len(const struct window *w, uint64_t at, size_t want)
{
	uint64_t len = WINDOW;

	if (at < w->careful)
		len = (at + want + SECTOR - 1) / SECTOR * SECTOR - at;
	return (size_t)MAX(want, MIN(len, w->size - at));
}

/* `want` bytes at `at` (the file has them), lent. AGAIN: the disk does not give them. */
static int window_get(struct window *w, uint64_t at, size_t want, const uint8_t **ret)
{
	if (at < w->off || at + want > w->off + w->len) {
		size_t len = window_len(w, at, want);
		int r = pack_read(w->packs, w->pack, at, w->bytes, len, NULL);

		if (r < 0 && at >= w->careful) {
			w->careful = at + len;
			len = window_len(w, at, want);
			r = pack_read(w->packs, w->pack, at, w->bytes, len, NULL);
		}
		w->off = at;
		w->len = r < 0 ? 0 : len;
		if (r < 0)
			return err_is_machine(r) ? r : AGAIN;
	}
	*ret = w->bytes + (at - w->off);
	return 0;
}

struct numbers {
	uint32_t *list; /* owned */
	size_t count, capacity;
	uint64_t bytes;
};

static int add_number(void *arg, uint32_t pack, const struct pack_sizes *size)
{
	struct numbers *n = arg;
	int r = os_grow(&n->list, &n->capacity, n->count + 1, sizeof(*n->list));

	if (r < 0)
		return r;
	n->list[n->count++] = pack;
	n->bytes += size->bytes;
	return 0;
}

static int by_number(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

/* The decoded bytes of a record whose header is whole: 0, or AGAIN when they are damaged. */
static int decode(struct window *w, uint64_t at, const struct record *rec, uint8_t *raw)
{
	const uint8_t *payload;
	struct name name;
	int r;

	if (at + HEADER + rec->stored_len > w->size)
		return AGAIN;
	r = window_get(w, at + HEADER, rec->stored_len, &payload);
	if (r != 0)
		return r;
	r = payload_decode(w->packs, rec->codec, payload, rec->stored_len, raw, rec->raw_len);
	if (r == -ENOMEM)
		return r;
	if (r < 0)
		return AGAIN;
	name = name_of(raw, rec->raw_len, rec->salt);
	return name_eq(&name, &rec->name) ? 0 : AGAIN;
}

struct scan {
	int (*fn)(void *arg, const struct scanned *rec);
	void *arg;
	const struct progress *progress;
	uint64_t done, total;
	uint8_t *raw; /* owned; CHUNK_MAX */
	struct scan_stats stats;
};

static int scan_pack(struct scan *s, struct window *w)
{
	uint64_t at = sizeof(struct pack_header_bytes), doubt_end = 0;

	while (at + HEADER <= w->size) {
		struct scanned found = { .pack = w->pack, .off = at, .doubtful = at < doubt_end };
		const uint8_t *header;
		int r = window_get(w, at, HEADER, &header);

		if (r < 0)
			return r;
		if (r == AGAIN) {
			s->stats.unreadable++;
			at = (at / SECTOR + 1) * SECTOR;
			continue;
		}
		if (record_header_get(header, &found.rec) < 0) {
			at += PACK_ALIGN;
			continue;
		}
		r = decode(w, at, &found.rec, s->raw);
		if (r < 0)
			return r;
		found.raw = r == 0 ? s->raw : NULL;
		if (r == 0)
			s->stats.records++;
		else
			s->stats.damaged++;
		r = s->fn(s->arg, &found);
		if (r != 0)
			return r;

		if (found.raw) {
			at += record_span(found.rec.stored_len);
		} else {
			doubt_end = MAX(doubt_end, at + record_span(found.rec.stored_len));
			at += PACK_ALIGN;
		}
		if (s->progress && s->progress->cancel &&
		    __atomic_load_n(s->progress->cancel, __ATOMIC_RELAXED))
			return -ERR_CANCELLED;
		if (s->progress && s->progress->fn)
			s->progress->fn(s->progress->arg, "reading packs", s->done + at, s->total);
	}
	return 0;
}

int packs_scan(struct packs *p, int (*fn)(void *arg, const struct scanned *rec), void *arg,
	       const struct progress *progress, struct scan_stats *ret)
{
	_cleanup_free_ uint8_t *raw = os_malloc(CHUNK_MAX), *bytes = NULL;
	struct scan s = { .fn = fn, .arg = arg, .progress = progress, .raw = raw };
	struct numbers numbers = { 0 };
	int r;

	bytes = os_malloc(WINDOW + HEADER + CHUNK_MAX);
	r = raw && bytes ? packs_each(p, add_number, &numbers) : -ENOMEM;
	if (r == 0 && numbers.count > 0)
		qsort(numbers.list, numbers.count, sizeof(*numbers.list), by_number);
	s.total = numbers.bytes;
	for (size_t i = 0; r == 0 && i < numbers.count; i++) {
		struct window w = { .packs = p, .pack = numbers.list[i], .bytes = bytes };

		r = pack_size(p, w.pack, &w.size);
		if (err_is_machine(r))
			break;
		if (r < 0) {
			r = 0; /* not there any more, or not to be read: nothing in it counts */
			continue;
		}
		r = scan_pack(&s, &w);
		s.stats.packs++;
		s.stats.bytes += w.size;
		s.done += w.size;
	}
	free(numbers.list);
	if (r == 0)
		*ret = s.stats;
	return r;
}
