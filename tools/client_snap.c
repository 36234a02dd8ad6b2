/* SPDX-License-Identifier: Apache-2.0 */

/*
 * checkpoint, restore, undo, fork: inside a view straight through its ioctl, with a syncfs before
 * so that dirty pages of shared mappings belong to the state; else through the store's socket,
 * which wants to be told explicitly what it is about (--store or --branch): nobody restores a
 * branch by standing in the wrong directory.
 */

#include "tools/client.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "store/base/util.h"
#include "store/base/words.h"

/*
 * DONE: cl->in_view tells where to go: true = ioctl on view_fd. Otherwise an exit code.
 * again: the words that would work, for the message.
 */
static int find_view(struct client *cl, const char *dir, const char *branch, const char *again)
{
	int r;

	if (cl->store_option || branch) {
		if (dir)
			return client_misuse(
				cl, "a directory tells the branch; leave out --store and --branch");
		return DONE;
	}

	r = client_look(cl, dir ? dir : ".");
	if (r < 0)
		return client_look_failed(cl, r, dir ? dir : ".");
	if (!cl->in_view)
		return client_fail(cl, "'%s' is not in a plyfs view; cd into one, or: plyfs %s",
				   dir ? dir : ".", again);
	(void)syncfs(cl->view_fd); /* on a read-only view there is nothing to flush */
	return DONE;
}

/* A word that is no directory was meant for a label, as other programs take it. */
static int is_no_directory(struct client *cl, const char *dir)
{
	_cleanup_free_ char *word = NULL;

	if (access(dir, F_OK) == 0 || errno != ENOENT)
		return DONE;
	word = shell_word(dir);
	return client_fail(cl, "'%s': %s; a label is given by -m %s", dir, strerror(ENOENT),
			   word ? word : "LABEL");
}

int client_checkpoint(struct client *cl)
{
	const char *label = "", *branch = NULL;
	bool sync_too = false;
	const struct option_def defs[] = {
		{ .name = "label", .letter = 'm', .text = &label },
		{ .name = "branch", .word = &branch },
		{ .name = "sync", .flag = &sync_too },
	};
	struct plyfs_checkpoint c = {};
	int r = client_parse(cl, defs, ARRAY_SIZE(defs), 0, 0, 1);

	if (r)
		return r;
	if (strlen(label) >= sizeof(c.label))
		return client_misuse(cl, "a label has at most %zu bytes", sizeof(c.label) - 1);
	if (cl->args.n && !*label)
		r = is_no_directory(cl, cl->args.v[0]);
	if (r == DONE)
		r = find_view(cl, cl->args.n ? cl->args.v[0] : NULL, branch, "checkpoint DIR");
	if (r)
		return r;
	if (!cl->in_view)
		return client_send(cl, true, cl->argc, cl->argv);

	c.flags = sync_too ? PLYFS_CHECKPOINT_SYNC : 0;
	strcpy(c.label, label);
	if (ioctl(cl->view_fd, PLYFS_IOC_CHECKPOINT, &c) < 0) {
		char *in_words[] = { cl->argv[0], "--sync", "--branch", cl->info.branch };

		if (sync_too && errno == EIO) /* the daemon can say which file that is */
			return client_send(cl, true, ARRAY_SIZE(in_words), in_words);
		return client_ioctl_failed(cl, errno, NULL);
	}
	printf("%.*s\n", PLYFS_ID_SIZE, c.id);
	return fflush(stdout) ? client_fail(cl, "writing the id: %s", strerror(errno)) : DONE;
}

/* One line for people who watch. */
static void tell_restored(struct client *cl, const struct plyfs_restore *q)
{
	if (!isatty(STDERR_FILENO))
		return;
	if (plyfs_restored_nothing(q))
		client_talk(cl, "at %.12s, where nothing had to change", q->id);
	else
		client_talk(cl, "at %.12s now; left %.12s, which 'plyfs undo' brings back", q->id,
			    q->left);
}

int client_restore(struct client *cl)
{
	const char *branch = NULL, *id;
	const struct option_def defs[] = {
		{ .name = "branch", .word = &branch },
	};
	struct plyfs_restore q = {};
	_cleanup_free_ char *word = NULL, *again = NULL;
	int r = client_parse(cl, defs, ARRAY_SIZE(defs), 0, 1, 2);

	if (r)
		return r;
	id = cl->args.v[0];
	word = shell_word(id);
	if (!word || asprintf(&again, "restore %s DIR", word) < 0)
		return client_fail(cl, "%s", strerror(ENOMEM));
	r = find_view(cl, cl->args.n > 1 ? cl->args.v[1] : NULL, branch, again);
	if (r)
		return r;
	if (!cl->in_view)
		return client_send(cl, true, cl->argc, cl->argv);

	if (strlen(id) >= sizeof(q.id)) { /* "@" and the longest label: the socket takes them */
		char *in_words[] = { cl->argv[0], "--branch", cl->info.branch, "--", (char *)id };

		if (!*cl->info.branch)
			return client_ioctl_failed(cl, EROFS, id);
		return client_send(cl, true, ARRAY_SIZE(in_words), in_words);
	}
	strcpy(q.id, id);
	if (plyfs_control(cl->view_fd, PLYFS_IOC_RESTORE, &q) < 0) {
		if (errno == ENOENT)
			return client_fail(cl,
					   "no snapshot or branch is called '%s'; 'plyfs tree' "
					   "lists all, a label is written @LABEL", id);
		if (errno == EINVAL)
			return client_fail(
				cl, "more than one snapshot id starts with '%s'; give more digits",
				id);
		return client_ioctl_failed(cl, errno, id);
	}
	tell_restored(cl, &q);
	if (q.flags & PLYFS_RESTORE_NEWER)
		client_talk(cl, BRANCH_IS_NEWER, id, id);
	return DONE;
}

int client_undo(struct client *cl)
{
	const char *branch = NULL;
	const struct option_def defs[] = {
		{ .name = "branch", .word = &branch },
	};
	struct plyfs_restore q = {};
	int r = client_parse(cl, defs, ARRAY_SIZE(defs), 0, 0, 1);

	if (r)
		return r;
	r = find_view(cl, cl->args.n ? cl->args.v[0] : NULL, branch, "undo DIR");
	if (r)
		return r;
	if (!cl->in_view)
		return client_send(cl, true, cl->argc, cl->argv);

	if (plyfs_control(cl->view_fd, PLYFS_IOC_UNDO, &q) < 0) {
		if (errno == ENOENT)
			return client_fail(cl, "there is no restore to undo on this branch");
		return client_ioctl_failed(cl, errno, NULL);
	}
	tell_restored(cl, &q);
	return DONE;
}

/* The mounted form: one mount(2), one message. */
static int fork_and_mount(struct client *cl, const char *from, const char *name, const char *at,
			  struct fuse_mount *m)
{
	_cleanup_free_ char *mountpoint = NULL, *from_word = NULL;
	char without[LEVERS_TEXT_SIZE];
	char *argv[13];
	int argc = 0, r;

	r = mount_point_check(cl, at, false, &mountpoint);
	if (r)
		return r;
	m->mountpoint = mountpoint;

	argv[argc++] = (char *)"fork";
	if (from) { /* in one word: alone it may be one that asks for help */
		if (asprintf(&from_word, "--from=%s", from) < 0)
			return client_fail(cl, "%s", strerror(ENOMEM));
		argv[argc++] = from_word;
	}
	argv[argc++] = (char *)"--at";
	argv[argc++] = mountpoint;
	argc = add_options(argv, argc, &m->options, without);
	argv[argc++] = (char *)"--";
	argv[argc++] = (char *)name;
	argv[argc] = NULL;
	return mount_and_send(cl, m, argc, argv);
}

int client_fork(struct client *cl)
{
	const char *from = NULL, *at = NULL, *name;
	struct fuse_mount m = {};
	const struct option_def defs[] = {
		{ .name = "from", .word = &from },
		{ .name = "at", .word = &at },
		{ .name = "private", .flag = &m.private },
		{ .name = "allow-other", .flag = &m.allow_other },
		OPTIONS_MOUNT(&m.options),
	};
	struct plyfs_fork q = {};
	int r = client_parse(cl, defs, ARRAY_SIZE(defs), 0, 1, 1);

	if (r)
		return r;
	if (m.private && m.allow_other)
		return client_misuse(cl, "either --private or --allow-other");
	if (!at && (m.private || m.allow_other || mount_how(&m.options)))
		return client_misuse(cl, "--%s goes with --at",
				     m.private		  ? "private"
				     : m.allow_other	  ? "allow-other"
				     : m.options.io_uring ? "io-uring"
				     : m.options.inotify  ? "inotify"
							  : "without");
	name = cl->args.v[0];
	if (strlen(name) >= sizeof(q.name))
		return client_misuse(cl, "a branch name has at most %zu bytes", sizeof(q.name) - 1);

	if (!cl->store_option || !from) {
		r = client_look(cl, ".");
		if (!from && r == -EPERM)
			return client_ioctl_failed(cl, -r, NULL);
	}
	if (cl->in_view)
		(void)syncfs(cl->view_fd); /* dirty shared mappings belong to the fork */
	if (at)
		return fork_and_mount(cl, from, name, at, &m);
	if (from || cl->store_option || !cl->in_view || !*cl->info.branch)
		return client_send(cl, true, cl->argc, cl->argv);

	strcpy(q.name, name);
	if (ioctl(cl->view_fd, PLYFS_IOC_FORK, &q) < 0) {
		if (errno == EEXIST)
			return client_fail(cl, "a branch '%s' exists", name);
		if (errno == EINVAL)
			return client_misuse(
				cl,
				"a branch name is 1 to 63 of A-Z a-z 0-9 . _ - "
				"and no leading dot or dash");
		return client_ioctl_failed(cl, errno, name);
	}
	return DONE;
}
