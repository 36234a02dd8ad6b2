/* SPDX-License-Identifier: Apache-2.0 */

/*
 * See native.h. States through the environment, so that kinds with ids or commits of their own make
 * them; what only asks or names (diff, log, tree, fork, drop) through the verbs of the program.
 */

#include "env/serve/native.h"

#include <stdlib.h>
#include <string.h>

#include "env/env_internal.h"
#include "env/serve/chimera.h"
#include "env/serve/model.h"
#include "env/serve/rex.h"
#include "env/status.h"
#include "store/base/util.h"

struct state_body {
	const char *label, *id, *name, *from, *snapshot;
	bool with_snapshots;
};
static const struct model_field label_field[] = {
	{ "label", MODEL_STRING_OR_NULL, offsetof(struct state_body, label), 0, false, NULL },
};
static const struct model_field id_field[] = {
	{ "id", MODEL_STRING, offsetof(struct state_body, id), 0, true, NULL },
};
static const struct model_field fork_fields[] = {
	{ "name", MODEL_STRING, offsetof(struct state_body, name), 0, true, NULL },
	{ "from", MODEL_STRING_OR_NULL, offsetof(struct state_body, from), 0, false, NULL },
};
static const struct model_field drop_fields[] = {
	{ "name", MODEL_STRING_OR_NULL, offsetof(struct state_body, name), 0, false, NULL },
	{ "snapshot", MODEL_STRING_OR_NULL, offsetof(struct state_body, snapshot), 0, false, NULL },
	{ "with_snapshots", MODEL_BOOL, offsetof(struct state_body, with_snapshots), 0, false,
	  NULL },
};

static void checkpoint(void *arg, const struct http_request *q, struct http_response *r)
{
	_cleanup_(model_release) struct model m = { 0 };
	struct state_body b = { 0 };
	struct ply_text id;
	int status;

	if (!body_read(q, r, label_field, ARRAY_SIZE(label_field), &m, &b))
		return;
	status = ply_env_checkpoint(arg, b.label, &id);
	if (status < 0) {
		reply_failure(r, status);
		return;
	}
	reply_json(r, 200, json_pack("{s:s}", "id", id.data));
	ply_text_free(&id);
}

static void done(struct http_response *r, int status)
{
	if (status < 0)
		reply_failure(r, status);
	else
		reply_json(r, 200, json_object());
}

static void restore(void *arg, const struct http_request *q, struct http_response *r)
{
	_cleanup_(model_release) struct model m = { 0 };
	struct state_body b = { 0 };

	if (body_read(q, r, id_field, ARRAY_SIZE(id_field), &m, &b))
		done(r, ply_env_restore(arg, b.id));
}

static void undo(void *arg, const struct http_request *q, struct http_response *r)
{
	done(r, ply_env_undo(arg));
}

/* ---- the verbs ---- */

enum how { ASK, RUN }; /* in the view's daemon; as a program: these may mount and change */

static int verb(struct ply_env *e, enum how how, const char *const *argv, struct ply_text *ret)
{
	int r = env_enter(e);

	if (r < 0)
		return r;
	if (!e->ws)
		r = fail(PLY_UNSUPPORTED, "%s environments have no store here", e->ops->kind);
	else if (how == ASK)
		r = workspace_ask(e->ws, argv, ret);
	else
		r = workspace_verb(e->ws, argv, ret);
	env_leave(e);
	return r;
}

/*
 * What a verb that failed said is the client's affair: a name that is taken, or is not there. Its
 * first words are the program's.
 */
static void refuse(struct http_response *r, int status)
{
	const char *why = ply_error(), *colon = strstr(why, ": ");
	_cleanup_free_ char *line = NULL;

	if (status != PLY_COMMAND_FAILED) {
		reply_failure(r, status);
		return;
	}
	if (strncmp(why, "plyfs ", 6) == 0 && colon)
		why = colon + 2;
	line = strndup(why, strcspn(why, "\n"));
	reply_detail(r, 400, line ? line : "out of memory");
}

/* Answers with a verb's JSON, under a name. */
static void reply_verb(struct http_response *r, struct ply_env *e, const char *const *argv,
		       const char *key)
{
	struct ply_text text = { 0 };
	json_t *answer;
	int status = verb(e, ASK, argv, &text);

	if (status < 0) {
		refuse(r, status);
		return;
	}
	answer = json_loadb(text.data, text.len, 0, NULL);
	ply_text_free(&text);
	if (!answer)
		reply_detail(r, 500, "the store's answer was no JSON");
	else
		reply_json(r, 200, key ? json_pack("{s:o}", key, answer) : answer);
}

/* A verb that changes something; false: answered. */
static bool did(struct http_response *r, struct ply_env *e, const char *const *words)
{
	struct ply_text text = { 0 };
	int status = verb(e, RUN, words, &text);

	ply_text_free(&text);
	if (status < 0)
		refuse(r, status);
	return status >= 0;
}

/*
 * An option with a client's value, in one word: "--help" as a word of its own would be the verb's.
 * Given; NULL: no memory, which is answered.
 */
static char *option(struct http_response *r, const char *name, const char *value)
{
	char *word;

	if (asprintf(&word, "--%s=%s", name, value) >= 0)
		return word;
	reply_detail(r, 500, "out of memory");
	return NULL;
}

static void fork_branch(void *arg, const struct http_request *q, struct http_response *r)
{
	_cleanup_(model_release) struct model m = { 0 };
	_cleanup_free_ char *from = NULL;
	struct state_body b = { 0 };
	const char *words[8] = { "fork" };
	size_t n = 1;

	if (!body_read(q, r, fork_fields, ARRAY_SIZE(fork_fields), &m, &b))
		return;
	if (b.from) {
		from = option(r, "from", b.from);
		if (!from)
			return;
		words[n++] = from;
	}
	words[n++] = "--";
	words[n++] = b.name;
	if (did(r, arg, words))
		reply_json(r, 200, json_pack("{s:s}", "name", b.name));
}

static void drop(void *arg, const struct http_request *q, struct http_response *r)
{
	_cleanup_(model_release) struct model m = { 0 };
	struct state_body b = { 0 };
	const char *words[6] = { "drop" };
	size_t n = 1;

	if (!body_read(q, r, drop_fields, ARRAY_SIZE(drop_fields), &m, &b))
		return;
	if (!b.name == !b.snapshot) {
		reply_detail(r, 400, "either 'name', a branch, or 'snapshot', an id or @LABEL");
		return;
	}
	words[n++] = b.name ? "--branch" : "--snapshot";
	if (b.with_snapshots)
		words[n++] = "--with-snapshots";
	words[n++] = "--";
	words[n++] = b.name ? b.name : b.snapshot;
	if (did(r, arg, words))
		reply_json(r, 200, json_object());
}

/* An argument of the query as an option in *ret, given; NULL: there is none. False: answered. */
static bool argument_option(const struct http_request *q, struct http_response *r,
			    const char *name, char **ret)
{
	const char *value;

	if (!argument_read(q, r, name, &value))
		return false;
	*ret = value ? option(r, name, value) : NULL;
	return *ret || !value;
}

static void snapshots(void *arg, const struct http_request *q, struct http_response *r)
{
	_cleanup_free_ char *branch = NULL, *count = NULL;
	const char *words[8] = { "log", "--json" };
	size_t n = 2;

	if (!argument_option(q, r, "branch", &branch) || !argument_option(q, r, "count", &count))
		return;
	if (branch)
		words[n++] = branch;
	if (count)
		words[n++] = count;
	reply_verb(r, arg, words, "snapshots");
}

static void tree(void *arg, const struct http_request *q, struct http_response *r)
{
	static const char *const words[] = { "tree", "--json", NULL };

	reply_verb(r, arg, words, NULL);
}

static void diff(void *arg, const struct http_request *q, struct http_response *r)
{
	struct ply_text text = { 0 };
	const char *form, *a, *b;
	json_t *changes;
	int status;

	if (!argument_read(q, r, "form", &form) || !argument_read(q, r, "a", &a) ||
	    !argument_read(q, r, "b", &b))
		return;
	form = form ? form : "json";
	status = ply_env_diff(arg, a, b, form, &text);
	if (status < 0) {
		refuse(r, status);
	} else if (strcmp(form, "json") != 0) {
		reply_json(r, 200, json_pack("{s:o}", "text", rex_text(text.data, text.len)));
	} else {
		changes = json_loadb(text.data, text.len, 0, NULL);
		if (changes)
			reply_json(r, 200, json_pack("{s:o}", "changes", changes));
		else
			reply_detail(r, 500, "the store's answer was no JSON");
	}
	ply_text_free(&text);
}

static void openapi(void *arg, const struct http_request *q, struct http_response *r)
{
	r->body = malloc(openapi_json_len);
	if (!r->body) {
		reply_detail(r, 500, "out of memory");
		return;
	}
	memcpy(r->body, openapi_json, openapi_json_len);
	r->len = openapi_json_len;
}

const struct endpoint native_endpoints[] = {
	{ "POST", "/v1/checkpoint", false, checkpoint },
	{ "POST", "/v1/restore", false, restore },
	{ "POST", "/v1/undo", false, undo },
	{ "POST", "/v1/fork", false, fork_branch },
	{ "POST", "/v1/drop", false, drop },
	{ "GET", "/v1/diff", false, diff },
	{ "GET", "/v1/tree", false, tree },
	{ "GET", "/v1/snapshots", false, snapshots },
	{ "POST", "/v1/exec", false, native_exec, true },
	{ "GET", "/v1/openapi.json", false, openapi },
};
const size_t n_native_endpoints = ARRAY_SIZE(native_endpoints);
