/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Objects on their way: hashed when they are added to a batch, read once more when libgit2 packs
 * them. The bytes of files are not kept, so a batch of a large tree needs little memory; what they
 * are read from is a snapshot, which does not change. libgit2 compares what it reads with the name
 * that it asked for.
 */

#include <errno.h>
#include <fcntl.h>

#include "env/dotgit.h"
#include "env/repo_internal.h"

bool repo_id_is(const struct repo_id *a, const struct repo_id *b)
{
	return memcmp(a, b, sizeof(*a)) == 0;
}

const char *repo_id_hex(const struct repo_id *id, char buf[static REPO_HEX])
{
	for (size_t i = 0; i < sizeof(id->bytes); i++)
		snprintf(buf + 2 * i, 3, "%02x", id->bytes[i]);
	return buf;
}

bool repo_id_parse(const char *hex, struct repo_id *ret)
{
	git_oid oid;

	if (strlen(hex) < GIT_OID_HEXSZ || git_oid_fromstrn(&oid, hex, GIT_OID_HEXSZ) < 0)
		return false;
	*ret = of_oid(&oid);
	return true;
}

bool repo_name_ok(const char *name)
{
	return name[0] && strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && !strchr(name, '/') &&
	       !dotgit_in(name);
}

struct repo_batch *repo_batch_new(void)
{
	struct repo_batch *b = calloc(1, sizeof(*b));

	if (b)
		b->dir_fd = -1;
	return b;
}

static void object_release(struct repo_object *o)
{
	free(o->data);
	free(o->path);
}

void repo_batch_free(struct repo_batch *b)
{
	if (!b)
		return;
	for (size_t i = 0; i < b->n; i++)
		object_release(&b->objects[i]);
	free(b->objects);
	closep(&b->dir_fd);
	free(b);
}

/* Takes the object, also on failure. */
static int batch_append(struct repo_batch *b, struct repo_object *o)
{
	if (b->n == b->cap) {
		size_t cap = b->cap ? 2 * b->cap : 16;
		struct repo_object *p = realloc(b->objects, cap * sizeof(*p));

		if (!p) {
			object_release(o);
			return fail_memory();
		}
		b->objects = p;
		b->cap = cap;
	}
	b->objects[b->n++] = *o;
	return 0;
}

int repo_batch_add(struct repo_batch *b, enum repo_type type, const void *data, size_t len,
		   struct repo_id *ret)
{
	struct repo_object o = { .type = type, .len = len, .dir_fd = -1 };
	int r;

	use_libgit2();
	if (git_odb_hash(&o.id, data, len, (git_object_t)type) < 0)
		return fail(PLY_FAILED, "hashing: %s", git_why());
	o.data = malloc(MAX(len, (size_t)1));
	if (!o.data)
		return fail_memory();
	memcpy(o.data, data, len);
	r = batch_append(b, &o);
	if (r == 0)
		*ret = of_oid(&o.id);
	return r;
}

int repo_batch_add_file(struct repo_batch *b, int dir_fd, const char *path, uint64_t size,
			const struct repo_id *known, struct repo_id *ret)
{
	struct repo_object o = { .type = REPO_BLOB, .len = size, .dir_fd = dir_fd };
	_cleanup_free_ char *full = NULL;
	struct repo_id id;
	int r;

	use_libgit2();
	/* libgit2 takes no descriptors. No component can be a symlink put there meanwhile. */
	if (asprintf(&full, "/proc/self/fd/%d/%s", dir_fd, path) < 0)
		return fail_memory();
	if (git_odb_hashfile(&o.id, full, GIT_OBJECT_BLOB) < 0)
		return fail(PLY_FAILED, "reading '%s': %s", path, git_why());
	id = of_oid(&o.id);
	if (!known || !repo_id_is(&id, known)) {
		o.path = strdup(path);
		if (!o.path)
			return fail_memory();
		r = batch_append(b, &o);
		if (r < 0)
			return r;
	}
	*ret = id;
	return 0;
}

/*
 * The batches' objects as libgit2 sees them while it packs: a backend of an object database, which
 * owns nothing. libgit2 compares what read() gives with the name that was asked for.
 */
struct batch_backend {
	git_odb_backend base;	      /* first */
	struct repo_object **objects; /* n of them, in order of id; borrowed */
	size_t n;
};

int compare_objects(const void *a, const void *b)
{
	const struct repo_object *const *x = a, *const *y = b;

	return git_oid_cmp(&(*x)->id, &(*y)->id);
}

static struct repo_object *backend_find(git_odb_backend *base, const git_oid *id)
{
	struct batch_backend *b = container_of(base, struct batch_backend, base);
	struct repo_object key = { .id = *id }, *k = &key, **found;

	found = bsearch(&k, b->objects, b->n, sizeof(k), compare_objects);
	return found ? *found : NULL;
}

static int read_file_at(int dir_fd, const char *path, char *data, size_t len)
{
	_cleanup_close_ int fd = openat(dir_fd, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	size_t done = 0;

	if (fd < 0)
		return -1;
	while (done < len) {
		ssize_t n = read(fd, data + done, len - done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return -1;
		done += (size_t)n;
	}
	return 0;
}

static int backend_read(void **ret, size_t *ret_len, git_object_t *ret_type, git_odb_backend *base,
			const git_oid *id)
{
	struct repo_object *o = backend_find(base, id);
	void *data;

	if (!o)
		return GIT_ENOTFOUND;
	data = git_odb_backend_data_alloc(base, MAX(o->len, (size_t)1));
	if (!data)
		return -1;
	if (o->data) {
		memcpy(data, o->data, o->len);
	} else if (read_file_at(o->dir_fd, o->path, data, o->len) < 0) {
		git_odb_backend_data_free(base, data);
		git_error_set_str(GIT_ERROR_ODB, "a file of the snapshot cannot be read");
		return -1;
	}
	*ret = data;
	*ret_len = o->len;
	*ret_type = (git_object_t)o->type;
	return 0;
}

static int backend_read_header(size_t *ret_len, git_object_t *ret_type, git_odb_backend *base,
			       const git_oid *id)
{
	struct repo_object *o = backend_find(base, id);

	if (!o)
		return GIT_ENOTFOUND;
	*ret_len = o->len;
	*ret_type = (git_object_t)o->type;
	return 0;
}

static int backend_exists(git_odb_backend *base, const git_oid *id)
{
	return backend_find(base, id) != NULL;
}

static void backend_free(git_odb_backend *base)
{
	free(container_of(base, struct batch_backend, base));
}

int objects_as_odb(struct repo_object **objects, size_t n, git_odb **ret)
{
	_cleanup_(git_odbp) git_odb *odb = NULL;
	struct batch_backend *backend = calloc(1, sizeof(*backend));

	if (!backend)
		return fail_memory();
	git_odb_init_backend(&backend->base, GIT_ODB_BACKEND_VERSION);
	backend->base.read = backend_read;
	backend->base.read_header = backend_read_header;
	backend->base.exists = backend_exists;
	backend->base.free = backend_free;
	backend->objects = objects;
	backend->n = n;
	if (git_odb_new(&odb) < 0 || git_odb_add_backend(odb, &backend->base, 1) < 0) {
		free(backend);
		return fail(PLY_FAILED, "%s", git_why());
	}
	*ret = TAKE_PTR(odb);
	return 0;
}
