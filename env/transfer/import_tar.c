// SPDX-License-Identifier: Apache-2.0

/*
 * A tar archive becomes a state, or a layer of an image changes one. libarchive knows the formats
 * and compressions; what a member may do is decided here.
 *
 * Invariants:
 *  1. A member lands below the root or nowhere: absolute names and ".." are refused, and a name is
 *     resolved in the new tree component by component, through directories only. A symlink that the
 *     archive made earlier is never followed, neither by names nor by hard link targets (one that
 *     a lower layer made is, within the tree).
 *  2. The last member of a name wins. Of a directory that means its attributes; what it holds
 *    stays.
 *  3. Inode numbers follow the members; directories that no member describes come into being, with
 *     mode 0755 and the owner and times of the member that needs them.
 *  4. Only sizes and offsets that were checked against the member's own size reach the tree.
 */

#include <errno.h>
#include <fcntl.h>
#include <poll.h>

#include "env/transfer/layer.h"
#include "env/transfer/tar.h"
#include "env/transfer/transfer_internal.h"
#include "fs/format.h"
#include "store/chunk.h"

#define WHITEOUT ".wh."
#define LINKS_MAX 40 /* on the way to a member, as the kernel has it */

#define READ_BYTES \
	(128 * 1024) /* at a time from the file: pipes give 64 KiB at most, disks like more */

struct tar_import {
	struct builder *b;	 /* borrowed */
	struct layer *layer;	 /* borrowed; NULL: not a layer */
	struct archive *archive; /* owned */
	struct tar_locale locale;
	char *last_dir;	   /* owned: the directory of the member before, normalised; or NULL */
	uint64_t last_ino; /* its inode */
	char *clean;	   /* owned: the member's name, normalised: "a/b", "" for the root */
	char *clean_link;  /* owned: its hard link's target, the same way */
	size_t clean_cap, clean_link_cap;
	uint8_t *buf; /* owned: CHUNK_MAX for the writer */
};

static void tar_import_release(struct tar_import *ti)
{
	if (ti->archive)
		(void)archive_read_free(ti->archive);
	free(ti->last_dir);
	free(ti->clean);
	free(ti->clean_link);
	free(ti->buf);
	tar_locale_leave(&ti->locale);
}

/* After libarchive failed: why. */
static int archive_failed(struct tar_import *ti, const char *what)
{
	const char *why = archive_error_string(ti->archive);
	int no = archive_errno(ti->archive), r = -ERR_SOURCE;

	if (no == ECANCELED)
		return -ERR_CANCELLED;
	if (no == ENOMEM)
		r = -ENOMEM;
	return talk_fail(&ti->b->talk, r, "%s: %s", what,
			 why ? why : "libarchive does not say why");
}

/* ---- names ---- */

/* Invariant 1, as far as the text of a name goes. A failure is noted with the member's name. */
static int clean_name(struct tar_import *ti, const char *member, const char *name, char **clean,
		      size_t *cap)
{
	size_t need = strlen(name) + 1, len = 0;

	if (need > *cap) {
		size_t bigger = MAX(2 * *cap, need);
		char *p = realloc(*clean, bigger);

		if (!p)
			return -ENOMEM;
		*clean = p;
		*cap = bigger;
	}
	if (name[0] == '/')
		return talk_fail(&ti->b->talk, -ERR_UNSAFE_PATH, "member '%s': absolute name '%s'",
				 member, name);
	while (*name) {
		size_t n = strcspn(name, "/");

		if (n == 2 && name[0] == '.' && name[1] == '.')
			return talk_fail(&ti->b->talk, -ERR_UNSAFE_PATH,
					 "member '%s': a '..' in it", member);
		if (n > NAME_LEN_MAX)
			return talk_fail(&ti->b->talk, -ENAMETOOLONG, "member '%s'", member);
		if (n > 0 && !(n == 1 && name[0] == '.')) {
			if (len > 0)
				(*clean)[len++] = '/';
			memcpy(*clean + len, name, n);
			len += n;
		}
		name += n + (name[n] == '/');
	}
	(*clean)[len] = '\0';
	return 0;
}

static int add_missing_dir(struct tar_import *ti, uint64_t dir, const char *name, size_t len,
			   const struct inode *like, struct inode *ret)
{
	struct inode i = {
		.mode = S_IFDIR | 0755,
		.uid = like->uid,
		.gid = like->gid,
		.size = BLOCK_BYTES,
		.atime = like->mtime,
		.mtime = like->mtime,
		.ctime = like->mtime,
		.btime = like->mtime,
	};
	int r;

	r = builder_add(ti->b, dir, name, len, &i, NULL);
	if (r < 0)
		return r;
	*ret = i;
	return talk_object(&ti->b->talk, i.mode, 0);
}

/*
 * One component further, at *pos in *rest. In a layer a symlink of a lower one is no trick of this
 * one (/lib may be usr/lib there): AGAIN, and *rest begins anew with its target, which leads
 * through the tree only.
 */
static int next_dir(struct tar_import *ti, const char *member, const struct inode *like,
		    uint64_t *dir, char **rest, size_t *pos)
{
	const char *at = *rest + *pos;
	size_t n = strcspn(at, "/"), len;
	char target[TARGET_MAX + 1], *longer;
	struct inode i;
	int r;

	r = fs_lookup(&ti->b->fs, *dir, at, n, &i);
	if (r == -ENOENT && like)
		r = add_missing_dir(ti, *dir, at, n, like, &i);
	if (r == 0 && S_ISLNK(i.mode) && ti->layer && !layer_has(ti->layer, *dir, at, n)) {
		r = fs_readlink(&ti->b->fs, i.ino, target, TARGET_MAX, &len);
		if (r < 0)
			return r;
		target[len] = '\0';
		if (asprintf(&longer, "%s/%s", target, at + n) < 0)
			return -ENOMEM;
		free(*rest);
		*rest = longer;
		*pos = strspn(longer, "/");
		if (target[0] == '/')
			*dir = ROOT_INO;
		return AGAIN;
	}
	if (r == 0 && like && ti->layer)
		r = layer_touch(ti->layer, *dir, at, n);
	if (r < 0)
		return r;
	if (S_ISLNK(i.mode))
		return talk_fail(&ti->b->talk, -ERR_UNSAFE_PATH, "member '%s': '%.*s' is a symlink",
				 member, (int)n, at);
	if (!S_ISDIR(i.mode))
		return talk_fail(&ti->b->talk, -ENOTDIR, "member '%s': '%.*s'", member, (int)n, at);
	*dir = i.ino;
	*pos += n + strspn(at + n, "/");
	return 0;
}

/*
 * The directory that path lies in, through directories only. like: made where missing, from this
 * member; NULL: -ENOENT.
 */
static int find_parent(struct tar_import *ti, const char *member, const char *path,
		       const struct inode *like, uint64_t *ret_dir, const char **ret_name)
{
	const char *slash = strrchr(path, '/');
	size_t dir_len = slash ? (size_t)(slash - path) : 0;
	_cleanup_free_ char *rest = NULL;
	uint64_t dir = ROOT_INO;
	unsigned links = 0;
	size_t pos = 0;
	int r;

	*ret_name = slash ? slash + 1 : path;
	if (ti->last_dir && strlen(ti->last_dir) == dir_len &&
	    memcmp(ti->last_dir, path, dir_len) == 0) {
		*ret_dir = ti->last_ino;
		return 0;
	}
	rest = strndup(path, dir_len);
	if (!rest)
		return -ENOMEM;
	while (rest[pos]) {
		r = next_dir(ti, member, like, &dir, &rest, &pos);
		if (r == AGAIN && ++links > LINKS_MAX)
			return talk_fail(&ti->b->talk, -ELOOP, "member '%s'", member);
		if (r < 0)
			return r;
	}
	if (like) {
		free(ti->last_dir);
		ti->last_dir = strndup(path, dir_len);
		ti->last_ino = dir;
	}
	*ret_dir = dir;
	return 0;
}

/*
 * Invariant 2: makes room for a member whose name is taken by something that it does not continue.
 */
static int remove_old(struct tar_import *ti, const char *member, uint64_t dir, const char *name,
		      const struct inode *old)
{
	int r = 0;

	free(ti->last_dir); /* it may be the one that goes */
	ti->last_dir = NULL;
	if (ti->layer && S_ISDIR(old->mode)) /* what lower layers have in it goes, too */
		r = layer_hide_below(ti->layer, old->ino);
	if (r == 0)
		r = builder_remove(ti->b, dir, name, strlen(name), old);
	if (r < 0)
		return talk_fail(&ti->b->talk, r, "member '%s' takes the place of another one",
				 member);
	return 0;
}

/* ---- what a member is ---- */

static void inode_of(struct archive_entry *entry, struct inode *ret)
{
	struct timens m = { 0 };

	if (archive_entry_mtime_is_set(entry))
		m = tar_time_in(archive_entry_mtime(entry), archive_entry_mtime_nsec(entry));
	*ret = (struct inode){
		.mode = archive_entry_filetype(entry) | (archive_entry_perm(entry) & 07777),
		.uid = (uint32_t)archive_entry_uid(entry),
		.gid = (uint32_t)archive_entry_gid(entry),
		.atime = m,
		.mtime = m,
		.ctime = m,
		.btime = m,
	};
	if (archive_entry_atime_is_set(entry))
		ret->atime =
			tar_time_in(archive_entry_atime(entry), archive_entry_atime_nsec(entry));
	if (archive_entry_ctime_is_set(entry))
		ret->ctime =
			tar_time_in(archive_entry_ctime(entry), archive_entry_ctime_nsec(entry));
	if (archive_entry_birthtime_is_set(entry))
		ret->btime = tar_time_in(archive_entry_birthtime(entry),
					 archive_entry_birthtime_nsec(entry));
	if (S_ISCHR(ret->mode) || S_ISBLK(ret->mode))
		ret->rdev = archive_entry_rdev(entry);
	if (S_ISREG(ret->mode))
		ret->size = (uint64_t)archive_entry_size(entry);
	if (S_ISDIR(ret->mode))
		ret->size = BLOCK_BYTES;
}

static int put_acl(struct tar_import *ti, struct archive_entry *entry, const char *member,
		   uint64_t ino, int type, const char *name)
{
	_cleanup_free_ void *value = NULL;
	unsigned unknown;
	size_t len;
	int r;

	r = tar_acl_in(entry, type, &value, &len, &unknown);
	if (unknown > 0)
		talk_skip(&ti->b->talk, "%u ACL entries of '%s' name users or groups unknown here",
			  unknown, member);
	if (r != 0)
		return r < 0 ? r : 0;
	r = fs_setxattr(&ti->b->fs, ino, name, value, len, 0);
	if (r == -EINVAL || r == -EOPNOTSUPP) {
		talk_skip(&ti->b->talk, "the ACL of '%s' is not a good one", member);
		return 0;
	}
	return r;
}

static int put_xattrs(struct tar_import *ti, struct archive_entry *entry, const char *member,
		      const struct inode *i)
{
	const char *keyword;
	const void *value;
	size_t len;
	int r;

	archive_entry_xattr_reset(entry);
	while (archive_entry_xattr_next(entry, &keyword, &value, &len) == ARCHIVE_OK) {
		_cleanup_free_ char *name = NULL;

		r = keyword ? tar_xattr_name(keyword, &name) : 0;
		if (r < 0)
			return r;
		r = name ? fs_setxattr(&ti->b->fs, i->ino, name, value, len, 0) : -EINVAL;
		if (r == -EOPNOTSUPP || r == -EINVAL || r == -ERANGE || r == -E2BIG) {
			talk_skip(&ti->b->talk, "attribute '%s' of '%s' cannot be kept",
				  name ? name : "", member);
			continue;
		}
		if (r < 0)
			return talk_fail(&ti->b->talk, r, "attribute '%s' of '%s'", name, member);
	}
	r = put_acl(ti, entry, member, i->ino, ARCHIVE_ENTRY_ACL_TYPE_ACCESS,
		    "system.posix_acl_access");
	if (r == 0 && S_ISDIR(i->mode))
		r = put_acl(ti, entry, member, i->ino, ARCHIVE_ENTRY_ACL_TYPE_DEFAULT,
			    "system.posix_acl_default");
	return r;
}

static int put_data(struct tar_import *ti, const char *member, const struct inode *i)
{
	struct writer w = { .b = ti->b, .ino = i->ino, .buf = ti->buf };
	uint64_t end = 0;
	int r;

	for (;;) {
		const void *data;
		la_int64_t off;
		size_t len;

		r = archive_read_data_block(ti->archive, &data, &len, &off);
		if (r == ARCHIVE_EOF)
			return writer_flush(&w);
		if (r < ARCHIVE_WARN)
			return archive_failed(ti, member);
		if (len == 0)
			continue;
		if (off < 0 || (uint64_t)off < end || (uint64_t)off > i->size ||
		    len > i->size - (uint64_t)off) /* invariant 4 */
			return talk_fail(&ti->b->talk, -ERR_SOURCE,
					 "member '%s': data outside of it", member);
		r = writer_put(&w, (uint64_t)off, data, len);
		if (r < 0)
			return r;
		end = (uint64_t)off + len;
		r = talk_cancelled(&ti->b->talk);
		if (r < 0)
			return r;
	}
}

static int import_link(struct tar_import *ti, const char *member, const char *link,
		       const struct inode *like)
{
	struct inode target, old;
	const char *name;
	uint64_t dir;
	int r;

	r = clean_name(ti, member, link, &ti->clean_link, &ti->clean_link_cap);
	if (r < 0)
		return r;
	r = find_parent(ti, member, ti->clean_link, NULL, &dir, &name);
	if (r == 0)
		r = *name ? fs_lookup(&ti->b->fs, dir, name, strlen(name), &target) : -EPERM;
	if (r == -ENOENT)
		return talk_fail(&ti->b->talk, -ERR_SOURCE,
				 "member '%s': a hard link to '%s', which did not come before it",
				 member, link);
	if (r == 0 && S_ISDIR(target.mode))
		r = -EPERM;
	if (r < 0)
		return r == -ERR_UNSAFE_PATH || r == -ENOTDIR
			       ? r
			       : talk_fail(&ti->b->talk, r, "member '%s': a hard link to '%s'",
					   member, link);

	r = find_parent(ti, member, ti->clean, like, &dir, &name);
	if (r == 0 && ti->layer)
		r = layer_touch(ti->layer, dir, name, strlen(name));
	if (r < 0)
		return r;
	r = fs_lookup(&ti->b->fs, dir, name, strlen(name), &old);
	if (r == 0) {
		if (old.ino == target.ino)
			return 0;
		r = remove_old(ti, member, dir, name, &old);
	}
	if (r < 0 && r != -ENOENT)
		return r;
	r = fs_add_link(&ti->b->fs, dir, name, strlen(name), target.ino);
	return r < 0 ? talk_fail(&ti->b->talk, r, "member '%s'", member) : 0;
}

/*
 * In a layer: ".wh.NAME" hides what lower layers have under NAME, ".wh..wh..opq" what they have in
 * this directory; other names that begin with ".wh..wh." are notes that one union filesystem left
 * for itself. ABSENT: an ordinary member.
 */
static int whiteout(struct tar_import *ti, const char *member)
{
	const char *name = strrchr(ti->clean, '/');
	uint64_t dir;
	int r;

	name = name ? name + 1 : ti->clean;
	if (strncmp(name, WHITEOUT, strlen(WHITEOUT)) != 0)
		return ABSENT;
	r = find_parent(ti, member, ti->clean, NULL, &dir, &name);
	if (r == -ENOENT)
		return 0; /* there is no such directory: nothing to hide */
	if (r < 0)
		return r;
	if (strcmp(name, WHITEOUT WHITEOUT ".opq") == 0) {
		r = layer_hide_below(ti->layer, dir);
	} else if (strncmp(name, WHITEOUT WHITEOUT, 2 * strlen(WHITEOUT)) != 0) {
		name += strlen(WHITEOUT);
		if (!name_is_plain(name, strlen(name)))
			return talk_fail(&ti->b->talk, -ERR_UNSAFE_PATH,
					 "member '%s': a whiteout of no name", member);
		r = layer_hide(ti->layer, dir, name, strlen(name));
	}
	return r < 0 ? talk_fail(&ti->b->talk, r, "member '%s'", member) : 0;
}

static int import_member(struct tar_import *ti, struct archive_entry *entry)
{
	const char *member = archive_entry_pathname(entry), *name, *target = NULL;
	const char *link = archive_entry_hardlink(entry);
	struct inode i, old;
	uint64_t dir;
	bool again = false;
	int r;

	if (!member)
		return talk_fail(&ti->b->talk, -ERR_SOURCE, "a member without a name");
	inode_of(entry, &i);
	r = clean_name(ti, member, member, &ti->clean, &ti->clean_cap);
	if (r < 0)
		return r;
	if (ti->layer) {
		r = whiteout(ti, member);
		if (r != ABSENT)
			return r;
	}
	if (link && *ti->clean)
		return import_link(ti, member, link, &i);

	switch (i.mode & S_IFMT) {
	case S_IFREG:
		if (archive_entry_size(entry) < 0 || i.size > (uint64_t)FILE_SIZE_MAX)
			return talk_fail(&ti->b->talk, -EFBIG, "member '%s'", member);
		break;
	case S_IFLNK:
		target = archive_entry_symlink(entry);
		if (!target || !*target || strlen(target) > TARGET_MAX)
			return talk_fail(&ti->b->talk, -ERR_SOURCE,
					 "member '%s': a symlink without a target", member);
		i.size = strlen(target);
		break;
	case S_IFDIR:
	case S_IFCHR:
	case S_IFBLK:
	case S_IFIFO:
	case S_IFSOCK:
		break;
	default:
		talk_skip(&ti->b->talk, "member '%s' is of no known type", member);
		return 0;
	}

	if (!*ti->clean) { /* the root itself */
		if (!S_ISDIR(i.mode))
			return talk_fail(&ti->b->talk, -ERR_SOURCE, "member '%s' is no directory",
					 member);
		i.ino = ROOT_INO;
		again = true;
	} else {
		r = find_parent(ti, member, ti->clean, &i, &dir, &name);
		if (r == 0 && ti->layer)
			r = layer_touch(ti->layer, dir, name, strlen(name));
		if (r < 0)
			return r;
		r = fs_lookup(&ti->b->fs, dir, name, strlen(name), &old);
		if (r == 0 && S_ISDIR(old.mode) && S_ISDIR(i.mode)) {
			i.ino = old.ino;
			again = true;
		} else if (r == 0) {
			r = remove_old(ti, member, dir, name, &old);
		}
		if (r < 0 && r != -ENOENT)
			return r;
		if (!again) {
			r = builder_add(ti->b, dir, name, strlen(name), &i, target);
			if (r < 0)
				return talk_fail(&ti->b->talk, r, "member '%s'", member);
		}
	}

	if (S_ISREG(i.mode) && i.size > 0) {
		r = put_data(ti, member, &i);
		if (r < 0)
			return r;
	}
	if (again) { /* before ACLs, which have a say in the mode */
		r = builder_settle(ti->b, &i, true);
		if (r < 0)
			return r;
	}
	r = put_xattrs(ti, entry, member, &i);
	if (r < 0)
		return r;
	if (!again)
		return builder_done(ti->b, &i, false);
	r = builder_settle(ti->b, &i, false);
	return r < 0 ? r : talk_cancelled(&ti->b->talk);
}

int import_members(struct builder *b, const struct tar_source *source, struct layer *layer)
{
	_cleanup_(tar_import_release) struct tar_import ti = { .b = b, .layer = layer };
	struct archive_entry *entry;
	int r;

	r = tar_locale_enter(&ti.locale, "C");
	if (r < 0)
		return r;
	ti.buf = malloc(CHUNK_MAX);
	ti.archive = archive_read_new();
	if (!ti.buf || !ti.archive)
		return -ENOMEM;

	(void)archive_read_support_filter_all(ti.archive); /* warns of those that run a program */
	if (archive_read_support_format_tar(ti.archive) != ARCHIVE_OK ||
	    archive_read_open(ti.archive, source->arg, NULL, source->read, NULL) != ARCHIVE_OK)
		return archive_failed(&ti, "opening the archive");

	for (;;) {
		r = archive_read_next_header(ti.archive, &entry);
		if (r == ARCHIVE_EOF)
			return 0;
		if (r < ARCHIVE_WARN) /* a warning: names that are not ASCII; see tar.h */
			return archive_failed(&ti, "reading the archive");
		r = import_member(&ti, entry);
		if (r < 0)
			return r;
	}
}

/* ---- a root tar ---- */

struct file_source {
	struct talk *talk; /* borrowed */
	int fd;		   /* borrowed */
	char in[READ_BYTES];
};

static la_ssize_t read_file(struct archive *a, void *arg, const void **ret)
{
	struct file_source *f = arg;
	struct pollfd p = { .fd = f->fd, .events = POLLIN };
	ssize_t n;

	*ret = f->in;
	do {
		/* Whoever writes to a pipe may take for ever: look up now and then. */
		do {
			if (talk_cancelled(f->talk) < 0) {
				archive_set_error(a, ECANCELED, "cancelled");
				return -1;
			}
		} while (poll(&p, 1, TALK_POLL_MS) == 0);
		n = read(f->fd, f->in, READ_BYTES);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		archive_set_error(a, errno, "%s", strerror(errno));
	return n;
}

int import_tar(struct store *s, int fd, const struct import_ops *ops, struct root **ret_root,
	       struct transfer_stats *ret)
{
	_cleanup_(builder_release) struct builder b = { 0 };
	_cleanup_free_ struct file_source *f = calloc(1, sizeof(*f));
	int r;

	if (!f)
		return -ENOMEM;
	r = builder_init(&b, s, ops);
	if (r < 0)
		return r;
	f->talk = &b.talk;
	f->fd = fd;
	r = import_members(&b, &(struct tar_source){ .read = read_file, .arg = f }, NULL);
	if (r < 0)
		return r;
	return builder_finish(&b, ret_root, ret);
}
