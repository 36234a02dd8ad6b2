/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A model test of views: a simulated kernel caches names and attributes for ever, as the real one
 * does, while a random history changes, checkpoints and restores. It must never be caught with a
 * stale one after a restore. The same with several imports, whose inode numbers are each other's
 * now and then (V8), and with directories that somebody stays in (V5).
 */

#include "tests/unit/view_fixture.h"

static bool is_tight;

static void setup_tight(void)
{
	view_setup_tight();
	is_tight = true;
}

/* ---- the simulated kernel ---- */

/*
 * Caches as FUSE with infinite timeouts does: a dentry (parent id, name) -> child id or negative,
 * stamped with the epoch; attributes by id. It trusts them until it is told otherwise.
 */
#define SIM_NODES 4096
struct sim_dentry {
	uint64_t parent, child; /* child 0: negative */
	char name[8];
	uint64_t epoch;
	bool expired;
};
static struct sim_dentry sim[SIM_NODES];
/* By slot, the low half of a node id; a slot's next node takes the place of the one before. */
static struct {
	uint64_t node;
	struct inode inode;
} sim_attrs[SIM_NODES];
/* Likewise: references that it has, and whether the kernel removed it. */
static struct {
	uint64_t n;
	bool removed;
} sim_refs[SIM_NODES];
static unsigned sim_n;
static uint64_t sim_epoch;

static struct sim_dentry *sim_find(uint64_t parent, const char *name)
{
	for (unsigned i = 0; i < sim_n; i++)
		if (sim[i].parent == parent && !strcmp(sim[i].name, name))
			return &sim[i];
	return NULL;
}

static void sim_keep_attr(uint64_t node, const struct inode *i)
{
	uint32_t slot = (uint32_t)node;

	ck_assert_uint_lt(slot, SIM_NODES);
	sim_attrs[slot].node = node;
	sim_attrs[slot].inode = *i;
}

static void sim_drop_attr(uint64_t node)
{
	if (sim_attrs[(uint32_t)node].node == node)
		sim_attrs[(uint32_t)node].node = 0;
}

/* stat(2): from the cache, else a GETATTR. */
static struct inode sim_stat(uint64_t node)
{
	struct inode i;

	if (sim_attrs[(uint32_t)node].node == node)
		return sim_attrs[(uint32_t)node].inode;
	ck_assert_int_eq(view_getattr(view, node, &i), 0);
	sim_keep_attr(node, &i);
	return i;
}

static void sim_drop(struct sim_dentry *d)
{
	*d = sim[--sim_n];
}

static int sim_entry(void *arg, uint64_t parent, const char *name, size_t len, bool expire)
{
	char text[256];
	struct sim_dentry *d;

	snprintf(text, sizeof(text), "%.*s", (int)len, name);
	d = sim_find(parent, text);
	if (!d)
		return -ENOENT;
	if (expire)
		d->expired = true;
	else
		sim_drop(d); /* children stay cached under their parent's id: the harder case */
	return 0;
}

static int sim_inode(void *arg, uint64_t node, int64_t off, int64_t len)
{
	sim_drop_attr(node);
	return 0;
}

static int sim_inc_epoch(void *arg)
{
	sim_epoch++;
	return 0;
}

/* A path walk step: from the cache when it is trusted, else a LOOKUP. 0 or -ENOENT. */
static int sim_walk(uint64_t parent, const char *name, uint64_t *ret)
{
	struct sim_dentry *d = sim_find(parent, name);
	struct entry e;
	int r;

	if (d && !d->expired && d->epoch == sim_epoch) {
		*ret = d->child;
		return d->child ? 0 : -ENOENT;
	}
	r = look(parent, name, &e);
	ck_assert(r == 0 || r == -ENOENT);
	if (!d) {
		ck_assert_uint_lt(sim_n, SIM_NODES);
		d = &sim[sim_n++];
		d->parent = parent;
		snprintf(d->name, sizeof(d->name), "%s", name);
	}
	if (r == 0) {
		sim_keep_attr(e.node, &e.inode);
		sim_refs[(uint32_t)e.node].n++;
	}
	d->child = r == 0 ? e.node : 0;
	d->epoch = sim_epoch;
	d->expired = false;
	*ret = d->child;
	return r;
}

static void sim_print_attr(const struct inode *i, FILE *out)
{
	fprintf(out, "{%lu x%u %lu %ld.%u %ld.%u}", (unsigned long)i->ino, i->nlink,
		(unsigned long)i->size, (long)i->mtime.sec, i->mtime.nsec, (long)i->ctime.sec,
		i->ctime.nsec);
}

/* What the whole tree looks like through the caches: names a..d, three levels deep. */
static void sim_render(uint64_t dir, unsigned depth, FILE *out)
{
	for (char c = 'a'; c <= 'd'; c++) {
		char name[2] = { c, 0 };
		struct inode i;
		uint64_t node;

		if (sim_walk(dir, name, &node) < 0)
			continue;
		i = sim_stat(node);
		ck_assert_uint_gt(i.nlink, 0);
		fprintf(out, "%s", name);
		sim_print_attr(&i, out);
		if (S_ISDIR(i.mode)) {
			fprintf(out, "/(");
			if (depth < 3)
				sim_render(node, depth + 1, out);
			fprintf(out, ")");
		} else {
			fprintf(out, "=%s,", text_of(node));
		}
	}
}

static char *render(void)
{
	char *text = NULL;
	size_t size;
	FILE *out = open_memstream(&text, &size);
	struct inode root = sim_stat(ROOT_NODE);

	sim_print_attr(&root, out);
	sim_render(ROOT_NODE, 0, out);
	fclose(out);
	return text;
}

static void sim_change(unsigned *seed, unsigned step)
{
	uint64_t dir = ROOT_NODE, node;
	char name[2] = { 0 }, other[2] = { 0 }, text[16];
	struct inode i;
	int r;

	for (unsigned depth = rand_r(seed) % 3; depth; depth--) {
		name[0] = (char)('a' + rand_r(seed) % 4);
		if (sim_walk(dir, name, &node) < 0 || !S_ISDIR(sim_stat(node).mode))
			break;
		dir = node;
	}
	name[0] = (char)('a' + rand_r(seed) % 4);
	other[0] = (char)('a' + rand_r(seed) % 4);
	snprintf(text, sizeof(text), "%u", step);
	r = sim_walk(dir, name, &node);
	if (r == 0)
		i = sim_stat(node);

	/* As the kernel does: a change it makes itself updates what it has cached. */
	sim_drop_attr(dir);
	if (r == 0)
		sim_drop_attr(node);
	struct sim_dentry *d = sim_find(dir, name);
	if (r < 0) {
		struct fs_new n = { .dir = dir, .name = name, .len = 1,
				    .mode = rand_r(seed) % 2 ? S_IFDIR | 0755 : S_IFREG | 0644 };
		struct entry e;

		ck_assert_int_eq(view_create(view, &n, &e), 0);
		d->child = e.node;
		sim_refs[(uint32_t)e.node].n++;
		if (S_ISREG(n.mode))
			ck_ok(view_write(view, e.node, 0, text, strlen(text), false, NULL));
	} else if (rand_r(seed) % 4 == 0) {
		r = view_rename(view, dir, name, 1, dir, other, 1, 0);
		if (r == 0 && strcmp(name, other)) {
			uint64_t to;

			(void)sim_walk(dir, other, &to); /* make sure it has a dentry */
			if (to) {
				sim_drop_attr(to);
				sim_refs[(uint32_t)to].removed = true;
			}
			d = sim_find(dir, name);
			sim_find(dir, other)->child = d->child;
			d->child = 0;
		}
	} else if (S_ISDIR(i.mode)) {
		if (rand_r(seed) % 3 == 0 && view_rmdir(view, dir, name, 1) == 0) {
			d->child = 0;
			sim_refs[(uint32_t)node].removed = true;
		}
	} else if (rand_r(seed) % 3 == 0) {
		ck_assert_int_eq(view_unlink(view, dir, name, 1), 0);
		d->child = 0;
	} else {
		rewrite(node, text);
	}
}

static void sim_begin(int kernel)
{
	static const struct view_kernel kernels[] = {
		{ .inval_entry = sim_entry, .inval_inode = sim_inode, .inc_epoch = sim_inc_epoch },
		{ .inval_entry = sim_entry, .inval_inode = sim_inode },
		{ .inval_entry = sim_entry, .inval_inode = sim_inode, .inc_epoch = sim_inc_epoch,
		  .names_max = 4 }, /* now by names, now by epoch */
	};

	view_set_kernel(view, &kernels[kernel]);
	sim_n = 0;
	memset(sim_attrs, 0, sizeof(sim_attrs));
	memset(sim_refs, 0, sizeof(sim_refs));
	sim_epoch = 0;
}

START_TEST(caches_are_never_stale_after_a_restore)
{
	unsigned seed = (unsigned)(_i / 3) + 1;
	uint64_t ids[64];
	char *states[64];
	unsigned n = 0;

	sim_begin(_i % 3);
	for (unsigned step = 0; step < 1500; step++) {
		sim_change(&seed, step);
		if (is_tight && rand_r(&seed) % 50 == 0)
			ck_assert_int_eq(store_sync(store), 0);
		if (rand_r(&seed) % 12 == 0 && n < ARRAY_SIZE(ids)) {
			uint64_t id = checkpoint();
			bool have = false;

			for (unsigned k = 0; k < n; k++)
				have |= ids[k] == id;
			if (!have) {
				ids[n] = id;
				states[n++] = render();
			}
		}
		if (n && rand_r(&seed) % 20 == 0) {
			unsigned k = (unsigned)rand_r(&seed) % n;
			_cleanup_free_ char *text = NULL;
			struct restore_info info;

			ck_assert_int_eq(view_restore(view, ids[k], &info), 0);
			text = render();
			ck_assert_msg(!strcmp(text, states[k]), "loop %d step %u:\n%s\nwanted\n%s",
				      _i, step, text, states[k]);
		}
	}
	while (n)
		free(states[--n]);
}
END_TEST

/* ---- several lineages, and who stays in a directory ---- */

/* What a directory of a tree is, in the words of sim_render, without a view. */
static void render_tree(const struct fs *fs, uint64_t dir, unsigned depth, FILE *out)
{
	for (char c = 'a'; c <= 'd'; c++) {
		struct segments content;
		char text[16];
		struct inode i;

		if (fs_lookup(fs, dir, &c, 1, &i) < 0)
			continue;
		fprintf(out, "%c", c);
		sim_print_attr(&i, out);
		if (S_ISDIR(i.mode)) {
			fprintf(out, "/(");
			if (depth < 3)
				render_tree(fs, i.ino, depth + 1, out);
			fprintf(out, ")");
			continue;
		}
		ck_ok(fs_map(fs, i.ino, 0, sizeof(text), &content));
		ck_ok(segments_read(store, &content, text));
		fprintf(out, "=%.*s,", (int)content.len, text);
		segments_release(&content);
	}
}

/* The whole of it, from the root or another directory on. */
static char *truth(struct tree *tree, uint64_t dir)
{
	const struct fs fs = { .store = store, .tree = tree };
	struct inode i;
	char *text = NULL;
	size_t size;
	FILE *out = open_memstream(&text, &size);

	ck_ok(fs_stat(&fs, dir, &i));
	sim_print_attr(&i, out);
	render_tree(&fs, dir, 0, out);
	fclose(out);
	return text;
}

static char *truth_of(uint64_t id)
{
	_cleanup_(root_unrefp) struct root *root = NULL;
	_cleanup_(tree_freep) struct tree *tree = NULL;

	ck_ok(snap_root(store, id, &root));
	ck_ok(tree_new(store_nodes(store), root, &tree));
	return truth(tree, ROOT_INO);
}

/* An import that has inode numbers in common with a state, for other objects now and then. */
static uint64_t import_like(uint64_t id, unsigned *seed, unsigned number)
{
	static const char *const names[] = { "a", "b", "c", "d" };
	const char *renames[6][2];
	unsigned n = 0;

	while (n < ARRAY_SIZE(renames)) {
		renames[n][0] = names[rand_r(seed) % 4];
		renames[n++][1] = names[rand_r(seed) % 4];
	}
	return make_other(id, number, n, renames);
}

/* Somebody's working directory. */
struct held {
	uint64_t node;         /* 0: none */
	uint64_t ino, lineage; /* what it was when it was alive last */
};

/* It is what the tree has, or as removed: in all that is cached. */
static void assert_held(struct held *h, const char *when)
{
	struct branch *b = view_branch(view);
	struct inode i = sim_stat(h->node), now;
	_cleanup_free_ char *want = NULL, *text = NULL;
	const struct fs fs = { .store = store, .tree = b->tree };
	size_t size;
	FILE *out;

	if (i.nlink == 0) {
		for (char c = 'a'; c <= 'd'; c++) {
			uint64_t node;

			ck_assert_int_eq(sim_walk(h->node, (char[]){ c, 0 }, &node), -ENOENT);
		}
		READ_GUARD(&b->lock); /* seals go on */
		ck_assert_msg(h->lineage != b->lineage || fs_stat(&fs, h->ino, &now) < 0 ||
				      now.nlink == 0,
			      "%s: %lu is dead, and the state has it", when, (unsigned long)h->ino);
		return;
	}
	out = open_memstream(&text, &size);
	sim_print_attr(&i, out);
	sim_render(h->node, 0, out);
	fclose(out);
	READ_GUARD(&b->lock); /* likewise */
	want = truth(b->tree, i.ino);
	ck_assert_msg(!strcmp(text, want), "%s: %lx is\n%s\nwanted\n%s", when,
		      (unsigned long)h->node, text, want);
	h->ino = i.ino;
	h->lineage = b->lineage;
}

#define HELD 4

static bool is_held(const struct held *held, uint64_t node)
{
	for (int k = 0; k < HELD; k++)
		if (held[k].node == node)
			return true;
	for (unsigned i = 0; i < sim_n; i++)
		if (sim[i].parent == node && sim[i].child && is_held(held, sim[i].child))
			return true; /* the kernel keeps all that leads there */
	return node == ROOT_NODE;
}

/* The kernel needs memory. */
static void sim_forget(uint64_t node)
{
	for (unsigned i = 0; i < sim_n;) {
		uint64_t child = sim[i].parent == node ? sim[i].child : 0;

		if (sim[i].parent == node || sim[i].child == node) {
			sim_drop(&sim[i]);
			if (child)
				sim_forget(child);
			i = 0;
		} else {
			i++;
		}
	}
	sim_drop_attr(node);
	view_forget(view, node, sim_refs[(uint32_t)node].n);
	sim_refs[(uint32_t)node].n = 0;
	sim_refs[(uint32_t)node].removed = false;
}

/* Others come, go and look around. */
static void sim_live(struct held *held, unsigned *seed)
{
	struct held *h = &held[rand_r(seed) % HELD];
	const struct sim_dentry *d = sim_n ? &sim[rand_r(seed) % sim_n] : NULL;
	char name[2] = { (char)('a' + rand_r(seed) % 4), 0 };
	uint64_t node;

	if (h->node && sim_refs[(uint32_t)h->node].removed)
		h->node = 0; /* dead for good (V5) */
	switch (rand_r(seed) % 8) {
	case 0: /* cd */
		if (sim_walk(ROOT_NODE, name, &node) == 0 && S_ISDIR(sim_stat(node).mode) &&
		    !is_held(held, node)) {
			h->node = node;
			assert_held(h, "new");
		}
		break;
	case 1:
		if (h->node)
			(void)sim_walk(h->node, name, &node);
		break;
	case 2:
		if (d && d->child && sim_refs[(uint32_t)d->child].n && !is_held(held, d->child))
			sim_forget(d->child);
		break;
	default:
		break;
	}
}

START_TEST(who_stays_in_a_directory_sees_it_in_every_state_that_has_it)
{
	unsigned seed = (unsigned)(_i / 3) + 1, n = 0, imports = 0;
	struct held held[HELD] = { 0 };
	uint64_t ids[40];
	char *states[40];
	char when[40];

	sim_begin(_i % 3);
	for (unsigned step = 0; step < 1500; step++) {
		sim_change(&seed, step);
		sim_live(held, &seed);
		if (rand_r(&seed) % 20 == 0 && n < ARRAY_SIZE(ids)) {
			ids[n] = checkpoint();
			if (rand_r(&seed) % 2)
				ids[n] = import_like(ids[n], &seed, imports++);
			states[n] = truth_of(ids[n]);
			n++;
		}
		if (n && rand_r(&seed) % 12 == 0) {
			unsigned k = (unsigned)rand_r(&seed) % n;
			_cleanup_free_ char *text = NULL;
			struct restore_info info;

			snprintf(when, sizeof(when), "loop %d step %u", _i, step);
			ck_assert_int_eq(view_restore(view, ids[k], &info), 0);
			for (int h = 0; h < HELD; h++)
				if (held[h].node && !sim_refs[(uint32_t)held[h].node].removed)
					assert_held(&held[h], when);
			text = render();
			ck_assert_msg(!strcmp(text, states[k]), "%s:\n%s\nwanted\n%s", when, text,
				      states[k]);
		}
	}
	while (n)
		free(states[--n]);
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("view model"), *tight = tcase_create("little memory");

	tcase_add_checked_fixture(t, view_setup, view_teardown);
	tcase_set_timeout(t, 240);
	tcase_add_loop_test(t, caches_are_never_stale_after_a_restore, 0, 18);
	tcase_add_loop_test(t, who_stays_in_a_directory_sees_it_in_every_state_that_has_it, 0, 96);
	tcase_add_checked_fixture(tight, setup_tight, view_teardown);
	tcase_set_timeout(tight, 240);
	tcase_add_loop_test(tight, caches_are_never_stale_after_a_restore, 0, 3);
	return run_case("view_model", t) | run_case("view_model", tight);
}
