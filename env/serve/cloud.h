/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Chimera's provisioning protocol: a sandbox is a fork of the environment that is served, behind a
 * port of its own (its client knows a host and a port, and nothing else). It is ready at once. An
 * image is a snapshot, as restore takes it; without one it is the environment's present state.
 */

#include "env/plyfs.h"
#include "env/serve/endpoint.h"
#include "env/serve/serve.h"

struct cloud;

/*
 * Sets place and protocols of o to what serves one environment (not its cloud), which is set up and
 * used by nobody yet: its output_limit is lowered to o->max_output. PLY_NO_MEMORY.
 */
int serve_environment(struct serve_options *o, struct ply_env *env);

/* What sandboxes are forks of, and how they are to be served: borrowed; the port is not used. */
int cloud_new(struct ply_env *env, const struct serve_options *o, struct cloud **ret);
void cloud_free(struct cloud *c); /* drops all sandboxes */
/* Puts its protocol beside the others of o; NULL: what says how there would be one. */
void serve_cloud(struct serve_options *o, struct cloud *c);
