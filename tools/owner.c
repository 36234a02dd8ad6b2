/* SPDX-License-Identifier: Apache-2.0 */

#include "tools/owner.h"

#include <errno.h>
#include <grp.h>
#include <unistd.h>

int owner_begin(int dir_fd)
{
	struct stat st;

	if (fstat(dir_fd, &st) < 0)
		return -errno;
	if (geteuid() != 0 || st.st_uid == 0)
		return 0;
	if (setgroups(0, NULL) < 0 || setegid(st.st_gid) < 0 || seteuid(st.st_uid) < 0)
		return -errno;
	return 0;
}

void owner_end(void)
{
	if (getuid() != 0 || geteuid() == 0)
		return;
	if (seteuid(0) < 0 || setegid(getgid()) < 0)
		_exit(1); /* never; what is to come wants root */
}

int become_owner(const struct stat *st)
{
	if (geteuid() != 0 || st->st_uid == 0)
		return 0;
	if (setgroups(0, NULL) < 0 || setgid(st->st_gid) < 0 || setuid(st->st_uid) < 0)
		return -errno;
	return 0;
}
