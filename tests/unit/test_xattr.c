/* SPDX-License-Identifier: Apache-2.0 */

/* Extended attributes: every size, flags, listing, what a write does to security.capability. */

#include <sys/xattr.h>

#include "tests/unit/fs_fixture.h"

static int set(uint64_t ino, const char *name, const void *value, size_t len, int flags)
{
	return fs_setxattr(&fs, ino, name, value, len, flags);
}

static void expect(uint64_t ino, const char *name, const void *want, size_t len)
{
	_cleanup_free_ uint8_t *got = malloc(XATTR_VALUE_MAX);
	size_t n;

	ck_assert_int_eq(fs_getxattr(&fs, ino, name, got, XATTR_VALUE_MAX, &n), 0);
	ck_assert_uint_eq(n, len);
	ck_assert_int_eq(memcmp(got, want, len), 0);
}

START_TEST(values_of_every_size)
{
	static const size_t sizes[] = { 0, 1, 600, 947, 948, 949, 950, 5000, XATTR_VALUE_MAX };
	_cleanup_free_ uint8_t *buf = malloc(XATTR_VALUE_MAX + 1);
	uint64_t f = fx_file("f");
	char c;
	size_t n;

	fx_fill(buf, XATTR_VALUE_MAX + 1, 1);
	for (size_t k = 0; k < ARRAY_SIZE(sizes); k++) {
		ck_assert_int_eq(set(f, "user.v", buf, sizes[k], 0), 0);
		expect(f, "user.v", buf, sizes[k]);
		ck_assert_int_eq(fs_getxattr(&fs, f, "user.v", NULL, 0, &n), 0);
		ck_assert_uint_eq(n, sizes[k]);
		if (sizes[k] > 1)
			ck_assert_int_eq(fs_getxattr(&fs, f, "user.v", &c, 1, &n), -ERANGE);
	}
	ck_assert_uint_eq(fx_items(f, ITEM_XATTR), 1);
	ck_assert_int_eq(set(f, "user.v", buf, XATTR_VALUE_MAX + 1, 0), -E2BIG);
	expect(f, "user.v", buf, XATTR_VALUE_MAX);
}
END_TEST

START_TEST(flags_create_and_replace)
{
	uint64_t f = fx_file("f"), changes = fx_changes;

	ck_assert_int_eq(set(f, "user.a", "1", 1, XATTR_REPLACE), -ENODATA);
	ck_assert_uint_eq(fx_changes, changes);
	ck_assert_int_eq(set(f, "user.a", "1", 1, XATTR_CREATE), 0);
	ck_assert_uint_eq(fx_changes, changes + 1);
	ck_assert_int_eq(set(f, "user.a", "2", 1, XATTR_CREATE), -EEXIST);
	ck_assert_int_eq(set(f, "user.a", "3", 1, XATTR_REPLACE), 0);
	expect(f, "user.a", "3", 1);
	ck_assert_int_eq(set(f, "user.a", "3", 1, 64), -EINVAL);
}
END_TEST

START_TEST(names_have_a_known_class)
{
	uint64_t f = fx_file("f");
	char name[300] = "user.";

	ck_assert_int_eq(set(f, "trusted.overlay.opaque", "y", 1, 0), 0);
	ck_assert_int_eq(set(f, "security.selinux", "y", 1, 0), 0);
	ck_assert_int_eq(set(f, "system.other", "y", 1, 0), -EOPNOTSUPP);
	ck_assert_int_eq(set(f, "other.x", "y", 1, 0), -EOPNOTSUPP);
	ck_assert_int_eq(set(f, "noprefix", "y", 1, 0), -EOPNOTSUPP);
	ck_assert_int_eq(set(f, "user.", "y", 1, 0), -EINVAL);
	memset(name + 5, 'n', 250);
	ck_assert_int_eq(set(f, name, name, 255, 0), 0);
	expect(f, name, name, 255);
	ck_assert_int_eq(set(f, name, name, 300, 0), 0);
	ck_assert_int_eq(set(f, name, name, 299, 0), 0);
	name[255] = 'n';
	ck_assert_int_eq(set(f, name, "y", 1, 0), -ERANGE);
	ck_assert_int_eq(set(f, "", "y", 1, 0), -ERANGE);
}
END_TEST

START_TEST(flag_follows_the_attributes)
{
	uint64_t f = fx_file("f");
	size_t n;

	ck_assert_uint_eq(fx_stat(f).flags, 0);
	ck_assert_int_eq(fs_getxattr(&fs, f, "user.a", NULL, 0, &n), -ENODATA);
	ck_assert_int_eq(fs_removexattr(&fs, f, "user.a"), -ENODATA);
	ck_assert_int_eq(set(f, "user.a", "1", 1, 0), 0);
	ck_assert_int_eq(set(f, "user.b", "1", 1, 0), 0);
	ck_assert_uint_eq(fx_stat(f).flags, INODE_HAS_XATTR);
	ck_assert_int_eq(fs_removexattr(&fs, f, "user.a"), 0);
	ck_assert_int_eq(fs_removexattr(&fs, f, "user.a"), -ENODATA);
	ck_assert_uint_eq(fx_stat(f).flags, INODE_HAS_XATTR);
	ck_assert_int_eq(fs_removexattr(&fs, f, "user.b"), 0);
	ck_assert_uint_eq(fx_stat(f).flags, 0);
}
END_TEST

START_TEST(listing_names_each_once)
{
	uint64_t f = fx_file("f");
	char name[32], list[4096] = { 0 }, small[20];
	size_t n, len = 0, count = 0;

	ck_assert_int_eq(fs_listxattr(&fs, f, list, sizeof(list), &n), 0);
	ck_assert_uint_eq(n, 0);
	for (unsigned k = 0; k < 100; k++) {
		snprintf(name, sizeof(name), "user.number%u", k);
		ck_assert_int_eq(set(f, name, list, k * 20, 0), 0);
		len += strlen(name) + 1;
	}
	ck_assert_int_eq(fs_listxattr(&fs, f, NULL, 0, &n), 0);
	ck_assert_uint_eq(n, len);
	ck_assert_int_eq(fs_listxattr(&fs, f, small, sizeof(small), &n), -ERANGE);
	ck_assert_int_eq(fs_listxattr(&fs, f, list, len - 1, &n), -ERANGE);
	ck_assert_int_eq(fs_listxattr(&fs, f, list, len, &n), 0);
	ck_assert_uint_eq(n, len);
	for (const char *p = list; p < list + n; p += strlen(p) + 1) {
		ck_assert_int_eq(fs_removexattr(&fs, f, p), 0);
		count++;
	}
	ck_assert_uint_eq(count, 100);
	ck_assert_uint_eq(fx_items(f, ITEM_XATTR), 0);
}
END_TEST

START_TEST(every_kind_of_inode_has_attributes)
{
	static const uint32_t kinds[] = { S_IFDIR, S_IFIFO, S_IFCHR, S_IFSOCK };
	struct fs_new n = {
		.dir = ROOT_INO, .name = "l", .len = 1, .mode = S_IFLNK, .target = "t"
	};
	struct inode i;

	ck_assert_int_eq(fs_create(&fs, &n, &i), 0);
	ck_assert_int_eq(set(i.ino, "trusted.x", "1", 1, 0), 0);
	expect(i.ino, "trusted.x", "1", 1);
	for (size_t k = 0; k < ARRAY_SIZE(kinds); k++) {
		uint64_t ino = fx_make(ROOT_INO, (char[]){ (char)('a' + k), 0 }, kinds[k] | 0600);

		ck_assert_int_eq(set(ino, "trusted.x", "1", 1, 0), 0);
		expect(ino, "trusted.x", "1", 1);
	}
}
END_TEST

START_TEST(attributes_are_of_the_inode_whose_ctime_tells)
{
	struct fs_set old = { .mask = SET_CTIME };
	uint64_t f = fx_file("f");
	struct inode i;

	ck_assert_int_eq(fs_setattr(&fs, f, &old, &i), 0);
	ck_assert_int_eq(set(f, "user.x", "1", 1, 0), 0);
	ck_assert_int_ne(fx_stat(f).ctime.sec, 0);
	ck_assert_int_eq(fs_setattr(&fs, f, &old, &i), 0);
	ck_assert_int_eq(fs_removexattr(&fs, f, "user.x"), 0);
	ck_assert_int_ne(fx_stat(f).ctime.sec, 0);
}
END_TEST

START_TEST(write_truncate_and_chown_end_capabilities)
{
	uint64_t f = fx_file("f");
	struct fs_set size = { .mask = SET_SIZE, .size = 5 }, owner = { .mask = SET_UID, .uid = 3 };
	struct fs_set group = { .mask = SET_GID, .gid = 3 };
	struct fs_set mode = { .mask = SET_MODE, .mode = 0755 };
	struct inode i;
	size_t n;

	for (unsigned k = 0; k < 5; k++) {
		ck_assert_int_eq(set(f, "security.capability", "cap", 3, 0), 0);
		ck_assert_int_eq(set(f, "user.keep", "1", 1, 0), 0);
		if (k == 0)
			ck_assert_int_eq(fs_setattr(&fs, f, &mode, &i), 0);
		else if (k == 1)
			fx_write(f, 0, "x", 1);
		else
			ck_assert_int_eq(fs_setattr(&fs, f,
						    k == 2   ? &size
						    : k == 3 ? &owner
							     : &group,
						    &i),
					 0);
		ck_assert_int_eq(fs_getxattr(&fs, f, "security.capability", NULL, 0, &n),
				 k == 0 ? 0 : -ENODATA);
		expect(f, "user.keep", "1", 1);
	}
}
END_TEST

START_TEST(attributes_survive_sealing)
{
	_cleanup_(root_unrefp) struct root *root = NULL, *again = NULL;
	_cleanup_free_ uint8_t *buf = malloc(XATTR_VALUE_MAX);
	uint64_t f = fx_file("f");
	struct tree *mine = fs.tree;
	struct name name;

	fx_fill(buf, XATTR_VALUE_MAX, 2);
	ck_assert_int_eq(set(f, "user.big", buf, XATTR_VALUE_MAX, 0), 0);
	ck_assert_int_eq(set(f, "user.small", buf, 100, 0), 0);
	root = fx_freeze();
	ck_assert_int_eq(root_seal(root), 0);
	expect(f, "user.big", buf, XATTR_VALUE_MAX);

	/* From the chunks alone. */
	ck_assert_int_eq(root_name(root, &name), 0);
	ck_assert_int_eq(root_by_name(store_nodes(fx_store), &name, &again), 0);
	fs.tree = fx_tree(again);
	expect(f, "user.big", buf, XATTR_VALUE_MAX);
	expect(f, "user.small", buf, 100);
	tree_free(fs.tree);
	fs.tree = mine;
}
END_TEST

START_TEST(damaged_attributes_are_errors)
{
	uint64_t f = fx_file("f");
	struct key k = item_key(f, ITEM_XATTR, xattr_base("user.a", 6));
	static const struct {
		uint8_t bytes[16];
		uint32_t len;
	} bad[] = {
		{ { 0 }, 0 },
		{ { 6, 1, 0, 0, 0, 'u', 's', 'e', 'r', '.', 'a' }, 4 },
		{ { 6, 1, 0, 0, 0, 'u', 's', 'e', 'r', '.', 'a' }, 11 }, /* the value is missing */
		{ { 200, 1, 0, 0, 0, 'u', 's', 'e', 'r', '.', 'a', 1 },
		  12 }, /* the name is longer */
		{ { 6, 255, 255, 255, 255, 'u', 's', 'e', 'r', '.', 'a', 1 }, 12 },
		{ { 0, 1, 0, 0, 0, 1 }, 6 },
	};
	char buf[100];
	size_t n;

	ck_assert_int_eq(set(f, "user.a", "1", 1, 0), 0);
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		struct val v = { .data = bad[i].bytes, .len = bad[i].len };

		ck_assert_int_eq(tree_put(fs.tree, &k, &v), 0);
		ck_assert_int_eq(fs_getxattr(&fs, f, "user.a", buf, 100, &n), -ERR_ITEM_DAMAGED);
		ck_assert_int_eq(fs_listxattr(&fs, f, buf, 100, &n), -ERR_ITEM_DAMAGED);
		ck_assert_int_eq(set(f, "user.a", "1", 1, 0), -ERR_ITEM_DAMAGED);
	}
}
END_TEST

int main(void)
{
	TCase *c = tcase_create("attributes");

	tcase_add_checked_fixture(c, setup, teardown);
	tcase_add_test(c, values_of_every_size);
	tcase_add_test(c, flags_create_and_replace);
	tcase_add_test(c, names_have_a_known_class);
	tcase_add_test(c, flag_follows_the_attributes);
	tcase_add_test(c, listing_names_each_once);
	tcase_add_test(c, every_kind_of_inode_has_attributes);
	tcase_add_test(c, attributes_are_of_the_inode_whose_ctime_tells);
	tcase_add_test(c, write_truncate_and_chown_end_capabilities);
	tcase_add_test(c, attributes_survive_sealing);
	tcase_add_test(c, damaged_attributes_are_errors);
	return run_case("xattr", c);
}
