/* SPDX-License-Identifier: Apache-2.0 */

/* plyfs-git: revisions in and out, hunks of patches, by libgit2; see program.h. */

#include <pwd.h>
#include <stdlib.h>
#include <unistd.h>

#include "env/formats/git.h"
#include "store/base/err.h"

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

git_repository *git_open(struct chan *c, const char *path, int code)
{
	git_repository *repo = NULL;
	int r = git_repository_open_ext(&repo, path, GIT_REPOSITORY_OPEN_NO_SEARCH, NULL);

	/* 1.5 forgets the code when nothing is configured; the message names the option. */
	if (r == GIT_EOWNER || (r < 0 && strstr(git_why(), "safe.directory")))
		program_fail(c, code,
			     "repository '%s' belongs to somebody else; if you trust it: "
			     "git config --global --add safe.directory '%s'",
			     path, path);
	if (r == GIT_ENOTFOUND && code == -ERR_TARGET)
		program_fail(c, code, "no git repository is there; 'git init --bare' makes one");
	if (r < 0)
		program_fail(c, code, "repository '%s': %s", path, git_why());
	return repo;
}

/*
 * The configuration is that of whom we run as. A daemon that root started for somebody else's store
 * has root's HOME still, which libgit2 fails of where it may not look.
 */
static void find_home(void)
{
	const char *home = getenv("HOME"), *config = getenv("XDG_CONFIG_HOME");
	const struct passwd *user;

	if (config && access(config, X_OK) < 0 && errno == EACCES)
		(void)unsetenv("XDG_CONFIG_HOME"); /* fails for no name of ours, as setenv */
	if (!home || access(home, X_OK) == 0 || errno != EACCES)
		return;
	user = getpwuid(geteuid());
	(void)setenv("HOME", user ? user->pw_dir : "/nonexistent", 1);
}

int main(int argc, char **argv)
{
	struct chan c;
	bool reads = argc == 4 && strcmp(argv[1], "read") == 0;
	bool writes = argc == 7 && strcmp(argv[1], "write") == 0;

	program_begin(&c, !reads && !writes);
	if (reads || writes)
		find_home();
	if (git_libgit2_init() < 0)
		program_fail(&c, -ENOMEM, "starting libgit2");
	if (reads)
		git_read(&c, argv[2], argv[3]);
	if (writes)
		git_write(&c, argv + 2);
	if (argc == 2 && strcmp(argv[1], "patch") == 0)
		git_hunks(&c);
	program_fail(&c, -EINVAL, "plyfs-git: '%s'", argc > 1 ? argv[1] : "");
}
