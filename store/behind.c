/* SPDX-License-Identifier: Apache-2.0 */

/* Write-behind: its slots, and what was pending in them when a daemon died. */

#include "store/behind.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/base/err.h"
#include "store/base/note.h"
#include "store/base/os.h"
#include "store/base/util.h"
#include "store/boot.h"
#include "store/stage_internal.h"

#define BEHIND_NAME "behind"

/*
 * Requests that are answered so at the same time; each slot takes its size on disk. One client of a
 * view needs one.
 */
#define SLOTS_MAX 4

#define MAP_BYTES ((size_t)SLOTS_MAX * STAGE_SLOT_BYTES)

/* With less the disk's room is for better things: thrice what the stage keeps free for commits. */
#define ENOUGH_FREE ((uint64_t)64 << 20)

/* A request of 1 MiB is in 9 blobs of 128 KiB, if it begins inside one. */
#define PIECES_MAX 12

/*
 * Shorter bytes are copied at once: the call takes longer than the copy, and the lock and the line
 * in the slot as long.
 */
#define LEAVE_MIN 4096

struct piece {
	_Atomic uint32_t len; /* 0: nothing is pending; set last when it comes */
	uint32_t file;        /* its number */
	uint32_t from;        /* in the slot */
	uint32_t unused;
	uint64_t to;          /* in the file */
};

/* The beginning of a slot, in this machine's byte order: no other boot reads it. */
struct slot_head {
	char magic[8];
	uint8_t boot[BOOT_BYTES];
	struct piece pieces[PIECES_MAX];
};
_Static_assert(sizeof(struct slot_head) <= STAGE_SLOT_HEAD, "the rest is the request's");

static const char slot_magic[8] = "plybehi1";

struct slot {
	struct behind *behind;   /* immutable */
	struct slot_head *head;  /* set when the file is mapped, immutable then */
	pthread_mutex_t lock;    /* a leaf */
	struct stage_file *files[PIECES_MAX]; /* under lock: of pieces that are pending */
	bool taken, given_up;    /* under lock: somebody's; nobody's, once nothing is pending */
};

struct behind {
	int stage_fd;        /* immutable, borrowed */
	struct noter noter;  /* immutable */
	uint8_t boot[BOOT_BYTES]; /* immutable */
	_Atomic unsigned pending; /* pieces */
	atomic_bool told; /* that a copy failed */
	pthread_mutex_t lock; /* before a slot's */
	bool tried;  /* under lock: to make the file */
	uint8_t *map; /* under lock until it is set: of the file, all slots; NULL: there is none */
	struct slot slots[SLOTS_MAX];
#ifdef PLYFS_TEST_HOOKS
	const char *test_die; /* a file; while it is there, the next answer is the daemon's last */
#endif
};

/* The slot of the request that this thread handles. */
static _Thread_local struct slot *serving;

/* ---- after a kill ---- */

static int recover_piece(int stage_fd, const uint8_t *slot, const struct piece *p)
{
	_cleanup_close_ int fd = -1;
	uint32_t len = atomic_load(&p->len);
	char name[16];
	int r;

	if (len == 0)
		return 0;
	if (p->from > STAGE_SLOT_BYTES || len > STAGE_SLOT_BYTES - p->from)
		return -EIO;
	(void)snprintf(name, sizeof(name), "%08" PRIx32, p->file);
	r = os_openat(stage_fd, name, O_WRONLY, 0, &fd);
	if (r == -ENOENT) /* no record refers to it any more */
		return 0;
	return r < 0 ? r : os_pwrite_full(fd, slot + p->from, len, p->to);
}

static int recover_slot(int stage_fd, const uint8_t boot[static BOOT_BYTES], const uint8_t *slot)
{
	const struct slot_head *head = (const void *)slot;
	int r = 0;

	if (memcmp(head->magic, slot_magic, sizeof(slot_magic)) != 0 ||
	    memcmp(head->boot, boot, BOOT_BYTES) != 0)
		return 0;
	for (unsigned i = 0; i < PIECES_MAX && r == 0; i++)
		r = recover_piece(stage_fd, slot, &head->pieces[i]);
	return r;
}

int behind_recover(int stage_fd, const struct noter *noter)
{
	_cleanup_close_ int fd = -1;
	uint8_t boot[BOOT_BYTES];
	struct stat st;
	void *map;
	int r;

	r = os_openat(stage_fd, BEHIND_NAME, O_RDWR, 0, &fd);
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	r = os_fstat(fd, &st);
	if (r == 0)
		r = boot_id(boot);
	if (r < 0 || st.st_size < STAGE_SLOT_BYTES)
		return r;
	r = os_map(fd, (size_t)st.st_size, &map);
	if (r < 0)
		return r;
	for (off_t at = 0; r == 0 && at + STAGE_SLOT_BYTES <= st.st_size; at += STAGE_SLOT_BYTES)
		r = recover_slot(stage_fd, boot, (const uint8_t *)map + at);
	os_unmap(map, (size_t)st.st_size);
	return r < 0 ? note(noter, r, "stage/" BEHIND_NAME ": what was written last cannot be put "
				      "in its place: %s", err_str(r)) : 0;
}

/* ---- slots ---- */

int behind_new(int stage_fd, const struct noter *noter, struct behind **ret)
{
	struct behind *b = os_calloc(1, sizeof(*b));
	int r;

	if (!b)
		return -ENOMEM;
	r = boot_id(b->boot);
	if (r < 0) {
		free(b);
		return r;
	}
	b->stage_fd = stage_fd;
	b->noter = *noter;
#ifdef PLYFS_TEST_HOOKS
	b->test_die = getenv("PLYFS_TEST_DIE_BEHIND");
#endif
	pthread_mutex_init(&b->lock, NULL);
	for (unsigned i = 0; i < SLOTS_MAX; i++) {
		b->slots[i].behind = b;
		pthread_mutex_init(&b->slots[i].lock, NULL);
	}
	*ret = b;
	return 0;
}

void behind_free(struct behind *b)
{
	if (!b)
		return;
	if (b->map) {
		os_unmap(b->map, MAP_BYTES);
		(void)os_unlinkat(b->stage_fd, BEHIND_NAME, 0); /* else the next open does */
	}
	for (unsigned i = 0; i < SLOTS_MAX; i++)
		pthread_mutex_destroy(&b->slots[i].lock);
	pthread_mutex_destroy(&b->lock);
	free(b);
}

/* Lock held. Without room, or where files cannot be mapped, all is copied before it is answered. */
static int make_file(struct behind *b)
{
	_cleanup_close_ int fd = -1;
	uint64_t free_bytes;
	void *map;
	int r;

	/* Elsewhere a full disk would be a SIGBUS, or EIO for a request. */
	if (!os_overwrites_in_place(b->stage_fd))
		return -EOPNOTSUPP;
	r = os_free_bytes(b->stage_fd, &free_bytes);
	if (r < 0)
		return r;
	if (free_bytes < ENOUGH_FREE)
		return -ENOSPC;
	r = os_openat(b->stage_fd, BEHIND_NAME, O_RDWR | O_CREAT | O_TRUNC, 0600, &fd);
	if (r < 0)
		return r;
	r = os_allocate(fd, MAP_BYTES);
	if (r == 0)
		r = os_map(fd, MAP_BYTES, &map);
	if (r < 0) {
		(void)os_unlinkat(b->stage_fd, BEHIND_NAME, 0);
		return r;
	}
	b->map = map;
	for (unsigned i = 0; i < SLOTS_MAX; i++) {
		struct slot_head *head = (void *)(b->map + i * STAGE_SLOT_BYTES);

		memcpy(head->boot, b->boot, BOOT_BYTES);
		memcpy(head->magic, slot_magic, sizeof(slot_magic));
		b->slots[i].head = head;
	}
	return 0;
}

uint8_t *behind_take(struct behind *b)
{
	LOCK_GUARD(&b->lock);

	if (!b->tried)
		(void)make_file(b);
	b->tried = true;
	for (unsigned i = 0; b->map && i < SLOTS_MAX; i++) {
		struct slot *s = &b->slots[i];
		LOCK_GUARD(&s->lock);

		if (!s->taken) {
			s->taken = true;
			return (uint8_t *)s->head;
		}
	}
	return NULL;
}

static struct slot *slot_of(struct behind *b, const uint8_t *mem)
{
	return &b->slots[(size_t)(mem - b->map) / STAGE_SLOT_BYTES];
}

void behind_give(struct behind *b, uint8_t *mem)
{
	struct slot *s = slot_of(b, mem);
	LOCK_GUARD(&s->lock);

	s->taken = false;
}

void behind_serve(struct behind *b, uint8_t *mem)
{
	serving = mem ? slot_of(b, mem) : NULL;
}

/* ---- what is pending ---- */

/* The slot's lock is held. */
static void piece_done(struct slot *s, unsigned i)
{
	s->files[i] = NULL;
	atomic_store(&s->head->pieces[i].len, 0);
	atomic_fetch_sub(&s->behind->pending, 1);
}

bool behind_leave(struct behind *b, struct stage_file *file, uint64_t to, const void *data,
		  size_t len)
{
	struct slot *s = serving;
	const uint8_t *p = data;

	if (!s || s->behind != b || len < LEAVE_MIN || p < (uint8_t *)s->head + STAGE_SLOT_HEAD ||
	    p + len > (uint8_t *)s->head + STAGE_SLOT_BYTES)
		return false;

	LOCK_GUARD(&s->lock);
	for (unsigned i = 0; i < PIECES_MAX; i++) {
		struct piece *piece = &s->head->pieces[i];

		if (s->files[i])
			continue;
		s->files[i] = file;
		piece->file = file->number;
		piece->from = (uint32_t)(p - (uint8_t *)s->head);
		piece->to = to;
		atomic_store(&piece->len, (uint32_t)len);
		atomic_fetch_add(&b->pending, 1);
		return true;
	}
	return false;
}

static int settle_slot(struct slot *s)
{
	int failed = 0;
	LOCK_GUARD(&s->lock);

	for (unsigned i = 0; i < PIECES_MAX; i++) {
		struct piece *piece = &s->head->pieces[i];
		int r;

		if (!s->files[i])
			continue;
		r = os_pwrite_full(s->files[i]->fd, (uint8_t *)s->head + piece->from,
				   atomic_load(&piece->len), piece->to);
		s->files[i]->dirty = true;
		if (r < 0)
			failed = r;
		else
			piece_done(s, i);
	}
	if (failed == 0 && s->given_up)
		s->taken = s->given_up = false;
	return failed;
}

int behind_settle(struct behind *b)
{
	int failed = 0;

	if (atomic_load(&b->pending) == 0)
		return 0;
	for (unsigned i = 0; i < SLOTS_MAX; i++) {
		int r = settle_slot(&b->slots[i]);

		if (r < 0)
			failed = r;
	}
	if (failed < 0 && !atomic_exchange(&b->told, true))
		return note(&b->noter, failed, "the stage: what was written last stays in memory "
			    "until it can be copied: %s", err_str(failed));
	if (failed == 0)
		atomic_store(&b->told, false);
	return failed;
}

int behind_served(struct behind *b)
{
	struct slot *s = serving;
	int r;

	if (!s || atomic_load(&b->pending) == 0)
		return 0;
#ifdef PLYFS_TEST_HOOKS
	if (b->test_die && unlink(b->test_die) == 0) {
		(void)kill(getppid(), SIGKILL); /* the supervisor: nobody goes on with the mount */
		(void)raise(SIGKILL);
	}
#endif
	r = settle_slot(s);
	if (r < 0)
		return behind_settle(b); /* which tells */
	atomic_store_explicit(&b->told, false, memory_order_relaxed);
	return 0;
}

void behind_give_up(struct behind *b, uint8_t *mem)
{
	struct slot *s = slot_of(b, mem);

	{
		LOCK_GUARD(&s->lock);
		s->given_up = true;
	}
	(void)settle_slot(s); /* if it was done just now, nobody would come for it */
}

void behind_cancel(struct behind *b, const struct stage_file *file, uint64_t to, uint64_t len)
{
	if (atomic_load(&b->pending) == 0)
		return;
	for (unsigned i = 0; i < SLOTS_MAX; i++) {
		struct slot *s = &b->slots[i];
		LOCK_GUARD(&s->lock);

		for (unsigned k = 0; k < PIECES_MAX; k++) {
			const struct piece *piece = &s->head->pieces[k];

			if (s->files[k] == file && piece->to < to + len &&
			    to < piece->to + atomic_load(&piece->len))
				piece_done(s, k);
		}
	}
}
