/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * How import and export talk to the client: warnings as they come, progress on a terminal, and of a
 * failure the note that names the path or member it is about.
 */

#include "env/transfer/transfer.h"
#include "store/base/note.h"
#include "tools/cmd.h"

struct transfer_talk {
	struct cmd *cmd; /* borrowed */
	struct noter noter;
	struct import_ops ops; /* for the importers and exporters; points into this struct */
	char *note;	       /* owned: the first one, the nearest to the cause */
};

void transfer_talk_init(struct transfer_talk *t, struct cmd *c); /* t must not move afterwards */
void transfer_talk_release(struct transfer_talk *t);
/*
 * One line for a failure; returns CMD_FAILED. what: the source or target, when nothing was noted.
 */
int transfer_talk_fail(struct transfer_talk *t, int r, const char *what);

/*
 * REPOSITORY#WORD, unless there is a file of that name: true, *ret_path (given) and *ret_word (lent
 * by text) are set.
 */
bool transfer_split(struct cmd *c, const char *text, char **ret_path, const char **ret_word);
