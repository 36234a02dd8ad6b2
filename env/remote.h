/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What the kinds remote and cloud share: an environment behind another machine's HTTP server
 * (Chimera's protocol). ply_env's kind is a struct remote from setup to cleanup.
 */

#include <jansson.h>

#include "env/env_internal.h"
#include "env/http_client.h"

struct remote {
	struct http *http;  /* the environment's server */
	struct http *cloud; /* of kind cloud: who provides such servers */
};

/* Opens the connection and asks for its health. On failure there is none. */
int remote_connect(struct ply_env *e, struct remote *r, bool tls, const char *host,
		   const char *port);
/* Closes what is open, and frees; NULL is fine. */
void remote_free(struct remote *r);
static inline void remote_freep(struct remote **r)
{
	remote_free(*r);
}

/*
 * Sends and reads the answer: any 2xx is a good one. 404 is `not_found`, 401 and 403 PLY_DENIED,
 * everything else PLY_REMOTE, with the server's own words. ret: NULL when the answer's body does
 * not matter; else what it is as JSON, an object (PLY_REMOTE if it is none).
 */
int remote_ask(struct http *h, const struct http_request *q, int not_found, json_t **ret);
/* The same with a body, which is freed. */
int remote_ask_with(struct http *h, struct http_request q, json_t *body, int not_found,
		    json_t **ret);

/* A member of an answer: PLY_REMOTE when it is not there or no such thing. */
int remote_string(const json_t *answer, const char *key, struct ply_text *ret);

/* A member for a body; PLY_ENCODING when it is not UTF-8, which JSON has to be. */
int remote_put(json_t *body, const char *key, const void *data, size_t len, const char *what);

/* For tables of kinds: everything but setup and cleanup. */
int remote_read_file(struct ply_env *e, const char *path, struct ply_text *ret);
int remote_write_file(struct ply_env *e, const char *path, const void *data, size_t len);
int remote_list_files(struct ply_env *e, const char *pattern, struct ply_list *ret);
int remote_run(struct ply_env *e, const char *command, double timeout, const char *shell,
	       struct ply_result *ret);
int remote_run_tests(struct ply_env *e, struct ply_tests *ret);
int remote_checkpoint(struct ply_env *e, const char *label, struct ply_text *ret_id);
int remote_restore(struct ply_env *e, const char *id);
int remote_upload(struct ply_env *e, const char *local, const char *path);
int remote_download(struct ply_env *e, const char *path, const char *local);

static inline void json_freep(json_t **j)
{
	json_decref(*j);
}
