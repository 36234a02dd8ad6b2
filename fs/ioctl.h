/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The control interface of a mounted view: ioctl(2) on any descriptor of the mount (a directory's
 * is best: open(".", O_RDONLY)). Works inside sandboxes and containers where the store's socket
 * cannot be reached. The caller must be root or the owner of the store (EPERM), and has the whole
 * store then, other branches included: what is to stay within its branch runs as another user.
 *
 * Call syncfs(fd) first so that dirty pages of writable shared mappings are part of it.
 * Integers are native-endian; all structs have no padding and a fixed size (an ioctl carries at
 * most 16 KiB each way).
 *
 * errno: ENOTTY not a plyfs view; EPERM; ENOENT unknown id; EINVAL ambiguous id, bad name or label;
 * EROFS the view shows a snapshot; EEXIST branch exists; ENOSPC, EIO.
 */

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/ioctl.h>

#define PLYFS_IOC_VERSION 1
#define PLYFS_ID_SIZE 16    /* snapshot id as text: 12 hex digits, NUL padded */
#define PLYFS_LABEL_SIZE 256
#define PLYFS_NAME_SIZE 64

#define PLYFS_CHECKPOINT_SYNC 1 /* flags: wait until durable */
/* Answer flag: nothing had changed, id is the last one's; another branch may have that as well. */
#define PLYFS_CHECKPOINT_SAME 2

struct plyfs_checkpoint {
	uint32_t flags;
	uint32_t reserved;
	char label[PLYFS_LABEL_SIZE]; /* in: NUL-terminated, may be empty */
	char id[PLYFS_ID_SIZE];       /* out */
};
#define PLYFS_RESTORE_NEWER 1 /* id is a branch that has changed since */
#define PLYFS_RESTORE_MOVED 2 /* known directories are elsewhere now, or back: PLYFS_IOC_MOVED */
#define PLYFS_RESTORE_TELL 4  /* --inotify, and something differs: PLYFS_XATTR_RESTORED */

struct plyfs_restore {
	char id[PLYFS_LABEL_SIZE]; /* in: id, prefix, branch name, @label, NAME~N; out: the id */
	uint32_t mode;             /* out: 0 by names, 1 epoch */
	uint32_t flags;            /* out */
	uint64_t changed;          /* out: objects with a name that differed; by epoch: so far */
	char left[PLYFS_ID_SIZE];  /* out: what undo brings back */
};
/* Then `left` is what a restore before left. */
static inline bool plyfs_restored_nothing(const struct plyfs_restore *q)
{
	return q->changed == 0 && q->mode == 0;
}
struct plyfs_fork {
	char name[PLYFS_NAME_SIZE]; /* in: the new branch */
};
struct plyfs_info {
	uint32_t version;           /* PLYFS_IOC_VERSION */
	uint32_t read_only;
	char branch[PLYFS_NAME_SIZE]; /* empty for a snapshot view */
	char head[PLYFS_ID_SIZE];     /* snapshot the state continues; the snapshot itself */
	uint64_t changes;             /* visible changes since */
	char uuid[40];                /* of the store */
	char store[4096];             /* its path, as the daemon sees it */
};
/*
 * A verb of the program through the ioctl: args are NUL-separated (verb first). EOPNOTSUPP for one
 * that would touch files outside of the store, or mounts, or run a program. Its output is fetched
 * with PLYFS_IOC_READ until `more` is 0; what it fails with, EROFS too, is told by its status.
 * ECONNRESET, from either: the daemon died meanwhile. The verb was begun at most once, and how far
 * it came can only be seen from what it was to do.
 */
struct plyfs_call {
	uint32_t args_len;  /* in */
	int32_t status;     /* out: exit code when more is 0 */
	uint64_t handle;    /* out: for PLYFS_IOC_READ */
	char args[8192];    /* in */
};
struct plyfs_read {
	uint64_t handle;    /* in */
	int32_t status;     /* out: exit code, valid when more is 0 */
	uint32_t more;      /* out: call again */
	uint32_t out_len;   /* out: bytes of stdout in data, then err_len bytes of stderr */
	uint32_t err_len;
	char data[12288];
};

/*
 * Directories that the last restores moved or brought back, as paths below the directory that is
 * asked, each with its NUL: once they have been looked at, getcwd(2) tells them to who is in them
 * (see moved.c). ESTALE to who looks: once more (control.c).
 * Asked again with `next` until that is 0.
 */
struct plyfs_moved {
	uint64_t next;      /* in: 0 at first; out */
	uint32_t len;       /* out: of paths */
	uint32_t reserved;
	char paths[12288];
};

/* EAGAIN of RESTORE, UNDO, CALL and KEEP_MOUNTS: some 80 wait in this view; when some are done. */
#define PLYFS_IOC_CHECKPOINT _IOWR('p', 0x40, struct plyfs_checkpoint)
#define PLYFS_IOC_RESTORE _IOWR('p', 0x41, struct plyfs_restore)
#define PLYFS_IOC_UNDO _IOWR('p', 0x42, struct plyfs_restore)
#define PLYFS_IOC_FORK _IOWR('p', 0x43, struct plyfs_fork)
#define PLYFS_IOC_INFO _IOR('p', 0x44, struct plyfs_info)
#define PLYFS_IOC_CALL _IOWR('p', 0x45, struct plyfs_call)
#define PLYFS_IOC_READ _IOWR('p', 0x46, struct plyfs_read)
/*
 * Mounts lie inside the view (the /proc of a container that has it as its root). From now on each
 * restore tells the kernel every name that differs, however many: the epoch would detach them.
 * Between states of different lineages it does all the same.
 */
#define PLYFS_IOC_KEEP_MOUNTS _IO('p', 0x47)
#define PLYFS_IOC_MOVED _IOWR('p', 0x48, struct plyfs_moved)

/*
 * setxattr(2) of this changes nothing and makes an event for who watches (inotify). Views with
 * --inotify take it from root and the owner of the store; others say EOPNOTSUPP.
 */
#define PLYFS_XATTR_RESTORED "system.plyfs.restored"
/*
 * getxattr(2) of one of these, of a directory of such a view, announces the next change of a name
 * in it by this thread, which changes nothing and makes an event for who watches (announced.c):
 * mknod(2) of a regular file, mkdir(2) or symlink(2) of a name that is there (ELOOP: it is a
 * symlink); unlink(2) of one that is not, or rmdir(2), of what stat(2) says to have this inode
 * number meanwhile. NOTHING takes it back. 0, or EOPNOTSUPP.
 */
#define PLYFS_XATTR_MADE "system.plyfs.made"
#define PLYFS_XATTR_GONE "system.plyfs.gone"
#define PLYFS_XATTR_GONE_DIR "system.plyfs.gone-dir"
#define PLYFS_XATTR_NOTHING "system.plyfs.nothing"
#define PLYFS_GHOST_INO (UINT64_MAX - 1)

/*
 * ioctl(2) on a directory, with a struct of above, and what RESTORE and UNDO leave to their caller:
 * directories that moved or came back are looked at, and watchers are told (watchers.c). -1 and
 * errno as of the ioctl; what cannot be looked at is passed over.
 */
int plyfs_control(int dir_fd, unsigned long cmd, void *q);
/*
 * Only that, for a restore that somebody else did. left and now: the states, if watchers are to be
 * told; or NULL.
 */
void plyfs_see_restored(int dir_fd, const char *left, const char *now);
/* What control.c has of watchers.c. top_fd: of the directory that differences are below. */
void plyfs_tell_watchers(int top_fd, const char *left, const char *now);

/* What PLYFS_IOC_INFO fails with on other filesystems, which know no such question. */
static inline bool plyfs_is_no_view(int error)
{
	return error == ENOTTY || error == ENOSYS || error == EOPNOTSUPP || error == EINVAL;
}

/*
 * And on a view whose daemon is dead: ENODEV while it is taken down, EIO from the supervisor,
 * ECANCELED of what a ring was to bring it (mount --io-uring). What is neither of the two, nor
 * EPERM, tells nothing: there may well be a view.
 */
static inline bool plyfs_is_dead_view(int error)
{
	return error == ENOTCONN || error == ECONNABORTED || error == ENODEV || error == EIO ||
	       error == ECANCELED;
}
