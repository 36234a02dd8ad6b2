/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * One layer of an image on its way onto the state that the lower layers made. A whiteout hides what
 * lower layers have and nothing of its own layer, in whatever order the members come: so each name
 * that the layer brings is remembered ("touched", with every directory on the way to it).
 */

#include "env/transfer/transfer_internal.h"

struct layer {
	struct builder *b;	   /* borrowed */
	struct link_table touched; /* (directory, hash of the name) */
};

void layer_release(struct layer *l);
int layer_touch(struct layer *l, uint64_t dir, const char *name, size_t len);
/* Did this layer bring it? */
bool layer_has(const struct layer *l, uint64_t dir, const char *name, size_t len);
/* What lower layers have under a name goes; 0 too when there is no such name. */
int layer_hide(struct layer *l, uint64_t dir, const char *name, size_t len);
/* What lower layers have in a directory goes. */
int layer_hide_below(struct layer *l, uint64_t dir);
