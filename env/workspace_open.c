/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The life of a workspace: finding or mounting its view, forking it, and taking it down.
 *
 * What is undone at the end is decided before anything is done (struct workspace is the plan), so
 * that the keeper can be told first: a caller that is killed between any two steps leaves nothing
 * mounted (at most a branch in the store that it had named itself). What the keeper then runs may
 * find that a step was not yet taken, and fails harmlessly.
 */

#include "env/workspace.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#include "env/env_internal.h"
#include "env/files.h"
#include "env/place.h"
#include "env/proc.h"
#include "env/program.h"
#include "env/status.h"
#include "env/workspace_internal.h"
#include "store/base/util.h"

static void free_commands(char ***argvs, size_t n)
{
	for (size_t i = 0; i < n; i++)
		argv_free(argvs[i]);
	free(argvs);
}

static void workspace_free(struct workspace **p)
{
	struct workspace *ws = *p;

	if (!ws)
		return;
	own_fd_close(&ws->fd);
	free(ws->path);
	free(ws->mount);
	free(ws->store);
	free(ws->made);
	free(ws->aside);
	free_commands(ws->first, ws->n_first);
	free(ws);
}

static int workspace_new(struct workspace **ret)
{
	struct workspace *ws = calloc(1, sizeof(*ws));

	if (!ws)
		return fail_memory();
	ws->fd = OWN_FD_NONE;
	*ret = ws;
	return 0;
}

static int set_text(char **slot, const char *text)
{
	char *copy = strdup(text);

	if (!copy)
		return fail_memory();
	free(*slot);
	*slot = copy;
	return 0;
}

/* NULL or "": the usual one. */
static enum ending ending_of(const char *text, enum ending usual)
{
	static const char *const names[] = { "keep", "write-back", "unmount", "drop" };

	for (int i = 0; text && i < (int)ARRAY_SIZE(names); i++)
		if (strcmp(text, names[i]) == 0)
			return (enum ending)i;
	return usual;
}

/* ---- what is there ---- */

/*
 * Opens ws->path and asks whose it is. 1: it lies in a view, and ws->fd is its; 0: it does not (nor
 * a dead one, whose daemon is gone: what it covers can be mounted again).
 */
static int look(struct workspace *ws, struct plyfs_info *ret)
{
	_cleanup_own_fd_ struct own_fd fd = OWN_FD_NONE;
	const char *path = ws->path;
	struct statfs fs;
	int r;

	r = own_fd_open(&fd, path, O_RDONLY | O_DIRECTORY);
	if (r == -ENOTCONN || r == -ECONNABORTED)
		return 0;
	if (r < 0)
		return fail_errno(-r, "'%s'", path);
	/* A foreign filesystem might take our number for something of its own. */
	if (fstatfs(fd.fd, &fs) < 0) {
		if (plyfs_is_dead_view(errno) || errno == EACCES || errno == EPERM)
			return 0; /* as below */
		return fail_errno(errno, "'%s'", path);
	}
	if (fs.f_type != FUSE_SUPER_MAGIC)
		return 0;
	if (ioctl(fd.fd, PLYFS_IOC_INFO, ret) < 0) {
		/* EPERM: somebody else's, and what is then tried on it says so. */
		if (plyfs_is_no_view(errno) || plyfs_is_dead_view(errno) || errno == EPERM)
			return 0;
		return fail_errno(errno, "'%s'", path);
	}
	if (ret->version != PLYFS_IOC_VERSION)
		return 0;
	own_fd_close(&ws->fd);
	ws->fd = fd;
	fd = OWN_FD_NONE;
	return 1;
}

/* Where the mount begins that a directory lies in: upwards until the device is another one. */
static int find_mount(const char *path, char **ret)
{
	_cleanup_free_ char *at = strdup(path);
	struct stat here, above;
	int r;

	if (!at)
		return fail_memory();
	if (stat(at, &here) < 0)
		return fail_errno(errno, "'%s'", path);
	for (char *slash; (slash = strrchr(at, '/')) && at[1];) {
		char kept = slash == at ? at[1] : *slash;

		slash[slash == at] = '\0';
		r = stat(at, &above);
		if (r < 0) /* a directory of the view would pass for its root */
			return fail_errno(errno, "'%s'", at);
		if (above.st_dev != here.st_dev) {
			slash[slash == at] = kept;
			break;
		}
	}
	*ret = TAKE_PTR(at);
	return 0;
}

/* Takes what INFO said of the view that ws->path lies in. */
static int adopt(struct workspace *ws, const struct plyfs_info *info)
{
	struct stat st;
	int r;

	if (fstat(ws->fd.fd, &st) < 0)
		return fail_errno(errno, "'%s'", ws->path);
	ws->device = st.st_dev;
	if (info->read_only || !*info->branch)
		return fail(PLY_INVALID,
			    "'%s' shows a snapshot, which never changes; fork it: set 'store' to "
			    "'%.4000s' and 'from' to '%.12s'",
			    ws->path, info->store, info->head);
	r = set_text(&ws->store, info->store);
	if (r == 0 && !ws->mount)
		r = find_mount(ws->path, &ws->mount);
	memcpy(ws->branch, info->branch, sizeof(ws->branch));
	ws->branch[sizeof(ws->branch) - 1] = '\0';
	return r;
}

/* Where to mount: the caller's place (it is ours to make if it is not there), or a new one. */
static int choose_place(struct workspace *ws, const char *at)
{
	int r;

	if (at && *at)
		r = files_absolute(at, &ws->path);
	else
		r = place_plan(&ws->path);
	if (r == 0)
		r = set_text(&ws->mount, ws->path);
	if (r < 0)
		return r;
	if (access(ws->path, F_OK) < 0 && errno == ENOENT)
		return set_text(&ws->made, ws->path);
	return place_check_empty(ws->path);
}

/* ---- mounting ---- */

/* When the program did not mount: because this machine cannot? */
static int mount_failed(int r)
{
	static const char *const doctor[] = { "doctor", NULL };
	struct ply_text out = { 0 }, err = { 0 };
	struct sentence said;
	int code = 0, s;

	if (r != PLY_COMMAND_FAILED)
		return r;
	sentence_get(&said);
	s = program_run("/", doctor, -1, &out, &err, &code);
	ply_text_free(&out);
	ply_text_free(&err);
	if (s == 0 && code)
		return fail(PLY_NOT_HERE,
			    "%s; this machine cannot mount views: 'plyfs doctor' says why",
			    said.text);
	return fail(PLY_FAILED, "%s", said.text);
}

static int check_fuse(void)
{
	if (access("/dev/fuse", R_OK | W_OK) == 0)
		return 0;
	return fail(PLY_NOT_HERE,
		    "/dev/fuse: %s; views cannot be mounted here, 'plyfs doctor' says what to do",
		    strerror(errno));
}

/* A verb whose output does not matter. PLY_COMMAND_FAILED. */
static int do_verb(const char *cwd, const char *const *args, int held)
{
	struct ply_text out = { 0 }, err = { 0 };
	int code = -1, r;

	r = program_run(cwd, args, held, &out, &err, &code);
	if (code == 0)
		r = 0; /* it was done, whether or not we can read what it said */
	if (r == 0 && code)
		r = fail(PLY_COMMAND_FAILED, "%s",
			 err.len ? err.data : "the plyfs program was ended by a signal");
	ply_text_free(&out);
	ply_text_free(&err);
	return r;
}

int workspace_held_verb(struct keeper *k, const char *cwd, const char *const *args)
{
	_cleanup_own_fd_ struct own_fd held = OWN_FD_NONE;
	int theirs, r;

	if (!k)
		return do_verb(cwd, args, -1);
	r = own_fd_pipe(&theirs, &held);
	if (r < 0)
		return fail_errno(-r, "a pipe");
	/* One that was killed undoes nothing and need not wait: a view is taken down without it. */
	(void)keeper_hold(k, theirs);
	(void)close(theirs); /* the keeper has its own */
	return do_verb(cwd, args, held.fd);
}

/*
 * Unmounts $1, patiently: the helpers of a caller that was killed may have it open for a moment.
 * $0: the program, $2: --write-back or nothing. If somebody else is in it, lazily; not when it is
 * to be written back: then it stays.
 */
#define PATIENTLY                                                                                  \
	"for i in 1 2 3 4 5 6 7 8 9 10; do \"$0\" unmount $2 -- \"$1\" && exit; sleep 0.1; done; " \
	"[ -n \"$2\" ] || exec \"$0\" unmount --lazy -- \"$1\""
#define COMMANDS_MAX 5

/* What it is to run when we die. */
static int tell_keeper(struct workspace *ws, struct keeper *k)
{
	char program[PATH_MAX];
	const char *const off_aside[] = { program, "unmount", "--lazy", "--", ws->aside, NULL };
	const char *const rmdir_aside[] = { "rmdir", "--", ws->aside, NULL };
	const char *const back[] = {
		"sh", "-c", PATIENTLY, program, ws->mount, "--write-back", NULL
	};
	const char *const off[] = { "sh", "-c", PATIENTLY, program, ws->mount, NULL };
	const char *const drop[] = { program, "--store",  ws->store, "drop", "--with-snapshots",
				     "--",    ws->branch, NULL };
	const char *const rmdir_made[] = { "rmdir", "--", ws->made, NULL };
	_cleanup_free_ const char *const **list = NULL;
	size_t n = ws->n_first;
	int r;

	ws->keeper = k;
	if (!k)
		return 0;
	r = program_find(program);
	if (r < 0)
		return r;
	list = calloc(n + COMMANDS_MAX, sizeof(*list));
	if (!list)
		return fail_memory();
	for (size_t i = 0; i < n; i++)
		list[i] = (const char *const *)ws->first[i];
	if (ws->aside) {
		list[n++] = off_aside;
		list[n++] = rmdir_aside;
	}
	if (ws->ending == WRITE_BACK)
		list[n++] = back;
	if (ws->ending == UNMOUNT || ws->ending == DROP)
		list[n++] = off;
	if (ws->ending == DROP)
		list[n++] = drop;
	if (ws->ending != KEEP && ws->made)
		list[n++] = rmdir_made;
	return keeper_on_death(k, list, n);
}

/* A copy of a NULL-terminated list of words; NULL: no memory. */
static char **copy_words(const char *const *words)
{
	size_t n = 0;
	char **argv;

	while (words[n])
		n++;
	argv = calloc(n + 1, sizeof(*argv));
	for (size_t i = 0; argv && i < n; i++) {
		argv[i] = strdup(words[i]);
		if (!argv[i]) {
			argv_free(argv);
			return NULL;
		}
	}
	return argv;
}

int workspace_on_death(struct workspace *ws, const char *const *const *argvs, size_t n)
{
	char ***copies = calloc(n + 1, sizeof(*copies));

	if (!copies)
		return fail_memory();
	for (size_t i = 0; i < n; i++) {
		copies[i] = copy_words(argvs[i]);
		if (!copies[i]) {
			free_commands(copies, i);
			return fail_memory();
		}
	}
	free_commands(ws->first, ws->n_first);
	ws->first = copies;
	ws->n_first = n;
	return tell_keeper(ws, ws->keeper);
}

/* The program's answer to a question. Keeps the sentence that is there. */
static bool answers(const char *const *args)
{
	_cleanup_(ply_text_free) struct ply_text out = { 0 }, err = { 0 };
	int code = -1;
	KEEP_SENTENCE;

	return program_run("/", args, -1, &out, &err, &code) == 0 && code == 0;
}

/* Is the branch another's? A fork that could not be mounted has left none. */
static bool is_taken(const struct workspace *ws)
{
	const char *const args[] = { "--store",	 ws->store,  "log", "--count", "0",
				     "--branch", ws->branch, NULL };

	return answers(args);
}

/* A state compared with itself is only looked up; a store that is none answers neither. */
static bool is_unknown(const struct workspace *ws, const char *state)
{
	const char *const look_up[] = { "--store", ws->store, "diff", "--", state, state, NULL };
	const char *const none[] = { "--store", ws->store, "log", "--count", "0", NULL };

	return !answers(look_up) && answers(none);
}

#define GONE "the view on '%s' has gone at once"

/* A fork that ws is the plan of. words: the verb, up to the branch's name. */
static int mount_fork(struct workspace *ws, const char *cwd, const char *const *words,
		      struct keeper *k)
{
	const char *args[12];
	struct plyfs_info info;
	const enum ending ending = ws->ending;
	size_t n = 0;
	int r;

	/* A name that the caller chose may be somebody's: not to be dropped before it is ours. */
	if (ending == DROP && !ws->is_new)
		ws->ending = UNMOUNT;
	r = tell_keeper(ws, k);
	if (r == 0 && ws->made)
		r = place_make(ws->made);
	if (r < 0)
		return r;
	while (words[n]) {
		args[n] = words[n];
		n++;
	}
	args[n++] = "--at";
	args[n++] = ws->path;
	args[n++] = "--";
	args[n++] = ws->branch;
	args[n] = NULL;
	r = workspace_held_verb(k, cwd, args);
	if (r == PLY_COMMAND_FAILED && !ws->is_new && is_taken(ws))
		return PLY_EXISTS; /* the program has said so */
	r = mount_failed(r);
	if (r == 0)
		ws->undoing = DROP;
	if (r == 0 && ws->ending != ending) {
		ws->ending = ending;
		r = tell_keeper(ws, k);
	}
	if (r < 0)
		return r;
	r = look(ws, &info);
	if (r == 0)
		r = fail(PLY_FAILED, GONE, ws->path);
	return r < 0 ? r : adopt(ws, &info);
}

static int make_branch_name(struct workspace *ws, const char *name)
{
	char text[PLACE_RANDOM];
	int r = 0;

	if (name && *name) {
		(void)snprintf(ws->branch, sizeof(ws->branch), "%s", name);
	} else {
		r = place_random(text);
		ws->is_new = true;
		(void)snprintf(ws->branch, sizeof(ws->branch), "env-%s", r < 0 ? "" : text);
	}
	return r;
}

/* ---- the end ---- */

/* Nobody is asked for it who may not answer: what cannot be looked at is there. */
static bool is_mounted(const struct workspace *ws)
{
	struct statx x;

	if (statx(AT_FDCWD, ws->mount, AT_NO_AUTOMOUNT | AT_STATX_DONT_SYNC, 0, &x) < 0)
		return errno != ENOENT;
	return makedev(x.stx_dev_major, x.stx_dev_minor) == ws->device;
}

static int unmount(struct workspace *ws)
{
	const char *back[] = { "unmount", "--write-back", "--", ws->mount, NULL };
	const char *off[] = { "unmount", "--", ws->mount, NULL };
	const char *given_up[] = { "unmount", "--no-sync", "--", ws->mount, NULL };
	int r;

	own_fd_close(&ws->fd);
	r = workspace_held_verb(ws->keeper, "/",
				ws->ending == WRITE_BACK ? back :
				ws->ending == DROP	 ? given_up :
							   off);
	if (r == 0)
		return 0;
	if (is_mounted(ws))
		return fail_in(r, "the view on '%s' stays mounted", ws->mount);
	/* Not written back, or held in another mount namespace: its place is free all the same. */
	if (ws->made)
		(void)rmdir(ws->made); /* ours, and empty */
	if (ws->ending != DROP)
		return fail_in(r, "the view on '%s' is unmounted", ws->mount);
	return fail_in(r, "branch '%s' stays, 'plyfs --store %s drop --with-snapshots %s' ends it",
		       ws->branch, ws->store, ws->branch);
}

/* As ws->ending has it. */
static int take_down(struct workspace *ws)
{
	const char *drop[] = { "--store", ws->store,  "drop", "--with-snapshots",
			       "--",	  ws->branch, NULL };
	int r;

	if (ws->ending == KEEP)
		return 0;
	r = unmount(ws);
	if (r == 0 && ws->ending == DROP)
		r = workspace_held_verb(ws->keeper, "/", drop);
	if (r == 0 && ws->made && rmdir(ws->made) < 0 && errno != ENOENT)
		r = fail_errno(errno, "removing '%s'", ws->made);
	return r;
}

int workspace_close(struct workspace *p)
{
	_cleanup_(workspace_free) struct workspace *ws = p;

	return take_down(ws);
}

/* ---- opening ---- */

/* Returns r, why it could not be opened. */
static int give_up(struct workspace *ws, int r)
{
	KEEP_SENTENCE;
	workspace_undo_at_close(ws);
	(void)take_down(ws); /* r says what matters */
	if (ws->made)
		(void)rmdir(ws->made); /* ours, and empty */
	return r;
}

static int open_fork(struct workspace *ws, const struct workspace_options *o, struct keeper *k)
{
	const char *words[] = { "--store", NULL, "fork", "--from", NULL, NULL };
	const char *store = o->store && *o->store ? o->store : getenv("PLYFS_STORE");
	const char *from = o->from && *o->from ? o->from : "main";
	int r;

	if (!store || !*store)
		return fail(PLY_INVALID, "'from' needs a store: set 'store' too, or PLYFS_STORE");
	if (ending_of(o->at_cleanup, DROP) == WRITE_BACK)
		return fail(PLY_INVALID,
			    "at_cleanup 'write-back' is for a directory that a view was mounted "
			    "over, not with 'from'");
	r = files_absolute(store, &ws->store);
	if (r == 0)
		r = make_branch_name(ws, o->branch);
	if (r == 0)
		r = choose_place(ws, o->workdir);
	if (r < 0)
		return give_up(ws, r);
	ws->ending = ending_of(o->at_cleanup, DROP);
	words[1] = ws->store;
	words[4] = from;
	r = mount_fork(ws, "/", words, k);
	if (r == PLY_FAILED && is_unknown(ws, from))
		r = PLY_UNKNOWN_ID; /* the program has said so */
	return r < 0 ? give_up(ws, r) : 0;
}

static int open_directory(struct workspace *ws, const struct workspace_options *o, struct keeper *k)
{
	const char *args[] = { "mount", "--update", "--", ws->path, NULL };
	struct plyfs_info info;
	int r, failed;

	if (o->branch && *o->branch)
		return fail(PLY_INVALID, "'branch' names a fork: it needs 'from' or 'store'");
	r = look(ws, &info);
	if (r < 0)
		return r;
	if (r > 0) {
		ws->ending = ending_of(o->at_cleanup, KEEP);
		r = adopt(ws, &info);
		return r < 0 ? r : tell_keeper(ws, k);
	}
	if (strcmp(ws->path, "/") == 0)
		return fail(PLY_DENIED, "Refusing to mount a view over /: choose a workdir");
	ws->ending = ending_of(o->at_cleanup, WRITE_BACK);
	r = set_text(&ws->mount, ws->path);
	if (r == 0)
		r = tell_keeper(ws, k);
	if (r < 0)
		return r;
	failed = mount_failed(workspace_held_verb(k, "/", args));
	if (failed == 0)
		ws->undoing = UNMOUNT;
	r = look(ws, &info);
	if (r <= 0)
		return failed < 0 ? failed
		       : give_up(ws, r < 0 ? r : fail(PLY_FAILED, GONE, ws->path));
	/* Somebody else was faster: theirs to unmount. */
	if (failed < 0)
		ws->ending = ending_of(o->at_cleanup, KEEP);
	r = adopt(ws, &info);
	if (r == 0 && failed < 0)
		r = tell_keeper(ws, k);
	return r < 0 ? give_up(ws, r) : 0;
}

int workspace_open(const struct workspace_options *o, struct keeper *k, struct workspace **ret)
{
	_cleanup_(workspace_free) struct workspace *ws = NULL;
	bool forks = (o->from && *o->from) || (o->store && *o->store);
	int r;

	if (!forks && (!o->workdir || !*o->workdir))
		return fail(PLY_INVALID, "where? set 'workdir', or 'store' and 'from'");
	r = workspace_new(&ws);
	if (r < 0)
		return r;
	if (forks) {
		r = check_fuse();
		if (r == 0)
			r = open_fork(ws, o, k);
	} else {
		r = files_absolute(o->workdir, &ws->path);
		if (r == 0)
			r = place_make(ws->path);
		if (r == 0)
			r = open_directory(ws, o, k);
	}
	if (r < 0)
		return r;
	*ret = TAKE_PTR(ws);
	return 0;
}

/* The same directory of another mount: path below from, moved to below to. */
static int move_path(const char *path, const char *from, const char *to, char **ret)
{
	const char *below = path + (strcmp(from, "/") == 0 ? 0 : strlen(from));
	char *moved;

	if (asprintf(&moved, "%s%s", to, below) < 0)
		return fail_memory();
	*ret = moved;
	return 0;
}

int workspace_fork(struct workspace *ws, const char *branch, const char *at, const char *at_cleanup,
		   struct keeper *k, struct workspace **ret)
{
	const char *words[] = { "fork", NULL };
	_cleanup_(workspace_free) struct workspace *fork = NULL;
	int r;

	r = check_fuse();
	if (r == 0)
		r = workspace_sync(ws);
	if (r == 0)
		r = workspace_new(&fork);
	if (r < 0)
		return r;
	fork->ending = ending_of(at_cleanup, DROP);
	if (fork->ending == WRITE_BACK)
		fork->ending = DROP;
	r = set_text(&fork->store, ws->store);
	if (r == 0)
		r = make_branch_name(fork, branch);
	if (r == 0)
		r = choose_place(fork, at);
	if (r == 0)
		r = mount_fork(fork, ws->mount, words, k);
	if (r == 0 && strcmp(ws->path, ws->mount) != 0) {
		free(fork->path);
		fork->path = NULL;
		r = move_path(ws->path, ws->mount, fork->mount, &fork->path);
	}
	if (r < 0)
		return give_up(fork, r);
	*ret = TAKE_PTR(fork);
	return 0;
}

int workspace_show_aside(struct workspace *ws, struct keeper *k, const char *snapshot,
			 const char **ret_at)
{
	int r;

	r = place_plan(&ws->aside);
	if (r == 0)
		r = tell_keeper(ws, k);
	if (r == 0)
		r = place_make(ws->aside);
	if (r == 0) {
		const char *const args[] = { "--store", ws->store, "mount",   "--snapshot",
					     snapshot,	"--at",	   ws->aside, NULL };

		r = mount_failed(workspace_held_verb(k, "/", args));
	}
	if (r < 0) {
		if (ws->aside)
			(void)rmdir(ws->aside); /* ours, and empty */
		free(ws->aside);
		ws->aside = NULL;
		return r;
	}
	*ret_at = ws->aside;
	return 0;
}

int workspace_end_aside(struct workspace *ws, struct keeper *k)
{
	const char *const args[] = { "unmount", "--", ws->aside, NULL };
	int r;

	r = workspace_held_verb(k, "/", args);
	if (r < 0)
		return r;	/* the keeper tries again */
	(void)rmdir(ws->aside); /* ours, and empty */
	free(ws->aside);
	ws->aside = NULL;
	return tell_keeper(ws, k);
}
