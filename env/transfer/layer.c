/* SPDX-License-Identifier: Apache-2.0 */

/* Whiteouts; see layer.h. */

#include "env/transfer/layer.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>

#include "store/base/os.h"
#include "store/hash.h"

void layer_release(struct layer *l)
{
	link_table_release(&l->touched);
}

/* Two names of one directory with one hash: the second would outlive a whiteout, no worse. */
static uint64_t name_hash(const char *name, size_t len)
{
	return hash64(name, len, 0);
}

int layer_touch(struct layer *l, uint64_t dir, const char *name, size_t len)
{
	return link_table_put(&l->touched, dir, name_hash(name, len), 1);
}

bool layer_has(const struct layer *l, uint64_t dir, const char *name, size_t len)
{
	return link_table_get(&l->touched, dir, name_hash(name, len)) != 0;
}

/* ---- a subtree ---- */

/* Directories on the way down: depth costs memory only. */
struct frame {
	uint64_t dir, cookie;
	size_t len; /* of its name in the frame above */
	char name[NAME_LEN_MAX + 1];
};
struct frames {
	struct frame *at; /* owned */
	size_t n, cap;
};

static void frames_release(struct frames *f)
{
	free(f->at);
}

static int frames_push(struct frames *f, uint64_t dir, const char *name, size_t len)
{
	int r = os_grow(&f->at, &f->cap, f->n + 1, sizeof(*f->at));

	if (r < 0)
		return r;
	f->at[f->n] = (struct frame){ .dir = dir, .len = len };
	memcpy(f->at[f->n++].name, name, len);
	return 0;
}

struct entry {
	uint64_t ino, cookie;
	unsigned type;
	size_t len; /* 0: none */
	char name[NAME_LEN_MAX + 1];
};

static int first_entry(void *arg, const char *name, size_t len, uint64_t ino, unsigned type,
		       uint64_t next_cookie)
{
	struct entry *e = arg;

	if (e->len > 0)
		return 1;
	if (!name_is_plain(name, len)) /* "." and ".." */
		return 0;
	*e = (struct entry){ .ino = ino, .cookie = next_cookie, .type = type, .len = len };
	memcpy(e->name, name, len);
	return 0;
}

/* Of a directory in another, on the way down. */
static int enter(struct layer *l, struct frames *f, const struct entry *e)
{
	struct inode i;
	int r = fs_stat(&l->b->fs, e->ino, &i);

	if (r == 0 && !dir_is_at(&i, f->at[f->n - 1].dir, e->cookie))
		return talk_fail(&l->b->talk, -ERR_ITEM_DAMAGED,
				 "directory '%s' (inode %" PRIu64 ") lies in two places", e->name,
				 e->ino);
	return r < 0 ? r : frames_push(f, e->ino, e->name, e->len);
}

static int remove_name(struct layer *l, uint64_t dir, const char *name, size_t len)
{
	struct inode i;
	int r;

	if (layer_has(l, dir, name, len))
		return 0;
	r = fs_lookup(&l->b->fs, dir, name, len, &i);
	return r < 0 ? r : builder_remove(l->b, dir, name, len, &i);
}

int layer_hide_below(struct layer *l, uint64_t dir)
{
	_cleanup_(frames_release) struct frames f = { 0 };
	int r;

	r = frames_push(&f, dir, "", 0);
	while (r == 0 && f.n > 0) {
		struct frame *top = &f.at[f.n - 1];
		struct entry e = { 0 };

		r = fs_readdir(&l->b->fs, top->dir, top->cookie, first_entry, &e);
		if (r < 0)
			return r;
		if (e.len == 0) { /* all seen: the directory itself, from above */
			if (--f.n == 0)
				return 0;
			r = remove_name(l, f.at[f.n - 1].dir, top->name, top->len);
			continue;
		}
		top->cookie = e.cookie;
		r = talk_cancelled(&l->b->talk);
		if (r == 0 && e.type == DT_DIR)
			r = enter(l, &f, &e);
		else if (r == 0)
			r = remove_name(l, top->dir, e.name, e.len);
	}
	return r;
}

int layer_hide(struct layer *l, uint64_t dir, const char *name, size_t len)
{
	struct inode i;
	int r;

	r = fs_lookup(&l->b->fs, dir, name, len, &i);
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	if (S_ISDIR(i.mode)) {
		r = layer_hide_below(l, i.ino);
		if (r < 0)
			return r;
	}
	return remove_name(l, dir, name, len);
}
