/* SPDX-License-Identifier: Apache-2.0 */

/* A work tree's own repository: made, found, looked at, and given sight of the vault. */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "env/repo_internal.h"

struct repo {
	git_repository *git; /* owned */
	git_config *config;  /* owned */
};

static bool is_absence(int err)
{
	/* No repository has a path that is too long, or one that leads round in a circle. */
	return err == ENOENT || err == ENOTDIR || err == ELOOP || err == ENAMETOOLONG;
}

/* What a .git file names, or the .git directory itself. 1: there is neither. */
static int find_git_dir(const char *workdir, char ret[static PATH_MAX])
{
	_cleanup_close_ int fd = -1;
	char text[PATH_MAX + 16];
	const char *target;
	struct stat st;
	ssize_t n;

	if (snprintf(ret, PATH_MAX, "%s/.git", workdir) >= PATH_MAX)
		return 1;
	if (stat(ret, &st) < 0)
		return is_absence(errno) ? 1 : fail_errno(errno, "looking at '%s'", ret);
	if (!S_ISREG(st.st_mode))
		return S_ISDIR(st.st_mode) ? 0 : 1;
	fd = open(ret, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	if (n < 0)
		return fail_errno(errno, "reading '%s'", ret);
	text[n] = '\0';
	text[strcspn(text, "\r\n")] = '\0';
	if (strncmp(text, "gitdir: ", 8) != 0)
		return 1;
	target = text + 8;
	if (snprintf(ret, PATH_MAX, "%s%s%s", *target == '/' ? "" : workdir,
		     *target == '/' ? "" : "/", target) >= PATH_MAX)
		return 1;
	return 0;
}

/*
 * After libgit2 refused to open dir: 1 where that is for what the repository is, a failure where
 * the system did not let it look. libgit2 itself takes every failing stat for absence.
 */
static int why_not_opened(int r, const char *dir)
{
	static const char *const parts[] = { "HEAD", "objects", "refs", "commondir", "config" };
	const git_error *e = git_error_last();
	char path[PATH_MAX];
	struct stat st;

	for (size_t i = 0; i < ARRAY_SIZE(parts); i++)
		if (snprintf(path, sizeof(path), "%s/%s", dir, parts[i]) < (int)sizeof(path) &&
		    stat(path, &st) < 0 && !is_absence(errno))
			return fail_errno(errno, "looking at '%s'", path);
	/* An unknown version or extension is REPOSITORY's; of CONFIG only bad syntax is damage. */
	if (r == GIT_ENOTFOUND || (e && e->klass == GIT_ERROR_REPOSITORY) ||
	    (e && e->klass == GIT_ERROR_CONFIG && strstr(git_why(), "parse")))
		return 1;
	return fail(PLY_FAILED, "repository '%s': %s", dir, git_why());
}

/* Whether object names and refs are of the forms that libgit2 and we know; 1: they are not. */
static int check_form(git_config *config)
{
	static const char *const keys[][2] = { { "extensions.objectformat", "sha1" },
					       { "extensions.refstorage", "files" } };

	for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
		git_buf value = { 0 };
		int r = git_config_get_string_buf(&value, config, keys[i][0]);
		bool known = r == GIT_ENOTFOUND || (r == 0 && !strcasecmp(value.ptr, keys[i][1]));

		git_buf_dispose(&value);
		if (r < 0 && r != GIT_ENOTFOUND)
			return fail(PLY_FAILED, "'%s': %s", keys[i][0], git_why());
		if (!known)
			return 1;
	}
	return 0;
}

int repo_open(const char *workdir, struct vault *v, struct repo **ret)
{
	_cleanup_(repo_closep) struct repo *r = calloc(1, sizeof(*r));
	char dir[PATH_MAX];
	int e;

	use_libgit2();
	if (!r)
		return fail_memory();
	e = find_git_dir(workdir, dir);
	if (e != 0)
		return e;
	e = git_repository_open_bare(&r->git, dir);
	if (e < 0)
		return why_not_opened(e, dir);
	e = own_config(r->git, git_repository_commondir(r->git), v->path, &r->config);
	if (e < 0)
		return e == PLY_NO_MEMORY ? e : why_not_opened(e, dir);
	e = check_form(r->config);
	if (e != 0)
		return e;
	if (git_repository_set_workdir(r->git, workdir, false) < 0)
		return fail(PLY_FAILED, "repository '%s': %s", dir, git_why());
	*ret = TAKE_PTR(r);
	return 0;
}

void repo_close(struct repo *r)
{
	if (!r)
		return;
	git_repository_free(r->git);
	git_config_free(r->config);
	free(r);
}

const char *repo_git_dir(const struct repo *r)
{
	return git_repository_path(r->git);
}

const char *repo_common_dir(const struct repo *r)
{
	return git_repository_commondir(r->git);
}

static int make_initial(struct repo *r)
{
	_cleanup_(git_signaturep) git_signature *who = NULL;
	_cleanup_(git_indexp) git_index *index = NULL;
	_cleanup_(git_treep) git_tree *tree = NULL;
	git_oid tree_id, commit;

	if (git_config_set_string(r->config, "user.email", "chimera@local") < 0 ||
	    git_config_set_string(r->config, "user.name", "Chimera") < 0 ||
	    git_signature_now(&who, "Chimera", "chimera@local") < 0 ||
	    git_repository_index(&index, r->git) < 0 ||
	    git_index_add_all(index, NULL, GIT_INDEX_ADD_DEFAULT, NULL, NULL) < 0 ||
	    git_index_write(index) < 0 || git_index_write_tree(&tree_id, index) < 0 ||
	    git_tree_lookup(&tree, r->git, &tree_id) < 0)
		return -1;
	return git_commit_create(&commit, r->git, "HEAD", who, who, NULL, "initial\n", tree, 0,
				 NULL);
}

int repo_create(const char *workdir, struct vault *v)
{
	_cleanup_(git_repositoryp) git_repository *made = NULL;
	git_repository_init_options options = GIT_REPOSITORY_INIT_OPTIONS_INIT;
	_cleanup_(repo_closep) struct repo *r = NULL;
	_cleanup_free_ char *keep = NULL;
	_cleanup_close_ int fd = -1;
	int e;

	use_libgit2();
	options.flags = GIT_REPOSITORY_INIT_NO_REINIT | GIT_REPOSITORY_INIT_MKDIR;
	options.initial_head = "main";
	if (git_repository_init_ext(&made, workdir, &options) < 0)
		return fail(PLY_FAILED, "git init in '%s': %s", workdir, git_why());
	if (asprintf(&keep, "%s/.gitkeep", workdir) < 0)
		return fail_memory();
	fd = open(keep, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
	if (fd < 0 && errno != ELOOP)
		return fail_errno(errno, "writing '%s'", keep);
	e = repo_open(workdir, v, &r);
	if (e < 0)
		return e;
	if (e > 0 || make_initial(r) < 0)
		return fail(PLY_FAILED, "the initial commit in '%s': %s", workdir, git_why());
	return 0;
}

/* What would end a header's field early is left out, as git does. */
static int take_ident(git_config *config, const char *key, const char *otherwise,
		      struct ply_text *ret)
{
	git_buf value = { 0 };
	int r;

	r = git_config_get_string_buf(&value, config, key);
	if (r == 0)
		for (char *in = value.ptr, *out = value.ptr;; in++) {
			if (strchr("<>\n", *in) && *in)
				continue;
			*out++ = *in;
			if (!*in)
				break;
		}
	if (r < 0 || !value.ptr[0])
		r = text_set(ret, otherwise, strlen(otherwise));
	else
		r = text_set(ret, value.ptr, strlen(value.ptr));
	git_buf_dispose(&value);
	return r;
}

int repo_identity(struct repo *r, const char *name, const char *email, struct ply_text *ret_name,
		  struct ply_text *ret_email)
{
	int e = take_ident(r->config, "user.name", name, ret_name);

	return e < 0 ? e : take_ident(r->config, "user.email", email, ret_email);
}

int repo_ref(struct repo *r, const char *ref, struct repo_id *ret)
{
	return ref_id(r->git, ref, ret);
}

int repo_set_ref(struct repo *r, const char *ref, const struct repo_id *id)
{
	struct repo_id now;
	int e = ref_id(r->git, ref, &now);

	if (e < 0 || (e == 0 && repo_id_is(&now, id)))
		return e;
	return set_ref(r->git, ref, id);
}

/* The alternates file: its text without the vault's line. 1: the line was there. */
static int read_alternates(const char *path, const char *line, struct ply_text *ret)
{
	_cleanup_fclose_ FILE *f = fopen(path, "re");
	_cleanup_free_ char *buf = NULL;
	size_t cap = 0;
	ssize_t n = 0;
	int r, found = 0;

	if (!f && errno != ENOENT && errno != ENOTDIR)
		return fail_errno(errno, "'%s'", path);
	r = text_set(ret, "", 0);
	/* What is read in part would be written in part. */
	while (f && r == 0 && (errno = 0, n = getline(&buf, &cap, f)) > 0) {
		size_t len = (size_t)n - (buf[n - 1] == '\n');

		if (len == strlen(line) && memcmp(buf, line, len) == 0) {
			found = 1;
			continue;
		}
		r = text_append(ret, buf, len);
		if (r == 0)
			r = text_append(ret, "\n", 1);
	}
	if (n < 0 && errno)
		return fail_errno(errno, "reading '%s'", path);
	return r < 0 ? r : found;
}

/* The vault's line in an alternates file. */
static bool alternate_line(const struct vault *v, char ret[static PATH_MAX])
{
	return snprintf(ret, PATH_MAX, "%s/objects", v->path) < PATH_MAX;
}

static int set_alternate(struct repo *r, struct vault *v, bool wanted)
{
	_cleanup_(ply_text_free) struct ply_text text = { 0 };
	char info[PATH_MAX], path[PATH_MAX], line[PATH_MAX];
	int e;

	if (snprintf(info, sizeof(info), "%sobjects/info", repo_common_dir(r)) >=
		    (int)sizeof(info) - 16 ||
	    !alternate_line(v, line))
		return fail_errno(ENAMETOOLONG, "'%s'", repo_common_dir(r));
	if (strchr(line, '\n') || line[0] == '"')
		return fail(PLY_INVALID,
			    "git cannot name '%s': use a store whose path has no newline", line);
	snprintf(path, sizeof(path), "%.*s/alternates", PATH_MAX - 16, info);
	e = read_alternates(path, line, &text);
	if (e < 0 || (e == 1) == wanted)
		return e < 0 ? e : 0;
	if (wanted) {
		e = text_append(&text, line, strlen(line));
		if (e == 0)
			e = text_append(&text, "\n", 1);
		if (e < 0)
			return e;
	}
	if (text.len == 0)
		return unlink(path) < 0 ? fail_errno(errno, "removing '%s'", path) : 0;
	if (mkdir(info, 0777) < 0 && errno != EEXIST)
		return fail_errno(errno, "making '%s'", info);
	return write_file(path, text.data, text.len);
}

int repo_attach(struct repo *r, struct vault *v)
{
	return set_alternate(r, v, true);
}

int repo_detach(struct repo *r, struct vault *v)
{
	return set_alternate(r, v, false);
}

int repo_is_attached(const char *workdir, struct vault *v)
{
	_cleanup_(ply_text_free) struct ply_text text = { 0 };
	char dir[PATH_MAX], path[PATH_MAX + 32], line[PATH_MAX];
	int e = find_git_dir(workdir, dir);

	if (e != 0 || !alternate_line(v, line))
		return MIN(e, 0);
	(void)snprintf(path, sizeof(path), "%s/objects/info/alternates", dir); /* it fits */
	return read_alternates(path, line, &text);
}

int repo_copy_history(struct repo *r, const struct repo_id *id, struct vault *v)
{
	_cleanup_(git_packbuilderp) git_packbuilder *pb = NULL;
	_cleanup_(git_revwalkp) git_revwalk *walk = NULL;
	git_oid oid = to_oid(id);
	char name[NAME_MAX];
	int e;

	if (git_odb_exists(v->odb, &oid))
		return 0; /* then all that it needs is there: invariant 4 */
	if (git_packbuilder_new(&pb, r->git) < 0 || git_revwalk_new(&walk, r->git) < 0 ||
	    git_revwalk_push(walk, &oid) < 0 || git_packbuilder_insert_walk(pb, walk) < 0)
		return fail(PLY_FAILED, "reading earlier checkpoints: %s", git_why());
	e = write_pack(pb, v->path, name);
	(void)git_odb_refresh(v->odb);
	return e;
}

int repo_is_ignored(struct repo *r, const char *path, bool *ret)
{
	int ignored = 0;

	if (git_ignore_path_is_ignored(&ignored, r->git, path) < 0)
		return fail(PLY_FAILED, "whether '%s' is ignored: %s", path, git_why());
	*ret = ignored;
	return 0;
}

#define INDEX_LEAST 32 /* its header, and the hash at its end */

/* After libgit2 refused an index: 1 where that is for what it holds. */
static int why_not_read(const char *index_file)
{
	const git_error *e = git_error_last();
	const char *why = git_why();
	struct stat st;

	if (stat(index_file, &st) == 0 && st.st_size < INDEX_LEAST)
		return 1;
	if (e && e->klass == GIT_ERROR_INDEX &&
	    (strstr(why, "invalid data") || strstr(why, "unsupported")))
		return 1;
	return fail(PLY_FAILED, "the repository's index: %s", why);
}

int repo_index_each(const char *index_file,
		    int (*fn)(void *arg, const char *path, unsigned mode, const struct repo_id *id),
		    void *arg)
{
	_cleanup_(git_indexp) git_index *index = NULL;
	const char *last = "";
	int e = 0;

	use_libgit2();
	if (access(index_file, F_OK) < 0 && errno == ENOENT)
		return 0;
	if (git_index_open(&index, index_file) < 0 || git_index_read(index, true) < 0)
		return why_not_read(index_file);
	for (size_t i = 0, n = git_index_entrycount(index); i < n && e == 0; i++) {
		const git_index_entry *entry = git_index_get_byindex(index, i);
		struct repo_id id = of_oid(&entry->id);

		if (strcmp(entry->path, last) != 0) /* else a further stage of a conflict */
			e = fn(arg, entry->path, entry->mode, &id);
		last = entry->path;
	}
	return e;
}

static int resolve_in(git_repository *repo, const char *rev, struct repo_id *ret)
{
	_cleanup_(git_objectp) git_object *object = NULL, *commit = NULL;

	if (git_revparse_single(&object, repo, rev) < 0 ||
	    git_object_peel(&commit, object, GIT_OBJECT_COMMIT) < 0)
		return 1;
	*ret = of_oid(git_object_id(commit));
	return 0;
}

int repo_resolve(struct repo *r, struct vault *v, const char *rev, struct repo_id *ret)
{
	if (r && resolve_in(r->git, rev, ret) == 0)
		return 0;
	return resolve_in(v->repo, rev, ret);
}

/* ---- reading ---- */

struct repo_reader {
	git_odb *odb; /* owned */
};

int repo_reader_open(struct repo *r, struct vault *v, struct repo_reader **ret)
{
	_cleanup_(repo_reader_closep) struct repo_reader *rd = calloc(1, sizeof(*rd));
	char path[PATH_MAX];

	if (!rd)
		return fail_memory();
	if (git_odb_new(&rd->odb) < 0 ||
	    snprintf(path, sizeof(path), "%s/objects", v->path) >= (int)sizeof(path) ||
	    git_odb_add_disk_alternate(rd->odb, path) < 0)
		return fail(PLY_FAILED, "opening objects: %s", git_why());
	if (r && snprintf(path, sizeof(path), "%sobjects", repo_common_dir(r)) < (int)sizeof(path))
		(void)git_odb_add_disk_alternate(rd->odb, path); /* broken: the vault's remain */
	*ret = TAKE_PTR(rd);
	return 0;
}

void repo_reader_close(struct repo_reader *rd)
{
	if (!rd)
		return;
	git_odb_free(rd->odb);
	free(rd);
}

int repo_read(struct repo_reader *rd, const struct repo_id *id, enum repo_type type,
	      struct ply_text *ret)
{
	_cleanup_(git_odb_objectp) git_odb_object *object = NULL;
	git_oid oid = to_oid(id);
	char hex[REPO_HEX];

	if (git_odb_read(&object, rd->odb, &oid) < 0)
		return fail(PLY_FAILED, "object %s: %s", repo_id_hex(id, hex), git_why());
	if (git_odb_object_type(object) != (git_object_t)type)
		return fail(PLY_FAILED, "object %s is of another type than it should be",
			    repo_id_hex(id, hex));
	return text_set(ret, git_odb_object_data(object), git_odb_object_size(object));
}

int repo_entry_next(const struct ply_text *tree, size_t *offset, struct repo_entry *ret)
{
	const char *p = tree->data + *offset, *end = tree->data + tree->len, *nul;
	unsigned mode = 0;

	if (p == end)
		return 1;
	nul = memchr(p, '\0', (size_t)(end - p));
	if (!nul || (size_t)(end - nul) < 1 + sizeof(struct repo_id))
		return fail(PLY_FAILED, "a damaged tree object");
	for (; *p >= '0' && *p <= '7'; p++)
		mode = 8 * mode + (unsigned)(*p - '0');
	if (*p != ' ' || p + 1 == nul)
		return fail(PLY_FAILED, "a damaged tree object");
	ret->name = p + 1;
	ret->mode = mode;
	memcpy(&ret->id, nul + 1, sizeof(ret->id));
	*offset = (size_t)(nul + 1 - tree->data) + sizeof(struct repo_id);
	return 0;
}

/* ---- files of objects ---- */

static bool ends_in(const char *s, const char *end)
{
	size_t a = strlen(s), b = strlen(end);

	return a >= b && strcmp(s + a - b, end) == 0;
}

/* "ab/cdef...", "pack/pack-....pack" or ".idx": what git keeps objects in, whole. */
static bool is_object_file(const char *name)
{
	if (strncmp(name, "pack/pack-", 10) == 0)
		return (ends_in(name, ".pack") || ends_in(name, ".idx")) && !strchr(name + 5, '/');
	return strlen(name) == 41 && name[2] == '/' && strspn(name, "0123456789abcdef") == 2 &&
	       strspn(name + 3, "0123456789abcdef") == 38;
}

static int copy_bytes(int from, int to, const char *name)
{
	char buf[STACK_BUFFER];
	ssize_t n;

	while ((n = read(from, buf, sizeof(buf))) > 0) {
		int r = write_all(to, buf, (size_t)n);

		if (r < 0)
			return fail_errno(-r, "writing '%s'", name);
	}
	return n < 0 ? fail_errno(errno, "reading '%s'", name) : 0;
}

/* One object or pack is complete, or not there: git does not look at "tmp_" and sweeps it. */
static int copy_object(const char *from, const char *to, const char *name)
{
	_cleanup_close_ int in = -1, out = -1;
	char source[PATH_MAX], target[PATH_MAX], made[PATH_MAX];
	int r, dir = (int)(strchr(name, '/') - name);

	if (snprintf(source, sizeof(source), "%s/%s", from, name) >= PATH_MAX ||
	    snprintf(target, sizeof(target), "%s/%s", to, name) >= PATH_MAX ||
	    snprintf(made, sizeof(made), "%s/%.*s/tmp_obj_%ld", to, dir, name, (long)gettid()) >=
		    PATH_MAX)
		return fail_errno(ENAMETOOLONG, "copying '%s'", name);
	if (access(target, F_OK) == 0)
		return 0;
	in = open(source, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (in < 0)
		return fail_errno(errno, "reading '%s'", source);
	*strrchr(made, '/') = '\0';
	if (mkdir(made, 0777) < 0 && errno != EEXIST)
		return fail_errno(errno, "making '%s'", made);
	made[strlen(made)] = '/';
	out = open(made, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0444);
	if (out < 0)
		return fail_errno(errno, "writing '%s'", made);
	r = copy_bytes(in, out, target);
	if (close(TAKE_FD(out)) < 0 && r == 0)
		r = fail_errno(errno, "writing '%s'", target);
	if (r == 0 && rename(made, target) < 0)
		r = fail_errno(errno, "writing '%s'", target);
	if (r < 0)
		(void)unlink(made);
	return r;
}

int repo_copy_objects(const char *from, const char *to, char *const *names, size_t n)
{
	int r = 0;

	/* The data of a pack before its index, which is what git looks for. */
	for (int index = 0; index < 2; index++)
		for (size_t i = 0; i < n && r == 0; i++)
			if (is_object_file(names[i]) && ends_in(names[i], ".idx") == (index == 1))
				r = copy_object(from, to, names[i]);
	return r;
}

int repo_list_objects(const char *objects, struct ply_list *ret)
{
	struct dirent *top, *e;
	DIR *dirs = opendir(objects), *dir;
	char name[PATH_MAX];
	int r = 0;

	if (!dirs)
		return fail_errno(errno, "reading '%s'", objects);
	while (r == 0 && (errno = 0, top = readdir(dirs))) {
		snprintf(name, sizeof(name), "%s/%s", objects, top->d_name);
		dir = top->d_name[0] == '.' ? NULL : opendir(name);
		if (!dir && top->d_name[0] != '.' && errno != ENOTDIR && errno != ENOENT)
			r = fail_errno(errno, "reading '%s'", name);
		while (dir && r == 0 && (errno = 0, e = readdir(dir))) {
			snprintf(name, sizeof(name), "%s/%s", top->d_name, e->d_name);
			if (is_object_file(name))
				r = list_append(ret, name, strlen(name));
		}
		if (dir && r == 0 && errno)
			r = fail_errno(errno, "reading '%s/%s'", objects, top->d_name);
		if (dir)
			closedir(dir);
	}
	if (r == 0 && errno)
		r = fail_errno(errno, "reading '%s'", objects);
	closedir(dirs);
	return r;
}
