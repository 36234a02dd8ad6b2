/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What the library (proc.c) and the keeper say to each other, and the keeper's parts.
 *
 *     library ──── KEEPER_* requests ────> keeper          (one per environment)
 *        │                                   │ fork
 *        └── REAPER_* requests, events ──> reaper          (one per command)
 *                                            │ vfork, exec
 *                                          command ── whatever it starts
 *
 * All sockets are SOCK_SEQPACKET: a message is a struct, perhaps with bytes behind it, and
 * descriptors beside it. Both sides are of the same machine, so the structs are sent as they are.
 */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "env/proc.h"

/* ---- library to keeper ---- */

enum keeper_op {
	KEEPER_SPAWN,    /* bytes: argv, then env; descriptors: see KEEPER_FD_* */
	KEEPER_ON_DEATH, /* bytes: the argvs, an empty string after each */
	KEEPER_HOLD,	 /* KEEPER_FD_IN: on_death waits until it is hung up */
	KEEPER_KILL,	 /* kill everything; answered by an int, an errno */
	KEEPER_END,	 /* kill everything, then exit without on_death */
};

enum { /* descriptors of a request, in this order; those that are there are in its mask */
	KEEPER_FD_SOCKET,
	KEEPER_FD_CWD,
	KEEPER_FD_IN,
	KEEPER_FD_OUT,
	KEEPER_FD_ERR,
	KEEPER_FD_BYTES, /* a memfd with the bytes, when they are too many to stand behind */
	KEEPER_FDS,
};

/* Far below what a socket takes as one message (net.core.wmem_default, 208 KiB), and more than
 * the usual environment. */
#define KEEPER_INLINE_MAX 32768

struct keeper_request {
	uint32_t op;
	uint32_t fd_mask;
	uint32_t argc, envc;
	uint32_t terminal;
	uint64_t len; /* of the bytes: NUL-terminated strings */
	struct proc_limits limits;
};

/* Of everything in this file: a keeper of another build is told, not guessed at. */
#define KEEPER_VERSION 5

/* The keeper's first words. */
struct keeper_hello {
	uint32_t version;
	pid_t pid;
	int error; /* errno: this machine does not show us our children; the keeper has ended */
};

/* ---- library and reaper ---- */

enum reaper_op { REAPER_KILL, REAPER_DISCARD };

/* With a pipe's write end beside it, on which the answer comes (an int), so that several threads
 * may ask at once. The pipe closes without one when the tree is gone. REAPER_DISCARD has a read
 * end instead, of the command's output, to be read to nowhere, and no answer. */
struct reaper_request {
	uint32_t op;
};

enum reaper_step { STEP_NONE, STEP_FORK, STEP_CWD, STEP_TERMINAL, STEP_EXEC };

/*
 * Three of them: before the command is executed, since from then on it may kill the reaper; when it
 * was started (or not: error); and when it has ended.
 */
struct reaper_event {
	bool starting, ended;
	bool out_of_memory, too_many_processes; /* ended */
	pid_t pid;				/* starting, started */
	int status;				/* ended */
	int error;				/* started: errno, and at which step */
	enum reaper_step step;
};

/* ---- the keeper's program ---- */

/*
 * Serves the socket until its other end is closed, or the process that caller_pidfd stands for
 * has ended (-1: only the former). The calling process has no threads and no other descriptors
 * than 0 to 2 and these. Returns the exit code.
 */
int keeper_main(int sock, int caller_pidfd);
/* The program around it, which finds both at descriptors 3 and 4. Returns the exit code. */
int keeper_program(void);

/* A command's request as the keeper received it. */
struct job {
	struct keeper_request request;
	int fds[KEEPER_FDS]; /* owned; -1: not there */
	const char *bytes;   /* when not in the memfd: borrowed */
	struct group *group; /* borrowed; NULL: no limits that need one */
};

/* The reaper: starts the command, stays above its tree, and ends with it. keeper: its parent. */
_Noreturn void reaper_main(struct job *job, pid_t keeper);

/* All signals to their defaults, none blocked: what a new program begins with. */
void signals_reset(void);

/* Splits bytes that hold exactly n strings, NULL-terminated; NULL: they do not, or no memory. */
char **strings_split(const char *bytes, size_t len, size_t n, size_t *ret_used);
