/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The inside of a workspace: workspace_open.c makes and ends it, workspace.c is what it can do. */

#include <sys/types.h>

#include "env/own_fd.h"
#include "env/workspace.h"
#include "fs/ioctl.h"

enum ending { KEEP, WRITE_BACK, UNMOUNT, DROP };

struct workspace {
	char *path, *mount, *store; /* owned */
	char branch[PLYFS_NAME_SIZE];
	char *made;   /* owned: a directory that we made to mount on; NULL */
	char *aside;  /* owned: the same, for a snapshot; NULL */
	dev_t device; /* of the view: what st_dev says in it */
	bool is_new;  /* the branch: its name was made up, so nothing was ever made on it */
	enum ending ending;
	enum ending undoing;   /* what takes back what opening it did: KEEP, UNMOUNT or DROP */
	struct keeper *keeper; /* borrowed, kept until close: who was told; NULL: nobody */
	char ***first;	       /* owned: n_first of them, from workspace_on_death */
	size_t n_first;
	struct own_fd fd;      /* the view's root */
};
