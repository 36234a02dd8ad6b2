/* SPDX-License-Identifier: Apache-2.0 */

/* Patches of the changes between two states (env/transfer/patch.c), as git takes them. */

#include "tests/unit/diff_fixture.h"
#include "tests/unit/transfer_fixture.h"

/* Two states, and what a patcher is asked about each change between them. */
struct patching {
	struct patcher *patcher;
	struct fs a, b;
	FILE *out; /* print_patch */
	unsigned left_out;
	uint64_t added, removed; /* count */
	bool binary;
};

static void patching_init(struct patching *p, struct root *a, struct root *b,
			  const struct import_ops *patch_ops)
{
	*p = (struct patching){ .a = open_root(a), .b = open_root(b) };
	ck_ok(patcher_new(fx_store, patch_ops, &p->patcher));
}

static void patching_release(struct patching *p)
{
	patcher_free(p->patcher);
	tree_free(p->a.tree);
	tree_free(p->b.tree);
}

static int print_patch(void *arg, const struct change *c)
{
	struct patching *p = arg;
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
	_cleanup_free_ char *path = format("%s/%s", fx.path, name);
	struct patching p;

	patching_init(&p, a, b, NULL);
	p.out = fopen(path, "we");
	ck_assert_ptr_nonnull(p.out);
	ck_assert_int_eq(fs_diff(fx_store, a, b, true, flags, print_patch, &p), 0);
	ck_assert_int_eq(fclose(p.out), 0);
	patching_release(&p);
	return p.left_out;
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

/* ---- counts ---- */

static int count(void *arg, const struct change *c)
{
	struct patching *p = arg;

	return patch_count(p->patcher, &p->a, &p->b, c, &p->added, &p->removed, &p->binary);
}

/* Of the only change that there is. */
static struct patching count_change(struct root *a, struct root *b)
{
	struct patching p;

	patching_init(&p, a, b, NULL);
	p.added = p.removed = 1000;
	ck_ok(fs_diff(fx_store, a, b, true, 0, count, &p));
	patching_release(&p);
	return p;
}

START_TEST(lines_are_counted)
{
	_cleanup_root_ struct root *a = NULL, *b = NULL, *e = NULL;
	struct patching p;
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

#define TEXT SAYS("010", "001", "@")
#define COUNT(added) SAYS("011", "020", added NULS NULS "\\0" "\\1" NULS NULS "\\0")
#define FAILED(code) SAYS("012", "007", code "\\0\\0why")
#define STAYS "exec sleep 100" /* it is not waited for */
/* The request, three records with two contents of 8 bytes: so that none of it is refused. */
#define HEARS "head -c 76 <&3 >/dev/null; "

/* What needs no comparing is counted without plyfs-git, and as git does. */
START_TEST(lines_of_files_that_come_and_go_are_counted)
{
	static const struct {
		const char *text;
		unsigned lines;
	} cases[] = { { "", 0 }, { "\n", 1 }, { "a", 1 }, { "a\n\nb", 3 }, { "a\nb\n", 2 } };

	use_program("plyfs-git", SHELL "exit 1");
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_root_ struct root *none = fx_freeze(), *some = NULL;
		struct patching p;

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
	_cleanup_free_ char *text = NULL;
	struct patching p;
	unsigned sockets;
	size_t len;
	uint64_t f = put(ROOT_INO, "f", "1\n2\n3\n4\n");

	a = fx_freeze();
	fx_write(f, 2, "x", 1);
	b = fx_freeze();
	use_program("plyfs-git", failures[_i].text);

	sockets = open_sockets();
	patching_init(&p, a, b, &ops);
	p.out = open_memstream(&text, &len);
	for (unsigned n = 1; n <= 2; n++) { /* and it is started anew */
		ck_err(fs_diff(fx_store, a, b, true, 0, print_patch, &p), failures[_i].r);
		ck_assert_msg(fx.notes == n && strstr(fx.last_note, failures[_i].note),
			      "%s: %u notes, \"%s\"", failures[_i].name, fx.notes, fx.last_note);
	}
	ck_assert_uint_eq(open_sockets(), sockets);
	no_children();

	/* The same patcher, with the true program again. */
	ck_assert_int_eq(unsetenv("PLYFS_LIBEXEC"), 0);
	ck_ok(fs_diff(fx_store, a, b, true, 0, print_patch, &p));
	ck_assert_int_eq(fclose(p.out), 0);
	ck_assert_ptr_nonnull(strstr(text, "\n@@ -1,4 +1,4 @@\n 1\n-2\n+x\n 3\n 4\n"));
	patching_release(&p);
}
END_TEST

START_TEST(a_patch_can_be_cancelled)
{
	_cleanup_root_ struct root *a = NULL, *b = NULL;
	struct patching p;
	uint64_t f = put(ROOT_INO, "f", "1\n");

	a = fx_freeze();
	fx_write(f, 0, "x", 1);
	b = fx_freeze();
	use_program("plyfs-git", SHELL STAYS);

	patching_init(&p, a, b, &ops);
	p.out = fopen("/dev/null", "we");
	cancel = true;
	ck_err(fs_diff(fx_store, a, b, true, 0, print_patch, &p), -ERR_CANCELLED);
	cancel = false;
	ck_assert_uint_eq(fx.notes, 0);
	patching_release(&p);
	(void)fclose(p.out); /* nothing is kept of it */
}
END_TEST

START_TEST(a_reader_that_went_is_no_failure_of_the_program)
{
	_cleanup_root_ struct root *a = NULL, *b = NULL;
	struct patching p;
	char buffer[70]; /* the lines above the hunk fit (65 bytes), all does not */
	int pipe_fds[2];
	uint64_t f = put(ROOT_INO, "f", "1\n");

	a = fx_freeze();
	fx_write(f, 0, "x", 1);
	b = fx_freeze();
	(void)signal(SIGPIPE, SIG_IGN);
	ck_assert_int_eq(pipe2(pipe_fds, O_CLOEXEC), 0);
	(void)close(pipe_fds[0]);

	patching_init(&p, a, b, &ops);
	p.out = fdopen(pipe_fds[1], "w");
	(void)setvbuf(p.out, buffer, _IOFBF, sizeof(buffer));
	ck_err(fs_diff(fx_store, a, b, true, 0, print_patch, &p), -EPIPE);
	ck_assert_uint_eq(fx.notes, 0);
	patching_release(&p);
	(void)fclose(p.out); /* it says EPIPE again */
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("patch");

	tcase_set_timeout(t, 240); /* git is started a few times; sanitizers */
	tcase_add_checked_fixture(t, setup, teardown);
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
	return run_case("patch", t);
}
