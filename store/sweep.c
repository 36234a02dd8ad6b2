/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>

#include "store/base/err.h"
#include "store/base/os.h"
#include "store/base/util.h"
#include "store/chunk_internal.h"
#include "store/room.h"

/*
 * The sweep: what is not alive leaves the index, then packs give their space back.
 *
 *   1. An entry leaves the index (committed) before its bytes leave the disk.
 *   2. A record that moves is durable in its new pack before the index names the new place, and the
 *      index names it (committed) before the old pack is unlinked.
 *   3. A pack is unlinked only when no entry of the index can lie in it: while any entry cannot be
 *      read in the index, or any record of the pack could not be read, it stays, so that nothing is
 *      lost that a repair could still find.
 *   4. Chunks may be put meanwhile, by any thread. A put writes its name down in the step that
 *      looks it up, and what is written down stays in the index; what is stored goes to packs
 *      begun since the collection was, which its sweep leaves alone. So put_lock is held while what
 *      is dead is compared with that and leaves the index, and while records are copied: giving up
 *      a copy must cut off no other record.
 *
 * Steps: list packs and entries - delete dead entries - unlink packs without live ones - rewrite
 * packs more than a quarter dead, one after another, those with least to copy first, so that a full
 * disk gains room early.
 *
 * Where a pack cannot be rewritten for want of room (the copy comes before the old pack goes), its
 * dead records are punched out of it instead: the holes give whole blocks back, and nothing moves.
 * Where the filesystem makes no holes, it is emptied from its end on, a little at a time.
 *
 * A reader that looked up a place before step 2 and opens the pack after it finds it missing and
 * looks up again (chunk_load). A crash leaves unnamed records or whole unnamed packs: the next
 * sweep counts them as dead.
 */

/* Entries changed in one transaction: some 2 MiB of dirty pages, a few milliseconds. */
#define BATCH 20000

/* Rewriting pays when more than 1 in DEAD_SHARE bytes come back. */
#define DEAD_SHARE 4

struct swept {
	uint32_t pack;
	struct pack_sizes size;
	uint64_t live;  /* bytes of records alive */
	bool rewrite;   /* or remove, when nothing in it is alive */
};

struct move {
	struct name name;
	struct chunk_loc from, to;
	uint64_t live; /* of its pack: the order of packs */
	bool stuck;    /* its record could not be read */
};

struct sweep {
	struct chunks *c;
	const struct sweeper *sweeper;
	struct sweep_stats stats;

	struct swept *packs; /* sorted by number, owned */
	size_t n_packs, packs_room;
	struct name *dead; /* owned */
	size_t n_dead, dead_room;
	struct move *moves; /* owned */
	size_t n_moves, moves_room;
	uint64_t damaged; /* entries whose place is unknown */
	uint64_t done, total; /* bytes copied and to copy */
	uint64_t appended;    /* to the packs, when the sweep began */
};

static void sweep_release(struct sweep *s)
{
	free(s->packs);
	free(s->dead);
	free(s->moves);
}

/* Room for one more element. */
static int reserve(void **array, size_t n, size_t *room, size_t element)
{
	size_t more = *room > 0 ? *room * 2 : 64;
	void *bigger;

	if (n < *room)
		return 0;
	bigger = os_realloc(*array, more * element);
	if (!bigger)
		return -ENOMEM;
	*array = bigger;
	*room = more;
	return 0;
}

/* ---- taking stock ---- */

static int add_pack(void *arg, uint32_t pack, const struct pack_sizes *size)
{
	struct sweep *s = arg;
	int r;

	s->stats.bytes_before += size->on_disk;
	if (pack >= s->c->collect_before)
		return 0;
	r = reserve((void **)&s->packs, s->n_packs, &s->packs_room, sizeof(*s->packs));
	if (r < 0)
		return r;
	s->packs[s->n_packs++] = (struct swept){ .pack = pack, .size = *size };
	return 0;
}

static int swept_cmp(const void *a, const void *b)
{
	uint32_t x = ((const struct swept *)a)->pack, y = ((const struct swept *)b)->pack;

	return x < y ? -1 : x > y;
}

static struct swept *find_pack(struct sweep *s, uint32_t pack)
{
	struct swept key = { .pack = pack };

	if (s->n_packs == 0)
		return NULL;
	return bsearch(&key, s->packs, s->n_packs, sizeof(*s->packs), swept_cmp);
}

/* loc NULL: a damaged entry. */
static void count_live(struct sweep *s, const struct chunk_loc *loc)
{
	struct swept *pack;

	s->stats.chunks_kept++;
	if (!loc) {
		s->damaged++;
		return;
	}
	pack = loc->codec != CODEC_LOST ? find_pack(s, loc->pack) : NULL;
	if (pack)
		pack->live += record_span(loc->stored_len);
}

static int take_stock(void *arg, const struct name *name, const struct chunk_loc *loc)
{
	struct sweep *s = arg;
	int r;

	/* A damaged one stays, for its key may be what is damaged: of a chunk that is alive. */
	if (loc && !s->sweeper->live(s->sweeper->arg, name)) {
		r = reserve((void **)&s->dead, s->n_dead, &s->dead_room, sizeof(*s->dead));
		if (r < 0)
			return r;
		s->dead[s->n_dead++] = *name;
		return 0;
	}
	count_live(s, loc);
	return 0;
}

static void choose(struct sweep *s)
{
	if (s->damaged > 0) {
		(void)note(&s->c->noter, 0,
			   "sweep: %" PRIu64 " damaged index entr%s; keeping all packs",
			   s->damaged, s->damaged == 1 ? "y" : "ies");
		return;
	}
	for (size_t i = 0; i < s->n_packs; i++) {
		struct swept *pack = &s->packs[i];
		uint64_t used = pack->live + sizeof(struct pack_header_bytes);
		uint64_t on_disk = pack->size.on_disk;

		/* padding that a crash cut off may make `used` the larger one */
		if (on_disk > used && on_disk - used > on_disk / DEAD_SHARE)
			pack->rewrite = true;
		if (pack->live == 0)
			pack->rewrite = true;
		if (pack->rewrite)
			s->total += pack->live;
	}
}

/* ---- changing the index ---- */

/* Runs change(s, txn, from, to) for elements 0..n in transactions; a full map grows and repeats. */
static int in_batches(struct sweep *s, size_t from, size_t n,
		      int (*change)(struct sweep *s, struct index_txn *txn, size_t from, size_t to))
{
	while (from < n) {
		_cleanup_(index_abortp) struct index_txn *txn = NULL;
		size_t to = MIN(n, from + BATCH);
		int r;

		r = index_begin(s->c->index, &txn);
		if (r < 0)
			return r;
		r = change(s, txn, from, to);
		if (r == 0)
			r = index_commit(&txn);
		if (r == -ERR_INDEX_FULL) {
			index_abortp(&txn);
			r = index_grow(s->c->index);
			if (r < 0)
				return r;
			continue;
		}
		if (r < 0)
			return r;
		from = to;
	}
	return 0;
}

static int delete_dead(struct sweep *s, struct index_txn *txn, size_t from, size_t to)
{
	for (size_t i = from; i < to; i++) {
		int r = index_del_chunk(txn, &s->dead[i]);

		if (r < 0)
			return r;
	}
	return 0;
}

static int name_moved(struct sweep *s, struct index_txn *txn, size_t from, size_t to)
{
	for (size_t i = from; i < to; i++) {
		struct move *m = &s->moves[i];
		int r;

		if (m->stuck)
			continue;
		r = index_put_chunk(txn, &m->name, &m->to);
		if (r < 0)
			return r;
	}
	return 0;
}

/* Put since: alive. Under put_lock; those that are dead come first then, *ret_n of them. */
static int keep_asked(struct sweep *s, size_t from, size_t to, size_t *ret_n)
{
	size_t n = from;

	for (size_t i = from; i < to; i++) {
		struct chunk_loc loc;
		int r;

		if (nameset_find(&s->c->asked, &s->dead[i]) == NAMESET_NONE) {
			s->dead[n++] = s->dead[i];
			continue;
		}
		r = index_find_chunk(s->c->index, &s->dead[i], &loc);
		if (r < 0 && r != -ERR_INDEX_DAMAGED)
			return r;
		count_live(s, r == 0 ? &loc : NULL);
	}
	*ret_n = n - from;
	return 0;
}

static int delete_step(struct sweep *s, size_t from, size_t to)
{
	size_t n;
	int r;

	LOCK_GUARD(&s->c->put_lock);
	r = keep_asked(s, from, to, &n);
	if (r == 0)
		r = in_batches(s, from, from + n, delete_dead);
	if (r < 0)
		return r;
	for (size_t i = from; i < from + n; i++)
		chunk_uncache(s->c, &s->dead[i]);
	s->stats.chunks_dropped += n;
	return 0;
}

static void between(struct sweep *s)
{
	if (s->sweeper->between)
		s->sweeper->between(s->sweeper->arg);
}

/* With no lock: who looks may take his time. */
static int progress(struct sweep *s)
{
	const struct sweeper *to = s->sweeper;

	return to->progress ? to->progress(to->arg, MIN(s->done, s->total), s->total) : 0;
}

static int delete_all_dead(struct sweep *s)
{
	for (size_t from = 0; from < s->n_dead; from += BATCH) {
		int r = delete_step(s, from, MIN(s->n_dead, from + BATCH));

		if (r < 0)
			return r;
		between(s);
	}
	return 0;
}

/* ---- packs ---- */

static int remove_pack(struct sweep *s, uint32_t pack)
{
	int r;

	r = pack_remove(s->c->packs, pack);
	if (r < 0)
		return note(&s->c->noter, r, "sweep: removing pack %08" PRIx32 ": %s", pack,
			    err_str(r));
	room_freed(chunks_room(s->c));
	s->stats.packs_removed++;
	return 0;
}

static int remove_empty(struct sweep *s)
{
	int r;

	for (size_t i = 0; i < s->n_packs; i++) {
		if (!s->packs[i].rewrite)
			continue;
		pack_retire(s->c->packs, s->packs[i].pack);
		if (s->packs[i].live > 0)
			continue;
		r = remove_pack(s, s->packs[i].pack);
		if (r < 0)
			return r;
	}
	return 0;
}

static int list_moves(void *arg, const struct name *name, const struct chunk_loc *loc)
{
	struct sweep *s = arg;
	struct swept *pack = loc && loc->codec != CODEC_LOST ? find_pack(s, loc->pack) : NULL;
	int r;

	if (!loc && s->damaged == 0)
		return note(&s->c->noter, -ERR_INDEX_DAMAGED,
			    "sweep: an index entry was damaged meanwhile; keeping what is left");
	if (!pack || !pack->rewrite || pack->live == 0)
		return 0;
	r = reserve((void **)&s->moves, s->n_moves, &s->moves_room, sizeof(*s->moves));
	if (r < 0)
		return r;
	s->moves[s->n_moves++] = (struct move){
		.name = *name, .from = *loc, .to = *loc, .live = pack->live };
	return 0;
}

/* Packs with least to copy first, each from its start to its end. */
static int move_cmp(const void *a, const void *b)
{
	const struct move *x = a, *y = b;

	if (x->live != y->live)
		return x->live < y->live ? -1 : 1;
	if (x->from.pack != y->from.pack)
		return x->from.pack < y->from.pack ? -1 : 1;
	return x->from.off < y->from.off ? -1 : x->from.off > y->from.off;
}

static int copy_record(struct sweep *s, struct move *m)
{
	_cleanup_free_ uint8_t *bytes = NULL;
	char text[NAME_HEX_SIZE];
	size_t len;
	int r;

	r = chunk_read_record(s->c, &m->name, &m->from, &bytes, &len);
	if (r == -ENOMEM || r == -EMFILE || r == -ENFILE) /* it would be said of each one */
		return r;
	if (r < 0) {
		m->stuck = true;
		return note(&s->c->noter, 0, "sweep: chunk %s stays in pack %08" PRIx32 ": %s",
			    name_to_text(&m->name, text), m->from.pack, err_str(r));
	}
	r = pack_append(s->c->packs, bytes, len, &m->to.pack, &m->to.off);
	if (r < 0)
		return r;

	s->done += len;
	return 0;
}

/* All of them, durable; a failure leaves none. */
static int copy_records(struct sweep *s, size_t from, size_t to)
{
	uint32_t mark;
	uint64_t end;
	int r;

	r = chunks_settle(s->c);
	if (r < 0)
		return r;
	LOCK_GUARD(&s->c->put_lock);
	packs_mark(s->c->packs, &mark, &end);
	for (size_t i = from; r == 0 && i < to; i++)
		r = copy_record(s, &s->moves[i]);
	if (r == 0)
		r = packs_sync(s->c->packs);
	if (r < 0)
		packs_rewind(s->c->packs, mark, end); /* a full disk gets its room back */
	return r;
}

static uint64_t pack_size_of(const struct sweep *s, uint32_t pack)
{
	for (size_t i = 0; i < s->n_packs; i++)
		if (s->packs[i].pack == pack)
			return s->packs[i].size.bytes;
	return 0;
}

/* Gives back what lies between the live records from..to of one pack; they stay where they are. */
static int punch_pack(struct sweep *s, size_t from, size_t to)
{
	uint32_t pack = s->moves[from].from.pack;
	uint64_t at = sizeof(struct pack_header_bytes);
	int r;

	for (size_t i = from; i <= to; i++) {
		uint64_t end = i < to ? s->moves[i].from.off : pack_size_of(s, pack);

		if (end > at) {
			r = pack_punch(s->c->packs, pack, at, end - at);
			if (r == -EOPNOTSUPP)
				return r;
			if (r < 0)
				return note(&s->c->noter, r,
					    "sweep: making holes in pack %08" PRIx32 ": %s", pack,
					    err_str(r));
			room_freed(chunks_room(s->c));
		}
		if (i < to)
			at = s->moves[i].from.off + record_span(s->moves[i].from.stored_len);
	}
	return 0;
}

/* Copied at a time where there is no room for more. */
#define STEP_BYTES ((uint64_t)1 << 20)

/* Moves from..to are at the end of one pack: elsewhere, and cut off. */
static int move_end(struct sweep *s, size_t from, size_t to)
{
	const struct chunk_loc *last = &s->moves[to - 1].from;
	int r;

	/* What is dead behind them makes the room for their copies, after the first time. */
	r = pack_cut(s->c->packs, last->pack, last->off + record_span(last->stored_len));
	if (r < 0)
		return r;
	room_freed(chunks_room(s->c));
	r = copy_records(s, from, to);
	if (r == 0)
		r = in_batches(s, from, to, name_moved);
	return r < 0 ? r : progress(s);
}

/* Moves from..to are all that lives in one pack. */
static int shrink_pack(struct sweep *s, size_t from, size_t to)
{
	const uint32_t pack = s->moves[from].from.pack;

	while (to > from) {
		uint64_t bytes = 0;
		size_t begin = to;
		int r;

		do
			bytes += record_span(s->moves[--begin].from.stored_len);
		while (begin > from && bytes < STEP_BYTES);
		r = move_end(s, begin, to);
		if (r == -ENOSPC || r == -EDQUOT)
			return note(&s->c->noter, r, "sweep: the filesystem makes no holes in pack "
				    "%08" PRIx32 ", and copying it takes %" PRIu64 " MiB of room",
				    pack, (PACK_RESERVE + 2 * STEP_BYTES) >> 20);
		if (r < 0)
			return r;
		for (size_t i = begin; i < to; i++)
			if (s->moves[i].stuck)
				return 0; /* as it is, up to here */
		to = begin;
	}
	return remove_pack(s, pack);
}

/* Moves from..to are what still lives in one pack, which has no room to go elsewhere. */
static int make_holes(struct sweep *s, size_t from, size_t to)
{
	int r = punch_pack(s, from, to);

	return r == -EOPNOTSUPP ? shrink_pack(s, from, to) : r;
}

/*
 * Copied at a time, and named where it is now: whoever waits for `between` does so for a quarter of
 * a second, on a slow disk, and each costs three syncs.
 */
#define COPY_BYTES ((uint64_t)16 << 20)

/* Moves from..to are all that lives in one pack. */
static int rewrite_pack(struct sweep *s, size_t from, size_t to)
{
	uint32_t old = s->moves[from].from.pack;
	bool stuck = false;
	int r;

	for (size_t at = from, next = from; at < to; at = next) {
		for (uint64_t bytes = 0; next < to && bytes < COPY_BYTES; next++)
			bytes += record_span(s->moves[next].from.stored_len);
		r = copy_records(s, at, next);
		if (r == -ENOSPC || r == -EDQUOT)
			return stuck ? 0 : make_holes(s, at, to);
		if (r == 0)
			r = in_batches(s, at, next, name_moved);
		if (r == 0)
			r = progress(s);
		if (r < 0)
			return r;
		for (; at < next; at++)
			stuck = stuck || s->moves[at].stuck;
		between(s);
	}
	if (stuck)
		return 0;
	r = remove_pack(s, old);
	if (r < 0)
		return r;
	s->stats.packs_removed--;
	s->stats.packs_rewritten++;
	return 0;
}

static int rewrite_packs(struct sweep *s)
{
	size_t to;
	int r;

	for (size_t from = 0; from < s->n_moves; from = to) {
		for (to = from + 1; to < s->n_moves; to++) {
			if (s->moves[to].from.pack != s->moves[from].from.pack)
				break;
		}
		r = rewrite_pack(s, from, to);
		if (r < 0)
			return r;
	}
	return 0;
}

static int add_after(void *arg, uint32_t pack, const struct pack_sizes *size)
{
	struct sweep *s = arg;

	s->stats.bytes_after += size->on_disk;
	return 0;
}

int chunks_collect(struct chunks *c)
{
	uint64_t count, bytes;

	chunks_pending(c, &count, &bytes);
	if (count > 0)
		return note(&c->noter, -EBUSY, "sweep: %" PRIu64 " chunk%s pending", count,
			    count == 1 ? " is" : "s are");
	c->collect_before = packs_begin_new(c->packs);
	LOCK_GUARD(&c->put_lock);
	atomic_store(&c->collecting, true);
	return 0;
}

void chunks_collect_end(struct chunks *c)
{
	LOCK_GUARD(&c->put_lock);
	atomic_store(&c->collecting, false);
	nameset_release(&c->asked);
}

int chunks_sweep(struct chunks *c, const struct sweeper *sweeper, struct sweep_stats *ret_stats)
{
	_cleanup_(sweep_release) struct sweep s = { .c = c, .sweeper = sweeper,
						    .appended = packs_appended(c->packs) };
	int r;

	r = packs_each(c->packs, add_pack, &s);
	if (r < 0)
		return r;
	if (s.n_packs > 0)
		qsort(s.packs, s.n_packs, sizeof(*s.packs), swept_cmp);
	r = index_each_chunk(c->index, take_stock, &s);
	if (r < 0)
		return r;

	r = delete_all_dead(&s);
	if (r < 0)
		return r;
	chunks_collect_end(c); /* what is in the index now stays in it */

	choose(&s);
	r = remove_empty(&s);
	if (r < 0)
		return r;
	r = index_each_chunk(c->index, list_moves, &s);
	if (r < 0)
		return r;
	if (s.n_moves > 0)
		qsort(s.moves, s.n_moves, sizeof(*s.moves), move_cmp);
	r = rewrite_packs(&s);
	if (r < 0)
		return r;

	if (sweeper->progress)
		(void)sweeper->progress(sweeper->arg, s.total, s.total);
	r = packs_each(c->packs, add_after, &s);
	if (r < 0)
		return r;
	s.stats.bytes_meanwhile = packs_appended(c->packs) - s.appended - s.done;
	s.stats.bytes_after -= MIN(s.stats.bytes_meanwhile, s.stats.bytes_after);
	*ret_stats = s.stats;
	return 0;
}
