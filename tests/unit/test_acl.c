/* SPDX-License-Identifier: Apache-2.0 */

/* Access control lists: which are valid, how they and modes follow each other, inheritance. */

#include "fs/acl.h"
#include "tests/unit/fs_fixture.h"

#define NOBODY UINT32_MAX

struct entry {
	unsigned tag, perm;
	uint32_t id;
};

static size_t pack(uint8_t *buf, const struct entry *e, size_t n)
{
	put_le32(buf, ACL_VERSION);
	for (size_t k = 0; k < n; k++) {
		uint8_t *p = buf + ACL_HEADER_BYTES + k * ACL_ENTRY_BYTES;

		put_le16(p, (uint16_t)e[k].tag);
		put_le16(p + 2, (uint16_t)e[k].perm);
		put_le32(p + 4, e[k].id);
	}
	return ACL_HEADER_BYTES + n * ACL_ENTRY_BYTES;
}

#define PACK(buf, ...)                             \
	pack(buf, (struct entry[]){ __VA_ARGS__ }, \
	     sizeof((struct entry[]){ __VA_ARGS__ }) / sizeof(struct entry))

#define U(p)                                \
	{                                   \
		ACL_TAG_USER_OBJ, p, NOBODY \
	}
#define UN(p, id)                   \
	{                           \
		ACL_TAG_USER, p, id \
	}
#define G(p)                                 \
	{                                    \
		ACL_TAG_GROUP_OBJ, p, NOBODY \
	}
#define GN(p, id)                    \
	{                            \
		ACL_TAG_GROUP, p, id \
	}
#define M(p)                            \
	{                               \
		ACL_TAG_MASK, p, NOBODY \
	}
#define O(p)                             \
	{                                \
		ACL_TAG_OTHER, p, NOBODY \
	}

static uint8_t acl[1024];
static size_t len;

START_TEST(lists_are_valid_only_in_order_and_complete)
{
	len = PACK(acl, U(6), G(4), O(4));
	ck_assert_int_eq(acl_check(acl, len), 0);
	for (size_t k = 1; k < len; k++)
		if (k != ACL_HEADER_BYTES)
			ck_assert_int_lt(acl_check(acl, k), 0);
	ck_assert_int_eq(acl_check(acl, ACL_HEADER_BYTES), ABSENT);
	ck_assert_int_eq(acl_check(acl, 0), ABSENT);
	acl[0] = 1;
	ck_assert_int_eq(acl_check(acl, len), -EOPNOTSUPP);

	len = PACK(acl, U(6), UN(7, 5), UN(7, 3), G(4), GN(1, 2), M(7), O(4));
	ck_assert_int_eq(acl_check(acl, len), 0);
	len = PACK(acl, U(6), G(4), M(7), O(4));
	ck_assert_int_eq(acl_check(acl, len), 0);
	len = PACK(acl, U(6), UN(7, 5), G(4), O(4)); /* names want a mask */
	ck_assert_int_eq(acl_check(acl, len), -EINVAL);
	len = PACK(acl, U(6), G(4), GN(4, 4), O(4));
	ck_assert_int_eq(acl_check(acl, len), -EINVAL);
	len = PACK(acl, G(4), U(6), O(4));
	ck_assert_int_eq(acl_check(acl, len), -EINVAL);
	len = PACK(acl, U(6), U(6), G(4), O(4));
	ck_assert_int_eq(acl_check(acl, len), -EINVAL);
	len = PACK(acl, U(6), G(4), O(4), O(4));
	ck_assert_int_eq(acl_check(acl, len), -EINVAL);
	len = PACK(acl, U(6), G(4));
	ck_assert_int_eq(acl_check(acl, len), -EINVAL);
	len = PACK(acl, U(8), G(4), O(4));
	ck_assert_int_eq(acl_check(acl, len), -EINVAL);
	len = PACK(acl, U(6), UN(7, NOBODY), G(4), M(7), O(4));
	ck_assert_int_eq(acl_check(acl, len), -EINVAL);
	len = PACK(acl, U(6), G(4), O(4), { 0x40, 7, 0 });
	ck_assert_int_eq(acl_check(acl, len), -EINVAL);
}
END_TEST

static size_t get_acl(uint64_t ino, const char *name, uint8_t *buf)
{
	size_t n;
	int r = fs_getxattr(&fs, ino, name, buf, 1024, &n);

	if (r == -ENODATA)
		return 0;
	ck_assert_int_eq(r, 0);
	return n;
}

START_TEST(access_list_sets_the_mode)
{
	uint64_t f = fx_make(ROOT_INO, "f", S_IFREG | 04600);
	uint8_t got[1024];

	len = PACK(acl, U(7), UN(6, 1000), G(1), M(5), O(2));
	ck_assert_int_eq(fs_setxattr(&fs, f, XATTR_ACL_ACCESS, acl, len, 0), 0);
	ck_assert_uint_eq(fx_stat(f).mode, S_IFREG | 04752); /* the group bits are the mask */
	ck_assert_uint_ne(fx_stat(f).flags & INODE_HAS_ACL, 0);
	ck_assert_uint_eq(get_acl(f, XATTR_ACL_ACCESS, got), len);
	ck_assert_int_eq(memcmp(got, acl, len), 0);

	/* One that says no more than a mode is not stored. */
	len = PACK(acl, U(6), G(4), O(0));
	ck_assert_int_eq(fs_setxattr(&fs, f, XATTR_ACL_ACCESS, acl, len, 0), 0);
	ck_assert_uint_eq(fx_stat(f).mode, S_IFREG | 04640);
	ck_assert_uint_eq(fx_stat(f).flags, 0);
	ck_assert_uint_eq(get_acl(f, XATTR_ACL_ACCESS, got), 0);
	ck_assert_uint_eq(fx_items(f, ITEM_XATTR), 0);

	ck_assert_int_eq(fs_setxattr(&fs, f, XATTR_ACL_ACCESS, acl, len - 1, 0), -EINVAL);
}
END_TEST

START_TEST(chmod_moves_the_mask)
{
	uint64_t f = fx_file("f");
	struct fs_set set = { .mask = SET_MODE, .mode = 0731 };
	uint8_t got[1024];
	struct inode i;

	len = PACK(acl, U(6), UN(7, 5), G(4), M(6), O(4));
	ck_assert_int_eq(fs_setxattr(&fs, f, XATTR_ACL_ACCESS, acl, len, 0), 0);
	ck_assert_int_eq(fs_setattr(&fs, f, &set, &i), 0);
	len = PACK(acl, U(7), UN(7, 5), G(4), M(3), O(1));
	ck_assert_uint_eq(get_acl(f, XATTR_ACL_ACCESS, got), len);
	ck_assert_int_eq(memcmp(got, acl, len), 0);
	ck_assert_uint_eq(i.mode, S_IFREG | 0731);

	/* Without a mask the group entry. */
	len = PACK(acl, U(6), G(4), O(4));
	acl_chmod(acl, len, 0751);
	PACK(got, U(7), G(5), O(1));
	ck_assert_int_eq(memcmp(got, acl, len), 0);
}
END_TEST

START_TEST(removing_lists)
{
	uint64_t f = fx_file("f"), d = fx_dir(ROOT_INO, "d");
	uint8_t got[1024];

	len = PACK(acl, U(6), UN(7, 5), G(4), M(6), O(4));
	ck_assert_int_eq(fs_setxattr(&fs, f, XATTR_ACL_ACCESS, acl, len, 0), 0);
	ck_assert_int_eq(fs_removexattr(&fs, f, XATTR_ACL_ACCESS), 0);
	ck_assert_uint_eq(fx_stat(f).mode, S_IFREG | 0664); /* stays */
	ck_assert_uint_eq(fx_stat(f).flags, 0);
	ck_assert_int_eq(fs_removexattr(&fs, f, XATTR_ACL_ACCESS), 0);

	ck_assert_int_eq(fs_setxattr(&fs, d, XATTR_ACL_DEFAULT, acl, len, 0), 0);
	ck_assert_uint_eq(fx_stat(d).flags, INODE_HAS_XATTR | INODE_HAS_DEFAULT_ACL);
	ck_assert_int_eq(fs_setxattr(&fs, d, XATTR_ACL_DEFAULT, acl, ACL_HEADER_BYTES, 0), 0);
	ck_assert_uint_eq(fx_stat(d).flags, 0);
	ck_assert_uint_eq(get_acl(d, XATTR_ACL_DEFAULT, got), 0);
}
END_TEST

START_TEST(default_lists_belong_to_directories)
{
	uint64_t f = fx_file("f");
	struct fs_new n = {
		.dir = ROOT_INO, .name = "l", .len = 1, .mode = S_IFLNK, .target = "t"
	};
	struct inode i;

	len = PACK(acl, U(6), UN(7, 5), G(4), M(6), O(4));
	ck_assert_int_eq(fs_setxattr(&fs, f, XATTR_ACL_DEFAULT, acl, len, 0), -EACCES);
	ck_assert_int_eq(fs_create(&fs, &n, &i), 0);
	ck_assert_int_eq(fs_setxattr(&fs, i.ino, XATTR_ACL_ACCESS, acl, len, 0), -EOPNOTSUPP);
}
END_TEST

START_TEST(default_list_is_inherited_instead_of_the_umask)
{
	uint64_t d = fx_dir(ROOT_INO, "d");
	struct fs_new n = {
		.dir = d, .name = "f", .len = 1, .mode = S_IFREG | 0666, .cred = { .umask = 077 }
	};
	uint8_t got[1024];
	struct inode i;

	len = PACK(acl, U(7), UN(7, 5), G(5), M(7), O(5));
	ck_assert_int_eq(fs_setxattr(&fs, d, XATTR_ACL_DEFAULT, acl, len, 0), 0);
	ck_assert_uint_eq(fx_stat(d).mode & 0777,
			  0755); /* a default list does not touch the mode */

	ck_assert_int_eq(fs_create(&fs, &n, &i), 0);
	ck_assert_uint_eq(i.mode, S_IFREG | 0664);
	ck_assert_uint_eq(i.flags, INODE_HAS_XATTR | INODE_HAS_ACL);
	len = PACK(acl, U(6), UN(7, 5), G(5), M(6), O(4));
	ck_assert_uint_eq(get_acl(i.ino, XATTR_ACL_ACCESS, got), len);
	ck_assert_int_eq(memcmp(got, acl, len), 0);
	ck_assert_uint_eq(get_acl(i.ino, XATTR_ACL_DEFAULT, got), 0);

	n.name = "s";
	n.mode = S_IFDIR | 0777;
	ck_assert_int_eq(fs_create(&fs, &n, &i), 0);
	ck_assert_uint_eq(i.mode & 0777, 0775);
	len = PACK(acl, U(7), UN(7, 5), G(5), M(7), O(5));
	ck_assert_uint_eq(get_acl(i.ino, XATTR_ACL_DEFAULT, got), len);
	ck_assert_uint_eq(get_acl(i.ino, XATTR_ACL_ACCESS, got), len);
	ck_assert_uint_eq(fx_stat(i.ino).flags,
			  INODE_HAS_XATTR | INODE_HAS_ACL | INODE_HAS_DEFAULT_ACL);

	n.name = "l";
	n.mode = S_IFLNK;
	n.target = "t";
	ck_assert_int_eq(fs_create(&fs, &n, &i), 0);
	ck_assert_uint_eq(i.mode, S_IFLNK | 0777);
	ck_assert_uint_eq(i.flags, 0);
}
END_TEST

START_TEST(minimal_default_list_makes_only_a_mode)
{
	uint64_t d = fx_dir(ROOT_INO, "d");
	struct fs_new n = {
		.dir = d, .name = "f", .len = 1, .mode = S_IFREG | 0666, .cred = { .umask = 0 }
	};
	struct inode i;

	len = PACK(acl, U(7), G(5), O(0));
	ck_assert_int_eq(fs_setxattr(&fs, d, XATTR_ACL_DEFAULT, acl, len, 0), 0);
	ck_assert_int_eq(fs_create(&fs, &n, &i), 0);
	ck_assert_uint_eq(i.mode, S_IFREG | 0640);
	ck_assert_uint_eq(i.flags, 0);
}
END_TEST

START_TEST(long_lists_live_in_a_blob)
{
	struct entry e[200] = { U(7) };
	uint8_t big[4096], got[4096];
	uint64_t f = fx_file("f"), d = fx_dir(ROOT_INO, "d");
	struct inode i;
	size_t n, k;

	for (k = 1; k < 196; k++)
		e[k] = (struct entry)UN(7, (uint32_t)(k * 3));
	e[k++] = (struct entry)G(7);
	e[k++] = (struct entry)M(7);
	e[k++] = (struct entry)O(7);
	n = pack(big, e, k);
	ck_assert_int_eq(fs_setxattr(&fs, f, XATTR_ACL_ACCESS, big, n, 0), 0);
	ck_assert_int_eq(fs_getxattr(&fs, f, XATTR_ACL_ACCESS, got, sizeof(got), &len), 0);
	ck_assert_uint_eq(len, n);
	ck_assert_int_eq(memcmp(big, got, n), 0);
	ck_assert_int_eq(fs_setxattr(&fs, d, XATTR_ACL_DEFAULT, big, n, 0), 0);
	ck_assert_int_eq(fx_try(d, "sub", S_IFDIR | 0700, &i), 0);
	ck_assert_int_eq(fs_getxattr(&fs, i.ino, XATTR_ACL_DEFAULT, got, sizeof(got), &len), 0);
	ck_assert_int_eq(memcmp(big, got, n), 0);
}
END_TEST

START_TEST(ids_that_mean_nothing_are_spelled_one_way)
{
	uint64_t f = fx_file("f");
	uint8_t got[1024];

	len = PACK(acl, { ACL_TAG_USER_OBJ, 7, 1 }, UN(7, 5), { ACL_TAG_GROUP_OBJ, 1, 2 },
		   { ACL_TAG_MASK, 7, 3 }, { ACL_TAG_OTHER, 0, 4 });
	ck_assert_int_eq(fs_setxattr(&fs, f, XATTR_ACL_ACCESS, acl, len, 0), 0);
	len = PACK(acl, U(7), UN(7, 5), G(1), M(7), O(0));
	ck_assert_uint_eq(get_acl(f, XATTR_ACL_ACCESS, got), len);
	ck_assert_int_eq(memcmp(acl, got, len), 0);
}
END_TEST

int main(void)
{
	TCase *c = tcase_create("acls");

	tcase_add_checked_fixture(c, setup, teardown);
	tcase_add_test(c, lists_are_valid_only_in_order_and_complete);
	tcase_add_test(c, access_list_sets_the_mode);
	tcase_add_test(c, chmod_moves_the_mask);
	tcase_add_test(c, removing_lists);
	tcase_add_test(c, default_lists_belong_to_directories);
	tcase_add_test(c, default_list_is_inherited_instead_of_the_umask);
	tcase_add_test(c, minimal_default_list_makes_only_a_mode);
	tcase_add_test(c, long_lists_live_in_a_blob);
	tcase_add_test(c, ids_that_mean_nothing_are_spelled_one_way);
	return run_case("acl", c);
}
