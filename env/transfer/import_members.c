/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The members of an archive, as a helper program tells them, become a state; a layer of an image
 * changes one. The program knows the formats; what a member may do is decided here.
 *
 * Invariants:
 *  1. A member lands below the root or nowhere: absolute names and ".." are refused, and a name is
 *     resolved in the new tree component by component, through directories only. A symlink that the
 *     archive made earlier is never followed, neither by names nor by hard link targets (one that
 *     a lower layer made is, within the tree). An absolute name in a layer begins at the tree's
 *     root: it is of a machine whose root that is, and some programs write all of them so.
 *  2. The last member of a name wins. Of a directory that means its attributes; what it holds
 *    stays.
 *  3. Inode numbers follow the members; directories that no member describes come into being, with
 *     mode 0755 and the owner and times of the member that needs them.
 *  4. Only sizes and offsets that were checked against the member's own size reach the tree.
 *  5. A state is whole or there is none: what ends without REC_END is a failure.
 */

#include "env/transfer/import_members.h"

#include <errno.h>

#include "fs/format.h"
#include "store/chunk.h"

#define WHITEOUT ".wh."
#define LINKS_MAX 40 /* on the way to a member, as the kernel has it */

enum part { NOTHING, DATA, ATTRIBUTES }; /* which records of a member may come */

struct import {
	struct builder *b;     /* borrowed */
	struct helper *helper; /* borrowed */
	struct layer *layer;   /* borrowed; see import_rules */
	bool once;
	char *last_dir;	   /* owned: the directory of the member before, normalised; or NULL */
	uint64_t last_ino; /* its inode */
	char *clean;	   /* owned: the member's name, normalised: "a/b", "" for the root */
	char *clean_link;  /* owned: its hard link's target, the same way */
	size_t clean_cap, clean_link_cap;

	/* The member that is under way. */
	enum part part;
	char *member; /* owned: its name as it was written */
	size_t member_cap;
	struct inode i;
	bool again;	 /* a directory that was there before */
	struct writer w; /* its buf is owned */
	uint64_t end;	 /* of what came of its data */
};

static void import_release(struct import *im)
{
	free(im->last_dir);
	free(im->clean);
	free(im->clean_link);
	free(im->member);
	free(im->w.buf);
}

/* ---- names ---- */

/* Invariant 1, as far as the text of a name goes. A failure is noted with the member's name. */
static int clean_name(struct import *im, const char *member, const char *name, char **clean,
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
	if (name[0] == '/' && !im->layer)
		return talk_fail(&im->b->talk, -ERR_UNSAFE_PATH, "member '%s': absolute name '%s'",
				 member, name);
	while (*name) {
		size_t n = strcspn(name, "/");

		if (n == 2 && name[0] == '.' && name[1] == '.')
			return talk_fail(&im->b->talk, -ERR_UNSAFE_PATH,
					 "member '%s': a '..' in it", member);
		if (n > NAME_LEN_MAX)
			return talk_fail(&im->b->talk, -ENAMETOOLONG, "member '%s'", member);
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

static int add_missing_dir(struct import *im, uint64_t dir, const char *name, size_t len,
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

	r = builder_add(im->b, dir, name, len, &i, NULL);
	if (r < 0)
		return r;
	*ret = i;
	return talk_object(&im->b->talk, i.mode, 0);
}

/*
 * One component further, at *pos in *rest. In a layer a symlink of a lower one is no trick of this
 * one (/lib may be usr/lib there): AGAIN, and *rest begins anew with its target, which leads
 * through the tree only.
 */
static int next_dir(struct import *im, const char *member, const struct inode *like,
		    uint64_t *dir, char **rest, size_t *pos)
{
	const char *at = *rest + *pos;
	size_t n = strcspn(at, "/"), len;
	char target[TARGET_MAX + 1], *longer;
	struct inode i;
	int r;

	r = fs_lookup(&im->b->fs, *dir, at, n, &i);
	if (r == -ENOENT && like)
		r = add_missing_dir(im, *dir, at, n, like, &i);
	if (r == 0 && S_ISLNK(i.mode) && im->layer && !layer_has(im->layer, *dir, at, n)) {
		r = fs_readlink(&im->b->fs, i.ino, target, TARGET_MAX, &len);
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
	if (r == 0 && like && im->layer)
		r = layer_touch(im->layer, *dir, at, n);
	if (r < 0)
		return r;
	if (!member && !S_ISDIR(i.mode))
		return -ENOENT;
	if (S_ISLNK(i.mode))
		return talk_fail(&im->b->talk, -ERR_UNSAFE_PATH, "member '%s': '%.*s' is a symlink",
				 member, (int)n, at);
	if (!S_ISDIR(i.mode))
		return talk_fail(&im->b->talk, -ENOTDIR, "member '%s': '%.*s'", member, (int)n, at);
	*dir = i.ino;
	*pos += n + strspn(at + n, "/");
	return 0;
}

/*
 * The directory that path lies in, through directories only. like: made where missing, from this
 * member; NULL: -ENOENT. member: whose note it is that something is no directory; NULL: -ENOENT.
 */
static int find_parent(struct import *im, const char *member, const char *path,
		       const struct inode *like, uint64_t *ret_dir, const char **ret_name)
{
	const char *slash = strrchr(path, '/');
	size_t dir_len = slash ? (size_t)(slash - path) : 0;
	size_t last_len = im->last_dir ? strlen(im->last_dir) : 0;
	_cleanup_free_ char *rest = NULL;
	uint64_t dir = ROOT_INO;
	unsigned links = 0;
	size_t pos = 0;
	int r;

	*ret_name = slash ? slash + 1 : path;
	if (im->last_dir && last_len == dir_len && memcmp(im->last_dir, path, dir_len) == 0) {
		*ret_dir = im->last_ino;
		return 0;
	}
	rest = strndup(path, dir_len);
	if (!rest)
		return -ENOMEM;
	/* On from the last one, or a deep tree costs the square of its depth. */
	if (last_len > 0 && last_len < dir_len && path[last_len] == '/' &&
	    memcmp(im->last_dir, path, last_len) == 0) {
		dir = im->last_ino;
		pos = last_len + 1;
	}
	while (rest[pos]) {
		r = next_dir(im, member, like, &dir, &rest, &pos);
		if (r == AGAIN && ++links > LINKS_MAX)
			return member ? talk_fail(&im->b->talk, -ELOOP, "member '%s'", member)
				      : -ENOENT;
		if (r < 0)
			return r;
	}
	if (like) {
		free(im->last_dir);
		im->last_dir = strndup(path, dir_len);
		im->last_ino = dir;
	}
	*ret_dir = dir;
	return 0;
}

/*
 * Invariant 2: makes room for a member whose name is taken by something that it does not continue.
 */
static int remove_old(struct import *im, const char *member, uint64_t dir, const char *name,
		      const struct inode *old)
{
	int r = 0;

	free(im->last_dir); /* it may be the one that goes */
	im->last_dir = NULL;
	if (im->layer && S_ISDIR(old->mode)) /* what lower layers have in it goes, too */
		r = layer_hide_below(im->layer, old->ino);
	if (r == 0)
		r = builder_remove(im->b, dir, name, strlen(name), old);
	if (r < 0)
		return talk_fail(&im->b->talk, r, "member '%s' takes the place of another one",
				 member);
	return 0;
}

/* ---- what belongs to a member ---- */

static int put_data(struct import *im, const struct record *rec)
{
	const void *data;
	uint64_t off;
	size_t len;
	int r;

	if (im->part == ATTRIBUTES || !record_data(rec, &off, &data, &len))
		return helper_confused(im->helper);
	if (im->part == NOTHING)
		return 0; /* of a member that was not taken */
	if (!S_ISREG(im->i.mode) || off < im->end || off > im->i.size ||
	    len > im->i.size - off) /* invariant 4 */
		return talk_fail(&im->b->talk, -ERR_SOURCE, "member '%s': data outside of it",
				 im->member);
	r = writer_put(&im->w, off, data, len);
	if (r < 0)
		return r;
	im->end = off + len;
	return talk_cancelled(&im->b->talk);
}

/* Its data is complete. A directory gets its mode before ACLs, which have a say in it. */
static int end_data(struct import *im)
{
	int r = writer_flush(&im->w);

	im->part = ATTRIBUTES;
	return r == 0 && im->again ? builder_settle(im->b, &im->i, true) : r;
}

static int put_xattr(struct import *im, const struct record *rec)
{
	const char *name;
	const void *value;
	size_t len;
	int r;

	if (!record_xattr(rec, &name, &value, &len))
		return helper_confused(im->helper);
	if (im->part == NOTHING)
		return 0; /* of a member that was not taken */
	r = im->part == DATA ? end_data(im) : 0;
	if (r < 0)
		return r;
	r = fs_setxattr(&im->b->fs, im->i.ino, name, value, len, 0);
	if (r == -EINVAL && xattr_is_acl(name)) {
		talk_skip(&im->b->talk, "the ACL of '%s' is not a good one", im->member);
		return 0;
	}
	if (r == -EOPNOTSUPP || r == -EINVAL || r == -ERANGE || r == -E2BIG) {
		talk_skip(&im->b->talk, "attribute '%s' of '%s' cannot be kept", name, im->member);
		return 0;
	}
	if (r < 0)
		return talk_fail(&im->b->talk, r, "attribute '%s' of '%s'", name, im->member);
	return 0;
}

static int end_member(struct import *im)
{
	int r;

	if (im->part == NOTHING)
		return 0;
	r = im->part == DATA ? end_data(im) : 0;
	im->part = NOTHING;
	if (r < 0)
		return r;
	if (!im->again || im->once) /* once: again is the root alone, which counts there */
		return builder_done(im->b, &im->i, false);
	r = builder_settle(im->b, &im->i, false);
	return r < 0 ? r : talk_cancelled(&im->b->talk);
}

/* ---- members ---- */

static int import_link(struct import *im, const char *member, const char *link,
		       const struct inode *like)
{
	struct inode target, old;
	const char *name;
	uint64_t dir;
	int r;

	r = clean_name(im, member, link, &im->clean_link, &im->clean_link_cap);
	if (r < 0)
		return r;
	r = find_parent(im, member, im->clean_link, NULL, &dir, &name);
	if (r == 0)
		r = *name ? fs_lookup(&im->b->fs, dir, name, strlen(name), &target) : -EPERM;
	if (r == -ENOENT)
		return talk_fail(&im->b->talk, -ERR_SOURCE,
				 "member '%s': a hard link to '%s', which did not come before it",
				 member, link);
	if (r == 0 && S_ISDIR(target.mode))
		r = -EPERM;
	if (r < 0)
		return r == -ERR_UNSAFE_PATH || r == -ENOTDIR
			       ? r
			       : talk_fail(&im->b->talk, r, "member '%s': a hard link to '%s'",
					   member, link);

	r = find_parent(im, member, im->clean, like, &dir, &name);
	if (r == 0 && im->layer)
		r = layer_touch(im->layer, dir, name, strlen(name));
	if (r < 0)
		return r;
	r = fs_lookup(&im->b->fs, dir, name, strlen(name), &old);
	if (r == 0) {
		if (old.ino == target.ino)
			return 0;
		r = remove_old(im, member, dir, name, &old);
	}
	if (r < 0 && r != -ENOENT)
		return r;
	r = fs_add_link(&im->b->fs, dir, name, strlen(name), target.ino);
	return r < 0 ? talk_fail(&im->b->talk, r, "member '%s'", member) : 0;
}

/*
 * In a layer: ".wh.NAME" hides what lower layers have under NAME, ".wh..wh..opq" what they have in
 * this directory; other names that begin with ".wh..wh." are notes that one union filesystem left
 * for itself. ABSENT: an ordinary member.
 */
static int whiteout(struct import *im, const char *member)
{
	const char *name = strrchr(im->clean, '/');
	uint64_t dir;
	int r;

	name = name ? name + 1 : im->clean;
	if (strncmp(name, WHITEOUT, strlen(WHITEOUT)) != 0)
		return ABSENT;
	r = find_parent(im, NULL, im->clean, NULL, &dir, &name);
	if (r == -ENOENT)
		return 0; /* there is no such directory, or no more: nothing to hide */
	if (r < 0)
		return r;
	free(im->last_dir); /* a symlink on the way to it may be what goes */
	im->last_dir = NULL;
	if (strcmp(name, WHITEOUT WHITEOUT ".opq") == 0) {
		r = layer_hide_below(im->layer, dir);
	} else if (strncmp(name, WHITEOUT WHITEOUT, 2 * strlen(WHITEOUT)) != 0) {
		name += strlen(WHITEOUT);
		if (!name_is_plain(name, strlen(name)))
			return talk_fail(&im->b->talk, -ERR_UNSAFE_PATH,
					 "member '%s': a whiteout of no name", member);
		r = layer_hide(im->layer, dir, name, strlen(name));
	}
	return r < 0 ? talk_fail(&im->b->talk, r, "member '%s'", member) : 0;
}

/* Makes the object, or puts what is there to its use. */
static int place(struct import *im, struct inode *i, const char *target)
{
	const char *name;
	struct inode old;
	uint64_t dir;
	int r;

	if (!*im->clean) { /* the root itself */
		if (!S_ISDIR(i->mode))
			return talk_fail(&im->b->talk, -ERR_SOURCE, "member '%s' is no directory",
					 im->member);
		i->ino = ROOT_INO;
		im->again = true;
		return 0;
	}
	r = find_parent(im, im->member, im->clean, i, &dir, &name);
	if (r == 0 && im->layer)
		r = layer_touch(im->layer, dir, name, strlen(name));
	if (r < 0)
		return r;
	r = fs_lookup(&im->b->fs, dir, name, strlen(name), &old);
	if (r == 0 && im->once)
		return talk_fail(&im->b->talk, -EEXIST, "'%s'", im->member);
	if (r == 0 && S_ISDIR(old.mode) && S_ISDIR(i->mode)) {
		i->ino = old.ino;
		im->again = true;
		return 0;
	}
	if (r == 0)
		r = remove_old(im, im->member, dir, name, &old);
	if (r < 0 && r != -ENOENT)
		return r;
	r = builder_add(im->b, dir, name, strlen(name), i, target);
	return r < 0 ? talk_fail(&im->b->talk, r, "member '%s'", im->member) : 0;
}

static int begin_member(struct import *im, const struct record *rec)
{
	struct inode *i = &im->i;
	struct member m;
	int r;

	if (!record_member(rec, &m))
		return helper_confused(im->helper);
	r = path_put(&im->member, &im->member_cap, 0, m.path);
	if (r == 0)
		r = clean_name(im, m.path, m.path, &im->clean, &im->clean_cap);
	if (r < 0)
		return r;
	*i = m.inode;
	im->again = false;
	im->end = 0;
	if (im->layer) {
		r = whiteout(im, m.path);
		if (r != ABSENT)
			return r;
	}
	if (m.link && *im->clean)
		return import_link(im, m.path, m.link, i);

	switch (i->mode & S_IFMT) {
	case S_IFREG:
		if (i->size > (uint64_t)FILE_SIZE_MAX)
			return talk_fail(&im->b->talk, -EFBIG, "member '%s'", m.path);
		break;
	case S_IFLNK:
		if (m.target && strlen(m.target) > TARGET_MAX)
			return talk_fail(&im->b->talk, -ENAMETOOLONG, "member '%s': its target",
					 m.path);
		if (!m.target || !*m.target)
			return talk_fail(&im->b->talk, -ERR_SOURCE,
					 "member '%s': a symlink without a target", m.path);
		i->size = strlen(m.target);
		i->mode |= 0777; /* Linux has no others */
		break;
	case S_IFDIR:
		i->size = BLOCK_BYTES;
		break;
	case S_IFCHR:
	case S_IFBLK:
	case S_IFIFO:
	case S_IFSOCK:
		i->size = 0;
		break;
	default:
		talk_skip(&im->b->talk, "member '%s' is of no known type", m.path);
		return 0;
	}
	i->mode &= S_IFMT | 07777;
	if (!S_ISCHR(i->mode) && !S_ISBLK(i->mode))
		i->rdev = 0;
	r = place(im, i, m.target);
	if (r < 0)
		return r;
	im->w = (struct writer){ .b = im->b, .ino = i->ino, .buf = im->w.buf };
	im->part = DATA;
	return 0;
}

int import_members(struct builder *b, struct helper *h, const struct import_rules *rules,
		   char *ret_text, size_t size)
{
	_cleanup_(import_release) struct import im = {
		.b = b,
		.helper = h,
		.layer = rules->layer,
		.once = rules->once,
	};
	struct record rec;
	int r = 0;

	im.w.buf = malloc(CHUNK_MAX);
	if (!im.w.buf)
		return -ENOMEM;
	while (r == 0) {
		r = helper_get(h, &rec);
		if (r < 0)
			return r;
		switch (rec.kind) {
		case REC_MEMBER:
			r = end_member(&im);
			if (r == 0)
				r = begin_member(&im, &rec);
			break;
		case REC_DATA:
			r = put_data(&im, &rec);
			break;
		case REC_XATTR:
			r = put_xattr(&im, &rec);
			break;
		case REC_END:
			if (ret_text)
				record_text(&rec, ret_text, size);
			return end_member(&im);
		default:
			r = helper_confused(h);
		}
	}
	return r;
}
