/* SPDX-License-Identifier: Apache-2.0 */

/* What importers and exporters share; see transfer_internal.h. */

#include "env/transfer/transfer_internal.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>

#include "store/base/note.h"
#include "store/chunk.h"
#include "store/base/os.h"

/* ---- talk ---- */

static void warn_line(struct talk *t, const char *fmt, va_list args)
{
	_cleanup_free_ char *line = NULL;

	if (!t->ops || !t->ops->warn || vasprintf(&line, fmt, args) < 0)
		return;
	t->ops->warn(t->ops->arg, line);
}

void talk_skip(struct talk *t, const char *fmt, ...)
{
	va_list args;

	t->stats.skipped++;
	va_start(args, fmt);
	warn_line(t, fmt, args);
	va_end(args);
}

void talk_warn(struct talk *t, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	warn_line(t, fmt, args);
	va_end(args);
}

int talk_fail(struct talk *t, int r, const char *fmt, ...)
{
	_cleanup_free_ char *line = NULL;
	va_list args;
	int n;

	va_start(args, fmt);
	n = vasprintf(&line, fmt, args);
	va_end(args);
	if (n < 0)
		return r;
	return note(t->ops && t->ops->noter ? t->ops->noter : store_noter(t->store), r, "%s", line);
}

int talk_cancelled(const struct talk *t)
{
	const struct progress *p = t->ops ? t->ops->progress : NULL;

	return p && p->cancel && __atomic_load_n(p->cancel, __ATOMIC_RELAXED) ? -ERR_CANCELLED : 0;
}

int talk_object(struct talk *t, uint32_t mode, uint64_t bytes)
{
	const struct progress *p = t->ops ? t->ops->progress : NULL;

	if (S_ISREG(mode))
		t->stats.files++;
	else if (S_ISDIR(mode))
		t->stats.dirs++;
	else
		t->stats.others++;
	t->stats.bytes += bytes;
	t->objects++;
	/* Every 64th: often enough for a bar, too seldom to be seen in a profile. */
	if (p && p->fn && t->objects % 64 == 0)
		p->fn(p->arg, t->what, t->objects, 0);
	return talk_cancelled(t);
}

/* ---- hard links ---- */

void link_table_release(struct link_table *t)
{
	free(t->slots);
	*t = (struct link_table){ 0 };
}

static struct link_slot *link_slot(const struct link_table *t, uint64_t dev, uint64_t ino)
{
	/* Fibonacci hashing: inode numbers are dense, the multiplication spreads them. */
	size_t i = (size_t)(((ino ^ (dev << 40)) * UINT64_C(0x9e3779b97f4a7c15)) >> 20);

	for (;; i++) {
		struct link_slot *s = &t->slots[i & (t->cap - 1)];

		if (s->value == 0 || (s->dev == dev && s->ino == ino))
			return s;
	}
}

uint64_t link_table_get(const struct link_table *t, uint64_t dev, uint64_t ino)
{
	return t->cap == 0 ? 0 : link_slot(t, dev, ino)->value;
}

int link_table_put(struct link_table *t, uint64_t dev, uint64_t ino, uint64_t value)
{
	struct link_slot *s;

	assert(value != 0);
	if (2 * (t->n + 1) > t->cap) { /* at most half full: probes stay short */
		struct link_table bigger = { .n = t->n, .cap = t->cap ? 2 * t->cap : 256 };

		bigger.slots = calloc(bigger.cap, sizeof(*bigger.slots));
		if (!bigger.slots)
			return -ENOMEM;
		for (size_t i = 0; i < t->cap; i++)
			if (t->slots[i].value != 0)
				*link_slot(&bigger, t->slots[i].dev, t->slots[i].ino) = t->slots[i];
		free(t->slots);
		*t = bigger;
	}
	s = link_slot(t, dev, ino);
	if (s->value == 0)
		t->n++;
	*s = (struct link_slot){ .dev = dev, .ino = ino, .value = value };
	return 0;
}

/* ---- names ---- */

bool name_is_plain(const char *name, size_t len)
{
	return len > 0 && len <= NAME_LEN_MAX && !memchr(name, '/', len) &&
	       !memchr(name, '\0', len) && !(len == 1 && name[0] == '.') &&
	       !(len == 2 && name[0] == '.' && name[1] == '.');
}

/* ---- building ---- */

int builder_continue(struct builder *b, struct store *s, const struct import_ops *ops,
		     struct root *root, uint64_t next_ino)
{
	struct tree *tree;
	int r;

	r = tree_new(store_nodes(s), root, &tree);
	if (r < 0)
		return r;

	*b = (struct builder){
		.talk = { .store = s, .ops = ops, .what = "importing" },
		.tree = tree,
		.fs = { .store = s, .tree = tree },
		.next_ino = next_ino,
	};
	return 0;
}

int builder_init(struct builder *b, struct store *s, const struct import_ops *ops)
{
	_cleanup_(root_unrefp) struct root *empty = NULL;
	int r;

	r = root_empty(store_nodes(s), &empty);
	if (r < 0)
		return r;

	r = builder_continue(b, s, ops, empty, ROOT_INO + 1);
	if (r < 0)
		return r;

	r = fs_make_root(&b->fs, S_IFDIR | 0755, 0, 0, (struct timens){ 0 });
	if (r < 0)
		builder_release(b);
	return r;
}

void builder_release(struct builder *b)
{
	if (b->tree)
		tree_free(b->tree);
	b->tree = NULL;
}

int builder_finish(struct builder *b, struct root **ret_root, struct transfer_stats *ret)
{
	const struct progress *p = b->talk.ops ? b->talk.ops->progress : NULL;
	int r;

	store_raise_ino(b->talk.store, b->next_ino);
	r = tree_freeze(b->tree, ret_root);
	if (r < 0)
		return r;
	if (p && p->fn)
		p->fn(p->arg, b->talk.what, b->talk.objects, b->talk.objects);
	if (ret)
		*ret = b->talk.stats;
	return 0;
}

int builder_add(struct builder *b, uint64_t dir, const char *name, size_t len, struct inode *i,
		const char *target)
{
	int r;

	r = store_import_limit(b->talk.store, b->tree, &b->limit);
	if (r < 0)
		return r;
	i->ino = b->next_ino;
	i->nlink = S_ISDIR(i->mode) ? 2 : 1;
	i->flags = 0;
	i->bytes = 0;
	i->parent = 0;
	i->parent_off = 0;
	r = fs_add(&b->fs, dir, name, len, i, target);
	if (r < 0)
		return r;
	b->next_ino++;
	return 0;
}

int builder_remove(struct builder *b, uint64_t dir, const char *name, size_t len,
		   const struct inode *old)
{
	struct inode parent, gone;
	int r;

	r = fs_stat(&b->fs, dir, &parent);
	if (r < 0)
		return r;
	if (S_ISDIR(old->mode))
		r = fs_rmdir(&b->fs, dir, name, len, &gone);
	else
		r = fs_unlink(&b->fs, dir, name, len, &gone);
	if (r < 0)
		return r;

	if (gone.nlink == 0)
		r = fs_purge(&b->fs, gone.ino);
	else
		r = builder_settle(b, old, false);
	return r < 0 ? r : builder_settle(b, &parent, false);
}

int builder_settle(struct builder *b, const struct inode *i, bool all)
{
	struct inode now;
	int r;

	r = fs_stat(&b->fs, i->ino, &now);
	if (r < 0)
		return r;
	now.atime = i->atime;
	now.mtime = i->mtime;
	now.ctime = i->ctime;
	now.btime = i->btime;
	if (all) {
		now.mode = i->mode;
		now.uid = i->uid;
		now.gid = i->gid;
	}
	return fs_put_inode(&b->fs, &now);
}

int builder_done(struct builder *b, const struct inode *i, bool all)
{
	int r = builder_settle(b, i, all);

	return r < 0 ? r : talk_object(&b->talk, i->mode, S_ISREG(i->mode) ? i->size : 0);
}

int writer_flush(struct writer *w)
{
	size_t len = w->len;

	if (len == 0)
		return 0;
	w->len = 0;
	return fs_import_data(&w->b->fs, w->ino, w->off, w->buf, len);
}

int writer_put(struct writer *w, uint64_t off, const void *data, size_t len)
{
	const uint8_t *p = data;
	int r;

	if (w->len > 0 && off != w->off + w->len) {
		r = writer_flush(w);
		if (r < 0)
			return r;
	}
	while (len > 0) {
		size_t n = MIN(len, CHUNK_MAX - w->len);

		if (w->len == 0)
			w->off = off;
		memcpy(w->buf + w->len, p, n);
		w->len += n;
		p += n;
		off += n;
		len -= n;
		if (w->len < CHUNK_MAX)
			continue;
		r = writer_flush(w);
		if (r < 0)
			return r;
	}
	return 0;
}

int path_put(char **path, size_t *cap, size_t parent_len, const char *name)
{
	size_t at = parent_len ? parent_len + 1 : 0, len = strlen(name);
	int r = os_grow(path, cap, at + len + 1, 1);

	if (r < 0)
		return r;
	if (at > 0)
		(*path)[at - 1] = '/';
	memcpy(*path + at, name, len + 1);
	return 0;
}
