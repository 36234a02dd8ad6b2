/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Limits on a tree of processes: a control group of its own, where we may make one. Version 2 is
 * tried first (below the first of our own group and those above it that lets us), then the old
 * hierarchies of the memory and pids controllers. What no group covers falls to rlimits, which
 * know less:
 *
 *   memory     RLIMIT_DATA: per process, not of all together, and nobody tells that it was hit.
 *              (RLIMIT_AS would count what Java, Go and Node only reserve, and end them.)
 *   processes  RLIMIT_NPROC: counts all processes of the user, so those that there are now are
 *              added. It does not hold root.
 */

#include <stdbool.h>

#include "env/proc.h"

struct group;

/* NULL: none needed, none allowed here, no memory. Given; ended with group_free. */
struct group *group_make(const struct proc_limits *limits);
/* Removes it; its processes must be gone. NULL is fine. */
void group_free(struct group *g);
static inline void group_freep(struct group **g)
{
	group_free(*g);
}

/* Whether groups keep all the limits that they can; else rlimits take their place. */
bool group_holds(const struct group *g, const struct proc_limits *limits);

/* In the process that is to be limited: joins the group, sets rlimits for the rest. */
void group_enter(const struct group *g, const struct proc_limits *limits);
/* All its processes at once, where the kernel can (version 2). */
void group_kill(const struct group *g);
void group_events(const struct group *g, bool *ret_out_of_memory, bool *ret_too_many_processes);
