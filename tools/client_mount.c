/* SPDX-License-Identifier: Apache-2.0 */

/*
 * mount and unmount, and the short form: `plyfs mount DIR` on an ordinary directory.
 *
 * The short form keeps a store per directory below $XDG_DATA_HOME/plyfs. A file `origin` in that
 * store holds the directory's path; it is written after the import succeeded, so its absence means
 * "import (again)", as does that of the branch; when the mount then fails it is taken away again.
 * unmount finds out by it that it has a short-form view before it.
 */

#include "tools/client.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>

#include "store/base/err.h"
#include "store/base/util.h"
#include "store/base/words.h"
#include "tools/mount_users.h"
#include "tools/mounts.h"

static void closedirp(DIR **d)
{
	if (*d)
		(void)closedir(*d); /* read only */
}

static bool directory_is_empty(const char *path)
{
	_cleanup_(closedirp) DIR *d = opendir(path);
	struct dirent *e;

	if (!d)
		return true; /* what mount(2) then says is more to the point */
	while (errno = 0, (e = readdir(d)))
		if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
			return false;
	return errno == 0; /* what cannot be listed may hold something */
}

/* realpath, also where the last part is a dead mount that cannot be asked. */
static char *absolute(const char *path)
{
	char *real = realpath(path, NULL);
	char cwd[PATH_MAX], *made = NULL;

	if (real || !plyfs_is_dead_view(errno))
		return real;
	if (path[0] == '/')
		made = strdup(path);
	else if (!getcwd(cwd, sizeof(cwd)) || asprintf(&made, "%s/%s", cwd, path) < 0)
		return NULL;
	for (size_t n = made ? strlen(made) : 0; n > 1 && made[n - 1] == '/'; n--)
		made[n - 1] = 0;
	return made;
}

/* By its look: a view of another user, which tells us nothing of itself, nor root. */
static bool is_closed(int r)
{
	return r == -EACCES || r == -EPERM;
}

/* How often others may take views off just when we look: more than lie on each other. */
#define TRIES 100

int mount_point_check(struct client *cl, const char *dir, bool over, char **ret_path)
{
	_cleanup_free_ char *path = absolute(dir);
	struct stat st;
	unsigned tries = 0;
	int r;

	if (!path && errno == ENOENT && over)
		return client_fail(cl, "there is no directory '%s'", dir);
	if (!path)
		return errno == ENOENT
			       ? client_fail(
					 cl,
					 "the mount point '%s' does not exist; make it with mkdir",
					 dir)
			       : client_fail(cl, "the mount point '%s': %s", dir, strerror(errno));

	/*
	 * A view that lost its daemon is taken off; views may lie on each other. Its supervisor may
	 * be faster at each step: then there is no view, or no mount, and one looks again.
	 */
	while (mounts_is_plyfs(path) == 1) {
		struct client at = { .verb = cl->verb, .store_fd = -1, .view_fd = -1 };

		r = client_look_with_patience(&at, path);
		if (r == 0 && !at.in_view && tries++ < TRIES)
			continue;
		if (r == -ETIMEDOUT || client_look_is_unclear(r))
			return client_look_failed(cl, r, path);
		if (r != -ENOTCONN) {
			closep(&at.view_fd);
			return client_fail(cl, "'%s' is a mounted plyfs view already (%s%s)", path,
					   is_closed(r)	      ? "another user's"
					   : *at.info.branch ? "branch "
							     : "snapshot ",
					   *at.info.branch ? at.info.branch : at.info.head);
		}
		r = mounts_unmount(path, true);
		if (r < 0 && (r != -EINVAL || tries++ >= TRIES))
			return client_fail(cl, "taking the dead view off '%s': %s", path,
					   strerror(-r));
	}

	if (stat(path, &st) < 0)
		return client_fail(cl, "the mount point '%s': %s", path, strerror(errno));
	if (!S_ISDIR(st.st_mode))
		return client_fail(cl, "the mount point '%s' is not a directory", path);
	if (!over && !directory_is_empty(path)) {
		if (mounts_is_plyfs(path) == 1) /* mounted since we looked */
			return mount_point_check(cl, dir, over, ret_path);
		if (!directory_is_empty(path)) /* nor was a view that is taken off by now */
			return client_fail(cl, "the mount point '%s' is not empty%s", path,
					   cl->args.n && dir == cl->args.v[0] && !cl->store_option
						   ? "; PLYFS_STORE names a store; unset it for "
						     "the short form"
						   : "; mount on an empty directory");
	}

	*ret_path = TAKE_PTR(path);
	return DONE;
}

int add_options(char **argv, int argc, const struct mount_options *o,
		char text[static LEVERS_TEXT_SIZE])
{
	if (*levers_to_text(o->without, text)) {
		argv[argc++] = (char *)"--without";
		argv[argc++] = text;
	}
	if (o->io_uring)
		argv[argc++] = (char *)"--io-uring";
	if (o->inotify)
		argv[argc++] = (char *)"--inotify";
	return argc;
}

/* A mount takes some ms; an import before the short form's as long as it takes: that is told. */
#define LOCK_TRIES 500
#define LOCK_NS 1000000

/*
 * Of several that mount at once the others wait for the first, and find its view then: who fails
 * takes off what lies uppermost on his mount point, which has to be his. fd: the store's directory.
 */
static int mount_lock(struct client *cl, int fd, const char *mountpoint)
{
	for (int i = 0; i < LOCK_TRIES; i++) {
		if (flock(fd, LOCK_EX | LOCK_NB) == 0)
			return DONE;
		if (errno != EWOULDBLOCK)
			break;
		(void)nanosleep(&(struct timespec){ .tv_nsec = LOCK_NS }, NULL);
	}
	if (errno == EWOULDBLOCK)
		client_talk(cl, "'%s' waits for another mount of its store", mountpoint);
	if (flock(fd, LOCK_EX) < 0)
		return client_fail(cl, "locking the store's directory: %s", strerror(errno));
	return DONE;
}

static int mount_and_ask(struct client *cl, int sock, const struct fuse_mount *m, int argc,
			 char **argv)
{
	_cleanup_close_ int fuse_fd = -1;
	int r = fuse_mount(cl, m, &fuse_fd);

	if (r)
		return r;
	r = client_ask(cl, sock, true, argc, argv, fuse_fd);
	if (r) {
		closep(&fuse_fd); /* aborts the connection: whoever waits in it is let go */
		fuse_fd = -1;
		fuse_unmount(m->mountpoint);
	}
	return r;
}

int mount_and_send(struct client *cl, const struct fuse_mount *m, int argc, char **argv)
{
	_cleanup_free_ char *again = NULL;
	_cleanup_close_ int sock = -1;
	sigset_t ends, old;
	int r;

	/*
	 * The daemon first: a mount that nobody serves should not even begin, and while one starts,
	 * which may take long, a Ctrl-C ends us.
	 */
	r = client_store(cl);
	if (r == DONE)
		r = client_connect(cl, true, &sock);
	if (r == DONE && !m->over) /* else it was done before the import */
		r = mount_lock(cl, cl->store_fd, m->mountpoint);
	if (r == DONE && !m->over)
		r = mount_point_check(cl, m->mountpoint, false, &again);
	if (r)
		return r;
	sigemptyset(&ends);
	sigaddset(&ends, SIGINT);
	sigaddset(&ends, SIGTERM);
	sigaddset(&ends, SIGHUP);
	sigprocmask(SIG_BLOCK, &ends, &old);
	r = mount_and_ask(cl, sock, m, argc, argv);
	if (!m->over)
		(void)flock(cl->store_fd, LOCK_UN); /* of what we had locked */
	sigprocmask(SIG_SETMASK, &old, NULL); /* what came meanwhile ends us: all is done or none */
	if (r)
		return r;
	if (!(m->options.without & WITHOUT(LEVER_READ_AHEAD)))
		fuse_read_ahead(m->mountpoint);
	return DONE;
}

/* ---- the short form ---- */

/* FNV-1a: spreads paths over store names; collisions are caught by `origin`. */
static unsigned long long path_hash(const char *path)
{
	unsigned long long h = 14695981039346656037ull;

	for (; *path; path++)
		h = (h ^ (unsigned char)*path) * 1099511628211ull;
	return h;
}

static int make_parents(struct client *cl, char *path)
{
	for (char *p = strchr(path + 1, '/'); p; p = strchr(p + 1, '/')) {
		*p = 0;
		if (mkdir(path, 0700) < 0 && errno != EEXIST)
			return client_fail(cl, "making '%s': %s; its store may lie elsewhere: set "
					   "XDG_DATA_HOME", path, strerror(errno));
		*p = '/';
	}
	return DONE;
}

/* How much of a directory's name its store's begins with, for people; no half character. */
static int known_by(const char *name)
{
	int n = (int)strnlen(name, 40);

	while (n > 0 && ((unsigned char)name[n] & 0xc0) == 0x80)
		n--;
	return n;
}

/* Where the store of a directory's short form is, whether it has one or not. */
static int short_store(struct client *cl, const char *dir, char **ret_path)
{
	const char *data = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
	const char *base = strrchr(dir, '/') + 1;
	_cleanup_free_ char *path = NULL;
	int n;

	if (data && *data == '/')
		n = asprintf(&path, "%s/plyfs/%.*s-%016llx", data, known_by(base), base,
			     path_hash(dir));
	else if (home && *home == '/')
		n = asprintf(&path, "%s/.local/share/plyfs/%.*s-%016llx", home, known_by(base),
			     base, path_hash(dir));
	else
		return client_fail(cl, "neither XDG_DATA_HOME nor HOME says where its store is; "
				       "set one, or give --store");
	if (n < 0)
		return client_fail(cl, "%s", strerror(ENOMEM));
	*ret_path = TAKE_PTR(path);
	return DONE;
}

/* Where an absolute path leads of which not all is there yet. Given; NULL: nobody knows. */
static char *leads_to(const char *path)
{
	_cleanup_free_ char *there = strdup(path), *real = NULL;
	char *made;

	while (there && *there && !(real = realpath(there, NULL)) && errno == ENOENT)
		*strrchr(there, '/') = 0;
	if (!there || (*there && !real))
		return NULL;
	return asprintf(&made, "%s%s", real ?: "", path + strlen(there)) < 0 ? NULL : made;
}

/* Makes its parents. */
static int short_store_place(struct client *cl, const char *dir, char **ret_path)
{
	_cleanup_free_ char *path = NULL, *real = NULL;
	int r = short_store(cl, dir, &path), n = (int)strlen(dir);

	if (r)
		return r;
	if (strcmp(dir, "/") == 0)
		return client_fail(
			cl, "no view covers the whole system; name a directory below '/'");
	real = leads_to(path);
	if (real && strncmp(real, dir, (size_t)n) == 0 && real[n] == '/')
		return client_fail(
			cl,
			"the store '%s' would lie below '%s'; set XDG_DATA_HOME to a place outside",
			path, dir);
	r = make_parents(cl, path);
	if (r)
		return r;
	*ret_path = TAKE_PTR(path);
	return DONE;
}

/*
 * The content of STORE/origin; NULL when there is none. One that cannot be read must not pass for
 * none: the directory would be imported over what its view holds.
 */
static int read_origin(struct client *cl, const char *store, char **ret)
{
	_cleanup_free_ char *path = NULL;
	_cleanup_close_ int fd = -1;
	char buf[PATH_MAX];
	struct stat st;
	ssize_t n;

	if (asprintf(&path, "%s/origin", store) < 0) {
		path = NULL;
		return client_fail(cl, "%s", strerror(ENOMEM));
	}
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a fifo has no writer */
	if (fd < 0 && (errno == ENOENT || errno == ENOTDIR)) {
		*ret = NULL;
		return DONE;
	}
	n = fd < 0 || fstat(fd, &st) < 0 ? -1 : read(fd, buf, sizeof(buf) - 1);
	if (n < 0)
		return client_fail(cl, "reading '%s': %s", path, strerror(errno));
	if (n == 0 || !S_ISREG(st.st_mode))
		return client_fail(cl, "'%s' is damaged; write the path of the directory that its "
				   "store is of into it", path);
	buf[n] = 0;
	if (n > 1 && buf[n - 1] == '\n' && access(buf, F_OK) < 0)
		buf[n - 1] = 0; /* as an editor or echo(1) ends what people wrote */
	*ret = strdup(buf);
	return *ret ? DONE : client_fail(cl, "%s", strerror(ENOMEM));
}

/* What was imported will have changed until somebody mounts it. */
static void forget_origin(const char *store)
{
	_cleanup_free_ char *path = NULL;

	if (asprintf(&path, "%s/origin", store) >= 0)
		(void)unlink(path); /* the mount failed already */
}

/* Whole and durable: a view whose checkpoints are, and that is taken for a new one, is lost. */
static int write_origin(struct client *cl, const char *dir)
{
	_cleanup_close_ int fd = openat(cl->store_fd, "origin.new",
					O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK,
					0600);
	const size_t n = strlen(dir);
	ssize_t written = fd < 0 ? -1 : write(fd, dir, n);

	if (written >= 0 && (size_t)written < n)
		errno = ENOSPC;
	else if (written >= 0 && fsync(fd) == 0 &&
		 renameat(cl->store_fd, "origin.new", cl->store_fd, "origin") == 0 &&
		 fsync(cl->store_fd) == 0)
		return DONE;
	return client_fail(cl, "writing '%s/origin': %s", cl->store, strerror(errno));
}

/* A verb of which nothing is ours to print on fd: its answer (1), or why there is none (2). */
static int send_quietly(struct client *cl, int fd, int argc, char **argv)
{
	_cleanup_close_ int saved = dup(fd), null = open("/dev/null", O_WRONLY | O_CLOEXEC);
	int r;

	if (null < 0 || (saved >= 0 && dup2(null, fd) < 0))
		return client_fail(cl, "/dev/null: %s", strerror(errno));
	r = client_send(cl, true, argc, argv);
	if (saved >= 0)
		(void)dup2(saved, fd); /* a descriptor that was open before */
	return r;
}

/* Imports dir as branch main. replace: over the state that it has; else it has to have none. */
static int short_import(struct client *cl, const char *dir, bool replace)
{
	char *argv[] = { (char *)"import", (char *)"--branch", (char *)"main", (char *)"--",
			 (char *)dir,	   NULL,	       NULL };

	if (replace) {
		argv[3] = (char *)"--replace";
		argv[4] = (char *)"--";
		argv[5] = (char *)dir;
	}
	return send_quietly(cl, 1, replace ? 6 : 5, argv);
}

/* The branch may have been dropped. Who is told so for another reason imports without replace. */
static bool short_is_dropped(struct client *cl)
{
	char *argv[] = { (char *)"log",	    (char *)"--branch", (char *)"main",
			 (char *)"--count", (char *)"0",	NULL };

	return send_quietly(cl, 2, ARRAY_SIZE(argv) - 1, argv) != DONE;
}

/* Does the view hold nothing that the directory was not given? (It may have changed since.) */
static bool short_is_written_back(struct client *cl, const char *dir)
{
	char *argv[] = { (char *)"writeback", (char *)"--dry-run", (char *)"--exit-code",
			 (char *)"--",	      (char *)dir,	   NULL };

	return send_quietly(cl, 1, ARRAY_SIZE(argv) - 1, argv) == DONE;
}

/* Of several that mount a directory at once the first makes the store and imports. */
static int short_lock(struct client *cl, const char *store, const char *dir, bool *ret_made,
		      int *ret_fd)
{
	_cleanup_close_ int fd = -1;

	*ret_made = mkdir(store, 0700) == 0;
	if (!*ret_made && errno != EEXIST)
		return client_fail(cl, "making '%s': %s", store, strerror(errno));
	fd = open(store, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return client_fail(cl, "opening store '%s': %s", store, strerror(errno));
	*ret_fd = TAKE_FD(fd);
	return mount_lock(cl, *ret_fd, dir);
}

/* Its daemon has it for another second, and who tries again needs it. */
static void tell_empty_store(const struct client *cl, const char *store)
{
	_cleanup_free_ char *word = shell_word(store);

	client_talk(cl,
		    "nothing is mounted; the next try uses the empty store that was made; without "
		    "one: rm -r %s",
		    word ? word : store);
}

/* base: the options of the mount itself. */
static int mount_short(struct client *cl, const char *dir, bool fresh, bool update,
		       const struct fuse_mount *base, bool fsmonitor)
{
	_cleanup_free_ char *path = NULL, *again = NULL, *store = NULL, *origin = NULL;
	struct client at = { .store_fd = -1, .view_fd = -1 };
	_cleanup_close_ int fuse = -1, lock = -1;
	bool imported = false, dropped = false, made;
	struct fuse_mount m = *base;
	char without[LEVERS_TEXT_SIZE];
	char *argv[] = { (char *)"mount", (char *)"--at", NULL, NULL, NULL, NULL, NULL, NULL };
	char cwd[PATH_MAX];
	int argc = 3, r;
	size_t n;

	r = mount_point_check(cl, dir, true, &path);
	if (r)
		return r;
	r = client_look_with_patience(&at, path);
	closep(&at.view_fd);
	if (r < 0)
		return client_look_failed(cl, r, path);
	if (at.in_view)
		return client_fail(
			cl, "'%s' lies in a plyfs view already; use checkpoint and fork there",
			path);
	r = fuse_open(cl, &fuse); /* before a long import */
	if (r)
		return r;
	r = short_store_place(cl, path, &store);
	if (r)
		return r;
	r = short_lock(cl, store, path, &made, &lock);
	if (r == DONE)
		r = mount_point_check(cl, dir, true, &again);
	if (r)
		return r;
	r = client_init_store(cl, store, true);
	if (r)
		return r;
	r = client_use_store(cl, store);
	if (r)
		return r;

	r = read_origin(cl, store, &origin);
	if (r)
		return r;
	if (origin && strcmp(origin, path))
		return client_fail(cl, "the store '%s' belongs to '%s'", store, origin);
	dropped = origin && short_is_dropped(cl);
	if (origin && !dropped && update && !fresh)
		fresh = short_is_written_back(cl, path);
	if (!origin || dropped || fresh) {
		r = short_import(cl, path, !dropped);
		if (r && made && !update) /* libplyfs's call, which takes the last line for why */
			tell_empty_store(cl, store);
		if (r)
			return r;
		r = write_origin(cl, path);
		if (r)
			return r;
		imported = true;
	} else {
		client_talk(
			cl,
			"the view of '%s' goes on where it was; --fresh imports the directory anew",
			path);
	}

	m.over = true;
	m.mountpoint = argv[2] = path;
	argc = add_options(argv, argc, &m.options, without);
	r = mount_and_send(cl, &m, argc, argv);
	if (r && imported)
		forget_origin(store);
	n = strlen(path);
	if (r == 0 && getcwd(cwd, sizeof(cwd)) && strncmp(cwd, path, n) == 0 &&
	    (cwd[n] == '/' || !cwd[n]))
		client_talk(cl, "your shell is still in the directory beneath; cd into it again");
	return r == 0 && fsmonitor ? fsmonitor_install(cl, path, "mounted, but ") : r;
}

int client_mount(struct client *cl)
{
	const char *branch = NULL, *snapshot = NULL, *at = NULL;
	bool fresh = false, update = false, fsmonitor = false, passthrough = false;
	struct fuse_mount m = {};
	const struct option_def defs[] = {
		{ .name = "branch", .word = &branch },
		{ .name = "snapshot", .word = &snapshot },
		{ .name = "at", .word = &at },
		{ .name = "fresh", .flag = &fresh },
		{ .name = "update", .flag = &update },
		{ .name = "fsmonitor", .flag = &fsmonitor },
		{ .name = "suid", .flag = &m.suid },
		{ .name = "dev", .flag = &m.dev },
		{ .name = "private", .flag = &m.private },
		{ .name = "allow-other", .flag = &m.allow_other },
		{ .name = "passthrough", .flag = &passthrough },
		OPTIONS_MOUNT(&m.options),
	};
	char without[LEVERS_TEXT_SIZE];
	_cleanup_free_ char *mountpoint = NULL, *which = NULL;
	char *argv[11];
	int argc = 0, r;

	r = client_parse(cl, defs, ARRAY_SIZE(defs), 0, 0, 1);
	if (r)
		return r;
	if (branch && snapshot)
		return client_misuse(cl, "either --branch or --snapshot");
	if (fresh && update)
		return client_misuse(cl, "either --fresh or --update");
	if (m.private && m.allow_other)
		return client_misuse(cl, "either --private or --allow-other");
	if (passthrough && (!snapshot || m.options.io_uring))
		return client_misuse(cl, "--passthrough is for --snapshot, without --io-uring");
	if (passthrough && geteuid() != 0)
		return client_fail(cl, "--passthrough is for root");
	if (at && cl->args.n)
		return client_misuse(cl, "either --at or a directory");
	if (cl->args.n && !client_store_name(cl)) {
		if (branch || snapshot)
			return client_misuse(cl,
					     "which store? give --store STORE or set PLYFS_STORE");
		return mount_short(cl, cl->args.v[0], fresh, update, &m, fsmonitor);
	}
	if (fresh || update)
		return client_misuse(
			cl, "--%s is for the short form: plyfs mount DIR, without a store",
			fresh ? "fresh" : "update");
	if ((fsmonitor || m.options.inotify) && snapshot)
		return client_misuse(cl, "--%s is for branches: a snapshot cannot change",
				     fsmonitor ? "fsmonitor" : "inotify");
	if (cl->args.n)
		at = cl->args.v[0];
	if (!at)
		return client_misuse(cl, "where? --at MOUNTPOINT");

	r = mount_point_check(cl, at, false, &mountpoint);
	if (r)
		return r;

	m.mountpoint = mountpoint;
	m.read_only = snapshot;
	argv[argc++] = (char *)"mount";
	argv[argc++] = (char *)"--at";
	argv[argc++] = mountpoint;
	if (branch || snapshot) { /* in one word: alone it may be one that asks for help */
		if (asprintf(&which, "--%s=%s", branch ? "branch" : "snapshot",
			     branch ? branch : snapshot) < 0)
			return client_fail(cl, "%s", strerror(ENOMEM));
		argv[argc++] = which;
	}
	argc = add_options(argv, argc, &m.options, without);
	if (passthrough)
		argv[argc++] = (char *)"--passthrough";
	argv[argc] = NULL;
	r = mount_and_send(cl, &m, argc, argv);
	return r == 0 && fsmonitor ? fsmonitor_install(cl, mountpoint, "mounted, but ") : r;
}

/* ---- unmount ---- */

/*
 * Who is in a view may only pass through (df, a search, a child of the caller's that was forked and
 * has not executed its program yet) and be gone in a moment. Half a second in all.
 */
#define LOOKERS_TRIES 25
#define LOOKERS_NS 20000000
/* Who holds it elsewhere may be about to go, as the processes of a container. Two seconds. */
#define HOLDERS_TRIES 20
#define HOLDERS_NS 100000000

static int not_mounted(struct client *cl, const char *path)
{
	return client_fail(cl,
			   "no plyfs view is mounted on '%s'; 'mount -t fuse.plyfs' lists them",
			   path);
}

/* Is that why an attempt to unmount ended with r? */
static bool somebody_was_faster(const char *path, int r)
{
	return r == -EINVAL && mounts_is_plyfs(path) == 0;
}

int unmount_view(struct client *cl, const char *mountpoint, unsigned how)
{
	char branch[PLYFS_NAME_SIZE], snapshot[PLYFS_ID_SIZE + 1] = "", users[MOUNT_USERS_BYTES];
	const uint64_t dev = mount_users_dev(mountpoint);
	const bool was_here = mount_users_here(dev, mountpoint);
	bool here = false, lazy = how & UNMOUNT_LAZY;
	char *argv[7];
	int argc = 0, r;

	argv[argc++] = (char *)"unmount";
	if (how & UNMOUNT_NO_SYNC)
		argv[argc++] = (char *)"--no-sync";
	argv[argc++] = (char *)"--";
	argv[argc++] = (char *)mountpoint;
	argv[argc++] = branch;
	argv[argc++] = snapshot;
	argv[argc] = NULL;

	/* A copy: who asks looks at "." on the way, and that may be another view. */
	snprintf(branch, sizeof(branch), "%s", cl->info.branch);
	if (!*branch)
		snprintf(snapshot, sizeof(snapshot), "%.*s", PLYFS_ID_SIZE, cl->info.head);
	/* Nobody to ask afterwards: a sandbox hides the store, or it was moved or removed. */
	if (!how && cl->in_view && *cl->info.branch && access(cl->info.store, F_OK) < 0 &&
	    fsync(cl->view_fd) < 0)
		return client_fail(cl,
				   "'%s' stays: the store '%s' is not there, and what is in its "
				   "view cannot be kept (%s); copy what you need out, then: plyfs "
				   "unmount --no-sync DIR",
				   mountpoint, cl->info.store, strerror(errno));
	/* Our own descriptor would keep the view busy. */
	closep(&cl->view_fd);
	cl->view_fd = -1;

	r = mounts_unmount(mountpoint, lazy);
	users[0] = 0;
	for (int i = 0; r == -EBUSY && i < LOOKERS_TRIES; i++) {
		(void)nanosleep(&(struct timespec){ .tv_nsec = LOOKERS_NS }, NULL);
		r = mounts_unmount(mountpoint, lazy);
	}
	if (r == -EBUSY)
		mount_users(mountpoint, users);
	if (r == -EBUSY && how & UNMOUNT_BUSY_LAZY && !lazy) {
		lazy = true;
		r = mounts_unmount(mountpoint, true);
	}
	if (r == -EBUSY)
		return client_fail(cl, "'%s' is in use%s%s; 'plyfs unmount --lazy' detaches it "
				   "all the same",
				   mountpoint, *users ? " by " : "", users);
	if (r == -EPERM)
		return client_fail(cl, "'%s' was mounted by another user", mountpoint);
	if (r == -ENOTSUP)
		return client_fail(cl, "'%s' stays: fusermount3 unmounts nothing without %s; %s",
				   mountpoint, MOUNTS_MTAB, MOUNTS_MTAB_CURE);
	if (somebody_was_faster(mountpoint, r))
		return not_mounted(cl, mountpoint);
	if (r < 0)
		return client_fail(cl, "unmounting '%s': %s", mountpoint, strerror(-r));
	if (lazy)
		return DONE;

	for (int i = 0; i < HOLDERS_TRIES; i++) {
		here = mount_users_elsewhere(dev, mountpoint, users);
		if (here && !was_here) { /* mounted since, with our number: so ours has gone */
			here = false;
			users[0] = 0;
		}
		if (!*users)
			break;
		(void)nanosleep(&(struct timespec){ .tv_nsec = HOLDERS_NS }, NULL);
	}
	if (here)
		return client_fail(cl, "'%s' is unmounted, but its view lives on: held by %s",
				   mountpoint, users);
	if (*users)
		client_talk(cl, "'%s' is unmounted; waiting until its view is let go by %s",
			    mountpoint, users);
	if (!cl->in_view) {
		client_talk(cl,
			    "'%s' is unmounted; its view was closed to us, so it was not waited "
			    "until that is durable",
			    mountpoint);
		return DONE;
	}

	/* The kernel has let go; it tells the daemon, which closes the view in a moment. */
	cl->in_view = false; /* its descriptor is closed: no way around the socket */
	if (access(cl->info.store, F_OK) < 0)
		return DONE; /* hidden from us: nobody to ask */
	r = client_use_store(cl, cl->info.store);
	if (r)
		return r;
	r = client_send(cl, false, argc, argv);
	return r == NO_DAEMON ? DONE : r;
}

/* What became of the differences of a short-form view. how: an option, or NULL. */
static int write_back(struct client *cl, const char *dir, const char *how)
{
	char *argv[] = { (char *)"writeback", (char *)"--", (char *)dir, NULL, NULL };

	if (how) {
		argv[1] = (char *)how;
		argv[2] = (char *)"--";
		argv[3] = (char *)dir;
	}
	return client_send(cl, true, how ? 4 : 3, argv);
}

int client_unmount(struct client *cl)
{
	bool lazy = false, no_sync = false, back = false, dry = false, force = false;
	const struct option_def defs[] = {
		{ .name = "lazy", .flag = &lazy },
		{ .name = "no-sync", .flag = &no_sync },
		{ .name = "write-back", .flag = &back },
		{ .name = "dry-run", .flag = &dry },
		{ .name = "force", .flag = &force },
	};
	_cleanup_free_ char *path = NULL, *origin = NULL;
	char users[MOUNT_USERS_BYTES];
	bool is_short;
	int r;

	r = client_parse(cl, defs, ARRAY_SIZE(defs), 0, 1, 1);
	if (r)
		return r;
	if ((dry || force) && !back)
		return client_misuse(cl, "--%s goes with --write-back", dry ? "dry-run" : "force");
	if (back && lazy)
		return client_misuse(cl, "--write-back needs the view to be over: not with --lazy");

	path = absolute(cl->args.v[0]);
	if (!path)
		return client_fail(cl, "'%s': %s", cl->args.v[0], strerror(errno));
	(void)!chdir("/"); /* our own place is not to keep the view busy */
	r = mounts_is_plyfs(path);
	if (r < 0)
		return client_fail(cl, "reading what is mounted: %s", strerror(-r));
	if (r == 0)
		return !back ? not_mounted(cl, path)
			     : client_fail(cl,
					   "no plyfs view is mounted on '%s'; to bring in what one "
					   "had: plyfs writeback DIR",
					   path);

	r = client_look_with_patience(cl, path);
	if (r == -ENOTCONN) {
		r = mounts_unmount(path, true);
		if (somebody_was_faster(path, r))
			return not_mounted(cl, path);
		if (r < 0)
			return client_fail(cl, "taking the dead view off '%s': %s", path,
					   strerror(-r));
		client_talk(cl, "the view's daemon had ended; '%s' is free again", path);
		return back ? client_fail(cl, "nothing was written back; mount it again first")
			    : DONE;
	}
	if ((r == -ETIMEDOUT || client_look_is_unclear(r)) && !lazy)
		return client_look_failed(cl, r, path);
	if (back && is_closed(r))
		return client_fail(cl,
				   "'%s' is another user's view: it is that user who writes back",
				   path);
	/* Where a sandbox hides the store, it is not to be read. */
	r = cl->in_view && access(cl->info.store, X_OK) == 0
		    ? read_origin(cl, cl->info.store, &origin)
		    : DONE;
	if (r && !lazy)
		return r;
	is_short = origin && strcmp(origin, path) == 0 && strcmp(cl->info.branch, "main") == 0;
	if (back && !is_short)
		return client_fail(
			cl, "'%s' is not a short-form view ('plyfs mount DIR'); use export", path);

	if (is_short) {
		r = client_use_store(cl, cl->info.store);
		if (r)
			return r;
	}
	if (dry)
		return write_back(cl, path, "--dry-run");
	if (back && mount_users_elsewhere(mount_users_dev(path), path, users))
		return client_fail(cl, "nothing is written back while the view is held by %s, too; "
				       "umount that first", users);
	r = unmount_view(cl, path,
			 (lazy ? UNMOUNT_LAZY : 0) | (no_sync ? UNMOUNT_NO_SYNC : 0));
	if (r && back && mounts_is_plyfs(path) == 0)
		client_talk(cl, "nothing was written back; when its view has ended: plyfs "
				"writeback DIR");
	if (r || !is_short)
		return r;
	return write_back(cl, path, !back ? "--tell" : force ? "--force" : NULL);
}

/*
 * The directory tells the store, and PLYFS_STORE does not: what it names for other verbs may be
 * another's, whose differences would be written over this directory.
 */
int client_writeback(struct client *cl)
{
	/* The daemon reads them; it has more, which are for us alone. */
	bool given = false;
	const struct option_def defs[] = {
		{ .name = "dry-run", .flag = &given },
		{ .name = "force", .flag = &given },
		{ .name = "json", .flag = &given },
	};
	_cleanup_free_ char *path = NULL, *store = NULL, *origin = NULL;
	int r = client_parse(cl, defs, ARRAY_SIZE(defs), 0, 1, 1);

	if (r)
		return r;
	if (cl->store_option)
		return client_send(cl, true, cl->argc, cl->argv);
	path = absolute(cl->args.v[0]);
	if (!path)
		return client_fail(cl, "'%s': %s", cl->args.v[0], strerror(errno));
	r = short_store(cl, path, &store);
	if (r)
		return r;
	r = read_origin(cl, store, &origin);
	if (r)
		return r;
	if ((!origin || strcmp(origin, path)) && client_look_with_patience(cl, ".") == 0 &&
	    cl->in_view) {
		/* Of the view that we are in, if it is this directory's: no other is meant. */
		free(TAKE_PTR(origin));
		free(store);
		store = strdup(cl->info.store);
		r = read_origin(cl, cl->info.store, &origin);
		if (r)
			return r;
	}
	if (!store || !origin || strcmp(origin, path))
		return client_fail(cl,
				   "'%s' has no short-form view; when its store is another one: "
				   "--store STORE",
				   cl->args.v[0]);
	r = client_use_store(cl, store);
	if (r)
		return r;
	return client_send(cl, true, cl->argc, cl->argv);
}
