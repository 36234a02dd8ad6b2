/* SPDX-License-Identifier: Apache-2.0 */

/* plyfs export: a state becomes a directory, a tar file or a commit. */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <sys/stat.h>
#include <time.h>

#include "env/transfer/transfer.h"
#include "store/base/err.h"
#include "store/base/os.h"
#include "store/base/util.h"
#include "tools/cmd.h"
#include "tools/cmd_util.h"
#include "tools/daemon.h"
#include "tools/transfer_talk.h"

/* 1, 0 or -errno. */
static int dir_is_empty(int dir_fd)
{
	int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), n = 0, r;
	DIR *d;

	if (fd < 0)
		return -errno;
	d = fdopendir(fd);
	if (!d) {
		(void)close(fd); /* nothing was written */
		return -ENOMEM;
	}
	while (n < 3 && (errno = 0, readdir(d))) /* "." and ".." */
		n++;
	r = n < 3 && errno ? -errno : n < 3;
	(void)closedir(d); /* nothing was written */
	return r;
}

static int to_dir(struct cmd *c, struct root *root, const char *path, struct transfer_talk *talk,
		  struct transfer_stats *ret)
{
	_cleanup_close_ int fd = -1;
	int r;

	r = cmd_openat(c, path, O_RDONLY | O_DIRECTORY, 0, &fd);
	if (r == -ENOENT) {
		r = cmd_mkdirat(c, path, 0700);
		if (r == 0)
			r = cmd_openat(c, path, O_RDONLY | O_DIRECTORY, 0, &fd);
	}
	if (r == 0)
		r = dir_is_empty(fd);
	if (r < 0)
		return cmd_fail(c, r, "'%s'", path);
	if (r == 0)
		return cmd_fail(c, 0, "'%s' is not empty; give a directory that is, or none yet",
				path);

	r = export_directory(c->store, root, fd, &talk->ops, ret);
	cmd_progress_end(c);
	return r < 0 ? transfer_talk_fail(talk, r, path) : CMD_DONE;
}

/*
 * A new file beside path, which replaces what is there: half an archive is of no use, and less than
 * the one before. old: that is a file; its owner and mode are kept.
 */
static int open_beside(struct cmd *c, const char *path, const struct stat *old, char **ret_path,
		       int *ret_fd)
{
	const char *slash = strrchr(path, '/');
	_cleanup_free_ char *made = NULL;
	int r;

	if (asprintf(&made, "%.*s.plyfs-export-%d-%" PRIx64, slash ? (int)(slash + 1 - path) : 0,
		     path, (int)getpid(), now_ns()) < 0)
		return -ENOMEM;
	r = cmd_openat(c, made, O_WRONLY | O_CREAT | O_EXCL, 0600, ret_fd);
	if (r < 0)
		return r;
	if (old)
		(void)!fchown(*ret_fd, old->st_uid, old->st_gid); /* where we may */
	(void)fchmod(*ret_fd, old ? old->st_mode & 07777 : 0666 & ~c->umask);
	*ret_path = TAKE_PTR(made);
	return 0;
}

/*
 * The path and state of the file that a link leads to, for that to be replaced, and not the link.
 * False: it leads to no file, or is a process's (/proc/PID/fd/N), where what is open is meant.
 */
static bool leads_to_file(struct cmd *c, const char *path, char ret_path[static PATH_MAX],
			  struct stat *ret)
{
	_cleanup_close_ int fd = -1;

	return strncmp(path, "/proc/", 6) != 0 && cmd_openat(c, path, O_PATH, 0, &fd) == 0 &&
	       fstat(fd, ret) == 0 && S_ISREG(ret->st_mode) && path_of_fd(fd, ret_path);
}

#define READER_STEP_NS 10000000 /* nobody sees so short a wait */

/* What is there. Of a fifo a reader is waited for, as long as the client is. */
static int open_there(struct cmd *c, const char *path, int *ret_fd)
{
	struct stat st;
	int r;

	for (;;) {
		r = cmd_openat(c, path, O_WRONLY | O_TRUNC | O_NONBLOCK | O_NOCTTY, 0, ret_fd);
		if (r != -ENXIO || fstatat(c->cwd_fd, path, &st, 0) < 0 || !S_ISFIFO(st.st_mode))
			return r;
		if (__atomic_load_n(&c->cancel, __ATOMIC_RELAXED))
			return -ERR_CANCELLED;
		(void)nanosleep(&(struct timespec){ .tv_nsec = READER_STEP_NS }, NULL);
	}
}

static int to_tar(struct cmd *c, struct root *root, const char *path, struct transfer_talk *talk,
		  struct transfer_stats *ret)
{
	_cleanup_free_ char *beside = NULL;
	char file[PATH_MAX];
	const char *at = path;
	struct stat old, led;
	bool exists;
	int fd = -1, r;

	if (strcmp(path, "-") == 0) {
		if (c->out_tty)
			return cmd_misuse(c, "a tar file does not go to a terminal; redirect it");
		if (c->out_fd < 0)
			return cmd_fail(c, 0, "there is no stdout to write to");
		(void)fflush(c->out); /* nothing was printed yet */
		r = export_tar(c->store, root, c->out_fd, &talk->ops, ret);
		cmd_progress_end(c);
		c->unread = r == -EPIPE;
		return r < 0 && !c->unread ? transfer_talk_fail(talk, r, "stdout") : CMD_DONE;
	}

	exists = fstatat(c->cwd_fd, path, &old, AT_SYMLINK_NOFOLLOW) == 0;
	if (!exists && errno != ENOENT)
		return cmd_fail(c, -errno, "'%s'", path);
	if (exists && S_ISLNK(old.st_mode) && leads_to_file(c, path, file, &led)) {
		old = led;
		at = file;
	}
	r = exists && !S_ISREG(old.st_mode)
		    ? -EEXIST
		    : open_beside(c, at, exists ? &old : NULL, &beside, &fd);
	if (exists && (r == -EEXIST || r == -EACCES)) /* a pipe; not our directory */
		r = open_there(c, at, &fd);
	if (r < 0)
		return cmd_fail(c, r, "'%s'", path);

	r = export_tar(c->store, root, fd, &talk->ops, ret);
	if (r == 0 && beside && exists && fsync(fd) < 0)
		r = -errno;
	if (close(fd) < 0 && r == 0)
		r = -errno;
	if (r == 0 && beside && renameat(c->cwd_fd, beside, c->cwd_fd, at) < 0)
		r = -errno;
	cmd_progress_end(c);
	if (r == 0)
		return CMD_DONE;
	if (beside)
		(void)unlinkat(c->cwd_fd, beside, 0); /* r says what matters */
	return transfer_talk_fail(talk, r, path);
}

/* What an export answers with, beside its statistics. */
struct made {
	char commit[COMMIT_ID_SIZE]; /* "": none */
	char *ref;		     /* owned */
};

static void made_release(struct made *m)
{
	free(m->ref);
}

/* Of a snapshot its own time and label; a branch's present state is of now. */
static int name_commit(struct cmd *c, const struct cmd_state *state, const char *branch,
		       char **ret_message, int64_t *ret_time, char **ret_ref)
{
	const char *name = state->id ? state->name : state->name + strlen("branch ");
	struct snap_info info = { .time_ns = os_now_ns() };
	int r = state->id ? snap_get(c->store, state->id, &info) : 0;

	if (r == 0 && (asprintf(ret_message, "%s%s", *info.label ? info.label : "plyfs ",
				*info.label ? "" : name) < 0 ||
		       asprintf(ret_ref, "refs/%s/%s", branch ? "heads" : "plyfs",
				branch ? branch : name) < 0))
		r = -ENOMEM;
	*ret_time = info.time_ns / 1000000000;
	return r;
}

static int to_git(struct cmd *c, const struct cmd_state *state, const char *text,
		  struct transfer_talk *talk, struct made *made, struct transfer_stats *ret)
{
	_cleanup_free_ char *repo = NULL, *path = NULL, *message = NULL;
	struct export_commit commit = { .umask = c->umask };
	const char *branch = NULL;
	int r;

	(void)transfer_split(c, text, &repo, &branch);
	r = cmd_path(c, repo ? repo : text, &path);
	if (r == 0)
		r = name_commit(c, state, branch, &message, &commit.time, &made->ref);
	if (r < 0)
		return cmd_fail(c, r, "'%s'", text);
	commit.path = path;
	commit.ref = made->ref;
	commit.message = message;
	r = export_git(c->store, state->root, &commit, &talk->ops, made->commit, ret);
	cmd_progress_end(c);
	return r < 0 ? transfer_talk_fail(talk, r, text) : CMD_DONE;
}

static int report(struct cmd *c, const struct made *made, const struct transfer_stats *stats)
{
	json_t *object = json_pack("{s:I, s:I, s:I, s:I, s:I}", "files", (json_int_t)stats->files,
				   "directories", (json_int_t)stats->dirs, "others",
				   (json_int_t)stats->others, "bytes", (json_int_t)stats->bytes,
				   "skipped", (json_int_t)stats->skipped);

	if (object && made->ref &&
	    (json_object_set_new(object, "commit", json_string(made->commit)) < 0 ||
	     json_object_set_new(object, "ref", json_text(made->ref)) < 0))
		return cmd_fail(c, -ENOMEM, "JSON");
	return cmd_json(c, object);
}

int cmd_export(struct cmd *c)
{
	const char *dir = NULL, *tar = NULL, *git = NULL;
	bool json = false;
	const struct option_def options[] = {
		{ .name = "dir", .word = &dir },
		{ .name = "tar", .word = &tar },
		{ .name = "git", .word = &git },
		{ .name = "json", .flag = &json },
	};
	_cleanup_state_ struct cmd_state state = { 0 };
	_cleanup_(transfer_talk_release) struct transfer_talk talk = { 0 };
	_cleanup_(made_release) struct made made = { 0 };
	struct transfer_stats stats = { 0 };
	int r;

	r = cmd_parse(c, options, ARRAY_SIZE(options), 1, 1);
	if (r)
		return r;
	if (!!dir + !!tar + !!git != 1)
		return cmd_misuse(c, "wants one of --dir D, --tar F and --git REPO");
	if (json && tar && strcmp(tar, "-") == 0)
		return cmd_misuse(c, "--json and a tar file cannot both go to stdout");

	r = cmd_state(c, c->args.v[0], &state);
	if (r)
		return r;
	transfer_talk_init(&talk, c);
	if (dir)
		r = to_dir(c, state.root, dir, &talk, &stats);
	else if (tar)
		r = to_tar(c, state.root, tar, &talk, &stats);
	else
		r = to_git(c, &state, git, &talk, &made, &stats);
	if (r == CMD_DONE && json)
		return report(c, &made, &stats);
	if (r == CMD_DONE && git)
		fprintf(c->out, "%s\n", made.commit);
	return r;
}
