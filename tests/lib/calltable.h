/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What the parts of calltable share: the world (calltable_world.c), the calls (calltable_calls.c)
 * and the cases (calltable.c, where it is told what all this is for).
 */

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#define GROUP 2000 /* of which the user `member` is one */

extern bool no_ctime;
extern int top_fd; /* the directory of the world */

void need(bool good, const char *what); /* ends the program with errno's text if not */

/* ---- the world ---- */

/* Every place starts at w/cwd, which is the working directory of each call. */
extern const struct place {
	const char *label, *path; /* path: where it is not the label */
} places[];
extern const size_t n_places;

extern char path_4095[PATH_MAX], path_4096[PATH_MAX + 1];

void make_names(void);
/* In place of the old one, if any; and remembers what there is. */
void new_world(void);
/* Remembers what there is. */
void look_at_world(void);
/* Prints in what the world differs from the remembered one; true if in anything. */
bool show_difference(void);

/* ---- the calls: -1 and errno, or the result ---- */

extern const struct call {
	const char *name;
	int (*fn)(const char *p);
} calls[];
extern const size_t n_calls;

extern const struct pair_call {
	const char *name;
	int (*fn)(const char *p, const char *q);
} pair_calls[];
extern const size_t n_pair_calls;
