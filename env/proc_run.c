/* SPDX-License-Identifier: Apache-2.0 */

/* proc_run: a command whose output is collected; see proc.h. */

#include "env/proc.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "env/own_fd.h"
#include "env/status.h"
#include "store/base/util.h"

#define EXIT_TIMEOUT 124 /* as timeout(1) */

/* Read at once: a pipe of the kernel's default size holds this much. */
#define CHUNK 65536

struct stream {
	int fd; /* ours; -1: at its end */
	struct ply_text text;
	size_t room;
	uint64_t limit; /* 0: none */
	bool truncated;
};

static void streams_release(struct stream (*streams)[2])
{
	for (struct stream *s = *streams; s < *streams + 2; s++) {
		closep(&s->fd);
		free(s->text.data);
	}
}

/* Reads once, at most `most` bytes, into the text, or nowhere past the limit; how many. */
static ssize_t stream_read(struct stream *s, size_t most)
{
	char nowhere[STACK_BUFFER];
	size_t left = s->limit ? s->limit - s->text.len : SIZE_MAX;
	ssize_t n;

	if (left && s->room - s->text.len <= MIN(left, CHUNK)) {
		/* Doubled: the whole is copied a constant number of times (mremap: none). */
		size_t room = MAX(s->room * 2, 2 * CHUNK);
		char *p = realloc(s->text.data, room);

		if (!p)
			return fail_memory();
		s->text.data = p;
		s->room = room;
	}
	do
		n = read(s->fd, left ? s->text.data + s->text.len : nowhere,
			 MIN(MIN(most, CHUNK), left ? left : sizeof(nowhere)));
	while (n < 0 && errno == EINTR);
	if (n < 0 && errno == EAGAIN)
		return 0;
	if (n <= 0) {
		closep(&s->fd);
		s->fd = -1;
		return n < 0 ? fail_errno(errno, "reading a command's output") : 0;
	}
	if (left)
		s->text.len += (size_t)n;
	else
		s->truncated = true;
	return n;
}

/*
 * What is in the pipe now, and no more: somebody in the background may write for ever. What the
 * command itself wrote is in it, since it has ended.
 */
static int stream_drain(struct stream *s)
{
	int left = 0;

	if (s->fd < 0 || ioctl(s->fd, FIONREAD, &left) < 0)
		return 0;
	while (left > 0 && s->fd >= 0) {
		ssize_t n = stream_read(s, (size_t)left);

		if (n <= 0)
			return (int)n;
		left -= (int)n;
	}
	return 0;
}

static int stream_finish(struct stream *s, struct ply_text *ret)
{
	char *p = realloc(s->text.data, s->text.len + 1);

	if (!p)
		return fail_memory();
	s->text.data = NULL;
	p[s->text.len] = '\0';
	*ret = (struct ply_text){ .data = p, .len = s->text.len };
	return 0;
}

/* A pipe: our end into *s, the command's into *ret. */
static int stream_open(struct stream *s, struct own_fd *ret)
{
	int r = own_fd_pipe(&s->fd, ret);

	if (r < 0)
		return fail_errno(-r, "a pipe");
	(void)fcntl(s->fd, F_SETFL, O_NONBLOCK); /* a fresh pipe: cannot fail */
	return 0;
}

/*
 * Input as a file that nobody can change any more: nothing has to be fed while it runs, and no
 * SIGPIPE comes when it does not read.
 */
int proc_input(const void *data, size_t len, int *ret)
{
	_cleanup_close_ int memfd = memfd_create("stdin", MFD_CLOEXEC);
	char path[40];
	int r;

	if (memfd < 0)
		return fail_errno(errno, "a command's input");
	r = write_all(memfd, data, len);
	if (r < 0)
		return fail_errno(-r, "a command's input");
	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", memfd);
	*ret = open(path, O_RDONLY | O_CLOEXEC);
	return *ret < 0 ? fail_errno(errno, "a command's input") : 0;
}

/*
 * Reads until the command has ended and, if all, so have the streams (0), the time is over
 * (PLY_TIMEOUT), or PLY_CANCELLED.
 */
static int collect(struct proc *p, struct stream streams[2], bool all, double end)
{
	while (!p->ended || (all && (streams[0].fd >= 0 || streams[1].fd >= 0))) {
		struct pollfd polls[] = { { .fd = p->ended ? -1 : p->fd, .events = POLLIN },
					  { .fd = streams[0].fd, .events = POLLIN },
					  { .fd = streams[1].fd, .events = POLLIN },
					  { .fd = cancel_fd(), .events = POLLIN } };
		double left = end > 0 ? MAX(end - now_seconds(), 0) : 0;
		int n = poll(polls, 4, end > 0 ? (int)MIN(left * 1000 + 0.999, 1e9) : -1);

		if (n < 0 && errno != EINTR)
			return fail_errno(errno, "waiting for a command");
		if (end > 0 && now_seconds() >= end)
			return PLY_TIMEOUT;
		if (n <= 0)
			continue;
		if (polls[3].revents)
			return fail(PLY_CANCELLED, "the command was cancelled");
		for (int i = 0; i < 2; i++) {
			ssize_t got = polls[i + 1].revents ? stream_read(&streams[i], CHUNK) : 0;

			if (got < 0)
				return (int)got;
		}
		if (polls[0].revents)
			(void)proc_wait(p, 0); /* sets p->ended */
	}
	return 0;
}

int proc_run(struct keeper *k, const struct proc_options *options, const struct proc_capture *c,
	     struct ply_result *ret)
{
	_cleanup_(streams_release) struct stream streams[2] = { { .fd = -1, .limit = c->limit },
								{ .fd = -1, .limit = c->limit } };
	_cleanup_own_fd_ struct own_fd out = OWN_FD_NONE, err = OWN_FD_NONE;
	_cleanup_close_ int in = -1;
	_cleanup_(proc_release) struct proc p = { 0 };
	_cleanup_(ply_result_free) struct ply_result result = { 0 };
	struct proc_options o = *options;
	double end = c->timeout > 0 ? now_seconds() + c->timeout : 0;
	int r;

	r = stream_open(&streams[0], &out);
	if (r == 0 && !c->merge)
		r = stream_open(&streams[1], &err);
	if (r == 0 && c->input)
		r = proc_input(c->input, c->input_len, &in);
	if (r < 0)
		return r;
	o.fds[0] = in;
	o.fds[1] = out.fd;
	o.fds[2] = c->merge ? out.fd : err.fd;
	r = proc_spawn(k, &o, &p);
	if (r < 0)
		return r;
	own_fd_close(&out);
	own_fd_close(&err);

	r = collect(&p, streams, c->all_output, end);
	if (r == PLY_TIMEOUT)
		result.timed_out = true;
	if (r < 0) {
		int killed = proc_kill(&p);

		if (r != PLY_TIMEOUT)
			return r;
		if (killed < 0)
			return killed;
	}
	for (int i = 0; i < 2; i++) {
		r = stream_drain(&streams[i]);
		if (r < 0)
			return r;
	}
	for (int i = 0; i < 2; i++)
		proc_discard(&p, TAKE_FD(streams[i].fd));
	r = stream_finish(&streams[0], &result.out);
	if (r == 0)
		r = stream_finish(&streams[1], &result.err);
	if (r < 0)
		return r;

	result.exit_code = result.timed_out	   ? EXIT_TIMEOUT
			   : WIFSIGNALED(p.status) ? -WTERMSIG(p.status)
						   : WEXITSTATUS(p.status);
	result.truncated = streams[0].truncated || streams[1].truncated;
	result.out_of_memory = p.out_of_memory;
	result.too_many_processes = p.too_many_processes;
	*ret = result;
	result = (struct ply_result){ 0 };
	return 0;
}
