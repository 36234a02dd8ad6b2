/* SPDX-License-Identifier: Apache-2.0 */

/* What is around an isolated command, and bubblewrap's words for it; see isolate.h. */

#include "env/isolate.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "env/env_internal.h"
#include "env/status.h"
#include "store/base/util.h"
#include "store/base/words.h"

/*
 * What apt, dpkg, tar, su and test suites need of root. Not among them: SYS_ADMIN, MKNOD (a device
 * node would be the machine's device), NET_RAW and NET_ADMIN (with `network` it is the machine's
 * network), SYS_PTRACE, SYS_MODULE, SYS_TIME, DAC_READ_SEARCH.
 */
const char *const isolate_capabilities[] = {
	"CAP_CHOWN",  "CAP_DAC_OVERRIDE", "CAP_FOWNER",		  "CAP_FSETID",
	"CAP_KILL",   "CAP_SETGID",	  "CAP_SETUID",		  "CAP_SETFCAP",
	"CAP_SETPCAP", "CAP_SYS_CHROOT",  "CAP_NET_BIND_SERVICE", NULL,
};

const char *const isolate_read_only[] = { "/proc/sys", "/proc/sysrq-trigger", "/proc/irq",
					  "/proc/bus", "/proc/fs", NULL };
const char *const isolate_masked[] = { "/proc/kcore", "/proc/keys", "/proc/timer_list", NULL };

void isolate_release(struct isolation *i)
{
	free(i->runtime);
	free(i->program);
	free(i->dir);
	free(i->at);
	free(i->cwd);
	free(i->bundles);
	ply_list_free(&i->env);
	ply_list_free(&i->hide);
	*i = (struct isolation){ 0 };
}

/* ---- what is mounted ---- */

void isolate_mounts_release(struct isolate_mounts *m)
{
	for (size_t k = 0; k < m->n; k++) {
		free(m->list[k].from);
		free(m->list[k].to);
	}
	free(m->list);
	*m = (struct isolate_mounts){ 0 };
}

static int put(struct isolate_mounts *m, enum mount_kind kind, const char *from, const char *to)
{
	struct isolate_mount *p = realloc(m->list, (m->n + 1) * sizeof(*p));

	if (!p)
		return fail_memory();
	m->list = p;
	p[m->n] = (struct isolate_mount){ kind, strdup(from), strdup(to) };
	if (!p[m->n++].to || !p[m->n - 1].from)
		return fail_memory();
	return 0;
}

/*
 * Where we may not search, a command may not: an ordinary user's is that user, and in its namespace
 * there is nobody else. But the machine's root is refused by a filesystem only (a user's private
 * view, an export that knows no root), and in there it can become a user who is not.
 */
bool isolate_is_out_of_reach(int error)
{
	return error == ENOENT || error == ENOTDIR || (error == EACCES && geteuid() != 0);
}

/*
 * Of a path of the machine; 0: a command reaches nothing there. -errno: it is not known. What is
 * mounted there is not asked: a view whose daemon is stopped would let us wait for ever.
 */
static int look_at(const char *path, mode_t *ret)
{
	const int flags = AT_SYMLINK_NOFOLLOW | AT_STATX_DONT_SYNC;
	struct statx st = { 0 };

	/* A mount whose daemon is dead: whoever asks it for anything is told the same. */
	if (statx(AT_FDCWD, path, flags, STATX_TYPE, &st) < 0 && !isolate_is_out_of_reach(errno) &&
	    errno != ENOTCONN && errno != ECONNABORTED)
		return -errno;
	*ret = st.stx_mode & S_IFMT;
	return 0;
}

/* Directories of the machine that are not shown as they are. */
static bool is_own(const char *name)
{
	static const char *const own[] = { "proc", "dev", "tmp", "run", "lost+found", NULL };

	for (size_t k = 0; own[k]; k++)
		if (strcmp(name, own[k]) == 0)
			return true;
	return false;
}

/* A directory or a symlink in /, if it is there and to be seen. */
static int put_shown(struct isolate_mounts *m, const char *path)
{
	char target[PATH_MAX];
	mode_t type = 0; /* for gcc 14, to which errno could be 0 */
	ssize_t len;
	int r = look_at(path, &type);

	if (r == -EACCES) /* root is refused: what is not bound is hidden from all */
		return 0;
	if (r < 0)
		return fail_errno(-r, "%s", path);
	if (S_ISDIR(type) && path[1] != '.' && !is_own(path + 1))
		return put(m, MOUNT_READ, path, path);
	if (!S_ISLNK(type))
		return 0;
	len = readlink(path, target, sizeof(target) - 1);
	if (len < 0)
		return errno == ENOENT ? 0 : fail_errno(errno, "%s", path);
	target[len] = '\0';
	return put(m, MOUNT_LINK, target, path);
}

/*
 * Each directory of / by itself, so that / is ours: a place for the work folder can be made in it.
 */
static int put_machine(struct isolate_mounts *m)
{
	struct dirent **list;
	int n = scandir("/", &list, NULL, alphasort), r = 0;

	if (n < 0)
		return fail_errno(errno, "/");
	for (int k = 0; k < n; k++) {
		char path[NAME_MAX + 2];

		(void)snprintf(path, sizeof(path), "/%s", list[k]->d_name); /* it fits */
		if (r == 0)
			r = put_shown(m, path);
		free(list[k]);
	}
	free(list);
	return r;
}

/* Where a file of the machine's network really is. Given; NULL: there is none. */
static int find_network_file(const char *path, char **ret)
{
	*ret = realpath(path, NULL);
	return *ret || isolate_is_out_of_reach(errno) ? 0 : fail_errno(errno, "%s", path);
}

/* The same of a path of the root. */
static int look_below(const struct isolation *i, const char *below, mode_t *ret)
{
	_cleanup_free_ char *place = NULL;
	int r;

	if (asprintf(&place, "%s%s", i->dir, below) < 0) {
		place = NULL;
		return fail_memory();
	}
	r = look_at(place, ret);
	return r < 0 ? fail_errno(-r, "%s", place) : 0;
}

/*
 * A file of the machine's that says how to reach others, over the root's file of that name. Where
 * the root has a symlink (or /etc is one) it is left as it is.
 */
static int put_network_file(const struct isolation *i, struct isolate_mounts *m, const char *path)
{
	_cleanup_free_ char *real = NULL;
	mode_t type;
	int r;

	r = look_below(i, "/etc", &type);
	if (r < 0 || !S_ISDIR(type))
		return r;
	r = look_below(i, path, &type);
	if (r < 0 || !S_ISREG(type))
		return r;
	r = find_network_file(path, &real);
	return r < 0 || !real ? r : put(m, MOUNT_READ, real, path);
}

static bool is_at_or_below(const char *path, const char *dir)
{
	size_t len = strlen(dir);

	if (len == 1) /* "/" */
		return true;
	return strncmp(path, dir, len) == 0 && (!path[len] || path[len] == '/');
}

/* Nothing in place of a directory or file of the machine, if it is there and to be seen. */
static int put_empty(struct isolate_mounts *m, const char *path)
{
	mode_t type;
	int r;

	for (size_t k = 0; k < m->n; k++)
		if (m->list[k].kind == MOUNT_EMPTY && is_at_or_below(path, m->list[k].to))
			return 0;
	r = look_at(path, &type);
	if (r < 0) {
		/* This much is known of a mount without asking what is mounted. */
		_cleanup_close_ int fd = open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

		if (fd < 0 && errno != ENOTDIR)
			return fail_errno(-r, "'%s', which is to be hidden", path);
		type = fd < 0 ? S_IFREG : S_IFDIR;
	}
	if (type == 0 || S_ISLNK(type))
		return 0;
	return S_ISDIR(type) ? put(m, MOUNT_EMPTY, "", path) :
			       put(m, MOUNT_READ, "/dev/null", path);
}

/*
 * Views but the one that the folder is in: whoever sees one, or a file of it bound elsewhere, can
 * restore it by an ioctl, which passes through a read-only mount. Asked each time: they come and
 * go. Not by getmntent_r: it cuts a line that its buffer is too short for, and at the end of a list
 * that could not be read further it says the same as at the end.
 */
static int hide_views(const struct isolation *i, struct isolate_mounts *m)
{
	_cleanup_fclose_ FILE *f = fopen("/proc/self/mounts", "re");
	_cleanup_free_ char *line = NULL;
	size_t cap = 0;
	int r;

	if (!f)
		return fail_errno(errno, "/proc/self/mounts");
	while (errno = 0, getline(&line, &cap, f) > 0) { /* SOURCE MOUNTPOINT TYPE ... */
		char *save = NULL, *source = strtok_r(line, " ", &save);
		char *path = source ? strtok_r(NULL, " ", &save) : NULL;
		char *type = path ? strtok_r(NULL, " ", &save) : NULL;

		if (!type || strcmp(type, "fuse.plyfs") != 0)
			continue;
		word_unescape(path);
		r = is_at_or_below(i->dir, path) ? 0 : put_empty(m, path);
		if (r < 0)
			return r;
	}
	/* At the end of the file it is 0. */
	return errno ? fail_errno(errno, "/proc/self/mounts") : 0;
}

static int put_work_folder(const struct isolation *i, struct isolate_mounts *m)
{
	static const char *const empty[] = { "/tmp", "/run", "/var/tmp", "/var/run" };
	_cleanup_free_ char *real = NULL;
	int r;

	r = put_machine(m);
	for (size_t k = 0; r == 0 && k < ARRAY_SIZE(empty); k++)
		r = put_empty(m, empty[k]);
	for (size_t k = 0; r == 0 && k < i->hide.n; k++)
		r = put_empty(m, i->hide.items[k]);
	if (r == 0)
		r = hide_views(i, m);
	/* Where names are resolved may be written in a file of /run. */
	if (r == 0 && i->network)
		r = find_network_file("/etc/resolv.conf", &real);
	if (r == 0 && real && strncmp(real, "/run/", strlen("/run/")) == 0)
		r = put(m, MOUNT_READ, real, real);
	return r == 0 ? put(m, MOUNT_BIND, i->dir, i->at) : r;
}

/* The places were made in the root by whoever chose it. */
static int put_root(const struct isolation *i, struct isolate_mounts *m)
{
	int r;

	r = put(m, MOUNT_READ, "/sys", "/sys");
	if (r == 0 && i->network)
		r = put_network_file(i, m, "/etc/resolv.conf");
	if (r == 0 && i->network)
		r = put_network_file(i, m, "/etc/hosts");
	return r;
}

int isolate_mounts(const struct isolation *i, struct isolate_mounts *ret)
{
	struct isolate_mounts m = { 0 };
	int r = i->at ? put_work_folder(i, &m) : put_root(i, &m);

	if (r < 0) {
		isolate_mounts_release(&m);
		return r;
	}
	*ret = m;
	return 0;
}

/* ---- bubblewrap ---- */

static int add(struct ply_list *words, const char *word, ...)
{
	va_list ap;
	int r = 0;

	va_start(ap, word);
	for (; r == 0 && word; word = va_arg(ap, const char *))
		r = list_append(words, word, strlen(word));
	va_end(ap);
	return r;
}

static int add_proc(struct ply_list *w)
{
	int r = add(w, "--proc", "/proc", NULL);

	/* Only what the machine has: bubblewrap would try to make the rest. */
	for (size_t k = 0; r == 0 && isolate_read_only[k]; k++)
		r = add(w, "--ro-bind-try", isolate_read_only[k], isolate_read_only[k], NULL);
	for (size_t k = 0; r == 0 && isolate_masked[k]; k++)
		if (access(isolate_masked[k], F_OK) == 0 || errno != ENOENT)
			r = add(w, "--ro-bind", "/dev/null", isolate_masked[k], NULL);
	return r;
}

static int add_mounts(const struct isolation *i, struct ply_list *w)
{
	_cleanup_(isolate_mounts_release) struct isolate_mounts m = { 0 };
	char size[24] = "";
	int r;

	r = isolate_mounts(i, &m);
	if (r == 0 && !i->at)
		r = add(w, "--bind", i->dir, "/", NULL);
	if (r == 0)
		r = add_proc(w);
	if (r == 0)
		r = add(w, "--dev", "/dev", NULL);
	if (i->limits.memory)
		(void)snprintf(size, sizeof(size), "%ju", (uintmax_t)i->limits.memory);
	for (size_t k = 0; r == 0 && k < m.n; k++) {
		const struct isolate_mount *x = &m.list[k];

		if (x->kind == MOUNT_EMPTY && *size)
			r = add(w, "--size", size, NULL);
		if (r == 0 && x->kind == MOUNT_EMPTY)
			r = add(w, "--perms", "1777", "--tmpfs", x->to, NULL);
		else if (r == 0)
			r = add(w,
				x->kind == MOUNT_BIND	? "--bind"
				: x->kind == MOUNT_READ ? "--ro-bind"
							: "--symlink",
				x->from, x->to, NULL);
	}
	if (r == 0 && i->at)
		r = add(w, "--remount-ro", "/", NULL);
	return r;
}

/*
 * env -i: variables of ours would be seen in /proc/1/environ, which is bubblewrap's, and those of
 * the command must not reach a program outside (LD_PRELOAD).
 */
static int bwrap_words(const struct isolation *i, const char *const *argv, const char *const *env,
		       char ***ret)
{
	struct ply_list w = { 0 };
	int r;

	r = add(&w, "/usr/bin/env", "-i", i->program, "--unshare-pid", "--unshare-ipc",
		"--unshare-uts", "--unshare-cgroup-try", "--hostname", ISOLATE_HOSTNAME, NULL);
	if (r == 0 && !i->network)
		r = add(&w, "--unshare-net", NULL);
	if (r == 0 && geteuid() == 0)
		r = add(&w, "--cap-drop", "ALL", NULL);
	for (size_t k = 0; r == 0 && geteuid() == 0 && isolate_capabilities[k]; k++)
		r = add(&w, "--cap-add", isolate_capabilities[k], NULL);
	if (r == 0 && geteuid() != 0)
		r = add(&w, "--unshare-user", NULL);
	if (r == 0 && geteuid() != 0 && !i->at)
		r = add(&w, "--uid", "0", "--gid", "0", NULL);
	if (r == 0)
		r = add_mounts(i, &w);

	if (r == 0)
		r = add(&w, "--clearenv", NULL);
	for (; r == 0 && *env; env++) {
		const char *equals = strchr(*env, '=');

		r = add(&w, "--setenv", NULL);
		if (r == 0)
			r = list_append(&w, *env, (size_t)(equals - *env));
		if (r == 0)
			r = add(&w, equals + 1, NULL);
	}
	if (r == 0)
		r = add(&w, "--chdir", i->cwd, "--", NULL);
	for (; r == 0 && *argv; argv++)
		r = add(&w, *argv, NULL);
	if (r < 0) {
		ply_list_free(&w);
		return r;
	}
	*ret = w.items; /* NULL-terminated, and argv_free frees it */
	return 0;
}

/* ---- either ---- */

int isolate_put_variable(struct ply_list *env, const char *name, const char *value)
{
	size_t len = strlen(name);
	char *word;

	if (asprintf(&word, "%s=%s", name, value) < 0)
		return fail_memory();
	for (size_t k = 0; k < env->n; k++)
		if (strncmp(env->items[k], word, len + 1) == 0) {
			free(env->items[k]);
			env->items[k] = word;
			return 0;
		}
	_cleanup_free_ char *owned = word;

	return list_append(env, owned, strlen(owned));
}

/* A program in our PATH; 1: none. */
static int find_program(const char *name, char **ret)
{
	const char *path = getenv("PATH");

	for (path = path ? path : "/usr/bin:/bin"; *path;) {
		size_t n = strcspn(path, ":");
		char *full;

		if (asprintf(&full, "%.*s/%s", (int)n, path, name) < 0)
			return fail_memory();
		if (n > 0 && path[0] == '/' && access(full, X_OK) == 0) {
			*ret = full;
			return 0;
		}
		free(full);
		path += n + (path[n] == ':');
	}
	return 1;
}

int isolate_begin(struct isolation *i)
{
	int r = find_program(i->runtime, &i->program);

	if (r != 0 || strcmp(i->runtime, "bwrap") == 0)
		return r;
	return bundle_begin(i);
}

int isolate_words(struct isolation *i, const char *const *argv, const char *const *env, char ***ret)
{
	_cleanup_(ply_list_free) struct ply_list all = { 0 };
	int r = 0;

	for (size_t k = 0; r == 0 && k < i->env.n; k++)
		r = add(&all, i->env.items[k], NULL);
	for (; r == 0 && env && *env; env++) {
		const char *equals = strchr(*env, '=');
		_cleanup_free_ char *name = equals ? strndup(*env, (size_t)(equals - *env)) : NULL;

		if (!equals || equals == *env)
			return fail(PLY_INVALID, "'%s' is not NAME=VALUE", *env);
		r = name ? isolate_put_variable(&all, name, equals + 1) : fail_memory();
	}
	if (r < 0)
		return r;

	const char *const *whole = (const char *const *)all.items;

	return i->bundles ? bundle_words(i, argv, whole, ret) : bwrap_words(i, argv, whole, ret);
}

int isolate_ending(const struct isolation *i, char ***ret)
{
	*ret = NULL;
	return i->bundles ? bundle_ending(i, ret) : 0;
}
