/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Reading segments back: what an open finds in them, where it ends and whether that is damage; and
 * the records that are there by now. The invariants are in journal_internal.h.
 */

#include "store/journal_internal.h"

#include <errno.h>
#include <fcntl.h>

#include "store/base/err.h"
#include "store/base/os.h"
#include "store/base/util.h"

int segment_load(struct journal *j, const struct segment *s, uint8_t **ret)
{
	_cleanup_free_ uint8_t *bytes = NULL;
	_cleanup_close_ int fd = -1;
	char name[16];
	int r;

	bytes = os_malloc(s->size);
	if (!bytes)
		return -ENOMEM;
	segment_name(s->number, name);
	r = os_openat(j->dir_fd, name, O_RDONLY, 0, &fd);
	if (r == 0)
		r = os_pread_full(fd, bytes, s->size, 0);
	if (r != 0)
		return note(&j->noter, r < 0 ? r : -EIO,
			    "reading journal segment %s: %s; 'plyfs check --repair' gives up what "
			    "cannot be read of it",
			    name, err_str(r < 0 ? r : -EIO));
	*ret = TAKE_PTR(bytes);
	return 0;
}

static bool of_this_boot(const struct journal *j, const struct segment *s)
{
	return memcmp(s->boot, j->boot, BOOT_BYTES) == 0;
}

/*
 * The record behind number `before` should be at `at` and is not whole; whole ones with numbers
 * greater than `last` may follow in this segment. Are they what damage left? Under the boot that
 * wrote them, yes. The loss of power leaves some by itself, but with no more marks than `flying`
 * (J7).
 */
static bool is_damage(const struct journal *j, const struct segment *s, const uint8_t *bytes,
		      size_t at, uint64_t before, uint64_t last, unsigned flying)
{
	uint64_t hashed = 0;
	unsigned marks = 0;
	enum journal_kind kind;
	uint64_t lsn;
	size_t len;

	for (size_t begin = at; at + RECORD_HEADER <= s->size; at += 8) {
		const struct journal_record_bytes *b = (const void *)(bytes + at);

		lsn = get_le64(b->lsn);
		len = get_le32(b->len);
		if (lsn <= MAX(before, last) || lsn - before > (at - begin) / RECORD_HEADER + 1 ||
		    len > s->size - at - RECORD_HEADER)
			continue; /* so many cannot be in between (J1), so much not behind it */
		hashed += len;
		if (hashed > HASHED_MAX * s->size)
			return false;
		if (record_at(s, bytes, at, &lsn, &kind, &len) == 0)
			continue;
		marks += kind == JOURNAL_MARK;
		if (of_this_boot(j, j->newest) || marks > flying)
			return true;
	}
	return false;
}

struct reader {
	struct journal *j;
	int (*fn)(void *arg, uint64_t lsn, enum journal_kind kind, const uint8_t *payload,
		  size_t len);
	void *arg;
	const struct segment *first;  /* that was not given up as a whole */
	const struct segment *before; /* the one that is read now; NULL: none */
	const uint8_t *boot; /* of the last one that was read; NULL: none was */
	uint64_t end;    /* no record beyond it is handed out */
	uint64_t kept;   /* the last number up to `end` that a segment leads to */
	uint64_t synced; /* the greatest mark */
	uint64_t whole_mark; /* the last one, or a later place that ends copies as well (J10) */
	uint64_t beyond; /* whole records behind `end` */
	bool copies;     /* hands out the copies that count, and nothing else */
	struct journal_found *found;
};

/* As a whole. One that begins where it ends is empty, but goes on to the next. */
static bool given_up(const struct segment *s)
{
	return s->base > s->limit;
}

static void found_damage(struct reader *rd, struct segment *s, size_t at)
{
	rd->found->damaged = true;
	rd->found->segment = s->number;
	rd->j->damaged = s;
	rd->j->damaged_at = at;
}

/* What comes before s is not there: a segment, or the end of one. */
static void found_gap(struct reader *rd, struct segment *s, size_t at)
{
	found_damage(rd, s, at);
	rd->found->behind = s == rd->first;
	rd->found->missing = rd->found->behind || rd->before->number + 1 < s->number;
	rd->found->segment = rd->found->behind ? s->number - 1 :
						 rd->before->number + rd->found->missing;
}

static int read_mark(struct reader *rd, struct segment *s, uint64_t lsn, const uint8_t *payload,
		     size_t len)
{
	uint64_t marked = len >= 8 ? get_le64(payload) : 0;

	rd->synced = MAX(rd->synced, marked + 1 == lsn ? lsn : marked);
	if (len < sizeof(struct journal_mark_bytes)) {
		rd->whole_mark = MAX(rd->whole_mark, lsn);
		return 0;
	}
	s->copied = lsn;
	return rd->copies && lsn > rd->whole_mark ?
		       rd->fn(rd->arg, lsn, JOURNAL_MARK, payload, len) : 0;
}

/* *last: the last record so far. 0, END: nothing behind this segment belongs to the journal. */
static int read_segment(struct reader *rd, struct segment *s, uint64_t *last)
{
	_cleanup_free_ uint8_t *bytes = NULL;
	size_t at = sizeof(struct journal_header_bytes), len, span;
	enum journal_kind kind;
	uint64_t lsn;
	int r;

	if (given_up(s))
		return 0;
	if (s == rd->first && s->after > rd->j->begins) {
		found_gap(rd, s, at);
		return END;
	}
	r = segment_load(rd->j, s, &bytes);
	if (r < 0)
		return r;
	if (s != rd->first && s->after != *last) {
		if (of_this_boot(rd->j, rd->j->newest) ||
		    is_damage(rd->j, s, bytes, at, s->base, *last, 0))
			found_gap(rd, s, at);
		return END;
	}
	*last = s->last = s->base;
	if (s->base <= rd->end)
		rd->kept = s->base;
	rd->synced = MAX(rd->synced, s->synced);
	if (rd->boot && memcmp(s->boot, rd->boot, BOOT_BYTES) != 0)
		rd->whole_mark = MAX(rd->whole_mark, s->base);
	rd->boot = s->boot;

	for (; (span = record_at(s, bytes, at, &lsn, &kind, &len)) > 0; at += span) {
		if (lsn != *last + 1 || lsn > s->limit)
			break;
		*last = s->last = lsn;
		if (lsn <= rd->end)
			rd->kept = lsn;
		if (kind == JOURNAL_MARK) {
			r = read_mark(rd, s, lsn, bytes + at + RECORD_HEADER, len);
			if (r < 0)
				return r;
			continue;
		}
		if (rd->copies)
			continue;
		if (lsn > rd->end) {
			rd->beyond++;
			continue;
		}
		rd->found->records++;
		r = rd->fn ? rd->fn(rd->arg, lsn, kind, bytes + at + RECORD_HEADER, len) : 0;
		if (r < 0)
			return r;
	}
	s->used = at;
	if (*last < s->limit && is_damage(rd->j, s, bytes, at, *last, *last, 1)) {
		found_damage(rd, s, at);
		return END;
	}
	return 0;
}

static int read_all(struct reader *rd, uint64_t *ret_last)
{
	uint64_t last = rd->first ? rd->first->base : 0;
	int r;

	*rd->found = (struct journal_found){ 0 };
	rd->beyond = rd->kept = 0;
	rd->before = NULL;
	rd->boot = NULL;
	for (struct segment *s = rd->j->oldest; s; s = s->next) {
		r = read_segment(rd, s, &last);
		if (r < 0)
			return r;
		if (r == END)
			break;
		rd->before = s;
	}
	*ret_last = last;
	return 0;
}

void journal_follows(struct journal *j, uint64_t covered)
{
	j->begins = covered;
}

int journal_read(struct journal *j,
		 int (*fn)(void *arg, uint64_t lsn, enum journal_kind kind, const uint8_t *payload,
			   size_t len),
		 void *arg, struct journal_found *ret)
{
	struct reader rd = { .j = j, .end = UINT64_MAX, .arg = arg, .found = ret };
	uint64_t last, limit;
	bool power_went;
	int r;

	for (struct segment *s = j->oldest; s; s = s->next) {
		s->limit = UINT64_MAX;
		for (struct segment *later = s->next; later; later = later->next)
			s->limit = MIN(s->limit, later->after);
	}
	for (rd.first = j->oldest; rd.first && given_up(rd.first); rd.first = rd.first->next)
		;

	/* Once to know how far, once for what the records refer to, once to do them. */
	power_went = j->newest && !of_this_boot(j, j->newest);
	r = read_all(&rd, &last);
	if (r < 0)
		return r;
	limit = last;
	if (rd.first && power_went) /* what the first goes on after is covered */
		limit = MAX(MIN(last, rd.synced), rd.first->base);
	rd.fn = fn;
	rd.copies = power_went;
	r = power_went ? read_all(&rd, &last) : 0;
	if (r < 0)
		return r;
	rd.copies = false;
	rd.end = limit;
	r = read_all(&rd, &last);
	if (r < 0)
		return r;

	ret->lost = rd.beyond;
	limit = j->read_last = rd.kept; /* not a number that no segment leads to (J3) */
	/* Else the last mark may be there, and who made it was killed before that was synced. */
	j->synced = power_went ? limit : 0;
	j->whole_mark = rd.whole_mark;
	j->lsn = limit;
	for (struct segment *s = j->oldest; s; s = s->next) {
		s->last = MIN(s->last, limit); /* what was given up goes with what is covered */
		if (power_went)
			s->copied = 0; /* they are in place now */
	}
	return 0;
}

/* The first segment behind `number` with a record behind `from`, as it is now. */
static bool find_segment(struct journal *j, uint32_t number, uint64_t from, struct segment *ret)
{
	LOCK_GUARD(&j->lock);

	for (struct segment *s = j->oldest; s; s = s->next)
		if (s->number > number && s->last > from) {
			*ret = *s;
			return true;
		}
	return false;
}

int journal_each(struct journal *j, uint64_t from,
		 int (*fn)(void *arg, uint64_t lsn, enum journal_kind kind, const uint8_t *payload,
			   size_t len),
		 void *arg)
{
	struct segment s = { .number = 0 };

	while (find_segment(j, s.number, from, &s)) {
		_cleanup_free_ uint8_t *bytes = NULL;
		size_t at = sizeof(struct journal_header_bytes), len, span;
		uint64_t lsn = s.base;
		enum journal_kind kind;
		int r;

		r = segment_load(j, &s, &bytes);
		if (r < 0)
			return r;
		for (; lsn < s.last; at += span) {
			span = record_at(&s, bytes, at, &lsn, &kind, &len);
			if (span == 0)
				return -ERR_JOURNAL_DAMAGED; /* it was whole before */
			if (lsn <= from || kind == JOURNAL_MARK)
				continue;
			r = fn(arg, lsn, kind, bytes + at + RECORD_HEADER, len);
			if (r < 0)
				return r;
		}
	}
	return 0;
}
