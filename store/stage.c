/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The stage: its files, the room in them, and what becomes of it when nothing lives there any more.
 * The invariants are in stage_internal.h.
 *
 * Crash: stage files are left over. The next open finds the blobs in them again through the journal
 * (blob_adopt), and deletes them once what they hold is covered.
 */

#include "store/stage_internal.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>

#include "store/base/err.h"
#include "store/base/os.h"
#include "store/base/util.h"
#include "store/chunk.h"
#include "store/format.h"
#include "store/room.h"

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
 * Where a small write meets new pages all the same, it gets so many at once: 4 KiB that are written
 * into such pages take 2.4 us with their making, and 4.7 where each write makes its own (ext4 of
 * Linux 6.18). 128 KiB at once would not be quicker. What the next commit finds unused it writes to
 * the disk for nothing; whoever syncs after that finds his blocks allocated.
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

/*
 * Two seconds of a disk that writes 128 MiB a second: less, and a burst that the page cache takes
 * in its stride (an unpacked archive, a build) would wait; more only lies in the store twice.
 */
#define BEHIND_BYTES ((uint64_t)256 << 20)

/*
 * On a disk that is nearly full less: what is staged takes as much again when it is sealed, so
 * with a quarter of the room there, a half is left for who goes on until the round ends. But not
 * less than a round is worth, which takes some 10 ms and two syncs.
 */
#define BEHIND_SHARE 3 /* of what is free beside it */
#define BEHIND_MIN ((uint64_t)1 << 20)

/*
 * And a quarter more, where those who bring little go on (fs/view.c). On a disk that is nearly full
 * nobody does, as each needs the room that the round gives.
 */
#define FAR_SHARE 4

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

/* ---- files; all under the stage's lock ---- */

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
			return r == -ENOENT ? -ERR_STORE_REMOVED : r;
		file = s->spare;
		s->spare = file->next;
	} else {
		file = os_calloc(1, sizeof(*file));
		if (!file)
			return -ENOMEM;
		r = os_openat(s->dir_fd, name, O_RDWR | O_CREAT | O_EXCL, 0600, &file->fd);
		if (r < 0)
			return r == -ENOENT ? -ERR_STORE_REMOVED : r; /* or this part of it */
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

static void file_unmap(struct stage_file *file)
{
	os_unmap(file->map, STAGE_FILE_MAX);
	file->map = NULL;
}

/*
 * What is to be deleted, by who is given it: all spare files but `keep`, and bad ones. A filesystem
 * that tells its disk at once which blocks are free again (ext4 with `discard`) takes some 100 ms
 * for a file, so files_free wants no lock, where that can be: who writes waits for it.
 */
static struct stage_file *files_take(struct stage *s, unsigned keep)
{
	struct stage_file **at = &s->spare, *taken;

	while (*at && keep-- > 0)
		at = &(*at)->next;
	taken = *at;
	*at = NULL;
	for (at = &taken; *at;)
		at = &(*at)->next;
	*at = TAKE_PTR(s->gone);
	return taken;
}

/* Taken; they were in no list of the stage. */
static void files_free(struct stage *s, struct stage_file *files)
{
	while (files) {
		struct stage_file *file = files;
		char name[16];

		files = file->next;
		s->disk -= file->size;
		file_name(file->number, name);
		(void)os_unlinkat(s->dir_fd, name, 0); /* if it stays, the next open deletes it */
		file_unmap(file);
		(void)close(file->fd);
		free(file);
		room_freed(chunks_room(s->chunks));
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

	/* What a former daemon had no record of yet when it died would come over what is next. */
	behind_cancel(s->behind, file, 0, STAGE_FILE_MAX);
	file_end(s, file, 0);
	file_unmap(file); /* or the pages of what was lent once would count as ours for good */
	if (file->bad) {
		file->next = s->gone;
		s->gone = file;
		return;
	}
	*file = (struct stage_file){
		.next = s->spare, .fd = file->fd, .number = file->number, .size = file->size
	};
	s->spare = file;
}

/* Nothing lives in the file any more. */
static void file_emptied(struct stage *s, struct stage_file *file)
{
	if (s->lsn) {
		file->until = atomic_load(s->lsn);
		if (file->until <= s->covered && !file->held)
			file_delete(s, file);
	} else if (file == s->current) {
		file_end(s, file, 0);
	} else if (!file->held) {
		file_delete(s, file);
	}
}

void stage_let_go(struct stage *s, struct stage_file *file)
{
	file->held--;
	if (file->live == 0 && !file->held && (!s->lsn || file->until <= s->covered))
		file_delete(s, file);
}

/*
 * What the filesystem has set aside behind a file's end for what it expects there (xfs) goes by a
 * cut that cuts nothing off.
 */
static void file_cut(struct stage *s, struct stage_file *file, uint64_t size)
{
	if (os_ftruncate(file->fd, size) < 0)
		return;
	if (file->size > size)
		room_freed(chunks_room(s->chunks));
	s->disk -= file->size - size;
	file->size = size;
}

/*
 * Lock held: gives room that nothing lives in back to the disk. The current file is never one of
 * those that stage_give_back is at.
 */
static void give_back(struct stage *s)
{
	files_free(s, files_take(s, 0));
	for (struct stage_file *file = s->files; file; file = file->next) {
		if (file == s->current)
			file_cut(s, file, file->end);
		else if (!s->giving_back)
			file_cut(s, file, file->size);
	}
}

/* What there is, is for what will be sealed: others may have filled the disk. */
static bool is_short(struct stage *s)
{
	uint64_t room;

	return stage_room(s, &room) == 0 && room == 0;
}

/*
 * The same without the lock. Files that are held stay in the list, in which new ones come first;
 * and with none that is current none of them grows.
 */
void stage_give_back(struct stage *s, bool at_once)
{
	struct stage_file *gone, *file, *current;

	at_once = at_once || is_short(s);
	{
		LOCK_GUARD(&s->lock);
		if (s->giving_back || (!at_once && os_now_ns() - s->staged_ns <= STAGE_IDLE_NS))
			return;
		s->giving_back = true;
		gone = files_take(s, 0);
		current = TAKE_PTR(s->current);
		for (file = s->files; file; file = file->next)
			file->held++;
		file = s->files;
	}
	files_free(s, gone);
	while (file) {
		struct stage_file *next = file->next;

		file_cut(s, file, file == current ? file->end : file->size);
		{
			LOCK_GUARD(&s->lock);
			stage_let_go(s, file);
		}
		file = next;
	}
	LOCK_GUARD(&s->lock);
	s->giving_back = false;
}

/*
 * With len bytes more the file ends behind its pages: how large it becomes. The lock is held, as
 * these zeros have to be there before anybody's bytes: some 20 us into the page cache. When the
 * kernel holds writers back, that holds up who places and drops blobs and who begins a sync; no
 * reader. Without room for them it does without.
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
	room_wrote(chunks_room(s->chunks), len);
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

static int ask_free_bytes(struct stage *s, uint64_t need)
{
	uint64_t share;
	int r = room_ask(chunks_room(s->chunks), need, &s->free_bytes);

	if (r < 0)
		return r;
	share = (s->free_bytes - MIN(s->free_bytes, RESERVE_BYTES)) / BEHIND_SHARE;
	atomic_store_explicit(&s->behind_bytes, MAX(BEHIND_MIN, MIN(BEHIND_BYTES, share)),
			      memory_order_relaxed);
	s->checked_ns = os_now_ns();
	s->since_check = 0;
	return 0;
}

/* Lock held: what sealing all blobs and one of len bytes takes, and the reserve. */
static uint64_t kept_free(const struct stage *s, uint64_t len)
{
	return s->unsealed + len + (s->blobs + 1) * SEAL_OVERHEAD + RESERVE_BYTES;
}

int stage_room(struct stage *s, uint64_t *ret_bytes)
{
	uint64_t free_bytes;
	int r = room_ask(chunks_room(s->chunks), RESERVE_BYTES, &free_bytes);

	if (r < 0)
		return r;
	LOCK_GUARD(&s->lock);
	*ret_bytes = free_bytes - MIN(free_bytes, kept_free(s, 0));
	return 0;
}

/* -ENOSPC when len more bytes could not be sealed with the reserve left over. */
static int check_room(struct stage *s, uint64_t len)
{
	uint64_t need = len + kept_free(s, len); /* to the stage first, and to a pack once more */
	int64_t now = os_now_ns();
	int r;

	s->staged_ns = now;
	if (s->since_check >= CHECK_BYTES || now < s->checked_ns ||
	    now - s->checked_ns >= CHECK_NS) {
		r = ask_free_bytes(s, need);
		if (r < 0)
			return r;
	}
	if (s->free_bytes >= s->since_check + need)
		return 0;

	/* Nobody is refused on an old number, nor for room that nothing lives in. */
	give_back(s);
	r = ask_free_bytes(s, need);
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
	if (strcmp(name, BEHIND_NAME) == 0)
		return 0;
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
	file->dirty = true; /* nobody knows, nor whether its name is */
	s->names_dirty = true;
	file->until = UINT64_MAX;
	s->disk += file->size;
	s->last_number = MAX(s->last_number, file->number);
	file->next = s->files;
	s->files = TAKE_PTR(file);
	return 0;
}

/* A file that an earlier daemon left has `end` bytes by now. */
static void leftover_grew(struct stage *s, struct stage_file *file, uint64_t end)
{
	if (end <= file->size)
		return;
	s->disk += end - file->size;
	file->size = end;
	file_end(s, file, end);
}

/* For behind_recover. */
static struct stage_file *find_leftover(void *arg, uint32_t number, uint64_t end)
{
	struct stage *s = arg;
	struct stage_file *file = stage_find(s, number, 0);

	if (file)
		leftover_grew(s, file, end);
	return file;
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
	atomic_init(&s->behind_bytes, BEHIND_BYTES);
	pthread_mutex_init(&s->lock, NULL);
	for (unsigned i = 0; i < STAGE_LOCKS; i++)
		pthread_rwlock_init(&s->locks[i], NULL);

	r = os_mkdirat(dir_fd, "stage", 0700);
	if (r < 0 && r != -EEXIST)
		return r;
	r = os_openat(dir_fd, "stage", O_RDONLY | O_DIRECTORY, 0, &s->dir_fd);
	if (r < 0)
		return r;
	s->generation = 2; /* adopted blobs have 0 */
	r = behind_new(s->dir_fd, &s->noter, &s->behind);
	if (r < 0)
		return r;
	r = os_each_name(s->dir_fd, ".", open_leftover, s);
	if (r < 0)
		return note(&s->noter, r, "opening the stage: %s", err_str(r));
	r = behind_recover(s->behind, find_leftover, s);
	if (r < 0)
		return r;

	*ret = TAKE_PTR(s);
	return 0;
}

void stage_end(struct stage *s)
{
	behind_end(s->behind);
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
		file_unmap(file);
		(void)close(file->fd);
		free(file);
	}
	files_free(s, files_take(s, 0));
	behind_free(s->behind);
	closep(&s->dir_fd);
	for (unsigned i = 0; i < STAGE_LOCKS; i++)
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
	struct stage_file *gone;

	{
		LOCK_GUARD(&s->lock);
		s->covered = covered;
		for (struct stage_file *file = s->files, *next; file; file = next) {
			next = file->next;
			if (file->live == 0 && file->until <= covered && !file->held)
				file_delete(s, file);
		}
		gone = files_take(s, SPARES_MAX);
	}
	files_free(s, gone);
}

void stage_turn(struct stage *s)
{
	LOCK_GUARD(&s->lock);

	if (s->current && s->current->end >= TURN_BYTES)
		s->current = NULL;
	s->unreadable_rounds = s->unreadable ? s->unreadable_rounds + 1 : 0;
	s->unreadable = false;
}

void stage_hold_still(struct stage *s, bool still)
{
	LOCK_GUARD(&s->lock);

	assert((atomic_load(&s->generation) & 1) != still);
	atomic_fetch_add(&s->generation, 1);
	for (struct stage_file *file = s->files; still && file; file = file->next)
		file->begun = file->end;
}

int stage_put_back(struct stage *s, const struct journal_mark_bytes *copy, size_t len)
{
	uint64_t place = get_le32(copy->place);
	struct stage_file *file = stage_find(s, get_le32(copy->file), 0);
	int r;

	if (!file || len == 0)
		return 0;
	if (place + len > STAGE_FILE_MAX)
		return -ERR_JOURNAL_DAMAGED;
	r = os_pwrite_full(file->fd, copy->bytes, len, place);
	if (r < 0)
		return r;
	leftover_grew(s, file, place + len);
	return 0;
}

static bool has_more_than(struct stage *s, uint64_t most)
{
	uint64_t unsealed = atomic_load_explicit(&s->unsealed, memory_order_relaxed);
	uint64_t placed = atomic_load_explicit(&s->placed, memory_order_relaxed);

	return unsealed > most || placed > most + unsealed;
}

bool stage_is_behind(struct stage *s)
{
	return has_more_than(s, atomic_load_explicit(&s->behind_bytes, memory_order_relaxed));
}

bool stage_is_far_behind(struct stage *s)
{
	uint64_t most = atomic_load_explicit(&s->behind_bytes, memory_order_relaxed);

	return has_more_than(s, most < BEHIND_BYTES ? most : most + most / FAR_SHARE);
}

void stage_stats(struct stage *s, uint64_t *ret_unsealed, uint64_t *ret_disk)
{
	LOCK_GUARD(&s->lock);
	*ret_unsealed = s->unsealed;
	*ret_disk = s->disk;
}

/* ---- places of blobs ---- */

int stage_take(struct stage *s, const struct blob *who, uint32_t len, struct stage_place *ret)
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
	*ret = (struct stage_place){
		.file = s->current,
		.number = s->current->number,
		.off = (uint32_t)s->current->end,
		.generation = atomic_load(&s->generation),
	};
	atomic_store_explicit(&s->tail, (uintptr_t)who, memory_order_relaxed);
	file_take(s, s->current, len);
	s->blobs++;
	return 0;
}

/* Whatever is at the very end can be written over, but for invariant 5. */
static void take_back(struct stage *s, const struct stage_place *p, uint32_t have, uint32_t len)
{
	if (!s->lsn && p->file->end == (uint64_t)p->off + have + len)
		file_end(s, p->file, p->file->end - len);
	file_release(s, p->file, len);
}

void stage_drop(struct stage *s, const struct stage_place *p, uint32_t len)
{
	behind_cancel(s->behind, p->file, p->off, len);
	LOCK_GUARD(&s->lock);

	s->blobs--;
	take_back(s, p, 0, len);
}

int stage_extend(struct stage *s, const struct stage_place *p, uint32_t have, uint32_t len)
{
	int r;

	LOCK_GUARD(&s->lock);
	if (p->file->end != (uint64_t)p->off + have || p->file->end + len > STAGE_FILE_MAX ||
	    p->file != s->current)
		return AGAIN;
	r = check_room(s, len);
	if (r < 0)
		return r;
	file_take(s, p->file, len);
	return 0;
}

void stage_unextend(struct stage *s, const struct stage_place *p, uint32_t have, uint32_t len)
{
	LOCK_GUARD(&s->lock);

	take_back(s, p, have, len); /* the blob's own bytes keep the file */
}

bool stage_may_append(struct stage *s, const struct blob *b)
{
	return atomic_load_explicit(&s->tail, memory_order_relaxed) == (uintptr_t)b;
}

int stage_write(struct stage *s, const struct stage_place *p, uint32_t off, const void *data,
		size_t len, bool over)
{
	uint64_t to = (uint64_t)p->off + off;
	/* or the older bytes would come later */
	int r = over ? behind_settle_for(s->behind, p->file, to, len) : 0;

	if (r < 0 || behind_leave(s->behind, p->file, to, data, len))
		return r;
	r = os_pwrite_full(p->file->fd, data, len, to);
	p->file->dirty = true;
	return r;
}

int stage_read(struct stage *s, const struct stage_place *p, uint32_t off, void *buf, size_t len)
{
	return behind_read(s->behind, p->file, (uint64_t)p->off + off, buf, len);
}

struct stage_file *stage_find(struct stage *s, uint32_t number, uint64_t end)
{
	struct stage_file *file = s->files;

	while (file && file->number != number)
		file = file->next;
	return file && end <= file->size ? file : NULL;
}

void stage_adopt(struct stage *s, const struct stage_place *p, uint32_t more, bool is_new)
{
	LOCK_GUARD(&s->lock);

	s->blobs += is_new;
	p->file->live += more;
	s->unsealed += more;
}

/* ---- write-behind ---- */

uint8_t *stage_slot_take(struct stage *s)
{
	return behind_take(s->behind);
}

void stage_slot_give(struct stage *s, uint8_t *slot)
{
	behind_give(s->behind, slot);
}

void stage_slot_serve(struct stage *s, uint8_t *slot)
{
	behind_serve(s->behind, slot);
}

void stage_slot_serve_beside(struct stage *s, uint8_t *slot)
{
	behind_serve_beside(s->behind, slot);
}

int stage_slot_served(struct stage *s)
{
	return behind_served(s->behind);
}

void stage_slot_give_up(struct stage *s, uint8_t *slot)
{
	behind_give_up(s->behind, slot);
}

/* ---- what cannot be read ---- */

bool stage_is_patient(struct stage *s)
{
	LOCK_GUARD(&s->lock);

	if (s->unreadable_rounds >= PATIENCE_ROUNDS)
		return false;
	s->unreadable = true;
	return true;
}

void stage_lose(struct stage *s, const struct stage_place *p, uint32_t len)
{
	LOCK_GUARD(&s->lock);

	s->gave_up += len;
	p->file->bad = true;
	if (s->current == p->file)
		s->current = NULL;
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
