/* SPDX-License-Identifier: Apache-2.0 */

/* An archive of any kind that libarchive knows becomes a state. */

#include "env/transfer/import_members.h"

int import_tar(struct store *s, int fd, const struct import_ops *ops, struct root **ret_root,
	       struct transfer_stats *ret)
{
	static char *const argv[] = { "plyfs-tar", "read", NULL };
	_cleanup_(builder_release) struct builder b = { 0 };
	_cleanup_(helper_release) struct helper h = { 0 };
	int r;

	r = builder_init(&b, s, ops);
	if (r == 0)
		r = helper_start(&h, &b.talk, argv, fd);
	if (r == 0)
		r = import_members(&b, &h, &(struct import_rules){ 0 }, NULL, 0);
	return r < 0 ? r : builder_finish(&b, ret_root, ret);
}
