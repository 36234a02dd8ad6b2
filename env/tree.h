/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The processes below this one, and how they are ended for sure. Works for a process that is the
 * subreaper of all of them (PR_SET_CHILD_SUBREAPER): whatever leaves its parent becomes our child.
 * SIGCHLD must be blocked.
 */

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct tree {
	bool (*spare)(void *arg, pid_t child);		    /* of our children: leave it; or NULL */
	void (*reaped)(void *arg, pid_t child, int status); /* each child that was waited for */
	void *arg;
};

/* Whether the kernel shows us our children (CONFIG_PROC_CHILDREN, a mounted /proc): 0 or -errno. */
int tree_look(void);

/* Waits for what has ended, without blocking. False: no children are left. */
bool tree_reap(const struct tree *t);

/* Calls fn for each descendant, parents before children. What comes and goes may be missed. */
void tree_each(const struct tree *t, void (*fn)(void *arg, pid_t pid), void *arg);

/*
 * SIGKILL to all of them until none but the spared is left. First they are stopped, until a look
 * finds nobody new: what forks faster than we kill would never end. Gives up when for
 * TREE_STUCK_SECONDS nothing more dies (not ours to kill, or stuck in the kernel): then false.
 */
bool tree_kill(const struct tree *t);

#define TREE_STUCK_SECONDS 10
