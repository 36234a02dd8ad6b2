/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The programs that libarchive and libgit2 live in, plyfs-tar and plyfs-git. Neither library takes
 * want of memory well (they exit, or follow NULL), and both read what strangers wrote: so they do
 * it in a process of their own, which may die and takes nothing with it.
 *
 * A program has the socket of the channel as descriptor 3 and, where there is one, the archive as
 * descriptor 4. It dies with the thread that started it. env/formats/ has
 * them.
 */

#include "env/formats/chan.h"
#include "env/transfer/transfer_internal.h"

struct helper {
	struct chan chan;
	struct talk *talk; /* borrowed */
	const char *name;  /* lent; NULL: not started */
	pid_t pid;	   /* 0: ended */
};

/*
 * argv: its name, then its arguments; the name is lent. fd: the archive's, or -1; borrowed.
 * Cancelling `talk` ends every wait. A failure is noted.
 */
int helper_start(struct helper *h, struct talk *talk, char *const argv[], int fd);
/* Lets it end by itself, for a second at most: it takes with it what it has half written. */
void helper_leave(struct helper *h);
/* Ends it, also in the middle of its work. */
void helper_release(struct helper *h);

/*
 * The next record; REC_SKIP and REC_FAILED are dealt with, and want of a next one is a failure: of
 * three, each noted.
 */
int helper_get(struct helper *h, struct record *ret);
/* After a chan_put or chan_flush that failed: what it had to say before it went. Noted. */
int helper_refused(struct helper *h, int r);
/* It sent what makes no sense. Noted. */
int helper_confused(struct helper *h);
