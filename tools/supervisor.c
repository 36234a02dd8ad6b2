/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The supervisor process; see supervisor.h.
 *
 * INVARIANTS
 *
 *  G1 A slot is TAKEN only while what it says is complete: the daemon writes that first.
 *  G2 The supervisor acts on the table only when the daemon is dead, so nobody writes then. The
 *     numbers of its own descriptors are the only thing it writes while the daemon lives.
 *  G3 What the daemon has sent reaches the supervisor although the daemon is dead: the socket is
 *     read to its end before anything else is done. So a view is kept from the moment on at which
 *     the daemon's message is under way.
 *  G4 A view that is not kept (it was just starting, the kernel is too old) dies with its daemon,
 *     and its mount is taken off, lazily. It is known by its number: whoever finds the dead view
 *     may have put another one in its place meanwhile.
 *  G5 The store's lock is held from before the first daemon until nobody will come any more, so no
 *     other daemon, and no repair, comes in between.
 *  G6 A daemon that said it was stopping, or that leaves no kept view, was the last.
 *
 *  G7 A successor is started when no thread of the daemon can do anything any more. Mostly they are
 *     all gone together with the one that is watched (its first thread would not do: Linux tells of
 *     that one's end only when it was the last). One that tells the kernel to forget a name, or
 *     pages, may wait, unkillable, for a lock that is held by somebody who waits for an answer, or
 *     for one itself: views say who tells (memo_is_teller), and nobody waits for those. And one
 *     that works on files in a view of its own (an export into a view) waits for an answer itself:
 *     it gets EIO from us. A view that is not kept is taken off meanwhile, by force, or such a
 *     thread would wait for ever.
 *
 * States:
 *
 *   RUNNING --(the daemon died)--> WAITING --(after a moment)--> RUNNING
 *      |                              |
 *      |             (too often, or no other could start)--> REFUSING --(no mount is left)--> gone
 *      '--(it was stopping, or nothing is kept)--> gone
 *
 * While it is REFUSING, every request is answered with EIO, the store is free for others, and the
 * mounts wait to be unmounted.
 */

#include "tools/supervisor_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "fs/memo.h"
#include "fs/mount.h"
#include "store/base/err.h"
#include "store/base/fdpass.h"
#include "store/base/pidstate.h"
#include "store/base/util.h"
#include "tools/daemon.h"
#include "tools/log.h"
#include "tools/memory.h"
#include "tools/mounts.h"

extern char **environ;

/*
 * So many deaths within so long are no accident: whatever kills it comes again. Tests that kill on
 * purpose set PLYFSD_DEATHS.
 */
#define DEATHS 5
#define DEATHS_MAX 64 /* more are no more often than this: a limit above it is never reached */
#define DEATHS_WITHIN_MS 10000
/*
 * The first half of them is followed at once, the others after so long, then twice as long each
 * time, so that what is wrong may pass.
 */
#define WAIT_MS 200

/* Of the supervisor. */
static struct {
	struct supervised what;
	int signal_fd;
	int pid_fd;    /* readable when the daemon's watched thread is gone; -1: not told of it */
	pid_t daemon;  /* 0: none lives */
	uint64_t kills; /* memory_kills() when it was started */
	bool told;     /* to end, as is the daemon, which may have been too young to hear */
	int64_t died_ms[DEATHS_MAX];
	unsigned n_died, deaths_max;
	bool foreign; /* the daemon becomes another user */
	char program[PATH_MAX];
	struct pollfd refuse[SLOTS + 1];
	uint8_t buf[MOUNT_REFUSE_BYTES]; /* untouched until it refuses */
} us = { .signal_fd = -1, .pid_fd = -1 };

static void let_go(struct supervisor *s, int i)
{
	if (!s->slot[i].fuse_fd)
		return;
	(void)close(s->slot[i].fuse_fd); /* nothing was written */
	(void)close(s->slot[i].memo_fd);
	s->slot[i].fuse_fd = s->slot[i].memo_fd = 0;
}

/* 0, or END: nothing is there now. */
static int take_message(struct supervisor *s)
{
	struct message m = {};
	int fds[2];
	ssize_t n = fdpass_receive(supervisor_sock, &m, sizeof(m), MSG_DONTWAIT, fds, 2);

	if (n <= 0)
		return END;
	if (n != sizeof(m) || m.slot < 0 || m.slot >= SLOTS)
		return 0; /* it is our own program: never */
	if (m.word == WATCH) {
		closep(&us.pid_fd);
		closep(&fds[1]);
		us.pid_fd = fds[0];
		return 0;
	}

	let_go(s, m.slot);
	if (m.word == KEEP && fds[0] > 0 && fds[1] > 0) {
		s->slot[m.slot].memo_fd = fds[1];
		s->slot[m.slot].fuse_fd = fds[0];
	}
	return 0;
}

static int64_t now_ms(void)
{
	return (int64_t)(now_ns() / 1000000);
}

/* 0 when none came. */
static int read_signal(void)
{
	struct signalfd_siginfo info;

	return read(us.signal_fd, &info, sizeof(info)) == sizeof(info) ? (int)info.ssi_signo : 0;
}

static bool is_the_end(int sig)
{
	return sig == SIGTERM || sig == SIGINT;
}

/* Takes off what nobody serves any more. */
static void take_off(struct supervisor *s, int i)
{
	if (s->slot[i].state == TAKEN && mounts_is_plyfs(s->slot[i].path) == 1)
		(void)mounts_detach(s->slot[i].path, s->slot[i].mount); /* nobody to tell */
	s->slot[i].state = FREE;
	let_go(s, i);
}

static void end(struct supervisor *s, int status)
{
	for (int i = 0; i < SLOTS; i++)
		take_off(s, i);
	_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

/* ---- the threads of a daemon that was killed (G7) ---- */

/* How long threads usually take to go, and to wait until they are looked at again. */
#define THREADS_PATIENCE 20
#define THREADS_STEP_NS 1000000

struct dirent_bytes { /* as getdents64 has it */
	uint64_t ino, off;
	uint16_t len;
	uint8_t type;
	char name[];
};

/* fn for each thread of the dead daemon that is still there; true from fn stops and is returned. */
static bool any_thread(struct supervisor *s, bool (*fn)(struct supervisor *s, uint32_t tid))
{
	char path[32], buf[4096] __attribute__((aligned(8)));
	_cleanup_close_ int fd = -1;
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)us.daemon);
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	while (fd >= 0 && (n = syscall(SYS_getdents64, fd, buf, sizeof(buf))) > 0)
		for (ssize_t at = 0; at < n;) {
			const struct dirent_bytes *d = (const void *)(buf + at);
			uint32_t tid = (uint32_t)strtoul(d->name, NULL, 10);

			at += d->len;
			if (tid && tid != (uint32_t)us.daemon && fn(s, tid))
				return true;
		}
	return false;
}

static bool tells_nothing(struct supervisor *s, uint32_t tid)
{
	for (int i = 0; i < SLOTS; i++)
		if (s->slot[i].fuse_fd && memo_is_teller(s->slot[i].memo_fd, (int32_t)tid))
			return false;
	return true;
}

static bool is_of_daemon(uint32_t tid)
{
	char path[48];

	snprintf(path, sizeof(path), "/proc/%d/task/%u", (int)us.daemon, tid);
	return access(path, F_OK) == 0;
}

/* What the daemon itself has asked one of its views for. */
static void refuse_daemon(struct supervisor *s)
{
	for (int i = 0; i < SLOTS; i++) {
		struct pollfd p = { .fd = s->slot[i].fuse_fd, .events = POLLIN };

		if (!p.fd)
			continue;
		(void)mount_resend(p.fd); /* unmounted: nobody waits */
		while (poll(&p, 1, 0) > 0 && mount_refuse(p.fd, us.buf, is_of_daemon) == 0)
			;
	}
}

/*
 * Who tells the kernel something about a view that nobody will go on with may wait there for an
 * answer, and with it the view, whose descriptor he has, and we: so that one ends first (G4).
 */
static void take_off_unkept(struct supervisor *s)
{
	while (take_message(s) == 0) /* G3 */
		;
	for (int i = 0; i < SLOTS; i++)
		if (!s->slot[i].fuse_fd)
			take_off(s, i);
}

/* The watched thread is gone, so all are dying. How the daemon ended. */
static int threads_end(struct supervisor *s)
{
	int status = 0;

	for (unsigned n = 0;; n++) {
		if (waitpid(us.daemon, &status, WNOHANG) == us.daemon)
			return status;
		/* Its first thread stays as a zombie as long as there are others. */
		if (n >= THREADS_PATIENCE && !pid_is_alive(us.daemon) &&
		    !any_thread(s, tells_nothing))
			return W_EXITCODE(0, SIGKILL); /* it is reaped some other time */
		if (n % THREADS_PATIENCE == THREADS_PATIENCE - 1) {
			refuse_daemon(s);
			take_off_unkept(s);
		}
		(void)nanosleep(&(struct timespec){ .tv_nsec = THREADS_STEP_NS }, NULL);
	}
}

/* Until the daemon is dead. */
static int supervise(struct supervisor *s)
{
	struct pollfd p[3] = { { .fd = supervisor_sock, .events = POLLIN },
			       { .fd = us.signal_fd, .events = POLLIN },
			       { .events = POLLIN } };
	int status = 0, sig;
	pid_t pid = 0;

	for (;;) {
		p[2].fd = us.pid_fd;
		if (poll(p, 3, -1) < 0 && errno != EINTR)
			return 0; /* never; and nobody could be told */
		if (p[0].revents & POLLIN)
			(void)take_message(s); /* one at a time: the daemon may send more */
		else if (p[0].revents)
			p[0].fd = -1; /* it has closed its side: it ends */
		if (p[1].revents & POLLIN) {
			sig = read_signal();
			if (is_the_end(sig)) {
				us.told = true;
				(void)kill(us.daemon, sig);
			}
			/* Earlier ones, too, whose last thread was late (G7). */
			while ((pid = waitpid(-1, &status, WNOHANG)) > 0 && pid != us.daemon)
				;
		}
		if (pid == us.daemon)
			break;
		if (p[2].revents) {
			status = threads_end(s);
			break;
		}
	}
	us.daemon = 0;
	closep(&us.pid_fd);
	us.pid_fd = -1;
	while (take_message(s) == 0) /* G3 */
		;
	closep(&supervisor_sock);
	supervisor_sock = -1;
	return status;
}

/* What is not kept is taken off (G4); how many are. */
static unsigned sort_out(struct supervisor *s)
{
	unsigned n = 0;

	for (int i = 0; i < SLOTS; i++) {
		if (s->slot[i].state != TAKEN || !s->slot[i].fuse_fd)
			take_off(s, i);
		else
			n++;
	}
	return n;
}

/* How many deaths, this one included, there were lately. */
static unsigned note_death(void)
{
	int64_t now = now_ms();
	unsigned n = 0;

	us.died_ms[us.n_died++ % DEATHS_MAX] = now;
	for (unsigned i = 0; i < MIN(us.n_died, DEATHS_MAX); i++)
		n += now - us.died_ms[i] < DEATHS_WITHIN_MS;
	return n;
}

/* Too many deaths: whoever waits gets an error instead of waiting for ever. */
static void refuse(struct supervisor *s, int status)
{
	closep(&us.what.lock_fd); /* G5: nobody will come any more */
	for (int i = 0; i < SLOTS; i++)
		if (s->slot[i].fuse_fd)
			(void)mount_resend(s->slot[i].fuse_fd); /* unmounted: poll tells */

	for (;;) {
		struct pollfd *p = us.refuse;
		nfds_t n = 1;

		p[0] = (struct pollfd){ .fd = us.signal_fd, .events = POLLIN };
		/* Only those there are: poll(2) takes no more than files may be open. */
		for (int i = 0; i < SLOTS; i++)
			if (s->slot[i].fuse_fd)
				p[n++] = (struct pollfd){ .fd = s->slot[i].fuse_fd,
							  .events = POLLIN };
		if (n == 1)
			end(s, status);
		if (poll(p, n, -1) < 0)
			continue;
		if (p->revents && is_the_end(read_signal()))
			end(s, status);
		for (int i = 0; i < SLOTS; i++) {
			if (!s->slot[i].fuse_fd || !(++p)->revents)
				continue;
			if (mount_refuse(p->fd, us.buf, NULL) != END)
				continue;
			s->slot[i].state = FREE; /* unmounted */
			let_go(s, i);
		}
	}
}

/* A moment before the next one; SIGTERM and SIGINT end us here. */
static void wait_ms(struct supervisor *s, int64_t ms, int status)
{
	struct pollfd p = { .fd = us.signal_fd, .events = POLLIN };
	int64_t until = now_ms() + ms;

	while (now_ms() < until) {
		if (poll(&p, 1, (int)MAX(until - now_ms(), 0)) > 0 && is_the_end(read_signal()))
			end(s, status);
	}
}

static void say_died(pid_t pid, int status, unsigned kept)
{
	bool memory = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL &&
		      memory_kills() > us.kills;

	(void)log_open(us.what.dir_fd, false); /* else it stays unsaid */
	if (WIFSIGNALED(status))
		daemon_log("plyfsd, pid %d, was killed by signal %d; another one goes on with its "
			   "%u view%s",
			   (int)pid, WTERMSIG(status), kept, plural(kept));
	else
		daemon_log("plyfsd, pid %d, ended by itself with %d; another one goes on with its "
			   "%u view%s",
			   (int)pid, WEXITSTATUS(status), kept, plural(kept));
	if (memory)
		daemon_log("meanwhile processes of its cgroup (container) were killed for want of "
			   "memory, of which it may use %" PRIu64 " MiB: give it more",
			   memory_limit() >> 20);
}

/* The new program goes on in this very process. Returns when that cannot be started. */
static void become_program(struct supervisor *s)
{
	char number[16], program[PATH_MAX], path[PATH_MAX];
	const char *store = daemon_store_path(us.what.dir_fd, us.what.store, path);
	char *argv[] = { (char *)"plyfsd",  (char *)"--store", (char *)store,
			 (char *)"--adopt", number,	       NULL };

	s->lock_fd = us.what.lock_fd;
	supervisor_keep_on_exec(s, true);
	snprintf(number, sizeof(number), "%d", supervisor_table_fd);
	/*
	 * The table is the daemon's to write, and the daemon may be another user's than we are:
	 * then only what lies where our own program lay is started.
	 */
	snprintf(program, sizeof(program), "%s", us.foreign ? us.program : s->program);
	(void)execve(program, argv, environ);
	(void)log_open(us.what.dir_fd, false);
	daemon_log("error: starting '%s': %s; going on with the old program", program,
		   strerror(errno));
	supervisor_keep_on_exec(s, false);
}

/* The daemon is dead. Returns when there shall be another one. */
static void after(struct supervisor *s, pid_t pid, int status)
{
	unsigned kept = sort_out(s), deaths;

	if (s->stopping || us.told || !kept)
		end(s, status);
	if (s->replace && WIFEXITED(status)) {
		s->replace = false;
		s->replacements++;
		become_program(s);
		return;
	}
	s->replace = false; /* killed before it could end for that */
	s->deaths++;
	if (WIFEXITED(status) && WEXITSTATUS(status) == SUPERVISED_HOPELESS) {
		(void)log_open(us.what.dir_fd, false); /* else it stays unsaid */
		daemon_log("error: no daemon can start again; the views answer EIO from now on: "
			   "unmount them, mend the store (plyfs check --repair), mount them again");
		refuse(s, status);
	}
	say_died(pid, status, kept);
	deaths = note_death();
	if (deaths >= us.deaths_max) {
		daemon_log("error: plyfsd died %u times within %d s; its views answer EIO from now "
			   "on: see above for why, then unmount and mount them again",
			   deaths, DEATHS_WITHIN_MS / 1000);
		refuse(s, status);
	}
	if (deaths > us.deaths_max / 2)
		wait_ms(s, (int64_t)WAIT_MS << MIN(deaths - us.deaths_max / 2 - 1, 5U), status);
}

static int start_daemon(const sigset_t *signals)
{
	int pair[2];
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return -errno;
	us.kills = memory_kills();
	pid = fork();
	if (pid < 0) {
		int r = -errno;

		(void)close(pair[0]);
		(void)close(pair[1]);
		return r;
	}
	(void)close(pair[pid == 0 ? 0 : 1]);
	supervisor_sock = pair[pid == 0 ? 1 : 0];
	us.daemon = pid;
	if (pid == 0) {
		closep(&us.signal_fd);
		us.signal_fd = -1;
		(void)prctl(PR_SET_NAME, "plyfsd");
		sigprocmask(SIG_SETMASK, signals, NULL);
		supervisor_be_watched();
	}
	return pid == 0 ? 0 : EXISTS;
}

int supervisor_fork(struct supervisor *s, const struct supervised *what)
{
	const char *limit = getenv("PLYFSD_DEATHS");
	sigset_t watched, old;
	struct stat st;
	bool first = !s->lock_fd; /* else it came with the table */
	int r, status;

	us.what = *what;
	us.foreign = fstat(what->dir_fd, &st) < 0 || st.st_uid != geteuid();
	(void)!readlink("/proc/self/exe", us.program, sizeof(us.program) - 1);
	s->lock_fd = what->lock_fd;
	us.deaths_max = limit ? (unsigned)strtoul(limit, NULL, 10) : DEATHS;
	sigemptyset(&watched);
	sigaddset(&watched, SIGTERM);
	sigaddset(&watched, SIGINT);
	sigaddset(&watched, SIGCHLD);
	sigprocmask(SIG_BLOCK, &watched, &old);
	for (int i = 0;; i++) {
		us.signal_fd = signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);
		if (us.signal_fd >= 0)
			break;
		if (first || i == SUPERVISOR_TRIES)
			return -errno;
		supervisor_wait();
	}

	for (;;) {
		pid_t pid;

		r = start_daemon(&old);
		if (r < 0 && first)
			return r;
		if (r == 0)
			return first ? 0 : EXISTS;
		/* Of the daemon's start, and not ours to keep. */
		closep(&us.what.ready_fd);
		us.what.ready_fd = -1;
		(void)prctl(PR_SET_NAME, "plyfsd-super");
		(void)signal(SIGHUP, SIG_IGN);
		first = false;
		pid = us.daemon;
		/* No process to be had: as if it had failed. */
		status = r < 0 ? W_EXITCODE(1, 0) : supervise(s);
		after(s, pid, status);
	}
}
