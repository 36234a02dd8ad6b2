/* SPDX-License-Identifier: Apache-2.0 */

/*
 * plyfs shell: an interactive shell in the view. Before it a snapshot is taken, so that at its end
 * what was done can be kept, kept with a snapshot, or taken back.
 */

#include "tools/env.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>

#include "env/env_internal.h"
#include "fs/ioctl.h"
#include "store/base/util.h"

#define EXIT_NOT_RUNNABLE 126
#define EXIT_NOT_FOUND 127

enum at_exit { ASK, KEEP, CHECKPOINT, DISCARD };
static const char *const choices[] = { "", "keep", "checkpoint", "discard" };

static void env_freep(struct ply_env **env)
{
	ply_env_free(*env);
}

static int checkpoint(const struct cmd *c, int fd, const char *label, char id[PLYFS_ID_SIZE + 1])
{
	struct plyfs_checkpoint q = { .flags = 0 };

	(void)snprintf(q.label, sizeof(q.label), "%s", label);
	if (syncfs(fd) < 0 || ioctl(fd, PLYFS_IOC_CHECKPOINT, &q) < 0)
		return cmd_fail(c, "checkpoint: %s",
				errno == EROFS ? "this view shows a snapshot, which can be "
						 "forked, or the store's disk is read-only now"
					       : strerror(errno));
	(void)snprintf(id, PLYFS_ID_SIZE + 1, "%.*s", PLYFS_ID_SIZE, q.id);
	return DONE;
}

static bool has_changed(int fd, const char *before)
{
	struct plyfs_info info;

	(void)syncfs(fd); /* what it cannot flush is no change */
	return ioctl(fd, PLYFS_IOC_INFO, &info) < 0 || info.changes ||
	       strncmp(info.head, before, PLYFS_ID_SIZE) != 0;
}

static enum at_exit ask(void)
{
	for (;;) {
		char line[64];

		(void)fprintf(
			stderr,
			"plyfs shell: keep the changes, checkpoint or discard them? [K/c/d] ");
		if (!fgets(line, sizeof(line), stdin))
			return KEEP;
		switch (line[0]) {
		case '\n':
		case 'k':
		case 'K':
			return KEEP;
		case 'c':
		case 'C':
			return CHECKPOINT;
		case 'd':
		case 'D':
			return DISCARD;
		}
	}
}

/* Runs it with our terminal; its exit code as a shell would tell it. */
static int run_shell(const struct cmd *c, const char *dir, char *const *argv)
{
	int status;
	pid_t pid;

	/* A Ctrl-C is the shell's; so is a Ctrl-Z, as long as it is in the foreground. */
	(void)signal(SIGINT, SIG_IGN);
	(void)signal(SIGQUIT, SIG_IGN);
	(void)signal(SIGTTOU, SIG_IGN);
	pid = fork();
	if (pid < 0)
		return cmd_fail(c, "fork: %s", strerror(errno));
	if (pid == 0) {
		(void)signal(SIGINT, SIG_DFL);
		(void)signal(SIGQUIT, SIG_DFL);
		(void)signal(SIGTTOU, SIG_DFL);
		if (chdir(dir) < 0) {
			(void)cmd_fail(c, "'%s': %s", dir, strerror(errno));
			_exit(EXIT_NOT_RUNNABLE);
		}
		(void)setenv("PWD", dir, 1); /* shells trust it; a failure costs nothing else */
		execvp(argv[0], argv);
		(void)cmd_fail(c, "'%s': %s", argv[0], strerror(errno));
		_exit(errno == ENOENT ? EXIT_NOT_FOUND : EXIT_NOT_RUNNABLE);
	}
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	/* It may have died while the terminal was another one's. */
	if (isatty(0))
		(void)tcsetpgrp(0, getpgrp());
	(void)signal(SIGINT, SIG_DFL);
	return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static int finish(const struct cmd *c, int fd, enum at_exit what, const char *before)
{
	struct plyfs_restore q = { .mode = 0 };
	char id[PLYFS_ID_SIZE + 1];
	int r;

	switch (what) {
	case CHECKPOINT:
		r = checkpoint(c, fd, "shell", id);
		if (r)
			return r;
		puts(id);
		return cmd_flush(c);
	case DISCARD:
		(void)snprintf(q.id, sizeof(q.id), "%s", before);
		if (plyfs_control(fd, PLYFS_IOC_RESTORE, &q) < 0)
			return cmd_fail(c, "going back to %s: %s", before, strerror(errno));
		(void)fprintf(stderr,
			      "plyfs shell: at %.12s again; 'plyfs undo' brings back %.12s\n", q.id,
			      q.left);
		return DONE;
	default:
		return DONE;
	}
}

int verb_shell(struct cmd *c)
{
	_cleanup_(place_release) struct place place = { 0 };
	_cleanup_(env_freep) struct ply_env *env = NULL;
	const char *in = NULL, *at_exit = NULL, *shell = getenv("SHELL");
	const struct option_def defs[] = { { .name = "in", .text = &in },
					   { .name = "at-exit", .text = &at_exit } };
	const char *plain[] = { shell && *shell ? shell : "/bin/bash", NULL };
	char before[PLYFS_ID_SIZE + 1], **wrapped = NULL;
	_cleanup_close_ int fd = -1;
	enum at_exit what = ASK;
	int code, r;

	r = cmd_parse(c, defs, ARRAY_SIZE(defs), 0, 0, 0);
	if (r)
		return r;
	for (enum at_exit i = KEEP; at_exit && i <= DISCARD; i++)
		if (strcmp(at_exit, choices[i]) == 0)
			what = i;
	if (at_exit && what == ASK)
		return cmd_misuse(c, "--at-exit is keep, checkpoint or discard, not '%s'", at_exit);
	if (what == ASK && !isatty(0))
		what = KEEP; /* nobody to ask */
	r = place_find(c, in, &place);
	if (r == DONE)
		r = env_of_place(c, &place, NULL, NULL, &env);
	if (r)
		return r;
	fd = open(place.mount, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return cmd_fail(c, "'%s': %s", place.mount, strerror(errno));
	r = checkpoint(c, fd, "", before);
	if (r)
		return r;

	if (env->ops->wrap) {
		plain[0] = "/bin/bash"; /* what is in there is another machine's */
		if (env->ops->wrap(env, plain, NULL, true, &wrapped) < 0)
			return cmd_ply_failed(c);
	}
	code = run_shell(c, place.dir, wrapped ? wrapped : (char *const *)plain);
	argv_free(wrapped);
	if (!has_changed(fd, before))
		return code;
	r = finish(c, fd, what == ASK ? ask() : what, before);
	return r ? r : code;
}
