// SPDX-License-Identifier: Apache-2.0

#include "env/transfer/git.h"

void git_hunks(struct chan *c)
{
	program_fail(c, -ENOSYS, "not yet");
}
