/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One packet of arbitrary bytes, with as many descriptors as its mask says and sometimes one more:
 * a client's request, and a daemon's answer to a client. Refused, or every string within it, and
 * no descriptor is left over.
 */

#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "store/base/err.h"
#include "store/base/fdpass.h"
#include "tests/fuzz/fuzz.h"
#include "tools/wire.h"

#define MASK_AT 16 /* in a request: wire.c */

static int null_fd;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	MUST(null_fd >= 0);
	return 0;
}

/* The packet at the other end of a new socket, that has hung up. */
static int packet(const uint8_t *data, size_t size)
{
	unsigned mask = size > MASK_AT ? data[MASK_AT] : 0;
	unsigned n_fds = (unsigned)__builtin_popcount(mask & 0x7f) + (mask >> 7);
	int fds[FDPASS_MAX] = { null_fd, null_fd, null_fd, null_fd,
				null_fd, null_fd, null_fd, null_fd };
	struct iovec v = { .iov_base = (void *)data, .iov_len = size };
	int pair[2];

	MUST(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
	(void)fdpass_send(pair[0], &v, 1, fds, n_fds); /* too long: as if nothing had been sent */
	close(pair[0]);
	return pair[1];
}

static void request(const uint8_t *data, size_t size)
{
	int sock = packet(data, size);
	struct wire_request q;

	if (wire_recv_request(sock, &q) == 0) {
		size_t total = 0;
		unsigned n_fds = 0;

		MUST(q.argc >= 0 && q.argc <= WIRE_STRINGS_MAX && !q.argv[q.argc]);
		for (int i = 0; i < q.argc; i++)
			total += strlen(q.argv[i]) + 1;
		for (int i = 0; i < q.n_env; i++)
			total += strlen(q.env[i]) + 1;
		MUST(total <= size);
		MUST(memchr(q.branch, '\0', sizeof(q.branch)));
		for (int i = 0; i < WIRE_FDS; i++) {
			MUST(q.fd[i] < 0 || fcntl(q.fd[i], F_GETFD) == FD_CLOEXEC);
			n_fds += q.fd[i] >= 0;
		}
		MUST(n_fds == (unsigned)__builtin_popcount(data[MASK_AT]));
		wire_request_release(&q);
	}
	close(sock);
}

static void answer(const uint8_t *data, size_t size)
{
	int sock = packet(data, size);
	struct wire_answer a;

	if (wire_recv_answer(sock, &a) == 0) {
		const char *text = (const char *)data + 16;

		MUST(memchr(a.text, '\0', sizeof(a.text)));
		MUST(strlen(a.text) <= size - 16 && memcmp(a.text, text, strlen(a.text)) == 0);
	}
	close(sock);
}

static int lowest_free(void)
{
	int fd = dup(null_fd);

	close(fd);
	return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	int free_fd = lowest_free();

	request(data, size);
	answer(data, size);
	MUST(lowest_free() == free_fd);
	return 0;
}
