/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Environments of kind "container": local ones whose commands and sessions run isolated
 * (isolate.h), with the view as their root or as a folder in the machine's.
 *
 * Paths are those that a command in there sees: in the root shape "/etc/hosts" is the view's, and
 * a relative path begins at the working directory, which is `at`, else the image's WorkingDir, else
 * "/". Symlinks lead where they lead for a command. Paths of the machine that lie in the view mean
 * the same file.
 *
 * The view must not change by being run in: what /proc, /dev and /sys are mounted on is made
 * when it is missing, at setup and again after a restore took it away; nothing else is. Such a
 * place must be a directory: a symlink would lead the runtime, which is the machine's root while it
 * mounts, to wherever the last command wanted.
 *
 * Mounts in the view outlive a restore only if the kernel is not told to look up every name again:
 * hence workspace_keep_mounts. Then a session goes on after `rm -rf /usr` and a restore.
 */

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include "env/container_path.h"
#include "env/env_internal.h"
#include "env/glob.h"
#include "env/isolate.h"
#include "env/status.h"
#include "store/base/util.h"

#define IMAGE_XATTR "user.plyfs.oci" /* import_oci.c puts it there */
#define IMAGE_BYTES_MAX 65536	     /* the system's limit for an attribute */

#define ROOT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

static const char *const runtimes[] = { "bwrap", "crun", "runc", NULL };

static bool is_root_shape(const struct ply_env *e)
{
	return env_flag(e, "root");
}

/* ---- the image's configuration ---- */

static void json_freep(json_t **j)
{
	json_decref(*j);
}
#define _cleanup_json_ _cleanup_(json_freep)

/* NULL: the root has none. One that cannot be read is an error: commands would lack its Env. */
static int image_config(const struct ply_env *e, json_t **ret)
{
	_cleanup_free_ char *text = NULL;
	json_error_t why;
	ssize_t n;

	*ret = NULL;
	if (!is_root_shape(e))
		return 0;
	text = malloc(IMAGE_BYTES_MAX);
	if (!text)
		return fail_memory();
	n = getxattr(e->workdir, IMAGE_XATTR, text, IMAGE_BYTES_MAX);
	if (n < 0 && errno == ENODATA)
		return 0;
	if (n < 0)
		return fail_errno(errno, IMAGE_XATTR " of '%s'", e->workdir);
	*ret = json_loadb(text, (size_t)n, 0, &why);
	if (*ret)
		return 0;
	if (json_error_code(&why) == json_error_out_of_memory)
		return fail_memory();
	return fail(PLY_INVALID,
		    IMAGE_XATTR " of the container's root is no image's configuration (%s); mend "
				"it, or remove it: setfattr -x " IMAGE_XATTR " '%s'",
		    why.text, e->workdir);
}

static int inherit(struct ply_list *env, const char *const *names)
{
	int r = 0;

	for (; r == 0 && *names; names++)
		if (getenv(*names))
			r = isolate_put_variable(env, *names, getenv(*names));
	return r;
}

static int make_env(const struct ply_env *e, const json_t *image, struct ply_list *env)
{
	static const char *const always[] = { "TERM", "TZ", NULL };
	static const char *const machine[] = { "PATH", "LANG", "LC_ALL", "LC_CTYPE", NULL };
	static const char *const proxies[] = { "http_proxy", "https_proxy", "no_proxy",
					       "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", NULL };
	const json_t *list = json_object_get(image, "Env"), *item;
	bool root = is_root_shape(e);
	size_t k;
	int r;

	r = isolate_put_variable(env, "PATH", ROOT_PATH);
	if (r == 0) /* of a work folder: the machine's home cannot be written to */
		r = isolate_put_variable(env, "HOME", root ? "/root" : "/tmp");
	if (r == 0)
		r = isolate_put_variable(env, "TERM", "dumb");
	if (r == 0 && root)
		r = isolate_put_variable(env, "LANG", "C.UTF-8");
	if (r == 0)
		r = inherit(env, always);
	if (r == 0 && !root)
		r = inherit(env, machine);
	if (r == 0 && env_flag(e, "network"))
		r = inherit(env, proxies);
	json_array_foreach(list, k, item) {
		_cleanup_free_ char *name = NULL;
		const char *text = json_string_value(item), *equals;

		equals = text ? strchr(text, '=') : NULL;
		if (r < 0 || !equals || equals == text)
			continue;
		name = strndup(text, (size_t)(equals - text));
		r = name ? isolate_put_variable(env, name, equals + 1) : fail_memory();
	}
	return r;
}

/* ---- places in the root ---- */

/* A directory of the view's root, made when missing. */
static int make_place(int root_fd, const char *name)
{
	struct stat st;

	if (fstatat(root_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0) {
		if (S_ISDIR(st.st_mode))
			return 0;
		return fail(PLY_STATE,
			    "in the container's root /%s is no directory; nothing runs until it is "
			    "one: restore, or remove it",
			    name);
	}
	if (errno != ENOENT || mkdirat(root_fd, name, 0755) < 0)
		return fail_errno(errno, "making /%s in the container's root", name);
	return 0;
}

/*
 * A file of /etc to mount on, when there is nothing of that name. It is done without where there is
 * no such directory, or none in which the caller may make one.
 */
static int make_file(int root_fd, const char *name)
{
	_cleanup_close_ int etc =
		openat(root_fd, "etc", O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	_cleanup_close_ int fd = -1;

	if (etc >= 0)
		fd = openat(etc, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
	if (fd >= 0 || errno == EEXIST || errno == ENOENT || errno == ENOTDIR || errno == EACCES ||
	    errno == EPERM || errno == EROFS)
		return 0;
	return fail_errno(errno, "making /etc/%s in the container's root", name);
}

static int make_places(struct ply_env *e)
{
	_cleanup_close_ int fd = -1;
	int r;

	if (!is_root_shape(e))
		return 0;
	r = workspace_keep_mounts(e->ws);
	if (r < 0)
		return r;
	fd = open(e->workdir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return fail_errno(errno, "%s", e->workdir);
	r = make_place(fd, "proc");
	if (r == 0)
		r = make_place(fd, "dev");
	if (r == 0)
		r = make_place(fd, "sys");
	if (r == 0 && env_flag(e, "network"))
		r = make_file(fd, "resolv.conf");
	if (r == 0 && env_flag(e, "network"))
		r = make_file(fd, "hosts");
	return r;
}

/* ---- choosing a runtime ---- */

/* Only where a command reaches nothing is there nothing to hide. */
static int hide(struct ply_list *list, const char *path)
{
	_cleanup_free_ char *real = NULL;

	if (!path || *path != '/')
		return 0;
	real = realpath(path, NULL);
	if (!real)
		return isolate_is_out_of_reach(errno)
			       ? 0
			       : fail_errno(errno, "'%s', which is to be hidden", path);
	return list_append(list, real, strlen(real));
}

/*
 * The daemons of stores would do for whoever reaches their sockets what they do for us: write
 * anywhere.
 */
static int hide_stores(struct ply_env *e, struct ply_list *list)
{
	_cleanup_free_ char *data = NULL;
	const char *base = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
	int r = hide(list, workspace_store(e->ws));

	if (r == 0)
		r = hide(list, getenv("XDG_RUNTIME_DIR"));
	if (r == 0 && (base || home)) {
		if (asprintf(&data, "%s%s/plyfs", base ? base : home,
			     base ? "" : "/.local/share") < 0) {
			data = NULL;
			return fail_memory();
		}
		r = hide(list, data);
	}
	return r;
}

/* Nothing of it is left, and it is released. Keeps the sentence that is there. */
static void end(struct ply_env *e, struct isolation *i)
{
	struct ply_result result = { 0 };
	char **words = NULL;
	KEEP_SENTENCE;

	if (e->keeper && isolate_ending(i, &words) == 0 && words) {
		const struct proc_options o = { .argv = (const char *const *)words,
						.cwd = "/",
						.fds = { -1, -1, -1 } };
		const struct proc_capture c = { .timeout = 60 };

		(void)proc_run(e->keeper, &o, &c, &result); /* what stays is in a temporary place */
		ply_result_free(&result);
		argv_free(words);
	}
	isolate_release(i);
}

static int prepare(struct ply_env *e, const char *runtime, struct isolation *i)
{
	_cleanup_json_ json_t *image = NULL;
	bool root = is_root_shape(e);
	const char *cwd;
	int r;

	*i = (struct isolation){ 0 };
	r = image_config(e, &image);
	if (r < 0)
		return r;
	cwd = json_string_value(json_object_get(image, "WorkingDir"));
	*i = (struct isolation){
		.runtime = strdup(runtime),
		.dir = strdup(e->workdir),
		.at = root ? NULL : strdup(env_option(e, "at")),
		.cwd = strdup(!root || e->o.at	       ? env_option(e, "at")
			      : cwd && cwd[0] == '/' ? cwd
						     : "/"),
		.network = env_flag(e, "network"),
		.limits = { .memory = env_count(e, "memory"),
			    .processes = env_count(e, "processes") },
	};
	if (!i->runtime || !i->dir || !i->cwd || (!root && !i->at))
		return fail_memory();
	r = make_env(e, image, &i->env);
	if (r == 0 && !root)
		r = hide_stores(e, &i->hide);
	return r;
}

/*
 * Does `true` run? Its words otherwise. In a work folder, whatever the shape: the view need not
 * have a `true`, and the kernel is asked for the same things.
 */
static int try_it(struct ply_env *e, struct isolation *i, struct ply_text *why)
{
	static const char *const argv[] = { "/bin/true", NULL };
	static const char missing[] = "not installed";
	const struct proc_capture c = { .timeout = 30, .limit = 4096 };
	struct proc_options o = { .cwd = "/", .fds = { -1, -1, -1 } };
	struct ply_result result = { 0 };
	char **words = NULL;
	int r;

	r = isolate_begin(i);
	if (r == 1)
		return text_set(why, missing, strlen(missing)) < 0 ? PLY_NO_MEMORY : 1;
	if (r == 0)
		r = isolate_words(i, argv, NULL, &words);
	if (r < 0)
		return r;
	o.argv = (const char *const *)words;
	r = proc_run(e->keeper, &o, &c, &result);
	argv_free(words);
	if (r < 0)
		return text_set(why, ply_error(), strlen(ply_error())) < 0 ? PLY_NO_MEMORY : 1;
	if (result.exit_code != 0) {
		size_t len = result.err.len;
		const char *text = result.err.data ? result.err.data : "";

		while (len > 0 && text[len - 1] == '\n')
			len--;
		for (size_t k = 0; k < len; k++) /* the first line says it */
			if (text[k] == '\n')
				len = k;
		r = text_set(why, len ? text : "it failed", len ? len : strlen("it failed"));
		r = r < 0 ? r : 1;
	}
	ply_result_free(&result);
	return r;
}

/* One runtime; 1: not here, *tried says why. */
static int choose(struct ply_env *e, const char *runtime, struct ply_text *tried,
		  struct isolation *ret)
{
	_cleanup_(ply_text_free) struct ply_text why = { 0 };
	_cleanup_free_ char *line = NULL;
	struct isolation i = { 0 };
	char *at, *cwd;
	int r;

	r = prepare(e, runtime, &i);
	if (r == 0) {
		at = i.at;
		cwd = i.cwd;
		i.at = at ? at : (char *)"/workspace";
		i.cwd = (char *)"/";
		r = try_it(e, &i, &why);
		i.at = at;
		i.cwd = cwd;
	}
	if (r == 0) {
		*ret = i;
		return 0;
	}
	end(e, &i);
	if (r < 0)
		return r;
	if (asprintf(&line, "%s%s: %s", tried->len ? "; " : "", runtime, why.data) < 0) {
		line = NULL;
		return fail_memory();
	}
	r = text_append(tried, line, strlen(line));
	return r < 0 ? r : 1;
}

static int open_container(struct ply_env *e, struct isolation *ret)
{
	_cleanup_(ply_text_free) struct ply_text tried = { 0 };
	const char *only = env_option(e, "runtime");
	int r = 1;

	for (size_t k = 0; r == 1 && runtimes[k]; k++)
		if (!*only || strcmp(only, runtimes[k]) == 0)
			r = choose(e, runtimes[k], &tried, ret);
	if (r != 1)
		return r;
	return fail(PLY_NOT_HERE,
		    "no container can run here (%s). Install bubblewrap (or crun); if the kernel "
		    "forbids user namespaces (sysctl user.max_user_namespaces, "
		    "kernel.unprivileged_userns_clone, "
		    "kernel.apparmor_restrict_unprivileged_userns) allow them or run as root; "
		    "inside Docker: --privileged, or "
		    "--cap-add SYS_ADMIN --security-opt seccomp=unconfined,apparmor=unconfined",
		    tried.data);
}

/* ---- life ---- */

static int check(struct ply_env *e)
{
	const char *at = env_option(e, "at");

	if (at[0] != '/' || strstr(at, "//") || strstr(at, "/./") || strstr(at, "/../") ||
	    (at[1] && at[strlen(at) - 1] == '/') ||
	    (strlen(at) > 2 && strcmp(at + strlen(at) - 3, "/..") == 0))
		return fail(PLY_INVALID, "at: '%s' is no plain absolute path", at);
	if (!at[1] && !is_root_shape(e))
		return fail(PLY_INVALID, "at: / is for root=1");
	return 0;
}

/* What is left of a runtime goes, also when we are killed: the keeper does it then. */
static int tell_keeper(struct ply_env *e, const struct isolation *i)
{
	char **words = NULL;
	int r = isolate_ending(i, &words);

	if (r < 0 || !words)
		return r;
	r = workspace_on_death(e->ws, (const char *const *const[]){ (const char *const *)words },
			       1);
	argv_free(words);
	return r;
}

static int cleanup(struct ply_env *e)
{
	if (e->kind)
		end(e, e->kind);
	free(e->kind);
	e->kind = NULL;
	return env_local.cleanup(e);
}

static int setup(struct ply_env *e)
{
	int r;

	r = env_local.setup(e);
	if (r < 0)
		return r;
	e->kind = calloc(1, sizeof(struct isolation));
	r = e->kind ? open_container(e, e->kind) : fail_memory();
	if (r == 0)
		r = make_places(e);
	if (r == 0)
		r = tell_keeper(e, e->kind);
	if (r < 0) {
		KEEP_SENTENCE;
		(void)cleanup(e);
	}
	return r;
}

/* ---- commands ---- */

static int wrap(struct ply_env *e, const char *const *argv, const char *const *env, bool terminal,
		char ***ret)
{
	const struct isolation *i = e->kind;
	int r;

	/* Their own terminal would be behind ours, and what a session's shell reads behind that. */
	if (terminal && i->bundles)
		return fail(PLY_UNSUPPORTED,
			    "sessions in a container need bubblewrap; %s is in use", i->runtime);
	r = make_places(e);
	return r < 0 ? r : isolate_words(e->kind, argv, env, ret);
}

/* ---- files ---- */

static int locate(struct ply_env *e, const char *path, char ret[static PATH_MAX])
{
	char inside[PATH_MAX];
	int r = container_map(e, path, inside);

	if (r < 0)
		return r;
	if (inside[0] == '/')
		return fail(PLY_DENIED, "%s: of the machine only what lies in the view can be had",
			    path);
	strcpy(ret, inside);
	return 0;
}

static int read_file(struct ply_env *e, const char *path, struct ply_text *ret)
{
	char inside[PATH_MAX];
	int r = container_map(e, path, inside);

	return r < 0 ? r : local_read_file(e, inside, ret);
}

static int write_file(struct ply_env *e, const char *path, const void *data, size_t len)
{
	char inside[PATH_MAX];
	int r = container_map(e, path, inside);

	return r < 0 ? r : local_write_file(e, inside, data, len);
}

static int upload(struct ply_env *e, const char *local, const char *path)
{
	char inside[PATH_MAX];
	int r = container_map(e, path, inside);

	return r < 0 ? r : local_upload(e, local, inside);
}

static int download(struct ply_env *e, const char *path, const char *local)
{
	char inside[PATH_MAX];
	int r = container_map(e, path, inside);

	return r < 0 ? r : local_download(e, inside, local);
}

/* Below the working directory, and relative to it. */
static int list_files(struct ply_env *e, const char *pattern, struct ply_list *ret)
{
	const struct isolation *i = e->kind;
	_cleanup_free_ char *dir = NULL;
	char inside[PATH_MAX];
	int r;

	if (i->at)
		return local_list_files(e, pattern, ret);
	r = container_map(e, ".", inside);
	if (r < 0)
		return r;
	if (asprintf(&dir, "%s/%s", e->workdir, inside) < 0) {
		dir = NULL;
		return fail_memory();
	}
	return glob_list(dir, pattern, NULL, ret);
}

/* ---- states ---- */

static int restore(struct ply_env *e, const char *id)
{
	int r = is_root_shape(e) ? workspace_keep_mounts(e->ws) : 0;

	return r < 0 ? r : env_local.restore(e, id);
}

static int undo(struct ply_env *e)
{
	int r = is_root_shape(e) ? workspace_keep_mounts(e->ws) : 0;

	return r < 0 ? r : env_local.undo(e);
}

const struct env_ops env_container = {
	.kind = "container",
	.check = check,
	.setup = setup,
	.cleanup = cleanup,
	.read_file = read_file,
	.write_file = write_file,
	.list_files = list_files,
	.run = local_run,
	.run_tests = env_run_tests,
	.checkpoint = local_checkpoint,
	.restore = restore,
	.undo = undo,
	.clone = local_clone,
	.diff = local_diff,
	.upload = upload,
	.download = download,
	.wrap = wrap,
	.locate = locate,
};
