/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What differs between two states, by path.
 *
 * Two states of one lineage are compared by items first: the tree's own diff skips equal subtrees,
 * so it delivers the items that differ and costs no more than they do. Items say which objects were
 * touched and which entries came or went; paths follow from that:
 *
 *   1. an entry that went has a path in a, one that came has a path in b;
 *   2. a directory whose own entry moved takes everything below it along: all its entries have a
 *      path on both sides, although none of their items differ;
 *   3. an object that was touched without its entries being so has all its names on both sides.
 *
 * Each side is a set of paths with their objects. A path in both sets is compared; a path in one is
 * an addition or a deletion; a deletion and an addition of one object (inode numbers are never used
 * twice in a lineage) are a rename. The claim that makes this right: a path in one set is in the
 * other one, too, exactly if it exists there. If the entry differs, rule 1 lists both; if it is the
 * same entry of the same directory at the same path, only rule 3 can have listed it, for both
 * sides; and if another directory came to that path, its entries are listed by rule 1 (it is new)
 * or 2 (it moved).
 *
 * Trees of different lineages share no objects; both are walked side by side, by name. Objects are
 * compared by compare.c.
 */

#include "fs/diff.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fs/compare.h"
#include "fs/model.h"
#include "store/base/err.h"
#include "store/base/os.h"
#include "store/base/util.h"
#include "store/store.h"

/* What root_diff saw of an object. */
enum touched { TOUCHED_INODE = 1, TOUCHED_XATTR = 2, TOUCHED_DATA = 4 };

struct touch {
	uint64_t ino;
	unsigned what;
};

struct entry { /* an entry that came (side b) or went (side a) */
	uint64_t dir, ino;
	char *name; /* owned */
};

struct named {	    /* a path on one side */
	char *path; /* owned */
	uint64_t ino;
	int pair; /* side a: index of the path of b that it was renamed to, or -1; side b: bool */
};

struct side {
	struct tree *tree; /* owned */
	struct fs fs;
	struct entry *entries; /* owned */
	size_t n_entries, entries_cap;
	struct named *named; /* owned */
	size_t n_named, named_cap;
	uint64_t *seen;		 /* owned: set of directories that were entered; 0: free slot */
	size_t n_seen, seen_cap; /* cap: 0 or a power of two */
	uint64_t path_dir;	 /* the directory whose path was asked for last, */
	char *path;		 /* owned: and its path; NULL: none */
};

struct diff {
	struct side a, b;
	struct touch *touched; /* owned, ascending: keys come by inode */
	size_t n_touched, touched_cap;
	struct key next;  /* behind the last item that root_diff told of, */
	unsigned n_items; /* and how many it did since the trees were looked at (limit) */
	bool same_lineage;
	unsigned flags;
	struct comparer comparer;
	int (*fn)(void *arg, const struct change *c);
	void *arg;
};

static void side_release(struct side *s)
{
	for (size_t i = 0; i < s->n_entries; i++)
		free(s->entries[i].name);
	free(s->entries);
	for (size_t i = 0; i < s->n_named; i++)
		free(s->named[i].path);
	free(s->named);
	free(s->seen);
	free(s->path);
	tree_freep(&s->tree);
}

static void diff_release(struct diff *d)
{
	side_release(&d->a);
	side_release(&d->b);
	free(d->touched);
	comparer_release(&d->comparer);
}

static int side_init(struct side *s, struct store *store, struct root *root)
{
	int r;

	r = tree_new(store_nodes(store), root, &s->tree);
	if (r < 0)
		return r;
	s->fs = (struct fs){ .store = store, .tree = s->tree };
	return 0;
}

/* Between two steps: both states may be large. */
static int limit(struct diff *d)
{
	int r = store_read_limit(d->a.fs.store, d->a.tree);

	return r < 0 ? r : store_read_limit(d->b.fs.store, d->b.tree);
}

/* 0, or ABSENT. */
static int stat_in(const struct side *s, uint64_t ino, struct inode *ret)
{
	int r = fs_stat(&s->fs, ino, ret);

	return r == -ENOENT ? ABSENT : r;
}

/* ---- collecting paths ---- */

/* Takes path. */
static int add_named(struct side *s, char **path, uint64_t ino)
{
	int r;

	r = os_grow(&s->named, &s->named_cap, s->n_named + 1, sizeof(*s->named));
	if (r < 0)
		return r;
	s->named[s->n_named++] = (struct named){ .path = TAKE_PTR(*path), .ino = ino, .pair = -1 };
	return 0;
}

static char *join(const char *dir, const char *name, size_t len)
{
	size_t n = strlen(dir), at = n ? n + 1 : 0;
	char *p = malloc(at + len + 1);

	if (!p)
		return NULL;
	if (n) {
		memcpy(p, dir, n);
		p[n] = '/';
	}
	memcpy(p + at, name, len);
	p[at + len] = '\0';
	return p;
}

/* A directory's path, lent until the next call. ABSENT: it has none (removed, still open). */
static int dir_path(struct side *s, uint64_t dir, const char **ret)
{
	size_t len;
	int r;

	if (!s->path || s->path_dir != dir) {
		free(s->path);
		s->path = NULL;
		r = fs_path(&s->fs, dir, &s->path, &len);
		if (r == -ENOENT)
			return ABSENT;
		if (r < 0)
			return r;
		s->path_dir = dir;
	}
	*ret = s->path;
	return 0;
}

static int add_entry_path(struct side *s, uint64_t dir, const char *name, size_t len, uint64_t ino)
{
	_cleanup_free_ char *path = NULL;
	const char *above;
	int r;

	r = dir_path(s, dir, &above);
	if (r != 0)
		return r < 0 ? r : 0;
	path = join(above, name, len);
	if (!path)
		return -ENOMEM;
	return add_named(s, &path, ino);
}

struct child {
	uint64_t ino;
	unsigned type;
	char *name; /* owned */
};
struct children {
	struct child *c; /* owned */
	size_t n, cap;
	int r;
};

static void children_release(struct children *cs)
{
	for (size_t i = 0; i < cs->n; i++)
		free(cs->c[i].name);
	free(cs->c);
	*cs = (struct children){ 0 };
}

static int add_child(void *arg, const char *name, size_t len, uint64_t ino, unsigned type,
		     uint64_t next_cookie)
{
	struct children *cs = arg;
	char *copy = strndup(name, len);

	cs->r = copy ? os_grow(&cs->c, &cs->cap, cs->n + 1, sizeof(*cs->c)) : -ENOMEM;
	if (cs->r < 0) {
		free(copy);
		return 1;
	}
	cs->c[cs->n++] = (struct child){ .ino = ino, .type = type, .name = copy };
	return 0;
}

static int child_cmp(const void *x, const void *y)
{
	return strcmp(((const struct child *)x)->name, ((const struct child *)y)->name);
}

/* What dir holds, by name. cs is released by the caller, whatever the outcome. */
static int list(const struct side *s, uint64_t dir, struct children *cs)
{
	int r = fs_readdir(&s->fs, dir, 2 /* behind ".." */, add_child, cs);

	if (r >= 0 && cs->r < 0)
		r = cs->r;
	if (r < 0)
		return r;
	if (cs->n > 1)
		qsort(cs->c, cs->n, sizeof(*cs->c), child_cmp);
	return 0;
}

/* A list of directories that wait to be looked into, instead of recursion: trees may be deep. */
struct todo {
	struct pending {
		char *path;    /* owned */
		uint64_t a, b; /* inodes; 0: not there. In expand() a alone */
	} * p;		       /* owned */
	size_t n, cap;
};

static void todo_release(struct todo *t)
{
	for (size_t i = 0; i < t->n; i++)
		free(t->p[i].path);
	free(t->p);
}

/* Takes path. */
static int todo_push(struct todo *t, char **path, uint64_t a, uint64_t b)
{
	int r;

	r = os_grow(&t->p, &t->cap, t->n + 1, sizeof(*t->p));
	if (r < 0)
		return r;
	t->p[t->n++] = (struct pending){ .path = TAKE_PTR(*path), .a = a, .b = b };
	return 0;
}

static size_t seen_slot(const uint64_t *seen, size_t cap, uint64_t dir)
{
	size_t i = (size_t)((dir * UINT64_C(0x9e3779b97f4a7c15)) >> 32);

	while (seen[i & (cap - 1)] != 0 && seen[i & (cap - 1)] != dir)
		i++;
	return i & (cap - 1);
}

/* 1: dir was here before; 0: not, but now. */
static int seen_before(struct side *s, uint64_t dir)
{
	size_t at;

	if (2 * (s->n_seen + 1) > s->seen_cap) {
		size_t cap = s->seen_cap ? 2 * s->seen_cap : 64;
		uint64_t *p = calloc(cap, sizeof(*p));

		if (!p)
			return -ENOMEM;
		for (size_t i = 0; i < s->seen_cap; i++)
			if (s->seen[i] != 0)
				p[seen_slot(p, cap, s->seen[i])] = s->seen[i];
		free(s->seen);
		s->seen = p;
		s->seen_cap = cap;
	}
	at = seen_slot(s->seen, s->seen_cap, dir);
	if (s->seen[at] == dir)
		return 1;
	s->seen[at] = dir;
	s->n_seen++;
	return 0;
}

/* Rule 2: everything below a directory that moved. */
static int expand(struct diff *d, struct side *s, uint64_t top)
{
	_cleanup_(todo_release) struct todo todo = { 0 };
	_cleanup_free_ char *path = NULL;
	const char *top_path;
	int r;

	r = dir_path(s, top, &top_path);
	if (r != 0)
		return r < 0 ? r : 0;
	path = strdup(top_path);
	if (!path)
		return -ENOMEM;
	r = todo_push(&todo, &path, top, 0);
	while (r == 0 && todo.n > 0) {
		struct pending p = todo.p[--todo.n];
		struct children cs = { 0 };

		r = limit(d);
		if (r == 0)
			r = seen_before(s, p.a);
		if (r == 0)
			r = list(s, p.a, &cs);
		for (size_t i = 0; r == 0 && i < cs.n; i++) {
			_cleanup_free_ char *below =
				join(p.path, cs.c[i].name, strlen(cs.c[i].name));
			_cleanup_free_ char *copy = NULL;

			if (!below)
				r = -ENOMEM;
			if (r == 0 && cs.c[i].type == DT_DIR) {
				copy = strdup(below);
				r = copy ? todo_push(&todo, &copy, cs.c[i].ino, 0) : -ENOMEM;
			}
			if (r == 0)
				r = add_named(s, &below, cs.c[i].ino);
		}
		children_release(&cs);
		free(p.path);
		if (r > 0)
			r = 0; /* seen before */
	}
	return r;
}

/* ---- one lineage: by items ---- */

static int touch(struct diff *d, uint64_t ino, unsigned what)
{
	int r;

	if (d->n_touched > 0 && d->touched[d->n_touched - 1].ino == ino) {
		d->touched[d->n_touched - 1].what |= what;
		return 0;
	}
	r = os_grow(&d->touched, &d->touched_cap, d->n_touched + 1, sizeof(*d->touched));
	if (r < 0)
		return r;
	d->touched[d->n_touched++] = (struct touch){ .ino = ino, .what = what };
	return 0;
}

static unsigned touched_what(const struct diff *d, uint64_t ino)
{
	size_t from = 0, to = d->n_touched;

	while (from < to) {
		size_t mid = from + (to - from) / 2;

		if (d->touched[mid].ino == ino)
			return d->touched[mid].what;
		if (d->touched[mid].ino < ino)
			from = mid + 1;
		else
			to = mid;
	}
	return 0;
}

static int add_entry(struct side *s, uint64_t dir, const struct val *v)
{
	struct dirent_item e;
	char *name;
	int r;

	if (!v)
		return 0;
	r = dirent_decode(v, &e);
	if (r < 0)
		return r;
	r = os_grow(&s->entries, &s->entries_cap, s->n_entries + 1, sizeof(*s->entries));
	if (r < 0)
		return r;
	name = strndup(e.name, e.len);
	if (!name)
		return -ENOMEM;
	s->entries[s->n_entries++] = (struct entry){ .dir = dir, .ino = e.ino, .name = name };
	return 0;
}

static int note_item(struct diff *d, const struct key *k, const struct val *old_val,
		     const struct val *new_val)
{
	int r;

	if (k->a == FS_KEYS)
		return 0; /* orphans */
	switch (k->t) {
	case ITEM_INODE:
		return touch(d, k->a, TOUCHED_INODE);
	case ITEM_XATTR:
		return touch(d, k->a, TOUCHED_XATTR);
	case ITEM_TARGET:
	case ITEM_EXTENT:
		return touch(d, k->a, TOUCHED_DATA);
	case ITEM_DIRENT:
		r = add_entry(&d->a, k->a, old_val);
		if (r < 0)
			return r;
		return add_entry(&d->b, k->a, new_val);
	default:
		return 0; /* further names: their entries tell */
	}
}

/*
 * So many items are told of at once: each may lie in a leaf of its own, a megabyte of them then,
 * and to find the place again costs as much as a few.
 */
#define ITEMS_AT_ONCE 128

static int collect_item(void *arg, const struct key *k, const struct val *old_val,
			const struct val *new_val)
{
	struct diff *d = arg;
	int r = note_item(d, k, old_val, new_val);

	d->next = key_next(k);
	return r < 0 ? r : ++d->n_items == ITEMS_AT_ONCE;
}

static int collect_items(struct diff *d)
{
	int r;

	do {
		r = limit(d);
		if (r < 0)
			return r;
		d->n_items = 0;
		r = root_diff(tree_state(d->a.tree), tree_state(d->b.tree), &d->next, &KEY_MAX,
			      collect_item, d);
	} while (r == 1);
	return r;
}

struct names_arg {
	struct side *side;
	uint64_t ino;
};

static int add_name(void *arg, uint64_t parent, const char *name, size_t len)
{
	struct names_arg *a = arg;

	return add_entry_path(a->side, parent, name, len, a->ino);
}

static int add_names(struct side *s, uint64_t ino)
{
	struct names_arg a = { .side = s, .ino = ino };
	int r;

	if (ino == ROOT_INO) {
		_cleanup_free_ char *path = strdup("");

		return path ? add_named(s, &path, ino) : -ENOMEM;
	}
	r = fs_names(&s->fs, ino, add_name, &a);
	return r == -ENOENT ? 0 : r;
}

static int collect(struct diff *d)
{
	int r;

	r = collect_items(d);
	if (r < 0)
		return r;

	for (size_t i = 0; i < 2; i++) { /* rules 1 and 2 */
		struct side *s = i == 0 ? &d->a : &d->b, *other = i == 0 ? &d->b : &d->a;

		for (size_t n = 0; n < s->n_entries; n++) {
			const struct entry *e = &s->entries[n];
			struct inode here, there;

			r = limit(d);
			if (r < 0)
				return r;
			r = add_entry_path(s, e->dir, e->name, strlen(e->name), e->ino);
			if (r < 0)
				return r;
			r = stat_in(s, e->ino, &here);
			if (r < 0)
				return r;
			if (r == ABSENT || !inode_is_dir(&here))
				continue;
			r = stat_in(other, e->ino, &there);
			if (r < 0)
				return r;
			if (r == ABSENT)
				continue; /* all of it is new or gone: each entry differs */
			r = expand(d, &d->a, e->ino);
			if (r == 0)
				r = expand(d, &d->b, e->ino);
			if (r < 0)
				return r;
		}
	}
	for (size_t i = 0; i < d->n_touched; i++) { /* rule 3 */
		struct inode in_a, in_b;
		int ra, rb;

		r = limit(d);
		if (r < 0)
			return r;
		ra = stat_in(&d->a, d->touched[i].ino, &in_a);
		if (ra < 0)
			return ra;
		rb = stat_in(&d->b, d->touched[i].ino, &in_b);
		if (rb < 0)
			return rb;
		if (ra == ABSENT || rb == ABSENT)
			continue; /* its entries differ, too */
		if (inode_is_dir(&in_a) && !(d->flags & DIFF_DIRS))
			continue;
		r = add_names(&d->a, d->touched[i].ino);
		if (r == 0)
			r = add_names(&d->b, d->touched[i].ino);
		if (r < 0)
			return r;
	}
	return 0;
}

/* ---- different lineages: by name ---- */

static int walk_pair(struct diff *d, struct todo *todo, const struct pending *p,
		     struct children *as, struct children *bs)
{
	size_t i = 0, j = 0;
	int r;

	if (p->a) {
		r = list(&d->a, p->a, as);
		if (r < 0)
			return r;
	}
	if (p->b) {
		r = list(&d->b, p->b, bs);
		if (r < 0)
			return r;
	}
	while (i < as->n || j < bs->n) {
		int order = i == as->n ? 1 : j == bs->n ? -1 : strcmp(as->c[i].name, bs->c[j].name);
		const struct child *ca = order <= 0 ? &as->c[i++] : NULL;
		const struct child *cb = order >= 0 ? &bs->c[j++] : NULL;
		const char *name = ca ? ca->name : cb->name;
		uint64_t da = ca && ca->type == DT_DIR ? ca->ino : 0;
		uint64_t db = cb && cb->type == DT_DIR ? cb->ino : 0;

		if (ca) {
			_cleanup_free_ char *path = join(p->path, name, strlen(name));

			r = path ? add_named(&d->a, &path, ca->ino) : -ENOMEM;
			if (r < 0)
				return r;
		}
		if (cb) {
			_cleanup_free_ char *path = join(p->path, name, strlen(name));

			r = path ? add_named(&d->b, &path, cb->ino) : -ENOMEM;
			if (r < 0)
				return r;
		}
		if (da || db) {
			_cleanup_free_ char *path = join(p->path, name, strlen(name));

			r = path ? todo_push(todo, &path, da, db) : -ENOMEM;
			if (r < 0)
				return r;
		}
	}
	return 0;
}

/* What lies in two places, or in itself, damage has put there: the walk would not end. */
static int enter(struct side *s, uint64_t dir)
{
	const struct key k = item_key(dir, ITEM_INODE, 0);
	int r = dir ? seen_before(s, dir) : 0;

	return r > 0 ? item_damaged(&s->fs, &k, "a directory that lies in two places") : r;
}

static int walk_both(struct diff *d)
{
	_cleanup_(todo_release) struct todo todo = { 0 };
	_cleanup_free_ char *top = strdup("");
	int r;

	if (!top)
		return -ENOMEM;
	r = add_names(&d->a, ROOT_INO);
	if (r == 0)
		r = add_names(&d->b, ROOT_INO);
	if (r == 0)
		r = todo_push(&todo, &top, ROOT_INO, ROOT_INO);
	while (r == 0 && todo.n > 0) {
		struct pending p = todo.p[--todo.n];
		struct children as = { 0 }, bs = { 0 };

		r = limit(d);
		if (r == 0)
			r = enter(&d->a, p.a);
		if (r == 0)
			r = enter(&d->b, p.b);
		if (r == 0)
			r = walk_pair(d, &todo, &p, &as, &bs);
		children_release(&as);
		children_release(&bs);
		free(p.path);
	}
	return r;
}

/* ---- from paths to changes ---- */

static int named_cmp(const void *x, const void *y)
{
	return strcmp(((const struct named *)x)->path, ((const struct named *)y)->path);
}

/* By path, each once; without directories unless they are wanted. */
static int settle(struct diff *d, struct side *s)
{
	size_t n = 0;
	int r;

	if (s->n_named > 1)
		qsort(s->named, s->n_named, sizeof(*s->named), named_cmp);
	for (size_t i = 0; i < s->n_named; i++) {
		struct named *x = &s->named[i];
		struct inode inode;
		bool keep = n == 0 || strcmp(s->named[n - 1].path, x->path) != 0;

		if (keep && !(d->flags & DIFF_DIRS)) {
			r = limit(d);
			if (r < 0)
				return r;
			r = stat_in(s, x->ino, &inode);
			if (r < 0)
				return r;
			if (r == ABSENT)
				return -ERR_ITEM_DAMAGED;
			keep = !inode_is_dir(&inode);
		}
		if (!keep) {
			free(x->path);
			x->path = NULL;
			continue;
		}
		if (n != i) {
			s->named[n] = *x;
			x->path = NULL;
		}
		n++;
	}
	s->n_named = n;
	return 0;
}

struct loose { /* a path that only one side has */
	uint64_t ino;
	size_t index;
};

static int loose_cmp(const void *x, const void *y)
{
	const struct loose *p = x, *q = y;

	if (p->ino != q->ino)
		return p->ino < q->ino ? -1 : 1;
	return p->index < q->index ? -1 : p->index > q->index;
}

/* Pairs paths of one object that went with ones that came, in order of path. */
static int pair_renames(struct diff *d)
{
	_cleanup_free_ struct loose *gone = calloc(d->a.n_named + 1, sizeof(*gone));
	_cleanup_free_ struct loose *came = calloc(d->b.n_named + 1, sizeof(*came));
	size_t n_gone = 0, n_came = 0, i = 0, j = 0;

	if (!gone || !came)
		return -ENOMEM;
	while (i < d->a.n_named || j < d->b.n_named) {
		int order = i == d->a.n_named	? 1
			    : j == d->b.n_named ? -1
						: strcmp(d->a.named[i].path, d->b.named[j].path);

		if (order < 0)
			gone[n_gone++] = (struct loose){ .ino = d->a.named[i].ino, .index = i };
		if (order > 0)
			came[n_came++] = (struct loose){ .ino = d->b.named[j].ino, .index = j };
		i += order <= 0;
		j += order >= 0;
	}
	qsort(gone, n_gone, sizeof(*gone), loose_cmp);
	qsort(came, n_came, sizeof(*came), loose_cmp);
	for (i = j = 0; i < n_gone && j < n_came;) {
		if (gone[i].ino == came[j].ino) {
			d->a.named[gone[i].index].pair = (int)came[j].index;
			d->b.named[came[j].index].pair = (int)gone[i].index;
			i++;
			j++;
		} else if (gone[i].ino < came[j].ino) {
			i++;
		} else {
			j++;
		}
	}
	return 0;
}

/* One object of one lineage: parts whose items do not differ need no look. */
static unsigned untouched(const struct diff *d, const struct inode *a, const struct inode *b)
{
	unsigned seen;

	if (!d->same_lineage || a->ino != b->ino)
		return 0;
	seen = touched_what(d, a->ino);
	return (seen & TOUCHED_DATA ? 0 : WHAT_DATA) | (seen & TOUCHED_XATTR ? 0 : WHAT_XATTR);
}

/* Either may be NULL. */
static int emit(struct diff *d, const struct named *x, const struct named *y)
{
	struct inode in_a, in_b;
	struct change c = { 0 };
	int r;

	if (x) {
		r = stat_in(&d->a, x->ino, &in_a);
		if (r != 0)
			return r < 0 ? r : -ERR_ITEM_DAMAGED;
		c.old_path = x->path;
		c.old_inode = &in_a;
	}
	if (y) {
		r = stat_in(&d->b, y->ino, &in_b);
		if (r != 0)
			return r < 0 ? r : -ERR_ITEM_DAMAGED;
		c.new_path = y->path;
		c.new_inode = &in_b;
	}
	if (!x || !y) {
		c.kind = x ? CHANGE_DELETED : CHANGE_ADDED;
		return d->fn(d->arg, &c);
	}
	if ((in_a.mode & S_IFMT) != (in_b.mode & S_IFMT)) {
		c.kind = CHANGE_TYPE;
		c.what = WHAT_DATA;
		return d->fn(d->arg, &c);
	}
	if (d->flags & DIFF_ALL) {
		c.kind = strcmp(x->path, y->path) == 0 ? CHANGE_MODIFIED : CHANGE_RENAMED;
		return d->fn(d->arg, &c);
	}
	r = comparer_compare(&d->comparer, &in_a, &in_b, untouched(d, &in_a, &in_b), &c.what);
	if (r < 0)
		return r;
	c.kind = strcmp(x->path, y->path) == 0 ? CHANGE_MODIFIED : CHANGE_RENAMED;
	if (c.kind == CHANGE_MODIFIED &&
	    (d->flags & DIFF_TIMES ? c.what : c.what & ~WHAT_TIME) == 0)
		return 0;
	return d->fn(d->arg, &c);
}

static int emit_all(struct diff *d)
{
	struct side *a = &d->a, *b = &d->b;
	size_t i = 0, j = 0;
	int r = limit(d);

	while (r == 0 && (i < a->n_named || j < b->n_named)) {
		struct named *x = i < a->n_named ? &a->named[i] : NULL;
		struct named *y = j < b->n_named ? &b->named[j] : NULL;
		int order = !x ? 1 : !y ? -1 : strcmp(x->path, y->path);

		if (order < 0) {
			i++;
			if (x->pair < 0) /* else it is told at its new path */
				r = emit(d, x, NULL);
		} else if (order > 0) {
			j++;
			r = emit(d, y->pair < 0 ? NULL : &a->named[y->pair], y);
		} else {
			i++;
			j++;
			r = emit(d, x, y);
		}
		if (r == 0)
			r = limit(d);
	}
	return r;
}

int fs_diff(struct store *store, struct root *a, struct root *b, bool same_lineage, unsigned flags,
	    int (*fn)(void *arg, const struct change *c), void *arg)
{
	_cleanup_(diff_release) struct diff d = {
		.same_lineage = same_lineage,
		.flags = flags,
		.fn = fn,
		.arg = arg,
	};
	int r;

	if (root_same(a, b))
		return 0;
	r = side_init(&d.a, store, a);
	if (r < 0)
		return r;
	r = side_init(&d.b, store, b);
	if (r < 0)
		return r;
	r = comparer_init(&d.comparer, &d.a.fs, &d.b.fs);
	if (r < 0)
		return r;

	r = same_lineage ? collect(&d) : walk_both(&d);
	if (r < 0)
		return r;
	r = settle(&d, &d.a);
	if (r < 0)
		return r;
	r = settle(&d, &d.b);
	if (r < 0)
		return r;
	if (same_lineage && (flags & DIFF_RENAMES)) {
		r = pair_renames(&d);
		if (r < 0)
			return r;
	}
	return emit_all(&d);
}
