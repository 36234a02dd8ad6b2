/* SPDX-License-Identifier: Apache-2.0 */

/* Write-behind: bytes that are answered before they are in the stage. */

#include "tests/unit/scratch.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "store/base/fault.h"
#include "store/behind.h"
#include "store/boot.h"
#include "store/format.h"
#include "store/stage_internal.h"

#define LEN 100000

static struct scratch s;
static uint8_t first[LEN], second[LEN];

static void setup(void)
{
	scratch_make(&s);
	scratch_open(&s);
	scratch_fill(first, LEN, 1);
	scratch_fill(second, LEN, 2);
}

static void teardown(void)
{
	fault_disarm();
	scratch_close(&s);
	scratch_remove(&s);
}

/* A slot that the calling thread serves, and in it what is as if it came with a request. */
static uint8_t *slot_with(const void *data, size_t len, uint8_t **ret_slot)
{
	*ret_slot = stage_slot_take(s.stage);
	ck_assert_ptr_nonnull(*ret_slot);
	memcpy(*ret_slot + 4096, data, len);
	stage_slot_serve(s.stage, *ret_slot);
	return *ret_slot + 4096;
}

/* Another daemon opens the store. */
static void reopen(void)
{
	const struct noter noter = { .fn = scratch_note, .arg = &s };

	stage_close(s.stage);
	ck_ok(stage_open(s.dir_fd, s.chunks, &noter, &s.stage));
}

/* Files can be read and cannot be written, as on a full disk; or all as ever. */
static void full_disk(bool on)
{
	struct rlimit limit;

	(void)signal(SIGXFSZ, SIG_IGN); /* EFBIG it is */
	ck_ok(getrlimit(RLIMIT_FSIZE, &limit));
	limit.rlim_cur = on ? 0 : limit.rlim_max;
	ck_ok(setrlimit(RLIMIT_FSIZE, &limit));
}

static void leave(uint8_t *slot)
{
	stage_slot_serve(s.stage, NULL);
	stage_slot_give(s.stage, slot);
}

static struct blob *make(const void *data)
{
	struct blob *b = NULL;

	ck_ok(blob_new(s.stage, data, LEN, &b));
	return b;
}

static void expect(struct blob *b, const void *data)
{
	static uint8_t buf[LEN];

	ck_ok(blob_read(b, 0, buf, LEN));
	ck_assert_mem_eq(buf, data, LEN);
}

/* What the stage's file has, past all of ours. */
static bool is_in_file(uint32_t number, uint32_t off, const void *data)
{
	static uint8_t buf[LEN];
	char name[32];
	int fd, r;

	snprintf(name, sizeof(name), "stage/%08x", number);
	ck_ok(os_openat(s.dir_fd, name, O_RDONLY, 0, &fd));
	r = os_pread_full(fd, buf, LEN, off);
	close(fd);
	return r == 0 && memcmp(buf, data, LEN) == 0;
}

static bool is_copied(const struct blob *b, const void *data)
{
	uint32_t number, off;

	blob_place(b, &number, &off);
	return is_in_file(number, off, data);
}

START_TEST(bytes_are_copied_after_the_answer_or_when_somebody_needs_them)
{
	uint8_t *slot, *data = slot_with(first, LEN, &slot);
	_cleanup_(blob_unrefp) struct blob *a = make(data), *b = NULL, *c = NULL;
	struct name name, direct = name_of(second, LEN, 0);

	ck_assert(!is_copied(a, first));
	ck_ok(stage_slot_served(s.stage));
	ck_assert(is_copied(a, first));

	memcpy(data, second, LEN); /* the next request */
	expect(a, first);
	b = make(data);
	ck_assert(!is_copied(b, second));
	expect(b, second);
	ck_assert(is_copied(b, second));

	c = make(data);
	ck_ok(blob_seal(c, &name));
	ck_assert(name_eq(&name, &direct));
	leave(slot);
}
END_TEST

START_TEST(a_sync_has_them)
{
	uint8_t *slot, *data = slot_with(first, LEN, &slot);
	_cleanup_(blob_unrefp) struct blob *a = make(data);

	stage_hold_still(s.stage, true);
	stage_hold_still(s.stage, false);
	ck_ok(stage_sync(s.stage));
	ck_assert(is_copied(a, first));
	leave(slot);
}
END_TEST

START_TEST(a_copy_for_the_journal_has_them)
{
	enum { LITTLE = 50000 };
	_cleanup_(blob_unrefp) struct blob *a = NULL, *b = NULL;
	_cleanup_free_ struct journal_mark_bytes *copy = NULL;
	uint8_t *slot, *data = slot_with(first, LITTLE, &slot);
	size_t len;

	ck_ok(blob_new(s.stage, second, 1, &a));
	stage_hold_still(s.stage, true);
	stage_hold_still(s.stage, false);
	ck_ok(stage_sync(s.stage));
	stage_is_durable(s.stage);
	ck_ok(blob_new(s.stage, data, LITTLE, &b));
	copy = stage_copy(s.stage, &len);
	ck_assert_ptr_nonnull(copy);
	ck_assert_uint_eq(len, LITTLE);
	ck_assert_mem_eq(copy->bytes, first, LITTLE);
	leave(slot);
}
END_TEST

START_TEST(what_is_lent_has_them)
{
	static const _Atomic uint64_t lsn = 1;
	uint8_t *slot, *data = slot_with(first, LEN, &slot);
	_cleanup_(blob_unrefp) struct blob *a = make(data);
	struct loan loan = { 0 };
	const void *lent;

	stage_hold(s.stage, &lsn);
	lent = blob_lend(a, 0, LEN, &loan);
	ck_assert_ptr_nonnull(lent);
	ck_assert_mem_eq(lent, first, LEN);
	loan_end(&loan);
	leave(slot);
}
END_TEST

START_TEST(what_comes_later_is_not_overwritten_by_what_was_left)
{
	uint8_t *slot, *data = slot_with(first, LEN, &slot);
	_cleanup_(blob_unrefp) struct blob *a = make(data);

	ck_ok(blob_write(a, 0, second, LEN)); /* from other memory */
	ck_ok(stage_slot_served(s.stage));
	expect(a, second);
	leave(slot);
}
END_TEST

START_TEST(a_blob_that_goes_leaves_nothing_to_copy)
{
	uint8_t *slot, *data = slot_with(first, LEN, &slot);
	struct blob *a, *b;
	uint32_t number, off;

	stage_hold(s.stage, NULL); /* room is used again at once */
	a = make(data);
	blob_place(a, &number, &off);
	blob_unref(a);
	stage_slot_serve(s.stage, NULL);
	b = make(second); /* in its place */
	ck_assert(is_in_file(number, off, second));
	stage_slot_serve(s.stage, slot);
	ck_ok(stage_slot_served(s.stage));
	expect(b, second);
	blob_unref(b);
	leave(slot);
}
END_TEST

START_TEST(short_bytes_and_those_of_other_memory_are_copied_at_once)
{
	uint8_t *slot;
	struct blob *a, *b = NULL;
	uint8_t got[100];

	(void)slot_with(first, LEN, &slot);
	a = make(second);
	ck_assert(is_copied(a, second));
	ck_ok(blob_new(s.stage, slot + 4096, 100, &b));
	memset(slot + 4096, 0, LEN); /* nothing is pending in it */
	leave(slot);
	ck_ok(blob_read(b, 0, got, 100));
	ck_assert_mem_eq(got, first, 100);
	blob_unref(a);
	blob_unref(b);
}
END_TEST

START_TEST(bytes_that_came_beside_a_slot_are_put_into_it_while_there_is_room)
{
	static uint8_t data[LEN];
	uint8_t *slot = stage_slot_take(s.stage);
	struct blob *a, *b, *c;

	ck_assert_ptr_nonnull(slot);
	stage_slot_serve_beside(s.stage, slot);
	memcpy(data, first, LEN);
	a = make(data);
	memset(data, 0, LEN); /* what is pending is not there */
	ck_assert(!is_copied(a, first));
	b = make(second);
	ck_assert(is_copied(b, second) && !is_copied(a, first));
	expect(a, first);
	ck_assert(is_copied(a, first));
	c = make(second); /* room again, as nothing is pending */
	ck_assert(!is_copied(c, second));
	ck_ok(stage_slot_served(s.stage));
	ck_assert(is_copied(c, second));
	leave(slot);
	blob_unref(a);
	blob_unref(b);
	blob_unref(c);
}
END_TEST

START_TEST(of_those_several_are_left_and_none_is_in_anothers_place)
{
	enum { LITTLE = LEN / 3 };
	static uint8_t data[LITTLE], got[LITTLE];
	uint8_t *slot = stage_slot_take(s.stage);
	struct blob *blobs[3];

	ck_assert_ptr_nonnull(slot);
	stage_slot_serve_beside(s.stage, slot);
	for (size_t i = 0; i < ARRAY_SIZE(blobs); i++) {
		memcpy(data, first + i * LITTLE, LITTLE);
		ck_ok(blob_new(s.stage, data, LITTLE, &blobs[i]));
	}
	for (size_t i = 0; i < ARRAY_SIZE(blobs); i++) {
		ck_ok(blob_read(blobs[i], 0, got, LITTLE));
		ck_assert_mem_eq(got, first + i * LITTLE, LITTLE);
		blob_unref(blobs[i]);
	}
	leave(slot);
}
END_TEST

START_TEST(into_a_slot_that_the_disk_lost_nothing_is_put)
{
	uint8_t *slot = stage_slot_take(s.stage);
	struct blob *a;
	int fd;

	ck_assert_ptr_nonnull(slot);
	stage_slot_serve_beside(s.stage, slot);
	ck_ok(os_openat(s.dir_fd, "stage/behind", O_WRONLY | O_TRUNC, 0, &fd));
	close(fd);
	a = make(first);
	ck_assert(is_copied(a, first));
	leave(slot);
	blob_unref(a);
}
END_TEST

START_TEST(a_full_disk_keeps_them_in_memory_and_fails_the_sync)
{
	uint8_t *slot, *data = slot_with(first, LEN, &slot), *others[16];
	_cleanup_(blob_unrefp) struct blob *a = make(data);
	unsigned n = 0, all;

	fault_arm(0, 1000, ENOSPC);
	ck_err(stage_slot_served(s.stage), -ENOSPC);
	expect(a, first);
	ck_err(stage_sync(s.stage), -ENOSPC);
	stage_slot_serve(s.stage, NULL);
	stage_slot_give_up(s.stage, slot);
	fault_disarm();

	/* Nobody else gets the slot before its bytes are where they belong. */
	while ((others[n] = stage_slot_take(s.stage)) != NULL)
		ck_assert_ptr_ne(others[n++], slot);
	all = n;
	while (n > 0)
		stage_slot_give(s.stage, others[--n]);
	ck_ok(stage_sync(s.stage));
	ck_assert(is_copied(a, first));
	while ((others[n] = stage_slot_take(s.stage)) != NULL)
		n++;
	ck_assert_uint_eq(n, all + 1);
	while (n > 0)
		stage_slot_give(s.stage, others[--n]);
}
END_TEST

START_TEST(what_cannot_be_copied_is_read_where_it_is)
{
	_cleanup_(blob_unrefp) struct blob *before = make(second), *a = NULL, *b = NULL;
	uint8_t *slot, *data = slot_with(first, LEN, &slot), buf[2000];

	a = make(data);
	memcpy(data + LEN, second, LEN);
	b = make(data + LEN);
	full_disk(true);
	expect(before, second);
	expect(a, first);
	expect(b, second);
	ck_ok(blob_read(a, 5000, buf, sizeof(buf)));
	ck_assert_mem_eq(buf, first + 5000, sizeof(buf));
	ck_err(blob_write(a, 5000, buf, sizeof(buf)), -EFBIG);
	full_disk(false);
	ck_assert(!is_copied(a, first));
	ck_ok(stage_slot_served(s.stage));
	expect(a, first);
	leave(slot);
}
END_TEST

START_TEST(a_slot_that_was_given_up_is_used_again_when_its_bytes_are_not_wanted)
{
	uint8_t *slot, *data = slot_with(first, LEN, &slot);
	struct blob *a = make(data);
	unsigned n = 0;

	full_disk(true);
	ck_err(stage_slot_served(s.stage), -EFBIG);
	stage_slot_serve(s.stage, NULL);
	stage_slot_give_up(s.stage, slot);
	blob_unref(a); /* as when it was sealed */
	full_disk(false);
	while (stage_slot_take(s.stage))
		n++;
	ck_assert_uint_eq(n, 4); /* all of them */
}
END_TEST

START_TEST(it_is_not_while_some_of_them_are)
{
	uint8_t *slot, *data = slot_with(first, LEN, &slot);
	_cleanup_(blob_unrefp) struct blob *b = NULL;
	struct blob *a = make(data);
	unsigned n = 0;

	memcpy(data + LEN, second, LEN);
	b = make(data + LEN);
	full_disk(true);
	ck_err(stage_slot_served(s.stage), -EFBIG);
	stage_slot_serve(s.stage, NULL);
	stage_slot_give_up(s.stage, slot);
	blob_unref(a);
	full_disk(false);
	while (stage_slot_take(s.stage))
		n++;
	ck_assert_uint_eq(n, 3);
	expect(b, second);
}
END_TEST

/* Or it would be copied over what came later. */
START_TEST(what_is_pending_is_not_written_over)
{
	_cleanup_(blob_unrefp) struct blob *before = make(first), *a = NULL;
	uint8_t *slot, *data = slot_with(first, LEN, &slot);

	a = make(data);
	fault_arm(0, 1, EIO); /* the copy fails, the write would not */
	ck_err(blob_write(a, LEN - 1, second, 1), -EIO);
	fault_arm(0, 1, EIO);
	ck_ok(blob_write(before, 0, second, LEN));
	fault_disarm();
	ck_ok(stage_slot_served(s.stage));
	expect(a, first);
	expect(before, second);
	leave(slot);
}
END_TEST

START_TEST(nothing_more_is_left_while_copies_fail)
{
	uint8_t *slot, *data = slot_with(first, LEN, &slot);
	_cleanup_(blob_unrefp) _unused_ struct blob *a = make(data), *b = NULL;

	full_disk(true);
	ck_err(stage_slot_served(s.stage), -EFBIG);
	ck_err(blob_new(s.stage, data + LEN, LEN, &b), -EFBIG); /* not a false answer */
	full_disk(false);
	ck_ok(stage_slot_served(s.stage));
	b = make(data + LEN);
	ck_assert(!is_copied(b, data + LEN));
	leave(slot);
}
END_TEST

/* The store closes with bytes that cannot be copied; boot: of the next daemon, NULL: as now. */
static void close_on_a_full_disk(const char *boot)
{
	static const _Atomic uint64_t lsn = 1; /* a record that is not covered has the blob */
	uint8_t *slot, *data = slot_with(first, LEN, &slot);
	struct blob *a = make(data);
	uint32_t number, off;

	stage_hold(s.stage, &lsn);
	blob_place(a, &number, &off);
	full_disk(true);
	stage_end(s.stage);
	blob_unref(a);
	leave(slot);
	stage_close(s.stage);
	full_disk(false);
	ck_assert(!is_in_file(number, off, first));
	if (boot)
		setenv("PLYFS_TEST_BOOT_ID", boot, 1);
	ck_ok(stage_open(s.dir_fd, s.chunks, &(struct noter){ 0 }, &s.stage));
	unsetenv("PLYFS_TEST_BOOT_ID");
	ck_assert(is_in_file(number, off, first));
}

START_TEST(what_cannot_be_copied_outlives_the_daemon)
{
	close_on_a_full_disk(NULL);
}
END_TEST

START_TEST(and_the_boot)
{
	close_on_a_full_disk("another");
}
END_TEST

/* How many slots say that they are of that boot. */
static unsigned of_boot(const uint8_t boot[static BOOT_BYTES])
{
	uint8_t got[BOOT_BYTES];
	unsigned n = 0;
	int fd;

	ck_ok(os_openat(s.dir_fd, "stage/behind", O_RDONLY, 0, &fd));
	for (uint64_t at = 8 /* the magic */; os_pread_full(fd, got, sizeof(got), at) == 0;
	     at += STAGE_SLOT_BYTES)
		n += memcmp(got, boot, sizeof(got)) == 0;
	close(fd);
	return n;
}

/* Else what the next user of one leaves would be believed after a power cut. */
START_TEST(slots_that_any_boot_may_believe_are_of_this_one_again)
{
	static const _Atomic uint64_t lsn = 1;
	static const uint8_t any[BOOT_BYTES];
	uint8_t *slot, *data = slot_with(first, LEN, &slot), this[BOOT_BYTES];
	struct blob *a = make(data);

	stage_hold(s.stage, &lsn);
	full_disk(true);
	stage_end(s.stage);
	blob_unref(a);
	leave(slot);
	stage_close(s.stage);
	ck_assert_uint_eq(of_boot(any), 4);
	setenv("PLYFS_TEST_BOOT_ID", "another", 1);
	ck_ok(boot_id(this));
	ck_ok(stage_open(s.dir_fd, s.chunks, &(struct noter){ 0 }, &s.stage));
	unsetenv("PLYFS_TEST_BOOT_ID");
	full_disk(false);
	ck_assert_uint_eq(of_boot(any), 1); /* it has them still */
	ck_assert_uint_eq(of_boot(this), 3);
	ck_ok(stage_sync(s.stage));
	ck_assert_uint_eq(of_boot(this), 4);
}
END_TEST

START_TEST(a_sync_waits_for_the_disk_as_well)
{
	uint8_t *slot, *data = slot_with(first, LEN, &slot);
	_cleanup_(blob_unrefp) _unused_ struct blob *a = NULL, *before = make(second);

	stage_hold_still(s.stage, true);
	stage_hold_still(s.stage, false);
	ck_ok(stage_sync(s.stage)); /* the file and its name: only what comes is left to do */
	a = make(data);
	stage_hold_still(s.stage, true);
	stage_hold_still(s.stage, false);
	fault_arm(1, 1000, EIO); /* the copy succeeds */
	ck_err(stage_sync(s.stage), -EIO);
	fault_disarm();
	leave(slot);
}
END_TEST

START_TEST(a_blob_that_goes_takes_nothing_of_its_neighbour)
{
	uint8_t *slot, *data = slot_with(first, LEN, &slot);
	_cleanup_(blob_unrefp) struct blob *b = NULL;
	struct blob *a = make(data);

	memcpy(data + LEN, second, LEN);
	b = make(data + LEN); /* in the same file */
	blob_unref(a);
	ck_ok(stage_slot_served(s.stage));
	ck_assert(is_copied(b, second));
	leave(slot);
}
END_TEST

START_TEST(nor_of_what_lies_there_in_another_file)
{
	uint8_t *slot, *data = slot_with(first, LEN, &slot);
	_cleanup_(blob_unrefp) struct blob *b = NULL;
	struct blob *a = make(data), *fill[42]; /* 4 MiB: a file with less is not left */
	uint32_t at[2], then[2];

	for (size_t i = 0; i < ARRAY_SIZE(fill); i++)
		fill[i] = make(second);
	ck_ok(stage_slot_served(s.stage));
	memcpy(data, first, LEN);
	stage_turn(s.stage);
	ck_ok(blob_write(a, 0, data, LEN)); /* pending again, at 0 of the first file */
	memcpy(data + LEN, second, LEN);
	b = make(data + LEN); /* at 0 of the second */
	blob_place(a, &at[0], &at[1]);
	blob_place(b, &then[0], &then[1]);
	ck_assert_uint_ne(at[0], then[0]);
	ck_assert_uint_eq(at[1], then[1]);
	blob_unref(a);
	ck_ok(stage_slot_served(s.stage));
	ck_assert(is_copied(b, second));
	for (size_t i = 0; i < ARRAY_SIZE(fill); i++)
		blob_unref(fill[i]);
	leave(slot);
}
END_TEST

START_TEST(what_lies_in_anothers_slot_is_found)
{
	uint8_t *slot, *other, *data = slot_with(first, LEN, &slot);
	_cleanup_(blob_unrefp) struct blob *a = make(data);

	(void)slot_with(second, LEN, &other);
	ck_assert_ptr_ne(slot, other);
	expect(a, first);
	leave(other);
	leave(slot);
}
END_TEST

START_TEST(a_request_of_a_mebibyte_is_left_whole)
{
	uint8_t *slot, *data = slot_with(first, LEN, &slot);
	struct blob *blobs[9];

	for (size_t i = 0; i < ARRAY_SIZE(blobs); i++) {
		scratch_fill(data + i * LEN, LEN, i);
		blobs[i] = make(data + i * LEN);
		ck_assert(!is_copied(blobs[i], data + i * LEN));
	}
	ck_ok(stage_slot_served(s.stage));
	for (size_t i = 0; i < ARRAY_SIZE(blobs); i++) {
		ck_assert(is_copied(blobs[i], data + i * LEN));
		blob_unref(blobs[i]);
	}
	leave(slot);
}
END_TEST

START_TEST(that_nothing_could_be_copied_is_told_once_each_time)
{
	uint8_t *slot, *data = slot_with(first, LEN, &slot);
	_cleanup_(blob_unrefp) struct blob *a = make(data), *b = NULL;

	for (int i = 0; i < 3; i++) {
		fault_arm(0, 1000, ENOSPC);
		ck_err(stage_slot_served(s.stage), -ENOSPC);
	}
	ck_assert_uint_eq(s.notes, 1);
	fault_disarm();
	ck_ok(stage_slot_served(s.stage));
	expect(a, first);
	b = make(data);
	fault_arm(0, 1000, ENOSPC);
	ck_err(stage_slot_served(s.stage), -ENOSPC);
	fault_disarm();
	ck_assert_uint_eq(s.notes, 2);
	ck_ok(stage_slot_served(s.stage));
	leave(slot);
}
END_TEST

static bool file_is_there(void)
{
	return faccessat(s.dir_fd, "stage/behind", F_OK, 0) == 0;
}

START_TEST(there_is_a_slot_or_nothing_of_it)
{
	uint8_t *slot;

	for (int n = 0;; n++) {
		fault_arm(n, 1, ENOSPC);
		slot = stage_slot_take(s.stage);
		fault_disarm();
		if (slot)
			break;
		ck_assert(!file_is_there());
		ck_assert_ptr_null(stage_slot_take(s.stage)); /* it is not tried each time */
		scratch_close(&s);
		scratch_open(&s);
	}
	ck_assert(file_is_there());
	stage_slot_give(s.stage, slot);
	stage_close(s.stage);
	ck_assert(!file_is_there());
	ck_ok(stage_open(s.dir_fd, s.chunks, &(struct noter){ 0 }, &s.stage));
}
END_TEST

#define PENDING 4 /* two pieces in each of two slots */

/* A process that dies with bytes pending; where they belong. */
static void die_with_pending(uint32_t place[static 2 * PENDING])
{
	int fds[2], status;
	pid_t pid;

	ck_ok(pipe(fds));
	pid = fork();
	if (pid == 0) {
		uint32_t p[2 * PENDING];
		uint8_t *slot = NULL, *data = NULL;

		for (int i = 0; i < PENDING; i++) {
			struct blob *a;

			if (i % 2 == 0)
				data = slot_with(first, LEN, &slot);
			memcpy(data + i % 2 * LEN, first, LEN);
			a = make(data + i % 2 * LEN);
			blob_place(a, &p[2 * i], &p[2 * i + 1]);
			if (is_copied(a, first))
				_exit(1);
		}
		_exit(write(fds[1], p, sizeof(p)) != sizeof(p));
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
	ck_assert_int_eq(read(fds[0], place, 2 * PENDING * sizeof(*place)),
			 2 * PENDING * sizeof(*place));
	close(fds[0]);
	close(fds[1]);
}

static unsigned in_file(const uint32_t place[static 2 * PENDING])
{
	unsigned n = 0;

	for (int i = 0; i < PENDING; i++)
		n += is_in_file(place[2 * i], place[2 * i + 1], first);
	return n;
}

START_TEST(the_next_open_copies_what_a_killed_process_left)
{
	uint32_t place[2 * PENDING];

	die_with_pending(place);
	ck_assert_uint_eq(in_file(place), 0);
	reopen();
	ck_assert_uint_eq(in_file(place), PENDING);
	ck_assert(!file_is_there());
}
END_TEST

START_TEST(after_a_power_cut_nothing_is_copied)
{
	uint32_t place[2 * PENDING];

	die_with_pending(place);
	setenv("PLYFS_TEST_BOOT_ID", "another", 1);
	reopen();
	unsetenv("PLYFS_TEST_BOOT_ID");
	ck_assert_uint_eq(in_file(place), 0);
}
END_TEST

START_TEST(what_belongs_nowhere_any_more_is_passed)
{
	uint32_t place[2 * PENDING];
	char name[32];

	die_with_pending(place);
	snprintf(name, sizeof(name), "stage/%08x", place[0]);
	ck_ok(unlinkat(s.dir_fd, name, 0));
	reopen();
	ck_assert_int_ne(faccessat(s.dir_fd, name, F_OK, 0), 0);
}
END_TEST

START_TEST(of_a_damaged_slot_nothing_is_believed)
{
	uint8_t ones[STAGE_SLOT_HEAD - 8 - BOOT_BYTES]; /* 8: the magic */
	uint32_t place[2 * PENDING];
	int fd;

	die_with_pending(place);
	ck_ok(os_openat(s.dir_fd, "stage/behind", O_WRONLY, 0, &fd));
	memset(ones, 0xff, sizeof(ones));
	ck_ok(os_pwrite_full(fd, ones, sizeof(ones), 8 + BOOT_BYTES)); /* what follows the boot */
	close(fd);
	reopen();
	ck_assert_uint_eq(in_file(place), PENDING / 2);
	ck_assert_uint_gt(s.notes, 0);
}
END_TEST

/* Where the first piece says where its bytes are, and where they belong (struct piece). */
#define FROM_AT (8 + BOOT_BYTES + 8)
#define TO_AT (8 + BOOT_BYTES + 16)

START_TEST(nor_of_a_piece_that_is_not_all_in_its_slot_or_a_file)
{
	static const uint64_t from[] = { 0, STAGE_SLOT_HEAD - 1, STAGE_SLOT_BYTES - LEN + 1,
					 STAGE_SLOT_BYTES + 1, UINT32_MAX };
	static const uint64_t to[] = { STAGE_FILE_MAX - LEN + 1, STAGE_FILE_MAX + 1, UINT64_MAX };

	for (size_t i = 0; i < ARRAY_SIZE(from) + ARRAY_SIZE(to); i++) {
		bool is_from = i < ARRAY_SIZE(from);
		uint64_t value = is_from ? from[i] : to[i - ARRAY_SIZE(from)];
		uint32_t place[2 * PENDING];
		int fd;

		die_with_pending(place);
		ck_ok(os_openat(s.dir_fd, "stage/behind", O_WRONLY, 0, &fd));
		ck_ok(os_pwrite_full(fd, &value, is_from ? 4 : 8, is_from ? FROM_AT : TO_AT));
		close(fd);
		s.notes = 0;
		reopen();
		ck_assert_uint_eq(s.notes, 1);
		ck_assert_uint_eq(in_file(place), PENDING - 1);
	}
}
END_TEST

START_TEST(a_file_of_them_that_was_not_finished_is_none)
{
	int fd;

	stage_close(s.stage);
	ck_ok(os_openat(s.dir_fd, "stage/behind", O_WRONLY | O_CREAT, 0600, &fd));
	ck_assert_int_eq(ftruncate(fd, STAGE_SLOT_HEAD), 0);
	close(fd);
	ck_ok(stage_open(s.dir_fd, s.chunks, &(struct noter){ 0 }, &s.stage));
	ck_assert(!file_is_there());
}
END_TEST

START_TEST(what_cannot_be_copied_at_an_open_is_pending_again)
{
	uint32_t place[2 * PENDING];

	die_with_pending(place);
	full_disk(true);
	reopen();
	ck_assert_uint_eq(s.notes, 1);
	reopen(); /* and again */
	full_disk(false);
	ck_assert_uint_eq(in_file(place), 0);
	ck_ok(stage_sync(s.stage));
	ck_assert_uint_eq(in_file(place), PENDING);
	for (int i = 0; i < 4; i++)
		ck_assert_ptr_nonnull(stage_slot_take(s.stage)); /* all are as new */
}
END_TEST

/* Who was killed before he had a record wrote nothing: his file's room is used again, or goes. */
static void expect_not_to_come_over_what_is_next(bool goes)
{
	static const _Atomic uint64_t lsn = 1;
	_cleanup_(blob_unrefp) struct blob *a = NULL;
	uint32_t place[2 * PENDING], number, off;

	die_with_pending(place);
	full_disk(true);
	reopen();
	stage_hold(s.stage, &lsn);
	stage_release(s.stage, lsn);
	if (goes)
		stage_give_back(s.stage, true);
	full_disk(false);
	a = make(second);
	expect(a, second);
	ck_ok(stage_sync(s.stage));
	expect(a, second);
	blob_place(a, &number, &off);
	ck_assert_uint_eq(off, place[1]); /* where it belonged */
}

START_TEST(what_no_record_wants_does_not_come_over_what_is_written_next)
{
	expect_not_to_come_over_what_is_next(false);
}
END_TEST

START_TEST(nor_to_a_file_that_was_deleted)
{
	expect_not_to_come_over_what_is_next(true);
}
END_TEST

/* There are slots only where blocks are overwritten in place. */
static bool is_possible(void)
{
	const char *tmp = getenv("TMPDIR");
	_cleanup_close_ int fd = open(tmp ? tmp : "/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	return fd >= 0 && os_overwrites(fd) != OS_ELSEWHERE;
}

int main(void)
{
	const TTest *const tests[] = {
		bytes_are_copied_after_the_answer_or_when_somebody_needs_them,
		a_sync_has_them,
		a_copy_for_the_journal_has_them,
		what_is_lent_has_them,
		what_comes_later_is_not_overwritten_by_what_was_left,
		a_blob_that_goes_leaves_nothing_to_copy,
		short_bytes_and_those_of_other_memory_are_copied_at_once,
		bytes_that_came_beside_a_slot_are_put_into_it_while_there_is_room,
		of_those_several_are_left_and_none_is_in_anothers_place,
		into_a_slot_that_the_disk_lost_nothing_is_put,
		a_full_disk_keeps_them_in_memory_and_fails_the_sync,
		what_cannot_be_copied_is_read_where_it_is,
		a_slot_that_was_given_up_is_used_again_when_its_bytes_are_not_wanted,
		it_is_not_while_some_of_them_are,
		what_is_pending_is_not_written_over,
		nothing_more_is_left_while_copies_fail,
		what_cannot_be_copied_outlives_the_daemon,
		and_the_boot,
		slots_that_any_boot_may_believe_are_of_this_one_again,
		a_sync_waits_for_the_disk_as_well,
		a_blob_that_goes_takes_nothing_of_its_neighbour,
		nor_of_what_lies_there_in_another_file,
		what_lies_in_anothers_slot_is_found,
		a_request_of_a_mebibyte_is_left_whole,
		that_nothing_could_be_copied_is_told_once_each_time,
		there_is_a_slot_or_nothing_of_it,
		what_belongs_nowhere_any_more_is_passed,
		of_a_damaged_slot_nothing_is_believed,
		nor_of_a_piece_that_is_not_all_in_its_slot_or_a_file,
		a_file_of_them_that_was_not_finished_is_none,
		what_cannot_be_copied_at_an_open_is_pending_again,
		what_no_record_wants_does_not_come_over_what_is_written_next,
		nor_to_a_file_that_was_deleted,
		the_next_open_copies_what_a_killed_process_left,
		after_a_power_cut_nothing_is_copied,
	};

	if (!is_possible()) {
		puts("skipped: not on this filesystem");
		return 77; /* Meson's word for it */
	}
	return scratch_run("behind", tests, ARRAY_SIZE(tests), setup, teardown);
}
