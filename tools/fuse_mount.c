/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Getting a mounted /dev/fuse descriptor: by mount(2) as root, by the setuid helper fusermount3
 * otherwise. The client does it, not the daemon: the mount belongs into the namespace and to the
 * rights of whoever asked.
 *
 * mount(2) returns before the daemon has answered INIT: until the daemon has the descriptor,
 * nothing in this process may touch the mount point, or it would wait for ever.
 */

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>

#include "store/base/fdpass.h"
#include "store/base/util.h"
#include "tools/client.h"
#include "tools/mounts.h"

extern char **environ;

/*
 * Unless it is asked otherwise: devices and setuid programs in a view are as its writer made them,
 * and that need not be who mounts it.
 */
static unsigned long view_flags(const struct fuse_mount *m)
{
	return MS_NOATIME | (m->suid ? 0 : MS_NOSUID) | (m->dev ? 0 : MS_NODEV) |
	       (m->read_only ? MS_RDONLY : 0);
}

int fuse_open(struct client *cl, int *ret_fd)
{
	int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);

	if (fd >= 0) {
		*ret_fd = fd;
		return DONE;
	}
	if (errno == ENOENT || errno == ENODEV || errno == ENXIO)
		return client_fail(
			cl, "there is no /dev/fuse; as root: modprobe fuse; in a container: run it "
			    "with --device /dev/fuse --cap-add SYS_ADMIN");
	if (errno == EPERM || errno == EACCES)
		return client_fail(cl,
				   "/dev/fuse may not be opened (%s); as root: chmod 666 "
				   "/dev/fuse; in a container: run it with --device /dev/fuse "
				   "--cap-add SYS_ADMIN",
				   strerror(errno));
	return client_fail(cl, "/dev/fuse: %s", strerror(errno));
}

static int mount_as_root(struct client *cl, const struct fuse_mount *m, int *ret_fd)
{
	_cleanup_close_ int fd = -1;
	char options[200];
	int r;

	r = fuse_open(cl, &fd);
	if (r)
		return r;

	/* 40000: the root is a directory. Checks by mode are the kernel's (default_permissions). */
	snprintf(options, sizeof(options),
		 "fd=%d,rootmode=40000,user_id=%u,group_id=%u,default_permissions%s", fd,
		 (unsigned)getuid(), (unsigned)getgid(), m->private ? "" : ",allow_other");
	if (mount("plyfs", m->mountpoint, PLYFS_FS_TYPE, view_flags(m), options) < 0) {
		if (errno == EPERM)
			return client_fail(cl,
					   "this root may not mount; in a container: run it with "
					   "--device /dev/fuse --cap-add SYS_ADMIN");
		if (errno == EACCES) /* root may search all paths: a security module says so */
			return client_fail(cl,
					   "mounting on '%s' is forbidden, as AppArmor does; in a "
					   "container: run it with --security-opt "
					   "apparmor=unconfined, too",
					   m->mountpoint);
		if (errno == ENODEV)
			return client_fail(cl, "the kernel has no fuse; as root: modprobe fuse");
		return client_fail(cl, "mounting on '%s': %s", m->mountpoint, strerror(errno));
	}

	*ret_fd = TAKE_FD(fd);
	return DONE;
}

/* What fusermount3 sends when it mounted: one byte and the descriptor. */
static int receive_fd(int sock)
{
	char byte;
	int fd;

	return fdpass_receive(sock, &byte, 1, 0, &fd, 1) > 0 ? fd : -1;
}

/* What fusermount3 does not say, as the end of its sentence. */
static const char *advice(const struct client *cl, const char *said)
{
	if (strstr(said, "could not determine username"))
		return "; it wants this user to have a line in /etc/passwd";
	if (strstr(said, "user_allow_other"))
		return "; as root: echo user_allow_other >>/etc/fuse.conf";
	if (!strstr(said, "mount failed: Operation not permitted"))
		return "";
	if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1)
		return "; " MOUNTS_NO_NEW_PRIVS;
	return strcmp(cl->verb, "doctor") ? "; see 'plyfs doctor'" : "";
}

static int mount_as_user(struct client *cl, const struct fuse_mount *m, int *ret_fd)
{
	char options[100], said[500] = "", number[16];
	char *argv[] = { (char *)"fusermount3", (char *)"-o",	       options,
			 (char *)"--",		(char *)m->mountpoint, NULL };
	_cleanup_close_ int ours = -1, theirs = -1, words_in = -1, words_out = -1, fuse = -1;
	posix_spawn_file_actions_t actions;
	int pair[2], words[2], r, status;
	size_t len = 0;
	pid_t pid;

	if (m->suid || m->dev)
		return client_fail(cl, "--%s is for root", m->suid ? "suid" : "dev");
	r = fuse_open(cl, &fuse); /* only to see whether it is there */
	if (r)
		return r;
	snprintf(options, sizeof(options),
		 "fsname=plyfs,subtype=plyfs,default_permissions,noatime%s%s",
		 m->read_only ? ",ro" : "", m->allow_other ? ",allow_other" : "");
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
		return client_fail(cl, "a socket pair: %s", strerror(errno));
	ours = pair[0];
	theirs = pair[1];
	if (pipe2(words, O_CLOEXEC) < 0)
		return client_fail(cl, "a pipe: %s", strerror(errno));
	words_in = words[0];
	words_out = words[1];

	/* 3 and 2 in the helper, whatever they are here. */
	snprintf(number, sizeof(number), "%d", 3);
	setenv("_FUSE_COMMFD", number, 1);
	r = posix_spawn_file_actions_init(&actions);
	if (r)
		return client_fail(cl, "starting fusermount3: %s", strerror(r));
	posix_spawn_file_actions_adddup2(&actions, words_out, 2);
	posix_spawn_file_actions_adddup2(&actions, theirs, 3);
	r = posix_spawnp(&pid, argv[0], &actions, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	unsetenv("_FUSE_COMMFD");
	if (r == ENOENT)
		return client_fail(
			cl,
			"no fusermount3, which mounts for ordinary users: install fuse3");
	if (r)
		return client_fail(cl, "starting fusermount3: %s", strerror(r));
	closep(&theirs);
	closep(&words_out);
	theirs = words_out = -1;

	*ret_fd = receive_fd(ours);
	for (ssize_t n; len < sizeof(said) - 1; len += (size_t)n) {
		n = read(words_in, said + len, sizeof(said) - 1 - len);
		if (n <= 0)
			break;
	}
	said[len] = 0;
	said[strcspn(said, "\n")] = 0;
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (*ret_fd < 0 && strstr(said, "mount failed: Permission denied") &&
	    access(MOUNTS_PROFILE, F_OK) == 0)
		return client_fail(cl, "mounting on '%s': " MOUNTS_PROFILE_ALLOWS, m->mountpoint);
	if (*ret_fd < 0)
		return client_fail(cl, "mounting on '%s': %s%s", m->mountpoint,
				   *said ? said : "fusermount3 failed", advice(cl, said));
	return DONE;
}

int fuse_mount(struct client *cl, const struct fuse_mount *m, int *ret_fd)
{
	return geteuid() == 0 ? mount_as_root(cl, m, ret_fd) : mount_as_user(cl, m, ret_fd);
}

/*
 * The kernel reads 128 KiB ahead unless root tells it more, for each mount. A request brings 1 MiB
 * at most: a file of 256 MiB, read for the first time, came in two thirds of the time with that,
 * and no sooner with 4 MiB.
 */
#define READ_AHEAD_KIB "1024"

void fuse_read_ahead(const char *mountpoint)
{
	_cleanup_close_ int fd = -1;
	struct stat st;
	char path[80];

	/* The stat waits for the daemon's answer to INIT, which would set it back. */
	if (geteuid() != 0 || stat(mountpoint, &st) < 0)
		return;
	snprintf(path, sizeof(path), "/sys/class/bdi/%u:%u/read_ahead_kb", major(st.st_dev),
		 minor(st.st_dev));
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd >= 0)
		(void)!write(fd, READ_AHEAD_KIB, strlen(READ_AHEAD_KIB)); /* slower at worst */
}

void fuse_unmount(const char *mountpoint)
{
	(void)mounts_unmount(mountpoint,
			     true); /* best effort: there is an error to report already */
}

int fuse_remount(struct client *cl, const char *mountpoint, char *options)
{
	struct fuse_mount m = {};
	bool remount = false;
	struct statvfs now;
	char *save = NULL;
	unsigned long flags;

	if (statvfs(mountpoint, &now) < 0)
		return client_fail(cl, "remounting '%s': %s", mountpoint, strerror(errno));
	m.suid = !(now.f_flag & ST_NOSUID);
	m.dev = !(now.f_flag & ST_NODEV);
	flags = view_flags(&m) | MS_REMOUNT;
	/* All that it was mounted with comes again; the kernel lets only these change. */
	for (char *o = strtok_r(options, ",", &save); o; o = strtok_r(NULL, ",", &save)) {
		if (strcmp(o, "remount") == 0)
			remount = true;
		if (strcmp(o, "ro") == 0)
			flags |= MS_RDONLY;
		if (strcmp(o, "noexec") == 0)
			flags |= MS_NOEXEC;
	}
	if (!remount)
		return client_fail(cl, "a view is mounted by 'plyfs mount', not by mount(8)");
	if (mount("plyfs", mountpoint, PLYFS_FS_TYPE, flags, NULL) < 0)
		return client_fail(cl, "remounting '%s': %s", mountpoint,
				   errno == EBUSY ? "a file in it is open for writing"
						  : strerror(errno));
	return DONE;
}
