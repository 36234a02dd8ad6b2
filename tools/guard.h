/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The guard: the parent process of the daemon, that does nothing but wait for its end and take
 * mounts off that a dead daemon left. It shares one table of mount points with the daemon.
 */

#include <stdatomic.h>

struct guard;

/* Before any thread: the shared table. NULL when there is no memory. */
struct guard *guard_new(void);

/* The daemon: notes a mount point; the slot, or -1 when the table is full or the path too long. */
int guard_add(struct guard *g, const char *mountpoint);
void guard_remove(struct guard *g, int slot); /* -1 is nothing */

/*
 * Forks: returns 0 in the child, which goes on as the daemon; -errno when it cannot. The parent
 * never returns: it passes SIGTERM and SIGINT on, waits, cleans up, and exits as the child did.
 */
int guard_fork(struct guard *g);
