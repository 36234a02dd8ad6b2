/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The life of a mount: negotiation, serving, notifications, the end.
 *
 * Invariants:
 *  M1  Before mount_start returns, INIT is answered and it is known whether the kernel has
 *      INC_EPOCH; after it, requests are read by the pool only (readers.h).
 *  M2  The view and the descriptor stay open until mount_free, though the kernel let go long
 *      before: another thread may be inside a verb of the view or in a notification. Such a write
 *      then fails with ENODEV, and means what it should: the kernel has nothing cached any more.
 *  M3  `ended` is called once, when no reader works on the mount any more. Whoever frees the mount
 *      there (or later) has made sure that nobody else uses mount_view().
 *  M4  Notifications take no lock of ours, so any thread may send them while readers read.
 *
 * Replies go through mount_send and never fail towards libfuse, which would print; fuse.c is told.
 */

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/utsname.h>

#include "fs/awake.h"
#include "fs/memo.h"
#include "fs/mount_internal.h"
#include "fs/uring.h"
#include "store/base/err.h"
#include "store/base/note.h"
#include "store/base/os.h"
#include "store/base/util.h"

/* INIT waits since mount(2); a descriptor that gives nothing for so long is not a mount's. */
#define INIT_WAIT_MS 5000

/*
 * Requests that may be queued without a waiting client (read-ahead, direct IO, forgets): the
 * kernel's default of 12 stalls read-ahead of parallel readers. Congestion, where it starts to
 * skip read-ahead, at three quarters, as its default has it.
 */
#define MAX_BACKGROUND 128
#define CONGESTION (MAX_BACKGROUND * 3 / 4)

/*
 * The kernel looks up the pages of each piece of a reply anew. So a small one is made one piece (a
 * stat that asks us: 9.7 us to 9.3). That of CREATE, the largest without data, has 160 bytes.
 */
#define ONE_PIECE 256

static const struct noter *noter_of(struct mount *m)
{
	return store_noter(view_store(m->view));
}

int mount_send(struct mount *m, const struct iovec *iov, int count)
{
	_Alignas(ONE_PIECE) uint8_t whole[ONE_PIECE]; /* which is then in one page */
	size_t len = 0;
	ssize_t n;

	for (int i = 0; i < count && len <= sizeof(whole); i++) {
		if (iov[i].iov_len <= sizeof(whole) - len)
			memcpy(whole + len, iov[i].iov_base, iov[i].iov_len);
		len += iov[i].iov_len;
	}
	do
		n = len <= sizeof(whole) ? write(m->fd, whole, len) : writev(m->fd, iov, count);
	while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : 0;
}

/* ---- negotiation ---- */

bool mount_negotiate(struct mount *m, const struct fuse_init_in *in, struct fuse_init_out *out)
{
	/*
	 * libfuse would ask for what it deems right, and older ones forget to send what they
	 * decided on. From the version in brackets on, the flag could be asked for through struct
	 * fuse_conn_info as well; from 3.17 on all of them could.
	 */
	uint64_t want =
		FUSE_ASYNC_READ |          /* [any] reads of one file in parallel */
		FUSE_BIG_WRITES |          /* [any] */
		FUSE_MAX_PAGES |           /* [3.6] requests up to DATA_BYTES */
		FUSE_HAS_IOCTL_DIR |       /* [any] control ioctls come on directories */
		FUSE_DONT_MASK |           /* [any] fs_create applies the umask or a default ACL */
		FUSE_POSIX_ACL |           /* [any] the kernel enforces and caches ACLs */
		FUSE_NO_OPEN_SUPPORT |     /* [any] informational */
		FUSE_NO_OPENDIR_SUPPORT |  /* [3.5] informational */
		FUSE_PARALLEL_DIROPS |     /* [3.17] older: wanted by default, never sent */
		FUSE_EXPLICIT_INVAL_DATA | /* [3.9] pages go when we say so */
		FUSE_HANDLE_KILLPRIV_V2 |  /* [3.17] no GETXATTR for each write(2) */
		FUSE_SETXATTR_EXT |        /* [3.17] but its op has no flags: we decode it */
		FUSE_INIT_EXT |            /* [3.17] older: the upper half is never sent */
		/*
		 * [3.17] File handles may be encoded (fanotify), not opened. Node ids start anew
		 * with each mount, so a handle kept over a remount could name another file; and
		 * overlayfs is content without (its index and nfs_export features want them).
		 */
		INIT_NO_EXPORT_SUPPORT;
	/* Files of the disk are passed through, none of an overlay: one may then lie on us. */
	const uint32_t stack_depth = 1;
	uint32_t page = (uint32_t)getpagesize();
	uint64_t flags;

	/*
	 * Not asked for, on purpose: AUTO_INVAL_DATA (would win over EXPLICIT), ATOMIC_O_TRUNC
	 * (loses truncation where OPEN is not sent), WRITEBACK_CACHE (a checkpoint would miss what
	 * was written), ASYNC_DIO (a page that is read during such a write would never be
	 * forgotten), POSIX_LOCKS and FLOCK_LOCKS (the kernel does both rightly by itself).
	 */
	if (mount_uses(m, LEVER_CACHE))
		want |= FUSE_CACHE_SYMLINKS; /* [3.10] */
	if (mount_uses(m, LEVER_READDIRPLUS))
		want |= FUSE_DO_READDIRPLUS | FUSE_READDIRPLUS_AUTO; /* [any] */

	if (m->uring)
		want |= INIT_OVER_IO_URING;
	if (m->how & MOUNT_PASSTHROUGH)
		want |= INIT_PASSTHROUGH; /* [3.17] */

	if (in->minor < 23) /* Linux 3.15: those before take a shorter answer */
		return false;
	out->major = FUSE_KERNEL_VERSION;
	out->minor = FUSE_KERNEL_MINOR_VERSION;
	out->max_readahead = in->max_readahead; /* no less than it would */
	flags = want & m->offered;
	out->flags = (uint32_t)flags;
	out->flags2 = (uint32_t)(flags >> 32);
	if (flags & INIT_PASSTHROUGH) /* max_stack_depth, right behind it in newer headers */
		memcpy((uint8_t *)&out->flags2 + sizeof(out->flags2), &stack_depth,
		       sizeof(stack_depth));
	out->max_background = MAX_BACKGROUND;
	out->congestion_threshold = CONGESTION;
	out->time_gran = 1;
	out->max_pages = 0;
	out->max_write = 32 * page; /* what kernels before MAX_PAGES (4.20) have at most */
	if (flags & FUSE_MAX_PAGES) {
		out->max_pages = (uint16_t)(DATA_BYTES / page);
		out->max_write = DATA_BYTES;
	}
	return true;
}

/* n bytes: a request, which has to be INIT. */
static int mount_take_init(struct mount *m, const struct reader_buffers *buffers, size_t n)
{
	struct fuse_in_header header;
	struct fuse_init_in init = { 0 };
	int r;

	if (n < sizeof(header) + offsetof(struct fuse_init_in, flags2))
		return -EPROTO;
	memcpy(&header, buffers->request, sizeof(header));
	if (header.opcode != FUSE_INIT)
		return -EPROTO;
	memcpy(&init, buffers->request + sizeof(header), MIN(n - sizeof(header), sizeof(init)));
	if (init.major != FUSE_KERNEL_VERSION)
		return -EPROTO;

	m->offered = init.flags;
	if (init.flags & FUSE_INIT_EXT)
		m->offered |= (uint64_t)init.flags2 << 32;
	if (m->how & MOUNT_IO_URING) {
		r = m->offered & INIT_OVER_IO_URING ? uring_open(m) : -EOPNOTSUPP;
		if (r < 0)
			return r;
	}
	r = requests_begin(m, buffers, n);
	if (r < 0)
		return r;
	requests_handle(m, buffers, n);
	return m->negotiated ? 0 : -EPROTO;
}

static int mount_read_init(struct mount *m)
{
	/* Before INIT is answered the kernel wants room for 8 KiB (FUSE_MIN_READ_BUFFER). */
	uint8_t request[16 * 1024];
	const struct reader_buffers buffers = { .request = request };
	struct pollfd p = { .fd = m->fd, .events = POLLIN };
	ssize_t n;
	int r;

	do
		r = poll(&p, 1, INIT_WAIT_MS);
	while (r < 0 && errno == EINTR);
	if (r < 0)
		return -errno;
	if (r == 0)
		return -ETIMEDOUT;

	do
		n = read(m->fd, request, sizeof(request));
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	if (m->memo) {
		memcpy(m->memo->head->init, request, MIN((size_t)n, MEMO_INIT_MAX));
		m->memo->head->init_len = (uint32_t)MIN((size_t)n, MEMO_INIT_MAX);
	}
	return mount_take_init(m, &buffers, (size_t)n);
}

/* As a former process was asked; its answer, which would be the same, went to the kernel. */
static int mount_repeat_init(struct mount *m)
{
	uint8_t request[MEMO_INIT_MAX];
	const struct reader_buffers buffers = { .request = request };
	const struct memo_head *h = m->memo->head;
	int r;

	if (h->init_len < sizeof(struct fuse_in_header) + offsetof(struct fuse_init_in, flags2))
		return -ERR_MEMO;
	memcpy(request, h->init, sizeof(request));
	m->resuming = true;
	r = mount_take_init(m, &buffers, h->init_len);
	m->resuming = false;
	m->has_epoch = h->has_epoch;
	return r;
}

/* ---- notifications ---- */

/* ABSENT: nothing of the kind is cached. */
static int notify(struct mount *m, int code, struct iovec *iov, int count)
{
	struct fuse_out_header header = { .len = sizeof(header), .error = code };
	int r;

	iov[0] = (struct iovec){ &header, sizeof(header) };
	for (int i = 1; i < count; i++)
		header.len += (uint32_t)iov[i].iov_len;

	r = mount_send(m, iov, count);
	return r == -ENOENT || r == -ENOTDIR || r == -ENODEV ? ABSENT : r;
}

/* fuse_notify_inval_entry_out with flags (proto 7.38), which <linux/fuse.h> may not have yet. */
struct wire_inval_entry {
	uint64_t parent;
	uint32_t namelen;
	uint32_t flags;
};
#define INVAL_EXPIRE_ONLY (1 << 0)

static int kernel_inval_entry(void *arg, uint64_t parent, const char *name, size_t len, bool expire)
{
	struct mount *m = arg;
	/* Kernels before 6.2 know no flag and forget the name with all below: slower, not wrong. */
	struct wire_inval_entry out = {
		.parent = parent,
		.namelen = (uint32_t)len,
		.flags = expire ? INVAL_EXPIRE_ONLY : 0,
	};
	struct iovec iov[4] = {
		[1] = { &out, sizeof(out) },
		[2] = { (char *)name, len },
		[3] = { "", 1 },
	};

	__atomic_fetch_add(&m->entries, 1, __ATOMIC_RELAXED);
	return MIN(notify(m, FUSE_NOTIFY_INVAL_ENTRY, iov, ARRAY_SIZE(iov)), 0);
}

/*
 * NOTIFY_DELETE: as if the name were unlinked, so that who watches the file itself has its
 * IN_DELETE_SELF, when nobody has it open any more. It waits for the file's own lock as well, which
 * is held by who asks us for something, as the directory's is.
 */
static int kernel_inval_gone(void *arg, uint64_t parent, uint64_t node, const char *name,
			     size_t len)
{
	struct mount *m = arg;
	struct fuse_notify_delete_out out = {
		.parent = parent, .child = node, .namelen = (uint32_t)len
	};
	struct iovec iov[4] = {
		[1] = { &out, sizeof(out) },
		[2] = { (char *)name, len },
		[3] = { "", 1 },
	};
	int r;

	__atomic_fetch_add(&m->entries, 1, __ATOMIC_RELAXED);
	r = notify(m, FUSE_NOTIFY_DELETE, iov, ARRAY_SIZE(iov));
	return r == -EBUSY ? 0 : MIN(r, 0); /* the name is forgotten all the same: mounted on */
}

static int kernel_inval_inode(void *arg, uint64_t node, int64_t off, int64_t len)
{
	struct mount *m = arg;
	struct fuse_notify_inval_inode_out out = { .ino = node, .off = off, .len = len };
	struct iovec iov[2] = { [1] = { &out, sizeof(out) } };

	__atomic_fetch_add(&m->inodes, 1, __ATOMIC_RELAXED);
	return notify(m, FUSE_NOTIFY_INVAL_INODE, iov, ARRAY_SIZE(iov));
}

void mount_forget_attr(struct mount *m, uint64_t node)
{
	(void)kernel_inval_inode(m, node, -1, 0); /* fails only where nothing is cached any more */
}

void mount_write_back(struct mount *m, uint64_t node, uint64_t off, uint64_t len)
{
	memo_tells(m->memo, true);
	(void)kernel_inval_inode(m, node, (int64_t)off, (int64_t)len); /* as above */
	memo_tells(m->memo, false);
}

void mount_undated(struct mount *m, uint64_t node)
{
	if (view_was_told(m->view, node))
		mount_forget_attr(m, node);
}

void mount_tells_attr(struct mount *m, uint64_t node)
{
	if (view_is_written(m->view, node))
		mount_forget_attr(m, node);
}

static int kernel_inc_epoch(void *arg)
{
	struct mount *m = arg;
	struct iovec iov[1];

	__atomic_fetch_add(&m->epochs, 1, __ATOMIC_RELAXED);
	return MIN(notify(m, NOTIFY_INC_EPOCH, iov, 1), 0);
}

static void kernel_will_block(void *arg)
{
	(void)readers_step_aside();
}

static void kernel_backing_close(void *arg, int32_t id)
{
	pass_close(arg, id);
}

/* ---- serving ---- */

static int mount_serve_one(struct served *s, const struct reader_buffers *buffers)
{
	struct mount *m = container_of(s, struct mount, served);
	ssize_t n = eager_read(m, buffers);

	if (n > 0) {
		if ((size_t)n >= sizeof(struct fuse_in_header))
			requests_handle(m, buffers, (size_t)n);
		return 0;
	}
	if (n == 0)
		return END; /* a socket in place of the kernel */

	switch (errno) {
	case EINTR:
	case EAGAIN:
	case ENOENT: /* the client gave up before we came */
	case EIO:    /* the kernel dropped one request itself */
		return 0;
	case EFAULT: /* it could not be put into the slot, and was answered with EIO */
		if (readers_lost_slot())
			return 0;
		break;
	case ENODEV: /* unmounted */
	case ECONNABORTED:
		return END;
	default:
		break;
	}
	(void)note(noter_of(m), 0, "mount: reading a request: %s", err_name(-errno));
	return END;
}

static void mount_over(struct served *s)
{
	struct mount *m = container_of(s, struct mount, served);

	uring_close(m);
	if (m->hooks.ended)
		m->hooks.ended(m->hooks.arg, m);
}

static void mount_freep(struct mount **m)
{
	mount_free(*m);
}

int mount_resend(int fuse_fd)
{
	const struct fuse_out_header header = { .len = sizeof(header), .error = NOTIFY_RESEND };

	return write(fuse_fd, &header, sizeof(header)) < 0 ? -errno : 0;
}

int mount_refuse(int fuse_fd, uint8_t buf[static MOUNT_REFUSE_BYTES], bool (*whose)(uint32_t tid))
{
	struct fuse_out_header out = { .len = sizeof(out), .error = -EIO };
	struct fuse_in_header in;
	ssize_t n = read(fuse_fd, buf, MOUNT_REFUSE_BYTES);

	_Static_assert(MOUNT_REFUSE_BYTES >= REQUEST_BYTES, "room for any request");
	if (n < (ssize_t)sizeof(in))
		return n < 0 && (errno == ENODEV || errno == ECONNABORTED) ? END : 0;
	memcpy(&in, buf, sizeof(in));
	if (in.opcode == FUSE_FORGET || in.opcode == FUSE_BATCH_FORGET ||
	    in.opcode == FUSE_INTERRUPT || (whose && !whose(in.pid)))
		return 0;
	out.unique = in.unique;
	(void)!write(fuse_fd, &out, sizeof(out)); /* who asked may be gone */
	return 0;
}

/*
 * What a former process was asked comes before anything new, and before we read anything: what we
 * have read ourselves would be sent to us again.
 */
static int mount_resume(struct mount *m)
{
	int r = mount_repeat_init(m);

	if (r < 0)
		return r;
	r = mount_resend(m->fd);
	return r == -ENODEV || r == -ECONNABORTED || r == -EPERM ? 0 : r; /* unmounted by now */
}

static int mount_first(struct mount *m)
{
	struct iovec iov[1];
	int r = mount_read_init(m);

	if (r == 0 && (m->how & MOUNT_PASSTHROUGH))
		r = pass_begin(m);
	if (r < 0)
		return r;

	/*
	 * Nothing tells beforehand whether the kernel has it (6.16): no flag, no minor. It costs
	 * nothing to try, as nothing is cached yet.
	 */
	m->has_epoch = mount_uses(m, LEVER_EPOCH) && notify(m, NOTIFY_INC_EPOCH, iov, 1) == 0;
	/* Another process needs it (K5), and RESEND, which came before it. */
	if (m->memo && m->has_epoch && m->hooks.keep) {
		m->memo->head->has_epoch = true;
		atomic_store(&m->memo->head->kept, true);
		m->hooks.keep(m->hooks.arg, m->fd, m->memo->fd);
	}
	return 0;
}

/* M1. m->view is set, and borrowed until this succeeded. */
static int mount_begin(struct mount *m, struct readers *rs)
{
	int r;

	r = requests_open(m);
	if (r < 0)
		return r;
	r = m->memo && m->memo->head->kept ? mount_resume(m) : mount_first(m);
	if (r < 0)
		return r;

	view_set_kernel(m->view, &(struct view_kernel){
		.inval_entry = kernel_inval_entry,
		.inval_gone = m->how & MOUNT_INOTIFY ? kernel_inval_gone : NULL,
		.inval_inode = kernel_inval_inode,
		.inc_epoch = m->has_epoch ? kernel_inc_epoch : NULL,
		.will_block = kernel_will_block,
		.backing_close = kernel_backing_close,
		.arg = m,
	});
	if (m->uring)
		uring_serve(m);
	r = readers_serve(rs, &m->served);
	if (r < 0)
		uring_close(m); /* its threads use the view */
	if (r < 0)
		view_set_kernel(m->view, &(struct view_kernel){ 0 });
	return r;
}

int mount_start(struct readers *rs, int fuse_fd, struct view *view, uint32_t how,
		const struct mount_hooks *hooks, struct mount **ret)
{
	_cleanup_(mount_freep) struct mount *m = NULL;
	_cleanup_close_ int fd = fuse_fd;
	struct utsname u;
	int r;

	m = os_calloc(1, sizeof(*m));
	if (!m)
		return -ENOMEM;
	m->fd = -1;
	m->served.serve_one = mount_serve_one;
	m->served.over = mount_over;
	pthread_mutex_init(&m->announced_lock, NULL);
	m->how = how;
	m->writes_around = mount_uses(m, LEVER_WRITE_AROUND) && uname(&u) == 0 &&
			   kernel_writes_around(u.release);
	if (mount_uses(m, LEVER_AWAKE))
		awake_start();
	m->hooks = *hooks;
#ifdef PLYFS_TEST_HOOKS
	m->test_die = getenv("PLYFS_TEST_DIE");
#endif

	/* It may have come through a socket from a program with its own ideas. */
	r = fcntl(fd, F_GETFL);
	if (r < 0 || fcntl(fd, F_SETFL, r & ~O_NONBLOCK) < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
		return -errno;

	*ret = m; /* early: a hook may be called before mount_begin returns, even `ended` */
	m->fd = TAKE_FD(fd);
	m->view = view;
	m->memo = view_memo(view);
	r = mount_begin(m, rs);
	if (r < 0) {
		*ret = NULL;
		m->view = NULL;
		return r;
	}
	(void)TAKE_PTR(m); /* the readers' now */
	return 0;
}

struct view *mount_view(struct mount *m)
{
	return m->view;
}

bool mount_is_over(struct mount *m)
{
	struct pollfd p = { .fd = m->fd };

	return poll(&p, 1, 0) > 0 && p.revents & POLLERR;
}

unsigned mount_minor(struct mount *m)
{
	char path[64], line[128];
	_cleanup_fclose_ FILE *f = NULL;
	unsigned minor = 0;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", m->fd);
	f = fopen(path, "re");
	while (f && minor == 0 && fgets(line, sizeof(line), f))
		(void)sscanf(line, "fuse_connection: %u", &minor);
	return minor;
}

void mount_free(struct mount *m)
{
	if (!m)
		return;
	uring_close(m);
	if (m->view)
		view_close(m->view);
	requests_close(m);
	free(m);
}

/* ---- counters ---- */

void mount_ops(struct mount *m, void (*fn)(void *arg, const char *op, uint64_t count), void *arg)
{
	for (size_t i = 0; i < OPS_MAX; i++) {
		uint64_t n = __atomic_load_n(&m->ops[i], __ATOMIC_RELAXED);

		if (n > 0)
			fn(arg, request_name(i), n);
	}
}

void mount_notifications(struct mount *m, uint64_t *ret_entries, uint64_t *ret_inodes,
			 uint64_t *ret_epochs)
{
	*ret_entries = __atomic_load_n(&m->entries, __ATOMIC_RELAXED);
	*ret_inodes = __atomic_load_n(&m->inodes, __ATOMIC_RELAXED);
	*ret_epochs = __atomic_load_n(&m->epochs, __ATOMIC_RELAXED);
}

uint64_t mount_found(struct mount *m)
{
	return __atomic_load_n(&m->eager.found, __ATOMIC_RELAXED);
}

void mount_passed(struct mount *m, struct mount_passed *ret)
{
	*ret = (struct mount_passed){
		.passed = __atomic_load_n(&m->pass.passed, __ATOMIC_RELAXED),
		.others = __atomic_load_n(&m->pass.others, __ATOMIC_RELAXED),
		.copied = __atomic_load_n(&m->pass.copied, __ATOMIC_RELAXED),
		.told = __atomic_load_n(&m->pass.told, __ATOMIC_RELAXED),
	};
}
