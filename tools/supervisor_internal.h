/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The inside of the supervisor, shared by supervisor.c (the process) and supervisor_table.c. */

#include <limits.h>
#include <stdatomic.h>

#include "tools/supervisor.h"

/* Far above what one daemon serves (hundreds); untouched slots cost no memory. */
#define SLOTS 2048

enum { FREE, FILLING, TAKEN };

struct supervisor {
	uint32_t version;
	_Atomic bool stopping;
	_Atomic bool replace;
	_Atomic uint32_t deaths, replacements;
	int lock_fd; /* the supervisor's, for the program that replaces it */
	char program[PATH_MAX];
	struct {
		_Atomic int state;
		_Atomic int fuse_fd, memo_fd; /* the supervisor's; 0: none */
		int failed_resumes;           /* in a row */
		uint64_t snapshot;
		uint64_t mount; /* its number (tools/mounts.h) */
		uint32_t how;
		char branch[BRANCH_NAME_MAX + 1];
		char path[PATH_MAX];
	} slot[SLOTS];
};

enum word {
	KEEP = 1, /* the view in a slot: its two descriptors */
	LET_GO,
	WATCH,    /* a pidfd (twice) of a thread that waits for nothing: it is gone when all go */
};

struct message {
	int32_t word;
	int32_t slot;
};

/* This process's end of the table, and of the socket between supervisor and daemon; -1: none. */
extern int supervisor_table_fd, supervisor_sock;

/* In the daemon, once: gives the supervisor a thread to watch (WATCH). */
void supervisor_be_watched(void);

/* Whether the table, the lock and what is kept are there after an exec. */
void supervisor_keep_on_exec(struct supervisor *s, bool keep);
