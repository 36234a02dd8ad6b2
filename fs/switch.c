/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Switching a view to another state under the kernel's warm caches.
 *
 * What was cached stays valid unless it differs, so a restore has two jobs: bind node ids to the
 * new state, and tell the kernel which names and attributes to forget. Two modes:
 *
 *  - by names: the difference of the two roots is small (see NAMES_MAX). The current
 *    realm goes on; each file that differs is retired to a realm of the state that was left, and
 *    the kernel is told its names; changed names and directories likewise. Everything else, page
 *    cache included, stays cached; mounts inside the view survive.
 *  - by epoch: the difference is large, or the target is of another lineage. A new realm becomes
 *    current, all node ids become unsettled (V4), and one INC_EPOCH makes the kernel look up each
 *    name again when it is next used. Attributes of directories are not covered by the epoch, so
 *    each directory that the kernel knows gets a notification.
 *  Where the kernel has no INC_EPOCH (before 6.16) the first mode serves any size; of another
 *  lineage, each known name is told (note_every_name).
 *
 * Why no stale name can stay behind, given that requests are answered while we notify (S2, S4 and
 * S5, about the telling itself, are in notes.c):
 *  S1  The swap happens under the view's write lock: a reply is computed wholly before or after.
 *  S3  A revalidating LOOKUP holds no lock; it can only refresh a dentry, and a name that
 *      differs has its dentry unhashed (not merely expired) unless the same directory is behind it
 *      before and after, in which case a refresh is right. Its attributes are discarded by the
 *      kernel when an INVAL_INODE came between. The name of a file that was retired is expired as
 *      well (it costs a third: nothing is evicted while the caller waits): its node id is never
 *      the answer again, and the name of a file's current node id is never expired, so no
 *      revalidation can be in flight; unless an epoch made it old: such files are *adopted*, and
 *      their names are unhashed. (A directory that is elsewhere in the target is
 *      expired, too, so that a shell in it has a path until the new name is walked (moved.c); a
 *      revalidation that was in flight across two restores could keep its old name a while longer.)
 *
 * Files that differ get a new node id, so descriptors and mappings keep the old bytes and never
 * show a mixture; directories keep theirs, so that working directories follow (V5).
 */

#include <dirent.h>
#include <errno.h>
#include <limits.h>

#include "fs/format.h"
#include "fs/notes.h"
#include "fs/view_internal.h"
#include "store/base/err.h"
#include "store/base/os.h"
#include "store/base/util.h"

/*
 * Telling one name costs about 3 us with all that goes with it; an epoch costs 5 us now, but every
 * name that the kernel has is thrown out and looked up again when it is next walked by (15 us each,
 * and all below a directory at once: the first `cd` into 20,000 names was seen to take 300 ms), and
 * closed files are read again. So names are told while that is less than what they would cost: up
 * to a quarter of those that the kernel knows, and always a few ms' worth.
 */
#define NAMES_MAX 2000
#define NAMES_SHARE 4

/*
 * What a switch will do, made before anything changes: all that can fail fails here. The two
 * commit functions cannot.
 */
struct plan {
	struct view *view;
	struct root *now; /* the target; owned */
	uint64_t lineage; /* of the target */
	struct fs old_fs; /* the state that is left; owns its tree */
	struct fs new_fs; /* the target, likewise */
	struct realm *limbo; /* of the state that is left, for what stays behind; owned, or NULL */
	enum restore_mode mode;
	bool find_moved; /* of all that the kernel knows: the difference was not seen through */
	struct notes notes;
	struct moved moved;
	uint64_t *retire; /* inode numbers of files that differ and that the kernel knows */
	size_t n_retire, cap_retire;
	uint64_t *lost; /* directories that the kernel knows and the target lacks */
	size_t n_lost, cap_lost;
	size_t n_next; /* of them, first: where the target has another directory at their path */
	uint64_t *found; /* directories that were dead and that the target has */
	size_t n_found, cap_found;
	uint64_t differ, limit; /* objects; names count as well */
	uint64_t changed; /* of them, those with a name */
	uint64_t last_ino;
};

static void plan_release(struct plan *p)
{
	notes_release(&p->notes);
	moved_release(&p->moved);
	free(p->retire);
	free(p->lost);
	free(p->found);
	tree_free(p->old_fs.tree);
	tree_free(p->new_fs.tree);
	if (p->now)
		root_unref(p->now);
}

static int list_add(uint64_t **list, size_t *n, size_t *cap, uint64_t value)
{
	if (*n && (*list)[*n - 1] == value)
		return 0;
	if (os_grow(list, cap, *n + 1, sizeof(**list)) < 0)
		return -ENOMEM;
	(*list)[(*n)++] = value;
	return 0;
}

static struct vnode *known(struct view *v, uint64_t ino)
{
	struct vnode *n = vnode_by_ino(v, ino);

	return n && n->realm == v->cur ? n : NULL;
}

static int plan_dirent(struct plan *p, const struct key *k, const struct val *old_val,
		       const struct val *new_val)
{
	struct vnode *dir = known(p->view, k->a);
	struct dirent_item item;
	int r;

	/* A replaced entry is two: positions are hashes of names, so the names may differ. */
	for (int old = 0; old < 2; old++) {
		const struct val *val = old ? old_val : new_val;

		if (!val)
			continue;
		r = dirent_decode(val, &item);
		if (r < 0)
			return r;
		/* The record of a file that lost a name differs: plan_retire tells them all. */
		if (old && item.type != DT_DIR)
			continue;
		r = notes_add_name(&p->notes,
				   (struct name_note){
					   .old_node = dir ? dir->node : 0,
					   .dir = k->a,
					   .child = old ? item.ino : 0,
					   .len = (uint32_t)item.len,
				   },
				   item.name);
		if (r < 0)
			return r;
	}
	return 0;
}

struct retiring {
	struct plan *plan;
	uint64_t node; /* of the file whose names are listed */
	bool expire;   /* S3 */
};

static int note_name_of_retired(void *arg, uint64_t parent, const char *name, size_t len)
{
	struct retiring *ret = arg;
	struct plan *p = ret->plan;
	struct vnode *dir = known(p->view, parent);

	if (!dir)
		return 0; /* the kernel does not know the directory, hence not the name */
	return notes_add_name(&p->notes,
			      (struct name_note){ .old_node = dir->node,
						  .dir = parent,
						  .retired = ret->node,
						  .expire = ret->expire,
						  .len = (uint32_t)len },
			      name);
}

/*
 * A file that differs, or a removed directory (V5). Its record comes first of its items, and mostly
 * is the one that differs.
 */
static int plan_retire(struct plan *p, const struct vnode *n, const struct key *k,
		       const struct val *old_val)
{
	struct retiring arg = { .plan = p, .node = n->node, .expire = !n->adopted };
	struct inode i;
	int r;

	if (p->n_retire && p->retire[p->n_retire - 1] == n->ino)
		return 0;
	r = list_add(&p->retire, &p->n_retire, &p->cap_retire, n->ino);
	if (r < 0)
		return r;
	if (k->t == ITEM_INODE && old_val && inode_decode(n->ino, old_val, &i) >= 0)
		r = fs_names_of(&p->old_fs, &i, note_name_of_retired, &arg);
	else
		r = fs_names(&p->old_fs, n->ino, note_name_of_retired, &arg);
	return r == -ENOENT ? 0 : r; /* orphans have none */
}

/* A directory that the kernel knows, and that differs. */
static int plan_dir(struct plan *p, const struct vnode *n, const struct key *k,
		    const struct val *old_val, const struct val *new_val)
{
	struct inode_note note = { .node = n->node, .rights = k->t == ITEM_XATTR };
	struct inode before, after;

	/* Of one that the target lacks the name differs, too: that is told. */
	if (k->t == ITEM_INODE && old_val && new_val &&
	    inode_decode(n->ino, old_val, &before) >= 0) {
		const struct vnode *parent = known(p->view, before.parent);

		note.parent = parent ? parent->node : 0;
		note.rights = inode_decode(n->ino, new_val, &after) < 0 ||
			      before.mode != after.mode || before.uid != after.uid ||
			      before.gid != after.gid;
	}
	return notes_add_inode(&p->notes, note);
}

/* A directory that the kernel has had a name of, wherever it is settled. */
static int plan_moved(struct plan *p, const struct vnode *n, const struct val *old_val,
		      const struct val *new_val)
{
	struct inode before, after;

	if (n->realm->lineage != p->lineage ||
	    (old_val && inode_decode(n->ino, old_val, &before) < 0) ||
	    inode_decode(n->ino, new_val, &after) < 0)
		return 0;
	return moved_compare(&p->moved, old_val ? &before : NULL, &after);
}

static bool has_name(uint64_t ino, const struct val *record)
{
	struct inode i;

	return record && (inode_decode(ino, record, &i) < 0 || i.nlink > 0);
}

/*
 * Nobody sees what has no name, before and after: it came and went with who has it open, and a
 * restore of nothing else has found nothing to change. (Whatever of it differs, its record does.)
 */
static bool is_seen(const struct key *k, const struct val *old_val, const struct val *new_val)
{
	return k->t != ITEM_INODE || has_name(k->a, old_val) || has_name(k->a, new_val);
}

static int plan_key(void *arg, const struct key *k, const struct val *old_val,
		    const struct val *new_val)
{
	struct plan *p = arg;
	struct vnode *n;
	int r;

	if (k->a == 0)
		return 0; /* the filesystem's own: orphans */
	if (k->a != p->last_ino) {
		p->last_ino = k->a;
		p->differ++;
		p->changed += is_seen(k, old_val, new_val);
	}
	/* Names are counted too: each is a notification. */
	if (p->differ + p->notes.n_names > p->limit)
		return END;

	if (k->t == ITEM_DIRENT) {
		r = plan_dirent(p, k, old_val, new_val);
		if (r < 0)
			return r;
	}

	n = vnode_by_ino(p->view, k->a);
	if (!n)
		return 0;
	if (S_ISDIR(n->type) && k->t == ITEM_INODE && new_val) {
		r = plan_moved(p, n, old_val, new_val);
		if (r < 0)
			return r;
	}
	if (n->realm != p->view->cur)
		/* Unsettled files have names that are unsettled too (by epoch); nothing to tell. */
		return S_ISDIR(n->type) && k->t == ITEM_INODE && new_val ?
			       list_add(&p->found, &p->n_found, &p->cap_found, n->ino) :
			       0;
	if (!S_ISDIR(n->type) || n->removed)
		return plan_retire(p, n, k, old_val);
	if (k->t == ITEM_INODE && !new_val) {
		r = list_add(&p->lost, &p->n_lost, &p->cap_lost, n->ino);
		if (r < 0)
			return r;
	}
	return plan_dir(p, n, k, old_val, new_val);
}

struct appearing {
	struct plan *plan;
	uint64_t node; /* of the directory whose names these are */
};

static int note_appearing(void *arg, const char *name, size_t len, uint64_t ino, unsigned type,
			  uint64_t next_cookie)
{
	struct appearing *a = arg;

	return notes_add_name(&a->plan->notes,
			      (struct name_note){ .old_node = a->node, .len = (uint32_t)len },
			      name);
}

static int note_all_in(struct plan *p, const struct vnode *n, uint64_t ino)
{
	struct appearing arg = { .plan = p, .node = n->node };

	return fs_readdir(&p->new_fs, ino, 2 /* behind ".." */, note_appearing, &arg);
}

/* The directory that n will stand for, as vnode_settle binds it. ABSENT: none. */
static int find_next(struct plan *p, const struct vnode *n, struct inode *ret)
{
	struct fs fs = { .store = p->view->store, .tree = n->realm->tree };
	_cleanup_free_ char *path = NULL;
	size_t len;
	int r = -ENOENT;

	if (n->realm->lineage == p->lineage)
		r = fs_stat(&p->new_fs, n->ino, ret);
	if (r >= 0 && !ret->nlink)
		r = -ENOENT; /* removed there, and open as it was checkpointed */
	if (r == -ENOENT && fs.tree) {
		r = fs_path(&fs, n->ino, &path, &len);
		if (r >= 0)
			r = fs_resolve(&p->new_fs, path, len, ret);
	}
	if (r == -ENOENT || r == -ENOTDIR || (r >= 0 && !inode_is_dir(ret)))
		return ABSENT;
	return MIN(r, 0);
}

/* One that will be another, by its path, is known to the plan by neither's number. */
static int plan_other(struct plan *p, const struct vnode *n, const struct inode *next)
{
	return next->ino == n->ino ? 0 : moved_compare(&p->moved, NULL, next);
}

/*
 * The names that a directory will have, which the kernel may know not to be there: of those no
 * table of ours knows.
 */
static int note_every_appearing(struct plan *p, const struct vnode *n)
{
	struct inode i;
	int r = find_next(p, n, &i);

	if (r == 0)
		r = plan_other(p, n, &i);
	return r == 0 ? note_all_in(p, n, i.ino) : MIN(r, 0);
}

/*
 * Dead ones (V5) may come back. What was found out of them while they were dead, or is of the
 * directory they were, is cached: that names are not there, and attributes.
 */
static int plan_dead(struct plan *p)
{
	struct view *v = p->view;

	for (size_t i = 0; i < v->n_dead; i++) {
		const struct vnode *n = v->dead[i];
		int r;

		if (!n->hashed)
			continue;
		r = note_every_appearing(p, n);
		if (r == 0)
			r = list_add(&p->found, &p->n_found, &p->cap_found, n->ino);
		if (r < 0)
			return r;
	}
	return p->differ + p->notes.n_names > p->limit ? END : 0;
}

/*
 * One that the target lacks will stand for what has its path there (V5). The names of a new
 * directory differ, all of them; those of one that was elsewhere do not.
 */
static int plan_lost(struct plan *p)
{
	for (size_t i = 0; i < p->n_lost; i++) {
		const struct vnode *n = known(p->view, p->lost[i]);
		struct inode next, before;
		int r = find_next(p, n, &next);

		if (r == ABSENT)
			continue;
		if (r == 0 && fs_stat(&p->old_fs, next.ino, &before) >= 0)
			r = note_all_in(p, n, next.ino);
		if (r == 0)
			r = plan_other(p, n, &next);
		if (r < 0)
			return r;
		p->lost[i] = p->lost[p->n_next];
		p->lost[p->n_next++] = n->ino;
	}
	return 0;
}

/* Names mode: the notes, and what they need. END: more than the limit differs. */
static int plan_names(struct plan *p, struct root *left, uint64_t left_lineage)
{
	int r;

	r = tree_new(store_nodes(p->view->store), p->now, &p->new_fs.tree);
	if (r < 0)
		return r;
	r = root_diff(left, p->now, &KEY_MIN, &KEY_MAX, plan_key, p);
	if (r == 0)
		r = plan_lost(p);
	if (r == 0)
		r = plan_dead(p);
	if (r != 0)
		return r;
	/* What is cached of a directory that comes back (V5) is what a removed one has. */
	for (size_t i = 0; i < p->n_found; i++) {
		struct vnode *n = vnode_by_ino(p->view, p->found[i]);

		r = notes_add_inode(&p->notes,
				    (struct inode_note){ .node = n->node, .rights = true });
		if (r < 0)
			return r;
	}
	for (size_t i = 0; i < p->notes.n_names; i++) {
		struct name_note *note = &p->notes.names[i];
		struct inode now;

		if (note->child) /* expired, if it lives on elsewhere */
			note->expire = fs_stat(&p->new_fs, note->child, &now) >= 0;
	}
	r = vnodes_dead_room(p->view, p->n_lost + p->n_found);
	if (r < 0)
		return r;
	if (p->n_retire || p->n_lost)
		return realm_new(p->view, left, left_lineage, &p->limbo);
	return 0;
}

/* Retires what differs, rebinds directories. */
static void commit_names(struct plan *p)
{
	struct view *v = p->view;

	for (size_t i = 0; i < p->n_retire; i++) {
		struct vnode *n = known(v, p->retire[i]);

		vnode_unhash(v, n);
		vnode_set_realm(v, n, p->limbo);
		vnode_save(v, n);
	}
	for (size_t i = 0; i < p->n_lost; i++) {
		struct vnode *n = known(v, p->lost[i]);

		vnode_set_realm(v, n, p->limbo); /* vnode_rises saves it */
	}
	/*
	 * Parents before children is not needed: paths are looked up in the state that was left.
	 * When settling fails, the next request that needs the directory tries again (V4).
	 */
	for (size_t i = 0; i < p->n_lost + p->n_found; i++) {
		bool lost = i < p->n_lost;
		struct vnode *n = vnode_by_ino(v, lost ? p->lost[i] : p->found[i - p->n_lost]);
		bool gone = lost && i >= p->n_next;

		if (n)
			vnode_rises(v, n);
		if (n && (gone || vnode_settle(v, n) == 0) && n->hashed && n->realm != v->cur)
			(void)vnode_dies(v, n); /* there is room: plan_names */
	}
	for (size_t i = 0; i < p->notes.n_names; i++) {
		struct vnode *dir = known(v, p->notes.names[i].dir);

		p->notes.names[i].new_node = dir ? dir->node : 0;
	}
}

/* Epoch mode: limbo's struct becomes the current realm, and the current one gets its state. */
static void commit_epoch(struct plan *p)
{
	struct view *v = p->view;
	struct realm *old = v->cur;
	struct realm *cur = TAKE_PTR(p->limbo);
	struct tree *branch_tree = old->tree;

	old->tree = cur->tree;
	old->owns_tree = true;
	old->base = cur->base;
	old->lineage = cur->lineage;
	cur->tree = branch_tree;
	cur->owns_tree = false;
	cur->base = NULL;
	cur->lineage = p->lineage;
	old->snap = cur->snap;
	old->needs_snap = cur->needs_snap;
	old->unnamed_lost = cur->unnamed_lost;
	old->left = cur->left;
	cur->snap = 0;
	cur->needs_snap = cur->unnamed_lost = false;
	v->cur = cur;
	vnodes_rise(v);
	for (uint32_t i = 1; v->memo && i < v->n_slots; i++)
		if (v->slots[i] && v->slots[i]->realm == old)
			vnode_save(v, v->slots[i]);
	realm_unref(v, old);
}

/*
 * Without INC_EPOCH each directory is settled at once, as note_every_name expects, or dead. If it
 * were asked for later it would stand for what others made at its path meanwhile, and nobody would
 * tell the names in there that the kernel knows not to be there. Who is settled may leave another
 * one its place in the table: hence again.
 */
static void settle_directories(struct view *v)
{
	bool again, last = false;

	do {
		again = false;
		for (uint32_t i = 1; i < v->n_slots; i++) {
			struct vnode *n = v->slots[i];

			if (!n || !S_ISDIR(n->type) || n->realm == v->cur ||
			    vnode_settle(v, n) < 0)
				continue; /* what fails is tried again by who needs it (V4) */
			if (n->realm == v->cur)
				again = true;
			else if (last && (n->hashed || n->displaced))
				(void)vnode_dies(v, n); /* there is room: plan_make */
		}
		last = !last && !again;
	} while (again || last);
}

/*
 * Without INC_EPOCH, target of another lineage: every name the kernel may have. Files' are only
 * expired; a directory's node id may be the answer before and not after (S3).
 */
static int note_every_name(struct plan *p)
{
	struct view *v = p->view;
	int r = 0;

	if (!p->new_fs.tree)
		r = tree_new(store_nodes(v->store), p->now, &p->new_fs.tree);
	if (r < 0)
		return r;
	for (uint32_t i = 1; i < v->n_slots; i++) {
		struct retiring arg = { .plan = p };
		struct vnode *n = v->slots[i];

		if (!n || !(n->hashed || n->displaced))
			continue;
		if (S_ISDIR(n->type)) {
			r = note_every_appearing(p, n);
			if (r < 0)
				return r;
		}
		if (n->realm != v->cur)
			continue; /* unsettled: told by the restore before */
		arg.node = n->node;
		arg.expire = !S_ISDIR(n->type);
		r = fs_names(&p->old_fs, n->ino, note_name_of_retired, &arg);
		if (r < 0 && r != -ENOENT)
			return r;
	}
	return 0;
}

static int plan_make(struct plan *p, struct root *left)
{
	struct view *v = p->view;
	uint64_t left_lineage = v->branch->lineage;
	bool can_epoch = v->kernel.inc_epoch != NULL;
	int r;

	p->old_fs.store = p->new_fs.store = v->store;
	p->limit = UINT64_MAX;
	if (can_epoch)
		p->limit = v->kernel.names_max ? v->kernel.names_max :
						 MAX(NAMES_MAX, v->n_hashed / NAMES_SHARE);
	r = tree_new(store_nodes(v->store), left, &p->old_fs.tree);
	if (r < 0)
		return r;
	if (p->lineage == left_lineage) {
		p->mode = RESTORE_NAMES;
		r = plan_names(p, left, left_lineage);
		if (r == 0)
			return 0;
	}

	/*
	 * Too much differs, or it is another lineage, or the difference cannot be told (damage, no
	 * memory): all node ids become unsettled, which is always right.
	 */
	p->mode = RESTORE_EPOCH;
	notes_release(&p->notes);
	p->notes = (struct notes){ 0 };
	moved_release(&p->moved);
	p->find_moved = p->lineage == left_lineage && p->new_fs.tree;
	if (!can_epoch) {
		r = note_every_name(p);
		if (r >= 0)
			r = vnodes_dead_room(v, v->n_slots);
		if (r < 0)
			return r;
	}
	return realm_new(v, left, left_lineage, &p->limbo);
}

/* K5: from here on a kill leaves enough to finish the switch. */
static struct journal_receipt *memo_prepare(struct view *v, uint64_t target, const struct plan *p)
{
	struct memo_head *h = v->memo->head;
	struct memo_receipt *request = memo_receipt();

	atomic_store(&h->switch_unique, request ? atomic_load(&request->unique) : 0);
	atomic_store(&h->switch_journal.lsn, 0);
	atomic_store(&h->switch_journal.id, 0);
	h->switched = (struct memo_switch){
		.target = target, .left = v->branch->undo, .changed = p->changed, .mode = p->mode
	};
	atomic_store(&h->switch_state, MEMO_PREPARED);
	return &h->switch_journal;
}

static void memo_switched(struct view *v, uint64_t target)
{
	struct memo_head *h = v->memo->head;

	h->switched.left = v->branch->undo;
	atomic_store(&h->target, target);
	atomic_store(&h->switch_state, MEMO_SWITCHED);
}

/* The kernel knows; the answer may still be sent again. */
static void memo_told(struct view *v)
{
	struct memo_head *h;

	if (!v->memo)
		return;
	h = v->memo->head;
	memo_restored(memo_receipt(), &h->switched, atomic_load(&h->switch_journal.lsn));
	atomic_store(&h->switch_state, MEMO_NO_SWITCH);
}

/* The lock is held for writing. Nothing has changed when it fails. */
static int switch_locked(struct view *v, uint64_t target, struct plan *p, struct restore_info *ret)
{
	_cleanup_(root_unrefp) struct root *left = NULL;
	_cleanup_(root_unrefp) struct root *same = NULL;
	struct journal_receipt unkept = { 0 }, *receipt = &unkept;
	uint64_t left_lineage = v->cur_lineage;
	bool pinned = false; /* the target */
	int r;

	p->view = v;
	r = branch_states_locked(v->branch, target, &left, &p->now, &p->lineage);
	if (r < 0)
		return r;

	LOCK_GUARD(&v->table_lock);
	r = plan_make(p, left);
	if (r >= 0 && v->realms->next) { /* somebody may ask for it when its snapshot is gone */
		r = store_pin_root(v->store, p->now);
		pinned = r >= 0;
	}
	if (r >= 0) {
		if (v->memo)
			receipt = memo_prepare(v, target, p);
		journal_receipt_wanted(receipt);
		r = p->changed == 0 && p->mode == RESTORE_NAMES ?
			    branch_restore_same_locked(v->branch, target, &same) :
			    branch_restore_locked(v->branch, target, &same);
		journal_receipt_wanted(NULL);
	}
	if (r < 0) {
		if (v->memo)
			atomic_store(&v->memo->head->switch_state, MEMO_NO_SWITCH);
		if (pinned)
			store_unpin_root(v->store, p->now);
		if (p->limbo)
			realm_unref(v, TAKE_PTR(p->limbo));
		return r;
	}

	if (p->limbo) /* an empty state is nobody's snapshot, and has no files either */
		realm_began_with(v, p->limbo, receipt->id ? receipt->id : UINT64_MAX);
	view_set_base(v, p->now, pinned, target);
	v->cur_lineage = v->cur->lineage = p->lineage;
	if (v->kernel.inval_entry) {
		p->notes.all = p->mode == RESTORE_EPOCH && v->kernel.inc_epoch;
		telling_begins(v, &p->notes);
	}
	v->switches++;
	if (p->limbo)
		p->limbo->left = v->switches;
	if (p->mode == RESTORE_NAMES)
		commit_names(p);
	else
		commit_epoch(p);
	if (p->lineage != left_lineage)
		vnodes_return(v);
	if (p->mode == RESTORE_EPOCH && !v->kernel.inc_epoch)
		settle_directories(v);
	if (p->limbo)
		realm_unref(v, TAKE_PTR(p->limbo)); /* from here on it is the vnodes' */
	if (v->memo)
		memo_switched(v, target);
	*ret = (struct restore_info){ .left = v->branch->undo,
				      .mode = p->mode,
				      .changed = p->changed };
	return 0;
}

/* No locks held; as all below. */
static int tell_by_epoch(struct view *v)
{
	const struct view_kernel *k = &v->kernel;
	int r = k->inc_epoch(k->arg);
	int s = tell_directories(v);

	if (r >= 0)
		r = k->inc_epoch(k->arg); /* S4 */
	return r < 0 ? r : s;
}

/* After the switch. */
static int tell_kernel(struct view *v, struct plan *p)
{
	int r, s = 0;

	if (!v->kernel.inval_entry)
		return 0; /* nobody has cached anything */
	drop_expired(v); /* of the restore before, if nobody did since: view_tidy */
	if (p->mode == RESTORE_EPOCH && v->kernel.inc_epoch) {
		r = tell_by_epoch(v);
	} else {
		r = notes_send(v, &p->notes);
		if (p->mode == RESTORE_EPOCH)
			s = tell_directories(v);
	}
	telling_ends(v);
	if (p->mode == RESTORE_NAMES) {
		*v->expired = p->notes;
		p->notes = (struct notes){ 0 };
	}
	return r < 0 ? r : s;
}

/*
 * A former process switched, and died before it had told the kernel everything: by epoch, which is
 * right whatever was told. switch_lock held.
 */
static int tell_of_former(struct view *v)
{
	int r;

	if (!v->untold)
		return 0;
	memo_tells(v->memo, true);
	r = tell_by_epoch(v);
	telling_ends(v);
	memo_tells(v->memo, false);
	v->untold = false;
	atomic_store(&v->memo->head->switch_state, MEMO_NO_SWITCH);
	return r;
}

int view_finish_restore(struct view *v)
{
	LOCK_GUARD(&v->switch_lock);

	return tell_of_former(v);
}

/* Was this very restore done before the last process ended? Its answer again. switch_lock held. */
static bool was_restored(struct view *v, uint64_t *ret_id, struct restore_info *ret)
{
	const struct memo_switch *s;

	if (v->kernel.will_block)
		v->kernel.will_block(v->kernel.arg);
	(void)tell_of_former(v); /* as far as the kernel takes it: it may be unmounting */
	if (!memo_was_done(MEMO_RESTORE, NULL))
		return false;
	s = &memo_receipt()->restored;
	*ret_id = s->target;
	*ret = (struct restore_info){ .mode = s->mode, .changed = s->changed, .left = s->left };
	return true;
}

/* switch_lock held. */
static int view_switch(struct view *v, uint64_t target, struct restore_info *ret)
{
	_cleanup_(plan_release) struct plan plan = { 0 };
	int r;

	{
		BRANCH_CHANGE_GUARD(v->branch);
		r = switch_locked(v, target, &plan, ret);
		if (r < 0)
			return r;
		notes_send_rights(v, &plan.notes);
		/* Orphans that stay harm nobody; a kernel that is not told shows stale names. */
		(void)view_purge_orphans(v);
	}
	memo_tells(v->memo, true);
	r = tell_kernel(v, &plan);
	memo_tells(v->memo, false);
	memo_told(v);
	plan.moved.lineage = plan.lineage;
	if (plan.find_moved)
		(void)moved_find(&plan.moved, v, &plan.old_fs, &plan.new_fs); /* as room is */
	ret->moved = plan.moved.n > 0;
	moved_keep(v, &plan.moved);
	return r;
}

int view_checkpoint(struct view *v, const char *label, bool sync, uint64_t *ret_id)
{
	_cleanup_free_ char *path = NULL;
	int r, s;

	if (!v->branch)
		return -EROFS;
	if (memo_was_done(MEMO_CHECKPOINT, NULL)) {
		*ret_id = memo_receipt()->journal.id;
		r = 0;
	} else {
		_cleanup_(memo_expect_end) _unused_ char expecting;

		memo_expect();
		memo_did(MEMO_CHECKPOINT, 0);
		r = branch_checkpoint(v->branch, label, 0, ret_id);
	}
	if (r < 0 || !sync)
		return r;
	if (v->kernel.will_block)
		v->kernel.will_block(v->kernel.arg);
	s = snap_wait(v->store, *ret_id);
	if (s == 0 && fs_find_unreadable(v->store, *ret_id, &path) == 0)
		s = -EIO;
	return s < 0 ? s : r;
}

int view_restore(struct view *v, uint64_t snap, struct restore_info *ret)
{
	if (!v->branch)
		return -EROFS;
	LOCK_GUARD(&v->switch_lock);
	return was_restored(v, &snap, ret) ? 0 : view_switch(v, snap, ret);
}

int view_undo(struct view *v, uint64_t *ret_id, struct restore_info *ret)
{
	int r;

	if (!v->branch)
		return -EROFS;
	LOCK_GUARD(&v->switch_lock);
	if (was_restored(v, ret_id, ret))
		return 0;
	r = branch_undo_id(v->branch, ret_id);
	return r < 0 ? r : view_switch(v, *ret_id, ret);
}

void view_keep_mounts(struct view *v)
{
	LOCK_GUARD(&v->switch_lock);
	v->kernel.names_max = UINT_MAX;
	if (v->memo)
		atomic_store(&v->memo->head->keep_mounts, true);
}

int view_fork(struct view *v, const char *name)
{
	_cleanup_(branch_closep) struct branch *fork = NULL;
	_cleanup_(root_unrefp) struct root *state = NULL;
	_cleanup_(memo_expect_end) _unused_ char expecting;

	if (memo_was_done(MEMO_FORK, NULL))
		return 0;
	memo_expect();
	memo_did(MEMO_FORK, 0);
	if (v->branch)
		return branch_fork(v->branch, name);
	{
		READ_GUARD(v->lock); /* view_let_go puts another one there */
		state = root_ref(v->cur_base);
	}
	return branch_create(v->store, name, state, v->snap, v->cur_lineage, &fork);
}
