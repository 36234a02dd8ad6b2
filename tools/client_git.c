/* SPDX-License-Identifier: Apache-2.0 */

/*
 * plyfs fsmonitor, as git calls it: `plyfs fsmonitor 2 TOKEN` in the top directory of a work tree.
 * The daemon knows the answer (cmd_fsmonitor.c). Where it cannot be asked (no view, not ours), the
 * answer is "everything may have changed": git looks itself, as it would without us.
 */

#include "tools/client.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "store/base/util.h"

extern char **environ;

int client_fsmonitor(struct client *cl)
{
	char *argv[] = { (char *)"fsmonitor", (char *)"--directory", NULL, (char *)"--", NULL,
			 NULL, NULL };
	char number[24]; /* of 64 bits */
	struct stat st;
	int r;

	r = client_parse(cl, NULL, 0, 0, 2, 2);
	if (r)
		return r;
	if (strcmp(cl->args.v[0], "2") != 0)
		return client_misuse(cl, "only version 2 of git's protocol is known; git config "
					 "core.fsmonitorHookVersion 2");
	if (client_look(cl, ".") < 0 || !cl->in_view || !*cl->info.branch || stat(".", &st) < 0) {
		(void)fwrite("none\0/", 1, sizeof("none\0/"), stdout); /* flushed below */
		return fflush(stdout) ? client_fail(cl, "writing: %s", strerror(errno)) : DONE;
	}
	snprintf(number, sizeof(number), "%" PRIu64, (uint64_t)st.st_ino);
	argv[2] = number;
	argv[4] = cl->args.v[0];
	argv[5] = cl->args.v[1];
	return client_send(cl, false, 6, argv);
}

/* ---- mount --fsmonitor ---- */

static int git_config(struct client *cl, const char *top, const char *name, const char *value)
{
	char *argv[] = { (char *)"git", (char *)"-C",	(char *)top,   (char *)"config",
			 (char *)name,	(char *)value, NULL };
	int r, status;
	pid_t pid;

	r = posix_spawnp(&pid, argv[0], NULL, NULL, argv, environ);
	if (r)
		return client_fail(cl, "running git: %s", strerror(r));
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return client_fail(cl, "waiting for git: %s", strerror(errno));
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		return client_fail(cl, "git could not set %s in '%s'", name, top);
	return DONE;
}

int fsmonitor_install(struct client *cl, const char *mountpoint)
{
	_cleanup_free_ char *git = NULL, *command = NULL;
	char program[PATH_MAX];
	ssize_t n;
	int r;

	if (asprintf(&git, "%s/.git", mountpoint) < 0)
		return client_fail(cl, "%s", strerror(ENOMEM));
	if (access(git, F_OK) < 0)
		return client_fail(cl, "mounted, but '%s' is no git repository; for one below it: "
				   "git config core.fsmonitor 'plyfs fsmonitor'", mountpoint);
	n = readlink("/proc/self/exe", program, sizeof(program) - 1);
	if (n < 0)
		return client_fail(cl, "/proc/self/exe: %s", strerror(errno));
	program[n] = 0;
	/* git gives it to a shell. No quote can be in quotes: then the one on PATH must do. */
	if (asprintf(&command, strchr(program, '\'') ? "plyfs fsmonitor" : "'%s' fsmonitor",
		     program) < 0)
		return client_fail(cl, "%s", strerror(ENOMEM));

	r = git_config(cl, mountpoint, "core.fsmonitor", command);
	if (r)
		return r;
	/* Else git would still read every directory for files that it does not know. */
	return git_config(cl, mountpoint, "core.untrackedCache", "true");
}
