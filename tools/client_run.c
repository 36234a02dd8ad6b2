/* SPDX-License-Identifier: Apache-2.0 */

/*
 * plyfs run: a command in a view. With no option but --in it is an exec; else we stay as its
 * parent, and pass on what ended it: its exit code, 128 + its signal, 124 on timeout, 127 and 126
 * when it could not be started.
 *
 * The command gets a process group of its own, and the terminal if we had it. We are the subreaper
 * of whatever it starts: a timeout ends all of it, wherever it went. With --fork so does the
 * command's end, since orphans would keep the fork's view busy; and with limits, which are kept by
 * a control group that goes when we do.
 */

#include "tools/client.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "env/group.h"
#include "env/place.h"
#include "env/tree.h"
#include "store/base/util.h"

#define EXIT_TIMEOUT 124 /* as timeout(1) */
#define EXIT_NOT_RUNNABLE 126
#define EXIT_NOT_FOUND 127

/* After a polite SIGTERM a command has this long until SIGKILL. */
#define GRACE_SECONDS 2

struct how_to_run {
	double timeout; /* 0: none */
	bool in_fork;
	struct proc_limits limits;
};

static bool is_limited(const struct proc_limits *l)
{
	return l->memory || l->processes || l->cpu_time;
}

static int start_failed(struct client *cl, int error)
{
	client_talk(cl, "'%s': %s", cl->args.v[0], strerror(error));
	return error == ENOENT ? EXIT_NOT_FOUND : EXIT_NOT_RUNNABLE;
}

/* Waits for any child until `end` (0: for ever). Its pid, 0 at `end`, -1 without children. */
static pid_t wait_child(const sigset_t *chld, double end, int *ret_status)
{
	for (;;) {
		pid_t pid = waitpid(-1, ret_status, WNOHANG);
		double left = end - now_seconds();
		struct timespec t;

		if (pid != 0)
			return pid;
		if (end == 0) {
			(void)sigwaitinfo(chld, NULL); /* any reason to look again will do */
			continue;
		}
		if (left <= 0)
			return 0;
		t.tv_sec = (time_t)left;
		t.tv_nsec = (long)((left - (double)t.tv_sec) * 1e9);
		(void)sigtimedwait(chld, NULL, &t);
	}
}

static pid_t passed_on_to; /* the command's process group, for pass_on() */

static void pass_on(int sig)
{
	if (passed_on_to > 0)
		(void)kill(-passed_on_to, sig); /* it may be gone */
}

static int exit_code(int status)
{
	return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void run_child(struct client *cl, const char *dir, const struct group *group,
		      const struct proc_limits *limits, const sigset_t *mask, int failure)
{
	int error;

	group_enter(group, limits);
	if (chdir(dir) < 0) {
		error = errno;
	} else {
		(void)setenv("PWD", dir, 1); /* shells trust it; a failure costs nothing else */
		(void)sigprocmask(SIG_SETMASK, mask, NULL);
		execvp(cl->args.v[0], cl->args.v);
		error = errno;
	}
	if (write(failure, &error, sizeof(error)) != sizeof(error))
		_exit(EXIT_NOT_RUNNABLE);
	_exit(error == ENOENT ? EXIT_NOT_FOUND : EXIT_NOT_RUNNABLE);
}

static void ask_to_end(void *arg, pid_t pid)
{
	(void)kill(pid, SIGTERM); /* it may be gone */
	(void)kill(pid, SIGCONT); /* a stopped one must wake to die */
}

static void no_matter(void *arg, pid_t pid, int status)
{
}

/* Ends all that is left below us: first asked, then killed. */
static void end_orphans(const sigset_t *chld, pid_t group)
{
	const struct tree tree = { .reaped = no_matter };
	double end = now_seconds() + GRACE_SECONDS;

	(void)kill(-group, SIGTERM);
	tree_each(&tree, ask_to_end, NULL);
	while (now_seconds() < end && tree_reap(&tree)) {
		const struct timespec tick = { .tv_nsec = 50000000 };

		(void)sigtimedwait(chld, NULL, &tick);
	}
	(void)tree_kill(&tree); /* what is in a wait of the kernel's: the unmount goes lazy */
}

/* Runs the command in dir; its exit code. */
static int supervise(struct client *cl, const char *dir, const struct how_to_run *how)
{
	double end = how->timeout > 0 ? now_seconds() + how->timeout : 0;
	_cleanup_(group_freep) struct group *group = NULL;
	bool timed_out = false, terminal, no_memory, too_many;
	_cleanup_close_ int in = -1, out = -1;
	sigset_t chld, old;
	int p[2], error, code = FAILED, status;
	pid_t pid, got;

	if (pipe2(p, O_CLOEXEC) < 0)
		return client_fail(cl, "a pipe: %s", strerror(errno));
	in = p[0];
	out = p[1];
	group = group_make(&how->limits);
	if (!group_holds(group, &how->limits))
		client_talk(cl, "no control group can be made here: --memory holds for each "
				"process, --processes for all of the user, and not for root");
	(void)prctl(PR_SET_CHILD_SUBREAPER, 1); /* else orphans only outlive us */
	sigemptyset(&chld);
	sigaddset(&chld, SIGCHLD);
	sigprocmask(SIG_BLOCK, &chld, &old);
	terminal = isatty(0) && tcgetpgrp(0) == getpgrp();

	pid = fork();
	if (pid < 0)
		return client_fail(cl, "fork: %s", strerror(errno));
	if (pid == 0) {
		setpgid(0, 0);
		if (terminal) {
			(void)signal(SIGTTOU, SIG_IGN); /* we are in the background for a moment */
			(void)tcsetpgrp(0, getpid());
			(void)signal(SIGTTOU, SIG_DFL);
		}
		run_child(cl, dir, group, &how->limits, &old, out);
	}
	setpgid(pid, pid); /* both sides do it, so that it is done whoever is first */
	passed_on_to = pid;
	for (int i = 0, sigs[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT }; i < 4; i++)
		(void)signal(sigs[i], pass_on);
	closep(&out);
	out = -1;
	if (read(in, &error, sizeof(error)) == sizeof(error)) {
		while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
			;
		code = start_failed(cl, error);
		goto out;
	}

	for (;;) {
		got = wait_child(&chld, end, &status);
		if (got == pid) {
			code = timed_out ? EXIT_TIMEOUT : exit_code(status);
			break;
		}
		if (got < 0)
			break;
		if (got > 0)
			continue; /* an orphan that fell to us */
		(void)kill(-pid, timed_out ? SIGKILL : SIGTERM);
		(void)kill(-pid, SIGCONT); /* a stopped one must wake to die */
		end = timed_out ? 0 : now_seconds() + GRACE_SECONDS;
		timed_out = true;
	}
	if (timed_out || how->in_fork || is_limited(&how->limits))
		end_orphans(&chld, pid);
	group_events(group, &no_memory, &too_many);
	if (no_memory)
		client_talk(cl, "it met the limit of memory: a process was killed");
	if (too_many)
		client_talk(cl, "it met the limit of processes: some could not be started");
out:
	passed_on_to = 0;
	if (terminal) {
		(void)signal(SIGTTOU, SIG_IGN);
		(void)tcsetpgrp(0, getpgrp());
	}
	sigprocmask(SIG_SETMASK, &old, NULL);
	return code;
}

/* The part of dir's path below the root of its view ("" or "/a/b"), lent from path. */
static const char *below_root(char *path)
{
	struct stat st, up;
	size_t n = strlen(path);

	if (stat(path, &st) < 0)
		return "";
	while (n > 1) {
		size_t k = n;
		char kept;
		int r;

		while (k > 1 && path[k - 1] != '/')
			k--;
		k = k > 1 ? k - 1 : 1;
		kept = path[k];
		path[k] = 0;
		r = stat(path, &up);
		path[k] = kept;
		if (r < 0 || up.st_dev != st.st_dev)
			break; /* path[0..n) is where the view begins */
		n = k;
	}
	return path + n;
}

/* stdout is the command's: what verbs on the way print there is dropped. */
static void quiet(int *saved)
{
	int null = open("/dev/null", O_WRONLY | O_CLOEXEC);

	*saved = fcntl(1, F_DUPFD_CLOEXEC, 3);
	if (*saved >= 0 && null >= 0)
		(void)dup2(null, 1);
	closep(&null);
}

static void loud(int *saved)
{
	if (*saved >= 0)
		(void)dup2(*saved, 1);
	closep(saved);
	*saved = -1;
}

static int run_in_fork(struct client *cl, char *dir, const struct how_to_run *how,
		       const char *name, bool drop)
{
	const char *tmp = place_named("XDG_RUNTIME_DIR") ?: place_named("TMPDIR") ?: "/tmp";
	char made[PLYFS_NAME_SIZE], mountpoint[PATH_MAX], inside[2 * PATH_MAX];
	char *fork_argv[] = { (char *)"fork",  (char *)"--at",	mountpoint, (char *)"--from",
			      cl->info.branch, (char *)"--for", (char *)"run", (char *)"--",
			      made,	       NULL };
	char *drop_argv[] = { (char *)"drop", (char *)"--", made, NULL };
	struct fuse_mount m = { .mountpoint = mountpoint };
	_cleanup_close_ int saved = -1;
	_cleanup_free_ char *real = NULL;
	char snapshot[PLYFS_ID_SIZE + 1];
	int r, code;

	/* The view says which store, whatever the environment says. */
	r = client_use_store(cl, cl->info.store);
	if (r)
		return r;
	snprintf(snapshot, sizeof(snapshot), "%.*s", PLYFS_ID_SIZE, cl->info.head);
	if (!*cl->info.branch)
		fork_argv[4] = snapshot;
	if (name)
		snprintf(made, sizeof(made), "%s", name);
	else
		snprintf(made, sizeof(made), "run-%lld-%d", (long long)time(NULL), (int)getpid());
	snprintf(mountpoint, sizeof(mountpoint), "%s/plyfs-run-XXXXXX", tmp);
	if (!mkdtemp(mountpoint))
		return client_fail(cl, "making '%s': %s", mountpoint, strerror(errno));
	real = realpath(mountpoint, NULL);
	if (real && strlen(real) < sizeof(mountpoint))
		strcpy(mountpoint, real);

	(void)syncfs(cl->view_fd);
	quiet(&saved);
	r = mount_and_send(cl, &m, ARRAY_SIZE(fork_argv) - 1, fork_argv);
	loud(&saved);
	if (r) {
		(void)rmdir(mountpoint); /* empty: nothing was mounted */
		return r;
	}

	snprintf(inside, sizeof(inside), "%s%s", mountpoint, below_root(dir));
	code = supervise(cl, inside, how);

	/* Only the fork's own view is ended; the info tells the daemon which one to wait for. */
	snprintf(cl->info.branch, sizeof(cl->info.branch), "%s", made);
	(void)unmount_view(cl, mountpoint, false, true); /* says why not */
	(void)rmdir(mountpoint);			 /* stays while it is mounted */
	if (drop) {
		quiet(&saved);
		r = client_send(cl, true, ARRAY_SIZE(drop_argv) - 1, drop_argv);
		loud(&saved);
		if (r)
			client_talk(cl, "branch %s stays", made);
	} else {
		client_talk(cl, "the command's state is branch %s", made);
	}
	return code;
}

int client_run(struct client *cl)
{
	const char *in = ".", *name = NULL;
	struct how_to_run how = {};
	bool drop = false;
	const struct option_def defs[] = {
		{ .name = "fork", .flag = &how.in_fork },
		{ .name = "drop", .flag = &drop },
		{ .name = "in", .text = &in },
		{ .name = "name", .text = &name },
		{ .name = "timeout", .seconds = &how.timeout },
		{ .name = "memory", .size = &how.limits.memory },
		{ .name = "processes", .number = &how.limits.processes },
		{ .name = "cpu-time", .number = &how.limits.cpu_time },
	};
	_cleanup_free_ char *dir = NULL;
	int r;

	r = client_parse(cl, defs, ARRAY_SIZE(defs), OPTIONS_LEADING, 1, -1);
	if (r)
		return r;
	if ((drop || name) && !how.in_fork)
		return client_misuse(cl, "--%s goes with --fork", drop ? "drop" : "name");
	if (name && strlen(name) >= PLYFS_NAME_SIZE)
		return client_misuse(cl, "a branch name has at most %d bytes", PLYFS_NAME_SIZE - 1);

	r = client_look(cl, in);
	if (r == -EPERM && how.in_fork)
		return client_ioctl_failed(cl, EPERM, "a fork");
	if (r < 0 && r != -EPERM)
		return client_look_failed(cl, r, in);
	if (!cl->in_view && r != -EPERM) /* that is a view as well, of somebody else's store */
		return client_fail(
			cl,
			"'%s' is not in a plyfs view; cd into one, or: plyfs run --in DIR COMMAND",
			in);
	dir = realpath(in, NULL);
	if (!dir)
		return client_fail(cl, "'%s': %s", in, strerror(errno));

	if (how.in_fork)
		return run_in_fork(cl, dir, &how, name, drop);
	closep(&cl->view_fd);
	cl->view_fd = -1;
	if (how.timeout > 0 || is_limited(&how.limits))
		return supervise(cl, dir, &how);

	if (chdir(dir) < 0)
		return start_failed(cl, errno);
	execvp(cl->args.v[0], cl->args.v);
	return start_failed(cl, errno);
}
