/* SPDX-License-Identifier: Apache-2.0 */

/* The stage, made durable: files are synced, or what is new and little is copied to the journal. */

#include "store/stage_internal.h"

#include "store/base/err.h"
#include "store/base/os.h"
#include "store/base/util.h"
#include "store/format.h"

/*
 * So much that is new goes into the journal's mark, and spares an fsync the stage's sync: what
 * SQLite or git write between two (4 to 30 KiB), with room to spare. It is written twice by that,
 * and the sealer is asked for a round each 24 MiB of journal: after 400 such marks at the earliest.
 */
#define COPY_MAX ((uint64_t)64 << 10)

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
		file->held++;
		file->dirty = false;
	}
	r = os_fdatasync(file->fd);

	LOCK_GUARD(&s->lock);
	if (r < 0)
		file->dirty = true;
	stage_let_go(s, file);
	return r;
}

int stage_sync(struct stage *s)
{
	bool names;
	int r = behind_settle(s->behind);

	if (r < 0)
		return r;
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

/* Lock held: the only file with bytes that are not durable. False: there are several. */
static bool find_undurable(struct stage *s, struct stage_file **ret)
{
	*ret = NULL;
	for (struct stage_file *file = s->files; file; file = file->next) {
		if (file->durable >= file->end)
			continue;
		if (*ret)
			return false;
		*ret = file;
	}
	return true;
}

struct journal_mark_bytes *stage_copy(struct stage *s, size_t *ret_len)
{
	_cleanup_free_ struct journal_mark_bytes *copy = NULL;
	struct stage_file *file;
	uint64_t len;
	int r = behind_settle(s->behind);

	if (r < 0)
		return NULL;
	{
		LOCK_GUARD(&s->lock);
		if (s->names_dirty || !find_undurable(s, &file))
			return NULL;
		len = file ? file->end - file->durable : 0;
		copy = len <= COPY_MAX ? os_calloc(1, sizeof(*copy) + len) : NULL;
		if (!copy)
			return NULL;
		if (file) {
			put_le32(copy->file, file->number);
			put_le32(copy->place, (uint32_t)file->durable);
			file->held++;
		}
	}
	if (file) {
		r = os_pread_full(file->fd, copy->bytes, len, get_le32(copy->place));

		LOCK_GUARD(&s->lock);
		stage_let_go(s, file);
	}
	if (r != 0) /* perhaps END: who writes there has only begun */
		return NULL;
	*ret_len = len;
	return TAKE_PTR(copy);
}

void stage_is_durable(struct stage *s)
{
	LOCK_GUARD(&s->lock);

	for (struct stage_file *file = s->files; file; file = file->next)
		file->durable = file->begun;
}
