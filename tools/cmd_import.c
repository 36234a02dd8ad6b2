/* SPDX-License-Identifier: Apache-2.0 */

/* plyfs import: a directory, a tar file, a git revision or an image becomes a branch's state. */

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <sys/stat.h>

#include "env/json_memory.h"
#include "env/transfer/transfer.h"
#include "store/base/err.h"
#include "store/base/note.h"
#include "store/base/util.h"
#include "store/base/words.h"
#include "tools/cmd.h"
#include "tools/cmd_util.h"
#include "tools/daemon.h"
#include "tools/transfer_talk.h"

struct source {
	const char *text; /* lent: as the user wrote it */
	char *path;	  /* owned: of a repository, or of an image layout */
	const char *rev;  /* lent; NULL: no git */
	const char *ref;  /* lent: which image; NULL: the only one */
	int fd;		  /* owned unless it is stdin */
	bool is_dir, is_stdin;
};

static void source_release(struct source *s)
{
	if (!s->is_stdin)
		closep(&s->fd);
	free(s->path);
}

static void import_endp(struct store **s)
{
	if (*s)
		store_import_end(*s);
}

static void branch_unmountp(struct branch **b)
{
	if (*b)
		branch_unmount(*b);
}

/* A bare repository is a directory that nobody wants to have as files. */
static bool is_bare_repository(int dir_fd)
{
	struct stat head, objects, refs, config;

	return fstatat(dir_fd, "HEAD", &head, 0) == 0 && S_ISREG(head.st_mode) &&
	       fstatat(dir_fd, "objects", &objects, 0) == 0 && S_ISDIR(objects.st_mode) &&
	       fstatat(dir_fd, "refs", &refs, 0) == 0 && S_ISDIR(refs.st_mode) &&
	       fstatat(dir_fd, "config", &config, 0) == 0 && S_ISREG(config.st_mode);
}

/* DIR[:TAG|@DIGEST]: the whole is the directory where there is one of that name. */
static int layout_open(struct cmd *c, const char *text, struct source *ret)
{
	const char *split = strstr(text, "@sha256:"), *slash = strrchr(text, '/');
	int flags = O_RDONLY | O_DIRECTORY | O_NONBLOCK, r;

	ret->text = text;
	r = cmd_openat(c, text, flags, 0, &ret->fd);
	if (r == 0)
		return CMD_DONE;
	if (!split)
		split = strchr(slash ? slash : text, ':');
	if (r == -ENOENT && split && split != text && split[1]) {
		ret->path = strndup(text, (size_t)(split - text));
		ret->ref = *split == ':' ? split + 1 : split;
		r = ret->path ? cmd_openat(c, ret->path, flags, 0, &ret->fd) : -ENOMEM;
	}
	if (r < 0)
		return cmd_fail(c, r == -ENOTDIR ? 0 : r,
				r == -ENOTDIR ? "'%s' is no directory: unpack the archive first"
					      : "'%s'",
				ret->path ? ret->path : text);
	return CMD_DONE;
}

static int source_open(struct cmd *c, const char *text, const char *rev, struct source *ret)
{
	_cleanup_free_ char *repo = NULL;
	struct stat st;
	int r;

	ret->text = text;
	if (strcmp(text, "-") == 0) {
		if (rev)
			return cmd_misuse(c, "--rev goes with a git repository");
		if (c->in_fd < 0)
			return cmd_fail(c, 0, "there is no stdin to read");
		ret->is_stdin = true;
		ret->fd = c->in_fd;
		return CMD_DONE;
	}
	if (rev || transfer_split(c, text, &repo, &rev)) {
		r = cmd_path(c, repo ? repo : text, &ret->path);
		if (r < 0)
			return cmd_fail(c, r, "'%s'", text);
		ret->rev = rev;
		return CMD_DONE;
	}

	/* O_NONBLOCK: a fifo must not hold us here. */
	r = cmd_openat(c, text, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0, &ret->fd);
	if (r == 0 && fstat(ret->fd, &st) < 0)
		r = -errno;
	if (r < 0)
		return cmd_fail(c, r, "'%s'", text);
	ret->is_dir = S_ISDIR(st.st_mode);
	if (ret->is_dir && is_bare_repository(ret->fd)) {
		r = cmd_path(c, text, &ret->path);
		if (r < 0)
			return cmd_fail(c, r, "'%s'", text);
		ret->rev = "HEAD";
		return CMD_DONE;
	}
	if (!ret->is_dir && !S_ISREG(st.st_mode))
		return cmd_fail(c, 0,
				"'%s' is no directory and no file; pipe a tar into "
				"'plyfs import -'",
				text);
	return CMD_DONE;
}

/* Finds the branch, or leaves it NULL. Claims it, so that nobody mounts it meanwhile. */
static int target_open(struct cmd *c, const char *name, bool replace, struct branch **ret)
{
	_cleanup_(branch_closep) struct branch *b = NULL;
	int r;

	r = branch_open(c->store, name, &b);
	if (r == -ERR_BRANCH_UNKNOWN)
		return CMD_DONE;
	if (r < 0)
		return cmd_fail(c, r, "branch '%s'", name);
	if (!replace)
		return cmd_fail(c, 0,
				"branch '%s' has a state already; --replace gives it the new one, "
				"--branch NAME makes another",
				name);
	r = cmd_await_branch(c, name);
	if (r == 0)
		r = branch_mount(b);
	if (r < 0)
		return cmd_fail(c, r, "branch '%s'", name);
	*ret = TAKE_PTR(b);
	return CMD_DONE;
}

/*
 * The imported state becomes a snapshot and the branch's state. parent: 0, or what it follows on.
 */
static int settle(struct cmd *c, struct branch *old, const char *name, const char *label,
		  struct root *root, uint64_t parent, uint64_t lineage, uint64_t *ret_id)
{
	_cleanup_(branch_closep) struct branch *made = NULL;
	uint64_t before = 0;
	int r;

	if (old) { /* what it replaces stays within reach */
		r = branch_checkpoint(old, NULL, 0, &before);
		if (r < 0)
			return r;
	}
	r = snap_create(c->store, root, parent ? parent : before, lineage, name, label, SNAP_IMPORT,
			ret_id);
	if (r < 0)
		return r;
	/* Imports are not in the journal: the state is durable before a branch has it. */
	r = snap_wait(c->store, *ret_id);
	if (r == 0)
		r = old ? branch_set(old, root, *ret_id, lineage) :
			  branch_create(c->store, name, root, *ret_id, lineage, &made);
	if (r < 0)
		(void)snap_drop(c->store, *ret_id); /* r says what matters */
	return r;
}

/* The states of an image's layers, if there are any, become snapshots where they are none yet. */
static int settle_layers(struct cmd *c, const char *name, struct image *image, uint64_t *ret_parent,
			 uint64_t *ret_lineage)
{
	uint64_t parent = 0, lineage = 0;
	bool ours = false;
	int r;

	for (size_t i = 0; i < image->n; i++) {
		struct image_layer *l = &image->layers[i];

		if (l->id == 0) {
			if (!ours)
				lineage = store_take_lineage(c->store);
			ours = true;
			r = snap_create(c->store, l->root, parent, lineage, name, l->label,
					SNAP_IMPORT, &l->id);
			if (r < 0)
				return r;
		} else {
			lineage = l->lineage;
		}
		parent = l->id;
	}
	*ret_parent = parent;
	*ret_lineage = lineage ? lineage : store_take_lineage(c->store);
	return 0;
}

/* ret->root and, of an image with layers, those. */
static int read_source(struct cmd *c, const struct source *from, bool oci,
		       const struct import_ops *ops, struct image *ret,
		       struct transfer_stats *stats)
{
	int r;

	if (oci) {
		r = import_oci(c->store, from->fd, from->ref, ops, ret, stats);
		if (r == 0 && json_memory_was_short())
			r = -ENOMEM; /* its configuration may not be what was read */
		return r;
	}
	if (from->rev)
		return import_git(c->store, from->path, from->rev, ops, &ret->root, stats);
	if (from->is_dir)
		return import_directory(c->store, from->fd, ops, &ret->root, stats);
	return import_tar(c->store, from->fd, ops, &ret->root, stats);
}

/* Whatever was being read or made: what helps is the same. */
static bool is_full(struct cmd *c, int r)
{
	_cleanup_free_ char *store = NULL; /* the short form of mount has one that nobody named */
	char path[PATH_MAX];

	if (r != -ENOSPC && r != -EDQUOT)
		return false;
	store = shell_word(daemon_store_path(c->daemon->dir_fd, c->daemon->store_path, path));
	(void)cmd_fail(c, 0,
		       "the store's disk is full; to give back what the broken import took: plyfs "
		       "--store %s gc",
		       store ? store : "STORE");
	return true;
}

static int report(struct cmd *c, bool json, uint64_t id, const char *name,
		  const struct transfer_stats *stats)
{
	char text[SNAP_ID_SIZE];

	if (!json) {
		fprintf(c->out, "%s\n", snap_id_to_text(id, text));
		return CMD_DONE;
	}
	return cmd_json(c, json_pack("{s:o, s:o, s:I, s:I, s:I, s:I, s:I}", "id", json_id(id),
				     "branch", json_text(name), "files", (json_int_t)stats->files,
				     "directories", (json_int_t)stats->dirs, "others",
				     (json_int_t)stats->others, "bytes", (json_int_t)stats->bytes,
				     "skipped", (json_int_t)stats->skipped));
}

int cmd_import(struct cmd *c)
{
	const char *name = BRANCH_DEFAULT, *label = NULL, *rev = NULL;
	bool replace = false, json = false, oci = false;
	const struct option_def options[] = {
		{ .name = "branch", .word = &name },
		{ .name = "label", .letter = 'm', .text = &label },
		{ .name = "rev", .word = &rev },
		{ .name = "oci", .flag = &oci },
		{ .name = "replace", .flag = &replace },
		{ .name = "json", .flag = &json },
	};
	_cleanup_(source_release) struct source source = { .fd = -1 };
	_cleanup_(branch_closep) struct branch *old = NULL;
	_cleanup_(branch_unmountp) struct branch *claimed = NULL;
	_cleanup_(import_endp) struct store *importing = NULL;
	_cleanup_(image_release) struct image image = { 0 };
	_cleanup_(transfer_talk_release) struct transfer_talk talk = { 0 };
	struct transfer_stats stats = { 0 };
	uint64_t id, parent, lineage;
	int r;

	r = cmd_parse(c, options, ARRAY_SIZE(options), 1, 1);
	if (r)
		return r;
	if (!branch_name_ok(name))
		return cmd_misuse(c, "'%s': %s", name, err_str(-ERR_BRANCH_NAME));
	if (label && strlen(label) > LABEL_MAX)
		return cmd_misuse(c, "a label has at most %d bytes", LABEL_MAX);

	if (oci && rev)
		return cmd_misuse(c, "--rev goes with a git repository, --oci with an image");

	r = oci ? layout_open(c, c->args.v[0], &source)
		: source_open(c, c->args.v[0], rev, &source);
	if (r)
		return r;
	r = target_open(c, name, replace, &old);
	if (r)
		return r;
	claimed = old;

	transfer_talk_init(&talk, c);
	r = store_import_begin(c->store);
	if (r < 0)
		return cmd_fail(c, r, "'%s'", source.text);
	importing = c->store;
	r = read_source(c, &source, oci, &talk.ops, &image, &stats);
	cmd_progress_end(c);
	if (is_full(c, r))
		return CMD_FAILED;
	if (r < 0)
		return transfer_talk_fail(&talk, r, source.text);

	r = settle_layers(c, name, &image, &parent, &lineage);
	if (r == 0)
		r = settle(c, old, name, label, image.root, parent, lineage, &id);
	if (is_full(c, r))
		return CMD_FAILED;
	if (r < 0)
		return cmd_fail(c, r, "branch '%s'", name);
	store_import_end(TAKE_PTR(importing));

	r = store_sync(c->store); /* done means durable */
	if (r < 0)
		return cmd_fail(c, r, "writing the store");
	return report(c, json, id, name, &stats);
}
