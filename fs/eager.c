/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Reading the next request: asleep, or by looking for it while that pays.
 *
 * A client that asks one thing after the other has its next question after a few us, and to sleep
 * meanwhile costs both sides: two switches where the scheduler has them on one CPU, two wake-ups
 * where they are on two, some 50 us each if an idle CPU was given back. So where requests follow
 * each other closely the reader looks for the next one for a moment before it sleeps.
 *
 * But on a CPU that others want, looking costs them the time, and the reader the time slice that
 * sleeping would have earned. Whether that is so is told by how long the *laps* of a look take, a
 * read(2) that finds nothing each. The first ends by letting others run, so a client that waits for
 * this very CPU goes on at once.
 *
 *   found, all laps short     we have the CPU to ourselves: trust
 *   a long lap                another thread ran: doubt
 *   nothing, and a request    it was the client who waited for this CPU: doubt
 *     as soon as we sleep
 *   a lap of SLICE_NS         a thread that computes took the CPU (or, in a virtual machine, the
 *                             host did): back off, by how long that was
 *   CROWD more that were there at once than had to be looked for: several clients, who want the
 *                             CPUs and keep us busy without looks: back off
 *
 * DOUBTS_MAX doubts in a row: to another CPU, if one is idle. As many again, or none is: back off,
 * twice as long each time until trust is back. Looks begin, at first and after each back-off, only
 * where a CPU is idle. fs/README.md, "Levers", has what it gains and costs.
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
#define SWITCH_NS 3000 /* ten laps; less than two switches and any work between */
#define SLICE_NS 300000 /* no interrupt takes as long; time slices do */
#define DOUBTS_MAX 4 /* single ones are chance: a client that thinks for 25 us, a timer */
#define CROWD 32 /* one client: 6 in 100 are there at once; two: 77 */
#define BACK_OFF_MIN_NS 8000000 /* 100 times what so many looks cost at most */
#define BACK_OFF_LAPS 16 /* times the lap that was too long: a 16th of the time is lost at most */
#define BACK_OFF_MAX_NS 256000000 /* longer, and short bursts would have nothing of it */

/*
 * CPUs are kept awake (awake.h) for requests in a row, none more than CLOSE_NS after the one
 * before: two wake-ups and some work. ROW of them take a ms, so a lonely request, or one now and
 * then, changes nothing; and work of ms between requests would not notice the wake-ups.
 */
#define CLOSE_NS 250000
#define ROW 4

static void look_for_row(struct eagerness *e, uint64_t now)
{
	bool close = now - e->last_ns < CLOSE_NS;

	e->last_ns = now;
	e->row = close ? e->row + 1 : 0;
	if (e->row >= ROW)
		awake_request(now);
}

static void back_off(struct eagerness *e)
{
	uint64_t ns = MIN(MAX(e->back_off_ns, BACK_OFF_MIN_NS), BACK_OFF_MAX_NS);

	e->looks = false;
	e->not_before_ns = now_ns() + ns;
	e->back_off_ns = 2 * ns;
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

static bool may_look(struct eagerness *e, uint64_t now)
{
	if (!e->wanted || now < e->not_before_ns)
		return false;
	if (!e->looks) {
		e->looks = a_cpu_is_idle();
		if (!e->looks)
			e->not_before_ns = now + BACK_OFF_MIN_NS;
	}
	return e->looks;
}

struct look {
	unsigned laps;
	uint64_t longest_ns; /* of them */
	bool found;
};

/* at_once: a request came as soon as we slept. */
static void judge(struct eagerness *e, const struct look *look, bool at_once)
{
	if (look->longest_ns > SLICE_NS) {
		e->back_off_ns = MAX(e->back_off_ns, BACK_OFF_LAPS * look->longest_ns);
		back_off(e);
	} else if (look->longest_ns > SWITCH_NS || at_once) {
		if (++e->doubts < DOUBTS_MAX)
			return;
		e->doubts = 0;
		e->moved = !e->moved && a_cpu_is_idle() && move_over();
		if (!e->moved)
			back_off(e);
	} else if (look->found) {
		e->doubts = 0;
		e->moved = false;
		e->back_off_ns = 0;
	}
}

static void count_heads(struct eagerness *e, bool at_once)
{
	if (!at_once) {
		e->crowd -= e->crowd > 0;
	} else if (++e->crowd == CROWD) {
		e->crowd = 0;
		back_off(e);
	}
}

/*
 * A reader that is killed while the kernel copies a request to it, and that has no page for it yet,
 * gets no page any more: the request fails with EIO, though the mount goes on. So whoever is
 * followed by another process has all pages before it reads. A few may keep them while they wait in
 * read(). When there are more mounts, the others wait in poll(), which costs one or two us.
 */
#define COOL_AFTER_MS 20 /* those who follow each other take no lock */

static_assert(HEADER_BYTES == sizeof(struct fuse_in_header) + sizeof(struct fuse_write_in),
	      "what comes before the data of a WRITE");

/* For looks, a call for each; one that polls before it reads would be two for what it finds. */
static void read_does_not_wait(struct mount *m, bool on)
{
	if (m->eager.no_wait != on && fcntl(m->fd, F_SETFL, on ? O_NONBLOCK : 0) == 0)
		m->eager.no_wait = on;
}

static ssize_t read_request(struct mount *m, const struct reader_buffers *buffers)
{
	if (m->memo)
		readers_warm();
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
	look->found = n >= 0;
	return n;
}

static ssize_t wait_for_request(struct mount *m, const struct reader_buffers *buffers)
{
	struct pollfd p = { .fd = m->fd, .events = POLLIN };

	read_does_not_wait(m, false);
	if (m->memo && !readers_stay_warm() && poll(&p, 1, COOL_AFTER_MS) == 0) {
		readers_cool();
		(void)poll(&p, 1, -1);
	}
	return read_request(m, buffers);
}

ssize_t eager_read(struct mount *m, const struct reader_buffers *buffers)
{
	struct eagerness *e = &m->eager;
	uint64_t start = now_ns(), slept = start;
	struct look look = { 0 };
	ssize_t n;

	if (mount_uses(m, LEVER_AWAKE))
		look_for_row(e, start);
	if (mount_uses(m, LEVER_EAGER) && may_look(e, start)) {
		n = look_for_request(m, buffers, start, &look);
		if (n >= 0 || errno != EAGAIN) {
			if (n > 0)
				__atomic_fetch_add(&e->found, 1, __ATOMIC_RELAXED);
			if (n > 0 && look.laps > 0)
				judge(e, &look, false);
			count_heads(e, look.laps == 0);
			return n;
		}
		slept = now_ns();
	}
	n = wait_for_request(m, buffers);

	e->wanted = now_ns() - start < SOON_NS;
	if (n > 0 && look.laps > 0) /* else errno is somebody's */
		judge(e, &look, now_ns() - slept < EAGER_NS);
	return n;
}
