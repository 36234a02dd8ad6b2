/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * For tests of the sealer's rounds: what waits for one, what one cannot read, what is done while it
 * is under way.
 */

#include <stdatomic.h>
#include <sys/syscall.h>

#include "store/base/fault.h"
#include "store/store_internal.h"
#include "tests/unit/store_fixture.h"

/* Nothing waits, so no round follows. */
_unused_ static void expect_nothing_to_do(void)
{
	LOCK_GUARD(&store->table);

	ck_assert_uint_eq(store->work_ns, 0);
	ck_assert_uint_eq(atomic_load(&store->retry_ns), 0);
	ck_assert(!store->urgent);
	ck_assert(link_alone(&store->queue) && link_alone(&store->rewrite));
	ck_assert(link_alone(&store->doomed) && link_alone(&store->doomed_branches));
	for (size_t i = 0; i < store->entry_count; i++)
		ck_assert(!store->entries[i]->dirty);
}

/* What the branch is now is in the index. */
_unused_ static void expect_saved(const struct branch *b)
{
	LOCK_GUARD(&store->table);

	ck_assert(!b->entry->dirty);
	ck_assert_uint_eq(b->entry->committed.changes, b->changes);
	ck_assert(link_alone(&store->queue));
}

/* A blob whose bytes the disk cannot read. */
_unused_ static void put_unreadable(struct tree *t, uint64_t a)
{
	_cleanup_(blob_unrefp) struct blob *blob = NULL;
	const struct key key = key_at(a);
	uint8_t bytes[8000]; /* some sectors */
	uint32_t number, off;
	char path[40];
	struct stat st;

	scratch_fill(bytes, sizeof(bytes), a);
	ck_ok(blob_new(store_stage(store), bytes, sizeof(bytes), &blob));
	const struct val v = { .data = "b", .len = 1, .ref = { .kind = REF_BLOB, .blob = blob } };
	ck_ok(tree_put(t, &key, &v));
	blob_place(blob, &number, &off);
	(void)snprintf(path, sizeof(path), "stage/%08x", number);
	ck_ok(os_statat(scratch.dir_fd, path, &st));
	fault_bad_sector(st.st_ino, off + 100, 512);
}

_unused_ static void change_unreadable(struct branch *b, uint64_t a)
{
	BRANCH_CHANGE_GUARD(b);
	put_unreadable(b->tree, a);
	b->changes++;
}

_unused_ static int snap_record_at(uint64_t id, struct snap_record *ret)
{
	_cleanup_free_ void *value = NULL;
	uint8_t key[SNAP_KEY_BYTES];
	size_t len;
	int r;

	snap_key_encode(id, key);
	r = index_get(store->index, INDEX_SNAPS, key, sizeof(key), &value, &len);
	return r == 0 ? snap_record_decode(value, len, ret) : r;
}

_unused_ static struct branch_record branch_record_of(const char *name)
{
	_cleanup_free_ void *value = NULL;
	struct branch_record rec;
	size_t len;

	ck_ok(index_get(store->index, INDEX_BRANCHES, name, strlen(name), &value, &len));
	ck_ok(branch_record_decode(value, len, &rec));
	return rec;
}

/*
 * Called once, by a round that has taken what it seals: when it writes to a pack (it seals) and
 * when it syncs one (it is about to commit).
 */
static void (*_Atomic at_write)(void);
static void (*_Atomic at_sync)(void);
static struct branch *at_branch;

static void call_at(int fd, void (*_Atomic *at)(void))
{
	char link[40], target[4096] = "";
	void (*fn)(void);

	(void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	if (!atomic_load(at) || readlink(link, target, sizeof(target) - 1) < 0 ||
	    !strstr(target, ".pack"))
		return;
	fn = atomic_exchange(at, NULL);
	if (fn)
		fn();
}

int fdatasync(int fd) /* stands for libc's */
{
	call_at(fd, &at_sync);
	return (int)syscall(SYS_fdatasync, fd);
}

ssize_t pwrite(int fd, const void *bytes, size_t len, off_t off) /* likewise */
{
	call_at(fd, &at_write);
	return syscall(SYS_pwrite64, fd, bytes, len, off);
}
