/* SPDX-License-Identifier: Apache-2.0 */

/*
 * plyfs fsmonitor: answers git's question "what may have changed since?" (core.fsmonitor, version 2
 * of the hook's protocol), so that `git status` looks at what changed instead of at everything.
 *
 * A token stands for a state: the root of the branch's tree at the moment of a question, pinned.
 * The answer is the difference of that state and the present one, which costs the differences only,
 * whatever happened in between: writes, moves of directories, a restore.
 *
 * INVARIANTS
 *
 *  F1 A path is told when what git may have read there between the two questions is not what is
 *     there now. Without a restore the times tell: a file that was changed and changed back has
 *     another ctime. A restore brings times back, too; so after one, what differs from the state
 *     that it left is told as well (undo has that state); after two, everything.
 *  F2 A token that is not known any more (another view, a new daemon, an old state) is answered
 *     with "everything": git then looks itself, and asks with the new token next time. git's
 *     untracked cache (seen in 2.39) keeps what it had if the command was one that lists no
 *     untracked files (commit), and trusts it ever after: so the answer that starts from such a
 *     token names something in every directory, which makes git list them all again.
 *  F3 The state of an answer is pinned before the difference is looked at, and git reads the files
 *     after it has the answer. What changes in between is in the next answer.
 *  F4 git keeps its token while the answers name nothing, however much changes beside its work
 *     tree. After such an answer the token stands for the present state as well as for its own, so
 *     it moves there: the next answer costs what changed since the last question. That is so for
 *     the one work tree only, hence a token of another (a copied index) is not known.
 */

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "fs/diff.h"
#include "store/base/err.h"
#include "store/base/os.h"
#include "store/base/util.h"
#include "store/tree.h"
#include "tools/daemon.h"

/*
 * States that are kept: git asks with its last token (each work tree with its own), after a restore
 * of its index with an earlier one. Each state keeps what it differs in from gc and in memory.
 */
#define PINS_MAX 16

#define TOKEN_SIZE 48 /* "plyfs:", 16 digits, ':', a number */

struct pin {
	uint64_t number; /* 0: free */
	uint64_t used;	 /* given out or asked with; 0: never; the least goes first */
	uint64_t top;	 /* inode number of the work tree (F4) */
	struct cmd_state state;
	uint64_t restores;
	bool everything; /* the answer that gave this token out told no paths (F2) */
};

struct fsmonitor {
	uint64_t nonce; /* tells this view's tokens from those of others, and of earlier daemons */
	uint64_t last, uses;
	struct pin pins[PINS_MAX];
};

/* ---- states ---- */

/* The present state; and, if there was one restore since `since`, what it left (or nothing). */
static int look(struct cmd *c, uint64_t *restores, struct cmd_state *now, struct cmd_state *left)
{
	_cleanup_(branch_closep) struct branch *b = NULL;
	struct cmd_state s = { .store = c->store }, l = { .store = c->store };
	int r;

	r = branch_open(c->store, c->branch, &b);
	if (r < 0)
		return r;

	/* Pinned under the lock, so that no gc begins between. */
	WRITE_GUARD(&b->lock);
	r = tree_freeze(b->tree, &s.root);
	if (r < 0)
		return r;
	r = store_pin_root(c->store, s.root);
	if (r < 0) {
		root_unref(s.root);
		return r;
	}
	s.lineage = b->lineage;
	if (b->undo && snap_root(c->store, b->undo, &l.root) == 0 &&
	    store_pin_root(c->store, l.root) < 0) {
		root_unref(l.root);
		l.root = NULL; /* then everything is told */
	}
	*restores = b->restores;
	*now = s;
	*left = l;
	return 0;
}

/* A state for somebody who uses it without the daemon's lock. */
static int state_dup(const struct cmd_state *s, struct cmd_state *ret)
{
	int r = store_pin_root(s->store, s->root);

	if (r < 0)
		return r;
	*ret = *s;
	ret->root = root_ref(s->root);
	return 0;
}

/* ---- tokens; under the daemon's lock ---- */

static int fsmonitor_of(struct view_entry *e, struct fsmonitor **ret)
{
	struct fsmonitor *f = e->fsmonitor;
	int r;

	if (!f) {
		f = calloc(1, sizeof(*f));
		if (!f)
			return -ENOMEM;
		r = os_random(&f->nonce, sizeof(f->nonce));
		if (r < 0) {
			free(f);
			return r;
		}
		e->fsmonitor = f;
	}
	*ret = f;
	return 0;
}

static void print_token(char token[static TOKEN_SIZE], const struct fsmonitor *f, uint64_t number)
{
	(void)snprintf(token, TOKEN_SIZE, "plyfs:%016" PRIx64 ":%" PRIu64, f->nonce, number);
}

static struct pin *find(struct fsmonitor *f, uint64_t top, const char *token)
{
	char known[TOKEN_SIZE];

	for (size_t i = 0; i < PINS_MAX; i++) {
		print_token(known, f, f->pins[i].number);
		if (f->pins[i].number && f->pins[i].top == top && strcmp(known, token) == 0)
			return &f->pins[i];
	}
	return NULL;
}

/*
 * The pin of a state: the same one while nothing changes; else in place of the one that was not
 * used for longest, whose state becomes *state, for the caller to release without the lock.
 */
static struct pin *remember(struct fsmonitor *f, uint64_t top, struct cmd_state *state,
			    uint64_t restores)
{
	struct cmd_state old;
	struct pin *p = &f->pins[0];

	for (size_t i = 0; i < PINS_MAX; i++) {
		struct pin *q = &f->pins[i];

		if (q->number && q->top == top && q->restores == restores &&
		    root_same(q->state.root, state->root))
			return q;
		if (q->used < p->used)
			p = q;
	}
	old = p->state;
	*p = (struct pin){
		.number = ++f->last, .top = top, .state = *state, .restores = restores
	};
	*state = old;
	return p;
}

/* F4. The old state becomes *state, for the caller to release. */
static void move_on(struct view_entry *e, uint64_t top, const char *token, struct cmd_state *state,
		    uint64_t restores)
{
	LOCK_GUARD(&e->daemon->lock);
	struct pin *p = e->fsmonitor ? find(e->fsmonitor, top, token) : NULL;

	if (p) {
		struct cmd_state old = p->state;

		p->state = *state;
		p->restores = restores;
		*state = old;
	}
}

void fsmonitor_forget(struct view_entry *e)
{
	struct fsmonitor *f;

	pthread_mutex_lock(&e->daemon->lock);
	f = e->fsmonitor;
	e->fsmonitor = NULL;
	pthread_mutex_unlock(&e->daemon->lock);
	for (size_t i = 0; f && i < PINS_MAX; i++)
		cmd_state_release(&f->pins[i].state);
	free(f);
}

/* ---- the answer ---- */

struct answer {
	struct cmd *cmd;
	const char *top; /* of the work tree, from the view's root; "" is the root */
	size_t top_len;
	bool told; /* anything */
};

/*
 * How much of a path to tell. git knows what it does in a .git itself: 0. One that came or went
 * makes or unmakes a repository within: that is told of its directory, for git takes no name
 * .git in an answer.
 */
static size_t told_length(const char *path)
{
	for (const char *p = path; (p = strstr(p, ".git")); p++)
		if (p == path || p[-1] == '/') {
			if (p[4] == '/')
				return 0;
			if (p[4] == '\0')
				return p == path ? 0 : (size_t)(p - 1 - path);
		}
	return strlen(path);
}

static void tell(struct answer *a, const char *path)
{
	size_t len;

	if (!path || strncmp(path, a->top, a->top_len) != 0)
		return;
	path += a->top_len;
	if (a->top_len) {
		if (*path != '/')
			return; /* it is beside the work tree, or the work tree itself */
		path++;
	}
	len = told_length(path);
	if (len > 0) {
		(void)fwrite(path, len, 1, a->cmd->out); /* checked by verb_run */
		fputc('\0', a->cmd->out);
		a->told = true;
	}
}

static int tell_change(void *arg, const struct change *c)
{
	struct answer *a = arg;

	if (__atomic_load_n(&a->cmd->cancel, __ATOMIC_RELAXED))
		return -ERR_CANCELLED;
	/* A directory tells of its content by itself; git knows neither its mode nor its times. */
	if (c->kind == CHANGE_MODIFIED && inode_is_dir(c->new_inode))
		return 0;
	tell(a, c->old_path);
	if (c->new_path && (!c->old_path || strcmp(c->old_path, c->new_path) != 0))
		tell(a, c->new_path);
	return 0;
}

/* A name in each directory; it need not exist. */
static int tell_directory(void *arg, const struct change *c)
{
	struct answer *a = arg;
	_cleanup_free_ char *path = NULL;

	if (__atomic_load_n(&a->cmd->cancel, __ATOMIC_RELAXED))
		return -ERR_CANCELLED;
	if (!inode_is_dir(c->new_inode))
		return 0;
	if (asprintf(&path, "%s/-", c->new_path) < 0)
		return -ENOMEM;
	tell(a, path);
	return 0;
}

static int tell_directories(struct answer *a, const struct cmd_state *now)
{
	_cleanup_(root_unrefp) struct root *none = NULL;
	int r;

	r = root_empty(store_nodes(a->cmd->store), &none);
	if (r < 0)
		return r;
	if (!a->top_len)
		tell(a, "-"); /* the root has no name that could differ */
	return fs_diff(a->cmd->store, none, now->root, true, DIFF_ALL | DIFF_DIRS, tell_directory,
		       a);
}

static int tell_difference(struct answer *a, const struct cmd_state *from,
			   const struct cmd_state *to)
{
	return fs_diff(a->cmd->store, from->root, to->root, true, DIFF_ALL | DIFF_DIRS,
		       tell_change, a);
}

/* The directory whose inode number the client told, and its path. */
static int find_top(struct cmd *c, const struct cmd_state *now, const char *number,
		    uint64_t *ret_ino, char **ret)
{
	_cleanup_(tree_freep) struct tree *tree = NULL;
	struct fs fs = { .store = c->store };
	char *end;
	uint64_t ino;
	size_t len;
	int r;

	errno = 0;
	ino = strtoull(number, &end, 10);
	if (errno || *end || end == number)
		return -EINVAL;
	r = tree_new(store_nodes(c->store), now->root, &tree);
	if (r < 0)
		return r;
	fs.tree = tree;
	*ret_ino = ino;
	return fs_path(&fs, ino, ret, &len);
}

int cmd_fsmonitor(struct cmd *c)
{
	_cleanup_(views_putp) struct view_entry *e = NULL;
	_cleanup_state_ struct cmd_state now = { 0 };
	_cleanup_state_ struct cmd_state left = { 0 };
	_cleanup_state_ struct cmd_state then = { 0 };
	_cleanup_state_ struct cmd_state kept = { 0 }; /* now, once more; for the pin */
	_cleanup_free_ char *top = NULL;
	const char *directory = NULL;
	const struct option_def options[] = { { .name = "directory", .text = &directory } };
	uint64_t restores, restores_then = 0, top_ino;
	bool everything = true, directories = false;
	struct answer a = { .cmd = c };
	char token[TOKEN_SIZE];
	struct fsmonitor *f;
	struct pin *p;
	int r;

	r = cmd_parse(c, options, ARRAY_SIZE(options), 2, 2);
	if (r)
		return r;
	if (strcmp(c->args.v[0], "2") != 0 || !directory)
		return cmd_misuse(c, "only version 2 of the hook's protocol is known");
	if (*c->branch)
		e = views_get_branch(c->daemon, c->branch);
	if (!e)
		return cmd_fail(c, 0, "not in the view of a branch");

	r = look(c, &restores, &now, &left);
	if (r < 0)
		return cmd_fail(c, r, "branch '%s'", c->branch);
	r = find_top(c, &now, directory, &top_ino, &top);
	if (r == 0)
		r = state_dup(&now, &kept);
	if (r < 0)
		return cmd_fail(c, r, "the work tree");
	a.top = top;
	a.top_len = strlen(top);

	pthread_mutex_lock(&c->daemon->lock);
	r = fsmonitor_of(e, &f);
	p = r == 0 ? find(f, top_ino, c->args.v[1]) : NULL;
	if (p) {
		p->used = ++f->uses; /* git may go on with the token it has */
		restores_then = p->restores;
		directories = p->everything;
		/* Between trees without common objects, or over more than one restore (F1). */
		everything = p->state.lineage != now.lineage || restores - p->restores > 1 ||
			     (restores != p->restores && !left.root);
		r = state_dup(&p->state, &then);
	}
	if (r == 0) {
		p = remember(f, top_ino, &kept, restores);
		p->used = ++f->uses;
		p->everything |= everything;
		print_token(token, f, p->number);
	}
	pthread_mutex_unlock(&c->daemon->lock);
	if (r < 0)
		return cmd_fail(c, r, "remembering the state");

	(void)fwrite(token, strlen(token) + 1, 1, c->out); /* checked by verb_run */
	if (everything) {
		(void)fwrite("/", 2, 1, c->out); /* checked by verb_run */
		return CMD_DONE;
	}
	r = tell_difference(&a, &then, &now);
	if (r == 0 && restores != restores_then)
		r = tell_difference(&a, &left, &now);
	if (r == 0 && directories)
		r = tell_directories(&a, &now);
	if (r == 0 && !a.told)
		move_on(e, top_ino, c->args.v[1], &now, restores);
	return r < 0 ? cmd_fail(c, r, "comparing the states") : CMD_DONE;
}
