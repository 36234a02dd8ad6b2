/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Any thread may be anywhere, with any lock: so the handler calls only what a signal handler may,
 * and looks the file up where the kernel has it, instead of in a table that all who map would keep.
 */

#include "tools/bus.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

/* A line of /proc/self/maps: 73 bytes, and a path. */
#define LINE_MAX_BYTES (PATH_MAX + 80)

/* Of the one thread that is in the handler; an alternate stack for each would cost more. */
static char line[LINE_MAX_BYTES], text[LINE_MAX_BYTES + 200];

static const char *hex(const char *p, uintptr_t *ret)
{
	for (*ret = 0;; p++) {
		if (*p >= '0' && *p <= '9')
			*ret = *ret << 4 | (uintptr_t)(*p - '0');
		else if (*p >= 'a' && *p <= 'f')
			*ret = *ret << 4 | (uintptr_t)(*p - 'a' + 10);
		else
			return p;
	}
}

/* The file's path, if `line` has the address and the mapping is of a file. */
static const char *file_at(uintptr_t address)
{
	uintptr_t from, to;
	const char *p = hex(line, &from), *path;

	if (*p != '-')
		return NULL;
	(void)hex(p + 1, &to);
	path = strchr(line, '/');
	return address >= from && address < to && path && strncmp(path, "/memfd:", 7) != 0 ? path :
											      NULL;
}

static const char *find_file(uintptr_t address)
{
	int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
	const char *path = NULL;
	size_t len = 0;
	char c[512];
	ssize_t n;

	while (fd >= 0 && !path && (n = read(fd, c, sizeof(c))) > 0)
		for (ssize_t i = 0; i < n && !path; i++) {
			if (c[i] != '\n') {
				line[len] = c[i];
				len += len < sizeof(line) - 1;
				continue;
			}
			line[len] = '\0';
			len = 0;
			path = file_at(address);
		}
	return path; /* the process ends: fd is closed by that */
}

static size_t add(size_t at, const char *s)
{
	size_t n = strlen(s);

	memcpy(text + at, s, n);
	return at + n;
}

static void on_bus(int sig, siginfo_t *info, void *context)
{
	static atomic_flag busy = ATOMIC_FLAG_INIT;
	const char *path = NULL;
	size_t n;

	while (atomic_flag_test_and_set(&busy))
		(void)pause(); /* another thread has it, and ends us */
	if (info->si_code == BUS_ADRERR)
		path = find_file((uintptr_t)info->si_addr);
	if (path) {
		n = add(0, "error: '");
		n = add(n, path);
		n = add(n, "' was cut while it was in use, or its disk cannot be read; ending: run "
			   "'plyfs check'\n");
		(void)!write(STDERR_FILENO, text, n);
		_exit(EX_IOERR);
	}
	(void)signal(sig, SIG_DFL);
	(void)raise(sig); /* when this returns */
}

void bus_install(void)
{
	struct sigaction action = { .sa_sigaction = on_bus, .sa_flags = SA_SIGINFO };

	sigfillset(&action.sa_mask);
	(void)sigaction(SIGBUS, &action, NULL); /* cannot fail */
}
