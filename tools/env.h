/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The verbs on environments (env, test, session, shell, serve). plyfs-env is a program of its own
 * because it links libplyfs and the client links nothing; plyfs-session is another one because what
 * is said to a session is said often, and loading libplyfs takes ten times as long as that. The
 * client passes its words on as they are.
 *
 * An environment lives as a mounted view, and a *record* that remembers its name and options. A
 * record is written before anything is mounted and removed after everything is gone, so whatever
 * is interrupted in between can be listed and destroyed.
 *
 * Functions that return an exit code have said why, in one line on stderr, when it is not 0.
 */

#include <limits.h>
#include <stdbool.h>

#include "env/plyfs.h"
#include "tools/options.h"

struct json_t;

enum { DONE = 0, FAILED = 1, MISUSE = 2, TIMED_OUT = 124 };

struct cmd { /* what was asked */
	const char *verb;     /* "env create": for messages */
	const char *synopsis; /* of it */
	int argc;	      /* argv[0] is the last word of verb */
	char **argv;
	struct arguments args; /* set by cmd_parse */
};

int cmd_fail(const struct cmd *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int cmd_misuse(const struct cmd *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* What libplyfs said. Not in plyfs-session. */
int cmd_ply_failed(const struct cmd *c);
/* c->args, or MISUSE. max < 0: any number. */
int cmd_parse(struct cmd *c, const struct option_def *defs, size_t n_defs, unsigned flags, int min,
	      int max);
/* Words as one line of shell that means just them; given; NULL: no memory. */
char *words_quote(char *const *words);
/* stdout, flushed. */
int cmd_flush(const struct cmd *c);
/* Prints it, flushed, and takes it. Fails when memory was short for it (json_memory.h). */
int cmd_json(const struct cmd *c, struct json_t *object);
/* Whether a name will do for an environment, a branch, a session: says why not. */
int name_check(const struct cmd *c, const char *name);

struct sub {
	const char *verb, *sub, *synopsis; /* sub NULL: the verb has none */
	int (*fn)(struct cmd *c);	   /* NULL: the other program's */
};
/* Does what a program was called for. */
int dispatch(const struct sub *subs, size_t n, int argc, char **argv);

int verb_env_create(struct cmd *c);
int verb_env_list(struct cmd *c);
int verb_env_destroy(struct cmd *c);
int verb_test(struct cmd *c);
int verb_shell(struct cmd *c);
int verb_serve(struct cmd *c);
int verb_session_start(struct cmd *c);
int verb_session_run(struct cmd *c);
int verb_session_interrupt(struct cmd *c);
int verb_session_list(struct cmd *c);
int verb_session_end(struct cmd *c);

/* ---- the view that a directory is in (env_place.c) ---- */

struct place {
	char *dir;	 /* absolute, real; owned */
	char *mount;	 /* the view's root; owned */
	char *store;	 /* owned */
	char branch[64]; /* "": it shows a snapshot */
	char head[16];
};
/* dir NULL: ".". A failure says that there is no view, and what to do. */
int place_find(const struct cmd *c, const char *dir, struct place *ret);
void place_release(struct place *p);
/*
 * 1: a view is mounted there, or above it; 0: none that lives and is ours; or -errno: it does not
 * tell.
 */
int place_is_view(const char *dir);

/* A directory of ours, mode 0700, made if needed: "session", "env". Its path; owned. */
int place_runtime(const struct cmd *c, const char *name, char **ret);
/* The same, not made: where it cannot be, or HOME is on a read-only disk, nothing is in it. */
int place_state(const struct cmd *c, const char *name, char **ret);
/*
 * Makes a directory and those above it, for us alone; path is as it was afterwards. variable: what
 * names another place where it cannot be.
 */
int place_make_dir(const struct cmd *c, char *path, const char *variable);

/* ---- records (env_record.c) ---- */

enum record_origin {
	FORKED,	 /* a branch of its own: unmounted and dropped */
	COVERED, /* mounted over a directory: unmounted */
	ADOPTED, /* there was a view: it stays */
};

struct record {
	char *name, *kind, *path; /* owned; path: of its directory */
	char *store, *branch;	  /* of a fork; owned */
	enum record_origin origin;
	struct json_t *options; /* an object of strings: for ply_env_set; owned */
};
void record_release(struct record *r);
/* A failure when there is one. Before anything is made for it: record_create looks again. */
int record_must_be_free(const struct cmd *c, const char *name);
/* A new one; a failure when the name is taken. */
int record_create(const struct cmd *c, const struct record *r);
int record_remove(const struct cmd *c, const char *name);
/* A failure when there is none. */
int record_load(const struct cmd *c, const char *name, struct record *ret);
/* All that can be read, by name; others are told. *ret malloced, each to be released. */
int record_list(const struct cmd *c, struct record **ret, size_t *ret_n);

/* An option that somebody typed; MISUSE: it is wrong. */
int env_set(const struct cmd *c, struct ply_env *env, const char *name, const char *value);
/* A kind with a record's options; not set up. */
int env_of_record(const struct cmd *c, const struct record *r, struct ply_env **ret);
/*
 * The environment that the place lies in, as it was created, or else a local one; set up, and not
 * changed by its end. test_command, timeout: instead of its own; may be NULL.
 */
int env_of_place(const struct cmd *c, const struct place *p, const char *test_command,
		 const char *timeout, struct ply_env **ret);

/* ---- sessions (session.c; their process: session_host.c) ---- */

/* Ends the sessions that were started in a directory or below. */
int sessions_end(const struct cmd *c, const char *dir);
