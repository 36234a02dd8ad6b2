/* SPDX-License-Identifier: Apache-2.0 */

/* Memory for what is small, many and long-lived. */

#include "tests/unit/scratch.h"

#include "store/slab.h"

static struct slabs *slabs;

static void setup(void)
{
	slabs = slabs_new();
	ck_assert_ptr_nonnull(slabs);
}

static void teardown(void)
{
	slabs_free(slabs); /* which asserts that all was freed */
}

START_TEST(objects_do_not_overlap_and_begin_as_zeros)
{
	enum { N = 3000 }; /* several slabs of each size */
	static uint8_t *objects[N];
	static size_t lens[N];
	static const uint8_t zeros[SLAB_OBJECT_MAX];
	uint8_t expected[SLAB_OBJECT_MAX];
	uint64_t seed = 1;

	for (unsigned round = 0; round < 4; round++) {
		for (unsigned i = 0; i < N; i++) {
			if (objects[i])
				continue;
			lens[i] = 1 + scratch_random(&seed) % SLAB_OBJECT_MAX;
			objects[i] = slab_alloc(slabs, lens[i]);
			ck_assert_ptr_nonnull(objects[i]);
			ck_assert_uint_eq((uintptr_t)objects[i] % 16, 0);
			ck_assert_mem_eq(objects[i], zeros, lens[i]);
			memset(objects[i], 1 + (int)(i % 255), lens[i]);
		}
		for (unsigned i = 0; i < N; i++) {
			memset(expected, 1 + (int)(i % 255), lens[i]);
			ck_assert_mem_eq(objects[i], expected, lens[i]);
			/* nearly all of them once, so that whole slabs come and go */
			if (round < 3 && scratch_random(&seed) % (round == 1 ? N : 3) == 0)
				continue;
			slab_free(objects[i]);
			objects[i] = NULL;
		}
	}
}
END_TEST

START_TEST(what_was_freed_is_used_again)
{
	enum { N = 200 }; /* one slab has fewer of them */
	void *objects[N], *again;

	for (unsigned i = 0; i < N; i++)
		objects[i] = slab_alloc(slabs, 300);
	slab_free(objects[7]); /* of a slab that is full */
	again = slab_alloc(slabs, 280);
	ck_assert_ptr_eq(again, objects[7]);
	for (unsigned i = 0; i < N; i++)
		slab_free(objects[i]);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		objects_do_not_overlap_and_begin_as_zeros,
		what_was_freed_is_used_again,
	};

	return scratch_run("slab", tests, ARRAY_SIZE(tests), setup, teardown);
}
