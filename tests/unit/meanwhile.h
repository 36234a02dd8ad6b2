/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What goes on while a call of the system, which the test stands for, takes its time. */

#include <check.h>
#include <pthread.h>
#include <time.h>

/* It takes microseconds: this is for a machine that is busy. */
#define MEANWHILE_S 20

/* Fails when another thread cannot do that before the call returns: it waits for a lock of ours. */
static inline void ck_meanwhile(void *(*fn)(void *arg))
{
	struct timespec until;
	pthread_t other;

	ck_assert_int_eq(pthread_create(&other, NULL, fn, NULL), 0);
	(void)clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += MEANWHILE_S;
	ck_assert_int_eq(pthread_timedjoin_np(other, NULL, &until), 0);
}
