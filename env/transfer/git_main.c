// SPDX-License-Identifier: Apache-2.0

/* plyfs-git: revisions in, hunks of patches out, by libgit2; see helper.h. */

#include "env/transfer/git.h"

int main(int argc, char **argv)
{
	struct chan c;
	bool reads = argc == 4 && strcmp(argv[1], "read") == 0;

	program_begin(&c, !reads);
	if (git_libgit2_init() < 0)
		program_fail(&c, -ENOMEM, "starting libgit2");
	if (reads)
		git_read(&c, argv[2], argv[3]);
	if (argc == 2 && strcmp(argv[1], "patch") == 0)
		git_hunks(&c);
	program_fail(&c, -EINVAL, "plyfs-git: '%s'", argc > 1 ? argv[1] : "");
}
