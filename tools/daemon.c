/* SPDX-License-Identifier: Apache-2.0 */

/*
 * plyfsd: opens a store, listens on STORE/sock, runs each client's verb in a thread of its own
 * (loop.c), serves views, and ends by itself when nobody wants anything for a second.
 *
 * INVARIANTS
 *
 *  D1 Only the process that has the store's lock touches STORE/sock: its own takes the place of a
 *     dead daemon's, and it removes its own before it lets the lock go.
 *  D2 A client that got a hello is served to its answer, unless the daemon dies. Clients that still
 *     wait in the queue when the daemon ends get no hello, and try again with a new daemon.
 *  D3 The daemon is a child of the supervisor (supervisor.h), forked before there were threads and
 *     descriptors of the store, its lock aside.
 *  D4 The main thread never waits for a store, a view or a client: it can always take a signal.
 *
 * Who starts a daemon while another one is just beginning or ending finds the store locked; it
 * waits until somebody listens (then that one serves) or the lock is free (then it serves).
 *
 * Started by root for another user's store, the daemon becomes that user; the supervisor stays root
 * and can take the mounts down.
 *
 * When the daemon dies, the next one finds the views of the former one in the supervisor's table
 * and goes on with them before it listens. Meanwhile the dead one's socket is there and nobody
 * listens: clients wait.
 */

#include "tools/bus.h"
#include "tools/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <malloc.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>

#include "env/json_memory.h"
#include "fs/memo.h"
#include "store/base/err.h"
#include "store/base/fdlimit.h"
#include "store/base/os.h"
#include "store/base/util.h"
#include "store/base/words.h"
#include "store/chunk.h"
#include "store/copy.h"
#include "tools/log.h"
#include "tools/memory.h"
#include "tools/owner.h"
#include "tools/salvage.h"

/* Spare reader threads: each may be inside a slow read or a restore while others serve. */
#define SPARE_READERS 16

static void on_note(void *arg, const char *line)
{
	daemon_log("%s", line);
}

static int ready_fd = -1;
static bool successor; /* a daemon died before us: nobody waits for our words, but the log */

/* The one line that the client prints, or the terminal of who started us by hand. */
static void start_failed(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void start_failed(const char *fmt, ...)
{
	char line[PATH_MAX + 512];
	va_list ap;
	int n;

	va_start(ap, fmt);
	(void)vsnprintf(line, sizeof(line) - 1, fmt, ap);
	va_end(ap);
	n = (int)strlen(line_clean(line)); /* the client takes one line */
	if (successor) {
		daemon_log("error: %s", line);
		return;
	}
	line[n++] = '\n';
	if (ready_fd < 0)
		(void)!write(2, "plyfsd: ", 8); /* a terminal that is gone has no reader */
	(void)!write(ready_fd >= 0 ? ready_fd : 2, line, (size_t)n);
}

static void tell_ready(void)
{
	if (ready_fd < 0)
		return;
	(void)!write(ready_fd, "ready\n", 6); /* the client may have been killed */
	closep(&ready_fd);
	ready_fd = -1;
}

static void socket_address(int dir_fd, const char *suffix, struct sockaddr_un *ret)
{
	*ret = (struct sockaddr_un){ .sun_family = AF_UNIX };
	snprintf(ret->sun_path, sizeof(ret->sun_path), "/proc/self/fd/%d/sock%s", dir_fd,
		 suffix);
}

static bool somebody_listens(int dir_fd)
{
	_cleanup_close_ int sock =
		socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct sockaddr_un a;

	socket_address(dir_fd, "", &a);
	return sock >= 0 &&
	       (connect(sock, (struct sockaddr *)&a, sizeof(a)) == 0 || errno == EAGAIN);
}

/* 0: the store is ours; EXISTS: another daemon serves it and listens. */
static int lock_store(struct daemon *d)
{
	for (int ms = 0;; ms += BUSY_STEP_MS) {
		int r = owner_begin(d->dir_fd);

		if (r == 0)
			r = store_lock(d->dir_fd, &d->options.lock_fd);
		owner_end();
		if (r != -ERR_STORE_BUSY)
			return r;
		if (somebody_listens(d->dir_fd))
			return EXISTS;
		if (ms >= BUSY_WAIT_MS)
			return r;
		(void)nanosleep(&(struct timespec){ .tv_nsec = BUSY_STEP_MS * 1000000L }, NULL);
	}
}

/*
 * D1: we have the lock. Under its name only when somebody listens: clients that find no socket take
 * it that there is no daemon, while a dead one's socket makes them wait for the next.
 */
int daemon_listen(struct daemon *d, int *ret_fd)
{
	_cleanup_close_ int sock =
		socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct sockaddr_un a;

	if (sock < 0)
		return -errno;
	if (unlinkat(d->dir_fd, "sock.new", 0) < 0 && errno != ENOENT)
		return -errno;
	socket_address(d->dir_fd, ".new", &a);
	if (bind(sock, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(sock, 128) < 0 ||
	    renameat(d->dir_fd, "sock.new", d->dir_fd, "sock") < 0)
		return -errno;
	*ret_fd = TAKE_FD(sock);
	return 0;
}

/* Why a store cannot be opened that will be the same at the next try. */
static bool is_hopeless(int r)
{
	switch (-r) {
	case ERR_INDEX_BROKEN:
	case ERR_INDEX_DAMAGED:
	case ERR_FORMAT_DAMAGED:
	case ERR_FORMAT_NEWER:
	case ERR_FORMAT_OLDER:
		return true;
	default:
		return false;
	}
}

/* What to do, as the end of a sentence: about what lift_limits() may not have lifted, above all. */
static const char *advice(int r)
{
	switch (-r) {
	case EROFS: /* locks, journal, commits: there is no daemon that only reads */
		return "; even reading a store writes to it: copy it to another disk, or mount an "
		       "overlayfs above it";
	case ERR_STORE_BUSY: /* who waited for it found no socket (begin), or it was removed */
		return "; it does not listen: make room if its disk is full, else end it (its pid "
		       "is in daemon.log)";
	case ENODEV: /* of mmap(2): some FUSE and network filesystems */
		return "; it cannot be mapped there: a store wants another kind of filesystem";
	case ENOMEM:
		return "; see ulimit -v";
	case EFBIG:
		return "; see ulimit -f";
	case EMFILE:
		return "; see ulimit -n";
	case EAGAIN: /* for a thread: of their number, or of the memory for their stacks */
		return "; see ulimit -u and -d, and pids.max of its cgroup";
	default:
		return "";
	}
}

static void open_failed(const struct daemon *d, int r)
{
	const char *file = os_failed_file(d->store_path, r);

	start_failed("opening store '%s': %s%s%s%s", d->store_path, file ? file : "",
		     file ? ": " : "", err_str(r), advice(r));
}

/* Returns the exit code. */
static int open_store(struct daemon *d)
{
	int r;

	if (ready_fd >= 0 || successor)
		(void)log_open(d->dir_fd, false); /* for what opening has to note */
	os_failed_forget();
	r = views_find_formers(d);
	if (r == 0)
		r = store_open_with(d->dir_fd, &d->options, &d->noter, &d->store);
	if (r < 0) {
		open_failed(d, r);
		views_leave_formers(d);
		return successor && is_hopeless(r) ? SUPERVISED_HOPELESS : 1;
	}
	return 0;
}

static void resume_views(struct daemon *d)
{
	unsigned n;
	int r = views_resume(d);

	if (r < 0) {
		start_failed("going on with the views: %s", err_str(r));
		_exit(1); /* as if we were killed: the next one finds all as it was */
	}
	snap_drop_loose_ones(d->store);
	n = views_count(d);
	if (!n)
		copies_remove(d->store, true); /* W2 */
	else if (successor)
		daemon_log("plyfsd, pid %d, goes on with %u view%s", (int)getpid(), n,
			   plural(n));
}

/* From an open store to a socket that clients find; < 0: the reason is told. */
static int begin(struct daemon *d, struct loop *l)
{
	int r = log_open(d->dir_fd, true);

	if (r < 0) {
		start_failed("opening '%s/daemon.log': %s%s", d->store_path, err_str(r), advice(r));
		return r;
	}
	r = readers_new_for(SPARE_READERS, store_stage(d->store), &d->readers);
	if (r < 0) {
		start_failed("starting readers: %s%s", err_str(r), advice(r));
		return r;
	}
	chunks_set_io_hook(store_chunks(d->store), readers_will_block);
	d->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); /* a view may end at once */
	if (d->wake_fd < 0) {
		r = -errno;
		start_failed("an eventfd: %s%s", err_str(r), advice(r));
		return r;
	}
	resume_views(d);
	r = daemon_listen(d, &l->listen_fd);
	if ((r == -ENOSPC || r == -EDQUOT) && views_count(d)) {
		/* A full xfs makes no file at all. Who works in the views needs no socket. */
		daemon_log("listening on '%s/sock': %s, trying again each second", d->store_path,
			   err_str(r));
		r = 0;
	}
	if (r == 0)
		r = loop_open(l);
	if (r < 0)
		start_failed("listening on '%s/sock': %s%s", d->store_path, err_str(r), advice(r));
	return r;
}

/* What could not begin ends. Returns the exit code. */
static int give_up(struct daemon *d)
{
	if (views_count(d))
		_exit(1); /* views are served already: the next daemon goes on with them */
	views_leave_formers(d);
	if (d->readers)
		readers_free(d->readers);
	(void)store_close(d->store); /* nothing was changed */
	return 1;
}

/* As if we were killed, with less to be done again. Clients wait: see above. */
static _Noreturn void make_way(struct daemon *d)
{
	int r;

	daemon_log("pid %d ends for another program", (int)getpid());
	store_stop_gc(d->store);
	r = store_sync(d->store);
	if (r < 0)
		daemon_log("warning: the last commit failed: %s, ignoring", err_str(r));
	_exit(0);
}

/* D1, D2. Returns the exit code. */
static int end(struct daemon *d, struct loop *l)
{
	uint64_t began;
	bool all_over;
	int r;

	supervisor_stopping(d->supervisor);
	(void)unlinkat(d->dir_fd, "sock", 0); /* if it stays, the next daemon removes it */
	closep(&l->listen_fd);
	store_stop_gc(d->store); /* somebody in a view may be waiting for one */
	all_over = views_end_all(d);
	if (!loop_end(l) || !all_over) {
		/* What lives on would use a closed store. The supervisor takes off the mounts. */
		r = store_sync(d->store);
		daemon_log("ends although views or clients are busy%s%s", r < 0 ? ": " : "",
			   r < 0 ? err_str(r) : "");
		_exit(r < 0);
	}
	if (d->finishing)
		pthread_join(d->finisher, NULL);
	readers_free(d->readers);
	copies_remove(d->store, true); /* nobody shall have to wonder what they are */
	began = now_ns();
	r = store_close(d->store);
	if (r < 0)
		daemon_log("error: the last commit failed: %s", err_str(r));
	(void)flock(d->options.lock_fd, LOCK_UN); /* the supervisor is a moment behind */
	daemon_log("pid %d ends, closed in %" PRIu64 " ms", (int)getpid(),
		   (now_ns() - began) / 1000000);
	return r < 0;
}

static int serve(struct daemon *d, int idle_ms)
{
	struct loop l = {
		.daemon = d, .epoll_fd = -1, .listen_fd = -1, .signal_fd = -1, .idle_ms = idle_ms
	};
	int r = open_store(d);

	if (r)
		return r;
	if (begin(d, &l) < 0)
		return give_up(d);

	daemon_log("plyfsd %s serves '%s', pid %d", PLYFS_VERSION, d->store_path, (int)getpid());
	tell_ready();
	loop_run(&l);
	if (atomic_load(&d->replaced) && !l.told)
		make_way(d);
	return end(d, &l);
}

static void init_failed(const char *path, int r)
{
	_cleanup_free_ char *top = realpath(path, NULL);
	const char *file = top ? os_failed_file(top, r) : NULL;

	start_failed("'%s': %s%s%s%s", path, file ? file : "", file ? ": " : "", err_str(r),
		     advice(r));
}

static int init_store(const char *path)
{
	_cleanup_close_ int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct stat st;
	int r;

	if (fd < 0 || fstat(fd, &st) < 0) {
		start_failed("'%s': %s", path, strerror(errno));
		return 1;
	}
	r = become_owner(&st);
	if (r == 0)
		r = store_init(fd);
	if (r == -ENOTEMPTY)
		start_failed("'%s' is not empty; a store wants a directory of its own", path);
	else if (r == -ERR_STORE_BUSY)
		start_failed("'%s': another process is making a store there", path);
	else if (r < 0)
		init_failed(path, r);
	else
		tell_ready();
	return r < 0;
}

/* Signals that end us arrive at the signalfd, in whatever thread the kernel would have chosen. */
static void block_signals(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigprocmask(SIG_BLOCK, &set, NULL);
	(void)signal(SIGPIPE, SIG_IGN); /* a client's pipe that closes is a failed write */
	(void)signal(SIGHUP, SIG_IGN);	/* the terminal of who started us is not ours */
}

/* table_fd: of views that are adopted with it; or none (no int). */
static int find_store(struct daemon *d, const char *path, uint64_t table_fd, struct stat *ret)
{
	free(d->store_path);
	closep(&d->dir_fd);
	d->dir_fd = -1;
	d->store_path = realpath(path, NULL);
	if (!d->store_path)
		return -errno;
	d->dir_fd = open(d->store_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (d->dir_fd < 0 || fstat(d->dir_fd, ret) < 0)
		return -errno;
	if (table_fd > INT_MAX)
		return 0;
	errno = EPROTO; /* else why it could not be mapped */
	d->supervisor = supervisor_adopt((int)table_fd);
	return d->supervisor ? 0 : -errno;
}

/* A day at most, so that it fits an int. */
static unsigned to_ms(double seconds)
{
	return (unsigned)(MIN(seconds, 86400) * 1000);
}

/* What a command line asks for. */
struct wishes {
	const char *path, *init, *salvage;
	uint64_t ready_fd, adopt; /* UINT64_MAX: none */
	double idle, commit;      /* seconds */
	uint64_t node_mib;
	bool version, help, json, if_broken, adopts;
};

static int parse(int argc, char **argv, struct wishes *w)
{
	const struct option_def defs[] = {
		{ .name = "store", .text = &w->path },
		{ .name = "init", .text = &w->init },
		{ .name = "ready-fd", .number = &w->ready_fd },
		{ .name = "idle", .seconds = &w->idle },
		{ .name = "commit-interval", .seconds = &w->commit },
		{ .name = "node-memory", .number = &w->node_mib },
		{ .name = "version", .flag = &w->version },
		{ .name = "help", .flag = &w->help },
		{ .name = "salvage", .text = &w->salvage },
		{ .name = "json", .flag = &w->json },
		{ .name = "if-broken", .flag = &w->if_broken },
		/* for supervisor_replace, and for whoever wants to know whether it can be */
		{ .name = "adopt", .number = &w->adopt },
		{ .name = "adopts", .flag = &w->adopts },
	};
	struct arguments args;
	char why[200];

	if (options_parse(argc, argv, defs, ARRAY_SIZE(defs), 0, &args, why, sizeof(why)) == 0 &&
	    !args.n)
		return 0;
	fprintf(stderr, "plyfsd: %s\n", args.n ? "takes no arguments" : why);
	return -1;
}

/* The environment counts over the command line, which is the client's as a rule. */
static int read_environment(struct wishes *w)
{
	const struct {
		const char *variable;
		struct option_def def;
	} may[] = {
		{ "PLYFSD_IDLE", { .name = "idle", .seconds = &w->idle } },
		{ "PLYFSD_COMMIT_INTERVAL", { .name = "commit-interval", .seconds = &w->commit } },
		{ "PLYFSD_NODE_MEMORY", { .name = "node-memory", .number = &w->node_mib } },
	};
	char why[200];

	for (size_t i = 0; i < ARRAY_SIZE(may); i++) {
		const char *value = getenv(may[i].variable);

		if (value && option_set(&may[i].def, value, why, sizeof(why)) < 0) {
			start_failed("%s: %s", may[i].variable, why);
			return -1;
		}
	}
	return 0;
}

/* Away from the client's session and descriptors; 0 to 2 are /dev/null already. */
static void leave_client(void)
{
	(void)setsid();
	if (ready_fd > 3)
		(void)close_range(3, (unsigned)ready_fd - 1, 0);
	(void)close_range((unsigned)ready_fd + 1, ~0U, 0);
}

/* 0: it is ours, alone, and under a supervisor. EXISTS: another daemon has it, and may serve. */
static int take_store(struct daemon *d)
{
	struct supervised what;
	int r;

	if (d->supervisor) {
		d->options.lock_fd = supervisor_lock_fd(d->supervisor);
	} else {
		r = lock_store(d);
		if (r == EXISTS && ready_fd >= 0)
			return EXISTS;
		if (r == EXISTS) {
			start_failed("opening store '%s': a daemon serves it already",
				     d->store_path);
			return -ERR_STORE_BUSY;
		}
		if (r) {
			open_failed(d, r);
			return r;
		}
		d->supervisor = supervisor_new();
	}
	if (!d->supervisor) {
		r = -errno;
		start_failed("starting the supervisor: %s%s", strerror(-r), advice(r));
		return r;
	}
	what = (struct supervised){ .store = d->store_path,
				    .dir_fd = d->dir_fd,
				    .lock_fd = d->options.lock_fd,
				    .ready_fd = ready_fd };
	r = supervisor_fork(d->supervisor, &what);
	if (r < 0) {
		start_failed("starting the supervisor: %s%s", strerror(-r), advice(r));
		return r;
	}
	successor = r == EXISTS;
	if (successor)
		ready_fd = -1;
	return 0;
}

/* As run. */
static int find_and_serve(struct daemon *d, const struct wishes *w)
{
	struct rlimit files;
	struct stat st;
	int r;

	r = find_store(d, w->path, w->adopt, &st);
	for (int i = 0; r < 0 && w->adopt <= INT_MAX && i < SUPERVISOR_TRIES; i++) {
		supervisor_wait();
		r = find_store(d, w->path, w->adopt, &st);
	}
	if (r < 0) {
		start_failed("opening store '%s': %s%s", w->path, strerror(-r), advice(r));
		return 1;
	}
	(void)!chdir("/"); /* hold no directory */
	d->options = (struct store_options){
		.journal_off = getenv("PLYFSD_JOURNAL_OFF"),
		.commit_ms = to_ms(w->commit),
		.recovered = views_recovered,
		.arg = d,
		.node_budget = MIN(w->node_mib, UINT64_MAX >> 20) << 20,
	};

	d->owner = st.st_uid;
	(void)fdlimit_raise(&files); /* for the supervisor as well, which keeps two for each view */
	r = take_store(d);
	if (r == EXISTS)
		tell_ready();
	if (r)
		return r < 0;

	block_signals();
	json_memory_watch();
	d->first_call = d->last_call = now_ns(); /* nobody makes a call each ns */
	r = become_owner(&st);
	if (r < 0) {
		start_failed("becoming the owner of '%s': %s", d->store_path, strerror(-r));
		return 1;
	}

	return serve(d, (int)to_ms(w->idle));
}

/* Serves the store w->path until nobody wants it any more. Returns the exit code. */
static int run(const struct wishes *w)
{
	struct daemon d = { .dir_fd = -1,
			    .wake_fd = -1,
			    .lock = PTHREAD_MUTEX_INITIALIZER,
			    .changed = PTHREAD_COND_INITIALIZER,
			    .noter = { .fn = on_note } };
	int r = find_and_serve(&d, w);

	free(d.store_path);
	return r;
}

/*
 * How large it and its files and how long its work may be was said of the program that started us
 * (ulimit, harnesses of agents), whose client we outlive, and others work in our views. Root lifts
 * it; else a file that would be too large is a failed write, as a full disk, and not our end.
 */
static void lift_limits(void)
{
	static const int limits[] = { RLIMIT_AS, RLIMIT_CPU, RLIMIT_DATA, RLIMIT_FSIZE };

	for (size_t i = 0; i < ARRAY_SIZE(limits); i++) {
		struct rlimit l = { RLIM_INFINITY, RLIM_INFINITY };

		if (setrlimit(limits[i], &l) == 0 || getrlimit(limits[i], &l) < 0)
			continue;
		l.rlim_cur = l.rlim_max;
		(void)setrlimit(limits[i], &l); /* raising so far is always allowed */
	}
	(void)signal(SIGXFSZ, SIG_IGN);
}

/*
 * A container's limit holds us and whoever works in our views. Before a round of the sealer there
 * may be twice as many nodes as the budget has: a walk through 300,000 files in 128 MiB was seen
 * to take 58 with a quarter for the budget, and to be killed, again and again, with 256 MiB.
 */
#define SHARE_OF_MEMORY 4

int main(int argc, char **argv)
{
	struct wishes w = {
		.ready_fd = UINT64_MAX,
		.adopt = UINT64_MAX,
		.idle = 1,
		.commit = COMMIT_INTERVAL_MS / 1000.0,
		.node_mib = MIN(NODE_BUDGET, memory_limit() / SHARE_OF_MEMORY) >> 20,
	};

	if (parse(argc, argv, &w) < 0)
		return CMD_MISUSE;
	if (w.adopts) {
		printf("%d.%d\n", SUPERVISOR_VERSION, MEMO_VERSION);
		return 0;
	}
	if (w.help || (!w.path && !w.init && !w.salvage && !w.version)) {
		printf("usage: plyfsd --store STORE [--idle SECONDS] [--commit-interval SECONDS]\n"
		       "              [--node-memory MIB]\n"
		       "       plyfsd --init DIR\n"
		       "       plyfsd --salvage STORE [--if-broken] [--json]\n\n"
		       "The daemon of plyfs; 'plyfs' starts it when it is needed.\n");
		return w.help ? 0 : CMD_MISUSE;
	}
	if (w.version) {
		puts("plyfsd " PLYFS_VERSION);
		return 0;
	}

	if (w.ready_fd <= INT_MAX && fcntl((int)w.ready_fd, F_SETFD, FD_CLOEXEC) == 0)
		ready_fd = (int)w.ready_fd;
	bus_install();
	umask(0077); /* everything in a store is its owner's alone */
	lift_limits();
	/*
	 * Eight arenas a core, malloc's default, keep what one thread freed from all others: every
	 * view has threads of its own. Few threads allocate at any moment.
	 */
	(void)mallopt(M_ARENA_MAX, 4);
	if (w.init)
		return init_store(w.init);
	if (w.salvage)
		return salvage_main(w.salvage, w.if_broken, w.json);

	if (ready_fd >= 0)
		leave_client();
	return read_environment(&w) < 0 ? CMD_MISUSE : run(&w);
}
