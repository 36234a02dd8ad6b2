/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The table of `diff --stat`, laid out as git lays it out, and git's quoting of paths. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct diffstat_line {
	char *name;		 /* owned: quoted, "old => new" for renames */
	uint64_t added, removed; /* lines; bytes of new and old when binary */
	bool binary;
};
struct diffstat {
	struct diffstat_line *lines; /* owned */
	size_t n, cap;
};

void diffstat_release(struct diffstat *d);
int diffstat_add(struct diffstat *d, const char *old_path, const char *new_path, uint64_t added,
		 uint64_t removed, bool binary);
/* Nothing when no line was added. columns: of the terminal. */
void diffstat_print(const struct diffstat *d, FILE *out, unsigned columns);

/* path and tail, in double quotes with C escapes if one of their bytes wants it. */
void print_quoted(FILE *out, const char *path, const char *tail);
