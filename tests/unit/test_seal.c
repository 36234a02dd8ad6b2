/* SPDX-License-Identifier: Apache-2.0 */

/* What a round of the sealer that fails leaves for the next one. */

#include "tests/unit/store_fixture.h"

#include <stdatomic.h>

#include "store/base/fault.h"
#include "store/store_internal.h"

/* One of the calls of a round fails, and then none: *ret_failed as long as there is such a call. */
static void sync_after_failure(int n, int error, bool *ret_failed)
{
	fault_arm(n, 1, error);
	*ret_failed = store_sync(store) < 0;
	fault_disarm();
	atomic_store(&store->retry_ns, 0); /* else a second later */
	ck_ok(store_sync(store));
}

START_TEST(a_child_names_no_parent_whose_drop_failed_first)
{
	unsigned failures = 0;

	for (int n = 0; n < 20; n++) {
		struct branch *b = branch_make("main");
		uint64_t parent, child;
		struct snap_info info;
		bool failed;

		change(b, 1, "parent");
		parent = checkpoint(b, NULL);
		change(b, 1, "child");
		child = checkpoint(b, NULL);
		ck_ok(store_sync(store));
		ck_ok(snap_drop(store, parent)); /* the child's record is to be written again */
		sync_after_failure(n, ENOMEM, &failed);
		failures += failed;
		expect_sound(NULL);
		branch_close(b);
		store_reopen();
		ck_ok(snap_get(store, child, &info));
		ck_assert_uint_eq(info.parent, 0);
		ck_ok(branch_drop(store, "main"));
		ck_ok(snap_drop(store, child));
	}
	ck_assert_uint_gt(failures, 0);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		a_child_names_no_parent_whose_drop_failed_first,
	};

	return scratch_run("seal", tests, ARRAY_SIZE(tests), store_setup, store_teardown);
}
