/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The keeper: starts a reaper for each command, and is the subreaper of them all. Invariants:
 *
 * 1. Every process of the environment is below the keeper: below a reaper, or, where somebody
 *    killed the reaper, our own child. Such strays are killed at once.
 * 2. The keeper does not end before all of them have. It ends when it is told to, when its socket
 *    is closed, or when the process that it works for has ended (a fork of that process may hold
 *    the socket open). It does so only once: what is run on death comes last, when nothing is left
 *    that could keep a view busy.
 * 3. It holds no descriptor of a command longer than it takes to fork: output that nobody can
 *    write any more must end. Its current directory is the root.
 */

#include "env/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>

#include "env/group.h"
#include "env/tree.h"
#include "store/base/fdpass.h"
#include "store/base/util.h"

/* What runs on death may wait for a daemon's disk; after this it is killed, and the next runs. */
#define ON_DEATH_SECONDS 60

/* A process that has begun to die needs less; one that only closed the socket goes on. */
#define CALLER_DYING_MS 2000

struct kept { /* a reaper */
	struct kept *next;
	pid_t pid;	     /* 0: it has ended, to be swept */
	struct group *group; /* owned */
};

struct keeper_state {
	struct tree everything, strays;
	struct kept *reapers;
	bool reaper_was_killed;
	int sock, caller, signals;
	int hold;	/* a pipe: on_death waits for its end; -1 */
	char *on_death; /* owned: strings, argvs ended by an empty one */
	size_t on_death_len;
	char message[sizeof(struct keeper_request) + KEEPER_INLINE_MAX];
};

static void reaped(void *arg, pid_t pid, int status)
{
	struct keeper_state *k = arg;

	for (struct kept *kept = k->reapers; kept; kept = kept->next) {
		if (kept->pid != pid)
			continue;
		kept->pid = 0;
		k->reaper_was_killed = k->reaper_was_killed || WIFSIGNALED(status);
	}
}

/* A reaper that was stopped, by its own command say, would hold up whoever asks it. */
static void wake_reapers(void)
{
	siginfo_t stopped = { .si_pid = 0 };

	while (waitid(P_ALL, 0, &stopped, WSTOPPED | WNOHANG) == 0 && stopped.si_pid) {
		(void)kill(stopped.si_pid, SIGCONT); /* our child: the number is its own */
		stopped.si_pid = 0;
	}
}

/* After tree_reap: forgets reapers that have ended. Groups go when they are empty, so last. */
static void sweep(struct keeper_state *k)
{
	if (k->reaper_was_killed) {
		k->reaper_was_killed = false;
		(void)tree_kill(&k->strays); /* what is left is tried again at the end */
	}
	for (struct kept **p = &k->reapers; *p;) {
		struct kept *kept = *p;

		if (kept->pid) {
			p = &kept->next;
			continue;
		}
		*p = kept->next;
		group_free(kept->group);
		free(kept);
	}
}

static bool is_reaper(void *arg, pid_t pid)
{
	const struct keeper_state *k = arg;

	for (const struct kept *kept = k->reapers; kept; kept = kept->next)
		if (kept->pid == pid)
			return true;
	return false;
}

static void spawn(struct keeper_state *k, struct job *job)
{
	struct kept *kept = calloc(1, sizeof(*kept));
	pid_t self = getpid();
	int error = ENOMEM;

	if (kept) {
		kept->group = job->group = group_make(&job->request.limits);
		kept->pid = fork();
		error = errno;
	}
	if (kept && kept->pid == 0) {
		closep(&k->sock);
		closep(&k->caller);
		closep(&k->signals);
		reaper_main(job, self);
	}
	if (!kept || kept->pid < 0) {
		const struct reaper_event event = { .error = error, .step = STEP_FORK };

		(void)send(job->fds[KEEPER_FD_SOCKET], &event, sizeof(event),
			   MSG_NOSIGNAL | MSG_DONTWAIT); /* who asked may be gone */
		if (kept)
			group_free(kept->group);
		free(kept);
		return;
	}
	kept->next = k->reapers;
	k->reapers = kept;
}

static void keep_on_death(struct keeper_state *k, const struct job *job)
{
	size_t len = job->request.len;
	char *copy = malloc(len + 1);

	if (!copy)
		return; /* what was set before stays */
	if (job->fds[KEEPER_FD_BYTES] < 0) {
		memcpy(copy, job->bytes, len);
	} else if (pread(job->fds[KEEPER_FD_BYTES], copy, len, 0) != (ssize_t)len) {
		free(copy);
		return;
	}
	copy[len] = 0;
	free(k->on_death);
	k->on_death = copy;
	k->on_death_len = len;
}

static void hold_on_death(struct keeper_state *k, int fd)
{
	closep(&k->hold);
	k->hold = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
}

/* Errno: some are left. */
static int kill_everything(struct keeper_state *k)
{
	bool all;

	for (struct kept *r = k->reapers; r; r = r->next)
		group_kill(r->group);
	all = tree_kill(&k->everything);
	k->reaper_was_killed = false; /* by us, and there are no strays */
	sweep(k);
	return all ? 0 : EBUSY;
}

static void answer_kill(struct keeper_state *k)
{
	int error = kill_everything(k);

	(void)send(k->sock, &error, sizeof(error), MSG_NOSIGNAL); /* a caller that is gone is met */
}

enum served { SERVED, ASKED_TO_END, CALLER_GONE };

/* One message. */
static enum served serve(struct keeper_state *k)
{
	struct job job = { .bytes = k->message + sizeof(job.request) };
	int fds[KEEPER_FDS];
	ssize_t n = fdpass_receive(k->sock, k->message, sizeof(k->message), MSG_DONTWAIT, fds,
				   KEEPER_FDS);
	unsigned used = 0;

	if (n == -EAGAIN)
		return SERVED;
	if (n <= 0)
		return CALLER_GONE;
	if ((size_t)n >= sizeof(job.request))
		memcpy(&job.request, k->message, sizeof(job.request));
	for (int i = 0; i < KEEPER_FDS; i++)
		job.fds[i] = job.request.fd_mask & 1u << i ? fds[used++] : -1;

	/* Both sides are one build; a check all the same, since what we do is kill and unmount. */
	if ((size_t)n >= sizeof(job.request) &&
	    (job.fds[KEEPER_FD_BYTES] >= 0 || job.request.len == (size_t)n - sizeof(job.request))) {
		if (job.request.op == KEEPER_SPAWN && job.fds[KEEPER_FD_SOCKET] >= 0 &&
		    job.fds[KEEPER_FD_CWD] >= 0)
			spawn(k, &job);
		else if (job.request.op == KEEPER_ON_DEATH)
			keep_on_death(k, &job);
		else if (job.request.op == KEEPER_HOLD)
			hold_on_death(k, job.fds[KEEPER_FD_IN]);
		else if (job.request.op == KEEPER_KILL)
			answer_kill(k);
	}
	for (unsigned i = 0; i < KEEPER_FDS && fds[i] >= 0; i++)
		(void)close(fds[i]); /* a reaper has its own */
	return job.request.op == KEEPER_END ? ASKED_TO_END : SERVED;
}

/* Nothing is written to it: what is seen is its end. */
static void wait_for_hold(const struct keeper_state *k)
{
	struct pollfd p = { .fd = k->hold, .events = POLLIN };

	if (k->hold >= 0)
		(void)poll(&p, 1, ON_DEATH_SECONDS * 1000);
}

/* A dying caller's socket is closed before its other descriptors may be, some of them in a view. */
static void wait_for_caller(const struct keeper_state *k)
{
	struct pollfd p = { .fd = k->caller, .events = POLLIN };

	if (k->caller >= 0)
		(void)poll(&p, 1, CALLER_DYING_MS);
}

static void run_on_death(const struct keeper_state *k)
{
	size_t at = 0;

	while (at < k->on_death_len) {
		_cleanup_free_ char **argv = NULL;
		const struct timespec second = { .tv_sec = 1 };
		size_t n = 0, used;
		sigset_t chld;
		pid_t pid;

		for (size_t p = at; p < k->on_death_len && k->on_death[p];
		     p += strlen(k->on_death + p) + 1)
			n++;
		argv = strings_split(k->on_death + at, k->on_death_len - at, n, &used);
		if (!argv)
			return;
		at += used + 1; /* the empty string */
		if (!n)
			continue;

		pid = fork();
		if (pid == 0) {
			signals_reset();
			(void)setsid();
			execvp(argv[0], argv);
			_exit(127);
		}
		sigemptyset(&chld);
		sigaddset(&chld, SIGCHLD);
		for (int i = 0; pid > 0 && waitpid(pid, NULL, WNOHANG) == 0; i++) {
			if (i == ON_DEATH_SECONDS)
				(void)kill(pid, SIGKILL);
			if (i > ON_DEATH_SECONDS + 5)
				break; /* stuck in the kernel */
			(void)sigtimedwait(&chld, NULL, &second);
		}
	}
}

static enum served serve_until_the_end(struct keeper_state *k)
{
	for (;;) {
		struct pollfd p[] = { { .fd = k->sock, .events = POLLIN },
				      { .fd = k->caller, .events = POLLIN },
				      { .fd = k->signals, .events = POLLIN } };
		struct signalfd_siginfo info;
		enum served s;

		if (poll(p, 3, -1) < 0)
			continue;
		/* What it said before it went still counts. */
		if (p[1].revents && !p[0].revents)
			return CALLER_GONE;
		if (p[2].revents) {
			while (read(k->signals, &info, sizeof(info)) == sizeof(info))
				;
			(void)tree_reap(&k->everything); /* false: nothing runs at the moment */
			sweep(k);
			wake_reapers();
		}
		s = p[0].revents ? serve(k) : SERVED;
		if (s != SERVED)
			return s;
	}
}

int keeper_main(int sock, int caller_pidfd)
{
	static struct keeper_state k; /* its message is too large for a stack to be forked */
	struct keeper_hello hello = { .version = KEEPER_VERSION, .pid = getpid() };
	enum served why;
	sigset_t set;

	k = (struct keeper_state){ .everything = { .reaped = reaped, .arg = &k },
				   .strays = { .spare = is_reaper, .reaped = reaped, .arg = &k },
				   .hold = -1,
				   .sock = sock,
				   .caller = caller_pidfd,
				   .signals = -1 };
	(void)setsid(); /* a Ctrl-C is for our caller, who then tells us */
	(void)prctl(PR_SET_NAME, "plyfs-keeper");
	for (int i = 0, ignored[] = { SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE }; i < 5; i++)
		(void)signal(ignored[i], SIG_IGN); /* we go when our caller goes */
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	(void)sigprocmask(SIG_SETMASK, &set, NULL);
	if (chdir("/") < 0 || prctl(PR_SET_CHILD_SUBREAPER, 1) < 0)
		hello.error = errno;
	if (!hello.error)
		hello.error = -tree_look();
	if (!hello.error) {
		k.signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
		hello.error = k.signals < 0 ? errno : 0;
	}
	if (send(sock, &hello, sizeof(hello), MSG_NOSIGNAL) != sizeof(hello) || hello.error)
		return 1;

	why = serve_until_the_end(&k);
	(void)kill_everything(&k); /* what is left cannot be killed, by us or at all */
	if (why == CALLER_GONE) {
		/* What they start in the background (a daemon) is not ours. */
		(void)prctl(PR_SET_CHILD_SUBREAPER, 0);
		wait_for_caller(&k);
		wait_for_hold(&k);
		run_on_death(&k);
	}
	free(k.on_death);
	return 0;
}
