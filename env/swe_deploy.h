/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Where a SWEEnv runs: a deployment, with one bash session in it. Paths are those of the
 * environment, in which "/" is the deployment's root: the view's directory of a local one
 * (deploy_path says where that is), the root of the container or of the remote machine of others.
 *
 *     local      an environment of kind "local": commands run on this machine
 *     container  an environment of kind "container"
 *     remote     a SWE-ReX server, over HTTP (swe_remote.c)
 *     dummy      nothing: every call returns blanks, commands what the configuration says
 *
 * References are counted, since another thread may be in a call when the SWEEnv is closed: stop
 * ends what is under way, the last unref frees.
 */

#include <jansson.h>

#include "env/plyfs.h"

struct swe_deploy;

struct swe_answer { /* to a command in the session */
	struct ply_text output;
	int exit_code;
	bool exit_code_known;
};

struct swe_execute {
	const char *command;	/* for /bin/sh -c */
	double timeout;		/* <= 0: none */
	bool check;		/* non-zero: PLY_COMMAND_FAILED, *ret filled all the same */
	const char *const *env; /* n_env "K=V", instead of the deployment's; NULL: inherited */
	size_t n_env;
	const char *cwd; /* NULL: the deployment's */
};

struct swe_deploy_ops {
	const char *type;
	int (*start)(struct swe_deploy *d);
	/* afresh: what a hard reset needs; the next start finds what the first one found. */
	int (*stop)(struct swe_deploy *d, bool afresh);
	/* The session "default". */
	int (*create_session)(struct swe_deploy *d);
	int (*run)(struct swe_deploy *d, const char *command, double timeout,
		   struct swe_answer *ret);
	int (*interrupt)(struct swe_deploy *d);
	int (*execute)(struct swe_deploy *d, const struct swe_execute *x, struct ply_result *ret);
	int (*read_file)(struct swe_deploy *d, const char *path, struct ply_text *ret);
	int (*write_file)(struct swe_deploy *d, const char *path, const void *data, size_t len);
	/* 1: something is there. 0: nothing. */
	int (*exists)(struct swe_deploy *d, const char *path);
	/* Copies this machine's directory `from` to a path that is not there yet. */
	int (*copy_tree)(struct swe_deploy *d, const char *from, const char *path);
	/* As upstream's clone with depth 1; NULL: by commands in the environment. */
	int (*clone)(struct swe_deploy *d, const char *url, const char *commit, double timeout,
		     const char *path);
	/* NULL: this deployment keeps no snapshots. */
	int (*checkpoint)(struct swe_deploy *d, struct ply_text *ret_id);
	int (*restore)(struct swe_deploy *d, const char *id);
};

struct swe_deploy {
	const struct swe_deploy_ops *ops;
	const json_t *config; /* borrowed until the last unref: checked fields of its type */
	unsigned refs;	      /* atomic */
	char *root;	      /* what "/" is there, without a final slash: "" or a path; owned */
	char *top;    /* of local and container: the same place as this machine sees it; owned */
	bool offline; /* commands in it have no network */
	bool unprivileged;   /* nothing can be given to root */
	struct ply_env *env; /* of local and container */
	struct ply_session *session;
	struct ply_text scratch;  /* the store of one that begins with nothing */
	struct ply_text pristine; /* a checkpoint of the state before the first change */
	void *kind;		  /* the type's own */
	void (*free_kind)(void *kind);
};

extern const struct swe_deploy_ops deploy_local, deploy_container, deploy_remote, deploy_dummy;

/* config: of one deployment, as swe_config_parse leaves it. Contacts nothing. */
int swe_deploy_new(const json_t *config, struct swe_deploy **ret);
struct swe_deploy *swe_deploy_ref(struct swe_deploy *d);
void swe_deploy_unref(struct swe_deploy *d);
void swe_deploy_unrefp(struct swe_deploy **d);

void swe_answer_free(struct swe_answer *a);

/*
 * Where `path` ("/x", absolute in the environment) is for the processes in it. One that begins with
 * the root already is left alone, so that what `pwd` printed may be handed back.
 */
int deploy_path(const struct swe_deploy *d, const char *path, struct ply_text *ret);
/* PLY_COMMAND_FAILED in the words of a checked command. */
int execute_failed(const char *command, const struct ply_result *result);

/* The calls that a dummy deployment got, one line each: "run 25 cd /". For tests. */
const struct ply_list *dummy_calls(const struct swe_deploy *d);
