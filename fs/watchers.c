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
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
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
	char path[PATH_MAX + 64]; /* of what is told, by way of the top's descriptor */
	size_t top;		  /* bytes of it that lead there */
	char last[PATH_MAX];	  /* whose directories have been told */
	char gone[PATH_MAX];	  /* a directory that was told to be gone, and all in it with it */
	unsigned told;
};

static bool set_path(struct teller *t, const char *path, size_t len)
{
	if (len >= PATH_MAX)
		return false;
	memcpy(t->path + t->top, path, len);
	t->path[t->top + len] = '\0';
	return true;
}

static bool tell(struct teller *t, const char *path, size_t len)
{
	return set_path(t, path, len) && lsetxattr(t->path, PLYFS_XATTR_RESTORED, "", 0, 0) == 0;
}

/* Of the directory that t->path is in. */
static bool announce(struct teller *t, const char *what)
{
	char *slash = strrchr(t->path, '/'), was = slash[1];
	bool done;

	slash[1] = '\0'; /* "/proc/self/fd/3/" is the top itself */
	done = getxattr(t->path, what, NULL, 0) == 0;
	slash[1] = was;
	return done;
}

static bool make_again(struct teller *t, bool dir)
{
	bool done = announce(t, PLYFS_XATTR_MADE) &&
		    (dir ? mkdir(t->path, 0700) : mknod(t->path, S_IFREG | 0600, 0)) == 0;

	if (!done && errno == ELOOP)
		done = announce(t, PLYFS_XATTR_MADE) && symlink("a symlink", t->path) == 0;
	return done;
}

static bool remove_again(struct teller *t, bool dir)
{
	struct stat st;

	return announce(t, dir ? PLYFS_XATTR_GONE_DIR : PLYFS_XATTR_GONE) &&
	       lstat(t->path, &st) == 0 && st.st_ino == PLYFS_GHOST_INO &&
	       (dir ? rmdir(t->path) : unlink(t->path)) == 0;
}

/* IN_CREATE or IN_DELETE. */
static bool tell_name(struct teller *t, const char *path, size_t len, bool dir, bool gone)
{
	if (!set_path(t, path, len))
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
	struct teller t = { .last = "" };
	size_t n = 0, done;

	call.args_len = (uint32_t)sizeof(verb);
	memcpy(call.args, verb, sizeof(verb));
	call.args_len += (uint32_t)snprintf(call.args + call.args_len, 2 * PLYFS_ID_SIZE, "%.12s",
					    left) + 1;
	call.args_len += (uint32_t)snprintf(call.args + call.args_len, 2 * PLYFS_ID_SIZE, "%.12s",
					    now) + 1;
	t.top = (size_t)snprintf(t.path, sizeof(t.path), "/proc/self/fd/%d/", top_fd);
	if (ioctl(top_fd, PLYFS_IOC_CALL, &call) < 0)
		return;
	while (answer.more) {
		answer = (struct plyfs_read){ .handle = call.handle };
		/* The daemon may be another user's. */
		if (ioctl(top_fd, PLYFS_IOC_READ, &answer) < 0 ||
		    answer.out_len > sizeof(answer.data) || answer.out_len > sizeof(text) - n)
			return;
		memcpy(text + n, answer.data, answer.out_len);
		n += answer.out_len;
		done = tell_changes(&t, text, n);
		n -= done;
		memmove(text, text + done, n);
	}
}
