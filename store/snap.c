/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The snapshot table: every snapshot of the store in memory (about 250 bytes each), found by id
 * and listed in order of creation. Making or dropping one is table work only; the sealer writes
 * the record later (invariants S1 to S3 in store_internal.h).
 *
 * The life of a snapshot: snap_insert puts it at the end of `queue`; the sealer commits it, after
 * which it is durable and its state counts against ROOTS_IN_MEMORY; snap_detach takes it out of
 * the table, and when it had a record it waits in `doomed` until that is deleted. A crash before
 * the commit forgets it, a crash before the deletion brings it back. Nothing else refers to it by
 * then: children and branches were moved to its parent in the same critical section, and their
 * records are rewritten in the same transaction.
 */

#include <assert.h>
#include <errno.h>
#include <inttypes.h>

#include "store/base/os.h"
#include "store/slab.h"
#include "store/store_internal.h"
#include "store/tableop.h"

#define FIRST_BUCKETS 256
#define FIRST_SLOTS 256

char *snap_id_to_text(uint64_t id, char buf[static SNAP_ID_SIZE])
{
	snprintf(buf, SNAP_ID_SIZE, "%012" PRIx64, id & SNAP_SEQ_MAX);
	return buf;
}

/* ---- the table ---- */

static struct snap **bucket_of(struct store *s, uint64_t id)
{
	return &s->buckets[id & (s->bucket_count - 1)]; /* ids are scattered already */
}

struct snap *snap_lookup(struct store *s, uint64_t id)
{
	if (s->bucket_count == 0 || id == 0)
		return NULL;
	for (struct snap *sn = *bucket_of(s, id); sn; sn = sn->hash_next)
		if (sn->id == id)
			return sn;
	return NULL;
}

int snap_new(struct store *s, uint64_t lineage, const char *branch, const char *label,
	     uint32_t flags, struct snap **ret)
{
	size_t branch_len = branch ? strlen(branch) : 0, label_len = label ? strlen(label) : 0;
	struct snap *sn;

	static_assert(sizeof(*sn) + BRANCH_NAME_MAX + LABEL_MAX + 2 <= SLAB_OBJECT_MAX, "slab.h");

	if (branch_len > BRANCH_NAME_MAX || label_len > LABEL_MAX)
		return -ENAMETOOLONG;

	sn = slab_alloc(s->slabs, sizeof(*sn) + branch_len + label_len + 2);
	if (!sn)
		return -ENOMEM;

	sn->refs = 1;
	sn->lineage = lineage;
	sn->flags = flags;
	sn->time_ns = os_now_ns();
	sn->label = sn->text + branch_len + 1;
	if (branch_len)
		memcpy(sn->text, branch, branch_len);
	if (label_len)
		memcpy(sn->text + branch_len + 1, label, label_len);
	link_init(&sn->children);
	link_init(&sn->sibling);
	link_init(&sn->link);
	link_init(&sn->lru);
	link_init(&sn->rewrite);
	*ret = sn;
	return 0;
}

void snap_free(struct snap *sn)
{
	if (sn->root)
		root_unref(sn->root);
	slab_free(sn);
}

static int grow_buckets(struct store *s)
{
	size_t count = s->bucket_count ? 2 * s->bucket_count : FIRST_BUCKETS;
	struct snap **buckets = os_calloc(count, sizeof(*buckets));

	if (!buckets)
		return -ENOMEM;
	free(s->buckets);
	s->buckets = buckets;
	s->bucket_count = count;

	for (size_t i = 0; i < s->snap_slots; i++) {
		struct snap *sn = s->snaps[i], **bucket;

		if (!sn)
			continue;
		bucket = bucket_of(s, sn->id);
		sn->hash_next = *bucket;
		*bucket = sn;
	}
	return 0;
}

int snap_reserve(struct store *s)
{
	if (s->snap_count >= s->bucket_count) {
		int r = grow_buckets(s);

		if (r < 0)
			return r;
	}
	if (s->snap_slots < s->snap_capacity)
		return 0;

	/*
	 * Holes of dropped snapshots are closed once they are half, so that a drop costs no move.
	 */
	if (s->snap_count < s->snap_slots / 2) {
		size_t to = 0;

		for (size_t i = 0; i < s->snap_slots; i++) {
			if (!s->snaps[i])
				continue;
			s->snaps[i]->pos = to;
			s->snaps[to++] = s->snaps[i];
		}
		s->snap_slots = to;
	} else {
		size_t capacity = s->snap_capacity ? 2 * s->snap_capacity : FIRST_SLOTS;
		struct snap **snaps = os_realloc(s->snaps, capacity * sizeof(*snaps));

		if (!snaps)
			return -ENOMEM;
		s->snaps = snaps;
		s->snap_capacity = capacity;
	}
	return 0;
}

/* id and seq are set, snap_reserve was called, and seq is the largest so far. */
static void table_add(struct store *s, struct snap *sn)
{
	struct snap **bucket = bucket_of(s, sn->id);

	sn->hash_next = *bucket;
	*bucket = sn;
	sn->pos = s->snap_slots;
	s->snaps[s->snap_slots++] = sn;
	s->snap_count++;
}

static void set_parent(struct snap *sn, struct snap *up)
{
	sn->up = up;
	link_remove(&sn->sibling);
	if (up)
		link_add_last(&up->children, &sn->sibling);
}

void snap_insert(struct store *s, struct snap *sn, struct snap *up, struct root *root)
{
	snap_insert_at(s, sn, s->next_seq, up, root);
}

void snap_insert_at(struct store *s, struct snap *sn, uint64_t seq, struct snap *up,
		    struct root *root)
{
	sn->seq = seq;
	s->next_seq = MAX(s->next_seq, seq + 1);
	sn->id = snap_id_of(s->id_key, sn->seq);
	sn->root = root_ref(root);
	table_add(s, sn);
	set_parent(sn, up);
	link_add_last(&s->queue, &sn->link);
	s->queue_length++;
	sealer_kick(s);
}

void snap_unref_locked(struct store *s, struct snap *sn)
{
	if (--sn->refs == 0)
		link_add_last(&s->dead, &sn->link);
}

void snap_set_hold(struct snap **slot, struct snap *sn)
{
	if (*slot)
		(*slot)->holds--;
	if (sn)
		sn->holds++;
	*slot = sn;
}

void snap_mark_rewrite(struct store *s, struct snap *sn)
{
	/* A queued one will be written with what it is then. */
	if ((sn->durable || sn->batched) && link_alone(&sn->rewrite)) {
		link_add_last(&s->rewrite, &sn->rewrite);
		sealer_kick(s);
	}
}

bool snap_has_state(const struct snap *sn, const struct root *root)
{
	struct name name;

	if (sn->root && root_same(sn->root, root))
		return true;
	return sn->durable && root_name(root, &name) == 0 && name_eq(&name, &sn->name);
}

static void lru_remove(struct store *s, struct snap *sn)
{
	if (link_alone(&sn->lru))
		return;
	link_remove(&sn->lru);
	s->lru_length--;
}

static void lru_use(struct store *s, struct snap *sn)
{
	if (!sn->durable)
		return; /* its state exists in memory only */
	lru_remove(s, sn);
	link_add_last(&s->lru, &sn->lru);
	s->lru_length++;
}

static void leave_branch(struct store *s, struct entry *e, struct snap *sn)
{
	if (e->head != sn && e->undo != sn)
		return;
	if (e->head == sn) {
		snap_set_hold(&e->head, sn->up);
		e->changes++; /* it differs from its new head */
	}
	if (e->undo == sn)
		snap_set_hold(&e->undo, NULL);
	e->stale = e->live != NULL;
	entry_touched(s, e);
}

static void leave_branches(struct store *s, struct snap *sn)
{
	for (size_t i = 0; i < s->entry_count && sn->holds > 0; i++)
		leave_branch(s, s->entries[i], sn);
	for (struct link *l = s->orphans.next; l != &s->orphans && sn->holds > 0; l = l->next)
		leave_branch(s, container_of(l, struct entry, orphan), sn);
}

/* Its parent has its place: children and branches move there. */
static void make_way(struct store *s, struct snap *sn)
{
	while (!link_alone(&sn->children)) {
		struct snap *child = container_of(sn->children.next, struct snap, sibling);

		set_parent(child, sn->up);
		snap_mark_rewrite(s, child);
	}
	leave_branches(s, sn);
}

/* Takes it out of the table. */
static void snap_detach(struct store *s, struct snap *sn)
{
	struct snap **at = bucket_of(s, sn->id);

	while (*at != sn)
		at = &(*at)->hash_next;
	*at = sn->hash_next;
	s->snaps[sn->pos] = NULL;
	s->snap_count--;

	make_way(s, sn);
	set_parent(sn, NULL);
	lru_remove(s, sn);
	link_remove(&sn->rewrite);
	sn->dropped = true;

	if (sn->durable) {
		link_add_last(&s->doomed, &sn->link);
	} else {
		link_remove(&sn->link); /* from the queue */
		s->queue_length--;
		snap_unref_locked(s, sn);
	}
	sealer_kick(s);
}

/*
 * Nobody asks for it: a child that is automatic itself does not, else undoing and changing in turns
 * would make a chain without end.
 */
bool snap_is_unwanted(const struct snap *sn)
{
	if (!(sn->flags & SNAP_AUTO) || sn->dropped || sn->holds > 0 || sn->pins > 0)
		return false;
	for (struct link *l = sn->children.next; l != &sn->children; l = l->next)
		if (!(container_of(l, struct snap, sibling)->flags & SNAP_AUTO))
			return false;
	return true;
}

/* One that was asked to go becomes an automatic one that nobody asks for. */
static void snap_hide(struct store *s, struct snap *sn)
{
	make_way(s, sn);
	sn->flags |= SNAP_AUTO;
	sn->label = "";
	snap_mark_rewrite(s, sn);
}

void snap_drop_loose(struct store *s, struct snap *sn)
{
	/* While the journal is replayed its own records say which ones went, and when. */
	while (sn && !s->replaying && sn->needs == 0 && snap_is_unwanted(sn)) {
		struct snap *up = sn->up;

		log_loose_drop(s, sn->id);
		snap_detach(s, sn);
		sn = up;
	}
}

void snap_became_durable(struct store *s, struct snap *sn)
{
	sn->durable = true;
	if (sn->dropped) { /* while its batch was under way */
		sn->refs++;
		link_add_last(&s->doomed, &sn->link);
		sealer_kick(s);
		return;
	}
	link_remove(&sn->link);
	s->queue_length--;
	lru_use(s, sn);
}

int snap_root_locked(struct store *s, struct snap *sn, struct root **ret)
{
	int r;

	if (!sn->root) {
		r = store_load_root(s, &sn->name, &sn->root);
		if (r < 0)
			return r;
	}
	lru_use(s, sn);
	*ret = root_ref(sn->root);
	return 0;
}

/* Lets go of states beyond `most`; each is freed outside the lock. */
static void lru_trim(struct store *s, size_t most)
{
	for (;;) {
		_cleanup_(root_unrefp) struct root *root = NULL;
		LOCK_GUARD(&s->table);
		struct snap *sn;

		if (s->lru_length <= most)
			return;
		sn = container_of(s->lru.next, struct snap, lru);
		lru_remove(s, sn);
		root = TAKE_PTR(sn->root);
	}
}

void snap_let_go(struct store *s)
{
	lru_trim(s, 0);
}

void snap_reap(struct store *s)
{
	lru_trim(s, ROOTS_IN_MEMORY);
	for (;;) {
		_cleanup_(snap_freep) struct snap *sn = NULL;
		LOCK_GUARD(&s->table);
		struct link *l = link_take_first(&s->dead);

		if (!l)
			return;
		sn = container_of(l, struct snap, link);
	}
}

/* ---- loading ---- */

struct loading {
	struct store *store;
	struct loaded {
		struct snap *sn;
		uint64_t parent;
	} *list;
	size_t count, capacity;
};

static int loading_add(struct loading *l, struct snap *sn, uint64_t parent)
{
	if (l->count == l->capacity) {
		size_t capacity = l->capacity ? 2 * l->capacity : FIRST_SLOTS;
		struct loaded *list = os_realloc(l->list, capacity * sizeof(*list));

		if (!list)
			return -ENOMEM;
		l->list = list;
		l->capacity = capacity;
	}
	l->list[l->count++] = (struct loaded){ sn, parent };
	return 0;
}

static int load_bad(struct store *s, uint64_t id)
{
	char text[SNAP_ID_SIZE];
	struct snap *sn;
	int r;

	r = snap_new(s, 0, NULL, NULL, 0, &sn);
	if (r < 0)
		return r;

	sn->id = id;
	sn->damaged = true;
	sn->durable = true;
	link_add_last(&s->bad, &sn->link);
	(void)note(&s->noter, 0, "snapshot %s: its record is damaged, ignoring",
		   snap_id_to_text(id, text));
	return 0;
}

static int load_one(void *arg, const void *key, size_t key_len, const void *value, size_t value_len)
{
	struct loading *l = arg;
	struct store *s = l->store;
	_cleanup_(snap_freep) struct snap *sn = NULL;
	struct snap_record rec;
	uint64_t id;
	int r;

	r = snap_key_decode(key, key_len, &id);
	if (r < 0) {
		(void)note(&s->noter, 0, "a snapshot record has a damaged key, ignoring");
		return 0;
	}

	/* The number must belong to the id: so two records can never claim one number. */
	r = snap_record_decode(value, value_len, &rec);
	if (r < 0 || snap_id_of(s->id_key, rec.seq) != id)
		return load_bad(s, id);

	r = snap_new(s, rec.lineage, rec.branch, rec.label, rec.flags, &sn);
	if (r < 0)
		return r;
	sn->id = id;
	sn->seq = rec.seq;
	sn->time_ns = rec.time_ns;
	sn->name = rec.root;
	sn->durable = true;
	r = loading_add(l, sn, rec.parent);
	if (r < 0)
		return r;
	sn = NULL;
	return 0;
}

static int by_seq(const void *x, const void *y)
{
	const struct loaded *a = x, *b = y;

	return a->sn->seq < b->sn->seq ? -1 : a->sn->seq > b->sn->seq;
}

int snap_load_all(struct store *s)
{
	struct loading l = { .store = s };
	size_t taken = 0;
	int r;

	r = index_each(s->index, INDEX_SNAPS, load_one, &l);
	if (r == 0 && l.count > 0)
		qsort(l.list, l.count, sizeof(*l.list), by_seq);

	/* Parents have smaller numbers, so they are in the table before their children. */
	for (; r == 0 && taken < l.count; taken++) {
		struct snap *sn = l.list[taken].sn;

		r = snap_reserve(s);
		if (r < 0)
			break;
		set_parent(sn, snap_lookup(s, l.list[taken].parent)); /* unknown: check reports */
		table_add(s, sn);
		if (sn->seq >= s->next_seq)
			s->next_seq = sn->seq + 1;
	}
	for (; taken < l.count; taken++)
		snap_free(l.list[taken].sn);
	free(l.list);
	return r;
}

/* ---- public verbs ---- */

int snap_create(struct store *s, struct root *root, uint64_t parent, uint64_t lineage,
		const char *branch, const char *label, uint32_t flags, uint64_t *ret_id)
{
	_cleanup_(snap_freep) struct snap *sn = NULL;
	int r;

	r = snap_new(s, lineage, branch, label, flags, &sn);
	if (r < 0)
		return r;

	LOCK_GUARD(&s->table);
	r = snap_reserve(s);
	if (r < 0)
		return r;
	snap_insert(s, sn, snap_lookup(s, parent), root);
	*ret_id = sn->id;
	sn = NULL;
	return 0;
}

struct snap *snap_parent(const struct snap *sn)
{
	struct snap *up = sn->up;

	while (up && snap_is_unwanted(up))
		up = up->up;
	return up;
}

static void fill_info(const struct snap *sn, struct snap_info *ret)
{
	*ret = (struct snap_info){
		.id = sn->id,
		.seq = sn->seq,
		.parent = snap_id_or_0(snap_parent(sn)),
		.lineage = sn->lineage,
		.time_ns = sn->time_ns,
		.flags = sn->flags,
		.durable = sn->durable,
		.has_root = sn->durable,
		.root = sn->name,
	};
	strcpy(ret->branch, sn->text); /* snap_new bounded both */
	strcpy(ret->label, sn->label);
}

int snap_get(struct store *s, uint64_t id, struct snap_info *ret)
{
	LOCK_GUARD(&s->table);
	struct snap *sn = snap_lookup(s, id);

	if (!sn)
		return -ERR_SNAP_UNKNOWN;
	fill_info(sn, ret);
	return 0;
}

int snap_root(struct store *s, uint64_t id, struct root **ret)
{
	int r;

	{
		LOCK_GUARD(&s->table);
		struct snap *sn = snap_lookup(s, id);

		if (!sn)
			return -ERR_SNAP_UNKNOWN;
		r = snap_root_locked(s, sn, ret);
	}
	lru_trim(s, ROOTS_IN_MEMORY);
	return r;
}

uint64_t snap_count(struct store *s)
{
	LOCK_GUARD(&s->table);

	return s->snap_count;
}

uint64_t snap_count_shown(const struct store *s)
{
	uint64_t n = 0;

	for (size_t i = 0; i < s->snap_slots; i++)
		n += s->snaps[i] && !snap_is_unwanted(s->snaps[i]);
	return n;
}

/*
 * The list is pointers with references: one taken at a time under the lock would miss or repeat
 * snapshots that move, and a copy of all infos would hold the lock for milliseconds.
 */
struct snap_list {
	struct store *store;
	struct snap **snaps; /* owned; each referenced */
	size_t count;
};

static int snap_list_take(struct store *s, struct snap_list *ret)
{
	LOCK_GUARD(&s->table);
	struct snap **snaps = os_malloc((s->snap_count + 1) * sizeof(struct snap *));

	if (!snaps)
		return -ENOMEM;
	*ret = (struct snap_list){ .store = s, .snaps = snaps };
	for (size_t i = 0; i < s->snap_slots; i++) {
		if (!s->snaps[i] || snap_is_unwanted(s->snaps[i]))
			continue;
		s->snaps[i]->refs++;
		snaps[ret->count++] = s->snaps[i];
	}
	return 0;
}

static void snap_list_release(struct snap_list *list)
{
	if (!list->store)
		return;
	pthread_mutex_lock(&list->store->table);
	for (size_t i = 0; i < list->count; i++)
		snap_unref_locked(list->store, list->snaps[i]);
	pthread_mutex_unlock(&list->store->table);
	free(list->snaps);
}

int snap_each(struct store *s, int (*fn)(void *arg, const struct snap_info *info), void *arg)
{
	_cleanup_(snap_list_release) struct snap_list list = { 0 };
	int r;

	r = snap_list_take(s, &list);
	for (size_t i = 0; r == 0 && i < list.count; i++) {
		struct snap_info info;

		pthread_mutex_lock(&s->table);
		fill_info(list.snaps[i], &info);
		pthread_mutex_unlock(&s->table);
		r = fn(arg, &info);
	}
	return r;
}

/* Also those whose own records were left out of the journal, or never written. */
void snap_drop_loose_ones(struct store *s)
{
	LOCK_GUARD(&s->table);

	for (size_t i = 0; i < s->snap_slots; i++)
		if (s->snaps[i])
			snap_drop_loose(s, s->snaps[i]);
}

int snap_need(struct store *s, uint64_t id)
{
	LOCK_GUARD(&s->table);
	struct snap *sn = snap_lookup(s, id);

	if (!sn)
		return -ERR_SNAP_UNKNOWN;
	sn->needs++;
	return 0;
}

void snap_unneed(struct store *s, uint64_t id)
{
	LOCK_GUARD(&s->table);
	struct snap *sn = snap_lookup(s, id);

	if (!sn || sn->needs == 0)
		return;
	sn->needs--;
	snap_drop_loose(s, sn);
}

int snap_pin(struct store *s, uint64_t id)
{
	LOCK_GUARD(&s->table);
	struct snap *sn = snap_lookup(s, id);

	if (!sn)
		return -ERR_SNAP_UNKNOWN;
	sn->pins++;
	return 0;
}

void snap_unpin(struct store *s, uint64_t id)
{
	LOCK_GUARD(&s->table);
	struct snap *sn = snap_lookup(s, id);

	if (!sn || sn->pins == 0)
		return;
	sn->pins--;
	snap_drop_loose(s, sn);
}

/* A damaged record has no snapshot in the table; its key can be deleted all the same. */
static int drop_bad(struct store *s, uint64_t id)
{
	for (struct link *l = s->bad.next; l != &s->bad; l = l->next) {
		struct snap *sn = container_of(l, struct snap, link);

		if (sn->id != id)
			continue;
		link_remove(&sn->link);
		link_add_last(&s->doomed, &sn->link);
		sealer_kick(s);
		return 0;
	}
	return -ERR_SNAP_UNKNOWN;
}

bool snap_is_bad(struct store *s, uint64_t id)
{
	for (struct link *l = s->bad.next; l != &s->bad; l = l->next)
		if (container_of(l, struct snap, link)->id == id)
			return true;
	return false;
}

int snap_drop_allowed(struct store *s, uint64_t id)
{
	LOCK_GUARD(&s->table);
	struct snap *sn = snap_lookup(s, id);

	if (!sn)
		return snap_is_bad(s, id) ? 0 : -ERR_SNAP_UNKNOWN;
	return sn->pins > 0 ? -ERR_SNAP_IN_USE : 0;
}

int snap_drop(struct store *s, uint64_t id)
{
	_cleanup_(log_end) struct table_log log = { 0 };
	const struct table_op op = { .kind = TABLE_DROP_SNAP, .snap = id };
	int r;

	r = log_begin(s, &log);
	if (r < 0)
		return r;
	{
		LOCK_GUARD(&s->table);
		struct snap *sn = snap_lookup(s, id), *up;

		if (!sn) {
			r = drop_bad(s, id);
			if (r == 0)
				(void)log_write(&log, &op);
			return r;
		}
		if (sn->pins > 0)
			return -ERR_SNAP_IN_USE;

		(void)log_write(&log, &op);
		up = sn->up;
		/* In a replay nobody has said yet what he needs. */
		if (sn->needs > 0 || s->replaying)
			snap_hide(s, sn);
		else
			snap_detach(s, sn);
		snap_drop_loose(s, up);
	}
	branch_publish(s);
	return 0;
}
