/* SPDX-License-Identifier: Apache-2.0 */
#include "store/hash.h"

#include <stdatomic.h>
#include <string.h>
#include <xxhash.h>
#ifdef PLYFS_XXH_DISPATCH
#define XXH_DISPATCH_DISABLE_REPLACE
#include <xxh_x86dispatch.h>
/*
 * The same functions, which look at run time for the widest vectors this CPU has. A distribution's
 * xxhash.h alone means SSE2: 17 GB/s where this is 75 (XXH3-128 of 128 KiB with AVX-512). But what
 * a CPU does after it has used them is slow for a while: of 256 bytes to 1 KiB, as records of the
 * journal are, the hash costs 100 to 160 ns more than with SSE2; at 4 KiB it is even.
 */
#define WIDE_MIN 4096
#define XXH(function, data, len, seed)                                                             \
	((len) < WIDE_MIN ? function(data, len, seed) : function##_dispatch(data, len, seed))
#else
#define XXH(function, data, len, seed) function(data, len, seed)
#endif

/*
 * A name is XXH3-128 with the salt as its seed, in canonical (big-endian) order, so that names
 * sort as their hexadecimal text does. Seed 0 is plain XXH3-128: `xxhsum -H2` shows the same.
 */

/* For tests only, hence process-wide: how many leading bits of a name are kept, 0 = all. */
static atomic_uint kept_bits;

/*
 * Salts above this keep their whole name even under the test hook: a test that keeps 8 bits then
 * walks chains of collisions, yet each chain ends.
 */
#define TRUNCATED_SALT_MAX 3

static void truncate_name(struct name *n, unsigned bits)
{
	for (unsigned i = 0; i < NAME_BYTES; i++) {
		unsigned at = i * 8;

		if (at >= bits)
			n->b[i] = 0;
		else if (bits - at < 8)
			n->b[i] &= (uint8_t)(0xff << (8 - (bits - at)));
	}
}

struct name name_of(const void *data, size_t len, uint32_t salt)
{
	unsigned bits = atomic_load_explicit(&kept_bits, memory_order_relaxed);
	XXH128_canonical_t canonical;
	struct name n;

	XXH128_canonicalFromHash(&canonical, XXH(XXH3_128bits_withSeed, data, len, salt));
	_Static_assert(sizeof(canonical.digest) == sizeof(n.b), "a name is one XXH3-128");
	memcpy(n.b, canonical.digest, sizeof(n.b));

	if (bits != 0 && salt <= TRUNCATED_SALT_MAX)
		truncate_name(&n, bits);
	return n;
}

uint64_t hash64(const void *data, size_t len, uint64_t seed)
{
	return XXH(XXH3_64bits_withSeed, data, len, seed);
}

bool name_eq(const struct name *a, const struct name *b)
{
	return memcmp(a->b, b->b, NAME_BYTES) == 0;
}

int name_cmp(const struct name *a, const struct name *b)
{
	return memcmp(a->b, b->b, NAME_BYTES);
}

char *name_to_text(const struct name *n, char buf[static NAME_HEX_SIZE])
{
	static const char digits[] = "0123456789abcdef";

	for (unsigned i = 0; i < NAME_BYTES; i++) {
		buf[2 * i] = digits[n->b[i] >> 4];
		buf[2 * i + 1] = digits[n->b[i] & 15];
	}
	buf[2 * NAME_BYTES] = '\0';
	return buf;
}

void hash_truncate_for_tests(unsigned bits)
{
	atomic_store(&kept_bits, bits);
}
