/* SPDX-License-Identifier: Apache-2.0 */

/*
 * timeout: 300
 *
 * A process that has a store open is killed at a random instant of a random history: changes with
 * and without blobs, checkpoints, restores, forks, drops, syncs, gc. The store opened afterwards is
 * compared with a model of what was answered, with or without the operation that was under way.
 * Often the process that recovers is killed as well, before it has committed anything.
 *
 * A loss of power is played by another boot id: nothing counts then but what was synced. The result
 * must be what the model was at some step that is not before the last sync. (What a disk does to
 * bytes that were not synced is not played: they are still there, unused.)
 *
 * A failure prints its seed; PLYFS_TEST_SEED=n runs that one alone.
 */

#include "tests/unit/store_fixture.h"

#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include "store/store_internal.h"

enum {
	KEYS = 24,
	BRANCHES = 4,
	SNAPS = 64,
	HISTORIES = 8,
	KILLS = 6,
	STEPS_MAX = 3000,
};

/* ---- the model ---- */

/* What lies at a key: text made of `seed`, and, as a blob, more bytes per append and a stamp. */
struct value {
	uint32_t seed; /* 0: nothing */
	uint16_t len, appended, stamp;
	bool blob;
};

struct state {
	struct value at[KEYS];
};

struct model_branch {
	bool there;
	struct state now;
	int head, undo; /* index of a snapshot, -1: none */
	bool changed;
};

struct model_snap {
	uint64_t id; /* 0: none, or dropped */
	struct state state;
};

/* Shared with the process that is killed. */
struct shared {
	uint64_t rng;
	uint32_t steps; /* answered */
	bool busy;      /* one is under way */
	struct model_branch branches[BRANCHES];
	struct model_snap snaps[SNAPS];
	uint32_t synced; /* so many steps were answered when the last sync began */
	/* the same after so many steps; touched as far as a history comes */
	struct moment {
		struct model_branch branches[BRANCHES];
		struct model_snap snaps[SNAPS];
	} moments[STEPS_MAX + 1];
};

static struct shared *sh;
static uint64_t seed;
static bool cut; /* power is cut: one branch, since each is a prefix of its own */

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

	scratch_fill(buf, ((size_t)v->len + 7) & ~(size_t)7, v->seed);
	for (unsigned i = 0; i < v->appended; i++, len += 100)
		memset(buf + len, (int)(v->seed + i), 100);
	if (v->stamp)
		memcpy(buf, &v->stamp, sizeof(v->stamp));
	return len;
}

/*
 * ---- the steps: each does one thing, to the model first: when it is cut short, the store is what
 * the model was before it or what it is now ----
 */

static struct branch *handles[BRANCHES];

static void set_model_value(unsigned i, unsigned k, struct value v)
{
	sh->branches[i].now.at[k] = v;
	sh->branches[i].changed = true;
}

static void put_value(struct branch *b, unsigned k, const struct value *v)
{
	static uint8_t buf[BLOB_MAX + 8];
	_cleanup_(blob_unrefp) struct blob *blob = NULL;
	const struct key key = key_at(k + 1);
	size_t len = bytes_of(v, buf);
	struct val val = { .data = buf, .len = (uint32_t)len };

	if (v->blob) {
		uint8_t head[4];

		ck_ok(blob_new(store_stage(store), buf, len, &blob));
		put_le32(head, (uint32_t)len);
		val = (struct val){ .data = head,
				    .len = 4,
				    .ref = { .kind = REF_BLOB, .blob = blob } };
		ck_ok(tree_put(b->tree, &key, &val));
		return;
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

		if (dice(4) == 0) {
			int r = tree_del(b->tree, &key);

			ck_assert(r == 0 || r == ABSENT);
			v = (struct value){ 0 };
		} else {
			v.len = (uint16_t)(1 + dice(v.blob ? 20000 : 300));
			put_value(b, k, &v);
		}
		set_model_value(i, k, v);
	}
	b->changes++;
}

/* As a log is appended to: the blob grows if it can. */
static void step_append(unsigned i)
{
	struct branch *b = handles[i];
	unsigned k = dice(KEYS);
	struct value v = sh->branches[i].now.at[k];
	const struct key key = key_at(k + 1);
	uint8_t more[100], head[4];
	struct val val, new;
	int r;

	if (!v.seed || !v.blob || v.appended > 200)
		return;
	BRANCH_CHANGE_GUARD(b);
	ck_ok(tree_get(b->tree, &key, &val));
	memset(more, (int)(v.seed + v.appended), sizeof(more));
	v.appended++;
	r = AGAIN;
	if (val.ref.kind == REF_BLOB)
		r = blob_append(val.ref.blob, blob_len(val.ref.blob), more, sizeof(more));
	ck_assert_int_ge(r, 0);
	if (r == 0) {
		put_le32(head, blob_len(val.ref.blob));
		new = (struct val){ .data = head, .len = 4, .ref = val.ref };
		ck_ok(tree_put(b->tree, &key, &new));
	} else {
		put_value(b, k, &v);
	}
	b->changes++;
	set_model_value(i, k, v);
}

/* Overwrites in place, if nobody else sees it. */
static void step_stamp(unsigned i)
{
	struct branch *b = handles[i];
	unsigned k = dice(KEYS);
	struct value v = sh->branches[i].now.at[k];
	const struct key key = key_at(k + 1);
	struct val val;
	int r = AGAIN;

	if (!v.seed || !v.blob || v.len < 2)
		return;
	v.stamp = (uint16_t)(1 + dice(60000));
	BRANCH_CHANGE_GUARD(b);
	ck_ok(tree_touch(b->tree, &key));
	ck_ok(tree_get(b->tree, &key, &val));
	set_model_value(i, k, v); /* the bytes have changed before the record is written */
	if (val.ref.kind == REF_BLOB && blob_is_sole(val.ref.blob))
		r = blob_write(val.ref.blob, 0, &v.stamp, sizeof(v.stamp));
	ck_assert_int_ge(r, 0);
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

static int free_snap(void)
{
	for (int i = 0; i < SNAPS; i++)
		if (!sh->snaps[i].id)
			return i;
	return -1;
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
	int at = free_snap();
	uint64_t id;
	int r;

	if (at < 0)
		return;
	r = branch_checkpoint(handles[i], NULL, 0, &id);
	ck_assert_int_ge(r, 0);
	if (snap_at(id) < 0)
		sh->snaps[at] = (struct model_snap){ .id = id, .state = sh->branches[i].now };
	sh->branches[i].changed = false;
}

static int some_snap(void)
{
	int at = (int)dice(SNAPS);

	for (int n = 0; n < SNAPS; n++, at = (at + 1) % SNAPS)
		if (sh->snaps[at].id)
			return at;
	return -1;
}

static void step_restore(unsigned i)
{
	int at = some_snap();

	if (at < 0)
		return;
	sh->branches[i].now = sh->snaps[at].state;
	restore(handles[i], sh->snaps[at].id);
}

static void step_fork(unsigned i)
{
	unsigned to = dice(BRANCHES);
	int at = some_snap();

	if (sh->branches[to].there)
		return;
	if (at >= 0 && dice(3) == 0) {
		_cleanup_(root_unrefp) struct root *root = NULL;

		sh->branches[to].now = sh->snaps[at].state;
		sh->branches[to].there = true;
		ck_ok(snap_root(store, sh->snaps[at].id, &root));
		ck_ok(branch_create(store, name_of_branch(to), root, sh->snaps[at].id, 1,
				    &handles[to]));
	} else {
		sh->branches[to].now = sh->branches[i].now;
		sh->branches[to].there = true;
		ck_ok(branch_create_from(handles[i], name_of_branch(to), &handles[to]));
	}
}

static void step_drop(unsigned i)
{
	int at = some_snap();

	if (i > 0 && dice(2)) {
		sh->branches[i].there = false;
		branch_close(handles[i]);
		handles[i] = NULL;
		ck_ok(branch_drop(store, name_of_branch(i)));
	} else if (at >= 0) {
		uint64_t id = sh->snaps[at].id;

		sh->snaps[at].id = 0;
		ck_ok(snap_drop(store, id));
	}
}

static void step_other(unsigned i)
{
	const uint32_t steps = sh->steps;
	struct gc_stats gc;

	switch (dice(60)) {
	case 0:
		ck_ok(store_gc(store, NULL, &gc));
		break;
	case 1 ... 3:
		ck_ok(store_sync(store));
		sh->synced = steps;
		break;
	case 11 ... 20:
		ck_ok(store_flush(store));
		sh->synced = steps;
		break;
	case 4 ... 10:
		/* the handle goes and comes again */
		branch_close(handles[i]);
		handles[i] = branch_at(name_of_branch(i));
		break;
	default:
		sched_yield();
	}
}

static void step(void)
{
	unsigned i = dice(BRANCHES);

	if (!sh->branches[i].there)
		i = 0;
	switch (dice(40)) {
	case 0 ... 14:
		step_change(i);
		break;
	case 15 ... 20:
		step_append(i);
		break;
	case 21 ... 25:
		step_stamp(i);
		break;
	case 26 ... 30:
		step_checkpoint(i);
		break;
	case 31 ... 33:
		step_restore(i);
		break;
	case 34 ... 35:
		if (!cut)
			step_fork(i);
		break;
	case 36:
		if (!cut)
			step_drop(i);
		break;
	default:
		step_other(i);
	}
}

/* ---- comparing ---- */

static bool value_is(const struct tree *t, unsigned k, const struct value *v)
{
	static uint8_t want[BLOB_MAX + 8], got[BLOB_MAX + 8];
	const struct key key = key_at(k + 1);
	_cleanup_(chunkbuf_unrefp) struct chunkbuf *chunk = NULL;
	struct val val;
	size_t len;
	int r = tree_get(t, &key, &val);

	ck_assert_int_ge(r, 0);
	if (r == ABSENT || !v->seed)
		return r == ABSENT && !v->seed;
	len = bytes_of(v, want);
	if (!v->blob)
		return val.ref.kind == REF_NONE && val.len == len &&
		       memcmp(val.data, want, len) == 0;
	if (val.ref.kind == REF_NONE || val.len != 4 || get_le32(val.data) != len)
		return false;
	if (val.ref.kind == REF_BLOB) {
		ck_ok(blob_read(val.ref.blob, val.ref.off, got, len));
		return memcmp(got, want, len) == 0;
	}
	ck_ok(chunk_load(store_chunks(store), &val.ref.name, &chunk));
	return chunk->len >= len && memcmp(chunk->data, want, len) == 0;
}

/* *ret_key: the first that differs. */
static bool state_is(const struct tree *t, const struct state *want, unsigned *ret_key)
{
	for (unsigned k = 0; k < KEYS; k++)
		if (!value_is(t, k, &want->at[k])) {
			*ret_key = k;
			return false;
		}
	return true;
}

static char why[200];

static bool store_is(const struct model_branch *branches, const struct model_snap *snaps)
{
	unsigned key;

	for (unsigned i = 0; i < BRANCHES; i++) {
		_cleanup_(branch_closep) struct branch *b = NULL;
		int r = branch_open(store, name_of_branch(i), &b);

		if ((r == 0) != branches[i].there) {
			snprintf(why, sizeof(why), "branch %s: %s", name_of_branch(i), err_name(r));
			return false;
		}
		if (r == 0 && !state_is(b->tree, &branches[i].now, &key)) {
			snprintf(why, sizeof(why), "branch %s: key %u", name_of_branch(i), key);
			return false;
		}
	}
	for (unsigned i = 0; i < SNAPS; i++) {
		_cleanup_(root_unrefp) struct root *root = NULL;
		_cleanup_(tree_freep) struct tree *t = NULL;

		if (!snaps[i].id)
			continue;
		if (snap_root(store, snaps[i].id, &root) < 0) {
			snprintf(why, sizeof(why), "snapshot %u is not there", i);
			return false;
		}
		ck_ok(tree_new(store_nodes(store), root, &t));
		if (!state_is(t, &snaps[i].state, &key)) {
			snprintf(why, sizeof(why), "snapshot %u: key %u", i, key);
			return false;
		}
	}
	return true;
}

static bool store_is_moment(uint32_t steps)
{
	return store_is(sh->moments[steps].branches, sh->moments[steps].snaps);
}

/* The step under way is there whole, or not at all. */
static void compare(void)
{
	uint32_t steps = sh->steps, found = steps;
	bool same = store_is(sh->branches, sh->snaps);

	if (!same && sh->busy)
		same = store_is_moment(steps);
	for (; !same && cut && found > sh->synced; same = store_is_moment(found))
		found--;
	ck_assert_msg(same, "seed %llu after %u steps, %u synced: %s (%s)",
		      (unsigned long long)seed, steps, sh->synced, why, scratch.last_note);
	if (found < steps || (sh->busy && store_is_moment(steps))) {
		memcpy(sh->branches, sh->moments[found].branches, sizeof(sh->branches));
		memcpy(sh->snaps, sh->moments[found].snaps, sizeof(sh->snaps));
	}
	sh->synced = MIN(sh->synced, found);
	sh->steps = found;
	sh->busy = false;
}

/* ---- killing ---- */

/*
 * Check notes every assertion in a file that all forks share. A note that is cut short by the kill
 * would spoil it, so the process that is killed gets a file of its own.
 */
static void leave_checks_file(void)
{
	const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;
	_cleanup_close_ int own = openat(scratch.dir_fd, "checks", flags, 0600);
	bool found = false;
	char path[32], target[256];

	ck_assert_int_ge(own, 0);
	for (int fd = 3; fd < 64; fd++) {
		ssize_t n;

		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		n = readlink(path, target, sizeof(target) - 1);
		if (n < 0)
			continue;
		target[n] = '\0';
		if (strstr(target, "/check_") && dup2(own, fd) == fd)
			found = true;
	}
	ck_assert_msg(found, "Check keeps its notes elsewhere");
}

static void run_until_killed(bool verify)
{
	leave_checks_file();
	store_up();
	if (verify)
		compare();
	for (unsigned i = 0; i < BRANCHES; i++)
		handles[i] = sh->branches[i].there ? branch_at(name_of_branch(i)) : NULL;
	if (!handles[0] && branch_open(store, name_of_branch(0), &handles[0]) < 0)
		handles[0] = branch_make(name_of_branch(0));
	if (!sh->branches[0].there) {
		ck_ok(store_flush(store));
		sh->branches[0].there = true;
	}
	while (sh->steps < STEPS_MAX) {
		struct moment *m = &sh->moments[sh->steps];

		memcpy(m->branches, sh->branches, sizeof(sh->branches));
		memcpy(m->snaps, sh->snaps, sizeof(sh->snaps));
		__atomic_store_n(&sh->busy, true, __ATOMIC_SEQ_CST);
		step();
		__atomic_store_n(&sh->busy, false, __ATOMIC_SEQ_CST);
		sh->steps++;
	}
	for (;;)
		pause();
}

/* The text at the end of that file: what an assertion there complained of. */
static const char *last_check(void)
{
	static char tail[300];
	_cleanup_close_ int own = openat(scratch.dir_fd, "checks", O_RDONLY);
	off_t end = own < 0 ? -1 : lseek(own, 0, SEEK_END);
	ssize_t n = end < 0 ? -1 : pread(own, tail, sizeof(tail) - 1, MAX(0, end - 299));

	for (ssize_t i = 0; i < n; i++)
		if (tail[i] < ' ' || tail[i] > '~')
			tail[i] = ' ';
	tail[MAX(n, 0)] = '\0';
	return tail;
}

static void kill_after(uint64_t ns, bool verify)
{
	const struct timespec t = { .tv_sec = (time_t)(ns / 1000000000),
				    .tv_nsec = (long)(ns % 1000000000) };
	pid_t child = fork();
	int status;

	ck_assert_int_ge(child, 0);
	if (child == 0)
		run_until_killed(verify);
	nanosleep(&t, NULL);
	ck_assert_int_eq(kill(child, SIGKILL), 0);
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL,
		      "seed %llu: the process ended by itself (%x): %s", (unsigned long long)seed,
		      (unsigned)status, last_check());
}

static void reboot(void)
{
	char text[32];

	snprintf(text, sizeof(text), "%llu", (unsigned long long)scratch_random(&sh->rng));
	ck_assert_int_eq(setenv("PLYFS_TEST_BOOT_ID", text, 1), 0);
}

static void history(void)
{
	uint64_t rng = seed;
	bool verify = false;

	memset(sh, 0, sizeof(*sh));
	sh->rng = seed;
	for (int n = 0; n < KILLS; n++) {
		uint64_t r = scratch_random(&rng);

		kill_after(r % (n % 2 ? 30000000 : 150000000), verify);
		if (cut)
			reboot();
		if (!sh->branches[0].there)
			continue; /* it had not even begun */
		verify = !cut && (r >> 60 & 1);
		if (verify)
			continue; /* the next process recovers, goes on, and is killed too */
		store_up();
		compare();
		if (r >> 61 & 1)
			ck_ok(store_sync(store));
		expect_sound(NULL);
		ck_ok(store_close(store));
		store = NULL;
	}
	if (sh->branches[0].there) {
		store_up();
		compare();
		expect_sound(NULL);
	}
}

static void recovery_setup(void)
{
	sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert_ptr_ne(sh, MAP_FAILED);
	store_setup();
	ck_ok(store_close(store));
	store = NULL;
}

START_TEST(what_was_answered_is_there_after_a_kill)
{
	const char *given = getenv("PLYFS_TEST_SEED");

	seed = given ? strtoull(given, NULL, 0) : (uint64_t)os_now_ns() + (uint64_t)_i;
	history();
}
END_TEST

START_TEST(a_power_cut_leaves_what_was_synced_and_a_prefix_of_the_rest)
{
	const char *given = getenv("PLYFS_TEST_SEED");

	seed = given ? strtoull(given, NULL, 0) : (uint64_t)os_now_ns() + (uint64_t)_i;
	cut = true;
	history();
}
END_TEST

int main(void)
{
	TCase *tcase = tcase_create("recovery");

	tcase_set_timeout(tcase, 120);
	tcase_add_checked_fixture(tcase, recovery_setup, store_teardown);
	tcase_add_loop_test(tcase, what_was_answered_is_there_after_a_kill, 0,
			    getenv("PLYFS_TEST_LONG") ? 20 * HISTORIES : HISTORIES);
	tcase_add_loop_test(tcase, a_power_cut_leaves_what_was_synced_and_a_prefix_of_the_rest, 0,
			    getenv("PLYFS_TEST_LONG") ? 20 * HISTORIES : HISTORIES);
	return run_case("recovery", tcase);
}
