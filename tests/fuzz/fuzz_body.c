/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Bodies from clients. The first byte chooses: one for an endpoint (the second says which, of all
 * protocols), one for a model that has every type of field, text in an encoding, which must become
 * UTF-8. Endpoints get as far as there is no environment and no process: an answer comes in any
 * case, and files are written below a directory of ours only.
 */

#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "env/keeper.h"
#include "env/serve/chimera.h"
#include "env/serve/cloud.h"
#include "env/serve/model.h"
#include "env/serve/rex.h"
#include "store/base/util.h"
#include "tests/fuzz/fuzz.h"

/* ---- what endpoints make of a body ---- */

static struct serve_protocol protocols[SERVE_PROTOCOLS_MAX + 1];
static char root[] = "/dev/shm/plyfs-fuzz-XXXXXX";

/* What the program does when it is started as a keeper: it says its first words, and is gone. */
static void keeper_that_dies(void)
{
	const struct keeper_hello hello = { .version = KEEPER_VERSION, .pid = getpid() };

	(void)!send(3, &hello, sizeof(hello), 0);
	_exit(0);
}

/* Every path is below root. */
static int locate(void *arg, const char *path, char ret[static PATH_MAX])
{
	path += strspn(path, "/");
	if (strlen(path) >= PATH_MAX - 1)
		return PLY_INVALID;
	strcpy(ret, *path ? path : ".");
	return 0;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
	return at->level ? remove(path) : 0;
}

static void clean(void)
{
	MUST(nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0);
}

static void remove_root(void)
{
	(void)rmdir(root);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	struct rex_place place = { .root = root, .locate = locate };
	static struct serve_options o;
	struct ply_env *env;
	struct cloud *cloud;
	struct rex *rex;

	if (strcmp((*argv)[0], "plyfs-keeper") == 0)
		keeper_that_dies();
	keeper_is("/proc/self/exe");
	MUST(mkdtemp(root) && atexit(remove_root) == 0);
	MUST(keeper_start(&place.keeper) == 0);
	MUST(rex_new(&place, &rex) == 0);
	MUST(ply_env_new("local", &env) == 0); /* never set up: bodies are read, then refused */
	serve_environment(&o, env);
	MUST(cloud_new(env, &o, &cloud) == 0);
	serve_cloud(&o, cloud);
	memcpy(protocols, o.protocols, sizeof(o.protocols));
	protocols[SERVE_PROTOCOLS_MAX] = (struct serve_protocol){ .endpoints = rex_endpoints,
								  .n = n_rex_endpoints,
								  .arg = rex };
	return 0;
}

static const struct endpoint *choose(size_t number, void **ret_arg)
{
	size_t n = 0;

	for (size_t i = 0; i < ARRAY_SIZE(protocols); i++)
		n += protocols[i].n;
	number %= n;
	for (const struct serve_protocol *p = protocols;; p++) {
		if (number < p->n) {
			*ret_arg = p->arg;
			return &p->endpoints[number];
		}
		number -= p->n;
	}
}

static void fuzz_endpoint(const char *data, size_t len)
{
	struct http_response r = { .status = 200, .fd = -1 };
	const struct endpoint *e;
	struct http_request q;
	void *arg;
	char *body;

	if (!len)
		return;
	e = choose((unsigned char)data[0], &arg);
	body = malloc(len); /* the rest, and a NUL */
	MUST(body);
	memcpy(body, data + 1, len - 1);
	body[len - 1] = '\0';
	q = (struct http_request){
		.method = e->method, .path = e->path, .body = body, .body_len = len - 1
	};
	(void)chimera_is_execute(&q);
	e->serve(arg, &q, &r);
	MUST(r.status >= 200 && r.status < 600 && r.body && !r.stream && r.fd < 0);
	free(r.body);
	free(r.header_value);
	free(body);
	clean();
}

/* ---- bodies ---- */

struct body {
	const char *s;
	size_t s_len;
	double f;
	int i, word;
	bool b;
	json_t *list, *either, *map;
};

static const char *const words[] = { "a", "b", NULL };
static const struct model_field fields[] = {
	{ "s", MODEL_STRING, offsetof(struct body, s), offsetof(struct body, s_len), true, NULL },
	{ "f", MODEL_FLOAT_OR_NULL, offsetof(struct body, f), 0, false, NULL },
	{ "i", MODEL_INT, offsetof(struct body, i), 0, false, NULL },
	{ "w", MODEL_WORD, offsetof(struct body, word), 0, false, words },
	{ "b", MODEL_BOOL, offsetof(struct body, b), 0, false, NULL },
	{ "l", MODEL_STRINGS, offsetof(struct body, list), 0, false, NULL },
	{ "e", MODEL_STRING_OR_STRINGS, offsetof(struct body, either), 0, false, NULL },
	{ "m", MODEL_MAP_OR_NULL, offsetof(struct body, map), 0, false, NULL },
};

static void fuzz_model(const char *data, size_t len)
{
	struct body to = { 0 };
	struct model m;
	size_t n;
	char *text;

	model_parse(&m, data, len);
	(void)model_tag(&m, "w", words);
	model_read(&m, fields, ARRAY_SIZE(fields), &to);
	text = model_complaint(&m, &n);
	MUST(text && strlen(text) == n);
	MUST(!model_ok(&m) || to.s);
	free(text);
	model_release(&m);
}

/* ---- text ---- */

static void fuzz_text(const char *data, size_t len)
{
	static const char *const encodings[] = { "utf-8",   "utf-8-sig", "ascii",
						 "latin-1", "cp1252",	 "utf-16",
						 "utf-32",  "utf-16-be", "utf-32-be" };
	static const char *const errors[] = { "strict", "ignore", "replace", "backslashreplace" };
	const struct ply_text in = { .data = (char *)data, .len = len };

	for (size_t i = 0; i < ARRAY_SIZE(encodings); i++) {
		for (size_t k = 0; k < ARRAY_SIZE(errors); k++) {
			struct http_response r = { .fd = -1 };
			struct ply_text out = { 0 };
			json_t *s;

			if (rex_decode(&in, encodings[i], errors[k], &out, &r) == 0) {
				s = json_stringn(out.data, out.len);
				MUST(s);
				json_decref(s);
			} else {
				MUST(r.status == 511 && r.body);
			}
			ply_text_free(&out);
			free(r.body);
		}
	}
	json_decref(rex_text(data, len));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static void (*const targets[])(const char *data, size_t len) = { fuzz_endpoint, fuzz_model,
									 fuzz_text };
	char *copy; /* of just this size, so that a step too far is seen */

	if (!size)
		return 0;
	copy = malloc(size);
	MUST(copy);
	memcpy(copy, data, size);
	targets[data[0] % ARRAY_SIZE(targets)](copy + 1, size - 1);
	free(copy);
	return 0;
}
