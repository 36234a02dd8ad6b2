/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * HTTP requests to one server, for environments that live on another machine. Connections are kept
 * for the next request; several threads may ask at once, each over a connection of its own.
 * Redirects are not followed: they would carry the key elsewhere.
 */

#include <stdbool.h>
#include <stddef.h>

#include "env/plyfs.h"

struct http;

/*
 * base: scheme, host, port, perhaps the beginning of paths, without a '/' at the end. key: sent as
 * "Authorization: Bearer KEY"; NULL: none. PLY_INVALID: not http or https, a key that would break
 * the header, a key for a machine other than this one without TLS.
 */
int http_open(const char *base, const char *key, struct http **ret);
/*
 * The same for servers that want the key in a header of their own ("X-API-Key"). Such keys are made
 * for one server's life and its network: they go without TLS, too.
 */
int http_open_header(const char *base, const char *header, const char *key, struct http **ret);
void http_close(struct http *h);
const char *http_base(const struct http *h);

struct http_request {
	const char *method;	  /* GET, POST, DELETE */
	const char *path;	  /* behind the base, as it is */
	const char *name, *value; /* the query, encoded here; NULL: none */
	const char *json;	  /* the body; NULL: none */
	/* A file of this machine as multipart/form-data: field "path", part "file". NULL: none. */
	const char *upload, *upload_path;
	const char *const *fields; /* name, value, ..., NULL: instead of "path"; NULL: as said */
	int *download;	/* a descriptor for the body of a 2xx answer; NULL: into the reply */
	double timeout; /* seconds; for upload and download without a byte, else for all of it */
	bool cancellable; /* by ply_cancel_on */
};
struct http_reply {
	long status;
	struct ply_text body;
};
void http_reply_release(struct http_reply *reply);
/*
 * Any status is an answer. A POST is sent once, whatever happens to its connection.
 * PLY_REMOTE: there is none, and why; PLY_TIMEOUT, PLY_CANCELLED;
 * PLY_FAILED: what came could not be written to *download.
 */
int http_send(struct http *h, const struct http_request *q, struct http_reply *ret);
