/* SPDX-License-Identifier: Apache-2.0 */

/* Comparing two states: fs/diff.h, and the patches that env/transfer/patch.c prints of it. */

#include <inttypes.h>
#include <dirent.h>
#include <stdarg.h>
#include <sys/wait.h>
#include <time.h>

#include "env/transfer/transfer.h"
#include "fs/diff.h"
#include "tests/unit/fs_fixture.h"

/* ---- helpers ---- */

struct lines { /* "M path", "R old > new", one a line */
	char *text;
	size_t len;
	FILE *f;
	bool what;
};

static int print_change(void *arg, const struct change *c)
{
	struct lines *l = arg;

	fprintf(l->f, "%c %s%s%s", c->kind,
		c->old_path && c->kind != CHANGE_ADDED ? c->old_path : "",
		c->kind == CHANGE_RENAMED ? " > " : "",
		c->kind == CHANGE_ADDED || c->kind == CHANGE_RENAMED ? c->new_path : "");
	if (l->what && c->what)
		fprintf(l->f, " %u", c->what);
	fputc('\n', l->f);
	ck_assert((c->old_path != NULL) == (c->old_inode != NULL));
	ck_assert((c->new_path != NULL) == (c->new_inode != NULL));
	return 0;
}

static char *diff_text(struct root *a, struct root *b, bool same_lineage, unsigned flags, bool what)
{
	struct lines l = { .what = what };

	l.f = open_memstream(&l.text, &l.len);
	ck_assert_int_eq(fs_diff(fx_store, a, b, same_lineage, flags, print_change, &l), 0);
	fclose(l.f);
	return l.text;
}

static void expect(struct root *a, struct root *b, unsigned flags, const char *want)
{
	_cleanup_free_ char *got = diff_text(a, b, true, flags, true);

	ck_assert_str_eq(got, want);
}

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

#define _cleanup_root_ _cleanup_(root_unrefp)

/* ---- facts ---- */

START_TEST(equal_states_do_not_differ)
{
	_cleanup_root_ struct root *a = NULL, *b = NULL;

	put(ROOT_INO, "f", "one");
	a = fx_freeze();
	b = fx_freeze();
	expect(a, a, DIFF_TIMES | DIFF_DIRS, "");
	expect(a, b, DIFF_TIMES | DIFF_DIRS, "");
}
END_TEST

START_TEST(added_deleted_modified_in_order_of_path)
{
	_cleanup_root_ struct root *a = NULL, *b = NULL;
	uint64_t d = fx_dir(ROOT_INO, "d"), f;

	put(ROOT_INO, "gone", "x");
	put(d, "same", "x");
	f = put(d, "content", "x");
	a = fx_freeze();
	drop(ROOT_INO, "gone");
	put(d, "a-new", "y");
	fx_write(f, 0, "z", 1);
	b = fx_freeze();
	expect(a, b, 0, "A d/a-new\nM d/content 17\nD gone\n");
	expect(b, a, 0, "D d/a-new\nM d/content 17\nA gone\n");
}
END_TEST

START_TEST(what_changed_is_told)
{
	_cleanup_root_ struct root *a = NULL, *b = NULL;
	uint64_t mode = put(ROOT_INO, "mode", ""), owner = put(ROOT_INO, "owner", "");
	uint64_t xattr = put(ROOT_INO, "xattr", ""), times = put(ROOT_INO, "times", "");
	struct fs_set set = { .mask = SET_MODE, .mode = 0755 };
	struct inode i;

	a = fx_freeze();
	ck_assert_int_eq(fs_setattr(&fs, mode, &set, &i), 0);
	set = (struct fs_set){ .mask = SET_UID, .uid = 77 };
	ck_assert_int_eq(fs_setattr(&fs, owner, &set, &i), 0);
	ck_assert_int_eq(fs_setxattr(&fs, xattr, "user.a", "b", 1, 0), 0);
	set = (struct fs_set){ .mask = SET_MTIME, .mtime = { .sec = 5 } };
	ck_assert_int_eq(fs_setattr(&fs, times, &set, &i), 0);
	b = fx_freeze();
	expect(a, b, 0, "M mode 2\nM owner 4\nM xattr 8\n");
	expect(a, b, DIFF_TIMES, "M mode 2\nM owner 4\nM times 16\nM xattr 8\n");
}
END_TEST

START_TEST(what_was_undone_is_no_change)
{
	_cleanup_root_ struct root *a = NULL, *b = NULL;
	uint64_t f = put(ROOT_INO, "f", "same bytes"), big = put(ROOT_INO, "big", "");
	_cleanup_free_ uint8_t *buf = malloc(300000);

	fx_fill(buf, 300000, 1);
	fx_write(big, 0, buf, 300000);
	a = fx_freeze();
	fx_write(f, 0, "same bytes", 10);
	fx_write(big, 100000, buf + 100000, 4096);
	ck_assert_int_eq(fs_setxattr(&fs, f, "user.a", "b", 1, 0), 0);
	ck_assert_int_eq(fs_removexattr(&fs, f, "user.a"), 0);
	put(ROOT_INO, "short-lived", "x");
	drop(ROOT_INO, "short-lived");
	b = fx_freeze();
	expect(a, b, 0, "");
}
END_TEST

START_TEST(a_hole_and_written_zeros_are_the_same_bytes)
{
	_cleanup_root_ struct root *a = NULL, *b = NULL, *c = NULL;
	uint64_t f = fx_file("f");
	_cleanup_free_ uint8_t *zeros = calloc(1, 200000);
	struct fs_set set = { .mask = SET_SIZE, .size = 1000000 };
	struct inode i;

	ck_assert_int_eq(fs_setattr(&fs, f, &set, &i), 0);
	a = fx_freeze();
	fx_write(f, 400000, zeros, 200000);
	b = fx_freeze();
	fx_write(f, 500000, "x", 1);
	c = fx_freeze();
	expect(a, b, 0, "");
	expect(b, c, 0, "M f 17\n");
	expect(a, c, 0, "M f 17\n");
}
END_TEST

START_TEST(a_file_that_replaced_another_is_modified)
{
	_cleanup_root_ struct root *a = NULL, *b = NULL, *c = NULL;

	put(ROOT_INO, "f", "old");
	a = fx_freeze();
	put(ROOT_INO, "f.tmp", "new");
	move(ROOT_INO, "f.tmp", ROOT_INO, "f", 0);
	b = fx_freeze();
	put(ROOT_INO, "f.tmp", "new");
	move(ROOT_INO, "f.tmp", ROOT_INO, "f", 0);
	c = fx_freeze();
	expect(a, b, DIFF_RENAMES, "M f 17\n");
	expect(b, c, DIFF_RENAMES, "");
}
END_TEST

START_TEST(a_change_of_type_is_told)
{
	_cleanup_root_ struct root *a = NULL, *b = NULL;
	struct fs_new n = {
		.dir = ROOT_INO, .name = "l", .len = 1, .mode = S_IFLNK | 0777, .target = "f"
	};
	struct inode i;
	uint64_t d;

	put(ROOT_INO, "l", "x");
	put(ROOT_INO, "d", "x");
	a = fx_freeze();
	drop(ROOT_INO, "l");
	ck_assert_int_eq(fs_create(&fs, &n, &i), 0);
	drop(ROOT_INO, "d");
	d = fx_dir(ROOT_INO, "d");
	put(d, "x", "y");
	b = fx_freeze();
	expect(a, b, 0, "D d\nA d/x\nT l 1\n");
	expect(a, b, DIFF_DIRS, "T d 1\nA d/x\nT l 1\n");
	expect(b, a, 0, "A d\nD d/x\nT l 1\n");
}
END_TEST

START_TEST(a_rename_is_one_change)
{
	_cleanup_root_ struct root *a = NULL, *b = NULL;
	uint64_t f = put(ROOT_INO, "a", "1"), d = fx_dir(ROOT_INO, "d");

	a = fx_freeze();
	move(ROOT_INO, "a", d, "b", 0);
	b = fx_freeze();
	expect(a, b, DIFF_RENAMES, "R a > d/b\n");
	expect(a, b, 0, "D a\nA d/b\n");
	fx_write(f, 0, "2", 1);
	root_unref(b);
	b = fx_freeze();
	expect(a, b, DIFF_RENAMES, "R a > d/b 17\n");
}
END_TEST

START_TEST(a_moved_directory_takes_its_content_along)
{
	_cleanup_root_ struct root *a = NULL, *b = NULL;
	uint64_t d = fx_dir(ROOT_INO, "d"), e = fx_dir(d, "e"), f;

	put(d, "1", "x");
	f = put(e, "2", "x");
	put(e, "3", "x");
	a = fx_freeze();
	move(ROOT_INO, "d", ROOT_INO, "moved", 0);
	move(e, "3", ROOT_INO, "3", 0);
	fx_write(f, 0, "y", 1);
	b = fx_freeze();
	expect(a, b, DIFF_RENAMES, "R d/e/3 > 3\nR d/1 > moved/1\nR d/e/2 > moved/e/2 17\n");
	expect(a, b, DIFF_RENAMES | DIFF_DIRS,
	       "R d/e/3 > 3\nR d > moved\nR d/1 > moved/1\nR d/e > moved/e 16\n"
	       "R d/e/2 > moved/e/2 17\n");
	expect(a, b, 0, "A 3\nD d/1\nD d/e/2\nD d/e/3\nA moved/1\nA moved/e/2\n");
}
END_TEST

START_TEST(exchanged_directories_are_compared_by_path)
{
	_cleanup_root_ struct root *a = NULL, *b = NULL;
	uint64_t d = fx_dir(ROOT_INO, "d"), e = fx_dir(ROOT_INO, "e");

	put(d, "both", "d");
	put(e, "both", "e");
	put(d, "equal", "x");
	put(e, "equal", "x");
	put(d, "one", "1");
	a = fx_freeze();
	move(ROOT_INO, "d", ROOT_INO, "e", RENAME_EXCHANGE);
	b = fx_freeze();
	expect(a, b, DIFF_RENAMES, "M d/both 17\nM e/both 17\nR d/one > e/one\n");
}
END_TEST

START_TEST(a_directory_inside_another_that_moved_too)
{
	_cleanup_root_ struct root *a = NULL, *b = NULL;
	uint64_t d = fx_dir(ROOT_INO, "d"), e = fx_dir(d, "e");

	put(e, "f", "x");
	a = fx_freeze();
	move(d, "e", ROOT_INO, "top", 0);
	move(ROOT_INO, "d", e, "inside", 0);
	put(d, "g", "y");
	b = fx_freeze();
	expect(a, b, DIFF_RENAMES, "R d/e/f > top/f\nA top/inside/g\n");
	expect(b, a, DIFF_RENAMES, "R top/f > d/e/f\nD top/inside/g\n");
}
END_TEST

START_TEST(every_name_of_a_changed_file_is_told)
{
	_cleanup_root_ struct root *a = NULL, *b = NULL, *c = NULL;
	uint64_t d = fx_dir(ROOT_INO, "d"), f = put(ROOT_INO, "f", "1");
	struct inode i;

	ck_assert_int_eq(fs_link(&fs, f, d, "g", 1, &i), 0);
	a = fx_freeze();
	fx_write(f, 0, "2", 1);
	b = fx_freeze();
	expect(a, b, DIFF_RENAMES, "M d/g 17\nM f 17\n");
	ck_assert_int_eq(fs_link(&fs, f, d, "h", 1, &i), 0);
	drop(ROOT_INO, "f");
	c = fx_freeze();
	expect(b, c, DIFF_RENAMES, "R f > d/h\n");
	expect(a, c, DIFF_RENAMES, "M d/g 17\nR f > d/h 17\n");
}
END_TEST

START_TEST(orphans_are_nobodys_change)
{
	_cleanup_root_ struct root *a = NULL, *b = NULL;
	struct inode gone;

	a = fx_freeze();
	put(ROOT_INO, "f", "x");
	ck_assert_int_eq(fs_unlink(&fs, ROOT_INO, "f", 1, &gone), 0);
	ck_assert_uint_eq(gone.nlink, 0);
	b = fx_freeze();
	expect(a, b, DIFF_TIMES, "");
	ck_assert_int_eq(fs_purge(&fs, gone.ino), 0);
}
END_TEST

static int stop_at_once(void *arg, const struct change *c)
{
	++*(unsigned *)arg;
	return 7;
}

START_TEST(the_callback_can_stop)
{
	_cleanup_root_ struct root *a = fx_freeze(), *b = NULL;
	unsigned calls = 0;

	put(ROOT_INO, "f", "x");
	put(ROOT_INO, "g", "x");
	b = fx_freeze();
	ck_assert_int_eq(fs_diff(fx_store, a, b, true, 0, stop_at_once, &calls), 7);
	ck_assert_uint_eq(calls, 1);
}
END_TEST

/* ---- random states: both ways of comparing must agree ---- */

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

START_TEST(by_items_and_by_name_agree)
{
	_cleanup_root_ struct root *before = NULL;

	model_seed = (uint64_t)_i * 7919 + 1;
	for (unsigned n = 0; n < 60; n++)
		model_step();
	before = fx_freeze();
	for (unsigned round = 0; round < 15; round++) {
		_cleanup_root_ struct root *after = NULL;

		for (unsigned n = rnd(25); n > 0; n--)
			model_step();
		after = fx_freeze();
		for (unsigned flags = 0; flags < 4; flags++) {
			_cleanup_free_ char *items = diff_text(before, after, true, flags, false);
			_cleanup_free_ char *names = diff_text(before, after, false, flags, false);

			ck_assert_msg(strcmp(items, names) == 0,
				      "seed %d round %u flags %u\n%s---\n%s", _i, round, flags,
				      items, names);
		}
		if (rnd(2)) {
			root_unref(before);
			before = root_ref(after);
		}
	}
}
END_TEST

/* Makes both states durable and opens the store anew, with nothing of them in memory. */
static void forget_all(struct root **a, struct root **b)
{
	struct root **states[] = { a, b };
	uint64_t ids[2];

	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(snap_create(fx_store, *states[i], 0, 1, "", "", 0, &ids[i]), 0);
		root_unref(TAKE_PTR(*states[i]));
	}
	ck_assert_int_eq(store_sync(fx_store), 0);
	tree_free(TAKE_PTR(fs.tree));
	ck_assert_int_eq(store_close(fx_store), 0);
	ck_assert_int_eq(store_open(fx.dir_fd, NULL, &fx_store), 0);
	for (int i = 0; i < 2; i++)
		ck_assert_int_eq(snap_root(fx_store, ids[i], states[i]), 0);
}

static uint64_t nodes_in_memory(void)
{
	struct store_stats stats;

	ck_assert_int_eq(store_stats(fx_store, &stats), 0);
	return stats.nodes;
}

START_TEST(ten_changes_in_a_large_tree_cost_ten)
{
	_cleanup_root_ struct root *a = NULL, *b = NULL;
	_cleanup_free_ char *text = NULL;
	uint64_t files[10] = { 0 }, all, read;
	unsigned lines = 0;

	for (unsigned d = 0; d < 200; d++) {
		char name[16];
		uint64_t dir;

		snprintf(name, sizeof(name), "dir%u", d);
		dir = fx_dir(ROOT_INO, name);
		for (unsigned f = 0; f < 100; f++) {
			uint64_t ino;

			snprintf(name, sizeof(name), "file%u", f);
			ino = put(dir, name, "content");
			if (d % 20 == 0 && f == 50)
				files[d / 20] = ino;
		}
	}
	a = fx_freeze();
	all = nodes_in_memory();
	for (unsigned i = 0; i < 10; i++)
		fx_write(files[i], 0, "changed", 7);
	b = fx_freeze();

	forget_all(&a, &b);
	text = diff_text(a, b, true, DIFF_RENAMES, false);
	for (const char *p = text; *p; p++)
		lines += *p == '\n';
	ck_assert_uint_eq(lines, 10);
	/* Per file the leaves of its inode and of its path's names, twice, and what is above. */
	read = nodes_in_memory();
	ck_assert_msg(read <= 100 && all >= 500, "%" PRIu64 " of %" PRIu64 " nodes read", read,
		      all);
}
END_TEST

/* ---- patches ---- */

static int run(const char *fmt, ...) _printf_(1, 2);
static int run(const char *fmt, ...)
{
	_cleanup_free_ char *line = NULL;
	va_list ap;
	int r;

	va_start(ap, fmt);
	ck_assert_int_ge(vasprintf(&line, fmt, ap), 0);
	va_end(ap);
	r = system(line);
	ck_assert(WIFEXITED(r));
	return WEXITSTATUS(r);
}

struct patch_arg {
	struct patcher *patcher;
	FILE *out;
	struct fs a, b;
	unsigned left_out;
};

static int print_patch(void *arg, const struct change *c)
{
	struct patch_arg *p = arg;
	int r = patch_print(p->patcher, p->out, &p->a, &p->b, c);

	if (r == AGAIN) {
		p->left_out++;
		return 0;
	}
	return r;
}

/* Writes the patch from a to b into fx.path/NAME. */
static unsigned write_patch(struct root *a, struct root *b, unsigned flags, const char *name)
{
	_cleanup_free_ char *path = NULL;
	struct patch_arg p = {
		.a = { .store = fx_store, .tree = fx_tree(a) },
		.b = { .store = fx_store, .tree = fx_tree(b) },
	};

	ck_assert_int_ge(asprintf(&path, "%s/%s", fx.path, name), 0);
	p.out = fopen(path, "we");
	ck_assert_ptr_nonnull(p.out);
	ck_ok(patcher_new(fx_store, NULL, &p.patcher));
	ck_assert_int_eq(fs_diff(fx_store, a, b, true, flags, print_patch, &p), 0);
	ck_assert_int_eq(fclose(p.out), 0);
	patcher_free(p.patcher);
	tree_free(p.a.tree);
	tree_free(p.b.tree);
	return p.left_out;
}

static void export_to(struct root *root, const char *name)
{
	int fd;

	ck_assert_int_eq(mkdirat(fx.dir_fd, name, 0700), 0);
	fd = openat(fx.dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(export_directory(fx_store, root, fd, NULL, NULL), 0);
	(void)close(fd);
}

/* git apply takes our patch, and makes B of A; and the bytes are git's own. */
static void check_patch(struct root *a, struct root *b, bool exact)
{
	export_to(a, "A");
	export_to(b, "B");
	(void)write_patch(a, b, 0, "plain.patch");
	(void)write_patch(a, b, DIFF_RENAMES, "renames.patch");
	ck_assert_int_eq(
		run("cd '%s' && cp -a A A2 && git -C A init -q && "
		    "{ ! test -s plain.patch || "
		    "git -C A apply --whitespace=nowarn ../plain.patch; } && "
		    "rm -rf A/.git && diff -r --no-dereference A B",
		    fx.path),
		0);
	ck_assert_int_eq(
		run("cd '%s' && git -C A2 init -q && "
		    "{ ! test -s renames.patch || "
		    "git -C A2 apply --whitespace=nowarn ../renames.patch; } && "
		    "rm -rf A2/.git && diff -r --no-dereference A2 B && "
		    "(cd B && find . -type f -perm -100 | sort) >B.x && "
		    "(cd A2 && find . -type f -perm -100 | sort) >A.x && cmp A.x B.x",
		    fx.path),
		0);
	if (exact)
		ck_assert_int_eq(
			run("cd '%s' && git init -q G && cd G && git config user.name n && "
			    "git config user.email e && rm -rf ../A3 && "
			    "git --work-tree=../B add -A -f . && git write-tree >../B.tree && "
			    "git read-tree --empty && mkdir ../A3 && cp -a ../B/. ../A3/ && "
			    "git -C ../A3 init -q && git -C ../A3 apply -R ../plain.patch && "
			    "rm -rf ../A3/.git && git --work-tree=../A3 add -A -f . && "
			    "git diff-tree -r -p --binary --no-renames $(git write-tree) "
			    "$(cat ../B.tree) >../git.patch && cmp ../git.patch ../plain.patch",
			    fx.path),
			0);
}

START_TEST(git_apply_takes_a_patch_of_text)
{
	_cleanup_root_ struct root *a = NULL, *b = NULL;
	uint64_t d = fx_dir(ROOT_INO, "dir with space"), f, x;
	struct fs_set set = { .mask = SET_MODE, .mode = 0755 };
	struct fs_new n = { .dir = ROOT_INO,
			    .name = "link",
			    .len = 4,
			    .mode = S_IFLNK | 0777,
			    .target = "old/target" };
	struct inode i;

	f = put(d, "a file", "one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\nten\n");
	put(ROOT_INO, "no newline", "last line");
	put(ROOT_INO, "gone", "bye\n");
	put(ROOT_INO, "empty gone", "");
	x = put(ROOT_INO, "script", "#!/bin/sh\n");
	put(ROOT_INO, "type", "file\n");
	ck_assert_int_eq(fs_create(&fs, &n, &i), 0);
	a = fx_freeze();

	fx_write(f, 4, "TWO", 3);
	fx_write(f, 49, "end without newline", 19);
	drop(ROOT_INO, "no newline");
	put(ROOT_INO, "no newline", "last line!\n");
	drop(ROOT_INO, "gone");
	drop(ROOT_INO, "empty gone");
	put(ROOT_INO, "empty new", "");
	put(ROOT_INO, "odd \"\\\t\n\x01\xff n\xc3\xa4me", "quoted\n");
	ck_assert_int_eq(fs_setattr(&fs, x, &set, &i), 0);
	drop(ROOT_INO, "link");
	n.target = "new";
	ck_assert_int_eq(fs_create(&fs, &n, &i), 0);
	drop(ROOT_INO, "type");
	n.name = "type";
	ck_assert_int_eq(fs_create(&fs, &n, &i), 0);
	b = fx_freeze();
	check_patch(a, b, true);
}
END_TEST

START_TEST(git_apply_takes_a_binary_patch)
{
	_cleanup_root_ struct root *a = NULL, *b = NULL;
	_cleanup_free_ uint8_t *buf = malloc(200000);
	uint64_t f = fx_file("changed"), g = fx_file("gone");

	for (size_t n = 0; n < 200000; n++)
		buf[n] = (uint8_t)(rand() >> 5);
	memset(buf, 0, 10);
	fx_write(f, 0, buf, 200000);
	fx_write(g, 0, buf, 3000);
	a = fx_freeze();
	fx_write(f, 100000, "a delta", 7);
	drop(ROOT_INO, "gone");
	fx_write(fx_file("new"), 0, buf, 50000);
	put(ROOT_INO, "text to binary", "text\n");
	b = fx_freeze();
	check_patch(a, b, false);
}
END_TEST

START_TEST(git_apply_takes_renames)
{
	_cleanup_root_ struct root *a = NULL, *b = NULL;
	uint64_t d = fx_dir(ROOT_INO, "d"), f;

	put(d, "1", "one\n");
	f = put(d, "2", "alpha\nbeta\ngamma\ndelta\nepsilon\n");
	put(d, "3", "three\n");
	a = fx_freeze();
	move(ROOT_INO, "d", ROOT_INO, "e", 0);
	fx_write(f, 0, "ALPHA", 5);
	put(d, "4", "four\n");
	move(d, "3", d, "3 \xfe", 0);
	b = fx_freeze();
	check_patch(a, b, true);
	ck_assert_int_eq(run("cd '%s' && grep -q '^rename from d/2$' renames.patch && "
			     "grep -q '^rename to e/2$' renames.patch && "
			     "grep -q '^similarity index 100%%$' renames.patch && "
			     "grep -q '^rename to \"e/3 \\\\376\"$' renames.patch",
			     fx.path),
			 0);
}
END_TEST

START_TEST(git_apply_takes_random_patches)
{
	_cleanup_root_ struct root *a = NULL, *b = NULL;

	model_seed = (uint64_t)_i * 104729 + 17;
	for (unsigned n = 0; n < 80; n++)
		model_step();
	a = fx_freeze();
	for (unsigned n = 0; n < 20; n++)
		model_step();
	b = fx_freeze();

	/* git has no empty directories: leave them out of the comparison. */
	export_to(a, "A");
	export_to(b, "B");
	(void)write_patch(a, b, DIFF_RENAMES, "p");
	ck_assert_int_eq(
		run("cd '%s' && git -C A init -q && "
		    "{ ! test -s p || git -C A apply --whitespace=nowarn ../p; } && "
		    "rm -rf A/.git && "
		    "find A B -depth -type d -empty -delete; mkdir -p A B; "
		    "diff -r --no-dereference A B",
		    fx.path),
		0);
}
END_TEST

START_TEST(what_git_does_not_know_is_left_out)
{
	_cleanup_root_ struct root *a = NULL, *b = NULL;

	put(ROOT_INO, "was a file", "x\n");
	a = fx_freeze();
	fx_make(ROOT_INO, "pipe", S_IFIFO | 0644);
	drop(ROOT_INO, "was a file");
	fx_make(ROOT_INO, "was a file", S_IFIFO | 0644);
	b = fx_freeze();
	ck_assert_uint_eq(write_patch(a, b, 0, "p"), 2);
	ck_assert_int_eq(
		run("cd '%s' && ! grep -q pipe p && grep -q '^deleted file mode' p", fx.path), 0);
}
END_TEST

struct count_arg {
	struct patcher *patcher;
	struct fs a, b;
	uint64_t added, removed;
	bool binary;
};

static int count(void *arg, const struct change *c)
{
	struct count_arg *p = arg;

	return patch_count(p->patcher, &p->a, &p->b, c, &p->added, &p->removed, &p->binary);
}

/* Of the only change that there is. */
static struct count_arg count_change(struct root *a, struct root *b)
{
	struct count_arg p = {
		.a = { .store = fx_store, .tree = fx_tree(a) },
		.b = { .store = fx_store, .tree = fx_tree(b) },
		.added = 1000,
		.removed = 1000,
	};

	ck_ok(patcher_new(fx_store, NULL, &p.patcher));
	ck_ok(fs_diff(fx_store, a, b, true, 0, count, &p));
	patcher_free(p.patcher);
	tree_free(p.a.tree);
	tree_free(p.b.tree);
	return p;
}

START_TEST(lines_are_counted)
{
	_cleanup_root_ struct root *a = NULL, *b = NULL, *e = NULL;
	struct count_arg p;
	uint64_t f = put(ROOT_INO, "f", "1\n2\n3\n");

	a = fx_freeze();
	fx_write(f, 2, "x\ny\nz\n", 6);
	b = fx_freeze();
	fx_write(f, 0, "\0\0", 2);
	e = fx_freeze();

	p = count_change(a, b);
	ck_assert_uint_eq(p.added, 3);
	ck_assert_uint_eq(p.removed, 2);
	ck_assert(!p.binary);

	p = count_change(a, e);
	ck_assert_uint_eq(p.added, 8);
	ck_assert_uint_eq(p.removed, 6);
	ck_assert(p.binary);
}
END_TEST

#define SHELL "/bin/sh\n"
/* Records, as the shell's printf writes them (chan.h). */
#define NULS "\\000\\000\\000" /* all digits, whatever follows */
#define SAYS(kind, len, text) "printf '\\" kind NULS "\\" len NULS text "' >&3; "
#define HELLO SHELL SAYS("001", "005", PLYFS_VERSION)
#define TEXT SAYS("010", "001", "@")
#define COUNT(added) SAYS("011", "020", added NULS NULS "\\0" "\\1" NULS NULS "\\0")
#define FAILED(code) SAYS("012", "007", code "\\0\\0why")
#define STAYS "exec sleep 100" /* it is not waited for */
/* The request, three records with two contents of 8 bytes: so that none of it is refused. */
#define HEARS "head -c 76 <&3 >/dev/null; "

/* In the place of plyfs-git, from now on. */
static void write_program(const char *text)
{
	_cleanup_free_ char *path = NULL;
	FILE *f;

	ck_assert_int_ge(asprintf(&path, "%s/plyfs-git", fx.path), 0);
	f = fopen(path, "we");
	ck_assert_ptr_nonnull(f);
	fprintf(f, "#!%s\n", text);
	ck_assert_int_eq(fchmod(fileno(f), 0755), 0);
	ck_assert_int_eq(fclose(f), 0);
	ck_assert_int_eq(setenv("PLYFS_LIBEXEC", fx.path, 1), 0);
}

/* What needs no comparing is counted without plyfs-git, and as git does. */
START_TEST(lines_of_files_that_come_and_go_are_counted)
{
	static const struct {
		const char *text;
		unsigned lines;
	} cases[] = { { "", 0 }, { "\n", 1 }, { "a", 1 }, { "a\n\nb", 3 }, { "a\nb\n", 2 } };

	write_program(SHELL "exit 1");
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_root_ struct root *none = fx_freeze(), *some = NULL;
		struct count_arg p;

		put(ROOT_INO, "f", cases[i].text);
		some = fx_freeze();
		drop(ROOT_INO, "f");

		p = count_change(none, some);
		ck_assert_uint_eq(p.added, cases[i].lines);
		ck_assert_uint_eq(p.removed, 0);
		p = count_change(some, none);
		ck_assert_uint_eq(p.added, 0);
		ck_assert_uint_eq(p.removed, cases[i].lines);
	}
}
END_TEST

/* ---- plyfs-git fails ---- */

#define SENSELESS "plyfs-git said what makes no sense"

static const struct {
	const char *name, *text; /* behind "#!" */
	int r;
	const char *note;
} failures[] = {
	{ "it cannot be started", "/nowhere", -ENOENT, "starting plyfs-git" },
	{ "it ends at once", SHELL "exit 3", -EIO, "plyfs-git ended with exit code 3" },
	{ "another version", SHELL SAYS("001", "003", "9.9") STAYS, -EPROTO, "is of version 9.9" },
	{ "no greeting", SHELL SAYS("010", "001", "@") STAYS, -EPROTO, SENSELESS },
	{ "it ends before it is asked", HELLO "exit 4", -EIO, "ended with exit code 4" },
	{ "killed when it was asked", HELLO HEARS "kill -9 $$", -EIO, "ended by signal 9" },
	{ "killed while it answers", HELLO HEARS TEXT "kill -9 $$", -EIO, "ended by signal 9" },
	{ "killed within a record", HELLO HEARS SAYS("010", "100", "@") "kill -9 $$", -EIO,
	  "ended by signal 9" },
	{ "unknown kind", HELLO HEARS SAYS("143", "001", "@") STAYS, -EPROTO, SENSELESS },
	{ "wrong kind", HELLO HEARS SAYS("005", "001", "@") STAYS, -EPROTO, SENSELESS },
	{ "text of nothing", HELLO HEARS SAYS("010", "000", "") STAYS, -EPROTO, SENSELESS },
	{ "no text", HELLO HEARS COUNT("\\1") STAYS, -EPROTO, SENSELESS },
	{ "a count of no lines", HELLO HEARS TEXT SAYS("011", "001", "@") STAYS, -EPROTO,
	  SENSELESS },
	{ "more lines than bytes", HELLO HEARS TEXT COUNT("\\11") STAYS, -EPROTO, SENSELESS },
	{ "it fails", HELLO HEARS FAILED("\\014\\0") STAYS, -ENOMEM, "why" },
	/* Not the "too large" that a caller goes on after. */
	{ "it fails strangely", HELLO HEARS FAILED("\\033\\0") STAYS, -EPROTO, "why" },
};

/* The store's own threads open and close files; sockets are plyfs-git's alone. */
static unsigned open_sockets(void)
{
	DIR *dir = opendir("/proc/self/fd");
	const struct dirent *e;
	char target[32];
	unsigned n = 0;

	ck_assert_ptr_nonnull(dir);
	while ((e = readdir(dir))) {
		ssize_t len = readlinkat(dirfd(dir), e->d_name, target, sizeof(target));

		n += len > 7 && memcmp(target, "socket:", 7) == 0;
	}
	closedir(dir);
	return n;
}

START_TEST(a_failure_of_the_program_is_one_of_the_patch)
{
	_cleanup_root_ struct root *a = NULL, *b = NULL;
	struct noter noter = { .fn = scratch_note, .arg = &fx };
	struct import_ops ops = { .noter = &noter };
	_cleanup_(patcher_freep) struct patcher *patcher = NULL;
	_cleanup_free_ char *text = NULL;
	struct patch_arg p = { 0 };
	unsigned sockets;
	size_t len;
	uint64_t f = put(ROOT_INO, "f", "1\n2\n3\n4\n");

	a = fx_freeze();
	fx_write(f, 2, "x", 1);
	b = fx_freeze();
	p.a = (struct fs){ .store = fx_store, .tree = fx_tree(a) };
	p.b = (struct fs){ .store = fx_store, .tree = fx_tree(b) };
	p.out = open_memstream(&text, &len);
	write_program(failures[_i].text);

	sockets = open_sockets();
	ck_ok(patcher_new(fx_store, &ops, &patcher));
	p.patcher = patcher;
	for (unsigned n = 1; n <= 2; n++) { /* and it is started anew */
		ck_err(fs_diff(fx_store, a, b, true, 0, print_patch, &p), failures[_i].r);
		ck_assert_msg(fx.notes == n && strstr(fx.last_note, failures[_i].note),
			      "%s: %u notes, \"%s\"", failures[_i].name, fx.notes, fx.last_note);
	}
	ck_assert_uint_eq(open_sockets(), sockets);
	ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1);
	ck_assert_int_eq(errno, ECHILD);

	/* The same patcher, with the true program again. */
	ck_assert_int_eq(unsetenv("PLYFS_LIBEXEC"), 0);
	ck_ok(fs_diff(fx_store, a, b, true, 0, print_patch, &p));
	ck_assert_int_eq(fclose(p.out), 0);
	ck_assert_ptr_nonnull(strstr(text, "\n@@ -1,4 +1,4 @@\n 1\n-2\n+x\n 3\n 4\n"));
	tree_free(p.a.tree);
	tree_free(p.b.tree);
}
END_TEST

START_TEST(a_patch_can_be_cancelled)
{
	_cleanup_root_ struct root *a = NULL, *b = NULL;
	bool cancel = true;
	struct progress progress = { .cancel = &cancel };
	struct noter noter = { .fn = scratch_note, .arg = &fx };
	struct import_ops ops = { .progress = &progress, .noter = &noter };
	struct patch_arg p = { 0 };
	uint64_t f = put(ROOT_INO, "f", "1\n");

	a = fx_freeze();
	fx_write(f, 0, "x", 1);
	b = fx_freeze();
	p.a = (struct fs){ .store = fx_store, .tree = fx_tree(a) };
	p.b = (struct fs){ .store = fx_store, .tree = fx_tree(b) };
	p.out = fopen("/dev/null", "we");
	write_program(SHELL STAYS);

	ck_ok(patcher_new(fx_store, &ops, &p.patcher));
	ck_err(fs_diff(fx_store, a, b, true, 0, print_patch, &p), -ERR_CANCELLED);
	ck_assert_uint_eq(fx.notes, 0);
	patcher_free(p.patcher);
	(void)fclose(p.out); /* nothing is kept of it */
	tree_free(p.a.tree);
	tree_free(p.b.tree);
}
END_TEST

START_TEST(a_reader_that_went_is_no_failure_of_the_program)
{
	_cleanup_root_ struct root *a = NULL, *b = NULL;
	struct noter noter = { .fn = scratch_note, .arg = &fx };
	struct import_ops ops = { .noter = &noter };
	struct patch_arg p = { 0 };
	char buffer[70]; /* the lines above the hunk fit (65 bytes), all does not */
	int pipe_fds[2];
	uint64_t f = put(ROOT_INO, "f", "1\n");

	a = fx_freeze();
	fx_write(f, 0, "x", 1);
	b = fx_freeze();
	p.a = (struct fs){ .store = fx_store, .tree = fx_tree(a) };
	p.b = (struct fs){ .store = fx_store, .tree = fx_tree(b) };
	(void)signal(SIGPIPE, SIG_IGN);
	ck_assert_int_eq(pipe2(pipe_fds, O_CLOEXEC), 0);
	p.out = fdopen(pipe_fds[1], "w");
	(void)setvbuf(p.out, buffer, _IOFBF, sizeof(buffer));
	(void)close(pipe_fds[0]);

	ck_ok(patcher_new(fx_store, &ops, &p.patcher));
	ck_err(fs_diff(fx_store, a, b, true, 0, print_patch, &p), -EPIPE);
	ck_assert_uint_eq(fx.notes, 0);
	patcher_free(p.patcher);
	(void)fclose(p.out); /* it says EPIPE again */
	tree_free(p.a.tree);
	tree_free(p.b.tree);
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("diff");

	tcase_set_timeout(t, 120); /* git is started a few times; sanitizers */
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, equal_states_do_not_differ);
	tcase_add_test(t, added_deleted_modified_in_order_of_path);
	tcase_add_test(t, what_changed_is_told);
	tcase_add_test(t, what_was_undone_is_no_change);
	tcase_add_test(t, a_hole_and_written_zeros_are_the_same_bytes);
	tcase_add_test(t, a_file_that_replaced_another_is_modified);
	tcase_add_test(t, a_change_of_type_is_told);
	tcase_add_test(t, a_rename_is_one_change);
	tcase_add_test(t, a_moved_directory_takes_its_content_along);
	tcase_add_test(t, exchanged_directories_are_compared_by_path);
	tcase_add_test(t, a_directory_inside_another_that_moved_too);
	tcase_add_test(t, every_name_of_a_changed_file_is_told);
	tcase_add_test(t, orphans_are_nobodys_change);
	tcase_add_test(t, the_callback_can_stop);
	tcase_add_loop_test(t, by_items_and_by_name_agree, 0, 30);
	tcase_add_test(t, ten_changes_in_a_large_tree_cost_ten);
	tcase_add_test(t, git_apply_takes_a_patch_of_text);
	tcase_add_test(t, git_apply_takes_a_binary_patch);
	tcase_add_test(t, git_apply_takes_renames);
	tcase_add_loop_test(t, git_apply_takes_random_patches, 0, 8);
	tcase_add_test(t, what_git_does_not_know_is_left_out);
	tcase_add_test(t, lines_are_counted);
	tcase_add_test(t, lines_of_files_that_come_and_go_are_counted);
	tcase_add_loop_test(t, a_failure_of_the_program_is_one_of_the_patch, 0,
			    ARRAY_SIZE(failures));
	tcase_add_test(t, a_patch_can_be_cancelled);
	tcase_add_test(t, a_reader_that_went_is_no_failure_of_the_program);
	return run_case("diff", t);
}
