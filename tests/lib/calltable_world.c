/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calltable's world: one of everything that a path can name, and what became of it after a call.
 *
 * Everything in a new world has the same old atime and mtime, so a time that a call sets shows on
 * any kernel; ctime cannot be set, and shows where the kernel tells two changes in a row apart.
 */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/lib/calltable.h"

#define OLD 1000000000 /* the time of everything in a new world */

bool no_ctime;
int top_fd = -1;

void need(bool good, const char *what)
{
	if (good)
		return;
	printf("calltable: %s: %s\n", what, strerror(errno));
	exit(1);
}

static char name_255[256], name_256[257], new_255[256];
char path_4095[PATH_MAX], path_4096[PATH_MAX + 1];

/* What calls are made on: a label, and the path where it is another. Those that are made below. */
const struct place places[] = {
	{ "reg", NULL },
	{ "dir", NULL },
	{ "full", NULL },
	{ "full/in", NULL },
	{ "full/sub", NULL },
	{ "pair1", NULL },
	{ "lreg", NULL },
	{ "ldir", NULL },
	{ "lfull/in", NULL },
	{ "dangling", NULL },
	{ "loop", NULL },
	{ "loop/x", NULL },
	{ "chain40", NULL },
	{ "chain41", NULL },
	{ "fifo", NULL },
	{ "sock", NULL },
	{ "chr", NULL },
	{ "none", NULL },
	{ "none/x", NULL },
	{ "reg/x", NULL },
	{ "lreg/x", NULL },
	{ "dangling/x", NULL },
	{ "reg/", NULL },
	{ "dir/", NULL },
	{ "full/", NULL },
	{ "none/", NULL },
	{ "lreg/", NULL },
	{ "ldir/", NULL },
	{ "dangling/", NULL },
	{ ".", NULL },
	{ "..", NULL },
	{ "dir/.", NULL },
	{ "full/..", NULL },
	{ "reg/.", NULL },
	{ "<empty>", "" },
	{ "<name of 255>", name_255 },
	{ "<new of 255>", new_255 },
	{ "<name of 256>", name_256 },
	{ "<path of 4095>", path_4095 },
	{ "<path of 4096>", path_4096 },
	{ "closed", NULL },
	{ "closed/in", NULL },
	{ "secret", NULL },
	{ "theirs", NULL },
	{ "theirs-ro", NULL },
	{ "groups", NULL },
	{ "suid", NULL },
	{ "sgid", NULL },
	{ "sgid-nox", NULL },
	{ "udir", NULL },
	{ "udir/theirs", NULL },
	{ "udir/roots", NULL },
	{ "open/none", NULL },
	{ "sticky", NULL },
	{ "sticky/roots", NULL },
	{ "sticky/theirs", NULL },
	{ "sticky/none", NULL },
	{ "sticky/d", NULL },
	{ "gdir/none", NULL },
	{ "gdir/in", NULL },
};
const size_t n_places = sizeof(places) / sizeof(*places);

void make_names(void)
{
	memset(name_255, 'n', 255);
	memset(new_255, 'm', 255);
	memset(name_256, 'n', 256);
	for (unsigned i = 0; i < 4096; i += 2)
		memcpy(path_4096 + i, "./", 2);
	memcpy(path_4095, path_4096, 4092);
	memcpy(path_4095 + 4092, "reg", 4);
}

static void make_file(const char *name, mode_t mode, uid_t uid, gid_t gid)
{
	int fd = open(name, O_WRONLY | O_CREAT | O_EXCL, 0600);

	need(fd >= 0 && write(fd, "0123456789", 10) == 10 && close(fd) == 0, name);
	need(chown(name, uid, gid) == 0 && chmod(name, mode) == 0, name);
}

static void make_dir(const char *name, mode_t mode, uid_t uid, gid_t gid)
{
	need(mkdir(name, 0700) == 0 && chown(name, uid, gid) == 0 && chmod(name, mode) == 0, name);
}

static void make_link(const char *target, const char *name)
{
	need(symlink(target, name) == 0, name);
}

static void make_world(void)
{
	struct sockaddr_un where = { .sun_family = AF_UNIX, .sun_path = "sock" };
	int s = socket(AF_UNIX, SOCK_STREAM, 0);
	char from[20], to[20];

	need(fchdir(top_fd) == 0, "fchdir");
	make_dir("w", 0755, 0, 0);
	need(chdir("w") == 0, "chdir");
	make_dir("cwd", 0755, 0, 0);
	need(chdir("cwd") == 0, "chdir");

	make_file("reg", 0644, 0, 0);
	make_dir("dir", 0755, 0, 0);
	make_dir("full", 0755, 0, 0);
	make_file("full/in", 0644, 0, 0);
	make_dir("full/sub", 0755, 0, 0);
	make_file("pair1", 0644, 0, 0);
	need(link("pair1", "pair2") == 0, "link");
	make_link("reg", "lreg");
	make_link("dir", "ldir");
	make_link("full", "lfull");
	make_link("nowhere", "dangling");
	make_link("loop", "loop");
	make_link("reg", "chain1"); /* 40 symlinks are followed, 41 are not */
	for (int i = 2; i <= 41; i++) {
		snprintf(from, sizeof(from), "chain%d", i - 1);
		snprintf(to, sizeof(to), "chain%d", i);
		make_link(from, to);
	}
	need(mkfifo("fifo", 0644) == 0, "mkfifo");
	need(s >= 0 && bind(s, (struct sockaddr *)&where, sizeof(where)) == 0, "bind");
	close(s);
	need(mknod("chr", S_IFCHR | 0666, makedev(1, 3)) == 0, "mknod");
	make_file(name_255, 0644, 0, 0);
	make_dir("closed", 0700, 0, 0);
	make_file("closed/in", 0666, 1000, 1000);
	make_file("secret", 0000, 1000, 1000);
	make_file("theirs", 0644, 1000, 1000);
	make_file("theirs-ro", 0444, 1000, 1000);
	make_file("groups", 0664, 0, GROUP);
	make_file("suid", 04755, 1000, GROUP);
	make_file("sgid", 02777, 1000, GROUP);
	make_file("sgid-nox", 02666, 1000, GROUP);
	make_dir("udir", 0755, 1000, 1000);
	make_file("udir/theirs", 0644, 1000, 1000);
	make_file("udir/roots", 0644, 0, 0);
	make_dir("open", 0777, 0, 0);
	make_dir("sticky", 01777, 0, 0);
	make_file("sticky/roots", 0666, 0, 0);
	make_file("sticky/theirs", 0666, 1000, 1000);
	make_dir("sticky/d", 0777, 0, 0);
	make_dir("gdir", 02775, 0, GROUP);
	make_file("gdir/in", 0664, 1001, GROUP);
}
/* ---- what there is ---- */

struct thing {
	char *path;
	struct stat st;
	char data[16]; /* the first bytes of a file, a symlink's target */
};
struct things {
	struct thing *t;
	size_t n, cap;
};

static void things_clear(struct things *l)
{
	for (size_t i = 0; i < l->n; i++)
		free(l->t[i].path);
	l->n = 0;
}

static void add_thing(struct things *l, int dir, const char *name, const char *path)
{
	struct thing t = { .path = strdup(path) };
	int fd;

	need(fstatat(dir, name, &t.st, AT_SYMLINK_NOFOLLOW) == 0, path);
	if (S_ISREG(t.st.st_mode)) {
		fd = openat(dir, name, O_RDONLY | O_CLOEXEC);
		need(fd >= 0 && read(fd, t.data, sizeof(t.data) - 1) >= 0, path);
		close(fd);
	}
	if (S_ISLNK(t.st.st_mode))
		need(readlinkat(dir, name, t.data, sizeof(t.data) - 1) > 0, path);
	if (l->n == l->cap) {
		l->cap = l->cap ? l->cap * 2 : 128;
		l->t = realloc(l->t, l->cap * sizeof(*l->t));
		need(l->t, "realloc");
	}
	l->t[l->n++] = t;
}

static void list_below(struct things *l, int dir, const char *name, const char *path)
{
	int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	DIR *d = fdopendir(fd);
	struct dirent *e;

	need(d, path);
	while ((e = readdir(d))) {
		char below[2 * PATH_MAX];

		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
			continue;
		snprintf(below, sizeof(below), "%s/%s", path, e->d_name);
		add_thing(l, dirfd(d), e->d_name, below);
		if (S_ISDIR(l->t[l->n - 1].st.st_mode))
			list_below(l, dirfd(d), e->d_name, below);
	}
	closedir(d);
}

static int by_path(const void *a, const void *b)
{
	return strcmp(((const struct thing *)a)->path, ((const struct thing *)b)->path);
}

static void list_world(struct things *l)
{
	things_clear(l);
	add_thing(l, top_fd, "w", "w");
	list_below(l, top_fd, "w", "w");
	qsort(l->t, l->n, sizeof(*l->t), by_path);
}

static void remove_below(int dir, const char *name)
{
	int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	DIR *d = fdopendir(fd);
	struct dirent *e;

	need(d, name);
	while ((e = readdir(d))) {
		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
			continue;
		if (unlinkat(dirfd(d), e->d_name, 0) < 0) {
			need(errno == EISDIR, e->d_name);
			remove_below(dirfd(d), e->d_name);
		}
	}
	closedir(d);
	need(unlinkat(dir, name, AT_REMOVEDIR) == 0, name);
}

static struct things before, after;

void look_at_world(void)
{
	list_world(&before);
}

void new_world(void)
{
	const struct timespec old[2] = { { OLD, 5 }, { OLD, 5 } };

	if (faccessat(top_fd, "w", F_OK, AT_SYMLINK_NOFOLLOW) == 0)
		remove_below(top_fd, "w");
	make_world();
	list_world(&before);
	for (size_t i = 0; i < before.n; i++)
		need(utimensat(top_fd, before.t[i].path, old, AT_SYMLINK_NOFOLLOW) == 0,
		     before.t[i].path);
	look_at_world();
}
/* ---- what changed ---- */

/* "w/cwd/reg" to "reg"; long names cut. */
static const char *shown(const char *path)
{
	static char out[4][48];
	static unsigned next;
	char *o = out[next++ % 4];

	snprintf(o, sizeof(out[0]), "%s", strncmp(path, "w/cwd/", 6) ? path : path + 6);
	return o;
}

static const struct thing *find_ino(const struct things *l, const struct stat *st)
{
	for (size_t i = 0; i < l->n; i++)
		if (l->t[i].st.st_ino == st->st_ino)
			return &l->t[i];
	return NULL;
}

static void show_time(const char *what, const struct timespec *a, const struct timespec *b)
{
	if (a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec)
		return;
	if (b->tv_sec > OLD + OLD / 2) /* nothing here sets a time after 2017 */
		printf(" %s=now", what);
	else
		printf(" %s=%lld.%09ld", what, (long long)b->tv_sec, b->tv_nsec);
}

static void show_all(const struct thing *t)
{
	printf(" %06o %u:%u links %ju", t->st.st_mode, t->st.st_uid, t->st.st_gid,
	       (uintmax_t)t->st.st_nlink);
	if (!S_ISDIR(t->st.st_mode))
		printf(" size %lld '%s'", (long long)t->st.st_size, t->data);
}

static void show_changes(const struct thing *a, const struct thing *b)
{
	const struct stat *x = &a->st, *y = &b->st;

	if (x->st_mode != y->st_mode)
		printf(" %06o", y->st_mode);
	if (x->st_uid != y->st_uid || x->st_gid != y->st_gid)
		printf(" %u:%u", y->st_uid, y->st_gid);
	if (x->st_nlink != y->st_nlink)
		printf(" links %ju", (uintmax_t)y->st_nlink);
	if (!S_ISDIR(y->st_mode) && x->st_size != y->st_size)
		printf(" size %lld", (long long)y->st_size);
	if (strcmp(a->data, b->data))
		printf(" '%s'", b->data);
	show_time("atime", &x->st_atim, &y->st_atim);
	show_time("mtime", &x->st_mtim, &y->st_mtim);
	if (!no_ctime && memcmp(&x->st_ctim, &y->st_ctim, sizeof(x->st_ctim)))
		printf(" ctime");
}

static bool same(const struct thing *a, const struct thing *b)
{
	const struct stat *x = &a->st, *y = &b->st;

	return x->st_ino == y->st_ino && x->st_mode == y->st_mode && x->st_uid == y->st_uid &&
	       x->st_gid == y->st_gid && x->st_nlink == y->st_nlink &&
	       (S_ISDIR(x->st_mode) || x->st_size == y->st_size) &&
	       memcmp(&x->st_atim, &y->st_atim, sizeof(x->st_atim)) == 0 &&
	       memcmp(&x->st_mtim, &y->st_mtim, sizeof(x->st_mtim)) == 0 &&
	       (no_ctime || memcmp(&x->st_ctim, &y->st_ctim, sizeof(x->st_ctim)) == 0) &&
	       strcmp(a->data, b->data) == 0;
}

bool show_difference(void)
{
	bool any = false;
	size_t i = 0, j = 0;

	list_world(&after);
	while (i < before.n || j < after.n) {
		const struct thing *a = i < before.n ? &before.t[i] : NULL;
		const struct thing *b = j < after.n ? &after.t[j] : NULL;
		int c = !a ? 1 : !b ? -1 : strcmp(a->path, b->path);

		i += c <= 0;
		j += c >= 0;
		if (c == 0 && same(a, b))
			continue;
		any = true;
		if (c < 0) {
			printf("; %s gone", shown(a->path));
		} else if (c == 0 && a->st.st_ino == b->st.st_ino) {
			printf("; %s", shown(b->path));
			show_changes(a, b);
		} else {
			const struct thing *was = find_ino(&before, &b->st);

			printf("; %s is %s", shown(b->path), was ? shown(was->path) : "new");
			/* An inode number may be used again, so only what is the same says so. */
			if (was && was->st.st_mode == b->st.st_mode)
				show_changes(was, b);
			else
				show_all(b);
		}
	}
	return any;
}
