/* SPDX-License-Identifier: Apache-2.0 */

/*
 * plyfs session start, and the process that holds a session; see session.h. Its main thread
 * accepts, and looks once a second whether shell and view are still there; the shell is started by
 * a second one, which an end of the whole cancels; each connection has a thread, and a command that
 * runs a second one, so that the first can interrupt it when who asked has gone.
 */

#include "tools/session.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "store/base/util.h"

/* How long a Ctrl-C may take to have an effect, and how many there are, before it gets harder. */
#define INTERRUPT_SECONDS 1
#define INTERRUPT_TRIES 3

struct host {
	struct ply_session *session; /* immutable once it has started */
	const struct place *place;   /* immutable */
	const char *name;	     /* immutable */
	int over;		     /* an eventfd: this is the end */
	pthread_mutex_t lock;
	pthread_cond_t idle; /* users is 0, or runner is -1, or the start is over */
	bool starts;	     /* under lock */
	unsigned users;	     /* under lock: threads that use the session */
	int runner;	     /* under lock, borrowed: where the answer of what runs goes; -1 */
	const char *runs;    /* under lock: the command that runs; NULL: none */
	bool asks;	     /* under lock: session_answer's */
	bool ended;	     /* under lock: there are to be no new ones */
};

/* ---- a command ---- */

struct run {
	struct host *host;
	struct session_request q;
	const char *bytes;
	int done; /* an eventfd */
	struct session_answer answer;
	int output; /* a memfd; -1 */
};

static int keep(int fd, const struct ply_text *text)
{
	return fd >= 0 && text->len ? write_all(fd, text->data, text->len) : 0;
}

/* Part of a command that people know it by: of its first line. */
#define KNOWN_BY 60

/* False: another command runs, and the answer says so. */
static bool begin_run(struct host *h, struct run *run)
{
	size_t len = 0;
	LOCK_GUARD(&h->lock);

	if (!h->runs) {
		h->runs = run->bytes;
		return true;
	}
	while (len < KNOWN_BY && h->runs[len] && h->runs[len] != '\n')
		len++;
	while (len && ((unsigned char)h->runs[len] & 0xc0) == 0x80) /* no half character */
		len--;
	run->answer.status = PLY_STATE;
	(void)snprintf(run->answer.text, sizeof(run->answer.text),
		       "session '%s' is running '%.*s%s': wait for it, or end it: plyfs session "
		       "interrupt %s",
		       h->name, (int)len, h->runs, h->runs[len] ? "..." : "", h->name);
	return false;
}

static void end_run(struct host *h)
{
	LOCK_GUARD(&h->lock);
	h->runs = NULL;
}

static void run_owned(struct run *run)
{
	struct host *h = run->host;
	const char *expect[] = { run->bytes + run->q.command_len + 1 };
	const struct ply_session_run q = {
		.command = run->bytes,
		.len = run->q.command_len,
		.timeout = run->q.timeout,
		.interactive = run->q.expects,
		.interactive_quit = run->q.quits,
		.expect = expect,
		.n_expect = run->q.expects ? 1 : 0,
	};
	struct ply_observation seen = { 0 };
	struct session_answer *a = &run->answer;
	struct ply_text rest = { 0 };

	a->status = ply_session_run(h->session, &q, &seen);
	(void)snprintf(a->text, sizeof(a->text), "%s", a->status < 0 ? ply_error() : "");
	a->exit_code = seen.exit_code;
	a->matched = seen.matched;
	if (a->status == PLY_TIMEOUT &&
	    ply_session_interrupt(h->session, INTERRUPT_SECONDS, INTERRUPT_TRIES, &rest) < 0)
		(void)snprintf(a->text, sizeof(a->text), "%s", ply_error());

	/* After a timeout the output stays where it is: what an interrupt brings begins with it. */
	run->output = memfd_create("plyfs-output", MFD_CLOEXEC);
	if (run->output < 0 || keep(run->output, rest.len ? &rest : &seen.output) < 0) {
		a->status = PLY_FAILED;
		(void)snprintf(a->text, sizeof(a->text), "keeping the output: %s", strerror(errno));
	}
	ply_observation_free(&seen);
	ply_text_free(&rest);
}

static void *run_command(void *arg)
{
	struct run *run = arg;

	if (begin_run(run->host, run)) {
		run_owned(run);
		end_run(run->host);
	}
	(void)eventfd_write(run->done, 1); /* 1 fits: cannot fail */
	return NULL;
}

static bool has_hung_up(int sock)
{
	struct pollfd p = { .fd = sock, .events = POLLRDHUP };

	return poll(&p, 1, 0) > 0;
}

/*
 * A command of a caller that was killed is being interrupted, which takes a few seconds at most:
 * not what the next one should be told. False: whose turn it is has hung up meanwhile.
 */
static bool take_turn(struct host *h, int sock)
{
	LOCK_GUARD(&h->lock);
	while (h->runner >= 0 && has_hung_up(h->runner))
		pthread_cond_wait(&h->idle, &h->lock);
	if (has_hung_up(sock))
		return false;
	if (h->runner < 0) /* else begin_run says that it is busy */
		h->runner = sock;
	return true;
}

static void end_turn(struct host *h, int sock, const struct session_answer *a)
{
	LOCK_GUARD(&h->lock);

	if (h->runner != sock)
		return;
	h->runner = -1;
	if (a->status != PLY_SYNTAX)
		h->asks = a->status == 0 && a->matched >= 0;
	pthread_cond_broadcast(&h->idle);
}

/* Runs it; interrupts it when the other side hangs up. */
static void serve_run(struct host *h, int sock, const struct session_request *q, int bytes_fd)
{
	struct run run = { .host = h, .q = *q, .done = eventfd(0, EFD_CLOEXEC), .output = -1 };
	struct pollfd polls[] = { { .fd = sock, .events = POLLRDHUP },
				  { .fd = run.done, .events = POLLIN } };
	char *bytes = q->len ? mmap(NULL, q->len, PROT_READ, MAP_PRIVATE, bytes_fd, 0) : MAP_FAILED;
	pthread_t thread;

	run.bytes = bytes;
	/* Both sides are one build; that strings end is looked at all the same. */
	if (run.done < 0 || bytes == MAP_FAILED || q->command_len >= q->len ||
	    bytes[q->command_len] || bytes[q->len - 1] ||
	    (q->expects && q->command_len + 1 >= q->len) ||
	    pthread_create(&thread, NULL, run_command, &run) != 0) {
		run.answer.status = PLY_FAILED;
		strcpy(run.answer.text, "the session's process is out of resources");
	} else {
		while (poll(polls, 2, -1) < 0 || !polls[1].revents) {
			if (!polls[0].revents)
				continue;
			polls[0].fd = -1; /* nobody is left to send to; once is enough */
			(void)ply_session_interrupt(h->session, INTERRUPT_SECONDS, INTERRUPT_TRIES,
						    NULL);
		}
		(void)pthread_join(thread, NULL);
	}
	end_turn(h, sock, &run.answer);
	(void)host_send(sock, &run.answer, sizeof(run.answer), run.output); /* it may be gone */
	if (bytes != MAP_FAILED)
		(void)munmap(bytes, q->len);
	closep(&run.done);
	closep(&run.output);
}

/* ---- connections ---- */

struct connection {
	struct host *host;
	int sock;
};

/* Around every use of the session, after its start; false: it is being ended. */
static bool enter(struct host *h)
{
	LOCK_GUARD(&h->lock);
	while (h->starts)
		pthread_cond_wait(&h->idle, &h->lock);
	h->users += !h->ended;
	return !h->ended;
}

static void leave(struct host *h)
{
	LOCK_GUARD(&h->lock);
	if (--h->users == 0)
		pthread_cond_broadcast(&h->idle);
}

static void *serve(void *arg)
{
	struct connection *conn = arg;
	struct host *h = conn->host;
	struct session_answer a = { .pid = getpid(), .matched = -1 };
	_cleanup_close_ int sock = conn->sock, bytes = -1;
	struct session_request q;

	free(conn);
	if (host_receive(sock, &q, sizeof(q), &bytes) < 0)
		return NULL;
	switch (q.op) {
	case SESSION_RUN:
		if (enter(h)) {
			if (take_turn(h, sock))
				serve_run(h, sock, &q, bytes);
			leave(h);
		}
		return NULL;
	case SESSION_INTERRUPT:
		if (!enter(h))
			return NULL;
		a.status =
			ply_session_interrupt(h->session, INTERRUPT_SECONDS, INTERRUPT_TRIES, NULL);
		if (a.status < 0)
			(void)snprintf(a.text, sizeof(a.text), "%s", ply_error());
		leave(h);
		pthread_mutex_lock(&h->lock);
		h->asks &= a.status < 0;
		pthread_mutex_unlock(&h->lock);
		break;
	case SESSION_INFO:
		(void)snprintf(a.name, sizeof(a.name), "%s", h->name);
		(void)snprintf(a.dir, sizeof(a.dir), "%s", h->place->dir);
		pthread_mutex_lock(&h->lock);
		a.busy = h->starts || h->users > 0;
		a.asks = h->asks;
		pthread_mutex_unlock(&h->lock);
		break;
	case SESSION_END:
		(void)eventfd_write(h->over, 1);
		(void)TAKE_FD(sock); /* closes with the process */
		return NULL;
	}
	(void)host_send(sock, &a, sizeof(a), -1); /* it may be gone */
	return NULL;
}

static void accept_one(struct host *h, int listen_fd)
{
	struct connection *conn;
	struct ucred peer;
	socklen_t len = sizeof(peer);
	pthread_attr_t detached;
	pthread_t thread;
	int sock = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);

	if (sock < 0)
		return; /* gone again, or no descriptor left: it asks once more */
	conn = malloc(sizeof(*conn));
	if (!conn || getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0 ||
	    (peer.uid != geteuid() && peer.uid != 0) || pthread_attr_init(&detached) != 0) {
		free(conn);
		(void)close(sock);
		return;
	}
	*conn = (struct connection){ .host = h, .sock = sock };
	(void)pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	if (pthread_create(&thread, &detached, serve, conn) != 0) {
		free(conn);
		(void)close(sock);
	}
	pthread_attr_destroy(&detached);
}

/* ---- the process ---- */

static bool is_mounted(const struct place *p, const struct stat *then)
{
	struct stat now;

	return stat(p->mount, &now) == 0 && now.st_dev == then->st_dev;
}

static bool is_alive(struct host *h)
{
	bool starts, ended;

	pthread_mutex_lock(&h->lock);
	starts = h->starts;
	ended = h->ended;
	pthread_mutex_unlock(&h->lock);
	return starts || (!ended && ply_session_alive(h->session));
}

static void serve_until_the_end(struct host *h, int listen_fd, const struct stat *view)
{
	_cleanup_close_ int signals = -1;
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGHUP);
	sigaddset(&set, SIGINT);
	signals = signalfd(-1, &set, SFD_CLOEXEC);
	for (;;) {
		struct pollfd polls[] = { { .fd = listen_fd, .events = POLLIN },
					  { .fd = h->over, .events = POLLIN },
					  { .fd = signals, .events = POLLIN } };
		int n = poll(polls, 3, 1000);

		if (n > 0 && (polls[1].revents || polls[2].revents))
			return;
		/* Each time: those who ask for it might leave no quiet second. */
		if (!is_alive(h) || !is_mounted(h->place, view))
			return;
		if (n > 0 && polls[0].revents)
			accept_one(h, listen_fd);
	}
}

/* What our caller's caller left open (a lock, a pipe) is not to stay open as long as we live. */
static void close_others(const int keep[3])
{
	DIR *fds = opendir("/proc/self/fd");
	struct dirent *e;

	while (fds && (e = readdir(fds))) {
		int fd = atoi(e->d_name);

		if (fd > 2 && fd != dirfd(fds) && fd != keep[0] && fd != keep[1] && fd != keep[2])
			(void)close(fd);
	}
	if (fds)
		closedir(fds);
}

/* In the new process, before anything is said. */
static void settle(void)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	sigset_t set;

	(void)setsid();
	(void)!chdir("/"); /* our place is not to keep a view busy */
	for (int i = 0; null >= 0 && i < 3; i++)
		(void)dup2(null, i); /* what is ours lies above: see standard_fds.h */
	(void)signal(SIGPIPE, SIG_IGN);
	(void)signal(SIGXFSZ, SIG_IGN); /* beyond `ulimit -f` a write fails, and nobody else ends */
	/* For the signalfd, and so for all threads. */
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGHUP);
	sigaddset(&set, SIGINT);
	(void)sigprocmask(SIG_BLOCK, &set, NULL);
}

struct start {
	struct host *host;
	struct ply_env *env; /* borrowed */
	int ready_fd;	     /* as host_main's; -1: it was told that it is ready */
};

static void tell(const struct start *s, const char *sentence)
{
	(void)write_all(s->ready_fd, sentence, strlen(sentence)); /* nobody may read it any more */
}

/* Starts the shell. */
static void *start(void *arg)
{
	struct start *s = arg;
	struct host *h = s->host;
	int r = ply_session_new(s->env, h->name, &h->session);

	ply_cancel_on(h->over);
	if (r == 0)
		r = ply_session_set(h->session, "cwd", h->place->dir);
	if (r == 0)
		r = ply_session_start(h->session, NULL);
	tell(s, r == 0		     ? "ready"
		: r == PLY_CANCELLED ? "the session was ended while it started"
				     : ply_error());
	if (r == 0)
		(void)close(TAKE_FD(s->ready_fd));
	pthread_mutex_lock(&h->lock);
	h->starts = false;
	h->ended = r < 0;
	pthread_cond_broadcast(&h->idle);
	pthread_mutex_unlock(&h->lock);
	if (r < 0)
		(void)eventfd_write(h->over, 1); /* 1 fits: cannot fail */
	return NULL;
}

#define BACKLOG 64 /* callers at once; the next wait in connect(2) */

/* listen_fd, dir_fd (where socket_name is): taken. ready_fd: gets "ready" or a sentence; closed. */
static _Noreturn void host_main(const struct cmd *c, const struct place *p, const char *name,
				int listen_fd, int dir_fd, const char *socket_name, int ready_fd)
{
	struct host h = { .place = p,
			  .name = name,
			  .runner = -1,
			  .starts = true,
			  .lock = PTHREAD_MUTEX_INITIALIZER,
			  .idle = PTHREAD_COND_INITIALIZER };
	struct start s = { .host = &h, .ready_fd = ready_fd };
	pthread_t starter;
	struct stat view;
	int r = FAILED;

	close_others((int[]){ listen_fd, dir_fd, ready_fd });
	(void)listen(listen_fd, BACKLOG); /* again: callers are told the pid of who did so last */
	h.over = eventfd(0, EFD_CLOEXEC);
	/* What env_of_place says goes to our caller's stderr, so that comes first. */
	if (h.over < 0)
		(void)cmd_fail(c, "an eventfd: %s", strerror(errno));
	else if (stat(p->mount, &view) < 0)
		(void)cmd_fail(c, "'%s': %s", p->mount, strerror(errno));
	else
		r = env_of_place(c, p, NULL, NULL, &s.env);
	settle();
	if (r == DONE && pthread_create(&starter, NULL, start, &s) == 0) {
		serve_until_the_end(&h, listen_fd, &view);
		(void)eventfd_write(h.over, 1); /* 1 fits: cannot fail */
		(void)pthread_join(starter, NULL);
	} else if (r == DONE) {
		tell(&s, "the session's process is out of resources");
	}

	/* First nobody finds it any more; then what runs ends, and those who wait are answered. */
	(void)unlinkat(dir_fd, socket_name, 0);
	(void)close(listen_fd);
	closep(&s.ready_fd); /* who started it may do so again */
	if (h.session) {
		(void)ply_session_end(h.session); /* its processes end with the keeper at last */
		pthread_mutex_lock(&h.lock);
		h.ended = true;
		while (h.users)
			pthread_cond_wait(&h.idle, &h.lock);
		pthread_mutex_unlock(&h.lock);
		ply_session_free(h.session);
	}
	ply_env_free(s.env);
	_exit(0); /* nobody asks */
}

/* ---- start ---- */

/* The listening socket, under the directory's lock. */
static int listen_at(const struct cmd *c, int dir, const char *sock_name, const char *name,
		     int *ret)
{
	struct sockaddr_un a = host_address(dir, sock_name);
	_cleanup_close_ int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	mode_t mask = umask(0177);
	int r = sock < 0 ? -1 : bind(sock, (struct sockaddr *)&a, sizeof(a)), error = errno;

	(void)umask(mask);
	if (r < 0 && error == EADDRINUSE)
		return cmd_fail(c, "there is a session '%s' in this view already", name);
	if (r < 0)
		return cmd_fail(c, "making the session's socket: %s", strerror(error));
	if (listen(sock, BACKLOG) < 0) {
		(void)unlinkat(dir, sock_name, 0);
		return cmd_fail(c, "making the session's socket: %s", strerror(errno));
	}
	*ret = TAKE_FD(sock);
	return DONE;
}

int verb_session_start(struct cmd *c)
{
	_cleanup_(place_release) struct place place = { 0 };
	_cleanup_close_ int dir = -1, sock = -1, other = -1, in_fd = -1;
	char name[SESSION_NAME_MAX], said[1024];
	const char *in = NULL;
	const struct option_def defs[] = { { .name = "in", .text = &in } };
	size_t len = 0;
	int p[2];
	int r = cmd_parse(c, defs, ARRAY_SIZE(defs), 0, 1, 1);

	if (r == DONE)
		r = name_check(c, c->args.v[0]);
	if (r == DONE)
		r = place_find(c, in, &place);
	if (r == DONE)
		r = host_directory(c, &dir);
	if (r)
		return r;
	host_socket_name(place.mount, c->args.v[0], name);
	if (host_reach(dir, name, &other) == 0) /* and removes what a killed one left */
		return cmd_fail(c, "there is a session '%s' in this view already", c->args.v[0]);
	(void)flock(dir, LOCK_EX); /* a second one that is started at once is met by bind */
	r = listen_at(c, dir, name, c->args.v[0], &sock);
	(void)flock(dir, LOCK_UN);
	if (r)
		return r;

	if (pipe2(p, O_CLOEXEC) < 0) {
		(void)unlinkat(dir, name, 0);
		return cmd_fail(c, "a pipe: %s", strerror(errno));
	}
	in_fd = p[0];
	switch (fork()) {
	case -1:
		(void)unlinkat(dir, name, 0);
		(void)close(p[1]);
		return cmd_fail(c, "fork: %s", strerror(errno));
	case 0:
		(void)close(p[0]);
		host_main(c, &place, c->args.v[0], TAKE_FD(sock), TAKE_FD(dir), name, p[1]);
	}
	(void)close(p[1]);
	for (ssize_t n; (n = read(in_fd, said + len, sizeof(said) - 1 - len)) != 0;) {
		if (n < 0 && errno != EINTR)
			break;
		len += n > 0 ? (size_t)n : 0;
	}
	said[len] = 0;
	if (strcmp(said, "ready") == 0)
		return DONE;
	return len ? cmd_fail(c, "%s", said) : FAILED; /* else it has said so itself */
}
