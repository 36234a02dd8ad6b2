/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The decimal ids of checkpoints: "0", "1", ..., for each branch its own, never given twice.
 *
 * A number is kept as the label of its snapshot, "BRANCH/7", or "BRANCH/7 TEXT" for one that has a
 * label of the caller's. So they are there after a restart, in another process and for the
 * program (`plyfs restore @main/7`). What number is next stands in STORE/numbers/BRANCH, under a
 * lock: two environments on one view do not meet. The file is a memo: the largest number among the
 * labels counts when it is larger, as after a power cut. `plyfs drop BRANCH` removes it.
 */

#include "env/workspace.h"

struct numbers;

int numbers_open(struct workspace *ws, struct numbers **ret);
void numbers_close(struct numbers *n);

/* A checkpoint with the next number. label: NULL or "" for none. */
int numbers_checkpoint(struct numbers *n, const char *label, struct ply_text *ret_id);
/*
 * The snapshot that is meant by what ply_env_restore takes: a number, "@LABEL" of the caller's, or
 * else what `plyfs restore` takes (so are seven digits and more that nobody gave), given back as it
 * is. PLY_UNKNOWN_ID "Checkpoint 7 not found". Given: free.
 */
int numbers_find(struct numbers *n, const char *id, char **ret);
