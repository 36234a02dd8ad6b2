/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Going on with the node ids of a former process, from what its memo has of them (memo.h, K1, K2
 * and K5; V7).
 *
 * Each node id is bound again to its object in the current realm, or to that in the realm of a
 * state that was left: those are made anew from the snapshots that they began with. What was
 * written in them is gone; where it was, or where the snapshot is gone, a realm without a tree
 * stands, in which files cannot be read and directories are dead.
 */

#include <errno.h>

#include "fs/notes.h"
#include "fs/view_internal.h"
#include "store/base/err.h"
#include "store/base/os.h"
#include "store/base/util.h"

/* The realm that began with a snapshot; its tree is NULL when that is gone. */
static int find_realm(struct view *v, uint64_t snap, struct realm **list, size_t n,
		      struct realm **ret)
{
	_cleanup_(root_unrefp) struct root *root = NULL;
	struct realm *realm;
	struct snap_info info;
	int r;

	for (size_t i = 0; i < n; i++)
		if (list[i]->snap == snap) {
			*ret = list[i];
			return EXISTS;
		}
	r = snap_get(v->store, snap, &info);
	if (r >= 0)
		r = snap_root(v->store, snap, &root);
	if (r >= 0)
		r = realm_new(v, root, info.lineage, &realm);
	if (r == -ENOMEM)
		return r;
	if (r < 0) {
		realm = os_calloc(1, sizeof(*realm));
		if (!realm)
			return -ENOMEM;
		realm->refs = 1;
		realm_list(v, realm);
	}
	realm_began_with(v, realm, snap); /* also of one that cannot be read now */
	*ret = realm;
	return 0;
}

static int resume_one(struct view *v, const struct memo_node *m, struct realm *realm)
{
	struct vnode *n = os_calloc(1, sizeof(*n));
	uint16_t flags = atomic_load(&m->flags);

	if (!n)
		return -ENOMEM;
	n->node = atomic_load(&m->node);
	n->ino = atomic_load(&m->ino);
	n->nlookup = atomic_load(&m->nlookup);
	n->type = atomic_load(&m->type);
	n->orphan = flags & MEMO_ORPHAN;
	n->adopted = flags & MEMO_ADOPTED;
	n->removed = flags & MEMO_REMOVED;
	n->changed = flags & MEMO_CHANGED;
	n->displaced = flags & MEMO_DISPLACED;
	n->new_mode = flags & MEMO_NEW_MODE;
	n->told = TOLD_OTHERS; /* by the former process, for all we know */
	if (S_ISREG(n->type))
		vnode_was_written(v, n);
	if (flags & MEMO_OPENED) {
		uint64_t opened = atomic_load(&v->memo->opened[(uint32_t)n->node]);

		n->opens = (uint32_t)opened;
		n->backing = (int32_t)(opened >> 32);
	}
	v->n_displaced += n->displaced;
	v->n_removed += n->removed;
	vnode_set_realm(v, n, realm);
	if ((flags & MEMO_HASHED) && !vnode_by_ino(v, n->ino))
		vnode_hash(v, n);
	v->slots[(uint32_t)n->node] = n;
	/* after a switch that was not told, the kernel is told all, as by an epoch */
	if ((flags & MEMO_DEAD) && !v->untold)
		return vnode_dies(v, n); /* K1: what is dead is saved as dead, or not at all */
	vnode_save(v, n);
	return 0;
}

/* K5: its record is there, and nobody knows how many of the nodes' records followed. */
static void finish_switch(struct memo *memo)
{
	struct memo_head *h = memo->head;
	uint64_t left = atomic_load(&h->switch_journal.id);

	if (atomic_load(&h->switch_state) != MEMO_DONE)
		return;
	for (uint32_t i = 1; left && i < h->n_slots; i++)
		if (atomic_load(&memo->nodes[i].node) && !atomic_load(&memo->nodes[i].base))
			atomic_store(&memo->nodes[i].base, left);
	atomic_store(&h->target, h->switched.target);
	atomic_store(&h->switch_state, MEMO_SWITCHED);
}

/* The realms of the states before the current one; a reference to each. */
struct former {
	struct realm **realms; /* owned */
	size_t n, cap;
};

/* One slot: its vnode, if it has a node id that counts, or else it is free. */
static int resume_slot(struct view *v, uint32_t slot, struct former *former)
{
	struct memo_node *m = &v->memo->nodes[slot];
	uint64_t node = atomic_load(&m->node), base = atomic_load(&m->base);
	struct realm *realm = v->cur;
	int r;

	v->serials[slot] = atomic_load(&m->serial);
	if (node && (uint32_t)node != slot)
		return -ERR_MEMO;
	if (node && (node >> 32 != v->serials[slot] ||
		     (!atomic_load(&m->nlookup) && node != ROOT_NODE))) {
		/* It was about to go. Who goes without a name is purged (view_purge_orphans). */
		if (node >> 32 == v->serials[slot])
			v->serials[slot]++;
		node = 0;
		vnode_save_free(v, slot);
	}
	if (!node) {
		if (v->serials[slot])
			v->free_slots[v->n_free++] = slot;
		return 0;
	}
	if (node == ROOT_NODE) /* it is in each state, also when that one is gone */
		base = 0;
	if (base && (atomic_load(&m->flags) & MEMO_CHANGED))
		base = UINT64_MAX; /* no snapshot has that id */
	if (base) {
		r = os_grow(&former->realms, &former->cap, former->n + 1, sizeof(*former->realms));
		if (r < 0)
			return r;
		r = find_realm(v, base, former->realms, former->n, &realm);
		if (r < 0)
			return r;
		if (r == 0)
			former->realms[former->n++] = realm;
	}
	return resume_one(v, m, realm);
}

/* Whoever asks for anything begins there. */
static bool has_root(const struct view *v)
{
	const struct vnode *n = v->n_slots > ROOT_NODE ? v->slots[ROOT_NODE] : NULL;

	return n && n->node == ROOT_NODE && n->ino == ROOT_INO && S_ISDIR(n->type) && n->hashed;
}

static const struct notes every_name = { .all = true };

int vnodes_resume(struct view *v)
{
	struct former former = { 0 };
	uint32_t n_slots;
	int r;

	finish_switch(v->memo);
	v->untold = atomic_load(&v->memo->head->switch_state) == MEMO_SWITCHED;
	if (v->untold)
		telling_begins(v, &every_name);
	n_slots = v->memo->head->n_slots;
	r = vnodes_make_table(v, n_slots);
	for (; r >= 0 && v->n_slots < n_slots; v->n_slots++)
		r = resume_slot(v, v->n_slots, &former);
	while (former.n > 0)
		realm_unref(v, former.realms[--former.n]); /* from here on they are the vnodes' */
	free(former.realms);
	return r < 0 ? r : has_root(v) ? 0 : -ERR_MEMO;
}
