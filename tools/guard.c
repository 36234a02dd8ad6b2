/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The guard process; see guard.h.
 *
 * INVARIANTS
 *
 *  G1 A slot is TAKEN only while its path is complete: the daemon writes the path first.
 *  G2 The guard looks at the table only when the daemon is dead, so nobody writes then.
 *  G3 Only a plyfs mount is taken off, and only lazily: the connection died with the daemon, so
 *     nothing in it can still work. Somebody else's new mount on the same path could only be a
 *     plyfs view of another store, made within the moment between the death and this clean-up;
 *     to make one the path had to be unmounted before, and then the daemon had freed the slot.
 */

#include "tools/guard.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "store/base/util.h"
#include "tools/mounts.h"

/* Far above what one daemon serves (hundreds); untouched slots cost no memory. */
#define SLOTS 2048

enum { FREE, FILLING, TAKEN };

struct guard {
	struct {
		_Atomic int state;
		char path[PATH_MAX];
	} slot[SLOTS];
};

struct guard *guard_new(void)
{
	struct guard *g = mmap(NULL, sizeof(*g), PROT_READ | PROT_WRITE,
			       MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return g == MAP_FAILED ? NULL : g;
}

int guard_add(struct guard *g, const char *mountpoint)
{
	if (strlen(mountpoint) >= PATH_MAX)
		return -1;
	for (int i = 0; i < SLOTS; i++) {
		int expected = FREE;

		if (!atomic_compare_exchange_strong(&g->slot[i].state, &expected, FILLING))
			continue;
		strcpy(g->slot[i].path, mountpoint);
		atomic_store(&g->slot[i].state, TAKEN);
		return i;
	}
	return -1;
}

void guard_remove(struct guard *g, int slot)
{
	if (slot >= 0)
		atomic_store(&g->slot[slot].state, FREE);
}

static volatile sig_atomic_t child_pid;

static void pass_on(int sig)
{
	if (child_pid > 0)
		(void)kill(child_pid, sig); /* it may just have ended: then so do we */
}

static void clean_up(struct guard *g)
{
	for (int i = 0; i < SLOTS; i++)
		if (atomic_load(&g->slot[i].state) == TAKEN &&
		    mounts_is_plyfs(g->slot[i].path) == 1)
			(void)mounts_unmount(g->slot[i].path, true); /* nobody to tell */
}

int guard_fork(struct guard *g)
{
	struct sigaction act = { .sa_handler = pass_on };
	sigset_t blocked, old;
	int status = 0;
	pid_t pid;

	/* Blocked until child_pid is known, so that no signal is lost in between. */
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGTERM);
	sigaddset(&blocked, SIGINT);
	sigprocmask(SIG_BLOCK, &blocked, &old);

	pid = fork();
	if (pid < 0)
		return -errno;
	if (pid == 0) {
		sigprocmask(SIG_SETMASK, &old, NULL);
		return 0;
	}

	child_pid = pid;
	(void)prctl(PR_SET_NAME, "plyfsd-guard");
	(void)sigaction(SIGTERM, &act, NULL);
	(void)sigaction(SIGINT, &act, NULL);
	(void)signal(SIGHUP, SIG_IGN);
	sigprocmask(SIG_SETMASK, &old, NULL);

	/* Descriptors of the daemon's start (the ready pipe, the store) are not ours to keep. */
	(void)close_range(3, ~0U, 0);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	child_pid = 0;
	clean_up(g);
	_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}
