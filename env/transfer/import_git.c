/* SPDX-License-Identifier: Apache-2.0 */

/* A git revision becomes a state. */

#include "env/transfer/import_members.h"

int import_git(struct store *s, const char *path, const char *rev, const struct import_ops *ops,
	       struct root **ret_root, struct transfer_stats *ret)
{
	char *const argv[] = { "plyfs-git", "read", (char *)path, (char *)rev, NULL };
	_cleanup_(builder_release) struct builder b = { 0 };
	_cleanup_(helper_release) struct helper h = { 0 };
	int r;

	r = builder_init(&b, s, ops);
	if (r == 0)
		r = helper_start(&h, &b.talk, argv, -1);
	if (r == 0)
		r = import_members(&b, &h, &(struct import_rules){ .once = true }, NULL, 0);
	return r < 0 ? r : builder_finish(&b, ret_root, ret);
}
