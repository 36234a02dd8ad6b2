/* SPDX-License-Identifier: Apache-2.0 */

/* What the disk has free, also where it counts late. */

#include "store/room.h"

#include "store/base/os.h"
#include "store/base/util.h"

/*
 * What others have removed is to be seen by who is refused; but not at each try: a transaction of
 * btrfs takes some 10 ms. What we have removed (room_freed) is seen at the next one.
 */
#define SETTLE_NS UINT64_C(1000000000)

void room_init(struct room *m, int dir_fd)
{
	m->dir_fd = dir_fd;
	/* Of those that are not known the worst is believed. */
	m->counts_late = os_overwrites(dir_fd) == OS_ELSEWHERE;
	atomic_init(&m->wrote, 0);
	atomic_init(&m->settled, 0);
	atomic_init(&m->settled_ns, 0);
}

/* Others may ask, and have written, meanwhile. */
static void has_settled(struct room *m, uint64_t wrote)
{
	uint64_t settled = atomic_load(&m->settled);

	while (settled < wrote && !atomic_compare_exchange_weak(&m->settled, &settled, wrote))
		;
}

int room_ask(struct room *m, uint64_t need, uint64_t *ret_bytes)
{
	const uint64_t settled = atomic_load(&m->settled); /* first, so it is not the larger one */
	const uint64_t wrote = atomic_load(&m->wrote);
	int r = os_free_bytes(m->dir_fd, ret_bytes);
	uint64_t now;

	if (r < 0 || !m->counts_late || *ret_bytes >= need + (wrote - settled))
		return r;
	now = now_ns();
	if (wrote == settled && now - atomic_load(&m->settled_ns) < SETTLE_NS)
		return 0;
	atomic_store(&m->settled_ns, now);
	/* Whose bytes could not be written hears that by his own sync. */
	if (os_syncfs(m->dir_fd) == 0)
		has_settled(m, wrote);
	return os_free_bytes(m->dir_fd, ret_bytes);
}

void room_wrote(struct room *m, uint64_t bytes)
{
	if (m->counts_late)
		atomic_fetch_add_explicit(&m->wrote, bytes, memory_order_relaxed);
}

void room_freed(struct room *m)
{
	atomic_store_explicit(&m->settled_ns, 0, memory_order_release);
}
