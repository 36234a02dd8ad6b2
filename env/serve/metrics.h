/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the server counts, and the text in which Prometheus wants it. */

#include <stdatomic.h>

#include "env/plyfs.h"

#define METRICS_PROTOCOLS 8
#define METRICS_STATUSES 20 /* kinds of status that are told apart; see metrics.c */

struct metrics { /* zeroed: nothing has happened */
	atomic_ullong answered[METRICS_PROTOCOLS][METRICS_STATUSES];
	atomic_ullong commands;
	atomic_uint running;
};

/* protocol: an index into the names of metrics_text. */
void metrics_answered(struct metrics *m, size_t protocol, unsigned status);
/* names: of the protocols, n of them; NULL: not there. Appended; PLY_NO_MEMORY. */
int metrics_text(struct metrics *m, const char *const *names, size_t n, struct ply_text *text);
/* One number, with what it is, in the same form. */
int metrics_number(struct ply_text *text, const char *name, const char *type, const char *help,
		   unsigned long long value);
