/* SPDX-License-Identifier: Apache-2.0 */

/* daemon --replace, the daemon's part: ends, so that another program goes on with the views. */

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>

#include "fs/memo.h"
#include "store/base/util.h"
#include "tools/daemon.h"

extern char **environ;

/* Asks a program what it can go on with. A line, without its end; "" when it says nothing. */
static void ask_program(const char *program, char *said, size_t size)
{
	char *argv[] = { (char *)"plyfsd", (char *)"--adopts", NULL };
	_cleanup_close_ int in = -1, out = -1;
	posix_spawn_file_actions_t actions;
	size_t len = 0;
	ssize_t n;
	int p[2], r;
	pid_t pid;

	*said = 0;
	if (pipe2(p, O_CLOEXEC) < 0)
		return;
	in = p[0];
	out = p[1];
	if (posix_spawn_file_actions_init(&actions))
		return;
	posix_spawn_file_actions_adddup2(&actions, out, 1);
	r = posix_spawn(&pid, program, &actions, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	if (r)
		return;
	closep(&out);
	out = -1;
	while (len < size - 1 && (n = read(in, said + len, size - 1 - len)) > 0)
		len += (size_t)n;
	said[len] = 0;
	said[strcspn(said, "\n")] = 0;
	while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
		;
}

int cmd_daemon(struct cmd *c)
{
	const char *program = NULL;
	bool replace = false;
	const struct option_def defs[] = {
		{ .name = "replace", .flag = &replace },
		{ .name = "program", .text = &program },
	};
	struct daemon *d = c->daemon;
	char said[32], wanted[32];
	int r;

	r = cmd_parse(c, defs, ARRAY_SIZE(defs), 0, 0);
	if (r)
		return r;
	if (!replace || !program)
		return cmd_misuse(c, "wants --replace and --program");
	if (!views_count(d)) { /* the next one is the client's to start */
		atomic_store(&d->end_soon, true);
		daemon_wake(d);
		return CMD_DONE;
	}
	if (!views_are_kept(d))
		return cmd_fail(c, 0,
				"its views cannot be handed over, which wants Linux 6.16 or newer "
				"and the journal, and none with --io-uring; unmount them, so that "
				"it ends");
	if (!supervisor_is_there())
		return cmd_fail(c, 0,
				"its supervisor, which would hand its views over, was killed; "
				"unmount them, so that it ends");
	ask_program(program, said, sizeof(said));
	snprintf(wanted, sizeof(wanted), "%d.%d", SUPERVISOR_VERSION, MEMO_VERSION);
	if (strcmp(said, wanted) != 0)
		return cmd_fail(c, 0,
				"'%s' cannot go on with the views of plyfs %s; unmount them, so "
				"that the daemon ends",
				program, PLYFS_VERSION);
	r = supervisor_replace(d->supervisor, program);
	if (r < 0)
		return cmd_fail(c, r, "%s", program);
	atomic_store(&d->replaced, true);
	daemon_wake(d);
	return CMD_DONE;
}
