/* SPDX-License-Identifier: Apache-2.0 */

/* The daemon's log: STORE/daemon.log, one line per event, each written with one write(2). */

#include "tools/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "store/base/util.h"
#include "store/base/words.h"
#include "tools/daemon.h"
#include "tools/owner.h"

/* A log this long is set aside as daemon.log.old when a daemon starts: years of quiet work. */
#define LOG_MAX (1024 * 1024)

static int log_fd = -1; /* set before there are threads, but for the store's */

/*
 * A store that was copied, or whose log was removed, has none while it is opened: what that has to
 * tell waits here. 16 KiB are some hundred lines; the first ones say most.
 */
static char early[16 << 10];
static size_t early_len; /* under early_lock */
static pthread_mutex_t early_lock = PTHREAD_MUTEX_INITIALIZER;

static void keep_early(const char *line, size_t len)
{
	LOCK_GUARD(&early_lock);

	if (len > sizeof(early) - early_len)
		return;
	memcpy(early + early_len, line, len);
	early_len += len;
}

static void write_early(int fd)
{
	LOCK_GUARD(&early_lock);

	if (early_len > 0 && write(fd, early, early_len) < 0)
		return; /* a full disk: there is nowhere to say so */
	early_len = 0;
}

int log_open(int dir_fd, bool owned)
{
	struct stat st;
	int fd, r = owner_begin(dir_fd);

	if (r < 0)
		return r;
	if (owned && fstatat(dir_fd, "daemon.log", &st, 0) == 0 && st.st_size > LOG_MAX)
		(void)renameat(dir_fd, "daemon.log", dir_fd,
			       "daemon.log.old"); /* else it grows on */
	/* O_NONBLOCK: a fifo in its place is a failure, not a wait for a reader */
	fd = openat(dir_fd, "daemon.log",
		    O_WRONLY | O_APPEND | O_CLOEXEC | O_NONBLOCK | (owned ? O_CREAT : 0), 0600);
	r = fd < 0 ? -errno : 0;
	owner_end();
	if (r < 0)
		return r;
	closep(&log_fd);
	log_fd = fd;
	write_early(fd);

	/* What a library or a sanitizer prints goes there as well. */
	(void)dup2(fd, 1);
	(void)dup2(fd, 2);
	return 0;
}

void daemon_log(const char *fmt, ...)
{
	char line[2048];
	struct timespec now;
	struct tm tm;
	size_t len;
	va_list ap;

	clock_gettime(CLOCK_REALTIME, &now);
	gmtime_r(&now.tv_sec, &tm);
	len = strftime(line, sizeof(line), "%Y-%m-%dT%H:%M:%S", &tm);
	len += (size_t)snprintf(line + len, sizeof(line) - len, ".%03ldZ ", now.tv_nsec / 1000000);
	va_start(ap, fmt);
	vsnprintf(line + len, sizeof(line) - len - 1, fmt, ap);
	va_end(ap);
	len = strlen(line_clean(line));
	line[len++] = '\n';
	if (log_fd < 0)
		keep_early(line, len);
	if (write(log_fd >= 0 ? log_fd : 2, line, len) < 0)
		return; /* a full disk: there is nowhere to say so */
}
