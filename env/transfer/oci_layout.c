/* SPDX-License-Identifier: Apache-2.0 */

/* OCI image layouts: index, manifest, configuration; see oci_layout.h. */

#include "env/transfer/oci_layout.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>

#define JSON_BYTES_MAX (4 << 20) /* of an index, manifest or configuration: what registries take */
/*
 * Values in one of these. "{}," are three bytes of it, and 230 when it was read; a descriptor has
 * some 20 for each of its own.
 */
#define JSON_VALUES_MAX (JSON_BYTES_MAX / 16)
#define LAYERS_MAX 4096		 /* far above the 127 that union filesystems can stack */
#define INDEX_DEPTH_MAX 4	 /* an index in an index; two are seen in practice */
#define INDEX_BYTES_MAX (16 << 20) /* of all inner ones: one may be named a thousand times */
#define READ_BYTES (128 * 1024)

#define REF_NAME "org.opencontainers.image.ref.name"

static void json_freep(json_t **j)
{
	json_decref(*j);
}
#define _cleanup_json_ _cleanup_(json_freep)

void oci_image_release(struct oci_image *image)
{
	free(image->layers);
	free(image->config);
	*image = (struct oci_image){ 0 };
}

/* ---- files ---- */

static int open_inside(struct talk *t, int dir_fd, const char *path, int *ret_fd,
		       uint64_t *ret_size)
{
	struct open_how how = { .flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY,
				.resolve = RESOLVE_BENEATH };
	_cleanup_close_ int fd = -1;
	struct stat st;

	fd = (int)syscall(SYS_openat2, dir_fd, path, &how, sizeof(how));
	if (fd < 0 && errno == EXDEV)
		return talk_fail(t, -ERR_UNSAFE_PATH, "'%s' is a symlink out of the layout", path);
	if (fd < 0 || fstat(fd, &st) < 0)
		return talk_fail(t, -errno, "'%s'", path);
	if (!S_ISREG(st.st_mode))
		return talk_fail(t, -ERR_SOURCE, "'%s' is no file", path);
	*ret_fd = TAKE_FD(fd);
	*ret_size = (uint64_t)st.st_size;
	return 0;
}

static int open_blob(struct talk *t, int dir_fd, const char *digest, uint64_t size, int *ret_fd)
{
	char path[sizeof("blobs/sha256/") + DIGEST_SIZE];
	_cleanup_close_ int fd = -1;
	uint64_t have;
	int r;

	snprintf(path, sizeof(path), "blobs/sha256/%s", strchr(digest, ':') + 1);
	r = open_inside(t, dir_fd, path, &fd, &have);
	if (r < 0)
		return r;
	if (have != size)
		return talk_fail(t, -ERR_SOURCE, "blob %s has %ju byte%s, not the %ju it should",
				 digest, (uintmax_t)have, plural(have), (uintmax_t)size);
	*ret_fd = TAKE_FD(fd);
	return 0;
}

static int read_some(int fd, void *buf, size_t cap, size_t *ret)
{
	ssize_t n;

	do
		n = read(fd, buf, cap);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	*ret = (size_t)n;
	return 0;
}

int oci_open_layer(struct talk *t, int dir_fd, const struct oci_layer *layer, int *ret_fd)
{
	_cleanup_(digest_freep) struct digest *d = NULL;
	_cleanup_free_ char *buf = malloc(READ_BYTES);
	_cleanup_close_ int fd = -1;
	char text[DIGEST_SIZE];
	size_t n = 0;
	int r;

	if (!buf)
		return -ENOMEM;
	r = open_blob(t, dir_fd, layer->digest, layer->size, &fd);
	if (r < 0)
		return r;
	r = digest_new(&d);
	if (r < 0)
		return r;
	do {
		r = read_some(fd, buf, READ_BYTES, &n);
		if (r < 0)
			return talk_fail(t, r, "blob %s", layer->digest);
		digest_add(d, buf, n);
		r = talk_cancelled(t);
		if (r < 0)
			return r;
	} while (n > 0);
	digest_text(d, text);
	if (strcmp(text, layer->digest) != 0)
		return talk_fail(t, -ERR_SOURCE, "blob %s is damaged: its content has %s",
				 layer->digest, text);
	if (lseek(fd, 0, SEEK_SET) < 0)
		return talk_fail(t, -errno, "blob %s", layer->digest);
	*ret_fd = TAKE_FD(fd);
	return 0;
}

/* ---- JSON ---- */

/* At least as many as there are: each begins behind one of these, and texts have some, too. */
static size_t values_in(const char *json, size_t len)
{
	size_t n = 1;

	for (size_t i = 0; i < len; i++)
		n += json[i] == ',' || json[i] == '{' || json[i] == '[';
	return n;
}

/* digest: what it must have; NULL: not known. name: for notes. */
static int parse_file(struct talk *t, int fd, uint64_t size, const char *name, const char *digest,
		      json_t **ret)
{
	_cleanup_(digest_freep) struct digest *d = NULL;
	_cleanup_json_ json_t *json = NULL;
	_cleanup_free_ char *buf = NULL;
	char text[DIGEST_SIZE];
	size_t len = 0, n = 0;
	json_error_t why;
	int r;

	if (size > JSON_BYTES_MAX)
		return talk_fail(t, -ERR_SOURCE, "%s is too large for what it is (%ju bytes)", name,
				 (uintmax_t)size);
	buf = malloc(size + 1);
	if (!buf)
		return -ENOMEM;
	do {
		r = read_some(fd, buf + len, size - len, &n);
		if (r < 0)
			return talk_fail(t, r, "%s", name);
		len += n;
	} while (n > 0);

	if (digest) {
		r = digest_new(&d);
		if (r < 0)
			return r;
		digest_add(d, buf, len);
		digest_text(d, text);
		if (strcmp(text, digest) != 0)
			return talk_fail(t, -ERR_SOURCE, "%s is damaged: its content has %s", name,
					 text);
	}
	if (values_in(buf, len) > JSON_VALUES_MAX)
		return talk_fail(t, -ERR_SOURCE, "%s has too many values in it (over %d)", name,
				 JSON_VALUES_MAX);
	json = json_loadb(buf, len, 0, &why);
	if (!json_is_object(json))
		return talk_fail(t, -ERR_SOURCE, "%s: %s", name,
				 json ? "no JSON object" : why.text);
	*ret = TAKE_PTR(json);
	return 0;
}

static const char *string_of(const json_t *object, const char *key)
{
	const char *s = json_string_value(json_object_get(object, key));

	return s ? s : "";
}

/* A descriptor's digest (lent) and size; noted when it has none that will do. */
static int descriptor(struct talk *t, const json_t *d, const char **ret_digest, uint64_t *ret_size)
{
	const char *digest = string_of(d, "digest");
	const json_t *size = json_object_get(d, "size");

	if (!digest_ok(digest))
		return talk_fail(t, -ERR_SOURCE, "'%s' is no sha256 digest", digest);
	if (!json_is_integer(size) || json_integer_value(size) < 0)
		return talk_fail(t, -ERR_SOURCE, "blob %s: no size is given for it", digest);
	*ret_digest = digest;
	*ret_size = (uint64_t)json_integer_value(size);
	return 0;
}

static int parse_blob(struct talk *t, int dir_fd, const json_t *d, const char *what, json_t **ret)
{
	_cleanup_close_ int fd = -1;
	const char *digest;
	char name[64 + DIGEST_SIZE];
	uint64_t size;
	int r;

	r = descriptor(t, d, &digest, &size);
	if (r < 0)
		return r;
	r = open_blob(t, dir_fd, digest, size, &fd);
	if (r < 0)
		return r;
	snprintf(name, sizeof(name), "%s %s", what, digest);
	return parse_file(t, fd, size, name, digest, ret);
}

/* ---- which image ---- */

/* This machine as images call it. */
static const char *architecture(void)
{
	static const char *const names[][2] = {
		{ "x86_64", "amd64" },	  { "aarch64", "arm64" },  { "armv7l", "arm" },
		{ "armv6l", "arm" },	  { "i686", "386" },	   { "i386", "386" },
		{ "ppc64le", "ppc64le" }, { "s390x", "s390x" },	   { "riscv64", "riscv64" },
		{ "mips64", "mips64le" }, { "loongarch64", "loong64" },
	};
	struct utsname u;

	if (uname(&u) < 0)
		return "unknown";
	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		if (strcmp(u.machine, names[i][0]) == 0)
			return names[i][1];
	return "unknown";
}

static bool is_ours(const char *os, const char *arch)
{
	return strcmp(os, "linux") == 0 && strcmp(arch, architecture()) == 0;
}

struct search {
	struct talk *talk;
	int dir_fd;
	const char *tag, *digest; /* one of them, or neither */
	json_t *found;		  /* owned: the manifest's descriptor */
	char seen[512];		  /* names of what is there, for a note */
	uint64_t bytes;		  /* of the inner indices */
	unsigned others;	  /* manifests of other platforms */
	bool several;
};

static void see(struct search *s, const char *name)
{
	size_t len = strlen(s->seen);

	(void)snprintf(s->seen + len, sizeof(s->seen) - len, "%s%s", len ? ", " : "", name);
}

static bool is_index(const char *type)
{
	return strcmp(type, "application/vnd.oci.image.index.v1+json") == 0 ||
	       strcmp(type, "application/vnd.docker.distribution.manifest.list.v2+json") == 0;
}

static bool is_manifest(const char *type)
{
	return strcmp(type, "application/vnd.oci.image.manifest.v1+json") == 0 ||
	       strcmp(type, "application/vnd.docker.distribution.manifest.v2+json") == 0;
}

/* wanted: what lies here is what was asked for by name. */
static int search_index(struct search *s, const json_t *index, bool wanted, unsigned depth)
{
	const json_t *list = json_object_get(index, "manifests");
	json_t *d;
	size_t i;
	int r;

	json_array_foreach(list, i, d) {
		const char *type = string_of(d, "mediaType"), *digest = string_of(d, "digest");
		const char *name = string_of(json_object_get(d, "annotations"), REF_NAME);
		const json_t *platform = json_object_get(d, "platform");
		bool this = wanted || (s->tag && strcmp(name, s->tag) == 0) ||
			    (s->digest && strcmp(digest, s->digest) == 0);

		if (depth == 0 && (is_index(type) || is_manifest(type)))
			see(s, *name ? name : digest);
		if (is_index(type) && depth < INDEX_DEPTH_MAX && (this || s->digest)) {
			_cleanup_json_ json_t *inner = NULL;

			s->bytes += (uint64_t)json_integer_value(json_object_get(d, "size"));
			if (s->bytes > INDEX_BYTES_MAX)
				return talk_fail(s->talk, -ERR_SOURCE,
						 "its indices are too large together (over %d MiB)",
						 INDEX_BYTES_MAX >> 20);
			r = parse_blob(s->talk, s->dir_fd, d, "index", &inner);
			if (r < 0)
				return r;
			r = search_index(s, inner, this, depth + 1);
			if (r < 0)
				return r;
			continue;
		}
		if (!is_manifest(type) || !this)
			continue;
		if (platform && !(s->digest && strcmp(digest, s->digest) == 0) &&
		    !is_ours(string_of(platform, "os"), string_of(platform, "architecture"))) {
			s->others++;
			continue;
		}
		if (!s->found)
			s->found = json_incref(d);
		else if (strcmp(string_of(s->found, "digest"), digest) != 0)
			s->several = true;
	}
	return 0;
}

static int find_manifest(struct search *s, int dir_fd, const char *ref)
{
	_cleanup_json_ json_t *index = NULL;
	_cleanup_close_ int fd = -1;
	uint64_t size;
	int r;

	if (faccessat(dir_fd, "oci-layout", F_OK, 0) < 0 &&
	    faccessat(dir_fd, "index.json", F_OK, 0) < 0)
		return talk_fail(s->talk, -ERR_SOURCE,
				 "this is no OCI image layout: it has no index.json");
	r = open_inside(s->talk, dir_fd, "index.json", &fd, &size);
	if (r < 0)
		return r;
	r = parse_file(s->talk, fd, size, "index.json", NULL, &index);
	if (r < 0)
		return r;
	r = search_index(s, index, !ref, 0);
	if (r < 0)
		return r;

	if (s->found && s->several && !s->tag)
		return talk_fail(s->talk, -ERR_SOURCE, "several images are in it (%s): say DIR:TAG",
				 s->seen);
	if (s->found)
		return 0;
	if (s->others)
		return talk_fail(s->talk, -ERR_SOURCE, "%u image%s in it, none for linux/%s",
				 s->others, s->others == 1 ? " is" : "s are", architecture());
	if (!*s->seen || !ref)
		return talk_fail(s->talk, -ERR_SOURCE, "no image is in it");
	return talk_fail(s->talk, -ERR_SOURCE, "no image '%s' is in it, but %s", ref, s->seen);
}

/* ---- the image ---- */

static int read_config(struct talk *t, const json_t *config, struct oci_image *image)
{
	const char *os = string_of(config, "os"), *arch = string_of(config, "architecture");
	const json_t *ids = json_object_get(json_object_get(config, "rootfs"), "diff_ids");
	const json_t *run = json_object_get(config, "config");

	if (*os && *arch && !is_ours(os, arch))
		return talk_fail(t, -ERR_SOURCE, "the image is for %s/%s, this machine is linux/%s",
				 os, arch, architecture());
	if (json_array_size(ids) != image->n)
		return talk_fail(t, -ERR_SOURCE,
				 "the manifest has %zu layer%s, the configuration %zu", image->n,
				 plural(image->n), json_array_size(ids));
	for (size_t i = 0; i < image->n; i++) {
		const char *id = json_string_value(json_array_get(ids, i));

		if (!id || !digest_ok(id))
			return talk_fail(t, -ERR_SOURCE, "layer %zu: '%s' is no sha256 digest",
					 i + 1, id ? id : "");
		strcpy(image->layers[i].diff_id, id);
	}
	image->config = json_is_object(run) ? json_dumps(run, JSON_COMPACT) : strdup("{}");
	return image->config ? 0 : -ENOMEM;
}

static int read_layers(struct talk *t, const json_t *manifest, struct oci_image *image)
{
	const json_t *list = json_object_get(manifest, "layers");
	size_t n = json_array_size(list);

	if (n > LAYERS_MAX)
		return talk_fail(t, -ERR_SOURCE, "an image of %zu layers", n);
	image->layers = calloc(n + 1, sizeof(*image->layers));
	if (!image->layers)
		return -ENOMEM;
	for (; image->n < n; image->n++) {
		const json_t *d = json_array_get(list, image->n);
		const char *type = string_of(d, "mediaType"), *digest;
		struct oci_layer *l = &image->layers[image->n];
		int r;

		r = descriptor(t, d, &digest, &l->size);
		if (r < 0)
			return r;
		strcpy(l->digest, digest);
		if (!strstr(type, ".tar")) /* as all kinds of layers have it, Docker's, too */
			return talk_fail(t, -ERR_SOURCE,
					 "layer %s is '%s', no tar: this is no image of files",
					 digest, type);
		if (strstr(type, "encrypted"))
			return talk_fail(t, -ERR_SOURCE, "layer %s is encrypted", digest);
	}
	return 0;
}

static int read_image(struct talk *t, int dir_fd, const json_t *found, struct oci_image *image)
{
	_cleanup_json_ json_t *manifest = NULL;
	_cleanup_json_ json_t *config = NULL;
	int r;

	r = parse_blob(t, dir_fd, found, "manifest", &manifest);
	if (r < 0)
		return r;
	r = read_layers(t, manifest, image);
	if (r < 0)
		return r;
	r = parse_blob(t, dir_fd, json_object_get(manifest, "config"), "configuration", &config);
	if (r < 0)
		return r;
	return read_config(t, config, image);
}

int oci_find(struct talk *t, int dir_fd, const char *ref, struct oci_image *ret)
{
	struct search s = { .talk = t, .dir_fd = dir_fd };
	struct oci_image image = { 0 };
	int r;

	if (ref && ref[0] == '@')
		s.digest = ref + 1;
	else
		s.tag = ref;
	r = find_manifest(&s, dir_fd, ref);
	if (r == 0)
		r = read_image(t, dir_fd, s.found, &image);
	json_decref(s.found);
	if (r < 0) {
		oci_image_release(&image);
		return r;
	}
	*ret = image;
	return 0;
}
