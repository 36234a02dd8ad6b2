/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What is mounted where. The client, the daemon and its guard use it, so it must work in a process
 * that was forked before there were threads, and never asks a mounted view for anything: a dead or
 * busy one would hang whoever does.
 */

#include "tools/mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "store/base/util.h"
#include "store/base/words.h"

extern char **environ;

int mounts_each(int (*fn)(void *arg, const struct mount_entry *e), void *arg)
{
	_cleanup_fclose_ FILE *f = fopen("/proc/self/mountinfo", "re");
	_cleanup_free_ char *line = NULL;
	size_t cap = 0;
	int r;

	if (!f)
		return -errno;

	/* id parent major:minor root MOUNTPOINT options [optional...] - TYPE SOURCE superoptions */
	while (errno = 0, getline(&line, &cap, f) > 0) {
		struct mount_entry e = {};
		char *save = NULL, *word, *root = NULL, *path = NULL, *dash;

		dash = strstr(line, " - ");
		if (!dash)
			continue;
		*dash = 0;
		word = strtok_r(line, " ", &save);
		for (int i = 0; word && i < 4; i++) {
			word = strtok_r(NULL, " ", &save);
			if (i == 1 && word && sscanf(word, "%u:%u", &e.major, &e.minor) != 2)
				e.major = e.minor = 0;
			if (i == 2)
				root = word;
			if (i == 3)
				path = word;
		}
		if (!path)
			continue;
		word_unescape(root);
		word_unescape(path);
		e.root = root;
		e.path = path;
		e.type = strtok_r(dash + 3, " ", &save);
		e.source = strtok_r(NULL, " ", &save);
		e.options = strtok_r(NULL, " \n", &save);
		if (!e.type || !e.source || !e.options)
			continue;

		r = fn(arg, &e);
		if (r)
			return r;
	}

	return -errno; /* of want of memory, say: at the end of the file it is 0 */
}

struct is_plyfs {
	const char *path;
	int answer;
	unsigned user; /* who mounted it */
};

static int is_plyfs_one(void *arg, const struct mount_entry *e)
{
	struct is_plyfs *q = arg;

	const char *user = strstr(e->options, "user_id=");

	if (strcmp(e->path, q->path) == 0) { /* a later line lies on top */
		q->answer = strcmp(e->type, PLYFS_FS_TYPE) == 0;
		q->user = user ? (unsigned)strtoul(user + strlen("user_id="), NULL, 10) : 0;
	}
	return 0;
}

int mounts_is_plyfs(const char *path)
{
	struct is_plyfs q = { .path = path };
	int r = mounts_each(is_plyfs_one, &q);

	return r < 0 ? r : q.answer;
}

/* fusermount3 -u; its words are dropped: the caller knows what was attempted. */
static int run_fusermount(const char *path, bool lazy)
{
	char *argv[] = { (char *)"fusermount3", (char *)"-u", (char *)(lazy ? "-z" : "-q"),
			 (char *)"--",		(char *)path, NULL };
	posix_spawn_file_actions_t actions;
	int r, status;
	pid_t pid;

	r = posix_spawn_file_actions_init(&actions);
	if (r)
		return -r;
	posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
	posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
	r = posix_spawnp(&pid, argv[0], &actions, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	if (r)
		return -r;

	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return -errno;
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return 0;
	if (mounts_is_plyfs(path) == 0)
		return 0; /* somebody else was faster */
	if (access(MOUNTS_MTAB, R_OK) < 0)
		return -ENOTSUP;
	return lazy ? -EPERM : -EBUSY;
}

int mounts_unmount(const char *path, bool lazy)
{
	struct is_plyfs q = { .path = path, .user = getuid() };
	int r;

	if (umount2(path, UMOUNT_NOFOLLOW | (lazy ? MNT_DETACH : 0)) == 0)
		return 0;
	if (errno != EPERM)
		return -errno;
	r = run_fusermount(path, lazy);
	if (r < 0 && (geteuid() == 0 || (mounts_each(is_plyfs_one, &q) == 0 && q.user != getuid())))
		return -EPERM;
	return r;
}

#define MNT_ID_UNIQUE 0x4000U /* STATX_MNT_ID_UNIQUE of newer headers; older kernels pass over it */

/* No filesystem is asked for that. */
static uint64_t number_of(int dir, const char *path, int flags)
{
	struct statx x;

	if (statx(dir, path, flags | AT_NO_AUTOMOUNT | AT_STATX_DONT_SYNC,
		  STATX_MNT_ID | MNT_ID_UNIQUE, &x) < 0)
		return 0;
	/* Until Linux 6.8 it is one that a later mount may get: rarely at once. */
	return x.stx_mask & (STATX_MNT_ID | MNT_ID_UNIQUE) ? x.stx_mnt_id : 0;
}

uint64_t mounts_number(const char *path)
{
	return number_of(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW);
}

int mounts_detach(const char *path, uint64_t number)
{
	_cleanup_close_ int fd = open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	char link[40];

	if (fd < 0)
		return -errno;
	if (number && number_of(fd, "", AT_EMPTY_PATH) != number)
		return -ESTALE;
	/*
	 * By descriptor: what is mounted there from here on is another one. By force: who waits for
	 * an answer shall have an error.
	 */
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	if (umount2(link, MNT_DETACH | MNT_FORCE) == 0)
		return 0;
	return errno == EPERM ? run_fusermount(path, true) : -errno;
}
