/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The store of environments that begin with nothing: one for all of a user's, below $XDG_DATA_HOME,
 * with a branch "empty" to fork. A store of each would stay behind when its caller is killed; here
 * the keeper drops the fork, and whoever ends next sweeps up.
 */

#define SCRATCH_BRANCH "empty"

struct ply_text;

/* Its path; made when it is not there. */
int scratch_store(struct ply_text *ret);
/* Gives back the room of what was dropped; the next one does it when this one cannot. */
void scratch_sweep(const char *store);
