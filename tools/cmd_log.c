/* SPDX-License-Identifier: Apache-2.0 */

/*
 * log and tree: what snapshots there are. Both work on one copy of the snapshots and branches
 * (struct history), so that nothing moves while they print.
 */

#include <errno.h>
#include <inttypes.h>
#include <time.h>

#include "store/base/err.h"
#include "store/base/os.h"
#include "store/base/util.h"
#include "store/base/words.h"
#include "tools/cmd_util.h"
#include "tools/daemon.h"

#define NONE SIZE_MAX

struct item {
	struct snap_info info;
	bool wanted;
	size_t first_child, next_sibling; /* in order of creation */
	size_t last_child;
};

struct history {
	struct item *items; /* in order of creation */
	size_t n, cap;
	size_t *by_id; /* indexes of items, sorted by id */
	struct branch_info *branches;
	size_t n_branches, cap_branches;
};

static void history_release(struct history *h)
{
	free(h->items);
	free(h->by_id);
	free(h->branches);
}

static int add_snapshot(void *arg, const struct snap_info *info)
{
	struct history *h = arg;
	int r = os_grow(&h->items, &h->cap, h->n + 1, sizeof(*h->items));

	if (r < 0)
		return r;
	h->items[h->n++] = (struct item){
		.info = *info, .first_child = NONE, .next_sibling = NONE, .last_child = NONE
	};
	return 0;
}

static int add_branch(void *arg, const struct branch_info *info)
{
	struct history *h = arg;
	int r = os_grow(&h->branches, &h->cap_branches, h->n_branches + 1, sizeof(*h->branches));

	if (r < 0)
		return r;
	h->branches[h->n_branches++] = *info;
	return 0;
}

static int compare_ids(const void *a, const void *b, void *arg)
{
	const struct item *items = arg;
	uint64_t x = items[*(const size_t *)a].info.id, y = items[*(const size_t *)b].info.id;

	return x < y ? -1 : x > y;
}

/* Index of a snapshot, or NONE (0, dropped, or made after we looked). */
static size_t find_item(const struct history *h, uint64_t id)
{
	size_t low = 0, high = h->n;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (h->items[h->by_id[mid]].info.id < id)
			low = mid + 1;
		else
			high = mid;
	}
	return low < h->n && h->items[h->by_id[low]].info.id == id ? h->by_id[low] : NONE;
}

static int history_load(struct store *s, struct history *h)
{
	int r;

	r = branch_each(s, add_branch, h);
	if (r == 0)
		r = snap_each(s, add_snapshot, h);
	if (r < 0)
		return r;
	h->by_id = calloc(h->n + 1, sizeof(*h->by_id));
	if (!h->by_id)
		return -ENOMEM;
	for (size_t i = 0; i < h->n; i++)
		h->by_id[i] = i;
	qsort_r(h->by_id, h->n, sizeof(*h->by_id), compare_ids, h->items);

	for (size_t i = 0; i < h->n; i++) {
		size_t p = h->items[i].info.parent ? find_item(h, h->items[i].info.parent) : NONE;

		if (p == NONE || p >= i) /* a parent is older; anything else would make a ring */
			continue;
		if (h->items[p].last_child == NONE)
			h->items[p].first_child = i;
		else
			h->items[h->items[p].last_child].next_sibling = i;
		h->items[p].last_child = i;
	}
	return 0;
}

/* ---- one snapshot ---- */

static bool is_head(const struct history *h, uint64_t id)
{
	for (size_t i = 0; i < h->n_branches; i++)
		if (h->branches[i].head == id)
			return true;
	return false;
}

static void print_item(struct cmd *c, const struct history *h, const struct item *item)
{
	const struct snap_info *s = &item->info;
	char id[SNAP_ID_SIZE], time[TIME_TEXT_SIZE];

	fprintf(c->out, "%s %c %s  %s", snap_id_to_text(s->id, id),
		is_head(h, s->id) ? '*' : ' ', time_to_text(s->time_ns, time), s->branch);
	if (*s->label) {
		fputs("  ", c->out);
		print_clean(c->out, s->label);
	}
	if (s->flags & SNAP_AUTO)
		fputs("  (left by a restore)", c->out);
	if (!s->durable)
		fputs("  (not durable yet)", c->out);
	fputc('\n', c->out);
}

static json_t *item_to_json(const struct history *h, const struct item *item)
{
	const struct snap_info *s = &item->info;
	char time[TIME_TEXT_SIZE], root[NAME_HEX_SIZE];
	json_t *heads = json_array();

	for (size_t i = 0; i < h->n_branches; i++)
		if (h->branches[i].head == s->id)
			json_array_append_new(heads, json_string(h->branches[i].name));
	return json_pack("{s:o, s:I, s:o, s:s, s:I, s:s, s:o, s:b, s:b, s:b, s:o, s:o}", "id",
			 json_id(s->id), "seq", (json_int_t)s->seq, "parent", json_id(s->parent),
			 "time", time_to_text(s->time_ns, time), "time_ns", (json_int_t)s->time_ns,
			 "branch", s->branch, "label", json_text(s->label), "durable", s->durable,
			 "auto", (s->flags & SNAP_AUTO) != 0, "import",
			 (s->flags & SNAP_IMPORT) != 0, "root",
			 s->has_root ? json_string(name_to_text(&s->root, root)) : json_null(),
			 "heads", heads);
}

/* ---- log ---- */

static void want_branch(struct history *h, const struct branch_info *b)
{
	for (size_t i = 0; i < h->n; i++)
		if (strcmp(h->items[i].info.branch, b->name) == 0)
			h->items[i].wanted = true;
	/* Its ancestors: a parent comes earlier, so this ends. */
	for (size_t i = find_item(h, b->head); i != NONE;) {
		size_t p = find_item(h, h->items[i].info.parent);

		h->items[i].wanted = true;
		if (p == NONE || p >= i)
			break;
		i = p;
	}
}

int cmd_log(struct cmd *c)
{
	const char *branch = NULL;
	uint64_t count = UINT64_MAX;
	bool json = false;
	const struct option_def defs[] = {
		{ .name = "branch", .word = &branch },
		{ .name = "count", .letter = 'n', .number = &count },
		{ .name = "json", .flag = &json },
	};
	_cleanup_(history_release) struct history h = {};
	uint64_t n = 0;
	bool found = false;
	int r;

	r = cmd_parse(c, defs, ARRAY_SIZE(defs), 0, 0);
	if (r)
		return r;
	r = history_load(c->store, &h);
	if (r < 0)
		return cmd_fail(c, r, "reading the snapshots");

	for (size_t i = 0; branch && i < h.n_branches; i++)
		if (strcmp(h.branches[i].name, branch) == 0) {
			want_branch(&h, &h.branches[i]);
			found = true;
		}
	if (branch && !found)
		return cmd_fail(c, -ERR_BRANCH_UNKNOWN, "%s", branch);

	for (size_t i = h.n; i-- > 0 && count;) {
		if (branch && !h.items[i].wanted)
			continue;
		count--;
		if (!json)
			print_item(c, &h, &h.items[i]);
		else if (cmd_json_next(c, &n, item_to_json(&h, &h.items[i])) < 0)
			return cmd_fail(c, -ENOMEM, "JSON");
	}
	if (json)
		cmd_json_end(c, n);
	return CMD_DONE;
}

/* ---- tree ---- */

static void print_branches(struct cmd *c, const struct history *h, uint64_t head, unsigned indent)
{
	for (size_t i = 0; i < h->n_branches; i++) {
		const struct branch_info *b = &h->branches[i];
		_cleanup_(views_putp) struct view_entry *e = NULL;

		if (b->head != head)
			continue;
		e = views_get_branch(c->daemon, b->name);
		fprintf(c->out, "%*s= %s", (int)indent, "", b->name);
		if (b->changes)
			fprintf(c->out, ", %" PRIu64 " change%s since", b->changes,
				plural(b->changes));
		if (e) {
			fputs(", mounted on ", c->out);
			print_clean(c->out, e->mountpoint);
		}
		fputc('\n', c->out);
	}
}

/* Deeper nests keep this indent: the line's right half is for what it says. */
#define INDENT_MAX 40

/*
 * A line of snapshots goes straight down at one indent; where it parts, all but the line's own
 * continuation (the child made on the same branch, else the first) are indented below it. The
 * stack holds what is still to print: recursion would be as deep as forks are nested.
 */
static int print_tree(struct cmd *c, const struct history *h, size_t top)
{
	struct todo {
		size_t item;
		unsigned indent;
	} * stack;
	size_t n = 0;

	stack = calloc(h->n + 1, sizeof(*stack)); /* each item is on it at most once */
	if (!stack)
		return -ENOMEM;
	stack[n++] = (struct todo){ top, 0 };
	while (n) {
		struct todo t = stack[--n];
		const struct item *item = &h->items[t.item];
		size_t straight = item->first_child, first;

		fprintf(c->out, "%*s", (int)t.indent, "");
		print_item(c, h, item);
		print_branches(c, h, item->info.id, t.indent + 2);

		for (size_t k = item->first_child; k != NONE; k = h->items[k].next_sibling)
			if (strcmp(h->items[k].info.branch, item->info.branch) == 0) {
				straight = k;
				break;
			}
		/* Last in, first out: the straight one lowest, then the others, oldest on top. */
		if (straight != NONE)
			stack[n++] = (struct todo){ straight, t.indent };
		first = n;
		for (size_t k = item->first_child; k != NONE; k = h->items[k].next_sibling)
			if (k != straight)
				stack[n++] = (struct todo){ k, MIN(t.indent + 2, INDENT_MAX) };
		for (size_t low = first, high = n; low + 1 < high; low++) {
			struct todo swap = stack[low];

			stack[low] = stack[--high];
			stack[high] = swap;
		}
	}
	free(stack);
	return 0;
}

static int tree_to_json(struct cmd *c, const struct history *h)
{
	json_t *snapshots = json_array(), *branches = json_array();

	for (size_t i = 0; i < h->n; i++)
		json_array_append_new(snapshots, item_to_json(h, &h->items[i]));
	for (size_t i = 0; i < h->n_branches; i++) {
		const struct branch_info *b = &h->branches[i];
		_cleanup_(views_putp) struct view_entry *e = views_get_branch(c->daemon, b->name);

		json_array_append_new(branches,
				      json_pack("{s:s, s:o, s:o, s:I, s:o}", "name", b->name,
						"head", json_id(b->head), "undo", json_id(b->undo),
						"changes", (json_int_t)b->changes, "mountpoint",
						e ? json_text(e->mountpoint) : json_null()));
	}
	return cmd_json(c, json_pack("{s:o, s:o}", "snapshots", snapshots, "branches", branches));
}

int cmd_tree(struct cmd *c)
{
	bool json = false, names = false, labels = false;
	const struct option_def defs[] = {
		{ .name = "json", .flag = &json },
		{ .name = "names", .flag = &names },
		{ .name = "labels", .flag = &labels },
	};
	_cleanup_(history_release) struct history h = {};
	int r;

	r = cmd_parse(c, defs, ARRAY_SIZE(defs), 0, 0);
	if (r)
		return r;
	if (json && (names || labels))
		return cmd_misuse(c, "--json goes without --%s", names ? "names" : "labels");
	r = history_load(c->store, &h);
	if (r < 0)
		return cmd_fail(c, r, "reading the snapshots");
	if (json)
		return tree_to_json(c, &h);
	for (size_t i = 0; names && i < h.n_branches; i++)
		fprintf(c->out, "%s\n", h.branches[i].name);
	for (size_t i = 0; labels && i < h.n; i++)
		if (*h.items[i].info.label) {
			fputc('@', c->out);
			print_clean(c->out, h.items[i].info.label);
			fputc('\n', c->out);
		}
	if (names || labels)
		return CMD_DONE;

	print_branches(c, &h, 0, 0); /* of no snapshot yet */
	for (size_t i = 0; i < h.n && r == 0; i++) {
		size_t p = h.items[i].info.parent ? find_item(&h, h.items[i].info.parent) : NONE;

		if (p == NONE || p >= i)
			r = print_tree(c, &h, i);
	}
	return r < 0 ? cmd_fail(c, r, "printing the tree") : CMD_DONE;
}
