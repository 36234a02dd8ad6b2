/* SPDX-License-Identifier: Apache-2.0 */

/*
 * An environment's options: one table says which kinds know an option, what its text must look
 * like, and what is meant when it is not set. A value is checked when it is set, so that nothing
 * later has to doubt it; what depends on several options is checked at setup.
 */

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "env/env_internal.h"
#include "env/files.h"
#include "env/status.h"
#include "store/base/util.h"

enum { LOCAL = 1, GIT = 2, CONTAINER = 4, REMOTE = 8, CLOUD = 16 };
#define VIEW (LOCAL | GIT | CONTAINER)
#define WIRE (REMOTE | CLOUD)

static const char *const kind_names[] = { "local", "git", "container", "remote", "cloud" };

enum form {
	TEXT,	 /* anything but nothing */
	PLACE,	 /* a path, kept absolute and resolved */
	FLAG,	 /* 0 or 1 */
	SECONDS, /* above 0 */
	COUNT,	 /* a whole number */
	PORT,
	CHOICE, /* one of `choices`, which are separated by spaces */
	BRANCH,
	NAMES, /* ':'-separated names of directories */
};

struct option {
	const char *name;
	size_t offset; /* in struct env_options */
	unsigned kinds;
	enum form form;
	const char *fallback, *choices;
};

/* Bytes kept of a stream: a command that prints for ever must not take the caller's memory. */
#define OUTPUT_LIMIT "1073741824"

#define OPTION(name) #name, offsetof(struct env_options, name)
static const struct option options[] = {
	{ OPTION(workdir), VIEW, PLACE },
	{ OPTION(store), VIEW, PLACE },
	{ OPTION(from), VIEW, TEXT },
	{ OPTION(branch), VIEW, BRANCH },
	{ OPTION(at_cleanup), VIEW, CHOICE, .choices = "keep write-back unmount drop" },
	{ OPTION(test_command), VIEW, TEXT, "python -m pytest" },
	{ OPTION(test_report), VIEW, TEXT },
	{ OPTION(test_rule), VIEW, CHOICE, .choices = "chimera" },
	{ OPTION(timeout), VIEW, SECONDS, "300" },
	{ OPTION(timeout), WIRE, SECONDS, "120" },
	{ OPTION(session), VIEW, FLAG, "0" },
	{ OPTION(merge), VIEW, FLAG, "0" },
	{ OPTION(output_limit), VIEW, COUNT, OUTPUT_LIMIT },
	{ OPTION(exclude), VIEW, NAMES },
	{ OPTION(commit), GIT, CHOICE, "all", "all untracked tracked" },
	{ OPTION(ref), GIT, TEXT },
	{ OPTION(runtime), CONTAINER, CHOICE, .choices = "bwrap crun runc" },
	{ OPTION(root), CONTAINER, FLAG, "0" },
	{ OPTION(at), CONTAINER, TEXT, "/workspace" },
	{ OPTION(network), CONTAINER, FLAG, "0" },
	{ OPTION(memory), CONTAINER, COUNT, "0" },
	{ OPTION(processes), CONTAINER, COUNT, "0" },
	{ OPTION(cpu_time), CONTAINER, COUNT, "0" },
	{ OPTION(host), REMOTE, TEXT },
	{ OPTION(port), REMOTE, PORT, "8080" },
	{ OPTION(api_key), WIRE, TEXT },
	{ OPTION(tls), REMOTE, FLAG, "0" },
	{ OPTION(working_dir), WIRE, TEXT, "/workspace" },
	{ OPTION(url), CLOUD, TEXT },
	{ OPTION(image), CLOUD, TEXT },
	{ OPTION(keep_alive), CLOUD, FLAG, "0" },
	{ OPTION(init_timeout), CLOUD, SECONDS, "120" },
	{ OPTION(sandbox_id), CLOUD, TEXT },
};

static unsigned kind_bit(const struct ply_env *e)
{
	for (size_t i = 0; i < ARRAY_SIZE(kind_names); i++)
		if (strcmp(kind_names[i], e->ops->kind) == 0)
			return 1u << i;
	return 0;
}

/* NULL: this kind has no such option. */
static const struct option *find(const struct ply_env *e, const char *name)
{
	unsigned bit = kind_bit(e);

	for (size_t i = 0; i < ARRAY_SIZE(options); i++)
		if ((options[i].kinds & bit) && strcmp(options[i].name, name) == 0)
			return &options[i];
	return NULL;
}

static int fail_unknown(const struct ply_env *e, const char *name)
{
	for (size_t i = 0; i < ARRAY_SIZE(options); i++)
		for (size_t k = 0; k < ARRAY_SIZE(kind_names); k++)
			if ((options[i].kinds & 1u << k) && strcmp(options[i].name, name) == 0)
				return fail(PLY_INVALID,
					    "option '%s' is for %s environments, not for %s ones",
					    name, kind_names[k], e->ops->kind);
	return fail(PLY_INVALID, "no option is called '%s'; plyfs.h lists them", name);
}

/* ---- values ---- */

static bool parse_number(const char *text, double *ret)
{
	return text_is_number(text, ret) && isfinite(*ret);
}

static bool parse_count(const char *text, uint64_t *ret)
{
	char *end;

	if (*text < '0' || *text > '9')
		return false; /* strtoull takes signs and spaces */
	errno = 0;
	*ret = strtoull(text, &end, 10);
	return !*end && errno == 0;
}

static bool is_choice(const char *choices, const char *value)
{
	size_t len = strlen(value);

	for (const char *p = choices; *p; p += strspn(p, " ")) {
		size_t n = strcspn(p, " ");

		if (n == len && memcmp(p, value, n) == 0)
			return true;
		p += n;
	}
	return false;
}

/* As the store wants them: 63 bytes of these, not beginning with '.' or '-'. */
static bool is_branch_name(const char *s)
{
	size_t len = strlen(s);

	return len > 0 && len < 64 && *s != '.' && *s != '-' &&
	       strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") ==
		       len;
}

static bool are_names(const char *s)
{
	for (;;) {
		size_t n = strcspn(s, ":");

		if (n == 0 || memchr(s, '/', n) || (n == 1 && *s == '.') ||
		    (n == 2 && s[0] == '.' && s[1] == '.'))
			return false;
		if (!s[n])
			return true;
		s += n + 1;
	}
}

static int check(const struct option *o, const char *value)
{
	uint64_t count = 0;
	double number = 0;

	switch (o->form) {
	case TEXT:
	case PLACE:
		if (!*value)
			return fail(PLY_INVALID, "option '%s' must not be empty", o->name);
		break;
	case FLAG:
		if (strcmp(value, "0") && strcmp(value, "1"))
			return fail(PLY_INVALID, "option '%s' is 0 or 1, not '%s'", o->name, value);
		break;
	case SECONDS:
		if (!parse_number(value, &number) || number <= 0)
			return fail(PLY_INVALID,
				    "option '%s' is a number of seconds above 0, not '%s'", o->name,
				    value);
		break;
	case COUNT:
		if (!parse_count(value, &count))
			return fail(PLY_INVALID, "option '%s' is a whole number, not '%s'", o->name,
				    value);
		break;
	case PORT:
		if (!parse_count(value, &count) || count < 1 || count > 65535)
			return fail(PLY_INVALID, "option '%s' is a port, 1 to 65535, not '%s'",
				    o->name, value);
		break;
	case CHOICE:
		if (!is_choice(o->choices, value))
			return fail(PLY_INVALID, "option '%s' is one of: %s; not '%s'", o->name,
				    o->choices, value);
		break;
	case BRANCH:
		if (!is_branch_name(value))
			return fail(PLY_INVALID,
				    "option '%s': '%s' is no name of a branch: up to 63 letters, "
				    "digits, '.', '_', '-', not beginning with '.' or '-'",
				    o->name, value);
		break;
	case NAMES:
		if (!are_names(value))
			return fail(PLY_INVALID,
				    "option '%s': names of directories, without '/', separated by "
				    "':'; not '%s'",
				    o->name, value);
		break;
	}
	return 0;
}

static char **slot(struct env_options *values, const struct option *o)
{
	return (char **)((char *)values + o->offset);
}

static const char *value_of(const struct ply_env *e, const struct option *o)
{
	const char *value = *(char *const *)((const char *)&e->o + o->offset);

	return value ? value : o->fallback ? o->fallback : "";
}

int ply_env_set(struct ply_env *e, const char *name, const char *value)
{
	const struct option *o = find(e, name);
	char *copy = NULL;
	int r;

	if (!o)
		return fail_unknown(e, name);
	WRITE_GUARD(&e->life);
	if (e->is_set_up)
		return fail(PLY_STATE, "option '%s' is for before setup; clean up first", name);
	if (value) {
		r = check(o, value);
		if (r < 0)
			return r;
		/* A place is meant from where the caller is now. */
		if (o->form == PLACE)
			r = files_absolute(value, &copy);
		else
			r = (copy = strdup(value)) ? 0 : fail_memory();
		if (r < 0)
			return r;
	}
	free(*slot(&e->o, o));
	*slot(&e->o, o) = copy;
	return 0;
}

const char *ply_env_get(struct ply_env *e, const char *name)
{
	const struct option *o = find(e, name);

	if (!o) {
		(void)fail_unknown(e, name); /* NULL says so; the sentence is there */
		return NULL;
	}
	READ_GUARD(&e->life);
	return value_of(e, o);
}

/* ---- for the kinds ---- */

const char *env_option(const struct ply_env *e, const char *name)
{
	const struct option *o = find(e, name);

	return o ? value_of(e, o) : "";
}

bool env_flag(const struct ply_env *e, const char *name)
{
	return strcmp(env_option(e, name), "1") == 0;
}

double env_number(const struct ply_env *e, const char *name)
{
	double number = 0;

	return parse_number(env_option(e, name), &number) ? number : 0;
}

uint64_t env_count(const struct ply_env *e, const char *name)
{
	uint64_t count = 0;

	return parse_count(env_option(e, name), &count) ? count : 0;
}

void env_options_release(struct env_options *o)
{
#define X(name) free(o->name);
	ENV_OPTIONS(X)
#undef X
	*o = (struct env_options){ 0 };
}
