/* SPDX-License-Identifier: Apache-2.0 */

/* plyfs-session: the verbs on a session that is there; see env.h. */

#include "tools/env.h"

#include "store/base/util.h"
#include "tools/standard_fds.h"

static const struct sub subs[] = {
	{ "session", "start", "", NULL }, /* plyfs-env has it; named for the mistake's line */
	{ "session", "run", "[OPTION]... NAME -- COMMAND... | -", verb_session_run },
	{ "session", "interrupt", "[--in DIR] NAME", verb_session_interrupt },
	{ "session", "list", "[--in DIR] [--json]", verb_session_list },
	{ "session", "end", "[--in DIR] NAME", verb_session_end },
};

int main(int argc, char **argv)
{
	keep_standard_fds();
	return dispatch(subs, ARRAY_SIZE(subs), argc, argv);
}
