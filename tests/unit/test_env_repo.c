/* SPDX-License-Identifier: Apache-2.0 */

/* git's half of libplyfs: the vault, trees kept in memory, a work tree's repository, clones. */

#include "env/repo.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "env/commit_queue.h"
#include "env/gittree.h"
#include "store/base/util.h"
#include "tests/unit/run.h"

static char top[64];
static struct vault *vault;

#define ok(expression) ck_assert_msg((expression) == 0, "%s: %s", #expression, ply_error())

/* So many calls from here on readdir fails once; < 0: never. Ours comes before the C library's. */
static int readdir_passes = -1;
static void (*at_readdir)(void);

struct dirent *readdir(DIR *d)
{
	static struct dirent *(*real)(DIR *);

	if (!real)
		real = (struct dirent * (*)(DIR *)) dlsym(RTLD_NEXT, "readdir64");
	if (at_readdir)
		at_readdir();
	if (readdir_passes >= 0 && readdir_passes-- == 0) {
		errno = EIO;
		return NULL;
	}
	return real(d);
}

/* So does stat, libgit2's too. */
static int stat_passes = -1;

int stat(const char *path, struct stat *ret)
{
	static int (*real)(const char *, struct stat *);

	if (!real)
		real = (int (*)(const char *, struct stat *))dlsym(RTLD_NEXT, "stat64");
	if (stat_passes >= 0 && stat_passes-- == 0) {
		errno = EIO;
		return -1;
	}
	return real(path, ret);
}

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

static char *at(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

static char *at(const char *fmt, ...)
{
	static char path[16][512];
	static int i;
	char below[400];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(below, sizeof(below), fmt, ap);
	va_end(ap);
	i = (i + 1) % 16;
	snprintf(path[i], sizeof(path[i]), "%s/%s", top, below);
	return path[i];
}

/* A shell's script in top; its status. */
static int sh(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

static int sh(const char *fmt, ...)
{
	char script[2048], command[4096];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(script, sizeof(script), fmt, ap);
	va_end(ap);
	snprintf(command, sizeof(command), "cd %s && { %s ; } >/dev/null 2>log", top, script);
	return system(command);
}

/* What a command prints, its first line. */
static const char *said(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

static const char *said(const char *fmt, ...)
{
	static char line[4][512];
	static int i;
	char script[2048], command[4096];
	va_list ap;
	FILE *f;

	va_start(ap, fmt);
	vsnprintf(script, sizeof(script), fmt, ap);
	va_end(ap);
	snprintf(command, sizeof(command), "cd %s && { %s ; }", top, script);
	i = (i + 1) % 4;
	line[i][0] = '\0';
	f = popen(command, "r");
	ck_assert_ptr_nonnull(f);
	if (fgets(line[i], sizeof(line[i]), f))
		line[i][strcspn(line[i], "\n")] = '\0';
	pclose(f);
	return line[i];
}

static void setup(void)
{
	strcpy(top, "/tmp/plyfs-repo-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(top));
	setenv("HOME", top, 1);
	setenv("GIT_CONFIG_NOSYSTEM", "1", 1);
	setenv("GIT_AUTHOR_NAME", "t", 1);
	setenv("GIT_AUTHOR_EMAIL", "t@example.org", 1);
	setenv("GIT_COMMITTER_NAME", "t", 1);
	setenv("GIT_COMMITTER_EMAIL", "t@example.org", 1);
	unsetenv("XDG_CONFIG_HOME");
	ok(vault_open(at("vault"), &vault));
}

static void teardown(void)
{
	char command[128];

	vault_close(vault);
	snprintf(command, sizeof(command), "rm -rf %s", top);
	ck_assert_int_eq(system(command), 0);
}

static void put(const char *path, const char *text)
{
	FILE *f = fopen(path, "w");

	ck_assert_msg(f, "%s: %m", path);
	fputs(text, f);
	fclose(f);
}

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

START_TEST(many_packs_become_few)
{
	struct repo_id ids[100];
	char text[32];

	for (int i = 0; i < 100; i++) {
		snprintf(text, sizeof(text), "number %d", i);
		ids[i] = write_blob(text);
		ck_assert_uint_le(count_packs(), 16);
	}
	for (int i = 0; i < 100; i++) {
		snprintf(text, sizeof(text), "number %d", i);
		check_blob(&ids[i], text);
	}
	ck_assert_int_eq(sh("git --git-dir vault fsck --strict"), 0);
}
END_TEST

/* A commit of the empty tree. parent may be NULL. */
static struct repo_id write_commit(const char *message, const struct repo_id *parent)
{
	_cleanup_(repo_batch_freep) struct repo_batch *b = repo_batch_new();
	char text[512], tree_hex[REPO_HEX], parent_hex[REPO_HEX];
	struct repo_id tree, id;

	ok(repo_batch_add(b, REPO_TREE, "", 0, &tree));
	snprintf(text, sizeof(text),
		 "tree %s\n%s%s%sauthor a <a> 1 +0000\ncommitter a <a> 1 +0000\n\n%s\n",
		 repo_id_hex(&tree, tree_hex), parent ? "parent " : "",
		 parent ? repo_id_hex(parent, parent_hex) : "", parent ? "\n" : "", message);
	ok(repo_batch_add(b, REPO_COMMIT, text, strlen(text), &id));
	ok(vault_write(vault, &b, 1));
	return id;
}

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

/* ---- a work tree's repository ---- */

START_TEST(a_new_repository_has_one_commit_and_an_identity)
{
	_cleanup_(repo_closep) struct repo *r = NULL;
	struct ply_text name = { 0 }, email = { 0 };
	struct repo_id head;

	ck_assert_int_eq(mkdir(at("w"), 0777), 0);
	put(at("w/a"), "1");
	ok(repo_create(at("w"), vault));
	ok(repo_open(at("w"), vault, &r));
	ok(repo_ref(r, "HEAD", &head));
	ok(repo_identity(r, "N", "E", &name, &email));
	ck_assert_str_eq(name.data, "Chimera");
	ck_assert_str_eq(email.data, "chimera@local");
	ck_assert_int_eq(access(at("w/.gitkeep"), F_OK), 0);
	ply_text_free(&name);
	ply_text_free(&email);
	ck_assert_str_eq(said("git -C w log --format=%%s"), "initial");
	ck_assert_str_eq(said("git -C w status --porcelain"), "");
	ck_assert_int_eq(sh("git -C w fsck --strict"), 0);
}
END_TEST

START_TEST(what_cannot_be_understood_is_no_repository)
{
	struct repo *r = NULL;

	ck_assert_int_eq(mkdir(at("none"), 0777), 0);
	ck_assert_int_eq(repo_open(at("none"), vault, &r), 1);
	ck_assert_int_eq(mkdir(at("none/.git"), 0777), 0);
	ck_assert_int_eq(repo_open(at("none"), vault, &r), 1);

	ck_assert_int_eq(mkdir(at("w"), 0777), 0);
	ok(repo_create(at("w"), vault));
	ck_assert_int_eq(sh("printf '[extensions]\\n\\tobjectFormat = sha256\\n' >>w/.git/config"),
			 0);
	ck_assert_int_eq(repo_open(at("w"), vault, &r), 1);
	ck_assert_int_eq(sh("echo '[broken' >w/.git/config"), 0);
	ck_assert_int_eq(repo_open(at("w"), vault, &r), 1);

	ck_assert_int_eq(mkdir(at("file"), 0777), 0);
	put(at("file/.git"), "gitdir: nowhere\n");
	ck_assert_int_eq(repo_open(at("file"), vault, &r), 1);
	put(at("file/.git"), "nonsense");
	ck_assert_int_eq(repo_open(at("file"), vault, &r), 1);
}
END_TEST

START_TEST(what_cannot_be_looked_at_may_be_a_repository)
{
	struct repo *none = NULL;

	ck_assert_int_eq(mkdir(at("w"), 0777), 0);
	ok(repo_create(at("w"), vault));
	stat_passes = 0; /* of .git */
	ck_assert_int_eq(repo_open(at("w"), vault, &none), PLY_FAILED);
	ck_assert_int_lt(stat_passes, 0);
	ck_assert_int_eq(sh("mv w/.git w/there && echo 'gitdir: there' >w/.git"), 0);
	{
		_cleanup_(repo_closep) struct repo *r = NULL;

		ok(repo_open(at("w"), vault, &r));
	}
}
END_TEST

START_TEST(a_git_file_leads_to_the_repository)
{
	_cleanup_(repo_closep) struct repo *r = NULL;

	ck_assert_int_eq(mkdir(at("w"), 0777) | mkdir(at("other"), 0777), 0);
	ok(repo_create(at("w"), vault));
	put(at("other/.git"), "gitdir: ../w/.git\n");
	ok(repo_open(at("other"), vault, &r));
	ck_assert_ptr_nonnull(strstr(repo_git_dir(r), "/w/.git/"));
}
END_TEST

START_TEST(other_alternates_are_left_alone)
{
	_cleanup_(repo_closep) struct repo *r = NULL;

	ck_assert_int_eq(mkdir(at("w"), 0777), 0);
	ok(repo_create(at("w"), vault));
	ok(repo_open(at("w"), vault, &r));
	ok(repo_detach(r, vault));
	ck_assert_int_lt(access(at("w/.git/objects/info/alternates"), F_OK), 0);
	ok(repo_attach(r, vault));
	ok(repo_attach(r, vault));
	ck_assert_str_eq(said("wc -l <w/.git/objects/info/alternates"), "1");
	ok(repo_detach(r, vault));
	ck_assert_int_lt(access(at("w/.git/objects/info/alternates"), F_OK), 0);
	put(at("w/.git/objects/info/alternates"), "/elsewhere/objects"); /* no newline */
	ok(repo_attach(r, vault));
	ck_assert_str_eq(said("head -1 w/.git/objects/info/alternates"), "/elsewhere/objects");
	ck_assert_str_eq(said("wc -l <w/.git/objects/info/alternates"), "2");
	ok(repo_detach(r, vault));
	ck_assert_str_eq(said("cat w/.git/objects/info/alternates"), "/elsewhere/objects");
}
END_TEST

START_TEST(through_the_alternate_a_ref_can_be_set)
{
	struct repo_id c = write_commit("c", NULL), got;
	_cleanup_(repo_closep) struct repo *r = NULL;
	char hex[REPO_HEX];

	ck_assert_int_eq(mkdir(at("w"), 0777), 0);
	ok(repo_create(at("w"), vault));
	ok(repo_open(at("w"), vault, &r));
	ok(repo_attach(r, vault));
	ok(repo_set_ref(r, "refs/plyfs/main", &c));
	ok(repo_ref(r, "refs/plyfs/main", &got));
	ck_assert(repo_id_is(&c, &got));
	ok(repo_resolve(r, vault, "refs/plyfs/main", &got));
	ck_assert(repo_id_is(&c, &got));
	ok(repo_resolve(NULL, vault, repo_id_hex(&c, hex), &got));
	ck_assert(repo_id_is(&c, &got));
	ck_assert_int_eq(repo_resolve(r, vault, "nobody", &got), 1);
	ck_assert_int_eq(repo_resolve(r, vault, "HEAD^{tree}", &got), 1);
}
END_TEST

/* Another one's writer was faster: its commits are on the ref, and shown. */
START_TEST(who_comes_late_shows_what_is_there_by_then)
{
	struct repo_id a = write_commit("a", NULL), b = write_commit("b", &a), got;
	_cleanup_(repo_closep) struct repo *r = NULL;
	struct commit_queue *late;

	ck_assert_int_eq(mkdir(at("w"), 0777), 0);
	ok(repo_create(at("w"), vault));
	ok(repo_open(at("w"), vault, &r));
	ok(vault_set_ref(vault, "refs/plyfs/x", &a));
	ok(commit_queue_new(at("w"), "refs/plyfs/x", at("vault"), &late));
	commit_queue_start(late, &a);
	ok(vault_set_ref(vault, "refs/plyfs/x", &b));
	ok(repo_attach(r, vault));
	ok(repo_set_ref(r, "refs/plyfs/x", &b));

	commit_queue_sync(late, vault);
	ok(repo_ref(r, "refs/plyfs/x", &got));
	ck_assert(repo_id_is(&got, &b));
	commit_queue_free(late);
}
END_TEST

START_TEST(object_files_are_copied_whole_and_nothing_else_is)
{
	struct ply_list names = { 0 };

	ck_assert_int_eq(mkdir(at("w"), 0777) | mkdir(at("to"), 0777), 0);
	put(at("w/a"), "1");
	ok(repo_create(at("w"), vault));
	put(at("w/.git/objects/pack/tmp_pack_x"), "half");
	put(at("w/.git/objects/pack/pack-x.keep"), "");
	ok(repo_list_objects(at("w/.git/objects"), &names));
	ck_assert_uint_eq(names.n, 4); /* a, .gitkeep, the tree, the commit */
	for (int n = 0;; n++) { /* a part of them would be copied for all */
		_cleanup_(ply_list_free) struct ply_list again = { 0 };
		int r;

		readdir_passes = n;
		r = repo_list_objects(at("w/.git/objects"), &again);
		if (readdir_passes >= 0)
			break;
		ck_assert_int_lt(r, 0);
	}
	readdir_passes = -1;
	ck_assert_int_eq(repo_list_objects(at("w/none"), &names), PLY_NOT_FOUND);
	names.items[0][0] = 'z';       /* vanished meanwhile, or never of that form */
	ok(repo_copy_objects(at("w/.git/objects"), at("to"), names.items, names.n));
	ck_assert_str_eq(said("find to -type f | wc -l"), "3");
	names.items[0][0] = 'f'; /* vanished: what lacks it must not pass for whole */
	names.items[0][1] = 'f';
	ck_assert_int_eq(repo_copy_objects(at("w/.git/objects"), at("to"), names.items, names.n),
			 PLY_NOT_FOUND);
	names.items[0][0] = 'z';
	ok(repo_copy_objects(at("w/.git/objects"), at("to"), names.items, names.n));
	ply_list_free(&names);
}
END_TEST

/* ---- trees ---- */

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
	_cleanup_(repo_reader_closep) struct repo_reader *rd = NULL;
	unsigned seed = (unsigned)_i * 104729 + 5;
	struct repo_id want, got;
	char changed[64];
	int fd;

	ck_assert_int_eq(mkdir(at("w"), 0777) | mkdir(at("other"), 0777), 0);
	for (int i = 0; i < 12; i++) {
		random_change(&seed, at("w"), changed);
		random_change(&seed, at("other"), changed);
	}
	want = fresh(at("other"), true);
	ok(gittree_new(GITTREE_ALL, &t));
	update(t, at("w"), NULL, 0, true);
	ok(repo_reader_open(NULL, vault, &rd));
	fd = open(at("w"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	ok(gittree_apply(t, fd, rd, &want, ""));
	close(fd);
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
	_cleanup_(repo_reader_closep) struct repo_reader *rd = NULL;
	struct repo_id want;
	int fd;

	ck_assert_int_eq(sh("mkdir -p w/deep/node_modules w/.git w/in/.git other/x other/venv &&"
			    "echo 1 >w/deep/node_modules/m; echo 1 >w/.git/config;"
			    "echo 1 >w/in/.git/HEAD; echo 1 >w/in/file; echo 1 >w/gone;"
			    "echo 1 >other/x/y; echo 1 >other/venv/z"),
			 0);
	want = fresh(at("other"), true);
	ok(gittree_new(GITTREE_ALL, &t));
	update(t, at("w"), NULL, 0, true);
	ok(repo_reader_open(NULL, vault, &rd));
	fd = open(at("w"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	ok(gittree_apply(t, fd, rd, &want, "node_modules:venv"));
	close(fd);
	ck_assert_str_eq(said("find w -type f | LC_ALL=C sort | tr '\\n' ' '"),
			 "w/.git/config w/deep/node_modules/m w/in/.git/HEAD w/x/y ");
}
END_TEST

START_TEST(a_symlink_in_the_way_is_not_followed)
{
	_cleanup_(gittree_freep) struct gittree *t = NULL;
	_cleanup_(repo_reader_closep) struct repo_reader *rd = NULL;
	struct repo_id want;
	int fd;

	ck_assert_int_eq(sh("mkdir -p w/d outside other/d && echo 1 >w/d/f && echo 2 >other/d/f &&"
			    "echo mine >outside/f"),
			 0);
	want = fresh(at("other"), true);
	ok(gittree_new(GITTREE_ALL, &t));
	update(t, at("w"), NULL, 0, true);
	/* Changed behind our back. */
	ck_assert_int_eq(sh("rm -r w/d && ln -s ../outside w/d"), 0);
	ok(repo_reader_open(NULL, vault, &rd));
	fd = open(at("w"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	ok(gittree_apply(t, fd, rd, &want, ""));
	close(fd);
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

/* ---- repositories of others ---- */

/* libgit2's git_regexp_match keeps PCRE2's data when nothing matches (a remote's configuration). */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
	return "leak:libpcre2\n";
}

static void make_source(void)
{
	ck_assert_int_eq(sh("git init -q -b trunk source && cd source && echo 1 >a && git add a &&"
			    "git commit -q -m one && git tag v1 && git tag -a -m x annotated &&"
			    "echo 2 >a && git commit -q -a -m two && git checkout -q -b side &&"
			    "echo 3 >a && git commit -q -a -m three && git checkout -q trunk"),
			 0);
}

START_TEST(found_from_below)
{
	struct ply_text found = { 0 };

	make_source();
	ck_assert_int_eq(mkdir(at("source/below"), 0777), 0);
	ok(repo_find(at("source/below"), &found));
	ck_assert_str_eq(found.data, said("cd source && pwd -P"));
	ply_text_free(&found);
	ck_assert_int_eq(repo_find("/", &found), PLY_NOT_FOUND);
	ck_assert_int_eq(repo_find(at("nowhere"), &found), PLY_NOT_FOUND);
}
END_TEST

START_TEST(dirty_is_what_is_tracked_and_changed)
{
	bool dirty = true;

	make_source();
	ok(repo_is_dirty(at("source"), &dirty));
	ck_assert(!dirty);
	put(at("source/untracked"), "1");
	ok(repo_is_dirty(at("source"), &dirty));
	ck_assert(!dirty);
	put(at("source/a"), "changed");
	ok(repo_is_dirty(at("source"), &dirty));
	ck_assert(dirty);
	ck_assert_int_eq(sh("cd source && git add a"), 0);
	ok(repo_is_dirty(at("source"), &dirty));
	ck_assert(dirty);
	ck_assert_int_eq(sh("cd source && git reset -q --hard && git rm -q --cached a"), 0);
	ok(repo_is_dirty(at("source"), &dirty));
	ck_assert(dirty);
	ck_assert_int_eq(repo_is_dirty(at("vault/objects"), &dirty), PLY_NOT_FOUND);
}
END_TEST

START_TEST(a_clone_is_at_the_revision_and_has_nothing_later)
{
	static const struct {
		const char *rev, *is, *commits;
	} wanted[] = {
		{ "HEAD", "trunk", "2" },
		{ "side", "side", "3" },
		{ "v1", "v1", "1" },
		{ "annotated", "v1", "1" },
		{ "refs/heads/trunk", "trunk", "2" },
	};
	const char *one;
	char url[128];

	make_source();
	snprintf(url, sizeof(url), "file://%s/source", top);
	for (size_t i = 0; i < ARRAY_SIZE(wanted); i++) {
		ok(repo_clone_at(url, wanted[i].rev, at("c%zu", i), 1, 60, NULL, NULL));
		ck_assert_str_eq(said("git -C c%zu rev-parse HEAD", i),
				 said("git -C source rev-parse '%s^{commit}'", wanted[i].is));
		ck_assert_str_eq(said("git -C c%zu status --porcelain", i), "");
		ck_assert_str_eq(said("git -C c%zu remote get-url origin", i), url);
		ck_assert_str_eq(said("git -C c%zu symbolic-ref -q HEAD", i), "");
		ck_assert_str_eq(said("cd c%zu && git cat-file --batch-all-objects --batch-check |"
				      "grep -c commit",
				      i),
				 wanted[i].commits);
	}
	/* A commit by its name, whole or not, and an expression. */
	one = said("git -C source rev-parse v1");
	ok(repo_clone_at(url, one, at("by-id"), 0, 0, NULL, NULL));
	ck_assert_str_eq(said("git -C by-id rev-parse HEAD"), one);
	ok(repo_clone_at(url, "trunk~1", at("by-expression"), 0, 0, NULL, NULL));
	ck_assert_str_eq(said("git -C by-expression rev-parse HEAD"), one);
	/* Into a directory that is there and empty. */
	ck_assert_int_eq(mkdir(at("empty"), 0700), 0);
	ok(repo_clone_at(url, "HEAD", at("empty"), 0, 0, NULL, NULL));
}
END_TEST

START_TEST(a_clone_that_fails_leaves_nothing)
{
	char url[128], bad[128];

	make_source();
	snprintf(url, sizeof(url), "file://%s/source", top);
	snprintf(bad, sizeof(bad), "file://%s/nothing-here", top);
	ck_assert_int_eq(repo_clone_at(url, "nobody", at("c"), 0, 0, NULL, NULL), PLY_NOT_FOUND);
	ck_assert_int_lt(access(at("c"), F_OK), 0);
	ck_assert_int_eq(repo_clone_at(url, "0123456789012345678901234567890123456789", at("c"), 0,
				       0, NULL, NULL),
			 PLY_NOT_FOUND);
	ck_assert_int_eq(repo_clone_at(bad, "HEAD", at("c"), 0, 0, NULL, NULL), PLY_REMOTE);
	ck_assert_int_lt(access(at("c"), F_OK), 0);
	ck_assert_int_eq(mkdir(at("c"), 0777), 0);
	ck_assert_int_eq(repo_clone_at(bad, "HEAD", at("c"), 0, 0, NULL, NULL), PLY_REMOTE);
	ck_assert_str_eq(said("find c"), "c");
	put(at("c/mine"), "1");
	ck_assert_int_eq(repo_clone_at(url, "HEAD", at("c"), 0, 0, NULL, NULL), PLY_EXISTS);
	ck_assert_int_eq(access(at("c/mine"), F_OK), 0);
	/* What cannot be listed may hold something, and a clone that fails would remove it. */
	readdir_passes = 0;
	ck_assert_int_eq(repo_clone_at(bad, "HEAD", at("c"), 0, 0, NULL, NULL), PLY_EXISTS);
	ck_assert_int_lt(readdir_passes, 0);
	ck_assert_int_eq(access(at("c/mine"), F_OK), 0);
	/* Out of time before it began. */
	ck_assert_int_eq(repo_clone_at(url, "HEAD", at("late"), 0, 1e-9, NULL, NULL), PLY_TIMEOUT);
	ck_assert_int_lt(access(at("late"), F_OK), 0);
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("repo");

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
	tcase_add_test(t, damaged_trees_are_refused);
	tcase_add_test(t, a_new_repository_has_one_commit_and_an_identity);
	tcase_add_test(t, what_cannot_be_understood_is_no_repository);
	tcase_add_test(t, what_cannot_be_looked_at_may_be_a_repository);
	tcase_add_test(t, a_git_file_leads_to_the_repository);
	tcase_add_test(t, other_alternates_are_left_alone);
	tcase_add_test(t, through_the_alternate_a_ref_can_be_set);
	tcase_add_test(t, who_comes_late_shows_what_is_there_by_then);
	tcase_add_test(t, object_files_are_copied_whole_and_nothing_else_is);
	tcase_add_loop_test(t, a_step_gives_the_tree_that_a_fresh_look_gives, 0, 8);
	tcase_add_loop_test(t, any_tree_can_be_made_of_any_other, 0, 12);
	tcase_add_test(t, a_failure_leaves_nothing_out_of_a_tree);
	tcase_add_test(t, excluded_directories_and_repositories_are_left_alone);
	tcase_add_test(t, a_symlink_in_the_way_is_not_followed);
	tcase_add_test(t, deep_and_long_paths_are_left_to_the_snapshot);
	tcase_add_test(t, found_from_below);
	tcase_add_test(t, dirty_is_what_is_tracked_and_changed);
	tcase_add_test(t, a_clone_is_at_the_revision_and_has_nothing_later);
	tcase_add_test(t, a_clone_that_fails_leaves_nothing);
	return run_case("env_repo", t);
}
