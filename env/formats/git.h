/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The parts of plyfs-git, the only program that includes git2.h for the daemon. */

#include <errno.h>
#include <git2.h>

#include "env/formats/program.h"

/*
 * The tree of a revision: a REC_MEMBER for each object, a directory before what it holds, and its
 * content in REC_DATA; then REC_END. Names are git's, unchecked. (git_read.c)
 */
_Noreturn void git_read(struct chan *c, const char *path, const char *rev);
/*
 * For each REC_SIDES with its contents: the hunks (or the GIT binary patch) in REC_TEXT, unless
 * only the count is wanted, then REC_COUNT. Until the daemon goes. (git_hunks.c)
 */
_Noreturn void git_hunks(struct chan *c);

static inline const char *git_why(void)
{
	const git_error *e = git_error_last();

	return e && e->message ? e->message : "libgit2 does not say why";
}
