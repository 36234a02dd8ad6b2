/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The processes that a shell has started, as /proc shows them. Jobs have process groups of their
 * own, and bash knows all about them. It does not wait for a process substitution, `make >
 * >(tee log)`: of a builtin or a group that is the shell's child, in the shell's own process group;
 * of a program it is that program's, and falls to the shell's parent, its reaper, when that has
 * ended. And nobody but the shell is in front while it waits for what runs in its own group:
 * `x=$(make)`, or any program after `set +m`.
 */

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "env/session_internal.h"
#include "store/base/util.h"

/* ---- looking ---- */

struct facts { /* of proc_pid_stat(5) */
	char state;
	pid_t parent, group, session;
	/* not of the file */
	int depth;  /* below the one whose list it was in first */
	int signal; /* for is_own: they are to get it; 0: just a look */
};

/* False: there is no such process. */
static bool look(pid_t pid, struct facts *ret)
{
	_cleanup_close_ int fd = -1;
	char path[32], line[128]; /* "PID (NAME) S" and numbers: a name has at most 15 bytes */
	const char *end;
	ssize_t n;

	(void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? -1 : read(fd, line, sizeof(line) - 1);
	if (n <= 0)
		return false;
	line[n] = '\0';
	end = strrchr(line, ')'); /* the name before it may hold anything */
	return end && sscanf(end, ") %c %d %d %d", &ret->state, &ret->parent, &ret->group,
			     &ret->session) == 4;
}

/* Its children's list (those of its first thread: bash has one); < 0: a kernel may have none. */
static int children_of(pid_t pid)
{
	char path[64];

	(void)snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)pid, (int)pid);
	return open(path, O_RDONLY | O_CLOEXEC);
}

/* Is fn true of one of these children? Of more than fit the others are not asked. */
static bool any_child(struct shell *s, int list, int depth, int signal,
		      bool (*fn)(struct shell *s, pid_t child, const struct facts *f))
{
	char pids[4096], *p = pids, *end;
	ssize_t n = pread(list, pids, sizeof(pids) - 1, 0);

	pids[MAX(n, 0)] = '\0';
	for (long child; (child = strtol(p, &end, 10)) > 0; p = end) {
		struct facts f = { .depth = depth, .signal = signal };

		if (child != s->group && look((pid_t)child, &f) && fn(s, (pid_t)child, &f))
			return true;
	}
	return false;
}

/* `>(a | b)` is a shell with two children. This recursion is not to be a stranger's to make. */
#define DEPTH_MAX 4

static bool any_grandchild(struct shell *s, pid_t pid, const struct facts *f,
			   bool (*fn)(struct shell *s, pid_t child, const struct facts *f))
{
	_cleanup_close_ int list = -1;

	if (f->depth == DEPTH_MAX)
		return false;
	list = children_of(pid);
	return any_child(s, list, f->depth + 1, f->signal, fn);
}

/* Of a list that is longer than `before` the rest is forgotten: taken for new. */
static void note(int list, char (*before)[CHILDREN_NOTED])
{
	ssize_t n = pread(list, *before + 1, sizeof(*before) - 2, 0);

	(*before)[0] = ' ';
	(*before)[1 + MAX(n, 0)] = '\0';
}

void shell_note_children(struct shell *s)
{
	note(s->children, &s->before);
	note(s->siblings, &s->beside);
}

static bool is_noted(const char *list, pid_t pid)
{
	char word[16];

	(void)snprintf(word, sizeof(word), " %d ", (int)pid);
	return strstr(list, word) != NULL;
}

/* ---- what the shell waits for, in its own group ---- */

static bool is_own(struct shell *s, pid_t pid, const struct facts *f)
{
	if (f->group != s->group || f->state == 'Z' || f->state == 'X' || is_noted(s->before, pid))
		return false;
	if (f->signal) {
		(void)any_grandchild(s, pid, f, is_own); /* as long as they are its */
		(void)pty_signal(s, pid, f->signal);	 /* fails when it has just ended */
		return false;				 /* to the next */
	}
	return true;
}

/* The mark tells them from what is left of a command that is over: `exec > >(tee log)`. */
bool shell_waits_for_own(struct shell *s)
{
	return s->group > 0 && any_child(s, s->children, 0, 0, is_own) &&
	       shell_descriptor(s, SHELL_MARK) == 1;
}

void shell_signal_own(struct shell *s, int signal)
{
	(void)any_child(s, s->children, 0, signal, is_own);
}

/* ---- process substitutions ---- */

static bool runs(struct shell *s, pid_t pid, const struct facts *f)
{
	return f->state == 'R' || f->state == 'D' || any_grandchild(s, pid, f, runs);
}

static bool is_substitution(struct shell *s, pid_t pid, const struct facts *f)
{
	return f->group == s->group && runs(s, pid, f);
}

/* What an earlier command has left is a server, and nothing to wait for. */
static bool is_orphan(struct shell *s, pid_t pid, const struct facts *f)
{
	return f->session == s->group && !is_noted(s->beside, pid) && runs(s, pid, f);
}

static bool run_aside(struct shell *s)
{
	return any_child(s, s->children, 0, 0, is_substitution) ||
	       any_child(s, s->siblings, 0, 0, is_orphan);
}

/*
 * A tee may still be about to print the last it has read. It has when it waits for more, or has
 * ended, in two looks: who waits for one that has ended meanwhile runs at the second. One that goes
 * on is not waited for; the reference takes as long for any command.
 */
#define ASIDE_SECONDS 0.1
#define ASIDE_GAP_MS 1

int shell_drain_aside(struct shell *s)
{
	double end = now_seconds() + ASIDE_SECONDS;
	bool before = false;
	struct facts f;
	int r = 0;

	if (s->children < 0 && s->group > 0 && look(s->group, &f)) {
		s->children = children_of(s->group);
		s->siblings = children_of(f.parent);
	}
	while (r == 0 && now_seconds() < end) {
		struct pollfd p = { .fd = s->master, .events = POLLIN };
		bool now = run_aside(s);

		if (!now && !before)
			break;
		if (now)
			(void)poll(&p, 1, ASIDE_GAP_MS); /* something was printed, or look again */
		before = now;
		r = pty_drain(s, PTY_ALL);
	}
	return r;
}
