/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Patterns of list_files, as Python's pathlib reads them: * any run of characters within a name,
 * ? one, [seq] and [!seq] one of or none of them (ranges a-z; ']' first in it is itself; a '['
 * that is not closed is itself), ** as a whole segment: any number of directories, also none; as
 * the last one, of files below. A leading dot is nothing special, case is. A character is a UTF-8
 * sequence, or else a byte.
 */

#include <stdbool.h>

#include "env/plyfs.h"

/* One name against one segment, which is NUL-terminated or ends at a '/'. */
bool glob_match(const char *segment, const char *name);

/*
 * The regular files below root that match, relative to it, sorted bytewise; a symlink to a file is
 * one, wherever it leads. ** does not enter symlinked directories; a segment that matches one does,
 * when it leads to a place below root. hidden: directories, relative to root, that are not looked
 * into; ends with NULL, NULL: none. Directories that may not be read are passed over. PLY_INVALID:
 * an empty pattern, ** within a segment; PLY_UNSUPPORTED: an absolute one; PLY_DENIED: with "..".
 */
int glob_list(const char *root, const char *pattern, const char *const *hidden,
	      struct ply_list *ret);
