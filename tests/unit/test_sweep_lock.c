/* SPDX-License-Identifier: Apache-2.0 */

/* Who reads does not wait while the disk takes back a pack that was removed. */

#include <sys/syscall.h>

#include "tests/unit/meanwhile.h"
#include "tests/unit/sweep_fixture.h"

static bool watching;
static unsigned closed;

static void *read_other(void *arg)
{
	uint8_t got[LEN];

	ck_ok(chunk_read(s.chunks, &extra, 0, got, LEN));
	return NULL;
}

/* Stands for libc's: the file goes with the last descriptor, and the disk may take its time. */
int close(int fd)
{
	struct stat st;

	if (watching && fstat(fd, &st) == 0 && st.st_nlink == 0) {
		watching = false;
		ck_meanwhile(read_other);
		closed++;
	}
	return (int)syscall(SYS_close, fd);
}

START_TEST(nobody_waits_for_a_pack_to_go)
{
	uint8_t data[LEN], got[LEN];
	struct sweep_stats stats;

	data_of(N, data);
	ck_ok(chunk_put(s.chunks, CHUNK_DATA, data, LEN, &extra));
	scratch_commit(&s);
	ck_ok(chunk_read(s.chunks, &names[1], 0, got, LEN)); /* the pack is open for readers */

	keep(0, 0, 1);
	watching = true;
	ck_ok(sweep(NULL, &stats));
	ck_assert_uint_eq(stats.packs_rewritten, 1); /* for what stays in it */
	ck_assert_uint_eq(closed, 1);
	expect_state();
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		nobody_waits_for_a_pack_to_go,
	};

	return scratch_run("sweep_lock", tests, ARRAY_SIZE(tests), setup, teardown);
}
