/* SPDX-License-Identifier: Apache-2.0 */

/* Bytes of the stage that a reply is made of as they are: invariant 10 of stage_internal.h. */

#include "store/base/os.h"
#include "store/base/util.h"
#include "store/stage_internal.h"

/* The file will not go before the loan ends. False: it may, or cannot be mapped. */
static bool file_lend(struct stage *s, struct stage_file *file)
{
	LOCK_GUARD(&s->lock);
	if (!s->lsn)
		return false;
	if (!file->map) {
		if (os_map(file->fd, STAGE_FILE_MAX, &file->map) < 0)
			return false;
		/*
		 * With little memory (a container's) little of the file stays in the page cache,
		 * and 4 KiB of it would be read with the disk's whole readahead, 128 KiB or more.
		 */
		os_map_here_and_there(file->map, STAGE_FILE_MAX);
	}
	file->held++;
	return true;
}

const void *stage_lend(struct stage *s, const struct stage_place *p, uint32_t off, size_t len,
		       struct loan *loan)
{
	struct stage_file *file = p->file;
	uint64_t from = (uint64_t)p->off + off;
	struct stat st;
	unsigned i = 0;

	if (behind_settle(s->behind) < 0)
		return NULL;
	while (i < loan->n && loan->files[i] != file)
		i++;
	if (i == loan->n) {
		/* The rest of a last page would be zeros in the map: the size tells a cut file. */
		if (i == LOAN_FILES || os_fstat(file->fd, &st) < 0 || !file_lend(s, file))
			return NULL;
		loan->stage = s;
		loan->files[i] = file;
		loan->ends[i] = MIN((uint64_t)st.st_size, STAGE_FILE_MAX);
		loan->n++;
	}
	if (from + len > loan->ends[i] || os_make_readable((uint8_t *)file->map + from, len) < 0)
		return NULL;
	return (uint8_t *)file->map + from;
}

void loan_end(struct loan *loan)
{
	if (loan->n == 0)
		return;
	LOCK_GUARD(&loan->stage->lock);
	while (loan->n > 0)
		stage_let_go(loan->stage, loan->files[--loan->n]);
}
