/* SPDX-License-Identifier: Apache-2.0 */

/*
 * plyfs session run, interrupt, list, end: the short-lived side of session.h.
 *
 * A session is a socket $XDG_RUNTIME_DIR/plyfs/session/HASH-NAME, HASH being of its view's mount
 * point: a name is one per view. Sockets are reached through the directory's descriptor, since a
 * socket address holds 107 bytes and a path may be longer. One that nobody listens on was left by
 * a process that was killed: whoever meets it, under the directory's lock, removes it.
 */

#include "tools/session.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "store/base/fdpass.h"
#include "store/base/util.h"
#include "store/base/words.h"
#include "tools/cmd_util.h"

/* ---- messages ---- */

int host_send(int sock, const void *message, size_t size, int fd)
{
	struct iovec iov = { .iov_base = (void *)message, .iov_len = size };

	return fdpass_send(sock, &iov, 1, &fd, fd >= 0);
}

int host_receive(int sock, void *message, size_t size, int *ret_fd)
{
	ssize_t n = fdpass_receive(sock, message, size, 0, ret_fd, 1);

	if (n < 0)
		return n == -EMSGSIZE ? -EPROTO : (int)n;
	if ((size_t)n == size)
		return 0;
	closep(ret_fd);
	*ret_fd = -1;
	return n ? -EPROTO : -EPIPE;
}

/* ---- where they are ---- */

/* FNV-1a: spreads mount points over names. */
void host_socket_name(const char *mount, const char *name, char ret[static SESSION_NAME_MAX])
{
	unsigned long long h = 14695981039346656037ull;

	for (; *mount; mount++)
		h = (h ^ (unsigned char)*mount) * 1099511628211ull;
	(void)snprintf(ret, SESSION_NAME_MAX, "%016llx-%.63s", h, name);
}

int host_directory(const struct cmd *c, int *ret_dir)
{
	_cleanup_free_ char *path = NULL;
	int fd, r = place_runtime(c, "session", &path);

	if (r)
		return r;
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return cmd_fail(c, "'%s': %s", path, strerror(errno));
	*ret_dir = fd;
	return DONE;
}

struct sockaddr_un host_address(int dir, const char *name)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };

	(void)snprintf(a.sun_path, sizeof(a.sun_path), "/proc/self/fd/%d/%s", dir, name);
	return a;
}

int host_reach(int dir, const char *name, int *ret_sock)
{
	struct sockaddr_un a = host_address(dir, name);
	_cleanup_close_ int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	int r;

	if (sock < 0)
		return -errno;
	if (connect(sock, (struct sockaddr *)&a, sizeof(a)) < 0) {
		if (errno != ECONNREFUSED)
			return -errno;
		/* With the lock, it is not one that is just being made. */
		(void)flock(dir, LOCK_EX);
		r = connect(sock, (struct sockaddr *)&a, sizeof(a)) < 0 ? -errno : 0;
		if (r == -ECONNREFUSED) {
			(void)unlinkat(dir, name, 0);
			r = -ENOENT;
		}
		(void)flock(dir, LOCK_UN);
		if (r < 0)
			return r;
	}
	*ret_sock = TAKE_FD(sock);
	return 0;
}

/* The session of this name in the view of --in. */
static int find(const struct cmd *c, const char *in, const char *name, int *ret_dir,
		char sock_name[static SESSION_NAME_MAX], int *ret_sock)
{
	_cleanup_(place_release) struct place place = { 0 };
	_cleanup_close_ int dir = -1;
	int r = name_check(c, name);

	if (r == DONE)
		r = place_find(c, in, &place);
	if (r == DONE)
		r = host_directory(c, &dir);
	if (r)
		return r;
	host_socket_name(place.mount, name, sock_name);
	r = host_reach(dir, sock_name, ret_sock);
	if (r == -ENOENT)
		return cmd_fail(c,
				"there is no session '%s' in the view on '%s'; 'plyfs session "
				"list' lists them",
				name, place.mount);
	if (r < 0)
		return cmd_fail(c, "reaching the session '%s': %s", name, strerror(-r));
	*ret_dir = TAKE_FD(dir);
	return DONE;
}

/*
 * A process that is stopped, by a signal or with its cgroup, answers nothing; one that is not tells
 * what it is at once, on a machine that is not busy beyond use.
 */
#define INFO_SECONDS 10
/*
 * It ends within the 15 s that the library gives processes that cannot be killed (KILL_SECONDS) and
 * the 10 that its keeper does (TREE_STUCK_SECONDS). An interrupt may be for a shell that starts: 20
 * s (startup_timeout), or has three tries and then harder ones, of a second each.
 */
#define ACT_SECONDS 30

/* -EAGAIN: no answer. Other failures: it has ended (SESSION_END: that is the answer). */
static int ask(int sock, enum session_op op, struct session_answer *a)
{
	const struct timeval wait = { .tv_sec = op == SESSION_INFO ? INFO_SECONDS : ACT_SECONDS };
	const struct session_request q = { .op = op };
	_cleanup_close_ int fd = -1;
	int r;

	(void)setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait)); /* else: waits */
	r = host_send(sock, &q, sizeof(q), -1);
	return r < 0 ? r : host_receive(sock, a, sizeof(*a), &fd);
}

static int fail_silent(const struct cmd *c, int sock)
{
	struct ucred host = { 0 };
	socklen_t len = sizeof(host);

	(void)getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &host, &len);
	return cmd_fail(c,
			"the session of process %d does not answer; if it is stopped, "
			"'kill -CONT %d' lets it go on",
			(int)host.pid, (int)host.pid);
}

/* ---- run ---- */

/* A command may well end with 1; few do with this one, which env, nohup and timeout have, too. */
#define RUN_FAILED 125

/* All of stdin, in a memfd that will hold the request's bytes. */
static int copy_stdin(int to, uint64_t *ret_len)
{
	char buf[STACK_BUFFER];

	for (;;) {
		ssize_t n = read(0, buf, sizeof(buf));

		if (n == 0)
			return 0;
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (memchr(buf, 0, (size_t)n))
			return -EILSEQ;
		if (write_all(to, buf, (size_t)n) < 0)
			return -errno;
		*ret_len += (uint64_t)n;
	}
}

/* The command's text and the expression, as SESSION_RUN wants them. */
static int pack(const struct cmd *c, const char *expect, struct session_request *q, int *ret_fd)
{
	_cleanup_close_ int fd = memfd_create("plyfs-command", MFD_CLOEXEC);
	_cleanup_free_ char *line = NULL;
	char **words = c->args.v + 1;
	int r = fd < 0 ? -errno : 0;

	if (strcmp(*words, "-") == 0 && !words[1]) {
		r = r < 0 ? r : copy_stdin(fd, &q->command_len);
	} else {
		line = words[1] ? words_quote(words)
				: strdup(*words); /* one: a line for the shell */
		q->command_len = line ? strlen(line) : 0;
		r = r < 0 ? r : line ? write_all(fd, line, q->command_len) : -ENOMEM;
	}
	if (r == 0)
		r = write_all(fd, "", 1);
	q->len = q->command_len + 1;
	if (expect) {
		q->expects = true;
		if (r == 0)
			r = write_all(fd, expect, strlen(expect) + 1);
		q->len += strlen(expect) + 1;
	}
	if (r == -EILSEQ)
		return cmd_misuse(c, "a command cannot hold NUL bytes");
	if (r < 0)
		return cmd_fail(c, "reading the command: %s", strerror(-r));
	*ret_fd = TAKE_FD(fd);
	return DONE;
}

static void interrupt(const struct cmd *c, int dir, const char *name)
{
	const struct session_request q = { .op = SESSION_INTERRUPT };
	_cleanup_close_ int sock = -1;
	int r = host_reach(dir, name, &sock);

	if (r == 0)
		(void)host_send(sock, &q, sizeof(q), -1); /* the command's end is the answer */
	else if (r != -ENOENT)
		(void)cmd_fail(c, "interrupting the command: %s", strerror(-r));
}

#define LOOK_MS 1000 /* most commands are over by then */

/*
 * Why there is no answer yet, when it is not that the command runs: its process may be stopped; and
 * a line for the shell waits for the end of what was begun with --expect, which nobody sees.
 */
static void tell_why(const struct cmd *c, int dir, const char *name, bool plain)
{
	_cleanup_close_ int sock = -1;
	struct session_answer a;
	int r = host_reach(dir, name, &sock);

	if (r == 0)
		r = ask(sock, SESSION_INFO, &a);
	if (r == -EAGAIN)
		(void)fail_silent(c, sock);
	if (r < 0 || !a.asks || !plain)
		return;
	(void)cmd_fail(c,
		       "waiting for what asks in '%s', if it has not ended: --expect or --quit "
		       "answers it, 'plyfs session interrupt %s' ends it",
		       a.name, a.name);
}

/* The answer; each Ctrl-C meanwhile goes to the command. plain: it is for the shell alone. */
static int wait_answer(const struct cmd *c, int sock, int dir, const char *name, bool plain,
		       struct session_answer *a, int *ret_out)
{
	_cleanup_close_ int signals = -1;
	int wait = LOOK_MS;
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	(void)sigprocmask(SIG_BLOCK, &set, NULL);
	signals = signalfd(-1, &set, SFD_CLOEXEC);
	for (;;) {
		struct pollfd polls[] = { { .fd = sock, .events = POLLIN },
					  { .fd = signals, .events = POLLIN } };
		struct signalfd_siginfo info;
		int n = poll(polls, 2, wait);

		if (n == 0) {
			tell_why(c, dir, name, plain);
			wait = -1;
		}
		if (n <= 0)
			continue;
		if (polls[0].revents)
			return host_receive(sock, a, sizeof(*a), ret_out);
		if (read(signals, &info, sizeof(info)) == sizeof(info))
			interrupt(c, dir, name);
	}
}

static int print(const struct cmd *c, int fd)
{
	char buf[STACK_BUFFER];
	off_t at = 0;

	for (;;) {
		ssize_t n = pread(fd, buf, sizeof(buf), at);

		if (n <= 0)
			return DONE;
		if (write_all(1, buf, (size_t)n) < 0)
			return cmd_fail(c, "the output could not be written");
		at += n;
	}
}

/* FAILED: it was not run, or nobody knows what came of it; that is told. */
static int run(struct cmd *c, int *ret_code)
{
	_cleanup_close_ int dir = -1, sock = -1, bytes = -1, out = -1;
	struct session_request q = { .op = SESSION_RUN };
	const char *in = NULL, *expect = NULL;
	const struct option_def defs[] = {
		{ .name = "in", .text = &in },
		{ .name = "timeout", .seconds = &q.timeout },
		{ .name = "expect", .text = &expect },
		{ .name = "quit", .flag = &q.quits },
	};
	char name[SESSION_NAME_MAX];
	struct session_answer a;
	int r;

	r = cmd_parse(c, defs, ARRAY_SIZE(defs), 0, 2, -1);
	if (r == DONE)
		r = find(c, in, c->args.v[0], &dir, name, &sock);
	if (r == DONE)
		r = pack(c, expect, &q, &bytes);
	if (r)
		return r;
	r = host_send(sock, &q, sizeof(q), bytes);
	if (r == 0)
		r = wait_answer(c, sock, dir, name, !q.expects && !q.quits, &a, &out);
	if (r < 0)
		return cmd_fail(c, "the session has ended");
	r = out >= 0 ? print(c, out) : DONE;
	if (r)
		return r;
	if (a.status == PLY_TIMEOUT)
		*ret_code = TIMED_OUT;
	else if (a.status < 0)
		return cmd_fail(c, "%s", a.text);
	else
		*ret_code = a.matched >= 0    ? DONE
			    : a.exit_code < 0 ? 128 - a.exit_code
					      : a.exit_code;
	return DONE;
}

int verb_session_run(struct cmd *c)
{
	int code, r = run(c, &code);

	return r == DONE ? code : r == FAILED ? RUN_FAILED : r;
}

/* ---- interrupt, list, end ---- */

int verb_session_interrupt(struct cmd *c)
{
	_cleanup_close_ int dir = -1, sock = -1;
	const char *in = NULL;
	const struct option_def defs[] = { { .name = "in", .text = &in } };
	char name[SESSION_NAME_MAX];
	struct session_answer a;
	int r = cmd_parse(c, defs, ARRAY_SIZE(defs), 0, 1, 1);

	if (r == DONE)
		r = find(c, in, c->args.v[0], &dir, name, &sock);
	if (r)
		return r;
	r = ask(sock, SESSION_INTERRUPT, &a);
	if (r == -EAGAIN)
		return fail_silent(c, sock);
	if (r < 0)
		return cmd_fail(c, "the session has ended");
	return a.status < 0 ? cmd_fail(c, "%s", a.text) : DONE;
}

/* Waits for the end of its process. */
static int end(const struct cmd *c, int sock)
{
	struct session_answer a;

	return ask(sock, SESSION_END, &a) == -EAGAIN ? fail_silent(c, sock) : DONE;
}

int verb_session_end(struct cmd *c)
{
	_cleanup_close_ int dir = -1, sock = -1;
	const char *in = NULL;
	const struct option_def defs[] = { { .name = "in", .text = &in } };
	char name[SESSION_NAME_MAX];
	int r = cmd_parse(c, defs, ARRAY_SIZE(defs), 0, 1, 1);

	if (r == DONE)
		r = find(c, in, c->args.v[0], &dir, name, &sock);
	return r == DONE ? end(c, sock) : r;
}

static int not_hidden(const struct dirent *e)
{
	return e->d_name[0] != '.';
}

/*
 * Calls fn for each that lives in a directory or below (NULL: all). One that cannot be reached, or
 * does not answer, may live there: that is told, and a failure, when the others had their turn.
 */
static int each(const struct cmd *c, const char *below,
		void (*fn)(void *arg, int sock_dir, const char *sock_name,
			   const struct session_answer *a),
		void *arg)
{
	_cleanup_close_ int dir = -1;
	size_t len = below ? strlen(below) : 0;
	struct dirent **names;
	int n, r = host_directory(c, &dir);

	if (r)
		return r;
	n = scandirat(dir, ".", &names, not_hidden, alphasort);
	if (n < 0)
		return cmd_fail(c, "listing the sessions: %s", strerror(errno));
	for (int i = 0; i < n; i++) {
		_cleanup_close_ int sock = -1;
		struct session_answer a;
		int reached = host_reach(dir, names[i]->d_name, &sock);
		int asked = reached < 0 ? reached : ask(sock, SESSION_INFO, &a);

		if (reached < 0 && reached != -ENOENT)
			r = cmd_fail(c, "reaching the session behind '%s': %s", names[i]->d_name,
				     strerror(-reached));
		if (reached == 0 && asked == -EAGAIN)
			r = fail_silent(c, sock);
		if (asked == 0 &&
		    (!below || (strncmp(a.dir, below, len) == 0 &&
				(!a.dir[len] || a.dir[len] == '/' || below[len - 1] == '/'))))
			fn(arg, dir, names[i]->d_name, &a);
		free(names[i]);
	}
	free(names);
	return r;
}

struct ending {
	const struct cmd *c;
	int r;
};

static void end_one(void *arg, int dir, const char *name, const struct session_answer *a)
{
	struct ending *ending = arg;
	_cleanup_close_ int sock = -1;
	int r = host_reach(dir, name, &sock);

	if (r == 0)
		r = end(ending->c, sock);
	else if (r != -ENOENT)
		r = cmd_fail(ending->c, "ending the session '%s': %s", a->name, strerror(-r));
	if (r == FAILED)
		ending->r = r;
}

int sessions_end(const struct cmd *c, const char *dir)
{
	struct ending ending = { .c = c, .r = DONE };
	int r = each(c, dir, end_one, &ending);

	return r ? r : ending.r;
}

/* arg: a JSON array, or NULL: print. */
static void list_one(void *arg, int dir, const char *name, const struct session_answer *a)
{
	json_t *all = arg;

	if (all) {
		(void)json_array_append_new(all, json_pack("{s:s, s:o, s:i, s:b}", "name", a->name,
							   "dir", json_text(a->dir), "pid",
							   (int)a->pid, "busy", a->busy));
		return;
	}
	printf("%-20s %-5s ", a->name, a->busy ? "busy" : "idle");
	print_clean(stdout, a->dir);
	putchar('\n');
}

int verb_session_list(struct cmd *c)
{
	_cleanup_(place_release) struct place place = { 0 };
	const char *in = NULL;
	bool json = false;
	const struct option_def defs[] = { { .name = "in", .text = &in },
					   { .name = "json", .flag = &json } };
	json_t *all = NULL;
	int r = cmd_parse(c, defs, ARRAY_SIZE(defs), 0, 0, 0);

	if (r == DONE && in)
		r = place_find(c, in, &place);
	if (r)
		return r;
	all = json ? json_array() : NULL;
	r = each(c, place.mount, list_one, all);
	if (r == DONE && json)
		return cmd_json(c, all);
	json_decref(all);
	return r ? r : cmd_flush(c);
}
