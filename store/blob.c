/* SPDX-License-Identifier: Apache-2.0 */

/* Blobs: making, growing, reading and sealing them. The invariants are in stage_internal.h. */

#include "store/blob.h"

#include <errno.h>
#include <inttypes.h>

#include "store/base/err.h"
#include "store/base/os.h"
#include "store/base/util.h"
#include "store/chunk.h"
#include "store/stage_internal.h"

#define FIRST_ADOPTED 256

enum blob_state { OPEN, SEALING, SEALED };

struct blob {
	struct stage *stage; /* immutable */
	struct stage_place at; /* immutable; but its file: under the lock, NULL once sealed */
	_Atomic uint32_t refs;
	_Atomic uint32_t len;
	_Atomic uint32_t state; /* enum blob_state; written under the blob's lock */
	struct name name;    /* set before state becomes SEALED */
};
_Static_assert(sizeof(struct blob) <= 64, "there may be millions");

static pthread_rwlock_t *blob_lock(const struct blob *b)
{
	/* malloc aligns to 16 bytes and a blob takes 64: mix the bits above */
	return &b->stage->locks[(((uintptr_t)b >> 4) ^ ((uintptr_t)b >> 10)) % STAGE_LOCKS];
}

/* ---- making and dropping ---- */

/* Gives the stage space of an unsealed blob back. */
static void unplace(struct blob *b, uint32_t len)
{
	const struct stage_place at = b->at;

	b->at.file = NULL;
	stage_drop(b->stage, &at, len);
}

int blob_new(struct stage *s, const void *data, size_t len, struct blob **ret)
{
	_cleanup_free_ struct blob *b = NULL;
	int r;

	if (len < 1 || len > BLOB_MAX)
		return -EINVAL;
	b = os_calloc(1, sizeof(*b));
	if (!b)
		return -ENOMEM;
	b->stage = s;
	atomic_init(&b->refs, 1);
	atomic_init(&b->len, (uint32_t)len);
	atomic_init(&b->state, OPEN);

	r = stage_take(s, b, (uint32_t)len, &b->at);
	if (r < 0)
		return r;
	r = stage_write(s, &b->at, 0, data, len, false);
	if (r < 0) {
		unplace(b, (uint32_t)len);
		return r;
	}
	*ret = TAKE_PTR(b);
	return 0;
}

/* ---- finding blobs again ---- */

static struct blob **adopted_slot(struct stage *s, uint32_t number, uint32_t off)
{
	uint64_t mixed = ((uint64_t)number << 32 | off) * UINT64_C(0x9e3779b97f4a7c15);
	size_t i = (mixed >> 32) & (s->adopted_size - 1);

	while (s->adopted[i] &&
	       (s->adopted[i]->at.number != number || s->adopted[i]->at.off != off))
		i = (i + 1) & (s->adopted_size - 1);
	return &s->adopted[i];
}

static int adopted_reserve(struct stage *s)
{
	size_t size = s->adopted_size ? 2 * s->adopted_size : FIRST_ADOPTED;
	size_t old_size = s->adopted_size;
	struct blob **old = s->adopted, **table;

	if (2 * (s->n_adopted + 1) <= s->adopted_size)
		return 0;
	table = os_calloc(size, sizeof(struct blob *));
	if (!table)
		return -ENOMEM;
	s->adopted = table;
	s->adopted_size = size;
	for (size_t i = 0; i < old_size; i++)
		if (old[i])
			*adopted_slot(s, old[i]->at.number, old[i]->at.off) = old[i];
	free(old);
	return 0;
}

int blob_adopt(struct stage *s, uint32_t number, uint32_t off, uint32_t len, struct blob **ret)
{
	struct stage_file *file = stage_find(s, number, (uint64_t)off + len);
	struct blob *b, **slot;
	int r;

	if (!file)
		return ABSENT;
	if (len < 1 || len > BLOB_MAX)
		return -EINVAL;
	r = adopted_reserve(s);
	if (r < 0)
		return r;
	slot = adopted_slot(s, number, off);
	b = *slot;
	if (!b) {
		b = os_calloc(1, sizeof(*b));
		if (!b)
			return -ENOMEM;
		b->stage = s;
		b->at = (struct stage_place){ .file = file, .number = number, .off = off };
		atomic_init(&b->refs, 1); /* the table's */
		s->n_adopted++;
		*slot = b;
	}
	if (len > blob_len(b)) {
		stage_adopt(s, &b->at, len - blob_len(b), blob_len(b) == 0);
		atomic_store(&b->len, len);
	}
	*ret = blob_ref(b);
	return 0;
}

void stage_adopted(struct stage *s)
{
	for (size_t i = 0; i < s->adopted_size; i++)
		if (s->adopted[i])
			blob_unref(s->adopted[i]);
	free(s->adopted);
	s->adopted = NULL;
	s->adopted_size = s->n_adopted = 0;
}

struct blob *blob_ref(struct blob *b)
{
	atomic_fetch_add_explicit(&b->refs, 1, memory_order_relaxed); /* the caller has one */
	return b;
}

void blob_unref(struct blob *b)
{
	if (!b || atomic_fetch_sub_explicit(&b->refs, 1, memory_order_acq_rel) != 1)
		return;
	if (b->at.file)
		unplace(b, atomic_load(&b->len));
	free(b);
}

void blob_place(const struct blob *b, uint32_t *ret_file, uint32_t *ret_off)
{
	*ret_file = b->at.number;
	*ret_off = b->at.off;
}

uint32_t blob_len(const struct blob *b)
{
	return atomic_load_explicit(&b->len, memory_order_acquire);
}

bool blob_is_sole(const struct blob *b)
{
	return atomic_load_explicit(&b->refs, memory_order_acquire) == 1;
}

bool blob_name(const struct blob *b, struct name *ret_name)
{
	if (atomic_load(&b->state) != SEALED) /* in one order with the last number: invariant 5 */
		return false;
	*ret_name = b->name;
	return true;
}

/* ---- changing ---- */

int blob_append(struct blob *b, uint32_t at, const void *data, size_t len)
{
	uint32_t have;
	int r;

	WRITE_GUARD(blob_lock(b));
	have = atomic_load_explicit(&b->len, memory_order_relaxed); /* changed by lock holders */
	if (atomic_load_explicit(&b->state, memory_order_relaxed) != OPEN || have != at ||
	    len > BLOB_MAX - have)
		return AGAIN;
	if (len == 0)
		return 0;

	r = stage_extend(b->stage, &b->at, have, (uint32_t)len);
	if (r != 0)
		return r;
	r = stage_write(b->stage, &b->at, have, data, len, false);
	if (r < 0) {
		stage_unextend(b->stage, &b->at, have, (uint32_t)len);
		return r;
	}
	atomic_store_explicit(&b->len, have + (uint32_t)len, memory_order_release);
	return 0;
}

bool blob_is_fixed(const struct blob *b)
{
	uint32_t generation = atomic_load(&b->stage->generation);

	return atomic_load_explicit(&b->state, memory_order_relaxed) != OPEN ||
	       b->at.generation != generation || generation & 1;
}

int blob_write(struct blob *b, uint32_t off, const void *data, size_t len)
{
	WRITE_GUARD(blob_lock(b));
	if (off > blob_len(b) || len > blob_len(b) - off)
		return -EINVAL;
	return blob_is_fixed(b) ? AGAIN : stage_write(b->stage, &b->at, off, data, len, true);
}

/* ---- reading ---- */

/* AGAIN: it is sealed, read the chunk. */
static int read_staged(struct blob *b, uint32_t off, void *buf, size_t len)
{
	READ_GUARD(blob_lock(b));
	return b->at.file ? stage_read(b->stage, &b->at, off, buf, len) : AGAIN;
}

const void *blob_lend(struct blob *b, uint32_t off, size_t len, struct loan *loan)
{
	if (off > blob_len(b) || len > blob_len(b) - off)
		return NULL;
	READ_GUARD(blob_lock(b));
	return b->at.file ? stage_lend(b->stage, &b->at, off, len, loan) : NULL;
}

int blob_read(struct blob *b, uint32_t off, void *buf, size_t len)
{
	int r;

	if (off > blob_len(b) || len > blob_len(b) - off)
		return -EINVAL;

	if (atomic_load_explicit(&b->state, memory_order_acquire) != SEALED) {
		r = read_staged(b, off, buf, len);
		if (r == END)
			return note(&b->stage->noter, -EIO, "stage file %08" PRIx32 " was cut",
				    b->at.number);
		if (r != AGAIN)
			return r;
	}

	r = chunk_read(b->stage->chunks, &b->name, off, buf, len);
	return r == END ? -ERR_CHUNK_DAMAGED : r;
}

/* ---- sealing ---- */

/* From OPEN to SEALING: after this the bytes are fixed. EXISTS: it is sealed already. */
static int seal_begin(struct blob *b)
{
	WRITE_GUARD(blob_lock(b));
	if (atomic_load_explicit(&b->state, memory_order_relaxed) == SEALED)
		return EXISTS;
	atomic_store_explicit(&b->state, SEALING, memory_order_relaxed);
	return 0;
}

static void seal_end(struct blob *b, const struct name *name)
{
	WRITE_GUARD(blob_lock(b)); /* readers of the file have left */
	b->name = *name;
	atomic_store(&b->state, SEALED); /* before unplace looks at the last number */
	unplace(b, blob_len(b));
}

/* Its bytes cannot be read. As blob_seal. */
static int give_up(struct blob *b, struct name *ret_name)
{
	struct name name;
	int r;

	if (stage_is_patient(b->stage))
		return AGAIN;
	r = chunk_put_lost(b->stage->chunks, blob_len(b), &name);
	if (r < 0)
		return r;
	stage_lose(b->stage, &b->at, blob_len(b));
	seal_end(b, &name);
	*ret_name = name;
	return ABSENT;
}

int blob_seal(struct blob *b, struct name *ret_name)
{
	_cleanup_free_ uint8_t *bytes = NULL;
	struct name name;
	uint32_t len;
	int r;

	r = seal_begin(b);
	if (r == EXISTS) {
		*ret_name = b->name;
		return 0;
	}

	len = blob_len(b);
	bytes = os_malloc(len);
	if (!bytes)
		return -ENOMEM;
	r = read_staged(b, 0, bytes, len);
	if (r == -EIO || r == END)
		return give_up(b, ret_name);
	if (r < 0)
		return r;
	r = chunk_put(b->stage->chunks, CHUNK_DATA, bytes, len, &name);
	if (r < 0)
		return r;

	seal_end(b, &name);
	*ret_name = name;
	return 0;
}
