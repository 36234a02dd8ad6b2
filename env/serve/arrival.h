/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * How long a request may take to arrive. A limit of silence is not enough: a client that sends a
 * byte now and then would keep its connection for ever, and a few hundred of them all there are.
 *
 * From the connection's begin, or the last answer's end, a request has a time to have come whole
 * (headers and body), and more for what of its body is here. Who is late is disconnected: nothing
 * can be answered in the middle of a request.
 */

#include <stddef.h>

/* Of a body. As Apache's mod_reqtimeout; a modem of 1990 is faster. */
#define ARRIVAL_BYTES_PER_SECOND 500

struct arrivals;
struct arrival; /* one connection's; NULL (no memory) is one without a limit */

/* A thread looks at them all. -errno. */
int arrivals_start(unsigned seconds, struct arrivals **ret);
/* All connections have been removed. NULL is fine. */
void arrivals_stop(struct arrivals *a);

/* fd: borrowed until arrival_remove. A request is awaited. */
struct arrival *arrival_add(struct arrivals *a, int fd);
void arrival_remove(struct arrivals *a, struct arrival *one);

void arrival_body(struct arrivals *a, struct arrival *one, size_t bytes);
/* It is here: its answer may take as long as it likes. */
void arrival_whole(struct arrivals *a, struct arrival *one);
/* It was answered: the next is awaited. */
void arrival_next(struct arrivals *a, struct arrival *one);
