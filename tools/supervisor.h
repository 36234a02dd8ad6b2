/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The supervisor: the parent process of the daemon. It keeps a copy of each view's /dev/fuse
 * descriptor and of its memo (fs/memo.h); when the daemon dies it starts another one, which finds
 * everything where it was and goes on behind the same mounts. It has one thread, and asks for no
 * memory while it supervises.
 *
 * It shares one table of views with the daemon, in a memory file, so that another program can take
 * over (plyfs daemon --replace).
 */

#include <stdbool.h>
#include <stdint.h>

#include "store/store.h"

struct supervisor;

/* How a daemon exits that cannot start, and that no other one could follow: the store is broken. */
#define SUPERVISED_HOPELESS 3

/* Another layout of the table, or of what views remember, gets another number. */
#define SUPERVISOR_VERSION 3

/* What the supervisor has to hold, beside the views. */
struct supervised {
	const char *store; /* path; borrowed for good */
	int dir_fd;        /* of the store; kept */
	int lock_fd;       /* its lock; kept, so that no other daemon comes in between */
	int ready_fd;      /* of the daemon's start: not the supervisor's to keep; or -1 */
};

/* ---- the beginning, before any thread ---- */

/* NULL when there is no memory. */
struct supervisor *supervisor_new(void);
/*
 * After supervisor_replace, in the new program: the table behind a descriptor, or NULL. The views
 * have nobody else: what fails before there is a daemon may be want of memory that passes, so it is
 * tried SUPERVISOR_TRIES times (for 5 s, as long as people wait), each after supervisor_wait.
 */
struct supervisor *supervisor_adopt(int fd);
#define SUPERVISOR_TRIES 100
void supervisor_wait(void);
/* The lock that came with it. */
int supervisor_lock_fd(struct supervisor *s);
/*
 * Forks: returns 0 in the child, which goes on as the daemon, and EXISTS when a daemon was there
 * before it; -errno when it cannot fork. The parent never returns: it passes SIGTERM and SIGINT
 * on, keeps what the daemon gives it, and forks another one when that dies without having said
 * supervisor_stopping. Without anything kept, and at the end, it takes off mounts that are left and
 * exits as the child did.
 */
int supervisor_fork(struct supervisor *s, const struct supervised *what);

/* ---- the daemon: any thread ---- */

/* A view, as another daemon has to know it. */
struct supervised_view {
	char branch[BRANCH_NAME_MAX + 1]; /* "" for a snapshot */
	uint64_t snapshot;
	uint32_t how; /* fs/how.h */
	const char *mountpoint; /* lent by the table */
	int fuse_fd, memo_fd;   /* supervisor_next: given */
};

/* Notes a mount: the slot, or -1 when the table is full or the path too long. */
int supervisor_add(struct supervisor *s, const struct supervised_view *view);
void supervisor_remove(struct supervisor *s, int slot); /* -1 is nothing */
/* From here on the view lives on when we die. The descriptors are borrowed. */
void supervisor_keep(struct supervisor *s, int slot, int fuse_fd, int memo_fd);
/* At the start: views of a former daemon, from slot `from` on; the slot, or -1: no more. */
int supervisor_next(struct supervisor *s, int from, struct supervised_view *ret);

/* False when it was killed: nobody comes after this daemon. */
bool supervisor_is_there(void);

/* How often in a row, until now, a daemon could not go on with the view. */
unsigned supervisor_note_resume(struct supervisor *s, int slot, bool good);

/* The daemon ends because it shall: nobody comes after it. */
void supervisor_stopping(struct supervisor *s);
/*
 * Another program shall go on as supervisor and daemon, once this daemon has ended. program:
 * absolute. -ENAMETOOLONG.
 */
int supervisor_replace(struct supervisor *s, const char *program);
/* Daemons that died, and those that were replaced. */
unsigned supervisor_deaths(struct supervisor *s);
unsigned supervisor_replacements(struct supervisor *s);
