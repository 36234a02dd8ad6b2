/* SPDX-License-Identifier: Apache-2.0 */

/* plyfs-git: revisions in, hunks of patches out, by libgit2; see program.h. */

#include "env/formats/git.h"

/*
 * Debian's libgit2 reads the certificates of all authorities when it starts, for connections that
 * nobody makes here: 6 ms, more than all the rest of a patch. This stands in for mbed TLS's own;
 * where libgit2 has another TLS nobody calls it.
 */
__attribute__((visibility("default"))) int mbedtls_x509_crt_parse_file(void *chain,
								       const char *path);
int mbedtls_x509_crt_parse_file(void *chain, const char *path)
{
	return 0;
}

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
