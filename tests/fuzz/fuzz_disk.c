/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Whole files of a store from arbitrary bytes: a pack, read from end to end, as one of a store
 * whose index is made of its packs, and as one of a store that is mended; segments of the
 * journal, alone and replayed by a store that opens, with what write-behind had pending; the
 * index with some of its bytes changed, or with other records of snapshots, branches and
 * counters. The first byte chooses. Checksums are mended as if the bytes had been meant (no
 * fuzzer guesses one), but where a byte that no reader looks at says that they should stay.
 */

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "fs/fs.h"
#include "store/base/err.h"
#include "store/base/os.h"
#include "store/base/util.h"
#include "store/behind.h"
#include "store/chunk.h"
#include "store/format.h"
#include "store/index.h"
#include "store/journal.h"
#include "store/journal_lost.h"
#include "store/node.h"
#include "store/oplog.h"
#include "store/pack.h"
#include "store/scan.h"
#include "store/stage.h"
#include "store/store_internal.h"
#include "store/table.h"
#include "store/table_log.h"
#include "store/tableop.h"
#include "tests/fuzz/fuzz.h"

#define STAYS 1 /* in a record's first zero byte: its sum is not mended */
#define STAYS_NAME 2

#define BOOT "a boot" /* PLYFS_TEST_BOOT_ID */
#define SEGMENT "131072" /* the least that PLYFS_TEST_SEGMENT_BYTES may be */

static int dir_fd, journal_fd, index_fd;
static struct packs *packs;
static struct nodes *nodes;

/* ---- a pack ---- */

struct pack_walk {
	struct table_log *log;
	uint64_t records, damaged, next;
};

static int scanned(void *arg, const struct scanned *s)
{
	struct pack_walk *w = arg;
	uint8_t *again = NULL;
	struct record rec;
	struct name name;
	struct node *n;
	int r = record_read(packs, 1, s->off, &rec, &again);

	MUST(s->off >= w->next && s->off % PACK_ALIGN == 0);
	w->next = s->off + (s->raw ? record_span(s->rec.stored_len) : PACK_ALIGN);
	MUST((r == 0) == (s->raw != NULL));
	if (s->raw) {
		name = name_of(s->raw, s->rec.raw_len, s->rec.salt);
		MUST(name_eq(&name, &s->rec.name) && name_eq(&name, &rec.name));
		MUST(rec.raw_len == s->rec.raw_len && memcmp(again, s->raw, rec.raw_len) == 0);
		if (rec.kind == CHUNK_NODE && node_decode(nodes, again, rec.raw_len, &n) == 0)
			node_unref(n);
		w->records++;
	} else {
		w->damaged++;
	}
	free(again);
	MUST(table_log_add(w->log, s) == 0);
	return 0;
}

struct row {
	struct table_log *log;
	enum index_table table;
	const void *key;
	size_t len;
};

static int row(void *arg, enum index_table table, const void *key, size_t key_len,
	       const void *value, size_t value_len)
{
	struct row *last = arg;
	const void *found;
	size_t found_len;

	if (last->key && last->table == table) {
		int order = memcmp(last->key, key, MIN(last->len, key_len));

		MUST(order < 0 || (order == 0 && last->len < key_len));
	} else {
		MUST(!last->key || last->table < table);
	}
	MUST(table_log_get(last->log, table, key, key_len, &found, &found_len) == 0);
	MUST(found == value && found_len == value_len);
	*last = (struct row){ last->log, table, key, key_len };
	return 0;
}

static void mend_pack(uint8_t *bytes, size_t size)
{
	const size_t head = sizeof(struct record_header_bytes);
	uint8_t *raw = malloc(CHUNK_MAX);
	struct record rec;

	MUST(raw);
	for (size_t at = 0; at + head <= size;) {
		struct record_header_bytes b;
		bool fits;

		memcpy(&b, bytes + at, head);
		memcpy(b.magic, RECORD_MAGIC, sizeof(b.magic));
		put_le32(b.sum, (uint32_t)hash64(&b, offsetof(struct record_header_bytes, sum), 0));
		if (b.zero[0] & STAYS || record_header_get((uint8_t *)&b, &rec) < 0) {
			at += PACK_ALIGN;
			continue;
		}
		fits = rec.stored_len <= size - at - head;
		if (fits && !(b.zero[0] & STAYS_NAME) &&
		    payload_decode(packs, rec.codec, bytes + at + head, rec.stored_len, raw,
				   rec.raw_len) == 0) {
			rec.name = name_of(raw, rec.raw_len, rec.salt);
			memcpy(b.name, rec.name.b, NAME_BYTES);
			put_le32(b.sum, (uint32_t)hash64(&b, offsetof(struct record_header_bytes,
								      sum), 0));
		}
		memcpy(bytes + at, &b, head);
		at += fits ? record_span(rec.stored_len) : PACK_ALIGN;
	}
	free(raw);
}

static void write_pack(int to_fd, const char *name, const uint8_t *data, size_t size)
{
	const size_t head = sizeof(struct pack_header_bytes);
	uint8_t *bytes = malloc(size + 1);
	int fd;

	MUST(bytes);
	memcpy(bytes, data, size);
	mend_pack(bytes, size);
	fd = openat(to_fd, name, O_RDWR | O_CREAT, 0600);
	MUST(fd >= 0 && ftruncate(fd, 0) == 0);
	MUST(size == 0 || pwrite(fd, bytes, size, (off_t)head) == (ssize_t)size);
	close(fd);
	free(bytes);
}

static void pack(const uint8_t *data, size_t size)
{
	struct table_log_stats log_stats;
	struct pack_walk w = { 0 };
	struct scan_stats stats;
	int r;

	write_pack(dir_fd, "packs/00000001.pack", data, size);

	MUST(table_log_new(&w.log) == 0);
	MUST(packs_scan(packs, scanned, &w, NULL, &stats) == 0);
	MUST(stats.records == w.records && stats.damaged == w.damaged && stats.unreadable == 0);
	r = table_log_resolve(w.log, NULL, &log_stats);
	MUST(r == 0 || r == ABSENT);
	if (r == 0) {
		struct row last = { .log = w.log };

		MUST(table_log_each(w.log, row, &last) == 0);
	}
	table_log_free(w.log);
}

/* ---- the journal ---- */

struct reading {
	uint64_t count, last, hash;
	uint64_t copies; /* a hash of them: whoever reads again, in this boot, is handed none */
};

static int any_name(void *arg, const struct name *name)
{
	return 0;
}

static int record(void *arg, uint64_t lsn, enum journal_kind kind, const uint8_t *payload,
		  size_t len)
{
	struct reading *rd = arg;
	struct oplog_head head;
	struct table_op op;

	if (kind == JOURNAL_MARK) { /* before all others */
		MUST(len >= sizeof(struct journal_mark_bytes) && rd->count == 0);
		rd->copies = hash64(payload, len, rd->copies ^ lsn); /* all of it can be read */
		return 0;
	}
	MUST(lsn > rd->last);
	rd->last = lsn;
	rd->count++;
	rd->hash = hash64(payload, len, rd->hash ^ lsn ^ kind);
	if (kind == JOURNAL_CHANGE && oplog_decode(payload, len, &head) == 0)
		(void)oplog_each_chunk(head.items, head.items_len, any_name, NULL);
	if (kind == JOURNAL_TABLE && table_op_decode(payload, len, &op) == 0)
		(void)oplog_each_chunk(op.items, op.items_len, any_name, NULL);
	return 0;
}

static int lost_record(void *arg, uint64_t lsn, enum journal_kind kind, const uint8_t *payload,
		       size_t len)
{
	uint64_t *count = arg;

	MUST(kind == JOURNAL_CHANGE || kind == JOURNAL_TABLE);
	*count += hash64(payload, len, lsn) != 0; /* all of it can be read */
	return 0;
}

static void mend_segment(uint8_t *bytes, size_t size, uint32_t number, bool other_boot)
{
	const size_t head = sizeof(struct journal_record_bytes);
	struct name boot = name_of(BOOT, strlen(BOOT), other_boot);
	struct journal_header_bytes h;
	uint64_t seed;

	if (size < sizeof(h))
		return;
	memcpy(&h, bytes, sizeof(h));
	memcpy(h.magic, JOURNAL_MAGIC, sizeof(h.magic));
	put_le16(h.version, JOURNAL_VERSION);
	put_le32(h.number, number);
	memcpy(h.boot, boot.b, sizeof(h.boot));
	seed = hash64(&h, offsetof(struct journal_header_bytes, sum), 0);
	put_le64(h.sum, seed);
	memcpy(bytes, &h, sizeof(h));

	for (size_t at = sizeof(h); at + head <= size;) {
		struct journal_record_bytes b;
		uint64_t len;

		memcpy(&b, bytes + at, head);
		len = get_le32(b.len);
		if (b.zero[0] & STAYS || len > size - at - head) {
			at += 8;
			continue;
		}
		put_le64(b.sum, hash64(bytes + at + head, len,
				       seed ^ hash64(&b, offsetof(struct journal_record_bytes, sum),
						     0)));
		memcpy(bytes + at, &b, head);
		at += head + ((len + 7) & ~(size_t)7);
	}
}

static void write_segment(int to_fd, const uint8_t *data, size_t size, uint32_t number,
			  bool other_boot)
{
	uint8_t *bytes = malloc(size + 1);
	char name[16];
	int fd;

	MUST(bytes);
	memcpy(bytes, data, size);
	mend_segment(bytes, size, number, other_boot);
	snprintf(name, sizeof(name), "%08x", number);
	fd = openat(to_fd, name, O_WRONLY | O_CREAT | O_EXCL, 0600);
	MUST(fd >= 0 && write(fd, bytes, size) == (ssize_t)size);
	close(fd);
	free(bytes);
}

static int remove_one(void *arg, const char *name)
{
	const int *fd = arg;

	MUST(unlinkat(*fd, name, 0) == 0);
	return 0;
}

/* Flags, the length of the first segment, both segments. What is read is read again. */
static void journal(const uint8_t *data, size_t size)
{
	static const uint8_t more[] = "one more";
	struct reading first = { 0 }, again = { 0 };
	struct journal_found found;
	struct journal *j;
	uint64_t lost = 0;
	size_t cut;

	if (size < 3)
		return;
	cut = MIN(get_le16(data + 1), size - 3);
	write_segment(journal_fd, data + 3, cut, 1, data[0] & 1);
	write_segment(journal_fd, data + 3 + cut, size - 3 - cut, 2, data[0] & 2);

	MUST(journal_open(dir_fd, NULL, &j) == 0);
	MUST(journal_read(j, record, &first, &found) == 0);
	MUST(found.records == first.count);
	if (found.damaged)
		MUST(journal_each_lost(j, lost_record, &lost) == 0);
	journal_start(j, 0);
	/* 2^62 records are never written; numbers must not turn over here */
	if (journal_lsn(j) < UINT64_C(1) << 62) {
		MUST(journal_reserve(j, RECORD_OVERHEAD + sizeof(more), false) == 0);
		first.last = journal_append(j, JOURNAL_TABLE, more, sizeof(more),
					    RECORD_OVERHEAD + sizeof(more), NULL, NULL, NULL);
		first.count++;
		first.hash = hash64(more, sizeof(more), first.hash ^ first.last ^ JOURNAL_TABLE);
		journal_close(j);

		MUST(journal_open(dir_fd, NULL, &j) == 0);
		MUST(journal_read(j, record, &again, &found) == 0);
		MUST(again.count == first.count && again.last == first.last &&
		     again.hash == first.hash && again.copies == 0);
	}
	journal_close(j);
	MUST(os_each_name(journal_fd, ".", remove_one, &journal_fd) == 0);
}

/* ---- the index ---- */

#define INDEX_BASE_MAX ((size_t)512 << 10)
#define LONG_VALUE 9000

static uint8_t *base;
static size_t base_len;

static void put_chunks(struct index_txn *t, uint32_t from, uint32_t to, bool put)
{
	for (uint32_t i = from; i < to; i++) {
		struct name name = name_of(&i, sizeof(i), 0);
		struct chunk_loc loc = {
			.pack = 1,
			.off = 24 + 64 * (uint64_t)i,
			.kind = CHUNK_DATA,
			.stored_len = 8,
			.raw_len = 8,
		};
		int r = put ? index_put_chunk(t, &name, &loc) : index_del_chunk(t, &name);

		MUST(r == 0 || r == ABSENT);
	}
}

/* Of some commits, so that there are several levels, a long value and free pages. */
static void make_base(void)
{
	static uint8_t value[LONG_VALUE];
	struct index_txn *t;
	struct index *ix;
	int fd;

	MUST(index_open(dir_fd, NULL, &ix) == 0);
	for (uint32_t i = 0; i < 5; i++) {
		MUST(index_begin(ix, &t) == 0);
		put_chunks(t, i * 100, i * 100 + 100, i < 4);
		put_chunks(t, i * 20, i * 20 + 50, false);
		MUST(index_put(t, INDEX_META, "long", 4, value, i == 3 ? 16 : sizeof(value)) == 0);
		MUST(index_put(t, INDEX_SNAPS, &i, sizeof(i), value, 100) == 0);
		MUST(index_commit(&t) == 0);
	}
	index_close(ix);

	base = malloc(INDEX_BASE_MAX);
	fd = openat(index_fd, "data.mdb", O_RDONLY);
	MUST(base && fd >= 0);
	base_len = (size_t)pread(fd, base, INDEX_BASE_MAX, 0);
	close(fd);
	while (base_len > 4096 && base[base_len - 1] == 0)
		base_len--;
	base_len = (base_len + 4095) & ~(size_t)4095;
	MUST(base_len < INDEX_BASE_MAX);
}

static int look_value(void *arg, const void *key, size_t key_len, const void *value,
		      size_t value_len)
{
	uint64_t *sum = arg;

	*sum += hash64(key, key_len, 0) + (value ? hash64(value, value_len, 0) : 0);
	return 0;
}

static int look_chunk(void *arg, const struct name *name, const struct chunk_loc *loc)
{
	uint64_t *count = arg;

	*count += 1;
	return 0;
}

/* Changes: page, place in it, length, bytes. What is believed can be walked and written to. */
static void change_index(const uint8_t *data, size_t size)
{
	uint8_t *bytes = malloc(base_len);
	uint64_t sum = 0, count = 0, counted;
	struct index_txn *t;
	struct index *ix;
	int fd, r;

	MUST(bytes);
	memcpy(bytes, base, base_len);
	while (size > 4) {
		size_t at = data[0] % (base_len / 4096) * 4096 + get_le16(data + 1) % 4096;
		size_t len = MIN(MIN(data[3] % 16 + (size_t)1, size - 4), base_len - at);

		memcpy(bytes + at, data + 4, len);
		data += 4 + len;
		size -= 4 + len;
	}
	fd = openat(index_fd, "data.mdb", O_WRONLY | O_TRUNC);
	MUST(fd >= 0 && write(fd, bytes, base_len) == (ssize_t)base_len);
	close(fd);
	free(bytes);

	if (index_open(dir_fd, NULL, &ix) < 0)
		return;
	for (enum index_table table = INDEX_META; table <= INDEX_BRANCHES; table++)
		MUST(index_each(ix, table, look_value, &sum) == 0);
	MUST(index_each_chunk(ix, look_chunk, &count) == 0);
	MUST(index_count_chunks(ix, &counted) == 0 && counted == count);
	r = index_begin(ix, &t);
	if (r == 0) {
		put_chunks(t, 1000, 1100, true);
		put_chunks(t, 300, 330, false);
		MUST(index_put(t, INDEX_META, "long", 4, "short", 5) == 0);
		MUST(index_commit(&t) == 0);
		MUST(index_check(ix) == 0);
	}
	index_close(ix);
}

/* ---- a store that opens ---- */

#define STAGED 65536 /* bytes in the stage file that records may refer to */

static struct {
	int fd, index_fd, packs_fd, stage_fd, journal_fd;
	uint8_t *index, *pack; /* the files as they were, owned */
	size_t index_len, pack_len;
	struct name root; /* of its snapshot */
} made;

static int open_dir(int at, const char *name)
{
	int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	MUST(fd >= 0);
	return fd;
}

static size_t read_file(int at, const char *name, uint8_t **ret)
{
	int fd = openat(at, name, O_RDONLY);
	ssize_t len;

	*ret = malloc(INDEX_BASE_MAX);
	MUST(fd >= 0 && *ret);
	len = read(fd, *ret, INDEX_BASE_MAX);
	MUST(len > 0); /* of the index the beginning: zeros follow */
	close(fd);
	return (size_t)len;
}

/* With one branch and a snapshot of it. Its ids are the same each time. */
static void make_store(void)
{
	static const uint8_t uuid[16] = { 0 };
	struct timens now = { .sec = 1 };
	struct snap_info info;
	struct fs fs = { 0 };
	struct branch *b;
	struct root *root;
	uint64_t id;

	MUST(mkdirat(dir_fd, "store", 0700) == 0);
	made.fd = open_dir(dir_fd, "store");
	MUST(store_init(made.fd) == 0 && store_write_format(made.fd, uuid) == 0);
	MUST(store_open(made.fd, NULL, &fs.store) == 0);
	MUST(root_empty(store_nodes(fs.store), &root) == 0);
	MUST(tree_new(store_nodes(fs.store), root, &fs.tree) == 0);
	root_unref(root);
	MUST(fs_make_root(&fs, 0755, 0, 0, now) == 0 && tree_freeze(fs.tree, &root) == 0);
	MUST(branch_create(fs.store, "main", root, 0, 0, &b) == 0);
	root_unref(root);
	tree_free(fs.tree);
	MUST(branch_checkpoint(b, "first", 0, &id) == 0);
	branch_close(b);
	MUST(store_sync(fs.store) == 0 && snap_get(fs.store, id, &info) == 0 && info.has_root);
	made.root = info.root;
	MUST(store_close(fs.store) == 0);

	made.index_fd = open_dir(made.fd, "index");
	made.packs_fd = open_dir(made.fd, "packs");
	made.stage_fd = open_dir(made.fd, "stage");
	made.journal_fd = open_dir(made.fd, "journal");
	made.index_len = read_file(made.index_fd, "data.mdb", &made.index);
	made.pack_len = read_file(made.packs_fd, "00000001.pack", &made.pack);
}

static void write_file(int at, const char *name, const uint8_t *bytes, size_t len)
{
	int fd = openat(at, name, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	MUST(fd >= 0 && write(fd, bytes, len) == (ssize_t)len);
	close(fd);
}

static void reset_store(void)
{
	int fd;

	MUST(os_each_name(made.packs_fd, ".", remove_one, &made.packs_fd) == 0);
	MUST(os_each_name(made.stage_fd, ".", remove_one, &made.stage_fd) == 0);
	MUST(os_each_name(made.journal_fd, ".", remove_one, &made.journal_fd) == 0);
	write_file(made.packs_fd, "00000001.pack", made.pack, made.pack_len);
	write_file(made.index_fd, "data.mdb", made.index, made.index_len);
	fd = openat(made.stage_fd, "00000001", O_WRONLY | O_CREAT | O_EXCL, 0600);
	MUST(fd >= 0 && ftruncate(fd, STAGED) == 0);
	close(fd);
}

struct look_store {
	struct store *store;
	uint64_t hash, snaps;
};

/* All items, in order. */
static int look_branch(void *arg, const struct branch_info *info)
{
	struct look_store *l = arg;
	struct key last = KEY_MIN;
	struct cursor c;
	struct branch *b;
	bool any = false;
	int r;

	l->hash = hash64(info->name, strlen(info->name), l->hash);
	if (branch_open(l->store, info->name, &b) < 0)
		return 0;
	{
		READ_GUARD(&b->lock);
		for (r = cursor_seek(&c, b->tree, &KEY_MIN); r == 0; r = cursor_next(&c)) {
			MUST(!any || key_cmp(&last, &c.key) < 0);
			last = c.key;
			any = true;
			l->hash = hash64(&last.a, sizeof(last.a), l->hash ^ last.t);
			l->hash = hash64(&last.b, sizeof(last.b), l->hash);
			l->hash = hash64(c.val.data, c.val.len, l->hash);
		}
	}
	branch_close(b);
	return 0;
}

static int look_snap(void *arg, const struct snap_info *info)
{
	struct look_store *l = arg;

	MUST(strlen(info->branch) <= BRANCH_NAME_MAX && strlen(info->label) <= LABEL_MAX);
	MUST(info->parent != info->id);
	/* A sum: in a journal with odd numbers their order and parents are not what they were. */
	l->snaps += hash64(info->label, strlen(info->label), info->id);
	return 0;
}

static void look(struct look_store *l)
{
	MUST(snap_each(l->store, look_snap, l) == 0);
	MUST(branch_each(l->store, look_branch, l) == 0);
}

/* What the store holds, it holds when it was closed and opened again. */
static void open_twice(void)
{
	struct look_store first = { 0 }, again = { 0 };
	struct check_ops ops = { 0 };
	struct check_stats stats;

	if (store_open(made.fd, NULL, &first.store) < 0)
		return;
	look(&first);
	MUST(store_check(first.store, CHECK_READ_DATA, &ops, NULL, &stats) >= 0);
	if (store_close(first.store) < 0)
		return;
	MUST(store_open(made.fd, NULL, &again.store) == 0);
	look(&again);
	MUST(again.hash == first.hash && again.snaps == first.snaps);
	(void)store_close(again.store);
}

#define PIECE_BYTES 24
#define PIECES 2 /* of 12: what follows is for the segments */
#define SLOTS 4

/* Of a slot, as behind.c has it: magic, boot, and where which bytes belong. */
static size_t write_behind(const uint8_t *data, size_t size, bool other_boot)
{
	static const char magic[8] = "plybehi1";
	struct name boot = name_of(BOOT, strlen(BOOT), other_boot);
	size_t len = MIN(size / PIECE_BYTES, (size_t)PIECES) * PIECE_BYTES;
	int fd = openat(made.stage_fd, BEHIND_NAME, O_WRONLY | O_CREAT | O_EXCL, 0600);

	MUST(fd >= 0 && ftruncate(fd, (off_t)SLOTS * STAGE_SLOT_BYTES) == 0);
	MUST(pwrite(fd, magic, sizeof(magic), 0) == sizeof(magic));
	MUST(pwrite(fd, boot.b, sizeof(boot.b), sizeof(magic)) == sizeof(boot.b));
	MUST(pwrite(fd, data, len, sizeof(magic) + sizeof(boot.b)) == (ssize_t)len);
	close(fd);
	return len;
}

#define BEHIND 0x80 /* in the flags: what was pending comes before the segments */

/* As `journal` has it. */
static void replay(const uint8_t *data, size_t size)
{
	size_t cut, behind = 0;

	if (size < 3)
		return;
	reset_store();
	if (data[0] & BEHIND)
		behind = write_behind(data + 3, size - 3, data[0] & 4);
	size -= behind;
	cut = MIN(get_le16(data + 1), size - 3);
	write_segment(made.journal_fd, data + 3 + behind, cut, 1, data[0] & 1);
	write_segment(made.journal_fd, data + 3 + behind + cut, size - 3 - cut, 2, data[0] & 2);
	open_twice();
}

/* ---- what a store's records say ---- */

#define FEW 64

/* A small number stands for the snapshot with that number: no fuzzer guesses an id. */
static uint64_t id_of(uint64_t number)
{
	return number > 0 && number < FEW ? snap_id_of(0, number) : number;
}

/* 1 and zeros stand for the state that there is. */
static void root_of(struct name *name)
{
	static const struct name meant = { .b = { 1 } };

	if (name_eq(name, &meant))
		*name = made.root;
}

static int put_record(void *arg, bool put, enum index_table which, const void *key, size_t key_len,
		      const void *value, size_t value_len)
{
	uint8_t id[SNAP_KEY_BYTES], again[SNAP_RECORD_MAX];
	struct index_txn *t = arg;
	struct snap_record snap;
	struct branch_record b;
	int r;

	if (key_len > 511) /* of LMDB, as index_put has it */
		return 0;
	if (which == INDEX_SNAPS && snap_record_decode(value, value_len, &snap) == 0) {
		snap.parent = id_of(snap.parent);
		root_of(&snap.root);
		value_len = snap_record_encode(&snap, again);
		value = again;
		snap_key_encode(snap_id_of(0, snap.seq), id);
		key = id;
		key_len = sizeof(id);
	} else if (which == INDEX_BRANCHES && branch_record_decode(value, value_len, &b) == 0) {
		b.head = id_of(b.head);
		b.undo = id_of(b.undo);
		root_of(&b.root);
		branch_record_encode(&b, again);
		value = again;
		value_len = BRANCH_RECORD_BYTES;
	}
	r = put ? index_put(t, which, key, key_len, value, value_len)
		: index_del(t, which, key, key_len);
	MUST(r == 0 || r == ABSENT);
	return 0;
}

static int use_branch(void *arg, const struct branch_info *info)
{
	struct branch *b;
	uint64_t id;

	if (branch_open(arg, info->name, &b) < 0)
		return 0;
	(void)branch_undo(b, &id);
	if (info->head)
		(void)branch_restore(b, info->head);
	(void)branch_checkpoint(b, "again", 0, &id);
	branch_close(b);
	return 0;
}

static int drop_one(void *arg, const struct snap_info *info)
{
	if (info->seq % 2)
		(void)snap_drop(arg, info->id);
	return 0;
}

/* Operations on the index, as table records have them. */
static void records(const uint8_t *data, size_t size)
{
	struct index_txn *t;
	struct store *s;
	struct gc_stats gc;
	struct index *ix;

	reset_store();
	MUST(index_open(made.fd, NULL, &ix) == 0 && index_begin(ix, &t) == 0);
	(void)index_ops_each(data, size, put_record, t);
	MUST(index_commit(&t) == 0);
	index_close(ix);
	open_twice();

	if (store_open(made.fd, NULL, &s) < 0)
		return;
	MUST(branch_each(s, use_branch, s) == 0);
	MUST(snap_each(s, drop_one, s) == 0);
	(void)store_gc(s, NULL, &gc);
	if (store_close(s) < 0)
		return;
	open_twice();
}

/* ---- packs of which a new index is made, and a store that is mended ---- */

static void take_back_index(void)
{
	if (renameat(made.fd, "index.damaged", made.fd, "index.former") < 0)
		return;
	MUST(unlinkat(made.fd, "index/data.mdb", 0) == 0);
	(void)unlinkat(made.fd, "index/lock.mdb", 0); /* there may be none */
	MUST(unlinkat(made.fd, "index", AT_REMOVEDIR) == 0);
	MUST(renameat(made.fd, "index.former", made.fd, "index") == 0);
}

static void salvage(const uint8_t *data, size_t size)
{
	const struct noter noter = { 0 };
	struct salvage_stats salvaged;
	struct check_ops ops = { 0 };
	struct check_stats stats;
	struct store *s;

	reset_store();
	write_pack(made.packs_fd, "00000002.pack", data, size);
	if (store_salvage(made.fd, &noter, NULL, &salvaged) == 0) {
		open_twice();
		if (store_open(made.fd, NULL, &s) == 0) {
			MUST(store_repair(s, &ops, NULL, &stats) >= 0);
			(void)store_close(s);
			open_twice();
		}
	}
	take_back_index();
}

/*
 * How many changes of the store's pack, and these: where, and the byte. Then another pack, in which
 * a repair may find what they damaged.
 */
static void mend(const uint8_t *data, size_t size)
{
	size_t changes = MIN(size ? data[0] % 16 : 0, (size - (size > 0)) / 3);
	struct check_ops ops = { 0 };
	struct check_stats stats;
	struct store *s;
	int fd;

	reset_store();
	fd = openat(made.packs_fd, "00000001.pack", O_WRONLY);
	MUST(fd >= 0);
	for (size_t i = 0; i < changes; i++)
		MUST(pwrite(fd, data + 3 + 3 * i, 1, get_le16(data + 1 + 3 * i) % made.pack_len) ==
		     1);
	close(fd);
	if (size > 0)
		write_pack(made.packs_fd, "00000002.pack", data + 1 + 3 * changes,
			   size - 1 - 3 * changes);
	if (store_open(made.fd, NULL, &s) < 0)
		return;
	MUST(store_repair(s, &ops, NULL, &stats) >= 0);
	(void)store_close(s);
	open_twice();
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	dir_fd = open(fuzz_dir(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	MUST(dir_fd >= 0 && setenv("PLYFS_TEST_BOOT_ID", BOOT, 1) == 0 &&
	     setenv("PLYFS_TEST_SEGMENT_BYTES", SEGMENT, 1) == 0);
	MUST(mkdirat(dir_fd, "index", 0700) == 0 && mkdirat(dir_fd, "journal", 0700) == 0);
	index_fd = openat(dir_fd, "index", O_RDONLY | O_DIRECTORY);
	journal_fd = openat(dir_fd, "journal", O_RDONLY | O_DIRECTORY);
	MUST(index_fd >= 0 && journal_fd >= 0);
	MUST(packs_open(dir_fd, &packs) == 0 && nodes_new(NULL, NULL, &nodes) == 0);
	make_base();
	make_store();
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static void (*const kinds[])(const uint8_t *, size_t) = { pack,	  journal, change_index,
								  replay, records, salvage,
								  mend };

	if (size > 0)
		kinds[data[0] % (sizeof(kinds) / sizeof(kinds[0]))](data + 1, size - 1);
	return 0;
}
