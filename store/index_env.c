/* SPDX-License-Identifier: Apache-2.0 */

/* The index's LMDB environment; its invariants are in index_internal.h. */

#include "store/index_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>

#include "store/base/err.h"
#include "store/base/os.h"
#include "store/base/util.h"
#include "store/index_verify.h"

/*
 * Virtual addresses only, the file stays as small as its content. 4 GiB hold some 50 million
 * chunks (a leaf entry is 56 bytes, pages are 70 % full), most stores never grow it.
 */
#define MAP_BYTES ((size_t)4 << 30)

#define LOCK_NAME "lock.mdb" /* LMDB's */
#define DATA_NAME "data.mdb"

/* A directory in memory, where there is one; with 16 digits. */
#define LINKS "/dev/shm/plyfs-index-"
#define LINKS_MAX sizeof(LINKS "0123456789abcdef")

/*
 * How far the file is kept ahead of the last page in use (sparse, no disk space). LMDB counts
 * pages that it took and gave back within one commit, but never writes them; without the margin a
 * healthy file could end before its own count. 64 MiB is more than one commit gives back, unless it
 * deletes a great deal at once: after such a one the file is extended (index_cover), and if a crash
 * comes between, then at the next open (index_verify.c knows such a file from one that was cut).
 */
#define COVER_BYTES ((uint64_t)64 << 20)

/* Less than one run of dirty pages (LMDB writes up to 64 at once): a disk this full is full. */
#define FULL_BYTES ((uint64_t)1 << 20)

const char *const index_table_names[TABLES] = {
	[INDEX_META] = "meta",
	[INDEX_SNAPS] = "snaps",
	[INDEX_BRANCHES] = "branches",
};

int index_fail(struct index *ix, int rc, const char *what)
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
	(void)os_failed_at(ix->dir_fd, "data.mdb", r);
	return note(&ix->noter, r, "index: %s: %s", what, mdb_strerror(rc));
}

/* LMDB calls this and then aborts: at least the log says why. */
static void assertion_failed(MDB_env *env, const char *text)
{
	struct index *ix = mdb_env_get_userctx(env);

	if (ix)
		(void)note(&ix->noter, 0, "index: lmdb: %s", text);
}

/* ---- open, close, grow ---- */

void index_measure(struct index *ix)
{
	MDB_envinfo info;

	if (mdb_env_info(ix->env, &info) == 0)
		ix->span = ((uint64_t)info.me_last_pgno + 1) * ix->page_bytes;
}

uint64_t index_last_txn(struct index *ix)
{
	MDB_envinfo info;

	return mdb_env_info(ix->env, &info) == 0 ? info.me_last_txnid : 0;
}

int index_cover(struct index *ix)
{
	uint64_t size;
	struct stat st;

	if (os_fstat(ix->data_fd, &st) < 0)
		return 0;
	size = (uint64_t)st.st_size;
	if (size < ix->span && size < ix->seen)
		return note(&ix->noter, -ERR_INDEX_BROKEN,
			    "index/data.mdb was cut: of %" PRIu64 " bytes it has %" PRIu64,
			    ix->span, size);
	ix->seen = size;
	if (size < ix->span + COVER_BYTES / 2 && /* a failure: see index_internal.h */
	    os_ftruncate(ix->data_fd, ix->span + COVER_BYTES) == 0)
		ix->seen = ix->span + COVER_BYTES;
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
static int verify_file(struct index *ix)
{
	_cleanup_close_ int fd = -1;
	struct stat st;
	int r;

	r = os_openat(ix->dir_fd, "data.mdb", O_RDONLY | O_CLOEXEC, 0, &fd);
	if (r == -ENOENT) /* a link into nowhere is none: LMDB would make what it leads to */
		return os_statat(ix->dir_fd, "data.mdb", &st) == -ENOENT ? ABSENT :
									   -ERR_INDEX_ASTRAY;
	if (r < 0)
		return r;
	r = os_fstat(fd, &st);
	if (r < 0)
		return r;
	if (st.st_size == 0)
		return note(&ix->noter, -ERR_INDEX_BROKEN, "index/data.mdb is empty");
	ix->seen = MAX(ix->seen, (uint64_t)st.st_size); /* shorter than it was is cut in use */
	return index_verify(fd, &ix->noter);
}

/*
 * LMDB's lock file is mapped and written by each reader: on a full disk that may be SIGBUS, if the
 * file has a hole or its filesystem writes elsewhere than before (btrfs). As nobody but this
 * process has the index open (the store is locked), it is in memory, and LMDB finds it by a link.
 */
static int link_lock(struct index *ix, int fd)
{
	char target[32];
	int r;

	r = os_unlinkat(ix->dir_fd, LOCK_NAME, 0); /* that of an older plyfs, or a killed one */
	if (r < 0 && r != -ENOENT)
		return r;
	(void)snprintf(target, sizeof(target), "/proc/self/fd/%d", fd);
	return os_symlinkat(target, ix->dir_fd, LOCK_NAME);
}

static void unlink_elsewhere(const char *dir, int dir_fd)
{
	(void)os_unlinkat(dir_fd, LOCK_NAME, 0);
	(void)os_unlinkat(dir_fd, DATA_NAME, 0);
	(void)os_unlinkat(AT_FDCWD, dir, AT_REMOVEDIR);
}

/*
 * A full disk may have no room for the link (xfs makes none then), and whoever follows a daemon
 * that was killed has to open the store all the same: so both links are in a directory in memory.
 */
static int link_elsewhere(struct index *ix, int fd, char dir[static LINKS_MAX], int *ret_dir_fd)
{
	_cleanup_close_ int dir_fd = -1;
	char target[48];
	uint64_t any;
	int r;

	r = os_random(&any, sizeof(any));
	if (r < 0)
		return r;
	(void)snprintf(dir, LINKS_MAX, LINKS "%016" PRIx64, any);
	r = os_mkdirat(AT_FDCWD, dir, 0700);
	if (r == 0)
		r = os_openat(AT_FDCWD, dir, O_RDONLY | O_DIRECTORY, 0, &dir_fd);
	if (r < 0)
		return r;
	(void)snprintf(target, sizeof(target), "/proc/self/fd/%d", fd);
	r = os_symlinkat(target, dir_fd, LOCK_NAME);
	(void)snprintf(target, sizeof(target), "/proc/self/fd/%d/" DATA_NAME, ix->dir_fd);
	if (r == 0)
		r = os_symlinkat(target, dir_fd, DATA_NAME);
	if (r < 0) {
		unlink_elsewhere(dir, dir_fd);
		return r;
	}
	*ret_dir_fd = TAKE_FD(dir_fd);
	return 0;
}

/* LMDB's return code, once what it opens by name is there. */
static int open_linked(struct index *ix, int *ret_rc)
{
	_cleanup_close_ int lock_fd = -1; /* LMDB opens it anew */
	_cleanup_close_ int links_fd = -1;
	char links[LINKS_MAX], path[64];
	int r, fd = ix->dir_fd;

	r = os_memory_file("plyfs-index-lock", &lock_fd);
	if (r == 0)
		r = link_lock(ix, lock_fd);
	if ((r == -ENOSPC || r == -EDQUOT) &&
	    link_elsewhere(ix, lock_fd, links, &links_fd) == 0) {
		fd = links_fd;
		r = 0;
	}
	if (r < 0)
		return r;
	/* LMDB wants a path; this one means the directory we hold whatever was renamed meanwhile */
	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	*ret_rc = mdb_env_open(ix->env, path, MDB_NOTLS, 0600);
	if (links_fd >= 0)
		unlink_elsewhere(links, links_fd);
	else
		(void)os_unlinkat(ix->dir_fd, LOCK_NAME, 0); /* else the next open does */
	return 0;
}

/*
 * All are made in one commit. Where there are some, one that is not there is damage (a flipped bit
 * in its name, which nothing else would find), and an empty one in its place would have gc remove
 * what only the lost one knows of.
 */
static int open_tables(struct index *ix, bool none_yet)
{
	const unsigned flags = none_yet ? MDB_CREATE : 0;
	MDB_txn *txn;
	int rc;

	rc = mdb_txn_begin(ix->env, NULL, 0, &txn);
	if (rc != 0)
		return index_fail(ix, rc, "opening tables");

	rc = mdb_dbi_open(txn, "chunks", flags, &ix->chunks);
	for (unsigned i = 0; rc == 0 && i < TABLES; i++)
		rc = mdb_dbi_open(txn, index_table_names[i], flags, &ix->tables[i]);
	if (rc != 0) {
		mdb_txn_abort(txn);
		if (rc == MDB_NOTFOUND)
			return note(&ix->noter, -ERR_INDEX_BROKEN,
				    "index/data.mdb: a table is missing");
		return index_fail(ix, rc, "opening tables");
	}

	rc = mdb_txn_commit(txn); /* writes nothing when all of them existed */
	if (rc != 0)
		return index_fail(ix, rc, "opening tables");
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
	MDB_stat stat;
	int r, rc;

	rc = mdb_env_create(&ix->env);
	if (rc != 0)
		return index_fail(ix, rc, "creating the environment");
	(void)mdb_env_set_userctx(ix->env, ix); /* fails for no environment only */
	(void)mdb_env_set_assert(ix->env, assertion_failed);
	rc = mdb_env_set_mapsize(ix->env, map_bytes());
	if (rc == 0)
		rc = mdb_env_set_maxreaders(ix->env, READERS_MAX);
	if (rc == 0)
		rc = mdb_env_set_maxdbs(ix->env, TABLES + 1);
	if (rc != 0)
		return index_fail(ix, rc, "setting it up");

	r = open_linked(ix, &rc);
	if (r < 0)
		return note(&ix->noter, r, "index/" LOCK_NAME ": %s", err_str(r));
	if (rc == MDB_INVALID || rc == MDB_VERSION_MISMATCH || rc == MDB_CORRUPTED)
		return note(&ix->noter, -ERR_INDEX_BROKEN, "index/data.mdb: %s", mdb_strerror(rc));
	if (rc != 0) {
		(void)index_fail(ix, rc, "opening");
		return rc > 0 ? -rc : -ERR_INDEX_OPEN;
	}

	rc = mdb_env_get_fd(ix->env, &ix->data_fd);
	if (rc == 0)
		rc = mdb_env_stat(ix->env, &stat);
	if (rc != 0)
		return index_fail(ix, rc, "opening");
	ix->page_bytes = stat.ms_psize;
	/* commands that the daemon runs must not inherit it */
	(void)fcntl(ix->data_fd, F_SETFD, FD_CLOEXEC);

	index_measure(ix);
	r = index_cover(ix);
	if (r == 0)
		r = open_tables(ix, stat.ms_entries == 0);
	index_measure(ix);
	return r == 0 ? index_cover(ix) : r;
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
	r = verify_file(ix);
	if (r < 0)
		return r;
	is_new = r == ABSENT;
	r = env_open(ix);
	if (r < 0)
		return r;
	if (is_new) { /* LMDB syncs the file, not its name */
		r = os_fsync(ix->dir_fd);
		if (r < 0)
			return r;
	}

	ix->last_txn = index_last_txn(ix);
	*ret = TAKE_PTR(ix);
	return 0;
}

void index_close(struct index *ix)
{
	if (!ix)
		return;
	if (ix->env) {
		index_pool_empty(ix);
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

/* map_lock is held for writing, the pool is empty. What there is of the environment goes. */
static int open_anew(struct index *ix)
{
	int r;

	if (ix->env)
		mdb_env_close(TAKE_PTR(ix->env));
	r = verify_file(ix);
	if (r == 0)
		r = env_open(ix);
	if (r != 0 && ix->env)
		mdb_env_close(TAKE_PTR(ix->env));
	LOCK_GUARD(&ix->pool_lock);
	ix->reopened++;
	pthread_cond_broadcast(&ix->was_reopened);
	return r > 0 ? -ERR_INDEX_FAILED : r; /* the file is gone */
}

int index_reopen(struct index *ix)
{
	MDB_txn *txn = NULL;

	WRITE_GUARD(&ix->map_lock);
	index_pool_empty(ix); /* those may be all that LMDB has, and then it answers only that */
	if (ix->env && mdb_txn_begin(ix->env, NULL, MDB_RDONLY, &txn) != MDB_PANIC) {
		mdb_txn_abort(txn);
		return 0;
	}
	return open_anew(ix);
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
int index_settle(struct index *ix)
{
	uint8_t meta[META_BYTES];
	int r = index_reopen(ix);

	for (uint64_t i = 0; r == 0 && i < 2; i++) {
		r = os_pread_full(ix->data_fd, meta, sizeof(meta), i * ix->page_bytes);
		if (r == 0)
			r = os_pwrite_full(ix->data_fd, meta, sizeof(meta), i * ix->page_bytes);
	}
	if (r == 0)
		r = os_fdatasync(ix->data_fd);
	if (r != 0)
		return r < 0 ? r : -EIO;
	if (index_last_txn(ix) != ix->last_txn)
		return note(&ix->noter, -ERR_INDEX_FAILED,
			    "index: what a commit wrote that failed is there");
	ix->doubt = false;
	return 0;
}

int index_check(struct index *ix)
{
	int r;

	LOCK_GUARD(&ix->write_lock);
	if (!ix->env)
		return -ERR_INDEX_FAILED;
	r = index_cover(ix); /* in use, a file that lost no page but free ones was cut as well */
	return r < 0 ? r : index_verify(ix->data_fd, &ix->noter);
}

int index_grow(struct index *ix)
{
	MDB_envinfo info;
	int rc;

	LOCK_GUARD(&ix->write_lock);
	WRITE_GUARD(&ix->map_lock);
	index_pool_empty(ix); /* with both locks ours, every reader is in the pool */

	rc = ix->env ? mdb_env_info(ix->env, &info) : MDB_PANIC;
	if (rc == 0 && info.me_mapsize > SIZE_MAX / 4)
		return note(&ix->noter, -ENOMEM, "index: the map cannot grow any more");
	if (rc == 0)
		rc = mdb_env_set_mapsize(ix->env, info.me_mapsize * 2);
	if (rc == 0)
		return 0;
	/* LMDB let go of the old map first, and goes on reading there */
	ix->doubt = true;
	(void)open_anew(ix); /* else index_settle() does */
	return index_fail(ix, rc, "growing the map");
}
