/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What exporters share whose form a program writes (plyfs-tar, plyfs-git): a state's objects become
 * records, which are sent to it.
 *
 * No two wait for each other: a program says nothing after its greeting but its last word, which is
 * shorter than any socket's buffer. So it never waits for us to read, and we wait for it only where
 * cancelling is looked at.
 */

#include "env/transfer/helper.h"

struct sender {
	struct talk talk;
	struct helper helper;
	struct fs fs;
	struct tree *tree;	    /* owned */
	char *buf;		    /* owned: a chunk */
	const struct walk_entry *e; /* what is being sent; lent */
	bool refused;		    /* the program takes no more; that is noted */
};

/* Starts the program (helper_start). The sender is to be released whatever comes of it. */
int sender_start(struct sender *s, struct store *store, struct root *root,
		 const struct import_ops *ops, char *const argv[], int fd);
void sender_release(struct sender *s);

/* r: of a chan_put or chan_flush. What the program had to say is noted. */
int sender_sent(struct sender *s, int r);
/* -EPIPE's way if the program has failed already: the rest need not be read. */
int sender_look(struct sender *s);
/* s->e without its content; link: the name that carries that, or NULL. */
int sender_member(struct sender *s, const char *link);
/* Its content, without holes. */
int sender_data(struct sender *s);
/* The note for a failure of the three above, unless there is one. Returns r. */
int sender_failed(struct sender *s, int r);
/* After all objects: the program's last word, in its buffer. */
int sender_finish(struct sender *s, struct record *ret);
