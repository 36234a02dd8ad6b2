/* SPDX-License-Identifier: Apache-2.0 */

#include "tools/relay.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include "store/base/util.h"
#include "tools/wire.h"

/* As wide as the other (a bar fits its line), and passes on what it gets as it is. */
static int open_like(int terminal, struct relay_end *ret)
{
	_cleanup_close_ int ours = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
	_cleanup_close_ int theirs = -1;
	struct termios mode;
	struct winsize size;

	if (ours < 0 || unlockpt(ours) < 0)
		return -errno;
	theirs = ioctl(ours, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (theirs < 0 || tcgetattr(theirs, &mode) < 0)
		return -errno;
	cfmakeraw(&mode);
	if (tcsetattr(theirs, TCSANOW, &mode) < 0)
		return -errno;
	if (ioctl(terminal, TIOCGWINSZ, &size) == 0)
		(void)ioctl(theirs, TIOCSWINSZ, &size);
	ret->ours = TAKE_FD(ours);
	ret->theirs = TAKE_FD(theirs);
	ret->to = terminal;
	return 0;
}

static int stand_in(struct relay *r, int *fd)
{
	struct relay_end *e = r->ends;
	struct stat st;
	int error;

	if (*fd < 0 || !isatty(*fd))
		return 0;
	if (fstat(*fd, &st) < 0)
		return -errno;
	while (e < r->ends + r->n && e->terminal != st.st_rdev)
		e++;
	if (e == r->ends + r->n) {
		error = open_like(*fd, e);
		if (error < 0)
			return error;
		e->terminal = st.st_rdev;
		r->n++;
	}
	*fd = e->theirs; /* for both, if both are one: what comes first is seen first */
	return 0;
}

int relay_begin(struct relay *r, struct wire_request *q)
{
	int error;

	r->cwd = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
	q->fd[WIRE_CWD] = r->cwd;
	if (q->fd[WIRE_IN] >= 0 && isatty(q->fd[WIRE_IN])) {
		r->null = open("/dev/null", O_RDONLY | O_CLOEXEC);
		q->fd[WIRE_IN] = r->null;
	}
	error = stand_in(r, &q->fd[WIRE_OUT]);
	return error < 0 ? error : stand_in(r, &q->fd[WIRE_ERR]);
}

/* Who shares the user's terminal may have made it O_NONBLOCK. One that hangs up ends us. */
static void show(int terminal, const char *buf, size_t len)
{
	struct pollfd p = { .fd = terminal, .events = POLLOUT };
	ssize_t n;

	while (len > 0) {
		n = write(terminal, buf, len);
		if (n < 0 && errno != EINTR && (errno != EAGAIN || poll(&p, 1, -1) < 0))
			return;
		if (n > 0) {
			buf += n;
			len -= (size_t)n;
		}
	}
}

static void pass_on(const struct relay_end *e)
{
	char buf[4096]; /* a terminal gives no more at once */
	ssize_t n;

	while ((n = read(e->ours, buf, sizeof(buf))) > 0)
		show(e->to, buf, (size_t)n);
}

void relay_until(struct relay *r, int sock)
{
	struct pollfd p[1 + RELAY_ENDS] = { { .fd = sock, .events = POLLIN } };

	if (r->n == 0)
		return;
	for (unsigned i = 0; i < r->n; i++)
		p[1 + i] = (struct pollfd){ .fd = r->ends[i].ours, .events = POLLIN };
	do {
		if (poll(p, 1 + r->n, -1) < 0 && errno != EINTR)
			return;
		for (unsigned i = 0; i < r->n; i++)
			pass_on(&r->ends[i]);
	} while (!p[0].revents);
}

void relay_end(struct relay *r)
{
	while (r->n > 0) {
		r->n--;
		closep(&r->ends[r->n].ours);
		closep(&r->ends[r->n].theirs);
	}
	closep(&r->null);
	closep(&r->cwd);
}
