/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Chimera's remote environment protocol on one environment: files, commands, tests, checkpoints.
 * /execute is SWE-ReX's path as well; its body tells them apart (chimera_is_execute).
 */

#include "env/plyfs.h"
#include "env/serve/endpoint.h"

extern const struct endpoint chimera_endpoints[]; /* their arg is a struct ply_env */
extern const size_t n_chimera_endpoints;

/* Is this POST /execute Chimera's ("cmd") and not SWE-ReX's ("command")? */
bool chimera_is_execute(const struct http_request *q);

/* The answer for a failed call: a status that says which kind of failure, and the sentence. */
void reply_failure(struct http_response *r, int status);
