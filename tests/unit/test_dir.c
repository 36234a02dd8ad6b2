/* SPDX-License-Identifier: Apache-2.0 */

/* Directories: lookups, listings that go on while names change, full hash slots, paths. */

#include <dirent.h>

#include "tests/unit/fs_fixture.h"

struct listing {
	unsigned n, stop_after;
	uint64_t cookie;
	uint8_t seen[1 << 20]; /* by the number in the name */
	unsigned types[16];
	uint64_t dots[2];
};
static struct listing ls;

static int take(void *arg, const char *name, size_t len, uint64_t ino, unsigned type, uint64_t next)
{
	struct listing *l = arg;

	if (l->n == l->stop_after)
		return 1;
	l->n++;
	ck_assert_uint_gt(next, l->cookie);
	ck_assert_uint_lt(next, UINT64_C(1) << 62);
	l->cookie = next;
	l->types[type]++;
	if (name[0] == '.' && len <= 2 && name[len - 1] == '.') {
		l->dots[len - 1] = ino;
		ck_assert_uint_eq(next, len);
	} else if (name[0] == 'n') {
		l->seen[strtoul(name + 1, NULL, 10)]++; /* the dot in the name ends it */
	}
	return 0;
}

static void list(uint64_t dir, unsigned at_most)
{
	ls.n = 0;
	ls.stop_after = at_most;
	ck_assert_int_eq(fs_readdir(&fs, dir, ls.cookie, take, &ls), 0);
}

static void numbered(char buf[static 16], unsigned n)
{
	snprintf(buf, 16, "n%u.", n);
}

START_TEST(empty_directory_lists_only_dots)
{
	uint64_t d = fx_dir(ROOT_INO, "d");

	list(d, 100);
	ck_assert_uint_eq(ls.n, 2);
	ck_assert_uint_eq(ls.dots[0], d);
	ck_assert_uint_eq(ls.dots[1], ROOT_INO);
	list(d, 100);
	ck_assert_uint_eq(ls.n, 0);

	ls.cookie = 0;
	list(ROOT_INO, 100);
	ck_assert_uint_eq(ls.n, 3);
	ck_assert_uint_eq(ls.dots[1], ROOT_INO);
}
END_TEST

START_TEST(listing_tells_types)
{
	uint64_t d = fx_dir(ROOT_INO, "d");
	struct fs_new n = { .dir = d, .name = "l", .len = 1, .mode = S_IFLNK, .target = "t" };
	struct inode i;

	fx_make(d, "f", S_IFREG | 0600);
	fx_make(d, "d", S_IFDIR | 0700);
	fx_make(d, "p", S_IFIFO | 0600);
	fx_make(d, "s", S_IFSOCK | 0600);
	fx_make(d, "c", S_IFCHR | 0600);
	fx_make(d, "b", S_IFBLK | 0600);
	ck_assert_int_eq(fs_create(&fs, &n, &i), 0);
	list(d, 100);
	ck_assert_uint_eq(ls.types[DT_REG], 1);
	ck_assert_uint_eq(ls.types[DT_DIR], 3);
	ck_assert_uint_eq(ls.types[DT_FIFO], 1);
	ck_assert_uint_eq(ls.types[DT_SOCK], 1);
	ck_assert_uint_eq(ls.types[DT_CHR], 1);
	ck_assert_uint_eq(ls.types[DT_BLK], 1);
	ck_assert_uint_eq(ls.types[DT_LNK], 1);
}
END_TEST

START_TEST(removed_directory_lists_nothing)
{
	uint64_t d = fx_dir(ROOT_INO, "d");
	struct inode i;

	ck_assert_int_eq(fs_rmdir(&fs, ROOT_INO, "d", 1, &i), 0);
	list(d, 100);
	ck_assert_uint_eq(ls.n, 0);
	ck_assert_int_eq(fs_lookup(&fs, d, "..", 2, &i), -ENOENT);
	ck_assert_int_eq(fs_lookup(&fs, d, ".", 1, &i), 0);
}
END_TEST

START_TEST(listing_goes_on_while_names_come_and_go)
{
	uint64_t d = fx_dir(ROOT_INO, "d");
	struct inode i;
	char name[16];

	for (unsigned n = 0; n < 3000; n++) {
		numbered(name, n);
		fx_make(d, name, S_IFREG | 0644);
	}
	/* Names below 1000 go, those from 3000 on come; the rest must be seen once each. */
	for (unsigned n = 0; n < 1000; n++) {
		list(d, 5);
		numbered(name, n);
		ck_assert_int_eq(fs_unlink(&fs, d, name, strlen(name), &i), 0);
		numbered(name, 3000 + n);
		fx_make(d, name, S_IFREG | 0644);
		if (n % 100 == 0)
			root_unref(fx_freeze());
	}
	list(d, 1u << 20);
	for (unsigned n = 0; n < 4000; n++) {
		if (n >= 1000 && n < 3000)
			ck_assert_uint_eq(ls.seen[n], 1);
		else
			ck_assert_uint_le(ls.seen[n], 1);
	}
}
END_TEST

START_TEST(million_entries)
{
	enum { COUNT = 1000000 };
	uint64_t d = fx_dir(ROOT_INO, "d"), before;
	struct inode i;
	char name[16];
	unsigned total = 0;

	for (unsigned n = 0; n < COUNT; n++) {
		numbered(name, n);
		fx_make(d, name, S_IFREG | 0644);
	}
	/* Every second name goes while the listing is at it. */
	do {
		before = ls.cookie;
		list(d, 10000);
		total += ls.n;
		for (unsigned n = 0; n < 5000 && ls.cookie > before; n++) {
			static unsigned victim;

			numbered(name, victim);
			victim += 2;
			if (victim < COUNT)
				ck_assert_int_eq(fs_unlink(&fs, d, name, strlen(name), &i), 0);
		}
	} while (ls.cookie > before);
	ck_assert_uint_gt(total, COUNT / 2);
	for (unsigned n = 1; n < COUNT; n += 2)
		ck_assert_uint_eq(ls.seen[n], 1);

	numbered(name, COUNT - 1);
	ck_assert_uint_ne(fx_look(d, name).ino, 0);
	ck_assert_int_eq(fs_rmdir(&fs, ROOT_INO, "d", 1, &i), -ENOTEMPTY);
}
END_TEST

START_TEST(names_are_checked)
{
	char name[NAME_LEN_MAX + 2];
	struct inode i;

	memset(name, 'x', sizeof(name));
	ck_assert_int_eq(name_check(name, NAME_LEN_MAX), 0);
	ck_assert_int_eq(name_check(name, NAME_LEN_MAX + 1), -ENAMETOOLONG);
	ck_assert_int_eq(name_check("", 0), -EINVAL);
	ck_assert_int_eq(name_check("a/b", 3), -EINVAL);
	ck_assert_int_eq(name_check("a\0b", 3), -EINVAL);

	ck_assert_int_eq(fs_lookup(&fs, ROOT_INO, name, NAME_LEN_MAX + 1, &i), -ENAMETOOLONG);
	ck_assert_int_eq(fs_lookup(&fs, ROOT_INO, name, NAME_LEN_MAX, &i), -ENOENT);
	ck_assert_int_eq(fs_lookup(&fs, ROOT_INO, "", 0, &i), -EINVAL);
	ck_assert_int_eq(fs_lookup(&fs, 77, "x", 1, &i), -ENOENT);
	ck_assert_int_eq(fs_lookup(&fs, fx_file("f"), "x", 1, &i), -ENOTDIR);

	/* Any other byte will do, and the longest name too. */
	name[NAME_LEN_MAX] = 0;
	fx_file(name);
	fx_file("\xff\x01 \n");
	ck_assert_uint_ne(fx_look(ROOT_INO, name).ino, 0);
	ck_assert_uint_ne(fx_look(ROOT_INO, "\xff\x01 \n").ino, 0);
}
END_TEST

START_TEST(equal_hashes_live_side_by_side)
{
	uint64_t d = fx_dir(ROOT_INO, "d"), base = dirent_base("victim", 6);
	uint64_t pos = 0, ino = 0, other = fx_file("other");
	struct inode o = fx_stat(other), i;
	char name[16];

	/* 255 other names in the slots of "victim". */
	for (unsigned n = 0; n < 255; n++) {
		numbered(name, n);
		ck_assert_int_eq(dirent_put(&fs, d, base + n, &o, name, strlen(name)), 0);
	}
	ino = fx_make(d, "victim", S_IFREG | 0600);
	ck_assert_uint_eq(fx_look(d, "victim").ino, ino);
	ck_assert_uint_eq(fx_stat(ino).parent_off, base + 255);

	/* All 256 are taken: no further name of this hash. */
	ck_assert_int_eq(fs_unlink(&fs, d, "victim", 6, &i), 0);
	ck_assert_int_eq(dirent_put(&fs, d, base + 255, &o, "last", 4), 0);
	ck_assert_int_eq(dirent_find(&fs, d, "victim", 6, &pos, &ino), ABSENT);
	ck_assert_uint_eq(pos, 0);
	ck_assert_int_eq(fx_try(d, "victim", S_IFREG, &i), -ENOSPC);
	ck_assert_int_eq(fs_rename(&fs, ROOT_INO, "other", 5, d, "victim", 6, 0, &i), -ENOSPC);

	/* The first free one is taken again. */
	ck_assert_int_eq(dirent_del(&fs, d, base + 7), 0);
	ck_assert_int_eq(dirent_del(&fs, d, base + 9), 0);
	ino = fx_make(d, "victim", S_IFREG | 0600);
	ck_assert_uint_eq(fx_stat(ino).parent_off, base + 7);
}
END_TEST

START_TEST(paths_lead_up_and_down)
{
	_cleanup_free_ char *path = NULL, *root_path = NULL;
	uint64_t a = fx_dir(ROOT_INO, "a"), b = fx_dir(a, "bb"),
		 f = fx_make(b, "file", S_IFREG | 0600);
	struct inode i;
	size_t len;

	ck_assert_int_eq(fs_path(&fs, f, &path, &len), 0);
	ck_assert_str_eq(path, "a/bb/file");
	ck_assert_uint_eq(len, 9);
	ck_assert_int_eq(fs_path(&fs, ROOT_INO, &root_path, &len), 0);
	ck_assert_str_eq(root_path, "");

	ck_assert_int_eq(fs_resolve(&fs, "a/bb/file", 9, &i), 0);
	ck_assert_uint_eq(i.ino, f);
	ck_assert_int_eq(fs_resolve(&fs, "/a//bb/", 7, &i), 0);
	ck_assert_uint_eq(i.ino, b);
	ck_assert_int_eq(fs_resolve(&fs, "a/bb/../../a/./bb", 17, &i), 0);
	ck_assert_uint_eq(i.ino, b);
	ck_assert_int_eq(fs_resolve(&fs, "", 0, &i), 0);
	ck_assert_uint_eq(i.ino, ROOT_INO);
	ck_assert_int_eq(fs_resolve(&fs, "a/bb/file/x", 11, &i), -ENOTDIR);
	ck_assert_int_eq(fs_resolve(&fs, "a/bb/file/", 10, &i), -ENOTDIR);
	ck_assert_int_eq(fs_resolve(&fs, "a/cc/file", 9, &i), -ENOENT);

	ck_assert_int_eq(fs_unlink(&fs, b, "file", 4, &i), 0);
	free(TAKE_PTR(path));
	ck_assert_int_eq(fs_path(&fs, f, &path, &len), -ENOENT);
}
END_TEST

START_TEST(deep_paths_have_no_limit)
{
	_cleanup_free_ char *path = NULL;
	char name[200];
	uint64_t dir = ROOT_INO;
	struct inode i;
	size_t len;

	memset(name, 'd', sizeof(name));
	name[199] = 0;
	for (unsigned n = 0; n < 1000; n++)
		dir = fx_dir(dir, name);
	ck_assert_int_eq(fs_path(&fs, dir, &path, &len), 0);
	ck_assert_uint_eq(len, 1000 * 200 - 1);
	ck_assert_uint_eq(strlen(path), len);
	ck_assert_int_eq(fs_resolve(&fs, path, len, &i), 0);
	ck_assert_uint_eq(i.ino, dir);
}
END_TEST

START_TEST(damaged_directories_are_errors)
{
	uint64_t a = fx_dir(ROOT_INO, "a"), b = fx_dir(a, "b");
	static const char *const bad[] = { "", ".", "..", "x/y", "/" };
	struct key k = item_key(a, ITEM_DIRENT, 1 << 20);
	_cleanup_free_ char *path = NULL;
	uint8_t buf[DIRENT_BYTES_MAX] = { 9 };
	struct inode i, gone;
	size_t len;

	buf[8] = DT_REG;
	for (size_t n = 0; n < ARRAY_SIZE(bad); n++) {
		struct val v = { .data = buf,
				 .len = (uint32_t)(DIRENT_HEADER_BYTES + strlen(bad[n])) };

		memcpy(buf + DIRENT_HEADER_BYTES, bad[n], strlen(bad[n]));
		ck_assert_int_eq(tree_put(fs.tree, &k, &v), 0);
		ls.cookie = 0;
		ls.stop_after = 100;
		ck_assert_int_eq(fs_readdir(&fs, a, 0, take, &ls), -ERR_ITEM_DAMAGED);
	}
	ck_assert_int_eq(tree_del(fs.tree, &k), 0);

	/* A name that leads nowhere. */
	i = (struct inode){ .ino = 4711, .mode = S_IFREG };
	ck_assert_int_eq(dirent_put(&fs, a, dirent_base("ghost", 5), &i, "ghost", 5), 0);
	ck_assert_int_eq(fs_lookup(&fs, a, "ghost", 5, &i), -ERR_ITEM_DAMAGED);

	/* Two directories that are each other's parent: walks end. */
	i = fx_stat(a);
	i.parent = b;
	i.parent_off = dirent_base("a", 1);
	ck_assert_int_eq(inode_save(&fs, &i), 0);
	ck_assert_int_eq(dirent_put(&fs, b, i.parent_off, &i, "a", 1), 0);
	ck_assert_int_eq(fs_path(&fs, b, &path, &len), -ERR_ITEM_DAMAGED);
	fx_dir(ROOT_INO, "c");
	ck_assert_int_eq(fs_rename(&fs, ROOT_INO, "c", 1, b, "c", 1, 0, &gone), -ERR_ITEM_DAMAGED);
}
END_TEST

int main(void)
{
	TCase *c = tcase_create("directories");

	tcase_add_checked_fixture(c, setup, teardown);
	tcase_set_timeout(c, 240);
	tcase_add_test(c, empty_directory_lists_only_dots);
	tcase_add_test(c, listing_tells_types);
	tcase_add_test(c, removed_directory_lists_nothing);
	tcase_add_test(c, listing_goes_on_while_names_come_and_go);
	tcase_add_test(c, million_entries);
	tcase_add_test(c, names_are_checked);
	tcase_add_test(c, equal_hashes_live_side_by_side);
	tcase_add_test(c, paths_lead_up_and_down);
	tcase_add_test(c, deep_paths_have_no_limit);
	tcase_add_test(c, damaged_directories_are_errors);
	return run_case("dir", c);
}
