/* SPDX-License-Identifier: Apache-2.0 */
#include "store/base/fault.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * The one piece of process-wide state in the library: a test wants to fail "the n-th call of
 * anybody", which no handle could carry. Arming while other threads run is allowed; they see
 * the new numbers at their next call.
 */

static atomic_bool armed;
static atomic_int ticks, first, last; /* calls numbered first..last-1 fail */
static atomic_int fault_error;

void fault_arm(int countdown, int repeat, int error)
{
	int64_t end = (int64_t)countdown + repeat;

	atomic_store(&armed, false);
	atomic_store(&ticks, 0);
	atomic_store(&first, countdown);
	atomic_store(&last, end > INT32_MAX ? INT32_MAX : (int)end);
	atomic_store(&fault_error, error);
	atomic_store(&armed, true);
}

void fault_disarm(void)
{
	atomic_store(&armed, false);
}

int fault_ticks(void)
{
	return atomic_load(&ticks);
}

int fault_tick(void)
{
	int n;

	if (!atomic_load_explicit(&armed, memory_order_relaxed))
		return 0;

	n = atomic_fetch_add(&ticks, 1);
	if (n < atomic_load(&first) || n >= atomic_load(&last))
		return 0;
	return -atomic_load(&fault_error);
}
