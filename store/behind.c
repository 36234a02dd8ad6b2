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

/*
 * Where a request begins that was read into a slot; and how many bytes of one that was not are put
 * there. It takes, in us, 0.1 for 4 KiB, 2 for 64, 4 for 128, and to copy them where they belong 1,
 * 9 and 13; who writes a MiB loses nothing when all of it is copied at once.
 */
#define REQUEST_AT 4096
#define BESIDE_MAX (128 * 1024)

/*
 * What a disk refuses is a SIGBUS where its page is written to. So the pages are made writable
 * before, all at once and not each time: it takes 1.6 us, which so is nothing.
 */
#define BESIDE_READY_NS 10000000

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
	uint64_t ready_ns;       /* under lock: the pages up to BESIDE_MAX were writable then */
};

struct behind {
	int stage_fd;        /* immutable, borrowed */
	struct noter noter;  /* immutable */
	uint8_t boot[BOOT_BYTES]; /* immutable */
	_Atomic unsigned pending; /* pieces */
	atomic_bool stuck; /* a copy failed, which was told; until nothing is pending */
	bool keeps;  /* behind_end: one thread is left */
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
static _Thread_local bool serving_beside; /* it is not in it */

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

static void drop_file(struct behind *b)
{
	if (b->map)
		os_unmap(b->map, MAP_BYTES);
	b->map = NULL;
	b->tried = false;
	(void)os_unlinkat(b->stage_fd, BEHIND_NAME, 0); /* else the next open does */
}

void behind_free(struct behind *b)
{
	if (!b)
		return;
	if (b->map && (b->keeps || atomic_load(&b->pending) > 0))
		os_unmap(b->map, MAP_BYTES);
	else if (b->map)
		drop_file(b);
	for (unsigned i = 0; i < SLOTS_MAX; i++)
		pthread_mutex_destroy(&b->slots[i].lock);
	pthread_mutex_destroy(&b->lock);
	free(b);
}

/* Nothing is pending in it; from now on the next open finds what is. */
static void mark(struct slot *s)
{
	memcpy(s->head->boot, s->behind->boot, BOOT_BYTES);
	memcpy(s->head->magic, slot_magic, sizeof(slot_magic));
}

static void have_map(struct behind *b, void *map)
{
	b->map = map;
	b->tried = true;
	for (unsigned i = 0; i < SLOTS_MAX; i++)
		b->slots[i].head = (void *)(b->map + i * STAGE_SLOT_BYTES);
}

/* Lock held. Without room, or where files cannot be mapped, all is copied before it is answered. */
static int make_file(struct behind *b)
{
	_cleanup_close_ int fd = -1;
	uint64_t free_bytes;
	void *map;
	int r;

	/*
	 * Elsewhere a full disk would be a SIGBUS, or EIO for a request. So it is if the file was
	 * just cloned, until pages are made writable again: 10 ms.
	 */
	if (os_overwrites(b->stage_fd) == OS_ELSEWHERE)
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
	have_map(b, map);
	for (unsigned i = 0; i < SLOTS_MAX; i++)
		mark(&b->slots[i]);
	return 0;
}

/* ---- after a kill ---- */

static bool is_whole(const struct piece *p, uint32_t len)
{
	return p->from >= STAGE_SLOT_HEAD && p->from <= STAGE_SLOT_BYTES &&
	       len <= STAGE_SLOT_BYTES - p->from && p->to <= STAGE_FILE_MAX - len;
}

/* What is pending in the slot is pending again. */
static void recover_slot(struct behind *b, struct slot *s,
			 struct stage_file *(*find)(void *arg, uint32_t number, uint64_t end),
			 void *arg)
{
	for (unsigned i = 0; i < PIECES_MAX; i++) {
		struct piece *p = &s->head->pieces[i];
		uint32_t len = atomic_load(&p->len);

		if (len > 0 && is_whole(p, len))
			s->files[i] = find(arg, p->file, p->to + len);
		else if (len > 0)
			(void)note(&b->noter, 0, "stage/" BEHIND_NAME ": a piece of what was "
				   "written last is damaged, leaving it out");
		if (s->files[i]) {
			s->taken = s->given_up = true;
			atomic_fetch_add(&b->pending, 1);
		} else { /* no record refers to its file any more */
			atomic_store(&p->len, 0);
		}
	}
	if (!s->taken)
		mark(s);
}

/* As they are after make_file. ABSENT: this boot has none. */
static int map_former(struct behind *b)
{
	static const uint8_t any_boot[BOOT_BYTES] = { 0 };
	_cleanup_close_ int fd = -1;
	struct stat st;
	void *map;
	int r;

	r = os_openat(b->stage_fd, BEHIND_NAME, O_RDWR, 0, &fd);
	if (r == -ENOENT)
		return ABSENT;
	if (r == 0)
		r = os_fstat(fd, &st);
	if (r < 0)
		return r;
	if ((size_t)st.st_size != MAP_BYTES) /* nobody got to use it */
		return ABSENT;
	r = os_map(fd, MAP_BYTES, &map);
	if (r < 0)
		return r;
	have_map(b, map);
	for (unsigned i = 0; i < SLOTS_MAX; i++) {
		struct slot_head *head = b->slots[i].head;

		if (memcmp(head->magic, slot_magic, sizeof(slot_magic)) != 0 ||
		    (memcmp(head->boot, b->boot, BOOT_BYTES) != 0 &&
		     memcmp(head->boot, any_boot, BOOT_BYTES) != 0))
			memset(head->pieces, 0, sizeof(head->pieces));
	}
	return 0;
}

int behind_recover(struct behind *b,
		   struct stage_file *(*find)(void *arg, uint32_t number, uint64_t end), void *arg)
{
	int r = map_former(b);

	if (r < 0)
		return note(&b->noter, r, "stage/" BEHIND_NAME ": what was written last cannot be "
			    "read: %s", err_str(r));
	if (r == 0) {
		for (unsigned i = 0; i < SLOTS_MAX; i++)
			recover_slot(b, &b->slots[i], find, arg);
		(void)behind_settle(b); /* told; a full disk keeps nobody from making room on it */
	}
	if (atomic_load(&b->pending) == 0)
		drop_file(b);
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
	serving_beside = false;
}

void behind_serve_beside(struct behind *b, uint8_t *mem)
{
	behind_serve(b, mem);
	serving_beside = true;
}

/* ---- what is pending ---- */

/* The slot's lock is held. */
static void piece_done(struct slot *s, unsigned i)
{
	s->files[i] = NULL;
	atomic_store(&s->head->pieces[i].len, 0);
	if (atomic_fetch_sub(&s->behind->pending, 1) == 1)
		atomic_store_explicit(&s->behind->stuck, false, memory_order_relaxed);
}

static bool is_in(const struct slot *s, const uint8_t *p, size_t len)
{
	return p >= (uint8_t *)s->head + STAGE_SLOT_HEAD &&
	       p + len <= (uint8_t *)s->head + STAGE_SLOT_BYTES;
}

/* The slot's lock is held: bytes from elsewhere, in it. NULL: there is no room for them. */
static const uint8_t *put_beside(struct slot *s, const void *data, size_t len)
{
	size_t from = REQUEST_AT;
	uint64_t now = now_ns();

	for (unsigned i = 0; i < PIECES_MAX; i++) {
		const struct piece *p = &s->head->pieces[i];

		if (s->files[i])
			from = MAX(from, p->from + (size_t)atomic_load(&p->len));
	}
	if (from + len > REQUEST_AT + BESIDE_MAX)
		return NULL;
	if (now - s->ready_ns > BESIDE_READY_NS) {
		if (os_make_writable(s->head, REQUEST_AT + BESIDE_MAX) < 0)
			return NULL;
		s->ready_ns = now;
	}
	return memcpy((uint8_t *)s->head + from, data, len);
}

bool behind_leave(struct behind *b, struct stage_file *file, uint64_t to, const void *data,
		  size_t len)
{
	struct slot *s = serving;
	const uint8_t *p = data;

	/* While copies fail the writer is to hear of it. */
	if (atomic_load_explicit(&b->stuck, memory_order_relaxed))
		return false;
	if (!s || s->behind != b || len < LEAVE_MIN || !(serving_beside || is_in(s, p, len)))
		return false;

	LOCK_GUARD(&s->lock);
	for (unsigned i = 0; i < PIECES_MAX; i++) {
		struct piece *piece = &s->head->pieces[i];

		if (s->files[i])
			continue;
		if (serving_beside)
			p = put_beside(s, data, len);
		if (!p)
			return false;
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

/* The slot's lock is held: one that was given up is anybody's when nothing is pending in it. */
static void reuse_if_done(struct slot *s)
{
	if (!s->given_up)
		return;
	for (unsigned i = 0; i < PIECES_MAX; i++)
		if (s->files[i])
			return;
	s->taken = s->given_up = false;
	mark(s); /* it may be a former daemon's */
}

/* The slot's lock is held. */
static int copy_pieces(struct slot *s)
{
	int failed = 0;

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
	return failed;
}

static int settle_slot(struct slot *s)
{
	bool told = true;
	int failed;

	{
		LOCK_GUARD(&s->lock);
		failed = copy_pieces(s);
		if (failed < 0) /* under the lock: while something is pending */
			told = atomic_exchange(&s->behind->stuck, true);
		else
			reuse_if_done(s);
	}
	if (!told)
		return note(&s->behind->noter, failed, "the stage: what was written last stays in "
			    "memory until it can be copied: %s", err_str(failed));
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
	return failed;
}

int behind_served(struct behind *b)
{
	struct slot *s = serving;

	if (!s || atomic_load(&b->pending) == 0)
		return 0;
#ifdef PLYFS_TEST_HOOKS
	if (b->test_die && unlink(b->test_die) == 0) {
		(void)kill(getppid(), SIGKILL); /* the supervisor: nobody goes on with the mount */
		(void)raise(SIGKILL);
	}
#endif
	return settle_slot(s);
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

/* The slot's lock is held: does its ith piece have some of these bytes? */
static bool overlaps(const struct slot *s, unsigned i, const struct stage_file *file, uint64_t to,
		     uint64_t len)
{
	const struct piece *p = s->files[i] == file ? &s->head->pieces[i] : NULL;

	return p && p->to < to + len && to < p->to + atomic_load(&p->len);
}

/* All slots are locked. Pieces do not overlap each other: what is pending is not written over. */
static int read_over(struct behind *b, const struct stage_file *file, uint64_t to, uint8_t *buf,
		     size_t len)
{
	for (unsigned i = 0; len > 0 && i < SLOTS_MAX * PIECES_MAX; i++) {
		const struct slot *s = &b->slots[i / PIECES_MAX];
		const struct piece *p;
		uint64_t from, end;
		int r;

		if (!overlaps(s, i % PIECES_MAX, file, to, len))
			continue;
		p = &s->head->pieces[i % PIECES_MAX];
		from = MAX(p->to, to);
		end = MIN(p->to + atomic_load(&p->len), to + len);
		memcpy(buf + (from - to), (const uint8_t *)s->head + p->from + (from - p->to),
		       (size_t)(end - from));
		r = read_over(b, file, to, buf, (size_t)(from - to));
		return r < 0 || r == END ? r :
		       read_over(b, file, end, buf + (end - to), (size_t)(to + len - end));
	}
	return len > 0 ? os_pread_full(file->fd, buf, len, to) : 0;
}

int behind_read(struct behind *b, const struct stage_file *file, uint64_t to, void *buf, size_t len)
{
	int r;

	if (behind_settle(b) == 0)
		return os_pread_full(file->fd, buf, len, to);
	for (unsigned i = 0; i < SLOTS_MAX; i++)
		pthread_mutex_lock(&b->slots[i].lock);
	r = read_over(b, file, to, buf, len);
	for (unsigned i = 0; i < SLOTS_MAX; i++)
		pthread_mutex_unlock(&b->slots[i].lock);
	return r;
}

int behind_settle_for(struct behind *b, const struct stage_file *file, uint64_t to, uint64_t len)
{
	int failed = behind_settle(b);

	for (unsigned i = 0; failed < 0 && i < SLOTS_MAX; i++) {
		struct slot *s = &b->slots[i];
		LOCK_GUARD(&s->lock);

		for (unsigned k = 0; k < PIECES_MAX; k++)
			if (overlaps(s, k, file, to, len))
				return failed;
	}
	return 0;
}

/* What the slots hold is on the disk, and any boot may believe it. */
static int make_durable(struct behind *b)
{
	_cleanup_close_ int fd = -1;
	int r;

	r = os_openat(b->stage_fd, BEHIND_NAME, O_RDWR, 0, &fd);
	if (r == 0)
		r = os_fsync(fd);
	if (r < 0)
		return r;
	for (unsigned i = 0; i < SLOTS_MAX; i++)
		memset(b->slots[i].head->boot, 0, BOOT_BYTES);
	return os_fsync(fd);
}

void behind_end(struct behind *b)
{
	int r = behind_settle(b);

	b->keeps = r < 0;
	if (b->keeps && make_durable(b) < 0)
		(void)note(&b->noter, 0, "the stage: what was written last is lost when the "
			   "machine stops before the next daemon was there");
}

void behind_cancel(struct behind *b, const struct stage_file *file, uint64_t to, uint64_t len)
{
	if (atomic_load(&b->pending) == 0 || b->keeps)
		return;
	for (unsigned i = 0; i < SLOTS_MAX; i++) {
		struct slot *s = &b->slots[i];
		LOCK_GUARD(&s->lock);

		for (unsigned k = 0; k < PIECES_MAX; k++)
			if (overlaps(s, k, file, to, len))
				piece_done(s, k);
		reuse_if_done(s);
	}
}
