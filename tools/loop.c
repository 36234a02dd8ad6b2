/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The daemon's main loop: takes clients from the socket, runs each one's verb in a thread of its
 * own, cancels those whose clients are gone, and ends at a signal or when nobody wants anything.
 * daemon.c has the invariants: D2 and D4 are kept here.
 */

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <time.h>

#include "store/base/err.h"
#include "store/base/util.h"
#include "tools/daemon.h"
#include "tools/log.h"
#include "tools/stream.h"
#include "tools/wire.h"
#include "tools/verbs.h"

/* A client that got a hello sends its request at once. */
#define REQUEST_SECONDS 30
/* Verbs at work when the daemon is told to end are cancelled, and have this long. */
#define VERBS_END_MS 5000

struct conn {
	struct daemon *daemon;
	struct conn *next;
	int sock;
	pthread_t thread;
	_Atomic bool done; /* the thread has nothing left to do but return */
	struct cmd cmd;
};

/* Closing alone does not end its events while another process has the socket, too. */
static void close_conn(struct loop *l, struct conn *c)
{
	(void)epoll_ctl(l->epoll_fd, EPOLL_CTL_DEL, c->sock, NULL); /* it may be out already */
	closep(&c->sock);
	free(c);
}

void daemon_wake(struct daemon *d)
{
	uint64_t one = 1;

	if (write(d->wake_fd, &one, sizeof(one)) < 0)
		return; /* the counter is full: it is awake already */
}

bool daemon_may(const struct daemon *d, uid_t uid)
{
	return uid == 0 || uid == d->owner;
}

/* ---- one client ---- */

static const char *env_of(const struct wire_request *q, const char *name)
{
	size_t n = strlen(name);

	for (int i = 0; i < q->n_env; i++)
		if (strncmp(q->env[i], name, n) == 0 && q->env[i][n] == '=')
			return q->env[i] + n + 1;
	return NULL;
}

/* As a progress bar wants it: other terminals, an editor's as a rule, show what it sends. */
static bool clears_lines(const char *term)
{
	return term && *term && strcmp(term, "dumb") != 0;
}

/* Answers a connection's hello; false when it is refused. */
static bool greet(struct daemon *d, int sock)
{
	struct wire_answer a = { .version = WIRE_VERSION, .pid = getpid() };
	socklen_t len = sizeof(struct ucred);
	struct ucred peer;

	snprintf(a.text, sizeof(a.text), "%s", PLYFS_VERSION);
	if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0 ||
	    !daemon_may(d, peer.uid)) {
		a.status = CMD_FAILED;
		snprintf(a.text, sizeof(a.text),
			 "only root and the owner of the store '%s' may use it", d->store_path);
	}
	return wire_send_answer(sock, &a) == 0 && a.status == 0;
}

static void *conn_main(void *arg)
{
	struct conn *conn = arg;
	struct daemon *d = conn->daemon;
	struct wire_request q = { .fd = { -1, -1, -1, -1, -1 } };
	struct wire_answer a = { .version = WIRE_VERSION, .pid = getpid() };
	struct timeval wait = { .tv_sec = REQUEST_SECONDS };
	struct cmd *c = &conn->cmd;
	const struct verb_text *called;
	int r;

	(void)setsockopt(conn->sock, SOL_SOCKET, SO_RCVTIMEO, &wait,
			 sizeof(wait)); /* else: waits */
	if (!greet(d, conn->sock))
		goto out;
	r = wire_recv_request(conn->sock, &q);
	if (r == -EMFILE) {
		a.status = CMD_FAILED;
		snprintf(a.text, sizeof(a.text), "the daemon: %s; see ulimit -n", err_str(r));
		(void)wire_send_answer(conn->sock, &a);
	}
	if (r != 0)
		goto out;

	c->daemon = d;
	c->store = d->store;
	c->argc = q.argc;
	c->argv = q.argv;
	called = verb_find(env_of(&q, "VERB") ?: "");
	c->called = called ? called->name : c->argv[0];
	c->in_fd = q.fd[WIRE_IN];
	c->out_fd = q.fd[WIRE_OUT];
	c->cwd_fd = q.fd[WIRE_CWD];
	c->fuse_fd = TAKE_FD(q.fd[WIRE_FUSE]);
	c->branch = q.branch;
	c->snapshot = q.snapshot;
	c->umask = env_of(&q, "UMASK") ? strtoul(env_of(&q, "UMASK"), NULL, 8) & 0777 : 0077;
	c->columns = stream_columns(env_of(&q, "COLUMNS"), q.fd[WIRE_OUT], q.fd[WIRE_ERR]);
	c->out_tty = q.fd[WIRE_OUT] >= 0 && isatty(q.fd[WIRE_OUT]);
	c->draws = q.fd[WIRE_ERR] >= 0 && isatty(q.fd[WIRE_ERR]) &&
		   clears_lines(env_of(&q, "TERM"));
	c->out = stream_to_fd(q.fd[WIRE_OUT], &c->unread, &c->cancel);
	c->err = stream_to_fd(q.fd[WIRE_ERR], NULL, &c->cancel);
	if (c->out && c->err) {
		a.status = verb_run(c);
		if (!a.status)
			strcpy(a.text, c->restored);
	} else {
		if (c->out)
			(void)fclose(c->out); /* nothing is in it */
		if (c->err)
			(void)fclose(c->err);
		a.status = CMD_FAILED;
		snprintf(a.text, sizeof(a.text), "%s", err_str(-ENOMEM));
	}
	closep(&c->fuse_fd); /* when the verb did not take it */

	/* What is the client's is closed before it hears that we are done: it may unmount next. */
	wire_request_release(&q);
	(void)wire_send_answer(conn->sock, &a); /* a client that is gone needs none */
out:
	wire_request_release(&q);
	atomic_store(&conn->done, true);
	daemon_wake(d);
	return NULL;
}

/* ---- the loop ---- */

/* Who had us started is on the way here, however short we are to be idle. */
#define FIRST_MS 1000

/* What epoll says an event is about; connections are the pointers beyond these. */
enum { EVENT_LISTEN, EVENT_SIGNAL, EVENT_WAKE, EVENT_LAST };

static int watch(struct loop *l, int fd, uint32_t events, uint64_t what)
{
	struct epoll_event e = { .events = events, .data.u64 = what };

	return epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, fd, &e) < 0 ? -errno : 0;
}

int loop_open(struct loop *l)
{
	sigset_t set;
	int r;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	l->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	l->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (l->signal_fd < 0 || l->epoll_fd < 0)
		return -errno;
	r = l->listen_fd < 0 ? 0 : watch(l, l->listen_fd, EPOLLIN, EVENT_LISTEN);
	if (r == 0)
		r = watch(l, l->signal_fd, EPOLLIN, EVENT_SIGNAL);
	if (r == 0)
		r = watch(l, l->daemon->wake_fd, EPOLLIN, EVENT_WAKE);
	return r;
}

static void take_client(struct loop *l)
{
	struct conn *conn;
	int sock, r;

	sock = accept4(l->listen_fd, NULL, NULL, SOCK_CLOEXEC);
	if (sock < 0) { /* it went away, or no descriptors: the next event tries again */
		if (errno == EMFILE || errno == ENFILE) /* and that is there at once */
			(void)nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
		return;
	}
	l->met = true;
	conn = calloc(1, sizeof(*conn));
	if (!conn) {
		closep(&sock);
		return;
	}
	conn->daemon = l->daemon;
	conn->sock = sock;
	r = pthread_create(&conn->thread, NULL, conn_main, conn);
	if (r) {
		daemon_log("warning: no thread for a client: %s, refusing it", strerror(r));
		close_conn(l, conn);
		return;
	}
	conn->next = l->conns;
	l->conns = conn;
	/* Only its hang-up is our affair: a verb whose client is gone is cancelled. */
	(void)watch(l, sock, EPOLLRDHUP, (uint64_t)(uintptr_t)conn);
}

static void reap(struct loop *l)
{
	for (struct conn **p = &l->conns; *p;) {
		struct conn *conn = *p;

		if (!atomic_load(&conn->done)) {
			p = &conn->next;
			continue;
		}
		*p = conn->next;
		pthread_join(conn->thread, NULL);
		close_conn(l, conn);
	}
}

static void cancel(struct loop *l, struct conn *conn)
{
	__atomic_store_n(&conn->cmd.cancel, true, __ATOMIC_RELAXED);
	(void)epoll_ctl(l->epoll_fd, EPOLL_CTL_DEL, conn->sock, NULL); /* once is enough */
}

static void read_signal(struct loop *l)
{
	struct signalfd_siginfo s;

	if (read(l->signal_fd, &s, sizeof(s)) != sizeof(s))
		return;
	daemon_log("got %s, ending", s.ssi_signo == SIGINT ? "SIGINT" : "SIGTERM");
	l->told = true;
}

/* There was no room for a socket. */
static void listen_now(struct loop *l)
{
	if (daemon_listen(l->daemon, &l->listen_fd) < 0)
		return;
	if (watch(l, l->listen_fd, EPOLLIN, EVENT_LISTEN) < 0) { /* as rare as it is: once more */
		closep(&l->listen_fd);
		l->listen_fd = -1;
		return;
	}
	daemon_log("listening on '%s/sock'", l->daemon->store_path);
}

static int64_t now_ms(void)
{
	return (int64_t)(now_ns() / 1000000);
}

void loop_run(struct loop *l)
{
	int64_t idle_since = -1;

	while (!l->told) {
		struct epoll_event events[16];
		unsigned calls = calls_expire(l->daemon, false);
		bool busy = l->conns || calls || views_count(l->daemon);
		int n, wait = -1;

		/* who comes now waits for the next daemon (D2) */
		if (atomic_load(&l->daemon->end_soon) || atomic_load(&l->daemon->replaced)) {
			(void)epoll_ctl(l->epoll_fd, EPOLL_CTL_DEL, l->listen_fd, NULL);
			if (!l->conns)
				return;
		}

		if (busy) {
			idle_since = -1;
			wait = calls || l->listen_fd < 0 ? 1000 : -1; /* calls expire by time */
		} else {
			if (idle_since < 0)
				idle_since = now_ms();
			wait = (int)(idle_since - now_ms()) +
			       (l->met ? l->idle_ms : MAX(l->idle_ms, FIRST_MS));
			if (wait <= 0)
				return;
		}

		n = epoll_wait(l->epoll_fd, events, ARRAY_SIZE(events), wait);
		for (int i = 0; i < n; i++) {
			uint64_t drop;

			if (events[i].data.u64 == EVENT_LISTEN)
				take_client(l);
			else if (events[i].data.u64 == EVENT_SIGNAL)
				read_signal(l);
			else if (events[i].data.u64 != EVENT_WAKE)
				cancel(l, (struct conn *)(uintptr_t)events[i].data.u64);
			else if (read(l->daemon->wake_fd, &drop, sizeof(drop)) < 0)
				continue; /* spurious: nothing to reset */
		}
		reap(l);
		if (n == 0 && l->listen_fd < 0)
			listen_now(l);
	}
}

bool loop_end(struct loop *l)
{
	for (struct conn *c = l->conns; c; c = c->next)
		cancel(l, c);
	for (int ms = 0; ms < VERBS_END_MS; ms += 10) {
		reap(l);
		if (calls_expire(l->daemon, true) == 0 && !l->conns)
			return true;
		(void)nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
	}
	return false;
}
