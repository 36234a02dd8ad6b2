/* SPDX-License-Identifier: Apache-2.0 */

/* Loans: bytes of blobs that the kernel is given where they are. */

#include <sys/syscall.h>

#include "tests/unit/blob_fixture.h"

static unsigned maps_of_stage(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[5000];
	unsigned n = 0;

	ck_assert_ptr_nonnull(maps);
	while (fgets(line, sizeof(line), maps))
		n += strstr(line, "/stage/") != NULL;
	(void)fclose(maps);
	return n;
}

static bool cannot_be_read;

int madvise(void *p, size_t len, int advice) /* stands for libc's */
{
	if (cannot_be_read && advice == MADV_POPULATE_READ) {
		errno = EFAULT; /* as for a bad sector */
		return -1;
	}
	return (int)syscall(SYS_madvise, p, len, advice);
}

/* Whatever becomes of its blob. */
START_TEST(what_is_lent_stays_where_it_is)
{
	static const _Atomic uint64_t lsn = 1;
	static uint8_t data[2][BLOB_MAX], other[BLOB_MAX];
	struct loan loan = { 0 };
	struct blob *b[2];
	const void *lent[2];
	struct name name;

	stage_hold(s.stage, &lsn);
	for (int i = 0; i < 2; i++) {
		scratch_fill(data[i], sizeof(data[i]), (uint64_t)i);
		b[i] = make(data[i], sizeof(data[i]));
	}
	for (int i = 0; i < 2; i++) {
		lent[i] = blob_lend(b[i], 1, BLOB_MAX - 1, &loan);
		ck_assert_ptr_nonnull(lent[i]);
	}
	ck_assert_uint_eq(loan.n, 1); /* the file, held once */
	ck_ok(blob_seal(b[0], &name));
	blob_unref(b[1]);
	for (int n = 0; n < 3; n++) {
		stage_release(s.stage, 1);
		stage_give_back(s.stage, true);
		blob_unref(make(other, sizeof(other)));
		for (int i = 0; i < 2; i++)
			ck_assert_mem_eq(lent[i], data[i] + 1, BLOB_MAX - 1);
	}
	expect(b[0], data[0], sizeof(data[0]));
	ck_assert_int_eq(stage_files(), 2); /* and the one that others were in since */
	ck_assert_uint_eq(maps_of_stage(), 1);
	loan_end(&loan);
	stage_release(s.stage, 1);
	ck_assert_uint_eq(maps_of_stage(), 0); /* although the file stays for later */
	stage_give_back(s.stage, true);
	ck_assert_int_eq(stage_files(), 0);
	blob_unref(b[0]);
}
END_TEST

START_TEST(what_might_change_or_is_not_there_is_not_lent)
{
	static const _Atomic uint64_t lsn = 1;
	static uint8_t data[BLOB_MAX];
	_cleanup_(blob_unrefp) struct blob *b = make(data, sizeof(data));
	struct loan loan = { 0 };
	uint32_t number, off;
	struct name name;
	char path[32];

	stage_hold(s.stage, NULL);
	ck_assert_ptr_null(blob_lend(b, 0, 1, &loan)); /* no journal: its room may be used again */
	stage_hold(s.stage, &lsn);
	ck_assert_ptr_nonnull(blob_lend(b, 0, BLOB_MAX, &loan));
	ck_assert_ptr_null(blob_lend(b, 0, BLOB_MAX + 1, &loan));
	ck_assert_ptr_null(blob_lend(b, BLOB_MAX + 1, 0, &loan));
	cannot_be_read = true;
	ck_assert_ptr_null(blob_lend(b, 0, BLOB_MAX, &loan)); /* EIO, not a SIGBUS */
	cannot_be_read = false;
	loan_end(&loan);

	blob_place(b, &number, &off);
	snprintf(path, sizeof(path), "stage/%08x", number);
	{
		_cleanup_close_ int fd = openat(s.dir_fd, path, O_WRONLY);

		ck_assert_int_eq(ftruncate(fd, BLOB_MAX - 1), 0);
		ck_assert_ptr_null(blob_lend(b, 0, BLOB_MAX, &loan)); /* EIO, not a zero */
		loan_end(&loan);
		ck_assert_int_eq(ftruncate(fd, BLOB_MAX), 0);
	}
	ck_ok(blob_seal(b, &name));
	ck_assert_ptr_null(blob_lend(b, 0, 1, &loan));
	ck_assert_uint_eq(loan.n, 0);
}
END_TEST

START_TEST(what_is_lent_is_read_and_not_what_lies_around_it)
{
	static const _Atomic uint64_t lsn = 1;
	enum { BLOBS = 512, LEN = 4096, PAGES = BLOBS * LEN / 4096 };
	static unsigned char resident[PAGES];
	static uint8_t data[LEN];
	struct blob *b[BLOBS];
	struct loan loan = { 0 };
	uint32_t number, off;
	unsigned pages = 0;
	char path[32];
	void *p;

	if (sysconf(_SC_PAGESIZE) != 4096)
		return;
	stage_hold(s.stage, &lsn);
	for (int i = 0; i < BLOBS; i++) {
		scratch_fill(data, sizeof(data), (uint64_t)i);
		b[i] = make(data, sizeof(data));
	}
	blob_place(b[BLOBS / 2], &number, &off);
	snprintf(path, sizeof(path), "stage/%08x", number);
	_cleanup_close_ int fd = openat(s.dir_fd, path, O_RDONLY | O_CLOEXEC);
	ck_ok(fsync(fd));
	if (scratch_drop_pages(s.dir_fd, path)) { /* not on a tmpfs */
		ck_assert_ptr_nonnull(blob_lend(b[BLOBS / 2], 0, LEN, &loan));
		p = mmap(NULL, sizeof(resident) * 4096, PROT_READ, MAP_SHARED, fd, 0);
		ck_assert_ptr_ne(p, MAP_FAILED);
		ck_assert_int_eq(mincore(p, sizeof(resident) * 4096, resident), 0);
		munmap(p, sizeof(resident) * 4096);
		for (int i = 0; i < PAGES; i++)
			pages += resident[i] & 1;
		ck_assert_uint_ge(pages, 1);
		ck_assert_uint_le(pages, 2); /* where it is not at the beginning of a page */
		loan_end(&loan);
	}
	for (int i = 0; i < BLOBS; i++)
		blob_unref(b[i]);
}
END_TEST

START_TEST(a_loan_is_of_so_many_files)
{
	static const _Atomic uint64_t lsn = 1;
	enum { FILE_BLOBS = (4 << 20) / BLOB_MAX };
	static uint8_t data[BLOB_MAX];
	struct blob *b[LOAN_FILES + 1][FILE_BLOBS];
	struct loan loan = { 0 };

	stage_hold(s.stage, &lsn);
	for (int i = 0; i <= LOAN_FILES; i++) {
		for (int n = 0; n < FILE_BLOBS; n++)
			b[i][n] = make(data, sizeof(data));
		stage_turn(s.stage);
		ck_assert_int_eq(!blob_lend(b[i][0], 0, 1, &loan), i == LOAN_FILES);
		ck_assert_int_eq(!blob_lend(b[i][1], 0, 1, &loan), i == LOAN_FILES);
	}
	ck_assert_uint_eq(loan.n, LOAN_FILES);
	for (int i = 0; i <= LOAN_FILES; i++)
		for (int n = 0; n < FILE_BLOBS; n++)
			blob_unref(b[i][n]);
	stage_release(s.stage, 1);
	stage_give_back(s.stage, true);
	ck_assert_int_eq(stage_files(), LOAN_FILES);
	loan_end(&loan);
	stage_give_back(s.stage, true);
	ck_assert_int_eq(stage_files(), 0);
}
END_TEST

/* A file that is there at the open is as long as somebody made it. */
START_TEST(what_is_behind_the_largest_file_is_not_lent)
{
	static const _Atomic uint64_t lsn = 1;
	const struct noter noter = { .fn = scratch_note, .arg = &s };
	static uint8_t data[16];
	struct loan loan = { 0 };
	struct blob *b;

	stage_close(s.stage);
	{
		_cleanup_close_ int fd = openat(s.dir_fd, "stage/00000007",
						O_RDWR | O_CREAT | O_CLOEXEC, 0600);

		ck_assert_int_eq(ftruncate(fd, STAGE_FILE_MAX + BLOB_MAX), 0);
	}
	ck_ok(stage_open(s.dir_fd, s.chunks, &noter, &s.stage));
	ck_ok(blob_adopt(s.stage, 7, STAGE_FILE_MAX - 4, sizeof(data), &b));
	stage_adopted(s.stage);
	stage_hold(s.stage, &lsn);
	expect(b, data, sizeof(data));
	ck_assert_ptr_nonnull(blob_lend(b, 0, 4, &loan));
	ck_assert_ptr_null(blob_lend(b, 0, 5, &loan)); /* what lies there in memory is ours */
	loan_end(&loan);
	blob_unref(b);
	stage_release(s.stage, UINT64_MAX);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		what_is_lent_stays_where_it_is,
		what_might_change_or_is_not_there_is_not_lent,
		what_is_lent_is_read_and_not_what_lies_around_it,
		a_loan_is_of_so_many_files,
		what_is_behind_the_largest_file_is_not_lent,
	};

	return scratch_run("loan", tests, ARRAY_SIZE(tests), setup, teardown);
}
