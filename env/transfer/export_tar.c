/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A state becomes a PAX archive: "./" for the root, then every name in order of path. The same
 * state gives the same bytes. Here is the walk; plyfs-tar writes the archive (tar_write.c).
 *
 * Invariants:
 *  1. The first name of a hard link group carries the content; the others are links to it.
 *  2. A file's runs are told when it has a hole, before its data; no data is sent for a hole.
 *  3. No two wait for each other: plyfs-tar says nothing after its greeting but its last word,
 *     which is shorter than any socket's buffer. So it never waits for us to read, and we wait for
 *     it only where cancelling is looked at.
 */

#include <errno.h>
#include <sys/stat.h>

#include "env/transfer/helper.h"
#include "fs/format.h"
#include "store/base/os.h"

#define COPY_BYTES (128 * 1024) /* one chunk */

struct tar_export {
	struct talk talk;
	struct helper helper;
	struct fs fs;
	struct tree *tree;	 /* owned */
	struct link_table links; /* ino -> index + 1 */
	char **paths;		 /* owned, each too */
	size_t n_paths, paths_cap;
	char *buf;		    /* owned: COPY_BYTES */
	char *xattr;		    /* owned: 2 * XATTR_BYTES_MAX */
	const struct walk_entry *e; /* what is being sent */
	bool any_run;		    /* it has data */
	bool refused;		    /* plyfs-tar takes no more; that is noted */
};

static void tar_export_release(struct tar_export *te)
{
	helper_release(&te->helper);
	for (size_t i = 0; i < te->n_paths; i++)
		free(te->paths[i]);
	free(te->paths);
	link_table_release(&te->links);
	free(te->buf);
	free(te->xattr);
	tree_freep(&te->tree);
}

/* r: of a chan_put or chan_flush. */
static int sent(struct tar_export *te, int r)
{
	if (r >= 0)
		return 0;
	te->refused = true;
	return helper_refused(&te->helper, r);
}

static int put_xattr(void *arg, const char *name, const void *value, size_t len)
{
	struct tar_export *te = arg;

	return sent(te, chan_put_xattr(&te->helper.chan, name, value, len));
}

static int put_run(void *arg, uint64_t off, uint64_t len)
{
	struct tar_export *te = arg;

	te->any_run = true;
	if (off == 0 && len == te->e->inode.size) /* no hole */
		return 0;
	return sent(te, chan_put_run(&te->helper.chan, REC_RUN, off, len));
}

static int put_data(void *arg, uint64_t off, uint64_t len)
{
	struct tar_export *te = arg;
	int r = 0;

	while (r == 0 && len > 0) {
		size_t n = MIN(len, (uint64_t)COPY_BYTES), got;

		r = fs_read(&te->fs, te->e->inode.ino, off, te->buf, n, &got);
		if (r == 0 && got != n)
			r = -ERR_ITEM_DAMAGED;
		if (r == 0)
			r = sent(te, chan_put_data(&te->helper.chan, off, te->buf, n));
		if (r == 0)
			r = talk_cancelled(&te->talk);
		off += n;
		len -= n;
	}
	return r;
}

/* link: the name that carries the content; or NULL: this one. */
static int send_member(struct tar_export *te, const char *link)
{
	const struct inode *i = &te->e->inode;
	struct member m = { .inode = *i, .path = te->e->path, .link = link };
	char target[TARGET_MAX + 1];
	size_t len;
	int r;

	if (S_ISLNK(i->mode)) {
		r = fs_readlink(&te->fs, i->ino, target, TARGET_MAX, &len);
		if (r < 0)
			return r;
		target[len] = '\0';
		m.target = target;
	}
	r = sent(te, chan_put_member(&te->helper.chan, &m));
	if (r == 0)
		r = walk_xattrs(&te->fs, i, te->xattr, put_xattr, te);
	if (r < 0 || link || !S_ISREG(i->mode) || i->size == 0)
		return r;

	te->any_run = false;
	r = walk_data(&te->fs, i, put_run, te);
	if (r == 0 && !te->any_run) /* one hole: an empty run says so */
		r = sent(te, chan_put_run(&te->helper.chan, REC_RUN, 0, 0));
	return r < 0 ? r : walk_data(&te->fs, i, put_data, te);
}

static int remember(struct tar_export *te)
{
	int r;

	if (te->e->inode.nlink < 2 || S_ISDIR(te->e->inode.mode))
		return 0;
	r = os_grow(&te->paths, &te->paths_cap, te->n_paths + 1, sizeof(*te->paths));
	if (r < 0)
		return r;
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
	if (chan_ready(&te->helper.chan)) /* it has failed: the rest need not be read */
		return sent(te, -EPIPE);

	if (!S_ISDIR(i->mode))
		first = link_table_get(&te->links, 0, i->ino);
	r = send_member(te, first ? te->paths[first - 1] : NULL);
	if (r < 0 && !te->refused && r != -ERR_CANCELLED)
		return talk_fail(&te->talk, r, "reading '%s'", e->path);
	if (r < 0 || first) /* invariant 1 */
		return r;

	r = remember(te);
	if (r < 0)
		return r;
	return talk_object(&te->talk, i->mode, S_ISREG(i->mode) ? i->size : 0);
}

static int finish(struct tar_export *te)
{
	struct record rec;
	int r;

	r = sent(te, chan_put(&te->helper.chan, REC_END, NULL, 0, NULL, 0));
	if (r == 0)
		r = sent(te, chan_flush(&te->helper.chan));
	if (r == 0)
		r = helper_get(&te->helper, &rec);
	if (r < 0)
		return r;
	return rec.kind == REC_END ? 0 : helper_confused(&te->helper);
}

int export_tar(struct store *s, struct root *root, int fd, const struct import_ops *ops,
	       struct transfer_stats *ret)
{
	static const struct walk_ops walk = { .enter = export_one, .object = export_one };
	static char *const program[] = { "plyfs-tar", "write", NULL };
	_cleanup_(tar_export_release) struct tar_export te = {
		.talk = { .store = s, .ops = ops, .what = "exporting" },
	};
	int r;

	r = tree_new(store_nodes(s), root, &te.tree);
	if (r < 0)
		return r;
	te.fs = (struct fs){ .store = s, .tree = te.tree };
	te.buf = malloc(COPY_BYTES);
	te.xattr = malloc(2 * XATTR_BYTES_MAX);
	if (!te.buf || !te.xattr)
		return -ENOMEM;

	r = helper_start(&te.helper, &te.talk, program, fd);
	if (r == 0)
		r = walk_state(&te.talk, &te.fs, &walk, &te);
	if (r == 0)
		r = finish(&te);
	if (r < 0)
		return r;
	if (ret)
		*ret = te.talk.stats;
	return 0;
}
