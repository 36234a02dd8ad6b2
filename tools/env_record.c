/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Records of environments: $XDG_STATE_HOME/plyfs/env/NAME.json. Made with O_EXCL, so that a name is
 * taken once; never changed; a record that cannot be read is told and can be removed by hand.
 */

#include "tools/env.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <sys/stat.h>

#include "env/json_memory.h"
#include "store/base/util.h"

static const char *const origins[] = { "forked", "covered", "adopted" };

void record_release(struct record *r)
{
	free(r->name);
	free(r->kind);
	free(r->path);
	free(r->store);
	free(r->branch);
	json_decref(r->options);
	*r = (struct record){ 0 };
}

static int file_of(const struct cmd *c, const char *name, char **ret)
{
	_cleanup_free_ char *dir = NULL;
	int r = place_state(c, "env", &dir);

	if (r)
		return r;
	return asprintf(ret, "%s/%s.json", dir, name) < 0 ? cmd_fail(c, "%s", strerror(ENOMEM))
							  : DONE;
}

static int taken(const struct cmd *c, const char *name)
{
	return cmd_fail(c, "there is an environment '%s' already; take another name, or destroy it",
			name);
}

int record_must_be_free(const struct cmd *c, const char *name)
{
	_cleanup_free_ char *path = NULL;
	int r = file_of(c, name, &path);

	return r == DONE && access(path, F_OK) == 0 ? taken(c, name) : r;
}

/* A record is JSON, which holds no other text. */
static bool is_utf8(const char *s)
{
	json_t *text = json_string(s);

	json_decref(text);
	return text || json_memory_was_short();
}

/* To the disk: an empty one, as a power cut leaves, would be in the way of all others. An errno. */
static int write_record(json_t *o, const char *path)
{
	/* In memory first: json_dumpfd() looks at no answer when it writes an object's key. */
	_cleanup_free_ char *text = json_dumps(o, JSON_INDENT(2));
	_cleanup_close_ int fd = -1;
	int r;

	if (!text || json_memory_was_short())
		return ENOMEM;
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	if (fd < 0)
		return errno;
	r = write_all(fd, text, strlen(text));
	return r < 0 ? -r : fsync(fd) < 0 ? errno : 0;
}

int record_create(const struct cmd *c, const struct record *r)
{
	const char *bad = !is_utf8(r->path)		   ? r->path
			  : r->store && !is_utf8(r->store) ? r->store
							   : NULL;
	json_t *o = json_pack("{s:s, s:s, s:s, s:s*, s:s*, s:s, s:O}", "name", r->name, "kind",
			      r->kind, "path", r->path, "store", r->store, "branch", r->branch,
			      "origin", origins[r->origin], "options", r->options);
	_cleanup_free_ char *dir = NULL, *path = NULL, *temporary = NULL;
	int s = place_state(c, "env", &dir), error = 0;

	if (s == DONE)
		s = place_make_dir(c, dir, "XDG_STATE_HOME");
	if (s == DONE)
		s = file_of(c, r->name, &path);
	if (s == DONE && bad)
		s = cmd_fail(c, "'%s' is not UTF-8, and an environment's record is: rename it, or "
				"mount its view elsewhere", bad);
	if (s == DONE && (!o || json_memory_was_short() ||
			  asprintf(&temporary, "%s.%d", path, (int)getpid()) < 0))
		s = cmd_fail(c, "%s", strerror(ENOMEM));
	/* Written aside and linked: nobody reads half of one. */
	if (s == DONE)
		error = write_record(o, temporary);
	if (s == DONE && !error && link(temporary, path) < 0)
		error = errno;
	if (temporary)
		(void)unlink(temporary);
	json_decref(o);
	if (error == EEXIST)
		return taken(c, r->name);
	return error ? cmd_fail(c, "writing '%s': %s", path, strerror(error)) : s;
}

static bool is_absent(int error)
{
	return error == ENOENT || error == ENOTDIR;
}

int record_remove(const struct cmd *c, const char *name)
{
	_cleanup_free_ char *path = NULL;
	int r = file_of(c, name, &path);

	if (r == DONE && unlink(path) < 0 && !is_absent(errno))
		r = cmd_fail(c, "removing '%s': %s", path, strerror(errno));
	return r;
}

static size_t origin_find(const char *word)
{
	size_t i = 0;

	while (i < ARRAY_SIZE(origins) && strcmp(word, origins[i]) != 0)
		i++;
	return i;
}

#define GONE (-1) /* of read_file: there is no such file */

static int read_file(const struct cmd *c, const char *path, struct record *ret)
{
	const char *name, *kind, *where, *store = NULL, *branch = NULL, *origin;
	/* Whatever lies there is not waited for: a FIFO reads as empty. */
	_cleanup_close_ int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	json_error_t why;
	json_t *options, *o;
	struct record r = { 0 };
	size_t i = 0;

	if (fd < 0 && is_absent(errno))
		return GONE;
	if (fd < 0)
		return cmd_fail(c, "reading '%s': %s", path, strerror(errno));
	o = json_loadfd(fd, 0, &why);
	/* What is not understood is not acted on: destroying drops a branch. */
	if (!o || json_memory_was_short() ||
	    json_unpack(o, "{s:s, s:s, s:s, s?s, s?s, s:s, s:o}", "name", &name, "kind", &kind,
			"path", &where, "store", &store, "branch", &branch, "origin", &origin,
			"options", &options) < 0 ||
	    (i = origin_find(origin)) == ARRAY_SIZE(origins) ||
	    (i == FORKED && (!store || !branch))) {
		int s = json_memory_was_short()
				? cmd_fail(c, "'%s': %s", path, strerror(ENOMEM))
				: cmd_fail(c,
					   "'%s' is damaged%s%s; remove it when its view is "
					   "unmounted",
					   path, o ? "" : ": ", o ? "" : why.text);
		json_decref(o);
		return s;
	}
	r.origin = (enum record_origin)i;
	r.name = strdup(name);
	r.kind = strdup(kind);
	r.path = strdup(where);
	r.store = store ? strdup(store) : NULL;
	r.branch = branch ? strdup(branch) : NULL;
	r.options = json_incref(options);
	json_decref(o);
	if (!r.name || !r.kind || !r.path || (store && !r.store) || (branch && !r.branch)) {
		record_release(&r);
		return cmd_fail(c, "%s", strerror(ENOMEM));
	}
	*ret = r;
	return DONE;
}

int record_load(const struct cmd *c, const char *name, struct record *ret)
{
	_cleanup_free_ char *path = NULL;
	int r = name_check(c, name);

	if (r == DONE)
		r = file_of(c, name, &path);
	if (r)
		return r;
	r = read_file(c, path, ret);
	return r != GONE ? r
			 : cmd_fail(c,
				    "there is no environment '%s'; 'plyfs env list' lists them",
				    name);
}

static int is_record(const struct dirent *e)
{
	size_t n = strlen(e->d_name);

	return e->d_name[0] != '.' && n > 5 && strcmp(e->d_name + n - 5, ".json") == 0;
}

/* all: a record that cannot be read is an error; or else it is told and left out. */
static int list_records(const struct cmd *c, bool all, struct record **ret, size_t *ret_n)
{
	_cleanup_free_ char *dir = NULL;
	struct record *records;
	struct dirent **names;
	size_t n = 0;
	int count, r = place_state(c, "env", &dir);

	if (r)
		return r;
	count = scandir(dir, &names, is_record, alphasort);
	if (count < 0 && is_absent(errno)) {
		*ret = NULL;
		*ret_n = 0;
		return DONE;
	}
	if (count < 0)
		return cmd_fail(c, "'%s': %s", dir, strerror(errno));
	records = calloc((size_t)count + 1, sizeof(*records));
	for (int i = 0; i < count; i++) {
		char path[PATH_MAX + NAME_MAX];

		(void)snprintf(path, sizeof(path), "%s/%s", dir, names[i]->d_name);
		if (records && r == DONE) {
			int s = read_file(c, path, &records[n]); /* it may have gone meanwhile */

			if (s == DONE)
				n++;
			else if (s != GONE && all)
				r = s;
		}
		free(names[i]);
	}
	free(names);
	if (!records)
		return cmd_fail(c, "%s", strerror(ENOMEM));
	if (r) {
		while (n)
			record_release(&records[--n]);
		free(records);
		return r;
	}
	*ret = records;
	*ret_n = n;
	return DONE;
}

int record_list(const struct cmd *c, struct record **ret, size_t *ret_n)
{
	return list_records(c, false, ret, ret_n);
}

/*
 * Of the environment whose directory holds dir (the deepest): *ret_found. A record that cannot be
 * read may be the one: without it a container's command would not run isolated.
 */
static int record_of(const struct cmd *c, const char *dir, struct record *ret, bool *ret_found)
{
	_cleanup_free_ struct record *records = NULL;
	struct record found = { 0 };
	size_t n = 0;
	int code = list_records(c, true, &records, &n);

	if (code)
		return code;
	for (size_t i = 0; i < n; i++) {
		struct record *r = &records[i];
		size_t len = strlen(r->path);

		if (strncmp(dir, r->path, len) == 0 && (!dir[len] || dir[len] == '/') &&
		    (!found.path || strlen(found.path) < len)) {
			record_release(&found);
			found = *r;
			*r = (struct record){ 0 };
		}
		record_release(r);
	}
	*ret = found;
	*ret_found = found.path;
	return DONE;
}

/* ---- their environments ---- */

int env_set(const struct cmd *c, struct ply_env *env, const char *name, const char *value)
{
	char seconds[32], why[300]; /* 1e9 at most, which has ten digits */
	bool whole = strcmp(name, "cpu_time") == 0;
	double given;

	/* Of 5m the library knows nothing. A damaged record may have no text. */
	if (value && (whole || strcmp(name, "timeout") == 0)) {
		const struct option_def def = { .name = whole ? "cpu-time" : name,
						.seconds = &given };

		if (option_set(&def, value, why, sizeof(why)) < 0)
			return cmd_misuse(c, "%s", why);
		(void)snprintf(seconds, sizeof(seconds), "%.10g",
			       whole ? (double)whole_seconds(given) : given);
		value = seconds;
	}
	if (ply_env_set(env, name, value) == 0)
		return DONE;
	(void)cmd_ply_failed(c); /* says why */
	return MISUSE;
}

int env_of_record(const struct cmd *c, const struct record *r, struct ply_env **ret)
{
	struct ply_env *env;
	const char *name;
	json_t *value;
	int code;

	if (ply_env_new(r->kind, &env) < 0)
		return cmd_ply_failed(c);
	json_object_foreach(r->options, name, value)
	{
		code = env_set(c, env, name, json_string_value(value));
		if (code) {
			ply_env_free(env);
			return code;
		}
	}
	*ret = env;
	return DONE;
}

int env_of_place(const struct cmd *c, const struct place *p, const char *test_command,
		 const char *timeout, struct ply_env **ret)
{
	_cleanup_(record_release) struct record record = { 0 };
	bool remembered = false;
	struct ply_env *env;
	int r = record_of(c, p->dir, &record, &remembered);

	if (r)
		return r;
	if (remembered)
		r = env_of_record(c, &record, &env);
	else if (ply_env_new("local", &env) < 0)
		r = cmd_ply_failed(c);
	if (r)
		return r;
	if (test_command)
		r = env_set(c, env, "test_command", test_command);
	if (r == DONE && timeout)
		r = env_set(c, env, "timeout", timeout);
	/* It is a view: it stays, unless told otherwise; which forks of it would be, too. */
	if (r == DONE &&
	    (ply_env_set(env, "workdir", remembered ? record.path : p->dir) < 0 ||
	     ply_env_setup(env) < 0))
		r = cmd_ply_failed(c);
	if (r) {
		ply_env_free(env);
		return r;
	}
	*ret = env;
	return DONE;
}
