/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What check.c finds and repair.c mends. */

#include "store/chunk.h"
#include "store/nameset.h"
#include "store/store_internal.h"

struct check_snap {
	uint64_t id;
	struct snap_record rec;
};

struct check_branch {
	char name[BRANCH_NAME_MAX + 1];
	struct branch_record rec;
};

/* A record that says nothing any more. */
struct check_key {
	enum index_table table;
	size_t len;
	uint8_t bytes[512]; /* LMDB's largest key is 511 */
};

struct range {
	struct key first, last;
};

/* What is known of a name, by its number in `names`. */
struct known {
	uint64_t off;
	uint32_t pack;
	uint32_t stored_len;
	uint32_t raw_len; /* 0: no usable index entry */
	uint32_t good;	  /* index + 1 in ranges: the subtree of this node is good there */
	uint8_t kind;
	bool in_index;
	bool bad;      /* its chunk cannot be trusted; was reported */
	bool header;   /* only its record's header is damaged; was reported */
	bool lost;     /* an earlier repair gave it up */
	bool reported; /* as unreadable or missing */
	bool referenced;
	bool node; /* counted as one */
};

/* A node that the walk is inside of. */
struct frame {
	uint32_t number;
	unsigned level;
	struct range range;
	uint64_t hurts; /* when it was entered */
};

struct check {
	struct store *store;
	const struct check_ops *ops;
	const struct progress *progress;
	unsigned flags;
	bool again; /* a repair looks once more: what is lost was told */
	struct check_stats stats;
	bool tables; /* the packs lack a record of the tables */

	uint32_t *bad_packs; /* with damaged headers; owned */
	size_t bad_pack_count, bad_pack_capacity;
	struct check_key *bad_keys; /* of damaged records; owned */
	size_t bad_key_count, bad_key_capacity;

	struct check_snap **snaps; /* sorted by id once read; owned */
	size_t snap_count, snap_capacity;
	struct check_branch **branches; /* owned */
	size_t branch_count, branch_capacity;

	struct nameset names;
	struct known *known; /* owned; as many as names */
	size_t known_capacity;
	struct range *ranges; /* owned */
	size_t range_count, range_capacity;

	/* of the state that is walked */
	uint64_t id;
	const char *branch;
	struct root *root;		    /* borrowed */
	struct frame frames[UINT8_MAX + 1]; /* a level is a byte */
	unsigned depth;
	uint64_t hurts; /* damage met so far */
};

/* Nothing looked at yet. */
int check_new(struct store *s, unsigned flags, const struct check_ops *ops,
	      const struct progress *progress, struct check **ret);
void check_free(struct check *c);
static inline void check_freep(struct check **c)
{
	if (*c)
		check_free(*c);
}

/*
 * The phases; see check.c. The first wants the records to stay as they are, and is EXISTS when
 * nothing can be said of the index's content.
 */
int check_records(struct check *c);
int check_chunks(struct check *c);
int check_trees(struct check *c);
/* Counts what belongs to nothing; 0 or EXISTS, as store_check. */
int check_end(struct check *c);

const struct check_snap *check_find_snap(const struct check *c, uint64_t id);
