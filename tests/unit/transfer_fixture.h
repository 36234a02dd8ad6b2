/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What the tests of env/transfer share: what a transfer notes and warns of, programs that are run,
 * directories below the store's own temporary one, and words for what is in a tree.
 */

#include <assert.h>
#include <stdarg.h>
#include <sys/wait.h>

#include "env/transfer/transfer.h"
#include "store/base/note.h"
#include "tests/unit/fs_fixture.h"

static char last_warning[1024];
static unsigned warnings;
static bool cancel;

static void keep_warning(void *arg, const char *line)
{
	warnings++;
	snprintf(last_warning, sizeof(last_warning), "%s", line);
}

static const struct noter noter = { .fn = scratch_note, .arg = &fx }; /* fx.last_note */
static const struct progress progress = { .cancel = &cancel };
static const struct import_ops ops = {
	.warn = keep_warning,
	.noter = &noter,
	.progress = &progress,
};

_unused_ _printf_(1, 2) static char *format(const char *fmt, ...)
{
	char *s;
	va_list ap;

	va_start(ap, fmt);
	ck_assert_int_ge(vasprintf(&s, fmt, ap), 0);
	va_end(ap);
	return s;
}

_unused_ _printf_(1, 2) static int run(const char *fmt, ...)
{
	_cleanup_free_ char *line = NULL;
	va_list ap;
	int r;

	va_start(ap, fmt);
	ck_assert_int_ge(vasprintf(&line, fmt, ap), 0);
	va_end(ap);
	r = system(line);
	ck_assert(WIFEXITED(r));
	return WEXITSTATUS(r);
}

/* A directory below the store's own temporary one. */
_unused_ static int make_dir(const char *name)
{
	int fd;

	ck_assert_int_eq(mkdirat(fx.dir_fd, name, 0700), 0);
	fd = openat(fx.dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	return fd;
}

_unused_ static struct root *import_from(const char *name)
{
	int fd = openat(fx.dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct root *root = NULL;
	int r;

	ck_assert_int_ge(fd, 0);
	r = import_directory(fx_store, fd, &ops, &root, NULL);
	ck_assert_msg(r == 0, "%s: %s", err_name(r), fx.last_note);
	(void)close(fd);
	return root;
}

_unused_ static void export_to(struct root *root, const char *name)
{
	int fd = make_dir(name), r;

	r = export_directory(fx_store, root, fd, &ops, NULL);
	ck_assert_msg(r == 0, "%s: %s", err_name(r), fx.last_note);
	(void)close(fd);
}

_unused_ static struct fs open_root(struct root *root)
{
	return (struct fs){ .store = fx_store, .tree = fx_tree(root) };
}

_unused_ static struct inode resolve(const struct fs *f, const char *path)
{
	struct inode i;
	int r = fs_resolve(f, path, strlen(path), &i);

	ck_assert_msg(r == 0, "%s: %s", path, err_name(r));
	return i;
}

_unused_ static void content_is(const struct fs *f, const char *path, const char *want)
{
	struct inode i = resolve(f, path);
	char buf[1000];
	size_t n;

	ck_assert_int_eq(fs_read(f, i.ino, 0, buf, sizeof(buf), &n), 0);
	ck_assert_uint_eq(n, strlen(want));
	ck_assert_int_eq(memcmp(buf, want, n), 0);
}

_unused_ static void write_at(int dir_fd, const char *name, uint64_t off, const void *data,
			      size_t len)
{
	int fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(pwrite(fd, data, len, (off_t)off), len);
	ck_assert_int_eq(close(fd), 0);
}

#define SHELL "/bin/sh\n"
/* Records, as the shell's printf writes them (chan.h). */
#define NULS "\\000\\000\\000" /* all digits, whatever follows */
#define SAYS(kind, len, text) "printf '\\" kind NULS "\\" len NULS text "' >&3; "
#define HELLO SHELL SAYS("001", "005", PLYFS_VERSION)
static_assert(sizeof(PLYFS_VERSION) == 5 + 1, "HELLO tells its length");

/* In the place of the program of this name, from now on. `text`: what stands behind "#!". */
_unused_ static void use_program(const char *name, const char *text)
{
	int fd = openat(fx.dir_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_ge(dprintf(fd, "#!%s\n", text), 0);
	ck_assert_int_eq(close(fd), 0);
	ck_assert_int_eq(setenv("PLYFS_LIBEXEC", fx.path, 1), 0);
}

_unused_ static void no_children(void)
{
	ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1);
	ck_assert_int_eq(errno, ECHILD);
}

/* A directory without write permission would stay behind. */
_unused_ static void open_and_teardown(void)
{
	if (geteuid() != 0)
		(void)run("chmod -R u+rwX '%s'", fx.path); /* litter at worst */
	teardown();
}
