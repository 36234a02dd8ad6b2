/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The inside of a mount, shared by mount.c (life cycle, negotiation, notifications, counters),
 * eager.c (how requests are read), fuse.c, raw.c and announced.c (what is made of them),
 * request_kind.c and reply.c (what those need to know and to write). What the kernel headers of
 * older systems lack of the protocol is here too, under names of our own, as newer headers define
 * the kernel's.
 */

#include <assert.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <sys/uio.h>

#include "fs/eager.h"
#include "fs/mount.h"
#include "fs/readers.h"

static_assert(HEADER_BYTES == sizeof(struct fuse_in_header) + sizeof(struct fuse_write_in),
	      "what comes before the data of a WRITE");

#define OP_STATX 52              /* proto 7.39 */
#define OP_COPY_FILE_RANGE_64 53 /* proto 7.45 */
#define OPS_MAX 64               /* opcodes are counted below this */

#define NOTIFY_RESEND 7    /* proto 7.40 */
#define NOTIFY_INC_EPOCH 8 /* proto 7.44 */

/* In the number of a request that was read before, by a process that did not answer it (7.40). */
#define UNIQUE_RESENT (UINT64_C(1) << 63)

#define INIT_NO_EXPORT_SUPPORT (UINT64_C(1) << 38) /* proto 7.40 */
#define INIT_OVER_IO_URING (UINT64_C(1) << 41)     /* proto 7.42 */
#define INIT_PASSTHROUGH (UINT64_C(1) << 37)       /* proto 7.40 */

struct fuse_session;

/* What a restore's caller makes an event of next (announced.c). */
enum announced_kind { NOT_ANNOUNCED, ANNOUNCED_MADE, ANNOUNCED_GONE, ANNOUNCED_GONE_DIR };
struct announced {
	enum announced_kind kind;
	uint32_t thread;
	uint64_t dir;	 /* node id */
	uint64_t serial; /* 0: free */
	uint64_t when_ns; /* since boot */
};
/* Callers at one time, in one view. One more makes the oldest be lost (A3). */
#define ANNOUNCED_MAX 8

struct mount {
	struct served served;
	struct view *view; /* immutable, owned */
	struct memo *memo; /* immutable, the view's; may be NULL */
	uint32_t how; /* immutable */
	struct mount_hooks hooks; /* immutable */
	struct uring *uring; /* immutable while serving, owned; NULL: all comes on fd */
	struct fuse_session *session; /* immutable, owned; closes fd */
	int fd; /* immutable, lent by the session */
	bool has_epoch; /* immutable once serving */
	bool writes_around; /* immutable: see fs/README.md, "Levers" */
	/*
	 * immutable; PLYFS_TEST_DIE, not in a release build: a directory. Whoever is about to
	 * answer a request and can remove the file there that is called as its opcode dies instead.
	 */
	const char *test_die;

	struct eagerness eager;

	pthread_mutex_t announced_lock; /* innermost */
	struct announced announced[ANNOUNCED_MAX];
	uint64_t n_announced; /* so far */

	/* INIT, on the starting thread */
	uint64_t offered; /* the kernel's flags */
	bool negotiated;  /* a good answer was written */
	bool resuming;	  /* it was answered by a former process */

	/* atomic, relaxed: statistics */
	uint64_t ops[OPS_MAX];
	uint64_t entries, inodes, epochs;
	struct mount_passed pass;
};

struct created_out { /* the body of CREATE and TMPFILE replies */
	struct fuse_entry_out entry;
	struct fuse_open_out open;
};
static_assert(offsetof(struct created_out, open) == sizeof(struct fuse_entry_out), "no gap");

static inline bool mount_uses(const struct mount *m, enum lever lever)
{
	return !(m->how & WITHOUT(lever));
}

/*
 * For how long the kernel may keep what it is told (F2): 136 years. It adds them to its clock, so
 * the largest number of all would wrap around.
 */
static inline uint64_t mount_valid_s(const struct mount *m)
{
	return mount_uses(m, LEVER_CACHE) ? UINT32_MAX : 0;
}

/* ---- mount.c ---- */

/* Writes one message to the kernel. 0, or -errno: -ENOENT when nobody waits for this reply. */
int mount_send(struct mount *m, const struct iovec *iov, int count);
/*
 * The kernel has to ask again for what it knows of an inode but its data, and takes no answer to
 * who asked before. Waits for nothing, and has happened on return.
 */
void mount_forget_attr(struct mount *m, uint64_t node);
/*
 * The kernel writes back what is stored in a range through mappings, and forgets its pages. Waits
 * for other requests (readers_step_aside).
 */
void mount_write_back(struct mount *m, uint64_t node, uint64_t off, uint64_t len);
/*
 * Between a change that the kernel does not date (request_undated) and its reply, at which it
 * forgets the attributes that it has, but would then take, for ever, those that were told to
 * another thread before the change, if that gets a CPU only now. Told of each change it would cost
 * all who make files; so it is told if there may be such an answer (view_was_told).
 */
void mount_undated(struct mount *m, uint64_t node);
/*
 * A reply is about to tell attributes of a node. Where they must not be taken (view_is_written) the
 * kernel is told to forget those it has: then it takes none that were asked for before, and who
 * asked has them all the same.
 */
void mount_tells_attr(struct mount *m, uint64_t node);
/* The answer to INIT, what we ask of the kernel: true. False: the kernel is too old. */
bool mount_negotiate(struct mount *m, const struct fuse_init_in *in, struct fuse_init_out *out);

/* ---- eager.c ---- */

/* As read(2) of the next request into the buffers. Waits for it, awake while that pays. */
ssize_t eager_read(struct mount *m, const struct reader_buffers *buffers);

/* ---- fuse.c: the only user of libfuse ---- */

/* Gives m->session on m->fd. */
int requests_open(struct mount *m);
/* Ends both, also where requests_open failed. */
void requests_close(struct mount *m);
/* First of all: INIT, n bytes as read, to know what follows. It is not answered. */
int requests_begin(struct mount *m, const struct reader_buffers *buffers, size_t n);
/* Handles one request: n bytes as read from the descriptor. Sends its reply, if it has one. */
void requests_handle(struct mount *m, const struct reader_buffers *buffers, size_t n);

/*
 * Replies without libfuse: r, or a body. Negative: the kernel did not take it, which matters to a
 * new reference (F1) only.
 */
int requests_reply(struct mount *m, const struct fuse_in_header *in, int r, const void *body,
		   size_t len);

/* ---- announced.c: names for who watches (--inotify) ---- */

/* Handles a request of n bytes, with its reply. ABSENT: it is as any other. */
int requests_announced(struct mount *m, const struct fuse_in_header *in, size_t n);

/* ---- raw.c: what libfuse does not decode ---- */

/* Handles a request of n bytes, with its reply. ABSENT: libfuse decodes this kind. */
int requests_raw(struct mount *m, const struct fuse_in_header *in, size_t n);

/* ---- request_kind.c: what a request's kind tells ---- */

/* opcode: below OPS_MAX. */
const char *request_name(uint32_t opcode);
/*
 * The nodes that it changes in a way which the kernel does not date: directories, by names; and by
 * what is neither a write nor a SETATTR. How many. (Who is renamed is one more, but no request
 * says it.) The header of a whole request.
 */
unsigned request_undated(const struct fuse_in_header *in, uint64_t ret[static 2]);
/* Requests that may change something, so that they must not be done twice (memo.h). */
bool request_changes(uint32_t opcode);
/* FORGETs and INTERRUPTs have a queue of their own, so they tell nothing about the others. */
bool request_is_queued(uint32_t opcode);
/* May it wait for long, or for the kernel? (Else for the disk, now and then.) A whole request. */
bool request_may_wait(const struct reader_buffers *buffers);
/* The commands of ioctl.h. */
bool request_is_control(unsigned cmd);
/* Waits for the kernel, or for one who does; and that perhaps for what nobody would read then. */
bool request_needs_kernel(unsigned cmd);

/* ---- reply.c: what replies' bodies are made of ---- */

void reply_fill_attr(const struct inode *i, struct fuse_attr *ret);
void reply_fill_entry(const struct mount *m, const struct entry *e, struct fuse_entry_out *ret);
/* The handle of a file that is written around the kernel's cache; else there is none. */
#define REPLY_AROUND 1
/* flags: of the open(2) that made the file. */
void reply_fill_created(const struct mount *m, const struct entry *e, uint32_t flags,
			struct created_out *ret);
/* As read(2); buf has room for DATA_BYTES. */
int reply_read(struct view *v, uint64_t node, uint64_t off, size_t size, uint8_t *buf,
	       size_t *ret_len);
/*
 * The same, but what is in the page cache need not be copied to buf: iov is for mount_send and
 * nobody else (struct loan). AGAIN: too little, or in too many pieces. 0: segments_release is due
 * after the reply.
 */
#define REPLY_LEND_MIN ((size_t)32 * 1024) /* 4 KiB are neither quicker nor slower than copied */
struct reply_data {
	struct segments segments;
	struct iovec iov[1 + SEGMENTS_MAX]; /* the first is for the header */
	int n;
};
int reply_lend(struct view *v, uint64_t node, uint64_t off, size_t size, uint8_t *buf,
	       struct reply_data *ret);
/* As disks' filesystems: who may not read such a value is not told its name either. */
size_t reply_drop_trusted(char *names, size_t len);

struct listing {
	struct mount *mount;
	uint8_t *buf; /* borrowed */
	size_t cap, used;
	bool plus;
};

/* For view_readdir; arg: the listing. 1: the buffer is full. */
int listing_add(void *arg, const char *name, size_t len, const struct entry *e, unsigned type,
		uint64_t next_cookie);
/* Each node that a READDIRPLUS reply tells of. */
void listing_each(const struct listing *l, void (*fn)(struct mount *m, uint64_t node));

/* ---- pass.c: opens that the kernel needs us no more for ---- */

/* Can it be done here? For -EOPNOTSUPP, -EPERM and -ELOOP see mount_start. */
int pass_begin(struct mount *m);
/*
 * Decides how an open of a regular file of a snapshot is answered, and counts it if it is large:
 * *ret_id is a backing id, or 0: as ever. buf: DATA_BYTES. Negative: there is no such node.
 */
int pass_open(struct mount *m, uint64_t node, uint8_t *buf, int32_t *ret_id);
/* One of these opens is over. */
void pass_release(struct mount *m, uint64_t node);
/* Gives a backing id back; 0 is none. Does not wait. */
void pass_close(struct mount *m, int32_t id);
