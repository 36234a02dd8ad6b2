/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A view that goes on after its process: each test does something in a child that ends as if it had
 * been killed, and then opens the store and goes on with what the child left in the memo.
 */

#include "tests/unit/memo_fixture.h"

static void make_all(void)
{
	struct entry e;

	ck_assert_int_eq(make(ROOT_NODE, "old", S_IFREG | 0644, &e), 0);
	ask(10, false);
	ck_assert_int_eq(make(ROOT_NODE, "new", S_IFDIR | 0755, &e), 0);
}

START_TEST(what_was_made_and_not_answered_is_answered)
{
	struct entry e;

	killed_after(make_all);
	begin();
	ask(10, true);
	ck_assert_int_eq(make(ROOT_NODE, "new", S_IFDIR | 0755, &e), 0);
	memo_request_end();
	ck_assert(S_ISDIR(e.inode.mode));
	view_forget(view, e.node, 1); /* the reference was counted once */
	ck_assert_uint_eq(nodes_known(), 2);
	ask(12, false); /* somebody else's */
	ck_assert_int_eq(make(ROOT_NODE, "new", S_IFDIR | 0755, &e), -EEXIST);
	memo_request_end();
	end();
}
END_TEST

static void unlink_one(void)
{
	struct entry e;

	ck_assert_int_eq(make(ROOT_NODE, "a", S_IFREG | 0644, &e), 0);
	ask(4, false);
	ck_assert_int_eq(view_unlink(view, ROOT_NODE, "a", 1), 0);
}

START_TEST(what_was_removed_and_not_answered_is_answered)
{
	killed_after(unlink_one);
	begin();
	ask(4, true);
	ck_assert_int_eq(view_unlink(view, ROOT_NODE, "a", 1), 0);
	memo_request_end();
	ask(6, false);
	ck_assert_int_eq(view_unlink(view, ROOT_NODE, "a", 1), -ENOENT);
	memo_request_end();
	end();
}
END_TEST

static void write_one(void)
{
	struct entry e;

	ck_assert_int_eq(make(ROOT_NODE, "a", S_IFREG | 0644, &e), 0);
	ask(4, false);
	put(e.node, 0, "first");
}

START_TEST(a_write_that_was_done_does_not_undo_a_later_one)
{
	uint64_t a;

	killed_after(write_one);
	begin();
	a = node_of(ROOT_NODE, "a");
	put(a, 0, "later");
	ask(4, true);
	put(a, 0, "first");
	memo_request_end();
	assert_holds(a, "later");
	end();
}
END_TEST

static void begin_to_make(void)
{
	struct entry e;

	ck_assert_int_eq(make(ROOT_NODE, "a", S_IFREG | 0644, &e), 0);
	ask(4, false);
	ck_assert_int_eq(make(ROOT_NODE, "b", S_IFREG | 0644, &e), 0);
	/* As if its record had been cut short. */
	memo_receipt()->journal.lsn += 1000;
}

START_TEST(what_has_no_record_was_not_done)
{
	struct entry e;

	killed_after(begin_to_make);
	begin();
	ask(4, true);
	/* It is done anew, that is: the child's was whole, whatever the receipt says. */
	ck_assert_int_eq(make(ROOT_NODE, "b", S_IFREG | 0644, &e), -EEXIST);
	memo_request_end();
	end();
}
END_TEST

START_TEST(a_receipt_that_was_given_back_has_nothing_of_its_request)
{
	struct memo_receipt *r;

	begin();
	ask(4, false);
	ck_assert(memo_begins());
	r = memo_receipt();
	r->journal.lsn = r->journal.id = 7;
	memo_request_end();
	ask(6, false);
	ck_assert_ptr_eq(memo_receipt(), r);
	ck_assert_uint_eq(r->journal.lsn, 0);
	ck_assert_uint_eq(r->journal.id, 0);
	ck_assert(memo_begins());
	memo_request_end();
	end();
}
END_TEST

static void left_receipt(unsigned i, uint64_t unique, uint64_t lsn)
{
	first->receipts[i].unique = unique;
	first->receipts[i].what = MEMO_ENTRY;
	first->receipts[i].value = 1;
	first->receipts[i].journal.lsn = lsn;
}

START_TEST(a_request_that_came_again_keeps_its_receipt_when_others_come)
{
	struct memo_receipt *r = first->receipts;

	left_receipt(0, 4, 1);
	left_receipt(1, 8, 1); /* was answered: nobody asks for it */
	memo_recovered(first, 5);
	memo_request_begin(first, 4, true);
	memo_request_is_new(first);
	ck_assert_uint_eq(r[0].unique, 4);
	ck_assert_uint_eq(r[1].unique, 0);
	ck_assert(memo_was_done(MEMO_ENTRY, NULL));
	ck_assert(!memo_was_done(MEMO_DATA, NULL)); /* what else it does is done now */
	memo_request_end();

	/* nor has it anything of what was not done */
	left_receipt(0, 4, 6);
	memo_recovered(first, 5);
	memo_request_begin(first, 4, true);
	ck_assert(!memo_was_done(MEMO_ENTRY, NULL));
	memo_did(MEMO_ATTR, 2);
	memo_did(MEMO_DATA, 3); /* only the first of its verbs counts */
	ck_assert_uint_eq(r[0].what, MEMO_ATTR);
	ck_assert_uint_eq(r[0].value, 2);
	memo_request_end();
}
END_TEST

START_TEST(of_a_request_that_does_several_things_the_first_record_counts)
{
	struct entry e;
	uint64_t lsn;

	begin();
	ask(4, false);
	ck_assert_int_eq(make(ROOT_NODE, "a", S_IFREG | 0644, &e), 0);
	lsn = memo_receipt()->journal.lsn;
	put(e.node, 0, "text");
	ck_assert_uint_ne(lsn, 0);
	ck_assert_uint_eq(memo_receipt()->journal.lsn, lsn);
	memo_request_end();
	end();
}
END_TEST

/* Who restored the state that he was in can undo what he could before. */
START_TEST(a_restore_that_left_its_own_target_is_finished_with_the_undo_from_before)
{
	struct memo_head *h = first->head;

	for (uint64_t left = 4; left <= 6; left++) {
		h->switched = (struct memo_switch){ .target = 5, .left = 3, .changed = 1 };
		h->switch_journal.lsn = 1;
		h->switch_journal.id = left == 4 ? 0 : left; /* nothing that has a number */
		h->switch_state = MEMO_PREPARED;
		memo_recovered(first, 1);
		ck_assert_uint_eq(h->switch_state, MEMO_DONE);
		ck_assert_uint_eq(h->switched.left, left < 6 ? 3 : left);
	}

	/* So can who found nothing to change in another snapshot of it. Of another lineage, where
	 * nothing is counted, it was another state. */
	for (unsigned mode = RESTORE_NAMES; mode <= RESTORE_EPOCH; mode++) {
		h->switched = (struct memo_switch){ .target = 5, .left = 3, .mode = mode };
		h->switch_journal.lsn = 1;
		h->switch_journal.id = 6;
		h->switch_state = MEMO_PREPARED;
		memo_recovered(first, 1);
		ck_assert_uint_eq(h->switched.left, mode == RESTORE_NAMES ? 3 : 6);
	}
}
END_TEST

static void checkpoint_one(void)
{
	struct entry e;

	ck_assert_int_eq(make(ROOT_NODE, "a", S_IFREG | 0644, &e), 0);
	ask(4, false);
	ck_assert_int_eq(view_checkpoint(view, "x", false, shared_id), 0);
}

START_TEST(a_checkpoint_is_made_once)
{
	uint64_t id, keep = 0;

	/* A free value of the memo carries the id out of the child. */
	shared_id = (uint64_t *)&first->receipts[MEMO_RECEIPTS - 1].restored.target;
	killed_after(checkpoint_one);
	keep = *shared_id;
	begin();
	ask(4, true);
	ck_assert_int_eq(view_checkpoint(view, "x", false, &id), 0);
	memo_request_end();
	ck_assert_uint_eq(id, keep);
	ck_assert_uint_eq(snap_count(store), 1);
	ask(6, false);
	ck_assert_int_eq(view_checkpoint(view, "y", false, &id), 0);
	memo_request_end();
	ck_assert_uint_ne(id, keep);
	end();
}
END_TEST

START_TEST(receipts_nobody_asks_for_are_free_at_the_first_new_request)
{
	unsigned used = 0;

	killed_after(unlink_one);
	begin();
	memo_request_is_new(view_memo(view));
	for (unsigned i = 0; i < MEMO_RECEIPTS; i++)
		used += first->receipts[i].unique != 0;
	ck_assert_uint_eq(used, 0);
	end();
}
END_TEST

START_TEST(who_tells_the_kernel_can_be_seen_as_long_as_he_does)
{
	_Atomic int32_t *others = first->head->tellers;
	struct memo *next;

	ck_assert(!memo_is_teller(first->fd, gettid()));
	for (unsigned i = 0; i < 2; i++) {
		others[0] = i ? INT32_MAX : 0; /* another one tells something else */
		memo_tells(first, true);
		ck_assert(memo_is_teller(first->fd, gettid()));
		ck_assert(!i || memo_is_teller(first->fd, INT32_MAX));
		memo_tells(first, false);
		ck_assert(!memo_is_teller(first->fd, gettid()));
	}
	for (unsigned i = 0; i < MEMO_TELLERS; i++)
		others[i] = INT32_MAX; /* no room: it is not seen, and does it all the same */
	memo_tells(first, true);
	memo_tells(first, false);
	ck_assert(memo_is_teller(first->fd, INT32_MAX));

	first->head->has_epoch = true;
	first->head->kept = true;
	ck_assert_int_eq(memo_open(dup(first->fd), &next), 0);
	ck_assert(!memo_is_teller(first->fd, INT32_MAX)); /* the next process is another one */
	memo_close(next);
}
END_TEST

START_TEST(another_layout_is_not_understood)
{
	uint32_t n_slots, init_len;
	struct memo *m;

	first->head->version++;
	ck_assert_int_eq(memo_open(dup(first->fd), &m), -ERR_MEMO);
	first->head->version--;
	first->head->magic[0]++;
	ck_assert_int_eq(memo_open(dup(first->fd), &m), -ERR_MEMO);
	first->head->magic[0]--;
	/* lengths that would lead out of it */
	n_slots = first->head->n_slots;
	first->head->n_slots = MEMO_NODES_MAX + 1;
	ck_assert_int_eq(memo_open(dup(first->fd), &m), -ERR_MEMO);
	first->head->n_slots = n_slots;
	init_len = first->head->init_len;
	first->head->init_len = MEMO_INIT_MAX + 1;
	ck_assert_int_eq(memo_open(dup(first->fd), &m), -ERR_MEMO);
	first->head->init_len = init_len;
	/* more slots than were ever written */
	first->head->n_slots = 10000;
	ck_assert_int_eq(memo_open(dup(first->fd), &m), -ERR_MEMO);
	first->head->n_slots = n_slots;
	first->head->has_epoch = false; /* which all that comes of a restore needs */
	ck_assert_int_eq(memo_open(dup(first->fd), &m), -ERR_MEMO);
	first->head->has_epoch = true;
	/* no place for any request */
	for (int i = 0; i < MEMO_RECEIPTS; i++)
		first->receipts[i].unique = 1;
	ck_assert_int_eq(memo_open(dup(first->fd), &m), -ERR_MEMO);
	first->receipts[MEMO_RECEIPTS - 1].unique = 0;
	ck_assert_int_eq(memo_open(dup(first->fd), &m), 0);
	memo_close(m);
	first->head->kept = false; /* INIT was never answered */
	ck_assert_int_eq(memo_open(dup(first->fd), &m), -ERR_MEMO);
	ck_assert_int_eq(memo_open(open("/dev/null", O_RDWR | O_CLOEXEC), &m), -ERR_MEMO);
}
END_TEST

static void make_one(void)
{
	struct entry e;

	ck_assert_int_eq(make(ROOT_NODE, "a", S_IFREG | 0644, &e), 0);
}

/* No kill leaves such records, so what else it says is not believed either. */
START_TEST(what_cannot_be_is_not_gone_on_with)
{
	struct memo_node *root = &first->nodes[ROOT_NODE], *a = root + 1, was_root, was;
	uint64_t node;

	killed_after(make_one);
	node = a->node;
	was_root = *root;
	was = *a;
	ck_assert_int_eq(store_open(scratch.dir_fd, NULL, &store), 0);
	for (int i = 0; i < 6; i++) {
		if (i < 2) /* the node id of another slot */
			a->node = i ? 1000000 : ROOT_NODE;
		else if (i == 2)
			root->node = 0;
		else if (i == 3)
			root->ino = 1000;
		else if (i == 4)
			root->type = S_IFREG;
		else
			root->flags = 0;
		ck_assert_int_eq(view_open(store, "main", same_memo(), &view), -ERR_MEMO);
		*root = was_root;
		*a = was;
	}
	ck_assert_int_eq(store_close(store), 0);
	begin();
	ck_assert_uint_eq(node_of(ROOT_NODE, "a"), node);
	end();
}
END_TEST

int main(void)
{
	TCase *c = tcase_create("memo");

	tcase_add_checked_fixture(c, memo_setup, memo_teardown);
	tcase_set_timeout(c, 240);
	tcase_add_test(c, what_was_made_and_not_answered_is_answered);
	tcase_add_test(c, what_was_removed_and_not_answered_is_answered);
	tcase_add_test(c, a_write_that_was_done_does_not_undo_a_later_one);
	tcase_add_test(c, what_has_no_record_was_not_done);
	tcase_add_test(c, a_receipt_that_was_given_back_has_nothing_of_its_request);
	tcase_add_test(c, a_request_that_came_again_keeps_its_receipt_when_others_come);
	tcase_add_test(c, of_a_request_that_does_several_things_the_first_record_counts);
	tcase_add_test(c, a_restore_that_left_its_own_target_is_finished_with_the_undo_from_before);
	tcase_add_test(c, a_checkpoint_is_made_once);
	tcase_add_test(c, receipts_nobody_asks_for_are_free_at_the_first_new_request);
	tcase_add_test(c, who_tells_the_kernel_can_be_seen_as_long_as_he_does);
	tcase_add_test(c, another_layout_is_not_understood);
	tcase_add_test(c, what_cannot_be_is_not_gone_on_with);
	return run_case("memo", c);
}
