/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Directories to mount on. */

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define PLACE_RANDOM 13 /* 12 hex digits and NUL */

/* A name that nobody has. */
int place_random(char text[static PLACE_RANDOM]);
/* The directory that a variable names, if it is absolute, there and ours to write to; else NULL. */
static inline const char *place_named(const char *variable)
{
	const char *dir = getenv(variable);

	return dir && *dir == '/' && access(dir, W_OK) == 0 ? dir : NULL;
}

/*
 * $XDG_RUNTIME_DIR, if it is that and ours: su(1) leaves root another user's, whose programs refuse
 * what root has made there; else NULL.
 */
static inline const char *place_runtime_dir(void)
{
	const char *dir = place_named("XDG_RUNTIME_DIR");
	struct stat st;

	return dir && stat(dir, &st) == 0 && st.st_uid == geteuid() ? dir : NULL;
}

/* The path of a new directory below $XDG_RUNTIME_DIR or /tmp; it is not made yet. Given: free. */
int place_plan(char **ret);
/* With its parents; may be there. */
int place_make(const char *path);
/* PLY_INVALID when something is in it. */
int place_check_empty(const char *path);
