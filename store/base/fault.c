/* SPDX-License-Identifier: Apache-2.0 */
#include "store/base/fault.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/stat.h>

/*
 * The one piece of process-wide state in the library: a test wants to fail "the n-th call of
 * anybody", which no handle could carry. Arming while other threads run is allowed; they see
 * the new numbers at their next call.
 */

static atomic_bool armed;
static atomic_int ticks, first, last; /* calls numbered first..last-1 fail */
static atomic_int fault_error;

static struct {
	atomic_bool there; /* set last */
	uint64_t inode, off, end;
} sector;

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

void fault_bad_sector(uint64_t inode, uint64_t off, uint64_t len)
{
	atomic_store(&sector.there, false);
	sector.inode = inode;
	sector.off = off;
	sector.end = off + len;
	atomic_store(&sector.there, len > 0);
}

int fault_read(int fd, uint64_t off, uint64_t len)
{
	struct stat st;

	if (!atomic_load_explicit(&sector.there, memory_order_acquire))
		return 0;
	if (off >= sector.end || off + len <= sector.off)
		return 0;
	return fstat(fd, &st) == 0 && st.st_ino == sector.inode ? -EIO : 0;
}

static atomic_bool no_holes;

void fault_no_holes(bool on)
{
	atomic_store(&no_holes, on);
}

bool fault_holes(void)
{
	return !atomic_load_explicit(&no_holes, memory_order_relaxed);
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
