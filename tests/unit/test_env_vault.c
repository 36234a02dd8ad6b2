/* SPDX-License-Identifier: Apache-2.0 */

/* The vault: names that git may use, objects, packs and refs. */

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/repo_fixture.h"

/* ---- names ---- */

START_TEST(names_that_git_may_use)
{
	static const char *const good[] = { "a",   ".gitignore", ".gitx", "git",   "-",
					    "a b", "\xff",	 "git~2", ".git2", "..." };
	static const char *const bad[] = { "",
					   ".",
					   "..",
					   "a/b",
					   ".git",
					   ".GIT",
					   ".git.",
					   ".git ",
					   "git~1",
					   "GIT~1 .",
					   ".git:",
					   "a\\.git",
					   ".g\xe2\x80\x8cit" };

	for (size_t i = 0; i < ARRAY_SIZE(good); i++)
		ck_assert_msg(repo_name_ok(good[i]), "%s", good[i]);
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		ck_assert_msg(!repo_name_ok(bad[i]), "%s", bad[i]);
}
END_TEST

START_TEST(refs_that_may_be_chosen)
{
	ck_assert(repo_ref_ok("refs/plyfs/main"));
	ck_assert(repo_ref_ok("refs/notes/x.y"));
	ck_assert(!repo_ref_ok("refs/heads/main"));
	ck_assert(!repo_ref_ok("main"));
	ck_assert(!repo_ref_ok("HEAD"));
	ck_assert(!repo_ref_ok("refs/plyfs/a..b"));
	ck_assert(!repo_ref_ok("refs/plyfs/a.lock"));
	ck_assert(!repo_ref_ok(""));
}
END_TEST

/* ---- the vault ---- */

static size_t count_packs(void)
{
	DIR *d = opendir(at("vault/objects/pack"));
	struct dirent *e;
	size_t n = 0;

	while ((e = readdir(d)))
		n += strstr(e->d_name, ".pack") != NULL;
	closedir(d);
	return n;
}

static struct repo_id write_blob(const char *text)
{
	_cleanup_(repo_batch_freep) struct repo_batch *b = repo_batch_new();
	struct repo_id id;

	ok(repo_batch_add(b, REPO_BLOB, text, strlen(text), &id));
	ok(vault_write(vault, &b, 1));
	return id;
}

static void check_blob(const struct repo_id *id, const char *text)
{
	_cleanup_(repo_reader_closep) struct repo_reader *rd = NULL;
	struct ply_text got = { 0 };

	ok(repo_reader_open(NULL, vault, &rd));
	ok(repo_read(rd, id, REPO_BLOB, &got));
	ck_assert_str_eq(got.data, text);
	ply_text_free(&got);
	ck_assert_int_lt(repo_read(rd, id, REPO_TREE, &got), 0);
}

START_TEST(what_was_written_is_read)
{
	_cleanup_(repo_batch_freep) struct repo_batch *a = repo_batch_new();
	struct repo_batch *b = repo_batch_new(), *both[2];
	struct repo_id one, two, file, again;
	char hex[REPO_HEX];
	int fd;

	put(at("file"), "of a file");
	fd = open(top, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	ok(repo_batch_add(a, REPO_BLOB, "one", 3, &one));
	ok(repo_batch_add(b, REPO_BLOB, "two", 3, &two));
	ok(repo_batch_add(b, REPO_BLOB, "one", 3, &again));
	ok(repo_batch_add_file(b, fd, "file", 9, NULL, &file));
	b->dir_fd = fd;
	ck_assert(repo_id_is(&one, &again));
	ck_assert_str_eq(repo_id_hex(&one, hex), "43dd47ea691c90a5fa7827892c70241913351963");
	ck_assert(repo_id_parse("43dd47ea691c90a5fa7827892c70241913351963 x", &again));
	ck_assert(repo_id_is(&one, &again));
	ck_assert(!repo_id_parse("43dd47ea", &again));

	both[0] = a;
	both[1] = b;
	ok(vault_write(vault, both, 2));
	check_blob(&one, "one");
	check_blob(&two, "two");
	check_blob(&file, "of a file");
	ck_assert_uint_eq(count_packs(), 1);
	/* The same once more: nothing is written. */
	ok(vault_write(vault, both, 2));
	ck_assert_uint_eq(count_packs(), 1);
	/* A file whose bytes are known already is not even taken. */
	ck_assert_uint_eq(b->n, 3);
	ok(repo_batch_add_file(b, fd, "file", 9, &file, &again));
	ck_assert_uint_eq(b->n, 3);
	repo_batch_free(b);
}
END_TEST

START_TEST(a_file_that_changed_in_between_is_never_stored_under_a_wrong_name)
{
	struct repo_batch *b = repo_batch_new();
	struct repo_id id;

	put(at("file"), "before");
	b->dir_fd = open(top, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	ok(repo_batch_add_file(b, b->dir_fd, "file", 6, NULL, &id));
	put(at("file"), "behind");
	ck_assert_int_lt(vault_write(vault, &b, 1), 0);
	put(at("file"), "short");
	ck_assert_int_lt(vault_write(vault, &b, 1), 0);
	put(at("file"), "before");
	ok(vault_write(vault, &b, 1));
	check_blob(&id, "before");
	repo_batch_free(b);
}
END_TEST

struct newcomer {
	pthread_barrier_t barrier;
	const char *path;
};

static void *open_new_vault(void *arg)
{
	struct newcomer *n = arg;
	struct vault *v = NULL;
	int r;

	pthread_barrier_wait(&n->barrier);
	r = vault_open(n->path, &v);
	vault_close(v);
	return r < 0 ? strdup(ply_error()) : NULL;
}

/* Environments of one store are set up at the same time. */
START_TEST(a_vault_that_many_make_at_once_is_made_once)
{
	struct newcomer n = { .path = at("new") };
	pthread_t threads[8];

	pthread_barrier_init(&n.barrier, NULL, ARRAY_SIZE(threads));
	for (int round = 0; round < 10; round++) {
		ck_assert_int_eq(sh("rm -rf new"), 0);
		for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
			ck_assert_int_eq(pthread_create(&threads[i], NULL, open_new_vault, &n), 0);
		for (size_t i = 0; i < ARRAY_SIZE(threads); i++) {
			void *why;

			pthread_join(threads[i], &why);
			ck_assert_msg(!why, "%s", (char *)why);
		}
	}
	pthread_barrier_destroy(&n.barrier);
}
END_TEST

/* Files that we have open and that are gone. */
static size_t count_removed(void)
{
	DIR *d = opendir("/proc/self/fd");
	struct dirent *e;
	size_t n = 0;

	while ((e = readdir(d))) {
		char target[PATH_MAX];
		ssize_t len = readlinkat(dirfd(d), e->d_name, target, sizeof(target) - 1);

		target[MAX(len, (ssize_t)0)] = '\0';
		n += strstr(target, ".pack (deleted)") != NULL;
	}
	closedir(d);
	return n;
}

START_TEST(many_packs_become_few)
{
	struct repo_id ids[100];
	char text[32];

	for (int i = 0; i < 100; i++) {
		snprintf(text, sizeof(text), "number %d", i);
		ids[i] = write_blob(text);
		ck_assert_uint_le(count_packs(), 16);
		ck_assert_uint_le(count_removed(), 16);
	}
	for (int i = 0; i < 100; i++) {
		snprintf(text, sizeof(text), "number %d", i);
		check_blob(&ids[i], text);
	}
	ck_assert_int_eq(sh("git --git-dir vault fsck --strict"), 0);
}
END_TEST

START_TEST(no_commit_ever_falls_off_a_ref)
{
	struct repo_id a = write_commit("a", NULL), b = write_commit("b", &a);
	struct repo_id c = write_commit("c", &a), id = a, got;
	char hex[REPO_HEX];

	ck_assert_int_eq(vault_ref(vault, "refs/plyfs/x", &got), 1);
	ok(vault_set_ref(vault, "refs/plyfs/x", &id));
	id = b;
	ok(vault_set_ref(vault, "refs/plyfs/x", &id));
	ck_assert(repo_id_is(&id, &b));
	/* Backwards: it stays. */
	id = a;
	ok(vault_set_ref(vault, "refs/plyfs/x", &id));
	ck_assert(repo_id_is(&id, &b));
	/* Sideways: both are kept. */
	id = c;
	ok(vault_set_ref(vault, "refs/plyfs/x", &id));
	ck_assert(!repo_id_is(&id, &c) && !repo_id_is(&id, &b));
	ok(vault_ref(vault, "refs/plyfs/x", &got));
	ck_assert(repo_id_is(&id, &got));
	ck_assert_str_eq(said("git --git-dir vault rev-list --count refs/plyfs/x"), "4");
	ck_assert_str_eq(said("git --git-dir vault rev-parse refs/plyfs/x^1"),
			 repo_id_hex(&c, hex));
	ck_assert_int_eq(sh("git --git-dir vault fsck --strict"), 0);
	ok(vault_drop_ref(vault, "refs/plyfs/x"));
	ck_assert_int_eq(vault_ref(vault, "refs/plyfs/x", &got), 1);
	ok(vault_drop_ref(vault, "refs/plyfs/x"));
}
END_TEST

static int listed_locked;

static void check_lock(void)
{
	int fd = open(at("vault/lock"), O_RDWR | O_CLOEXEC);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_lt(flock(fd, LOCK_EX | LOCK_NB), 0);
	close(fd);
	errno = 0; /* as readdir's caller left it */
	listed_locked++;
}

START_TEST(no_packs_are_merged_while_all_are_copied)
{
	struct repo_id c = write_commit("c", NULL);
	char hex[REPO_HEX];

	ck_assert_int_eq(sh("git init -q --bare to"), 0);
	at_readdir = check_lock;
	ok(vault_copy_objects(vault, at("to/objects")));
	at_readdir = NULL;
	ck_assert_int_gt(listed_locked, 0);
	ck_assert_int_eq(sh("git --git-dir to cat-file -e %s", repo_id_hex(&c, hex)), 0);
}
END_TEST

static pid_t forked;

static void fork_once(void)
{
	at_readdir = NULL;
	forked = fork();
	if (forked == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		pause();
		_exit(0);
	}
}

START_TEST(a_fork_of_the_caller_does_not_keep_the_lock)
{
	int fd;

	(void)write_commit("c", NULL);
	ck_assert_int_eq(sh("git init -q --bare to"), 0);
	at_readdir = fork_once;
	ok(vault_copy_objects(vault, at("to/objects")));
	ck_assert_int_gt(forked, 0);
	fd = open(at("vault/lock"), O_RDWR | O_CLOEXEC);
	ck_assert_int_eq(flock(fd, LOCK_EX | LOCK_NB), 0);
	close(fd);
	kill(forked, SIGKILL);
	ck_assert_int_eq(waitpid(forked, NULL, 0), forked);
}
END_TEST

START_TEST(damaged_trees_are_refused)
{
	static const char good[] = "100644 a\0"
				   "12345678901234567890";
	struct repo_entry e;
	size_t offset = 0;

	for (size_t len = 1; len < sizeof(good) - 1; len++) {
		struct ply_text t = { .data = (char *)good, .len = len };

		offset = 0;
		ck_assert_int_lt(repo_entry_next(&t, &offset, &e), 0);
	}
	struct ply_text t = { .data = (char *)good, .len = sizeof(good) - 1 };

	offset = 0;
	ok(repo_entry_next(&t, &offset, &e));
	ck_assert_str_eq(e.name, "a");
	ck_assert_uint_eq(e.mode, REPO_MODE_FILE);
	ck_assert_int_eq(repo_entry_next(&t, &offset, &e), 1);
	static const char nameless[] = "100644 \0"
				       "12345678901234567890";
	struct ply_text u = { .data = (char *)nameless, .len = sizeof(nameless) - 1 };

	offset = 0;
	ck_assert_int_lt(repo_entry_next(&u, &offset, &e), 0);
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("vault");

	tcase_set_timeout(t, 240);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, names_that_git_may_use);
	tcase_add_test(t, refs_that_may_be_chosen);
	tcase_add_test(t, what_was_written_is_read);
	tcase_add_test(t, a_file_that_changed_in_between_is_never_stored_under_a_wrong_name);
	tcase_add_test(t, a_vault_that_many_make_at_once_is_made_once);
	tcase_add_test(t, many_packs_become_few);
	tcase_add_test(t, no_commit_ever_falls_off_a_ref);
	tcase_add_test(t, no_packs_are_merged_while_all_are_copied);
	tcase_add_test(t, a_fork_of_the_caller_does_not_keep_the_lock);
	tcase_add_test(t, damaged_trees_are_refused);
	return run_case("env_vault", t);
}
