/* SPDX-License-Identifier: Apache-2.0 */

/*
 * plyfs doctor: each thing that mounting needs, whether it is there, and what to do when not. Ends
 * with a real mount on a temporary directory, for that is what settles it.
 */

#include "tools/client.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fuse.h>
#include <poll.h>
#include <pthread.h>
#include <pwd.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>

#include "fs/awake.h"
#include "store/base/util.h"
#include "store/base/words.h"
#include "tools/mounts.h"

/* INIT is there as soon as something is mounted; what takes longer will not come. */
#define INIT_WAIT_MS 1000
/* A flag of INIT (proto 7.40), which <linux/fuse.h> of Debian 12 does not have. */
#define OFFERS_PASSTHROUGH (UINT64_C(1) << 37)

static struct {
	bool json;
	unsigned n; /* that were reported */
} said;

/* One line: "ok", "note" (works, but) or "BAD" (will not work). Or an object of JSON. */
static void report(const char *kind, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void report(const char *kind, const char *fmt, ...)
{
	char text[2 * PATH_MAX]; /* a view's path twice, and words; longer ones are cut */
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (!said.json) {
		printf("%-5s %s\n", kind, text);
		return;
	}
	printf("%s\n    {\"kind\": \"%s\", \"text\": ", said.n++ ? "," : "",
	       strcmp(kind, "BAD") ? kind : "bad");
	client_print_json(text);
	putchar('}');
}

static bool check_device(void)
{
	_cleanup_close_ int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);

	if (fd >= 0) {
		report("ok", "/dev/fuse can be opened");
		return true;
	}
	if (errno == ENOENT || errno == ENODEV)
		report("BAD",
		       "no /dev/fuse: modprobe fuse; a container needs --device /dev/fuse "
		       "--cap-add SYS_ADMIN");
	else
		report("BAD",
		       "/dev/fuse: %s; as root: chmod 666 /dev/fuse; a container needs --device "
		       "/dev/fuse --cap-add SYS_ADMIN",
		       strerror(errno));
	return false;
}

static void check_kernel(void)
{
	unsigned major = 0, minor = 0;
	struct utsname u;

	if (uname(&u) < 0 || sscanf(u.release, "%u.%u", &major, &minor) != 2)
		return;
	if (major > 6 || (major == 6 && minor >= 16))
		report("ok", "kernel %s: large restores take constant time", u.release);
	else if (major > 6 || (major == 6 && minor >= 2))
		report("note", "kernel %s: works; from 6.16 on large restores take constant time",
		       u.release);
	else
		report("note",
		       "kernel %s: works; before 6.2 a restore drops more cached than needed",
		       u.release);
	if (kernel_writes_around(u.release))
		report("ok", "new files are written around the kernel's cache");
	else
		report("note",
		       "new files are written faster from Linux 6.19, 6.18.3 or 6.12.64 on");
}

#define LINE_BYTES 64 /* what is asked for has up to 33 */

/* The first line of a small file of the kernel's; "" when there is none. */
static void read_line(const char *path, char line[static LINE_BYTES])
{
	_cleanup_fclose_ FILE *f = fopen(path, "re");

	if (!f || !fgets(line, LINE_BYTES, f))
		*line = '\0';
	line[strcspn(line, "\n")] = '\0';
}

/* How long idle CPUs take to wake (fs/awake.h). */
static void check_cpus(void)
{
	char driver[LINE_BYTES], ns[LINE_BYTES];

	read_line(AWAKE_DRIVER_FILE, driver);
	read_line(AWAKE_SETTING, ns);
	if (strcmp(driver, AWAKE_DRIVER))
		report("ok", "idle CPUs are not given back by haltpoll: nothing to keep awake");
	else if (access(AWAKE_DEVICE, W_OK) == 0)
		report("ok", "idle CPUs take long to wake: kept awake while requests come");
	else if (strtoul(ns, NULL, 10) >= AWAKE_SETTING_NS)
		report("ok", "idle CPUs wait %s ns before they take long to wake", ns);
	else
		report("note",
		       "idle CPUs take 50 us and more to wake; as root: echo %d > %s",
		       AWAKE_SETTING_NS, AWAKE_SETTING);
}

static bool find_in_path(const char *name, char found[static PATH_MAX])
{
	const char *path = getenv("PATH") ?: "/usr/bin:/bin";

	while (*path) {
		size_t n = strcspn(path, ":");

		snprintf(found, PATH_MAX, "%.*s/%s", (int)n, path, name);
		if (access(found, X_OK) == 0)
			return true;
		path += n + (path[n] == ':');
	}
	return false;
}

/* Why fusermount3, which is setuid root, could do nothing for this process; NULL: it can. */
static const char *helpless(const char *path)
{
	struct statvfs fs;

	if (geteuid() == 0)
		return NULL; /* who needs no helper may have other users that can use it */
	if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1)
		return MOUNTS_NO_NEW_PRIVS;
	if (statvfs(path, &fs) == 0 && (fs.f_flag & ST_NOSUID))
		return "fusermount3 lies on a filesystem that is mounted nosuid";
	if (!getpwuid(getuid()))
		return "this user has no line in /etc/passwd, which fusermount3 wants";
	return NULL;
}

/* false: what this user mounts would stay. */
static bool check_helper(void)
{
	const bool mtab = access(MOUNTS_MTAB, R_OK) == 0;
	char path[PATH_MAX], enabled[LINE_BYTES];
	struct stat st;

	if (!find_in_path("fusermount3", path))
		report(geteuid() ? "BAD" : "note",
		       "no fusermount3: ordinary users cannot mount; install the package fuse3");
	else if (!mtab)
		report(geteuid() ? "BAD" : "note", "no %s: ordinary users cannot unmount; %s",
		       MOUNTS_MTAB, MOUNTS_MTAB_CURE);
	else if (helpless(path))
		report("BAD", "%s", helpless(path));
	else if (stat(path, &st) == 0 && st.st_uid == 0 && (st.st_mode & S_ISUID))
		report("ok", "%s lets ordinary users mount", path);
	else
		report(geteuid() ? "BAD" : "note",
		       "%s is not setuid root: ordinary users cannot mount; install the package "
		       "fuse3 anew",
		       path);
	read_line("/sys/module/apparmor/parameters/enabled", enabled);
	if (*enabled == 'Y' && access(MOUNTS_PROFILE, F_OK) == 0)
		report("note", MOUNTS_PROFILE_ALLOWS);
	return mtab || geteuid() == 0;
}

static void check_users(void)
{
	if (geteuid() == 0)
		report("ok",
		       "root's views are open to all users (mode bits decide), unless --private");
	else
		report("note",
		       "views of ordinary users are theirs alone, not even root's (docker, sudo), "
		       "unless --allow-other");
}

static void check_uring(void)
{
	_cleanup_fclose_ FILE *f = fopen("/sys/module/fuse/parameters/enable_uring", "re");

	if (!f)
		report("note", "no mount --io-uring: it wants Linux 6.14 with FUSE_IO_URING");
	else if (fgetc(f) != 'Y')
		report("note", "mount --io-uring works after: "
			       "echo Y > /sys/module/fuse/parameters/enable_uring");
	else
		report("ok", "the kernel lets mount --io-uring work");
}

static void check_limits(void)
{
	struct rlimit files;

	/* A daemon needs a few descriptors per view and per pack; 1024 is the usual soft limit. */
	if (getrlimit(RLIMIT_NOFILE, &files) == 0)
		report(files.rlim_max < 4096 ? "note" : "ok",
		       "up to %llu open files (hard limit)%s", (unsigned long long)files.rlim_max,
		       files.rlim_max < 4096 ? ": raise it for many views" : "");
}

struct looked_at {
	char *path;
	pthread_t by;
	int r; /* of client_look_with_patience */
};

struct views {
	struct looked_at *at;
	size_t n;
};

static int add_view(void *arg, const struct mount_entry *e)
{
	struct views *views = arg;
	struct looked_at *more;

	if (strcmp(e->type, PLYFS_FS_TYPE))
		return 0;
	more = reallocarray(views->at, views->n + 1, sizeof(*more));
	if (!more)
		return -ENOMEM;
	views->at = more;
	more[views->n] = (struct looked_at){ .path = strdup(e->path) };
	return more[views->n++].path ? 0 : -ENOMEM;
}

static void *look_at(void *arg)
{
	struct client at = { .store_fd = -1, .view_fd = -1 };
	struct looked_at *view = arg;

	view->r = client_look_with_patience(&at, view->path);
	closep(&at.view_fd);
	return NULL;
}

static bool report_view(const struct looked_at *view)
{
	_cleanup_free_ char *word = shell_word(view->path);
	const char *name = word ? word : view->path;

	if (view->r == -ENOTCONN)
		report("note", "%s is a view whose daemon died: plyfs unmount %s", name, name);
	else if (view->r == -ETIMEDOUT)
		report("note",
		       "%s is a view that does not answer: if its plyfsd is stopped, kill -CONT "
		       "it; plyfs unmount --lazy %s takes it off",
		       name, name);
	else
		return false;
	return true;
}

/* All of them at once: who asks one that does not answer is patient. */
static void check_views(void)
{
	struct views views = {};
	int r = mounts_each(add_view, &views);
	size_t begun = 0, stale = 0;

	while (r == 0 && begun < views.n) {
		r = -pthread_create(&views.at[begun].by, NULL, look_at, &views.at[begun]);
		begun += r == 0;
	}
	for (size_t i = 0; i < begun; i++) {
		(void)pthread_join(views.at[i].by, NULL);
		stale += report_view(&views.at[i]);
		if (client_look_is_unclear(views.at[i].r))
			r = views.at[i].r;
	}
	if (r < 0)
		report("note", "not all views were asked: %s", strerror(-r));
	else if (!stale)
		report("ok", "all views answer");
	for (size_t i = 0; i < views.n; i++)
		free(views.at[i].path);
	free(views.at);
}

/*
 * What the kernel offers in INIT, its first request to any mount: not to be seen anywhere else, as
 * it may be built without. 0: it does not tell.
 */
static uint64_t read_offer(int fd)
{
	struct {
		struct fuse_in_header header;
		struct fuse_init_in init;
	} first = { .header.opcode = 0 };
	static uint8_t request[FUSE_MIN_READ_BUFFER]; /* less is refused */
	struct pollfd p = { .fd = fd, .events = POLLIN };
	ssize_t n = poll(&p, 1, INIT_WAIT_MS) == 1 ? read(fd, request, sizeof(request)) : 0;

	if (n > 0)
		memcpy(&first, request, MIN((size_t)n, sizeof(first)));
	if (first.header.opcode != FUSE_INIT || !(first.init.flags & FUSE_INIT_EXT))
		return 0;
	return (uint64_t)first.init.flags2 << 32 | first.init.flags;
}

static void check_passthrough(uint64_t offer)
{
	char map[LINE_BYTES];
	unsigned n;

	read_line("/proc/self/uid_map", map);
	if (!(offer & OFFERS_PASSTHROUGH))
		report("note", "no mount --passthrough: it wants Linux 6.9 with FUSE_PASSTHROUGH");
	else if (geteuid() != 0 || sscanf(map, "%*u %*u %u", &n) != 1 || n != UINT32_MAX)
		report("note", "mount --passthrough is for root on the machine itself");
	else
		report("ok", "the kernel lets mount --passthrough work");
}

static bool try_mount(struct client *cl)
{
	char dir[] = "/tmp/plyfs-doctor-XXXXXX";
	struct fuse_mount m = { .mountpoint = dir };
	sigset_t ends, old;
	int fd = -1, r;

	/* Whatever ends us, a reader of our output that leaves too, waits until nothing is left. */
	sigemptyset(&ends);
	sigaddset(&ends, SIGINT);
	sigaddset(&ends, SIGTERM);
	sigaddset(&ends, SIGHUP);
	sigaddset(&ends, SIGPIPE);
	fflush(stdout);
	sigprocmask(SIG_BLOCK, &ends, &old);
	if (!mkdtemp(dir)) {
		sigprocmask(SIG_SETMASK, &old, NULL);
		report("note", "no temporary directory for a trial mount: %s", strerror(errno));
		return true;
	}
	r = fuse_mount(cl, &m, &fd);
	if (r == DONE) {
		check_passthrough(read_offer(fd));
		closep(&fd);
		fuse_unmount(dir);
	}
	(void)rmdir(dir); /* ours and empty */
	sigprocmask(SIG_SETMASK, &old, NULL);
	report(r == DONE ? "ok" : "BAD", "a trial mount %s",
	       r == DONE ? "worked" : "failed (see above)");
	return r == DONE;
}

int client_doctor(struct client *cl)
{
	const struct option_def defs[] = { { .name = "json", .flag = &said.json } };
	int r = client_parse(cl, defs, 1, 0, 0, 0);
	bool good;

	if (r)
		return r;
	if (said.json)
		printf("{\n  \"checks\": [");
	good = check_device();
	check_kernel();
	check_cpus();
	good = check_helper() && good;
	check_users();
	check_uring();
	check_limits();
	check_views();
	good = good && try_mount(cl);
	if (said.json)
		printf("\n  ],\n  \"good\": %s\n}\n", good ? "true" : "false");
	else
		printf("%s\n", good ? "views can be mounted here" : "views cannot be mounted here");
	return client_printed(cl) || !good ? FAILED : DONE;
}
