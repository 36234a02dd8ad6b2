/* SPDX-License-Identifier: Apache-2.0 */

/* See arrival.h. */

#include "env/serve/arrival.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

#include "store/base/util.h"

#define LOOKS 10 /* in the time that is allowed: so much later than due is one noticed at most */

struct arrival { /* all under lock */
	struct arrival *next, **at;
	int fd;
	bool awaited;
	double since;
	uint64_t bytes; /* of the body */
};

struct arrivals {
	unsigned seconds; /* immutable */
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t ended;
	bool ending;	       /* under lock */
	struct arrival *first; /* under lock */
};

static void disconnect_the_late(struct arrivals *a)
{
	for (struct arrival *one = a->first; one; one = one->next) {
		double allowed = a->seconds + (double)one->bytes / ARRIVAL_BYTES_PER_SECOND;

		/* Its thread sees an end of file, and closes it. Fails when the client has gone. */
		if (one->awaited && now_seconds() - one->since > allowed)
			(void)shutdown(one->fd, SHUT_RDWR);
	}
}

static void *look(void *arg)
{
	struct arrivals *a = arg;
	LOCK_GUARD(&a->lock);

	while (!a->ending) {
		struct timespec until;
		double at = now_seconds() + (double)a->seconds / LOOKS;

		until.tv_sec = (time_t)at;
		until.tv_nsec = (long)((at - (double)until.tv_sec) * 1e9);
		(void)pthread_cond_timedwait(&a->ended, &a->lock, &until);
		disconnect_the_late(a);
	}
	return NULL;
}

int arrivals_start(unsigned seconds, struct arrivals **ret)
{
	struct arrivals *a = calloc(1, sizeof(*a));
	pthread_condattr_t monotonic;
	int error;

	if (!a)
		return -ENOMEM;
	a->seconds = seconds;
	pthread_mutex_init(&a->lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&a->ended, &monotonic);
	pthread_condattr_destroy(&monotonic);
	error = pthread_create(&a->thread, NULL, look, a);
	if (error) {
		pthread_cond_destroy(&a->ended);
		pthread_mutex_destroy(&a->lock);
		free(a);
		return -error;
	}
	*ret = a;
	return 0;
}

void arrivals_stop(struct arrivals *a)
{
	if (!a)
		return;
	pthread_mutex_lock(&a->lock);
	a->ending = true;
	pthread_cond_signal(&a->ended);
	pthread_mutex_unlock(&a->lock);
	(void)pthread_join(a->thread, NULL);
	pthread_cond_destroy(&a->ended);
	pthread_mutex_destroy(&a->lock);
	free(a);
}

struct arrival *arrival_add(struct arrivals *a, int fd)
{
	struct arrival *one = calloc(1, sizeof(*one));

	if (!one)
		return NULL;
	*one = (struct arrival){ .fd = fd, .awaited = true, .since = now_seconds() };
	LOCK_GUARD(&a->lock);
	one->next = a->first;
	one->at = &a->first;
	if (one->next)
		one->next->at = &one->next;
	a->first = one;
	return one;
}

void arrival_remove(struct arrivals *a, struct arrival *one)
{
	if (!one)
		return;
	pthread_mutex_lock(&a->lock);
	*one->at = one->next;
	if (one->next)
		one->next->at = one->at;
	pthread_mutex_unlock(&a->lock);
	free(one);
}

void arrival_body(struct arrivals *a, struct arrival *one, size_t bytes)
{
	LOCK_GUARD(&a->lock);

	if (one)
		one->bytes += bytes;
}

void arrival_whole(struct arrivals *a, struct arrival *one)
{
	LOCK_GUARD(&a->lock);

	if (one)
		one->awaited = false;
}

void arrival_next(struct arrivals *a, struct arrival *one)
{
	LOCK_GUARD(&a->lock);

	if (!one)
		return;
	one->awaited = true;
	one->since = now_seconds();
	one->bytes = 0;
}
