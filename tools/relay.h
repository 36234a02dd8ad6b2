/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * For a daemon of another user, who is not root: what he could not open himself he does not get
 * of us. Terminals of ours stand in for the user's (else he could read what is typed there, and
 * long after the verb), an O_PATH descriptor for our directory (he passes it, but cannot list it).
 */

#include <sys/types.h>

struct wire_request;

#define RELAY_ENDS 2 /* stdout and stderr, where these are two terminals */

struct relay {
	int null, cwd; /* owned */
	unsigned n;
	struct relay_end {
		int ours, theirs; /* owned */
		int to;		  /* the user's, borrowed: gets what is written to theirs */
		dev_t terminal;	  /* which that is */
	} ends[RELAY_ENDS];
};
#define RELAY_NONE ((struct relay){ .null = -1, .cwd = -1 })

/* q's descriptors become such (borrowed until relay_end): 0, or -errno. */
int relay_begin(struct relay *r, struct wire_request *q);
/* Passes on what is written, until sock has something to read (or hangs up) and all before that. */
void relay_until(struct relay *r, int sock);
void relay_end(struct relay *r);
