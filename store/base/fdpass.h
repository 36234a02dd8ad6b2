/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Descriptors that go with a message through a Unix socket (SCM_RIGHTS of unix(7)). Inline:
 * programs that link nothing else of ours pass them as well.
 */

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#define FDPASS_MAX 8 /* at least what any message of ours has; the kernel allows 253 */

union fdpass_control {
	char bytes[CMSG_SPACE(sizeof(int) * FDPASS_MAX)];
	struct cmsghdr align;
};

/* The parts of v are one message, whose receiver gets copies of the descriptors. 0 or -errno. */
static inline int fdpass_send(int sock, struct iovec *v, size_t n_v, const int *fds, unsigned n_fds)
{
	union fdpass_control control = { 0 };
	struct msghdr msg = { .msg_iov = v, .msg_iovlen = n_v };

	if (n_fds > FDPASS_MAX)
		return -EMSGSIZE;
	if (n_fds) {
		struct cmsghdr *c = &control.align;

		msg.msg_control = &control;
		msg.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
		memcpy(CMSG_DATA(c), fds, sizeof(int) * n_fds);
	}
	while (sendmsg(sock, &msg, MSG_NOSIGNAL) < 0)
		if (errno != EINTR)
			return -errno;
	return 0;
}

/*
 * One message of at most `size` bytes: its length, 0 when the other end is closed, or -errno;
 * -EMSGSIZE for one with more bytes or descriptors, -EMFILE where this process may have no more of
 * these. fds gets as many as there are, each closed on exec and the caller's to close, then -1.
 */
static inline ssize_t fdpass_receive(int sock, void *buf, size_t size, int flags, int *fds,
				     unsigned max)
{
	union fdpass_control control;
	struct iovec v = { .iov_base = buf, .iov_len = size };
	struct msghdr msg = { .msg_iov = &v,
			      .msg_iovlen = 1,
			      .msg_control = &control,
			      .msg_controllen = sizeof(control) };
	unsigned n_fds = 0;
	ssize_t n;

	for (unsigned i = 0; i < max; i++)
		fds[i] = -1;
	do
		n = recvmsg(sock, &msg, flags | MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t at = 0; CMSG_LEN(at) < c->cmsg_len; at += sizeof(int)) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + at, sizeof(fd));
			if (n_fds < max)
				fds[n_fds] = fd;
			else
				(void)close(fd);
			n_fds++;
		}
	}
	if (n_fds <= max && !(msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))
		return n;
	for (unsigned i = 0; i < max; i++) {
		if (fds[i] >= 0)
			(void)close(fds[i]);
		fds[i] = -1;
	}
	/* All that we had room for are there, or the kernel could not make the next one ours. */
	return n_fds < FDPASS_MAX && (msg.msg_flags & MSG_CTRUNC) ? -EMFILE : -EMSGSIZE;
}
