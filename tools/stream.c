/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Streams on a client's descriptors. A pipe may be full and its reader asleep for ever, and the
 * client that waits for us be killed meanwhile: a thread in write(2) would never learn of it. So a
 * pipe gets PIPE_BUF bytes at a time when poll says there is room for them, which never blocks;
 * and between polls `cancel` is looked at.
 */

#include "tools/stream.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/util.h"

/* As stdio's usual buffer times 16: a verb's output is a few writes. */
#define BUFFER_BYTES (64 * 1024)
#define POLL_MS 200

struct stream {
	int fd;
	bool regular;
	bool *unread; /* or NULL: talk */
	bool *cancel;
};

static ssize_t stream_write(void *cookie, const char *buf, size_t size)
{
	struct stream *s = cookie;
	size_t done = 0;

	if (s->fd < 0) /* its caller closed it: nobody need hear talk, but an answer is lost */
		return s->unread ? 0 : (ssize_t)size;

	while (done < size) {
		struct pollfd p = { .fd = s->fd, .events = POLLOUT };
		ssize_t n;

		if (__atomic_load_n(s->cancel, __ATOMIC_RELAXED))
			return 0;
		if (!s->regular && poll(&p, 1, POLL_MS) <= 0)
			continue;
		n = write(s->fd, buf + done, s->regular ? size - done : MIN(size - done, PIPE_BUF));
		if (n < 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (n < 0 && errno == EPIPE && s->unread) {
			*s->unread = true;
			__atomic_store_n(s->cancel, true, __ATOMIC_RELAXED);
		}
		if (n < 0)
			return 0; /* stdio's way to hear of a failure */
		done += (size_t)n;
	}

	return (ssize_t)done;
}

static int stream_close(void *cookie)
{
	free(cookie);
	return 0;
}

FILE *stream_to_fd(int fd, bool *unread, bool *cancel)
{
	struct stream *s = malloc(sizeof(*s));
	struct stat st;
	FILE *f;

	if (!s)
		return NULL;
	*s = (struct stream){ .fd = fd, .unread = unread, .cancel = cancel };
	s->regular = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
	f = fopencookie(s, "w",
			(cookie_io_functions_t){ .write = stream_write, .close = stream_close });
	if (!f) {
		free(s);
		return NULL;
	}
	(void)setvbuf(f, NULL, unread ? _IOFBF : _IOLBF, BUFFER_BYTES); /* else it keeps its own */
	return f;
}

unsigned stream_columns(const char *columns, int out_fd, int err_fd)
{
	struct winsize w;
	long n = columns ? strtol(columns, NULL, 10) : 0;

	if (n >= 20 && n <= 10000)
		return (unsigned)n;
	if (out_fd >= 0 && ioctl(out_fd, TIOCGWINSZ, &w) == 0 && w.ws_col)
		return w.ws_col;
	if (err_fd >= 0 && ioctl(err_fd, TIOCGWINSZ, &w) == 0 && w.ws_col)
		return w.ws_col;
	return 80;
}
