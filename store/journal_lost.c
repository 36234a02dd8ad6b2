/* SPDX-License-Identifier: Apache-2.0 */
#include "store/journal_lost.h"

#include <errno.h>
#include <fcntl.h>

#include "store/base/err.h"
#include "store/base/os.h"
#include "store/base/util.h"
#include "store/journal_internal.h"

int journal_each_lost(struct journal *j,
		      int (*fn)(void *arg, uint64_t lsn, enum journal_kind kind,
				const uint8_t *payload, size_t len),
		      void *arg)
{
	bool all = true;

	for (struct segment *s = j->damaged; s; s = s->next) {
		_cleanup_free_ uint8_t *bytes = NULL;
		size_t at = s == j->damaged ? j->damaged_at : sizeof(struct journal_header_bytes);
		size_t len, span;
		uint64_t lsn, hashed = 0;
		enum journal_kind kind;
		int r;

		r = segment_load(j, s, &bytes);
		if (r < 0)
			return r;
		for (; at + RECORD_HEADER <= s->size; at += span > 0 ? span : 8) {
			const struct journal_record_bytes *b = (const void *)(bytes + at);

			span = 0;
			lsn = get_le64(b->lsn);
			len = get_le32(b->len);
			if (lsn <= MAX(j->read_last, s->base) || lsn > s->limit ||
			    lsn - s->base > at / RECORD_HEADER ||
			    len > s->size - at - RECORD_HEADER)
				continue; /* so many are not before it (J1), so much not behind */
			hashed += len;
			if (hashed > HASHED_MAX * s->size) {
				all = false;
				break;
			}
			span = record_at(s, bytes, at, &lsn, &kind, &len);
			if (span == 0 || kind == JOURNAL_MARK)
				continue;
			r = fn(arg, lsn, kind, bytes + at + RECORD_HEADER, len);
			if (r < 0)
				return r;
		}
	}
	return all ? 0 : -ERR_JOURNAL_DAMAGED;
}

/* What a disk gives or refuses as one, and the largest that many do. */
#define READ_BLOCK ((size_t)4096)

/* *ret_bad: bytes that are zeros instead. */
static int read_what_is_there(int fd, uint8_t *bytes, size_t size, size_t *ret_bad)
{
	*ret_bad = 0;
	for (size_t at = 0, n; at < size; at += n) {
		int r;

		n = MIN(READ_BLOCK, size - at);
		r = os_pread_full(fd, bytes + at, n, at);
		if (r == -EIO) {
			memset(bytes + at, 0, n);
			*ret_bad += n;
		} else if (r != 0) {
			return r < 0 ? r : -EIO;
		}
	}
	return 0;
}

/* Under a name that the next open deletes, first. */
static int write_anew(int dir_fd, const char *name, const uint8_t *bytes, size_t size)
{
	_cleanup_close_ int fd = -1;
	int r;

	r = os_openat(dir_fd, SPARE, O_WRONLY | O_CREAT | O_TRUNC, 0600, &fd);
	if (r == 0)
		r = os_pwrite_full(fd, bytes, size, 0);
	if (r == 0)
		r = os_fdatasync(fd);
	if (r == 0)
		r = os_renameat(dir_fd, SPARE, name);
	return r == 0 ? os_fsync(dir_fd) : r;
}

struct mending {
	int dir_fd;
	const struct noter *noter;
	bool any;
};

static int mend_one(void *arg, const char *name)
{
	struct mending *m = arg;
	_cleanup_free_ uint8_t *bytes = NULL;
	_cleanup_close_ int fd = -1;
	char again[16];
	struct stat st;
	size_t size, bad;
	int r;

	segment_name((uint32_t)strtoul(name, NULL, 16), again);
	if (strcmp(name, again) != 0)
		return 0;
	r = os_openat(m->dir_fd, name, O_RDONLY, 0, &fd);
	if (r == 0)
		r = os_fstat(fd, &st);
	if (r < 0)
		return r;
	size = segment_size(st.st_size);
	bytes = os_malloc(size + 1);
	if (!bytes)
		return -ENOMEM;
	r = read_what_is_there(fd, bytes, size, &bad);
	if (r < 0 || bad == 0)
		return r;
	r = write_anew(m->dir_fd, name, bytes, size);
	if (r < 0)
		return r;
	m->any = true;
	return note(m->noter, 0,
		    "journal segment %s: %zu of its %zu bytes cannot be read and are given up; "
		    "daemon.log says what is lost by that when the store is opened",
		    name, bad, size);
}

int journal_give_up(int dir_fd, const struct noter *noter)
{
	_cleanup_close_ int journal_fd = -1;
	struct mending m = { .noter = noter };
	int r;

	r = os_openat(dir_fd, "journal", O_RDONLY | O_DIRECTORY, 0, &journal_fd);
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	m.dir_fd = journal_fd;
	r = os_each_name(journal_fd, ".", mend_one, &m);
	return r == 0 && m.any ? EXISTS : r;
}
