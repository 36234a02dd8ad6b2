/* SPDX-License-Identifier: Apache-2.0 */

/* Snapshots, and the automatic ones among them: those that restores leave behind. */

#include <sys/wait.h>

#include "tests/unit/store_fixture.h"

#include "store/store_internal.h"

START_TEST(a_snapshot_is_usable_now_and_durable_soon)
{
	struct branch *b = branch_make("main");
	struct snap_info info;
	uint64_t id;

	change(b, 1, "one");
	id = checkpoint(b, "first");
	expect_in_snap(id, 1, "one");
	ck_ok(snap_wait(store, id));
	ck_ok(snap_get(store, id, &info));
	ck_assert(info.durable && info.has_root);
	ck_assert_uint_eq(info.seq, 1);
	ck_assert_str_eq(info.label, "first");
	ck_assert_str_eq(info.branch, "main");
	branch_close(b);

	store_reopen();
	ck_ok(snap_get(store, id, &info));
	ck_assert(info.durable);
	ck_assert_str_eq(info.label, "first");
	expect_in_snap(id, 1, "one");
	expect_sound(NULL);
}
END_TEST

START_TEST(a_waited_for_snapshot_survives_a_kill)
{
	int fds[2], status;
	uint64_t id = 0;
	pid_t child;

	ck_ok(store_close(store));
	store = NULL;
	ck_assert_int_eq(pipe(fds), 0);
	child = fork();
	if (child == 0) {
		struct branch *b;

		store_up();
		b = branch_make("main");
		fill(b, 1, 2000, 1);
		id = checkpoint(b, NULL);
		if (snap_wait(store, id) < 0 || write(fds[1], &id, sizeof(id)) != sizeof(id))
			_exit(1);
		change(b, 1, "in the journal only");
		_exit(0);
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert_int_eq(status, 0);
	ck_assert_int_eq(read(fds[0], &id, sizeof(id)), sizeof(id));

	store_up();
	struct branch *b = branch_at("main");
	struct val v;
	const struct key k = key_at(2);

	ck_assert_uint_eq(b->head, id);
	ck_assert_uint_eq(b->changes, 1);
	expect_text(b, 1, "in the journal only");
	ck_ok(tree_get(b->tree, &k, &v));
	ck_assert_uint_eq(v.len, 200);
	branch_close(b);
	expect_sound(NULL);
}
END_TEST

START_TEST(snapshots_are_found_by_text)
{
	struct branch *b = branch_make("main");
	char text[32];
	uint64_t ids[40], found;

	for (int i = 0; i < 40; i++) {
		change(b, i, "x");
		ids[i] = checkpoint(b, i == 5 || i == 7 ? "twice" : i == 9 ? "odd~1" : NULL);
	}
	snap_id_to_text(ids[3], text);
	ck_ok(snap_find(store, text, &found));
	ck_assert_uint_eq(found, ids[3]);
	for (char *c = text; *c; c++)
		*c = *c >= 'a' ? *c - 32 : *c;
	ck_ok(snap_find(store, text, &found));
	ck_assert_uint_eq(found, ids[3]);
	text[10] = '\0';
	ck_ok(snap_find(store, text, &found));
	ck_assert_uint_eq(found, ids[3]);

	ck_ok(snap_find(store, "main", &found));
	ck_assert_uint_eq(found, ids[39]);
	ck_ok(snap_find(store, "main~3", &found));
	ck_assert_uint_eq(found, ids[36]);
	ck_ok(snap_find(store, "main~", &found));
	ck_assert_uint_eq(found, ids[38]);
	ck_ok(snap_find(store, "@twice", &found));
	ck_assert_uint_eq(found, ids[7]);
	ck_ok(snap_find(store, "@odd~1", &found));
	ck_assert_uint_eq(found, ids[9]);
	ck_ok(snap_find(store, "@twice~1", &found));
	ck_assert_uint_eq(found, ids[6]);
	snap_id_to_text(ids[20], text);
	strcat(text, "~20");
	ck_ok(snap_find(store, text, &found));
	ck_assert_uint_eq(found, ids[0]);

	/* forty ids: some hex digit begins more than one of them */
	int ambiguous = 0;
	for (const char *digit = "0123456789abcdef"; *digit; digit++) {
		const char prefix[2] = { *digit };

		ambiguous += snap_find(store, prefix, &found) == -ERR_SNAP_AMBIGUOUS;
	}
	ck_assert_int_gt(ambiguous, 0);

	ck_err(snap_find(store, "", &found), -ERR_SNAP_UNKNOWN);
	ck_err(snap_find(store, "@", &found), -ERR_SNAP_UNKNOWN);
	ck_err(snap_find(store, "@no", &found), -ERR_SNAP_UNKNOWN);
	ck_err(snap_find(store, "~1", &found), -ERR_SNAP_UNKNOWN);
	ck_err(snap_find(store, "main~40", &found), -ERR_SNAP_UNKNOWN);
	ck_err(snap_find(store, "main~99999999999999999999999", &found), -ERR_SNAP_UNKNOWN);
	ck_err(snap_find(store, "other", &found), -ERR_SNAP_UNKNOWN);
	ck_err(snap_find(store, "0123456789abcdef", &found), -ERR_SNAP_UNKNOWN);
	branch_close(b);
}
END_TEST

struct seen {
	uint64_t ids[64];
	int count;
};

static int see(void *arg, const struct snap_info *info)
{
	struct seen *seen = arg;

	seen->ids[seen->count++] = info->id;
	return 0;
}

START_TEST(dropping_moves_children_and_heads_to_the_parent)
{
	struct branch *b = branch_make("main");
	struct snap_info info;
	struct seen seen = { .count = 0 };
	uint64_t one, two, three;

	change(b, 1, "1");
	one = checkpoint(b, NULL);
	change(b, 1, "2");
	two = checkpoint(b, NULL);
	change(b, 1, "3");
	three = checkpoint(b, NULL);
	ck_ok(store_sync(store));

	ck_ok(snap_drop(store, two));
	ck_err(snap_get(store, two, &info), -ERR_SNAP_UNKNOWN);
	ck_ok(snap_get(store, three, &info));
	ck_assert_uint_eq(info.parent, one);
	ck_ok(snap_drop(store, three));
	ck_assert_uint_eq(b->head, one);
	ck_assert_uint_gt(b->changes, 0);
	ck_err(snap_drop(store, three), -ERR_SNAP_UNKNOWN);
	ck_ok(snap_each(store, see, &seen));
	ck_assert_int_eq(seen.count, 1);
	ck_assert_uint_eq(snap_count(store), 1);
	ck_ok(store_sync(store));
	expect_sound(NULL);
	branch_close(b);

	store_reopen();
	ck_assert_uint_eq(snap_count(store), 1);
	b = branch_at("main");
	ck_assert_uint_eq(b->head, one);
	expect_text(b, 1, "3");
	branch_close(b);
	expect_sound(NULL);
}
END_TEST

START_TEST(a_pinned_snapshot_cannot_be_dropped)
{
	struct branch *b = branch_make("main");
	uint64_t id;

	change(b, 1, "1");
	id = checkpoint(b, NULL);
	ck_ok(snap_pin(store, id));
	ck_err(snap_drop(store, id), -ERR_SNAP_IN_USE);
	snap_unpin(store, id);
	ck_ok(snap_drop(store, id));
	ck_err(snap_pin(store, id), -ERR_SNAP_UNKNOWN);
	ck_err(snap_wait(store, id), -ERR_SNAP_UNKNOWN);
	branch_close(b);
}
END_TEST

START_TEST(long_labels_are_refused)
{
	_cleanup_(root_unrefp) struct root *root = NULL;
	char label[LABEL_MAX + 2];
	uint64_t id;

	memset(label, 'x', sizeof(label));
	label[LABEL_MAX + 1] = '\0';
	ck_ok(root_empty(store_nodes(store), &root));
	ck_err(snap_create(store, root, 0, 1, "main", label, 0, &id), -ENAMETOOLONG);
	label[LABEL_MAX] = '\0';
	ck_ok(snap_create(store, root, 0, 1, "main", label, 0, &id));
	ck_ok(snap_wait(store, id));
}
END_TEST

static size_t roots_in_memory(void)
{
	LOCK_GUARD(&store->table);

	return store->lru_length;
}

START_TEST(old_states_leave_memory_and_come_back)
{
	struct branch *b = branch_make("main");
	struct store_stats stats;
	uint64_t first = 0;
	char text[16];

	for (int i = 0; i < ROOTS_IN_MEMORY + 50; i++) {
		(void)snprintf(text, sizeof(text), "%d", i);
		change(b, 1, text);
		uint64_t id = checkpoint(b, NULL);
		first = first ? first : id;
	}
	ck_ok(store_sync(store));
	for (int i = 0; i < 60000 && roots_in_memory() > ROOTS_IN_MEMORY; i++)
		usleep(1000); /* trimmed after the round */
	ck_ok(store_stats(store, &stats));
	ck_assert_uint_le(stats.nodes, ROOTS_IN_MEMORY + 5);
	expect_in_snap(first, 1, "0");
	restore(b, first);
	expect_text(b, 1, "0");
	branch_close(b);
}
END_TEST

START_TEST(a_hundred_thousand_snapshots_open)
{
	enum { COUNT = 100000 };
	struct branch *b = branch_make("main");

	change(b, 1, "x");
	for (int i = 0; i < COUNT; i++) {
		WRITE_GUARD(&b->lock);
		b->changes++;
		tree_touch(b->tree, &(struct key){ .a = 1 });
		put_text(b->tree, 1, i % 2 ? "x" : "y");
		pthread_rwlock_unlock(&b->lock);
		checkpoint(b, NULL);
		pthread_rwlock_wrlock(&b->lock);
	}
	branch_close(b);
	ck_ok(store_close(store));
	store_up();
	ck_assert_uint_eq(snap_count(store), COUNT);
}
END_TEST

/* ---- automatic ones ---- */

static int count(void *arg, const struct snap_info *info)
{
	(*(unsigned *)arg)++;
	return 0;
}

static unsigned shown(void)
{
	unsigned n = 0;

	ck_ok(snap_each(store, count, &n));
	return n;
}

/* The state "1" with a checkpoint, and what a restore of that left of "2". */
static void leave_one(struct branch *b, uint64_t *ret_one)
{
	change(b, 1, "1");
	*ret_one = checkpoint(b, NULL);
	change(b, 1, "2");
	restore(b, *ret_one);
}

START_TEST(only_the_newest_automatic_snapshot_stays)
{
	struct branch *b = branch_make("main");
	struct snap_info info;
	uint64_t one, former = 0;
	char text[16];

	change(b, 1, "1");
	one = checkpoint(b, NULL);
	for (int i = 0; i < 20; i++) {
		(void)snprintf(text, sizeof(text), "try %d", i);
		change(b, 1, text);
		restore(b, one);
		ck_assert_uint_eq(snap_count(store), 2);
		if (former)
			ck_err(snap_get(store, former, &info), -ERR_SNAP_UNKNOWN);
		former = b->undo;
		if (i % 5 == 0)
			ck_ok(store_sync(store));
	}
	branch_close(b);
	store_reopen();
	ck_assert_uint_eq(snap_count(store), 2);
	expect_sound(NULL);
}
END_TEST

START_TEST(undone_and_changed_again_leaves_no_trail)
{
	struct branch *b = branch_make("main");
	uint64_t one;
	char text[16];

	change(b, 1, "1");
	one = checkpoint(b, NULL);
	for (int i = 0; i < 20; i++) {
		(void)snprintf(text, sizeof(text), "try %d", i);
		change(b, 1, text);
		restore(b, i % 3 ? b->undo ? b->undo : one : one);
		ck_assert_uint_le(snap_count(store), 3);
	}
	change(b, 1, "end");
	restore(b, one);
	change(b, 1, "end 2");
	restore(b, one);
	ck_assert_uint_eq(snap_count(store), 2);
	branch_close(b);
}
END_TEST

START_TEST(a_restore_to_the_head_with_nothing_changed_keeps_undo)
{
	struct branch *b = branch_make("main");
	uint64_t one, undo;

	leave_one(b, &one);
	undo = b->undo;
	restore(b, one);
	ck_assert_uint_eq(b->undo, undo);
	restore(b, undo);
	expect_text(b, 1, "2");
	branch_close(b);
}
END_TEST

/* A search labels a state again, or a fork does: several snapshots then have it. */
START_TEST(a_restore_to_another_snapshot_of_the_same_state_keeps_undo)
{
	struct branch *b = branch_make("main");
	uint64_t one, two, undo;

	leave_one(b, &one);
	undo = b->undo;
	two = checkpoint(b, "the same");
	ck_assert_uint_ne(one, two);
	for (int i = 0; i < 2; i++) {
		restore(b, one);
		ck_assert_uint_eq(b->undo, undo);
		restore(b, two);
		ck_assert_uint_eq(b->undo, undo);
		branch_close(b);
		store_reopen(); /* then their roots are one by name only */
		b = branch_at("main");
	}
	restore(b, undo);
	expect_text(b, 1, "2");
	branch_close(b);
	expect_sound(NULL);
}
END_TEST

START_TEST(a_checkpoint_that_answers_with_an_automatic_snapshot_keeps_it)
{
	struct branch *b = branch_make("main");
	struct snap_info info;
	uint64_t one, id;

	leave_one(b, &one);
	restore(b, b->undo);
	ck_ok(store_sync(store));
	ck_err(branch_checkpoint(b, NULL, 0, &id), EXISTS);
	restore(b, one);
	change(b, 1, "3");
	restore(b, one);
	ck_ok(snap_get(store, id, &info));
	ck_assert_uint_eq(info.flags, 0);
	branch_close(b);
	store_reopen();
	ck_ok(snap_get(store, id, &info));
	ck_assert_uint_eq(info.flags, 0);
	expect_in_snap(id, 1, "2");
}
END_TEST

START_TEST(an_automatic_snapshot_that_another_needs_stays)
{
	_cleanup_(root_unrefp) struct root *root = NULL;
	struct branch *b = branch_make("main"), *fork;
	struct snap_info info;
	uint64_t one, undo, child;

	leave_one(b, &one);
	undo = b->undo;
	ck_ok(snap_root(store, undo, &root));
	ck_ok(branch_create(store, "fork", root, undo, b->lineage, &fork));
	ck_assert_uint_eq(fork->changes, 0);
	change(b, 1, "3");
	restore(b, one);
	ck_ok(snap_get(store, undo, &info));
	change(fork, 1, "4");
	child = checkpoint(fork, NULL);
	ck_ok(snap_get(store, child, &info));
	ck_assert_uint_eq(info.parent, undo);
	ck_ok(snap_drop(store, child)); /* its parent is the fork's head now */
	ck_assert_uint_eq(fork->head, undo);
	branch_close(fork);
	ck_ok(branch_drop(store, "fork"));
	ck_err(snap_get(store, undo, &info), -ERR_SNAP_UNKNOWN);
	branch_close(b);
	expect_sound(NULL);
}
END_TEST

START_TEST(an_automatic_snapshot_goes_with_the_last_that_needed_it)
{
	struct branch *b = branch_make("main");
	struct snap_info info;
	uint64_t one, left, child;

	leave_one(b, &one);
	left = b->undo;
	restore(b, left);
	change(b, 1, "3");
	child = checkpoint(b, NULL);
	restore(b, one);
	ck_ok(snap_get(store, child, &info));
	ck_assert_uint_eq(info.parent, left);
	ck_ok(snap_drop(store, child));
	ck_err(snap_get(store, left, &info), -ERR_SNAP_UNKNOWN);
	ck_assert_uint_eq(snap_count(store), 1);
	branch_close(b);
	expect_sound(NULL);
}
END_TEST

/* Its changes were none since the snapshot that is gone. */
START_TEST(a_closed_branch_whose_head_goes_differs_from_the_next)
{
	struct branch *b = branch_make("main");
	uint64_t one, two, id;

	change(b, 1, "1");
	one = checkpoint(b, NULL);
	change(b, 1, "2");
	two = checkpoint(b, NULL);
	branch_close(b);
	ck_ok(snap_drop(store, two));
	b = branch_at("main");
	ck_assert_uint_eq(b->head, one);
	ck_assert_uint_gt(b->changes, 0);
	id = checkpoint(b, NULL);
	ck_assert_uint_ne(id, one);
	expect_in_snap(id, 1, "2");
	branch_close(b);
}
END_TEST

START_TEST(what_was_changed_and_changed_back_has_its_snapshot)
{
	struct branch *b = branch_make("main");
	uint64_t one, two, id;

	change(b, 1, "1");
	one = checkpoint(b, NULL);
	change(b, 1, "2");
	two = checkpoint(b, NULL);
	for (int i = 0; i < 2; i++) {
		change(b, 1, "3");
		change(b, 1, "2");
		ck_ok(store_sync(store)); /* it has a name now, and so it is known */
		if (i == 0) {
			ck_err(branch_checkpoint(b, NULL, 0, &id), EXISTS);
			ck_assert_uint_eq(id, two);
		} else {
			restore(b, one);
			ck_assert_uint_eq(b->undo, two);
		}
		ck_assert_uint_eq(snap_count(store), 2);
	}
	branch_close(b);
}
END_TEST

START_TEST(one_that_a_view_goes_on_from_stays_and_is_not_shown)
{
	struct branch *b = branch_make("main");
	struct store_stats stats;
	struct snap_info info;
	uint64_t one, undo;

	leave_one(b, &one);
	undo = b->undo;
	ck_ok(snap_need(store, undo));
	ck_ok(snap_need(store, undo)); /* by two of its states */
	ck_assert_uint_eq(shown(), 2);
	change(b, 1, "3");
	restore(b, one);
	ck_assert_uint_eq(shown(), 2); /* another one is */
	ck_assert_uint_eq(snap_count(store), 3);
	ck_ok(store_stats(store, &stats));
	ck_assert_uint_eq(stats.snapshots, 2);
	expect_in_snap(undo, 1, "2");
	ck_ok(store_sync(store));
	snap_unneed(store, undo);
	ck_ok(snap_get(store, undo, &info));
	snap_unneed(store, undo);
	ck_err(snap_get(store, undo, &info), -ERR_SNAP_UNKNOWN);
	ck_err(snap_need(store, undo), -ERR_SNAP_UNKNOWN);
	branch_close(b);
	expect_sound(NULL);
}
END_TEST

/* Nor as a parent. */
START_TEST(what_is_not_shown_is_left_out_of_the_tree)
{
	struct branch *b = branch_make("main");
	struct snap_info info;
	uint64_t one, hidden, found;
	char text[SNAP_ID_SIZE + 2];

	leave_one(b, &one);
	hidden = b->undo;
	restore(b, hidden);
	ck_ok(snap_need(store, hidden));
	change(b, 1, "3");
	restore(b, one);
	ck_assert_uint_eq(shown(), 2);
	ck_ok(snap_get(store, b->undo, &info));
	ck_assert_uint_eq(info.parent, one);
	strcat(snap_id_to_text(b->undo, text), "~");
	ck_ok(snap_find(store, text, &found));
	ck_assert_uint_eq(found, one);
	snap_unneed(store, hidden);
	ck_ok(snap_get(store, b->undo, &info));
	ck_assert_uint_eq(info.parent, one);
	branch_close(b);
	expect_sound(NULL);
}
END_TEST

static void expect_unknown(uint64_t id)
{
	char text[SNAP_ID_SIZE], head[5] = "";
	uint64_t found;

	snap_id_to_text(id, text);
	ck_err(snap_find(store, text, &found), -ERR_SNAP_UNKNOWN);
	memcpy(head, text, 4);
	ck_err(snap_find(store, head, &found), -ERR_SNAP_UNKNOWN);
	ck_err(snap_find(store, "@named", &found), -ERR_SNAP_UNKNOWN);
}

/* And so is one that somebody dropped, whatever stood on it. */
START_TEST(one_that_was_dropped_stays_as_well)
{
	struct branch *b = branch_make("main");
	struct snap_info info;
	uint64_t one, two, three;

	change(b, 1, "1");
	one = checkpoint(b, NULL);
	change(b, 1, "2");
	two = checkpoint(b, "named");
	change(b, 1, "3");
	three = checkpoint(b, NULL);
	restore(b, two);
	ck_ok(snap_need(store, two));
	ck_ok(store_sync(store));
	ck_ok(snap_drop(store, two));
	ck_assert_uint_eq(b->head, one);
	ck_ok(snap_get(store, three, &info));
	ck_assert_uint_eq(info.parent, one);
	ck_assert_uint_eq(shown(), 2);
	expect_unknown(two);
	ck_ok(store_sync(store));
	expect_in_snap(two, 1, "2");
	expect_sound(NULL);
	snap_unneed(store, two);
	ck_err(snap_get(store, two, &info), -ERR_SNAP_UNKNOWN);
	expect_text(b, 1, "2");
	branch_close(b);
	expect_sound(NULL);
}
END_TEST

static void has_recovered(void *arg, struct store *s, uint64_t lsn)
{
	*(bool *)arg = true;
}

/* The next process has time to say what it needs: then what nobody does goes. */
START_TEST(the_next_process_finds_what_it_goes_on_from)
{
	struct branch *b = branch_make("main");
	bool recovered = false;
	const struct store_options options = { .recovered = has_recovered, .arg = &recovered };
	struct snap_info info;
	uint64_t one, needed, not;

	leave_one(b, &one);
	needed = b->undo;
	ck_ok(snap_need(store, needed));
	change(b, 1, "3");
	restore(b, one);
	not = b->undo;
	ck_ok(snap_need(store, not));
	change(b, 1, "4");
	restore(b, one);
	branch_close(b);
	ck_ok(store_close(store));
	ck_ok(store_open_with(scratch.dir_fd, &options, NULL, &store));
	ck_assert(recovered);
	ck_ok(snap_need(store, needed));
	snap_drop_loose_ones(store);
	expect_in_snap(needed, 1, "2");
	ck_err(snap_get(store, not, &info), -ERR_SNAP_UNKNOWN);
	ck_assert_uint_eq(shown(), 2);
	store_reopen(); /* by one that goes on from none */
	ck_err(snap_get(store, needed, &info), -ERR_SNAP_UNKNOWN);
	expect_sound(NULL);
}
END_TEST

/* The id of a snapshot that was needed and dropped, in a process that is killed. */
static uint64_t dropped_by_the_dead(bool sealed)
{
	int p[2], status;
	uint64_t id = 0;
	pid_t child;

	ck_ok(store_close(store));
	store = NULL;
	ck_assert_int_eq(pipe(p), 0);
	child = fork();
	ck_assert_int_ge(child, 0);
	if (child == 0) {
		struct branch *b;

		store_up();
		b = branch_make("main");
		change(b, 1, "1");
		id = checkpoint(b, "named");
		ck_ok(snap_need(store, id));
		if (sealed)
			ck_ok(store_sync(store));
		ck_ok(snap_drop(store, id));
		if (sealed)
			ck_ok(store_sync(store));
		_exit(write(p[1], &id, sizeof(id)) != sizeof(id));
	}
	ck_assert_int_eq(read(p[0], &id, sizeof(id)), sizeof(id));
	(void)close(p[0]);
	(void)close(p[1]);
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert_int_eq(status, 0);
	return id;
}

static void expect_dropped_and_found(bool sealed)
{
	bool recovered;
	const struct store_options options = { .recovered = has_recovered, .arg = &recovered };
	uint64_t id = dropped_by_the_dead(sealed);
	struct snap_info info;

	ck_ok(store_open_with(scratch.dir_fd, &options, NULL, &store));
	ck_ok(snap_need(store, id));
	snap_drop_loose_ones(store);
	expect_unknown(id);
	ck_assert_uint_eq(shown(), 0);
	expect_in_snap(id, 1, "1");
	ck_ok(store_sync(store));
	store_reopen();
	ck_err(snap_get(store, id, &info), -ERR_SNAP_UNKNOWN);
	expect_sound(NULL);
}

START_TEST(what_was_dropped_stays_dropped_whoever_dies)
{
	expect_dropped_and_found(false);
}
END_TEST

START_TEST(so_it_does_when_the_index_has_it)
{
	expect_dropped_and_found(true);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		a_snapshot_is_usable_now_and_durable_soon,
		a_waited_for_snapshot_survives_a_kill,
		snapshots_are_found_by_text,
		dropping_moves_children_and_heads_to_the_parent,
		a_pinned_snapshot_cannot_be_dropped,
		long_labels_are_refused,
		old_states_leave_memory_and_come_back,
		a_hundred_thousand_snapshots_open,
		only_the_newest_automatic_snapshot_stays,
		undone_and_changed_again_leaves_no_trail,
		a_restore_to_the_head_with_nothing_changed_keeps_undo,
		a_restore_to_another_snapshot_of_the_same_state_keeps_undo,
		a_checkpoint_that_answers_with_an_automatic_snapshot_keeps_it,
		an_automatic_snapshot_that_another_needs_stays,
		an_automatic_snapshot_goes_with_the_last_that_needed_it,
		a_closed_branch_whose_head_goes_differs_from_the_next,
		what_was_changed_and_changed_back_has_its_snapshot,
		one_that_a_view_goes_on_from_stays_and_is_not_shown,
		what_is_not_shown_is_left_out_of_the_tree,
		one_that_was_dropped_stays_as_well,
		the_next_process_finds_what_it_goes_on_from,
		what_was_dropped_stays_dropped_whoever_dies,
		so_it_does_when_the_index_has_it,
	};

	return scratch_run("snap", tests, ARRAY_SIZE(tests), store_setup, store_teardown);
}
