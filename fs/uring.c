/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Requests through io_uring (Linux 6.14).
 *
 * The kernel has a queue for each possible CPU, into which go the requests of the clients that run
 * there. It is given *entries* of a queue, each of which is memory for one request and its reply;
 * one system call commits a reply and fetches the next request. Each queue here has a thread that
 * stays on its CPU, so a client and who answers it take turns on one CPU, and clients on several do
 * not meet.
 *
 * What the kernel assigned to an entry is copied by the thread that gave the entry, so while that
 * thread waits, the requests do as well; no other could take them over. It may wait for the disk,
 * which costs time only. It must not wait for what needs an answer to another request, as a
 * notification does, which takes locks of waiting clients: such requests (request_may_wait) go to
 * a thread of their own, which gives the entry back with the reply.
 *
 *    in the kernel --(request)--> with the ring's thread --(may wait)--> with a helper
 *          ^                            |                                     |
 *          '---------(commit)-----------+---------------(given back)----------'
 *
 * Invariants:
 *  U1  Some entries (NEVER_AWAY) are never with a helper. When all others are, the next verb that
 *      would need one is refused. So requests for which no entry was free come to an end: the
 *      kernel fetches them one by one, at commits only (a new entry would not do that), and some
 *      entry is always to be committed. (So they are not given one by one, as others go away: all
 *      there are could be away, while who they wait for is in the queue.)
 *  U2  Only the ring's thread uses the ring. It commits a reply after its handler has returned: the
 *      entry would be given another request while this thread still does something.
 *  U3  Entries are given when the mount begins and until it ends: one that is taken back could have
 *      been assigned a request just now, which would be lost.
 *  U4  The memory of one that the kernel has is given back as a whole, header included: it may be
 *      written to at any interrupt of the ring's thread, but by that alone, so before or after
 *      mremap; and the number of the request tells which.
 *
 * The kernel's side dies with the process: it sends nothing again from a ring. So such mounts are
 * not for a successor (the view has no memo).
 *
 * No IORING_SETUP_DEFER_TASKRUN, which wakes a little less: with it, Linux 6.18 hung when a process
 * was killed that had requests.
 */

#include <assert.h>
#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>

#include "fs/mount_internal.h"
#include "fs/uring.h"
#include "store/base/err.h"
#include "store/base/note.h"
#include "store/base/os.h"
#include "store/base/util.h"

/* ---- the protocol (7.42), which older <linux/fuse.h> do not have ---- */

#define CMD_REGISTER 1
#define CMD_COMMIT_AND_FETCH 2

struct wire_header {
	uint8_t in_out[128]; /* struct fuse_in_header; of a reply struct fuse_out_header */
	uint8_t op_in[128];  /* what is fixed of the operation's arguments */
	uint64_t flags;
	uint64_t commit_id;
	uint32_t payload_len; /* the rest of the arguments; of a reply the body */
	uint32_t padding;
	uint64_t reserved;
};
static_assert(sizeof(struct wire_header) == 288, "as the kernel has it");

struct wire_command { /* in the SQE */
	uint64_t flags;
	uint64_t commit_id;
	uint16_t queue;
	uint8_t padding[6];
};
static_assert(sizeof(struct wire_command) == 24, "as the kernel has it");

/* A long SQE, with 80 bytes of `cmd`. <liburing.h> has a short one, with 16. */
struct wire_sqe {
	uint8_t head[offsetof(struct io_uring_sqe, cmd)];
	struct wire_command command;
	uint8_t rest[56];
};
static_assert(sizeof(struct wire_sqe) == 128, "IORING_SETUP_SQE128");

/* ---- entries and queues ---- */

/* Of each queue: so many clients of a CPU can wait for the disk or for each other at once. */
#define ENTRIES 64
#define NEVER_AWAY 4

/* As readers.c has it: what is kept of an entry's memory, and for how long the rest. */
#define KEEP_BYTES (64 * 1024)
#define GIVE_BACK_AFTER_S 1

#define RETRY_US 1000 /* nobody sees so short a wait, and no CPU is kept from who frees memory */

/*
 * An entry's memory: a page in which both headers are, the kernel's at its beginning and, at its
 * end, the request's as libfuse wants it, right before the payload. Then a payload and room for a
 * reply to something that has one. Pages that were never touched cost nothing.
 */
#define HEAD_BYTES 4096
#define ENTRY_BYTES (HEAD_BYTES + DATA_BYTES + REPLY_BYTES)
static_assert(REPLY_BYTES <= DATA_BYTES, "the kernel takes replies from the payload");

struct ring_entry {
	struct queue *queue; /* immutable */
	struct wire_header *header; /* immutable, as the next three */
	uint8_t *payload, *reply;
	struct iovec parts[2]; /* what the kernel reads and writes: header and payload */
	/* whose the entry is, his: */
	struct reader_buffers buffers;
	struct fuse_in_header in;
	uint64_t commit_id;
	bool answered;
	bool large; /* more than KEEP_BYTES were touched; counted in n_large */
	bool away; /* with a helper */
	struct ring_entry *next; /* under the uring's lock: given back */
};

struct queue {
	struct uring *uring; /* immutable */
	uint16_t cpu;        /* immutable */
	pthread_t thread;    /* immutable, if has_thread */
	bool has_thread;
	int wake;            /* immutable, owned: an eventfd, for given_back and stopping */
	uint8_t *memory;     /* immutable, owned: ENTRIES times ENTRY_BYTES */
	struct io_uring ring;      /* the thread's own, like the next two */
	unsigned n_away, n_large;
	struct ring_entry *given_back; /* under the uring's lock */
	struct ring_entry entries[ENTRIES];
};

struct uring {
	struct mount *mount; /* immutable */
	unsigned n_queues;   /* immutable */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	/* under lock: */
	unsigned n_ready, n_helpers;
	int error; /* of a thread that could not get ready */
	bool serving, stopping;
	struct queue queues[];
};

/* The request from a ring that this thread handles. */
static _Thread_local struct ring_entry *answering;

static const struct noter *noter_of(struct queue *q)
{
	return store_noter(view_store(q->uring->mount->view));
}

bool uring_may_wait(void)
{
	return !answering || answering->away;
}

/* ---- an entry ---- */

/* Gives it: for the first time, or with the reply to a request, whose number is not 0. */
static void command(struct ring_entry *e)
{
	struct queue *q = e->queue;
	const struct wire_command c = { .commit_id = e->commit_id, .queue = q->cpu };
	struct io_uring_sqe *sqe = io_uring_get_sqe(&q->ring);

	assert(sqe); /* the ring has room for all entries */
	if (e->commit_id) {
		io_uring_prep_rw(IORING_OP_URING_CMD, sqe, q->uring->mount->fd, NULL, 0, 0);
		sqe->cmd_op = CMD_COMMIT_AND_FETCH;
	} else {
		io_uring_prep_rw(IORING_OP_URING_CMD, sqe, q->uring->mount->fd, e->parts,
				 ARRAY_SIZE(e->parts), 0);
		sqe->cmd_op = CMD_REGISTER;
	}
	((struct wire_sqe *)sqe)->command = c;
	io_uring_sqe_set_data(sqe, e);
}

/* The ring's thread. Its next system call hands it over (U2). */
static void commit(struct ring_entry *e)
{
	struct queue *q = e->queue;

	if (e->away)
		q->n_away--;
	e->away = false;
	if (!e->large && MAX(e->in.len, e->header->payload_len) > KEEP_BYTES) {
		e->large = true;
		q->n_large++;
	}
	command(e);
}

/* A helper's. The entry is the ring's thread's from here on. */
static void give_back(struct ring_entry *e)
{
	struct queue *q = e->queue;
	LOCK_GUARD(&q->uring->lock);

	e->next = q->given_back;
	q->given_back = e;
	(void)eventfd_write(q->wake, 1);
}

static void answer(struct ring_entry *e, const struct fuse_out_header *out, size_t body)
{
	memcpy(e->header->in_out, out, sizeof(*out));
	e->header->payload_len = (uint32_t)body;
	e->answered = true;
	if (e->away) {
		answering = NULL;
		give_back(e);
	}
}

static void answer_error(struct ring_entry *e, int error)
{
	const struct fuse_out_header out = {
		.len = sizeof(out), .error = error, .unique = e->in.unique
	};

	answer(e, &out, 0);
}

int uring_reply(const struct iovec *iov, int count)
{
	struct ring_entry *e = answering;
	size_t len = 0, at;

	if (!e)
		return ABSENT;
	for (int i = 1; i < count; i++)
		len += iov[i].iov_len;
	if (e->answered || len > DATA_BYTES)
		return -EINVAL; /* handle answers with EIO */
	at = len;
	/* From the end, as it may be in the payload already, at its beginning: then that moves. */
	for (int i = count - 1; i > 0; i--) {
		at -= iov[i].iov_len;
		if (iov[i].iov_base != e->payload + at)
			memmove(e->payload + at, iov[i].iov_base, iov[i].iov_len);
	}
	answer(e, iov[0].iov_base, len);
	return 0;
}

/* Puts the request together: false if it is none. */
static bool take(struct ring_entry *e)
{
	const struct wire_header *h = e->header;
	size_t payload = h->payload_len, fixed;

	memcpy(&e->in, h->in_out, sizeof(e->in));
	e->commit_id = h->commit_id;
	e->answered = false;
	fixed = e->in.len - sizeof(e->in) - payload;
	if (payload > DATA_BYTES || e->in.len < sizeof(e->in) + payload || fixed > sizeof(h->op_in))
		return false;
	e->buffers.request = e->payload - fixed - sizeof(e->in);
	e->buffers.reply = payload ? e->reply : e->payload;
	memcpy(e->buffers.request, &e->in, sizeof(e->in));
	memcpy(e->buffers.request + sizeof(e->in), h->op_in, fixed);
	return true;
}

/* Afterwards a helper's entry is the ring's thread's. */
static void handle(struct ring_entry *e)
{
	answering = e;
	requests_handle(e->queue->uring->mount, &e->buffers, e->in.len);
	if (answering && !e->answered)
		answer_error(e, -EIO);
	answering = NULL;
}

/* ---- helpers ---- */

static void *helper_main(void *arg)
{
	struct ring_entry *e = arg;
	struct uring *u = e->queue->uring;

	handle(e);
	pthread_mutex_lock(&u->lock);
	u->n_helpers--;
	pthread_cond_broadcast(&u->changed);
	pthread_mutex_unlock(&u->lock);
	return NULL;
}

/* AGAIN: too many are away, or no thread is to be had. */
static int send_away(struct ring_entry *e)
{
	struct uring *u = e->queue->uring;
	pthread_t thread;
	LOCK_GUARD(&u->lock);

	if (e->queue->n_away == ENTRIES - NEVER_AWAY) /* U1 */
		return AGAIN;
	e->away = true;
	if (readers_start_thread("plyfs-ring-help", helper_main, e, &thread) < 0) {
		e->away = false;
		return AGAIN;
	}
	pthread_detach(thread);
	e->queue->n_away++;
	u->n_helpers++;
	return 0;
}

/* ---- a queue ---- */

static void serve_request(struct ring_entry *e)
{
	bool good = take(e), waits = good && request_may_wait(&e->buffers);

	if (waits && send_away(e) == 0)
		return;
	if (good && (!waits || e->in.opcode != FUSE_IOCTL))
		handle(e); /* waits for the disk alone (uring_may_wait); none tries it again */
	else
		answer_error(e, good ? -EAGAIN : -EIO);
	commit(e);
}

static void look_for_wake(struct queue *q)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&q->ring);

	assert(sqe);
	io_uring_prep_poll_add(sqe, q->wake, POLLIN);
	io_uring_sqe_set_data(sqe, NULL);
}

/* 0, or END: uring_close was called. */
static int woken(struct queue *q)
{
	struct ring_entry *e;
	eventfd_t n;
	LOCK_GUARD(&q->uring->lock);

	if (q->uring->stopping)
		return END;
	(void)eventfd_read(q->wake, &n);
	for (e = q->given_back; e; e = e->next)
		commit(e);
	q->given_back = NULL;
	look_for_wake(q);
	return 0;
}

/*
 * U4. The ring's thread; the kernel has the entry, and the reply that was in it, or a completion of
 * it is still to be seen.
 */
static void give_memory_back(struct ring_entry *e)
{
	struct wire_header *was;

	if (e->header->commit_id != e->commit_id)
		return; /* in use */
	/* Anywhere. Newer C libraries (seen: glibc 2.43) take a fifth argument with that flag. */
	was = mremap(e->header, ENTRY_BYTES, ENTRY_BYTES, MREMAP_MAYMOVE | MREMAP_DONTUNMAP,
		     NULL);
	if (was == MAP_FAILED)
		return;
	if (was->commit_id != e->commit_id) /* just now */
		memcpy(e->header, was, HEAD_BYTES + MIN(was->payload_len, DATA_BYTES));
	(void)munmap(was, ENTRY_BYTES);
	e->large = false;
	e->queue->n_large--;
}

/* For a request, as long as nothing can be given back. */
static int wait_for_next(struct queue *q)
{
	struct __kernel_timespec after = { .tv_sec = GIVE_BACK_AFTER_S };
	struct io_uring_cqe *cqe;

	if (q->n_large == 0)
		return io_uring_submit_and_wait(&q->ring, 1);
	return io_uring_submit_and_wait_timeout(&q->ring, &cqe, 1, &after, NULL);
}

/* 0: go on, END: uring_close was called, or there is no ring any more. */
static int serve_next(struct queue *q)
{
	struct io_uring_cqe *cqe;
	int r = wait_for_next(q), ret = 0;

	if (r == -EAGAIN || r == -EBUSY) { /* memory is short; what is to be submitted still is */
		(void)usleep(RETRY_US);
		r = -EINTR;
	}
	if (r < 0 && r != -EINTR && r != -ETIME) {
		(void)note(noter_of(q), 0, "mount: io_uring: %s", err_name(r));
		return END;
	}
	/* One at a time: its client shall not wait for the next one's. */
	if (io_uring_peek_cqe(&q->ring, &cqe) == 0) {
		struct ring_entry *e = io_uring_cqe_get_data(cqe);

		r = cqe->res;
		io_uring_cqe_seen(&q->ring, cqe);
		if (!e) {
			ret = woken(q);
		} else if (r == 0) {
			serve_request(e);
		} else if (r == -ENOMEM) { /* the ring's own: FUSE has not heard of it */
			(void)usleep(RETRY_US);
			command(e);
		}
		/* Else the kernel has let go of it; the reader on the descriptor sees why. */
	} else if (r != -EINTR && io_uring_sq_ready(&q->ring) == 0) { /* it took all */
		for (unsigned i = 0; i < ENTRIES; i++)
			if (q->entries[i].large && !q->entries[i].away)
				give_memory_back(&q->entries[i]);
	}
	return ret;
}

static int queue_open(struct queue *q)
{
	struct io_uring_params params = {
		.flags = IORING_SETUP_SQE128 | IORING_SETUP_SINGLE_ISSUER |
			 IORING_SETUP_COOP_TASKRUN,
	};
	void *p = mmap(NULL, ENTRIES * ENTRY_BYTES, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED)
		return -ENOMEM;
	q->memory = p;
	for (unsigned i = 0; i < ENTRIES; i++) {
		struct ring_entry *e = &q->entries[i];

		e->queue = q;
		e->header = (void *)(q->memory + i * (size_t)ENTRY_BYTES);
		e->payload = (uint8_t *)e->header + HEAD_BYTES;
		e->reply = e->payload + DATA_BYTES;
		e->parts[0] = (struct iovec){ e->header, sizeof(*e->header) };
		e->parts[1] = (struct iovec){ e->payload, DATA_BYTES };
	}
	return io_uring_queue_init_params(2 * ENTRIES, &q->ring, &params);
}

static void queue_register(struct queue *q)
{
	for (unsigned i = 0; i < ENTRIES; i++)
		command(&q->entries[i]);
	look_for_wake(q);
}

/* Tells how it went and waits for uring_serve: false if there is nothing to serve. */
static bool get_ready(struct queue *q, int error)
{
	struct uring *u = q->uring;
	LOCK_GUARD(&u->lock);

	u->n_ready++;
	if (error < 0)
		u->error = error;
	pthread_cond_broadcast(&u->changed);
	while (!u->serving && !u->stopping)
		pthread_cond_wait(&u->changed, &u->lock);
	return error == 0 && !u->stopping;
}

static void *queue_main(void *arg)
{
	struct queue *q = arg;
	cpu_set_t cpu;
	int r;

	/* May fail where a cpuset forbids this one: who runs there is answered from afar. */
	CPU_ZERO(&cpu);
	CPU_SET(q->cpu, &cpu);
	(void)pthread_setaffinity_np(pthread_self(), sizeof(cpu), &cpu);

	r = queue_open(q);
	if (get_ready(q, r)) {
		queue_register(q);
		while (serve_next(q) == 0)
			;
	}
	if (r == 0)
		io_uring_queue_exit(&q->ring);
	return NULL;
}

/* ---- the mount's ---- */

int uring_open(struct mount *m)
{
	/* As many as the kernel counts: it waits for all. The C library reads "possible". */
	unsigned n = (unsigned)get_nprocs_conf();
	struct uring *u = os_calloc(1, sizeof(*u) + n * sizeof(u->queues[0]));
	int r;

	if (!u)
		return -ENOMEM;
	u->mount = m;
	u->n_queues = n;
	pthread_mutex_init(&u->lock, NULL);
	pthread_cond_init(&u->changed, NULL);
	for (unsigned i = 0; i < n; i++) {
		u->queues[i].uring = u;
		u->queues[i].cpu = (uint16_t)i;
		u->queues[i].wake = -1;
	}
	m->uring = u; /* mount_free closes, also after a failure */

	for (unsigned i = 0; i < n; i++) {
		struct queue *q = &u->queues[i];

		q->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		if (q->wake < 0)
			return -errno;
		r = readers_start_thread("plyfs-ring", queue_main, q, &q->thread);
		if (r < 0)
			return r;
		q->has_thread = true;
	}
	LOCK_GUARD(&u->lock);
	while (u->n_ready < n)
		pthread_cond_wait(&u->changed, &u->lock);
	return u->error;
}

void uring_serve(struct mount *m)
{
	LOCK_GUARD(&m->uring->lock);
	m->uring->serving = true;
	pthread_cond_broadcast(&m->uring->changed);
}

void uring_close(struct mount *m)
{
	struct uring *u = m->uring;

	if (!u)
		return;
	pthread_mutex_lock(&u->lock);
	u->stopping = true;
	pthread_cond_broadcast(&u->changed);
	for (unsigned i = 0; i < u->n_queues; i++)
		if (u->queues[i].has_thread)
			(void)eventfd_write(u->queues[i].wake, 1);
	pthread_mutex_unlock(&u->lock);
	for (unsigned i = 0; i < u->n_queues; i++)
		if (u->queues[i].has_thread)
			pthread_join(u->queues[i].thread, NULL);
	pthread_mutex_lock(&u->lock);
	while (u->n_helpers > 0)
		pthread_cond_wait(&u->changed, &u->lock);
	pthread_mutex_unlock(&u->lock);

	for (unsigned i = 0; i < u->n_queues; i++) {
		if (u->queues[i].memory)
			munmap(u->queues[i].memory, ENTRIES * ENTRY_BYTES);
		if (u->queues[i].wake >= 0)
			(void)close(u->queues[i].wake);
	}
	pthread_cond_destroy(&u->changed);
	pthread_mutex_destroy(&u->lock);
	free(u);
	m->uring = NULL;
}
