/* SPDX-License-Identifier: Apache-2.0 */
#include "store/index.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <lmdb.h>
#include <pthread.h>

#include "store/base/err.h"
#include "store/base/note.h"
#include "store/base/os.h"
#include "store/base/util.h"
#include "store/chunk.h"
#include "store/format.h"
#include "store/index_verify.h"

/*
 * One LMDB environment with four tables. LMDB gives atomic, durable commits and readers that never
 * wait; what it lacks is added here:
 *
 *   1. a checksum behind each value, seeded with its key, so that neither a flipped bit nor a value
 *      that strayed to another key is believed;
 *   2. a look at every page before LMDB believes any of them (index_verify.c): a damaged one is a
 *      refusal to open, with one line, and not the end of the process or wrong writes later;
 *   3. no read through the map beyond the end of the file (that would be SIGBUS, the death of every
 *      mount): the file always covers the pages that the last commit counts, and a file that does
 *      not was cut by somebody: it is refused at open, and takes no more commits. A commit would
 *      fill the gap with zeros, and the store would let go of the journal for it. See cover_file();
 *   4. nobody looks at the map while index_grow() replaces it: readers hold map_lock for reading,
 *      the writer is excluded by write_lock;
 *   5. reading goes on after a commit that failed. LMDB refuses everything once it could not write
 *      its meta page, so the environment is opened anew, from what the map shows; who would read
 *      meanwhile waits. See reopen(), reader_begin();
 *   6. nothing is written after a commit that failed until it is certain that the old one stands,
 *      on the disk as well as in the map. See settle().
 *
 * Lock order: write_lock > map_lock > pool_lock. A callback of index_each*() may read the index but
 * not write it: index_begin would wait for a grow that waits for that very reader.
 *
 * Crash: between any two steps the old or the new commit stands, LMDB's own promise.
 */

/*
 * Virtual addresses only, the file stays as small as its content. 4 GiB hold some 50 million
 * chunks (a leaf entry is 56 bytes, pages are 70 % full), most stores never grow it.
 */
#define MAP_BYTES ((size_t)4 << 30)

/* LMDB's default: readers are short, so more would mean that more threads read at one instant. */
#define READERS_MAX 126

/* As LMDB makes it: 64 bytes for each reader, and two such pieces before them. */
#define LOCK_BYTES ((READERS_MAX + 2) * 64)

/*
 * How far the file is kept ahead of the last page in use (sparse, no disk space). LMDB counts
 * pages that it took and gave back within one commit, but never writes them; without the margin a
 * healthy file could end before its own count. 64 MiB is more than one commit gives back.
 */
#define COVER_BYTES ((uint64_t)64 << 20)

#define TABLES 3

/* Less than one run of dirty pages (LMDB writes up to 64 at once): a disk this full is full. */
#define FULL_BYTES ((uint64_t)1 << 20)

struct index {
	/* Under map_lock, with the map behind it; owned. NULL: it could not be opened anew. */
	MDB_env *env;
	MDB_dbi chunks;      /* likewise */
	MDB_dbi tables[TABLES]; /* likewise, by enum index_table */
	uint64_t page_bytes; /* immutable */
	int data_fd;         /* likewise, LMDB's own */
	int dir_fd;          /* immutable, owned: directory "index" */
	struct noter noter;  /* immutable */

	pthread_mutex_t write_lock; /* held by whoever has the write transaction */
	uint64_t span;              /* under write_lock: bytes that the last commit's pages span */
	uint64_t last_txn;          /* under write_lock: LMDB's number of the last good commit */
	bool doubt;                 /* under write_lock: one failed since, invariant 6 */
	pthread_rwlock_t map_lock;

	pthread_mutex_t pool_lock;
	pthread_cond_t pool_returned;
	MDB_txn *pool[READERS_MAX]; /* under pool_lock: reset read transactions, owned */
	unsigned pooled, made;      /* under pool_lock */
	/* How often env was opened anew; changes under map_lock and pool_lock: either will do. */
	uint64_t reopened;
	pthread_cond_t was_reopened; /* with pool_lock */
};

struct index_txn {
	struct index *ix; /* borrowed; its write_lock is ours */
	MDB_txn *txn;     /* owned */
	struct index_ops ops;
};

static const char *const table_names[TABLES] = {
	[INDEX_META] = "meta",
	[INDEX_SNAPS] = "snaps",
	[INDEX_BRANCHES] = "branches",
};

/* ---- errors: LMDB's codes stop here ---- */

static int fail(struct index *ix, int rc, const char *what)
{
	uint64_t free_bytes;
	int r;

	switch (rc) {
	case MDB_MAP_FULL:
		return -ERR_INDEX_FULL; /* ordinary: the caller grows the map */
	case MDB_CORRUPTED:
	case MDB_PAGE_NOTFOUND:
	case MDB_CURSOR_FULL:
	case MDB_INVALID:
	case MDB_VERSION_MISMATCH:
	case MDB_INCOMPATIBLE:
		r = -ERR_INDEX_BROKEN;
		break;
	default:
		r = rc > 0 ? -rc : -ERR_INDEX_FAILED;
	}
	/*
	 * LMDB answers a short write with EIO; on a full disk it is that, and freeing space mends
	 * it.
	 */
	if (r == -EIO && os_free_bytes(ix->dir_fd, &free_bytes) >= 0 && free_bytes < FULL_BYTES)
		r = -ENOSPC;
	return note(&ix->noter, r, "index: %s: %s", what, mdb_strerror(rc));
}

/* LMDB calls this and then aborts: at least the log says why. */
static void assertion_failed(MDB_env *env, const char *text)
{
	struct index *ix = mdb_env_get_userctx(env);

	if (ix)
		(void)note(&ix->noter, 0, "index: lmdb: %s", text);
}

/* ---- values ---- */

static uint32_t value_sum(const MDB_val *key, const void *value, size_t len)
{
	return (uint32_t)hash64(value, len, hash64(key->mv_data, key->mv_size, 0));
}

/* The payload inside a stored value; false when the checksum denies it. */
static bool value_open(const MDB_val *key, const MDB_val *stored, MDB_val *ret)
{
	const uint8_t *bytes = stored->mv_data;
	size_t len;

	if (stored->mv_size < INDEX_SUM_BYTES)
		return false;
	len = stored->mv_size - INDEX_SUM_BYTES;
	if (get_le32(bytes + len) != value_sum(key, bytes, len))
		return false;

	*ret = (MDB_val){ .mv_size = len, .mv_data = stored->mv_data };
	return true;
}

static void loc_put(struct chunk_loc_bytes *b, const struct chunk_loc *loc)
{
	*b = (struct chunk_loc_bytes){ .kind = loc->kind, .codec = loc->codec };
	put_le32(b->pack, loc->pack);
	put_le64(b->off, loc->off);
	put_le32(b->stored_len, loc->stored_len);
	put_le32(b->raw_len, loc->raw_len);
	put_le32(b->salt, loc->salt);
}

/* False for what no healthy store holds; packs and codecs may rely on the bounds checked here. */
static bool loc_get(const MDB_val *value, struct chunk_loc *ret)
{
	struct chunk_loc_bytes b;
	struct chunk_loc loc;

	if (value->mv_size != sizeof(b))
		return false;
	memcpy(&b, value->mv_data, sizeof(b));

	loc = (struct chunk_loc){
		.kind = b.kind,
		.codec = b.codec,
		.pack = get_le32(b.pack),
		.off = get_le64(b.off),
		.stored_len = get_le32(b.stored_len),
		.raw_len = get_le32(b.raw_len),
		.salt = get_le32(b.salt),
	};
	if (loc.kind != CHUNK_DATA && loc.kind != CHUNK_NODE)
		return false;
	if (loc.codec > 2 || loc.raw_len < 1 || loc.raw_len > CHUNK_MAX)
		return false;
	if (loc.stored_len < 1 || loc.stored_len > loc.raw_len)
		return false;
	if (loc.codec == 0 && loc.stored_len != loc.raw_len)
		return false;
	if (loc.off < sizeof(struct pack_header_bytes) || loc.off > UINT32_MAX ||
	    loc.off % PACK_ALIGN != 0)
		return false;

	*ret = loc;
	return true;
}

/* ---- read transactions ---- */

struct reader {
	struct index *ix;
	MDB_txn *txn;
};

/* map_lock is held for reading. LMDB's code. */
static int reader_take(struct index *ix, MDB_txn **ret, bool *ret_fresh)
{
	MDB_txn *txn;
	int rc;

	LOCK_GUARD(&ix->pool_lock);
	while (ix->pooled == 0 && ix->made == READERS_MAX)
		pthread_cond_wait(&ix->pool_returned, &ix->pool_lock);

	if (ix->pooled > 0) {
		*ret = ix->pool[--ix->pooled];
		*ret_fresh = false;
		return 0;
	}

	rc = ix->env ? mdb_txn_begin(ix->env, NULL, MDB_RDONLY, &txn) : MDB_PANIC;
	if (rc != 0)
		return rc;
	ix->made++;
	*ret = txn;
	*ret_fresh = true;
	return 0;
}

static void reader_give(struct index *ix, MDB_txn *txn)
{
	LOCK_GUARD(&ix->pool_lock);
	if (txn)
		ix->pool[ix->pooled++] = txn;
	else
		ix->made--;
	pthread_cond_signal(&ix->pool_returned);
}

static void reader_endp(struct reader *rd)
{
	if (!rd->txn)
		return;
	mdb_txn_reset(rd->txn);
	reader_give(rd->ix, rd->txn);
	pthread_rwlock_unlock(&rd->ix->map_lock);
}

static int reader_try(struct index *ix, MDB_txn **ret)
{
	bool fresh;
	int rc = reader_take(ix, ret, &fresh);

	if (rc != 0 || fresh)
		return rc;
	rc = mdb_txn_renew(*ret);
	if (rc != 0) {
		mdb_txn_abort(*ret);
		reader_give(ix, NULL);
	}
	return rc;
}

/*
 * A view of the last commit; ended by scope. Between a commit that failed and reopen(), which its
 * thread is about to call, LMDB refuses to read: this waits. Not on write_lock, as a caller may
 * have what another writer wants.
 */
static int reader_begin(struct index *ix, struct reader *ret)
{
	MDB_txn *txn = NULL;
	uint64_t reopened;
	bool refused;
	int rc;

	for (;;) {
		pthread_rwlock_rdlock(&ix->map_lock);
		rc = reader_try(ix, &txn);
		if (rc == 0)
			break;
		refused = rc == MDB_PANIC && ix->env;
		reopened = ix->reopened;
		pthread_rwlock_unlock(&ix->map_lock);
		if (!refused)
			return fail(ix, rc, "reading");
		LOCK_GUARD(&ix->pool_lock);
		while (ix->reopened == reopened)
			pthread_cond_wait(&ix->was_reopened, &ix->pool_lock);
	}
	*ret = (struct reader){ .ix = ix, .txn = txn };
	return 0;
}

/* ---- open, close, grow ---- */

/* After a commit. */
static void measure_span(struct index *ix)
{
	MDB_envinfo info;

	if (mdb_env_info(ix->env, &info) == 0)
		ix->span = ((uint64_t)info.me_last_pgno + 1) * ix->page_bytes;
}

static uint64_t last_txn(struct index *ix)
{
	MDB_envinfo info;

	return mdb_env_info(ix->env, &info) == 0 ? info.me_last_txnid : 0;
}

/*
 * Keeps invariant 3: extends the file (never shrinks it: LMDB spills pages beyond the last commit's
 * end during a transaction). Called before and after a commit; what happens to fail here would only
 * matter together with a crash right after, and the commit itself must not fail for it. What it
 * refuses is a file that was cut; no look at the map, which would be SIGBUS.
 */
static int cover_file(struct index *ix)
{
	struct stat st;

	if (os_fstat(ix->data_fd, &st) < 0)
		return 0;
	if ((uint64_t)st.st_size < ix->span)
		return note(&ix->noter, -ERR_INDEX_BROKEN,
			    "index/data.mdb was cut: of %" PRIu64 " bytes it has %" PRIu64,
			    ix->span, (uint64_t)st.st_size);
	if ((uint64_t)st.st_size < ix->span + COVER_BYTES / 2)
		(void)os_ftruncate(ix->data_fd, ix->span + COVER_BYTES); /* see above */
	return 0;
}

static size_t map_bytes(void)
{
	const char *text = getenv("PLYFS_TEST_MAP_BYTES");
	unsigned long long n = text ? strtoull(text, NULL, 10) : 0;

	/* below 64 KiB LMDB could not even make its tables */
	return n >= 65536 && n <= MAP_BYTES ? (size_t)n & ~(size_t)4095 : MAP_BYTES;
}

/*
 * Keeps invariant 2. ABSENT: a new environment. A file that was cut to nothing would pass for one.
 */
static int verify_file(struct index *ix, int index_fd)
{
	_cleanup_close_ int fd = -1;
	struct stat st;
	int r;

	r = os_openat(index_fd, "data.mdb", O_RDONLY | O_CLOEXEC, 0, &fd);
	if (r == -ENOENT)
		return ABSENT;
	if (r < 0)
		return r;
	r = os_fstat(fd, &st);
	if (r < 0)
		return r;
	if (st.st_size == 0)
		return note(&ix->noter, -ERR_INDEX_BROKEN, "index/data.mdb is empty");
	return index_verify(fd, &ix->noter);
}

/*
 * LMDB maps and writes its lock file, and leaves it sparse: whoever is first to touch a page of it
 * on a full disk would meet SIGBUS. So the blocks are there before LMDB opens it.
 */
static int allocate_lock(int index_fd)
{
	_cleanup_close_ int fd = -1;
	int r;

	r = os_openat(index_fd, "lock.mdb", O_RDWR | O_CREAT | O_CLOEXEC, 0600, &fd);
	return r < 0 ? r : os_allocate(fd, LOCK_BYTES);
}

static int open_tables(struct index *ix)
{
	MDB_txn *txn;
	int rc;

	rc = mdb_txn_begin(ix->env, NULL, 0, &txn);
	if (rc != 0)
		return fail(ix, rc, "opening tables");

	rc = mdb_dbi_open(txn, "chunks", MDB_CREATE, &ix->chunks);
	for (unsigned i = 0; rc == 0 && i < TABLES; i++)
		rc = mdb_dbi_open(txn, table_names[i], MDB_CREATE, &ix->tables[i]);
	if (rc != 0) {
		mdb_txn_abort(txn);
		return fail(ix, rc, "opening tables");
	}

	rc = mdb_txn_commit(txn); /* writes nothing when all of them existed */
	if (rc != 0)
		return fail(ix, rc, "opening tables");
	return 0;
}

static void index_freep(struct index **p)
{
	if (*p)
		index_close(*p);
}

/* Not on a second environment beside one that is open: LMDB's locks would go with either. */
static int env_open(struct index *ix)
{
	char path[64];
	MDB_stat stat;
	int r, rc, dead;

	rc = mdb_env_create(&ix->env);
	if (rc != 0)
		return fail(ix, rc, "creating the environment");
	(void)mdb_env_set_userctx(ix->env, ix); /* fails for no environment only */
	(void)mdb_env_set_assert(ix->env, assertion_failed);
	rc = mdb_env_set_mapsize(ix->env, map_bytes());
	if (rc == 0)
		rc = mdb_env_set_maxreaders(ix->env, READERS_MAX);
	if (rc == 0)
		rc = mdb_env_set_maxdbs(ix->env, TABLES + 1);
	if (rc != 0)
		return fail(ix, rc, "setting it up");

	/* LMDB wants a path; this one means the directory we hold whatever was renamed meanwhile */
	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", ix->dir_fd);
	rc = mdb_env_open(ix->env, path, MDB_NOTLS, 0600);
	if (rc == MDB_INVALID || rc == MDB_VERSION_MISMATCH || rc == MDB_CORRUPTED)
		return note(&ix->noter, -ERR_INDEX_BROKEN, "index/data.mdb: %s", mdb_strerror(rc));
	if (rc != 0) {
		(void)fail(ix, rc, "opening");
		return rc > 0 ? -rc : -ERR_INDEX_OPEN;
	}

	rc = mdb_env_get_fd(ix->env, &ix->data_fd);
	if (rc == 0)
		rc = mdb_env_stat(ix->env, &stat);
	if (rc != 0)
		return fail(ix, rc, "opening");
	ix->page_bytes = stat.ms_psize;
	/* commands that the daemon runs must not inherit it */
	(void)fcntl(ix->data_fd, F_SETFD, FD_CLOEXEC);

	(void)mdb_reader_check(ix->env, &dead); /* slots of a killed daemon; only housekeeping */
	measure_span(ix);
	r = cover_file(ix);
	if (r == 0)
		r = open_tables(ix);
	measure_span(ix);
	return r == 0 ? cover_file(ix) : r;
}

int index_open(int dir_fd, const struct noter *noter, struct index **ret)
{
	_cleanup_(index_freep) struct index *ix = NULL;
	bool is_new;
	int r;

	ix = os_calloc(1, sizeof(*ix));
	if (!ix)
		return -ENOMEM;
	ix->dir_fd = -1;
	if (noter)
		ix->noter = *noter;
	pthread_mutex_init(&ix->write_lock, NULL);
	pthread_rwlock_init(&ix->map_lock, NULL);
	pthread_mutex_init(&ix->pool_lock, NULL);
	pthread_cond_init(&ix->pool_returned, NULL);
	pthread_cond_init(&ix->was_reopened, NULL);

	r = os_mkdirat(dir_fd, "index", 0700);
	if (r < 0 && r != -EEXIST)
		return r;
	r = os_openat(dir_fd, "index", O_RDONLY | O_DIRECTORY, 0, &ix->dir_fd);
	if (r < 0)
		return r;
	r = verify_file(ix, ix->dir_fd);
	if (r < 0)
		return r;
	is_new = r == ABSENT;
	r = allocate_lock(ix->dir_fd);
	if (r < 0)
		return note(&ix->noter, r, "index/lock.mdb: %s", err_str(r));

	r = env_open(ix);
	if (r < 0)
		return r;
	if (is_new) { /* LMDB syncs the file, not its name */
		r = os_fsync(ix->dir_fd);
		if (r < 0)
			return r;
	}

	ix->last_txn = last_txn(ix);
	*ret = TAKE_PTR(ix);
	return 0;
}

/* Read transactions keep their slot while they rest in the pool; this gives all of them back. */
static void pool_empty(struct index *ix)
{
	LOCK_GUARD(&ix->pool_lock);
	while (ix->pooled > 0) {
		mdb_txn_abort(ix->pool[--ix->pooled]);
		ix->made--;
	}
}

void index_close(struct index *ix)
{
	if (!ix)
		return;
	if (ix->env) {
		pool_empty(ix);
		mdb_env_close(ix->env);
	}
	closep(&ix->dir_fd);
	pthread_cond_destroy(&ix->pool_returned);
	pthread_cond_destroy(&ix->was_reopened);
	pthread_mutex_destroy(&ix->pool_lock);
	pthread_rwlock_destroy(&ix->map_lock);
	pthread_mutex_destroy(&ix->write_lock);
	free(ix);
}

/*
 * Keeps invariant 5, after a commit that failed. write_lock held. A failure leaves no environment:
 * reads fail until the next transaction, which tries again.
 */
static int reopen(struct index *ix)
{
	MDB_txn *txn = NULL;
	int r;

	WRITE_GUARD(&ix->map_lock);
	if (ix->env) {
		if (mdb_txn_begin(ix->env, NULL, MDB_RDONLY, &txn) != MDB_PANIC) {
			mdb_txn_abort(txn);
			return 0;
		}
		pool_empty(ix);
		mdb_env_close(TAKE_PTR(ix->env));
	}
	r = verify_file(ix, ix->dir_fd);
	if (r == 0)
		r = env_open(ix);
	if (r != 0 && ix->env)
		mdb_env_close(TAKE_PTR(ix->env));
	LOCK_GUARD(&ix->pool_lock);
	ix->reopened++;
	pthread_cond_broadcast(&ix->was_reopened);
	return r > 0 ? -ERR_INDEX_FAILED : r; /* the file is gone */
}

/* What of a meta page is in use: LMDB's header and struct, 16 and 136 bytes. */
#define META_BYTES 512

/*
 * Keeps invariant 6. write_lock held. What LMDB had written when it failed:
 *
 *  - pages of the new state, or some of them. None of them belongs to the old one, and the next
 *    commit writes and syncs all of its own, whatever a sync that failed has left of these;
 *  - perhaps the meta page, when all pages had been synced. LMDB puts it back (to one that is older
 *    than the last commit's, which has the other page), but does not sync that: the disk may say
 *    that the new state stands, while the next commit reuses its pages.
 *
 * So both meta pages are written as the map shows them, which makes them dirty whatever a failed
 * sync has made of them, and synced. Then the map tells what is on disk: the old commit. Were it
 * the new one (not even putting it back worked), then the store would not know what it has.
 */
static int settle(struct index *ix)
{
	uint8_t meta[META_BYTES];
	int r = reopen(ix);

	for (uint64_t i = 0; r == 0 && i < 2; i++) {
		r = os_pread_full(ix->data_fd, meta, sizeof(meta), i * ix->page_bytes);
		if (r == 0)
			r = os_pwrite_full(ix->data_fd, meta, sizeof(meta), i * ix->page_bytes);
	}
	if (r == 0)
		r = os_fdatasync(ix->data_fd);
	if (r != 0)
		return r < 0 ? r : -EIO;
	if (last_txn(ix) != ix->last_txn)
		return note(&ix->noter, -ERR_INDEX_FAILED,
			    "index: what a commit wrote that failed is there");
	ix->doubt = false;
	return 0;
}

int index_grow(struct index *ix)
{
	MDB_envinfo info;
	int rc;

	LOCK_GUARD(&ix->write_lock);
	WRITE_GUARD(&ix->map_lock);
	pool_empty(ix); /* with both locks ours, every reader is in the pool */

	rc = ix->env ? mdb_env_info(ix->env, &info) : MDB_PANIC;
	if (rc == 0 && info.me_mapsize > SIZE_MAX / 4)
		return note(&ix->noter, -ENOMEM, "index: the map cannot grow any more");
	if (rc == 0)
		rc = mdb_env_set_mapsize(ix->env, info.me_mapsize * 2);
	if (rc != 0)
		return fail(ix, rc, "growing the map");
	return 0;
}

/* ---- reading ---- */

static int damaged_chunk_entry(struct index *ix, const struct name *name)
{
	char text[NAME_HEX_SIZE];

	return note(&ix->noter, -ERR_INDEX_DAMAGED, "index: the entry of chunk %s is damaged",
		    name_to_text(name, text));
}

int index_find_chunk(struct index *ix, const struct name *name, struct chunk_loc *ret)
{
	MDB_val key = { .mv_size = NAME_BYTES, .mv_data = (void *)name->b };
	_cleanup_(reader_endp) struct reader rd = { 0 };
	MDB_val stored, value;
	int r, rc;

	r = reader_begin(ix, &rd);
	if (r < 0)
		return r;

	rc = mdb_get(rd.txn, ix->chunks, &key, &stored);
	if (rc == MDB_NOTFOUND)
		return ABSENT;
	if (rc != 0)
		return fail(ix, rc, "looking up a chunk");
	if (!value_open(&key, &stored, &value) || !loc_get(&value, ret))
		return damaged_chunk_entry(ix, name);
	return 0;
}

int index_get(struct index *ix, enum index_table table, const void *key_bytes, size_t key_len,
	      void **ret_value, size_t *ret_len)
{
	MDB_val key = { .mv_size = key_len, .mv_data = (void *)key_bytes };
	_cleanup_(reader_endp) struct reader rd = { 0 };
	MDB_val stored, value;
	void *copy;
	int r, rc;

	r = reader_begin(ix, &rd);
	if (r < 0)
		return r;

	rc = mdb_get(rd.txn, ix->tables[table], &key, &stored);
	if (rc == MDB_NOTFOUND)
		return ABSENT;
	if (rc != 0)
		return fail(ix, rc, "reading a record");
	if (!value_open(&key, &stored, &value))
		return note(&ix->noter, -ERR_INDEX_DAMAGED,
			    "index: a record of table '%s' is damaged", table_names[table]);

	copy = os_malloc(value.mv_size > 0 ? value.mv_size : 1);
	if (!copy)
		return -ENOMEM;
	memcpy(copy, value.mv_data, value.mv_size);
	*ret_value = copy;
	*ret_len = value.mv_size;
	return 0;
}

static void cursor_closep(MDB_cursor **cursor)
{
	if (*cursor)
		mdb_cursor_close(*cursor);
}

/* fn gets each raw entry of a table, value NULL where its checksum fails. */
static int each_entry(struct index *ix, MDB_dbi dbi,
		      int (*fn)(void *arg, const MDB_val *key, const MDB_val *value), void *arg)
{
	_cleanup_(reader_endp) struct reader rd = { 0 };
	_cleanup_(cursor_closep) MDB_cursor *cursor = NULL; /* closed before the reader ends */
	MDB_val key, stored, value;
	int r, rc;

	r = reader_begin(ix, &rd);
	if (r < 0)
		return r;
	rc = mdb_cursor_open(rd.txn, dbi, &cursor);
	if (rc != 0)
		return fail(ix, rc, "walking a table");

	for (;;) {
		rc = mdb_cursor_get(cursor, &key, &stored, MDB_NEXT);
		if (rc == MDB_NOTFOUND)
			return 0;
		if (rc != 0)
			return fail(ix, rc, "walking a table");
		r = fn(arg, &key, value_open(&key, &stored, &value) ? &value : NULL);
		if (r != 0)
			return r;
	}
}

struct each_record {
	int (*fn)(void *arg, const void *key, size_t key_len, const void *value, size_t value_len);
	void *arg;
};

static int each_record(void *arg, const MDB_val *key, const MDB_val *value)
{
	struct each_record *e = arg;

	return e->fn(e->arg, key->mv_data, key->mv_size, value ? value->mv_data : NULL,
		     value ? value->mv_size : 0);
}

int index_each(struct index *ix, enum index_table table,
	       int (*fn)(void *arg, const void *key, size_t key_len, const void *value,
			 size_t value_len),
	       void *arg)
{
	struct each_record e = { .fn = fn, .arg = arg };

	return each_entry(ix, ix->tables[table], each_record, &e);
}

struct each_chunk {
	int (*fn)(void *arg, const struct name *name, const struct chunk_loc *loc);
	void *arg;
};

static int each_chunk(void *arg, const MDB_val *key, const MDB_val *value)
{
	struct each_chunk *e = arg;
	struct chunk_loc loc;
	struct name name = { 0 };

	/* a key of another length names nothing; show what there is of it as a damaged entry */
	memcpy(name.b, key->mv_data, MIN(key->mv_size, sizeof(name.b)));
	if (key->mv_size != NAME_BYTES || !value || !loc_get(value, &loc))
		return e->fn(e->arg, &name, NULL);
	return e->fn(e->arg, &name, &loc);
}

int index_each_chunk(struct index *ix,
		     int (*fn)(void *arg, const struct name *name, const struct chunk_loc *loc),
		     void *arg)
{
	struct each_chunk e = { .fn = fn, .arg = arg };

	return each_entry(ix, ix->chunks, each_chunk, &e);
}

int index_check(struct index *ix)
{
	LOCK_GUARD(&ix->write_lock);
	return ix->env ? index_verify(ix->data_fd, &ix->noter) : -ERR_INDEX_FAILED;
}

int index_count_chunks(struct index *ix, uint64_t *ret)
{
	_cleanup_(reader_endp) struct reader rd = { 0 };
	MDB_stat stat;
	int r, rc;

	r = reader_begin(ix, &rd);
	if (r < 0)
		return r;
	rc = mdb_stat(rd.txn, ix->chunks, &stat);
	if (rc != 0)
		return fail(ix, rc, "counting chunks");
	*ret = stat.ms_entries;
	return 0;
}

/* ---- writing ---- */

int index_begin(struct index *ix, struct index_txn **ret)
{
	struct index_txn *t;
	int r, rc;

	t = os_calloc(1, sizeof(*t));
	if (!t)
		return -ENOMEM;
	t->ix = ix;

	pthread_mutex_lock(&ix->write_lock);
	r = ix->doubt ? settle(ix) : 0;
	if (r == 0)
		r = cover_file(ix);
	rc = r == 0 ? mdb_txn_begin(ix->env, NULL, 0, &t->txn) : 0;
	if (r < 0 || rc != 0) {
		pthread_mutex_unlock(&ix->write_lock);
		free(t);
		return r < 0 ? r : fail(ix, rc, "beginning a transaction");
	}
	*ret = t;
	return 0;
}

static int put_value(struct index_txn *t, MDB_dbi dbi, MDB_val *key, const void *value, size_t len)
{
	MDB_val stored = { .mv_size = len + INDEX_SUM_BYTES };
	int rc;

	/* LMDB's largest key is 511 bytes; its message for a longer one names no reason */
	if (key->mv_size < 1 || key->mv_size > 511 || len > INT32_MAX)
		return -EINVAL;

	rc = mdb_put(t->txn, dbi, key, &stored, MDB_RESERVE);
	if (rc != 0)
		return fail(t->ix, rc, "writing a record");
	if (len > 0)
		memcpy(stored.mv_data, value, len);
	put_le32((uint8_t *)stored.mv_data + len, value_sum(key, value, len));
	return 0;
}

static int del_value(struct index_txn *t, MDB_dbi dbi, MDB_val *key)
{
	int rc;

	rc = mdb_del(t->txn, dbi, key, NULL);
	if (rc == MDB_NOTFOUND)
		return ABSENT;
	if (rc != 0)
		return fail(t->ix, rc, "deleting a record");
	return 0;
}

int index_put_chunk(struct index_txn *t, const struct name *name, const struct chunk_loc *loc)
{
	MDB_val key = { .mv_size = NAME_BYTES, .mv_data = (void *)name->b };
	struct chunk_loc_bytes b;

	loc_put(&b, loc);
	return put_value(t, t->ix->chunks, &key, &b, sizeof(b));
}

int index_del_chunk(struct index_txn *t, const struct name *name)
{
	MDB_val key = { .mv_size = NAME_BYTES, .mv_data = (void *)name->b };

	return del_value(t, t->ix->chunks, &key);
}

void index_ops_release(struct index_ops *ops)
{
	free(ops->bytes);
	*ops = (struct index_ops){ 0 };
}

int index_ops_add(struct index_ops *ops, bool put, enum index_table table, const void *key,
		  size_t key_len, const void *value, size_t len)
{
	struct index_op_bytes head = { .op = put ? INDEX_OP_PUT : INDEX_OP_DEL,
				       .table = (uint8_t)table };
	int r;

	r = os_grow(&ops->bytes, &ops->capacity, ops->len + sizeof(head) + key_len + len, 1);
	if (r < 0)
		return r;
	put_le16(head.key_len, (uint16_t)key_len);
	put_le32(head.value_len, (uint32_t)len);
	memcpy(ops->bytes + ops->len, &head, sizeof(head));
	memcpy(ops->bytes + ops->len + sizeof(head), key, key_len);
	if (len > 0)
		memcpy(ops->bytes + ops->len + sizeof(head) + key_len, value, len);
	ops->len += sizeof(head) + key_len + len;
	return 0;
}

const struct index_ops *index_txn_ops(const struct index_txn *t)
{
	return &t->ops;
}

int index_put(struct index_txn *t, enum index_table table, const void *key_bytes, size_t key_len,
	      const void *value, size_t len)
{
	MDB_val key = { .mv_size = key_len, .mv_data = (void *)key_bytes };
	int r;

	r = put_value(t, t->ix->tables[table], &key, value, len);
	return r < 0 ? r : index_ops_add(&t->ops, true, table, key_bytes, key_len, value, len);
}

int index_del(struct index_txn *t, enum index_table table, const void *key_bytes, size_t key_len)
{
	MDB_val key = { .mv_size = key_len, .mv_data = (void *)key_bytes };
	int r;

	r = del_value(t, t->ix->tables[table], &key);
	if (r != 0)
		return r;
	return index_ops_add(&t->ops, false, table, key_bytes, key_len, NULL, 0);
}

int index_commit(struct index_txn **t)
{
	struct index_txn *txn = TAKE_PTR(*t);
	struct index *ix = txn->ix;
	int r, rc = 0;

	r = cover_file(ix);
	if (r < 0)
		mdb_txn_abort(txn->txn);
	else
		rc = mdb_txn_commit(txn->txn); /* frees its handle even when it fails */
	if (r == 0 && rc == 0) {
		ix->last_txn = last_txn(ix);
		measure_span(ix);
		(void)cover_file(ix); /* if it was cut just now, the next one says so */
	}
	if (rc != 0) {
		r = fail(ix, rc, "committing");
		ix->doubt = true;
		(void)reopen(ix); /* else settle() does */
	}
	pthread_mutex_unlock(&ix->write_lock);
	index_ops_release(&txn->ops);
	free(txn);
	return r;
}

void index_abortp(struct index_txn **t)
{
	struct index_txn *txn = TAKE_PTR(*t);

	if (!txn)
		return;
	mdb_txn_abort(txn->txn);
	pthread_mutex_unlock(&txn->ix->write_lock);
	index_ops_release(&txn->ops);
	free(txn);
}
