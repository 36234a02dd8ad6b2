/* SPDX-License-Identifier: Apache-2.0 */

/* The table that supervisor and daemon share, and what the daemon tells; see supervisor.h. */

#include "tools/supervisor_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "store/base/fdpass.h"
#include "store/base/util.h"
#include "tools/mounts.h"

#define PIDFD_OF_THREAD O_EXCL /* Linux 6.9; older ones say EINVAL */
/* For the few calls of a thread that waits; no less than any libc wants. */
#define WATCHED_STACK (128 * 1024)

int supervisor_table_fd = -1;
int supervisor_sock = -1;

static struct supervisor *map(int fd)
{
	struct supervisor *s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE,
				    MAP_SHARED | MAP_NORESERVE, fd, 0);

	return s == MAP_FAILED ? NULL : s;
}

struct supervisor *supervisor_new(void)
{
	struct supervisor *s;

	supervisor_table_fd = memfd_create("plyfsd", MFD_CLOEXEC);
	if (supervisor_table_fd < 0 || ftruncate(supervisor_table_fd, sizeof(*s)) < 0)
		return NULL;
	s = map(supervisor_table_fd);
	if (s)
		s->version = SUPERVISOR_VERSION;
	return s;
}

void supervisor_keep_on_exec(struct supervisor *s, bool keep)
{
	int flag = keep ? 0 : FD_CLOEXEC;

	(void)fcntl(supervisor_table_fd, F_SETFD, flag);
	(void)fcntl(s->lock_fd, F_SETFD, flag);
	for (int i = 0; i < SLOTS; i++) {
		if (!s->slot[i].fuse_fd)
			continue;
		(void)fcntl(s->slot[i].fuse_fd, F_SETFD, flag);
		(void)fcntl(s->slot[i].memo_fd, F_SETFD, flag);
	}
}

struct supervisor *supervisor_adopt(int fd)
{
	struct supervisor *s;
	struct stat st;

	if (fstat(fd, &st) < 0 || (size_t)st.st_size != sizeof(*s))
		return NULL;
	s = map(fd);
	if (!s || s->version != SUPERVISOR_VERSION)
		return NULL;
	supervisor_table_fd = fd;
	supervisor_keep_on_exec(s, false);
	return s;
}

void supervisor_wait(void)
{
	(void)nanosleep(&(struct timespec){ .tv_nsec = 50000000 }, NULL);
}

int supervisor_lock_fd(struct supervisor *s)
{
	return s->lock_fd;
}

int supervisor_add(struct supervisor *s, const struct supervised_view *view)
{
	if (strlen(view->mountpoint) >= PATH_MAX)
		return -1;
	for (int i = 0; i < SLOTS; i++) {
		int expected = FREE;

		if (!atomic_compare_exchange_strong(&s->slot[i].state, &expected, FILLING))
			continue;
		strcpy(s->slot[i].path, view->mountpoint);
		memcpy(s->slot[i].branch, view->branch, sizeof(view->branch));
		s->slot[i].snapshot = view->snapshot;
		s->slot[i].mount = mounts_number(view->mountpoint);
		s->slot[i].how = view->how;
		s->slot[i].failed_resumes = 0;
		atomic_store(&s->slot[i].state, TAKEN);
		return i;
	}
	return -1;
}

static void tell(enum word word, int slot, int fuse_fd, int memo_fd)
{
	struct message m = { .word = word, .slot = slot };
	struct iovec iov = { &m, sizeof(m) };
	const int fds[2] = { fuse_fd, memo_fd };

	/* A supervisor that was killed keeps nothing: then views die with their daemon again. */
	(void)fdpass_send(supervisor_sock, &iov, 1, fds, fuse_fd >= 0 ? 2 : 0);
}

bool supervisor_is_there(void)
{
	struct pollfd p = { .fd = supervisor_sock }; /* its end is told without being asked for */

	return supervisor_sock >= 0 && poll(&p, 1, 0) == 0;
}

/* Nothing that it could wait for keeps it from dying, so its end says that all are dying. */
static void *watched_main(void *arg)
{
	int fd = (int)syscall(SYS_pidfd_open, gettid(), PIDFD_OF_THREAD);

	if (fd >= 0) {
		tell(WATCH, 0, fd, fd);
		(void)close(fd);
	}
	for (;;)
		(void)pause();
	return NULL;
}

void supervisor_be_watched(void)
{
	sigset_t all, old;
	pthread_attr_t attr;
	pthread_t thread;

	if (pthread_attr_init(&attr) != 0)
		return;
	(void)pthread_attr_setstacksize(&attr, WATCHED_STACK);
	(void)pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	(void)pthread_create(&thread, &attr, watched_main, NULL); /* else: as without a pidfd */
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
}

void supervisor_keep(struct supervisor *s, int slot, int fuse_fd, int memo_fd)
{
	if (slot >= 0)
		tell(KEEP, slot, fuse_fd, memo_fd);
}

void supervisor_remove(struct supervisor *s, int slot)
{
	if (slot < 0)
		return;
	atomic_store(&s->slot[slot].state, FREE);
	tell(LET_GO, slot, -1, -1);
}

unsigned supervisor_note_resume(struct supervisor *s, int slot, bool good)
{
	s->slot[slot].failed_resumes = good ? 0 : s->slot[slot].failed_resumes + 1;
	return (unsigned)s->slot[slot].failed_resumes;
}

int supervisor_next(struct supervisor *s, int from, struct supervised_view *ret)
{
	for (int i = from; i < SLOTS; i++) {
		if (s->slot[i].state != TAKEN || !s->slot[i].fuse_fd)
			continue;
		*ret = (struct supervised_view){
			.snapshot = s->slot[i].snapshot,
			.how = s->slot[i].how,
			.mountpoint = s->slot[i].path,
			.fuse_fd = s->slot[i].fuse_fd,
			.memo_fd = s->slot[i].memo_fd,
		};
		memcpy(ret->branch, s->slot[i].branch, sizeof(ret->branch));
		return i;
	}
	return -1;
}

void supervisor_stopping(struct supervisor *s)
{
	atomic_store(&s->stopping, true);
}

int supervisor_replace(struct supervisor *s, const char *program)
{
	if (strlen(program) >= sizeof(s->program))
		return -ENAMETOOLONG;
	strcpy(s->program, program);
	atomic_store(&s->replace, true);
	return 0;
}

unsigned supervisor_deaths(struct supervisor *s)
{
	return s->deaths;
}

unsigned supervisor_replacements(struct supervisor *s)
{
	return s->replacements;
}
