/* SPDX-License-Identifier: Apache-2.0 */

/*
 * check, gc, dump.
 *
 * What check finds it names three ways: the object (a line from the store), the snapshots and
 * branches whose states it touches, and the paths in them. The store speaks of key ranges; which
 * paths those are is found by walking the state by names: an object is touched when its number or
 * its directory's lies in the range (a key's first part is an inode number). A node often serves
 * many snapshots: its paths are searched in the first of them only, the others are just named.
 *
 * A repair wants the store for itself, and leaves records in the index that the store's memory does
 * not know: the daemon ends after it, and the next one begins with what is there.
 */

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>

#include "fs/fs.h"
#include "store/base/err.h"
#include "store/base/os.h"
#include "store/base/util.h"
#include "tools/cmd_util.h"
#include "tools/daemon.h"
#include "tools/diffstat.h"

/* Paths named per damage; the rest is counted: a damaged upper node touches everything below it. */
#define PATHS_SHOWN 20

struct damage {
	struct name name;
	struct key from, to;
};

struct check {
	struct cmd *c;
	json_t *json;	     /* array of damages, or NULL: text */
	struct damage *seen; /* whose paths were searched */
	size_t n_seen;
};

/* ---- paths in a key range ---- */

struct walk {
	struct check *check;
	struct fs fs;
	const struct damage *damage;
	json_t *paths;
	uint64_t found;
	char *path; /* grows with the depth */
	size_t len, cap;
};

static bool in_range(const struct damage *d, uint64_t ino)
{
	return ino >= d->from.a && ino <= d->to.a;
}

static void found_path(struct walk *w, const char *path, const char *what)
{
	if (w->found++ >= PATHS_SHOWN)
		return;
	if (w->paths)
		json_array_append_new(w->paths, json_text(*path ? path : "/"));
	else {
		fprintf(w->check->c->out, "    %s: ", what);
		print_quoted(w->check->c->out, *path ? path : "/ (the root)", "\n");
	}
}

static int push_name(struct walk *w, const char *name, size_t len)
{
	if (w->len + len + 2 > w->cap) {
		size_t cap = 2 * (w->len + len + 2);
		char *grown = realloc(w->path, cap);

		if (!grown)
			return -ENOMEM;
		w->path = grown;
		w->cap = cap;
	}
	if (w->len)
		w->path[w->len++] = '/';
	memcpy(w->path + w->len, name, len);
	w->len += len;
	w->path[w->len] = 0;
	return 0;
}

/* Each level takes some of the stack; nobody needs names that are deeper. */
#define DEPTH_MAX 4096

struct level {
	struct walk *walk;
	uint64_t dir;
	int depth;
};

static int walk_directory(struct walk *w, uint64_t ino, int depth);

/* Or not known to be another's: what cannot be read is told when it is entered. */
static bool is_its_name(struct level *l, uint64_t ino, uint64_t pos)
{
	struct inode i;

	return fs_stat(&l->walk->fs, ino, &i) < 0 || dir_is_at(&i, l->dir, pos);
}

static int walk_entry(void *arg, const char *name, size_t len, uint64_t ino, unsigned type,
		      uint64_t next_cookie)
{
	struct level *l = arg;
	struct walk *w = l->walk;
	size_t kept = w->len;
	int r;

	if ((len == 1 && name[0] == '.') || (len == 2 && memcmp(name, "..", 2) == 0))
		return 0;
	if (__atomic_load_n(&w->check->c->cancel, __ATOMIC_RELAXED))
		return 1;
	r = push_name(w, name, len);
	if (r < 0)
		return r;
	if (in_range(w->damage, ino))
		found_path(w, w->path, "path");
	if (type == DT_DIR && l->depth < DEPTH_MAX && is_its_name(l, ino, next_cookie))
		r = walk_directory(w, ino, l->depth + 1);
	w->len = kept;
	w->path[kept] = 0;
	return r;
}

static int walk_directory(struct walk *w, uint64_t ino, int depth)
{
	struct level l = { .walk = w, .dir = ino, .depth = depth };
	int r = fs_readdir(&w->fs, ino, 0, walk_entry, &l);

	if (r == -ENOMEM || r == 1)
		return r;
	if (r < 0 && !in_range(w->damage, ino)) /* else it was named just now */
		found_path(w, w->path, "directory, unreadable in part");
	return 0; /* what can be read elsewhere is still named */
}

static void name_paths(struct check *k, struct root *root, const struct damage *d, bool data,
		       json_t *paths)
{
	_cleanup_(tree_freep) struct tree *tree = NULL;
	struct walk w = { .check = k, .damage = d, .paths = paths };
	int r;

	r = tree_new(store_nodes(k->c->store), root, &tree);
	if (r < 0)
		return;
	w.fs = (struct fs){ .store = k->c->store, .tree = tree };

	/* One file's data: its own record tells its path. */
	if (data) {
		_cleanup_free_ char *path = NULL;
		size_t len;

		if (fs_path(&w.fs, d->from.a, &path, &len) == 0) {
			found_path(&w, path, "file");
			return;
		}
	}
	if (push_name(&w, "", 0) == 0) {
		w.len = 0;
		if (in_range(d, ROOT_INO))
			found_path(&w, "", "path");
		(void)walk_directory(&w, ROOT_INO, 0); /* its failure was told as a path */
	}
	if (!paths && w.found > PATHS_SHOWN)
		fprintf(k->c->out, "    and %" PRIu64 " more\n", w.found - PATHS_SHOWN);
	free(w.path);
}

/* ---- check ---- */

static void tell(struct check *k, const char *kind, const char *prefix, const char *line)
{
	cmd_progress_end(k->c);
	if (k->json)
		json_array_append_new(k->json, json_pack("{s:o}", kind, json_text(line)));
	else
		fprintf(k->c->out, "%s%s\n", prefix, line);
}

static void on_damage(void *arg, const char *line)
{
	tell(arg, "damage", "", line);
}

static void on_lost(void *arg, const char *line)
{
	tell(arg, "lost", "lost: ", line);
}

static void on_mended(void *arg, const char *line)
{
	tell(arg, "mended", "repair: ", line);
}

static bool is_new(struct check *k, const struct damage *d)
{
	struct damage *grown;

	for (size_t i = 0; i < k->n_seen; i++)
		if (name_eq(&k->seen[i].name, &d->name) &&
		    key_cmp(&k->seen[i].from, &d->from) == 0 &&
		    key_cmp(&k->seen[i].to, &d->to) == 0)
			return false;
	grown = reallocarray(k->seen, k->n_seen + 1, sizeof(*grown));
	if (!grown)
		return true; /* named twice rather than not at all */
	k->seen = grown;
	k->seen[k->n_seen++] = *d;
	return true;
}

static void on_touched(void *arg, uint64_t id, const char *branch, struct root *root,
		       const struct name *damaged, const struct key *from, const struct key *to,
		       bool data)
{
	struct check *k = arg;
	struct damage d = { .name = *damaged, .from = *from, .to = *to };
	char text[SNAP_ID_SIZE], hex[NAME_HEX_SIZE];
	json_t *paths = NULL;
	bool fresh = is_new(k, &d);

	cmd_progress_end(k->c);
	if (k->json)
		paths = json_array();
	else
		fprintf(k->c->out, "  %s touches %s %s%s\n", name_to_text(damaged, hex),
			branch ? "branch" : "snapshot", branch ? branch : snap_id_to_text(id, text),
			fresh ? "" : " (the same paths)");
	if (fresh)
		name_paths(k, root, &d, data, paths);
	if (k->json)
		json_array_append_new(
			k->json, json_pack("{s:s, s:o, s:o, s:s, s:o}", "touched",
					   name_to_text(damaged, hex), "snapshot", json_id(id),
					   "branch", branch ? json_string(branch) : json_null(),
					   "part", data ? "data" : "tree", "paths", paths));
}

/* Nothing is mounted, and nothing will be until the daemon has ended. */
static int begin_repair(struct cmd *c)
{
	struct daemon *d = c->daemon;

	LOCK_GUARD(&d->lock);
	if (d->views || d->ending)
		return cmd_fail(c, 0,
				"a repair wants the store for itself: unmount its views first");
	d->ending = true;
	return CMD_DONE;
}

static json_t *result_json(const struct check_stats *s, bool clean, bool read_data,
			   json_t *damages)
{
	return json_pack("{s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:o}", "clean",
			 clean, "damaged", (json_int_t)s->damaged, "lost", (json_int_t)s->lost,
			 "snapshots", (json_int_t)s->snapshots, "branches",
			 (json_int_t)s->branches, "nodes", (json_int_t)s->nodes, "chunks",
			 (json_int_t)s->chunks, "bytes", (json_int_t)s->bytes, "unreferenced",
			 (json_int_t)s->unreferenced, "unsealed_snapshots",
			 (json_int_t)s->unsealed_snapshots, "read_data", read_data, "damages",
			 damages);
}

static void print_result(struct cmd *c, const struct check_stats *s, bool clean, bool read_data)
{
	char size[SIZE_TEXT_SIZE];

	fprintf(c->out,
		"%s: %" PRIu64 " snapshot%s, %" PRIu64 " branch%s, %" PRIu64 " node%s, %" PRIu64
		" chunk%s, %s%s\n",
		clean ? "clean" : "DAMAGED", s->snapshots, plural(s->snapshots), s->branches,
		s->branches == 1 ? "" : "es", s->nodes, plural(s->nodes), s->chunks,
		plural(s->chunks), size_to_text(s->bytes, size), read_data ? ", all read" : "");
	if (s->lost)
		fprintf(c->out, "%" PRIu64 " chunk%s lost: reading what needs %s is an I/O error\n",
			s->lost, s->lost == 1 ? " is" : "s are", s->lost == 1 ? "it" : "them");
	if (s->unsealed_snapshots)
		fprintf(c->out, "%" PRIu64 " snapshot%s not durable yet, and %s not checked\n",
			s->unsealed_snapshots, s->unsealed_snapshots == 1 ? " is" : "s are",
			s->unsealed_snapshots == 1 ? "was" : "were");
	/* What a node has that cannot be read is not known: gc refuses then. */
	if (s->unreferenced && clean)
		fprintf(c->out, "%" PRIu64 " chunk%s to nothing; gc removes %s\n",
			s->unreferenced, s->unreferenced == 1 ? " belongs" : "s belong",
			s->unreferenced == 1 ? "it" : "them");
}

int cmd_check(struct cmd *c)
{
	bool read_data = false, repair = false, json = false;
	const struct option_def defs[] = {
		{ .name = "read-data", .flag = &read_data },
		{ .name = "repair", .flag = &repair },
		{ .name = "json", .flag = &json },
	};
	struct check k = { .c = c };
	struct check_ops ops = { .damage = on_damage,
				 .lost = on_lost,
				 .mended = on_mended,
				 .touched = on_touched,
				 .arg = &k };
	struct check_stats s = { 0 };
	int r, failed = 0;

	r = cmd_parse(c, defs, ARRAY_SIZE(defs), 0, 0);
	if (r == CMD_DONE && repair)
		r = begin_repair(c);
	if (r)
		return r;
	k.json = json ? json_array() : NULL;
	os_failed_forget();
	if (repair) {
		read_data = true;
		r = store_repair(c->store, &ops, &c->progress, &s);
		atomic_store(&c->daemon->end_soon, true);
	} else {
		r = store_check(c->store, read_data ? CHECK_READ_DATA : 0, &ops, &c->progress, &s);
	}
	free(k.seen);
	if (r < 0) {
		const char *file = os_failed_file(c->daemon->store_path, r);

		json_decref(k.json);
		return cmd_fail(c, r, "the %s could not be done%s%s", repair ? "repair" : "check",
				file ? ": " : "", file ? file : "");
	}

	if (json)
		failed = cmd_json(c, result_json(&s, r == 0, read_data, k.json));
	else
		print_result(c, &s, r == 0, read_data);
	if (r == EXISTS && !json)
		return cmd_fail(c, 0, "%" PRIu64 " damaged object%s%s", s.damaged,
				plural(s.damaged),
				repair ? "; 'plyfs salvage' may do more" :
					 "; 'plyfs check --repair' mends what it can");
	return failed ? failed : r == EXISTS ? CMD_FAILED : CMD_DONE;
}

/* ---- gc ---- */

/* What a restore replaced is held until the kernel lets go of it, and what git may ask about. */
static int tidy(void *arg, struct view_entry *e)
{
	fsmonitor_forget(e);
	view_tidy(mount_view(e->mount));
	return 0;
}

int cmd_gc(struct cmd *c)
{
	bool json = false;
	const struct option_def defs[] = {
		{ .name = "json", .flag = &json },
	};
	char freed[SIZE_TEXT_SIZE], before[SIZE_TEXT_SIZE];
	struct gc_stats s = {};
	int r;

	r = cmd_parse(c, defs, ARRAY_SIZE(defs), 0, 0);
	if (r)
		return r;
	(void)views_each(c->daemon, tidy, NULL);
	r = store_gc(c->store, &c->progress, &s);
	if (r == -EBUSY)
		return cmd_fail(c, 0, "an import is running; try again when it is done");
	if (r < 0)
		return cmd_fail(c, r, "collecting");

	if (json)
		return cmd_json(c, json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "chunks_kept",
					     (json_int_t)s.chunks_kept, "chunks_dropped",
					     (json_int_t)s.chunks_dropped, "bytes_before",
					     (json_int_t)s.bytes_before, "bytes_after",
					     (json_int_t)s.bytes_after, "packs_removed",
					     (json_int_t)s.packs_removed, "packs_rewritten",
					     (json_int_t)s.packs_rewritten));
	fprintf(c->out, "freed %s of %s; %" PRIu64 " chunk%s dropped, %" PRIu64 " kept\n",
		size_to_text(s.bytes_before > s.bytes_after ? s.bytes_before - s.bytes_after : 0,
			     freed),
		size_to_text(s.bytes_before, before), s.chunks_dropped, plural(s.chunks_dropped),
		s.chunks_kept);
	return CMD_DONE;
}

/* ---- dump ---- */

int cmd_dump(struct cmd *c)
{
	uint64_t id = 0;
	int r;

	r = cmd_parse(c, NULL, 0, 0, 1);
	if (r)
		return r;
	if (c->args.n) {
		r = snap_find(c->store, c->args.v[0], &id);
		if (r < 0)
			return cmd_fail(c, r, "%s", c->args.v[0]);
	}
	r = store_dump(c->store, c->out, id, fs_item_to_text);
	return r < 0 ? cmd_fail(c, r, "dumping") : CMD_DONE;
}
