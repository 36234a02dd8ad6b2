/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Branches: mutable states with names.
 *
 * Each branch has an *entry* in the store's table for as long as it exists, and a handle (struct
 * branch, with the live tree) while someone has it open. The entry holds the newest *frozen*
 * state and the head, undo and lineage that belong to it; the sealer commits that, and never looks
 * at a live tree. The live tree may be ahead of the entry; it is frozen by a checkpoint, by a
 * restore, by the last close, and by the sealer each SEAL_INTERVAL_MS. What was not frozen and
 * committed is in the journal.
 *
 * The entries are in entry.c, checkpoint and restore in checkpoint.c.
 */

#include <errno.h>

#include "store/base/os.h"
#include "store/journal.h"
#include "store/oplog.h"
#include "store/store_internal.h"
#include "store/tableop.h"

bool branch_name_ok(const char *name)
{
	size_t len = strlen(name);

	if (len == 0 || len > BRANCH_NAME_MAX || name[0] == '.' || name[0] == '-')
		return false;
	return strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") ==
	       len;
}

/* ---- handles ---- */

void handle_sync(struct branch *b)
{
	struct entry *e = b->entry;

	if (!e->stale)
		return;
	e->stale = false;
	if (b->head != snap_id_or_0(e->head)) {
		b->head = snap_id_or_0(e->head);
		b->changes++; /* its head went away, so it differs from the new one */
	}
	b->undo = snap_id_or_0(e->undo);
}

/* Its changes are journalled no more; those so far are. No one else has it, or under its lock. */
static void handle_end_log(struct branch *b)
{
	if (!b->log)
		return;
	log_branch(b);
	tree_set_log(b->tree, NULL);
	oplog_free(TAKE_PTR(b->log));
}

static void handle_free(struct branch *b)
{
	handle_end_log(b);
	if (b->tree)
		tree_free(b->tree);
	pthread_rwlock_destroy(&b->lock);
	free(b);
}

void entry_free(struct entry *e)
{
	if (e->live)
		handle_free(e->live); /* at close: what branch_close had no memory for */
	if (e->root)
		root_unref(e->root);
	free(e);
}

static void handle_freep(struct branch **b)
{
	if (*b)
		handle_free(*b);
}

static int handle_new(struct store *s, const char *name, struct branch **ret)
{
	struct branch *b = os_calloc(1, sizeof(*b));

	if (!b)
		return -ENOMEM;
	b->store = s;
	b->refs = 1;
	strcpy(b->name, name); /* the caller checked its length */
	pthread_rwlock_init(&b->lock, NULL);
	*ret = b;
	return 0;
}

/* Its changes go to the journal from now on. */
static int handle_begin_log(struct branch *b, struct entry *e)
{
	int r;

	if (!b->store->logging)
		return 0;
	r = oplog_new(b->store->journal, b->name, &e->last_lsn, &b->log);
	if (r == 0)
		tree_set_log(b->tree, b->log);
	return r;
}

/* Ties a new handle, whose tree exists, to its entry. */
static void handle_attach(struct branch *b, struct entry *e)
{
	b->entry = e;
	b->head = snap_id_or_0(e->head);
	b->undo = snap_id_or_0(e->undo);
	b->lineage = e->lineage;
	b->changes = e->changes;
	e->live = b;
	e->refs++;
	e->stale = false;
}

int branch_open(struct store *s, const char *name, struct branch **ret)
{
	_cleanup_(handle_freep) struct branch *b = NULL;
	_cleanup_(root_unrefp) struct root *root = NULL;
	struct entry *e;
	int r;

	if (!branch_name_ok(name))
		return -ERR_BRANCH_UNKNOWN;
	r = handle_new(s, name, &b);
	if (r < 0)
		return r;

	LOCK_GUARD(&s->table);
	e = entry_find(s, name);
	if (!e)
		return entry_find_bad(s, name) ? -ERR_BRANCH_DAMAGED : -ERR_BRANCH_UNKNOWN;
	if (e->live) {
		e->live->refs++;
		*ret = e->live;
		return 0;
	}

	if (e->root)
		root = root_ref(e->root);
	else
		r = store_load_root(s, &e->committed.root, &root);
	if (r < 0)
		return r;
	r = tree_new(s->nodes, root, &b->tree);
	if (r < 0)
		return r;
	r = handle_begin_log(b, e);
	if (r < 0)
		return r;

	handle_attach(b, e);
	*ret = TAKE_PTR(b);
	return 0;
}

/*
 * root is the tree's newest state; under both locks. Where it is the one that the entry has,
 * records since then have changed nothing (what was there was written again), and the index is to
 * know that they are covered all the same: what they refer to goes, and then they cannot be done
 * again.
 */
static void entry_frozen(struct branch *b, struct root **root)
{
	struct entry *e = b->entry;

	if (!entry_has_state(e, *root) || e->last_lsn > e->lsn)
		entry_set_root(b->store, e, root, b->changes);
	e->lsn = log_lsn(b->store);
}

/*
 * The last close freezes what is not frozen yet, so that the handle can go at once. When there is
 * no memory for that, it stays without references, and the sealer tries again in its next round.
 */
void branch_close(struct branch *b)
{
	_cleanup_(handle_freep) struct branch *gone = NULL;
	_cleanup_(root_unrefp) struct root *root = NULL;
	struct store *s = b->store;
	struct entry *e = b->entry;

	LOCK_GUARD(&s->table);
	if (--b->refs > 0)
		return;

	handle_sync(b);
	log_branch(b);
	if (!e->dropped) {
		if (tree_freeze(b->tree, &root) < 0)
			return;
		entry_frozen(b, &root);
	}
	handle_end_log(b);
	e->live = NULL;
	if (e->dropped) {
		link_remove(&e->orphan);
		entry_let_snaps_go(s, e);
	}
	gone = b;
	entry_unref_locked(s, e);
}

/*
 * The state of a new branch as its record names it; items has LOG_ITEMS_MAX bytes. No locks but
 * that of the branch the state is from.
 */
static int describe_state(struct store *s, const struct root *root, uint8_t **items, size_t *len,
			  bool *ret_committed)
{
	_cleanup_(root_unrefp) struct root *r0 = root_ref((struct root *)root);
	_cleanup_(tree_freep) struct tree *t = NULL;
	int r;

	*ret_committed = log_is_committed(s, root);
	if (*ret_committed)
		return 0;
	r = tree_new(s->nodes, r0, &t);
	if (r < 0)
		return r;
	r = oplog_dump(t, LOG_ITEMS_MAX, items, len);
	if (r < 0)
		*len = 0;
	return r == -E2BIG || r == -EINVAL ? 0 : r; /* L5: then it is the caller's to wait */
}

/* source, if not NULL, is locked and has this very state; head and changes are as its own then. */
static int create(struct store *s, const char *name, struct root *root, uint64_t head,
		  uint64_t lineage, struct branch *source, struct branch **ret)
{
	_cleanup_(handle_freep) struct branch *b = NULL;
	_cleanup_(entry_freep) struct entry *e = NULL;
	_cleanup_(log_end) struct table_log log = { 0 };
	_cleanup_free_ uint8_t *items = NULL;
	struct table_op op = { .kind = TABLE_CREATE, .snap = head, .lineage = lineage };
	struct snap *head_snap;
	uint64_t changes = 0;
	size_t items_len = 0;
	bool committed = false;
	int r;

	if (!branch_name_ok(name))
		return -ERR_BRANCH_NAME;
	strcpy(op.branch, name);
	r = handle_new(s, name, &b);
	if (r < 0)
		return r;
	r = tree_new(s->nodes, root, &b->tree);
	if (r < 0)
		return r;
	r = entry_new(name, &e);
	if (r < 0)
		return r;
	r = handle_begin_log(b, e);
	if (r < 0)
		return r;
	r = log_begin(s, &log);
	if (r < 0)
		return r;
	if (!source && s->logging) {
		r = describe_state(s, root, &items, &items_len, &committed);
		if (r < 0)
			return r;
	}

	LOCK_GUARD(&s->table);
	if (entry_find(s, name) || entry_find_bad(s, name))
		return -ERR_BRANCH_EXISTS;
	if (source) {
		handle_sync(source); /* its head may just have been dropped */
		op.snap = head = source->head;
		changes = source->changes;
	}
	head_snap = snap_lookup(s, head);
	if (head != 0 && !head_snap)
		return -ERR_SNAP_UNKNOWN;
	r = entries_reserve(s);
	if (r < 0)
		return r;

	snap_set_hold(&e->head, head_snap);
	e->lineage = lineage;
	e->root = root_ref(root);
	e->changes = changes;
	if (changes == 0 && head_snap && !snap_has_state(head_snap, root))
		e->changes = 1; /* nobody counted them; with 0 a checkpoint would be its head */
	entries_insert(s, e);
	entry_touched(s, e);

	op.changes = e->changes;
	if (source && !source->entry->dropped) {
		op.state = STATE_BRANCH;
		strcpy(op.from, source->name);
	} else if (items_len > 0) {
		op.state = STATE_ITEMS;
		op.items = items;
		op.items_len = items_len;
	} else {
		log_state(s, head_snap, root, committed, &op);
	}
	e->lsn = e->used_lsn = log_write(&log, &op);
	if (op.state == STATE_BRANCH)
		source->entry->used_lsn = e->lsn;
	if (op.state == STATE_SNAP)
		head_snap->used_lsn = e->lsn;

	handle_attach(b, TAKE_PTR(e));
	*ret = TAKE_PTR(b);
	return 0;
}

int branch_create(struct store *s, const char *name, struct root *root, uint64_t head,
		  uint64_t lineage, struct branch **ret)
{
	return create(s, name, root, head, lineage, NULL, ret);
}

int branch_create_from(struct branch *source, const char *name, struct branch **ret)
{
	_cleanup_(root_unrefp) struct root *root = NULL;
	int r;

	WRITE_GUARD(&source->lock);
	log_branch(source);
	r = tree_freeze(source->tree, &root);
	if (r < 0)
		return r;
	return create(source->store, name, root, 0, source->lineage, source, ret);
}

int branch_fork(struct branch *source, const char *name)
{
	_cleanup_(branch_closep) struct branch *fork = NULL;

	return branch_create_from(source, name, &fork);
}

bool branch_lost_something(struct branch *b)
{
	LOCK_GUARD(&b->store->table);

	return b->entry->lost;
}

void branch_take_back(struct branch *b)
{
	if (b->log)
		oplog_take_back(b->log, b->tree);
}

void branch_unlock_changed(struct branch *b)
{
	struct store *s = b->store;

	log_branch(b);
	pthread_rwlock_unlock(&b->lock);
	if (s->logging && journal_wants_round(s->journal)) {
		LOCK_GUARD(&s->table);

		s->sync_wanted++;
		pthread_cond_signal(&s->wake);
	}
}

/* Under the table lock, and the lock of the handle when it is open. */
static void drop_entry(struct store *s, struct entry *e)
{
	e->dropped = true;
	e->dirty = false;
	if (e->live) {
		/* An open handle goes on working, for itself; gc must know of its state. */
		handle_end_log(e->live);
		link_add_last(&s->orphans, &e->orphan);
	} else {
		entry_let_snaps_go(s, e);
	}
	link_add_last(&s->doomed_branches, &e->link); /* with the table's reference */
	sealer_kick(s);
}

/* AGAIN: it is open: *ret_live is referenced, for the caller to lock and come again with. */
static int drop_locked(struct store *s, const char *name, struct branch *locked,
		       struct table_log *log, struct branch **ret_live)
{
	struct table_op op = { .kind = TABLE_DROP_BRANCH };
	LOCK_GUARD(&s->table);
	struct entry *e = entry_find(s, name);

	if (!e) {
		e = entry_find_bad(s, name);
		if (!e)
			return -ERR_BRANCH_UNKNOWN;
		link_remove(&e->link);
	} else {
		if (e->live && e->live->mounted)
			return -ERR_BRANCH_IN_USE;
		if (e->live && e->live != locked) {
			*ret_live = e->live;
			e->live->refs++;
			return AGAIN;
		}
		entries_remove(s, e);
	}
	strcpy(op.branch, e->name);
	(void)log_write(log, &op);
	drop_entry(s, e);
	return 0;
}

int branch_drop(struct store *s, const char *name)
{
	_cleanup_(log_end) struct table_log log = { 0 };
	struct branch *live = NULL;
	int r;

	r = log_begin(s, &log);
	if (r < 0)
		return r;
	r = drop_locked(s, name, NULL, &log, &live);
	while (r == AGAIN) {
		struct branch *b = live;

		pthread_rwlock_wrlock(&b->lock);
		r = drop_locked(s, name, b, &log, &live);
		pthread_rwlock_unlock(&b->lock);
		branch_close(b);
	}
	return r;
}

int branch_mount(struct branch *b)
{
	LOCK_GUARD(&b->store->table);

	if (b->mounted)
		return -ERR_BRANCH_IN_USE;
	b->mounted = 1;
	return 0;
}

bool branch_is_mounted(struct branch *b)
{
	LOCK_GUARD(&b->store->table);

	return b->mounted;
}

void branch_unmount(struct branch *b)
{
	LOCK_GUARD(&b->store->table);

	b->mounted = 0;
}

/* ---- lists ---- */

/* All entries, those of orphans too. */
struct entry_list {
	struct store *store;
	struct entry **entries; /* owned; each referenced */
	size_t count;
};

static int entry_list_take(struct store *s, struct entry_list *ret)
{
	LOCK_GUARD(&s->table);
	size_t count = s->entry_count;
	struct entry **entries;

	for (struct link *l = s->orphans.next; l != &s->orphans; l = l->next)
		count++;
	entries = os_malloc((count + 1) * sizeof(struct entry *));
	if (!entries)
		return -ENOMEM;

	*ret = (struct entry_list){ .store = s, .entries = entries };
	for (size_t i = 0; i < s->entry_count; i++)
		entries[ret->count++] = s->entries[i];
	for (struct link *l = s->orphans.next; l != &s->orphans; l = l->next)
		entries[ret->count++] = container_of(l, struct entry, orphan);
	for (size_t i = 0; i < count; i++)
		entries[i]->refs++;
	return 0;
}

static void entry_list_release(struct entry_list *list)
{
	if (!list->store)
		return;
	pthread_mutex_lock(&list->store->table);
	for (size_t i = 0; i < list->count; i++)
		entry_unref_locked(list->store, list->entries[i]);
	pthread_mutex_unlock(&list->store->table);
	free(list->entries);
}

static int freeze_one(struct branch *b)
{
	_cleanup_(root_unrefp) struct root *root = NULL;
	struct store *s = b->store;
	int r;

	WRITE_GUARD(&b->lock);
	log_branch(b);
	r = tree_freeze(b->tree, &root);
	if (r < 0)
		return r;

	LOCK_GUARD(&s->table);
	handle_sync(b);
	entry_frozen(b, &root);
	return 0;
}

/* The open handle, referenced, or NULL. */
static struct branch *entry_handle(struct store *s, struct entry *e)
{
	LOCK_GUARD(&s->table);

	if (e->live)
		e->live->refs++;
	return e->live;
}

/* Calls fn for each open handle, also after a failure; the last failure. */
static int each_handle(struct store *s, int (*fn)(struct branch *b))
{
	_cleanup_(entry_list_release) struct entry_list list = { 0 };
	int r, failure = 0;

	r = entry_list_take(s, &list);
	if (r < 0)
		return r;

	for (size_t i = 0; i < list.count; i++) {
		struct branch *b = entry_handle(s, list.entries[i]);

		if (!b)
			continue;
		r = fn(b);
		if (r < 0)
			failure = r;
		branch_close(b);
	}
	return failure;
}

static int begin_log(struct branch *b)
{
	return b->log ? 0 : handle_begin_log(b, b->entry);
}

int branch_begin_logs(struct store *s)
{
	return each_handle(s, begin_log);
}

int branch_freeze_live(struct store *s)
{
	return each_handle(s, freeze_one);
}

static int pass(struct branch *b)
{
	WRITE_GUARD(&b->lock);
	return 0;
}

int branch_barrier(struct store *s)
{
	return each_handle(s, pass);
}

/* The first stale handle from *at on, referenced, or NULL. */
static struct branch *next_stale(struct store *s, size_t *at)
{
	LOCK_GUARD(&s->table);

	for (; *at < s->entry_count; (*at)++) {
		struct entry *e = s->entries[*at];

		if (!e->stale || !e->live)
			continue;
		e->live->refs++;
		return e->live;
	}
	return NULL;
}

void branch_publish(struct store *s)
{
	bool found = true;

	while (found) { /* once more: entries may have moved meanwhile */
		struct branch *b;

		found = false;
		for (size_t at = 0; (b = next_stale(s, &at));) {
			found = true;
			{
				WRITE_GUARD(&b->lock);
				LOCK_GUARD(&s->table);
				handle_sync(b);
			}
			branch_close(b);
		}
	}
}

static void fill_info(struct store *s, struct entry *e, struct branch *b, struct branch_info *ret)
{
	LOCK_GUARD(&s->table);

	*ret = (struct branch_info){
		.head = snap_id_or_0(e->head),
		.undo = snap_id_or_0(e->undo),
		.lineage = e->lineage,
		.changes = b ? b->changes : e->changes,
		.mounted = b && b->mounted,
		.root = e->committed.root,
	};
	strcpy(ret->name, e->name);
}

int branch_each(struct store *s, int (*fn)(void *arg, const struct branch_info *info), void *arg)
{
	_cleanup_(entry_list_release) struct entry_list list = { 0 };
	int r;

	r = entry_list_take(s, &list);
	for (size_t i = 0; r == 0 && i < list.count; i++) {
		struct entry *e = list.entries[i];
		_cleanup_(branch_closep) struct branch *b = NULL;
		struct branch_info info;

		if (e->dropped) /* an orphan, or dropped since */
			continue;
		b = entry_handle(s, e);
		if (b)
			pthread_rwlock_rdlock(&b->lock);
		fill_info(s, e, b, &info);
		if (b)
			pthread_rwlock_unlock(&b->lock);
		r = fn(arg, &info);
	}
	return r;
}
