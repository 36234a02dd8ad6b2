/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Runs the plyfs program: how libplyfs mounts, forks, drops and compares. */

#include <limits.h>

#include "env/plyfs.h"

/*
 * Where it is: PLYFS_PROGRAM, and then nothing else; beside the library or the program that it is
 * in, also in a build directory; in the same installation; where it was installed; PATH. Absolute.
 * PLY_NOT_FOUND.
 */
int program_find(char path[static PATH_MAX]);

/*
 * `plyfs ARGS...` (args: without "plyfs", NULL-terminated) in the directory cwd (NULL: ours), its
 * input empty, PLYFS_STORE not set, both outputs collected. 0: it ran; *ret_code is its exit code,
 * or -SIGNAL; that is set as well when it ran and there is no memory for what it said. ret_err is
 * what it said, as one line without "plyfs VERB: ": the last one.
 *
 * It is not the caller's child: no SIGCHLD comes of it and nobody's wait() sees it. It goes on to
 * its end when the caller dies; until then `held` (-1: nothing) stays open (see keeper_hold). What
 * it leaves running in the background writes into nothing that we read.
 * PLY_FAILED: it could not be run, or somebody killed what waits for it.
 */
int program_run(const char *cwd, const char *const *args, int held, struct ply_text *ret_out,
		struct ply_text *ret_err, int *ret_code);
