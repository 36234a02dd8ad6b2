/* SPDX-License-Identifier: Apache-2.0 */

/* Control groups of both versions, and rlimits where there is none; see group.h. */

#include "env/group.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <limits.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "store/base/util.h"

enum { MEMORY, PIDS, CONTROLLERS };
static const char *const controllers[] = { "memory", "pids" };

#define PIDS_MAX 4194304 /* the most that Linux can have at a time */

struct group {
	char *dir[CONTROLLERS]; /* owned; version 2: the same directory for both */
	bool v2;
};

static int write_to(const char *dir, const char *file, const char *text)
{
	char path[PATH_MAX + NAME_MAX];
	_cleanup_close_ int fd = -1;

	(void)snprintf(path, sizeof(path), "%s/%s", dir, file);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	return write(fd, text, strlen(text)) < 0 ? -errno : 0;
}

static int write_number(const char *dir, const char *file, uint64_t number)
{
	char text[24];

	(void)snprintf(text, sizeof(text), "%" PRIu64, number);
	return write_to(dir, file, text);
}

/* Whether one of a file's words, between spaces, is this one. */
static bool file_has_word(const char *dir, const char *file, const char *word)
{
	char path[PATH_MAX + NAME_MAX], line[64];
	_cleanup_fclose_ FILE *f = NULL;

	(void)snprintf(path, sizeof(path), "%s/%s", dir, file);
	f = fopen(path, "re");
	while (f && fscanf(f, "%63s", line) == 1)
		if (strcmp(line, word) == 0)
			return true;
	return false;
}

/* The number after a word of a file; 0 when it is not there. */
static uint64_t number_after(const char *dir, const char *file, const char *word)
{
	char path[PATH_MAX + NAME_MAX], name[64];
	_cleanup_fclose_ FILE *f = NULL;
	uint64_t n;

	(void)snprintf(path, sizeof(path), "%s/%s", dir, file);
	f = fopen(path, "re");
	while (f && fscanf(f, "%63s %" SCNu64, name, &n) == 2)
		if (strcmp(name, word) == 0)
			return n;
	return 0;
}

/*
 * Where our own group of a hierarchy is (controller NULL: version 2), and its mount point's length
 * in *ret_top; false: not mounted, or we are not below the mount.
 */
static bool own_group(const char *controller, char dir[static PATH_MAX], size_t *ret_top)
{
	_cleanup_fclose_ FILE *mounts = fopen("/proc/self/mountinfo", "re");
	_cleanup_fclose_ FILE *groups = fopen("/proc/self/cgroup", "re");
	_cleanup_free_ char *line = NULL;
	char at[PATH_MAX] = "";
	size_t room = 0;

	while (mounts && !*at && getline(&line, &room, mounts) > 0) {
		char point[PATH_MAX], type[32], options[512];
		const char *rest = strstr(line, " - ");

		if (!rest || sscanf(line, "%*s %*s %*s %*s %4095s", point) != 1 ||
		    sscanf(rest, " - %31s %*s %511s", type, options) != 2)
			continue;
		if (!controller ? strcmp(type, "cgroup2") != 0 : strcmp(type, "cgroup") != 0)
			continue;
		for (char *save, *word = strtok_r(options, ",", &save); controller && word;
		     word = strtok_r(NULL, ",", &save))
			if (strcmp(word, controller) == 0)
				strcpy(at, point);
		if (!controller)
			strcpy(at, point);
	}
	while (groups && *at && getline(&line, &room, groups) > 0) {
		char *names = strchr(line, ':'), *path = names ? strchr(++names, ':') : NULL;
		bool ours = !controller && path == names;
		struct stat st;

		if (!path)
			continue;
		*path++ = 0;
		path[strcspn(path, "\n")] = 0;
		for (char *save, *word = strtok_r(names, ",", &save); controller && word;
		     word = strtok_r(NULL, ",", &save))
			ours = ours || strcmp(word, controller) == 0;
		if (!ours)
			continue;
		*ret_top = strlen(at);
		return snprintf(dir, PATH_MAX, "%s%s", at, strcmp(path, "/") ? path : "") <
			       PATH_MAX &&
		       stat(dir, &st) == 0;
	}
	return false;
}

/* A new directory below one; NULL: not allowed. */
static char *make_below(const char *dir)
{
	char path[PATH_MAX];

	for (unsigned i = 0; i < 1000; i++) {
		if (snprintf(path, sizeof(path), "%s/plyfs-%d-%u", dir, (int)getpid(), i) >=
		    (int)sizeof(path))
			return NULL;
		if (mkdir(path, 0755) == 0)
			return strdup(path);
		if (errno != EEXIST)
			return NULL;
	}
	return NULL;
}

/* As if there were none. */
static void drop(struct group *g, int controller)
{
	(void)rmdir(g->dir[controller]); /* empty, just made; litter at worst */
	free(TAKE_PTR(g->dir[controller]));
}

/*
 * Version 2: a group's children have the controllers that it gives on, which it may only while it
 * has no processes itself, so ours hardly ever does: one above it is used, making the new group a
 * neighbour of ours.
 */
static bool make_v2(struct group *g, const bool wanted[CONTROLLERS])
{
	char dir[PATH_MAX];
	size_t top;

	if (!own_group(NULL, dir, &top))
		return false;
	for (;;) {
		bool has = true;

		for (int c = 0; c < CONTROLLERS; c++) {
			char plus[16];

			if (!wanted[c] ||
			    file_has_word(dir, "cgroup.subtree_control", controllers[c]))
				continue;
			(void)snprintf(plus, sizeof(plus), "+%s", controllers[c]);
			has = has && write_to(dir, "cgroup.subtree_control", plus) == 0;
		}
		if (has && (g->dir[MEMORY] = make_below(dir)))
			break;
		if (strlen(dir) <= top)
			return false;
		*strrchr(dir, '/') = 0;
	}
	g->dir[PIDS] = strdup(g->dir[MEMORY]);
	if (!g->dir[PIDS])
		drop(g, MEMORY);
	g->v2 = g->dir[PIDS] != NULL;
	return g->v2;
}

struct group *group_make(const struct proc_limits *limits)
{
	const bool wanted[] = { limits->memory > 0, limits->processes > 0 };
	struct group *g;

	if (!wanted[MEMORY] && !wanted[PIDS])
		return NULL;
	g = calloc(1, sizeof(*g));
	if (!g)
		return NULL;
	if (!make_v2(g, wanted)) {
		for (int c = 0; c < CONTROLLERS; c++) {
			char dir[PATH_MAX];
			size_t top;

			if (wanted[c] && own_group(controllers[c], dir, &top))
				g->dir[c] = make_below(dir);
		}
	}

	/* Without its number a group limits nothing. Swap would only put off the end; that there
	 * may be none to limit is fine. */
	for (int c = 0; c < CONTROLLERS; c++) {
		int r = 0;

		if (!g->dir[c])
			continue;
		if (c == PIDS && wanted[c]) /* it takes no number that there cannot be */
			r = limits->processes < PIDS_MAX ?
				    write_number(g->dir[c], "pids.max", limits->processes) :
				    write_to(g->dir[c], "pids.max", "max");
		if (c == MEMORY && wanted[c])
			r = write_number(g->dir[c], g->v2 ? "memory.max" : "memory.limit_in_bytes",
					 limits->memory);
		if (c == MEMORY && wanted[c] && r == 0)
			(void)(g->v2 ? write_to(g->dir[c], "memory.swap.max", "0")
				     : write_number(g->dir[c], "memory.memsw.limit_in_bytes",
						    limits->memory));
		if (r < 0)
			drop(g, c);
	}
	return g;
}

bool group_holds(const struct group *g, const struct proc_limits *limits)
{
	return (!limits->memory || (g && g->dir[MEMORY])) &&
	       (!limits->processes || (g && g->dir[PIDS]));
}

/* Groups that were made within (by a container's runtime that was killed) go with it. */
static int remove_directory(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	if (type == FTW_DP)
		(void)rmdir(path); /* group_free looks whether it worked */
	return 0;
}

void group_free(struct group *g)
{
	if (!g)
		return;
	for (int c = 0; c < CONTROLLERS; c++) {
		/* The last process may be on its way out for some moments yet: a second in all. */
		for (int i = 0; g->dir[c] && i < 100 && access(g->dir[c], F_OK) == 0; i++) {
			if (i)
				(void)usleep(10000);
			(void)nftw(g->dir[c], remove_directory, 8, FTW_DEPTH | FTW_PHYS);
		}
		free(g->dir[c]);
	}
	free(g);
}

/* Threads of our user that there are. */
static uint64_t present_threads(void)
{
	DIR *proc = opendir("/proc");
	struct dirent *entry;
	uint64_t n = 0;

	while (proc && (entry = readdir(proc))) {
		char path[PATH_MAX];
		struct stat st;

		(void)snprintf(path, sizeof(path), "/proc/%.20s/task", entry->d_name);
		if (stat(path, &st) == 0 && st.st_uid == getuid())
			n += st.st_nlink - 2;
	}
	if (proc)
		closedir(proc);
	return n;
}

static void limit(__rlimit_resource_t what, uint64_t soft, uint64_t hard)
{
	struct rlimit now;

	if (getrlimit(what, &now) < 0)
		return;
	now.rlim_max = MIN(now.rlim_max, hard);
	now.rlim_cur = MIN(now.rlim_max, soft);
	(void)setrlimit(what, &now); /* lowering is always allowed */
}

/* The largest number is no limit, and so is what would be beyond it. */
static uint64_t add(uint64_t a, uint64_t b)
{
	return a < UINT64_MAX - b ? a + b : UINT64_MAX;
}

void group_enter(const struct group *g, const struct proc_limits *limits)
{
	bool covered[CONTROLLERS];

	for (int c = 0; c < CONTROLLERS; c++)
		covered[c] = g && g->dir[c] && write_to(g->dir[c], "cgroup.procs", "0") == 0;
	if (limits->memory && !covered[MEMORY])
		limit(RLIMIT_DATA, limits->memory, limits->memory);
	if (limits->processes && !covered[PIDS]) {
		uint64_t n = add(present_threads(), limits->processes);

		limit(RLIMIT_NPROC, n, n);
	}
	if (limits->cpu_time) /* SIGXCPU, and a second later SIGKILL */
		limit(RLIMIT_CPU, limits->cpu_time, add(limits->cpu_time, 1));
}

void group_kill(const struct group *g)
{
	if (g && g->v2 && g->dir[MEMORY])
		(void)write_to(g->dir[MEMORY], "cgroup.kill", "1"); /* Linux 5.14; tree_kill too */
}

void group_events(const struct group *g, bool *ret_out_of_memory, bool *ret_too_many_processes)
{
	*ret_out_of_memory =
		g && g->dir[MEMORY] &&
		number_after(g->dir[MEMORY], g->v2 ? "memory.events" : "memory.oom_control",
			     "oom_kill") > 0;
	*ret_too_many_processes =
		g && g->dir[PIDS] && number_after(g->dir[PIDS], "pids.events", "max") > 0;
}
