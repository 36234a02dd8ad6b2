/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Runs the plyfs program; see program.h.
 *
 * The caller may wait for any child at all, or have a handler of SIGCHLD, or ignore it, so that
 * exit codes are lost. So the program is the child of a process in between, made with clone() so
 * that its end sends no signal and only a wait with __WCLONE sees it. That one shares our memory,
 * and our thread stands still until it has ended (as with vfork). The output goes to two memfds,
 * which are read when all is over.
 *
 * INVARIANTS of the two that share our memory
 *
 *  P1 They make system calls and nothing else: no allocator, no lock, no stdio. When the caller is
 *     killed they may still run, and whoever held a lock never gives it back.
 *  P2 Descriptors and signal actions are their own; the process in between closes all but the
 *     three, `held` and the memfds at once, so nothing of the caller's stays open through it.
 *  P3 The process in between dies with the caller, or our memory would stay as long as the program
 *     runs. Only when it has something to hold does it wait for the program's end.
 */

#include "env/program.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "env/child.h"
#include "env/status.h"
#include "store/base/util.h"

/* ---- where it is ---- */

/* Beside what holds this function. */
static bool find_beside(char path[static PATH_MAX])
{
	static const char *const places[] = { "plyfs", "../tools/plyfs",
					      PLYFS_BIN_FROM_LIB "/plyfs",
					      PLYFS_BIN_FROM_BIN "/plyfs" };
	const char *slash;
	Dl_info info;

	if (!dladdr(places, &info) || !info.dli_fname || !(slash = strrchr(info.dli_fname, '/')))
		return false;
	for (size_t i = 0; i < ARRAY_SIZE(places); i++) {
		int n = snprintf(path, PATH_MAX, "%.*s/%s", (int)(slash - info.dli_fname),
				 info.dli_fname, places[i]);

		if (n < PATH_MAX && access(path, X_OK) == 0)
			return true;
	}
	return false;
}

static bool find_in_path(char path[static PATH_MAX])
{
	for (const char *p = getenv("PATH"); p && *p; p += *p == ':') {
		size_t n = strcspn(p, ":");

		if (n && (size_t)snprintf(path, PATH_MAX, "%.*s/plyfs", (int)n, p) < PATH_MAX &&
		    access(path, X_OK) == 0)
			return true;
		p += n;
	}
	return false;
}

/* As the caller may be in another directory when it is run. */
static int make_absolute(char path[static PATH_MAX])
{
	char *real;

	if (*path == '/')
		return 0;
	real = realpath(path, NULL);
	if (!real || strlen(real) >= PATH_MAX) {
		free(real);
		return fail(PLY_NOT_FOUND, "'%s', the plyfs program, cannot be run", path);
	}
	strcpy(path, real);
	free(real);
	return 0;
}

int program_find(char path[static PATH_MAX])
{
	const char *named = secure_getenv("PLYFS_PROGRAM");

	if (named && *named) {
		if (strlen(named) >= PATH_MAX || access(named, X_OK) < 0)
			return fail(PLY_NOT_FOUND,
				    "PLYFS_PROGRAM names '%s', which is no program that can be run",
				    named);
		strcpy(path, named);
		return make_absolute(path);
	}
	if (find_beside(path))
		return make_absolute(path);
	strcpy(path, PLYFS_BINDIR "/plyfs");
	if (access(path, X_OK) == 0 || find_in_path(path))
		return make_absolute(path);
	return fail(PLY_NOT_FOUND,
		    "the plyfs program was not found; install it, or name it in PLYFS_PROGRAM");
}

/* ---- running it ---- */

struct run {
	const char *path, *cwd;
	char **argv, **env;
	int held;    /* borrowed; -1 */
	int null;    /* the program's input */
	int outs[2]; /* memfds: its output, what it says */
	pid_t caller;
	struct sigaction usual; /* all zeroes: a default */
	sigset_t none;
	char *child_stack;
	int child_error; /* errno at chdir or exec */
	int error;	 /* errno of the process in between */
	bool ended;	 /* it has seen the program's end: status counts */
	int status;	 /* as of waitpid */
};

#define STACK_BYTES 65536 /* a few calls deep */

static void run_release(struct run *run)
{
	closep(&run->null);
	closep(&run->outs[0]);
	closep(&run->outs[1]);
}

/* P1. */
static int child(void *arg)
{
	struct run *run = arg;

	for (int s = 1; s < NSIG; s++)
		(void)sigaction(s, &run->usual, NULL); /* not allowed for some */
	(void)sigprocmask(SIG_SETMASK, &run->none, NULL);
	if ((!run->cwd || chdir(run->cwd) == 0) && dup2(run->null, 0) >= 0 &&
	    dup2(run->outs[0], 1) >= 0 && dup2(run->outs[1], 2) >= 0) {
		/* A daemon that it starts is to hold nothing of the caller's. */
		(void)syscall(SYS_close_range, 3, ~0u, CLOSE_RANGE_CLOEXEC);
		execve(run->path, run->argv, run->env);
	}
	run->child_error = errno;
	return 127;
}

/* P2. */
static void close_others(const struct run *run)
{
	int kept[] = { run->held, run->null, run->outs[0], run->outs[1] };
	unsigned from = 3;

	for (;;) {
		unsigned next = ~0u;

		for (size_t i = 0; i < ARRAY_SIZE(kept); i++)
			if (kept[i] >= 0 && (unsigned)kept[i] >= from && (unsigned)kept[i] < next)
				next = (unsigned)kept[i];
		if (next > from)
			(void)syscall(SYS_close_range, from, next == ~0u ? next : next - 1, 0);
		if (next == ~0u)
			return;
		from = next + 1;
	}
}

/* P1. */
static int between(void *arg)
{
	struct run *run = arg;
	pid_t pid;

	/* Where the caller died before this was said, it is not our parent any more. */
	if (run->held < 0 &&
	    (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != run->caller)) {
		run->error = ESRCH;
		return 1;
	}
	close_others(run);
	(void)sigaction(SIGCHLD, &run->usual, NULL); /* ignored, exit codes would be lost */
	pid = clone(child, run->child_stack + STACK_BYTES, CLONE_VM | CLONE_VFORK | SIGCHLD, run);
	if (pid < 0) {
		run->error = errno;
		return 1;
	}
	while (waitpid(pid, &run->status, 0) < 0)
		if (errno != EINTR)
			return 1;
	run->ended = true;
	return 0;
}

/* errno, or 0. */
static int start(struct run *run)
{
	char *stacks = mmap(NULL, 2 * STACK_BYTES, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
	sigset_t all, old;
	pid_t pid;
	int error;

	if (stacks == MAP_FAILED)
		return errno;
	run->child_stack = stacks + STACK_BYTES;
	/* No handler of the caller's may run on those stacks. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	pid = clone(between, stacks + STACK_BYTES, CLONE_VM | CLONE_VFORK, run);
	error = pid < 0 ? errno : run->error;
	while (pid > 0 && waitpid(pid, NULL, __WCLONE) < 0 && errno == EINTR)
		;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	(void)munmap(stacks, 2 * STACK_BYTES);
	return error;
}

/* Numbers above 2, which the program gets others as. errno, or 0. */
static int open_ends(struct run *run)
{
	int *ends[] = { &run->null, &run->outs[0], &run->outs[1] };

	run->null = open("/dev/null", O_RDONLY | O_CLOEXEC);
	run->outs[0] = memfd_create("plyfs-out", MFD_CLOEXEC);
	run->outs[1] = memfd_create("plyfs-err", MFD_CLOEXEC);
	for (size_t i = 0; i < ARRAY_SIZE(ends); i++) {
		int moved;

		if (*ends[i] < 0)
			return errno;
		if (*ends[i] > 2)
			continue;
		moved = fcntl(*ends[i], F_DUPFD_CLOEXEC, 3);
		if (moved < 0)
			return errno;
		(void)close(*ends[i]);
		*ends[i] = moved;
	}
	return 0;
}

/* All that a memfd holds; nothing is no text at all. */
static int read_end(int fd, struct ply_text *ret)
{
	off_t size = lseek(fd, 0, SEEK_END);
	void *bytes;
	int r;

	if (size <= 0)
		return 0;
	bytes = mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (bytes == MAP_FAILED)
		return fail_memory();
	r = text_set(ret, bytes, (size_t)size);
	(void)munmap(bytes, (size_t)size);
	return r;
}

/* The caller's environment without PLYFS_STORE; the strings stay where they are. */
static char **make_env(void)
{
	static const char store[] = "PLYFS_STORE=";
	size_t n = 0, kept = 0;
	char **env;

	while (environ && environ[n])
		n++;
	env = calloc(n + 1, sizeof(*env));
	for (size_t i = 0; env && i < n; i++)
		if (strncmp(environ[i], store, sizeof(store) - 1) != 0)
			env[kept++] = environ[i];
	return env;
}

static char **make_argv(const char *const *args)
{
	size_t n = 0;
	char **argv;

	while (args[n])
		n++;
	argv = calloc(n + 2, sizeof(*argv));
	if (!argv)
		return NULL;
	argv[0] = (char *)"plyfs";
	memcpy(argv + 1, args, n * sizeof(*argv));
	return argv;
}

/* Its last line, without "plyfs VERB: ". */
static void tidy(struct ply_text *said, const char *verb)
{
	char *line = said->data, *end = line ? line + said->len : NULL;
	char prefix[64];
	size_t n;

	if (!line)
		return;
	while (end > line && end[-1] == '\n')
		*--end = '\0';
	for (char *p = end; p > line; p--)
		if (p[-1] == '\n') {
			line = p;
			break;
		}
	n = (size_t)snprintf(prefix, sizeof(prefix), "plyfs %s: ", verb);
	if (n < sizeof(prefix) && strncmp(line, prefix, n) == 0)
		line += n;
	said->len = (size_t)(end - line);
	memmove(said->data, line, said->len + 1);
}

/* The verb: the first word that is no option, nor --store's value. */
static const char *verb_of(const char *const *args)
{
	for (; *args; args++) {
		if (strcmp(*args, "--store") == 0 && args[1])
			args++;
		else if (**args != '-')
			return *args;
	}
	return "";
}

int program_run(const char *cwd, const char *const *args, int held, struct ply_text *ret_out,
		struct ply_text *ret_err, int *ret_code)
{
	_cleanup_free_ char **argv = make_argv(args), **env = make_env();
	struct ply_text out = { 0 }, err = { 0 };
	char path[PATH_MAX];
	_cleanup_(run_release) struct run run = { .path = path,
						  .cwd = cwd,
						  .argv = argv,
						  .env = env,
						  .held = held,
						  .null = -1,
						  .outs = { -1, -1 },
						  .caller = getpid() };
	int error, r;

	if (!argv || !env)
		return fail_memory();
	r = program_find(path);
	if (r < 0)
		return r;
	sigemptyset(&run.none);
	error = open_ends(&run);
	if (!error)
		error = start(&run);
	if (error)
		return fail_errno(error, "starting '%s'", path);
	if (run.child_error)
		return fail_errno(run.child_error, "running '%s' in '%s'", path, cwd ? cwd : ".");
	if (!run.ended)
		return fail(PLY_FAILED, "the process that waits for '%s' was killed", path);
	*ret_code = WIFEXITED(run.status) ? WEXITSTATUS(run.status) : -WTERMSIG(run.status);
	r = read_end(run.outs[0], &out);
	if (r == 0)
		r = read_end(run.outs[1], &err);
	if (r < 0) {
		ply_text_free(&out);
		return r;
	}
	tidy(&err, verb_of(args));
	*ret_out = out;
	*ret_err = err;
	return 0;
}
