/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A SWEEnv for the tests of it. */

#include <stdlib.h>
#include <string.h>

#include "env/plyfs.h"
#include "tests/unit/run.h"

static inline struct ply_swe *swe_of(const char *config)
{
	struct ply_swe *swe = NULL;
	int r = ply_swe_from_config(config, strlen(config), &swe);

	ck_assert_msg(r == 0, "%s: %s", config, ply_error());
	return swe;
}

static inline void run_or_die(const char *command)
{
	ck_assert_msg(system(command) == 0, "%s", command);
}
