/* SPDX-License-Identifier: Apache-2.0 */

/* See spool.h. */

#include "env/serve/spool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "env/serve/http.h"
#include "store/base/util.h"

static int open_file(const char *dir)
{
	_cleanup_free_ char *path = NULL;
	int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

	if (fd >= 0)
		return fd;
	/* Not every filesystem has files without names. */
	if (asprintf(&path, "%s/plyfs-body-XXXXXX", dir) < 0) {
		path = NULL;
		return -ENOMEM;
	}
	fd = mkostemp(path, O_CLOEXEC);
	if (fd < 0)
		return -errno;
	(void)unlink(path);
	return fd;
}

static int move_to_file(struct spool *s, const char *dir)
{
	_cleanup_close_ int fd = open_file(dir);
	int r;

	if (fd < 0)
		return fd;
	r = write_all(fd, s->data, s->len);
	if (r < 0)
		return r;
	free(s->data);
	s->data = NULL;
	s->room = 0;
	s->fd = TAKE_FD(fd);
	return 0;
}

int spool_add(struct spool *s, const char *dir, const char *data, size_t len)
{
	int r;

	if (s->fd < 0 && s->len + len > HTTP_BODY_IN_MEMORY) {
		r = move_to_file(s, dir);
		if (r < 0)
			return r;
	}
	if (s->fd >= 0) {
		r = write_all(s->fd, data, len);
		if (r < 0)
			return r;
		s->len += len;
		return 0;
	}
	if (s->len + len + 1 > s->room) {
		size_t room = s->room ? s->room : 4096;
		char *p;

		while (room < s->len + len + 1)
			room *= 2;
		p = realloc(s->data, room);
		if (!p)
			return -ENOMEM;
		s->data = p;
		s->room = room;
	}
	memcpy(s->data + s->len, data, len);
	s->len += len;
	return 0;
}

int spool_finish(struct spool *s)
{
	int r;

	if (s->fd < 0) {
		if (!s->data && !(s->data = malloc(1)))
			return -ENOMEM;
		s->data[s->len] = '\0';
		return 0;
	}
	/*
	 * The NUL is in the file as well: a mapping must not end at its end. It is written, since a
	 * hole that is made longer has no room: on a tmpfs that is full, who looks at it dies.
	 */
	r = write_all(s->fd, "", 1);
	if (r < 0)
		return r;
	s->data = mmap(NULL, s->len + 1, PROT_READ, MAP_SHARED, s->fd, 0);
	if (s->data == MAP_FAILED) {
		s->data = NULL;
		return -errno;
	}
	s->mapped = s->len + 1;
	return 0;
}

void spool_release(struct spool *s)
{
	if (s->mapped)
		(void)munmap(s->data, s->mapped);
	else
		free(s->data);
	closep(&s->fd);
}
