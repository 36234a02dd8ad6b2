/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Root at another user's store: what lies there is that user's to make, and may be a link. */

#include <sys/stat.h>

/* Becomes the store's owner for good, if root started us for somebody else's store. -errno. */
int become_owner(const struct stat *st);

/*
 * Between these two what is opened in the store (dir_fd) is opened as its owner, who has to be able
 * to open it, too. Nothing happens where we are not root, or the store is root's. -errno.
 */
int owner_begin(int dir_fd);
void owner_end(void);
