/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What may stand in a configuration: a table per object says which fields there are. Unknown ones
 * are refused with their path and with the names that are known; values are taken as liberally as
 * upstream does (pydantic's "lax": "5" for 5, 1 or "yes" for true; never a number for a string).
 */

#include <math.h>
#include <strings.h>

#include "env/pytext.h"
#include "env/status.h"
#include "env/swe_config.h"
#include "env/swe_repo.h"
#include "store/base/util.h"

enum kind {
	STRING,
	INTEGER,
	NUMBER,
	BOOLEAN,
	STRINGS,
	OPTION, /* of an environment: text, a number or a boolean; kept as text */
	OBJECT, /* looked at by somebody else */
};

struct field {
	const char *name;
	enum kind kind;
	const char *otherwise; /* JSON, when it is absent; "null" also allows null. NULL: needed */
};

static const struct field environment_fields[] = {
	{ "name", STRING, "\"main\"" },
	{ "deployment", OBJECT, "{\"type\":\"local\"}" },
	{ "repo", OBJECT, "null" },
	{ "post_startup_commands", STRINGS, "[]" },
	{ "post_startup_command_timeout", INTEGER, "500" },
	{ "reset", STRING, "null" },
};
/*
 * What environments of ours take goes to ply_env_set as it is. A local one's root is another name
 * of workdir: the directory that "/" is.
 */
static const struct field local_fields[] = {
	{ "type", STRING, NULL },	  { "workdir", OPTION, "null" },
	{ "root", OPTION, "null" },	  { "store", OPTION, "null" },
	{ "from", OPTION, "null" },	  { "branch", OPTION, "null" },
	{ "at_cleanup", OPTION, "null" }, { "exclude", OPTION, "null" },
};
static const struct field container_fields[] = {
	{ "type", STRING, NULL },	 { "workdir", OPTION, "null" },
	{ "store", OPTION, "null" },	 { "from", OPTION, "null" },
	{ "branch", OPTION, "null" },	 { "at_cleanup", OPTION, "null" },
	{ "exclude", OPTION, "null" },	 { "runtime", OPTION, "null" },
	{ "root", OPTION, "null" },	 { "at", OPTION, "null" },
	{ "network", OPTION, "null" },	 { "memory", OPTION, "null" },
	{ "processes", OPTION, "null" }, { "cpu_time", OPTION, "null" },
};
static const struct field remote_fields[] = {
	{ "type", STRING, NULL },
	{ "auth_token", STRING, NULL },
	{ "host", STRING, "\"http://127.0.0.1\"" },
	{ "port", INTEGER, "null" },
	{ "timeout", NUMBER, "0.15" },
};
/* outputs: what commands print, in order: strings, or {output, exit_code}; null: "" for ever. */
static const struct field dummy_fields[] = {
	{ "type", STRING, NULL },
	{ "outputs", OBJECT, "null" },
};
static const struct field output_fields[] = {
	{ "output", STRING, "\"\"" },
	{ "exit_code", INTEGER, "null" },
};
static const struct field local_repo_fields[] = {
	{ "type", STRING, NULL },
	{ "base_commit", STRING, "\"HEAD\"" },
	{ "path", STRING, NULL },
};
static const struct field github_repo_fields[] = {
	{ "type", STRING, NULL },
	{ "base_commit", STRING, "\"HEAD\"" },
	{ "github_url", STRING, NULL },
	{ "clone_timeout", NUMBER, "500" },
};
static const struct field preexisting_repo_fields[] = {
	{ "type", STRING, NULL },
	{ "base_commit", STRING, "\"HEAD\"" },
	{ "repo_name", STRING, NULL },
	{ "reset", BOOLEAN, "true" },
};
static const struct field swesmith_repo_fields[] = {
	{ "type", STRING, NULL },
	{ "base_commit", STRING, "\"HEAD\"" },
	{ "repo_name", STRING, NULL },
	{ "mirror_url", STRING, "\"\"" },
};

struct type {
	const char *name;
	const struct field *fields;
	size_t n;
};
#define TYPE(name_, fields_)                        \
	{                                           \
		name_, fields_, ARRAY_SIZE(fields_) \
	}

static const struct type environment_type = TYPE("environment", environment_fields);
static const struct type output_type = TYPE("output", output_fields);
static const struct type deployment_types[] = {
	TYPE("local", local_fields),
	TYPE("container", container_fields),
	TYPE("remote", remote_fields),
	TYPE("dummy", dummy_fields),
};
static const struct type repo_types[] = {
	TYPE("local", local_repo_fields),
	TYPE("github", github_repo_fields),
	TYPE("preexisting", preexisting_repo_fields),
	TYPE("swesmith_preexisting", swesmith_repo_fields),
};

static const char *type_word(const json_t *v)
{
	switch (json_typeof(v)) {
	case JSON_OBJECT:
		return "a mapping";
	case JSON_ARRAY:
		return "a list";
	case JSON_STRING:
		return "a string";
	case JSON_INTEGER:
	case JSON_REAL:
		return "a number (in quotes it would be a string)";
	case JSON_TRUE:
	case JSON_FALSE:
		return "true or false (in quotes it would be a string)";
	default:
		return "null";
	}
}

static int wrong_type(const char *path, const char *wanted, const json_t *v)
{
	return fail(PLY_INVALID, "%s must be %s, it is %s", path, wanted, type_word(v));
}

/* "500", "0.5": a whole string that is a number. */
static bool string_number(const json_t *v, double *ret)
{
	const char *s = json_string_value(v);

	if (!s || s[strspn(s, "+-.0123456789eE")])
		return false;
	return text_is_number(s, ret) && isfinite(*ret);
}

static int as_boolean(const json_t *v)
{
	static const char *const yes[] = { "1", "true", "t", "yes", "y", "on" };
	static const char *const no[] = { "0", "false", "f", "no", "n", "off" };

	if (json_is_boolean(v))
		return json_is_true(v);
	if (json_is_integer(v) && (json_integer_value(v) | 1) == 1)
		return (int)json_integer_value(v);
	for (size_t i = 0; json_is_string(v) && i < ARRAY_SIZE(yes); i++) {
		if (strcasecmp(json_string_value(v), yes[i]) == 0)
			return 1;
		if (strcasecmp(json_string_value(v), no[i]) == 0)
			return 0;
	}
	return -1;
}

/* An environment's option as ply_env_set takes it. */
static json_t *as_option(const json_t *v)
{
	if (json_is_string(v))
		return json_string(json_string_value(v));
	if (json_is_boolean(v))
		return json_string(json_is_true(v) ? "1" : "0");
	if (json_is_integer(v))
		return json_sprintf("%" JSON_INTEGER_FORMAT, json_integer_value(v));
	return json_sprintf("%.17g", json_real_value(v));
}

/* What the value becomes; NULL in *ret: it stays as it is. */
static int check_value(const char *path, const struct field *f, json_t *v, json_t **ret)
{
	double d = 0;
	int b;

	switch (f->kind) {
	case STRING:
		if (!json_is_string(v))
			return wrong_type(path, "a string", v);
		return 0;
	case INTEGER:
	case NUMBER:
		if (json_is_number(v))
			d = json_number_value(v);
		else if (!string_number(v, &d))
			return wrong_type(path, "a number", v);
		if (f->kind == INTEGER && (d != floor(d) || fabs(d) > 1e15))
			return fail(PLY_INVALID, "%s must be a whole number, it is %g", path, d);
		*ret = f->kind == INTEGER ? json_integer((json_int_t)d) : json_real(d);
		return *ret ? 0 : fail_memory();
	case BOOLEAN:
		b = as_boolean(v);
		if (b < 0)
			return wrong_type(path, "true or false", v);
		*ret = json_boolean(b);
		return 0;
	case STRINGS:
		if (!json_is_array(v))
			return wrong_type(path, "a list of strings", v);
		for (size_t i = 0; i < json_array_size(v); i++)
			if (!json_is_string(json_array_get(v, i)))
				return wrong_type(path, "a list of strings: one of them",
						  json_array_get(v, i));
		return 0;
	case OPTION:
		if (json_is_array(v) || json_is_object(v))
			return wrong_type(path, "a string, a number or a boolean", v);
		*ret = as_option(v);
		return *ret ? 0 : fail_memory();
	case OBJECT:
		return 0;
	}
	return fail(PLY_INVALID, "%s: unknown kind of field", path);
}

/* path: "" at the top, else "repo." and the like. Fills in what is absent. */
static int check_fields(const char *path, const struct type *type, json_t *object)
{
	_cleanup_(ply_text_free) struct ply_text known = { 0 };
	const char *name;
	json_t *v;
	int r;

	json_object_foreach(object, name, v)
	{
		size_t i = 0;

		while (i < type->n && strcmp(type->fields[i].name, name) != 0)
			i++;
		if (i < type->n)
			continue;
		for (i = 0; i < type->n; i++) {
			r = text_append_format(&known, "%s%s", i ? ", " : "", type->fields[i].name);
			if (r < 0)
				return r;
		}
		return fail(PLY_INVALID, "%s%s is not known; the fields of %s %s are %s", path,
			    name, strchr("aeiou", type->name[0]) ? "an" : "a", type->name,
			    known.data);
	}
	for (const struct field *f = type->fields; f < type->fields + type->n; f++) {
		_cleanup_free_ char *where = NULL;
		json_t *becomes = NULL;

		v = json_object_get(object, f->name);
		if (asprintf(&where, "%s%s", path, f->name) < 0) {
			where = NULL; /* undefined after a failure */
			return fail_memory();
		}
		if (!v && !f->otherwise)
			return fail(PLY_INVALID, "%s is missing", where);
		if (v && json_is_null(v) && f->otherwise && strcmp(f->otherwise, "null") == 0)
			continue;
		if (!v) {
			becomes = json_loads(f->otherwise, JSON_DECODE_ANY, NULL);
			if (!becomes)
				return fail_memory();
		} else {
			r = check_value(where, f, v, &becomes);
			if (r < 0)
				return r;
		}
		if (becomes && json_object_set_new(object, f->name, becomes) < 0)
			return fail_memory();
	}
	return 0;
}

/* ---- the parts ---- */

/* What type an object without a `type` must be, by a field that only that type has. */
struct hint {
	const char *field, *type;
};

static int check_typed(const char *part, json_t *object, const struct type *types, size_t n,
		       const struct hint *hints)
{
	_cleanup_(ply_text_free) struct ply_text known = { 0 };
	_cleanup_free_ char *path = NULL;
	const json_t *type;
	int r;

	if (!json_is_object(object))
		return wrong_type(part, "a mapping", object);
	for (; !json_object_get(object, "type"); hints++)
		if (!hints->field || json_object_get(object, hints->field))
			if (json_object_set_new(object, "type", json_string(hints->type)) < 0)
				return fail_memory();
	type = json_object_get(object, "type");
	if (asprintf(&path, "%s.", part) < 0) {
		path = NULL; /* undefined after a failure */
		return fail_memory();
	}
	for (size_t i = 0; i < n; i++) {
		if (json_is_string(type) && strcmp(json_string_value(type), types[i].name) == 0)
			return check_fields(path, &types[i], object);
		r = text_append_format(&known, "%s%s", i ? ", " : "", types[i].name);
		if (r < 0)
			return r;
	}
	if (!json_is_string(type))
		return fail(PLY_INVALID, "%stype must be one of %s", path, known.data);
	return fail(PLY_INVALID, "%stype is \"%s\"; it must be one of %s", path,
		    json_string_value(type), known.data);
}

static bool is_one_of(const char *s, const char *const *words)
{
	for (; *words; words++)
		if (strcmp(s, *words) == 0)
			return true;
	return false;
}

/* Deployments of upstream that are no part of this library, and what serves instead. */
static int refuse_elsewhere(const char *type)
{
	static const char *const clouds[] = { "modal", "fargate", "daytona", NULL };

	if (strcmp(type, "docker") == 0)
		return fail(
			PLY_UNSUPPORTED,
			"deployment.type \"docker\" is not built in: use \"container\" (an image "
			"imported as a snapshot is its root with root: 1), or run a SWE-ReX "
			"server in the container and use \"remote\"");
	if (is_one_of(type, clouds))
		return fail(
			PLY_UNSUPPORTED,
			"deployment.type \"%s\" is not built in: start a SWE-ReX server there and "
			"use \"remote\" with its host, port and auth_token",
			type);
	return 0;
}

static int check_outputs(json_t *outputs)
{
	json_t *item;
	size_t i;
	int r;

	if (json_is_null(outputs))
		return 0;
	if (!json_is_array(outputs))
		return wrong_type("deployment.outputs", "a list", outputs);
	json_array_foreach(outputs, i, item)
	{
		char path[64];

		(void)snprintf(path, sizeof(path), "deployment.outputs[%zu].", i); /* fits */
		if (json_is_string(item)) {
			item = json_pack("{s:O}", "output", item);
			if (!item || json_object_set_new(item, "exit_code", json_integer(0)) < 0 ||
			    json_array_set_new(outputs, i, item) < 0)
				return fail_memory();
		}
		if (!json_is_object(item))
			return wrong_type("deployment.outputs", "a list of strings and mappings",
					  item);
		r = check_fields(path, &output_type, item);
		if (r < 0)
			return r;
	}
	return 0;
}

static int check_deployment(json_t *deployment)
{
	static const struct hint hints[] = {
		{ "auth_token", "remote" }, { "api_key", "daytona" }, { "image", "docker" },
		{ "runtime", "container" }, { NULL, "local" },
	};
	const char *type;
	int r;

	r = json_is_object(deployment) && config_string(deployment, "type")
		    ? refuse_elsewhere(config_string(deployment, "type"))
		    : 0;
	if (r < 0)
		return r;
	if (json_is_object(deployment) && !json_object_get(deployment, "type"))
		for (const struct hint *h = hints; h->field; h++)
			if (json_object_get(deployment, h->field)) {
				r = refuse_elsewhere(h->type);
				if (r < 0)
					return r;
			}
	r = check_typed("deployment", deployment, deployment_types, ARRAY_SIZE(deployment_types),
			hints);
	if (r < 0)
		return r;

	type = config_string(deployment, "type");
	if (strcmp(type, "dummy") == 0)
		return check_outputs(json_object_get(deployment, "outputs"));
	if (strcmp(type, "local") == 0 && config_string(deployment, "root")) {
		if (config_string(deployment, "workdir"))
			return fail(PLY_INVALID, "deployment.root and deployment.workdir are two "
						 "names of one thing: give one");
		if (json_object_set(deployment, "workdir", json_object_get(deployment, "root")) < 0)
			return fail_memory();
	}
	return 0;
}

/* Simplified input: see swe_config.h. */
static int repo_from_string(const char *input, json_t **ret)
{
	json_t *made;

	if (!*input)
		made = json_null();
	else if (swe_repo_is_github_url(input))
		made = json_pack("{s:s,s:s}", "type", "github", "github_url", input);
	else if (!strchr(input, '/'))
		made = json_pack("{s:s,s:s}", "type", "preexisting", "repo_name", input);
	else
		made = json_pack("{s:s,s:s}", "type", "local", "path", input);
	if (!made)
		return fail_memory();
	*ret = made;
	return 0;
}

static int check_repo(json_t *config)
{
	static const struct hint hints[] = {
		{ "github_url", "github" },
		{ "path", "local" },
		{ "mirror_url", "swesmith_preexisting" },
		{ NULL, "preexisting" },
	};
	json_t *repo = json_object_get(config, "repo");
	int r;

	if (json_is_string(repo)) {
		r = repo_from_string(json_string_value(repo), &repo);
		if (r < 0)
			return r;
		if (json_object_set_new(config, "repo", repo) < 0)
			return fail_memory();
	}
	if (json_is_null(repo))
		return 0;
	return check_typed("repo", repo, repo_types, ARRAY_SIZE(repo_types), hints);
}

int swe_config_check(json_t *config)
{
	const char *reset;
	int r;

	r = check_fields("", &environment_type, config);
	if (r < 0)
		return r;
	r = check_deployment(json_object_get(config, "deployment"));
	if (r < 0)
		return r;
	r = check_repo(config);
	if (r < 0)
		return r;
	if (config_number(config, "post_startup_command_timeout") <= 0)
		return fail(PLY_INVALID, "post_startup_command_timeout must be more than 0");
	reset = config_string(config, "reset");
	if (reset && strcmp(reset, "snapshot") != 0 && strcmp(reset, "commands") != 0)
		return fail(PLY_INVALID, "reset is \"%s\"; it must be \"snapshot\" or \"commands\"",
			    reset);
	return 0;
}
