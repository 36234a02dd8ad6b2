/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A view whose process is killed: what a child leaves in the store and in the memo, and going on
 * with it. memo_setup and memo_teardown are a checked fixture, begin and end what a daemon does.
 */

#include <sys/wait.h>
#include <unistd.h>

#include "fs/memo.h"
#include "tests/unit/view_fixture.h"

static struct memo *first; /* keeps the memo's file */
_unused_ static uint64_t *shared_id; /* what a child tells, in a free value of the memo */
static unsigned epochs, inodes, barriers, expired, unsaid;

/* It may have to wait for others while it tells, so the memo says who that is (G7). */
static void count_unsaid(void)
{
	unsaid += !memo_is_teller(first->fd, gettid());
}

_unused_ static void assert_nobody_tells(void)
{
	for (unsigned i = 0; i < MEMO_TELLERS; i++)
		ck_assert_int_eq(first->head->tellers[i], 0);
}

static int count_entry(void *arg, uint64_t parent, const char *name, size_t len, bool expire)
{
	count_unsaid();
	barriers += name[0] == '/';
	expired += expire;
	return 0;
}

static int count_inode(void *arg, uint64_t node, int64_t off, int64_t len)
{
	inodes++;
	return 0;
}

static int count_epoch(void *arg)
{
	count_unsaid();
	epochs++;
	return 0;
}

static const struct view_kernel kernel = {
	.inval_entry = count_entry, .inval_inode = count_inode, .inc_epoch = count_epoch
};

static struct memo *same_memo(void)
{
	struct memo *m;

	ck_assert_int_eq(memo_open(dup(first->fd), &m), 0);
	return m;
}

static void recovered(void *arg, struct store *s, uint64_t lsn)
{
	memo_recovered(arg, lsn);
}

/* As a daemon that comes, or the first one. */
static void begin(void)
{
	struct memo *m = same_memo();
	const struct store_options options = {
		.commit_ms = COMMIT_INTERVAL_MS, .recovered = recovered, .arg = m
	};

	ck_assert_int_eq(store_open_with(scratch.dir_fd, &options, NULL, &store), 0);
	if (first->head->n_slots == 0) {
		view_make_branch();
		m->head->kept = false;
	}
	ck_assert_int_eq(view_open(store, "main", m, &view), 0);
	snap_drop_loose_ones(store);
	m->head->kept = true;
	view_set_kernel(view, &kernel);
}

static _unused_ void end(void)
{
	view_close(view);
	ck_assert_int_eq(store_close(store), 0);
}

_unused_ static void memo_setup(void)
{
	scratch_make(&scratch);
	ck_ok(store_init(scratch.dir_fd));
	ck_ok(memo_new(&first));
	first->head->has_epoch = true;
	first->head->kept = true; /* or nobody may open it */
}

_unused_ static void memo_teardown(void)
{
	memo_close(first);
	scratch_remove(&scratch);
}

/* Does fn in a process that then is gone as by SIGKILL: nothing is closed. */
_unused_ static void killed_after(void (*fn)(void))
{
	int status;
	pid_t pid = fork();

	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		begin();
		fn();
		_exit(0);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
}

/* ---- requests ---- */

_unused_ static int make(uint64_t dir, const char *name, uint32_t mode, struct entry *ret)
{
	struct fs_new n = { .dir = dir, .name = name, .len = strlen(name), .mode = mode };

	return view_create(view, &n, ret);
}

_unused_ static bool is_there(const char *name)
{
	struct entry e;
	int r = view_lookup(view, ROOT_NODE, name, strlen(name), &e);

	ck_assert(r == 0 || r == -ENOENT);
	if (r == 0)
		view_forget(view, e.node, 1);
	return r == 0;
}

static _unused_ void ask(uint64_t unique, bool again)
{
	memo_request_begin(view_memo(view), unique, again);
}

_unused_ static void put(uint64_t node, uint64_t off, const char *text)
{
	ck_assert_int_eq(view_write(view, node, off, text, strlen(text), false, NULL), 0);
}

_unused_ static void assert_holds(uint64_t node, const char *text)
{
	struct segments s;
	char buf[100] = "";

	ck_assert_int_eq(view_map(view, node, 0, sizeof(buf) - 1, &s), 0);
	ck_assert_int_eq(segments_read(store, &s, (uint8_t *)buf), 0);
	segments_release(&s);
	ck_assert_str_eq(buf, text);
}

_unused_ static uint64_t nodes_known(void)
{
	struct view_stats stats;

	ck_assert_int_eq(view_stat(view, &stats), 0);
	return stats.nodes;
}

_unused_ static void nothing(void)
{
}

_unused_ static uint64_t make_node(uint64_t dir, const char *name, uint32_t mode)
{
	struct entry e;

	ck_assert_int_eq(make(dir, name, mode, &e), 0);
	return e.node;
}

/* From now on each restore is told by epoch, or none is. */
_unused_ static void tell_by_epoch(bool yes)
{
	struct view_kernel k = kernel;

	k.names_max = yes ? 1 : 1000;
	view_set_kernel(view, &k);
}

_unused_ static void restore_to(uint64_t id)
{
	struct restore_info info;

	ck_assert_int_eq(view_restore(view, id, &info), 0);
	view_tidy(view);
	ck_assert_uint_eq(unsaid, 0);
	assert_nobody_tells();
}
