/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The parts of plyfs-git, the only program that includes git2.h for the daemon. */

#include <errno.h>
#include <git2.h>
#if __has_include(<git2/sys/errors.h>)
#include <git2/sys/errors.h> /* git_error_clear, since libgit2 1.8 */
#endif
#include <string.h>

#include "env/dotgit.h"
#include "env/formats/program.h"

/*
 * The tree of a revision: a REC_MEMBER for each object, a directory before what it holds, and its
 * content in REC_DATA; then REC_END. Names are git's, unchecked. (git_read.c)
 */
_Noreturn void git_read(struct chan *c, const char *path, const char *rev);
/*
 * A commit of the files and symlinks that come as REC_MEMBER with their REC_DATA, names in the
 * order of a walk, until REC_END; the answer's REC_END has its id. Bytes that are not sent are
 * zeros. words: the repository, the ref, the umask in octal, the time, the message. (git_write.c)
 */
_Noreturn void git_write(struct chan *c, char *const words[]);
/*
 * For each REC_SIDES with its contents: the hunks (or the GIT binary patch) in REC_TEXT, unless
 * only the count is wanted, then REC_COUNT. Until the daemon goes. (git_hunks.c)
 */
_Noreturn void git_hunks(struct chan *c);

/* Ends the program with `code` when it cannot be opened. */
git_repository *git_open(struct chan *c, const char *path, int code);

/* What git refuses in trees: a name that is or could be taken for "." or ".." or ".git". */
static inline bool git_name_is_bad(const char *name)
{
	return !*name || strchr(name, '/') || strcmp(name, ".") == 0 || strcmp(name, "..") == 0 ||
	       dotgit_in(name);
}

/* After git_error_clear() and errno = 0: what the system said, where libgit2 says nothing. */
static inline const char *git_why(void)
{
	const git_error *e = git_error_last();

	if (e && e->message && e->klass != GIT_ERROR_NONE)
		return e->message;
	return errno ? strerror(errno) : "libgit2 does not say why";
}
