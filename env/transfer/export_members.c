/* SPDX-License-Identifier: Apache-2.0 */

/* See export_members.h. */

#include "env/transfer/export_members.h"

#include <errno.h>
#include <sys/stat.h>

#include "fs/format.h"

#define COPY_BYTES (128 * 1024) /* one chunk */

int sender_start(struct sender *s, struct store *store, struct root *root,
		 const struct import_ops *ops, char *const argv[], int fd)
{
	int r;

	s->talk = (struct talk){ .store = store, .ops = ops, .what = "exporting" };
	r = tree_new(store_nodes(store), root, &s->tree);
	if (r < 0)
		return r;
	s->fs = (struct fs){ .store = store, .tree = s->tree };
	s->buf = malloc(COPY_BYTES);
	return s->buf ? helper_start(&s->helper, &s->talk, argv, fd) : -ENOMEM;
}

void sender_release(struct sender *s)
{
	helper_leave(&s->helper);
	helper_release(&s->helper);
	free(s->buf);
	tree_freep(&s->tree);
}

int sender_sent(struct sender *s, int r)
{
	if (r >= 0)
		return 0;
	s->refused = true;
	return helper_refused(&s->helper, r);
}

int sender_look(struct sender *s)
{
	return chan_ready(&s->helper.chan) ? sender_sent(s, -EPIPE) : 0;
}

int sender_member(struct sender *s, const char *link)
{
	const struct inode *i = &s->e->inode;
	struct member m = { .inode = *i, .path = s->e->path, .link = link };
	char target[TARGET_MAX + 1];
	size_t len;
	int r;

	if (S_ISLNK(i->mode)) {
		r = fs_readlink(&s->fs, i->ino, target, TARGET_MAX, &len);
		if (r < 0)
			return r;
		target[len] = '\0';
		m.target = target;
	}
	return sender_sent(s, chan_put_member(&s->helper.chan, &m));
}

static int put_data(void *arg, uint64_t off, uint64_t len)
{
	struct sender *s = arg;
	int r = 0;

	while (r == 0 && len > 0) {
		size_t n = MIN(len, (uint64_t)COPY_BYTES), got;

		r = fs_read(&s->fs, s->e->inode.ino, off, s->buf, n, &got);
		if (r == 0 && got != n)
			r = -ERR_ITEM_DAMAGED;
		if (r == 0)
			r = sender_sent(s, chan_put_data(&s->helper.chan, off, s->buf, n));
		if (r == 0)
			r = talk_cancelled(&s->talk);
		off += n;
		len -= n;
	}
	return r;
}

int sender_data(struct sender *s)
{
	return walk_data(&s->fs, &s->e->inode, put_data, s);
}

int sender_failed(struct sender *s, int r)
{
	return s->refused || r == -ERR_CANCELLED
		       ? r
		       : talk_fail(&s->talk, r, "reading '%s'", path_shown(s->e->path));
}

int sender_finish(struct sender *s, struct record *ret)
{
	int r;

	r = sender_sent(s, chan_put(&s->helper.chan, REC_END, NULL, 0, NULL, 0));
	if (r == 0)
		r = sender_sent(s, chan_flush(&s->helper.chan));
	if (r == 0)
		r = helper_get(&s->helper, ret);
	if (r < 0)
		return r;
	return ret->kind == REC_END ? 0 : helper_confused(&s->helper);
}
