/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * An OCI image layout: a directory with index.json and blobs/sha256/. It is read as if it came from
 * an enemy: every blob's size and digest is checked before a byte of it is believed, and no name
 * leads out of the directory.
 */

#include "env/formats/digest.h"
#include "env/transfer/transfer_internal.h"

struct oci_layer {
	char digest[DIGEST_SIZE];  /* of the blob, as it lies there */
	char diff_id[DIGEST_SIZE]; /* of the tar in it */
	uint64_t size;		   /* of the blob */
};
struct oci_image {
	struct oci_layer *layers; /* owned; the lowest first */
	size_t n;
	char *config; /* owned: JSON, how to run it ("Env", "WorkingDir", "Cmd", ...) */
};
void oci_image_release(struct oci_image *image);

/*
 * The image that ref names: a tag, "@sha256:...", or NULL where there is but one; of several
 * platforms this machine's. A failure is noted with what is there instead.
 */
int oci_find(struct talk *t, int dir_fd, const char *ref, struct oci_image *ret);
/* A layer's blob, verified, at its beginning. */
int oci_open_layer(struct talk *t, int dir_fd, const struct oci_layer *layer, int *ret_fd);
