/* SPDX-License-Identifier: Apache-2.0 */

/*
 * timeout: 300
 *
 * The power goes at random places of a random history (store_history.h), which is recorded
 * (tests/lib/crashdisk.h). What was not synced is kept, dropped, reordered or torn. The store must
 * open by itself, under another boot id, be what the history says that it must be, and hold no
 * damage (every byte is read).
 *
 * Sometimes the disk fails meanwhile under the index or the journal, which is to make nothing of
 * that wrong.
 *
 * Then it is used, closed and opened once more. A history goes on from one of its cuts several
 * times, so recoveries are cut as well, and the making of the store.
 *
 * A failure prints its seed; PLYFS_TEST_SEED=n runs that history alone. What threads do, and when,
 * differs from run to run, so a seed may need some runs (PLYFS_TEST_HISTORIES=n repeats it).
 */

#include "tests/unit/store_history.h"

#include <inttypes.h>
#include <sys/wait.h>

#include "store/journal_internal.h"
#include "tests/lib/crashdisk.h"

enum {
	RUNS = 3,
	CUTS = 5, /* of each run */
	HISTORIES = 4,
};

static char base[4200]; /* the directory of the store now */

/* ---- the process whose power goes ---- */

static void open_store(void)
{
	const struct noter noter = { .fn = scratch_note, .arg = &scratch };
	const struct store_options options = { .commit_ms = dice(3) * 5 };

	int r = store_open_with(scratch.dir_fd, &options, &noter, &store);

	ck_assert_msg(r == 0, "seed %llu: %s (%s)", (unsigned long long)seed, err_name(r),
		      scratch.last_note);
}

/* While the power is on, nothing is missing. So the model is right. */
static void expect_everything(void)
{
	const struct told all = { .steps = sh->steps, .synced = sh->steps };
	struct moment found[BRANCHES];

	compare(&all, found);
}

/* One of some writes and syncs of a file. */
static void let_disk_fail(const char *file, unsigned one_in)
{
	char path[4300];

	snprintf(path, sizeof(path), "%s/%s", base, file);
	disk_fail(path, one_in, sh->rng);
	disk_fails = one_in > 0;
}

/* Half of its syncs, until another segment is begun: after the first. false: there is none yet. */
static bool let_journal_fail(void)
{
	char name[40];

	UNTIL_DONE(store_flush(store)); /* so there is one, if anything was changed */
	LOCK_GUARD(&store->commit_lock); /* which stays */
	if (!store->journal->newest)
		return false;
	snprintf(name, sizeof(name), "journal/%08" PRIx32, store->journal->newest->number);
	let_disk_fail(name, 2);
	return true;
}

static void live(bool make)
{
	uint32_t journal_fails;

	disk_record();
	if (make)
		ck_ok(store_init(scratch.dir_fd));
	disk_event(MADE, 0);
	open_store();
	take_handles();
	if (dice(5) == 0) /* each failure that is waited for takes a second; five make a commit */
		let_disk_fail("index/data.mdb", 30);
	journal_fails = dice(2) ? dice(STEPS) : STEPS;
	while (sh->steps < STEPS && !disk_is_full()) {
		if (sh->steps == journal_fails && !let_journal_fail())
			journal_fails++;
		step();
	}
	expect_everything();
	let_disk_fail("index/data.mdb", 0);
	if (dice(3) == 0) {
		for (unsigned i = 0; i < BRANCHES; i++)
			branch_closep(&handles[i]);
		ck_ok(store_close(store));
		disk_event(SYNCED, sh->steps);
	} else { /* a mark that is stored into the mapping behind disk_end would not be recorded */
		pthread_mutex_lock(&store->commit_lock);
	}
	disk_end();
	_exit(0);
}

/* ---- what is found afterwards ---- */

static void expect_quiet(void)
{
	ck_assert_msg(!strstr(scratch.last_note, "damage"), "seed %llu: %s",
		      (unsigned long long)seed, scratch.last_note);
}

/* *found: what the branches are now. */
static void examine(const struct told *told, struct moment found[static BRANCHES])
{
	struct branch *b;
	uint64_t id;

	scratch.last_note[0] = '\0';
	open_store();
	expect_quiet();
	compare(told, found);
	expect_sound(NULL);

	/* It works, and what it is now it stays. */
	b = found[0].there ? branch_at(name_of_branch(0)) : branch_make(name_of_branch(0));
	change(b, 500, "after the cut");
	id = checkpoint(b, NULL);
	/* Before a first commit, nothing on disk says how many there were. */
	ck_assert_msg(snap_at(id) < 0 || !told->committed, "seed %llu: an id was given out again",
		      (unsigned long long)seed);
	change(b, 500, "later");
	branch_close(b);
	ck_ok(store_close(store));
	open_store();
	for (unsigned i = found[0].there ? 0 : 1; i < BRANCHES; i++) {
		_cleanup_(branch_closep) struct branch *again = NULL;
		uint64_t sums[KEYS];

		if (!found[i].there)
			continue;
		again = branch_at(name_of_branch(i));
		find_sums(again->tree, sums);
		ck_assert(state_is(again->tree, sums, &found[i].state));
		if (i == 0)
			expect_text(again, 500, "later");
	}
	expect_in_snap(id, 500, "after the cut");
	expect_sound(NULL);
	ck_ok(store_close(store));
	store = NULL;
	expect_quiet();
}

/* ---- histories ---- */

static void go_to(const char *path)
{
	closep(&scratch.dir_fd);
	scratch.dir_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	ck_assert_int_ge(scratch.dir_fd, 0);
}

static void run(void (*process)(bool make), bool make)
{
	pid_t child;
	int status;

	go_to(base);
	disk_open(base, "lock.mdb");
	child = fork();
	ck_assert_int_ge(child, 0);
	if (child == 0)
		process(make);
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "seed %llu: it ended with %x",
		      (unsigned long long)seed, (unsigned)status);
	ck_assert(disk_played());
}

static void remove_tree(const char *path)
{
	(void)nftw(path, scratch_unlink, 16, FTW_DEPTH | FTW_PHYS); /* litter at worst */
}

/* Cut where the record is now, and what was found. false: the store was not even made. */
static bool cut(const struct told *told, const char *path, uint64_t how,
		struct moment found[static BRANCHES])
{
	_cleanup_close_ int format = -1;

	disk_cut(how, path);
	go_to(path);
	reboot();
	format = openat(scratch.dir_fd, "format", O_RDONLY | O_CLOEXEC);
	if (format < 0 && !told->made) {
		ck_ok(store_init(scratch.dir_fd)); /* what is there is taken over */
		examine(told, found);
		return false;
	}
	examine(told, found);
	return true;
}

static bool disk_failed; /* somewhere in the record */

/* Where things go wrong if they do. */
static bool is_kind(size_t at, unsigned kind)
{
	switch (kind) {
	case 1:
		return disk_is_turn(at);
	case 2:
		return at > 0 && disk_is_event(at - 1, OVERWRITTEN);
	case 3:
		return at > 0 && disk_is_name(at - 1);
	case 4:
		return !disk_failed || disk_follows_failure(at);
	default:
		return true;
	}
}

/* The places of CUTS cuts, in order: anywhere, and one of each kind. */
static void choose_places(size_t places[static CUTS])
{
	const size_t n = disk_length();

	disk_failed = false;
	for (size_t i = 0; i < n && !disk_failed; i++)
		disk_failed = disk_follows_failure(i);

	for (unsigned i = 0; i < CUTS; i++) {
		size_t at = scratch_random(&sh->rng) % (n + 1);

		while (at < n && !is_kind(at, i))
			at++;
		places[i] = at;
	}
	for (unsigned i = 0; i < CUTS; i++)
		for (unsigned j = i + 1; j < CUTS; j++)
			if (places[j] < places[i]) {
				size_t swap = places[i];

				places[i] = places[j];
				places[j] = swap;
			}
}

static void history(void)
{
	bool made = false;

	snprintf(base, sizeof(base), "%s/base", scratch.path);
	ck_assert_int_eq(mkdir(base, 0700), 0);
	for (int n = 0; n < RUNS; n++) {
		struct moment found[BRANCHES];
		struct told told = { .made = made };
		size_t places[CUTS];
		uint64_t how = 0;
		char path[4200];

		run(live, !made);
		choose_places(places);
		for (unsigned i = 0; i < CUTS; i++) {
			disk_advance(places[i], hear, &told);
			how = scratch_random(&sh->rng);
			snprintf(path, sizeof(path), "%s/cut", scratch.path);
			made = cut(&told, path, how, found);
			remove_tree(path);
		}
		/* The last once more, to go on from. */
		remove_tree(base);
		disk_cut(how, base);
		disk_close();
		go_on(found);
	}
}

START_TEST(a_power_cut_leaves_what_was_synced_and_a_prefix_of_the_rest)
{
	history_setup(_i);
	history();
}
END_TEST

/* ---- what is durable in the journal alone ---- */

#define SECOND_CUTS 12 /* half find the second process's segment, which was not synced */

static void open_by_hand(void)
{
	const struct store_options options = { .commit_ms = 0 };
	const struct noter noter = { .fn = scratch_note, .arg = &scratch };

	ck_ok(store_open_with(scratch.dir_fd, &options, &noter, &store));
}

static void write_a_little(bool make)
{
	struct branch *b;

	disk_record();
	if (make)
		ck_ok(store_init(scratch.dir_fd));
	open_by_hand();
	b = make ? branch_make("main") : branch_at("main");
	change(b, 1, make ? "first" : "second");
	if (make) {
		ck_ok(store_flush(store)); /* names of files are new: the stage is synced */
		change_blob(b, 2, "little", 6);
		ck_ok(store_flush(store));
		change_blob(b, 3, "more", 4);
		ck_ok(store_flush(store));
	}
	disk_end();
	_exit(0);
}

/* Goes on with what the disk may have when the power goes now. */
static void cut_here(const char *name)
{
	char path[4200];

	disk_advance(disk_length(), NULL, NULL);
	snprintf(path, sizeof(path), "%s/%s", scratch.path, name);
	disk_cut(scratch_random(&sh->rng), path);
	disk_close();
	remove_tree(base);
	strcpy(base, path);
	reboot();
}

static void expect_bytes(struct branch *b, uint64_t a, const char *bytes)
{
	const struct key k = key_at(a);
	char got[16] = { 0 };
	struct val v;

	READ_GUARD(&b->lock);
	ck_ok(tree_get(b->tree, &k, &v));
	if (v.ref.kind == REF_BLOB)
		ck_ok(blob_read(v.ref.blob, v.ref.off, got, strlen(bytes)));
	else
		ck_ok(chunk_read(store_chunks(store), &v.ref.name, v.ref.off, got, strlen(bytes)));
	ck_assert_str_eq(got, bytes);
}

/* The power goes again when the next process has begun a segment. */
START_TEST(what_marks_had_of_the_stage_survives_a_second_cut)
{
	unsigned went_on = 0;

	history_setup(0);
	for (unsigned i = 0; i < SECOND_CUTS; i++) {
		struct branch *b;

		snprintf(base, sizeof(base), "%s/base", scratch.path);
		ck_assert_int_eq(mkdir(base, 0700), 0);
		run(write_a_little, true);
		cut_here("first");
		run(write_a_little, false);
		cut_here("second");

		go_to(base);
		went_on += faccessat(scratch.dir_fd, "journal/00000002", F_OK, 0) == 0;
		open_by_hand();
		expect_quiet();
		b = branch_at("main");
		expect_bytes(b, 2, "little");
		expect_bytes(b, 3, "more");
		expect_sound(NULL);
		branch_close(b);
		ck_ok(store_close(store));
		store = NULL;
		remove_tree(base);
	}
	ck_assert_uint_gt(went_on, 0);
}
END_TEST

/* ---- while commits fail ---- */

#define COMMITS 400 /* of which half fail */

static void *read_on(void *arg)
{
	const bool *over = arg;
	uint64_t reads = 0;

	for (; !__atomic_load_n(over, __ATOMIC_RELAXED); reads++) {
		_cleanup_free_ void *got = NULL;
		size_t len;

		ck_ok(index_get(scratch.index, INDEX_META, "key 0", 5, &got, &len));
		ck_assert_uint_ge(len, 1);
	}
	ck_assert_uint_gt(reads, 0);
	return NULL;
}

static bool commit_one(unsigned n)
{
	struct index_txn *txn;
	char key[24], value[24];

	if (index_begin(scratch.index, &txn) < 0)
		return false;
	snprintf(key, sizeof(key), "key %u", n % 8);
	snprintf(value, sizeof(value), "%u", n);
	ck_ok(index_put(txn, INDEX_META, key, strlen(key), value, strlen(value)));
	return index_commit(&txn) == 0;
}

static void live_with_readers(void)
{
	const struct noter noter = { .fn = scratch_note, .arg = &scratch };
	pthread_t readers[2];
	unsigned failed = 0;
	bool over = false;

	/* Readers hold up the pages of all commits: four or five each, of 4 KiB. */
	ck_assert_int_eq(setenv("PLYFS_TEST_MAP_BYTES", "16777216", 1), 0);
	disk_record();
	ck_ok(index_open(scratch.dir_fd, &noter, &scratch.index));
	ck_assert(commit_one(0));
	snprintf(base, sizeof(base), "%s/index/data.mdb", scratch.path);
	disk_fail(base, 10, 1);
	for (size_t i = 0; i < ARRAY_SIZE(readers); i++)
		ck_assert_int_eq(pthread_create(&readers[i], NULL, read_on, &over), 0);
	for (unsigned n = 1; n <= COMMITS; n++)
		failed += !commit_one(n);
	__atomic_store_n(&over, true, __ATOMIC_RELAXED);
	for (size_t i = 0; i < ARRAY_SIZE(readers); i++)
		pthread_join(readers[i], NULL);
	ck_assert_uint_gt(failed, COMMITS / 10);
	disk_fail(base, 0, 0);
	index_close(scratch.index);
	disk_end();
	_exit(0);
}

/* LMDB refuses to read between a commit that failed and the opening anew. */
START_TEST(reads_go_on_while_commits_fail)
{
	pid_t child;
	int status;

	ck_assert_int_eq(mkdirat(scratch.dir_fd, "index", 0700), 0);
	disk_open(scratch.path, "lock.mdb");
	child = fork();
	ck_assert_int_ge(child, 0);
	if (child == 0)
		live_with_readers();
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "it ended with %x",
		      (unsigned)status);
	disk_close();
}
END_TEST

static void setup(void)
{
	scratch_make(&scratch);
	on_event = disk_event;
	ck_assert_int_eq(setenv("PLYFS_TEST_SEGMENT_BYTES", "131072", 1), 0);
	ck_assert_int_eq(setenv("PLYFS_TEST_MAP_BYTES", "65536", 1), 0);
}

static void teardown(void)
{
	scratch_remove(&scratch);
}

int main(void)
{
	const char *times = getenv("PLYFS_TEST_HISTORIES");
	int histories = times ? atoi(times) : getenv("PLYFS_TEST_LONG") ? 67 : HISTORIES;
	TCase *tcase = tcase_create("power_cut");

	tcase_set_timeout(tcase, 240);
	tcase_add_checked_fixture(tcase, setup, teardown);
	tcase_add_loop_test(tcase, a_power_cut_leaves_what_was_synced_and_a_prefix_of_the_rest, 0,
			    histories);
	tcase_add_test(tcase, what_marks_had_of_the_stage_survives_a_second_cut);
	tcase_add_test(tcase, reads_go_on_while_commits_fail);
	return run_case("power_cut", tcase);
}
