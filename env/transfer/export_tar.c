// SPDX-License-Identifier: Apache-2.0

/*
 * A state becomes a PAX archive: "./" for the root, then every name in order of path. The same
 * state gives the same bytes.
 *
 * Invariants:
 *  1. Names are bytes: what is not UTF-8 goes into PAX records marked hdrcharset=BINARY.
 *  2. The first name of a hard link group carries the content; the others are links to it.
 *  3. Data runs of a sparse file are stored, holes are not; a file of one run is stored plainly.
 */

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <sys/stat.h>

#include "env/transfer/tar.h"
#include "env/transfer/transfer_internal.h"
#include "fs/format.h"

#define COPY_BYTES (1024 * 1024) /* as export_dir.c */

struct tar_export {
	struct talk talk;
	struct fs fs;
	struct tree *tree;	     /* owned */
	struct archive *archive;     /* owned */
	struct archive_entry *entry; /* owned */
	int fd;			     /* borrowed */
	bool is_file;		     /* fd is: a write to it does not wait for anybody */
	struct tar_locale locale;
	struct link_table links; /* ino -> index + 1 */
	char **paths;		 /* owned, each too */
	size_t n_paths, paths_cap;
	char *buf;		    /* owned: COPY_BYTES */
	char *zeros;		    /* owned: COPY_BYTES of them */
	char *xattr;		    /* owned: 2 * XATTR_BYTES_MAX */
	const struct walk_entry *e; /* what is being written */
	uint64_t written;	    /* bytes of it, holes included */
	unsigned runs;
	int write_error; /* -errno once the descriptor refused */
	bool given_up;	 /* nothing more is written */
};

static void tar_export_release(struct tar_export *te)
{
	if (te->entry)
		archive_entry_free(te->entry);
	if (te->archive)
		(void)archive_write_free(te->archive); /* a good end was archive_write_close's */
	for (size_t i = 0; i < te->n_paths; i++)
		free(te->paths[i]);
	free(te->paths);
	link_table_release(&te->links);
	free(te->buf);
	free(te->zeros);
	free(te->xattr);
	tree_freep(&te->tree);
	tar_locale_leave(&te->locale);
}

/*
 * Never fails as far as libarchive is told: after a failure it would neither let us end the archive
 * nor free all it has. write_error is looked at after each call instead.
 */
static la_ssize_t write_target(struct archive *a, void *arg, const void *data, size_t len)
{
	struct tar_export *te = arg;
	struct pollfd p = { .fd = te->fd, .events = POLLOUT };
	ssize_t n;

	if (te->given_up || te->write_error < 0)
		return (la_ssize_t)len;
	do {
		/* Whoever reads a pipe may take for ever: look up now and then. */
		do {
			if (talk_cancelled(&te->talk) < 0) {
				te->write_error = -ERR_CANCELLED;
				return (la_ssize_t)len;
			}
		} while (poll(&p, 1, TALK_POLL_MS) == 0);
		/* Ready means that PIPE_BUF bytes go in without waiting; a file takes all. */
		n = write(te->fd, data, te->is_file ? len : MIN(len, (size_t)PIPE_BUF));
	} while (n < 0 && errno == EINTR);
	if (n < 0) {
		te->write_error = -errno;
		return (la_ssize_t)len;
	}
	return n;
}

/* After a call of libarchive that returned ok or not. */
static int check_archive(struct tar_export *te, bool ok, const char *what)
{
	const char *why = ok ? NULL : archive_error_string(te->archive);

	if (te->write_error == -ERR_CANCELLED)
		return te->write_error;
	if (te->write_error < 0)
		return talk_fail(&te->talk, te->write_error, "writing the archive");
	if (ok)
		return 0;
	return talk_fail(&te->talk, -EIO, "%s: %s", what,
			 why ? why : "libarchive does not say why");
}

static int write_bytes(struct tar_export *te, const char *data, size_t len)
{
	while (len > 0) {
		la_ssize_t n = archive_write_data(te->archive, data, len);
		int r = check_archive(te, n > 0, te->e->path);

		if (r < 0)
			return r;
		te->written += (uint64_t)n;
		data += n;
		len -= (size_t)n;
	}
	return talk_cancelled(&te->talk);
}

/* libarchive counts through holes with us; the zeros themselves go nowhere. */
static int skip_to(struct tar_export *te, uint64_t off)
{
	int r = 0;

	while (r == 0 && te->written < off)
		r = write_bytes(te, te->zeros, MIN(off - te->written, (uint64_t)COPY_BYTES));
	return r;
}

static int write_run(void *arg, uint64_t off, uint64_t len)
{
	struct tar_export *te = arg;
	int r;

	r = skip_to(te, off);
	while (r == 0 && len > 0) {
		size_t n = MIN(len, (uint64_t)COPY_BYTES), got;

		r = fs_read(&te->fs, te->e->inode.ino, off, te->buf, n, &got);
		if (r == 0 && got != n)
			r = -ERR_ITEM_DAMAGED;
		if (r < 0)
			return talk_fail(&te->talk, r, "reading '%s'", te->e->path);
		r = write_bytes(te, te->buf, n);
		off += n;
		len -= n;
	}
	return r;
}

static int count_run(void *arg, uint64_t off, uint64_t len)
{
	struct tar_export *te = arg;

	te->runs++;
	archive_entry_sparse_add_entry(te->entry, (la_int64_t)off, (la_int64_t)len);
	return 0;
}

static int put_xattr(void *arg, const char *name, const void *value, size_t len)
{
	struct tar_export *te = arg;

	if (strcmp(name, "system.posix_acl_access") == 0)
		return tar_acl_out(te->entry, ARCHIVE_ENTRY_ACL_TYPE_ACCESS, value, len);
	if (strcmp(name, "system.posix_acl_default") == 0)
		return tar_acl_out(te->entry, ARCHIVE_ENTRY_ACL_TYPE_DEFAULT, value, len);
	archive_entry_xattr_add_entry(te->entry, name, value, len);
	return 0;
}

static int describe(struct tar_export *te)
{
	const struct inode *i = &te->e->inode;
	struct archive_entry *entry = te->entry;
	_cleanup_free_ char *dir = NULL;
	char target[TARGET_MAX + 1];
	int64_t sec;
	long nsec;
	size_t len;
	int r;

	archive_entry_clear(entry);
	archive_entry_set_pathname(entry, te->e->path);
	if (S_ISDIR(i->mode)) {
		if (asprintf(&dir, "%s/", te->e->depth == 0 ? "." : te->e->path) < 0)
			return -ENOMEM;
		archive_entry_set_pathname(entry, dir);
	}
	archive_entry_set_mode(entry, i->mode);
	archive_entry_set_uid(entry, i->uid);
	archive_entry_set_gid(entry, i->gid);
	tar_time_out(i->mtime, &sec, &nsec);
	archive_entry_set_mtime(entry, sec, nsec);
	tar_time_out(i->atime, &sec, &nsec);
	archive_entry_set_atime(entry, sec, nsec);
	tar_time_out(i->ctime, &sec, &nsec);
	archive_entry_set_ctime(entry, sec, nsec);
	if (S_ISCHR(i->mode) || S_ISBLK(i->mode))
		archive_entry_set_rdev(entry, i->rdev);

	r = walk_xattrs(&te->fs, i, te->xattr, put_xattr, te);
	if (r < 0)
		return r;
	if (S_ISLNK(i->mode)) {
		r = fs_readlink(&te->fs, i->ino, target, TARGET_MAX, &len);
		if (r < 0)
			return r;
		target[len] = '\0';
		archive_entry_set_symlink(entry, target);
	}
	archive_entry_set_size(entry, S_ISREG(i->mode) ? (la_int64_t)i->size : 0);
	if (!S_ISREG(i->mode) || i->size == 0)
		return 0;

	te->runs = 0;
	r = walk_data(&te->fs, i, count_run, te);
	if (r < 0)
		return r;
	if (te->runs == 0) /* one hole: an empty run says so */
		archive_entry_sparse_add_entry(entry, 0, 0);
	return 0;
}

static int write_header(struct tar_export *te)
{
	int r = archive_write_header(te->archive, te->entry);

	return check_archive(te, r >= ARCHIVE_WARN, te->e->path); /* a warning: invariant 1 */
}

static int remember(struct tar_export *te)
{
	if (te->e->inode.nlink < 2 || S_ISDIR(te->e->inode.mode))
		return 0;
	if (te->n_paths == te->paths_cap) {
		size_t cap = te->paths_cap ? 2 * te->paths_cap : 64;
		char **p = realloc(te->paths, cap * sizeof(*p));

		if (!p)
			return -ENOMEM;
		te->paths = p;
		te->paths_cap = cap;
	}
	te->paths[te->n_paths] = strdup(te->e->path);
	if (!te->paths[te->n_paths])
		return -ENOMEM;
	te->n_paths++;
	return link_table_put(&te->links, 0, te->e->inode.ino, te->n_paths);
}

static int export_one(void *arg, const struct walk_entry *e)
{
	struct tar_export *te = arg;
	const struct inode *i = &e->inode;
	uint64_t first = 0;
	int r;

	te->e = e;
	if (S_ISSOCK(i->mode)) {
		talk_skip(&te->talk, "'%s' is a socket, which a tar cannot hold", e->path);
		return 0;
	}
	r = describe(te);
	if (r < 0)
		return talk_fail(&te->talk, r, "reading '%s'", e->path);

	if (!S_ISDIR(i->mode))
		first = link_table_get(&te->links, 0, i->ino);
	if (first) { /* invariant 2 */
		archive_entry_sparse_clear(te->entry);
		archive_entry_set_size(te->entry, 0);
		archive_entry_set_hardlink(te->entry, te->paths[first - 1]);
		return write_header(te);
	}
	r = write_header(te);
	if (r < 0)
		return r;
	if (S_ISREG(i->mode) && i->size > 0) {
		te->written = 0;
		r = walk_data(&te->fs, i, write_run, te);
		if (r == 0)
			r = skip_to(te, i->size);
		if (r < 0)
			return r;
	}
	r = remember(te);
	if (r < 0)
		return r;
	return talk_object(&te->talk, i->mode, S_ISREG(i->mode) ? i->size : 0);
}

int export_tar(struct store *s, struct root *root, int fd, const struct import_ops *ops,
	       struct transfer_stats *ret)
{
	static const struct walk_ops walk = { .enter = export_one, .object = export_one };
	_cleanup_(tar_export_release) struct tar_export te = {
		.talk = { .store = s, .ops = ops, .what = "exporting" },
		.fd = fd,
	};
	struct stat st;
	int r;

	if (fstat(fd, &st) < 0)
		return -errno;
	te.is_file = S_ISREG(st.st_mode);
	r = tree_new(store_nodes(s), root, &te.tree);
	if (r < 0)
		return r;
	r = tar_locale_enter(&te.locale, "C.UTF-8");
	if (r < 0)
		return r;
	te.fs = (struct fs){ .store = s, .tree = te.tree };
	te.buf = malloc(COPY_BYTES);
	te.zeros = calloc(1, COPY_BYTES);
	te.xattr = malloc(2 * XATTR_BYTES_MAX);
	te.archive = archive_write_new();
	te.entry = archive_entry_new();
	if (!te.buf || !te.zeros || !te.xattr || !te.archive || !te.entry)
		return -ENOMEM;

	if (archive_write_set_format_pax(te.archive) != ARCHIVE_OK ||
	    /* the form of attributes that GNU tar knows; of the other one it complains */
	    archive_write_set_format_option(te.archive, "pax", "xattrheader", "SCHILY") !=
		    ARCHIVE_OK ||
	    archive_write_set_bytes_in_last_block(te.archive, 1) != ARCHIVE_OK ||
	    archive_write_open(te.archive, &te, NULL, write_target, NULL) != ARCHIVE_OK)
		return check_archive(&te, false, "starting the archive");

	r = walk_state(&te.talk, &te.fs, &walk, &te);
	te.given_up = r < 0; /* no end mark behind half an archive */
	if (archive_write_close(te.archive) != ARCHIVE_OK && r == 0)
		r = check_archive(&te, false, "ending the archive");
	if (r == 0)
		r = check_archive(&te, true, "");
	if (r < 0)
		return r;
	if (ret)
		*ret = te.talk.stats;
	return 0;
}
