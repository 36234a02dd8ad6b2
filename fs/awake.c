/* SPDX-License-Identifier: Apache-2.0 */

/*
 * See awake.h. The device's descriptor is our wish, in microseconds, for as long as it is open. A
 * thread of its own wishes and lets go; it waits for nothing but the semaphore while there are no
 * requests.
 *
 *   LET GO --(a request: `asked` set, semaphore)--> ASKED --(none for KEEP_NS)--> LET GO
 *
 * A request that comes while the thread is letting go is one among many: the next one asks again.
 */

#include "fs/awake.h"

#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "store/base/util.h"

/*
 * How long CPUs stay awake behind the last request. Programs pause for a ms or two to compute, and
 * asking wakes all CPUs each time; idle ones that burn 5 ms more are not missed.
 */
#define KEEP_NS 5000000

#define NO_LATENCY 0
#define ANY_LATENCY 2000000000 /* the kernel's PM_QOS_CPU_LATENCY_DEFAULT_VALUE */

/* For two calls of the system; no less than any libc and sanitizer wants. */
#define STACK (256 * 1024)

static struct {
	pthread_once_t once;
	_Atomic int fd; /* set once; -1: it cannot be done here */
	sem_t wake;
	_Atomic bool asked;
	_Atomic uint64_t last_ns; /* when a request came */
	_Atomic uint64_t times;
} awake = { .once = PTHREAD_ONCE_INIT, .fd = -1 };

static bool cpus_halt(void)
{
	_cleanup_close_ int fd = open(AWAKE_DRIVER_FILE, O_RDONLY | O_CLOEXEC);
	char driver[32] = "";

	return fd >= 0 && read(fd, driver, sizeof(driver) - 1) > 0 &&
	       strcmp(driver, AWAKE_DRIVER "\n") == 0;
}

static void wish(int32_t latency_us)
{
	/* A kernel that does not take it leaves things as they are. */
	(void)!write(awake.fd, &latency_us, sizeof(latency_us));
}

static void sleep_until(uint64_t ns)
{
	const struct timespec at = { .tv_sec = (time_t)(ns / 1000000000),
				     .tv_nsec = (long)(ns % 1000000000) };

	(void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
}

static void *awake_main(void *arg)
{
	uint64_t until;

	for (;;) {
		while (sem_wait(&awake.wake) < 0)
			;
		wish(NO_LATENCY);
		awake.times++;
		while ((until = awake.last_ns + KEEP_NS) > now_ns())
			sleep_until(until);
		wish(ANY_LATENCY);
		awake.asked = false;
	}
	return NULL;
}

static int start_thread(void)
{
	pthread_attr_t attr;
	sigset_t all, old;
	pthread_t thread;
	int r;

	r = pthread_attr_init(&attr);
	if (r != 0)
		return -r;
	(void)pthread_attr_setstacksize(&attr, STACK);
	(void)pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = pthread_create(&thread, &attr, awake_main, NULL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	if (r == 0)
		pthread_setname_np(thread, "plyfs-awake");
	return -r;
}

static void look(void)
{
	_cleanup_close_ int fd = -1;

	if (!cpus_halt() || sem_init(&awake.wake, 0, 0) < 0)
		return;
	fd = open(AWAKE_DEVICE, O_WRONLY | O_CLOEXEC);
	if (fd >= 0 && start_thread() == 0)
		awake.fd = TAKE_FD(fd);
}

void awake_start(void)
{
	pthread_once(&awake.once, look);
}

void awake_request(uint64_t now)
{
	if (atomic_load_explicit(&awake.fd, memory_order_relaxed) < 0)
		return;
	atomic_store_explicit(&awake.last_ns, now, memory_order_relaxed);
	if (!atomic_load_explicit(&awake.asked, memory_order_relaxed) &&
	    !atomic_exchange(&awake.asked, true))
		(void)sem_post(&awake.wake);
}

bool awake_used(uint64_t *ret_times)
{
	*ret_times = awake.times;
	return awake.fd >= 0;
}
