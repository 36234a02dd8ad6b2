/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Node ids: what the kernel calls a file. See view_internal.h for the words and invariants V1-V6.
 *
 * A node id is a slot number (low half) and that slot's serial (high half). The table is an array,
 * so finding a vnode costs one bounds check; serials make every id unique for the life of the view
 * (V2), which is why the generation sent to the kernel can always be 0. Slot 1, serial 0 is the
 * root, as FUSE wants it.
 *
 * A vnode cannot vanish under a request that names it: the kernel sends no FORGET for an inode
 * that a request in flight uses. So a pointer found under table_lock may be used after it.
 */

#include <errno.h>

#include "fs/view_internal.h"
#include "store/base/err.h"
#include "store/base/os.h"
#include "store/base/util.h"

#define SLOTS_FIRST 64 /* grows by doubling; a mount that is hardly used stays small */
#define HASH_FIRST 64

static uint32_t ino_bucket(const struct view *v, uint64_t ino)
{
	/* Fibonacci hashing: inode numbers are mostly consecutive; the high bits mix best. */
	return (uint32_t)((ino * UINT64_C(0x9E3779B97F4A7C15)) >> 32) & v->hash_mask;
}

struct vnode *vnode_by_node(struct view *v, uint64_t node)
{
	uint32_t slot = (uint32_t)node;

	if (slot >= v->n_slots || !v->slots[slot] || v->slots[slot]->node != node)
		return NULL;
	return v->slots[slot];
}

struct vnode *vnode_by_ino(struct view *v, uint64_t ino)
{
	struct vnode *n = v->hash[ino_bucket(v, ino)];

	while (n && n->ino != ino)
		n = n->next;
	return n;
}

void vnode_save(struct view *v, const struct vnode *n)
{
	struct memo_node *m;

	if (!v->memo)
		return;
	m = &v->memo->nodes[(uint32_t)n->node];
	/* K1: while its number changes (V5) it is of a state that is lost, and no other object */
	if (atomic_load_explicit(&m->ino, memory_order_relaxed) != n->ino)
		atomic_store_explicit(&m->base, UINT64_MAX, memory_order_release);
	atomic_store_explicit(&m->ino, n->ino, memory_order_release);
	if (n->opens) /* else it is not looked at, nor takes memory */
		atomic_store_explicit(&v->memo->opened[(uint32_t)n->node],
				      (uint64_t)n->backing << 32 | n->opens, memory_order_release);
	atomic_store_explicit(&m->flags,
			      (n->hashed ? MEMO_HASHED : 0) | (n->orphan ? MEMO_ORPHAN : 0) |
				      (n->adopted ? MEMO_ADOPTED : 0) |
				      (n->removed ? MEMO_REMOVED : 0) |
				      (n->changed || (n->orphan && n->realm->unnamed_lost) ?
					       MEMO_CHANGED :
					       0) |
				      (n->displaced ? MEMO_DISPLACED : 0) |
				      (n->dead ? MEMO_DEAD : 0) |
				      (n->new_mode ? MEMO_NEW_MODE : 0) |
				      (n->opens ? MEMO_OPENED : 0),
			      memory_order_release);
	atomic_store_explicit(&m->nlookup, n->nlookup, memory_order_release);
	/* Last: an inode number that the current tree does not have would be taken for gone. */
	atomic_store_explicit(&m->base, n->realm->snap, memory_order_release);
}

static int hash_grow(struct view *v)
{
	uint32_t old_size = v->hash_mask + 1;
	struct vnode **old = v->hash;
	struct vnode **hash = os_calloc((size_t)old_size * 2, sizeof(*hash));

	if (!hash)
		return -ENOMEM;
	v->hash = hash;
	v->hash_mask = old_size * 2 - 1;
	for (uint32_t i = 0; i < old_size; i++) {
		for (struct vnode *n = old[i], *next; n; n = next) {
			uint32_t b = ino_bucket(v, n->ino);

			next = n->next;
			n->next = hash[b];
			hash[b] = n;
		}
	}
	free(old);
	return 0;
}

void vnode_hash(struct view *v, struct vnode *n)
{
	uint32_t b;

	if (v->n_hashed > v->hash_mask)
		(void)hash_grow(v); /* longer chains are all that is lost */
	b = ino_bucket(v, n->ino);
	n->next = v->hash[b];
	v->hash[b] = n;
	n->hashed = true;
	v->n_hashed++;
	v->n_displaced -= n->displaced;
	n->displaced = false;
}

void vnode_unhash(struct view *v, struct vnode *n)
{
	struct vnode **p = &v->hash[ino_bucket(v, n->ino)];

	if (!n->hashed)
		return;
	while (*p != n)
		p = &(*p)->next;
	*p = n->next;
	n->next = NULL;
	n->hashed = false;
	v->n_hashed--;
}

void realm_list(struct view *v, struct realm *realm)
{
	realm->next = v->realms;
	v->realms = realm;
}

int realm_new(struct view *v, struct root *base, uint64_t lineage, struct realm **ret)
{
	struct realm *realm = os_calloc(1, sizeof(*realm));
	int r;

	if (!realm)
		return -ENOMEM;
	r = tree_new(store_nodes(v->store), base, &realm->tree);
	if (r >= 0)
		r = store_pin_root(v->store, base);
	if (r < 0) {
		tree_free(realm->tree);
		free(realm);
		return r;
	}
	realm->base = root_ref(base);
	realm->lineage = lineage;
	realm->owns_tree = true;
	realm->refs = 1;
	realm_list(v, realm);
	*ret = realm;
	return 0;
}

void realm_began_with(struct view *v, struct realm *realm, uint64_t snap)
{
	_cleanup_(root_unrefp) struct root *root = NULL;

	realm->snap = snap;
	realm->needs_snap = v->memo && snap_need(v->store, snap) == 0;
	/* Of a state in which nothing with a name had changed there is none but that before. */
	realm->unnamed_lost = v->memo && realm->base &&
			      (snap_root(v->store, snap, &root) < 0 ||
			       !root_same(root, realm->base));
}

static void base_unpin(struct view *v)
{
	if (v->base_pinned)
		store_unpin_root(v->store, v->cur_base);
	v->base_pinned = false;
	if (v->base_snap && v->memo) /* else another process may ask */
		snap_unneed(v->store, v->base_snap);
	v->base_snap = 0;
}

void view_set_base(struct view *v, struct root *base, bool pinned, uint64_t snap)
{
	bool needed = pinned && v->memo && snap_need(v->store, snap) == 0;

	base_unpin(v);
	root_unref(v->cur_base);
	v->cur_base = root_ref(base);
	v->base_pinned = pinned;
	v->base_snap = needed ? snap : 0;
}

void realm_unref(struct view *v, struct realm *realm)
{
	struct realm **at = &v->realms;

	if (--realm->refs)
		return;
	while (*at != realm)
		at = &(*at)->next;
	*at = realm->next;
	if (realm->base) {
		store_unpin_root(v->store, realm->base);
		root_unref(realm->base);
	}
	if (realm->needs_snap && v->memo) /* else another process may */
		snap_unneed(v->store, realm->snap);
	if (realm->owns_tree)
		tree_free(realm->tree);
	free(realm);
	if (v->realms && !v->realms->next) /* V4: nobody will ask for cur_base any more */
		base_unpin(v);
}

void vnode_set_realm(struct view *v, struct vnode *n, struct realm *realm)
{
	struct realm *old = n->realm;

	realm->refs++;
	n->realm = realm;
	if (old)
		realm_unref(v, old);
}

/* K1: the node id is what makes it count. */
static void save_new(struct view *v, const struct vnode *n)
{
	struct memo_node *m;

	if (!v->memo)
		return;
	m = &v->memo->nodes[(uint32_t)n->node];
	atomic_store_explicit(&m->type, (uint16_t)n->type, memory_order_release);
	vnode_save(v, n);
	atomic_store_explicit(&m->node, n->node, memory_order_release);
	/* Last: a new slot that has no node yet would be taken for one that is used up. */
	atomic_store_explicit(&v->memo->head->n_slots, v->n_slots, memory_order_release);
}

void vnode_save_free(struct view *v, uint32_t slot)
{
	if (!v->memo)
		return;
	atomic_store_explicit(&v->memo->nodes[slot].serial, v->serials[slot],
			      memory_order_release);
	atomic_store_explicit(&v->memo->nodes[slot].node, 0, memory_order_release);
}

static int slots_grow(struct view *v)
{
	uint32_t cap = v->cap_slots ? v->cap_slots * 2 : SLOTS_FIRST;
	struct vnode **slots;
	uint32_t *serials, *free_slots;

	if (v->memo && cap > MEMO_NODES_MAX)
		return -ENOMEM;
	slots = os_realloc(v->slots, cap * sizeof(*slots));
	if (!slots)
		return -ENOMEM;
	v->slots = slots;
	serials = os_realloc(v->serials, cap * sizeof(*serials));
	if (!serials)
		return -ENOMEM;
	v->serials = serials;
	free_slots = os_realloc(v->free_slots, cap * sizeof(*free_slots));
	if (!free_slots)
		return -ENOMEM;
	v->free_slots = free_slots;
	v->cap_slots = cap;
	return 0;
}

static int vnode_new(struct view *v, uint64_t ino, uint32_t type, struct vnode **ret)
{
	struct vnode *n = v->spare ? TAKE_PTR(v->spare) : os_calloc(1, sizeof(*n));
	uint32_t slot;
	int r;

	if (!n)
		return -ENOMEM;
	if (v->n_free) {
		slot = v->free_slots[--v->n_free];
	} else {
		if (v->n_slots == v->cap_slots) {
			r = slots_grow(v);
			if (r < 0) {
				free(n);
				return r;
			}
		}
		slot = v->n_slots++;
		v->serials[slot] = 0;
	}
	v->slots[slot] = n;
	n->node = (uint64_t)v->serials[slot] << 32 | slot;
	n->ino = ino;
	n->type = type;
	vnode_set_realm(v, n, v->cur);
	vnode_hash(v, n);
	save_new(v, n);
	*ret = n;
	return 0;
}

static void not_dead(struct view *v, struct vnode *n)
{
	if (!n->dead)
		return;
	v->dead[n->dead_at] = v->dead[--v->n_dead];
	v->dead[n->dead_at]->dead_at = n->dead_at;
	n->dead = false;
}

static void vnode_free(struct view *v, struct vnode *n)
{
	uint32_t slot = (uint32_t)n->node;

	/* Forgotten right after the reply to its last RELEASE, or counted too high (K2). */
	if (n->backing && v->kernel.backing_close)
		v->kernel.backing_close(v->kernel.arg, n->backing);
	vnode_unhash(v, n);
	v->n_displaced -= n->displaced;
	v->n_removed -= n->removed;
	not_dead(v, n);
	realm_unref(v, n->realm);
	v->slots[slot] = NULL;
	/* A slot whose serials are used up is retired, not reused (V2). */
	v->serials[slot]++;
	vnode_save_free(v, slot);
	if (v->serials[slot])
		v->free_slots[v->n_free++] = slot;
	free(n);
}

int vnodes_dead_room(struct view *v, size_t more)
{
	return os_grow(&v->dead, &v->cap_dead, v->n_dead + more, sizeof(*v->dead));
}

int vnode_dies(struct view *v, struct vnode *n)
{
	int r = n->dead ? EXISTS : vnodes_dead_room(v, 1);

	if (r != 0)
		return MIN(r, 0);
	n->dead = n->unnamed = true;
	n->dead_at = (uint32_t)v->n_dead;
	v->dead[v->n_dead++] = n;
	vnode_save(v, n);
	return 0;
}

void vnode_rises(struct view *v, struct vnode *n)
{
	not_dead(v, n);
	vnode_save(v, n);
}

void vnodes_rise(struct view *v)
{
	while (v->n_dead > 0)
		vnode_rises(v, v->dead[v->n_dead - 1]);
}

/* Rebinds a directory to what lies at its old path in the current tree. 0, or ABSENT. */
static int settle_by_path(struct view *v, struct vnode *n)
{
	struct fs old = { .store = v->store, .tree = n->realm->tree };
	struct fs cur = { .store = v->store, .tree = v->cur->tree };
	_cleanup_free_ char *path = NULL;
	struct inode i;
	size_t len;
	bool moves; /* to another place of the table */
	int r;

	r = fs_path(&old, n->ino, &path, &len);
	if (r == -ENOENT)
		return ABSENT;
	if (r < 0)
		return r;

	r = fs_resolve(&cur, path, len, &i);
	if (r == -ENOENT || r == -ENOTDIR || r == -ENAMETOOLONG)
		return ABSENT;
	if (r < 0)
		return r;

	moves = i.ino != n->ino || n->displaced;
	if (!inode_is_dir(&i) || (moves && vnode_by_ino(v, i.ino)))
		return ABSENT;
	if (moves) {
		vnode_unhash(v, n);
		n->ino = i.ino;
		vnode_hash(v, n);
	}
	vnode_set_realm(v, n, v->cur);
	vnode_save(v, n);
	return 0;
}

static void retire(struct view *v, struct vnode *n)
{
	vnode_unhash(v, n);
	vnode_save(v, n);
}

/*
 * V4: binds an unsettled vnode to the current realm, or retires it. A directory that the current
 * tree does not have stays as it is (dead until a later state has it again: V5), unless the kernel
 * removed it.
 */
int vnode_settle(struct view *v, struct vnode *n)
{
	struct fs cur = { .store = v->store, .tree = v->cur->tree };
	bool same_lineage = n->realm->lineage == v->cur_lineage;
	struct inode i;
	int r;

	if (n->realm == v->cur || n->dead || !(n->hashed || n->displaced))
		return 0;

	if (n->removed) {
		retire(v, n);
		return 0;
	}
	if (!n->realm->base) { /* lost with a former process: nothing to compare with */
		if (!S_ISDIR(n->type))
			retire(v, n);
		return 0;
	}
	if (S_ISDIR(n->type)) {
		if (same_lineage && !n->displaced) {
			r = fs_stat(&cur, n->ino, &i);
			if (r >= 0 && inode_is_dir(&i) && i.nlink) {
				vnode_set_realm(v, n, v->cur);
				vnode_save(v, n);
				return 0;
			}
			if (r < 0 && r != -ENOENT)
				return r;
		}
		r = settle_by_path(v, n);
		return r < 0 ? r : 0;
	}

	r = fs_same_object(n->realm->base, v->cur_base, n->ino);
	if (r < 0)
		return r;
	if (r > 0) {
		vnode_set_realm(v, n, v->cur);
		n->adopted = true;
		vnode_save(v, n);
	} else {
		retire(v, n);
	}
	return 0;
}

/* Its number in the table is for another object. */
static void make_room(struct view *v, struct vnode *n)
{
	vnode_unhash(v, n);
	n->displaced = S_ISDIR(n->type) && !n->removed;
	v->n_displaced += n->displaced;
	vnode_save(v, n);
}

void vnodes_return(struct view *v)
{
	for (uint32_t i = 1; v->n_displaced > 0 && i < v->n_slots; i++) {
		struct vnode *n = v->slots[i], *other;

		if (!n || !n->displaced || n->realm->lineage != v->cur_lineage)
			continue;
		other = vnode_by_ino(v, n->ino);
		if (other && other->realm == v->cur)
			continue;
		if (other) /* which may go elsewhere by its path when it is asked for */
			make_room(v, other);
		vnode_hash(v, n);
		vnode_save(v, n);
	}
}

int vnode_bind_locked(struct view *v, uint64_t node, bool change, struct bound *ret)
{
	struct vnode *n = vnode_by_node(v, node);
	int r;

	if (!n)
		return -ESTALE;
	r = vnode_settle(v, n);
	if (r < 0)
		return r;

	n->asked = v->switches;
	ret->current = n->realm == v->cur;
	if (!n->realm->tree) /* what a restore replaced, and a kill took */
		return S_ISDIR(n->type) ? -ENOENT : -EIO;
	if (change && !ret->current && !S_ISDIR(n->type) && !n->changed) {
		n->changed = true;
		vnode_save(v, n);
	}
	ret->fs.store = v->store;
	ret->fs.tree = n->realm->tree;
	ret->fs.changes = ret->current && v->branch ? &v->branch->changes : NULL;
	ret->ino = n->ino;
	ret->dead = !ret->current && S_ISDIR(n->type);
	return ret->dead ? vnode_dies(v, n) : 0;
}

int vnode_bind(struct view *v, uint64_t node, struct bound *ret)
{
	LOCK_GUARD(&v->table_lock);
	return vnode_bind_locked(v, node, false, ret);
}

/* Who asks now is told its attributes (V9). table_lock held. */
static void vnode_tells(struct vnode *n)
{
	int32_t thread = view_asker();

	n->told = thread && (!n->told || n->told == thread) ? thread : TOLD_OTHERS;
}

int vnode_bind_to_tell(struct view *v, uint64_t node, bool change, struct bound *ret)
{
	LOCK_GUARD(&v->table_lock);
	int r = vnode_bind_locked(v, node, change, ret);

	if (r >= 0)
		vnode_tells(vnode_by_node(v, node));
	return r;
}

int vnode_bind_to_change(struct view *v, uint64_t node, struct bound *ret)
{
	LOCK_GUARD(&v->table_lock);
	return vnode_bind_locked(v, node, true, ret);
}

int vnode_bind_dir(struct view *v, uint64_t node, struct bound *ret)
{
	int r = vnode_bind(v, node, ret);

	if (r < 0)
		return r;
	if (ret->dead)
		return -ENOENT;
	return ret->current ? 0 : -ENOTDIR;
}

int vnode_reserve(struct view *v)
{
	LOCK_GUARD(&v->table_lock);

	if (!v->spare)
		v->spare = os_calloc(1, sizeof(*v->spare));
	if (!v->spare)
		return -ENOMEM;
	return v->n_free || v->n_slots < v->cap_slots ? 0 : slots_grow(v);
}

int vnode_get(struct view *v, const struct inode *i, uint64_t *ret_node)
{
	LOCK_GUARD(&v->table_lock);
	struct vnode *n = vnode_by_ino(v, i->ino);
	int r;

	if (n) {
		r = vnode_settle(v, n);
		if (r < 0)
			return r;
		/*
		 * Settling may have retired it, or bound it (a directory) to another number. A
		 * directory of another lineage that only shares the number makes room (V1).
		 */
		if (n->hashed && n->ino == i->ino && n->realm != v->cur)
			make_room(v, n);
		if (!n->hashed || n->ino != i->ino)
			n = NULL;
	}
	if (!n) {
		r = vnode_new(v, i->ino, i->mode & S_IFMT, &n);
		if (r < 0)
			return r;
	}
	if (n->nlookup > 0)
		vnode_tells(n);
	n->nlookup++;
	n->unnamed = false;
	n->orphan = i->nlink == 0;
	vnode_save(v, n); /* K2 */
	*ret_node = n->node;
	return 0;
}

void vnode_drop(struct view *v, struct vnode *n)
{
	if (!n)
		return;
	if (--n->nlookup == 0 && n->node != ROOT_NODE)
		vnode_free(v, n);
	else
		vnode_save(v, n);
}

bool view_was_told(struct view *v, uint64_t node)
{
	LOCK_GUARD(&v->table_lock);
	struct vnode *n = vnode_by_node(v, node);
	bool others = n && n->told && n->told != view_asker();

	if (n)
		n->told = 0; /* who changes it has his answer: he went on */
	return others;
}

int view_opened(struct view *v, uint64_t node, int32_t mine, int32_t *ret_id)
{
	LOCK_GUARD(&v->table_lock);
	struct vnode *n = vnode_by_node(v, node);
	int r = EXISTS;

	if (!n)
		return -ESTALE;
	if (n->opens == 0) {
		if (mine < 0)
			return ABSENT;
		n->backing = mine;
		r = 0;
	}
	n->opens++;
	vnode_save(v, n);
	*ret_id = n->backing;
	return r;
}

int32_t view_closed(struct view *v, uint64_t node)
{
	LOCK_GUARD(&v->table_lock);
	struct vnode *n = vnode_by_node(v, node);
	int32_t id = 0;

	if (!n || n->opens == 0)
		return 0;
	if (--n->opens == 0) {
		id = n->backing;
		n->backing = 0;
	}
	vnode_save(v, n);
	return id;
}

void view_forget(struct view *v, uint64_t node, uint64_t count)
{
	struct vnode *n;
	bool purge;

	pthread_mutex_lock(&v->table_lock);
	n = vnode_by_node(v, node);
	if (!n || node == ROOT_NODE) {
		pthread_mutex_unlock(&v->table_lock);
		return;
	}
	n->nlookup -= MIN(count, n->nlookup);
	vnode_save(v, n);
	purge = n->nlookup == 0 && n->orphan && n->hashed && v->branch;
	if (n->nlookup == 0 && !purge)
		vnode_free(v, n);
	pthread_mutex_unlock(&v->table_lock);
	if (!purge)
		return;

	/*
	 * V6: the last reference to an unlinked inode goes, and its items with it. Nobody can find
	 * it any more (no name), but a restore may come between, so look again under the lock.
	 */
	BRANCH_CHANGE_GUARD(v->branch);
	LOCK_GUARD(&v->table_lock);
	n = vnode_by_node(v, node);
	if (!n || n->nlookup)
		return;
	(void)vnode_settle(v, n); /* on failure the orphan stays until the next mount purges it */
	if (n->hashed && n->realm == v->cur) {
		struct fs fs = { .store = v->store, .tree = v->cur->tree };

		(void)fs_purge(&fs, n->ino); /* likewise; of one that has a name nothing */
	}
	vnode_free(v, n);
}

int vnodes_make_table(struct view *v, uint32_t n_slots)
{
	int r;

	v->hash = os_calloc(HASH_FIRST, sizeof(*v->hash));
	if (!v->hash)
		return -ENOMEM;
	v->hash_mask = HASH_FIRST - 1;
	while (v->cap_slots < MAX(n_slots, 2)) {
		r = slots_grow(v);
		if (r < 0)
			return r;
	}
	memset(v->slots, 0, v->cap_slots * sizeof(struct vnode *));
	v->serials[0] = 0; /* node id 0 means "no node" to FUSE */
	v->n_slots = 1;
	return 0;
}

int vnodes_init(struct view *v)
{
	struct vnode *n;
	int r;

	r = vnodes_make_table(v, 0);
	if (r < 0)
		return r;
	r = vnode_new(v, ROOT_INO, S_IFDIR, &n);
	if (r < 0)
		return r;
	n->nlookup = 1; /* the mount's, never forgotten */
	vnode_save(v, n);
	return 0;
}

void vnodes_forget_all(struct view *v)
{
	for (uint32_t i = 1; i < v->n_slots; i++)
		if (v->slots[i])
			vnode_free(v, v->slots[i]);
}

void vnodes_release(struct view *v)
{
	vnodes_forget_all(v);
	free(v->slots);
	free(v->serials);
	free(v->free_slots);
	free(v->spare);
	free(v->hash);
	free(v->dead);
}
