/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Each verb of a view, with each call of the system that it makes failing in turn: memory, files.
 * Either it fails, with an errno that a program can be given, and the tree is what it was; or it is
 * done, as it is without a fault. That nothing leaks is seen in the sanitizer builds.
 */

#include <limits.h>
#include <linux/falloc.h>
#include <linux/fs.h>

#include "fs/fs.h"
#include "store/base/fault.h"
#include "tests/unit/view_fixture.h"

static uint64_t scene; /* what each try begins with */

/* Known to the kernel before a verb begins, as its arguments are. */
static struct {
	uint64_t d, file, link, big, sub;
} at;

static int make(uint64_t dir, const char *name, uint32_t mode, const char *target)
{
	const struct fs_new n = {
		.dir = dir, .name = name, .len = strlen(name), .mode = mode, .target = target
	};
	struct entry e;

	return view_create(view, &n, &e);
}

static uint8_t bytes[300000];

static void look_around(void)
{
	at.d = node_of(ROOT_NODE, "d");
	at.file = node_of(ROOT_NODE, "file");
	at.link = node_of(ROOT_NODE, "link");
	at.big = node_of(at.d, "big");
	at.sub = node_of(at.d, "sub");
}

/* Names enough that what a verb changes is in several nodes, of which the second may fail. */
#define MANY 300

static void scene_setup(void)
{
	struct entry e;
	char name[16];

	view_setup();
	scratch_fill(bytes, sizeof(bytes), 1);
	ck_ok(make(ROOT_NODE, "d", S_IFDIR | 0755, NULL));
	ck_ok(make(ROOT_NODE, "file", S_IFREG | 0644, NULL));
	ck_ok(make(ROOT_NODE, "link", S_IFLNK | 0777, "file"));
	ck_ok(make(node_of(ROOT_NODE, "d"), "big", S_IFREG | 0644, NULL));
	ck_ok(make(node_of(ROOT_NODE, "d"), "sub", S_IFDIR | 0755, NULL));
	look_around();
	for (int i = 0; i < MANY; i++) {
		snprintf(name, sizeof(name), "many%d", i);
		ck_ok(make(at.d, name, S_IFREG | 0644, NULL));
	}
	ck_ok(view_link(view, at.file, at.d, "other", 5, &e));
	ck_ok(view_write(view, at.file, 0, "content", 7, false, NULL));
	ck_ok(view_setxattr(view, at.file, "user.a", "value", 5, 0));
	ck_ok(view_write(view, at.big, 0, bytes, sizeof(bytes), false, NULL));
	ck_ok(view_checkpoint(view, NULL, true, &scene));
	ck_ok(view_write(view, at.big, 1000, "staged", 6, false, NULL));
	ck_ok(view_checkpoint(view, NULL, false, &scene));
}

/* ---- the verbs ---- */

static int create_file(void)
{
	return make(at.d, "new", S_IFREG | 0644, NULL);
}

static int create_directory(void)
{
	return make(at.d, "new", S_IFDIR | 0755, NULL);
}

static int create_symlink(void)
{
	static char target[3000];

	memset(target, 'x', sizeof(target) - 1);
	return make(at.d, "new", S_IFLNK | 0777, target);
}

static int create_without_name(void)
{
	const struct fs_new n = { .dir = at.d, .mode = S_IFREG | 0600 };
	struct entry e;

	return view_tmpfile(view, &n, &e);
}

static int link_it(void)
{
	struct entry e;

	return view_link(view, at.file, at.d, "hard", 4, &e);
}

static int unlink_it(void)
{
	return view_unlink(view, at.d, "big", 3);
}

static int unlink_first_of_two(void)
{
	return view_unlink(view, ROOT_NODE, "file", 4);
}

static int unlink_second_of_two(void)
{
	return view_unlink(view, at.d, "other", 5);
}

static int rename_second_of_two(void)
{
	return view_rename(view, at.d, "other", 5, at.sub, "moved", 5, 0);
}

static int remove_directory(void)
{
	return view_rmdir(view, at.d, "sub", 3);
}

static int rename_it(void)
{
	return view_rename(view, ROOT_NODE, "link", 4, at.sub, "moved", 5, 0);
}

static int rename_over(void)
{
	return view_rename(view, ROOT_NODE, "file", 4, at.d, "big", 3, 0);
}

static int rename_exchange(void)
{
	return view_rename(view, ROOT_NODE, "file", 4, at.d, "sub", 3, RENAME_EXCHANGE);
}

static int write_append(void)
{
	return view_write(view, at.file, 7, "more", 4, false, NULL);
}

static int write_inside(void)
{
	return view_write(view, at.big, 900, "overwritten", 11, true, NULL);
}

static int write_much(void)
{
	return view_write(view, at.big, 100000, bytes, sizeof(bytes), false, NULL);
}

static int set_size(uint64_t node, uint64_t size)
{
	const struct fs_set set = { .mask = SET_SIZE, .size = size };
	struct inode i;

	return view_setattr(view, node, &set, &i);
}

static int shrink(void)
{
	return set_size(at.big, 150001);
}

static int grow(void)
{
	return set_size(at.file, 1 << 20);
}

static int change_mode(void)
{
	const struct fs_set set = { .mask = SET_MODE, .mode = 0600 };
	struct inode i;

	return view_setattr(view, at.file, &set, &i);
}

static int punch(void)
{
	const int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;

	return view_fallocate(view, at.big, mode, 500, 200000);
}

static int copy(void)
{
	uint64_t n;

	return view_copy_range(view, at.big, 0, at.file, 3, 200000, &n);
}

static int set_attribute(void)
{
	return view_setxattr(view, at.file, "user.b", bytes, 2000, 0);
}

static int remove_attribute(void)
{
	return view_removexattr(view, at.file, "user.a");
}

static const struct verb {
	const char *name;
	int (*fn)(void);
} verbs[] = {
	{ "create", create_file },
	{ "mkdir", create_directory },
	{ "symlink", create_symlink },
	{ "tmpfile", create_without_name },
	{ "link", link_it },
	{ "unlink", unlink_it },
	{ "rmdir", remove_directory },
	{ "rename", rename_it },
	{ "unlink the first of two", unlink_first_of_two },
	{ "unlink the second of two", unlink_second_of_two },
	{ "rename the second of two", rename_second_of_two },
	{ "rename over", rename_over },
	{ "rename exchange", rename_exchange },
	{ "append", write_append },
	{ "write inside", write_inside },
	{ "write much", write_much },
	{ "shrink", shrink },
	{ "grow", grow },
	{ "chmod", change_mode },
	{ "punch", punch },
	{ "copy", copy },
	{ "setxattr", set_attribute },
	{ "removexattr", remove_attribute },
};

/* ---- one try ---- */

static struct root *state(void)
{
	struct branch *b = view_branch(view);
	struct root *root;

	WRITE_GUARD(&b->lock);
	ck_ok(tree_freeze(b->tree, &root));
	return root;
}

static int count(void *arg, const struct key *k, const struct val *old, const struct val *new)
{
	++*(unsigned *)arg;
	return 0;
}

static unsigned differences(struct root *a, struct root *b)
{
	const struct key from = KEY_MIN, to = KEY_MAX;
	unsigned n = 0;

	ck_ok(root_diff(a, b, &from, &to, count, &n));
	return n;
}

/* How many items changed; *ret: the verb's answer. n < 0: no fault. */
static unsigned attempt(const struct verb *verb, int n, int error, int *ret, int *ret_ticks)
{
	_cleanup_(root_unrefp) struct root *before = NULL, *after = NULL;
	struct restore_info info;

	ck_ok(view_restore(view, scene, &info));
	look_around();
	before = state();
	fault_arm(n < 0 ? INT_MAX : n, 1, error);
	*ret = verb->fn();
	*ret_ticks = fault_ticks();
	fault_disarm();
	after = state();
	return differences(before, after);
}

static void damaged(void *arg, const char *line)
{
	ck_abort_msg("%s", line);
}

START_TEST(a_verb_that_fails_changes_nothing)
{
	static const int errors[] = { ENOMEM, EIO, ENOSPC };
	const struct verb *verb = &verbs[_i];
	unsigned whole, changed;
	int r, ticks;

	whole = attempt(verb, -1, EIO, &r, &ticks);
	ck_assert_msg(r >= 0 && whole > 0, "%s: %s", verb->name, err_name(r));
	for (int n = 0;; n++) { /* (a malloc knows one error only) */
		const int error = errors[n % (int)ARRAY_SIZE(errors)];

		changed = attempt(verb, n, error, &r, &ticks);
		if (r >= 0) {
			ck_assert_msg(changed > 0, "%s, call %d: nothing happened", verb->name, n);
			if (ticks <= n)
				break;
			continue;
		}
		ck_assert_msg(err_errno(r) == error || r == -ENOMEM, "%s, call %d: %s for %s",
			      verb->name, n, err_name(r), err_name(-error));
		ck_assert_msg(changed == 0, "%s, call %d: it failed and changed %u items",
			      verb->name, n, changed);
	}
	ck_ok(store_check(store, CHECK_READ_DATA, &(struct check_ops){ .damage = damaged }, NULL,
			  &(struct check_stats){ 0 }));
}
END_TEST

int main(void)
{
	TCase *tcase = tcase_create("view_faults");

	tcase_set_timeout(tcase, 240);
	tcase_add_checked_fixture(tcase, scene_setup, view_teardown);
	tcase_add_loop_test(tcase, a_verb_that_fails_changes_nothing, 0, ARRAY_SIZE(verbs));
	return run_case("view_faults", tcase);
}
