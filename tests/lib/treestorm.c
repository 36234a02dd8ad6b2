/* SPDX-License-Identifier: Apache-2.0 */
/*
 * treestorm: many processes do everything to one small tree, then the tree is judged.
 *
 *     treestorm [--processes N] [--seconds S | --ops N] [--seed N] [--kill] DIR
 *     treestorm --judge DIR
 *
 * Few names and many hands, so nearly every call meets another one: files are replaced, moved,
 * linked and unlinked under those who have them open, directories are moved into each other. Each
 * call may fail with the errnos that such a race explains, and with no other: EIO, ESTALE or
 * ENOMEM end the storm. --kill ends the processes with SIGKILL, wherever they are.
 *
 * What holds all the time (each process checks it):
 *  T1  a byte of a file is pattern(its offset) or zero, whoever wrote it, however it got there;
 *  T2  a listing names once what is there all the time, while other names come and go;
 *  T3  a file without a name is its maker's alone: it reads back what was written.
 *
 * What holds afterwards (the judge):
 *  J1  a listing's inode numbers and types are those that stat(2) tells;
 *  J2  a directory's link count is 2 and one for each directory in it, ".." is its parent;
 *  J3  any other inode's link count is the number of names that were found for it;
 *  J4  T1, for each file; a symlink's size is its target's length.
 */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include "tests/lib/exerciser.h"

#define PROCESSES_MAX 64
#define DEPTH 4		      /* of a path: deep enough for moves into each other */
#define NAMES 4		      /* of each kind in a directory: few, so that calls meet */
#define FILE_MAX (256 * 1024) /* two chunks of data and a bit */
#define IO_MAX (24 * 1024)
#define PATH_BYTES (DEPTH * 256 + 1)

static uint64_t seed, n_ops = UINT64_MAX;
static unsigned processes = 4, self;
static time_t end_time;
static int dir_fd = -1;
static uint8_t *io; /* FILE_MAX + 1 bytes */
static const char *current_call = "?";

struct count {
	uint64_t good, bad;
};
static struct count *counts; /* shared; of all processes, by operation */

__attribute__((format(printf, 1, 2), noreturn)) static void fail(const char *fmt, ...)
{
	va_list ap;

	fflush(stdout);
	printf("treestorm: seed %" PRIu64 ", process %u: ", seed, self);
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	putchar('\n');
	fflush(stdout);
	_exit(1);
}

static void need(bool good, const char *what)
{
	if (!good)
		fail("%s: %s (in %s)", what, strerror(errno), current_call);
}

static uint8_t pattern(uint64_t off)
{
	return (uint8_t)((off * 0x9e3779b97f4a7c15u) >> 56) | 1;
}

static void check_pattern(const uint8_t *p, uint64_t off, size_t len, const char *how)
{
	for (size_t i = 0; i < len; i++) {
		uint8_t byte = ((const volatile uint8_t *)p)[i]; /* once: others write */

		if (byte && byte != pattern(off + i))
			fail("%s: byte %" PRIu64 " is %02x, which nobody wrote", how, off + i,
			     byte);
	}
}

/* The call succeeded, or failed as races explain: errnos up to a 0. */
#define may(good, ...) may_do((good), (const int[]){ __VA_ARGS__, 0 })
static bool may_do(bool good, const int *errnos)
{
	if (good)
		return true;
	for (; *errnos; errnos++)
		if (errno == *errnos)
			return false;
	fail("%s: %s", current_call, strerror(errno));
}
/* Of walking a path in which anything may stand in for anything. */
#define WALK ENOENT, ENOTDIR, ELOOP

/* ---- paths ---- */

static const char *some_path(char *path)
{
	unsigned depth = (unsigned)(chance(DEPTH) * chance(DEPTH)) / (DEPTH - 1); /* mostly 0, 1 */
	size_t len = 0;

	for (unsigned i = 0; i < depth; i++)
		len += (size_t)sprintf(path + len, "d%u/", (unsigned)chance(NAMES));
	if (chance(20) == 0)
		sprintf(path + len, "%c%0*d", chance(2) ? 'd' : 'f', 200 + (int)chance(54),
			(int)chance(2));
	else
		sprintf(path + len, "%c%u", chance(3) ? 'f' : 'd', (unsigned)chance(NAMES));
	return path;
}

static int open_some(int flags, char *path)
{
	int fd = openat(dir_fd, some_path(path), flags | O_NONBLOCK | O_CLOEXEC, 0644);

	/* ENXIO: a fifo without a reader, a socket. EACCES: a device on a nodev mount. */
	may(fd >= 0, WALK, EISDIR, EEXIST, ENXIO, EACCES);
	return fd;
}

/* A descriptor of a regular file, or -1. */
static int open_file(int flags, char *path)
{
	int fd = open_some(flags, path);
	struct stat st;

	if (fd < 0)
		return -1;
	need(fstat(fd, &st) == 0, "fstat");
	if (S_ISREG(st.st_mode))
		return fd;
	close(fd);
	return -1;
}

/* ---- operations: true when the call did something ---- */

static char a[PATH_BYTES], b[PATH_BYTES];

static bool op_create(void)
{
	int fd = open_some(
		O_CREAT | O_WRONLY | (chance(2) ? O_EXCL : 0) | (chance(4) ? 0 : O_TRUNC), a);

	return fd >= 0 && close(fd) == 0;
}

static bool op_mkdir(void)
{
	return may(mkdirat(dir_fd, some_path(a), 0755) == 0, WALK, EEXIST);
}

static bool op_mknod(void)
{
	static const mode_t kinds[] = { S_IFIFO, S_IFSOCK, S_IFREG, S_IFCHR };
	mode_t kind = kinds[chance(geteuid() == 0 ? 4 : 3)];

	return may(mknodat(dir_fd, some_path(a), kind | 0644, kind == S_IFCHR ? 0x103 : 0) == 0,
		   WALK, EEXIST);
}

static bool op_symlink(void)
{
	return may(symlinkat(some_path(b), dir_fd, some_path(a)) == 0, WALK, EEXIST);
}

static bool op_link(void)
{
	return may(linkat(dir_fd, some_path(a), dir_fd, some_path(b),
			  chance(4) ? 0 : AT_SYMLINK_FOLLOW) == 0,
		   WALK, EEXIST, EPERM);
}

static bool op_unlink(void)
{
	return may(unlinkat(dir_fd, some_path(a), 0) == 0, WALK, EISDIR);
}

static bool op_rmdir(void)
{
	return may(unlinkat(dir_fd, some_path(a), AT_REMOVEDIR) == 0, WALK, ENOTEMPTY);
}

static bool op_rename(void)
{
	return may(renameat(dir_fd, some_path(a), dir_fd, some_path(b)) == 0, WALK, EISDIR,
		   ENOTEMPTY, EINVAL, EEXIST);
}

static bool op_exchange(void)
{
	return may(renameat2(dir_fd, some_path(a), dir_fd, some_path(b), RENAME_EXCHANGE) == 0,
		   WALK, EINVAL, ENOTEMPTY);
}

static bool op_noreplace(void)
{
	return may(renameat2(dir_fd, some_path(a), dir_fd, some_path(b), RENAME_NOREPLACE) == 0,
		   WALK, EINVAL, EEXIST, ENOTEMPTY);
}

static bool op_write(void)
{
	int fd = open_file(O_RDWR | (chance(3) ? O_CREAT : 0), a);
	size_t off = chance(FILE_MAX - IO_MAX), len = 1 + chance(IO_MAX);

	if (fd < 0)
		return false;
	for (size_t i = 0; i < len; i++)
		io[i] = pattern(off + i);
	need(pwrite(fd, io, len, (off_t)off) == (ssize_t)len, "pwrite");
	return close(fd) == 0;
}

static bool op_read(void)
{
	int fd = open_file(O_RDONLY, a);
	size_t off = chance(FILE_MAX);
	ssize_t n;

	if (fd < 0)
		return false;
	n = pread(fd, io, IO_MAX, (off_t)off);
	need(n >= 0, "pread");
	check_pattern(io, off, (size_t)n, a); /* T1 */
	return close(fd) == 0;
}

static sigjmp_buf beyond_end;

static void on_bus(int sig)
{
	siglongjmp(beyond_end, 1);
}

static bool op_map(void)
{
	int fd = open_file(O_RDWR, a);
	uint8_t *p;

	if (fd < 0)
		return false;
	p = mmap(NULL, FILE_MAX, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	need(p != MAP_FAILED, "mmap");
	if (sigsetjmp(beyond_end, 1) == 0) { /* SIGBUS: the file ends before, or now */
		for (int i = 0; i < 4; i++) {
			size_t off = chance(FILE_MAX / 4);

			check_pattern(p + off, off, 200, "mapping");
			p[off] = pattern(off);
		}
		need(msync(p, FILE_MAX, chance(2) ? MS_ASYNC : MS_SYNC) == 0, "msync");
	}
	return munmap(p, FILE_MAX) == 0;
}

static bool op_truncate(void)
{
	int fd = open_file(O_RDWR, a);

	if (fd < 0)
		return false;
	need(ftruncate(fd, (off_t)chance(FILE_MAX)) == 0, "ftruncate");
	return close(fd) == 0;
}

static bool op_allocate(void)
{
	static const int modes[] = { 0, FALLOC_FL_KEEP_SIZE,
				     FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
				     FALLOC_FL_ZERO_RANGE };
	int fd = open_file(O_RDWR, a);

	if (fd < 0)
		return false;
	need(fallocate(fd, modes[chance(4)], (off_t)chance(FILE_MAX - IO_MAX),
		       1 + (off_t)chance(IO_MAX)) == 0 ||
		     errno == EOPNOTSUPP,
	     "fallocate");
	return close(fd) == 0;
}

/* To the same offset, so that T1 goes on to hold. */
static bool op_copy(void)
{
	int from = open_file(O_RDONLY, a), to = from < 0 ? -1 : open_file(O_RDWR, b);
	off_t off = (off_t)chance(FILE_MAX), off2 = off;
	bool good = to >= 0;

	if (good)
		good = may(copy_file_range(from, &off, to, &off2, IO_MAX, 0) >= 0,
			   EINVAL); /* both are one file */
	if (to >= 0)
		close(to);
	if (from >= 0)
		close(from);
	return good;
}

static bool op_fsync(void)
{
	int fd = open_some(O_RDONLY, a);
	bool good;

	if (fd < 0)
		return false;
	good = may(fsync(fd) == 0, EINVAL); /* a fifo */
	close(fd);
	return good;
}

static bool op_chmod(void)
{
	/* Not the sticky bit: fs.protected_* would refuse more than races explain. */
	return may(fchmodat(dir_fd, some_path(a), (mode_t)chance(07000) & 06775, 0) == 0, WALK);
}

static bool op_chown(void)
{
	return may(fchownat(dir_fd, some_path(a), geteuid() ? (uid_t)-1 : (uid_t)chance(3),
			    geteuid() ? (gid_t)-1 : (gid_t)chance(3), AT_SYMLINK_NOFOLLOW) == 0,
		   WALK);
}

static bool op_utimes(void)
{
	const struct timespec t[2] = { { (time_t)chance(2000000000), 7 }, { 0, UTIME_NOW } };

	return may(utimensat(dir_fd, some_path(a), t, AT_SYMLINK_NOFOLLOW) == 0, WALK);
}

static bool op_stat(void)
{
	struct stat st;

	if (!may(fstatat(dir_fd, some_path(a), &st, AT_SYMLINK_NOFOLLOW) == 0, WALK))
		return false;
	if (st.st_ino == 0 || !(st.st_mode & S_IFMT)) /* no links: unlinked meanwhile */
		fail("%s has inode %ju, mode %o", a, (uintmax_t)st.st_ino, st.st_mode);
	return true;
}

static bool op_readlink(void)
{
	ssize_t n = readlinkat(dir_fd, some_path(a), b, sizeof(b));

	if (!may(n >= 0, WALK, EINVAL))
		return false;
	if (n == 0 || (b[0] != 'd' && b[0] != 'f'))
		fail("the target of %s is '%.*s'", a, (int)n, b);
	return true;
}

static bool op_xattr(void)
{
	char value[3000];
	int fd = open_file(O_RDWR, a);
	ssize_t n;

	if (fd < 0)
		return false;
	memset(value, 'v', sizeof(value));
	switch (chance(4)) {
	case 0:
		need(fsetxattr(fd, chance(2) ? "user.a" : "user.b", value, chance(sizeof(value)),
			       0) == 0 ||
			     errno == ENOSPC, /* ext4 has 4 KiB for them all */
		     "fsetxattr");
		break;
	case 1:
		may(fremovexattr(fd, "user.a") == 0, ENODATA);
		break;
	case 2:
		n = fgetxattr(fd, "user.b", value, sizeof(value));
		may(n >= 0, ENODATA);
		for (ssize_t i = 0; i < n; i++)
			if (value[i] != 'v')
				fail("an attribute of %s holds %02x", a, (uint8_t)value[i]);
		break;
	default:
		need(flistxattr(fd, value, sizeof(value)) >= 0, "flistxattr");
	}
	return close(fd) == 0;
}

static bool op_list(void)
{
	int fd = openat(dir_fd, some_path(a), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d;

	if (!may(fd >= 0, WALK))
		return false;
	d = fdopendir(fd);
	need(d, "fdopendir");
	for (;;) {
		struct dirent *e;

		errno = 0;
		e = readdir(d);
		if (!e)
			break;
		if (e->d_ino == 0 || !strchr("df.", e->d_name[0]))
			fail("%s lists '%s' as inode %ju", a, e->d_name, (uintmax_t)e->d_ino);
	}
	need(errno == 0 || errno == ENOENT, "readdir"); /* ENOENT: removed meanwhile */
	return closedir(d) == 0;
}

/* T2: in one directory, "stay" stays while names beside it come and go under the listing. */
static bool op_list_churn(void)
{
	unsigned stays = 0;
	struct dirent *e;
	DIR *d;

	d = fdopendir(openat(dir_fd, "churn", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	need(d, "opendir churn");
	/* New names may be listed as well, so it need not end by itself. */
	for (unsigned i = 0; i < 1000 && (e = readdir(d)); i++) {
		stays += strcmp(e->d_name, "stay") == 0;
		snprintf(a, sizeof(a), "churn/f%u-%u", self, i % 100);
		if (chance(2))
			may(mknodat(dir_fd, a, S_IFREG | 0600, 0) == 0, EEXIST);
		else
			may(unlinkat(dir_fd, a, 0) == 0, ENOENT);
	}
	closedir(d);
	if (stays != 1)
		fail("a listing names a file that stays %u times", stays);
	return true;
}

static bool op_unnamed(void) /* T3 */
{
	int fd = openat(dir_fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	size_t len = 1 + chance(IO_MAX);
	char proc[40];
	struct stat st;
	bool good = true;

	need(fd >= 0, "open O_TMPFILE");
	for (size_t i = 0; i < len; i++)
		io[i] = pattern(i);
	need(write(fd, io, len) == (ssize_t)len, "write");
	memset(io, 0, len);
	need(pread(fd, io, len, 0) == (ssize_t)len, "pread");
	for (size_t i = 0; i < len; i++)
		if (io[i] != pattern(i))
			fail("an unnamed file's byte %zu is %02x", i, io[i]);
	need(fstat(fd, &st) == 0 && st.st_nlink == 0, "an unnamed file has links");
	if (chance(2)) {
		snprintf(proc, sizeof(proc), "/proc/self/fd/%d", fd);
		good = may(linkat(AT_FDCWD, proc, dir_fd, some_path(a), AT_SYMLINK_FOLLOW) == 0,
			   WALK, EEXIST);
	}
	close(fd);
	return good;
}

/* Open, unlinked by itself or somebody else: goes on working. */
static bool op_orphan(void)
{
	int fd = open_file(O_RDWR, a);
	struct stat st;

	if (fd < 0)
		return false;
	may(unlinkat(dir_fd, a, 0) == 0, WALK, EISDIR);
	need(fstat(fd, &st) == 0, "fstat");
	io[0] = pattern(5);
	need(pwrite(fd, io, 1, 5) == 1, "pwrite");
	need(pread(fd, io, IO_MAX, 0) >= 0, "pread");
	need(fchmod(fd, 0600) == 0, "fchmod");
	return close(fd) == 0;
}

static bool op_flock(void)
{
	int fd = open_file(O_RDWR, a);
	bool good;

	if (fd < 0)
		return false;
	good = may(flock(fd, (chance(2) ? LOCK_EX : LOCK_SH) | LOCK_NB) == 0, EWOULDBLOCK);
	close(fd);
	return good;
}

static bool op_chdir(void)
{
	int fd = openat(dir_fd, some_path(a), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct stat st;

	if (!may(fd >= 0, WALK))
		return false;
	need(fchdir(fd) == 0, "fchdir");
	close(fd);
	need(stat(".", &st) == 0 && S_ISDIR(st.st_mode), "stat of the working directory");
	return may(access("..", F_OK) == 0, ENOENT) && may(getcwd(b, sizeof(b)), ENOENT, ERANGE);
}

static bool op_statfs(void)
{
	struct statvfs s;

	need(fstatvfs(dir_fd, &s) == 0, "fstatvfs");
	return true;
}

static const struct {
	const char *name;
	bool (*fn)(void);
	unsigned weight;
} ops[] = {
	{ "create", op_create, 14 },	{ "mkdir", op_mkdir, 14 },
	{ "mknod", op_mknod, 4 },	{ "symlink", op_symlink, 6 },
	{ "link", op_link, 8 },		{ "unlink", op_unlink, 8 },
	{ "rmdir", op_rmdir, 4 },	{ "rename", op_rename, 10 },
	{ "exchange", op_exchange, 4 }, { "noreplace", op_noreplace, 4 },
	{ "write", op_write, 12 },	{ "read", op_read, 12 },
	{ "map", op_map, 4 },		{ "truncate", op_truncate, 5 },
	{ "allocate", op_allocate, 4 }, { "copy", op_copy, 4 },
	{ "fsync", op_fsync, 1 },	{ "chmod", op_chmod, 4 },
	{ "chown", op_chown, 4 },	{ "utimes", op_utimes, 3 },
	{ "stat", op_stat, 12 },	{ "readlink", op_readlink, 5 },
	{ "xattr", op_xattr, 6 },	{ "list", op_list, 8 },
	{ "churn", op_list_churn, 1 },	{ "unnamed", op_unnamed, 4 },
	{ "orphan", op_orphan, 5 },	{ "flock", op_flock, 3 },
	{ "chdir", op_chdir, 3 },	{ "statfs", op_statfs, 1 },
};
#define N_OPS (sizeof(ops) / sizeof(*ops))

static void storm(void)
{
	const struct sigaction bus = { .sa_handler = on_bus };
	unsigned sum = 0;

	sigaction(SIGBUS, &bus, NULL);
	umask(022);
	random_state = seed + self * 0x1234567;
	for (size_t i = 0; i < N_OPS; i++)
		sum += ops[i].weight;
	for (uint64_t n = 0; n < n_ops && (n % 64 || !end_time || time(NULL) < end_time); n++) {
		unsigned pick = (unsigned)chance(sum), i = 0;

		while (pick >= ops[i].weight)
			pick -= ops[i++].weight;
		current_call = ops[i].name;
		__atomic_fetch_add(ops[i].fn() ? &counts[i].good : &counts[i].bad, 1,
				   __ATOMIC_RELAXED);
	}
}

/* ---- the judge ---- */

struct found {
	uint64_t ino, links;
	mode_t mode;
};
static struct found *found;
static size_t n_found, cap_found;
static uint64_t n_dirs;

static unsigned type_of(mode_t mode)
{
	return IFTODT(mode);
}

static void judge_file(int dir, const char *name, const struct stat *st)
{
	if (S_ISLNK(st->st_mode)) {
		ssize_t n = readlinkat(dir, name, b, sizeof(b));

		if (n != st->st_size) /* J4 */
			fail("%s: a symlink of %lld bytes whose target has %zd", name,
			     (long long)st->st_size, n);
	}
	if (S_ISREG(st->st_mode)) {
		int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);
		ssize_t n;

		need(fd >= 0, name);
		n = read(fd, io, FILE_MAX + 1);
		if (n != st->st_size)
			fail("%s: %zd bytes were read of %lld", name, n, (long long)st->st_size);
		check_pattern(io, 0, (size_t)n, name);
		close(fd);
	}
	if (n_found == cap_found) {
		cap_found = cap_found ? cap_found * 2 : 1024;
		found = realloc(found, cap_found * sizeof(*found));
		need(found, "realloc");
	}
	found[n_found++] = (struct found){ st->st_ino, st->st_nlink, st->st_mode };
}

static int by_name(const void *x, const void *y)
{
	return strcmp(*(char *const *)x, *(char *const *)y);
}

static void judge_dir(int fd, const char *path, uint64_t parent)
{
	uint64_t subdirs = 0;
	size_t n = 0, cap = 0;
	char **names = NULL;
	struct stat me, st;
	struct dirent *e;
	DIR *d;

	need(fstat(fd, &me) == 0, path);
	if (parent) {
		need(fstatat(fd, "..", &st, 0) == 0, path);
		if (st.st_ino != parent)
			fail("%s/.. is inode %ju and should be %" PRIu64, path,
			     (uintmax_t)st.st_ino, parent); /* J2 */
	}
	n_dirs++;
	d = fdopendir(fd);
	need(d, path);
	while ((e = readdir(d))) {
		bool dots = !strcmp(e->d_name, ".") || !strcmp(e->d_name, "..");

		if (!dots) {
			need(fstatat(fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0, e->d_name);
			if (st.st_ino != e->d_ino ||
			    (e->d_type != DT_UNKNOWN && e->d_type != type_of(st.st_mode)))
				fail("%s/%s is listed as inode %ju, type %u", path, e->d_name,
				     (uintmax_t)e->d_ino, e->d_type); /* J1 */
		}
		if (n == cap) {
			cap = cap ? cap * 2 : 64;
			names = realloc(names, cap * sizeof(*names));
			need(names, "realloc");
		}
		names[n++] = strdup(e->d_name);
		if (dots)
			continue;
		if (!S_ISDIR(st.st_mode)) {
			judge_file(fd, e->d_name, &st);
		} else {
			char *below = NULL;
			int sub = openat(fd, e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);

			subdirs++;
			need(sub >= 0 && asprintf(&below, "%s/%s", path, e->d_name) > 0, path);
			judge_dir(sub, below, me.st_ino);
			free(below);
		}
	}
	if (me.st_nlink != 2 + subdirs && me.st_nlink != 1) /* 1: not counted (btrfs) */
		fail("%s has %ju links and %" PRIu64 " directories", path, (uintmax_t)me.st_nlink,
		     subdirs);
	if (n > 0)
		qsort(names, n, sizeof(*names), by_name);
	for (size_t i = 0; i < n; i++) {
		if (i + 1 < n && !strcmp(names[i], names[i + 1]))
			fail("%s lists '%s' twice", path, names[i]);
		free(names[i]);
	}
	free(names);
	closedir(d);
}

static int by_ino(const void *x, const void *y)
{
	const struct found *p = x, *q = y;

	return p->ino < q->ino ? -1 : p->ino > q->ino;
}

static void judge(void)
{
	current_call = "the judge";
	judge_dir(dup(dir_fd), ".", 0);
	if (n_found > 0)
		qsort(found, n_found, sizeof(*found), by_ino);
	for (size_t i = 0, j; i < n_found; i = j) {
		for (j = i; j < n_found && found[j].ino == found[i].ino; j++)
			;
		if (found[i].links != j - i) /* J3 */
			fail("inode %" PRIu64 " (mode %o) has %" PRIu64 " links and %zu names",
			     found[i].ino, found[i].mode, found[i].links, j - i);
	}
	printf("judged: %" PRIu64 " directories, %zu names of other things\n", n_dirs, n_found);
}

/* ---- */

/* Starts the processes and waits. False: one failed. */
static bool storm_all(bool kill_them)
{
	pid_t pids[PROCESSES_MAX];
	bool good = true;
	int status;

	current_call = "the start";
	need(mkdirat(dir_fd, "churn", 0755) == 0 || errno == EEXIST, "mkdir churn");
	need(mknodat(dir_fd, "churn/stay", S_IFREG | 0600, 0) == 0 || errno == EEXIST, "mknod");
	for (self = 0; self < processes; self++) {
		pids[self] = fork();
		need(pids[self] >= 0, "fork");
		if (pids[self] == 0) {
			storm();
			_exit(0);
		}
	}
	if (kill_them) {
		while (time(NULL) < end_time)
			usleep(10000);
		for (unsigned i = 0; i < processes; i++)
			kill(pids[i], SIGKILL);
	}
	for (unsigned i = 0; i < processes; i++) {
		need(waitpid(pids[i], &status, 0) == pids[i], "waitpid");
		if (WIFSIGNALED(status) && !(kill_them && WTERMSIG(status) == SIGKILL)) {
			printf("process %u was ended by signal %d\n", i, WTERMSIG(status));
			good = false;
		}
		good = good && !(WIFEXITED(status) && WEXITSTATUS(status));
	}
	return good;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "processes", 1, NULL, 'p' }, { "seconds", 1, NULL, 't' },
		{ "ops", 1, NULL, 'o' },       { "seed", 1, NULL, 's' },
		{ "kill", 0, NULL, 'k' },      { "judge", 0, NULL, 'j' },
		{ NULL, 0, NULL, 0 },
	};
	bool only_judge = false, kill_them = false;
	uint64_t sum = 0, good = 0;
	int c;

	seed = (uint64_t)time(NULL);
	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (c) {
		case 'p':
			processes = (unsigned)number(optarg);
			break;
		case 't':
			end_time = time(NULL) + (time_t)number(optarg);
			break;
		case 'o':
			n_ops = number(optarg);
			break;
		case 's':
			seed = number(optarg);
			break;
		case 'k':
			kill_them = true;
			break;
		case 'j':
			only_judge = true;
			break;
		default:
			return 2;
		}
	}
	if (optind + 1 != argc || processes < 1 || processes > PROCESSES_MAX ||
	    (!only_judge && !end_time && n_ops == UINT64_MAX) || (kill_them && !end_time)) {
		fprintf(stderr, "usage: treestorm [--processes N] [--seconds S | --ops N] "
				"[--seed N] [--kill] DIR\n       treestorm --judge DIR\n");
		return 2;
	}
	dir_fd = open(argv[optind], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	io = malloc(FILE_MAX + 1);
	counts = mmap(NULL, N_OPS * sizeof(*counts), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (dir_fd < 0 || !io || counts == MAP_FAILED) {
		perror(argv[optind]);
		return 2;
	}

	if (!only_judge && !storm_all(kill_them))
		return 1;
	judge();
	for (size_t i = 0; i < N_OPS; i++) {
		sum += counts[i].good + counts[i].bad;
		good += counts[i].good;
		if (!only_judge)
			printf("%10s %9" PRIu64 " done %9" PRIu64 " refused\n", ops[i].name,
			       counts[i].good, counts[i].bad);
	}
	if (!only_judge)
		printf("seed %" PRIu64 ", %u processes: %" PRIu64 " operations, %" PRIu64
		       " did something\n",
		       seed, processes, sum, good);
	return 0;
}
