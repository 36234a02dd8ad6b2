/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The reader pool.
 *
 * Why one reader for each mount: the kernel wakes idle readers of one descriptor in turn, usually
 * on another CPU than the client's, and an idle CPU takes some 50 us to wake. One *hot* reader
 * gives 9 us a request where two or four idle ones give 30. So exactly one thread, the *leader*,
 * waits in read(); it handles what it read and reads again.
 *
 * Why a leader steps aside: while it waits for a disk, nobody would read, and where it waits for
 * the kernel (a notification) that might need an answer to a request which nobody reads: a
 * deadlock. So before it waits it passes the leadership to a spare thread, finishes its request
 * as a mere *user*, and joins the pool.
 *
 * A thread is in one of three states:
 *
 *    idle --(given something to serve)--> leader --(steps aside)--> user --(reply sent)--> idle
 *                                           |                                               ^
 *                                           '--(END: nothing will come any more)------------'
 *
 * Invariants:
 *  R1  Something served has at most one leader, and only the leader calls its read.
 *  R2  While nobody leads it, it is in `waiting`: its former leader could not find a spare thread.
 *      Whoever comes first takes it back: the former leader at the end of its request, or any
 *      thread that becomes idle. (Its `leader` names the former one until then.)
 *  R3  `users` counts the threads between being given it and letting go of it, leader included.
 *      The one that brings it to 0 after END calls over(), without the lock; nobody else has *s.
 *  R4  No lock is held in read(), in a handler, or in over().
 *  R5  At most n_served + max_spare threads stay when idle; MUST_SPARE more may exist for a while.
 *
 * A thread that leads and does not step aside takes no lock at all.
 */

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "fs/mount.h"
#include "fs/readers.h"
#include "store/base/err.h"
#include "store/base/os.h"
#include "store/base/util.h"

/*
 * 256 KiB of stack: the deepest path (request, view, model, a tree of at most some ten levels,
 * chunk decoding, LMDB) needs under 64 KiB, large buffers being elsewhere; four times that, for
 * callers' hooks. Sanitizers pad every variable, hence more there.
 */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STACK_BYTES (1024 * 1024)
#else
#define STACK_BYTES (256 * 1024)
#endif

/* Beyond max_spare, for steps aside that should not fail. Clients can cause any number of them. */
#define MUST_SPARE 64

/*
 * The kernel copies a request a page of its own at a time, and each page of ours that gets some of
 * it costs: with the data of a WRITE at the beginning of a page, behind its headers in the one
 * before, that is once for each page, not twice (128 KiB: 3 us of 38).
 */
#define HEADER_PAGE 4096 /* pages are no smaller anywhere */
#define MAPPED_BYTES (HEADER_PAGE + DATA_BYTES)

/* What an idle thread keeps of each buffer: most requests are small and then fault nothing. */
#define KEEP_BYTES (64 * 1024)
/* Request buffers with all their pages, kept for whoever reads next. */
#define WARM_MAX 4
/* Readers that may keep theirs while they wait. */
#define WARM_WAITING_MAX 8
/* Idle for so long, it gives the rest back: not at once, as a busy disk alternates two threads. */
#define GIVE_BACK_AFTER_S 1
/*
 * What was synced since cannot be read into by a thread that is killed; disks are written to once
 * in 5 s. To make them writable again takes 11 us, a thousandth of that.
 */
#define SLOT_READY_NS 10000000

struct reader {
	struct readers *pool; /* immutable */
	struct reader_buffers buffers; /* immutable, owned */
	pthread_cond_t wake;
	struct reader *next_idle; /* under the pool's lock */
	struct served *serves;    /* set under the lock while idle, else the thread's own */
	bool leads;   /* likewise */
	bool warm;    /* the thread's own: the request buffer has all its pages */
	uint8_t *cold; /* the thread's own, owned: its buffer while it has a shared one */
	uint8_t *slot; /* the thread's own: from reader_memory; NULL: none */
	uint8_t *aside; /* the thread's own, owned: its buffer while it reads into the slot */
	uint64_t slot_ready_ns; /* the thread's own: all pages of the slot were writable then */
	bool stays_warm; /* the thread's own: counted in n_stay_warm */
	bool offered; /* the thread's own: serves was put into `waiting` */
};

struct readers {
	pthread_mutex_t lock;
	pthread_cond_t quiet; /* n_threads became 0 */
	unsigned max_spare;   /* immutable */
	struct reader_memory memory; /* immutable; take NULL: none */
	_Atomic unsigned n_stay_warm;
	/* under lock: */
	unsigned n_threads, n_served;
	struct reader *idle;    /* a stack: the warmest thread first */
	struct served *waiting; /* R2 */
	bool stopping;
	struct warm_buffer {
		uint8_t *request; /* owned */
		uint8_t *slot;    /* owned; NULL: none */
	} warm[WARM_MAX];
	unsigned n_warm;
	bool has_dead; /* dead: the thread that ended last, not joined yet */
	pthread_t dead;
};

static _Thread_local struct reader *self;

static void *reader_main(void *arg);

static uint8_t *map_buffer(size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

static uint8_t *request_map(void)
{
	uint8_t *p = map_buffer(MAPPED_BYTES);

	return p ? p + HEADER_PAGE - HEADER_BYTES : NULL;
}

static uint8_t *request_base(uint8_t *request)
{
	return request - (HEADER_PAGE - HEADER_BYTES);
}

static void request_free(uint8_t *request)
{
	if (request)
		munmap(request_base(request), MAPPED_BYTES);
}

static void slot_give(struct readers *rs, uint8_t *slot)
{
	if (slot)
		rs->memory.give(rs->memory.arg, slot);
}

static void reader_free(struct reader *r)
{
	if (!r)
		return;
	request_free(r->buffers.request);
	request_free(r->cold);
	slot_give(r->pool, r->slot);
	if (r->buffers.reply)
		munmap(r->buffers.reply, REPLY_BYTES);
	pthread_cond_destroy(&r->wake);
	free(r);
}

static void reader_freep(struct reader **r)
{
	reader_free(*r);
}

static int reader_new(struct readers *rs, struct reader **ret)
{
	_cleanup_(reader_freep) struct reader *r = os_calloc(1, sizeof(*r));
	pthread_condattr_t attr;

	if (!r)
		return -ENOMEM;
	r->pool = rs;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&r->wake, &attr);
	pthread_condattr_destroy(&attr);

	r->buffers.request = request_map();
	r->buffers.reply = map_buffer(REPLY_BYTES);
	if (!r->buffers.request || !r->buffers.reply)
		return -ENOMEM;

	*ret = TAKE_PTR(r);
	return 0;
}

/*
 * Signals are the main thread's affair: a reader that is interrupted gains nothing. Those that a
 * thread causes itself (a bad access) stay open, or a handler for them could not work.
 */
static void block_signals(sigset_t *ret_old)
{
	static const int own[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS };
	sigset_t set;

	sigfillset(&set);
	for (size_t i = 0; i < ARRAY_SIZE(own); i++)
		sigdelset(&set, own[i]);
	pthread_sigmask(SIG_BLOCK, &set, ret_old);
}

int readers_start_thread(const char *name, void *(*fn)(void *arg), void *arg, pthread_t *ret)
{
	pthread_attr_t attr;
	sigset_t old;
	int r;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK_BYTES);
	block_signals(&old);
	r = pthread_create(ret, &attr, fn, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	if (r != 0)
		return -r;
	pthread_setname_np(*ret, name);
	return 0;
}

/* Lock held. A new thread that leads s at once. */
static int start_leader(struct readers *rs, struct served *s, struct reader **ret)
{
	_cleanup_(reader_freep) struct reader *leader = NULL;
	pthread_t thread;
	int r;

	r = reader_new(rs, &leader);
	if (r < 0)
		return r;
	leader->serves = s;
	leader->leads = true;

	r = readers_start_thread("plyfs-reader", reader_main, leader, &thread);
	if (r < 0)
		return r;

	rs->n_threads++;
	*ret = TAKE_PTR(leader);
	return 0;
}

/* Lock held. Finds a thread to lead s: a warm idle one, or a new one while below the limit. */
static int find_leader(struct readers *rs, struct served *s, unsigned limit)
{
	struct reader *leader = rs->idle;
	int r;

	if (leader) {
		rs->idle = leader->next_idle;
		leader->serves = s;
		leader->leads = true;
		pthread_cond_signal(&leader->wake);
	} else {
		if (rs->n_threads >= limit)
			return -EAGAIN;
		r = start_leader(rs, s, &leader);
		if (r < 0)
			return r;
	}
	s->leader = leader;
	s->users++;
	return 0;
}

/* Lock held. */
static void stop_waiting(struct readers *rs, struct served *s)
{
	for (struct served **at = &rs->waiting; *at; at = &(*at)->next_waiting) {
		if (*at == s) {
			*at = s->next_waiting;
			s->next_waiting = NULL;
			return;
		}
	}
}

/* False: there is no thread to lead; the next that is idle will. */
static bool step_aside(bool must)
{
	struct reader *r = self;
	struct readers *rs;
	struct served *s;

	if (!r || !r->leads)
		return true;
	rs = r->pool;
	s = r->serves;

	LOCK_GUARD(&rs->lock);
	if (s->leader != r) { /* an idle thread took it meanwhile (R2) */
		r->offered = false;
		r->leads = false;
		return true;
	}
	if (find_leader(rs, s, rs->n_served + rs->max_spare + (must ? MUST_SPARE : 0)) == 0) {
		if (r->offered)
			stop_waiting(rs, s);
		r->offered = false;
		r->leads = false;
	} else if (!r->offered) {
		s->next_waiting = rs->waiting;
		rs->waiting = s;
		r->offered = true;
	}
	return !r->leads;
}

void readers_will_block(void)
{
	(void)step_aside(false);
}

bool readers_step_aside(void)
{
	return step_aside(true);
}

/* A failure of either costs memory, nothing else. */
static void give_back_reply(struct reader *r)
{
	(void)madvise(r->buffers.reply + KEEP_BYTES, REPLY_BYTES - KEEP_BYTES, MADV_DONTNEED);
}

static void give_back(struct reader *r)
{
	(void)madvise(request_base(r->buffers.request) + KEEP_BYTES, MAPPED_BYTES - KEEP_BYTES,
		      MADV_DONTNEED);
	give_back_reply(r);
}

/* What warms a thread stays warm in the pool: with few requests at a time few buffers do. */
static struct warm_buffer take_warm(struct readers *rs)
{
	LOCK_GUARD(&rs->lock);
	return rs->n_warm > 0 ? rs->warm[--rs->n_warm] : (struct warm_buffer){ 0 };
}

static bool put_warm(struct readers *rs, uint8_t *request, uint8_t *slot)
{
	LOCK_GUARD(&rs->lock);
	if (rs->n_warm == WARM_MAX)
		return false;
	rs->warm[rs->n_warm++] = (struct warm_buffer){ request, slot };
	return true;
}

static void have_slot(struct reader *r, uint8_t *slot)
{
	r->slot = slot;
	r->slot_ready_ns = 0;
	if (slot)
		r->pool->memory.serve_beside(r->pool->memory.arg, slot);
}

static void take_slot(struct reader *r)
{
	const struct reader_memory *m = &r->pool->memory;

	have_slot(r, m->take ? m->take(m->arg) : NULL);
}

static void populate(uint8_t *request)
{
	/* Without the memory, or before Linux 5.14, pages come when they are touched. */
	(void)madvise(request_base(request), MAPPED_BYTES, MADV_POPULATE_WRITE);
}

void readers_warm(void)
{
	struct reader *r = self;
	struct warm_buffer warm;

	if (!r || r->warm)
		return;
	r->warm = true;
	warm = take_warm(r->pool);
	if (!warm.request) {
		populate(r->buffers.request);
		take_slot(r);
		return;
	}
	r->cold = r->buffers.request;
	r->buffers.request = warm.request;
	have_slot(r, warm.slot);
}

void readers_read_beside(void)
{
	struct reader *r = self;

	if (!r || !r->aside)
		return;
	r->buffers.request = TAKE_PTR(r->aside);
	r->pool->memory.serve_beside(r->pool->memory.arg, r->slot);
}

/* The slot that is no longer r's, still taken. */
static uint8_t *leave_slot(struct reader *r)
{
	readers_read_beside();
	r->pool->memory.serve(r->pool->memory.arg, NULL);
	return TAKE_PTR(r->slot);
}

bool readers_read_into_slot(uint64_t now)
{
	struct reader *r = self;

	if (!r || !r->slot)
		return false;
	if (now - r->slot_ready_ns > SLOT_READY_NS) {
		if (os_make_writable(r->slot, MAPPED_BYTES) < 0) {
			(void)leave_slot(r); /* which nobody gets again */
			take_slot(r);
			return false;
		}
		r->slot_ready_ns = now;
	}
	if (r->aside)
		return true;
	r->aside = r->buffers.request;
	r->buffers.request = r->slot + HEADER_PAGE - HEADER_BYTES;
	r->pool->memory.serve(r->pool->memory.arg, r->slot);
	return true;
}

void readers_touch_slot(size_t bytes)
{
	struct reader *r = self;

	if (!r || !r->aside)
		return;
	*(volatile uint8_t *)r->buffers.request = 0;
	for (size_t at = HEADER_BYTES; at < MIN(bytes, REQUEST_BYTES); at += HEADER_PAGE)
		*(volatile uint8_t *)(r->buffers.request + at) = 0;
}

bool readers_lost_slot(void)
{
	struct reader *r = self;

	if (!r || !r->aside)
		return false;
	(void)leave_slot(r); /* which nobody gets again */
	take_slot(r);
	return true;
}

/* A request was answered. */
static void served(struct reader *r)
{
	const struct reader_memory *m = &r->pool->memory;

	if (!r->slot || m->served(m->arg) >= 0)
		return;
	m->give_up(m->arg, leave_slot(r));
	take_slot(r);
}

void readers_cool(void)
{
	struct reader *r = self;
	uint8_t *slot;

	if (!r || !r->warm)
		return;
	readers_read_beside();
	if (!r->cold)
		r->cold = request_map();
	if (!r->cold) /* no memory: it stays warm */
		return;
	r->warm = false;
	slot = r->slot ? leave_slot(r) : NULL;
	if (!put_warm(r->pool, r->buffers.request, slot)) {
		request_free(r->buffers.request);
		slot_give(r->pool, slot);
	}
	r->buffers.request = TAKE_PTR(r->cold);
	give_back_reply(r); /* the leader of each view has one, and waits for as long as it lives */
}

bool readers_stay_warm(void)
{
	struct reader *r = self;

	if (!r || r->stays_warm)
		return true;
	if (r->pool->n_stay_warm >= WARM_WAITING_MAX)
		return false;
	if (r->pool->n_stay_warm++ >= WARM_WAITING_MAX)
		r->pool->n_stay_warm--; /* another one was faster */
	else
		r->stays_warm = true;
	return r->stays_warm;
}

/* The end of a request during which the leadership was offered: nobody took it, or somebody did. */
static void take_back(struct reader *r)
{
	struct readers *rs = r->pool;
	LOCK_GUARD(&rs->lock);

	r->offered = false;
	if (r->serves->leader == r)
		stop_waiting(rs, r->serves);
	else
		r->leads = false;
}

/* Reads and handles until the leadership is gone or nothing will come any more. */
static void serve(struct reader *r)
{
	struct readers *rs = r->pool;
	struct served *s = r->serves;
	bool end = false, last;

	while (r->leads && !end) {
		end = s->serve_one(s, &r->buffers) == END;
		served(r);
		if (r->offered)
			take_back(r);
	}
	if (r->stays_warm)
		rs->n_stay_warm--;
	r->stays_warm = false;
	readers_cool();

	pthread_mutex_lock(&rs->lock);
	if (end)
		s->ended = true;
	last = --s->users == 0 && s->ended;
	if (last)
		rs->n_served--;
	r->serves = NULL;
	r->leads = false;
	pthread_mutex_unlock(&rs->lock);

	if (last)
		s->over(s);
}

/* Joins the pool until there is something to serve: true; false: this thread is to end. */
static bool wait_for_work(struct reader *r)
{
	struct readers *rs = r->pool;
	struct timespec until;
	struct served *s;
	LOCK_GUARD(&rs->lock);

	s = rs->waiting;
	if (s) { /* R2 */
		stop_waiting(rs, s);
		s->leader = r;
		s->users++;
		r->serves = s;
		r->leads = true;
		return true;
	}
	if (rs->n_threads > rs->n_served + rs->max_spare) /* R5 */
		return false;

	r->next_idle = rs->idle;
	rs->idle = r;
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += GIVE_BACK_AFTER_S;
	while (!r->serves && !rs->stopping) {
		if (pthread_cond_timedwait(&r->wake, &rs->lock, &until) != ETIMEDOUT)
			continue;
		give_back(r);
		while (!r->serves && !rs->stopping)
			pthread_cond_wait(&r->wake, &rs->lock);
	}
	return r->serves != NULL;
}

static void *reader_main(void *arg)
{
	struct reader *r = arg;
	struct readers *rs = r->pool;
	pthread_t before;
	bool has_before;

	/* The creator holds the lock until its bookkeeping is done. */
	pthread_mutex_lock(&rs->lock);
	pthread_mutex_unlock(&rs->lock);
	self = r;
	do
		serve(r);
	while (wait_for_work(r));
	self = NULL;
	reader_free(r);

	/* Each ending thread joins the one before it, so at most one is left to join. */
	pthread_mutex_lock(&rs->lock);
	has_before = rs->has_dead;
	before = rs->dead;
	rs->has_dead = true;
	rs->dead = pthread_self();
	if (--rs->n_threads == 0)
		pthread_cond_broadcast(&rs->quiet);
	pthread_mutex_unlock(&rs->lock);
	if (has_before)
		pthread_join(before, NULL);
	return NULL;
}

int readers_serve(struct readers *rs, struct served *s)
{
	LOCK_GUARD(&rs->lock);
	int r;

	rs->n_served++;
	r = find_leader(rs, s, UINT32_MAX);
	if (r < 0)
		rs->n_served--;
	return r;
}

int readers_new(unsigned max_spare, const struct reader_memory *memory, struct readers **ret)
{
	struct readers *rs = os_calloc(1, sizeof(*rs));

	if (!rs)
		return -ENOMEM;
	rs->max_spare = max_spare;
	if (memory)
		rs->memory = *memory;
	pthread_mutex_init(&rs->lock, NULL);
	pthread_cond_init(&rs->quiet, NULL);
	*ret = rs;
	return 0;
}

void readers_free(struct readers *rs)
{
	if (!rs)
		return;

	pthread_mutex_lock(&rs->lock);
	rs->stopping = true;
	for (struct reader *r = rs->idle; r; r = r->next_idle)
		pthread_cond_signal(&r->wake);
	while (rs->n_threads > 0)
		pthread_cond_wait(&rs->quiet, &rs->lock);
	pthread_mutex_unlock(&rs->lock);
	if (rs->has_dead)
		pthread_join(rs->dead, NULL);
	while (rs->n_warm > 0) {
		rs->n_warm--;
		request_free(rs->warm[rs->n_warm].request);
		slot_give(rs, rs->warm[rs->n_warm].slot);
	}

	pthread_mutex_destroy(&rs->lock);
	pthread_cond_destroy(&rs->quiet);
	free(rs);
}
