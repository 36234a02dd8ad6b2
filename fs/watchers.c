/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Telling watchers what a restore changed (mount --inotify).
 *
 * inotify's events are made of system calls only: the kernel makes none of what a notification of
 * ours lets it forget. So a restore's caller makes system calls (the daemon must not walk its own
 * mount) which change nothing, and the daemon of such a view answers that they did (announced.c).
 *
 * A name that came is made once more, one that went is removed: IN_CREATE and IN_DELETE, for who
 * watches the directory, as of any change. Of what is there and differs, or came, an attribute of a
 * name of ours is set: IN_ATTRIB, for who watches the object, and, with its name, the directory it
 * is in. Where a name cannot be told (a mode forbids it, somebody has looked or made it since, it
 * is a directory that the kernel has or no file, directory or symlink, there are too many),
 * IN_ATTRIB of its directory lets programs list it again.
 *
 * Who watches a replaced file itself has his watch on the object of before, which no path leads to
 * any more (V5): for him its name is told as unlinked (inval_gone, view.h).
 */

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "fs/ioctl.h"
#include "store/base/util.h"

/*
 * A name is some walks and five requests, 100 us, and what differs 60. Beyond this many, which is
 * as many as are worth telling the kernel by name (NAMES_MAX, switch.c), only directories are told.
 */
#define TOLD_MAX 2000

struct teller {
	int top;		 /* borrowed */
	int dir;		 /* owned; where what is told is; -1: nowhere */
	char dir_path[PATH_MAX]; /* its path below top */
	char name[NAME_MAX + 1]; /* of what is told, in it; none: it is the top */
	char last[PATH_MAX];	 /* whose directories have been told */
	char gone[PATH_MAX];	 /* a directory that was told to be gone, and all in it with it */
	unsigned told;
};

/*
 * By no symlink and not above top, and from here on only by the descriptor: whoever may write in
 * the view can put a symlink where a directory was, and then root would make and remove names
 * elsewhere.
 */
static int open_dir(int top, const char *path)
{
	const struct open_how how = { .flags = O_PATH | O_DIRECTORY | O_CLOEXEC,
				      .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS };

	return (int)syscall(SYS_openat2, top, *path ? path : ".", &how, sizeof(how));
}

static bool go_to(struct teller *t, const char *path, size_t len)
{
	char dir[PATH_MAX] = "";
	const char *slash = memrchr(path, '/', len);
	size_t n = slash ? (size_t)(slash - path) : 0, from = slash ? n + 1 : 0;

	if (n >= sizeof(dir) || len - from >= sizeof(t->name))
		return false;
	memcpy(dir, path, n);
	memcpy(t->name, path + from, len - from);
	t->name[len - from] = '\0';
	if (t->dir >= 0 && strcmp(t->dir_path, dir) == 0)
		return true;
	if (t->dir >= 0)
		close(t->dir);
	t->dir = open_dir(t->top, dir);
	strcpy(t->dir_path, dir);
	return t->dir >= 0;
}

/* For calls that take no descriptor, or not of this kind. */
struct proc_path {
	char path[sizeof("/proc/self/fd//") + 10 + NAME_MAX];
};

static struct proc_path proc_path(const struct teller *t, const char *name)
{
	struct proc_path p;

	(void)snprintf(p.path, sizeof(p.path), "/proc/self/fd/%d/%s", t->dir, name);
	return p;
}

static bool tell(struct teller *t, const char *path, size_t len)
{
	return go_to(t, path, len) &&
	       lsetxattr(proc_path(t, t->name).path, PLYFS_XATTR_RESTORED, "", 0, 0) == 0;
}

static bool announce(const struct teller *t, const char *what)
{
	return getxattr(proc_path(t, "").path, what, NULL, 0) == 0;
}

static bool make_again(const struct teller *t, bool dir)
{
	bool done = announce(t, PLYFS_XATTR_MADE) &&
		    (dir ? mkdirat(t->dir, t->name, 0700)
			 : mknodat(t->dir, t->name, S_IFREG | 0600, 0)) == 0;

	if (!done && errno == ELOOP)
		done = announce(t, PLYFS_XATTR_MADE) &&
		       symlinkat("a symlink", t->dir, t->name) == 0;
	return done;
}

static bool remove_again(const struct teller *t, bool dir)
{
	struct stat st;

	return announce(t, dir ? PLYFS_XATTR_GONE_DIR : PLYFS_XATTR_GONE) &&
	       fstatat(t->dir, t->name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
	       st.st_ino == PLYFS_GHOST_INO &&
	       unlinkat(t->dir, t->name, dir ? AT_REMOVEDIR : 0) == 0;
}

/* IN_CREATE or IN_DELETE. */
static bool tell_name(struct teller *t, const char *path, size_t len, bool dir, bool gone)
{
	if (!go_to(t, path, len))
		return false;
	if (gone ? remove_again(t, dir) : make_again(t, dir))
		return true;
	(void)announce(t, PLYFS_XATTR_NOTHING);
	return false;
}

static bool is_below(const char *path, const char *dir, size_t len)
{
	return strncmp(path, dir, len) == 0 && path[len] == '/';
}

/* Is it a directory of the last path as well? */
static bool is_shared(const struct teller *t, const char *path, size_t len)
{
	return len == 0 ? *t->last != '\0' : is_below(t->last, path, len);
}

/*
 * From the lowest up to one that has been told. Which of them came along with what is in it is not
 * known, so all are; of what is gone it is the lowest that is still there.
 */
static void tell_directories(struct teller *t, const char *path, bool gone)
{
	size_t len = strlen(path);

	while (len > 0) {
		while (len > 0 && path[len - 1] != '/')
			len--;
		len -= len > 0; /* the slash */
		if (is_shared(t, path, len) || (tell(t, path, len) && gone))
			break;
	}
	strcpy(t->last, path);
}

/* As diff --name-status says it; a directory's path ends in a slash. */
static void tell_change(struct teller *t, char kind, char *path)
{
	size_t len = strlen(path);
	bool dir = len > 0 && path[len - 1] == '/', few = t->told < TOLD_MAX, named;

	if (dir)
		path[--len] = '\0';
	if (len == 0 || len >= sizeof(t->last))
		return;
	if (strcmp(path, ".") == 0) {
		(void)tell(t, "", 0);
		return;
	}
	if (kind == 'D' && *t->gone && is_below(path, t->gone, strlen(t->gone)))
		return;
	t->told += few;
	named = few && (kind == 'A' || kind == 'D') && tell_name(t, path, len, dir, kind == 'D');
	if (named && dir && kind == 'D')
		strcpy(t->gone, path);
	if (few && kind != 'D')
		(void)tell(t, path, len);
	if (kind != 'M' && !named)
		tell_directories(t, path, kind == 'D');
}

/* Whole records of text: a letter, NUL, a path, NUL. How many bytes they are. */
static size_t tell_changes(struct teller *t, char *text, size_t n)
{
	size_t at = 0;

	for (;;) {
		const char *end = n - at > 2 ? memchr(text + at + 2, '\0', n - at - 2) : NULL;

		if (!end)
			return at;
		tell_change(t, text[at], text + at + 2);
		at = (size_t)(end - text) + 1;
	}
}

void plyfs_tell_watchers(int top_fd, const char *left, const char *now)
{
	static const char verb[] = "diff\0-z\0--no-renames\0--directories";
	char text[sizeof(((struct plyfs_read *)0)->data) + PATH_MAX + 4];
	struct plyfs_read answer = { .more = 1 };
	struct plyfs_call call = { 0 };
	struct teller t = { .top = top_fd, .dir = -1 };
	size_t n = 0, done;

	call.args_len = (uint32_t)sizeof(verb);
	memcpy(call.args, verb, sizeof(verb));
	call.args_len += (uint32_t)snprintf(call.args + call.args_len, 2 * PLYFS_ID_SIZE, "%.12s",
					    left) + 1;
	call.args_len += (uint32_t)snprintf(call.args + call.args_len, 2 * PLYFS_ID_SIZE, "%.12s",
					    now) + 1;
	if (ioctl(top_fd, PLYFS_IOC_CALL, &call) < 0)
		return;
	while (answer.more) {
		answer = (struct plyfs_read){ .handle = call.handle };
		/* The daemon may be another user's. */
		if (ioctl(top_fd, PLYFS_IOC_READ, &answer) < 0 ||
		    answer.out_len > sizeof(answer.data) || answer.out_len > sizeof(text) - n)
			break;
		memcpy(text + n, answer.data, answer.out_len);
		n += answer.out_len;
		done = tell_changes(&t, text, n);
		n -= done;
		memmove(text, text + done, n);
	}
	if (t.dir >= 0)
		close(t.dir);
}
