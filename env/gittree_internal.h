/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The nodes of a gittree: gittree.c makes them and has their invariants, gittree_apply.c reads. */

#include "env/gittree.h"

enum node_kind {
	NODE_FILE,
	NODE_LINK,
	NODE_DIRECTORY,
	NODE_SUBMODULE,
	NODE_OTHER, /* what git cannot hold */
};

struct node {
	char *name; /* owned */
	enum node_kind kind;
	bool executable;      /* of files */
	bool hashed;	      /* id is the object's */
	bool has_id;	      /* id is, or was, the object's */
	bool changed;	      /* invariant 3 of gittree.c */
	bool empty;	      /* a directory: nothing in it is in the tree, which it has none of */
	bool extra;	      /* a directory: there is more below than its tree says */
	bool tracked;	      /* the index names it */
	bool ignored, judged; /* by .gitignore and the like; judged: that was asked */
	bool covered;	      /* with modes other than GITTREE_ALL: it is to be in the tree */
	uint64_t size;
	struct repo_id id;
	struct node **kids; /* owned, n of them, in order of name */
	size_t n, cap;
};

struct links { /* the submodules that the index names */
	struct link {
		char *path; /* owned */
		struct repo_id id;
	} * links; /* owned, in order of path */
	size_t n;
};

struct gittree {
	enum gittree_mode mode;
	struct node *root;
	struct links links;
};

struct node *node_find(const struct node *dir, const char *name);
