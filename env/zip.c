/* SPDX-License-Identifier: Apache-2.0 */

/* Zip files, by libarchive. */

#include "env/zip.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <locale.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "env/status.h"
#include "store/base/util.h"

struct zip {
	struct archive *archive;
	struct archive_entry *entry;
	FTS *walk;
	/* Of this thread, whose own is `before`; 0: not to be had. */
	locale_t before, bytes, utf8;
};

static void zip_release(struct zip *z)
{
	if (z->walk)
		(void)fts_close(z->walk); /* only read */
	archive_entry_free(z->entry);
	archive_write_free(z->archive); /* what it says was said by archive_write_close */
	if (z->before)
		(void)uselocale(z->before);
	if (z->bytes)
		freelocale(z->bytes);
	if (z->utf8)
		freelocale(z->utf8);
}

/*
 * libarchive says of a name that it is UTF-8 where the locale is; of others Python thinks that they
 * are of CP437. What is no UTF-8 must not be called so: Python reads nothing of such an archive.
 */
static void use_locale_of(struct zip *z, const char *name)
{
	(void)uselocale(z->utf8); /* 0 changes nothing */
	if (mbstowcs(NULL, name, 0) == (size_t)-1)
		(void)uselocale(z->bytes);
}

static int archive_fail(struct archive *a, const char *path)
{
	return fail(PLY_FAILED, "packing %s: %s", path, archive_error_string(a));
}

static int add_data(struct zip *z, const char *path)
{
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	char buf[STACK_BUFFER];
	ssize_t n;

	if (fd < 0)
		return fail_errno(errno, "reading %s", path);
	while ((n = read(fd, buf, sizeof(buf))) > 0)
		if (archive_write_data(z->archive, buf, (size_t)n) < 0)
			return archive_fail(z->archive, path);
	return n < 0 ? fail_errno(errno, "reading %s", path) : 0;
}

/* prefix: how much of path is the directory's. */
static int add(struct zip *z, const char *path, size_t prefix, const struct stat *st)
{
	const char *name = path + prefix;

	name += strspn(name, "/");
	use_locale_of(z, name);
	archive_entry_clear(z->entry);
	archive_entry_set_pathname(z->entry, name);
	archive_entry_copy_stat(z->entry, st);
	if (archive_write_header(z->archive, z->entry) < ARCHIVE_OK)
		return archive_fail(z->archive, path);
	return S_ISREG(st->st_mode) ? add_data(z, path) : 0;
}

/* Of a symlink: the file that it leads to. */
static int add_target(struct zip *z, const char *path, size_t prefix)
{
	struct stat st;

	if (stat(path, &st) < 0)
		return errno == ENOENT || errno == ENOTDIR || errno == ELOOP || errno == EACCES
			       ? 0 /* it leads nowhere, or where we may not look */
			       : fail_errno(errno, "reading %s", path);
	return S_ISREG(st.st_mode) ? add(z, path, prefix, &st) : 0;
}

static int add_all(struct zip *z, size_t prefix)
{
	FTSENT *e;

	while ((errno = 0, e = fts_read(z->walk))) {
		int r = 0;

		if (e->fts_info == FTS_DNR || e->fts_info == FTS_ERR || e->fts_info == FTS_NS)
			return fail_errno(e->fts_errno, "reading %s", e->fts_path);
		if (e->fts_level == 0 || e->fts_info == FTS_DP)
			continue;
		if (e->fts_info == FTS_D || e->fts_info == FTS_F)
			r = add(z, e->fts_path, prefix, e->fts_statp);
		else if (e->fts_info == FTS_SL)
			r = add_target(z, e->fts_path, prefix);
		if (r < 0)
			return r;
	}
	return errno ? fail_errno(errno, "reading a directory") : 0;
}

int zip_directory(const char *dir, int *ret_fd)
{
	char *const roots[] = { (char *)dir, NULL };
	_cleanup_close_ int fd = -1;
	_cleanup_(zip_release) struct zip z = { 0 }; /* writes to fd: is released before it */
	int r;

	fd = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (fd < 0)
		return fail_errno(errno, "a file in /tmp");
	z.archive = archive_write_new();
	z.entry = archive_entry_new();
	if (!z.archive || !z.entry)
		return fail_memory();
	z.before = uselocale(0);
	z.bytes = newlocale(LC_CTYPE_MASK, "C", 0);
	z.utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", 0);
	if (archive_write_set_format_zip(z.archive) < ARCHIVE_OK ||
	    archive_write_open_fd(z.archive, fd) < ARCHIVE_OK)
		return archive_fail(z.archive, dir);
	z.walk = fts_open(roots, FTS_PHYSICAL | FTS_COMFOLLOW | FTS_NOCHDIR, NULL);
	if (!z.walk)
		return fail_errno(errno, "reading %s", dir);
	r = add_all(&z, strlen(dir));
	if (r < 0)
		return r;
	if (archive_write_close(z.archive) < ARCHIVE_OK)
		return archive_fail(z.archive, dir);
	if (lseek(fd, 0, SEEK_SET) < 0)
		return fail_errno(errno, "a file in /tmp");
	*ret_fd = TAKE_FD(fd);
	return 0;
}
