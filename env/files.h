/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Files of a workspace, from outside, where nothing that lies in it may lead us out of it: not
 * "..", not an absolute path, not a symlink. A path is resolved as Python's Path.resolve does
 * (every symlink followed, also absolute ones that lead back in; what is not there is taken as it
 * is written), has to lie below root then, and is opened without following any symlink, so that a
 * link that is put there meanwhile leads nowhere.
 *
 * root: an absolute directory without symlinks. path: relative to it, or absolute.
 */

#include <stddef.h>

#include "env/plyfs.h"

/* path as absolute and without symlinks, whether it is there or not. */
int files_absolute(const char *path, char **ret);
/* Where it leads, relative to root ("." for root). PLY_DENIED "Path escapes workdir: PATH". */
int files_resolve(const char *root, const char *path, char **ret);
/* What files_resolve gave, as open(2) with O_CLOEXEC. A descriptor, or -errno. */
int files_open(const char *root, const char *resolved, int flags);

/*
 * A regular file: a descriptor, given. PLY_NOT_FOUND "File not found: PATH", PLY_IS_DIRECTORY,
 * PLY_INVALID: not a regular file.
 */
int files_open_to_read(const char *root, const char *path);
/* The same, and what it holds. */
int files_read(const char *root, const char *path, struct ply_text *ret);
/*
 * A regular file at its beginning, which keeps its links and its mode, gets other bytes. -errno: it
 * has what it had, when there is no room for them; at worst it is empty.
 */
int files_replace(int fd, const void *data, size_t len);
/* Makes parents; replaces. PLY_EXISTS: a parent is a file. PLY_IS_DIRECTORY. */
int files_write(const char *root, const char *path, const void *data, size_t len);
/*
 * From and to a path of the machine; permission bits come along for a file that is new.
 * PLY_INVALID when both are one file.
 */
int files_upload(const char *root, const char *local, const char *path);
int files_download(const char *root, const char *path, const char *local);
