/* SPDX-License-Identifier: Apache-2.0 */

/*
 * An archive of arbitrary bytes into a store, or an image of two layers (what begins with '{').
 * Refused, or a state whose tree is whole: its names are walked to the end, and none of them leads
 * out.
 */

#include <sys/mman.h>
#include <unistd.h>

#include "env/formats/digest.h"
#include "store/base/util.h"
#include "tests/fuzz/fuzz_tree.h"

static int dir_fd;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	dir_fd = fuzz_store_open();
	MUST(mkdirat(dir_fd, "blobs", 0700) == 0 && mkdirat(dir_fd, "blobs/sha256", 0700) == 0);
	return 0;
}

static void tar(const uint8_t *data, size_t size)
{
	_cleanup_close_ int fd = memfd_create("fuzz", MFD_CLOEXEC);
	struct transfer_stats stats;
	struct import_ops ops = { 0 };
	struct root *root;

	MUST(fd >= 0 && write(fd, data, size) == (ssize_t)size && lseek(fd, 0, SEEK_SET) == 0);
	if (import_tar(fuzz_store, fd, &ops, &root, &stats) == 0) {
		fuzz_walk(root);
		root_unref(root);
	}
}

/* ---- images ---- */

#define LAYERS 2
#define MANIFEST 3 /* among the blobs: layers, configuration, manifest */

static struct blob_file {
	char digest[DIGEST_SIZE], path[sizeof("blobs/sha256/") + DIGEST_SIZE];
	size_t size;
} blobs[MANIFEST + 1];

static void write_file(const char *path, const void *data, size_t size)
{
	_cleanup_close_ int fd = openat(dir_fd, path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	MUST(fd >= 0 && write(fd, data, size) == (ssize_t)size);
}

static void write_blob(struct blob_file *b, const void *data, size_t size)
{
	struct digest *d;

	MUST(digest_new(&d) == 0);
	digest_add(d, data, size);
	digest_text(d, b->digest);
	digest_free(d);
	b->size = size;
	snprintf(b->path, sizeof(b->path), "blobs/sha256/%s", b->digest + strlen("sha256:"));
	write_file(b->path, data, size);
}

/* $0 to $3 are descriptors of blobs, $a to $d their digests: no fuzzer guesses one. Given. */
static char *expand(const char *text, size_t *ret_len)
{
	const size_t n = sizeof(blobs) / sizeof(blobs[0]);
	char *out;
	FILE *f = open_memstream(&out, ret_len);

	MUST(f);
	for (; *text; text++) {
		if (text[0] == '$' && text[1] >= '0' && text[1] < '0' + (int)n) {
			const struct blob_file *b = &blobs[*++text - '0'];

			fprintf(f, "\"digest\":\"%s\",\"size\":%zu", b->digest, b->size);
		} else if (text[0] == '$' && text[1] >= 'a' && text[1] < 'a' + (int)n) {
			fprintf(f, "\"%s\"", blobs[*++text - 'a'].digest);
		} else {
			fputc(*text, f);
		}
	}
	MUST(fclose(f) == 0);
	return out;
}

static void check_image(const struct image *image)
{
	for (size_t i = 0; i < image->n; i++) {
		MUST(strncmp(image->layers[i].label, "oci:", 4) == 0 &&
		     digest_ok(image->layers[i].label + 4));
		fuzz_walk(image->layers[i].root);
	}
	fuzz_walk(image->root);
}

/*
 * Configuration, manifest and index (JSON, each ended by a NUL), the length of the lower layer,
 * both layers. An index behind 't' is asked for the tag "t", one behind '@' for the manifest's
 * digest.
 */
static void image(const uint8_t *data, size_t size)
{
	const char *texts[3], *ref = NULL;
	char by_digest[DIGEST_SIZE + 1] = "@";
	struct transfer_stats stats;
	struct import_ops ops = { 0 };
	struct image image;
	char *text;
	size_t len;

	for (int i = 0; i < 3; i++) {
		const uint8_t *nul = memchr(data, 0, size);

		if (!nul)
			return;
		texts[i] = (const char *)data;
		size -= (size_t)(nul + 1 - data);
		data = nul + 1;
	}
	if (size < 2)
		return;
	len = MIN(get_le16(data), size - 2);
	write_blob(&blobs[0], data + 2, len);
	write_blob(&blobs[1], data + 2 + len, size - 2 - len);
	for (int i = 0; i < 2; i++) {
		text = expand(texts[i], &len);
		write_blob(&blobs[LAYERS + i], text, len);
		free(text);
	}
	if (texts[2][0] == 't') {
		ref = "t";
	} else if (texts[2][0] == '@') {
		strcpy(by_digest + 1, blobs[MANIFEST].digest);
		ref = by_digest;
	}
	text = expand(texts[2] + (ref != NULL), &len);
	write_file("index.json", text, len);
	free(text);

	if (import_oci(fuzz_store, dir_fd, ref, &ops, &image, &stats) == 0) {
		check_image(&image);
		image_release(&image);
	}
	for (size_t i = 0; i < sizeof(blobs) / sizeof(blobs[0]); i++)
		(void)unlinkat(dir_fd, blobs[i].path, 0); /* two may be the same */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	MUST(store_import_begin(fuzz_store) == 0);
	if (size > 0 && data[0] == '{')
		image(data, size);
	else
		tar(data, size);
	store_import_end(fuzz_store);
	return 0;
}
