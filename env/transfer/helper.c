/* SPDX-License-Identifier: Apache-2.0 */

/* See helper.h. */

#include "env/transfer/helper.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

/*
 * In PLYFS_LIBEXEC if it is there (another program may be, for which that was set), else beside the
 * program that we are (plyfsd), or where the build has it. -EACCES, and path its directory: we may
 * not go there (root started us for another user's store).
 */
static int find(const char *name, char path[static PATH_MAX])
{
	static const char *const places[] = { "", "../env/formats/" };
	const char *named = secure_getenv("PLYFS_LIBEXEC");
	char self[PATH_MAX];
	ssize_t n;

	if (named && *named && snprintf(path, PATH_MAX, "%s/%s", named, name) < PATH_MAX &&
	    access(path, X_OK) == 0)
		return 0;
	n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	if (n < 0)
		return -errno;
	self[n] = '\0';
	*strrchr(self, '/') = '\0'; /* it is absolute */
	for (size_t i = 0; i < ARRAY_SIZE(places); i++) {
		if (snprintf(path, PATH_MAX, "%s/%s%s", self, places[i], name) >= PATH_MAX)
			return -ENAMETOOLONG;
		if (access(path, X_OK) == 0)
			return 0;
		if (errno == EACCES) {
			strcpy(path, self);
			return -EACCES;
		}
	}
	return -ENOENT;
}

/* Ours may have numbers that the program's are to get: both are moved out of the way first. */
static int spawn(struct helper *h, const char *path, char *const argv[], int sock, int fd)
{
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attr;
	sigset_t none, all;
	int r;

	r = posix_spawn_file_actions_init(&actions);
	if (r)
		return -r;
	r = posix_spawnattr_init(&attr);
	if (r) {
		posix_spawn_file_actions_destroy(&actions);
		return -r;
	}
	sigemptyset(&none);
	sigfillset(&all);
	r = posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
	r = r ?: posix_spawn_file_actions_adddup2(&actions, sock, CHAN_SOCKET_FD);
	if (fd >= 0)
		r = r ?: posix_spawn_file_actions_adddup2(&actions, fd, CHAN_ARCHIVE_FD);
	r = r ?: posix_spawnattr_setsigmask(&attr, &none);
	r = r ?: posix_spawnattr_setsigdefault(&attr, &all);
	r = r ?: posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	r = r ?: posix_spawn(&h->pid, path, &actions, &attr, argv, environ);
	if (r)
		h->pid = 0;
	posix_spawnattr_destroy(&attr);
	posix_spawn_file_actions_destroy(&actions);
	return -r;
}

static int look(void *arg)
{
	return talk_cancelled(arg);
}

static int hear_hello(struct helper *h)
{
	struct record rec;
	char version[64];
	int r = helper_get(h, &rec);

	if (r < 0)
		return r;
	if (rec.kind != REC_HELLO)
		return helper_confused(h);
	record_text(&rec, version, sizeof(version));
	if (strcmp(version, PLYFS_VERSION) != 0)
		return talk_fail(h->talk, -EPROTO,
				 "%s is of version %s, this plyfsd of %s: 'plyfs daemon --replace' "
				 "starts the new one",
				 h->name, version, PLYFS_VERSION);
	return 0;
}

int helper_start(struct helper *h, struct talk *talk, char *const argv[], int fd)
{
	_cleanup_close_ int theirs = -1, moved = -1;
	int pair[2], r;
	char path[PATH_MAX];

	*h = (struct helper){
		.chan = { .fd = -1, .look = look, .arg = talk },
		.talk = talk,
		.name = argv[0],
	};
	r = find(argv[0], path);
	if (r == -EACCES)
		return talk_fail(talk, r,
				 "user %u cannot reach %s in '%s': install plyfs where all may go",
				 (unsigned)geteuid(), argv[0], path);
	if (r < 0)
		return talk_fail(talk, r,
				 "the program %s, which belongs beside plyfsd: install plyfs anew, "
				 "or name its directory in PLYFS_LIBEXEC",
				 argv[0]);
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
		return talk_fail(talk, -errno, "a socket for %s", argv[0]);
	h->chan.fd = pair[0];
	theirs = fcntl(pair[1], F_DUPFD_CLOEXEC, CHAN_FDS_END);
	r = theirs < 0 ? -errno : 0;
	(void)close(pair[1]);
	if (r == 0 && fd >= 0) {
		moved = fcntl(fd, F_DUPFD_CLOEXEC, CHAN_FDS_END);
		r = moved < 0 ? -errno : 0;
	}
	if (r == 0)
		r = spawn(h, path, argv, theirs, moved);
	if (r < 0)
		return talk_fail(talk, r, "starting %s", argv[0]);
	closep(&theirs);
	theirs = -1; /* so that its end is seen */
	return hear_hello(h);
}

/* It may just be compressing a piece, on a busy machine; who asked is gone, or has failed. */
#define LEAVE_MS 1000

void helper_leave(struct helper *h)
{
	if (!h->name)
		return;
	closep(&h->chan.fd);
	h->chan.fd = -1;
	for (int ms = 0; h->pid > 0 && ms < LEAVE_MS; ms++) {
		if (waitpid(h->pid, NULL, WNOHANG) == h->pid)
			h->pid = 0;
		else
			(void)nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
}

void helper_release(struct helper *h)
{
	if (!h->name)
		return;
	closep(&h->chan.fd);
	chan_release(&h->chan);
	if (h->pid > 0) {
		(void)kill(h->pid, SIGKILL); /* it is our child: nobody else has its number */
		while (waitpid(h->pid, NULL, 0) < 0 && errno == EINTR)
			;
	}
	*h = (struct helper){ 0 };
}

/* It has closed its end without a last word. */
static int gone(struct helper *h)
{
	int status = 0;
	pid_t pid = 0;

	if (h->pid > 0) {
		(void)kill(h->pid, SIGKILL); /* if it lives: without its socket it is of no use */
		do
			pid = waitpid(h->pid, &status, 0);
		while (pid < 0 && errno == EINTR);
		h->pid = 0;
	}
	if (pid > 0 && WIFSIGNALED(status))
		return talk_fail(h->talk, -EIO, "%s was ended by signal %d (%s)", h->name,
				 WTERMSIG(status), strsignal(WTERMSIG(status)));
	return talk_fail(h->talk, -EIO, "%s ended with exit code %d; the daemon's log may say why",
			 h->name, pid > 0 ? WEXITSTATUS(status) : -1);
}

static int failed(struct helper *h, const struct record *rec)
{
	_cleanup_free_ char *text = NULL;
	int r = record_failed(rec, &text);

	return text ? talk_fail(h->talk, r, "%s", text) : r;
}

int helper_confused(struct helper *h)
{
	return talk_fail(h->talk, -EPROTO, "%s said what makes no sense", h->name);
}

int helper_get(struct helper *h, struct record *ret)
{
	for (;;) {
		int r = chan_get(&h->chan, ret);

		if (r == -EPROTO)
			return helper_confused(h);
		if (r < 0)
			return r == -ERR_CANCELLED ? r : talk_fail(h->talk, r, "from %s", h->name);
		if (r == END)
			return gone(h);
		if (ret->kind == REC_FAILED)
			return failed(h, ret);
		if (ret->kind != REC_SKIP)
			return 0;
		talk_skip(h->talk, "%.*s", (int)ret->len, (const char *)ret->data);
		r = talk_cancelled(h->talk); /* as long as it has more to say, nothing waits */
		if (r < 0)
			return r;
	}
}

int helper_refused(struct helper *h, int r)
{
	struct record rec;
	int why;

	if (r != -EPIPE)
		return r == -ERR_CANCELLED ? r : talk_fail(h->talk, r, "to %s", h->name);
	why = helper_get(h, &rec);
	return why < 0 ? why : helper_confused(h);
}
