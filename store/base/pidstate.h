/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What a process is doing, by /proc/PID/stat (proc_pid_stat(5)). Inline: programs that link nothing
 * else of ours ask as well.
 */

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

/*
 * 'R' running, 'S' sleeping, 'D' waiting for a disk, 'T' stopped, 'Z' dead and not reaped, ...;
 * 0: there is none, or it cannot be told.
 */
static inline char pid_state(pid_t pid)
{
	char path[32], line[64]; /* "PID (NAME) R": a name has at most 15 bytes */
	const char *end;
	ssize_t n = -1;
	int fd;

	(void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		n = read(fd, line, sizeof(line) - 1);
		(void)close(fd);
	}
	line[n > 0 ? n : 0] = '\0';
	end = strrchr(line, ')'); /* the name before it may hold anything */
	return end && end[1] ? end[2] : '\0';
}

/* There is such a process, and it has not ended. */
static inline bool pid_is_alive(pid_t pid)
{
	char state = pid_state(pid);

	return state != '\0' && state != 'Z' && state != 'X';
}
