/* SPDX-License-Identifier: Apache-2.0 */

/* drop: forgets branches, snapshots by id, and snapshots by age. */

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <unistd.h>

#include "store/base/err.h"
#include "store/base/os.h"
#include "store/base/util.h"
#include "tools/cmd_writeback.h"
#include "tools/daemon.h"

/* One that cannot be opened is there: what is asked for it must not happen to a snapshot. */
static bool branch_is_there(struct cmd *c, const char *name)
{
	_cleanup_(branch_closep) struct branch *b = NULL;

	return branch_open(c->store, name, &b) != -ERR_BRANCH_UNKNOWN;
}

struct drop {
	struct cmd *c;
	bool dry, with_snapshots;
	json_t *json; /* owned: what was dropped; NULL: as text */
};

static void drop_release(struct drop *d)
{
	json_decref(d->json);
}

/* changes: of a branch, those that no snapshot has. */
static void tell_dropped(struct drop *d, const char *what, const char *name, uint64_t changes)
{
	if (d->json) { /* cmd_json says when memory was short */
		(void)json_array_append_new(
			d->json, strcmp(what, "branch") == 0 ?
					 json_pack("{s:s, s:I}", what, name, "changes",
						   (json_int_t)changes) :
					 json_pack("{s:s}", what, name));
		return;
	}
	fprintf(d->c->out, "%s %s %s", d->dry ? "would drop" : "dropped", what, name);
	if (changes)
		fprintf(d->c->out, " (with %" PRIu64 " change%s since its last snapshot)", changes,
			plural(changes));
	fputc('\n', d->c->out);
}

/* Which snapshots go, and then those that are it. */
struct choice {
	const char *branch;  /* made on it; NULL: on any */
	int64_t before;	     /* made earlier than this (ns since 1970) */
	bool spares_labels;  /* what somebody has named stays */
	bool spares_left;    /* what an undo would bring back stays */
	uint64_t *stay;	     /* owned: ids that stay anyhow */
	size_t n_stay, cap_stay;
	uint64_t *ids; /* owned */
	size_t n, cap;
	size_t spared; /* for their labels alone */
};

static void choice_release(struct choice *ch)
{
	free(ch->stay);
	free(ch->ids);
}

static int let_stay(struct choice *ch, uint64_t id)
{
	int r = os_grow(&ch->stay, &ch->cap_stay, ch->n_stay + 1, sizeof(*ch->stay));

	if (r == 0)
		ch->stay[ch->n_stay++] = id;
	return r;
}

/* What a restore left was kept by a checkpoint before, if nothing had changed since. */
static int let_branch_stay(void *arg, const struct branch_info *info)
{
	int r = let_stay(arg, info->head);

	return r < 0 ? r : let_stay(arg, info->undo);
}

static int choose(void *arg, const struct snap_info *info)
{
	struct choice *ch = arg;
	int r;

	if (info->time_ns >= ch->before || (ch->branch && strcmp(info->branch, ch->branch) != 0))
		return 0;
	if (ch->spares_left && (info->flags & SNAP_AUTO))
		return 0;
	for (size_t i = 0; i < ch->n_stay; i++)
		if (ch->stay[i] == info->id)
			return 0;
	if (ch->spares_labels && *info->label) {
		ch->spared++;
		return 0;
	}
	r = os_grow(&ch->ids, &ch->cap, ch->n + 1, sizeof(*ch->ids));
	if (r == 0)
		ch->ids[ch->n++] = info->id;
	return r;
}

/* Children get the parents of what goes (snap_drop). */
static int drop_chosen(struct drop *d, struct choice *ch)
{
	struct cmd *c = d->c;
	char text[SNAP_ID_SIZE];
	int r;

	r = snap_each(c->store, choose, ch);
	if (r < 0)
		return cmd_fail(c, r, "reading the snapshots");
	for (size_t i = 0; i < ch->n; i++) {
		if (__atomic_load_n(&c->cancel, __ATOMIC_RELAXED))
			return cmd_fail(c, -ERR_CANCELLED, "%zu of %zu snapshots", i, ch->n);
		r = d->dry ? snap_drop_allowed(c->store, ch->ids[i]) :
			     snap_drop(c->store, ch->ids[i]);
		/* Mounted, or gone meanwhile (the newest left state goes with its branch). */
		if (r == -ERR_SNAP_IN_USE || r == -ERR_SNAP_UNKNOWN)
			continue;
		snap_id_to_text(ch->ids[i], text);
		if (r < 0)
			return cmd_fail(c, r, "%s", text);
		tell_dropped(d, "snapshot", text, 0);
	}
	return CMD_DONE;
}

/* After the branch itself. */
static int drop_made_on(struct drop *d, const char *branch)
{
	_cleanup_(choice_release) struct choice ch = { .branch = branch, .before = INT64_MAX };

	return drop_chosen(d, &ch);
}

/* The memo that environments keep of a branch: what number comes next (env/numbers.h). */
static void drop_number(struct cmd *c, const char *branch)
{
	char path[BRANCH_NAME_MAX + 16];

	snprintf(path, sizeof(path), "numbers/%s", branch);
	(void)unlinkat(c->daemon->dir_fd, path, 0); /* most branches have none */
}

/* What a word may stand for. People may mean either; programs say which. */
enum meant { EITHER, BRANCH, SNAPSHOT };

/* A name or the beginning of an id could be something else tomorrow. */
static bool is_whole_id(const char *text)
{
	return *text == '@' ||
	       (strlen(text) == SNAP_ID_SIZE - 1 && !text[strspn(text, "0123456789abcdef")]);
}

/* What goes with a branch. */
static uint64_t lost_changes(struct cmd *c, const char *branch)
{
	_cleanup_(branch_closep) struct branch *b = NULL;

	if (branch_open(c->store, branch, &b) < 0)
		return 0;
	READ_GUARD(&b->lock);
	return b->changes;
}

static int drop_branch(struct drop *d, const char *name)
{
	struct cmd *c = d->c;
	_cleanup_(views_putp) struct view_entry *e = views_get_branch(c->daemon, name);
	const uint64_t lost = lost_changes(c, name);
	char users[MOUNT_USERS_BYTES];
	int r;

	r = e ? -ERR_BRANCH_IN_USE : cmd_await_branch(c, name);
	if (r == 0 && !d->dry)
		r = branch_drop(c->store, name);
	if (r == -ERR_BRANCH_IN_USE && e && views_is_detached(e) > 0) {
		views_users(e, users);
		return cmd_fail(c, 0,
				"branch %s is in use by %s in its view, which was detached from "
				"'%s' (or is in another mount namespace); drop it when that ends",
				name, *users ? users : "what is", e->mountpoint);
	}
	if (r == -ERR_BRANCH_IN_USE)
		return cmd_fail(c, 0, "branch %s is mounted on '%s'; unmount it first", name,
				e ? e->mountpoint : "?");
	if (r < 0)
		return cmd_fail(c, r, "branch %s", name);
	if (!d->dry)
		drop_number(c, name);
	tell_dropped(d, "branch", name, lost);
	return CMD_DONE;
}

/*
 * The snapshot of a view over a directory that may not go: with an older one, or none, its changes
 * would not be known. 0: none. -errno: who cannot tell drops nothing.
 */
static int find_wanted_for_write_back(struct cmd *c, uint64_t *ret_id)
{
	*ret_id = 0;
	if (faccessat(c->daemon->dir_fd, "origin", F_OK, 0) < 0)
		return errno == ENOENT ? 0 : -errno;
	return branch_is_there(c, BRANCH_DEFAULT) ? writeback_base(c, ret_id) : 0;
}

static int drop_one(struct drop *d, const char *text, enum meant meant)
{
	struct cmd *c = d->c;
	char name[SNAP_ID_SIZE];
	uint64_t id, wanted;
	int r;

	if (meant == SNAPSHOT && !is_whole_id(text))
		return cmd_fail(c, 0, "'%s' is neither a whole id of a snapshot nor @LABEL", text);
	if (meant == BRANCH && !branch_is_there(c, text))
		return cmd_fail(c, 0, "there is no branch '%s'", text);
	if (meant == EITHER && cmd_is_whole_id(c, text))
		meant = SNAPSHOT;
	if (meant != SNAPSHOT && branch_is_there(c, text)) {
		r = drop_branch(d, text);
		return r == CMD_DONE && d->with_snapshots ? drop_made_on(d, text) : r;
	}

	r = snap_find(c->store, text, &id);
	if (r == 0)
		r = find_wanted_for_write_back(c, &wanted);
	if (r == 0 && id == wanted)
		return cmd_fail(c, 0,
				"%s: a write-back compares with this snapshot; it can go when the "
				"next one has made another",
				text);
	if (r == 0)
		r = d->dry ? snap_drop_allowed(c->store, id) : snap_drop(c->store, id);
	if (r < 0)
		return cmd_fail(c, r, "%s", text);
	tell_dropped(d, "snapshot", snap_id_to_text(id, name), 0);
	return CMD_DONE;
}

/* But a branch's last one, what an undo wants, and what a write-back compares with. */
static int drop_older(struct drop *d, const char *branch, double seconds, bool labelled)
{
	struct cmd *c = d->c;
	_cleanup_(choice_release) struct choice ch = {
		.branch = branch,
		.before = os_now_ns() - (int64_t)(seconds * 1e9),
		.spares_labels = !labelled,
		.spares_left = true,
	};
	uint64_t wanted;
	int r;

	if (branch && !branch_is_there(c, branch))
		return cmd_fail(c, 0, "there is no branch '%s'", branch);
	r = find_wanted_for_write_back(c, &wanted);
	if (r == 0)
		r = let_stay(&ch, wanted);
	if (r == 0)
		r = branch_each(c->store, let_branch_stay, &ch);
	if (r < 0)
		return cmd_fail(c, r, "finding what is in use");
	r = drop_chosen(d, &ch);
	if (r == CMD_DONE && ch.spared)
		cmd_warn(c, "%zu older snapshot%s with a label stay%s; --labelled drops them too",
			 ch.spared, plural(ch.spared), ch.spared == 1 ? "s" : "");
	return r;
}

int cmd_drop(struct cmd *c)
{
	_cleanup_(drop_release) struct drop d = { .c = c };
	bool branch = false, snapshot = false, labelled = false, json = false;
	enum meant meant;
	double older = -1; /* not given */
	const struct option_def defs[] = {
		{ .name = "dry-run", .flag = &d.dry },
		{ .name = "with-snapshots", .flag = &d.with_snapshots },
		{ .name = "older-than", .seconds = &older },
		{ .name = "labelled", .flag = &labelled },
		{ .name = "json", .flag = &json },
		{ .name = "branch", .flag = &branch },
		{ .name = "snapshot", .flag = &snapshot },
	};
	int r;

	r = cmd_parse(c, defs, ARRAY_SIZE(defs), 0, -1);
	if (!r && older < 0)
		r = cmd_count(c, 1, -1);
	if (r)
		return r;
	if (snapshot && (branch || d.with_snapshots))
		return cmd_misuse(c, "--snapshot goes without --%s",
				  branch ? "branch" : "with-snapshots");
	if (older >= 0 && (snapshot || d.with_snapshots))
		return cmd_misuse(c, "--older-than goes without --%s",
				  snapshot ? "snapshot" : "with-snapshots");
	if (older < 0 && labelled)
		return cmd_misuse(c, "--labelled is for --older-than");
	d.json = json ? json_array() : NULL;
	if (json && !d.json)
		return cmd_fail(c, -ENOMEM, "JSON");
	if (older >= 0 && c->args.n == 0)
		r = drop_older(&d, NULL, older, labelled);
	meant = branch ? BRANCH : snapshot ? SNAPSHOT : EITHER;
	for (int i = 0; i < c->args.n && !r; i++)
		r = older >= 0 ? drop_older(&d, c->args.v[i], older, labelled) :
				 drop_one(&d, c->args.v[i], meant);
	if (json && cmd_json(c, TAKE_PTR(d.json)) != CMD_DONE)
		r = CMD_FAILED; /* what went before a failure is told all the same */
	return r;
}
