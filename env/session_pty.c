/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The terminal of a shell, from our end: 24 lines of 80, output as it was written (no OPOST), no
 * echo, canonical input, Ctrl-C that flushes nothing (NOFLSH).
 *
 * That output is complete when the shell says that a command is over needs no marker in it: the
 * kernel hands everything that was written to one end of a pty before a read of the other end
 * returns EAGAIN (n_tty_read flushes what is under way).
 */

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include "env/session_internal.h"
#include "env/status.h"
#include "store/base/util.h"

/* ---- buffers ---- */

int buffer_room(struct buffer *b, size_t len)
{
	size_t room = MAX(b->room, (size_t)4096);
	char *p;

	if (b->room - b->len >= len)
		return 0;
	while (room - b->len < len)
		room *= 2;
	p = realloc(b->data, room);
	if (!p)
		return fail_memory();
	b->data = p;
	b->room = room;
	return 0;
}

void buffer_cut(struct buffer *b, size_t len)
{
	b->len -= len;
	if (b->len)
		memmove(b->data, b->data + len, b->len);
}

/* A larger text is handed over with the buffer's memory, not copied: two of them are too many. */
#define COPY_MAX ((size_t)1 << 20)

int buffer_take(struct buffer *b, size_t keep, size_t len, struct ply_text *ret)
{
	struct ply_text text = { 0 };
	int r;

	if (keep > COPY_MAX && len == b->len) {
		char *p = realloc(b->data, keep + 1);

		text = (struct ply_text){ .data = p ?: b->data, .len = keep };
		text.data[keep] = '\0';
		*b = (struct buffer){ 0 };
	} else {
		r = text_set(&text, b->data, keep);
		if (r < 0)
			return r;
		buffer_cut(b, len);
	}
	*ret = text;
	return 0;
}

/* ---- the terminal ---- */

static void set_modes(struct termios *t)
{
	/* Bytes as they are, both ways; a CR that is typed is a newline as people expect. */
	t->c_iflag &= ~(tcflag_t)(IXON | IXOFF | IXANY | ISTRIP | INLCR | IGNCR | PARMRK);
	t->c_iflag |= ICRNL | IUTF8;
	t->c_oflag &= ~(tcflag_t)OPOST;
	t->c_lflag &= ~(tcflag_t)(ECHO | ECHONL | TOSTOP);
	t->c_lflag |= ISIG | ICANON | IEXTEN | NOFLSH;
}

int pty_open(struct shell *s)
{
	const struct winsize size = { .ws_row = 24, .ws_col = 80 };

	s->master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
	if (s->master < 0)
		return fail_errno(errno, "a new terminal, from /dev/ptmx");
	if (unlockpt(s->master) < 0)
		return fail_errno(errno, "a new terminal");
	/* By descriptor: it may have no name in our /dev/pts. */
	s->slave = ioctl(s->master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (s->slave < 0) {
		char name[64];

		if (ptsname_r(s->master, name, sizeof(name)) != 0)
			return fail_errno(errno, "a new terminal");
		s->slave = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
	}
	if (s->slave < 0 || tcgetattr(s->slave, &s->modes) < 0)
		return fail_errno(errno, "a new terminal");
	set_modes(&s->modes);
	if (tcsetattr(s->slave, TCSANOW, &s->modes) < 0 || ioctl(s->slave, TIOCSWINSZ, &size) < 0)
		return fail_errno(errno, "a new terminal");
	return 0;
}

void pty_close(struct shell *s)
{
	closep(&s->slave);
	closep(&s->master); /* hangs up: the shell and what is in its foreground get SIGHUP */
	s->slave = s->master = -1;
}

void pty_reset(struct shell *s)
{
	/* They fail only on a terminal that was hung up; the shell's end is noticed elsewhere. */
	(void)tcsetattr(s->slave, TCSANOW, &s->modes);
	(void)tcflow(s->slave, TCOON); /* who has stopped its output may have ended since */
}

void pty_flush(struct shell *s)
{
	/* The same. What the terminal has no room for yet comes first: it would take its place. */
	(void)tcflush(s->master, TCOFLUSH);
	(void)tcflush(s->slave, TCIFLUSH);
	s->pressed = s->input = false;
}

pid_t pty_foreground(struct shell *s)
{
	return tcgetpgrp(s->master);
}

int pty_signal(struct shell *s, pid_t whom, int signal)
{
	pid_t session = getsid(whom < 0 ? -whom : whom);

	if (session >= 0 && session != tcgetsid(s->master)) {
		errno = ESRCH;
		return -1;
	}
	return kill(whom, signal);
}

bool pty_write(struct shell *s, const char **data, size_t *len)
{
	while (*len) {
		ssize_t n = write(s->master, *data, *len);

		if (n <= 0)
			return n < 0 && errno != EAGAIN && errno != EINTR;
		*data += n;
		*len -= (size_t)n;
	}
	return true;
}

int pty_unread(void)
{
	return fail(PLY_TIMEOUT, "the program does not read what is typed");
}

int pty_type(struct shell *s, const char *data, size_t len, double end)
{
	while (!pty_write(s, &data, &len)) {
		struct pollfd p = { .fd = s->master, .events = POLLIN | POLLOUT };
		int r;

		if (now_seconds() >= end)
			return pty_unread();
		(void)poll(&p, 1, PTY_LOOK_MS);
		r = pty_drain(s, PTY_ALL);
		if (r < 0)
			return r;
	}
	return 0;
}

/*
 * Behind the limit the end of the output is kept, so that patterns and a prompt are still seen: at
 * least this much of it, and at most twice.
 */
#define TAIL ((size_t)65536)

/* Takes the middle out of what is longer than the limit. */
static void hold_limit(struct shell *s)
{
	size_t limit = s->limit, gap;

	if (!limit || s->out.len <= limit)
		return;
	s->truncated = true;
	if (s->out.len - limit <= 2 * TAIL)
		return;
	gap = s->out.len - limit - TAIL;
	memmove(s->out.data + limit, s->out.data + limit + gap, TAIL);
	s->out.len -= gap;
	if (s->mark > limit)
		s->mark = MAX(limit, s->mark - MIN(gap, s->mark));
	if (s->cut != SIZE_MAX && s->cut > limit)
		s->cut = MAX(limit, s->cut - MIN(gap, s->cut));
	s->changed_at = MIN(s->changed_at, limit);
}

/* A read gives 4 KiB mostly: room for some more than one before the next realloc. */
#define READ_ROOM ((size_t)16384)

int pty_drain(struct shell *s, size_t most)
{
	size_t taken = 0;

	while (!s->hung_up && taken < most) {
		ssize_t n;
		int r = buffer_room(&s->out, READ_ROOM);

		if (r < 0)
			return r;
		/* One is left for buffer_take: as the writer goes on, a read fills all there is. */
		n = read(s->master, s->out.data + s->out.len, s->out.room - s->out.len - 1);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			break;
		if (n <= 0) {
			s->hung_up = true; /* EIO */
			break;
		}
		s->out.len += (size_t)n;
		taken += (size_t)n;
		hold_limit(s);
	}
	return 0;
}
