/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Repositories: names, URLs, copying, and the list of git commands of a reset. The commands are
 * upstream's, word for word, since servers and people see them.
 */

#include <stdlib.h>
#include <sys/stat.h>

#include "env/pytext.h"
#include "env/repo.h"
#include "env/status.h"
#include "env/swe_config.h"
#include "env/swe_deploy.h"
#include "env/swe_repo.h"
#include "store/base/util.h"

/* ---- URLs ---- */

/* The last place of the URL with an owner and a repository behind github.com/. */
static bool find_github(const char *url, const char **owner, size_t *owner_len, const char **name,
			size_t *name_len)
{
	static const char host[] = "github.com/";
	bool found = false;

	for (const char *p = strstr(url, host); p; p = strstr(p + 1, host)) {
		const char *o = p + sizeof(host) - 1;
		size_t n = strcspn(o, "/");

		if (n == 0 || o[n] == '\0' || strcspn(o + n + 1, "/") == 0)
			continue;
		*owner = o;
		*owner_len = n;
		*name = o + n + 1;
		*name_len = strcspn(*name, "/");
		found = true;
	}
	return found;
}

bool swe_repo_is_github_url(const char *text)
{
	const char *owner, *name;
	size_t owner_len, name_len;

	return find_github(text, &owner, &owner_len, &name, &name_len);
}

int swe_repo_parse_github_url(const char *url, struct ply_text *ret_owner,
			      struct ply_text *ret_name)
{
	_cleanup_(ply_text_free) struct ply_text o = { 0 };
	const char *owner = NULL, *name = NULL;
	size_t owner_len = 0, name_len = 0, n;
	int r;

	if (!find_github(url, &owner, &owner_len, &name, &name_len))
		return fail(PLY_INVALID, "Invalid GitHub repository URL: %s", url);
	for (n = 0; n < name_len && name[n] != '?' && name[n] != '#'; n++)
		;
	if (n >= 4 && memcmp(name + n - 4, ".git", 4) == 0)
		n -= 4;
	if (n == 0)
		return fail(PLY_INVALID, "Invalid GitHub repository URL: %s", url);
	r = text_set(&o, owner, owner_len);
	if (r == 0)
		r = text_set(ret_name, name, n);
	if (r < 0)
		return r;
	*ret_owner = o;
	o = (struct ply_text){ 0 };
	return 0;
}

int swe_repo_url_with_token(const char *url, const char *token, struct ply_text *ret)
{
	const char *rest = strstr(url, "://");
	struct ply_text made = { 0 };
	int r;

	if (!token || !*token || strncmp(url, "http", 4) != 0 || !rest || strchr(url, '@'))
		return text_set(ret, url, strlen(url));
	r = text_append_format(&made, "https://%s@%s", token, rest + 3);
	if (r < 0)
		return r;
	*ret = made;
	return 0;
}

int swe_repo_hide_token(int r)
{
	const char *token = getenv("GITHUB_TOKEN");
	_cleanup_(ply_text_free) struct ply_text shown = { 0 };
	int s = 0;

	if (r >= 0 || !token || !*token || !strstr(ply_error(), token))
		return r;
	for (const char *p = ply_error(); s == 0 && *p;) {
		const char *at = strstr(p, token);

		s = text_append(&shown, p, at ? (size_t)(at - p) : strlen(p));
		if (s == 0 && at)
			s = text_append_str(&shown, "***");
		p = at ? at + strlen(token) : p + strlen(p);
	}
	return s < 0 ? s : fail(r, "%s", shown.data);
}

/* "https://github.com/...": what has these words elsewhere is another's and gets no token. */
static bool is_at_github(const char *url)
{
	const char *host = strstr(url, "://");
	size_t n, len = strlen("github.com");

	if (!host)
		return false;
	host += strlen("://");
	n = strcspn(host, ":/?#\\");
	return n >= len && strncmp(host + n - len, "github.com", len) == 0 &&
	       (n == len || host[n - len - 1] == '.');
}

/* "owner/repo" and "github.com/owner/repo" mean the web address. */
static int full_url(const char *url, struct ply_text *ret)
{
	const char *slash = strchr(url, '/');
	bool is_short = slash && !strchr(slash + 1, '/');
	bool has_host = strncmp(url, "github.com/", 11) == 0;

	*ret = (struct ply_text){ 0 };
	return text_append_format(ret, "%s%s",
				  is_short   ? "https://github.com/"
				  : has_host ? "https://"
					     : "",
				  url);
}

/* ---- names ---- */

/* Of a local path: the last part of what it resolves to; spaces and quotes would need care. */
static int local_name(const char *path, char **ret)
{
	_cleanup_free_ char *real = realpath(path, NULL), *made = NULL;
	const char *from = real ? real : path; /* not there: swe_repo_copy says so */
	const char *base = strrchr(from, '/');
	char *to;

	base = base ? base + 1 : from;
	made = malloc(strlen(base) + 1);
	if (!made)
		return fail_memory();
	for (to = made; *base; base++)
		if (*base != '\'')
			*to++ = *base == ' ' ? '-' : *base;
	*to = '\0';
	*ret = TAKE_PTR(made);
	return 0;
}

/* It becomes a path in the environment and a word of shell commands. */
static int check_name(const char *name)
{
	const char *p = name;

	while (*p == '/')
		p++;
	if (!*p)
		return fail(PLY_INVALID, "a repository needs a name, this one has none");
	for (; *p; p += strcspn(p, "/"), p += strspn(p, "/"))
		if (strcspn(p, "/") == 2 && p[0] == '.' && p[1] == '.')
			return fail(PLY_INVALID, "the repository name \"%s\" leads out", name);
	if (strspn(name, "./") == strlen(name))
		return fail(PLY_INVALID, "the repository name \"%s\" is no name", name);
	return 0;
}

int swe_repo_new(const json_t *config, struct swe_repo **ret)
{
	_cleanup_(swe_repo_freep) struct swe_repo *repo = NULL;
	int r;

	if (!config || json_is_null(config)) {
		*ret = NULL;
		return 0;
	}
	repo = calloc(1, sizeof(*repo));
	if (!repo)
		return fail_memory();
	repo->config = config;
	repo->type = config_string(config, "type");
	repo->base_commit = config_string(config, "base_commit");
	/* It stands as a word of its own in `git checkout`, where "-f" would be an option. */
	if (!*repo->base_commit || *repo->base_commit == '-')
		return fail(PLY_INVALID, "repo.base_commit is \"%s\", which names no commit",
			    repo->base_commit);

	if (strcmp(repo->type, "local") == 0) {
		r = local_name(config_string(config, "path"), &repo->name);
		if (r < 0)
			return r;
	} else if (strcmp(repo->type, "github") == 0) {
		_cleanup_(ply_text_free) struct ply_text url = { 0 }, owner = { 0 }, name = { 0 };

		r = full_url(config_string(config, "github_url"), &url);
		if (r == 0)
			r = swe_repo_parse_github_url(url.data, &owner, &name);
		if (r < 0)
			return r;
		if (asprintf(&repo->name, "%s__%s", owner.data, name.data) < 0)
			repo->name = NULL; /* undefined after a failure */
	} else {
		repo->name = strdup(config_string(config, "repo_name"));
	}
	if (!repo->name)
		return fail_memory();
	r = check_name(repo->name);
	if (r < 0)
		return r;
	if (asprintf(&repo->path, "/%s", repo->name + strspn(repo->name, "/")) < 0) {
		repo->path = NULL; /* undefined after a failure */
		return fail_memory();
	}
	*ret = TAKE_PTR(repo);
	return 0;
}

void swe_repo_free(struct swe_repo *repo)
{
	if (!repo)
		return;
	free(repo->name);
	free(repo->path);
	free(repo);
}

void swe_repo_freep(struct swe_repo **repo)
{
	swe_repo_free(*repo);
}

/* ---- into the environment ---- */

/* A command of ours outside of the session, checked. */
static int execute(struct swe_deploy *d, const char *command, double timeout)
{
	_cleanup_(ply_result_free) struct ply_result result = { 0 };
	const struct swe_execute x = { .command = command, .timeout = timeout, .check = true };

	return d->ops->execute(d, &x, &result);
}

/* The path must be the top of a repository of its own, with nothing to lose. */
static int check_local(const char *path)
{
	_cleanup_(ply_text_free) struct ply_text top = { 0 }, shown = { 0 };
	_cleanup_free_ char *real = realpath(path, NULL), *git = NULL;
	struct stat st;
	bool dirty;
	int r;

	r = real ? repo_find(real, &top) : PLY_NOT_FOUND;
	if (r == PLY_NOT_FOUND) {
		r = text_append_repr(&shown, path, strlen(path));
		return r < 0 ? r
			     : fail(PLY_INVALID,
				    "Could not find git repository at "
				    "self.path=PosixPath(%s).",
				    shown.data);
	}
	if (r < 0)
		return r;
	while (top.len > 1 && top.data[top.len - 1] == '/')
		top.data[--top.len] = '\0';
	/* Upstream copies such a directory without its repository, and then fails in git. */
	if (strcmp(real, top.data) != 0)
		return fail(PLY_INVALID,
			    "%s lies inside the git repository %s: give the repository's path",
			    path, top.data);
	if (asprintf(&git, "%s/.git", real) < 0) {
		git = NULL; /* undefined after a failure */
		return fail_memory();
	}
	/* A copy's git commands would change the original. */
	if (lstat(git, &st) < 0 || !S_ISDIR(st.st_mode))
		return fail(PLY_INVALID,
			    "%s has its repository elsewhere (a linked work tree or a submodule): "
			    "give a clone of it",
			    path);
	r = repo_is_dirty(real, &dirty);
	if (r == 0 && dirty)
		return fail(PLY_INVALID,
			    "Local git repository %s is dirty. Please commit or stash changes.",
			    path);
	return r;
}

static int copy_local(const struct swe_repo *repo, struct swe_deploy *d)
{
	const char *path = config_string(repo->config, "path");
	_cleanup_(ply_text_free) struct ply_text where = { 0 }, command = { 0 };
	_cleanup_(ply_result_free) struct ply_result result = { 0 };
	struct swe_execute x = { 0 };
	int r;

	r = check_local(path);
	if (r < 0)
		return r;
	r = d->ops->copy_tree(d, path, repo->path);
	if (r < 0)
		return r;
	if (d->unprivileged)
		return 0; /* it is ours already, and no other's to be made */

	/* git trusts a repository only when it belongs to who runs git. */
	r = deploy_path(d, repo->path, &where);
	if (r == 0)
		r = text_append_str(&command, "chown -R root:root ");
	if (r == 0)
		r = text_append_quoted(&command, where.data);
	if (r < 0)
		return r;
	x.command = command.data;
	r = d->ops->execute(d, &x, &result);
	if (r < 0)
		return r;
	if (result.exit_code != 0)
		return fail(PLY_COMMAND_FAILED,
			    "Failed to change permissions on copied repository (exit code: %d, "
			    "stdout: %s, stderr: %s)",
			    result.exit_code, result.out.data, result.err.data);
	return 0;
}

/* Upstream's command, for where only commands reach. */
static int clone_by_command(const struct swe_repo *repo, struct swe_deploy *d, const char *url,
			    double timeout)
{
	_cleanup_(ply_text_free) struct ply_text where = { 0 }, dir = { 0 }, u = { 0 }, c = { 0 },
						 command = { 0 };
	int r = deploy_path(d, repo->path, &where);

	if (r == 0)
		r = text_append_quoted(&dir, where.data);
	if (r == 0)
		r = text_append_quoted(&u, url);
	if (r == 0)
		r = text_append_quoted(&c, repo->base_commit);
	if (r == 0)
		r = text_append_format(
			&command,
			"mkdir %s && cd %s && git init && git remote add origin %s "
			"&& git fetch --depth 1 origin %s && git checkout FETCH_HEAD "
			"&& cd ..",
			dir.data, dir.data, u.data, c.data);
	if (r == 0)
		r = execute(d, command.data, timeout);
	return r;
}

static int copy_github(const struct swe_repo *repo, struct swe_deploy *d)
{
	_cleanup_(ply_text_free) struct ply_text full = { 0 }, url = { 0 };
	double timeout = config_number(repo->config, "clone_timeout");
	int r;

	r = full_url(config_string(repo->config, "github_url"), &full);
	if (r == 0)
		r = swe_repo_url_with_token(
			full.data, is_at_github(full.data) ? getenv("GITHUB_TOKEN") : NULL, &url);
	if (r < 0)
		return r;
	r = d->ops->clone ? d->ops->clone(d, url.data, repo->base_commit, timeout, repo->path)
			  : clone_by_command(repo, d, url.data, timeout);
	return swe_repo_hide_token(r);
}

int swe_repo_copy(const struct swe_repo *repo, struct swe_deploy *d)
{
	if (strcmp(repo->type, "local") == 0)
		return copy_local(repo, d);
	if (strcmp(repo->type, "github") == 0)
		return copy_github(repo, d);
	return 0; /* preexisting: nothing to do, and when it is missing `cd` says so */
}

/* ---- reset ---- */

bool swe_repo_is_reset(const struct swe_repo *repo)
{
	return !json_is_false(json_object_get(repo->config, "reset"));
}

/* git fetch URL COMMIT, of a swesmith repository with a mirror. */
static int append_mirror(const struct swe_repo *repo, const char *mirror, struct ply_text *command)
{
	_cleanup_(ply_text_free) struct ply_text url = { 0 };
	int r = swe_repo_url_with_token(mirror, getenv("GITHUB_TOKEN"), &url);

	if (r == 0)
		r = text_append_str(command, " && git restore . && git reset --hard && git fetch ");
	if (r == 0)
		r = text_append_quoted(command, url.data);
	if (r == 0)
		r = text_append_str(command, " ");
	if (r == 0)
		r = text_append_quoted(command, repo->base_commit);
	if (r == 0)
		r = text_append_str(command, " && git checkout FETCH_HEAD && git clean -fdq");
	return r;
}

int swe_repo_reset_command(const struct swe_repo *repo, const struct swe_deploy *d, bool all,
			   struct ply_text *ret)
{
	_cleanup_(ply_text_free) struct ply_text where = { 0 }, command = { 0 };
	const char *mirror = config_string(repo->config, "mirror_url");
	_cleanup_free_ char *real = NULL;
	int r = deploy_path(d, repo->path, &where);

	if (r == 0)
		r = text_append_str(&command, "cd ");
	if (r == 0)
		r = text_append_quoted(&command, where.data);
	/* Where a snapshot did the rest, a fork of the shell would be a tenth of the reset. */
	if (r == 0 && !all && *d->root)
		real = realpath(where.data, NULL);
	if (real && strcmp(real, where.data) == 0) {
		r = text_append_str(&command, " && export ROOT=");
		if (r == 0)
			r = text_append_quoted(&command, real);
	} else if (r == 0) {
		r = text_append_str(&command, " && export ROOT=$(pwd -P)");
	}
	if (r == 0 && all && swe_repo_is_reset(repo)) {
		if (mirror && *mirror) {
			r = append_mirror(repo, mirror, &command);
		} else {
			r = text_append_format(&command,
					       " &&%s git status && git restore . && git reset "
					       "--hard && git checkout ",
					       d->offline ? "" : " git fetch &&");
			if (r == 0)
				r = text_append_quoted(&command, repo->base_commit);
			if (r == 0)
				r = text_append_str(&command, " && git clean -fdq");
		}
	}
	if (r < 0)
		return r;
	*ret = command;
	command = (struct ply_text){ 0 };
	return 0;
}
