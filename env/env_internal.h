/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The inside of an environment: one struct, and a table of functions per kind. env.c holds what is
 * the same for all (life cycle, dispatch), env_options.c the options; a kind fills the table and
 * may fall back on another kind's functions (git and container are local ones with something
 * added): env_local.setup(e).
 */

#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "env/plyfs.h"
#include "env/proc.h"
#include "env/workspace.h"

/* The options of plyfs.h, as text; NULL: not set. Made by this list: struct, set, get. */
#define ENV_OPTIONS(X) \
	X(workdir) X(store) X(from) X(branch) X(at_cleanup) X(test_command) X(test_report) \
	X(test_rule) X(timeout) X(session) X(merge) X(output_limit) X(exclude) \
	X(commit) X(ref) \
	X(runtime) X(root) X(at) X(network) X(memory) X(processes) X(cpu_time) \
	X(host) X(port) X(api_key) X(tls) X(working_dir) \
	X(url) X(image) X(keep_alive) X(init_timeout) X(sandbox_id)

struct env_options {
#define X(name) char *name;
	ENV_OPTIONS(X)
#undef X
};

struct env_ops {
	const char *kind;
	int (*check)(struct ply_env *e); /* options; before setup, may be NULL */
	int (*setup)(struct ply_env *e);
	int (*cleanup)(struct ply_env *e);
	int (*read_file)(struct ply_env *e, const char *path, struct ply_text *ret);
	int (*write_file)(struct ply_env *e, const char *path, const void *data, size_t len);
	int (*list_files)(struct ply_env *e, const char *pattern, struct ply_list *ret);
	int (*run)(struct ply_env *e, const char *command, double timeout, const char *shell,
		   struct ply_result *ret);
	int (*run_tests)(struct ply_env *e, struct ply_tests *ret);
	int (*checkpoint)(struct ply_env *e, const char *label, struct ply_text *ret_id);
	int (*restore)(struct ply_env *e, const char *id);
	int (*undo)(struct ply_env *e);
	int (*clone)(struct ply_env *e, const char *workdir, struct ply_env **ret);
	int (*diff)(struct ply_env *e, const char *a, const char *b, const char *form,
		    struct ply_text *ret);
	int (*upload)(struct ply_env *e, const char *local, const char *path);
	int (*download)(struct ply_env *e, const char *path, const char *local);
	/*
	 * Wraps a command for where it is to run (container: its runtime's words before it). argv
	 * and env are borrowed; *ret is malloced, NULL-terminated, freed with argv_free. env: "K=V"
	 * that the command gets besides what all get there (nothing of the caller's reaches it);
	 * may be NULL. NULL: as it is, with the caller's variables.
	 */
	int (*wrap)(struct ply_env *e, const char *const *argv, const char *const *env,
		    bool terminal, char ***ret);
	/*
	 * Where below e->workdir a path leads that a command names; PLY_DENIED: not below it. NULL:
	 * commands see the machine's paths.
	 */
	int (*locate)(struct ply_env *e, const char *path, char ret[static PATH_MAX]);
};

extern const struct env_ops env_local, env_git, env_container, env_remote, env_cloud;

struct ply_env {
	const struct env_ops *ops;
	struct env_options o;
	/*
	 * Set up or not: held for reading by every verb (env_enter), for writing by setup, cleanup
	 * and set. So cleanup waits for what runs.
	 */
	pthread_rwlock_t life; /* taken before all other locks, those of sessions included */
	bool is_set_up; /* under life; in a kind's cleanup false: setup failed, and is undone */
	bool is_ending; /* atomic: cleanup waits, so nothing may begin any more */
	char *workdir;	/* absolute, real; owned; set while set up */
	double timeout;	/* seconds; set while set up, as is all down to numbers */
	struct keeper *keeper;
	struct workspace *ws;	 /* the view; NULL for remote kinds */
	struct numbers *numbers; /* of decimal checkpoints; NULL for remote kinds */
	pthread_mutex_t restoring; /* one restore at a time: with `exclude` it has steps */
	pthread_mutex_t lock;	 /* sessions */
	struct ply_session **sessions; /* under lock: those of this environment, in order */
	size_t n_sessions;
	bool has_session; /* under lock: start_session was called */
	void *kind; /* the kind's own; freed by its cleanup */
};

/* ---- env.c ---- */

/*
 * Around everything that needs the environment set up; they nest. PLY_STATE when it is not,
 * PLY_FAILED when its view has gone.
 */
int env_enter(struct ply_env *e);
void env_leave(struct ply_env *e);
/* The same kind and options, but no session and no place of its own; not set up. For clone. */
int env_copy(const struct ply_env *e, struct ply_env **ret);
/* ops->setup and what belongs around it: ply_env_setup of a new environment. */
int env_setup(struct ply_env *e);

/* ---- env_options.c ---- */

/* The value in use: as set, else the kind's default, else "". Borrowed until the next set. */
const char *env_option(const struct ply_env *e, const char *name);
bool env_flag(const struct ply_env *e, const char *name);	/* "1"? */
double env_number(const struct ply_env *e, const char *name);	/* 0 if there is none */
uint64_t env_count(const struct ply_env *e, const char *name);	/* the same */
void env_options_release(struct env_options *o);

/* ---- local.c: for kinds that are local ones with something added ---- */

/*
 * A command as env->run does it, in the keeper, wrapped, its output collected. command is for
 * /bin/sh -c.
 */
int local_run(struct ply_env *e, const char *command, double timeout, const char *shell,
	      struct ply_result *ret);
/*
 * workspace_restore (id NULL: undo), which leaves alone the directories that `exclude` names, and
 * refuses on / and HOME. ret_left may be NULL: as there.
 */
int local_switch(struct ply_env *e, const char *id, char ret_left[SNAP_TEXT]);
/* The refusal alone, for a restore that goes another way. PLY_DENIED. */
int local_check_restore(struct ply_env *e);
/* For tables of kinds. */
int local_read_file(struct ply_env *e, const char *path, struct ply_text *ret);
int local_write_file(struct ply_env *e, const char *path, const void *data, size_t len);
int local_list_files(struct ply_env *e, const char *pattern, struct ply_list *ret);
int local_checkpoint(struct ply_env *e, const char *label, struct ply_text *ret_id);
int local_clone(struct ply_env *e, const char *workdir, struct ply_env **ret);
int local_diff(struct ply_env *e, const char *a, const char *b, const char *form,
	       struct ply_text *ret);
int local_upload(struct ply_env *e, const char *local, const char *path);
int local_download(struct ply_env *e, const char *path, const char *local);

/* ---- others' ---- */

int env_run_tests(struct ply_env *e, struct ply_tests *ret); /* run_tests.c */

void argv_free(char **argv);
