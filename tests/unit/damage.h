/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A store with something in it, ways to damage it, and what a check or a repair tells of that. */

#include "store/format.h"
#include "store/store_internal.h"
#include "tests/unit/store_fixture.h"

/* One branch: 2000 items, data at 5000, three snapshots; the last two share nearly everything. */
static uint64_t ids[3];
static uint8_t content[20000]; /* of 5000 */

static void populate(void)
{
	struct branch *b = branch_make("main");

	change(b, 1, "small");
	ids[0] = checkpoint(b, "first");
	fill(b, 1, 2000, 1);
	scratch_fill(content, sizeof(content), 1);
	change_blob(b, 5000, content, sizeof(content));
	ids[1] = checkpoint(b, NULL);
	change(b, 1, "changed");
	ids[2] = checkpoint(b, "last");
	branch_close(b);
	ck_ok(store_sync(store));
	store_reopen();
}

/* ---- names of chunks in it ---- */

static struct name data_name(uint64_t id)
{
	_cleanup_(root_unrefp) struct root *root = NULL;
	_cleanup_(tree_freep) struct tree *t = NULL;
	const struct key k = key_at(5000);
	struct val v;

	ck_ok(snap_root(store, id, &root));
	ck_ok(tree_new(store_nodes(store), root, &t));
	ck_ok(tree_get(t, &k, &v));
	ck_assert_int_eq(v.ref.kind, REF_CHUNK);
	return v.ref.name;
}

static struct name top_name(uint64_t id)
{
	struct snap_info info;

	ck_ok(snap_get(store, id, &info));
	return info.root;
}

struct leaf_search {
	struct key key;
	struct name name;
};

static int find_leaf(void *arg, const struct name *name, unsigned level, const struct key *first,
		     const struct key *last, int r)
{
	struct leaf_search *s = arg;

	if (key_cmp(first, &s->key) > 0 || key_cmp(last, &s->key) < 0)
		return 1;
	if (level == 0)
		s->name = *name;
	return 0;
}

/* The node with the item a. */
static struct name leaf_name(uint64_t id, uint64_t a)
{
	_cleanup_(root_unrefp) struct root *root = NULL;
	struct leaf_search search = { .key = key_at(a) };
	const struct tree_check walk = { .node = find_leaf, .arg = &search };
	struct name top = top_name(id);

	ck_ok(root_by_name(store_nodes(store), &top, &root));
	ck_ok(root_check(root, &walk));
	return search.name;
}

/* ---- damage ---- */

static void flip_at(const char *path, uint64_t at)
{
	_cleanup_close_ int fd = -1;
	uint8_t byte;

	ck_ok(os_openat(scratch.dir_fd, path, O_RDWR | O_CLOEXEC, 0, &fd));
	ck_ok(os_pread_full(fd, &byte, 1, at));
	byte ^= 4;
	ck_ok(os_pwrite_full(fd, &byte, 1, at));
}

#define IN_HEADER 20 /* of a record */
#define IN_PAYLOAD (sizeof(struct record_header_bytes) + 7)

static void flip_chunk(const struct name *name, uint64_t in_record)
{
	struct chunk_loc loc;
	char path[64];

	ck_ok(index_find_chunk(store->index, name, &loc));
	(void)snprintf(path, sizeof(path), "packs/%08x.pack", loc.pack);
	flip_at(path, loc.off + in_record);
}

static void put_branch(const char *name, const struct branch_record *rec)
{
	uint8_t buf[BRANCH_RECORD_BYTES];
	struct index_txn *txn;

	branch_record_encode(rec, buf);
	ck_ok(index_begin(store->index, &txn));
	ck_ok(index_put(txn, INDEX_BRANCHES, name, strlen(name), buf, sizeof(buf)));
	ck_ok(index_commit(&txn));
}

/* ---- what is told of it ---- */

static struct report {
	char text[8192]; /* a line each: damage, lost or mended, and the line that was told */
	int damaged, lost, mended, touched;
	struct {
		uint64_t id;
		char branch[BRANCH_NAME_MAX + 1];
		struct key from, to;
		bool data;
	} touch[64];
} report;

static void add_line(const char *kind, const char *line)
{
	size_t len = strlen(report.text);

	(void)snprintf(report.text + len, sizeof(report.text) - len, "%s %s\n", kind, line);
}

static void on_damage(void *arg, const char *line)
{
	report.damaged++;
	add_line("damage", line);
}

static void on_lost(void *arg, const char *line)
{
	report.lost++;
	add_line("lost", line);
}

static void on_mended(void *arg, const char *line)
{
	report.mended++;
	add_line("mended", line);
}

static void on_touched(void *arg, uint64_t id, const char *branch, struct root *root,
		       const struct name *damaged, const struct key *from, const struct key *to,
		       bool data)
{
	int i = report.touched++;

	ck_assert_ptr_nonnull(root);
	if (i >= (int)ARRAY_SIZE(report.touch))
		return;
	report.touch[i].id = id;
	(void)snprintf(report.touch[i].branch, sizeof(report.touch[i].branch), "%s",
		       branch ? branch : "");
	report.touch[i].from = *from;
	report.touch[i].to = *to;
	report.touch[i].data = data;
}

static const struct check_ops ops = {
	.damage = on_damage, .lost = on_lost, .mended = on_mended, .touched = on_touched,
};

static struct check_stats check(unsigned flags, int expected)
{
	struct check_stats stats;
	int r;

	report = (struct report){ .damaged = 0 };
	r = store_check(store, flags, &ops, NULL, &stats);
	ck_assert_msg(r == expected, "check: %d\n%s", r, report.text);
	ck_assert_uint_eq(stats.damaged, report.damaged);
	return stats;
}
