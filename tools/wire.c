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
#include "store/base/fdpass.h"
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
	struct request_header h = {
		.magic = WIRE_MAGIC,
		.version = WIRE_VERSION,
		.argc = (uint32_t)q->argc,
		.n_env = (uint32_t)q->n_env,
		.snapshot = q->snapshot,
	};
	struct iovec iov = { .iov_base = buf };
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

	return fdpass_send(sock, &iov, 1, fds, n_fds);
}

void wire_request_release(struct wire_request *q)
{
	for (int i = 0; i < WIRE_FDS; i++)
		closep(&q->fd[i]);
	free(q->memory);
	*q = (struct wire_request){ .fd = { -1, -1, -1, -1, -1 } };
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
	struct wire_request q = { .fd = { -1, -1, -1, -1, -1 } };
	struct request_header h;
	int fds[WIRE_FDS], r = -EPROTO;
	unsigned n_fds = 0, next = 0;
	char *strings, *p;
	char **pointers;
	ssize_t n;

	/* The pointers to the strings live behind the bytes, in one allocation. */
	q.memory = malloc(WIRE_MAX + sizeof(char *) * (WIRE_STRINGS_MAX + 2));
	if (!q.memory)
		return -ENOMEM;
	pointers = (char **)((char *)q.memory + WIRE_MAX);

	n = fdpass_receive(sock, q.memory, WIRE_MAX, 0, fds, WIRE_FDS);
	if (n <= 0) {
		r = n == 0 ? END : n == -EMSGSIZE ? -EPROTO : (int)n;
		goto out;
	}

	for (; n_fds < WIRE_FDS && fds[n_fds] >= 0; n_fds++)
		q.fd[n_fds] = fds[n_fds]; /* so that a failure closes them */
	if ((size_t)n < sizeof(h))
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

	return fdpass_send(sock, iov, 2, NULL, 0);
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
		return errno == ECONNRESET ? AGAIN : -errno;
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
