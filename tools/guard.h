/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The process that stands between `plyfs run` and its command, so that the command ends when we
 * are killed, and what was mounted for it goes:
 *
 *     shell ── front: what the caller knows ── guard ── the command ── whatever it starts
 *
 * The guard does all that there is to do. The front passes signals on to it, exits with its code,
 * and stops when it is told that the command has stopped: the shell knows no other process. The
 * guard has a process group of its own, which a kill of the job does not meet, in the same session,
 * so that the terminal can be the command's. (The keeper of env/ has a session of its own.)
 */

#include <signal.h>
#include <sys/types.h>

#include "tools/client.h"

struct guard {
	int sock;      /* to the front: bytes: a signal; and back: the command has stopped */
	int children;  /* a signalfd of SIGCHLD */
	pid_t front;   /* its process group; immutable */
	sigset_t mask; /* the caller's; in the guard all signals are blocked */
};

/*
 * Runs `work` in a guard and returns its result, an exit code, in the front. When the guard is
 * killed, the front ends what it had started, calls `after`, unless NULL, and fails.
 */
int guard_run(struct client *cl, int (*work)(void *arg, struct guard *g),
	      void (*after)(const void *arg), void *arg);

/* ---- in the guard ---- */

enum { CHILDREN = 0, TIME_IS_UP = -1, ALONE = -2 };
/*
 * Waits until `end` (of now_seconds(); 0: for ever). The signal that is to be passed on; CHILDREN:
 * something happened to one of ours; TIME_IS_UP; ALONE: the front has ended.
 */
int guard_wait(struct guard *g, double end);
/* Whether the work is to end before it begins: the signal that says so, ALONE, or 0. */
int guard_asked_to_end(struct guard *g);
/*
 * The terminal (stdin) for the command's group, if it is the front's, and the way back: from that
 * group, or from one that is no more. Nobody else loses it.
 */
void guard_give_terminal(const struct guard *g, pid_t group);
bool guard_take_terminal(const struct guard *g, pid_t group);
/* The command has stopped, and the front shall: SIGCONT comes when it goes on. */
void guard_stop_front(struct guard *g);
