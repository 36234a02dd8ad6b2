/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A state becomes a PAX archive: "./" for the root, then every name in order of path. The same
 * state gives the same bytes. Here is the walk; plyfs-tar writes the archive (tar_write.c).
 *
 * Invariants:
 *  1. The first name of a hard link group carries the content; the others are links to it.
 *  2. A file's runs are told when it has a hole, before its data; no data is sent for a hole.
 */

#include <errno.h>
#include <sys/stat.h>

#include "env/transfer/export_members.h"
#include "store/base/os.h"

struct tar_export {
	struct sender out;
	struct link_table links; /* ino -> index + 1 */
	char **paths;		 /* owned, each too */
	size_t n_paths, paths_cap;
	char *xattr;  /* owned: 2 * XATTR_BYTES_MAX */
	bool any_run; /* what is being sent has data */
};

static void tar_export_release(struct tar_export *te)
{
	sender_release(&te->out);
	for (size_t i = 0; i < te->n_paths; i++)
		free(te->paths[i]);
	free(te->paths);
	link_table_release(&te->links);
	free(te->xattr);
}

static int put_xattr(void *arg, const char *name, const void *value, size_t len)
{
	struct sender *s = arg;

	return sender_sent(s, chan_put_xattr(&s->helper.chan, name, value, len));
}

static int put_run(void *arg, uint64_t off, uint64_t len)
{
	struct tar_export *te = arg;

	te->any_run = true;
	if (off == 0 && len == te->out.e->inode.size) /* no hole */
		return 0;
	return sender_sent(&te->out, chan_put_run(&te->out.helper.chan, REC_RUN, off, len));
}

/* link: the name that carries the content; or NULL: this one. */
static int send_member(struct tar_export *te, const char *link)
{
	struct sender *s = &te->out;
	const struct inode *i = &s->e->inode;
	int r;

	r = sender_member(s, link);
	if (r == 0)
		r = walk_xattrs(&s->fs, i, te->xattr, put_xattr, s);
	if (r < 0 || link || !S_ISREG(i->mode) || i->size == 0)
		return r;

	te->any_run = false;
	r = walk_data(&s->fs, i, put_run, te);
	if (r == 0 && !te->any_run) /* one hole: an empty run says so */
		r = sender_sent(s, chan_put_run(&s->helper.chan, REC_RUN, 0, 0));
	return r < 0 ? r : sender_data(s);
}

static int remember(struct tar_export *te, const struct walk_entry *e)
{
	int r;

	if (e->inode.nlink < 2 || S_ISDIR(e->inode.mode))
		return 0;
	r = os_grow(&te->paths, &te->paths_cap, te->n_paths + 1, sizeof(*te->paths));
	if (r < 0)
		return r;
	te->paths[te->n_paths] = strdup(e->path);
	if (!te->paths[te->n_paths])
		return -ENOMEM;
	te->n_paths++;
	return link_table_put(&te->links, 0, e->inode.ino, te->n_paths);
}

static int export_one(void *arg, const struct walk_entry *e)
{
	struct tar_export *te = arg;
	const struct inode *i = &e->inode;
	uint64_t first = 0;
	int r;

	te->out.e = e;
	if (S_ISSOCK(i->mode)) {
		talk_skip(&te->out.talk, "'%s' is a socket, which a tar cannot hold", e->path);
		return 0;
	}
	r = sender_look(&te->out);
	if (r < 0)
		return r;

	if (!S_ISDIR(i->mode))
		first = link_table_get(&te->links, 0, i->ino);
	r = send_member(te, first ? te->paths[first - 1] : NULL);
	if (r < 0)
		return sender_failed(&te->out, r);
	if (first) /* invariant 1 */
		return 0;

	r = remember(te, e);
	if (r < 0)
		return r;
	return talk_object(&te->out.talk, i->mode, S_ISREG(i->mode) ? i->size : 0);
}

int export_tar(struct store *s, struct root *root, int fd, const struct import_ops *ops,
	       struct transfer_stats *ret)
{
	static const struct walk_ops walk = { .enter = export_one, .object = export_one };
	static char *const program[] = { "plyfs-tar", "write", NULL };
	_cleanup_(tar_export_release) struct tar_export te = { 0 };
	struct record rec;
	int r;

	te.xattr = malloc(2 * XATTR_BYTES_MAX);
	if (!te.xattr)
		return -ENOMEM;

	r = sender_start(&te.out, s, root, ops, program, fd);
	if (r == 0)
		r = walk_state(&te.out.talk, &te.out.fs, &walk, &te);
	if (r == 0)
		r = sender_finish(&te.out, &rec);
	if (r < 0)
		return r;
	if (ret)
		*ret = te.out.talk.stats;
	return 0;
}
