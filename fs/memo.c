/* SPDX-License-Identifier: Apache-2.0 */

/* What a view knows beyond its process; see memo.h. */

#include "fs/memo.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/view.h"
#include "store/base/err.h"
#include "store/base/os.h"
#include "store/base/util.h"

#define MAGIC "plymemo"

#define RECEIPTS_AT ((size_t)4096)
#define NODES_AT (RECEIPTS_AT + MEMO_RECEIPTS * sizeof(struct memo_receipt))
/* Pages that were never touched take no memory, in the file or here. */
#define OPENED_AT (NODES_AT + MEMO_NODES_MAX * sizeof(struct memo_node))
#define MEMO_BYTES (OPENED_AT + MEMO_NODES_MAX * sizeof(uint64_t))

_Static_assert(sizeof(struct memo_head) <= RECEIPTS_AT, "the head has its room");
_Static_assert(NODES_AT % 8 == 0, "aligned");

/*
 * Only the order of this thread's own stores matters (K1), and that they are made; so no fences,
 * which would cost each request some of its microseconds.
 */
#define put(at, value) atomic_store_explicit(at, value, memory_order_release)
#define get(at) atomic_load_explicit(at, memory_order_acquire)

/* The request that this thread handles. */
static _Thread_local struct {
	struct memo_receipt *receipt;
	bool done;
} request;

static _Thread_local unsigned last_receipt; /* where to look first */
static _Thread_local _Atomic int32_t *teller; /* where this thread says that it tells; or NULL */

static int map(struct memo *m)
{
	uint8_t *p = mmap(NULL, MEMO_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
			  m->fd, 0);

	if (p == MAP_FAILED)
		return -errno;
	m->head = (void *)p;
	m->receipts = (void *)(p + RECEIPTS_AT);
	m->nodes = (void *)(p + NODES_AT);
	m->opened = (void *)(p + OPENED_AT);
	return 0;
}

static int memo_make(int fd, struct memo **ret)
{
	_cleanup_close_ int file = fd;
	struct memo *m = os_calloc(1, sizeof(*m));

	if (!m)
		return -ENOMEM;
	m->fd = TAKE_FD(file);
	*ret = m;
	return 0;
}

int memo_new(struct memo **ret)
{
	_cleanup_(memo_closep) struct memo *m = NULL;
	_cleanup_close_ int fd = memfd_create("plyfs-view", MFD_CLOEXEC);
	int r;

	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)MEMO_BYTES) < 0)
		return -errno;
	r = memo_make(TAKE_FD(fd), &m);
	if (r == 0)
		r = map(m);
	if (r < 0)
		return r;
	memcpy(m->head->magic, MAGIC, sizeof(m->head->magic));
	m->head->version = MEMO_VERSION;
	*ret = TAKE_PTR(m);
	return 0;
}

/* No process has as many threads; claim would wait for ever. */
static bool all_taken(const struct memo *m)
{
	for (unsigned i = 0; i < MEMO_RECEIPTS; i++)
		if (!atomic_load(&m->receipts[i].unique))
			return false;
	return true;
}

int memo_open(int fd, struct memo **ret)
{
	_cleanup_(memo_closep) struct memo *m = NULL;
	struct stat st;
	int r;

	r = memo_make(fd, &m);
	if (r < 0)
		return r;
	if (fstat(fd, &st) < 0)
		return -errno;
	if ((uint64_t)st.st_size != MEMO_BYTES)
		return -ERR_MEMO;
	r = map(m);
	if (r < 0)
		return r;
	if (memcmp(m->head->magic, MAGIC, sizeof(m->head->magic)) != 0 ||
	    m->head->version != MEMO_VERSION || !m->head->kept || !m->head->has_epoch ||
	    m->head->init_len > MEMO_INIT_MAX || m->head->n_slots > MEMO_NODES_MAX ||
	    /* each of them was written, or it would be read as one that takes no memory yet */
	    (uint64_t)st.st_blocks * 512 < m->head->n_slots * sizeof(struct memo_node) ||
	    all_taken(m))
		return -ERR_MEMO;
	for (unsigned i = 0; i < MEMO_TELLERS; i++)
		atomic_store(&m->head->tellers[i], 0); /* of a former process: they do no more */
	*ret = TAKE_PTR(m);
	return 0;
}

void memo_close(struct memo *m)
{
	if (!m)
		return;
	if (m->head)
		munmap(m->head, MEMO_BYTES);
	closep(&m->fd);
	free(m);
}

static struct memo_receipt *find(struct memo *m, uint64_t unique)
{
	for (unsigned i = 0; unique && m->any_stale && i < MEMO_RECEIPTS; i++)
		if (atomic_load(&m->receipts[i].unique) == unique)
			return &m->receipts[i];
	return NULL;
}

void memo_restored(struct memo_receipt *r, const struct memo_switch *restored, uint64_t lsn)
{
	if (!r)
		return;
	r->restored = *restored;
	atomic_store(&r->what, MEMO_RESTORE);
	atomic_store(&r->journal.lsn, lsn);
}

void memo_recovered(struct memo *m, uint64_t lsn)
{
	struct memo_head *h = m->head;
	uint64_t done = atomic_load(&h->switch_journal.lsn);
	uint64_t left = atomic_load(&h->switch_journal.id);

	for (unsigned i = 0; i < MEMO_RECEIPTS; i++) {
		struct memo_receipt *r = &m->receipts[i];

		if (!atomic_load(&r->unique))
			continue;
		if (atomic_load(&r->journal.lsn) > lsn)
			atomic_store(&r->journal.lsn, 0);
		atomic_store(&r->stale, true);
		m->any_stale = true;
	}
	if (atomic_load(&h->switch_state) == MEMO_PREPARED)
		atomic_store(&h->switch_state, done && done <= lsn ? MEMO_DONE : MEMO_NO_SWITCH);
	/* As branch_restore_locked: who restores the state he is in can undo as before. */
	if (atomic_load(&h->switch_state) == MEMO_DONE && left && left != h->switched.target &&
	    (h->switched.changed || h->switched.mode == RESTORE_EPOCH)) /* restore_found_nothing */
		h->switched.left = left;
	if (atomic_load(&h->switch_state) != MEMO_NO_SWITCH)
		memo_restored(find(m, atomic_load(&h->switch_unique)), &h->switched, done);
}

void memo_tells(struct memo *m, bool begins)
{
	if (!begins && teller)
		atomic_store(TAKE_PTR(teller), 0);
	for (unsigned i = 0; m && begins && i < MEMO_TELLERS; i++) {
		int32_t none = 0;

		if (!atomic_compare_exchange_strong(&m->head->tellers[i], &none, gettid()))
			continue;
		teller = &m->head->tellers[i];
		return;
	}
}

bool memo_is_teller(int fd, int32_t tid)
{
	int32_t tellers[MEMO_TELLERS];

	if (pread(fd, tellers, sizeof(tellers), offsetof(struct memo_head, tellers)) !=
	    sizeof(tellers))
		return false;
	for (unsigned i = 0; i < MEMO_TELLERS; i++)
		if (tellers[i] == tid)
			return true;
	return false;
}

/* ---- requests ---- */

static struct memo_receipt *claim(struct memo *m, uint64_t unique)
{
	for (unsigned n = 0;; n++) {
		unsigned i = (last_receipt + n) % MEMO_RECEIPTS;
		uint64_t none = 0;

		if (atomic_compare_exchange_strong(&m->receipts[i].unique, &none, unique)) {
			last_receipt = i;
			return &m->receipts[i];
		}
		if (n % MEMO_RECEIPTS == MEMO_RECEIPTS - 1)
			(void)sched_yield(); /* those who have them wait for nothing of ours */
	}
}

static void give_back(struct memo_receipt *r)
{
	put(&r->journal.lsn, 0); /* first: whoever takes it finds nothing done */
	put(&r->journal.id, 0);
	put(&r->what, MEMO_NOTHING);
	put(&r->stale, false);
	put(&r->unique, 0);
}

void memo_request_begin(struct memo *m, uint64_t unique, bool resent)
{
	struct memo_receipt *r;

	if (!m)
		return;
	r = resent ? find(m, unique) : NULL;
	if (r)
		put(&r->stale, false);
	else
		r = claim(m, unique);
	request.receipt = r;
	request.done = get(&r->what) == MEMO_BEGUN || (get(&r->journal.lsn) && get(&r->what));
	if (!request.done) /* from before, when it was not done */
		put(&r->what, MEMO_NOTHING);
}

void memo_request_end(void)
{
	if (request.receipt)
		give_back(TAKE_PTR(request.receipt));
	request.done = false;
}

void memo_request_is_new(struct memo *m)
{
	if (!m || !m->any_stale)
		return;
	m->any_stale = false;
	for (unsigned i = 0; i < MEMO_RECEIPTS; i++)
		if (get(&m->receipts[i].stale))
			give_back(&m->receipts[i]);
}

bool memo_was_done(enum memo_what what, uint64_t *ret_value)
{
	if (!request.done || get(&request.receipt->what) != what)
		return false;
	if (ret_value)
		*ret_value = get(&request.receipt->value);
	return true;
}

void memo_expect(void)
{
	if (request.receipt && get(&request.receipt->what) == MEMO_NOTHING)
		journal_receipt_wanted(&request.receipt->journal);
}

void memo_expect_end(void *unused)
{
	journal_receipt_wanted(NULL);
}

void memo_did(enum memo_what what, uint64_t value)
{
	struct memo_receipt *r = request.receipt;

	if (!r || get(&r->what) != MEMO_NOTHING) /* also when it was done before */
		return;
	put(&r->value, value);
	put(&r->what, what);
}

bool memo_begins(void)
{
	if (memo_was_done(MEMO_BEGUN, NULL))
		return false;
	memo_did(MEMO_BEGUN, 0);
	return true;
}

struct memo_receipt *memo_receipt(void)
{
	return request.receipt;
}
