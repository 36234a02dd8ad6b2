/* SPDX-License-Identifier: Apache-2.0 */

/* status: the daemon, its views, the store's sizes. */

#include <inttypes.h>
#include <limits.h>

#include "fs/awake.h"
#include "store/base/err.h"
#include "store/base/util.h"
#include "store/base/words.h"
#include "tools/cmd_util.h"
#include "tools/daemon.h"
#include "tools/verbs.h"

/* What is shown of a view. */
struct view_status {
	uint64_t head, changes, nodes, entries, inodes, epochs, found;
	struct mount_passed passed;
};

static void view_status_get(struct view_entry *e, struct view_status *ret)
{
	struct view *v = mount_view(e->mount);
	struct branch *b = view_branch(v);
	struct view_stats stats = {};

	*ret = (struct view_status){ .head = e->snapshot };
	if (b) {
		READ_GUARD(&b->lock);

		ret->head = b->head;
		ret->changes = b->changes;
	}
	if (view_stat(v, &stats) == 0) {
		ret->nodes = stats.nodes;
	}
	mount_notifications(e->mount, &ret->entries, &ret->inodes, &ret->epochs);
	ret->found = mount_found(e->mount);
	mount_passed(e->mount, &ret->passed);
}

struct printer {
	struct cmd *c;
	bool ops;
	json_t *array; /* of views; NULL: text */
};

static void op_to_json(void *arg, const char *op, uint64_t count)
{
	json_object_set_new(arg, op, json_integer((json_int_t)count));
}

static void op_to_text(void *arg, const char *op, uint64_t count)
{
	struct cmd *c = arg;

	fprintf(c->out, "          %-16s %" PRIu64 "\n", op, count);
}

static json_t *without_to_json(uint32_t how)
{
	json_t *names = json_array();

	for (unsigned i = 0; i < LEVERS; i++)
		if (how & WITHOUT(i))
			json_array_append_new(names, json_string(lever_names[i]));
	return names;
}

static json_t *passed_to_json(uint32_t how, const struct mount_passed *p)
{
	if (!(how & MOUNT_PASSTHROUGH))
		return json_null();
	return json_pack("{s:I, s:I, s:I}", "opens", (json_int_t)p->passed, "other_opens",
			 (json_int_t)p->others, "copied_bytes", (json_int_t)p->copied);
}

static int view_to_json(void *arg, struct view_entry *e)
{
	struct printer *p = arg;
	int detached = views_is_detached(e);
	char users[MOUNT_USERS_BYTES];
	struct view_status s;
	json_t *view;

	if (detached < 0)
		return detached;
	view_status_get(e, &s);
	view = json_pack("{s:o, s:o, s:o, s:o, s:b, s:I, s:I, s:{s:I, s:I, s:I}, s:I}",
			 "mountpoint", json_text(e->mountpoint), "branch",
			 *e->branch ? json_string(e->branch) : json_null(), "snapshot",
			 json_id(e->snapshot), "head", json_id(s.head), "read_only", !*e->branch,
			 "changes", (json_int_t)s.changes, "nodes", (json_int_t)s.nodes,
			 "notifications", "entries", (json_int_t)s.entries, "inodes",
			 (json_int_t)s.inodes, "epochs", (json_int_t)s.epochs,
			 "found", (json_int_t)s.found);
	json_object_set_new(view, "without", without_to_json(e->how));
	json_object_set_new(view, "detached", json_boolean(detached));
	if (detached)
		views_users(e, users);
	json_object_set_new(view, "users", detached ? json_text(users) : json_null());
	json_object_set_new(view, "io_uring", json_boolean(e->how & MOUNT_IO_URING));
	json_object_set_new(view, "inotify", json_boolean(e->how & MOUNT_INOTIFY));
	json_object_set_new(view, "passthrough", passed_to_json(e->how, &s.passed));
	if (p->ops) {
		json_t *ops = json_object();

		mount_ops(e->mount, op_to_json, ops);
		json_object_set_new(view, "ops", ops);
	}
	json_array_append_new(p->array, view);
	return 0;
}

static int view_to_text(void *arg, struct view_entry *e)
{
	struct printer *p = arg;
	struct cmd *c = p->c;
	struct view_status s;
	char id[SNAP_ID_SIZE], without[LEVERS_TEXT_SIZE], copied[SIZE_TEXT_SIZE];
	char users[MOUNT_USERS_BYTES];
	int detached = views_is_detached(e);

	if (detached < 0)
		return detached;
	view_status_get(e, &s);
	fputs("view    ", c->out);
	print_clean(c->out, e->mountpoint);
	fprintf(c->out, "  %s %s", *e->branch ? "branch" : "snapshot",
		*e->branch ? e->branch : snap_id_to_text(e->snapshot, id));
	if (*e->branch && s.head)
		fprintf(c->out, ", %" PRIu64 " change%s since %s", s.changes,
			plural(s.changes), snap_id_to_text(s.head, id));
	else if (*e->branch)
		fprintf(c->out, ", no snapshot yet");
	if (detached) {
		views_users(e, users);
		fprintf(c->out, ", detached (or in another mount namespace)%s",
			*users ? ", in use by " : "");
		print_clean(c->out, users);
	}
	if (*levers_to_text(e->how, without))
		fprintf(c->out, ", without %s", without);
	if (e->how & MOUNT_IO_URING)
		fprintf(c->out, ", io_uring (ends with the daemon)");
	if (e->how & MOUNT_INOTIFY)
		fprintf(c->out, ", inotify");
	if (e->how & MOUNT_PASSTHROUGH)
		fprintf(c->out, ", passthrough%s",
			s.passed.told ? " (not of all; see the log)" : "");
	fputc('\n', c->out);
	if (p->ops) {
		mount_ops(e->mount, op_to_text, c);
		fprintf(c->out,
			"          told the kernel: %" PRIu64 " name%s, %" PRIu64
			" inode%s, %" PRIu64 " epoch%s\n"
			"          found before the daemon slept: %" PRIu64 " request%s\n",
			s.entries, plural(s.entries), s.inodes, plural(s.inodes), s.epochs,
			plural(s.epochs), s.found, plural(s.found));
	}
	if (p->ops && e->how & MOUNT_PASSTHROUGH)
		fprintf(c->out,
			"          large files opened: %" PRIu64 " passed through, %" PRIu64
			" not; %s copied\n",
			s.passed.passed, s.passed.others, size_to_text(s.passed.copied, copied));
	return 0;
}

/* Daemons before this one that served its views. */
static void print_former(struct cmd *c)
{
	unsigned deaths = supervisor_deaths(c->daemon->supervisor);
	unsigned replacements = supervisor_replacements(c->daemon->supervisor);

	if (views_count(c->daemon) && !supervisor_is_there())
		fputs("ALONE   its supervisor was killed: when it ends, its views do\n", c->out);
	if (deaths)
		fprintf(c->out,
			"DIED    %u daemon%s before this one, whose views go on; see the log\n",
			deaths, plural(deaths));
	if (replacements)
		fprintf(c->out, "follows %u daemon%s that %s replaced\n", replacements,
			plural(replacements), replacements == 1 ? "was" : "were");
}

#define MOUNTS_OF "what is mounted" /* the only reading of theirs that may fail */

static int status_json(struct cmd *c, bool ops, const struct store_stats *s)
{
	struct printer p = { .c = c, .ops = ops, .array = json_array() };
	char log[PATH_MAX + 16], path[PATH_MAX];
	const char *store = daemon_store_path(c->daemon->dir_fd, c->daemon->store_path, path);
	json_t *awake = json_null();
	uint64_t times;
	int r;

	if (awake_used(&times))
		awake = json_integer((json_int_t)times);
	r = views_each(c->daemon, view_to_json, &p);
	if (r < 0) {
		json_decref(p.array);
		json_decref(awake);
		return cmd_fail(c, r, MOUNTS_OF);
	}
	snprintf(log, sizeof(log), "%s/daemon.log", store);
	return cmd_json(
		c,
		json_pack(
			"{s:o, s:{s:i, s:o, s:s, s:b, s:i, s:i, s:o}, s:o, s:o,"
			" s:{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I,"
			" s:I, s:I, s:I, s:I, s:I, s:b}}",
			"store", json_text(store), "daemon", "pid", (int)getpid(),
			"log", json_text(log), "version", PLYFS_VERSION, "supervised",
			supervisor_is_there(), "deaths",
			(int)supervisor_deaths(c->daemon->supervisor), "replacements",
			(int)supervisor_replacements(c->daemon->supervisor), "awake", awake, "log",
			json_text(log),
			"views", p.array, "sizes", "snapshots", (json_int_t)s->snapshots,
			"branches", (json_int_t)s->branches, "chunks", (json_int_t)s->chunks,
			"packs", (json_int_t)s->packs, "pack_bytes", (json_int_t)s->pack_bytes,
			"unsealed_bytes", (json_int_t)s->unsealed_bytes, "stage_bytes",
			(json_int_t)s->stage_bytes, "nodes", (json_int_t)s->nodes, "node_bytes",
			(json_int_t)s->node_bytes, "node_budget", (json_int_t)s->node_budget,
			"cache_bytes", (json_int_t)s->cache_bytes, "cache_limit",
			(json_int_t)s->cache_limit, "unsealed_snapshots",
			(json_int_t)s->unsealed_snapshots, "journal_bytes",
			(json_int_t)s->journal_bytes, "copies", (json_int_t)s->copies, "copy_bytes",
			(json_int_t)s->copy_bytes, "recovered_operations",
			(json_int_t)s->recovered_operations, "recovered_branches",
			(json_int_t)s->recovered_branches, "failed", s->failed || s->removed));
}

int cmd_status(struct cmd *c)
{
	bool json = false, ops = false;
	const struct option_def defs[] = {
		{ .name = "json", .flag = &json },
		{ .name = "ops", .flag = &ops },
	};
	struct printer p = { .c = c };
	char packs[SIZE_TEXT_SIZE], unsealed[SIZE_TEXT_SIZE], nodes[SIZE_TEXT_SIZE];
	char budget[SIZE_TEXT_SIZE], copies[SIZE_TEXT_SIZE];
	char cached[SIZE_TEXT_SIZE], limit[SIZE_TEXT_SIZE];
	struct store_stats s;
	char path[PATH_MAX];
	const char *store = daemon_store_path(c->daemon->dir_fd, c->daemon->store_path, path);
	uint64_t times;
	int r;

	r = cmd_parse(c, defs, ARRAY_SIZE(defs), 0, 0);
	if (r)
		return r;
	r = store_stats(c->store, &s);
	if (r < 0)
		return cmd_fail(c, r, "the store's statistics");
	if (json)
		return status_json(c, ops, &s);

	fputs("store   ", c->out);
	print_clean(c->out, store);
	fprintf(c->out, "\ndaemon  pid %d, plyfs %s\nlog     ", (int)getpid(), PLYFS_VERSION);
	print_clean(c->out, store);
	fputs("/daemon.log\n", c->out);
	print_former(c);
	p.ops = ops;
	r = views_each(c->daemon, view_to_text, &p);
	if (r < 0)
		return cmd_fail(c, r, MOUNTS_OF);
	if (ops && awake_used(&times))
		fprintf(c->out, "awake   %" PRIu64 " time%s the CPUs were kept awake\n", times,
			plural(times));
	fprintf(c->out,
		"holds   %" PRIu64 " snapshot%s, %" PRIu64 " branch%s, %" PRIu64
		" chunk%s in %s of packs\n",
		s.snapshots, plural(s.snapshots), s.branches, s.branches == 1 ? "" : "es",
		s.chunks, plural(s.chunks), size_to_text(s.pack_bytes, packs));
	if (s.copies)
		fprintf(c->out, "copies  %" PRIu64 " of files for --passthrough, %s\n", s.copies,
			size_to_text(s.copy_bytes, copies));
	fprintf(c->out,
		"memory  %" PRIu64 " tree node%s, %s (stored ones may take %s); %s of chunks"
		" that were read (at most %s)\n",
		s.nodes, plural(s.nodes), size_to_text(s.node_bytes, nodes),
		size_to_text(s.node_budget, budget), size_to_text(s.cache_bytes, cached),
		size_to_text(s.cache_limit, limit));
	if (s.unsealed_snapshots || s.unsealed_bytes)
		fprintf(c->out, "todo    %" PRIu64 " snapshot%s and %s to make durable\n",
			s.unsealed_snapshots, plural(s.unsealed_snapshots),
			size_to_text(s.unsealed_bytes, unsealed));
	if (s.recovered_operations)
		fprintf(c->out,
			"back    %" PRIu64 " operation%s of %" PRIu64
			" branch%s recovered after the last daemon's end\n",
			s.recovered_operations, plural(s.recovered_operations),
			s.recovered_branches, s.recovered_branches == 1 ? "" : "es");
	if (s.removed)
		fprintf(c->out, "REMOVED %s\n", err_str(-ERR_STORE_REMOVED));
	if (s.failed)
		fprintf(c->out, "FAILED  the store stopped writing; its log says why\n");
	return CMD_DONE;
}
