/* SPDX-License-Identifier: Apache-2.0 */

/* serve_environment of cloud.h: what of an environment the protocols work on. */

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "env/env_internal.h"
#include "env/serve/chimera.h"
#include "env/serve/cloud.h"
#include "env/serve/native.h"
#include "env/status.h"
#include "store/base/util.h"

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

/* An environment that keeps more output than a server may keeps less from now on. */
static int limit_output(struct ply_env *e, uint64_t max)
{
	uint64_t own = env_count(e, "output_limit");
	char *text;

	if (own && own <= max)
		return 0;
	if (asprintf(&text, "%" PRIu64, max) < 0)
		return fail_memory();
	WRITE_GUARD(&e->life);
	free(e->o.output_limit);
	e->o.output_limit = text;
	return 0;
}

int serve_environment(struct serve_options *o, struct ply_env *e)
{
	int r = limit_output(e, o->max_output ? o->max_output : REX_OUTPUT_LIMIT);

	if (r < 0)
		return r;
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
		.max_sessions = o->place.max_sessions, /* of a sandbox: as they were */
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
	return 0;
}
