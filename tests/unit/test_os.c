/* SPDX-License-Identifier: Apache-2.0 */
#include "store/base/fault.h"
#include "store/hash.h"
#include "tests/unit/scratch.h"

/* Errors, notes, faults, names and the seam to the operating system. */

static struct scratch s;

static void setup(void)
{
	scratch_make(&s);
}

static void teardown(void)
{
	fault_disarm();
	scratch_remove(&s);
}

START_TEST(every_code_has_errno_name_and_sentence)
{
#define EACH(code, no, text)                                                                       \
	ck_assert_int_eq(err_errno(-code), no);                                                    \
	ck_assert_str_eq(err_name(-code), #code);                                                  \
	ck_assert_str_eq(err_str(-code), text);
	ERR_LIST(EACH)
#undef EACH
	ck_assert_int_eq(err_errno(-ENOSPC), ENOSPC);
	ck_assert_str_eq(err_name(-ENOSPC), "ENOSPC");
	ck_assert_str_eq(err_str(-ENOSPC), strerror(ENOSPC));
	ck_assert_int_eq(err_errno(ABSENT), 0);
}
END_TEST

START_TEST(odd_numbers_are_survived)
{
	static const int odd[] = { 0, 1, 99, INT32_MAX, INT32_MIN, -4095, -4096, -4097, -99999 };

	for (size_t i = 0; i < ARRAY_SIZE(odd); i++) {
		ck_assert_ptr_nonnull(err_str(odd[i]));
		ck_assert_ptr_nonnull(err_name(odd[i]));
		ck_assert_int_ge(err_errno(odd[i]), 0);
	}
}
END_TEST

START_TEST(a_note_is_one_line_and_passes_the_code_on)
{
	struct noter noter = { .fn = scratch_note, .arg = &s };
	struct noter silent = { 0 };

	ck_assert_int_eq(note(&noter, -EIO, "chunk %d", 7), -EIO);
	ck_assert_str_eq(s.last_note, "chunk 7");
	ck_assert_int_eq(note(&silent, -5, "nobody"), -5);
	ck_assert_int_eq(note(NULL, -5, "nobody"), -5);
}
END_TEST

START_TEST(faults_hit_the_calls_that_were_asked_for)
{
	fault_arm(2, 2, EIO);
	ck_assert_int_eq(fault_tick(), 0);
	ck_assert_int_eq(fault_tick(), 0);
	ck_assert_int_eq(fault_tick(), -EIO);
	ck_assert_ptr_null(os_malloc(1));
	ck_assert_int_eq(fault_tick(), 0);
	ck_assert_int_eq(fault_ticks(), 5);
	fault_disarm();
	ck_assert_int_eq(fault_tick(), 0);
	ck_assert_int_eq(fault_ticks(), 5);
}
END_TEST

START_TEST(files_are_written_and_read_in_full)
{
	_cleanup_close_ int fd = -1;
	char buf[16] = { 0 };
	struct stat st;

	ck_ok(os_openat(s.dir_fd, "f", O_RDWR | O_CREAT | O_EXCL, 0600, &fd));
	ck_assert_int_eq(fcntl(fd, F_GETFD), FD_CLOEXEC);
	ck_ok(os_pwrite_full(fd, "hello", 5, 3));
	ck_ok(os_pread_full(fd, buf, 5, 3));
	ck_assert_str_eq(buf, "hello");
	ck_err(os_pread_full(fd, buf, 6, 3), END);
	ck_ok(os_fstat(fd, &st));
	ck_assert_int_eq(st.st_size, 8);
	ck_ok(os_ftruncate(fd, 4));
	ck_ok(os_fdatasync(fd));
	ck_ok(os_fsync(fd));
	ck_ok(os_renameat(s.dir_fd, "f", "g"));
	ck_err(os_statat(s.dir_fd, "f", &st), -ENOENT);
	ck_ok(os_statat(s.dir_fd, "g", &st));
	ck_assert_int_eq(st.st_size, 4);
	ck_ok(os_unlinkat(s.dir_fd, "g", 0));
	ck_err(os_openat(s.dir_fd, "g", O_RDONLY, 0, &fd), -ENOENT);
	ck_err(os_pwrite_full(fd, "x", 1, UINT64_MAX), -EFBIG);
	ck_err(os_pread_full(fd, buf, 1, UINT64_MAX), -EINVAL);
}
END_TEST

static int count_name(void *arg, const char *name)
{
	return ++*(int *)arg == 3 ? 77 : 0;
}

START_TEST(names_are_listed_without_dots)
{
	int n = 0;

	ck_ok(os_mkdirat(s.dir_fd, "d", 0700));
	ck_err(os_mkdirat(s.dir_fd, "d", 0700), -EEXIST);
	ck_ok(os_mkdirat(s.dir_fd, "e", 0700));
	ck_ok(os_each_name(s.dir_fd, ".", count_name, &n));
	ck_assert_int_eq(n, 2);
	ck_err(os_each_name(s.dir_fd, ".", count_name, &n), 77);
	ck_err(os_each_name(s.dir_fd, "none", count_name, &n), -ENOENT);
}
END_TEST

START_TEST(a_lock_has_one_holder)
{
	_cleanup_close_ int a = -1, b = -1;

	ck_ok(os_openat(s.dir_fd, "l", O_RDWR | O_CREAT, 0600, &a));
	ck_ok(os_openat(s.dir_fd, "l", O_RDWR, 0, &b));
	ck_ok(os_lock(a));
	ck_err(os_lock(b), -EWOULDBLOCK);
}
END_TEST

START_TEST(the_system_gives_time_room_and_randomness)
{
	uint8_t a[300] = { 0 }, b[300] = { 0 };
	uint64_t room = 0;

	ck_ok(os_random(a, sizeof(a)));
	ck_ok(os_random(b, sizeof(b)));
	ck_assert_mem_ne(a, b, sizeof(a));
	ck_ok(os_free_bytes(s.dir_fd, &room));
	ck_assert(room > 0);
	ck_assert(os_now_ns() > INT64_C(1600000000) * 1000000000);
}
END_TEST

/* A second look at a clock gives less than nothing, where there was some time left. */
START_TEST(the_lesser_and_the_greater_look_once)
{
	int looks = 0;

	ck_assert_int_eq(MAX(++looks, 0), 1);
	ck_assert_int_eq(MIN(++looks, 9), 2);
	ck_assert_int_eq(MIN(MAX(0, ++looks), 9), 3);
	ck_assert_uint_eq(MAX((uint64_t)1 << 40, 2), (uint64_t)1 << 40);
}
END_TEST

START_TEST(names_are_canonical_xxh3_128)
{
	char text[NAME_HEX_SIZE];
	struct name n = name_of("", 0, 0);
	struct name salted = name_of("", 0, 1);

	/* the published value for the empty input */
	ck_assert_str_eq(name_to_text(&n, text), "99aa06d3014798d86001c324468d497f");
	ck_assert(!name_eq(&n, &salted));
	ck_assert_int_eq(name_cmp(&n, &n), 0);
	ck_assert_int_ne(name_cmp(&n, &salted), 0);
	ck_assert(hash64("", 0, 0) == UINT64_C(0x2d06800538d394c2));
}
END_TEST

START_TEST(test_hook_cuts_names_of_low_salts)
{
	struct name n;

	hash_truncate_for_tests(12);
	for (uint32_t salt = 0; salt <= 3; salt++) {
		n = name_of("abc", 3, salt);
		ck_assert_int_eq(n.b[1] & 0x0f, 0);
		for (int i = 2; i < NAME_BYTES; i++)
			ck_assert_int_eq(n.b[i], 0);
	}
	n = name_of("abc", 3, 4);
	ck_assert(get_le64(n.b + 8) != 0);
	hash_truncate_for_tests(0);
}
END_TEST

START_TEST(a_fifo_in_a_files_place_holds_nobody)
{
	_cleanup_close_ int fd = -1;
	char byte;

	ck_assert_int_eq(mkfifoat(s.dir_fd, "file", 0600), 0);
	ck_ok(os_openat(s.dir_fd, "file", O_RDONLY, 0, &fd));
	ck_err(os_pread_full(fd, &byte, 1, 0), -ESPIPE);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		every_code_has_errno_name_and_sentence,
		odd_numbers_are_survived,
		a_note_is_one_line_and_passes_the_code_on,
		faults_hit_the_calls_that_were_asked_for,
		files_are_written_and_read_in_full,
		names_are_listed_without_dots,
		a_fifo_in_a_files_place_holds_nobody,
		a_lock_has_one_holder,
		the_system_gives_time_room_and_randomness,
		the_lesser_and_the_greater_look_once,
		names_are_canonical_xxh3_128,
		test_hook_cuts_names_of_low_salts,
	};

	return scratch_run("os", tests, ARRAY_SIZE(tests), setup, teardown);
}
