/* SPDX-License-Identifier: Apache-2.0 */

/* serve_environment of cloud.h: what of an environment the protocols work on. */

#include "env/env_internal.h"
#include "env/serve/chimera.h"
#include "env/serve/cloud.h"
#include "env/serve/native.h"

static int wrap(void *arg, const char *const *argv, const char *const *env, bool terminal,
		char ***ret)
{
	struct ply_env *e = arg;

	return e->ops->wrap(e, argv, env, terminal, ret);
}

static int locate(void *arg, const char *path, char ret[static PATH_MAX])
{
	struct ply_env *e = arg;

	return e->ops->locate(e, path, ret);
}

void serve_environment(struct serve_options *o, struct ply_env *e)
{
	o->place = (struct rex_place){
		.keeper = e->keeper,
		.cwd = e->workdir,
		.wrap = e->ops->wrap ? wrap : NULL,
		.locate = e->ops->locate ? locate : NULL,
		.root = e->workdir,
		.arg = e,
		.limits = { .memory = env_count(e, "memory"),
			    .processes = env_count(e, "processes"),
			    .cpu_time = env_count(e, "cpu_time") },
		.output_limit = env_count(e, "output_limit"),
	};
	o->protocols[0] = (struct serve_protocol){ .name = "chimera",
						   .endpoints = chimera_endpoints,
						   .n = n_chimera_endpoints,
						   .arg = e,
						   .claims = chimera_is_execute };
	o->protocols[1] = (struct serve_protocol){ .name = "native",
						   .endpoints = native_endpoints,
						   .n = n_native_endpoints,
						   .arg = e };
}
