/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The inside of repo.h, shared by repo.c (repositories of others), repo_objects.c (batches),
 * repo_vault.c and repo_work.c (a work tree's own). Of libplyfs they alone include this, and this
 * alone includes git2.h; libgit2's codes stop in them.
 *
 * Invariants:
 *  1. Nothing that a repository says is run: no hooks, no filters of its own, no helpers.
 *  2. A work tree's repository and the vault are opened with a configuration made of their own
 *     file and the vault's `defaults` alone. That goes by git_repository_open_bare, which asks
 *     neither who owns the directory nor what the user's configuration says; both would be
 *     questions about running what is in it (invariant 1). libgit2's options for this are global
 *     to the process, which is not ours.
 *  3. A pack is on disk before a ref names what is in it.
 *  4. The vault needs no object of another repository: whatever becomes of a work tree's .git, what
 *     was written to the vault is complete.
 */

#include <assert.h>
#include <git2.h>
#if __has_include(<git2/sys/errors.h>)
#include <git2/sys/errors.h> /* git_error_set_str, since libgit2 1.8 */
#endif
#include <git2/sys/odb_backend.h>
#include <git2/sys/repository.h>
#include <limits.h>

#include "env/repo.h"
#include "env/status.h"
#include "store/base/util.h"

static_assert(sizeof(struct repo_id) == GIT_OID_RAWSZ, "an id is a git_oid");

void use_libgit2(void); /* before the first call of it */
const char *git_why(void);

#define DEFINE_FREEP(type, fn)               \
	static inline void type##p(type **p) \
	{                                    \
		fn(*p);                      \
	}
DEFINE_FREEP(git_repository, git_repository_free)
DEFINE_FREEP(git_reference, git_reference_free)
DEFINE_FREEP(git_object, git_object_free)
DEFINE_FREEP(git_commit, git_commit_free)
DEFINE_FREEP(git_tree, git_tree_free)
DEFINE_FREEP(git_config, git_config_free)
DEFINE_FREEP(git_index, git_index_free)
DEFINE_FREEP(git_odb, git_odb_free)
DEFINE_FREEP(git_odb_object, git_odb_object_free)
DEFINE_FREEP(git_packbuilder, git_packbuilder_free)
DEFINE_FREEP(git_remote, git_remote_free)
DEFINE_FREEP(git_revwalk, git_revwalk_free)
DEFINE_FREEP(git_signature, git_signature_free)
DEFINE_FREEP(git_status_list, git_status_list_free)

static inline git_oid to_oid(const struct repo_id *id)
{
	git_oid oid;

	memcpy(&oid, id, sizeof(*id));
	return oid;
}

static inline struct repo_id of_oid(const git_oid *oid)
{
	struct repo_id id;

	memcpy(&id, oid, sizeof(id));
	return id;
}

/* ---- repo_objects.c ---- */

struct repo_object {
	git_oid id;
	enum repo_type type;
	char *data; /* owned; NULL: path below dir_fd has the bytes */
	char *path; /* owned, or NULL */
	int dir_fd; /* borrowed from the batch */
	size_t len;
};

int compare_objects(const void *a, const void *b); /* of struct repo_object *, by id */
/* An object database of these n, which are in order and borrowed. */
int objects_as_odb(struct repo_object **objects, size_t n, git_odb **ret);

/* ---- repo_vault.c ---- */

struct vault {
	char *path;	      /* owned */
	git_config *config;   /* owned: its own, and `defaults` below it */
	git_repository *repo; /* owned */
	git_odb *odb;	      /* owned: repo's */
};

/* A repository's own configuration (the file in dir) above the vault's defaults: invariant 2. */
int own_config(git_repository *repo, const char *dir, const char *vault, git_config **ret);
/* Writes what pb holds as a pack of dir/objects, on disk: invariant 3. */
int write_pack(git_packbuilder *pb, const char *dir, char ret_name[static NAME_MAX]);
/* 1: there is no such ref. */
int ref_id(git_repository *repo, const char *ref, struct repo_id *ret);
int set_ref(git_repository *repo, const char *ref, const struct repo_id *id);
/* All of a small file at once, or as it was. */
int write_file(const char *path, const void *data, size_t len);
