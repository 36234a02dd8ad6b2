/* SPDX-License-Identifier: Apache-2.0 */

/* Files of a workspace that never lead out of it; see files.h. */

#include "env/files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "env/status.h"
#include "store/base/util.h"

/* As the kernel: more symlinks than this on one way are a loop. */
#define LINKS_MAX 40
/* How often to resolve again when somebody changes the way while we look at it. */
#define TRIES 16
#define COPY_BYTES (64 * 1024)

/* ---- where a path leads ---- */

struct resolver {
	char *real; /* PATH_MAX: what is resolved, "" for / */
	size_t len;
	char *rest; /* PATH_MAX: what is not yet */
	int links;
};

/* rest becomes text + "/" + rest. -ENAMETOOLONG. */
static int push(struct resolver *s, const char *text, size_t len)
{
	size_t rest = strlen(s->rest);

	if (len + 1 + rest >= PATH_MAX)
		return -ENAMETOOLONG;
	memmove(s->rest + len + 1, s->rest, rest + 1);
	memcpy(s->rest, text, len);
	s->rest[len] = '/';
	return 0;
}

/* One component, which is not ".." or ".". */
static int enter_name(struct resolver *s, const char *name, size_t len)
{
	char target[PATH_MAX];
	size_t before = s->len;
	ssize_t n;

	if (s->len + 1 + len >= PATH_MAX)
		return -ENAMETOOLONG;
	s->real[s->len++] = '/';
	memcpy(s->real + s->len, name, len);
	s->len += len;
	s->real[s->len] = '\0';

	n = readlink(s->real, target, sizeof(target));
	if (n < 0)
		return errno == ENAMETOOLONG ? -ENAMETOOLONG : 0; /* no link, or nothing there */
	if ((size_t)n == sizeof(target))
		return -ENAMETOOLONG;
	if (++s->links > LINKS_MAX)
		return -ELOOP;
	s->len = n && target[0] == '/' ? 0 : before;
	s->real[s->len] = '\0';
	return push(s, target, (size_t)n);
}

/* path, beginning at base ("" or an absolute one without symlinks). -errno. */
static int resolve(const char *base, const char *path, char **ret)
{
	_cleanup_free_ char *real = malloc(PATH_MAX), *rest = malloc(PATH_MAX);
	struct resolver s = { .real = real, .rest = rest };
	char name[NAME_MAX + 1];
	size_t n;
	int r;

	if (!real || !rest)
		return -ENOMEM;
	n = strlen(path);
	if (*path == '/' || strcmp(base, "/") == 0)
		base = "";
	s.len = strlen(base);
	if (n >= PATH_MAX || s.len >= PATH_MAX)
		return -ENAMETOOLONG;
	memcpy(real, base, s.len + 1);
	memcpy(rest, path, n + 1);

	while (*s.rest) {
		n = strcspn(s.rest, "/");
		if (n > NAME_MAX)
			return -ENAMETOOLONG;
		memcpy(name, s.rest, n);
		name[n] = '\0';
		n += strspn(s.rest + n, "/");
		memmove(s.rest, s.rest + n, strlen(s.rest + n) + 1);
		if (strcmp(name, "..") == 0) {
			while (s.len && s.real[--s.len] != '/')
				;
			s.real[s.len] = '\0';
		} else if (*name && strcmp(name, ".") != 0) {
			r = enter_name(&s, name, strlen(name));
			if (r < 0)
				return r;
		}
	}
	if (!s.len)
		memcpy(s.real, "/", 2);
	*ret = strdup(s.real);
	return *ret ? 0 : -ENOMEM;
}

int files_absolute(const char *path, char **ret)
{
	_cleanup_free_ char *cwd = *path == '/' ? NULL : getcwd(NULL, 0);
	char *found;
	int r;

	if (*path != '/' && !cwd)
		return fail_errno(errno, "the current directory");
	r = resolve(cwd ? cwd : "", path, &found);
	if (r < 0)
		return fail_errno(-r, "'%s'", path);
	*ret = found;
	return 0;
}

int files_resolve(const char *root, const char *path, char **ret)
{
	_cleanup_free_ char *real = NULL;
	size_t len = strlen(root);
	const char *below;
	int r;

	r = resolve(root, path, &real);
	if (r < 0)
		return fail_errno(-r, "'%s'", path);
	if (strcmp(root, "/") == 0)
		len = 0;
	if (strncmp(real, root, len) != 0 || (real[len] && real[len] != '/'))
		return fail(PLY_DENIED, "Path escapes workdir: %s", path);
	below = real + len + strspn(real + len, "/");
	*ret = strdup(*below ? below : ".");
	return *ret ? 0 : fail_memory();
}

/* ---- opening ---- */

static int open_beneath(int dir_fd, const char *path, int flags, mode_t mode)
{
	struct open_how how = {
		.flags = (uint64_t)(flags | O_CLOEXEC),
		.mode = mode,
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS,
	};
	int fd = (int)syscall(SYS_openat2, dir_fd, path, &how, sizeof(how));

	return fd < 0 ? -errno : fd;
}

static int open_root(const char *root)
{
	int fd = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);

	return fd < 0 ? -errno : fd;
}

int files_open(const char *root, const char *resolved, int flags)
{
	_cleanup_close_ int root_fd = open_root(root);

	return root_fd < 0 ? root_fd : open_beneath(root_fd, resolved, flags, 0);
}

/* The directory that the last component of a resolved path lies in, made if it is not there. */
static int open_parent(const char *root, const char *resolved, const char **ret_name)
{
	_cleanup_close_ int fd = open_root(root);
	char name[NAME_MAX + 1];
	const char *slash;
	int next;

	if (fd < 0)
		return fd;
	for (; (slash = strchr(resolved, '/')); resolved = slash + 1) {
		memcpy(name, resolved, (size_t)(slash - resolved));
		name[slash - resolved] = '\0';
		next = open_beneath(fd, name, O_PATH | O_DIRECTORY, 0);
		if (next == -ENOENT) {
			if (mkdirat(fd, name, 0777) < 0 && errno != EEXIST)
				return -errno;
			next = open_beneath(fd, name, O_PATH | O_DIRECTORY, 0);
		}
		if (next < 0)
			return next;
		(void)close(fd); /* O_PATH */
		fd = next;
	}
	*ret_name = resolved;
	return TAKE_FD(fd);
}

static int open_to_write(const char *root, const char *resolved, mode_t mode)
{
	_cleanup_close_ int dir_fd = -1;
	const char *name = NULL;

	if (strcmp(resolved, ".") == 0)
		return -EISDIR;
	dir_fd = open_parent(root, resolved, &name);
	if (dir_fd < 0)
		return dir_fd;
	/* Not yet truncated: it may be something else than a file. */
	return open_beneath(dir_fd, name, O_WRONLY | O_CREAT | O_NONBLOCK, mode);
}

/* A regular file; one to write is made if it is missing, and not truncated. */
static int open_file(const char *root, const char *path, bool to_write, mode_t mode)
{
	struct stat st;
	int fd = -ELOOP, r;

	/* ELOOP: what was no symlink when we resolved it is one now. */
	for (int i = 0; i < TRIES && fd == -ELOOP; i++) {
		_cleanup_free_ char *resolved = NULL;

		r = files_resolve(root, path, &resolved);
		if (r < 0)
			return r;
		fd = to_write ? open_to_write(root, resolved, mode)
			      : files_open(root, resolved, O_RDONLY | O_NONBLOCK);
	}
	if (fd == -ENXIO) /* a fifo without a reader, a socket */
		return fail(PLY_INVALID, "'%s' is not a regular file", path);
	if (!to_write && (fd == -ENOENT || fd == -ENOTDIR))
		return fail(PLY_NOT_FOUND, "File not found: %s", path);
	if (fd == -ENOTDIR)
		return fail(PLY_EXISTS, "'%s': a file is where a directory would have to be", path);
	if (fd < 0)
		return fail_errno(-fd, "'%s'", path);

	r = fstat(fd, &st) < 0	   ? fail_errno(errno, "'%s'", path)
	    : S_ISDIR(st.st_mode)  ? fail_errno(EISDIR, "'%s'", path)
	    : !S_ISREG(st.st_mode) ? fail(PLY_INVALID, "'%s' is not a regular file", path)
				   : 0;
	if (r < 0) {
		(void)close(fd); /* nothing was written */
		return r;
	}
	return fd;
}

/* ---- verbs ---- */

/* Takes fd, whose end decides whether what was written is there. */
static int finish(int fd, int r, const char *path)
{
	if (close(fd) < 0 && r == 0)
		r = -errno;
	return r < 0 ? fail_errno(-r, "writing '%s'", path) : 0;
}

int files_open_to_read(const char *root, const char *path)
{
	return open_file(root, path, false, 0);
}

int files_read(const char *root, const char *path, struct ply_text *ret)
{
	_cleanup_(ply_text_free) struct ply_text text = { 0 };
	_cleanup_close_ int fd = open_file(root, path, false, 0);
	struct stat st;
	size_t room;

	if (fd < 0)
		return fd;
	/* One byte more than it has, so that its end is seen; it may grow while we read. */
	room = (fstat(fd, &st) == 0 ? (size_t)st.st_size : 0) + 1;
	for (;;) {
		char *grown = realloc(text.data, text.len + room + 1);
		ssize_t n;

		if (!grown)
			return fail_memory();
		text.data = grown;
		n = read(fd, grown + text.len, room);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return fail_errno(errno, "reading '%s'", path);
		text.len += (size_t)n;
		text.data[text.len] = '\0';
		if (n == 0)
			break;
		room = (size_t)n < room ? room - (size_t)n : MAX((size_t)COPY_BYTES, text.len);
	}
	*ret = text;
	text = (struct ply_text){ 0 };
	return 0;
}

/* What the first `len` bytes of it are; NULL: unknown (no memory, or it may not be read). */
static void *read_old(int fd, size_t len)
{
	_cleanup_close_ int in = -1;
	char link[32], *old;
	size_t done = 0;
	ssize_t n = 0;

	(void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd); /* it may be for writing only */
	/* Nobody reads it, its atime is to say; of another's file (EPERM) it cannot. */
	in = open(link, O_RDONLY | O_NOATIME | O_CLOEXEC);
	if (in < 0 && errno == EPERM)
		in = open(link, O_RDONLY | O_CLOEXEC);
	old = in < 0 ? NULL : malloc(len);
	while (old && done < len && (n = pread(in, old + done, len - done, (off_t)done)) > 0)
		done += (size_t)n;
	if (done == len)
		return old;
	free(old);
	return NULL;
}

/* Writes back the bytes that were replaced before there was no more room: blocks that it has. */
static bool put_back(int fd, const char *old, size_t len)
{
	for (size_t done = 0; done < len;) {
		ssize_t n = pwrite(fd, old + done, len - done, (off_t)done);

		if (n <= 0)
			return false;
		done += (size_t)n;
	}
	return true;
}

int files_replace(int fd, const void *data, size_t len)
{
	_cleanup_free_ void *old = NULL;
	struct stat st;
	off_t done;
	size_t kept;
	int r;

	if (fstat(fd, &st) < 0)
		return -errno;
	/* Emptied first, it would be lost when there is no room. Not all filesystems can tell. */
	if (st.st_size > 0 && len > 0 && fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)len) < 0 &&
	    (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)) {
		r = -errno;
		(void)!ftruncate(fd, st.st_size); /* some keep the room that they have found */
		return r;
	}
	kept = MIN((size_t)st.st_size, len);
	old = kept ? read_old(fd, kept) : NULL;
	r = write_all(fd, data, len);
	if (r < 0) {
		done = lseek(fd, 0, SEEK_CUR);
		if (old && done > 0 && put_back(fd, old, MIN(kept, (size_t)done)))
			(void)!ftruncate(fd, st.st_size);
		else if (done > 0)
			(void)!ftruncate(fd, 0); /* half of it is of no use */
		return r;
	}
	/* Nothing in place of nothing is a change, too: of its mtime, as O_TRUNC makes it. */
	if (st.st_size > (off_t)len || (S_ISREG(st.st_mode) && !len))
		return ftruncate(fd, (off_t)len) < 0 ? -errno : 0;
	return 0;
}

int files_write(const char *root, const char *path, const void *data, size_t len)
{
	int fd = open_file(root, path, true, 0666);

	return fd < 0 ? fd : finish(fd, files_replace(fd, data, len), path);
}

static int copy(int from, int to)
{
	_cleanup_free_ char *buf = malloc(COPY_BYTES);

	if (!buf)
		return -ENOMEM;
	for (;;) {
		ssize_t n = read(from, buf, COPY_BYTES);
		int r;

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : 0;
		r = write_all(to, buf, (size_t)n);
		if (r < 0)
			return r;
	}
}

/* Takes `to`, which is not yet truncated: what is to be copied may be in it. */
static int copy_over(int from, int to, const char *path)
{
	struct stat a, b;
	int r;

	if (fstat(from, &a) < 0 || fstat(to, &b) < 0)
		return finish(to, -errno, path);
	if (a.st_dev == b.st_dev && a.st_ino == b.st_ino) {
		(void)close(to); /* nothing was written */
		return fail(PLY_INVALID, "source and target '%s' are the same file", path);
	}
	if (S_ISREG(b.st_mode) && ftruncate(to, 0) < 0)
		return finish(to, -errno, path);
	r = copy(from, to);
	if (r < 0)
		(void)!ftruncate(to, 0); /* half of it is of no use, and takes room */
	return finish(to, r, path);
}

int files_upload(const char *root, const char *local, const char *path)
{
	_cleanup_close_ int from = open(local, O_RDONLY | O_CLOEXEC);
	struct stat st;
	int to;

	if (from < 0 || fstat(from, &st) < 0)
		return fail_errno(errno, "'%s'", local);
	if (S_ISDIR(st.st_mode))
		return fail_errno(EISDIR, "'%s'", local);
	to = open_file(root, path, true, st.st_mode & 0777);
	return to < 0 ? to : copy_over(from, to, path);
}

int files_download(const char *root, const char *path, const char *local)
{
	_cleanup_close_ int from = open_file(root, path, false, 0);
	struct stat st;
	int to;

	if (from < 0)
		return from;
	if (fstat(from, &st) < 0)
		return fail_errno(errno, "'%s'", path);
	to = open(local, O_WRONLY | O_CREAT | O_CLOEXEC, st.st_mode & 0777);
	return to < 0 ? fail_errno(errno, "'%s'", local) : copy_over(from, to, local);
}
