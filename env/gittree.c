/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A directory as git would hold it: nodes for all that is there, each with the id of its object as
 * far as that is known.
 *
 * Invariants, between two updates:
 *  1. There is a node for each name that git may use (repo_name_ok) below each directory node.
 *  2. A file's or symlink's id is that of its bytes when `hashed`; a directory's is that of its
 *     tree object unless `changed` or `empty`.
 *  3. A directory is `changed` whenever anything below it is not hashed, is changed, or has come,
 *     gone or got another mode since its id was computed.
 */

#include "env/gittree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "env/gittree_internal.h"
#include "env/status.h"
#include "store/base/util.h"

/* ---- nodes ---- */

static void node_free(struct node *n);

static void node_clear(struct node *dir)
{
	for (size_t i = 0; i < dir->n; i++)
		node_free(dir->kids[i]);
	dir->n = 0;
}

static void node_free(struct node *n)
{
	if (!n)
		return;
	node_clear(n);
	free(n->kids);
	free(n->name);
	free(n);
}

/* Where the name is among the kids, or belongs. */
static size_t kid_position(const struct node *dir, const char *name)
{
	size_t low = 0, high = dir->n;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (strcmp(dir->kids[middle]->name, name) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

struct node *node_find(const struct node *dir, const char *name)
{
	size_t at = kid_position(dir, name);

	return at < dir->n && strcmp(dir->kids[at]->name, name) == 0 ? dir->kids[at] : NULL;
}

static int node_add(struct node *dir, const char *name, enum node_kind kind, struct node **ret)
{
	size_t at = kid_position(dir, name);
	struct node *kid;

	if (dir->n == dir->cap) {
		size_t cap = dir->cap ? 2 * dir->cap : 8;
		struct node **p = realloc(dir->kids, cap * sizeof(*p));

		if (!p)
			return fail_memory();
		dir->kids = p;
		dir->cap = cap;
	}
	kid = calloc(1, sizeof(*kid));
	if (!kid || !(kid->name = strdup(name))) {
		free(kid);
		return fail_memory();
	}
	kid->kind = kind;
	kid->changed = true;
	memmove(dir->kids + at + 1, dir->kids + at, (dir->n - at) * sizeof(*dir->kids));
	dir->kids[at] = kid;
	dir->n++;
	*ret = kid;
	return 0;
}

static void node_remove(struct node *dir, const char *name)
{
	size_t at = kid_position(dir, name);

	if (at == dir->n || strcmp(dir->kids[at]->name, name) != 0)
		return;
	node_free(dir->kids[at]);
	dir->n--;
	memmove(dir->kids + at, dir->kids + at + 1, (dir->n - at) * sizeof(*dir->kids));
}

int gittree_new(enum gittree_mode mode, struct gittree **ret)
{
	struct gittree *t = calloc(1, sizeof(*t));

	if (!t || !(t->root = calloc(1, sizeof(*t->root)))) {
		free(t);
		return fail_memory();
	}
	t->mode = mode;
	t->root->kind = NODE_DIRECTORY;
	t->root->changed = true;
	*ret = t;
	return 0;
}

static int node_copy(const struct node *from, struct node **ret)
{
	struct node *n = malloc(sizeof(*n));
	int r = 0;

	if (!n)
		return fail_memory();
	*n = *from;
	n->n = n->cap = 0;
	n->name = from->name ? strdup(from->name) : NULL;
	n->kids = from->n ? calloc(from->n, sizeof(*n->kids)) : NULL;
	if ((from->name && !n->name) || (from->n && !n->kids))
		r = fail_memory();
	else
		n->cap = from->n;
	for (size_t i = 0; i < from->n && r == 0; i++) {
		r = node_copy(from->kids[i], &n->kids[i]);
		if (r == 0)
			n->n++;
	}
	if (r < 0) {
		node_free(n);
		return r;
	}
	*ret = n;
	return 0;
}

static void links_clear(struct links *l)
{
	for (size_t i = 0; i < l->n; i++)
		free(l->links[i].path);
	free(l->links);
	*l = (struct links){ 0 };
}

int gittree_copy(const struct gittree *t, struct gittree **ret)
{
	_cleanup_(gittree_freep) struct gittree *copy = calloc(1, sizeof(*copy));
	int r;

	if (!copy || !(copy->links.links = calloc(t->links.n + 1, sizeof(struct link))))
		return fail_memory();
	copy->mode = t->mode;
	for (size_t i = 0; i < t->links.n; i++) {
		copy->links.links[i].id = t->links.links[i].id;
		copy->links.links[i].path = strdup(t->links.links[i].path);
		if (!copy->links.links[copy->links.n++].path)
			return fail_memory();
	}
	r = node_copy(t->root, &copy->root);
	if (r < 0)
		return r;
	*ret = TAKE_PTR(copy);
	return 0;
}

void gittree_free(struct gittree *t)
{
	if (!t)
		return;
	links_clear(&t->links);
	node_free(t->root);
	free(t);
}

/* ---- what is there ---- */

/* One update: what all its steps need. path: of what is being looked at, a buffer. */
struct step {
	struct gittree *t;
	const char *top;   /* path of the snapshot's directory */
	int fd;		   /* of it */
	struct repo *repo; /* of it; NULL: there is none */
	struct vault *vault;
	struct repo_batch *batch;
	bool any_new; /* nodes were added */
	char path[GITTREE_PATH_MAX + 2 * NAME_MAX];
};

/* Appends "/name" to a path of len bytes and returns the new length; 0: too long for git. */
static size_t path_push(struct step *s, size_t len, const char *name)
{
	size_t n = strlen(name), at = len ? len + 1 : 0;

	if (at + n > GITTREE_PATH_MAX)
		return 0;
	if (len)
		s->path[len] = '/';
	memcpy(s->path + at, name, n + 1);
	return at + n;
}

/* The directory at s->path; NULL: errno says why. */
static DIR *open_directory(struct step *s)
{
	int why, fd = openat(s->fd, *s->path ? s->path : ".",
			     O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);

	if (!d && fd >= 0) {
		why = errno;
		closep(&fd);
		errno = why;
	}
	return d;
}

static int compare_links(const void *a, const void *b)
{
	return strcmp(((const struct link *)a)->path, ((const struct link *)b)->path);
}

static struct link *find_link(const struct links *l, const char *path)
{
	struct link key = { .path = (char *)path }; /* borrowed for the search */

	return l->n ? bsearch(&key, l->links, l->n, sizeof(key), compare_links) : NULL;
}

/*
 * 1: a submodule that has a repository, or was never filled. 0: it is neither, or we may not look,
 * as in list_names. Another failure is no answer: the files of a submodule are in no commit.
 */
static int is_submodule(struct step *s, size_t len)
{
	struct stat st;
	int entries = 0, r;
	DIR *d;

	if (!find_link(&s->t->links, s->path))
		return 0;
	strcpy(s->path + len, "/.git"); /* there is room for two names more */
	r = fstatat(s->fd, s->path, &st, AT_SYMLINK_NOFOLLOW);
	s->path[len] = '\0';
	if (r == 0)
		return 1;
	if (errno != ENOENT && errno != EACCES)
		return fail_errno(errno, "looking at '%s/.git'", s->path);
	d = open_directory(s);
	if (!d)
		return errno == EACCES ? 0 : fail_errno(errno, "reading '%s'", s->path);
	while ((errno = 0, readdir(d)))
		entries++;
	r = errno ? fail_errno(errno, "reading '%s'", s->path) : entries == 2;
	closedir(d);
	return r;
}

static int scan(struct step *s, struct node *dir, size_t len);

/* Sets a node to what stat says stands at s->path. */
static int node_set(struct step *s, struct node *n, const struct stat *st, size_t len)
{
	enum node_kind kind = NODE_OTHER;
	int r;

	if (S_ISDIR(st->st_mode)) {
		r = is_submodule(s, len);
		if (r < 0)
			return r;
		kind = r ? NODE_SUBMODULE : NODE_DIRECTORY;
	} else if (S_ISLNK(st->st_mode) && strncasecmp(n->name, ".gitmodules", 11) != 0 &&
		 strncasecmp(n->name, "gitmod~", 7) != 0)
		kind = NODE_LINK;
	else if (S_ISREG(st->st_mode) && (uint64_t)st->st_size <= GITTREE_FILE_MAX)
		kind = NODE_FILE;
	if (kind != n->kind) {
		node_clear(n);
		n->has_id = false;
	}
	n->kind = kind;
	n->changed = true;
	n->hashed = false;
	n->size = (uint64_t)st->st_size;
	n->executable = st->st_mode & S_IXUSR;
	return kind == NODE_DIRECTORY ? scan(s, n, len) : 0;
}

static int look_at(struct step *s, struct node *dir, const char *name, size_t len)
{
	struct node *n = node_find(dir, name);
	struct stat st;
	int r;

	dir->changed = true;
	if (fstatat(s->fd, s->path, &st, AT_SYMLINK_NOFOLLOW) < 0) {
		if (errno != ENOENT && errno != ENOTDIR)
			return fail_errno(errno, "looking at '%s'", s->path);
		node_remove(dir, name);
		return 0;
	}
	if (n && n->kind == NODE_DIRECTORY && S_ISDIR(st.st_mode))
		return 0; /* its own mode, or so: nothing for git */
	if (!n) {
		r = node_add(dir, name, NODE_OTHER, &n);
		if (r < 0)
			return r;
		s->any_new = true;
	}
	return node_set(s, n, &st, len);
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static int list_names(struct step *s, struct ply_list *ret)
{
	DIR *d = open_directory(s);
	struct dirent *e;
	int r = 0;

	if (!d)
		return errno == EACCES ? 0 : fail_errno(errno, "reading '%s'", s->path);
	while (r == 0 && (errno = 0, e = readdir(d)))
		if (repo_name_ok(e->d_name))
			r = list_append(ret, e->d_name, strlen(e->d_name));
	if (r == 0 && errno)
		r = fail_errno(errno, "reading '%s'", s->path);
	closedir(d);
	if (ret->n) /* so that each becomes the last */
		qsort(ret->items, ret->n, sizeof(*ret->items), compare_names);
	return r;
}

/* A directory that there was no node for. Descriptors are not kept: trees may be deep. */
static int scan(struct step *s, struct node *dir, size_t len)
{
	_cleanup_(ply_list_free) struct ply_list names = { 0 };
	int r = list_names(s, &names);

	for (size_t i = 0; i < names.n && r == 0; i++) {
		size_t l = path_push(s, len, names.items[i]);

		if (l == 0)
			continue; /* too long */
		r = look_at(s, dir, names.items[i], l);
		s->path[len] = '\0';
	}
	return r;
}

/* ---- a path that may have changed ---- */

/* Goes down to the deepest directory node on the way, and looks at what stands below it. */
static int touch_there(struct step *s, const char *path)
{
	struct node *dir = s->t->root, *next;
	char name[NAME_MAX + 1];
	size_t len = 0;

	s->path[0] = '\0';
	for (;;) {
		size_t n = strcspn(path, "/");

		if (n == 0 || n > NAME_MAX)
			return 0; /* the top itself */
		memcpy(name, path, n);
		name[n] = '\0';
		path += n + (path[n] == '/');
		len = repo_name_ok(name) ? path_push(s, len, name) : 0;
		if (len == 0)
			return 0;
		dir->changed = true;
		next = node_find(dir, name);
		if (!*path || !next || next->kind != NODE_DIRECTORY)
			return look_at(s, dir, name, len);
		dir = next;
	}
}

/* A directory that went with all it had is not told of by itself: up to what is there. */
static int touch(struct step *s, const char *path)
{
	_cleanup_free_ char *at = strdup(path);
	struct stat st;

	if (!at)
		return fail_memory();
	if (strlen(at) > GITTREE_PATH_MAX)
		return 0;
	for (;;) {
		char *slash = strrchr(at, '/');

		if (!slash)
			break;
		*slash = '\0';
		if (fstatat(s->fd, at, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode)) {
			*slash = '/';
			break;
		}
	}
	return touch_there(s, at);
}

/* ---- submodules, and what the index names ---- */

struct index_pass {
	struct step *s;
	struct links links;
};

static int take_link(void *arg, const char *path, unsigned mode, const struct repo_id *id)
{
	struct index_pass *p = arg;
	struct link *l;

	if (mode != REPO_MODE_COMMIT)
		return 0;
	l = realloc(p->links.links, (p->links.n + 1) * sizeof(*l));
	if (!l)
		return fail_memory();
	p->links.links = l;
	l[p->links.n] = (struct link){ .path = strdup(path), .id = *id };
	return l[p->links.n++].path ? 0 : fail_memory();
}

static int index_file(struct step *s, char **ret)
{
	return asprintf(ret, "%sindex", repo_git_dir(s->repo)) < 0 ? fail_memory() : 0;
}

/*
 * 1: they are not the ones that the tree was made with. An index that is not understood says
 * nothing: what the last one said still holds.
 */
static int read_links(struct step *s)
{
	struct index_pass p = { .s = s };
	struct links *old = &s->t->links;
	_cleanup_free_ char *file = NULL;
	bool same;
	int r = 0;

	if (s->repo) {
		r = index_file(s, &file);
		if (r == 0)
			r = repo_index_each(file, take_link, &p);
	}
	if (r > 0)
		return 0;
	if (p.links.n)
		qsort(p.links.links, p.links.n, sizeof(struct link), compare_links);
	same = p.links.n == old->n;
	for (size_t i = 0; same && i < old->n; i++)
		same = strcmp(p.links.links[i].path, old->links[i].path) == 0;
	links_clear(old);
	*old = p.links;
	return r < 0 ? r : !same;
}

static int mark_tracked(void *arg, const char *path, unsigned mode, const struct repo_id *id)
{
	struct index_pass *p = arg;
	struct node *n = p->s->t->root;
	char name[NAME_MAX + 1];

	while (n && *path) {
		size_t len = strcspn(path, "/");

		if (len > NAME_MAX)
			return 0;
		memcpy(name, path, len);
		name[len] = '\0';
		n = node_find(n, name);
		path += len + (path[len] == '/');
	}
	if (n)
		n->tracked = true;
	return 0;
}

static void clear_marks(struct node *n, bool judged)
{
	n->tracked = false;
	if (judged)
		n->judged = false;
	for (size_t i = 0; i < n->n; i++)
		clear_marks(n->kids[i], judged);
}

/* 1: the coverage of something below changed. */
static int cover(struct step *s, struct node *dir, size_t len)
{
	int r, any = 0;

	for (size_t i = 0; i < dir->n; i++) {
		struct node *n = dir->kids[i];
		size_t l = path_push(s, len, n->name);
		bool covered;

		if (s->t->mode == GITTREE_UNTRACKED && !n->judged) {
			n->ignored = dir->ignored;
			if (!n->ignored && s->repo) {
				if (n->kind == NODE_DIRECTORY)
					strcpy(s->path + l, "/");
				r = repo_is_ignored(s->repo, s->path, &n->ignored);
				s->path[l] = '\0';
				if (r < 0)
					return r;
			}
			n->judged = true;
		}
		covered = n->tracked || (s->t->mode == GITTREE_UNTRACKED && !n->ignored);
		if (covered != n->covered) {
			n->covered = covered;
			any = 1;
		}
		if (n->kind == NODE_DIRECTORY) {
			r = cover(s, n, l);
			if (r < 0)
				return r;
			any |= r;
		}
		s->path[len] = '\0';
	}
	if (any)
		dir->changed = true;
	return any;
}

static int cover_all(struct step *s, bool rules)
{
	struct index_pass p = { .s = s };
	_cleanup_free_ char *file = NULL;
	int r = 0;

	if (s->t->mode == GITTREE_ALL || (!rules && !s->any_new))
		return 0;
	clear_marks(s->t->root, rules);
	if (s->repo) {
		r = index_file(s, &file);
		if (r == 0)
			r = repo_index_each(file, mark_tracked, &p);
		if (r > 0)
			r = fail(PLY_FAILED, "the repository's index is damaged, or a split or a "
					     "sparse one, so that it is not known what is tracked; "
					     "set option 'commit' to 'all'");
	}
	s->path[0] = '\0';
	if (r == 0)
		r = cover(s, s->t->root, 0);
	return r < 0 ? r : 0;
}

/* A submodule moves without a word about its own path. */
static int set_links(struct step *s)
{
	for (size_t i = 0; i < s->t->links.n; i++) {
		const struct link *l = &s->t->links.links[i];
		_cleanup_(repo_closep) struct repo *inner = NULL;
		_cleanup_free_ char *path = NULL;
		struct repo_id id = l->id, head;
		struct node *n = s->t->root, *way[GITTREE_PATH_MAX / 2 + 1];
		const char *p = l->path;
		size_t depth = 0;
		char name[NAME_MAX + 1];
		int r;

		while (n && *p && depth < ARRAY_SIZE(way)) {
			size_t len = strcspn(p, "/");

			if (len > NAME_MAX)
				break;
			memcpy(name, p, len);
			name[len] = '\0';
			way[depth++] = n;
			n = node_find(n, name);
			p += len + (p[len] == '/');
		}
		if (!n || *p || n->kind != NODE_SUBMODULE)
			continue;
		if (asprintf(&path, "%s/%s", s->top, l->path) < 0)
			return fail_memory();
		r = repo_open(path, s->vault, &inner);
		if (r < 0 && r != PLY_DENIED) /* who may not look has the index's */
			return r;
		if (r == 0 && repo_ref(inner, "HEAD", &head) == 0)
			id = head;
		if (n->hashed && repo_id_is(&id, &n->id))
			continue;
		n->id = id;
		n->hashed = n->has_id = true;
		while (depth > 0)
			way[--depth]->changed = true;
	}
	return 0;
}

/* ---- objects ---- */

static unsigned git_mode(const struct node *n)
{
	switch (n->kind) {
	case NODE_DIRECTORY:
		return REPO_MODE_TREE;
	case NODE_LINK:
		return REPO_MODE_LINK;
	case NODE_SUBMODULE:
		return REPO_MODE_COMMIT;
	default:
		return n->executable ? REPO_MODE_EXECUTABLE : REPO_MODE_FILE;
	}
}

/* git's order: a directory's name as if it ended in a slash. */
static int compare_for_git(const void *a, const void *b)
{
	const struct node *x = *(const struct node *const *)a, *y = *(const struct node *const *)b;
	size_t lx = strlen(x->name), ly = strlen(y->name), n = MIN(lx, ly);
	int r = memcmp(x->name, y->name, n);
	unsigned char cx, cy;

	if (r)
		return r;
	cx = x->name[n] ? (unsigned char)x->name[n] : x->kind == NODE_DIRECTORY ? '/' : 0;
	cy = y->name[n] ? (unsigned char)y->name[n] : y->kind == NODE_DIRECTORY ? '/' : 0;
	return (int)cx - (int)cy;
}

static int hash_link(struct step *s, struct node *n)
{
	char target[PATH_MAX];
	ssize_t len = readlinkat(s->fd, s->path, target, sizeof(target));

	if (len < 0)
		return fail_errno(errno, "reading '%s'", s->path);
	return repo_batch_add(s->batch, REPO_BLOB, target, (size_t)len, &n->id);
}

static int hash_file(struct step *s, struct node *n)
{
	/*
	 * Only root may read everything; who may not read it may not save it. Another failure says
	 * nothing of the kind, and the file would be missing from the commit without a word.
	 */
	if (geteuid() != 0 && faccessat(s->fd, s->path, R_OK, AT_EACCESS) < 0) {
		if (errno != EACCES)
			return fail_errno(errno, "looking at '%s'", s->path);
		n->kind = NODE_OTHER;
		return 0;
	}
	return repo_batch_add_file(s->batch, s->fd, s->path, n->size, n->has_id ? &n->id : NULL,
				   &n->id);
}

static int write_dir(struct step *s, struct node *dir, size_t len);

/* 1: it is in the tree; its id is there. */
static int write_node(struct step *s, struct node *n, size_t len)
{
	int r = 0;

	if (n->kind == NODE_OTHER)
		return 0;
	if (n->kind == NODE_DIRECTORY) {
		if (n->changed)
			r = write_dir(s, n, len);
		return r < 0 ? r : !n->empty;
	}
	if (s->t->mode != GITTREE_ALL && !n->covered)
		return 0;
	if (!n->hashed && n->kind != NODE_SUBMODULE) {
		r = n->kind == NODE_LINK ? hash_link(s, n) : hash_file(s, n);
		if (r < 0)
			return r;
		n->hashed = n->has_id = n->kind != NODE_OTHER;
	}
	return n->hashed;
}

static int append_entry(struct ply_text *tree, size_t *cap, const struct node *n)
{
	size_t need = tree->len + strlen(n->name) + 8 + sizeof(n->id);

	if (need > *cap) {
		char *p = realloc(tree->data, 2 * need);

		if (!p)
			return fail_memory();
		tree->data = p;
		*cap = 2 * need;
	}
	tree->len += (size_t)sprintf(tree->data + tree->len, "%o %s", git_mode(n), n->name) + 1;
	memcpy(tree->data + tree->len, &n->id, sizeof(n->id));
	tree->len += sizeof(n->id);
	return 0;
}

static int write_dir(struct step *s, struct node *dir, size_t len)
{
	_cleanup_(ply_text_free) struct ply_text tree = { 0 };
	_cleanup_free_ struct node **in = calloc(dir->n + 1, sizeof(*in));
	size_t n = 0, cap = 0;
	int r = 0;

	if (!in)
		return fail_memory();
	dir->extra = false;
	for (size_t i = 0; i < dir->n; i++) {
		struct node *kid = dir->kids[i];
		size_t l = path_push(s, len, kid->name);

		r = write_node(s, kid, l);
		s->path[len] = '\0';
		if (r < 0)
			return r;
		if (r > 0)
			in[n++] = kid;
		else if (kid->kind == NODE_OTHER || kid->kind == NODE_DIRECTORY)
			dir->extra = true;
		if (kid->kind == NODE_DIRECTORY && kid->extra)
			dir->extra = true;
	}
	qsort(in, n, sizeof(*in), compare_for_git);
	for (size_t i = 0; i < n && r >= 0; i++)
		r = append_entry(&tree, &cap, in[i]);
	if (r < 0)
		return r;
	dir->empty = n == 0;
	if (n > 0 || dir == s->t->root)
		r = repo_batch_add(s->batch, REPO_TREE, tree.data ? tree.data : "", tree.len,
				   &dir->id);
	if (r == 0)
		dir->changed = false;
	return r;
}

/* ---- a step ---- */

static bool ends_in(const char *s, const char *end)
{
	size_t a = strlen(s), b = strlen(end);

	return a >= b && strcmp(s + a - b, end) == 0;
}

static bool in_dot_git(const char *path)
{
	return strncmp(path, ".git/", 5) == 0 || strstr(path, "/.git/");
}

/* What says which files are covered, and which directories are submodules. */
static bool is_rule(const char *path)
{
	return ends_in(path, ".gitignore") ||
	       (in_dot_git(path) && (ends_in(path, "/index") || ends_in(path, "/info/exclude") ||
				     ends_in(path, "/config"))) ||
	       strcmp(path, ".git") == 0;
}

bool gittree_concerns(const struct gittree *t, const char *path)
{
	return !in_dot_git(path) || is_rule(path) || t->links.n > 0; /* HEAD of a submodule? */
}

/* Whether the repository is within the snapshot, so that we hear of its changes. */
static bool hears_of(const struct step *s)
{
	size_t len = strlen(s->top);
	const char *dir = s->repo ? repo_git_dir(s->repo) : NULL;

	return !dir || (strncmp(dir, s->top, len) == 0 && dir[len] == '/');
}

int gittree_update(struct gittree *t, const char *path, int dir_fd, const char *changed, size_t len,
		   struct vault *v, struct repo_batch *batch, struct repo_id *ret)
{
	_cleanup_(repo_closep) struct repo *repo = NULL;
	struct step *s = calloc(1, sizeof(*s));
	_cleanup_free_ _unused_ void *owned = s;
	bool rules = !changed;
	int r;

	if (!s)
		return fail_memory();
	r = repo_open(path, v, &repo);
	if (r < 0)
		return r;
	*s = (struct step){
		.t = t, .top = path, .fd = dir_fd, .repo = repo, .vault = v, .batch = batch
	};
	for (const char *p = changed; p && p < changed + len && !rules; p += strlen(p) + 1)
		rules = is_rule(p);
	rules |= !hears_of(s);

	r = rules ? read_links(s) : 0;
	if (r < 0)
		return r;
	if (r > 0 || !changed) {
		node_clear(t->root);
		t->root->changed = s->any_new = true;
		r = scan(s, t->root, 0);
	} else {
		for (const char *p = changed; p < changed + len && r == 0; p += strlen(p) + 1)
			r = touch(s, p);
	}
	if (r == 0)
		r = cover_all(s, rules);
	if (r == 0)
		r = set_links(s);
	s->path[0] = '\0';
	if (r == 0 && t->root->changed)
		r = write_dir(s, t->root, 0);
	if (r == 0)
		*ret = t->root->id;
	return r;
}
