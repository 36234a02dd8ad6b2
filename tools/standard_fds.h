/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What our caller closed of 0 to 2 stays so: else what a program opens would be taken for its
 * stdin, stdout or stderr. Each program does it for itself, first of all: what it executes, or a
 * command of the user's, finds them as closed as they were.
 */

#include <fcntl.h>
#include <unistd.h>

static inline void keep_standard_fds(void)
{
	int fd;

	do
		fd = open("/", O_PATH | O_CLOEXEC); /* can be neither read nor written */
	while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd >= 0)
		(void)close(fd);
}
