/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The vault: a bare repository of our own, where the commits of checkpoints are. It stands beside
 * the snapshots of a store, for all environments of that store, and is written by any number of
 * processes: packs have names that never clash, refs and the merging of packs are under a lock.
 *
 * Of a crash while a pack is written, files without a name that git looks for are left; while
 * packs are merged, some objects are there twice.
 */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>

#include "env/repo_internal.h"

/* In the place of the user's configuration: nothing is ignored or converted for his sake. */
static const char defaults[] = "[core]\n"
			       "\texcludesFile = /dev/null\n"
			       "\tattributesFile = /dev/null\n"
			       "\tlogAllRefUpdates = false\n";

int write_file(const char *path, const void *data, size_t len)
{
	_cleanup_free_ char *temporary = NULL;
	_cleanup_close_ int fd = -1;
	int r;

	if (asprintf(&temporary, "%s.%ld.tmp", path, (long)gettid()) < 0)
		return fail_memory();
	fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
	if (fd < 0)
		return fail_errno(errno, "writing '%s'", path);
	r = write_all(fd, data, len);
	if (r < 0)
		r = fail_errno(-r, "writing '%s'", path);
	else if (rename(temporary, path) < 0)
		r = fail_errno(errno, "writing '%s'", path);
	if (r < 0)
		(void)unlink(temporary);
	return r;
}

static int add_config(git_config *config, const char *dir, const char *name,
		      git_config_level_t level)
{
	_cleanup_free_ char *path = NULL;
	int r;

	if (asprintf(&path, "%s%s%s", dir, dir[strlen(dir) - 1] == '/' ? "" : "/", name) < 0)
		return fail_memory();
	r = git_config_add_file_ondisk(config, path, level, NULL, false);
	if (r < 0 && r != GIT_ENOTFOUND)
		return fail(PLY_FAILED, "configuration '%s': %s", path, git_why());
	return 0;
}

int own_config(git_repository *repo, const char *dir, const char *vault, git_config **ret)
{
	_cleanup_(git_configp) git_config *config = NULL;
	int r;

	if (git_config_new(&config) < 0)
		return fail_memory();
	r = add_config(config, vault, "defaults", GIT_CONFIG_LEVEL_GLOBAL);
	if (r == 0)
		r = add_config(config, dir, "config", GIT_CONFIG_LEVEL_LOCAL);
	if (r < 0)
		return r;
	if (git_repository_set_config(repo, config) < 0)
		return fail(PLY_FAILED, "configuration of '%s': %s", dir, git_why());
	*ret = TAKE_PTR(config);
	return 0;
}

static void vault_closep(struct vault **v)
{
	vault_close(*v);
}

/* Said, since the lock is not over by close() when the caller has forked meanwhile. */
static void vault_unlockp(int *lock)
{
	if (*lock >= 0)
		(void)flock(*lock, LOCK_UN);
	closep(lock);
}

/* flock of the vault, for vault_unlockp; -1: errno says why (EWOULDBLOCK with LOCK_NB). */
static int vault_lock(struct vault *v, int how)
{
	_cleanup_free_ char *path = NULL;
	_cleanup_close_ int fd = -1;

	if (asprintf(&path, "%s/lock", v->path) < 0)
		return -1;
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	if (fd < 0 || flock(fd, how) < 0)
		return -1;
	return TAKE_FD(fd);
}

/* file: the last that is made; whoever has the lock first makes it all. */
static int vault_make(struct vault *v, const char *file)
{
	_cleanup_(git_repositoryp) git_repository *repo = NULL;
	git_repository_init_options options = GIT_REPOSITORY_INIT_OPTIONS_INIT;
	_cleanup_(vault_unlockp) int lock = -1;

	if (mkdir(v->path, 0777) == 0 || errno == EEXIST)
		lock = vault_lock(v, LOCK_EX);
	if (lock < 0)
		return fail_errno(errno, "making the repository of checkpoints '%s'", v->path);
	if (access(file, F_OK) == 0)
		return 0;
	options.flags = GIT_REPOSITORY_INIT_BARE;
	options.initial_head = "main";
	if (git_repository_init_ext(&repo, v->path, &options) < 0)
		return fail(PLY_FAILED, "making the repository of checkpoints '%s': %s", v->path,
			    git_why());
	return write_file(file, defaults, sizeof(defaults) - 1);
}

int vault_open(const char *path, struct vault **ret)
{
	_cleanup_(vault_closep) struct vault *v = calloc(1, sizeof(*v));
	_cleanup_free_ char *file = NULL;
	int r;

	use_libgit2();
	if (!v || !(v->path = strdup(path)) || asprintf(&file, "%s/defaults", path) < 0)
		return fail_memory();
	if (access(file, F_OK) < 0) {
		r = vault_make(v, file);
		if (r < 0)
			return r;
	}
	if (git_repository_open_bare(&v->repo, path) < 0)
		return fail(PLY_FAILED, "the repository of checkpoints '%s': %s", path, git_why());
	r = own_config(v->repo, path, path, &v->config);
	if (r < 0)
		return r;
	if (git_repository_odb(&v->odb, v->repo) < 0)
		return fail(PLY_FAILED, "the repository of checkpoints '%s': %s", path, git_why());
	*ret = TAKE_PTR(v);
	return 0;
}

void vault_close(struct vault *v)
{
	if (!v)
		return;
	git_odb_free(v->odb);
	git_repository_free(v->repo);
	git_config_free(v->config);
	free(v->path);
	free(v);
}

const char *vault_path(const struct vault *v)
{
	return v->path;
}

static int sync_path(const char *path)
{
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);

	return fd < 0 || fsync(fd) < 0 ? fail_errno(errno, "writing '%s'", path) : 0;
}

int write_pack(git_packbuilder *pb, const char *dir, char ret_name[static NAME_MAX])
{
	char path[PATH_MAX];
	int r;

	if (snprintf(path, sizeof(path), "%s/objects/pack", dir) >= (int)sizeof(path) - NAME_MAX)
		return fail_errno(ENAMETOOLONG, "'%s'", dir);
	if (git_packbuilder_write(pb, path, 0, NULL, NULL) < 0)
		return fail(PLY_FAILED, "writing a pack in '%s': %s", path, git_why());
	snprintf(ret_name, NAME_MAX, "pack-%s", git_packbuilder_name(pb));
	for (int i = 0; i < 3; i++) {
		static const char *const ends[] = { ".pack", ".idx" };

		if (i < 2)
			snprintf(path, sizeof(path), "%s/objects/pack/%s%s", dir, ret_name,
				 ends[i]);
		else
			snprintf(path, sizeof(path), "%s/objects/pack", dir);
		r = sync_path(path);
		if (r < 0)
			return r;
	}
	return 0;
}

/* ---- many small packs become one ---- */

#define PACKS_OF_A_SIZE 16 /* so that git looks into few: at most 15 for each factor of 16 */

struct pack_file {
	char name[NAME_MAX]; /* without its ending */
	unsigned tier;
};

/* 0 up to 64 KiB, one more for each factor of 16. */
static unsigned pack_tier(off_t size)
{
	unsigned tier = 0;

	for (off_t limit = 65536; size > limit && tier < 15; limit *= 16)
		tier++;
	return tier;
}

static size_t list_packs(const char *dir, struct pack_file **ret)
{
	struct pack_file *packs = NULL;
	size_t n = 0;
	DIR *d = opendir(dir);
	struct dirent *e;

	while (d && (e = readdir(d))) {
		size_t len = strlen(e->d_name);
		struct pack_file *p;
		struct stat st;

		if (len < 6 || strcmp(e->d_name + len - 5, ".pack") != 0 ||
		    fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
			continue;
		p = realloc(packs, (n + 1) * sizeof(*p));
		if (!p)
			break;
		packs = p;
		snprintf(packs[n].name, sizeof(packs[n].name), "%.*s", (int)len - 5, e->d_name);
		packs[n++].tier = pack_tier(st.st_size);
	}
	if (d)
		closedir(d);
	*ret = packs;
	return n;
}

static int insert_id(const git_oid *id, void *arg)
{
	return git_packbuilder_insert(arg, id, NULL);
}

static int insert_pack(git_packbuilder *pb, const char *dir, const char *name)
{
	_cleanup_(git_odbp) git_odb *odb = NULL;
	git_odb_backend *backend;
	char path[PATH_MAX];

	if (snprintf(path, sizeof(path), "%s/%s.idx", dir, name) >= (int)sizeof(path) ||
	    git_odb_new(&odb) < 0 || git_odb_backend_one_pack(&backend, path) < 0 ||
	    git_odb_add_backend(odb, backend, 1) < 0)
		return -1;
	return git_odb_foreach(odb, insert_id, pb);
}

static void remove_pack(const char *dir, const char *name)
{
	static const char *const ends[] = { ".idx", ".pack" }; /* none without its data */
	char path[PATH_MAX];

	for (size_t i = 0; i < ARRAY_SIZE(ends); i++)
		if (snprintf(path, sizeof(path), "%s/%s%s", dir, name, ends[i]) < (int)sizeof(path))
			(void)unlink(path); /* what stays is there twice */
}

static int merge_packs(struct vault *v, const char *dir, const struct pack_file *packs, size_t n,
		       unsigned tier)
{
	_cleanup_(git_packbuilderp) git_packbuilder *pb = NULL;
	char name[NAME_MAX];
	int r;

	if (git_packbuilder_new(&pb, v->repo) < 0)
		return -1;
	for (size_t i = 0; i < n; i++)
		if (packs[i].tier == tier && insert_pack(pb, dir, packs[i].name) < 0)
			return -1;
	r = write_pack(pb, v->path, name);
	if (r < 0)
		return r;
	for (size_t i = 0; i < n; i++)
		if (packs[i].tier == tier && strcmp(packs[i].name, name) != 0)
			remove_pack(dir, packs[i].name);
	return 0;
}

/* libgit2 has packs open as long as the object database that has met them, removed ones as well. */
static void forget_removed_packs(struct vault *v)
{
	_cleanup_(vault_closep) struct vault *fresh = NULL;
	struct vault old = *v;

	if (vault_open(v->path, &fresh) < 0)
		return; /* those of the next merge are forgotten with these */
	v->repo = fresh->repo;
	v->odb = fresh->odb;
	v->config = fresh->config;
	fresh->repo = old.repo;
	fresh->odb = old.odb;
	fresh->config = old.config;
}

/* A failure leaves all as it was, and is no failure of who wanted to write. */
static void tidy_packs(struct vault *v)
{
	_cleanup_free_ struct pack_file *packs = NULL;
	_cleanup_(vault_unlockp) int lock = vault_lock(v, LOCK_EX | LOCK_NB);
	unsigned count[16] = { 0 };
	bool merged = false;
	char dir[PATH_MAX];
	size_t n;

	if (lock < 0 || snprintf(dir, sizeof(dir), "%s/objects/pack", v->path) >= (int)sizeof(dir))
		return;
	n = list_packs(dir, &packs);
	for (size_t i = 0; i < n; i++)
		count[packs[i].tier]++;
	for (unsigned t = 0; t < ARRAY_SIZE(count); t++)
		if (count[t] >= PACKS_OF_A_SIZE)
			merged |= merge_packs(v, dir, packs, n, t) == 0;
	if (merged)
		forget_removed_packs(v);
}

/* Under a lock that merging does not get: a pack that goes is in another that was not listed. */
int vault_copy_objects(struct vault *v, const char *to)
{
	_cleanup_(vault_unlockp) int lock = vault_lock(v, LOCK_SH);
	_cleanup_(ply_list_free) struct ply_list names = { 0 };
	_cleanup_free_ char *from = NULL;
	int r;

	if (lock < 0)
		return fail_errno(errno, "locking '%s'", v->path);
	if (asprintf(&from, "%s/objects", v->path) < 0)
		return fail_memory();
	r = repo_list_objects(from, &names);
	return r < 0 ? r : repo_copy_objects(from, to, names.items, names.n);
}

/* ---- writing ---- */

/* In order of id, each once, without what the vault has. */
static size_t choose_objects(struct vault *v, struct repo_object **objects, size_t n)
{
	size_t kept = 0;

	qsort(objects, n, sizeof(*objects), compare_objects);
	for (size_t i = 0; i < n; i++)
		if ((kept == 0 || !git_oid_equal(&objects[kept - 1]->id, &objects[i]->id)) &&
		    !git_odb_exists_ext(v->odb, &objects[i]->id, GIT_ODB_LOOKUP_NO_REFRESH))
			objects[kept++] = objects[i];
	return kept;
}

/* A repository with the vault's settings and no objects but these. */
static int open_batch(struct vault *v, struct repo_object **objects, size_t n, git_repository **ret)
{
	_cleanup_(git_repositoryp) git_repository *repo = NULL;
	_cleanup_(git_odbp) git_odb *odb = NULL;
	int r = objects_as_odb(objects, n, &odb);

	if (r < 0)
		return r;
	if (git_repository_open_bare(&repo, v->path) < 0 ||
	    git_repository_set_config(repo, v->config) < 0 || git_repository_set_odb(repo, odb) < 0)
		return fail(PLY_FAILED, "the repository of checkpoints '%s': %s", v->path,
			    git_why());
	*ret = TAKE_PTR(repo);
	return 0;
}

int vault_write(struct vault *v, struct repo_batch *const *batches, size_t n)
{
	_cleanup_(git_packbuilderp) git_packbuilder *pb = NULL;
	_cleanup_(git_repositoryp) git_repository *repo = NULL;
	_cleanup_free_ struct repo_object **objects = NULL;
	char name[NAME_MAX];
	size_t all = 0, count = 0;
	int r;

	for (size_t i = 0; i < n; i++)
		all += batches[i]->n;
	objects = calloc(MAX(all, (size_t)1), sizeof(*objects));
	if (!objects)
		return fail_memory();
	for (size_t i = 0; i < n; i++)
		for (size_t o = 0; o < batches[i]->n; o++)
			objects[count++] = &batches[i]->objects[o];
	count = choose_objects(v, objects, count);
	if (count == 0)
		return 0;

	r = open_batch(v, objects, count, &repo);
	if (r < 0)
		return r;
	if (git_packbuilder_new(&pb, repo) < 0)
		return fail(PLY_FAILED, "packing: %s", git_why());
	for (size_t i = 0; i < count; i++)
		if (git_packbuilder_insert(pb, &objects[i]->id, objects[i]->path) < 0)
			return fail(PLY_FAILED, "packing: %s", git_why());
	r = write_pack(pb, v->path, name);
	if (r < 0)
		return r;
	(void)git_odb_refresh(v->odb);
	tidy_packs(v);
	return 0;
}

/* ---- refs ---- */

int ref_id(git_repository *repo, const char *ref, struct repo_id *ret)
{
	git_oid oid;
	int r = git_reference_name_to_id(&oid, repo, ref);

	if (r == GIT_ENOTFOUND)
		return 1;
	if (r < 0)
		return fail(PLY_FAILED, "'%s': %s", ref, git_why());
	*ret = of_oid(&oid);
	return 0;
}

#define LOCK_TRIES 400
#define LOCK_WAIT_NS 10000000 /* 4 s in all: longer than it takes to be stale, in whole seconds */
#define LOCK_STALE_SECONDS 2 /* git holds one for milliseconds */

/* A lock that whoever was killed left, or that a snapshot holds: 0 when it was removed. */
static int break_lock(git_repository *repo, const char *ref)
{
	char path[PATH_MAX];
	struct stat st;

	if (snprintf(path, sizeof(path), "%s%s.lock", git_repository_commondir(repo), ref) >=
		    (int)sizeof(path) ||
	    stat(path, &st) < 0 || time(NULL) - st.st_mtime < LOCK_STALE_SECONDS)
		return -1;
	return unlink(path);
}

/* Somebody may hold the ref's lock for a moment (git pack-refs, git gc). */
int set_ref(git_repository *repo, const char *ref, const struct repo_id *id)
{
	const struct timespec moment = { .tv_nsec = LOCK_WAIT_NS };
	git_oid oid = to_oid(id);
	int r = GIT_ELOCKED;

	for (int tries = 0; r == GIT_ELOCKED && tries < LOCK_TRIES; tries++) {
		_cleanup_(git_referencep) git_reference *made = NULL;

		if (tries > 0 && break_lock(repo, ref) < 0)
			nanosleep(&moment, NULL);
		r = git_reference_create(&made, repo, ref, &oid, true, NULL);
	}
	return r < 0 ? fail(PLY_FAILED, "setting '%s': %s", ref, git_why()) : 0;
}

int vault_ref(struct vault *v, const char *ref, struct repo_id *ret)
{
	return ref_id(v->repo, ref, ret);
}

/* The commit *id again, with `other` as a second parent. */
static int merge(struct vault *v, const struct repo_id *other, struct repo_id *id)
{
	_cleanup_(git_commitp) git_commit *commit = NULL;
	char ours[REPO_HEX], theirs[REPO_HEX];
	_cleanup_free_ char *text = NULL;
	git_oid oid = to_oid(id), made;
	int len;

	if (git_commit_lookup(&commit, v->repo, &oid) < 0)
		return fail(PLY_FAILED, "commit %s: %s", repo_id_hex(id, ours), git_why());
	len = asprintf(
		&text,
		"tree %s\nparent %s\nparent %s\n"
		"author Chimera <chimera@local> %lld +0000\n"
		"committer Chimera <chimera@local> %lld +0000\n\njoin two lines of checkpoints\n",
		git_oid_tostr_s(git_commit_tree_id(commit)), repo_id_hex(id, ours),
		repo_id_hex(other, theirs), (long long)git_commit_time(commit),
		(long long)git_commit_time(commit));
	if (len < 0)
		return fail_memory();
	if (git_odb_write(&made, v->odb, text, (size_t)len, GIT_OBJECT_COMMIT) < 0)
		return fail(PLY_FAILED, "writing a commit: %s", git_why());
	*id = of_oid(&made);
	return 0;
}

int vault_set_ref(struct vault *v, const char *ref, struct repo_id *id)
{
	_cleanup_(vault_unlockp) int lock = vault_lock(v, LOCK_EX);
	struct repo_id now, next = *id;
	git_oid a, b;
	int r;

	if (lock < 0)
		return fail_errno(errno, "locking '%s'", v->path);
	r = ref_id(v->repo, ref, &now);
	if (r < 0)
		return r;
	if (r == 0) {
		a = to_oid(id);
		b = to_oid(&now);
		if (git_oid_equal(&a, &b))
			return 0;
		r = git_graph_descendant_of(v->repo, &b, &a);
		if (r > 0) {
			*id = now;
			return 0;
		}
		r = git_graph_descendant_of(v->repo, &a, &b);
		if (r == 0)
			r = merge(v, &now, &next);
		else if (r < 0)
			r = fail(PLY_FAILED, "'%s': %s", ref, git_why());
		if (r < 0)
			return r;
	}
	r = set_ref(v->repo, ref, &next);
	if (r == 0)
		*id = next;
	return r;
}

/*
 * Without the vault's lock, which is held while packs are merged. Of two who do this the last to
 * set looks again after that: it sees what the other one, or anybody before, made of the vault's.
 */
int vault_show_ref(struct vault *v, const char *ref, struct repo *repo)
{
	struct repo_id shown, now;
	int r = ref_id(v->repo, ref, &now);

	while (r == 0) {
		shown = now;
		r = repo_set_ref(repo, ref, &shown);
		if (r == 0)
			r = ref_id(v->repo, ref, &now);
		if (r == 0 && repo_id_is(&now, &shown))
			break;
	}
	return MIN(r, 0);
}

bool repo_ref_ok(const char *ref)
{
	int valid = 0;

	use_libgit2();
	return git_reference_name_is_valid(&valid, ref) == 0 && valid &&
	       strncmp(ref, "refs/", 5) == 0 && strncmp(ref, "refs/heads/", 11) != 0;
}

int vault_drop_ref(struct vault *v, const char *ref)
{
	int r = git_reference_remove(v->repo, ref);

	return r < 0 && r != GIT_ENOTFOUND ? fail(PLY_FAILED, "'%s': %s", ref, git_why()) : 0;
}
