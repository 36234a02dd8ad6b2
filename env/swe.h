/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The inside of a SWEEnv; the outside is plyfs.h. */

#include <jansson.h>
#include <pthread.h>

#include "env/plyfs.h"
#include "env/swe_deploy.h"
#include "env/swe_repo.h"

struct ply_swe {
	json_t *config;	       /* immutable, owned: as swe_config_parse leaves it */
	struct swe_repo *repo; /* immutable, owned; may be NULL */

	/*
	 * One life cycle step (start, reset, hard reset, close, adding a hook) at a time.
	 * Recursive: hooks run under it and may call anything, and a failed command closes from
	 * within.
	 */
	pthread_mutex_t serial;
	struct ply_swe_hooks *hooks; /* under serial, owned */
	size_t n_hooks;
	struct ply_text snapshot; /* under serial: what reset restores; empty: by commands */
	bool snapshot_is_clean;	  /* under serial: nothing of the reset is left to do after it */

	pthread_mutex_t lock;
	struct swe_deploy *deploy; /* under lock, a reference; NULL: not started */
};

/* The deployment with a reference for the caller; NULL when not started. */
struct swe_deploy *swe_deployment(struct ply_swe *swe);
