/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Repositories of others: questions, and a clone. These are asked in the user's name, so his
 * configuration and git's rule about owners hold, unlike in the other files of repo_internal.h.
 */

#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <pthread.h>
#include <sys/stat.h>
#include <time.h>

#include "env/repo_internal.h"

/* Once in the process, and for good. */
static void init_library(void)
{
	(void)git_libgit2_init();
}

void use_libgit2(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, init_library);
}

const char *git_why(void)
{
	const git_error *e = git_error_last();

	return e && e->message ? e->message : "libgit2 does not say why";
}

/* ---- repositories of others ---- */

static int open_any(const char *path, unsigned flags, git_repository **ret)
{
	int r;

	use_libgit2();
	r = git_repository_open_ext(ret, path, flags, NULL);
	/* 1.5 forgets the code when nothing is configured; the message names the option. */
	if (r == GIT_EOWNER || (r < 0 && strstr(git_why(), "safe.directory")))
		return fail(PLY_DENIED,
			    "repository '%s' belongs to somebody else; if you trust it: "
			    "git config --global --add safe.directory '%s'",
			    path, path);
	if (r == GIT_ENOTFOUND)
		return fail(PLY_NOT_FOUND, "'%s' is not a git repository", path);
	if (r < 0)
		return fail(PLY_FAILED, "repository '%s': %s", path, git_why());
	return 0;
}

int repo_find(const char *path, struct ply_text *ret)
{
	_cleanup_(git_repositoryp) git_repository *repo = NULL;
	const char *top;
	size_t len;
	int r;

	r = open_any(path, GIT_REPOSITORY_OPEN_CROSS_FS, &repo);
	if (r < 0)
		return r;
	top = git_repository_workdir(repo);
	if (!top)
		top = git_repository_path(repo); /* bare */
	len = strlen(top);
	return text_set(ret, top, len > 1 && top[len - 1] == '/' ? len - 1 : len);
}

int repo_is_dirty(const char *path, bool *ret)
{
	_cleanup_(git_repositoryp) git_repository *repo = NULL;
	_cleanup_(git_status_listp) git_status_list *list = NULL;
	git_status_options options = GIT_STATUS_OPTIONS_INIT;
	int r;

	r = open_any(path, GIT_REPOSITORY_OPEN_NO_SEARCH, &repo);
	if (r < 0)
		return r;
	options.flags = 0; /* neither untracked nor ignored files */
	if (git_status_list_new(&list, repo, &options) < 0)
		return fail(PLY_FAILED, "status of repository '%s': %s", path, git_why());
	*ret = git_status_list_entrycount(list) > 0;
	return 0;
}

/* ---- a clone ---- */

struct clone {
	const char *url, *rev;
	double end; /* by now_seconds(); 0: never */
	bool timed_out;
	bool fetched_all;
	unsigned asked; /* for credentials */
	void (*progress)(void *arg, unsigned received, unsigned total);
	void *arg;
	git_fetch_options fetch;
};

static int clone_time(struct clone *c)
{
	if (c->end == 0 || now_seconds() < c->end)
		return 0;
	c->timed_out = true;
	return GIT_EUSER;
}

static int on_transfer(const git_indexer_progress *p, void *arg)
{
	struct clone *c = arg;

	if (c->progress)
		c->progress(c->arg, p->received_objects, p->total_objects);
	return clone_time(c);
}

static int on_talk(const char *text, int len, void *arg)
{
	return clone_time(arg);
}

/* What stands in the URL libgit2 has tried by itself; the agent is asked once. */
static int on_credential(git_credential **ret, const char *url, const char *user, unsigned allowed,
			 void *arg)
{
	struct clone *c = arg;

	if (allowed & GIT_CREDENTIAL_SSH_KEY && c->asked++ == 0)
		return git_credential_ssh_key_from_agent(ret, user ? user : "git");
	git_error_set_str(GIT_ERROR_CALLBACK, "access denied");
	return GIT_EAUTH;
}

static int clone_fail(struct clone *c, const char *what)
{
	if (c->timed_out)
		return fail(PLY_TIMEOUT, "cloning '%s': timed out", c->url);
	return fail(PLY_REMOTE, "cloning '%s': %s: %s", c->url, what, git_why());
}

/* The name that the remote has for rev; NULL: it names none of its refs. */
static const char *advertised(git_remote *remote, const char *rev)
{
	static const char *const forms[] = { "%s", "refs/heads/%s", "refs/tags/%s", "refs/%s" };
	const git_remote_head **heads;
	char name[1024];
	size_t n;

	if (git_remote_ls(&heads, &n, remote) < 0)
		return NULL;
	for (size_t f = 0; f < ARRAY_SIZE(forms); f++) {
		if (snprintf(name, sizeof(name), forms[f], rev) >= (int)sizeof(name))
			continue;
		for (size_t i = 0; i < n; i++)
			if (strcmp(heads[i]->name, name) == 0)
				return heads[i]->name;
	}
	return NULL;
}

static int fetch_spec(struct clone *c, git_remote *remote, const char *spec)
{
	char *one = (char *)spec; /* borrowed; libgit2's array is not const */
	git_strarray specs = { .strings = &one, .count = 1 };

	return git_remote_fetch(remote, &specs, &c->fetch, NULL);
}

static int drop_ref(git_reference *ref, void *arg)
{
	int r = git_reference_delete(ref);

	git_reference_free(ref);
	return r;
}

/*
 * Only what leads to rev is asked for, so that the clone does not hold what was done later; all
 * branches are where the remote cannot give a bare commit or rev is an expression.
 */
static int fetch_rev(struct clone *c, git_repository *repo, git_remote *remote,
		     git_commit **ret_commit)
{
	_cleanup_(git_objectp) git_object *object = NULL;
	const char *found;
	char name[1024] = "";
	git_oid oid;
	bool fetched = false;

	if (git_remote_connect(remote, GIT_DIRECTION_FETCH, &c->fetch.callbacks,
			       &c->fetch.proxy_opts, NULL) < 0)
		return clone_fail(c, "connecting");
	found = advertised(remote, c->rev);
	if (found)
		snprintf(name, sizeof(name), "%s", found);
	else if (strlen(c->rev) == GIT_OID_HEXSZ && git_oid_fromstr(&oid, c->rev) == 0)
		snprintf(name, sizeof(name), "%s", c->rev);
	git_remote_disconnect(remote);

	if (*name)
		fetched = fetch_spec(c, remote, name) == 0 &&
			  git_revparse_single(&object, repo, found ? "FETCH_HEAD" : name) == 0;
	if (!fetched && (found || c->timed_out))
		return clone_fail(c, "fetching");
	if (!fetched) {
		c->fetched_all = true;
		if (fetch_spec(c, remote, "+refs/heads/*:refs/remotes/origin/*") < 0)
			return clone_fail(c, "fetching");
		snprintf(name, sizeof(name), "refs/remotes/origin/%s", c->rev);
		if (git_revparse_single(&object, repo, c->rev) < 0 &&
		    git_revparse_single(&object, repo, name) < 0)
			return fail(PLY_NOT_FOUND, "'%s' has no revision '%s'", c->url, c->rev);
		if (git_reference_foreach(repo, drop_ref, NULL) < 0)
			return fail(PLY_FAILED, "cloning '%s': %s", c->url, git_why());
	}
	if (git_object_peel((git_object **)ret_commit, object, GIT_OBJECT_COMMIT) < 0)
		return fail(PLY_NOT_FOUND, "'%s' of '%s' is no commit", c->rev, c->url);
	return 0;
}

/* Objects that do not belong to the commit, which a remote gave all the same, go. */
static int keep_only(git_repository *repo, const git_oid *commit)
{
	_cleanup_(git_packbuilderp) git_packbuilder *pb = NULL;
	_cleanup_(git_revwalkp) git_revwalk *walk = NULL;
	char path[PATH_MAX], name[NAME_MAX], fetched[PATH_MAX];
	struct dirent *e;
	int r;
	DIR *d;

	if (git_packbuilder_new(&pb, repo) < 0 || git_revwalk_new(&walk, repo) < 0 ||
	    git_revwalk_push(walk, commit) < 0 || git_packbuilder_insert_walk(pb, walk) < 0)
		return fail(PLY_FAILED, "packing what was cloned: %s", git_why());
	r = write_pack(pb, git_repository_path(repo), name);
	if (r < 0)
		return r;
	snprintf(path, sizeof(path), "%sobjects/pack", git_repository_path(repo));
	d = opendir(path);
	while (d && (errno = 0, e = readdir(d)))
		if (strncmp(e->d_name, name, strlen(name)) != 0)
			(void)unlinkat(dirfd(d), e->d_name, 0); /* "." and ".." stay */
	r = !d || errno ? fail_errno(errno, "reading '%s'", path) : 0;
	if (d)
		closedir(d);
	if (r < 0)
		return r;
	snprintf(fetched, sizeof(fetched), "%sFETCH_HEAD", git_repository_path(repo));
	(void)unlink(fetched);
	return 0;
}

/* A path, or a URL of one: libgit2 then copies all that the repository's refs lead to. */
static bool is_local(const char *url)
{
	return strncmp(url, "file:", 5) == 0 || !strstr(url, ":");
}

static int clone_into(struct clone *c, const char *path)
{
	_cleanup_(git_repositoryp) git_repository *repo = NULL;
	_cleanup_(git_remotep) git_remote *remote = NULL;
	_cleanup_(git_commitp) git_commit *commit = NULL;
	git_checkout_options checkout = GIT_CHECKOUT_OPTIONS_INIT;
	int r;

	if (git_repository_init(&repo, path, false) < 0)
		return fail(PLY_FAILED, "making a repository at '%s': %s", path, git_why());
	if (git_remote_create(&remote, repo, "origin", c->url) < 0)
		return fail(PLY_INVALID, "'%s' is no URL of a repository: %s", c->url, git_why());
	r = fetch_rev(c, repo, remote, &commit);
	if (r == 0 && (c->fetched_all || is_local(c->url)))
		r = keep_only(repo, git_commit_id(commit));
	if (r < 0)
		return r;
	checkout.checkout_strategy = GIT_CHECKOUT_FORCE;
	if (git_checkout_tree(repo, (git_object *)commit, &checkout) < 0 ||
	    git_repository_set_head_detached(repo, git_commit_id(commit)) < 0)
		return fail(PLY_FAILED, "checking out '%s' of '%s': %s", c->rev, c->url, git_why());
	return 0;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
	if (at->level > 0)
		(void)remove(path); /* best effort, after the failure that is told */
	return 0;
}

/* What cannot be listed to its end is not: after a failure all that is in it is removed. */
static bool is_empty(const char *path)
{
	DIR *dir = opendir(path);
	struct dirent *d;
	bool empty = dir;

	while (empty && (errno = 0, d = readdir(dir)))
		empty = strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0;
	empty = empty && errno == 0;
	if (dir)
		closedir(dir);
	return empty;
}

int repo_clone_at(const char *url, const char *rev, const char *path, int depth, double timeout,
		  void (*progress)(void *arg, unsigned received, unsigned total), void *arg)
{
	struct clone c = {
		.url = url,
		.rev = rev,
		.progress = progress,
		.arg = arg,
		.fetch = GIT_FETCH_OPTIONS_INIT,
	};
	bool made;
	int r;

	use_libgit2();
	made = mkdir(path, 0777) == 0;
	if (!made && errno != EEXIST)
		return fail_errno(errno, "making '%s'", path);
	if (!made && !is_empty(path))
		return fail(PLY_EXISTS, "cloning into '%s': it is not an empty directory", path);
	if (timeout > 0)
		c.end = now_seconds() + timeout;
	c.fetch.callbacks.transfer_progress = on_transfer;
	c.fetch.callbacks.sideband_progress = on_talk;
	c.fetch.callbacks.credentials = on_credential;
	c.fetch.callbacks.payload = &c;
	c.fetch.download_tags = GIT_REMOTE_DOWNLOAD_TAGS_NONE;
#if LIBGIT2_VER_MAJOR > 1 || LIBGIT2_VER_MINOR >= 7
	/* Its transport for directories of this machine refuses to be shallow. */
	c.fetch.depth = depth > 0 && !is_local(url) ? depth : GIT_FETCH_DEPTH_FULL;
#endif
	r = clone_into(&c, path);
	if (r < 0) {
		(void)nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
		if (made)
			(void)rmdir(path);
	}
	return r;
}
