/* SPDX-License-Identifier: Apache-2.0 */

/* See program.h. */

#include "env/formats/program.h"

#include <errno.h>
#include <grp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include "store/base/err.h"

#define NOBODY 65534 /* the kernel's overflow uid: owns nothing */
#define GONE 70	     /* exit code, EX_SOFTWARE: the daemon is no longer there, nobody reads it */

/*
 * Where it fails (a user namespace that knows no nobody, a container without CAP_SETUID) root can
 * do little as it is.
 */
static void become_nobody(void)
{
	int r = setgroups(0, NULL) ?: setresgid(NOBODY, NOBODY, NOBODY) ?:
		setresuid(NOBODY, NOBODY, NOBODY);

	(void)r;
}

void program_begin(struct chan *c, bool alone)
{
	static const struct rlimit none = { 0 };

	*c = (struct chan){ .fd = CHAN_SOCKET_FD };
	(void)prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	(void)setrlimit(RLIMIT_CORE, &none);
	if (alone && geteuid() == 0)
		become_nobody();
	/* Last, as a change of user takes it back. Who is gone by now does not read: EPIPE. */
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	program_must(c, chan_put(c, REC_HELLO, PLYFS_VERSION, strlen(PLYFS_VERSION), NULL, 0));
	program_must(c, chan_flush(c));
}

static void drop(struct chan *c)
{
	void (*fn)(void *arg) = c->drop;

	c->drop = NULL; /* should it fail itself */
	if (fn)
		fn(c->drop_arg);
}

void program_must(struct chan *c, int r)
{
	if (r == -EPIPE) {
		drop(c);
		_exit(GONE);
	}
	if (r < 0)
		program_fail(c, r, "a message to plyfsd");
}

void program_fail(struct chan *c, int r, const char *fmt, ...)
{
	char text[4 + 8192], *line = text + 4; /* a member's name may be longer: then it is cut */
	va_list args;
	int n;

	va_start(args, fmt);
	n = vsnprintf(line, sizeof(text) - 4, fmt, args);
	va_end(args);
	drop(c); /* the text is ours by now */
	put_le32(text, (uint32_t)-r);
	n = MIN(MAX(n, 0), (int)sizeof(text) - 5);
	if (chan_put(c, REC_FAILED, text, 4 + (size_t)n, NULL, 0) < 0 || chan_flush(c) < 0)
		_exit(GONE);
	_exit(EXIT_FAILURE);
}

void program_get(struct chan *c, struct record *ret)
{
	int r = chan_get(c, ret);

	if (r == -EPROTO)
		program_confused(c);
	program_must(c, r == END ? -EPIPE : r);
}

void program_confused(struct chan *c)
{
	program_fail(c, -EPROTO, "plyfsd said what makes no sense to %s",
		     program_invocation_short_name);
}

void program_end(struct chan *c, const char *text)
{
	program_must(c, chan_put(c, REC_END, text, strlen(text), NULL, 0));
	program_must(c, chan_flush(c));
	_exit(EXIT_SUCCESS);
}

void program_skip(struct chan *c, const char *fmt, ...)
{
	char line[8192];
	va_list args;
	int n;

	va_start(args, fmt);
	n = vsnprintf(line, sizeof(line), fmt, args);
	va_end(args);
	if (n > 0)
		program_must(c, chan_put(c, REC_SKIP, line, MIN((size_t)n, sizeof(line) - 1), NULL,
					 0));
}
