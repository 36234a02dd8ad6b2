/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What a helper program reads becomes a tree. (import_members.c) */

#include "env/transfer/helper.h"
#include "env/transfer/layer.h"

struct import_rules {
	struct layer *layer; /* borrowed; NULL: no layer, names of whiteouts mean themselves */
	bool once;	     /* a second member of one name is a failure, else it wins */
};
/*
 * Every member that the helper tells of. ret_text (may be NULL): what came with its end.
 * Failures are noted.
 */
int import_members(struct builder *b, struct helper *h, const struct import_rules *rules,
		   char *ret_text, size_t size);
