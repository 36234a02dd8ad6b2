/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Salvage: a new index from the packs alone, when LMDB's file is damaged, cut or gone.
 *
 * Each record in the packs says itself what it is, so the chunks' places are found by reading all
 * packs once; of several records with one name the last counts (FORMAT.md). Snapshots, branches and
 * counters come from the table records (table.h). Whatever was committed is there again: the
 * records of a commit are in the packs before it.
 *
 * The new index is made in salvage/, then the old one moves aside to index.damaged (with a number
 * when there is one) and the new one in its place. A crash leaves the old index, or none: salvage
 * works from the packs again. Nothing is taken away; the old index may be deleted when the store
 * is found to be right.
 *
 * What lies in packs that a gc would have removed comes back as chunks that belong to nothing.
 */

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>

#include "store/base/os.h"
#include "store/chunk.h"
#include "store/journal.h"
#include "store/journal_lost.h"
#include "store/scan.h"
#include "store/store_internal.h"
#include "store/table_log.h"

/* Entries in one transaction, as in a sweep. */
#define BATCH 20000

/* Numbers skipped where the newest ones may be missing: as many as a commit is ahead (seal.c). */
#define SEQ_SKIP (UINT64_C(1) << 16)

#define DATA "index/data.mdb"

struct entry_found {
	struct name name;
	struct chunk_loc loc;
};

struct entries {
	struct entry_found *list; /* owned */
	size_t count, capacity;
};

struct salvage {
	const struct noter *noter;
	struct index *index;
	struct table_log *log;
	struct entries batch;	 /* to be put */
	struct entries doubtful; /* to be put at the end, where the name is free */
	uint64_t seq_max;
	uint64_t seq, ino, lineage; /* counters that were found; 0: not */
	struct salvage_stats stats;
};

/* ---- writing the new index ---- */

static int put_entries(void *arg, struct index_txn *txn)
{
	const struct entries *e = arg;

	for (size_t i = 0; i < e->count; i++) {
		int r = index_put_chunk(txn, &e->list[i].name, &e->list[i].loc);

		if (r < 0)
			return r;
	}
	return 0;
}

/* One transaction, again with a larger map when that is full. */
static int in_txn(struct index *ix, int (*fn)(void *arg, struct index_txn *txn), void *arg)
{
	for (;;) {
		_cleanup_(index_abortp) struct index_txn *txn = NULL;
		int r;

		r = index_begin(ix, &txn);
		if (r == 0)
			r = fn(arg, txn);
		if (r == 0)
			r = index_commit(&txn);
		if (r != -ERR_INDEX_FULL)
			return r;
		index_abortp(&txn);
		r = index_grow(ix);
		if (r < 0)
			return r;
	}
}

static int add_entry(struct entries *e, const struct scanned *found)
{
	const struct record *rec = &found->rec;
	int r = os_grow(&e->list, &e->capacity, e->count + 1, sizeof(*e->list));

	if (r < 0)
		return r;
	e->list[e->count++] = (struct entry_found){
		.name = rec->name,
		.loc = { .pack = found->pack,
			 .off = found->off,
			 .stored_len = rec->stored_len,
			 .raw_len = rec->raw_len,
			 .salt = rec->salt,
			 .kind = rec->kind,
			 .codec = rec->codec },
	};
	return 0;
}

static int flush_batch(struct salvage *s)
{
	int r = s->batch.count > 0 ? in_txn(s->index, put_entries, &s->batch) : 0;

	s->batch.count = 0;
	return r;
}

static int take_record(void *arg, const struct scanned *found)
{
	struct salvage *s = arg;
	int r;

	if (found->rec.kind == RECORD_TABLE)
		return table_log_add(s->log, found);
	if (!found->raw)
		return 0;
	if (found->doubtful)
		return add_entry(&s->doubtful, found);
	r = add_entry(&s->batch, found);
	return r == 0 && s->batch.count == BATCH ? flush_batch(s) : r;
}

/* Those inside damaged records never replace others. */
static int put_doubtful(struct salvage *s)
{
	int r;

	r = flush_batch(s);
	for (size_t i = 0; r == 0 && i < s->doubtful.count; i++) {
		struct entries one = { .list = &s->doubtful.list[i], .count = 1 };
		struct chunk_loc loc;

		r = index_find_chunk(s->index, &one.list->name, &loc);
		if (r == 0)
			continue;
		if (r != ABSENT)
			return r;
		r = in_txn(s->index, put_entries, &one);
	}
	return r;
}

/* ---- the tables ---- */

struct putting {
	struct salvage *s;
	struct index_txn *txn;
};

static int put_meta(struct index_txn *txn, const char *key, uint64_t value)
{
	uint8_t bytes[META_BYTES];

	put_le64(bytes, value);
	return index_put(txn, INDEX_META, key, strlen(key), bytes, sizeof(bytes));
}

static void take_counter(const char *counter, uint64_t *found, const void *key, size_t key_len,
			 const void *value, size_t value_len)
{
	if (key_len == strlen(counter) && memcmp(key, counter, key_len) == 0 &&
	    value_len == META_BYTES)
		*found = get_le64(value);
}

static int put_record(void *arg, enum index_table table, const void *key, size_t key_len,
		      const void *value, size_t value_len)
{
	struct putting *p = arg;
	struct salvage *s = p->s;
	struct snap_record rec;

	switch (table) {
	case INDEX_META:
		take_counter("seq", &s->seq, key, key_len, value, value_len);
		take_counter("ino", &s->ino, key, key_len, value, value_len);
		take_counter("lineage", &s->lineage, key, key_len, value, value_len);
		break;
	case INDEX_SNAPS:
		s->stats.snapshots++;
		if (snap_record_decode(value, value_len, &rec) == 0)
			s->seq_max = MAX(s->seq_max, rec.seq);
		break;
	case INDEX_BRANCHES:
		s->stats.branches++;
		break;
	}
	return index_put(p->txn, table, key, key_len, value, value_len);
}

static int put_tables(void *arg, struct index_txn *txn)
{
	struct putting p = { .s = arg, .txn = txn };
	struct salvage *s = arg;
	uint64_t now = (uint64_t)os_now_ns();
	int r;

	s->stats.snapshots = s->stats.branches = 0;
	r = table_log_each(s->log, put_record, &p);
	/* as store.c does with damaged counters, but not back behind what was found */
	if (r == 0 && (s->stats.gaps > 0 || !s->seq))
		r = put_meta(txn, "seq", MAX(s->seq, s->seq_max + SEQ_SKIP));
	if (r == 0 && (s->stats.gaps > 0 || !s->ino))
		r = put_meta(txn, "ino", MAX(s->ino, now));
	if (r == 0 && (s->stats.gaps > 0 || !s->lineage))
		r = put_meta(txn, "lineage", MAX(s->lineage, now));
	return r;
}

/* ---- directories ---- */

static int remove_index(int dir_fd)
{
	static const char *const files[] = { "salvage/index/data.mdb", "salvage/index/lock.mdb" };
	int r = 0;

	for (size_t i = 0; r == 0 && i < ARRAY_SIZE(files); i++) {
		r = os_unlinkat(dir_fd, files[i], 0);
		r = r == -ENOENT ? 0 : r;
	}
	if (r == 0)
		r = os_unlinkat(dir_fd, "salvage/index", AT_REMOVEDIR);
	if (r == 0 || r == -ENOENT)
		r = os_unlinkat(dir_fd, "salvage", AT_REMOVEDIR);
	return r == -ENOENT ? 0 : r;
}

/* Of the index's directory that cannot be renamed, the file. A crash leaves none: see above. */
static int move_file_aside(int dir_fd, const char *name)
{
	char path[48];
	int r;

	r = os_mkdirat(dir_fd, name, 0700);
	if (r < 0)
		return r;
	(void)snprintf(path, sizeof(path), "%s/data.mdb", name);
	r = os_renameat(dir_fd, DATA, path);
	return r == 0 || r == -ENOENT ? EXISTS : r; /* else the next salvage takes another name */
}

/*
 * EXISTS: the directory is still there, without a file. Overlayfs renames none that came with a
 * lower layer (EXDEV), as when a container's image has the store.
 */
static int move_aside(int dir_fd, char name[static 32])
{
	struct stat st;
	int r;

	r = os_statat(dir_fd, "index", &st);
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	for (unsigned i = 0;; i++) {
		(void)snprintf(name, 32, i ? "index.damaged.%u" : "index.damaged", i);
		r = os_statat(dir_fd, name, &st);
		if (r == -ENOENT) {
			r = os_renameat(dir_fd, "index", name);
			return r == -EXDEV ? move_file_aside(dir_fd, name) : r;
		}
		if (r < 0)
			return r;
	}
}

static int put_file_in_place(int dir_fd)
{
	_cleanup_close_ int fd = -1;
	int r;

	r = os_renameat(dir_fd, "salvage/index/data.mdb", DATA);
	if (r == 0)
		r = os_openat(dir_fd, "index", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0, &fd);
	return r < 0 ? r : os_fsync(fd);
}

static int put_in_place(struct salvage *s, int dir_fd)
{
	int r;

	r = move_aside(dir_fd, s->stats.old);
	if (r == EXISTS)
		r = put_file_in_place(dir_fd);
	else if (r == 0)
		r = os_renameat(dir_fd, "salvage/index", "index");
	if (r == 0)
		r = os_fsync(dir_fd);
	return r < 0 ? r : remove_index(dir_fd);
}

/* ---- the whole ---- */

/* uuid: NULL when the format file does not tell. */
static int salvage_packs(struct salvage *s, int dir_fd, const uint8_t *uuid,
			 const struct progress *progress)
{
	struct table_log_stats tables;
	struct scan_stats scanned;
	struct packs *packs;
	int r;

	r = packs_open(dir_fd, &packs);
	if (r < 0)
		return r;
	r = packs_scan(packs, take_record, s, progress, &scanned);
	packs_close(packs);
	if (r == 0)
		r = put_doubtful(s);
	if (r == 0)
		r = table_log_resolve(s->log, uuid, &tables);
	if (r == ABSENT)
		return -ERR_SALVAGE_NOTHING;
	if (r < 0)
		return r;

	s->stats.packs = scanned.packs;
	s->stats.bytes = scanned.bytes;
	s->stats.damaged = scanned.damaged;
	s->stats.gaps = tables.gaps + !tables.whole;
	r = in_txn(s->index, put_tables, s);
	return r < 0 ? r : index_count_chunks(s->index, &s->stats.chunks);
}

static int make_index(struct salvage *s, int dir_fd, const uint8_t *uuid,
		      const struct progress *progress)
{
	_cleanup_close_ int new_fd = -1;
	int r;

	r = remove_index(dir_fd);
	if (r == 0)
		r = os_mkdirat(dir_fd, "salvage", 0700);
	if (r == 0)
		r = os_openat(dir_fd, "salvage", O_RDONLY | O_DIRECTORY, 0, &new_fd);
	if (r == 0)
		r = index_open(new_fd, s->noter, &s->index);
	if (r < 0)
		return r;
	r = table_log_new(&s->log);
	if (r == 0)
		r = salvage_packs(s, dir_fd, uuid, progress);
	index_close(s->index);
	free(s->batch.list);
	free(s->doubtful.list);
	return r < 0 ? r : os_fsync(new_fd);
}

/* The store's directory with its lock; the format file may be damaged or gone. */
static int take_store(int dir_fd, int *ret_lock, uint8_t uuid[static 16], bool *ret_known)
{
	_cleanup_close_ int lock_fd = -1;
	struct stat st;
	int r;

	r = os_statat(dir_fd, "packs", &st);
	if (r == -ENOENT || (r == 0 && !S_ISDIR(st.st_mode)))
		return -ERR_NOT_A_STORE;
	if (r < 0)
		return r;
	r = store_read_format(dir_fd, uuid);
	*ret_known = r >= 0; /* EXISTS: of the version before */
	if (r < 0 && r != -ERR_NOT_A_STORE && r != -ERR_FORMAT_DAMAGED)
		return r;

	r = os_openat(dir_fd, "lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600, &lock_fd);
	if (r < 0)
		return r;
	r = os_lock(lock_fd);
	if (r < 0)
		return r == -EWOULDBLOCK ? -ERR_STORE_BUSY : r;
	*ret_lock = TAKE_FD(lock_fd);
	return 0;
}

int store_salvage(int dir_fd, const struct noter *noter, const struct progress *progress,
		  struct salvage_stats *ret)
{
	_cleanup_close_ int fd = -1, lock_fd = -1;
	struct salvage s = { .noter = noter };
	uint8_t uuid[16];
	bool known = false;
	int r;

	r = os_openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0, &fd);
	if (r == 0)
		r = take_store(fd, &lock_fd, uuid, &known);
	if (r < 0)
		return r;

	r = make_index(&s, fd, known ? uuid : NULL, progress);
	if (r == 0 && !known) {
		r = store_write_format(fd, table_log_uuid(s.log));
		s.stats.format = true;
	}
	if (s.log)
		table_log_free(s.log);
	if (r == 0)
		r = put_in_place(&s, fd);
	else
		(void)remove_index(fd); /* the next salvage does so too */
	if (r == 0)
		*ret = s.stats;
	return r;
}

int store_give_up_journal(int dir_fd, const struct noter *noter)
{
	_cleanup_close_ int lock_fd = -1;
	uint8_t uuid[16];
	bool known;
	int r;

	r = take_store(dir_fd, &lock_fd, uuid, &known);
	if (r == 0)
		r = journal_give_up(dir_fd, noter);
	return r < 0 ? r : 0;
}

int store_is_broken(int dir_fd, const struct noter *noter)
{
	_cleanup_close_ int lock_fd = -1;
	struct index *index;
	uint8_t uuid[16];
	struct stat st;
	bool known;
	int r;

	r = take_store(dir_fd, &lock_fd, uuid, &known);
	if (r < 0)
		return r;
	r = known ? os_statat(dir_fd, DATA, &st) : -ENOENT;
	if (r < 0) /* nobody may open what is not there: it would be made, empty */
		return r == -ENOENT ? EXISTS : r;
	r = index_open(dir_fd, noter, &index);
	if (r == 0)
		index_close(index);
	return r == -ERR_INDEX_BROKEN ? EXISTS : r;
}
