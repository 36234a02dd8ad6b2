/* SPDX-License-Identifier: Apache-2.0 */

/*
 * timeout: 300
 *
 * Each call of the system that a store makes (memory, files, syncs) fails in turn, once, while it
 * is used, repaired and salvaged. Each failure is an error that somebody gets, or nobody needs to
 * know; what was answered is there, in memory and after the next start; a check finds nothing;
 * work goes on. That nothing leaks is seen in the sanitizer builds.
 *
 * In the short form some calls are left out, farther apart the later they come, and each fails with
 * one of three errors instead of with all.
 */

#include "tests/unit/store_fixture.h"

#include <sys/wait.h>

#include "store/base/fault.h"
#include "store/format.h"

enum { KEYS = 8, STATES = 16 };

/* What must be there: texts at keys 1 to KEYS, of a branch or snapshot. */
struct state {
	bool there;
	char text[KEYS][24];
	uint64_t id;
};

static struct state live, fork_live, snaps[STATES];
static unsigned n_snaps;
static bool fault_seen;

static int error_of(int n, int turn)
{
	static const int errors[] = { ENOMEM, EIO, ENOSPC };

	return errors[(n + turn) % (int)ARRAY_SIZE(errors)];
}

/* The outcome of something that may have met the fault. */
static bool done(int r)
{
	if (r >= 0)
		return true;
	ck_assert_msg(fault_seen || fault_ticks() > 0, "%s without a fault", err_name(r));
	fault_seen = true;
	ck_assert_msg(r == -ENOMEM || r == -EIO || r == -ENOSPC || err_errno(r) == EIO,
		      "not an answer for anybody: %s (%d)", err_name(r), r);
	return false;
}

static int next(int n)
{
	return n + (getenv("PLYFS_TEST_LONG") ? 1 : 1 + n / 8);
}

/* ---- use ---- */

static void try_change(struct branch *b, struct state *s, unsigned k, const char *text, bool blob)
{
	_cleanup_(blob_unrefp) struct blob *made = NULL;
	const struct key key = key_at(k + 1);
	struct val v = { .data = text, .len = (uint32_t)strlen(text) };
	int r;

	if (blob && !done(blob_new(store_stage(store), text, strlen(text), &made)))
		return;
	if (blob)
		v = (struct val){ .data = "b", .len = 1, .ref = { REF_BLOB, .blob = made } };
	{
		BRANCH_CHANGE_GUARD(b);
		r = tree_put(b->tree, &key, &v);
		if (r == 0)
			b->changes++;
	}
	if (done(r))
		strcpy(s->text[k], text);
}

static void try_checkpoint(struct branch *b, const struct state *s)
{
	uint64_t id;

	if (!done(branch_checkpoint(b, NULL, 0, &id)))
		return;
	snaps[n_snaps] = *s;
	snaps[n_snaps].there = true;
	snaps[n_snaps++].id = id;
	(void)done(snap_wait(store, id));
}

static void try_restore(struct branch *b, struct state *s, unsigned i)
{
	_cleanup_(root_unrefp) struct root *left = NULL;
	int r;

	if (i >= n_snaps || !snaps[i].there)
		return;
	{
		WRITE_GUARD(&b->lock);
		r = branch_restore_locked(b, snaps[i].id, &left);
	}
	if (done(r))
		memcpy(s->text, snaps[i].text, sizeof(s->text));
}

static void try_fork(struct branch *b)
{
	struct branch *fork;

	if (!done(branch_create_from(b, "fork", &fork)))
		return;
	fork_live = live;
	fork_live.there = true;
	try_change(fork, &fork_live, 1, "in the fork", true);
	branch_close(fork);
}

/* Everything once, from an open store with a branch to an open store. */
static void use(void)
{
	struct branch *b = NULL;
	struct gc_stats gc;

	if (!done(branch_open(store, "main", &b)))
		return;
	try_change(b, &live, 0, "one", false);
	try_change(b, &live, 1, "a blob", true);
	(void)done(store_flush(store));
	try_checkpoint(b, &live);
	try_change(b, &live, 1, "another blob", true);
	try_change(b, &live, 2, "two", false);
	try_checkpoint(b, &live);
	try_fork(b);
	(void)done(store_sync(store));
	try_restore(b, &live, 0);
	try_change(b, &live, 3, "after the restore", true);
	(void)done(store_flush(store));
	if (n_snaps > 1 && done(snap_drop(store, snaps[1].id)))
		snaps[1].there = false;
	if (fork_live.there && done(branch_drop(store, "fork")))
		fork_live.there = false;
	(void)done(store_gc(store, NULL, &gc));
	try_checkpoint(b, &live);
	try_change(b, &live, 4, "at last", true);
	branch_close(b);
}

static void expect_state(const struct tree *t, const struct state *s)
{
	for (unsigned k = 0; k < KEYS; k++) {
		const struct key key = key_at(k + 1);
		_cleanup_(chunkbuf_unrefp) struct chunkbuf *chunk = NULL;
		size_t len = strlen(s->text[k]);
		char got[64] = "";
		struct val v;
		int r = tree_get(t, &key, &v);

		ck_assert_int_eq(r, len > 0 ? 0 : ABSENT);
		if (r == ABSENT)
			continue;
		if (v.ref.kind == REF_BLOB) {
			ck_assert_uint_eq(blob_len(v.ref.blob), len);
			ck_ok(blob_read(v.ref.blob, 0, got, len));
		} else if (v.ref.kind == REF_CHUNK) {
			ck_ok(chunk_load(store_chunks(store), &v.ref.name, &chunk));
			ck_assert_uint_eq(chunk->len, len);
			memcpy(got, chunk->data, len);
		} else {
			ck_assert_uint_eq(v.len, len);
			memcpy(got, v.data, len);
		}
		ck_assert_str_eq(got, s->text[k]);
	}
}

static void expect_branch(const char *name, const struct state *s)
{
	_cleanup_(branch_closep) struct branch *b = NULL;
	int r = branch_open(store, name, &b);

	ck_assert_msg(r == (s->there ? 0 : -ERR_BRANCH_UNKNOWN), "branch %s: %s (%s)", name,
		      err_name(r), scratch.last_note);
	if (b)
		expect_state(b->tree, s);
}

static void expect_all(void)
{
	expect_branch("main", &live);
	expect_branch("fork", &fork_live);
	for (unsigned i = 0; i < n_snaps; i++) {
		_cleanup_(root_unrefp) struct root *root = NULL;
		_cleanup_(tree_freep) struct tree *t = NULL;
		int r = snap_root(store, snaps[i].id, &root);

		ck_assert_int_eq(r, snaps[i].there ? 0 : -ERR_SNAP_UNKNOWN);
		if (r < 0)
			continue;
		ck_ok(tree_new(store_nodes(store), root, &t));
		expect_state(t, &snaps[i]);
	}
}

/* A store that stopped writing says so; the journal has what it could not commit. */
static void expect_service(void)
{
	struct store_stats stats;
	struct branch *b;

	ck_ok(store_stats(store, &stats));
	if (stats.failed) {
		ck_err(store_sync(store), -ERR_STORE_FAILED);
		(void)store_close(store); /* says the same */
		store_up();
		expect_all();
	}
	b = branch_at("main");
	try_change(b, &live, 5, "work goes on", true);
	branch_close(b);
	ck_ok(store_sync(store));
	expect_sound(NULL);
	expect_all();
}

static void begin(void)
{
	scratch_make(&scratch);
	ck_ok(store_init(scratch.dir_fd));
	store_up();
	branch_close(branch_make("main"));
	memset(&live, 0, sizeof(live));
	memset(&fork_live, 0, sizeof(fork_live));
	memset(snaps, 0, sizeof(snaps));
	n_snaps = 0;
	live.there = true;
	fault_seen = false;
}

/* true: the fault came too late to meet anything. */
static bool use_with_fault(int n, int turn)
{
	bool late;

	begin();
	fault_arm(n, 1, error_of(n, turn));
	use();
	late = fault_ticks() <= n;
	fault_disarm();

	expect_all();
	expect_service();
	store_reopen();
	expect_all();
	expect_sound(NULL);
	ck_ok(store_close(store));
	store = NULL;
	scratch_remove(&scratch);
	return late;
}

START_TEST(use_survives_every_failure)
{
	for (int n = 0; !use_with_fault(n, _i); n = next(n))
		;
}
END_TEST

/* ---- on copies of a store ---- */

/* From here on scratch.dir_fd is a copy of the store; returns what it was. */
static int copy_begin(void)
{
	char command[3 * 4200], path[4200];
	int own = scratch.dir_fd;

	snprintf(path, sizeof(path), "%s.copy", scratch.path);
	snprintf(command, sizeof(command), "cp -a %s %s", scratch.path, path);
	ck_assert_int_eq(system(command), 0);
	scratch.dir_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	ck_assert_int_ge(scratch.dir_fd, 0);
	return own;
}

static void copy_end(int own)
{
	char command[4300];

	closep(&scratch.dir_fd);
	scratch.dir_fd = own;
	snprintf(command, sizeof(command), "rm -rf %s.copy", scratch.path);
	ck_assert_int_eq(system(command), 0);
}

/* ---- a start after a kill ---- */

/* Leaves a store behind that was killed with everything in its journal. */
static void die_in_use(void)
{
	pid_t child = fork();
	int status;

	ck_assert_int_ge(child, 0);
	if (child == 0) {
		store_up();
		use();
		_exit(0);
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void recover_with_faults(int turn)
{
	for (int n = 0, r = -1;; n = next(n)) {
		const struct noter noter = { .fn = scratch_note, .arg = &scratch };

		fault_arm(n, 1, error_of(n, turn));
		r = store_open(scratch.dir_fd, &noter, &store);
		if (r == 0)
			(void)done(store_close(store));
		store = NULL;
		if (r == 0 && fault_ticks() <= n)
			break;
		fault_disarm();
		(void)done(r);
	}
	fault_disarm();
}

START_TEST(recovery_survives_every_failure)
{
	begin();
	ck_ok(store_close(store));
	store = NULL;
	die_in_use();
	fault_seen = true;
	recover_with_faults(_i);
	store_up();
	expect_sound(NULL);
	ck_assert_uint_ge(snap_count(store), 2);
	ck_ok(store_close(store));
	scratch_remove(&scratch);
}
END_TEST

/* Recovers with a fault, makes one change and is killed. 0: it was made; 1: it could not start. */
static int change_after_recovery(int n, int turn)
{
	const struct noter noter = { .fn = scratch_note, .arg = &scratch };
	pid_t child = fork();
	int status;

	ck_assert_int_ge(child, 0);
	if (child == 0) {
		fault_arm(n, 1, error_of(n, turn));
		if (store_open(scratch.dir_fd, &noter, &store) < 0)
			_exit(fault_ticks() > n ? 1 : 3);
		n = fault_ticks() <= n ? 2 : 0;
		fault_disarm();
		try_change(branch_at("main"), &live, 6, "kept", true);
		_exit(n);
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert(WIFEXITED(status) && WEXITSTATUS(status) <= 2);
	return WEXITSTATUS(status);
}

static void expect_key(const struct branch *b, unsigned k, int n)
{
	const struct key key = key_at(k + 1);
	struct val v;

	ck_assert_msg(tree_get(b->tree, &key, &v) == 0, "key %u, call %d", k, n);
}

START_TEST(a_recovery_with_a_failure_loses_nothing_and_what_is_done_then_is_kept)
{
	int made = -1;

	begin();
	ck_ok(store_close(store));
	store = NULL;
	die_in_use();
	for (int n = 0; made != 2; n++) {
		int own = copy_begin();

		made = change_after_recovery(n, _i);
		store_up();
		{
			_cleanup_(branch_closep) struct branch *b = branch_at("main");

			expect_key(b, 4, n);
			if (made != 1)
				expect_key(b, 6, n);
		}
		ck_ok(store_close(store));
		store = NULL;
		copy_end(own);
	}
	scratch_remove(&scratch);
}
END_TEST

/* ---- repair and salvage ---- */

static void populate(void)
{
	begin();
	use();
	expect_all();
	ck_ok(store_close(store));
	store = NULL;
}

/* Works on a copy each time; the store's own directory stays as it was. */
static void with_faults(int (*work)(void), void (*after)(void), int turn)
{
	bool late = false;

	for (int n = 0; !late; n = next(n)) {
		int own = copy_begin();

		fault_seen = false;
		fault_arm(n, 1, error_of(n, turn));
		(void)done(work());
		late = fault_ticks() <= n;
		fault_disarm();
		ck_assert_int_ge(work(), 0); /* the second time it works */
		after();
		copy_end(own);
	}
}

/* The header of the file, and that of its first record. */
static int spoil_pack(void *arg, const char *name)
{
	_cleanup_close_ int fd = -1;
	char path[64];

	snprintf(path, sizeof(path), "packs/%.40s", name);
	fd = openat(scratch.dir_fd, path, O_RDWR | O_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	ck_ok(os_pwrite_full(fd, "spoilt", 6, 0));
	ck_ok(os_pwrite_full(fd, "spoilt", 6, sizeof(struct pack_header_bytes)));
	return 0;
}

static void nothing(void *arg, const char *line)
{
}

static int repair(void)
{
	const struct check_ops ops = { .damage = nothing, .lost = nothing, .mended = nothing };
	const struct noter noter = { .fn = scratch_note, .arg = &scratch };
	struct check_stats stats;
	int r = store_open(scratch.dir_fd, &noter, &store), s;

	if (r < 0)
		return r;
	r = store_repair(store, &ops, NULL, &stats);
	s = store_close(store);
	store = NULL;
	return r < 0 ? r : s;
}

static void expect_repaired(void)
{
	store_up();
	expect_sound(NULL);
	expect_branch("main", &live);
	ck_ok(store_close(store));
	store = NULL;
}

START_TEST(repair_survives_every_failure)
{
	populate();
	ck_ok(os_each_name(scratch.dir_fd, "packs", spoil_pack, NULL));
	with_faults(repair, expect_repaired, _i);
	scratch_remove(&scratch);
}
END_TEST

static int salvage(void)
{
	const struct noter noter = { .fn = scratch_note, .arg = &scratch };
	struct salvage_stats stats;

	if (store_is_broken(scratch.dir_fd, &noter) == 0)
		return 0;
	return store_salvage(scratch.dir_fd, &noter, NULL, &stats);
}

static void expect_salvaged(void)
{
	store_up();
	expect_sound(NULL);
	expect_all();
	ck_ok(store_close(store));
	store = NULL;
}

START_TEST(salvage_survives_every_failure)
{
	populate();
	ck_assert_int_eq(unlinkat(scratch.dir_fd, "index/data.mdb", 0), 0);
	with_faults(salvage, expect_salvaged, _i);
	scratch_remove(&scratch);
}
END_TEST

/* ---- a bad sector under what is not sealed yet ---- */

enum { PIECE = 8000, ROUNDS = 20 };

static void put_piece(struct branch *b, uint64_t at)
{
	uint8_t bytes[PIECE];

	scratch_fill(bytes, sizeof(bytes), at);
	change_blob(b, at, bytes, sizeof(bytes));
}

/* Its bytes, however they are kept. */
static int read_piece(const struct tree *t, uint64_t at)
{
	const struct key key = key_at(at);
	uint8_t bytes[PIECE], want[PIECE];
	struct val v;
	int r;

	ck_ok(tree_get(t, &key, &v));
	if (v.ref.kind == REF_BLOB)
		r = blob_read(v.ref.blob, 0, bytes, sizeof(bytes));
	else
		r = chunk_read(store_chunks(store), &v.ref.name, 0, bytes, sizeof(bytes));
	if (r == 0) {
		scratch_fill(want, sizeof(want), at);
		ck_assert_mem_eq(bytes, want, sizeof(want));
	}
	return err_errno(r);
}

static void spoil_piece(struct branch *b, uint64_t at)
{
	const struct key key = key_at(at);
	uint32_t number, off;
	char path[40];
	struct stat st;
	struct val v;

	ck_ok(tree_get(b->tree, &key, &v));
	ck_assert_int_eq(v.ref.kind, REF_BLOB);
	blob_place(v.ref.blob, &number, &off);
	snprintf(path, sizeof(path), "stage/%08x", number);
	ck_ok(os_statat(scratch.dir_fd, path, &st));
	fault_bad_sector(st.st_ino, off + 100, 512);
}

/* A branch with pieces 1 to 3, the second of which cannot be read, and another branch. */
static struct branch *with_bad_sector(void)
{
	struct branch *b, *other;

	begin();
	b = branch_at("main");
	for (uint64_t at = 1; at <= 3; at++)
		put_piece(b, at);
	spoil_piece(b, 2);
	other = branch_make("other");
	put_piece(other, 4);
	branch_close(other);
	return b;
}

static void expect_pieces(const char *branch, uint64_t from, uint64_t to, uint64_t bad)
{
	struct branch *b = branch_at(branch);

	for (uint64_t at = from; at <= to; at++)
		ck_assert_int_eq(read_piece(b->tree, at), at == bad ? EIO : 0);
	branch_close(b);
}

/* As after a kill and on a disk that is whole again: only what the index has counts. */
static void expect_rest(void)
{
	struct check_stats stats;

	ck_ok(store_close(store));
	fault_bad_sector(0, 0, 0);
	store_up();
	expect_pieces("main", 1, 3, 2);
	expect_pieces("other", 4, 4, 0);
	expect_sound(&stats);
	ck_assert_uint_eq(stats.lost, 1);
	ck_ok(store_close(store));
	store = NULL;
	scratch_remove(&scratch);
}

START_TEST(a_bad_sector_costs_what_lies_on_it_and_no_more)
{
	struct branch *b = with_bad_sector();
	struct key keys[UNREADABLE_MAX];
	unsigned rounds = 0;
	uint64_t id;
	int r;

	ck_ok(branch_checkpoint(b, "c", 0, &id));
	scratch.notes = 0;
	while ((r = snap_wait(store, id)) != 0) {
		ck_err(r, -EIO); /* it may pass */
		ck_assert_int_eq(read_piece(b->tree, 2), EIO);
		ck_assert_int_eq(read_piece(b->tree, 3), 0);
		ck_assert_uint_lt(++rounds, ROUNDS);
	}
	ck_assert_uint_gt(rounds, 1);
	ck_ok(store_sync(store));
	ck_assert_uint_le(scratch.notes, 2); /* that it fails, and what was given up */
	ck_assert_ptr_nonnull(strstr(scratch.last_note, "given up"));
	ck_assert_uint_eq(nodes_unreadable(store_nodes(store), keys), 1);
	ck_assert_uint_eq(keys[0].a, 2);
	ck_assert_int_eq(read_piece(b->tree, 2), EIO);

	/* what is written there again is good */
	put_piece(b, 5);
	ck_ok(store_sync(store));
	ck_assert_int_eq(read_piece(b->tree, 5), 0);
	branch_close(b);
	expect_rest();
}
END_TEST

START_TEST(a_bad_sector_that_recovers_costs_nothing)
{
	struct branch *b = with_bad_sector();

	ck_err(store_sync(store), -EIO);
	fault_bad_sector(0, 0, 0);
	ck_ok(store_sync(store));
	ck_assert_int_eq(read_piece(b->tree, 2), 0);
	branch_close(b);
	expect_sound(NULL);
	ck_ok(store_close(store));
	store = NULL;
	scratch_remove(&scratch);
}
END_TEST

/* After the close that could not save it. */
START_TEST(a_repair_gives_up_what_a_bad_sector_took)
{
	struct branch *b = with_bad_sector();

	branch_close(b);
	ck_err(store_close(store), -EIO);
	ck_ok(repair());
	store_up();
	expect_rest();
}
END_TEST

int main(void)
{
	TCase *tcase = tcase_create("faults"), *sectors = tcase_create("bad_sectors");
	int turns = getenv("PLYFS_TEST_LONG") ? 3 : 1;

	tcase_set_timeout(tcase, turns > 1 ? 3600 : 240);
	tcase_add_loop_test(tcase, use_survives_every_failure, 0, turns);
	tcase_add_loop_test(tcase, recovery_survives_every_failure, 0, turns);
	tcase_add_loop_test(tcase,
			    a_recovery_with_a_failure_loses_nothing_and_what_is_done_then_is_kept,
			    0, turns);
	tcase_add_loop_test(tcase, repair_survives_every_failure, 0, turns);
	tcase_add_loop_test(tcase, salvage_survives_every_failure, 0, turns);
	tcase_set_timeout(sectors, 240);
	tcase_add_test(sectors, a_bad_sector_costs_what_lies_on_it_and_no_more);
	tcase_add_test(sectors, a_bad_sector_that_recovers_costs_nothing);
	tcase_add_test(sectors, a_repair_gives_up_what_a_bad_sector_took);
	return run_case("faults", tcase) | run_case("bad_sectors", sectors);
}
