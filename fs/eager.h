/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * When a reader looks for its next request instead of sleeping (eager_judge.c has the rules): a
 * state machine without clock or calls, so that each rule can be tested. eager.c drives it.
 *
 * Times are ns of now_ns(). Threads: a state is its mount's leader's, but for `found`.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whether it pays to look for the next request before sleeping. All zeros: to begin with. */
struct eagerness {
	bool wanted;          /* requests follow each other closely */
	bool looks;           /* a CPU was idle, and nobody wanted ours since */
	bool no_wait;         /* the descriptor is O_NONBLOCK */
	uint64_t not_before_ns; /* other threads wanted this CPU: not until then */
	uint64_t back_off_ns; /* the next one, if trust does not come back; 0: the least */
	unsigned doubts; /* in a row */
	bool moved;      /* to another CPU, and no trust since */
	unsigned crowd;  /* so many more were there at once than had to be looked for */
	uint64_t last_ns; /* when the request before was answered */
	unsigned row;     /* so many came closely one after the other */
	unsigned large;  /* so many large requests came last, in a row */
	size_t last_bytes; /* of the last request */
	uint64_t found;   /* atomic: requests that a look found */
};

/* How a look went. */
struct look {
	unsigned laps;       /* reads that found nothing */
	uint64_t longest_ns; /* of them */
	uint64_t end_ns;     /* when it was over, give or take a lap */
};

/* What is asked of, and done about, the CPUs. */
struct eager_cpus {
	/* Is there one for a client beside ours? */
	bool (*is_idle)(void);
	/* Goes on on another one. False: we are to stay. */
	bool (*move_over)(void);
};

bool eager_may_look(struct eagerness *e, const struct eager_cpus *cpus, uint64_t now);

/* After a look, one of the two: it found a request; or it did not, and we slept until one came. */
void eager_found(struct eagerness *e, const struct eager_cpus *cpus, const struct look *look);
void eager_slept(struct eagerness *e, const struct eager_cpus *cpus, const struct look *look,
		 bool came_at_once);
