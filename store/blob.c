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
 *      nothing refers to the file: its room is used again, under another name and from the
 *      beginning.
 *   3. `state`, `file` and `name` change under the blob's lock held for writing, and whoever reads
 *      or writes the file's bytes holds it for reading at least: a file cannot go while in use.
 *   4. len grows (under the lock) only after the bytes are in the file, so whoever reads len
 *      finds them.
 *   5. With a journal (stage_hold) bytes stay where they are, unchanged, while a record that is not
 *      covered may refer to them: places are not reused, and a file in which nothing lives waits
 *      until the records of its time are covered. Records hold references to their blobs until
 *      they have a number, so a file's last blob goes after its last record; a blob that is sealed
 *      just then is found by either side: the record takes its number and then looks for the
 *      blob's name, sealing sets the name and then looks for the last number.
 *   6. Bytes that a group commit made durable are not overwritten in place: it begins a new
 *      *generation*, and blob_write() is for blobs of the present one. While the commit decides
 *      which records it holds, the generation is odd, and nothing at all is overwritten: a blob
 *      made meanwhile may be in one of them.
 *
 *   7. What cannot be read when it is to be sealed becomes, after PATIENCE_ROUNDS, SEALED with the
 *      name of a lost chunk. Nothing new is put into its file, whose room goes back to the disk.
 *
 * There are many blobs (one per file written between two seals), so they stay small and share LOCKS
 * locks by address. Order: blob lock > stage lock > chunk locks.
 *
 * Crash: stage files are left over. The next open finds the blobs in them again through the journal
 * (blob_adopt), and deletes them once what they hold is covered.
 */

/* A file is left for the next at this size. */
#define STAGE_FILE_MAX (64 * 1024 * 1024)

/*
 * Every byte written to a view goes through a stage file, and writing over blocks that are there
 * and pages that are in the page cache takes a third to a tenth of the time that new ones take (32
 * MiB in pieces of 128 KiB: 2.5 ms against 7 to 95). So when nothing lives in a file its room is
 * used again: the current one's from the beginning, another one's as the next file (`spare`). All
 * give it back when the disk is short, at a gc, and once nothing was staged for so long: a minute
 * is longer than a compiler or a test thinks between two bursts of files.
 */
#define STAGE_IDLE_NS (INT64_C(60) * 1000000000)

/*
 * While one file is written, the one before it is being sealed and the one before that waits for
 * its records to be covered: with two spare ones a steady writer meets no new page.
 */
#define SPARES_MAX 2

/*
 * Where a small write meets new pages all the same, it gets as many at once: 4 KiB that are written
 * into such pages take 2.4 us with their making, and 4.7 where each write makes its own (Linux 6.18,
 * ext4). 128 KiB at once would not be quicker, and what is not used by the next commit is written to
 * the disk for nothing; a sync of what comes after that finds its blocks allocated.
 */
#define GROW_BYTES ((uint64_t)64 * 1024)

/*
 * stage_turn() leaves a file alone that has less: another one costs a rename, and the next group
 * commit a sync of the directory.
 */
#define TURN_BYTES ((uint64_t)4 << 20)

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

/*
 * What cannot be read when it is to be sealed holds up everything else of its branch, and those
 * behind it. A disk that was away for a moment is asked again in so many rounds, a second each;
 * meanwhile fsync goes on by the journal. When other files can still be written and synced after
 * that, it is a bad sector.
 */
#define PATIENCE_ROUNDS 4

/* 64 locks make two busy threads meet by chance in 1 of 64 cases. */
#define LOCKS 64

#define FIRST_ADOPTED 256

enum blob_state { OPEN, SEALING, SEALED };

struct stage_file {
	struct stage_file *next; /* under the stage's lock, like all below but fd and number */
	uint32_t number;
	int fd;
	uint64_t end;  /* where the next blob goes */
	uint64_t size; /* bytes on disk: the highest end since it was cut, and GROW_BYTES */
	uint64_t live; /* invariant 2 */
	uint64_t until; /* with nothing alive: the last record of its time (invariant 5) */
	unsigned syncing; /* somebody syncs it: it must not go */
	bool bad;      /* some of it cannot be read: its room is not used again */
	atomic_bool dirty; /* has bytes that are not synced; set after they were written */
};

struct stage {
	int dir_fd;             /* immutable, owned: "stage" */
	struct chunks *chunks;  /* immutable, borrowed */
	struct noter noter;     /* immutable */
	pthread_rwlock_t locks[LOCKS]; /* of blobs */

	pthread_mutex_t lock;
	struct stage_file *files;   /* under lock, owned */
	struct stage_file *current; /* under lock: takes new blobs, may be NULL */
	struct stage_file *spare;   /* under lock, owned: not among the files, SPARES_MAX at most */
	uint32_t last_number;
	_Atomic uintptr_t tail; /* address of the blob placed last, which may be gone by now */
	/* Bytes alive, up to the files' ends, and of files; change under lock, read without it. */
	_Atomic uint64_t unsealed, placed, disk;
	uint64_t blobs;                  /* under lock: how many */
	const _Atomic uint64_t *lsn;    /* the journal's last record, borrowed; NULL: no journal */
	uint64_t covered;               /* under lock: records up to it are in the index */
	bool names_dirty;               /* under lock: a file was made since the last sync */
	_Atomic uint32_t generation;    /* invariant 6 */
	struct blob **adopted;          /* hash table of size adopted_size; one reference each */
	size_t n_adopted, adopted_size; /* while the store is opened, by one thread */
	uint64_t free_bytes;            /* under lock: at the last check */
	uint64_t since_check;           /* under lock: bytes staged since */
	int64_t checked_ns, staged_ns;  /* under lock: of that check, and when a blob wanted room */
	bool unreadable;                /* under lock: in this round something could not be read */
	unsigned unreadable_rounds;     /* under lock: in so many before it, in a row */
	uint64_t gave_up;               /* under lock: bytes that nobody was told of yet */
};

struct blob {
	struct stage *stage; /* immutable */
	struct stage_file *file; /* under the blob's lock; NULL once sealed */
	uint32_t off;        /* immutable */
	uint32_t number;     /* immutable: of the file, also when that is gone */
	uint32_t generation; /* immutable: when it was made */
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

	file_name(s->last_number + 1, name);
	if (s->spare) {
		char old[16];

		file_name(s->spare->number, old);
		r = os_renameat(s->dir_fd, old, name);
		if (r < 0)
			return r;
		file = s->spare;
		s->spare = file->next;
	} else {
		file = os_calloc(1, sizeof(*file));
		if (!file)
			return -ENOMEM;
		r = os_openat(s->dir_fd, name, O_RDWR | O_CREAT | O_EXCL, 0600, &file->fd);
		if (r < 0)
			return r;
	}
	file->number = ++s->last_number;
	file->next = s->files;
	s->files = s->current = TAKE_PTR(file);
	s->names_dirty = true;
	return 0;
}

/* Where the next blob goes. */
static void file_end(struct stage *s, struct stage_file *file, uint64_t end)
{
	s->placed += end - file->end;
	file->end = end;
}

static void file_free(struct stage *s, struct stage_file *file)
{
	char name[16];

	s->disk -= file->size;
	file_name(file->number, name);
	(void)os_unlinkat(s->dir_fd, name, 0); /* if it stays, the next open deletes it */
	(void)close(file->fd);
	free(file);
}

/* Leaves `keep` of the spare files. */
static void spares_delete(struct stage *s, unsigned keep)
{
	struct stage_file **at = &s->spare;

	while (*at && keep-- > 0)
		at = &(*at)->next;
	while (*at) {
		struct stage_file *file = *at;

		*at = file->next;
		file_free(s, file);
	}
}

/* Nothing will be found in the file any more: it is a spare one from now on. */
static void file_delete(struct stage *s, struct stage_file *file)
{
	struct stage_file **at = &s->files;

	while (*at != file)
		at = &(*at)->next;
	*at = file->next;
	if (s->current == file)
		s->current = NULL;

	file_end(s, file, 0);
	if (file->bad) {
		file_free(s, file);
		return;
	}
	*file = (struct stage_file){
		.next = s->spare, .fd = file->fd, .number = file->number, .size = file->size
	};
	s->spare = file;
	spares_delete(s, SPARES_MAX);
}

/* Nothing lives in the file any more. */
static void file_emptied(struct stage *s, struct stage_file *file)
{
	if (s->lsn) {
		file->until = atomic_load(s->lsn);
		if (file->until <= s->covered && !file->syncing)
			file_delete(s, file);
	} else if (file == s->current) {
		file_end(s, file, 0);
	} else {
		file_delete(s, file);
	}
}

/* Lock held: gives room that nothing lives in back to the disk. */
static void give_back(struct stage *s)
{
	struct stage_file *file = s->current;

	spares_delete(s, 0);
	if (!file || file->size == file->end || os_ftruncate(file->fd, file->end) < 0)
		return;
	s->disk -= file->size - file->end;
	file->size = file->end;
}

void stage_give_back(struct stage *s, bool at_once)
{
	LOCK_GUARD(&s->lock);

	if (at_once || os_now_ns() - s->staged_ns > STAGE_IDLE_NS)
		give_back(s);
}

/*
 * With len bytes more the file ends behind its pages: how large it becomes. The lock is held, as
 * these zeros have to be there before anybody's bytes. Without room for them it does without.
 */
static uint64_t file_grow(const struct stage_file *file, uint64_t len)
{
	static uint8_t zeros[GROW_BYTES];
	uint64_t to = (file->size / GROW_BYTES + 1) * GROW_BYTES;

	if (len > GROW_BYTES / 2 || file->end > to)
		return file->end;
	return os_pwrite_full(file->fd, zeros, to - file->size, file->size) < 0 ? file->end : to;
}

static void file_take(struct stage *s, struct stage_file *file, uint64_t len)
{
	file_end(s, file, file->end + len);
	file->live += len;
	s->since_check += len;
	if (file->end > file->size) {
		uint64_t to = file_grow(file, len);

		s->since_check += to - file->end;
		s->disk += to - file->size;
		file->size = to;
	}
	s->unsealed += len;
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

	s->staged_ns = now;
	if (s->since_check >= CHECK_BYTES || now < s->checked_ns ||
	    now - s->checked_ns >= CHECK_NS) {
		r = ask_free_bytes(s);
		if (r < 0)
			return r;
	}
	if (s->free_bytes >= s->since_check + need)
		return 0;

	/* Nobody is refused on an old number, nor for room that nothing lives in. */
	give_back(s);
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

static int open_leftover(void *arg, const char *name)
{
	struct stage *s = arg;
	_cleanup_free_ struct stage_file *file = NULL;
	struct stat st;
	char again[16];
	int r;

	file = os_calloc(1, sizeof(*file));
	if (!file)
		return -ENOMEM;
	file->number = (uint32_t)strtoul(name, NULL, 16);
	file_name(file->number, again);
	if (strcmp(name, again) != 0)
		return os_unlinkat(s->dir_fd, name, 0);
	r = os_openat(s->dir_fd, name, O_RDWR, 0, &file->fd);
	if (r < 0)
		return r;
	r = os_fstat(file->fd, &st);
	if (r < 0) {
		(void)close(file->fd);
		return r;
	}
	file->size = (uint64_t)st.st_size;
	file_end(s, file, file->size);
	file->dirty = true; /* nobody knows */
	file->until = UINT64_MAX;
	s->disk += file->size;
	s->last_number = MAX(s->last_number, file->number);
	file->next = s->files;
	s->files = TAKE_PTR(file);
	return 0;
}

int stage_open(int dir_fd, struct chunks *chunks, const struct noter *noter, struct stage **ret)
{
	static const _Atomic uint64_t never = UINT64_MAX;
	_cleanup_(stage_closep) struct stage *s = NULL;
	int r;

	s = os_calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->dir_fd = -1;
	s->chunks = chunks;
	if (noter)
		s->noter = *noter;
	s->lsn = &never;
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
	s->generation = 2; /* adopted blobs have 0 */
	r = os_each_name(s->dir_fd, ".", open_leftover, s);
	if (r < 0)
		return note(&s->noter, r, "opening the stage: %s", err_str(r));

	*ret = TAKE_PTR(s);
	return 0;
}

void stage_close(struct stage *s)
{
	if (!s)
		return;
	stage_adopted(s);
	assert(s->blobs == 0);
	stage_release(s, s->lsn ? s->covered : UINT64_MAX);
	while (s->files) { /* what the next open needs */
		struct stage_file *file = s->files;

		s->files = file->next;
		(void)close(file->fd);
		free(file);
	}
	spares_delete(s, 0);
	closep(&s->dir_fd);
	for (unsigned i = 0; i < LOCKS; i++)
		pthread_rwlock_destroy(&s->locks[i]);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

void stage_hold(struct stage *s, const _Atomic uint64_t *lsn)
{
	LOCK_GUARD(&s->lock);

	s->lsn = lsn;
	for (struct stage_file *file = s->files; file; file = file->next)
		file->until = lsn ? atomic_load(lsn) : 0; /* what was read may refer to any */
}

void stage_release(struct stage *s, uint64_t covered)
{
	LOCK_GUARD(&s->lock);

	s->covered = covered;
	for (struct stage_file *file = s->files, *next; file; file = next) {
		next = file->next;
		if (file->live == 0 && file->until <= covered && !file->syncing)
			file_delete(s, file);
	}
}

/* Syncs one file that is dirty. ABSENT: none is left. */
static int sync_one(struct stage *s)
{
	struct stage_file *file;
	int r;

	{
		LOCK_GUARD(&s->lock);
		for (file = s->files; file && !file->dirty; file = file->next)
			;
		if (!file)
			return ABSENT;
		file->syncing++;
		file->dirty = false;
	}
	r = os_fdatasync(file->fd);

	LOCK_GUARD(&s->lock);
	file->syncing--;
	if (r < 0)
		file->dirty = true;
	else if (s->lsn && file->live == 0 && file->until <= s->covered)
		file_delete(s, file);
	return r;
}

void stage_turn(struct stage *s)
{
	LOCK_GUARD(&s->lock);

	if (s->current && s->current->end >= TURN_BYTES)
		s->current = NULL;
	s->unreadable_rounds = s->unreadable ? s->unreadable_rounds + 1 : 0;
	s->unreadable = false;
}

void stage_give_up(struct stage *s)
{
	LOCK_GUARD(&s->lock);

	s->unreadable = true;
	s->unreadable_rounds = PATIENCE_ROUNDS;
}

bool stage_gave_up(struct stage *s, uint64_t *ret_bytes)
{
	LOCK_GUARD(&s->lock);

	*ret_bytes = s->gave_up;
	s->gave_up = 0;
	return *ret_bytes > 0;
}

void stage_hold_still(struct stage *s, bool still)
{
	assert((atomic_load(&s->generation) & 1) != still);
	atomic_fetch_add(&s->generation, 1);
}

int stage_sync(struct stage *s)
{
	bool names;
	int r;

	do
		r = sync_one(s);
	while (r == 0);
	if (r < 0)
		return r;
	{
		LOCK_GUARD(&s->lock);
		names = s->names_dirty;
		s->names_dirty = false;
	}
	r = names ? os_fsync(s->dir_fd) : 0;
	if (r < 0) {
		LOCK_GUARD(&s->lock);
		s->names_dirty = true;
	}
	return r;
}

uint64_t stage_held(struct stage *s)
{
	uint64_t unsealed = stage_unsealed(s);
	uint64_t placed = atomic_load_explicit(&s->placed, memory_order_relaxed);

	return placed - MIN(placed, unsealed);
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
	b->number = s->current->number;
	b->off = (uint32_t)s->current->end;
	b->generation = atomic_load(&s->generation);
	atomic_store_explicit(&s->tail, (uintptr_t)b, memory_order_relaxed);
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
	/* whatever is at the very end can be written over, but for invariant 5 */
	if (!s->lsn && file->end == (uint64_t)b->off + len)
		file_end(s, file, b->off);
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
	b->file->dirty = true;
	*ret = TAKE_PTR(b);
	return 0;
}

/* ---- finding blobs again ---- */

static struct blob **adopted_slot(struct stage *s, uint32_t number, uint32_t off)
{
	uint64_t mixed = ((uint64_t)number << 32 | off) * UINT64_C(0x9e3779b97f4a7c15);
	size_t at = (mixed >> 32) & (s->adopted_size - 1);

	while (s->adopted[at] && (s->adopted[at]->number != number || s->adopted[at]->off != off))
		at = (at + 1) & (s->adopted_size - 1);
	return &s->adopted[at];
}

static int adopted_reserve(struct stage *s)
{
	size_t size = s->adopted_size ? 2 * s->adopted_size : FIRST_ADOPTED;
	size_t old_size = s->adopted_size;
	struct blob **old = s->adopted, **table;

	if (2 * (s->n_adopted + 1) <= s->adopted_size)
		return 0;
	table = os_calloc(size, sizeof(struct blob *));
	if (!table)
		return -ENOMEM;
	s->adopted = table;
	s->adopted_size = size;
	for (size_t i = 0; i < old_size; i++)
		if (old[i])
			*adopted_slot(s, old[i]->number, old[i]->off) = old[i];
	free(old);
	return 0;
}

static struct stage_file *find_file(struct stage *s, uint32_t number)
{
	struct stage_file *file = s->files;

	while (file && file->number != number)
		file = file->next;
	return file;
}

/* Counts more bytes of a blob as alive; its file has them. */
static void adopted_grow(struct blob *b, uint32_t len)
{
	struct stage *s = b->stage;
	LOCK_GUARD(&s->lock);
	uint32_t more = len - atomic_load(&b->len);

	b->file->live += more;
	s->unsealed += more;
	atomic_store(&b->len, len);
}

int blob_adopt(struct stage *s, uint32_t number, uint32_t off, uint32_t len, struct blob **ret)
{
	struct stage_file *file = find_file(s, number);
	struct blob *b, **slot;
	int r;

	if (!file || (uint64_t)off + len > file->size)
		return ABSENT;
	if (len < 1 || len > BLOB_MAX)
		return -EINVAL;
	r = adopted_reserve(s);
	if (r < 0)
		return r;
	slot = adopted_slot(s, number, off);
	b = *slot;
	if (!b) {
		b = os_calloc(1, sizeof(*b));
		if (!b)
			return -ENOMEM;
		b->stage = s;
		b->file = file;
		b->off = off;
		b->number = number;
		atomic_init(&b->refs, 1); /* the table's */
		s->blobs++;
		s->n_adopted++;
		*slot = b;
	}
	if (len > blob_len(b))
		adopted_grow(b, len);
	*ret = blob_ref(b);
	return 0;
}

void stage_adopted(struct stage *s)
{
	for (size_t i = 0; i < s->adopted_size; i++)
		if (s->adopted[i])
			blob_unref(s->adopted[i]);
	free(s->adopted);
	s->adopted = NULL;
	s->adopted_size = s->n_adopted = 0;
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

void blob_place(const struct blob *b, uint32_t *ret_file, uint32_t *ret_off)
{
	*ret_file = b->number;
	*ret_off = b->off;
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
	if (atomic_load(&b->state) != SEALED) /* in one order with the last number: invariant 5 */
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
	if (!b->stage->lsn && file->end == (uint64_t)b->off + from + len)
		file_end(b->stage, file, file->end - len);
	file_release(b->stage, file, len); /* the blob's own bytes keep the file */
}

bool stage_may_append(struct stage *s, const struct blob *b)
{
	return atomic_load_explicit(&s->tail, memory_order_relaxed) == (uintptr_t)b;
}

int blob_append(struct blob *b, uint32_t at, const void *data, size_t len)
{
	uint32_t have;
	int r;

	WRITE_GUARD(blob_lock(b));
	have = atomic_load_explicit(&b->len, memory_order_relaxed); /* changed by lock holders */
	if (atomic_load_explicit(&b->state, memory_order_relaxed) != OPEN || have != at ||
	    len > BLOB_MAX - have)
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
	b->file->dirty = true;
	atomic_store_explicit(&b->len, have + (uint32_t)len, memory_order_release);
	return 0;
}

bool blob_is_fixed(const struct blob *b)
{
	uint32_t generation = atomic_load(&b->stage->generation);

	return atomic_load_explicit(&b->state, memory_order_relaxed) != OPEN ||
	       b->generation != generation || generation & 1;
}

int blob_write(struct blob *b, uint32_t off, const void *data, size_t len)
{
	int r;

	WRITE_GUARD(blob_lock(b));
	if (off > blob_len(b) || len > blob_len(b) - off)
		return -EINVAL;
	if (blob_is_fixed(b))
		return AGAIN;
	r = os_pwrite_full(b->file->fd, data, len, (uint64_t)b->off + off);
	b->file->dirty = true;
	return r;
}

/* ---- reading ---- */

/* AGAIN: it is sealed, read the chunk. */
static int read_staged(struct blob *b, uint32_t off, void *buf, size_t len)
{
	READ_GUARD(blob_lock(b));
	if (!b->file)
		return AGAIN;
	return os_pread_full(b->file->fd, buf, len, (uint64_t)b->off + off);
}

int blob_read(struct blob *b, uint32_t off, void *buf, size_t len)
{
	int r;

	if (off > blob_len(b) || len > blob_len(b) - off)
		return -EINVAL;

	if (atomic_load_explicit(&b->state, memory_order_acquire) != SEALED) {
		r = read_staged(b, off, buf, len);
		if (r == END)
			return note(&b->stage->noter, -EIO, "stage file %08" PRIx32 " was cut",
				    b->number);
		if (r != AGAIN)
			return r;
	}

	r = chunk_read(b->stage->chunks, &b->name, off, buf, len);
	return r == END ? -ERR_CHUNK_DAMAGED : r;
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
	atomic_store(&b->state, SEALED); /* before unplace looks at the last number */
	unplace(b, blob_len(b));
}

/* Its bytes cannot be read. As blob_seal. */
static int give_up(struct blob *b, struct name *ret_name)
{
	struct stage *s = b->stage;
	struct name name;
	int r;

	{
		LOCK_GUARD(&s->lock);
		if (s->unreadable_rounds < PATIENCE_ROUNDS) {
			s->unreadable = true;
			return AGAIN;
		}
	}
	r = chunk_put_lost(s->chunks, blob_len(b), &name);
	if (r < 0)
		return r;
	{
		LOCK_GUARD(&s->lock);
		s->gave_up += blob_len(b);
		b->file->bad = true;
		if (s->current == b->file)
			s->current = NULL;
	}
	seal_end(b, &name);
	*ret_name = name;
	return ABSENT;
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
	if (r == -EIO || r == END)
		return give_up(b, ret_name);
	if (r < 0)
		return r;
	r = chunk_put(b->stage->chunks, CHUNK_DATA, bytes, len, &name);
	if (r < 0)
		return r;

	seal_end(b, &name);
	*ret_name = name;
	return 0;
}
