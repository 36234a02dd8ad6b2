/* SPDX-License-Identifier: Apache-2.0 */

/* Descendants: found through /proc/PID/task/TID/children, ended as tree.h says. */

#include "env/tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include "store/base/util.h"

/* The most pids that Linux can have; a walk that finds more has met a pid that was used anew. */
#define PIDS_MAX 4194304

/* Looks for newcomers while stopping. Each stops all that the last one found, so what forks gets
 * less of the machine with each; a bomb that is still not stopped is met again after the kill. */
#define LOOKS_MAX 64

#define TICK_NS 10000000 /* looks again after 10 ms when nothing was heard of */

struct pids {
	pid_t *v;
	size_t n, room;
};

static void pids_release(struct pids *p)
{
	free(p->v);
}

static void pids_add(struct pids *p, pid_t pid)
{
	if (p->n == p->room) {
		size_t room = p->room ? p->room * 2 : 64;
		pid_t *v = room <= PIDS_MAX ? realloc(p->v, room * sizeof(*v)) : NULL;

		if (!v)
			return; /* the rest is found by the next look, when these are gone */
		p->v = v;
		p->room = room;
	}
	p->v[p->n++] = pid;
}

int tree_look(void)
{
	char path[64];
	_cleanup_close_ int fd = -1;

	(void)snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)getpid());
	fd = open(path, O_RDONLY | O_CLOEXEC);
	return fd < 0 ? -errno : 0;
}

static void dir_closep(DIR **d)
{
	if (*d)
		closedir(*d);
}

/* Children belong to the thread that forked them: all threads are asked. */
static void add_children(struct pids *list, pid_t pid)
{
	_cleanup_(dir_closep) DIR *tasks = NULL;
	struct dirent *entry;
	char path[64];

	(void)snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	tasks = opendir(path);
	while (tasks && (entry = readdir(tasks))) {
		_cleanup_fclose_ FILE *f = NULL;
		int child;

		if (entry->d_name[0] == '.')
			continue;
		(void)snprintf(path, sizeof(path), "/proc/%d/task/%.20s/children", (int)pid,
			       entry->d_name);
		f = fopen(path, "re");
		while (f && fscanf(f, "%d", &child) == 1)
			pids_add(list, child);
	}
}

static void list(const struct tree *t, struct pids *found)
{
	size_t kept = 0;

	found->n = 0;
	add_children(found, getpid());
	for (size_t i = 0; i < found->n; i++)
		if (!t->spare || !t->spare(t->arg, found->v[i]))
			found->v[kept++] = found->v[i];
	found->n = kept;
	for (size_t i = 0; i < found->n; i++)
		add_children(found, found->v[i]);
}

bool tree_reap(const struct tree *t)
{
	for (;;) {
		int status;
		pid_t pid = waitpid(-1, &status, WNOHANG);

		if (pid <= 0)
			return pid == 0;
		t->reaped(t->arg, pid, status);
	}
}

void tree_each(const struct tree *t, void (*fn)(void *arg, pid_t pid), void *arg)
{
	_cleanup_(pids_release) struct pids found = { 0 };

	list(t, &found);
	for (size_t i = 0; i < found.n; i++)
		fn(arg, found.v[i]);
}

static int by_number(const void *a, const void *b)
{
	pid_t x = *(const pid_t *)a, y = *(const pid_t *)b;

	return (x > y) - (x < y);
}

/* Stops all that there are, until two looks find the same; leaves them in *found. */
static void stop(const struct tree *t, struct pids *found)
{
	_cleanup_(pids_release) struct pids before = { 0 };

	for (int look = 0; look < LOOKS_MAX; look++) {
		list(t, found);
		for (size_t i = 0; i < found->n; i++)
			(void)kill(found->v[i], SIGSTOP); /* gone, or not ours: the same next */
		if (found->n)
			qsort(found->v, found->n, sizeof(*found->v), by_number);
		if (found->n == before.n &&
		    (!found->n || memcmp(found->v, before.v, found->n * sizeof(*found->v)) == 0))
			return;
		before.n = 0;
		for (size_t i = 0; i < found->n; i++)
			pids_add(&before, found->v[i]);
	}
}

bool tree_kill(const struct tree *t)
{
	_cleanup_(pids_release) struct pids found = { 0 };
	uint64_t last_progress = now_ns();
	size_t least = SIZE_MAX;
	sigset_t chld;

	sigemptyset(&chld);
	sigaddset(&chld, SIGCHLD);
	for (;;) {
		const struct timespec tick = { .tv_nsec = TICK_NS };

		if (!tree_reap(t))
			return true;
		stop(t, &found);
		if (!found.n)
			return true; /* only the spared are left */
		for (size_t i = 0; i < found.n; i++)
			(void)kill(found.v[i], SIGKILL); /* gone, or not ours to kill */
		if (found.n < least) {
			least = found.n;
			last_progress = now_ns();
		}
		if (now_ns() - last_progress > TREE_STUCK_SECONDS * UINT64_C(1000000000))
			return false;
		(void)sigtimedwait(&chld, NULL, &tick);
	}
}
