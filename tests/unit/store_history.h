/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A random history of a store and a model of it: changes with and without blobs, checkpoints,
 * restores, forks, drops, syncs, gc. One process plays it; its record lies in memory that is shared
 * with whoever ends that process, opens what is left, and asks whether it is what it must be:
 *
 *  - everything that was answered before the last completed sync began;
 *  - for each branch with its snapshots what it was after some step since;
 *  - every snapshot that somebody waited for; and each that is there with the right content.
 *
 * For test_recovery.c (the process is killed, and nothing at all may be lost) and test_power_cut.c.
 *
 * A step tells the model before the store. So a step that was cut short is in the model as it would
 * be were it done, and the store is as before it or as after it.
 */

#include "tests/unit/store_fixture.h"

#include <time.h>

#include "store/hash.h"
#include "store/store_internal.h"

enum {
	KEYS = 24,
	BULK = 160,       /* keys that are always written together: a journal segment fills soon */
	BULK_FROM = 1000, /* the first of them */
	BRANCHES = 4,
	SNAPS = 400,
	STEPS = 500,
};

/* ---- the model ---- */

/* What lies at a key: text made of `seed`, and, as a blob, more bytes per append and a stamp. */
struct value {
	uint32_t seed; /* 0: nothing */
	uint16_t len, appended, stamp;
	bool blob;
	uint64_t sum; /* of all its bytes; 0: nothing */
};

struct state {
	struct value at[KEYS];
	uint32_t bulk; /* what the bulk was made of; 0: there is none */
};

struct moment {
	bool there;
	struct state state;
};

struct snapshot {
	uint64_t id; /* 0: the slot is free */
	unsigned branch;
	uint32_t made, dropped; /* steps; dropped 0: it is not */
	bool waited; /* somebody was told that it is durable */
	struct state state;
};

/* What the user was told before the end. */
struct told {
	bool made, committed;
	uint32_t steps, synced;
};

/* Shared with the process that plays it. */
struct history {
	uint64_t rng;
	uint32_t begun, steps; /* begun is one more while a step is under way */
	unsigned under_way;    /* the branch that it changes */
	unsigned last_key, last_branch; /* that were written */
	unsigned durable_key, durable_branch; /* those, at the last flush */
	struct moment start[BRANCHES]; /* before the first step */
	struct moment now[BRANCHES];
	struct step {
		unsigned branch; /* the only one that it changed */
		struct moment after;
	} done[STEPS + 1]; /* from 1 on */
	struct snapshot snaps[SNAPS];
};

static struct history *sh;
static uint64_t seed;
static struct branch *handles[BRANCHES];

enum event { MADE, STEP, SYNCED, COMMITTED, WAITED, OVERWRITTEN };

/* Told of each; set by the test. */
static void (*on_event)(uint32_t kind, uint32_t value);

/* Set by the test: now and then the disk fails. Then whoever waits for it does so again. */
static bool disk_fails;

#define UNTIL_DONE(call)                                                                           \
	({                                                                                         \
		int r_;                                                                            \
		do                                                                                 \
			r_ = (call);                                                               \
		while (r_ == -EIO && disk_fails);                                                  \
		ck_ok(r_);                                                                         \
	})

static const char *name_of_branch(unsigned i)
{
	static const char *const names[BRANCHES] = { "main", "idea", "x", "other" };

	return names[i];
}

static uint32_t dice(uint32_t n)
{
	return (uint32_t)(scratch_random(&sh->rng) >> 20) % n;
}

static size_t bytes_of(const struct value *v, uint8_t *buf)
{
	size_t len = v->len;

	scratch_fill(buf, len, v->seed);
	for (unsigned i = 0; i < v->appended; i++, len += 100)
		memset(buf + len, (int)(v->seed + i), 100);
	if (v->stamp)
		memcpy(buf, &v->stamp, sizeof(v->stamp));
	return len;
}

static uint64_t sum_of(const void *bytes, size_t len)
{
	return hash64(bytes, len, 1) | 1;
}

/* ---- the steps ---- */

static void set_value(unsigned i, unsigned k, struct value v)
{
	static uint8_t buf[BLOB_MAX];

	sh->last_key = k;
	sh->last_branch = i;
	v.sum = v.seed ? sum_of(buf, bytes_of(&v, buf)) : 0;
	sh->now[i].state.at[k] = v;
}

static void put_value(struct branch *b, unsigned k, const struct value *v)
{
	static uint8_t buf[BLOB_MAX];
	_cleanup_(blob_unrefp) struct blob *blob = NULL;
	const struct key key = key_at(k + 1);
	size_t len = bytes_of(v, buf);
	struct val val = { .data = buf, .len = (uint32_t)len };
	uint8_t head[4];

	if (v->blob) {
		ck_ok(blob_new(store_stage(store), buf, len, &blob));
		put_le32(head, (uint32_t)len);
		val = (struct val){ .data = head,
				    .len = 4,
				    .ref = { .kind = REF_BLOB, .blob = blob } };
	}
	ck_ok(tree_put(b->tree, &key, &val));
}

static void step_change(unsigned i)
{
	struct branch *b = handles[i];
	unsigned n = 1 + dice(3);

	BRANCH_CHANGE_GUARD(b);
	for (unsigned j = 0; j < n; j++) {
		unsigned k = dice(KEYS);
		struct value v = { .seed = 1 + dice(1000000), .blob = dice(2) };
		const struct key key = key_at(k + 1);

		if (dice(4) == 0)
			v = (struct value){ 0 };
		else
			v.len = (uint16_t)(1 + dice(v.blob ? 20000 : 300));
		set_value(i, k, v);
		if (v.seed)
			put_value(b, k, &v);
		else
			ck_assert_int_ge(tree_del(b->tree, &key), 0);
	}
	b->changes++;
}

/* What was written just now is likely to be written again, before it is sealed. */
static unsigned some_key(void)
{
	unsigned k = dice(KEYS);

	return dice(2) ? sh->last_key : k;
}

/* As a log is appended to: the blob grows if it can. */
static void step_append(unsigned i)
{
	struct branch *b = handles[i];
	unsigned k = some_key();
	struct value v = sh->now[i].state.at[k];
	const struct key key = key_at(k + 1);
	uint8_t more[100], head[4];
	struct val val, new;
	int r = AGAIN;

	if (!v.seed || !v.blob || v.appended > 200)
		return;
	BRANCH_CHANGE_GUARD(b);
	ck_ok(tree_get(b->tree, &key, &val));
	memset(more, (int)(v.seed + v.appended), sizeof(more));
	v.appended++;
	set_value(i, k, v);
	/* Another branch, or this one before a restore, may have appended to it: not at our end. */
	if (val.ref.kind == REF_BLOB)
		r = blob_append(val.ref.blob, get_le32(val.data), more, sizeof(more));
	ck_assert_int_ge(r, 0);
	if (r == 0) {
		put_le32(head, blob_len(val.ref.blob));
		new = (struct val){ .data = head, .len = 4, .ref = val.ref };
		ck_ok(tree_put(b->tree, &key, &new));
	} else {
		put_value(b, k, &v);
	}
	b->changes++;
}

/* Overwrites in place, if nobody else sees it. */
static void step_stamp(unsigned i, unsigned k)
{
	struct branch *b = handles[i];
	struct value v = sh->now[i].state.at[k];
	const struct key key = key_at(k + 1);
	struct val val;
	int r = AGAIN;

	if (!v.seed || !v.blob || v.len < 2)
		return;
	v.stamp = (uint16_t)(1 + dice(60000));
	set_value(i, k, v);
	BRANCH_CHANGE_GUARD(b);
	ck_ok(tree_touch(b->tree, &key));
	ck_ok(tree_get(b->tree, &key, &val));
	if (val.ref.kind == REF_BLOB && blob_is_sole(val.ref.blob))
		r = blob_write(val.ref.blob, 0, &v.stamp, sizeof(v.stamp));
	ck_assert_int_ge(r, 0);
	if (r == 0 && k == sh->durable_key)
		on_event(OVERWRITTEN, k);
	if (r == AGAIN) {
		put_value(b, k, &v);
	} else {
		/* as fs/ does it: the record of the file changes with its bytes */
		uint8_t head[4];
		struct val new = { .data = head, .len = 4, .ref = val.ref };

		memcpy(head, val.data, 4);
		ck_ok(tree_put(b->tree, &key, &new));
	}
	b->changes++;
}

static void bulk_text(uint32_t bulk, unsigned k, uint8_t buf[static 256])
{
	scratch_fill(buf, 256, bulk * 1000 + k);
}

static void step_bulk(unsigned i)
{
	struct branch *b = handles[i];
	uint32_t bulk = 1 + dice(1000000);

	sh->now[i].state.bulk = bulk;
	BRANCH_CHANGE_GUARD(b);
	for (unsigned k = 0; k < BULK; k++) {
		const struct key key = key_at(BULK_FROM + k);
		uint8_t buf[256];
		const struct val val = { .data = buf, .len = sizeof(buf) };

		bulk_text(bulk, k, buf);
		ck_ok(tree_put(b->tree, &key, &val));
	}
	b->changes++;
}

static int snap_at(uint64_t id)
{
	for (int i = 0; i < SNAPS; i++)
		if (sh->snaps[i].id == id)
			return i;
	return -1;
}

static void step_checkpoint(unsigned i)
{
	int at = snap_at(0);
	uint64_t id;
	int r;

	if (at < 0)
		return;
	r = branch_checkpoint(handles[i], NULL, 0, &id);
	ck_assert_int_ge(r, 0);
	if (r == EXISTS)
		return;
	ck_assert_int_lt(snap_at(id), 0);
	sh->snaps[at] = (struct snapshot){
		.id = id, .branch = i, .made = sh->steps + 1, .state = sh->now[i].state
	};
	if (dice(8) == 0) {
		UNTIL_DONE(snap_wait(store, id));
		on_event(WAITED, (uint32_t)at);
	}
}

static int some_snap(void)
{
	int at = (int)dice(SNAPS);

	for (int n = 0; n < SNAPS; n++, at = (at + 1) % SNAPS)
		if (sh->snaps[at].id && !sh->snaps[at].dropped)
			return at;
	return -1;
}

static void step_restore(unsigned i)
{
	int at = some_snap();

	if (at < 0)
		return;
	sh->now[i].state = sh->snaps[at].state;
	restore(handles[i], sh->snaps[at].id);
}

static void step_fork(unsigned i)
{
	unsigned to = dice(BRANCHES);
	int at = some_snap();

	if (sh->now[to].there)
		return;
	sh->under_way = to;
	sh->now[to].there = true;
	if (at >= 0 && dice(3) == 0) {
		_cleanup_(root_unrefp) struct root *root = NULL;

		sh->now[to].state = sh->snaps[at].state;
		ck_ok(snap_root(store, sh->snaps[at].id, &root));
		ck_ok(branch_create(store, name_of_branch(to), root, sh->snaps[at].id, 1,
				    &handles[to]));
	} else {
		sh->now[to].state = sh->now[i].state;
		ck_ok(branch_create_from(handles[i], name_of_branch(to), &handles[to]));
	}
}

static void step_drop(unsigned i)
{
	int at = some_snap();

	if (i > 0 && dice(2)) {
		sh->now[i] = (struct moment){ 0 };
		branch_close(handles[i]);
		handles[i] = NULL;
		ck_ok(branch_drop(store, name_of_branch(i)));
	} else if (at >= 0) {
		sh->snaps[at].dropped = sh->steps + 1;
		ck_ok(snap_drop(store, sh->snaps[at].id));
	}
}

struct meanwhile {
	unsigned branch, left; /* calls until something is changed */
};

/* Once, as a step is done or not; and it is to be sealed as soon as gc lets that happen. */
static void change_meanwhile(void *arg, const char *what, uint64_t done, uint64_t total)
{
	struct meanwhile *m = arg;

	if (m->left == 0 || --m->left > 0)
		return;
	step_change(m->branch);
	LOCK_GUARD(&store->table);
	store->urgent = true;
}

static void step_gc(unsigned i)
{
	struct meanwhile m = { .branch = i, .left = dice(12) };
	const struct progress progress = { .fn = change_meanwhile, .arg = &m };
	struct gc_stats stats;

	UNTIL_DONE(store_gc(store, &progress, &stats));
}

static void step_other(unsigned i)
{
	const uint32_t steps = sh->steps;
	const struct timespec pause = { .tv_nsec = dice(2000000) };

	switch (dice(40)) {
	case 0:
		step_gc(i);
		break;
	case 1 ... 3:
		UNTIL_DONE(store_sync(store));
		on_event(COMMITTED, steps);
		break;
	case 4 ... 12:
		UNTIL_DONE(store_flush(store));
		on_event(SYNCED, steps);
		sh->durable_key = sh->last_key;
		sh->durable_branch = sh->last_branch;
		break;
	case 13 ... 16:
		branch_close(handles[i]);
		handles[i] = branch_at(name_of_branch(i));
		break;
	default:
		nanosleep(&pause, NULL); /* sealer and committer have something to do, too */
	}
}

static void begin(unsigned i)
{
	sh->under_way = i;
	__atomic_store_n(&sh->begun, sh->steps + 1, __ATOMIC_SEQ_CST);
}

static void end(void)
{
	unsigned i = sh->under_way;

	sh->done[sh->begun] = (struct step){ .branch = i, .after = sh->now[i] };
	__atomic_store_n(&sh->steps, sh->begun, __ATOMIC_SEQ_CST);
	on_event(STEP, sh->steps);
}

static void step(void)
{
	unsigned i = dice(BRANCHES), what = dice(50);

	if (dice(2))
		i = sh->last_branch;
	if (what == 26 || what == 27)
		i = sh->durable_branch;
	if (!sh->now[i].there)
		i = 0;
	begin(i);
	switch (what) {
	case 0 ... 14:
		step_change(i);
		break;
	case 15 ... 20:
		step_append(i);
		break;
	case 21 ... 25:
		step_stamp(i, some_key());
		break;
	case 26 ... 27:
		step_stamp(i, sh->durable_key); /* which may not be in place any more */
		break;
	case 28 ... 29:
		step_bulk(i);
		break;
	case 30 ... 34:
		step_checkpoint(i);
		break;
	case 35 ... 37:
		step_restore(i);
		break;
	case 38 ... 39:
		step_fork(i);
		break;
	case 40:
		step_drop(i);
		break;
	default:
		step_other(i);
	}
	end();
}

/* The store is open, and the model knows what it is. Then come steps. */
static void take_handles(void)
{
	for (unsigned i = 0; i < BRANCHES; i++)
		handles[i] = sh->now[i].there ? branch_at(name_of_branch(i)) : NULL;
	if (handles[0])
		return;
	begin(0);
	sh->now[0] = (struct moment){ .there = true };
	handles[0] = branch_make(name_of_branch(0));
	end();
}

/* ---- what is found afterwards ---- */

static void hear(void *arg, uint32_t kind, uint32_t value)
{
	struct told *told = arg;

	switch ((enum event)kind) {
	case MADE:
		told->made = true;
		break;
	case STEP:
		told->steps = value;
		break;
	case COMMITTED:
		told->committed = true;
		__attribute__((fallthrough));
	case SYNCED:
		told->synced = MAX(told->synced, value);
		break;
	case WAITED:
		sh->snaps[value].waited = true;
		break;
	case OVERWRITTEN:
		break;
	}
}

static uint64_t found_sum(const struct tree *t, unsigned k)
{
	static uint8_t got[BLOB_MAX];
	const struct key key = key_at(k + 1);
	_cleanup_(chunkbuf_unrefp) struct chunkbuf *chunk = NULL;
	struct val val;
	size_t len;
	int r = tree_get(t, &key, &val);

	if (r == ABSENT)
		return 0;
	ck_ok(r);
	if (val.ref.kind == REF_NONE)
		return sum_of(val.data, val.len);
	ck_assert_uint_eq(val.len, 4);
	len = get_le32(val.data);
	if (val.ref.kind == REF_BLOB) {
		ck_ok(blob_read(val.ref.blob, val.ref.off, got, len));
		return sum_of(got, len);
	}
	ck_ok(chunk_load(store_chunks(store), &val.ref.name, &chunk));
	ck_assert_uint_ge(chunk->len, len);
	return sum_of(chunk->data, len);
}

static bool bulk_is(const struct tree *t, uint32_t bulk)
{
	for (unsigned k = 0; k < BULK; k++) {
		const struct key key = key_at(BULK_FROM + k);
		uint8_t buf[256];
		struct val val;
		int r = tree_get(t, &key, &val);

		ck_assert_int_ge(r, 0);
		if (r == ABSENT || !bulk) {
			if (r == ABSENT && !bulk)
				continue;
			return false;
		}
		bulk_text(bulk, k, buf);
		if (val.len != sizeof(buf) || memcmp(val.data, buf, sizeof(buf)) != 0)
			return false;
	}
	return true;
}

static void find_sums(const struct tree *t, uint64_t sums[static KEYS])
{
	for (unsigned k = 0; k < KEYS; k++)
		sums[k] = found_sum(t, k);
}

static bool state_is(const struct tree *t, const uint64_t sums[static KEYS],
		     const struct state *want)
{
	for (unsigned k = 0; k < KEYS; k++)
		if (sums[k] != want->at[k].sum)
			return false;
	return bulk_is(t, want->bulk);
}

static char why[300];

/* Snapshots are found in this order: by slot. */
static bool present[SNAPS];

static void find_snaps(void)
{
	for (int i = 0; i < SNAPS; i++) {
		_cleanup_(root_unrefp) struct root *root = NULL;
		_cleanup_(tree_freep) struct tree *t = NULL;
		uint64_t sums[KEYS];
		struct snap_info info;

		present[i] = sh->snaps[i].id && snap_get(store, sh->snaps[i].id, &info) == 0;
		if (!present[i])
			continue;
		ck_ok(snap_root(store, sh->snaps[i].id, &root));
		ck_ok(tree_new(store_nodes(store), root, &t));
		find_sums(t, sums);
		ck_assert_msg(state_is(t, sums, &sh->snaps[i].state),
			      "seed %llu: snapshot %d of step %u, dropped %u, has wrong content",
			      (unsigned long long)seed, i, sh->snaps[i].made,
			      sh->snaps[i].dropped);
	}
}

/* Are a branch's snapshots those that it had after step t? Drops may be younger than changes. */
static bool snaps_are(unsigned branch, uint32_t t, const struct told *told)
{
	for (int i = 0; i < SNAPS; i++) {
		const struct snapshot *sn = &sh->snaps[i];

		if (!sn->id || sn->branch != branch)
			continue;
		if (sn->waited && !sn->dropped && !present[i]) {
			snprintf(why, sizeof(why), "snapshot %d was waited for and is gone", i);
			return false;
		}
		if (present[i] ? sn->made > t || (sn->dropped && sn->dropped <= told->synced) :
				 sn->made <= t && !sn->dropped) {
			snprintf(why, sizeof(why), "step %u: snapshot %d of step %u is%s there", t,
				 i, sn->made, present[i] ? "" : " not");
			return false;
		}
	}
	return true;
}

/* What a branch was after step t. */
static const struct moment *moment_of(unsigned branch, uint32_t t)
{
	while (t > 0 && sh->done[t].branch != branch)
		t--;
	return t > 0 ? &sh->done[t].after : &sh->start[branch];
}

static void compare_branch(unsigned i, const struct told *told, struct moment *ret)
{
	_cleanup_(branch_closep) struct branch *b = NULL;
	const struct moment *m = NULL;
	uint64_t sums[KEYS];
	uint32_t t, newest = MIN(told->steps + 1, sh->begun); /* it may have been under way */
	bool same = false;
	int r = branch_open(store, name_of_branch(i), &b);

	ck_assert_msg(r == 0 || r == -ERR_BRANCH_UNKNOWN, "%s: %s", name_of_branch(i),
		      err_name(r));
	if (b)
		find_sums(b->tree, sums);
	snprintf(why, sizeof(why), "it was never so");
	for (t = newest;; t--) {
		m = moment_of(i, t);
		same = m->there == (r == 0) && (!b || state_is(b->tree, sums, &m->state)) &&
		       snaps_are(i, t, told);
		if (same || t == told->synced)
			break;
	}
	ck_assert_msg(same, "seed %llu: branch %s after %u steps, %u synced: %s (%s)",
		      (unsigned long long)seed, name_of_branch(i), told->steps, told->synced, why,
		      scratch.last_note);
	*ret = *m;
}

/* Is the store what it must be? *found: what the branches are. */
static void compare(const struct told *told, struct moment found[static BRANCHES])
{
	if (sh->begun > sh->steps)
		sh->done[sh->begun] = (struct step){ .branch = sh->under_way,
						     .after = sh->now[sh->under_way] };
	find_snaps();
	for (unsigned i = 0; i < BRANCHES; i++)
		compare_branch(i, told, &found[i]);
}

/* What was found is the beginning of the next run. */
static void go_on(const struct moment found[static BRANCHES])
{
	for (unsigned i = 0; i < BRANCHES; i++)
		sh->start[i] = sh->now[i] = found[i];
	for (int i = 0; i < SNAPS; i++) {
		if (!present[i])
			sh->snaps[i].id = 0;
		sh->snaps[i].made = sh->snaps[i].dropped = 0;
		sh->snaps[i].waited = sh->snaps[i].id != 0;
	}
	sh->begun = sh->steps = 0;
}

/* The machine is another boot from now on: what was not synced does not count. */
static void reboot(void)
{
	char text[32];

	snprintf(text, sizeof(text), "%llu", (unsigned long long)scratch_random(&sh->rng));
	ck_assert_int_eq(setenv("PLYFS_TEST_BOOT_ID", text, 1), 0);
}

/* Memory that a process shares with those that it forks. */
static void *shared(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	ck_assert_ptr_ne(p, MAP_FAILED);
	return p;
}

/* Before each history. */
static void history_setup(int i)
{
	const char *given = getenv("PLYFS_TEST_SEED");

	seed = given ? strtoull(given, NULL, 0) : (uint64_t)os_now_ns() + (uint64_t)i;
	sh = shared(sizeof(*sh));
	sh->rng = seed;
}
