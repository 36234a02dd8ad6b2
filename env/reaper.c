/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The reaper: a fork of the keeper that stands above one command. As its subreaper it is the
 * parent of whatever the command's tree loses, so nothing gets out of the tree.
 *
 * It lives until the last process of the tree has ended, whether anybody still listens on its
 * socket or not (then the tree is a background process of the environment). When the keeper dies,
 * which nobody but an attacker or an administrator does to it, it kills its tree.
 */

#include "env/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "env/child.h"
#include "env/group.h"
#include "env/tree.h"
#include "store/base/fdpass.h"
#include "store/base/util.h"

struct reaper {
	struct tree tree;
	struct group *group; /* the keeper's to remove, as long as it lives */
	int sock;	     /* -1: nobody listens any more */
	int unread[2];	     /* outputs that nobody listens to any more; -1 */
	pid_t command;	     /* 0: never started */
	bool ended;
};

static void say(struct reaper *r, const struct reaper_event *event)
{
	/* A listener that is gone, or does not read the few events, does without. */
	if (r->sock >= 0)
		(void)send(r->sock, event, sizeof(*event), MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void reaped(void *arg, pid_t pid, int status)
{
	struct reaper *r = arg;
	struct reaper_event event = { .ended = true, .status = status };

	if (pid != r->command || r->ended)
		return;
	r->ended = true;
	group_events(r->group, &event.out_of_memory, &event.too_many_processes);
	say(r, &event);
}

/* ---- starting ---- */

void signals_reset(void)
{
	/* Zeroes are the kernel's struct of a default. Not by signal(): posix_spawn, which started
	 * the keeper, leaves glibc's two own signals ignored, and signal() does not touch them. */
	static const char default_action[64];
	sigset_t none;

	for (int s = 1; s < NSIG; s++)
		(void)syscall(SYS_rt_sigaction, s, default_action, NULL, (NSIG - 1) / 8);
	sigemptyset(&none);
	(void)sigprocmask(SIG_SETMASK, &none, NULL);
}

struct child {
	struct reaper *reaper;
	struct job *job;
	char **argv, **env;
	/* out: the vfork child writes into our memory */
	volatile int error;
	volatile enum reaper_step step;
};

static _Noreturn void child_failed(struct child *c, enum reaper_step step)
{
	c->error = errno;
	c->step = step;
	_exit(127);
}

/* In the vfork child, which borrows our memory; descriptors and signals are its own. */
static _Noreturn void child_main(struct child *c)
{
	struct job *job = c->job;
	const struct reaper_event event = { .starting = true, .pid = getpid() };

	/* 0 to 2 are /dev/null; what we were given has higher numbers. */
	for (int i = 0; i < 3; i++)
		if (job->fds[KEEPER_FD_IN + i] >= 0)
			(void)dup2(job->fds[KEEPER_FD_IN + i], i); /* both are open: cannot fail */
	(void)setsid(); /* we have just been forked: lead no group */
	if (job->request.terminal && ioctl(0, TIOCSCTTY, 0) < 0)
		child_failed(c, STEP_TERMINAL);
	if (fchdir(job->fds[KEEPER_FD_CWD]) < 0)
		child_failed(c, STEP_CWD);
	group_enter(job->group, &job->request.limits);

	signals_reset();
	say(c->reaper, &event);
	(void)close_range(3, ~0u, 0); /* before Linux 5.9: all of ours close on exec */
	environ = c->env;
	execvp(c->argv[0], c->argv);
	child_failed(c, STEP_EXEC);
}

static pid_t start(struct child *c)
{
	pid_t pid = vfork();

	if (pid == 0)
		child_main(c);
	return pid;
}

char **strings_split(const char *bytes, size_t len, size_t n, size_t *ret_used)
{
	char **v = n < len + 1 ? calloc(n + 1, sizeof(*v)) : NULL;
	size_t at = 0;

	for (size_t i = 0; v && i < n; i++) {
		const char *end = memchr(bytes + at, 0, len - at);

		if (!end) {
			free(v);
			return NULL;
		}
		v[i] = (char *)bytes + at;
		at = (size_t)(end - bytes) + 1;
	}
	if (v)
		*ret_used = at;
	return v;
}

/* Starts the command and tells; false: it could not be. */
static bool start_and_tell(struct reaper *r, struct job *job)
{
	const struct keeper_request *q = &job->request;
	struct reaper_event event = { 0 };
	_cleanup_free_ char **argv = NULL, **env = NULL;
	const char *bytes = job->bytes;
	void *mapped = MAP_FAILED;
	size_t used = 0;

	if (job->fds[KEEPER_FD_BYTES] >= 0) {
		mapped = mmap(NULL, q->len, PROT_READ, MAP_PRIVATE, job->fds[KEEPER_FD_BYTES], 0);
		bytes = mapped;
	}
	if (bytes != MAP_FAILED)
		argv = strings_split(bytes, q->len, q->argc, &used);
	if (argv)
		env = strings_split(bytes + used, q->len - used, q->envc, &used);
	if (!env || !argv[0]) {
		event.error = ENOMEM;
		event.step = STEP_FORK;
	} else {
		struct child c = { .reaper = r, .job = job, .argv = argv, .env = env };
		pid_t pid = start(&c);

		event.error = pid < 0 ? errno : c.error;
		event.step = pid < 0 ? STEP_FORK : c.step;
		if (!event.error)
			r->command = event.pid = pid;
	}
	say(r, &event);
	if (mapped != MAP_FAILED)
		(void)munmap(mapped, q->len);
	return !event.error;
}

/* ---- requests ---- */

static bool kill_tree(struct reaper *r)
{
	group_kill(r->group);
	return tree_kill(&r->tree);
}

/* Its writers find no broken pipe, which would kill them, nor a full one, which would stop them. */
static void discard(int *fd)
{
	char nowhere[16384];
	ssize_t n = read(*fd, nowhere, sizeof(nowhere));

	if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR)))
		return;
	closep(fd);
	*fd = -1;
}

/* One request; false: the socket is closed. */
static bool serve(struct reaper *r)
{
	_cleanup_close_ int reply = -1;
	struct reaper_request q;
	ssize_t n = fdpass_receive(r->sock, &q, sizeof(q), MSG_DONTWAIT, &reply, 1);
	int answer = 0;

	if (n < 0)
		return n == -EAGAIN;
	if (n == 0)
		return false;
	if (n != sizeof(q))
		return true;
	switch (q.op) {
	case REAPER_KILL:
		answer = kill_tree(r) ? 0 : EBUSY;
		break;
	case REAPER_DISCARD:
		for (int i = 0; i < 2 && reply >= 0; i++)
			if (r->unread[i] < 0)
				r->unread[i] = TAKE_FD(reply);
		return true;
	}
	if (reply >= 0 && write(reply, &answer, sizeof(answer)) < 0)
		return true; /* who asked does not wait any more */
	return true;
}

void reaper_main(struct job *job, pid_t keeper)
{
	struct reaper r = { .tree = { .reaped = reaped },
			    .group = job->group,
			    .sock = TAKE_FD(job->fds[KEEPER_FD_SOCKET]),
			    .unread = { -1, -1 } };
	_cleanup_close_ int signals = -1;
	sigset_t set;

	r.tree.arg = &r;
	(void)prctl(PR_SET_NAME, "plyfs-reaper");
	(void)prctl(PR_SET_CHILD_SUBREAPER, 1);
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigaddset(&set, SIGTERM);
	(void)sigprocmask(SIG_SETMASK, &set, NULL);
	(void)signal(SIGTERM, SIG_DFL);
	(void)prctl(PR_SET_PDEATHSIG, SIGTERM);
	signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (signals < 0 || getppid() != keeper || !start_and_tell(&r, job))
		_exit(1);
	for (int i = KEEPER_FD_CWD; i < KEEPER_FDS; i++)
		closep(&job->fds[i]);

	while (tree_reap(&r.tree)) {
		struct pollfd p[] = { { .fd = signals, .events = POLLIN },
				      { .fd = r.sock, .events = POLLIN },
				      { .fd = r.unread[0], .events = POLLIN },
				      { .fd = r.unread[1], .events = POLLIN } };
		struct signalfd_siginfo info;

		if (poll(p, 4, -1) < 0)
			continue;
		for (int i = 0; i < 2; i++)
			if (p[2 + i].revents)
				discard(&r.unread[i]);
		while (p[0].revents && read(signals, &info, sizeof(info)) == sizeof(info))
			if (info.ssi_signo == SIGTERM && getppid() != keeper) {
				(void)kill_tree(&r); /* what cannot be killed is left to init */
				group_free(TAKE_PTR(r.group)); /* the keeper would have done it */
			}
		if (p[1].revents && !serve(&r)) {
			closep(&r.sock);
			r.sock = -1;
		}
	}
	_exit(0);
}
