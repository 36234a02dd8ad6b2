/* SPDX-License-Identifier: Apache-2.0 */

/* What is mounted around a command: what cannot be looked at is not taken for what is not there. */

#include "env/isolate.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/util.h"
#include "tests/unit/run.h"

/* The calls about this path that fail, each with its error; NULL, 0: none. */
static const char *path;
static int look_error, link_error, real_error;
static bool is_link; /* it is said to be a symlink */

static int fails(const char *of, int error)
{
	if (!path || strcmp(of, path) != 0)
		return 0;
	errno = error;
	return error;
}

/* Ours come before the C library's. */
int statx(int dir_fd, const char *of, int flags, unsigned mask, struct statx *ret)
{
	static int (*real)(int, const char *, int, unsigned, struct statx *);
	int r;

	if (!real)
		real = (int (*)(int, const char *, int, unsigned, struct statx *))dlsym(RTLD_NEXT,
											"statx");
	if (fails(of, look_error))
		return -1;
	r = real(dir_fd, of, flags, mask, ret);
	if (r == 0 && path && is_link && strcmp(of, path) == 0)
		ret->stx_mode = S_IFLNK | 0777;
	return r;
}

ssize_t readlink(const char *of, char *ret, size_t room)
{
	static ssize_t (*real)(const char *, char *, size_t);

	if (!real)
		real = (ssize_t(*)(const char *, char *, size_t))dlsym(RTLD_NEXT, "readlink");
	return fails(of, link_error) ? -1 : real(of, ret, room);
}

char *realpath(const char *of, char *ret)
{
	static char *(*real)(const char *, char *);

	if (!real)
		real = (char *(*)(const char *, char *))dlsym(RTLD_NEXT, "realpath");
	return fails(of, real_error) ? NULL : real(of, ret);
}

/* The view: with an etc/hosts and an etc/resolv.conf. */
static char dir[64], etc[80], hosts[96], resolv[96];

static void make_file(const char *name)
{
	int fd = open(name, O_CREAT | O_EXCL | O_WRONLY, 0600);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(close(fd), 0);
}

static void setup(void)
{
	strcpy(dir, "/tmp/plyfs-test-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
	(void)snprintf(etc, sizeof(etc), "%s/etc", dir);
	(void)snprintf(hosts, sizeof(hosts), "%s/hosts", etc);
	(void)snprintf(resolv, sizeof(resolv), "%s/resolv.conf", etc);
	ck_assert_int_eq(mkdir(etc, 0700), 0);
	make_file(hosts);
	make_file(resolv);
}

static void teardown(void)
{
	(void)unlink(hosts);
	(void)unlink(resolv);
	(void)rmdir(etc);
	ck_assert_int_eq(rmdir(dir), 0);
}

enum shape { ROOT, FOLDER };

/* Is there a mount at `to`? -1: there is none of anything, and the sentence says this of it. */
static int mounted(enum shape shape, const char *to, const char *sentence)
{
	const struct isolation i = { .dir = dir,
				     .at = shape == FOLDER ? (char *)"/work" : NULL,
				     .network = true };
	_cleanup_(isolate_mounts_release) struct isolate_mounts m = { 0 };
	int r = isolate_mounts(&i, &m);
	bool found = false;

	if (r < 0) {
		ck_assert_ptr_eq(m.list, NULL);
		ck_assert_str_eq(ply_error(), sentence);
		return -1;
	}
	for (size_t k = 0; k < m.n; k++)
		found = found || strcmp(m.list[k].to, to) == 0;
	return found;
}

START_TEST(a_directory_of_the_machine_that_cannot_be_looked_at_is_an_error)
{
	/* Whoever asks is told the same of these, a command too. */
	static const int nothing[] = { ENOENT, EACCES, ENOTCONN, ECONNABORTED };

	path = "/usr";
	ck_assert_int_eq(mounted(FOLDER, path, ""), 1);
	for (size_t k = 0; k < ARRAY_SIZE(nothing); k++) {
		look_error = nothing[k];
		ck_assert_int_eq(mounted(FOLDER, path, ""), 0);
	}
	look_error = EIO;
	ck_assert_int_eq(mounted(FOLDER, path, "/usr: Input/output error"), -1);
}
END_TEST

START_TEST(a_symlink_of_the_machine_that_cannot_be_read_is_an_error)
{
	path = "/usr";
	is_link = true;
	link_error = ENOENT;
	ck_assert_int_eq(mounted(FOLDER, path, ""), 0);
	link_error = EIO;
	ck_assert_int_eq(mounted(FOLDER, path, "/usr: Input/output error"), -1);
}
END_TEST

START_TEST(a_network_file_that_cannot_be_looked_at_is_an_error)
{
	const char *const places[] = { etc, hosts, resolv };
	char sentence[128];

	ck_assert_int_eq(mounted(ROOT, "/etc/hosts", ""), 1);
	for (size_t k = 0; k < ARRAY_SIZE(places); k++) {
		path = places[k];
		look_error = ENOENT;
		ck_assert_int_eq(mounted(ROOT, "/etc/hosts", ""), path == resolv);
		look_error = EIO;
		(void)snprintf(sentence, sizeof(sentence), "%s: Input/output error", path);
		ck_assert_int_eq(mounted(ROOT, "/etc/hosts", sentence), -1);
	}
}
END_TEST

START_TEST(a_network_file_of_the_machine_that_cannot_be_found_is_an_error)
{
	for (int shape = ROOT; shape <= FOLDER; shape++) {
		path = "/etc/resolv.conf";
		real_error = ENOENT;
		ck_assert_int_eq(mounted(shape, path, ""), 0);
		real_error = EIO;
		ck_assert_int_eq(mounted(shape, path, "/etc/resolv.conf: Input/output error"), -1);
	}
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("env_isolate");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, a_directory_of_the_machine_that_cannot_be_looked_at_is_an_error);
	tcase_add_test(t, a_symlink_of_the_machine_that_cannot_be_read_is_an_error);
	tcase_add_test(t, a_network_file_that_cannot_be_looked_at_is_an_error);
	tcase_add_test(t, a_network_file_of_the_machine_that_cannot_be_found_is_an_error);
	return run_case("env_isolate", t);
}
