/* SPDX-License-Identifier: Apache-2.0 */

/* Creating, linking, removing and renaming; what each does to nlink, times, parents and orphans. */

#include <dirent.h>
#include <linux/fs.h>

#include "tests/unit/fs_fixture.h"

static int mv(uint64_t odir, const char *oname, uint64_t ndir, const char *nname, unsigned flags)
{
	struct inode gone;

	return fs_rename(&fs, odir, oname, strlen(oname), ndir, nname, strlen(nname), flags, &gone);
}

static int rm(uint64_t dir, const char *name)
{
	struct inode i;

	return fs_unlink(&fs, dir, name, strlen(name), &i);
}

static int rmdir_(uint64_t dir, const char *name)
{
	struct inode i;

	return fs_rmdir(&fs, dir, name, strlen(name), &i);
}

static int ln(uint64_t ino, uint64_t dir, const char *name)
{
	struct inode i;

	return fs_link(&fs, ino, dir, name, strlen(name), &i);
}

static int count_orphan(void *arg, uint64_t ino)
{
	(*(unsigned *)arg)++;
	return 0;
}

static unsigned orphans(void)
{
	unsigned n = 0;

	ck_assert_int_eq(fs_orphans(&fs, count_orphan, &n), 0);
	return n;
}

/* Ages an inode, so that a later change of its times shows. */
static void age(uint64_t ino)
{
	struct fs_set set = { .mask = SET_ATIME | SET_MTIME | SET_CTIME };
	struct inode i;

	ck_assert_int_eq(fs_setattr(&fs, ino, &set, &i), 0);
}

static bool touched(uint64_t ino)
{
	struct inode i = fx_stat(ino);

	return i.mtime.sec != 0 && i.ctime.sec != 0;
}

START_TEST(new_inode_is_what_was_asked_for)
{
	struct fs_new n = {
		.dir = ROOT_INO,
		.name = "dev",
		.len = 3,
		.mode = S_IFCHR | 0666,
		.rdev = 0x10203,
		.cred = { .uid = 7, .gid = 8, .umask = 022 },
	};
	uint64_t changes = fx_changes;
	struct inode i;

	age(ROOT_INO);
	changes = fx_changes;
	ck_assert_int_eq(fs_create(&fs, &n, &i), 0);
	ck_assert_uint_eq(fx_changes, changes + 1);
	ck_assert_uint_eq(i.mode, S_IFCHR | 0644);
	ck_assert_uint_eq(i.uid, 7);
	ck_assert_uint_eq(i.gid, 8);
	ck_assert_uint_eq(i.nlink, 1);
	ck_assert_uint_eq(i.rdev, 0x10203);
	ck_assert_uint_eq(i.size, 0);
	ck_assert(touched(ROOT_INO));
	ck_assert_uint_eq(fx_look(ROOT_INO, "dev").ino, i.ino);

	ck_assert_int_eq(fs_create(&fs, &n, &i), -EEXIST);
	n.name = "e";
	n.len = 1;
	n.mode = S_IFMT;
	ck_assert_int_eq(fs_create(&fs, &n, &i), -EINVAL);
	n.mode = 0640;
	ck_assert_int_eq(fs_create(&fs, &n, &i), 0);
	ck_assert_uint_eq(i.mode, S_IFREG | 0640);
	ck_assert_uint_eq(fx_changes, changes + 2);
}
END_TEST

START_TEST(names_that_cannot_be_made)
{
	char name[300];
	uint64_t f = fx_file("f");
	struct inode i;

	memset(name, 'x', sizeof(name));
	name[256] = 0;
	ck_assert_int_eq(fx_try(ROOT_INO, name, S_IFREG, &i), -ENAMETOOLONG);
	ck_assert_int_eq(fx_try(ROOT_INO, "", S_IFREG, &i), -EINVAL);
	ck_assert_int_eq(fx_try(ROOT_INO, "a/b", S_IFREG, &i), -EINVAL);
	ck_assert_int_eq(fx_try(ROOT_INO, ".", S_IFDIR, &i), -EEXIST);
	ck_assert_int_eq(fx_try(ROOT_INO, "..", S_IFDIR, &i), -EEXIST);
	ck_assert_int_eq(fx_try(f, "x", S_IFREG, &i), -ENOTDIR);
	ck_assert_int_eq(fx_try(4711, "x", S_IFREG, &i), -ENOENT);
}
END_TEST

START_TEST(directories_count_their_subdirectories)
{
	uint64_t a = fx_dir(ROOT_INO, "a"), b = fx_dir(a, "b");

	ck_assert_uint_eq(fx_stat(ROOT_INO).nlink, 3);
	ck_assert_uint_eq(fx_stat(a).nlink, 3);
	ck_assert_uint_eq(fx_stat(b).nlink, 2);
	ck_assert_int_eq(mv(a, "b", ROOT_INO, "b", 0), 0);
	ck_assert_uint_eq(fx_stat(ROOT_INO).nlink, 4);
	ck_assert_uint_eq(fx_stat(a).nlink, 2);
	ck_assert_int_eq(rmdir_(ROOT_INO, "b"), 0);
	ck_assert_uint_eq(fx_stat(ROOT_INO).nlink, 3);
	ck_assert_uint_eq(fx_stat(b).nlink, 0);
}
END_TEST

START_TEST(nothing_is_made_in_a_removed_directory)
{
	uint64_t d = fx_dir(ROOT_INO, "d"), f = fx_file("f");
	struct inode i;

	ck_assert_int_eq(rmdir_(ROOT_INO, "d"), 0);
	ck_assert_int_eq(fx_try(d, "x", S_IFREG, &i), -ENOENT);
	ck_assert_int_eq(ln(f, d, "x"), -ENOENT);
	ck_assert_int_eq(mv(ROOT_INO, "f", d, "x", 0), -ENOENT);
	ck_assert_int_eq(rm(d, "x"), -ENOENT);
}
END_TEST

START_TEST(setgid_directories_pass_their_group_on)
{
	struct fs_new n = { .dir = ROOT_INO,
			    .name = "d",
			    .len = 1,
			    .mode = S_IFDIR | 02775,
			    .cred = { .uid = 1, .gid = 2 } };
	struct inode d, i;

	ck_assert_int_eq(fs_create(&fs, &n, &d), 0);
	ck_assert_uint_eq(d.mode & 07777, 02775);
	n.dir = d.ino;
	n.cred.gid = 3;
	n.mode = S_IFDIR | 0755;
	ck_assert_int_eq(fs_create(&fs, &n, &i), 0);
	ck_assert_uint_eq(i.gid, 2);
	ck_assert_uint_eq(i.mode & 07777, 02755);
	n.name = "f";
	n.mode = S_IFREG | 0644;
	ck_assert_int_eq(fs_create(&fs, &n, &i), 0);
	ck_assert_uint_eq(i.gid, 2);
	ck_assert_uint_eq(i.mode & 07777, 0644);
	ck_assert_int_eq(fs_tmpfile(&fs, &n, &i), 0);
	ck_assert_uint_eq(i.gid, 2);
}
END_TEST

START_TEST(symlinks_of_every_length)
{
	static const size_t lens[] = { 1, 899, 900, 901, 4095 };
	char target[5000], got[5000];
	struct fs_new n = { .dir = ROOT_INO,
			    .len = 1,
			    .mode = S_IFLNK | 0600,
			    .target = target,
			    .cred = { .umask = 077 } };
	struct inode i;
	size_t len;

	for (size_t k = 0; k < ARRAY_SIZE(lens); k++) {
		memset(target, 'a' + (int)k, sizeof(target));
		target[lens[k]] = 0;
		n.name = (char[]){ (char)('a' + k), 0 };
		ck_assert_int_eq(fs_create(&fs, &n, &i), 0);
		ck_assert_uint_eq(i.mode, S_IFLNK | 0777);
		ck_assert_uint_eq(i.size, lens[k]);
		ck_assert_int_eq(fs_readlink(&fs, i.ino, got, sizeof(got), &len), 0);
		ck_assert_uint_eq(len, lens[k]);
		ck_assert_int_eq(memcmp(got, target, len), 0);
		ck_assert_int_eq(fs_readlink(&fs, i.ino, got, 1, &len), 0);
		ck_assert_uint_eq(len, 1);
	}
	n.name = "z";
	target[4095] = 'x';
	target[4096] = 0;
	ck_assert_int_eq(fs_create(&fs, &n, &i), -ENAMETOOLONG);
	n.target = "";
	ck_assert_int_eq(fs_create(&fs, &n, &i), -ENOENT);
	ck_assert_int_eq(fs_readlink(&fs, ROOT_INO, got, 10, &len), -EINVAL);
}
END_TEST

struct names {
	unsigned n;
	char text[16][32];
};

static int take_name(void *arg, uint64_t parent, const char *name, size_t len)
{
	struct names *t = arg;

	snprintf(t->text[t->n++], 32, "%u/%.*s", (unsigned)parent, (int)len, name);
	return 0;
}

START_TEST(every_name_of_an_inode_is_known)
{
	uint64_t d = fx_dir(ROOT_INO, "d"), f = fx_file("one");
	struct names t = { 0 };
	char want[32];
	struct inode i;

	ck_assert_int_eq(ln(f, d, "two"), 0);
	ck_assert_int_eq(ln(f, d, "three"), 0);
	ck_assert_uint_eq(fx_stat(f).nlink, 3);
	ck_assert_int_eq(fs_names(&fs, f, take_name, &t), 0);
	ck_assert_uint_eq(t.n, 3);
	ck_assert_str_eq(t.text[0], "1/one");

	/* The primary name goes: another takes its place. */
	ck_assert_int_eq(fs_unlink(&fs, ROOT_INO, "one", 3, &i), 0);
	ck_assert_uint_eq(i.nlink, 2);
	ck_assert_uint_eq(fx_items(f, ITEM_LINK), 1);
	t.n = 0;
	ck_assert_int_eq(fs_names(&fs, f, take_name, &t), 0);
	ck_assert_uint_eq(t.n, 2);

	/* A further name is renamed. */
	ck_assert_int_eq(mv(d, "two", ROOT_INO, "2", 0), 0);
	ck_assert_int_eq(mv(d, "three", ROOT_INO, "3", 0), 0);
	t.n = 0;
	ck_assert_int_eq(fs_names(&fs, f, take_name, &t), 0);
	ck_assert_uint_eq(t.n, 2);
	for (unsigned n = 0; n < 2; n++)
		ck_assert(!strcmp(t.text[n], "1/2") || !strcmp(t.text[n], "1/3"));

	ck_assert_int_eq(rm(ROOT_INO, "2"), 0);
	ck_assert_int_eq(rm(ROOT_INO, "3"), 0);
	ck_assert_uint_eq(fx_items(f, ITEM_LINK), 0);
	ck_assert_uint_eq(orphans(), 1);
	t.n = 0;
	ck_assert_int_eq(fs_names(&fs, f, take_name, &t), 0);
	ck_assert_uint_eq(t.n, 0);

	ck_assert_int_eq(fs_names(&fs, d, take_name, &t), 0);
	snprintf(want, sizeof(want), "1/d");
	ck_assert_str_eq(t.text[0], want);
}
END_TEST

START_TEST(links_have_limits)
{
	uint64_t d = fx_dir(ROOT_INO, "d"), f = fx_file("f");
	struct inode i = fx_stat(f);
	char name[16];

	ck_assert_int_eq(ln(d, ROOT_INO, "x"), -EPERM);
	ck_assert_int_eq(ln(f, ROOT_INO, "f"), -EEXIST);
	ck_assert_int_eq(ln(4711, ROOT_INO, "x"), -ENOENT);
	for (unsigned n = 1; n < LINK_COUNT_MAX; n++) {
		snprintf(name, sizeof(name), "%u", n);
		ck_assert_int_eq(ln(f, d, name), 0);
	}
	ck_assert_uint_eq(fx_stat(f).nlink, LINK_COUNT_MAX);
	ck_assert_int_eq(ln(f, d, "one more"), -EMLINK);
	for (unsigned n = 1; n < LINK_COUNT_MAX; n++) {
		snprintf(name, sizeof(name), "%u", n);
		ck_assert_int_eq(rm(d, name), 0);
	}
	i = fx_stat(f);
	ck_assert_uint_eq(i.nlink, 1);
	ck_assert_uint_eq(i.parent, ROOT_INO);
	ck_assert_uint_eq(fx_items(f, ITEM_LINK), 0);
}
END_TEST

START_TEST(a_name_more_or_less_is_a_change_of_the_file)
{
	uint64_t f = fx_file("f");

	age(f);
	ck_assert_int_eq(ln(f, ROOT_INO, "g"), 0);
	ck_assert_int_ne(fx_stat(f).ctime.sec, 0);
	age(f);
	ck_assert_int_eq(rm(ROOT_INO, "g"), 0);
	ck_assert_int_ne(fx_stat(f).ctime.sec, 0);
	ck_assert_int_eq(fx_stat(f).mtime.sec, 0);
}
END_TEST

START_TEST(unlinked_file_lives_until_it_is_purged)
{
	uint64_t changes, f = fx_file("f"), g = fx_file("g");
	_cleanup_free_ uint8_t *buf = calloc(1, 500000);
	struct inode i;

	fx_fill(buf, 500000, 1);
	fx_write(f, 0, buf, 500000);
	ck_assert_int_eq(fs_setxattr(&fs, f, "user.x", "1", 1, 0), 0);
	age(ROOT_INO);
	ck_assert_int_eq(fs_unlink(&fs, ROOT_INO, "f", 1, &i), 0);
	ck_assert(touched(ROOT_INO));
	ck_assert_uint_eq(i.nlink, 0);
	ck_assert_uint_eq(i.parent, 0);
	ck_assert_uint_eq(orphans(), 1);
	changes = fx_changes;
	fx_write(f, 100, "still writable", 14); /* and seen by nobody: no change */
	fx_expect(f, 0, buf, 100);
	ck_assert_int_eq(ln(f, ROOT_INO, "again"), -ENOENT);
	ck_assert_int_eq(fs_purge(&fs, f), 0);
	ck_assert_uint_eq(fx_changes, changes);
	ck_assert_uint_eq(orphans(), 0);
	ck_assert_int_eq(fs_stat(&fs, f, &i), -ENOENT);
	ck_assert_uint_eq(fx_items(f, ITEM_EXTENT), 0);
	ck_assert_uint_eq(fx_items(f, ITEM_XATTR), 0);

	ck_assert_int_eq(fs_purge(&fs, f), 0);
	ck_assert_int_eq(fs_purge(&fs, g), 0); /* no orphan: stays */
	ck_assert_uint_eq(fx_look(ROOT_INO, "g").ino, g);
}
END_TEST

START_TEST(tmpfile_can_be_named_later)
{
	struct fs_new n = { .mode = S_IFREG | 0666, .cred = { .uid = 5, .umask = 027 } };
	struct inode i;

	ck_assert_int_eq(fs_tmpfile(&fs, &n, &i), 0);
	ck_assert_uint_eq(i.nlink, 0);
	ck_assert_uint_eq(i.mode, S_IFREG | 0640);
	ck_assert_uint_eq(orphans(), 1);
	fx_write(i.ino, 0, "data", 4);
	ck_assert_int_eq(ln(i.ino, ROOT_INO, "named"), 0);
	ck_assert_uint_eq(orphans(), 0);
	ck_assert_uint_eq(fx_look(ROOT_INO, "named").ino, i.ino);
	ck_assert_uint_eq(fx_stat(i.ino).nlink, 1);
	fx_expect(i.ino, 0, "data", 4);
	ck_assert_int_eq(fs_purge(&fs, i.ino), 0);
	ck_assert_uint_eq(fx_look(ROOT_INO, "named").ino, i.ino);

	/* Once it had a name it is as any other. */
	ck_assert_int_eq(rm(ROOT_INO, "named"), 0);
	ck_assert_int_eq(ln(i.ino, ROOT_INO, "again"), -ENOENT);
	n.mode = S_IFDIR | 0755;
	ck_assert_int_eq(fs_tmpfile(&fs, &n, &i), -EINVAL);
}
END_TEST

START_TEST(removing_refuses_what_it_must)
{
	uint64_t d = fx_dir(ROOT_INO, "d");

	fx_file("f");
	fx_make(d, "x", S_IFREG | 0644);
	ck_assert_int_eq(rm(ROOT_INO, "d"), -EISDIR);
	ck_assert_int_eq(rm(ROOT_INO, "none"), -ENOENT);
	ck_assert_int_eq(rm(ROOT_INO, "."), -EISDIR);
	ck_assert_int_eq(rm(fx_look(ROOT_INO, "f").ino, "x"), -ENOTDIR);
	ck_assert_int_eq(rmdir_(ROOT_INO, "f"), -ENOTDIR);
	ck_assert_int_eq(rmdir_(ROOT_INO, "d"), -ENOTEMPTY);
	ck_assert_int_eq(rmdir_(ROOT_INO, "none"), -ENOENT);
	ck_assert_int_eq(rmdir_(d, "."), -EINVAL);
	ck_assert_int_eq(rmdir_(d, ".."), -ENOTEMPTY);
	ck_assert_int_eq(rm(d, "x"), 0);
	ck_assert_int_eq(rmdir_(ROOT_INO, "d"), 0);
}
END_TEST

START_TEST(rename_moves_and_touches)
{
	uint64_t a = fx_dir(ROOT_INO, "a"), b = fx_dir(ROOT_INO, "b");
	uint64_t f = fx_make(a, "f", S_IFREG | 0644), changes;
	struct inode i;

	age(a);
	age(b);
	age(f);
	changes = fx_changes;
	ck_assert_int_eq(mv(a, "f", b, "g", 0), 0);
	ck_assert_uint_eq(fx_changes, changes + 1);
	ck_assert_uint_eq(fx_look(a, "f").ino, 0);
	ck_assert_uint_eq(fx_look(b, "g").ino, f);
	ck_assert(touched(a) && touched(b));
	i = fx_stat(f);
	ck_assert_int_eq(i.mtime.sec, 0);
	ck_assert_int_ne(i.ctime.sec, 0);
	ck_assert_uint_eq(i.parent, b);
}
END_TEST

START_TEST(rename_replaces_files_and_empty_directories)
{
	uint64_t a = fx_file("a"), b = fx_file("b"), d = fx_dir(ROOT_INO, "d"),
		 e = fx_dir(ROOT_INO, "e");
	struct inode gone;

	ck_assert_int_eq(fs_rename(&fs, ROOT_INO, "a", 1, ROOT_INO, "b", 1, 0, &gone), 0);
	ck_assert_uint_eq(gone.ino, b);
	ck_assert_uint_eq(gone.nlink, 0);
	ck_assert_uint_eq(fx_look(ROOT_INO, "b").ino, a);
	ck_assert_uint_eq(orphans(), 1);

	ck_assert_int_eq(mv(ROOT_INO, "b", ROOT_INO, "d", 0), -EISDIR);
	ck_assert_int_eq(mv(ROOT_INO, "d", ROOT_INO, "b", 0), -ENOTDIR);
	fx_make(e, "x", S_IFREG | 0644);
	ck_assert_int_eq(mv(ROOT_INO, "d", ROOT_INO, "e", 0), -ENOTEMPTY);
	ck_assert_int_eq(fs_rename(&fs, ROOT_INO, "e", 1, ROOT_INO, "d", 1, 0, &gone), 0);
	ck_assert_uint_eq(gone.ino, d);
	ck_assert_uint_eq(gone.nlink, 0);
	ck_assert_uint_eq(fx_stat(ROOT_INO).nlink, 3);
	ck_assert_uint_eq(fx_look(ROOT_INO, "d").ino, e);
	ck_assert_uint_eq(orphans(), 2);

	ck_assert_int_eq(mv(ROOT_INO, "none", ROOT_INO, "d", 0), -ENOENT);
	ck_assert_int_eq(mv(ROOT_INO, "b", ROOT_INO, "d", RENAME_NOREPLACE), -EEXIST);
	ck_assert_int_eq(mv(ROOT_INO, "b", ROOT_INO, "new", RENAME_NOREPLACE), 0);
	ck_assert_int_eq(mv(ROOT_INO, ".", ROOT_INO, "x", 0), -EBUSY);
	ck_assert_int_eq(mv(ROOT_INO, "new", ROOT_INO, "..", 0), -EBUSY);
	ck_assert_int_eq(mv(ROOT_INO, "new", ROOT_INO, "x", 64), -EINVAL);
	ck_assert_int_eq(mv(ROOT_INO, "new", ROOT_INO, "x", RENAME_EXCHANGE | RENAME_NOREPLACE),
			 -EINVAL);
}
END_TEST

START_TEST(rename_replaces_one_of_several_names)
{
	uint64_t a = fx_file("a"), b = fx_file("b");
	struct inode gone;

	ck_assert_int_eq(ln(b, ROOT_INO, "b2"), 0);
	ck_assert_int_eq(fs_rename(&fs, ROOT_INO, "a", 1, ROOT_INO, "b", 1, 0, &gone), 0);
	ck_assert_uint_eq(gone.ino, b);
	ck_assert_uint_eq(gone.nlink, 1);
	ck_assert_uint_eq(orphans(), 0);
	ck_assert_uint_eq(fx_look(ROOT_INO, "b").ino, a);
	ck_assert_uint_eq(fx_look(ROOT_INO, "b2").ino, b);
}
END_TEST

START_TEST(rename_onto_another_name_of_the_same_file_does_nothing)
{
	uint64_t changes, f = fx_file("f");
	struct inode gone = { .ino = 9 };

	ck_assert_int_eq(ln(f, ROOT_INO, "g"), 0);
	changes = fx_changes;
	ck_assert_int_eq(fs_rename(&fs, ROOT_INO, "f", 1, ROOT_INO, "g", 1, 0, &gone), 0);
	ck_assert_uint_eq(gone.ino, 0);
	ck_assert_int_eq(mv(ROOT_INO, "f", ROOT_INO, "f", 0), 0);
	ck_assert_int_eq(mv(ROOT_INO, "f", ROOT_INO, "g", RENAME_NOREPLACE), -EEXIST);
	ck_assert_uint_eq(fx_look(ROOT_INO, "f").ino, f);
	ck_assert_uint_eq(fx_look(ROOT_INO, "g").ino, f);
	ck_assert_uint_eq(fx_changes, changes);
}
END_TEST

START_TEST(directory_cannot_move_below_itself)
{
	uint64_t a = fx_dir(ROOT_INO, "a"), b = fx_dir(a, "b"), c = fx_dir(b, "c");

	ck_assert_int_eq(mv(ROOT_INO, "a", a, "x", 0), -EINVAL);
	ck_assert_int_eq(mv(ROOT_INO, "a", c, "x", 0), -EINVAL);
	ck_assert_int_eq(mv(ROOT_INO, "a", a, "b", RENAME_EXCHANGE), -EINVAL);
	ck_assert_int_eq(mv(b, "c", ROOT_INO, "a", 0), -ENOTEMPTY);
	ck_assert_int_eq(mv(b, "c", ROOT_INO, "a", RENAME_EXCHANGE), -EINVAL);
	ck_assert_int_eq(mv(b, "c", ROOT_INO, "c", 0), 0);
	ck_assert_int_eq(mv(ROOT_INO, "a", c, "a", 0), 0);
	ck_assert_uint_eq(fx_look(a, "..").ino, c);
	ck_assert_uint_eq(fx_stat(ROOT_INO).nlink, 3);
	ck_assert_uint_eq(fx_stat(c).nlink, 3);
}
END_TEST

START_TEST(exchange_swaps_file_and_directory)
{
	uint64_t a = fx_dir(ROOT_INO, "a"), b = fx_dir(ROOT_INO, "b");
	uint64_t f = fx_make(a, "x", S_IFREG | 0644), d = fx_dir(b, "y");
	uint64_t in_d = fx_make(d, "inside", S_IFREG | 0644);
	struct inode i;

	age(f);
	age(d);
	ck_assert_int_eq(mv(a, "x", b, "none", RENAME_EXCHANGE), -ENOENT);
	ck_assert_int_eq(mv(a, "x", b, "y", RENAME_EXCHANGE), 0);
	ck_assert_uint_eq(fx_look(a, "x").ino, d);
	ck_assert_uint_eq(fx_look(b, "y").ino, f);
	ck_assert_uint_eq(fx_stat(a).nlink, 3);
	ck_assert_uint_eq(fx_stat(b).nlink, 2);
	ck_assert_uint_eq(fx_look(d, "..").ino, a);
	ck_assert_uint_eq(fx_look(d, "inside").ino, in_d);
	ck_assert_int_ne(fx_stat(f).ctime.sec, 0);
	ck_assert_int_ne(fx_stat(d).ctime.sec, 0);
	ck_assert_uint_eq(orphans(), 0);
	ck_assert_int_eq(fs_resolve(&fs, "a/x/inside", 10, &i), 0);

	/* Within one directory. */
	ck_assert_int_eq(mv(ROOT_INO, "a", ROOT_INO, "b", RENAME_EXCHANGE), 0);
	ck_assert_uint_eq(fx_look(ROOT_INO, "a").ino, b);
	ck_assert_uint_eq(fx_stat(ROOT_INO).nlink, 4);
}
END_TEST

START_TEST(whiteout_stays_behind)
{
	uint64_t f = fx_file("f");
	struct inode i;

	ck_assert_int_eq(mv(ROOT_INO, "f", ROOT_INO, "g", RENAME_WHITEOUT), 0);
	ck_assert_uint_eq(fx_look(ROOT_INO, "g").ino, f);
	i = fx_look(ROOT_INO, "f");
	ck_assert_uint_eq(i.mode, S_IFCHR);
	ck_assert_uint_eq(i.rdev, 0);
	ck_assert_uint_eq(i.nlink, 1);
	ck_assert_int_eq(rm(ROOT_INO, "f"), 0);
}
END_TEST

START_TEST(importing_keeps_times_and_counts_names)
{
	struct timens t = { .sec = -5, .nsec = 999999999 };
	struct inode i = { .mode = S_IFDIR | 0700,
			   .nlink = 2,
			   .size = 4096,
			   .uid = 3,
			   .mtime = t,
			   .ctime = t,
			   .atime = t,
			   .btime = t };
	uint64_t dir;
	struct inode got;
	char buf[10];
	size_t len;

	age(ROOT_INO);
	i.ino = dir = store_take_ino(fx_store, 1);
	ck_assert_int_eq(fs_add(&fs, ROOT_INO, "d", 1, &i, NULL), 0);
	ck_assert(!touched(ROOT_INO));
	ck_assert_uint_eq(fx_stat(ROOT_INO).nlink, 3);
	got = fx_stat(dir);
	ck_assert_int_eq(got.mtime.sec, -5);
	ck_assert_uint_eq(got.mtime.nsec, 999999999);
	ck_assert_uint_eq(got.parent, ROOT_INO);

	i.ino = store_take_ino(fx_store, 1);
	i.mode = S_IFLNK | 0777;
	i.nlink = 1;
	ck_assert_int_eq(fs_add(&fs, dir, "l", 1, &i, "to"), 0);
	ck_assert_int_eq(fs_readlink(&fs, i.ino, buf, sizeof(buf), &len), 0);
	ck_assert_uint_eq(len, 2);
	ck_assert_uint_eq(fx_stat(i.ino).size, 2);
	ck_assert_int_eq(fs_add_link(&fs, dir, "l2", 2, i.ino), 0);
	ck_assert_uint_eq(fx_stat(i.ino).nlink, 2);
	ck_assert_int_eq(fs_add_link(&fs, dir, "d2", 2, dir), -EPERM);
	ck_assert_int_eq(fs_add(&fs, dir, "again", 5, &i, "x"), -EEXIST);
	i.ino = store_take_ino(fx_store, 1);
	ck_assert_int_eq(fs_add(&fs, dir, "l", 1, &i, "x"), -EEXIST);
	ck_assert_int_eq(fs_add(&fs, i.ino, "l", 1, &i, "x"), -ENOENT);
	i.mode = 0;
	ck_assert_int_eq(fs_add(&fs, dir, "bad", 3, &i, "x"), -EINVAL);

	/* Times of a directory after its children; what ties it to them is kept. */
	got.mtime.sec = 77;
	got.nlink = 99;
	got.parent = 0;
	ck_assert_int_eq(fs_put_inode(&fs, &got), 0);
	got = fx_stat(dir);
	ck_assert_int_eq(got.mtime.sec, 77);
	ck_assert_uint_eq(got.nlink, 2);
	ck_assert_uint_eq(got.parent, ROOT_INO);
}
END_TEST

START_TEST(attributes_are_set_as_asked)
{
	uint64_t f = fx_make(ROOT_INO, "f", S_IFREG | 06755), d = fx_dir(ROOT_INO, "d");
	struct fs_set set = { .mask = SET_UID, .uid = 9 };
	struct inode i;

	ck_assert_int_eq(fs_setattr(&fs, f, &set, &i), 0);
	ck_assert_uint_eq(i.uid, 9);
	ck_assert_uint_eq(i.mode & 07777, 0755);
	set = (struct fs_set){ .mask = SET_MODE, .mode = S_IFDIR | 02745 };
	ck_assert_int_eq(fs_setattr(&fs, f, &set, &i), 0);
	ck_assert_uint_eq(i.mode, S_IFREG | 02745);
	set = (struct fs_set){ .mask = SET_KILL_PRIV };
	ck_assert_int_eq(fs_setattr(&fs, f, &set, &i), 0);
	ck_assert_uint_eq(i.mode, S_IFREG | 02745); /* sgid without group execute is no privilege */
	set = (struct fs_set){ .mask = SET_MODE, .mode = 04755 };
	ck_assert_int_eq(fs_setattr(&fs, f, &set, &i), 0);
	set = (struct fs_set){ .mask = SET_KILL_PRIV | SET_KILL_AS, .caller = 10 };
	ck_assert_int_eq(fs_setattr(&fs, f, &set, &i), -EPERM);
	set.caller = 9; /* the owner */
	ck_assert_int_eq(fs_setattr(&fs, f, &set, &i), 0);
	ck_assert_uint_eq(i.mode, S_IFREG | 0755);
	set.caller = 10; /* nothing is taken */
	ck_assert_int_eq(fs_setattr(&fs, f, &set, &i), 0);

	set = (struct fs_set){ .mask = SET_MODE, .mode = 06755 };
	ck_assert_int_eq(fs_setattr(&fs, f, &set, &i), 0);
	set = (struct fs_set){ .mask = SET_GID, .gid = 8 };
	ck_assert_int_eq(fs_setattr(&fs, f, &set, &i), 0);
	ck_assert_uint_eq(i.mode & 07777, 0755);

	set = (struct fs_set){ .mask = SET_MODE, .mode = 02755 };
	ck_assert_int_eq(fs_setattr(&fs, d, &set, &i), 0);
	set = (struct fs_set){ .mask = SET_GID, .gid = 4 };
	ck_assert_int_eq(fs_setattr(&fs, d, &set, &i), 0);
	ck_assert_uint_eq(i.mode & 07777, 02755);
	ck_assert_uint_eq(i.gid, 4);

	set = (struct fs_set){ .mask = SET_ATIME | SET_MTIME,
			       .atime = { -1, 1 },
			       .mtime = { 1, 999999999 } };
	ck_assert_int_eq(fs_setattr(&fs, f, &set, &i), 0);
	i = fx_stat(f);
	ck_assert_int_eq(i.atime.sec, -1);
	ck_assert_uint_eq(i.mtime.nsec, 999999999);
	ck_assert_int_ne(i.ctime.sec, 0);
	set.mtime.nsec++;
	ck_assert_int_eq(fs_setattr(&fs, f, &set, &i), -EINVAL);
	set = (struct fs_set){ .mask = SET_ATIME, .atime = { 1, 1000000000 } };
	ck_assert_int_eq(fs_setattr(&fs, f, &set, &i), -EINVAL);
	set = (struct fs_set){ .mask = SET_SIZE, .size = 1 };
	ck_assert_int_eq(fs_setattr(&fs, d, &set, &i), -EISDIR);
	ck_assert_int_eq(fs_setattr(&fs, fx_make(ROOT_INO, "p", S_IFIFO), &set, &i), -EINVAL);
	ck_assert_int_eq(fs_setattr(&fs, 4711, &set, &i), -ENOENT);
}
END_TEST

START_TEST(same_object_means_everything_it_has)
{
	_cleanup_(root_unrefp) struct root *a = NULL, *b = NULL, *c = NULL;
	uint64_t f = fx_file("f"), g = fx_file("g");

	fx_write(f, 0, "one", 3);
	a = fx_freeze();
	fx_write(g, 0, "two", 3);
	b = fx_freeze();
	ck_assert_int_eq(fs_setxattr(&fs, f, "user.a", "b", 1, 0), 0);
	c = fx_freeze();
	ck_assert_int_eq(fs_same_object(a, b, f), 1);
	ck_assert_int_eq(fs_same_object(a, b, g), 0);
	ck_assert_int_eq(fs_same_object(b, c, f), 0);
	ck_assert_int_eq(fs_same_object(b, c, g), 1);
	ck_assert_int_eq(fs_same_object(a, c, ROOT_INO), 1);
}
END_TEST

START_TEST(every_item_can_be_printed)
{
	_cleanup_free_ char *text = NULL;
	size_t len = 0;
	FILE *out = open_memstream(&text, &len);
	struct key k = KEY_MIN;
	struct cursor c;
	uint64_t f = fx_file("f\n"), d = fx_dir(ROOT_INO, "d");
	struct fs_new n = { .dir = d, .name = "l", .len = 1, .mode = S_IFLNK, .target = "to" };
	struct inode i;
	int r;

	ck_assert_int_eq(ln(f, d, "g"), 0);
	ck_assert_int_eq(fs_create(&fs, &n, &i), 0);
	fx_write(f, 0, "x", 1);
	ck_assert_int_eq(fs_setxattr(&fs, f, "user.a", "b", 1, 0), 0);
	n.mode = S_IFREG;
	ck_assert_int_eq(fs_tmpfile(&fs, &n, &i), 0);
	k = item_key(99, 99, 0);
	ck_assert_int_eq(tree_put(fs.tree, &k, &(struct val){ .data = "?", .len = 1 }), 0);
	k = KEY_MIN;
	for (r = cursor_seek(&c, fs.tree, &k); r == 0; r = cursor_next(&c))
		fs_item_to_text(out, &c.key, &c.val);
	ck_assert_int_eq(fclose(out), 0);
	ck_assert_ptr_nonnull(strstr(text, "f\\x0a"));
	ck_assert_ptr_nonnull(strstr(text, "orphan"));
	ck_assert_ptr_nonnull(strstr(text, "user.a 1 byte"));
	ck_assert_ptr_nonnull(strstr(text, "damaged, 1 byte"));
	ck_assert_ptr_null(strstr(text, "user.a 1 bytes"));
}
END_TEST

int main(void)
{
	TCase *c = tcase_create("names");

	tcase_add_checked_fixture(c, setup, teardown);
	tcase_set_timeout(c, 240);
	tcase_add_test(c, new_inode_is_what_was_asked_for);
	tcase_add_test(c, names_that_cannot_be_made);
	tcase_add_test(c, directories_count_their_subdirectories);
	tcase_add_test(c, nothing_is_made_in_a_removed_directory);
	tcase_add_test(c, setgid_directories_pass_their_group_on);
	tcase_add_test(c, symlinks_of_every_length);
	tcase_add_test(c, every_name_of_an_inode_is_known);
	tcase_add_test(c, links_have_limits);
	tcase_add_test(c, a_name_more_or_less_is_a_change_of_the_file);
	tcase_add_test(c, unlinked_file_lives_until_it_is_purged);
	tcase_add_test(c, tmpfile_can_be_named_later);
	tcase_add_test(c, removing_refuses_what_it_must);
	tcase_add_test(c, rename_moves_and_touches);
	tcase_add_test(c, rename_replaces_files_and_empty_directories);
	tcase_add_test(c, rename_replaces_one_of_several_names);
	tcase_add_test(c, rename_onto_another_name_of_the_same_file_does_nothing);
	tcase_add_test(c, directory_cannot_move_below_itself);
	tcase_add_test(c, exchange_swaps_file_and_directory);
	tcase_add_test(c, whiteout_stays_behind);
	tcase_add_test(c, importing_keeps_times_and_counts_names);
	tcase_add_test(c, attributes_are_set_as_asked);
	tcase_add_test(c, same_object_means_everything_it_has);
	tcase_add_test(c, every_item_can_be_printed);
	return run_case("name", c);
}
