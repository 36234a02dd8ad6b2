/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What cgroups (cgroups(7)) say of memory. Our own is asked, and those above it as far as they can
 * be seen: in a container the top of what is mounted is its own, whatever its path is called
 * outside. A machine has one of the two versions for memory, or neither.
 */

#include "tools/memory.h"

#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/base/util.h"

static const struct version {
	const char *line; /* how its line in /proc/self/cgroup begins, after a number or not */
	const char *mount, *limit, *high, *kills;
} versions[] = {
	{ "\n0::", "/sys/fs/cgroup", "memory.max", "memory.high", "memory.events" },
	{ ":memory:", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", NULL,
	  "memory.oom_control" },
};

static bool read_text(const char *path, char *buf, size_t size)
{
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, buf, size - 1);

	buf[MAX(n, 0)] = 0;
	return n > 0;
}

/* The number behind key in the file of dir, UINT64_MAX where there is none ("max"). */
static uint64_t number_in(const char *dir, const char *file, const char *key)
{
	char path[PATH_MAX + 32], buf[1024];
	const char *at;

	(void)snprintf(path, sizeof(path), "%s/%s", dir, file);
	if (!read_text(path, buf, sizeof(buf)))
		return UINT64_MAX;
	at = strstr(buf, key);
	at = at ? at + strlen(key) : "";
	return *at >= '0' && *at <= '9' ? strtoull(at, NULL, 10) : UINT64_MAX;
}

/* The directory of our cgroup, false: there is none of that version. */
static bool own_dir(const struct version *v, char dir[static PATH_MAX])
{
	char text[PATH_MAX] = "\n";
	const char *at;

	(void)read_text("/proc/self/cgroup", text + 1, sizeof(text) - 1);
	at = strstr(text, v->line);
	if (!at)
		return false;
	at += strlen(v->line);
	(void)snprintf(dir, PATH_MAX, "%s%.*s", v->mount, (int)strcspn(at, "\n"), at);
	return true;
}

/* The one above, false: dir was the top. */
static bool go_up(const struct version *v, char *dir)
{
	if (strlen(dir) <= strlen(v->mount))
		return false;
	*strrchr(dir, '/') = 0;
	return true;
}

uint64_t memory_limit(void)
{
	uint64_t limit = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	char dir[PATH_MAX];

	for (size_t i = 0; i < ARRAY_SIZE(versions); i++) {
		const struct version *v = &versions[i];

		if (!own_dir(v, dir))
			continue;
		do {
			limit = MIN(limit, number_in(dir, v->limit, ""));
			if (v->high) /* beyond it everybody is slowed down */
				limit = MIN(limit, number_in(dir, v->high, ""));
		} while (go_up(v, dir));
	}
	return limit;
}

uint64_t memory_kills(void)
{
	char dir[PATH_MAX];

	for (size_t i = 0; i < ARRAY_SIZE(versions); i++) {
		if (!own_dir(&versions[i], dir))
			continue;
		do {
			uint64_t n = number_in(dir, versions[i].kills, "oom_kill ");

			if (n != UINT64_MAX)
				return n;
		} while (go_up(&versions[i], dir));
	}
	return 0;
}
