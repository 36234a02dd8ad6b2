/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Who wrote past the kernel's cache, and may not have his answer yet: as long the kernel must not
 * take the file's size from what others are told (README.md, "Levers").
 *
 * Each such write of a view gets a number, which its vnode keeps with who wrote; and for each
 * thread that asks anything the number is kept that was the last one then. Who has asked again
 * after his write has his answer. A thread whose place in `heard` another one took is taken for one
 * that has asked nothing, and the clock decides.
 */

#include "fs/view_internal.h"
#include "store/base/util.h"

/*
 * So long after a write was handled the kernel may not have taken its answer: who wrote may have to
 * wait for a CPU before. With a sync the answer itself comes late. Who waits longer is not waited
 * for (README.md). A close says more than a time would, but the kernel tells of none once an open
 * was answered by ENOSYS (no-open).
 */
#define TAKEN_MS 1000
#define SYNC_MS 60000

static uint32_t now_ms(void)
{
	return (uint32_t)(now_ns() / 1000000);
}

int vnode_bind_to_write(struct view *v, uint64_t node, const struct past_cache *past,
			struct bound *ret)
{
	LOCK_GUARD(&v->table_lock);
	struct vnode *n;
	int r;

	r = vnode_bind_locked(v, node, true, ret);
	if (r < 0 || !past)
		return r;
	n = vnode_by_node(v, node);
	n->writer = past->thread;
	n->write = v->writes + 1 ? v->writes + 1 : 1;
	__atomic_store_n(&v->writes, n->write, __ATOMIC_RELAXED);
	n->taken_ms = now_ms() + (past->sync ? SYNC_MS : TAKEN_MS);
	return 0;
}

void vnode_was_written(struct view *v, struct vnode *n)
{
	n->write = v->writes = 1;
	n->writer = 0;
	n->taken_ms = now_ms() + TAKEN_MS;
}

void vnode_has_new_mode(struct view *v, uint64_t node)
{
	LOCK_GUARD(&v->table_lock);
	struct vnode *n = vnode_by_node(v, node);

	if (!n)
		return;
	n->new_mode = true;
	vnode_save(v, n); /* before the change's record is there, so none is missed after a kill */
}

static _Thread_local int32_t asker;

int32_t view_asker(void)
{
	return asker;
}

void view_hears(struct view *v, int32_t thread)
{
	uint64_t heard = (uint64_t)(uint32_t)thread << 32;

	asker = thread;
	heard |= __atomic_load_n(&v->writes, __ATOMIC_RELAXED);
	if (thread != 0)
		atomic_store_explicit(&v->heard[(uint32_t)thread % HEARD], heard,
				      memory_order_relaxed);
}

/* Has it asked something since? Then it has its answer. table_lock held. */
static bool has_gone_on(struct view *v, const struct vnode *n)
{
	uint64_t heard = atomic_load_explicit(&v->heard[(uint32_t)n->writer % HEARD],
					      memory_order_relaxed);

	return n->writer != 0 && heard >> 32 == (uint32_t)n->writer &&
	       (int32_t)((uint32_t)heard - n->write) >= 0;
}

bool view_is_written(struct view *v, uint64_t node)
{
	if (__atomic_load_n(&v->writes, __ATOMIC_RELAXED) == 0)
		return false; /* nobody ever did */
	LOCK_GUARD(&v->table_lock);
	const struct vnode *n = vnode_by_node(v, node);

	return n && n->write && !n->new_mode &&
	       n->taken_ms - now_ms() - 1 < SYNC_MS && /* else over, 24 days or more ago as well */
	       !has_gone_on(v, n);
}
