/* SPDX-License-Identifier: Apache-2.0 */

/* The guard and its front; see guard.h. */

#include "tools/guard.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "env/tree.h"
#include "store/base/util.h"

/* What ends or stops us is the command's. SIGTTOU: we hand the terminal on from behind. */
static const int passed_on[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT };

/* A command that nobody can stop is continued after this: else it might stop without end. */
#define NOT_STOPPED_NS 100000000

static void tell(int sock, int sig)
{
	const char byte = (char)sig;

	(void)send(sock, &byte, 1, MSG_NOSIGNAL); /* who is gone needs no telling */
}

/* ---- the terminal ---- */

void guard_give_terminal(const struct guard *g, pid_t group)
{
	if (tcgetpgrp(0) == g->front)
		(void)tcsetpgrp(0, group);
}

bool guard_take_terminal(const struct guard *g, pid_t group)
{
	pid_t has = tcgetpgrp(0); /* -1: stdin is no terminal of ours */

	if (has <= 0 || (has != group && (kill(-has, 0) == 0 || errno != ESRCH)))
		return false;
	return tcsetpgrp(0, g->front) == 0;
}

/* ---- the guard ---- */

/* The next byte; 0: none is there; ALONE. */
static int hear(struct guard *g, int flags)
{
	char byte;
	ssize_t n = recv(g->sock, &byte, 1, flags);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	return n <= 0 ? ALONE : byte;
}

int guard_wait(struct guard *g, double end)
{
	struct pollfd p[] = { { .fd = g->sock, .events = POLLIN },
			      { .fd = g->children, .events = POLLIN } };
	struct signalfd_siginfo info;

	for (;;) {
		double left = end ? MAX(end - now_seconds(), 0.0) : 0;
		struct timespec t = { .tv_sec = (time_t)left };
		int n;

		t.tv_nsec = (long)((left - (double)t.tv_sec) * 1e9);
		n = ppoll(p, ARRAY_SIZE(p), end ? &t : NULL, NULL);
		if (n == 0)
			return TIME_IS_UP;
		if (n < 0)
			continue;
		if (p[1].revents && read(g->children, &info, sizeof(info)) > 0)
			return CHILDREN;
		if (p[0].revents)
			return hear(g, MSG_DONTWAIT);
	}
}

int guard_asked_to_end(struct guard *g)
{
	int sig;

	do
		sig = hear(g, MSG_DONTWAIT);
	while (sig == SIGTSTP || sig == SIGCONT);
	return sig;
}

void guard_stop_front(struct guard *g)
{
	tell(g->sock, SIGTSTP);
}

static _Noreturn void guard_main(struct client *cl, struct guard *g,
				 int (*work)(void *arg, struct guard *g), void *arg)
{
	sigset_t all, chld;

	(void)setpgid(0, 0);
	(void)prctl(PR_SET_NAME, "plyfs-guard");
	(void)prctl(PR_SET_CHILD_SUBREAPER, 1); /* else orphans only outlive us */
	sigfillset(&all);
	(void)sigprocmask(SIG_SETMASK, &all, NULL);
	sigemptyset(&chld);
	sigaddset(&chld, SIGCHLD);
	g->children = signalfd(-1, &chld, SFD_CLOEXEC | SFD_NONBLOCK);
	if (g->children < 0)
		_exit(client_fail(cl, "a signal descriptor: %s", strerror(errno)));
	_exit(work(arg, g));
}

/* ---- the front ---- */

/*
 * As the terminal does with a group that is its own: all of us, a script that called us too. Who is
 * in an orphaned group is not stopped (nobody could continue it), so the command goes on at once.
 */
static void stop_with_the_job(int sock)
{
	sigset_t tstp, pending;

	sigemptyset(&tstp);
	sigaddset(&tstp, SIGTSTP);
	(void)sigprocmask(SIG_UNBLOCK, &tstp, NULL);
	(void)kill(0, SIGTSTP); /* here we stand until SIGCONT, which is then pending */
	(void)sigprocmask(SIG_BLOCK, &tstp, NULL);
	sigpending(&pending);
	if (sigismember(&pending, SIGCONT))
		return;
	(void)nanosleep(&(struct timespec){ .tv_nsec = NOT_STOPPED_NS }, NULL);
	tell(sock, SIGCONT);
}

/* Until the guard has ended; its status. */
static int stand(int sock, int signals, pid_t guard)
{
	struct pollfd p[] = { { .fd = signals, .events = POLLIN },
			      { .fd = sock, .events = POLLIN } };
	struct signalfd_siginfo info;
	int status;
	char byte;

	for (;;) {
		if (poll(p, ARRAY_SIZE(p), -1) < 0)
			continue;
		if (p[0].revents && read(signals, &info, sizeof(info)) == sizeof(info)) {
			if (info.ssi_signo != SIGCHLD)
				tell(sock, (int)info.ssi_signo);
			else if (waitpid(guard, &status, WNOHANG) == guard)
				return status;
		}
		if (p[1].revents && recv(sock, &byte, 1, MSG_DONTWAIT) == 1)
			stop_with_the_job(sock);
		else if (p[1].revents)
			p[1].fd = -1; /* it ends */
	}
}

static void no_matter(void *arg, pid_t pid, int status)
{
}

/* The guard was killed; what it had fell to us. */
static int end_its_tree(struct client *cl, const struct guard *g)
{
	const struct tree tree = { .reaped = no_matter };

	(void)tree_kill(&tree); /* what cannot be killed is told by what it holds */
	(void)guard_take_terminal(g, 0);
	return client_fail(cl, "the process that guards the command was killed; so is the command");
}

int guard_run(struct client *cl, int (*work)(void *arg, struct guard *g),
	      void (*after)(const void *arg), void *arg)
{
	struct guard g = { .front = getpgrp(), .children = -1 };
	_cleanup_close_ int ours = -1, theirs = -1, signals = -1;
	sigset_t set;
	int pair[2], status;
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
		return client_fail(cl, "a socket pair: %s", strerror(errno));
	ours = pair[0];
	theirs = g.sock = pair[1];
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	for (size_t i = 0; i < ARRAY_SIZE(passed_on); i++)
		sigaddset(&set, passed_on[i]);
	signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (signals < 0)
		return client_fail(cl, "a signal descriptor: %s", strerror(errno));
	sigaddset(&set, SIGTTOU);
	(void)sigprocmask(SIG_BLOCK, &set, &g.mask);
	(void)signal(SIGCHLD, SIG_DFL); /* where it was ignored there is nothing to wait for */
	(void)prctl(PR_SET_CHILD_SUBREAPER, 1); /* of a guard that is killed */

	pid = fork();
	if (pid < 0)
		return client_fail(cl, "fork: %s", strerror(errno));
	if (pid == 0) {
		closep(&ours);
		closep(&signals);
		guard_main(cl, &g, work, arg);
	}
	closep(&theirs);
	theirs = -1;
	status = stand(ours, signals, pid);
	if (WIFEXITED(status))
		return WEXITSTATUS(status);
	status = end_its_tree(cl, &g);
	if (after)
		after(arg);
	return status;
}
