/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Paths as commands in a container see them (container.c). What comes out is only where to look:
 * files.h opens it, and follows no symlink that was put there meanwhile.
 */

#include <limits.h>

#include "env/env_internal.h"

/*
 * The path below e->workdir ("." for itself) of what a command in the container would mean; in a
 * work folder, a path that lies elsewhere as it is. PLY_INVALID: too long, a loop.
 */
int container_map(struct ply_env *e, const char *path, char ret[static PATH_MAX]);
