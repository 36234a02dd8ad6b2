/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What importers and exporters share: a builder (a tree that grows, inode numbers in order, notes
 * and progress), a writer (bytes in, chunk-sized pieces out), a walker (a state in order of path),
 * and a table of hard links.
 */

#include "env/transfer/transfer.h"
#include "store/base/err.h"
#include "store/base/util.h"
#include "store/tree.h"

/* ---- talk: warnings, notes, progress, cancelling; the same for both directions ---- */

struct talk {
	struct store *store;	      /* borrowed */
	const struct import_ops *ops; /* borrowed; may be NULL */
	const char *what;	      /* "importing", "exporting" */
	struct transfer_stats stats;
	uint64_t objects;
};

/* One line to ops->warn; counts one skipped. */
void talk_skip(struct talk *t, const char *fmt, ...) _printf_(2, 3);
/* One line to ops->warn: something came, but not all of it. */
void talk_warn(struct talk *t, const char *fmt, ...) _printf_(2, 3);
/* Notes why, returns r. */
int talk_fail(struct talk *t, int r, const char *fmt, ...) _printf_(3, 4);
/* 0 or -ERR_CANCELLED; call it often (it looks at a flag). */
int talk_cancelled(const struct talk *t);
/* One more object is done: counts it by its type, shows progress; 0 or -ERR_CANCELLED. */
int talk_object(struct talk *t, uint32_t mode, uint64_t bytes);

/* ---- hard links: (device, inode) -> a number of the caller's ---- */

struct link_slot {
	uint64_t dev, ino, value; /* value 0: free */
};
struct link_table {
	struct link_slot *slots; /* owned */
	size_t n, cap;		 /* cap: 0 or a power of two */
};
void link_table_release(struct link_table *t);
/* 0: not there. */
uint64_t link_table_get(const struct link_table *t, uint64_t dev, uint64_t ino);
int link_table_put(struct link_table *t, uint64_t dev, uint64_t ino, uint64_t value);

/* ---- names ---- */

/* A single component that can be made below a directory: not empty, no dots, no slash, fits. */
bool name_is_plain(const char *name, size_t len);

/* A path from the top as messages have it: the top's own, "", would be no word. */
static inline const char *path_shown(const char *path)
{
	return *path ? path : ".";
}

/* ---- building ---- */

struct builder {
	struct talk talk;
	struct tree *tree; /* owned */
	struct fs fs;
	uint64_t next_ino;
	uint64_t limit; /* store_import_limit's */
};

/* The tree has its root directory afterwards, mode 0755, owned by 0, at time 0. */
int builder_init(struct builder *b, struct store *s, const struct import_ops *ops);
/*
 * Continues a state instead (borrowed); numbers are dealt from next_ino on, above all of its own.
 */
int builder_continue(struct builder *b, struct store *s, const struct import_ops *ops,
		     struct root *root, uint64_t next_ino);
void builder_release(struct builder *b);
/* Freezes, raises the store's inode numbers, hands over root and statistics. Goes on if wanted. */
int builder_finish(struct builder *b, struct root **ret_root, struct transfer_stats *ret);

/*
 * Adds an object below dir under the next number; i->ino is set. i: mode, owner, rdev, size, times.
 */
int builder_add(struct builder *b, uint64_t dir, const char *name, size_t len, struct inode *i,
		const char *target);
/*
 * Takes a name away, an empty directory's or anything else's, and the object with its last name;
 * times stay as they were. old: what is behind the name. -ENOTEMPTY.
 */
int builder_remove(struct builder *b, uint64_t dir, const char *name, size_t len,
		   const struct inode *old);
/*
 * Ends an object that was added (and filled): what adding data and attributes did to its times is
 * undone. With `all`, mode and owner too are taken from i (an object described twice).
 */
int builder_settle(struct builder *b, const struct inode *i, bool all);
/* The same, and the object is counted (talk_object). */
int builder_done(struct builder *b, const struct inode *i, bool all);

/*
 * Bytes on their way into a file: collects runs into pieces of CHUNK_MAX, as fs_import_data wants
 * them. Offsets ascend.
 */
struct writer {
	struct builder *b; /* borrowed */
	uint64_t ino;
	uint64_t off; /* of buf in the file */
	size_t len;   /* bytes in buf */
	uint8_t *buf; /* borrowed: CHUNK_MAX bytes */
};
int writer_put(struct writer *w, uint64_t off, const void *data, size_t len);
int writer_flush(struct writer *w);

/*
 * Puts "/NAME" behind the first parent_len bytes of *path (nothing but NAME at 0), NUL-terminated;
 * *cap is its room. -ENOMEM.
 */
int path_put(char **path, size_t *cap, size_t parent_len, const char *name);

/* ---- walking a state ---- */

struct walk_entry {
	const char *path; /* from the root, no leading slash, "" for the root; lent */
	size_t path_len;
	const char *name; /* the last part of path */
	size_t depth;	  /* 0: the root */
	struct inode inode;
};
struct walk_ops {
	int (*enter)(void *arg, const struct walk_entry *e); /* a directory, before what it holds */
	int (*object)(void *arg, const struct walk_entry *e); /* anything else; NULL: not wanted */
	int (*leave)(void *arg, const struct walk_entry *e);  /* the directory again; may be NULL */
};
/*
 * Every name of a state, names of a directory in byte order, a directory's content behind its name.
 * What is damaged on disk (names that are none, directories in a circle) is -ERR_ITEM_DAMAGED with
 * a note. Non-zero from a callback stops and is returned.
 */
int walk_state(struct talk *t, const struct fs *fs, const struct walk_ops *ops, void *arg);

/*
 * The runs of data of a regular file, ascending; fn's non-zero return stops and is returned.
 */
int walk_data(const struct fs *fs, const struct inode *i,
	      int (*fn)(void *arg, uint64_t off, uint64_t len), void *arg);

#define XATTR_BYTES_MAX (64 * 1024) /* the system's limits for one value and for a list of names */

/* Each extended attribute. buf: 2 * XATTR_BYTES_MAX bytes of the caller's. */
int walk_xattrs(const struct fs *fs, const struct inode *i, char *buf,
		int (*fn)(void *arg, const char *name, const void *value, size_t len), void *arg);

static inline bool xattr_is_acl(const char *name)
{
	return strncmp(name, "system.posix_acl_", strlen("system.posix_acl_")) == 0;
}
