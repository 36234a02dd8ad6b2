/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A view's begin and end, and the verbs that change something. A verb, here and in view_read.c,
 * takes the view's lock, binds node ids to objects (vnode.c), calls one verb of the model (fs.h),
 * and counts the reference that the reply will give the kernel. The rules of what a process sees
 * across a restore are in view_internal.h and switch.c.
 */

#include <errno.h>
#include <limits.h>
#include <linux/xattr.h>

#include "fs/notes.h"
#include "fs/view_internal.h"
#include "store/base/err.h"
#include "store/base/os.h"
#include "store/base/util.h"

static int view_new(struct store *store, struct memo *memo, struct view **ret)
{
	struct view *v = os_calloc(1, sizeof(*v));

	if (!v) {
		memo_close(memo);
		return -ENOMEM;
	}
	v->store = store;
	v->memo = memo;
	pthread_rwlock_init(&v->own_lock, NULL);
	pthread_mutex_init(&v->switch_lock, NULL);
	pthread_mutex_init(&v->table_lock, NULL);
	v->lock = &v->own_lock;
	v->keeper = (struct store_keeper){ .let_go = view_let_go, .arg = v };
	if (view_notes_new(v) < 0) {
		view_close(v);
		return -ENOMEM;
	}
	*ret = v;
	return 0;
}

struct orphan_pick {
	struct view *view;
	uint64_t ino;
};

/* Stops at the first orphan that no descriptor holds. */
static int pick_orphan(void *arg, uint64_t ino)
{
	struct orphan_pick *pick = arg;
	struct view *v = pick->view;
	LOCK_GUARD(&v->table_lock);
	struct vnode *n = vnode_by_ino(v, ino);
	int r;

	if (n) {
		r = vnode_settle(v, n);
		if (r < 0)
			return r;
		if (n->ino == ino && n->realm == v->cur) { /* else of another object */
			n->orphan = true;
			vnode_save(v, n);
			return 0;
		}
	}
	pick->ino = ino;
	return END;
}

int view_purge_orphans(struct view *v)
{
	struct fs fs = { .store = v->store, .tree = v->cur->tree };
	int r;

	for (;;) {
		struct orphan_pick pick = { .view = v };

		/* Purging changes the tree, so the list is started anew each time. */
		r = fs_orphans(&fs, pick_orphan, &pick);
		if (r != END)
			return r;
		r = fs_purge(&fs, pick.ino);
		if (r < 0)
			return r;
	}
}

static bool goes_on(const struct view *v)
{
	return v->memo && v->memo->head->kept;
}

/*
 * cur_base is what the last restore made (V4). Without that nobody can tell what it had in common
 * with the state before, so files that were not looked at since are taken for different.
 */
static int find_base(struct view *v)
{
	_cleanup_(root_unrefp) struct root *target = NULL;
	uint64_t snap = v->memo->head->target; /* a switch may have been finished just now */
	int r;

	if (!snap || !v->branch)
		return 0;
	if (snap_root(v->store, snap, &target) == 0) {
		r = v->realms->next ? store_pin_root(v->store, target) : 0;
		if (r < 0)
			return r;
		view_set_base(v, target, v->realms->next, snap);
		return 0;
	}
	for (uint32_t i = 1; i < v->n_slots; i++) {
		struct vnode *n = v->slots[i];

		if (!n || !n->hashed || n->realm == v->cur || S_ISDIR(n->type))
			continue;
		vnode_unhash(v, n);
		vnode_save(v, n);
	}
	return 0;
}

/* The node ids: of the root alone, or all that a former process had. v->cur is there. */
static int nodes_begin(struct view *v)
{
	int r;

	if (!goes_on(v))
		return vnodes_init(v);
	if (v->branch && branch_lost_something(v->branch))
		return -ERR_JOURNAL_DAMAGED; /* the kernel's caches know more than we do */
	r = vnodes_resume(v);
	if (r >= 0)
		r = find_base(v);
	if (r < 0)
		return r;
	vnodes_return(v); /* which a switch that was cut off may not have come to */
	return 0;
}

/* A branch's view, from its present state on. */
static int view_begin(struct view *v)
{
	BRANCH_CHANGE_GUARD(v->branch);
	int r;

	r = tree_freeze(v->branch->tree, &v->cur_base);
	if (r < 0)
		return r;
	r = nodes_begin(v);
	return r < 0 ? r : view_purge_orphans(v);
}

int view_open(struct store *store, const char *branch, struct memo *memo, struct view **ret)
{
	_cleanup_(view_closep) struct view *v = NULL;
	struct branch *b;
	int r;

	r = view_new(store, memo, &v);
	if (r < 0)
		return r;

	r = branch_open(store, branch, &b);
	if (r < 0)
		return r;

	r = branch_mount(b);
	if (r < 0) {
		branch_close(b);
		return r;
	}

	v->branch = b;
	v->lock = &b->lock;
	v->cur = os_calloc(1, sizeof(*v->cur));
	if (!v->cur)
		return -ENOMEM;
	realm_list(v, v->cur);
	v->cur->refs = 1;
	v->cur->tree = b->tree;
	v->cur->lineage = b->lineage;
	v->cur_lineage = b->lineage;

	r = view_begin(v);
	if (r < 0)
		return r;

	store_keeper_add(store, &v->keeper);
	*ret = TAKE_PTR(v);
	return 0;
}

int view_open_snapshot(struct store *store, uint64_t snap, struct memo *memo, struct view **ret)
{
	_cleanup_(view_closep) struct view *v = NULL;
	_cleanup_(root_unrefp) struct root *root = NULL;
	struct snap_info info;
	int r;

	r = view_new(store, memo, &v);
	if (r < 0)
		return r;

	r = snap_get(store, snap, &info);
	if (r < 0)
		return r;
	r = snap_pin(store, snap);
	if (r < 0)
		return r;
	v->snap = snap;

	r = snap_root(store, snap, &root);
	if (r < 0)
		return r;
	r = realm_new(v, root, info.lineage, &v->cur);
	if (r < 0)
		return r;
	v->cur_base = root_ref(root);
	v->cur_lineage = info.lineage;

	r = nodes_begin(v);
	if (r < 0)
		return r;

	store_keeper_add(store, &v->keeper);
	*ret = TAKE_PTR(v);
	return 0;
}

void view_close(struct view *v)
{
	if (!v)
		return;
	store_keeper_remove(v->store, &v->keeper);
	if (goes_on(v) && !v->kernel.inval_entry) {
		/* Another process may do what we could not: as if we had been killed. */
		memo_close(v->memo);
		v->memo = NULL;
	} else if (v->hash && v->branch) {
		/* The kernel has let go of everything: unlinked files go now. */
		BRANCH_CHANGE_GUARD(v->branch);
		vnodes_forget_all(v);
		(void)view_purge_orphans(v); /* else the next mount does it */
	}
	vnodes_release(v);
	view_notes_free(v);
	moved_release(&v->moved);
	if (v->cur)
		realm_unref(v, v->cur);
	if (v->cur_base)
		root_unref(v->cur_base);
	if (v->snap)
		snap_unpin(v->store, v->snap);
	if (v->branch) {
		branch_unmount(v->branch);
		branch_close(v->branch);
	}
	memo_close(v->memo);
	pthread_rwlock_destroy(&v->own_lock);
	pthread_mutex_destroy(&v->switch_lock);
	pthread_mutex_destroy(&v->table_lock);
	free(v);
}

void view_set_kernel(struct view *v, const struct view_kernel *k)
{
	v->kernel = *k;
	if (goes_on(v) && v->memo->head->keep_mounts)
		v->kernel.names_max = UINT_MAX;
}

bool view_read_only(const struct view *v)
{
	return !v->branch;
}

struct store *view_store(struct view *v)
{
	return v->store;
}

struct branch *view_branch(struct view *v)
{
	return v->branch;
}

uint64_t view_snapshot(const struct view *v)
{
	return v->snap;
}

struct memo *view_memo(struct view *v)
{
	return v->memo;
}

/* ---- changing ---- */

/*
 * So much each view may bring in a round although the store is behind: it is others who are faster
 * than the disk then, and the round after what they wrote takes seconds. 64 views that all do so
 * bring as much as one alone may be ahead by; before that the store is far behind.
 */
#define BRINGS_LITTLE ((uint64_t)4 << 20)
#define CHANGE_BYTES 512 /* in the journal: with two long names */

static bool brings_little(struct view *v, size_t len)
{
	uint64_t round = store_rounds(v->store);

	if (atomic_exchange_explicit(&v->brought_in, round, memory_order_relaxed) != round)
		atomic_store_explicit(&v->brought, 0, memory_order_relaxed);
	return atomic_fetch_add_explicit(&v->brought, CHANGE_BYTES + len, memory_order_relaxed) <
	       BRINGS_LITTLE;
}

/*
 * Whoever is faster than the disk waits here, for one round of the sealer, before it takes any
 * lock: what it wrote would otherwise lie in the store twice, in the stage and in packs, for as
 * long as it goes on, and the journal would grow. Failures are not its own: fsync and the reserve
 * of the disk tell them.
 */
static void let_sealer_catch_up(struct view *v, size_t len)
{
	enum store_behind behind = store_behind(v->store);

	if (behind == NOT_BEHIND || (behind == IS_BEHIND && brings_little(v, len)))
		return;
	if (v->kernel.will_block)
		v->kernel.will_block(v->kernel.arg);
	(void)store_sync(v->store);
}

/* r: of a verb with so many bytes. True: they found no room, and may find some. No lock is held. */
static bool may_fit_now(struct view *v, int r, uint64_t bytes)
{
	if (r != -ENOSPC && r != -EDQUOT)
		return false;
	if (v->kernel.will_block)
		v->kernel.will_block(v->kernel.arg);
	(void)store_make_room(v->store, bytes); /* the round alone may be enough */
	return true;
}

/* An inode lost its last name: purged now, or when the kernel forgets it. Lock held for writing. */
static int unlinked(struct view *v, const struct bound *b, const struct inode *i)
{
	int r;

	if (!i->ino || i->nlink)
		return 0;
	{
		LOCK_GUARD(&v->table_lock);
		struct vnode *n = vnode_by_ino(v, i->ino);

		if (n) {
			r = vnode_settle(v, n);
			if (r < 0)
				return r;
		}
		if (n && n->ino == i->ino && n->realm == v->cur) { /* else of another object */
			n->orphan = true;
			v->n_removed += S_ISDIR(n->type) && !n->removed;
			n->removed = S_ISDIR(n->type);
			vnode_save(v, n);
			return 0;
		}
	}
	return fs_purge(&b->fs, i->ino);
}

/*
 * Each changing verb begins so: the view is of a branch, whose write lock is held. What the verb
 * does to the tree is one record of the journal when it returns. A request that comes again after
 * a kill has a verb that was done already, or not at all (K3 in memo.h): each verb says what its
 * answer is made of before it returns. len: bytes of data that it brings.
 */
#define CHANGE_GUARD(v, len)                                                                       \
	_cleanup_(memo_expect_end) _unused_ char expecting;                                        \
	if (!(v)->branch)                                                                          \
		return -EROFS;                                                                     \
	let_sealer_catch_up(v, len);                                                               \
	BRANCH_CHANGE_GUARD((v)->branch);                                                          \
	memo_expect()

/* A verb that failed half-way has done nothing. r: what it returns. */
static int ended(struct view *v, int r)
{
	if (r < 0)
		branch_take_back(v->branch);
	return r;
}

/* What a creating verb gives, said before its record is written. */
static int created(struct view *v, int r, struct entry *e)
{
	if (r >= 0)
		r = vnode_get(v, &e->inode, &e->node);
	if (r >= 0)
		memo_did(MEMO_ENTRY, e->inode.ino);
	return ended(v, r);
}

/* The same after a kill: the reference that the answer gives was counted then (K2). */
static int created_again(struct view *v, uint64_t ino, struct entry *ret)
{
	struct fs fs = { .store = v->store, .tree = v->cur->tree };
	int r = fs_stat(&fs, ino, &ret->inode);

	if (r < 0)
		return r;
	{
		LOCK_GUARD(&v->table_lock);
		struct vnode *n = vnode_by_ino(v, ino);

		if (n && n->realm == v->cur) {
			ret->node = n->node;
			return 0;
		}
	}
	return vnode_get(v, &ret->inode, &ret->node);
}

/* For verbs whose answer is that they were done. */
static int done(struct view *v, int r, enum memo_what what)
{
	if (r >= 0)
		memo_did(what, 0);
	return ended(v, r);
}

static int setattr_once(struct view *v, uint64_t node, const struct fs_set *set, struct inode *ret)
{
	CHANGE_GUARD(v, 0);
	struct bound b;
	int r;

	r = vnode_bind_to_tell(v, node, true, &b);
	if (r < 0)
		return r;
	if (memo_was_done(MEMO_ATTR, NULL))
		return fs_stat(&b.fs, b.ino, ret);
	if (b.dead)
		return -ENOENT;
	return done(v, fs_setattr(&b.fs, b.ino, set, ret), MEMO_ATTR);
}

int view_setattr(struct view *v, uint64_t node, const struct fs_set *set, struct inode *ret)
{
	int r = setattr_once(v, node, set, ret);

	/* What wants room is a long ACL, whose mask follows the mode. */
	return may_fit_now(v, r, XATTR_SIZE_MAX) ? setattr_once(v, node, set, ret) : r;
}

static int create_once(struct view *v, const struct fs_new *n,
		       int (*verb)(const struct fs *, const struct fs_new *, struct inode *),
		       struct entry *ret)
{
	CHANGE_GUARD(v, 0);
	struct fs_new inner = *n;
	struct bound b;
	uint64_t ino;
	int r;

	if (memo_was_done(MEMO_ENTRY, &ino))
		return created_again(v, ino, ret);
	r = vnode_bind_dir(v, n->dir, &b);
	if (r >= 0)
		r = vnode_reserve(v);
	if (r < 0)
		return r;
	inner.dir = b.ino;
	return created(v, verb(&b.fs, &inner, &ret->inode), ret);
}

/* A new file, with a name or without. A long target wants room, and so does a long ACL. */
static int create(struct view *v, const struct fs_new *n,
		  int (*verb)(const struct fs *, const struct fs_new *, struct inode *),
		  struct entry *ret)
{
	int r = create_once(v, n, verb, ret);

	return may_fit_now(v, r, n->target ? strlen(n->target) : 0) ? create_once(v, n, verb, ret)
								    : r;
}

int view_create(struct view *v, const struct fs_new *n, struct entry *ret)
{
	return create(v, n, fs_create, ret);
}

int view_tmpfile(struct view *v, const struct fs_new *n, struct entry *ret)
{
	return create(v, n, fs_tmpfile, ret);
}

int view_link(struct view *v, uint64_t node, uint64_t dir, const char *name, size_t len,
	      struct entry *ret)
{
	CHANGE_GUARD(v, 0);
	const struct place place = { dir, name, len };
	struct bound b, d;
	uint64_t ino;
	int r;

	if (memo_was_done(MEMO_ENTRY, &ino))
		return created_again(v, ino, ret);
	r = vnode_bind(v, node, &b);
	if (r < 0)
		return r;
	r = vnode_bind_dir(v, dir, &d);
	if (r < 0)
		return r;
	/* A restore replaced it: its name is another file's, and who has it open knows no other. */
	if (!b.current)
		return must_look_for_file(v, node, &place) ? -ESTALE : -ENOENT;
	return created(v, fs_link(&b.fs, b.ino, d.ino, name, len, &ret->inode), ret);
}

static int take_name(struct view *v, uint64_t dir, const char *name, size_t len,
		     int (*verb)(const struct fs *, uint64_t, const char *, size_t, struct inode *))
{
	CHANGE_GUARD(v, 0);
	const struct place place = { dir, name, len };
	struct inode gone;
	struct bound b;
	int r;

	if (memo_was_done(MEMO_REMOVE, NULL))
		return 0;
	if (must_look_again(v, &place, 1))
		return -ESTALE;
	r = vnode_bind_dir(v, dir, &b);
	if (r < 0)
		return r;
	r = verb(&b.fs, b.ino, name, len, &gone);
	return done(v, r < 0 ? r : unlinked(v, &b, &gone), MEMO_REMOVE);
}

int view_unlink(struct view *v, uint64_t dir, const char *name, size_t len)
{
	return take_name(v, dir, name, len, fs_unlink);
}

int view_rmdir(struct view *v, uint64_t dir, const char *name, size_t len)
{
	return take_name(v, dir, name, len, fs_rmdir);
}

int view_rename(struct view *v, uint64_t odir, const char *oname, size_t olen, uint64_t ndir,
		const char *nname, size_t nlen, unsigned flags)
{
	CHANGE_GUARD(v, 0);
	const struct place places[] = { { odir, oname, olen }, { ndir, nname, nlen } };
	struct inode gone;
	struct bound o, n;
	int r;

	if (memo_was_done(MEMO_REMOVE, NULL))
		return 0;
	if (must_look_again(v, places, ARRAY_SIZE(places)))
		return -ESTALE;
	r = vnode_bind_dir(v, odir, &o);
	if (r < 0)
		return r;
	r = vnode_bind_dir(v, ndir, &n);
	if (r < 0)
		return r;
	r = fs_rename(&o.fs, o.ino, oname, olen, n.ino, nname, nlen, flags, &gone);
	return done(v, r < 0 ? r : unlinked(v, &o, &gone), MEMO_REMOVE);
}

static int write_once(struct view *v, uint64_t node, uint64_t off, const void *buf, size_t len,
		      bool kill_priv, const struct past_cache *past)
{
	CHANGE_GUARD(v, len);
	struct bound b;
	uint64_t did;
	int r;

	r = vnode_bind_to_write(v, node, past, &b);
	if (memo_was_done(MEMO_DATA, &did)) {
		r = (int)did;
	} else if (r >= 0) {
		r = ended(v, fs_write(&b.fs, b.ino, off, buf, len, kill_priv));
		if (r >= 0)
			memo_did(MEMO_DATA, (uint64_t)r);
	}
	if (r > 0)
		vnode_has_new_mode(v, node);
	return r;
}

int view_write(struct view *v, uint64_t node, uint64_t off, const void *buf, size_t len,
	       bool kill_priv, const struct past_cache *past)
{
	int r = write_once(v, node, off, buf, len, kill_priv, past);

	return may_fit_now(v, r, len) ? write_once(v, node, off, buf, len, kill_priv, past) : r;
}

static int fallocate_once(struct view *v, uint64_t node, int mode, uint64_t off, uint64_t len)
{
	CHANGE_GUARD(v, 0);
	struct bound b;
	int r;

	if (memo_was_done(MEMO_DATA, NULL))
		return 0;
	r = vnode_bind_to_change(v, node, &b);
	return r < 0 ? r : done(v, fs_fallocate(&b.fs, b.ino, mode, off, len), MEMO_DATA);
}

int view_fallocate(struct view *v, uint64_t node, int mode, uint64_t off, uint64_t len)
{
	int r = fallocate_once(v, node, mode, off, len);

	return may_fit_now(v, r, len) ? fallocate_once(v, node, mode, off, len) : r;
}

static int copy_once(struct view *v, uint64_t src, uint64_t src_off, uint64_t dst, uint64_t dst_off,
		     uint64_t len, uint64_t *ret_len)
{
	CHANGE_GUARD(v, 0);
	struct bound s, d;
	int r;

	if (memo_was_done(MEMO_DATA, ret_len))
		return 0;
	r = vnode_bind(v, src, &s);
	if (r < 0)
		return r;
	r = vnode_bind_to_change(v, dst, &d);
	if (r < 0)
		return r;
	r = fs_copy_range(&s.fs, s.ino, src_off, &d.fs, d.ino, dst_off, len, ret_len);
	if (r >= 0)
		memo_did(MEMO_DATA, *ret_len);
	return ended(v, r);
}

int view_copy_range(struct view *v, uint64_t src, uint64_t src_off, uint64_t dst, uint64_t dst_off,
		    uint64_t len, uint64_t *ret_len)
{
	int r = copy_once(v, src, src_off, dst, dst_off, len, ret_len);

	if (may_fit_now(v, r, INLINE_MAX)) /* what lies in the tree is copied, all else shared */
		r = copy_once(v, src, src_off, dst, dst_off, len, ret_len);
	return r;
}

static int setxattr_once(struct view *v, uint64_t node, const char *name, const void *value,
			 size_t len, int flags)
{
	CHANGE_GUARD(v, len);
	struct bound b;
	int r;

	if (memo_was_done(MEMO_XATTR, NULL))
		return 0;
	r = vnode_bind_to_change(v, node, &b);
	if (r < 0)
		return r;
	if (b.dead)
		return -ENOENT;
	r = done(v, fs_setxattr(&b.fs, b.ino, name, value, len, flags), MEMO_XATTR);
	if (r >= 0 && strcmp(name, XATTR_NAME_POSIX_ACL_ACCESS) == 0)
		vnode_has_new_mode(v, node);
	return r;
}

int view_setxattr(struct view *v, uint64_t node, const char *name, const void *value, size_t len,
		  int flags)
{
	int r = setxattr_once(v, node, name, value, len, flags);

	return may_fit_now(v, r, len) ? setxattr_once(v, node, name, value, len, flags) : r;
}

int view_removexattr(struct view *v, uint64_t node, const char *name)
{
	CHANGE_GUARD(v, 0);
	struct bound b;
	int r;

	if (memo_was_done(MEMO_XATTR, NULL))
		return 0;
	r = vnode_bind_to_change(v, node, &b);
	if (r < 0)
		return r;
	return b.dead ? -ENOENT : done(v, fs_removexattr(&b.fs, b.ino, name), MEMO_XATTR);
}

int view_sync(struct view *v)
{
	return v->branch ? store_flush(v->store) : 0;
}
