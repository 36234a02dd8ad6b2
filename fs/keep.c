/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What a view lets go of when the store's nodes take too much memory (store.h, store_keeper): of
 * its trees and of the states that its realms began from, whatever is sealed. Nothing changes but
 * that it is loaded again where it is wanted.
 *
 * That needs its chunks, so gc must know of each such state: a branch's and a snapshot's it knows,
 * realms pin theirs. Only the state that the view began from at the last restore (cur_base, V4) is
 * nobody's any more once its snapshot was dropped; it is pinned when its nodes go, but only if
 * somebody may still ask for it, as its space could not be freed meanwhile.
 */

#include "fs/view_internal.h"
#include "store/base/util.h"
#include "store/chunk.h"

/* True: done, and what stands there now is pinned. */
static bool bare_pinned(struct view *v, struct shed *shed, struct root **root, bool was_pinned)
{
	struct root *bare;

	if (root_bare(*root, &bare) != 0)
		return false; /* also without memory: then it stays */
	if (store_pin_root(v->store, bare) < 0) {
		root_unref(bare);
		return false;
	}
	if (was_pinned)
		store_unpin_root(v->store, *root);
	shed_root(shed, root, bare);
	return true;
}

static bool is_stored(struct view *v, const struct root *root)
{
	struct name name;

	/* A node is a chunk as long as one above it is. */
	return root_name(root, &name) == 0 && chunk_find(store_chunks(v->store), &name) == 0;
}

static void bare_cur_base(struct view *v, struct shed *shed)
{
	bool wanted = v->realms->next; /* V4: somebody may be bound to an earlier state */
	struct root *bare;

	if (v->base_pinned || (wanted && is_stored(v, v->cur_base))) {
		if (bare_pinned(v, shed, &v->cur_base, v->base_pinned))
			v->base_pinned = true;
	} else if (!wanted && root_bare(v->cur_base, &bare) == 0) {
		shed_root(shed, &v->cur_base, bare);
	}
}

void view_let_go(void *arg)
{
	struct view *v = arg;
	_cleanup_(shed_release) struct shed shed = { 0 }; /* after both locks */

	WRITE_GUARD(v->lock);
	LOCK_GUARD(&v->table_lock);
	for (struct realm *realm = v->realms; realm; realm = realm->next) {
		if (realm->tree) /* one whose state was lost has none */
			shed_tree(&shed, realm->tree);
		if (realm->base)
			bare_pinned(v, &shed, &realm->base, true);
	}
	bare_cur_base(v, &shed);
}
