/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The entries of branches: the table of them, sorted by name, and how it is loaded. What an entry
 * holds is said in branch.c. All under the table lock, unless said otherwise.
 */

#include <errno.h>

#include "store/base/os.h"
#include "store/store_internal.h"

#define FIRST_ENTRIES 16

/* Where the name is, or belongs. */
static size_t entry_position(struct store *s, const char *name)
{
	size_t low = 0, high = s->entry_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (strcmp(s->entries[middle]->name, name) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

struct entry *entry_find(struct store *s, const char *name)
{
	size_t at = entry_position(s, name);

	if (at < s->entry_count && strcmp(s->entries[at]->name, name) == 0)
		return s->entries[at];
	return NULL;
}

struct entry *entry_find_bad(struct store *s, const char *name)
{
	for (struct link *l = s->bad_branches.next; l != &s->bad_branches; l = l->next) {
		struct entry *e = container_of(l, struct entry, link);

		if (strcmp(e->name, name) == 0)
			return e;
	}
	return NULL;
}

int entry_new(const char *name, struct entry **ret)
{
	struct entry *e = os_calloc(1, sizeof(*e));

	if (!e)
		return -ENOMEM;
	e->refs = 1;
	memcpy(e->name, name, strlen(name)); /* the caller checked its length */
	link_init(&e->link);
	link_init(&e->orphan);
	*ret = e;
	return 0;
}

void entry_let_snaps_go(struct store *s, struct entry *e)
{
	struct snap *head = e->head, *undo = e->undo;

	snap_set_hold(&e->head, NULL);
	snap_set_hold(&e->undo, NULL);
	snap_drop_loose(s, head);
	snap_drop_loose(s, undo);
}

void entry_unref_locked(struct store *s, struct entry *e)
{
	if (--e->refs > 0)
		return;
	entry_let_snaps_go(s, e);
	link_add_last(&s->dead_branches, &e->link);
}

void branch_reap(struct store *s)
{
	for (;;) {
		_cleanup_(entry_freep) struct entry *e = NULL;
		LOCK_GUARD(&s->table);
		struct link *l = link_take_first(&s->dead_branches);

		if (!l)
			return;
		e = container_of(l, struct entry, link);
	}
}

int entries_reserve(struct store *s)
{
	size_t capacity = s->entry_capacity ? 2 * s->entry_capacity : FIRST_ENTRIES;
	struct entry **entries;

	if (s->entry_count < s->entry_capacity)
		return 0;
	entries = os_realloc(s->entries, capacity * sizeof(*entries));
	if (!entries)
		return -ENOMEM;
	s->entries = entries;
	s->entry_capacity = capacity;
	return 0;
}

void entries_insert(struct store *s, struct entry *e)
{
	size_t at = entry_position(s, e->name);

	memmove(s->entries + at + 1, s->entries + at, (s->entry_count - at) * sizeof(e));
	s->entries[at] = e;
	s->entry_count++;
}

void entries_remove(struct store *s, struct entry *e)
{
	size_t at = entry_position(s, e->name);

	s->entry_count--;
	memmove(s->entries + at, s->entries + at + 1, (s->entry_count - at) * sizeof(e));
}

void entry_touched(struct store *s, struct entry *e)
{
	e->serial++;
	if (e->dropped)
		return;
	e->dirty = true;
	sealer_kick(s);
}

void entry_set_root(struct store *s, struct entry *e, struct root **root, uint64_t changes)
{
	struct root *old = e->root;

	e->root = *root;
	e->changes = changes;
	*root = old;
	entry_touched(s, e);
}

bool entry_has_state(const struct entry *e, const struct root *root)
{
	struct name name;

	if (e->root)
		return root_same(e->root, root);
	return root_name(root, &name) == 0 && name_eq(&name, &e->committed.root);
}

/* ---- loading ---- */

static int load_one(void *arg, const void *key, size_t key_len, const void *value, size_t value_len)
{
	struct store *s = arg;
	_cleanup_(entry_freep) struct entry *e = NULL;
	char name[BRANCH_NAME_MAX + 1] = "";
	int r;

	if (key_len <= BRANCH_NAME_MAX)
		memcpy(name, key, key_len);
	if (strlen(name) != key_len || !branch_name_ok(name)) {
		(void)note(&s->noter, 0, "a branch record has a damaged key, ignoring");
		return 0;
	}

	r = entry_new(name, &e);
	if (r < 0)
		return r;

	r = branch_record_decode(value, value_len, &e->committed);
	if (r < 0) {
		(void)note(&s->noter, 0, "branch '%s': its record is damaged, ignoring", name);
		e->damaged = true;
		link_add_last(&s->bad_branches, &e->link);
		e = NULL;
		return 0;
	}

	r = entries_reserve(s);
	if (r < 0)
		return r;

	/* A head or undo that is not there is taken for none; check reports it. */
	snap_set_hold(&e->head, snap_lookup(s, e->committed.head));
	snap_set_hold(&e->undo, snap_lookup(s, e->committed.undo));
	e->lineage = e->committed.lineage;
	e->changes = e->committed.changes;
	e->lsn = e->committed.lsn;
	e->in_index = true;
	entries_insert(s, e);
	e = NULL;
	return 0;
}

int branch_load_all(struct store *s)
{
	return index_each(s->index, INDEX_BRANCHES, load_one, s);
}
