/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tools/cmd.h"

/*
 * Serves a branch on the descriptor that came with the request (taken), mounted on `at`, as `how`
 * says (fs/how.h). Reports failures; an exit code.
 */
int cmd_mount_branch(struct cmd *c, const char *branch, const char *at, uint32_t how);
