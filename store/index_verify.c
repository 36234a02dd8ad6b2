/* SPDX-License-Identifier: Apache-2.0 */
#include "store/index_verify.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>

#include "store/base/err.h"
#include "store/base/note.h"
#include "store/base/os.h"
#include "store/base/util.h"

/*
 * What an LMDB 0.9 file looks like (data version 1, little-endian, 64 bit), as far as it matters:
 *
 *   pages 0 and 1   meta pages; that with the larger transaction number counts. Commit N writes
 *                   page N & 1, so the two numbers differ by one (both 0: nothing committed yet)
 *   every page      number[8] pad[2] flags[2] lower[2] upper[2], then one offset[2] per node up to
 *                   lower; nodes fill the page from upper to its end without gaps
 *   node            lo[2] hi[2] flags[2] key_len[2] key; in a leaf then the value (its length is
 *                   lo and hi) or, for a long one, the number of its first overflow page[8]; in a
 *                   branch lo, hi and flags are the child's page number. Nodes take even lengths
 *   overflow pages  a run; the first has a header, with the count of pages where lower is
 *   db[48]          pad[4] flags[2] depth[2] branches[8] leaves[8] overflows[8] entries[8] root[8]
 *
 * The meta page has two dbs: the list of free pages (key: a transaction number, value: a count and
 * so many page numbers, falling) and the main one, whose values are the named tables' dbs.
 *
 * What a walk proves: page numbers lie in the file, no page has two uses and none that is in use
 * is listed as free (LMDB would overwrite it); all lengths and offsets stay inside their page; keys
 * rise, also across pages; depths and counts are what the db says. Values are not looked at: each
 * carries a checksum, see index.c. What remains are bytes without meaning: free space in a page,
 * free pages, the older meta page, and the size of the map (LMDB takes what it is told at open).
 *
 * A file may end before its last page: LMDB counts those that a commit took and gave back, and
 * never writes them. They are listed as free then, hence so must be each one that is not there;
 * any other has been cut off, or the count is damaged.
 *
 * Pages are read with pread, not through a map: a file cut short or an unreadable sector is an
 * error here, and a SIGBUS there. Cost: one read and about 5 ns per node; 100,000 chunks are some
 * 2,000 pages, about 3 ms.
 */

#define PAGE_HEADER 16
#define NODE_HEADER 8
#define DB_BYTES 48
#define META_BYTES_USED (PAGE_HEADER + 24 + 2 * DB_BYTES + 16)
#define META_MAGIC 0xBEEFC0DE
#define DATA_VERSION 1
#define PAGE_BYTES_MAX 65536
#define NO_ROOT UINT64_MAX

/* LMDB's own bound of a cursor's stack. */
#define DEPTH_MAX 32

enum page_flags { PAGE_BRANCH = 1, PAGE_LEAF = 2, PAGE_OVERFLOW = 4, PAGE_META = 8 };
enum node_flags { NODE_BIG = 1, NODE_TABLE = 2 };
#define DB_INTEGER_KEY 8

struct db {
	uint16_t flags, depth;
	uint64_t branches, leaves, overflows, entries, root;
};

struct meta {
	uint32_t page_bytes;
	uint64_t map_bytes, last_page, txn;
	struct db free, tables;
};

enum tree_kind { TREE_FREE, TREE_MAIN, TREE_TABLE };

struct verify {
	int fd;
	const struct noter *noter;
	uint32_t page_bytes;
	uint64_t bytes; /* the file's */
	uint64_t pages; /* 0 to pages - 1 are counted, ... */
	uint64_t there; /* ... 0 to there - 1 are in the file */
	uint8_t *used;	/* owned; a bit per page */
};

/* One tree's walk. */
struct walk {
	struct verify *v;
	enum tree_kind kind;
	struct db found; /* counts */
	uint8_t *key;	 /* owned; the last key met, of the tree's leaves */
	size_t key_len;
	bool any;
	uint8_t *pages[DEPTH_MAX]; /* owned; one buffer per level */
};

static _printf_(3, 4) int broken(struct verify *v, uint64_t page, const char *fmt, ...)
{
	char what[160];
	va_list args;

	va_start(args, fmt);
	vsnprintf(what, sizeof(what), fmt, args);
	va_end(args);
	return note(v->noter, -ERR_INDEX_BROKEN, "index/data.mdb: page %" PRIu64 ": %s", page,
		    what);
}

static int was_cut(const struct verify *v)
{
	return note(v->noter, -ERR_INDEX_BROKEN,
		    "index/data.mdb was cut: %" PRIu64 " bytes, should be %" PRIu64, v->bytes,
		    v->pages * v->page_bytes);
}

/* ---- pages ---- */

static int read_at(struct verify *v, uint64_t page, void *buf, size_t len)
{
	int r = os_pread_full(v->fd, buf, len, page * v->page_bytes);

	return r == END ? broken(v, page, "the file was cut") : r;
}

static int use_page(struct verify *v, uint64_t page)
{
	uint8_t bit;

	if (page < 2 || page >= v->pages)
		return broken(v, page, "there is no such page");
	if (page >= v->there)
		return was_cut(v);
	bit = (uint8_t)(1 << page % 8);
	if (v->used[page / 8] & bit)
		return broken(v, page, "it has two uses");
	v->used[page / 8] |= bit;
	return 0;
}

static struct db get_db(const uint8_t *b)
{
	return (struct db){
		.flags = get_le16(b + 4),
		.depth = get_le16(b + 6),
		.branches = get_le64(b + 8),
		.leaves = get_le64(b + 16),
		.overflows = get_le64(b + 24),
		.entries = get_le64(b + 32),
		.root = get_le64(b + 40),
	};
}

/* ---- the meta pages ---- */

static int get_meta(struct verify *v, unsigned page, struct meta *ret)
{
	uint8_t b[META_BYTES_USED];
	const uint8_t *m = b + PAGE_HEADER;
	int r;

	r = read_at(v, page, b, sizeof(b));
	if (r < 0)
		return r;
	if (get_le64(b) != page || !(get_le16(b + 10) & PAGE_META))
		return broken(v, page, "not a meta page");
	if (get_le32(m) != META_MAGIC || get_le32(m + 4) != DATA_VERSION)
		return broken(v, page, "not of LMDB 0.9");

	*ret = (struct meta){
		.map_bytes = get_le64(m + 16),
		.page_bytes = get_le32(m + 24),
		.free = get_db(m + 24),
		.tables = get_db(m + 24 + DB_BYTES),
		.last_page = get_le64(m + 24 + 2 * DB_BYTES),
		.txn = get_le64(m + 32 + 2 * DB_BYTES),
	};
	if (ret->page_bytes < 512 || ret->page_bytes > PAGE_BYTES_MAX ||
	    (ret->page_bytes & (ret->page_bytes - 1)) != 0)
		return broken(v, page, "a page size of %" PRIu32, ret->page_bytes);
	return 0;
}

static int read_metas(struct verify *v, struct meta *ret)
{
	struct meta meta[2];
	unsigned newest;
	int r;

	v->page_bytes = PAGE_BYTES_MAX; /* of page 0 any will do */
	r = get_meta(v, 0, &meta[0]);
	if (r < 0)
		return r;
	v->page_bytes = meta[0].page_bytes;
	r = get_meta(v, 1, &meta[1]);
	if (r < 0)
		return r;

	newest = meta[0].txn < meta[1].txn;
	if (meta[1].page_bytes != meta[0].page_bytes)
		return broken(v, 1, "another page size");
	/* else an old state would pass for the last commit */
	if (meta[newest].txn != 0 &&
	    (meta[newest].txn - meta[!newest].txn != 1 || meta[newest].txn % 2 != newest))
		return broken(v, newest, "transaction numbers %" PRIu64 " and %" PRIu64,
			      meta[0].txn, meta[1].txn);
	*ret = meta[newest];
	if (ret->map_bytes / ret->page_bytes <= ret->last_page)
		return broken(v, newest, "%" PRIu64 " pages in a map of %" PRIu64 " bytes",
			      ret->last_page + 1, ret->map_bytes);
	if (ret->free.flags != DB_INTEGER_KEY || ret->tables.flags != 0)
		return broken(v, newest, "unknown flags");
	return 0;
}

/* ---- values ---- */

static bool in_use(const struct verify *v, uint64_t page)
{
	return v->used[page / 8] & 1 << page % 8;
}

/* The pages that a value of the free list names; `free` marks those of earlier values. */
static int check_free_pages(struct verify *v, uint64_t page, const uint8_t *value, size_t len)
{
	uint64_t n, last = UINT64_MAX;

	if (len < 8 || get_le64(value) > len / 8 - 1)
		return broken(v, page, "a list of free pages ends too early");
	n = get_le64(value);
	for (uint64_t i = 1; i <= n; i++) {
		uint64_t free_page = get_le64(value + 8 * i);

		if (free_page < 2 || free_page >= v->pages || free_page >= last)
			return broken(v, page, "a list of free pages is out of order");
		if (in_use(v, free_page))
			return broken(v, free_page, "free and in use, or free twice");
		last = free_page;
		v->used[free_page / 8] |= (uint8_t)(1 << free_page % 8);
	}
	return 0;
}

/* Counts a long value's pages, and reads them as far as the walk wants: given, header first. */
static int big_value(struct walk *w, uint64_t first, uint64_t len, uint8_t **ret)
{
	struct verify *v = w->v;
	uint64_t count = (PAGE_HEADER + len + v->page_bytes - 1) / v->page_bytes;
	size_t wanted = PAGE_HEADER + (w->kind == TREE_FREE ? len : 0);
	uint8_t *header;
	int r;

	for (uint64_t i = 0; i < count; i++) {
		r = use_page(v, first + i);
		if (r < 0)
			return r;
	}
	header = *ret = os_malloc(wanted); /* as much as the file has: those pages are in it */
	if (!header)
		return -ENOMEM;
	r = read_at(v, first, header, wanted);
	if (r < 0)
		return r;
	if (get_le64(header) != first || get_le16(header + 10) != PAGE_OVERFLOW ||
	    get_le32(header + 12) != count)
		return broken(v, first, "not the long value that it should be");
	w->found.overflows += count;
	return 0;
}

static int walk_tree(struct verify *v, enum tree_kind kind, const struct db *db);

static int check_value(struct walk *w, uint64_t page, uint16_t flags, uint64_t len,
		       const uint8_t *stored)
{
	_cleanup_free_ uint8_t *big = NULL;
	struct db table;
	int r;

	if (flags & NODE_BIG) {
		r = big_value(w, get_le64(stored), len, &big);
		if (r < 0)
			return r;
	}
	if (flags & NODE_TABLE && w->kind != TREE_MAIN) /* LMDB would refuse to replace it */
		return broken(w->v, page, "a table inside a table");
	switch (w->kind) {
	case TREE_FREE:
		return check_free_pages(w->v, page, big ? big + PAGE_HEADER : stored, len);
	case TREE_MAIN:
		if (flags != NODE_TABLE || len != DB_BYTES)
			return broken(w->v, page, "not a table");
		table = get_db(stored);
		if (table.flags != 0)
			return broken(w->v, page, "a table with unknown flags");
		return walk_tree(w->v, TREE_TABLE, &table);
	case TREE_TABLE:
		break;
	}
	return 0;
}

/* ---- trees ---- */

static int key_order(enum tree_kind kind, const uint8_t *a, size_t a_len, const uint8_t *b,
		     size_t b_len)
{
	int order;

	if (kind == TREE_FREE) {
		uint64_t x = get_le64(a), y = get_le64(b);

		return x < y ? -1 : x > y;
	}
	order = memcmp(a, b, MIN(a_len, b_len));
	return order != 0 ? order : a_len < b_len ? -1 : a_len > b_len;
}

struct bound {
	const uint8_t *key; /* NULL: none */
	size_t len;
};

static int walk_page(struct walk *w, uint64_t page, unsigned level, struct bound low,
		     struct bound high);

/* What is in a node beyond its key, and its whole length. */
struct parsed {
	uint16_t flags;
	uint64_t number; /* a child's page, or a value's length */
	const uint8_t *key, *value;
	size_t key_len, span;
};

static bool parse_node(const uint8_t *b, size_t page_bytes, size_t at, bool leaf,
		       struct parsed *ret)
{
	const uint8_t *node = b + at;
	struct parsed p;
	size_t stored;

	if (at % 2 != 0 || page_bytes - at < NODE_HEADER)
		return false;
	p = (struct parsed){
		.flags = get_le16(node + 4),
		.number = get_le32(node),
		.key = node + NODE_HEADER,
		.key_len = get_le16(node + 6),
	};
	p.value = p.key + p.key_len;
	if (!leaf)
		p.number |= (uint64_t)p.flags << 32;
	if (leaf && (p.flags & ~(NODE_BIG | NODE_TABLE)) != 0)
		return false;
	stored = !leaf ? 0 : p.flags & NODE_BIG ? 8 : p.number;
	p.span = (NODE_HEADER + p.key_len + stored + 1) & ~(size_t)1;
	if (p.span > page_bytes - at)
		return false;
	*ret = p;
	return true;
}

static int walk_leaf_node(struct walk *w, uint64_t page, const struct parsed *p, struct bound low,
			  struct bound high)
{
	if ((w->any && key_order(w->kind, w->key, w->key_len, p->key, p->key_len) >= 0) ||
	    (low.key && key_order(w->kind, low.key, low.len, p->key, p->key_len) > 0) ||
	    (high.key && key_order(w->kind, high.key, high.len, p->key, p->key_len) <= 0))
		return broken(w->v, page, "its keys are out of order");
	memcpy(w->key, p->key, p->key_len);
	w->key_len = p->key_len;
	w->any = true;
	w->found.entries++;
	return check_value(w, page, p->flags, p->number, p->value);
}

static int walk_nodes(struct walk *w, uint64_t page, unsigned level, const uint8_t *b,
		      struct bound low, struct bound high)
{
	struct verify *v = w->v;
	const bool leaf = get_le16(b + 10) == PAGE_LEAF;
	const unsigned lower = get_le16(b + 12), upper = get_le16(b + 14);
	const unsigned n = (lower - PAGE_HEADER) / 2;
	size_t spans = 0;
	struct parsed p, next = {};
	int r;

	for (unsigned i = 0; i < n; i++) {
		unsigned at = get_le16(b + PAGE_HEADER + 2 * i);

		if (at < upper || at >= v->page_bytes ||
		    !parse_node(b, v->page_bytes, at, leaf, &p))
			return broken(v, page, "entry %u does not lie in it", i);
		/* a first child's key is not looked at: all below the second belongs to it */
		if ((leaf || i > 0) &&
		    (p.key_len == 0 || p.key_len > 511 || (w->kind == TREE_FREE && p.key_len != 8)))
			return broken(v, page, "a key of length %zu", p.key_len);
		spans += p.span;
	}
	if (spans != v->page_bytes - upper)
		return broken(v, page, "its entries do not fill it");

	for (unsigned i = 0; i < n; i++) {
		(void)parse_node(b, v->page_bytes, get_le16(b + PAGE_HEADER + 2 * i), leaf, &p);
		if (leaf) {
			r = walk_leaf_node(w, page, &p, low, high);
			if (r < 0)
				return r;
			continue;
		}
		struct bound from = i > 0 ? (struct bound){ p.key, p.key_len } : low, to = high;

		if (i + 1 < n) {
			(void)parse_node(b, v->page_bytes, get_le16(b + PAGE_HEADER + 2 * (i + 1)),
					 leaf, &next);
			to = (struct bound){ next.key, next.key_len };
		}
		r = walk_page(w, p.number, level + 1, from, to);
		if (r < 0)
			return r;
	}
	return 0;
}

static int walk_page(struct walk *w, uint64_t page, unsigned level, struct bound low,
		     struct bound high)
{
	struct verify *v = w->v;
	unsigned flags, lower, upper;
	uint8_t *b;
	int r;

	if (level >= DEPTH_MAX)
		return broken(v, page, "the tree is too deep");
	r = use_page(v, page);
	if (r < 0)
		return r;
	if (!w->pages[level])
		w->pages[level] = os_malloc(v->page_bytes);
	b = w->pages[level];
	if (!b)
		return -ENOMEM;
	r = read_at(v, page, b, v->page_bytes);
	if (r < 0)
		return r;

	flags = get_le16(b + 10);
	lower = get_le16(b + 12);
	upper = get_le16(b + 14);
	if (get_le64(b) != page || (flags != PAGE_BRANCH && flags != PAGE_LEAF))
		return broken(v, page, "not the page that it should be");
	if (lower % 2 != 0 || upper % 2 != 0 || upper > v->page_bytes || lower > upper ||
	    lower < PAGE_HEADER + 2 * (flags == PAGE_BRANCH && w->kind != TREE_FREE ? 2 : 1))
		return broken(v, page, "impossible bounds");

	if (flags == PAGE_LEAF) {
		if (w->found.leaves++ == 0) /* all others are as deep as the first */
			w->found.depth = (uint16_t)(level + 1);
		if (level + 1 != w->found.depth)
			return broken(v, page, "a leaf where a branch should be");
	} else {
		if (w->found.leaves > 0 && level + 1 >= w->found.depth)
			return broken(v, page, "a branch where a leaf should be");
		w->found.branches++;
	}
	return walk_nodes(w, page, level, b, low, high);
}

static int walk_tree(struct verify *v, enum tree_kind kind, const struct db *db)
{
	struct walk w = { .v = v, .kind = kind };
	const struct bound none = { NULL, 0 };
	int r = 0;

	if (db->root == NO_ROOT) {
		if (db->entries || db->depth)
			return broken(v, 0, "a table with entries and no page");
		return 0;
	}

	w.key = os_malloc(512); /* LMDB's largest key is 511 */
	if (!w.key)
		return -ENOMEM;
	r = walk_page(&w, db->root, 0, none, none);
	for (unsigned i = 0; i < DEPTH_MAX; i++)
		free(w.pages[i]);
	free(w.key);
	if (r < 0)
		return r;
	if (w.found.depth != db->depth || w.found.branches != db->branches ||
	    w.found.leaves != db->leaves || w.found.overflows != db->overflows ||
	    w.found.entries != db->entries)
		return broken(v, db->root, "its tree is not what is written of it");
	return 0;
}

int index_verify(int fd, const struct noter *noter)
{
	struct verify v = { .fd = fd, .noter = noter };
	struct meta meta;
	struct stat st;
	int r;

	r = read_metas(&v, &meta);
	if (r < 0)
		return r;
	r = os_fstat(fd, &st);
	if (r < 0)
		return r;
	v.bytes = (uint64_t)st.st_size;
	v.pages = meta.last_page + 1;
	v.there = v.bytes / meta.page_bytes;
	/* in a list each free page takes 8 bytes: more are not looked for (nor are bits made) */
	if (v.there < v.pages && v.pages - v.there > v.bytes / 8)
		return was_cut(&v);
	v.used = os_calloc(1, v.pages / 8 + 1);
	if (!v.used)
		return -ENOMEM;
	r = walk_tree(&v, TREE_MAIN, &meta.tables);
	if (r == 0) /* last: its values are compared with what is in use */
		r = walk_tree(&v, TREE_FREE, &meta.free);
	for (uint64_t page = v.there; r == 0 && page < v.pages; page++) {
		if (!in_use(&v, page)) /* nor free */
			r = was_cut(&v);
	}
	free(v.used);
	return r;
}
