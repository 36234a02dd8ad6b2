/* SPDX-License-Identifier: Apache-2.0 */

/*
 * plyfs fsmonitor, as git calls it: `plyfs fsmonitor 2 TOKEN` in the top directory of a work tree,
 * under a name of its own (FSMONITOR_PROGRAM): git gives what is more than one plain word to a
 * shell, whose start takes as long as all the rest. The daemon knows the answer (cmd_fsmonitor.c).
 * Where it cannot be asked (no view, not ours), the answer is "everything may have changed": git
 * looks itself, as it would without us.
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

static int answer(struct client *cl)
{
	char *argv[] = { (char *)"fsmonitor", (char *)"--directory", NULL, (char *)"--", NULL,
			 NULL, NULL };
	char number[24]; /* of 64 bits */
	struct stat st;

	if (cl->args.n != 2)
		return client_misuse(cl, "git gives the version of its protocol and a token; to "
					 "set it up: plyfs fsmonitor --install [DIR]");
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

/* ---- setting it up ---- */

static int git_config(struct client *cl, const char *top, const char *name, const char *value)
{
	char *argv[] = { (char *)"git", (char *)"-C",	(char *)top,   (char *)"config",
			 (char *)name,	(char *)value, NULL };
	int r, status;
	pid_t pid;

	/* A hook of git's has them: they would name its repository, whatever -C says. */
	(void)unsetenv("GIT_DIR"); /* fails for no name of ours */
	(void)unsetenv("GIT_COMMON_DIR");
	(void)unsetenv("GIT_CONFIG");
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

/* Would git call it without a shell? (prepare_shell_cmd in its run-command.c) */
static bool is_plain(const char *path)
{
	return !strpbrk(path, "|&;<>()$`\\\"' \t\n*?[#~=%");
}

int fsmonitor_install(struct client *cl, const char *top, const char *but)
{
	_cleanup_free_ char *git = NULL, *quoted = NULL;
	char program[PATH_MAX];
	int r;

	if (asprintf(&git, "%s/.git", top) < 0)
		return client_fail(cl, "%s", strerror(ENOMEM));
	if (access(git, F_OK) < 0)
		return client_fail(cl, "%s'%s' is no git repository; for one below it: "
				   "plyfs fsmonitor --install DIR", but, top);
	client_program(FSMONITOR_PROGRAM, program);
	if (access(program, X_OK) < 0)
		return client_fail(cl, "%s'%s': %s; is all of plyfs installed?", but, program,
				   strerror(errno));
	/* No quote can be in quotes: then the one on PATH must do. */
	if (asprintf(&quoted, strchr(program, '\'') ? "plyfs fsmonitor" : "'%s'", program) < 0)
		return client_fail(cl, "%s", strerror(ENOMEM));

	r = git_config(cl, top, "core.fsmonitor", is_plain(program) ? program : quoted);
	if (r)
		return r;
	/*
	 * Else git from 2.55 on asks nobody and warns each time: since it can watch a tree by
	 * itself on Linux, it refuses any monitor, a program too, where it takes the filesystem
	 * for remote, as it does with all of FUSE (fsmonitor-settings.c).
	 */
	r = git_config(cl, top, "fsmonitor.allowRemote", "true");
	if (r)
		return r;
	/* Else git would still read every directory for files that it does not know. */
	return git_config(cl, top, "core.untrackedCache", "true");
}

int client_fsmonitor(struct client *cl)
{
	bool install = false;
	const struct option_def defs[] = { { .name = "install", .flag = &install } };
	int r = client_parse(cl, defs, ARRAY_SIZE(defs), 0, 0, 2);

	if (r)
		return r;
	if (!install)
		return answer(cl);
	if (cl->args.n > 1)
		return client_misuse(cl, "--install wants one directory");
	return fsmonitor_install(cl, cl->args.n ? cl->args.v[0] : ".", "");
}
