/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A tree node from arbitrary bytes: refused, or good enough that writing it gives the same bytes
 * and that each of its items goes through the filesystem's own decoders.
 */

#include <string.h>

#include "fs/format.h"
#include "store/base/err.h"
#include "store/node.h"
#include "tests/fuzz/fuzz.h"

static struct nodes *nodes;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	MUST(nodes_new(NULL, NULL, &nodes) == 0); /* no chunks: nothing here loads a child */
	return 0;
}

static void decode_item(const struct key *k, const struct val *v)
{
	struct dirent_item dirent;
	struct target_item target;
	struct xattr_item xattr;
	struct link_item link;
	struct extent extent;
	struct inode inode;
	uint8_t flags;

	/* Whatever the type says: a damaged key must not matter either. */
	if (inode_decode(k->a, v, &inode) >= 0) {
		uint8_t again[INODE_RECORD_BYTES];

		MUST(inode_ok(&inode));
		inode_encode(&inode, again);
		MUST(v->len == sizeof(again) && memcmp(again, v->data, v->len) == 0);
	}
	if (dirent_decode(v, &dirent) >= 0)
		MUST(dirent.len > 0 && !memchr(dirent.name, '/', dirent.len));
	if (xattr_decode(v, &xattr) >= 0)
		MUST(xattr.name_len <= XATTR_NAME_LEN_MAX && xattr.len <= XATTR_VALUE_MAX);
	if (target_decode(v, &target) >= 0)
		MUST(target.len <= TARGET_MAX);
	if (extent_decode(k, v, &extent) >= 0)
		MUST(extent_end(&extent) > extent.off);
	(void)link_decode(v, &link);
	(void)orphan_decode(v, &flags);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t again[NODE_MAX];
	struct node *n;
	uint32_t len;

	if (node_decode(nodes, data, size, &n) < 0)
		return 0;

	MUST(node_encode(n, again, &len) == 0);
	MUST(len == size && memcmp(again, data, size) == 0);
	for (unsigned i = 0; n->level == 0 && i < n->count; i++) {
		struct key k = slot_key(node_slots(n) + i);
		struct val v;

		leaf_val(n, i, &v);
		decode_item(&k, &v);
	}
	node_unref(n);
	return 0;
}
