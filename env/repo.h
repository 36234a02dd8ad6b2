/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What libplyfs needs of git, through libgit2. Three things:
 *
 *  - questions about repositories of others, and a clone (what SWEEnv asks);
 *  - the *vault*, a bare repository of our own that holds the objects of checkpoints;
 *  - a work tree's repository, looked at without obeying what is none of its business: hooks and
 *    filters are never run, the user's and the system's configuration is not read.
 *
 * Functions return 0, a positive outcome that is named at the function, or fail() (env/status.h).
 * None keeps state between calls but through the handles, each of which is one thread's at a time.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "env/plyfs.h"

#define REPO_HEX 41 /* 40 hex digits and NUL */

/* ---- repositories of others ---- */

/* The top of the work tree that path is in. PLY_NOT_FOUND: it is in none. */
int repo_find(const char *path, struct ply_text *ret);
/*
 * path: a work tree's top. Dirty as SWE-agent asks it: staged or unstaged changes of tracked
 * files, submodules included; untracked files do not count. Nothing is refreshed or written.
 */
int repo_is_dirty(const char *path, bool *ret);
/*
 * What `git init; git remote add origin URL; git fetch origin REV; git checkout FETCH_HEAD` leaves:
 * a new repository at path (absent or an empty directory), HEAD detached at rev (a branch, a tag, a
 * commit, "HEAD" for the remote's). depth 1 asks for that commit alone; it is a wish (libgit2 from
 * 1.7 on). On failure path is as it was. PLY_TIMEOUT after timeout seconds (<= 0: none);
 * PLY_NOT_FOUND: the remote has no such rev; PLY_REMOTE. progress may be NULL.
 */
int repo_clone_at(const char *url, const char *rev, const char *path, int depth, double timeout,
		  void (*progress)(void *arg, unsigned received, unsigned total), void *arg);

/* ---- objects ---- */

enum repo_type { REPO_COMMIT = 1, REPO_TREE = 2, REPO_BLOB = 3 }; /* as git numbers them */

#define REPO_MODE_TREE 0040000u
#define REPO_MODE_FILE 0100644u
#define REPO_MODE_EXECUTABLE 0100755u
#define REPO_MODE_LINK 0120000u
#define REPO_MODE_COMMIT 0160000u

struct repo_id {
	unsigned char bytes[20];
};

bool repo_id_is(const struct repo_id *a, const struct repo_id *b);
const char *repo_id_hex(const struct repo_id *id, char buf[static REPO_HEX]);
/* 40 hex digits and what follows them. */
bool repo_id_parse(const char *hex, struct repo_id *ret);
/* Whether git can hold an entry of this name: not ".git" in any of its disguises, "." or "..". */
bool repo_name_ok(const char *name);

/*
 * Objects that are to be written together: hashed now, written later. The bytes of files are not
 * kept, but read again through dir_fd, which must show a tree that never changes.
 */
struct repo_batch {
	struct repo_object *objects; /* owned */
	size_t n, cap;
	int dir_fd; /* owned; -1: no file is in the batch */
};
struct repo_batch *repo_batch_new(void); /* NULL: no memory */
void repo_batch_free(struct repo_batch *b);
static inline void repo_batch_freep(struct repo_batch **b)
{
	repo_batch_free(*b);
}
/* data is copied. */
int repo_batch_add(struct repo_batch *b, enum repo_type type, const void *data, size_t len,
		   struct repo_id *ret);
/*
 * A regular file at path below dir_fd, size bytes. Where its bytes are the ones that `known` (may
 * be NULL) names, nothing is added.
 */
int repo_batch_add_file(struct repo_batch *b, int dir_fd, const char *path, uint64_t size,
			const struct repo_id *known, struct repo_id *ret);

/* ---- the vault ---- */

struct vault;

/* Makes it where there is none. */
int vault_open(const char *path, struct vault **ret);
void vault_close(struct vault *v);
const char *vault_path(const struct vault *v);
/* One pack of what the vault does not have yet, on disk when this returns. */
int vault_write(struct vault *v, struct repo_batch *const *batches, size_t n);
/* 1: there is no such ref. */
int vault_ref(struct vault *v, const char *ref, struct repo_id *ret);
/*
 * Sets ref to *id. Where it holds a commit that is not among *id's ancestors (another process
 * works on the same branch), to a merge of both with *id's tree, which *id then is: no checkpoint
 * ever falls off. A descendant of *id stays, and is *id then.
 */
int vault_set_ref(struct vault *v, const char *ref, struct repo_id *id);
int vault_drop_ref(struct vault *v, const char *ref);
/* A name for a ref, below refs/, that is no branch (HEAD may be at a branch). */
bool repo_ref_ok(const char *ref);

/* ---- a work tree's repository ---- */

struct repo;

/*
 * The one whose work tree's top is workdir, with the vault's settings in the place of the user's.
 * 1: there is none, or one that is damaged or of a form that we do not know (SHA-256). What could
 * not be looked at is a failure, not absence: commits would be left behind.
 */
int repo_open(const char *workdir, struct vault *v, struct repo **ret);
void repo_close(struct repo *r);
static inline void repo_closep(struct repo **r)
{
	if (*r)
		repo_close(*r);
}
/* git init, identity, .gitkeep, git add ., git commit -m initial. */
int repo_create(const char *workdir, struct vault *v);
/* Directories, ending in a slash: of HEAD and the index; of objects and refs. They may differ. */
const char *repo_git_dir(const struct repo *r);
const char *repo_common_dir(const struct repo *r);
/* user.name and user.email of the repository itself, else the defaults that are given. */
int repo_identity(struct repo *r, const char *name, const char *email, struct ply_text *ret_name,
		  struct ply_text *ret_email);
/* 1: there is no such ref. */
int repo_ref(struct repo *r, const char *ref, struct repo_id *ret);
/* Nothing is written when it is there already. */
int repo_set_ref(struct repo *r, const char *ref, const struct repo_id *id);
/* Sets it to where the vault's is now; nothing where that has none. */
int vault_show_ref(struct vault *v, const char *ref, struct repo *repo);
/* Lets the repository find the vault's objects, or no more; nothing is written when it is so. */
int repo_attach(struct repo *r, struct vault *v);
int repo_detach(struct repo *r, struct vault *v);
/* 1: workdir's .git, which repo_open may not understand, lets git find the vault's objects. */
int repo_is_attached(const char *workdir, struct vault *v);
/* What of id's history the vault does not have. */
int repo_copy_history(struct repo *r, const struct repo_id *id, struct vault *v);
/*
 * Copies files from one directory of objects (".../objects") to another: those of names ("ab/cd..",
 * "pack/...") that are of git's forms and not there yet. One that has vanished is a failure.
 */
int repo_copy_objects(const char *from, const char *to, char *const *names, size_t n);
/* All of the vault's to a directory of objects; no pack is merged away meanwhile. */
int vault_copy_objects(struct vault *v, const char *to);
/* All such names. */
int repo_list_objects(const char *objects, struct ply_list *ret);
/* Relative to the work tree's top; a directory's path ends in a slash. */
int repo_is_ignored(struct repo *r, const char *path, bool *ret);
/*
 * Entries of an index file in order of path. Absent: none. 1: it is damaged, or of a form that
 * libgit2 does not know (a split one, a sparse one), and none was told.
 */
int repo_index_each(const char *index_file,
		    int (*fn)(void *arg, const char *path, unsigned mode, const struct repo_id *id),
		    void *arg);

/*
 * A commit by any name that rev-parse takes, of the repository (may be NULL) or the vault.
 * 1: neither has it.
 */
int repo_resolve(struct repo *r, struct vault *v, const char *rev, struct repo_id *ret);

/* Reads objects of the repository (may be NULL) and the vault. */
struct repo_reader;
int repo_reader_open(struct repo *r, struct vault *v, struct repo_reader **ret);
void repo_reader_close(struct repo_reader *rd);
static inline void repo_reader_closep(struct repo_reader **rd)
{
	if (*rd)
		repo_reader_close(*rd);
}
int repo_read(struct repo_reader *rd, const struct repo_id *id, enum repo_type type,
	      struct ply_text *ret);

/* An entry of a tree object: name is lent from the object's bytes. 1: no more. */
struct repo_entry {
	const char *name;
	unsigned mode;
	struct repo_id id;
};
int repo_entry_next(const struct ply_text *tree, size_t *offset, struct repo_entry *ret);
