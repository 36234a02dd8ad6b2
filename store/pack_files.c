/* SPDX-License-Identifier: Apache-2.0 */
#include "store/pack_files.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>

#include "store/base/err.h"
#include "store/base/os.h"
#include "store/base/util.h"

/*
 * Open packs for reading: 64 cover 16 GiB of data at hand. Looking through them costs 30 ns against
 * the microsecond of the read; descriptors stay far below the usual limit of 1024.
 */
#define FDS_MAX 64

struct pack_fd {
	uint32_t pack; /* 0: free slot */
	int fd;
	unsigned users;
	uint64_t used; /* time of last use, in looks */
	bool removed;  /* the file is unlinked: close when the last user leaves */
};

struct pack_fds {
	int dir_fd; /* immutable, borrowed */
	pthread_mutex_t lock; /* every reader of an uncached chunk wants it */
	struct pack_fd slots[FDS_MAX]; /* under lock */
	uint64_t looks;                /* under lock */
};

const char *pack_file_name(uint32_t pack, char buf[static PACK_NAME_SIZE])
{
	(void)snprintf(buf, PACK_NAME_SIZE, "%08" PRIx32 ".pack", pack);
	return buf;
}

uint32_t pack_number(const char *file)
{
	char back[PACK_NAME_SIZE];
	unsigned long n = strtoul(file, NULL, 16);

	if (n < 1 || n > UINT32_MAX)
		return 0;
	return strcmp(pack_file_name((uint32_t)n, back), file) == 0 ? (uint32_t)n : 0;
}

int pack_open(int dir_fd, uint32_t pack, int flags, int *ret_fd)
{
	char file[PACK_NAME_SIZE];
	int r;

	r = os_openat(dir_fd, pack_file_name(pack, file), flags | O_NOFOLLOW, 0, ret_fd);
	return r == -ENOENT ? -ERR_PACK_MISSING : r;
}

int pack_fds_new(int dir_fd, struct pack_fds **ret)
{
	struct pack_fds *t = os_calloc(1, sizeof(*t));

	if (!t)
		return -ENOMEM;
	t->dir_fd = dir_fd;
	for (unsigned i = 0; i < FDS_MAX; i++)
		t->slots[i].fd = -1;
	pthread_mutex_init(&t->lock, NULL);
	*ret = t;
	return 0;
}

void pack_fds_free(struct pack_fds *t)
{
	if (!t)
		return;
	for (unsigned i = 0; i < FDS_MAX; i++)
		closep(&t->slots[i].fd);
	pthread_mutex_destroy(&t->lock);
	free(t);
}

/*
 * Under the lock: used once less. What is to be closed then, without it, which every reader
 * wants: a removed pack's room goes back to the disk with its last descriptor, and that may wait.
 */
static int slot_let_go(struct pack_fd *slot)
{
	int fd = slot->fd;

	if (--slot->users > 0 || !slot->removed)
		return -1;
	*slot = (struct pack_fd){ .fd = -1 };
	return fd;
}

void pack_use_endp(struct pack_use *u)
{
	_cleanup_close_ int fd = -1;

	if (!u->slot) {
		closep(&u->fd);
		return;
	}
	LOCK_GUARD(&u->t->lock);
	fd = slot_let_go(u->slot);
}

/* Under the lock: the slot that has this pack, counted as used. */
static struct pack_fd *slot_find(struct pack_fds *t, uint32_t pack)
{
	for (unsigned i = 0; i < FDS_MAX; i++) {
		struct pack_fd *slot = &t->slots[i];

		if (slot->pack == pack && !slot->removed) {
			slot->users++;
			slot->used = ++t->looks;
			return slot;
		}
	}
	return NULL;
}

/*
 * Under the lock: a free slot, if need be by closing the one unused for longest, whose pack is
 * there; NULL if none.
 */
static struct pack_fd *slot_make(struct pack_fds *t)
{
	struct pack_fd *oldest = NULL;

	for (unsigned i = 0; i < FDS_MAX; i++) {
		struct pack_fd *slot = &t->slots[i];

		if (slot->pack == 0)
			return slot;
		if (slot->users == 0 && (!oldest || slot->used < oldest->used))
			oldest = slot;
	}
	if (oldest)
		closep(&oldest->fd);
	return oldest;
}

int pack_use(struct pack_fds *t, uint32_t pack, void (*before_wait)(void), struct pack_use *ret)
{
	_cleanup_close_ int fd = -1;
	struct pack_fd *slot;
	struct stat st;
	bool named;
	int r;

	{
		LOCK_GUARD(&t->lock);
		slot = slot_find(t, pack);
		if (slot) {
			*ret = (struct pack_use){ .t = t, .slot = slot, .fd = slot->fd };
			return 0;
		}
	}

	if (before_wait)
		before_wait();
	r = pack_open(t->dir_fd, pack, O_RDONLY, &fd); /* may wait: not under the lock */
	if (r < 0)
		return r;

	LOCK_GUARD(&t->lock);
	slot = slot_find(t, pack); /* another thread was as quick */
	if (!slot) {
		/* else it was unlinked meanwhile, and pack_was_removed() found no slot to close */
		named = os_fstat(fd, &st) == 0 && st.st_nlink > 0;
		slot = named ? slot_make(t) : NULL;
		if (!slot) {
			*ret = (struct pack_use){ .t = t, .fd = TAKE_FD(fd), .waited = true };
			return 0;
		}
		*slot = (struct pack_fd){ .pack = pack, .fd = TAKE_FD(fd), .users = 1,
					  .used = ++t->looks };
	}
	*ret = (struct pack_use){ .t = t, .slot = slot, .fd = slot->fd, .waited = true };
	return 0;
}

void pack_was_removed(struct pack_fds *t, uint32_t pack)
{
	_cleanup_close_ int fd = -1;
	struct pack_fd *slot;

	LOCK_GUARD(&t->lock);
	slot = slot_find(t, pack);
	if (slot) {
		slot->removed = true;
		fd = slot_let_go(slot);
	}
}
