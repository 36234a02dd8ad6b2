/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A verb, as the daemon runs it: one function per verb, in a thread of its own, for a client
 * program that waits at the other end of a socket (or behind an ioctl of a view).
 *
 * A verb reads its options with cmd_parse(), works on c->store, writes answers to c->out and talk
 * to c->err, and returns the client's exit code: CMD_DONE, CMD_FAILED (after cmd_fail) or
 * CMD_MISUSE (after cmd_misuse). It checks c->cancel in long loops (c->progress does so for it).
 * It must close what it opens: a descriptor left open inside one of our own views would keep that
 * view from ever being unmounted.
 */

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "store/store.h"
#include "tools/options.h"
#include "tools/wire.h"

struct daemon;

enum {
	CMD_DONE = 0,
	CMD_FAILED = 1,
	CMD_MISUSE = 2,
	CMD_UNREAD = 141, /* of verb_run: nobody reads the answer; 128 + SIGPIPE, as shells say */
};

struct cmd {
	struct daemon *daemon; /* borrowed */
	struct store *store;   /* borrowed */
	int argc;	       /* argv[0] is the verb; --store is gone already */
	char **argv;
	const char *called;    /* what lines begin with: mount, when that imports */
	struct arguments args; /* set by cmd_parse: what is no option */

	FILE *out, *err; /* fully buffered / line buffered; flushed and checked by the caller */
	int in_fd;	 /* the client's stdin, or -1 */
	int out_fd;	 /* beneath out; for bulk bytes fflush(c->out) first */
	unsigned umask; /* the client's */
	int cwd_fd;	 /* the client's working directory, or -1: see cmd_openat */
	int fuse_fd;	 /* a mounted /dev/fuse for mount and fork --at, taken by them; else -1 */

	bool out_tty;
	bool draws;	    /* stderr is a terminal that can clear a line */
	unsigned columns;   /* of the client's terminal; 80 when unknown */
	const char *branch; /* of the view that the client is in; "" when in none */
	uint64_t snapshot;  /* of the read-only view that the client is in; else 0 */

	bool cancel;		  /* set by another thread when the client is gone */
	bool unread;		  /* out's reader is gone (then cancel is set as well) */
	char restored[WIRE_TEXT_MAX]; /* set by a restore that its caller has to look at: the
				       * text of wire_answer; else empty */
	struct progress progress; /* draws a bar on the client's terminal, heeds cancel */
	bool bar_shown;		  /* private to progress */
	uint64_t bar_ns;
};

/*
 * c->args and the options, or CMD_MISUSE after one line. min and max count arguments; max < 0: any
 * number. Use: r = cmd_parse(...); if (r) return r;
 */
int cmd_parse(struct cmd *c, const struct option_def *defs, size_t n_defs, int min, int max);
/* Its second half, where the options decide how many arguments there have to be. */
int cmd_count(struct cmd *c, int min, int max);

/*
 * "plyfs CALLED: WHAT: sentence for r" on c->err; returns CMD_FAILED. r = 0: without the sentence.
 * When c->out failed before, r came from that: then this is told instead.
 */
int cmd_fail(struct cmd *c, int r, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* "plyfs CALLED: WHAT" on c->err; returns CMD_MISUSE. */
int cmd_misuse(struct cmd *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* "plyfs CALLED: warning: WHAT" on c->err. */
void cmd_warn(struct cmd *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* For `warn` callbacks: arg is the struct cmd. */
void cmd_warn_line(void *arg, const char *line);
/* Takes the progress bar off the line before other output; harmless when none is shown. */
void cmd_progress_end(struct cmd *c);

/*
 * Opens a file that the client named, relative to the client's directory, with the client's
 * rights. -EPERM when the client speaks through a view's ioctl: it may sit in a sandbox, and must
 * not reach files outside through us. Same for mkdir. -ERR_OWN_LINK: what leads through /proc/self.
 */
int cmd_openat(struct cmd *c, const char *path, int flags, unsigned mode, int *ret_fd);
int cmd_mkdirat(struct cmd *c, const char *path, unsigned mode);
/* The absolute path of what the client named, for libraries that want paths; malloced, given. */
int cmd_path(struct cmd *c, const char *path, char **ret);

/* There is no snapshot and no branch in it yet. */
bool cmd_store_is_empty(struct cmd *c);

/* A state that the user named, held: gc keeps it until cmd_state_release. */
struct cmd_state {
	struct store *store;
	struct root *root;
	uint64_t id; /* the snapshot; 0 for a branch's present state */
	uint64_t lineage;
	char name[2 * BRANCH_NAME_MAX]; /* "id" or "branch NAME", for people */
};
/* A snapshot has that id: then it is meant, whatever branch is called so, as snap_find has it. */
bool cmd_is_whole_id(struct cmd *c, const char *text);
/*
 * text: a branch name is that branch's present state, if it is no snapshot's whole id; anything
 * else goes to snap_find. NULL: the
 * present state of the view the client is in, else of branch main. Reports through cmd_fail:
 * returns CMD_DONE or CMD_FAILED.
 */
int cmd_state(struct cmd *c, const char *text, struct cmd_state *ret);
void cmd_state_release(struct cmd_state *s);
#define _cleanup_state_ __attribute__((cleanup(cmd_state_release)))

/*
 * Waits while another verb has a branch that nobody has mounted: one that was interrupted has it
 * until it looks. 0: nobody has it, or a view, or there is none; -ERR_BRANCH_CLAIMED: after some
 * seconds it still has it.
 */
int cmd_await_branch(struct cmd *c, const char *name);

/* The branch a verb is about: `name` if not NULL, else the client's view's, else main. */
const char *cmd_branch_name(struct cmd *c, const char *name);

/*
 * Quotes for JSON are jansson's; this prints one object and a newline, and takes the reference.
 * Fails when memory was short for what is in it (json_memory.h).
 */
struct json_t;
int cmd_json(struct cmd *c, struct json_t *object);
/*
 * The same for an array that may be too long for the memory there is: its elements one by one (each
 * reference is taken), *n, at first 0, counting them; then its end. 0 or -ENOMEM.
 */
int cmd_json_next(struct cmd *c, uint64_t *n, struct json_t *object);
void cmd_json_end(struct cmd *c, uint64_t n);

/* Every verb that the daemon runs (verbs.h has the table). */
int cmd_import(struct cmd *c);
int cmd_export(struct cmd *c);
int cmd_diff(struct cmd *c);
int cmd_checkpoint(struct cmd *c);
int cmd_restore(struct cmd *c);
int cmd_undo(struct cmd *c);
int cmd_fork(struct cmd *c);
int cmd_drop(struct cmd *c);
int cmd_log(struct cmd *c);
int cmd_tree(struct cmd *c);
int cmd_status(struct cmd *c);
int cmd_daemon(struct cmd *c);
int cmd_check(struct cmd *c);
int cmd_gc(struct cmd *c);
int cmd_dump(struct cmd *c);
int cmd_mount(struct cmd *c);
int cmd_unmount(struct cmd *c);
int cmd_writeback(struct cmd *c);
int cmd_fsmonitor(struct cmd *c);
