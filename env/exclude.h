/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Directories that no restore touches (option `exclude`). A restore changes the whole view at once;
 * this brings them back as they were in the state that it left, and removes those that were not
 * there. What differs is asked of the store, so nothing is walked that did not change; a directory
 * that differs is copied as a whole.
 */

#include "env/workspace.h"

/*
 * names: ':'-separated names of directories, at every depth. left: the snapshot that the restore
 * left. PLY_EXISTS: where one of them has to be, the restored state has something that is no
 * directory; it stays in `left`. The others are brought back all the same, as after any failure.
 */
int exclude_bring_back(struct workspace *ws, struct keeper *k, const char *names, const char *left);
