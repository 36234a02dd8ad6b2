/* SPDX-License-Identifier: Apache-2.0 */

/* daemon --replace: the daemon beside this program takes over the views of the one that runs. */

#include <time.h>

#include "store/base/util.h"
#include "tools/client.h"

/* The old one finishes what clients asked of it and makes its state durable first. */
#define TRIES 3000
#define TRY_NS 10000000

int client_daemon(struct client *cl)
{
	bool replace = false;
	const struct option_def defs[] = { { .name = "replace", .flag = &replace } };
	char program[PATH_MAX];
	char *argv[] = { (char *)"daemon", (char *)"--replace", (char *)"--program", program,
			 NULL };
	int r, old;

	r = client_parse(cl, defs, ARRAY_SIZE(defs), 0, 0, 0);
	if (r)
		return r;
	if (!replace)
		return client_misuse(cl, "wants --replace (try 'plyfs daemon --help')");

	client_program("plyfsd", program);
	r = client_send(cl, false, ARRAY_SIZE(argv) - 1, argv);
	if (r == NO_DAEMON) {
		client_talk(cl, "no daemon runs; the next one will be this version's");
		return DONE;
	}
	if (r)
		return r;

	old = cl->daemon_pid;
	for (int i = 0; i < TRIES; i++) {
		_cleanup_close_ int sock = -1;

		r = client_connect(cl, true, &sock);
		if (r)
			return r;
		if (cl->daemon_pid != old) {
			printf("%d\n", cl->daemon_pid);
			return client_printed(cl);
		}
		(void)nanosleep(&(struct timespec){ .tv_nsec = TRY_NS }, NULL);
	}
	return client_fail(cl, "the daemon, pid %d, goes on; see '%s/daemon.log'", old, cl->store);
}
