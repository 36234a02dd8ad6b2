/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Reading the next request: asleep, or by looking for it while that pays.
 *
 * A client that asks one thing after the other has its next question after a few us, and to sleep
 * meanwhile costs both sides: two switches where the scheduler has them on one CPU, two wake-ups
 * where they are on two, some 50 us each if an idle CPU was given back. So where requests follow
 * each other closely the reader looks for the next one for a moment before it sleeps, unless others
 * want its CPU (eager_judge.c).
 */

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

#include "fs/awake.h"
#include "fs/mount_internal.h"
#include "store/base/util.h"

#define EAGER_NS 20000 /* a look; with 50,000 untar takes 0.95 of the time, git 1.05 to 1.08 */
#define SOON_NS 150000 /* two wake-ups, the client's and ours, and what it does in between */

/*
 * CPUs are kept awake (awake.h) for requests in a row, none more than CLOSE_NS after the one
 * before. The two wake-ups of each take 100 to 200 us, a tenth of the work that lies between: with
 * 250,000 here a run of Python's unittest, which asks once in a ms, takes 1.17 of its time on ext4,
 * and so 1.04. ROW: a lonely request, or one now and then, changes nothing.
 */
#define CLOSE_NS 1500000
#define ROW 4

static void look_for_row(struct eagerness *e, uint64_t now)
{
	bool close = now - e->last_ns < CLOSE_NS;

	e->last_ns = now;
	e->row = close ? e->row + 1 : 0;
	if (e->row >= ROW)
		awake_request(now);
}

/* Is there a CPU for a client beside ours, with all that runs now? */
static bool a_cpu_is_idle(void)
{
	_cleanup_close_ int fd = open("/proc/loadavg", O_RDONLY | O_CLOEXEC);
	char text[64] = "";
	unsigned running;

	return fd >= 0 && read(fd, text, sizeof(text) - 1) > 0 &&
	       sscanf(text, "%*s %*s %*s %u/", &running) == 1 &&
	       (long)running < sysconf(_SC_NPROCESSORS_ONLN);
}

/*
 * Lets go of this CPU and goes on on another: the scheduler puts who wakes beside who woke him, and
 * finds out only after ms that both want to run. False: we are to stay here.
 */
static bool move_over(void)
{
	cpu_set_t all, others;
	int cpu = sched_getcpu();

	if (cpu < 0 || sched_getaffinity(0, sizeof(all), &all) < 0)
		return false; /* more CPUs than it has bits */
	others = all;
	CPU_CLR((unsigned)cpu, &others);
	return CPU_COUNT(&others) > 0 && sched_setaffinity(0, sizeof(others), &others) == 0 &&
	       sched_setaffinity(0, sizeof(all), &all) == 0;
}

static const struct eager_cpus cpus = { a_cpu_is_idle, move_over };

/* For looks, a call for each; one that polls before it reads would be two for what it finds. */
static void read_does_not_wait(struct mount *m, bool on)
{
	if (m->eager.no_wait != on && fcntl(m->fd, F_SETFL, on ? O_NONBLOCK : 0) == 0)
		m->eager.no_wait = on;
}

/*
 * A reader that is killed while the kernel copies a request to it, and that has no page for it yet,
 * gets no page any more: the request fails with EIO, though the mount goes on. So whoever is
 * followed by another process has all pages before it reads. A few may keep them while they wait in
 * read(). When there are more mounts, the others wait in poll(), which costs one or two us.
 */
#define COOL_AFTER_MS 20 /* those who follow each other take no lock */

/*
 * The pages of a slot are a file's: once they are written back they are as good as not there until
 * they are touched again. So a slot is read into only while large WRITEs follow each other, whose
 * copy from another buffer would take a tenth of their time, and after no long wait.
 */
#define LARGE_BYTES (32 * 1024) /* the copy of less takes no longer than poll() */
#define LARGE_ROW 2
#define SLOT_WAIT_MS 10 /* as readers_read_into_slot holds for */

static bool choose_buffer(struct mount *m, uint64_t now)
{
	if (m->eager.large >= LARGE_ROW && readers_read_into_slot(now))
		return true;
	readers_read_beside();
	return false;
}

static ssize_t read_request(struct mount *m, const struct reader_buffers *buffers)
{
	if (m->memo)
		readers_warm();
	readers_touch_slot(m->eager.last_bytes); /* in a row they are alike */
	return read(m->fd, buffers->request, REQUEST_BYTES);
}

/* As read(2); EAGAIN: no request within EAGER_NS. */
static ssize_t look_for_request(struct mount *m, const struct reader_buffers *buffers,
				uint64_t start, struct look *look)
{
	uint64_t before, now = start;
	ssize_t n;

	read_does_not_wait(m, true);
	while ((n = read_request(m, buffers)) < 0 && errno == EAGAIN && now - start < EAGER_NS) {
		if (look->laps++ == 0)
			(void)sched_yield();
		before = now;
		now = now_ns();
		look->longest_ns = MAX(look->longest_ns, now - before);
	}
	look->end_ns = now;
	return n;
}

static ssize_t wait_for_request(struct mount *m, const struct reader_buffers *buffers, bool in_slot)
{
	struct pollfd p = { .fd = m->fd, .events = POLLIN };

	if (in_slot) {
		read_does_not_wait(m, true); /* if who asked has given up meanwhile */
		if (poll(&p, 1, SLOT_WAIT_MS) > 0 && readers_read_into_slot(now_ns()))
			return read_request(m, buffers);
		readers_read_beside();
	}
	read_does_not_wait(m, false);
	if (m->memo && !readers_stay_warm() && poll(&p, 1, COOL_AFTER_MS) == 0) {
		readers_cool();
		(void)poll(&p, 1, -1);
	}
	return read_request(m, buffers);
}

/* As eager_read. */
static ssize_t read_next(struct mount *m, const struct reader_buffers *buffers)
{
	struct eagerness *e = &m->eager;
	uint64_t start = now_ns(), slept = start, now;
	bool in_slot = choose_buffer(m, start);
	struct look look = { 0 };
	ssize_t n;

	if (mount_uses(m, LEVER_AWAKE))
		look_for_row(e, start);
	if (mount_uses(m, LEVER_EAGER) && eager_may_look(e, &cpus, start)) {
		n = look_for_request(m, buffers, start, &look);
		if (n > 0) {
			__atomic_fetch_add(&e->found, 1, __ATOMIC_RELAXED);
			eager_found(e, &cpus, &look);
		}
		if (n >= 0 || errno != EAGAIN)
			return n;
		slept = now_ns();
	}
	n = wait_for_request(m, buffers, in_slot);

	now = now_ns();
	e->wanted = now - start < SOON_NS;
	if (n > 0 && look.laps > 0) /* else errno is somebody's */
		eager_slept(e, &cpus, &look, now - slept < EAGER_NS);
	return n;
}

ssize_t eager_read(struct mount *m, const struct reader_buffers *buffers)
{
	ssize_t n = read_next(m, buffers);

	m->eager.large = n >= LARGE_BYTES ? m->eager.large + 1 : 0;
	m->eager.last_bytes = (size_t)MAX(n, 0);
	return n;
}
