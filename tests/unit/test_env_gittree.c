/* SPDX-License-Identifier: Apache-2.0 */

/* Trees kept in memory: what a directory gives, and what makes a directory of another. */

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "env/gittree.h"
#include "tests/unit/repo_fixture.h"

/* As if not root, with this error; 0: as it is. */
static int faccessat_error;

uid_t geteuid(void)
{
	static uid_t (*real)(void);

	if (!real)
		real = (uid_t (*)(void))dlsym(RTLD_NEXT, "geteuid");
	return faccessat_error ? 1000 : real();
}

int faccessat(int fd, const char *path, int mode, int flags)
{
	static int (*real)(int, const char *, int, int);

	if (!real)
		real = (int (*)(int, const char *, int, int))dlsym(RTLD_NEXT, "faccessat");
	if (faccessat_error) {
		errno = faccessat_error;
		return -1;
	}
	return real(fd, path, mode, flags);
}

static struct repo_id update(struct gittree *t, const char *dir, const char *changed, size_t len,
			     bool store)
{
	_cleanup_(repo_batch_freep) struct repo_batch *b = repo_batch_new();
	int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct repo_id id;

	ck_assert_int_ge(fd, 0);
	ok(gittree_update(t, dir, fd, changed, len, vault, b, &id));
	b->dir_fd = fd;
	if (store)
		ok(vault_write(vault, &b, 1));
	return id;
}

static struct repo_id fresh(const char *dir, bool store)
{
	_cleanup_(gittree_freep) struct gittree *t = NULL;

	ok(gittree_new(GITTREE_ALL, &t));
	return update(t, dir, NULL, 0, store);
}

/* Makes dir, which t knows, the tree want but for the names excluded. */
static void make(struct gittree *t, const char *dir, const struct repo_id *want,
		 const char *excluded)
{
	_cleanup_(repo_reader_closep) struct repo_reader *rd = NULL;
	_cleanup_close_ int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	ck_assert_int_ge(fd, 0);
	ok(repo_reader_open(NULL, vault, &rd));
	ok(gittree_apply(t, fd, rd, want, excluded));
}

static unsigned next_random(unsigned *seed, unsigned n)
{
	*seed = *seed * 1103515245 + 12345;
	return (*seed >> 16) % n;
}

/* Up to three names of four, so that paths meet; NUL-ended. */
static size_t random_path(unsigned *seed, char *ret)
{
	static const char *const names[] = { "a", "b", "a.c", "a-" };
	size_t len = 0;

	for (unsigned i = 0, n = 1 + next_random(seed, 3); i < n; i++)
		len += (size_t)sprintf(ret + len, "%s%s", i ? "/" : "",
				       names[next_random(seed, 4)]);
	return len + 1;
}

/* One change below dir; appends the paths that it touched. */
static size_t random_change(unsigned *seed, const char *dir, char *changed)
{
	char path[64], command[512];
	size_t len = random_path(seed, path);

	static const char *const scripts[] = {
		"mkdir -p $(dirname $p); rm -f $p; echo $n >$p",
		"mkdir -p $(dirname $p); rm -f $p; echo $n >$p",
		"rm -rf $p",
		"ln -sfT somewhere $p",
		"mkdir -p $p",
		"[ -L $p ] || chmod u+x $p",
		"mkfifo $p",
	};

	snprintf(command, sizeof(command), "{ p=%s/%s n=%u; %s; } 2>/dev/null", dir, path,
		 next_random(seed, 20), scripts[next_random(seed, ARRAY_SIZE(scripts))]);
	(void)!system(command); /* some cannot be done: then nothing has changed */
	memcpy(changed, path, len);
	return len;
}

/*
 * The paths that a diff would tell are what changed; here all parents of a touched path may be
 * new or gone, too, and it is told with the deepest path only.
 */
START_TEST(a_step_gives_the_tree_that_a_fresh_look_gives)
{
	_cleanup_(gittree_freep) struct gittree *t = NULL, *copy = NULL;
	unsigned seed = (unsigned)_i * 7919 + 1;
	char changed[1024];

	ck_assert_int_eq(mkdir(at("w"), 0777), 0);
	ok(gittree_new(GITTREE_ALL, &t));
	update(t, at("w"), NULL, 0, false);
	for (int step = 0; step < 25; step++) {
		struct repo_id a, b;
		size_t len = 0;

		for (unsigned i = 0, n = next_random(&seed, 4); i < n; i++)
			len += random_change(&seed, at("w"), changed + len);
		a = update(t, at("w"), changed, len, false);
		b = fresh(at("w"), false);
		ck_assert_msg(repo_id_is(&a, &b), "loop %d, step %d", _i, step);
		if (step == 12) {
			ok(gittree_copy(t, &copy));
			gittree_free(t);
			t = TAKE_PTR(copy);
		}
	}
}
END_TEST

START_TEST(any_tree_can_be_made_of_any_other)
{
	_cleanup_(gittree_freep) struct gittree *t = NULL;
	unsigned seed = (unsigned)_i * 104729 + 5;
	struct repo_id want, got;
	char changed[64];

	ck_assert_int_eq(mkdir(at("w"), 0777) | mkdir(at("other"), 0777), 0);
	for (int i = 0; i < 12; i++) {
		random_change(&seed, at("w"), changed);
		random_change(&seed, at("other"), changed);
	}
	want = fresh(at("other"), true);
	ok(gittree_new(GITTREE_ALL, &t));
	update(t, at("w"), NULL, 0, true);
	make(t, at("w"), &want, "");
	got = fresh(at("w"), false);
	ck_assert(repo_id_is(&got, &want));
	/* Nothing is left that git does not know of. */
	ck_assert_str_eq(
		said("find w ! -type f ! -type l ! -type d; find w -mindepth 1 -type d -empty"),
		"");
}
END_TEST

/* What cannot be read to its end is no empty submodule, nor is a file unreadable for any reason. */
START_TEST(a_failure_leaves_nothing_out_of_a_tree)
{
	ck_assert_int_eq(sh("git init -q w && mkdir w/sub && echo 1 >w/sub/f && cd w && "
			    "git update-index --add --cacheinfo "
			    "160000,0123456789012345678901234567890123456789,sub"),
			 0);
	for (int n = 0, error = 0; error == 0; n++) {
		_cleanup_(repo_batch_freep) struct repo_batch *b = repo_batch_new();
		_cleanup_(gittree_freep) struct gittree *t = NULL;
		struct repo_id id;
		int r;

		b->dir_fd = open(at("w"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		ok(gittree_new(GITTREE_ALL, &t));
		readdir_passes = n;
		r = gittree_update(t, at("w"), b->dir_fd, NULL, 0, vault, b, &id);
		if (readdir_passes < 0) {
			ck_assert_msg(r == PLY_FAILED, "readdir %d: %d", n, r);
			continue;
		}
		ok(r);
		readdir_passes = -1;
		gittree_free(t);
		ok(gittree_new(GITTREE_ALL, &t));
		faccessat_error = error = EIO;
		r = gittree_update(t, at("w"), b->dir_fd, NULL, 0, vault, b, &id);
		ck_assert_int_eq(r, PLY_FAILED);
		gittree_free(t);
		ok(gittree_new(GITTREE_ALL, &t));
		faccessat_error = EACCES;
		ok(gittree_update(t, at("w"), b->dir_fd, NULL, 0, vault, b, &id));
		faccessat_error = 0;
	}
}
END_TEST

START_TEST(excluded_directories_and_repositories_are_left_alone)
{
	_cleanup_(gittree_freep) struct gittree *t = NULL;
	struct repo_id want;

	ck_assert_int_eq(sh("mkdir -p w/deep/node_modules w/.git w/in/.git other/x other/venv &&"
			    "echo 1 >w/deep/node_modules/m; echo 1 >w/.git/config;"
			    "echo 1 >w/in/.git/HEAD; echo 1 >w/in/file; echo 1 >w/gone;"
			    "echo 1 >other/x/y; echo 1 >other/venv/z"),
			 0);
	want = fresh(at("other"), true);
	ok(gittree_new(GITTREE_ALL, &t));
	update(t, at("w"), NULL, 0, true);
	make(t, at("w"), &want, "node_modules:venv");
	ck_assert_str_eq(said("find w -type f | LC_ALL=C sort | tr '\\n' ' '"),
			 "w/.git/config w/deep/node_modules/m w/in/.git/HEAD w/x/y ");
}
END_TEST

START_TEST(a_symlink_in_the_way_is_not_followed)
{
	_cleanup_(gittree_freep) struct gittree *t = NULL;
	struct repo_id want;

	ck_assert_int_eq(sh("mkdir -p w/d outside other/d && echo 1 >w/d/f && echo 2 >other/d/f &&"
			    "echo mine >outside/f"),
			 0);
	want = fresh(at("other"), true);
	ok(gittree_new(GITTREE_ALL, &t));
	update(t, at("w"), NULL, 0, true);
	/* Changed behind our back. */
	ck_assert_int_eq(sh("rm -r w/d && ln -s ../outside w/d"), 0);
	make(t, at("w"), &want, "");
	ck_assert_str_eq(said("cat outside/f"), "mine");
	ck_assert_str_eq(said("cat w/d/f"), "2");
}
END_TEST

START_TEST(deep_and_long_paths_are_left_to_the_snapshot)
{
	struct repo_id with, without;

	ck_assert_int_eq(sh("mkdir -p w && cd w && echo 1 >a"), 0);
	without = fresh(at("w"), false);
	/* 30 names of 200 bytes */
	ck_assert_int_eq(sh("cd w && n=$(printf 'x%%.0s' $(seq 200)) && for i in $(seq 30); do "
			    "mkdir $n && cd -P $n || exit 1; done; echo 1 >below"),
			 0);
	with = fresh(at("w"), false);
	ck_assert(repo_id_is(&with, &without));
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("gittree");

	tcase_set_timeout(t, 240);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_loop_test(t, a_step_gives_the_tree_that_a_fresh_look_gives, 0, 8);
	tcase_add_loop_test(t, any_tree_can_be_made_of_any_other, 0, 12);
	tcase_add_test(t, a_failure_leaves_nothing_out_of_a_tree);
	tcase_add_test(t, excluded_directories_and_repositories_are_left_alone);
	tcase_add_test(t, a_symlink_in_the_way_is_not_followed);
	tcase_add_test(t, deep_and_long_paths_are_left_to_the_snapshot);
	return run_case("env_gittree", t);
}
