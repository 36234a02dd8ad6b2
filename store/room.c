/* SPDX-License-Identifier: Apache-2.0 */

/* What the disk has free, also where it counts late. */

#include "store/room.h"

#include "store/base/os.h"
#include "store/base/util.h"

/*
 * What others have removed is to be seen by who is refused; but not at each try: a transaction of
 * btrfs takes some 10 ms.
 */
#define SETTLE_NS UINT64_C(1000000000)

void room_init(struct room *m, int dir_fd)
{
	m->dir_fd = dir_fd;
	/* Of those that are not known the worst is believed. */
	m->counts_late = os_overwrites(dir_fd) == OS_ELSEWHERE;
	atomic_init(&m->uncounted, 0);
	atomic_init(&m->settled_ns, 0);
}

int room_ask(struct room *m, uint64_t need, uint64_t *ret_bytes)
{
	uint64_t uncounted = atomic_load(&m->uncounted), now;
	int r = os_free_bytes(m->dir_fd, ret_bytes);

	if (r < 0 || !m->counts_late || *ret_bytes >= need + uncounted)
		return r;
	now = now_ns();
	if (uncounted == 0 && now - atomic_load(&m->settled_ns) < SETTLE_NS)
		return 0;
	atomic_store(&m->settled_ns, now);
	/* Whose bytes could not be written hears that by his own sync. */
	if (os_syncfs(m->dir_fd) == 0)
		atomic_fetch_sub(&m->uncounted, uncounted);
	return os_free_bytes(m->dir_fd, ret_bytes);
}

void room_wrote(struct room *m, uint64_t bytes)
{
	if (m->counts_late)
		atomic_fetch_add_explicit(&m->uncounted, bytes, memory_order_relaxed);
}
