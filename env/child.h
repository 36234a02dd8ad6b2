/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * clone() and vfork() for children that share our memory until they run a program.
 *
 * ThreadSanitizer's versions of the two know forks only. Its vfork() is a fork(), so that what the
 * child writes is lost. Its clone() does in the child what it does after a fork, in memory that is
 * the parent's, too: with a second thread it ignores the caller's locks from then on, and reports
 * races that are none. glibc's other names of the two are not intercepted; what the child calls is,
 * which is right: its caller stands still meanwhile.
 */

#include <sched.h>
#include <sys/types.h>
#include <unistd.h>

#ifdef __has_feature
#if __has_feature(thread_sanitizer) && !defined(__SANITIZE_THREAD__)
#define __SANITIZE_THREAD__ 1 /* clang's way of saying it */
#endif
#endif

#ifdef __SANITIZE_THREAD__
int __clone(int (*run)(void *arg), void *stack, int flags, void *arg, ...);
pid_t __vfork(void) __attribute__((returns_twice));
#define clone __clone
#define vfork __vfork
#endif
