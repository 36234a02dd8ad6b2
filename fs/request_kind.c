/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What is known of a request by its kind alone, before it is handled: its opcode, and of an ioctl
 * the command. Whoever teaches the adapter a new kind looks here.
 */

#include <linux/fuse.h>
#include <string.h>

#include "fs/mount_internal.h"

const char *request_name(uint32_t opcode)
{
	static const char *const names[OPS_MAX] = {
		[FUSE_LOOKUP] = "LOOKUP",
		[FUSE_FORGET] = "FORGET",
		[FUSE_GETATTR] = "GETATTR",
		[FUSE_SETATTR] = "SETATTR",
		[FUSE_READLINK] = "READLINK",
		[FUSE_SYMLINK] = "SYMLINK",
		[FUSE_MKNOD] = "MKNOD",
		[FUSE_MKDIR] = "MKDIR",
		[FUSE_UNLINK] = "UNLINK",
		[FUSE_RMDIR] = "RMDIR",
		[FUSE_RENAME] = "RENAME",
		[FUSE_LINK] = "LINK",
		[FUSE_OPEN] = "OPEN",
		[FUSE_READ] = "READ",
		[FUSE_WRITE] = "WRITE",
		[FUSE_STATFS] = "STATFS",
		[FUSE_RELEASE] = "RELEASE",
		[FUSE_FSYNC] = "FSYNC",
		[FUSE_SETXATTR] = "SETXATTR",
		[FUSE_GETXATTR] = "GETXATTR",
		[FUSE_LISTXATTR] = "LISTXATTR",
		[FUSE_REMOVEXATTR] = "REMOVEXATTR",
		[FUSE_FLUSH] = "FLUSH",
		[FUSE_INIT] = "INIT",
		[FUSE_OPENDIR] = "OPENDIR",
		[FUSE_READDIR] = "READDIR",
		[FUSE_RELEASEDIR] = "RELEASEDIR",
		[FUSE_FSYNCDIR] = "FSYNCDIR",
		[FUSE_GETLK] = "GETLK",
		[FUSE_SETLK] = "SETLK",
		[FUSE_SETLKW] = "SETLKW",
		[FUSE_ACCESS] = "ACCESS",
		[FUSE_CREATE] = "CREATE",
		[FUSE_INTERRUPT] = "INTERRUPT",
		[FUSE_BMAP] = "BMAP",
		[FUSE_DESTROY] = "DESTROY",
		[FUSE_IOCTL] = "IOCTL",
		[FUSE_POLL] = "POLL",
		[FUSE_BATCH_FORGET] = "BATCH_FORGET",
		[FUSE_FALLOCATE] = "FALLOCATE",
		[FUSE_READDIRPLUS] = "READDIRPLUS",
		[FUSE_RENAME2] = "RENAME2",
		[FUSE_LSEEK] = "LSEEK",
		[FUSE_COPY_FILE_RANGE] = "COPY_FILE_RANGE",
		[FUSE_SYNCFS] = "SYNCFS",
		[FUSE_TMPFILE] = "TMPFILE",
		[OP_STATX] = "STATX",
		[OP_COPY_FILE_RANGE_64] = "COPY_FILE_RANGE_64",
	};

	return names[opcode] ? names[opcode] : "OTHER";
}

unsigned request_undated(const struct fuse_in_header *in, uint64_t ret[static 2])
{
	ret[0] = in->nodeid;
	switch (in->opcode) {
	case FUSE_SYMLINK:
	case FUSE_MKNOD:
	case FUSE_MKDIR:
	case FUSE_UNLINK:
	case FUSE_RMDIR:
	case FUSE_LINK:
	case FUSE_CREATE:
	case FUSE_SETXATTR:
	case FUSE_REMOVEXATTR:
	case FUSE_FALLOCATE:
		return 1;
	case FUSE_RENAME:
	case FUSE_RENAME2: /* both begin with the new directory */
		if (in->len < sizeof(*in) + sizeof(struct fuse_rename_in))
			return 0;
		memcpy(&ret[1], in + 1, sizeof(ret[1]));
		return 2;
	default:
		return 0;
	}
}

bool request_changes(uint32_t opcode)
{
	static const bool table[OPS_MAX] = {
		[FUSE_SETATTR] = true,
		[FUSE_SYMLINK] = true,
		[FUSE_MKNOD] = true,
		[FUSE_MKDIR] = true,
		[FUSE_UNLINK] = true,
		[FUSE_RMDIR] = true,
		[FUSE_RENAME] = true,
		[FUSE_LINK] = true,
		[FUSE_WRITE] = true,
		[FUSE_SETXATTR] = true,
		[FUSE_REMOVEXATTR] = true,
		[FUSE_CREATE] = true,
		[FUSE_IOCTL] = true,
		[FUSE_FALLOCATE] = true,
		[FUSE_RENAME2] = true,
		[FUSE_COPY_FILE_RANGE] = true,
		[FUSE_TMPFILE] = true,
		[OP_COPY_FILE_RANGE_64] = true,
	};

	return opcode < OPS_MAX && table[opcode];
}

bool request_is_queued(uint32_t opcode)
{
	return opcode != FUSE_FORGET && opcode != FUSE_BATCH_FORGET && opcode != FUSE_INTERRUPT;
}

bool request_may_wait(const struct reader_buffers *buffers)
{
	const struct fuse_in_header *in = (const void *)buffers->request;
	const struct fuse_ioctl_in *ioctl = (const void *)(in + 1);

	if (in->opcode == FUSE_IOCTL)
		return in->len >= sizeof(*in) + sizeof(*ioctl) && request_is_control(ioctl->cmd);
	return in->opcode == FUSE_LSEEK || in->opcode == FUSE_FSYNC ||
	       in->opcode == FUSE_FSYNCDIR || in->opcode == FUSE_SYNCFS;
}

bool request_is_control(unsigned cmd)
{
	return _IOC_TYPE(cmd) == 'p' && _IOC_NR(cmd) >= _IOC_NR(PLYFS_IOC_CHECKPOINT) &&
	       _IOC_NR(cmd) <= _IOC_NR(PLYFS_IOC_MOVED);
}

bool request_needs_kernel(unsigned cmd)
{
	return cmd == PLYFS_IOC_RESTORE || cmd == PLYFS_IOC_UNDO || cmd == PLYFS_IOC_KEEP_MOUNTS ||
	       cmd == PLYFS_IOC_CALL;
}
