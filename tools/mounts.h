/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What is mounted where, from /proc/self/mountinfo; and taking plyfs mounts down. */

#include <linux/magic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/vfs.h>

#define PLYFS_FS_TYPE "fuse.plyfs"

/* Where fusermount3 looks before it unmounts anything. Bare roots, of debootstrap say, lack it. */
#define MOUNTS_MTAB "/etc/mtab"
#define MOUNTS_MTAB_CURE "as root: ln -s ../proc/self/mounts " MOUNTS_MTAB

/* From Ubuntu 25.04 on fusermount3 may not mount everywhere: the profile's file, what it says. */
#define MOUNTS_PROFILE "/etc/apparmor.d/fusermount3"
#define MOUNTS_PROFILE_ALLOWS \
	"AppArmor lets ordinary users mount only below home directories, /mnt, /media, /tmp " \
	"and /run/user, unless root allows more in /etc/apparmor.d/local/fusermount3"

/* A setting of sandboxes and of Docker's (no-new-privileges). */
#define MOUNTS_NO_NEW_PRIVS \
	"this process has given up gaining rights (no_new_privs), which fusermount3 needs"

struct mount_entry {
	const char *path; /* decoded, as is: */
	const char *root; /* what it shows of its filesystem: "/" for all of it */
	const char *type; /* "fuse.plyfs" */
	const char *source;
	const char *options; /* of the filesystem, not of this mount */
	unsigned major, minor;
};

/* Each mount in this namespace, in the kernel's order. Non-zero from fn stops and is returned. */
int mounts_each(int (*fn)(void *arg, const struct mount_entry *e), void *arg);

/* 1 when the topmost mount at exactly this absolute path is a plyfs view, else 0, or -errno. */
int mounts_is_plyfs(const char *path);

/*
 * Takes down the plyfs mount at an absolute path: umount2, and where that is not permitted
 * fusermount3. -EBUSY when processes are in it (not when lazy), -EPERM when it is another user's,
 * -ENOTSUP when fusermount3 cannot look it up.
 */
int mounts_unmount(const char *path, bool lazy);

/* The number of the topmost mount at path, which no other one gets (Linux 6.8); 0: not known. */
uint64_t mounts_number(const char *path);
/*
 * Takes that one down, lazily, when nobody serves it any more: -ESTALE when it is not at path any
 * more. 0: whichever is there.
 */
int mounts_detach(const char *path, uint64_t number);

/*
 * For who was refused a directory (EACCES): is it where another user has mounted what is closed to
 * all others? Of that statfs tells the type, and nothing else.
 */
static inline bool mounts_is_closed(const char *path)
{
	struct statfs fs;

	return statfs(path, &fs) == 0 && fs.f_type == FUSE_SUPER_MAGIC;
}

/* What follows the directory's name then. */
#define MOUNTS_CLOSED \
	"is mounted by another user, whose views are closed to all others, root too: ask as that " \
	"user, or have it mounted with --allow-other"
