/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A state becomes a commit. Here is the walk, and what git cannot hold is left out; plyfs-git
 * writes the objects and the ref (git_write.c). Directories are not sent: names have them.
 */

#include <inttypes.h>
#include <sys/stat.h>

#include "env/dotgit.h"
#include "env/transfer/export_members.h"

enum left_out { DOT_GIT, MODULES, EMPTY, SPECIAL, LEFT_OUT };

struct git_export {
	struct sender out;
	/*
	 * How many directories on the way down to where we are are known to hold a file that was
	 * sent (the root is not counted). One that we leave at a greater depth holds none.
	 */
	size_t filled;
	size_t skipped; /* depth of the .git that we are in; 0: in none */
	uint64_t left[LEFT_OUT];
	char *first; /* owned: a path that was left out */
};

static void git_export_release(struct git_export *ge)
{
	sender_release(&ge->out);
	free(ge->first);
}

static int leave_out(struct git_export *ge, enum left_out why, const struct walk_entry *e)
{
	ge->left[why]++;
	ge->out.talk.stats.skipped++;
	if (!ge->first)
		ge->first = strdup(e->path);
	return ge->first ? 0 : -ENOMEM;
}

static int enter(void *arg, const struct walk_entry *e)
{
	struct git_export *ge = arg;

	if (ge->skipped || e->depth == 0)
		return 0;
	if (!dotgit_in(e->name))
		return talk_cancelled(&ge->out.talk);
	ge->skipped = e->depth;
	return leave_out(ge, DOT_GIT, e);
}

static int leave(void *arg, const struct walk_entry *e)
{
	struct git_export *ge = arg;

	if (ge->skipped) {
		if (ge->skipped == e->depth)
			ge->skipped = 0;
		return 0;
	}
	if (ge->filled < e->depth)
		return leave_out(ge, EMPTY, e);
	if (e->depth > 0)
		ge->filled = e->depth - 1;
	return talk_object(&ge->out.talk, e->inode.mode, 0);
}

static int object(void *arg, const struct walk_entry *e)
{
	struct git_export *ge = arg;
	const struct inode *i = &e->inode;
	int r;

	if (ge->skipped)
		return 0;
	if (dotgit_in(e->name))
		return leave_out(ge, DOT_GIT, e);
	if (!S_ISREG(i->mode) && !S_ISLNK(i->mode))
		return leave_out(ge, SPECIAL, e);
	if (S_ISLNK(i->mode) && strcmp(e->name, ".gitmodules") == 0)
		return leave_out(ge, MODULES, e);

	r = sender_look(&ge->out);
	if (r < 0)
		return r;
	ge->out.e = e;
	r = sender_member(&ge->out, NULL);
	if (r == 0 && S_ISREG(i->mode))
		r = sender_data(&ge->out);
	if (r < 0)
		return sender_failed(&ge->out, r);
	ge->filled = e->depth - 1;
	return talk_object(&ge->out.talk, i->mode, S_ISREG(i->mode) ? i->size : 0);
}

/* One line for all: there may be thousands of empty directories. */
static void tell_left_out(struct git_export *ge)
{
	static const char *const words[LEFT_OUT] = {
		[DOT_GIT] = ".git or like it",
		[MODULES] = "symlinks named .gitmodules",
		[EMPTY] = "directories without files",
		[SPECIAL] = "fifos, sockets and devices",
	};
	char line[200] = ""; /* the words and four numbers of 20 digits */
	size_t len = 0;

	if (!ge->first)
		return;
	for (unsigned i = 0; i < LEFT_OUT; i++)
		if (ge->left[i])
			len += (size_t)snprintf(line + len, sizeof(line) - len,
						"%s%s (%" PRIu64 ")", len ? ", " : "", words[i],
						ge->left[i]);
	talk_warn(&ge->out.talk, "left out what git cannot hold: %s; the first is '%s'", line,
		  ge->first);
}

static int take_id(struct git_export *ge, const struct record *rec, char *ret)
{
	record_text(rec, ret, COMMIT_ID_SIZE);
	if (rec->len != COMMIT_ID_SIZE - 1 || strspn(ret, "0123456789abcdef") != rec->len)
		return helper_confused(&ge->out.helper);
	return 0;
}

/* libgit2 writes 32 bits of it, and git itself reads no sign. */
static int64_t nearest_time(int64_t time)
{
	return MAX(MIN(time, (int64_t)UINT32_MAX), (int64_t)0);
}

static void tell_time(struct git_export *ge, int64_t time)
{
	if (nearest_time(time) != time)
		talk_warn(&ge->out.talk,
			  "a commit's date is 1970 to 2106: instead of %" PRId64 " (seconds since "
			  "1970) it is %" PRId64 "; is this machine's clock right?",
			  time, nearest_time(time));
}

int export_git(struct store *s, struct root *root, const struct export_commit *commit,
	       const struct import_ops *ops, char ret_id[static COMMIT_ID_SIZE],
	       struct transfer_stats *ret)
{
	static const struct walk_ops walk = { .enter = enter, .object = object, .leave = leave };
	char mask[16], time[24];
	char *const program[] = { "plyfs-git", "write", (char *)commit->path, (char *)commit->ref,
				  mask, time, (char *)commit->message, NULL };
	_cleanup_(git_export_release) struct git_export ge = { 0 };
	struct record rec;
	int r;

	(void)snprintf(mask, sizeof(mask), "%o", commit->umask);
	(void)snprintf(time, sizeof(time), "%" PRId64, nearest_time(commit->time));
	r = sender_start(&ge.out, s, root, ops, program, -1);
	if (r == 0)
		r = walk_state(&ge.out.talk, &ge.out.fs, &walk, &ge);
	if (r == 0)
		r = sender_finish(&ge.out, &rec);
	if (r == 0)
		r = take_id(&ge, &rec, ret_id);
	if (r < 0)
		return r;
	tell_left_out(&ge);
	tell_time(&ge, commit->time);
	if (ret)
		*ret = ge.out.talk.stats;
	return 0;
}
