/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The inside of an environment: one struct, and a table of functions per kind. env.c holds what is
 * the same for all (options, dispatch, sessions' registry); a kind fills the table and may fall
 * back on another kind's functions (git and container are local ones with something added).
 */

#include <pthread.h>

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
	 * is borrowed; *ret is malloced, NULL-terminated, freed with argv_free. NULL: as it is.
	 */
	int (*wrap)(struct ply_env *e, const char *const *argv, bool terminal, char ***ret);
};

extern const struct env_ops env_local, env_git, env_container, env_remote, env_cloud;

struct ply_env {
	const struct env_ops *ops;
	struct env_options o;
	bool is_set_up;
	char *workdir; /* absolute, real; owned */
	double timeout;
	struct keeper *keeper;
	struct workspace *ws; /* the view; NULL for remote kinds */
	pthread_mutex_t lock; /* sessions, ids */
	uint64_t next_id;     /* under lock: of decimal checkpoints */
	struct ply_session **sessions; /* under lock: those of this environment, in order */
	size_t n_sessions;
	bool has_session; /* under lock: start_session was called */
	void *kind; /* the kind's own; freed by its cleanup */
};

void argv_free(char **argv);
