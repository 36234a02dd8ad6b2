/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Segments: opening and making them, appending records, making these durable, letting go. FORMAT.md
 * has the bytes, journal_internal.h the invariants.
 *
 * Crash: a file gets its number when it has its size and its header, so one without is damage, or
 * what is left of a segment that no mark had made durable when the power went: either way it is
 * told, and counts as absent. Deletions go from the oldest on.
 */

#include "store/journal_internal.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>

#include "store/base/err.h"
#include "store/base/os.h"
#include "store/base/util.h"
#include "store/boot.h"

/* Only the table's small records may use the last so many bytes of a segment. */
#define KEPT_FOR_TABLE ((size_t)64 << 10)
/*
 * Where there is no room for a whole segment, a piece of one: of this size, some thousand
 * operations, so that the disk's last bytes are left to what may do with less (segment_make).
 */
#define PIECE_BYTES ((size_t)512 << 10)

#define MARK_BYTES (RECORD_OVERHEAD + sizeof(struct journal_mark_bytes))

/*
 * Before records come to a piece of a segment of this size, zeros are written there: the kernel
 * then has its pages as one large folio, which a single fault maps. Both together are 5 to 9 us,
 * while eight pages that the mapping meets one by one are 18 to 27. Larger pieces would gain more,
 * but a folio goes to the disk as a whole with each sync of a few records.
 */
#define WARM_BYTES ((size_t)32 << 10)
static const uint8_t zeros[WARM_BYTES];

/* Of the operation that this thread is in. */
static _Thread_local struct journal_receipt *receipt;

void segment_name(uint32_t number, char buf[static 16])
{
	(void)snprintf(buf, 16, "%08" PRIx32, number);
}

/* ---- bytes ---- */

static void header_put(const struct segment *s, struct journal_header_bytes *b)
{
	*b = (struct journal_header_bytes){ .magic = JOURNAL_MAGIC };
	put_le16(b->version, JOURNAL_VERSION);
	put_le32(b->number, s->number);
	put_le64(b->after, s->after);
	put_le64(b->base, s->base);
	put_le64(b->synced, s->synced);
	memcpy(b->boot, s->boot, BOOT_BYTES);
	put_le64(b->sum, hash64(b, offsetof(struct journal_header_bytes, sum), 0));
}

static bool header_get(const struct journal_header_bytes *b, struct segment *ret)
{
	if (memcmp(b->magic, JOURNAL_MAGIC, sizeof(b->magic)) != 0 ||
	    get_le16(b->version) != JOURNAL_VERSION || get_le32(b->number) != ret->number ||
	    get_le64(b->sum) != hash64(b, offsetof(struct journal_header_bytes, sum), 0))
		return false;
	ret->after = get_le64(b->after);
	ret->base = ret->last = get_le64(b->base);
	ret->synced = get_le64(b->synced);
	ret->seed = get_le64(b->sum);
	memcpy(ret->boot, b->boot, BOOT_BYTES);
	return ret->base >= ret->after;
}

static uint64_t record_sum(const struct segment *s, const struct journal_record_bytes *b,
			   const void *payload, size_t len)
{
	uint64_t head = hash64(b, offsetof(struct journal_record_bytes, sum), 0);

	return hash64(payload, len, s->seed ^ head);
}

size_t record_at(const struct segment *s, const uint8_t *bytes, size_t at, uint64_t *ret_lsn,
		 enum journal_kind *ret_kind, size_t *ret_len)
{
	const struct journal_record_bytes *b = (const void *)(bytes + at);
	size_t len;

	if (at + RECORD_HEADER > s->size) /* `at` may be beyond it: a file cut in a padding */
		return 0;
	len = get_le32(b->len);
	if (len > s->size - at - RECORD_HEADER || b->kind < JOURNAL_CHANGE ||
	    b->kind > JOURNAL_MARK)
		return 0;
	if (get_le64(b->sum) != record_sum(s, b, bytes + at + RECORD_HEADER, len))
		return 0;
	*ret_lsn = get_le64(b->lsn);
	*ret_kind = b->kind;
	*ret_len = len;
	return RECORD_HEADER + PAD8(len);
}

/* ---- open ---- */

/* Tests see many segments in a short time. */
static size_t segment_bytes(void)
{
	const char *text = getenv("PLYFS_TEST_SEGMENT_BYTES");
	unsigned long long n = text ? strtoull(text, NULL, 10) : 0;

	return n >= 2 * KEPT_FOR_TABLE && n < SEGMENT_BYTES ? (size_t)n & ~(size_t)4095 :
							      SEGMENT_BYTES;
}

/* What it held cannot be told: records count only under their segment's header (J2). */
static int header_lost(struct journal *j, const char *name, size_t size)
{
	int r = os_unlinkat(j->dir_fd, name, 0);

	if (r < 0)
		return r;
	return note(&j->noter, 0,
		    "journal segment %s has %zu byte%s and no valid header: operations in it that "
		    "were not committed yet are lost (after a power cut: none that was synced)",
		    name, size, plural(size));
}

static int open_one(void *arg, const char *name)
{
	struct journal *j = arg;
	_cleanup_close_ int fd = -1;
	_cleanup_free_ struct segment *s = NULL;
	struct journal_header_bytes header;
	struct segment **at;
	struct stat st;
	char again[16];
	char *end;
	int r;

	s = os_calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->number = (uint32_t)strtoul(name, &end, 16);
	segment_name(s->number, again);
	if (strcmp(name, again) != 0)
		return 0; /* not ours */
	r = os_openat(j->dir_fd, name, O_RDONLY, 0, &fd);
	if (r == 0)
		r = os_fstat(fd, &st);
	if (r < 0)
		return r;
	j->last_number = MAX(j->last_number, s->number);
	s->size = segment_size(st.st_size);
	r = s->size < sizeof(header) ? END : os_pread_full(fd, &header, sizeof(header), 0);
	if (r < 0)
		return r;
	if (r == END || !header_get(&header, s))
		return header_lost(j, name, s->size);

	s->last = UINT64_MAX; /* until it is read: nobody may take it for covered */
	for (at = &j->oldest; *at && (*at)->number < s->number; at = &(*at)->next)
		;
	s->next = *at;
	*at = s;
	if (!s->next)
		j->newest = s;
	j->bytes += s->size;
	s = NULL;
	return 0;
}

int journal_open(int dir_fd, const struct noter *noter, struct journal **ret)
{
	_cleanup_(journal_closep) struct journal *j = NULL;
	int r;

	j = os_calloc(1, sizeof(*j));
	if (!j)
		return -ENOMEM;
	j->dir_fd = j->fd = -1;
	j->begins = UINT64_MAX;
	if (noter)
		j->noter = *noter;
	pthread_mutex_init(&j->lock, NULL);
	pthread_mutex_init(&j->mark_lock, NULL);

	j->segment_bytes = segment_bytes();
	r = boot_id(j->boot);
	if (r < 0)
		return r;
	r = os_mkdirat(dir_fd, "journal", 0700);
	if (r == 0) /* of an older store: store_init makes and syncs it otherwise */
		r = os_fsync(dir_fd);
	if (r < 0 && r != -EEXIST)
		return r;
	r = os_openat(dir_fd, "journal", O_RDONLY | O_DIRECTORY, 0, &j->dir_fd);
	if (r < 0)
		return r;
	j->in_place = os_overwrites(j->dir_fd) == OS_IN_PLACE;
	r = os_unlinkat(j->dir_fd, SPARE, 0);
	if (r == 0 || r == -ENOENT)
		r = os_unlinkat(j->dir_fd, ANEW, 0);
	if (r < 0 && r != -ENOENT)
		return r;
	r = os_each_name(j->dir_fd, ".", open_one, j);
	if (r < 0)
		return note(&j->noter, r, "opening the journal: %s", err_str(r));
	*ret = TAKE_PTR(j);
	return 0;
}

/* ---- letting go of segments; under the lock, unless said otherwise ---- */

static int segment_delete(struct journal *j, uint32_t number)
{
	char name[16];
	int r;

	segment_name(number, name);
	r = os_unlinkat(j->dir_fd, name, 0);
	return r == -ENOENT ? 0 : r;
}

static void forget_oldest(struct journal *j)
{
	struct segment *s = j->oldest;

	j->oldest = s->next;
	if (!j->oldest)
		j->newest = NULL;
	j->bytes -= s->size;
	j->settled = false;
	free(s);
}

/* Its file becomes the spare one, if that is wanted. */
static bool spare_oldest(struct journal *j)
{
	struct segment *s = j->oldest;
	char name[16];

	segment_name(s->number, name);
	if (j->spare || s->size != j->segment_bytes || os_renameat(j->dir_fd, name, SPARE) < 0)
		return false;
	j->spare = true;
	forget_oldest(j);
	return true;
}

static void segment_finish(struct journal *j)
{
	if (!j->map)
		return;
	os_unmap(j->map, j->newest->size);
	j->map = NULL;
}

static bool is_covered(const struct journal *j, const struct segment *s)
{
	return s && s->last <= j->covered && !(j->map && s == j->newest);
}

/* J9 */
static bool copies_count(const struct journal *j, const struct segment *s)
{
	return s->copied > j->whole_mark && j->covered < j->last;
}

/* Which segment's file is to be deleted next; it is not the open one. */
static bool find_gone(struct journal *j, uint32_t *ret_number)
{
	while (is_covered(j, j->oldest) && !copies_count(j, j->oldest)) {
		*ret_number = j->oldest->number;
		if (!spare_oldest(j))
			return true;
	}
	return false;
}

/*
 * Lock not held, which every change wants: an ext4 with `discard` tells its disk which blocks are
 * free before a file is gone, and a create was seen to wait for 33 ms so. While its file goes the
 * segment is in the list still; nobody else takes it out. One whose file stays stays, and so do all
 * behind it: a gap between files would be damage.
 */
static void let_go(struct journal *j)
{
	for (;;) {
		uint32_t number;

		{
			LOCK_GUARD(&j->lock);
			if (!find_gone(j, &number))
				return;
		}
		if (segment_delete(j, number) < 0)
			return;
		LOCK_GUARD(&j->lock);
		forget_oldest(j);
	}
}

bool journal_release(struct journal *j, uint64_t covered)
{
	{
		LOCK_GUARD(&j->lock);
		j->covered = MAX(j->covered, covered);
		j->synced = MAX(j->synced, j->covered); /* the index is durable */
		if (j->doubt_grows && j->doubt <= j->covered) {
			j->doubt = j->last;
			j->doubt_grows = false;
		}
	}
	let_go(j);

	LOCK_GUARD(&j->lock);
	j->asked_bytes = j->bytes;
	return is_covered(j, j->oldest) && copies_count(j, j->oldest);
}

void journal_copies_in_place(struct journal *j)
{
	LOCK_GUARD(&j->lock);

	j->whole_mark = j->lsn;
}

void journal_close(struct journal *j)
{
	if (!j)
		return;
	segment_finish(j);
	let_go(j);
	if (j->dir_fd >= 0)
		(void)os_unlinkat(j->dir_fd, SPARE, 0); /* the next open does */
	while (j->oldest) {
		struct segment *s = j->oldest;

		j->oldest = s->next;
		free(s);
	}
	closep(&j->fd);
	closep(&j->dir_fd);
	pthread_mutex_destroy(&j->mark_lock);
	pthread_mutex_destroy(&j->lock);
	free(j);
}

/* ---- making segments; under the lock ---- */

static int file_anew(struct journal *j, size_t size, int *ret_fd)
{
	_cleanup_close_ int fd = -1;
	int r;

	r = os_openat(j->dir_fd, ANEW, O_RDWR | O_CREAT | O_TRUNC, 0600, &fd);
	if (r == 0)
		r = os_allocate(fd, size);
	if (r < 0) {
		(void)os_unlinkat(j->dir_fd, ANEW, 0); /* the next open does */
		return r;
	}
	*ret_fd = TAKE_FD(fd);
	return 0;
}

/* A file of the segment's size that is really there, and its name for now. */
static int find_file(struct journal *j, const struct segment *s, const char **ret_name, int *ret_fd)
{
	bool fits = j->spare && s->size == j->segment_bytes;
	int r;

	if (!fits || !j->spare_ready) {
		*ret_name = ANEW;
		r = file_anew(j, s->size, ret_fd);
		if ((r != -ENOSPC && r != -EDQUOT) || !fits)
			return r;
		r = os_fsync(j->dir_fd); /* then a wait is the smaller evil */
		if (r < 0)
			return r;
	}
	*ret_name = SPARE;
	return os_openat(j->dir_fd, SPARE, O_RDWR, 0, ret_fd);
}

/* The file under its number, mapped, with its header. */
static int segment_file(struct journal *j, const struct segment *s,
			const struct journal_header_bytes *header)
{
	const size_t warm = MIN(WARM_BYTES, s->size);
	_cleanup_close_ int fd = -1;
	const char *now;
	char name[16];
	void *map;
	int r;

	r = find_file(j, s, &now, &fd);
	if (r < 0)
		return r;
	r = os_map(fd, s->size, &map);
	if (r < 0)
		return r;
	(void)os_pwrite_full(fd, zeros, warm, 0); /* as warm_up does */
	if (!j->in_place)
		r = os_make_writable(map, sizeof(*header));
	if (r == 0) {
		memcpy(map, header, sizeof(*header));
		segment_name(s->number, name);
		r = os_renameat(j->dir_fd, now, name);
	}
	if (r < 0) {
		os_unmap(map, s->size);
		return r;
	}
	if (strcmp(now, SPARE) == 0)
		j->spare = j->spare_ready = false;
	segment_finish(j);
	closep(&j->fd);
	j->fd = TAKE_FD(fd);
	j->map = map;
	j->warm = warm;
	return 0;
}

/*
 * Records are about to reach `end` of the open segment. For lack of room a failure costs time,
 * nothing else; after another one nobody knows what the file has (J8).
 */
static void warm_up(struct journal *j, const struct segment *s, size_t end)
{
	size_t to = MIN((end + WARM_BYTES - 1) / WARM_BYTES * WARM_BYTES, s->size);
	size_t from = MAX(j->warm, to - MIN(to, WARM_BYTES));
	int r = os_pwrite_full(j->fd, zeros, to - from, from);

	if (r < 0 && r != -ENOSPC && r != -EDQUOT)
		j->torn = true;
	j->warm = to;
}

/* Of its size, or of one that will do. */
static int segment_file_that_fits(struct journal *j, struct segment *s, size_t need, bool small,
				  const struct journal_header_bytes *header)
{
	const size_t pieces[] = { PIECE_BYTES, small ? need : 0 };
	int r = segment_file(j, s, header);

	for (size_t i = 0; (r == -ENOSPC || r == -EDQUOT) && i < ARRAY_SIZE(pieces); i++) {
		if (pieces[i] < need || pieces[i] >= s->size)
			continue;
		s->size = pieces[i];
		r = segment_file(j, s, header);
	}
	return r;
}

/*
 * small: for what may use KEPT_FOR_TABLE. By it a full disk can be emptied, and a new daemon has no
 * segment with such a rest: so a piece of that size will do.
 */
static int segment_make(struct journal *j, size_t room, bool small)
{
	_cleanup_free_ struct segment *s = NULL;
	size_t need = sizeof(struct journal_header_bytes) + room + KEPT_FOR_TABLE + MARK_BYTES;
	struct journal_header_bytes header;
	int r;

	s = os_calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->number = j->last_number + 1;
	s->size = (need + j->segment_bytes - 1) / j->segment_bytes * j->segment_bytes;
	s->used = sizeof(header);
	s->base = s->last = j->lsn;
	s->after = j->fresh ? j->read_last : s->base;
	s->synced = j->synced;
	memcpy(s->boot, j->boot, BOOT_BYTES);
	if (j->bytes + s->size > JOURNAL_LIMIT)
		return -ENOSPC;
	header_put(s, &header);
	s->seed = get_le64(header.sum);
	r = segment_file_that_fits(j, s, need, small, &header);
	if (r < 0)
		return r;

	j->last_number = s->number;
	j->fresh = false;
	j->settled = false;
	j->bytes += s->size;
	if (j->bytes >= j->asked_bytes + JOURNAL_WANTS_ROUND) {
		j->asked_bytes = j->bytes;
		j->wants_round = true;
	}
	if (j->newest)
		j->newest->next = s;
	else
		j->oldest = s;
	j->newest = s;
	s = NULL;
	return 0;
}

/* ---- appending ---- */

/*
 * A former daemon's last segment gives back what it has behind its last record, as nobody will
 * write there (J3): on a disk that others have filled it is the room for a segment of our own.
 */
static void cut_newest(struct journal *j)
{
	struct segment *s = j->newest;
	_cleanup_close_ int fd = -1;
	char name[16];

	if (!s || j->damaged || s->used == 0 || s->used >= s->size)
		return;
	segment_name(s->number, name);
	if (os_openat(j->dir_fd, name, O_WRONLY, 0, &fd) < 0 || os_ftruncate(fd, s->used) < 0)
		return; /* it stays as it is */
	j->bytes -= s->size - s->used;
	s->size = s->used;
}

void journal_start(struct journal *j, uint64_t floor)
{
	LOCK_GUARD(&j->lock);

	cut_newest(j);
	j->last = MAX(j->lsn, floor);
	j->lsn = j->last;
	j->fresh = true;
}

/*
 * Under the lock: what comes next, len bytes, will meet no full disk (J4). Only what the kernel
 * writes to the disk in the microseconds before they come would be asked for room once more.
 */
static int make_writable(struct journal *j, size_t len)
{
	const struct segment *s = j->newest;

	return j->in_place ? 0 : os_make_writable(j->map + s->used, MIN(len, s->size - s->used));
}

int journal_reserve(struct journal *j, size_t bytes, bool small)
{
	LOCK_GUARD(&j->lock);
	size_t want = j->reserved + bytes, kept = small ? 0 : KEPT_FOR_TABLE;
	int r = 0;

	if (!j->map || j->newest->used + want + kept > j->newest->size)
		r = segment_make(j, want, small);
	if (r == 0)
		r = make_writable(j, want);
	if (r == 0)
		j->reserved = want;
	return r;
}

void journal_unreserve(struct journal *j, size_t bytes)
{
	LOCK_GUARD(&j->lock);

	j->reserved -= bytes;
}

/* Under the lock; there is room. */
static uint64_t append(struct journal *j, enum journal_kind kind, const void *payload, size_t len,
		       void (*fill)(void *arg), void *arg)
{
	struct segment *s = j->newest;
	struct journal_record_bytes *b = (void *)(j->map + s->used);
	size_t end = s->used + RECORD_HEADER + PAD8(len);
	uint64_t lsn = j->lsn + 1;

	assert(j->map && end <= s->size);
	if (end > j->warm)
		warm_up(j, s, end);
	j->lsn = lsn;
	if (fill) { /* it looks at what may change, and must do so later: blob.c, rule 5 */
		atomic_store(&j->last, lsn);
		fill(arg);
	} else if (kind != JOURNAL_MARK) {
		atomic_store_explicit(&j->last, lsn, memory_order_release);
	}
	/* In whole words, as the hash reads them: it need not wait until they are in the cache. */
	put_le64(b, (uint64_t)kind << 32 | len);
	put_le64(b->lsn, lsn);
	put_le64(b->sum, record_sum(s, b, payload, len));
	memcpy(b + 1, payload, len);
	s->used = end;
	s->last = lsn;
	return lsn;
}

void journal_receipt_wanted(struct journal_receipt *r)
{
	receipt = r;
}

void journal_receipt_id(uint64_t id)
{
	if (receipt)
		atomic_store(&receipt->id, id);
}

uint64_t journal_append(struct journal *j, enum journal_kind kind, const void *payload, size_t len,
			size_t reserved, void (*fill)(void *arg), void *arg,
			_Atomic uint64_t *last)
{
	LOCK_GUARD(&j->lock);
	uint64_t lsn;

	assert(reserved >= len + RECORD_OVERHEAD);
	if (receipt) /* only its order among this thread's stores matters: memo.h, K1 */
		atomic_store_explicit(&TAKE_PTR(receipt)->lsn, j->lsn + 1, memory_order_release);
	lsn = append(j, kind, payload, len, fill, arg);
	j->reserved -= reserved;
	if (last)
		atomic_store_explicit(last, lsn, memory_order_release);
	return lsn;
}

uint64_t journal_lsn(struct journal *j)
{
	LOCK_GUARD(&j->lock);

	return j->lsn;
}

const _Atomic uint64_t *journal_last_peek(struct journal *j)
{
	return &j->last;
}

uint64_t journal_bytes(struct journal *j)
{
	return atomic_load_explicit(&j->bytes, memory_order_relaxed);
}

bool journal_wants_round(struct journal *j)
{
	return atomic_load_explicit(&j->wants_round, memory_order_relaxed) &&
	       atomic_exchange(&j->wants_round, false);
}

/* ---- group commits ---- */

uint64_t journal_synced(struct journal *j)
{
	return j->synced;
}

/* Segments that were finished since the last mark have records that are not synced. */
static int sync_finished(struct journal *j, uint32_t from, uint32_t to)
{
	for (uint32_t number = from; number < to; number++) {
		_cleanup_close_ int fd = -1;
		char name[16];
		int r;

		segment_name(number, name);
		r = os_openat(j->dir_fd, name, O_RDWR, 0, &fd);
		if (r == -ENOENT)
			continue; /* covered and gone */
		if (r == 0)
			r = os_fdatasync(fd);
		if (r < 0)
			return r;
	}
	return 0;
}

/* Under the lock. AGAIN: what comes before the newest segment is to be synced first (J7). */
static int append_mark(struct journal *j, uint64_t *lsn, struct journal_mark_bytes *copy,
		       size_t copied, uint64_t *ret_number, int *ret_fd)
{
	struct journal_mark_bytes whole, *mark = copy ? copy : &whole;
	size_t len = copy ? sizeof(*copy) + copied : sizeof(whole.lsn);
	int r;

	if (!j->map || j->newest->used + j->reserved + MARK_BYTES + copied > j->newest->size) {
		r = segment_make(j, j->reserved + copied, true);
		if (r < 0)
			return r;
	}
	if (!j->settled)
		return AGAIN;
	r = make_writable(j, j->reserved + MARK_BYTES + copied);
	if (r < 0)
		return r;
	*ret_fd = fcntl(j->fd, F_DUPFD_CLOEXEC, 0);
	if (*ret_fd < 0)
		return -errno;
	put_le64(mark->lsn, *lsn);
	*ret_number = append(j, JOURNAL_MARK, mark, len, NULL, NULL);
	if (*ret_number == *lsn + 1)
		*lsn += 1; /* nothing came between: the mark is as durable as what it marks */
	if (copy)
		j->newest->copied = *ret_number;
	return 0;
}

/* Finished segments become durable, and which there are. */
static int settle(struct journal *j)
{
	uint32_t from, to;
	int r;

	{
		LOCK_GUARD(&j->lock);
		from = MAX(j->whole, j->oldest->number);
		to = j->newest->number;
		j->settled = true; /* unless one comes or goes meanwhile */
	}
	r = sync_finished(j, from, to);
	if (r == 0)
		r = os_fsync(j->dir_fd);

	LOCK_GUARD(&j->lock);
	if (r < 0) {
		j->settled = false;
		return r;
	}
	j->whole = to;
	j->spare_ready = j->spare && j->settled;
	return 0;
}

/* Under the lock: keeps J8. */
static int leave_torn(struct journal *j)
{
	int r;

	if (j->torn) {
		r = segment_make(j, j->reserved, true);
		if (r < 0)
			return r;
		j->doubt = j->lsn;
		j->doubt_grows = true;
		j->sound = j->newest->number;
		j->torn = false;
	}
	if (j->sound > 0 && j->oldest->number < j->sound)
		return -EIO;
	return j->doubt > j->covered ? -EIO : 0;
}

void journal_sync_failed(struct journal *j)
{
	LOCK_GUARD(&j->lock);

	j->torn = true;
}

int journal_mark(struct journal *j, uint64_t lsn, struct journal_mark_bytes *copy, size_t len)
{
	LOCK_GUARD(&j->mark_lock);
	_cleanup_close_ int fd = -1;
	uint64_t number = 0;
	int r;

	for (;;) {
		{
			LOCK_GUARD(&j->lock);
			r = leave_torn(j);
			if (r == 0)
				r = append_mark(j, &lsn, copy, len, &number, &fd);
		}
		if (r < 0)
			return r;
		if (r == 0)
			break;
		r = settle(j);
		if (r < 0) {
			journal_sync_failed(j);
			return r;
		}
	}
	r = os_fdatasync(fd);
	if (r < 0) {
		journal_sync_failed(j);
		return r;
	}

	LOCK_GUARD(&j->lock);
	if (j->torn) /* a write failed meanwhile, perhaps before this sync */
		return -EIO;
	j->synced = MAX(j->synced, lsn);
	if (!copy)
		j->whole_mark = number;
	return 0;
}
