/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Repair: mends what can be proven, gives up what cannot, guesses nothing.
 *
 *   - A damaged header, of a pack or of a record whose bytes are whole, is written again: what it
 *     must say follows from the file's name, or from the index and the bytes.
 *   - A chunk that is damaged or missing is looked for in the packs: they may hold another good
 *     copy, or the index lost its way to the only one.
 *   - A damaged record of a snapshot, branch or counter comes back from the packs' copy of the
 *     tables (table.h), if that is complete. Where it has none the record is deleted; a deleted
 *     counter starts at the present time.
 *   - A parent, head or undo that is not there becomes none, which is what readers take it for.
 *   - A chunk that is nowhere and that a state needs becomes *lost* in the index. Trees are named
 *     by what they hold, so leaving a node out would change every state it is in, its name and all
 *     that refers to it; instead the states stay as they are, and only what is missing cannot be
 *     read: EIO for that part of that file, or for the names in that part of that directory. The
 *     check says what is lost each time, gc passes over it, and it goes when no state needs it any
 *     more.
 *   - Everything else that is damaged and that no state needs leaves the index.
 *
 * Then all is checked again: a node that came back leads to others. Each round mends something or
 * is the last one, and what hides behind a damaged node is at most the height of a tree deep.
 *
 * Changes of the index are transactions, so a crash leaves it before or after one; headers are
 * written in place and synced before. Snapshots and branches that come back are in the index only:
 * the table in memory does not know them, hence the store is to be closed and opened again.
 */

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>

#include "store/base/os.h"
#include "store/check_internal.h"
#include "store/chunk_internal.h"
#include "store/scan.h"
#include "store/stage.h"
#include "store/table_log.h"

#define ROUNDS_MAX (TREE_HEIGHT_MAX + 2)

/* What a scan of the packs found for a name that is wanted. */
struct copy {
	struct chunk_loc loc;
	bool found, doubtful;
};

struct repair {
	struct check *c;
	struct copy *copies;   /* owned; by number in c->names */
	struct table_log *log; /* owned, NULL: not read */
	bool read;	       /* the packs were scanned in this round */
	bool complete;	       /* the log has every change */
	uint64_t mended;       /* in this round */
};

static _printf_(2, 3) void mended(struct repair *p, const char *fmt, ...)
{
	char line[640];
	va_list args;

	p->mended++;
	if (!p->c->ops->mended)
		return;
	va_start(args, fmt);
	vsnprintf(line, sizeof(line), fmt, args);
	va_end(args);
	p->c->ops->mended(p->c->ops->arg, line);
}

/* ---- what the packs hold ---- */

static bool is_wanted(const struct known *k)
{
	return !k->lost && ((k->in_index && k->bad) || (k->referenced && !k->in_index));
}

static int take_record(void *arg, const struct scanned *found)
{
	struct repair *p = arg;
	uint32_t number = nameset_find(&p->c->names, &found->rec.name);
	struct copy *copy;

	if (found->rec.kind == RECORD_TABLE)
		return table_log_add(p->log, found);
	if (!found->raw || number == NAMESET_NONE || !is_wanted(&p->c->known[number]))
		return 0;
	copy = &p->copies[number];
	if (found->doubtful && copy->found)
		return 0;
	*copy = (struct copy){
		.found = true,
		.doubtful = found->doubtful,
		.loc = { .pack = found->pack,
			 .off = found->off,
			 .stored_len = found->rec.stored_len,
			 .raw_len = found->rec.raw_len,
			 .salt = found->rec.salt,
			 .kind = found->rec.kind,
			 .codec = found->rec.codec },
	};
	return 0;
}

static int read_packs(struct repair *p)
{
	struct table_log_stats tables;
	struct scan_stats scanned;
	int r;

	if (p->read)
		return 0;
	p->copies = os_calloc(p->c->names.count + 1, sizeof(*p->copies));
	if (!p->copies)
		return -ENOMEM;
	r = table_log_new(&p->log);
	if (r == 0)
		r = packs_scan(p->c->store->chunks->packs, take_record, p, p->c->progress,
			       &scanned);
	if (r == 0)
		r = table_log_resolve(p->log, p->c->store->uuid, &tables);
	p->complete = r == 0 && tables.whole && tables.gaps == 0;
	p->read = true;
	return r < 0 ? r : 0;
}

/* ---- headers ---- */

static int mend_headers(struct repair *p)
{
	struct packs *packs = p->c->store->chunks->packs;
	int r;

	for (size_t i = 0; i < p->c->bad_pack_count; i++) {
		r = pack_mend_header(packs, p->c->bad_packs[i]);
		if (r < 0)
			return r;
		mended(p, "pack %" PRIu32 ": its header was written again", p->c->bad_packs[i]);
	}
	for (uint32_t i = 0; i < p->c->names.count; i++) {
		const struct known *k = &p->c->known[i];
		struct chunk_loc loc;
		struct record rec;

		if (!k->header)
			continue;
		r = chunk_locate(p->c->store->chunks, &p->c->names.names[i], &loc);
		if (r != 0)
			return r < 0 ? r : -ERR_CHUNK_MISSING;
		rec = (struct record){ .kind = loc.kind,
				       .codec = loc.codec,
				       .salt = loc.salt,
				       .stored_len = loc.stored_len,
				       .raw_len = loc.raw_len,
				       .name = p->c->names.names[i] };
		r = pack_mend_record(packs, loc.pack, loc.off, &rec);
		if (r < 0)
			return r;
		mended(p, "pack %" PRIu32 " offset %" PRIu64 ": the header was written again",
		       loc.pack, loc.off);
	}
	return 0;
}

static int mend_format(struct repair *p)
{
	uint8_t uuid[16];
	int dir_fd = p->c->store->dir_fd, r;

	if (store_read_format(dir_fd, uuid) == 0 &&
	    memcmp(uuid, p->c->store->uuid, sizeof(uuid)) == 0)
		return 0;
	r = store_write_format(dir_fd, p->c->store->uuid);
	if (r == 0)
		r = os_fsync(dir_fd);
	if (r == 0)
		mended(p, "format file: it was written again");
	return r;
}

/* ---- chunks; inside one transaction ---- */

static int mend_chunk(struct repair *p, struct index_txn *txn, uint32_t number)
{
	const struct known *k = &p->c->known[number];
	const struct name *name = &p->c->names.names[number];
	const struct copy *copy = &p->copies[number];
	char text[NAME_HEX_SIZE];
	struct chunk_loc lost;
	int r;

	chunk_uncache(p->c->store->chunks, name);
	name_to_text(name, text);
	if (copy->found) {
		r = index_put_chunk(txn, name, &copy->loc);
		if (r == 0)
			mended(p, "chunk %s: found whole, pack %" PRIu32 " offset %" PRIu64, text,
			       copy->loc.pack, copy->loc.off);
		return r;
	}
	if (!k->referenced) {
		r = index_del_chunk(txn, name);
		if (r == 0)
			mended(p, "chunk %s: nothing needs it, it left the index", text);
		return r < 0 ? r : 0;
	}
	/* lengths and place are those it had, where they are known: for people only */
	lost = (struct chunk_loc){
		.kind = k->node ? CHUNK_NODE : CHUNK_DATA,
		.codec = CODEC_LOST,
		.pack = k->pack,
		.off = k->raw_len ? k->off : sizeof(struct pack_header_bytes),
		.stored_len = k->raw_len ? k->stored_len : 1,
		.raw_len = k->raw_len ? k->raw_len : 1,
	};
	r = index_put_chunk(txn, name, &lost);
	if (r == 0)
		mended(p, "chunk %s (%s): given up, what needs it gives EIO from now on", text,
		       k->node ? "node" : "data");
	return r;
}

static int mend_chunks(struct repair *p, struct index_txn *txn)
{
	for (uint32_t i = 0; i < p->c->names.count; i++) {
		int r = is_wanted(&p->c->known[i]) ? mend_chunk(p, txn, i) : 0;

		if (r < 0)
			return r;
	}
	return 0;
}

/* ---- records; inside the same transaction ---- */

static void key_to_text(const struct check_key *key, char text[static 80])
{
	uint64_t id;

	if (key->table == INDEX_SNAPS && snap_key_decode(key->bytes, key->len, &id) == 0) {
		char hex[SNAP_ID_SIZE];

		(void)snprintf(text, 80, "snapshot %s", snap_id_to_text(id, hex));
		return;
	}
	(void)snprintf(text, 80, "%s '%.*s'",
		       key->table == INDEX_SNAPS      ? "snapshot key"
		       : key->table == INDEX_BRANCHES ? "branch"
						      : "counter",
		       (int)MIN(key->len, 63), (const char *)key->bytes);
}

static int mend_record(struct repair *p, struct index_txn *txn, const struct check_key *key)
{
	const void *value;
	char text[80];
	size_t len;
	int r;

	key_to_text(key, text);
	if (p->complete &&
	    table_log_get(p->log, key->table, key->bytes, key->len, &value, &len) == 0) {
		r = index_put(txn, key->table, key->bytes, key->len, value, len);
		if (r == 0)
			mended(p, "%s: its record came back from the packs", text);
		return r;
	}
	r = index_del(txn, key->table, key->bytes, key->len);
	if (r >= 0)
		mended(p, "%s: its record is lost, and left the index", text);
	return r < 0 ? r : 0;
}

/*
 * A damaged key stands for another one, which nobody can name any more: the packs' copy of the
 * tables has what is missing then.
 */
static int put_missing(struct repair *p, struct index_txn *txn, enum index_table table,
		       const void *key, size_t key_len, const void *value, size_t value_len)
{
	struct check_key named = { .table = table, .len = key_len };
	char text[80];
	int r;

	if (key_len > sizeof(named.bytes))
		return 0;
	memcpy(named.bytes, key, key_len);
	r = index_put(txn, table, key, key_len, value, value_len);
	if (r == 0) {
		key_to_text(&named, text);
		mended(p, "%s: its record came back from the packs", text);
	}
	return r;
}

struct missing {
	struct repair *p;
	struct index_txn *txn;
};

static bool has_branch(const struct check *c, const void *key, size_t len)
{
	for (size_t i = 0; i < c->branch_count; i++)
		if (strlen(c->branches[i]->name) == len &&
		    memcmp(c->branches[i]->name, key, len) == 0)
			return true;
	return false;
}

static bool is_bad_key(const struct check *c, enum index_table table, const void *key, size_t len)
{
	for (size_t i = 0; i < c->bad_key_count; i++)
		if (c->bad_keys[i].table == table && c->bad_keys[i].len == len &&
		    memcmp(c->bad_keys[i].bytes, key, len) == 0)
			return true;
	return false;
}

static int mend_missing(void *arg, enum index_table table, const void *key, size_t key_len,
			const void *value, size_t value_len)
{
	const struct missing *m = arg;
	const struct check *c = m->p->c;
	uint64_t id;

	if (is_bad_key(c, table, key, key_len))
		return 0; /* mend_record's */
	if (table == INDEX_SNAPS && snap_key_decode(key, key_len, &id) == 0 &&
	    !check_find_snap(c, id))
		return put_missing(m->p, m->txn, table, key, key_len, value, value_len);
	if (table == INDEX_BRANCHES && !has_branch(c, key, key_len))
		return put_missing(m->p, m->txn, table, key, key_len, value, value_len);
	return 0;
}

/* S3 of store_internal.h, for what no record should ever have said. */
static int mend_links(struct repair *p, struct index_txn *txn)
{
	struct check *c = p->c;
	char text[SNAP_ID_SIZE];
	int r;

	for (size_t i = 0; i < c->snap_count; i++) {
		const struct check_snap *parent, *sn = c->snaps[i];
		uint8_t key[SNAP_KEY_BYTES], bytes[SNAP_RECORD_MAX];
		struct snap_record rec = sn->rec;

		parent = check_find_snap(c, rec.parent);
		if (rec.parent == 0 || (parent && parent->rec.seq < rec.seq))
			continue;
		rec.parent = 0;
		snap_key_encode(sn->id, key);
		r = index_put(txn, INDEX_SNAPS, key, sizeof(key), bytes,
			      snap_record_encode(&rec, bytes));
		if (r < 0)
			return r;
		mended(p, "snapshot %s: it has no parent now", snap_id_to_text(sn->id, text));
	}
	for (size_t i = 0; i < c->branch_count; i++) {
		struct check_branch *b = c->branches[i];
		bool head = b->rec.head && !check_find_snap(c, b->rec.head);
		bool undo = b->rec.undo && !check_find_snap(c, b->rec.undo);
		struct branch_record rec = b->rec;
		uint8_t bytes[BRANCH_RECORD_BYTES];

		if (!head && !undo)
			continue;
		if (head) {
			rec.head = 0;
			rec.changes++; /* it differs from no snapshot */
		}
		if (undo)
			rec.undo = 0;
		branch_record_encode(&rec, bytes);
		r = index_put(txn, INDEX_BRANCHES, b->name, strlen(b->name), bytes, sizeof(bytes));
		if (r < 0)
			return r;
		mended(p, "branch '%s': it has no %s now", b->name,
		       head && undo ? "head and no undo"
		       : head	    ? "head"
				    : "undo");
	}
	return 0;
}

static int write_changes(struct repair *p, struct index_txn *txn)
{
	struct missing missing = { .p = p, .txn = txn };
	int r = 0;

	if (p->read)
		r = mend_chunks(p, txn);
	for (size_t i = 0; r == 0 && i < p->c->bad_key_count; i++)
		r = mend_record(p, txn, &p->c->bad_keys[i]);
	/* links first: what comes back may be what they name, and the next round sees it */
	if (r == 0 && p->c->bad_key_count > 0 && p->complete)
		return table_log_each(p->log, mend_missing, &missing);
	return r < 0 ? r : mend_links(p, txn);
}

static int commit_changes(struct repair *p)
{
	for (;;) {
		_cleanup_(index_abortp) struct index_txn *txn = NULL;
		uint64_t before = p->mended;
		int r;

		r = index_begin(p->c->store->index, &txn);
		if (r == 0)
			r = write_changes(p, txn);
		if (r == 0 && p->mended == before)
			return 0;
		if (r == 0)
			r = table_record(p->c->store->tables, txn);
		if (r == 0)
			r = index_commit(&txn);
		if (r == 0)
			table_committed(p->c->store->tables);
		if (r != -ERR_INDEX_FULL)
			return r;
		index_abortp(&txn);
		r = index_grow(p->c->store->index);
		if (r < 0)
			return r;
	}
}

/* ---- the whole ---- */

static bool wants_packs(const struct check *c)
{
	for (uint32_t i = 0; i < c->names.count; i++)
		if (is_wanted(&c->known[i]))
			return true;
	return c->bad_key_count > 0;
}

/* 0, or EXISTS when there is nothing that can be mended. */
static int mend(struct repair *p)
{
	int r;

	r = mend_format(p);
	if (r == 0)
		r = mend_headers(p);
	if (r == 0 && wants_packs(p->c))
		r = read_packs(p);
	if (r == 0)
		r = commit_changes(p);
	/* last: it copies the records as they are now */
	if (r == 0 && p->c->tables) {
		r = table_write_all(p->c->store->tables);
		if (r == 0)
			mended(p, "the packs' copy of the tables was written again");
	}
	if (r < 0)
		return r;
	return p->mended > 0 ? 0 : EXISTS;
}

static int check_all(struct check *c)
{
	int r;

	r = check_records(c);
	if (r == 0)
		r = check_chunks(c);
	if (r == 0)
		r = check_trees(c);
	return r < 0 ? r : check_end(c);
}

/* One check, and what can be done about it. 0: clean, EXISTS: left as it is, AGAIN: look again. */
static int one_round(struct store *s, const struct check_ops *ops, const struct progress *progress,
		     bool again, struct check_stats *ret)
{
	_cleanup_(check_freep) struct check *c = NULL;
	struct repair p = { 0 };
	int r;

	r = check_new(s, CHECK_READ_DATA, ops, progress, &c);
	if (r < 0)
		return r;
	c->again = again;
	r = check_all(c);
	if (r < 0)
		return r;
	*ret = c->stats;
	if (r == 0)
		return 0;

	p.c = c;
	r = mend(&p);
	free(p.copies);
	if (p.log)
		table_log_free(p.log);
	return r == 0 ? AGAIN : r;
}

int store_repair(struct store *s, const struct check_ops *ops, const struct progress *progress,
		 struct check_stats *ret)
{
	int r;

	r = claim_all(s);
	if (r < 0)
		return note(&s->noter, r, "repair: an import, a check or a gc is running");
	stage_give_up(s->stage);
	r = seal_round(s, SEAL_LIVE); /* nothing is pending then */
	for (unsigned round = 0; r == 0 || r == AGAIN; round++) {
		r = one_round(s, ops, progress, round > 0, ret);
		if (r != AGAIN)
			break;
		if (round == ROUNDS_MAX) {
			r = EXISTS;
			break;
		}
	}
	claim_end(s);
	return r;
}
