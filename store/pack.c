/* SPDX-License-Identifier: Apache-2.0 */
#include "store/pack.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>

#include "store/base/err.h"
#include "store/base/os.h"
#include "store/base/util.h"
#include "store/chunk.h"
#include "store/codec.h"
#include "store/pack_files.h"
#include "store/room.h"

/*
 * Pack files: packs/NNNNNNNN.pack, numbers counting up from 1 and never used twice in a process.
 *
 *   1. Bytes that were appended never change: a location once given out stays right until the whole
 *      file is removed. After a crash, appending goes on behind whatever the last pack ends with
 *      (rounded up to PACK_ALIGN), torn records included.
 *   2. A record is self-describing (FORMAT.md), so that an index could be rebuilt from packs alone.
 *   3. The index names a record only after packs_sync() returned 0 with the record in it. A pack
 *      whose sync failed is bad for good; its unnamed records are written again elsewhere.
 *   4. A writer (struct writer) is one pack that was written and is not known to be durable, or the
 *      current one. Its descriptor is closed in packs_sync, so there are as many as 256 MiB pieces
 *      were written between two syncs; readers share a bounded set of other descriptors.
 *
 * Locks: sync_lock > write_lock; those of pack_files.c and of the codecs are leaves.
 *
 * Crash: between creating a pack and syncing the directory the file may be gone or empty after a
 * power cut; nothing names it. An unnamed tail costs space until a sweep finds the pack dead
 * enough.
 */

struct writer {
	uint32_t pack; /* immutable */
	int fd;        /* immutable, owned */
	uint64_t start; /* immutable: where our own records begin */
	uint64_t end;  /* under write_lock */
	bool dirty;    /* under write_lock: written since the last sync began */
	int bad;       /* under write_lock: why a sync failed; 0: none has */
	struct writer *next; /* changed under sync_lock and write_lock, read under either */
};

struct packs {
	int dir_fd; /* immutable, owned: "packs" */

	pthread_mutex_t sync_lock;
	pthread_mutex_t write_lock;
	struct writer *writers; /* pushed under write_lock, removed under both locks */
	struct writer *current; /* under write_lock; in writers */
	uint32_t last;          /* under write_lock: highest pack number known */
	uint64_t became_bad;    /* under write_lock: how many have */
	bool continue_last;     /* under write_lock: the last pack is an earlier process's */
	bool dir_dirty;         /* under write_lock: a new name in it is not synced yet */
	struct room room;
	_Atomic uint64_t appended; /* changes under write_lock, read without it */
	uint64_t unasked; /* under write_lock: bytes appended since the disk's room was asked */

	struct pack_fds *fds; /* immutable, owned */
	struct codecs codecs;
};

/* ---- payloads ---- */

int record_encode(struct packs *p, uint8_t kind, const void *data, size_t len, uint32_t salt,
		  const struct name *name, uint8_t **ret_bytes, size_t *ret_len, struct record *ret)
{
	struct record rec = { .kind = kind, .salt = salt, .raw_len = (uint32_t)len, .name = *name };
	const size_t header = sizeof(struct record_header_bytes);
	struct record_header_bytes b;
	uint8_t *bytes;
	size_t span;

	bytes = os_malloc(record_span((uint32_t)len));
	if (!bytes)
		return -ENOMEM;

	/* data stays plain: it is read often, and a read should cost one copy */
	rec.stored_len = kind == CHUNK_DATA ? 0 : codec_compress(&p->codecs, data, len,
								 bytes + header);
	rec.codec = rec.stored_len > 0 ? CODEC_ZSTD : CODEC_PLAIN;
	if (rec.codec == CODEC_PLAIN) {
		rec.stored_len = (uint32_t)len;
		memcpy(bytes + header, data, len);
	}

	record_header_put(&b, &rec);
	memcpy(bytes, &b, header);
	span = record_span(rec.stored_len);
	memset(bytes + header + rec.stored_len, 0, span - header - rec.stored_len);

	*ret_bytes = bytes;
	*ret_len = span;
	*ret = rec;
	return 0;
}

int payload_decode(struct packs *p, uint8_t codec, const void *stored, uint32_t stored_len,
		   void *raw, uint32_t raw_len)
{
	return codec_decode(&p->codecs, codec, stored, stored_len, raw, raw_len);
}

/* ---- files ---- */

/*
 * END: shorter than a header, or nothing but zeros: whoever made it died, or lost power, before
 * that was on disk, and no record in it is named.
 */
static int header_check(int fd, uint32_t pack)
{
	static const struct pack_header_bytes none;
	struct pack_header_bytes b;
	int r;

	r = os_pread_full(fd, &b, sizeof(b), 0);
	if (r < 0)
		return r;
	return r == END || memcmp(&b, &none, sizeof(b)) == 0 ? END : pack_header_get(&b, pack);
}

struct each_pack {
	struct packs *p;
	int (*fn)(void *arg, uint32_t pack, const struct pack_sizes *size);
	void *arg;
};

static int each_pack(void *arg, const char *file)
{
	struct each_pack *e = arg;
	uint32_t pack = pack_number(file);
	struct pack_sizes size;
	struct stat st;
	int r;

	if (pack == 0)
		return 0;
	r = os_statat(e->p->dir_fd, file, &st);
	if (r == -ENOENT)
		return 0; /* swept between the two calls */
	if (r < 0)
		return r;
	size.bytes = size.on_disk = (uint64_t)st.st_size;
	if (st.st_blocks > 0) /* some filesystems do not tell */
		size.on_disk = MIN(size.bytes, (uint64_t)st.st_blocks * 512);
	return e->fn(e->arg, pack, &size);
}

int packs_each(struct packs *p,
	       int (*fn)(void *arg, uint32_t pack, const struct pack_sizes *size), void *arg)
{
	struct each_pack e = { .p = p, .fn = fn, .arg = arg };

	return os_each_name(p->dir_fd, ".", each_pack, &e);
}

static int note_last(void *arg, uint32_t pack, const struct pack_sizes *size)
{
	struct packs *p = arg;

	p->last = MAX(p->last, pack);
	return 0;
}

static void packs_freep(struct packs **p)
{
	if (*p)
		packs_close(*p);
}

int packs_open(int dir_fd, struct packs **ret)
{
	_cleanup_(packs_freep) struct packs *p = NULL;
	int r;

	p = os_calloc(1, sizeof(*p));
	if (!p)
		return -ENOMEM;
	p->dir_fd = -1;
	pthread_mutex_init(&p->sync_lock, NULL);
	pthread_mutex_init(&p->write_lock, NULL);
	codecs_init(&p->codecs);

	r = os_mkdirat(dir_fd, "packs", 0700);
	if (r < 0 && r != -EEXIST)
		return r;
	r = os_openat(dir_fd, "packs", O_RDONLY | O_DIRECTORY, 0, &p->dir_fd);
	if (r < 0)
		return r;
	r = pack_fds_new(p->dir_fd, &p->fds);
	if (r < 0)
		return r;
	room_init(&p->room, p->dir_fd);
	r = packs_each(p, note_last, p);
	if (r < 0)
		return r;
	p->continue_last = p->last > 0;

	*ret = TAKE_PTR(p);
	return 0;
}

static void writer_free(struct writer *w)
{
	(void)close(w->fd); /* synced, or given up by a caller that knows */
	free(w);
}

void packs_close(struct packs *p)
{
	if (!p)
		return;
	while (p->writers) {
		struct writer *w = p->writers;

		p->writers = w->next;
		writer_free(w);
	}
	pack_fds_free(p->fds);
	closep(&p->dir_fd);
	codecs_release(&p->codecs);
	pthread_mutex_destroy(&p->write_lock);
	pthread_mutex_destroy(&p->sync_lock);
	free(p);
}

/* ---- reading ---- */

int pack_read(struct packs *p, uint32_t pack, uint64_t off, void *buf, size_t len,
	      void (*before_wait)(void))
{
	_cleanup_(pack_use_endp) struct pack_use use = { .fd = -1 };
	int r;

	r = pack_use(p->fds, pack, before_wait, &use);
	if (r < 0)
		return r;
	if (before_wait && !use.waited) {
		r = os_pread_cached(use.fd, buf, len, off);
		if (r <= 0)
			return r;
		before_wait();
	}
	r = os_pread_full(use.fd, buf, len, off);
	return r == END ? -ERR_PACK_TRUNCATED : r;
}

int pack_size(struct packs *p, uint32_t pack, uint64_t *ret)
{
	_cleanup_(pack_use_endp) struct pack_use use = { .fd = -1 };
	struct stat st;
	int r;

	r = pack_use(p->fds, pack, NULL, &use);
	if (r < 0)
		return r;
	r = os_fstat(use.fd, &st);
	if (r < 0)
		return r;
	*ret = (uint64_t)st.st_size;
	return 0;
}

int record_read(struct packs *p, uint32_t pack, uint64_t off, struct record *ret,
		uint8_t **ret_raw)
{
	_cleanup_free_ uint8_t *stored = NULL, *raw = NULL;
	uint8_t header[sizeof(struct record_header_bytes)];
	struct record rec;
	struct name name;
	int r;

	r = pack_read(p, pack, off, header, sizeof(header), NULL);
	if (r == 0)
		r = record_header_get(header, &rec);
	if (r < 0)
		return r;
	stored = os_malloc(rec.stored_len);
	raw = os_malloc(rec.raw_len);
	if (!stored || !raw)
		return -ENOMEM;
	r = pack_read(p, pack, off + sizeof(header), stored, rec.stored_len, NULL);
	if (r == 0)
		r = payload_decode(p, rec.codec, stored, rec.stored_len, raw, rec.raw_len);
	if (r < 0)
		return r;
	name = name_of(raw, rec.raw_len, rec.salt);
	if (!name_eq(&name, &rec.name))
		return -ERR_CHUNK_DAMAGED;
	*ret = rec;
	*ret_raw = TAKE_PTR(raw);
	return 0;
}

/* ---- appending ---- */

/* Under write_lock: takes over the descriptor of a pack that is to be the current one. */
static int writer_push(struct packs *p, uint32_t pack, int *fd, uint64_t end)
{
	struct writer *w;

	w = os_calloc(1, sizeof(*w));
	if (!w)
		return -ENOMEM;
	*w = (struct writer){ .pack = pack, .fd = TAKE_FD(*fd), .start = end, .end = end,
			      .next = p->writers };
	p->writers = p->current = w;
	return 0;
}

/* Under write_lock: goes on in the last pack of an earlier process. AGAIN: it is full or odd. */
static int writer_continue(struct packs *p)
{
	_cleanup_close_ int fd = -1;
	struct pack_header_bytes b;
	struct stat st;
	uint64_t end;
	int r;

	r = pack_open(p->dir_fd, p->last, O_RDWR, &fd);
	if (r == -ERR_PACK_MISSING)
		return AGAIN;
	if (r == 0)
		r = header_check(fd, p->last);
	if (r == -ERR_PACK_HEADER || r == -EIO)
		return AGAIN; /* check reports it */
	if (r < 0)
		return r;
	r = os_fstat(fd, &st);
	if (r < 0)
		return r;

	end = MAX((uint64_t)st.st_size, sizeof(b));
	end = (end + PACK_ALIGN - 1) & ~(uint64_t)(PACK_ALIGN - 1);
	if (end >= PACK_MAX)
		return AGAIN;

	/*
	 * The earlier process may have died before it synced the file's header or its name, or have
	 * seen that sync fail: the same bytes again make both part of our next sync.
	 */
	pack_header_put(&b, p->last);
	r = os_pwrite_full(fd, &b, sizeof(b), 0);
	if (r < 0)
		return r;
	p->dir_dirty = true;
	return writer_push(p, p->last, &fd, end);
}

void packs_pass(struct packs *p, uint32_t pack)
{
	LOCK_GUARD(&p->write_lock);
	if (pack <= p->last)
		return;
	p->last = pack;
	p->continue_last = false;
}

/* Under write_lock: makes the next pack. The number is spent even when this fails. */
static int writer_create(struct packs *p)
{
	_cleanup_close_ int fd = -1;
	struct pack_header_bytes b;
	char file[PACK_NAME_SIZE];
	uint32_t pack;
	int r;

	if (p->last == UINT32_MAX)
		return -EOVERFLOW; /* 2^32 packs are an exbibyte */
	pack = ++p->last;

	r = os_openat(p->dir_fd, pack_file_name(pack, file), O_RDWR | O_CREAT | O_EXCL, 0600, &fd);
	if (r < 0)
		return r;

	pack_header_put(&b, pack);
	r = os_pwrite_full(fd, &b, sizeof(b), 0);
	if (r == 0)
		r = writer_push(p, pack, &fd, sizeof(b));
	if (r < 0) {
		(void)os_unlinkat(p->dir_fd, file, 0); /* an empty pack is harmless if it stays */
		return r;
	}
	p->current->dirty = true;
	p->dir_dirty = true;
	return 0;
}

static int writer_get(struct packs *p)
{
	int r;

	if (p->current && p->current->end < PACK_MAX)
		return 0;

	p->current = NULL; /* full: packs_sync closes it */
	if (p->continue_last) {
		r = writer_continue(p);
		if (r < 0)
			return r;
		p->continue_last = false; /* once: afterwards the last pack is one of ours */
		if (r == 0)
			return 0;
	}
	return writer_create(p);
}

#define ROOM_BYTES ((uint64_t)1 << 20) /* the free space is asked for so often: 1 us each */

/*
 * Under write_lock: what the filesystem has set aside behind the ends of packs for what it expects
 * there (xfs, up to as much as they hold). A cut that cuts nothing off gives it back.
 */
static void give_back(struct packs *p)
{
	for (struct writer *w = p->writers; w; w = w->next)
		(void)os_ftruncate(w->fd, w->end); /* as below */
}

/* Under write_lock. -ENOSPC when the reserve would be touched. */
static int check_room(struct packs *p, size_t len)
{
	uint64_t free_bytes;
	int r;

	p->unasked += len;
	if (p->unasked < ROOM_BYTES)
		return 0;
	r = room_ask(&p->room, PACK_RESERVE + len, &free_bytes);
	if (r == 0 && free_bytes < PACK_RESERVE + len) {
		give_back(p);
		r = room_ask(&p->room, PACK_RESERVE + len, &free_bytes);
	}
	if (r < 0)
		return r;
	if (free_bytes < PACK_RESERVE + len)
		return -ENOSPC;
	p->unasked = 0;
	return 0;
}

int pack_append(struct packs *p, const uint8_t *bytes, size_t len, uint32_t *ret_pack,
		uint64_t *ret_off)
{
	struct writer *w;
	int r;

	LOCK_GUARD(&p->write_lock);
	r = check_room(p, len);
	if (r < 0)
		return r;
	r = writer_get(p);
	if (r < 0)
		return r;
	w = p->current;

	w->dirty = true;
	r = os_pwrite_full(w->fd, bytes, len, w->end);
	if (r < 0) {
		/* gives the room back; if it fails the next record overwrites what nobody names */
		(void)os_ftruncate(w->fd, w->end);
		return r;
	}
	*ret_pack = w->pack;
	*ret_off = w->end;
	w->end += len;
	atomic_fetch_add_explicit(&p->appended, len, memory_order_relaxed);
	room_wrote(&p->room, len);
	return 0;
}

struct room *packs_room(struct packs *p)
{
	return &p->room;
}

uint64_t packs_appended(struct packs *p)
{
	return atomic_load_explicit(&p->appended, memory_order_relaxed);
}

/* ---- syncing ---- */

/* Under sync_lock: syncs one writer if it was written. */
static int writer_sync(struct packs *p, struct writer *w)
{
	int r;

	{
		LOCK_GUARD(&p->write_lock);
		if (w->bad < 0)
			return w->bad; /* whose sync it was, others have records in it as well */
		if (!w->dirty)
			return 0;
		w->dirty = false; /* before the sync: what comes during it is for the next one */
	}

	r = os_fdatasync(w->fd);
	if (r < 0) {
		LOCK_GUARD(&p->write_lock);
		w->bad = r;
		p->became_bad++;
		if (p->current == w)
			p->current = NULL;
	}
	return r;
}

static int dir_sync(struct packs *p)
{
	int r;

	{
		LOCK_GUARD(&p->write_lock);
		if (!p->dir_dirty)
			return 0;
		p->dir_dirty = false;
	}
	r = os_fsync(p->dir_fd);
	if (r < 0) {
		LOCK_GUARD(&p->write_lock);
		p->dir_dirty = true;
	}
	return r;
}

/* Under sync_lock and write_lock: closes writers that `done` accepts. */
static void writers_close(struct packs *p,
			  bool (*done)(struct packs *p, const struct writer *w, uint32_t pack),
			  uint32_t pack)
{
	struct writer **at = &p->writers;

	while (*at) {
		struct writer *w = *at;

		if (!done(p, w, pack)) {
			at = &w->next;
			continue;
		}
		*at = w->next;
		if (p->current == w)
			p->current = NULL;
		writer_free(w);
	}
}

static bool writer_is_finished(struct packs *p, const struct writer *w, uint32_t pack)
{
	return w != p->current && !w->dirty && w->bad == 0;
}

static bool writer_is_bad(struct packs *p, const struct writer *w, uint32_t pack)
{
	return w->bad < 0;
}

static bool writer_is_of(struct packs *p, const struct writer *w, uint32_t pack)
{
	return w->pack == pack;
}

int packs_sync(struct packs *p)
{
	struct writer *w;
	int r;

	LOCK_GUARD(&p->sync_lock);
	{
		LOCK_GUARD(&p->write_lock);
		w = p->writers; /* later ones are pushed in front: not our business */
	}
	for (; w; w = w->next) {
		r = writer_sync(p, w);
		if (r < 0)
			return r;
	}
	r = dir_sync(p);
	if (r < 0)
		return r;

	LOCK_GUARD(&p->write_lock);
	writers_close(p, writer_is_finished, 0);
	return 0;
}

unsigned packs_unsynced(struct packs *p)
{
	unsigned n = 0;

	LOCK_GUARD(&p->write_lock);
	for (struct writer *w = p->writers; w; w = w->next)
		n += w->dirty && w->bad == 0;
	return n;
}

uint64_t packs_became_bad(struct packs *p)
{
	LOCK_GUARD(&p->write_lock);
	return p->became_bad;
}

bool packs_any_bad(struct packs *p)
{
	LOCK_GUARD(&p->write_lock);
	for (struct writer *w = p->writers; w; w = w->next) {
		if (w->bad < 0)
			return true;
	}
	return false;
}

bool pack_is_bad(struct packs *p, uint32_t pack)
{
	LOCK_GUARD(&p->write_lock);
	for (struct writer *w = p->writers; w; w = w->next) {
		if (w->pack == pack && w->bad < 0)
			return true;
	}
	return false;
}

void packs_forget_bad(struct packs *p)
{
	LOCK_GUARD(&p->sync_lock);
	LOCK_GUARD(&p->write_lock);
	writers_close(p, writer_is_bad, 0);
}

/* ---- checking and mending ---- */

int pack_check_header(struct packs *p, uint32_t pack)
{
	_cleanup_close_ int fd = -1;
	int r;

	r = pack_open(p->dir_fd, pack, O_RDONLY, &fd);
	if (r < 0)
		return r;
	r = header_check(fd, pack);
	return r == END ? 0 : r;
}

/* Writes bytes that are there already, or should be: what reads them meanwhile sees one or both. */
static int rewrite(struct packs *p, uint32_t pack, const void *bytes, size_t len, uint64_t off)
{
	_cleanup_close_ int fd = -1;
	int r;

	r = pack_open(p->dir_fd, pack, O_RDWR, &fd);
	if (r == 0)
		r = os_pwrite_full(fd, bytes, len, off);
	return r < 0 ? r : os_fdatasync(fd);
}

int pack_mend_header(struct packs *p, uint32_t pack)
{
	struct pack_header_bytes b;

	pack_header_put(&b, pack);
	return rewrite(p, pack, &b, sizeof(b), 0);
}

int pack_mend_record(struct packs *p, uint32_t pack, uint64_t off, const struct record *rec)
{
	struct record_header_bytes b;

	record_header_put(&b, rec);
	return rewrite(p, pack, &b, sizeof(b), off);
}

/* ---- sweeping ---- */

uint32_t packs_begin_new(struct packs *p)
{
	LOCK_GUARD(&p->write_lock);
	p->current = NULL; /* packs_sync closes it */
	p->continue_last = false;
	return p->last < UINT32_MAX ? p->last + 1 : UINT32_MAX; /* else nothing is appended */
}

void pack_retire(struct packs *p, uint32_t pack)
{
	LOCK_GUARD(&p->sync_lock);
	LOCK_GUARD(&p->write_lock);
	writers_close(p, writer_is_of, pack);
}

int pack_punch(struct packs *p, uint32_t pack, uint64_t off, uint64_t len)
{
	_cleanup_close_ int fd = -1;
	int r;

	r = pack_open(p->dir_fd, pack, O_RDWR, &fd);
	return r < 0 ? r : os_punch_hole(fd, off, len);
}

int pack_cut(struct packs *p, uint32_t pack, uint64_t end)
{
	_cleanup_close_ int fd = -1;
	int r;

	r = pack_open(p->dir_fd, pack, O_RDWR, &fd);
	return r < 0 ? r : os_ftruncate(fd, end);
}

int pack_remove(struct packs *p, uint32_t pack)
{
	char file[PACK_NAME_SIZE];
	int r;

	r = os_unlinkat(p->dir_fd, pack_file_name(pack, file), 0);
	if (r < 0 && r != -ENOENT)
		return r;
	pack_was_removed(p->fds, pack);
	return 0;
}

void packs_mark(struct packs *p, uint32_t *ret_pack, uint64_t *ret_end)
{
	LOCK_GUARD(&p->write_lock);
	*ret_pack = p->current ? p->current->pack : 0;
	*ret_end = p->current ? p->current->end : 0;
}

void packs_rewind(struct packs *p, uint32_t pack, uint64_t end)
{
	LOCK_GUARD(&p->write_lock);
	if (!p->current)
		return;
	/* in a pack that was not the current one at the mark, all records of ours came after it */
	if (p->current->pack != pack)
		end = p->current->start;
	if (os_ftruncate(p->current->fd, end) == 0)
		p->current->end = end;
}
