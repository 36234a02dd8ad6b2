/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What a view lets go of when the store's nodes take too much memory (store.h, store_keeper): of
 * its trees and of the states that its realms began from, whatever is sealed. Nothing changes but
 * that it is loaded again where it is wanted.
 *
 * That needs its chunks, so gc must know of each such state: a branch's and a snapshot's it knows,
 * realms pin theirs. The state that the view began from at the last restore (cur_base, V4) is
 * nobody's any more once its snapshot was dropped, so it is pinned as well, but only as long as
 * somebody may ask for it (V4), as its space cannot be freed meanwhile.
 */

#include "fs/view_internal.h"
#include "store/base/util.h"

static void bare_pinned(struct view *v, struct shed *shed, struct root **root)
{
	struct root *bare;

	if (root_bare(*root, &bare) != 0)
		return; /* also without memory: then it stays */
	if (store_pin_root(v->store, bare) < 0) {
		root_unref(bare);
		return;
	}
	store_unpin_root(v->store, *root);
	shed_root(shed, root, bare);
}

static void bare_cur_base(struct view *v, struct shed *shed)
{
	struct root *bare;

	if (v->base_pinned)
		bare_pinned(v, shed, &v->cur_base);
	else if (root_bare(v->cur_base, &bare) == 0)
		shed_root(shed, &v->cur_base, bare);
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
			bare_pinned(v, &shed, &realm->base);
	}
	bare_cur_base(v, &shed);
}
