/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Telling watchers what a restore changed (mount --inotify).
 *
 * inotify's events are made of system calls only: the kernel makes none of what a notification of
 * ours lets it forget. One system call makes an event and need not change anything: setxattr(2).
 * For such a view the daemon takes an attribute of a name of its own and drops it (raw.c), and the
 * kernel tells IN_ATTRIB to who watches the object, and, with its name, to who watches the
 * directory it is in. So a restore's caller (the daemon must not walk its own mount) sets it on
 * what there is of what differs, and on the directories in which names came or went. Programs that
 * watch look then at the file, or list the directory again.
 *
 * Who watches a replaced file itself has his watch on the object of before, which no path leads to
 * any more (V5): for him its name is told as unlinked (inval_gone, view.h).
 */

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/xattr.h>

#include "fs/ioctl.h"
#include "store/base/util.h"

/*
 * Each is a walk, a LOOKUP and a SETXATTR, 20 us. Beyond this many, which is as many as are worth
 * telling the kernel by name (NAMES_MAX, switch.c), only directories are told.
 */
#define TOLD_MAX 2000

struct teller {
	char path[PATH_MAX + 64]; /* of what is told, by way of the top's descriptor */
	size_t top;		  /* bytes of it that lead there */
	char last[PATH_MAX];	  /* whose directories have been told */
	unsigned told;
};

static bool tell(struct teller *t, const char *path, size_t len)
{
	if (len >= PATH_MAX)
		return false;
	memcpy(t->path + t->top, path, len);
	t->path[t->top + len] = '\0';
	return lsetxattr(t->path, PLYFS_XATTR_RESTORED, "", 0, 0) == 0;
}

/* Is it a directory of the last path as well? */
static bool is_shared(const struct teller *t, const char *path, size_t len)
{
	return len == 0 ? *t->last != '\0'
			: strncmp(t->last, path, len) == 0 && t->last[len] == '/';
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

	if (len > 0 && path[len - 1] == '/')
		path[--len] = '\0';
	if (len == 0 || len >= sizeof(t->last))
		return;
	if (strcmp(path, ".") == 0)
		(void)tell(t, "", 0);
	else if (kind != 'D' && t->told++ < TOLD_MAX)
		(void)tell(t, path, len);
	if (kind != 'M')
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
	static const char verb[] = "diff\0--name-status\0-z\0--no-renames";
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
