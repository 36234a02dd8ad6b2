/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What the keeper's program does: descriptor 3 is the socket to the process that it works for, 4
 * stands for that process (a pidfd; may be closed).
 */

#include "env/keeper.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define SOCK 3
#define CALLER 4

int keeper_program(void)
{
	struct stat st;
	int null;

	if (fstat(SOCK, &st) < 0 || !S_ISSOCK(st.st_mode)) {
		static const char words[] =
			"plyfs-keeper: not for calling by hand: libplyfs starts it\n";

		return write(2, words, sizeof(words) - 1) < 0 ? 1 : 2;
	}
	/* For commands: it stays open, where it is one of the three that the caller had closed. */
	null = open("/dev/null", O_RDWR);
	for (int fd = 0; fd < 3; fd++)
		if (null < 0 || dup2(null, fd) < 0)
			return 1;
	if (null > 2)
		(void)close(null);
	(void)close_range(CALLER + 1, ~0u, 0); /* libplyfs passes no others on */
	(void)fcntl(SOCK, F_SETFD, FD_CLOEXEC);
	return keeper_main(SOCK, fcntl(CALLER, F_SETFD, FD_CLOEXEC) == 0 ? CALLER : -1);
}
