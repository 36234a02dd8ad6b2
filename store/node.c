/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Nodes in memory: the table of loaded ones, their life, loading, and what leaves and interior
 * nodes hold. The invariants (N1 to N6) are in node.h, the bytes in node_format.c.
 *
 * A node is born either by node_new/node_copy in a tree (its generation, one reference), or by
 * node_decode from a chunk (generation 0, frozen and sealed from the start). It becomes frozen
 * when the tree that owns it takes another generation, sealed when the sealer has stored it, and
 * is freed with its last reference. It never thaws.
 */

#include "store/node.h"

#include <errno.h>

#include "store/base/err.h"
#include "store/base/note.h"
#include "store/base/os.h"
#include "store/base/util.h"
#include "store/blob.h"
#include "store/chunk.h"

/* Buckets of the empty table: what a small project's tree (some 10,000 items) needs at most. */
#define TABLE_MIN 256

struct nodes {
	struct chunks *chunks;     /* borrowed */
	const struct noter *noter; /* borrowed */
	_Atomic uint64_t gen;      /* the last one given out */
	_Atomic uint64_t count;    /* nodes in memory */
	_Atomic uint64_t bytes;    /* of their heap */
	_Atomic uint64_t peak;     /* the most of it since nodes_give_back, roughly: threads race */
	pthread_mutex_t lock;      /* of the fields below, and link and in_table of listed nodes */
	struct node **table;       /* owned; size is a power of two */
	size_t size;
	size_t used;
	struct key unreadable[UNREADABLE_MAX];
	unsigned n_unreadable;
};

int nodes_new(struct chunks *chunks, const struct noter *noter, struct nodes **ret)
{
	struct nodes *ns = os_calloc(1, sizeof(*ns));

	if (!ns)
		return -ENOMEM;

	ns->table = os_calloc(TABLE_MIN, sizeof(struct node *));
	if (!ns->table) {
		free(ns);
		return -ENOMEM;
	}
	ns->size = TABLE_MIN;
	ns->chunks = chunks;
	ns->noter = noter;
	pthread_mutex_init(&ns->lock, NULL);

	*ret = ns;
	return 0;
}

void nodes_free(struct nodes *ns)
{
	if (!ns)
		return;

	assert(atomic_load(&ns->count) == 0);
	pthread_mutex_destroy(&ns->lock);
	free(ns->table);
	free(ns);
}

void nodes_stats(struct nodes *ns, uint64_t *ret_nodes, uint64_t *ret_bytes)
{
	*ret_nodes = atomic_load_explicit(&ns->count, memory_order_relaxed);
	*ret_bytes = atomic_load_explicit(&ns->bytes, memory_order_relaxed);
}

/*
 * A restore of a large tree frees tens of thousands of nodes of 4 to 8 KiB, scattered: malloc keeps
 * their pages, and without this a daemon with 50 MiB of nodes was seen to hold 800 MiB. Worth the
 * milliseconds of a trim when at least this much has fallen away; steady work never gets there.
 */
#define GIVE_BACK_BYTES (64u << 20)

void nodes_give_back(struct nodes *ns)
{
	uint64_t now = atomic_load_explicit(&ns->bytes, memory_order_relaxed);

	if (atomic_load_explicit(&ns->peak, memory_order_relaxed) < now + GIVE_BACK_BYTES)
		return;
	os_trim();
	atomic_store_explicit(&ns->peak, now, memory_order_relaxed);
}

uint64_t nodes_new_gen(struct nodes *ns)
{
	return atomic_fetch_add_explicit(&ns->gen, 1, memory_order_relaxed) + 1;
}

struct chunks *nodes_chunks(struct nodes *ns)
{
	return ns->chunks;
}

const struct noter *nodes_noter(struct nodes *ns)
{
	return ns->noter;
}

void nodes_note_unreadable(struct nodes *ns, const struct key *k)
{
	LOCK_GUARD(&ns->lock);

	for (unsigned i = 0; i < ns->n_unreadable; i++)
		if (key_cmp(&ns->unreadable[i], k) == 0)
			return;
	if (ns->n_unreadable < UNREADABLE_MAX)
		ns->unreadable[ns->n_unreadable++] = *k;
}

unsigned nodes_unreadable(struct nodes *ns, struct key ret[static UNREADABLE_MAX])
{
	LOCK_GUARD(&ns->lock);

	memcpy(ret, ns->unreadable, ns->n_unreadable * sizeof(*ret));
	return ns->n_unreadable;
}

/* ---- the table ---- */

static size_t table_bucket(const struct nodes *ns, const struct name *name)
{
	return get_le64(name->b) & (ns->size - 1); /* a name is a hash already */
}

/* A reference to the listed node, or NULL. Under the lock. */
static struct node *table_find(struct nodes *ns, const struct name *name)
{
	for (struct node *n = ns->table[table_bucket(ns, name)]; n; n = n->link) {
		uint32_t refs;

		if (!name_eq(&n->name, name))
			continue;

		/* N6: a dying node stays dead */
		refs = atomic_load_explicit(&n->refs, memory_order_relaxed);
		while (refs > 0)
			if (atomic_compare_exchange_weak(&n->refs, &refs, refs + 1))
				return n;
	}
	return NULL;
}

static void table_grow(struct nodes *ns)
{
	size_t old_size = ns->size;
	struct node **old = ns->table;
	struct node **table = os_calloc(2 * old_size, sizeof(struct node *));

	if (!table)
		return; /* longer chains are no failure */

	ns->table = table;
	ns->size = 2 * old_size;
	for (size_t i = 0; i < old_size; i++) {
		struct node *next;

		for (struct node *n = old[i]; n; n = next) {
			size_t b = table_bucket(ns, &n->name);

			next = n->link;
			n->link = table[b];
			table[b] = n;
		}
	}
	free(old);
}

/* Under the lock; n has a name. */
static void table_add(struct nodes *ns, struct node *n)
{
	size_t b;

	if (ns->used >= ns->size)
		table_grow(ns);

	b = table_bucket(ns, &n->name);
	n->link = ns->table[b];
	ns->table[b] = n;
	n->in_table = true;
	ns->used++;
}

static void table_remove(struct nodes *ns, struct node *n)
{
	LOCK_GUARD(&ns->lock);
	struct node **p = &ns->table[table_bucket(ns, &n->name)];

	while (*p != n)
		p = &(*p)->link;
	*p = n->link;
	n->in_table = false;
	ns->used--;
}

void node_set_sealed(struct node *n, const struct name *name)
{
	struct nodes *ns = n->ns;
	struct node *twin;

	n->name = *name;
	atomic_store_explicit(&n->sealed, true, memory_order_release);

	pthread_mutex_lock(&ns->lock);
	twin = table_find(ns, name);
	if (!twin)
		table_add(ns, n);
	pthread_mutex_unlock(&ns->lock);
	node_unref(twin);
}

/* ---- life ---- */

static size_t node_bytes(unsigned level, unsigned room)
{
	return sizeof(struct node) + (level > 0 ? sizeof(struct inner) : room);
}

struct node *node_alloc(struct nodes *ns, unsigned level, unsigned room, uint64_t gen)
{
	size_t bytes = node_bytes(level, room);
	struct node *n = os_malloc(bytes);

	if (!n)
		return NULL;

	*n = (struct node){
		.refs = 1,
		.level = level,
		.gen = gen,
		.ns = ns,
		.size = NODE_HEADER,
		.room = room,
	};
	atomic_fetch_add_explicit(&ns->count, 1, memory_order_relaxed);
	bytes += atomic_fetch_add_explicit(&ns->bytes, bytes, memory_order_relaxed);
	if (bytes > atomic_load_explicit(&ns->peak, memory_order_relaxed))
		atomic_store_explicit(&ns->peak, bytes, memory_order_relaxed);
	return n;
}

struct node *node_new(struct nodes *ns, unsigned level, uint64_t gen)
{
	return node_alloc(ns, level, level > 0 ? 0 : LEAF_ROOM, gen);
}

/* Copies `count` children of a node that may be frozen, from its pos on, with references. */
static void inner_copy_children(const struct node *n, unsigned pos, unsigned count,
				struct node *to, unsigned to_pos)
{
	const struct inner *in = node_inner(n);
	struct inner *out = node_inner(to);

	memcpy(out->keys + to_pos, in->keys + pos, count * sizeof(out->keys[0]));
	memcpy(out->names + to_pos, in->names + pos, count * sizeof(out->names[0]));

	/*
	 * Each reference taken is a write to another cache line, usually a cold one: asking for all
	 * of them first lets the memory fetch them side by side.
	 */
	for (unsigned i = 0; i < count; i++) {
		struct node *child =
			atomic_load_explicit(&in->child[pos + i], memory_order_acquire);

		if (child)
			__builtin_prefetch(child, 1);
		atomic_store_explicit(&out->child[to_pos + i], child, memory_order_relaxed);
	}
	for (unsigned i = 0; i < count; i++) {
		struct node *child =
			atomic_load_explicit(&out->child[to_pos + i], memory_order_relaxed);

		if (child)
			node_ref(child);
	}
}

/* A reference more for each blob of the slots from..count. */
static void leaf_ref_blobs(const struct node *n, unsigned from)
{
	if (n->blobs == 0)
		return;
	for (unsigned i = from; i < n->count; i++) {
		struct val v;

		if (node_slots(n)[i].kind != REF_BLOB)
			continue;
		leaf_val(n, i, &v);
		(void)blob_ref(v.ref.blob);
	}
}

struct node *node_copy(const struct node *n, uint64_t gen)
{
	struct node *copy = node_new(n->ns, n->level, gen);

	if (!copy)
		return NULL;

	copy->count = n->count;
	copy->size = n->size;
	if (n->level > 0) {
		inner_copy_children(n, 0, n->count, copy, 0);
		return copy;
	}
	copy->blobs = n->blobs;
	copy->heap = n->heap;
	memcpy(copy->data, n->data, n->count * sizeof(struct slot));
	memcpy(copy->data + copy->room - n->heap, n->data + n->room - n->heap, n->heap);
	leaf_ref_blobs(copy, 0);
	return copy;
}

static bool node_drop_ref(struct node *n)
{
	return atomic_fetch_sub_explicit(&n->refs, 1, memory_order_acq_rel) == 1;
}

void node_unref(struct node *n)
{
	struct node *dead = NULL; /* linked by `link` */

	if (!n || !node_drop_ref(n))
		return;

	for (;;) {
		if (n->in_table)
			table_remove(n->ns, n);
		n->link = dead;
		dead = n;

		/* free until a child dies too; that one goes first */
		for (n = NULL; dead && !n;) {
			struct node *d = dead;

			if (d->level > 0) {
				while (d->count > 0 && !n) {
					struct node *child = atomic_load_explicit(
						&node_inner(d)->child[--d->count],
						memory_order_relaxed);

					if (child && node_drop_ref(child))
						n = child;
				}
				if (n)
					break; /* d stays listed, with the rest of its children */
			} else if (d->blobs > 0) {
				for (unsigned i = 0; i < d->count; i++) {
					struct val v;

					if (node_slots(d)[i].kind != REF_BLOB)
						continue;
					leaf_val(d, i, &v);
					blob_unref(v.ref.blob);
				}
			}
			dead = d->link;
			atomic_fetch_sub_explicit(&d->ns->count, 1, memory_order_relaxed);
			atomic_fetch_sub_explicit(&d->ns->bytes, node_bytes(d->level, d->room),
						  memory_order_relaxed);
			free(d);
		}
		if (!n)
			return;
	}
}

/* ---- loading ---- */

int node_read(struct nodes *ns, const struct name *name, struct node **ret)
{
	_cleanup_(chunkbuf_unrefp) struct chunkbuf *buf = NULL;
	char text[NAME_HEX_SIZE];
	int r;

	r = chunk_load(ns->chunks, name, &buf);
	if (r < 0)
		return r;

	r = node_decode(ns, buf->data, buf->len, ret);
	if (r == -ERR_NODE_DAMAGED)
		return note(ns->noter, r, "node %s: its bytes are not a node's",
			    name_to_text(name, text));
	if (r < 0)
		return r;

	(*ret)->name = *name;
	atomic_store_explicit(&(*ret)->sealed, true, memory_order_release);
	return 0;
}

int node_load(struct nodes *ns, const struct name *name, struct node **ret)
{
	struct node *n, *other;
	int r;

	pthread_mutex_lock(&ns->lock);
	n = table_find(ns, name);
	pthread_mutex_unlock(&ns->lock);
	if (n) {
		*ret = n;
		return 0;
	}

	r = node_read(ns, name, &n);
	if (r < 0)
		return r;

	/* another thread may have loaded it meanwhile: the first in the table wins */
	pthread_mutex_lock(&ns->lock);
	other = table_find(ns, name);
	if (!other)
		table_add(ns, n);
	pthread_mutex_unlock(&ns->lock);
	if (other) {
		node_unref(n);
		n = other;
	}
	*ret = n;
	return 0;
}

int node_fits(const struct node *n, int level, const struct key *lower, const struct key *upper)
{
	struct key first, last;

	if (level >= 0 && n->level != level)
		return -ERR_NODE_DAMAGED;
	if (n->count == 0)
		return 0;

	if (n->level > 0) {
		first = node_inner(n)->keys[0];
		last = node_inner(n)->keys[n->count - 1];
		if (!key_eq(&first, lower))
			return -ERR_NODE_DAMAGED;
	} else {
		first = slot_key(node_slots(n));
		last = slot_key(node_slots(n) + n->count - 1);
		if (key_less(&first, lower))
			return -ERR_NODE_DAMAGED;
	}
	if (upper && !key_less(&last, upper))
		return -ERR_NODE_DAMAGED;
	return 0;
}

int node_child_load(const struct node *n, unsigned i, struct node **ret)
{
	struct inner *in = node_inner(n);
	_cleanup_(node_unrefp) struct node *child = NULL;
	struct node *expected = NULL;
	char text[NAME_HEX_SIZE];
	int r;

	r = node_load(n->ns, &in->names[i], &child);
	if (r < 0)
		return r;

	r = node_fits(child, n->level - 1, &in->keys[i],
		      i + 1 < n->count ? &in->keys[i + 1] : NULL);
	if (r < 0)
		return note(n->ns->noter, r, "node %s: does not fit under its parent",
			    name_to_text(&in->names[i], text));

	/* N2: the first to come sets the pointer and gives it its reference */
	if (atomic_compare_exchange_strong(&in->child[i], &expected, child)) {
		*ret = TAKE_PTR(child);
		return 0;
	}
	*ret = expected;
	return 0;
}

bool node_name(const struct node *n, struct name *ret_name)
{
	if (!atomic_load_explicit(&n->sealed, memory_order_acquire))
		return false;
	*ret_name = n->name;
	return true;
}

bool node_child_name(const struct node *n, unsigned i, struct node **ret_node,
		     struct name *ret_name)
{
	*ret_node = atomic_load_explicit(&node_inner(n)->child[i], memory_order_acquire);
	if (*ret_node)
		return node_name(*ret_node, ret_name);
	*ret_name = node_inner(n)->names[i];
	return true;
}

/* ---- leaves ---- */

/*
 * A value's bytes in memory: its reference (REF_CHUNK: name, offset in little-endian as on disk;
 * REF_BLOB: offset, pointer), then, at slot.back from the end, the value.
 */
#define BLOB_BYTES (4 + sizeof(struct blob *))
static_assert(BLOB_BYTES <= REF_BYTES, "LEAF_ROOM counts on it");

static unsigned kind_bytes(unsigned kind)
{
	return kind == REF_NONE ? 0 : kind == REF_CHUNK ? REF_BYTES : BLOB_BYTES;
}

void leaf_val(const struct node *n, unsigned pos, struct val *ret)
{
	const struct slot *s = node_slots(n) + pos;
	const uint8_t *p = n->data + n->room - s->back;

	ret->data = p;
	ret->len = s->len;
	ret->ref.kind = s->kind;
	if (s->kind == REF_CHUNK) {
		memcpy(ret->ref.name.b, p - REF_BYTES, NAME_BYTES);
		ret->ref.off = get_le32(p - 4);
	} else if (s->kind == REF_BLOB) {
		memcpy(&ret->ref.blob, p - sizeof(struct blob *), sizeof(struct blob *));
		ret->ref.off = get_le32(p - BLOB_BYTES);
	} else {
		ret->ref.off = 0;
	}
}

/* Squeezes out the bytes that no slot uses. */
static void leaf_compact(struct node *n)
{
	uint8_t heap[LEAF_ROOM];
	unsigned used = 0;

	for (unsigned i = 0; i < n->count; i++) {
		struct slot *s = node_slots(n) + i;
		unsigned ref = kind_bytes(s->kind), bytes = ref + s->len;

		used += bytes;
		memcpy(heap + sizeof(heap) - used, n->data + n->room - s->back - ref, bytes);
		s->back = used - ref;
	}
	memcpy(n->data + n->room - used, heap + sizeof(heap) - used, used);
	n->heap = used;
}

/* Room for slots more slots and bytes more heap; there is enough in all (N4, LEAF_ROOM). */
static void leaf_make_room(struct node *n, unsigned slots, unsigned bytes)
{
	if ((n->count + slots) * sizeof(struct slot) + n->heap + bytes > n->room)
		leaf_compact(n);
	assert((n->count + slots) * sizeof(struct slot) + n->heap + bytes <= n->room);
}

static void leaf_write(struct node *n, struct slot *s, unsigned back, const struct val *v)
{
	uint8_t *p = n->data + n->room - back;

	s->back = back;
	s->len = v->len;
	s->kind = v->ref.kind;
	if (v->ref.kind == REF_CHUNK) {
		memcpy(p - REF_BYTES, v->ref.name.b, NAME_BYTES);
		put_le32(p - 4, v->ref.off);
	} else if (v->ref.kind == REF_BLOB) {
		put_le32(p - BLOB_BYTES, v->ref.off);
		memcpy(p - sizeof(struct blob *), &v->ref.blob, sizeof(struct blob *));
		n->blobs++;
	}
	if (v->len > 0)
		memcpy(p, v->data, v->len);
}

void leaf_insert(struct node *n, unsigned pos, const struct key *k, const struct val *v)
{
	unsigned ref = kind_bytes(v->ref.kind), bytes = ref + v->len;
	struct slot *s;

	leaf_make_room(n, 1, bytes);
	s = node_slots(n) + pos;
	memmove(s + 1, s, (n->count - pos) * sizeof(*s));
	n->count++;
	n->size += item_size(v->ref.kind, v->len);
	n->heap += bytes;
	s->a = k->a;
	s->b = k->b;
	s->t = k->t;
	leaf_write(n, s, n->heap - ref, v);
}

/* The blob that a slot refers to; its reference is the caller's now. NULL when there is none. */
static struct blob *leaf_take_blob(struct node *n, struct slot *s)
{
	struct val v;

	if (s->kind != REF_BLOB)
		return NULL;
	leaf_val(n, s - node_slots(n), &v);
	n->blobs--;
	return v.ref.blob;
}

void leaf_replace(struct node *n, unsigned pos, const struct val *v)
{
	struct slot *s = node_slots(n) + pos;
	unsigned old_ref = kind_bytes(s->kind), old_bytes = old_ref + s->len;
	unsigned ref = kind_bytes(v->ref.kind), bytes = ref + v->len;
	struct blob *old = leaf_take_blob(n, s);

	n->size += item_size(v->ref.kind, v->len) - item_size(s->kind, s->len);
	if (bytes <= old_bytes) {
		leaf_write(n, s, s->back + old_ref - ref, v);
	} else {
		s->kind = REF_NONE; /* nothing left of it that compacting should keep */
		s->len = 0;
		leaf_make_room(n, 0, bytes);
		n->heap += bytes;
		leaf_write(n, s, n->heap - ref, v);
	}
	if (old)
		blob_unref(old);
}

void leaf_remove(struct node *n, unsigned pos)
{
	struct slot *s = node_slots(n) + pos;
	struct blob *old = leaf_take_blob(n, s);

	n->size -= item_size(s->kind, s->len);
	n->count--;
	memmove(s, s + 1, (n->count - pos) * sizeof(*s));
	if (old)
		blob_unref(old);
}

/* Copies slots from.. of n to the end of `to`, whose blob references the caller settles. */
static void leaf_append(const struct node *n, unsigned from, struct node *to)
{
	unsigned bytes = 0;

	for (unsigned i = from; i < n->count; i++)
		bytes += kind_bytes(node_slots(n)[i].kind) + node_slots(n)[i].len;
	leaf_make_room(to, n->count - from, bytes);

	for (unsigned i = from; i < n->count; i++) {
		const struct slot *s = node_slots(n) + i;
		struct slot *d = node_slots(to) + to->count++;
		unsigned ref = kind_bytes(s->kind);

		*d = *s;
		to->heap += ref + s->len;
		memcpy(to->data + to->room - to->heap, n->data + n->room - s->back - ref,
		       ref + s->len);
		d->back = to->heap - ref;
		to->size += item_size(s->kind, s->len);
		if (s->kind == REF_BLOB)
			to->blobs++;
	}
}

void leaf_move(struct node *n, unsigned from, struct node *to)
{
	leaf_append(n, from, to);
	for (unsigned i = from; i < n->count; i++) {
		const struct slot *s = node_slots(n) + i;

		n->size -= item_size(s->kind, s->len);
		if (s->kind == REF_BLOB)
			n->blobs--;
	}
	n->count = from;
}

void leaf_append_copy(const struct node *n, struct node *to)
{
	unsigned from = to->count;

	leaf_append(n, 0, to);
	leaf_ref_blobs(to, from);
}

/* ---- interior nodes ---- */

static void inner_resize(struct node *n, unsigned count)
{
	n->count = count;
	n->size = NODE_HEADER + count * CHILD_BYTES;
}

/* memmove of `count` children within one node. */
static void inner_shift(struct node *n, unsigned to, unsigned from, unsigned count)
{
	struct inner *in = node_inner(n);

	memmove(in->keys + to, in->keys + from, count * sizeof(in->keys[0]));
	memmove(in->child + to, in->child + from, count * sizeof(in->child[0]));
	memmove(in->names + to, in->names + from, count * sizeof(in->names[0]));
}

void inner_insert(struct node *n, unsigned pos, const struct key *k, struct node *child)
{
	assert(n->count < CHILDREN_MAX);
	inner_shift(n, pos + 1, pos, n->count - pos);
	node_inner(n)->keys[pos] = *k;
	node_inner(n)->names[pos] = (struct name){ 0 };
	atomic_store_explicit(&node_inner(n)->child[pos], child, memory_order_relaxed);
	inner_resize(n, n->count + 1);
}

void inner_move(struct node *n, unsigned pos, unsigned count, struct node *to, unsigned to_pos)
{
	struct inner *in = node_inner(n), *out = node_inner(to);

	inner_shift(to, to_pos + count, to_pos, to->count - to_pos);
	memcpy(out->keys + to_pos, in->keys + pos, count * sizeof(in->keys[0]));
	memcpy(out->child + to_pos, in->child + pos, count * sizeof(in->child[0]));
	memcpy(out->names + to_pos, in->names + pos, count * sizeof(in->names[0]));
	inner_resize(to, to->count + count);
	inner_shift(n, pos, pos + count, n->count - pos - count);
	inner_resize(n, n->count - count);
}

void inner_append_copy(const struct node *n, struct node *to)
{
	inner_copy_children(n, 0, n->count, to, to->count);
	inner_resize(to, to->count + n->count);
}

void inner_remove(struct node *n, unsigned pos)
{
	struct node *child =
		atomic_load_explicit(&node_inner(n)->child[pos], memory_order_relaxed);

	inner_shift(n, pos, pos + 1, n->count - pos - 1);
	inner_resize(n, n->count - 1);
	node_unref(child);
}

void inner_replace(struct node *n, unsigned pos, struct node *child)
{
	struct node *old = atomic_exchange_explicit(&node_inner(n)->child[pos], child,
						    memory_order_relaxed);

	node_unref(old);
}
