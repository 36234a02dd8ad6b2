/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * How many descriptors this process may have open (RLIMIT_NOFILE of getrlimit(2)): 1024 as a rule,
 * for the sake of programs that use select(2), and far more when asked for. Inline: programs that
 * link nothing else of ours ask as well.
 */

#include <stdbool.h>
#include <sys/resource.h>

/* As many as the hard limit allows. False: it stays as it was, which may do as well. */
static inline bool fdlimit_raise(struct rlimit *ret_before)
{
	struct rlimit all;

	if (getrlimit(RLIMIT_NOFILE, ret_before) < 0)
		return false;
	all = *ret_before;
	all.rlim_cur = all.rlim_max;
	return setrlimit(RLIMIT_NOFILE, &all) == 0;
}
