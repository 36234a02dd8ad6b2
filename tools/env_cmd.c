/* SPDX-License-Identifier: Apache-2.0 */

/*
 * plyfs env create, list, destroy.
 *
 * create, in this order: the record; the view (libplyfs mounts it and leaves it mounted). destroy:
 * sessions, the view, the branch, the record. Killed between any two steps, what is left is a
 * record that destroy still clears.
 */

#include "tools/env.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <sys/stat.h>

#include "env/program.h"
#include "fs/ioctl.h"
#include "store/base/util.h"
#include "store/base/words.h"

/* Options of libplyfs that create takes. */
/* clang-format off */
#define OPTIONS(X) \
	X(test_command, "test-command") X(test_report, "test-report") X(test_rule, "test-rule") \
	X(timeout, "timeout") X(merge, "merge") X(output_limit, "output-limit") \
	X(exclude, "exclude") X(commit, "commit") X(ref, "ref") X(runtime, "runtime") \
	X(root, "root") X(network, "network") X(memory, "memory") X(processes, "processes") \
	X(cpu_time, "cpu-time")
/* clang-format on */

#define X(name, word) OPTION_##name,
enum { OPTIONS(X) N_OPTIONS };
#undef X

static void env_freep(struct ply_env **env)
{
	ply_env_free(*env);
}

/* ---- create ---- */

struct source {
	const char *dir, *at, *store, *from; /* as given; NULL: not */
	char head[16];			     /* from points to it, or to branch */
	char branch[64];
};

/* Where a fork is to come from: --store and --from, or the view that we are in. */
static int find_source(const struct cmd *c, struct source *s, struct record *r)
{
	_cleanup_(place_release) struct place here = { 0 };
	int code;

	if (!s->store || !*s->store)
		s->store = getenv("PLYFS_STORE");
	if (s->store && *s->store) {
		r->store = realpath(s->store, NULL);
		if (!r->store)
			return cmd_fail(c, "the store '%s': %s", s->store, strerror(errno));
		s->from = s->from ? s->from : "main";
		return DONE;
	}
	code = place_find(c, NULL, &here);
	if (code)
		return code;
	r->store = TAKE_PTR(here.store);
	memcpy(s->head, here.head, sizeof(s->head));
	memcpy(s->branch, here.branch, sizeof(s->branch));
	if (!s->from)
		s->from = *s->branch ? s->branch : s->head;
	return DONE;
}

/* A verb of the program; what it says is told. */
static int run_verb(const struct cmd *c, const char *const *words)
{
	struct ply_text out = { 0 }, err = { 0 };
	int failed = 0;

	if (program_run("/", words, -1, &out, &err, &failed) < 0)
		return cmd_ply_failed(c);
	if (failed || err.len)
		(void)cmd_fail(c, "%s", err.len ? err.data : "plyfs was ended by a signal");
	ply_text_free(&out);
	ply_text_free(&err);
	return failed ? FAILED : DONE;
}

/*
 * A record says "destroy drops this branch", and is written before there is one: so that nobody's
 * own branch is meant when we are killed in between, the name must be free.
 */
static int branch_must_be_free(const struct cmd *c, const struct record *r)
{
	const char *words[] = { "--store", r->store, "tree", "--names", NULL };
	struct ply_text out = { 0 }, err = { 0 };
	int failed = 0, code = DONE;

	if (program_run("/", words, -1, &out, &err, &failed) < 0)
		return cmd_ply_failed(c);
	if (failed)
		code = cmd_fail(c, "%s", err.len ? err.data : "plyfs was ended by a signal");
	/* Nothing that was printed is no text at all. */
	for (char *save = NULL, *name = out.data ? strtok_r(out.data, "\n", &save) : NULL;
	     name && !code; name = strtok_r(NULL, "\n", &save))
		if (strcmp(name, r->branch) == 0)
			code = cmd_fail(c, "there is a branch '%s' already: take another name, "
					   "or drop it", name);
	ply_text_free(&out);
	ply_text_free(&err);
	return code;
}

/* Where it will be, and what it is made of. */
static int plan(const struct cmd *c, struct source *s, struct record *r)
{
	_cleanup_free_ char *top = NULL;
	int is_view, code;

	if (s->dir && (s->at || s->from))
		return cmd_misuse(c, "either a directory that is there, or a fork (--from, --at)");
	if (s->dir) {
		r->path = realpath(s->dir, NULL);
		if (!r->path)
			return cmd_fail(c, "'%s': %s", s->dir, strerror(errno));
		is_view = place_is_view(r->path);
		if (is_view < 0)
			return cmd_fail(c, "'%s': %s", r->path, strerror(-is_view));
		r->origin = is_view ? ADOPTED : COVERED;
		return DONE;
	}

	r->origin = FORKED;
	code = find_source(c, s, r);
	if (code)
		return code;
	r->branch = strdup(r->name);
	if (!r->branch)
		return cmd_fail(c, "%s", strerror(ENOMEM));
	code = branch_must_be_free(c, r);
	if (code)
		return code;
	if (s->at) {
		if (mkdir(s->at, 0777) < 0 && errno != EEXIST)
			return cmd_fail(c, "making '%s': %s", s->at, strerror(errno));
		r->path = realpath(s->at, NULL);
		return r->path ? DONE : cmd_fail(c, "'%s': %s", s->at, strerror(errno));
	}
	code = place_runtime(c, "env", &top);
	if (code == DONE && asprintf(&r->path, "%s/%s", top, r->name) < 0)
		code = cmd_fail(c, "%s", strerror(ENOMEM));
	return code;
}

/* Mounts what the record plans; the view stays when it returns. */
static int set_up(const struct cmd *c, const struct record *r, const char *from)
{
	_cleanup_(env_freep) struct ply_env *env = NULL;
	int code = env_of_record(c, r, &env);

	if (code)
		return code;
	if (r->origin == FORKED &&
	    (ply_env_set(env, "store", r->store) < 0 || ply_env_set(env, "from", from) < 0 ||
	     ply_env_set(env, "branch", r->branch) < 0))
		return cmd_ply_failed(c);
	if (ply_env_set(env, "workdir", r->path) < 0 ||
	    ply_env_set(env, "at_cleanup", "keep") < 0 || ply_env_setup(env) < 0 ||
	    ply_env_cleanup(env) < 0)
		return cmd_ply_failed(c);
	return DONE;
}

int verb_env_create(struct cmd *c)
{
	_cleanup_(record_release) struct record r = { 0 };
	const char *kind = "local", *values[N_OPTIONS] = { 0 };
	static const char *const names[] = {
#define X(name, word) #name,
		OPTIONS(X)
#undef X
	};
	struct source s = { 0 };
	const struct option_def defs[] = { { .name = "kind", .text = &kind },
					   { .name = "store", .text = &s.store },
					   { .name = "from", .text = &s.from },
					   { .name = "at", .text = &s.at },
#define X(id, word) { .name = word, .text = &values[OPTION_##id] },
					   OPTIONS(X)
#undef X
	};
	int code = cmd_parse(c, defs, ARRAY_SIZE(defs), 0, 1, 2);

	if (code == DONE)
		code = name_check(c, c->args.v[0]);
	if (code)
		return code;
	if (strcmp(kind, "local") && strcmp(kind, "git") && strcmp(kind, "container"))
		return cmd_misuse(c, "--kind is local, git or container, not '%s'", kind);
	s.dir = c->args.v[1];
	r.name = strdup(c->args.v[0]);
	r.kind = strdup(kind);
	r.options = json_object();
	for (int i = 0; i < N_OPTIONS; i++)
		if (values[i] && json_object_set_new(r.options, names[i], json_string(values[i])))
			return cmd_misuse(c, "an option is not UTF-8");
	if (!r.name || !r.kind || !r.options)
		return cmd_fail(c, "%s", strerror(ENOMEM));

	code = record_must_be_free(c, r.name);
	if (code == DONE)
		code = plan(c, &s, &r);
	if (code == DONE)
		code = record_create(c, &r);
	if (code)
		return code;
	code = set_up(c, &r, s.from);
	if (code) {
		(void)record_remove(c, r.name);
		return code;
	}
	puts(r.path);
	return cmd_flush(c);
}

/* ---- list ---- */

int verb_env_list(struct cmd *c)
{
	_cleanup_free_ struct record *records = NULL;
	bool json = false;
	const struct option_def defs[] = { { .name = "json", .flag = &json } };
	json_t *all = json_array();
	size_t n = 0;
	int code = cmd_parse(c, defs, ARRAY_SIZE(defs), 0, 0, 0);

	if (code == DONE)
		code = record_list(c, &records, &n);
	for (size_t i = 0; i < n; i++) {
		struct record *r = &records[i];
		bool mounted = place_is_view(r->path) != 0;

		if (json) {
			(void)json_array_append_new(
				all, json_pack("{s:s, s:s, s:s, s:s?, s:s?, s:b, s:O}", "name",
					       r->name, "kind", r->kind, "path", r->path, "store",
					       r->store, "branch", r->branch, "mounted", mounted,
					       "options", r->options));
		} else {
			printf("%-20s %-10s ", r->name, r->kind);
			print_clean(stdout, r->path);
			puts(mounted ? "" : " (not mounted)");
		}
		record_release(r);
	}
	if (code == DONE && json)
		return cmd_json(c, all);
	json_decref(all);
	return code ? code : cmd_flush(c);
}

/* ---- destroy ---- */

/* Through the library, which forgets what it kept about it as well. */
static int take_down(const struct cmd *c, const struct record *r, const char *ending)
{
	_cleanup_(env_freep) struct ply_env *env = NULL;
	/* What a container needs to run commands is not needed to end it. */
	const char *kind = strcmp(r->kind, "git") == 0 ? "git" : "local";

	if (ply_env_new(kind, &env) < 0 || ply_env_set(env, "workdir", r->path) < 0 ||
	    ply_env_set(env, "at_cleanup", ending) < 0 || ply_env_setup(env) < 0 ||
	    ply_env_cleanup(env) < 0)
		return cmd_ply_failed(c);
	return DONE;
}

/* Nobody followed its daemon: it only hides the directory. */
static bool is_dead(const char *dir)
{
	_cleanup_close_ int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct plyfs_info info;

	return (fd < 0 || ioctl(fd, PLYFS_IOC_INFO, &info) < 0) && plyfs_is_dead_view(errno);
}

int verb_env_destroy(struct cmd *c)
{
	_cleanup_(record_release) struct record r = { 0 };
	_cleanup_free_ char *top = NULL;
	bool back = false, force = false, mounted;
	const struct option_def defs[] = {
		{ .name = "write-back", .flag = &back },
		{ .name = "force", .flag = &force },
	};
	const char *lazily[] = { "unmount", "--lazy", "--", NULL, NULL };
	const char *off[] = { "unmount", "--", NULL, NULL };
	int code = cmd_parse(c, defs, ARRAY_SIZE(defs), 0, 1, 1);

	if (code == DONE)
		code = record_load(c, c->args.v[0], &r);
	if (code)
		return code;
	if (back && r.origin != COVERED)
		return cmd_misuse(c,
				  "--write-back is for an environment over a directory; '%s' "
				  "is not",
				  r.name);

	(void)!chdir("/"); /* our own place is not to keep the view busy */
	code = sessions_end(c, r.path);
	if (code && !force)
		return code;
	lazily[3] = off[2] = r.path;
	if (r.origin != ADOPTED && is_dead(r.path))
		(void)run_verb(c, off); /* says what it found, or why not */
	/* A place that does not tell counts as a view: then unmount says what is wrong. */
	mounted = r.origin != ADOPTED && place_is_view(r.path) != 0;
	/* What a destroy that failed has unmounted is mounted again, to be written back. */
	if (mounted || back) {
		/* unmount by itself tells what stays behind */
		code = r.origin == FORKED ? take_down(c, &r, "drop")
		       : back		  ? take_down(c, &r, "write-back")
					  : run_verb(c, off);
		if (code && !force)
			return code;
		if (code)
			(void)run_verb(c, lazily); /* says why not */
	}
	if (r.origin == FORKED && (!mounted || code)) {
		const char *drop[] = { "--store",  r.store, "drop",   "--with-snapshots",
				       "--branch", "--",    r.branch, NULL };

		(void)run_verb(c, drop); /* says why not; the record would not help any more */
	}
	/* A place of our own; one that was given stays. */
	if (r.origin == FORKED && place_runtime(c, "env", &top) == DONE &&
	    strncmp(r.path, top, strlen(top)) == 0)
		(void)rmdir(r.path); /* gone, or not empty: not ours then */
	return record_remove(c, r.name);
}
