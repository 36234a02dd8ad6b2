/* SPDX-License-Identifier: Apache-2.0 */
/* What the journal is for: a store that is opened after its process was killed. */

#include "tests/unit/segments.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "store/base/fault.h"
#include "store/format.h"
#include "store/journal.h"
#include "store/store_internal.h"
#include "store/tableop.h"

/* Runs fn with the store open in a process that then ends without closing it. */
static void in_a_process(void (*up)(void), void (*fn)(void))
{
	int status;
	pid_t child = fork();

	ck_assert_int_ge(child, 0);
	if (child == 0) {
		up();
		fn();
		raise(SIGKILL);
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void in_a_process_that_dies(void (*fn)(void))
{
	in_a_process(store_up, fn);
}

static void make_main(void)
{
	struct branch *b = branch_make("main");
	uint8_t data[3000];

	scratch_fill(data, sizeof(data), 1);
	change(b, 1, "one");
	change_blob(b, 2, data, sizeof(data));
	checkpoint(b, "first");
	change(b, 1, "two");
}

static void store_only_setup(void)
{
	scratch_make(&scratch);
	ck_ok(store_init(scratch.dir_fd));
	in_a_process_that_dies(make_main);
}

static void expect_main(void)
{
	struct branch *b = branch_at("main");

	expect_text(b, 1, "two");
	expect_text(b, 2, "b");
	ck_assert_uint_eq(b->changes, 1);
	ck_assert_uint_eq(snap_count(store), 1);
	expect_in_snap(b->head, 1, "one");
	branch_close(b);
}

START_TEST(replay_can_be_cut_short_and_done_again)
{
	unsigned noted;

	for (int i = 0; i < 3; i++)
		in_a_process_that_dies(expect_main);
	store_up();
	expect_main();
	expect_sound(NULL);
	noted = scratch.notes; /* "recovered"; or a sealer was quicker than its process died */
	ck_assert_uint_le(noted, 1);
	store_reopen();
	expect_main();
	ck_assert_uint_eq(scratch.notes, noted); /* not after the close */
}
END_TEST

static void change_two(void)
{
	struct branch *b = branch_at("main");
	_cleanup_(blob_unrefp) struct blob *blob = NULL;
	const struct key from = key_at(1), to = key_at(3);

	ck_ok(blob_new(store_stage(store), "bytes", 5, &blob));
	BRANCH_CHANGE_GUARD(b);
	const struct val v = { .data = "b", .len = 1, .ref = { .kind = REF_BLOB, .blob = blob } };
	ck_ok(tree_del(b->tree, &from));
	put_text(b->tree, 2, "three");
	put_text(b->tree, 4, "four");
	ck_ok(tree_put(b->tree, &to, &v));
	b->changes++;
}

static int unlink_in_stage(void *arg, const char *name)
{
	char path[300];

	(void)snprintf(path, sizeof(path), "stage/%s", name);
	return os_unlinkat(scratch.dir_fd, path, 0);
}

/* What main has is committed; the newest record is one that cannot be done again. */
static void make_undoable_record(void)
{
	store_up();
	ck_ok(store_sync(store));
	ck_ok(store_close(store));
	store = NULL;
	in_a_process_that_dies(change_two);
	ck_ok(os_each_name(scratch.dir_fd, "stage", unlink_in_stage, NULL));
}

START_TEST(an_operation_that_cannot_be_done_again_is_not_there_at_all)
{
	struct branch *b;

	make_undoable_record();
	store_up();
	ck_assert_ptr_nonnull(strstr(scratch.last_note, "cannot be recovered"));
	expect_main();
	b = branch_at("main");
	expect_text(b, 3, NULL);
	expect_text(b, 4, NULL);
	branch_close(b);
	expect_sound(NULL);
}
END_TEST

static void change_after_a_loss(void)
{
	change(branch_at("main"), 7, "seven");
}

static void expect_what_came_after_the_loss(void)
{
	struct branch *b;

	store_up();
	b = branch_at("main");
	expect_text(b, 1, "two");
	expect_text(b, 3, NULL);
	expect_text(b, 7, "seven");
	branch_close(b);
	expect_sound(NULL);
}

START_TEST(what_is_done_after_a_loss_does_not_end_with_it)
{
	make_undoable_record();
	in_a_process_that_dies(change_after_a_loss);
	expect_what_came_after_the_loss();
}
END_TEST

static void limit_files(rlim_t bytes)
{
	struct rlimit limit;

	(void)getrlimit(RLIMIT_FSIZE, &limit);
	limit.rlim_cur = MIN(bytes, limit.rlim_max);
	(void)setrlimit(RLIMIT_FSIZE, &limit);
}

static void nothing_can_be_written(void *arg, struct store *s, uint64_t lsn)
{
	limit_files(1);
}

/* The sealer, which runs by then, may have something to tell as well. */
static void note_of_commit(void *arg, const char *line)
{
	if (strstr(line, "cannot be committed"))
		scratch_note(arg, line);
}

static void store_up_without_room(void)
{
	const struct noter noter = { .fn = note_of_commit, .arg = &scratch };
	const struct store_options options = { .recovered = nothing_can_be_written };
	const unsigned noted = scratch.notes;
	int r;

	signal(SIGXFSZ, SIG_IGN);
	r = store_open_with(scratch.dir_fd, &options, &noter, &store);
	limit_files(RLIM_INFINITY); /* Check writes, too */
	ck_ok(r);
	ck_assert_uint_eq(scratch.notes, noted + 1);
}

static void change_durably(void)
{
	change_after_a_loss();
	ck_ok(store_flush(store));
}

START_TEST(after_a_loss_that_cannot_be_committed_fsync_waits_for_the_index)
{
	make_undoable_record();
	in_a_process(store_up_without_room, change_durably);
	expect_what_came_after_the_loss();
}
END_TEST

static void append_record(enum journal_kind kind, const void *payload, size_t len)
{
	ck_ok(journal_reserve(store->journal, len + RECORD_OVERHEAD, true));
	(void)journal_append(store->journal, kind, payload, len, len + RECORD_OVERHEAD, NULL, NULL,
			     NULL);
}

static void make_a_checkpoint_without_a_number(void)
{
	struct table_op op = { .kind = TABLE_CHECKPOINT };
	uint8_t buf[TABLE_OP_MAX];

	strcpy(op.branch, "main");
	append_record(JOURNAL_TABLE, buf, table_op_encode(&op, buf));
	change(branch_at("main"), 1, "three");
}

START_TEST(a_checkpoint_without_a_number_is_no_snapshot)
{
	in_a_process_that_dies(make_a_checkpoint_without_a_number);
	store_up();
	expect_main();
	store_reopen();
	expect_main();
	expect_sound(NULL);
}
END_TEST

static enum journal_kind odd_kind;

static void make_a_record_of_nothing(void)
{
	append_record(odd_kind, "nothing", 7);
	change(branch_at("main"), 1, "three");
}

START_TEST(a_record_that_nobody_understands_does_not_end_the_open)
{
	odd_kind = JOURNAL_CHANGE;
	in_a_process_that_dies(make_a_record_of_nothing);
	in_a_process_that_dies(expect_main);
	odd_kind = JOURNAL_TABLE;
	in_a_process_that_dies(make_a_record_of_nothing);
	store_up();
	expect_main();
	change(branch_at("main"), 7, "seven");
	expect_sound(NULL);
	store_reopen();
	expect_text(branch_at("main"), 7, "seven");
}
END_TEST

static void make_a_record_of_nothing_for_one(void)
{
	struct branch *b = branch_at("main"), *other = branch_make("other");

	change(other, 5, "five");
	append_record(JOURNAL_CHANGE, "nothing", 7);
	change(other, 5, "lost");
	ck_ok(snap_wait(store, checkpoint(b, "covers it")));
	change(b, 1, "three");
}

START_TEST(a_record_that_nobody_understands_costs_those_nothing_that_have_it_behind_them)
{
	in_a_process_that_dies(make_a_record_of_nothing_for_one);
	store_up();
	expect_text(branch_at("other"), 5, "five");
	expect_text(branch_at("main"), 1, "three");
	expect_sound(NULL);
}
END_TEST

START_TEST(branches_that_lose_something_are_named)
{
	_cleanup_close_ int fd = open_segment();

	ck_ok(os_pwrite_full(fd, "damage", 6, 64 + 24 + 2)); /* of the first record */
	store_up();
	ck_assert_ptr_nonnull(strstr(scratch.last_note, "branch 'main': 4 operations are lost"));
	expect_sound(NULL);
}
END_TEST

START_TEST(a_journal_cut_to_nothing_is_told)
{
	cut_segment("journal/00000001", 0);
	store_up();
	ck_assert_uint_eq(scratch.notes, 1);
	ck_assert_ptr_nonnull(strstr(scratch.last_note, "are lost"));
	expect_sound(NULL);
}
END_TEST

static int nth;

static void change_seven(void)
{
	char text[16];

	(void)snprintf(text, sizeof(text), "%d", nth);
	change(branch_at("main"), 7, text);
}

static void expect_seven(void)
{
	struct branch *b = branch_at("main");
	char text[16];

	(void)snprintf(text, sizeof(text), "%d", nth);
	expect_text(b, 1, "two");
	expect_text(b, 2, "b");
	expect_text(b, 7, text);
	expect_in_snap(b->head, 1, "one");
	branch_close(b);
}

/*
 * The nth call of the system that opening makes fails once; then it works as if it had not. Each
 * time there is a record to replay, and what it changes has to be read from the packs.
 */
static void open_with_failures(int err)
{
	const struct noter noter = { .fn = scratch_note, .arg = &scratch };
	bool met = true;

	for (nth = 0; met; nth++) {
		int r;

		in_a_process_that_dies(change_seven);
		fault_arm(nth, 1, err);
		r = store_open(scratch.dir_fd, &noter, &store);
		met = fault_ticks() > nth;
		fault_disarm();
		if (r == 0)
			(void)store_close(store); /* its last round may have met the fault */
		store_up();
		expect_seven();
		ck_ok(store_close(store));
		store = NULL;
		ck_assert_int_lt(nth, 5000);
	}
}

static const int failures[] = { EIO, ENOMEM, EMFILE, ENOSPC, EDQUOT, EPERM, ETIMEDOUT };

/* Each for itself, as a sanitizer takes half a minute for one. */
START_TEST(opening_survives_every_failure)
{
	open_with_failures(failures[_i]);
	store_up();
	expect_sound(NULL);
}
END_TEST

/* Like a change of fs/: refused whole, or done whole, whatever fails. */
START_TEST(a_change_that_fails_is_not_replayed_and_one_that_succeeds_is)
{
	struct branch *b;

	store_up();
	b = branch_at("main");
	for (int n = 0; n < 40; n++) {
		const struct key k = key_at(100 + n);
		const struct val v = { .data = "x", .len = 1 };
		int r;

		fault_arm(n % 10, 1, ENOMEM);
		{
			BRANCH_CHANGE_GUARD(b);
			r = tree_put(b->tree, &k, &v);
		}
		fault_disarm();
		if (r == 0)
			expect_text(b, 100 + n, "x");
		else
			expect_text(b, 100 + n, NULL);
	}
	branch_close(b);
	store_reopen();
	expect_sound(NULL);
}
END_TEST

static void fill_much(void)
{
	struct branch *b = branch_at("main");
	const char text[900] = "x";

	for (uint64_t n = 0; n < 30000; n++) {
		const struct key k = key_at(n % 50);
		const struct val v = { .data = text, .len = sizeof(text) };

		BRANCH_CHANGE_GUARD(b);
		ck_ok(tree_put(b->tree, &k, &v));
		b->changes++;
	}
	branch_close(b);
}

START_TEST(the_journal_goes_when_the_sealer_has_caught_up)
{
	struct store_stats stats;

	store_up();
	fill_much();
	ck_ok(store_sync(store));
	ck_ok(store_stats(store, &stats));
	ck_assert_uint_le(stats.journal_bytes, 2 * SEGMENT_BYTES);
	ck_ok(store_close(store));
	store = NULL;
	ck_assert_int_eq(files(), 0);
}
END_TEST

static void drop_and_make_again(void)
{
	struct branch *b = branch_at("main");

	branch_close(b);
	ck_ok(branch_drop(store, "main"));
	b = branch_make("main");
	change(b, 7, "seven");
	branch_close(b);
}

START_TEST(a_name_that_is_used_again_is_another_branch)
{
	struct branch *b;

	in_a_process_that_dies(drop_and_make_again);
	store_up();
	b = branch_at("main");
	expect_text(b, 1, NULL);
	expect_text(b, 7, "seven");
	ck_assert_uint_eq(b->head, 0);
	branch_close(b);
	expect_sound(NULL);
}
END_TEST

/* The same bytes again: the state is the committed one, once its chunks were made for a fork. */
static void write_the_same_and_go_on(void)
{
	struct branch *b = branch_at("main"), *fork;
	uint8_t data[3000];
	uint64_t id;

	ck_ok(store_sync(store));
	scratch_fill(data, sizeof(data), 1);
	change_blob(b, 2, data, sizeof(data));
	ck_ok(branch_create_from(b, "fork", &fork));
	id = checkpoint(fork, "its state is main's");
	ck_ok(snap_wait(store, id)); /* a round that does not freeze main */
	ck_ok(store_sync(store));
	scratch_fill(data, sizeof(data), 2);
	change_blob(fork, 5, data, sizeof(data)); /* where the others were in the stage */
	change(b, 3, "three");
	change(fork, 4, "four");
}

/* What is let go of, in the stage or the journal, is what the index says is not needed. */
START_TEST(a_change_that_changed_nothing_is_covered_by_the_index)
{
	struct branch *b;

	in_a_process_that_dies(write_the_same_and_go_on);
	store_up();
	b = branch_at("main");
	expect_text(b, 3, "three");
	branch_close(b);
	b = branch_at("fork");
	expect_text(b, 4, "four");
	branch_close(b);
	expect_sound(NULL);
}
END_TEST

/* The undo's snapshot is main's head again, durably; then it is asked for. */
static void checkpoint_what_a_restore_kept(void)
{
	struct branch *b = branch_at("main");
	uint64_t id;

	restore(b, b->head);
	restore(b, b->undo);
	ck_ok(store_sync(store));
	ck_assert_int_eq(branch_checkpoint(b, NULL, 0, &id), EXISTS);
}

START_TEST(what_a_checkpoint_hands_out_is_no_longer_dropped_by_itself)
{
	struct snap_info info;
	struct branch *b;

	in_a_process_that_dies(checkpoint_what_a_restore_kept);
	store_up();
	b = branch_at("main");
	expect_text(b, 1, "two");
	ck_ok(snap_get(store, b->head, &info));
	ck_assert_uint_eq(info.flags, 0);
	branch_close(b);
	expect_sound(NULL);
}
END_TEST

static uint64_t *taken;

static void take_numbers(void)
{
	struct branch *b = branch_at("main");

	*taken = store_take_ino(store, 3000000); /* more than is committed ahead */
	change(b, 5, "five");
	branch_close(b);
}

START_TEST(inode_numbers_in_the_journal_are_not_given_out_again)
{
	taken = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	in_a_process_that_dies(take_numbers);
	store_up();
	ck_assert_uint_ge(store_take_ino(store, 1), *taken + 3000000);
}
END_TEST

static void write_format_of(int version)
{
	_cleanup_close_ int fd = openat(scratch.dir_fd, "format", O_RDWR | O_TRUNC);
	const uint8_t *uuid = store_uuid(store);
	char text[FORMAT_TEXT_MAX];
	int len = snprintf(text, sizeof(text), "plyfs store\nversion %d\nuuid ", version);

	for (int i = 0; i < 16; i++)
		len += snprintf(text + len, 3, "%02x", uuid[i]);
	len += snprintf(text + len, 2, "\n");
	len += snprintf(text + len, 40, "checksum %016llx\n",
			(unsigned long long)hash64(text, (size_t)len, 0));
	ck_ok(os_pwrite_full(fd, text, (size_t)len, 0));
}

START_TEST(an_old_store_is_opened_and_marked_as_new)
{
	for (int version = FORMAT_VERSION_READ; version < FORMAT_VERSION; version++) {
		uint8_t uuid[16];

		store_up();
		write_format_of(version);
		ck_ok(store_close(store));
		store = NULL;
		ck_err(store_read_format(scratch.dir_fd, uuid), EXISTS);
		store_up();
		ck_ok(store_read_format(scratch.dir_fd, uuid));
		expect_main();
		ck_ok(store_close(store));
		store = NULL;
	}
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		replay_can_be_cut_short_and_done_again,
		an_operation_that_cannot_be_done_again_is_not_there_at_all,
		what_is_done_after_a_loss_does_not_end_with_it,
		after_a_loss_that_cannot_be_committed_fsync_waits_for_the_index,
		a_checkpoint_without_a_number_is_no_snapshot,
		a_record_that_nobody_understands_does_not_end_the_open,
		a_record_that_nobody_understands_costs_those_nothing_that_have_it_behind_them,
		branches_that_lose_something_are_named,
		a_journal_cut_to_nothing_is_told,
		a_change_that_fails_is_not_replayed_and_one_that_succeeds_is,
		the_journal_goes_when_the_sealer_has_caught_up,
		a_name_that_is_used_again_is_another_branch,
		a_change_that_changed_nothing_is_covered_by_the_index,
		what_a_checkpoint_hands_out_is_no_longer_dropped_by_itself,
		inode_numbers_in_the_journal_are_not_given_out_again,
		an_old_store_is_opened_and_marked_as_new,
	};

	TCase *tcase = tcase_create("replay");

	tcase_set_timeout(tcase, 240);
	tcase_add_checked_fixture(tcase, store_only_setup, store_teardown);
	for (size_t i = 0; i < ARRAY_SIZE(tests); i++)
		tcase_add_test(tcase, tests[i]);
	tcase_add_loop_test(tcase, opening_survives_every_failure, 0, ARRAY_SIZE(failures));
	return run_case("replay", tcase);
}
