/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A view that goes on with what a former process left in its memo, whatever that says: real ones
 * are made first (of node ids of each kind, behind restores told by names and by epoch, and to
 * another lineage and back), and an input changes bytes of one of them. It is refused, or requests
 * are answered, those that come again among them, and each of its node ids is one object or none.
 *
 * An input: which memo and how; runs of bytes, each with its place and length; then requests.
 */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/fs.h"
#include "fs/memo.h"
#include "fs/view.h"
#include "store/base/err.h"
#include "store/base/util.h"
#include "tests/fuzz/fuzz.h"

#define SLOTS 64 /* whose records are looked at; real memos here have some twenty */
#define SNAPS 16

static struct store *store;
static struct view *view;

/* The snapshots that the real memos name, from 1 on: an input names them by number. */
static uint64_t snaps[SNAPS];
static size_t n_snaps;

static struct left {
	uint64_t state; /* snapshot */
	struct memo_head head;
	struct memo_receipt receipts[4];
	struct memo_node nodes[SLOTS];
	uint64_t opened[SLOTS];
} lefts[5];
static size_t n_lefts;

/* ---- the kernel ---- */

static int inval_entry(void *arg, uint64_t parent, const char *name, size_t len, bool expire)
{
	MUST(parent && len > 0 && !memchr(name, '\0', len));
	return 0;
}

static int inval_inode(void *arg, uint64_t node, int64_t off, int64_t len)
{
	MUST(node);
	return 0;
}

static int inc_epoch(void *arg)
{
	return 0;
}

static void use_kernel(bool by_epoch)
{
	const struct view_kernel k = { .inval_entry = inval_entry,
				       .inval_inode = inval_inode,
				       .inc_epoch = inc_epoch,
				       .names_max = by_epoch ? 1 : 1000 };

	view_set_kernel(view, &k);
}

/* ---- what real processes left ---- */

static uint64_t make(uint64_t dir, const char *name, uint32_t mode)
{
	struct fs_new n = { .dir = dir, .name = name, .len = strlen(name), .mode = mode };
	struct entry e;

	n.target = S_ISLNK(mode) ? "d/a" : NULL;
	MUST(view_create(view, &n, &e) == 0);
	return e.node;
}

static void put(uint64_t node, const char *text)
{
	MUST(view_write(view, node, 0, text, strlen(text), false, NULL) == 0);
}

static uint64_t checkpoint(void)
{
	uint64_t id;

	MUST(view_checkpoint(view, "", false, &id) >= 0 && n_snaps < SNAPS);
	snaps[n_snaps++] = id;
	return id;
}

static void restore(uint64_t id)
{
	struct restore_info info;

	MUST(view_restore(view, id, &info) == 0 && n_snaps < SNAPS);
	snaps[n_snaps++] = info.left;
}

/* As if it was killed now. */
static void keep(struct memo *m)
{
	struct left *l = &lefts[n_lefts++];

	l->state = checkpoint();
	MUST(m->head->n_slots <= SLOTS);
	memcpy(&l->head, m->head, sizeof(l->head));
	memcpy(l->receipts, m->receipts, sizeof(l->receipts));
	memcpy(l->nodes, m->nodes, sizeof(l->nodes));
	memcpy(l->opened, m->opened, sizeof(l->opened));
}

/* Of another import, in which two directories have each other's inode numbers. */
static uint64_t make_other(uint64_t like)
{
	struct fs fs = { .store = store };
	struct root *root, *changed;
	struct inode gone;
	struct branch *b;
	uint64_t id;

	MUST(snap_root(store, like, &root) == 0);
	MUST(tree_new(store_nodes(store), root, &fs.tree) == 0);
	MUST(fs_rename(&fs, ROOT_INO, "d", 1, ROOT_INO, "e", 1, RENAME_EXCHANGE, &gone) == 0);
	MUST(tree_freeze(fs.tree, &changed) == 0);
	MUST(branch_create(store, "other", changed, 0, store_take_lineage(store), &b) == 0);
	MUST(branch_checkpoint(b, "", 0, &id) >= 0);
	branch_close(b);
	tree_free(fs.tree);
	root_unref(root);
	root_unref(changed);
	snaps[n_snaps++] = id;
	return id;
}

static void make_branch(void)
{
	struct fs fs = { .store = store };
	struct root *root;
	struct branch *b;

	MUST(root_empty(store_nodes(store), &root) == 0);
	MUST(tree_new(store_nodes(store), root, &fs.tree) == 0);
	root_unref(root);
	MUST(fs_make_root(&fs, 0755, 0, 0, (struct timens){ .sec = 1 }) == 0);
	MUST(tree_freeze(fs.tree, &root) == 0);
	store_raise_ino(store, 2);
	MUST(branch_create(store, "main", root, 0, store_take_lineage(store), &b) == 0);
	root_unref(root);
	tree_free(fs.tree);
	branch_close(b);
}

static void make_lefts(void)
{
	uint64_t d, a, f, first, other;
	struct memo *m;
	struct entry e;
	int32_t id;

	MUST(memo_new(&m) == 0 && view_open(store, "main", m, &view) == 0);
	/* As mount.c has it: from here on another process could go on. */
	m->head->has_epoch = true;
	m->head->kept = true;
	use_kernel(false);
	d = make(ROOT_NODE, "d", S_IFDIR | 0755);
	(void)make(make(ROOT_NODE, "e", S_IFDIR | 0755), "in", S_IFDIR | 0755);
	a = make(d, "a", S_IFREG | 0644);
	put(a, "first");
	(void)make(d, "to", S_IFLNK | 0777);
	MUST(view_link(view, a, ROOT_NODE, "link", 4, &e) == 0);
	put(make(d, "gone", S_IFREG | 0644), "is open");
	MUST(view_unlink(view, d, "gone", 4) == 0);
	MUST(view_opened(view, a, 7, &id) == 0);
	first = checkpoint();
	keep(m);

	put(a, "second");
	f = make(d, "late", S_IFREG | 0644);
	memo_request_begin(m, 4, false);
	restore(first);
	keep(m); /* its answer was not sent */
	memo_request_end();
	put(f, "whose state was left");

	use_kernel(true);
	put(make(d, "f", S_IFREG | 0644), "third");
	(void)make(make(ROOT_NODE, "g", S_IFDIR | 0755), "h", S_IFREG | 0644);
	restore(first);
	keep(m);
	other = make_other(first);
	restore(other);
	MUST(view_lookup(view, ROOT_NODE, "e", 1, &e) == 0);
	keep(m);
	restore(first);
	MUST(view_lookup(view, ROOT_NODE, "d", 1, &e) == 0);
	keep(m);
	view_close(view);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	int dir_fd = open(fuzz_dir(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	MUST(dir_fd >= 0 && store_init(dir_fd) == 0 && store_open(dir_fd, NULL, &store) == 0);
	make_branch();
	make_lefts();
	MUST(n_lefts == ARRAY_SIZE(lefts));
	return 0;
}

/* ---- an input ---- */

static uint64_t number(struct input *in)
{
	static const uint64_t odd[] = { UINT64_MAX, UINT64_MAX - 1, 1ULL << 63, 1ULL << 32,
					UINT32_MAX, 1ULL << 24,	    1ULL << 16, 1ULL << 31 };
	uint8_t b = byte(in);

	return b < 0x80 ? b : odd[b % ARRAY_SIZE(odd)] + (b >> 5 & 3);
}

/* A field of a record, or bytes anywhere in it. */
static void change_node(struct input *in, struct memo *m)
{
	struct memo_node *n = &m->nodes[byte(in) % SLOTS];
	uint8_t how = byte(in);
	uint64_t v = number(in);

	switch (how % 8) {
	case 0:
		n->node = v;
		break;
	case 1:
		n->node = v << 32 | (uint64_t)(n - m->nodes);
		n->serial = (uint32_t)v;
		break;
	case 2:
		n->ino = v;
		break;
	case 3:
		n->nlookup = v;
		break;
	case 4: /* one that is there, mostly */
		n->base = v && v <= n_snaps ? snaps[v - 1] : v;
		break;
	case 5:
		n->serial = (uint32_t)v;
		break;
	case 6:
		n->flags = (uint16_t)(v << 8 | byte(in));
		m->opened[n - m->nodes] = number(in) << 32 | number(in);
		break;
	default:
		n->type = how & 8 ? S_IFDIR : how & 16 ? S_IFREG : (uint16_t)(v << 8);
	}
}

static void change_receipt(struct input *in, struct memo *m)
{
	struct memo_receipt *r = &m->receipts[byte(in) % 4];

	r->unique = number(in);
	r->what = byte(in);
	r->value = number(in);
	r->journal.lsn = number(in);
	r->journal.id = number(in);
	r->restored.mode = byte(in);
}

static void change_switch(struct input *in, struct memo_head *h)
{
	uint64_t target = byte(in), left = byte(in);

	h->switch_state = byte(in);
	h->switch_unique = number(in);
	h->switch_journal.lsn = number(in);
	h->switch_journal.id = left && left <= n_snaps ? snaps[left - 1] : left;
	h->switched.target = target && target <= n_snaps ? snaps[target - 1] : target;
	if (byte(in) & 1)
		h->target = h->switched.target;
}

/* Of the head only what a process that was killed did not write with others. */
static void change_head(struct input *in, struct memo_head *h)
{
	uint8_t which = byte(in);
	uint64_t v = number(in);

	switch (which % 6) {
	case 0:
		h->n_slots = (uint32_t)v;
		break;
	case 1:
		h->target = v && v <= n_snaps ? snaps[v - 1] : v;
		break;
	case 2:
		h->keep_mounts = v & 1;
		break;
	case 3:
		h->version = (uint32_t)v;
		break;
	case 4:
		h->init_len = (uint32_t)v;
		break;
	default:
		((uint8_t *)h)[v % sizeof(*h)] = byte(in);
	}
}

/* ---- requests ---- */

static const char *name(uint8_t b)
{
	static const char *const names[] = { "d", "e", "a", "gone", "late", "f", "in", "to" };

	return names[b % ARRAY_SIZE(names)];
}

static void change(uint8_t what, uint64_t node, uint8_t arg)
{
	const char *n = name(arg);
	struct fs_new new = { .dir = node, .name = n, .len = strlen(n), .mode = S_IFREG | 0644 };
	struct fs_set set = { .mask = SET_SIZE, .size = arg };
	struct restore_info info;
	struct inode i;
	struct entry e;
	uint64_t id;

	switch (what % 12) {
	case 0:
		(void)view_create(view, &new, &e);
		break;
	case 1:
		new.mode = S_IFDIR | 0755;
		(void)view_create(view, &new, &e);
		break;
	case 2:
		(void)view_unlink(view, node, n, strlen(n));
		break;
	case 3:
		(void)view_rmdir(view, node, n, strlen(n));
		break;
	case 4:
		(void)view_rename(view, node, n, strlen(n), ROOT_NODE, "to", 2, 0);
		break;
	case 5:
		(void)view_write(view, node, arg, "text", 4, true, NULL);
		break;
	case 6:
		(void)view_setattr(view, node, &set, &i);
		break;
	case 7:
		(void)view_link(view, node, ROOT_NODE, n, strlen(n), &e);
		break;
	case 8:
		(void)view_checkpoint(view, "", false, &id);
		break;
	case 9:
		(void)view_restore(view, snaps[arg % n_snaps], &info);
		break;
	case 10:
		(void)view_undo(view, &id, &info);
		break;
	default:
		(void)view_setxattr(view, node, "user.a", n, strlen(n), 0);
	}
}

static int see_entry(void *arg, const char *n, size_t len, const struct entry *e, unsigned type,
		     uint64_t cookie)
{
	MUST(len > 0);
	return 0;
}

static void look(uint64_t node)
{
	uint64_t off;
	struct segments s;
	struct inode i;
	struct entry e;
	char buf[100];
	int32_t id;

	(void)view_getattr(view, node, &i);
	for (uint8_t n = 0; n < 8; n++)
		if (view_lookup(view, node, name(n), strlen(name(n)), &e) == 0)
			view_forget(view, e.node, 1);
	(void)view_readdir(view, node, 0, false, see_entry, NULL);
	(void)view_seek(view, node, 0, SEEK_DATA, &off);
	if (view_map(view, node, 0, sizeof(buf), &s) == 0) {
		(void)segments_read(store, &s, (uint8_t *)buf);
		segments_release(&s);
	}
	if (view_opened(view, node, 3, &id) >= 0)
		(void)view_closed(view, node);
}

static void look_at_all(const struct memo *m)
{
	for (uint32_t i = 0; i < SLOTS; i++)
		if (m->nodes[i].node)
			look(m->nodes[i].node);
}

/* K4: those that come again first. */
static void requests(struct input *in, struct memo *m)
{
	bool again = true;

	while (in->left > 0) {
		uint8_t what = byte(in), slot = byte(in) % SLOTS, arg = byte(in);

		if (what & 0x80)
			again = false;
		if (!again)
			memo_request_is_new(m);
		memo_request_begin(m, again ? 1 + (what >> 4 & 7) : 1000, again);
		change(what & 15, m->nodes[slot].node, arg);
		memo_request_end();
	}
	memo_request_is_new(m);
}

/* The kernel lets go of everything. */
static void forget_all(struct memo *m)
{
	for (uint32_t i = 0; i < SLOTS; i++)
		view_forget(view, m->nodes[i].node, UINT64_MAX);
}

static struct memo *take(struct input *in, const struct left *l)
{
	struct memo *m, *again;
	uint8_t n = byte(in);

	MUST(memo_new(&m) == 0);
	memcpy(m->head, &l->head, sizeof(l->head));
	memcpy(m->receipts, l->receipts, sizeof(l->receipts));
	memcpy(m->nodes, l->nodes, sizeof(l->nodes));
	memcpy((void *)m->opened, l->opened, sizeof(l->opened));
	for (n %= 16; n > 0; n--) {
		uint8_t kind = byte(in) % 8;

		if (kind == 0)
			change_receipt(in, m);
		else if (kind == 1)
			change_switch(in, m->head);
		else if (kind == 2)
			change_head(in, m->head);
		else
			change_node(in, m);
	}
	if (memo_open(dup(m->fd), &again) < 0)
		again = NULL;
	memo_close(m);
	return again;
}

static int drop_branch(void *arg, const struct branch_info *info)
{
	if (strcmp(info->name, "main") == 0 || strcmp(info->name, "other") == 0)
		return 0;
	return branch_drop(store, info->name) == 0 ? 1 : 0; /* the list has changed: again */
}

static int drop_snap(void *arg, const struct snap_info *info)
{
	for (size_t i = 0; i < n_snaps; i++)
		if (snaps[i] == info->id)
			return 0;
	return snap_drop(store, info->id) == 0;
}

/* A branch whose state is a snapshot's. */
static void branch_of(uint64_t state)
{
	struct snap_info info;
	struct root *root;
	struct branch *b;

	MUST(snap_get(store, state, &info) == 0 && snap_root(store, state, &root) == 0);
	MUST(branch_create(store, "on", root, state, info.lineage, &b) == 0);
	root_unref(root);
	branch_close(b);
}

#define SNAPSHOT 0x80 /* in the first byte: a view of it, not of a branch */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };
	uint8_t how = byte(&in);
	const struct left *l = &lefts[(how & 0xf) % ARRAY_SIZE(lefts)];
	struct memo *m = take(&in, l);
	int r;

	if (!m)
		return 0;
	memo_recovered(m, how >> 4 & 7);
	branch_of(l->state);
	r = how & SNAPSHOT ? view_open_snapshot(store, l->state, m, &view) :
			     view_open(store, "on", m, &view);
	if (r >= 0) {
		use_kernel(how & 0x10);
		look_at_all(m);
		MUST(view_finish_restore(view) == 0);
		requests(&in, m);
		look_at_all(m);
		forget_all(m);
		view_close(view);
	} else {
		MUST(r == -ERR_MEMO);
	}
	while (branch_each(store, drop_branch, NULL) > 0)
		;
	while (snap_each(store, drop_snap, NULL) > 0)
		;
	return 0;
}
