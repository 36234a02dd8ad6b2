/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The repository of a SWEEnv. It always lives at /NAME in the environment. Types: "local" (a
 * repository of this machine is copied there), "github" (cloned), "preexisting" and
 * "swesmith_preexisting" (there already).
 */

#include <jansson.h>

#include "env/plyfs.h"

struct swe_deploy;

struct swe_repo {
	const json_t *config;	 /* borrowed: checked fields of its type */
	const char *type;	 /* borrowed from config */
	const char *base_commit; /* borrowed from config */
	char *name;
	char *path; /* "/NAME" */
};

/* config: NULL or null give none. PLY_INVALID for a URL or name that makes no sense. */
int swe_repo_new(const json_t *config, struct swe_repo **ret);
void swe_repo_free(struct swe_repo *repo);
void swe_repo_freep(struct swe_repo **repo);

/*
 * Brings it into the environment. PLY_INVALID: a local path that is no git repository, or whose
 * working tree is dirty.
 */
int swe_repo_copy(const struct swe_repo *repo, struct swe_deploy *d);
/* Whether reset changes its files at all: `reset: false` of a preexisting one says no. */
bool swe_repo_is_reset(const struct swe_repo *repo);
/*
 * `cd`, `export ROOT`, and, when all, the commands of the reset, joined with " && ". Deployments
 * without network are spared `git fetch`.
 */
int swe_repo_reset_command(const struct swe_repo *repo, const struct swe_deploy *d, bool all,
			   struct ply_text *ret);

/* Does text hold the URL of a GitHub repository? (.../github.com/OWNER/REPO...) */
bool swe_repo_is_github_url(const char *text);
/* PLY_INVALID: Invalid GitHub repository URL: ... */
int swe_repo_parse_github_url(const char *url, struct ply_text *ret_owner,
			      struct ply_text *ret_name);
/* https://TOKEN@...; as it is without a token, with a user in it, or when it is no web address. */
int swe_repo_url_with_token(const char *url, const char *token, struct ply_text *ret);
/* Takes GITHUB_TOKEN out of the sentence of a failure; returns r. */
int swe_repo_hide_token(int r);
