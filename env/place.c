/* SPDX-License-Identifier: Apache-2.0 */

/* Directories to mount on. */

#include "env/place.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "env/files.h"
#include "env/status.h"
#include "store/base/util.h"

int place_make(const char *path)
{
	_cleanup_free_ char *copy = strdup(path);

	if (!copy)
		return fail_memory();
	for (char *p = strchr(copy + 1, '/');; p = strchr(p + 1, '/')) {
		if (p)
			*p = '\0';
		if (mkdir(copy, 0777) < 0 && errno != EEXIST && errno != EROFS)
			return fail_errno(errno, "making the directory '%s'", copy);
		if (!p)
			return 0;
		*p = '/';
	}
}

int place_random(char text[static PLACE_RANDOM])
{
	uint64_t random;

	/* 48 bits: two of these never meet. */
	if (getrandom(&random, sizeof(random), 0) != sizeof(random))
		return fail_errno(errno, "a random name");
	(void)snprintf(text, PLACE_RANDOM, "%012" PRIx64, random >> 16);
	return 0;
}

int place_plan(char **ret)
{
	const char *top = place_runtime_dir() ?: "/tmp";
	_cleanup_free_ char *real = NULL;
	char text[PLACE_RANDOM], *path;
	int r;

	r = place_random(text);
	if (r == 0)
		r = files_absolute(top, &real);
	if (r < 0)
		return r;
	if (asprintf(&path, "%s/plyfs-env-%s", real, text) < 0)
		return fail_memory();
	*ret = path;
	return 0;
}

int place_check_empty(const char *path)
{
	DIR *d = opendir(path);
	struct dirent *e;
	bool empty = true;
	int r;

	if (!d)
		return fail_errno(errno, "'%s'", path);
	while (empty && (errno = 0, e = readdir(d)))
		empty = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0;
	r = empty && errno ? fail_errno(errno, "'%s'", path) : 0;
	(void)closedir(d); /* read only */
	if (r < 0)
		return r;
	return empty ? 0
		     : fail(PLY_INVALID,
			    "'%s' is not empty: a fork is mounted on a directory "
			    "that is, or that is not there",
			    path);
}
