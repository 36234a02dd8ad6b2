/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Runs the plyfs program; see program.h.
 *
 * The caller may wait for any child at all, or have a handler of SIGCHLD, or ignore it, so that
 * exit codes are lost. So the program is the child of a process in between, made with clone() so
 * that its end sends no signal and only a wait with __WCLONE sees it. That one shares our memory,
 * and our thread stands still until it has ended (as with vfork); it collects the output as if it
 * were this thread. Its descriptors are its own: when the caller is killed, both go on to their
 * end, and nothing of the caller's stays open for that but what was to be held.
 */

#include "env/program.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
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
	int held; /* borrowed; -1 */
	struct ply_text out, err;
	int out_end, err_end; /* of the process in between: the pipes' write ends */
	char *child_stack;
	int child_error; /* errno at chdir or exec */
	int error;	 /* errno of the process in between; -1: no memory */
	int status;	 /* as of waitpid */
};

#define STACK_BYTES 65536 /* a few calls deep, a buffer of 16 KiB */

/* Only system calls: it shares our memory, as after vfork. */
static int child(void *arg)
{
	struct run *run = arg;
	struct sigaction usual = { .sa_handler = SIG_DFL };
	sigset_t none;
	int null = open("/dev/null", O_RDONLY | O_CLOEXEC);

	for (int s = 1; s < NSIG; s++)
		(void)sigaction(s, &usual, NULL); /* not allowed for some */
	sigemptyset(&none);
	(void)sigprocmask(SIG_SETMASK, &none, NULL);
	if ((!run->cwd || chdir(run->cwd) == 0) && null >= 0 && dup2(null, 0) >= 0 &&
	    dup2(run->out_end, 1) >= 0 && dup2(run->err_end, 2) >= 0) {
		/* A daemon that it starts is to hold nothing of the caller's. */
		(void)syscall(SYS_close_range, 3, ~0u, CLOSE_RANGE_CLOEXEC);
		execve(run->path, run->argv, run->env);
	}
	run->child_error = errno;
	return 127;
}

/* One read; false at the end. */
static bool take(int fd, struct ply_text *text, int *error)
{
	char buf[16384];
	ssize_t n = read(fd, buf, sizeof(buf));

	if (n < 0)
		return errno == EINTR || errno == EAGAIN;
	if (n > 0 && text_append(text, buf, (size_t)n) < 0)
		*error = -1;
	return n > 0 && !*error;
}

/* Everything that is the caller's but the three and `held`: a view is not to stay busy for us. */
static void close_others(int held)
{
	if (held > 3)
		(void)syscall(SYS_close_range, 3, held - 1, 0);
	(void)syscall(SYS_close_range, MAX(held + 1, 3), ~0u, 0);
}

/* errno, or 0. */
static int collect(struct run *run)
{
	int out[2], err[2];
	pid_t pid;

	if (pipe2(out, O_CLOEXEC) < 0 || pipe2(err, O_CLOEXEC) < 0)
		return errno; /* and all descriptors end with us */
	run->out_end = out[1];
	run->err_end = err[1];
	pid = clone(child, run->child_stack + STACK_BYTES, CLONE_VM | CLONE_VFORK | SIGCHLD, run);
	if (pid < 0)
		return errno;
	(void)close(out[1]);
	(void)close(err[1]);

	struct pollfd fds[] = { { .fd = out[0], .events = POLLIN },
				{ .fd = err[0], .events = POLLIN } };
	struct ply_text *texts[] = { &run->out, &run->err };

	while (fds[0].fd >= 0 || fds[1].fd >= 0) {
		if (poll(fds, 2, -1) < 0 && errno != EINTR)
			break;
		for (int i = 0; i < 2; i++)
			if (fds[i].fd >= 0 && fds[i].revents &&
			    !take(fds[i].fd, texts[i], &run->error))
				fds[i].fd = -1;
	}
	while (waitpid(pid, &run->status, 0) < 0 && errno == EINTR)
		;
	return run->error;
}

static int between(void *arg)
{
	struct run *run = arg;

	close_others(run->held);
	run->error = collect(run);
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
	char path[PATH_MAX];
	struct run run = { .path = path, .cwd = cwd, .argv = argv, .env = env, .held = held };
	int error, r;

	if (!argv || !env)
		return fail_memory();
	r = program_find(path);
	if (r < 0)
		return r;
	error = start(&run);
	if (error)
		r = error < 0 ? fail_memory() : fail_errno(error, "starting '%s'", path);
	else if (run.child_error)
		r = fail_errno(run.child_error, "running '%s' in '%s'", path, cwd ? cwd : ".");
	if (r < 0) {
		ply_text_free(&run.out);
		ply_text_free(&run.err);
		return r;
	}
	tidy(&run.err, verb_of(args));
	*ret_out = run.out;
	*ret_err = run.err;
	*ret_code = WIFEXITED(run.status) ? WEXITSTATUS(run.status) : -WTERMSIG(run.status);
	return 0;
}
