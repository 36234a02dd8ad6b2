/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Messages between client and daemon; see wire.h for the conversation.
 *
 *   request  [magic 4][version 4][argc 4][n_env 4][fd mask 4][0 4][snapshot 8][branch 64] strings
 *   answer   [magic 4][version 4][status 4][pid 4] text
 *
 * Strings end with a NUL each. The first 12 bytes of an answer keep their meaning in all versions,
 * so that either side can tell people what is wrong.
 */

#include "tools/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>

#include "store/base/err.h"
#include "store/base/util.h"

struct request_header {
	uint32_t magic, version, argc, n_env, fd_mask, reserved;
	uint64_t snapshot;
	char branch[64];
};

struct answer_header {
	uint32_t magic, version;
	int32_t status, pid;
};

static int put_string(char *buf, size_t *len, const char *s)
{
	size_t n = strlen(s) + 1;

	if (n > WIRE_MAX - *len)
		return -EMSGSIZE;
	memcpy(buf + *len, s, n);
	*len += n;
	return 0;
}

int wire_send_request(int sock, const struct wire_request *q)
{
	_cleanup_free_ char *buf = malloc(WIRE_MAX);
	union {
		char bytes[CMSG_SPACE(sizeof(int) * WIRE_FDS)];
		struct cmsghdr align;
	} control = {};
	struct request_header h = {
		.magic = WIRE_MAGIC,
		.version = WIRE_VERSION,
		.argc = (uint32_t)q->argc,
		.n_env = (uint32_t)q->n_env,
		.snapshot = q->snapshot,
	};
	struct iovec iov = { .iov_base = buf };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	size_t len = sizeof(h);
	unsigned n_fds = 0;
	int fds[WIRE_FDS], r;

	if (!buf)
		return -ENOMEM;
	if (q->argc + q->n_env > WIRE_STRINGS_MAX)
		return -EMSGSIZE;

	memcpy(h.branch, q->branch, sizeof(h.branch));
	for (int i = 0; i < WIRE_FDS; i++) {
		if (q->fd[i] < 0)
			continue;
		h.fd_mask |= 1u << i;
		fds[n_fds++] = q->fd[i];
	}
	memcpy(buf, &h, sizeof(h));

	for (int i = 0; i < q->argc; i++) {
		r = put_string(buf, &len, q->argv[i]);
		if (r < 0)
			return r;
	}
	for (int i = 0; i < q->n_env; i++) {
		r = put_string(buf, &len, q->env[i]);
		if (r < 0)
			return r;
	}
	iov.iov_len = len;

	if (n_fds) {
		struct cmsghdr *cm;

		msg.msg_control = control.bytes;
		msg.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
		cm = CMSG_FIRSTHDR(&msg);
		cm->cmsg_level = SOL_SOCKET;
		cm->cmsg_type = SCM_RIGHTS;
		cm->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
		memcpy(CMSG_DATA(cm), fds, sizeof(int) * n_fds);
	}

	while (sendmsg(sock, &msg, MSG_NOSIGNAL) < 0)
		if (errno != EINTR)
			return -errno;
	return 0;
}

void wire_request_release(struct wire_request *q)
{
	for (int i = 0; i < WIRE_FDS; i++)
		closep(&q->fd[i]);
	free(q->memory);
	*q = (struct wire_request){ .fd = { -1, -1, -1, -1, -1 } };
}

/* Takes the descriptors out of a received message; those beyond WIRE_FDS are closed. */
static unsigned take_fds(struct msghdr *msg, int fds[static WIRE_FDS])
{
	unsigned n = 0;

	for (struct cmsghdr *cm = CMSG_FIRSTHDR(msg); cm; cm = CMSG_NXTHDR(msg, cm)) {
		size_t count;

		if (cm->cmsg_level != SOL_SOCKET || cm->cmsg_type != SCM_RIGHTS)
			continue;
		count = (cm->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < count; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(cm) + i * sizeof(int), sizeof(fd));
			if (n < WIRE_FDS)
				fds[n++] = fd;
			else
				(void)close(fd); /* never used */
		}
	}

	return n;
}

/* Splits len bytes of NUL-ended strings into n pointers and a NULL; NULL when they do not fit. */
static char *split_strings(char *p, char *end, uint32_t n, char **out)
{
	for (uint32_t i = 0; i < n; i++) {
		char *nul = memchr(p, 0, (size_t)(end - p));

		if (!nul)
			return NULL;
		out[i] = p;
		p = nul + 1;
	}
	out[n] = NULL;
	return p;
}

int wire_recv_request(int sock, struct wire_request *ret)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int) * 2 * WIRE_FDS)];
		struct cmsghdr align;
	} control;
	struct wire_request q = { .fd = { -1, -1, -1, -1, -1 } };
	struct request_header h;
	struct iovec iov;
	struct msghdr msg = { .msg_iov = &iov,
			      .msg_iovlen = 1,
			      .msg_control = control.bytes,
			      .msg_controllen = sizeof(control.bytes) };
	int fds[WIRE_FDS] = { -1, -1, -1, -1, -1 }, r = -EPROTO;
	unsigned n_fds, next = 0;
	char *strings, *p;
	char **pointers;
	ssize_t n;

	/* The pointers to the strings live behind the bytes, in one allocation. */
	q.memory = malloc(WIRE_MAX + sizeof(char *) * (WIRE_STRINGS_MAX + 2));
	if (!q.memory)
		return -ENOMEM;
	iov = (struct iovec){ .iov_base = q.memory, .iov_len = WIRE_MAX };
	pointers = (char **)((char *)q.memory + WIRE_MAX);

	do
		n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n <= 0) {
		r = n < 0 ? -errno : END;
		goto out;
	}

	n_fds = take_fds(&msg, fds);
	for (unsigned i = 0; i < n_fds; i++)
		q.fd[i] = fds[i]; /* so that a failure closes them */
	if ((size_t)n < sizeof(h) || (msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))
		goto out;
	memcpy(&h, q.memory, sizeof(h));
	if (h.magic != WIRE_MAGIC || h.version != WIRE_VERSION || h.argc < 1 ||
	    h.argc > WIRE_STRINGS_MAX || h.n_env > WIRE_STRINGS_MAX - h.argc ||
	    h.fd_mask >> WIRE_FDS || (unsigned)__builtin_popcount(h.fd_mask) != n_fds)
		goto out;

	for (int i = 0; i < WIRE_FDS; i++)
		q.fd[i] = h.fd_mask & (1u << i) ? fds[next++] : -1;

	strings = (char *)q.memory + sizeof(h);
	q.argv = pointers;
	p = split_strings(strings, (char *)q.memory + n, h.argc, q.argv);
	if (!p)
		goto out;
	q.env = pointers + h.argc + 1;
	if (!split_strings(p, (char *)q.memory + n, h.n_env, q.env))
		goto out;

	q.argc = (int)h.argc;
	q.n_env = (int)h.n_env;
	q.snapshot = h.snapshot;
	memcpy(q.branch, h.branch, sizeof(q.branch));
	q.branch[sizeof(q.branch) - 1] = 0;
	*ret = q;
	return 0;
out:
	wire_request_release(&q);
	return r;
}

int wire_send_answer(int sock, const struct wire_answer *a)
{
	struct answer_header h = { WIRE_MAGIC, a->version, a->status, a->pid };
	struct iovec iov[2] = {
		{ .iov_base = &h, .iov_len = sizeof(h) },
		{ .iov_base = (void *)a->text, .iov_len = strnlen(a->text, WIRE_TEXT_MAX - 1) },
	};
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = 2 };

	while (sendmsg(sock, &msg, MSG_NOSIGNAL) < 0)
		if (errno != EINTR)
			return -errno;
	return 0;
}

int wire_recv_answer(int sock, struct wire_answer *ret)
{
	struct answer_header h;
	struct wire_answer a = {};
	struct iovec iov[2] = {
		{ .iov_base = &h, .iov_len = sizeof(h) },
		{ .iov_base = a.text, .iov_len = sizeof(a.text) - 1 },
	};
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = 2 };
	ssize_t n;

	do
		n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return errno == ECONNRESET ? END : -errno;
	if (n == 0)
		return END;
	if ((size_t)n < sizeof(h) || h.magic != WIRE_MAGIC)
		return -EPROTO;

	a.version = h.version;
	a.status = h.status;
	a.pid = h.pid;
	*ret = a;
	return 0;
}
