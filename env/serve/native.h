/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Our own protocol: what an environment can and the others have no words for. Its contract for
 * clients is openapi.json. Snapshots have the ids that the environment gives (plyfs.h).
 */

#include "env/plyfs.h"
#include "env/serve/endpoint.h"

extern const struct endpoint native_endpoints[]; /* their arg is a struct ply_env */
extern const size_t n_native_endpoints;

/* native_exec.c: POST /v1/exec */
void native_exec(void *arg, const struct http_request *q, struct http_response *r);
/* openapi.json, as it is in the source. */
extern const unsigned char openapi_json[];
extern const size_t openapi_json_len;
