/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A directory as git would hold it, kept in memory from one snapshot to the next, so that a
 * checkpoint hashes what changed and nothing else. Knows names, modes and object ids; git itself
 * is behind repo.h.
 *
 * What is in the trees of git objects that come out:
 *  - regular files (100755 when the owner may execute), symlinks; directories that hold one;
 *  - of a submodule (a directory that the index has as a commit, with a repository in it or empty)
 *    the commit that its HEAD is at. The files of any other repository below are files like others;
 *  - nothing named .git or like it, at no depth; no fifos, sockets, devices, empty directories,
 *    files of more than GITTREE_FILE_MAX bytes, paths of more than GITTREE_PATH_MAX, symlinks
 *    named .gitmodules, and nothing that we may not read. git cannot hold these, or would not.
 */

#include "env/repo.h"

#define GITTREE_FILE_MAX (1ull << 30) /* libgit2 holds a file in memory while it packs it */
#define GITTREE_PATH_MAX 4000	      /* with a prefix it must not exceed PATH_MAX */

enum gittree_mode {
	GITTREE_ALL,	   /* every file */
	GITTREE_UNTRACKED, /* what `git add .` would take: all but ignored files */
	GITTREE_TRACKED,   /* files that the index names */
};

struct gittree;

int gittree_new(enum gittree_mode mode, struct gittree **ret);
int gittree_copy(const struct gittree *t, struct gittree **ret);
void gittree_free(struct gittree *t);
static inline void gittree_freep(struct gittree **t)
{
	gittree_free(*t);
}

/*
 * One step: from the snapshot that the tree is of to another one, shown at path (its descriptor
 * dir_fd) and never changing. changed: paths below it that may differ, ended by NUL, `len` bytes
 * in all; NULL: any. New objects go to the batch. After a failure the tree can only be freed.
 */
int gittree_update(struct gittree *t, const char *path, int dir_fd, const char *changed, size_t len,
		   struct vault *v, struct repo_batch *batch, struct repo_id *ret);
/* Whether a change of this path could make a difference to the tree. */
bool gittree_concerns(const struct gittree *t, const char *path);

/*
 * Makes the directory dir_fd, which is what the tree was last updated to, hold tree `id` of rd:
 * what differs is replaced, and what the tree's mode covers and `id` has not is removed (with
 * GITTREE_ALL also what git cannot hold; with it and GITTREE_UNTRACKED empty directories).
 * Directories with a name in exclude (':'-separated) and repositories below are left alone.
 * Never goes through a symlink. Stops at the first failure, half way.
 */
int gittree_apply(struct gittree *t, int dir_fd, struct repo_reader *rd, const struct repo_id *id,
		  const char *exclude);
