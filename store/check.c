/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Check: walks everything that is committed and says what is damaged.
 *
 * Phases: (1) the format file and the records, while sealing waits, so that they belong to one
 * commit; (2) every index entry against its record in the pack, in the order in which they lie
 * there; (3) the tree of each snapshot and branch, every node read from its chunk, every
 * reference looked up; (4) what nothing refers to is counted. From (2) on sealing goes on: chunks
 * are only added, and what the records name was there before. gc waits until the end.
 *
 * States share nearly all of their nodes. A subtree that was found good for a range of keys is not
 * entered again where it stands for the same range or a wider one (only its top is read, to see
 * that it fits there): the cost follows the nodes that differ and their siblings. Subtrees with
 * damage are walked again for every state, because each is told which of its keys are touched.
 *
 * A node is known to be good when the walk has left its subtree and met no damage there. The walk
 * is depth first and levels fall by one from node to child, so a node has been left when the next
 * one met is of its level or a higher one.
 */

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>

#include "store/base/os.h"
#include "store/check_internal.h"
#include "store/copy.h"

static _printf_(2, 3) void damage(struct check *c, const char *fmt, ...)
{
	char line[640]; /* the longest: a key, two names of 63 and a sentence */
	va_list args;

	c->stats.damaged++;
	if (!c->ops->damage)
		return;
	va_start(args, fmt);
	vsnprintf(line, sizeof(line), fmt, args);
	va_end(args);
	c->ops->damage(c->ops->arg, line);
}

/* Does this failure say something of the store, rather than of the machine we run on? */
static bool is_damage(int r)
{
	return r == -EIO || r <= -ERR_BASE;
}

static int tick(struct check *c, const char *what, uint64_t done, uint64_t total)
{
	const struct progress *p = c->progress;

	if (p && p->cancel && __atomic_load_n(p->cancel, __ATOMIC_RELAXED))
		return -ERR_CANCELLED;
	if (p && p->fn)
		p->fn(p->arg, what, done, total);
	return 0;
}

/* ---- phase 1: records ---- */

static int check_format(struct check *c)
{
	uint8_t uuid[16];
	int r = store_read_format(c->store->dir_fd, uuid);

	if (err_is_machine(r))
		return r;
	if (r < 0)
		damage(c, "format file: %s", err_str(r));
	else if (memcmp(uuid, c->store->uuid, sizeof(uuid)) != 0)
		damage(c, "format file: it was replaced by that of another store");
	return 0;
}

static int bad_key(struct check *c, enum index_table table, const void *key, size_t key_len)
{
	struct check_key *bad;
	int r;

	r = os_grow(&c->bad_keys, &c->bad_key_capacity, c->bad_key_count + 1,
		    sizeof(*c->bad_keys));
	if (r < 0)
		return r;
	bad = &c->bad_keys[c->bad_key_count++];
	*bad = (struct check_key){ .table = table, .len = MIN(key_len, sizeof(bad->bytes)) };
	memcpy(bad->bytes, key, bad->len);
	return 0;
}

static int read_counter(void *arg, const void *key, size_t key_len, const void *value,
			size_t value_len)
{
	if (value)
		return 0;
	damage(arg, "counter '%.*s': damaged", (int)MIN(key_len, 64), (const char *)key);
	return bad_key(arg, INDEX_META, key, key_len);
}

static int read_snap(void *arg, const void *key, size_t key_len, const void *value,
		     size_t value_len)
{
	struct check *c = arg;
	char text[SNAP_ID_SIZE];
	struct snap_record rec;
	uint64_t id;
	int r;

	c->stats.snapshots++;
	r = snap_key_decode(key, key_len, &id);
	if (r < 0) {
		damage(c, "a snapshot record of %zu key byte%s: %s", key_len,
		       plural(key_len), err_str(r));
		return bad_key(c, INDEX_SNAPS, key, key_len);
	}
	r = snap_record_decode(value, value_len, &rec);
	if (r == 0 && snap_id_of(c->store->id_key, rec.seq) != id)
		r = -ERR_SNAP_DAMAGED;
	if (r < 0) {
		damage(c, "snapshot %s: %s", snap_id_to_text(id, text), err_str(r));
		return bad_key(c, INDEX_SNAPS, key, key_len);
	}

	r = os_grow(&c->snaps, &c->snap_capacity, c->snap_count + 1, sizeof(*c->snaps));
	if (r < 0)
		return r;
	c->snaps[c->snap_count] = os_malloc(sizeof(**c->snaps));
	if (!c->snaps[c->snap_count])
		return -ENOMEM;
	*c->snaps[c->snap_count++] = (struct check_snap){ .id = id, .rec = rec };
	return 0;
}

static int read_branch(void *arg, const void *key, size_t key_len, const void *value,
		       size_t value_len)
{
	struct check *c = arg;
	struct check_branch *b;
	int r;

	c->stats.branches++;
	b = os_calloc(1, sizeof(*b));
	if (!b)
		return -ENOMEM;

	if (key_len <= BRANCH_NAME_MAX)
		memcpy(b->name, key, key_len);
	if (strlen(b->name) != key_len || !branch_name_ok(b->name)) {
		damage(c, "a branch record of %zu key byte%s: %s", key_len,
		       plural(key_len), err_str(-ERR_BRANCH_DAMAGED));
		free(b);
		return bad_key(c, INDEX_BRANCHES, key, key_len);
	}
	r = branch_record_decode(value, value_len, &b->rec);
	if (r < 0) {
		damage(c, "branch '%s': %s", b->name, err_str(r));
		free(b);
		return bad_key(c, INDEX_BRANCHES, key, key_len);
	}

	r = os_grow(&c->branches, &c->branch_capacity, c->branch_count + 1,
		    sizeof(*c->branches));
	if (r < 0) {
		free(b);
		return r;
	}
	c->branches[c->branch_count++] = b;
	return 0;
}

static int by_id(const void *x, const void *y)
{
	const struct check_snap *a = *(struct check_snap *const *)x;
	const struct check_snap *b = *(struct check_snap *const *)y;

	return a->id < b->id ? -1 : a->id > b->id;
}

const struct check_snap *check_find_snap(const struct check *c, uint64_t id)
{
	size_t low = 0, high = c->snap_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (c->snaps[middle]->id < id)
			low = middle + 1;
		else
			high = middle;
	}
	return low < c->snap_count && c->snaps[low]->id == id ? c->snaps[low] : NULL;
}

static void check_links(struct check *c)
{
	char text[SNAP_ID_SIZE], other[SNAP_ID_SIZE];

	for (size_t i = 0; i < c->snap_count; i++) {
		const struct check_snap *sn = c->snaps[i];
		const struct check_snap *parent = check_find_snap(c, sn->rec.parent);

		if (sn->rec.parent && (!parent || parent->rec.seq >= sn->rec.seq))
			damage(c, "snapshot %s: its parent %s is %s", snap_id_to_text(sn->id, text),
			       snap_id_to_text(sn->rec.parent, other),
			       parent ? "younger than itself" : "not there");
	}
	for (size_t i = 0; i < c->branch_count; i++) {
		const struct check_branch *b = c->branches[i];

		if (b->rec.head && !check_find_snap(c, b->rec.head))
			damage(c, "branch '%s': its head %s is not there", b->name,
			       snap_id_to_text(b->rec.head, text));
		if (b->rec.undo && !check_find_snap(c, b->rec.undo))
			damage(c, "branch '%s': its undo %s is not there", b->name,
			       snap_id_to_text(b->rec.undo, text));
	}
}

int check_records(struct check *c)
{
	int r;

	{
		LOCK_GUARD(&c->store->table);
		c->stats.unsealed_snapshots = c->store->queue_length;
	}
	r = check_format(c);
	if (r < 0)
		return r;
	r = index_check(c->store->index);
	if (r == -ERR_INDEX_BROKEN) {
		damage(c, "%s; the daemon's log names the page", err_str(r));
		return EXISTS; /* LMDB had better not look at it again */
	}
	if (r < 0)
		return r;
	r = table_check(c->store->tables);
	if (err_is_machine(r))
		return r;
	if (r != 0 && r != ABSENT) {
		damage(c, "the packs' copy of the tables: %s (only 'plyfs salvage' needs it)",
		       err_str(r));
		c->tables = true;
	}
	r = index_each(c->store->index, INDEX_META, read_counter, c);
	if (r == 0)
		r = index_each(c->store->index, INDEX_SNAPS, read_snap, c);
	if (r == 0)
		r = index_each(c->store->index, INDEX_BRANCHES, read_branch, c);
	if (r < 0)
		return r;
	if (c->snap_count > 0)
		qsort(c->snaps, c->snap_count, sizeof(*c->snaps), by_id);
	check_links(c);
	return 0;
}

/* ---- phase 2: chunks ---- */

/* The number of a name, with its place in `known`. */
static int know(struct check *c, const struct name *name, uint32_t *ret_number)
{
	int r;

	r = os_grow(&c->known, &c->known_capacity, c->names.count + 1, sizeof(*c->known));
	if (r < 0)
		return r;
	r = nameset_add(&c->names, name, ret_number);
	if (r == 0)
		c->known[*ret_number] = (struct known){ 0 };
	return r < 0 ? r : 0;
}

static int list_chunk(void *arg, const struct chunk_info *info)
{
	struct check *c = arg;
	struct known *k;
	uint32_t number;
	int r;

	r = know(c, &info->name, &number);
	if (r < 0)
		return r;
	k = &c->known[number];
	*k = (struct known){
		.off = info->off,
		.pack = info->pack,
		.stored_len = info->stored_len,
		.raw_len = info->raw_len,
		.kind = info->kind,
		.in_index = true,
		.lost = info->lost,
	};
	c->stats.chunks++;
	c->stats.bytes += info->stored_len;
	return 0;
}

static int by_place(const void *x, const void *y, void *arg)
{
	const struct known *known = arg;
	const struct known *a = &known[*(const uint32_t *)x], *b = &known[*(const uint32_t *)y];

	if (a->pack != b->pack)
		return a->pack < b->pack ? -1 : 1;
	return a->off < b->off ? -1 : a->off > b->off;
}

static void report_lost(struct check *c, uint32_t number)
{
	char text[NAME_HEX_SIZE], line[200];

	c->stats.lost++;
	c->known[number].reported = true;
	if (!c->ops->lost || c->again)
		return;
	name_to_text(&c->names.names[number], text);
	snprintf(line, sizeof(line), "chunk %s (%s): %s", text,
		 c->known[number].kind == CHUNK_NODE ? "node" : "data", err_str(-ERR_CHUNK_LOST));
	c->ops->lost(c->ops->arg, line);
}

static void report_chunk(struct check *c, uint32_t number, int why)
{
	struct known *k = &c->known[number];
	char text[NAME_HEX_SIZE];

	name_to_text(&c->names.names[number], text);
	if (!k->in_index)
		damage(c, "chunk %s (%s): %s", text, k->node ? "node" : "data",
		       err_str(-ERR_CHUNK_MISSING));
	else if (k->raw_len == 0)
		damage(c, "chunk %s: %s", text, err_str(-ERR_INDEX_DAMAGED));
	else
		damage(c, "chunk %s (%s, pack %" PRIu32 " offset %" PRIu64 "): %s", text,
		       k->kind == CHUNK_NODE ? "node" : "data", k->pack, k->off, err_str(why));
	k->reported = true;
}

static int check_chunk(struct check *c, uint32_t number)
{
	struct known *k = &c->known[number];
	const struct chunk_info info = {
		.name = c->names.names[number],
		.pack = k->pack,
		.off = k->off,
		.stored_len = k->stored_len,
		.raw_len = k->raw_len,
		.kind = k->kind,
	};
	int r;

	if (k->lost) {
		k->bad = true;
		return 0; /* told when a state needs it */
	}
	r = k->raw_len == 0 ? -ERR_INDEX_DAMAGED :
			      chunk_verify(c->store->chunks, &info, c->flags & CHECK_READ_DATA);
	if (r < 0 && !is_damage(r))
		return r;
	if (r == AGAIN) {
		k->header = true;
		damage(c, "pack %" PRIu32 " offset %" PRIu64 ": %s, the bytes are whole", k->pack,
		       k->off, err_str(-ERR_RECORD_DAMAGED));
	}
	if (r < 0) {
		k->bad = true;
		report_chunk(c, number, r);
	}
	return 0;
}

static int bad_pack(void *arg, uint32_t pack, int why)
{
	struct check *c = arg;
	int r;

	damage(c, "pack %" PRIu32 ": %s", pack, err_str(why));
	r = os_grow(&c->bad_packs, &c->bad_pack_capacity, c->bad_pack_count + 1,
		    sizeof(*c->bad_packs));
	if (r == 0)
		c->bad_packs[c->bad_pack_count++] = pack;
	return r;
}

int check_chunks(struct check *c)
{
	_cleanup_free_ uint32_t *order = NULL;
	uint32_t count;
	int r;

	r = chunks_check_packs(c->store->chunks, bad_pack, c);
	if (r == 0)
		r = chunks_each(c->store->chunks, list_chunk, c);
	if (r < 0)
		return r;

	count = c->names.count;
	order = os_malloc((count + 1) * sizeof(*order));
	if (!order)
		return -ENOMEM;
	for (uint32_t i = 0; i < count; i++)
		order[i] = i;
	if (count > 0)
		qsort_r(order, count, sizeof(*order), by_place, c->known);

	for (uint32_t i = 0; i < count; i++) {
		r = tick(c, "chunks", i, count);
		if (r < 0)
			return r;
		r = check_chunk(c, order[i]);
		if (r < 0)
			return r;
	}
	return 0;
}

/* ---- phase 3: trees ---- */

static void touched(struct check *c, const struct name *name, const struct key *from,
		    const struct key *to, bool data)
{
	uint32_t number = nameset_find(&c->names, name);

	c->hurts++;
	if (c->again && number != NAMESET_NONE && c->known[number].lost)
		return;
	if (c->ops->touched)
		c->ops->touched(c->ops->arg, c->id, c->branch, c->root, name, from, to, data);
}

/* The walk has left the subtrees of all frames of this level and below. */
static int leave(struct check *c, unsigned level)
{
	while (c->depth > 0 && c->frames[c->depth - 1].level <= level) {
		const struct frame *f = &c->frames[--c->depth];
		struct known *k = &c->known[f->number];
		int r;

		if (f->hurts != c->hurts)
			continue;
		if (k->good == 0) {
			r = os_grow(&c->ranges, &c->range_capacity, c->range_count + 1,
				    sizeof(*c->ranges));
			if (r < 0)
				return r;
			k->good = ++c->range_count;
		}
		c->ranges[k->good - 1] = f->range;
	}
	return 0;
}

/* Is the subtree of this node known to be good for this range of keys? */
static bool skip_node(void *arg, const struct name *name, const struct key *first,
		      const struct key *last)
{
	const struct check *c = arg;
	uint32_t number = nameset_find(&c->names, name);
	const struct range *range;

	if (number == NAMESET_NONE || c->known[number].good == 0)
		return false;
	range = &c->ranges[c->known[number].good - 1];
	return key_cmp(&range->first, first) == 0 && key_cmp(&range->last, last) <= 0;
}

static int meet_node(void *arg, const struct name *name, unsigned level, const struct key *first,
		     const struct key *last, int found)
{
	struct check *c = arg;
	struct known *k;
	uint32_t number;
	int r;

	r = tick(c, "nodes", c->stats.nodes, 0);
	if (r < 0)
		return r;
	if (found < 0 && !is_damage(found))
		return found;
	r = leave(c, level);
	if (r < 0)
		return r;
	r = know(c, name, &number);
	if (r < 0)
		return r;

	k = &c->known[number];
	k->referenced = true;
	if (!k->node)
		c->stats.nodes++;
	k->node = true;
	if (found < 0 || level > UINT8_MAX) {
		if (k->lost && !k->reported)
			report_lost(c, number);
		if (!k->reported)
			report_chunk(c, number, found < 0 ? found : -ERR_NODE_DAMAGED);
		touched(c, name, first, last, false);
		return 1;
	}

	c->frames[c->depth++] = (struct frame){
		.number = number,
		.level = level,
		.range = { *first, *last },
		.hurts = c->hurts,
	};
	return 0;
}

static int meet_item(void *arg, const struct key *key, const struct val *v)
{
	struct check *c = arg;
	struct known *k;
	uint32_t number;
	int r;

	if (v->ref.kind != REF_CHUNK)
		return 0;
	r = know(c, &v->ref.name, &number);
	if (r < 0)
		return r;

	k = &c->known[number];
	k->referenced = true;
	if (k->in_index && !k->bad)
		return 0;
	if (k->lost && !k->reported)
		report_lost(c, number);
	if (!k->reported)
		report_chunk(c, number, 0); /* missing: a bad one was reported */
	touched(c, &v->ref.name, key, key, true);
	return 0;
}

static int check_state(struct check *c, const struct name *name, uint64_t id, const char *branch)
{
	_cleanup_(root_unrefp) struct root *root = NULL;
	const struct tree_check ops = {
		.node = meet_node, .item = meet_item, .skip = skip_node, .arg = c
	};
	int r;

	r = store_load_root(c->store, name, &root);
	if (r < 0)
		return r;
	c->id = id;
	c->branch = branch;
	c->root = root;
	c->depth = 0;
	r = root_check(root, &ops);
	if (r < 0)
		return r;
	return leave(c, UINT8_MAX);
}

int check_trees(struct check *c)
{
	size_t total = c->snap_count + c->branch_count;
	int r;

	for (size_t i = 0; i < c->snap_count; i++) {
		r = tick(c, "states", i, total);
		if (r < 0)
			return r;
		r = check_state(c, &c->snaps[i]->rec.root, c->snaps[i]->id, NULL);
		if (r < 0)
			return r;
	}
	for (size_t i = 0; i < c->branch_count; i++) {
		r = tick(c, "states", c->snap_count + i, total);
		if (r < 0)
			return r;
		r = check_state(c, &c->branches[i]->rec.root, 0, c->branches[i]->name);
		if (r < 0)
			return r;
	}
	return 0;
}

/* ---- the whole ---- */

void check_free(struct check *c)
{
	for (size_t i = 0; i < c->snap_count; i++)
		free(c->snaps[i]);
	free(c->snaps);
	for (size_t i = 0; i < c->branch_count; i++)
		free(c->branches[i]);
	free(c->branches);
	nameset_release(&c->names);
	free(c->known);
	free(c->ranges);
	free(c->bad_packs);
	free(c->bad_keys);
	free(c);
}

int check_new(struct store *s, unsigned flags, const struct check_ops *ops,
	      const struct progress *progress, struct check **ret)
{
	struct check *c = os_calloc(1, sizeof(*c));

	if (!c)
		return -ENOMEM;
	c->store = s;
	c->flags = flags;
	c->ops = ops;
	c->progress = progress;
	*ret = c;
	return 0;
}

int check_end(struct check *c)
{
	c->stats.unreferenced = 0;
	for (uint32_t i = 0; i < c->names.count; i++)
		c->stats.unreferenced += c->known[i].in_index && !c->known[i].referenced;
	return c->stats.damaged > 0 ? EXISTS : 0;
}

int store_check(struct store *s, unsigned flags, const struct check_ops *ops,
		const struct progress *progress, struct check_stats *ret)
{
	_cleanup_(check_freep) struct check *c = NULL;
	int r;

	r = check_new(s, flags, ops, progress, &c);
	if (r < 0)
		return r;

	claim_records(s);
	r = check_records(c);
	claim_share(s);
	if (r == 0)
		r = check_chunks(c);
	if (r == 0)
		r = check_trees(c);
	store_import_end(s);
	if (r < 0)
		return r;

	/* What was checked is the chunks: whatever is read from now on is made of these. */
	if (flags & CHECK_READ_DATA)
		copies_remove(s, true);
	r = check_end(c);
	*ret = c->stats;
	return r;
}
