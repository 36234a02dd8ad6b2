/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Directories to mount on. */

#define PLACE_RANDOM 13 /* 12 hex digits and NUL */

/* A name that nobody has. */
int place_random(char text[static PLACE_RANDOM]);
/* The path of a new directory below $XDG_RUNTIME_DIR or /tmp; it is not made yet. Given: free. */
int place_plan(char **ret);
/* With its parents; may be there. */
int place_make(const char *path);
/* PLY_INVALID when something is in it. */
int place_check_empty(const char *path);
