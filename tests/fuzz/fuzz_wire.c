/* SPDX-License-Identifier: Apache-2.0 */

/* A client's request, as one packet of arbitrary bytes: refused, or every string within it. */

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "store/base/err.h"
#include "tests/fuzz/fuzz.h"
#include "tools/wire.h"

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct wire_request q;
	int pair[2], r;

	MUST(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
	if (send(pair[0], data, size, MSG_DONTWAIT) == (ssize_t)size) {
		close(pair[0]);
		r = wire_recv_request(pair[1], &q);
		if (r == 0) {
			size_t total = 0;

			MUST(q.argc >= 0 && q.argc <= WIRE_STRINGS_MAX && !q.argv[q.argc]);
			for (int i = 0; i < q.argc; i++)
				total += strlen(q.argv[i]) + 1;
			for (int i = 0; i < q.n_env; i++)
				total += strlen(q.env[i]) + 1;
			MUST(total <= size);
			MUST(memchr(q.branch, '\0', sizeof(q.branch)));
			wire_request_release(&q);
		}
	} else {
		close(pair[0]);
	}
	close(pair[1]);
	return 0;
}
