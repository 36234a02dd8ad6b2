/* SPDX-License-Identifier: Apache-2.0 */

/* plyfs-env: the verbs that link libplyfs; see env.h. */

#include "tools/env.h"

#include "store/base/util.h"
#include "tools/standard_fds.h"

static const struct sub subs[] = {
	{ "env", "create", "[OPTION]... NAME [DIR]", verb_env_create },
	{ "env", "list", "[--json]", verb_env_list },
	{ "env", "destroy", "[--write-back] [--force] NAME", verb_env_destroy },
	{ "test", NULL, "[--in DIR] [--timeout S] [--json] [-- COMMAND...]", verb_test },
	{ "session", "start", "[--in DIR] NAME", verb_session_start },
	{ "shell", NULL, "[--in DIR] [--at-exit keep|checkpoint|discard]", verb_shell },
	{ "serve", NULL, "[OPTION]...", verb_serve },
};

int cmd_ply_failed(const struct cmd *c)
{
	return cmd_fail(c, "%s", ply_error());
}

int main(int argc, char **argv)
{
	keep_standard_fds();
	return dispatch(subs, ARRAY_SIZE(subs), argc, argv);
}
