/* SPDX-License-Identifier: Apache-2.0 */

/*
 * plyfs run: a command in a view. With no option but --in it is an exec; else we stay above it, as
 * a front and its guard (guard.h), and pass on what ended it: its exit code, 128 + its signal, 124
 * on timeout, 127 and 126 when it could not be started.
 *
 * The command gets a process group of its own, and the terminal if we had it. The guard is the
 * subreaper of whatever it starts: a timeout ends all of it, wherever it went, and so does our
 * death. With --fork so does the command's end, since orphans would keep the fork's view busy; and
 * with limits, which are kept by a control group that goes when the guard does.
 */

#include "tools/client.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "env/group.h"
#include "env/place.h"
#include "env/tree.h"
#include "store/base/util.h"
#include "store/base/words.h"
#include "tools/guard.h"
#include "tools/mounts.h"

#define EXIT_TIMEOUT 124 /* as timeout(1) */
#define EXIT_NOT_RUNNABLE 126
#define EXIT_NOT_FOUND 127

/* After a polite SIGTERM a command has this long until SIGKILL. */
#define GRACE_SECONDS 2

struct run {
	struct client *cl;
	char *dir;	/* where it starts; absolute */
	double timeout; /* 0: none */
	bool in_fork, drop;
	const char *name; /* of the fork; or NULL */
	char made[PLYFS_NAME_SIZE], mountpoint[PATH_MAX]; /* of a fork; the guard makes both */
	struct proc_limits limits;
};

static bool is_limited(const struct proc_limits *l)
{
	return l->memory || l->processes || l->cpu_time;
}

static int start_failed(struct client *cl, int error)
{
	const char *command = cl->args.v[0];
	_cleanup_free_ char *word = NULL;

	/* As a shell takes it, and ssh(1) and plyfs test do. */
	if (error == ENOENT && cl->args.n == 1 && strpbrk(command, " \t\n|;&<>"))
		word = shell_word(command);
	client_talk(cl, "'%s': %s%s%s", command, strerror(error),
		    word ? "; a line for the shell: plyfs run -- sh -c " : "", word ? word : "");
	return error == ENOENT ? EXIT_NOT_FOUND : EXIT_NOT_RUNNABLE;
}

static int exit_code(int status)
{
	return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static _Noreturn void run_child(const struct run *run, const char *dir, const struct group *group,
				const struct guard *g, int failure)
{
	char **argv = run->cl->args.v;
	int error;

	(void)setpgid(0, 0);
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* who kills the front and the guard means us */
	guard_give_terminal(g, getpid());
	group_enter(group, &run->limits);
	if (chdir(dir) < 0) {
		error = errno;
	} else {
		(void)setenv("PWD", dir, 1); /* shells trust it; a failure costs nothing else */
		(void)sigprocmask(SIG_SETMASK, &g->mask, NULL);
		execvp(argv[0], argv);
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
static void end_orphans(pid_t group)
{
	const struct tree tree = { .reaped = no_matter };
	double end = now_seconds() + GRACE_SECONDS;
	sigset_t chld;

	sigemptyset(&chld);
	sigaddset(&chld, SIGCHLD);
	(void)kill(-group, SIGTERM);
	tree_each(&tree, ask_to_end, NULL);
	while (now_seconds() < end && tree_reap(&tree)) {
		const struct timespec tick = { .tv_nsec = 50000000 };

		(void)sigtimedwait(&chld, NULL, &tick);
	}
	(void)tree_kill(&tree); /* what is in a wait of the kernel's: the unmount goes lazy */
}

/* The command has stopped: by the terminal, or it had that and nobody else could have it. */
static void stopped(struct guard *g, pid_t pid, int sig)
{
	if (guard_take_terminal(g, pid) || sig != SIGSTOP)
		guard_stop_front(g);
}

/* Whether it has ended (or is nowhere): then *ret_status is set. */
static bool has_ended(struct guard *g, pid_t pid, int *ret_status)
{
	pid_t got;

	while ((got = waitpid(-1, ret_status, WNOHANG | WUNTRACED)) > 0) {
		if (got != pid)
			continue; /* an orphan that fell to us */
		if (!WIFSTOPPED(*ret_status))
			return true;
		stopped(g, pid, WSTOPSIG(*ret_status));
	}
	*ret_status = W_EXITCODE(FAILED, 0);
	return got < 0 && errno == ECHILD;
}

static void signal_command(struct guard *g, pid_t pid, int sig)
{
	if (sig == SIGCONT)
		guard_give_terminal(g, pid);
	(void)kill(-pid, sig); /* it may be gone */
}

/* Until the command has ended, or we are ALONE. *ret_kill: what it started is to end as well. */
static int attend(struct guard *g, pid_t pid, double timeout, bool *ret_kill)
{
	double end = timeout > 0 ? now_seconds() + timeout : 0;
	bool overdue = false;
	int status, what;

	while (!has_ended(g, pid, &status)) {
		what = guard_wait(g, end);
		if (what > 0)
			signal_command(g, pid, what);
		if (what >= 0)
			continue;
		*ret_kill = true;
		if (what == ALONE)
			return FAILED;
		signal_command(g, pid, overdue ? SIGKILL : SIGTERM);
		signal_command(g, pid, SIGCONT); /* a stopped one must wake to die */
		end = overdue ? 0 : now_seconds() + GRACE_SECONDS;
		overdue = true;
	}
	return overdue ? EXIT_TIMEOUT : exit_code(status);
}

/* What it could not be started for, an errno; 0. */
static int start(const struct run *run, const char *dir, const struct group *group,
		 const struct guard *g, pid_t *ret_pid)
{
	_cleanup_close_ int in = -1, out = -1;
	int p[2], error = 0;
	pid_t pid;

	if (pipe2(p, O_CLOEXEC) < 0)
		return errno;
	in = p[0];
	out = p[1];
	pid = fork();
	if (pid < 0)
		return errno;
	if (pid == 0)
		run_child(run, dir, group, g, out);
	(void)setpgid(pid, pid); /* both sides do it, so that it is done whoever is first */
	*ret_pid = pid;
	closep(&out);
	out = -1;
	return read(in, &error, sizeof(error)) == sizeof(error) ? error : 0;
}

/* Runs the command in dir; its exit code. */
static int supervise(const struct run *run, const char *dir, struct guard *g)
{
	_cleanup_(group_freep) struct group *group = group_make(&run->limits);
	bool ends = run->in_fork || is_limited(&run->limits), no_memory, too_many;
	struct client *cl = run->cl;
	int error, code;
	pid_t pid = 0;

	if (!group_holds(group, &run->limits))
		client_talk(cl, "no control group can be made here: --memory holds for each "
				"process, --processes for all of the user, and not for root");
	code = guard_asked_to_end(g);
	if (code)
		return code == ALONE ? FAILED : 128 + code;
	error = start(run, dir, group, g, &pid);
	if (error) {
		code = start_failed(cl, error);
	} else {
		bool killed = false;

		code = attend(g, pid, run->timeout, &killed);
		if (killed || ends)
			end_orphans(pid);
	}
	group_events(group, &no_memory, &too_many);
	if (no_memory)
		client_talk(cl, "it met the limit of memory: a process was killed");
	if (too_many)
		client_talk(cl, "it met the limit of processes: some could not be started");
	(void)guard_take_terminal(g, pid);
	return code;
}

static int run_here(void *arg, struct guard *g)
{
	const struct run *run = arg;

	return supervise(run, run->dir, g);
}

struct shown {
	const char *at; /* a mount point */
	char *root;	/* owned: what of the view is seen there */
};

static int note_root(void *arg, const struct mount_entry *e)
{
	struct shown *s = arg;

	if (strcmp(e->path, s->at) != 0)
		return 0;
	free(s->root); /* a later line lies on top */
	s->root = strdup(e->root);
	return s->root ? 0 : -ENOMEM;
}

/* Where in its view a directory is: "", or "/a/b"; given. A mount may show a part of it alone. */
static char *place_in_view(const char *dir)
{
	_cleanup_free_ char *path = strdup(dir);
	struct shown shown = { .at = path };
	size_t n = strlen(dir);
	struct stat st, up;
	char *place = NULL;
	int r;

	if (!path || stat(dir, &st) < 0)
		return NULL;
	while (n > 1) { /* path[0..n) is in the view */
		size_t k = n;

		while (k > 1 && dir[k - 1] != '/')
			k--;
		k = k > 1 ? k - 1 : 1;
		path[k] = 0;
		if (stat(path, &up) < 0)
			return NULL;
		if (up.st_dev != st.st_dev) {
			path[k] = dir[k];
			break;
		}
		n = k;
	}
	path[n] = 0;
	r = mounts_each(note_root, &shown);
	if (r < 0 || asprintf(&place, "%s%s", shown.root && shown.root[1] ? shown.root : "",
			      n > 1 ? dir + n : dir) < 0)
		place = NULL;
	free(shown.root);
	if (!place)
		errno = r < 0 ? -r : ENOMEM;
	return place;
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

/* What the fork shall be called and where it shall be: names that nobody has. */
static int name_fork(struct run *run)
{
	const char *tmp = place_runtime_dir() ?: place_named("TMPDIR") ?: "/tmp";
	_cleanup_free_ char *real = realpath(tmp, NULL);
	uint64_t number;

	if (getrandom(&number, sizeof(number), 0) != sizeof(number))
		return client_fail(run->cl, "a random number: %s", strerror(errno));
	if (snprintf(run->mountpoint, sizeof(run->mountpoint), "%s/plyfs-run-%016" PRIx64,
		     real ?: tmp, number) >= (int)sizeof(run->mountpoint))
		return client_fail(run->cl, "'%s': %s", tmp, strerror(ENAMETOOLONG));
	if (run->name)
		snprintf(run->made, sizeof(run->made), "%s", run->name);
	else
		/* Half of it will do for a second; a pid may be another namespace's, too. */
		snprintf(run->made, sizeof(run->made), "run-%lld-%08" PRIx32, (long long)time(NULL),
			 (uint32_t)number);
	return DONE;
}

/* Only the fork's own view is ended; the info tells the daemon which one to wait for. */
static void end_view(const struct run *run)
{
	struct client *cl = run->cl;

	snprintf(cl->info.branch, sizeof(cl->info.branch), "%s", run->made);
	(void)unmount_view(cl, run->mountpoint, /* says why not */
			   UNMOUNT_BUSY_LAZY | (run->drop ? UNMOUNT_NO_SYNC : 0));
	(void)rmdir(run->mountpoint);			      /* stays while it is mounted */
}

static void end_fork(const struct run *run)
{
	char *argv[] = { (char *)"drop", (char *)"--branch", (char *)"--", (char *)run->made,
			 NULL };
	struct client *cl = run->cl;
	int saved, r;

	end_view(run);
	if (!run->drop) {
		client_talk(cl, "the command's state is branch %s", run->made);
		return;
	}
	quiet(&saved);
	r = client_send(cl, true, ARRAY_SIZE(argv) - 1, argv);
	loud(&saved);
	if (r)
		client_talk(cl, "branch %s stays", run->made);
}

/* The mount comes first; only a daemon that has made the branch answers there, by its name. */
static bool fork_was_made(const struct run *run)
{
	struct client at = { .verb = run->cl->verb, .store_fd = -1, .view_fd = -1 };
	int r = client_look_with_patience(&at, run->mountpoint);

	closep(&at.view_fd);
	return r == 0 && strcmp(at.info.branch, run->made) == 0;
}

/* In the front, when the guard was killed. */
static void end_killed_fork(const void *arg)
{
	const struct run *run = arg;

	if (mounts_is_plyfs(run->mountpoint) != 1) {
		(void)rmdir(run->mountpoint); /* it had not come to the mount yet */
	} else if (fork_was_made(run)) {
		end_fork(run);
	} else {
		end_view(run); /* an older branch may have the name: that one stays */
	}
}

/* All of it in the guard, so that what is mounted goes whoever is killed or interrupted when. */
static int run_in_fork(void *arg, struct guard *g)
{
	struct run *run = arg;
	struct client *cl = run->cl;
	_cleanup_free_ char *place = NULL;
	char inside[2 * PATH_MAX], snapshot[PLYFS_ID_SIZE + 1];
	char *fork_argv[] = { (char *)"fork",  (char *)"--at",	run->mountpoint, (char *)"--from",
			      cl->info.branch, (char *)"--",	run->made,	 NULL };
	struct fuse_mount m = { .mountpoint = run->mountpoint };
	int saved, r, code;

	snprintf(snapshot, sizeof(snapshot), "%.*s", PLYFS_ID_SIZE, cl->info.head);
	if (!*cl->info.branch)
		fork_argv[4] = snapshot;
	place = place_in_view(run->dir);
	if (!place) /* the command would run elsewhere */
		return client_fail(cl, "'%s': %s", run->dir, strerror(errno));
	if (mkdir(run->mountpoint, 0700) < 0)
		return client_fail(cl, "making '%s': %s", run->mountpoint, strerror(errno));

	(void)syncfs(cl->view_fd);
	quiet(&saved);
	r = mount_and_send(cl, &m, ARRAY_SIZE(fork_argv) - 1, fork_argv);
	loud(&saved);
	if (r) {
		(void)rmdir(run->mountpoint); /* empty: nothing was mounted */
		return r;
	}

	snprintf(inside, sizeof(inside), "%s%s", run->mountpoint, place);
	code = supervise(run, inside, g);
	end_fork(run);
	return code;
}

int client_run(struct client *cl)
{
	struct run run = { .cl = cl };
	const char *in = ".";
	double cpu_time = 0;
	const struct option_def defs[] = {
		{ .name = "fork", .flag = &run.in_fork },
		{ .name = "drop", .flag = &run.drop },
		{ .name = "in", .text = &in },
		{ .name = "name", .text = &run.name },
		{ .name = "timeout", .seconds = &run.timeout },
		{ .name = "memory", .size = &run.limits.memory },
		{ .name = "processes", .number = &run.limits.processes },
		{ .name = "cpu-time", .seconds = &cpu_time },
	};
	_cleanup_free_ char *dir = NULL;
	int r;

	r = client_parse(cl, defs, ARRAY_SIZE(defs), OPTIONS_LEADING, 1, -1);
	if (r)
		return r;
	run.limits.cpu_time = whole_seconds(cpu_time);
	if ((run.drop || run.name) && !run.in_fork)
		return client_misuse(cl, "--%s goes with --fork", run.drop ? "drop" : "name");
	if (run.name && strlen(run.name) >= PLYFS_NAME_SIZE)
		return client_misuse(cl, "a branch name has at most %d bytes", PLYFS_NAME_SIZE - 1);

	r = client_look(cl, in);
	if (r == -EPERM && run.in_fork)
		return client_ioctl_failed(cl, EPERM, "a fork");
	if (r < 0 && r != -EPERM)
		return client_look_failed(cl, r, in);
	if (!cl->in_view && r != -EPERM) /* that is a view as well, of somebody else's store */
		return client_fail(
			cl,
			"'%s' is not in a plyfs view; cd into one, or: plyfs run --in DIR COMMAND",
			in);
	dir = realpath(in, NULL);
	if (!dir && errno == ENOENT) /* or it could not have been opened */
		return client_fail(cl, "'%s' was removed; cd into a directory that is there", in);
	if (!dir)
		return client_fail(cl, "'%s': %s", in, strerror(errno));

	run.dir = dir;
	if (run.in_fork) {
		/* The view says which store, whatever the environment says. */
		r = client_use_store(cl, cl->info.store);
		if (r == DONE)
			r = name_fork(&run);
		return r ? r : guard_run(cl, run_in_fork, end_killed_fork, &run);
	}
	closep(&cl->view_fd);
	cl->view_fd = -1;
	if (run.timeout > 0 || is_limited(&run.limits))
		return guard_run(cl, run_here, NULL, &run);

	if (chdir(dir) < 0)
		return start_failed(cl, errno);
	execvp(cl->args.v[0], cl->args.v);
	return start_failed(cl, errno);
}
