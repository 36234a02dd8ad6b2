/* SPDX-License-Identifier: Apache-2.0 */

/* The control interface from its caller's side, for programs that link nothing else of fs/. */

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/ioctl.h"
#include "store/base/util.h"

/*
 * The root of the mount, or what else is seen of the filesystem from here: ".." ends where another
 * one begins, or where the caller's root is. -1: none.
 */
static int open_top(int dir_fd)
{
	_cleanup_close_ int fd = openat(dir_fd, ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
	struct stat st, up_st;

	if (fd < 0 || fstat(fd, &st) < 0)
		return -1;
	for (;;) {
		_cleanup_close_ int up = openat(fd, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);

		if (up < 0 || fstat(up, &up_st) < 0 || up_st.st_dev != st.st_dev ||
		    up_st.st_ino == st.st_ino)
			break;
		close(fd);
		fd = TAKE_FD(up);
		st = up_st;
	}
	return openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* ioctl wants a real one */
}

/*
 * To move a directory's name the kernel wants the locks of where it was and of renames, and waits
 * for neither (ESTALE): who makes or removes a file there has one for microseconds, or on a busy
 * machine some milliseconds. So often it is tried again in all, a millisecond later each time:
 * nobody waits longer for a restore than half a second for that. Whoever walks by after it does it,
 * or gets the ESTALE.
 */
#define TRIES 500

/* That it is looked up is all; who may not do that loses nothing. */
static void see(int top, const char *path, int *tries)
{
	struct stat st;

	while (fstatat(top, path, &st, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT) < 0 &&
	       errno == ESTALE && --*tries > 0)
		(void)usleep(1000);
}

static void see_moved(int top)
{
	struct plyfs_moved q = { 0 };
	int tries = TRIES;

	do {
		if (ioctl(top, PLYFS_IOC_MOVED, &q) < 0)
			return;
		/* The daemon may be another user's. */
		if (q.len > sizeof(q.paths) || (q.len && q.paths[q.len - 1]))
			return;
		for (size_t at = 0; at < q.len; at += strlen(q.paths + at) + 1)
			see(top, q.paths + at, &tries);
	} while (q.next);
}

void plyfs_see_restored(int dir_fd, const char *left, const char *now)
{
	_cleanup_close_ int top = open_top(dir_fd);

	if (top < 0)
		return;
	see_moved(top);
	if (left && now)
		plyfs_tell_watchers(top, left, now);
}

int plyfs_control(int dir_fd, unsigned long cmd, void *q)
{
	const struct plyfs_restore *restored = q;

	if (ioctl(dir_fd, cmd, q) < 0)
		return -1;
	if ((cmd == PLYFS_IOC_RESTORE || cmd == PLYFS_IOC_UNDO) &&
	    restored->flags & (PLYFS_RESTORE_MOVED | PLYFS_RESTORE_TELL)) {
		bool tell = restored->flags & PLYFS_RESTORE_TELL;

		plyfs_see_restored(dir_fd, tell ? restored->left : NULL,
				   tell ? restored->id : NULL);
	}
	return 0;
}
