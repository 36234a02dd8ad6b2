/* SPDX-License-Identifier: Apache-2.0 */
#include "store/blob.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>

#include "store/base/err.h"
#include "store/base/note.h"
#include "store/base/os.h"
#include "store/base/util.h"
#include "store/chunk.h"

/*
 * Stage files hold the bytes of blobs one behind the other.
 *
 *	OPEN ----------> SEALING ----------> SEALED
 *	     blob_seal            its chunk
 *	     begins               is stored
 *
 *	OPEN     bytes in the stage; may grow at the end and be overwritten by a sole owner
 *	SEALING  bytes in the stage and fixed; stays so when storing the chunk fails, and the next
 *	         blob_seal tries again
 *	SEALED   bytes in the chunk `name`; file is NULL
 *
 *   1. A blob that is not sealed has its bytes at file[off .. off + len); nobody else's lie there.
 *   2. file->live counts the bytes of unsealed blobs in a file, including those being written. At 0
 *      nothing refers to the file: it is deleted, or started again when it is the current one.
 *   3. `state`, `file` and `name` change under the blob's lock held for writing, and whoever reads
 *      or writes the file's bytes holds it for reading at least: a file cannot go while in use.
 *   4. len grows (under the lock) only after the bytes are in the file, so whoever reads len
 *      finds them.
 *
 * There are many blobs (one per file written between two seals), so they stay small and share LOCKS
 * locks by address. Order: blob lock > stage lock > chunk locks.
 *
 * Crash: stage files are left over and deleted at the next open.
 */

/* A file is left for the next at this size: room comes back when all in a file is sealed. */
#define STAGE_FILE_MAX (64 * 1024 * 1024)

/*
 * The current file, when nothing in it is alive, is cut to nothing only if it is larger than this:
 * cutting costs more than writing over a few pages that are still in the page cache.
 */
#define STAGE_KEEP (1024 * 1024)

/*
 * Kept free beyond what sealing the staged bytes takes: tree nodes and the copied index pages of a
 * commit (a few MiB each even after an import), and of the drop and gc that make room again.
 */
#define RESERVE_BYTES ((uint64_t)16 << 20)

/* Sealing adds a record header and padding to each blob's bytes. */
#define SEAL_OVERHEAD 48

/*
 * The free space is asked for again after so many staged bytes or so much time: a quarter of the
 * reserve, and short against the seconds in which somebody else fills a disk. statvfs costs 1 us.
 */
#define CHECK_BYTES ((uint64_t)4 << 20)
#define CHECK_NS ((int64_t)50 * 1000 * 1000)

/* 64 locks make two busy threads meet by chance in 1 of 64 cases. */
#define LOCKS 64

enum blob_state { OPEN, SEALING, SEALED };

struct stage_file {
	struct stage_file *next; /* under the stage's lock, like all below but fd and number */
	uint32_t number;
	int fd;
	uint64_t end;  /* where the next blob goes */
	uint64_t size; /* bytes on disk: the highest end since it was cut */
	uint64_t live; /* invariant 2 */
};

struct stage {
	int dir_fd;             /* immutable, owned: "stage" */
	struct chunks *chunks;  /* immutable, borrowed */
	struct noter noter;     /* immutable */
	pthread_rwlock_t locks[LOCKS]; /* of blobs */

	pthread_mutex_t lock;
	struct stage_file *files;   /* under lock, owned */
	struct stage_file *current; /* under lock: takes new blobs, may be NULL */
	uint32_t last_number;
	_Atomic uint64_t unsealed;	/* bytes; changes under lock, read without it */
	uint64_t blobs, disk;		/* under lock: number, bytes of files */
	uint64_t free_bytes;            /* under lock: at the last check */
	uint64_t since_check;           /* under lock: bytes staged since */
	int64_t checked_ns;
};

struct blob {
	struct stage *stage; /* immutable */
	struct stage_file *file; /* under the blob's lock; NULL once sealed */
	uint32_t off;        /* immutable */
	_Atomic uint32_t refs;
	_Atomic uint32_t len;
	_Atomic uint32_t state; /* enum blob_state; written under the blob's lock */
	struct name name;    /* set before state becomes SEALED */
};
_Static_assert(sizeof(struct blob) <= 64, "there may be millions");

static pthread_rwlock_t *blob_lock(const struct blob *b)
{
	/* malloc aligns to 16 bytes and a blob takes 64: mix the bits above */
	return &b->stage->locks[(((uintptr_t)b >> 4) ^ ((uintptr_t)b >> 10)) % LOCKS];
}

/* ---- stage files; all under the stage's lock ---- */

static void file_name(uint32_t number, char buf[static 16])
{
	(void)snprintf(buf, 16, "%08" PRIx32, number);
}

static int file_make(struct stage *s)
{
	_cleanup_free_ struct stage_file *file = NULL;
	char name[16];
	int r;

	file = os_calloc(1, sizeof(*file));
	if (!file)
		return -ENOMEM;
	file->number = s->last_number + 1;
	file_name(file->number, name);
	r = os_openat(s->dir_fd, name, O_RDWR | O_CREAT | O_EXCL, 0600, &file->fd);
	if (r < 0)
		return r;

	s->last_number++;
	file->next = s->files;
	s->files = s->current = TAKE_PTR(file);
	return 0;
}

static void file_delete(struct stage *s, struct stage_file *file)
{
	struct stage_file **at = &s->files;
	char name[16];

	while (*at != file)
		at = &(*at)->next;
	*at = file->next;
	if (s->current == file)
		s->current = NULL;
	s->disk -= file->size;

	file_name(file->number, name);
	/* if it stays, the next open deletes it */
	(void)os_unlinkat(s->dir_fd, name, 0);
	(void)close(file->fd);
	free(file);
}

/* Nothing lives in the file any more. */
static void file_emptied(struct stage *s, struct stage_file *file)
{
	if (file != s->current) {
		file_delete(s, file);
		return;
	}
	file->end = 0;
	if (file->size <= STAGE_KEEP)
		return;
	if (os_ftruncate(file->fd, 0) == 0) {
		s->disk -= file->size;
		file->size = 0;
	}
}

static void file_take(struct stage *s, struct stage_file *file, uint64_t len)
{
	file->end += len;
	file->live += len;
	if (file->end > file->size) {
		s->disk += file->end - file->size;
		file->size = file->end;
	}
	s->unsealed += len;
	s->since_check += len;
}

static void file_release(struct stage *s, struct stage_file *file, uint64_t len)
{
	file->live -= len;
	s->unsealed -= len;
	if (file->live == 0)
		file_emptied(s, file);
}

static int ask_free_bytes(struct stage *s)
{
	int r = os_free_bytes(s->dir_fd, &s->free_bytes);

	if (r < 0)
		return r;
	s->checked_ns = os_now_ns();
	s->since_check = 0;
	return 0;
}

/* -ENOSPC when len more bytes could not be sealed with the reserve left over. */
static int check_room(struct stage *s, uint64_t len)
{
	uint64_t sealing = s->unsealed + len + (s->blobs + 1) * SEAL_OVERHEAD + RESERVE_BYTES;
	uint64_t need = len + sealing; /* to the stage first, and to a pack once more */
	int64_t now = os_now_ns();
	int r;

	if (s->since_check >= CHECK_BYTES || now < s->checked_ns ||
	    now - s->checked_ns >= CHECK_NS) {
		r = ask_free_bytes(s);
		if (r < 0)
			return r;
	}
	if (s->free_bytes >= s->since_check + need)
		return 0;

	/* Nobody is refused on an old number: space may just have been freed. */
	r = ask_free_bytes(s);
	if (r < 0)
		return r;
	return s->free_bytes >= need ? 0 : -ENOSPC;
}

/* ---- the stage ---- */

static void stage_closep(struct stage **s)
{
	if (*s)
		stage_close(*s);
}

static int delete_leftover(void *arg, const char *name)
{
	struct stage *s = arg;

	return os_unlinkat(s->dir_fd, name, 0);
}

int stage_open(int dir_fd, struct chunks *chunks, const struct noter *noter, struct stage **ret)
{
	_cleanup_(stage_closep) struct stage *s = NULL;
	int r;

	s = os_calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->dir_fd = -1;
	s->chunks = chunks;
	if (noter)
		s->noter = *noter;
	s->since_check = CHECK_BYTES; /* the first blob asks */
	pthread_mutex_init(&s->lock, NULL);
	for (unsigned i = 0; i < LOCKS; i++)
		pthread_rwlock_init(&s->locks[i], NULL);

	r = os_mkdirat(dir_fd, "stage", 0700);
	if (r < 0 && r != -EEXIST)
		return r;
	r = os_openat(dir_fd, "stage", O_RDONLY | O_DIRECTORY, 0, &s->dir_fd);
	if (r < 0)
		return r;
	r = os_each_name(s->dir_fd, ".", delete_leftover, s);
	if (r < 0)
		return note(&s->noter, r, "clearing the stage: %s", err_str(r));

	*ret = TAKE_PTR(s);
	return 0;
}

void stage_close(struct stage *s)
{
	if (!s)
		return;
	assert(s->blobs == 0);
	while (s->files)
		file_delete(s, s->files);
	closep(&s->dir_fd);
	for (unsigned i = 0; i < LOCKS; i++)
		pthread_rwlock_destroy(&s->locks[i]);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

uint64_t stage_unsealed(struct stage *s)
{
	return atomic_load_explicit(&s->unsealed, memory_order_relaxed);
}

void stage_stats(struct stage *s, uint64_t *ret_unsealed, uint64_t *ret_disk)
{
	LOCK_GUARD(&s->lock);
	*ret_unsealed = s->unsealed;
	*ret_disk = s->disk;
}

/* ---- making and dropping blobs ---- */

/* A place for len bytes in the current file, counted as alive. */
static int place(struct stage *s, struct blob *b, uint32_t len)
{
	int r;

	LOCK_GUARD(&s->lock);
	r = check_room(s, len);
	if (r < 0)
		return r;
	if (s->current && s->current->end + len > STAGE_FILE_MAX)
		s->current = NULL; /* something lives in it (an emptied one starts at 0 again) */
	if (!s->current) {
		r = file_make(s);
		if (r < 0)
			return r;
	}
	b->file = s->current;
	b->off = (uint32_t)s->current->end;
	file_take(s, s->current, len);
	s->blobs++;
	return 0;
}

/* Gives the stage space of an unsealed blob back; its file pointer is taken. */
static void unplace(struct blob *b, uint32_t len)
{
	struct stage_file *file = TAKE_PTR(b->file);
	struct stage *s = b->stage;

	LOCK_GUARD(&s->lock);
	/* whatever is at the very end can be written over */
	if (file->end == (uint64_t)b->off + len)
		file->end = b->off;
	s->blobs--;
	file_release(s, file, len);
}

int blob_new(struct stage *s, const void *data, size_t len, struct blob **ret)
{
	_cleanup_free_ struct blob *b = NULL;
	int r;

	if (len < 1 || len > BLOB_MAX)
		return -EINVAL;
	b = os_calloc(1, sizeof(*b));
	if (!b)
		return -ENOMEM;
	b->stage = s;
	atomic_init(&b->refs, 1);
	atomic_init(&b->len, (uint32_t)len);
	atomic_init(&b->state, OPEN);

	r = place(s, b, (uint32_t)len);
	if (r < 0)
		return r;
	r = os_pwrite_full(b->file->fd, data, len, b->off); /* live > 0 holds the file */
	if (r < 0) {
		unplace(b, (uint32_t)len);
		return r;
	}
	*ret = TAKE_PTR(b);
	return 0;
}

struct blob *blob_ref(struct blob *b)
{
	atomic_fetch_add_explicit(&b->refs, 1, memory_order_relaxed); /* the caller has one */
	return b;
}

void blob_unref(struct blob *b)
{
	if (!b || atomic_fetch_sub_explicit(&b->refs, 1, memory_order_acq_rel) != 1)
		return;
	if (b->file)
		unplace(b, atomic_load(&b->len));
	free(b);
}

uint32_t blob_len(const struct blob *b)
{
	return atomic_load_explicit(&b->len, memory_order_acquire);
}

bool blob_is_sole(const struct blob *b)
{
	return atomic_load_explicit(&b->refs, memory_order_acquire) == 1;
}

bool blob_name(const struct blob *b, struct name *ret_name)
{
	if (atomic_load_explicit(&b->state, memory_order_acquire) != SEALED)
		return false;
	*ret_name = b->name;
	return true;
}

/* ---- changing ---- */

/* More room right behind a blob. AGAIN: something is there, or the file is full. */
static int extend(struct blob *b, uint32_t from, uint32_t len)
{
	struct stage_file *file = b->file;
	struct stage *s = b->stage;
	int r;

	LOCK_GUARD(&s->lock);
	if (file->end != (uint64_t)b->off + from || file->end + len > STAGE_FILE_MAX ||
	    file != s->current)
		return AGAIN;
	r = check_room(s, len);
	if (r < 0)
		return r;
	file_take(s, file, len);
	return 0;
}

static void unextend(struct blob *b, uint32_t from, uint32_t len)
{
	struct stage_file *file = b->file;

	LOCK_GUARD(&b->stage->lock);
	if (file->end == (uint64_t)b->off + from + len)
		file->end -= len;
	file_release(b->stage, file, len); /* the blob's own bytes keep the file */
}

int blob_append(struct blob *b, const void *data, size_t len)
{
	uint32_t have;
	int r;

	WRITE_GUARD(blob_lock(b));
	have = atomic_load_explicit(&b->len, memory_order_relaxed); /* changed by lock holders */
	if (atomic_load_explicit(&b->state, memory_order_relaxed) != OPEN || len > BLOB_MAX - have)
		return AGAIN;
	if (len == 0)
		return 0;

	r = extend(b, have, (uint32_t)len);
	if (r != 0)
		return r;
	r = os_pwrite_full(b->file->fd, data, len, (uint64_t)b->off + have);
	if (r < 0) {
		unextend(b, have, (uint32_t)len);
		return r;
	}
	atomic_store_explicit(&b->len, have + (uint32_t)len, memory_order_release);
	return 0;
}

int blob_write(struct blob *b, uint32_t off, const void *data, size_t len)
{
	WRITE_GUARD(blob_lock(b));
	if (off > blob_len(b) || len > blob_len(b) - off)
		return -EINVAL;
	if (atomic_load_explicit(&b->state, memory_order_relaxed) != OPEN)
		return AGAIN;
	return os_pwrite_full(b->file->fd, data, len, (uint64_t)b->off + off);
}

/* ---- reading ---- */

/* AGAIN: it is sealed, read the chunk. */
static int read_staged(struct blob *b, uint32_t off, void *buf, size_t len)
{
	int r;

	READ_GUARD(blob_lock(b));
	if (!b->file)
		return AGAIN;
	r = os_pread_full(b->file->fd, buf, len, (uint64_t)b->off + off);
	if (r == END)
		return note(&b->stage->noter, -EIO, "stage file %08" PRIx32 " was cut",
			    b->file->number);
	return r;
}

int blob_read(struct blob *b, uint32_t off, void *buf, size_t len)
{
	_cleanup_(chunkbuf_unrefp) struct chunkbuf *chunk = NULL;
	int r;

	if (off > blob_len(b) || len > blob_len(b) - off)
		return -EINVAL;

	if (atomic_load_explicit(&b->state, memory_order_acquire) != SEALED) {
		r = read_staged(b, off, buf, len);
		if (r != AGAIN)
			return r;
	}

	r = chunk_load(b->stage->chunks, &b->name, &chunk);
	if (r < 0)
		return r;
	if (off > chunk->len || len > chunk->len - off)
		return -ERR_CHUNK_DAMAGED;
	memcpy(buf, chunk->data + off, len);
	return 0;
}

/* ---- sealing ---- */

/* From OPEN to SEALING: after this the bytes are fixed. EXISTS: it is sealed already. */
static int seal_begin(struct blob *b)
{
	WRITE_GUARD(blob_lock(b));
	if (atomic_load_explicit(&b->state, memory_order_relaxed) == SEALED)
		return EXISTS;
	atomic_store_explicit(&b->state, SEALING, memory_order_relaxed);
	return 0;
}

static void seal_end(struct blob *b, const struct name *name)
{
	WRITE_GUARD(blob_lock(b)); /* readers of the file have left */
	b->name = *name;
	atomic_store_explicit(&b->state, SEALED, memory_order_release);
	unplace(b, blob_len(b));
}

int blob_seal(struct blob *b, struct name *ret_name)
{
	_cleanup_free_ uint8_t *bytes = NULL;
	struct name name;
	uint32_t len;
	int r;

	r = seal_begin(b);
	if (r == EXISTS) {
		*ret_name = b->name;
		return 0;
	}

	len = blob_len(b);
	bytes = os_malloc(len);
	if (!bytes)
		return -ENOMEM;
	r = read_staged(b, 0, bytes, len);
	if (r < 0)
		return r;
	r = chunk_put(b->stage->chunks, CHUNK_DATA, bytes, len, &name);
	if (r < 0)
		return r;

	seal_end(b, &name);
	*ret_name = name;
	return 0;
}
