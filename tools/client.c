/* SPDX-License-Identifier: Apache-2.0 */

/*
 * How the client finds whom to ask, starts the daemon, and asks; see client.h and wire.h.
 *
 * The store's socket is reached as /proc/self/fd/N/sock, N being the store's directory: a socket
 * address holds 107 bytes, a path may be longer.
 *
 * Starting a daemon: whoever finds nobody listening starts one, and waits on a pipe until that one
 * is ready or says in one line why not. Two clients may do so at once: the store's lock lets one
 * daemon win, the other one waits until the winner listens and reports "ready" as well. A
 * connection that ends without a hello waited at a daemon that was about to end: try again.
 */

#include "tools/client.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>

#include "store/base/err.h"
#include "store/base/pidstate.h"
#include "store/base/util.h"
#include "store/base/words.h"
#include "tools/mounts.h"
#include "tools/relay.h"
#include "tools/verbs.h"
#include "tools/wire.h"

extern char **environ;

/* How often to try when a daemon is just ending or beginning, RETRY_MS apart. */
#define RETRIES 2000
#define RETRY_MS 5
/*
 * Who answers at once whatever else it does (D4 in daemon.c; the view's lock is held for a moment)
 * and has not after so long never will: a daemon that died was followed long before, also by the
 * third one. One that is seen to be stopped is not waited for.
 */
#define PATIENCE_MS 20000
#define STOPPED_AFTER_MS 2000

static void say(const struct client *cl, const char *kind, const char *fmt, va_list ap)
{
	char line[4096 + PATH_MAX];

	vsnprintf(line, sizeof(line), fmt, ap);
	fprintf(stderr, "plyfs%s%s: %s%s\n", cl->verb ? " " : "", cl->verb ? cl->verb : "", kind,
		line_clean(line));
}

int client_fail(const struct client *cl, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	say(cl, "", fmt, ap);
	va_end(ap);
	return FAILED;
}

int client_printed(const struct client *cl)
{
	if (fflush(stdout) || ferror(stdout))
		return client_fail(cl, "the output could not be written");
	return DONE;
}

int client_unread(const struct client *cl)
{
	(void)raise(SIGPIPE);
	return client_fail(cl, "the output could not be written");
}

int client_misuse(const struct client *cl, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	say(cl, "", fmt, ap);
	va_end(ap);
	return MISUSE;
}

void client_talk(const struct client *cl, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	say(cl, "", fmt, ap);
	va_end(ap);
}

int client_parse(struct client *cl, const struct option_def *defs, size_t n_defs, unsigned flags,
		 int min, int max)
{
	const struct verb_text *v = verb_find(cl->verb);
	char why[300];

	if (options_parse(cl->argc, cl->argv, defs, n_defs, flags, &cl->args, why, sizeof(why)) < 0)
		return client_misuse(cl, "%s (try 'plyfs %s --help')", why, cl->verb);
	if (arguments_count(&cl->args, min, max, cl->verb, v->synopsis, why, sizeof(why)) < 0)
		return client_misuse(cl, "%s", why);
	return DONE;
}

/* ---- the view and the store ---- */

static int open_dir(const char *dir)
{
	return open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK);
}

struct look {
	int opened, asked; /* errno */
	struct plyfs_info info;
};

static void look(const char *dir, struct look *ret)
{
	_cleanup_close_ int fd = open_dir(dir);

	ret->opened = fd < 0 ? errno : 0;
	ret->asked = fd >= 0 && ioctl(fd, PLYFS_IOC_INFO, &ret->info) < 0 ? errno : 0;
}

static void kill_and_reap(pid_t pid)
{
	(void)kill(pid, SIGKILL);
	(void)waitpid(pid, NULL, WNOHANG); /* who waits for an answer may not die before it */
}

/*
 * The same in a child: a request that a daemon has read and does not answer cannot be given up, not
 * even by being killed. -ETIMEDOUT: the child is left to its fate, with nothing of ours open.
 */
static int look_in_child(const char *dir, struct look *ret)
{
	_cleanup_close_ int in = -1, out = -1;
	struct pollfd p = { .events = POLLIN };
	size_t len = 0;
	ssize_t n;
	int ends[2], r;
	pid_t pid;

	if (pipe2(ends, O_CLOEXEC) < 0)
		return -errno;
	p.fd = in = ends[0];
	out = ends[1];
	pid = fork();
	if (pid < 0)
		return -errno;
	if (pid == 0) {
		(void)dup2(out, 0);
		(void)close_range(1, ~0U, 0);
		look(dir, ret);
		_exit(write(0, ret, sizeof(*ret)) != sizeof(*ret));
	}
	closep(&out);
	out = -1;

	/* More than a pipe takes at once, so it comes in parts. */
	while (len < sizeof(*ret)) {
		r = poll(&p, 1, PATIENCE_MS);
		if (r < 0 && errno == EINTR)
			continue;
		n = r > 0 ? read(in, (char *)ret + len, sizeof(*ret) - len) : -1;
		if (n <= 0) {
			kill_and_reap(pid);
			return r == 0 ? -ETIMEDOUT : -EIO;
		}
		len += (size_t)n;
	}
	(void)waitpid(pid, NULL, 0);
	return 0;
}

static int looked(struct client *cl, const char *dir, struct look *l)
{
	_cleanup_close_ int fd = -1;

	if (l->opened)
		return plyfs_is_dead_view(l->opened) ? -ENOTCONN : -l->opened;
	if (plyfs_is_no_view(l->asked))
		return 0;
	if (plyfs_is_dead_view(l->asked))
		return -ENOTCONN;
	if (l->asked)
		return l->asked == EACCES ? -EPERM : -l->asked; /* -EACCES: no view is known of */

	if (l->info.version != PLYFS_IOC_VERSION)
		return -EPROTO;
	fd = open_dir(dir);
	if (fd < 0)
		return plyfs_is_dead_view(errno) ? -ENOTCONN : -errno;
	l->info.branch[sizeof(l->info.branch) - 1] = 0;
	l->info.head[sizeof(l->info.head) - 1] = 0;
	l->info.store[sizeof(l->info.store) - 1] = 0;
	closep(&cl->view_fd);
	cl->view_fd = TAKE_FD(fd);
	cl->info = l->info;
	cl->in_view = true;
	return 0;
}

int client_look(struct client *cl, const char *dir)
{
	struct look l = {};

	look(dir, &l);
	return looked(cl, dir, &l);
}

int client_look_with_patience(struct client *cl, const char *dir)
{
	struct look l = {};
	int r = look_in_child(dir, &l);

	return r < 0 ? r : looked(cl, dir, &l);
}

bool client_look_is_unclear(int r)
{
	switch (r) {
	case -ENOTCONN:
	case -ETIMEDOUT:
	case -EPERM:
	case -EACCES:
	case -ENOENT: /* a working directory that was removed */
	case -EPROTO:
		return false;
	default:
		return r < 0;
	}
}

int client_look_failed(const struct client *cl, int r, const char *dir)
{
	if (r == -EACCES && mounts_is_closed(dir))
		return client_fail(cl, "'%s' " MOUNTS_CLOSED, dir);
	switch (r) {
	case -ENOTCONN:
		return client_fail(cl,
				   "the view at '%s' is dead: its daemon ended; 'plyfs unmount' it",
				   dir);
	case -ETIMEDOUT:
		return client_fail(cl,
				   "the view at '%s' does not answer; if its plyfsd is stopped, "
				   "kill -CONT it; 'plyfs unmount --lazy' takes the view off",
				   dir);
	case -EPERM:
		return client_ioctl_failed(cl, -r, dir);
	default:
		return client_fail(cl, "'%s': %s", dir, strerror(-r));
	}
}

/* Whether "." is in a view, asked once. */
static int look_here(struct client *cl)
{
	if (!cl->in_view && !cl->looked_here) {
		cl->here = client_look_with_patience(cl, ".");
		cl->looked_here = true;
	}
	return cl->in_view ? 0 : cl->here;
}

const char *client_store_name(struct client *cl)
{
	const char *name = cl->store_option ? cl->store_option : getenv("PLYFS_STORE");
	int r;

	if (!name || !*name)
		return NULL;
	if (cl->store_option)
		return name;
	r = look_here(cl);
	if (cl->in_view || r == -ENOTCONN || r == -ETIMEDOUT || r == -EPERM ||
	    client_look_is_unclear(r))
		return NULL;
	return name;
}

int client_use_store(struct client *cl, const char *path)
{
	_cleanup_close_ int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	char *absolute;

	if (fd < 0)
		return errno == ENOENT
			       ? client_fail(cl,
					     "there is no store '%s'; make one with 'plyfs init'",
					     path)
			       : client_fail(cl, "opening store '%s': %s", path, strerror(errno));
	absolute = realpath(path, NULL);
	if (!absolute)
		return client_fail(cl, "opening store '%s': %s", path, strerror(errno));

	closep(&cl->store_fd);
	free(cl->store);
	cl->store_fd = TAKE_FD(fd);
	cl->store = absolute;
	return DONE;
}

int client_store(struct client *cl)
{
	const char *name;
	int r;

	if (cl->store_fd >= 0)
		return DONE;
	name = client_store_name(cl);
	if (name)
		return client_use_store(cl, name);

	r = look_here(cl);
	if (r == -ENOTCONN)
		return client_fail(
			cl, "this directory's view is dead; 'plyfs unmount' its mount point");
	if (r == -EPERM)
		return client_fail(cl, "this view's store belongs to another user; "
				       "--store names one of your own");
	if (r == -EACCES || r == -ETIMEDOUT || client_look_is_unclear(r))
		return client_look_failed(cl, r, ".");
	if (!cl->in_view)
		return client_misuse(
			cl, "which store? give --store STORE, set PLYFS_STORE, or be in a view");
	return client_use_store(cl, cl->info.store);
}

/* ---- starting programs ---- */

void client_program(const char *name, char path[static PATH_MAX])
{
	static const char *const places[] = { "", PLYFS_LIBEXEC_FROM_BIN "/" };
	char here[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", here, sizeof(here) - 256);

	for (size_t i = 0; n > 0 && i < ARRAY_SIZE(places); i++) {
		here[n] = 0;
		strcpy(strrchr(here, '/') + 1, places[i]);
		strcat(strcpy(path, here), name);
		if (access(path, X_OK) == 0)
			return;
	}
	strcat(strcpy(path, PLYFS_LIBEXECDIR "/"), name);
}

/*
 * What no program starts without. The daemon lifts its limits itself, once it runs; the rest of us,
 * and what we run, keep them.
 */
static const int wanted[] = { RLIMIT_AS, RLIMIT_DATA };

static void lift(struct rlimit before[static ARRAY_SIZE(wanted)])
{
	for (size_t i = 0; i < ARRAY_SIZE(wanted); i++) {
		struct rlimit l;

		if (getrlimit(wanted[i], &before[i]) < 0)
			before[i] = (struct rlimit){ RLIM_INFINITY, RLIM_INFINITY };
		l = before[i];
		l.rlim_cur = l.rlim_max;
		(void)setrlimit(wanted[i], &l); /* raising so far is always allowed */
	}
}

static void lower(const struct rlimit before[static ARRAY_SIZE(wanted)])
{
	for (size_t i = 0; i < ARRAY_SIZE(wanted); i++)
		(void)setrlimit(wanted[i], &before[i]); /* as is lowering */
}

/* It could not even say why: the kernel killed it in execve, or it found no room for a library. */
static int ended_mute(struct client *cl, const char *path, int status)
{
	char how[64], log[PATH_MAX];
	bool limited = false;

	for (size_t i = 0; i < ARRAY_SIZE(wanted); i++) {
		struct rlimit l;

		limited |= getrlimit(wanted[i], &l) == 0 && l.rlim_max != RLIM_INFINITY;
	}
	if (WIFSIGNALED(status))
		(void)snprintf(how, sizeof(how), "was killed at its start (signal %d)",
			       WTERMSIG(status));
	else
		(void)snprintf(how, sizeof(how), "ended at its start (exit code %d)",
			       WEXITSTATUS(status));
	if (limited)
		return client_fail(cl, "the daemon %s; see ulimit -v and -d", how);
	(void)snprintf(log, sizeof(log), "%s/daemon.log", path);
	if (access(log, F_OK) < 0)
		return client_fail(cl, "the daemon %s", how);
	return client_fail(cl, "the daemon %s; see '%s'", how, log);
}

/*
 * Runs plyfsd with the write end of a pipe as descriptor 3 and collects what it says there until
 * it closes it. "ready" or "" is success.
 */
static int spawn_daemon(struct client *cl, const char *what, const char *path)
{
	char program[PATH_MAX], said[1024];
	_cleanup_close_ int in = -1, out = -1;
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attributes;
	struct rlimit limits[ARRAY_SIZE(wanted)];
	sigset_t none;
	char *argv[] = { (char *)"plyfsd", (char *)"--ready-fd=3", (char *)what, (char *)path,
			 NULL };
	size_t len = 0;
	int p[2], r, status = 0;
	pid_t pid;

	client_program("plyfsd", program);
	if (pipe2(p, O_CLOEXEC) < 0)
		return client_fail(cl, "starting the daemon: %s", strerror(errno));
	in = p[0];
	out = p[1];

	r = posix_spawn_file_actions_init(&actions);
	if (r)
		return client_fail(cl, "starting the daemon: %s", strerror(r));
	posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
	posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
	posix_spawn_file_actions_adddup2(&actions, out, 3);
	r = posix_spawnattr_init(&attributes);
	if (r == 0) {
		sigemptyset(&none); /* a guard has all of them blocked */
		(void)posix_spawnattr_setsigmask(&attributes, &none);
		(void)posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
		lift(limits);
		r = posix_spawn(&pid, program, &actions, &attributes, argv, environ);
		lower(limits);
		posix_spawnattr_destroy(&attributes);
	}
	posix_spawn_file_actions_destroy(&actions);
	if (r)
		return client_fail(cl, "starting the daemon '%s': %s", program, strerror(r));
	closep(&out);
	out = -1;

	for (;;) {
		ssize_t n = read(in, said + len, sizeof(said) - 1 - len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		len += (size_t)n;
	}
	said[len] = 0;
	said[strcspn(said, "\n")] = 0;

	if (strcmp(said, "ready") == 0)
		return DONE; /* its first process stays as our child until we exit: the guard */
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (*said)
		return client_fail(cl, "%s", said);
	return ended_mute(cl, path, status);
}

int client_salvage_store(struct client *cl, const char *option)
{
	char program[PATH_MAX];
	char *argv[] = { (char *)"plyfsd", (char *)"--salvage", cl->store, (char *)option, NULL };
	int r, status;
	pid_t pid;

	client_program("plyfsd", program);
	r = posix_spawn(&pid, program, NULL, NULL, argv, environ);
	if (r)
		return client_fail(cl, "starting '%s': %s", program, strerror(r));
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return client_fail(cl, "waiting for '%s': %s", program, strerror(errno));
	if (!WIFEXITED(status))
		return client_fail(cl, "'%s' was killed by signal %d", program, WTERMSIG(status));
	return WEXITSTATUS(status);
}

int client_init_store(struct client *cl, const char *path, bool may_exist)
{
	bool made = false;
	char format[PATH_MAX];
	int r;

	snprintf(format, sizeof(format), "%s/format", path);
	if (may_exist && access(format, F_OK) == 0)
		return DONE;
	if (mkdir(path, 0700) == 0)
		made = true;
	else if (errno != EEXIST)
		return client_fail(cl, "making '%s': %s", path, strerror(errno));

	r = spawn_daemon(cl, "--init", path);
	if (r && made)
		(void)rmdir(path); /* stays when there is something in it */
	return r;
}

/* ---- the conversation ---- */

/* -EAGAIN: its queue is full. */
static int connect_once(struct client *cl, int *ret_sock)
{
	_cleanup_close_ int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	const struct timeval second = { .tv_sec = 1 };
	struct sockaddr_un a = { .sun_family = AF_UNIX };

	if (sock < 0 || setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &second, sizeof(second)) < 0)
		return -errno;
	snprintf(a.sun_path, sizeof(a.sun_path), "/proc/self/fd/%d/sock", cl->store_fd);
	if (connect(sock, (struct sockaddr *)&a, sizeof(a)) < 0)
		return -errno;
	*ret_sock = TAKE_FD(sock);
	return 0;
}

/* Whoever listens at the other end; pid 0: not to be seen from here. */
static struct ucred listener(int sock)
{
	struct ucred peer = { .uid = (uid_t)-1 };
	socklen_t len = sizeof(peer);

	(void)getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &len); /* or it stays as it is */
	return peer;
}

/* Waits for the first word of a daemon; an exit code. */
static int client_await(struct client *cl, int sock)
{
	struct pollfd p = { .fd = sock, .events = POLLIN };
	pid_t pid = listener(sock).pid;
	int r;

	for (int ms = 0; ms < PATIENCE_MS; ms += STOPPED_AFTER_MS) {
		do
			r = poll(&p, 1, STOPPED_AFTER_MS);
		while (r < 0 && errno == EINTR);
		if (r != 0)
			return DONE; /* or what is wrong comes out when it is read */
		if (pid_state(pid) == 'T')
			return client_fail(cl,
					   "the daemon of '%s' is stopped; kill -CONT %d lets it "
					   "go on",
					   cl->store, (int)pid);
	}
	return client_fail(cl, "the daemon of '%s', pid %d, does not answer; see '%s/daemon.log'",
			   cl->store, (int)pid, cl->store);
}

static int client_hello(struct client *cl, int sock, struct wire_answer *hello)
{
	int r = client_await(cl, sock);

	if (r)
		return r;
	r = wire_recv_answer(sock, hello);
	if (r)
		return r;
	if (hello->version != WIRE_VERSION)
		return client_fail(
			cl,
			"the daemon of this store (pid %d, plyfs %s) speaks another protocol than "
			"this program (plyfs %s); unmount its views so that it ends",
			hello->pid, hello->text, PLYFS_VERSION);
	if (hello->status)
		return client_fail(cl, "%s", hello->text);
	return DONE;
}

/*
 * The socket is there and nobody listens: a daemon died. When its store is still locked, its
 * supervisor is about to start another one.
 */
static bool is_supervised(struct client *cl)
{
	_cleanup_close_ int fd = openat(cl->store_fd, "lock", O_RDONLY | O_CLOEXEC);

	/* Ours for a moment if nobody has it: who starts a daemon meanwhile tries again. */
	return fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK;
}

/* first: a connection that was made already (taken), or -1. */
static int connect_from(struct client *cl, int first, bool start, int *ret_sock)
{
	uint64_t until = now_ns() + PATIENCE_MS * UINT64_C(1000000);
	int r = 0;

	for (int i = 0; i < RETRIES && now_ns() < until; i++) {
		_cleanup_close_ int sock = i == 0 ? first : -1;
		struct wire_answer hello;

		r = sock >= 0 ? 0 : connect_once(cl, &sock);
		if (r == -ECONNREFUSED && !start && is_supervised(cl)) {
			r = -EAGAIN;
		} else if (r == -ENOENT || r == -ECONNREFUSED) {
			if (!start)
				return NO_DAEMON;
			r = spawn_daemon(cl, "--store", cl->store);
			if (r)
				return r;
			until = now_ns() + PATIENCE_MS * UINT64_C(1000000);
			continue;
		}
		if (r == 0) {
			r = client_hello(cl, sock, &hello);
			if (r == DONE) {
				cl->daemon_pid = hello.pid;
				*ret_sock = TAKE_FD(sock);
				return DONE;
			}
			if (r == FAILED)
				return r;
			if (r < 0)
				return client_fail(cl, "the daemon's greeting: %s", strerror(-r));
		} else if (r == -EACCES) {
			return client_fail(
				cl, "only root and the owner of the store '%s' may use it",
				cl->store);
		} else if (r != -EAGAIN) {
			return client_fail(cl, "reaching the daemon of '%s': %s", cl->store,
					   strerror(-r));
		}
		/* It is ending (no hello), or its queue is full: it will not take long. */
		(void)nanosleep(&(struct timespec){ .tv_nsec = RETRY_MS * 1000000L }, NULL);
	}

	return client_fail(cl, "the daemon of '%s' does not answer; see '%s/daemon.log'", cl->store,
			   cl->store);
}

int client_connect(struct client *cl, bool start, int *ret_sock)
{
	return connect_from(cl, -1, start, ret_sock);
}

/* What of our environment concerns a verb's output; the rest may be secret (PLYFS_TOKEN). */
static bool env_matters(const char *word)
{
	return strncmp(word, "COLUMNS=", 8) == 0 || strncmp(word, "TERM=", 5) == 0;
}

/* For files that a verb makes on our behalf: the daemon's own umask lets nobody else read. */
static void tell_umask(char *buf, size_t size)
{
	mode_t mask = umask(0);

	(void)umask(mask);
	(void)snprintf(buf, size, "UMASK=%o", mask);
}

/* Sets which view we are in, if it is one of the store that is asked. Else: the default branch. */
static int tell_view(struct client *cl, struct wire_request *q)
{
	struct stat of_view, of_store;
	int r = look_here(cl);

	if (client_look_is_unclear(r))
		return client_look_failed(cl, r, ".");
	if (!cl->in_view || stat(cl->info.store, &of_view) < 0 ||
	    fstat(cl->store_fd, &of_store) < 0 || of_view.st_dev != of_store.st_dev ||
	    of_view.st_ino != of_store.st_ino)
		return DONE;
	memcpy(q->branch, cl->info.branch, sizeof(q->branch));
	if (!*cl->info.branch)
		q->snapshot = strtoull(cl->info.head, NULL, 16);
	return DONE;
}

/*
 * -1: our caller closed it (standard_fds.h). What is said goes nowhere then, an answer
 * cannot be written.
 */
static int standard_fd(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	return flags >= 0 && !(flags & O_PATH) ? fd : -1;
}

/* The same through the view that we are in: for sandboxes that hide the store. */
static int send_through_view(struct client *cl, int argc, char **argv)
{
	_cleanup_free_ struct plyfs_call *call = calloc(1, sizeof(*call));
	_cleanup_free_ struct plyfs_read *answer = calloc(1, sizeof(*answer));

	if (!call || !answer)
		return client_fail(cl, "%s", strerror(ENOMEM));
	for (int i = 0; i < argc; i++) {
		size_t n = strlen(argv[i]) + 1;

		if (n > sizeof(call->args) - call->args_len)
			return client_fail(cl, "too many arguments for a call through a view (%zu "
					   "bytes pass): give fewer at once", sizeof(call->args));
		memcpy(call->args + call->args_len, argv[i], n);
		call->args_len += (uint32_t)n;
	}
	if (ioctl(cl->view_fd, PLYFS_IOC_CALL, call) < 0)
		return client_ioctl_failed(cl, errno, "asking through the view");

	do {
		answer->handle = call->handle;
		if (ioctl(cl->view_fd, PLYFS_IOC_READ, answer) < 0)
			return client_ioctl_failed(cl, errno,
						   "reading the answer through the view");
		if (answer->out_len > sizeof(answer->data) ||
		    answer->err_len > sizeof(answer->data) - answer->out_len)
			return client_fail(cl, "the view's answer makes no sense");
		if (fwrite(answer->data, 1, answer->out_len, stdout) < answer->out_len)
			return client_fail(cl, "writing the output: %s", strerror(errno));
		(void)fwrite(answer->data + answer->out_len, 1, answer->err_len, stderr); /* talk */
	} while (answer->more);

	if (fflush(stdout))
		return client_fail(cl, "writing the output: %s", strerror(errno));
	return answer->status;
}

int client_send(struct client *cl, bool start, int argc, char **argv)
{
	_cleanup_close_ int sock = -1;
	bool reachable;
	int r;

	if (!cl->store_option && cl->store_fd < 0 &&
	    look_here(cl) == -ETIMEDOUT) /* client_store tells the rest */
		return client_look_failed(cl, -ETIMEDOUT, ".");
	/* In a live view the daemon lives: if we cannot see its store, we are in a sandbox. */
	if (cl->in_view && !cl->store_option && cl->store_fd < 0) {
		reachable = (cl->store_fd = open(cl->info.store,
						 O_RDONLY | O_DIRECTORY | O_CLOEXEC)) >= 0 &&
			    (cl->store = strdup(cl->info.store));
		r = reachable ? connect_once(cl, &sock) : 0;
		if (!reachable || (r < 0 && r != -ECONNREFUSED && r != -EAGAIN))
			return send_through_view(cl, argc, argv);
	}

	r = client_store(cl);
	if (r)
		return r;
	r = connect_from(cl, TAKE_FD(sock), start, &sock);
	return r ? r : client_ask(cl, sock, start, argc, argv, -1);
}

static void see_restored(const struct wire_answer *a)
{
	char left[PLYFS_ID_SIZE], now[PLYFS_ID_SIZE];
	int n = 0;
	bool tell = sscanf(a->text, "%12[0-9a-f] %12[0-9a-f] %n", left, now, &n) == 2 && n;
	_cleanup_close_ int fd = open(a->text + n, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd >= 0)
		plyfs_see_restored(fd, tell ? left : NULL, tell ? now : NULL);
}

/* AGAIN: it ended before it had read the request, so the verb did not begin. END: nobody knows. */
static int exchange(int sock, struct wire_request q, struct wire_answer *ret, bool *ret_sent)
{
	_cleanup_(relay_end) struct relay relay = RELAY_NONE;
	const uid_t uid = listener(sock).uid;
	int r = uid == 0 || uid == geteuid() ? 0 : relay_begin(&relay, &q);

	*ret_sent = false;
	if (r == 0)
		r = wire_send_request(sock, &q);
	*ret_sent = r == 0;
	if (r == -EPIPE || r == -ECONNRESET)
		return AGAIN;
	if (r < 0)
		return r;
	relay_until(&relay, sock);
	return wire_recv_answer(sock, ret);
}

int client_ask(struct client *cl, int sock, bool start, int argc, char **argv, int fuse_fd)
{
	struct wire_request q = { .argc = argc, .argv = argv };
	_cleanup_close_ int cwd = -1, next = -1;
	struct wire_answer answer;
	char *env[4], mask[16], verb[32]; /* with those two */
	bool sent;
	int r;

	tell_umask(mask, sizeof(mask));
	env[q.n_env++] = mask;
	(void)snprintf(verb, sizeof(verb), "VERB=%s", cl->verb); /* the user's, not argv[0] */
	env[q.n_env++] = verb;
	for (char **e = environ; *e && q.n_env < (int)ARRAY_SIZE(env); e++)
		if (env_matters(*e))
			env[q.n_env++] = *e;
	q.env = env;
	r = tell_view(cl, &q);
	if (r)
		return r;
	cwd = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (cwd < 0)
		cwd = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
	q.fd[WIRE_CWD] = cwd;
	q.fd[WIRE_IN] = standard_fd(0);
	q.fd[WIRE_OUT] = standard_fd(1);
	q.fd[WIRE_ERR] = standard_fd(2);
	q.fd[WIRE_FUSE] = fuse_fd;

	r = exchange(sock, q, &answer, &sent);
	if (r == AGAIN) { /* it died in that moment; when the next one does, too, that is told */
		r = client_connect(cl, start, &next);
		if (r)
			return r;
		r = exchange(next, q, &answer, &sent);
	}
	if (r == -EMSGSIZE)
		return client_fail(cl, "too many arguments for one call (%d words of %d KiB pass): "
				   "give fewer at once", WIRE_STRINGS_MAX, WIRE_MAX / 1024);
	if (r < 0)
		return client_fail(cl, "%s: %s",
				   sent ? "the daemon's answer" : "asking the daemon",
				   strerror(-r));
	if (r)
		return client_fail(cl, "the daemon ended before it answered; see '%s/daemon.log'",
				   cl->store);
	if (answer.status && *answer.text) /* it could not even begin */
		return client_fail(cl, "%s", answer.text);
	if (!answer.status && *answer.text)
		see_restored(&answer);
	cl->unread = cl->unread || answer.status == UNREAD;
	return answer.status == UNREAD ? FAILED : answer.status;
}

int client_ioctl_failed(const struct client *cl, int error, const char *what)
{
	const char *colon = what ? ": " : "";

	what = what ? what : "";
	switch (error) {
	case EPERM:
	case EACCES:
		return client_fail(cl, "%s%sonly root and the owner of the view's store may", what,
				   colon);
	case EROFS:
		if (*cl->info.branch) /* it may change, but nothing can be written */
			return client_fail(cl,
					   "%s%sthe store's disk is read-only now; dmesg says why",
					   what, colon);
		return client_fail(cl, "%s%sthis view shows a snapshot; it cannot change", what,
				   colon);
	case ENOTTY:
		return client_fail(cl, "%s%snot in a plyfs view", what, colon);
	case EOPNOTSUPP:
		return client_fail(
			cl,
			"%s%sthis verb needs the store's socket, which cannot be reached from here",
			what, colon);
	case ENOSPC:
		return client_fail(cl,
				   "%s%s%s; the store's disk is full: make room there, outside of "
				   "the store",
				   what, colon, strerror(error));
	case EAGAIN:
		return client_fail(cl,
				   "%s%stoo many wait for this view to be restored; try again "
				   "when some are done",
				   what, colon);
	case ECONNRESET:
		return client_fail(cl,
				   "%s%sthe daemon died meanwhile; look whether it was done before "
				   "you ask again",
				   what, colon);
	default:
		return client_fail(cl, "%s%s%s", what, colon, strerror(error));
	}
}
