/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Serving mounted views: the FUSE adapter's face to the daemon. A mount is a view plus a /dev/fuse
 * descriptor on which mount(2) was done by whoever had the right to (the client program).
 *
 * Threads: each mount has exactly one *reader* at a time (several idle readers on one descriptor
 * are woken on the wrong CPU). Before a reader may wait (disk, a notification, a sync) it passes
 * its mount on to a spare thread of the shared pool, finishes its request, and joins the pool.
 */

#include "fs/how.h"
#include "fs/ioctl.h"
#include "fs/view.h"

struct readers; /* the pool, one per process */
struct reader_memory; /* readers.h */
struct stage;
struct mount;

int readers_new(unsigned max_spare, const struct reader_memory *memory /* or NULL */,
		struct readers **ret);
/* The same for mounts of one store, whose stage outlives the pool: requests are read into slots. */
int readers_new_for(unsigned max_spare, struct stage *stage, struct readers **ret);
void readers_free(struct readers *rs); /* no mounts may be left */
/* For chunks_set_io_hook: the calling thread may wait now. No-op on a thread that is no reader. */
void readers_will_block(void);

/*
 * Called from a reader for each control ioctl; cred is the caller's, node what he asks it of. 0 or
 * a failure; see ioctl.h.
 */
typedef int (*mount_ioctl_fn)(void *arg, struct mount *m, const struct cred *cred, uint64_t node,
			      uint32_t cmd, const void *in, size_t in_len, void *out,
			      size_t out_cap, size_t *ret_out_len);

struct mount_hooks {
	mount_ioctl_fn ioctl;
	/*
	 * The kernel let go: unmounted or aborted, and no reader works on it. Called once, from a
	 * thread that may call mount_free (not readers_free). View and descriptor stay open until
	 * mount_free, as other threads may be inside a verb of mount_view(): keep them out first.
	 */
	void (*ended)(void *arg, struct mount *m);
	/*
	 * May be NULL. The view has a memo (memo.h) and the kernel can go on with another process:
	 * from here on whoever has copies of both descriptors (borrowed) can start one. Before the
	 * first request is read.
	 */
	void (*keep)(void *arg, int fuse_fd, int memo_fd);
	void *arg;
};

/*
 * Starts serving; how: see how.h. fuse_fd is taken (closed at the end; also on failure). The view
 * is taken on success (closed at the end). Returns after INIT was answered. Hooks may be called
 * before it returns, with *ret set already; NULL on failure. -ETIMEDOUT, -EPROTO: no FUSE mount is
 * behind the descriptor. With MOUNT_IO_URING, for which the view has no memo: -EOPNOTSUPP when the
 * kernel does not offer it, -ENOSYS when we were built without, -EPERM when the ring is refused.
 * With MOUNT_PASSTHROUGH, for a view of a snapshot only: -EOPNOTSUPP when the kernel does not offer
 * it, -EPERM when we are not root on the machine, -ELOOP when the store lies on a stacked
 * filesystem.
 * A view whose memo comes from a former process goes on behind the same
 * mount: what that process had read and not answered is answered now.
 */
int mount_start(struct readers *rs, int fuse_fd, struct view *view, uint32_t how,
		const struct mount_hooks *hooks, struct mount **ret);
struct view *mount_view(struct mount *m); /* lent */
/* Has the kernel let go, so that `ended` comes in a moment, if it has not yet? */
bool mount_is_over(struct mount *m);
/* The minor number of the view's device (st_dev; major 0). 0: unknown, before Linux 6.16. */
unsigned mount_minor(struct mount *m);
/*
 * Reads one waiting request (there is one) and answers it with EIO if it is of a thread for which
 * `whose` says so; NULL: of any. Others wait for mount_resend. 0, or END: the kernel has let go.
 */
#define MOUNT_REFUSE_BYTES (1024 * 1024 + 4096)
int mount_refuse(int fuse_fd, uint8_t buf[static MOUNT_REFUSE_BYTES], bool (*whose)(uint32_t tid));
/* Makes the kernel send again what a process that is gone had read and not answered. */
int mount_resend(int fuse_fd);
/* After `ended`: closes the view and the descriptor, frees the mount. */
void mount_free(struct mount *m);

/* Requests seen so far, by name ("LOOKUP"), in opcode order; fn for each with a count > 0. */
void mount_ops(struct mount *m, void (*fn)(void *arg, const char *op, uint64_t count), void *arg);
/* Names and inodes that the kernel was told to forget, and epochs. */
void mount_notifications(struct mount *m, uint64_t *ret_entries, uint64_t *ret_inodes,
			 uint64_t *ret_epochs);
/* Requests that were there, or came, before the reader slept (LEVER_EAGER). */
uint64_t mount_found(struct mount *m);

/* With MOUNT_PASSTHROUGH. */
struct mount_passed {
	uint64_t passed; /* opens of large files that the kernel then read by itself */
	uint64_t others; /* opens of large files for which there was no copy */
	uint64_t copied; /* bytes written to copies */
	bool told;       /* why there was none, to the log */
};
void mount_passed(struct mount *m, struct mount_passed *ret);
