/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The configuration of a SWEEnv: YAML or JSON text in, one JSON object out in which every field is
 * there, has the right type and makes sense by itself, so that nobody further down has to ask.
 *
 *     name: main
 *     deployment: {type: local, workdir: /tmp/x}      see swe_fields.c for the fields of each type
 *     repo: {type: github, github_url: owner/repo}    or null, or a string (see repo below)
 *     post_startup_commands: [pip install -e .]
 *     post_startup_command_timeout: 500
 *     reset: null                                     "snapshot", "commands"; null: what can be
 *
 * repo as a string is upstream's simplified input: "" is none, what holds the URL of a GitHub
 * repository is "github", what holds no slash is "preexisting", anything else "local".
 */

#include <jansson.h>
#include <stddef.h>

/* PLY_INVALID with the field's path; PLY_UNSUPPORTED for the deployments that we do not have. */
int swe_config_parse(const char *text, size_t len, json_t **ret);

/* The second half of it: fills in what is absent, and puts values into their proper form. */
int swe_config_check(json_t *config);

/* The parts of a checked configuration; NULL for what is null or absent. Borrowed from it. */
const char *config_string(const json_t *object, const char *field);
double config_number(const json_t *object, const char *field);
