/* SPDX-License-Identifier: Apache-2.0 */

/*
 * When gc runs by itself: between two rounds of the sealer, which it keeps waiting.
 *
 * Garbage costs nothing but room, and finding it costs a walk through all states. So it is looked
 * for when as much has come to the packs as the last gc left there: they are never twice as large
 * as that, and a byte written pays for one looked at. Of less than GROWN_MIN nobody takes notice.
 *
 * Before that when the disk has less than SHORT_BYTES left, and less than has come since, but for
 * SHORT_MIN: as each one waits for the room to be halved, a disk that is full of what is needed
 * sees few of them. What is left then is for whoever was refused, and asks (store_make_room).
 *
 * One that freed something takes at most half of the time, if it is worth doing again; one that
 * did not, a tenth; after one that failed, which needs somebody's hand, a minute passes. The rounds
 * of the sealer that it makes do not count.
 */

#include <inttypes.h>

#include "store/base/os.h"
#include "store/chunk.h"
#include "store/copy.h"
#include "store/stage.h"
#include "store/store_internal.h"

#define NS_PER_S UINT64_C(1000000000)

#define GROWN_MIN ((uint64_t)1 << 30)
#define SHORT_BYTES ((uint64_t)1 << 30)
#define SHORT_MIN ((uint64_t)16 << 20)

#define FAILED_NS (60 * NS_PER_S)

/* What is worth a line in the log, and another gc. */
#define FREED_MIN ((uint64_t)1 << 20)

/*
 * Whoever was refused waits so long for the moment of the next gc: what was removed since the last
 * one may be room enough, and programs bear with a disk that takes five seconds. Longer, as long as
 * the last one took, if that freed something, or until the next may run after one that did not, but
 * for PATIENCE_MAX_NS: to wait is better than to be refused what there is room for.
 */
#define PATIENCE_NS (5 * NS_PER_S)
#define PATIENCE_MAX_NS (20 * NS_PER_S)

void collect_ended(struct store *s, int r, uint64_t began_ns, const struct sweep_stats *stats)
{
	uint64_t now = now_ns(), took = now - began_ns;
	bool freed = stats->bytes_before >= stats->bytes_after + FREED_MIN;

	LOCK_GUARD(&s->table);
	s->gc_ended_ns = now;
	s->gc_appended = chunks_appended(s->chunks) - stats->bytes_meanwhile;
	if (r == 0)
		s->gc_kept = stats->bytes_after;
	s->gc_next_ns = now + (r < 0 ? FAILED_NS : freed ? took : 10 * took);
	s->gc_patience_ns = r < 0 ? PATIENCE_NS :
			    MAX(PATIENCE_NS, freed ? took : MIN(10 * took, PATIENCE_MAX_NS));
}

/* The claim is held. */
static bool is_due(struct store *s)
{
	uint64_t grown = chunks_appended(s->chunks) - s->gc_appended, bytes, packs, chunks, room;

	if (s->gc_ended_ns == 0 && s->gc_kept == 0) { /* once after open */
		if (chunks_stats(s->chunks, &bytes, &packs, &chunks) < 0)
			return false;
		LOCK_GUARD(&s->table);
		s->gc_kept = bytes;
	}
	if (grown >= MAX(s->gc_kept, GROWN_MIN))
		return true;
	if (s->gc_ended_ns == 0) /* all they hold may be garbage */
		grown += s->gc_kept;
	return grown >= SHORT_MIN && stage_room(s->stage, &room) == 0 &&
	       room < MIN(grown, SHORT_BYTES);
}

static void collect(struct store *s)
{
	struct gc_stats stats;

	if (gc_claimed(s, NULL, &stats) < 0)
		return; /* noted, where somebody has to do something */
	stats.bytes_before -= MIN(stats.bytes_before, stats.bytes_after);
	if (stats.bytes_before >= FREED_MIN)
		(void)note(&s->noter, 0, "gc: freed %" PRIu64 " MiB on its own, left %" PRIu64,
			   stats.bytes_before >> 20, stats.bytes_after >> 20);
}

/* Under the table lock. */
static bool may_run(struct store *s)
{
	return !s->gc && s->imports == 0 && !s->failed && !atomic_load(&s->no_gc);
}

void gc_if_due(struct store *s)
{
	uint64_t asks;
	bool asked, runs;

	{
		LOCK_GUARD(&s->table);
		asks = s->gc_asks;
		asked = asks != s->gc_answered;
		runs = may_run(s) && now_ns() >= s->gc_next_ns;
		if (runs)
			claim_locked(s);
	}
	if (runs && asked)
		copies_remove(s, false);
	if (runs && (asked || is_due(s)))
		collect(s);
	if (runs)
		claim_end(s);
	LOCK_GUARD(&s->table);
	s->gc_answered = asks;
	pthread_cond_broadcast(&s->done);
}

bool gc_is_asked(const struct store *s)
{
	return s->gc_asks != s->gc_answered;
}

/* Under the table lock: waits until the next gc may run. False: not for it. */
static bool wait_for_turn(struct store *s, uint64_t since_ns)
{
	while (s->gc || (may_run(s) && now_ns() < s->gc_next_ns)) {
		const struct timespec until = { .tv_sec = (time_t)(s->gc_next_ns / NS_PER_S),
						.tv_nsec = (long)(s->gc_next_ns % NS_PER_S) };

		/* One that runs may have listed what was removed since, so it is not the next. */
		if (s->gc)
			(void)pthread_cond_wait(&s->done, &s->table);
		else if (s->gc_next_ns > since_ns + s->gc_patience_ns)
			return false;
		else
			(void)pthread_cond_timedwait(&s->done, &s->table, &until);
	}
	return may_run(s);
}

int store_make_room(struct store *s, uint64_t bytes)
{
	const uint64_t since_ns = now_ns();
	uint64_t ask, ended_ns, room;

	if (atomic_load(&s->retry_ns) == 0)
		(void)store_sync(s); /* else it fails again; gc may make room for it */
	if (stage_room(s->stage, &room) < 0)
		return ABSENT;
	LOCK_GUARD(&s->table);
	while (s->gc && !s->collectable) /* it knows all that was removed */
		pthread_cond_wait(&s->done, &s->table);
	room += s->gc_kept + chunks_appended(s->chunks) - s->gc_appended;
	if (!s->collectable || bytes > room)
		return ABSENT;
	ended_ns = s->gc_ended_ns;
	if (!wait_for_turn(s, since_ns)) /* one that ended meanwhile may be enough */
		return s->gc_ended_ns != ended_ns ? 0 : ABSENT;
	ask = ++s->gc_asks;
	pthread_cond_signal(&s->wake);
	while (s->gc_answered < ask && !s->failed && !atomic_load(&s->no_gc))
		pthread_cond_wait(&s->done, &s->table);
	return 0;
}

void store_stop_gc(struct store *s)
{
	LOCK_GUARD(&s->table);

	atomic_store(&s->no_gc, true);
	pthread_cond_broadcast(&s->done);
}
