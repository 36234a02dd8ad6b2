/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What the tests of two states of a tree (fs/diff.h, patches) share: short words for changes of the
 * tree of fs_fixture.h, and changes by chance.
 */

#include <dirent.h>

#include "fs/diff.h"
#include "tests/unit/fs_fixture.h"

#define _cleanup_root_ _cleanup_(root_unrefp)

static uint64_t put(uint64_t dir, const char *name, const char *content)
{
	uint64_t ino = fx_make(dir, name, S_IFREG | 0644);

	fx_write(ino, 0, content, strlen(content));
	return ino;
}

static void move(uint64_t odir, const char *oname, uint64_t ndir, const char *nname, unsigned flags)
{
	struct inode gone;

	ck_assert_int_eq(fs_rename(&fs, odir, oname, strlen(oname), ndir, nname, strlen(nname),
				   flags, &gone),
			 0);
	if (gone.ino && gone.nlink == 0)
		ck_assert_int_eq(fs_purge(&fs, gone.ino), 0);
}

static void drop(uint64_t dir, const char *name)
{
	struct inode gone;

	ck_assert_int_eq(fs_unlink(&fs, dir, name, strlen(name), &gone), 0);
	if (gone.nlink == 0)
		ck_assert_int_eq(fs_purge(&fs, gone.ino), 0);
}

/* ---- changes by chance ---- */

#define MODEL_DIRS 12
#define MODEL_NAMES 6

static uint64_t model_seed;

static unsigned rnd(unsigned n)
{
	model_seed = model_seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (unsigned)((model_seed >> 33) % n);
}

struct model {
	uint64_t dirs[64];
	unsigned n;
};

static int model_collect(void *arg, const char *name, size_t len, uint64_t ino, unsigned type,
			 uint64_t next)
{
	struct model *m = arg;

	if (type == DT_DIR && m->n < 64)
		m->dirs[m->n++] = ino;
	return 0;
}

static void model_step(void)
{
	struct model m = { .dirs = { ROOT_INO }, .n = 1 };
	char name[8], other[8], content[8];
	struct inode i, gone = { 0 };
	struct fs_new n = { 0 };
	uint64_t dir, dir2;

	for (unsigned d = 0; d < m.n; d++)
		ck_assert_int_eq(fs_readdir(&fs, m.dirs[d], 2, model_collect, &m), 0);
	dir = m.dirs[rnd(m.n)];
	dir2 = m.dirs[rnd(m.n)];
	snprintf(name, sizeof(name), "n%u", rnd(MODEL_NAMES));
	snprintf(other, sizeof(other), "n%u", rnd(MODEL_NAMES));
	snprintf(content, sizeof(content), "%u", rnd(3));
	n = (struct fs_new){ .dir = dir, .name = name, .len = strlen(name), .target = content };

	/* Whatever is not possible is refused: the point is where the tree ends up. */
	switch (rnd(9)) {
	case 0:
		n.mode = S_IFDIR | 0755;
		if (m.n < MODEL_DIRS)
			(void)fs_create(&fs, &n, &i);
		break;
	case 1:
	case 2:
		n.mode = S_IFREG | 0644;
		if (fs_create(&fs, &n, &i) == 0)
			(void)fs_write(&fs, i.ino, 0, content, 1, false);
		break;
	case 3:
		n.mode = S_IFLNK | 0777;
		(void)fs_create(&fs, &n, &i);
		break;
	case 4:
		if (fs_lookup(&fs, dir, name, strlen(name), &i) == 0 && S_ISREG(i.mode))
			(void)fs_write(&fs, i.ino, 0, content, 1, false);
		break;
	case 5:
		if (fs_unlink(&fs, dir, name, strlen(name), &gone) == 0 && gone.nlink == 0)
			ck_assert_int_eq(fs_purge(&fs, gone.ino), 0);
		break;
	case 6:
		if (fs_rmdir(&fs, dir, name, strlen(name), &gone) == 0)
			ck_assert_int_eq(fs_purge(&fs, gone.ino), 0);
		break;
	case 7:
		if (fs_lookup(&fs, dir, name, strlen(name), &i) == 0 && !inode_is_dir(&i))
			(void)fs_link(&fs, i.ino, dir2, other, strlen(other), &i);
		break;
	case 8:
		if (fs_rename(&fs, dir, name, strlen(name), dir2, other, strlen(other),
			      rnd(3) ? 0 : RENAME_EXCHANGE, &gone) == 0 &&
		    gone.ino && gone.nlink == 0)
			ck_assert_int_eq(fs_purge(&fs, gone.ino), 0);
		break;
	}
}
