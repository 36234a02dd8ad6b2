/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Who is in a view: processes by where their links in /proc lead, mounts and loop devices by what
 * the kernel lists. Paths are compared as text, because asking a view that is stuck would hang. No
 * path leads to a view that was detached; but each link tells the device of what it leads to, and
 * for that the kernel asks nobody.
 */

#include "tools/mount_users.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/util.h"
#include "tools/mounts.h"

/* More are no help: whoever ends these will be told of the next. */
#define USERS_MAX 5

struct users {
	const char *top;     /* absolute; of mount_users */
	uint64_t dev;	     /* of the other two */
	const char *besides; /* of mount_users_elsewhere, or NULL */
	bool in_dev; /* of mount_users_of_dev: processes count that have something of it open */
	char *text;
	size_t len;
	int n;
	char seen[64][64]; /* mount namespaces; the first one is ours */
	size_t n_seen;
};

__attribute__((format(printf, 2, 3))) static void add_user(struct users *u, const char *fmt, ...)
{
	va_list ap;
	int n;

	if (u->n++ >= USERS_MAX)
		return;
	if (u->len > 0)
		u->len += (size_t)snprintf(u->text + u->len, MOUNT_USERS_BYTES - u->len, ", ");
	if (u->len < MOUNT_USERS_BYTES) {
		va_start(ap, fmt);
		n = vsnprintf(u->text + u->len, MOUNT_USERS_BYTES - u->len, fmt, ap);
		va_end(ap);
		u->len += n > 0 ? (size_t)n : 0;
	}
	u->len = MIN(u->len, (size_t)MOUNT_USERS_BYTES - 1);
}

/* ---- processes ---- */

static void closedirp(DIR **d)
{
	if (*d)
		(void)closedir(*d); /* read only */
}

static bool is_below(const char *path, const char *top)
{
	size_t n = strlen(top);

	return strncmp(path, top, n) == 0 && (path[n] == '/' || path[n] == 0 || path[n] == ' ');
}

static uint64_t dev_number(unsigned major, unsigned minor)
{
	return (uint64_t)major << 32 | minor;
}

/* Does a link of a process (cwd, root, exe, fd/N) lead below the mount point, or to the device? */
static bool link_leads_in(const struct users *u, int dir_fd, const char *name)
{
	char to[PATH_MAX];
	struct statx s;
	ssize_t n;

	if (!u->top) /* nothing but the device is wanted, which no filesystem is asked for */
		return statx(dir_fd, name, AT_STATX_DONT_SYNC, 0, &s) == 0 &&
		       dev_number(s.stx_dev_major, s.stx_dev_minor) == u->dev;

	n = readlinkat(dir_fd, name, to, sizeof(to) - 1);
	if (n <= 0)
		return false;
	to[n] = 0;
	return is_below(to, u->top);
}

/* A line of /proc/PID/maps. */
static bool mapping_is_in(const struct users *u, const char *line)
{
	const char *path = strchr(line, '/');
	unsigned major, minor;

	if (u->top)
		return path && is_below(path, u->top);
	return sscanf(line, "%*s %*s %*s %x:%x", &major, &minor) == 2 &&
	       dev_number(major, minor) == u->dev;
}

static bool process_is_in(const struct users *u, int proc_fd, const char *pid)
{
	_cleanup_close_ int fd = openat(proc_fd, pid, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	_cleanup_(closedirp) DIR *fds = NULL;
	_cleanup_fclose_ FILE *maps = NULL;
	_cleanup_free_ char *line = NULL;
	struct dirent *e;
	size_t cap = 0;
	int sub;

	if (fd < 0)
		return false;
	if (link_leads_in(u, fd, "cwd") || link_leads_in(u, fd, "root") ||
	    link_leads_in(u, fd, "exe"))
		return true;

	sub = openat(fd, "fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	fds = sub >= 0 ? fdopendir(sub) : NULL;
	while (fds && (e = readdir(fds)))
		if (link_leads_in(u, dirfd(fds), e->d_name))
			return true;

	sub = openat(fd, "maps", O_RDONLY | O_CLOEXEC);
	maps = sub >= 0 ? fdopen(sub, "r") : NULL;
	while (maps && getline(&line, &cap, maps) > 0) {
		line[strcspn(line, "\n")] = 0;
		if (mapping_is_in(u, line))
			return true;
	}
	return false;
}

/* Does a mount namespace that was not seen before have the device? */
static bool process_has_mount(struct users *u, int proc_fd, const char *pid)
{
	char path[300], ns[64] = "";
	_cleanup_fclose_ FILE *f = NULL;
	_cleanup_free_ char *line = NULL;
	unsigned major, minor;
	size_t cap = 0;
	int fd;

	(void)snprintf(path, sizeof(path), "%s/ns/mnt", pid);
	if (readlinkat(proc_fd, path, ns, sizeof(ns) - 1) <= 0) /* mnt:[4026531841] */
		return false;
	for (size_t i = 0; i < u->n_seen; i++)
		if (strcmp(u->seen[i], ns) == 0)
			return false;
	if (u->n_seen < ARRAY_SIZE(u->seen))
		strcpy(u->seen[u->n_seen++], ns);

	(void)snprintf(path, sizeof(path), "%s/mountinfo", pid);
	fd = openat(proc_fd, path, O_RDONLY | O_CLOEXEC);
	f = fd >= 0 ? fdopen(fd, "r") : NULL;
	while (f && getline(&line, &cap, f) > 0)
		if (sscanf(line, "%*u %*u %u:%u", &major, &minor) == 2 &&
		    dev_number(major, minor) == u->dev)
			return true;
	return false;
}

/* The first line of a file; empty if it cannot be read. */
static void read_line(int dir_fd, const char *path, char *ret, size_t size)
{
	_cleanup_close_ int fd = openat(dir_fd, path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd >= 0 ? read(fd, ret, size - 1) : 0;

	ret[n > 0 ? n : 0] = 0;
	ret[strcspn(ret, "\n")] = 0;
}

static void find_processes(struct users *u)
{
	_cleanup_(closedirp) DIR *proc = opendir("/proc");
	struct dirent *e;

	while (proc && (e = readdir(proc)) && u->n < USERS_MAX) {
		char name[64], path[300];
		bool in;

		if (e->d_name[0] < '0' || e->d_name[0] > '9' || atoi(e->d_name) == getpid())
			continue;
		in = (u->top || u->in_dev) && process_is_in(u, dirfd(proc), e->d_name);
		if (!in && (u->top || !process_has_mount(u, dirfd(proc), e->d_name)))
			continue;
		snprintf(path, sizeof(path), "%s/comm", e->d_name);
		read_line(dirfd(proc), path, name, sizeof(name));
		add_user(u, "%s (%s)%s", e->d_name, name,
			 in ? "" : " in another mount namespace");
	}
}

/* ---- what is no process ---- */

static uint64_t dev_of(const struct mount_entry *e)
{
	return dev_number(e->major, e->minor);
}

static int find_mount(void *arg, const struct mount_entry *e)
{
	struct users *u = arg;

	if (u->top ? is_below(e->path, u->top) && strcmp(e->path, u->top) != 0
		   : dev_of(e) == u->dev &&
			      (!u->besides || strcmp(e->path, u->besides) != 0))
		add_user(u, "the mount on %s", e->path);
	return 0;
}

static void find_loops(struct users *u)
{
	_cleanup_(closedirp) DIR *block = opendir("/sys/block");
	struct dirent *e;

	while (block && (e = readdir(block))) {
		char path[300], file[PATH_MAX];

		if (strncmp(e->d_name, "loop", 4))
			continue;
		snprintf(path, sizeof(path), "%s/loop/backing_file", e->d_name);
		read_line(dirfd(block), path, file, sizeof(file));
		if (is_below(file, u->top))
			add_user(u, "%s", e->d_name);
	}
}

/* ---- */

void mount_users(const char *top, char ret[MOUNT_USERS_BYTES])
{
	struct users u = { .top = top, .text = ret };

	ret[0] = 0;
	find_processes(&u);
	(void)mounts_each(find_mount, &u); /* what is not found is not told */
	find_loops(&u);
}

static int note_dev(void *arg, const struct mount_entry *e)
{
	struct users *u = arg;

	if (strcmp(e->path, u->top) == 0) /* a later line lies on top */
		u->dev = dev_of(e);
	return 0;
}

uint64_t mount_users_dev(const char *path)
{
	struct users u = { .top = path };

	(void)mounts_each(note_dev, &u);
	return u.dev;
}

/* True: a mount of the device is in our namespace. */
static bool find_of_dev(struct users *u)
{
	bool here;

	u->text[0] = 0;
	if (u->dev == 0)
		return false;
	(void)mounts_each(find_mount, u);
	here = u->n > 0;
	if (readlink("/proc/self/ns/mnt", u->seen[0], sizeof(u->seen[0]) - 1) > 0)
		u->n_seen = 1;
	find_processes(u);
	return here;
}

static int is_here(void *arg, const struct mount_entry *e)
{
	const struct users *u = arg;

	return dev_of(e) == u->dev && strcmp(e->path, u->besides) != 0;
}

bool mount_users_here(uint64_t dev, const char *except)
{
	struct users u = { .dev = dev, .besides = except };

	return dev != 0 && mounts_each(is_here, &u) > 0;
}

bool mount_users_elsewhere(uint64_t dev, const char *except, char ret[MOUNT_USERS_BYTES])
{
	struct users u = { .dev = dev, .besides = except, .text = ret };

	return find_of_dev(&u);
}

void mount_users_of_dev(uint64_t dev, char ret[MOUNT_USERS_BYTES])
{
	struct users u = { .dev = dev, .in_dev = true, .text = ret };

	(void)find_of_dev(&u);
}
