/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Trees in and out of a store: directories, tar archives, git revisions. Importers build a new
 * state in a tree of their own and hand back its root; nothing of a branch changes until the
 * caller sets it. Exporters write a state and cannot leave their target directory.
 */

#include "fs/fs.h"
#include "store/store.h"

struct transfer_stats {
	uint64_t files, dirs, others, bytes, skipped;
};

/*
 * Inode numbers are dealt out in order of the walk (sorted by name) from 2 on, so that importing
 * the same source twice gives the same nodes and stores nothing new; ctime is the source's.
 * *ret_root is given. warn() gets one line for each thing left out (a socket that vanished, an
 * unreadable file is a failure: -errno after a note).
 *
 * An importer makes sure that the store deals out higher inode numbers from then on. Its chunks are
 * reachable from the root alone until the caller sets a branch: hold store_import_begin meanwhile.
 */
struct import_ops {
	void (*warn)(void *arg, const char *line);
	void *arg;
	const struct progress *progress; /* may be NULL; counts files */
	/* Where a failure's note goes (which member, which path); NULL: the store's. */
	const struct noter *noter;
};
/*
 * dir_fd: the directory to import (its own mode, owner, times become the root's). Other mounts
 * below it, and the store itself, are not entered: their directories arrive empty, with a warning.
 */
int import_directory(struct store *s, int dir_fd, const struct import_ops *ops,
		     struct root **ret_root, struct transfer_stats *ret);
/*
 * fd: a tar of any kind and compression libarchive knows. Hostile names are refused:
 * -ERR_UNSAFE_PATH.
 */
int import_tar(struct store *s, int fd, const struct import_ops *ops, struct root **ret_root,
	       struct transfer_stats *ret);
/*
 * dir_fd: an OCI image layout. ref: a tag, "@sha256:...", or NULL for the only image that is in it
 * and made for this machine. Each layer is a state; states that the store has (by their labels, on
 * snapshots that an import made) are not read again. Sizes and digests are verified. The caller
 * makes snapshots of the states whose id is 0, each the child of the one before, with their labels,
 * and of `root`. (import_oci.c)
 */
struct image_layer {
	char label[80];	   /* "oci:" and the chain id: names the content of the state */
	struct root *root; /* owned */
	uint64_t id;	   /* the snapshot that has it; 0: there is none yet */
	uint64_t lineage;  /* with id */
};
struct image {
	struct image_layer *layers; /* owned; the lowest first */
	size_t n;
	struct root *root; /* owned: the last layer's, IMAGE_XATTR on its root directory */
};
/* The image's "config", JSON: "Env", "WorkingDir", "User", ... (env/container.c reads it) */
#define IMAGE_XATTR "user.plyfs.oci"
void image_release(struct image *image);
int import_oci(struct store *s, int dir_fd, const char *ref, const struct import_ops *ops,
	       struct image *ret, struct transfer_stats *ret_stats);
/*
 * path: a repository; rev: anything git rev-parse takes. Times of all files: the commit's; owner:
 * ours. Submodules arrive as empty directories, with a warning. (formats/git_read.c)
 */
int import_git(struct store *s, const char *path, const char *rev, const struct import_ops *ops,
	       struct root **ret_root, struct transfer_stats *ret);

/*
 * dir_fd: an empty directory. Owners only as root (else the caller's); the rest is always kept,
 * except for what the target cannot hold (attributes, devices without privilege): warned of and
 * skipped.
 */
int export_directory(struct store *s, struct root *root, int dir_fd, const struct import_ops *ops,
		     struct transfer_stats *ret);
/*
 * PAX tar with ns times, xattrs, ACLs, hard links, sparse files. Sockets are skipped, as tar must.
 */
int export_tar(struct store *s, struct root *root, int fd, const struct import_ops *ops,
	       struct transfer_stats *ret);

/* A commit that is to be made. */
struct export_commit {
	const char *path;    /* the repository, bare or with a working tree */
	const char *ref;     /* of refs/heads/ the tip is the parent, others are replaced */
	const char *message; /* without the end of its line */
	int64_t time;	     /* of author and committer: s since 1970; to 2106, else it is told */
	unsigned umask;	     /* for the files of the repository */
};
#define COMMIT_ID_SIZE 41 /* SHA-1 in hex, which is all that libgit2 knows */
/*
 * A commit of what git can hold: regular files with the owner's executable bit, symlinks, the
 * directories that hold some. Names that git cannot have (".git" and the like, special files,
 * directories without files) are told in one line, and counted as skipped. Objects come first, the
 * ref last: what ends before leaves objects that git gc takes away. HEAD, index and working tree
 * stay as they are; a branch that is checked out is refused. (formats/git_write.c)
 */
int export_git(struct store *s, struct root *root, const struct export_commit *commit,
	       const struct import_ops *ops, char ret_id[static COMMIT_ID_SIZE],
	       struct transfer_stats *ret);

struct change;
/*
 * Changes as git tells them. The contents are compared by a program of its own (plyfs-git), which
 * is started for the first that needs it and ends with the patcher. ops: for what it says, and to
 * cancel; s and ops are kept until patcher_free. One thread at a time.
 */
struct patcher;
int patcher_new(struct store *s, const struct import_ops *ops, struct patcher **ret);
void patcher_free(struct patcher *p);
static inline void patcher_freep(struct patcher **p)
{
	if (*p)
		patcher_free(*p);
}
/*
 * One change as git prints it (`git apply` takes it): header, mode lines, rename lines, hunks or a
 * GIT binary patch. Bytes are loaded from the trees of the two states. out is borrowed; a failure
 * to write to it is one. Nothing is printed for what git does not know (directories, owners,
 * times).
 * AGAIN: git has no form for one side of it (a fifo, socket or device), which was taken for absent.
 * -EFBIG: a file larger than PATCH_FILE_MAX (env/formats/chan.h); nothing was printed. After any
 * other failure a part may have been printed; what plyfs-git failed of is noted. (patch.c)
 */
int patch_print(struct patcher *p, FILE *out, const struct fs *old_fs, const struct fs *new_fs,
		const struct change *c);
/*
 * Added and removed lines of one change for --stat; binary: both are sizes in bytes (the new one is
 * added, the old one removed). Special files and directories count as empty. Failures of plyfs-git
 * are noted. (patch.c)
 */
int patch_count(struct patcher *p, const struct fs *old_fs, const struct fs *new_fs,
		const struct change *c, uint64_t *ret_added, uint64_t *ret_removed,
		bool *ret_binary);
