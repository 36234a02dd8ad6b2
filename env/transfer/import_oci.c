/* SPDX-License-Identifier: Apache-2.0 */

/*
 * An image of an OCI image layout becomes a chain of states, one for each layer.
 *
 * Invariants:
 *  1. A state's label is its *chain id*: of the lowest layer the digest of its tar, of another one
 *     the digest of "CHAIN-ID-BELOW DIGEST-OF-ITS-TAR" (image-spec, "Layer ChainID"). It names the
 *     content of the state wholly, so a state with this label need not be made again, whichever
 *     image it came with.
 *  2. So a state gets its label only after the tar that was applied had that digest: what an image
 *     says about itself is checked, not believed.
 *  3. Objects are numbered above all numbers of the states below, also those of objects that a
 *     state in between has no more: one number in one lineage is one object. States that follow on
 *     known ones get a lineage of their own, since another image may have gone on from there with
 *     the same numbers.
 */

#include <errno.h>

#include "env/transfer/import_members.h"
#include "env/transfer/oci_layout.h"
#include "store/tree.h"

void image_release(struct image *image)
{
	for (size_t i = 0; i < image->n; i++)
		if (image->layers[i].root)
			root_unref(image->layers[i].root);
	free(image->layers);
	if (image->root)
		root_unref(image->root);
	*image = (struct image){ 0 };
}

static int apply_layer(struct builder *b, int dir_fd, const struct oci_layer *l)
{
	static char *const argv[] = { "plyfs-tar", "layer", NULL };
	_cleanup_(layer_release) struct layer layer = { .b = b };
	_cleanup_(helper_release) struct helper h = { 0 };
	_cleanup_close_ int fd = -1;
	char text[DIGEST_SIZE];
	int r;

	r = oci_open_layer(&b->talk, dir_fd, l, &fd);
	if (r == 0)
		r = helper_start(&h, &b->talk, argv, fd);
	if (r == 0)
		r = import_members(b, &h, &(struct import_rules){ .layer = &layer }, text,
				   sizeof(text));
	if (r < 0)
		return r;
	if (strcmp(text, l->diff_id) != 0) /* invariant 2 */
		return talk_fail(&b->talk, -ERR_SOURCE,
				 "layer %s unpacks to %s; the configuration says %s", l->digest,
				 text, l->diff_id);
	return 0;
}

/* ---- the chain ---- */

static int name_states(const struct oci_image *oci, struct image *image)
{
	char id[DIGEST_SIZE];
	int r;

	for (size_t i = 0; i < oci->n; i++) {
		_cleanup_(digest_freep) struct digest *d = NULL;

		if (i == 0) {
			strcpy(id, oci->layers[0].diff_id);
		} else {
			r = digest_new(&d);
			if (r < 0)
				return r;
			digest_add(d, id, strlen(id));
			digest_add(d, " ", 1);
			digest_add(d, oci->layers[i].diff_id, strlen(oci->layers[i].diff_id));
			digest_text(d, id);
		}
		snprintf(image->layers[i].label, sizeof(image->layers[i].label), "oci:%s", id);
	}
	return 0;
}

/*
 * Labels are anybody's who may checkpoint; the flag is an import's alone. Of several the newest.
 */
static int know(void *arg, const struct snap_info *info)
{
	struct image *image = arg;

	if (!(info->flags & SNAP_IMPORT))
		return 0;
	for (size_t i = 0; i < image->n; i++)
		if (strcmp(info->label, image->layers[i].label) == 0) {
			image->layers[i].id = info->id;
			image->layers[i].lineage = info->lineage;
		}
	return 0;
}

/* The highest inode number of a state: its keys begin with it. */
static int last_ino(struct store *s, struct root *root, uint64_t *ret)
{
	_cleanup_(tree_freep) struct tree *tree = NULL;
	struct cursor c;
	int r;

	r = tree_new(store_nodes(s), root, &tree);
	if (r < 0)
		return r;
	r = cursor_seek_last(&c, tree, &KEY_MAX);
	if (r < 0)
		return r;
	*ret = r == 0 ? c.key.a : ROOT_INO;
	return 0;
}

/* How many of the lowest states are here already; with *ret_next for invariant 3. */
static int load_known(struct store *s, struct image *image, size_t *ret_known, uint64_t *ret_next)
{
	uint64_t next = ROOT_INO + 1, last = 0;
	size_t n = 0;
	int r;

	r = snap_each(s, know, image);
	if (r < 0)
		return r;
	while (n < image->n && image->layers[n].id != 0) {
		r = snap_root(s, image->layers[n].id, &image->layers[n].root);
		if (r == 0)
			r = last_ino(s, image->layers[n].root, &last);
		if (r < 0)
			return r;
		next = MAX(next, last + 1);
		n++;
	}
	for (size_t i = n; i < image->n; i++)
		image->layers[i].id = 0; /* no use without those below */
	*ret_known = n;
	*ret_next = next;
	return 0;
}

/* How to run it goes where it is found again by whoever mounts the state. */
static int put_config(struct builder *b, const char *config)
{
	struct inode root;
	int r;

	if (strlen(config) > XATTR_BYTES_MAX)
		return talk_fail(&b->talk, -ERR_SOURCE, "a configuration of %zu bytes",
				 strlen(config));
	r = fs_stat(&b->fs, ROOT_INO, &root);
	if (r < 0)
		return r;
	r = fs_setxattr(&b->fs, ROOT_INO, IMAGE_XATTR, config, strlen(config), 0);
	if (r < 0)
		return r;
	return builder_settle(b, &root, false);
}

int import_oci(struct store *s, int dir_fd, const char *ref, const struct import_ops *ops,
	       struct image *ret, struct transfer_stats *ret_stats)
{
	struct talk talk = { .store = s, .ops = ops, .what = "importing" };
	_cleanup_(oci_image_release) struct oci_image oci = { 0 };
	_cleanup_(image_release) struct image image = { 0 };
	_cleanup_(builder_release) struct builder b = { 0 };
	uint64_t next;
	size_t known;
	int r;

	r = oci_find(&talk, dir_fd, ref, &oci);
	if (r < 0)
		return r;
	image.layers = calloc(oci.n + 1, sizeof(*image.layers));
	if (!image.layers)
		return -ENOMEM;
	image.n = oci.n;
	r = name_states(&oci, &image);
	if (r < 0)
		return r;
	r = load_known(s, &image, &known, &next);
	if (r < 0)
		return r;

	if (known > 0)
		r = builder_continue(&b, s, ops, image.layers[known - 1].root, next);
	else
		r = builder_init(&b, s, ops);
	if (r < 0)
		return r;
	for (size_t i = known; i < image.n; i++) {
		r = apply_layer(&b, dir_fd, &oci.layers[i]);
		if (r == 0)
			r = builder_finish(&b, &image.layers[i].root, NULL);
		if (r < 0)
			return r;
	}
	r = put_config(&b, oci.config);
	if (r == 0)
		r = builder_finish(&b, &image.root, ret_stats);
	if (r < 0)
		return r;
	*ret = image;
	image = (struct image){ 0 };
	return 0;
}
