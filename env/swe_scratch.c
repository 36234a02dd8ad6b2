/* SPDX-License-Identifier: Apache-2.0 */

/* Made under a lock whose file says, by not being empty, that all of it was made. */

#include "env/swe_scratch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "env/place.h"
#include "env/program.h"
#include "env/pytext.h"
#include "env/status.h"
#include "store/base/util.h"

static int data_dir(struct ply_text *ret)
{
	const char *data = getenv("XDG_DATA_HOME"), *home = getenv("HOME");

	if (data && *data == '/')
		return text_append_format(ret, "%s/plyfs", data);
	if (home && *home == '/')
		return text_append_format(ret, "%s/.local/share/plyfs", home);
	return fail(PLY_INVALID,
		    "neither XDG_DATA_HOME nor HOME says where to keep files: set one, "
		    "or give deployment.workdir");
}

/* already: what it says when another one's try came that far before it was ended. */
static int verb(const char *const *args, const char *already)
{
	_cleanup_(ply_text_free) struct ply_text out = { 0 }, err = { 0 };
	int code, r;

	r = program_run(NULL, args, -1, &out, &err, &code);
	if (r < 0 || code == 0 || (err.data && strstr(err.data, already)))
		return r;
	return fail(PLY_FAILED, "%s", err.data ? err.data : "the plyfs program failed");
}

static int make(const char *store)
{
	char dir[] = "/tmp/plyfs-empty-XXXXXX";
	const char *const init[] = { "init", store, NULL };
	const char *const import[] = { "--store",      store, "import", "--branch",
				       SCRATCH_BRANCH, dir,   NULL };
	int r;

	if (!mkdtemp(dir))
		return fail_errno(errno, "making a directory %s", dir);
	r = verb(init, "a store already");
	if (r == 0)
		r = verb(import, "has a state already");
	(void)rmdir(dir); /* ours, and empty */
	return r;
}

/* Said, since the lock is not over by close() when the caller has forked meanwhile. */
static void unlockp(int *fd)
{
	if (*fd >= 0)
		(void)flock(*fd, LOCK_UN);
	closep(fd);
}

int scratch_store(struct ply_text *ret)
{
	_cleanup_(ply_text_free) struct ply_text dir = { 0 }, lock = { 0 };
	struct ply_text store = { 0 };
	_cleanup_(unlockp) int fd = -1;
	struct stat st;
	int r;

	r = data_dir(&dir);
	if (r == 0)
		r = place_make(dir.data);
	if (r == 0)
		r = text_append_format(&lock, "%s/scratch.made", dir.data);
	if (r < 0)
		return r;
	fd = open(lock.data, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0 || flock(fd, LOCK_EX) < 0 || fstat(fd, &st) < 0)
		return fail_errno(errno, "%s", lock.data);
	r = text_append_format(&store, "%s/scratch", dir.data);
	if (r == 0 && (st.st_size == 0 || access(store.data, F_OK) < 0)) {
		r = make(store.data);
		if (r == 0 && pwrite(fd, "1\n", 2, 0) != 2)
			r = fail_errno(errno, "writing %s", lock.data);
	}
	if (r < 0) {
		ply_text_free(&store);
		return r;
	}
	*ret = store;
	return 0;
}

void scratch_sweep(const char *store)
{
	_cleanup_(ply_text_free) struct ply_text out = { 0 }, err = { 0 };
	const char *const gc[] = { "--store", store, "gc", NULL };
	int code;

	(void)program_run(NULL, gc, -1, &out, &err, &code); /* see the header */
}
